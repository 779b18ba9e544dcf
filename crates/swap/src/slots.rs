//! The free slots of one area: a radix tree of 32-bit bitmap nodes.
//!
//! One bit per slot in the leaves, set while the slot is free; a bit of a node above is set while the node below it has
//! a set bit. So a search for the next free slot goes up past full nodes and down again, at a cost that grows with the
//! height only. (FreeBSD's swap keeps such a tree, of which the paper makes one per area; M. Dillon, "Design elements
//! of the FreeBSD VM system". Written from the description.)
//!
//! All memory is allocated with the tree.

use std::ops::Range;

/// The number of bits in a node.
const NODE_BITS: u32 = 32;

/// The most leaves that a search for a run examines: 8 GiB of slots, a fraction of a millisecond.
const LEAVES_LOOKED_AT_MAX: usize = 1 << 16;

/// The most free runs that a search examines to find the longest of them, if none is long enough.
const RUNS_LOOKED_AT_MAX: u32 = 512;

/// A set of free slots of an area.
#[derive(Debug, Clone)]
pub struct Slots {
    /// Nodes, leaves first, then level by level.
    nodes: Vec<u32>,
    /// The range of each level in `nodes`; the last level is a single node.
    levels: Vec<Range<usize>>,
    len: u32,
    free: u32,
}

impl Slots {
    /// Makes `len` slots, all in use.
    pub fn used(len: u32) -> Slots {
        let mut levels = Vec::new();
        let (mut start, mut bits) = (0, len.max(1) as usize);
        loop {
            let nodes = bits.div_ceil(NODE_BITS as usize);
            levels.push(start..start + nodes);
            start += nodes;
            bits = nodes;
            if nodes == 1 {
                break;
            }
        }
        Slots { nodes: vec![0; start], levels, len, free: 0 }
    }

    /// Makes `len` slots, all free.
    pub fn free(len: u32) -> Slots {
        let mut slots = Slots::used(len);
        slots.give(0..len);
        slots
    }

    /// Returns the number of slots.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if there are no slots, neither free nor in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of free slots.
    pub fn free_count(&self) -> u32 {
        self.free
    }

    /// Returns true if a slot is free.
    pub fn is_free(&self, slot: u32) -> bool {
        slot < self.len && self.nodes[(slot / NODE_BITS) as usize] >> (slot % NODE_BITS) & 1 == 1
    }

    /// Takes the first run of free slots of length `want`, cut out of a longer one if need be; if there is none, the
    /// longest of the first ones (see the constants above). Its slots are then in use. `None` if no slot is free.
    pub fn take(&mut self, want: u32) -> Option<Range<u32>> {
        let run = match self.first_run(want) {
            Some(start) => start..start + want,
            None => self.longest_run(want)?,
        };
        self.set_used(run.clone());
        Some(run)
    }

    /// Returns true if [`Slots::take`] would find a run of `want` slots.
    pub fn has_run(&self, want: u32) -> bool {
        self.first_run(want).is_some()
    }

    /// Returns the start of the first run of `want` free slots. Searches leaf by leaf, so that fragments of every
    /// length are passed once.
    fn first_run(&self, want: u32) -> Option<u32> {
        if want == 0 || want > self.free {
            return None;
        }
        let leaves = &self.nodes[self.levels[0].clone()];
        // The number of free slots right before the leaf.
        let mut before = 0;
        for (number, leaf) in (0u32..).zip(leaves).take(LEAVES_LOOKED_AT_MAX) {
            let first = number * NODE_BITS;
            if before + leaf.trailing_ones() >= want {
                return Some(first - before);
            }
            if let Some(start) = run_within(*leaf, want) {
                return Some(first + start);
            }
            before = if *leaf == u32::MAX { before + NODE_BITS } else { leaf.leading_ones() };
        }
        None
    }

    fn longest_run(&self, want: u32) -> Option<Range<u32>> {
        let mut best = 0..0;
        let mut from = 0;
        for _ in 0..RUNS_LOOKED_AT_MAX {
            let Some(start) = self.next_free(from) else { break };
            let run = start..self.run_end(start, want);
            from = run.end;
            if run.len() > best.len() {
                best = run;
            }
        }
        (!best.is_empty()).then_some(best)
    }

    /// Makes slots in use free.
    ///
    /// # Panics
    /// If one of them is free already or does not exist: two owners would be next.
    pub fn give(&mut self, slots: Range<u32>) {
        assert!(slots.end <= self.len, "slots {slots:?} of {}", self.len);
        self.free += slots.end - slots.start;
        for (node, mask) in leaves(slots) {
            let before = self.nodes[node];
            assert_eq!(before & mask, 0, "slots {mask:#x} of leaf {node} are free already");
            self.nodes[node] |= mask;
            if before == 0 {
                self.raise(node);
            }
        }
    }

    fn set_used(&mut self, slots: Range<u32>) {
        self.free -= slots.end - slots.start;
        for (node, mask) in leaves(slots) {
            self.nodes[node] &= !mask;
            if self.nodes[node] == 0 {
                self.lower(node);
            }
        }
    }

    /// Records in the levels above that a leaf has a free slot again, up to the first node that had
    /// a set bit already.
    fn raise(&mut self, leaf: usize) {
        let mut child = leaf;
        for level in self.levels.iter().skip(1) {
            let (node, bit) = (level.start + child / NODE_BITS as usize, child as u32 % NODE_BITS);
            let before = self.nodes[node];
            self.nodes[node] |= 1 << bit;
            if before != 0 {
                return;
            }
            child /= NODE_BITS as usize;
        }
    }

    /// Records in the levels above that a leaf has no free slot any more, up to the first node that
    /// still has a set bit.
    fn lower(&mut self, leaf: usize) {
        let mut child = leaf;
        for level in self.levels.iter().skip(1) {
            let (node, bit) = (level.start + child / NODE_BITS as usize, child as u32 % NODE_BITS);
            self.nodes[node] &= !(1 << bit);
            if self.nodes[node] != 0 {
                return;
            }
            child /= NODE_BITS as usize;
        }
    }

    /// Returns the first free slot at or after `from`.
    fn next_free(&self, from: u32) -> Option<u32> {
        let mut bit = from as usize;
        for (height, level) in self.levels.iter().enumerate() {
            let node = self.nodes[level.clone()].get(bit / NODE_BITS as usize)?;
            let rest = node & (u32::MAX << (bit as u32 % NODE_BITS));
            if rest != 0 {
                let found = bit / NODE_BITS as usize * NODE_BITS as usize + rest.trailing_zeros() as usize;
                return Some(self.descend(height, found));
            }
            bit = bit / NODE_BITS as usize + 1;
        }
        None
    }

    /// Returns the first free slot below a set bit.
    fn descend(&self, height: usize, bit: usize) -> u32 {
        let below = self.levels[..height].iter().rev();
        below.fold(bit, |bit, level| bit * NODE_BITS as usize + self.nodes[level.start + bit].trailing_zeros() as usize)
            as u32
    }

    /// Returns the end of the free run that begins at `start`, at most `start + want`.
    fn run_end(&self, start: u32, want: u32) -> u32 {
        let limit = start.saturating_add(want).min(self.len);
        let mut at = start;
        while at < limit {
            let used = !self.nodes[(at / NODE_BITS) as usize] >> (at % NODE_BITS);
            let left = NODE_BITS - at % NODE_BITS;
            let run = used.trailing_zeros().min(left);
            at += run;
            if run < left {
                break;
            }
        }
        at.min(limit)
    }
}

/// Returns the start of the first run of `want` set bits in a leaf.
fn run_within(leaf: u32, want: u32) -> Option<u32> {
    if want > NODE_BITS {
        return None;
    }
    // A bit stays set while it and the bits above it make a run of `run`.
    let (mut starts, mut run) = (leaf, 1);
    while run < want && starts != 0 {
        let more = run.min(want - run);
        starts &= starts >> more;
        run += more;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Returns the leaves that hold the slots, with the slots' bits.
fn leaves(slots: Range<u32>) -> impl Iterator<Item = (usize, u32)> {
    let mut at = slots.start;
    std::iter::from_fn(move || {
        if at >= slots.end {
            return None;
        }
        let (node, bit) = (at / NODE_BITS, at % NODE_BITS);
        let count = (NODE_BITS - bit).min(slots.end - at);
        at += count;
        Some((node as usize, (u32::MAX >> (NODE_BITS - count)) << bit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fills_from_the_front_and_says_when_it_is_full() {
        for len in [1, 31, 32, 33, 1024, 1025, 40_000] {
            let mut slots = Slots::free(len);
            assert_eq!(slots.take(u32::MAX), Some(0..len));
            assert_eq!((slots.free_count(), slots.take(1)), (0, None));
            slots.give(len - 1..len);
            assert_eq!(slots.take(7), Some(len - 1..len));
        }
        assert_eq!(Slots::free(0).take(1), None);
    }

    #[test]
    fn prefers_the_first_run_that_is_long_enough_and_else_the_longest() {
        let mut slots = Slots::used(200);
        [3..5, 30..36, 60..70, 90..130].into_iter().for_each(|run| slots.give(run));
        assert_eq!(slots.take(8), Some(60..68));
        assert_eq!(slots.take(100), Some(90..130));
        assert_eq!(slots.take(100), Some(30..36));
        assert_eq!(slots.take(1), Some(3..4));
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_slot_cannot_be_freed_twice() {
        let mut slots = Slots::free(10);
        slots.give(3..4);
    }

    /// Finds the run that [`Slots::take`] must return by examining every slot.
    fn plain_take(model: &mut [bool], want: usize) -> Option<Range<u32>> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < model.len() {
            let run = model[at..].iter().take(want).take_while(|free| **free).count();
            if run > 0 {
                runs.push(at..at + run);
            }
            at += run.max(1);
        }
        let long_enough = runs.iter().find(|run| run.len() >= want);
        let longest = runs.iter().rev().max_by_key(|run| run.len());
        let run = long_enough.or(longest)?.clone();
        model[run.clone()].fill(false);
        Some(run.start as u32..run.end as u32)
    }

    proptest! {
        #[test]
        fn behaves_like_a_list_of_bools(len in 1u32..3000, steps in prop::collection::vec((0u32..80, any::<u32>()), 0..200)) {
            let mut slots = Slots::free(len);
            let mut model = vec![true; len as usize];
            for (want, choice) in steps {
                if choice % 3 != 0 {
                    let longest = plain_take(&mut model.clone(), want as usize + 1).map_or(0, |run| run.len());
                    prop_assert_eq!(slots.has_run(want + 1), longest > want as usize);
                    prop_assert_eq!(slots.take(want + 1), plain_take(&mut model, want as usize + 1));
                } else {
                    let start = choice % len;
                    let end = (start + want).min(len);
                    let run = model[start as usize..end as usize].iter().take_while(|free| !**free).count();
                    model[start as usize..start as usize + run].fill(true);
                    slots.give(start..start + run as u32);
                }
                prop_assert_eq!(slots.free_count() as usize, model.iter().filter(|free| **free).count());
            }
            for (slot, free) in model.iter().enumerate() {
                prop_assert_eq!(slots.is_free(slot as u32), *free);
            }
        }
    }
}
