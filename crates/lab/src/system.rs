//! The systems that are compared, by name.

use std::fmt;

use crate::error::{LabError, Result};

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
    /// All of them.
    pub const ALL: [System; 4] = [System::FfsPaper, System::Ffs, System::Cowrite, System::CowriteDisksort];

    /// Those of the tables, unless others are asked for.
    pub const DEFAULT: [System; 3] = [System::FfsPaper, System::Ffs, System::Cowrite];

    /// Its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            System::FfsPaper => "ffs-paper",
            System::Ffs => "ffs",
            System::Cowrite => "cowrite",
            System::CowriteDisksort => "cowrite-disksort",
        }
    }

    /// The system with this name.
    ///
    /// # Errors
    /// [`LabError::Unknown`].
    pub fn parse(name: &str) -> Result<System> {
        let found = System::ALL.into_iter().find(|system| system.name() == name);
        found.ok_or_else(|| LabError::unknown("system", name, System::ALL.map(System::name)))
    }

    /// Whether its queue merges adjacent requests, of different files too.
    pub fn merges(self) -> bool {
        matches!(self, System::Ffs | System::Cowrite)
    }

    /// True for co-writing.
    pub fn co_writes(self) -> bool {
        matches!(self, System::Cowrite | System::CowriteDisksort)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
