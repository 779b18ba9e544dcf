//! The words of the order of writes: levels, and what waits for them.

use moafs_disk::Epoch;
use moafs_vfs::Result;

/// A place in the order of writes. Level 0 is always on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Level(pub u64);

impl Level {
    /// The level of changes that are on disk: there is nothing to wait for.
    pub const NONE: Level = Level(0);
}

/// The changes and file data that must be on disk before a change: the level of the earlier
/// changes, and the data that the change makes reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    pub(super) level: Level,
    pub(super) data: Option<Epoch>,
}

impl Needs {
    /// Adds file data that completed in `written`.
    #[must_use]
    pub fn and_data(self, written: Option<Epoch>) -> Needs {
        Needs { data: self.data.max(written), ..self }
    }
}

impl From<Level> for Needs {
    fn from(level: Level) -> Needs {
        Needs { level, data: None }
    }
}

/// Blocks or an inode that become free once a level is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Blocks of file data.
    Data {
        /// The first of the blocks.
        start: u64,
        /// Number of contiguous blocks.
        len: u32,
    },
    /// A block of metadata (directory, map, xattr, symlink): its cached copy dies with it.
    Meta {
        /// The number of the block.
        block: u64,
    },
    /// An inode that was deleted.
    Inode {
        /// The number of the inode.
        ino: u32,
        /// True if it was a directory (counted per group).
        directory: bool,
    },
}

/// The owner of what a sweep frees.
pub trait Sweeper {
    /// Makes the changes that a transaction must contain before it is closed, such as counts. No op is running.
    fn before_commit(&mut self) -> Result<()>;
    /// Takes the blocks and inodes that have become free.
    fn freed(&mut self, freed: Vec<Freed>) -> Result<()>;
}

impl<F: FnMut(Vec<Freed>) -> Result<()>> Sweeper for F {
    fn before_commit(&mut self) -> Result<()> {
        Ok(())
    }

    fn freed(&mut self, freed: Vec<Freed>) -> Result<()> {
        self(freed)
    }
}
