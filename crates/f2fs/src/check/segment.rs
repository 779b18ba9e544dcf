//! Segments: what the SIT says of them, and which of their blocks are used.

use crate::format::Log;
use crate::format::sit::{SitEntry, ValidMap};

/// A segment under check.
pub(super) struct Segment {
    /// The log of its type; `None` without a SIT entry, or if the entry cannot be believed.
    pub(super) log: Option<Log>,
    /// The blocks that the SIT says are in use.
    pub(super) valid: ValidMap,
    /// The blocks that have an owner.
    pub(super) reached: ValidMap,
    /// Blocks that belong to another log.
    pub(super) misfits: u32,
    /// An issue was recorded that nodes and data are mixed in it.
    pub(super) told_class: bool,
    /// The kind (nodes or data) of its summary was checked.
    pub(super) kind_checked: bool,
}

impl Segment {
    pub(super) fn of(entry: &SitEntry) -> Segment {
        Segment { log: Some(entry.log), ..Segment::damaged(entry.map) }
    }

    /// Returns a segment of which only the map is known.
    pub(super) fn damaged(valid: ValidMap) -> Segment {
        let reached = ValidMap::EMPTY;
        Segment { log: None, valid, reached, misfits: 0, told_class: false, kind_checked: false }
    }
}
