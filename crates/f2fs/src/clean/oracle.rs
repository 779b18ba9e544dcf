//! Oracle: cleaning with the future known. A yardstick for experiments; no volume can be mounted with it.
//!
//! The waste of cleaning is the copy of a block that dies soon after: the section would have lost
//! it by itself. The oracle knows which of a section's valid blocks are doomed, that is, die before
//! the dead space of the volume is used up once ([`Deaths::horizon`]), and takes the section with
//! the most free space per cost, where a block that survives costs one copy and a doomed one
//! [`WASTE`]: `(B - v) / (survivors + WASTE * doomed)`.
//!
//! A volume that is opened with a [`Foresight`] has the oracle for its cleaner; what a table knows of
//! owners, it keeps in memory then, so that asking costs no I/O.
//!
//! The oracle is not the minimum: it optimises each choice for itself, and it does not choose
//! *where* copies go. In the simulation of `tests/policies.rs` it copies less than cost-benefit at
//! every utilization and in both patterns, and less than greedy (as much as greedy if data are
//! equally hot and half the volume is free).

use std::fmt;

use crate::clean::table::{Secno, SectionView, Table};
use crate::clean::{Decision, Want, select};
use crate::format::summary::SummaryEntry;

/// Copies that the copy of a doomed block counts for: found by trial, and not sensitive (3 to 30 give nearly the same).
pub const WASTE: f64 = 10.0;

/// Knowledge of when blocks will become invalid, held by the generator of an experiment's writes.
pub trait Foresight: Send + Sync + fmt::Debug {
    /// Returns the number of blocks that will be written before a block that this node points to,
    /// or the node itself, becomes invalid; for a block that never does, more than a volume has.
    fn blocks_before_death(&self, owner: SummaryEntry) -> u64;
}

/// The moments at which the blocks of sections die, on any clock that only goes forward.
pub trait Deaths {
    /// Returns the moments at which the valid blocks of a section become invalid; for those that never do,
    /// any moment behind the horizon.
    fn deaths(&self, section: Secno) -> impl Iterator<Item = u64>;

    /// Returns the moment at which as much will have been written as is invalid now.
    fn horizon(&self) -> u64;
}

/// Chooses the victims; `None` if no section can be cleaned.
pub fn choose(table: &impl Table, deaths: &impl Deaths, want: &Want<'_>) -> Option<Decision> {
    let horizon = deaths.horizon();
    let score = |view: &SectionView| {
        let doomed = deaths.deaths(view.section).filter(|&death| death < horizon).count() as f64;
        let cost = f64::from(view.valid) + (WASTE - 1.0) * doomed;
        f64::from(view.blocks - view.valid) / cost.max(1.0)
    };
    Decision::into_clean_segments(&select::best(table, want, score))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::select::testing::want;
    use crate::clean::table::testing::VecTable;

    /// Every block of a section dies at the same moment.
    struct Lives(Vec<u64>);

    impl Deaths for Lives {
        fn deaths(&self, section: Secno) -> impl Iterator<Item = u64> {
            std::iter::repeat_n(self.0[section.0 as usize], 100)
        }

        fn horizon(&self) -> u64 {
            1000
        }
    }

    #[test]
    fn what_dies_soon_is_left_to_die() {
        let table = VecTable::of(&[(100, 9000), (110, 1)]);
        assert_eq!(choose(&table, &Lives(vec![999, 5000]), &want(1)).unwrap().victims, [Secno(1)]);
        assert_eq!(choose(&table, &Lives(vec![5000, 5000]), &want(1)).unwrap().victims, [Secno(0)]);
    }
}
