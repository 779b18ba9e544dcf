//! Solid state disks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`spec`] | their parameters |
//! | [`drive`] | [`Drive`]: commands, link, write buffer, translation and chips together |

pub mod drive;
pub mod spec;

pub use drive::Drive;
pub use spec::SsdSpec;

#[cfg(test)]
mod tests;
