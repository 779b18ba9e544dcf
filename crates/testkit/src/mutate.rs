//! Damages images: single bytes and sectors anywhere, and fields of structures, where a decoder's checks are.
//!
//! The layout is taken from the undamaged image with a few reads at fixed offsets, not with the code under test.

pub mod ext;
mod ext_seal;
pub mod f2fs;
mod f2fs_fields;
pub mod golden;

use std::fmt;

use moafs_disk::mem::MemDisk;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A field of a structure.
#[derive(Debug, Clone)]
pub struct Field {
    /// Name of structure and field.
    pub what: String,
    /// Byte offset on the image.
    pub at: u64,
    /// Width in bytes: 1, 2, 4 or 8.
    pub width: usize,
}

/// Positions of the structures of an image.
#[derive(Debug, Clone)]
pub struct Layout {
    fields: Vec<Field>,
    /// Byte ranges of metadata, which mutations of bytes prefer.
    metadata: Vec<(u64, u64)>,
    bytes: u64,
    /// Makes checksums right again, so that damage gets past them.
    seal: Option<fn(&MemDisk)>,
}

/// Reads a disk in memory at any byte. Beyond the end there are zeros.
pub struct Reader<'a>(pub &'a MemDisk);

impl Reader<'_> {
    /// Returns a little-endian number of up to eight bytes.
    pub fn number(&self, at: u64, width: usize) -> u64 {
        let mut bytes = [0; 8];
        self.0.peek(at, &mut bytes[..width]);
        u64::from_le_bytes(bytes)
    }

    /// Returns the 4096 bytes at an offset.
    pub fn block(&self, at: u64) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        self.0.peek(at, &mut bytes);
        bytes
    }
}

impl Layout {
    /// Creates the layout of an image of `bytes`, without structures.
    fn new(bytes: u64) -> Layout {
        Layout { fields: Vec::new(), metadata: Vec::new(), bytes, seal: None }
    }

    /// Returns all fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns the function that makes checksums right again, for images that have some.
    pub fn seal(&self) -> Option<fn(&MemDisk)> {
        self.seal
    }

    /// Adds fields of one structure, given with their offsets in it.
    fn add(&mut self, structure: &str, fields: &[(&str, u64, usize)], base: u64) {
        fields.iter().for_each(|(name, at, width)| self.add_one(structure, name, base + at, *width));
    }

    /// Adds a field at a byte offset of the image.
    fn add_one(&mut self, structure: &str, name: &str, at: u64, width: usize) {
        self.fields.push(Field { what: format!("{structure}: {name}"), at, width });
    }
}

/// One change of an image.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// A field gets a value.
    Set(Field, u64),
    /// A bit is flipped.
    Flip(u64, u8),
    /// A byte gets a value.
    Byte(u64, u8),
    /// A sector becomes zeros.
    Zero(u64),
    /// A sector becomes another one's copy.
    Copy(u64, u64),
    /// Everything from here on is zeros: a truncated image.
    Truncate(u64),
    /// Checksums are made right again.
    CommitPoint(fn(&MemDisk)),
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
            Mutation::CommitPoint(_) => write!(f, "checksums made right"),
        }
    }
}

impl Mutation {
    /// Applies the change.
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
            Mutation::CommitPoint(seal) => seal(image),
        }
    }
}

/// Returns the mutations of a seed: one to four, most of them with matching checksums.
pub fn mutations(layout: &Layout, image: &MemDisk, seed: u64) -> Vec<Mutation> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let count = [1, 1, 1, 2, 4][rng.random_range(0..5)];
    let mut mutations: Vec<Mutation> = (0..count).map(|_| mutation(layout, image, &mut rng)).collect();
    mutations.extend(layout.seal.filter(|_| rng.random_ratio(4, 5)).map(Mutation::CommitPoint));
    mutations
}

fn mutation(layout: &Layout, image: &MemDisk, rng: &mut Pcg64Mcg) -> Mutation {
    let byte = |rng: &mut Pcg64Mcg| {
        let (start, end) = layout.metadata[rng.random_range(0..layout.metadata.len())];
        rng.random_range(start..end).min(layout.bytes - 1)
    };
    match rng.random_range(0..40) {
        0..22 => {
            let field = layout.fields[rng.random_range(0..layout.fields.len())].clone();
            let was = Reader(image).number(field.at, field.width);
            Mutation::Set(field, value(was, rng))
        }
        22..28 => Mutation::Flip(byte(rng), rng.random_range(0..8)),
        28..33 => Mutation::Byte(byte(rng), [0, 1, 0x7F, 0x80, 0xFF][rng.random_range(0..5)]),
        33..36 => Mutation::Zero(byte(rng) / 512 * 512),
        36..39 => Mutation::Copy(byte(rng) / 512 * 512, byte(rng) / 512 * 512),
        _ => Mutation::Truncate(rng.random_range(0..layout.bytes) / 512 * 512),
    }
}

/// Returns the values that a field is tried with: the limits, the neighbours, one bit, and what the next field of its
/// width has. The value it has is not among them.
pub fn values(layout: &Layout, image: &MemDisk, index: usize) -> Vec<u64> {
    let read = |field: &Field| Reader(image).number(field.at, field.width);
    let field = &layout.fields[index];
    let (was, bits) = (read(field), 8 * field.width);
    let mask = u64::MAX >> (64 - bits);
    let neighbour = layout.fields[index + 1..].iter().find(|next| next.width == field.width).map_or(0, read);
    let tried = [0, 1, mask, was.wrapping_add(1), was.wrapping_sub(1), was ^ 1 << (index % bits), neighbour];
    let mut values: Vec<u64> = tried.into_iter().map(|value| value & mask).filter(|value| *value != was).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns a value that decoders often get wrong: limits, neighbours, single bits, random numbers.
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

/// Returns a damaged copy. A truncated one is shorter than the original.
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
