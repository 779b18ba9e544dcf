//! Errors of mounting, before a session serves.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::init::InitError;

/// The reason for which a mount failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// Neither this crate nor the kernel knows the option.
    #[error("unknown mount option `{0}`")]
    UnknownOption(String),
    /// The mount point cannot be used.
    #[error("mount point {}: {source}", target.display())]
    Target {
        /// The mount point.
        target: PathBuf,
        /// The error of resolving it.
        source: io::Error,
    },
    /// A name or option holds a character that cannot be handed to the kernel.
    #[error("`{0}` cannot be part of a mount option (NUL or comma)")]
    BadCharacter(String),
    /// /dev/fuse cannot be opened: this kernel or container has no FUSE.
    #[error("opening /dev/fuse: {0}")]
    OpenDevice(#[source] io::Error),
    /// The kernel refused mount(2).
    #[error("mounting {source_name} of type {fstype} on {}: {source}", target.display())]
    Mount {
        /// The mount point.
        target: PathBuf,
        /// The source, as given to mount(2).
        source_name: String,
        /// `fuse` or `fuseblk`, with subtype.
        fstype: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The mount needs root: a block-device mount, or one that cannot go through the helper.
    #[error("a block-device mount (fuseblk) needs root")]
    BlockDeviceNeedsRoot,
    /// The helper for mounts by ordinary users could not be run.
    #[error("running fusermount3 (needed without root): {0}")]
    RunFusermount(#[source] io::Error),
    /// The process for `auto_unmount` could not be started.
    #[error("auto_unmount: starting the process that unmounts: {0}")]
    AutoUnmount(#[source] io::Error),
    /// The helper refused; it has printed the reason on standard error.
    #[error("fusermount3 did not mount {}", target.display())]
    Fusermount {
        /// The mount point.
        target: PathBuf,
    },
    /// The handshake failed.
    #[error("FUSE handshake: {0}")]
    Init(#[from] InitError),
    /// io_uring was demanded and cannot be had.
    #[error("FUSE over io_uring: {0}")]
    Uring(String),
    /// A serving thread could not be started.
    #[error("starting a serving thread: {0}")]
    Thread(#[source] io::Error),
}
