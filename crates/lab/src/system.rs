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
    /// A policy over the best queue: one that merges what is adjacent. The paper's baseline, whose addresses are
    /// allocated at `write()`, has the paper's queue, which sorts and does not merge (BSD's disksort).
    Placed(Policy),
    /// Co-writing over the paper's queue: what placement alone gives against [`System::FFS_PAPER`].
    CowriteDisksort,
}

impl System {
    /// The paper's baseline: addresses at `write()`, file by file, a queue that does not merge.
    pub const FFS_PAPER: System = System::Placed(Policy::FfsPaper);
    /// The best FFS we can build: addresses when data leave, and a queue that merges.
    pub const FFS: System = System::Placed(Policy::Ffs);
    /// Co-writing, over the same queue as [`System::FFS`].
    pub const COWRITE: System = System::Placed(Policy::Cowrite);

    /// All systems of the comparison: every placement policy, and co-writing over the paper's queue.
    pub const ALL: [System; Policy::ALL.len() + 1] = {
        let mut all = [System::CowriteDisksort; Policy::ALL.len() + 1];
        let mut at = 0;
        while at < Policy::ALL.len() {
            all[at] = System::Placed(Policy::ALL[at]);
            at += 1;
        }
        all
    };

    /// The systems of the tables, unless others are asked for.
    pub const DEFAULT: [System; 3] = [System::FFS_PAPER, System::FFS, System::COWRITE];

    /// Returns its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            System::Placed(policy) => policy.name(),
            System::CowriteDisksort => "cowrite-disksort",
        }
    }

    /// Returns true if its queue merges adjacent requests, of different files as well.
    pub fn merges(self) -> bool {
        matches!(self, System::Placed(policy) if !policy.allocates_on_write())
    }

    fn policy(self) -> Policy {
        match self {
            System::Placed(policy) => policy,
            System::CowriteDisksort => Policy::Cowrite,
        }
    }

    /// Returns true for the systems that co-write.
    pub fn co_writes(self) -> bool {
        self.policy().co_writes()
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
