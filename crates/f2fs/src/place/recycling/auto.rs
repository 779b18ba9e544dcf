//! Auto: recycles if that is cheaper than cleaning.
//!
//! `auto` compares the costs of the two (`cost.rs`), but not those of the best victim and the best target of the
//! moment: what is cheap now may be dear in the long run. Recycling takes the emptiest segments, so the best victims
//! look worse than they would be; and mixing both loses the advantage of either (cleaning keeps cold data apart;
//! recycling mixes them in again). So it stays in one *regime*, cleaning or recycling, and compares what each costs
//! when it lasts:
//!
//! 1. The regime at work is judged by what it was seen to cost, as the time of the last decisions over the blocks that
//!    they gave room for ([`Memory`]; one for all logs of a class, since what one log does changes what the others
//!    find).
//! 2. The other is predicted from the utilization that victims and targets have in the long run when all data are
//!    equally hot, `U = (1 - u) / -ln u`, U being the share of valid blocks in the used segments; holes then come in
//!    runs of `unit / u`, where `unit` is what dies together, as seen in the targets (`unit = run * u`).
//! 3. At first both are predicted. Cleaning begins unless recycling is cheaper by [`MARGIN`]: where data are not
//!    equally hot, cleaning a full volume is cheaper than predicted, and recycling is not.
//! 4. Cleaning is left for recycling that is predicted to be cheaper by [`MARGIN_SEEN`]; recycling for cleaning that is
//!    predicted to be cheaper by [`MARGIN`]. Neither before the regime has taken in a share of [`DWELL`] of the volume,
//!    for its first segments tell what the regime before it has left behind.
//!
//! Reference for `U = (1 - u) / -ln u`: Menon: A Performance Comparison of RAID-5 and Log-Structured Arrays (1995).

use crate::format::SEGMENT_BLOCKS;
use crate::place::recycling::cost::{Cost, lasting_utilization};
use crate::place::recycling::{Action, Costs, Decide, Memory, State};

pub use crate::place::recycling::memory::DWELL;

/// Recycling is begun at first, and given up later, if the other way costs this much more, or less.
pub const MARGIN: f64 = 0.1;
/// Cleaning is given up if recycling would cost this much less.
pub const MARGIN_SEEN: f64 = 0.03;

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct Auto;

impl Decide for Auto {
    fn choose(&self, memory: &mut Memory, state: &State, costs: Costs) -> Action {
        if state.victims.sections == 0 { Action::Recycle } else { memory.regime(state, costs) }
    }
}

impl Memory {
    /// Returns the regime for these costs per block.
    fn regime(&mut self, state: &State, costs: Costs) -> Action {
        let Costs { recycle_ns, clean_ns } = costs;
        let dwells =
            (state.written_blocks.saturating_sub(self.began_at) as f64) < state.space.main_blocks as f64 * DWELL;
        let next = match self.regime {
            None if recycle_ns * (1.0 + MARGIN) < clean_ns => Action::Recycle,
            None => Action::Clean,
            Some((Action::Recycle, _)) if !dwells && clean_ns * (1.0 + MARGIN) < recycle_ns => Action::Clean,
            Some((Action::Clean, _)) if !dwells && recycle_ns * (1.0 + MARGIN_SEEN) < clean_ns => Action::Recycle,
            Some((regime, _)) => return regime,
        };
        let per_block_ns = if next == Action::Recycle { recycle_ns } else { clean_ns };
        let blocks = (1.0 - lasting_utilization(&state.space)) * SEGMENT_BLOCKS as f64;
        self.regime = Some((next, Cost { ns: per_block_ns * blocks, blocks }));
        self.began_at = state.written_blocks;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::device::DeviceCost;
    use crate::place::recycling::testing::{full, full_of};
    use crate::place::recycling::{Recycling, Victims};

    #[test]
    fn auto_recycles_where_scattered_writes_are_cheap_and_cleans_where_they_are_dear() {
        let action = |state| Recycling::Auto.decide(&mut Memory::default(), &state).action;
        assert_eq!(action(full(DeviceCost::SSD, 0.9, 420)), Action::Recycle);
        for (utilization, valid) in [(0.3, 20), (0.5, 100), (0.7, 250)] {
            assert_eq!(action(full(DeviceCost::HDD, utilization, valid)), Action::Recycle, "{utilization}");
        }
        assert_eq!(action(full_of(1, DeviceCost::SSD_BLOCK_MAPPED, 0.5, 100)), Action::Clean);
    }

    #[test]
    fn a_regime_ends_when_it_was_seen_to_be_dear_but_not_before_its_time() {
        let mut memory = Memory::default();
        let state = full_of(1, DeviceCost::SSD_BLOCK_MAPPED, 0.5, 100);
        assert_eq!(Recycling::Auto.decide(&mut memory, &state).action, Action::Clean);
        let dear = Victims { valid: 505, ..state.victims };
        let lasts = |segments: &u64| {
            let state = State { written_blocks: segments * 512, victims: dear, ..state };
            Recycling::Auto.decide(&mut memory, &state).action == Action::Clean
        };
        let segments = (1..1000).take_while(lasts).count();
        assert!((124..400).contains(&segments), "{segments} segments; an eighth of the volume is 125");
    }
}
