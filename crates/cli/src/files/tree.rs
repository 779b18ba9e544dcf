//! [`Tree`]: what copying needs of a place where files live, be it the host or a volume.
//!
//! Copies in, out, and from volume to volume are then one piece of code.

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use super::trail::Trail;
use crate::error::Result;

/// What all names of one file have in common. Files of the host and of different volumes are never the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    /// Device and inode number.
    Host { dev: u64, ino: u64 },
    /// An open volume of this process, and the inode number.
    Volume { volume: usize, ino: u64 },
}

/// What `cp` looks at and keeps.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    /// Permission bits (12).
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    pub(crate) nlink: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) id: FileId,
}

/// A new file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) perm: u32,
    pub(crate) rdev: u64,
    /// Text of a symbolic link.
    pub(crate) target: Option<&'a [u8]>,
    /// What messages call it, if not by its name.
    pub(crate) shown_as: Option<&'a [u8]>,
}

impl New<'_> {
    /// A new directory.
    pub(crate) fn directory(perm: u32) -> Self {
        New { kind: FileKind::Directory, perm, rdev: 0, target: None, shown_as: None }
    }
}

/// A range of bytes that are no hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Which parts of an owner could be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerSet {
    pub(crate) uid: bool,
    pub(crate) gid: bool,
}

/// Name and value of an extended attribute.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// Whether a symbolic link at the end of a path is followed. Those on the way always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Followed,
    Kept,
}

/// A place where files live. Only [`Tree::resolve`] takes a path and follows symbolic links; everything else goes from
/// a directory that is held to a name in it, and what is done to a file is done to the file that is held, whatever its
/// name leads to by then.
pub(crate) trait Tree {
    /// A file in it, held: it stays the same file while its names change.
    type Node;
    /// Files that [`Tree::settle`] is best asked for together.
    const BATCH_FILES: usize;

    /// The file at an absolute path (host: any path).
    fn resolve(&self, path: &[u8], last: LastLink) -> Result<Option<Self::Node>>;
    /// A name in a directory; symbolic links are not followed.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// The directory that `dir` was entered from.
    ///
    /// # Errors
    /// If that is not `id`: `dir` was moved meanwhile.
    fn entered_from(&self, dir: &Self::Node, id: FileId) -> Result<Self::Node>;
    /// What `..` of a directory leads to; of the root, the root.
    fn above(&self, dir: &Self::Node) -> Result<Self::Node>;
    fn meta(&self, node: &Self::Node) -> Result<Meta>;
    /// Which file a symbolic link leads to in the end, with its kind; `None` if it leads nowhere. Any other file leads to itself.
    fn leads_to(&self, node: &Self::Node) -> Result<Option<(FileId, FileKind)>>;
    /// All names in a directory but `.` and `..`, sorted.
    fn names(&self, dir: &Self::Node) -> Result<Vec<Vec<u8>>>;
    /// A symbolic link's text.
    fn target(&self, link: &Self::Node) -> Result<Vec<u8>>;
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>>;
    /// The next range of data at or after `offset`.
    fn data(&self, file: &Self::Node, offset: u64) -> Result<Option<Extent>>;
    /// Reads; fewer bytes only at the end of the file.
    fn read(&self, file: &Self::Node, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Bytes that all files together have at most, if that is known.
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
    /// Sets owner and group as far as the caller may.
    fn set_owner(&self, node: &Self::Node, uid: u32, gid: u32) -> Result<OwnerSet>;
    fn set_times(&self, node: &Self::Node, atime: Timestamp, mtime: Timestamp) -> Result<()>;
    /// Sets an extended attribute; one that the caller may not set, or that the place does not know, is left out.
    fn set_xattr(&self, node: &Self::Node, xattr: &Xattr) -> Result<()>;
    /// Makes the contents of these new files durable.
    fn settle(&self, files: &[&Self::Node]) -> Result<()>;
    /// The way by which a file was found.
    fn trail<'n>(&self, node: &'n Self::Node) -> &'n Trail;
    /// The file in words, for messages.
    fn describe(&self, node: &Self::Node) -> String;
}
