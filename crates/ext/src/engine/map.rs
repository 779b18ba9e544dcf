//! The block map of a mounted volume: finding, setting and clearing pointers. Files with extents have a tree instead
//! ([`super::extents`]).
//!
//! Pointers in indirect blocks are records of a sector each; those in the inode are part of its slot. On the
//! disk a pointer appears after its bitmap bit and its data, an indirect block before the pointer to it, and
//! the inode last, on append as on truncate.

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_disk::{Buf, Epoch, Kind, SECTOR};
use moafs_vfs::format::{Progress, UnmapStep};
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Lbn, LbnRange, Mapping};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, InodeState, Life};
use super::volume::Ext;
use crate::format::inode::InodeFlags;
use crate::format::map::{self, Path};
use crate::format::{BlockNo, GroupNo, Inode, InodeNo, Place, Structure};
use crate::health::damaged;
use crate::meta::{Block, Freed, Level, Needs};

/// The end of the blocks that pointers of 32 bits reach.
const POINTED_BLOCKS_END: u64 = 1 << 32;

/// Pointers in a sector: those of one record.
const RECORD_POINTERS: usize = SECTOR / 4;

/// A run of so few blocks lies in two groups at most.
pub(super) const UNMAP_STEP: UnmapStep = UnmapStep { blocks: 1024, runs: 4 };

/// The most groups in which one op frees blocks of a file. They have as many bitmaps, and at most as many blocks of
/// descriptors: half of what an op may change.
const CUT_GROUPS_MAX: usize = 16;

/// The place of a new indirect block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapPlace {
    /// Beside the directories of the group: the first indirect block, which every file has that is
    /// not small.
    Zone,
    /// Between the file's data.
    Data,
}

/// The place of the pointer of a logical block.
enum Leaf {
    /// In the inode, at this index.
    Direct(usize),
    /// In an indirect block, at this index.
    Indirect(Arc<Block>, usize),
    /// The indirect block that would hold it is missing: a hole up to this logical block.
    Missing(u64),
}

/// Pointers that were set by one call.
struct Set {
    count: u64,
    /// The level at which they are on disk, unless they are in the inode.
    level: Level,
}

fn pointer(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the run that begins a list of pointers, as its first pointer and its length: equal kind
/// (hole or not), contiguous.
fn first_run(pointers: impl Iterator<Item = u32>, max: u32) -> (u32, u32) {
    let mut pointers = pointers.take(max as usize);
    let Some(first) = pointers.next() else { return (0, 0) };
    let follows =
        |(at, p): (u32, u32)| if first == 0 { p == 0 } else { u64::from(p) == u64::from(first) + u64::from(at) };
    let more = (1..).zip(pointers).take_while(|&pair| follows(pair)).count();
    (first, 1 + more as u32)
}

impl Ext {
    pub(super) fn too_big() -> Error {
        Error::Posix(libc::EFBIG)
    }

    /// Returns the size in bytes up to which a file may be written to. Pointers have 32 bits: a map of pointers cannot
    /// lead to blocks behind those, so on longer volumes files with such maps are not written to.
    pub(super) fn writable_bytes_max(&self, node: &Incore) -> u64 {
        match node.state.lock().inode.has_extents() {
            true => self.shape.file_bytes_max,
            false if self.geo.blocks > POINTED_BLOCKS_END => 0,
            false => map::written_bytes_max(&self.geo),
        }
    }

    /// Returns an error of a change of a map. If a part of the change was made already the volume fails: the rest would
    /// be missing on the disk.
    pub(super) fn half_mapped(&self, node: &Incore, begun: bool, error: Error) -> Error {
        if begun {
            self.health.fail(format!("mapping written blocks of inode {} could not be completed: {error}", node.ino.0));
        }
        error
    }

    /// Returns true if `i_block` begins a map of blocks: it is no device number, no symbolic link's text, and not the
    /// file's contents.
    pub(super) fn has_pointers(&self, kind: FileKind, inode: &Inode) -> bool {
        match kind {
            _ if inode.flags.contains(InodeFlags::INLINE_DATA) => false,
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => !inode.is_fast_symlink(&self.geo),
            _ => false,
        }
    }

    /// Returns the pointers in an indirect block.
    pub(super) fn pointers_in(&self, no: u64) -> Result<Vec<u32>> {
        let block = self.zone_block(no, Kind::Map)?;
        Ok(block.view(|bytes| (0..self.geo.apb as usize).map(|i| pointer(bytes, i)).collect()))
    }

    /// Returns true if this inode can have none of the blocks, or not all: they are metadata at a fixed place, of
    /// another inode that is the journal or the orphan file, or outside the volume.
    pub(super) fn cannot_own(&self, ino: InodeNo, start: u64, len: u64) -> bool {
        match self.own_files.contains(&ino) {
            true => self.alloc.is_fixed_metadata(start, len),
            false => self.alloc.is_fixed(start, len),
        }
    }

    /// Checks a pointer that was read from the volume.
    pub(super) fn checked(&self, node: &Incore, level: u8, block: Option<u64>, start: u32, len: u32) -> Result<u64> {
        let start = u64::from(start);
        if !self.cannot_own(node.ino, start, len.into()) {
            return Ok(start);
        }
        let structure = match block {
            Some(_) => Structure::Indirect { inode: node.ino, level },
            None => Structure::Inode(node.ino),
        };
        let place = Place { structure, block: block.map(BlockNo).or(Some(node.at.block)) };
        let what = format!("it points to block {start}, which is outside the volume or the volume's own metadata");
        self.health.watch(Err(damaged(place.damage(what))))
    }

    /// Returns the mapping of `at`: one run of at most `max` blocks. Blocks without a pointer are
    /// unwritten if they have an address allocated at `write()`.
    pub(super) fn map_run(&self, node: &Incore, at: Lbn, max: u32) -> Result<Mapping> {
        let mapping = self.map_counted(node, at, max.max(1))?;
        let Mapping::Hole { len } = mapping else { return Ok(mapping) };
        if !self.shape.allocate_on_write {
            return Ok(mapping);
        }
        Ok(match self.next_early(node, at, len) {
            Some(early) if early == at => {
                self.early_run(node, at, len).map_or(Mapping::Hole { len }, Mapping::Unwritten)
            }
            Some(early) => Mapping::Hole { len: (early.0 - at.0) as u32 },
            None => Mapping::Hole { len },
        })
    }

    /// Returns the mapping of `at` by the pointers alone. Pointers beyond the end, which a crash
    /// has left, are ignored.
    fn map_counted(&self, node: &Incore, at: Lbn, mut max: u32) -> Result<Mapping> {
        if self.recovery.may_overhang(node.ino) {
            let end = node.state.lock().inode.size.div_ceil(self.geo.block_size.into());
            match end.saturating_sub(at.0) {
                0 => return Ok(Mapping::Hole { len: max }),
                left => max = max.min(u32::try_from(left).unwrap_or(u32::MAX)),
            }
        }
        self.map_pointers(node, at, max)
    }

    /// Returns the mapping of `at` by the pointers alone.
    pub(super) fn map_pointers(&self, node: &Incore, at: Lbn, max: u32) -> Result<Mapping> {
        let _looking = node.map.read();
        let flags = node.state.lock().inode.flags;
        if flags.contains(InodeFlags::EXTENTS) {
            return self.map_extents(node, at, max);
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(Mapping::Hole { len: max });
        }
        let (first, len, from) = match self.leaf(node, at.0)? {
            Leaf::Missing(end) => return Ok(Mapping::Hole { len: (end - at.0).min(max.into()) as u32 }),
            Leaf::Direct(index) => {
                let state = node.state.lock();
                let (first, len) = first_run(state.inode.block[index..map::DIRECT as usize].iter().copied(), max);
                (first, len, None)
            }
            Leaf::Indirect(block, index) => {
                let end = self.geo.apb as usize;
                let (first, len) = block.view(|bytes| first_run((index..end).map(|i| pointer(bytes, i)), max));
                (first, len, Some(block.no))
            }
        };
        if first == 0 {
            return Ok(Mapping::Hole { len });
        }
        let start = self.checked(node, 1, from, first, len)?;
        Ok(Mapping::Run(BlockRun { start: BlockAddr(start), len }))
    }

    fn leaf(&self, node: &Incore, lbn: u64) -> Result<Leaf> {
        let Some(path) = Path::of(lbn, self.geo.apb) else {
            return Ok(Leaf::Missing(u64::MAX));
        };
        let indices = path.indices();
        if path.depth() == 0 {
            return Ok(Leaf::Direct(indices[0] as usize));
        }
        let mut next = node.state.lock().inode.block[indices[0] as usize];
        let mut from = None;
        for level in (1..=path.depth()).rev() {
            let depth_index = usize::from(path.depth() - level) + 1;
            if next == 0 {
                // Everything below the missing block is a hole.
                let span = map::span(level, self.geo.apb);
                let base = map::first_lbn_of_slot(indices[0] as usize, self.geo.apb);
                return Ok(Leaf::Missing(base + ((lbn - base) / span + 1) * span));
            }
            let no = self.checked(node, level + 1, from, next, 1)?;
            let block = self.zone_block(no, Kind::Map)?;
            let index = indices[depth_index] as usize;
            if level == 1 {
                return Ok(Leaf::Indirect(block, index));
            }
            next = block.view(|bytes| pointer(bytes, index));
            from = Some(no);
        }
        unreachable!("a path ends at level 1")
    }

    /// Returns how many of the indirect blocks above a logical block are missing, counted from the
    /// lowest.
    pub(super) fn missing_levels(&self, node: &Incore, lbn: u64) -> Result<u8> {
        let _looking = node.map.read();
        if node.state.lock().inode.has_extents() {
            return Ok(u8::MAX);
        }
        let path = Path::of(lbn, self.geo.apb).ok_or_else(Self::too_big)?;
        let indices = path.indices();
        let mut next = node.state.lock().inode.block[indices[0] as usize];
        let mut from = None;
        for level in (1..=path.depth()).rev() {
            if next == 0 || level == 1 {
                return Ok(if next == 0 { level } else { 0 });
            }
            let no = self.checked(node, level + 1, from, next, 1)?;
            let index = indices[usize::from(path.depth() - level) + 1] as usize;
            next = self.zone_block(no, Kind::Map)?.view(|bytes| pointer(bytes, index));
            from = Some(no);
        }
        Ok(0)
    }

    // -- setting

    /// Maps `at` to `to`, whose data completed in `written`. The blocks mapped there before become
    /// free once the disk shows the new pointers. Returns the level at which the pointers in
    /// indirect blocks are on disk.
    pub(super) fn set_pointers(
        &self,
        node: &Incore,
        at: LbnRange,
        to: BlockRun,
        written: Option<Epoch>,
        mut map_block: impl FnMut(MapPlace) -> Result<(u64, Level)>,
    ) -> Result<Level> {
        let _changing = node.map.write();
        let end = at.start.0 + u64::from(to.len.min(at.len));
        if node.state.lock().inode.has_extents() {
            let level = self.set_extents(node, at, to, written, &mut map_block)?;
            let settled = self.settle_early(node, at.start, to);
            settled.map_err(|error| self.half_mapped(node, true, error))?;
            let mut state = node.state.lock();
            state.mapped_end = state.mapped_end.max(end);
            return Ok(level);
        }
        let has_place = Path::of(end.saturating_sub(1), self.geo.apb).is_some();
        if !has_place || to.end().0 > POINTED_BLOCKS_END {
            return Err(Self::too_big());
        }
        self.alloc.record_use(to.start.0, to.len)?;
        let bits = self.bits_level(to)?;
        let mut highest = Level::NONE;
        let (mut lbn, mut target) = (at.start.0, to.start.0);
        while lbn < end {
            let left = end - lbn;
            let leaf = self.leaf_or_new(node, lbn, &mut map_block);
            let leaf = leaf.map_err(|error| self.half_mapped(node, lbn > at.start.0, error))?;
            let set = match leaf {
                Leaf::Direct(index) => self.set_direct(node, index, target, left, bits, written),
                Leaf::Indirect(block, index) => self.set_indirect(node, &block, index, target, left, bits, written),
                Leaf::Missing(_) => Err(Self::too_big()),
            };
            let set = set.map_err(|error| self.half_mapped(node, true, error))?;
            let pointed = BlockRun { start: BlockAddr(target), len: set.count as u32 };
            let settled = self.settle_early(node, Lbn(lbn), pointed);
            settled.map_err(|error| self.half_mapped(node, true, error))?;
            highest = highest.max(set.level);
            lbn += set.count;
            target += set.count;
        }
        let mut state = node.state.lock();
        state.needs = state.needs.max(highest);
        state.mapped_end = state.mapped_end.max(end);
        Ok(highest)
    }

    /// Returns the level at which the bitmap bits of a run are on disk.
    fn bits_level(&self, run: BlockRun) -> Result<Level> {
        let Some(group) = self.geo.group_of_block(BlockNo(run.start.0)) else { return Ok(Level::NONE) };
        let block = self.meta.get(self.alloc.descriptor(group).block_bitmap.0, Kind::Bitmap)?;
        Ok(self.meta.loose_level(&block))
    }

    fn set_direct(
        &self,
        node: &Incore,
        index: usize,
        target: u64,
        left: u64,
        bits: Level,
        written: Option<Epoch>,
    ) -> Result<Set> {
        let mut state = node.state.lock();
        let count = left.min(map::DIRECT - index as u64);
        for old in state.inode.block[index..index + count as usize].iter().filter(|old| **old != 0) {
            self.checked(node, 1, None, *old, 1)?;
        }
        let (mut filled, mut changed) = (0, false);
        for i in 0..count {
            let new = (target + i) as u32;
            let old = std::mem::replace(&mut state.inode.block[index + i as usize], new);
            filled += u64::from(old == 0);
            changed |= old != new;
            if old != 0 && old != new {
                state.freed.push(Freed::Data { start: old.into(), len: 1 });
            }
        }
        // Overwriting in place changes no pointer: nothing has to wait for the data.
        if changed {
            state.needs = state.needs.max(bits);
            state.data = state.data.max(written);
        }
        self.count_blocks(&mut state, filled as i64);
        Ok(Set { count, level: Level::NONE })
    }

    #[allow(clippy::too_many_arguments)]
    fn set_indirect(
        &self,
        node: &Incore,
        block: &Arc<Block>,
        index: usize,
        target: u64,
        left: u64,
        bits: Level,
        written: Option<Epoch>,
    ) -> Result<Set> {
        let sector = index / RECORD_POINTERS;
        let end = ((sector + 1) * RECORD_POINTERS).min(self.geo.apb as usize);
        let count = left.min((end - index) as u64);
        let old: Vec<u32> = block.view(|bytes| (0..count as usize).map(|i| pointer(bytes, index + i)).collect());
        let same = old.iter().zip(target..).all(|(old, new)| u64::from(*old) == new);
        if same {
            return Ok(Set { count, level: Level::NONE });
        }
        for old in old.iter().filter(|old| **old != 0) {
            self.checked(node, 1, Some(block.no), *old, 1)?;
        }
        let first = index - sector * RECORD_POINTERS;
        let needs = Needs::from(bits).and_data(written);
        let level = self.meta.change(block, sector * SECTOR..(sector + 1) * SECTOR, needs, |bytes| {
            for i in 0..count as usize {
                let at = (first + i) * 4;
                bytes[at..at + 4].copy_from_slice(&((target + i as u64) as u32).to_le_bytes());
            }
        });
        let filled = old.iter().filter(|old| **old == 0).count() as u64;
        for (old, new) in old.into_iter().zip(target..) {
            if old != 0 && u64::from(old) != new {
                self.alloc.free(level, Freed::Data { start: old.into(), len: 1 })?;
            }
        }
        self.count_blocks(&mut node.state.lock(), filled as i64);
        Ok(Set { count, level })
    }

    /// Counts `blocks` more (or fewer) for the file on the volume: no more than its inode can count.
    pub(super) fn count_blocks(&self, state: &mut InodeState, blocks: i64) {
        state.inode.blocks = self.counted(&state.inode, blocks).min(map::count_max(&self.geo));
    }

    /// Returns `i_blocks` of a file with so many blocks more (or fewer).
    pub(super) fn counted(&self, inode: &Inode, blocks: i64) -> u64 {
        let huge = self.geo.huge_file && inode.flags.contains(InodeFlags::HUGE_FILE);
        let unit = if huge { 1 } else { i64::from(self.geo.sectors_per_block()) };
        inode.blocks.saturating_add_signed(blocks * unit)
    }

    /// Returns the place of the pointer; makes the indirect blocks on the way to it.
    fn leaf_or_new(
        &self,
        node: &Incore,
        lbn: u64,
        map_block: &mut dyn FnMut(MapPlace) -> Result<(u64, Level)>,
    ) -> Result<Leaf> {
        let path = Path::of(lbn, self.geo.apb).ok_or_else(Self::too_big)?;
        let indices = path.indices();
        let slot = indices[0] as usize;
        if path.depth() == 0 {
            return Ok(Leaf::Direct(slot));
        }
        let top = node.state.lock().inode.block[slot];
        let mut block = match top {
            0 => {
                let place = if path.depth() == 1 { MapPlace::Zone } else { MapPlace::Data };
                let (block, level) = self.new_map_block(map_block(place)?)?;
                let mut state = node.state.lock();
                state.inode.block[slot] = block.no as u32;
                state.needs = state.needs.max(level);
                self.count_blocks(&mut state, 1);
                block
            }
            top => self.zone_block(self.checked(node, path.depth() + 1, None, top, 1)?, Kind::Map)?,
        };
        for (level, &index) in (2..=path.depth()).rev().zip(&indices[1..]) {
            block = match block.view(|bytes| pointer(bytes, index as usize)) {
                0 => {
                    let (below, needs) = self.new_map_block(map_block(MapPlace::Data)?)?;
                    let level = self.change_pointer(&block, index as usize, below.no as u32, needs);
                    let mut state = node.state.lock();
                    state.needs = state.needs.max(level);
                    self.count_blocks(&mut state, 1);
                    below
                }
                below => self.meta.get(self.checked(node, level, Some(block.no), below, 1)?, Kind::Map)?,
            };
        }
        Ok(Leaf::Indirect(block, *indices.last().expect("paths are not empty") as usize))
    }

    fn new_map_block(&self, (no, bits): (u64, Level)) -> Result<(Arc<Block>, Level)> {
        if no >= POINTED_BLOCKS_END {
            self.alloc.free(Level::NONE, Freed::Data { start: no, len: 1 })?;
            return Err(Self::too_big());
        }
        let (block, fresh) = self.fresh(no, Kind::Map, Buf::zeroed(self.geo.block_bytes()))?;
        Ok((block, bits.max(fresh)))
    }

    /// Adds a new block of metadata that no pointer leads to yet, and shows it as used.
    pub(super) fn fresh(&self, no: u64, kind: Kind, image: Buf) -> Result<(Arc<Block>, Level)> {
        self.alloc.record_use(no, 1)?;
        Ok(self.meta.fresh(no, kind, image))
    }

    fn change_pointer(&self, block: &Arc<Block>, index: usize, to: u32, needs: Level) -> Level {
        let sector = index / RECORD_POINTERS;
        let at = (index - sector * RECORD_POINTERS) * 4;
        self.meta.change(block, sector * SECTOR..(sector + 1) * SECTOR, needs, |bytes| {
            bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
        })
    }

    // -- clearing

    /// Unmaps up to about `at_most` blocks of `from..to`, from the end towards the start. Returns
    /// `Done` when nothing is mapped there any more. An orphan's maps are read, not rewritten: no
    /// pointer on disk leads to it.
    pub(super) fn clear_pointers(
        &self,
        node: &Incore,
        from: u64,
        to: u64,
        at_most: u32,
        orphan: bool,
    ) -> Result<Progress> {
        if !self.has_pointers(node.kind, &node.inode()) {
            return Ok(Progress::Done);
        }
        let _changing = node.map.write();
        if node.state.lock().inode.has_extents() {
            let progress = self.clear_extents(node, from, to, at_most.max(1))?;
            if to == u64::MAX {
                let mut state = node.state.lock();
                state.mapped_end = state.mapped_end.min(from);
            }
            self.store(node)?;
            return Ok(progress);
        }
        let life = node.state.lock().life;
        let data = node.kind == FileKind::Regular;
        let (budget, groups) = (at_most.max(1), BTreeSet::new());
        let mut cut = Cut { from, budget, orphan: None, data, blocks: 0, reaped: to, groups };
        cut.orphan = match life {
            // With a journal this takes several transactions, and a crash in between finds the pointers that are left.
            _ if self.meta.has_journal() => None,
            Life::Orphan(level) if orphan && from == 0 => Some(level),
            Life::Unborn if orphan && from == 0 => Some(Level::NONE),
            _ => None,
        };
        if cut.orphan.is_some() {
            cut.reaped = to.min(node.state.lock().reaped_from);
        }
        let outcome = self.cut_slots(node, &mut cut);
        let mut state = node.state.lock();
        self.count_blocks(&mut state, -cut.blocks);
        if to == u64::MAX {
            state.mapped_end = state.mapped_end.min(from);
        }
        if cut.orphan.is_some() {
            state.reaped_from = if matches!(outcome, Ok(Progress::Done)) { u64::MAX } else { cut.reaped };
        }
        drop(state);
        let progress = outcome?;
        if cut.orphan.is_none() {
            self.store(node)?;
        }
        Ok(progress)
    }

    /// Returns the most groups in which one op frees blocks of a file, each with a bitmap that joins the op's
    /// transaction: the log of a large volume may be small.
    pub(super) fn cut_groups_max(&self) -> usize {
        if self.meta.has_journal() && self.geo.groups as usize > CUT_GROUPS_MAX { CUT_GROUPS_MAX } else { usize::MAX }
    }

    fn cut_slots(&self, node: &Incore, cut: &mut Cut) -> Result<Progress> {
        for slot in (0..15usize).rev() {
            let first = map::first_lbn_of_slot(slot, self.geo.apb);
            let level = map::level_of_slot(slot);
            let end = first + map::span(level, self.geo.apb);
            let top = node.state.lock().inode.block[slot];
            if top == 0 || first >= cut.reaped || end <= cut.from {
                continue;
            }
            if cut.budget == 0 {
                return Ok(Progress::More);
            }
            let mut below = Vec::new();
            let start = self.checked(node, level + 1, None, top, 1)?;
            let gone = self.cut_tree(node, start, level, first, cut, &mut below)?;
            if gone {
                push_freed(&mut below, start, level == 0 && cut.data);
                cut.blocks += 1;
                cut.reaped = first;
                let mut state = node.state.lock();
                state.inode.block[slot] = 0;
                if cut.orphan.is_none() {
                    state.freed.extend(below.drain(..));
                }
            }
            self.release(cut.orphan.unwrap_or(Level::NONE), below)?;
            if !gone && cut.budget == 0 {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    fn release(&self, needs: Level, freed: Vec<Freed>) -> Result<()> {
        freed.into_iter().try_for_each(|freed| self.alloc.free(needs, freed))
    }

    /// Cuts the subtree that a block of pointers maps. Returns true if it is empty afterwards: its
    /// owner then clears the pointer to it and frees `below` with that; otherwise `below` is left
    /// empty (or, for orphans, may be freed at once).
    fn cut_tree(
        &self,
        node: &Incore,
        no: u64,
        level: u8,
        first: u64,
        cut: &mut Cut,
        below: &mut Vec<Freed>,
    ) -> Result<bool> {
        if level == 0 {
            cut.budget = cut.budget.saturating_sub(1);
            return Ok(true);
        }
        let block = self.zone_block(no, Kind::Map)?;
        let pointers = self.pointers_in(no)?;
        let span = map::span(level - 1, self.geo.apb);
        let last = (cut.reaped - first).div_ceil(span).min(pointers.len() as u64) as usize;
        let lowest = (cut.from.saturating_sub(first) / span) as usize;
        let mut cleared: Vec<usize> = Vec::new();
        let mut freed: Vec<Freed> = Vec::new();
        let mut stopped = false;
        for index in (lowest..last).rev() {
            let child = pointers[index];
            if child == 0 {
                continue;
            }
            // Data pointers of one block are cut together: a bounded amount, and one change of it.
            if level > 1 && cut.budget == 0 {
                stopped = true;
                break;
            }
            let start = self.checked(node, level, Some(no), child, 1)?;
            let child_first = first + index as u64 * span;
            if level > 1 && !self.cut_tree(node, start, level - 1, child_first, cut, &mut freed)? {
                stopped = cut.budget == 0;
                if stopped { break } else { continue }
            }
            if level == 1 {
                if !cut.enters(self.geo.group_of_block(BlockNo(start)), self.cut_groups_max()) {
                    (cut.budget, stopped) = (0, true);
                    break;
                }
                cut.budget = cut.budget.saturating_sub(1);
            }
            cleared.push(index);
            cut.blocks += 1;
            cut.reaped = child_first;
            push_freed(&mut freed, start, level == 1 && cut.data);
        }
        let left = pointers.iter().enumerate().any(|(i, p)| *p != 0 && !cleared.contains_sorted(i));
        if cut.orphan.is_some() {
            // Pointers below the lowest index were not looked at: an orphan's subtree counts as
            // empty only if the cut begins at its start.
            below.append(&mut freed);
            return Ok(!stopped && lowest == 0);
        }
        if !left {
            below.append(&mut freed);
            return Ok(true);
        }
        let mut highest = Level::NONE;
        for sector in cleared.chunk_by(|a, b| a / RECORD_POINTERS == b / RECORD_POINTERS) {
            let base = sector[0] / RECORD_POINTERS;
            let level = self.meta.change(&block, base * SECTOR..(base + 1) * SECTOR, Level::NONE, |bytes| {
                for index in sector {
                    let at = (index - base * RECORD_POINTERS) * 4;
                    bytes[at..at + 4].fill(0);
                }
            });
            highest = highest.max(level);
        }
        self.release(highest, freed)?;
        let mut state = node.state.lock();
        state.needs = state.needs.max(highest);
        Ok(false)
    }
}

/// A list that descends strictly.
trait Descending {
    fn contains_sorted(&self, index: usize) -> bool;
}

impl Descending for Vec<usize> {
    fn contains_sorted(&self, index: usize) -> bool {
        self.binary_search_by(|at| index.cmp(at)).is_ok()
    }
}

/// The state of one cut through a file's maps.
struct Cut {
    from: u64,
    /// Number of blocks that may still be freed in this op.
    budget: u32,
    /// For orphans: the level that must be on disk before any block of it is reused.
    orphan: Option<Level>,
    /// The file's blocks are data; those of directories and symbolic links are metadata, cached as such.
    data: bool,
    /// Number of blocks freed.
    blocks: i64,
    /// No block is mapped any more at or after this logical block.
    reaped: u64,
    /// The groups in which blocks of data were freed.
    groups: BTreeSet<GroupNo>,
}

impl Cut {
    /// Notes that a block of this group is to be freed; false if that would be one group too many.
    fn enters(&mut self, group: Option<GroupNo>, groups_max: usize) -> bool {
        let Some(group) = group.filter(|group| !self.groups.contains(group)) else { return true };
        self.groups.len() < groups_max && self.groups.insert(group)
    }
}

/// Joins descending data blocks into runs.
fn push_freed(freed: &mut Vec<Freed>, block: u64, data: bool) {
    if !data {
        freed.push(Freed::Meta { block });
        return;
    }
    if let Some(Freed::Data { start, len }) = freed.last_mut()
        && *start == block + 1
    {
        (*start, *len) = (block, *len + 1);
        return;
    }
    freed.push(Freed::Data { start: block, len: 1 });
}
