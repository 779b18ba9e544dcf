//! The Fast File System's way of placing data, with the improvements of later versions.
//!
//! 1. *Directories are spread*: a directory of the root (or of one marked as a top directory) goes
//!    to the group with the fewest directories among those with at least the average of free inodes
//!    and blocks. Deeper ones stay near their parent while its group is not crowded. (That is
//!    [`Directories::Spread`](super::Directories::Spread); the rule is chosen beside the policy.)
//! 2. *Files stay with their directory*: inode and first blocks in the directory's group. New files
//!    go on where the last one ended (a rotor), so files made together lie together.
//! 3. *Clustering*: a file goes on right behind its last block; dirty neighbours of one file are
//!    written in one request, up to the maximum transfer. Addresses are chosen when data leave the
//!    cache, so the length is known.
//! 4. *Reallocation*: dirty neighbours that lie scattered move to one free run, if there is one;
//!    the same holds for the dirty end of a file that has grown and cannot go on where it ended.
//! 5. *Big files move on*: after a quarter of a group a file continues in the next group with at least
//!    average free space, so that one file does not take a directory's room.
//!
//! 6. *Directories and first indirect blocks lie together*, right behind their group's inode table:
//!    they are written in one sweep, and a program that reads one will want others.
//!
//! Groups are ext2's block groups; FFS calls them cylinder groups. References: McKusick, Joy,
//! Leffler, Fabry: A Fast File System for UNIX (1984); McVoy, Kleiman: Extent-like Performance from
//! a UNIX File System (1991); Smith, Seltzer (1996).

use moafs_disk::{Cause, Kind, Tag};
use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyFile, DirtyView, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, FileRange, Ino, Lbn, LbnRange, Mapping};
use smallvec::smallvec;

use super::draft::{Draft, WritePlan};
use super::free_space::FreeSpace;
use super::policy::{Files, PlacementPolicy};
use crate::alloc::{Fit, no_space};
use crate::format::{BlockNo, Geometry, GroupNo};

/// The share of a group's blocks (one in so many) that one file takes at most before it moves on.
const SECTIONS_PER_GROUP: u64 = 4;

/// The policy, with addresses chosen when data leave the cache.
pub struct Ffs;

impl PlacementPolicy for Ffs {
    fn plan<N>(
        &self,
        reason: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        free: &dyn FreeSpace,
    ) -> Result<WritePlan> {
        let mut draft = Draft::new(free);
        if let Some(file) = dirty_file(reason, dirty, free.transfer_blocks()) {
            plan_file(reason, &file, files, &mut draft)?;
        }
        Ok(draft.finish())
    }
}

/// The policy with addresses that are chosen at `write()`.
pub struct FfsPaper;

impl PlacementPolicy for FfsPaper {
    fn plan<N>(
        &self,
        reason: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        free: &dyn FreeSpace,
    ) -> Result<WritePlan> {
        Ffs.plan(reason, dirty, files, free)
    }

    fn allocates_on_write(&self) -> bool {
        true
    }
}

/// One file, as the policy sees it.
struct File<'a, N> {
    node: &'a N,
    files: &'a dyn Files<N>,
}

impl<N> File<'_, N> {
    fn group(&self) -> GroupNo {
        self.files.group(self.node)
    }

    fn map(&self, at: Lbn, max: u32) -> Result<Mapping> {
        self.files.map(self.node, at, max)
    }
}

// -- metadata blocks

/// Chooses one block for an indirect block among a file's data, near `goal`.
pub fn map_block(draft: &mut Draft<'_>, goal: u64) -> Result<u64> {
    let group = draft.geometry().group_of_block(BlockNo(goal)).unwrap_or_default();
    Ok(search(draft, Some(goal), group, 1)?.start.0)
}

/// Chooses one block for a directory, a first indirect block or the like: in the group's zone
/// for them, else near it.
pub fn meta_block(draft: &mut Draft<'_>, group: GroupNo) -> Result<u64> {
    let zone_start = draft.zone_start(group);
    match draft.choose(group, Fit::Meta(zone_start), 1)? {
        Some(run) => Ok(run.start.0),
        None => map_block(draft, zone_start),
    }
}

// -- addresses at write()

/// Chooses addresses for `range`, none of which has one, at the time of the write, for a policy that
/// [allocates on write](PlacementPolicy::allocates_on_write). They may be fewer than asked for.
pub fn place_early<N>(draft: &mut Draft<'_>, node: &N, files: &dyn Files<N>, range: LbnRange) -> Result<BlockRun> {
    place(draft, &File { node, files }, range.start.0, range.len, None)
}

// -- write-back

/// The last block that was planned: its number in the file and its address.
type Last = Option<(u64, u64)>;

/// Returns the file that leaves for a reason, if it is dirty: of one that is evicted, what lies around the page.
pub(super) fn dirty_file<N>(
    reason: WritebackReason,
    dirty: &dyn DirtyView<N>,
    transfer_blocks: u32,
) -> Option<DirtyFile<N>> {
    let around = match reason {
        WritebackReason::Evict(_, lbn) => Some((lbn, transfer_blocks)),
        _ => None,
    };
    dirty.file(reason.ino(), around)
}

/// Plans writes for one file's dirty ranges.
pub(super) fn plan_file<N>(
    reason: WritebackReason,
    dirty: &DirtyFile<N>,
    files: &dyn Files<N>,
    draft: &mut Draft<'_>,
) -> Result<()> {
    let file = File { node: &*dirty.node, files };
    let mut last = None;
    for range in &dirty.dirty {
        plan_range(reason, &file, dirty.ino, *range, &mut last, draft)?;
    }
    Ok(())
}

/// Plans writes for one dirty range. `last` is the place of the block planned before it.
fn plan_range<N>(
    reason: WritebackReason,
    file: &File<'_, N>,
    ino: Ino,
    range: LbnRange,
    last: &mut Last,
    draft: &mut Draft<'_>,
) -> Result<()> {
    let tag = tag(reason, ino);
    let (mut lbn, end) = (range.start.0, range.end().0);
    while lbn < end {
        let window = (end - lbn).min(draft.transfer_blocks().into()) as u32;
        let mapping = file.map(Lbn(lbn), window)?;
        if let Some(run) = reallocate(draft, reason, file, lbn, window, &mapping)? {
            lbn = write(draft, ino, lbn, run, true, tag, last);
            continue;
        }
        if matches!(reason, WritebackReason::Move(_)) {
            // The window's place cannot be improved: no block is to be written.
            lbn += u64::from(window);
            continue;
        }
        match mapping {
            Mapping::Run(run) | Mapping::Unwritten(run) => lbn = write(draft, ino, lbn, run, false, tag, last),
            Mapping::Hole { len } => {
                let len = hole(draft.geometry(), file, lbn, len, end)?;
                let run = place(draft, file, lbn, len, *last)?;
                lbn = write_run(draft, ino, lbn, run, tag, last);
            }
        }
    }
    Ok(())
}

/// Returns the length of the hole at `lbn`, in blocks, looking beyond one transfer: the whole
/// length is placed at once.
fn hole<N>(geo: &Geometry, file: &File<'_, N>, lbn: u64, known: u32, end: u64) -> Result<u32> {
    let limit = (end - lbn).min(u64::from(geo.blocks_per_group) / SECTIONS_PER_GROUP).max(1) as u32;
    let mut len = known.min(limit);
    while len < limit {
        let Mapping::Hole { len: more } = file.map(Lbn(lbn + u64::from(len)), limit - len)? else { break };
        len += more;
    }
    Ok(len)
}

/// Plans writes of at most one transfer each that fill a new run; returns the logical block after it.
fn write_run(draft: &mut Draft<'_>, ino: Ino, mut lbn: u64, run: BlockRun, tag: Tag, last: &mut Last) -> u64 {
    let mut start = run.start.0;
    while start < run.end().0 {
        let len = (run.end().0 - start).min(draft.transfer_blocks().into()) as u32;
        lbn = write(draft, ino, lbn, BlockRun { start: BlockAddr(start), len }, true, tag, last);
        start += u64::from(len);
    }
    lbn
}

/// Plans one write and returns the logical block after it.
fn write(draft: &mut Draft<'_>, ino: Ino, lbn: u64, to: BlockRun, fresh: bool, tag: Tag, last: &mut Last) -> u64 {
    let range = LbnRange { start: Lbn(lbn), len: to.len };
    draft.write([PlannedWrite { to, from: smallvec![FileRange { ino, range }], fresh, tag }]);
    let end = lbn + u64::from(to.len);
    *last = Some((end - 1, to.end().0 - 1));
    end
}

/// Chooses a free run for a window of dirty blocks that lie scattered, or would once those
/// without an address have one, if the move pays.
fn reallocate<N>(
    draft: &mut Draft<'_>,
    reason: WritebackReason,
    file: &File<'_, N>,
    lbn: u64,
    window: u32,
    first: &Mapping,
) -> Result<Option<BlockRun>> {
    let (Mapping::Run(run) | Mapping::Unwritten(run)) = first else { return Ok(None) };
    if run.len >= window || !draft.can_spare(window) {
        return Ok(None);
    }
    let Some(pieces) = pieces(draft, reason, file, lbn, window)? else { return Ok(None) };
    // A window that only crosses a border between two long runs gains nothing.
    if pieces == 1 || (pieces == 2 && u64::from(window) > SMALL_BLOCKS_MAX) {
        return Ok(None);
    }
    let group = draft.geometry().group_of_block(BlockNo(run.start.0)).unwrap_or(file.group());
    draft.choose_better(group, Fit::Whole(draft.rotor(group)), window)
}

/// Returns the number of pieces in which a window lies, or will lie: blocks without an address
/// go on behind the block before them if the blocks there are free. Returns `None` if it has
/// holes that are to stay.
fn pieces<N>(
    draft: &Draft<'_>,
    reason: WritebackReason,
    file: &File<'_, N>,
    lbn: u64,
    window: u32,
) -> Result<Option<usize>> {
    let mut pieces = 0;
    let mut next = None;
    let mut at = 0;
    while at < window {
        let mapping = file.map(Lbn(lbn + u64::from(at)), window - at)?;
        let len = mapping.len().clamp(1, window - at);
        let start = match mapping {
            Mapping::Run(run) | Mapping::Unwritten(run) => Some(run.start),
            Mapping::Hole { .. } if matches!(reason, WritebackReason::Move(_)) => return Ok(None),
            Mapping::Hole { .. } => match next {
                Some(start) if draft.is_free(BlockRun { start, len })? => next,
                _ => None,
            },
        };
        pieces += usize::from(start.is_none() || start != next);
        next = start.map(|start| BlockAddr(start.0 + u64::from(len)));
        at += len;
    }
    Ok(Some(pieces))
}

/// Chooses a place for up to `want` blocks of a file at `lbn`.
fn place<N>(draft: &mut Draft<'_>, file: &File<'_, N>, lbn: u64, want: u32, last: Last) -> Result<BlockRun> {
    let planned = last.filter(|(before, _)| before + 1 == lbn).map(|(_, block)| block);
    let before = match (planned, lbn.checked_sub(1)) {
        (Some(block), _) => Some(block),
        (None, None) => None,
        (None, Some(previous)) => match file.map(Lbn(previous), 1)? {
            Mapping::Run(run) | Mapping::Unwritten(run) => Some(run.start.0),
            Mapping::Hole { .. } => None,
        },
    };
    let geo = draft.geometry();
    let section = (u64::from(geo.blocks_per_group) / SECTIONS_PER_GROUP).max(SMALL_BLOCKS_MAX + 1);
    let want = want.min((section - lbn % section).min(u32::MAX.into()) as u32);
    let group = before.and_then(|b| geo.group_of_block(BlockNo(b))).unwrap_or(file.group());
    if lbn >= section && lbn.is_multiple_of(section) {
        let group = next_roomy(draft, group);
        return search(draft, None, group, want);
    }
    search(draft, before.map(|block| block + 1), group, want)
}

/// Returns the next group with at least average free space.
fn next_roomy(draft: &Draft<'_>, group: GroupNo) -> GroupNo {
    let count = draft.geometry().groups;
    let average = draft.available_blocks() / u64::from(count);
    let mut next = (1..=count).map(|at| GroupNo((u64::from(group.0) + u64::from(at)) as u32 % count));
    next.find(|g| u64::from(draft.free_blocks(*g)) >= average).unwrap_or(group)
}

/// Looks for up to `want` blocks:
/// 1. right at `goal`, however few;
/// 2. in the group, a run that holds all;
/// 3. small wants: the longest run of the group;
/// 4. the other groups in order, a run that holds all;
/// 5. the longest run of the first group that has any.
fn search(draft: &mut Draft<'_>, goal: Option<u64>, group: GroupNo, want: u32) -> Result<BlockRun> {
    let want = want.max(1);
    if let Some(goal) = goal
        && let Some(home) = draft.geometry().group_of_block(BlockNo(goal))
        && let Some(found) = draft.choose(home, Fit::At(goal), want)?
    {
        return Ok(found);
    }
    let from = goal.unwrap_or_else(|| draft.rotor(group));
    if let Some(found) = draft.choose(group, Fit::Whole(from), want)? {
        return Ok(found);
    }
    if u64::from(want) <= SMALL_BLOCKS_MAX
        && let Some(found) = draft.choose(group, Fit::Longest, want)?
    {
        return Ok(found);
    }
    let count = draft.geometry().groups;
    let others = || (1..=count).map(|at| GroupNo((u64::from(group.0) + u64::from(at)) as u32 % count));
    for other in others() {
        if draft.free_blocks(other) >= want
            && let Some(found) = draft.choose(other, Fit::Whole(draft.rotor(other)), want)?
        {
            return Ok(found);
        }
    }
    for other in std::iter::once(group).chain(others()) {
        if let Some(found) = draft.choose(other, Fit::Longest, want)? {
            return Ok(found);
        }
    }
    Err(no_space())
}

/// Returns the tag for the device: data of `ino`, written for `reason`.
pub(super) fn tag(reason: WritebackReason, ino: Ino) -> Tag {
    let cause = match reason {
        WritebackReason::Evict(..) => Cause::Evict,
        WritebackReason::Age(_) => Cause::Age,
        WritebackReason::Sync(_) => Cause::Fsync,
        WritebackReason::Drain(_) => Cause::Demand,
        WritebackReason::Move(_) => Cause::Move,
    };
    Tag::new(Kind::Data, ino.0, cause)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Dirty, TestVolume, lengths};
    use super::*;

    /// Figure 3 of Lee, Ahn, Oh (2008): F1, five blocks, was scattered for want of space; Fb is deleted and frees a
    /// run; F1, rewritten, moves there.
    #[test]
    fn a_scattered_file_moves_to_a_free_run_when_it_is_rewritten() {
        let scattered = || Dirty::default().file(0, [10, 30, 31, 50, 70].map(Some).to_vec());
        let elsewhere = (8200, 1500);
        let writes = TestVolume::with_free(&[elsewhere, (300, 1)]).replace(&Ffs, scattered());
        assert_eq!(lengths(&writes), [1, 2, 1, 1], "no run of its group holds it");
        let writes = TestVolume::with_free(&[elsewhere, (300, 1), (400, 5)]).replace(&Ffs, scattered());
        assert_eq!((lengths(&writes), writes[0].to.start, writes[0].fresh), (vec![5], BlockAddr(400), true));
    }

    #[test]
    fn nothing_moves_when_space_is_short() {
        let scattered = Dirty::default().file(0, [10, 30, 31, 50, 70].map(Some).to_vec());
        let writes = TestVolume::with_free(&[(300, 4), (400, 100)]).replace(&Ffs, scattered);
        assert!(writes.iter().all(|write| !write.fresh), "{writes:?}");
    }

    /// Clustering (McVoy, Kleiman 1991): neighbours of one file share requests of at most one transfer.
    #[test]
    fn blocks_of_one_file_are_written_together() {
        let mut volume = TestVolume::with_free(&[(100, 4), (200, 3000)]);
        let writes = volume.replace(&Ffs, Dirty::default().new_file(0, 20));
        assert_eq!(lengths(&writes), [8, 8, 4]);
        assert!(writes.windows(2).all(|pair| pair[0].to.end() == pair[1].to.start));
    }

    /// A file that has filled a quarter of a group goes on in the next group with at least the average of free blocks
    /// (McKusick, Joy, Leffler, Fabry 1984).
    #[test]
    fn a_large_file_moves_on_to_the_next_group() {
        let mut volume = TestVolume::with_free(&[(100, 3000), (8200, 1800)]);
        let writes = volume.replace(&Ffs, Dirty::default().new_file(0, 2100));
        let moved = writes.iter().find(|write| volume.group_of(write) == GroupNo(1)).expect("it moves on");
        assert_eq!(moved.from[0].range.start, Lbn(2048));
    }
}
