//! The ext family of formats, and the FFS way of placing data in it.
//!
//! Three things are separate: the meaning of the bytes ([`format`](mod@format)), the rules of a sound volume
//! ([`check`]) and a file system at work on it; only the last one keeps state. Everything read from
//! a device is checked when it is decoded, and an error names the damaged structure.
//!
//! A volume in memory is made, gets a file, and is closed:
//!
//! ```
//! use moafs_disk::{MemDisk, SharedDisk};
//! use moafs_ext::mkfs::{MkfsOptions, mkfs};
//! use moafs_ext::{Ext, OpenOptions};
//! use moafs_runtime::{Live, Rt, Timestamp};
//! use moafs_vfs::api::NewFile;
//! use moafs_vfs::types::{FileKind, Ino, Name};
//! use moafs_vfs::{Credentials, Options, Vfs};
//! use std::sync::Arc;
//!
//! let disk: SharedDisk = Arc::new(MemDisk::new(16 << 11));
//! mkfs(&*disk, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0)))?;
//! let rt: Rt = Live::new();
//! let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default())?;
//! let vfs = Vfs::new(format, disk, rt, Options::default());
//!
//! let (root, who) = (Ino(2), Credentials::root());
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
//! | module | content |
//! |---|---|
//! | [`format`](mod@format) | the bytes and their meaning: pure, no device |
//! | [`mkfs`] | makes an empty volume |
//! | [`tune`] | changes a volume that is not in use: label, UUID, reserve, a journal |
//! | [`check`] | finds and repairs errors of a volume; the scanning pass |
//! | [`engine`] | a mounted volume: [`Ext`] implements `moafs_vfs::Format` |
//! | [`meta`] | metadata blocks in memory, and the order in which they reach the disk |
//! | [`journal`] | the log of ext3 and ext4: what a replay would write, and reading a volume through it |
//! | [`alloc`] | free blocks and inodes |
//! | `block_set` | sets of blocks, as ranges |
//! | [`place`] | the policies: where data and metadata are placed |
//! | `head` | the superblock and the descriptors, read and written as they are |
//! | `own_file` | the blocks of the journal and of the orphan file |
//! | `data_disk` | the disk that reads and writes contents of files, with the log in front of it |
//! | `write` | writing several blocks at once |
//! | [`health`] | the first reason why a volume takes no more changes |

#![forbid(unsafe_code)]

pub mod alloc;
mod block_set;
pub mod check;
mod data_disk;
pub mod engine;
pub mod format;
mod head;
pub mod health;
pub mod journal;
#[cfg(test)]
pub(crate) mod judge;
pub mod meta;
pub mod mkfs;
mod own_file;
pub mod place;
pub mod tune;
mod write;

pub use engine::{Ext, OpenOptions};
