//! The state of the volume when a write burst asks for room, and what can be done then.

use serde::Serialize;

use crate::clean::table::Headroom;
use crate::place::device::DeviceCost;

/// Sections that cleaning makes free with one checkpoint.
pub const SECTIONS_PER_CHECKPOINT: u32 = 4;

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

/// The costs per new block when no clean segment is left: infinite for what is impossible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Filling holes: as seen lately, or as predicted if that is not what is done.
    pub recycle_ns: f64,
    /// Cleaning for a clean segment and appending to it: in the same way.
    pub clean_ns: f64,
}
