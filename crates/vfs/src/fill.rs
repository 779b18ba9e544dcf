//! Reading file blocks into the cache: misses, and read-ahead for sequential readers.
//!
//! A fill is one batch of requests, one per mapping run. The blocks it will bring are marked
//! first, so no block is read twice; the first task that needs one of them waits for the device, the
//! others wait for the blocks to move. A read-ahead is a fill that no task waits for yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Buf, Cause, Kind, Lba, Op, Page, Request, SECTOR, Tag, Ticket};
use moafs_runtime::leaf::Mutex;

use crate::api::CacheRole;
use crate::cache::End;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::inner::{Inner, Shared};
use crate::inode::Inode;
use crate::pages::{Content, Delta, Filled, Pages};
use crate::types::{BlockRun, Ino, Lbn, LbnRange, Mapping};

/// The most read-aheads that no task has waited for yet; the oldest is waited for beyond this.
const LOOSE_FILLS_MAX: usize = 64;

/// The first read-ahead window, in blocks.
const WINDOW_BLOCKS_MIN: u64 = 4;

/// A batch of reads under way.
pub(crate) struct Fill {
    progress: Mutex<Progress>,
}

enum Progress {
    /// The requests are being put together.
    Starting,
    /// The requests are under way; the task that takes the batch waits for the device.
    Submitted(Submitted),
    /// A task waits for the device.
    Taken,
    /// The blocks are in the cache, or absent again.
    Over,
}

/// A submitted batch of reads.
struct Submitted {
    ticket: Ticket,
    /// The blocks that each request brings.
    parts: Vec<LbnRange>,
    /// The value of [`Format::relocation_generation`] before the blocks were looked up.
    relocation_generation: u64,
}

impl Fill {
    /// Returns a fill that the task that starts it will wait for.
    pub(crate) fn waited_for() -> Arc<Fill> {
        Arc::new(Fill { progress: Mutex::new(Progress::Taken) })
    }

    /// Ends the fill: its blocks are in the cache, or absent again.
    pub(crate) fn end(&self) {
        *self.progress.lock() = Progress::Over;
    }

    /// Takes the batch to wait for, unless another task has taken it or it has not been submitted yet.
    fn take(&self) -> Option<Submitted> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::Taken) {
            Progress::Submitted(batch) => Some(batch),
            other => {
                *progress = other;
                None
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(*self.progress.lock(), Progress::Over)
    }
}

/// A fill that no task waits for, and the file it belongs to.
type LooseFill<N> = (Arc<Inode<N>>, Arc<Fill>);

/// The read-aheads under way, oldest first.
pub(crate) struct LooseFills<N>(Mutex<VecDeque<LooseFill<N>>>);

impl<N> Default for LooseFills<N> {
    fn default() -> Self {
        LooseFills(Mutex::new(VecDeque::new()))
    }
}

/// The place that the bytes of a block come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The block has an address on the device.
    Device,
    /// The format keeps the bytes, but not in a block of their own: a write needs one.
    Elsewhere,
    /// The block is a hole.
    Nowhere,
}

/// The state of read-ahead for one file.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadAhead {
    /// The block a sequential reader would ask for next.
    next: u64,
    /// Blocks to read ahead next time; 0 while the reader is not sequential.
    window: u64,
    /// The block behind the last one that was read ahead.
    end: u64,
}

impl ReadAhead {
    /// Notes that `first..=last` is being read from a file of `blocks` blocks; returns the range to read
    /// ahead. The window doubles up to `max` blocks, and the next one is asked for when half of
    /// the last is used up, so the device works while the reader does.
    pub(crate) fn advise(&mut self, first: u64, last: u64, blocks: u64, max: u64) -> Option<LbnRange> {
        let sequential = first <= self.next && last + 1 >= self.next;
        self.next = last + 1;
        if !sequential || max == 0 {
            self.window = 0;
            self.end = self.next;
            return None;
        }
        self.end = self.end.max(self.next);
        if self.window > 0 && self.end - self.next > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).max(2 * (last + 1 - first)).max(WINDOW_BLOCKS_MIN).min(max);
        let start = self.end;
        let end = (start + self.window).min(blocks);
        if start >= end {
            return None;
        }
        self.end = end;
        Some(LbnRange { start: Lbn(start), len: (end - start) as u32 })
    }
}

impl<F: Format> Inner<F> {
    /// Returns the most blocks that are read ahead.
    pub(crate) fn read_ahead_blocks(&self) -> u64 {
        if self.options.role == CacheRole::Behind {
            // The kernel in front reads ahead by itself, with several requests at once.
            return 0;
        }
        let bytes = self.options.read_ahead_bytes.min(self.cache.budget_bytes() / 4);
        bytes as u64 / self.block_bytes()
    }

    /// Starts reading the absent blocks of `range`; `None` if none is absent.
    pub(crate) fn start_fill(&self, inode: &Shared<F>, range: LbnRange, cause: Cause) -> Result<Option<Arc<Fill>>> {
        let fill = Arc::new(Fill { progress: Mutex::new(Progress::Starting) });
        let absent = inode.pages.lock().begin_fill(range, &fill);
        if absent.is_empty() {
            return Ok(None);
        }
        let blocks: u64 = absent.iter().map(|r| u64::from(r.len)).sum();
        self.cache.account(Delta { cached: blocks as i64, dirty: 0 });
        let relocation_generation = self.format.relocation_generation();
        let (requests, parts, outcome) = self.fill_requests(inode, &fill, &absent, cause);
        self.tally.fill_requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let progress = match requests.is_empty() {
            true => Progress::Over,
            false => {
                Progress::Submitted(Submitted { ticket: self.disk.submit(requests), parts, relocation_generation })
            }
        };
        *fill.progress.lock() = progress;
        self.rt.signal(&inode.moved);
        outcome.map(|()| Some(fill))
    }

    /// Returns the requests for `absent`, one per mapping run, and the blocks that each brings. Holes are
    /// filled at once. On an error the marks of what is not read are taken back.
    fn fill_requests(
        &self,
        inode: &Shared<F>,
        fill: &Arc<Fill>,
        absent: &[LbnRange],
        cause: Cause,
    ) -> (Vec<Request>, Vec<LbnRange>, Result<()>) {
        let (mut requests, mut parts) = (Vec::new(), Vec::new());
        let mut outcome = Ok(());
        for range in absent {
            let mut at = range.start;
            while at < range.end() {
                let left = (range.end().0 - at.0) as u32;
                let mapping = match &outcome {
                    Ok(()) => self.format.map(&inode.node, at, left),
                    Err(_) => break,
                };
                match mapping {
                    Ok(Mapping::Run(run)) => {
                        let part = LbnRange { start: at, len: run.len.min(left).min(self.transfer_blocks()) };
                        requests.push(self.read_request(inode.ino, run.start, part.len, cause));
                        parts.push(part);
                        at = part.end();
                    }
                    Ok(hole) => {
                        let part = LbnRange { start: at, len: hole.len().clamp(1, left) };
                        match self.fill_hole(inode, fill, part) {
                            Ok(()) => at = part.end(),
                            Err(error) => outcome = Err(error),
                        }
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            self.drop_fill(inode, fill, LbnRange { start: at, len: (range.end().0 - at.0) as u32 });
        }
        (requests, parts, outcome)
    }

    /// Returns the largest data request in blocks.
    pub(crate) fn transfer_blocks(&self) -> u32 {
        let bytes = self.options.transfer_bytes_max as u64;
        u32::try_from(bytes / self.block_bytes()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the device address of a run of file contents, for a request that is about to be made: the head will be
    /// there.
    pub(crate) fn lba(&self, run: BlockRun) -> Lba {
        self.last_access.note(run.end());
        Lba(run.start.0.saturating_mul(self.block_bytes() / SECTOR as u64))
    }

    fn read_request(&self, ino: Ino, start: crate::types::BlockAddr, len: u32, cause: Cause) -> Request {
        let into = (0..len).map(|_| Buf::scratch(self.block_bytes() as usize)).collect();
        let at = self.lba(BlockRun { start, len });
        Request { op: Op::Read { into }, at, tag: Tag::new(Kind::Data, ino.0, cause) }
    }

    /// Fills blocks that have no address on the device: with zeros, or with what the format keeps elsewhere.
    fn fill_hole(&self, inode: &Shared<F>, fill: &Arc<Fill>, part: LbnRange) -> Result<()> {
        let resident = self.format.resident(&inode.node, part.start)?;
        let kept = u32::from(resident.is_some());
        if let Some(bytes) = resident {
            let mut block = Buf::zeroed(self.block_bytes() as usize);
            let len = bytes.len().min(block.len());
            block[..len].copy_from_slice(&bytes[..len]);
            let first = LbnRange { len: 1, ..part };
            let pages = self.pages_of(vec![block], first, inode.size());
            self.fill_part(inode, fill, first, pages, Place::Elsewhere);
        }
        let rest = LbnRange { start: Lbn(part.start.0 + u64::from(kept)), len: part.len - kept };
        let pages: Vec<Page> = (0..rest.len).map(|_| self.zero_page.clone()).collect();
        self.fill_part(inode, fill, rest, pages, Place::Nowhere);
        Ok(())
    }

    pub(crate) fn fill_part(&self, inode: &Shared<F>, fill: &Arc<Fill>, part: LbnRange, data: Vec<Page>, place: Place) {
        let block_bytes = self.block_bytes();
        let stamped = {
            let mut pages = inode.pages.lock();
            let size = inode.state.lock().attr.size;
            let filled = |(i, page): (usize, Page)| {
                let start = (part.start.0 + i as u64) * block_bytes;
                let within = size.saturating_sub(start).min(block_bytes) as u32;
                let addressed = place == Place::Device;
                Filled { page, addressed, disk_end: if place == Place::Nowhere { 0 } else { within } }
            };
            let filled = data.into_iter().enumerate().map(filled).collect();
            pages.end_fill(part.start, fill, filled, || self.cache.next_stamp())
        };
        self.enqueue(inode.ino, &stamped, End::Warm);
    }

    pub(crate) fn drop_fill(&self, inode: &Shared<F>, fill: &Arc<Fill>, part: LbnRange) {
        if part.len == 0 {
            return;
        }
        let mut pages = inode.pages.lock();
        for at in part.start.0..part.end().0 {
            pages.drop_fill(Lbn(at), fill);
        }
        self.cache.account(Delta { cached: -i64::from(part.len), dirty: 0 });
    }

    /// Waits for a fill. Blocks of requests that failed are absent again; the first error is
    /// returned to the task that waited for the device.
    pub(crate) fn finish_fill(&self, inode: &Shared<F>, fill: &Arc<Fill>) -> Result<()> {
        loop {
            let ticket = inode.moved.ticket();
            match fill.take() {
                Some(batch) => return self.land_fill(inode, fill, batch),
                None if fill.is_over() => return Ok(()),
                None => self.rt.wait(&inode.moved, ticket, None),
            };
        }
    }

    fn land_fill(&self, inode: &Shared<F>, fill: &Arc<Fill>, batch: Submitted) -> Result<()> {
        let mut outcome = Ok(());
        let size = inode.size();
        for (part, done) in batch.parts.iter().zip(self.disk.wait(batch.ticket)) {
            match done.result {
                // The blocks may have moved, and their old place may hold another file's bytes by now: they are absent
                // again, so a reader looks them up anew.
                Ok(_) if self.format.relocation_generation() != batch.relocation_generation => {
                    self.drop_fill(inode, fill, *part)
                }
                Ok(bufs) => {
                    let pages = self.pages_of(bufs, *part, size);
                    self.fill_part(inode, fill, *part, pages, Place::Device);
                }
                Err(error) => {
                    self.drop_fill(inode, fill, *part);
                    let what = format!("reading block {} of inode {}", part.start.0, inode.ino.0);
                    outcome = outcome.and(Err(Error::disk(what, error)));
                }
            }
        }
        fill.end();
        self.rt.signal(&inode.moved);
        outcome
    }

    /// Freezes what was read; bytes behind the end of the file read as zeros.
    pub(crate) fn pages_of(&self, bufs: Vec<Buf>, part: LbnRange, size: u64) -> Vec<Page> {
        let block_bytes = self.block_bytes();
        let freeze = |(i, mut buf): (usize, Buf)| {
            let start = (part.start.0 + i as u64) * block_bytes;
            let within = size.saturating_sub(start).min(block_bytes) as usize;
            buf[within..].fill(0);
            buf.freeze()
        };
        bufs.into_iter().enumerate().map(freeze).collect()
    }

    /// Starts a read-ahead; its errors show when a caller reads the blocks.
    pub(crate) fn start_read_ahead(&self, inode: &Shared<F>, range: LbnRange) {
        let Ok(Some(fill)) = self.start_fill(inode, range, Cause::ReadAhead) else { return };
        self.tally.read_ahead_blocks.fetch_add(u64::from(range.len), Ordering::Relaxed);
        let oldest = {
            let mut loose = self.loose_fills.0.lock();
            loose.push_back((Arc::clone(inode), fill));
            if loose.len() > LOOSE_FILLS_MAX { loose.pop_front() } else { None }
        };
        if let Some((inode, fill)) = oldest {
            let _ = self.finish_fill(&inode, &fill);
        }
    }

    /// Waits for every read-ahead under way.
    pub(crate) fn finish_loose_fills(&self) {
        let loose = std::mem::take(&mut *self.loose_fills.0.lock());
        for (inode, fill) in loose {
            let _ = self.finish_fill(&inode, &fill);
        }
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

    /// Puts clean pages at the cold end of the replacement queue after they were served to a kernel that caches them.
    pub(crate) fn served(&self, inode: &Shared<F>, range: LbnRange) {
        if self.options.role == CacheRole::Behind {
            self.chill(inode, range);
        }
    }

    /// Waits until no page of `from..to` is in flight or being filled. The caller holds the inode
    /// lock exclusively; a write-back may start new flights only on dirty pages, which the caller
    /// keeps from happening by looking again under the pages' mutex before it acts.
    pub(crate) fn wait_settled(&self, inode: &Shared<F>, from: Lbn, to: Lbn) {
        loop {
            let ticket = inode.moved.ticket();
            let fill = match inode.pages.lock().first_moving(from, to) {
                None => return,
                Some(slot) => match &slot.content {
                    Content::Filling(fill) => Some(Arc::clone(fill)),
                    Content::Data(_) => None,
                },
            };
            match fill {
                Some(fill) => drop(self.finish_fill(inode, &fill)),
                None => {
                    self.rt.wait(&inode.moved, ticket, None);
                }
            }
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
        next = Lbn(at.0 + 1);
        let have = &mut have[(at.0 - range.start.0) as usize];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_gets_a_growing_window() {
        let mut ra = ReadAhead::default();
        assert_eq!(ra.advise(0, 0, 1000, 64), Some(LbnRange { start: Lbn(1), len: 4 }));
        assert_eq!(ra.advise(1, 1, 1000, 64), None, "half of the window is still ahead");
        assert_eq!(ra.advise(2, 2, 1000, 64), Some(LbnRange { start: Lbn(5), len: 8 }));
        let mut asked = 0;
        for at in 3..600 {
            if let Some(range) = ra.advise(at, at, 1000, 64) {
                asked += 1;
                assert!(range.len <= 64);
            }
        }
        assert!(asked < 40, "{asked} small read-aheads");
    }

    #[test]
    fn a_random_reader_gets_none() {
        let mut ra = ReadAhead::default();
        for at in [500, 3, 77, 900, 12] {
            assert_eq!(ra.advise(at, at, 1000, 64), None);
        }
    }

    #[test]
    fn read_ahead_stops_at_the_end() {
        let mut ra = ReadAhead::default();
        assert_eq!(ra.advise(0, 0, 3, 64), Some(LbnRange { start: Lbn(1), len: 2 }));
        assert_eq!(ra.advise(1, 2, 3, 64), None);
    }
}
