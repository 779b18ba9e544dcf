//! The places at which logs write, and the counts of what they hand out.

use crate::format::{SEGMENT_BLOCKS, Segno};

/// The offset of a log that stands in no writable place.
pub(super) const EXHAUSTED: u16 = SEGMENT_BLOCKS as u16;

/// The place that a log writes next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) segno: Segno,
    /// The block to be handed out next. [`EXHAUSTED`] only while a volume is opened.
    pub(super) offset: u16,
    pub(super) recycling: bool,
}

moafs_runtime::counters! {
    /// Counters for the data logs and their blocks since the volume was opened.
    #[derive(serde::Serialize)]
    pub struct LogCounters {
        /// Free segments that logs began to fill.
        segments_opened: u64,
        /// Used segments whose holes logs began to fill.
        segments_recycled: u64,
        /// Blocks handed out at the end of a log.
        blocks_appended: u64,
        /// Blocks handed out in holes of used segments.
        blocks_recycled: u64,
        /// Runs of adjacent blocks handed out in holes.
        runs_recycled: u64,
    }
}
