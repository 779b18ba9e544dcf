//! Blocks for swap areas: taken in memory, never on the disk.
//!
//! A taken bit lies in a second bitmap of its group ([`super::taken`]). So taking blocks and giving them back writes
//! nothing, and after a crash or an unmount no trace of a swap area is left: no leak, no message of a checker.
//!
//! Capacity: reserved blocks count as promised from [`SwapSpace::reserve`] to [`SwapSpace::release`],
//! whether they are taken or not. Free blocks include the taken ones, so the number of blocks that
//! other callers may be promised does not change when runs are taken and given back.

use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::format::Reservations as _;
use moafs_vfs::swap_space::{Account, Group, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};

use super::{Alloc, FREEING_PAUSE, no_space};
use crate::format::{BlockNo, GroupNo, bitmap};

impl Alloc {
    /// Makes a group a contended group: a search fell short there that would not have without the
    /// taken runs, so they should move away.
    pub fn contend(&self, group: GroupNo) {
        if self.groups[group.0 as usize].state.lock().taken.contend() {
            self.contended.note(group);
        }
    }

    /// Returns the runs that swap areas have taken in a group, for surveys.
    pub fn taken_runs(&self, group: GroupNo) -> Vec<BlockRun> {
        let runs = self.groups[group.0 as usize].state.lock().taken.runs();
        runs.into_iter().map(|run| self.run_of(group, run)).collect()
    }

    fn run_of(&self, group: GroupNo, bits: Range<u32>) -> BlockRun {
        let start = self.geo.group_start(group).0 + u64::from(bits.start);
        BlockRun { start: BlockAddr(start), len: bits.end - bits.start }
    }

    /// Takes the run that `choose` finds among the free bits of a group.
    fn take_in(
        &self,
        group: GroupNo,
        choose: impl FnOnce(&[u8], u32) -> Option<Range<u32>>,
    ) -> Result<Option<BlockRun>> {
        let block = self.block_bitmap(group)?;
        let bits = self.geo.group_blocks(group);
        let mut state = self.groups[group.0 as usize].state.lock();
        let Some(found) = state.over(&block, |map| choose(map, bits)) else { return Ok(None) };
        let run = self.run_of(group, found.clone());
        self.check_free(group, &block, run)?;
        state.taken.take(found, self.geo.block_bytes());
        Ok(Some(run))
    }

    /// Takes the first run at or behind a block, at most `len` blocks.
    fn take_from(&self, from: BlockNo, len: u32, granule: u32) -> Result<Option<BlockRun>> {
        let cut = |run: Range<u32>| run.start..run.start + (run.end - run.start).min(len) / granule * granule;
        for group in self.geo.all_groups().filter(|group| from.0 < self.geo.group_range(*group).end) {
            if self.is_known_to_lack(group, granule) {
                continue;
            }
            let at = from.0.saturating_sub(self.geo.group_start(group).0) as u32;
            let first = |map: &[u8], bits| bitmap::first_zero_run(map, at, bits, granule).map(cut);
            if let Some(run) = self.take_in(group, first)? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Returns true if a group is known, without a look at its bitmap, to have fewer than `blocks`
    /// to hand out.
    fn is_known_to_lack(&self, group: GroupNo, blocks: u32) -> bool {
        let state = self.groups[group.0 as usize].state.lock();
        state.blocks_counted && state.counts.free_blocks.saturating_sub(state.taken.count()) < blocks
    }
}

/// Finds the last `len` free bits of a group that lie together.
fn last_run(map: &[u8], bits: u32, len: u32) -> Option<Range<u32>> {
    let last = bitmap::zero_runs(map, 0, bits).filter(|run| run.end - run.start >= len).last();
    last.map(|run| run.end - len..run.end)
}

/// The swap space of an ext volume.
pub struct SwapRoom {
    alloc: Arc<Alloc>,
    /// Number of blocks that the volume keeps for root: swap gets none of them.
    keep: u64,
    account: Account,
}

impl SwapRoom {
    /// Makes swap space from `alloc`, of which `keep` blocks must stay free.
    pub fn new(alloc: Arc<Alloc>, keep: u64) -> SwapRoom {
        SwapRoom { alloc, keep, account: Account::default() }
    }

    fn group(&self, group: Group) -> Option<GroupNo> {
        (group.0 < self.alloc.geo.groups).then_some(GroupNo(group.0))
    }
}

impl SwapSpace for SwapRoom {
    fn groups(&self) -> u32 {
        self.alloc.geo.groups
    }

    fn group_of(&self, block: BlockAddr) -> Option<Group> {
        self.alloc.geo.group_of_block(BlockNo(block.0)).map(|group| Group(group.0))
    }

    fn group_blocks(&self, group: Group) -> u32 {
        let Some(group) = self.group(group) else { return 0 };
        let here = self.alloc.geo.group_range(group);
        let within = |range: &Range<u64>| range.end.min(here.end).saturating_sub(range.start.max(here.start));
        let fixed: u64 = self.alloc.fixed.iter().map(within).sum();
        (here.end - here.start).saturating_sub(fixed) as u32
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        let meta = &self.alloc.meta;
        while self.alloc.promise(blocks, 0, self.keep).is_none() {
            let freeing = self.alloc.freeing();
            if freeing == 0 {
                return Err(no_space());
            }
            // Freed space becomes usable once the pointers to it are gone from the disk.
            meta.wait_for_host(|| meta.sweep(meta.highest(), &mut &*self.alloc))?;
            if self.alloc.freeing() >= freeing {
                // Another task is freeing at this moment: the blocks are counted, and no commit has them yet.
                meta.pause(FREEING_PAUSE);
            }
        }
        self.account.reserve(blocks);
        Ok(())
    }

    fn release(&self, blocks: u64) {
        let released = self.account.release(blocks);
        self.alloc.promised.release(released, 0);
    }

    fn take(&self, at: Where, len: u32, granule: u32) -> Result<Option<BlockRun>> {
        let granule = granule.max(1);
        let claimed = self.account.claim(len);
        let taken = match at {
            Where::EndOf(group) => match self.group(group) {
                Some(group) if claimed == len && len > 0 => {
                    self.alloc.take_in(group, |map, bits| last_run(map, bits, len))
                }
                _ => Ok(None),
            },
            Where::From(block) if claimed >= granule => self.alloc.take_from(BlockNo(block.0), claimed, granule),
            Where::From(_) => Ok(None),
        };
        let used = taken.as_ref().ok().and_then(Option::as_ref).map_or(0, |run| run.len);
        self.account.unclaim(claimed - used);
        taken
    }

    fn give(&self, run: BlockRun) {
        let Some((group, bit)) = self.alloc.geo.bit_of_block(BlockNo(run.start.0)) else { return };
        let end = bit.saturating_add(run.len).min(self.alloc.geo.group_blocks(group));
        let given = self.alloc.groups[group.0 as usize].state.lock().taken.give(bit..end);
        debug_assert_eq!(given, run.len, "of {run:?} only {given} blocks were taken");
        self.account.unclaim(given);
    }

    fn next_contended_group(&self) -> Option<Group> {
        loop {
            let group = self.alloc.contended.next()?;
            if self.alloc.groups[group.0 as usize].state.lock().taken.settle() {
                return Some(Group(group.0));
            }
        }
    }
}
