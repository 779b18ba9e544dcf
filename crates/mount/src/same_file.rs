//! Files and devices that have several names.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns true if two paths lead to the same file, or to the same block device: through links of any kind, or another
/// node of the device.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else { return false };
    match (one.file_type().is_block_device(), other.file_type().is_block_device()) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_by_all_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::fs::write(at("other"), "x").unwrap();
        std::fs::hard_link(at("file"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("file"), at("symbolic")).unwrap();
        assert!(is_same_file(&at("file"), &at("hard")) && is_same_file(&at("symbolic"), &at("hard")));
        assert!(!is_same_file(&at("file"), &at("other")) && !is_same_file(&at("file"), Path::new("/dev/null")));
        assert!(!is_same_file(&at("missing"), &at("file")));
    }
}
