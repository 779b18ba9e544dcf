//! The best few candidates by a score, and which of them are cleaned together.
//!
//! 1. The best candidate that fits the room is the first victim. Its class is that of all: node sections are cleaned as
//!    before, only data profit from being sorted together.
//! 2. Without `files`, the next best follow, each if it fits the room that is left.
//! 3. With `files`, those among the next best [`SHARING_CANDIDATES`] per wanted victim come first that have the most
//!    files in common with the first victim; equal ones in order of their score. So a file's pieces meet in one queue.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::clean::table::{Class, SectionView, Table};
use crate::clean::{FilesOf, Want};
use crate::format::Nid;

/// Candidates looked at per wanted victim when victims are to share files: each costs a read of its summaries.
pub const SHARING_CANDIDATES: usize = 4;
/// Victims cleaned together at most: bounds the memory of the queue of valid blocks.
pub const BATCH_MAX: u32 = 64;

/// A candidate. Candidates order by preference: higher score first, then lower number.
#[derive(Debug, Clone, Copy)]
struct Ranked {
    score: f64,
    view: SectionView,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        other.score.total_cmp(&self.score).then(self.view.section.cmp(&other.view.section))
    }
}

/// The most preferred candidates of one class, bounded in number; the least preferred of them on
/// top of the heap.
struct Best {
    keep: usize,
    heap: BinaryHeap<Ranked>,
}

impl Best {
    fn new(keep: usize) -> Best {
        Best { keep, heap: BinaryHeap::with_capacity(keep) }
    }

    fn offer(&mut self, new: Ranked) {
        if self.heap.len() < self.keep {
            self.heap.push(new);
        } else if let Some(mut last) = self.heap.peek_mut()
            && new < *last
        {
            *last = new;
        }
    }
}

/// Returns the victims with the highest scores, best first: at most `want.batch`, none if there is
/// no candidate. One pass.
pub fn best(table: &impl Table, want: &Want<'_>, score: impl Fn(&SectionView) -> f64) -> Vec<SectionView> {
    let count = want.batch.clamp(1, BATCH_MAX) as usize;
    let keep = 1 + (count - 1) * SHARING_CANDIDATES;
    let (mut data, mut nodes) = (Best::new(keep), Best::new(keep));
    for view in table.sections() {
        if view.is_candidate() && u64::from(view.valid) <= want.room_blocks {
            let best = if view.class == Class::Data { &mut data } else { &mut nodes };
            best.offer(Ranked { score: score(&view), view });
        }
    }
    let [data, nodes] = [data, nodes].map(|best| best.heap.into_sorted_vec());
    let nodes_first = nodes.first().is_some_and(|node| data.first().is_none_or(|data| node < data));
    let ranked = if nodes_first { nodes } else { data };
    let mut ranked: Vec<SectionView> = ranked.into_iter().map(|ranked| ranked.view).collect();
    if let Some(files) = want.files {
        sharing_first(&mut ranked, files);
    }
    within(ranked, count, want.room_blocks)
}

/// Moves those with the most files in common with the first to the front, behind the first.
fn sharing_first(ranked: &mut [SectionView], files: &FilesOf<'_>) {
    let Some((first, rest)) = ranked.split_first_mut() else { return };
    let wanted = files(first.section);
    rest.sort_by_cached_key(|view| Reverse(common(&wanted, &files(view.section))));
}

/// Returns the number of ids that two ascending lists have in common.
fn common(a: &[Nid], b: &[Nid]) -> usize {
    let (mut at, mut count) = (0, 0);
    for nid in a {
        at += b[at..].partition_point(|other| other < nid);
        count += usize::from(b.get(at) == Some(nid));
    }
    count
}

/// Returns the first `count` whose valid blocks together fit the room.
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
    use crate::clean::Secno;
    use crate::format::Log;
    use crate::place::device::DeviceCost;

    pub(crate) fn want(batch: u32) -> Want<'static> {
        Want { batch, room_blocks: u64::MAX, hole_run_blocks: 8.0, device: DeviceCost::HDD, files: None }
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
    fn victims_are_of_one_class() {
        let mut table = VecTable::of(&[(300, 1), (100, 1), (200, 1), (150, 1)]);
        table.segments[1].log = Log::WarmNode;
        table.segments[3].log = Log::ColdNode;
        assert_eq!(numbers(best(&table, &want(4), emptiest)), [1, 3]);
        table.segments[0].valid = 99;
        assert_eq!(numbers(best(&table, &want(4), emptiest)), [0, 2]);
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
