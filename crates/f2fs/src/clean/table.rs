//! The segment table as policies see it: counts and times, nothing else.
//!
//! The engine shows its table through [`Table`]; tests use a vector. Times are nanoseconds on the volume's
//! clock (the one that SIT's modification times count, in seconds, while the volume is mounted:
//! `docs/formats/f2fs.md`, section 4).

use serde::Serialize;

use crate::format::{Log, SEGMENT_BLOCKS, Segno};

/// A section of the main area, counted from its start: what cleaning frees at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Secno(pub u32);

impl std::fmt::Display for Secno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The contents of a segment; the two never mix in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Blocks of files and directories.
    Data,
    /// Inodes and the index below them.
    Node,
}

impl Class {
    /// Returns the class of a log's segments.
    pub fn of(log: Log) -> Class {
        if log.is_node() { Class::Node } else { Class::Data }
    }
}

/// The counts and times of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentView {
    /// The number of the segment in the main area.
    pub segno: Segno,
    /// The log that wrote it last.
    pub log: Log,
    /// Valid blocks, 0 to [`SEGMENT_BLOCKS`].
    pub valid: u16,
    /// Blocks that are invalid now and that the last checkpoint does not name either: what recycling may fill.
    pub reusable_holes: u16,
    /// The moment at which a block of it was last written or became invalid.
    pub mtime_ns: u64,
    /// The latest moment at which a block of it was written; a block that the cleaner moved counts with the
    /// `youngest_ns` of where it came from, so that moving makes nothing young.
    pub youngest_ns: u64,
    /// True for the head of a log.
    pub current: bool,
}

impl SegmentView {
    /// Returns the share of its blocks that are valid, 0 to 1.
    pub fn utilization(&self) -> f64 {
        f64::from(self.valid) / SEGMENT_BLOCKS as f64
    }
}

/// The counts and times of one section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionView {
    /// The number of the section in the main area.
    pub section: Secno,
    /// The contents of its segments.
    pub class: Class,
    /// Valid blocks in all its segments.
    pub valid: u32,
    /// Blocks in all its segments.
    pub blocks: u32,
    /// The moment at which a block of it was last written or became invalid.
    pub mtime_ns: u64,
    /// The latest moment at which a block of it was written; see [`SegmentView::youngest_ns`].
    pub youngest_ns: u64,
    /// True if one of its segments is the head of a log.
    pub current: bool,
}

impl SectionView {
    /// Returns the section that consists of these segments, or `None` if there are none.
    pub fn of(section: Secno, segments: impl IntoIterator<Item = SegmentView>) -> Option<SectionView> {
        let alone = |segment: SegmentView| SectionView {
            section,
            class: Class::of(segment.log),
            valid: u32::from(segment.valid),
            blocks: SEGMENT_BLOCKS as u32,
            mtime_ns: segment.mtime_ns,
            youngest_ns: segment.youngest_ns,
            current: segment.current,
        };
        segments.into_iter().map(alone).reduce(|all, one| SectionView {
            valid: all.valid.saturating_add(one.valid),
            blocks: all.blocks.saturating_add(one.blocks),
            mtime_ns: all.mtime_ns.max(one.mtime_ns),
            youngest_ns: all.youngest_ns.max(one.youngest_ns),
            current: all.current || one.current,
            ..all
        })
    }

    /// Returns the share of its blocks that are valid, 0 to 1.
    pub fn utilization(&self) -> f64 {
        f64::from(self.valid) / f64::from(self.blocks.max(1))
    }

    /// True if cleaning it frees something: some of its blocks are valid, not all, and no log writes into it.
    pub fn is_candidate(&self) -> bool {
        !self.current && self.valid > 0 && self.valid < self.blocks
    }
}

/// The segment table. Every iterator ascends by number, so that scans break ties to the lower number.
pub trait Table {
    /// Returns the present moment in nanoseconds, on the volume's clock.
    fn now_ns(&self) -> u64;

    /// Returns the sections that hold valid and invalid blocks. Others may be among them: policies
    /// skip sections that are not worth cleaning.
    fn sections(&self) -> impl Iterator<Item = SectionView>;

    /// Returns the segments of a class that hold valid and invalid blocks. Others may be among them, as
    /// above.
    fn segments(&self, class: Class) -> impl Iterator<Item = SegmentView>;
}

/// Room on the volume, in sections and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Headroom {
    /// Sections that a log may take now.
    pub free_sections: u32,
    /// Sections that the next checkpoint makes free.
    pub prefree_sections: u32,
    /// Sections that ordinary writes leave to cleaning and checkpoints.
    pub reserved_sections: u32,
    /// Sections that what is already promised (dirty nodes, directory blocks) can come to need.
    pub needed_sections: u32,
    /// Blocks of a section.
    pub section_blocks: u32,
    /// Valid blocks of the main area.
    pub valid_blocks: u64,
    /// All blocks of the main area.
    pub main_blocks: u64,
}

impl Headroom {
    /// Returns the share of the main area's blocks that are valid, 0 to 1.
    pub fn utilization(&self) -> f64 {
        self.valid_blocks as f64 / self.main_blocks.max(1) as f64
    }

    /// Returns the number of free sections that an ordinary write may take: none if cleaning has to come
    /// first (`docs/formats/f2fs.md`, section 11).
    pub fn spare_sections(&self) -> u32 {
        self.free_sections.saturating_sub(self.reserved_sections.saturating_add(self.needed_sections))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A table in a vector, with sections of one segment.
    pub(crate) struct VecTable {
        pub(crate) now_ns: u64,
        pub(crate) segments: Vec<SegmentView>,
    }

    impl VecTable {
        /// Returns a table of warm data segments with these valid counts and ages in seconds; every invalid
        /// block is reusable.
        pub(crate) fn of(valid_and_age_s: &[(u16, u64)]) -> VecTable {
            let now_ns = 1_000_000 * 1_000_000_000;
            let segment = |(at, &(valid, age_s)): (usize, &(u16, u64))| SegmentView {
                segno: Segno(at as u32),
                log: Log::WarmData,
                valid,
                reusable_holes: SEGMENT_BLOCKS as u16 - valid,
                mtime_ns: now_ns - age_s * 1_000_000_000,
                youngest_ns: now_ns - age_s * 1_000_000_000,
                current: false,
            };
            VecTable { now_ns, segments: valid_and_age_s.iter().enumerate().map(segment).collect() }
        }
    }

    impl Table for VecTable {
        fn now_ns(&self) -> u64 {
            self.now_ns
        }

        fn sections(&self) -> impl Iterator<Item = SectionView> {
            self.segments.iter().filter_map(|segment| SectionView::of(Secno(segment.segno.0), [*segment]))
        }

        fn segments(&self, class: Class) -> impl Iterator<Item = SegmentView> {
            self.segments.iter().copied().filter(move |segment| Class::of(segment.log) == class)
        }
    }

    #[test]
    fn a_section_adds_up_its_segments() {
        let table = VecTable::of(&[(100, 9), (50, 3)]);
        let section = SectionView::of(Secno(7), table.segments.iter().copied()).unwrap();
        assert_eq!((section.valid, section.blocks), (150, 1024));
        assert_eq!(section.youngest_ns, table.segments[1].youngest_ns);
        assert!(SectionView::of(Secno(7), []).is_none());
    }
}
