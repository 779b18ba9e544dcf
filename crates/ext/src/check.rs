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
//! | | exchanges of names that a crash of moafs interrupted | `exchanges` |
//! | 2 | directory blocks and entries | `dirs` |
//! | 3 | connection to the root | `connect` |
//! | | names that a crash of moafs left beside newer ones | `renames` |
//! | 4 | link counts | `connect` |
//! | 5 | bitmaps and counts | `counts` |
//!
//! The passes share the state of their sweep (`checker`), the walks over maps and trees (`scan`, `tree`), their results
//! (`mapped`, `claims`), and the collection of what is found (`report`).
//!
//! A structure with a checksum is checked for its rules first. A wrong checksum is reported where all else is right,
//! and made again with every repair.
//!
//! Memory: a bit per block, eight bytes per inode of groups that have inodes in use, four bytes per
//! directory block; the geometry these come from is checked against the device first. Every
//! indirect block is walked once. A power cut during a repair leaves a volume that needs another
//! one.

mod checker;
mod claims;
mod connect;
mod counts;
mod dirs;
mod error;
mod exchanges;
mod extents;
mod groups;
mod index;
mod inodes;
pub mod issue;
mod journal;
mod map;
mod mapped;
mod orphans;
mod renames;
mod report;
pub mod scan;
mod shared;
mod superblock;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use moafs_disk::{Disk, SharedDisk};

pub use error::CheckError;
pub use issue::{Issue, Severity};
pub use report::{CheckOptions, Finding, Mode, Outcome, Progress};
pub use superblock::find_copy;

use crate::format::bitmap;
use crate::format::renaming::Marks;
use crate::format::superblock::{MARK_VERSION, State};
use checker::Checker;
use claims::Sharing;
use groups::Hidden;
use journal::Prepared;
use report::Log;
use shared::Tangle;
use volume::Volume;

/// Sweeps after which a repair gives up.
const SWEEPS_MAX: u32 = 6;
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
    let was_clean = superblock::says_valid(disk);
    let first = Sweep { fix: Fix::Nothing, options, number: 1, was_clean, is_replayed };
    let mut swept = sweep(disk, first, progress)?;
    let was_clean = swept.was_clean;
    let fix = loop {
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
        let Some(hidden) = swept.hidden.take() else { break fix };
        // A repair takes free blocks: until every inode is known it could take those of one in use.
        volume::mark_in_repair(disk)?;
        outcome.add(hidden.uncover(disk)?);
        swept = sweep(disk, first, progress)?;
    };
    let mut number = 1;
    while number < SWEEPS_MAX {
        // Each sweep that has to be repeated uncovers inodes of one more group.
        number += u32::from(!swept.must_restart);
        if !swept.is_clean() {
            volume::mark_in_repair(disk)?;
        }
        // While there are inodes that were not looked at, their blocks would be taken for free ones.
        if let Some(tangle) = swept.tangle.take().filter(|_| !swept.must_restart) {
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
    /// The groups with inodes that a sweep which changes nothing has not looked at.
    hidden: Option<Box<Hidden>>,
}

impl Swept {
    fn is_clean(&self) -> bool {
        self.log.findings.is_empty() && self.log.more == 0
    }

    fn is_safe_to_repair(&self) -> bool {
        self.log.more == 0 && self.log.findings.iter().all(|found| found.issue.is_safe_to_repair())
    }
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
    // The notes of renames in inodes hold for the recovery of a crash of moafs.
    let is_crash_of_ours = !sweep.was_clean && superblock.writer_mark_matches(MARK_VERSION);
    let marks = is_crash_of_ours.then(|| Marks::of(&superblock));
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
        tails: Vec::new(),
        orphan_file: None,
        uncovered: BTreeSet::new(),
        hidden: BTreeMap::new(),
        marks,
        renames: BTreeMap::new(),
        reconnected: BTreeSet::new(),
        lost_found: None,
        lost_found_failed: false,
    };
    let mut tell = |pass, done, total| progress(Progress { sweep: sweep.number, pass, done, total });
    checker.pass1(&mut tell)?;
    checker.end_exchanges()?;
    checker.pass2(&mut tell)?;
    if checker.uncovered.is_empty() {
        checker.pass3(&mut tell)?;
        checker.end_renames()?;
        checker.pass4(&mut tell)?;
        checker.pass5(&mut tell)?;
    }
    checker.finish(sweep.was_clean)
}

impl Checker<'_> {
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
            hidden: self.take_hidden(),
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
