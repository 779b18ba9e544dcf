//! Directory entries: in blocks of a hash table with levels, or inline.
//!
//! A directory is a multi-level hash table. Level *l* has 2^*l* buckets of two blocks (more buckets
//! by the directory's `dir_level`, four blocks from level 31 on); a name is searched in one bucket
//! of every level ([`bucket_blocks`]). The file is sparse: a bucket that was never used is a hole.
//! Inside a block ([`Region`]) there are *slots*: a bitmap says which are used, each has a dentry
//! and eight bytes of name, and a longer name also takes the following slots. Inline entries lie in
//! a smaller region of the same form (sections 6.3 and 7).

use std::ops::Range;

use moafs_vfs::types::FileKind;

use super::{BLOCK, Nid, put_u16, put_u32, u16_at, u32_at};

/// The most levels of a hash table.
pub const DEPTH_MAX: u32 = 63;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;
/// Name bytes in a slot.
const SLOT_NAME: usize = 8;
/// Bytes of a dentry: hash, inode, length of the name, type.
const DENTRY_BYTES: usize = 11;
/// Slots of `.` and `..` in a directory's first block.
pub const DOT_SLOTS: [usize; 2] = [0, 1];

/// Returns the number of slots that a name takes.
pub const fn slots_of(name_len: usize) -> usize {
    name_len.div_ceil(SLOT_NAME)
}

/// Returns the hash of a name in a directory that tells upper and lower case apart.
pub fn hash(name: &[u8]) -> u32 {
    if matches!(name, b"." | b"..") {
        return 0;
    }
    let mut state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
    let mut rest = name;
    loop {
        mix(&mut state, words(rest));
        match rest.get(16..) {
            Some(more) if !more.is_empty() => rest = more,
            _ => return state[0],
        }
    }
}

/// Returns the next 16 bytes of a name as four numbers, filled up with the length of what is left of the
/// name.
fn words(rest: &[u8]) -> [u32; 4] {
    let len = rest.len() as u32;
    let pad = (len | len << 8) & 0xFFFF;
    let pad = pad | pad << 16;
    std::array::from_fn(|word| {
        let bytes = rest.iter().skip(4 * word).take(4);
        bytes.fold(pad, |value, &byte| (value << 8).wrapping_add(byte.into()))
    })
}

/// Mixes words into the state by sixteen rounds of TEA (Wheeler, Needham 1994), with the words as
/// its key.
fn mix(state: &mut [u32; 4], key: [u32; 4]) {
    let [mut b0, mut b1] = [state[0], state[1]];
    let mut sum = 0u32;
    let half = |b: u32, sum: u32, low: u32, high: u32| {
        (b << 4).wrapping_add(low) ^ b.wrapping_add(sum) ^ (b >> 5).wrapping_add(high)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        b0 = b0.wrapping_add(half(b1, sum, key[0], key[1]));
        b1 = b1.wrapping_add(half(b0, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}

/// Returns the number of buckets of a level.
pub fn buckets(level: u32, dir_level: u8) -> u64 {
    1 << (level + u32::from(dir_level)).min(30)
}

/// Returns the number of blocks in each bucket of a level.
fn blocks_per_bucket(level: u32) -> u64 {
    if level < 31 { 2 } else { 4 }
}

/// Returns the first block of a level.
fn level_start(level: u32, dir_level: u8) -> u64 {
    (0..level).map(|above| buckets(above, dir_level) * blocks_per_bucket(above)).sum()
}

/// Returns the blocks of the directory where an entry with this hash is, if it is in this level.
pub fn bucket_blocks(level: u32, dir_level: u8, hash: u32) -> Range<u64> {
    let bucket = u64::from(hash) % buckets(level, dir_level);
    let start = level_start(level, dir_level) + bucket * blocks_per_bucket(level);
    start..start + blocks_per_bucket(level)
}

/// Returns the level and the bucket of a directory's block; `None` beyond the last level.
pub fn bucket_of(lbn: u64, dir_level: u8) -> Option<(u32, u64)> {
    let mut left = lbn;
    for level in 0..DEPTH_MAX {
        let blocks = buckets(level, dir_level) * blocks_per_bucket(level);
        if left < blocks {
            return Some((level, left / blocks_per_bucket(level)));
        }
        left -= blocks;
    }
    None
}

/// The places of the parts of a set of entries in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Slots that the region has room for.
    pub slots: usize,
    /// Bytes of the block that hold the bitmap.
    pub bitmap: Range<usize>,
    /// Offset of the first dentry in the block.
    pub dentries: usize,
    /// Offset of the first slot's name in the block.
    pub names: usize,
}

impl Region {
    /// The region of a directory's block.
    pub const BLOCK: Region = Region { slots: 214, bitmap: 0..27, dentries: 30, names: 2384 };

    /// Returns the region of entries inside an inode, in its bytes for inline contents.
    pub fn inline(inline_range: Range<usize>) -> Region {
        let Range { start, end } = inline_range;
        // Each slot takes a dentry, eight bytes of name, and one bit.
        let slots = (end - start) * 8 / (8 * (DENTRY_BYTES + SLOT_NAME) + 1);
        let names = end - slots * SLOT_NAME;
        Region { slots, bitmap: start..start + slots.div_ceil(8), dentries: names - slots * DENTRY_BYTES, names }
    }

    fn is_used(&self, block: &[u8], slot: usize) -> bool {
        block[self.bitmap.start + slot / 8] & 1 << (slot % 8) != 0
    }

    fn set_used(&self, block: &mut [u8], slots: Range<usize>, used: bool) {
        for slot in slots {
            let byte = &mut block[self.bitmap.start + slot / 8];
            let bit = 1 << (slot % 8);
            *byte = if used { *byte | bit } else { *byte & !bit };
        }
    }

    fn dentry(&self, slot: usize) -> usize {
        self.dentries + slot * DENTRY_BYTES
    }

    fn name(&self, slot: usize) -> usize {
        self.names + slot * SLOT_NAME
    }

    fn name_len(&self, block: &[u8], slot: usize) -> usize {
        u16_at(block, self.dentry(slot) + 8).into()
    }
}

/// One decoded directory entry, with its name in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The first slot of the entry.
    pub slot: usize,
    /// The stored hash of its name.
    pub hash: u32,
    /// The inode it names.
    pub ino: Nid,
    /// The kind of file it says the inode is.
    pub kind: Option<FileKind>,
    /// The bytes of the name.
    pub name: &'a [u8],
    /// Number of slots that the entry takes.
    pub slots: usize,
}

impl Entry<'_> {
    /// True for `.` and `..`.
    pub fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Returns the kind that a type byte means.
fn kind_of(type_byte: u8) -> Option<FileKind> {
    Some(match type_byte {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

/// Returns the type byte of a kind.
fn type_byte(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

/// Decodes the entry whose first slot is `slot`, which is used.
fn entry_at<'a>(block: &'a [u8], region: &Region, slot: usize) -> Result<Entry<'a>, String> {
    let len = region.name_len(block, slot);
    let slots = slots_of(len);
    if len == 0 || len > NAME_MAX || slot + slots > region.slots {
        return Err(format!("the entry in slot {slot} has a name of {len} bytes"));
    }
    if let Some(unused) = (slot..slot + slots).find(|&slot| !region.is_used(block, slot)) {
        return Err(format!("slot {unused} is marked unused, but holds a part of the name in slot {slot}"));
    }
    let name = &block[region.name(slot)..][..len];
    if name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(format!("the entry in slot {slot} has a zero byte or a slash in its name"));
    }
    let at = region.dentry(slot);
    let (hash, ino) = (u32_at(block, at), Nid(u32_at(block, at + 4)));
    Ok(Entry { slot, hash, ino, kind: kind_of(block[at + 10]), name, slots })
}

/// The entries of a block in order of their slots; the iterator ends after the first that is not
/// valid.
#[derive(Debug, Clone)]
pub struct Entries<'a, 'r> {
    block: &'a [u8],
    region: &'r Region,
    next: usize,
}

/// Returns the entries of a block.
pub fn entries<'a, 'r>(block: &'a [u8], region: &'r Region) -> Entries<'a, 'r> {
    entries_from(block, region, 0)
}

/// Returns the entries of a block from a slot on, which starts an entry or is unused: for a reader
/// that goes on.
pub fn entries_from<'a, 'r>(block: &'a [u8], region: &'r Region, slot: usize) -> Entries<'a, 'r> {
    Entries { block, region, next: slot }
}

impl<'a> Iterator for Entries<'a, '_> {
    type Item = Result<Entry<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let slot = (self.next..self.region.slots).find(|&slot| self.region.is_used(self.block, slot))?;
        let entry = entry_at(self.block, self.region, slot);
        self.next = entry.as_ref().map_or(self.region.slots, |entry| slot + entry.slots);
        Some(entry)
    }
}

/// Finds the entry with this name.
///
/// # Errors
/// If an entry that is not valid comes before it: the name might be behind it.
pub fn find<'a>(block: &'a [u8], region: &Region, hash: u32, name: &[u8]) -> Result<Option<Entry<'a>>, String> {
    // Most blocks that are searched do not have the name: those are passed over fast, without a branch for each slot.
    let dentries = block[region.dentries..region.names].chunks_exact(DENTRY_BYTES);
    if !dentries.fold(false, |found, dentry| found | (u32_at(dentry, 0) == hash)) {
        return Ok(None);
    }
    let is_it = |entry: &Entry<'_>| entry.hash == hash && entry.name == name;
    entries(block, region).find(|entry| entry.as_ref().map_or(true, is_it)).transpose()
}

/// Returns the first of so many unused slots in a row.
pub fn room(block: &[u8], region: &Region, slots: usize) -> Option<usize> {
    let (mut free, mut slot) = (0, 0);
    while slot < region.slots {
        if slot % 8 == 0 && block[region.bitmap.start + slot / 8] == 0xFF {
            (free, slot) = (0, slot + 8);
            continue;
        }
        free = if region.is_used(block, slot) { 0 } else { free + 1 };
        slot += 1;
        if free == slots {
            return Some(slot - slots);
        }
    }
    None
}

/// Writes an entry into slots that [`room`] found.
///
/// # Panics
/// If the name is empty or runs out of the region.
pub fn insert(block: &mut [u8], region: &Region, slot: usize, hash: u32, ino: Nid, kind: FileKind, name: &[u8]) {
    let slots = slots_of(name.len());
    assert!((1..=NAME_MAX).contains(&name.len()) && slot + slots <= region.slots, "a name in slot {slot}");
    region.set_used(block, slot..slot + slots, true);
    block[region.dentry(slot)..region.dentry(slot + slots)].fill(0);
    let field = &mut block[region.name(slot)..region.name(slot + slots)];
    field.fill(0);
    field[..name.len()].copy_from_slice(name);
    let at = region.dentry(slot);
    put_u32(block, at, hash);
    put_u16(block, at + 8, name.len() as u16);
    point(block, region, slot, ino, kind);
}

/// Frees the slots of the entry that starts in `slot`.
pub fn remove(block: &mut [u8], region: &Region, slot: usize) {
    let slots = slots_of(region.name_len(block, slot));
    region.set_used(block, slot..(slot + slots).min(region.slots), false);
}

/// Makes the entry that starts in `slot` name another inode.
pub fn point(block: &mut [u8], region: &Region, slot: usize, ino: Nid, kind: FileKind) {
    let at = region.dentry(slot);
    put_u32(block, at + 4, ino.0);
    block[at + 10] = type_byte(kind);
}

/// True if there is nothing but `.` and `..`; entries that are not valid count as something.
pub fn is_empty(block: &[u8], region: &Region) -> bool {
    entries(block, region).all(|entry| entry.is_ok_and(|entry| entry.is_dot()))
}

/// True if no slot is used, not even for `.` and `..`.
pub fn is_blank(block: &[u8], region: &Region) -> bool {
    (0..region.slots).all(|slot| !region.is_used(block, slot))
}

/// Writes `.` and `..` into a region without entries.
pub fn format_dots(block: &mut [u8], region: &Region, ino: Nid, parent: Nid) {
    for (slot, (name, ino)) in DOT_SLOTS.into_iter().zip([(&b"."[..], ino), (b"..", parent)]) {
        insert(block, region, slot, hash(name), ino, FileKind::Directory, name);
    }
}

/// Returns the first block of a new directory.
pub fn first_block(ino: Nid, parent: Nid) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    format_dots(&mut block, &Region::BLOCK, ino, parent);
    block
}

/// Returns the block that takes the place of inline entries: every entry keeps its slots. It is
/// right as block 0 of a directory whose `dir_level` is 0.
pub fn inline_to_block(inode: &[u8], region: &Region) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let to = Region::BLOCK;
    let mut copy = |from: usize, to: usize, len: usize| block[to..to + len].copy_from_slice(&inode[from..from + len]);
    copy(region.bitmap.start, to.bitmap.start, region.bitmap.len());
    copy(region.dentries, to.dentries, region.slots * DENTRY_BYTES);
    copy(region.names, to.names, region.slots * SLOT_NAME);
    // The last byte of the bitmap has bits for which there is no inline slot.
    to.set_used(&mut block, region.slots..region.bitmap.len() * 8, false);
    block
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::format::inode::Layout;

    fn regions() -> [Region; 4] {
        let inline = |extra_words, xattr_words| Region::inline(Layout::new(extra_words, xattr_words).inline_range());
        [Region::BLOCK, inline(0, 50), inline(9, 50), inline(9, 850)]
    }

    #[test]
    fn hashes_are_those_of_the_format() {
        for (name, right) in [
            (&b"a"[..], 0x6d0e_a4c1),
            (b"lost+found", 0x2dbf_9e80),
            (b"hello.txt", 0x5107_c3f3),
            (b"0123456789abcdef", 0x5a07_88b2),
            (b"0123456789abcdefg", 0xfb1a_23ec),
            (&[b'x'; 40], 0xb3f4_bbfc),
            (&[b'L'; 255], 0xadb2_1a7e),
            (b".hidden", 0x395f_c5b0),
            ("äö".as_bytes(), 0xfeb3_85e9),
            (b".", 0),
            (b"..", 0),
        ] {
            assert_eq!(hash(name), right, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn inline_regions_are_those_of_the_format() {
        for (extra_words, slots, bitmap, reserved) in [(0, 182, 23, 7), (6, 181, 23, 2), (9, 180, 23, 9)] {
            let bytes = Layout::new(extra_words, 50).inline_range();
            let region = Region::inline(bytes.clone());
            assert_eq!((region.slots, region.bitmap.len()), (slots, bitmap));
            assert_eq!(region.dentries - region.bitmap.end, reserved);
            assert_eq!(region.names + slots * SLOT_NAME, bytes.end);
        }
        let none = Region::inline(100..110);
        assert_eq!((none.slots, none.names), (0, 110));
    }

    #[test]
    fn levels_are_those_of_the_format() {
        let starts: Vec<u64> = (0..5).map(|level| level_start(level, 0)).collect();
        assert_eq!(starts, [0, 2, 6, 14, 30]);
        assert_eq!(bucket_blocks(0, 0, 0xFFFF_FFFF), 0..2);
        assert_eq!(bucket_blocks(2, 0, 5), 8..10);
        assert_eq!(bucket_blocks(0, 2, 3), 6..8);
        assert_eq!(bucket_blocks(1, 2, 9), 10..12);
        assert_eq!(buckets(30, 0), 1 << 30);
        assert_eq!(buckets(62, 255), 1 << 30);
        assert_eq!(bucket_blocks(31, 0, 1).end - bucket_blocks(31, 0, 1).start, 4);
        assert_eq!(bucket_of(u64::MAX, 0), None);
    }

    #[test]
    fn a_first_block_holds_the_dots() {
        let block = first_block(Nid(9), Nid(3));
        let seen: Vec<_> = entries(&block, &Region::BLOCK).map(Result::unwrap).collect();
        assert_eq!(
            seen.iter().map(|e| (e.slot, e.hash, e.ino, e.name)).collect::<Vec<_>>(),
            [(0, 0, Nid(9), &b"."[..]), (1, 0, Nid(3), b"..")]
        );
        assert!(is_empty(&block, &Region::BLOCK) && !is_blank(&block, &Region::BLOCK));
        assert_eq!(room(&block, &Region::BLOCK, 1), Some(2));
        assert_eq!(room(&block, &Region::BLOCK, 213), None);
    }

    #[test]
    fn damaged_entries_are_named() {
        let region = Region::BLOCK;
        let mut good = first_block(Nid(9), Nid(3));
        insert(&mut good, &region, 2, hash(b"a longer name"), Nid(7), FileKind::Regular, b"a longer name");
        insert(&mut good, &region, 4, hash(b"behind"), Nid(8), FileKind::Fifo, b"behind");
        let damaged = |change: fn(&mut [u8])| {
            let mut block = good.clone();
            change(&mut block);
            assert!(find(&block, &region, hash(b"behind"), b"behind").is_err());
            assert!(!is_empty(&block, &region));
            entries(&block, &region).last().unwrap().unwrap_err()
        };
        assert_eq!(damaged(|b| put_u16(b, 30 + 2 * 11 + 8, 0)), "the entry in slot 2 has a name of 0 bytes");
        assert_eq!(damaged(|b| put_u16(b, 30 + 2 * 11 + 8, 256)), "the entry in slot 2 has a name of 256 bytes");
        assert_eq!(
            damaged(|b| put_u16(b, 30 + 2 * 11 + 8, 32)),
            "slot 5 is marked unused, but holds a part of the name in slot 2"
        );
        let problem = damaged(|b| b[2384 + 2 * 8] = b'/');
        assert_eq!(problem, "the entry in slot 2 has a zero byte or a slash in its name");
    }

    #[test]
    fn names_may_not_run_out_of_the_region() {
        let region = Region::BLOCK;
        let mut block = vec![0; BLOCK];
        insert(&mut block, &region, 213, 1, Nid(7), FileKind::Regular, b"last");
        assert_eq!(entries(&block, &region).count(), 1);
        put_u16(&mut block, region.dentry(213) + 8, 9);
        assert_eq!(entries(&block, &region).next(), Some(Err("the entry in slot 213 has a name of 9 bytes".into())));
        remove(&mut block, &region, 213);
        assert!(is_blank(&block, &region));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Insert(Vec<u8>, u32),
        Remove(usize),
        Point(usize, u32),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let letters = prop::sample::select(b"abcXYZ.".to_vec());
        let name = prop_oneof![
            3 => prop::collection::vec(letters.clone(), 1..4),
            2 => prop::collection::vec(letters.clone(), 7..30),
            1 => prop::collection::vec(letters, 200..=255),
        ];
        prop_oneof![
            4 => (name, 1u32..).prop_map(|(name, ino)| Op::Insert(name, ino)),
            2 => any::<prop::sample::Index>().prop_map(|i| Op::Remove(i.index(64))),
            1 => (any::<prop::sample::Index>(), 1u32..).prop_map(|(i, ino)| Op::Point(i.index(64), ino)),
        ]
    }

    /// The contents that a region should have: names, inodes, and the slots taken.
    type Model = BTreeMap<Vec<u8>, (u32, Range<usize>)>;

    fn first_gap(model: &Model, region: &Region, slots: usize) -> Option<usize> {
        let taken = |slot: usize| model.values().any(|(_, range)| range.contains(&slot));
        (0..(region.slots + 1).saturating_sub(slots)).find(|&start| !(start..start + slots).any(taken))
    }

    fn nth_name(model: &Model, n: usize) -> Option<Vec<u8>> {
        model.keys().nth(n % model.len().max(1)).cloned()
    }

    fn slot_of(block: &[u8], region: &Region, name: &[u8]) -> usize {
        find(block, region, hash(name), name).unwrap().expect("a name of the model").slot
    }

    fn apply(op: Op, block: &mut [u8], region: &Region, model: &mut Model) {
        match op {
            Op::Insert(name, _) if model.contains_key(&name) => {}
            Op::Insert(name, ino) => {
                let slots = slots_of(name.len());
                assert_eq!(room(block, region, slots), first_gap(model, region, slots));
                let Some(slot) = room(block, region, slots) else { return };
                insert(block, region, slot, hash(&name), Nid(ino), FileKind::Regular, &name);
                model.insert(name, (ino, slot..slot + slots));
            }
            Op::Remove(n) => {
                let Some(name) = nth_name(model, n) else { return };
                remove(block, region, slot_of(block, region, &name));
                model.remove(&name);
            }
            Op::Point(n, ino) => {
                let Some(name) = nth_name(model, n) else { return };
                point(block, region, slot_of(block, region, &name), Nid(ino), FileKind::Socket);
                model.get_mut(&name).expect("just found").0 = ino;
            }
        }
    }

    fn check(block: &[u8], region: &Region, model: &Model) {
        let seen: Model = entries(block, region)
            .map(Result::unwrap)
            .map(|e| (e.name.to_vec(), (e.ino.0, e.slot..e.slot + e.slots)))
            .collect();
        assert_eq!(&seen, model);
        assert_eq!(is_blank(block, region), model.is_empty());
        assert_eq!(is_empty(block, region), model.keys().all(|name| name == b"." || name == b".."));
    }

    proptest! {
        #[test]
        fn regions_behave_like_maps(ops in prop::collection::vec(any_op(), 0..120), choice in 0usize..4) {
            let region = &regions()[choice];
            let mut block = vec![0; BLOCK];
            let mut model = Model::new();
            for op in ops {
                apply(op, &mut block, region, &mut model);
                check(&block, region, &model);
            }
            let outside = |at: &usize| !(region.bitmap.start..region.names + region.slots * 8).contains(at);
            prop_assert!((0..BLOCK).filter(outside).all(|at| block[at] == 0));
            if region != &Region::BLOCK {
                check(&inline_to_block(&block, region), &Region::BLOCK, &model);
            }
        }

        #[test]
        fn hostile_blocks_never_panic(
            seed in prop::collection::vec(prop_oneof![Just(0u8), Just(0xFF), 0u8..16, any::<u8>()], 97),
            slot in 0usize..100, choice in 0usize..4,
        ) {
            let region = &regions()[choice];
            let mut block: Vec<u8> = seed.iter().copied().cycle().take(BLOCK).collect();
            let slot = slot.min(region.slots.saturating_sub(1));
            let _ = (find(&block, region, 1, b"x"), is_empty(&block, region), room(&block, region, 3));
            let _ = entries(&block, region).count();
            if region.slots > 0 {
                remove(&mut block, region, slot);
            }
            if region != &Region::BLOCK {
                let _ = entries(&inline_to_block(&block, region), &Region::BLOCK).count();
            }
        }

        #[test]
        fn blocks_of_buckets_know_their_bucket(level in 0u32..63, dir_level in 0u8..=64, hash: u32, nth in 0u64..2) {
            let lbn = bucket_blocks(level, dir_level, hash).start + nth;
            prop_assert_eq!(bucket_of(lbn, dir_level), Some((level, u64::from(hash) % buckets(level, dir_level))));
        }
    }
}
