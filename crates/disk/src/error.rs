//! How a disk fails.

use crate::Lba;

/// A disk request that failed. Cloneable, because the first reason is kept and shown again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The device reported an error for a request.
    #[error("{what} of {bytes} bytes at sector {} failed: {reason}", at.0)]
    Io {
        /// `read`, `write`, `discard`…
        what: &'static str,
        /// First sector of the request.
        at: Lba,
        /// Its length.
        bytes: u64,
        /// The operating system's error number.
        errno: i32,
        /// The same in words.
        reason: String,
    },
    /// The host file system below an image file is full: nothing is lost, room may come back.
    #[error("no room on the host file system for {bytes} bytes at sector {}; free some and writing goes on", at.0)]
    HostFull {
        /// First sector of the request.
        at: Lba,
        /// Its length.
        bytes: u64,
    },
    /// The request goes beyond the end of the disk.
    #[error("request of {bytes} bytes at sector {} goes beyond the end of the disk ({sectors} sectors)", at.0)]
    BeyondEnd {
        /// First sector of the request.
        at: Lba,
        /// Its length.
        bytes: u64,
        /// Capacity of the disk.
        sectors: u64,
    },
    /// A flush failed: what the device holds since the last good one is unknown.
    #[error("flush failed: {reason}; what was written since the last good flush may be lost")]
    FlushFailed {
        /// The operating system's error number.
        errno: i32,
        /// The same in words.
        reason: String,
    },
    /// The disk was opened for reading only.
    #[error("the disk is read-only")]
    ReadOnly,
    /// Somebody else uses the image or device.
    #[error("{path} is in use by another process; unmount it there first")]
    Busy {
        /// The image or device.
        path: String,
    },
    /// The image or device cannot be opened.
    #[error("cannot open {path}: {reason}")]
    Open {
        /// The image or device.
        path: String,
        /// The operating system's error number.
        errno: i32,
        /// The same in words.
        reason: String,
    },
}

impl DiskError {
    /// A request that failed with an error number of the operating system.
    pub fn io(what: &'static str, at: Lba, bytes: u64, errno: i32) -> DiskError {
        DiskError::Io { what, at, bytes, errno, reason: reason(errno) }
    }

    /// A flush that failed with an error number of the operating system.
    pub fn flush(errno: i32) -> DiskError {
        DiskError::FlushFailed { errno, reason: reason(errno) }
    }

    /// The error number that tells a POSIX program about this.
    pub fn errno(&self) -> i32 {
        match self {
            DiskError::Io { .. } | DiskError::BeyondEnd { .. } | DiskError::FlushFailed { .. } => libc::EIO,
            DiskError::HostFull { .. } => libc::ENOSPC,
            DiskError::ReadOnly => libc::EROFS,
            DiskError::Busy { .. } => libc::EBUSY,
            DiskError::Open { errno, .. } => *errno,
        }
    }
}

/// An error number in words.
pub(crate) fn reason(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
