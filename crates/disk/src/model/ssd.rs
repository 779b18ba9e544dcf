//! Solid state disks: commands, link, write buffer and flash translation.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`] | the parameters |
//! | [`drive`] | [`SsdDrive`]: commands, link, write buffer, translation and chips together |

pub mod drive;
pub mod spec;

pub use drive::SsdDrive;
pub use spec::SsdSpec;

#[cfg(test)]
mod tests;
