//! The systems that are compared, by name.

use std::fmt;

use moafs_disk::SharedDisk;
use moafs_ext::place::Policy;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Rt;

use crate::machine::Mount;

/// A file system with its way of placing data, and the queue below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// The paper's baseline: addresses at `write()`, file by file, a sorted queue that does not merge (BSD's disksort).
    FfsPaper,
    /// The best FFS we can build: addresses when data leave, and a queue that merges what is adjacent.
    Ffs,
    /// Co-writing, over the same queue as [`System::Ffs`].
    Cowrite,
    /// Co-writing over the paper's queue: what placement alone gives against [`System::FfsPaper`].
    CowriteDisksort,
}

impl System {
    /// All systems of the comparison.
    pub const ALL: [System; 4] = [System::FfsPaper, System::Ffs, System::Cowrite, System::CowriteDisksort];

    /// The systems of the tables, unless others are asked for.
    pub const DEFAULT: [System; 3] = [System::FfsPaper, System::Ffs, System::Cowrite];

    /// Returns its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            System::FfsPaper => "ffs-paper",
            System::Ffs => "ffs",
            System::Cowrite => "cowrite",
            System::CowriteDisksort => "cowrite-disksort",
        }
    }

    /// Returns true if its queue merges adjacent requests, of different files as well.
    pub fn merges(self) -> bool {
        matches!(self, System::Ffs | System::Cowrite)
    }

    fn policy(self) -> Policy {
        match self {
            System::FfsPaper => Policy::FfsPaper,
            System::Ffs => Policy::Ffs,
            System::Cowrite | System::CowriteDisksort => Policy::Cowrite,
        }
    }

    /// Returns true for the systems that co-write.
    pub fn co_writes(self) -> bool {
        matches!(self, System::Cowrite | System::CowriteDisksort)
    }
}

impl Mount for System {
    type Format = Ext;

    fn open(&self, disk: SharedDisk, rt: Rt, transfer_bytes_max: usize) -> moafs_vfs::Result<Ext> {
        Ext::open(disk, rt, OpenOptions { transfer_bytes_max, place: self.policy(), ..OpenOptions::default() })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
