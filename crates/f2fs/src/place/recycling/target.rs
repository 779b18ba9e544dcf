//! Recycling: new data go into the invalid blocks of used segments; nothing is copied, no clean segment is needed.
//!
//! 1. The target, by the segment's utilization U and the time since it was last written or lost a block, Age:
//!    - hot data: the *hottest* segment, the least `U * Age`: touched lately, and holes enough;
//!    - cold data: the *coldest*, the least `U / Age`: long untouched, and yet not full;
//!    - data of which nothing is known (warm; ours): the least `U`.
//! 2. *Ours*: full segments, empty ones (clean, they would always win) and heads of logs are no targets; so hot and
//!    cold never share one. Age is at least one tick. Equal segments: the lower number.
//! 3. An unfinished target is continued by the next buffer of its temperature: it is the head of its log, and
//!    [`next_hole`] says where the log goes on.
//! 4. Holes are filled in ascending order, adjacent ones in one request.
//! 5. A block that the last checkpoint names is no hole, though it is invalid now: until the next checkpoint is
//!    durable, the volume may return to it after a power cut. It counts as used, in U too (*ours*): what cannot be
//!    filled yet makes no target.
//!
//! Reference: Oh, Kim, Choi, Lee, Noh: A Segment Space Recycling Scheme for Optimizing Write Performance of LFS (2009),
//! section 4; the points marked *ours* are not in it.

use crate::clean::table::{Class, SegmentView, Table};
use crate::format::{Log, SEGMENT_BLOCKS, Segno};

/// The resolution of an age: that of the modification times in segment usage tables (SIT's, 4.4BSD LFS's). What was
/// touched within one tick is told apart by utilization alone.
pub const TICK_NS: u64 = 1_000_000_000;
/// One bit per block of a segment, the first block in the highest bit of the first byte
/// (`docs/formats/f2fs.md`, section 4).
pub type BlockMap = [u8; SEGMENT_BLOCKS / 8];

/// The rule by which a target is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The segment with the least `U * Age`.
    Hottest,
    /// The segment with the least `U / Age`.
    Coldest,
    /// The segment with the least `U`.
    Emptiest,
}

impl Rule {
    /// Returns the rule for a log's temperature.
    pub fn of(log: Log) -> Rule {
        match log {
            Log::HotData | Log::HotNode => Rule::Hottest,
            Log::WarmData | Log::WarmNode => Rule::Emptiest,
            Log::ColdData | Log::ColdNode => Rule::Coldest,
        }
    }

    fn score(self, segment: &SegmentView, now_ns: u64) -> f64 {
        let age = now_ns.saturating_sub(segment.mtime_ns).max(TICK_NS) as f64 / TICK_NS as f64;
        let used = 1.0 - f64::from(segment.reusable_holes) / SEGMENT_BLOCKS as f64;
        match self {
            Rule::Hottest => used * age,
            Rule::Coldest => used / age,
            Rule::Emptiest => used,
        }
    }
}

/// Returns the segment that a log recycles next, or `None` if no segment of the class has a hole
/// that may be filled: then a checkpoint has to release blocks, or something has to be cleaned.
pub fn target(table: &impl Table, class: Class, rule: Rule) -> Option<SegmentView> {
    let now_ns = table.now_ns();
    table
        .segments(class)
        .filter(is_target)
        .map(|segment| (rule.score(&segment, now_ns), segment))
        .min_by(|(a, one), (b, other)| a.total_cmp(b).then(one.segno.cmp(&other.segno)))
        .map(|(_, segment)| segment)
}

/// Returns the target of a log, by the log's class and its temperature's rule.
pub fn target_of(table: &impl Table, log: Log) -> Option<Segno> {
    target(table, Class::of(log), Rule::of(log)).map(|segment| segment.segno)
}

fn is_target(segment: &SegmentView) -> bool {
    !segment.current && segment.reusable_holes > 0 && segment.valid > 0 && usize::from(segment.valid) < SEGMENT_BLOCKS
}

/// Adjacent blocks of a segment that may be filled by one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hole {
    /// The first block, counted from the segment's start.
    pub start: u16,
    /// Blocks of the run, at least 1.
    pub len: u16,
}

/// Returns the holes at or behind block `from`, ascending, as runs: blocks that are neither valid now nor
/// held by the last checkpoint.
pub fn holes(valid: &BlockMap, held: &BlockMap, from: u16) -> impl Iterator<Item = Hole> {
    let free: [u64; SEGMENT_BLOCKS / 64] = std::array::from_fn(|word| {
        let taken = (0..8).map(|byte| word * 8 + byte).fold(0, |bits, at| bits << 8 | u64::from(valid[at] | held[at]));
        !taken
    });
    let mut at = usize::from(from);
    std::iter::from_fn(move || {
        let start = find(&free, at, true)?;
        let end = find(&free, start, false).unwrap_or(SEGMENT_BLOCKS);
        at = end;
        Some(Hole { start: start as u16, len: (end - start) as u16 })
    })
}

/// Returns the first hole block at or behind `from`: where a recycling log goes on; `None` if the target is
/// finished.
pub fn next_hole(valid: &BlockMap, held: &BlockMap, from: u16) -> Option<u16> {
    holes(valid, held, from).next().map(|hole| hole.start)
}

/// Returns the first block at or behind `from` that is free, or that is not.
fn find(free: &[u64; SEGMENT_BLOCKS / 64], from: usize, wanted: bool) -> Option<usize> {
    let first = from / 64;
    free.iter().enumerate().skip(first).find_map(|(word, &bits)| {
        let bits = if wanted { bits } else { !bits };
        let bits = if word == first { bits & (u64::MAX >> (from % 64)) } else { bits };
        (bits != 0).then(|| word * 64 + bits.leading_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::table::testing::VecTable;
    use proptest::prelude::*;

    fn chosen(valid_and_age_s: &[(u16, u64)], rule: Rule) -> Option<u32> {
        target(&VecTable::of(valid_and_age_s), Class::Data, rule).map(|segment| segment.segno.0)
    }

    #[test]
    fn hot_data_go_to_the_hottest_and_cold_data_to_the_coldest_segment() {
        let table = [(256, 1), (256, 100), (128, 10), (300, 5), (500, 1000)];
        assert_eq!(chosen(&table, Rule::Hottest), Some(0));
        assert_eq!(chosen(&table, Rule::Coldest), Some(4));
        assert_eq!(chosen(&table, Rule::Emptiest), Some(2));
    }

    #[test]
    fn full_empty_and_current_segments_are_no_targets() {
        let mut table = VecTable::of(&[(0, 9), (512, 9), (10, 9), (100, 9)]);
        table.segments[2].current = true;
        table.segments[3].reusable_holes = 0;
        for rule in [Rule::Hottest, Rule::Coldest, Rule::Emptiest] {
            assert_eq!(target(&table, Class::Data, rule), None);
        }
        assert_eq!(target_of(&table, Log::WarmNode), None);
    }

    #[test]
    fn ages_below_a_tick_are_one_tick_and_equal_segments_give_the_lower_number() {
        let mut table = VecTable::of(&[(200, 0), (100, 0), (100, 0)]);
        table.segments[0].mtime_ns -= 5;
        for rule in [Rule::Hottest, Rule::Coldest] {
            assert_eq!(target(&table, Class::Data, rule).map(|s| s.segno), Some(Segno(1)));
        }
    }

    #[test]
    fn what_the_checkpoint_holds_is_no_hole() {
        let (mut valid, mut held) = ([0xFF; 64], [0; 64]);
        valid[0] = 0b1000_0011;
        held[0] = 0b0010_0000;
        valid[63] = 0b1111_1110;
        let found: Vec<Hole> = holes(&valid, &held, 0).collect();
        assert_eq!(found, [Hole { start: 1, len: 1 }, Hole { start: 3, len: 3 }, Hole { start: 511, len: 1 }]);
        assert_eq!(next_hole(&valid, &held, 4), Some(4));
        assert_eq!(next_hole(&valid, &held, 512), None);
    }

    proptest! {
        #[test]
        fn holes_are_exactly_the_free_blocks(bytes in prop::collection::vec(any::<u8>(), 128), from in 0u16..=520) {
            let valid: BlockMap = std::array::from_fn(|at| bytes[at]);
            let held: BlockMap = std::array::from_fn(|at| bytes[64 + at]);
            let is_free = |block: u16| {
                let at = usize::from(block) / 8;
                (valid[at] | held[at]) >> (7 - block % 8) & 1 == 0
            };
            let free: Vec<u16> = (from..512).filter(|&block| is_free(block)).collect();
            let runs: Vec<Hole> = holes(&valid, &held, from).collect();
            let listed: Vec<u16> = runs.iter().flat_map(|hole| hole.start..hole.start + hole.len).collect();
            prop_assert_eq!(listed, free);
            prop_assert!(runs.windows(2).all(|w| w[0].start + w[0].len < w[1].start));
        }
    }
}
