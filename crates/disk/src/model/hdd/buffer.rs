//! The buffer on board: read-ahead segments, and sectors waiting to be written.

use std::collections::BTreeMap;
use std::ops::Range;

/// One stream of reads: the sectors from `start` to `end` are in the buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The time of its last use, counted in uses.
    used: u64,
}

/// Read-ahead segments, replaced in least recently used order.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    segments: Vec<Segment>,
    segments_max: usize,
    segment_sectors: u64,
    uses: u64,
}

impl Segments {
    pub(super) fn new(segments_max: u32, segment_sectors: u32) -> Segments {
        let segments_max = segments_max as usize;
        Segments { segments: Vec::new(), segments_max, segment_sectors: u64::from(segment_sectors), uses: 0 }
    }

    pub(super) fn get(&self, index: usize) -> Segment {
        self.segments[index]
    }

    /// Returns the segment that has `at`, or ends right before it; of several, the one that reaches
    /// furthest.
    pub(super) fn find(&self, at: u64) -> Option<usize> {
        let fits = |(_, s): &(usize, &Segment)| s.start <= at && at <= s.end;
        self.segments.iter().enumerate().filter(fits).max_by_key(|(_, s)| s.end).map(|(index, _)| index)
    }

    /// Records a use of a segment.
    pub(super) fn touch(&mut self, index: usize) {
        self.uses += 1;
        self.segments[index].used = self.uses;
    }

    /// Makes a segment for a new stream that begins at `at`, in place of the least recently used.
    pub(super) fn begin(&mut self, at: u64) -> usize {
        let index = if self.segments.len() < self.segments_max {
            self.segments.push(Segment { start: at, end: at, used: 0 });
            self.segments.len() - 1
        } else {
            let oldest = self.segments.iter().enumerate().min_by_key(|(_, s)| s.used);
            let index = oldest.map_or(0, |(index, _)| index);
            self.segments[index] = Segment { start: at, end: at, used: 0 };
            index
        };
        self.touch(index);
        index
    }

    /// Appends read sectors to a segment; sectors that no longer fit are dropped at its front.
    pub(super) fn extend(&mut self, index: usize, end: u64) {
        let segment = &mut self.segments[index];
        segment.end = end;
        segment.start = segment.start.max(end.saturating_sub(self.segment_sectors));
    }

    /// Returns the sector up to which read-ahead goes for a stream whose last request was `request`: the end of the
    /// segment that begins there, and at least half a segment ahead.
    pub(super) fn limit(&self, request: &Range<u64>) -> u64 {
        let start = request.start.max(request.end.saturating_sub(self.segment_sectors / 2));
        start + self.segment_sectors
    }

    /// Returns true if so little is left behind `at` that reading on is worth a move of the arm.
    pub(super) fn runs_low(&self, index: usize, at: u64) -> bool {
        self.segments[index].end - at < self.segment_sectors / 2
    }
}

/// Sectors waiting to be written: disjoint extents that do not touch, each as old as its oldest
/// part.
#[derive(Debug, Clone, Default)]
pub(super) struct Dirty {
    /// Extents: start to (end, age).
    extents: BTreeMap<u64, (u64, u64)>,
    /// Extents by age: age to (start, end); lower is older.
    ages: BTreeMap<u64, (u64, u64)>,
    writes: u64,
    sectors: u64,
}

impl Dirty {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns the number of sectors in all extents.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns true if the whole range is waiting to be written.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.extents.range(..=range.start).next_back().is_some_and(|(_, &(end, _))| end >= range.end)
    }

    /// Adds a range; neighbours become one extent.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        let mut age = self.writes;
        self.writes += 1;
        while let Some((&from, &(to, older))) = self.extents.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.take_out(from);
            (start, end, age) = (start.min(from), end.max(to), age.min(older));
        }
        self.put_in(start, end, age);
    }

    /// Removes a range: it was written by another command, or is being written.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        while let Some((&from, &(to, age))) = self.extents.range(..range.end).next_back() {
            if to <= range.start {
                break;
            }
            self.take_out(from);
            if to > range.end {
                // The parts share an age only if both stay; the rear one then counts as a new write.
                let hinder = if from < range.start { self.writes } else { age };
                self.writes += 1;
                self.put_in(range.end, to, hinder);
            }
            if from < range.start {
                self.put_in(from, range.start, age);
            }
        }
    }

    /// Returns the oldest extents.
    pub(super) fn oldest(&self, count: usize) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ages.values().take(count).map(|&(start, end)| start..end)
    }

    fn put_in(&mut self, start: u64, end: u64, age: u64) {
        self.extents.insert(start, (end, age));
        self.ages.insert(age, (start, end));
        self.sectors += end - start;
    }

    fn take_out(&mut self, start: u64) {
        if let Some((end, age)) = self.extents.remove(&start) {
            self.ages.remove(&age);
            self.sectors -= end - start;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn extents(dirty: &Dirty) -> Vec<Range<u64>> {
        dirty.oldest(usize::MAX).collect()
    }

    #[test]
    fn neighbours_become_one_extent_as_old_as_the_oldest() {
        let mut dirty = Dirty::default();
        dirty.insert(100..108);
        dirty.insert(50..58);
        dirty.insert(108..116);
        assert_eq!(extents(&dirty), [100..116, 50..58]);
        dirty.insert(58..100);
        assert_eq!(extents(&dirty).len(), 1);
        assert_eq!(extents(&dirty)[0], 50..116);
        assert!(dirty.covers(&(60..116)) && !dirty.covers(&(60..117)));
        dirty.remove(&(60..70));
        assert_eq!(extents(&dirty), [50..60, 70..116]);
        assert_eq!(dirty.sectors(), 56);
    }

    proptest! {
        #[test]
        fn extents_hold_what_a_set_of_sectors_holds(ops in prop::collection::vec((any::<bool>(), 0_u64..100, 1_u64..20), 1..60)) {
            let (mut dirty, mut model) = (Dirty::default(), BTreeSet::new());
            for (insert, start, sectors) in ops {
                let range = start..start + sectors;
                if insert {
                    dirty.insert(range.clone());
                    model.extend(range);
                } else {
                    dirty.remove(&range);
                    model.retain(|sector| !range.contains(sector));
                }
                let held: BTreeSet<u64> = extents(&dirty).into_iter().flatten().collect();
                prop_assert_eq!(&held, &model);
                prop_assert_eq!(dirty.sectors(), model.len() as u64);
                prop_assert_eq!(dirty.ages.len(), dirty.extents.len());
            }
        }
    }

    #[test]
    fn the_least_recently_used_segment_goes_first() {
        let mut segments = Segments::new(2, 100);
        let (one, two) = (segments.begin(0), segments.begin(1000));
        segments.extend(one, 50);
        segments.touch(one);
        assert_eq!(segments.begin(5000), two);
        assert_eq!(segments.find(20), Some(one));
        assert_eq!(segments.find(51), None);
        segments.extend(one, 130);
        assert_eq!(segments.get(one).start, 30);
    }
}
