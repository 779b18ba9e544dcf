//! The state behind [`crate::Vfs`], and the functions that every call needs.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use moafs_disk::{Buf, Page, SharedDisk};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::lock::{ReadGuard, RwLock};
use moafs_runtime::{Event, Rt, Task, Timestamp};

use crate::api::{Credentials, Options};
use crate::cache::Cache;
use crate::co_read::Walks;
use crate::counters::{Counters, Tally};
use crate::dirty::Lists;
use crate::error::{Error, Result};
use crate::fill::LooseFills;
use crate::format::{CommitReason, Format, Shape, SpaceClass};
use crate::inode::{Found, Inode, Table, Unput};
use crate::pace::Pace;
use crate::pressure::Pressure;
use crate::reap::ReapQueue;
use crate::swap_space::LastAccess;
use crate::types::{Attr, Ino};

/// An inode of the format `F`, shared.
pub(crate) type Shared<F> = Arc<Inode<<F as Format>::Node>>;

/// The in-memory state of a volume.
pub(crate) struct Inner<F: Format> {
    pub(crate) format: F,
    pub(crate) shape: Shape,
    pub(crate) disk: SharedDisk,
    pub(crate) rt: Rt,
    pub(crate) options: Options,
    /// The lock of level 0. True while the volume is open.
    pub(crate) gate: RwLock<bool>,
    /// The lock of level 1. Exclusive when a directory changes its parent, shared while a call relies on
    /// the ancestors of a directory.
    pub(crate) rename: RwLock<()>,
    pub(crate) table: Table<F::Node>,
    pub(crate) cache: Cache,
    pub(crate) pace: Pace,
    pub(crate) dirty: Mutex<Lists<F::Node>>,
    pub(crate) loose_fills: LooseFills<F::Node>,
    pub(crate) walks: Walks,
    pub(crate) reap_queue: ReapQueue<F::Node>,
    pub(crate) pressure: Pressure,
    pub(crate) tally: Tally,
    /// The file block that the device was last asked for.
    pub(crate) last_access: Arc<LastAccess>,
    /// True if metadata changed since the last commit.
    pub(crate) uncommitted: AtomicBool,
    /// Time of the last call, in nanoseconds of the runtime's clock.
    pub(crate) last_call: AtomicU64,
    /// Time of the syncer's last commit, in nanoseconds of the runtime's clock.
    pub(crate) last_commit: AtomicU64,
    /// Wakes the syncer early.
    pub(crate) syncer_wake: Arc<SyncerWake>,
    pub(crate) syncer_task: Mutex<Option<Task>>,
    /// The page that holes read as.
    pub(crate) zero_page: Page,
}

/// The channel to the syncer. It outlives the volume, so that the syncer need not keep the volume alive.
pub(crate) struct SyncerWake {
    pub(crate) event: Event,
    pub(crate) stop: AtomicBool,
}

/// A running call: the volume does not close meanwhile.
pub(crate) type Entered<'a> = ReadGuard<'a, bool>;

impl<F: Format> Inner<F> {
    pub(crate) fn new(format: F, disk: SharedDisk, rt: Rt, options: Options) -> Inner<F> {
        let shape = format.shape().clone();
        let block_bytes = shape.block_size as usize;
        Inner {
            gate: RwLock::new(Arc::clone(&rt), true),
            rename: RwLock::new(Arc::clone(&rt), ()),
            table: Table::new(),
            cache: Cache::new(&options, block_bytes),
            pace: Pace::default(),
            dirty: Mutex::new(Lists::new()),
            loose_fills: LooseFills::default(),
            walks: Walks::default(),
            reap_queue: ReapQueue::default(),
            pressure: Pressure::new(&rt),
            tally: Tally::default(),
            last_access: Arc::default(),
            uncommitted: AtomicBool::new(false),
            last_call: AtomicU64::new(0),
            last_commit: AtomicU64::new(0),
            syncer_wake: Arc::new(SyncerWake { event: Event::new(), stop: AtomicBool::new(false) }),
            syncer_task: Mutex::new(None),
            zero_page: Buf::zeroed(block_bytes).freeze(),
            format,
            shape,
            disk,
            rt,
            options,
        }
    }

    /// Begins a call (level 0); fails if the volume is closed.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.last_call.store(self.rt.now().0, Ordering::Relaxed);
        self.enter_quietly()
    }

    /// Begins background work: the volume stays idle.
    pub(crate) fn enter_quietly(&self) -> Result<Entered<'_>> {
        let gate = self.gate.read();
        if *gate { Ok(gate) } else { Err(Error::Refused("the volume has been closed".into())) }
    }

    /// Begins a call that changes something.
    pub(crate) fn enter_changing(&self) -> Result<Entered<'_>> {
        let gate = self.enter()?;
        self.check_writable()?;
        self.format.settle_names()?;
        Ok(gate)
    }

    /// Returns an error if the volume does not accept changes, with the first reason.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let reason = match self.format.failed() {
            Some(reason) => reason,
            None if self.options.read_only => "it was mounted read-only".to_owned(),
            None => match &self.shape.read_only {
                Some(reason) => reason.clone(),
                None => return Ok(()),
            },
        };
        Err(Error::ReadOnly { reason })
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.shape.block_size)
    }

    /// Returns the time of day as inodes of this volume can hold it.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.clamp_time(self.rt.timestamp())
    }

    pub(crate) fn clamp_time(&self, time: Timestamp) -> Timestamp {
        let (first, last) = self.shape.time_range;
        let nanos = if self.shape.time_nanos { time.nanos } else { 0 };
        match time.secs {
            secs if secs < first => Timestamp::new(first, 0),
            secs if secs > last => Timestamp::new(last, 0),
            secs => Timestamp::new(secs, nanos),
        }
    }

    /// Returns an inode, read from the volume if need be.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Shared<F>> {
        loop {
            let ticket = self.table.load_ended.ticket();
            match self.table.find(ino) {
                Found::Ready(inode) => return inode.check_alive().map(|()| inode),
                Found::Loading => {
                    self.rt.wait(&self.table.load_ended, ticket, None);
                }
                Found::LoadIt => return self.load(ino),
            }
        }
    }

    /// Puts an inode that the format has loaded into the table.
    pub(crate) fn insert_loaded(&self, ino: Ino, attr: Attr, node: F::Node) -> Shared<F> {
        let inode = Inode::new(&self.rt, ino, self.shape.root, attr, node);
        inode.state.lock().may_overhang = !self.shape.frees_overhang;
        self.table.insert_loaded(Arc::new(inode))
    }

    fn load(&self, ino: Ino) -> Result<Shared<F>> {
        let loaded = self.format.load(ino);
        let outcome = match loaded {
            Ok((attr, node)) => {
                let inode = self.insert_loaded(ino, attr, node);
                self.reclaim_inodes();
                Ok(inode)
            }
            Err(error) => {
                self.table.load_failed(ino);
                Err(error)
            }
        };
        self.rt.signal(&self.table.load_ended);
        outcome
    }

    /// Returns a directory's inode; ENOTDIR for anything else.
    pub(crate) fn directory(&self, ino: Ino) -> Result<Shared<F>> {
        let inode = self.inode(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Error::Posix(libc::ENOTDIR)) }
    }

    /// Returns the class of space that the caller may use.
    pub(crate) fn space_class(who: &Credentials) -> SpaceClass {
        if who.uid == 0 { SpaceClass::Root } else { SpaceClass::User { uid: who.uid, gid: who.gid } }
    }

    /// Commits, and forgets what evicted inodes were waiting for.
    pub(crate) fn commit(&self, why: CommitReason) -> Result<()> {
        let remembered = self.table.remembered();
        self.uncommitted.store(false, Ordering::Relaxed);
        let done = self.format.commit(why);
        match &done {
            Ok(()) => self.table.committed(&remembered),
            Err(_) => self.uncommitted.store(true, Ordering::Relaxed),
        }
        done
    }

    /// Notes that attributes changed without telling the format yet.
    pub(crate) fn unput(&self, inode: &Shared<F>, what: Unput, change: impl FnOnce(&mut Attr)) {
        let mut state = inode.state.lock();
        change(&mut state.attr);
        state.note_change(what);
        self.list_unput(&mut state, inode);
    }

    /// Takes one more hold on an inode that exists.
    pub(crate) fn hold(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        self.table.hold(ino);
        // Reaping marks the inode where holds are counted: either it sees this hold, or this call sees its mark.
        let alive = inode.check_alive();
        if alive.is_err() {
            self.table.release(ino, 1);
        }
        alive
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            cached_bytes: self.cache.cached_bytes() as u64,
            dirty_bytes: self.cache.dirty_bytes() as u64,
            metadata_bytes: self.format.memory() as u64,
            inodes_now: self.table.decoded() as u64,
            ..self.tally.totals()
        }
    }
}
