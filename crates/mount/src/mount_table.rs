//! The kernel's table of mounts.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::loop_device;
use crate::same_file::is_same_file;

/// A mount in the kernel's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub target: PathBuf,
    /// File-system type: `fuse.moafs`, `fuseblk.moafs`.
    pub fstype: String,
    /// The source: a device, or the image. Who mounts chooses what stands here.
    pub source: PathBuf,
    /// The user who has mounted it through FUSE; root for others.
    pub user: u32,
}

/// The table cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("/proc/self/mountinfo: {0}")]
pub struct TableError(#[source] io::Error);

/// Returns all mounts of moafs, in the order they were made.
///
/// # Errors
/// Fails if the kernel's table cannot be read.
pub fn mounts() -> Result<Vec<MountEntry>, TableError> {
    table(is_ours)
}

/// Returns the mounts of certain types.
pub(crate) fn table(wanted: impl Fn(&str) -> bool) -> Result<Vec<MountEntry>, TableError> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(TableError)?;
    let entries = table.split(|&byte| byte == b'\n').filter_map(parse_mount);
    Ok(entries.filter(|entry| wanted(&entry.fstype)).collect())
}

pub(crate) fn is_ours(fstype: &str) -> bool {
    matches!(fstype, "fuse.moafs" | "fuseblk.moafs")
}

/// Parses a line of mountinfo: six fields (the fifth is the mount point), optional ones, `-`, type, source, options.
fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let path = |field: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(unescape(field)));
    let options = fields.get(separator + 3).map(|options| String::from_utf8_lossy(options)).unwrap_or_default();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry {
        user: user.unwrap_or(0),
        target: path(fields[4]),
        fstype: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: path(fields.get(separator + 2)?),
    })
}

/// Decodes a field of the table, which writes space, tab, newline, `#` and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match (first, octal) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Returns the mount that `path` lies in, if it is one of moafs.
pub fn mount_of(path: &Path) -> Option<MountEntry> {
    let absolute = path.canonicalize().unwrap_or_else(|_| absolute(path));
    let entries = mounts().ok()?;
    let inside = entries.into_iter().filter(|entry| absolute.starts_with(&entry.target));
    inside.max_by_key(|entry| entry.target.as_os_str().as_bytes().len())
}

/// Makes a path absolute without accessing its last component.
pub(crate) fn absolute(target: &Path) -> PathBuf {
    let whole = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
    match (whole.parent().and_then(|parent| parent.canonicalize().ok()), whole.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        // The path is `.`, `..`, or in a directory that does not exist.
        _ => whole.canonicalize().unwrap_or(whole),
    }
}

/// Returns the image or device behind a mount.
pub(crate) fn image_of(entry: &MountEntry) -> PathBuf {
    loop_device::backing_file(&entry.source).unwrap_or_else(|| entry.source.clone())
}

/// Returns the mounts of an image or device (an absolute path) that are of moafs. A table that cannot be read counts as
/// empty.
pub fn mounts_of_image(image: &Path) -> Vec<MountEntry> {
    let mut entries = mounts().unwrap_or_default();
    entries.retain(|entry| is_of(entry, image));
    entries
}

/// Returns true if the mount table shows the image or device, itself or through a loop device.
pub fn is_mounted(image: &Path) -> bool {
    mount_point_of(image).is_some()
}

/// Returns a mount point of an image or device (an absolute path), whatever driver has mounted it.
pub fn mount_point_of(image: &Path) -> Option<PathBuf> {
    // A table that cannot be read counts as empty.
    let entries = table(|_| true).unwrap_or_default();
    entries.into_iter().find(|entry| is_of(entry, image)).map(|entry| entry.target)
}

/// Returns true if a mount is of an image or device, itself or through a loop device, by any of its names. What a user
/// has mounted who is neither root, nor the caller, nor the owner of the image only says so.
fn is_of(entry: &MountEntry, image: &Path) -> bool {
    // Most sources are no paths.
    let says_so = entry.source.is_absolute()
        && (is_same_file(&entry.source, image) || is_same_file(&image_of(entry), image))
        || entry.source == image;
    says_so && is_trusted(entry.user, rustix::process::geteuid().as_raw(), || owner_of(image))
}

fn is_trusted(user: u32, caller: u32, owner: impl FnOnce() -> Option<u32>) -> bool {
    user == 0 || user == caller || owner() == Some(user)
}

fn owner_of(image: &Path) -> Option<u32> {
    std::fs::metadata(image).ok().map(|image| image.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line = br"36 35 98:0 / /mnt/with\040space rw,noatime shared:1 - fuseblk.moafs /dev/loop3 rw,user_id=0";
        let entry = parse_mount(line).unwrap();
        assert_eq!(entry.target, Path::new("/mnt/with space"));
        assert_eq!((entry.fstype.as_str(), entry.source.as_path()), ("fuseblk.moafs", Path::new("/dev/loop3")));
        let bare = parse_mount(b"1 2 0:3 / / rw - fuse.moafs image rw").unwrap();
        assert_eq!((bare.source.as_path(), bare.user), (Path::new("image"), 0));
        let of_user = parse_mount(b"1 2 0:3 / / rw - fuse.moafs image rw,user_id=1000,group_id=1000").unwrap();
        assert_eq!(of_user.user, 1000);
        for broken in [&b""[..], b"1 2 3", b"1 2 0:3 / / rw -", b"1 2 0:3 / / rw shared:1"] {
            assert_eq!(parse_mount(broken), None);
        }
    }

    #[test]
    fn a_mount_is_believed_to_be_of_an_image_if_root_the_caller_or_its_owner_has_made_it() {
        for (user, caller, owner, is_believed) in
            [(0, 7, 8, true), (7, 7, 8, true), (8, 7, 8, true), (8, 0, 8, true), (9, 7, 8, false), (9, 0, 0, false)]
        {
            assert_eq!(is_trusted(user, caller, || Some(owner)), is_believed, "{user}, {caller}, {owner}");
        }
        assert!(!is_trusted(9, 0, || None));
    }

    #[test]
    fn escapes_of_the_mount_table_are_undone() {
        assert_eq!(unescape(br"a\040b\134c\011"), b"a b\\c\t");
        assert_eq!(unescape(br"\04"), br"\04");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
