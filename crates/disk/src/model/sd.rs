//! SD cards: commands, bus and flash translation.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`] | the parameters |
//! | [`drive`] | [`SdDrive`]: commands, bus, the page being collected, translation and chips together |

pub mod drive;
pub mod spec;

pub use drive::SdDrive;
pub use spec::SdSpec;

#[cfg(test)]
mod tests;
