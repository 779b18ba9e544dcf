//! Positions of the structures of an F2FS image, and its checksums.
//!
//! Nodes are found as a reader finds them: newest checkpoint, journal or table, block. So most damage hits structures
//! in use, not superseded ones.

use std::collections::BTreeMap;

use moafs_disk::mem::MemDisk;

use super::Layout;
use crate::f2fs_disk::{
    Areas, BLOCK, BLOCKS_PER_SEGMENT, MAGIC, Reader, SUPERBLOCK_BYTES, SUPERBLOCK_CRC, SUPERBLOCKS, crc32, image_bytes,
};

const FEATURE_INODE_CHECKSUM: u64 = 0x20;
const FEATURE_SUPERBLOCK_CHECKSUM: u64 = 0x800;

/// Superblock fields that a mount reads: `(name, offset, width)`.
const SUPERBLOCK: [(&str, u64, usize); 34] = [
    ("magic", 0, 4),
    ("major_ver", 4, 2),
    ("log_sectorsize", 8, 4),
    ("log_sectors_per_block", 12, 4),
    ("log_blocksize", 16, 4),
    ("log_blocks_per_seg", 20, 4),
    ("segs_per_sec", 24, 4),
    ("secs_per_zone", 28, 4),
    ("checksum_offset", 32, 4),
    ("block_count", 36, 8),
    ("section_count", 44, 4),
    ("segment_count", 48, 4),
    ("segment_count_ckpt", 52, 4),
    ("segment_count_sit", 56, 4),
    ("segment_count_nat", 60, 4),
    ("segment_count_ssa", 64, 4),
    ("segment_count_main", 68, 4),
    ("segment0_blkaddr", 72, 4),
    ("cp_blkaddr", 76, 4),
    ("sit_blkaddr", 80, 4),
    ("nat_blkaddr", 84, 4),
    ("ssa_blkaddr", 88, 4),
    ("main_blkaddr", 92, 4),
    ("root_ino", 96, 4),
    ("node_ino", 100, 4),
    ("meta_ino", 104, 4),
    ("volume_name", 124, 4),
    ("extension_count", 1148, 4),
    ("extension_list", 1152, 8),
    ("cp_payload", 1664, 4),
    ("feature", 2180, 4),
    ("devs[0].path", 2201, 1),
    ("qf_ino[0]", 2745, 4),
    ("hot_ext_count", 2757, 1),
];

const CHECKPOINT: [(&str, u64, usize); 31] = [
    ("checkpoint_ver", 0, 8),
    ("user_block_count", 8, 8),
    ("valid_block_count", 16, 8),
    ("rsvd_segment_count", 24, 4),
    ("overprov_segment_count", 28, 4),
    ("free_segment_count", 32, 4),
    ("cur_node_segno[0]", 36, 4),
    ("cur_node_segno[1]", 40, 4),
    ("cur_node_segno[2]", 44, 4),
    ("cur_node_blkoff[0]", 68, 2),
    ("cur_node_blkoff[1]", 70, 2),
    ("cur_node_blkoff[2]", 72, 2),
    ("cur_data_segno[0]", 84, 4),
    ("cur_data_segno[1]", 88, 4),
    ("cur_data_segno[2]", 92, 4),
    ("cur_data_blkoff[0]", 116, 2),
    ("cur_data_blkoff[1]", 118, 2),
    ("cur_data_blkoff[2]", 120, 2),
    ("ckpt_flags", 132, 4),
    ("cp_pack_total_block_count", 136, 4),
    ("cp_pack_start_sum", 140, 4),
    ("valid_node_count", 144, 4),
    ("valid_inode_count", 148, 4),
    ("next_free_nid", 152, 4),
    ("sit_ver_bitmap_bytesize", 156, 4),
    ("nat_ver_bitmap_bytesize", 160, 4),
    ("checksum_offset", 164, 4),
    ("elapsed_time", 168, 8),
    ("alloc_type[1]", 177, 1),
    ("alloc_type[4]", 180, 1),
    ("sit version bitmap", 192, 4),
];

const INODE: [(&str, u64, usize); 37] = [
    ("i_mode", 0, 2),
    ("i_advise", 2, 1),
    ("i_inline", 3, 1),
    ("i_links", 12, 4),
    ("i_size", 16, 8),
    ("i_size (low half)", 16, 4),
    ("i_blocks", 24, 8),
    ("i_mtime_nsec", 64, 4),
    ("i_current_depth", 72, 4),
    ("i_xattr_nid", 76, 4),
    ("i_flags", 80, 4),
    ("i_pino", 84, 4),
    ("i_namelen", 88, 4),
    ("i_name", 92, 4),
    ("i_dir_level", 347, 1),
    ("i_ext.fofs", 348, 4),
    ("i_ext.blkaddr", 352, 4),
    ("i_ext.len", 356, 4),
    ("i_addr[0]", 360, 4),
    ("i_extra_isize", 360, 2),
    ("i_inline_xattr_size", 362, 2),
    ("i_addr[1]", 364, 4),
    ("i_addr[6]", 384, 4),
    ("i_addr[7]", 388, 4),
    ("i_addr[8]", 392, 4),
    ("inline xattr magic", 360 + 873 * 4, 4),
    ("inline xattr index", 384 + 873 * 4, 1),
    ("inline xattr name_len", 385 + 873 * 4, 1),
    ("inline xattr value_size", 386 + 873 * 4, 2),
    ("i_nid[0]", 4052, 4),
    ("i_nid[1]", 4056, 4),
    ("i_nid[2]", 4060, 4),
    ("i_nid[4]", 4068, 4),
    ("footer nid", 4072, 4),
    ("footer ino", 4076, 4),
    ("footer flag", 4080, 4),
    ("footer next_blkaddr", 4092, 4),
];

/// Fields of direct, indirect and attribute nodes.
const NODE: [(&str, u64, usize); 11] = [
    ("node slot 0, or xattr magic", 0, 4),
    ("node slot 1", 4, 4),
    ("node slot 5", 20, 4),
    ("xattr index", 24, 1),
    ("xattr name_len", 25, 1),
    ("xattr value_size", 26, 2),
    ("node slot 1017", 4068, 4),
    ("footer nid", 4072, 4),
    ("footer ino", 4076, 4),
    ("footer flag", 4080, 4),
    ("footer next_blkaddr", 4092, 4),
];

/// Fields of the first records of a block of directory entries.
const DENTRIES: [(&str, u64, usize); 12] = [
    ("entries' bitmap", 0, 1),
    ("entries' bitmap", 1, 2),
    ("hash of entry 0", 30, 4),
    ("ino of entry 0", 34, 4),
    ("name_len of entry 0", 38, 2),
    ("file_type of entry 1", 51, 1),
    ("hash of entry 2", 52, 4),
    ("ino of entry 2", 56, 4),
    ("name_len of entry 2", 60, 2),
    ("file_type of entry 2", 62, 1),
    ("name of entry 2", 2400, 2),
    ("ino of entry 3", 67, 4),
];

const NAT_ENTRY: [(&str, u64, usize); 3] = [("nat version", 0, 1), ("nat ino", 1, 4), ("nat block_addr", 5, 4)];
const NAT_ENTRY_BYTES: u64 = 9;

const SIT_ENTRY: [(&str, u64, usize); 4] =
    [("sit vblocks", 0, 2), ("sit valid_map", 2, 4), ("sit valid_map", 58, 8), ("sit mtime", 66, 8)];
const SIT_ENTRY_BYTES: u64 = 74;

const SUMMARY: [(&str, u64, usize); 5] = [
    ("summary nid", 0, 4),
    ("summary version", 4, 1),
    ("summary ofs_in_node", 5, 2),
    ("summary nid", 7, 4),
    ("summary type", 4091, 1),
];

const JOURNALS: [(&str, u64, usize); 7] = [
    ("nat journal count", 0, 2),
    ("nat journal nid", 2, 4),
    ("nat journal ino", 7, 4),
    ("nat journal block_addr", 11, 4),
    ("sit journal count", 507, 2),
    ("sit journal segno", 509, 4),
    ("sit journal vblocks", 513, 2),
];

/// Node numbers that are considered.
const NIDS: u64 = 120;
/// Segments whose tables are damaged.
const SEGMENTS: u64 = 24;

/// Reads the layout of an undamaged image.
pub fn layout(image: &MemDisk, bytes: u64) -> Layout {
    let read = Reader(image);
    let areas = Areas::of(&read);
    let mut layout = Layout::new(bytes);
    layout.seal = Some(seal);
    layout.add(&SUPERBLOCK, SUPERBLOCKS[0]);
    layout.metadata.push((SUPERBLOCKS[0], SUPERBLOCKS[0] + SUPERBLOCK_BYTES as u64));
    let pack = areas.newest_pack(&read);
    layout.add(&CHECKPOINT, pack);
    let start_sum = pack + read.number(pack + 140, 4) * BLOCK;
    let end = pack + read.number(pack + 136, 4) * BLOCK;
    layout.metadata.push((pack, end));
    layout.add(&JOURNALS, start_sum);
    add_tables(&mut layout, &areas);
    for block in live_nodes(&read, &areas, pack) {
        add_node(&mut layout, &read, block * BLOCK);
    }
    layout
}

/// Adds segment, node and summary tables, both copies if there are two.
fn add_tables(layout: &mut Layout, areas: &Areas) {
    let sit_copy = areas.sit_segments / 2 * BLOCKS_PER_SEGMENT;
    for block in [areas.nat, areas.nat + BLOCKS_PER_SEGMENT] {
        (0..NIDS / 2).for_each(|nid| layout.add(&NAT_ENTRY, block * BLOCK + nid * NAT_ENTRY_BYTES));
        layout.metadata.push((block * BLOCK, block * BLOCK + NIDS * NAT_ENTRY_BYTES));
    }
    for block in [areas.sit, areas.sit + sit_copy] {
        (0..SEGMENTS).for_each(|segment| layout.add(&SIT_ENTRY, block * BLOCK + segment * SIT_ENTRY_BYTES));
        layout.metadata.push((block * BLOCK, block * BLOCK + SEGMENTS * SIT_ENTRY_BYTES));
    }
    for segment in 0..SEGMENTS {
        let at = (areas.summary + segment) * BLOCK;
        layout.add(&SUMMARY, at);
        layout.metadata.push((at, at + BLOCK));
    }
}

/// Returns the blocks of the nodes in use, by journal, else table.
fn live_nodes(read: &Reader<'_>, areas: &Areas, pack: u64) -> Vec<u64> {
    let journal = pack + read.number(pack + 140, 4) * BLOCK;
    let count = read.number(journal, 2).min(38);
    let entry = |i: u64| (read.number(journal + 2 + 13 * i, 4), read.number(journal + 2 + 13 * i + 9, 4));
    let journal: BTreeMap<u64, u64> = (0..count).map(entry).collect();
    // Version bit 0 of the node table: the first byte after the segment table's bitmap, highest bit first.
    let second = read.number(pack + 192 + read.number(pack + 156, 4), 1) & 0x80 != 0;
    let table = (areas.nat + if second { BLOCKS_PER_SEGMENT } else { 0 }) * BLOCK;
    let from_table = |nid: u64| read.number(table + nid * NAT_ENTRY_BYTES + 5, 4);
    let address = |nid: u64| journal.get(&nid).copied().unwrap_or_else(|| from_table(nid));
    let in_main = |block: &u64| (areas.main..areas.main + areas.main_blocks).contains(block);
    (3..NIDS).map(address).filter(in_main).collect()
}

fn add_node(layout: &mut Layout, read: &Reader<'_>, at: u64) {
    layout.metadata.push((at, at + BLOCK));
    if read.number(at + 4072, 4) != read.number(at + 4076, 4) {
        layout.add(&NODE, at);
        return;
    }
    layout.add(&INODE, at);
    let is_dir = read.number(at, 2) & 0xF000 == 0x4000;
    let inline = read.number(at + 3, 1);
    let extra = if inline & 0x20 == 0 { 0 } else { read.number(at + 360, 2) };
    let first = at + 360 + extra;
    if inline & 4 != 0 {
        layout.add(&[("inline entries' bitmap", 4, 1), ("inline entries", 40, 4), ("inline entries", 60, 2)], first);
    } else if is_dir {
        let block = read.number(first, 4) * BLOCK;
        if block != 0 && block + BLOCK <= layout.bytes {
            layout.add(&DENTRIES, block);
            layout.metadata.push((block, block + BLOCK));
        }
    }
}

/// Makes all checksums right, and the second superblock a copy of the first: otherwise a reader drops the damaged copy
/// and takes the other.
fn seal(image: &MemDisk) {
    let mut superblock = [0; SUPERBLOCK_BYTES];
    image.peek(SUPERBLOCKS[0], &mut superblock);
    let read = Reader(image);
    let areas = Areas::of(&read);
    if areas.features & FEATURE_SUPERBLOCK_CHECKSUM != 0 {
        let crc = crc32(MAGIC, &superblock[..SUPERBLOCK_CRC as usize]);
        superblock[SUPERBLOCK_CRC as usize..].copy_from_slice(&crc.to_le_bytes());
    }
    for copy in SUPERBLOCKS {
        image.poke(copy, &superblock);
    }
    let within = |at: u64| at.checked_add(BLOCK).is_some_and(|end| end <= image_bytes(image));
    for pack in areas.packs().into_iter().filter(|pack| within(*pack)) {
        let last = pack + read.number(pack + 136, 4).saturating_sub(1) * BLOCK;
        [pack, last].into_iter().filter(|at| within(*at)).for_each(|at| seal_checkpoint(image, at));
    }
    if areas.features & FEATURE_INODE_CHECKSUM != 0 {
        let uuid: [u8; 16] = superblock[108..124].try_into().expect("sixteen bytes");
        let blocks = (areas.main..areas.main.saturating_add(areas.main_blocks)).map(|block| block * BLOCK);
        blocks.take_while(|at| within(*at)).for_each(|at| seal_inode(image, at, &uuid));
    }
}

fn seal_checkpoint(image: &MemDisk, at: u64) {
    let mut block = [0; BLOCK as usize];
    image.peek(at, &mut block);
    let offset = u32::from_le_bytes(block[164..168].try_into().expect("four bytes")) as usize;
    // A damaged offset has no right checksum.
    let Some(rest) = block.get(offset.saturating_add(4)..) else { return };
    let crc = crc32(crc32(MAGIC, &block[..offset]), rest);
    image.poke(at + offset as u64, &crc.to_le_bytes());
}

/// Makes the checksum right of a block that looks like an inode with one.
fn seal_inode(image: &MemDisk, at: u64, uuid: &[u8; 16]) {
    let mut block = [0; BLOCK as usize];
    image.peek(at, &mut block);
    let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    if number(4072) != number(4076) || number(4072) == 0 || block[3] & 0x20 == 0 {
        return;
    }
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
