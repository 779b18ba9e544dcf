//! Swap space, the seam between swap areas and the formats: blocks that are allocated in memory only.
//!
//! A run of swap space belongs to no file on the disk. No bitmap, segment table or inode ever tells of it, so it costs
//! no metadata write, and after a crash or a restart it never existed (`docs/swap.md`, "Areas"). While it is taken no
//! file gets its blocks.
//!
//! Capacity and place are two things. [`SwapSpace::reserve`] promises capacity once, as an admission does for files;
//! then [`SwapSpace::take`] cannot fail for want of space: free blocks for all that is promised exist *somewhere*. The
//! runs may be moved: a contended group, in which writers find no room ([`SwapSpace::next_contended_group`]), should be
//! left.

use std::sync::atomic::{AtomicU64, Ordering};

use moafs_runtime::leaf::Mutex;

use crate::error::Result;
use crate::types::{BlockAddr, BlockRun};

/// A stretch of the volume within which the head hardly moves: a block group (ext), some sections in a row (F2FS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u32);

impl Group {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The place in which a run of swap space is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The whole run in this group, as near to its end as possible: files fill groups from the front.
    EndOf(Group),
    /// The first free run at or behind this block, cut to what is asked for.
    From(BlockAddr),
}

impl Where {
    /// The first free run of the volume: the place of last resort.
    pub const LOWEST: Where = Where::From(BlockAddr(0));
}

/// Swap space of a format, as one user has it: others may reserve and take blocks of the same volume. Reserved blocks
/// are either taken or promised; `taken + promised` changes only in [`SwapSpace::reserve`] and [`SwapSpace::release`].
pub trait SwapSpace: Send + Sync {
    /// Returns the number of groups of the volume.
    fn groups(&self) -> u32;
    /// Returns the group a block lies in; `None` outside of all.
    fn group_of(&self, block: BlockAddr) -> Option<Group>;
    /// Returns the number of blocks of a group that are not its fixed metadata.
    fn group_blocks(&self, group: Group) -> u32;
    /// Promises `blocks` blocks of capacity.
    ///
    /// # Errors
    /// ENOSPC if so many cannot be had beside what was promised to others.
    fn reserve(&self, blocks: u64) -> Result<()>;
    /// Takes a promise of `blocks` back. They must have been given back before.
    fn release(&self, blocks: u64);
    /// Takes a run of promised blocks: `Ok(None)` if there is none of `len` in the group; for [`Where::From`] the run
    /// may be shorter (but is a multiple of `granule` blocks), and [`Where::LOWEST`] finds one as long as any block is
    /// promised and free space is not in smaller pieces.
    ///
    /// # Errors
    /// If a bitmap cannot be read.
    fn take(&self, at: Where, len: u32, granule: u32) -> Result<Option<BlockRun>>;
    /// Gives a run, or a part of one, back to what is promised.
    fn give(&self, run: BlockRun);
    /// Returns a contended group: one where a writer found no room since the last call, though runs of swap space lie
    /// there.
    fn next_contended_group(&self) -> Option<Group>;
}

/// The capacity of one user of swap space: the blocks that it has reserved, and those of them that it has taken.
#[derive(Debug, Default)]
pub struct Account(Mutex<Blocks>);

#[derive(Debug, Default)]
struct Blocks {
    reserved: u64,
    taken: u64,
}

impl Account {
    /// Notes that `blocks` blocks were reserved.
    pub fn reserve(&self, blocks: u64) {
        self.0.lock().reserved += blocks;
    }

    /// Gives reserved blocks back that are not taken; returns how many.
    pub fn release(&self, blocks: u64) -> u64 {
        let mut own = self.0.lock();
        debug_assert!(own.taken + blocks <= own.reserved, "{blocks} released, {} taken of {}", own.taken, own.reserved);
        let released = blocks.min(own.reserved.saturating_sub(own.taken));
        own.reserved -= released;
        released
    }

    /// Takes up to `blocks` of the reserved blocks that are not taken yet; returns how many.
    pub fn claim(&self, blocks: u32) -> u32 {
        let mut own = self.0.lock();
        let claimed = own.reserved.saturating_sub(own.taken).min(blocks.into());
        own.taken += claimed;
        claimed as u32
    }

    /// Gives taken blocks back to those that are reserved.
    pub fn unclaim(&self, blocks: u32) {
        self.0.lock().taken -= u64::from(blocks);
    }
}

/// The file block that the device was last asked for: the likely position of its head.
#[derive(Debug)]
pub struct LastAccess(AtomicU64);

impl Default for LastAccess {
    fn default() -> LastAccess {
        LastAccess(AtomicU64::new(Self::NONE))
    }
}

impl LastAccess {
    const NONE: u64 = u64::MAX;

    /// Notes that a request for file contents that ends at `end` goes to the device.
    pub fn note(&self, end: BlockAddr) {
        self.0.store(end.0.saturating_sub(1), Ordering::Relaxed);
    }

    /// Returns the last block of the last request; `None` before the first.
    pub fn get(&self) -> Option<BlockAddr> {
        let block = self.0.load(Ordering::Relaxed);
        (block != Self::NONE).then_some(BlockAddr(block))
    }
}
