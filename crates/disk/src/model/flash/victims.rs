//! Which block has the fewest valid pages.

use super::bitmap::Bitmap;

/// Closed blocks by their number of valid pages.
#[derive(Debug, Clone)]
pub(super) struct Victims {
    /// By number of valid pages.
    sets: Vec<Bitmap>,
    /// How many blocks are in each.
    blocks: Vec<u32>,
}

impl Victims {
    /// No blocks, of at most `blocks` with at most `pages` each.
    pub(super) fn new(blocks: usize, pages: usize) -> Victims {
        Victims { sets: vec![Bitmap::new(blocks); pages + 1], blocks: vec![0; pages + 1] }
    }

    pub(super) fn insert(&mut self, block: u32, valid: u32) {
        self.blocks[valid as usize] += u32::from(self.sets[valid as usize].insert(block));
    }

    pub(super) fn remove(&mut self, block: u32, valid: u32) {
        self.blocks[valid as usize] -= u32::from(self.sets[valid as usize].remove(block));
    }

    /// One page of `block`, which had `valid` and is in here, became invalid.
    pub(super) fn shrink(&mut self, block: u32, valid: u32) {
        self.remove(block, valid);
        self.insert(block, valid - 1);
    }

    /// The block with the fewest valid pages, and their number; of equals the one with the lowest number.
    pub(super) fn fewest(&self) -> Option<(u32, u32)> {
        let valid = self.blocks.iter().position(|blocks| *blocks > 0)?;
        Some((self.sets[valid].first()?, valid as u32))
    }
}
