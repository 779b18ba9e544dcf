//! Hard disks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`spec`] | its parameters |
//! | [`geometry`] | where a sector lies, and when it passes under the head |
//! | [`seek`] | the seek curve |
//! | [`mechanics`] | arm and heads: what an access to the media takes |
//! | `buffer` | read-ahead segments, and what waits to be written |
//! | [`drive`] | [`Drive`]: commands, buffer and mechanics together |

mod buffer;
pub mod drive;
pub mod geometry;
pub mod mechanics;
pub mod seek;
pub mod spec;

pub use drive::{Background, Drive};
pub use spec::HddSpec;

#[cfg(test)]
mod tests;
