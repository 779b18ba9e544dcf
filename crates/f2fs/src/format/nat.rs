//! The node address table (section 5): the block and the inode of each node.
//!
//! Each block of the table has two places, one current and one for the next checkpoint; the checkpoint's version
//! bitmap says which is which ([`Geometry::nat_at`](super::superblock::Geometry::nat_at)). Entries in the checkpoint's
//! journal are newer than the table.

use super::{BlkAddr, Nid, put_u32, u32_at};

/// Entries in a block of the table.
pub const NAT_PER_BLOCK: usize = 455;
/// Bytes of an entry.
pub(crate) const NAT_ENTRY_BYTES: usize = 9;

/// The address and the owner of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NatEntry {
    /// Raised each time the node id is freed, so that summaries of its former blocks are recognised as stale.
    pub version: u8,
    /// The inode the node belongs to; the node's own id for an inode.
    pub ino: Nid,
    /// The node's block; [`BlkAddr::NULL`] if the id is free.
    pub addr: BlkAddr,
}

impl NatEntry {
    pub(crate) fn decode(bytes: &[u8]) -> NatEntry {
        NatEntry { version: bytes[0], ino: Nid(u32_at(bytes, 1)), addr: BlkAddr(u32_at(bytes, 5)) }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes[0] = self.version;
        put_u32(bytes, 1, self.ino.0);
        put_u32(bytes, 5, self.addr.0);
    }
}

/// Decodes entry `index` (below [`NAT_PER_BLOCK`]) of a block of the table.
pub fn entry(block: &[u8], index: usize) -> NatEntry {
    NatEntry::decode(&block[span(index)])
}

/// Stores entry `index` (below [`NAT_PER_BLOCK`]) of a block of the table.
pub fn set_entry(block: &mut [u8], index: usize, entry: NatEntry) {
    entry.encode(&mut block[span(index)]);
}

fn span(index: usize) -> std::ops::Range<usize> {
    assert!(index < NAT_PER_BLOCK, "a NAT block has no entry {index}");
    index * NAT_ENTRY_BYTES..(index + 1) * NAT_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK;
    use super::*;

    #[test]
    fn entries_come_back_and_leave_their_neighbours_alone() {
        let mut block = vec![0xA5; BLOCK];
        let some = NatEntry { version: 7, ino: Nid(0x0102_0304), addr: BlkAddr(0x0506_0708) };
        for index in [0, 1, NAT_PER_BLOCK - 1] {
            set_entry(&mut block, index, some);
            assert_eq!(entry(&block, index), some);
        }
        assert_eq!(&block[..10], [7, 4, 3, 2, 1, 8, 7, 6, 5, 7]);
        assert_eq!((block[18], block[BLOCK - 1]), (0xA5, 0xA5));
    }
}
