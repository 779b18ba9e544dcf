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
//! Beyond the checks of `fsck.f2fs`, these are checked: sizes, the names that inodes carry,
//! footers, temperatures, the contents of attributes.
//!
//! Memory: about 9 bytes per node id in those blocks of the NAT that have any in use, 28 per inode, 140 per segment
//! that is not empty, 12 per entry of one directory, and 32 MiB. After a power cut the volume is as its last checkpoint
//! has it; nodes written since by an fsync are checked to form a chain, but not replayed.

mod counts;
mod inodes;
pub mod issue;
mod names;
mod nodes;
mod segments;
mod tables;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;

use moafs_disk::{Disk, DiskError};
use moafs_vfs::types::FileKind;
use serde::Serialize;

pub use issue::{Issue, Severity};

use crate::format::checkpoint::Pack;
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{Damage, Nid, Segno};
use segments::Segment;
use tables::Nat;
use volume::Volume;

/// Findings that are kept one by one; more are only counted.
const FINDINGS_MAX: usize = 10_000;

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

/// An issue with its severity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The structure that is wrong, with the values found and expected.
    #[serde(flatten)]
    pub issue: Issue,
    /// The issue's severity, from [`Issue::severity`].
    pub severity: Severity,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// Everything found, in the order of the passes; the first ten thousand.
    pub findings: Vec<Finding>,
    /// Findings that were only counted.
    pub more: u64,
    /// The severity of the worst finding, those that were only counted included.
    pub worst: Option<Severity>,
    /// Inodes in use, the root included.
    pub inodes_used: u64,
    /// Blocks of the main area in use, and blocks reserved for files without an address.
    pub blocks_used: u64,
}

impl Outcome {
    /// True if something is wrong that a repair would have to mend: space is lost, or worse.
    pub fn errors_left(&self) -> bool {
        self.worst > Some(Severity::Warning)
    }

    /// True if nothing worse was found than space that is lost or counted wrongly.
    pub fn is_leak_only(&self) -> bool {
        self.worst <= Some(Severity::Leak)
    }

    /// Returns the exit code of fsck(8): 4 if errors are left.
    pub fn exit_code(&self) -> i32 {
        i32::from(self.errors_left()) << 2
    }

    /// Records an issue with its severity; beyond [`FINDINGS_MAX`] it is only counted.
    fn found(&mut self, issue: Issue) {
        let severity = issue.severity();
        self.worst = self.worst.max(Some(severity));
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { issue, severity });
        } else {
            self.more += 1;
        }
    }
}

/// Reasons why a volume cannot be checked; fsck(8) exits with code 8.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The action that failed, as a verb phrase ("read the superblock").
        doing: &'static str,
        /// The error that the device returned.
        source: DiskError,
    },
    /// There is no usable superblock.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The volume has features that this checker does not know: half a check would say too little.
    #[error("the volume cannot be checked: {0}")]
    Unsupported(String),
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

/// A callback for progress: pass, steps done, steps of the pass.
type Tell<'a> = &'a mut dyn FnMut(u8, u64, u64);

/// The facts about an inode that pass 2 collects.
#[derive(Debug, Clone, Copy)]
struct InodeState {
    ino: Nid,
    /// The link count that the inode stores (`i_links`).
    links: u32,
    /// Names that pass 3 found.
    names: u32,
    /// The parent it carries.
    pino: Nid,
    /// The hash of the name it carries.
    name_hash: u32,
    /// The file's kind; `None` if its fields cannot be believed.
    kind: Option<FileKind>,
    /// The parent and the name it carries may be wrong.
    lost_pino: bool,
}

/// The facts about a directory that pass 3 collects.
#[derive(Debug, Clone, Copy, Default)]
struct DirInfo {
    /// The directory with its name.
    parent: Option<Nid>,
    /// The inode that `..` names.
    dot_dot: Option<Nid>,
    /// Directories that have their name in it.
    subdirs: u32,
}

/// The state of a check.
struct Checker<'a> {
    volume: Volume<'a>,
    /// Blocks of the summary area, kept apart so that they do not push out nodes.
    summaries: Volume<'a>,
    superblock: Superblock,
    geo: Geometry,
    pack: Pack,
    outcome: Outcome,
    /// Segments that have a SIT entry or a block in use.
    segments: BTreeMap<Segno, Segment>,
    nat: Nat,
    /// All inodes, in ascending order of their ids.
    inodes: Vec<InodeState>,
    dirs: BTreeMap<Nid, DirInfo>,
    /// Blocks of the main area that are in use.
    reached_blocks: u64,
    /// Blocks that are reserved for files and have no address yet.
    promised_blocks: u64,
    /// Nodes that the NAT lists.
    nodes_used: u64,
}

impl<'a> Checker<'a> {
    /// Reads superblock and checkpoint. Without a checkpoint there is only an outcome.
    fn open(disk: &'a dyn Disk) -> Result<Result<Checker<'a>, Outcome>, CheckError> {
        let mut outcome = Outcome::default();
        let volume = Volume::new(disk);
        let superblock = tables::read_superblock(&volume, &mut outcome)?;
        let geo = superblock.geometry();
        let Some(pack) = tables::read_pack(&volume, &geo, &mut outcome)? else {
            return Ok(Err(outcome));
        };
        Ok(Ok(Checker {
            nat: Nat::new(&geo),
            segments: BTreeMap::new(),
            inodes: Vec::new(),
            dirs: BTreeMap::new(),
            reached_blocks: 0,
            promised_blocks: 0,
            nodes_used: 0,
            volume,
            summaries: Volume::new(disk),
            superblock,
            pack,
            geo,
            outcome,
        }))
    }
}

impl Checker<'_> {
    fn found(&mut self, issue: Issue) {
        self.outcome.found(issue);
    }

    fn inode_index(&self, ino: Nid) -> Option<usize> {
        self.inodes.binary_search_by_key(&ino, |state| state.ino).ok()
    }

    fn finish(mut self) -> Outcome {
        self.outcome.inodes_used = self.inodes.len() as u64;
        self.outcome.blocks_used = self.reached_blocks + self.promised_blocks;
        self.outcome
    }
}
