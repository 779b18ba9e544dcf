//! The memory budget and the replacement of clean pages.
//!
//! One queue for the whole volume, second chance: a page enters at the warm end when it becomes
//! clean, leaves at the cold end, and goes round once more if it was used meanwhile. Dirty pages
//! are never in it, so a reader evicts clean pages only, and finding one costs no search.
//! An entry is valid while the page still bears its stamp; stale ones are skipped.
//!
//! Charged to the budget: file pages, the format's metadata, decoded inodes.

use std::collections::VecDeque;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use moafs_runtime::{Event, Time};
use smallvec::SmallVec;

use crate::options::Options;
use crate::pages::Delta;
use crate::types::{Ino, Lbn};

/// Stale entries that the queue may hold in addition to twice the number of pages.
const STALE_ENTRIES_MAX: usize = 4096;

/// Memory that a cached page is charged with beside its block, in bytes: its slot, its counts, its entries in queues.
const PAGE_OVERHEAD_BYTES: usize = 192;

/// Entries of the replacement queue that are looked at in one step.
pub(crate) const EVICT_BATCH: usize = 64;

/// Blocks that may be dirty however small the budget is.
const DIRTY_BLOCKS_MIN: usize = 16;

/// The budget may not fall below this many bytes: one large request and its metadata.
const BUDGET_BYTES_MIN: usize = 256 << 10;

/// An entry of the replacement queue.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    pub(crate) at: Lbn,
    pub(crate) stamp: u64,
    /// The time at which it entered; zero at the cold end.
    pub(crate) since: Time,
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
    pub(crate) fn charged_bytes(&self) -> usize {
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

    /// Lets stamped pages of one file enter the replacement queue.
    pub(crate) fn enqueue(&self, ino: Ino, stamped: &[(Lbn, u64)], end: End, now: Time) {
        let mut queue = self.queue.lock();
        for &(at, stamp) in stamped {
            match end {
                End::Cold => queue.push_front(Entry { ino, at, stamp, since: Time(0) }),
                End::Warm => queue.push_back(Entry { ino, at, stamp, since: now }),
            }
        }
    }

    /// Takes the coldest entries off the queue, `count` and [`EVICT_BATCH`] at most.
    pub(crate) fn take_coldest(&self, count: usize) -> SmallVec<[Entry; EVICT_BATCH]> {
        let mut queue = self.queue.lock();
        let count = count.min(EVICT_BATCH).min(queue.len());
        queue.drain(..count).collect()
    }

    /// Drops the entries that are not current when stale ones outnumber the pages.
    pub(crate) fn trim_queue(&self, is_current: impl Fn(&Entry) -> bool) {
        let pages = self.cached.load(Ordering::Relaxed).max(0) as usize;
        if self.queue.lock().len() <= 2 * pages + STALE_ENTRIES_MAX {
            return;
        }
        let entries = std::mem::take(&mut *self.queue.lock());
        let kept: VecDeque<Entry> = entries.into_iter().filter(is_current).collect();
        let mut queue = self.queue.lock();
        let newer = std::mem::replace(&mut *queue, kept);
        queue.extend(newer);
    }

    /// Returns the coldest entry.
    pub(crate) fn front(&self) -> Option<Entry> {
        self.queue.lock().front().copied()
    }

    /// Drops the coldest entry, if it bears this stamp.
    pub(crate) fn drop_front(&self, stamp: u64) {
        let mut queue = self.queue.lock();
        if queue.front().is_some_and(|entry| entry.stamp == stamp) {
            queue.pop_front();
        }
    }
}
