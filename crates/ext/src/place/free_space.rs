//! The view of a volume's free space that policies have. It changes nothing.

use std::ops::Range;

use moafs_vfs::Result;
use moafs_vfs::types::{BlockRun, Ino};

use super::windows::Window;
use crate::alloc::{Counts, FreeMap};
use crate::format::{Geometry, GroupNo};

/// A read-only view of the free space of a volume. Other tasks take blocks and give some back while it is looked at.
pub trait FreeSpace {
    /// Returns the volume's geometry.
    fn geometry(&self) -> &Geometry;
    /// Returns the largest device request, in blocks.
    fn transfer_blocks(&self) -> u32;
    /// Returns a group's counts; the blocks of swap areas do not count as free.
    fn counts(&self, group: GroupNo) -> Counts;
    /// Returns the free blocks of a group as they are now, or `None` if it has none.
    fn free_map(&self, group: GroupNo) -> Result<Option<FreeMap>>;
    /// Returns true if blocks, all of one group, are free.
    fn is_free(&self, run: BlockRun) -> Result<bool>;
    /// Returns the block at which the search for new files' blocks of a group goes on.
    fn rotor(&self, group: GroupNo) -> u64;
    /// Returns the blocks in which a group's directories and first indirect blocks are looked for first.
    fn zone(&self, group: GroupNo) -> Range<u64>;
    /// Returns the number of free blocks, with those that are being freed and without those that
    /// are promised.
    fn available_blocks(&self) -> u64;
    /// Returns the number of blocks that are free now and not promised.
    fn spare_blocks(&self) -> u64;
    /// Returns the number of free inodes, with those that are being freed.
    fn available_inodes(&self) -> u64;
    /// Returns how many blocks a directory takes with all its files, on average; `None` while no
    /// directory has files.
    fn blocks_per_directory(&self) -> Option<u64>;
    /// Returns the blocks that a directory keeps for its next files.
    fn window(&self, directory: Ino) -> Window;
}
