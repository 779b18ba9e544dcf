//! [`Tree`]: the operations that copying needs of a place with files, be it the host or a volume.
//!
//! Copies in, out, and from volume to volume are then one piece of code.

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::trail::Trail;
use crate::error::Result;

/// The identity of a file, common to all its names. Files of the host and of different volumes are
/// never the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    /// A host file: device and inode number.
    Host { dev: u64, ino: u64 },
    /// A volume's file: number of the open volume in this process, and inode number.
    Volume { volume: usize, ino: u64 },
}

impl FileId {
    /// Returns the inode number.
    pub(crate) fn ino(self) -> u64 {
        match self {
            FileId::Host { ino, .. } | FileId::Volume { ino, .. } => ino,
        }
    }
}

/// The attributes that listings show, and that `cp` keeps.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    /// Permission bits: the lower 12 bits of the mode.
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    pub(crate) nlink: u64,
    /// Space that it takes, in units of 512 bytes.
    pub(crate) sectors: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) id: FileId,
}

/// The attributes that only `stat` shows.
#[derive(Debug, Clone)]
pub(crate) struct Details {
    pub(crate) ctime: Timestamp,
    pub(crate) birth: Option<Timestamp>,
    /// Known of a volume that is not mounted, as are those that follow.
    pub(crate) generation: Option<u32>,
    pub(crate) flags: Option<u32>,
    pub(crate) runs: Option<Vec<FileRun>>,
}

/// A run of blocks of a file; holes are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct FileRun {
    /// First block in the file.
    pub(crate) file_block: u64,
    /// First block on the volume.
    pub(crate) volume_block: u64,
    pub(crate) blocks: u64,
}

/// The attributes of a file to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) perm: u32,
    pub(crate) rdev: u64,
    /// Text of a symbolic link.
    pub(crate) target: Option<&'a [u8]>,
    /// Name in messages, if not the file's own.
    pub(crate) shown_as: Option<&'a [u8]>,
}

impl New<'_> {
    /// Describes a new directory with the permissions `perm`.
    pub(crate) fn directory(perm: u32) -> Self {
        New { kind: FileKind::Directory, perm, rdev: 0, target: None, shown_as: None }
    }

    /// Describes a new regular file with the permissions `perm`.
    pub(crate) fn file(perm: u32) -> Self {
        New { kind: FileKind::Regular, ..New::directory(perm) }
    }
}

/// A range of bytes that are no hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The parts of an owner that could be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerSet {
    pub(crate) uid: bool,
    pub(crate) gid: bool,
}

/// Name and value of an extended attribute.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// The treatment of a symbolic link at the end of a path. Those on the way are always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Followed,
    Kept,
}

/// A place with files. Only [`Tree::resolve`] takes a path and follows symbolic links; everything
/// else goes from a directory that is held to a name in it, and operations on a file act on the
/// file that is held, even if its name has come to mean another file.
pub(crate) trait Tree {
    /// A file in it, held: it stays the same file while its names change.
    type Node;
    /// Files that [`Tree::settle`] is best asked for together.
    const BATCH_FILES: usize;

    /// Returns the file at an absolute path (host: any path); `None` if there is none.
    fn resolve(&self, path: &[u8], last: LastLink) -> Result<Option<Self::Node>>;
    /// Returns the file of a name in a directory; symbolic links are not followed.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// Returns the file of a name in a directory, or the one that a symbolic link of that name leads to; `None` if
    /// there is none.
    fn child_followed(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// Returns the directory that `dir` was entered from.
    ///
    /// # Errors
    /// Fails if that directory is not `id`: `dir` was moved meanwhile.
    fn entered_from(&self, dir: &Self::Node, id: FileId) -> Result<Self::Node>;
    /// Returns the directory that `..` of a directory leads to; of the root, the root.
    fn above(&self, dir: &Self::Node) -> Result<Self::Node>;
    fn meta(&self, node: &Self::Node) -> Result<Meta>;
    fn details(&self, node: &Self::Node) -> Result<Details>;
    /// Returns the file that a symbolic link leads to in the end, with its kind; `None` if it leads
    /// nowhere. Any other file leads to itself.
    fn leads_to(&self, node: &Self::Node) -> Result<Option<(FileId, FileKind)>>;
    /// Returns all names in a directory but `.` and `..`, sorted.
    fn names(&self, dir: &Self::Node) -> Result<Vec<Vec<u8>>>;
    /// Returns the text of a symbolic link.
    fn target(&self, link: &Self::Node) -> Result<Vec<u8>>;
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>>;
    /// Returns the next range of data at or after `offset`.
    fn data(&self, file: &Self::Node, offset: u64) -> Result<Option<Extent>>;
    /// Reads and returns the number of bytes; fewer than asked for only at the end of the file.
    fn read(&self, file: &Self::Node, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Returns the most bytes that all files together have, if that is known.
    fn capacity(&self) -> Option<u64>;

    /// Makes a file under a name that does not exist.
    fn make(&self, dir: &Self::Node, name: &[u8], new: New<'_>) -> Result<Self::Node>;
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;
    /// Gives a file another name in its directory, in place of a file that has it.
    fn rename(&self, dir: &Self::Node, from: &[u8], to: &[u8]) -> Result<()>;
    fn unlink(&self, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn rmdir(&self, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn write(&self, file: &Self::Node, offset: u64, data: &[u8]) -> Result<()>;
    fn resize(&self, file: &Self::Node, size: u64) -> Result<()>;
    fn set_perm(&self, node: &Self::Node, perm: u32) -> Result<()>;
    /// Sets owner and group if the caller may, and returns the parts that were set.
    fn set_owner(&self, node: &Self::Node, uid: u32, gid: u32) -> Result<OwnerSet>;
    fn set_times(&self, node: &Self::Node, atime: Timestamp, mtime: Timestamp) -> Result<()>;
    /// Sets an extended attribute; one that the caller may not set, or that the place does not know, is left out.
    fn set_xattr(&self, node: &Self::Node, xattr: &Xattr) -> Result<()>;
    /// Makes the contents of these new files durable.
    fn settle(&self, files: &[&Self::Node]) -> Result<()>;
    /// Returns the trail by which a file was found.
    fn trail<'n>(&self, node: &'n Self::Node) -> &'n Trail;
    /// Returns a path in words, for messages.
    fn shown(&self, path: &[u8]) -> String;
    /// Returns the file's path in words, for messages.
    fn describe(&self, node: &Self::Node) -> String;
}
