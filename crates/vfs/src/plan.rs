//! THE decision: which dirty blocks leave the cache together, and to where.
//!
//! A plan speaks of file ranges and runs, never of bytes, so in-place writing, clustering,
//! co-writing, log append, recycling and cleaning differ in their plans only (`ARCHITECTURE.md`).

use std::sync::Arc;

use moafs_disk::Tag;
use smallvec::SmallVec;

use crate::types::{BlockRun, FileRange, Ino, Lbn, LbnRange};

/// Why something must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// This block is the least recently used dirty one and the cache needs room.
    Evict(Ino, Lbn),
    /// This file's oldest dirty block has reached the age limit.
    Age(Ino),
    /// Somebody waits for this file (fsync, sync, direct I/O, truncation).
    Sync(Ino),
    /// Everything goes (sync of the volume, unmount); this file is next.
    Drain(Ino),
    /// Nothing must go: this file, which is clean, may move for the layout's sake. The view then shows whole files as
    /// dirty. A policy names only what gains by moving, and puts it where nobody was promised space.
    Move(Ino),
}

impl Due {
    /// The file it is about.
    pub fn ino(self) -> Ino {
        match self {
            Due::Evict(ino, _) | Due::Age(ino) | Due::Sync(ino) | Due::Drain(ino) | Due::Move(ino) => ino,
        }
    }
}

/// What travels. An empty plan means: nothing of it can go now (it vanished meanwhile).
#[derive(Debug, Default)]
pub struct Plan {
    /// One device request each, in the order in which they should be placed.
    pub travels: Vec<Travel>,
}

/// ONE device request: ranges fill the run in order. Their lengths add up to the run's.
#[derive(Debug, Clone)]
pub struct Travel {
    /// Where to.
    pub to: BlockRun,
    /// What, in order.
    pub from: SmallVec<[FileRange; 8]>,
    /// True if `to` was allocated for this travel (not where the blocks already lie): the run, or
    /// what is not used of it, goes back with [`crate::Format::abandon`] if the write does not happen.
    pub fresh: bool,
    /// For the device.
    pub tag: Tag,
}

/// What a placement policy sees of a dirty file.
#[derive(Debug, Clone)]
pub struct DirtyFile<N> {
    /// Its number.
    pub ino: Ino,
    /// The directory it is dirty in: the one it was last looked up or created in.
    pub home: Ino,
    /// The format's part of the inode.
    pub node: Arc<N>,
    /// Its size in blocks, rounded up.
    pub blocks: u64,
    /// True if every block of the file is in the cache (dirty or clean).
    pub whole: bool,
    /// Its dirty ranges that may travel now, ascending, maximal, not adjacent.
    pub dirty: Vec<LbnRange>,
}

/// The dirty lists, as a placement policy sees them. A snapshot: pages may vanish afterwards, and
/// then the travel shrinks.
pub trait DirtyView<N> {
    /// A dirty file, or `None` if it is clean. Ranges are limited to `around` and its neighbourhood
    /// of at most `blocks_max` blocks when given: a large file need not list everything.
    fn file(&self, ino: Ino, around: Option<(Lbn, u32)>) -> Option<DirtyFile<N>>;

    /// Dirty small files of a directory with exactly `blocks` blocks (the DF list, hashed by block
    /// count), in the order in which they became dirty.
    fn small_files(&self, home: Ino, blocks: u32) -> Vec<Ino>;

    /// The block counts for which `small_files` is not empty, ascending.
    fn small_counts(&self, home: Ino) -> Vec<u32>;
}

/// Largest file, in blocks, that counts as small: the direct pointers of the ext family, as in Lee, Ahn, Oh (2008;
/// `README.md` has the title). Formats may use another limit for their own decisions.
pub const SMALL_BLOCKS_MAX: u64 = 12;
