//! What a swap is made of, and how it is told to behave.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_vfs::volatile::{LastAccess, Volatile};
use moafs_vfs::{Format, Vfs};

/// Where a volume's swap areas come from.
#[derive(Clone)]
pub struct Home {
    /// The disk the volume lies on, from its first sector on.
    pub disk: SharedDisk,
    /// Bytes in a block of the volume: a power of two, at most a page.
    pub block_bytes: u32,
    /// Gives blocks.
    pub room: Arc<dyn Volatile>,
    /// Knows where the head is.
    pub head: Arc<LastAccess>,
}

impl Home {
    /// An open volume on `disk`; `None` if its format has no room to give.
    pub fn of<F: Format>(vfs: &Vfs<F>, disk: SharedDisk) -> Option<Home> {
        let room = vfs.format().volatile()?;
        Some(Home { disk, block_bytes: vfs.shape().block_size, room, head: vfs.last_access() })
    }
}

/// Where pages go: the systems that experiments compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Into swap areas next to the disk head.
    Areas,
    /// Into the traditional swap space alone, wherever the head is.
    Traditional,
}

impl Placement {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Areas => "saf",
            Placement::Traditional => "partition",
        }
    }
}

/// How a swap behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapOptions {
    /// Where pages go.
    pub placement: Placement,
    /// Bytes in a swap area; a quarter of a group caps it.
    pub area_bytes: u64,
    /// Pages that a page-in may bring along at most.
    pub neighbours: u32,
}

/// The paper's best by experiment.
const AREA_BYTES: u64 = 32 << 20;

/// With the page itself 32 KiB: a track passes more of them in the time a seek takes.
const NEIGHBOURS: u32 = 7;

impl Default for SwapOptions {
    fn default() -> SwapOptions {
        SwapOptions { placement: Placement::Areas, area_bytes: AREA_BYTES, neighbours: NEIGHBOURS }
    }
}
