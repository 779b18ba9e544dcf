//! The ext family of formats, and the FFS way of placing data in it.
//!
//! Three things are separate: the meaning of the bytes ([`format`]), the rules of a sound volume
//! ([`check`]) and a file system at work on it; only the last one keeps state. Everything read from
//! a device is checked when it is decoded, and an error names the damaged structure.
//!
//! | module | content |
//! |---|---|
//! | [`format`] | the bytes and their meaning: pure, no device |
//! | [`mkfs`] | makes an empty volume |
//! | [`check`] | finds and repairs errors of a volume; the scanning pass |
//! | [`engine`] | a mounted volume: [`Ext`] implements `moafs_vfs::Format` |
//! | [`meta`] | metadata blocks in memory, and the order in which they reach the disk |
//! | [`alloc`] | free blocks and inodes |
//! | [`place`] | the policies: where data and metadata are placed |
//! | [`health`] | the first reason why a volume takes no more changes |

#![forbid(unsafe_code)]

pub mod alloc;
pub mod check;
pub mod engine;
pub mod format;
pub mod health;
#[cfg(test)]
pub(crate) mod judge;
pub mod meta;
pub mod mkfs;
pub mod place;

pub use engine::{Ext, OpenOptions};
