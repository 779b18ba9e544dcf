//! The state of the main area: its segments with their blocks, and what is counted of them.

use std::collections::{BTreeMap, BTreeSet};

use super::areas::Areas;
use super::head::{Head, LogCounters};
use super::recorded::Recorded;
use crate::clean::Secno;
use crate::clean::table::{Class, SectionView, SegmentView, Table};
use crate::format::sit::{SitEntry, ValidMap};
use crate::format::summary::SummaryEntry;
use crate::format::superblock::Geometry;
use crate::format::{BlkAddr, Log, SEGMENT_BLOCKS, Segno};
use crate::place::budget::Blocks;
use crate::place::free::FreeSegments;
use crate::place::log_choice::LogMode;

/// The state of a segment's blocks. Absent for a segment of which nothing is valid or held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Maps {
    pub(super) valid: ValidMap,
    pub(super) held: ValidMap,
    /// The value that `held` takes when the checkpoint being written is durable; equal to `held` while none is written.
    pub(super) next: ValidMap,
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) log: Log,
    pub(super) valid: u16,
    pub(super) in_flight: u16,
    /// The moment at which a block of it was last written or freed, in nanoseconds of the volume's
    /// clock.
    pub(super) mtime: u64,
    /// The moment at which the contents of its youngest block were written, in nanoseconds of the volume's clock.
    pub(super) youngest: u64,
    pub(super) maps: Option<Box<Maps>>,
    /// The class and the number of its blocks that are counted in [`State::holes`].
    pub(super) counted: (Class, u16),
}

/// The origin of the contents of a block that gets a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Origin {
    /// They are new.
    Written,
    /// Cleaning moves them from a segment whose youngest contents were written then.
    Moved {
        /// The moment in nanoseconds of the volume's clock.
        youngest_ns: u64,
    },
}

impl Segment {
    /// Returns the number of blocks that are not in use, and may not be written before the next checkpoint.
    pub(super) fn freed_and_held(&self) -> u64 {
        self.maps.as_ref().map_or(0, |maps| u64::from(maps.valid.union(&maps.held).count() - maps.valid.count()))
    }
}

/// Counters of a volume, as the checkpoint stores them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct Usage {
    /// Blocks in use, reserved ones without an address included.
    pub(in crate::engine) blocks: u64,
    pub(in crate::engine) nodes: u32,
    pub(in crate::engine) inodes: u32,
}

/// Counts from a checkpoint may have any value, so arithmetic on them saturates.
impl Usage {
    pub(in crate::engine) fn add_node(&mut self, inode: bool) {
        self.blocks = self.blocks.saturating_add(1);
        self.nodes = self.nodes.saturating_add(1);
        self.inodes = self.inodes.saturating_add(u32::from(inode));
    }

    pub(in crate::engine) fn remove_node(&mut self, inode: bool) {
        self.blocks = self.blocks.saturating_sub(1);
        self.nodes = self.nodes.saturating_sub(1);
        self.inodes = self.inodes.saturating_sub(u32::from(inode));
    }
}

/// Blocks that a roll-forward may have to make, and that neither are in use nor were freed with an address since the
/// last snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Remade {
    /// Nodes that no chain has, freed before they had an address: indirect ones, and those of directories.
    pub(super) nodes: u64,
    /// Other blocks freed before they had an address.
    pub(super) blocks: u64,
    /// Names that chains tell: each may take a block of its directory, whatever the directory has become meanwhile.
    pub(super) names: u64,
}

impl Remade {
    pub(super) fn all(&self) -> u64 {
        self.nodes + self.blocks + self.names
    }
}

pub(super) struct State {
    pub(super) segments: Vec<Segment>,
    pub(super) heads: [Head; 6],
    pub(super) free: FreeSegments,
    /// Segments whose maps or kind have changed since the last snapshot.
    pub(super) touched: BTreeSet<u32>,
    /// Segments touched before the snapshot of the checkpoint that is being written.
    pub(super) leaving: BTreeSet<u32>,
    /// Runs in flight: first block to length.
    pub(super) flights: BTreeMap<u32, u32>,
    pub(super) summaries: BTreeMap<Segno, Recorded>,
    pub(super) usage: Usage,
    pub(super) promised: u64,
    pub(super) counters: LogCounters,
    pub(super) segments_per_section: usize,
    pub(super) now: u64,
    /// The ways in which logs find their next segments.
    pub(super) modes: [LogMode; 6],
    /// Segments that data logs leave for nodes and for cleaning.
    pub(super) reserve: u32,
    /// Blocks of used segments that may be written now, by class.
    pub(super) holes: Blocks,
    /// Metadata that running ops and cleanings may still make dirty.
    pub(super) tickets: Blocks,
    /// Number of tickets handed out since the mount.
    pub(super) tickets_issued: u64,
    /// Nodes written to chains since the last checkpoint's snapshot: recovery would write each of
    /// them once more.
    pub(super) chained: u64,
    pub(super) remade: Remade,
    /// Segments being emptied: no log fills their holes.
    pub(super) victims: BTreeSet<u32>,
    /// Segments that the last checkpoint has freed, and that logs may not take yet.
    pub(super) closed: BTreeSet<u32>,
    pub(super) areas: Areas,
    /// Owners of all blocks, by block of the main area: kept for an oracle only.
    pub(super) owners: Option<Vec<SummaryEntry>>,
}

impl State {
    pub(super) fn is_current(&self, segno: u32) -> bool {
        self.heads.iter().any(|head| head.segno.0 == segno)
    }

    pub(super) fn view(&self, segno: usize) -> SegmentView {
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

    pub(super) fn sit_entry(&self, segno: u32) -> SitEntry {
        let segment = &self.segments[segno as usize];
        let map = segment.maps.as_ref().map(|maps| maps.valid).unwrap_or_default();
        SitEntry { log: segment.log, map, mtime: segment.mtime / 1_000_000_000 }
    }

    pub(super) fn maps(&mut self, segno: Segno) -> &mut Maps {
        self.touched.insert(segno.0);
        self.segments[segno.0 as usize].maps.get_or_insert_default()
    }

    pub(super) fn set_valid(&mut self, segno: Segno, offset: usize, owner: SummaryEntry, origin: Origin) {
        let now = self.now;
        let written = match origin {
            Origin::Written => now,
            Origin::Moved { youngest_ns } => youngest_ns,
        };
        self.free.remove(segno.0);
        let maps = self.maps(segno);
        let was = maps.valid.get(offset);
        maps.valid.set(offset);
        maps.held.set(offset);
        maps.next.set(offset);
        let segment = &mut self.segments[segno.0 as usize];
        segment.valid += u16::from(!was);
        (segment.mtime, segment.youngest) = (now, segment.youngest.max(written));
        let recorded = self.summaries.entry(segno).or_insert_with(Recorded::partial);
        recorded.summary.entries[offset] = owner;
        recorded.known.set(offset);
        if let Some(owners) = &mut self.owners {
            owners[segno.0 as usize * SEGMENT_BLOCKS + offset] = owner;
        }
        self.recount(segno.0);
    }

    /// Returns the first block at or behind `from` that may be written.
    pub(super) fn writable(&self, segno: Segno, from: usize) -> usize {
        match &self.segments[segno.0 as usize].maps {
            None => from.min(SEGMENT_BLOCKS),
            Some(maps) => maps.valid.union(&maps.held).next_clear(from).unwrap_or(SEGMENT_BLOCKS),
        }
    }

    /// Counts anew how many blocks of a used segment may be written.
    pub(super) fn recount(&mut self, segno: u32) {
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

    /// Makes a segment free that was emptied, if nothing is left in it, and no other task is about to.
    pub(super) fn free_if_empty(&mut self, geo: &Geometry, segno: u32) {
        let has_blocks = self.segments[segno as usize].maps.is_some();
        let is_used = has_blocks || self.is_current(segno) || self.closed.contains(&segno);
        if !is_used && !self.areas.has(geo.section_of(Segno(segno))) {
            self.free.extend([segno]);
        }
    }

    pub(super) fn holes_of(&mut self, class: Class) -> &mut u64 {
        if class == Class::Node { &mut self.holes.nodes } else { &mut self.holes.data }
    }

    pub(super) fn free(&mut self, geo: &Geometry, addr: BlkAddr) {
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
