//! Checks a volume without changing it.
//!
//! The node address table lists every inode, so each inode is visited once and every block that it
//! leads to is claimed for it; the tables are then compared with the claims. Nothing damaged is
//! followed, and each node and each block is visited at most once, so the work is bounded by the
//! volume, whatever bytes are on it.
//!
//! | pass | looks at | module |
//! |---|---|---|
//! | 1 | superblock, checkpoint packs, SIT, NAT, logs | `tables` |
//! | 2 | inodes, their nodes, blocks and attributes | `inodes`, `nodes`, `segments` |
//! | 3 | directory entries | `names` |
//! | 4 | connection to the root, links, orphans, counts | `counts` |
//!
//! Below the passes: the state that they share (`checker`), with its segments (`segment`) and node address table
//! (`nat`), the blocks of the volume (`volume`), and what was found (`outcome`, [`issue`]).
//!
//! Beyond the checks of `fsck.f2fs`, these are checked: sizes, the names that inodes carry,
//! footers, temperatures, the contents of attributes.
//!
//! Memory: about 9 bytes per node id in those blocks of the NAT that have any in use, 28 per inode, 140 per segment
//! that is not empty, 12 per entry of one directory, and 32 MiB. After a power cut the volume is as its last checkpoint
//! has it; nodes written since by an fsync are checked to form a chain, but not replayed.

mod checker;
mod counts;
mod inodes;
pub mod issue;
mod names;
mod nat;
mod nodes;
mod outcome;
mod segment;
mod segments;
mod tables;
#[cfg(test)]
mod tests;
mod volume;

use moafs_disk::Disk;

use checker::Checker;

pub use issue::{Issue, Severity};
pub use outcome::{CheckError, Finding, Outcome};

/// The changes that a check may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// No changes at all (`fsck -n`).
    #[default]
    No,
}

/// Options of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// The changes that the check may make.
    pub mode: Mode,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The pass, from 1 to 4.
    pub pass: u8,
    /// Steps of the pass that are done: segments, blocks of the NAT, directories, inodes.
    pub done: u64,
    /// Steps of the pass.
    pub total: u64,
}

/// Checks the volume on `disk`. Nothing is written.
///
/// # Errors
/// If the volume cannot be read, has no usable superblock, or unknown features.
pub fn check(
    disk: &dyn Disk,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, CheckError> {
    let Mode::No = options.mode;
    let mut checker = match Checker::open(disk)? {
        Ok(checker) => checker,
        Err(outcome) => return Ok(outcome),
    };
    let mut tell = |pass, done, total| progress(Progress { pass, done, total });
    checker.read_tables(&mut tell)?;
    checker.check_inodes(&mut tell)?;
    checker.check_names(&mut tell)?;
    checker.check_counts(&mut tell);
    Ok(checker.finish())
}
