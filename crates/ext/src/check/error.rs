//! The reasons for which a volume cannot be checked.

use moafs_disk::DiskError;

use crate::format::{Damage, Unsupported};

/// The reason for which a volume cannot be checked: fsck(8)'s exit code 8.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The work that the request was part of.
        doing: &'static str,
        /// The error that the device reported.
        source: DiskError,
    },
    /// There is no usable superblock.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The volume has features that this checker does not know.
    #[error("{0}")]
    Unsupported(#[from] Unsupported),
    /// A superblock was asked for where there is none.
    #[error("block {block} holds no copy of a superblock")]
    NoCopy {
        /// The number of the block that was asked for.
        block: u64,
    },
    /// The journal holds changes that are not on the volume yet: a repair without them would
    /// destroy the files they belong to.
    #[error(
        "the journal was not replayed (s_start is {start}, should be 0, and the feature needs_recovery clear): run \
         `moafs fsck -p` on the volume, or mount it once"
    )]
    Journal {
        /// `s_start` of the journal's superblock.
        start: u32,
    },
    /// The journal cannot be replayed by this crate.
    #[error("{0}")]
    Replay(#[from] moafs_vfs::Error),
    /// A repair needed more blocks than were counted as free.
    #[error("there is no free block left for the repair")]
    Full,
}
