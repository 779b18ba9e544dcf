//! The files of the model, and their numbers.

use std::collections::BTreeMap;

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use crate::content::Content;

/// Number of a node of the model. Never reused, unlike an inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);
}

/// Names and attributes of one file of any kind.
#[derive(Debug, Clone)]
pub struct Node {
    /// File type.
    pub kind: FileKind,
    /// Permission bits (12).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (for directories the way ext counts: 2 and one per subdirectory).
    pub nlink: u32,
    /// Bytes of a regular file.
    pub content: Content,
    /// Text of a symbolic link.
    pub target: Vec<u8>,
    /// Device number.
    pub rdev: u64,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The modification time, if the last change set it explicitly; else `None`.
    pub mtime: Option<Timestamp>,
    /// Names in a directory.
    pub entries: BTreeMap<Vec<u8>, NodeId>,
    /// Parent of a directory.
    pub parent: NodeId,
    /// True while a handle keeps it alive.
    pub held: bool,
    /// True if it was made without a name, and never had one.
    pub tmpfile: bool,
}

impl Node {
    pub(super) fn new(kind: FileKind, perm: u32) -> Node {
        Node {
            kind,
            perm,
            uid: 0,
            gid: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            content: Content::default(),
            target: Vec::new(),
            rdev: 0,
            xattrs: BTreeMap::new(),
            mtime: None,
            entries: BTreeMap::new(),
            parent: NodeId::ROOT,
            held: false,
            tmpfile: false,
        }
    }

    /// Returns true while a name or a handle leads to it.
    pub fn alive(&self) -> bool {
        self.nlink > 0 || self.held
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
