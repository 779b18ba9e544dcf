//! Claiming the blocks that a policy has chosen: all of them, or none.
//!
//! A policy plans over a copy of the free space, so two tasks may choose the same blocks. The one that claims them first
//! has them; the other gives back what it has claimed and plans anew. After [`CONFLICTS_MAX`] conflicts a task plans
//! alone: then only single blocks, for maps, directories and addresses at `write()`, and swap areas can be in its way.
//! Each conflict means that another task got blocks, so all of them end.

use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::format::{Admission, Format};
use moafs_vfs::plan::{DirtyView, Plan, WritebackReason};
use moafs_vfs::types::Ino;

use super::Ext;
use super::incore::Incore;
use crate::alloc::{Counts, FreeMap};
use crate::format::{Geometry, GroupNo};
use crate::meta::Level;
use crate::place::draft::Claim;
use crate::place::windows::Window;
use crate::place::{ChosenSpace, Draft, FreeSpace, WritePlan};

/// Plans that may lose blocks to other tasks before a task plans alone.
const CONFLICTS_MAX: u32 = 3;

impl Ext {
    /// Has the policy decide what is written for `reason`, and claims the blocks for it.
    pub(super) fn plan_writes(&self, reason: WritebackReason, dirty: &dyn DirtyView<Arc<Incore>>) -> Result<Plan> {
        let try_once = || -> Result<Option<Plan>> {
            let WritePlan { writes, space } = self.policy.plan(reason, dirty, self, self)?;
            Ok(self.claim(&space)?.map(|_| Plan { writes, partial: false }))
        };
        for _ in 0..CONFLICTS_MAX {
            let _others_plan = self.planning.read();
            if let Some(plan) = try_once()? {
                return Ok(plan);
            }
        }
        let _alone = self.planning.write();
        loop {
            if let Some(plan) = try_once()? {
                return Ok(plan);
            }
        }
    }

    /// Has `choose` choose blocks at once, and claims them. Returns the level at which their bits are on disk.
    pub(super) fn allocate<T>(&self, choose: impl Fn(&mut Draft<'_>) -> Result<T>) -> Result<(T, Level)> {
        loop {
            let mut draft = Draft::new(self);
            let chosen = choose(&mut draft)?;
            if let Some(level) = self.claim(&draft.finish().space)? {
                return Ok((chosen, level));
            }
        }
    }

    /// Claims chosen space: all of it, or none if another task has a block of it by now. Returns the level at which all
    /// its bits are on disk.
    fn claim(&self, space: &ChosenSpace) -> Result<Option<Level>> {
        space.contended.iter().for_each(|group| self.alloc.contend(*group));
        let mut level = Level::NONE;
        for (at, claim) in space.claims.iter().enumerate() {
            match self.claim_run(*claim) {
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

    fn claim_run(&self, claim: Claim) -> Result<Option<Level>> {
        let blocks = u64::from(claim.run.len);
        let Some(spare) = claim.spare else { return self.alloc.claim(claim.run) };
        let Some(promised) = self.alloc.promise(blocks, 0, spare) else { return Ok(None) };
        // Held until the run is taken: promises to others meanwhile are counted without it.
        let _held = Admission::new(blocks, promised);
        self.alloc.claim(claim.run)
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

    fn is_full(&self, group: GroupNo) -> bool {
        self.alloc.is_full(group)
    }

    fn free_map(&self, group: GroupNo) -> Result<FreeMap> {
        self.alloc.free_map(group)
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
