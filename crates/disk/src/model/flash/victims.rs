//! The closed block with the fewest valid pages.

use super::bitmap::Bitmap;

/// Closed blocks by their number of valid pages.
#[derive(Debug, Clone)]
pub(super) struct Victims {
    /// Sets of blocks, indexed by number of valid pages.
    sets: Vec<Bitmap>,
    /// The number of blocks in each set.
    blocks: Vec<u32>,
}

impl Victims {
    /// Makes an empty set, for at most `blocks` blocks with at most `pages` pages each.
    pub(super) fn new(blocks: usize, pages: usize) -> Victims {
        Victims { sets: vec![Bitmap::new(blocks); pages + 1], blocks: vec![0; pages + 1] }
    }

    pub(super) fn insert(&mut self, block: u32, valid: u32) {
        self.blocks[valid as usize] += u32::from(self.sets[valid as usize].insert(block));
    }

    pub(super) fn remove(&mut self, block: u32, valid: u32) {
        self.blocks[valid as usize] -= u32::from(self.sets[valid as usize].remove(block));
    }

    /// Records that one page of `block`, which had `valid` valid pages and is in a set, became
    /// invalid.
    pub(super) fn shrink(&mut self, block: u32, valid: u32) {
        self.remove(block, valid);
        self.insert(block, valid - 1);
    }

    /// Returns the block with the fewest valid pages, and their number; of equals the one with the lowest number.
    pub(super) fn fewest(&self) -> Option<(u32, u32)> {
        let valid = self.blocks.iter().position(|blocks| *blocks > 0)?;
        Some((self.sets[valid].first()?, valid as u32))
    }
}
