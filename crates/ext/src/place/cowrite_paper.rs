//! Co-writing to the letter of Figs. 6 and 7 of Lee, Ahn, Oh: Co-Writing Multiple Files Based on Directory Locality for
//! High Performance of Small File Writes (2008). [`cowrite`](super::cowrite) builds on it.
//!
//! At a delayed write of file f of directory d, whose inode lies in group g:
//!
//! 1. f is large (more than [`SMALL_BLOCKS_MAX`] blocks), or not all of it is in the cache: [`Ffs`](super::ffs::Ffs)
//!    decides.
//! 2. *Space* (Fig. 7): a run of N free blocks of g, the maximum transfer, however little waits; else of N - 1, …, 2.
//!    If there is none, or f does not fit: [`Ffs`](super::ffs::Ffs) decides.
//! 3. *Fill* (Fig. 6): f, then the smallest dirty small files of d that fit, whole, wherever they lay before. What is
//!    not filled is given back.
//! 4. One device request. What d has left waits for the next delayed write.
//!
//! Left open by the paper: a file that lies somewhere already moves only while its old place and the new one can both
//! be taken from the free space; else [`Ffs`](super::ffs::Ffs) decides. Defragmentation, which the paper does not have,
//! is that of [`Ffs`](super::ffs::Ffs).

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyView, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, Ino};

use super::draft::{Draft, WritePlan};
use super::ffs::{dirty_file, plan_file, tag};
use super::free_space::FreeSpace;
use super::members::{Member, group_of, member};
use super::policy::{Files, PlacementPolicy};
use crate::alloc::Fit;
use crate::format::GroupNo;

/// The shortest run that Fig. 7 looks for, in blocks.
const RUN_BLOCKS_MIN: u32 = 2;

/// The policy of co-writing as published.
pub struct CowritePaper;

impl PlacementPolicy for CowritePaper {
    fn plan<N>(
        &self,
        reason: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        free: &dyn FreeSpace,
    ) -> Result<WritePlan> {
        let mut draft = Draft::new(free);
        let Some(file) = dirty_file(reason, dirty, free.transfer_blocks()) else { return Ok(draft.finish()) };
        let is_small = file.blocks <= SMALL_BLOCKS_MAX && !matches!(reason, WritebackReason::Move(_));
        if !is_small || !co_write(reason, dirty, files, &mut draft)? {
            plan_file(reason, &file, files, &mut draft)?;
        }
        Ok(draft.finish())
    }

    fn co_writes(&self) -> bool {
        true
    }
}

/// Plans one request for the small file that has to leave and files of its directory. False if there is no run, or the
/// file does not fit.
fn co_write<N>(
    reason: WritebackReason,
    dirty: &dyn DirtyView<N>,
    files: &dyn Files<N>,
    draft: &mut Draft<'_>,
) -> Result<bool> {
    let Some(first) = dirty.file(reason.ino(), None) else { return Ok(false) };
    let home = first.home;
    let Ok(first) = member(first, files)? else { return Ok(false) };
    let Some(run) = longest_run(draft, group_of(draft.geometry(), home))? else { return Ok(false) };
    let mut taken = Vec::new();
    let mut left = take(&mut taken, first, run.len, draft);
    if !taken.is_empty() {
        for ino in smallest_first(dirty, home).filter(|ino| *ino != reason.ino()) {
            let Some(file) = dirty.file(ino, None).filter(|file| file.blocks <= u64::from(left)) else { continue };
            if let Ok(next) = member(file, files)? {
                left = take(&mut taken, next, left, draft);
            }
        }
    }
    let filled = run.len - left;
    draft.give_back(BlockRun { start: BlockAddr(run.start.0 + u64::from(filled)), len: left }, false);
    if taken.is_empty() {
        return Ok(false);
    }
    let to = BlockRun { len: filled, ..run };
    let from = taken.iter().map(Member::whole).collect();
    draft.write([PlannedWrite { to, from, fresh: true, tag: tag(reason, reason.ino()) }]);
    Ok(true)
}

/// Chooses a run of as many free blocks of the group as one transfer has; else the longest of the group (Fig. 7).
fn longest_run(draft: &mut Draft<'_>, group: GroupNo) -> Result<Option<BlockRun>> {
    let transfer = draft.transfer_blocks();
    let run = draft.choose(group, Fit::AtLeast(transfer), transfer)?;
    if let Some(short) = run.filter(|run| run.len < RUN_BLOCKS_MIN) {
        draft.give_back(short, false);
    }
    Ok(run.filter(|run| run.len >= RUN_BLOCKS_MIN))
}

/// Returns the small dirty files of a directory, the smallest first.
fn smallest_first<N>(dirty: &dyn DirtyView<N>, home: Ino) -> impl Iterator<Item = Ino> + '_ {
    dirty.small_counts(home).into_iter().flat_map(move |blocks| dirty.small_files(home, blocks))
}

/// Takes a file along if it fits into `left` blocks and its old blocks can be given up; returns what is left then.
fn take<N>(taken: &mut Vec<Member<N>>, next: Member<N>, left: u32, draft: &mut Draft<'_>) -> u32 {
    let placed = next.placed_blocks();
    if next.blocks() > left || (placed > 0 && !draft.hold(placed)) {
        return left;
    }
    let left = left - next.blocks();
    taken.push(next);
    left
}

/// The examples of Lee, Ahn, Oh (2008).
#[cfg(test)]
mod tests {
    use super::super::ffs::Ffs;
    use super::super::testing::{Dirty, TestVolume, lengths};
    use super::*;

    fn small_files(count: usize) -> Dirty {
        (0..count).fold(Dirty::default(), |dirty, _| dirty.new_file(0, 1))
    }

    #[test]
    fn figure_4_takes_two_writes_and_one_seek() {
        let mut volume = TestVolume::with_free(&[(100, 4000), (8300, 1000)]);
        let dirty = [0, 1, 0, 0, 1, 0].into_iter().fold(Dirty::default(), |dirty, home| dirty.new_file(home, 1));
        let writes = volume.replace(&CowritePaper, dirty);
        assert_eq!((lengths(&writes), volume.seeks(&writes)), (vec![4, 2], 1));
    }

    #[test]
    fn figure_6_a_large_file_leaves_as_with_ffs() {
        let dirty = || Dirty::default().new_file(0, 20);
        let free = [(100, 4000)];
        let places = |policy: &dyn Fn(&mut TestVolume) -> Vec<PlannedWrite>| -> Vec<BlockRun> {
            policy(&mut TestVolume::with_free(&free)).iter().map(|write| write.to).collect()
        };
        let ffs = places(&|volume| volume.replace(&Ffs, dirty()));
        assert_eq!(places(&|volume| volume.replace(&CowritePaper, dirty())), ffs);
    }

    #[test]
    fn figure_6_one_delayed_write_is_one_transfer() {
        let writes = TestVolume::with_free(&[(100, 4000)]).replace(&CowritePaper, small_files(20));
        assert_eq!(lengths(&writes), [8, 8, 4]);
    }

    #[test]
    fn figure_6_the_smallest_files_fill_the_run_and_none_is_split() {
        let dirty = [3, 6, 1, 2].into_iter().fold(Dirty::default(), |dirty, blocks| dirty.new_file(0, blocks));
        let writes = TestVolume::with_free(&[(100, 4000)]).replace(&CowritePaper, dirty);
        let lens = |write: &PlannedWrite| write.from.iter().map(|from| from.range.len).collect::<Vec<_>>();
        assert_eq!(writes.iter().map(lens).collect::<Vec<_>>(), [vec![3, 1, 2], vec![6]]);
    }

    #[test]
    fn figure_7_looks_for_one_transfer_then_for_the_longest_run_down_to_two_blocks() {
        let free = [(100, 2), (200, 3), (300, 5), (400, 1), (500, 1)];
        let writes = TestVolume::with_free(&free).replace(&CowritePaper, small_files(12));
        assert_eq!(lengths(&writes), [5, 3, 2, 1, 1]);
        let starts: Vec<u64> = writes.iter().map(|write| write.to.start.0).collect();
        assert_eq!(starts[..3], [300, 200, 100]);
    }

    #[test]
    fn figure_8_takes_two_writes_instead_of_four() {
        let free = [(100, 1), (200, 3), (300, 1), (400, 1)];
        assert_eq!(lengths(&TestVolume::with_free(&free).replace(&CowritePaper, small_files(4))), [3, 1]);
    }

    #[test]
    fn rewritten_files_move_even_from_a_run_of_their_own() {
        let rewritten = (0..8).fold(Dirty::default(), |dirty, at| dirty.file(0, vec![Some(5000 + at)]));
        let writes = TestVolume::with_free(&[(100, 3000)]).replace(&CowritePaper, rewritten);
        assert_eq!((lengths(&writes), writes[0].to.start.0), (vec![8], 100));
    }

    #[test]
    fn rewritten_files_stay_where_no_space_can_be_spared() {
        let rewritten = (0..3).fold(Dirty::default(), |dirty, at| dirty.file(0, vec![Some(5000 + 2 * at)]));
        let writes = TestVolume::with_free(&[(100, 20)]).replace(&CowritePaper, rewritten);
        assert!(writes.iter().all(|write| !write.fresh), "{writes:?}");
    }
}
