//! The policies that decide where data and metadata are placed. They decide only; the engine
//! carries out and counts.
//!
//! | module | policy |
//! |---|---|
//! | [`ffs`] | the Fast File System's: the baseline of every comparison |
//! | [`cowrite`] | co-writing: the dirty small files of a directory are written in one request |
//! | [`windows`] | free blocks that directories keep for their next files |

pub mod cowrite;
pub mod ffs;
pub mod windows;

use std::fmt;
use std::str::FromStr;

use moafs_vfs::Result;
use moafs_vfs::types::{Lbn, Mapping};

use crate::format::GroupNo;

/// The policy that decides where data are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The Fast File System's rules, addresses chosen when data leave the cache.
    Ffs,
    /// The same rules, but addresses are allocated at `write()`, as in the file systems that Lee,
    /// Ahn, Oh (2008) compare with. For experiments.
    FfsPaper,
    /// Small files of a directory are written together; large ones as with [`Policy::Ffs`].
    #[default]
    Cowrite,
}

impl Policy {
    /// All policies, the baseline first.
    pub const ALL: [Policy; 3] = [Policy::Ffs, Policy::FfsPaper, Policy::Cowrite];

    /// Returns the name of the policy in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Ffs => "ffs",
            Policy::FfsPaper => "ffs-paper",
            Policy::Cowrite => "cowrite",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Policy, String> {
        let known = || Policy::ALL.map(Policy::name).join(", ");
        let found = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| format!("there is no placement policy \"{name}\"; there are {}", known()))
    }
}

/// The facts about files that policies need.
pub trait Files<N> {
    /// Returns the group of a file's inode.
    fn group(&self, file: &N) -> GroupNo;
    /// Returns the mapping of the file at `at`, at most `max` blocks.
    fn map(&self, file: &N, at: Lbn, max: u32) -> Result<Mapping>;
}
