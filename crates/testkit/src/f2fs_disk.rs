//! F2FS on a disk in memory, read at fixed offsets and without the code under test: the positions of the areas, the
//! newest checkpoint, and the chain of nodes behind it.

use moafs_disk::Disk;
use moafs_disk::mem::MemDisk;

pub use crate::mutate::Reader;

/// Bytes in a block.
pub const BLOCK: u64 = 4096;
/// Blocks in a segment.
pub const BLOCKS_PER_SEGMENT: u64 = 512;
/// Byte offsets of the superblock's two copies.
pub const SUPERBLOCKS: [u64; 2] = [1024, BLOCK + 1024];
/// Bytes in a superblock.
pub const SUPERBLOCK_BYTES: usize = 3072;
/// Byte offset of its checksum, if it has one.
pub const SUPERBLOCK_CRC: u64 = 3068;
/// The magic number, which also seeds checksums.
pub const MAGIC: u32 = 0xF2F5_2010;

const CRC_RECOVERY: u64 = 0x40;

/// The fields of the superblock that lead to the other structures. Numbers of blocks, unless said otherwise.
pub struct Areas {
    /// First block of the checkpoint area, which holds the first pack.
    pub checkpoint: u64,
    /// First block of the segment information table (SIT).
    pub sit: u64,
    /// Segments of the SIT.
    pub sit_segments: u64,
    /// First block of the node address table (NAT).
    pub nat: u64,
    /// First block of the segment summary area (SSA).
    pub summary: u64,
    /// First block of the main area.
    pub main: u64,
    /// Blocks of the main area.
    pub main_blocks: u64,
    /// Feature bits.
    pub features: u64,
}

impl Areas {
    /// Reads the first superblock.
    pub fn of(read: &Reader<'_>) -> Areas {
        let number = |at: u64| read.number(SUPERBLOCKS[0] + at, 4);
        Areas {
            checkpoint: number(76),
            sit: number(80),
            sit_segments: number(56),
            nat: number(84),
            summary: number(88),
            main: number(92),
            main_blocks: number(68) * BLOCKS_PER_SEGMENT,
            features: number(2180),
        }
    }

    /// Returns the byte offsets of the two packs.
    pub fn packs(&self) -> [u64; 2] {
        [self.checkpoint * BLOCK, (self.checkpoint + BLOCKS_PER_SEGMENT) * BLOCK]
    }

    /// Returns the byte offset of the newest pack that is whole, or of the first one if none is.
    pub fn newest_pack(&self, read: &Reader<'_>) -> u64 {
        let [first, second] = self.packs();
        let version = |pack: u64| is_whole(read, pack).then(|| read.number(pack, 8));
        if version(second) > version(first) { second } else { first }
    }

    /// Returns the blocks of the warm node log behind the newest checkpoint, up to the end of their chain.
    pub fn chain(&self, read: &Reader<'_>) -> Vec<u64> {
        let pack = self.newest_pack(read);
        // If large bitmaps follow, the checksum does not lie at the block's end.
        let checksum = pack + read.number(pack + 164, 4);
        let crc = if read.number(pack + 132, 4) & CRC_RECOVERY == 0 { 0 } else { read.number(checksum, 4) };
        let expected = read.number(pack, 8) | crc << 32;
        let (segment, offset) = (read.number(pack + 40, 4), read.number(pack + 70, 2));
        let mut at = self.main + segment * BLOCKS_PER_SEGMENT + offset;
        let mut chain = Vec::new();
        let in_main = self.main..self.main + self.main_blocks;
        while in_main.contains(&at) && chain.len() < 4096 && read.number(at * BLOCK + 4084, 8) == expected {
            chain.push(at);
            at = read.number(at * BLOCK + 4092, 4);
        }
        chain
    }
}

/// Returns true if first and last block of a pack have the same version and right checksums.
fn is_whole(read: &Reader<'_>, pack: u64) -> bool {
    let blocks = read.number(pack + 136, 4);
    let last = pack + blocks.saturating_sub(1) * BLOCK;
    let legal = (1..=BLOCKS_PER_SEGMENT).contains(&blocks);
    legal && sound(read, pack) && sound(read, last) && read.number(pack, 8) == read.number(last, 8)
}

fn sound(read: &Reader<'_>, at: u64) -> bool {
    let block = read.block(at);
    let offset = read.number(at + 164, 4) as usize;
    let Some(rest) = block.get(offset.saturating_add(4)..) else { return false };
    u64::from(crc32(crc32(MAGIC, &block[..offset]), rest)) == read.number(at + offset as u64, 4)
}

/// Returns the size of a disk in bytes.
pub fn image_bytes(image: &MemDisk) -> u64 {
    image.limits().sectors * moafs_disk::SECTOR as u64
}

/// Returns the reflected CRC-32 without the final inversion, computed bit by bit.
pub fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| {
        let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xEDB8_8320 };
        (0..8).fold(crc ^ u32::from(*byte), step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums_come_out() {
        assert_eq!(crc32(MAGIC, b"123456789"), 0x1657_A0C3);
        assert_eq!(crc32(u32::MAX, b"123456789"), 0x340B_C6D9);
    }
}
