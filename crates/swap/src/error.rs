//! Errors of paging.

use crate::page::PageNo;

/// An error of paging a page out or in, or of opening a swap.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// A request to the device failed. The page keeps its contents in the swap.
    #[error("page {page} of the swap: {source}", page = .page.0)]
    Device {
        /// The page whose slot was written or read.
        page: PageNo,
        /// The error of the device.
        source: moafs_disk::DiskError,
    },
    /// No slot was found although blocks are reserved.
    #[error(
        "no room for page {page} of the swap: what is free of the volume lies in pieces smaller than a page; delete files, or use \
         a volume with larger blocks",
        page = .page.0
    )]
    NoRoom {
        /// The page that was to be written.
        page: PageNo,
    },
    /// A swap cannot be made of these disks and sizes.
    #[error("{0}")]
    Refused(String),
    /// The page number is beyond the end of the swap.
    #[error("page {page} of a swap of {pages} pages", page = .page.0)]
    Beyond {
        /// The page number as given.
        page: PageNo,
        /// The number of pages in the swap.
        pages: u32,
    },
    /// The volume refused an operation.
    #[error("{what}: {source}")]
    Volume {
        /// The operation, in words.
        what: &'static str,
        /// The error that the volume returned.
        source: moafs_vfs::Error,
    },
}
