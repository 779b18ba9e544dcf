//! Damage to a volume's bytes, in words that name the structure and the block.

use serde::Serialize;

use super::{BlkAddr, Nid, Segno};

/// A structure on the volume, named with the numbers that find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// A superblock copy (0 or 1).
    Superblock(u8),
    /// A checkpoint pack (1 or 2).
    Checkpoint(u8),
    /// A block of the node address table.
    Nat(u32),
    /// A segment's entry in the segment information table.
    Sit(Segno),
    /// The summary of a segment.
    Summary(Segno),
    /// The inode with this number.
    Inode(Nid),
    /// A node that is no inode.
    Node(Nid),
    /// A block of a directory.
    Directory {
        /// The directory's inode number.
        inode: Nid,
        /// The number of the block in the directory.
        lbn: u64,
    },
    /// The extended attributes of an inode.
    Xattrs(Nid),
    /// A symbolic link's target.
    Symlink(Nid),
}

impl std::fmt::Display for Structure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Structure::Superblock(copy) => write!(f, "superblock copy {copy}"),
            Structure::Checkpoint(pack) => write!(f, "checkpoint pack {pack}"),
            Structure::Nat(block) => write!(f, "block {block} of the node address table"),
            Structure::Sit(segment) => write!(f, "the SIT entry of segment {segment}"),
            Structure::Summary(segment) => write!(f, "the summary of segment {segment}"),
            Structure::Inode(ino) => write!(f, "inode {ino}"),
            Structure::Node(nid) => write!(f, "node {nid}"),
            Structure::Directory { inode, lbn } => write!(f, "block {lbn} of directory inode {inode}"),
            Structure::Xattrs(ino) => write!(f, "the attributes of inode {ino}"),
            Structure::Symlink(ino) => write!(f, "the target of symbolic link {ino}"),
        }
    }
}

impl Structure {
    /// Returns the damage `problem` in this structure, read from `block` where that is known.
    pub fn damage(self, block: Option<BlkAddr>, problem: impl Into<String>) -> Damage {
        Damage { structure: self, block, problem: problem.into() }
    }
}

/// A structure that cannot be right: its name, its place, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The structure that is damaged.
    pub structure: Structure,
    /// The block it was read from, where that is known.
    pub block: Option<BlkAddr>,
    /// The problem, with the value that was found.
    pub problem: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.structure)?;
        if let Some(block) = self.block {
            write!(f, " (block {block})")?;
        }
        write!(f, " is damaged: {}", self.problem)
    }
}

impl std::error::Error for Damage {}
