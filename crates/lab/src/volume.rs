//! The shape of the volumes under test, and making one.

use moafs_disk::{MemDisk, SECTOR};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::Timestamp;

use crate::error::{LabError, Result};

/// Groups of the paper's volume.
const PAPER_GROUPS: f64 = 25.0;
/// Fewest groups of a scaled volume: below two there is no distance to seek over.
const GROUPS_MIN: u32 = 2;
/// Bytes per inode, as FFS's newfs counted at its default of four fragments.
const BYTES_PER_INODE: u64 = 16 << 10;
/// Bytes of an inode: those of FFS have this size, and so have ext2's first ones.
const INODE_BYTES: u32 = 128;
/// The time of making: volumes with equal parameters are equal.
const MADE_AT: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };

/// The shape of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeShape {
    /// Block groups: FFS's cylinder groups.
    pub groups: u32,
    /// Number of blocks in each group.
    pub blocks_per_group: u32,
    /// Bytes in a block.
    pub block_bytes: u32,
}

impl VolumeShape {
    /// Returns the paper's shape: 4 GiB in 25 groups of 10,488 blocks of 16 KiB; at another scale,
    /// with as many groups less.
    pub fn paper(scale: f64) -> VolumeShape {
        let groups = ((PAPER_GROUPS * scale).round() as u32).max(GROUPS_MIN);
        VolumeShape { groups, blocks_per_group: 10_488, block_bytes: 16 << 10 }
    }

    /// Returns the shape of a volume of about `bytes` bytes. The group is the paper's, or the
    /// largest that a bitmap block and the volume allow.
    ///
    /// # Errors
    /// [`LabError::Value`] for blocks of a size that cannot be, and volumes too small for two groups.
    pub fn of_size(bytes: u64, block_bytes: u32) -> Result<VolumeShape> {
        if !block_bytes.is_power_of_two() || !(1024..=65536).contains(&block_bytes) {
            return Err(LabError::Value {
                name: "block".to_owned(),
                value: block_bytes.to_string(),
                rule: "1K, 2K, 4K, 8K, 16K, 32K or 64K".to_owned(),
            });
        }
        let blocks = bytes / u64::from(block_bytes);
        let in_bitmap = (u64::from(block_bytes) * 8).min(10_488);
        let blocks_per_group = in_bitmap.min(blocks / u64::from(GROUPS_MIN)) / 8 * 8;
        if blocks_per_group < 256 {
            return Err(LabError::Value {
                name: "size".to_owned(),
                value: bytes.to_string(),
                rule: format!("at least {} bytes with blocks of {block_bytes}", 512 * u64::from(block_bytes)),
            });
        }
        let groups = u32::try_from(blocks / blocks_per_group).unwrap_or(u32::MAX);
        Ok(VolumeShape { groups, blocks_per_group: blocks_per_group as u32, block_bytes })
    }

    /// Returns the number of blocks of the volume.
    pub fn blocks(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.blocks_per_group)
    }

    /// Returns the size of the volume in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks() * u64::from(self.block_bytes)
    }

    /// Makes an empty volume of this shape.
    ///
    /// # Errors
    /// Fails if mkfs refuses the shape.
    pub fn make(&self) -> Result<MemDisk> {
        let disk = MemDisk::new(self.bytes() / SECTOR as u64);
        let mut options = MkfsOptions::new(*b"moafs lab volume", *b"moafs lab hashes", MADE_AT);
        options.block_size = Some(self.block_bytes);
        options.blocks = Some(self.blocks());
        options.blocks_per_group = Some(self.blocks_per_group);
        options.inode_size = INODE_BYTES;
        options.inodes = Some(self.bytes() / BYTES_PER_INODE);
        mkfs(&disk, &options)?;
        Ok(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_volume_has_25_groups() {
        let shape = VolumeShape::paper(1.0);
        assert_eq!((shape.groups, shape.blocks()), (25, 262_200));
        assert_eq!(VolumeShape::paper(0.01).groups, 2);
        shape.make().unwrap();
    }

    #[test]
    fn shapes_follow_from_sizes() {
        let shape = VolumeShape::of_size(4 << 30, 16 << 10).unwrap();
        assert_eq!(shape.blocks_per_group, 10_488);
        assert_eq!(shape.groups, 24);
        for block in [1024, 4096, 65536] {
            VolumeShape::of_size(256 << 20, block).unwrap().make().unwrap();
        }
        assert!(VolumeShape::of_size(1 << 20, 16 << 10).is_err());
        assert!(VolumeShape::of_size(1 << 30, 3000).is_err());
    }
}
