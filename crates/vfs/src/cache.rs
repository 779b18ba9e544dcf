//! The memory budget and the replacement of clean pages.
//!
//! One queue for the whole volume, second chance: a page enters at the warm end when it becomes
//! clean, leaves at the cold end, and goes round once more if it was used meanwhile. Dirty pages
//! are never in it, so a reader evicts clean pages only, and finding one costs no search.
//! An entry is valid while the page still bears its stamp; stale ones are skipped.
//!
//! Charged to the budget: file pages, the format's metadata, decoded inodes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use moafs_runtime::Event;
use parking_lot::Mutex;

use crate::format::Format;
use crate::inner::{Inner, Shared};
use crate::inode::INODE_BYTES;
use crate::pages::Delta;
use crate::types::{Ino, Lbn};

/// Stale entries that the queue may hold beside twice the number of pages.
const STALE_ENTRIES_MAX: usize = 4096;

/// Blocks that may be dirty however small the budget is.
const DIRTY_BLOCKS_MIN: usize = 16;

/// The budget may not fall below this many bytes: one large request and its metadata.
const BUDGET_BYTES_MIN: usize = 256 << 10;

#[derive(Clone, Copy)]
struct Entry {
    ino: Ino,
    at: Lbn,
    stamp: u64,
}

/// Which end of the replacement queue a page enters at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Next to go.
    Cold,
    /// Last to go.
    Warm,
}

/// The volume's account of cached blocks.
pub(crate) struct Cache {
    block_bytes: usize,
    budget_bytes: AtomicUsize,
    dirty_percent: usize,
    cached: AtomicI64,
    dirty: AtomicI64,
    queue: Mutex<VecDeque<Entry>>,
    stamp: AtomicU64,
    /// Dirty pages have become clean.
    pub(crate) room: Event,
}

impl Cache {
    pub(crate) fn new(budget_bytes: usize, dirty_percent: u8, block_bytes: usize) -> Cache {
        Cache {
            block_bytes,
            budget_bytes: AtomicUsize::new(budget_bytes.max(BUDGET_BYTES_MIN)),
            dirty_percent: usize::from(dirty_percent.clamp(1, 90)),
            cached: AtomicI64::new(0),
            dirty: AtomicI64::new(0),
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

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cached.load(Ordering::Relaxed).max(0) as usize * self.block_bytes
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty.load(Ordering::Relaxed).max(0) as usize * self.block_bytes
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Writers wait above this.
    pub(crate) fn dirty_bytes_max(&self) -> usize {
        (self.budget_bytes() / 100 * self.dirty_percent).max(DIRTY_BLOCKS_MIN * self.block_bytes)
    }

    /// A stamp for a page that is about to enter the queue.
    pub(crate) fn next_stamp(&self) -> u64 {
        self.stamp.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets stamped pages of one file enter the queue.
    pub(crate) fn enqueue(&self, ino: Ino, stamped: &[(Lbn, u64)], end: End) {
        let mut queue = self.queue.lock();
        for &(at, stamp) in stamped {
            let entry = Entry { ino, at, stamp };
            match end {
                End::Cold => queue.push_front(entry),
                End::Warm => queue.push_back(entry),
            }
        }
    }
}

impl<F: Format> Inner<F> {
    /// Stamps clean pages and lets them enter the replacement queue.
    pub(crate) fn enqueue_clean(&self, inode: &Shared<F>, blocks: impl Iterator<Item = Lbn>, end: End) {
        let mut stamped = Vec::new();
        {
            let mut pages = inode.pages.lock();
            for at in blocks {
                let Some(slot) = pages.get_mut(at) else { continue };
                if slot.is_unsettled() || slot.is_filling() {
                    continue;
                }
                slot.stamp = self.cache.next_stamp();
                slot.referenced = false;
                stamped.push((at, slot.stamp));
            }
        }
        self.cache.enqueue(inode.ino, &stamped, end);
    }

    /// Memory in use: pages, metadata, inodes.
    fn used_bytes(&self) -> usize {
        self.cache.cached_bytes() + self.format.memory() + self.table.decoded() * INODE_BYTES
    }

    /// Brings memory back within the budget, as far as clean things can be dropped. Leaves only:
    /// may be called with inode locks held.
    pub(crate) fn reclaim(&self) {
        self.reclaim_to(self.cache.budget_bytes());
    }

    /// As [`Self::reclaim`], down to `target` bytes.
    pub(crate) fn reclaim_to(&self, target: usize) {
        self.trim_queue();
        if self.used_bytes() <= target {
            return;
        }
        let inode_bytes = self.table.decoded() * INODE_BYTES;
        if inode_bytes > target / 8 {
            self.table.evict((inode_bytes - target / 8) / INODE_BYTES + 16);
        }
        // Metadata may have half; pages then give way first.
        if self.format.memory() > target / 2 {
            self.format.shrink(target / 2);
        }
        while self.used_bytes() > target && self.evict_one() {}
        let over = self.used_bytes().saturating_sub(target);
        if over > 0 {
            let keep = self.format.memory().saturating_sub(over).max(target / 8);
            self.format.shrink(keep);
        }
    }

    /// Evicts the coldest clean page; false if there is none.
    fn evict_one(&self) -> bool {
        loop {
            let Some(entry) = self.cache.queue.lock().pop_front() else { return false };
            let Some(inode) = self.table.peek(entry.ino) else { continue };
            let evicted = {
                let mut pages = inode.pages.lock();
                let verdict = pages.evict(entry.at, entry.stamp);
                if verdict == Some(false) {
                    let slot = pages.get_mut(entry.at).expect("it is there: it was just looked at");
                    slot.stamp = self.cache.next_stamp();
                    let again = [(entry.at, slot.stamp)];
                    drop(pages);
                    self.cache.enqueue(entry.ino, &again, End::Warm);
                }
                verdict
            };
            if evicted == Some(true) {
                self.cache.account(Delta { cached: -1, dirty: 0 });
                self.tally.evictions.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
    }

    /// Drops stale entries when they outnumber the pages.
    pub(crate) fn trim_queue(&self) {
        let pages = self.cache.cached.load(Ordering::Relaxed).max(0) as usize;
        if self.cache.queue.lock().len() <= 2 * pages + STALE_ENTRIES_MAX {
            return;
        }
        let entries = std::mem::take(&mut *self.cache.queue.lock());
        let valid = |entry: &Entry| {
            let inode: Option<Arc<_>> = self.table.peek(entry.ino);
            inode.is_some_and(|i| i.pages.lock().get(entry.at).is_some_and(|slot| slot.stamp == entry.stamp))
        };
        let kept: VecDeque<Entry> = entries.into_iter().filter(valid).collect();
        let mut queue = self.cache.queue.lock();
        let newer = std::mem::replace(&mut *queue, kept);
        queue.extend(newer);
    }
}
