//! The decision about what to clean: the goal and the room that a policy gets, the trait that it implements, and
//! its answer.

use serde::Serialize;

use crate::clean::table::{Secno, SectionView, Table};
use crate::format::Nid;
use crate::place::device::DeviceCost;

/// A policy that chooses victims. A policy is one file with an implementation, and one line in
/// [`Cleaner`](super::Cleaner).
pub trait ChooseVictims {
    /// Chooses the next sections to clean; `None` if no section can be cleaned within the room.
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision>;
}

/// The files that have valid blocks in a section, ascending.
pub type FilesOf<'a> = dyn Fn(Secno) -> Vec<Nid> + 'a;

/// The goal of a cleaning and the room that it may use.
#[derive(Clone, Copy)]
pub struct Want<'a> {
    /// Sections to clean together, at least 1 (`-o clean_batch=`).
    pub batch: u32,
    /// Blocks that may be moved at most: what fits into the clean segments that cleaning may take. Victims with more
    /// valid blocks are passed over.
    pub room_blocks: u64,
    /// Mean length of a run of holes, for estimates.
    pub hole_run_blocks: f64,
    /// The device's costs, for estimates.
    pub device: DeviceCost,
    /// The files of a section. If given, further victims are those that share files with the first;
    /// it is called for at most [`SHARING_CANDIDATES`](super::select::SHARING_CANDIDATES) sections per victim wanted.
    pub files: Option<&'a FilesOf<'a>>,
}

/// The victims of a cleaning, and the destination of their blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The victims, best first; all of one class.
    pub victims: Vec<Secno>,
    /// The destination of their valid blocks.
    pub to: Destination,
}

impl Decision {
    /// Returns the cleaning of these sections into clean segments; `None` if there are none.
    pub fn into_clean_segments(victims: &[SectionView]) -> Option<Decision> {
        let victims: Vec<Secno> = victims.iter().map(|view| view.section).collect();
        (!victims.is_empty()).then_some(Decision { victims, to: Destination::CleanSegment })
    }
}

/// The destination of the victims' valid blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// Clean segments, which the logs take.
    CleanSegment,
    /// Into holes of other segments: those that [`super::hole_plugging::target`] names.
    Holes,
    /// Into segments whose blocks were last written at about this time: those that
    /// [`super::age_threshold::target`] names, else clean ones.
    LikeAge {
        /// The moment, on the volume's clock.
        youngest_ns: u64,
    },
}
