//! Always: fills holes whenever no clean segment is left, whatever it costs.

use crate::place::recycling::{Action, Costs, Decide, Memory, State};

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct Always;

impl Decide for Always {
    fn choose(&self, _memory: &mut Memory, _state: &State, _costs: Costs) -> Action {
        Action::Recycle
    }
}
