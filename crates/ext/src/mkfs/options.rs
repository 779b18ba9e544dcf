//! The shape that is asked for, and the one that the new volume has.

use moafs_runtime::Timestamp;

use super::features::FeatureSet;
use super::usage::Usage;
use crate::format::{BlockNo, Geometry};

/// The shape of the new volume. `None`: chosen from the size.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The features of the volume.
    pub features: FeatureSet,
    /// The kind of use, which gives block size and number of inodes unless they are given.
    pub usage: Option<Usage>,
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_size: Option<u32>,
    /// Blocks of the volume; `None`: the whole device.
    pub blocks: Option<u64>,
    /// Blocks in a group: a multiple of 8 from 256 to 8 times the block size, at most 65528.
    pub blocks_per_group: Option<u32>,
    /// Groups in a flex group, a power of two (flex_bg).
    pub groups_per_flex: u32,
    /// Bytes of the volume for each inode.
    pub bytes_per_inode: Option<u32>,
    /// Inodes on the volume; rounded up so that all groups have the same number.
    pub inodes: Option<u64>,
    /// Bytes of an inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// The share of blocks kept for root, in percent (0 to 50).
    pub reserved_percent: f64,
    /// Bytes of the journal (has_journal).
    pub journal_bytes: Option<u64>,
    /// Number of groups with copies of the superblock, 0 to 2 (sparse_super2).
    pub copies: u32,
    /// The volume's name: at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// The seed of the directory hash.
    pub hash_seed: [u8; 16],
    /// User and group of the root directory.
    pub root_owner: (u32, u32),
    /// Blocks that lie on one disk of an array before the next disk begins; 0 if there is no array.
    pub stride: u16,
    /// Data blocks of a stripe over all disks of an array.
    pub stripe_width: u32,
    /// True if inode tables stay as they are on the device until they are used (metadata_csum, uninit_bg).
    pub lazy_tables: bool,
    /// The current time, which goes into the superblock and the first inodes.
    pub now: Timestamp,
    /// True if the device is told first that its contents are no longer needed.
    pub discard: bool,
}

impl MkfsOptions {
    /// Returns the options of a plain ext2 volume, with the values that have no default.
    pub fn new(uuid: [u8; 16], hash_seed: [u8; 16], now: Timestamp) -> MkfsOptions {
        MkfsOptions {
            features: FeatureSet::PLAIN,
            usage: None,
            block_size: None,
            blocks: None,
            blocks_per_group: None,
            groups_per_flex: 16,
            bytes_per_inode: None,
            inodes: None,
            inode_size: 256,
            reserved_percent: 5.0,
            journal_bytes: None,
            copies: 2,
            label: Vec::new(),
            uuid,
            hash_seed,
            root_owner: (0, 0),
            stride: 0,
            stripe_width: 0,
            lazy_tables: false,
            now,
            discard: false,
        }
    }
}

/// The shape and the free space of the new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// The geometry of the volume.
    pub geometry: Geometry,
    /// The names of the volume's features.
    pub features: Vec<String>,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u64,
    /// Blocks kept for root.
    pub reserved_blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// The blocks that hold copies of the superblock.
    pub backups: Vec<BlockNo>,
}
