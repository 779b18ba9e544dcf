//! Damaging images: single bytes and sectors anywhere, and fields of structures, where a decoder's
//! checks are.
//!
//! The layout is taken from the undamaged image with a few reads at fixed offsets, not with the
//! code under test.

use std::fmt;

use moafs_disk::mem::MemDisk;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A field of a structure.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Structure and field, in words.
    pub what: &'static str,
    /// Byte offset on the image.
    pub at: u64,
    /// Width in bytes: 1, 2 or 4.
    pub width: usize,
}

/// Where the structures of an ext image are.
#[derive(Debug, Clone)]
pub struct Layout {
    fields: Vec<Field>,
    /// Byte ranges of metadata: mutations of bytes prefer them.
    metadata: Vec<(u64, u64)>,
    bytes: u64,
}

/// Superblock fields that a mount reads: `(name, offset, width)`.
const SUPERBLOCK: [(&str, u64, usize); 30] = [
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
];

const DESCRIPTOR: [(&str, u64, usize); 6] = [
    ("bg_block_bitmap", 0, 4),
    ("bg_inode_bitmap", 4, 4),
    ("bg_inode_table", 8, 4),
    ("bg_free_blocks_count", 12, 2),
    ("bg_free_inodes_count", 14, 2),
    ("bg_used_dirs_count", 16, 2),
];

const INODE: [(&str, u64, usize); 16] = [
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
];

/// Fields of an indirect or directory block's first records.
const RECORDS: [(&str, u64, usize); 10] = [
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
];

/// Inodes per group whose fields are mutated.
const INODES_PER_GROUP: u64 = 48;

struct Reader<'a>(&'a MemDisk);

impl Reader<'_> {
    fn number(&self, at: u64, width: usize) -> u64 {
        let mut bytes = [0; 8];
        self.0.peek(at, &mut bytes[..width]);
        u64::from_le_bytes(bytes)
    }
}

impl Layout {
    /// Reads the layout of an undamaged image.
    pub fn of(image: &MemDisk, bytes: u64) -> Layout {
        let read = Reader(image);
        let sb = 1024;
        let block = 1024u64 << read.number(sb + 0x18, 4);
        let first = read.number(sb + 0x14, 4);
        let (per_group, inodes) = (read.number(sb + 0x20, 4), read.number(sb + 0x28, 4));
        let inode_size = if read.number(sb + 0x4C, 4) == 0 { 128 } else { read.number(sb + 0x58, 2) };
        let groups = (read.number(sb + 4, 4) - first).div_ceil(per_group);
        let table = (first + 1) * block;
        let mut layout = Layout { fields: Vec::new(), metadata: vec![(sb, sb + 1024)], bytes };
        layout.add(&SUPERBLOCK, sb);
        layout.metadata.push((table, table + groups * 32));
        for group in 0..groups {
            let descriptor = table + group * 32;
            layout.add(&DESCRIPTOR, descriptor);
            for (at, len) in [(0, block), (4, block), (8, inodes.min(INODES_PER_GROUP) * inode_size)] {
                let start = read.number(descriptor + at, 4) * block;
                layout.metadata.push((start, start + len));
            }
            let inode_table = read.number(descriptor + 8, 4) * block;
            for number in 0..inodes.min(INODES_PER_GROUP) {
                layout.add_inode(&read, inode_table + number * inode_size, block);
            }
        }
        layout
    }

    fn add(&mut self, fields: &[(&'static str, u64, usize)], base: u64) {
        let field = |(what, at, width): &(&'static str, u64, usize)| Field { what, at: base + at, width: *width };
        self.fields.extend(fields.iter().map(field));
    }

    /// An inode in use, and the blocks that its map, directory contents or attributes lie in.
    fn add_inode(&mut self, read: &Reader<'_>, at: u64, block: u64) {
        let mode = read.number(at, 2);
        if mode == 0 {
            return;
        }
        self.add(&INODE, at);
        let is_dir = mode & 0xF000 == 0x4000;
        let pointers: &[u64] = if is_dir { &[40, 44, 88, 104] } else { &[88, 92, 96, 104] };
        let is_mapped = is_dir || mode & 0xF000 == 0x8000;
        for pointer in pointers.iter().filter(|_| is_mapped) {
            let start = read.number(at + pointer, 4) * block;
            if start != 0 && start + block <= self.bytes {
                self.add(&RECORDS, start);
                self.metadata.push((start, start + block.min(4096)));
            }
        }
    }
}

/// One damage.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// A field gets a value.
    Set(Field, u64),
    /// A bit flips.
    Flip(u64, u8),
    /// A byte gets a value.
    Byte(u64, u8),
    /// A sector becomes zeros.
    Zero(u64),
    /// A sector becomes another one's copy.
    Copy(u64, u64),
    /// Everything from here on is zeros: a truncated image.
    Truncate(u64),
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::Set(field, value) => write!(f, "{} (byte {}) = {value:#x}", field.what, field.at),
            Mutation::Flip(at, bit) => write!(f, "bit {bit} of byte {at} flipped"),
            Mutation::Byte(at, value) => write!(f, "byte {at} = {value:#x}"),
            Mutation::Zero(at) => write!(f, "sector at byte {at} zeroed"),
            Mutation::Copy(from, to) => write!(f, "sector at byte {from} copied to {to}"),
            Mutation::Truncate(at) => write!(f, "cut off at byte {at}"),
        }
    }
}

impl Mutation {
    /// Applies it.
    pub fn apply(&self, image: &MemDisk) {
        match self {
            Mutation::Set(field, value) => image.poke(field.at, &value.to_le_bytes()[..field.width]),
            Mutation::Flip(at, bit) => {
                let mut byte = [0];
                image.peek(*at, &mut byte);
                image.poke(*at, &[byte[0] ^ (1 << bit)]);
            }
            Mutation::Byte(at, value) => image.poke(*at, &[*value]),
            Mutation::Zero(at) => image.poke(*at, &[0; 512]),
            Mutation::Copy(from, to) => {
                let mut sector = [0; 512];
                image.peek(*from, &mut sector);
                image.poke(*to, &sector);
            }
            Mutation::Truncate(_) => {}
        }
    }
}

/// The mutations of a seed: one to four.
pub fn mutations(layout: &Layout, image: &MemDisk, seed: u64) -> Vec<Mutation> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let count = [1, 1, 1, 2, 4][rng.random_range(0..5)];
    (0..count).map(|_| mutation(layout, image, &mut rng)).collect()
}

fn mutation(layout: &Layout, image: &MemDisk, rng: &mut Pcg64Mcg) -> Mutation {
    let byte = |rng: &mut Pcg64Mcg| {
        let (start, end) = layout.metadata[rng.random_range(0..layout.metadata.len())];
        rng.random_range(start..end).min(layout.bytes - 1)
    };
    match rng.random_range(0..40) {
        0..22 => {
            let field = layout.fields[rng.random_range(0..layout.fields.len())];
            Mutation::Set(field, value(Reader(image).number(field.at, field.width), rng))
        }
        22..28 => Mutation::Flip(byte(rng), rng.random_range(0..8)),
        28..33 => Mutation::Byte(byte(rng), [0, 1, 0x7F, 0x80, 0xFF][rng.random_range(0..5)]),
        33..36 => Mutation::Zero(byte(rng) / 512 * 512),
        36..39 => Mutation::Copy(byte(rng) / 512 * 512, byte(rng) / 512 * 512),
        _ => Mutation::Truncate(rng.random_range(0..layout.bytes) / 512 * 512),
    }
}

/// A value that decoders get wrong: edges, neighbours, single bits, anything.
fn value(was: u64, rng: &mut Pcg64Mcg) -> u64 {
    match rng.random_range(0..9) {
        0 => 0,
        1 => u64::MAX,
        2 => was.wrapping_add(1),
        3 => was.wrapping_sub(1),
        4 => was ^ (1 << rng.random_range(0..32)),
        5 => 1 << rng.random_range(0..32),
        6 => (1u64 << rng.random_range(1..32)) - 1,
        7 => rng.random_range(0..64),
        _ => rng.random::<u32>().into(),
    }
}

/// A damaged copy. A truncated one is shorter than the original.
pub fn damaged(image: &MemDisk, bytes: u64, mutations: &[Mutation]) -> MemDisk {
    let copy = image.snapshot();
    mutations.iter().for_each(|mutation| mutation.apply(&copy));
    let end = mutations.iter().filter_map(|m| if let Mutation::Truncate(at) = m { Some(*at) } else { None }).min();
    match end {
        None => copy,
        Some(end) => {
            let whole = copy.to_bytes();
            MemDisk::from_bytes(&whole[..end.min(bytes) as usize])
        }
    }
}
