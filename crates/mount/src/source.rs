//! The image file or block device to mount, and the kernel's view of it.
//!
//! Only a `fuseblk` mount tells the daemon about `sync` and makes `umount` wait for it, and it wants a block device. An
//! image file therefore gets a loop device that serves as the mount's *name* and nothing else: the daemon reads and
//! writes the image file itself, directly, without a second pass through the loop driver. The loop device detaches with
//! the mount (autoclear).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::busy;
use crate::loop_device::{self, LoopDevice};
use crate::mount_table;

/// The image or device to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A block device.
    Device(PathBuf),
    /// A regular file with a volume in it.
    Image(PathBuf),
}

/// The reason for which an image or device cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be accessed.
    #[error("{}: {error}", path.display())]
    Access {
        /// The image or device.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// It is a directory, a pipe or another special file.
    #[error("{} is neither an image file nor a block device", path.display())]
    Kind {
        /// The path as given.
        path: PathBuf,
    },
    /// Another mount or process uses it.
    #[error("{} is in use ({by}); unmount or detach it there first", path.display())]
    Busy {
        /// The image or device.
        path: PathBuf,
        /// The user, if known.
        by: String,
    },
}

impl Source {
    /// Determines the kind of `path` and its absolute path.
    ///
    /// # Errors
    /// Fails if it does not exist or is neither file nor block device.
    pub fn of(path: &Path) -> Result<Source, SourceError> {
        let access = |error| SourceError::Access { path: path.to_owned(), error };
        let absolute = path.canonicalize().map_err(access)?;
        let kind = absolute.metadata().map_err(access)?.file_type();
        if kind.is_block_device() {
            Ok(Source::Device(absolute))
        } else if kind.is_file() {
            Ok(Source::Image(absolute))
        } else {
            Err(SourceError::Kind { path: path.to_owned() })
        }
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        match self {
            Source::Device(path) | Source::Image(path) => path,
        }
    }

    /// Checks that the kernel does not use it already, which the daemon's own lock cannot see. A device stays claimed
    /// until the returned file is dropped. A mount that is ending is waited for.
    ///
    /// # Errors
    /// [`SourceError::Busy`] when it is mounted or attached to a loop device.
    pub fn claim(&self) -> Result<Option<File>, SourceError> {
        let path = self.path();
        self.check_unshared()?;
        if matches!(self, Source::Image(_)) {
            return Ok(None);
        }
        let open = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
        let grace = |error: &io::Error| if is_busy(error) { grace_of_claimed(path) } else { Duration::ZERO };
        busy::wait(grace, || (), open).map(Some).map_err(|error| match error {
            error if is_busy(&error) => self.busy(path, "claimed by the kernel or another program".to_owned()),
            error => SourceError::Access { path: path.to_owned(), error },
        })
    }

    /// Checks that nothing uses the same volume under another name, which neither the lock of an image nor the claim of
    /// a device can see: the image through a loop device, or the image behind this one.
    ///
    /// # Errors
    /// [`SourceError::Busy`] if something does.
    pub fn check_unshared(&self) -> Result<(), SourceError> {
        match self {
            Source::Image(path) => still_attached(path)
                .map_or(Ok(()), |device| Err(self.busy(path, format!("attached to {}", device.display())))),
            Source::Device(path) => {
                let grace = |(image, _): &(PathBuf, String)| busy::grace(image);
                let other_use = || loop_device::other_use(path).map_or(Ok(()), Err);
                busy::wait(grace, || (), other_use).map_err(|(image, words)| self.busy(&image, words))
            }
        }
    }

    /// Returns the error that names the place where `used` is mounted, or says `otherwise`.
    fn busy(&self, used: &Path, otherwise: String) -> SourceError {
        let mounted = mount_table::mount_point_of(used).map(|target| format!("mounted on {}", target.display()));
        SourceError::Busy { path: self.path().to_owned(), by: mounted.unwrap_or(otherwise) }
    }
}

/// Returns the loop device an image is attached to, if it still is after a wait. A loop device that does not detach
/// by itself belongs to another program, which may keep it.
fn still_attached(image: &Path) -> Option<PathBuf> {
    let grace = |device: &PathBuf| {
        if loop_device::detaches_itself(device) { busy::grace(image) } else { busy::MOUNTED_GRACE }
    };
    busy::wait(grace, || (), || loop_device::attached_to(image).map_or(Ok(()), Err)).err()
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Returns how long to wait for a device that is claimed. Only what also holds the lock is about to release both.
fn grace_of_claimed(device: &Path) -> Duration {
    let lock = |device: File| flock(&device, FlockOperation::NonBlockingLockExclusive);
    let is_locked = File::open(device).is_ok_and(|device| lock(device) == Err(Errno::WOULDBLOCK));
    if is_locked { busy::grace(device) } else { busy::MOUNTED_GRACE }
}

/// The source in the kernel's mount table, and the type of the mount.
#[derive(Debug)]
pub enum Face {
    /// `fuseblk` on a block device.
    Device(PathBuf),
    /// `fuseblk` on a loop device made for this mount.
    Loop(LoopDevice),
    /// `fuse`, where `sync` and `umount` do not wait; with the reason.
    Plain(String),
}

impl Face {
    /// Chooses `fuseblk` if possible, else plain.
    pub(crate) fn choose(source: &Source, plain: bool, read_only: bool) -> Face {
        if plain {
            return Face::Plain("asked for".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return Face::Plain("only root can mount fuseblk".to_owned());
        }
        match source {
            Source::Device(path) => Face::Device(path.clone()),
            Source::Image(path) => match LoopDevice::attach(path, read_only) {
                Ok(device) => Face::Loop(device),
                Err(error) => Face::Plain(format!("no loop device: {error}")),
            },
        }
    }

    /// Returns the block device of a `fuseblk` mount.
    pub(crate) fn device(&self) -> Option<&Path> {
        match self {
            Face::Device(path) => Some(path),
            Face::Loop(device) => Some(device.path()),
            Face::Plain(_) => None,
        }
    }

    /// Describes it in words, for `.moafs/stats`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Face::Device(_) => "fuseblk on the device".to_owned(),
            Face::Loop(device) => format!("fuseblk on {} attached to the image", device.path().display()),
            Face::Plain(reason) => format!("plain fuse ({reason})"),
        }
    }
}

/// Returns the size of a block device's logical sectors; 0 if it does not tell.
pub(crate) fn sector_bytes(device: &Path) -> u32 {
    File::open(device).ok().and_then(|device| rustix::fs::ioctl_blksszget(device).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_images_and_directories_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::of(file.path()).unwrap();
        assert!(matches!(&source, Source::Image(_)));
        assert!(source.claim().unwrap().is_none());
        assert!(matches!(Source::of(&std::env::temp_dir()), Err(SourceError::Kind { .. })));
        assert!(matches!(Source::of(Path::new("/nowhere/at/all")), Err(SourceError::Access { .. })));
    }
}
