//! Contents of files in the log: blocks whose newest contents are in a transaction and not in their own places yet.
//!
//! An fsync of a small file would wait for its data in one place of the disk and for the transaction in another. If
//! the data join the transaction, it waits for the log only, and the blocks are written home later, in the order of
//! their places (Prabhakaran, Arpaci-Dusseau, Arpaci-Dusseau: Analysis and Evolution of Journaling File Systems, 2005:
//! data journaling wins where writes are small and random).
//!
//! While a block is here a replay may write it, so every write of it joins the running transaction as well, and every
//! read is answered from here. It leaves when it has been written home and the log has given up its copy, or when it
//! is freed: the transaction that frees it revokes the copy.

use std::collections::BTreeMap;
use std::ops::Range;

use moafs_disk::Page;

use super::level::Level;
use crate::format::BlockNo;

/// The blocks of file data whose newest contents are in a transaction.
pub(super) struct LoggedData {
    blocks: BTreeMap<u64, LoggedBlock>,
    /// The most blocks at a time.
    blocks_max: usize,
    /// The transaction that took a block last.
    newest: Level,
}

/// The newest contents of a block, and the transaction that has them.
struct LoggedBlock {
    contents: Page,
    level: Level,
}

impl LoggedData {
    pub(super) fn new(blocks_max: usize) -> LoggedData {
        LoggedData { blocks: BTreeMap::new(), blocks_max, newest: Level::NONE }
    }

    /// Takes the new contents of blocks from `start` on into transaction `level`: all of them if they are `wanted` and
    /// there is room, otherwise those that must be taken because they are here already. Says which; `None` if none is.
    pub(super) fn take(&mut self, start: u64, pages: &[Page], wanted: bool, level: Level) -> Option<Vec<bool>> {
        let takes_all = wanted && self.blocks.len() + pages.len() <= self.blocks_max;
        if !takes_all && self.blocks.range(start..start + pages.len() as u64).next().is_none() {
            return None;
        }
        let mut taken = Vec::with_capacity(pages.len());
        for (no, page) in (start..).zip(pages) {
            let takes = takes_all || self.blocks.contains_key(&no);
            if takes {
                self.blocks.insert(no, LoggedBlock { contents: page.clone(), level });
            }
            taken.push(takes);
        }
        self.newest = level;
        Some(taken)
    }

    /// Returns the blocks of a range that are here, with their contents.
    pub(super) fn contents(&self, range: Range<u64>) -> Vec<(u64, Page)> {
        self.blocks.range(range).map(|(no, block)| (*no, block.contents.clone())).collect()
    }

    /// Returns true if the newest contents of a block are here.
    pub(super) fn has(&self, no: u64) -> bool {
        self.blocks.contains_key(&no)
    }

    /// Returns the blocks whose newest contents are in the transactions up to `level`.
    pub(super) fn upto(&self, level: Level) -> impl Iterator<Item = (u64, &Page)> {
        self.blocks.iter().filter(move |(_, block)| block.level <= level).map(|(no, block)| (*no, &block.contents))
    }

    /// Returns the blocks that transaction `level` contains.
    pub(super) fn images_of(&self, level: Level) -> impl Iterator<Item = (BlockNo, Page)> {
        let images = self.blocks.iter().filter(move |(_, block)| block.level == level);
        images.map(|(no, block)| (BlockNo(*no), block.contents.clone()))
    }

    /// Forgets freed blocks.
    pub(super) fn forget(&mut self, freed: Range<u64>) {
        let numbers: Vec<u64> = self.blocks.range(freed).map(|(no, _)| *no).collect();
        for no in numbers {
            self.blocks.remove(&no);
        }
    }

    /// Forgets the blocks of the transactions up to `durable`: they have been written home, and the log is empty.
    pub(super) fn written_home(&mut self, durable: Level) {
        self.blocks.retain(|_, block| block.level > durable);
    }

    /// Returns the transaction that took a block last.
    pub(super) fn newest(&self) -> Level {
        self.newest
    }

    /// Returns true if there is hardly room for more.
    pub(super) fn is_crowded(&self) -> bool {
        self.blocks.len() > self.blocks_max / 4 * 3
    }
}
