//! What can go wrong with paged-out memory.

use crate::page::PageNo;

/// Why a page did not get out or in, or why there is no swap.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// The device refused. The page keeps what it had.
    #[error("page {page} of the swap: {source}", page = .page.0)]
    Device {
        /// Whose slot was written or read.
        page: PageNo,
        /// What the device said.
        source: moafs_disk::DiskError,
    },
    /// No slot was found though blocks are reserved.
    #[error(
        "no room for page {page} of the swap: what is free of the volume lies in pieces smaller than a page; delete files, or use \
         a volume with larger blocks",
        page = .page.0
    )]
    NoRoom {
        /// Which page.
        page: PageNo,
    },
    /// There cannot be such a swap.
    #[error("{0}")]
    Refused(String),
    /// Not a page of this swap.
    #[error("page {page} of a swap of {pages} pages", page = .page.0)]
    Beyond {
        /// What was asked for.
        page: PageNo,
        /// How many there are.
        pages: u32,
    },
    /// The volume said no.
    #[error("{what}: {source}")]
    Volume {
        /// What was being done.
        what: &'static str,
        /// Its reason.
        source: moafs_vfs::Error,
    },
}
