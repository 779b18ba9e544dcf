//! Placement policies: where data go in the log. Pure functions, as in [`crate::clean`]; what a
//! policy remembers, its caller keeps.
//!
//! | module | what it decides |
//! |---|---|
//! | [`log_choice`] | where a block goes: its log, how the log goes on, and in which segment |
//! | [`temperature`] | the policy that tells hot from cold |
//! | [`heat`] | the heat of data, and what such a policy is asked |
//! | [`kind`] | by kind: extensions, marks |
//! | [`wolf`] | by reference counts |
//! | [`sepbit`] | by how long the block before lived |
//! | [`recycling`] | whether logs fill holes of used segments when no clean one is left, and which |
//! | [`budget`] | whether what waits for a checkpoint has a place |
//! | [`device`] | what the device charges, for all cost models |
//! | [`free`] | the free segments |
//! | `foreseen` | by the known time of death: a bound for experiments |

pub mod budget;
pub mod device;
pub(crate) mod foreseen;
pub mod free;
pub mod heat;
pub mod kind;
pub mod log_choice;
pub mod recycling;
pub mod sepbit;
pub mod temperature;
pub mod wolf;

pub use device::{Charge, DeviceCost};
pub use heat::Heat;
pub use recycling::Recycling;
pub use temperature::Temperature;
