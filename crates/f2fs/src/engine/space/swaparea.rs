//! Swap space: sections that swap areas take in memory, never recorded on the disk.
//!
//! A section that swap areas take is one that logs could have taken: nothing in it is valid, the
//! last checkpoint does not hold it, and the device was told that it holds nothing. It is removed
//! from the list of free segments, and nothing else changes: its entry in the segment information
//! table goes on saying that it is empty, checkpoints count it as free, and cleaning and recycling,
//! which look at used segments, never see it. So a power cut finds no trace of it.
//!
//! Capacity is reserved in whole sections, twice over: as promised blocks, which users then do not
//! get, and as free sections, which logs leave alone until they are taken. Users' data and swap
//! together never exceed the blocks that users may have, so the volume's overprovision stays as it
//! was, and cleaning with it.
//!
//! A group is some sections in a row, [`GROUP_BLOCKS`] or one section if that is larger: a group
//! within one section would never have room while the head of a log is in that section.

use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::swap_space::{Account, Group, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};
use moafs_vfs::{Error, Result};

use super::area::MainArea;
use super::state::State;
use crate::format::superblock::Geometry;
use crate::format::{BlkAddr, SEGMENT_BLOCKS, Segno};
use crate::place::budget::Budget;

/// Blocks of a group: 128 MiB, as a block group of ext2 has.
const GROUP_BLOCKS: u32 = 1 << 15;

/// Sections looked at together for the lowest run: it does not reach beyond.
const WINDOW_SECTIONS: u32 = 64;

fn section_blocks(geo: &Geometry) -> u32 {
    geo.segs_per_sec.saturating_mul(SEGMENT_BLOCKS as u32).max(1)
}

impl State {
    /// Returns the number of free segments that logs may take: those kept for swap areas are not among them.
    pub(super) fn free_for_logs(&self) -> u32 {
        let aside = self.areas.aside() as usize * self.segments_per_section;
        self.free.len().saturating_sub(aside) as u32
    }

    /// Returns the number of free sections that logs may take: those kept for swap areas are not among them.
    pub(super) fn free_sections_for_logs(&self) -> u32 {
        self.free.whole_sections().saturating_sub(self.areas.aside())
    }

    /// True if logs may begin a section of which every segment is free: more of them are left than are kept
    /// for swap areas.
    pub(super) fn may_open_sections(&self) -> bool {
        self.areas.aside() == 0 || self.free.whole_sections() > self.areas.aside()
    }

    /// Returns the blocks that are promised to swap areas.
    pub(super) fn kept_blocks(&self, geo: &Geometry) -> u64 {
        u64::from(self.areas.kept) * u64::from(section_blocks(geo))
    }

    /// Keeps `kept` sections from now on.
    fn keep(&mut self, geo: &Geometry, kept: u32) {
        self.promised = self.promised.saturating_sub(self.kept_blocks(geo));
        self.areas.kept = kept;
        self.promised += self.kept_blocks(geo);
    }

    /// Lowers the number of kept sections to those that are still needed.
    fn settle_kept(&mut self, geo: &Geometry) {
        let needed = self.areas.reserved_blocks.div_ceil(section_blocks(geo).into()) as u32;
        let kept = needed.max(self.areas.sections.len() as u32).min(self.areas.kept);
        self.keep(geo, kept);
    }

    /// Returns the runs of sections that swap areas may use, ascending.
    fn rooms(&self, geo: &Geometry, sections: Range<u32>) -> Vec<Range<u32>> {
        let size = section_blocks(geo);
        let mut rooms: Vec<Range<u32>> = Vec::new();
        let mut add = |room: Range<u32>| match rooms.last_mut() {
            _ if room.is_empty() => {}
            Some(last) if last.end == room.start => last.end = room.end,
            _ => rooms.push(room),
        };
        for section in sections {
            let all = section * size..(section + 1) * size;
            let may_open = self.areas.aside() > 0 && self.free.is_whole(section);
            if !may_open && !self.areas.has(section) {
                continue;
            }
            let mut at = all.start;
            for taken in self.areas.taken_in(&all) {
                add(at..taken.start);
                at = taken.end;
            }
            add(at..all.end);
        }
        rooms
    }

    /// Returns as much of a room, from its start, as needs no more sections than are kept.
    fn affordable(&self, geo: &Geometry, room: Range<u32>) -> Range<u32> {
        let size = section_blocks(geo);
        let mut aside = self.areas.aside();
        for section in room.start / size..room.end.div_ceil(size) {
            if self.areas.has(section) {
                continue;
            }
            if aside == 0 {
                return room.start..(section * size).max(room.start);
            }
            aside -= 1;
        }
        room
    }

    fn take_at_end(&mut self, geo: &Geometry, sections: Range<u32>, len: u32) -> Option<Range<u32>> {
        let ends = self.rooms(geo, sections).into_iter().rev().filter(|room| room.end - room.start >= len);
        let mut tails = ends.map(|room| room.end - len..room.end);
        let found = tails.find(|tail| self.affordable(geo, tail.clone()) == *tail)?;
        self.take_blocks(geo, found.clone());
        Some(found)
    }

    /// Takes the first run at or behind block `from` of the main area.
    fn take_from(&mut self, geo: &Geometry, from: u32, len: u32, granule: u32) -> Option<Range<u32>> {
        let found = self.first_run(geo, from, len, granule)?;
        self.take_blocks(geo, found.clone());
        Some(found)
    }

    fn first_run(&self, geo: &Geometry, from: u32, len: u32, granule: u32) -> Option<Range<u32>> {
        let cut = |room: Range<u32>| {
            let room = self.affordable(geo, room.start.max(from)..room.end.max(from));
            room.start..room.start + (room.end - room.start).min(len) / granule * granule
        };
        let free = self.free.first().map(|segno| geo.section_of(Segno(segno)));
        let first = self.areas.sections.first().copied().into_iter().chain(free).min()?;
        let first = first.max(from / section_blocks(geo));
        let windows = (first..geo.sections).step_by(WINDOW_SECTIONS as usize);
        let mut rooms = windows.flat_map(|at| self.rooms(geo, at..(at + WINDOW_SECTIONS).min(geo.sections)));
        rooms.find_map(|room| Some(cut(room)).filter(|run| !run.is_empty()))
    }

    fn take_blocks(&mut self, geo: &Geometry, run: Range<u32>) {
        let size = section_blocks(geo);
        for section in run.start / size..run.end.div_ceil(size) {
            if self.areas.sections.insert(section) {
                for segno in geo.section(section) {
                    self.free.remove(segno);
                }
                self.areas.segments_taken += u64::from(geo.segs_per_sec);
            }
        }
        self.areas.runs.insert(run.start, run.end - run.start);
    }

    fn give_blocks(&mut self, geo: &Geometry, run: &Range<u32>) -> u32 {
        let given = self.areas.forget(run);
        let size = section_blocks(geo);
        for section in run.start / size..run.end.div_ceil(size) {
            let all = section * size..(section + 1) * size;
            if self.areas.taken_in(&all).next().is_none() && self.areas.sections.remove(&section) {
                self.free.extend(geo.section(section));
            }
        }
        self.settle_kept(geo);
        given
    }
}

/// The swap space of an F2FS volume.
pub(in crate::engine) struct SwapRoom {
    space: Arc<MainArea>,
    account: Account,
}

impl SwapRoom {
    pub(in crate::engine) fn new(space: Arc<MainArea>) -> SwapRoom {
        SwapRoom { space, account: Account::default() }
    }

    fn geo(&self) -> &Geometry {
        &self.space.geo
    }

    fn sections_per_group(&self) -> u32 {
        (GROUP_BLOCKS / section_blocks(self.geo())).max(1)
    }

    fn sections(&self, group: Group) -> Range<u32> {
        let per_group = self.sections_per_group();
        let first = group.0.saturating_mul(per_group).min(self.geo().sections);
        first..first.saturating_add(per_group).min(self.geo().sections)
    }

    fn run(&self, blocks: Range<u32>) -> BlockRun {
        BlockRun {
            start: BlockAddr(u64::from(self.geo().main) + u64::from(blocks.start)),
            len: blocks.end - blocks.start,
        }
    }

    /// Returns the number of a block of the main area, counted from its start; `None` outside of
    /// it.
    fn index(&self, block: BlockAddr) -> Option<u32> {
        let addr = u32::try_from(block.0).ok().map(BlkAddr)?;
        self.geo().segment_of(addr).map(|(segno, offset)| segno.0 * SEGMENT_BLOCKS as u32 + offset as u32)
    }
}

impl SwapSpace for SwapRoom {
    fn groups(&self) -> u32 {
        self.geo().sections.div_ceil(self.sections_per_group())
    }

    fn group_of(&self, block: BlockAddr) -> Option<Group> {
        let section = self.index(block)? / section_blocks(self.geo());
        Some(Group(section / self.sections_per_group()))
    }

    fn group_blocks(&self, group: Group) -> u32 {
        self.sections(group).len() as u32 * section_blocks(self.geo())
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        let geo = self.geo();
        let mut guard = self.space.state();
        let state = &mut *guard;
        let size = u64::from(section_blocks(geo));
        let no_space = || Error::Posix(libc::ENOSPC);
        let reserved = state.areas.reserved_blocks.checked_add(blocks).ok_or_else(no_space)?;
        let kept = u32::try_from(reserved.div_ceil(size)).map_err(|_| no_space())?.max(state.areas.kept);
        let more = kept - state.areas.kept;
        let users = state.usage.blocks.saturating_add(state.promised).saturating_add(u64::from(more) * size);
        let left_to_logs = state.reserve.div_ceil(geo.segs_per_sec.max(1));
        let budget = self.space.budget_of(state);
        let segments = u64::from(more) * u64::from(geo.segs_per_sec);
        let free_segments = budget.free_segments.saturating_sub(segments);
        let fits = more.saturating_add(left_to_logs) <= state.free_sections_for_logs()
            && Budget { free_segments, ..budget }.fits();
        if users > self.space.user_blocks || !fits {
            return Err(no_space());
        }
        state.areas.reserved_blocks = reserved;
        state.keep(geo, kept);
        drop(guard);
        self.account.reserve(blocks);
        Ok(())
    }

    fn release(&self, blocks: u64) {
        let released = self.account.release(blocks);
        let mut state = self.space.state();
        state.areas.reserved_blocks -= released;
        state.settle_kept(self.geo());
    }

    fn take(&self, at: Where, len: u32, granule: u32) -> Result<Option<BlockRun>> {
        let geo = self.geo();
        let claimed = self.account.claim(len);
        let mut state = self.space.state();
        let taken = match at {
            Where::EndOf(group) if claimed == len && len > 0 => state.take_at_end(geo, self.sections(group), len),
            Where::EndOf(_) => None,
            Where::From(block) => {
                let from = block.0.saturating_sub(geo.main.into()).try_into().unwrap_or(u32::MAX);
                state.take_from(geo, from, claimed, granule.max(1))
            }
        };
        drop(state);
        self.account.unclaim(claimed - taken.as_ref().map_or(0, |run| run.end - run.start));
        Ok(taken.map(|blocks| self.run(blocks)))
    }

    fn give(&self, run: BlockRun) {
        let Some(start) = self.index(run.start) else { return };
        let blocks = start..start.saturating_add(run.len);
        let given = self.space.state().give_blocks(self.geo(), &blocks);
        debug_assert_eq!(given, run.len, "of {run:?} only {given} blocks were taken");
        self.account.unclaim(given);
    }

    /// Returns no contended group: a log that needs a section takes any, also beside swap areas.
    fn next_contended_group(&self) -> Option<Group> {
        None
    }
}

impl MainArea {
    /// Returns the runs taken by swap areas, with the section each begins in.
    pub(in crate::engine) fn swap_runs(&self) -> Vec<(u32, BlockRun)> {
        let state = self.state();
        let run = |(start, len): (&u32, &u32)| {
            let at = BlockAddr(u64::from(self.geo.main) + u64::from(*start));
            (start / section_blocks(&self.geo), BlockRun { start: at, len: *len })
        };
        state.areas.runs.iter().map(run).collect()
    }

    /// Returns the offsets of a segment's blocks that are not free, ascending: valid, or a swap area's.
    pub(in crate::engine) fn used_blocks(&self, segno: Segno) -> Vec<usize> {
        let first = segno.0 * SEGMENT_BLOCKS as u32;
        let (_, mut used) = self.valid_blocks(segno);
        let state = self.state();
        let taken = state.areas.taken_in(&(first..first + SEGMENT_BLOCKS as u32));
        used.extend(taken.flat_map(|part| part.map(|block| (block - first) as usize)));
        used
    }

    /// Returns the number of sections kept for swap areas, taken ones included.
    pub(in crate::engine) fn swap_sections(&self) -> u32 {
        self.state().areas.kept
    }

    /// Returns the number of segments that swap areas have taken since the volume was opened, each time
    /// counted.
    pub(in crate::engine) fn swap_segments_taken(&self) -> u64 {
        self.state().areas.segments_taken
    }
}

#[cfg(test)]
mod tests {
    use moafs_disk::mem::MemDisk;
    use moafs_runtime::{Live, Timestamp};
    use moafs_vfs::api::Options;
    use moafs_vfs::types::{FileKind, Ino, Lbn, Mapping};
    use moafs_vfs::{Format, Vfs};

    use super::*;
    use crate::format::{BLOCK, Nid};
    use crate::judge::{assert_clean, features, mount, name, new, root, volume};
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{F2fs, OpenOptions};

    const ROOT: Ino = Ino(3);

    fn room(vfs: &Vfs<F2fs>, blocks: u64) -> Arc<dyn SwapSpace> {
        vfs.swap_space(blocks).expect("way is made").expect("a volume that can be written")
    }

    fn write(vfs: &Vfs<F2fs>, text: &str, blocks: usize) -> Ino {
        let made = vfs.create(&root(), ROOT, name(text.as_bytes()), &new(FileKind::Regular));
        let ino = made.expect("a new file").ino;
        vfs.write(&root(), ino, 0, &vec![7; blocks * BLOCK], false).expect("there is room");
        ino
    }

    fn unlink(vfs: &Vfs<F2fs>, text: &str, ino: Ino) {
        vfs.unlink(&root(), ROOT, name(text.as_bytes())).expect("it has a name");
        vfs.forget(ino, 1);
        while vfs.stat(ino).is_ok() {
            vfs.run_background_step();
        }
    }

    fn runs(vfs: &Vfs<F2fs>, ino: Ino) -> Vec<BlockRun> {
        let fs = vfs.format();
        let (attr, file) = fs.load(ino).expect("the file");
        let (mut at, mut runs) = (0, Vec::new());
        while at < attr.size / BLOCK as u64 {
            let mapping = fs.map(&file, Lbn(at), u32::MAX).expect("its map");
            if let Mapping::Run(run) = mapping {
                runs.push(run);
            }
            at += u64::from(mapping.len());
        }
        runs
    }

    fn apart(a: &BlockRun, b: &BlockRun) -> bool {
        a.end() <= b.start || b.end() <= a.start
    }

    /// Returns a volume of sections of so many segments.
    fn sectioned(mebibytes: u64, segs_per_sec: u32) -> Arc<MemDisk> {
        let mem = Arc::new(MemDisk::new(mebibytes << 11));
        let options = MkfsOptions { segs_per_sec, ..MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0)) };
        mkfs(&*mem, &options).expect("mkfs");
        mem
    }

    #[test]
    fn what_is_kept_for_swap_areas_takes_no_node_ids() {
        let mem = volume(64, features()[0]);
        let mut fs = F2fs::open(mem.clone(), Live::new(), OpenOptions::default()).expect("the volume opens");
        fs.nat.end = Nid(60);
        let vfs = Vfs::new(fs, mem.clone(), Live::new(), Options { syncer: false, ..Options::default() });
        let room = room(&vfs, 512);
        room.reserve(512).expect("there is a section");
        write(&vfs, "file", 1);
        room.release(512);
        drop(room);
        vfs.close().expect("it closes");
        assert_clean(&mem, "afterwards");
    }

    #[test]
    fn areas_lie_at_the_end_of_their_group_or_lowest() {
        let vfs = mount(&volume(512, features()[0]));
        let room = room(&vfs, 3000);
        assert_eq!((room.group_blocks(Group(0)), room.group_blocks(Group(1))), (1 << 15, 1 << 15));
        room.reserve(3000).expect("there is space");
        let main = u64::from(vfs.format().geometry().main);
        let end = main + (2 << 15);
        let take = |len| room.take(Where::EndOf(Group(1)), len, 1).expect("no I/O");
        assert_eq!(take(700).map(|run| (run.start.0, run.len)), Some((end - 700, 700)));
        assert_eq!(take(700).map(|run| (run.start.0, run.len)), Some((end - 1400, 700)), "right before it");
        let lowest = [1536, 64].map(|_| room.take(Where::LOWEST, 10_000, 8).unwrap().expect("what is left"));
        assert_eq!(lowest.map(|run| run.len), [1536, 64], "three sections, and the rest of a taken one");
        assert_eq!(lowest.map(|run| room.group_of(run.start)), [Some(Group(0)), Some(Group(1))]);
        assert_eq!(take(1), None, "all is taken");
        assert_eq!(room.group_of(BlockAddr(main - 1)), None);
    }

    #[test]
    fn a_group_without_sections_of_its_own_gives_what_is_left_in_taken_ones() {
        let vfs = mount(&volume(512, features()[0]));
        let room = room(&vfs, 512);
        room.reserve(512).expect("there is space");
        let first = room.take(Where::EndOf(Group(0)), 100, 1).unwrap().expect("a run");
        assert_eq!(room.take(Where::EndOf(Group(1)), 100, 1).unwrap(), None, "one section was reserved");
        let second = room.take(Where::EndOf(Group(0)), 100, 1).unwrap().expect("a run");
        assert_eq!(second.end(), first.start);
        assert_eq!(room.take(Where::LOWEST, 1000, 1).unwrap().map(|run| run.len), Some(312));
    }

    #[test]
    fn no_checkpoint_tells_of_an_area_and_all_comes_back() {
        for mem in [volume(256, features()[0]), sectioned(512, 4)] {
            let vfs = mount(&mem);
            vfs.sync().expect("sync");
            let free = (vfs.format().space().free_blocks, vfs.format().room().free_sections);
            let room = room(&vfs, 6000);
            room.reserve(6000).expect("there is space");
            let reserved = vfs.format().space().free_blocks;
            assert!(reserved <= free.0 - 6000);
            let taken = [2000, 500, 3000].map(|len| room.take(Where::LOWEST, len, 1).unwrap().expect("a run"));
            assert_eq!(vfs.format().space().free_blocks, reserved, "promised or taken is the same");
            let file = write(&vfs, "file", 5000);
            vfs.sync().expect("sync");
            assert!(runs(&vfs, file).iter().all(|run| taken.iter().all(|area| apart(run, area))));
            // The state after a crash at this moment.
            let crashed = Arc::new(mem.snapshot());
            assert_clean(&crashed, "with areas");
            let after = mount(&crashed);
            assert_eq!(runs(&after, file), runs(&vfs, file));
            after.close().expect("it closes");
            assert_clean(&crashed, "after a crash with areas");

            taken.into_iter().for_each(|run| room.give(run));
            room.release(6000);
            unlink(&vfs, "file", file);
            vfs.sync().expect("sync");
            assert_eq!((vfs.format().space().free_blocks, vfs.format().room().free_sections), free);
            vfs.close().expect("it closes");
            assert_clean(&mem, "without areas");
        }
    }

    #[test]
    fn files_overwritten_on_a_full_volume_keep_out_of_areas() {
        for mem in [volume(128, features()[0]), sectioned(256, 4)] {
            let vfs = mount(&mem);
            let room = room(&vfs, 4096);
            room.reserve(4096).expect("there is space");
            let first = room.take(Where::LOWEST, 1000, 1).unwrap().expect("a run");
            let mut files = Vec::new();
            while vfs.format().space().free_blocks > 600 {
                files.push(write(&vfs, &format!("{}", files.len()), 256));
            }
            for round in 0..6 {
                for (number, ino) in files.iter().enumerate().filter(|(number, _)| number % 3 == round % 3) {
                    let data = vec![number as u8; 100 * BLOCK];
                    vfs.write(&root(), *ino, (round * 10 * BLOCK) as u64, &data, false).expect("an overwrite");
                }
                vfs.sync().expect("sync");
            }
            // Promised blocks are there, after any use of the logs.
            let mut areas = vec![first];
            while let Some(run) = room.take(Where::LOWEST, 4096, 1).unwrap() {
                areas.push(run);
            }
            assert_eq!(areas.iter().map(|run| run.len).sum::<u32>(), 4096);
            assert!(room.reserve(4096).is_err(), "the volume is full");
            for ino in &files {
                assert!(runs(&vfs, *ino).iter().all(|run| areas.iter().all(|area| apart(run, area))));
            }
            vfs.close().expect("it closes");
            assert_clean(&mem, "a full volume with areas");
        }
    }

    #[test]
    fn way_is_made_by_cleaning_and_by_a_checkpoint() {
        let mem = volume(512, features()[0]);
        let vfs = mount(&mem);
        let mut files = Vec::new();
        while vfs.format().space().free_blocks > 600 {
            files.push(write(&vfs, &format!("{}", files.len()), 128));
        }
        vfs.sync().expect("sync");
        // Every second one goes: all segments stay half full.
        for (number, ino) in files.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
            unlink(&vfs, &format!("{number}"), *ino);
        }
        vfs.sync().expect("sync");
        let wanted = u64::from(vfs.format().room().spare_sections() + 8) * 512;
        let free = vfs.format().space().free_blocks;
        assert!(wanted < free, "{wanted} of {free} blocks");
        assert!(vfs.format().swap_space().expect("a volume that can be written").reserve(wanted).is_err());
        let room = room(&vfs, wanted);
        room.reserve(wanted).expect("cleaning has made way");
        for _ in 0..wanted / 512 {
            room.take(Where::LOWEST, 512, 512).unwrap().expect("a section");
        }
        vfs.close().expect("it closes");
        assert_clean(&mem, "after way was made");
    }
}
