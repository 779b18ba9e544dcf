//! Looking for free blocks in a copy of a group's bitmap.

use std::ops::Range;

use moafs_vfs::types::{BlockAddr, BlockRun};

use crate::format::bitmap;

/// The way to look for blocks inside a group. Numbers are block numbers of the volume, except the
/// count of `AtLeast`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Exactly at this block, and as many as are free behind it: the continuation of a file.
    At(u64),
    /// The first run that holds all blocks, from this block on and then from the group's start.
    Whole(u64),
    /// The first run that holds all blocks, from the group's rotor on and then from its start; else
    /// the longest run.
    Longest,
    /// The first run of at least this number of blocks, from the group's rotor on and then from its
    /// start; else the longest run.
    AtLeast(u32),
    /// Metadata: the first free blocks from this block on. The group's rotor stays.
    Meta(u64),
}

impl Fit {
    /// Returns true if a writer that wants `want` blocks would rather have found more in this group.
    fn is_short(self, found: u32, want: u32) -> bool {
        match self {
            Fit::At(_) => false,
            Fit::Whole(_) | Fit::Longest | Fit::Meta(_) => found < want,
            Fit::AtLeast(least) => found < least.min(want),
        }
    }

    /// Returns true if new files go on behind blocks that were found in this way.
    fn moves_rotor(self) -> bool {
        !matches!(self, Fit::At(_) | Fit::Meta(_))
    }
}

/// A copy of the free blocks of one group, in which blocks can be taken for a try.
#[derive(Debug, Clone)]
pub struct FreeMap {
    /// The group's blocks.
    range: Range<u64>,
    /// A bit for each block: set if it may not be handed out.
    used: Vec<u8>,
    /// The same without the blocks of swap areas, if there are any in the group.
    without_swap: Option<Vec<u8>>,
    /// The number of blocks that may be handed out.
    free_blocks: u32,
    /// The bit behind the blocks for metadata without a fixed place.
    zone_end: u32,
    rotor: u32,
    rotor_before: u32,
    /// True if blocks were taken.
    changed: bool,
}

impl FreeMap {
    /// Makes a map of the blocks `range`, of which `free_blocks` may be handed out: those with a clear bit in `used`
    /// that are in no swap area. Blocks for files are looked for from the bit `rotor` on, then behind `zone_end`.
    pub fn new(range: Range<u64>, used: Vec<u8>, free_blocks: u32, zone_end: u32, rotor: u32) -> FreeMap {
        FreeMap { range, used, without_swap: None, free_blocks, zone_end, rotor, rotor_before: rotor, changed: false }
    }

    /// Adds the bits of the blocks that swap areas have taken.
    #[must_use]
    pub fn with_swap_areas(mut self, taken: &[u8]) -> FreeMap {
        self.without_swap = Some(self.used.clone());
        self.used.iter_mut().zip(taken).for_each(|(used, taken)| *used |= taken);
        self
    }

    fn bits(&self) -> u32 {
        (self.range.end - self.range.start) as u32
    }

    /// Returns the number of blocks that may be handed out.
    pub fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    /// Returns the block at which the search for new files' blocks goes on.
    pub fn rotor(&self) -> u64 {
        self.range.start + u64::from(self.rotor)
    }

    /// Returns the same block if it is another one than at first.
    pub fn moved_rotor(&self) -> Option<u64> {
        (self.rotor != self.rotor_before).then(|| self.rotor())
    }

    /// Has the search for new files' blocks go on at a block.
    #[cfg(test)]
    pub fn set_rotor(&mut self, block: u64) {
        self.rotor = self.bit_near(block);
    }

    /// Returns true if blocks were taken, even if all were given back.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Finds at most `want` contiguous blocks.
    pub fn find(&self, fit: Fit, want: u32) -> Option<BlockRun> {
        self.find_in(&self.used, fit, want)
    }

    /// Returns true if a search that found `found` blocks would have found more without swap areas, and wanted more.
    pub fn is_contended(&self, fit: Fit, want: u32, found: Option<BlockRun>) -> bool {
        let found = found.map_or(0, |run| run.len);
        let at_best = |map: &Vec<u8>| self.find_in(map, fit, want).map_or(0, |run| run.len);
        fit.is_short(found, want) && self.without_swap.as_ref().is_some_and(|map| at_best(map) > found)
    }

    /// Returns true if all blocks of a run, which begins in the group, lie in it and may be handed out.
    pub fn is_free(&self, run: BlockRun) -> bool {
        run.end().0 <= self.range.end && bitmap::is_clear(&self.used, self.bits_of(run))
    }

    /// Takes a run that was found in the way of `fit`.
    pub fn take(&mut self, run: BlockRun, fit: Fit) {
        let bits = self.bits_of(run);
        self.changed = true;
        self.free_blocks = self.free_blocks.saturating_sub(run.len);
        if fit.moves_rotor() {
            self.rotor = bits.end;
        }
        let maps = std::iter::once(&mut self.used).chain(&mut self.without_swap);
        maps.for_each(|map| bitmap::set_range(map, bits.clone()));
    }

    /// Gives back the end of a run that was taken and not used. New files go on there, unless it is `kept` for some.
    pub fn give_back(&mut self, rest: BlockRun, kept: bool) {
        let bits = self.bits_of(rest);
        self.free_blocks += rest.len;
        if !kept && self.rotor == bits.end {
            self.rotor = bits.start;
        }
        let maps = std::iter::once(&mut self.used).chain(&mut self.without_swap);
        maps.for_each(|map| bitmap::clear_range(map, bits.clone()));
    }

    fn bits_of(&self, run: BlockRun) -> Range<u32> {
        debug_assert!(self.range.start <= run.start.0 && run.end().0 <= self.range.end, "{run:?} in {:?}", self.range);
        let bit = (run.start.0 - self.range.start) as u32;
        bit..bit + run.len
    }

    /// Returns the bit of a block, or that of the group's start or end if it lies outside.
    fn bit_near(&self, block: u64) -> u32 {
        (block.clamp(self.range.start, self.range.end) - self.range.start) as u32
    }

    /// Finds the run in a bitmap that a fit asks for. Files look behind the zone for metadata before they look at all
    /// of the group.
    fn find_in(&self, map: &[u8], fit: Fit, want: u32) -> Option<BlockRun> {
        let bits = self.bits();
        let first = |from: u32, least: u32| {
            let from = [from, self.zone_end, 0].map(|from| from.min(bits));
            from.into_iter().find_map(|from| bitmap::first_zero_run(map, from, bits, least))
        };
        let first_or_longest = |least: u32| first(self.rotor, least).or_else(|| bitmap::longest_zero_run(map, 0, bits));
        let found = match fit {
            Fit::At(block) => {
                let bit = (block - self.range.start) as u32;
                if bit >= bits || bitmap::test(map, bit) {
                    return None;
                }
                bit..bitmap::first_set(map, bit, bits).unwrap_or(bits)
            }
            Fit::Whole(from) => first(self.bit_near(from), want)?,
            Fit::Longest => first_or_longest(want)?,
            Fit::AtLeast(least) => first_or_longest(least)?,
            Fit::Meta(from) => {
                let found = bitmap::first_zero_run(map, self.bit_near(from), bits, want);
                found.or_else(|| bitmap::first_zero_run(map, 0, bits, want))?
            }
        };
        let start = BlockAddr(self.range.start + u64::from(found.start));
        Some(BlockRun { start, len: (found.end - found.start).min(want) })
    }
}
