//! Adaptive: cost-benefit cleaning or hole-plugging, whichever is cheaper at present by a model of the device.
//!
//! Cost of a clean block, in nanoseconds (the idea is the paper's; the formulas, in the terms of [`DeviceCost`], are
//! ours). Victims of `B` blocks together, `v` of them valid:
//! - copying: `(read(v) + write(v)) / (B - v)`: the copies take room away again;
//! - plugging: `(read(v) + v / r * hop + v * transfer) / B`: the copies take no clean room, but every run of holes, `r`
//!   blocks on average, is a request of its own.
//!
//! Equal costs: copying, which leaves the data in one piece. At low utilization copying wins (`B - v` is nearly `B`),
//! at high utilization plugging.
//!
//! Reference: Matthews, Roselli, Costello, Wang, Anderson: Improving the Performance of Log-Structured File Systems
//! with Adaptive Methods (1997).
//!
//! [`DeviceCost`]: crate::place::device::DeviceCost

use crate::clean::table::{SectionView, Table};
use crate::clean::{ChooseVictims, Decision, Want, cost_benefit, hole_plugging};
use crate::place::device::DeviceCost;

/// The policy. Up to three passes.
#[derive(Debug, Clone, Copy)]
pub struct Adaptive;

impl ChooseVictims for Adaptive {
    fn choose(&self, table: &impl Table, want: &Want<'_>) -> Option<Decision> {
        let copied = cost_benefit::victims(table, want);
        let copying_ns = copying_ns(&want.device, &copied);
        match hole_plugging::plug(table, want) {
            Some((decision, victims)) if plugging_ns(&want.device, &victims, want.hole_run_blocks) < copying_ns => {
                Some(decision)
            }
            _ => Decision::into_clean_segments(&copied),
        }
    }
}

/// Returns the cost in nanoseconds per clean block if the victims' valid blocks are copied into clean
/// segments; infinite without victims.
pub fn copying_ns(device: &DeviceCost, victims: &[SectionView]) -> f64 {
    let (blocks, valid) = sums(victims);
    if blocks <= valid {
        return f64::INFINITY;
    }
    (reading_ns(device, victims) + device.write.at_once_ns(valid)) / (blocks - valid)
}

/// Returns the cost in nanoseconds per clean block if the victims' valid blocks fill holes in runs of
/// `run_blocks` on average; infinite without victims.
pub fn plugging_ns(device: &DeviceCost, victims: &[SectionView], run_blocks: f64) -> f64 {
    let (blocks, valid) = sums(victims);
    if blocks == 0.0 {
        return f64::INFINITY;
    }
    (reading_ns(device, victims) + device.write.scattered_ns(valid, run_blocks)) / blocks
}

/// Returns the cost of reading victims, each in one sweep.
fn reading_ns(device: &DeviceCost, victims: &[SectionView]) -> f64 {
    victims.iter().map(|view| device.read.at_once_ns(f64::from(view.valid))).sum()
}

fn sums(victims: &[SectionView]) -> (f64, f64) {
    victims
        .iter()
        .fold((0.0, 0.0), |(blocks, valid), view| (blocks + f64::from(view.blocks), valid + f64::from(view.valid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::Destination;
    use crate::clean::select::testing::want;
    use crate::clean::table::testing::VecTable;

    #[test]
    fn an_empty_volume_is_copied_a_full_one_is_plugged() {
        let at = |valid| {
            Adaptive.choose(&VecTable::of(&[(valid, 9); 40]), &Want { device: DeviceCost::SSD, ..want(1) }).unwrap().to
        };
        assert_eq!(at(20), Destination::CleanSegment);
        assert_eq!(at(490), Destination::Holes);
    }

    #[test]
    fn no_victims_cost_infinitely_much() {
        assert_eq!(copying_ns(&DeviceCost::HDD, &[]), f64::INFINITY);
        assert_eq!(plugging_ns(&DeviceCost::HDD, &[], 8.0), f64::INFINITY);
    }
}
