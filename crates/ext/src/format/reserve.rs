//! The reserve of the descriptor table (resize_inode): blocks behind the table and its copies that are kept for its
//! growth (`docs/formats/ext2.md`).

use super::Geometry;

/// A block of group 0 that is reserved for descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// Its index in the block that lists the reserve.
    pub index: u32,
    /// Its number.
    pub block: u32,
    /// The blocks of the same position in the groups with copies, which it lists.
    pub copies: Vec<u32>,
}

impl Geometry {
    /// Returns the blocks of group 0 that are reserved for descriptors.
    pub fn descriptor_reserve(&self) -> Vec<Reserved> {
        let copies: Vec<u64> =
            self.groups_with_copies().map(|group| u64::from(group.0) * u64::from(self.blocks_per_group)).collect();
        let reserved = |k: u32| {
            let block = self.first_data_block + 1 + u64::from(self.descriptor_blocks + k);
            Reserved {
                index: (self.descriptor_blocks + k) % self.apb,
                block: block as u32,
                copies: copies.iter().map(|offset| (block + offset) as u32).collect(),
            }
        };
        (0..self.reserved_gdt_blocks).map(reserved).collect()
    }
}
