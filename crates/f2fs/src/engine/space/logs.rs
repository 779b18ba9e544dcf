//! The six logs: handing out blocks, and moving a log to its next place.
//!
//! Where a log goes on is decided in [`crate::place::log_choice`]. Every log stands on a block that
//! may be written, in a segment of its own; it hands out its last block only when it has found
//! another place ([`State::take`]).

use moafs_vfs::types::{BlockAddr, BlockRun};

use super::area::MainArea;
use super::head::{EXHAUSTED, Head};
use super::recorded::Recorded;
use super::state::{Origin, State};
use crate::clean::table::{Class, SectionView, SegmentView, Table};
use crate::format::summary::SummaryEntry;
use crate::format::{BlkAddr, Log, Nid, SEGMENT_BLOCKS, Segno};
use crate::place::budget::{Blocks, Budget};
use crate::place::log_choice::{self, FreeView, FullLog, LogMode, NextSegment};

impl MainArea {
    /// Sets how logs find their next segments.
    pub(in crate::engine) fn set_mode(&self, logs: impl IntoIterator<Item = Log>, mode: LogMode) {
        let mut state = self.state();
        logs.into_iter().for_each(|log| state.modes[log as usize] = mode);
    }

    /// Sets the number of segments that data logs leave to nodes and cleaning.
    pub(in crate::engine) fn set_reserve(&self, segments: u32) {
        self.state().reserve = segments;
    }

    /// Takes up to `want` contiguous blocks of a data log; they are in flight from now on. `None`
    /// if there are none, or only those that metadata need.
    pub(in crate::engine) fn take_data(&self, log: Log, want: u32) -> Option<BlockRun> {
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
    pub(in crate::engine) fn take_block(&self, log: Log) -> Option<BlkAddr> {
        let mut state = self.state();
        let (segno, offset) = self.take_owed(&mut state, log)?;
        Some(self.geo.block_of(segno, offset))
    }

    /// Takes one block of a node log, or of another one; it is valid from now on. Returns it with
    /// the block that will follow it.
    pub(in crate::engine) fn take_node(&self, log: Log, nid: Nid) -> Option<(BlkAddr, BlkAddr)> {
        let mut state = self.state();
        let (segno, offset) = self.take_owed(&mut state, log)?;
        state.set_valid(segno, offset, SummaryEntry { nid, version: 0, offset: 0 }, Origin::Written);
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
    /// node log, which recovery reads. `names`: the names that it tells, each of which recovery adds to a directory.
    /// `None` if there are not enough beyond what everything else needs; then nothing has changed except that some
    /// blocks are held.
    pub(in crate::engine) fn take_chain(&self, nids: &[Nid], names: u64) -> Option<Vec<(BlkAddr, BlkAddr)>> {
        let mut state = self.state();
        let chain = Blocks::new(nids.len() as u64 + names, names);
        if !nids.is_empty() && !self.budget_of(&state).fits_with(chain) {
            return None;
        }
        let mut places = Vec::with_capacity(nids.len());
        for nid in nids {
            let budget = self.budget_of(&state);
            let Some((segno, offset, _)) = state.take(Log::WarmNode, 1, &budget, 0) else {
                places.iter().for_each(|(at, _)| state.free(&self.geo, *at));
                return None;
            };
            let owner = SummaryEntry { nid: *nid, version: 0, offset: 0 };
            state.set_valid(segno, offset, owner, Origin::Written);
            let head = state.heads[Log::WarmNode as usize];
            places.push((self.geo.block_of(segno, offset), self.geo.block_of(head.segno, head.offset.into())));
        }
        state.chained += nids.len() as u64;
        state.remade.names += names;
        Some(places)
    }

    /// Moves the logs whose next blocks turned out to be part of a chain to other places; called at
    /// the end of recovery. False if one of them finds no place.
    pub(in crate::engine) fn settle_heads(&self) -> bool {
        let mut state = self.state();
        Log::ALL.into_iter().all(|log| state.settle_head(log))
    }
}

impl State {
    /// Takes up to `want` contiguous blocks from the place of a log; they are held from now on. The
    /// log then stands on its next place; if there is no other, it keeps its last block: a
    /// checkpoint must name one for each log. Leaves `left` segments free.
    pub(super) fn take(&mut self, log: Log, want: u32, budget: &Budget, left: u32) -> Option<(Segno, usize, u32)> {
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
    pub(super) fn step_on(&mut self, log: Log, from: usize, budget: &Budget, left: u32) -> bool {
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

    pub(super) fn count(&mut self, recycling: bool, blocks: u64) {
        let counters = &mut self.counters;
        counters.blocks_appended += if recycling { 0 } else { blocks };
        counters.blocks_recycled += if recycling { blocks } else { 0 };
        counters.runs_recycled += u64::from(recycling);
    }

    /// Gives a log another segment, or the holes that its own has by now. False if there is nothing.
    pub(super) fn advance(&mut self, log: Log, budget: &Budget, left: u32) -> bool {
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

    pub(super) fn open(&mut self, log: Log, segno: Segno) -> Head {
        debug_assert!(self.segments[segno.0 as usize].maps.is_none(), "segment {segno} is not free");
        self.free.remove(segno.0);
        let segment = &mut self.segments[segno.0 as usize];
        (segment.log, segment.youngest) = (log, 0);
        self.summaries.insert(segno, Recorded::fresh());
        self.counters.segments_opened += 1;
        Head { segno, offset: 0, recycling: false }
    }

    pub(super) fn open_holes(&mut self, log: Log, segno: Segno) -> Head {
        self.counters.segments_recycled += 1;
        self.segments[segno.0 as usize].log = log;
        self.summaries.entry(segno).or_insert_with(Recorded::partial);
        self.holes_of_segment(segno)
    }

    /// Returns the place of a log that begins to fill the holes of a segment, which has some.
    pub(super) fn holes_of_segment(&self, segno: Segno) -> Head {
        Head { segno, offset: self.writable(segno, 0) as u16, recycling: true }
    }

    /// Makes a log stand on a block that may be written, in its segment if it can. False if there
    /// is none.
    pub(super) fn settle_head(&mut self, log: Log) -> bool {
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
    pub(super) fn heads_stand(&self) -> bool {
        let stands = |head: &Head| self.writable(head.segno, head.offset.into()) == usize::from(head.offset);
        let own = |head: &Head| self.heads.iter().filter(|other| other.segno == head.segno).count() == 1;
        self.heads.iter().all(|head| head.offset < EXHAUSTED && stands(head) && own(head))
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
