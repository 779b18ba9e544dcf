//! Oracle: cleaning with the future known. A yardstick for experiments; no volume can be mounted with it.
//!
//! What cleaning wastes is the copy of a block that dies soon after: the section would have lost it by itself. The
//! oracle knows which of a section's valid blocks are doomed, that is, die before the dead space of the volume is used
//! up once ([`Deaths::horizon_ns`]), and takes the section with the most free space per cost, where a block that
//! survives costs one copy and a doomed one [`WASTE`]: `(B - v) / (survivors + WASTE * doomed)`.
//!
//! What it is not: the minimum. It optimises each choice for itself, and it does not choose *where* copies go. In the
//! simulation of `tests/policies.rs` it copies less than cost-benefit at every utilization and in both patterns, and
//! less than greedy (where data are equally hot and half the volume is free, as much).

use crate::clean::table::{Secno, SectionView, Table};
use crate::clean::{Decision, Destination, Want, gather};

/// Copies that the copy of a doomed block counts for: found by trial, and not sensitive (3 to 30 give nearly the same).
pub const WASTE: f64 = 10.0;

/// What the future brings.
pub trait Deaths {
    /// The moments at which the valid blocks of a section become invalid; for those that never do, any moment
    /// behind the horizon.
    fn deaths_ns(&self, section: Secno) -> impl Iterator<Item = u64>;

    /// The moment at which as much will have been written as is invalid now.
    fn horizon_ns(&self) -> u64;
}

/// What to clean, or `None`.
pub fn choose(table: &impl Table, deaths: &impl Deaths, want: &Want<'_>) -> Option<Decision> {
    let horizon_ns = deaths.horizon_ns();
    let score = |view: &SectionView| {
        let doomed = deaths.deaths_ns(view.section).filter(|&death_ns| death_ns < horizon_ns).count() as f64;
        let cost = f64::from(view.valid) + (WASTE - 1.0) * doomed;
        f64::from(view.blocks - view.valid) / cost.max(1.0)
    };
    let victims: Vec<Secno> = gather::best(table, want, score).iter().map(|view| view.section).collect();
    (!victims.is_empty()).then_some(Decision { victims, to: Destination::CleanSegment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::gather::testing::want;
    use crate::clean::table::testing::VecTable;

    /// Every block of a section dies at the same moment.
    struct Lives(Vec<u64>);

    impl Deaths for Lives {
        fn deaths_ns(&self, section: Secno) -> impl Iterator<Item = u64> {
            std::iter::repeat_n(self.0[section.0 as usize], 100)
        }

        fn horizon_ns(&self) -> u64 {
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
