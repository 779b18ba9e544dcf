//! Hole-plugging: the emptiest sections' valid blocks fill holes of other segments, so that cleaning needs no clean
//! segment.
//!
//! Good when the volume is full: a copy into clean segments gains `1 - u` of a section, this gains a whole one; but the
//! holes are scattered, so it writes one request per run of holes. It ignores the target's locality. The holes filled
//! are those of the *fullest* segments (ours): the emptier ones are the next victims.
//!
//! Reference: Matthews, Roselli, Costello, Wang, Anderson: Improving the Performance of Log-Structured File Systems
//! with Adaptive Methods (1997).

use crate::clean::greedy::{self, Greedy};
use crate::clean::table::{Class, Secno, SectionView, SegmentView, Table};
use crate::clean::{ChooseVictims, Decision, Destination, Want};
use crate::format::{SEGMENT_BLOCKS, Segno};

/// The policy. Valid blocks go into clean segments if the holes elsewhere do not suffice. Two passes.
#[derive(Debug, Clone, Copy)]
pub struct HolePlugging;

impl ChooseVictims for HolePlugging {
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        plug(table, want).map(|(decision, _)| decision).or_else(|| Greedy.choose(table, want))
    }
}

/// Returns a cleaning into holes, with its victims; `None` if there are no victims or too few holes
/// outside of them.
pub(super) fn plug(table: &impl Table, want: &Want<'_>) -> Option<(Decision, Vec<SectionView>)> {
    let victims = greedy::victims(table, &Want { room_blocks: u64::MAX, ..*want });
    let first = victims.first()?;
    let valid: u64 = victims.iter().map(|view| u64::from(view.valid)).sum();
    let inside: u64 = victims.iter().map(|view| u64::from(view.blocks - view.valid)).sum();
    let holes: u64 =
        table.segments(first.class).filter(has_holes).map(|segment| u64::from(segment.reusable_holes)).sum();
    // Holes inside the victims are counted in full: some may be held by the checkpoint, then this errs to the safe
    // side.
    (holes.saturating_sub(inside) >= valid).then(|| {
        let sections = victims.iter().map(|view| view.section).collect();
        (Decision { victims: sections, to: Destination::Holes }, victims)
    })
}

/// Returns the segment whose holes are filled next: the fullest that has any and lies in no victim, or
/// `None`.
///
/// `section_segments`: segments per section, at least 1.
pub fn target(table: &impl Table, class: Class, victims: &[Secno], section_segments: u32) -> Option<Segno> {
    let outside = |segment: &SegmentView| !victims.contains(&Secno(segment.segno.0 / section_segments.max(1)));
    let fullest =
        table.segments(class).filter(has_holes).filter(outside).max_by_key(|s| (s.valid, std::cmp::Reverse(s.segno)));
    fullest.map(|segment| segment.segno)
}

/// True if the segment's holes may be filled: some are free, it is not empty, and no log writes into it.
fn has_holes(segment: &SegmentView) -> bool {
    !segment.current && segment.reusable_holes > 0 && segment.valid > 0 && usize::from(segment.valid) < SEGMENT_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::select::testing::want;
    use crate::clean::table::testing::VecTable;

    #[test]
    fn the_emptiest_goes_into_the_holes_of_the_fullest() {
        let table = VecTable::of(&[(400, 9), (100, 9), (500, 9), (512, 9)]);
        let decision = HolePlugging.choose(&table, &want(1)).unwrap();
        assert_eq!(decision, Decision { victims: vec![Secno(1)], to: Destination::Holes });
        assert_eq!(target(&table, Class::Data, &decision.victims, 1), Some(Segno(2)));
        assert_eq!(target(&table, Class::Data, &[Secno(0), Secno(1)], 2), None);
        assert_eq!(target(&table, Class::Node, &[], 1), None);
    }

    #[test]
    fn without_enough_holes_elsewhere_it_copies_into_a_clean_segment() {
        let mut table = VecTable::of(&[(100, 9), (450, 9)]);
        assert_eq!(HolePlugging.choose(&table, &want(1)).unwrap().to, Destination::CleanSegment);
        table.segments.extend(VecTable::of(&[(470, 9)]).segments.iter().map(|s| SegmentView { segno: Segno(2), ..*s }));
        assert_eq!(HolePlugging.choose(&table, &want(1)).unwrap().to, Destination::Holes);
    }
}
