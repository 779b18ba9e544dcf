//! The layout of an F2FS image, and its checksums.

use moafs_disk::mem::MemDisk;

use super::{Layout, f2fs_fields};
use crate::f2fs_disk::{
    Areas, BLOCK, MAGIC, Reader, SUPERBLOCK_BYTES, SUPERBLOCK_CRC, SUPERBLOCKS, crc32, image_bytes,
};

/// The checksum of a checkpoint lies behind its fields.
const LEAST_CHECKSUM_OFFSET: usize = 192;
const FEATURE_INODE_CHECKSUM: u64 = 0x20;
const FEATURE_SUPERBLOCK_CHECKSUM: u64 = 0x800;

/// Reads the layout of an undamaged image.
pub fn layout(image: &MemDisk, bytes: u64) -> Layout {
    let mut layout = Layout::new(bytes);
    layout.seal = Some(seal);
    f2fs_fields::add(&mut layout, &Reader(image));
    layout
}

/// Makes all checksums right, and the second superblock a copy of the first: otherwise a reader drops the damaged copy
/// and takes the other.
pub fn seal(image: &MemDisk) {
    let mut superblock = [0; SUPERBLOCK_BYTES];
    image.peek(SUPERBLOCKS[0], &mut superblock);
    image.poke(SUPERBLOCKS[1], &superblock);
    seal_checksums(image);
}

/// Makes all checksums right.
pub fn seal_checksums(image: &MemDisk) {
    let read = Reader(image);
    let areas = Areas::of(&read);
    for copy in SUPERBLOCKS.into_iter().filter(|_| areas.features & FEATURE_SUPERBLOCK_CHECKSUM != 0) {
        let mut superblock = [0; SUPERBLOCK_CRC as usize];
        image.peek(copy, &mut superblock);
        image.poke(copy + SUPERBLOCK_CRC, &crc32(MAGIC, &superblock).to_le_bytes());
    }
    let within = |at: u64| at.checked_add(BLOCK).is_some_and(|end| end <= image_bytes(image));
    for pack in areas.packs().into_iter().filter(|pack| within(*pack)) {
        let last = pack + read.number(pack + 136, 4).saturating_sub(1) * BLOCK;
        [pack, last].into_iter().filter(|at| within(*at)).for_each(|at| seal_checkpoint(image, at));
    }
    if areas.features & FEATURE_INODE_CHECKSUM != 0 {
        let mut uuid = [0; 16];
        image.peek(SUPERBLOCKS[0] + 108, &mut uuid);
        let blocks = (areas.main..areas.main.saturating_add(areas.main_blocks)).map(|block| block * BLOCK);
        blocks.take_while(|at| within(*at)).for_each(|at| seal_inode(image, at, &uuid));
    }
}

fn seal_checkpoint(image: &MemDisk, at: u64) {
    let mut block = [0; BLOCK as usize];
    image.peek(at, &mut block);
    let offset = u32::from_le_bytes(block[164..168].try_into().expect("four bytes")) as usize;
    // A damaged offset has no right checksum, and other blocks than checkpoints have none.
    if !(LEAST_CHECKSUM_OFFSET..=BLOCK as usize - 4).contains(&offset) {
        return;
    }
    let rest = &block[offset + 4..];
    let crc = crc32(crc32(MAGIC, &block[..offset]), rest);
    image.poke(at + offset as u64, &crc.to_le_bytes());
}

/// Makes the checksum right of a block that looks like an inode with one.
fn seal_inode(image: &MemDisk, at: u64, uuid: &[u8; 16]) {
    let number = |offset, width| Reader(image).number(at + offset, width);
    if number(4072, 4) != number(4076, 4) || number(4072, 4) == 0 || number(3, 1) & 0x20 == 0 {
        return;
    }
    let block = Reader(image).block(at);
    let seed = crc32(crc32(u32::MAX, uuid), &block[4076..4080]);
    let head = crc32(crc32(seed, &block[68..72]), &block[..368]);
    let crc = crc32(crc32(head, &[0; 4]), &block[372..]);
    image.poke(at + 368, &crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::look_with;
    use crate::image::f2fs;
    use crate::judges::fsck_f2fs;

    #[test]
    fn sealing_a_sound_image_changes_nothing_and_sealed_damage_is_seen() {
        let features = f2fs::ALL.iter().find(|geometry| geometry.name == "f2fs-features").unwrap();
        let Some(disk) = f2fs::make(features) else { return };
        let before = disk.to_bytes();
        seal(&disk);
        assert!(disk.to_bytes() == before, "checksums were right");
        let read = Reader(&disk);
        let pack = Areas::of(&read).newest_pack(&read);
        disk.poke(pack + 16, &77u64.to_le_bytes());
        seal(&disk);
        let Some(verdict) = look_with(&disk, fsck_f2fs::run).unwrap() else { return };
        assert!(verdict.faults.iter().any(|fault| fault.contains("valid_block_count")), "{}", verdict.text);
    }
}
