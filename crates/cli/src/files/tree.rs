//! [`Tree`]: what copying needs of a place where files live, be it the host or a volume.
//!
//! Copies in, out, and from volume to volume are then one piece of code.

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use crate::error::Result;

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
    /// What names of one file have in common: device and inode number.
    pub(crate) id: (u64, u64),
}

/// A new file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) perm: u32,
    pub(crate) rdev: u64,
    /// Text of a symbolic link.
    pub(crate) target: Option<&'a [u8]>,
}

/// A range of bytes that are no hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Name and value of an extended attribute.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// A place where files live. Symbolic links are never followed, except by [`Tree::resolve`] on the way.
pub(crate) trait Tree {
    /// A file in it.
    type Node;

    /// The file at an absolute path (host: any path).
    fn resolve(&self, path: &[u8]) -> Result<Option<Self::Node>>;
    /// A name in a directory.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    fn meta(&self, node: &Self::Node) -> Result<Meta>;
    /// All names in a directory but `.` and `..`, sorted.
    fn names(&self, dir: &Self::Node) -> Result<Vec<Vec<u8>>>;
    /// A symbolic link's text.
    fn target(&self, link: &Self::Node) -> Result<Vec<u8>>;
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>>;
    /// The next range of data at or after `offset`.
    fn data(&self, file: &Self::Node, offset: u64) -> Result<Option<Extent>>;
    /// Reads; fewer bytes only at the end of the file.
    fn read(&self, file: &Self::Node, offset: u64, into: &mut [u8]) -> Result<usize>;

    fn make(&self, dir: &Self::Node, name: &[u8], new: New<'_>) -> Result<Self::Node>;
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn unlink(&self, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn rmdir(&self, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn write(&self, file: &Self::Node, offset: u64, data: &[u8]) -> Result<()>;
    fn resize(&self, file: &Self::Node, size: u64) -> Result<()>;
    fn set_perm(&self, node: &Self::Node, perm: u32) -> Result<()>;
    fn set_owner(&self, node: &Self::Node, uid: u32, gid: u32) -> Result<()>;
    fn set_times(&self, node: &Self::Node, atime: Timestamp, mtime: Timestamp) -> Result<()>;
    fn set_xattr(&self, node: &Self::Node, xattr: &Xattr) -> Result<()>;
    /// The node in words, for messages.
    fn describe(&self, node: &Self::Node) -> String;
}
