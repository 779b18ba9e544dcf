//! Makes room when free segments are short.
//!
//! A writer calls this module before it takes any lock of this crate. Room is made in this order: a
//! checkpoint releases what the last one still holds; then, as the policy of `-o recycle=` decides, logs take the holes
//! of used segments, or sections are cleaned. Segments that are reserved are left to checkpoints
//! and to cleaning itself, so that both can always go on.
//!
//! That is policy, and may be wrong about the space that is needed. The guarantee is below it: an
//! op begins only if the next checkpoint has room for everything that the op may change
//! ([`F2fs::admit_op`]), and contents of files leave that room alone. An op that finds no room
//! writes a checkpoint, or empties segments one by one ([`make_room`]), until there is some. Ops
//! that make a volume fuller leave some room for those that do not: deleting always works.

use std::sync::atomic::Ordering;

use moafs_runtime::Time;
use moafs_vfs::format::{Idle, OpKind, RoomSearch};
use moafs_vfs::full_host::{pass_over_full_host, wait_for_host};
use moafs_vfs::{Error, Result};

use super::space::Ticket;
use super::volume::F2fs;
use super::{DIRTY_BLOCKS_MAX, DIRTY_BYTES_MAX, IDLE_BEFORE_CLEANING};
use crate::clean::table::{Class, Headroom, Table};
use crate::clean::{Destination, Trigger, Urgency, make_room};
use crate::format::{Log, SEGMENT_BLOCKS};
use crate::place::budget::Blocks;
use crate::place::log_choice::{self, LogMode, Release};
use crate::place::recycling::{Action, SECTIONS_PER_CHECKPOINT, State, Targets, Victims};

/// Cleanings that one caller waits for at most: more would mean that they gain nothing.
const ROUNDS_MAX: u32 = 64;
/// Time between two looks for background work, in nanoseconds.
const BACKGROUND_NS: u64 = 500_000_000;
/// Dirty blocks of metadata up to which no checkpoint is written to make room for more.
const DIRTY_BLOCKS_MIN: usize = 256;
/// Cleanings in a row that made no section free, after which more will not either: what they moved filled as many.
const FRUITLESS_MAX: u32 = 16;
/// Candidates whose holes are added up for a decision.
const CANDIDATES: usize = 8;

/// Metadata for which ops that make a volume fuller leave room, so that deleting always works.
const FOR_DELETING: Blocks = Blocks::new(64, 16);

/// Ops that may each leave an inode without a name at the same time.
const ORPHANS_SPARE: usize = 64;

/// Returns true for ops that make a volume fuller, or may.
fn makes_fuller(kind: OpKind) -> bool {
    match kind {
        OpKind::Unlink | OpKind::Unmap | OpKind::Place | OpKind::Attr => false,
        OpKind::Create | OpKind::Link | OpKind::Rename | OpKind::Exchange | OpKind::Xattr => true,
    }
}

/// Returns the metadata that an op of this kind may make dirty at most. A changed block of a
/// directory moves, so the node that points to it changes.
fn worst_case(kind: OpKind) -> Blocks {
    match kind {
        // The inode, its parent, an attribute node; the way to a new directory block, and to the first one
        // if the names leave the parent's inode; the text of a symbolic link.
        OpKind::Create => Blocks::new(16, 4),
        OpKind::Link => Blocks::new(12, 3),
        OpKind::Unlink => Blocks::new(12, 2),
        // Two directories, both inodes, and `..` of either.
        OpKind::Rename | OpKind::Exchange => Blocks::new(32, 8),
        OpKind::Attr => Blocks::new(OpKind::ATTR_INODES_MAX as u64, 0),
        OpKind::Xattr => Blocks::new(4, 0),
        // 128 ranges of up to 65 files: for each two leaves and two nodes above them, for each file its
        // inode, and a block if its contents leave the inode.
        OpKind::Place => Blocks::new(128 * 4 + 65 * 3, 65),
        // Nodes are freed between the ends of the range; there, two ways to a leaf remain.
        OpKind::Unmap => Blocks::new(16, 1),
    }
}

impl F2fs {
    /// Waits until the next checkpoint has room for what an op of this kind may change.
    ///
    /// # Errors
    /// `ENOSPC` if no room can be made (for ops that do not make the volume fuller this means
    /// damage), or if the op may leave one more inode without a name than a checkpoint can list.
    pub(super) fn admit_op(&self, kind: OpKind) -> Result<Ticket> {
        let may_unlink = matches!(kind, OpKind::Create | OpKind::Unlink | OpKind::Rename);
        if may_unlink && self.orphans.lock().len() + ORPHANS_SPARE > self.orphans_max {
            return Err(Error::Posix(libc::ENOSPC));
        }
        let attempt = || self.find_room_for(kind);
        if kind.waits_for_host() { wait_for_host(&self.rt, attempt) } else { attempt() }
    }

    fn find_room_for(&self, kind: OpKind) -> Result<Ticket> {
        let beyond = if makes_fuller(kind) { FOR_DELETING } else { Blocks::default() };
        let mut search = RoomSearch::default();
        loop {
            if let Some(ticket) = self.space.ticket(worst_case(kind), beyond) {
                return Ok(ticket);
            }
            search.found_none();
            self.gain_room(&mut search)?;
        }
    }

    /// Returns true if each block that was promised could become a node, `data_blocks` excepted: there are as many node
    /// ids that wait for no checkpoint.
    pub(super) fn has_node_ids(&self, data_blocks: u64) -> bool {
        let (nodes, promised) = self.space.nodes_and_promised();
        nodes.saturating_add(promised.saturating_sub(data_blocks)) <= self.nat.usable()
    }

    /// Gains room for a caller that found none: by turns, a checkpoint releases what only the last
    /// one holds, and a segment is emptied. `ENOSPC` if the latter is in vain too often in a row.
    pub(super) fn gain_room(&self, search: &mut RoomSearch) -> Result<()> {
        if search.failed() % 2 == 1 {
            return self.checkpoint(false);
        }
        search.attempted(self.empty_a_segment()?)
    }

    /// Empties the segment that costs the least, and makes it usable. False if there is none.
    fn empty_a_segment(&self) -> Result<bool> {
        let _one = self.cleaning.lock();
        self.tick();
        self.checkpoint(false)?;
        let budget = self.space.budget();
        let Some(victim) = make_room::segment(&*self.space.table(), &budget) else { return Ok(false) };
        let Some(_emptying) = self.space.emptying(&[victim.segno]) else { return Ok(false) };
        let mut left = usize::from(victim.valid);
        while left > 0 {
            self.clean_segments(&[victim.segno], Destination::Holes)?;
            self.checkpoint(false)?;
            let valid = self.space.valid_blocks(victim.segno).1.len();
            if valid >= left {
                return Ok(false);
            }
            left = valid;
        }
        self.tally.foreground_cleanings.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Moves nodes together that lie scattered over segments that data could use. False if that
    /// would gain nothing.
    fn empty_hoarded_nodes(&self) -> Result<bool> {
        let Some(_one) = self.cleaning.try_lock() else { return Ok(false) };
        let budget = self.space.budget();
        let victims = make_room::hoarded(&*self.space.table(), &budget);
        if victims.is_empty() {
            return Ok(false);
        }
        {
            let Some(emptying) = self.space.emptying(&victims) else { return Ok(false) };
            self.clean_segments(emptying.segments(), Destination::CleanSegment)?;
        }
        self.checkpoint(false)?;
        let is_empty = |segno: &&crate::format::Segno| self.space.valid_blocks(**segno).1.is_empty();
        let emptied = victims.iter().filter(is_empty).count();
        self.tally.foreground_cleanings.fetch_add(emptied as u64, Ordering::Relaxed);
        Ok(emptied > 0)
    }

    /// Returns the number of segments that dirty nodes and directory blocks can come to need, those of each
    /// log's last, partly used one included.
    pub(super) fn needed_segments(&self) -> u32 {
        let blocks = self.nodes.dirty_count() + self.owned.dirty_count();
        blocks.div_ceil(SEGMENT_BLOCKS) as u32 + 1
    }

    /// Writes a checkpoint if the blocks that wait for one should not grow: there may be no room
    /// for more. At half that number one is asked for in the background. An op that does not make the volume fuller
    /// goes on if the host has no room for the checkpoint.
    pub(super) fn shorten(&self, kind: OpKind) -> Result<()> {
        let dirty = self.nodes.dirty_count() + self.owned.dirty_count();
        if self.is_long(dirty) {
            if makes_fuller(kind) {
                return wait_for_host(&self.rt, || self.checkpoint(false));
            }
            return pass_over_full_host(self.checkpoint(false));
        }
        if !self.wants_checkpoint.load(Ordering::Relaxed) && self.is_long(2 * dirty) {
            self.wants_checkpoint.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// True if so many blocks of metadata may be too many to find a place.
    fn is_long(&self, dirty: usize) -> bool {
        if dirty <= DIRTY_BLOCKS_MIN {
            return false;
        }
        let (free, max) = (self.space.free_segments() as usize * SEGMENT_BLOCKS, self.dirty_blocks_max());
        if dirty <= (free / 4).min(max) {
            return false;
        }
        // Nodes recycle in their own logs.
        let writable = free + self.space.holes(Class::Node) as usize;
        dirty > (writable / 4).min(max)
    }

    /// Returns how many dirty blocks of metadata memory has room for, if they are as large as those in memory are.
    fn dirty_blocks_max(&self) -> usize {
        let blocks = self.nodes.count() + self.owned.count();
        let bytes = self.nodes.memory() + self.owned.memory();
        (DIRTY_BYTES_MAX * blocks).checked_div(bytes).map_or(DIRTY_BLOCKS_MAX, |max| max.min(DIRTY_BLOCKS_MAX))
    }

    /// Returns the volume's room: free sections, those held back, valid blocks.
    pub fn room(&self) -> Headroom {
        let prefree_sections = self.space.freeing_segments() / self.geo.segs_per_sec;
        Headroom { prefree_sections, ..self.room_now() }
    }

    /// Returns the same without what a checkpoint would free: that takes a look at every segment
    /// that has changed since the last one.
    fn room_now(&self) -> Headroom {
        let per_section = self.geo.segs_per_sec;
        let usage = self.space.usage();
        Headroom {
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

    /// Returns the number of sections that ordinary writes leave: a segment for each log, and what a cleaning
    /// fills before it frees.
    fn reserved_sections(&self) -> u32 {
        let clean_batch = self.options.clean_batch.max(1);
        let wanted = (6 + clean_batch).min(self.reserved_segments / self.geo.segs_per_sec.max(1)).max(2);
        wanted.min(self.geo.sections / 4).max(1)
    }

    /// Sets the number of segments that data logs leave to nodes and to cleaning.
    pub(super) fn set_reserve(&self) {
        self.space.set_reserve(self.reserved_sections() * self.geo.segs_per_sec + self.needed_segments());
    }

    /// Frees as many sections as `blocks` blocks fill, beyond those that ordinary writes leave;
    /// fewer if cleaning cannot free so many.
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
    pub(super) fn prepare_room(&self, blocks: u64) -> Result<()> {
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
            if self.empty_hoarded_nodes()? {
                continue;
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
        self.space.set_mode(Log::ALL, LogMode::Append);
    }

    fn recycle(&self) {
        self.tally.recycle_verdicts.fetch_add(1, Ordering::Relaxed);
        self.space.set_mode(log_choice::recycling_logs(&self.space.budget()), LogMode::Recycle);
    }

    /// Writes a checkpoint if all blocks that could be written are held by the last one.
    fn check_writable_blocks(&self) -> Result<()> {
        let writable = self.space.holes(Class::Data) > 0 || self.space.free_segments() > 0;
        if writable { Ok(()) } else { self.checkpoint(false) }
    }

    /// Decides how a burst gets room when it begins. If it fills holes, a checkpoint that adds some
    /// is written when [`log_choice::release`] says so.
    fn decide_for_burst(&self, room: &Headroom) -> Result<Action> {
        let logs = self.space.counters();
        let handed_out = logs.blocks_appended + logs.blocks_recycled;
        if let Some(action) = self.bursts.lock().at_work(room, handed_out) {
            return Ok(action);
        }
        let moved = self.tally.moved_blocks.load(Ordering::Relaxed);
        let state = State {
            written_blocks: handed_out.saturating_sub(moved),
            space: *room,
            targets: self.targets(),
            victims: self.victims(),
            device: self.options.device,
        };
        let action = self.bursts.lock().begin(self.options.recycling, &state, handed_out);
        if action == Action::Recycle {
            let (now, later) = self.space.holes_now_and_later();
            match log_choice::release(now, later) {
                Release::No => {}
                Release::Soon => self.wants_checkpoint.store(true, Ordering::Relaxed),
                // On a full host the holes that there are have to do.
                Release::Wait => pass_over_full_host(self.checkpoint(false))?,
            }
        }
        Ok(action)
    }

    /// Returns the segments with the most holes, added up.
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

    /// Returns the section that costs the least to clean.
    fn victims(&self) -> Victims {
        let table = self.space.table();
        let best = table
            .sections()
            .filter(|view| view.is_candidate() && view.class == Class::Data)
            .min_by_key(|view| view.valid);
        best.map_or(Victims::default(), |view| Victims { sections: 1, blocks: view.blocks, valid: view.valid })
    }

    /// Returns the mean length of a run of holes, as the logs have found them so far.
    pub(super) fn hole_run_blocks(&self) -> f64 {
        let counters = self.space.counters();
        if counters.runs_recycled == 0 { 8.0 } else { counters.blocks_recycled as f64 / counters.runs_recycled as f64 }
    }

    /// Frees some sections in one step: as many beyond the request as share a checkpoint. False if
    /// none became free.
    fn clean_in_foreground(&self, room: &Headroom) -> Result<bool> {
        let _one = self.cleaning.lock();
        let before = self.room();
        if before.free_sections > room.free_sections {
            // Another writer has freed some meanwhile.
            return Ok(true);
        }
        self.tally.clean_verdicts.fetch_add(1, Ordering::Relaxed);
        let mut emptied = before.prefree_sections;
        while self.spare_after_checkpoint() < SECTIONS_PER_CHECKPOINT {
            let cleaned = self.clean_once()?;
            self.tally.foreground_cleanings.fetch_add(cleaned.into(), Ordering::Relaxed);
            let now = self.room().prefree_sections;
            if now <= emptied {
                // Nothing was cleaned, or nodes: these are written with the checkpoint.
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

    /// Returns the spare sections after a checkpoint has made sections without valid blocks usable.
    fn spare_after_checkpoint(&self) -> u32 {
        let room = self.room();
        Headroom { free_sections: room.free_sections + room.prefree_sections, ..room }.spare_sections()
    }

    /// Writes a checkpoint if one is wanted and no task waits for it.
    pub(super) fn checkpoint_in_background(&self) {
        if self.wants_checkpoint.swap(false, Ordering::Relaxed) && self.health.failed().is_none() {
            // A failure turns the volume read-only, and is recorded there; without room on the host others try again.
            let _ = self.checkpoint(false);
        }
    }

    /// Cleans once if the volume has been idle and sections are short; returns the time of the next
    /// look.
    pub(super) fn clean_in_background(&self, idle: Idle) -> Option<Time> {
        if !self.options.background || self.shape.read_only.is_some() || self.health.failed().is_some() {
            return None;
        }
        self.tick();
        let again = Some(Time(self.rt.now().0 + BACKGROUND_NS));
        if !matches!(idle, Idle::For(quiet) if quiet >= IDLE_BEFORE_CLEANING) {
            return again;
        }
        self.separator.lock().idle();
        let trigger = Trigger::for_volume(self.geo.sections);
        if let Urgency::Background { .. } = trigger.urgency(&self.room(), true, false) {
            let Some(_one) = self.cleaning.try_lock() else { return again };
            // A failure turns the volume read-only, and is recorded there.
            if let Ok(cleaned @ 1..) = self.clean_once() {
                self.tally.background_cleanings.fetch_add(cleaned.into(), Ordering::Relaxed);
                let _ = self.checkpoint(false);
            }
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::SharedDisk;
    use moafs_disk::mem::MemDisk;
    use moafs_runtime::{Live, Rt};
    use moafs_vfs::api::{Options, RenameMode, StatFs};
    use moafs_vfs::format::CommitReason;
    use moafs_vfs::types::{BlockRun, FileKind, Ino};
    use moafs_vfs::{Format, Vfs};

    use super::*;
    use crate::OpenOptions;
    use crate::format::{BLOCK, Nid};
    use crate::judge::{assert_clean, features, mount, name, new, root, volume};

    const ROOT: Ino = Ino(3);

    fn create(vfs: &Vfs<F2fs>, text: &str) -> Result<Ino> {
        Ok(vfs.create(&root(), ROOT, name(text.as_bytes()), &new(FileKind::Regular))?.ino)
    }

    fn write(vfs: &Vfs<F2fs>, text: &str, blocks: usize) -> Result<()> {
        let ino = create(vfs, text)?;
        let written = vfs.write(&root(), ino, 0, &vec![7; blocks * BLOCK], false);
        vfs.forget(ino, 1);
        written.map(drop)
    }

    fn unlink(vfs: &Vfs<F2fs>, text: &str) -> Result<()> {
        vfs.unlink(&root(), ROOT, name(text.as_bytes()))
    }

    /// Returns a volume with 300 synced files, every other one of which was removed: segments with holes.
    fn half_removed() -> Vfs<F2fs> {
        let vfs = mount(&volume(64, features()[0]));
        (0..300).for_each(|i| write(&vfs, &format!("{i}"), 8).expect("there is room"));
        vfs.sync().expect("sync");
        (0..300).step_by(2).for_each(|i| unlink(&vfs, &format!("{i}")).expect("it is there"));
        vfs.run_background_step();
        vfs.sync().expect("sync");
        vfs
    }

    fn opened(mem: &Arc<MemDisk>) -> F2fs {
        let (disk, rt): (SharedDisk, Rt) = (mem.clone(), Live::new());
        F2fs::open(disk, rt, OpenOptions::default()).expect("the volume opens")
    }

    #[test]
    fn every_log_has_a_place_in_a_checkpoint_though_data_have_taken_all_they_can() {
        let mem = volume(64, features()[0]);
        let vfs = mount(&mem);
        (0..200).for_each(|i| write(&vfs, &format!("{i}"), 1).expect("there is room"));
        let space = &vfs.format().space;
        let mut runs = Vec::new();
        for log in Log::ALL.into_iter().filter(|log| !log.is_node()) {
            runs.extend(std::iter::from_fn(|| space.take_data(log, 512)));
        }
        assert!(runs.iter().map(|run| run.len).sum::<u32>() > 512, "{runs:?}");
        vfs.format().commit(CommitReason::Age).expect("everything that waits has a place");
        assert_clean(&mem.snapshot(), "while all that is free is in flight");
        runs.into_iter().for_each(|run| space.end_flight(run));
        vfs.close().expect("it closes");
        assert_clean(&mem, "afterwards");
        mount(&mem).close().expect("it closes again");
    }

    #[test]
    fn a_checkpoint_that_no_mount_would_accept_is_not_written() {
        let mem = volume(64, features()[0]);
        let vfs = mount(&mem);
        write(&vfs, "kept", 3).expect("there is room");
        vfs.sync().expect("sync");
        write(&vfs, "lost", 3).expect("there is room");
        vfs.format().space.change_usage(|usage| usage.blocks = u64::MAX / 2);
        assert!(vfs.sync().is_err());
        let reason = vfs.failed().expect("it has turned read-only");
        assert!(reason.contains("blocks are in use of"), "{reason}");
        let after = mount(&Arc::new(mem.snapshot()));
        let found = |text: &str| after.lookup(&root(), ROOT, name(text.as_bytes())).is_ok();
        assert_eq!((found("kept"), found("lost")), (true, false));
    }

    #[test]
    fn no_log_fills_a_segment_that_is_being_emptied() {
        let vfs = half_removed();
        let space = &vfs.format().space;
        let is_used = |view: &crate::clean::SegmentView| !view.current && view.valid > 0;
        let victims: Vec<_> = space.table().segments(Class::Data).filter(is_used).map(|view| view.segno).collect();
        assert!(!victims.is_empty());
        space.set_mode(Log::ALL, LogMode::Recycle);
        let segment = |run: &BlockRun| {
            let addr = crate::format::BlkAddr(run.start.0 as u32);
            vfs.format().geometry().segment_of(addr).expect("a block of the main area").0
        };
        let holes = space.holes(Class::Data);
        let emptying = space.emptying(&victims).expect("there is room beside them");
        assert!(space.holes(Class::Data) < holes);
        let taken: Vec<_> = std::iter::from_fn(|| space.take_data(Log::WarmData, 64)).collect();
        assert!(taken.iter().all(|run| !victims.contains(&segment(run))));
        drop(emptying);
        let mut again = std::iter::from_fn(|| space.take_data(Log::WarmData, 64));
        assert!(again.any(|run| victims.contains(&segment(&run))), "there are holes again");
    }

    /// Erasing it meanwhile would erase what a log has written there by then.
    #[test]
    fn a_segment_is_not_free_before_it_is_opened_to_logs() {
        let vfs = mount(&volume(64, features()[0]));
        write(&vfs, "gone", 1200).expect("there is room");
        vfs.sync().expect("sync");
        let fs = vfs.format();
        let whole = |view: &crate::clean::SegmentView| !view.current && view.valid == 512;
        let segno = fs.space.table().segments(Class::Data).find(whole).map(|view| view.segno).expect("a full segment");
        for offset in 0..512 {
            fs.space.free(fs.geometry().block_of(segno, offset));
        }
        fs.space.snapshot().expect("no summary is missing");
        assert_eq!(fs.space.committed(), [segno]);
        let free = fs.space.free_segments();
        drop(fs.space.emptying(&[segno]).expect("there is room beside it"));
        assert_eq!(fs.space.free_segments(), free);
        fs.space.open_to_logs(&[segno]);
        assert_eq!(fs.space.free_segments(), free + 1);
    }

    #[test]
    fn a_segment_that_a_log_stands_in_is_not_emptied() {
        let vfs = half_removed();
        let space = &vfs.format().space;
        let is_used = |view: &crate::clean::SegmentView| view.valid > 0;
        let (current, others): (Vec<_>, Vec<_>) =
            space.table().segments(Class::Data).filter(is_used).partition(|view| view.current);
        let (current, other) = (current[0].segno, others[0].segno);
        let emptying = space.emptying(&[current, other]).expect("there is room beside it");
        assert_eq!(emptying.segments(), [other]);
        drop(emptying);
        assert!(space.emptying(&[current]).is_none());
    }

    #[test]
    fn cleaning_makes_no_data_young() {
        let vfs = half_removed();
        let fs = vfs.format();
        let youngest_ns = || fs.space.table().segments(Class::Data).map(|view| view.youngest_ns).max();
        let before = youngest_ns();
        assert!(fs.clean().expect("it can be cleaned") > 0);
        assert!(fs.counters().moved_blocks > 0);
        assert_eq!(youngest_ns(), before);
    }

    /// A reader that finds the generation as it was before it asked for a block takes the bytes.
    #[test]
    fn blocks_are_released_and_counted_as_relocated_in_one_step() {
        let vfs = mount(&volume(64, features()[0]));
        (0..300).for_each(|i| write(&vfs, &format!("{i}"), 8).expect("there is room"));
        vfs.sync().expect("sync");
        (0..300).step_by(2).for_each(|i| unlink(&vfs, &format!("{i}")).expect("it is there"));
        vfs.run_background_step();
        let space = &vfs.format().space;
        space.snapshot().expect("no summary is missing");
        let (holes, generation) = (space.holes(Class::Data), space.relocation_generation());
        space.committed();
        assert!(space.holes(Class::Data) > holes, "what only the last checkpoint held can be handed out");
        assert!(space.relocation_generation() > generation);
    }

    #[test]
    fn more_unlinked_files_in_use_than_a_checkpoint_can_name_push_back() {
        let mem = volume(64, features()[0]);
        let mut fs = opened(&mem);
        fs.orphans_max = ORPHANS_SPARE + 5;
        let options = Options { syncer: false, ..Options::default() };
        let vfs = Vfs::new(fs, mem.clone(), Live::new(), options);
        let inos: Vec<Ino> = (0..10).map(|i| create(&vfs, &format!("{i}")).expect("there is room")).collect();
        let gone: Vec<bool> = (0..10).map(|i| unlink(&vfs, &format!("{i}")).is_ok()).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 6, "{gone:?}");
        vfs.sync().expect("it can name them");
        assert_eq!(vfs.failed(), None);
        inos.iter().for_each(|ino| vfs.forget(*ino, 1));
        vfs.run_background_step();
        (6..10).for_each(|i| unlink(&vfs, &format!("{i}")).expect("the others are reaped"));
        vfs.close().expect("it closes");
        assert_clean(&mem, "afterwards");
    }

    #[test]
    fn the_node_id_of_a_removed_file_can_be_had_at_once() {
        let mem = volume(64, features()[0]);
        let mut fs = opened(&mem);
        fs.nat.end = Nid(60);
        let vfs = Vfs::new(fs, mem.clone(), Live::new(), Options { syncer: false, ..Options::default() });
        let make = |text: &str| create(&vfs, text).map(|ino| vfs.forget(ino, 1));
        let made = (0..60).find(|i| make(&format!("{i}")).is_err()).expect("there are fewer ids");
        assert!(made > 40, "{made} files");
        for round in 0..made {
            unlink(&vfs, &format!("{round}")).expect("deleting always works");
            make(&format!("new{round}")).expect("its id is free");
        }
        vfs.close().expect("it closes");
        assert_clean(&mem, "afterwards");
    }

    #[test]
    fn what_is_shown_as_free_can_be_written_and_room_that_a_deletion_gives_is_there_at_once() {
        for mebibytes in [64, 96] {
            let mem = volume(mebibytes, features()[0]);
            let vfs = mount(&mem);
            let shown = |vfs: &Vfs<F2fs>| -> StatFs { vfs.stat_fs() };
            let mut files = 0;
            while shown(&vfs).free > 200 {
                write(&vfs, &format!("{files}"), 100).expect("what is shown is there");
                files += 1;
                if files % 16 == 0 {
                    vfs.sync().expect("it can be written");
                }
            }
            while write(&vfs, &format!("s{files}"), 1).is_ok() {
                files += 1;
            }
            assert!(shown(&vfs).free < 64, "{} blocks are shown as free", shown(&vfs).free);
            for round in 0..20 {
                unlink(&vfs, &format!("{round}")).expect("deleting always works");
                write(&vfs, &format!("new{round}"), 50).expect("the room is there at once");
                let (from, to) = (format!("new{round}"), format!("renamed{round}"));
                let (from, to) = (name(from.as_bytes()), name(to.as_bytes()));
                vfs.rename(&root(), (ROOT, from), (ROOT, to), RenameMode::Replace).expect("a new name has room");
            }
            vfs.close().expect("it closes");
            assert_clean(&mem, "a full volume");
        }
    }

    #[test]
    fn files_of_a_full_volume_are_overwritten_from_end_to_end() {
        let mem = volume(128, features()[0]);
        let vfs = mount(&mem);
        let (old, filler) = (create(&vfs, "old").expect("room"), create(&vfs, "filler").expect("room"));
        let blocks = 8000;
        vfs.write(&root(), old, 0, &vec![1; blocks * BLOCK], false).expect("there is room");
        vfs.fsync(old, false).expect("there is room");
        let full = (0..).find(|at| vfs.write(&root(), filler, at * BLOCK as u64, &[2; BLOCK], false).is_err());
        assert!(full.expect("it ends") > 1000);
        vfs.fsync(filler, false).expect("there is room");
        for round in 3..6 {
            vfs.write(&root(), old, 0, &vec![round; blocks * BLOCK], false).expect("its blocks are its own");
            vfs.fsync(old, false).expect("each block that is written makes way for another");
        }
        vfs.close().expect("it closes");
        assert_clean(&mem, "a full volume");
    }

    #[test]
    fn names_of_a_full_volume_change_where_directories_have_room() {
        let mem = volume(64, features()[0]);
        let vfs = mount(&mem);
        let dir = vfs.create(&root(), ROOT, name(b"dir"), &new(FileKind::Directory)).expect("there is room").ino;
        let in_blocks = |i: u32| format!("a name in blocks {i}").into_bytes();
        for text in (0..200).map(in_blocks) {
            let ino = vfs.create(&root(), dir, name(&text), &new(FileKind::Fifo)).expect("there is room").ino;
            vfs.forget(ino, 1);
        }
        let file = create(&vfs, "file").expect("there is room");
        let full = (0..).find(|at| vfs.write(&root(), file, at * BLOCK as u64, &[1; BLOCK], false).is_err());
        assert!(full.expect("it ends") > 1000);
        // An inode takes one block, and no more.
        let fifo = |text: &str| vfs.create(&root(), ROOT, name(text.as_bytes()), &new(FileKind::Fifo));
        let last = vfs.stat_fs().free;
        assert!((0..last).all(|i| fifo(&format!("{i}")).is_ok()), "a block is left for each");
        assert_eq!(vfs.stat_fs().free, 0);
        assert_eq!(fifo("none").map_err(|error| error.errno()).err(), Some(libc::ENOSPC));

        let rename = |from: (Ino, &[u8]), to: (Ino, &[u8]), mode| {
            vfs.rename(&root(), (from.0, name(from.1)), (to.0, name(to.1)), mode).expect("there is room")
        };
        let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
        for i in 0..200 {
            rename((dir, &in_blocks(i)), (dir, format!("{i}").as_bytes()), replace);
        }
        rename((dir, b"0"), (dir, b"1"), exchange);
        rename((dir, b"0"), (ROOT, b"moved"), replace);
        rename((ROOT, b"moved"), (dir, b"2"), replace);
        assert!(vfs.stat_fs().free > 0, "the file that was replaced is gone");
        vfs.create(&root(), dir, name(b"2 again"), &new(FileKind::Regular)).expect("its block is free at once");
        let linked = vfs.lookup(&root(), dir, name(b"5")).expect("it is there").ino;
        vfs.link(&root(), linked, ROOT, name(b"link")).expect("there is room");
        // Until the root directory would leave its inode.
        let mut links = 0..1000;
        let refused = links.find_map(|i| vfs.link(&root(), linked, ROOT, name(format!("l{i}").as_bytes())).err());
        assert_eq!(refused.expect("no block is left").errno(), libc::ENOSPC);
        assert!(links.start > 20, "{} links", links.start);
        rename((ROOT, b"file"), (ROOT, b"l0"), replace);
        vfs.sync().expect("everything has its place");
        assert_clean(&mem.snapshot(), "a full volume");
        unlink(&vfs, "l0").expect("deleting always works");
        vfs.forget(file, 1);
        vfs.create(&root(), ROOT, name(b"d"), &new(FileKind::Directory)).expect("there is space again");
        assert_eq!(vfs.failed(), None);
        vfs.close().expect("it closes");
        assert_clean(&mem, "afterwards");
    }
}
