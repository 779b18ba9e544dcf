//! The main area: what the engine asks of it, and does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::AtomicU64;
use moafs_runtime::leaf::{Mutex, MutexGuard};
use moafs_vfs::format::{Admission, Reservations};
use moafs_vfs::types::BlockRun;

use super::head::{Head, LogCounters};
use super::recorded::Recorded;
use super::state::{Maps, Origin, Remade, Segment, State, Usage};
use crate::clean::Secno;
use crate::clean::table::{Class, SegmentView, Table};
use crate::format::checkpoint::Checkpoint;
use crate::format::sit::SitEntry;
use crate::format::summary::{Summary, SummaryEntry};
use crate::format::superblock::Geometry;
use crate::format::{BlkAddr, Log, SEGMENT_BLOCKS, Segno};
use crate::place::budget::Blocks;
use crate::place::free::FreeSegments;
use crate::place::log_choice::LogMode;

/// Blocks that a roll-forward may take beyond those that are counted: nodes of directories, which more names at once
/// than there ever were may need.
const ROLL_FORWARD_MARGIN: u64 = 64;

/// The main area of a volume.
pub(in crate::engine) struct MainArea {
    pub(super) geo: Geometry,
    pub(super) user_blocks: u64,
    pub(super) state: Mutex<State>,
    pub(super) dirty_nodes: AtomicU64,
    pub(super) dirty_blocks: AtomicU64,
    /// Counts the times that freed blocks have become usable.
    pub(super) relocation_generation: AtomicU64,
}

/// Segments that are being emptied, until this is dropped. No block of them is handed out
/// meanwhile: bytes read from one of them stay right as long as the file points there.
pub(in crate::engine) struct Emptying {
    space: Arc<MainArea>,
    segments: Vec<Segno>,
}

impl Emptying {
    pub(in crate::engine) fn segments(&self) -> &[Segno] {
        &self.segments
    }
}

impl Drop for Emptying {
    fn drop(&mut self) {
        let mut state = self.space.state();
        for segno in &self.segments {
            state.victims.remove(&segno.0);
            state.recount(segno.0);
            state.free_if_empty(&self.space.geo, segno.0);
        }
    }
}

impl MainArea {
    /// Makes the state from the SIT and a checkpoint. `entries` has one entry for each segment that
    /// is not empty.
    pub(in crate::engine) fn new(
        geo: &Geometry,
        checkpoint: &Checkpoint,
        entries: Vec<(Segno, SitEntry)>,
        current: [Recorded; 6],
    ) -> MainArea {
        let empty = Segment {
            log: Log::WarmData,
            valid: 0,
            in_flight: 0,
            mtime: 0,
            youngest: 0,
            maps: None,
            counted: (Class::Data, 0),
        };
        let mut segments = vec![empty; geo.segments as usize];
        for (segno, entry) in entries {
            let Some(segment) = segments.get_mut(segno.0 as usize) else { continue };
            let map = entry.map;
            let maps = Maps { valid: map, held: map, next: map };
            *segment = Segment {
                log: entry.log,
                valid: maps.valid.count(),
                in_flight: 0,
                mtime: entry.mtime.saturating_mul(1_000_000_000),
                youngest: entry.mtime.saturating_mul(1_000_000_000),
                maps: (!maps.valid.is_empty()).then(|| Box::new(maps)),
                counted: (Class::Data, 0),
            };
        }
        let heads = checkpoint.current.map(|c| Head { segno: c.segno, offset: c.offset, recycling: c.recycling });
        let summaries = heads.iter().zip(current).map(|(head, recorded)| (head.segno, recorded)).collect();
        for (log, head) in Log::ALL.into_iter().zip(&heads) {
            segments[head.segno.0 as usize].log = log;
        }
        let is_current = |segno: u32| heads.iter().any(|head| head.segno.0 == segno);
        let free = (0..geo.segments).filter(|segno| segments[*segno as usize].maps.is_none() && !is_current(*segno));
        let free = FreeSegments::new(geo.segs_per_sec, free);
        let usage =
            Usage { blocks: checkpoint.valid_blocks, nodes: checkpoint.valid_nodes, inodes: checkpoint.valid_inodes };
        let mut state = State {
            segments,
            heads,
            free,
            touched: BTreeSet::new(),
            leaving: BTreeSet::new(),
            flights: BTreeMap::new(),
            summaries,
            usage,
            promised: 0,
            counters: LogCounters::default(),
            segments_per_section: geo.segs_per_sec.max(1) as usize,
            now: 0,
            modes: [LogMode::Append; 6],
            reserve: 0,
            holes: Blocks::default(),
            tickets: Blocks::default(),
            tickets_issued: 0,
            chained: 0,
            remade: Remade::default(),
            victims: BTreeSet::new(),
            closed: BTreeSet::new(),
            areas: Default::default(),
            owners: None,
        };
        (0..geo.segments).for_each(|segno| state.recount(segno));
        MainArea {
            geo: geo.clone(),
            user_blocks: checkpoint.user_blocks,
            state: Mutex::new(state),
            dirty_nodes: AtomicU64::new(0),
            dirty_blocks: AtomicU64::new(0),
            relocation_generation: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn locate(&self, addr: BlkAddr) -> Option<(usize, usize)> {
        self.geo.segment_of(addr).map(|(segno, offset)| (segno.0 as usize, offset))
    }

    // -- counting

    pub(in crate::engine) fn usage(&self) -> Usage {
        self.state().usage
    }

    /// Counts a block that has been promised.
    pub(in crate::engine) fn count_promised(&self, count: impl FnOnce(&mut Usage), admission: &mut Admission) {
        self.change_usage(count);
        // Not before: between the two the block would be promised to another caller.
        admission.spend(1);
    }

    pub(in crate::engine) fn change_usage(&self, change: impl FnOnce(&mut Usage)) {
        change(&mut self.state().usage);
    }

    pub(in crate::engine) fn counters(&self) -> LogCounters {
        self.state().counters
    }

    /// Returns the number of blocks that a user may still ask for.
    pub(in crate::engine) fn available(&self) -> u64 {
        let state = self.state();
        self.user_blocks.saturating_sub(state.usage.blocks).saturating_sub(state.promised)
    }

    /// Returns the number of nodes, and of promised blocks that may become nodes: those kept for swap areas do not.
    pub(in crate::engine) fn nodes_and_promised(&self) -> (u64, u64) {
        let state = self.state();
        (state.usage.nodes.into(), state.promised.saturating_sub(state.kept_blocks(&self.geo)))
    }

    /// Promises `blocks`, if there are so many; false otherwise.
    pub(in crate::engine) fn promise(&self, blocks: u64) -> bool {
        let mut state = self.state();
        let taken = state.usage.blocks.saturating_add(state.promised);
        let fits = taken.saturating_add(blocks) <= self.user_blocks;
        if fits {
            state.promised += blocks;
        }
        fits
    }

    /// Returns true if all that a roll-forward could bring back has room, after a chain that tells one more name: the
    /// blocks in use, those freed since the last checkpoint, which belong to files that it has, or to files whose
    /// chains were written before they were removed, and those that recovery makes ([`Remade`]). A checkpoint with more
    /// than the volume's blocks in use could not be written, nor the volume mounted.
    pub(in crate::engine) fn has_room_to_roll_forward(&self) -> bool {
        let state = self.state();
        let made = state.remade.all() + 1 + ROLL_FORWARD_MARGIN;
        let taken = state.usage.blocks.saturating_add(made);
        let changed = || state.touched.union(&state.leaving);
        // The blocks are counted only if it may matter.
        let most = (changed().count() * SEGMENT_BLOCKS) as u64;
        let freed = || changed().map(|segno| state.segments[*segno as usize].freed_and_held()).sum::<u64>();
        taken + most <= self.user_blocks || taken + freed() <= self.user_blocks
    }

    /// Counts a node that was freed before it had an address, and that no chain has.
    pub(in crate::engine) fn unmade_node(&self) {
        self.state().remade.nodes += 1;
    }

    /// Counts blocks of a file that were freed before they had addresses.
    pub(in crate::engine) fn unmade_blocks(&self, blocks: u64) {
        self.state().remade.blocks += blocks;
    }

    /// Keeps logs out of the holes of segments that are to be emptied, except those that a log stands in by now.
    /// `None` if the blocks that are owed need these holes, or no segment is left.
    pub(in crate::engine) fn emptying(self: &Arc<Self>, segments: &[Segno]) -> Option<Emptying> {
        let mut state = self.state();
        let segments: Vec<Segno> = segments.iter().copied().filter(|segno| !state.is_current(segno.0)).collect();
        for segno in &segments {
            state.victims.insert(segno.0);
            state.recount(segno.0);
        }
        let fits = self.budget_of(&state).fits();
        drop(state);
        let is_any = !segments.is_empty();
        Some(Emptying { space: Arc::clone(self), segments }).filter(|_| fits && is_any)
    }

    // -- the clock and the choice of segments

    /// Sets the volume's clock, in nanoseconds.
    pub(in crate::engine) fn set_clock(&self, now: u64) {
        self.state().now = now;
    }

    /// Returns the number of free segments that logs may take.
    pub(in crate::engine) fn free_segments(&self) -> u32 {
        self.state().free_for_logs()
    }

    /// Returns the number of sections of which every segment is free, and that logs may take.
    pub(in crate::engine) fn free_sections(&self) -> u32 {
        self.state().free_sections_for_logs()
    }

    /// Returns the number of segments that will be free once what has changed is in a durable checkpoint.
    pub(in crate::engine) fn freeing_segments(&self) -> u32 {
        let state = self.state();
        let empties = |segno: &&u32| {
            let segment = &state.segments[**segno as usize];
            segment.valid == 0 && segment.in_flight == 0 && segment.maps.is_some() && !state.is_current(**segno)
        };
        state.touched.iter().filter(empties).count() as u32
    }

    /// Returns the number of data blocks that could be written now without a free segment, and how
    /// many another checkpoint would add.
    pub(in crate::engine) fn holes_now_and_later(&self) -> (u64, u64) {
        let state = self.state();
        let used = state.segments(Class::Data).filter(|view| !view.current && view.valid > 0);
        used.fold((0, 0), |(now, later), view| {
            let held = SEGMENT_BLOCKS as u64 - u64::from(view.valid) - u64::from(view.reusable_holes);
            (now + u64::from(view.reusable_holes), later + held)
        })
    }

    /// Returns the number of blocks of a class that could be written now without a free segment.
    pub(in crate::engine) fn holes(&self, class: Class) -> u64 {
        let holes = self.state().holes;
        if class == Class::Node { holes.nodes } else { holes.data }
    }

    /// Maps every segment with `of`, which gets the segment, true if blocks of it are valid or
    /// held, and the offset at which a log appends in it.
    pub(in crate::engine) fn map_segments<T>(&self, of: impl Fn(SegmentView, bool, Option<u16>) -> T) -> Vec<T> {
        let state = self.state();
        let append_at = |segno: u32| {
            let head = state.heads.iter().find(|head| head.segno.0 == segno && !head.recycling);
            head.map(|head| head.offset)
        };
        let one = |segno: usize| of(state.view(segno), state.segments[segno].maps.is_some(), append_at(segno as u32));
        (0..state.segments.len()).map(one).collect()
    }

    /// Returns the segment table for a policy; the state is locked as long as the result lives.
    pub(in crate::engine) fn table(&self) -> impl std::ops::Deref<Target = impl Table> + '_ {
        self.state()
    }

    /// Ends the flight of a run: it is not written, or is placed block by block with
    /// [`MainArea::place`] from now on.
    pub(in crate::engine) fn end_flight(&self, run: BlockRun) {
        let mut state = self.state();
        let (mut at, end) = (run.start.0 as u32, run.end().0 as u32);
        while at < end {
            let Some((&start, &len)) = state.flights.range(..=at).next_back().filter(|(s, l)| **s + **l > at) else {
                at += 1;
                continue;
            };
            let upto = end.min(start + len);
            state.flights.remove(&start);
            if start < at {
                state.flights.insert(start, at - start);
            }
            if upto < start + len {
                state.flights.insert(upto, start + len - upto);
            }
            if let Some((segno, _)) = self.locate(BlkAddr(at)) {
                let segment = &mut state.segments[segno];
                segment.in_flight = segment.in_flight.saturating_sub((upto - at) as u16);
                state.touched.insert(segno as u32);
            }
            at = upto;
        }
    }

    /// Makes a block valid and records its owner.
    pub(in crate::engine) fn place(&self, addr: BlkAddr, owner: SummaryEntry, origin: Origin) {
        if let Some((segno, offset)) = self.locate(addr) {
            self.state().set_valid(Segno(segno as u32), offset, owner, origin);
        }
    }

    /// Returns the origin of blocks that cleaning moves out of a segment.
    pub(in crate::engine) fn origin_of_moved(&self, segno: Segno) -> Origin {
        Origin::Moved { youngest_ns: self.state().segments[segno.0 as usize].youngest }
    }

    /// Makes a block invalid: nothing points to it any more.
    pub(in crate::engine) fn free(&self, addr: BlkAddr) {
        self.state().free(&self.geo, addr);
    }

    /// Returns a segment's entry in the segment information table.
    pub(in crate::engine) fn sit_entry(&self, segno: Segno) -> SitEntry {
        self.state().sit_entry(segno.0)
    }

    /// Keeps a block from being written before the next checkpoint is durable.
    pub(in crate::engine) fn hold(&self, addr: BlkAddr) {
        let Some((segno, offset)) = self.locate(addr) else { return };
        let mut state = self.state();
        state.free.remove(segno as u32);
        let maps = state.maps(Segno(segno as u32));
        maps.held.set(offset);
        maps.next.set(offset);
        state.recount(segno as u32);
    }

    /// Makes the segment of a block one of data: the block is about to be placed, and no log of
    /// this mount handed it out.
    pub(in crate::engine) fn admit_data(&self, addr: BlkAddr) {
        let Some((segno, _)) = self.locate(addr) else { return };
        let mut state = self.state();
        let fresh = state.segments[segno].valid == 0 && !state.is_current(segno as u32);
        if fresh && state.segments[segno].log.is_node() {
            state.segments[segno].log = Log::WarmData;
            state.recount(segno as u32);
        }
    }

    pub(in crate::engine) fn is_valid(&self, addr: BlkAddr) -> bool {
        let Some((segno, offset)) = self.locate(addr) else { return false };
        self.state().segments[segno].maps.as_ref().is_some_and(|maps| maps.valid.get(offset))
    }

    /// Returns the valid blocks of a segment, ascending, with its kind.
    pub(in crate::engine) fn valid_blocks(&self, segno: Segno) -> (Log, Vec<usize>) {
        let state = self.state();
        let segment = &state.segments[segno.0 as usize];
        let blocks = segment.maps.as_ref().map(|maps| maps.valid.iter_set().collect()).unwrap_or_default();
        (segment.log, blocks)
    }

    /// Keeps the owners of all blocks from now on; `summary` holds those of one segment.
    pub(in crate::engine) fn keep_owners(&self, segno: Segno, summary: &Summary) {
        let mut state = self.state();
        let blocks = state.segments.len() * SEGMENT_BLOCKS;
        let owners = state.owners.get_or_insert_with(|| vec![SummaryEntry::default(); blocks]);
        owners[segno.0 as usize * SEGMENT_BLOCKS..][..SEGMENT_BLOCKS].copy_from_slice(&summary.entries);
    }

    /// Returns the owners of a section's valid blocks, if they are kept.
    pub(in crate::engine) fn owners_in(&self, section: Secno) -> Vec<SummaryEntry> {
        let state = self.state();
        let Some(owners) = &state.owners else { return Vec::new() };
        let mut found = Vec::new();
        for segno in self.geo.section(section.0) {
            let Some(maps) = &state.segments[segno as usize].maps else { continue };
            let first = segno as usize * SEGMENT_BLOCKS;
            found.extend(maps.valid.iter_set().map(|offset| owners[first + offset]));
        }
        found
    }
}

impl Reservations for MainArea {
    fn release(&self, blocks: u64, _inodes: u64) {
        let mut state = self.state();
        state.promised = state.promised.saturating_sub(blocks);
    }
}

/// Returns the keeper of the promises that a volume's space has made.
pub(in crate::engine) fn keeper(space: &Arc<MainArea>) -> Arc<dyn Reservations> {
    space.clone()
}
