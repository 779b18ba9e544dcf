//! Making an empty volume: ext2, ext3 or ext4, by the features that it shall have.
//!
//! | module | decides or does |
//! |---|---|
//! | [`features`] | the features of each member of the family and of older systems; `-O` |
//! | [`usage`] | block size and density of inodes by the kind of use; `-T` |
//! | `shape` | the superblock: sizes, counts, what features need |
//! | [`layout`] | the place of everything; pure |
//! | `write` | carrying it out |
//!
//! The old superblock is erased first and the new one comes last, so that a power cut leaves either no volume or a
//! whole one.

pub mod features;
pub mod layout;
mod shape;
#[cfg(test)]
mod tests;
pub mod usage;
mod write;

use moafs_disk::{Disk, DiskError, SECTOR};
use moafs_runtime::Timestamp;

use crate::format::{BlockNo, Geometry};
use features::FeatureSet;
use layout::VolumeLayout;
use usage::Usage;

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

/// The reason for which no volume was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MkfsError {
    /// An option has a value that no volume can have.
    #[error("{what} {value} is not possible: {rule}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value of the option.
        value: u64,
        /// The values that are possible.
        rule: String,
    },
    /// Features do not go together, or are not made.
    #[error("{problem}")]
    Features {
        /// The rule that is broken.
        problem: String,
    },
    /// The device, or the size asked for, is too small for a volume of this shape.
    #[error("{blocks} blocks of {block_size} bytes are too few for a volume: {why}")]
    TooSmall {
        /// Number of blocks that there are.
        blocks: u64,
        /// The size of a block in bytes.
        block_size: u32,
        /// The part that does not fit.
        why: String,
    },
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The work that the request was part of.
        doing: &'static str,
        /// The error that the device reported.
        source: DiskError,
    },
}

/// Returns the error for an option's illegal value.
fn impossible<T>(what: &'static str, value: impl Into<u64>, rule: impl Into<String>) -> Result<T, MkfsError> {
    Err(MkfsError::Option { what, value: value.into(), rule: rule.into() })
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

/// Decides the layout of a new volume on a device of `device_bytes`, without writing anything.
///
/// # Errors
/// If the options do not fit together or with the device.
pub fn plan(device_bytes: u64, options: &MkfsOptions) -> Result<VolumeLayout, MkfsError> {
    layout::place(shape::decide(device_bytes, options)?, options)
}

/// Makes an empty volume on `disk`. All data on it are lost.
///
/// # Errors
/// If the options do not fit together or with the device, or if a request fails: then there is no
/// volume, neither the old nor the new one.
pub fn mkfs(disk: &dyn Disk, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let layout = plan(disk.limits().sectors * SECTOR as u64, options)?;
    write::write(disk, &layout, options)?;
    Ok(layout.report())
}
