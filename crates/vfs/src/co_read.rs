//! Co-reading: a miss on a small file brings the files that lie beside it with the same request.
//!
//! Co-writing puts the small files of a directory side by side; a reader that walks through the directory then finds
//! the next ones behind the one it missed. A *walk* is recognised by its misses alone, as read-ahead recognises a
//! sequential reader:
//!
//! 1. a miss takes a *step* of a walk if its file lies right behind the file missed before, or bears the next inode
//!    number (files of mixed sizes are co-written smallest first, but made, listed and read in another order);
//! 2. the first steps bring nothing but the file; from then on each step doubles the window, up to the largest
//!    transfer; one that leaves out many files halves it;
//! 3. a walk by address brings what lies in front; a walk by inode number brings what lies on either side and has a
//!    higher number: what is behind a walker has been read;
//! 4. any other miss starts a walk of its own. Few walks are remembered, so a random reader finds none and causes the
//!    same requests, of the same length, as without co-reading;
//! 5. blocks that leave the cache unread narrow the window, those that were read widen it again;
//! 6. a walk brings neighbours only on a device that makes walkers wait less for each block then
//!    ([`crate::manner`]); else each file comes alone.
//!
//! Blocks that were brought stay in the cache as if just read, also behind a kernel's cache
//! ([`crate::options::CacheRole::Behind`]): the kernel asks for each file by itself, and only then do its blocks go to
//! the cold end.
//!
//! # Invariants
//!
//! 1. The blocks to be brought are marked as being filled under their file's lock, which is tried and never waited
//!    for: a neighbour that is busy is left out. From then on a writer or a truncation waits for the marks as for
//!    those of a read-ahead.
//! 2. [`Format::neighbours`] is a hint. It is checked against the inode, loaded and alive under its number, and its
//!    map.
//! 3. The task that missed waits for the device; all others wait for the blocks to move.
//! 4. Write-back may move blocks between the look-up of a file's map and its marks: the file is left out if it has
//!    ([`Pages::placements`]).
//! 5. An error of the request is reported to no caller: the file is read again alone. So it is if blocks may have moved
//!    since they were looked up ([`Format::relocation_generation`]): their old places may hold other bytes by then.
//!
//! [`Pages::placements`]: crate::pages::Pages::placements

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Buf, Cause, Kind, Op, Request, Tag};

use crate::fill::{Fill, Place};
use crate::format::{Format, Neighbour};
use crate::inode::{Found, Shared};
use crate::pages::Delta;
use crate::plan::SMALL_BLOCKS_MAX;
use crate::reap::Reaper;
use crate::types::{BlockAddr, BlockRun, FileKind, Ino, Lbn, LbnRange, Mapping};
use crate::walks::{GAP_BLOCKS_MAX, Step, Way};

/// One file's blocks in a co-read.
struct Part<F: Format> {
    inode: Shared<F>,
    run: BlockRun,
    fill: Arc<Fill>,
    /// The blocks that are brought; the others are in the cache, or on their way there.
    absent: Vec<LbnRange>,
}

/// A small file that lies in one piece, as its map says.
struct Located {
    run: BlockRun,
    /// The value of [`crate::pages::Pages::placements`] before the map was looked up.
    placements: u64,
}

/// The blocks of a file have moved since its map was looked up.
struct Moved;

impl<F: Format> Reaper<F> {
    /// Returns the most blocks that a co-read brings.
    fn co_read_blocks(&self) -> u32 {
        let budget = self.cache.budget_bytes() / 16;
        let bytes = self.options.co_read_bytes.min(self.options.transfer_bytes_max).min(budget);
        u32::try_from(bytes as u64 / self.block_bytes()).unwrap_or(u32::MAX)
    }

    /// Brings a small file, and its neighbours if that pays, with one request, and waits for it, if a walker missed the
    /// file. To be called after a miss at its start. False if the blocks are to be read as usual. The file's lock is
    /// held, shared at least.
    pub(crate) fn co_read(&self, inode: &Shared<F>, missing: LbnRange) -> bool {
        let blocks_max = self.co_read_blocks();
        if blocks_max == 0 || missing.start != Lbn(0) {
            return false;
        }
        let relocation_generation = self.format.relocation_generation();
        let Some(located) = self.locate(inode) else { return false };
        let beside_max = blocks_max.saturating_sub(located.run.len);
        let Some(step) = self.walks.miss(inode.ino, located.run, beside_max) else { return false };
        let own = match self.claim(inode, &located) {
            Ok(Some(own)) => own,
            Ok(None) => return true,
            Err(Moved) => return false,
        };
        let (first, parts) = self.gather(own, step);
        if step.window == 0 {
            self.tally.co_reads_declined.fetch_add(1, Ordering::Relaxed);
        }
        self.bring(first, parts, step, relocation_generation)
    }

    /// Finds a small file, if it lies in one piece.
    fn locate(&self, inode: &Shared<F>) -> Option<Located> {
        let placements = inode.pages.lock().placements();
        let blocks = inode.size().div_ceil(self.block_bytes());
        if blocks == 0 || blocks > SMALL_BLOCKS_MAX {
            return None;
        }
        match self.format.map(&inode.node, Lbn(0), blocks as u32) {
            Ok(Mapping::Run(run)) if u64::from(run.len) == blocks => Some(Located { run, placements }),
            _ => None,
        }
    }

    /// Marks the absent blocks of a small file as being filled; `None` if there are none. The file's lock is held,
    /// shared at least.
    fn claim(&self, inode: &Shared<F>, located: &Located) -> std::result::Result<Option<Part<F>>, Moved> {
        let (run, fill) = (located.run, Fill::waited_for());
        let absent = {
            let mut pages = inode.pages.lock();
            if pages.placements() != located.placements {
                return Err(Moved);
            }
            pages.begin_fill(LbnRange { start: Lbn(0), len: run.len }, &fill)
        };
        if absent.is_empty() {
            return Ok(None);
        }
        self.cache.account(Delta { cached: blocks_in(&absent) as i64, dirty: 0 });
        Ok(Some(Part { inode: Arc::clone(inode), run, fill, absent }))
    }

    /// Returns the parts of one request around `own`, as far as the step allows, and the block at which it begins.
    fn gather(&self, own: Part<F>, step: Step) -> (BlockAddr, Vec<Part<F>>) {
        let (ino, run) = (own.inode.ino, own.run);
        let wanted = |near: &Neighbour| step.way == Way::Addresses || near.ino > ino;
        if step.window == 0 {
            return (run.start, vec![own]);
        }
        let near = self.format.neighbours(&own.inode.node, run, step.window);
        let mut left = u64::from(step.window);
        let (mut start, mut end) = (run.start, run.end());
        let mut parts = vec![own];
        for near in near.iter().filter(|near| near.run.start >= run.end() && wanted(near)) {
            let Some(gap) = near.run.start.checked_sub(end) else { continue };
            let cost = gap + u64::from(near.run.len);
            if gap > GAP_BLOCKS_MAX || cost > left {
                break;
            }
            if let Some(part) = self.claim_neighbour(near) {
                (end, left) = (near.run.end(), left - cost);
                parts.push(part);
            }
        }
        self.walks.brought(run.end(), end);
        if step.way == Way::Numbers {
            for near in near.iter().rev().filter(|near| near.run.end() <= run.start && wanted(near)) {
                let Some(gap) = start.checked_sub(near.run.end()) else { continue };
                let cost = gap + u64::from(near.run.len);
                if gap > GAP_BLOCKS_MAX || cost > left {
                    break;
                }
                if let Some(part) = self.claim_neighbour(near) {
                    (start, left) = (near.run.start, left - cost);
                    parts.push(part);
                }
            }
        }
        (start, parts)
    }

    /// Claims a neighbour's blocks, unless it is busy or does not match the hint.
    fn claim_neighbour(&self, near: &Neighbour) -> Option<Part<F>> {
        let inode = self.loaded(near.ino)?;
        let _shared = inode.lock.try_read()?;
        // The map first: a number that was reused leads to a run only after its new inode is in the table.
        let located = self.locate(&inode).filter(|located| located.run == near.run)?;
        let same =
            inode.check_alive().is_ok() && self.table.peek(near.ino).is_some_and(|there| Arc::ptr_eq(&there, &inode));
        let part = if same { self.claim(&inode, &located).ok()?? } else { return None };
        let mut pages = inode.pages.lock();
        for range in &part.absent {
            pages.slots_mut(*range).for_each(|(_, slot)| slot.unasked = true);
        }
        drop(pages);
        Some(part)
    }

    /// Returns a regular file's inode that has a name. It is loaded if it is not in memory, which costs no request
    /// where the format has just seen it; an inode that another task is loading is left out.
    fn loaded(&self, ino: Ino) -> Option<Shared<F>> {
        let inode = match self.table.find(ino) {
            Found::Ready(inode) => inode,
            Found::Loading => return None,
            Found::LoadIt => {
                // Nothing but a hint led here: while the number is held it is not reused twice.
                self.table.hold(ino);
                let loaded = self.format.load(ino).ok().filter(|(attr, _)| attr.nlink > 0);
                let inode = match loaded {
                    Some((attr, node)) => Some(self.insert_loaded(ino, attr, node)),
                    None => {
                        self.table.load_failed(ino);
                        None
                    }
                };
                self.rt.signal(&self.table.load_ended);
                self.forget(ino, 1);
                inode?
            }
        };
        (inode.kind == FileKind::Regular).then_some(inode)
    }

    /// Reads everything from block `first` of the volume to the last part's end with one request, and gives each part
    /// its own blocks. False if the request failed, or blocks may have moved since `relocation_generation`.
    fn bring(&self, first: BlockAddr, parts: Vec<Part<F>>, step: Step, relocation_generation: u64) -> bool {
        let end = parts.iter().map(|part| part.run.end()).max().unwrap_or(first);
        let span = BlockRun { start: first, len: (end - first) as u32 };
        let into = (0..span.len).map(|_| Buf::scratch(self.block_bytes() as usize)).collect();
        let tag = Tag::new(Kind::Data, parts[0].inode.ino.0, Cause::Demand);
        let from = self.rt.now();
        let batch = self.disk.submit(vec![Request { op: Op::Read { into }, at: self.lba(span), tag }]);
        let beside = self.count_co_read(&parts);
        let done = self.disk.wait(batch).remove(0).result;
        if done.is_ok() {
            self.walks.waited(step, blocks_in(&parts[0].absent), beside, self.rt.now() - from);
        }
        let is_read = done.is_ok() && self.format.relocation_generation() == relocation_generation;
        let mut bufs: Vec<Option<Buf>> = done.map(|bufs| bufs.into_iter().map(Some).collect()).unwrap_or_default();
        for part in &parts {
            for range in &part.absent {
                if !is_read {
                    self.drop_fill(&part.inode, &part.fill, *range);
                    continue;
                }
                let at = (part.run.start - first + range.start.0) as usize;
                let own = bufs[at..at + range.len as usize].iter_mut().filter_map(Option::take).collect();
                let pages = self.pages_of(own, *range, part.inode.size());
                self.fill_part(&part.inode, &part.fill, *range, pages, Place::Device);
            }
            part.fill.end();
            self.rt.signal(&part.inode.moved);
        }
        is_read
    }

    /// Counts a request and returns the blocks of neighbours that it brings.
    fn count_co_read(&self, parts: &[Part<F>]) -> u64 {
        self.tally.fill_requests.fetch_add(1, Ordering::Relaxed);
        let brought: u64 = parts[1..].iter().map(|part| blocks_in(&part.absent)).sum();
        if brought > 0 {
            self.tally.co_reads.fetch_add(1, Ordering::Relaxed);
            self.tally.co_read_blocks.fetch_add(brought, Ordering::Relaxed);
        }
        brought
    }
}

fn blocks_in(ranges: &[LbnRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.len)).sum()
}
