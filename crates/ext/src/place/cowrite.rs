//! Co-writing: when one small file's data must leave the cache, the dirty small files of its
//! directory leave with it, in one device request.
//!
//! At a delayed write of file f of directory d, whose inode lies in group g (Figs. 6 and 7 of Lee, Ahn, Oh: Co-Writing
//! Multiple Files Based on Directory Locality for High Performance of Small File Writes, 2008):
//!
//! 1. f is large (more than [`SMALL_BLOCKS_MAX`] blocks), or not all of it is in the cache: [`Ffs`](super::ffs::Ffs)
//!    decides.
//! 2. *Companions*: f first, then the smallest dirty small files of d, as far as they are whole in the cache.
//! 3. *Stay*: files that are overwritten and already lie in long runs of neighbours that are also
//!    written stay where they are. A move would gain nothing, and no pointer changes. Files that
//!    lie scattered move if that saves requests.
//! 4. *Place*: the rest goes to runs of g; files are taken whole or not at all; blocks that are not
//!    filled are given back. This is repeated until no file is left or g has no run that helps.
//!    Then [`Ffs`](super::ffs::Ffs) decides.
//! 5. A run is written in requests of at most the maximum transfer, cut between files. In a run
//!    files lie in the order of their inode numbers, so that a program that reads a directory in
//!    order reads forward.
//!
//! Only direct pointers change, in inodes that are written anyway. g is never left and never cleaned.
//!
//! Defragmentation ([`WritebackReason::Move`]) is the same for files that are clean: those that lie in long
//! runs stay, and are not written; the scattered ones move into runs that save requests, and into
//! no others.
//!
//! The paper takes runs of at most one transfer ([`cowrite_paper`](super::cowrite_paper)); this policy takes runs as
//! long as the files that wait, if the group has them, so that the requests of a directory follow one another. An fsync
//! takes along one transfer's worth of files, any other write-back all that wait, up to
//! [`COMPANION_BYTES_MAX`].

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyView, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, FileRange, Ino, Lbn, LbnRange};
use smallvec::SmallVec;

use super::draft::{Draft, WritePlan};
use super::ffs::{dirty_file, plan_file, tag};
use super::free_space::FreeSpace;
use super::inodes::Directories;
use super::members::{Member, group_of, member};
use super::policy::{Files, PlacementPolicy};
use crate::alloc::Fit;
use crate::format::BlockNo;

/// The most that one plan writes together, in bytes: bounds the memory of a plan, and how long a write-back
/// holds pages.
const COMPANION_BYTES_MAX: u32 = 16 << 20;
/// The shortest useful run, in blocks: with a shorter one the file goes where [`Ffs`](super::ffs::Ffs) puts it.
const RUN_BLOCKS_MIN: u32 = 2;
/// A group is full if less than this share (one in so many) of its blocks is free: then a short run
/// is not worth the way to it.
const FULL_SHARE: u32 = 4;
/// Moving overwritten files must save more requests than this: bitmaps have to be written as well.
const MOVE_REQUESTS: usize = 1;

/// The policy of co-writing.
pub struct Cowrite;

/// A run that was chosen for a directory.
struct Room {
    run: BlockRun,
    /// The place that the run comes from.
    from: Source,
}

/// The place where a run for a directory's files was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The window of the directory.
    Window,
    /// The directory's group: blocks that are not filled become its window.
    Group,
    /// The directory's group, among the files of other directories: no block is kept.
    Shared,
    /// The directory's group, to move files there: blocks that are not filled are given back.
    Move,
}

/// A dirty block of a member that may stay where it is.
struct Settled {
    address: u64,
    lbn: u64,
    member: usize,
}

impl PlacementPolicy for Cowrite {
    fn plan<N>(
        &self,
        reason: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        free: &dyn FreeSpace,
    ) -> Result<WritePlan> {
        let mut draft = Draft::new(free);
        plan(reason, dirty, files, &mut draft)?;
        Ok(draft.finish())
    }

    fn co_writes(&self) -> bool {
        true
    }

    /// Returns [`Directories::Near`]: files of one directory lie together without a group of their own, and
    /// neighbouring directories share bitmaps and inode tables.
    fn directories(&self) -> Directories {
        Directories::Near
    }
}

/// Plans the files that are written together for `reason`, and their places.
fn plan<N>(
    reason: WritebackReason,
    dirty: &dyn DirtyView<N>,
    files: &dyn Files<N>,
    draft: &mut Draft<'_>,
) -> Result<()> {
    let Some(first) = dirty_file(reason, dirty, draft.transfer_blocks()) else { return Ok(()) };
    if first.blocks > SMALL_BLOCKS_MAX {
        return plan_file(reason, &first, files, draft);
    }
    // Of a small file all dirty blocks are wanted, not only those around one block.
    let Some(first) = dirty.file(reason.ino(), None) else { return Ok(()) };
    let home = first.home;
    let members = match member(first, files)? {
        Ok(first) => companions(reason, first, dirty, files, draft)?,
        Err(partly) => return plan_file(reason, &partly, files, draft),
    };
    let leaving = stay(reason, members, draft);
    let leaving = keep_promised(reason, leaving, files, draft)?;
    place(reason, home, leaving, files, draft)
}

/// Returns `first` and its companions: the smallest dirty files of its directory that may be written with it.
fn companions<N>(
    reason: WritebackReason,
    first: Member<N>,
    dirty: &dyn DirtyView<N>,
    files: &dyn Files<N>,
    draft: &Draft<'_>,
) -> Result<Vec<Member<N>>> {
    let home = first.file.home;
    let transfer = draft.transfer_blocks();
    let blocks_max = match reason {
        WritebackReason::Sync(_) => transfer,
        _ => (COMPANION_BYTES_MAX / draft.geometry().block_size).max(transfer),
    };
    let mut room = blocks_max.saturating_sub(first.blocks());
    let mut members = vec![first];
    for blocks in dirty.small_counts(home) {
        if blocks > room {
            break;
        }
        for ino in dirty.small_files(home, blocks).into_iter().filter(|ino| *ino != reason.ino()) {
            if blocks > room {
                break;
            }
            let Some(file) = dirty.file(ino, None) else { continue };
            if let Ok(member) = member(file, files)?
                && member.blocks() <= room
            {
                room -= member.blocks();
                members.push(member);
            }
        }
    }
    Ok(members)
}

/// Plans writes in place for files that lie in long runs; returns those that need, or deserve,
/// another place.
fn stay<N>(reason: WritebackReason, members: Vec<Member<N>>, draft: &mut Draft<'_>) -> Vec<Member<N>> {
    let clusters = clusters(&members);
    let long = draft.transfer_blocks().div_ceil(2) as usize;
    let mut scattered = vec![false; members.len()];
    let short = clusters.iter().filter(|cluster| cluster.len() < long);
    let pieces = short.inspect(|cluster| cluster.iter().for_each(|block| scattered[block.member] = true)).count();
    let moving = || members.iter().zip(&scattered).filter(|(_, scattered)| **scattered);
    let blocks: u32 = moving().map(|(member, _)| member.blocks()).sum();
    let requests = blocks.div_ceil(draft.transfer_blocks()) as usize;
    if pieces <= requests + MOVE_REQUESTS || !draft.can_spare(blocks) {
        scattered.fill(false);
    }
    if !matches!(reason, WritebackReason::Move(_)) {
        for cluster in clusters {
            write_in_place(reason, &members, &scattered, &cluster, draft);
        }
    }
    let leaves = |(member, scattered): (Member<N>, bool)| (scattered || !member.is_placed()).then_some(member);
    members.into_iter().zip(scattered).filter_map(leaves).collect()
}

/// Plans files that grew as [`Ffs`](super::ffs::Ffs) would when there is no space to move the blocks they had before:
/// space for these is not promised. Returns the others. (Files that move for the layout's sake take no blocks that are
/// promised.)
fn keep_promised<N>(
    reason: WritebackReason,
    members: Vec<Member<N>>,
    files: &dyn Files<N>,
    draft: &mut Draft<'_>,
) -> Result<Vec<Member<N>>> {
    let moved = members.iter().map(Member::placed_blocks).sum();
    if moved == 0 || matches!(reason, WritebackReason::Move(_)) || draft.hold(moved) {
        return Ok(members);
    }
    let (grown, new): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.placed_blocks() > 0);
    grown.iter().try_for_each(|member| plan_file(reason, &member.file, files, draft))?;
    Ok(new)
}

/// Plans writes for the blocks of a cluster whose files stay.
fn write_in_place<N>(
    reason: WritebackReason,
    members: &[Member<N>],
    scattered: &[bool],
    cluster: &[Settled],
    draft: &mut Draft<'_>,
) {
    let transfer = draft.transfer_blocks();
    let mut open: Option<PlannedWrite> = None;
    for block in cluster.iter().filter(|block| !scattered[block.member]) {
        let ino = members[block.member].file.ino;
        let full = |write: &PlannedWrite| write.to.end().0 != block.address || write.to.len >= transfer;
        if open.as_ref().is_some_and(full) {
            draft.write(open.take());
        }
        let write = open.get_or_insert_with(|| PlannedWrite {
            to: BlockRun { start: BlockAddr(block.address), len: 0 },
            from: SmallVec::new(),
            fresh: false,
            tag: tag(reason, ino),
        });
        write.to.len += 1;
        match write.from.last_mut() {
            Some(last) if last.ino == ino && last.range.end().0 == block.lbn => last.range.len += 1,
            _ => write.from.push(FileRange { ino, range: LbnRange { start: Lbn(block.lbn), len: 1 } }),
        }
    }
    draft.write(open);
}

/// Places files whole into runs of the group, the first first, then the smaller ones first.
fn place<N>(
    reason: WritebackReason,
    home: Ino,
    mut waiting: Vec<Member<N>>,
    files: &dyn Files<N>,
    draft: &mut Draft<'_>,
) -> Result<()> {
    while !waiting.is_empty() {
        let wanted = waiting.iter().map(Member::blocks).sum::<u32>();
        let smallest = waiting.iter().map(Member::blocks).min().unwrap_or(1);
        let Some(Room { run, from }) = room(draft, reason, home, wanted, smallest)? else { break };
        let mut taken = if run.len < RUN_BLOCKS_MIN.min(wanted) { Vec::new() } else { fill(&mut waiting, run.len) };
        if matches!(reason, WritebackReason::Move(_)) && !saves_requests(draft.transfer_blocks(), &waiting, &taken) {
            waiting.append(&mut taken);
        }
        let filled: u32 = taken.iter().map(Member::blocks).sum();
        let rest = BlockRun { start: BlockAddr(run.start.0 + u64::from(filled)), len: run.len - filled };
        let has_window = matches!(from, Source::Window | Source::Group);
        let keeps = has_window && filled > 0;
        draft.give_back(rest, keeps);
        if has_window {
            draft.keep_window(home, filled, keeps.then_some(rest));
        }
        // A window in which no file fits is given up; the group has no better run than the one
        // it gave.
        if taken.is_empty() && from != Source::Window {
            break;
        }
        write_run(reason, run.start, taken, draft);
    }
    waiting.iter().try_for_each(|member| plan_file(reason, &member.file, files, draft))
}

/// Chooses a run for up to `wanted` blocks of a directory's files, the smallest of which has
/// `smallest`:
/// 1. less than half a transfer: the next run of the group that holds it all, or the longest,
///    among the files of other directories: neighbours on the disk that are written together
///    are one request there as well (an fsync is written alone);
/// 2. the rest of the directory's window, if it holds them or they are more than a transfer;
/// 3. less than a transfer: the next run that holds it all, with a new window behind it, or the longest;
/// 4. more: the next free blocks, however few, if a file fits: the runs of one directory, and
///    of those written after it, lie in ascending order and close together. In a full group,
///    where few free blocks lie on the way, half a transfer at least.
///
/// Files that move for the layout's sake get the longest run.
fn room(draft: &mut Draft<'_>, reason: WritebackReason, home: Ino, wanted: u32, smallest: u32) -> Result<Option<Room>> {
    let geo = draft.geometry();
    let group = group_of(geo, home);
    if matches!(reason, WritebackReason::Move(_)) {
        let longest = draft.choose_better(group, Fit::Longest, wanted)?;
        return Ok(longest.map(|run| Room { run, from: Source::Move }));
    }
    let transfer = draft.transfer_blocks();
    if wanted < transfer.div_ceil(2) && !matches!(reason, WritebackReason::Sync(_)) {
        let found = draft.choose(group, Fit::AtLeast(wanted), wanted)?;
        return Ok(found.map(|run| Room { run, from: Source::Shared }));
    }
    let little = wanted < transfer;
    if let Some(rest) = draft.window(home).rest.filter(|rest| !little || wanted <= rest.len) {
        let group = geo.group_of_block(BlockNo(rest.start.0)).unwrap_or(group);
        match draft.choose(group, Fit::At(rest.start.0), rest.len)? {
            Some(run) => return Ok(Some(Room { run, from: Source::Window })),
            None => draft.keep_window(home, 0, None),
        }
    }
    let is_full = draft.free_blocks(group) < geo.blocks_per_group / FULL_SHARE;
    let least = if little { wanted } else { smallest.max(if is_full { transfer.div_ceil(2) } else { 1 }) };
    let ahead = draft.window(home).ahead(geo.block_size);
    let found = draft.choose(group, Fit::AtLeast(least), wanted.saturating_add(ahead))?;
    Ok(found.map(|run| Room { run, from: Source::Group }))
}

/// Returns true if reading all these files takes fewer requests once those of `taken` lie in
/// one run.
fn saves_requests<N>(transfer: u32, waiting: &[Member<N>], taken: &[Member<N>]) -> bool {
    let requests = |members: &mut dyn Iterator<Item = &Member<N>>| -> usize {
        pieces(members).into_iter().map(|blocks| blocks.div_ceil(transfer as usize)).sum()
    };
    let blocks: u32 = taken.iter().map(Member::blocks).sum();
    let after = requests(&mut waiting.iter()) + blocks.div_ceil(transfer) as usize;
    requests(&mut waiting.iter().chain(taken)) > after + MOVE_REQUESTS
}

/// Plans writes that fill a run with whole files.
fn write_run<N>(reason: WritebackReason, start: BlockAddr, mut taken: Vec<Member<N>>, draft: &mut Draft<'_>) {
    let transfer = draft.transfer_blocks();
    taken.sort_by_key(|member| member.file.ino);
    let mut next = start;
    let mut open: Option<PlannedWrite> = None;
    for member in &taken {
        for part in parts(member.whole(), transfer) {
            let too_long = |write: &PlannedWrite| write.to.len + part.range.len > transfer;
            if open.as_ref().is_some_and(too_long) {
                draft.write(open.take());
            }
            let write = open.get_or_insert_with(|| PlannedWrite {
                to: BlockRun { start: next, len: 0 },
                from: SmallVec::new(),
                fresh: true,
                tag: tag(reason, part.ino),
            });
            write.to.len += part.range.len;
            write.from.push(part);
            next = BlockAddr(next.0 + u64::from(part.range.len));
        }
    }
    draft.write(open);
}

/// Returns the dirty blocks of members that need no new place, in runs of neighbours on the disk,
/// ascending.
fn clusters<N>(members: &[Member<N>]) -> Vec<Vec<Settled>> {
    let mut blocks: Vec<Settled> = Vec::new();
    for (number, member) in members.iter().enumerate().filter(|(_, member)| member.is_placed()) {
        let dirty = (0..).zip(member.places.iter().flatten()).filter(|(lbn, _)| member.is_dirty(*lbn));
        blocks.extend(dirty.map(|(lbn, address)| Settled { address: *address, lbn, member: number }));
    }
    blocks.sort_by_key(|block| block.address);
    let mut clusters: Vec<Vec<Settled>> = Vec::new();
    for block in blocks {
        match clusters.last_mut() {
            Some(cluster) if cluster.last().is_some_and(|last| last.address + 1 == block.address) => {
                cluster.push(block);
            }
            _ => clusters.push(vec![block]),
        }
    }
    clusters
}

/// Returns the lengths of the runs that the members lie in, neighbours joined.
fn pieces<'a, N: 'a>(members: impl Iterator<Item = &'a Member<N>>) -> Vec<usize> {
    let mut addresses: Vec<u64> = members.flat_map(|member| member.places.iter().flatten().copied()).collect();
    addresses.sort_unstable();
    addresses.chunk_by(|one, next| one + 1 == *next).map(<[u64]>::len).collect()
}

/// Takes the files that fit into `room` blocks out of `waiting`, in order; the others stay.
fn fill<N>(waiting: &mut Vec<Member<N>>, room: u32) -> Vec<Member<N>> {
    let mut left = room;
    let fits = |member: &mut Member<N>| {
        let fits = member.blocks() <= left;
        if fits {
            left -= member.blocks();
        }
        fits
    };
    waiting.extract_if(.., fits).collect()
}

/// Returns a file's range in parts of at most `blocks_max` blocks.
fn parts(whole: FileRange, blocks_max: u32) -> impl Iterator<Item = FileRange> {
    let FileRange { ino, range } = whole;
    (0..range.len).step_by(blocks_max.max(1) as usize).map(move |at| FileRange {
        ino,
        range: LbnRange { start: Lbn(range.start.0 + u64::from(at)), len: blocks_max.min(range.len - at) },
    })
}

/// The examples of Lee, Ahn, Oh (2008).
#[cfg(test)]
mod tests {
    use super::super::ffs::Ffs;
    use super::super::testing::{Dirty, TestVolume, lengths};
    use super::*;
    use crate::format::GroupNo;

    /// Figure 4: F1, F3, F4, F5 of one directory and Fa, Fc of another become dirty by turns.
    fn figure_4() -> Dirty {
        [0, 1, 0, 0, 1, 0].into_iter().fold(Dirty::default(), |dirty, home| dirty.new_file(home, 1))
    }

    #[test]
    fn figure_4_co_writing_takes_two_writes_and_one_seek() {
        let mut volume = TestVolume::with_free(&[(100, 4000), (8300, 1000)]);
        let writes = volume.replace(&Cowrite, figure_4());
        assert_eq!((lengths(&writes), volume.seeks(&writes)), (vec![4, 2], 1));
    }

    #[test]
    fn figure_4_file_by_file_takes_four_seeks() {
        let mut volume = TestVolume::with_free(&[(100, 4000), (8300, 1000)]);
        let writes = volume.replace(&Ffs, figure_4());
        assert_eq!((lengths(&writes), volume.seeks(&writes)), (vec![1; 6], 4));
    }

    /// Figure 6: a large file is written as without co-writing, and alone.
    #[test]
    fn figure_6_a_large_file_leaves_alone() {
        let dirty = || Dirty::default().new_file(0, 20).new_file(0, 1).new_file(0, 1);
        let free = [(100, 4000)];
        let writes = TestVolume::with_free(&free).replace(&Cowrite, dirty());
        assert_eq!(lengths(&writes), [8, 8, 4, 2]);
        assert_eq!(writes[..3].iter().map(|write| write.to).collect::<Vec<_>>(), {
            let alone = TestVolume::with_free(&free).replace(&Ffs, dirty());
            alone[..3].iter().map(|write| write.to).collect::<Vec<_>>()
        });
    }

    /// Figure 6: the file that must leave, then the smallest ones; what does not fit into the rest of the run is not
    /// split.
    #[test]
    fn figure_6_the_smallest_files_fill_the_run_and_none_is_split() {
        let mut volume = TestVolume::with_free(&[(100, 6), (200, 5)]);
        let dirty = [3, 5, 1, 2].into_iter().fold(Dirty::default(), |dirty, blocks| dirty.new_file(0, blocks));
        let writes = volume.replace(&Cowrite, dirty);
        assert_eq!(lengths(&writes), [6, 5]);
        let mut first: Vec<u32> = writes[0].from.iter().map(|from| from.range.len).collect();
        first.sort_unstable();
        assert_eq!(first, [1, 2, 3]);
    }

    /// Figure 6: without contiguous free space in the group the file goes where it would without co-writing, even to
    /// another group.
    #[test]
    fn figure_6_a_file_without_a_run_goes_elsewhere() {
        let mut volume = TestVolume::with_free(&[(8300, 100)]);
        let writes = volume.replace(&Cowrite, Dirty::default().new_file(0, 1).new_file(0, 1));
        assert_eq!(lengths(&writes), [1, 1]);
        assert!(writes.iter().all(|write| volume.group_of(write) == GroupNo(1)));
    }

    /// Figure 7: the longest run up to the maximum transfer is taken, then the next.
    #[test]
    fn figure_7_the_longest_runs_are_taken() {
        let mut volume = TestVolume::with_free(&[(100, 2), (200, 3), (300, 5), (400, 1)]);
        let writes = volume.replace(&Cowrite, (0..8).fold(Dirty::default(), |dirty, _| dirty.new_file(0, 1)));
        assert_eq!(lengths(&writes), [5, 3]);
        assert_eq!([writes[0].to.start.0, writes[1].to.start.0], [300, 200]);
    }

    /// Figure 8: four files of one block, no free run of four but one of three.
    #[test]
    fn figure_8_co_writing_takes_two_writes_instead_of_four() {
        let figure_8 = || (0..4).fold(Dirty::default(), |dirty, _| dirty.new_file(0, 1));
        let free = [(100, 1), (200, 3), (300, 1), (400, 1)];
        assert_eq!(lengths(&TestVolume::with_free(&free).replace(&Cowrite, figure_8())), [3, 1]);
        assert_eq!(lengths(&TestVolume::with_free(&free).replace(&Ffs, figure_8())), [1, 1, 1, 1]);
    }

    #[test]
    fn rewritten_files_that_lie_scattered_move_together() {
        let mut volume = TestVolume::with_free(&[(100, 3000)]);
        let scattered = (0..8).fold(Dirty::default(), |dirty, at| dirty.file(0, vec![Some(5000 + 2 * at)]));
        let writes = volume.replace(&Cowrite, scattered);
        assert_eq!((lengths(&writes), writes[0].fresh), (vec![8], true));
    }
}
