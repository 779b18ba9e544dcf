//! The sections and blocks that swap areas have.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The sections and blocks of swap areas. Blocks are counted from the start of the main area.
#[derive(Default)]
pub(super) struct Areas {
    pub(super) reserved_blocks: u64,
    /// Sections kept for them: enough for what is reserved, and all that are taken.
    pub(super) kept: u32,
    /// Sections with taken blocks.
    pub(super) sections: BTreeSet<u32>,
    /// Taken runs: first block to length.
    pub(super) runs: BTreeMap<u32, u32>,
    /// Segments of the sections that were ever taken: each will be erased once more.
    pub(super) segments_taken: u64,
}

impl Areas {
    /// Returns the number of sections that are kept and not taken.
    pub(super) fn aside(&self) -> u32 {
        self.kept - self.sections.len() as u32
    }

    pub(super) fn has(&self, section: u32) -> bool {
        self.sections.contains(&section)
    }

    /// Returns the taken parts of a range, ascending.
    pub(super) fn taken_in(&self, range: &Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let (first, end) = (range.start, range.end);
        let across = self.runs.range(..first).next_back();
        let all = across.into_iter().chain(self.runs.range(first..end.max(first)));
        all.map(move |(start, len)| (*start).max(first)..(start + len).min(end)).filter(|part| !part.is_empty())
    }

    /// Forgets the taken blocks of a range; returns how many there were.
    pub(super) fn forget(&mut self, range: &Range<u32>) -> u32 {
        let parts: Vec<Range<u32>> = self.taken_in(range).collect();
        for part in &parts {
            let (&start, &len) = self.runs.range(..=part.start).next_back().expect("a part of a run");
            self.runs.remove(&start);
            if start < part.start {
                self.runs.insert(start, part.start - start);
            }
            if part.end < start + len {
                self.runs.insert(part.end, start + len - part.end);
            }
        }
        parts.iter().map(|part| part.end - part.start).sum()
    }
}
