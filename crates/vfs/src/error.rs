//! The errors of a volume, in words and as the error number a program sees.

use moafs_disk::DiskError;

use crate::types::{BlockAddr, Ino};

/// Result of file-system calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a file-system call. [`Error::errno`] is the one place that maps to POSIX numbers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A rule of POSIX said no; the number says which. The commonest case by far, so it is small.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Posix(i32),
    /// Something read from the disk contradicts itself or the rest of the volume.
    #[error("{structure}{}: {problem}; check the volume (moafs fsck)", block.map(|b| format!(" (block {b})")).unwrap_or_default())]
    Damaged {
        /// The structure, in words and numbers: `inode 12`, `directory 2`, `descriptor of group 3`.
        structure: String,
        /// The block it lies in, if known.
        block: Option<BlockAddr>,
        /// The contradiction found in it.
        problem: String,
    },
    /// A request failed on the device.
    #[error("{what}: {source}")]
    Disk {
        /// The operation that failed, such as reading a block.
        what: String,
        /// The error of the device.
        source: DiskError,
    },
    /// The volume does not accept changes any more, or never did.
    #[error("the volume is read-only: {reason}")]
    ReadOnly {
        /// The first reason, kept.
        reason: String,
    },
    /// The volume cannot be used (this way) at all; the text says what to do about it.
    #[error("{0}")]
    Refused(String),
    /// An inode number that names nothing (a stale handle).
    #[error("inode {} does not exist (any more)", .0.0)]
    Stale(Ino),
}

impl Error {
    /// Returns the error number for a POSIX program.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Posix(errno) => *errno,
            Error::Damaged { .. } => libc::EUCLEAN,
            Error::Disk { source, .. } => source.errno(),
            Error::ReadOnly { .. } => libc::EROFS,
            Error::Refused(_) => libc::EINVAL,
            Error::Stale(_) => libc::ESTALE,
        }
    }

    /// Returns true if the file system of the host, which holds the image, is full.
    pub fn is_host_full(&self) -> bool {
        matches!(self, Error::Disk { source: DiskError::HostFull { .. }, .. })
    }

    /// Returns `Ok` for the error of an inode that was removed meanwhile.
    pub(crate) fn unless_gone(self) -> Result<()> {
        match self {
            Error::Stale(_) | Error::Posix(libc::ENOENT | libc::ENOTDIR) => Ok(()),
            error => Err(error),
        }
    }

    /// Returns a disk error with the operation that failed, as `what` describes it.
    pub fn disk(what: impl Into<String>, source: DiskError) -> Error {
        Error::Disk { what: what.into(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_names_a_checker_of_every_format() {
        let damaged = Error::Damaged { structure: "inode 7".into(), block: None, problem: "it has no links".into() };
        assert_eq!(damaged.to_string(), "inode 7: it has no links; check the volume (moafs fsck)");
    }
}
