//! Errors of disks and their requests.

use crate::Lba;

/// A disk request that failed. Cloneable, because the first error of a flush is kept and returned
/// again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The device reported an error for a request.
    #[error("{what} of {bytes} bytes at sector {} failed: {reason}", at.0)]
    Io {
        /// The operation: `read`, `write`, `discard`…
        what: &'static str,
        /// The first sector of the request.
        at: Lba,
        /// The request's length in bytes.
        bytes: u64,
        /// The operating system's error number.
        errno: i32,
        /// The operating system's description of `errno`.
        reason: String,
    },
    /// The host file system below an image file is full: nothing is lost, and space may become
    /// free.
    #[error("no room on the host file system for {bytes} bytes at sector {}; free some and writing goes on", at.0)]
    HostFull {
        /// The first sector of the request.
        at: Lba,
        /// The request's length in bytes.
        bytes: u64,
    },
    /// The request goes beyond the end of the disk.
    #[error("request of {bytes} bytes at sector {} goes beyond the end of the disk ({sectors} sectors)", at.0)]
    BeyondEnd {
        /// The first sector of the request.
        at: Lba,
        /// The request's length in bytes.
        bytes: u64,
        /// Capacity of the disk in sectors.
        sectors: u64,
    },
    /// A flush failed: it is unknown which writes since the last successful flush the device holds.
    #[error("flush failed: {reason}; what was written since the last good flush may be lost")]
    FlushFailed {
        /// The operating system's error number.
        errno: i32,
        /// The operating system's description of `errno`.
        reason: String,
    },
    /// The disk was opened for reading only.
    #[error("the disk is read-only")]
    ReadOnly,
    /// The image or device is in use: another program holds its lock, or the kernel has it mounted.
    #[error("{path} is in use by another process; unmount it there first")]
    Busy {
        /// Path of the image or device.
        path: String,
    },
    /// The image or device cannot be opened.
    #[error("cannot open {path}: {reason}")]
    Open {
        /// Path of the image or device.
        path: String,
        /// The operating system's error number.
        errno: i32,
        /// The operating system's description of `errno`.
        reason: String,
    },
}

impl DiskError {
    /// Makes the error of a request that failed with an error number of the operating system.
    pub fn io(what: &'static str, at: Lba, bytes: u64, errno: i32) -> DiskError {
        DiskError::Io { what, at, bytes, errno, reason: reason(errno) }
    }

    /// Makes the error of a flush that failed with an error number of the operating system.
    pub fn flush(errno: i32) -> DiskError {
        DiskError::FlushFailed { errno, reason: reason(errno) }
    }

    /// Returns the error number that reports this error to a POSIX program.
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

/// Returns the operating system's description of an error number.
pub(crate) fn reason(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
