//! The F2FS format, and the ways of a log-structured file system: appending, cleaning, recycling.
//!
//! Four parts are separate: what the bytes mean ([`format`]), what a volume must look like to be
//! sound ([`check`]), which decisions are made ([`clean`], [`place`]: pure functions of a segment
//! table) and how they are carried out ([`engine`]). Only the engine keeps state and talks to a
//! device.
//!
//! | module | what it holds |
//! |---|---|
//! | [`format`] | the bytes and their meaning: pure, no device |
//! | [`mkfs`] | makes an empty volume |
//! | [`check`] | finds what is wrong with a volume |
//! | [`engine`] | a mounted volume: [`F2fs`] implements `moafs_vfs::Format` |
//! | [`clean`] | which segments are cleaned, and in which order their blocks leave; each policy one file |
//! | [`place`] | temperature of data, and whether a log appends or recycles |

#![forbid(unsafe_code)]

pub mod check;
pub mod clean;
pub mod engine;
pub mod format;
#[cfg(test)]
mod judge;
pub mod mkfs;
pub mod place;

pub use engine::{F2fs, OpenOptions};
