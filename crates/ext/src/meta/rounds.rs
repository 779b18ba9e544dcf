//! The order of levels on volumes without a journal: which blocks change at which level, and the rounds of a sweep.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Epoch, Kind, Page};

use super::block::Block;
use super::level::{Freed, Level};

pub(super) struct Order {
    /// New changes get at least this level; those below are being written or on disk.
    pub(super) open: Level,
    /// Every change up to this level is on disk.
    pub(super) durable: Level,
    /// The highest level handed out.
    pub(super) highest: Level,
    /// Blocks with changes due at a level.
    pub(super) due: BTreeMap<Level, BTreeMap<u64, Arc<Block>>>,
    /// The epoch of the data that must be on disk before the pointers of a level.
    pub(super) data: BTreeMap<Level, Epoch>,
    pub(super) frees: BTreeMap<Level, Vec<Freed>>,
}

/// One round of a sweep: every change due up to a level.
pub(super) struct Round {
    pub(super) level: Level,
    /// The blocks that change. Until they are durable only memory has their contents: they stay there.
    pub(super) blocks: BTreeMap<u64, Arc<Block>>,
    /// The writes: each block's number, kind and image.
    pub(super) images: Vec<(u64, Kind, Page)>,
    /// The epoch of the file data that must be durable before.
    pub(super) data: Option<Epoch>,
}

impl Order {
    /// Returns the order of a volume on which nothing has changed.
    pub(super) fn new() -> Order {
        Order {
            open: Level(1),
            durable: Level::NONE,
            highest: Level::NONE,
            due: BTreeMap::new(),
            data: BTreeMap::new(),
            frees: BTreeMap::new(),
        }
    }

    pub(super) fn due(&mut self, level: Level, block: &Arc<Block>) {
        self.highest = self.highest.max(level);
        let before = self.due.entry(level).or_default().insert(block.no, Arc::clone(block));
        debug_assert!(before.is_none_or(|before| Arc::ptr_eq(&before, block)), "two blocks {} are due", block.no);
    }

    /// Takes a block out: none of its changes is to be written any more.
    pub(super) fn not_due(&mut self, block: &Arc<Block>) {
        self.due.retain(|_, blocks| {
            if blocks.get(&block.no).is_some_and(|here| Arc::ptr_eq(here, block)) {
                blocks.remove(&block.no);
            }
            !blocks.is_empty()
        });
    }

    /// Registers blocks or an inode to be freed after a level that is not on disk yet; returns
    /// `false` if it is.
    pub(super) fn free_if_pending(&mut self, needs: Level, freed: Freed) -> bool {
        if needs <= self.durable {
            return false;
        }
        self.highest = self.highest.max(needs);
        self.frees.entry(needs).or_default().push(freed);
        true
    }

    /// Closes the lowest level that has work, if there is one up to `target`.
    pub(super) fn next_round(&mut self, target: Level) -> Option<Round> {
        let lowest = [self.due.keys().next(), self.frees.keys().next(), self.data.keys().next()];
        let level = lowest.into_iter().flatten().min().copied().unwrap_or(Level(u64::MAX));
        if level > target {
            // No change is pending up to `target`: it is on disk, and no new change may join it.
            self.open = self.open.max(Level(target.0 + 1));
            self.durable = self.durable.max(target);
            return None;
        }
        let level = level.max(Level(self.durable.0 + 1));
        self.open = self.open.max(Level(level.0 + 1));
        let later = self.due.split_off(&Level(level.0 + 1));
        let mut blocks = BTreeMap::new();
        for (_, due) in std::mem::replace(&mut self.due, later) {
            blocks.extend(due);
        }
        let later = self.data.split_off(&Level(level.0 + 1));
        let data = std::mem::replace(&mut self.data, later).into_values().max();
        Some(Round { level, blocks, images: Vec::new(), data })
    }

    /// Returns the number of blocks with changes that are in no round yet, counted once for each level.
    pub(super) fn waiting_blocks(&self) -> usize {
        self.due.values().map(BTreeMap::len).sum()
    }

    /// Returns true from the moment at which a round is closed until it is durable.
    pub(super) fn is_round_open(&self) -> bool {
        self.open.0 > self.durable.0 + 1
    }

    /// Notes that a round is on disk; returns the blocks and inodes that waited for it and are now free.
    pub(super) fn round_is_durable(&mut self, level: Level) -> Vec<Freed> {
        self.durable = self.durable.max(level);
        let later = self.frees.split_off(&Level(level.0 + 1));
        std::mem::replace(&mut self.frees, later).into_values().flatten().collect()
    }
}
