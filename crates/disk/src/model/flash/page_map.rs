//! Page-mapped translation with greedy garbage collection.
//!
//! Every page of the host may lie anywhere. Writes go to the dies in turn, each to the die's open block. A die with
//! fewer free blocks than its reserve takes the closed block with the fewest valid pages (of equals the lowest), copies
//! these to an open block of its own and erases it. A trimmed page is invalid at once.
//!
//! Invariants:
//! 1. `map` and `owner` are inverse: `owner[map[l]] = l` for every mapped page, and no other physical page has an
//!    owner.
//! 2. `valid[b]` counts the owners in block `b`; a block is free (0 valid), open, or in `victims`.
//! 3. A die holds at most `valid_max` valid pages, so among its closed blocks is always one with an invalid page:
//!    cleaning gains at least a page each time, and ends.

use std::collections::VecDeque;

use super::super::parameter::Unsound;
use super::chips::{Chips, Op};
use super::spec::FlashSpec;
use super::victims::Victims;

/// Open blocks of a die: one for the host, one for copies if they are kept apart.
const OPEN_BLOCKS: u64 = 2;

/// The place of each page of the host, and the valid pages of each block.
#[derive(Debug, Clone)]
pub(in crate::model) struct PageMap {
    block_pages: u32,
    blocks_per_die: u32,
    free_blocks_min: usize,
    copies_apart: bool,
    valid_max: u64,
    /// Physical page of each page of the host, plus 1; 0: none.
    map: Vec<u32>,
    /// The page of the host in each physical page, plus 1; 0: none, or no longer valid.
    owner: Vec<u32>,
    /// The number of valid pages of each block.
    valid: Vec<u32>,
    planes: Vec<Plane>,
    /// The die for the next page.
    turn: usize,
}

/// The blocks of a die. Block numbers count from the die's first.
#[derive(Debug, Clone)]
struct Plane {
    first_block: u32,
    free: VecDeque<u32>,
    victims: Victims,
    host: Option<Open>,
    copies: Option<Open>,
    valid: u64,
}

/// A block that is being programmed.
#[derive(Debug, Clone, Copy)]
struct Open {
    block: u32,
    next: u32,
}

impl PageMap {
    /// Makes an empty map.
    pub(in crate::model) fn new(spec: &FlashSpec, pages: u32, free_blocks_min: u32, copies_apart: bool) -> PageMap {
        let (dies, block_pages, blocks_per_die) = (spec.dies() as u32, spec.block_pages, spec.blocks_per_die);
        let blocks = dies as usize * blocks_per_die as usize;
        let plane = |die: u32| Plane {
            first_block: die * blocks_per_die,
            free: (0..blocks_per_die).collect(),
            victims: Victims::new(blocks_per_die as usize, block_pages as usize),
            host: None,
            copies: None,
            valid: 0,
        };
        PageMap {
            block_pages,
            blocks_per_die,
            free_blocks_min: free_blocks_min as usize,
            copies_apart,
            valid_max: valid_max(spec, free_blocks_min),
            map: vec![0; pages as usize],
            owner: vec![0; blocks * block_pages as usize],
            valid: vec![0; blocks],
            planes: (0..dies).map(plane).collect(),
            turn: 0,
        }
    }

    /// Refuses dies without room for all pages of the host and the reserve of garbage collection.
    pub(in crate::model) fn check(spec: &FlashSpec, sectors: u64, free_blocks_min: u32) -> Result<(), Unsound> {
        let room = spec.dies() as u64 * valid_max(spec, free_blocks_min);
        match spec.host_pages(sectors) <= room {
            true => Ok(()),
            false => {
                let problem = format!("the dies can hold {room} valid pages, fewer than the capacity has");
                Err(Unsound::new("flash.blocks_per_die", problem))
            }
        }
    }

    /// Returns the die that holds a page; `None` if there is nothing to read.
    pub(in crate::model) fn die_of(&self, page: u32) -> Option<usize> {
        let physical = self.map[page as usize].checked_sub(1)?;
        Some((physical / self.block_pages / self.blocks_per_die) as usize)
    }

    /// Writes a page to the next die.
    pub(in crate::model) fn write(&mut self, page: u32, ready_ns: u64, chips: &mut Chips) -> Op {
        self.invalidate(page);
        let die = self.next_die();
        if self.planes[die].host.is_none() {
            self.open_for_host(die, ready_ns, chips);
        }
        let mut open = self.planes[die].host.take().expect("opened just now");
        self.put(die, page, &mut open);
        self.planes[die].host = self.still_open(die, open);
        chips.program(die, ready_ns)
    }

    /// Writes the pages below `end` in order, before time 0.
    pub(in crate::model) fn fill(&mut self, end: u32, chips: &mut Chips) {
        for page in 0..end {
            self.write(page, 0, chips);
        }
    }

    /// Invalidates a page whose contents the host no longer needs.
    pub(in crate::model) fn trim(&mut self, page: u32, chips: &mut Chips) {
        chips.counters.trimmed_pages += u64::from(self.invalidate(page));
    }

    /// Invalidates a page. Returns true if it was mapped.
    fn invalidate(&mut self, page: u32) -> bool {
        let Some(physical) = std::mem::take(&mut self.map[page as usize]).checked_sub(1) else { return false };
        self.owner[physical as usize] = 0;
        let block = physical / self.block_pages;
        let plane = &mut self.planes[(block / self.blocks_per_die) as usize];
        plane.valid -= 1;
        let (local, valid) = (block - plane.first_block, &mut self.valid[block as usize]);
        if !plane.is_open(local) {
            plane.victims.shrink(local, *valid);
        }
        *valid -= 1;
        true
    }

    /// Returns the next die in turn, leaving out those that are as full as they may be.
    fn next_die(&mut self) -> usize {
        let dies = self.planes.len();
        let has_room = |turn: &usize| self.planes[turn % dies].valid < self.valid_max;
        let turn = (self.turn..self.turn + dies).find(has_room).expect("all dies together have room for every page");
        self.turn = (turn + 1) % dies;
        turn % dies
    }

    /// Opens a block for the host and cleans until enough are free again. Copies may go to the same block.
    fn open_for_host(&mut self, die: usize, ready_ns: u64, chips: &mut Chips) {
        loop {
            if self.planes[die].host.is_none() {
                self.planes[die].host = Some(self.planes[die].open_free());
            }
            if self.planes[die].free.len() >= self.free_blocks_min {
                return;
            }
            self.clean(die, ready_ns, chips);
        }
    }

    /// Copies the valid pages of the block with the fewest away, and erases it.
    fn clean(&mut self, die: usize, ready_ns: u64, chips: &mut Chips) {
        let plane = &mut self.planes[die];
        let (victim, valid) = plane.victims.fewest().expect("most blocks are closed");
        debug_assert!(valid < self.block_pages, "cleaning a block that is valid as a whole gains nothing");
        plane.victims.remove(victim, valid);
        let to = if self.copies_apart { &mut plane.copies } else { &mut plane.host };
        let mut to = to.take();
        let first = (plane.first_block + victim) * self.block_pages;
        for physical in first..first + self.block_pages {
            let Some(page) = std::mem::take(&mut self.owner[physical as usize]).checked_sub(1) else { continue };
            let mut open = to.unwrap_or_else(|| self.planes[die].open_free());
            self.planes[die].valid -= 1;
            self.put(die, page, &mut open);
            to = self.still_open(die, open);
        }
        let plane = &mut self.planes[die];
        self.valid[(plane.first_block + victim) as usize] = 0;
        plane.free.push_back(victim);
        if self.copies_apart {
            plane.copies = to
        } else {
            plane.host = to
        }
        chips.counters.cleaned_blocks += 1;
        chips.copy(die, ready_ns, u64::from(valid));
        chips.erase(die, ready_ns);
    }

    /// Puts a page into the next place of an open block.
    fn put(&mut self, die: usize, page: u32, open: &mut Open) {
        let plane = &mut self.planes[die];
        let block = plane.first_block + open.block;
        let physical = block * self.block_pages + open.next;
        open.next += 1;
        plane.valid += 1;
        self.valid[block as usize] += 1;
        self.owner[physical as usize] = page + 1;
        self.map[page as usize] = physical + 1;
    }

    /// Returns the block unless it is full; then closes it.
    fn still_open(&mut self, die: usize, open: Open) -> Option<Open> {
        if open.next < self.block_pages {
            return Some(open);
        }
        let plane = &mut self.planes[die];
        plane.victims.insert(open.block, self.valid[(plane.first_block + open.block) as usize]);
        None
    }
}

impl Plane {
    fn is_open(&self, block: u32) -> bool {
        [&self.host, &self.copies].into_iter().flatten().any(|open| open.block == block)
    }

    fn open_free(&mut self) -> Open {
        let block = self.free.pop_front().expect("cleaning begins while a block is left for its copies");
        Open { block, next: 0 }
    }
}

/// Returns the valid pages that a die may hold: one fewer than its closed blocks have pages when the fewest are free.
fn valid_max(spec: &FlashSpec, free_blocks_min: u32) -> u64 {
    let closed = u64::from(spec.blocks_per_die).saturating_sub(u64::from(free_blocks_min) + OPEN_BLOCKS);
    (closed * u64::from(spec.block_pages)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::ssd::SsdSpec;
    use super::super::super::ssd::spec::tests::preset;
    use super::super::precondition::SplitMix64;
    use super::*;

    /// Makes chips of two channels with two dies, 20 blocks of 8 pages each.
    fn small() -> FlashSpec {
        let SsdSpec { flash, .. } = preset("samsung-slc-64-page");
        FlashSpec { channels: 2, ways: 2, block_pages: 8, blocks_per_die: 20, ..flash }
    }

    impl PageMap {
        /// Checks the invariants of the module's head.
        fn assert_sound(&self) {
            for (page, physical) in self.map.iter().enumerate().filter(|(_, physical)| **physical != 0) {
                assert_eq!(self.owner[*physical as usize - 1], page as u32 + 1);
            }
            let owned = self.owner.iter().filter(|owner| **owner != 0).count();
            assert_eq!(owned, self.map.iter().filter(|physical| **physical != 0).count());
            for (block, pages) in self.owner.chunks(self.block_pages as usize).enumerate() {
                assert_eq!(self.valid[block] as usize, pages.iter().filter(|owner| **owner != 0).count());
            }
            for plane in &self.planes {
                assert!(plane.valid <= self.valid_max);
                assert!(plane.free.len() + 1 >= self.free_blocks_min);
            }
        }
    }

    proptest! {
        #[test]
        fn every_page_stays_mapped_whatever_is_written_and_trimmed(
            seed in 0_u64..u64::MAX, apart in any::<bool>(), fill in any::<bool>(), hot in 1_u64..400,
        ) {
            let flash = small();
            let pages = flash.dies() as u32 * valid_max(&flash, 4) as u32;
            let (mut map, mut chips) = (PageMap::new(&flash, pages, 4, apart), Chips::new(&flash));
            let mut mapped = vec![false; pages as usize];
            if fill {
                map.fill(pages, &mut chips);
                mapped.fill(true);
            }
            let mut random = SplitMix64(seed);
            for _ in 0..3_000 {
                let page = (random.next() % hot.min(u64::from(pages))) as u32;
                let trim = random.next().is_multiple_of(8);
                if trim {
                    map.trim(page, &mut chips);
                } else {
                    map.write(page, 0, &mut chips);
                }
                mapped[page as usize] = !trim;
            }
            map.assert_sound();
            for (page, mapped) in mapped.into_iter().enumerate() {
                prop_assert_eq!(map.die_of(page as u32).is_some(), mapped);
            }
        }
    }

    #[test]
    fn pages_that_all_lie_on_one_die_may_be_rewritten_forever() {
        let flash = small();
        let pages = flash.dies() as u32 * valid_max(&flash, 2) as u32;
        let (mut map, mut chips) = (PageMap::new(&flash, pages, 2, true), Chips::new(&flash));
        map.fill(pages, &mut chips);
        for _ in 0..2_000 {
            let page = (0..pages).find(|page| map.die_of(*page) == Some(0)).unwrap();
            map.write(page, 0, &mut chips);
        }
        map.assert_sound();
    }
}
