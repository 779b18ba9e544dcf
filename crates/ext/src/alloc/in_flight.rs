//! The blocks that were handed out to data on their way to the device, and that no file maps yet.
//!
//! They are not free any more, and what a program was promised when it wrote the data is not spent before the file maps
//! them. Without this count `statfs(2)` would show them as used twice.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks, as runs.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// The end of each run, by its start. Runs do not overlap.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl InFlight {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds a run of blocks, none of which is in the set.
    pub(super) fn add(&mut self, run: Range<u64>) {
        self.blocks += run.end - run.start;
        self.runs.insert(run.start, run.end);
    }

    /// Removes those blocks of a run that are in the set.
    pub(super) fn remove(&mut self, run: Range<u64>) {
        while let Some((&start, &end)) = self.runs.range(..run.end).next_back().filter(|(_, end)| **end > run.start) {
            self.runs.remove(&start);
            if start < run.start {
                self.runs.insert(start, run.start);
            }
            if end > run.end {
                self.runs.insert(run.end, end);
            }
            self.blocks -= end.min(run.end) - start.max(run.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_any_run_can_be_removed() {
        let mut set = InFlight::default();
        [10..20, 20..30, 40..50].into_iter().for_each(|run| set.add(run));
        assert_eq!(set.blocks(), 30);
        set.remove(0..10);
        set.remove(30..40);
        assert_eq!(set.blocks(), 30, "blocks that are not in it");
        set.remove(12..15);
        set.remove(12..15);
        assert_eq!(set.blocks(), 27);
        set.remove(18..42);
        assert_eq!(set.runs, BTreeMap::from([(10, 12), (15, 18), (42, 50)]));
        assert_eq!(set.blocks(), 2 + 3 + 8);
        set.remove(0..100);
        assert_eq!((set.blocks(), set.runs.len()), (0, 0));
    }
}
