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

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::format::Nid;
use crate::place::device::DeviceCost;

pub use order::Order;
pub use table::{Class, Headroom, Secno, SectionView, SegmentView, Table};
pub use trigger::{Trigger, Urgency};

/// The policy that chooses victims: the values of `-o cleaner=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaner {
    /// Cleans the emptiest sections; see [`greedy`].
    Greedy,
    /// Weighs free space and its age against the cost; see [`cost_benefit`].
    #[default]
    CostBenefit,
    /// Copies the emptiest sections into holes of others; see [`hole_plugging`].
    HolePlugging,
    /// Takes the cheaper of cost-benefit and hole-plugging; see [`adaptive`].
    Adaptive,
    /// Cleans old sections into segments of like age; see [`age_threshold`].
    AgeThreshold,
}

/// The files that have valid blocks in a section, ascending.
pub type FilesOf<'a> = dyn Fn(Secno) -> Vec<Nid> + 'a;

/// The goal of a cleaning and the room that it may use.
#[derive(Clone, Copy)]
pub struct Want<'a> {
    /// Sections to clean together, at least 1 (`-o gather=`).
    pub gather: u32,
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

impl Cleaner {
    /// All policies, in the order of their declaration.
    pub const ALL: [Cleaner; 5] =
        [Cleaner::Greedy, Cleaner::CostBenefit, Cleaner::HolePlugging, Cleaner::Adaptive, Cleaner::AgeThreshold];

    /// Returns the name by which options and tables know it.
    pub fn name(self) -> &'static str {
        match self {
            Cleaner::Greedy => "greedy",
            Cleaner::CostBenefit => "cost-benefit",
            Cleaner::HolePlugging => "hole-plugging",
            Cleaner::Adaptive => "adaptive",
            Cleaner::AgeThreshold => "age-threshold",
        }
    }

    /// Chooses the next sections to clean. `None` if no section can be cleaned within the room:
    /// then a checkpoint or recycling has to make room.
    pub fn choose(self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        match self {
            Cleaner::Greedy => greedy::choose(table, want),
            Cleaner::CostBenefit => cost_benefit::choose(table, want),
            Cleaner::HolePlugging => hole_plugging::choose(table, want),
            Cleaner::Adaptive => adaptive::choose(table, want),
            Cleaner::AgeThreshold => age_threshold::choose(table, want),
        }
    }
}

impl fmt::Display for Cleaner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cleaner {
    type Err = String;

    fn from_str(name: &str) -> Result<Cleaner, String> {
        let found = Cleaner::ALL.into_iter().find(|cleaner| cleaner.name() == name);
        let known = || Cleaner::ALL.map(Cleaner::name).join(", ");
        found.ok_or_else(|| format!("there is no cleaner \"{name}\"; there are {}", known()))
    }
}

#[cfg(test)]
mod tests {
    use super::table::testing::VecTable;
    use super::*;

    #[test]
    fn names_and_cleaners_are_one_to_one() {
        for cleaner in Cleaner::ALL {
            assert_eq!(cleaner.to_string().parse(), Ok(cleaner));
        }
        assert!("lru".parse::<Cleaner>().unwrap_err().contains("cost-benefit"));
    }

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
