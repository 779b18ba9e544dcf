//! Placement policies: how warm data are, and whether a log appends, recycles, or has room cleaned
//! first.
//!
//! Pure functions, as in [`crate::clean`]. Two remember something, which the caller keeps: [`wolf`] counts references,
//! in bounded memory and with a seed; [`reuse`] keeps a few means.
//!
//! | module | what it decides |
//! |---|---|
//! | [`temperature`] | the policy that tells hot from cold: the kind of data, or WOLF |
//! | [`kind`] | by kind: extensions, directories, marks |
//! | [`wolf`] | by reference counts |
//! | [`recycle`] | which used segment takes new data, and into which of its holes |
//! | [`reuse`] | whether a log recycles at all: never, always, or what is cheapest |
//! | [`budget`] | whether what waits for a checkpoint has a place |
//! | [`device`] | what the device charges, for all cost models |

pub mod budget;
pub mod device;
pub mod kind;
pub mod recycle;
pub mod reuse;
pub mod temperature;
pub mod wolf;

pub use device::{Charge, DeviceCost};
pub use reuse::Reuse;
pub use temperature::{Heat, Temperature};
