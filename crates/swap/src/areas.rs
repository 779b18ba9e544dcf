//! Swap areas (the cgSwap areas of Ahn, Kim, Kim, Oh 2011): their positions, their slots, and the order of their
//! creation.
//!
//! An area is a run of blocks within one group with a tree of its own free slots ([`Slots`]). Each group has the list
//! of its areas, and all areas are in one list in the order of their creation (the paper's Fig. 4). The choice of a
//! page's area is made in [`crate::places`].
//!
//! All areas have the same number of slots, decided when the swap is opened: 32 MiB (the paper's best by experiment),
//! but
//! * at most a quarter of a group: its files need space there as well, and ext2 groups are 8 MiB with 1 KiB blocks;
//! * at most an eighth of the swap: a small swap could not follow the head with one area.
//!
//! An area that is being vacated (`leaving`) takes no more pages, and its free blocks are given back piece by piece.
//!
//! All memory is allocated at once, for as many areas as the reserved blocks can make and some that are being vacated.

use moafs_runtime::Time;
use moafs_vfs::swap_space::Group;
use moafs_vfs::types::{BlockAddr, BlockRun};

use crate::slots::Slots;

/// The number of an entry in the table of areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaNo(pub u32);

impl AreaNo {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Areas beyond those the reserved blocks can make: an area being vacated counts until its last page has moved.
const LEAVING_MAX: u32 = 16;

/// The inverse of an area's largest share of its group.
const GROUP_SHARE: u32 = 4;

/// The least number of areas that a swap consists of.
const SWAP_SHARE: u32 = 8;

/// Returns the number of slots in an area.
pub fn area_slots(wanted: u64, group_slots: u32, swap_slots: u32) -> u32 {
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).max(1);
    wanted.min(group_slots / GROUP_SHARE).min((swap_slots / SWAP_SHARE).max(1))
}

/// A swap area: a run of blocks in one group.
#[derive(Debug)]
pub struct Area {
    /// The group the area lies in.
    pub group: Group,
    /// The area's blocks when it was created.
    pub run: BlockRun,
    /// The number of areas created before it.
    pub age: u64,
    /// The number of slots whose blocks the area still has.
    pub held: u32,
    /// The number of those slots that could not be written.
    pub spoiled: u32,
    /// True while the area is being vacated.
    pub leaving: bool,
    /// The time since which the area is known to have no pages; `None` while it has some.
    pub idle_since: Option<Time>,
    free: Slots,
    older: u32,
    newer: u32,
    next_in_group: u32,
}

impl Area {
    /// Returns the number of slots in use.
    pub fn used(&self) -> u32 {
        self.held - self.spoiled - self.free.free_count()
    }

    /// Returns true if the area has a free slot and takes pages.
    pub fn has_room(&self) -> bool {
        !self.leaving && self.free.free_count() > 0
    }

    /// Returns true if `pages` pages fit together in adjacent slots.
    pub fn has_run(&self, pages: u32) -> bool {
        !self.leaving && self.free.has_run(pages)
    }

    /// Returns true if the area has a free slot, also while it is being vacated.
    pub fn has_free(&self) -> bool {
        self.free.free_count() > 0
    }
}

/// The areas of a swap, in lists by group and by creation.
#[derive(Debug)]
pub struct Areas {
    table: Vec<Area>,
    /// Table entries without an area.
    vacant: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// The newest area of each group.
    by_group: Vec<u32>,
    slots: u32,
    granule: u32,
    created: u64,
    live: u32,
}

impl Areas {
    /// Makes an empty table for areas of `slots` slots of `granule` blocks each. It has room for as many areas as
    /// `swap_slots` slots make.
    pub fn new(slots: u32, granule: u32, swap_slots: u32, groups: u32) -> Areas {
        let count = swap_slots.checked_div(slots).map_or(0, |full| full + LEAVING_MAX);
        let entry = |_| Area {
            group: Group(0),
            run: BlockRun { start: BlockAddr(0), len: 0 },
            age: 0,
            held: 0,
            spoiled: 0,
            leaving: false,
            idle_since: None,
            free: Slots::used(slots),
            older: NONE,
            newer: NONE,
            next_in_group: NONE,
        };
        Areas {
            table: (0..count).map(entry).collect(),
            vacant: (0..count).rev().collect(),
            newest: NONE,
            oldest: NONE,
            by_group: vec![NONE; if count > 0 { groups as usize } else { 0 }],
            slots,
            granule,
            created: 0,
            live: 0,
        }
    }

    /// Returns the number of slots in an area.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of blocks in an area.
    pub fn blocks(&self) -> u32 {
        self.slots * self.granule
    }

    /// Returns the number of slot numbers of all table entries.
    pub fn numbers(&self) -> u64 {
        self.table.len() as u64 * u64::from(self.slots)
    }

    /// Returns the number of groups in which areas can be created.
    pub fn groups(&self) -> u32 {
        self.by_group.len() as u32
    }

    /// Returns the number of existing areas.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Returns true if there is room for one more area.
    pub fn has_vacancy(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Returns an area by number.
    pub fn get(&self, area: AreaNo) -> &Area {
        &self.table[area.index()]
    }

    /// Returns an area by number, for changes.
    pub fn get_mut(&mut self, area: AreaNo) -> &mut Area {
        &mut self.table[area.index()]
    }

    /// Adds an area over a run of [`Areas::blocks`], all slots free; `None` if the table is full.
    pub fn create(&mut self, group: Group, run: BlockRun) -> Option<AreaNo> {
        debug_assert_eq!(run.len, self.blocks());
        let head = self.by_group.get_mut(group.index())?;
        let no = self.vacant.pop()?;
        let area = &mut self.table[no as usize];
        (area.group, area.run, area.age, area.held, area.spoiled) = (group, run, self.created, self.slots, 0);
        (area.leaving, area.idle_since) = (false, None);
        debug_assert!(!area.has_free());
        area.free.give(0..self.slots);
        area.next_in_group = std::mem::replace(head, no);
        (area.older, area.newer) = (self.newest, NONE);
        match self.table.get_mut(self.newest as usize) {
            Some(before) => before.newer = no,
            None => self.oldest = no,
        }
        self.newest = no;
        self.created += 1;
        self.live += 1;
        Some(AreaNo(no))
    }

    /// Removes an area that has no blocks any more.
    ///
    /// # Panics
    /// If the area still has blocks.
    pub fn remove(&mut self, area: AreaNo) {
        let (held, group, older, newer, next) = {
            let gone = self.get(area);
            (gone.held, gone.group, gone.older, gone.newer, gone.next_in_group)
        };
        assert_eq!(held, 0, "area {} still has slots", area.0);
        match self.table.get_mut(newer as usize) {
            Some(after) => after.older = older,
            None => self.newest = older,
        }
        match self.table.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        let before = self.in_group(group).find(|other| self.get(*other).next_in_group == area.0);
        match before {
            Some(before) => self.get_mut(before).next_in_group = next,
            None => self.by_group[group.index()] = next,
        }
        self.vacant.push(area.0);
        self.live -= 1;
    }

    /// Returns the areas of a group, newest first.
    pub fn in_group(&self, group: Group) -> impl Iterator<Item = AreaNo> {
        let first = self.by_group.get(group.index()).copied().unwrap_or(NONE);
        self.follow(first, |area| area.next_in_group)
    }

    /// Returns all areas, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = AreaNo> {
        self.follow(self.newest, |area| area.older)
    }

    /// Returns all areas, oldest first.
    pub fn oldest_first(&self) -> impl Iterator<Item = AreaNo> {
        self.follow(self.oldest, |area| area.newer)
    }

    /// Returns the area that was created next.
    pub fn newer_than(&self, area: AreaNo) -> Option<AreaNo> {
        let newer = self.get(area).newer;
        (newer != NONE).then_some(AreaNo(newer))
    }

    /// Returns the area of the same group that was created before.
    pub fn next_in_group(&self, area: AreaNo) -> Option<AreaNo> {
        let next = self.get(area).next_in_group;
        (next != NONE).then_some(AreaNo(next))
    }

    fn follow(&self, first: u32, next: impl Fn(&Area) -> u32) -> impl Iterator<Item = AreaNo> {
        let entry = |no: u32| self.table.get(no as usize).map(|_| AreaNo(no));
        std::iter::successors(entry(first), move |no| entry(next(self.get(*no))))
    }

    /// Takes a run of up to `want` free slots. Returns the first one's index in the area, and how many.
    pub fn take(&mut self, area: AreaNo, want: u32) -> Option<(u32, u32)> {
        let area = self.get_mut(area);
        let run = area.free.take(want)?;
        area.idle_since = None;
        Some((run.start, run.end - run.start))
    }

    /// Frees a slot of its area.
    pub fn give(&mut self, area: AreaNo, slot: u32) {
        self.get_mut(area).free.give(slot..slot + 1);
    }

    /// Removes an area's first free run of slots and returns its blocks, to be given back.
    pub fn detach_free(&mut self, area: AreaNo) -> Option<BlockRun> {
        let run = self.get_mut(area).free.take(u32::MAX)?;
        Some(self.detach(area, run.start, run.end - run.start))
    }

    /// Removes slots that are neither free nor owned from an area; returns their blocks.
    pub fn detach(&mut self, area: AreaNo, slot: u32, count: u32) -> BlockRun {
        let granule = self.granule;
        let area = self.get_mut(area);
        area.held -= count;
        BlockRun { start: area.run.start + u64::from(slot) * u64::from(granule), len: count * granule }
    }

    /// Returns the first block of a slot.
    pub fn block_of(&self, area: AreaNo, slot: u32) -> BlockAddr {
        BlockAddr(self.get(area).run.start.0 + u64::from(slot) * u64::from(self.granule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64) -> BlockRun {
        BlockRun { start: BlockAddr(start), len: 8 }
    }

    fn order(areas: &Areas) -> Vec<u32> {
        areas.newest_first().map(|area| area.0).collect()
    }

    #[test]
    fn lists_follow_creation_and_group() {
        let mut areas = Areas::new(4, 2, 16, 20);
        let [a, b, c] =
            [(10, 0), (11, 100), (10, 200)].map(|(group, start)| areas.create(Group(group), run(start)).unwrap());
        assert_eq!(order(&areas), [c.0, b.0, a.0]);
        assert_eq!(areas.in_group(Group(10)).collect::<Vec<_>>(), [c, a]);
        assert_eq!(areas.in_group(Group(19)).count() + areas.in_group(Group(99)).count(), 0);
        assert_eq!(areas.detach_free(b), Some(run(100)));
        areas.remove(b);
        assert_eq!(order(&areas), [c.0, a.0]);
        assert_eq!(areas.oldest_first().collect::<Vec<_>>(), [a, c]);
        assert_eq!((areas.live(), areas.in_group(Group(11)).count()), (2, 0));
        assert_eq!(areas.detach_free(c), Some(run(200)));
        areas.remove(c);
        assert_eq!(areas.in_group(Group(10)).collect::<Vec<_>>(), [a]);
    }

    #[test]
    fn slots_lie_one_after_another() {
        let mut areas = Areas::new(4, 2, 16, 20);
        let area = areas.create(Group(3), run(64)).unwrap();
        assert_eq!(areas.take(area, 3), Some((0, 3)));
        assert_eq!(areas.block_of(area, 2), BlockAddr(68));
        assert_eq!(areas.take(area, 3), Some((3, 1)));
        assert!(!areas.get(area).has_room());
        areas.give(area, 1);
        assert_eq!(areas.get(area).used(), 3);
        assert_eq!(areas.detach_free(area), Some(BlockRun { start: BlockAddr(66), len: 2 }));
        assert_eq!((areas.get(area).used(), areas.get(area).held), (3, 3));
    }

    #[test]
    fn sizes_are_capped_by_the_group_and_by_the_swap() {
        assert_eq!(area_slots(8192, 128 << 8, 1 << 20), 8192);
        assert_eq!(area_slots(8192, 2000, 1 << 20), 500);
        assert_eq!(area_slots(8192, 32_000, 1024), 128);
        assert_eq!(area_slots(0, 32_000, 4), 1);
        assert_eq!(area_slots(8192, 3, 1024), 0);
    }
}
