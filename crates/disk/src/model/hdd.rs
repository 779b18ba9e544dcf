//! Hard disks: geometry, seek curve, mechanics and buffer.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`] | the parameters |
//! | [`geometry`] | the position of a sector, and the time it passes under the head |
//! | [`seek`] | the seek curve |
//! | [`mechanics`] | arm and heads: the time of an access to the media |
//! | `buffer` | read-ahead segments, and sectors waiting to be written |
//! | [`drive`] | [`HddDrive`]: commands, buffer and mechanics together |

mod buffer;
pub mod drive;
pub mod geometry;
pub mod mechanics;
pub mod seek;
pub mod spec;

pub use drive::{Background, HddDrive};
pub use spec::HddSpec;

#[cfg(test)]
mod tests;
