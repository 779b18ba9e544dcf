//! The search order for the place of a page in SAF (Ahn, Kim, Kim, Oh 2011, sections 4.1 to 4.3).
//!
//! Attempts, after each file access from the first one on:
//! 1. No file block was accessed so far: the traditional swap space.
//! 2. A free slot in an area of the group `g` of the most recently accessed file block: the head is there.
//! 3. A new area in `g`.
//! 4. A free slot in an existing area, the one created last first. The search stays with that area while it has free
//!    slots, even if some become free in `g` or in a newer one: many pages leave after one file access, and alternating
//!    between areas costs the seeks that areas save. When it is full, the next older one; after the oldest, areas that
//!    were passed over and have free slots now.
//! 5. No slot in any area: a new area in `g + 1`, `g + 2`… to the volume's end. It is then the newest, and the search
//!    stays with it.
//! 6. The cluster in parts: free slots in `g`, then in the areas from the newest to the oldest.
//! 7. The traditional swap space, until the next file access.
//!
//! Pages leave in clusters, and a cluster that is torn apart costs a request for each piece, and another when the pages
//! come back: more than a short stroke of the head. So "a free slot" in 2 and 4 means free slots that lie together for
//! all pages that leave together. (The paper speaks of room that is enough for the pages, and does not mention the case
//! of less.) For a single page 6 finds nothing, and the rest is the paper's order.
//!
//! The paper describes 4 in its section 4.2 and 5 in its section 4.3, and does not say which comes first where both
//! are possible. Here an existing free slot comes before new blocks: it costs the files nothing.
//!
//! This module does not create areas: it asks the caller whether one can be created in a group, and
//! the caller creates it and asks again.

use moafs_vfs::swap_space::Group;
use moafs_vfs::types::BlockAddr;

use crate::areas::{AreaNo, Areas};

/// The most recently accessed file block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The block's address in the volume.
    pub block: BlockAddr,
    /// The block's group; `None` for a block outside of all groups.
    pub group: Option<Group>,
}

/// The next step for a page that needs a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Store it in this area: it has room.
    Area(AreaNo),
    /// Create an area in this group, or find that none can be created, and ask again.
    Create(Group),
    /// Store it in the traditional swap space.
    Traditional,
}

/// The state of the search since the last file access.
#[derive(Debug, Default)]
pub struct Search {
    access: Option<BlockAddr>,
    attempt: Attempt,
}

#[derive(Debug, Clone, Copy, Default)]
enum Attempt {
    /// Attempts 2 and 3.
    #[default]
    Near,
    /// Attempts 4 and 5: in areas of this age or older.
    Stay { age: u64 },
    /// Attempt 6: the cluster in parts.
    Pieces,
    /// Attempt 7: the traditional swap space until the next file access.
    Last,
}

impl Search {
    /// Returns the next step for `pages` pages that leave together. `can_create` returns whether it is worth trying to
    /// create an area in a group.
    pub fn next(
        &mut self,
        pages: u32,
        head: Option<Head>,
        areas: &Areas,
        can_create: impl Fn(Group) -> bool,
    ) -> Choice {
        let Some(head) = head else { return Choice::Traditional };
        if self.access != Some(head.block) {
            *self = Search { access: Some(head.block), attempt: Attempt::Near };
        }
        let pages = pages.min(areas.slots());
        if let Attempt::Near = self.attempt {
            if let Some(choice) = near(pages, head, areas, &can_create) {
                return choice;
            }
            self.attempt = Attempt::Stay { age: u64::MAX };
        }
        if let Attempt::Stay { age } = self.attempt {
            if let Some(choice) = self.stay(pages, age, head, areas, &can_create) {
                return choice;
            }
            self.attempt = Attempt::Pieces;
        }
        if let Attempt::Pieces = self.attempt {
            if let Some(area) = piece(head, areas) {
                return Choice::Area(area);
            }
            self.attempt = Attempt::Last;
        }
        Choice::Traditional
    }

    fn stay(
        &mut self,
        pages: u32,
        age: u64,
        head: Head,
        areas: &Areas,
        can_create: &impl Fn(Group) -> bool,
    ) -> Option<Choice> {
        let older = areas.newest_first().filter(|area| areas.get(*area).age <= age);
        // After the oldest, the areas that were passed over.
        if let Some(area) = older.chain(areas.newest_first()).find(|area| areas.get(*area).has_run(pages)) {
            self.attempt = Attempt::Stay { age: areas.get(area).age };
            return Some(Choice::Area(area));
        }
        let Group(g) = head.group?;
        let elsewhere = (g.saturating_add(1)..areas.groups()).map(Group).find(|group| can_create(*group))?;
        Some(Choice::Create(elsewhere))
    }

    /// Records that an area was created because this search asked for it.
    pub fn created(&mut self, areas: &Areas, area: AreaNo, head: Option<Head>) {
        let area = areas.get(area);
        let near = head.and_then(|head| head.group) == Some(area.group);
        if !near {
            self.attempt = Attempt::Stay { age: area.age };
        }
    }
}

/// Makes attempts 2 and 3.
fn near(pages: u32, head: Head, areas: &Areas, can_create: &impl Fn(Group) -> bool) -> Option<Choice> {
    let group = head.group?;
    let with_room = areas.in_group(group).find(|area| areas.get(*area).has_run(pages));
    let create = || can_create(group).then_some(Choice::Create(group));
    with_room.map(Choice::Area).or_else(create)
}

/// Makes attempt 6: finds an area with any free slot.
fn piece(head: Head, areas: &Areas) -> Option<AreaNo> {
    let near = head.group.into_iter().flat_map(|group| areas.in_group(group));
    near.chain(areas.newest_first()).find(|area| areas.get(*area).has_room())
}

#[cfg(test)]
mod tests {
    use moafs_vfs::types::BlockRun;

    use super::*;

    /// Blocks in a group of these tests; an area is two blocks at its end, a slot is one block.
    const GROUP: u64 = 100;

    fn areas() -> Areas {
        Areas::new(2, 1, 64, 20)
    }

    fn head(group: u32, block: u64) -> Option<Head> {
        Some(Head { block: BlockAddr(u64::from(group) * GROUP + block), group: Some(Group(group)) })
    }

    fn create(areas: &mut Areas, group: u32) -> AreaNo {
        let before = areas.in_group(Group(group)).count() as u64;
        let start = BlockAddr((u64::from(group) + 1) * GROUP - 2 * (before + 1));
        areas.create(Group(group), BlockRun { start, len: 2 }).unwrap()
    }

    /// Stores a page: returns its area and slot, or `None` for the traditional swap space. Groups up to `room_below`
    /// have room for areas.
    fn store(search: &mut Search, areas: &mut Areas, head: Option<Head>, room: &[u32]) -> Option<(u32, u32)> {
        loop {
            match search.next(1, head, areas, |group| room.contains(&group.0)) {
                Choice::Traditional => return None,
                Choice::Create(group) => {
                    let area = create(areas, group.0);
                    search.created(areas, area, head);
                }
                Choice::Area(area) => {
                    let (slot, _) = areas.take(area, 1).expect("it has room");
                    return Some((areas.get(area).group.0, slot));
                }
            }
        }
    }

    /// Stores a page and returns its area's number in the order of creation, from 1, as the figure
    /// counts.
    fn store_numbered(search: &mut Search, areas: &mut Areas, head: Option<Head>) -> u32 {
        match search.next(1, head, areas, |_| false) {
            Choice::Area(area) => {
                areas.take(area, 1).expect("it has room");
                area.0 + 1
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn figure_2_pages_follow_the_files() {
        let (mut search, mut areas) = (Search::default(), areas());
        let room: Vec<u32> = (0..20).collect();
        let mut store = |head| store(&mut search, &mut areas, head, &room);
        assert_eq!([store(None), store(None)], [None, None], "P1 and P2: no file was accessed yet");
        assert_eq!(store(head(10, 0)), Some((10, 0)), "P3 after F1");
        assert_eq!(store(head(11, 1)), Some((11, 0)), "P4 after F4");
        assert_eq!(store(head(11, 0)), Some((11, 1)), "P5 after F3");
    }

    #[test]
    fn figure_3_existing_areas_from_the_newest_to_the_oldest() {
        let (mut search, mut areas) = (Search::default(), areas());
        let six = [10, 10, 11, 12, 12, 12].map(|group| create(&mut areas, group));
        // Areas 1 and 2, those of group 10, are full, and so is 3 for now; 4 to 6 have two slots each.
        six[..3].iter().for_each(|area| assert_eq!(areas.take(*area, 2), Some((0, 2))));
        let here = head(10, 0);
        assert_eq!(store_numbered(&mut search, &mut areas, here), 6);
        // Slots that become free in 1, 2 and 3 meanwhile are left alone.
        six[..3].iter().for_each(|area| areas.give(*area, 0));
        let order: Vec<u32> = (0..8).map(|_| store_numbered(&mut search, &mut areas, here)).collect();
        assert_eq!(order, [6, 5, 5, 4, 4, 3, 2, 1]);
    }

    #[test]
    fn the_next_file_access_starts_again_near_the_head() {
        let (mut search, mut areas) = (Search::default(), areas());
        let [first, _second] = [10, 12].map(|group| create(&mut areas, group));
        areas.take(first, 2);
        assert_eq!(store_numbered(&mut search, &mut areas, head(10, 0)), 2);
        areas.give(first, 0);
        assert_eq!(store_numbered(&mut search, &mut areas, head(10, 1)), 1);
    }

    #[test]
    fn a_group_may_hold_several_areas() {
        let (mut search, mut areas) = (Search::default(), areas());
        for _ in 0..5 {
            assert_eq!(store(&mut search, &mut areas, head(7, 0), &[7]).map(|(group, _)| group), Some(7));
        }
        assert_eq!(areas.in_group(Group(7)).count(), 3);
    }

    #[test]
    fn an_existing_area_comes_before_a_new_one_elsewhere() {
        let (mut search, mut areas) = (Search::default(), areas());
        create(&mut areas, 3);
        let groups: Vec<u32> =
            (0..5).filter_map(|_| store(&mut search, &mut areas, head(7, 0), &[9])).map(|(group, _)| group).collect();
        assert_eq!(groups, [3, 3, 9, 9, 9]);
    }

    #[test]
    fn new_areas_are_looked_for_upwards_only_and_then_there_is_the_fallback() {
        let (mut search, mut areas) = (Search::default(), areas());
        assert_eq!(store(&mut search, &mut areas, head(7, 0), &[6]), None);
        let first = create(&mut areas, 7);
        assert_eq!(
            store(&mut search, &mut areas, head(7, 0), &[6]),
            None,
            "the fallback is kept until the next access"
        );
        assert_eq!(store(&mut search, &mut areas, head(7, 1), &[6]), Some((7, 0)));
        areas.get_mut(first).leaving = true;
        assert_eq!(store(&mut search, &mut areas, head(7, 2), &[6]), None, "what gives way takes no pages");
    }

    #[test]
    fn pages_that_leave_together_lie_together_as_long_as_there_is_a_place_for_them() {
        let (mut search, mut areas) = (Search::default(), areas());
        let [old, near] = [5, 7].map(|group| create(&mut areas, group));
        areas.take(near, 1);
        let mut next = |areas: &Areas, room: &[u32]| search.next(2, head(7, 0), areas, |group| room.contains(&group.0));
        assert_eq!(next(&areas, &[7, 9]), Choice::Create(Group(7)), "a new area near the head before a piece of one");
        assert_eq!(next(&areas, &[9]), Choice::Area(old), "an older area before a new one elsewhere");
        areas.take(old, 1);
        assert_eq!(next(&areas, &[9]), Choice::Create(Group(9)));
        assert_eq!(next(&areas, &[]), Choice::Area(near), "pieces near the head first");
        areas.take(near, 1);
        assert_eq!(next(&areas, &[]), Choice::Area(old));
        areas.take(old, 1);
        assert_eq!(next(&areas, &[]), Choice::Traditional);
    }

    #[test]
    fn a_cluster_larger_than_an_area_is_cut_to_it() {
        let (mut search, mut areas) = (Search::default(), areas());
        let area = create(&mut areas, 7);
        assert_eq!(search.next(16, head(7, 0), &areas, |_| true), Choice::Area(area));
    }

    #[test]
    fn a_block_outside_of_all_groups_is_near_nothing() {
        let (mut search, mut areas) = (Search::default(), areas());
        let outside = Some(Head { block: BlockAddr(1 << 40), group: None });
        assert_eq!(store(&mut search, &mut areas, outside, &[1, 2]), None);
        create(&mut areas, 3);
        let outside = Some(Head { block: BlockAddr(1 << 41), group: None });
        assert_eq!(store(&mut search, &mut areas, outside, &[1, 2]), Some((3, 0)));
    }
}
