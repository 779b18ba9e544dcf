//! The space that the dirty pages of one file may still take on the volume: their own blocks, and the map blocks that
//! lead to them.
//!
//! Neighbours share map blocks, so the worst case of a file's dirty set is counted, not that of each write: a map
//! block counts once, as long as a page below it has no place, and not any more once a page below it was placed, since
//! it exists then. The promise that covers this grows and shrinks with the set, block by block.
//!
//! The promise counts every map block that may be missing; `st_blocks` only those that are known to be missing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use smallvec::SmallVec;

use crate::types::{Lbn, LbnRange};

/// The shape of a file's map: some addresses lie in the inode, the others in trees of map blocks, one tree after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape {
    /// File blocks whose address lies in the inode.
    pub direct: u64,
    /// Addresses, or pointers to map blocks, in a map block.
    pub fan: u64,
    /// The height of each tree, in levels of map blocks.
    pub trees: &'static [u8],
}

impl MapShape {
    /// The shape of a map without map blocks.
    pub const FLAT: MapShape = MapShape { direct: u64::MAX, fan: 1, trees: &[] };

    /// Returns the map blocks that lead to a file block, the lowest first.
    fn keys(&self, at: Lbn) -> SmallVec<[MapKey; 3]> {
        self.path(at).0
    }

    /// Returns the map blocks that lead to a file block, the lowest first, and the first file block behind those of the
    /// lowest one.
    fn path(&self, at: Lbn) -> (SmallVec<[MapKey; 3]>, u64) {
        if at.0 < self.direct {
            return (SmallVec::new(), self.direct);
        }
        let mut first = self.direct;
        for (tree, &height) in self.trees.iter().enumerate() {
            let span = self.fan.saturating_pow(height.into());
            let within = at.0 - first;
            if within < span {
                let key = |level: u8| MapKey { tree: tree as u8, level, index: within / self.fan.pow(level.into()) };
                return ((1..=height).map(key).collect(), first + (within / self.fan + 1) * self.fan);
            }
            first = first.saturating_add(span);
        }
        (SmallVec::new(), u64::MAX)
    }
}

/// The position of a map block in a file's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MapKey {
    tree: u8,
    /// The level in its tree: 1 for map blocks that hold addresses of file blocks.
    level: u8,
    index: u64,
}

/// A map block above file blocks without a place.
#[derive(Debug, Clone, Copy)]
struct MapEntry {
    /// File blocks without a place, or map blocks with entries of their own, directly below.
    children: u64,
    existence: Existence,
}

/// The knowledge about a map block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existence {
    Unknown,
    Missing,
    /// It exists, or an op that will make it has the promise for it.
    Exists,
}

/// The number of map blocks above a part of a file that are missing, counted from the lowest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missing {
    /// Any block of a part of the file, all of which has the same lowest map block.
    pub(crate) at: Lbn,
    pub(crate) levels: u8,
}

/// The file blocks without a place, and the map blocks above them.
#[derive(Debug)]
pub(crate) struct Unplaced {
    shape: MapShape,
    blocks: u64,
    /// File blocks for which a block of the volume has been taken: they need no promise.
    allocated: u64,
    /// Map blocks in `maps` of which is not known whether they exist.
    unknown: u64,
    /// Map blocks in `maps` that are known to be missing.
    missing: u64,
    maps: BTreeMap<MapKey, MapEntry>,
}

impl Default for Unplaced {
    fn default() -> Self {
        Unplaced { shape: MapShape::FLAT, blocks: 0, allocated: 0, unknown: 0, missing: 0, maps: BTreeMap::new() }
    }
}

impl Unplaced {
    /// Returns the number of file blocks without a place.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the most blocks that placing all of them can take.
    pub(crate) fn promise(&self) -> u64 {
        self.blocks - self.allocated + self.unknown + self.missing
    }

    /// Returns the blocks that the file will have beside those that it maps now, as far as that is known.
    pub(crate) fn expected(&self) -> u64 {
        self.blocks + self.missing
    }

    /// Sets the shape of the file's map, if no block depends on the old one.
    pub(crate) fn set_shape(&mut self, shape: MapShape) {
        debug_assert!(self.blocks == 0 || self.shape == shape, "the shape of a map does not change");
        if self.blocks == 0 {
            self.shape = shape;
        }
    }

    /// Splits a range where the lowest map block changes; leaves out the part that needs no map block.
    pub(crate) fn parts(&self, range: LbnRange) -> SmallVec<[LbnRange; 4]> {
        let mut parts = SmallVec::new();
        let mut at = range.start;
        while at < range.end() {
            let (path, end) = self.shape.path(at);
            let end = Lbn(end.min(range.end().0));
            if !path.is_empty() {
                parts.push(LbnRange { start: at, len: (end - at) as u32 });
            }
            at = end;
        }
        parts
    }

    /// Returns how many map blocks a set of file blocks, one of each of these parts in ascending order, would add.
    /// `missing` says which of them are missing, if known, in the same order.
    pub(crate) fn more_maps(&self, parts: impl IntoIterator<Item = Lbn>, missing: &[Missing]) -> u64 {
        let mut before: SmallVec<[MapKey; 3]> = SmallVec::new();
        let mut more = 0;
        for at in parts {
            let (path, _) = self.shape.path(at);
            let levels = missing.iter().find(|known| self.shape.keys(known.at).first() == path.first());
            let levels = levels.map_or(u8::MAX, |known| known.levels);
            let new = path.iter().take_while(|key| !self.maps.contains_key(key) && !before.contains(key));
            more += new.filter(|key| key.level <= levels).count() as u64;
            before = path;
        }
        more
    }

    /// Adds a file block without a place that became dirty.
    pub(crate) fn add(&mut self, at: Lbn) {
        self.blocks += 1;
        for key in self.shape.keys(at) {
            match self.maps.entry(key) {
                Entry::Occupied(mut there) => {
                    there.get_mut().children += 1;
                    return;
                }
                Entry::Vacant(absent) => {
                    absent.insert(MapEntry { children: 1, existence: Existence::Unknown });
                    self.recount(None, Some(Existence::Unknown));
                }
            }
        }
    }

    /// Returns true if the lowest map block above `at` leads to a block without a place.
    pub(crate) fn has_map(&self, at: Lbn) -> bool {
        self.shape.keys(at).first().is_some_and(|lowest| self.maps.contains_key(lowest))
    }

    /// Notes which map blocks exist and which are missing.
    pub(crate) fn note_missing(&mut self, known: &[Missing]) {
        for known in known.iter().filter(|known| known.levels < u8::MAX) {
            for key in &self.shape.keys(known.at) {
                if key.level > known.levels {
                    self.note_exists(key);
                } else {
                    self.note(key, Existence::Missing, |before| before == Existence::Unknown);
                }
            }
        }
    }

    fn note_exists(&mut self, key: &MapKey) {
        self.note(key, Existence::Exists, |_| true);
    }

    /// Replaces what is known of a map block, if that is to be replaced.
    fn note(&mut self, key: &MapKey, now: Existence, is_replaced: impl Fn(Existence) -> bool) {
        if let Some(entry) = self.maps.get_mut(key).filter(|entry| is_replaced(entry.existence)) {
            let before = std::mem::replace(&mut entry.existence, now);
            self.recount(Some(before), Some(now));
        }
    }

    /// Counts a map block that was counted as `before`; `None` if it has no entry.
    fn recount(&mut self, before: Option<Existence>, now: Option<Existence>) {
        let is = |existence, wanted| u64::from(existence == Some(wanted));
        self.unknown = self.unknown + is(now, Existence::Unknown) - is(before, Existence::Unknown);
        self.missing = self.missing + is(now, Existence::Missing) - is(before, Existence::Missing);
    }

    /// Notes that a block of the volume was taken for a file block without a place.
    pub(crate) fn allocate(&mut self) {
        self.allocated += 1;
    }

    /// Removes a file block that has got its place; `allocated` if a block was taken for it before. Returns how many
    /// blocks less are promised: that block, and the map blocks that exist now.
    pub(crate) fn place(&mut self, at: Lbn, allocated: bool) -> u64 {
        let before = self.promise();
        for key in &self.shape.keys(at) {
            self.note_exists(key);
        }
        self.remove(at, allocated);
        before - self.promise()
    }

    /// Removes a file block that is dropped; `allocated` if a block was taken for it.
    pub(crate) fn remove(&mut self, at: Lbn, allocated: bool) {
        self.blocks -= 1;
        self.allocated -= u64::from(allocated);
        for key in self.shape.keys(at) {
            let Entry::Occupied(mut there) = self.maps.entry(key) else {
                debug_assert!(false, "{key:?} leads to a block without a place");
                return;
            };
            there.get_mut().children -= 1;
            if there.get().children > 0 {
                return;
            }
            let gone = there.remove();
            self.recount(Some(gone.existence), None);
        }
    }

    /// Returns the map blocks that lead both to blocks before and to blocks behind one of the ends of `from..to`:
    /// unmapping that range may free them, though a block below them still has no place.
    fn at_edges(&self, from: Lbn, to: Lbn) -> SmallVec<[MapKey; 6]> {
        let mut keys: SmallVec<[MapKey; 6]> = SmallVec::new();
        for edge in [from, to].into_iter().filter(|edge| *edge > Lbn(0) && *edge < Lbn::MAX) {
            let (before, behind) = (self.shape.keys(edge.saturating_sub(1)), self.shape.keys(edge));
            let both = before.iter().filter(|key| behind.contains(key) && self.maps.contains_key(key));
            for key in both {
                if !keys.contains(key) {
                    keys.push(*key);
                }
            }
        }
        keys
    }

    /// Returns the most blocks that [`Self::forget_edges`] adds to the promise.
    pub(crate) fn edges(&self, from: Lbn, to: Lbn) -> u64 {
        self.at_edges(from, to).len() as u64
    }

    /// Marks map blocks at the ends of `from..to` as possibly missing, before that range is unmapped. Returns by how
    /// many blocks the promise has grown.
    pub(crate) fn forget_edges(&mut self, from: Lbn, to: Lbn) -> u64 {
        let before = self.promise();
        for key in self.at_edges(from, to) {
            self.note(&key, Existence::Unknown, |before| before == Existence::Exists);
        }
        self.promise() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MapShape = MapShape { direct: 2, fan: 4, trees: &[1, 2, 3] };

    impl Unplaced {
        /// Returns the map blocks that are promised.
        fn map_blocks(&self) -> u64 {
            self.promise() - self.blocks
        }
    }

    fn unplaced(blocks: impl IntoIterator<Item = u64>) -> Unplaced {
        let mut unplaced = Unplaced::default();
        unplaced.set_shape(SHAPE);
        blocks.into_iter().for_each(|at| unplaced.add(Lbn(at)));
        unplaced
    }

    #[test]
    fn neighbours_share_map_blocks() {
        assert_eq!(unplaced([0, 1]).promise(), 2, "addresses in the inode");
        assert_eq!(unplaced([2, 5]).promise(), 3, "the first tree has one map block");
        assert_eq!(unplaced([6]).promise(), 3, "the second has two levels");
        assert_eq!(unplaced([6, 9, 10, 21]).promise(), 4 + 3 + 1);
        assert_eq!(unplaced([22, 85]).promise(), 2 + 3 + 2, "the top of the third is shared");
    }

    #[test]
    fn what_a_write_adds_is_told_before() {
        let all = unplaced([6, 22]);
        let range = LbnRange { start: Lbn(0), len: 40 };
        let parts = all.parts(range);
        assert_eq!(parts.iter().map(|part| part.start.0).collect::<Vec<_>>(), [2, 6, 10, 14, 18, 22, 26, 30, 34, 38]);
        let starts = || parts.iter().map(|part| part.start);
        let mut after = unplaced([6, 22]);
        (0..40).filter(|at| ![6, 22].contains(at)).for_each(|at| after.add(Lbn(at)));
        assert_eq!(all.more_maps(starts(), &[]), after.map_blocks() - all.map_blocks());
        let known = [Missing { at: Lbn(10), levels: 0 }, Missing { at: Lbn(26), levels: 1 }];
        assert_eq!(all.more_maps(starts(), &known), after.map_blocks() - all.map_blocks() - 1);
        after.note_missing(&known);
        assert_eq!(after.map_blocks(), unplaced(0..40).map_blocks() - 4, "10's two, and two above 26's");
    }

    #[test]
    fn only_map_blocks_that_are_known_to_be_missing_are_expected() {
        let mut all = unplaced([1, 6, 10, 22]);
        assert_eq!((all.promise(), all.expected()), (4 + 3 + 3, 4), "nothing is known of any map block");
        let known = |at, levels| Missing { at: Lbn(at), levels };
        all.note_missing(&[known(6, 1), known(10, 0), known(22, u8::MAX)]);
        assert_eq!((all.promise(), all.expected()), (4 + 1 + 3, 4 + 1), "that of block 6 is missing");
        all.note_missing(&[known(22, 3)]);
        assert_eq!((all.promise(), all.expected()), (4 + 1 + 3, 4 + 1 + 3));
        all.place(Lbn(6), false);
        assert_eq!((all.promise(), all.expected()), (3 + 3, 3 + 3));
        all.forget_edges(Lbn(9), Lbn(10));
        assert_eq!((all.promise(), all.expected()), (3 + 1 + 3, 3 + 3), "unmapping may free the top of the tree");
    }

    #[test]
    fn what_was_placed_needs_its_maps_no_more() {
        let mut all = unplaced([6, 7, 10]);
        assert_eq!(all.promise(), 3 + 3);
        assert_eq!(all.place(Lbn(6), false), 3, "itself and two levels");
        assert_eq!(all.promise(), 2 + 1);
        assert_eq!(all.place(Lbn(10), false), 2, "itself and the lowest level");
        assert_eq!(all.promise(), 1);
        assert_eq!(all.place(Lbn(7), false), 1);
        assert_eq!((all.promise(), all.maps.len()), (0, 0));
    }

    #[test]
    fn what_was_allocated_still_needs_its_maps() {
        let mut all = unplaced([6, 10]);
        all.allocate();
        assert_eq!(all.promise(), 1 + 3);
        assert_eq!(all.place(Lbn(6), true), 2, "two levels");
        all.allocate();
        assert_eq!(all.promise(), 1);
        all.remove(Lbn(10), true);
        assert_eq!(all.promise(), 0);
    }

    #[test]
    fn unmapping_beside_a_dirty_block_may_cost_its_map_again() {
        let mut all = unplaced([6, 7]);
        all.place(Lbn(6), false);
        assert_eq!(all.promise(), 1);
        assert_eq!(all.edges(Lbn(6), Lbn(7)), 2, "the lowest and the top both go on at block 7");
        assert_eq!(all.forget_edges(Lbn(0), Lbn(6)), 0, "a boundary of maps");
        assert_eq!(all.forget_edges(Lbn(6), Lbn(7)), 2);
        assert_eq!(all.promise(), 3);
        all.remove(Lbn(7), false);
        assert_eq!((all.promise(), all.maps.len()), (0, 0));
    }

    #[test]
    fn any_order_of_changes_counts_what_a_fresh_count_would() {
        let mut all = unplaced([]);
        let mut there = std::collections::BTreeSet::new();
        for i in 0..5000_u64 {
            let at = i.wrapping_mul(0x9E37_79B9) >> 5 & 127;
            if there.remove(&at) {
                match i % 3 {
                    0 => assert!(all.place(Lbn(at), false) >= 1),
                    _ => all.remove(Lbn(at), false),
                }
            } else {
                there.insert(at);
                all.add(Lbn(at));
            }
            let fresh = unplaced(there.iter().copied().filter(|at| *at < 86));
            let beyond = there.iter().filter(|at| **at >= 86).count() as u64;
            assert_eq!(all.blocks(), fresh.blocks() + beyond);
            assert!(all.map_blocks() <= fresh.map_blocks());
            assert!(all.maps.keys().eq(fresh.maps.keys()));
        }
    }
}
