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
//! 5. blocks that leave the cache unread narrow the window, those that were read widen it again.
//!
//! Blocks that were brought stay in the cache as if just read, also behind a kernel's cache
//! ([`crate::api::CacheRole::Behind`]): the kernel asks for each file by itself, and only then do its blocks go to the
//! cold end.
//!
//! # Invariants
//!
//! 1. The blocks to be brought are marked as being filled under their file's lock, which is tried and never waited
//!    for: a neighbour that is busy is left out. From then on a writer or a truncation waits for the marks as for
//!    those of a read-ahead.
//! 2. [`Format::neighbours`] is a hint. It is checked against the inode, loaded and alive under its number, and its
//!    map.
//! 3. The task that missed waits for the device; all others wait for the blocks to move.
//! 4. An error of the request is reported to no caller: the file is read again alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Buf, Cause, Kind, Op, Request, Tag};
use moafs_runtime::leaf::Mutex;

use crate::fill::{Fill, Place};
use crate::format::{Format, Neighbour};
use crate::inner::{Inner, Shared};
use crate::inode::Found;
use crate::pages::Delta;
use crate::plan::SMALL_BLOCKS_MAX;
use crate::types::{BlockRun, FileKind, Ino, Lbn, LbnRange, Mapping};

/// Walks that are remembered. The fewer there are, the rarer two steps in a row happen by chance.
const WALKS_MAX: usize = 8;

/// Steps after which a walk is believed and brings neighbours.
const STEPS_MIN: u32 = 2;

/// The first window, in blocks: the most that a wrong guess costs.
const WINDOW_BLOCKS_MIN: u32 = 4;

/// The longest gap of unwanted blocks that is read over to keep one request: transferring them takes far less than a
/// second seek.
const GAP_BLOCKS_MAX: u64 = 8;

/// Blocks read or dropped before their proportion is used.
const SAMPLE_BLOCKS: u64 = 64;

/// A reader of small files, file by file.
#[derive(Debug, Clone, Copy)]
struct Walk {
    /// The block of the volume behind the last one that the walker missed or was brought.
    next_block: u64,
    /// The inode number that follows that of the file missed last.
    next_ino: u64,
    steps: u32,
    /// Blocks brought at the last step, the file's own not counted.
    window: u32,
}

impl Walk {
    /// Returns the way in which a miss goes on with the walk, and how many blocks or numbers it skips. A believed walk
    /// may skip as many as it was brought: it finds those files in the cache.
    fn goes_on(&self, ino: Ino, run: BlockRun) -> Option<(Way, u64)> {
        let within = |skips: &u64| *skips <= u64::from(self.window);
        let blocks = run.start.0.checked_sub(self.next_block).filter(within).map(|skips| (Way::Addresses, skips));
        blocks.or_else(|| ino.0.checked_sub(self.next_ino).filter(within).map(|skips| (Way::Numbers, skips)))
    }

    /// Returns the next step's window: twice the last one, but half of it if the miss skips more than the gap limit,
    /// as a reader does that happens to read nearby.
    fn next_window(&self, skips: u64, blocks_max: u32) -> u32 {
        let window = if skips > GAP_BLOCKS_MAX { self.window / 2 } else { self.window.saturating_mul(2) };
        window.max(WINDOW_BLOCKS_MIN).min(blocks_max)
    }
}

/// The order that a walk follows: block addresses or inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Addresses,
    Numbers,
}

/// The neighbours that a step of a believed walk brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    way: Way,
    /// Blocks to bring beside the file's own, gaps included.
    window: u32,
}

/// The walks of a volume's readers of small files, and how many blocks co-reading brought with and without use.
#[derive(Debug, Default)]
pub(crate) struct Walks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The remembered walks, ordered by their last step, the latest at the back.
    walks: VecDeque<Walk>,
    /// Blocks brought that were read, and that were dropped unread; both are halved now and then.
    used: u64,
    wasted: u64,
}

impl Walks {
    /// Notes a miss of the file `ino`, which lies at `run`; returns what to bring beside it.
    fn miss(&self, ino: Ino, run: BlockRun, blocks_max: u32) -> Option<Step> {
        let mut state = self.0.lock();
        let blocks_max = state.limit(blocks_max);
        let next = Walk { next_block: run.end().0, next_ino: ino.0 + 1, steps: 0, window: 0 };
        let found = state.walks.iter().enumerate().rev().find_map(|(i, walk)| Some((i, walk.goes_on(ino, run)?)));
        let Some((i, (way, skips))) = found else {
            if state.walks.len() == WALKS_MAX {
                state.walks.pop_front();
            }
            state.walks.push_back(next);
            return None;
        };
        let walk = state.walks.remove(i).expect("just found");
        let steps = walk.steps.saturating_add(1);
        let window = if steps < STEPS_MIN { 0 } else { walk.next_window(skips, blocks_max) };
        state.walks.push_back(Walk { steps, window, ..next });
        (window > 0).then_some(Step { way, window })
    }

    /// Notes that the walk that stood at `from` has been brought everything up to `to`.
    fn brought(&self, from: u64, to: u64) {
        let mut state = self.0.lock();
        if let Some(walk) = state.walks.iter_mut().rev().find(|walk| walk.next_block == from) {
            walk.next_block = to;
        }
    }

    /// Notes that blocks that co-reading brought were read.
    pub(crate) fn used(&self, blocks: u64) {
        self.0.lock().learn(blocks, 0);
    }

    /// Notes that blocks that co-reading brought were dropped before they were read.
    pub(crate) fn wasted(&self, blocks: u64) {
        self.0.lock().learn(0, blocks);
    }
}

impl State {
    fn learn(&mut self, used: u64, wasted: u64) {
        self.used += used;
        self.wasted += wasted;
        if self.used + self.wasted >= 4 * SAMPLE_BLOCKS {
            self.used /= 2;
            self.wasted /= 2;
        }
    }

    /// Returns the largest window: the share of `blocks_max` that was of use lately. The smallest window stays, to
    /// find out when co-reading pays again.
    fn limit(&self, blocks_max: u32) -> u32 {
        let seen = self.used + self.wasted;
        if seen < SAMPLE_BLOCKS {
            return blocks_max;
        }
        let worth = (u64::from(blocks_max) * self.used / seen) as u32;
        worth.max(WINDOW_BLOCKS_MIN).min(blocks_max)
    }
}

/// One file's blocks in a co-read.
struct Part<F: Format> {
    inode: Shared<F>,
    run: BlockRun,
    fill: Arc<Fill>,
    /// The blocks that are brought; the others are in the cache, or on their way there.
    absent: Vec<LbnRange>,
}

impl<F: Format> Inner<F> {
    /// Returns the most blocks that a co-read brings.
    fn co_read_blocks(&self) -> u32 {
        let budget = self.cache.budget_bytes() / 16;
        let bytes = self.options.co_read_bytes.min(self.options.transfer_bytes_max).min(budget);
        u32::try_from(bytes as u64 / self.block_bytes()).unwrap_or(u32::MAX)
    }

    /// Brings a small file and its neighbours with one request, and waits for it, if a walker missed the file. To be
    /// called after a miss at its start. False if the blocks are to be read as usual. The file's lock is held, shared
    /// at least.
    pub(crate) fn co_read(&self, inode: &Shared<F>, missing: LbnRange) -> bool {
        let blocks_max = self.co_read_blocks();
        if blocks_max == 0 || missing.start != Lbn(0) {
            return false;
        }
        let Some(run) = self.whole_run(inode) else { return false };
        let beside_max = blocks_max.saturating_sub(run.len);
        let Some(step) = self.walks.miss(inode.ino, run, beside_max) else { return false };
        let Some(own) = self.claim(inode, run) else { return true };
        let (first, parts) = self.gather(own, step);
        self.bring(first, parts)
    }

    /// Returns the run of a small file, if it lies in one piece.
    fn whole_run(&self, inode: &Shared<F>) -> Option<BlockRun> {
        let blocks = inode.size().div_ceil(self.block_bytes());
        if blocks == 0 || blocks > SMALL_BLOCKS_MAX {
            return None;
        }
        match self.format.map(&inode.node, Lbn(0), blocks as u32) {
            Ok(Mapping::Run(run)) if u64::from(run.len) == blocks => Some(run),
            _ => None,
        }
    }

    /// Marks the absent blocks of a small file that lies at `run` as being filled; `None` if there are none. The
    /// file's lock is held, shared at least.
    fn claim(&self, inode: &Shared<F>, run: BlockRun) -> Option<Part<F>> {
        let fill = Fill::waited_for();
        let absent = inode.pages.lock().begin_fill(LbnRange { start: Lbn(0), len: run.len }, &fill);
        if absent.is_empty() {
            return None;
        }
        self.cache.account(Delta { cached: blocks_in(&absent) as i64, dirty: 0 });
        Some(Part { inode: Arc::clone(inode), run, fill, absent })
    }

    /// Returns the parts of one request around `own`, as far as the step allows, and the block at which it begins.
    fn gather(&self, own: Part<F>, step: Step) -> (u64, Vec<Part<F>>) {
        let (ino, run) = (own.inode.ino, own.run);
        let wanted = |near: &Neighbour| step.way == Way::Addresses || near.ino > ino;
        let near = self.format.neighbours(&own.inode.node, run, step.window);
        let mut left = u64::from(step.window);
        let (mut start, mut end) = (run.start.0, run.end().0);
        let mut parts = vec![own];
        for near in near.iter().filter(|near| near.run.start.0 >= run.end().0 && wanted(near)) {
            let Some(gap) = near.run.start.0.checked_sub(end) else { continue };
            let cost = gap + u64::from(near.run.len);
            if gap > GAP_BLOCKS_MAX || cost > left {
                break;
            }
            if let Some(part) = self.claim_neighbour(near) {
                (end, left) = (near.run.end().0, left - cost);
                parts.push(part);
            }
        }
        self.walks.brought(run.end().0, end);
        if step.way == Way::Numbers {
            for near in near.iter().rev().filter(|near| near.run.end().0 <= run.start.0 && wanted(near)) {
                let Some(gap) = start.checked_sub(near.run.end().0) else { continue };
                let cost = gap + u64::from(near.run.len);
                if gap > GAP_BLOCKS_MAX || cost > left {
                    break;
                }
                if let Some(part) = self.claim_neighbour(near) {
                    (start, left) = (near.run.start.0, left - cost);
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
        let same = self.whole_run(&inode) == Some(near.run)
            && inode.check_alive().is_ok()
            && self.table.peek(near.ino).is_some_and(|there| Arc::ptr_eq(&there, &inode));
        let part = if same { self.claim(&inode, near.run)? } else { return None };
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
    /// its own blocks. False if the request failed.
    fn bring(&self, first: u64, parts: Vec<Part<F>>) -> bool {
        let end = parts.iter().map(|part| part.run.end().0).max().unwrap_or(first);
        let span = BlockRun { start: crate::types::BlockAddr(first), len: (end - first) as u32 };
        let into = (0..span.len).map(|_| Buf::scratch(self.block_bytes() as usize)).collect();
        let tag = Tag::new(Kind::Data, parts[0].inode.ino.0, Cause::Demand);
        let batch = self.disk.submit(vec![Request { op: Op::Read { into }, at: self.lba(span), tag }]);
        self.count_co_read(&parts);
        let done = self.disk.wait(batch).remove(0).result;
        let is_read = done.is_ok();
        let mut bufs: Vec<Option<Buf>> = done.map(|bufs| bufs.into_iter().map(Some).collect()).unwrap_or_default();
        for part in &parts {
            for range in &part.absent {
                if !is_read {
                    self.drop_fill(&part.inode, &part.fill, *range);
                    continue;
                }
                let at = (part.run.start.0 - first + range.start.0) as usize;
                let own = bufs[at..at + range.len as usize].iter_mut().filter_map(Option::take).collect();
                let pages = self.pages_of(own, *range, part.inode.size());
                self.fill_part(&part.inode, &part.fill, *range, pages, Place::Device);
            }
            part.fill.end();
            self.rt.signal(&part.inode.moved);
        }
        is_read
    }

    fn count_co_read(&self, parts: &[Part<F>]) {
        self.tally.fill_requests.fetch_add(1, Ordering::Relaxed);
        let brought: u64 = parts[1..].iter().map(|part| blocks_in(&part.absent)).sum();
        if brought > 0 {
            self.tally.co_reads.fetch_add(1, Ordering::Relaxed);
            self.tally.co_read_blocks.fetch_add(brought, Ordering::Relaxed);
        }
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

fn blocks_in(ranges: &[LbnRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.len)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(at: u64) -> BlockRun {
        BlockRun { start: crate::types::BlockAddr(at), len: 1 }
    }

    fn miss(walks: &Walks, ino: u64, at: u64) -> Option<(Way, u32)> {
        walks.miss(Ino(ino), block(at), 31).map(|step| (step.way, step.window))
    }

    #[test]
    fn a_walk_is_believed_after_two_steps_and_then_doubles() {
        let walks = Walks::default();
        assert_eq!(miss(&walks, 50, 100), None);
        assert_eq!(miss(&walks, 70, 101), None);
        let (mut at, mut windows) = (102, Vec::new());
        for _ in 0..5 {
            let (way, window) = miss(&walks, 1000 - at, at).unwrap();
            assert_eq!(way, Way::Addresses);
            windows.push(window);
            walks.brought(at + 1, at + 1 + u64::from(window));
            at += 1 + u64::from(window);
        }
        assert_eq!(windows, [4, 8, 16, 31, 31]);
    }

    #[test]
    fn numbers_make_a_walk_too() {
        let walks = Walks::default();
        let steps: Vec<_> = [900, 300, 700, 100].into_iter().zip(20..).map(|(at, ino)| miss(&walks, ino, at)).collect();
        assert_eq!(steps, [None, None, Some((Way::Numbers, 4)), Some((Way::Numbers, 8))]);
        assert_eq!(miss(&walks, 30, 500), Some((Way::Numbers, 16)), "what it found in the cache is skipped");
        assert_eq!(miss(&walks, 47, 400), Some((Way::Numbers, 8)), "as much as it may have been brought, with doubt");
        assert_eq!(miss(&walks, 57, 600), None, "but not more");
    }

    #[test]
    fn a_walk_that_others_interrupt_too_often_is_forgotten() {
        let walks = Walks::default();
        let stranger = |i| miss(&walks, 10_000 * i, 100_000 * i);
        miss(&walks, 5, 100);
        miss(&walks, 6, 101);
        assert!((1..WALKS_MAX as u64).all(|i| stranger(i).is_none()));
        assert!(miss(&walks, 7, 102).is_some());
        assert!((20..20 + WALKS_MAX as u64).all(|i| stranger(i).is_none()));
        assert_eq!(miss(&walks, 8, 103), None);
    }

    #[test]
    fn waste_narrows_the_window_and_use_widens_it() {
        let walks = Walks::default();
        let limit = || walks.0.lock().limit(31);
        walks.wasted(SAMPLE_BLOCKS - 1);
        assert_eq!(limit(), 31, "too few to say");
        walks.wasted(1);
        assert_eq!(limit(), WINDOW_BLOCKS_MIN);
        (0..100).for_each(|_| walks.used(10));
        assert!(limit() >= 30);
    }
}
