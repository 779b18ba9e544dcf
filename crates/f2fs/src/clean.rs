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
//! | [`decision`] | what a policy is asked, and what it answers |
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
pub mod decision;
pub mod greedy;
pub mod hole_plugging;
pub mod make_room;
pub mod oracle;
pub mod order;
pub mod select;
pub mod table;
pub mod trigger;

use serde::Serialize;

pub use decision::{ChooseVictims, Decision, Destination, FilesOf, Want};
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
