//! Damage of a volume's bytes, in words that name the structure and the block.

use serde::Serialize;

use super::{BlockNo, GroupNo, InodeNo};

/// A structure on the volume, named with the numbers that find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// The superblock at byte 1024.
    Superblock,
    /// The superblock copy at the start of a group.
    SuperblockCopy(GroupNo),
    /// The group descriptor of a group.
    Descriptor(GroupNo),
    /// A group's block bitmap.
    BlockBitmap(GroupNo),
    /// A group's inode bitmap.
    InodeBitmap(GroupNo),
    /// A group's inode table.
    InodeTable(GroupNo),
    /// An inode in its table.
    Inode(InodeNo),
    /// A block of pointers of an inode.
    Indirect {
        /// The inode that owns it.
        inode: InodeNo,
        /// 1: points to data; 2: to single indirect blocks; 3: to double indirect blocks.
        level: u8,
    },
    /// A block of an inode's extent tree.
    ExtentNode {
        /// The inode that owns it.
        inode: InodeNo,
        /// Levels of nodes below it: 0 for leaves.
        depth: u16,
    },
    /// A block of a directory.
    Directory {
        /// The inode of the directory.
        inode: InodeNo,
        /// The block's number in the directory.
        lbn: u64,
    },
    /// A block of a directory's index.
    Index {
        /// The inode of the directory.
        inode: InodeNo,
        /// The block's number in the directory.
        lbn: u64,
    },
    /// The extended attributes inside an inode.
    InodeXattrs(InodeNo),
    /// The extended attribute block of an inode.
    XattrBlock(InodeNo),
    /// The value of an attribute in an inode of its own.
    XattrValue(InodeNo),
    /// The contents inside an inode.
    InlineData(InodeNo),
    /// A symbolic link's target.
    Symlink(InodeNo),
    /// A block of the orphan file.
    OrphanFile {
        /// The block's number in the file.
        lbn: u64,
    },
    /// The superblock of the journal.
    JournalSuperblock,
    /// A block of the journal, counted from its superblock.
    LogBlock(u32),
}

impl std::fmt::Display for Structure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Structure::Superblock => write!(f, "the superblock"),
            Structure::SuperblockCopy(g) => write!(f, "the superblock copy of group {g}"),
            Structure::Descriptor(g) => write!(f, "the descriptor of group {g}"),
            Structure::BlockBitmap(g) => write!(f, "the block bitmap of group {g}"),
            Structure::InodeBitmap(g) => write!(f, "the inode bitmap of group {g}"),
            Structure::InodeTable(g) => write!(f, "the inode table of group {g}"),
            Structure::Inode(ino) => write!(f, "inode {ino}"),
            Structure::Indirect { inode, level } => {
                write!(f, "a level-{level} indirect block of inode {inode}")
            }
            Structure::ExtentNode { inode, depth } => {
                write!(f, "an extent node of depth {depth} of inode {inode}")
            }
            Structure::Directory { inode, lbn } => {
                write!(f, "block {lbn} of directory inode {inode}")
            }
            Structure::Index { inode, lbn } => {
                write!(f, "the index in block {lbn} of directory inode {inode}")
            }
            Structure::InodeXattrs(ino) => write!(f, "the attributes inside inode {ino}"),
            Structure::XattrBlock(ino) => write!(f, "the attribute block of inode {ino}"),
            Structure::XattrValue(ino) => write!(f, "the attribute value in inode {ino}"),
            Structure::InlineData(ino) => write!(f, "the contents inside inode {ino}"),
            Structure::OrphanFile { lbn } => write!(f, "block {lbn} of the orphan file"),
            Structure::JournalSuperblock => write!(f, "the journal's superblock"),
            Structure::LogBlock(at) => write!(f, "block {at} of the journal"),
            Structure::Symlink(ino) => write!(f, "the target of symbolic link {ino}"),
        }
    }
}

/// The place of a structure: passed to a decoder so that its errors can name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The structure that is decoded.
    pub structure: Structure,
    /// The block it was read from, where that is known.
    pub block: Option<BlockNo>,
}

impl Place {
    /// Returns the place of `structure`, read from `block`.
    pub const fn new(structure: Structure, block: BlockNo) -> Place {
        Place { structure, block: Some(block) }
    }

    /// Returns the place of `structure`, from a block that does not matter.
    pub const fn of(structure: Structure) -> Place {
        Place { structure, block: None }
    }

    /// Returns the damage `problem` at this place.
    pub fn damage(self, problem: impl Into<String>) -> Damage {
        Damage { structure: self.structure, block: self.block, problem: problem.into() }
    }
}

/// A structure that cannot be decoded: its name, its block, and the error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The structure that is damaged.
    pub structure: Structure,
    /// The block it was read from, where that is known.
    pub block: Option<BlockNo>,
    /// The error, with the value that was found.
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

/// One feature that cannot be used, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The feature's name as `tune2fs -O` spells it, or its bit if it has no known name.
    pub feature: String,
    /// The way out, as a clause: "repair it with …".
    pub advice: String,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.feature, self.advice)
    }
}

/// A volume that cannot be used, because of features this crate does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// Every feature that cannot be used.
    pub reasons: Vec<Reason>,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the volume needs features that are not supported: ")?;
        for (i, reason) in self.reasons.iter().enumerate() {
            if i > 0 {
                write!(f, ", ")?;
            }
            write!(f, "{reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_names_structure_and_block() {
        let place = Place::new(Structure::Inode(InodeNo(12)), BlockNo(77));
        assert_eq!(
            place.damage("its size is negative").to_string(),
            "inode 12 (block 77) is damaged: its size is negative"
        );
    }
}
