//! Unmounting by another process, and waiting until the daemon has released the image.
//!
//! On `fuseblk` umount(2) itself waits for the daemon. On plain `fuse` it returns at once, so the caller waits for the
//! lock on the image instead, which the daemon holds until everything is written and it ends.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use moafs_disk::{DiskError, FileDisk, FileOptions};
use moafs_runtime::Rt;
use rustix::mount::UnmountFlags;

use crate::loop_device;
use crate::swap;

/// Interval of trying the lock.
const POLL: Duration = Duration::from_millis(20);

/// Type of a modelled disk's directory (`moafs simdisk`): not a volume, but unmounted like one.
const SIMDISK: &str = "fuse.simdisk";

/// A mount in the kernel's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub target: PathBuf,
    /// File-system type: `fuse.moafs`, `fuseblk.moafs`.
    pub fstype: String,
    /// The source: a device, or the image.
    pub source: PathBuf,
}

/// The reason for which a volume is not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// The kernel's table cannot be read.
    #[error("/proc/self/mountinfo: {0}")]
    Table(#[source] io::Error),
    /// No volume of moafs is mounted there.
    #[error("{} is not a mount of moafs; `findmnt -t fuse.moafs,fuseblk.moafs` lists them", .0.display())]
    NotMounted(PathBuf),
    /// Files of it are open.
    #[error(
        "{0} is busy: a program has a file open or its working directory there (`fuser -vm {0}` names it); \
         --lazy takes the mount out of the tree now and finishes when the last one leaves"
    )]
    Busy(String),
    /// The kernel swaps to it.
    #[error("{0} is not unmounted: its swap is on, and memory may be paged out to it; `moafs swap off {0}` first")]
    SwapOn(String),
    /// umount(2) failed.
    #[error("unmounting {target}: {error}")]
    Refused {
        /// The mount point.
        target: String,
        /// The error.
        error: io::Error,
    },
    /// The mount is gone, but the daemon still works on the image.
    #[error("{} is unmounted, but {} is still being written after {} s; wait before you move or mount it",
        target.display(), image.display(), waited.as_secs())]
    StillWriting {
        /// The mount point.
        target: PathBuf,
        /// The image.
        image: PathBuf,
        /// Time that the caller waited.
        waited: Duration,
    },
}

/// Returns all mounts of moafs, in the order they were made.
///
/// # Errors
/// Fails if the kernel's table cannot be read.
pub fn mounts() -> Result<Vec<MountEntry>, UnmountError> {
    table(is_ours)
}

/// Returns the mounts of certain types.
fn table(wanted: impl Fn(&str) -> bool) -> Result<Vec<MountEntry>, UnmountError> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(UnmountError::Table)?;
    let entries = table.split(|&byte| byte == b'\n').filter_map(parse_mount);
    Ok(entries.filter(|entry| wanted(&entry.fstype)).collect())
}

fn is_ours(fstype: &str) -> bool {
    matches!(fstype, "fuse.moafs" | "fuseblk.moafs")
}

/// Parses a line of mountinfo: six fields (the fifth is the mount point), optional ones, `-`, type, source, options.
fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let path = |field: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(unescape(field)));
    Some(MountEntry {
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

/// Returns the mount at `target`. It may be dead, so only its parent directory is accessed.
fn find(target: &Path) -> Result<MountEntry, UnmountError> {
    let entries = table(|fstype| is_ours(fstype) || fstype == SIMDISK)?;
    let at = |path: &Path| entries.iter().rev().find(|entry| entry.target == path).cloned();
    // The second attempt is for a symbolic link to the mount point.
    let found = at(&absolute(target)).or_else(|| at(&target.canonicalize().ok()?));
    found.ok_or_else(|| UnmountError::NotMounted(target.to_owned()))
}

/// Makes a path absolute without accessing its last component.
fn absolute(target: &Path) -> PathBuf {
    let whole = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
    match (whole.parent().and_then(|parent| parent.canonicalize().ok()), whole.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        // The path is `.`, `..`, or in a directory that does not exist.
        _ => whole.canonicalize().unwrap_or(whole),
    }
}

/// Returns the image or device behind a mount.
fn image_of(entry: &MountEntry) -> PathBuf {
    loop_device::backing_file(&entry.source).unwrap_or_else(|| entry.source.clone())
}

/// Returns true if the mount table shows the image or device, itself or through a loop device.
pub fn is_mounted(image: &Path) -> bool {
    // A table that cannot be read counts as empty.
    table(|_| true).unwrap_or_default().iter().any(|entry| image_of(entry) == image || entry.source == image)
}

/// Unmounts `target` and waits at most `timeout` until its image is released. `lazy` takes a busy mount out of the
/// tree without waiting. A mount without a daemon is cleared.
///
/// # Errors
/// Fails if it is no mount of moafs, is busy, or its image is not released in time.
pub fn unmount(target: &Path, lazy: bool, timeout: Duration, rt: &Rt) -> Result<(), UnmountError> {
    let entry = find(target)?;
    let image = image_of(&entry);
    if swap_is_on(&entry.target)? && !is_dead(&entry.target) {
        return Err(UnmountError::SwapOn(entry.target.display().to_string()));
    }
    match detach(&entry.target, lazy) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && is_dead(&entry.target) => {
            detach(&entry.target, true).map_err(|error| refused(&entry, error))?;
        }
        Err(error) => return Err(refused(&entry, error)),
    }
    if lazy || released(&image, timeout, rt) {
        return Ok(());
    }
    Err(UnmountError::StillWriting { target: entry.target, image, waited: timeout })
}

/// Returns true if the file that the kernel swaps to is mounted in the volume.
fn swap_is_on(target: &Path) -> Result<bool, UnmountError> {
    let file = swap::file_of(target);
    Ok(table(|fstype| fstype == swap::FSTYPE)?.iter().any(|entry| entry.target == file))
}

fn refused(entry: &MountEntry, error: io::Error) -> UnmountError {
    let target = entry.target.display().to_string();
    match error.raw_os_error() {
        Some(libc::EBUSY) => UnmountError::Busy(target),
        _ => UnmountError::Refused { target, error },
    }
}

/// Returns true if a mount has lost its daemon: it answers ENOTCONN, or ECONNABORTED to requests that were on their
/// way.
fn is_dead(target: &Path) -> bool {
    let dead = |error: io::Error| matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED));
    std::fs::metadata(target).is_err_and(dead)
}

fn detach(target: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => by_fusermount(target, lazy),
        result => result.map_err(io::Error::from),
    }
}

/// Unmounts with the helper for ordinary users. Its message goes to standard error.
fn by_fusermount(target: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(target);
    let status = command.status().map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))?;
    let busy = || io::Error::from_raw_os_error(libc::EBUSY);
    if status.success() { Ok(()) } else { Err(busy()) }
}

/// Waits until the image's lock is free.
fn released(image: &Path, timeout: Duration, rt: &Rt) -> bool {
    let deadline = Instant::now() + timeout;
    // A user who may only read the image can still ask for the lock.
    let options = FileOptions { read_only: true, claim_device: false, ..FileOptions::default() };
    loop {
        let tried = FileDisk::open(image, rt.clone(), options.clone());
        if !matches!(tried, Err(DiskError::Busy { .. })) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the mount that `path` lies in, if it is one of moafs.
pub fn mount_of(path: &Path) -> Option<MountEntry> {
    let absolute = path.canonicalize().unwrap_or_else(|_| absolute(path));
    let entries = mounts().ok()?;
    let inside = entries.into_iter().filter(|entry| absolute.starts_with(&entry.target));
    inside.max_by_key(|entry| entry.target.as_os_str().as_bytes().len())
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
        assert_eq!(bare.source, Path::new("image"));
        for broken in [&b""[..], b"1 2 3", b"1 2 0:3 / / rw -", b"1 2 0:3 / / rw shared:1"] {
            assert_eq!(parse_mount(broken), None);
        }
    }

    #[test]
    fn escapes_of_the_mount_table_are_undone() {
        assert_eq!(unescape(br"a\040b\134c\011"), b"a b\\c\t");
        assert_eq!(unescape(br"\04"), br"\04");
        assert_eq!(unescape(br"\999"), br"\999");
    }

    #[test]
    fn what_is_not_mounted_cannot_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let refused = unmount(dir.path(), false, Duration::ZERO, &moafs_runtime::Live::new());
        assert!(matches!(refused, Err(UnmountError::NotMounted(_))));
    }
}
