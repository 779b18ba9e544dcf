//! Walks: readers of small files that go from file to file, recognised by their misses ([`crate::co_read`]).

use std::collections::VecDeque;
use std::time::Duration;

use moafs_runtime::leaf::Mutex;

use crate::manner::{Manner, Manners};
use crate::types::{BlockAddr, BlockRun, Ino};

/// Walks that are remembered. The fewer there are, the rarer two steps in a row happen by chance.
const WALKS_MAX: usize = 8;

/// Steps after which a walk is believed and brings neighbours.
const STEPS_MIN: u32 = 2;

/// The first window, in blocks: the most that a wrong guess costs.
const WINDOW_BLOCKS_MIN: u32 = 4;

/// The longest gap of unwanted blocks that is read over to keep one request: transferring them takes far less than a
/// second seek.
pub(crate) const GAP_BLOCKS_MAX: u64 = 8;

/// Blocks read or dropped before their proportion is used.
const SAMPLE_BLOCKS: u64 = 64;

/// A reader of small files, file by file.
#[derive(Debug, Clone, Copy)]
struct Walk {
    /// The block of the volume behind the last one that the walker missed or was brought.
    next_block: BlockAddr,
    /// The inode number that follows that of the file missed last.
    next_ino: u64,
    steps: u32,
    /// Blocks brought at the last step, the file's own not counted; 0 if the file was read alone.
    window: u32,
}

impl Walk {
    /// Returns the way in which a miss goes on with the walk, and how many blocks or numbers it skips. A believed walk
    /// may skip as many as it was brought: it finds those files in the cache.
    fn goes_on(&self, ino: Ino, run: BlockRun) -> Option<(Way, u64)> {
        let within = |skips: &u64| *skips <= u64::from(self.window);
        let blocks = run.start.checked_sub(self.next_block).filter(within).map(|skips| (Way::Addresses, skips));
        blocks.or_else(|| ino.0.checked_sub(self.next_ino).filter(within).map(|skips| (Way::Numbers, skips)))
    }

    /// Returns the next step's window: twice the last one, but half of it if the miss skips more than the gap limit,
    /// as a reader does that happens to read nearby. A walk that was read alone has the window that it would have got.
    fn next_window(&self, skips: u64, blocks_max: u32) -> u32 {
        let window = match self.window {
            0 => WINDOW_BLOCKS_MIN << (self.steps + 1).saturating_sub(STEPS_MIN).min(u32::BITS / 2),
            window if skips > GAP_BLOCKS_MAX => window / 2,
            window => window.saturating_mul(2),
        };
        window.max(WINDOW_BLOCKS_MIN).min(blocks_max)
    }
}

/// The order that a walk follows: block addresses or inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Addresses,
    Numbers,
}

/// The blocks that a step of a believed walk brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) way: Way,
    /// Blocks to bring beside the file's own, gaps included; 0: the file is read alone.
    pub(crate) window: u32,
}

impl Step {
    fn manner(self) -> Manner {
        if self.window == 0 { Manner::Alone } else { Manner::Together }
    }
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
    /// Waits of walkers in either manner: they say if co-reading pays on this device.
    manners: Manners,
}

impl Walks {
    /// Notes a miss of the file `ino`, which lies at `run`; returns what to bring beside it.
    pub(crate) fn miss(&self, ino: Ino, run: BlockRun, blocks_max: u32) -> Option<Step> {
        let mut state = self.0.lock();
        let blocks_max = state.limit(blocks_max);
        let next = Walk { next_block: run.end(), next_ino: ino.0 + 1, steps: 0, window: 0 };
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
        let is_believed = steps >= STEPS_MIN;
        let is_together = state.manners.now() == Manner::Together;
        let window = if is_believed && is_together { walk.next_window(skips, blocks_max) } else { 0 };
        state.walks.push_back(Walk { steps, window, ..next });
        (is_believed && blocks_max > 0).then_some(Step { way, window })
    }

    /// Notes how long the walker waited for a step that brought `own` blocks of the file it missed and `beside` blocks
    /// of others.
    pub(crate) fn waited(&self, step: Step, own: u64, beside: u64, wait: Duration) {
        let mut state = self.0.lock();
        let of_use = own + state.of_use(beside);
        state.manners.waited(step.manner(), of_use, wait);
    }

    /// Notes that the walk that stood at `from` has been brought everything up to `to`.
    pub(crate) fn brought(&self, from: BlockAddr, to: BlockAddr) {
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
        let worth = self.of_use(blocks_max.into()) as u32;
        worth.max(WINDOW_BLOCKS_MIN).min(blocks_max)
    }

    /// Returns how many of `blocks` brought blocks are read before they are dropped, as far as the latest tell.
    fn of_use(&self, blocks: u64) -> u64 {
        let seen = self.used + self.wasted;
        if seen < SAMPLE_BLOCKS { blocks } else { blocks * self.used / seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(at: u64) -> BlockRun {
        BlockRun { start: BlockAddr(at), len: 1 }
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
            walks.brought(BlockAddr(at + 1), BlockAddr(at + 1 + u64::from(window)));
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
    fn a_device_that_makes_walkers_wait_for_neighbours_is_read_file_by_file() {
        let walks = Walks::default();
        miss(&walks, 50, 100);
        miss(&walks, 51, 101);
        let mut at = 102;
        let mut alone = 0;
        while at < 1500 {
            let step = walks.miss(Ino(at), block(at), 31).unwrap();
            let (window, wait) = (u64::from(step.window), if step.window == 0 { 1 } else { 100 });
            walks.waited(step, 1, window, Duration::from_millis(wait));
            walks.brought(BlockAddr(at + 1), BlockAddr(at + 1 + window));
            at += 1 + window;
            alone += u64::from(step.window == 0);
        }
        assert!(alone > 900, "{alone} of 1398 files alone");
        assert_eq!(miss(&walks, 9, 90_000), None, "another reader finds no walk");
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
