//! Chooses the segment to empty when room is short, independent of the cleaning policy.
//!
//! Two decisions, both by counts alone:
//! - [`segment`]: one segment that certainly becomes free: its valid blocks fit into the holes of
//!   other segments of its class, or into free segments that nothing else needs. The one with the
//!   fewest valid blocks.
//! - [`hoarded`]: segments of nodes that are mostly invalid. Node logs prefer free segments, and
//!   nodes die scattered over all of them; left alone they would hold the segments that data logs
//!   need.

use crate::clean::table::{Class, SegmentView, Table};
use crate::format::{SEGMENT_BLOCKS, Segno};
use crate::place::budget::Budget;

/// Valid blocks up to which a node segment is worth emptying.
const HOARD_VALID_MAX: u16 = SEGMENT_BLOCKS as u16 / 2;

/// Returns the segment to empty, or `None` if none can be emptied. One pass for each class.
pub fn segment(table: &impl Table, budget: &Budget) -> Option<SegmentView> {
    let best = |class: Class| {
        let spare = budget.spare(class);
        let fits = |view: &SegmentView| u64::from(view.valid) + u64::from(view.reusable_holes) <= spare;
        table.segments(class).filter(is_candidate).filter(fits).min_by_key(|view| (view.valid, view.segno))
    };
    let found = [best(Class::Data), best(Class::Node)].into_iter().flatten();
    found.min_by_key(|view| (view.valid, view.segno))
}

/// Returns the segments of nodes that are worth emptying together, those with the fewest valid nodes first:
/// as many as fit half of what is spare, and only if that frees more than they fill.
pub fn hoarded(table: &impl Table, budget: &Budget) -> Vec<Segno> {
    let mut candidates: Vec<SegmentView> =
        table.segments(Class::Node).filter(|view| is_candidate(view) && view.valid <= HOARD_VALID_MAX).collect();
    candidates.sort_unstable_by_key(|view| (view.valid, view.segno));
    let mut left = budget.spare(Class::Node) / 2;
    let fits = |view: &SegmentView| {
        let taken = u64::from(view.valid) + u64::from(view.reusable_holes);
        let fits = taken <= left;
        left -= if fits { taken } else { 0 };
        fits
    };
    let victims: Vec<SegmentView> = candidates.into_iter().take_while(fits).collect();
    let valid: usize = victims.iter().map(|view| usize::from(view.valid)).sum();
    if valid.div_ceil(SEGMENT_BLOCKS) < victims.len() {
        victims.into_iter().map(|view| view.segno).collect()
    } else {
        Vec::new()
    }
}

fn is_candidate(view: &SegmentView) -> bool {
    !view.current && view.valid > 0 && usize::from(view.valid) < SEGMENT_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::table::testing::VecTable;
    use crate::format::Log;
    use crate::place::budget::Blocks;

    fn budget(free_segments: u64, nodes: u64, data: u64) -> Budget {
        Budget { free_segments, holes: Blocks::new(nodes, data), owed: Blocks::default() }
    }

    #[test]
    fn the_emptiest_segment_of_either_class_is_emptied_if_the_others_can_take_it() {
        let mut table = VecTable::of(&[(300, 1), (100, 1), (400, 1), (450, 1)]);
        table.segments[1].log = Log::WarmNode;
        table.segments[3].log = Log::ColdNode;
        let chosen = |budget: &Budget| segment(&table, budget).map(|view| view.segno.0);
        // The holes of the victim itself are among those that are counted.
        assert_eq!(chosen(&budget(0, 412 + 62, 212 + 112)), None);
        assert_eq!(chosen(&budget(0, 412 + 103, 212 + 112)), Some(1));
        assert_eq!(chosen(&budget(0, 412 + 62, 212 + 303)), Some(0));
        assert_eq!(chosen(&budget(1, 412 + 62, 212 + 112)), Some(1));
    }

    #[test]
    fn nodes_that_hoard_segments_are_gathered() {
        let mut table = VecTable::of(&[(100, 1), (150, 1), (200, 1), (500, 1), (10, 1)]);
        table.segments.iter_mut().take(4).for_each(|segment| segment.log = Log::WarmNode);
        assert_eq!(hoarded(&table, &budget(6, 1000, 0)).len(), 3);
        assert!(hoarded(&table, &budget(0, 1000, 0)).is_empty(), "there is no room to move them to");
        table.segments.truncate(1);
        assert!(hoarded(&table, &budget(6, 1000, 0)).is_empty(), "one half-empty segment fills another");
    }
}
