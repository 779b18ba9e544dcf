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

/// Moving data for the layout's sake stops when fewer than this share of the blocks (one in so many) is free.
const MOVE_FLOOR: u64 = 20;

/// Returns the number of unpromised blocks that have to stay free when data move that need not.
pub fn move_floor(geo: &Geometry) -> u64 {
    geo.blocks / MOVE_FLOOR
}

/// A run of free blocks that a plan has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The group of all blocks.
    pub group: GroupNo,
    /// The blocks.
    pub run: BlockRun,
    /// True if the blocks were promised to the data; false for data that need not move.
    is_promised: bool,
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
    /// Blocks among the others that take the place of blocks that the data have already: no promise covers them.
    held_blocks: u64,
    /// The blocks at which the search for new files' blocks goes on, of the groups where it moves.
    pub rotors: Vec<(GroupNo, u64)>,
    /// The blocks that directories keep.
    pub windows: Vec<WindowChange>,
    /// The groups in which swap areas are in the way.
    pub contended: Vec<GroupNo>,
}

impl ChosenSpace {
    /// Returns how many of the blocks were promised to no data. They may be taken only if that many are unpromised, and
    /// [`move_floor`] more.
    pub fn unpromised_blocks(&self) -> u64 {
        let claims = self.claims.iter().filter(|claim| !claim.is_promised);
        self.held_blocks + claims.map(|claim| u64::from(claim.run.len)).sum::<u64>()
    }

    /// Returns true if the runs are as many blocks as get new places.
    pub fn is_of(&self, writes: &[PlannedWrite]) -> bool {
        let chosen: u64 = self.claims.iter().map(|claim| u64::from(claim.run.len)).sum();
        let fresh = writes.iter().filter(|write| write.fresh);
        chosen == fresh.map(|write| u64::from(write.to.len)).sum::<u64>()
    }
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

    /// Chooses at most `want` contiguous free blocks of one group, if it has any, for data to which they were promised.
    pub fn choose(&mut self, group: GroupNo, fit: Fit, want: u32) -> Result<Option<BlockRun>> {
        self.search(group, fit, want, true)
    }

    /// Chooses blocks for data that have a place and could have a better one, if they can be
    /// [spared](Self::can_spare). No swap area moves away for them.
    pub fn choose_better(&mut self, group: GroupNo, fit: Fit, want: u32) -> Result<Option<BlockRun>> {
        if self.can_spare(want) { self.search(group, fit, want, false) } else { Ok(None) }
    }

    fn search(&mut self, group: GroupNo, fit: Fit, want: u32, is_promised: bool) -> Result<Option<BlockRun>> {
        let mut map = match self.groups.remove(&group) {
            Some(map) => map,
            None => match self.free.free_map(group)? {
                Some(map) => map,
                None => return Ok(None),
            },
        };
        let found = map.find(fit, want);
        if is_promised && map.is_contended(fit, want, found) && !self.plan.space.contended.contains(&group) {
            self.plan.space.contended.push(group);
        }
        if let Some(run) = found {
            map.take(run, fit);
            self.chosen_blocks += u64::from(run.len);
            self.plan.space.claims.push(Claim { group, run, is_promised });
        }
        // Maps without a change are not kept: a plan may look at all groups of a large volume.
        if map.is_changed() {
            self.groups.insert(group, map);
        }
        Ok(found)
    }

    /// Returns true if `blocks` blocks are promised to no data and [`move_floor`] more stay free.
    pub fn can_spare(&self, blocks: u32) -> bool {
        let spare = self.free.spare_blocks().saturating_sub(self.chosen_blocks + self.plan.space.held_blocks);
        spare >= move_floor(self.geometry()) + u64::from(blocks)
    }

    /// Holds `blocks` blocks, if they can be [spared](Self::can_spare): that many more can be chosen than were promised
    /// to the data.
    pub fn hold(&mut self, blocks: u32) -> bool {
        let can_spare = self.can_spare(blocks);
        if can_spare {
            self.plan.space.held_blocks += u64::from(blocks);
        }
        can_spare
    }

    /// Gives back the end of the run that was chosen last. New files go on there, unless it is `kept` for some.
    pub fn give_back(&mut self, rest: BlockRun, kept: bool) {
        let Some(last) = self.plan.space.claims.last_mut().filter(|_| rest.len > 0) else { return };
        debug_assert_eq!(last.run.end(), rest.end(), "not the run that was chosen last");
        let group = last.group;
        last.run.len -= rest.len;
        if last.run.len == 0 {
            self.plan.space.claims.pop();
        }
        self.chosen_blocks -= u64::from(rest.len);
        if let Some(map) = self.groups.get_mut(&group) {
            map.give_back(rest, kept);
        }
    }

    /// Returns true if blocks, all of one group, are free.
    pub fn is_free(&self, run: BlockRun) -> Result<bool> {
        let group = self.geometry().group_of_block(BlockNo(run.start.0));
        match group.and_then(|group| self.groups.get(&group)) {
            Some(map) => Ok(map.is_free(run)),
            None => self.free.is_free(run),
        }
    }

    /// Returns the block at which the search for new files' blocks of a group goes on.
    pub fn rotor(&self, group: GroupNo) -> u64 {
        self.groups.get(&group).map_or_else(|| self.free.rotor(group), FreeMap::rotor)
    }

    /// Returns the number of blocks of a group that may be handed out.
    pub fn free_blocks(&self, group: GroupNo) -> u32 {
        self.groups.get(&group).map_or_else(|| self.free.counts(group).free_blocks, FreeMap::free_blocks)
    }

    /// Returns the number of blocks that are free, or being freed, and not promised.
    pub fn available_blocks(&self) -> u64 {
        self.free.available_blocks().saturating_sub(self.chosen_blocks + self.plan.space.held_blocks)
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
