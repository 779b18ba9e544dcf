//! Sets of blocks, as ranges: a new volume of 16 TiB has some ten thousand of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockSet {
    /// The ranges by their first block: behind the last block. They neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    blocks: u64,
}

impl BlockSet {
    /// Returns the number of blocks in the set.
    pub(crate) fn len(&self) -> u64 {
        self.blocks
    }

    /// Returns the last range that begins at or before `block`.
    fn range_before(&self, block: u64) -> Option<Range<u64>> {
        self.ranges.range(..=block).next_back().map(|(start, end)| *start..*end)
    }

    /// Adds blocks, none of which may be in the set.
    pub(crate) fn add(&mut self, blocks: Range<u64>) {
        debug_assert!(self.first_run(blocks.start, blocks.end - blocks.start) == blocks.start, "{blocks:?} are free");
        if blocks.is_empty() {
            return;
        }
        self.blocks += blocks.end - blocks.start;
        let (mut start, mut end) = (blocks.start, blocks.end);
        if let Some(before) = self.range_before(start).filter(|before| before.end == start) {
            start = before.start;
        }
        if let Some(behind) = self.ranges.remove(&end) {
            end = behind;
        }
        self.ranges.insert(start, end);
    }

    /// Removes those of the blocks that are in the set.
    pub(crate) fn remove(&mut self, blocks: Range<u64>) {
        while let Some((&start, &end)) =
            self.ranges.range(..blocks.end).next_back().filter(|(_, end)| **end > blocks.start)
        {
            self.ranges.remove(&start);
            if start < blocks.start {
                self.ranges.insert(start, blocks.start);
            }
            if end > blocks.end {
                self.ranges.insert(blocks.end, end);
            }
            self.blocks -= end.min(blocks.end) - start.max(blocks.start);
        }
    }

    /// Returns the start of the first run of `len` blocks from `from` on that are not in the set.
    pub(crate) fn first_run(&self, from: u64, len: u64) -> u64 {
        let mut start = self.range_before(from).map_or(from, |before| before.end.max(from));
        for (next, end) in self.ranges.range(start..) {
            if *next >= start + len {
                break;
            }
            start = *end;
        }
        start
    }

    /// Returns the first block from `from` on that is not in the set, and the number of such blocks there.
    pub(crate) fn free_run(&self, from: u64) -> (u64, u64) {
        let start = self.first_run(from, 1);
        let end = self.ranges.range(start..).next().map_or(u64::MAX, |(next, _)| *next);
        (start, end - start)
    }

    /// Returns the parts of `blocks` that are in the set, ascending.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.range_before(blocks.start).filter(|before| before.end > blocks.start);
        let rest = self.ranges.range(blocks.start + 1..blocks.end).map(|(start, end)| *start..*end);
        let cut = move |range: Range<u64>| range.start.max(blocks.start)..range.end.min(blocks.end);
        first.into_iter().chain(rest).map(cut)
    }

    /// Returns the number of blocks of `blocks` that are in the set.
    pub(crate) fn count(&self, blocks: Range<u64>) -> u64 {
        self.within(blocks).map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn any_part_of_any_run_can_be_removed() {
        let mut set = BlockSet::default();
        [10..20, 20..30, 40..50].into_iter().for_each(|run| set.add(run));
        assert_eq!(set.len(), 30);
        set.remove(0..10);
        set.remove(30..40);
        assert_eq!(set.len(), 30, "blocks that are not in it");
        set.remove(12..15);
        set.remove(12..15);
        assert_eq!(set.len(), 27);
        set.remove(18..42);
        assert_eq!(set.ranges, BTreeMap::from([(10, 12), (15, 18), (42, 50)]));
        assert_eq!(set.len(), 2 + 3 + 8);
        set.remove(0..100);
        assert_eq!((set.len(), set.ranges.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn answers_are_those_of_a_plain_set(
            runs in prop::collection::vec((0u64..200, 1u64..20, prop::bool::weighted(0.3)), 0..30),
        ) {
            let (mut set, mut plain) = (BlockSet::default(), BTreeSet::new());
            for (from, len, is_removed) in runs {
                let start = set.first_run(from, len);
                let expected = (from..).find(|at| (*at..at + len).all(|block| !plain.contains(&block)));
                prop_assert_eq!(Some(start), expected);
                if is_removed {
                    set.remove(from..from + len);
                    plain.retain(|block| !(from..from + len).contains(block));
                } else {
                    set.add(start..start + len);
                    plain.extend(start..start + len);
                }
                let found: Vec<u64> = set.within(from..from + 40).flatten().collect();
                let inside: Vec<u64> = plain.range(from..from + 40).copied().collect();
                prop_assert_eq!(set.count(from..from + 40), inside.len() as u64);
                prop_assert_eq!(found, inside);
                prop_assert_eq!(set.len(), plain.len() as u64);
            }
        }
    }
}
