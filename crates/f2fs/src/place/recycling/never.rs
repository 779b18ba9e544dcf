//! Never: clean segments only. Logs fill holes where cleaning frees nothing; that is no matter of policy.

use crate::place::recycling::{Action, Costs, Decide, Memory, State};

/// The policy.
#[derive(Debug, Clone, Copy)]
pub struct Never;

impl Decide for Never {
    fn choose(&self, _memory: &mut Memory, _state: &State, _costs: Costs) -> Action {
        Action::Clean
    }
}
