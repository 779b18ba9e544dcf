//! [`FileFacts`]: what every listing of a file shows of it, as JSON has it.

use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::tree::Meta;
use crate::output;
use crate::place::Inside;

/// Place and attributes of a file.
#[derive(Debug, Serialize)]
pub(crate) struct FileFacts {
    image: String,
    /// The path, with U+FFFD for bytes that are not UTF-8.
    path: String,
    /// The bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    pub(crate) ino: u64,
    pub(crate) kind: &'static str,
    /// Permission bits in octal.
    pub(crate) mode: String,
    pub(crate) nlink: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) sectors: u64,
    /// Of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdev: Option<Rdev>,
}

impl FileFacts {
    /// Returns the attributes `meta` of the file at `path` on the volume of `place`.
    pub(crate) fn of(meta: &Meta, place: &Inside, path: &[u8]) -> FileFacts {
        FileFacts {
            image: place.image.to_string_lossy().into_owned(),
            path: String::from_utf8_lossy(path).into_owned(),
            path_hex: output::hex_unless_text(path),
            ino: meta.id.ino(),
            kind: kind_name(meta.kind),
            mode: format!("{:04o}", meta.perm),
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            size: meta.size,
            sectors: meta.sectors,
            rdev: Rdev::of(meta.kind, meta.rdev),
        }
    }
}

/// The number of a device, as JSON shows it.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rdev {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Rdev {
    /// Returns the number of a device; `None` for other files.
    pub(crate) fn of(kind: FileKind, rdev: u64) -> Option<Rdev> {
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        is_device.then(|| Rdev { major: libc::major(rdev), minor: libc::minor(rdev) })
    }
}

/// Returns a kind in one word.
fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Returns kind and permissions as `ls -l` writes them.
pub(crate) fn mode_text(kind: FileKind, perm: u32) -> String {
    let first = match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(first);
    // The special bit, its letter, and the shift of the three bits it shows in.
    for (special, letter, shift) in [(0o4000, 's', 6), (0o2000, 's', 3), (0o1000, 't', 0)] {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_does() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o6711), "-rws--s--x");
        assert_eq!(mode_text(FileKind::Regular, 0o4644), "-rwSr--r--");
    }
}
