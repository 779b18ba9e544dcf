//! The trait of the policies that decide when logs recycle.

use crate::place::recycling::{Action, Costs, Memory, State};

/// A policy: decides whether a write burst fills holes or waits for cleaning.
pub trait Decide {
    /// Decides when no section is spare and there are holes to fill. `memory`: what [`Memory::costs`] keeps between
    /// decisions. Returns [`Action::Recycle`] or [`Action::Clean`].
    fn choose(&self, memory: &mut Memory, state: &State, costs: Costs) -> Action;
}
