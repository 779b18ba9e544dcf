//! Unmounting by another process, and waiting until the daemon has released the image.
//!
//! On `fuseblk` umount(2) itself waits for the daemon. On plain `fuse` it returns at once, so the caller waits for the
//! lock on the image instead, which the daemon holds until everything is written and it ends (`release`).

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use moafs_disk::DiskError;
use moafs_runtime::Rt;
use rustix::mount::UnmountFlags;

use crate::busy;
use crate::control_path;
use crate::mount_table::{MountEntry, TableError, absolute, image_of, is_ours, table};
use crate::release::{Served, Unreleased};
use crate::swap;

/// Type of a modelled disk's directory (`moafs simdisk`): not a volume, but unmounted like one.
const SIMDISK: &str = "fuse.simdisk";

/// The time for which a busy mount is asked again: a path walk holds it for a moment, and a process that is dying.
const BUSY_GRACE: Duration = Duration::from_millis(500);

/// The reason for which a volume is not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// The kernel's table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// No volume of moafs is mounted there.
    #[error("{} is not a mount of moafs; `findmnt -t fuse.moafs,fuseblk.moafs` lists them", .0.display())]
    NotMounted(PathBuf),
    /// Another file system is mounted over it.
    #[error("{target} is covered by another mount ({fstype}), which has to be unmounted first")]
    Covered {
        /// The mount point.
        target: String,
        /// The other file system.
        fstype: String,
    },
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
    /// The mount is gone. Neither the image nor the daemon shows whether writing has ended.
    #[error("{} is unmounted, but it cannot be seen whether its daemon still writes ({error}); wait before you move or \
         mount the image", target.display())]
    Unseen {
        /// The mount point.
        target: PathBuf,
        /// The error of opening the image that the mount table names.
        error: DiskError,
    },
}

/// Returns the mount at `target`, or of the image or device `target`. A mount may be dead, so only its parent directory
/// is accessed.
fn find(target: &Path) -> Result<MountEntry, UnmountError> {
    let entries = table(is_unmounted_here)?;
    let at = |path: &Path| entries.iter().rev().find(|entry| entry.target == path).cloned();
    // The second attempt is for a symbolic link to the mount point.
    let found = at(&absolute(target)).or_else(|| {
        let real = target.canonicalize().ok()?;
        at(&real).or_else(|| entries.iter().rev().find(|entry| image_of(entry) == real).cloned())
    });
    found.ok_or_else(|| UnmountError::NotMounted(target.to_owned()))
}

/// Unmounts `target`, a mount point or what is mounted on one, and waits at most `timeout` until its image is released.
/// A mount that is busy for a moment only is waited for. `lazy` takes a busy mount out of the tree without waiting. A
/// mount without a daemon is cleared.
///
/// # Errors
/// Fails if it is no mount of moafs, is busy, or its image is not released in time.
pub fn unmount(target: &Path, lazy: bool, timeout: Duration, rt: &Rt) -> Result<(), UnmountError> {
    let entry = find(target)?;
    check_uncovered(&entry.target)?;
    if swap_is_on(&entry.target)? && !is_dead(&entry.target) {
        return Err(UnmountError::SwapOn(entry.target.display().to_string()));
    }
    // The image of a modelled disk is told by nothing, and a daemon may be asked only as long as it is there.
    let served = (!lazy && entry.fstype != SIMDISK).then(|| Served::of(&entry));
    match busy::wait(busy_grace, || (), || detach(&entry.target, lazy)) {
        Ok(()) => {}
        Err(error) if is_busy(&error) && is_dead(&entry.target) => {
            detach(&entry.target, true).map_err(|error| refused(&entry, error))?;
        }
        Err(error) => return Err(refused(&entry, error)),
    }
    let Some(served) = served else { return Ok(()) };
    served.wait(timeout, rt).map_err(|unreleased| match unreleased {
        Unreleased::Writing => {
            UnmountError::StillWriting { target: entry.target, image: served.image().to_owned(), waited: timeout }
        }
        Unreleased::Unseen(error) => UnmountError::Unseen { target: entry.target, error },
    })
}

/// Checks that the last mount at `target`, which umount(2) takes, is not another file system's.
fn check_uncovered(target: &Path) -> Result<(), UnmountError> {
    match table(|_| true)?.into_iter().rfind(|entry| entry.target == target) {
        Some(MountEntry { fstype, .. }) if !is_unmounted_here(&fstype) => {
            Err(UnmountError::Covered { target: target.display().to_string(), fstype })
        }
        _ => Ok(()),
    }
}

/// Returns true for the types of what this command unmounts.
fn is_unmounted_here(fstype: &str) -> bool {
    is_ours(fstype) || fstype == SIMDISK
}

/// Returns true if the file that the kernel swaps to is mounted in the volume.
fn swap_is_on(target: &Path) -> Result<bool, UnmountError> {
    let file = control_path::swapfile(target);
    Ok(table(|fstype| fstype == swap::FSTYPE)?.iter().any(|entry| entry.target == file))
}

fn busy_grace(error: &io::Error) -> Duration {
    if is_busy(error) { BUSY_GRACE } else { Duration::ZERO }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn refused(entry: &MountEntry, error: io::Error) -> UnmountError {
    let target = entry.target.display().to_string();
    match error.raw_os_error() {
        Some(libc::EBUSY) => UnmountError::Busy(target),
        _ => UnmountError::Refused { target, error },
    }
}

/// Returns true if a mount has lost its daemon: it answers ENOTCONN, or to requests that were on their way ECONNABORTED
/// or, over io_uring, ECANCELED.
fn is_dead(target: &Path) -> bool {
    let dead =
        |error: io::Error| matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED));
    std::fs::metadata(target).is_err_and(dead)
}

fn detach(target: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => by_fusermount(target, lazy),
        result => result.map_err(io::Error::from),
    }
}

/// Unmounts with the helper for ordinary users, which does not tell a busy mount from another reason but in words.
fn by_fusermount(target: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(target).env("LC_ALL", "C");
    let output = command.output().map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim() {
        _ if output.status.success() => Ok(()),
        words if words.is_empty() || words.contains("busy") => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        words => Err(io::Error::other(words.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mounted_cannot_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let refused = unmount(dir.path(), false, Duration::ZERO, &moafs_runtime::Live::new());
        assert!(matches!(refused, Err(UnmountError::NotMounted(_))));
    }
}
