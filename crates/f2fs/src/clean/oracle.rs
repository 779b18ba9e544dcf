//! Oracle: cost-benefit with the future known. A yardstick for experiments; no volume can be mounted with it.
//!
//! Cost-benefit takes the age of a section as a guess of how long what is valid in it will live on. The oracle is told:
//! `(1 - u) * life / (1 + u)`, where `life` is the mean time that the section's valid blocks still have to live. It prefers
//! victims whose valid blocks die latest, so that it copies little that would have died before long.
//!
//! What it is not: the minimum. It optimises each choice for itself, and it does not choose *where* copies go.

use crate::clean::table::{Secno, SectionView, Table};
use crate::clean::{Decision, Destination, Want, gather};

/// What the future brings.
pub trait Deaths {
    /// The moments at which the valid blocks of a section become invalid; for those that never do, a moment
    /// behind the end of the experiment.
    fn deaths_ns(&self, section: Secno) -> impl Iterator<Item = u64>;
}

/// What to clean, or `None`.
pub fn choose(table: &impl Table, deaths: &impl Deaths, want: &Want<'_>) -> Option<Decision> {
    let now_ns = table.now_ns();
    let score = |view: &SectionView| {
        super::cost_benefit::ratio(view.utilization(), mean_life_ns(now_ns, deaths.deaths_ns(view.section)))
    };
    let victims: Vec<Secno> = gather::best(table, want, score).iter().map(|view| view.section).collect();
    (!victims.is_empty()).then_some(Decision { victims, to: Destination::CleanSegment })
}

fn mean_life_ns(now_ns: u64, deaths_ns: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) = deaths_ns
        .fold((0u128, 0u128), |(sum, count), death_ns| (sum + u128::from(death_ns.saturating_sub(now_ns)), count + 1));
    (sum / count.max(1)).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::gather::testing::want;
    use crate::clean::table::testing::VecTable;

    struct Lives(Vec<u64>);

    impl Deaths for Lives {
        fn deaths_ns(&self, section: Secno) -> impl Iterator<Item = u64> {
            std::iter::once(1_000_000_000_000_000 + self.0[section.0 as usize])
        }
    }

    #[test]
    fn what_dies_soon_is_left_to_die() {
        let table = VecTable::of(&[(100, 9000), (110, 1)]);
        assert_eq!(choose(&table, &Lives(vec![5, 5_000_000]), &want(1)).unwrap().victims, [Secno(1)]);
        assert_eq!(choose(&table, &Lives(vec![5, 5]), &want(1)).unwrap().victims, [Secno(0)]);
    }
}
