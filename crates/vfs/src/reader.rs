//! The layer of readers: file contents through the cache, with read-ahead, or past it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Cause, Page};
use moafs_runtime::leaf::Mutex;

use crate::error::Result;
use crate::fill::Fill;
use crate::format::Format;
use crate::inode::{Inode, Shared};
use crate::layer::layer;
use crate::options::CacheRole;
use crate::pages::{Content, Pages};
use crate::reap::Reaper;
use crate::types::{Lbn, LbnRange};

/// The most read-aheads that no task has waited for yet; the oldest is waited for beyond this.
const LOOSE_FILLS_MAX: usize = 64;

/// Bytes of one read that are collected before they are copied.
const READ_BYTES_MAX: u64 = 1 << 20;

/// A fill that no task waits for, and the file it belongs to.
type LooseFill<N> = (Arc<Inode<N>>, Arc<Fill>);

/// The readers of a volume.
pub(crate) struct Reader<F: Format> {
    reaper: Reaper<F>,
    /// The read-aheads under way, oldest first.
    loose_fills: Mutex<VecDeque<LooseFill<F::Node>>>,
}

layer!(Reader over reaper: Reaper);

impl<F: Format> Reader<F> {
    pub(crate) fn new(reaper: Reaper<F>) -> Reader<F> {
        Reader { reaper, loose_fills: Mutex::new(VecDeque::new()) }
    }

    /// Reads from a file whose inode lock is held.
    pub(crate) fn read_locked(&self, inode: &Shared<F>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = inode.size();
        let end = size.min(offset.saturating_add(into.len() as u64));
        let mut at = offset;
        while at < end {
            let past = self.read_past_cache(inode, at, end, &mut into[(at - offset) as usize..])?;
            if past > 0 {
                at += past as u64;
                continue;
            }
            let len = (end - at).min(READ_BYTES_MAX);
            let range = self.blocks_of(at, len);
            let last = range.end().0 - 1;
            let blocks = size.div_ceil(self.block_bytes());
            let max = self.read_ahead_blocks();
            let ahead = inode.state.lock().read_ahead.advise(range.start.0, last, blocks, max);
            let pages = self.pages(inode, range, ahead)?;
            let done = (at - offset) as usize;
            copy_out(&pages, (at % self.block_bytes()) as usize, &mut into[done..done + len as usize]);
            self.served(inode, range);
            at += len;
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    /// Returns the pages of `range`, from the cache or the volume. The inode lock is held, shared at least.
    pub(crate) fn pages(&self, inode: &Shared<F>, range: LbnRange, ahead: Option<LbnRange>) -> Result<Vec<Page>> {
        let mut have: Vec<Option<Page>> = vec![None; range.len as usize];
        let missing = look(&mut inode.pages.lock(), range, &mut have);
        self.co_read_used(missing.unasked);
        let hits = u64::from(range.len) - missing.count;
        self.tally.read_hits.fetch_add(hits, Ordering::Relaxed);
        let mut ahead = ahead;
        let mut missing = missing;
        if missing.count > 0 {
            self.tally.read_misses.fetch_add(missing.count, Ordering::Relaxed);
        }
        while missing.count > 0 {
            let fill = match missing.filling {
                Some(fill) => Some(fill),
                None if self.co_read(inode, missing.span) => None,
                None => self.start_fill(inode, missing.span, Cause::Demand)?,
            };
            if let Some(range) = ahead.take() {
                self.start_read_ahead(inode, range);
            }
            if let Some(fill) = fill {
                self.finish_fill(inode, &fill)?;
            }
            missing = look(&mut inode.pages.lock(), range, &mut have);
            self.co_read_used(missing.unasked);
        }
        if let Some(range) = ahead {
            self.start_read_ahead(inode, range);
        }
        Ok(have.into_iter().flatten().collect())
    }

    /// Returns the most blocks that are read ahead.
    pub(crate) fn read_ahead_blocks(&self) -> u64 {
        if self.options.role == CacheRole::Behind {
            // The kernel in front reads ahead by itself, with several requests at once.
            return 0;
        }
        let bytes = self.options.read_ahead_bytes.min(self.cache.budget_bytes() / 4);
        bytes as u64 / self.block_bytes()
    }

    /// Starts a read-ahead; its errors show when a caller reads the blocks.
    pub(crate) fn start_read_ahead(&self, inode: &Shared<F>, range: LbnRange) {
        let Ok(Some(fill)) = self.start_fill(inode, range, Cause::ReadAhead) else { return };
        self.tally.read_ahead_blocks.fetch_add(u64::from(range.len), Ordering::Relaxed);
        let oldest = {
            let mut loose = self.loose_fills.lock();
            loose.push_back((Arc::clone(inode), fill));
            if loose.len() > LOOSE_FILLS_MAX { loose.pop_front() } else { None }
        };
        if let Some((inode, fill)) = oldest {
            let _ = self.finish_fill(&inode, &fill);
        }
    }

    /// Waits for every read-ahead under way.
    pub(crate) fn finish_loose_fills(&self) {
        let loose = std::mem::take(&mut *self.loose_fills.lock());
        for (inode, fill) in loose {
            let _ = self.finish_fill(&inode, &fill);
        }
    }

    /// Puts clean pages at the cold end of the replacement queue after they were served to a kernel that caches them.
    pub(crate) fn served(&self, inode: &Shared<F>, range: LbnRange) {
        if self.options.role == CacheRole::Behind {
            self.chill(inode, range);
        }
    }
}

/// The blocks that a look for pages did not find.
struct Missing {
    count: u64,
    /// The range from the first absent block to the last.
    span: LbnRange,
    /// A fill that is to bring one of them.
    filling: Option<Arc<Fill>>,
    /// Blocks found that a co-read had brought and that had not been read before.
    unasked: u64,
}

/// Collects the pages of `range` that are there and that `have` does not have yet.
fn look(pages: &mut Pages, range: LbnRange, have: &mut [Option<Page>]) -> Missing {
    let mut missing = Missing { count: 0, span: LbnRange { start: range.start, len: 0 }, filling: None, unasked: 0 };
    let mut next = range.start;
    for (at, slot) in pages.slots_mut(range) {
        missing.note_absent(range.start, next, at, have);
        next = at + 1;
        let have = &mut have[(at - range.start) as usize];
        match &slot.content {
            Content::Data(page) => {
                slot.referenced = true;
                missing.unasked += u64::from(std::mem::take(&mut slot.unasked));
                have.get_or_insert_with(|| page.clone());
            }
            Content::Filling(fill) if have.is_none() => {
                missing.filling = Some(Arc::clone(fill));
                missing.count += 1;
            }
            Content::Filling(_) => {}
        }
    }
    missing.note_absent(range.start, next, range.end(), have);
    // Absent blocks are asked for first; the ones being filled come meanwhile.
    if missing.span.len > 0 {
        missing.filling = None;
    }
    missing
}

impl Missing {
    /// Notes that the blocks of `from..to` are absent; those that `have` (from `start` on) lacks are missing.
    fn note_absent(&mut self, start: Lbn, from: Lbn, to: Lbn, have: &[Option<Page>]) {
        for at in (from.0..to.0).filter(|at| have[(at - start.0) as usize].is_none()) {
            self.count += 1;
            if self.span.len == 0 {
                self.span.start = Lbn(at);
            }
            self.span.len = (at + 1 - self.span.start.0) as u32;
        }
    }
}

/// Copies bytes out of consecutive pages, the first from `start` on.
fn copy_out(pages: &[Page], start: usize, into: &mut [u8]) {
    let (mut done, mut start) = (0, start);
    for page in pages {
        let len = (page.len() - start).min(into.len() - done);
        into[done..done + len].copy_from_slice(&page[start..start + len]);
        done += len;
        start = 0;
    }
}
