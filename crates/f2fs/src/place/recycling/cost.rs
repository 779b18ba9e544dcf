//! Costs of filling holes and of cleaning, by a model of the device.
//!
//! Costs are nanoseconds per new block, in the terms of [`DeviceCost`]; `B`: blocks of a section,
//! `u`: utilization of what is cleaned or recycled.
//!
//! - appending: one request per section, as if it were written in one sweep;
//! - cleaning: appending, and `(read(u B) + write(u B)) / ((1 - u) B)`: what is valid in a victim, read in one sweep
//!   over its gaps, for the room it gives; and its share of the checkpoint without which that room is not free. With
//!   it go the nodes of what was written since the last one: those of hot files never wait for the next overwrite;
//! - recycling: one sweep over a segment, `hop` per run of holes and `block` per hole, over its holes.

use serde::Serialize;

use crate::clean::table::Headroom;
use crate::format::SEGMENT_BLOCKS;
use crate::place::device::DeviceCost;
use crate::place::recycling::state::{Costs, SECTIONS_PER_CHECKPOINT, State, Targets, Victims};

/// Requests of a checkpoint that begin far from where the last one ended, and those a few blocks further
/// on: its packs, NAT, SIT and SSA, as counted on volumes of 4 GiB whose files are overwritten (`lfs-…`).
const CHECKPOINT_FAR: f64 = 8.0;
const CHECKPOINT_NEAR: f64 = 32.0;
const CHECKPOINT_GAP_BLOCKS: f64 = 8.0;

/// A cost as it comes about: time, and the blocks that it gave room for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cost {
    pub(super) ns: f64,
    pub(super) blocks: f64,
}

impl Cost {
    /// The cost of an action that is impossible.
    const NEVER: Cost = Cost { ns: f64::INFINITY, blocks: 0.0 };

    pub(super) fn per_block_ns(self) -> f64 {
        if self.blocks > 0.0 { self.ns / self.blocks } else { f64::INFINITY }
    }

    /// Lets a new observation in and forgets a little of the old ones; what could not be done was not observed.
    pub(super) fn add(&mut self, new: Cost, weight: f64) -> Cost {
        if new != Cost::NEVER {
            self.ns += (new.ns - self.ns) * weight;
            self.blocks += (new.blocks - self.blocks) * weight;
        }
        *self
    }
}

/// Returns the costs of what could be done at this moment, without a memory.
pub(super) fn costs_of_the_moment(state: &State) -> Costs {
    let unit = unit_blocks(state).unwrap_or(1.0);
    Costs { recycle_ns: recycling(state).per_block_ns(), clean_ns: cleaning(state, unit).per_block_ns() }
}

/// Returns the blocks that die together, estimated from the targets: their runs of holes are longer
/// the more of the neighbours are dead.
pub(super) fn unit_blocks(state: &State) -> Option<f64> {
    let Targets { segments, holes, runs } = state.targets;
    let blocks = f64::from(segments) * SEGMENT_BLOCKS as f64;
    (runs > 0).then(|| (f64::from(holes) / f64::from(runs) * (1.0 - f64::from(holes) / blocks)).max(1.0))
}

/// Returns the utilization u of victims and targets in the long run if all data are equally hot:
/// `U = (1 - u) / -ln u`, where U is the share of valid blocks in the space that is not free.
pub(super) fn lasting_utilization(space: &Headroom) -> f64 {
    let free_blocks = u64::from(space.free_sections) * u64::from(space.section_blocks);
    let used_blocks = space.main_blocks.saturating_sub(free_blocks).max(1);
    let volume = (space.valid_blocks as f64 / used_blocks as f64).clamp(0.0, 0.999);
    let (mut low, mut high) = (1e-6f64, 1.0 - 1e-6);
    for _ in 0..40 {
        let u = (low + high) / 2.0;
        if (1.0 - u) / -u.ln() < volume { low = u } else { high = u }
    }
    low
}

/// Returns the cost per block of appending to a clean segment that is there.
pub(super) fn append_ns(state: &State) -> f64 {
    let blocks = f64::from(state.space.section_blocks.max(1));
    state.device.write.at_once_ns(blocks) / blocks
}

/// Returns the cost of recycling one of the targets that there are.
pub(super) fn recycling(state: &State) -> Cost {
    let Targets { segments, holes, runs } = state.targets;
    if holes == 0 || runs == 0 {
        return Cost::NEVER;
    }
    let segments = f64::from(segments.max(1));
    sweep(state, f64::from(holes) / segments, f64::from(runs) / segments)
}

pub(super) fn sweep(state: &State, holes: f64, runs: f64) -> Cost {
    let gaps = (SEGMENT_BLOCKS as f64 - holes).max(0.0);
    Cost { ns: state.device.write.sweep_ns(holes, runs.max(1.0), gaps), blocks: holes }
}

/// Returns the cost of cleaning one of the victims that there are. `unit`: blocks that die together.
pub(super) fn cleaning(state: &State, unit: f64) -> Cost {
    let Victims { sections, blocks, valid } = state.victims;
    let sections = f64::from(sections.max(1));
    moving(state, f64::from(blocks) / sections, f64::from(valid) / sections, unit)
}

pub(super) fn predicted_cleaning_ns(state: &State, u: f64, unit: f64) -> f64 {
    let blocks = f64::from(state.space.section_blocks);
    moving(state, blocks, u * blocks, unit).per_block_ns()
}

/// Returns the cost of cleaning a section and appending to the room that it gives. Valid blocks lie in runs
/// as dead ones do, longer the fuller the section is.
fn moving(state: &State, blocks: f64, valid: f64, unit: f64) -> Cost {
    let room = blocks - valid;
    if room <= 0.0 {
        return Cost::NEVER;
    }
    let DeviceCost { read, write } = state.device;
    let runs = (valid * room / blocks / unit).max(1.0);
    let moving_ns = if valid > 0.0 { read.sweep_ns(valid, runs, room) + write.at_once_ns(valid) } else { 0.0 };
    let nodes = room / unit;
    Cost { ns: moving_ns + append_ns(state) * (room + nodes) + checkpoint_share_ns(state), blocks: room }
}

/// Returns the cost of a checkpoint, without nodes, for each section that it makes free.
fn checkpoint_share_ns(state: &State) -> f64 {
    let write = state.device.write;
    let near_ns = write.hop_ns(CHECKPOINT_GAP_BLOCKS) + write.block_ns as f64;
    (CHECKPOINT_FAR * write.at_once_ns(1.0) + CHECKPOINT_NEAR * near_ns) / f64::from(SECTIONS_PER_CHECKPOINT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::recycling::testing::full;

    #[test]
    fn the_lasting_utilization_solves_its_equation() {
        for volume in [0.1, 0.3, 0.5, 0.7, 0.9, 0.99] {
            let mut space = full(DeviceCost::HDD, volume, 1).space;
            space.free_sections = 0;
            let u = lasting_utilization(&space);
            assert!(((1.0 - u) / -u.ln() - volume).abs() < 1e-4, "{volume}: {u}");
        }
        let mut space = full(DeviceCost::HDD, 1.0, 1).space;
        space.main_blocks = 0;
        assert!((0.0..1.0).contains(&lasting_utilization(&space)));
    }
}
