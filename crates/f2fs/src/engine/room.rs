//! Room: who gives way when free segments are short.
//!
//! Called before any lock is taken, by whoever is about to write. In this order: what the last checkpoint still holds is
//! released by another one; then, as `reuse` decides, logs take the holes of used segments, or sections are cleaned. Segments that
//! are reserved are left to checkpoints and to cleaning itself, so that both can always go on.

use std::sync::atomic::Ordering;

use moafs_runtime::Time;
use moafs_vfs::format::Idle;
use moafs_vfs::types::BlockRun;
use moafs_vfs::{Error, Result};

use super::space::Next;
use super::{DIRTY_BLOCKS_MAX, F2fs, IDLE_BEFORE_CLEANING};
use crate::clean::table::{Class, Space as RoomView, Table};
use crate::clean::{Trigger, Urgency};
use crate::format::{Log, SEGMENT_BLOCKS};
use crate::place::Reuse;
use crate::place::reuse::{Action, SECTIONS_PER_CHECKPOINT, State, Targets, Victims};

/// Cleanings that one caller waits for at most: more would mean that they gain nothing.
const ROUNDS_MAX: u32 = 64;
/// Between two looks for work in the background, in nanoseconds.
const BACKGROUND_NS: u64 = 500_000_000;
/// So few dirty blocks of metadata are never worth a checkpoint.
const DIRTY_BLOCKS_MIN: usize = 256;
/// A decision holds for so many blocks: the segment buffer of the recycling paper, 4 MiB.
const BURST_BLOCKS: u64 = 1024;
/// Bursts that fit into the holes there are while a checkpoint in the background is under way.
const SCARCE_BURSTS: u64 = 4;
/// Cleanings in a row that made no section free, after which more will not either: what they moved filled as many.
const FRUITLESS_MAX: u32 = 16;
/// Candidates whose holes are added up for a decision.
const CANDIDATES: usize = 8;

impl F2fs {
    /// Segments that dirty nodes and directory blocks can come to need, those of each log's last, partly used one included.
    pub(super) fn needed_segments(&self) -> u32 {
        let blocks = self.nodes.dirty_count() + self.owned.dirty_count();
        blocks.div_ceil(SEGMENT_BLOCKS) as u32 + 1
    }

    /// A checkpoint if what waits for one should not grow: there may be no blocks for more. Half way there, one in the
    /// background.
    pub(super) fn shorten(&self) -> Result<()> {
        let dirty = self.nodes.dirty_count() + self.owned.dirty_count();
        if self.is_long(dirty) {
            return self.checkpoint(false);
        }
        if !self.wants_checkpoint.load(Ordering::Relaxed) && self.is_long(2 * dirty) {
            self.wants_checkpoint.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// True if so many blocks of metadata may be too many to find a place.
    fn is_long(&self, dirty: usize) -> bool {
        let free = self.space.free_segments() as usize * SEGMENT_BLOCKS;
        if dirty <= DIRTY_BLOCKS_MIN || dirty <= (free / 4).min(DIRTY_BLOCKS_MAX) {
            return false;
        }
        // Nodes recycle in their own logs.
        let writable = free + self.space.holes(Class::Node) as usize;
        dirty > (writable / 4).min(DIRTY_BLOCKS_MAX)
    }

    /// How much room there is: free sections, what is held back of them, valid blocks.
    pub fn room(&self) -> RoomView {
        let prefree_sections = self.space.freeing_segments() / self.geo.segs_per_sec;
        RoomView { prefree_sections, ..self.room_now() }
    }

    /// The same without what a checkpoint would free: that takes a look at every segment that has changed since the last one.
    fn room_now(&self) -> RoomView {
        let per_section = self.geo.segs_per_sec;
        let usage = self.space.usage();
        RoomView {
            free_sections: self.space.free_sections(),
            prefree_sections: 0,
            reserved_sections: self.reserved_sections(),
            needed_sections: self.needed_segments().div_ceil(per_section),
            section_blocks: per_section * SEGMENT_BLOCKS as u32,
            valid_blocks: usage.blocks,
            main_blocks: u64::from(self.geo.segments - self.space.swap_sections() * per_section)
                * SEGMENT_BLOCKS as u64,
        }
    }

    /// What ordinary writes leave: a segment for each log, and what a cleaning fills before it frees.
    fn reserved_sections(&self) -> u32 {
        let gather = self.options.gather.max(1);
        let wanted = (6 + gather).min(self.reserved_segments / self.geo.segs_per_sec.max(1)).max(2);
        wanted.min(self.geo.sections / 4).max(1)
    }

    /// Says what data logs leave to nodes and to cleaning.
    pub(super) fn set_reserve(&self) {
        self.space.set_reserve(self.reserved_sections() * self.geo.segs_per_sec + self.needed_segments());
    }

    /// Makes as many sections free as `blocks` blocks fill, beyond those that ordinary writes leave; as far as cleaning can.
    pub(super) fn clear_sections(&self, blocks: u64) -> Result<()> {
        let wanted = blocks.div_ceil(u64::from(self.geo.segs_per_sec) * SEGMENT_BLOCKS as u64);
        let mut fruitless = 0;
        self.checkpoint(false)?;
        while u64::from(self.room().spare_sections()) < wanted && fruitless < FRUITLESS_MAX {
            let before = self.room().free_sections;
            if self.clean()? == 0 {
                break;
            }
            fruitless = if self.room().free_sections > before { 0 } else { fruitless + 1 };
        }
        self.set_reserve();
        Ok(())
    }

    /// Makes room for `blocks` blocks of data.
    pub(super) fn make_room(&self, blocks: u64) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        let segments = u32::try_from(blocks.div_ceil(SEGMENT_BLOCKS as u64)).unwrap_or(u32::MAX);
        self.set_reserve();
        for _ in 0..ROUNDS_MAX {
            if self.room_now().spare_sections() > segments.div_ceil(self.geo.segs_per_sec) {
                self.append_only();
                return Ok(());
            }
            let room = self.room();
            match self.decide_for_burst(&room)? {
                Action::Append => {
                    self.append_only();
                    return Ok(());
                }
                Action::Recycle => {
                    self.recycle();
                    return Ok(());
                }
                Action::Clean if !self.clean_in_foreground(&room)? => {
                    // Nothing can be gained by cleaning: holes are all there is.
                    self.recycle();
                    return self.check_writable_blocks();
                }
                Action::Clean => {}
            }
        }
        self.recycle();
        Ok(())
    }

    fn append_only(&self) {
        self.space.set_next(Log::ALL, Next::Free);
    }

    fn recycle(&self) {
        self.tally.recycle_verdicts.fetch_add(1, Ordering::Relaxed);
        self.space.set_next(Log::ALL.into_iter().filter(|log| !log.is_node()), Next::Holes);
    }

    /// A checkpoint if all that could be written is held by the last one.
    fn check_writable_blocks(&self) -> Result<()> {
        let writable = self.space.holes(Class::Data) > 0 || self.space.free_segments() > 0;
        if writable { Ok(()) } else { self.checkpoint(false) }
    }

    /// What a burst does: decided when it begins. While holes are filled, a checkpoint as soon as a third of them waits for
    /// one: the emptiest segments then have the longest runs of holes. The writer waits for it only if holes are scarce.
    fn decide_for_burst(&self, room: &RoomView) -> Result<Action> {
        if room.spare_sections() > 0 {
            return Ok(Action::Append);
        }
        let logs = self.space.counters();
        let handed_out = logs.blocks_appended + logs.blocks_recycled;
        if let Some((until, action)) = *self.burst.lock()
            && handed_out < until
        {
            return Ok(action);
        }
        let action = self.decide(room);
        if action == Action::Recycle {
            let (now, later) = self.space.holes_now_and_later();
            if later > now && now < SCARCE_BURSTS * BURST_BLOCKS {
                self.checkpoint(false)?;
            } else if 2 * later > now {
                self.wants_checkpoint.store(true, Ordering::Relaxed);
            }
        }
        *self.burst.lock() = Some((handed_out + BURST_BLOCKS, action));
        Ok(action)
    }

    fn decide(&self, room: &RoomView) -> Action {
        if self.options.reuse == Reuse::Never {
            return Action::Clean;
        }
        let logs = self.space.counters();
        let moved = self.tally.moved_blocks.load(Ordering::Relaxed);
        let state = State {
            written_blocks: (logs.blocks_appended + logs.blocks_recycled).saturating_sub(moved),
            space: *room,
            targets: self.targets(),
            victims: self.victims(),
            device: self.options.device,
        };
        self.options.reuse.decide(&mut self.reuse.lock(), &state).action
    }

    /// The segments with the most holes.
    fn targets(&self) -> Targets {
        let table = self.space.table();
        let mut holes: Vec<u32> = table
            .segments(Class::Data)
            .filter(|view| !view.current && view.valid > 0)
            .map(|view| view.reusable_holes.into())
            .collect();
        drop(table);
        holes.sort_unstable_by(|a, b| b.cmp(a));
        holes.truncate(CANDIDATES);
        let found: u32 = holes.iter().sum();
        Targets {
            segments: holes.len() as u32,
            holes: found,
            runs: (f64::from(found) / self.hole_run_blocks()).ceil() as u32,
        }
    }

    /// The sections that cost the least to clean.
    fn victims(&self) -> Victims {
        let table = self.space.table();
        let best = table
            .sections()
            .filter(|view| view.is_candidate() && view.class == Class::Data)
            .min_by_key(|view| view.valid);
        best.map_or(Victims::default(), |view| Victims { sections: 1, blocks: view.blocks, valid: view.valid })
    }

    /// Mean length of a run of holes, as the logs have found them so far.
    pub(super) fn hole_run_blocks(&self) -> f64 {
        let counters = self.space.counters();
        if counters.runs_recycled == 0 { 8.0 } else { counters.blocks_recycled as f64 / counters.runs_recycled as f64 }
    }

    /// One step of making segments free, as many beyond what was asked for as share a checkpoint; false if it came to nothing.
    fn clean_in_foreground(&self, room: &RoomView) -> Result<bool> {
        let _one = self.cleaning.lock();
        let before = self.room();
        if before.free_sections > room.free_sections {
            // Somebody else has, meanwhile.
            return Ok(true);
        }
        self.tally.clean_verdicts.fetch_add(1, Ordering::Relaxed);
        let mut emptied = before.prefree_sections;
        while self.spare_after_checkpoint() < SECTIONS_PER_CHECKPOINT {
            let cleaned = self.clean_once()?;
            self.tally.foreground_cleanings.fetch_add(cleaned.into(), Ordering::Relaxed);
            let now = self.room().prefree_sections;
            if now <= emptied {
                // Nothing was cleaned, or nodes: these leave with the checkpoint.
                emptied = if cleaned > 0 { now.max(1) } else { emptied };
                break;
            }
            emptied = now;
        }
        if emptied == 0 {
            return Ok(false);
        }
        self.checkpoint(false)?;
        Ok(self.room().free_sections > before.free_sections)
    }

    /// Spare sections once what is free of valid blocks has become usable.
    fn spare_after_checkpoint(&self) -> u32 {
        let room = self.room();
        RoomView { free_sections: room.free_sections + room.prefree_sections, ..room }.spare_sections()
    }

    /// Writes a checkpoint if one is wanted for which nobody waits.
    pub(super) fn checkpoint_in_background(&self) {
        if self.wants_checkpoint.swap(false, Ordering::Relaxed) && self.health.failed().is_none() {
            // A failure turns the volume read-only, and is kept there.
            let _ = self.checkpoint(false);
        }
    }

    /// Cleans a little if nobody wants anything; says when to look again.
    pub(super) fn clean_in_background(&self, idle: Idle) -> Option<Time> {
        if !self.options.background || self.shape.read_only.is_some() || self.health.failed().is_some() {
            return None;
        }
        self.tick();
        let again = Some(Time(self.rt.now().0 + BACKGROUND_NS));
        if !matches!(idle, Idle::For(quiet) if quiet >= IDLE_BEFORE_CLEANING) {
            return again;
        }
        self.heat.idle();
        let trigger = Trigger::for_volume(self.geo.sections);
        if let Urgency::Background { .. } = trigger.urgency(&self.room(), true, false) {
            let Some(_one) = self.cleaning.try_lock() else { return again };
            // A failure turns the volume read-only, and is kept there.
            if let Ok(cleaned @ 1..) = self.clean_once() {
                self.tally.background_cleanings.fetch_add(cleaned.into(), Ordering::Relaxed);
                let _ = self.checkpoint(false);
            }
        }
        again
    }

    /// A run of a data log; if there is none, after a checkpoint that may release some.
    pub(super) fn take_data(&self, log: Log, want: u32) -> Result<BlockRun> {
        if let Some(run) = self.space.take_data(log, want) {
            return Ok(run);
        }
        self.checkpoint(false)?;
        self.space.take_data(log, want).ok_or(Error::Posix(libc::ENOSPC))
    }
}
