//! Addresses allocated at `write()`, as in the file systems that Lee, Ahn, Oh (2008) compare with
//! ([`PlacementPolicy::allocates_on_write`](crate::place::PlacementPolicy::allocates_on_write)).
//!
//! An address allocated at `write()` is a block that was handed out in memory and belongs to a
//! file's block that is still dirty. The map shows it as unwritten; the step that sets the pointer of
//! the file's block ends it, and so does truncation. After a crash it is a leak at worst.

use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::types::{BlockAddr, BlockRun, Lbn, LbnRange, Mapping};

use super::incore::Incore;
use super::volume::Ext;
use crate::alloc::no_space;
use crate::meta::Freed;
use crate::meta::Level;
use crate::place::ffs;

impl Ext {
    /// Allocates addresses at `write()` for the blocks at the start of `range`, none of which has one; returns for how
    /// many. Without space they stay without an address, and write-back will look again.
    pub(super) fn allocate_early(&self, node: &Arc<Incore>, range: LbnRange) -> Result<u32> {
        let Mapping::Hole { len } = self.map_run(node, range.start, range.len)? else { return Ok(0) };
        let hole = LbnRange { len: len.clamp(1, range.len), ..range };
        let run = match self.allocate(|draft| ffs::place_early(draft, node, self, hole)) {
            Err(error) if error.errno() == no_space().errno() => return Ok(0),
            found => found?.0,
        };
        node.state.lock().early.extend((hole.start.0..).zip(run.start.0..run.end().0));
        Ok(run.len)
    }

    /// Returns the addresses allocated at `write()` from `at` on: one run of at most `max` blocks.
    pub(super) fn early_run(&self, node: &Incore, at: Lbn, max: u32) -> Option<BlockRun> {
        let state = node.state.lock();
        let start = *state.early.get(&at.0)?;
        let follows = |(lbn, block): &(u64, u64)| state.early.get(lbn) == Some(block);
        let more = (at.0 + 1..).zip(start + 1..).take(max as usize - 1).take_while(follows).count();
        Some(BlockRun { start: BlockAddr(start), len: 1 + more as u32 })
    }

    /// Returns the first block from `at` on, within `len` blocks, that has an address allocated at
    /// `write()`.
    pub(super) fn next_early(&self, node: &Incore, at: Lbn, len: u32) -> Option<Lbn> {
        let state = node.state.lock();
        state.early.range(at.0..at.0 + u64::from(len)).next().map(|(lbn, _)| Lbn(*lbn))
    }

    /// Drops the addresses allocated at `write()` for the blocks from `at` on, whose pointers now
    /// lead to `to`: addresses that differ from the pointers are given back.
    pub(super) fn settle_early(&self, node: &Incore, at: Lbn, to: BlockRun) -> Result<()> {
        let address = |lbn: u64| to.start.0 + (lbn - at.0);
        let moved = self.take_early(node, at, Some(Lbn(at.0 + u64::from(to.len))));
        moved
            .into_iter()
            .filter(|(lbn, block)| address(*lbn) != *block)
            .try_for_each(|(_, block)| self.give_early(block))
    }

    /// Gives back the addresses allocated at `write()` of blocks `from..to`, which leave the file.
    pub(super) fn drop_early(&self, node: &Incore, from: Lbn, to: Option<Lbn>) -> Result<()> {
        self.take_early(node, from, to).into_iter().try_for_each(|(_, block)| self.give_early(block))
    }

    fn take_early(&self, node: &Incore, from: Lbn, to: Option<Lbn>) -> Vec<(u64, u64)> {
        let mut state = node.state.lock();
        if state.early.is_empty() {
            return Vec::new();
        }
        let end = to.map_or(u64::MAX, |to| to.0);
        // Entries from `end` on stay.
        let mut taken = state.early.split_off(&from.0);
        let mut rest = taken.split_off(&end);
        state.early.append(&mut rest);
        taken.into_iter().collect()
    }

    fn give_early(&self, block: u64) -> Result<()> {
        self.alloc.free(Level::NONE, Freed::Data { start: block, len: 1 })
    }
}
