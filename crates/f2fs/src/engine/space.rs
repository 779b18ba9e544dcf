//! Space: the blocks that are valid, those that may be written, and the six logs that hand them
//! out.
//!
//! Three facts about a block of the main area are kept:
//! * *valid*: something in memory points to it (what SIT will say);
//! * *held*: it must not be overwritten. The last durable checkpoint has it as valid, or it was handed out
//!   since: a node chain may lead to it, and a crash would follow that chain;
//! * *in flight*: handed out for data that are being written, not placed yet.
//!
//! Invariants: a block is handed out only if it is neither valid nor held. A segment is free if no block of it is valid
//! or held and no log stands in it. What a checkpoint releases becomes usable when that checkpoint is durable
//! ([`MainArea::committed`]), not before.
//! Nothing here waits or does I/O: the mutex is a leaf.
//!
//! Every log stands on a block that may be written, in a segment of its own: a log hands out its
//! last block only when it has found another place ([`State::take`]). And what waits for the next
//! checkpoint has a place at every moment ([`crate::place::budget`]): dirty metadata are counted
//! here, ops reserve what they may add ([`Ticket`]), and contents of files leave as much as that
//! needs.
//!
//! Free sections can also be taken by swap areas ([`swaparea`]).

pub(super) mod swaparea;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_runtime::leaf::{Mutex, MutexGuard};
use moafs_vfs::format::Reservations;
use moafs_vfs::types::{BlockAddr, BlockRun};

use crate::clean::Secno;
use crate::clean::table::{Class, SectionView, SegmentView, Table};
use crate::format::checkpoint::{Checkpoint, CurrentSegment};
use crate::format::sit::{SitEntry, ValidMap};
use crate::format::summary::{Summary, SummaryEntry};
use crate::format::superblock::Geometry;
use crate::format::{BlkAddr, Log, Nid, SEGMENT_BLOCKS, Segno};
use crate::place::budget::{Blocks, Budget};
use crate::place::free::FreeSegments;
use crate::place::log_choice::{self, FreeView, FullLog, LogMode, NextSegment};

/// The offset of a log that stands in no writable place.
const EXHAUSTED: u16 = SEGMENT_BLOCKS as u16;

/// The state of a segment's blocks. Absent for a segment of which nothing is valid or held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Maps {
    valid: ValidMap,
    held: ValidMap,
    /// The value that `held` takes when the checkpoint being written is durable; equal to `held` while none is written.
    next: ValidMap,
}

#[derive(Debug, Clone)]
struct Segment {
    log: Log,
    valid: u16,
    in_flight: u16,
    /// The moment at which a block of it was last written or freed, in nanoseconds of the volume's
    /// clock.
    mtime: u64,
    /// The moment at which a block of it was last written, in nanoseconds of the volume's clock.
    youngest: u64,
    maps: Option<Box<Maps>>,
    /// The class and the number of its blocks that are counted in [`State::holes`].
    counted: (Class, u16),
}

/// The place that a log writes next.
#[derive(Debug, Clone, Copy)]
struct Head {
    segno: Segno,
    /// The block to be handed out next. [`EXHAUSTED`] only while a volume is opened.
    offset: u16,
    recycling: bool,
}

/// A segment's summary in memory: the entries recorded since it was last on disk.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) summary: Box<Summary>,
    /// Entries that are right in `summary`; the others are on disk, in the summary area.
    pub(super) known: ValidMap,
    /// True if every entry that matters is known.
    pub(super) complete: bool,
}

impl Recorded {
    pub(super) fn fresh() -> Recorded {
        Recorded { summary: Box::default(), known: ValidMap::default(), complete: true }
    }

    pub(super) fn partial() -> Recorded {
        Recorded { complete: false, ..Recorded::fresh() }
    }

    /// Fills in the entries that are not known from the copy on disk.
    pub(super) fn complete_from(&mut self, disk: &Summary) {
        for (at, entry) in disk.entries.iter().enumerate() {
            if !self.known.get(at) {
                self.summary.entries[at] = *entry;
            }
        }
        self.complete = true;
    }
}

/// Counters of a volume, as the checkpoint stores them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Blocks in use, reserved ones without an address included.
    pub(super) blocks: u64,
    pub(super) nodes: u32,
    pub(super) inodes: u32,
}

/// Counts from a checkpoint may have any value, so arithmetic on them saturates.
impl Usage {
    pub(super) fn add_node(&mut self, inode: bool) {
        self.blocks = self.blocks.saturating_add(1);
        self.nodes = self.nodes.saturating_add(1);
        self.inodes = self.inodes.saturating_add(u32::from(inode));
    }

    pub(super) fn remove_node(&mut self, inode: bool) {
        self.blocks = self.blocks.saturating_sub(1);
        self.nodes = self.nodes.saturating_sub(1);
        self.inodes = self.inodes.saturating_sub(u32::from(inode));
    }
}

moafs_runtime::counters! {
    /// Counters for the data logs and their blocks since the volume was opened.
    #[derive(serde::Serialize)]
    pub struct LogCounters {
        /// Free segments that logs began to fill.
        segments_opened: u64,
        /// Used segments whose holes logs began to fill.
        segments_recycled: u64,
        /// Blocks handed out at the end of a log.
        blocks_appended: u64,
        /// Blocks handed out in holes of used segments.
        blocks_recycled: u64,
        /// Runs of adjacent blocks handed out in holes.
        runs_recycled: u64,
    }
}

struct State {
    segments: Vec<Segment>,
    heads: [Head; 6],
    free: FreeSegments,
    /// Segments whose maps or kind have changed since the last snapshot.
    touched: BTreeSet<u32>,
    /// Segments touched before the snapshot of the checkpoint that is being written.
    leaving: BTreeSet<u32>,
    /// Runs in flight: first block to length.
    flights: BTreeMap<u32, u32>,
    summaries: BTreeMap<Segno, Recorded>,
    usage: Usage,
    promised: u64,
    counters: LogCounters,
    segments_per_section: usize,
    now: u64,
    /// The ways in which logs find their next segments.
    modes: [LogMode; 6],
    /// Segments that data logs leave for nodes and for cleaning.
    reserve: u32,
    /// Blocks of used segments that may be written now, by class.
    holes: Blocks,
    /// Metadata that running ops and cleanings may still make dirty.
    tickets: Blocks,
    /// Number of tickets handed out since the mount.
    tickets_issued: u64,
    /// Nodes written to chains since the last checkpoint's snapshot: recovery would write each of
    /// them once more.
    chained: u64,
    /// Segments being emptied: no log fills their holes.
    victims: BTreeSet<u32>,
    areas: swaparea::Areas,
    /// Owners of all blocks, by block of the main area: kept for an oracle only.
    owners: Option<Vec<SummaryEntry>>,
}

/// The main area of a volume.
pub(super) struct MainArea {
    geo: Geometry,
    user_blocks: u64,
    state: Mutex<State>,
    dirty_nodes: AtomicU64,
    dirty_blocks: AtomicU64,
    /// Counts the times that freed blocks have become usable.
    relocation_generation: AtomicU64,
}

/// Room for metadata that a running op may make dirty. Blocks that it has made dirty are counted as
/// such: a ticket is given back when the op has ended.
pub(super) struct Ticket {
    space: Arc<MainArea>,
    blocks: Blocks,
    /// The number of this ticket, and what was dirty when it was handed out, if there was no other then.
    alone: Option<(u64, Blocks)>,
}

impl Ticket {
    /// Checks that its op leaves no more dirty than it has room for, if no other op ran meanwhile. Nodes that it
    /// changed and then freed need no room.
    fn check(&self, state: &State) {
        let Some((number, before)) = self.alone else { return };
        if state.tickets_issued != number {
            return;
        }
        let after = self.space.dirty();
        let (nodes, data) = (after.nodes.saturating_sub(before.nodes), after.data.saturating_sub(before.data));
        let fits = nodes <= self.blocks.nodes && data <= self.blocks.data;
        debug_assert!(fits, "{nodes} nodes and {data} blocks became dirty, admitted were {:?}", self.blocks);
    }

    /// Returns the number of nodes that it has room for.
    pub(super) fn nodes(&self) -> u64 {
        self.blocks.nodes
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.space.state();
        // No other op can begin while the state is locked.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.check(&state);
        }
        state.tickets.nodes -= self.blocks.nodes;
        state.tickets.data -= self.blocks.data;
    }
}

/// Segments that are being emptied, until this is dropped. No block of them is handed out
/// meanwhile: bytes read from one of them stay right as long as the file points there.
pub(super) struct Emptying {
    space: Arc<MainArea>,
    segments: Vec<Segno>,
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

/// The main area's state for the next checkpoint.
pub(super) struct Picture {
    pub(super) sit: Vec<(Segno, SitEntry)>,
    pub(super) current: [CurrentSegment; 6],
    /// Summaries of the current segments, by log.
    pub(super) current_summaries: Vec<Recorded>,
    /// Summaries of other segments that have changed.
    pub(super) summaries: Vec<(Segno, Log, Recorded)>,
    pub(super) free_segments: u32,
    pub(super) usage: Usage,
}

impl MainArea {
    /// Makes the state from the SIT and a checkpoint. `entries` has one entry for each segment that
    /// is not empty.
    pub(super) fn new(
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
            victims: BTreeSet::new(),
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn locate(&self, addr: BlkAddr) -> Option<(usize, usize)> {
        self.geo.segment_of(addr).map(|(segno, offset)| (segno.0 as usize, offset))
    }

    // -- counting

    pub(super) fn usage(&self) -> Usage {
        self.state().usage
    }

    pub(super) fn change_usage(&self, change: impl FnOnce(&mut Usage)) {
        change(&mut self.state().usage);
    }

    pub(super) fn counters(&self) -> LogCounters {
        self.state().counters
    }

    /// Returns the number of blocks that a user may still ask for.
    pub(super) fn available(&self) -> u64 {
        let state = self.state();
        self.user_blocks.saturating_sub(state.usage.blocks).saturating_sub(state.promised)
    }

    /// Promises `blocks`, if there are so many; false otherwise.
    pub(super) fn promise(&self, blocks: u64) -> bool {
        let mut state = self.state();
        let taken = state.usage.blocks.saturating_add(state.promised);
        let fits = taken.saturating_add(blocks) <= self.user_blocks;
        if fits {
            state.promised += blocks;
        }
        fits
    }

    // -- what waits for the next checkpoint

    /// Counts a node that has become dirty.
    pub(super) fn node_dirtied(&self) {
        self.dirty_nodes.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a dirty node that has found a place, or is gone.
    pub(super) fn node_settled(&self) {
        let before = self.dirty_nodes.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more nodes are settled than were dirty");
    }

    /// Counts a block of a directory that has become dirty.
    pub(super) fn block_dirtied(&self) {
        self.dirty_blocks.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts such a block that has found a place, or is gone.
    pub(super) fn block_settled(&self) {
        let before = self.dirty_blocks.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more blocks are settled than were dirty");
    }

    /// Returns the nodes and blocks of directories that are dirty.
    fn dirty(&self) -> Blocks {
        let data = self.dirty_blocks.load(Ordering::Acquire);
        Blocks::new(self.dirty_nodes.load(Ordering::Acquire), data)
    }

    /// Returns what is owed to the next checkpoint, and the places for it.
    pub(super) fn budget(&self) -> Budget {
        self.budget_of(&self.state())
    }

    fn budget_of(&self, state: &State) -> Budget {
        let Blocks { nodes, data } = self.dirty();
        // The node that points to a dirty block changes when that one moves.
        let nodes = nodes + data + state.chained;
        Budget {
            free_segments: state.free_for_logs().into(),
            holes: state.holes,
            owed: Blocks::new(nodes, data) + state.tickets,
        }
    }

    /// Reserves room for metadata that an op may make dirty, if there is as much and `beyond`.
    pub(super) fn ticket(self: &Arc<Self>, blocks: Blocks, beyond: Blocks) -> Option<Ticket> {
        let mut state = self.state();
        if !self.budget_of(&state).fits_with(blocks + beyond) {
            return None;
        }
        state.tickets_issued += 1;
        let alone = (state.tickets == Blocks::default()).then(|| (state.tickets_issued, self.dirty()));
        state.tickets = state.tickets + blocks;
        Some(Ticket { space: Arc::clone(self), blocks, alone })
    }

    /// Keeps logs out of the holes of segments that are being emptied. `None` if the blocks that
    /// are owed need these holes.
    pub(super) fn emptying(self: &Arc<Self>, segments: &[Segno]) -> Option<Emptying> {
        let mut state = self.state();
        for segno in segments {
            state.victims.insert(segno.0);
            state.recount(segno.0);
        }
        let fits = self.budget_of(&state).fits();
        drop(state);
        Some(Emptying { space: Arc::clone(self), segments: segments.to_vec() }).filter(|_| fits)
    }

    // -- the clock and the choice of segments

    /// Sets the volume's clock, in nanoseconds.
    pub(super) fn set_clock(&self, now: u64) {
        self.state().now = now;
    }

    /// Sets how logs find their next segments.
    pub(super) fn set_mode(&self, logs: impl IntoIterator<Item = Log>, mode: LogMode) {
        let mut state = self.state();
        logs.into_iter().for_each(|log| state.modes[log as usize] = mode);
    }

    /// Sets the number of segments that data logs leave to nodes and cleaning.
    pub(super) fn set_reserve(&self, segments: u32) {
        self.state().reserve = segments;
    }

    /// Returns the number of free segments that logs may take.
    pub(super) fn free_segments(&self) -> u32 {
        self.state().free_for_logs()
    }

    /// Returns the number of sections of which every segment is free, and that logs may take.
    pub(super) fn free_sections(&self) -> u32 {
        self.state().free_sections_for_logs()
    }

    /// Returns the number of segments that will be free once what has changed is in a durable checkpoint.
    pub(super) fn freeing_segments(&self) -> u32 {
        let state = self.state();
        let empties = |segno: &&u32| {
            let segment = &state.segments[**segno as usize];
            segment.valid == 0 && segment.in_flight == 0 && segment.maps.is_some() && !state.is_current(**segno)
        };
        state.touched.iter().filter(empties).count() as u32
    }

    /// Returns the number of data blocks that could be written now without a free segment, and how
    /// many another checkpoint would add.
    pub(super) fn holes_now_and_later(&self) -> (u64, u64) {
        let state = self.state();
        let used = state.segments(Class::Data).filter(|view| !view.current && view.valid > 0);
        used.fold((0, 0), |(now, later), view| {
            let held = SEGMENT_BLOCKS as u64 - u64::from(view.valid) - u64::from(view.reusable_holes);
            (now + u64::from(view.reusable_holes), later + held)
        })
    }

    /// Returns the number of blocks of a class that could be written now without a free segment.
    pub(super) fn holes(&self, class: Class) -> u64 {
        let holes = self.state().holes;
        if class == Class::Node { holes.nodes } else { holes.data }
    }

    /// Maps every segment with `of`, which gets the segment, true if blocks of it are valid or
    /// held, and the offset at which a log appends in it.
    pub(super) fn map_segments<T>(&self, of: impl Fn(SegmentView, bool, Option<u16>) -> T) -> Vec<T> {
        let state = self.state();
        let append_at = |segno: u32| {
            let head = state.heads.iter().find(|head| head.segno.0 == segno && !head.recycling);
            head.map(|head| head.offset)
        };
        let one = |segno: usize| of(state.view(segno), state.segments[segno].maps.is_some(), append_at(segno as u32));
        (0..state.segments.len()).map(one).collect()
    }

    /// Returns the segment table for a policy; the state is locked as long as the result lives.
    pub(super) fn table(&self) -> impl std::ops::Deref<Target = impl Table> + '_ {
        self.state()
    }

    // -- handing out

    /// Takes up to `want` contiguous blocks of a data log; they are in flight from now on. `None`
    /// if there are none, or only those that metadata need.
    pub(super) fn take_data(&self, log: Log, want: u32) -> Option<BlockRun> {
        let mut state = self.state();
        let budget = self.budget_of(&state);
        let spare = u32::try_from(budget.spare(Class::Data)).unwrap_or(u32::MAX);
        let left = if state.modes[log as usize] == LogMode::AppendReserved { 0 } else { state.reserve };
        let (segno, offset, len) = state.take(log, want.min(spare), &budget, left)?;
        debug_assert!(
            !budget.fits() || self.budget_of(&state).fits(),
            "{budget:?} became {:?}",
            self.budget_of(&state)
        );
        let start = self.geo.block_of(segno, offset).0;
        state.flights.insert(start, len);
        state.segments[segno.0 as usize].in_flight += len as u16;
        Some(BlockRun { start: BlockAddr(start.into()), len })
    }

    /// Takes a block for a directory block that a checkpoint writes: of its log, or of another one
    /// of its class.
    pub(super) fn take_block(&self, log: Log) -> Option<BlkAddr> {
        let mut state = self.state();
        let (segno, offset) = self.take_owed(&mut state, log)?;
        Some(self.geo.block_of(segno, offset))
    }

    /// Takes one block of a node log, or of another one; it is valid from now on. Returns it with
    /// the block that will follow it.
    pub(super) fn take_node(&self, log: Log, nid: Nid) -> Option<(BlkAddr, BlkAddr)> {
        let mut state = self.state();
        let (segno, offset) = self.take_owed(&mut state, log)?;
        state.set_valid(segno, offset, SummaryEntry { nid, version: 0, offset: 0 });
        let head = state.heads[log as usize];
        Some((self.geo.block_of(segno, offset), self.geo.block_of(head.segno, head.offset.into())))
    }

    /// Takes a block for metadata that were owed one.
    fn take_owed(&self, state: &mut State, log: Log) -> Option<(Segno, usize)> {
        let class = Class::of(log);
        let others = Log::ALL.into_iter().filter(|other| *other != log && Class::of(*other) == class);
        let mut budget = self.budget_of(state);
        let owed = if class == Class::Node { &mut budget.owed.nodes } else { &mut budget.owed.data };
        *owed = owed.saturating_sub(1);
        let found = std::iter::once(log).chain(others).find_map(|log| state.take(log, 1, &budget, 0));
        found.map(|(segno, offset, _)| (segno, offset))
    }

    /// Takes places for a chain, in order, each with the block that follows it: all in the warm
    /// node log, which recovery reads. `None` if there are not enough beyond what everything else
    /// needs; then nothing has changed except that some blocks are held.
    pub(super) fn take_chain(&self, nids: &[Nid]) -> Option<Vec<(BlkAddr, BlkAddr)>> {
        let mut state = self.state();
        if self.budget_of(&state).spare(Class::Node) < nids.len() as u64 {
            return None;
        }
        let mut places = Vec::with_capacity(nids.len());
        for nid in nids {
            let budget = self.budget_of(&state);
            let Some((segno, offset, _)) = state.take(Log::WarmNode, 1, &budget, 0) else {
                places.iter().for_each(|(at, _)| state.free(&self.geo, *at));
                return None;
            };
            state.set_valid(segno, offset, SummaryEntry { nid: *nid, version: 0, offset: 0 });
            let head = state.heads[Log::WarmNode as usize];
            places.push((self.geo.block_of(segno, offset), self.geo.block_of(head.segno, head.offset.into())));
        }
        state.chained += nids.len() as u64;
        Some(places)
    }

    /// Ends the flight of a run: it is not written, or is placed block by block with
    /// [`MainArea::place`] from now on.
    pub(super) fn end_flight(&self, run: BlockRun) {
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
    pub(super) fn place(&self, addr: BlkAddr, owner: SummaryEntry) {
        if let Some((segno, offset)) = self.locate(addr) {
            self.state().set_valid(Segno(segno as u32), offset, owner);
        }
    }

    /// Makes a block invalid: nothing points to it any more.
    pub(super) fn free(&self, addr: BlkAddr) {
        self.state().free(&self.geo, addr);
    }

    /// Returns a segment's entry in the segment information table.
    pub(super) fn sit_entry(&self, segno: Segno) -> SitEntry {
        self.state().sit_entry(segno.0)
    }

    /// Keeps a block from being written before the next checkpoint is durable.
    pub(super) fn hold(&self, addr: BlkAddr) {
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
    pub(super) fn admit_data(&self, addr: BlkAddr) {
        let Some((segno, _)) = self.locate(addr) else { return };
        let mut state = self.state();
        let fresh = state.segments[segno].valid == 0 && !state.is_current(segno as u32);
        if fresh && state.segments[segno].log.is_node() {
            state.segments[segno].log = Log::WarmData;
            state.recount(segno as u32);
        }
    }

    pub(super) fn is_valid(&self, addr: BlkAddr) -> bool {
        let Some((segno, offset)) = self.locate(addr) else { return false };
        self.state().segments[segno].maps.as_ref().is_some_and(|maps| maps.valid.get(offset))
    }

    /// Returns the valid blocks of a segment, ascending, with its kind.
    pub(super) fn valid_blocks(&self, segno: Segno) -> (Log, Vec<usize>) {
        let state = self.state();
        let segment = &state.segments[segno.0 as usize];
        let blocks = segment.maps.as_ref().map(|maps| maps.valid.iter_set().collect()).unwrap_or_default();
        (segment.log, blocks)
    }

    /// Returns the entries recorded of a segment's summary since it was last written; `None`: the
    /// copy on disk is right.
    pub(super) fn recorded(&self, segno: Segno) -> Option<Recorded> {
        self.state().summaries.get(&segno).cloned()
    }

    /// Fills in the entries of a summary that were not known here from its copy on disk.
    pub(super) fn complete(&self, segno: Segno, disk: &Summary) {
        if let Some(recorded) = self.state().summaries.get_mut(&segno).filter(|recorded| !recorded.complete) {
            recorded.complete_from(disk);
        }
    }

    /// Returns the segments whose summaries must be completed before a snapshot.
    pub(super) fn incomplete(&self) -> Vec<Segno> {
        self.state().summaries.iter().filter(|(_, recorded)| !recorded.complete).map(|(segno, _)| *segno).collect()
    }

    /// Moves the logs whose next blocks turned out to be part of a chain to other places; called at
    /// the end of recovery. False if one of them finds no place.
    pub(super) fn settle_heads(&self) -> bool {
        let mut state = self.state();
        Log::ALL.into_iter().all(|log| state.settle_head(log))
    }

    /// Keeps the owners of all blocks from now on; `summary` holds those of one segment.
    pub(super) fn keep_owners(&self, segno: Segno, summary: &Summary) {
        let mut state = self.state();
        let blocks = state.segments.len() * SEGMENT_BLOCKS;
        let owners = state.owners.get_or_insert_with(|| vec![SummaryEntry::default(); blocks]);
        owners[segno.0 as usize * SEGMENT_BLOCKS..][..SEGMENT_BLOCKS].copy_from_slice(&summary.entries);
    }

    /// Returns the owners of a section's valid blocks, if they are kept.
    pub(super) fn owners_in(&self, section: Secno) -> Vec<SummaryEntry> {
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

    // -- checkpoints

    /// Takes the state that the next checkpoint describes. Blocks that are freed from now on stay
    /// held until that checkpoint and the one after it are durable. `None`, and nothing has
    /// changed, if a log has begun to fill the holes of a segment whose summary is not complete:
    /// data logs move while a checkpoint is being prepared.
    pub(super) fn snapshot(&self) -> Option<Picture> {
        let mut guard = self.state();
        let state = &mut *guard;
        for head in &state.heads {
            state.summaries.entry(head.segno).or_insert_with(Recorded::partial);
        }
        if state.summaries.values().any(|recorded| !recorded.complete) {
            return None;
        }
        let leaving = std::mem::take(&mut state.touched);
        state.chained = 0;
        for segno in &leaving {
            if let Some(maps) = &mut state.segments[*segno as usize].maps {
                maps.next = maps.valid;
            }
        }
        for (&start, &len) in &state.flights {
            for at in start..start + len {
                if let Some((segno, offset)) = self.locate(BlkAddr(at))
                    && let Some(maps) = &mut state.segments[segno].maps
                {
                    maps.next.set(offset);
                }
            }
        }
        let sit = leaving.iter().map(|segno| (Segno(*segno), state.sit_entry(*segno))).collect();
        let current = state.heads.map(|head| CurrentSegment {
            segno: head.segno,
            offset: head.offset,
            recycling: head.recycling,
        });
        let is_current = |segno: Segno| current.iter().any(|c| c.segno == segno);
        let current_summaries = current.iter().map(|c| state.summaries[&c.segno].clone()).collect();
        let gone: Vec<Segno> = state.summaries.keys().copied().filter(|segno| !is_current(*segno)).collect();
        let summaries = gone
            .into_iter()
            .filter_map(|segno| {
                let log = state.segments[segno.0 as usize].log;
                Some((segno, log, state.summaries.remove(&segno)?))
            })
            .collect();
        let empty = state.segments.iter().enumerate().filter(|(_, segment)| segment.valid == 0).count() as u32;
        debug_assert!(state.heads_stand(), "a log stands nowhere: {:?}", state.heads);
        let empty_heads = current.iter().filter(|c| state.segments[c.segno.0 as usize].valid == 0).count() as u32;
        let picture = Picture {
            sit,
            current,
            current_summaries,
            summaries,
            free_segments: empty - empty_heads,
            usage: state.usage,
        };
        state.leaving = leaving;
        Some(picture)
    }

    /// Releases the blocks that only the previous checkpoint held: the one whose snapshot was taken
    /// last is durable now. Returns the segments that nothing holds any more, ascending; they are
    /// handed out after [`MainArea::open_to_logs`].
    pub(super) fn committed(&self) -> Vec<Segno> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut freed = Vec::new();
        // The counter moves before anything can be written to the released blocks: a reader that
        // asked for a block before, and finds the counter changed after it has read the block, does
        // not accept the bytes.
        self.relocation_generation.fetch_add(1, Ordering::AcqRel);
        for segno in std::mem::take(&mut state.leaving) {
            let current = state.is_current(segno);
            let is_kept = state.areas.has(self.geo.section_of(Segno(segno))) || state.victims.contains(&segno);
            let segment = &mut state.segments[segno as usize];
            if let Some(maps) = &mut segment.maps {
                maps.held = maps.next;
                if maps.held.is_empty() && maps.valid.is_empty() {
                    segment.maps = None;
                }
            }
            if segment.maps.is_none() && !current && !is_kept && !state.free.contains(segno) {
                freed.push(Segno(segno));
            }
            state.recount(segno);
        }
        freed
    }

    /// Returns how often freed blocks have become usable.
    pub(super) fn relocation_generation(&self) -> u64 {
        self.relocation_generation.load(Ordering::Acquire)
    }

    /// Lets logs take these segments from now on.
    pub(super) fn open_to_logs(&self, freed: &[Segno]) {
        self.state().free.extend(freed.iter().map(|segno| segno.0));
    }
}

impl State {
    fn is_current(&self, segno: u32) -> bool {
        self.heads.iter().any(|head| head.segno.0 == segno)
    }

    fn view(&self, segno: usize) -> SegmentView {
        let segment = &self.segments[segno];
        let unusable = segment.maps.as_ref().map_or(0, |maps| maps.valid.union(&maps.held).count());
        SegmentView {
            segno: Segno(segno as u32),
            log: segment.log,
            valid: segment.valid,
            reusable_holes: SEGMENT_BLOCKS as u16 - unusable,
            mtime_ns: segment.mtime,
            youngest_ns: segment.youngest,
            current: self.is_current(segno as u32),
        }
    }

    fn sit_entry(&self, segno: u32) -> SitEntry {
        let segment = &self.segments[segno as usize];
        let map = segment.maps.as_ref().map(|maps| maps.valid).unwrap_or_default();
        SitEntry { log: segment.log, map, mtime: segment.mtime / 1_000_000_000 }
    }

    fn maps(&mut self, segno: Segno) -> &mut Maps {
        self.touched.insert(segno.0);
        self.segments[segno.0 as usize].maps.get_or_insert_default()
    }

    fn set_valid(&mut self, segno: Segno, offset: usize, owner: SummaryEntry) {
        let now = self.now;
        self.free.remove(segno.0);
        let maps = self.maps(segno);
        let was = maps.valid.get(offset);
        maps.valid.set(offset);
        maps.held.set(offset);
        maps.next.set(offset);
        let segment = &mut self.segments[segno.0 as usize];
        segment.valid += u16::from(!was);
        (segment.mtime, segment.youngest) = (now, now);
        let recorded = self.summaries.entry(segno).or_insert_with(Recorded::partial);
        recorded.summary.entries[offset] = owner;
        recorded.known.set(offset);
        if let Some(owners) = &mut self.owners {
            owners[segno.0 as usize * SEGMENT_BLOCKS + offset] = owner;
        }
        self.recount(segno.0);
    }

    /// Returns the first block at or behind `from` that may be written.
    fn writable(&self, segno: Segno, from: usize) -> usize {
        match &self.segments[segno.0 as usize].maps {
            None => from.min(SEGMENT_BLOCKS),
            Some(maps) => maps.valid.union(&maps.held).next_clear(from).unwrap_or(SEGMENT_BLOCKS),
        }
    }

    /// Counts anew how many blocks of a used segment may be written.
    fn recount(&mut self, segno: u32) {
        let current = self.is_current(segno);
        let segment = &self.segments[segno as usize];
        let open = current || segment.valid > 0 && !self.victims.contains(&segno);
        let writable = match &segment.maps {
            Some(maps) if open => SEGMENT_BLOCKS as u16 - maps.valid.union(&maps.held).count(),
            None if current => SEGMENT_BLOCKS as u16,
            _ => 0,
        };
        let counted = (Class::of(segment.log), writable);
        let (class, before) = std::mem::replace(&mut self.segments[segno as usize].counted, counted);
        *self.holes_of(class) -= u64::from(before);
        *self.holes_of(counted.0) += u64::from(writable);
    }

    /// Makes a segment free that was emptied, if nothing is left in it.
    fn free_if_empty(&mut self, geo: &Geometry, segno: u32) {
        let is_used = self.segments[segno as usize].maps.is_some() || self.is_current(segno);
        if !is_used && !self.areas.has(geo.section_of(Segno(segno))) {
            self.free.extend([segno]);
        }
    }

    fn holes_of(&mut self, class: Class) -> &mut u64 {
        if class == Class::Node { &mut self.holes.nodes } else { &mut self.holes.data }
    }

    fn free(&mut self, geo: &Geometry, addr: BlkAddr) {
        let Some((segno, offset)) = geo.segment_of(addr) else { return };
        let now = self.now;
        let segment = &mut self.segments[segno.0 as usize];
        let Some(maps) = &mut segment.maps else { return };
        if maps.valid.get(offset) {
            maps.valid.clear(offset);
            segment.valid -= 1;
            segment.mtime = now;
            self.touched.insert(segno.0);
            self.recount(segno.0);
        }
    }

    /// Takes up to `want` contiguous blocks from the place of a log; they are held from now on. The
    /// log then stands on its next place; if there is no other, it keeps its last block: a
    /// checkpoint must name one for each log. Leaves `left` segments free.
    fn take(&mut self, log: Log, want: u32, budget: &Budget, left: u32) -> Option<(Segno, usize, u32)> {
        let Head { segno, offset, recycling } = self.heads[log as usize];
        let start = usize::from(offset);
        debug_assert!(start < SEGMENT_BLOCKS && self.writable(segno, start) == start, "the {log} log stands nowhere");
        let end = match &self.segments[segno.0 as usize].maps {
            Some(maps) => maps.valid.union(&maps.held).next_set(start).unwrap_or(SEGMENT_BLOCKS),
            None => SEGMENT_BLOCKS,
        };
        let mut len = (end - start).min(want as usize);
        if len == 0 {
            return None;
        }
        let maps = self.maps(segno);
        for at in start..start + len {
            maps.held.set(at);
            maps.next.set(at);
        }
        self.recount(segno.0);
        if !self.step_on(log, start + len, budget, left) {
            len -= 1;
            let maps = self.maps(segno);
            maps.held.clear(start + len);
            maps.next.clear(start + len);
            self.recount(segno.0);
            self.heads[log as usize].offset = (start + len) as u16;
        }
        if !log.is_node() {
            self.count(recycling, len as u64);
        }
        (len > 0).then_some((segno, start, len as u32))
    }

    /// Moves a log to its next place, from block `from` of its segment on. False if there is none.
    fn step_on(&mut self, log: Log, from: usize, budget: &Budget, left: u32) -> bool {
        let head = self.heads[log as usize];
        let next = self.writable(head.segno, from);
        if next < SEGMENT_BLOCKS {
            let recycling = head.recycling || next != from;
            self.heads[log as usize] = Head { offset: next as u16, recycling, ..head };
            return true;
        }
        let budget = Budget { holes: self.holes, ..*budget };
        self.advance(log, &budget, left)
    }

    fn count(&mut self, recycling: bool, blocks: u64) {
        let counters = &mut self.counters;
        counters.blocks_appended += if recycling { 0 } else { blocks };
        counters.blocks_recycled += if recycling { blocks } else { 0 };
        counters.runs_recycled += u64::from(recycling);
    }

    /// Gives a log another segment, or the holes that its own has by now. False if there is nothing.
    fn advance(&mut self, log: Log, budget: &Budget, left: u32) -> bool {
        let before = self.heads[log as usize].segno;
        let has_holes = self.writable(before, 0) < SEGMENT_BLOCKS;
        let full = FullLog { log, mode: self.modes[log as usize], segno: before, has_holes };
        let free = FreeView {
            segments: &self.free,
            for_logs: self.free_for_logs(),
            left,
            may_open_sections: self.may_open_sections(),
        };
        let head = match log_choice::next_segment(&full, &Fillable(self), &free, budget) {
            Some(NextSegment::Free(segno)) => self.open(log, segno),
            Some(NextSegment::Holes(segno)) => self.open_holes(log, segno),
            Some(NextSegment::OwnHoles) => self.holes_of_segment(before),
            None => return false,
        };
        self.heads[log as usize] = head;
        for segno in [before.0, head.segno.0] {
            self.touched.insert(segno);
            self.recount(segno);
        }
        true
    }

    fn open(&mut self, log: Log, segno: Segno) -> Head {
        debug_assert!(self.segments[segno.0 as usize].maps.is_none(), "segment {segno} is not free");
        self.free.remove(segno.0);
        self.segments[segno.0 as usize].log = log;
        self.summaries.insert(segno, Recorded::fresh());
        self.counters.segments_opened += 1;
        Head { segno, offset: 0, recycling: false }
    }

    fn open_holes(&mut self, log: Log, segno: Segno) -> Head {
        self.counters.segments_recycled += 1;
        self.segments[segno.0 as usize].log = log;
        self.summaries.entry(segno).or_insert_with(Recorded::partial);
        self.holes_of_segment(segno)
    }

    /// Returns the place of a log that begins to fill the holes of a segment, which has some.
    fn holes_of_segment(&self, segno: Segno) -> Head {
        Head { segno, offset: self.writable(segno, 0) as u16, recycling: true }
    }

    /// Makes a log stand on a block that may be written, in its segment if it can. False if there
    /// is none.
    fn settle_head(&mut self, log: Log) -> bool {
        let budget = Budget { free_segments: self.free_for_logs().into(), holes: self.holes, owed: Blocks::default() };
        let offset = self.heads[log as usize].offset;
        if !self.step_on(log, offset.into(), &budget, 0) {
            return false;
        }
        // Roll-forward recovery uses blocks behind the place where the checkpoint left the log: a
        // checkpoint would record a log that only appends up to its head, and not the owners of
        // these blocks.
        let head = &self.heads[log as usize];
        let used_behind = self.segments[head.segno.0 as usize].maps.as_ref().is_some_and(|maps| {
            maps.valid.union(&maps.held).next_set(usize::from(head.offset)).is_some_and(|at| at < SEGMENT_BLOCKS)
        });
        self.heads[log as usize].recycling |= used_behind;
        true
    }

    /// True if every log stands on a block that may be written, in a segment of its own.
    fn heads_stand(&self) -> bool {
        let stands = |head: &Head| self.writable(head.segno, head.offset.into()) == usize::from(head.offset);
        let own = |head: &Head| self.heads.iter().filter(|other| other.segno == head.segno).count() == 1;
        self.heads.iter().all(|head| head.offset < EXHAUSTED && stands(head) && own(head))
    }
}

/// The table for policies: the segments that have valid or held blocks.
impl Table for State {
    fn now_ns(&self) -> u64 {
        self.now
    }

    fn sections(&self) -> impl Iterator<Item = SectionView> {
        let per_section = self.segments_per_section;
        self.segments
            .chunks(per_section)
            .enumerate()
            .filter(|(_, all)| all.iter().any(|s| s.maps.is_some()))
            .filter_map(move |(section, all)| {
                let first = section * per_section;
                SectionView::of(Secno(section as u32), (first..first + all.len()).map(|segno| self.view(segno)))
            })
    }

    fn segments(&self, class: Class) -> impl Iterator<Item = SegmentView> {
        let used = move |segment: &Segment| segment.maps.is_some() && Class::of(segment.log) == class;
        let used = self.segments.iter().enumerate().filter(move |(_, segment)| used(segment));
        used.map(|(segno, _)| self.view(segno))
    }
}

/// The same table without segments that are being emptied.
struct Fillable<'a>(&'a State);

impl Table for Fillable<'_> {
    fn now_ns(&self) -> u64 {
        self.0.now
    }

    fn sections(&self) -> impl Iterator<Item = SectionView> {
        self.0.sections()
    }

    fn segments(&self, class: Class) -> impl Iterator<Item = SegmentView> {
        self.0.segments(class).filter(|view| !self.0.victims.contains(&view.segno.0))
    }
}

impl Reservations for MainArea {
    fn release(&self, blocks: u64) {
        let mut state = self.state();
        state.promised = state.promised.saturating_sub(blocks);
    }
}

/// Returns the keeper of the promises that a volume's space has made.
pub(super) fn keeper(space: &Arc<MainArea>) -> Arc<dyn Reservations> {
    space.clone()
}
