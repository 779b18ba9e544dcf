//! The memory of decisions: what each way was seen to cost. [`auto`](super::auto) says why.

use serde::Serialize;

use crate::format::SEGMENT_BLOCKS;
use crate::place::recycling::cost::{
    Cost, cleaning, lasting_utilization, predicted_cleaning_ns, recycling, sweep, unit_blocks,
};
use crate::place::recycling::state::{Action, Costs, State};

/// Share of the main area's blocks that a regime has to take in before it can change again.
pub const DWELL: f64 = 0.125;
/// Share of the main area's blocks over which costs are averaged: long enough that the ups and downs of a cleaner that
/// takes hot and cold sections by turns cancel, short enough to forget the regime before.
const WINDOW: f64 = 1.5 * DWELL;

/// Facts about a class (data or nodes) that `auto` keeps between decisions. None of them has to
/// survive a mount.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Memory {
    /// The regime at work, and what it was seen to cost.
    pub(super) regime: Option<(Action, Cost)>,
    /// [`State::written_blocks`] when it began, and at the last decision.
    pub(super) began_at: u64,
    decided_at: u64,
    /// Blocks that die together.
    unit_blocks: Option<f64>,
}

impl Memory {
    /// Returns the costs of recycling and of cleaning: of the regime at work as seen, of the other as
    /// predicted.
    pub(super) fn costs(&mut self, state: &State) -> Costs {
        let weight = self.weight(state);
        if let Some(unit_blocks) = unit_blocks(state) {
            let old = self.unit_blocks.unwrap_or(unit_blocks);
            self.unit_blocks = Some(old + (unit_blocks - old) * weight);
        }
        let u = lasting_utilization(&state.space);
        let unit = self.unit_blocks.unwrap_or(1.0);
        let (recycle_ns, clean_ns) = (self.predicted_recycling_ns(state, u), predicted_cleaning_ns(state, u, unit));
        match &mut self.regime {
            Some((Action::Recycle, seen)) => {
                Costs { recycle_ns: seen.add(recycling(state), weight).per_block_ns(), clean_ns }
            }
            Some((_, seen)) => Costs { recycle_ns, clean_ns: seen.add(cleaning(state, unit), weight).per_block_ns() },
            None => Costs { recycle_ns, clean_ns },
        }
    }

    /// Returns the weight of the present decision: the more was written since the last one, the
    /// higher.
    fn weight(&mut self, state: &State) -> f64 {
        let blocks = state.written_blocks.saturating_sub(self.decided_at);
        self.decided_at = state.written_blocks;
        (blocks as f64 / (state.space.main_blocks as f64 * WINDOW).max(1.0)).min(1.0)
    }

    fn predicted_recycling_ns(&self, state: &State, u: f64) -> f64 {
        let Some(unit_blocks) = self.unit_blocks else { return f64::INFINITY };
        let holes = (1.0 - u) * SEGMENT_BLOCKS as f64;
        let run_blocks = (unit_blocks / u).clamp(1.0, holes.max(1.0));
        sweep(state, holes, holes / run_blocks).per_block_ns()
    }
}
