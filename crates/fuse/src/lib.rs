//! FUSE over io_uring and /dev/fuse behind one synchronous trait.
//!
//! A file system implements [`FileSystem`]: typed, blocking calls that know neither wire nor transport. A [`Session`]
//! mounts it and serves it by one of two transports that look the same from above: threads that read /dev/fuse, or
//! threads with an io_uring of one entry each, pinned to the CPUs. Replies are written straight into the transport's
//! buffer. It knows nothing of any particular file system and can be used alone.
//!
//! A file system with an empty root directory. [`Session::mount`] puts it into the tree, and
//! [`Session::serve`] answers until it is unmounted:
//!
//! ```no_run
//! use moafs_fuse::{AttrReply, Errno, FOREVER, FileAttr, FileHandle, FileSystem, NodeId, ReqCtx, Result};
//! use moafs_fuse::{Session, SessionOptions};
//! use std::path::Path;
//!
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> Result<AttrReply> {
//!         if ctx.node != NodeId::ROOT {
//!             return Err(Errno::ENOENT);
//!         }
//!         let attr = FileAttr { ino: 1, mode: libc::S_IFDIR | 0o755, nlink: 2, blksize: 4096, ..FileAttr::default() };
//!         Ok(AttrReply { attr, attr_ttl: FOREVER })
//!     }
//! }
//!
//! Session::mount(Empty, Path::new("/mnt"), &SessionOptions::default())?.serve()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! From the outside in:
//! - [`FileSystem`] (`fs`), with the types of requests and replies (`types`, `dirbuf`, `errno`);
//! - [`Session`], [`MountHandle`], [`Notifier`], [`SessionOptions`] (`session`, `notify`, `options`, `error`);
//! - `mount`: mounting and unmounting; `init`: the handshake, [`Negotiated`];
//! - `dev`, with the threads of `readers`, and `ring`: the two transports. Each makes an `exchange` of what it
//!   receives: a request, and the place for its reply, in a page-aligned `buffer`;
//! - `interrupt`: callers that are killed while a long operation runs;
//! - `dispatch`: calls the file system for an exchange and replies with the result, with `wire` to convert types;
//! - `op_times`: counters of requests and of the time that they took;
//! - `abi`: the wire's structures and numbers.
//!
//! Linux only.

#![cfg(target_os = "linux")]

mod abi;
mod buffer;
mod dev;
mod dirbuf;
mod dispatch;
mod errno;
mod error;
mod exchange;
mod fs;
mod init;
mod interrupt;
mod mount;
mod notify;
mod op_times;
mod options;
mod readers;
mod ring;
mod scheduling;
mod session;
mod types;
mod wire;

pub use dirbuf::{DirBuf, DirPlusBuf};
pub use dispatch::Dispatcher;
pub use errno::Errno;
pub use error::MountError;
pub use fs::{FileSystem, Result};
pub use init::{InitConfig, InitError, InitFlags, Negotiated, Transport};
pub use interrupt::interrupted_caller;
pub use mount::{Unmounted, mount_flags, remount, unmount};
pub use notify::Notifier;
pub use op_times::{OpTime, OpTimes};
pub use options::{MountFlags, MountKind, MountOptions, SessionOptions};
pub use scheduling::leave_idle_class;
pub use session::{MountHandle, Session};
pub use types::*;
