//! Co-writing: when one small file's data must leave the cache, the dirty small files of its
//! directory leave with it, in one device request.
//!
//! At a delayed write of file f of directory d, whose inode lies in group g (Figs. 6 and 7 of Lee, Ahn, Oh: Co-Writing
//! Multiple Files Based on Directory Locality for High Performance of Small File Writes, 2008):
//!
//! 1. f is large (more than [`SMALL_BLOCKS_MAX`] blocks), or not all of it is in the cache: [`Ffs`] decides.
//! 2. *Gather*: f first, then the smallest dirty small files of d, as far as they are whole in the cache.
//! 3. *Stay*: files that are overwritten and already lie in long runs of neighbours that are also
//!    written stay where they are. A move would gain nothing, and no pointer changes. Files that
//!    lie scattered move if that saves requests.
//! 4. *Place*: the rest goes to runs of g; files are taken whole or not at all; blocks that are not
//!    filled are given back. This is repeated until no file is left or g has no run that helps.
//!    Then [`Ffs`] decides.
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
//! The paper takes runs of at most one transfer; moafs takes runs as long as the files that wait,
//! if the group has them, so that the requests of a directory follow one another. An fsync takes
//! along one transfer's worth of files, any other write-back all that wait, up to
//! [`GATHER_BYTES_MAX`].

use moafs_vfs::Result;
use moafs_vfs::format::Admission;
use moafs_vfs::plan::{DirtyFile, DirtyView, Plan, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, FileRange, Ino, Lbn, LbnRange, Mapping};
use smallvec::SmallVec;

use super::Files;
use super::ffs::{Ffs, MOVE_FLOOR, tag};
use super::windows::Windows;
use crate::alloc::Fit;
use crate::format::{BlockNo, GroupNo, InodeNo};

/// The most that one plan gathers, in bytes: bounds the memory of a plan, and how long a write-back
/// holds pages.
const GATHER_BYTES_MAX: u32 = 16 << 20;
/// The shortest useful run, in blocks: with a shorter one the file goes where [`Ffs`] puts it.
const RUN_BLOCKS_MIN: u32 = 2;
/// A group is full if less than this share (one in so many) of its blocks is free: then a short run
/// is not worth the way to it.
const FULL_SHARE: u32 = 4;
/// Moving overwritten files must save more requests than this: bitmaps have to be written as well.
const MOVE_REQUESTS: usize = 1;

/// The policy of co-writing.
pub struct Cowrite<'a> {
    /// The policy for all other files; also gives the allocator and the volume's geometry.
    pub ffs: Ffs<'a>,
    /// The blocks that directories keep for their next files.
    pub windows: &'a Windows,
}

/// A run that was handed out for a directory.
struct Room {
    run: BlockRun,
    /// The place that the run comes from.
    from: Source,
    /// Covers the blocks of the run that the files do not need.
    _surplus: Option<Admission>,
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

/// A dirty small file that is whole in the cache: every block is dirty or has an address.
struct Member<N> {
    file: DirtyFile<N>,
    /// The address of each block that has one.
    places: SmallVec<[Option<u64>; SMALL_BLOCKS_MAX as usize]>,
}

impl<N> Member<N> {
    fn blocks(&self) -> u32 {
        self.places.len() as u32
    }

    fn is_dirty(&self, at: u64) -> bool {
        self.file.dirty.iter().any(|range| range.start.0 <= at && at < range.end().0)
    }

    /// Returns true if every block has an address: no block needs a new one.
    fn is_placed(&self) -> bool {
        self.places.iter().all(Option::is_some)
    }

    /// Returns the number of blocks that have an address, which a move gives up.
    fn placed_blocks(&self) -> u32 {
        self.places.iter().flatten().count() as u32
    }

    fn whole(&self) -> FileRange {
        FileRange { ino: self.file.ino, range: LbnRange { start: Lbn(0), len: self.blocks() } }
    }
}

/// A dirty block of a member that may stay where it is.
struct Settled {
    address: u64,
    lbn: u64,
    member: usize,
}

impl Cowrite<'_> {
    /// Plans the files that are written together with `due`, and their places.
    pub fn plan<N>(
        &self,
        due: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        plan: &mut Plan,
    ) -> Result<()> {
        let around = match due {
            WritebackReason::Evict(_, lbn) => Some((lbn, self.ffs.transfer_blocks)),
            _ => None,
        };
        let Some(first) = dirty.file(due.ino(), around) else { return Ok(()) };
        if first.blocks > SMALL_BLOCKS_MAX {
            return self.ffs.plan_file(due, &first, files, plan);
        }
        // Of a small file all dirty blocks are wanted, not only those around one block.
        let Some(first) = dirty.file(due.ino(), None) else { return Ok(()) };
        let home = first.home;
        let members = match self.member(first, files)? {
            Ok(first) => self.gather(due, first, dirty, files)?,
            Err(partly) => return self.ffs.plan_file(due, &partly, files, plan),
        };
        let travellers = self.settle(due, members, plan);
        let (travellers, _moved) = self.keep_reserved(due, travellers, files, plan)?;
        self.place(due, home, travellers, files, plan)
    }

    /// Returns the group of a directory.
    fn group_of(&self, directory: Ino) -> GroupNo {
        let number = u32::try_from(directory.0).map(InodeNo).unwrap_or(InodeNo::ROOT);
        self.ffs.geo.locate_inode(number).map_or(GroupNo(0), |at| at.group)
    }

    /// Returns the file with its addresses, if it may be written whole; else as it was given.
    fn member<N>(
        &self,
        file: DirtyFile<N>,
        files: &dyn Files<N>,
    ) -> Result<std::result::Result<Member<N>, DirtyFile<N>>> {
        if !file.whole || file.blocks == 0 || file.blocks > SMALL_BLOCKS_MAX {
            return Ok(Err(file));
        }
        let mut places = SmallVec::new();
        while (places.len() as u64) < file.blocks {
            let at = places.len() as u64;
            let left = (file.blocks - at) as u32;
            match files.map(&file.node, Lbn(at), left)? {
                Mapping::Run(run) | Mapping::Unwritten(run) => {
                    places.extend((run.start.0..run.end().0).take(left as usize).map(Some));
                }
                Mapping::Hole { len } => places.extend((0..len.clamp(1, left)).map(|_| None)),
            }
        }
        let member = Member { file, places };
        // A hole that was not written to stays one.
        let has_hole = (0..).zip(&member.places).any(|(at, place)| place.is_none() && !member.is_dirty(at));
        Ok(if has_hole { Err(member.file) } else { Ok(member) })
    }

    /// Returns `first`, and the smallest dirty files of its directory that may be written with it.
    fn gather<N>(
        &self,
        due: WritebackReason,
        first: Member<N>,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
    ) -> Result<Vec<Member<N>>> {
        let home = first.file.home;
        let blocks_max = match due {
            WritebackReason::Sync(_) => self.ffs.transfer_blocks,
            _ => (GATHER_BYTES_MAX / self.ffs.geo.block_size).max(self.ffs.transfer_blocks),
        };
        let mut room = blocks_max.saturating_sub(first.blocks());
        let mut members = vec![first];
        for blocks in dirty.small_counts(home) {
            if blocks > room {
                break;
            }
            for ino in dirty.small_files(home, blocks).into_iter().filter(|ino| *ino != due.ino()) {
                if blocks > room {
                    break;
                }
                let Some(file) = dirty.file(ino, None) else { continue };
                if let Ok(member) = self.member(file, files)?
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
    fn settle<N>(&self, due: WritebackReason, members: Vec<Member<N>>, plan: &mut Plan) -> Vec<Member<N>> {
        let clusters = clusters(&members);
        let long = self.ffs.transfer_blocks.div_ceil(2) as usize;
        let mut scattered = vec![false; members.len()];
        let short = clusters.iter().filter(|cluster| cluster.len() < long);
        let pieces = short.inspect(|cluster| cluster.iter().for_each(|block| scattered[block.member] = true)).count();
        let moving = || members.iter().zip(&scattered).filter(|(_, scattered)| **scattered);
        let blocks: u32 = moving().map(|(member, _)| member.blocks()).sum();
        let requests = blocks.div_ceil(self.ffs.transfer_blocks) as usize;
        if pieces <= requests + MOVE_REQUESTS || !self.may_move(blocks) {
            scattered.fill(false);
        }
        if !matches!(due, WritebackReason::Move(_)) {
            for cluster in clusters {
                self.write_in_place(due, &members, &scattered, &cluster, plan);
            }
        }
        let leaves = |(member, scattered): (Member<N>, bool)| (scattered || !member.is_placed()).then_some(member);
        members.into_iter().zip(scattered).filter_map(leaves).collect()
    }

    /// Plans files that grew as [`Ffs`] would when there is no space to move the blocks they had
    /// before: space for these is not reserved. Returns the others, and what is held for the blocks that they give up.
    /// (Files that move for the layout's sake take no blocks that are promised.)
    fn keep_reserved<N>(
        &self,
        due: WritebackReason,
        members: Vec<Member<N>>,
        files: &dyn Files<N>,
        plan: &mut Plan,
    ) -> Result<(Vec<Member<N>>, Option<Admission>)> {
        let moved = members.iter().map(Member::placed_blocks).sum();
        if moved == 0 || matches!(due, WritebackReason::Move(_)) {
            return Ok((members, None));
        }
        if let Some(held) = self.ffs.hold(moved, self.ffs.geo.blocks / MOVE_FLOOR) {
            return Ok((members, Some(held)));
        }
        let (grown, new): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.placed_blocks() > 0);
        grown.iter().try_for_each(|member| self.ffs.plan_file(due, &member.file, files, plan))?;
        Ok((new, None))
    }

    /// Returns true if there is space enough to move `blocks` blocks for the layout's sake.
    fn may_move(&self, blocks: u32) -> bool {
        self.ffs.alloc.spare_blocks() >= self.ffs.geo.blocks / MOVE_FLOOR + u64::from(blocks)
    }

    /// Plans writes for the blocks of a cluster whose files stay.
    fn write_in_place<N>(
        &self,
        due: WritebackReason,
        members: &[Member<N>],
        scattered: &[bool],
        cluster: &[Settled],
        plan: &mut Plan,
    ) {
        let mut open: Option<PlannedWrite> = None;
        for block in cluster.iter().filter(|block| !scattered[block.member]) {
            let ino = members[block.member].file.ino;
            let full =
                |travel: &PlannedWrite| travel.to.end().0 != block.address || travel.to.len >= self.ffs.transfer_blocks;
            if open.as_ref().is_some_and(full) {
                plan.writes.extend(open.take());
            }
            let travel = open.get_or_insert_with(|| PlannedWrite {
                to: BlockRun { start: BlockAddr(block.address), len: 0 },
                from: SmallVec::new(),
                fresh: false,
                tag: tag(due, ino),
            });
            travel.to.len += 1;
            match travel.from.last_mut() {
                Some(last) if last.ino == ino && last.range.end().0 == block.lbn => last.range.len += 1,
                _ => travel.from.push(FileRange { ino, range: LbnRange { start: Lbn(block.lbn), len: 1 } }),
            }
        }
        plan.writes.extend(open);
    }

    /// Places files whole into runs of the group, the first first, then the smaller ones first.
    fn place<N>(
        &self,
        due: WritebackReason,
        home: Ino,
        mut waiting: Vec<Member<N>>,
        files: &dyn Files<N>,
        plan: &mut Plan,
    ) -> Result<()> {
        while !waiting.is_empty() {
            let wanted = waiting.iter().map(Member::blocks).sum::<u32>();
            let smallest = waiting.iter().map(Member::blocks).min().unwrap_or(1);
            let Some(Room { run, from, _surplus }) = self.room(due, home, wanted, smallest)? else { break };
            let mut taken = if run.len < RUN_BLOCKS_MIN.min(wanted) { Vec::new() } else { fill(&mut waiting, run.len) };
            if matches!(due, WritebackReason::Move(_)) && !self.saves_requests(&waiting, &taken) {
                waiting.append(&mut taken);
            }
            let filled: u32 = taken.iter().map(Member::blocks).sum();
            let rest = BlockRun { start: BlockAddr(run.start.0 + u64::from(filled)), len: run.len - filled };
            let has_window = matches!(from, Source::Window | Source::Group);
            let keeps = has_window && filled > 0;
            self.ffs.alloc.give_back(rest, keeps)?;
            if has_window {
                self.windows.note(home, filled, keeps.then_some(rest));
            }
            // A window in which no file fits is given up; the group has no better run than the one
            // it gave.
            if taken.is_empty() && from != Source::Window {
                break;
            }
            self.write_run(due, run.start, taken, plan);
        }
        waiting.iter().try_for_each(|member| self.ffs.plan_file(due, &member.file, files, plan))
    }

    /// Finds a run for up to `wanted` blocks of a directory's files, the smallest of which has
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
    fn room(&self, due: WritebackReason, home: Ino, wanted: u32, smallest: u32) -> Result<Option<Room>> {
        let group = self.group_of(home);
        if matches!(due, WritebackReason::Move(_)) {
            let longest = self.ffs.unpromised(group, Fit::Longest, wanted)?;
            return Ok(longest.map(|run| Room { run, from: Source::Move, _surplus: None }));
        }
        let transfer = self.ffs.transfer_blocks;
        if wanted < transfer.div_ceil(2) && !matches!(due, WritebackReason::Sync(_)) {
            let found = self.ffs.alloc.blocks(group, Fit::AtLeast(wanted), wanted)?;
            return Ok(found.map(|(run, _)| Room { run, from: Source::Shared, _surplus: None }));
        }
        let little = wanted < transfer;
        if let Some(window) = self.windows.rest(home).filter(|window| !little || wanted <= window.len) {
            let group = self.ffs.geo.group_of_block(BlockNo(window.start.0)).unwrap_or(group);
            let (want, _surplus) = self.with_surplus(wanted.min(window.len), window.len);
            match self.ffs.alloc.blocks(group, Fit::At(window.start.0), want)? {
                Some((run, _)) => return Ok(Some(Room { run, from: Source::Window, _surplus })),
                None => self.windows.note(home, 0, None),
            }
        }
        let is_full = self.ffs.alloc.counts(group).free_blocks < self.ffs.geo.blocks_per_group / FULL_SHARE;
        let least = if little { wanted } else { smallest.max(if is_full { transfer.div_ceil(2) } else { 1 }) };
        let ahead = self.windows.ahead(home, self.ffs.geo.block_size);
        let (want, _surplus) = self.with_surplus(wanted, wanted.saturating_add(ahead));
        let found = self.ffs.alloc.blocks(group, Fit::AtLeast(least), want)?;
        Ok(found.map(|(run, _)| Room { run, from: Source::Group, _surplus }))
    }

    /// Returns how many blocks to take for files that need `wanted`, and what is held for the rest: `more`, if these
    /// are promised to no other files and enough stay free.
    fn with_surplus(&self, wanted: u32, more: u32) -> (u32, Option<Admission>) {
        match self.ffs.hold(more - wanted, self.ffs.geo.blocks / MOVE_FLOOR) {
            Some(held) => (more, Some(held)),
            None => (wanted, None),
        }
    }

    /// Returns true if reading all these files takes fewer requests once those of `taken` lie in
    /// one run.
    fn saves_requests<N>(&self, waiting: &[Member<N>], taken: &[Member<N>]) -> bool {
        let requests = |members: &mut dyn Iterator<Item = &Member<N>>| -> usize {
            let transfer = self.ffs.transfer_blocks as usize;
            pieces(members).into_iter().map(|blocks| blocks.div_ceil(transfer)).sum()
        };
        let blocks: u32 = taken.iter().map(Member::blocks).sum();
        let after = requests(&mut waiting.iter()) + blocks.div_ceil(self.ffs.transfer_blocks) as usize;
        requests(&mut waiting.iter().chain(taken)) > after + MOVE_REQUESTS
    }

    /// Plans writes that fill a run with whole files.
    fn write_run<N>(&self, due: WritebackReason, start: BlockAddr, mut taken: Vec<Member<N>>, plan: &mut Plan) {
        taken.sort_by_key(|member| member.file.ino);
        let mut next = start;
        let mut open: Option<PlannedWrite> = None;
        for member in &taken {
            for part in parts(member.whole(), self.ffs.transfer_blocks) {
                let too_long = |travel: &PlannedWrite| travel.to.len + part.range.len > self.ffs.transfer_blocks;
                if open.as_ref().is_some_and(too_long) {
                    plan.writes.extend(open.take());
                }
                let travel = open.get_or_insert_with(|| PlannedWrite {
                    to: BlockRun { start: next, len: 0 },
                    from: SmallVec::new(),
                    fresh: true,
                    tag: tag(due, part.ino),
                });
                travel.to.len += part.range.len;
                travel.from.push(part);
                next = BlockAddr(next.0 + u64::from(part.range.len));
            }
        }
        plan.writes.extend(open);
    }
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
