//! Unlinked inodes that are not in use any more: their blocks and numbers go back to the format.
//!
//! `unlink` and `forget` only enqueue; the work is done in the background (and at close, when space is short, and by
//! callers that remove names while many wait): dirty pages are dropped unwritten, blocks leave in bounded ops, then the
//! number is free. Reaping takes the inode's lock, marks it dead where holds are counted, and from then on a caller
//! that still has it sees a stale handle.
//!
//! A removed file is free space for `statfs(2)` from the moment on that no program uses it, however late the work is:
//! what reaping will give back counts as free ([`Reaper::reapable`]). While an op moves blocks from the file to the
//! free ones they may be in neither number, or in both; so they may be while a write that was under way when the file
//! was removed gets its place. So each such step shares a lock, which is taken exclusively to read the numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::Ordering;
use moafs_runtime::lock::{ReadGuard, RwLock};
use moafs_runtime::{Event, Rt, Time};

use crate::error::Result;
use crate::format::{Admission, Format, FormatOp, OpKind, Progress};
use crate::inode::{Inode, Shared};
use crate::layer::layer;
use crate::op::Op;
use crate::page_cache::PageCache;
use crate::types::{Ino, Lbn};
use crate::unmap::{LBN_END, UNMAP_BLOCKS_MAX};

/// Unused unlinked inodes that may wait before the syncer is woken early.
const WAITING_MAX: usize = 128;

/// Unused unlinked inodes that may wait before callers that remove names reap some: each takes memory, and with many of
/// them the next mount takes long after a crash.
const SURPLUS_ABOVE: usize = 4096;

/// Inodes that such a caller reaps: more than it adds, so that the others become fewer.
const SURPLUS_REAPED: usize = 2;

/// The pause after which an orphan is tried again that could not be reaped since the device cannot read what belongs to
/// it. A bad sector takes long, and callers that are short of space do not wait for it.
const RETRY: Duration = Duration::from_secs(5);

/// The most removed files of which a caller that asks for free space finds out whether they are in use: each costs a
/// call to the kernel. The others count as used until they are forgotten.
const ASKED_MAX: usize = 1024;

/// Inodes without a name, by number. Those still held wait for their last `forget`.
struct ReapQueue<N> {
    orphans: Mutex<BTreeMap<Ino, Arc<Inode<N>>>>,
    ripe: Mutex<Ripe<N>>,
    /// Signalled when an inode has been reaped, or turned out to be in use.
    ended: Event,
    /// Shared by the steps that give blocks or a number back to the format, and by those that give written blocks to
    /// a file.
    steps: RwLock<()>,
}

/// Orphans that were not held when last looked at. A leaf.
struct Ripe<N> {
    /// The waiting orphans, each with the blocks that it gives back. For one with writes under way these may be counted
    /// between steps only; it has none here.
    waiting: BTreeMap<Ino, Option<u64>>,
    /// The counted blocks of all waiting orphans.
    blocks: u64,
    /// The waiting orphans whose blocks are not counted.
    uncounted: BTreeSet<Ino>,
    /// The orphans being reaped now.
    reaping: BTreeMap<Ino, Arc<Inode<N>>>,
    /// The waiting orphans that could not be reaped, each with the time from which on it is tried again.
    unreadable: BTreeMap<Ino, Time>,
}

impl<N> Ripe<N> {
    /// Returns true if an orphan was held when last looked at.
    fn lacks(&self, ino: &Ino) -> bool {
        !self.waiting.contains_key(ino) && !self.reaping.contains_key(ino)
    }

    /// Has an orphan wait, which may be waiting already.
    fn wait(&mut self, ino: Ino, blocks: Option<u64>) {
        self.take(ino);
        self.waiting.insert(ino, blocks);
        match blocks {
            Some(blocks) => self.blocks += blocks,
            None => drop(self.uncounted.insert(ino)),
        }
    }

    /// Returns the first waiting orphan that no task is looking at, and that may be tried now.
    fn next(&self, now: Time) -> Option<Ino> {
        let may_go =
            |ino: &&Ino| !self.reaping.contains_key(ino) && self.unreadable.get(ino).is_none_or(|from| *from <= now);
        self.waiting.keys().find(may_go).copied()
    }

    /// Ends the waiting of an orphan.
    fn take(&mut self, ino: Ino) {
        match self.waiting.remove(&ino) {
            Some(Some(blocks)) => self.blocks -= blocks,
            Some(None) => drop(self.uncounted.remove(&ino)),
            None => {}
        }
    }
}

impl<N> ReapQueue<N> {
    fn new(rt: Rt) -> Self {
        let ripe = Ripe {
            waiting: BTreeMap::new(),
            blocks: 0,
            uncounted: BTreeSet::new(),
            reaping: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        };
        ReapQueue {
            orphans: Mutex::new(BTreeMap::new()),
            ripe: Mutex::new(ripe),
            ended: Event::new(),
            steps: RwLock::new(rt, ()),
        }
    }
}

/// The space that reaping is going to give back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reapable {
    pub(crate) blocks: u64,
    pub(crate) inodes: u64,
}

/// The reaper of a volume.
pub(crate) struct Reaper<F: Format> {
    page_cache: PageCache<F>,
    reap_queue: ReapQueue<F::Node>,
}

layer!(Reaper over page_cache: PageCache);

impl<F: Format> Reaper<F> {
    pub(crate) fn new(page_cache: PageCache<F>) -> Reaper<F> {
        let reap_queue = ReapQueue::new(Rt::clone(&page_cache.rt));
        Reaper { page_cache, reap_queue }
    }

    /// Notes that a name of `inode` is gone; if it was the last, the inode is to be reaped once it is not held.
    pub(crate) fn note_unlinked(&self, inode: &Shared<F>) {
        if inode.nlink() > 0 {
            return;
        }
        {
            let mut orphans = self.reap_queue.orphans.lock();
            if inode.check_alive().is_err() {
                // Reaped since the caller looked: its number may belong to another file by now.
                return;
            }
            orphans.insert(inode.ino, Arc::clone(inode));
        }
        self.ripen(inode.ino);
    }

    pub(crate) fn forget(&self, ino: Ino, holds: u64) {
        if !self.table.release(ino, holds) {
            return;
        }
        if let Some(inode) = self.table.peek(ino) {
            // This includes a file that never got a name.
            self.note_unlinked(&inode);
        }
    }

    fn ripen(&self, ino: Ino) {
        if self.table.is_held(ino) {
            return;
        }
        let inode = self.reap_queue.orphans.lock().get(&ino).cloned();
        let blocks = inode.map_or(Some(0), |inode| self.settled_blocks(&inode));
        let waiting = {
            let mut ripe = self.reap_queue.ripe.lock();
            ripe.wait(ino, blocks);
            ripe.waiting.len()
        };
        self.relieve();
        if waiting == WAITING_MAX {
            self.rt.signal(&self.syncer_wake.event);
        }
    }

    /// Returns the blocks that an orphan has, or that were promised to it.
    fn blocks_of_orphan(&self, inode: &Shared<F>) -> u64 {
        let promised = inode.pages.lock().admission.blocks();
        // A damaged inode may claim more sectors than there are.
        let used = (self.format.used_sectors(&inode.node) / (self.block_bytes() / 512)).min(self.shape.blocks);
        promised + used
    }

    /// Returns the blocks that an orphan has, if no more are promised to it: writes under way then change them no more.
    fn settled_blocks(&self, inode: &Shared<F>) -> Option<u64> {
        let promised = inode.pages.lock().admission.blocks();
        (promised == 0).then(|| self.blocks_of_orphan(inode))
    }

    /// Begins a step that moves blocks between what is free, what is promised and what a file has. It may wait for the
    /// device, but not for a commit.
    pub(crate) fn step(&self) -> ReadGuard<'_, ()> {
        self.reap_queue.steps.read()
    }

    /// Calls `look` between steps: all of a removed file is either free already or [`Reaper::reapable`].
    pub(crate) fn between_steps<R>(&self, look: impl FnOnce() -> R) -> R {
        let _no_step = self.reap_queue.steps.write();
        look()
    }

    /// Returns the space that reaping is going to give back: that of all orphans that are not held, and of those held
    /// ones that are `forgotten`. To be called between steps.
    pub(crate) fn reapable(&self, forgotten: &BTreeSet<Ino>) -> Reapable {
        let (waiting, count, others) = {
            let orphans = self.reap_queue.orphans.lock();
            let ripe = self.reap_queue.ripe.lock();
            // The forgets of some may have come by now.
            let coming = forgotten.iter().filter(|ino| ripe.lacks(ino)).filter_map(|ino| orphans.get(ino));
            let uncounted = ripe.uncounted.iter().filter(|ino| !ripe.reaping.contains_key(ino));
            let uncounted = uncounted.filter_map(|ino| orphans.get(ino));
            let others: Vec<_> = ripe.reaping.values().chain(coming).chain(uncounted).cloned().collect();
            (ripe.blocks, ripe.waiting.len() - ripe.uncounted.len(), others)
        };
        let blocks = waiting + others.iter().map(|inode| self.blocks_of_orphan(inode)).sum::<u64>();
        Reapable { blocks, inodes: (count + others.len()) as u64 }
    }

    /// Returns the orphans that are held: they are in use, or their `forget` is on its way.
    pub(crate) fn held_orphans(&self) -> BTreeSet<Ino> {
        let orphans = self.reap_queue.orphans.lock();
        let ripe = self.reap_queue.ripe.lock();
        orphans.keys().filter(|ino| ripe.lacks(ino)).take(ASKED_MAX).copied().collect()
    }

    /// Returns true if there may be inodes without a name that are in use: their `forget` may be on its way.
    pub(crate) fn has_held_orphans(&self) -> bool {
        let orphans = self.reap_queue.orphans.lock();
        let ripe = self.reap_queue.ripe.lock();
        orphans.keys().any(|ino| ripe.lacks(ino))
    }

    /// Releases all holds, so that all orphans are reaped.
    pub(crate) fn release_all_orphans(&self) {
        self.retry_unreadable();
        let inos: Vec<Ino> = self.reap_queue.orphans.lock().keys().copied().collect();
        for ino in inos {
            self.table.release(ino, u64::MAX);
            self.ripen(ino);
        }
        let _ = self.reap_all();
    }

    /// Has the next reaping try the orphans that could not be read as well.
    pub(crate) fn retry_unreadable(&self) {
        self.reap_queue.ripe.lock().unreadable.clear();
    }

    /// Returns true if an orphan waits to be reaped that no task is looking at, and that can be read as far as known.
    /// On a volume that turned read-only nothing is reaped any more.
    pub(crate) fn has_ripe(&self) -> bool {
        if self.format.failed().is_some() {
            return false;
        }
        self.reap_queue.ripe.lock().next(self.rt.now()).is_some()
    }

    /// Reaps all inodes that are unlinked and unused. Level 0 only.
    ///
    /// # Errors
    /// If one has to be tried again later, since the format has no room for the op or cannot read what it needs, or if
    /// the volume turned read-only.
    pub(crate) fn reap_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        loop {
            self.check_writable()?;
            match self.reap_next() {
                Ok(true) => {}
                Ok(false) => return outcome,
                Err(error) if error.errno() == libc::ENOSPC => return Err(error),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
    }

    /// Reaps some inodes if so many wait that background work seems not to keep up: a caller that has removed a name
    /// makes up for what it adds to them. What cannot be reaped waits as before. Level 0 only.
    pub(crate) fn reap_surplus(&self) {
        let is_long = || self.reap_queue.ripe.lock().waiting.len() > SURPLUS_ABOVE;
        for _ in 0..SURPLUS_REAPED {
            if !is_long() || self.check_writable().is_err() || !matches!(self.reap_next(), Ok(true)) {
                return;
            }
        }
    }

    /// Reaps the first inode that waits and may be tried now; false if there is none.
    fn reap_next(&self) -> Result<bool> {
        let Some(inode) = self.next_ripe() else { return Ok(false) };
        match self.reap(&inode) {
            Ok(true) => drop(self.tally.reaped.fetch_add(1, Ordering::Relaxed)),
            Ok(false) => {}
            Err(error) => {
                if error.errno() != libc::ENOSPC {
                    let from = self.rt.now() + RETRY;
                    self.reap_queue.ripe.lock().unreadable.insert(inode.ino, from);
                }
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Notes that no task reaps an inode any more. One that is to be tried `again` waits as before: its number is not
    /// given out until it is freed.
    fn end_reaping(&self, inode: &Shared<F>, again: bool) {
        let blocks = if again { self.settled_blocks(inode) } else { None };
        {
            let mut orphans = self.reap_queue.orphans.lock();
            let mut ripe = self.reap_queue.ripe.lock();
            ripe.reaping.remove(&inode.ino);
            ripe.unreadable.remove(&inode.ino);
            if again {
                orphans.insert(inode.ino, Arc::clone(inode));
                ripe.wait(inode.ino, blocks);
            }
        }
        self.rt.signal(&self.reap_queue.ended);
        self.relieve();
    }

    /// Returns true if a task is giving back the space of an orphan.
    pub(crate) fn is_reaping(&self) -> bool {
        !self.reap_queue.ripe.lock().reaping.is_empty()
    }

    /// Takes the next inode to be reaped. One that another task is just finding in use is left to that task.
    fn next_ripe(&self) -> Option<Shared<F>> {
        let orphans = self.reap_queue.orphans.lock();
        let mut ripe = self.reap_queue.ripe.lock();
        loop {
            let ino = ripe.next(self.rt.now())?;
            ripe.take(ino);
            if let Some(inode) = orphans.get(&ino) {
                ripe.reaping.insert(ino, Arc::clone(inode));
                return Some(Arc::clone(inode));
            }
        }
    }

    /// Waits until the orphans that other tasks are reaping now have been reaped. Level 0 only.
    pub(crate) fn wait_for_reapers(&self) {
        let inos: Vec<Ino> = self.reap_queue.ripe.lock().reaping.keys().copied().collect();
        loop {
            let ticket = self.reap_queue.ended.ticket();
            if !inos.iter().any(|ino| self.reap_queue.ripe.lock().reaping.contains_key(ino)) {
                return;
            }
            self.rt.wait(&self.reap_queue.ended, ticket, None);
        }
    }

    /// Reaps one inode; false if it is in use (again). It is among those being reaped until this ends.
    fn reap(&self, inode: &Shared<F>) -> Result<bool> {
        let _exclusive = inode.lock.write();
        if inode.nlink() > 0 {
            self.reap_queue.orphans.lock().remove(&inode.ino);
            self.end_reaping(inode, false);
            return Ok(false);
        }
        // An inode that is marked already was left by an attempt before this one.
        if inode.check_alive().is_ok() && !self.table.condemn(inode) {
            self.end_reaping(inode, false);
            return Ok(false);
        }
        self.reap_queue.orphans.lock().remove(&inode.ino);
        loop {
            // Before the step, since `statfs(2)` waits for steps.
            self.wait_settled(inode, Lbn(0), LBN_END);
            let _step = self.step();
            if self.try_discard(inode, Lbn(0), LBN_END) {
                break;
            }
        }
        self.dirty.lock().forget_unput(inode.ino);
        loop {
            let mut admission = Admission::none();
            // Before the step as well: it may wait for a commit.
            let op = self.begin(OpKind::Unmap, &mut admission);
            let _step = self.step();
            match op.and_then(|op| self.give_back(inode, op)) {
                Ok(Progress::More) => {}
                done => {
                    // Until now it was found marked: read again, it would be a second inode with pages of its own. Its
                    // number may have been given to a new inode by now, which stays.
                    if done.is_ok() {
                        self.table.remove(inode);
                    }
                    self.end_reaping(inode, done.is_err());
                    return done.map(|_| true);
                }
            }
        }
    }

    /// Gives some of an inode's blocks back, and its number with the last of them.
    fn give_back(&self, inode: &Shared<F>, mut op: Op<'_, F>) -> Result<Progress> {
        let progress = op.unmap(&inode.node, Lbn(0), None, UNMAP_BLOCKS_MAX, true)?;
        if progress == Progress::Done {
            // A task that is just telling the format its attributes finishes first; later ones see the mark.
            let _put = inode.put.lock();
            op.inode_free(&inode.node)?;
        }
        op.end(&[inode]);
        Ok(progress)
    }
}
