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

mod logs;
mod owed;
mod picture;
pub(super) mod swaparea;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::AtomicU64;
use moafs_runtime::leaf::{Mutex, MutexGuard};
use moafs_vfs::format::Reservations;
use moafs_vfs::types::BlockRun;

use crate::clean::Secno;
use crate::clean::table::{Class, SectionView, SegmentView, Table};
use crate::format::checkpoint::Checkpoint;
use crate::format::sit::{SitEntry, ValidMap};
use crate::format::summary::{Summary, SummaryEntry};
use crate::format::superblock::Geometry;
use crate::format::{BlkAddr, Log, SEGMENT_BLOCKS, Segno};
use crate::place::budget::Blocks;
use crate::place::free::FreeSegments;
use crate::place::log_choice::LogMode;

use self::logs::Head;
pub use self::logs::LogCounters;
pub(super) use self::owed::Ticket;
pub(super) use self::picture::{Picture, Recorded};

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
