//! Where things go: the policies that decide. They decide only; the engine carries out and counts.
//!
//! | module | policy |
//! |---|---|
//! | [`ffs`] | the Fast File System's: the baseline of every comparison |
//! | [`cowrite`] | co-writing: the dirty small files of a directory leave in one request |
//! | [`windows`] | room that directories keep for their next files |

pub mod cowrite;
pub mod ffs;
pub mod windows;

use std::fmt;
use std::str::FromStr;

use moafs_vfs::Result;
use moafs_vfs::types::{Lbn, Mapping};

use crate::format::GroupNo;

/// Who decides where data go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The Fast File System's rules, addresses chosen when data leave the cache.
    Ffs,
    /// The same, but addresses are chosen at `write()`, as the file systems did that Lee, Ahn, Oh (2008) compare
    /// with. For experiments.
    FfsPaper,
    /// Small files of a directory leave together; large ones as with [`Policy::Ffs`].
    #[default]
    Cowrite,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 3] = [Policy::Ffs, Policy::FfsPaper, Policy::Cowrite];

    /// The name by which options and tables know it.
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

/// What policies need to know of files.
pub trait Files<N> {
    /// The group of a file's inode.
    fn group(&self, file: &N) -> GroupNo;
    /// What lies at a place of it.
    fn map(&self, file: &N, at: Lbn, max: u32) -> Result<Mapping>;
}
