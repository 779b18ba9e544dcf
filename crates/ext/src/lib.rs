//! The ext family of formats, and the FFS way of placing data in it.
//!
//! The one idea: what the bytes mean ([`format`]), what a volume must look like to be sound
//! ([`check`]) and how a file system works on it are separate; only the last one keeps state.
//! Everything read from a device is checked when it is decoded, and what is wrong is named.
//!
//! | module | what it holds |
//! |---|---|
//! | [`format`] | the bytes and their meaning: pure, no device |
//! | [`mkfs`] | makes an empty volume |

pub mod format;
#[cfg(test)]
pub(crate) mod judge;
pub mod mkfs;
