//! Greedy: the sections with the least valid data. No locality: what it copies now may die a moment later.
//!
//! Reference: Rosenblum, Ousterhout: The Design and Implementation of a Log-Structured File System (1992), section 3.5.

use crate::clean::table::{SectionView, Table};
use crate::clean::{ChooseVictims, Decision, Want, select};

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct Greedy;

impl ChooseVictims for Greedy {
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        Decision::into_clean_segments(&victims(table, want))
    }
}

/// Returns the sections with the lowest utilization, at most `want.batch`.
pub(super) fn victims(table: &impl Table, want: &Want<'_>) -> Vec<SectionView> {
    select::best(table, want, |view| 1.0 - view.utilization())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::table::testing::VecTable;
    use crate::clean::{Destination, Secno};

    #[test]
    fn the_emptiest_goes_first_whatever_its_age() {
        let table = VecTable::of(&[(200, 100_000), (120, 1), (130, 50)]);
        let decision = Greedy.choose(&table, &select::testing::want(2)).unwrap();
        assert_eq!(decision, Decision { victims: vec![Secno(1), Secno(2)], to: Destination::CleanSegment });
    }
}
