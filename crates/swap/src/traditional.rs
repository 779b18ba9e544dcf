//! The traditional swap space, at the lowest addresses regardless of the head: the fallback for
//! pages without an area.
//!
//! Either a partition, or, for a volume without one, reserved blocks at the volume's lowest addresses, taken in pieces
//! when they are needed and given back when they hold no page. In a volume a table maps a slot's number to its place.
//! Two trees hold the numbers that have blocks and no page, and those that have no blocks.

use moafs_disk::SECTOR;
use moafs_vfs::types::{BlockAddr, BlockRun};

use crate::page::PAGE_BYTES;
use crate::slots::Slots;

/// The number of sectors in a slot.
const SLOT_SECTORS: u64 = (PAGE_BYTES / SECTOR) as u64;

/// The slots of the traditional swap space.
#[derive(Debug)]
pub struct Traditional {
    free: Slots,
    held: u32,
    /// The number of slots that could not be written.
    pub spoiled: u32,
    blocks: Option<Blocks>,
}

/// The table for blocks of a volume, where there is no partition.
#[derive(Debug)]
struct Blocks {
    /// The slot numbers without blocks.
    vacant: Slots,
    /// The first block of each slot number that has some.
    start: Vec<u64>,
    granule: u32,
}

impl Traditional {
    /// Makes the swap space of a partition with `slots` slots.
    pub fn partition(slots: u32) -> Traditional {
        Traditional { free: Slots::free(slots), held: slots, spoiled: 0, blocks: None }
    }

    /// Makes a swap space of up to `slots` slots of `granule` blocks each, none of which has blocks
    /// yet.
    pub fn blocks(slots: u32, granule: u32) -> Traditional {
        let blocks = Blocks { vacant: Slots::free(slots), start: vec![0; slots as usize], granule };
        Traditional { free: Slots::used(slots), held: 0, spoiled: 0, blocks: Some(blocks) }
    }

    /// Returns the number of slot numbers.
    pub fn numbers(&self) -> u32 {
        self.free.len()
    }

    /// Returns the number of slots that have blocks.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns the number of slots in use.
    pub fn used(&self) -> u32 {
        self.held - self.spoiled - self.free.free_count()
    }

    /// Returns true if it is a partition.
    pub fn is_partition(&self) -> bool {
        self.blocks.is_none()
    }

    /// Returns how many slots could still be given blocks.
    pub fn vacant(&self) -> u32 {
        self.blocks.as_ref().map_or(0, |blocks| blocks.vacant.free_count())
    }

    /// Returns the number of free slots.
    pub fn free_count(&self) -> u32 {
        self.free.free_count()
    }

    /// Takes a run of up to `want` free slots that lie together.
    pub fn take(&mut self, want: u32) -> Option<(u32, u32)> {
        let run = self.free.take(want)?;
        let together = self.together(run.start, run.end);
        if together < run.end {
            self.free.give(together..run.end);
        }
        Some((run.start, together - run.start))
    }

    /// Frees a slot by its number.
    pub fn give(&mut self, slot: u32) {
        self.free.give(slot..slot + 1);
    }

    /// Gives the blocks of a new run to vacant slot numbers. Returns the rest of the run if there are too few numbers.
    pub fn grow(&mut self, run: BlockRun) -> Option<BlockRun> {
        let Some(blocks) = &mut self.blocks else { return Some(run) };
        let (mut start, mut slots) = (run.start.0, run.len / blocks.granule);
        while slots > 0 {
            let Some(numbers) = blocks.vacant.take(slots) else { break };
            for number in numbers.clone() {
                blocks.start[number as usize] = start;
                start += u64::from(blocks.granule);
            }
            slots -= numbers.end - numbers.start;
            self.held += numbers.end - numbers.start;
            self.free.give(numbers);
        }
        let end = run.end().0;
        (start < end).then(|| BlockRun { start: BlockAddr(start), len: (end - start) as u32 })
    }

    /// Removes a free run of slots and returns its blocks, to be given back. `None` if there is none, or if it is a
    /// partition.
    pub fn detach_free(&mut self) -> Option<BlockRun> {
        self.blocks.as_ref()?;
        let (first, count) = self.take(u32::MAX)?;
        self.detach(first, count)
    }

    /// Removes slots that lie together and are neither free nor owned; returns their blocks.
    pub fn detach(&mut self, first: u32, count: u32) -> Option<BlockRun> {
        let blocks = self.blocks.as_mut()?;
        blocks.vacant.give(first..first + count);
        self.held -= count;
        Some(BlockRun { start: BlockAddr(blocks.start[first as usize]), len: count * blocks.granule })
    }

    /// Returns the first block of a slot; `None` if it is a partition, see
    /// [`Traditional::sector_of`].
    pub fn block_of(&self, slot: u32) -> Option<BlockAddr> {
        self.blocks.as_ref().map(|blocks| BlockAddr(blocks.start[slot as usize]))
    }

    /// Returns the first sector of a slot of a partition.
    pub fn sector_of(slot: u32) -> u64 {
        u64::from(slot) * SLOT_SECTORS
    }

    /// Returns the number of slots in a partition of this many sectors.
    pub fn slots_in(sectors: u64) -> u32 {
        u32::try_from(sectors / SLOT_SECTORS).unwrap_or(u32::MAX)
    }

    /// Returns the end of the slots from `first` on, at most `end`, that follow one another on the disk.
    fn together(&self, first: u32, end: u32) -> u32 {
        let Some(blocks) = &self.blocks else { return end };
        let follows =
            |slot: &u32| blocks.start[*slot as usize] == blocks.start[*slot as usize - 1] + u64::from(blocks.granule);
        (first + 1..end).find(|slot| !follows(slot)).unwrap_or(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u32) -> BlockRun {
        BlockRun { start: BlockAddr(start), len }
    }

    #[test]
    fn blocks_become_slots_and_blocks_again() {
        let mut space = Traditional::blocks(8, 4);
        assert_eq!((space.take(1), space.detach_free()), (None, None));
        assert_eq!(space.grow(run(100, 8)), None);
        assert_eq!(space.grow(run(200, 12)), None);
        assert_eq!(space.take(5), Some((0, 2)), "a run ends where the blocks do");
        assert_eq!(space.take(5), Some((2, 3)));
        assert_eq!((space.held(), space.used(), space.block_of(4)), (5, 5, Some(BlockAddr(208))));
        space.give(3);
        assert_eq!(space.detach_free(), Some(run(204, 4)));
        assert_eq!(space.grow(run(300, 20)), Some(run(316, 4)), "numbers are used up");
        assert_eq!((space.held(), space.vacant()), (8, 0));
    }

    #[test]
    fn a_partition_does_not_grow_or_shrink() {
        let mut space = Traditional::partition(8);
        assert_eq!(space.take(3), Some((0, 3)));
        assert_eq!((space.detach_free(), space.block_of(0), space.vacant()), (None, None, 0));
        assert_eq!(space.grow(run(0, 4)), Some(run(0, 4)));
        assert_eq!((Traditional::slots_in(17), Traditional::sector_of(2)), (2, 16));
    }
}
