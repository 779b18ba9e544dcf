//! The disks and settings of a swap.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_vfs::swap_space::{LastAccess, SwapSpace};
use moafs_vfs::{Format, Vfs};

/// The volume in which swap areas are created.
#[derive(Clone)]
pub struct Home {
    /// The disk the volume lies on, from its first sector on.
    pub disk: SharedDisk,
    /// Bytes in a block of the volume: a power of two, at most a page.
    pub block_bytes: u32,
    /// The volume's allocator of swap space.
    pub room: Arc<dyn SwapSpace>,
    /// The most recently accessed block: the position of the head.
    pub head: Arc<LastAccess>,
}

impl Home {
    /// Returns the home in an open volume on `disk`; `None` if the volume's format has no swap
    /// space.
    pub fn of<F: Format>(vfs: &Vfs<F>, disk: SharedDisk) -> Option<Home> {
        let room = vfs.format().swap_space()?;
        Some(Home { disk, block_bytes: vfs.shape().block_size, room, head: vfs.last_access() })
    }
}

/// The destination of pages: the systems that experiments compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Into swap areas next to the disk head.
    Areas,
    /// Into the traditional swap space only, regardless of the head.
    Traditional,
}

impl Placement {
    /// Returns the name used in tables.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Areas => "saf",
            Placement::Traditional => "partition",
        }
    }
}

/// Settings of a swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapOptions {
    /// The destination of pages.
    pub placement: Placement,
    /// Bytes of a swap area; at most a quarter of a group and an eighth of the swap are used.
    pub area_bytes: u64,
    /// The most neighbouring pages that a page-in may read along.
    pub neighbours: u32,
}

/// The default size of an area in bytes: the paper's best by experiment.
const AREA_BYTES: u64 = 32 << 20;

/// The default number of neighbours. With the page itself 32 KiB: a disk reads more of them than
/// that in the time of a seek.
const NEIGHBOURS: u32 = 7;

impl Default for SwapOptions {
    fn default() -> SwapOptions {
        SwapOptions { placement: Placement::Areas, area_bytes: AREA_BYTES, neighbours: NEIGHBOURS }
    }
}
