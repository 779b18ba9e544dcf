//! Recovery after a crash of our own: returning leaks while the volume is in use.
//!
//! Soft updates leave leaks at most: bits set for blocks and inodes that are not in use, inodes
//! that no name leads to, link counts and counts of references that are too high, blocks beyond the
//! end of a file. Recovery finds them by reading all inodes, directories and maps once. Its one rule
//! makes that safe beside clients:
//!
//! > **An inode is looked at before its first change, the names of a directory before theirs.**
//!
//! The background pass and an op that is about to change the inode ([`Ext::touch`]) both do this;
//! the first does the work, and a lock per inode makes the other wait. So the notes of recovery
//! describe the volume *as it was at mount*, one moment, however long the pass takes:
//!
//! * A block whose bit was set at mount and that no inode owned then is a leak: no pointer leads to
//!   it, and since its bit is set it cannot have been handed out. Blocks handed out or freed since
//!   are told apart by the allocator's notes.
//! * An inode without a name then is a leak, unless a caller holds it (by its number) or has
//!   changed it since: then it stays, and is returned at unmount.
//! * No op changes the difference between an inode's links and its names: the excess at mount is
//!   subtracted when the volume is closed.
//!
//! | phase | work |
//! |---|---|
//! | `Slots` | link counts and kinds of all inodes; deleted ones whose bit is still set |
//! | `Names` | every directory that the root leads to is read |
//! | `Mend` | interrupted exchanges and renames; directories with two names; `..` that is wrong |
//! | `Nameless` | inodes without names are deleted, directories before the inodes in them |
//! | `Maps` | the blocks that inodes own are noted; blocks beyond the end and wrong block counts are repaired |
//! | `References` | attribute blocks that inodes share get the right numbers of references |
//! | `Blocks` | blocks that are not owned become free |
//!
//! Directories are neither moved nor removed before `Mend` is through, so the set of inodes
//! reachable from the root does not change under the pass over names. If the crash interrupted an
//! exchange, nothing is changed before that.
//!
//! The changes of recovery are ordered like any others: a crash meanwhile leaves the same leaks as
//! the crash before, or fewer.

mod exchanges;
mod free;
mod known;
mod names;
mod references;
mod renames;
mod state;
mod visit;

pub(super) use state::Recovery;

use std::time::Duration;

use moafs_runtime::Time;
use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::Result;
use moafs_vfs::format::Idle;

use self::known::Known;
use self::state::{GROUP_COST, Pass, Phase};
use super::incore::Incore;
use super::volume::Ext;
use crate::format::{GroupNo, InodeNo};

/// About the number of inodes that are looked at in one step.
const STEP_COST: u32 = 2048;
/// The cost of reading a directory, in inodes.
const DIRECTORY_COST: u32 = 32;
/// Pause between steps while the volume is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of cached metadata that recovery always leaves: it drops the metadata that it has read
/// beyond those cached before, but not below this.
const CACHED_BYTES_MIN: usize = 4 << 20;
/// Passes over the volume at unmount: a second one returns the leaks that had to be left while the
/// volume was in use, and then none has to be left.
const PASSES_MAX: u32 = 3;

impl Ext {
    /// Has recovery look at an inode before an op changes its slot, its map, its names, or a name of it.
    pub(super) fn touch(&self, node: &Incore) -> Result<()> {
        if !self.recovery.is_active() || self.recovery.known.lock().touch(node.ino.0) {
            return Ok(());
        }
        let _turn = self.recovery.turn(node.ino);
        let visited = self.visit(node.ino, true);
        self.health.watch(visited)
    }

    /// Waits until names may be told and changed: interrupted exchanges are ended first. A volume that has turned
    /// read-only tells the names that it has.
    pub(super) fn end_exchanges_first(&self) -> Result<()> {
        let may_change = !self.recovery.is_active() || self.recovery.may_change.load(Ordering::Acquire);
        if may_change || self.health.failed().is_some() {
            return Ok(());
        }
        let mut pass = self.recovery.pass.lock();
        let looked = self.look_for_exchanges(&mut pass);
        self.health.watch(looked)?;
        drop(pass);
        if self.recovery.may_change.load(Ordering::Acquire) { Ok(()) } else { self.finish_names() }
    }

    /// Waits until directories may be moved and removed; runs steps of the pass meanwhile. They may
    /// remove names: the caller looks its names up afterwards.
    pub(super) fn finish_names(&self) -> Result<()> {
        while self.recovery.is_unsettled() {
            self.health.check()?;
            let mut pass = self.recovery.pass.lock();
            if self.recovery.is_unsettled() {
                self.recover_some(&mut pass)?;
            }
        }
        Ok(())
    }

    /// Runs one bounded step. Returns the time for the next call; `None` once all leaks are
    /// returned, or if the volume has failed.
    pub(super) fn recover_step(&self, idle: Idle) -> Option<Time> {
        if !self.recovery.is_active() || self.health.failed().is_some() {
            return None;
        }
        let mut pass = self.recovery.pass.lock();
        if self.recover_some(&mut pass).is_err() || !self.recovery.is_active() {
            return None;
        }
        let pause = if idle == Idle::Busy { BUSY_PAUSE } else { Duration::ZERO };
        Some(self.rt.now() + pause)
    }

    /// Runs recovery to its end; the volume is not in use any more. Another pass over the whole
    /// volume finds the leaks that had to be left while it was in use.
    pub(super) fn finish_recovery(&self) -> Result<()> {
        self.recovery.closing.store(true, Ordering::Release);
        for _ in 0..PASSES_MAX {
            while self.recovery.is_active() {
                self.health.check()?;
                self.recover_some(&mut self.recovery.pass.lock())?;
            }
            let (excess, incomplete) = {
                let mut known = self.recovery.known.lock();
                (known.take_excess(), known.incomplete)
            };
            for (ino, excess) in excess {
                self.lower_links(InodeNo(ino), excess)?;
            }
            if !incomplete {
                return Ok(());
            }
            self.settle()?;
            self.begin_again();
        }
        self.health.fail("what a crash left could not be returned; check the volume (moafs fsck, e2fsck)");
        self.health.check()
    }

    fn begin_again(&self) {
        self.alloc.watch_again();
        let recovery = &self.recovery;
        *recovery.known.lock() = Known::new(&self.geo, self.directories_stored());
        *recovery.pass.lock() = Pass::new();
        recovery.may_change.store(false, Ordering::Release);
        recovery.settled.store(false, Ordering::Release);
        recovery.active.store(true, Ordering::Release);
    }

    fn directories_stored(&self) -> Vec<u32> {
        self.geo.all_groups().map(|group| self.alloc.counts(group).directories).collect()
    }

    /// Runs one step of the pass. The metadata that it reads do not stay in memory.
    fn recover_some(&self, pass: &mut Pass) -> Result<()> {
        let cached = self.meta.memory().max(CACHED_BYTES_MIN);
        let mut left = STEP_COST;
        let mut stepped = self.look_for_exchanges(pass);
        while left > 0 && pass.phase != Phase::Done && stepped.is_ok() {
            stepped = self.advance(pass).map(|cost| left = left.saturating_sub(cost.max(1)));
        }
        self.meta.shrink(cached);
        self.health.watch(stepped)?;
        if pass.phase == Phase::Done {
            self.alloc.stop_watching();
            self.recovery.active.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Does the next piece of work and returns its cost, in inodes.
    fn advance(&self, pass: &mut Pass) -> Result<u32> {
        let next = |group: GroupNo| Some(GroupNo(group.0 + 1)).filter(|g| g.0 < self.geo.groups);
        match pass.phase {
            Phase::Slots(group) => {
                let cost = self.note_slots(group)?;
                pass.phase = next(group).map_or(Phase::Names, Phase::Slots);
                Ok(cost)
            }
            Phase::Names => {
                if !self.read_next_directory()? {
                    pass.phase = Phase::Mend;
                }
                Ok(DIRECTORY_COST)
            }
            Phase::Mend => {
                if pass.exchanges && self.end_exchanges()? {
                    self.recovery.known.lock().forget_names();
                    *pass = Pass::new();
                    return Ok(STEP_COST);
                }
                self.end_renames()?;
                self.mend_directories()?;
                pass.phase = Phase::NamelessDirectories;
                self.recovery.settled.store(true, Ordering::Release);
                self.recovery.may_change.store(true, Ordering::Release);
                Ok(STEP_COST)
            }
            Phase::NamelessDirectories => {
                self.free_nameless_directories(pass)?;
                pass.phase = Phase::NamelessFiles(GroupNo(0));
                Ok(STEP_COST)
            }
            Phase::NamelessFiles(group) => {
                self.free_nameless_files(group, pass)?;
                pass.phase = next(group).map_or(Phase::Maps(GroupNo(0), 0), Phase::NamelessFiles);
                Ok(GROUP_COST)
            }
            Phase::Maps(group, from) => {
                let (cost, to) = self.note_maps(group, from)?;
                pass.phase = match (to, next(group)) {
                    (Some(index), _) => Phase::Maps(group, index),
                    (None, Some(group)) => Phase::Maps(group, 0),
                    (None, None) => Phase::References,
                };
                Ok(cost)
            }
            Phase::References => {
                if !self.correct_some_references()? {
                    pass.phase = Phase::Blocks(GroupNo(0));
                }
                Ok(GROUP_COST)
            }
            Phase::Blocks(group) => {
                self.free_unowned(group)?;
                pass.phase = next(group).map_or(Phase::Done, Phase::Blocks);
                Ok(GROUP_COST)
            }
            Phase::Done => Ok(STEP_COST),
        }
    }
}
