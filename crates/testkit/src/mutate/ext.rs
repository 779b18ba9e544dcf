//! Positions of the structures of an ext image.

use moafs_disk::mem::MemDisk;

use super::{Layout, Reader};

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
    let mut layout = Layout::new(bytes);
    layout.metadata.push((sb, sb + 1024));
    layout.add("superblock", &SUPERBLOCK, sb);
    layout.metadata.push((table, table + groups * 32));
    for group in 0..groups {
        let descriptor = table + group * 32;
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
