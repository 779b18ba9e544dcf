//! Filling the cache with file blocks from the volume, and waiting until blocks have come to rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Buf, Cause, Kind, Op, Page, Request, Tag};

use crate::cache::End;
use crate::error::{Error, Result};
use crate::fill::{Fill, Place, Submitted};
use crate::format::Format;
use crate::inode::Shared;
use crate::page_cache::PageCache;
use crate::pages::{Content, Delta, Filled};
use crate::types::{BlockAddr, BlockRun, Ino, Lbn, LbnRange, Mapping};

impl<F: Format> PageCache<F> {
    /// Starts reading the absent blocks of `range`; `None` if none is absent.
    pub(crate) fn start_fill(&self, inode: &Shared<F>, range: LbnRange, cause: Cause) -> Result<Option<Arc<Fill>>> {
        let fill = Fill::starting();
        let absent = inode.pages.lock().begin_fill(range, &fill);
        if absent.is_empty() {
            return Ok(None);
        }
        let blocks: u64 = absent.iter().map(|r| u64::from(r.len)).sum();
        self.cache.account(Delta { cached: blocks as i64, dirty: 0 });
        let relocation_generation = self.format.relocation_generation();
        let (requests, parts, outcome) = self.fill_requests(inode, &fill, &absent, cause);
        self.tally.fill_requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let batch = if requests.is_empty() {
            None
        } else {
            Some(Submitted { ticket: self.disk.submit(requests), parts, relocation_generation })
        };
        fill.submitted(batch);
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
                let left = (range.end() - at) as u32;
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
                    Ok(unread) => {
                        let part = LbnRange { start: at, len: unread.len().clamp(1, left) };
                        let place = match unread {
                            Mapping::Hole { .. } => Place::Nowhere,
                            Mapping::Unwritten(_) | Mapping::Run(_) => Place::Unwritten,
                        };
                        match self.fill_unread(inode, fill, part, place) {
                            Ok(()) => at = part.end(),
                            Err(error) => outcome = Err(error),
                        }
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            self.drop_fill(inode, fill, LbnRange { start: at, len: (range.end() - at) as u32 });
        }
        (requests, parts, outcome)
    }

    fn read_request(&self, ino: Ino, start: BlockAddr, len: u32, cause: Cause) -> Request {
        let into = (0..len).map(|_| Buf::scratch(self.block_bytes() as usize)).collect();
        let at = self.lba(BlockRun { start, len });
        Request { op: Op::Read { into }, at, tag: Tag::new(Kind::Data, ino.0, cause) }
    }

    /// Fills blocks that have no contents on the device: with zeros, or with what the format keeps elsewhere.
    fn fill_unread(&self, inode: &Shared<F>, fill: &Arc<Fill>, part: LbnRange, place: Place) -> Result<()> {
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
        let rest = LbnRange { start: part.start + u64::from(kept), len: part.len - kept };
        let pages: Vec<Page> = (0..rest.len).map(|_| self.zero_page.clone()).collect();
        self.fill_part(inode, fill, rest, pages, place);
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
                let addressed = matches!(place, Place::Device | Place::Unwritten);
                let is_zeros = matches!(place, Place::Unwritten | Place::Nowhere);
                Filled { page, addressed, disk_end: if is_zeros { 0 } else { within } }
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
                    let what = format!("reading block {} of inode {}", part.start, inode.ino);
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

    /// Waits for read-aheads of `range`: a block is not written to while it is being read. The
    /// inode lock is held exclusively, so no new ones start.
    pub(crate) fn finish_fills_of(&self, inode: &Shared<F>, range: LbnRange) {
        loop {
            let filling = {
                let pages = inode.pages.lock();
                pages.first_filling(range.start, range.end())
            };
            let Some(fill) = filling else { return };
            let _ = self.finish_fill(inode, &fill);
        }
    }

    /// Drops the pages of `from..to`, dirty or not, as soon as none of them is moving.
    pub(crate) fn discard(&self, inode: &Shared<F>, from: Lbn, to: Lbn) {
        self.wait_settled(inode, from, to);
        while !self.try_discard(inode, from, to) {
            self.wait_settled(inode, from, to);
        }
    }

    /// Drops the pages of `from..to`, dirty or not, unless one of them is moving; false then. Never waits.
    pub(crate) fn try_discard(&self, inode: &Shared<F>, from: Lbn, to: Lbn) -> bool {
        let mut pages = inode.pages.lock();
        if pages.first_moving(from, to).is_some() {
            return false;
        }
        let unasked = pages.unasked(from, to);
        let delta = pages.discard(from, to);
        drop(pages);
        self.co_read_wasted(unasked);
        self.cache.account(delta);
        let dropped = delta.dirty.unsigned_abs();
        self.tally.dropped_dirty_blocks.fetch_add(dropped, Ordering::Relaxed);
        if dropped > 0 {
            self.rt.signal(&self.cache.room);
        }
        self.unlist_if_clean(inode);
        true
    }
}
