//! What is mounted: a block device or an image file, and how the kernel shall see it.
//!
//! Only a `fuseblk` mount tells the daemon about `sync` and makes `umount` wait for it, and it wants a block device.
//! An image file therefore gets a loop device that serves as the mount's *name* and nothing else: the daemon reads
//! and writes the image file itself, directly, without a second pass through the loop driver. The loop device goes
//! when the mount goes (autoclear).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::loop_device::{self, LoopDevice};

/// How long, and how often, we look for a loop device that is about to be detached.
const DETACH_GRACE: Duration = Duration::from_millis(500);
/// The same for one that detaches by itself and is mounted nowhere any more: an unmount is just ending.
const ENDING_GRACE: Duration = Duration::from_secs(10);
const DETACH_POLL: Duration = Duration::from_millis(10);

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A block device.
    Device(PathBuf),
    /// A regular file with a volume in it.
    Image(PathBuf),
}

/// Why something cannot be mounted from here.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be looked at.
    #[error("{}: {error}", path.display())]
    Access {
        /// The image or device.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is a directory, a pipe…
    #[error("{} is neither an image file nor a block device", path.display())]
    Kind {
        /// What was given.
        path: PathBuf,
    },
    /// Somebody else uses it.
    #[error("{} is in use ({by}); unmount or detach it there first", path.display())]
    Busy {
        /// The image or device.
        path: PathBuf,
        /// By whom, as far as we know.
        by: String,
    },
}

impl Source {
    /// Finds out what `path` is, and its absolute path.
    ///
    /// # Errors
    /// When it does not exist or is neither file nor block device.
    pub fn of(path: &Path) -> Result<Source, SourceError> {
        let access = |error| SourceError::Access { path: path.to_owned(), error };
        let absolute = path.canonicalize().map_err(access)?;
        let kind = absolute.metadata().map_err(access)?.file_type();
        match () {
            () if kind.is_block_device() => Ok(Source::Device(absolute)),
            () if kind.is_file() => Ok(Source::Image(absolute)),
            () => Err(SourceError::Kind { path: path.to_owned() }),
        }
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        match self {
            Source::Device(path) | Source::Image(path) => path,
        }
    }

    /// Makes sure that the kernel does not use it already, which our own lock cannot see. A device stays claimed
    /// until the returned file is dropped: right before the mount, which claims it itself.
    ///
    /// # Errors
    /// [`SourceError::Busy`] when it is mounted or attached to a loop device.
    pub fn claim(&self) -> Result<Option<File>, SourceError> {
        let path = self.path();
        let busy = |by: String| SourceError::Busy { path: path.to_owned(), by };
        match self {
            Source::Image(_) => match still_attached(path) {
                Some(device) => Err(busy(format!("attached to {}", device.display()))),
                None => Ok(None),
            },
            Source::Device(_) => {
                let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
                opened.map(Some).map_err(|error| match error.raw_os_error() {
                    Some(libc::EBUSY) => busy("mounted or claimed by the kernel".to_owned()),
                    _ => SourceError::Access { path: path.to_owned(), error },
                })
            }
        }
    }
}

/// The loop device an image is attached to, also after a moment's patience: that of a mount that has just ended
/// detaches behind umount's back.
fn still_attached(image: &Path) -> Option<PathBuf> {
    let begin = Instant::now();
    loop {
        match loop_device::attached_to(image) {
            Some(device) if begin.elapsed() < grace(image, &device) => std::thread::sleep(DETACH_POLL),
            answer => return answer,
        }
    }
}

fn grace(image: &Path, device: &Path) -> Duration {
    let is_ending = loop_device::detaches_itself(device) && !crate::unmount::is_mounted(image);
    if is_ending { ENDING_GRACE } else { DETACH_GRACE }
}

/// What the kernel's mount table shows, and how the mount is made.
#[derive(Debug)]
pub enum Face {
    /// `fuseblk` on a block device.
    Device(PathBuf),
    /// `fuseblk` on a loop device made for this mount.
    Loop(LoopDevice),
    /// `fuse`: no waiting `sync` and `umount`; with the reason.
    Plain(String),
}

impl Face {
    /// Chooses: `fuseblk` where it can be had, else plain.
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

    /// The block device of a `fuseblk` mount.
    pub(crate) fn device(&self) -> Option<&Path> {
        match self {
            Face::Device(path) => Some(path),
            Face::Loop(device) => Some(device.path()),
            Face::Plain(_) => None,
        }
    }

    /// In words, for `.moafs/stats`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Face::Device(_) => "fuseblk on the device".to_owned(),
            Face::Loop(device) => format!("fuseblk on {} attached to the image", device.path().display()),
            Face::Plain(reason) => format!("plain fuse ({reason})"),
        }
    }
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
