//! Checking and repairing a volume, in the scope of `e2fsck`.
//!
//! Every pass checks one kind of structure, reports an [`Issue`] for each error, and repairs it at
//! once if it may; later passes then see the repaired volume, or go on without the damaged part. A
//! repair repeats sweeps of all passes until a sweep finds no error.
//!
//! | pass | checks | module |
//! |---|---|---|
//! | | the journal is replayed, or looked through | `journal` |
//! | 0 | superblock, descriptors | `superblock`, `groups` |
//! | 1 | the journal and the orphans of a crash | `journal`, `orphans` |
//! | 1 | inodes and their attributes; maps; indexes | `inodes`, `map`, `extents`, `index` |
//! | 1 | blocks with more than one owner | `shared` |
//! | 2 | directory blocks and entries | `dirs` |
//! | 3 | connection to the root | `connect` |
//! | 4 | link counts | `connect` |
//! | 5 | bitmaps and counts | `counts` |
//!
//! A structure with a checksum is checked for its rules first. A wrong checksum is reported where all else is right,
//! and made again with every repair.
//!
//! Memory: a bit per block, eight bytes per inode of groups that have inodes in use, four bytes per
//! directory block; the geometry these come from is checked against the device first. Every
//! indirect block is walked once. A power cut during a repair leaves a volume that needs another
//! one.

mod connect;
mod counts;
mod dirs;
mod extents;
mod groups;
mod index;
mod inodes;
pub mod issue;
mod journal;
mod map;
mod orphans;
pub mod scan;
mod shared;
mod superblock;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use moafs_disk::{Disk, DiskError, SharedDisk};
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;
use serde::Serialize;

pub use issue::{Issue, Severity};
pub use superblock::find_copy;

use crate::format::superblock::State;
use crate::format::{
    BlockNo, Damage, Descriptor, Geometry, GroupNo, Inode, InodeNo, Superblock, Unsupported, bitmap, inode,
};
use journal::Prepared;
use shared::{Sharing, Tangle};
use volume::Volume;

/// Sweeps after which a repair gives up.
const SWEEPS_MAX: u32 = 6;
/// Findings that are kept one by one; more are only counted.
const FINDINGS_MAX: usize = 10_000;

/// The changes that a check may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No changes (`fsck -n`).
    No,
    /// Repairs that cannot lose anything; none at all if they are not enough (`fsck -p`).
    Preen,
    /// Every repair (`fsck -y`).
    Yes,
}

/// Options of a check.
#[derive(Debug, Clone, Copy)]
pub struct CheckOptions {
    /// The changes that the check may make.
    pub mode: Mode,
    /// Check even if the volume says that it is clean.
    pub force: bool,
    /// The block that holds the copy of the superblock to use instead of the primary one.
    pub superblock: Option<u64>,
    /// The current time, for deletion times and the superblock.
    pub now: Timestamp,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The sweep over the volume, from 1.
    pub sweep: u32,
    /// The pass, from 1 to 5.
    pub pass: u8,
    /// Steps of the pass that are done.
    pub done: u64,
    /// All steps of the pass.
    pub total: u64,
}

/// An issue, and whether it was repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The error that was found.
    #[serde(flatten)]
    pub issue: Issue,
    /// The severity of the issue.
    pub severity: Severity,
    /// True if it was repaired.
    pub repaired: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// The issues found, in the order of the passes; the first ten thousand.
    pub findings: Vec<Finding>,
    /// Findings that were only counted.
    pub more: u64,
    /// True if the volume said that it was clean, and was not checked.
    pub skipped: bool,
    /// Transactions of the journal that were replayed, or that the check showed as if they were.
    pub transactions: u32,
    /// True if a repair changed the volume.
    pub modified: bool,
    /// True if errors are left.
    pub errors_left: bool,
    /// Number of inodes in use.
    pub inodes_used: u64,
    /// Number of blocks in use.
    pub blocks_used: u64,
}

impl Outcome {
    /// Returns the exit code of fsck(8): 1 if the volume was repaired, 4 if errors are left.
    pub fn exit_code(&self) -> i32 {
        i32::from(self.modified) | i32::from(self.errors_left) << 2
    }

    fn add(&mut self, log: Log) {
        self.modified |= log.modified;
        self.more += log.more;
        for finding in log.findings {
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(finding);
            } else {
                self.more += 1;
            }
        }
    }
}

/// The reason for which a volume cannot be checked: fsck(8)'s exit code 8.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The work that the request was part of.
        doing: &'static str,
        /// The error that the device reported.
        source: DiskError,
    },
    /// There is no usable superblock.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The volume has features that this checker does not know.
    #[error("{0}")]
    Unsupported(#[from] Unsupported),
    /// A superblock was asked for where there is none.
    #[error("block {block} holds no copy of a superblock")]
    NoCopy {
        /// The number of the block that was asked for.
        block: u64,
    },
    /// The journal holds changes that are not on the volume yet: a repair without them would
    /// destroy the files they belong to.
    #[error(
        "the journal was not replayed (s_start is {start}, should be 0, and the feature needs_recovery clear): run \
         `moafs fsck -p` on the volume, or mount it once"
    )]
    Journal {
        /// `s_start` of the journal's superblock.
        start: u32,
    },
    /// The journal cannot be replayed by this crate.
    #[error("{0}")]
    Replay(#[from] moafs_vfs::Error),
    /// A repair needed more blocks than were counted as free.
    #[error("there is no free block left for the repair")]
    Full,
}

/// Checks the volume on `disk`, and repairs it as far as the options allow. Its journal is replayed first; with
/// [`Mode::No`] the check only shows what a replay would leave.
///
/// # Errors
/// If the volume cannot be read or written, has no usable superblock, or unknown features.
pub fn check_volume(
    disk: &SharedDisk,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, CheckError> {
    let Prepared { disk, log, transactions, must_check, is_stuck, .. } = journal::prepare(disk, options)?;
    let mut outcome = Outcome { transactions, ..Outcome::default() };
    let has_errors = log.has_errors_left();
    outcome.add(log);
    if !is_stuck {
        let options = CheckOptions { force: options.force || must_check, ..*options };
        outcome.extend(check_shown(&*disk, &options, true, progress)?);
    }
    outcome.errors_left |= has_errors;
    Ok(outcome)
}

/// Checks the volume on `disk`, and repairs it as far as the options allow. Its journal must be empty.
///
/// # Errors
/// As [`check_volume`], and [`CheckError::Journal`] if there is something to replay.
pub fn check(
    disk: &dyn Disk,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, CheckError> {
    check_shown(disk, options, false, progress)
}

fn check_shown(
    disk: &dyn Disk,
    options: &CheckOptions,
    is_replayed: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, CheckError> {
    let mut outcome = Outcome::default();
    let lazy = !options.force && options.superblock.is_none();
    if lazy && options.mode != Mode::No && superblock::says_clean(disk) {
        outcome.skipped = true;
        return Ok(outcome);
    }
    let first = Sweep { fix: Fix::Nothing, options, number: 1, was_clean: true, is_replayed };
    let mut swept = sweep(disk, first, progress)?;
    let fix = match options.mode {
        Mode::No => Fix::Nothing,
        Mode::Preen if swept.is_safe_to_repair() => Fix::Safe,
        Mode::Preen => Fix::Nothing,
        Mode::Yes => Fix::All,
    };
    if fix == Fix::Nothing {
        outcome.take(swept);
        return Ok(outcome);
    }
    let was_clean = swept.was_clean;
    let mut number = 1;
    while number < SWEEPS_MAX {
        // Each sweep that has to be repeated uncovers inodes of one more group.
        number += u32::from(!swept.must_restart);
        if !swept.is_clean() {
            volume::mark_in_repair(disk)?;
        }
        if let Some(tangle) = swept.tangle.take() {
            let mut log = Log::default();
            let is_resolved = tangle.resolve(disk, &mut log)?;
            outcome.add(log);
            if !is_resolved {
                outcome.take(swept);
                return Ok(outcome);
            }
        }
        swept = sweep(disk, Sweep { fix, options, number, was_clean, is_replayed }, progress)?;
        let is_clean = swept.is_clean();
        outcome.take_ref(&mut swept);
        if is_clean {
            return Ok(outcome);
        }
    }
    // The repairs of the last sweep were not checked again: more errors may be left.
    outcome.errors_left |= swept.found_errors;
    Ok(outcome)
}

impl Outcome {
    fn take(&mut self, mut swept: Swept) {
        self.take_ref(&mut swept);
    }

    /// Adds the outcome of the check that followed.
    fn extend(&mut self, other: Outcome) {
        let Outcome { findings, more, skipped, modified, errors_left, inodes_used, blocks_used, .. } = other;
        self.add(Log { findings, more, modified, ..Log::default() });
        (self.skipped, self.errors_left) = (skipped, errors_left);
        (self.inodes_used, self.blocks_used) = (inodes_used, blocks_used);
    }

    fn take_ref(&mut self, swept: &mut Swept) {
        let log = std::mem::take(&mut swept.log);
        swept.found_errors = log.more > 0 || log.findings.iter().any(|f| f.severity > Severity::Warning);
        self.errors_left = log.has_errors_left();
        self.inodes_used = swept.inodes_used;
        self.blocks_used = swept.blocks_used;
        self.add(log);
    }
}

/// The repairs that a sweep may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fix {
    Nothing,
    Safe,
    All,
}

#[derive(Clone, Copy)]
struct Sweep<'a> {
    fix: Fix,
    options: &'a CheckOptions,
    number: u32,
    /// True if the volume said that it was clean before the first repair.
    was_clean: bool,
    /// True if what the journal holds was replayed, or is shown.
    is_replayed: bool,
}

/// The result of one sweep.
#[derive(Default)]
struct Swept {
    log: Log,
    inodes_used: u64,
    blocks_used: u64,
    /// True if the superblock says that the volume is clean.
    was_clean: bool,
    /// True if it found worse than warnings.
    found_errors: bool,
    /// True if it ended before all passes were done, since there are inodes that it has not looked at.
    must_restart: bool,
    /// Blocks with more than one claim.
    tangle: Option<Box<Tangle>>,
}

impl Swept {
    fn is_clean(&self) -> bool {
        self.log.findings.is_empty() && self.log.more == 0
    }

    fn is_safe_to_repair(&self) -> bool {
        self.log.more == 0 && self.log.findings.iter().all(|found| found.issue.is_safe_to_repair())
    }
}

/// Collects issues, and decides which of them are to be repaired.
#[derive(Default)]
struct Log {
    findings: Vec<Finding>,
    more: u64,
    modified: bool,
    may_fix_safe: bool,
    may_fix_all: bool,
}

impl Log {
    /// Notes an issue. Returns true if the caller is to repair it now.
    fn found(&mut self, issue: Issue) -> bool {
        let fatal = issue.severity() == Severity::Fatal;
        let fix = !fatal && (self.may_fix_all || (self.may_fix_safe && issue.is_safe_to_repair()));
        self.note(issue, fix);
        fix
    }

    /// Returns true if a repair of this issue may be tried; the caller then [notes](Self::note) the
    /// result.
    fn may_fix(&self, issue: &Issue) -> bool {
        self.may_fix_all || (self.may_fix_safe && issue.is_safe_to_repair())
    }

    fn has_errors_left(&self) -> bool {
        self.more > 0 || self.findings.iter().any(|f| !f.repaired && f.severity > Severity::Warning)
    }

    /// Notes an issue that is beyond repair in this sweep.
    fn note(&mut self, issue: Issue, repaired: bool) {
        self.modified |= repaired;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { severity: issue.severity(), issue, repaired });
        } else {
            self.more += 1;
        }
    }
}

/// Results of pass 1 about an inode.
#[derive(Debug, Clone, Copy, Default)]
struct InodeState {
    /// Type byte of its directory entries; 0: the inode is not in use.
    type_byte: u8,
    /// True if its map was walked.
    has_map: bool,
    /// The link count from `i_links_count`.
    links: u16,
    /// Names found by pass 2.
    found: u32,
}

/// Results of the passes about a directory.
#[derive(Debug, Clone, Default)]
struct DirInfo {
    /// Its blocks: number in the file, number on the volume.
    blocks: Vec<(u64, BlockNo)>,
    /// The directory with its name.
    parent: Option<InodeNo>,
    /// The inode that `..` names, and the block and offset of that entry.
    dot_dot: Option<(InodeNo, BlockNo, usize)>,
}

/// The sharing of an attribute block.
#[derive(Debug, Clone, Copy, Default)]
struct Shared {
    stored: u32,
    counted: u32,
}

/// The state of one sweep.
struct Checker<'a> {
    volume: Volume<'a>,
    superblock: Superblock,
    geo: Geometry,
    descriptors: Vec<Descriptor>,
    log: Log,
    options: &'a CheckOptions,
    /// The blocks in use, one bit per block of the volume.
    used: Vec<u8>,
    /// Blocks of the groups' metadata, sorted.
    fixed: Vec<Range<u64>>,
    /// Blocks with more than one claim.
    sharing: Sharing,
    /// By group; absent where no inode is in use.
    inodes: Vec<Option<Box<[InodeState]>>>,
    dirs: BTreeMap<u32, DirInfo>,
    xattrs: BTreeMap<u64, Shared>,
    /// Inodes that a crash left to be deleted or truncated.
    orphans: BTreeSet<u32>,
    /// Those of them that lose the blocks beyond their end in this sweep.
    truncated: BTreeSet<u32>,
    /// The orphan file, if it can be used: it has no name.
    orphan_file: Option<InodeNo>,
    /// Groups with inodes in use that this sweep has not looked at, since their descriptors hid them.
    uncovered: BTreeSet<GroupNo>,
    lost_found: Option<InodeNo>,
    /// True if lost+found is missing and could not be made.
    lost_found_failed: bool,
}

fn sweep(disk: &dyn Disk, sweep: Sweep<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Swept, CheckError> {
    let mut log = Log { may_fix_safe: sweep.fix != Fix::Nothing, may_fix_all: sweep.fix == Fix::All, ..Log::default() };
    // The first repair makes the copy that was asked for the primary one.
    let wanted = sweep.options.superblock.filter(|_| sweep.number <= 2);
    let (superblock, geo) = superblock::open(disk, wanted, &mut log)?;
    let volume = Volume::new(disk, geo.clone());
    if !sweep.is_replayed {
        superblock::check_journal_is_empty(&volume, &superblock, &geo)?;
    }
    let Some(descriptors) = groups::read_descriptors(&volume, &geo, &mut log)? else {
        return Ok(Swept { log, found_errors: true, ..Swept::default() });
    };
    let mut checker = Checker {
        used: vec![0; geo.blocks.div_ceil(8) as usize],
        fixed: Vec::new(),
        sharing: Sharing::new(&geo),
        inodes: vec![None; geo.groups as usize],
        volume,
        superblock,
        geo,
        descriptors,
        log,
        options: sweep.options,
        dirs: BTreeMap::new(),
        xattrs: BTreeMap::new(),
        orphans: BTreeSet::new(),
        truncated: BTreeSet::new(),
        orphan_file: None,
        uncovered: BTreeSet::new(),
        lost_found: None,
        lost_found_failed: false,
    };
    let mut tell = |pass, done, total| progress(Progress { sweep: sweep.number, pass, done, total });
    checker.pass1(&mut tell)?;
    checker.pass2(&mut tell)?;
    if checker.uncovered.is_empty() {
        checker.pass3(&mut tell)?;
        checker.pass4(&mut tell)?;
        checker.pass5(&mut tell)?;
    }
    checker.finish(sweep.was_clean)
}

impl Checker<'_> {
    fn table_of(&self, ino: InodeNo) -> BlockNo {
        let at = self.geo.locate_inode(ino).expect("an inode of the volume");
        self.descriptors[at.group.0 as usize].inode_table
    }

    fn read_inode(&self, ino: InodeNo) -> Result<(Vec<u8>, Inode), CheckError> {
        let slot = self.volume.slot(self.table_of(ino), ino)?;
        let inode = Inode::parse(&slot, &self.geo);
        Ok((slot, inode))
    }

    fn write_inode(&self, ino: InodeNo, slot: &mut [u8], inode: &Inode) -> Result<(), CheckError> {
        inode.encode_into(slot, &self.geo);
        self.volume.set_slot(self.table_of(ino), ino, slot)
    }

    fn change_inode(&self, ino: InodeNo, change: impl FnOnce(&mut Inode)) -> Result<(), CheckError> {
        let (mut slot, mut inode) = self.read_inode(ino)?;
        change(&mut inode);
        self.write_inode(ino, &mut slot, &inode)
    }

    /// Returns the current time in 32 bits, never 0: that would mean "not deleted".
    fn now_secs(&self) -> u32 {
        self.options.now.secs.clamp(1, u32::MAX.into()) as u32
    }

    fn state(&self, ino: InodeNo) -> InodeState {
        let Some(at) = self.geo.locate_inode(ino) else { return InodeState::default() };
        match &self.inodes[at.group.0 as usize] {
            Some(group) => group[at.index as usize],
            None => InodeState::default(),
        }
    }

    fn state_mut(&mut self, ino: InodeNo) -> &mut InodeState {
        let at = self.geo.locate_inode(ino).expect("an inode of the volume");
        let per_group = self.geo.inodes_per_group as usize;
        let group = self.inodes[at.group.0 as usize]
            .get_or_insert_with(|| vec![InodeState::default(); per_group].into_boxed_slice());
        &mut group[at.index as usize]
    }

    fn is_dir(&self, ino: InodeNo) -> bool {
        self.state(ino).type_byte == inode::entry_type(FileKind::Directory)
    }

    /// Returns the inodes in use, ascending, with their states.
    fn inodes_in_use(&self) -> impl Iterator<Item = (InodeNo, InodeState)> + '_ {
        self.inodes.iter().enumerate().flat_map(move |(group, states)| {
            let states = states.iter().flat_map(|states| states.iter().enumerate());
            let in_use = states.filter(|(_, state)| state.type_byte != 0);
            in_use.map(move |(index, state)| (self.geo.inode_at(GroupNo(group as u32), index as u32), *state))
        })
    }

    /// Returns the inodes whose maps pass 1 has walked, ascending.
    fn inodes_with_maps(&self) -> Vec<InodeNo> {
        let groups = self.inodes.iter().enumerate();
        let states = groups.flat_map(|(group, states)| {
            states
                .iter()
                .flat_map(move |states| (0..).zip(states.iter()).map(move |(index, state)| (group, index, state)))
        });
        let mapped = states.filter(|(_, _, state)| state.has_map);
        mapped.map(|(group, index, _)| self.geo.inode_at(GroupNo(group as u32), index)).collect()
    }

    fn is_used(&self, block: BlockNo) -> bool {
        bitmap::test(&self.used, block.0 as u32)
    }

    fn is_fixed(&self, block: BlockNo) -> bool {
        map::is_in(&self.fixed, block)
    }

    /// Marks a block as used; returns false if it was already.
    fn claim(&mut self, block: BlockNo) -> bool {
        let byte = &mut self.used[(block.0 / 8) as usize];
        let bit = 1 << (block.0 % 8);
        let first_time = *byte & bit == 0;
        *byte |= bit;
        first_time
    }

    fn release(&mut self, block: BlockNo) {
        self.used[(block.0 / 8) as usize] &= !(1 << (block.0 % 8));
    }

    /// Takes a free block. Only correct after pass 1, when all used blocks are known.
    fn take_block(&mut self) -> Option<BlockNo> {
        let first = self.geo.first_data_block as u32 + 1;
        let free = bitmap::first_zero(&self.used, first, self.geo.blocks as u32)?;
        let block = BlockNo(free.into());
        self.claim(block);
        Some(block)
    }

    /// Writes the repaired blocks, and the superblock last. It says that the volume is clean if the
    /// sweep found no error.
    fn finish(mut self, was_clean: bool) -> Result<Swept, CheckError> {
        let inodes_used = self.inodes_in_use().count() as u64;
        let free: u64 = bitmap::count_zeros(&self.used, self.geo.blocks as u32).into();
        let mut swept = Swept {
            log: Log::default(),
            inodes_used,
            blocks_used: self.geo.blocks - free,
            was_clean: self.superblock.state() == State::VALID,
            found_errors: false,
            must_restart: !self.uncovered.is_empty(),
            tangle: self.take_tangle(),
        };
        if !self.log.may_fix_safe {
            swept.log = self.log;
            return Ok(swept);
        }
        let is_clean = self.log.findings.is_empty() && self.log.more == 0;
        let sb = &mut self.superblock;
        if is_clean && !swept.was_clean {
            sb.set_state(State::VALID);
            sb.set_error_count(0);
            sb.set_mnt_count(0);
        }
        if self.log.modified || (is_clean && !swept.was_clean) {
            let now = self.options.now.secs.clamp(0, u32::MAX.into()) as u32;
            sb.set_lastcheck(now);
            sb.set_wtime(now);
            self.volume.finish(Some(sb))?;
        } else {
            self.volume.finish(None)?;
        }
        self.log.modified |= is_clean && !was_clean;
        swept.log = self.log;
        Ok(swept)
    }
}
