//! WOLF: hot and cold by reference counts, told apart when data leave memory.
//!
//! 1. Every block has a reference count: one more per access, zero again when the file system has been idle, or when
//!    the block was not accessed for longer than the *time-bar*.
//! 2. The time-bar is ten minutes at first; it doubles when 90 % of a buffer's counts are equal and halves when only
//!    10 % are.
//! 3. The most referenced blocks of a buffer go to the hot log, the others to the cold one. *Ours*: "most" is more than
//!    the mean of all tracked blocks, so that a buffer that holds little but hot data is not cut in the middle.
//! 4. Counts equal to the mean say nothing: blocks related in space (adjacent in one file) stay together, the rest
//!    at random, by the seed.
//! 5. Buffers older than 30 s are flushed: [`BUFFER_AGE_MAX_NS`].
//!
//! The hot log has the hot buffer's blocks and the cold log the cold one's (ours, as the paper does not say): what
//! cleaning moves goes to the log between, apart from both. New cold data were never rewritten, but may be soon; what
//! cleaning finds has outlived its neighbours.
//!
//! Memory is bounded (ours): a table with a place for each block of the volume, as far as the bounds of memory allow,
//! in sets of [`WAYS`]; a block that finds its set full takes the place of the least referenced one there, of equal
//! ones the longest untouched.
//!
//! Reference: Wang, Hu: WOLF, a Novel Reordering Write Buffer to Boost the Performance of Log-Structured File Systems
//! (2002).

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::clean::order::Owner;
use crate::format::Nid;
use crate::place::heat::{Bounds, FileBlocks, Heat, Separator};

/// A buffer is flushed when its oldest block has waited so long.
pub const BUFFER_AGE_MAX_NS: u64 = 30 * S;
/// The time-bar at first.
pub const TIME_BAR_NS: u64 = 600 * S;
/// Blocks that compete for the same places of the table.
pub const WAYS: usize = 8;

const S: u64 = 1_000_000_000;
/// Blocks that are compared with each other: as many as a hot and a cold buffer of one segment hold
/// together.
const BUFFER_BLOCKS: usize = 1024;
/// Bounds of the time-bar (ours): a second, a day.
const TIME_BAR_MIN_NS: u64 = S;
const TIME_BAR_MAX_NS: u64 = 86_400 * S;
/// Buffers smaller than this say nothing about the spread of counts (ours).
const SAMPLE_MIN: usize = 64;

/// The policy: by the number of recent writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByReferences;

impl ByReferences {
    pub(super) fn separator(self, seed: u64, bounds: Bounds) -> Box<dyn Separator> {
        let places = (bounds.bytes_max / size_of::<Slot>()).min(bounds.blocks.try_into().unwrap_or(usize::MAX));
        Box::new(Buffer { wolf: Wolf::new(places, seed), recent: VecDeque::new() })
    }
}

/// The blocks that were written last, and their reference counts.
struct Buffer {
    wolf: Wolf,
    recent: VecDeque<Owner>,
}

impl Separator for Buffer {
    /// Returns the heat of most of the blocks, compared with those written with and before them.
    fn heat(&mut self, blocks: &FileBlocks, now_ns: u64) -> Option<Heat> {
        let FileBlocks { ino, range, .. } = *blocks;
        for lbn in range.start.0..range.end().0 {
            self.wolf.accessed(ino, lbn, now_ns);
            self.recent.push_back(Owner { ino, lbn });
        }
        let len = range.len as usize;
        while self.recent.len() > BUFFER_BLOCKS.max(len) {
            self.recent.pop_front();
        }
        let heats = self.wolf.split(self.recent.make_contiguous(), now_ns);
        let hot = heats.iter().rev().take(len).filter(|heat| **heat == Heat::Hot).count();
        Some(if 2 * hot > len { Heat::Hot } else { Heat::Cold })
    }

    fn moved(&mut self, _block: Owner) -> Option<Heat> {
        None
    }

    fn idle(&mut self) {
        self.wolf.idle();
    }

    fn memory(&self) -> usize {
        self.wolf.slots.len() * size_of::<Slot>()
    }
}

/// Reference counts, and what they say.
pub struct Wolf {
    slots: Vec<Slot>,
    /// Sum of the counts of all slots in use, and how many those are.
    sum: u64,
    used: u64,
    /// The slot that is looked at next for its age.
    hand: usize,
    time_bar_ns: u64,
    random: Pcg64Mcg,
}

#[derive(Clone, Copy)]
struct Slot {
    ino: Nid,
    /// The block's number within the file, which F2FS keeps below 2^32.
    lbn: u32,
    /// `FREE`, or the block's references.
    count: u32,
    /// The last access, in ticks of the volume's clock.
    accessed: u32,
}

impl Slot {
    fn is_of(&self, owner: Owner) -> bool {
        self.count != FREE && self.ino == owner.ino && u64::from(self.lbn) == owner.lbn
    }
}

/// The count of a slot without a block.
const FREE: u32 = u32::MAX;
/// Nanoseconds of a tick: the clock's 32 bits last for two years.
const TICK_NS: u64 = S / 64;

/// Returns a moment in ticks.
fn ticks(now_ns: u64) -> u32 {
    (now_ns / TICK_NS).try_into().unwrap_or(u32::MAX)
}

impl Wolf {
    /// Makes a table of `blocks` places (16 bytes each), rounded up to whole sets, of which there is at least one.
    pub fn new(blocks: usize, seed: u64) -> Wolf {
        let places = blocks.clamp(WAYS, 1 << 28).next_multiple_of(WAYS);
        let empty = Slot { ino: Nid::NONE, lbn: 0, count: FREE, accessed: 0 };
        Wolf {
            slots: vec![empty; places],
            sum: 0,
            used: 0,
            hand: 0,
            time_bar_ns: TIME_BAR_NS,
            random: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    /// Returns the time-bar at present.
    pub fn time_bar_ns(&self) -> u64 {
        self.time_bar_ns
    }

    /// Counts an access to a block.
    pub fn accessed(&mut self, ino: Nid, lbn: u64, now_ns: u64) {
        self.age_one(now_ns);
        let owner = Owner { ino, lbn };
        let at = self.find(owner).unwrap_or_else(|| self.evict(owner));
        self.zero_if_aged(at, now_ns);
        let slot = &mut self.slots[at];
        slot.accessed = ticks(now_ns);
        if slot.count < FREE - 1 {
            slot.count += 1;
            self.sum += 1;
        }
    }

    /// Sets all counts to zero: the file system has been idle.
    pub fn idle(&mut self) {
        if self.sum == 0 {
            return;
        }
        self.slots.iter_mut().filter(|slot| slot.count != FREE).for_each(|slot| slot.count = 0);
        self.sum = 0;
    }

    /// Tells the blocks of one write-back buffer apart, in their order, and adapts the time-bar.
    pub fn split(&mut self, buffer: &[Owner], now_ns: u64) -> Vec<Heat> {
        let counts: Vec<u32> = buffer.iter().map(|&owner| self.count(owner, now_ns)).collect();
        self.adapt(&counts);
        let mut heats = Vec::with_capacity(buffer.len());
        for (at, &owner) in buffer.iter().enumerate() {
            let heat = match (u64::from(counts[at]) * self.used).cmp(&self.sum) {
                std::cmp::Ordering::Greater => Heat::Hot,
                std::cmp::Ordering::Less => Heat::Cold,
                std::cmp::Ordering::Equal => match at.checked_sub(1) {
                    Some(last) if counts[last] == counts[at] && follows(buffer[last], owner) => heats[last],
                    _ if self.random.random_bool(0.5) => Heat::Hot,
                    _ => Heat::Cold,
                },
            };
            heats.push(heat);
        }
        heats
    }

    /// Returns the number of a block's references within the time-bar.
    fn count(&mut self, owner: Owner, now_ns: u64) -> u32 {
        let Some(at) = self.find(owner) else { return 0 };
        self.zero_if_aged(at, now_ns);
        self.slots[at].count
    }

    fn adapt(&mut self, counts: &[u32]) {
        if counts.len() < SAMPLE_MIN {
            return;
        }
        let mut sorted = counts.to_vec();
        sorted.sort_unstable();
        let equal = sorted.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
        if equal * 10 >= counts.len() * 9 {
            self.time_bar_ns = (self.time_bar_ns * 2).min(TIME_BAR_MAX_NS);
        } else if equal * 10 <= counts.len() {
            self.time_bar_ns = (self.time_bar_ns / 2).max(TIME_BAR_MIN_NS);
        }
    }

    /// Ages one slot per access, so that the counts of blocks without accesses become zero as well.
    fn age_one(&mut self, now_ns: u64) {
        self.zero_if_aged(self.hand, now_ns);
        self.hand = (self.hand + 1) % self.slots.len();
    }

    fn zero_if_aged(&mut self, at: usize, now_ns: u64) {
        let slot = &mut self.slots[at];
        let age_ns = u64::from(ticks(now_ns).saturating_sub(slot.accessed)) * TICK_NS;
        if slot.count != FREE && age_ns > self.time_bar_ns {
            self.sum -= u64::from(slot.count);
            slot.count = 0;
        }
    }

    /// Returns the slots in which a block may be.
    fn set(&self, owner: Owner) -> std::ops::Range<usize> {
        let sets = self.slots.len() / WAYS;
        let mixed = (u64::from(owner.ino.0) << 32 ^ owner.lbn).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let set = (mixed >> 32) as usize % sets;
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, owner: Owner) -> Option<usize> {
        self.set(owner).find(|&at| self.slots[at].is_of(owner))
    }

    /// Gives the block a slot with count zero: a free one, or the least referenced of its set.
    fn evict(&mut self, owner: Owner) -> usize {
        let set = self.set(owner);
        let free = set.clone().find(|&at| self.slots[at].count == FREE);
        let at = free.unwrap_or_else(|| {
            let least = |&at: &usize| (self.slots[at].count, self.slots[at].accessed);
            set.clone().min_by_key(least).unwrap_or(set.start)
        });
        match self.slots[at].count {
            FREE => self.used += 1,
            count => self.sum -= u64::from(count),
        }
        self.slots[at] = Slot { ino: owner.ino, lbn: owner.lbn as u32, count: 0, accessed: 0 };
        at
    }
}

/// True if the second block continues the first.
fn follows(one: Owner, other: Owner) -> bool {
    one.ino == other.ino && one.lbn.checked_add(1) == Some(other.lbn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u32, blocks: u64) -> Vec<Owner> {
        (0..blocks).map(|lbn| Owner { ino: Nid(ino), lbn }).collect()
    }

    fn touch(wolf: &mut Wolf, blocks: &[Owner], times: u32, now_ns: u64) {
        for _ in 0..times {
            blocks.iter().for_each(|block| wolf.accessed(block.ino, block.lbn, now_ns));
        }
    }

    #[test]
    fn the_most_referenced_are_hot() {
        let mut wolf = Wolf::new(1 << 10, 1);
        touch(&mut wolf, &file(4, 8), 9, S);
        (10..30).for_each(|ino| touch(&mut wolf, &file(ino, 8), 1, S));
        assert_eq!(wolf.split(&[file(4, 8), file(10, 8)].concat(), S), [[Heat::Hot; 8], [Heat::Cold; 8]].concat());
    }

    #[test]
    fn counts_are_forgotten_behind_the_time_bar_and_in_idle_time() {
        let mut wolf = Wolf::new(1 << 10, 1);
        touch(&mut wolf, &file(4, 8), 9, S);
        touch(&mut wolf, &file(5, 8), 2, TIME_BAR_NS + 2 * S);
        let both = [file(4, 8), file(5, 8)].concat();
        assert_eq!(wolf.split(&both, TIME_BAR_NS + 2 * S), [[Heat::Cold; 8], [Heat::Hot; 8]].concat());
        wolf.idle();
        touch(&mut wolf, &file(4, 8), 1, TIME_BAR_NS + 3 * S);
        assert_eq!(wolf.split(&both, TIME_BAR_NS + 3 * S), [[Heat::Hot; 8], [Heat::Cold; 8]].concat());
    }

    #[test]
    fn equal_counts_keep_files_together_and_depend_on_the_seed_only() {
        let buffer: Vec<Owner> = (1..100).flat_map(|ino| file(ino, 8)).collect();
        let split = |seed| {
            let mut wolf = Wolf::new(1 << 12, seed);
            touch(&mut wolf, &buffer, 3, S);
            wolf.split(&buffer, S)
        };
        assert_eq!(split(7), split(7));
        assert_ne!(split(7), split(8));
        assert!(split(7).chunks(8).all(|file| file.iter().all(|&heat| heat == file[0])));
        let hot = split(7).iter().filter(|&&heat| heat == Heat::Hot).count();
        assert!((200..600).contains(&hot), "{hot} of 792 are hot");
    }

    #[test]
    fn the_time_bar_follows_the_spread_of_counts() {
        let mut wolf = Wolf::new(1 << 10, 1);
        let buffer = file(4, 100);
        touch(&mut wolf, &buffer, 1, S);
        wolf.split(&buffer, S);
        assert_eq!(wolf.time_bar_ns(), 2 * TIME_BAR_NS);
        for (times, block) in buffer.iter().enumerate() {
            touch(&mut wolf, &[*block], times as u32 / 5, S);
        }
        wolf.split(&buffer, S);
        assert_eq!(wolf.time_bar_ns(), TIME_BAR_NS);
    }

    /// Returns the share of writes to hot files that a table of so many places sees as hot: a tenth of 15,000 files of
    /// eight blocks gets 90 % of the writes.
    fn seen_as_hot(places: usize) -> f64 {
        let bounds = Bounds { blocks: 1 << 18, bytes_max: places * size_of::<Slot>() };
        let mut separator = ByReferences.separator(1, bounds);
        let mut random = Pcg64Mcg::seed_from_u64(5);
        let (mut seen, mut all) = (0, 0);
        for write in 0..30_000 {
            let is_hot = random.random_bool(0.9);
            let ino = if is_hot { random.random_range(0..1500) } else { random.random_range(1500..15_000) };
            let range = moafs_vfs::types::LbnRange { start: moafs_vfs::types::Lbn(0), len: 8 };
            let blocks = FileBlocks { ino: Nid(10 + ino), range, mark: None };
            let heat = separator.heat(&blocks, write * S / 100);
            if is_hot && write > 10_000 {
                all += 1;
                seen += u32::from(heat == Some(Heat::Hot));
            }
        }
        f64::from(seen) / f64::from(all)
    }

    #[test]
    fn a_table_that_has_room_for_the_hot_set_sees_most_writes_to_it() {
        let (small, large) = (seen_as_hot(1 << 10), seen_as_hot(1 << 17));
        assert!(large > 0.7 && small < 0.6 * large, "{small} and {large}");
    }

    #[test]
    fn the_table_has_a_place_for_each_block_as_far_as_memory_allows() {
        let bytes = |blocks, bytes_max| ByReferences.separator(1, Bounds { blocks, bytes_max }).memory();
        assert_eq!((bytes(1 << 16, 64 << 20), bytes(1 << 30, 1 << 20)), (1 << 20, 1 << 20));
    }

    #[test]
    fn what_cleaning_moves_joins_neither_hot_nor_cold_data() {
        let mut separator = ByReferences.separator(1, Bounds { blocks: 1 << 10, bytes_max: 1 << 20 });
        assert_eq!(separator.moved(Owner { ino: Nid(4), lbn: 0 }), None);
    }

    #[test]
    fn memory_is_bounded_and_the_books_agree() {
        let mut wolf = Wolf::new(100, 1);
        for at in 0..10_000u64 {
            wolf.accessed(Nid(1 + (at % 37) as u32), at % 400, at * S);
        }
        assert_eq!(wolf.slots.len(), 104);
        let used = wolf.slots.iter().filter(|slot| slot.count != FREE);
        assert_eq!(wolf.used, used.clone().count() as u64);
        assert_eq!(wolf.sum, used.map(|slot| u64::from(slot.count)).sum::<u64>());
    }
}
