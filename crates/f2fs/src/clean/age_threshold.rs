//! Age-threshold: the cheapest of the old sections, merged into segments of like age. The idea of today's F2FS
//! ("ATGC").
//!
//! 1. Old is what was last written longer ago than the candidates' mean age (ours: a fixed threshold in days suits a
//!    phone, not a run of an hour).
//! 2. Of the old, the emptiest first. So what is still being overwritten is left alone until it has died.
//! 3. If nothing is old (all candidates of one age), the emptiest of all.
//! 4. Valid blocks go to a segment whose youngest block is about as old, into its holes: data that have lived equally
//!    long will live on about equally long.

use crate::clean::table::{Class, Secno, SectionView, SegmentView, Table};
use crate::clean::{ChooseVictims, Decision, Destination, Want, select};
use crate::format::{SEGMENT_BLOCKS, Segno};

/// The policy. Two passes.
#[derive(Debug, Clone, Copy)]
pub struct AgeThreshold;

impl ChooseVictims for AgeThreshold {
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        let threshold_ns = mean_ns(table.sections().filter(SectionView::is_candidate).map(|view| view.youngest_ns))?;
        // Old sections score above all young ones.
        let score = |view: &SectionView| f64::from(view.youngest_ns < threshold_ns) + 1.0 - view.utilization();
        let victims = select::best(table, want, score);
        let youngest_ns = mean_ns(victims.iter().map(|view| view.youngest_ns))?;
        let victims = victims.iter().map(|view| view.section).collect();
        Some(Decision { victims, to: Destination::LikeAge { youngest_ns } })
    }
}

fn mean_ns(moments: impl Iterator<Item = u64>) -> Option<u64> {
    let (sum, count) = moments.fold((0u128, 0u128), |(sum, count), ns| (sum + u128::from(ns), count + 1));
    sum.checked_div(count).and_then(|mean| u64::try_from(mean).ok())
}

/// Returns the segment whose holes take blocks of this age: outside the victims, the one whose youngest block
/// is nearest in time, or `None` if there is none with holes.
///
/// `section_segments`: segments per section, at least 1.
pub fn target(
    table: &impl Table,
    class: Class,
    youngest_ns: u64,
    victims: &[Secno],
    section_segments: u32,
) -> Option<Segno> {
    let fits = |segment: &SegmentView| {
        !segment.current
            && segment.reusable_holes > 0
            && segment.valid > 0
            && usize::from(segment.valid) < SEGMENT_BLOCKS
            && !victims.contains(&Secno(segment.segno.0 / section_segments.max(1)))
    };
    let nearest = table.segments(class).filter(fits).min_by_key(|s| (s.youngest_ns.abs_diff(youngest_ns), s.segno));
    nearest.map(|segment| segment.segno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::select::testing::want;
    use crate::clean::table::testing::VecTable;

    #[test]
    fn the_emptiest_of_the_old_goes_to_a_segment_of_like_age() {
        let table = VecTable::of(&[(10, 1), (300, 1000), (200, 900), (400, 880), (250, 2)]);
        let decision = AgeThreshold.choose(&table, &want(1)).unwrap();
        assert_eq!(decision.victims, [Secno(2)]);
        let Destination::LikeAge { youngest_ns } = decision.to else { panic!("{:?}", decision.to) };
        assert_eq!(youngest_ns, table.segments[2].youngest_ns);
        assert_eq!(target(&table, Class::Data, youngest_ns, &decision.victims, 1), Some(Segno(3)));
    }

    #[test]
    fn if_all_are_of_one_age_the_emptiest_goes() {
        assert_eq!(AgeThreshold.choose(&VecTable::of(&[(30, 5), (20, 5)]), &want(1)).unwrap().victims, [Secno(1)]);
    }
}
