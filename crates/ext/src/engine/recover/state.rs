//! The progress of recovery.

use std::sync::Arc;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};
use moafs_runtime::{Rt, lock};

use super::known::Known;
use super::references::WrongReferences;
use crate::format::{Geometry, GroupNo, InodeNo};
use crate::meta::Level;

/// The cost of searching a group's bitmap, in inodes that are looked at.
pub(super) const GROUP_COST: u32 = 128;
/// Number of locks for looking at inodes: one for each remainder of an inode number divided by this.
const TURNS: usize = 64;

/// The next work of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Slots(GroupNo),
    Names,
    Mend,
    NamelessDirectories,
    NamelessFiles(GroupNo),
    Maps(GroupNo, u32),
    References,
    Blocks(GroupNo),
    Done,
}

/// The progress of the pass over the volume.
pub(super) struct Pass {
    pub(super) phase: Phase,
    /// True if the crash interrupted exchanges: no change may be made before they are ended.
    pub(super) exchanges: bool,
    /// The level at which the nameless directories are gone: the inodes named in them go after that.
    pub(super) unnamed: Level,
    /// True if a nameless directory has to stay, so that the inodes it names must stay as well.
    pub(super) kept: bool,
}

impl Pass {
    pub(super) fn new() -> Pass {
        Pass { phase: Phase::Slots(GroupNo(0)), exchanges: false, unnamed: Level::NONE, kept: false }
    }
}

/// The state of recovery, and its notes. Locks, to be taken in this order: `pass`, `renames`, a turn,
/// `facts`, the index of a directory, `known`.
pub(in crate::engine) struct Recovery {
    /// True if the volume was left by a crash.
    pub(super) needed: bool,
    pub(super) active: AtomicBool,
    /// True once interrupted exchanges were looked for, and ended: names may change.
    pub(super) may_change: AtomicBool,
    /// True once each directory has one name and the right `..`: directories may be moved and removed.
    pub(super) settled: AtomicBool,
    /// True while the volume is being closed: inodes that callers still hold do not matter any more.
    pub(super) closing: AtomicBool,
    pub(super) pass: lock::Mutex<Pass>,
    pub(super) turns: [lock::Mutex<()>; TURNS],
    pub(super) facts: lock::Mutex<()>,
    /// Held by the task that ends an interrupted rename.
    pub(super) renames: lock::Mutex<()>,
    pub(super) known: Mutex<Known>,
}

impl Recovery {
    pub(in crate::engine) fn new(rt: &Rt, geo: &Geometry, directories: Vec<u32>, needed: bool) -> Recovery {
        Recovery {
            needed,
            active: AtomicBool::new(needed),
            may_change: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            pass: lock::Mutex::new(Arc::clone(rt), Pass::new()),
            turns: std::array::from_fn(|_| lock::Mutex::new(Arc::clone(rt), ())),
            facts: lock::Mutex::new(Arc::clone(rt), ()),
            renames: lock::Mutex::new(Arc::clone(rt), ()),
            known: Mutex::new(Known::new(geo, directories)),
        }
    }

    /// Returns true if the volume was unclean when it was mounted.
    pub(in crate::engine) fn was_needed(&self) -> bool {
        self.needed
    }

    /// Returns true while leaks may be left.
    pub(in crate::engine) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Returns true if directories must not be moved or removed yet.
    pub(in crate::engine) fn is_unsettled(&self) -> bool {
        self.is_active() && !self.settled.load(Ordering::Acquire)
    }

    /// Notes that an inode has just been made. Links that its number's last owner had too many do
    /// not count any more, even after the pass has ended.
    pub(in crate::engine) fn note_new(&self, ino: InodeNo) {
        if self.needed {
            self.known.lock().set_new(ino.0);
        }
    }

    /// Returns true if all facts of an inode have been noted that a change needs.
    pub(in crate::engine) fn may_change(&self, ino: InodeNo) -> bool {
        let known = || {
            let known = self.known.lock();
            known.is_mapped(ino.0) || known.visiting.contains(&ino.0)
        };
        !self.is_active() || known()
    }

    /// Returns true if all names in a directory have been noted that a change needs.
    pub(in crate::engine) fn names_may_change(&self, ino: InodeNo) -> bool {
        !self.is_active() || self.known.lock().is_read(ino.0)
    }

    /// Returns true if an inode may still have blocks beyond its end that the crash left: they are
    /// no part of it.
    pub(in crate::engine) fn may_overhang(&self, ino: InodeNo) -> bool {
        self.is_active() && !self.known.lock().is_mapped(ino.0)
    }

    /// Returns true if interrupted exchanges have been ended, and, for `directories`, each
    /// directory has one name.
    pub(in crate::engine) fn is_settled(&self, directories: bool) -> bool {
        let settled = if directories { &self.settled } else { &self.may_change };
        !self.is_active() || settled.load(Ordering::Acquire)
    }

    /// Returns true if recovery has noted that an inode gives up its reference to an attribute block, at the level
    /// `needs`; false if the block's number of references is to be changed at once. To be called with the lock of
    /// shared blocks held.
    pub(in crate::engine) fn defers_release(&self, block: u64, needs: Level) -> bool {
        self.is_active() && self.known.lock().references.defer(block, needs)
    }

    /// Takes the correction of an attribute block, with the lock of shared blocks held: from then on its number of
    /// references is right.
    pub(in crate::engine) fn take_wrong_references(&self, block: u64) -> Option<WrongReferences> {
        self.known.lock().references.take(block)
    }

    /// Returns the bytes of memory that recovery takes.
    pub(in crate::engine) fn memory(&self) -> usize {
        if self.is_active() { self.known.lock().memory() } else { 0 }
    }

    pub(super) fn turn(&self, ino: InodeNo) -> lock::MutexGuard<'_, ()> {
        self.turns[ino.0 as usize % TURNS].lock()
    }
}
