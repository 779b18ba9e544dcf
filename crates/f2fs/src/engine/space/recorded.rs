//! Summaries of segments in memory.

use crate::format::sit::ValidMap;
use crate::format::summary::Summary;

/// A segment's summary in memory: the entries recorded since it was last on disk.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Recorded {
    pub(in crate::engine) summary: Box<Summary>,
    /// Entries that are right in `summary`; the others are on disk, in the summary area.
    pub(in crate::engine) known: ValidMap,
    /// True if every entry that matters is known.
    pub(in crate::engine) complete: bool,
}

impl Recorded {
    pub(in crate::engine) fn fresh() -> Recorded {
        Recorded { summary: Box::default(), known: ValidMap::default(), complete: true }
    }

    pub(in crate::engine) fn partial() -> Recorded {
        Recorded { complete: false, ..Recorded::fresh() }
    }

    /// Fills in the entries that are not known from the copy on disk.
    pub(in crate::engine) fn complete_from(&mut self, disk: &Summary) {
        for (at, entry) in disk.entries.iter().enumerate() {
            if !self.known.get(at) {
                self.summary.entries[at] = *entry;
            }
        }
        self.complete = true;
    }
}
