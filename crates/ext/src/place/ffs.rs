//! The Fast File System's way of placing data, with the improvements of later versions.
//!
//! 1. *Directories are spread*: a directory of the root (or of one marked as a top directory) goes
//!    to the group with the fewest directories among those with at least the average of free inodes
//!    and blocks. Deeper ones stay near their parent while its group is not crowded. (Under
//!    co-writing only those of marked directories are spread: files of one directory lie together
//!    without that, and neighbouring directories share bitmaps and inode tables.)
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
use moafs_vfs::format::Admission;
use moafs_vfs::plan::{DirtyFile, DirtyView, Plan, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, FileRange, Ino, Lbn, LbnRange, Mapping};
use smallvec::smallvec;

use crate::alloc::{Alloc, Fit, no_space};
use crate::format::{BlockNo, Geometry, GroupNo, InodeNo};
use crate::meta::Level;
use crate::place::Files;

/// The least size that a directory is expected to have with all its files, in bytes; a smaller
/// share of a group, if that is less.
const DIRECTORY_BYTES_MIN: u32 = 4 << 20;
const DIRECTORIES_PER_GROUP: u32 = 16;
/// The share of a group's blocks (one in so many) that one file takes at most before it moves on.
const SECTIONS_PER_GROUP: u64 = 4;
/// Moving data for the layout's sake stops when fewer than this share of the blocks (one in so
/// many) is free.
pub(super) const MOVE_FLOOR: u64 = 20;

/// The policy: pure functions of the allocator's counts and a file's map.
pub struct Ffs<'a> {
    /// The geometry of the volume.
    pub geo: &'a Geometry,
    /// The allocator, which knows the free blocks.
    pub alloc: &'a Alloc,
    /// The largest request, in blocks.
    pub transfer_blocks: u32,
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

impl Ffs<'_> {
    // -- inodes

    /// Returns the groups in the order in which a new file's inode looks for one: the directory's,
    /// then by doubling steps, then all.
    pub fn file_groups(&self, parent: GroupNo, parent_ino: InodeNo) -> impl Iterator<Item = GroupNo> + use<> {
        let count = self.geo.groups;
        let start = (parent.0.wrapping_add(parent_ino.0)) % count;
        let doubling = std::iter::successors(Some(1u32), |step| step.checked_mul(2))
            .take_while(move |step| *step < count)
            .map(move |step| (u64::from(start) + u64::from(step)) as u32 % count);
        let all = (0..count).map(move |at| (u64::from(parent.0) + u64::from(at)) as u32 % count);
        std::iter::once(parent.0).chain(doubling).chain(all).map(GroupNo)
    }

    /// Returns the group for a new directory, where its files are to find space. Spread: the one
    /// with the fewest directories. Near: the first, from the parent's on, that will still have a
    /// third of the average of free blocks once all its new directories have their files: in an
    /// overfull group files lie in pieces.
    pub fn directory_group(&self, parent: GroupNo, spread: bool) -> GroupNo {
        let count = self.geo.groups;
        let average_inodes = (self.alloc.available_inodes() / u64::from(count)) as u32;
        let average_blocks = (self.alloc.available_blocks() / u64::from(count)) as u32;
        if spread {
            // A little less than the average will do: else the few groups with a little more would
            // take all directories.
            let (least_inodes, least_blocks) = (average_inodes / 8 * 7, average_blocks / 8 * 7);
            let roomy = self.geo.all_groups().filter(|group| {
                let counts = self.alloc.counts(*group);
                counts.free_inodes >= least_inodes.max(1) && counts.free_blocks >= least_blocks
            });
            return roomy.min_by_key(|group| self.alloc.counts(*group).directories).unwrap_or(parent);
        }
        let expected = self.directory_blocks();
        let room = |group: &GroupNo| {
            let counts = self.alloc.counts(*group);
            i64::from(counts.free_blocks) - (i64::from(counts.empty_new_directories) + 1) * i64::from(expected)
        };
        let least_inodes = average_inodes.saturating_sub(self.geo.inodes_per_group / 4).max(1);
        let near = || {
            let groups = (0..count).map(|at| GroupNo((u64::from(parent.0) + u64::from(at)) as u32 % count));
            groups.filter(|group| self.alloc.counts(*group).free_inodes >= least_inodes)
        };
        let roomiest = || near().min_by_key(|group| std::cmp::Reverse(room(group)));
        near().find(|group| room(group) >= i64::from(average_blocks / 3)).or_else(roomiest).unwrap_or(parent)
    }

    /// Returns the number of blocks that a new directory is expected to take with all its files.
    fn directory_blocks(&self) -> u32 {
        let share = self.geo.blocks_per_group / DIRECTORIES_PER_GROUP;
        let least = (DIRECTORY_BYTES_MIN / self.geo.block_size).min(share).max(1);
        let average = self.alloc.blocks_per_directory().unwrap_or_default();
        average.min(self.geo.blocks_per_group.into()).max(least.into()) as u32
    }

    // -- metadata blocks

    /// Allocates one block for an indirect block among a file's data, near `goal`.
    pub fn map_block(&self, goal: u64) -> Result<(u64, Level)> {
        let group = self.geo.group_of_block(BlockNo(goal)).unwrap_or_default();
        let (run, level) = self.search(Some(goal), group, 1)?;
        Ok((run.start.0, level))
    }

    /// Allocates one block for a directory, a first indirect block or the like: in the group's zone
    /// for them, else near it.
    pub fn meta_block(&self, group: GroupNo) -> Result<(u64, Level)> {
        let zone = self.alloc.zone(group);
        match self.alloc.blocks(group, Fit::Meta(zone.start), 1)? {
            Some((run, level)) => Ok((run.start.0, level)),
            None => self.map_block(zone.start),
        }
    }

    // -- write-back

    /// Plans the file's blocks that are written together with `due` (its neighbours in the file),
    /// and their places.
    pub fn plan<N>(
        &self,
        due: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        plan: &mut Plan,
    ) -> Result<()> {
        let around = match due {
            WritebackReason::Evict(_, lbn) => Some((lbn, self.transfer_blocks)),
            _ => None,
        };
        match dirty.file(due.ino(), around) {
            Some(dirty) => self.plan_file(due, &dirty, files, plan),
            None => Ok(()),
        }
    }

    /// Plans writes for one file's dirty ranges.
    pub(super) fn plan_file<N>(
        &self,
        due: WritebackReason,
        dirty: &DirtyFile<N>,
        files: &dyn Files<N>,
        plan: &mut Plan,
    ) -> Result<()> {
        let file = File { node: &*dirty.node, files };
        let mut last = None;
        for range in &dirty.dirty {
            self.plan_range(due, &file, dirty.ino, *range, &mut last, plan)?;
        }
        Ok(())
    }

    /// Returns addresses for `range`, none of which has one, at the time of the write, for
    /// [`Policy::FfsPaper`](super::Policy::FfsPaper). They may be fewer than asked for.
    pub fn place_early<N>(&self, node: &N, files: &dyn Files<N>, range: LbnRange) -> Result<BlockRun> {
        self.place(&File { node, files }, range.start.0, range.len, None)
    }

    /// Plans writes for one dirty range. `last` is the place of the block planned before it.
    fn plan_range<N>(
        &self,
        due: WritebackReason,
        file: &File<'_, N>,
        ino: Ino,
        range: LbnRange,
        last: &mut Option<(u64, u64)>,
        plan: &mut Plan,
    ) -> Result<()> {
        let tag = tag(due, ino);
        let (mut lbn, end) = (range.start.0, range.end().0);
        while lbn < end {
            let window = (end - lbn).min(self.transfer_blocks.into()) as u32;
            let mapping = file.map(Lbn(lbn), window)?;
            if let Some(run) = self.reallocate(due, file, lbn, window, &mapping)? {
                lbn = travel(plan, ino, lbn, run, true, tag, last);
                continue;
            }
            if matches!(due, WritebackReason::Move(_)) {
                // The window's place cannot be improved: no block is to be written.
                lbn += u64::from(window);
                continue;
            }
            match mapping {
                Mapping::Run(run) | Mapping::Unwritten(run) => lbn = travel(plan, ino, lbn, run, false, tag, last),
                Mapping::Hole { len } => {
                    let run = self.place(file, lbn, self.hole(file, lbn, len, end)?, *last)?;
                    lbn = self.split_travels(plan, ino, lbn, run, tag, last);
                }
            }
        }
        Ok(())
    }

    /// Returns the length of the hole at `lbn`, in blocks, looking beyond one transfer: the whole
    /// length is placed at once.
    fn hole<N>(&self, file: &File<'_, N>, lbn: u64, known: u32, end: u64) -> Result<u32> {
        let limit = (end - lbn).min(u64::from(self.geo.blocks_per_group) / SECTIONS_PER_GROUP).max(1) as u32;
        let mut len = known.min(limit);
        while len < limit {
            let Mapping::Hole { len: more } = file.map(Lbn(lbn + u64::from(len)), limit - len)? else { break };
            len += more;
        }
        Ok(len)
    }

    fn split_travels(
        &self,
        plan: &mut Plan,
        ino: Ino,
        lbn: u64,
        run: BlockRun,
        tag: Tag,
        last: &mut Option<(u64, u64)>,
    ) -> u64 {
        let mut lbn = lbn;
        let mut start = run.start.0;
        while start < run.end().0 {
            let len = (run.end().0 - start).min(self.transfer_blocks.into()) as u32;
            lbn = travel(plan, ino, lbn, BlockRun { start: BlockAddr(start), len }, true, tag, last);
            start += u64::from(len);
        }
        lbn
    }

    /// Returns a free run for a window of dirty blocks that lie scattered, or would once those
    /// without an address have one, if the move pays.
    fn reallocate<N>(
        &self,
        due: WritebackReason,
        file: &File<'_, N>,
        lbn: u64,
        window: u32,
        first: &Mapping,
    ) -> Result<Option<BlockRun>> {
        let (Mapping::Run(run) | Mapping::Unwritten(run)) = first else { return Ok(None) };
        if run.len >= window || self.alloc.spare_blocks() < self.geo.blocks / MOVE_FLOOR + u64::from(window) {
            return Ok(None);
        }
        let Some(pieces) = self.pieces(due, file, lbn, window)? else { return Ok(None) };
        // A window that only crosses a border between two long runs gains nothing.
        if pieces == 1 || (pieces == 2 && u64::from(window) > SMALL_BLOCKS_MAX) {
            return Ok(None);
        }
        let group = self.geo.group_of_block(BlockNo(run.start.0)).unwrap_or(file.group());
        let fit = Fit::Whole(self.alloc.rotor(group));
        self.unpromised(group, fit, window)
    }

    /// Returns the number of pieces in which a window lies, or will lie: blocks without an address
    /// go on behind the block before them if the blocks there are free. Returns `None` if it has
    /// holes that are to stay.
    fn pieces<N>(&self, due: WritebackReason, file: &File<'_, N>, lbn: u64, window: u32) -> Result<Option<usize>> {
        let mut pieces = 0;
        let mut next = None;
        let mut at = 0;
        while at < window {
            let mapping = file.map(Lbn(lbn + u64::from(at)), window - at)?;
            let len = mapping.len().clamp(1, window - at);
            let start = match mapping {
                Mapping::Run(run) | Mapping::Unwritten(run) => Some(run.start),
                Mapping::Hole { .. } if matches!(due, WritebackReason::Move(_)) => return Ok(None),
                Mapping::Hole { .. } => match next {
                    Some(start) if self.alloc.is_free(BlockRun { start, len })? => next,
                    _ => None,
                },
            };
            pieces += usize::from(start.is_none() || start != next);
            next = start.map(|start| BlockAddr(start.0 + u64::from(len)));
            at += len;
        }
        Ok(Some(pieces))
    }

    /// Allocates a run for data that need not move: its blocks are promised to no other caller, and
    /// enough blocks stay free.
    pub(super) fn unpromised(&self, group: GroupNo, fit: Fit, want: u32) -> Result<Option<BlockRun>> {
        let Some(_held) = self.hold(want, self.geo.blocks / MOVE_FLOOR) else { return Ok(None) };
        Ok(self.alloc.better_blocks(group, fit, want)?.map(|(run, _)| run))
    }

    /// Holds `blocks` blocks that are promised to no caller, if `keep` more are left: as long as they are held, so many
    /// can be taken beyond what was promised for the data, and every other promise is kept.
    pub(super) fn hold(&self, blocks: u32, keep: u64) -> Option<Admission> {
        let promised = self.alloc.promise(blocks.into(), 0, keep)?;
        Some(Admission::new(blocks.into(), promised))
    }

    /// Allocates a place for up to `want` blocks of a file at `lbn`.
    fn place<N>(&self, file: &File<'_, N>, lbn: u64, want: u32, last: Option<(u64, u64)>) -> Result<BlockRun> {
        let planned = last.filter(|(before, _)| before + 1 == lbn).map(|(_, block)| block);
        let before = match (planned, lbn.checked_sub(1)) {
            (Some(block), _) => Some(block),
            (None, None) => None,
            (None, Some(previous)) => match file.map(Lbn(previous), 1)? {
                Mapping::Run(run) | Mapping::Unwritten(run) => Some(run.start.0),
                Mapping::Hole { .. } => None,
            },
        };
        let section = (u64::from(self.geo.blocks_per_group) / SECTIONS_PER_GROUP).max(SMALL_BLOCKS_MAX + 1);
        let want = want.min((section - lbn % section).min(u32::MAX.into()) as u32);
        let group = before.and_then(|b| self.geo.group_of_block(BlockNo(b))).unwrap_or(file.group());
        if lbn >= section && lbn.is_multiple_of(section) {
            return self.search(None, self.next_roomy(group), want).map(|(run, _)| run);
        }
        self.search(before.map(|block| block + 1), group, want).map(|(run, _)| run)
    }

    /// Returns the next group with at least average free space.
    fn next_roomy(&self, group: GroupNo) -> GroupNo {
        let average = self.alloc.available_blocks() / u64::from(self.geo.groups);
        let next =
            (1..=self.geo.groups).map(|at| GroupNo((u64::from(group.0) + u64::from(at)) as u32 % self.geo.groups));
        next.into_iter().find(|g| u64::from(self.alloc.counts(*g).free_blocks) >= average).unwrap_or(group)
    }

    /// Looks for up to `want` blocks:
    /// 1. right at `goal`, however few;
    /// 2. in the group, a run that holds all;
    /// 3. small wants: the longest run of the group;
    /// 4. the other groups in order, a run that holds all;
    /// 5. the longest run of the first group that has any.
    fn search(&self, goal: Option<u64>, group: GroupNo, want: u32) -> Result<(BlockRun, Level)> {
        let want = want.max(1);
        if let Some(goal) = goal
            && let Some(home) = self.geo.group_of_block(BlockNo(goal))
            && let Some(found) = self.alloc.blocks(home, Fit::At(goal), want)?
        {
            return Ok(found);
        }
        let from = goal.unwrap_or_else(|| self.alloc.rotor(group));
        if let Some(found) = self.alloc.blocks(group, Fit::Whole(from), want)? {
            return Ok(found);
        }
        if u64::from(want) <= SMALL_BLOCKS_MAX
            && let Some(found) = self.alloc.blocks(group, Fit::Longest, want)?
        {
            return Ok(found);
        }
        let count = self.geo.groups;
        let others = || (1..=count).map(|at| GroupNo((u64::from(group.0) + u64::from(at)) as u32 % count));
        for other in others().filter(|g| self.alloc.counts(*g).free_blocks >= want) {
            if let Some(found) = self.alloc.blocks(other, Fit::Whole(self.alloc.rotor(other)), want)? {
                return Ok(found);
            }
        }
        for other in std::iter::once(group).chain(others()) {
            if let Some(found) = self.alloc.blocks(other, Fit::Longest, want)? {
                return Ok(found);
            }
        }
        Err(no_space())
    }
}

/// Adds a planned write and returns the logical block after it.
fn travel(
    plan: &mut Plan,
    ino: Ino,
    lbn: u64,
    to: BlockRun,
    fresh: bool,
    tag: Tag,
    last: &mut Option<(u64, u64)>,
) -> u64 {
    let range = LbnRange { start: Lbn(lbn), len: to.len };
    plan.writes.push(PlannedWrite { to, from: smallvec![FileRange { ino, range }], fresh, tag });
    let end = lbn + u64::from(to.len);
    *last = Some((end - 1, to.end().0 - 1));
    end
}

/// Returns the tag for the device: data of `ino`, written because of `due`.
pub(super) fn tag(due: WritebackReason, ino: Ino) -> Tag {
    let cause = match due {
        WritebackReason::Evict(..) => Cause::Evict,
        WritebackReason::Age(_) => Cause::Age,
        WritebackReason::Sync(_) | WritebackReason::Drain(_) => Cause::Demand,
        WritebackReason::Move(_) => Cause::Move,
    };
    Tag::new(Kind::Data, ino.0, cause)
}
