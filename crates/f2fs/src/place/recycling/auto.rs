//! Auto: recycles if that is cheaper than cleaning.
//!
//! Costs are nanoseconds per new block, in the terms of [`DeviceCost`]; `B`: blocks of a section,
//! `u`: utilization of what is cleaned or recycled.
//!
//! - appending: one request per section, as if it were written in one sweep;
//! - cleaning: appending, and `(read(u B) + write(u B)) / ((1 - u) B)`: what is valid in a victim, read in one sweep
//!   over its gaps, for the room it gives; and its share of the checkpoint without which that room is not free. With
//!   it go the nodes of what was written since the last one: those of hot files never wait for the next overwrite;
//! - recycling: one sweep over a segment, `hop` per run of holes and `block` per hole, over its holes.
//!
//! `auto` compares the two, but not those of the best victim and the best target of the moment: what is cheap now may
//! be dear in the long run. Recycling takes the emptiest segments, so the best victims look worse than they would be;
//! and mixing both loses the advantage of either (cleaning keeps cold data apart; recycling mixes them in again). So it
//! stays in one *regime*, cleaning or recycling, and compares what each costs when it lasts:
//!
//! 1. The regime at work is judged by what it was seen to cost, as the time of the last decisions over the blocks that
//!    they gave room for ([`Memory`]; one for all logs of a class, since what one log does changes what the others
//!    find).
//! 2. The other is predicted from the utilization that victims and targets have in the long run when all data are
//!    equally hot, `U = (1 - u) / -ln u`, U being the share of valid blocks in the used segments; holes then come in
//!    runs of `unit / u`, where `unit` is what dies together, as seen in the targets (`unit = run * u`).
//! 3. At first both are predicted. Cleaning begins unless recycling is cheaper by [`MARGIN`]: where data are not
//!    equally hot, cleaning a full volume is cheaper than predicted, and recycling is not.
//! 4. Cleaning is left for recycling that is predicted to be cheaper by [`MARGIN_SEEN`]; recycling for cleaning that is
//!    predicted to be cheaper by [`MARGIN`]. Neither before the regime has taken in a share of [`DWELL`] of the volume,
//!    for its first segments tell what the regime before it has left behind.
//!
//! Reference for `U = (1 - u) / -ln u`: Menon: A Performance Comparison of RAID-5 and Log-Structured Arrays (1995).

use serde::Serialize;

use crate::clean::table::Headroom;
use crate::format::SEGMENT_BLOCKS;
use crate::place::device::DeviceCost;
use crate::place::recycling::{Action, Costs, Decide, SECTIONS_PER_CHECKPOINT, State, Targets, Victims};

/// Recycling is begun at first, and given up later, if the other way costs this much more, or less.
pub const MARGIN: f64 = 0.1;
/// Cleaning is given up if recycling would cost this much less.
pub const MARGIN_SEEN: f64 = 0.03;
/// Share of the main area's blocks that a regime has to take in before it can change again.
pub const DWELL: f64 = 0.125;
/// Share of the main area's blocks over which costs are averaged: long enough that the ups and downs of a cleaner that
/// takes hot and cold sections by turns cancel, short enough to forget the regime before.
const WINDOW: f64 = 1.5 * DWELL;

/// Requests of a checkpoint that begin far from where the last one ended, and those a few blocks further
/// on: its packs, NAT, SIT and SSA, as counted on volumes of 4 GiB whose files are overwritten (`lfs-…`).
const CHECKPOINT_FAR: f64 = 8.0;
const CHECKPOINT_NEAR: f64 = 32.0;
const CHECKPOINT_GAP_BLOCKS: f64 = 8.0;

/// A cost as it comes about: time, and the blocks that it gave room for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Cost {
    ns: f64,
    blocks: f64,
}

/// Facts about a class (data or nodes) that `auto` keeps between decisions. None of them has to
/// survive a mount.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Memory {
    /// The regime at work, and what it was seen to cost.
    regime: Option<(Action, Cost)>,
    /// [`State::written_blocks`] when it began, and at the last decision.
    began_at: u64,
    decided_at: u64,
    /// Blocks that die together.
    unit_blocks: Option<f64>,
}

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct Auto;

impl Decide for Auto {
    fn choose(&self, memory: &mut Memory, state: &State, costs: Costs) -> Action {
        if state.victims.sections == 0 { Action::Recycle } else { memory.regime(state, costs) }
    }
}

/// Returns the costs of what could be done at this moment, without a memory.
pub(super) fn costs_of_the_moment(state: &State) -> Costs {
    let unit = unit_blocks(state).unwrap_or(1.0);
    Costs { recycle_ns: recycling(state).per_block_ns(), clean_ns: cleaning(state, unit).per_block_ns() }
}

impl Memory {
    /// Returns the costs of recycling and of cleaning: of the regime at work as seen, of the other as
    /// predicted.
    pub(super) fn costs(&mut self, state: &State) -> Costs {
        let weight = self.weight(state);
        if let Some(unit_blocks) = unit_blocks(state) {
            let old = self.unit_blocks.unwrap_or(unit_blocks);
            self.unit_blocks = Some(old + (unit_blocks - old) * weight);
        }
        let u = lasting_utilization(&state.space);
        let unit = self.unit_blocks.unwrap_or(1.0);
        let (recycle_ns, clean_ns) = (self.predicted_recycling_ns(state, u), predicted_cleaning_ns(state, u, unit));
        match &mut self.regime {
            Some((Action::Recycle, seen)) => {
                Costs { recycle_ns: seen.add(recycling(state), weight).per_block_ns(), clean_ns }
            }
            Some((_, seen)) => Costs { recycle_ns, clean_ns: seen.add(cleaning(state, unit), weight).per_block_ns() },
            None => Costs { recycle_ns, clean_ns },
        }
    }

    /// Returns the weight of the present decision: the more was written since the last one, the
    /// higher.
    fn weight(&mut self, state: &State) -> f64 {
        let blocks = state.written_blocks.saturating_sub(self.decided_at);
        self.decided_at = state.written_blocks;
        (blocks as f64 / (state.space.main_blocks as f64 * WINDOW).max(1.0)).min(1.0)
    }

    /// Returns the regime for these costs per block.
    fn regime(&mut self, state: &State, costs: Costs) -> Action {
        let Costs { recycle_ns, clean_ns } = costs;
        let dwells =
            (state.written_blocks.saturating_sub(self.began_at) as f64) < state.space.main_blocks as f64 * DWELL;
        let next = match self.regime {
            None if recycle_ns * (1.0 + MARGIN) < clean_ns => Action::Recycle,
            None => Action::Clean,
            Some((Action::Recycle, _)) if !dwells && clean_ns * (1.0 + MARGIN) < recycle_ns => Action::Clean,
            Some((Action::Clean, _)) if !dwells && recycle_ns * (1.0 + MARGIN_SEEN) < clean_ns => Action::Recycle,
            Some((regime, _)) => return regime,
        };
        let per_block_ns = if next == Action::Recycle { recycle_ns } else { clean_ns };
        let blocks = (1.0 - lasting_utilization(&state.space)) * SEGMENT_BLOCKS as f64;
        self.regime = Some((next, Cost { ns: per_block_ns * blocks, blocks }));
        self.began_at = state.written_blocks;
        next
    }

    fn predicted_recycling_ns(&self, state: &State, u: f64) -> f64 {
        let Some(unit_blocks) = self.unit_blocks else { return f64::INFINITY };
        let holes = (1.0 - u) * SEGMENT_BLOCKS as f64;
        let run_blocks = (unit_blocks / u).clamp(1.0, holes.max(1.0));
        sweep(state, holes, holes / run_blocks).per_block_ns()
    }
}

impl Cost {
    /// The cost of an action that is impossible.
    const NEVER: Cost = Cost { ns: f64::INFINITY, blocks: 0.0 };

    fn per_block_ns(self) -> f64 {
        if self.blocks > 0.0 { self.ns / self.blocks } else { f64::INFINITY }
    }

    /// Lets a new observation in and forgets a little of the old ones; what could not be done was not observed.
    fn add(&mut self, new: Cost, weight: f64) -> Cost {
        if new != Cost::NEVER {
            self.ns += (new.ns - self.ns) * weight;
            self.blocks += (new.blocks - self.blocks) * weight;
        }
        *self
    }
}

/// Returns the blocks that die together, estimated from the targets: their runs of holes are longer
/// the more of the neighbours are dead.
fn unit_blocks(state: &State) -> Option<f64> {
    let Targets { segments, holes, runs } = state.targets;
    let blocks = f64::from(segments) * SEGMENT_BLOCKS as f64;
    (runs > 0).then(|| (f64::from(holes) / f64::from(runs) * (1.0 - f64::from(holes) / blocks)).max(1.0))
}

/// Returns the utilization u of victims and targets in the long run if all data are equally hot:
/// `U = (1 - u) / -ln u`, where U is the share of valid blocks in the space that is not free.
fn lasting_utilization(space: &Headroom) -> f64 {
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
fn recycling(state: &State) -> Cost {
    let Targets { segments, holes, runs } = state.targets;
    if holes == 0 || runs == 0 {
        return Cost::NEVER;
    }
    let segments = f64::from(segments.max(1));
    sweep(state, f64::from(holes) / segments, f64::from(runs) / segments)
}

fn sweep(state: &State, holes: f64, runs: f64) -> Cost {
    let gaps = (SEGMENT_BLOCKS as f64 - holes).max(0.0);
    Cost { ns: state.device.write.sweep_ns(holes, runs.max(1.0), gaps), blocks: holes }
}

/// Returns the cost of cleaning one of the victims that there are. `unit`: blocks that die together.
fn cleaning(state: &State, unit: f64) -> Cost {
    let Victims { sections, blocks, valid } = state.victims;
    let sections = f64::from(sections.max(1));
    moving(state, f64::from(blocks) / sections, f64::from(valid) / sections, unit)
}

fn predicted_cleaning_ns(state: &State, u: f64, unit: f64) -> f64 {
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
    use crate::place::recycling::testing::{full, full_of};
    use crate::place::recycling::{Recycling, Victims};

    #[test]
    fn auto_recycles_where_scattered_writes_are_cheap_and_cleans_where_they_are_dear() {
        let action = |state| Recycling::Auto.decide(&mut Memory::default(), &state).action;
        assert_eq!(action(full(DeviceCost::SSD, 0.9, 420)), Action::Recycle);
        for (utilization, valid) in [(0.3, 20), (0.5, 100), (0.7, 250)] {
            assert_eq!(action(full(DeviceCost::HDD, utilization, valid)), Action::Recycle, "{utilization}");
        }
        assert_eq!(action(full_of(1, DeviceCost::SSD_BLOCK_MAPPED, 0.5, 100)), Action::Clean);
    }

    #[test]
    fn a_regime_ends_when_it_was_seen_to_be_dear_but_not_before_its_time() {
        let mut memory = Memory::default();
        let state = full_of(1, DeviceCost::SSD_BLOCK_MAPPED, 0.5, 100);
        assert_eq!(Recycling::Auto.decide(&mut memory, &state).action, Action::Clean);
        let dear = Victims { valid: 505, ..state.victims };
        let lasts = |segments: &u64| {
            let state = State { written_blocks: segments * 512, victims: dear, ..state };
            Recycling::Auto.decide(&mut memory, &state).action == Action::Clean
        };
        let segments = (1..1000).take_while(lasts).count();
        assert!((124..400).contains(&segments), "{segments} segments; an eighth of the volume is 125");
    }

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
