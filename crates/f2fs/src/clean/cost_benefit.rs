//! Cost-benefit: the sections with the most free space for the longest time, per cost.
//!
//! `benefit / cost = (1 - u) * age / (1 + u)`: cleaning reads the section (1) and writes what is valid (`u`); it gains
//! the rest, and the older the youngest block, the longer the gain is likely to last. So cold sections are cleaned at a
//! higher utilization than hot ones, whose blocks will soon die by themselves.
//!
//! Reference: Rosenblum, Ousterhout: The Design and Implementation of a Log-Structured File System (1992), section 3.6.

use crate::clean::table::{SectionView, Table};
use crate::clean::{ChooseVictims, Decision, Want, select};

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct CostBenefit;

impl ChooseVictims for CostBenefit {
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        Decision::into_clean_segments(&victims(table, want))
    }
}

/// Returns the sections with the highest benefit per cost.
pub(super) fn victims(table: &impl Table, want: &Want<'_>) -> Vec<SectionView> {
    let now_ns = table.now_ns();
    select::best(table, want, |view| ratio(view.utilization(), now_ns.saturating_sub(view.youngest_ns)))
}

/// Returns the benefit per cost of a section of utilization `u` (0 to 1). The age is at least a nanosecond,
/// so that sections of the present moment are told apart by their utilization.
pub(super) fn ratio(u: f64, age_ns: u64) -> f64 {
    (1.0 - u) * age_ns.max(1) as f64 / (1.0 + u)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::Secno;
    use crate::clean::table::testing::VecTable;

    #[test]
    fn a_cold_section_is_cleaned_at_a_higher_utilization_than_a_hot_one() {
        // (1-u)/(1+u): 0.75 full gives 1/7, 0.25 full gives 3/5; the former has to be 4.2 times as old.
        let first = |cold_age_s| {
            CostBenefit
                .choose(&VecTable::of(&[(128, 100), (384, cold_age_s)]), &select::testing::want(1))
                .unwrap()
                .victims[0]
        };
        assert_eq!(first(419), Secno(0));
        assert_eq!(first(421), Secno(1));
    }

    #[test]
    fn age_is_that_of_the_youngest_block_not_of_the_last_invalidation() {
        let mut table = VecTable::of(&[(200, 100), (200, 90)]);
        table.segments[0].mtime_ns = table.now_ns;
        assert_eq!(CostBenefit.choose(&table, &select::testing::want(1)).unwrap().victims, [Secno(0)]);
    }
}
