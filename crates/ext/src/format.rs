//! The bytes of an ext2, ext3 or ext4 volume, and their meaning. Pure: no function here reads or writes a device.
//!
//! Every structure has two types: the bytes as they lie on the disk (kept whole, so that fields
//! this crate does not know survive a rewrite) and their checked meaning. Decoding checks; after it
//! no accessor can fail. Every error becomes a [`Damage`] that names the structure and the block.
//! All integers on the disk are little-endian.
//!
//! | module | structure |
//! |---|---|
//! | [`error`] | [`Damage`], [`Unsupported`] |
//! | [`checksum`] | checksums of metadata (ext4) |
//! | [`superblock`] | the superblock, [`Geometry`] |
//! | [`features`] | the table of features and what each allows |
//! | [`group`] | group descriptors |
//! | [`reserve`] | the blocks kept for more descriptors |
//! | [`bitmap`] | block and inode bitmaps |
//! | [`inode`] | inodes |
//! | [`map`] | the way from a file's block number to the pointer that maps it |
//! | [`extent`] | extent trees: the other way from a file's block number to the volume's |
//! | [`dir`] | directory blocks |
//! | [`exchange`] | temporary names of inodes that change places |
//! | [`renaming`] | the rename that a file is going through |
//! | [`htree`] | directory indexes |
//! | [`inline`] | contents inside an inode |
//! | [`casefold`] | names that are looked up without regard to case |
//! | [`journal`] | the journal: its superblock and the blocks of its log |
//! | [`fast_commit`] | the journal: fast commits |
//! | [`xattr`] | extended attributes and access control lists |

pub mod bitmap;
pub mod casefold;
pub mod checksum;
pub mod dir;
pub mod error;
pub mod exchange;
pub mod extent;
mod extra;
pub mod fast_commit;
pub mod features;
pub(crate) mod fixed;
pub(crate) mod fnv;
pub mod group;
pub mod htree;
pub mod inline;
pub mod inode;
pub mod journal;
pub mod map;
pub mod renaming;
pub mod reserve;
pub mod superblock;
pub mod xattr;

use serde::Serialize;

pub use checksum::{Checksums, Owner, Sealed};
pub use error::{Damage, Place, Structure, Unsupported};
pub use group::Descriptor;
pub use inode::Inode;
pub use superblock::{Geometry, Superblock, Support};

/// A block's number on the volume, counted from the volume's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct BlockNo(pub u64);

/// A block group's number. (FFS calls a block group a *cylinder group*.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct GroupNo(pub u32);

/// An inode's number, counted from 1; 0 means "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct InodeNo(pub u32);

impl InodeNo {
    /// The inode whose blocks are the device's bad blocks.
    pub const BAD_BLOCKS: InodeNo = InodeNo(1);
    /// The root directory's inode.
    pub const ROOT: InodeNo = InodeNo(2);
    /// A boot loader's file; usually unused.
    pub const BOOT_LOADER: InodeNo = InodeNo(5);
    /// The inode that owns the blocks reserved for growing the descriptor table.
    pub const RESIZE: InodeNo = InodeNo(7);
    /// The internal journal of an ext3 volume.
    pub const JOURNAL: InodeNo = InodeNo(8);
}

macro_rules! plain_display {
    ($($t:ty),*) => {$(
        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
plain_display!(BlockNo, GroupNo, InodeNo);

/// Returns the 16-bit number at `at`. The caller has checked the length.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the 32-bit number at `at`. The caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a 16-bit number at `at`.
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 32-bit number at `at`.
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Joins the two halves of a 32-bit number.
pub(crate) fn join16(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Joins the two halves of a 64-bit number.
pub(crate) fn join32(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
