//! After a crash of our own: returning what leaked, while the volume is in use.
//!
//! Soft updates leave leaks at most: bits set for nothing, inodes that no name leads to, link counts that are too high, blocks
//! beyond the end of a file. Recovery finds them by looking at everything once. Its one rule makes that safe beside clients:
//!
//! > **An inode is looked at before its first change, the names of a directory before theirs.**
//!
//! Whoever comes first does it, the background pass or the op that is about to change it ([`Ext::touch`]); a lock per inode makes the
//! other wait. So what recovery knows is the volume *as it was at mount*, one moment, however long the pass takes:
//!
//! * A block whose bit was set at mount and that no inode owned then is a leak: no pointer leads to it, and since its bit is set
//!   nothing can have been given it. Blocks handed out or freed since are told apart by the allocator's notes.
//! * An inode without a name then is a leak, unless it is held (by number) or was changed since: it is left, and returned at unmount.
//! * Links minus names of an inode never changes by an op: what was too many at mount is subtracted when the volume is closed.
//!
//! | phase | what it does |
//! |---|---|
//! | `Slots` | link counts and kinds of all inodes; deleted ones whose bit is still set |
//! | `Names` | every directory that the root leads to is read |
//! | `Mend` | interrupted exchanges; directories with two names; `..` that is wrong |
//! | `Nameless` | inodes without names are deleted, directories before what is in them |
//! | `Maps` | which blocks do inodes own? Blocks beyond the end and wrong block counts are mended |
//! | `Blocks` | blocks that are not owned become free |
//!
//! Directories are neither moved nor removed before `Mend` is through, so what is reachable from the root does not change under the
//! pass over names. If the crash interrupted an exchange, nothing is changed before that.
//!
//! What recovery does is ordered like any other change: a crash meanwhile leaves what the crash before it left, or less.

mod free;
mod known;
mod names;
mod visit;

use std::sync::Arc;
use std::time::Duration;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};
use moafs_runtime::{Rt, Time, lock};
use moafs_vfs::Result;
use moafs_vfs::format::Idle;

use self::known::Known;
use super::{Ext, Incore};
use crate::format::{Geometry, GroupNo, InodeNo};
use crate::meta::Level;

/// About how many inodes are looked at in one step.
const STEP_COST: u32 = 2048;
/// What reading a directory, or searching a group's bitmap, costs in comparison.
const DIRECTORY_COST: u32 = 32;
const GROUP_COST: u32 = 128;
/// Pause between steps while the volume is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Recovery drops metadata that it has read beyond what was cached before, but not below this.
const CACHED_BYTES_MIN: usize = 4 << 20;
/// Passes over the volume at unmount: a second one returns what had to be left beside clients, and then nothing has to be left.
const PASSES_MAX: u32 = 3;
/// Inodes are looked at one at a time for each of so many remainders of their numbers.
const TURNS: usize = 64;

/// What the pass does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Slots(GroupNo),
    Names,
    Mend,
    NamelessDirectories,
    NamelessFiles(GroupNo),
    Maps(GroupNo, u32),
    Blocks(GroupNo),
    Done,
}

/// How far the pass over the volume is.
struct Pass {
    phase: Phase,
    /// The crash interrupted exchanges: nothing may change before they are ended.
    exchanges: bool,
    /// The level at which the nameless directories are gone: what is named in them goes after that.
    unnamed: Level,
    /// A nameless directory has to stay, so what it names must, too.
    kept: bool,
}

impl Pass {
    fn new() -> Pass {
        Pass { phase: Phase::Slots(GroupNo(0)), exchanges: false, unnamed: Level::NONE, kept: false }
    }
}

/// Whether leaks are still to be returned, and what is known. Locks, to be taken in this order: `pass`, a turn, `facts`, the index of a
/// directory, `known`.
pub(super) struct Recovery {
    /// The volume was left by a crash.
    needed: bool,
    active: AtomicBool,
    /// Interrupted exchanges were looked for, and ended: names may change.
    may_change: AtomicBool,
    /// Each directory has one name and the right `..`: directories may be moved and removed.
    settled: AtomicBool,
    /// The volume is being closed: nobody holds an inode that matters.
    closing: AtomicBool,
    pass: lock::Mutex<Pass>,
    turns: [lock::Mutex<()>; TURNS],
    facts: lock::Mutex<()>,
    known: Mutex<Known>,
}

impl Recovery {
    pub(super) fn new(rt: &Rt, geo: &Geometry, directories: Vec<u32>, needed: bool) -> Recovery {
        Recovery {
            needed,
            active: AtomicBool::new(needed),
            may_change: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            pass: lock::Mutex::new(Arc::clone(rt), Pass::new()),
            turns: std::array::from_fn(|_| lock::Mutex::new(Arc::clone(rt), ())),
            facts: lock::Mutex::new(Arc::clone(rt), ()),
            known: Mutex::new(Known::new(geo, directories)),
        }
    }

    /// True while leaks may be left.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// True if directories must not be moved or removed yet.
    pub(super) fn is_unsettled(&self) -> bool {
        self.is_active() && !self.settled.load(Ordering::Acquire)
    }

    /// An inode has just been made. That its number's last owner had links too many is of no interest any more, even after the pass has
    /// ended.
    pub(super) fn note_new(&self, ino: InodeNo) {
        if self.needed {
            self.known.lock().set_new(ino.0);
        }
    }

    /// True if all has been noted of an inode that a change needs.
    pub(super) fn may_change(&self, ino: InodeNo) -> bool {
        let known = || {
            let known = self.known.lock();
            known.is_mapped(ino.0) || known.visiting.contains(&ino.0)
        };
        !self.is_active() || known()
    }

    /// The same of a directory's names.
    pub(super) fn names_may_change(&self, ino: InodeNo) -> bool {
        !self.is_active() || self.known.lock().is_read(ino.0)
    }

    /// True if an inode may still have blocks beyond its end that the crash left: they are no part of it.
    pub(super) fn may_overhang(&self, ino: InodeNo) -> bool {
        self.is_active() && !self.known.lock().is_mapped(ino.0)
    }

    /// True if interrupted exchanges have been ended, and directories have one name each if `directories` are concerned.
    pub(super) fn is_settled(&self, directories: bool) -> bool {
        let settled = if directories { &self.settled } else { &self.may_change };
        !self.is_active() || settled.load(Ordering::Acquire)
    }

    /// Bytes of memory that recovery takes.
    pub(super) fn memory(&self) -> usize {
        if self.is_active() { self.known.lock().memory() } else { 0 }
    }

    fn turn(&self, ino: InodeNo) -> lock::MutexGuard<'_, ()> {
        self.turns[ino.0 as usize % TURNS].lock()
    }
}

impl Ext {
    /// An inode that an op has in its hands is about to change, be it its slot, its map, its names, or a name of it: recovery looks at
    /// it first.
    pub(super) fn touch(&self, node: &Incore) -> Result<()> {
        if !self.recovery.is_active() || self.recovery.known.lock().touch(node.ino.0) {
            return Ok(());
        }
        let _turn = self.recovery.turn(node.ino);
        let visited = self.visit(node.ino, true);
        self.health.watch(visited)
    }

    /// Waits until names may change: interrupted exchanges are ended first.
    pub(super) fn end_exchanges_first(&self) -> Result<()> {
        if !self.recovery.is_active() || self.recovery.may_change.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut pass = self.recovery.pass.lock();
        let looked = self.look_for_exchanges(&mut pass);
        self.health.watch(looked)?;
        drop(pass);
        if self.recovery.may_change.load(Ordering::Acquire) { Ok(()) } else { self.finish_names() }
    }

    /// Waits until directories may be moved and removed; helps the pass on. Names may go meanwhile: the caller looks them up afterwards.
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

    /// One bounded step. When it wants to be called again; never, once all leaks are returned.
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

    /// Takes recovery to its end; the volume is not in use any more. What had to be left beside clients is found by looking at
    /// everything once more.
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

    /// One step of the pass. What it reads does not stay in memory.
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

    /// Does the next piece of work and returns what it cost.
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
                    (None, None) => Phase::Blocks(GroupNo(0)),
                };
                Ok(cost)
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
