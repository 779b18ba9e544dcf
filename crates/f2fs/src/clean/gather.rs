//! The best few candidates by a score, and which of them are cleaned together.
//!
//! 1. The best candidate that fits the room is the first victim. Its class is that of all: node sections are cleaned as
//!    before, only data profit from being sorted together.
//! 2. Without `files`, the next best follow, each if it fits the room that is left.
//! 3. With `files`, those among the next best [`SHARING_CANDIDATES`] per wanted victim come first that have the most files in
//!    common with the first victim; equal ones in order of their score. So a file's pieces meet in one queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clean::table::{Secno, SectionView, Table};
use crate::clean::{FilesOf, Want};
use crate::format::Nid;

/// Candidates looked at per wanted victim when victims are to share files: each costs a read of its summaries.
pub const SHARING_CANDIDATES: usize = 4;
/// Victims cleaned together at most: bounds the memory of the queue of valid blocks.
pub const GATHER_MAX: u32 = 64;

/// A candidate in order of preference: higher score first, then lower number.
#[derive(Debug, Clone, Copy)]
struct Ranked {
    score: f64,
    view: SectionView,
}

impl Ranked {
    fn key(&self) -> (Reverse<u64>, Secno) {
        (Reverse(ordered(self.score)), self.view.section)
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Scores are not negative, so their bits order as they do.
fn ordered(score: f64) -> u64 {
    debug_assert!(score >= 0.0, "score {score}");
    score.to_bits()
}

/// The victims with the highest scores (`score`: not negative, not NaN), at most `want.gather`, best first. Empty if there is no candidate.
pub fn best(table: &impl Table, want: &Want<'_>, score: impl Fn(&SectionView) -> f64) -> Vec<SectionView> {
    let count = want.gather.clamp(1, GATHER_MAX) as usize;
    let keep = if count > 1 { 1 + (count - 1) * SHARING_CANDIDATES } else { 1 };
    let fits = |view: &SectionView| view.is_candidate() && u64::from(view.valid) <= want.room_blocks;
    let Some(first) = table.sections().filter(fits).map(|view| Ranked { score: score(&view), view }).min() else {
        return Vec::new();
    };
    if count == 1 {
        return vec![first.view];
    }
    let mut heap = BinaryHeap::with_capacity(keep + 1);
    for view in table.sections().filter(fits).filter(|view| view.class == first.view.class) {
        heap.push(Ranked { score: score(&view), view });
        if heap.len() > keep {
            heap.pop();
        }
    }
    let mut ranked: Vec<SectionView> = heap.into_sorted_vec().into_iter().map(|ranked| ranked.view).collect();
    if let Some(files) = want.files {
        sharing_first(&mut ranked, files);
    }
    within(ranked, count, want.room_blocks)
}

/// Behind the first, moves those to the front that have the most files in common with it.
fn sharing_first(ranked: &mut [SectionView], files: &FilesOf<'_>) {
    let Some((first, rest)) = ranked.split_first_mut() else { return };
    let wanted = files(first.section);
    rest.sort_by_cached_key(|view| Reverse(common(&wanted, &files(view.section))));
}

/// How many numbers two ascending lists have in common.
fn common(a: &[Nid], b: &[Nid]) -> usize {
    let (mut at, mut count) = (0, 0);
    for nid in a {
        at += b[at..].partition_point(|other| other < nid);
        count += usize::from(b.get(at) == Some(nid));
    }
    count
}

/// The first `count` whose valid blocks together fit the room.
fn within(ranked: Vec<SectionView>, count: usize, room_blocks: u64) -> Vec<SectionView> {
    let mut left = room_blocks;
    let fits = |view: &SectionView| {
        let valid = u64::from(view.valid);
        let fits = valid <= left;
        left -= if fits { valid } else { 0 };
        fits
    };
    ranked.into_iter().filter(fits).take(count).collect()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::place::device::DeviceCost;

    pub(crate) fn want(gather: u32) -> Want<'static> {
        Want { gather, room_blocks: u64::MAX, hole_run_blocks: 8.0, device: DeviceCost::HDD, files: None }
    }

    fn numbers(views: Vec<SectionView>) -> Vec<u32> {
        views.into_iter().map(|view| view.section.0).collect()
    }

    fn emptiest(view: &SectionView) -> f64 {
        1.0 - view.utilization()
    }

    use crate::clean::table::testing::VecTable;

    #[test]
    fn the_best_come_first_and_fit_the_room_together() {
        let table = VecTable::of(&[(300, 1), (100, 1), (200, 1), (100, 1), (50, 1)]);
        assert_eq!(numbers(best(&table, &want(3), emptiest)), [4, 1, 3]);
        assert_eq!(numbers(best(&table, &Want { room_blocks: 260, ..want(3) }, emptiest)), [4, 1, 3]);
        assert_eq!(numbers(best(&table, &Want { room_blocks: 200, ..want(3) }, emptiest)), [4, 1]);
        assert!(best(&table, &Want { room_blocks: 49, ..want(3) }, emptiest).is_empty());
    }

    #[test]
    fn further_victims_share_files_with_the_first() {
        let table = VecTable::of(&[(10, 1), (20, 1), (30, 1), (40, 1)]);
        let files = |section: Secno| match section.0 {
            0 => vec![Nid(5), Nid(7), Nid(9)],
            3 => vec![Nid(4), Nid(5), Nid(9)],
            2 => vec![Nid(7)],
            _ => vec![Nid(6)],
        };
        assert_eq!(numbers(best(&table, &Want { files: Some(&files), ..want(3) }, emptiest)), [0, 3, 2]);
    }
}
