//! Unlinked inodes that are not in use any more: their blocks and numbers go back to the format.
//!
//! `unlink` and `forget` only enqueue; the work is done in the background (and at close, and when
//! space is short): dirty pages are dropped unwritten, blocks leave in bounded ops, then the
//! number is free. Reaping takes the inode's lock, marks it dead where holds are counted, and from
//! then on a caller that still has it sees a stale handle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_runtime::{Event, Time};

use crate::error::Result;
use crate::format::{Admission, Format, FormatOp, OpKind, Progress};
use crate::inode::{Inode, Shared};
use crate::layer::layer;
use crate::page_cache::PageCache;
use crate::types::{Ino, Lbn};
use crate::unmap::{LBN_END, UNMAP_BLOCKS_MAX};

/// Unused unlinked inodes that may wait before the syncer is woken early.
const WAITING_MAX: usize = 128;

/// The kernel forgets a removed file that is not open within this time: a caller that asks for free space right after
/// a removal waits so long for it.
const FORGET_WITHIN: Duration = Duration::from_millis(25);

/// Inodes without a name, by number. Those still held wait for their last `forget`.
struct ReapQueue<N> {
    orphans: Mutex<BTreeMap<Ino, Arc<Inode<N>>>>,
    ripe: Mutex<Ripe<N>>,
    /// Signalled when an inode has been reaped, or turned out to be in use.
    ended: Event,
    /// The time at which a name was last removed from an inode that is still held, in nanoseconds of the runtime's
    /// clock.
    last_held: AtomicU64,
}

/// Orphans that were not held when last looked at. A leaf.
struct Ripe<N> {
    /// The waiting orphans, each with the blocks that it gives back.
    waiting: BTreeMap<Ino, u64>,
    /// The blocks of all waiting orphans.
    blocks: u64,
    /// The orphans being reaped now.
    reaping: BTreeMap<Ino, Arc<Inode<N>>>,
}

impl<N> Default for ReapQueue<N> {
    fn default() -> Self {
        let ripe = Ripe { waiting: BTreeMap::new(), blocks: 0, reaping: BTreeMap::new() };
        ReapQueue {
            orphans: Mutex::new(BTreeMap::new()),
            ripe: Mutex::new(ripe),
            ended: Event::new(),
            last_held: AtomicU64::new(0),
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
        Reaper { page_cache, reap_queue: ReapQueue::default() }
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
            self.reap_queue.last_held.store(self.rt.now().0, Ordering::Relaxed);
            return;
        }
        let inode = self.reap_queue.orphans.lock().get(&ino).cloned();
        let blocks = inode.map_or(0, |inode| self.blocks_of_orphan(&inode));
        let waiting = {
            let mut ripe = self.reap_queue.ripe.lock();
            ripe.blocks += blocks;
            ripe.blocks -= ripe.waiting.insert(ino, blocks).unwrap_or(0);
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

    /// Returns the space that reaping is going to give back, of all orphans that are not held.
    pub(crate) fn reapable(&self) -> Reapable {
        let (waiting, count, reaping) = {
            let ripe = self.reap_queue.ripe.lock();
            (ripe.blocks, ripe.waiting.len(), ripe.reaping.values().cloned().collect::<Vec<_>>())
        };
        let blocks = waiting + reaping.iter().map(|inode| self.blocks_of_orphan(inode)).sum::<u64>();
        Reapable { blocks, inodes: (count + reaping.len()) as u64 }
    }

    /// Returns true if there may be inodes without a name that are in use: their `forget` may be on its way.
    pub(crate) fn has_held_orphans(&self) -> bool {
        self.has_held_orphan_of(|_| true)
    }

    fn has_held_orphan_of(&self, is_wanted: impl Fn(Ino) -> bool) -> bool {
        let orphans = self.reap_queue.orphans.lock();
        let ripe = self.reap_queue.ripe.lock();
        let is_held = |ino: &Ino| !ripe.waiting.contains_key(ino) && !ripe.reaping.contains_key(ino);
        orphans.keys().any(|ino| is_wanted(*ino) && is_held(ino))
    }

    /// Waits until the kernel has forgotten the files that were removed a moment ago, unless they are open. Files that
    /// are removed during the wait do not prolong it.
    pub(crate) fn wait_for_forgets(&self) {
        let until = Time(self.reap_queue.last_held.load(Ordering::Relaxed)) + FORGET_WITHIN;
        if self.rt.now() >= until {
            return;
        }
        let removed: BTreeSet<Ino> = self.reap_queue.orphans.lock().keys().copied().collect();
        let is_held = || self.has_held_orphan_of(|ino| removed.contains(&ino));
        while self.rt.now() < until && self.wait_for_relief(until, is_held) {}
    }

    /// Releases all holds, so that all orphans are reaped.
    pub(crate) fn release_all_orphans(&self) {
        let inos: Vec<Ino> = self.reap_queue.orphans.lock().keys().copied().collect();
        for ino in inos {
            self.table.release(ino, u64::MAX);
            self.ripen(ino);
        }
        self.reap_all();
    }

    /// Returns true if an orphan waits to be reaped that no task is looking at. On a volume that turned read-only
    /// nothing is reaped any more.
    pub(crate) fn has_ripe(&self) -> bool {
        if self.format.failed().is_some() {
            return false;
        }
        let ripe = self.reap_queue.ripe.lock();
        ripe.waiting.keys().any(|ino| !ripe.reaping.contains_key(ino))
    }

    /// Reaps all inodes that are unlinked and unused; false if one has to be tried again later, since the format has no
    /// room for the op, or if the volume turned read-only. Level 0 only.
    pub(crate) fn reap_all(&self) -> bool {
        while self.format.failed().is_none() {
            let Some(inode) = self.next_ripe() else { return true };
            let done = self.reap(&inode);
            if matches!(done, Ok(true)) {
                self.tally.reaped.fetch_add(1, Ordering::Relaxed);
            }
            // Any other error has turned the volume read-only, and is kept there.
            let again = done.is_err_and(|error| error.errno() == libc::ENOSPC);
            self.end_reaping(&inode, again);
            if again {
                return false;
            }
        }
        false
    }

    /// Notes that no task reaps an inode any more. One that is to be tried `again` waits as before: its number is not
    /// given out until it is freed.
    fn end_reaping(&self, inode: &Shared<F>, again: bool) {
        let blocks = if again { self.blocks_of_orphan(inode) } else { 0 };
        {
            let mut orphans = self.reap_queue.orphans.lock();
            let mut ripe = self.reap_queue.ripe.lock();
            ripe.reaping.remove(&inode.ino);
            if again {
                orphans.insert(inode.ino, Arc::clone(inode));
                ripe.blocks += blocks;
                ripe.blocks -= ripe.waiting.insert(inode.ino, blocks).unwrap_or(0);
            }
        }
        self.rt.signal(&self.reap_queue.ended);
    }

    /// Takes the next inode to be reaped. One that another task is just finding in use is left to that task.
    fn next_ripe(&self) -> Option<Shared<F>> {
        let orphans = self.reap_queue.orphans.lock();
        let mut ripe = self.reap_queue.ripe.lock();
        loop {
            let ino = ripe.waiting.keys().find(|ino| !ripe.reaping.contains_key(ino)).copied()?;
            let blocks = ripe.waiting.remove(&ino).unwrap_or(0);
            ripe.blocks -= blocks;
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

    /// Reaps one inode; false if it is in use (again).
    fn reap(&self, inode: &Shared<F>) -> Result<bool> {
        let _exclusive = inode.lock.write();
        if inode.nlink() > 0 {
            self.reap_queue.orphans.lock().remove(&inode.ino);
            return Ok(false);
        }
        // An inode that is marked already was left by an attempt before this one.
        if inode.check_alive().is_ok() && !self.table.condemn(inode) {
            return Ok(false);
        }
        self.reap_queue.orphans.lock().remove(&inode.ino);
        self.discard(inode, Lbn(0), LBN_END);
        self.dirty.lock().forget_unput(inode.ino);
        // The number may be given out again from the last op on: it leaves the table before.
        self.table.remove(inode);
        let mut progress = Progress::More;
        while progress == Progress::More {
            let mut admission = Admission::none();
            let mut op = self.begin(OpKind::Unmap, &mut admission)?;
            progress = op.unmap(&inode.node, Lbn(0), None, UNMAP_BLOCKS_MAX, true)?;
            if progress == Progress::Done {
                // A task that is just telling the format its attributes finishes first; later ones see the mark.
                let _put = inode.put.lock();
                op.inode_free(&inode.node)?;
            }
            op.end(&[inode]);
        }
        Ok(true)
    }
}
