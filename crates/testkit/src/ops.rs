//! Operations on a tree, and a seeded generator of them.

mod generator;

use std::fmt;

use moafs_runtime::Timestamp;
use moafs_vfs::api::{Allocate, RenameMode};
use moafs_vfs::types::{FileKind, SetMode};

pub use self::generator::{Generator, Limits};
use crate::model::NodeId;

/// A file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes(text.as_bytes().to_vec())
    }
}

impl std::ops::Deref for Bytes {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..=40 => write!(f, "\"{}\"", self.0.escape_ascii()),
            len => write!(f, "\"{}…\" ({len} bytes)", self.0[..16].escape_ascii()),
        }
    }
}

/// One operation. Nodes are the model's; the driver finds the inodes.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Op {
    /// Creates a file of any kind but a symbolic link.
    Create { dir: NodeId, name: Bytes, kind: FileKind, perm: u32, rdev: u64 },
    /// Creates a symbolic link.
    Symlink { dir: NodeId, name: Bytes, target: Vec<u8> },
    /// Creates a held file without a name.
    Tmpfile { dir: NodeId, perm: u32 },
    /// Adds a name to a file.
    Link { node: NodeId, dir: NodeId, name: Bytes },
    /// Removes the name of a file.
    Unlink { dir: NodeId, name: Bytes },
    /// Removes an empty directory.
    Rmdir { dir: NodeId, name: Bytes },
    /// Renames, replaces, or exchanges two names.
    Rename { from: (NodeId, Bytes), to: (NodeId, Bytes), mode: RenameMode },
    /// Writes stamped bytes.
    Write { node: NodeId, offset: u64, len: usize, append: bool },
    /// Sets the size, smaller or larger.
    Truncate { node: NodeId, size: u64 },
    /// Allocates or frees a range (fallocate).
    Allocate { node: NodeId, offset: u64, len: u64, how: Allocate },
    /// Copies a range (copy_file_range).
    Copy { from: NodeId, from_offset: u64, to: NodeId, to_offset: u64, len: u64 },
    /// Sets permission bits (chmod).
    SetPerm { node: NodeId, perm: u32 },
    /// Sets owner and group (chown).
    SetOwner { node: NodeId, uid: u32, gid: u32 },
    /// Sets the modification time (utimens).
    SetMtime { node: NodeId, mtime: Timestamp },
    /// Sets an attribute to [`Model::xattr_value`](crate::model::Model::xattr_value) (setxattr).
    SetXattr { node: NodeId, name: Vec<u8>, len: usize, mode: SetMode },
    /// Removes an attribute (removexattr).
    RemoveXattr { node: NodeId, name: Vec<u8> },
    /// Opens a handle, which keeps the node.
    Hold { node: NodeId },
    /// Closes the handle.
    Release { node: NodeId },
    /// Reads and compares.
    Read { node: NodeId, offset: u64, len: usize },
    /// Makes a file durable (fsync or fdatasync).
    Fsync { node: NodeId, data_only: bool },
    /// Makes the volume durable (sync).
    Sync,
    /// Runs a round of background work.
    BackgroundStep,
    /// Moves scattered files together.
    Defragment,
    /// Tells the device which blocks hold nothing.
    Trim,
    /// Drops clean pages, as under memory pressure.
    Shrink,
    /// Pages memory out or in.
    Page(Paging),
    /// Unmounts and mounts.
    Remount,
}

/// An operation on a swap beside the files. Pages are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Paging {
    /// Makes a swap of so many pages, with areas of so many bytes. Does nothing if there is one.
    On { pages: u32, area_bytes: u64 },
    /// Pages out changed pages, together.
    Out { first: u32, count: u32 },
    /// Pages in, and compares.
    In { first: u32, count: u32 },
    /// Frees pages.
    Free { first: u32, count: u32 },
    /// Runs background work until none is left.
    BackgroundStep,
    /// Ends the swap, as an unmount does.
    Off,
}

impl Op {
    /// Returns the operation that makes a regular file.
    pub fn create(dir: NodeId, name: &str) -> Op {
        Op::Create { dir, name: name.into(), kind: FileKind::Regular, perm: 0o644, rdev: 0 }
    }

    /// Returns the operation that makes a directory.
    pub fn mkdir(dir: NodeId, name: &str) -> Op {
        Op::Create { dir, name: name.into(), kind: FileKind::Directory, perm: 0o755, rdev: 0 }
    }
}
