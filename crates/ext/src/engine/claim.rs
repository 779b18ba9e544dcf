//! Claiming the blocks that a policy has chosen: all of them, or none.
//!
//! A policy plans over copies of the bitmaps, so another task may take a block that it has chosen: a block for a map or
//! a directory, one for a swap area, or one that defragmentation moves a file to. Then what was claimed so far is given
//! back, and the policy plans again. Each conflict means that another task has got blocks, so the volume goes on.

use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::format::{Admission, Format};
use moafs_vfs::plan::{DirtyView, Plan, WritebackReason};
use moafs_vfs::types::{BlockRun, Ino};

use super::incore::Incore;
use super::volume::Ext;
use crate::alloc::{Counts, FreeMap, no_space};
use crate::format::{Geometry, GroupNo};
use crate::meta::Level;
use crate::place::draft::move_floor;
use crate::place::windows::Window;
use crate::place::{ChosenSpace, Draft, FreeSpace, WritePlan};

impl Ext {
    /// Has the policy decide what is written for `reason`, and claims the blocks for it.
    pub(super) fn plan_writes(&self, reason: WritebackReason, dirty: &dyn DirtyView<Arc<Incore>>) -> Result<Plan> {
        loop {
            let WritePlan { writes, space } = self.chosen(self.policy.plan(reason, dirty, self, self))?;
            debug_assert!(space.is_of(&writes), "{space:?} is not what is written: {writes:?}");
            if self.claim(&space)?.is_some() {
                space.claims.iter().for_each(|claim| self.alloc.note_in_flight(claim.run));
                return Ok(Plan { writes, partial: false });
            }
        }
    }

    /// Has `choose` choose blocks, and claims them. Also returns the level at which their bits are on disk.
    pub(super) fn allocate<T>(&self, choose: impl Fn(&mut Draft<'_>) -> Result<T>) -> Result<(T, Level)> {
        loop {
            let mut draft = Draft::new(self);
            let chosen = self.chosen(choose(&mut draft))?;
            if let Some(level) = self.claim(&draft.finish().space)? {
                return Ok((chosen, level));
            }
        }
    }

    /// Makes every group contended that has a swap area if no group had a free block.
    fn chosen<T>(&self, chosen: Result<T>) -> Result<T> {
        if matches!(&chosen, Err(error) if error.errno() == no_space().errno()) {
            self.geo.all_groups().for_each(|group| self.alloc.contend(group));
        }
        chosen
    }

    /// Claims chosen space, unless another task has some of it by now. Returns the level at which all its bits are on
    /// disk.
    fn claim(&self, space: &ChosenSpace) -> Result<Option<Level>> {
        space.contended.iter().for_each(|group| self.alloc.contend(*group));
        let unpromised = space.unpromised_blocks();
        let Some(promised) = self.alloc.promise(unpromised, 0, move_floor(&self.geo)) else { return Ok(None) };
        // Held until the runs are taken: promises to others meanwhile are counted without these blocks.
        let _held = Admission::new(unpromised, 0, promised);
        let mut level = Level::NONE;
        for (at, claim) in space.claims.iter().enumerate() {
            match self.alloc.claim(claim.group, claim.run) {
                Ok(Some(of_run)) => level = level.max(of_run),
                missed => {
                    space.claims[..at].iter().for_each(|claim| self.abandon(claim.run));
                    return missed;
                }
            }
        }
        space.rotors.iter().for_each(|(group, block)| self.alloc.set_rotor(*group, *block));
        for window in &space.windows {
            self.windows.note(window.directory, window.placed, window.rest);
        }
        Ok(Some(level))
    }
}

impl FreeSpace for Ext {
    fn geometry(&self) -> &Geometry {
        &self.geo
    }

    fn transfer_blocks(&self) -> u32 {
        self.transfer_blocks
    }

    fn counts(&self, group: GroupNo) -> Counts {
        self.alloc.counts(group)
    }

    fn free_map(&self, group: GroupNo) -> Result<Option<FreeMap>> {
        self.alloc.free_map(group)
    }

    fn is_free(&self, run: BlockRun) -> Result<bool> {
        self.alloc.is_free(run)
    }

    fn rotor(&self, group: GroupNo) -> u64 {
        self.alloc.rotor(group)
    }

    fn zone(&self, group: GroupNo) -> Range<u64> {
        self.alloc.zone(group)
    }

    fn available_blocks(&self) -> u64 {
        self.alloc.available_blocks()
    }

    fn spare_blocks(&self) -> u64 {
        self.alloc.spare_blocks()
    }

    fn available_inodes(&self) -> u64 {
        self.alloc.available_inodes()
    }

    fn blocks_per_directory(&self) -> Option<u64> {
        self.alloc.blocks_per_directory()
    }

    fn window(&self, directory: Ino) -> Window {
        self.windows.of(directory)
    }
}
