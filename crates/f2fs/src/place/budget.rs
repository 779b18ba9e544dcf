//! Accounting that keeps checkpoints possible: it tells whether every block that waits to be
//! written has a place.
//!
//! A checkpoint writes each dirty node into a segment of nodes and each dirty directory block into a
//! segment of data. Both take holes of used segments of their class, or free segments. So room is enough if
//! the free segments cover what the holes of each class leave over:
//!
//! `segments(owed nodes, node holes) + segments(owed data blocks, data holes) <= free segments`
//!
//! Each log keeps its last block until it has found another place, because a checkpoint names the next
//! block of every log; so three holes of each class (it has three logs) do not count.

use crate::clean::Class;
use crate::format::SEGMENT_BLOCKS;

/// Logs of a class.
pub const LOGS_PER_CLASS: u64 = 3;

/// Blocks of metadata, by the class of the segments they are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blocks {
    /// Blocks of nodes, inodes included.
    pub nodes: u64,
    /// Blocks of directories and symbolic links.
    pub data: u64,
}

impl Blocks {
    /// Returns a count of nodes and of blocks of directories. Each of the latter moves at the next
    /// checkpoint, which changes the node that points to it: the caller counts that node.
    pub const fn new(nodes: u64, data: u64) -> Blocks {
        Blocks { nodes, data }
    }
}

impl std::ops::Add for Blocks {
    type Output = Blocks;

    fn add(self, other: Blocks) -> Blocks {
        Blocks { nodes: self.nodes.saturating_add(other.nodes), data: self.data.saturating_add(other.data) }
    }
}

/// The blocks owed to the next checkpoint, and the places for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Free segments that logs may take.
    pub free_segments: u64,
    /// Blocks of used segments that may be written now, by class.
    pub holes: Blocks,
    /// Blocks that must still find a place.
    pub owed: Blocks,
}

impl Budget {
    /// True if everything that is owed finds a place.
    pub fn fits(&self) -> bool {
        self.segments(Class::Node).saturating_add(self.segments(Class::Data)) <= self.free_segments
    }

    /// True if that holds with `more` to be written.
    pub fn fits_with(&self, more: Blocks) -> bool {
        Budget { owed: self.owed + more, ..*self }.fits()
    }

    /// True if a log of this class may take a free segment and leave enough for everything else.
    pub fn may_open(&self, class: Class) -> bool {
        let Some(free_segments) = self.free_segments.checked_sub(1) else { return false };
        let blocks = SEGMENT_BLOCKS as u64;
        let gained = if class == Class::Node { Blocks::new(blocks, 0) } else { Blocks::new(0, blocks) };
        Budget { free_segments, holes: self.holes + gained, ..*self }.fits()
    }

    /// Returns how many more blocks of a class may be owed, or taken by file contents.
    pub fn spare(&self, class: Class) -> u64 {
        let other = if class == Class::Node { Class::Data } else { Class::Node };
        let segments = self.free_segments.saturating_sub(self.segments(other));
        let (owed, holes) = self.of(class);
        holes.saturating_add(segments * SEGMENT_BLOCKS as u64).saturating_sub(owed.saturating_add(LOGS_PER_CLASS))
    }

    /// Returns the number of free segments that a class needs beyond its holes.
    fn segments(&self, class: Class) -> u64 {
        let (owed, holes) = self.of(class);
        if owed == 0 {
            return 0;
        }
        owed.saturating_add(LOGS_PER_CLASS).saturating_sub(holes).div_ceil(SEGMENT_BLOCKS as u64)
    }

    fn of(&self, class: Class) -> (u64, u64) {
        match class {
            Class::Node => (self.owed.nodes, self.holes.nodes),
            Class::Data => (self.owed.data, self.holes.data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(free_segments: u64, holes: (u64, u64), owed: (u64, u64)) -> Budget {
        Budget { free_segments, holes: Blocks::new(holes.0, holes.1), owed: Blocks::new(owed.0, owed.1) }
    }

    #[test]
    fn each_class_needs_holes_of_its_own_or_free_segments() {
        assert!(budget(0, (13, 8), (10, 5)).fits());
        assert!(!budget(0, (12, 800), (10, 5)).fits(), "holes among data are no places for nodes");
        assert!(budget(1, (12, 8), (10, 5)).fits());
        assert!(!budget(1, (12, 7), (10, 5)).fits(), "one free segment serves one class");
        assert!(budget(2, (3, 3), (512, 512)).fits());
        assert!(!budget(2, (3, 3), (513, 512)).fits());
    }

    #[test]
    fn a_log_leaves_the_segments_that_the_other_class_needs() {
        assert!(budget(1, (100, 100), (50, 50)).may_open(Class::Data));
        assert!(!budget(1, (10, 100), (50, 50)).may_open(Class::Data));
        assert!(budget(1, (10, 100), (50, 50)).may_open(Class::Node));
        assert!(!budget(0, (600, 600), (0, 0)).may_open(Class::Data));
    }

    proptest! {
        #[test]
        fn what_is_spare_fits_and_one_more_does_not(
            free in 0u64..5, nodes in 0u64..2000, data in 0u64..2000, owed_nodes in 0u64..2000, owed_data in 0u64..2000,
        ) {
            let budget = budget(free, (nodes, data), (owed_nodes, owed_data));
            prop_assume!(budget.fits());
            let spare = budget.spare(Class::Node);
            prop_assert!(budget.fits_with(Blocks::new(spare, 0)));
            prop_assert!(!budget.fits_with(Blocks::new(spare + 1, 0)));
        }
    }
}
