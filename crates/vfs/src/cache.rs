//! The memory budget and the replacement of clean pages.
//!
//! One queue for the whole volume, second chance: a page enters at the warm end when it becomes
//! clean, leaves at the cold end, and goes round once more if it was used meanwhile. Dirty pages
//! are never in it, so a reader evicts clean pages only, and finding one costs no search.
//! An entry is valid while the page still bears its stamp; stale ones are skipped.
//!
//! Charged to the budget: file pages, the format's metadata, decoded inodes.

use moafs_runtime::leaf::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Time};
use smallvec::SmallVec;

use crate::api::Options;
use crate::format::Format;
use crate::inner::{Inner, Shared};
use crate::inode::INODE_BYTES;
use crate::pages::{Delta, Evicted};
use crate::types::{Ino, Lbn, LbnRange};

/// Stale entries that the queue may hold in addition to twice the number of pages.
const STALE_ENTRIES_MAX: usize = 4096;

/// Memory that a cached page is charged with beside its block, in bytes: its slot, its counts, its entries in queues.
const PAGE_OVERHEAD_BYTES: usize = 192;

/// Entries of the replacement queue that are looked at in one step.
const EVICT_BATCH: usize = 64;

/// The fewest inodes that one eviction looks for.
const INODES_AT_LEAST: usize = 16;

/// Blocks that may be dirty however small the budget is.
const DIRTY_BLOCKS_MIN: usize = 16;

/// The budget may not fall below this many bytes: one large request and its metadata.
const BUDGET_BYTES_MIN: usize = 256 << 10;

#[derive(Clone, Copy)]
struct Entry {
    ino: Ino,
    at: Lbn,
    stamp: u64,
    /// The time at which it entered; zero at the cold end.
    since: Time,
}

/// The end of the replacement queue at which a page enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The end from which pages are evicted next.
    Cold,
    /// The end from which pages are evicted last.
    Warm,
}

/// The memory account of a volume's cached blocks, and their replacement queue.
pub(crate) struct Cache {
    block_bytes: usize,
    budget_bytes: AtomicUsize,
    dirty_percent: usize,
    dirty_bytes_limit: Option<usize>,
    paced: bool,
    cached: AtomicI64,
    dirty: AtomicI64,
    /// Bytes in write requests that have not completed.
    underway: AtomicUsize,
    queue: Mutex<VecDeque<Entry>>,
    stamp: AtomicU64,
    /// Signalled when dirty pages have become clean.
    pub(crate) room: Event,
}

impl Cache {
    pub(crate) fn new(options: &Options, block_bytes: usize) -> Cache {
        Cache {
            block_bytes,
            budget_bytes: AtomicUsize::new(options.cache_bytes.max(BUDGET_BYTES_MIN)),
            dirty_percent: usize::from(options.dirty_percent.clamp(1, 90)),
            dirty_bytes_limit: options.dirty_bytes_max,
            paced: options.paced,
            cached: AtomicI64::new(0),
            dirty: AtomicI64::new(0),
            underway: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
            stamp: AtomicU64::new(1),
            room: Event::new(),
        }
    }

    pub(crate) fn account(&self, delta: Delta) {
        if delta.cached != 0 {
            self.cached.fetch_add(delta.cached, Ordering::Relaxed);
        }
        if delta.dirty != 0 {
            self.dirty.fetch_add(delta.dirty, Ordering::Relaxed);
        }
    }

    /// Adds bytes that are about to be written.
    pub(crate) fn submitted(&self, bytes: usize) {
        self.underway.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that are written, or could not be.
    pub(crate) fn completed(&self, bytes: usize) {
        self.underway.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in write requests that have not completed: they will be clean soon, unless written to again.
    pub(crate) fn underway_bytes(&self) -> usize {
        self.underway.load(Ordering::Relaxed)
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cached.load(Ordering::Relaxed).max(0) as usize * self.block_bytes
    }

    /// Returns the bytes that the cached pages are charged with.
    fn charged_bytes(&self) -> usize {
        self.cached.load(Ordering::Relaxed).max(0) as usize * (self.block_bytes + PAGE_OVERHEAD_BYTES)
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty.load(Ordering::Relaxed).max(0) as usize * self.block_bytes
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Returns the limit of dirty data in bytes, above which writers wait.
    pub(crate) fn dirty_bytes_max(&self) -> usize {
        let share = self.budget_bytes() / 100 * self.dirty_percent;
        share.min(self.dirty_bytes_limit.unwrap_or(usize::MAX)).max(DIRTY_BLOCKS_MIN * self.block_bytes)
    }

    /// Returns the bytes of dirty data above which write-back begins in the background.
    pub(crate) fn dirty_bytes_background(&self) -> usize {
        if self.paced { self.dirty_bytes_max() / 8 } else { self.dirty_bytes_max() / 4 * 3 }
    }

    /// Returns a stamp for a page that is about to enter the queue.
    pub(crate) fn next_stamp(&self) -> u64 {
        self.stamp.fetch_add(1, Ordering::Relaxed)
    }

    fn front(&self) -> Option<Entry> {
        self.queue.lock().front().copied()
    }

    fn drop_front(&self, stamp: u64) {
        let mut queue = self.queue.lock();
        if queue.front().is_some_and(|entry| entry.stamp == stamp) {
            queue.pop_front();
        }
    }
}

impl<F: Format> Inner<F> {
    /// Lets stamped pages of one file enter the replacement queue.
    pub(crate) fn enqueue(&self, ino: Ino, stamped: &[(Lbn, u64)], end: End) {
        let now = self.rt.now();
        let mut queue = self.cache.queue.lock();
        for &(at, stamp) in stamped {
            match end {
                End::Cold => queue.push_front(Entry { ino, at, stamp, since: Time(0) }),
                End::Warm => queue.push_back(Entry { ino, at, stamp, since: now }),
            }
        }
    }

    /// Returns the time since which the clean page that leaves next has been waiting; `None` if there is none.
    pub(crate) fn coldest(&self) -> Option<Time> {
        loop {
            let entry = self.cache.front()?;
            if self.is_current(&entry) {
                return Some(entry.since);
            }
            self.cache.drop_front(entry.stamp);
        }
    }

    fn is_current(&self, entry: &Entry) -> bool {
        let inode: Option<Arc<_>> = self.table.peek(entry.ino);
        inode.is_some_and(|i| i.pages.lock().get(entry.at).is_some_and(|slot| slot.stamp == entry.stamp))
    }

    /// Makes the clean pages of `range` the next to be evicted.
    pub(crate) fn chill(&self, inode: &Shared<F>, range: LbnRange) {
        let stamped = inode.pages.lock().chill(range, || self.cache.next_stamp());
        self.enqueue(inode.ino, &stamped, End::Cold);
    }

    /// Returns the memory in use, in bytes: pages, metadata, inodes.
    pub(crate) fn used_bytes(&self) -> usize {
        self.cache.charged_bytes() + self.format.memory() + self.table.decoded() * INODE_BYTES
    }

    /// Brings memory back within the budget, as far as clean pages and metadata can be dropped. Takes leaf locks only:
    /// may be called with inode locks held.
    pub(crate) fn reclaim(&self) {
        self.reclaim_to(self.cache.budget_bytes());
    }

    /// Reclaims as [`Self::reclaim`] does, down to `target` bytes.
    pub(crate) fn reclaim_to(&self, target: usize) {
        self.trim_queue();
        if self.used_bytes() <= target {
            return;
        }
        let inode_bytes = self.table.decoded() * INODE_BYTES;
        if inode_bytes > target / 4 {
            self.table.evict((inode_bytes - target / 4) / INODE_BYTES + INODES_AT_LEAST);
        }
        // Metadata may keep half of it, and shrink to that before pages are dropped.
        if self.format.memory() > target / 2 {
            self.format.shrink(target / 2);
        }
        loop {
            let over = self.used_bytes().saturating_sub(target);
            if over == 0 || !self.evict_some(over.div_ceil(self.shape.block_size as usize)) {
                break;
            }
        }
        let over = self.used_bytes().saturating_sub(target);
        if over > 0 {
            let keep = self.format.memory().saturating_sub(over).max(target / 8);
            self.format.shrink(keep);
        }
    }

    /// Reclaims as [`Self::reclaim_to`] does, and also evicts all unused inodes.
    pub(crate) fn shrink_to(&self, target: usize) {
        self.reclaim_to(target);
        let over = self.used_bytes().saturating_sub(target);
        if over > 0 {
            self.table.evict_thoroughly(over.div_ceil(INODE_BYTES));
        }
    }

    /// Looks at the coldest entries, `count` at most, and drops their pages; false if there are none.
    fn evict_some(&self, count: usize) -> bool {
        let batch: SmallVec<[Entry; EVICT_BATCH]> = {
            let mut queue = self.cache.queue.lock();
            let count = count.min(EVICT_BATCH).min(queue.len());
            queue.drain(..count).collect()
        };
        batch.chunk_by(|one, two| one.ino == two.ino).for_each(|of_one| self.evict_of_one(of_one));
        !batch.is_empty()
    }

    /// Drops the pages of one file that the entries name.
    fn evict_of_one(&self, entries: &[Entry]) {
        let Some(inode) = self.table.peek(entries[0].ino) else { return };
        let mut again: SmallVec<[(Lbn, u64); EVICT_BATCH]> = SmallVec::new();
        let (mut dropped, mut unasked) = (0, 0);
        {
            let mut pages = inode.pages.lock();
            for entry in entries {
                match pages.evict(entry.at, entry.stamp, || self.cache.next_stamp()) {
                    Evicted::Dropped(for_nothing) => {
                        dropped += 1;
                        unasked += u64::from(for_nothing);
                    }
                    Evicted::Again(stamp) => again.push((entry.at, stamp)),
                    Evicted::Stale => {}
                }
            }
        }
        self.cache.account(Delta { cached: -dropped, dirty: 0 });
        self.tally.evictions.fetch_add(dropped as u64, Ordering::Relaxed);
        self.co_read_wasted(unasked);
        self.enqueue(inode.ino, &again, End::Warm);
    }

    /// Drops stale entries when they outnumber the pages.
    pub(crate) fn trim_queue(&self) {
        let pages = self.cache.cached.load(Ordering::Relaxed).max(0) as usize;
        if self.cache.queue.lock().len() <= 2 * pages + STALE_ENTRIES_MAX {
            return;
        }
        let entries = std::mem::take(&mut *self.cache.queue.lock());
        let kept: VecDeque<Entry> = entries.into_iter().filter(|entry| self.is_current(entry)).collect();
        let mut queue = self.cache.queue.lock();
        let newer = std::mem::replace(&mut *queue, kept);
        queue.extend(newer);
    }
}
