//! Cleaning policies: which sections are cleaned, where their blocks go and in which order they
//! leave.
//!
//! Pure functions of a segment table ([`Table`]): no I/O, no locks, nothing random. Of equal
//! candidates, the lower number wins. One choice is one pass over the dirty sections (two where the
//! module says so). The engine carries out the decisions.
//!
//! | module | what it decides |
//! |---|---|
//! | [`table`] | what policies see of segments and room |
//! | [`greedy`] | the section with the least valid data |
//! | [`cost_benefit`] | the most free space for the longest time per cost |
//! | [`hole_plugging`] | the emptiest sections, into the holes of others |
//! | [`adaptive`] | whichever of the two above is cheaper now |
//! | [`age_threshold`] | the cheapest of the old, merged with segments of like age |
//! | [`oracle`] | cost-benefit with the future known: a yardstick, no mount option |
//! | [`select`] | how the best few are found, and which of them share files |
//! | [`order`] | in which order valid blocks leave: as found, or by file |
//! | [`make_room`] | what is emptied when room is short |
//! | [`trigger`] | when to clean, and how much |

pub mod adaptive;
pub mod age_threshold;
pub mod cost_benefit;
pub mod greedy;
pub mod hole_plugging;
pub mod make_room;
pub mod oracle;
pub mod order;
pub mod select;
pub mod table;
pub mod trigger;

use serde::Serialize;

use crate::format::Nid;
use crate::place::device::DeviceCost;

pub use order::Order;
pub use table::{Class, Headroom, Secno, SectionView, SegmentView, Table};
pub use trigger::{Trigger, Urgency};

moafs_vfs::named_enum! {
    /// The policy that chooses victims: the values of `-o cleaner=`.
    #[derive(PartialOrd, Ord, Hash, Default, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Cleaner ("cleaner") {
        Greedy = "greedy", "The sections with the least valid data" => greedy::Greedy;
        #[default]
        CostBenefit = "cost-benefit", "The most free space for the longest time, per cost" => cost_benefit::CostBenefit;
        HolePlugging = "hole-plugging", "The emptiest sections, into the holes of others" => hole_plugging::HolePlugging;
        Adaptive = "adaptive", "Cost-benefit or hole-plugging, whichever is cheaper" => adaptive::Adaptive;
        AgeThreshold = "age-threshold", "The emptiest of the old, into segments of like age" => age_threshold::AgeThreshold;
    }

    /// Chooses the next sections to clean. `None` if no section can be cleaned within the room:
    /// then a checkpoint or recycling has to make room.
    pub fn choose(self, table: &impl Table, want: &Want<'_>) -> Option<Decision>;
}

/// A policy that chooses victims. A policy is one file with an implementation, and one line in [`Cleaner`].
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
    /// it is called for at most [`select::SHARING_CANDIDATES`] sections per victim wanted.
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
    /// Into holes of other segments: those that [`hole_plugging::target`] names.
    Holes,
    /// Into segments whose blocks were last written at about this time: those that [`age_threshold::target`] names,
    /// else clean ones.
    LikeAge {
        /// The moment, on the volume's clock.
        youngest_ns: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::table::testing::VecTable;
    use super::*;

    #[test]
    fn no_cleaner_takes_full_empty_or_current_sections() {
        let mut table = VecTable::of(&[(512, 900), (0, 900), (1, 900)]);
        table.segments[2].current = true;
        let want = select::testing::want(4);
        for cleaner in Cleaner::ALL {
            assert_eq!(cleaner.choose(&table, &want), None, "{cleaner}");
        }
    }

    #[test]
    fn equal_candidates_give_the_lower_number() {
        let table = VecTable::of(&[(100, 50); 9]);
        let want = select::testing::want(1);
        for cleaner in Cleaner::ALL {
            assert_eq!(cleaner.choose(&table, &want).unwrap().victims, [Secno(0)], "{cleaner}");
        }
    }
}
