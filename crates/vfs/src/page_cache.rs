//! The layer of cached blocks: bringing memory back within the budget.
//!
//! Pages, metadata of the format and inodes share one budget ([`crate::cache`]). Pages leave by the replacement queue,
//! inodes by the clock of their table, metadata as the format chooses.

use std::sync::Arc;

use moafs_runtime::Time;
use moafs_runtime::leaf::atomic::Ordering;
use smallvec::SmallVec;

use crate::cache::{Cache, EVICT_BATCH, End, Entry};
use crate::format::Format;
use crate::inode::{INODE_BYTES, Shared};
use crate::layer::layer;
use crate::op::Ops;
use crate::pages::{Delta, Evicted};
use crate::types::{Ino, Lbn, LbnRange};
use crate::walks::Walks;

/// The fewest inodes that one eviction looks for.
const INODES_AT_LEAST: usize = 16;

/// The cached blocks of a volume.
pub(crate) struct PageCache<F: Format> {
    ops: Ops<F>,
    pub(crate) cache: Cache,
    pub(crate) walks: Walks,
}

layer!(PageCache over ops: Ops);

impl<F: Format> PageCache<F> {
    pub(crate) fn new(ops: Ops<F>) -> PageCache<F> {
        let cache = Cache::new(&ops.options, ops.shape.block_size as usize);
        PageCache { ops, cache, walks: Walks::default() }
    }

    /// Lets stamped pages of one file enter the replacement queue.
    pub(crate) fn enqueue(&self, ino: Ino, stamped: &[(Lbn, u64)], end: End) {
        self.cache.enqueue(ino, stamped, end, self.rt.now());
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
        let batch = self.cache.take_coldest(count);
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
        self.cache.trim_queue(|entry| self.is_current(entry));
    }

    /// Notes that blocks that a co-read brought were read for the first time.
    pub(crate) fn co_read_used(&self, blocks: u64) {
        if blocks > 0 {
            self.tally.co_read_blocks_used.fetch_add(blocks, Ordering::Relaxed);
            self.walks.used(blocks);
        }
    }

    /// Notes that blocks that a co-read brought were dropped before they were read.
    pub(crate) fn co_read_wasted(&self, blocks: u64) {
        if blocks > 0 {
            self.tally.co_read_blocks_wasted.fetch_add(blocks, Ordering::Relaxed);
            self.walks.wasted(blocks);
        }
    }
}
