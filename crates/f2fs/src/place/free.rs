//! Free segments, and the number of sections in which all segments are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeBounds};

/// Numbers of free segments. Counting whole sections costs nothing, whatever the size of the volume.
#[derive(Debug)]
pub struct FreeSegments {
    all: BTreeSet<u32>,
    segments_per_section: u32,
    /// Free segments of sections that have some free and some not.
    partial: BTreeMap<u32, u32>,
    /// Sections of which every segment is free.
    whole: u32,
}

impl FreeSegments {
    /// Makes the set of these segments, for sections of `segments_per_section` (at least one).
    pub fn new(segments_per_section: u32, segments: impl IntoIterator<Item = u32>) -> FreeSegments {
        let segments_per_section = segments_per_section.max(1);
        let mut free = FreeSegments { all: BTreeSet::new(), segments_per_section, partial: BTreeMap::new(), whole: 0 };
        free.extend(segments);
        free
    }

    /// Makes these segments free.
    pub fn extend(&mut self, segments: impl IntoIterator<Item = u32>) {
        segments.into_iter().for_each(|segno| self.insert(segno));
    }

    fn insert(&mut self, segno: u32) {
        if self.all.insert(segno) {
            let section = self.section_of(segno);
            let count = self.partial.get(&section).copied().unwrap_or(0);
            self.set(section, count + 1);
        }
    }

    /// Removes a segment: it is used from now on.
    pub fn remove(&mut self, segno: u32) {
        if self.all.remove(&segno) {
            let section = self.section_of(segno);
            let count = match self.partial.get(&section) {
                Some(count) => *count,
                None => {
                    self.whole -= 1;
                    self.segments_per_section
                }
            };
            self.set(section, count - 1);
        }
    }

    /// Records how many segments of a section are free, if not all of them are.
    fn set(&mut self, section: u32, count: u32) {
        if count == 0 || count == self.segments_per_section {
            self.partial.remove(&section);
            self.whole += u32::from(count > 0);
        } else {
            self.partial.insert(section, count);
        }
    }

    /// True if the segment is free.
    pub fn contains(&self, segno: u32) -> bool {
        self.all.contains(&segno)
    }

    /// Returns the section of a segment.
    pub fn section_of(&self, segno: u32) -> u32 {
        segno / self.segments_per_section
    }

    /// Returns the segments of a section.
    pub fn section(&self, section: u32) -> Range<u32> {
        let first = section * self.segments_per_section;
        first..first + self.segments_per_section
    }

    /// True if no segment is free.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of free segments.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the lowest free segment.
    pub fn first(&self) -> Option<u32> {
        self.all.first().copied()
    }

    /// Returns the free segments of a range, ascending.
    pub fn range(&self, range: impl RangeBounds<u32>) -> impl Iterator<Item = u32> + Clone {
        self.all.range(range).copied()
    }

    /// Returns the number of sections of which every segment is free.
    pub fn whole_sections(&self) -> u32 {
        self.whole
    }

    /// True if every segment of the section is free.
    pub fn is_whole(&self, section: u32) -> bool {
        let first = section * self.segments_per_section;
        !self.partial.contains_key(&section) && self.all.contains(&first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_sections_are_those_that_counting_finds(
            per_section in 1..5u32,
            changes in prop::collection::vec((any::<bool>(), 0..40u32), 0..200),
        ) {
            let mut free = FreeSegments::new(per_section, 0..20);
            let mut plain: BTreeSet<u32> = (0..20).collect();
            for (add, segno) in changes {
                if add {
                    free.extend([segno]);
                    plain.insert(segno);
                } else {
                    free.remove(segno);
                    plain.remove(&segno);
                }
                let is_whole = |section: &u32| (0..per_section).all(|at| plain.contains(&(section * per_section + at)));
                prop_assert_eq!(free.whole_sections() as usize, (0..40).filter(is_whole).count());
                prop_assert!((0..40).all(|section| free.is_whole(section) == is_whole(&section)));
                prop_assert!(free.range(..).eq(plain.iter().copied()));
                prop_assert_eq!((free.len(), free.first()), (plain.len(), plain.first().copied()));
            }
        }
    }
}
