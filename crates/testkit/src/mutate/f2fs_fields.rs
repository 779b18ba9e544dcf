//! The fields of all on-disk structures of an F2FS image, with their places (`docs/formats/f2fs.md`).
//!
//! Structures are found as a reader finds them: newest checkpoint, journal or table, block. Of tables, the entries in
//! use and some others are taken, in both copies; of inodes and nodes two of each shape; of arrays the first elements
//! and the last.

use std::collections::BTreeMap;

use super::{Layout, Reader};
use crate::f2fs_disk::{Areas, BLOCK, BLOCKS_PER_SEGMENT, SUPERBLOCK_BYTES, SUPERBLOCKS};

/// Fields of a structure: `(name, offset, width)`.
type Fields = &'static [(&'static str, u64, usize)];

const SUPERBLOCK: Fields = &[
    ("magic", 0, 4),
    ("major_ver", 4, 2),
    ("minor_ver", 6, 2),
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
    ("uuid", 108, 8),
    ("volume_name", 124, 4),
    ("volume_name, last character", 1146, 2),
    ("extension_count", 1148, 4),
    ("extension_list", 1152, 8),
    ("extension_list, last entry", 1656, 8),
    ("cp_payload", 1664, 4),
    ("version", 1668, 4),
    ("init_version", 1924, 4),
    ("feature", 2180, 4),
    ("encryption_level", 2184, 1),
    ("encrypt_pw_salt", 2185, 4),
    ("devs[0].path", 2201, 1),
    ("devs[0].total_segments", 2265, 4),
    ("devs[1].path", 2269, 1),
    ("devs[7].total_segments", 2741, 4),
    ("qf_ino[0]", 2745, 4),
    ("qf_ino[1]", 2749, 4),
    ("qf_ino[2]", 2753, 4),
    ("hot_ext_count", 2757, 1),
    ("s_encoding", 2758, 2),
    ("s_encoding_flags", 2760, 2),
    ("s_stop_reason", 2762, 1),
    ("s_errors", 2794, 1),
    ("reserved", 2810, 4),
    ("crc", 3068, 4),
];

const CHECKPOINT: Fields = &[
    ("checkpoint_ver", 0, 8),
    ("user_block_count", 8, 8),
    ("valid_block_count", 16, 8),
    ("rsvd_segment_count", 24, 4),
    ("overprov_segment_count", 28, 4),
    ("free_segment_count", 32, 4),
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
    ("crc", 4092, 4),
];

/// Arrays of a checkpoint: `(name, offset, width, elements)`.
const CHECKPOINT_ARRAYS: [(&str, u64, usize, u64); 5] = [
    ("cur_node_segno", 36, 4, 8),
    ("cur_node_blkoff", 68, 2, 8),
    ("cur_data_segno", 84, 4, 8),
    ("cur_data_blkoff", 116, 2, 8),
    ("alloc_type", 176, 1, 16),
];

const UMOUNT: u64 = 0x1;
const ORPHAN_PRESENT: u64 = 0x2;
const COMPACT_SUM: u64 = 0x4;
const FASTBOOT: u64 = 0x20;
const NAT_BITS: u64 = 0x80;
const LARGE_NAT_BITMAP: u64 = 0x400;

const ORPHANS: Fields = &[
    ("ino[0]", 0, 4),
    ("ino[1]", 4, 4),
    ("ino[2]", 8, 4),
    ("ino[1019]", 4076, 4),
    ("reserved", 4080, 4),
    ("blk_addr", 4084, 2),
    ("blk_count", 4086, 2),
    ("entry_count", 4088, 4),
    ("check_sum", 4092, 4),
];

const NAT_ENTRY: Fields = &[("version", 0, 1), ("ino", 1, 4), ("block_addr", 5, 4)];
const NAT_ENTRY_BYTES: u64 = 9;
const NAT_PER_BLOCK: u64 = 455;

const SIT_ENTRY: Fields = &[("vblocks", 0, 2), ("valid_map", 2, 8), ("valid_map, last bytes", 58, 8), ("mtime", 66, 8)];
const SIT_ENTRY_BYTES: u64 = 74;
const SIT_PER_BLOCK: u64 = 55;

const NAT_JOURNAL_ENTRY: Fields = &[("nid", 0, 4), ("version", 4, 1), ("ino", 5, 4), ("block_addr", 9, 4)];
const NAT_JOURNAL_ENTRY_BYTES: u64 = 13;
const NAT_JOURNAL_ENTRIES: u64 = 38;

const SIT_JOURNAL_ENTRY: Fields =
    &[("segno", 0, 4), ("vblocks", 4, 2), ("valid_map", 6, 8), ("valid_map, last bytes", 62, 8), ("mtime", 70, 8)];
const SIT_JOURNAL_ENTRY_BYTES: u64 = 78;
const SIT_JOURNAL_ENTRIES: u64 = 6;

const SUMMARY_ENTRY: Fields = &[("nid", 0, 4), ("version", 4, 1), ("ofs_in_node", 5, 2)];
const SUMMARY_ENTRY_BYTES: u64 = 7;
const SUMMARY_FOOTER: Fields = &[("entry_type", 4091, 1), ("check_sum", 4092, 4)];
/// Byte offset of the journal in a summary block, and its length.
const JOURNAL_AT: u64 = 3584;
const JOURNAL_BYTES: u64 = 507;

const INODE: Fields = &[
    ("i_mode", 0, 2),
    ("i_advise", 2, 1),
    ("i_inline", 3, 1),
    ("i_uid", 4, 4),
    ("i_gid", 8, 4),
    ("i_links", 12, 4),
    ("i_size", 16, 8),
    ("i_size, low half", 16, 4),
    ("i_blocks", 24, 8),
    ("i_atime", 32, 8),
    ("i_ctime", 40, 8),
    ("i_mtime", 48, 8),
    ("i_atime_nsec", 56, 4),
    ("i_ctime_nsec", 60, 4),
    ("i_mtime_nsec", 64, 4),
    ("i_generation", 68, 4),
    ("i_current_depth", 72, 4),
    ("i_xattr_nid", 76, 4),
    ("i_flags", 80, 4),
    ("i_pino", 84, 4),
    ("i_namelen", 88, 4),
    ("i_name", 92, 4),
    ("i_name, last byte", 346, 1),
    ("i_dir_level", 347, 1),
    ("i_ext.fofs", 348, 4),
    ("i_ext.blkaddr", 352, 4),
    ("i_ext.len", 356, 4),
    ("i_nid[0]", 4052, 4),
    ("i_nid[1]", 4056, 4),
    ("i_nid[2]", 4060, 4),
    ("i_nid[3]", 4064, 4),
    ("i_nid[4]", 4068, 4),
];

/// Fields of the extra area, as far as it reaches.
const EXTRA: Fields = &[
    ("i_extra_isize", 360, 2),
    ("i_inline_xattr_size", 362, 2),
    ("i_projid", 364, 4),
    ("i_inode_checksum", 368, 4),
    ("i_crtime", 372, 8),
    ("i_crtime_nsec", 380, 4),
    ("i_compr_blocks", 384, 8),
    ("i_compress_algorithm", 392, 1),
    ("i_log_cluster_size", 393, 1),
    ("i_compress_flag", 394, 2),
];

const FOOTER: Fields = &[
    ("footer nid", 4072, 4),
    ("footer ino", 4076, 4),
    ("footer flag", 4080, 4),
    ("footer cp_ver", 4084, 8),
    ("footer next_blkaddr", 4092, 4),
];

const XATTRS: Fields = &[
    ("xattr magic", 0, 4),
    ("xattr refcount", 4, 4),
    ("xattr reserved", 8, 4),
    ("xattr index", 24, 1),
    ("xattr name_len", 25, 1),
    ("xattr value_size", 26, 2),
    ("xattr name", 28, 2),
];

const DENTRY: Fields = &[("hash", 0, 4), ("ino", 4, 4), ("name_len", 8, 2), ("file_type", 10, 1)];
const DENTRY_BYTES: u64 = 11;
/// Byte offsets of entries and names in a block of a directory.
const DENTRIES_AT: u64 = 30;
const NAMES_AT: u64 = 2384;
/// Entries taken of a set.
const DENTRIES: u64 = 8;

/// Words of an inode's address array.
const WORDS: u64 = 923;
/// Byte offset of that array.
const ADDRESSES_AT: u64 = 360;
/// Bits of `i_inline`.
const INLINE_XATTR: u64 = 1;
const INLINE_DATA: u64 = 2;
const INLINE_DENTRY: u64 = 4;
const EXTRA_ATTR: u64 = 0x20;
const FLEXIBLE_INLINE_XATTR: u64 = 0x40;
/// Node offset of an inode's attribute node.
const XATTR_NODE: u64 = 0x1FFF_FFFF;

/// Node ids that are considered.
const NIDS: u64 = 400;
/// Inodes, or other nodes, taken of one shape.
const ALIKE: usize = 2;
/// Segments without a use whose table entries are taken.
const FREE_SEGMENTS: usize = 3;

/// Adds all fields of an undamaged image, and the ranges of its metadata.
pub(super) fn add(layout: &mut Layout, read: &Reader<'_>) {
    let areas = Areas::of(read);
    let newest = areas.newest_pack(read);
    let mut table = Table { layout, read, areas, pack: newest, shapes: BTreeMap::new() };
    for (copy, at) in SUPERBLOCKS.into_iter().enumerate() {
        table.layout.add(&format!("superblock {copy}"), SUPERBLOCK, at);
        table.layout.metadata.push((at, at + SUPERBLOCK_BYTES as u64));
    }
    for pack in table.areas.packs() {
        table.pack(pack, if pack == newest { "checkpoint" } else { "older checkpoint" });
    }
    let journal = table.nat_journal();
    table.nat(&journal);
    table.segments();
    let nodes: Vec<(u64, u64)> = (3..NIDS).filter_map(|nid| Some((nid, table.node_block(&journal, nid)?))).collect();
    nodes.into_iter().for_each(|(nid, block)| table.node(&format!("node {nid}"), block * BLOCK));
    table.shapes.clear();
    for block in table.areas.chain(read) {
        table.node("chain", block * BLOCK);
    }
}

struct Table<'a> {
    layout: &'a mut Layout,
    read: &'a Reader<'a>,
    areas: Areas,
    /// Byte offset of the newest pack.
    pack: u64,
    /// Number of nodes taken of each shape.
    shapes: BTreeMap<Vec<u64>, usize>,
}

impl Table<'_> {
    fn array(
        &mut self,
        structure: &str,
        name: &str,
        (at, width): (u64, usize),
        indices: impl IntoIterator<Item = u64>,
    ) {
        for index in indices {
            self.layout.add_one(structure, &format!("{name}[{index}]"), at + index * width as u64, width);
        }
    }

    fn flags(&self, pack: u64) -> u64 {
        self.read.number(pack + 132, 4)
    }

    /// Returns the byte offsets of the version bitmaps, of the SIT and of the NAT.
    fn bitmaps(&self, pack: u64) -> [u64; 2] {
        let (sit, nat) = (self.read.number(pack + 156, 4), self.read.number(pack + 160, 4));
        let payload = self.read.number(SUPERBLOCKS[0] + 1664, 4);
        if self.flags(pack) & LARGE_NAT_BITMAP != 0 {
            [pack + 196 + nat, pack + 196]
        } else if payload > 0 {
            [pack + BLOCK, pack + 192]
        } else {
            [pack + 192, pack + 192 + sit]
        }
    }

    fn pack(&mut self, pack: u64, name: &str) {
        let read = self.read;
        let (total, start_sum) = (read.number(pack + 136, 4), read.number(pack + 140, 4));
        let last = pack + total.saturating_sub(1) * BLOCK;
        self.checkpoint(&format!("{name}, first block"), pack);
        if total <= 1 || total > BLOCKS_PER_SEGMENT {
            return;
        }
        self.layout.metadata.push((pack, last + BLOCK));
        self.checkpoint(&format!("{name}, last block"), last);
        let [sit, nat] = self.bitmaps(pack);
        for (bitmap, at, bytes) in [("sit", sit, read.number(pack + 156, 4)), ("nat", nat, read.number(pack + 160, 4))]
        {
            self.layout.add_one(name, &format!("{bitmap} version bitmap"), at, 1);
            self.layout.add_one(name, &format!("{bitmap} version bitmap, last byte"), at + bytes - 1, 1);
        }
        let flags = self.flags(pack);
        let payload = read.number(SUPERBLOCKS[0] + 1664, 4);
        if flags & ORPHAN_PRESENT != 0 {
            for block in 1 + payload..start_sum {
                self.layout.add(&format!("{name}, orphans"), ORPHANS, pack + block * BLOCK);
            }
        }
        self.summaries(pack, name);
        if flags & NAT_BITS != 0 {
            let bytes = read.number(SUPERBLOCKS[0] + 60, 4) / 2 * BLOCKS_PER_SEGMENT / 8;
            let at = pack + (BLOCKS_PER_SEGMENT - (2 * bytes + 8).div_ceil(BLOCK)) * BLOCK;
            let fields = [("version", 0, 8), ("full", 8, 1), ("empty", 8 + bytes, 1)];
            fields.iter().for_each(|(field, offset, width)| {
                self.layout.add_one(&format!("{name}, nat_bits"), field, at + offset, *width);
            });
        }
    }

    fn checkpoint(&mut self, name: &str, at: u64) {
        self.layout.add(name, CHECKPOINT, at);
        for (array, offset, width, elements) in CHECKPOINT_ARRAYS {
            self.array(name, array, (at + offset, width), 0..elements);
        }
    }

    /// Returns the byte offsets of the NAT journal and of the SIT journal.
    fn journals(&self, pack: u64) -> [u64; 2] {
        let start = pack + self.read.number(pack + 140, 4) * BLOCK;
        if self.flags(pack) & COMPACT_SUM != 0 {
            [start, start + JOURNAL_BYTES]
        } else {
            let [hot, _, cold] = self.log_summaries(pack);
            [hot + JOURNAL_AT, cold + JOURNAL_AT]
        }
    }

    fn has_node_summaries(&self, pack: u64) -> bool {
        self.flags(pack) & (UMOUNT | FASTBOOT) != 0
    }

    /// Returns the byte offsets of the summary blocks of the data logs, of a pack that is not compact.
    fn log_summaries(&self, pack: u64) -> [u64; 3] {
        let behind = if self.has_node_summaries(pack) { 6 } else { 3 };
        let first = self.read.number(pack + 136, 4) - 1 - behind;
        [0, 1, 2].map(|log| pack + (first + log) * BLOCK)
    }

    fn summaries(&mut self, pack: u64, name: &str) {
        let [nat, sit] = self.journals(pack);
        let structure = format!("{name}, NAT journal");
        self.layout.add_one(&structure, "count", nat, 2);
        let entries = self.read.number(nat, 2).min(NAT_JOURNAL_ENTRIES - 1) + 1;
        for index in 0..entries {
            let at = nat + 2 + index * NAT_JOURNAL_ENTRY_BYTES;
            self.layout.add(&format!("{structure} [{index}]"), NAT_JOURNAL_ENTRY, at);
        }
        let structure = format!("{name}, SIT journal");
        self.layout.add_one(&structure, "count", sit, 2);
        let entries = self.read.number(sit, 2).min(SIT_JOURNAL_ENTRIES - 1) + 1;
        for index in 0..entries {
            let at = sit + 2 + index * SIT_JOURNAL_ENTRY_BYTES;
            self.layout.add(&format!("{structure} [{index}]"), SIT_JOURNAL_ENTRY, at);
        }
        if self.flags(pack) & COMPACT_SUM != 0 {
            let start = pack + self.read.number(pack + 140, 4) * BLOCK + 2 * JOURNAL_BYTES;
            for index in [0, 1, 2, 100, 438] {
                let at = start + index * SUMMARY_ENTRY_BYTES;
                self.layout.add(&format!("{name}, compact summary [{index}]"), SUMMARY_ENTRY, at);
            }
        } else {
            let data = self.log_summaries(pack);
            (0..).zip(data).for_each(|(log, at)| self.summary(&format!("{name}, summary of data log {log}"), at));
        }
        if self.has_node_summaries(pack) {
            let first = pack + (self.read.number(pack + 136, 4) - 4) * BLOCK;
            (0..3).for_each(|log| self.summary(&format!("{name}, summary of node log {log}"), first + log * BLOCK));
        }
    }

    fn summary(&mut self, name: &str, at: u64) {
        for index in [0, 1, 2, 511] {
            self.layout.add(&format!("{name} [{index}]"), SUMMARY_ENTRY, at + index * SUMMARY_ENTRY_BYTES);
        }
        self.layout.add(name, SUMMARY_FOOTER, at);
    }

    /// Returns the addresses of the newest pack's NAT journal, by node id.
    fn nat_journal(&self) -> BTreeMap<u64, u64> {
        let [journal, _] = self.journals(self.pack);
        let entry = |index: u64| {
            let at = journal + 2 + NAT_JOURNAL_ENTRY_BYTES * index;
            (self.read.number(at, 4), self.read.number(at + 9, 4))
        };
        (0..self.read.number(journal, 2).min(NAT_JOURNAL_ENTRIES)).map(entry).collect()
    }

    /// Returns true if the second copy of a table's block is the one in use. Version bitmaps start with the highest
    /// bit.
    fn is_second(&self, bitmap: usize, block: u64) -> bool {
        self.read.number(self.bitmaps(self.pack)[bitmap] + block / 8, 1) & (0x80 >> (block % 8)) != 0
    }

    /// Returns the byte offsets of a node's entry: in the table's copy in use, and in the other one.
    fn nat_entry(&self, nid: u64) -> [u64; 2] {
        let block = nid / NAT_PER_BLOCK;
        let first = self.areas.nat + block / BLOCKS_PER_SEGMENT * 2 * BLOCKS_PER_SEGMENT + block % BLOCKS_PER_SEGMENT;
        let copies = [first, first + BLOCKS_PER_SEGMENT].map(|at| at * BLOCK + nid % NAT_PER_BLOCK * NAT_ENTRY_BYTES);
        let [first, second] = copies;
        if self.is_second(1, block) { [second, first] } else { [first, second] }
    }

    /// Returns a segment's entry: in the table's copy in use, and in the other one.
    fn sit_entry(&self, segment: u64) -> [u64; 2] {
        let block = segment / SIT_PER_BLOCK;
        let first = self.areas.sit + block;
        let second = first + self.areas.sit_segments / 2 * BLOCKS_PER_SEGMENT;
        let [first, second] = [first, second].map(|at| at * BLOCK + segment % SIT_PER_BLOCK * SIT_ENTRY_BYTES);
        if self.is_second(0, block) { [second, first] } else { [first, second] }
    }

    /// Returns the block of a node in use.
    fn node_block(&self, journal: &BTreeMap<u64, u64>, nid: u64) -> Option<u64> {
        let from_table = || self.read.number(self.nat_entry(nid)[0] + 5, 4);
        let block = journal.get(&nid).copied().unwrap_or_else(from_table);
        (self.areas.main..self.areas.main + self.areas.main_blocks).contains(&block).then_some(block)
    }

    fn nat(&mut self, journal: &BTreeMap<u64, u64>) {
        let used = |nid: &u64| self.node_block(journal, *nid).is_some();
        let taken: Vec<u64> = (0..6).chain((6..NIDS).filter(used).take(24)).chain([NIDS, NAT_PER_BLOCK - 1]).collect();
        for nid in taken {
            let [current, other] = self.nat_entry(nid);
            self.layout.add(&format!("NAT [{nid}]"), NAT_ENTRY, current);
            self.layout.add(&format!("superseded NAT [{nid}]"), NAT_ENTRY, other);
        }
        for at in self.nat_entry(0) {
            self.layout.add_one("NAT block 0", "spare byte", at + BLOCK - 1, 1);
            self.layout.metadata.push((at, at + BLOCK));
        }
    }

    /// Adds the segments' entries in SIT and summary area.
    fn segments(&mut self) {
        let current: Vec<u64> =
            (0..3).flat_map(|log| [36, 84].map(|at| self.read.number(self.pack + at + 4 * log, 4))).collect();
        let segments = 0..self.areas.main_blocks / BLOCKS_PER_SEGMENT;
        let is_used =
            |segment: &u64| current.contains(segment) || self.read.number(self.sit_entry(*segment)[0], 2) & 0x3FF != 0;
        let (used, free): (Vec<u64>, Vec<u64>) = segments.partition(is_used);
        let last = free.last().copied();
        for segment in used.into_iter().chain(free.into_iter().take(FREE_SEGMENTS)).chain(last) {
            let [current, other] = self.sit_entry(segment);
            self.layout.add(&format!("SIT [{segment}]"), SIT_ENTRY, current);
            self.layout.add(&format!("superseded SIT [{segment}]"), SIT_ENTRY, other);
            for at in [current, other] {
                self.layout.metadata.push((at, at + SIT_ENTRY_BYTES));
            }
            let summary = (self.areas.summary + segment) * BLOCK;
            self.summary(&format!("SSA [{segment}]"), summary);
            self.layout.add_one(&format!("SSA [{segment}]"), "journal count", summary + JOURNAL_AT, 2);
            self.layout.metadata.push((summary, summary + BLOCK));
        }
    }

    /// Adds a node unless enough of its shape were taken.
    fn node(&mut self, name: &str, at: u64) {
        let number = |offset: u64, width| self.read.number(at + offset, width);
        let is_inode = number(4072, 4) == number(4076, 4);
        let shape = if is_inode {
            let nids = (0..5).map(|slot| u64::from(number(4052 + 4 * slot, 4) != 0));
            [number(0, 2) >> 12, number(3, 1), u64::from(number(76, 4) != 0)].into_iter().chain(nids).collect()
        } else {
            let offset = number(4080, 4) >> 3;
            vec![if offset == XATTR_NODE { offset } else { offset.min(3) }]
        };
        let taken = self.shapes.entry(shape).or_default();
        *taken += 1;
        if *taken > ALIKE {
            return;
        }
        self.layout.metadata.push((at, at + BLOCK));
        self.layout.add(name, FOOTER, at);
        if is_inode {
            self.inode(name, at);
        } else {
            self.array(name, "word", (at, 4), [0, 1, 2, 5, 1017]);
            if number(4080, 4) >> 3 == XATTR_NODE {
                self.layout.add(name, XATTRS, at);
            }
        }
    }

    fn inode(&mut self, name: &str, at: u64) {
        let number = |offset: u64, width| self.read.number(at + offset, width);
        let (inline, extra_bytes) = (number(3, 1), if number(3, 1) & EXTRA_ATTR == 0 { 0 } else { number(360, 2) });
        let flexible = self.areas.features & FLEXIBLE_INLINE_XATTR != 0;
        let xattr_words = if flexible && inline & EXTRA_ATTR != 0 {
            number(362, 2)
        } else if inline & (INLINE_XATTR | INLINE_DENTRY) != 0 {
            50
        } else {
            0
        };
        self.layout.add(name, INODE, at);
        let extra = EXTRA.iter().filter(|(_, offset, width)| offset + *width as u64 <= ADDRESSES_AT + extra_bytes);
        extra.for_each(|(field, offset, width)| self.layout.add_one(name, field, at + offset, *width));
        let first = at + ADDRESSES_AT + extra_bytes;
        let addresses = WORDS - extra_bytes / 4 - xattr_words;
        let xattrs = at + ADDRESSES_AT + 4 * (WORDS - xattr_words);
        if xattr_words > 0 && inline & INLINE_XATTR != 0 {
            self.layout.add(name, XATTRS, xattrs);
        }
        if inline & INLINE_DENTRY != 0 {
            self.array(name, "inline word", (first, 4), [0]);
            let bytes = 4 * (addresses - 1);
            let entries = bytes * 8 / 153;
            let bitmap = entries.div_ceil(8);
            let names = first + 4 + bytes - 8 * entries;
            self.dentries(name, [first + 4, names - DENTRY_BYTES * entries, names], bitmap);
        } else if inline & INLINE_DATA != 0 {
            self.array(name, "inline word", (first, 4), [0, 1, addresses - 1]);
        } else {
            self.array(name, "i_addr", (first, 4), [0, 1, 2, 3, 7, addresses - 1]);
            if number(0, 2) & 0xF000 == 0x4000 {
                let blocks: Vec<u64> = (0..addresses).map(|slot| self.read.number(first + 4 * slot, 4)).collect();
                let in_main = |block: &u64| (self.areas.main..self.areas.main + self.areas.main_blocks).contains(block);
                let taken: Vec<u64> = blocks.into_iter().filter(in_main).take(2).collect();
                for block in taken {
                    let start = block * BLOCK;
                    let structure = format!("{name}, block {block}");
                    self.dentries(&structure, [start, start + DENTRIES_AT, start + NAMES_AT], 27);
                    self.layout.add_one(&structure, "reserved", start + 27, 1);
                    self.layout.metadata.push((start, start + BLOCK));
                }
            }
        }
    }

    /// Adds a set of entries: their bitmap of so many bytes, the entries, and their names.
    fn dentries(&mut self, name: &str, [bitmap, entries, names]: [u64; 3], bitmap_bytes: u64) {
        self.array(name, "dentry_bitmap", (bitmap, 1), [0, 1, bitmap_bytes - 1]);
        for slot in 0..DENTRIES {
            self.layout.add(&format!("{name}, dentry {slot}"), DENTRY, entries + slot * DENTRY_BYTES);
            self.layout.add_one(&format!("{name}, dentry {slot}"), "name", names + slot * 8, 2);
        }
    }
}
