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
//! | [`check`] | finds and repairs what is wrong with a volume; the scanning pass |
//! | [`engine`] | a mounted volume: [`Ext`] implements `moafs_vfs::Format` |
//! | [`meta`] | metadata blocks in memory, and the order in which they reach the disk |
//! | [`alloc`] | free blocks and inodes |
//! | [`place`] | the policies: where things go |
//! | [`health`] | the first reason why a volume takes no more changes |

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
