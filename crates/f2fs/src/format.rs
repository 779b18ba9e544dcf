//! The bytes of an F2FS volume and their meaning. Nothing here does I/O or keeps state.
//!
//! Every decoder checks what it reads and names what is wrong ([`Damage`]); nothing panics on any bytes. Section
//! numbers in these modules are those of `docs/formats/f2fs.md`.
//!
//! | module | structure |
//! |---|---|
//! | [`crc`] | the checksum |
//! | [`superblock`] | superblock, features, areas of the volume |
//! | [`checkpoint`] | checkpoint blocks and packs, orphans |
//! | [`summary`] | segment summaries and the journals in them |
//! | [`nat`] | addresses and owners of nodes |
//! | [`sit`] | the valid blocks of each segment |
//! | [`node`] | node footers, and the way from a file block to its node |
//! | [`chain`] | nodes written since the checkpoint, for recovery |
//! | [`inode`] | inodes and the contents inside them |
//! | [`dentry`] | directory entries, hashed levels |
//! | [`xattr`] | extended attributes |

pub mod chain;
pub mod checkpoint;
pub mod crc;
pub mod dentry;
mod error;
pub mod inode;
pub mod nat;
pub mod node;
pub mod sit;
pub mod summary;
pub mod superblock;
pub mod xattr;

use serde::Serialize;

pub use error::{Damage, Structure};

/// Bytes in a block, always.
pub const BLOCK: usize = 4096;
/// Blocks in a segment, always (2 MiB).
pub const SEGMENT_BLOCKS: usize = 512;

/// Node id; an inode's number is the id of its first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Nid(pub u32);

impl Nid {
    /// The id that stands for no node.
    pub const NONE: Nid = Nid(0);
    /// The inode of the root directory.
    pub const ROOT: Nid = Nid(3);
}

impl std::fmt::Display for Nid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A block number on the volume, or one of the marks that stand in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct BlkAddr(pub u32);

impl BlkAddr {
    /// No block: a hole, or a free node id.
    pub const NULL: BlkAddr = BlkAddr(0);
    /// Reserved, nothing written yet: reads as zeros.
    pub const NEW: BlkAddr = BlkAddr(0xFFFF_FFFF);
    /// Part of a compressed cluster.
    pub const COMPRESSED: BlkAddr = BlkAddr(0xFFFF_FFFE);

    /// True if it names a block.
    pub fn is_real(self) -> bool {
        !matches!(self, BlkAddr::NULL | BlkAddr::NEW | BlkAddr::COMPRESSED)
    }
}

impl std::fmt::Display for BlkAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            BlkAddr::NULL => f.write_str("no block"),
            BlkAddr::NEW => f.write_str("a reserved block"),
            BlkAddr::COMPRESSED => f.write_str("a compressed cluster"),
            BlkAddr(no) => no.fmt(f),
        }
    }
}

/// A segment of the main area, counted from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Segno(pub u32);

impl std::fmt::Display for Segno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The six logs; the numbers are those of SIT's segment types (section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// Directory entries, files marked hot.
    HotData = 0,
    /// File data without a mark.
    WarmData = 1,
    /// Data that will rarely change, or were moved by the cleaner.
    ColdData = 2,
    /// Inodes and direct nodes of directories.
    HotNode = 3,
    /// Inodes and direct nodes of files: the only log that roll-forward recovery reads.
    WarmNode = 4,
    /// Indirect nodes of files and directories.
    ColdNode = 5,
}

impl Log {
    /// All logs: `ALL[log as usize] == log`.
    pub const ALL: [Log; 6] = [Log::HotData, Log::WarmData, Log::ColdData, Log::HotNode, Log::WarmNode, Log::ColdNode];

    /// Converts SIT's segment type to a log.
    pub fn from_type(number: u16) -> Option<Log> {
        Log::ALL.get(usize::from(number)).copied()
    }

    /// True for logs of nodes.
    pub fn is_node(self) -> bool {
        self >= Log::HotNode
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(["hot data", "warm data", "cold data", "hot node", "warm node", "cold node"][*self as usize])
    }
}

/// Returns the 16-bit number at `at`. The caller has checked the length.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the 32-bit number at `at`. The caller has checked the length.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the 64-bit number at `at`. The caller has checked the length.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Stores a 16-bit number at `at`.
#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 32-bit number at `at`.
#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 64-bit number at `at`.
#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
