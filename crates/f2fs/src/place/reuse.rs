//! Decides whether a log recycles: never, always, or if it is the cheapest.
//!
//! Clean segments are filled first under every policy; the policy decides when none is left (at low
//! utilization segments die by themselves, and it never has to). Costs are nanoseconds per new
//! block, in the terms of [`DeviceCost`]; `B`: blocks of a section, `u`: utilization of what is
//! cleaned or recycled.
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

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::clean::table::Headroom;
use crate::format::SEGMENT_BLOCKS;
use crate::place::device::DeviceCost;

/// Recycling is begun at first, and given up later, if the other way costs this much more, or less.
pub const MARGIN: f64 = 0.1;
/// Cleaning is given up if recycling would cost this much less.
pub const MARGIN_SEEN: f64 = 0.03;
/// Share of the main area's blocks that a regime has to take in before it can change again.
pub const DWELL: f64 = 0.125;
/// Share of the main area's blocks over which costs are averaged: long enough that the ups and downs of a cleaner that
/// takes hot and cold sections by turns cancel, short enough to forget the regime before.
const WINDOW: f64 = 1.5 * DWELL;

/// Sections that cleaning makes free with one checkpoint.
pub const SECTIONS_PER_CHECKPOINT: u32 = 4;
/// Requests of a checkpoint that begin far from where the last one ended, and those a few blocks further
/// on: its packs, NAT, SIT and SSA, as counted on volumes of 4 GiB whose files are overwritten (`lfs-…`).
const CHECKPOINT_FAR: f64 = 8.0;
const CHECKPOINT_NEAR: f64 = 32.0;
const CHECKPOINT_GAP_BLOCKS: f64 = 8.0;

/// The values of `-o reuse=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reuse {
    /// Clean segments only; when none is left, cleaning makes some.
    Never,
    /// Clean segments first; when none is left, holes.
    Always,
    /// Clean segments first; when none is left, the cheaper of cleaning and holes.
    #[default]
    Auto,
}

/// The way in which a write burst gets room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Takes clean segments, without any preparation.
    Append,
    /// Fills holes of used segments.
    Recycle,
    /// Cleans sections first, then appends to clean segments.
    Clean,
}

/// The best targets for recycling, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Targets {
    /// Segments that were added up.
    pub segments: u32,
    /// Blocks that may be filled.
    pub holes: u32,
    /// Runs of such blocks.
    pub runs: u32,
}

/// The best victims for cleaning, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Victims {
    /// Sections that were added up.
    pub sections: u32,
    /// Blocks of these sections.
    pub blocks: u32,
    /// Valid blocks of these sections.
    pub valid: u32,
}

/// The state of the volume when a write burst asks for room, or a log whose segment is full.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct State {
    /// Blocks that writers have had written so far, those moved by cleaning not among them: a count that only grows.
    pub written_blocks: u64,
    /// Room on the volume.
    pub space: Headroom,
    /// The segments that recycling would fill.
    pub targets: Targets,
    /// The sections that cleaning would take.
    pub victims: Victims,
    /// The costs of the device's requests.
    pub device: DeviceCost,
}

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

/// The action to take, and the costs per new block that led to it: infinite for an action that is
/// impossible.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// The action to take.
    pub action: Action,
    /// Appending to a clean segment that is there.
    pub append_ns: f64,
    /// Filling holes: as seen lately, or as predicted if that is not what is done.
    pub recycle_ns: f64,
    /// Cleaning for a clean segment and appending to it: in the same way.
    pub clean_ns: f64,
}

impl Reuse {
    /// All policies, in the order of their declaration.
    pub const ALL: [Reuse; 3] = [Reuse::Never, Reuse::Always, Reuse::Auto];

    /// Returns the name by which options and tables know it.
    pub fn name(self) -> &'static str {
        match self {
            Reuse::Never => "never",
            Reuse::Always => "always",
            Reuse::Auto => "auto",
        }
    }

    /// Decides how to get room for a write burst, or for a log whose segment is full. `memory`:
    /// that of the log's class.
    pub fn decide(self, memory: &mut Memory, state: &State) -> Verdict {
        let append_ns = append_ns(state);
        if state.space.spare_sections() > 0 {
            let unit = unit_blocks(state).unwrap_or(1.0);
            let (recycle_ns, clean_ns) = (recycling(state).per_block_ns(), cleaning(state, unit).per_block_ns());
            return Verdict { action: Action::Append, append_ns, recycle_ns, clean_ns };
        }
        let (recycle_ns, clean_ns) = memory.costs(state);
        let action = match self {
            Reuse::Never => Action::Clean,
            _ if state.targets.holes == 0 => Action::Clean,
            Reuse::Always => Action::Recycle,
            _ if state.victims.sections == 0 => Action::Recycle,
            Reuse::Auto => memory.regime(state, recycle_ns, clean_ns),
        };
        Verdict { action, append_ns, recycle_ns, clean_ns }
    }
}

impl Memory {
    /// Returns the costs of recycling and of cleaning per block: of the regime at work as seen, of the
    /// other as predicted.
    fn costs(&mut self, state: &State) -> (f64, f64) {
        let weight = self.weight(state);
        if let Some(unit_blocks) = unit_blocks(state) {
            let old = self.unit_blocks.unwrap_or(unit_blocks);
            self.unit_blocks = Some(old + (unit_blocks - old) * weight);
        }
        let u = lasting_utilization(&state.space);
        let unit = self.unit_blocks.unwrap_or(1.0);
        let (recycle_ns, clean_ns) = (self.predicted_recycling_ns(state, u), predicted_cleaning_ns(state, u, unit));
        match &mut self.regime {
            Some((Action::Recycle, seen)) => (seen.add(recycling(state), weight).per_block_ns(), clean_ns),
            Some((_, seen)) => (recycle_ns, seen.add(cleaning(state, unit), weight).per_block_ns()),
            None => (recycle_ns, clean_ns),
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
    fn regime(&mut self, state: &State, recycle_ns: f64, clean_ns: f64) -> Action {
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

fn append_ns(state: &State) -> f64 {
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

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reuse {
    type Err = String;

    fn from_str(name: &str) -> Result<Reuse, String> {
        let found = Reuse::ALL.into_iter().find(|reuse| reuse.name() == name);
        found.ok_or_else(|| format!("there is no reuse \"{name}\"; there are never, always, auto"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a volume of 1000 sections without a clean one; `valid` blocks in the best victim, which is the
    /// best target too, and files of 8 blocks.
    fn full(device: DeviceCost, utilization: f64, valid: u32) -> State {
        full_of(8, device, utilization, valid)
    }

    /// Returns the same state with files of so many blocks.
    fn full_of(file_blocks: u32, device: DeviceCost, utilization: f64, valid: u32) -> State {
        let main_blocks = 512_000;
        let space = Headroom {
            free_sections: 5,
            prefree_sections: 0,
            reserved_sections: 5,
            needed_sections: 0,
            section_blocks: 512,
            valid_blocks: (main_blocks as f64 * utilization) as u64,
            main_blocks,
        };
        let holes = 512 - valid;
        State {
            written_blocks: 0,
            space,
            targets: Targets { segments: 1, holes, runs: (holes * valid / 512 / file_blocks).max(1) },
            victims: Victims { sections: 1, blocks: 512, valid },
            device,
        }
    }

    #[test]
    fn clean_segments_are_filled_first() {
        let mut state = full(DeviceCost::HDD, 0.9, 450);
        state.space.free_sections += 1;
        for reuse in Reuse::ALL {
            assert_eq!(reuse.decide(&mut Memory::default(), &state).action, Action::Append, "{reuse}");
        }
    }

    #[test]
    fn each_does_what_it_can_when_the_other_way_is_closed() {
        let mut state = full(DeviceCost::SSD, 0.9, 450);
        assert_eq!(Reuse::Never.decide(&mut Memory::default(), &state).action, Action::Clean);
        assert_eq!(Reuse::Always.decide(&mut Memory::default(), &state).action, Action::Recycle);
        state.victims = Victims::default();
        assert_eq!(Reuse::Auto.decide(&mut Memory::default(), &state).action, Action::Recycle);
        let verdict = Reuse::Always
            .decide(&mut Memory::default(), &State { targets: Targets::default(), ..full(DeviceCost::SSD, 0.9, 450) });
        assert_eq!((verdict.action, verdict.recycle_ns), (Action::Clean, f64::INFINITY));
    }

    #[test]
    fn auto_recycles_where_scattered_writes_are_cheap_and_cleans_where_they_are_dear() {
        let action = |state| Reuse::Auto.decide(&mut Memory::default(), &state).action;
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
        assert_eq!(Reuse::Auto.decide(&mut memory, &state).action, Action::Clean);
        let dear = Victims { valid: 505, ..state.victims };
        let lasts = |segments: &u64| {
            let state = State { written_blocks: segments * 512, victims: dear, ..state };
            Reuse::Auto.decide(&mut memory, &state).action == Action::Clean
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

    #[test]
    fn names_and_values_are_one_to_one() {
        for reuse in Reuse::ALL {
            assert_eq!(reuse.to_string().parse(), Ok(reuse));
        }
        assert!("sometimes".parse::<Reuse>().is_err());
    }
}
