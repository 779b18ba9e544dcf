//! The plan of write-back: which dirty blocks leave the cache together, and to which addresses.
//!
//! A plan speaks of file ranges and runs, never of bytes, so in-place writing, clustering,
//! co-writing, log append, recycling and cleaning differ in their plans only (`docs/architecture.md`).

use std::sync::Arc;

use moafs_disk::Tag;
use smallvec::SmallVec;

use crate::types::{BlockRun, FileRange, Ino, Lbn, LbnRange};

/// The reason for which dirty blocks are written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritebackReason {
    /// This block is the least recently used dirty one and the cache needs room.
    Evict(Ino, Lbn),
    /// This file's oldest dirty block has reached the age limit.
    Age(Ino),
    /// A caller waits for this file (fsync, sync, direct I/O, truncation).
    Sync(Ino),
    /// All dirty blocks are written (sync of the volume, unmount); this file is next.
    Drain(Ino),
    /// Nothing must be written: this file, which is clean, may move for the layout's sake. The view then shows whole
    /// files as dirty. A policy names only what gains by moving, and puts it where no space is promised.
    Move(Ino),
}

impl WritebackReason {
    /// Returns the file that is to be written back.
    pub fn ino(self) -> Ino {
        match self {
            WritebackReason::Evict(ino, _)
            | WritebackReason::Age(ino)
            | WritebackReason::Sync(ino)
            | WritebackReason::Drain(ino)
            | WritebackReason::Move(ino) => ino,
        }
    }
}

/// The planned writes. An empty plan means that nothing can be written now (the dirty blocks vanished meanwhile).
#[derive(Debug, Default)]
pub struct Plan {
    /// The planned writes, one device request each, in the order in which they should be placed.
    pub writes: Vec<PlannedWrite>,
    /// True if there was room for some of the blocks only. Once these are written, [`crate::Format::make_room`] is
    /// asked, then another plan.
    pub partial: bool,
}

/// One planned write, which is one device request: ranges fill the run in order. Their lengths add up to the run's.
#[derive(Debug, Clone)]
pub struct PlannedWrite {
    /// The blocks to be written.
    pub to: BlockRun,
    /// The file ranges whose data fill `to`, in order.
    pub from: SmallVec<[FileRange; 8]>,
    /// True if `to` was allocated for this planned write (not where the blocks already lie): the run, or the unused
    /// part of it, goes back with [`crate::Format::abandon`] if the write does not happen.
    pub fresh: bool,
    /// The tag that the device request carries.
    pub tag: Tag,
}

/// A dirty file as a placement policy sees it.
#[derive(Debug, Clone)]
pub struct DirtyFile<N> {
    /// The file's inode number.
    pub ino: Ino,
    /// The directory it is dirty in: the one it was last looked up or created in.
    pub home: Ino,
    /// The format's part of the inode.
    pub node: Arc<N>,
    /// The file's size in blocks, rounded up.
    pub blocks: u64,
    /// True if every block of the file is in the cache (dirty or clean).
    pub whole: bool,
    /// The dirty ranges that may be written now, ascending, maximal, not adjacent.
    pub dirty: Vec<LbnRange>,
}

/// The dirty lists, as a placement policy sees them. A snapshot: pages may vanish afterwards, and
/// then the planned write shrinks.
pub trait DirtyView<N> {
    /// Returns a dirty file, or `None` if it is clean. Ranges are limited to `around` and its neighbourhood
    /// of at most `blocks_max` blocks when given: a large file need not list everything.
    fn file(&self, ino: Ino, around: Option<(Lbn, u32)>) -> Option<DirtyFile<N>>;

    /// Returns the dirty small files of a directory with exactly `blocks` blocks (the DF list, hashed by block
    /// count), in the order in which they became dirty.
    fn small_files(&self, home: Ino, blocks: u32) -> Vec<Ino>;

    /// Returns the block counts for which `small_files` is not empty, ascending.
    fn small_counts(&self, home: Ino) -> Vec<u32>;
}

/// Largest file, in blocks, that counts as small: the direct pointers of the ext family, as in Lee, Ahn, Oh (2008;
/// `README.md` has the title). Formats may use another limit for their own decisions.
pub const SMALL_BLOCKS_MAX: u64 = 12;
