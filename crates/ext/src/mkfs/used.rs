//! The blocks that a new volume uses, as ranges: a volume of 16 TiB has some ten thousand of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UsedBlocks {
    /// The ranges by their first block: behind the last block. They neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
}

impl UsedBlocks {
    /// Returns the last range that begins at or before `block`.
    fn range_before(&self, block: u64) -> Option<Range<u64>> {
        self.ranges.range(..=block).next_back().map(|(start, end)| *start..*end)
    }

    /// Adds blocks, none of which may be in the set.
    pub(super) fn take(&mut self, blocks: Range<u64>) {
        debug_assert!(self.first_run(blocks.start, blocks.end - blocks.start) == blocks.start, "{blocks:?} are free");
        if blocks.is_empty() {
            return;
        }
        let (mut start, mut end) = (blocks.start, blocks.end);
        if let Some(before) = self.range_before(start).filter(|before| before.end == start) {
            start = before.start;
        }
        if let Some(behind) = self.ranges.remove(&end) {
            end = behind;
        }
        self.ranges.insert(start, end);
    }

    /// Returns the start of the first run of `len` blocks from `from` on that are not in the set.
    pub(super) fn first_run(&self, from: u64, len: u64) -> u64 {
        let mut start = self.range_before(from).map_or(from, |before| before.end.max(from));
        for (next, end) in self.ranges.range(start..) {
            if *next >= start + len {
                break;
            }
            start = *end;
        }
        start
    }

    /// Returns the first free block from `from` on, and the number of free blocks there.
    pub(super) fn free_run(&self, from: u64) -> (u64, u64) {
        let start = self.first_run(from, 1);
        let end = self.ranges.range(start..).next().map_or(u64::MAX, |(next, _)| *next);
        (start, end - start)
    }

    /// Returns the parts of `blocks` that are in the set, ascending.
    pub(super) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.range_before(blocks.start).filter(|before| before.end > blocks.start);
        let rest = self.ranges.range(blocks.start + 1..blocks.end).map(|(start, end)| *start..*end);
        let cut = move |range: Range<u64>| range.start.max(blocks.start)..range.end.min(blocks.end);
        first.into_iter().chain(rest).map(cut)
    }

    /// Returns the number of blocks of `blocks` that are in the set.
    pub(super) fn count(&self, blocks: Range<u64>) -> u64 {
        self.within(blocks).map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn answers_are_those_of_a_plain_set(runs in prop::collection::vec((0u64..200, 1u64..20), 0..30)) {
            let (mut used, mut plain) = (UsedBlocks::default(), BTreeSet::new());
            for (from, len) in runs {
                let start = used.first_run(from, len);
                let expected = (from..).find(|at| (*at..at + len).all(|block| !plain.contains(&block)));
                prop_assert_eq!(Some(start), expected);
                used.take(start..start + len);
                plain.extend(start..start + len);
                let found: Vec<u64> = used.within(from..from + 40).flatten().collect();
                let inside: Vec<u64> = plain.range(from..from + 40).copied().collect();
                prop_assert_eq!(used.count(from..from + 40), inside.len() as u64);
                prop_assert_eq!(found, inside);
            }
        }
    }
}
