//! The F2FS format, and the ways of a log-structured file system: appending, cleaning, recycling.
//!
//! Four parts are separate: what the bytes mean ([`format`](mod@format)), what a volume must look like to be
//! sound ([`check`]), which decisions are made ([`clean`], [`place`]: pure functions of a segment
//! table) and how they are carried out ([`engine`]). Only the engine keeps state and talks to a
//! device.
//!
//! A volume in memory is made, gets a file, and is closed:
//!
//! ```
//! use moafs_disk::{MemDisk, SharedDisk};
//! use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
//! use moafs_f2fs::{F2fs, OpenOptions};
//! use moafs_runtime::{Live, Rt, Timestamp};
//! use moafs_vfs::api::NewFile;
//! use moafs_vfs::types::{FileKind, Ino, Name};
//! use moafs_vfs::{Credentials, Options, Vfs};
//! use std::sync::Arc;
//!
//! let disk: SharedDisk = Arc::new(MemDisk::new(128 << 11));
//! mkfs(&*disk, &MkfsOptions::new([1; 16], Timestamp::new(1_700_000_000, 0)))?;
//! let rt: Rt = Live::new();
//! let format = F2fs::open(disk.clone(), rt.clone(), OpenOptions::default())?;
//! let vfs = Vfs::new(format, disk, rt, Options::default());
//!
//! let (root, who) = (Ino(3), Credentials::root());
//! let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
//! let file = vfs.create(&who, root, Name::new(b"hello").expect("a legal name"), &new)?.ino;
//! vfs.write(&who, file, 0, b"hello", false)?;
//! vfs.fsync(file, false)?;
//! let mut bytes = [0; 5];
//! vfs.read(file, 0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! vfs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`format`](mod@format) | the bytes and their meaning: pure, no device |
//! | [`mkfs`] | makes an empty volume |
//! | [`tune`] | changes label and UUID of a volume that is not in use |
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
pub mod tune;

pub use engine::{F2fs, OpenOptions};
