//! Positions of the structures of an ext image.

use moafs_disk::mem::MemDisk;

use super::{Layout, Reader, ext_seal};

/// Superblock fields that a mount reads: `(name, offset, width)`.
const SUPERBLOCK: [(&str, u64, usize); 36] = [
    ("s_inodes_count", 0x00, 4),
    ("s_blocks_count", 0x04, 4),
    ("s_r_blocks_count", 0x08, 4),
    ("s_free_blocks_count", 0x0C, 4),
    ("s_free_inodes_count", 0x10, 4),
    ("s_first_data_block", 0x14, 4),
    ("s_log_block_size", 0x18, 4),
    ("s_log_cluster_size", 0x1C, 4),
    ("s_blocks_per_group", 0x20, 4),
    ("s_clusters_per_group", 0x24, 4),
    ("s_inodes_per_group", 0x28, 4),
    ("s_mtime", 0x2C, 4),
    ("s_mnt_count", 0x34, 2),
    ("s_magic", 0x38, 2),
    ("s_state", 0x3A, 2),
    ("s_errors", 0x3C, 2),
    ("s_creator_os", 0x48, 4),
    ("s_rev_level", 0x4C, 4),
    ("s_first_ino", 0x54, 4),
    ("s_inode_size", 0x58, 2),
    ("s_feature_compat", 0x5C, 4),
    ("s_feature_incompat", 0x60, 4),
    ("s_feature_ro_compat", 0x64, 4),
    ("s_reserved_gdt_blocks", 0xCE, 2),
    ("s_journal_inum", 0xE0, 4),
    ("s_last_orphan", 0xE8, 4),
    ("s_desc_size", 0xFE, 2),
    ("s_def_hash_version", 0xFC, 1),
    ("s_want_extra_isize", 0x15E, 2),
    ("s_backup_bgs", 0x24C, 4),
    ("s_free_blocks_count", 0x0C, 2),
    ("s_r_blocks_count", 0x08, 2),
    ("s_journal_dev", 0xE4, 4),
    ("s_journal_uuid", 0xD0, 4),
    ("s_jnl_backup_type", 0xFD, 1),
    ("s_jnl_blocks", 0x10C, 4),
];

/// Those that only volumes with features of ext4 have.
const SUPERBLOCK_EXT4: [(&str, u64, usize); 13] = [
    ("s_hash_seed", 0xEC, 4),
    ("s_first_meta_bg", 0x104, 4),
    ("s_blocks_count_hi", 0x150, 4),
    ("s_free_blocks_hi", 0x158, 4),
    ("s_min_extra_isize", 0x15C, 2),
    ("s_flags", 0x160, 4),
    ("s_log_groups_per_flex", 0x174, 1),
    ("s_checksum_type", 0x175, 1),
    ("s_error_count", 0x194, 4),
    ("s_overhead_clusters", 0x248, 4),
    ("s_checksum_seed", 0x270, 4),
    ("s_orphan_file_inum", 0x280, 4),
    ("s_checksum", 0x3FC, 4),
];

/// Those of descriptors of 64 bytes.
const DESCRIPTOR_HIGH: [(&str, u64, usize); 6] = [
    ("bg_block_bitmap_hi", 0x20, 4),
    ("bg_inode_table_hi", 0x28, 4),
    ("bg_free_blocks_count_hi", 0x2C, 2),
    ("bg_used_dirs_count_hi", 0x30, 2),
    ("bg_itable_unused_hi", 0x32, 2),
    ("bg_block_bitmap_csum_hi", 0x38, 2),
];

/// The header of a node of an extent tree, and its first two entries.
const EXTENTS: [(&str, u64, usize); 12] = [
    ("eh_magic", 0, 2),
    ("eh_entries", 2, 2),
    ("eh_max", 4, 2),
    ("eh_depth", 6, 2),
    ("ee_block", 12, 4),
    ("ee_len, or ei_leaf", 16, 2),
    ("ee_start_hi", 18, 2),
    ("ee_start", 20, 4),
    ("second ee_block", 24, 4),
    ("second ee_len, or ei_leaf", 28, 2),
    ("second ee_start_hi", 30, 2),
    ("second ee_start", 32, 4),
];

/// Levels of an extent tree whose nodes are mutated.
const LEVELS: usize = 3;

const DESCRIPTOR: [(&str, u64, usize); 9] = [
    ("bg_block_bitmap", 0, 4),
    ("bg_inode_bitmap", 4, 4),
    ("bg_inode_table", 8, 4),
    ("bg_free_blocks_count", 12, 2),
    ("bg_free_inodes_count", 14, 2),
    ("bg_used_dirs_count", 16, 2),
    ("bg_flags", 18, 2),
    ("bg_itable_unused", 28, 2),
    ("bg_checksum", 30, 2),
];

const INODE: [(&str, u64, usize); 20] = [
    ("i_mode", 0, 2),
    ("i_size", 4, 4),
    ("i_dtime", 20, 4),
    ("i_links_count", 26, 2),
    ("i_blocks", 28, 4),
    ("i_flags", 32, 4),
    ("i_block[0]", 40, 4),
    ("i_block[1]", 44, 4),
    ("i_block[11]", 84, 4),
    ("i_block[12]", 88, 4),
    ("i_block[13]", 92, 4),
    ("i_block[14]", 96, 4),
    ("i_generation", 100, 4),
    ("i_file_acl", 104, 4),
    ("i_size_high", 108, 4),
    ("i_extra_isize", 128, 2),
    ("i_faddr", 112, 4),
    ("i_blocks_high", 116, 2),
    ("i_file_acl_high", 118, 2),
    ("inode xattr magic", 160, 4),
];

/// Fields of an indirect or directory block's first records.
const RECORDS: [(&str, u64, usize); 20] = [
    ("entry inode", 0, 4),
    ("entry rec_len", 4, 2),
    ("entry name_len", 6, 1),
    ("entry file_type", 7, 1),
    ("second entry inode", 12, 4),
    ("second entry rec_len", 16, 2),
    ("second entry name_len", 18, 1),
    ("third entry inode", 24, 4),
    ("third entry rec_len", 28, 2),
    ("third entry name_len", 30, 1),
    ("htree hash version", 28, 1),
    ("htree info_length", 29, 1),
    ("htree levels", 30, 1),
    ("htree flags", 31, 1),
    ("htree limit", 32, 2),
    ("htree count, or xattr e_name_len and index", 34, 2),
    ("htree block, or xattr name index", 33, 1),
    ("xattr e_value_size", 40, 4),
    ("xattr e_hash", 44, 4),
    ("xattr h_refcount", 4, 4),
];

/// Inodes per group whose fields are mutated.
const INODES_PER_GROUP: u64 = 48;

/// Reads the layout of an undamaged image.
pub fn layout(image: &MemDisk, bytes: u64) -> Layout {
    let read = Reader(image);
    let sb = 1024;
    let block = 1024u64 << read.number(sb + 0x18, 4);
    let first = read.number(sb + 0x14, 4);
    let (per_group, inodes) = (read.number(sb + 0x20, 4), read.number(sb + 0x28, 4));
    let inode_size = if read.number(sb + 0x4C, 4) == 0 { 128 } else { read.number(sb + 0x58, 2) };
    let groups = (read.number(sb + 4, 4) - first).div_ceil(per_group);
    let table = (first + 1) * block;
    let (incompat, ro_compat) = (read.number(sb + 0x60, 4), read.number(sb + 0x64, 4));
    let desc_size = if incompat & 0x80 == 0 { 32 } else { read.number(sb + 0xFE, 2) };
    let mut layout = Layout::new(bytes);
    layout.seal = (ro_compat & 0x410 != 0).then_some(ext_seal::seal);
    layout.metadata.push((sb, sb + 1024));
    layout.add("superblock", &SUPERBLOCK, sb);
    if incompat & 0x40 != 0 || ro_compat & 0x410 != 0 {
        layout.add("superblock", &SUPERBLOCK_EXT4, sb);
    }
    layout.metadata.push((table, table + groups * desc_size));
    for group in 0..groups {
        let descriptor = table + group * desc_size;
        if desc_size > 32 {
            layout.add(&format!("group {group}"), &DESCRIPTOR_HIGH, descriptor);
        }
        layout.add(&format!("group {group}"), &DESCRIPTOR, descriptor);
        for (at, len) in [(0, block), (4, block), (8, inodes.min(INODES_PER_GROUP) * inode_size)] {
            let start = read.number(descriptor + at, 4) * block;
            layout.metadata.push((start, start + len));
        }
        let inode_table = read.number(descriptor + 8, 4) * block;
        for number in 0..inodes.min(INODES_PER_GROUP) {
            let ino = group * inodes + number + 1;
            add_inode(&mut layout, &read, ino, (inode_table + number * inode_size, block));
        }
    }
    layout
}

/// Adds an inode in use, and the blocks that hold its map, directory contents or attributes.
fn add_inode(layout: &mut Layout, read: &Reader<'_>, ino: u64, (at, block): (u64, u64)) {
    let mode = read.number(at, 2);
    if mode == 0 {
        return;
    }
    layout.add(&format!("inode {ino}"), &INODE, at);
    let is_dir = mode & 0xF000 == 0x4000;
    if read.number(at + 32, 4) & 0x8_0000 != 0 {
        return add_tree(layout, read, ino, (at + 40, block), is_dir);
    }
    let pointers: &[u64] = if is_dir { &[40, 44, 88, 104] } else { &[88, 92, 96, 104] };
    let is_mapped = is_dir || mode & 0xF000 == 0x8000;
    for pointer in pointers.iter().filter(|_| is_mapped) {
        let start = read.number(at + pointer, 4) * block;
        if start != 0 && start + block <= layout.bytes {
            layout.add(&format!("inode {ino}, block {}", start / block), &RECORDS, start);
            layout.metadata.push((start, start + block.min(4096)));
        }
    }
}

/// Adds the first node of each level of an extent tree whose root lies at a byte, and the first block of a directory.
fn add_tree(layout: &mut Layout, read: &Reader<'_>, ino: u64, (root, block): (u64, u64), is_dir: bool) {
    let mut node = root;
    for _ in 0..LEVELS {
        layout.add(&format!("inode {ino}, extents"), &EXTENTS, node);
        if read.number(node + 6, 2) == 0 {
            break;
        }
        node = read.number(node + 16, 4) * block;
        layout.metadata.push((node, node + block.min(4096)));
    }
    let start = read.number(node + 20, 4) * block;
    if is_dir && start != 0 && start + block <= layout.bytes {
        layout.add(&format!("inode {ino}, block {}", start / block), &RECORDS, start);
        layout.metadata.push((start, start + block.min(4096)));
    }
}
