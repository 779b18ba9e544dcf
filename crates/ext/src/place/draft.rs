//! A plan in the making: the free space as it is, less what the plan has chosen already.
//!
//! Nothing is taken from the volume while a plan is made. The engine claims the blocks of a finished plan, all or
//! none of them; if another task was faster with one of them it asks for another plan.

use std::collections::BTreeMap;

use moafs_vfs::Result;
use moafs_vfs::plan::PlannedWrite;
use moafs_vfs::types::{BlockRun, Ino};

use super::free_space::FreeSpace;
use super::windows::Window;
use crate::alloc::{Fit, FreeMap};
use crate::format::{BlockNo, Geometry, GroupNo};

/// A run of free blocks that a plan has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The blocks.
    pub run: BlockRun,
    /// For data that need not move: so many blocks that are promised to nobody have to stay free. `None`: the blocks are
    /// paid for by a promise.
    pub spare: Option<u64>,
}

/// A change of the blocks that a directory keeps for its next files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowChange {
    /// The directory.
    pub directory: Ino,
    /// Blocks that were placed for the directory.
    pub placed: u32,
    /// The blocks that it keeps from now on.
    pub rest: Option<BlockRun>,
}

/// The space that a plan has chosen, and what changes in the volume's memory of it once it is claimed.
#[derive(Debug, Default)]
pub struct ChosenSpace {
    /// The runs, in the order of their choice.
    pub claims: Vec<Claim>,
    /// The blocks at which the search for new files' blocks goes on, of the groups where it moves.
    pub rotors: Vec<(GroupNo, u64)>,
    /// The blocks that directories keep.
    pub windows: Vec<WindowChange>,
    /// The groups in which swap areas are in the way.
    pub contended: Vec<GroupNo>,
}

/// The file ranges that are written together, one device request each, and the space that they take.
#[derive(Debug, Default)]
pub struct WritePlan {
    /// The planned writes, in the order in which they should be placed.
    pub writes: Vec<PlannedWrite>,
    /// The space for those that get new blocks.
    pub space: ChosenSpace,
}

/// A plan in the making.
pub struct Draft<'a> {
    free: &'a dyn FreeSpace,
    /// The groups in which blocks were chosen.
    groups: BTreeMap<GroupNo, FreeMap>,
    /// The number of blocks chosen.
    chosen_blocks: u64,
    /// The windows that change.
    windows: BTreeMap<Ino, Window>,
    plan: WritePlan,
}

impl<'a> Draft<'a> {
    /// Begins an empty plan.
    pub fn new(free: &'a dyn FreeSpace) -> Draft<'a> {
        Draft { free, groups: BTreeMap::new(), chosen_blocks: 0, windows: BTreeMap::new(), plan: WritePlan::default() }
    }

    /// Returns the volume's geometry.
    pub fn geometry(&self) -> &'a Geometry {
        self.free.geometry()
    }

    /// Returns the largest device request, in blocks.
    pub fn transfer_blocks(&self) -> u32 {
        self.free.transfer_blocks()
    }

    /// Adds planned writes.
    pub fn write(&mut self, writes: impl IntoIterator<Item = PlannedWrite>) {
        self.plan.writes.extend(writes);
    }

    /// Returns the finished plan.
    pub fn finish(mut self) -> WritePlan {
        let moved = |(group, map): (&GroupNo, &FreeMap)| map.moved_rotor().map(|rotor| (*group, rotor));
        self.plan.space.rotors = self.groups.iter().filter_map(moved).collect();
        self.plan
    }

    // -- space

    /// Chooses at most `want` contiguous free blocks of one group, if it has any; a promise has paid for them.
    pub fn choose(&mut self, group: GroupNo, fit: Fit, want: u32) -> Result<Option<BlockRun>> {
        self.search(group, fit, want, None)
    }

    /// Chooses blocks for data that have a place and could have a better one: no promise is needed if `spare` blocks
    /// stay free, and no swap area moves away for them.
    pub fn choose_better(&mut self, group: GroupNo, fit: Fit, want: u32, spare: u64) -> Result<Option<BlockRun>> {
        let enough = self.spare_blocks() >= spare + u64::from(want);
        if enough { self.search(group, fit, want, Some(spare)) } else { Ok(None) }
    }

    fn search(&mut self, group: GroupNo, fit: Fit, want: u32, spare: Option<u64>) -> Result<Option<BlockRun>> {
        let mut map = match self.groups.remove(&group) {
            Some(map) => map,
            None if self.free.is_full(group) => return Ok(None),
            None => self.free.free_map(group)?,
        };
        let found = if map.free_blocks() > 0 { map.find(fit, want) } else { None };
        if spare.is_none() && map.is_contended(fit, want, found) && !self.plan.space.contended.contains(&group) {
            self.plan.space.contended.push(group);
        }
        if let Some(run) = found {
            map.take(run, fit);
            self.chosen_blocks += u64::from(run.len);
            self.plan.space.claims.push(Claim { run, spare });
        }
        if map.is_changed() {
            self.groups.insert(group, map);
        }
        Ok(found)
    }

    /// Gives back the end of the run that was chosen last. New files go on there, unless it is `kept` for some.
    pub fn give_back(&mut self, rest: BlockRun, kept: bool) {
        let Some(last) = self.plan.space.claims.last_mut().filter(|_| rest.len > 0) else { return };
        debug_assert_eq!(last.run.end(), rest.end(), "not the run that was chosen last");
        last.run.len -= rest.len;
        if last.run.len == 0 {
            self.plan.space.claims.pop();
        }
        self.chosen_blocks -= u64::from(rest.len);
        let group = self.geometry().group_of_block(BlockNo(rest.start.0));
        if let Some(map) = group.and_then(|group| self.groups.get_mut(&group)) {
            map.give_back(rest, kept);
        }
    }

    /// Returns true if blocks, all of one group, are free.
    pub fn is_free(&self, run: BlockRun) -> Result<bool> {
        let Some((group, bit)) = self.geometry().bit_of_block(BlockNo(run.start.0)) else { return Ok(false) };
        if bit.saturating_add(run.len) > self.geometry().group_blocks(group) {
            return Ok(false);
        }
        match self.groups.get(&group) {
            Some(map) => Ok(map.is_free(run)),
            None => Ok(self.free.free_map(group)?.is_free(run)),
        }
    }

    /// Returns the block at which the search for new files' blocks of a group goes on.
    pub fn rotor(&self, group: GroupNo) -> u64 {
        self.groups.get(&group).map_or_else(|| self.free.rotor(group), FreeMap::rotor)
    }

    /// Returns the number of blocks of a group that may be handed out.
    pub fn free_blocks(&self, group: GroupNo) -> u32 {
        self.groups.get(&group).map_or_else(|| self.free.counts(group).free_blocks, FreeMap::usable_blocks)
    }

    /// Returns the number of blocks that are free, or being freed, and not promised.
    pub fn available_blocks(&self) -> u64 {
        self.free.available_blocks().saturating_sub(self.chosen_blocks)
    }

    /// Returns the number of blocks that are free now and not promised.
    pub fn spare_blocks(&self) -> u64 {
        self.free.spare_blocks().saturating_sub(self.chosen_blocks)
    }

    /// Returns the first block of a group's zone for directories and first indirect blocks.
    pub fn zone_start(&self, group: GroupNo) -> u64 {
        self.free.zone(group).start
    }

    // -- windows

    /// Returns the blocks that a directory keeps for its next files.
    pub fn window(&self, directory: Ino) -> Window {
        self.windows.get(&directory).copied().unwrap_or_else(|| self.free.window(directory))
    }

    /// Notes that `placed` more blocks were placed for a directory, and that it keeps `rest` for its next files.
    pub fn keep_window(&mut self, directory: Ino, placed: u32, rest: Option<BlockRun>) {
        let mut window = self.window(directory);
        window.change(placed, rest);
        self.windows.insert(directory, window);
        self.plan.space.windows.push(WindowChange { directory, placed, rest });
    }
}
