//! Directory indexes: a tree of name hashes, hidden in a directory that stays readable without it.
//!
//! Block 0 holds `.`, `..`, and behind them the root node; interior nodes hide in an unused entry;
//! leaves are ordinary directory blocks with the names whose hashes lie in the leaf's range. A name
//! may be inserted into the leaf of its hash, and removed anywhere, without touching the index.

pub mod edit;

use super::dir::Form;
use super::superblock::Superblock;
use super::{Damage, Place, u16_at, u32_at};

/// The offset of the root node's header in block 0, in bytes: behind `.` and `..`.
const ROOT_INFO: usize = 24;
/// The offset of the root node's entries, in bytes.
const ROOT_ENTRIES: usize = 32;
/// The offset of an interior node's entries, in bytes: behind the unused entry's header.
const NODE_ENTRIES: usize = 8;
/// Bytes of an index entry.
const ENTRY_BYTES: usize = 8;
/// The deepest tree without the large_dir feature: the root, and one level below it.
pub const LEVELS_MAX: u8 = 1;
/// Bits of an index entry that are a block number.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// Two names that hash to the end of the range; this value marks the end of a directory.
const HASH_EOF: u32 = 0xFFFF_FFFE;

/// A hash function for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The original hash function.
    Legacy,
    /// A shortened MD4, which is the default.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

/// The hash function of a directory's names, and its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hasher {
    /// The hash function for names.
    pub version: Version,
    /// Characters above 127 count as positive.
    pub unsigned: bool,
    /// `s_hash_seed`; zeros mean the function's own constants.
    pub seed: [u32; 4],
}

/// A name's hash: names are ordered by `major`, `minor` only breaks ties inside a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hash {
    /// The hash that names are ordered by: even, since the index uses bit 0.
    pub major: u32,
    /// The hash that breaks ties; 0 for [`Version::Legacy`].
    pub minor: u32,
}

impl Hasher {
    /// Returns the hasher that `hash_version` of a root node selects on this volume.
    pub fn of(hash_version: u8, sb: &Superblock) -> Option<Hasher> {
        let version = match hash_version {
            0 | 3 => Version::Legacy,
            1 | 4 => Version::HalfMd4,
            2 | 5 => Version::Tea,
            _ => return None,
        };
        Some(Hasher { version, unsigned: hash_version >= 3 || sb.unsigned_hash(), seed: sb.hash_seed() })
    }

    /// Returns the hash of a name.
    pub fn hash(&self, name: &[u8]) -> Hash {
        let (major, minor) = match self.version {
            Version::Legacy => (self.legacy(name), 0),
            Version::HalfMd4 => self.half_md4(name),
            Version::Tea => self.tea(name),
        };
        let major = match major & !1 {
            HASH_EOF => HASH_EOF - 2,
            even => even,
        };
        Hash { major, minor }
    }

    fn char(&self, byte: u8) -> u32 {
        if self.unsigned { byte.into() } else { i32::from(byte as i8) as u32 }
    }

    fn start(&self) -> [u32; 4] {
        if self.seed == [0; 4] { [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476] } else { self.seed }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut previous, mut before) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
        for &byte in name {
            let mixed = previous ^ self.char(byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7FFF_FFFF);
            }
            (before, previous) = (previous, next);
        }
        previous << 1
    }

    /// Returns the words of one chunk of a name, padded with the length of all that is left of it.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let len = rest.len() as u32;
        let pad = len | len << 8;
        let pad = pad | pad << 16;
        std::array::from_fn(|i| {
            let from = (4 * i).min(rest.len());
            let to = (from + 4).min(rest.len());
            rest[from..to].iter().fold(pad, |word, &byte| self.char(byte).wrapping_add(word << 8))
        })
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.start();
        for chunk in chunks(name, 32) {
            half_md4_chunk(&mut state, &self.words(chunk));
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.start();
        for chunk in chunks(name, 16) {
            tea_chunk(&mut state, &self.words(chunk));
        }
        (state[0], state[1])
    }
}

/// Returns the rest of a name at each chunk; an empty name has no chunk.
fn chunks(name: &[u8], bytes: usize) -> impl Iterator<Item = &[u8]> {
    (0..name.len()).step_by(bytes).map(|from| &name[from..])
}

fn half_md4_chunk(state: &mut [u32; 4], words: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [u32; 4], [usize; 8]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [3, 7, 11, 19], [0, 1, 2, 3, 4, 5, 6, 7]),
        (|x, y, z| (x & y).wrapping_add((x ^ y) & z), 0x5A82_7999, [3, 5, 9, 13], [1, 3, 5, 7, 0, 2, 4, 6]),
        (|x, y, z| x ^ y ^ z, 0x6ED9_EBA1, [3, 9, 11, 15], [3, 7, 2, 6, 1, 5, 0, 4]),
    ];
    let mut s = *state;
    for (mix, constant, shifts, order) in ROUNDS {
        for (step, &word) in order.iter().enumerate() {
            // Targets in turn a, d, c, b; the arguments are the three after the target.
            let target = (4 - step % 4) % 4;
            let [x, y, z] = [1, 2, 3].map(|after| s[(target + after) % 4]);
            s[target] = s[target]
                .wrapping_add(mix(x, y, z))
                .wrapping_add(words[word])
                .wrapping_add(constant)
                .rotate_left(shifts[step % 4]);
        }
    }
    for (into, from) in state.iter_mut().zip(s) {
        *into = into.wrapping_add(from);
    }
}

fn tea_chunk(state: &mut [u32; 4], words: &[u32; 4]) {
    let [mut b0, mut b1] = [state[0], state[1]];
    let mut sum = 0u32;
    let half = |b: u32, sum: u32, low: u32, high: u32| {
        (b << 4).wrapping_add(low) ^ b.wrapping_add(sum) ^ (b >> 5).wrapping_add(high)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        b0 = b0.wrapping_add(half(b1, sum, words[0], words[1]));
        b1 = b1.wrapping_add(half(b0, sum, words[2], words[3]));
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}

/// The root node's description of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The hash function's number.
    pub hash_version: u8,
    /// Levels of interior nodes below the root.
    pub levels: u8,
}

/// One entry of a node: the block that holds hashes from `hash` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The smallest hash. Bit 0: the previous leaf also has names of the same hash.
    pub hash: u32,
    /// The block's number in the directory.
    pub block: u32,
}

/// Decodes the root node in block 0 of a directory, on a volume whose indexes have at most `levels_max` levels below
/// it.
///
/// # Errors
/// If it is no root node, or of a kind this crate does not know.
pub fn root(block: &[u8], levels_max: u8, place: Place) -> Result<(Root, Vec<IndexEntry>), Damage> {
    if block.len() < ROOT_ENTRIES + ENTRY_BYTES {
        return Err(place.damage("the block is too small for an index"));
    }
    let (reserved, version, info_len) = (u32_at(block, ROOT_INFO), block[28], block[29]);
    let (levels, flags) = (block[30], block[31]);
    if reserved != 0 || info_len != 8 || version > 5 || flags & 1 != 0 {
        return Err(place
            .damage(format!("the root has hash version {version}, information length {info_len}, flags {flags:#x}")));
    }
    if levels > levels_max {
        return Err(place.damage(format!("the index has {levels} levels, more than {levels_max}")));
    }
    let entries = node_entries(block, ROOT_ENTRIES, place)?;
    Ok((Root { hash_version: version, levels }, entries))
}

/// Decodes an interior node.
///
/// # Errors
/// If it is none.
pub fn node(block: &[u8], place: Place) -> Result<Vec<IndexEntry>, Damage> {
    let hidden = block.len() >= NODE_ENTRIES + ENTRY_BYTES && u32_at(block, 0) == 0;
    if !hidden {
        return Err(place.damage("it is no interior node: it names an inode"));
    }
    node_entries(block, NODE_ENTRIES, place)
}

/// Returns the most entries of a node.
pub fn limit(block_bytes: usize, form: Form, is_root: bool) -> usize {
    let at = if is_root { ROOT_ENTRIES } else { NODE_ENTRIES };
    // The checksum takes the place of an entry.
    (block_bytes - at) / ENTRY_BYTES - usize::from(form.has_tail)
}

/// Checks a rule that readers need not check: a node has room to the block's end, or to its checksum, and an interior
/// one hides in an entry without a name that takes the whole block.
///
/// # Errors
/// The difference, in words.
pub fn check_limit(block: &[u8], form: Form, is_root: bool) -> Result<(), String> {
    let at = if is_root { ROOT_ENTRIES } else { NODE_ENTRIES };
    let (limit, room) = (usize::from(u16_at(block, at)), limit(block.len(), form, is_root));
    if limit != room {
        return Err(format!("the limit of entries is {limit}, should be {room}"));
    }
    match block[6] {
        name_len if !is_root && name_len != 0 => {
            Err(format!("name_len of the hiding entry is {name_len}, should be 0"))
        }
        _ => Ok(()),
    }
}

fn node_entries(block: &[u8], at: usize, place: Place) -> Result<Vec<IndexEntry>, Damage> {
    let room = (block.len() - at) / ENTRY_BYTES;
    let (limit, count) = (usize::from(u16_at(block, at)), usize::from(u16_at(block, at + 2)));
    // With metadata checksums a tail takes the place of one entry.
    if limit > room || limit + 1 < room {
        return Err(place.damage(format!("the node claims room for {limit} entries, but has {room}")));
    }
    if count == 0 || count > limit {
        return Err(place.damage(format!("the node has {count} entries of at most {limit}")));
    }
    let entries: Vec<IndexEntry> = (0..count)
        .map(|i| {
            let entry = at + i * ENTRY_BYTES;
            // Entry 0 has limit and count in its hash's place: it covers everything below entry 1.
            let hash = if i == 0 { 0 } else { u32_at(block, entry) };
            IndexEntry { hash, block: u32_at(block, entry + 4) & BLOCK_MASK }
        })
        .collect();
    if entries.windows(2).any(|pair| pair[0].hash > pair[1].hash) {
        return Err(place.damage("the node's hashes are out of order"));
    }
    Ok(entries)
}

/// Returns the entry that covers `hash`.
fn covering(entries: &[IndexEntry], hash: u32) -> usize {
    // Bit 0 marks a continued chain: a search goes to the chain's first leaf.
    entries.partition_point(|entry| entry.hash <= hash).max(1) - 1
}

/// The reader of blocks for [`edit::way`]: takes the directory's block number, returns the block's bytes.
pub trait ReadBlock {
    /// The owner of a block's bytes.
    type Bytes: AsRef<[u8]>;
    /// The error of a failed read.
    type Error: From<Damage>;
    /// Reads a block of the directory, and returns its place.
    ///
    /// # Errors
    /// The errors of the device, or of the directory's map.
    fn read(&mut self, lbn: u32) -> Result<(Self::Bytes, Place), Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::sample;
    use super::super::{InodeNo, Structure, put_u16, put_u32};
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place::of(Structure::Index { inode: InodeNo(12), lbn: 0 });
    /// 01234567-89ab-cdef-0123-456789abcdef as four little-endian words.
    const SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x6745_2301, 0xEFCD_AB89];

    fn hasher(version: Version, seed: [u32; 4], unsigned: bool) -> Hasher {
        Hasher { version, unsigned, seed }
    }

    fn check(hasher: Hasher, name: &[u8], major: u32, minor: u32) {
        assert_eq!(hasher.hash(name), Hash { major, minor }, "{}", String::from_utf8_lossy(name));
    }

    #[test]
    fn half_md4_matches_the_kernels() {
        let plain = hasher(Version::HalfMd4, [0; 4], false);
        check(plain, b"a", 0xd5fa_7d7a, 0xacb4_8187);
        check(plain, b"lost+found", 0x591d_e422, 0x6ffc_56e0);
        check(plain, &[b'x'; 40], 0xa583_68b6, 0x7a9f_8ab7);
        let seeded = hasher(Version::HalfMd4, SEED, false);
        check(seeded, b"a", 0x35dc_0cc4, 0x3f1d_acef);
        check(seeded, b"lost+found", 0x663b_dc72, 0x562e_f5d8);
        check(seeded, b"filename-000000-", 0x27bc_54c2, 0x5959_6b00);
    }

    #[test]
    fn tea_matches_f2fs_apart_from_bit_0() {
        let tea = hasher(Version::Tea, [0; 4], true);
        let vectors: [(&[u8], u32); 4] = [
            (b"a", 0x6d0e_a4c1),
            (b"lost+found", 0x2dbf_9e80),
            (b"0123456789abcdefg", 0xfb1a_23ec),
            (&[b'x'; 40], 0xb3f4_bbfc),
        ];
        for (name, f2fs) in vectors {
            assert_eq!(tea.hash(name).major, f2fs & !1);
        }
    }

    /// Values of debugfs's `dx_hash`, which takes characters as this machine's tools do: signed.
    #[test]
    fn every_version_matches_debugfs() {
        for (version, ascii, umlauts) in [
            (Version::Legacy, 0x5e2a_ba24, 0x12b0_2e38),
            (Version::HalfMd4, 0x591d_e422, 0x34bc_b028),
            (Version::Tea, 0x2dbf_9e80, 0x009d_ee46),
        ] {
            let signed = hasher(version, [0; 4], false);
            assert_eq!(signed.hash(b"lost+found").major, ascii, "{version:?}");
            assert_eq!(signed.hash("äö".as_bytes()).major, umlauts, "{version:?}");
        }
    }

    struct Blocks(Vec<Vec<u8>>);

    impl ReadBlock for Blocks {
        type Bytes = Vec<u8>;
        type Error = Damage;
        fn read(&mut self, lbn: u32) -> Result<(Vec<u8>, Place), Damage> {
            let block = self.0.get(lbn as usize).cloned();
            block.map(|b| (b, PLACE)).ok_or_else(|| PLACE.damage("no such block"))
        }
    }

    fn put_entries(block: &mut [u8], at: usize, entries: &[(u32, u32)]) {
        let limit = (block.len() - at) / ENTRY_BYTES;
        for (i, &(hash, child)) in entries.iter().enumerate() {
            put_u32(block, at + 8 * i, hash);
            put_u32(block, at + 8 * i + 4, child);
        }
        put_u16(block, at, limit as u16);
        put_u16(block, at + 2, entries.len() as u16);
    }

    fn root_block(levels: u8, entries: &[(u32, u32)]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        (block[28], block[29], block[30]) = (1, 8, levels);
        put_entries(&mut block, ROOT_ENTRIES, entries);
        block
    }

    #[test]
    fn a_way_leads_to_the_first_leaf_of_a_hash() {
        let sb = sample();
        let hash = Hasher::of(1, &sb).unwrap().hash(b"name").major;
        let flat = root_block(0, &[(0, 1), (hash, 2), (hash | 1, 3), (hash | 1, 4), (hash + 2, 5)]);
        let way = edit::way(&mut Blocks(vec![flat]), b"name", &sb).unwrap();
        assert_eq!((way.leaf, way.steps.len(), way.steps[0].at), (2, 1, 1));

        let mut low = vec![0; 1024];
        put_entries(&mut low, NODE_ENTRIES, &[(0, 10), (hash - 2, 11)]);
        let mut high = vec![0; 1024];
        put_entries(&mut high, NODE_ENTRIES, &[(0, 12), (hash + 4, 13)]);
        let deep = root_block(1, &[(0, 1), (hash | 1, 2)]);
        let way = edit::way(&mut Blocks(vec![deep, low, high]), b"name", &sb).unwrap();
        assert_eq!((way.leaf, way.steps[1].lbn, way.steps[1].at), (11, 1, 1));
    }

    #[test]
    fn damaged_nodes_are_refused() {
        let root_of = |change: fn(&mut Vec<u8>)| {
            let mut block = root_block(0, &[(0, 1), (8, 2)]);
            change(&mut block);
            root(&block, LEVELS_MAX, PLACE)
        };
        root_of(|_| ()).unwrap();
        let bad: [fn(&mut Vec<u8>); 6] = [
            |b| b[28] = 9,
            |b| b[29] = 4,
            |b| b[30] = 2,
            |b| put_u16(b, 32, 9999),
            |b| put_u16(b, 34, 0),
            |b| put_u16(b, 34, 500),
        ];
        for change in bad {
            assert!(root_of(change).is_err());
        }
    }

    proptest! {
        #[test]
        fn hostile_indexes_never_panic(
            mut block in prop::collection::vec(any::<u8>(), 1024), tame in any::<bool>(), levels in 0u8..2,
        ) {
            if tame {
                block[24..28].fill(0);
                (block[28], block[29], block[30], block[31]) = (1, 8, levels, 0);
                put_u16(&mut block, 32, 124);
                put_u16(&mut block, 34, 60);
            }
            let _ = edit::way(&mut Blocks(vec![block.clone(); 3]), b"name", &sample());
            let _ = node(&block, PLACE);
        }

        #[test]
        fn any_name_has_an_even_hash(name in prop::collection::vec(any::<u8>(), 1..256), version in 0u8..6) {
            let hash = Hasher::of(version, &sample()).unwrap().hash(&name);
            prop_assert!(hash.major.is_multiple_of(2) && hash.major != HASH_EOF);
        }
    }
}
