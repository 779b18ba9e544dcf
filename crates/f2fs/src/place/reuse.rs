//! Whether a log recycles: never, always, or what is cheapest.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::clean::table::Space;
use crate::place::device::DeviceCost;

/// The values of `-o reuse=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reuse {
    /// Clean segments only; when none is left, cleaning makes some.
    Never,
    /// Clean segments first; when none is left, holes.
    Always,
    /// Clean segments first; when none is left, whichever of cleaning and holes is cheaper.
    #[default]
    Auto,
}

/// What a write burst does about room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Takes clean segments.
    Append,
    /// Fills holes of used segments.
    Recycle,
    /// Cleans, then appends.
    Clean,
}

/// The best targets for recycling, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Targets {
    /// Segments.
    pub segments: u32,
    /// Blocks that may be filled.
    pub holes: u32,
    /// Runs of such blocks.
    pub runs: u32,
}

/// The best victims for cleaning, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Victims {
    /// Sections.
    pub sections: u32,
    /// Blocks of them.
    pub blocks: u32,
    /// Valid ones among these.
    pub valid: u32,
}

/// What is known when a burst asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct State {
    /// Blocks to be written.
    pub burst_blocks: u32,
    /// Room on the volume.
    pub space: Space,
    /// What recycling would find.
    pub targets: Targets,
    /// What cleaning would find.
    pub victims: Victims,
    /// What the device charges.
    pub device: DeviceCost,
}

/// What to do, and the costs per new block behind it: infinite where impossible.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// Appending to a clean segment that is there.
    pub append_ns: f64,
    /// Filling holes.
    pub recycle_ns: f64,
    /// Cleaning for a clean segment, and appending to it.
    pub clean_ns: f64,
}

impl Reuse {
    /// All of them.
    pub const ALL: [Reuse; 3] = [Reuse::Never, Reuse::Always, Reuse::Auto];

    /// The name by which options and tables know it.
    pub fn name(self) -> &'static str {
        match self {
            Reuse::Never => "never",
            Reuse::Always => "always",
            Reuse::Auto => "auto",
        }
    }

    /// What a write burst does about room.
    pub fn decide(self, state: &State) -> Verdict {
        let (append_ns, recycle_ns, clean_ns) = (append_ns(state), recycle_ns(state), clean_ns(state));
        let action = match self {
            _ if state.space.spare_sections() > 0 => Action::Append,
            Reuse::Never => Action::Clean,
            Reuse::Always if state.targets.holes > 0 => Action::Recycle,
            Reuse::Auto if recycle_ns <= clean_ns && state.targets.holes > 0 => Action::Recycle,
            Reuse::Always | Reuse::Auto => Action::Clean,
        };
        Verdict { action, append_ns, recycle_ns, clean_ns }
    }
}

fn append_ns(state: &State) -> f64 {
    let blocks = f64::from(state.burst_blocks.max(1));
    state.device.write.at_once_ns(blocks) / blocks
}

fn recycle_ns(state: &State) -> f64 {
    let Targets { segments, holes, runs } = state.targets;
    if holes == 0 || runs == 0 {
        return f64::INFINITY;
    }
    let segments = f64::from(segments.max(1));
    let (holes, runs) = (f64::from(holes) / segments, f64::from(runs) / segments);
    let gaps = (crate::format::SEGMENT_BLOCKS as f64 - holes).max(0.0);
    state.device.write.sweep_ns(holes, runs, gaps) / holes
}

fn clean_ns(state: &State) -> f64 {
    let Victims { sections, blocks, valid } = state.victims;
    if blocks <= valid {
        return f64::INFINITY;
    }
    let sections = f64::from(sections.max(1));
    let (blocks, valid) = (f64::from(blocks) / sections, f64::from(valid) / sections);
    let moving_ns = state.device.read.at_once_ns(valid) + state.device.write.at_once_ns(valid);
    append_ns(state) + moving_ns / (blocks - valid)
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
