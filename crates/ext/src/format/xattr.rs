//! Extended attributes: inside the inode, and in one block that inodes with equal attributes share.
//!
//! Both places hold entries (16 bytes and the name) that grow upward, and values packed from the
//! end downward. In a block entries are sorted and hashed; in an inode they are neither. Value
//! offsets count from the block's first byte, or from the inode area's first entry.

use std::ops::Range;

use moafs_vfs::stored::{index_of_space, space_of_index};
use moafs_vfs::types::XattrKey;

use super::{Damage, InodeNo, Place, put_u16, put_u32, u16_at, u32_at};

/// The first four bytes of both places, as a little-endian number.
pub const MAGIC: u32 = 0xEA02_0000;
/// Bytes before the entries of a block.
pub const BLOCK_HEADER: usize = 32;
/// Bytes before the entries of an inode's area.
pub const INODE_HEADER: usize = 4;
/// Bytes of an entry before its name.
const ENTRY_BYTES: usize = 16;
/// Bytes that end the entries.
const TERMINATOR: usize = 4;
/// The most inodes that may share a block.
pub const REFCOUNT_MAX: u32 = 1024;

/// An attribute as the format names it: a prefix's index, the rest of the name, the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// The index of the name's prefix.
    pub index: u8,
    /// The name after the prefix.
    pub name: Box<[u8]>,
    /// The value, in the disk's form (it matters for access control lists).
    pub value: Vec<u8>,
}

/// The attribute that holds the rest of contents inside an inode: index and name. Programs do not see it.
pub const INLINE_DATA: (u8, &[u8]) = (7, b"data");

impl Attribute {
    fn sort_key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }

    /// Returns the key, if it is in a name space that vfs knows.
    pub fn key(&self) -> Option<XattrKey> {
        key_of(self.index, &self.name)
    }
}

/// Returns the prefix index and the suffix of a key.
pub fn index_of(key: &XattrKey) -> (u8, &[u8]) {
    (index_of_space(key.space), &key.suffix)
}

/// Returns the key of a prefix index and a suffix; `None` for prefixes that vfs does not know.
pub fn key_of(index: u8, suffix: &[u8]) -> Option<XattrKey> {
    Some(XattrKey { space: space_of_index(index)?, suffix: suffix.into() })
}

/// The bytes that attributes lie in.
#[derive(Debug, Clone, Copy)]
pub enum Area<'a> {
    /// A whole attribute block.
    Block(&'a [u8]),
    /// The rest of an inode's slot, behind `i_extra_isize`.
    Inode(&'a [u8]),
}

impl<'a> Area<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Area::Block(bytes) | Area::Inode(bytes) => bytes,
        }
    }

    fn header(self) -> usize {
        match self {
            Area::Block(_) => BLOCK_HEADER,
            Area::Inode(_) => INODE_HEADER,
        }
    }

    /// Returns the byte that value offsets count from.
    fn value_base(self) -> usize {
        match self {
            Area::Block(_) => 0,
            Area::Inode(_) => INODE_HEADER,
        }
    }
}

/// Returns the area for attributes in an inode's slot; empty where there is no room.
pub fn inode_area(slot: &[u8], extra_isize: u16) -> &[u8] {
    slot.get(area_start(slot.len(), extra_isize)..).unwrap_or_default()
}

/// Returns the same area for writing.
pub fn inode_area_mut(slot: &mut [u8], extra_isize: u16) -> &mut [u8] {
    let start = area_start(slot.len(), extra_isize);
    slot.get_mut(start..).unwrap_or_default()
}

fn area_start(slot_bytes: usize, extra_isize: u16) -> usize {
    // Without an extra part no driver looks for attributes.
    if slot_bytes <= super::inode::GOOD_OLD_BYTES || extra_isize == 0 {
        return slot_bytes;
    }
    super::inode::GOOD_OLD_BYTES + usize::from(extra_isize)
}

/// An entry whose name and value are known to lie inside the area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// The entry's first byte in the area.
    pub offset: usize,
    /// The index of the name's prefix.
    pub index: u8,
    /// The name after the prefix.
    pub name: &'a [u8],
    /// The attribute's value, as it lies in the area.
    pub value: &'a [u8],
    /// The stored hash (`e_hash`).
    pub hash: u32,
    /// The inode that holds the value, which is then empty here; and the value's length in bytes.
    pub value_inode: Option<(InodeNo, u32)>,
    value_at: Range<usize>,
}

impl XattrEntry<'_> {
    /// Returns true if the stored hash is the one that the format wants in this place.
    pub fn hash_is_right(&self, area: Area<'_>) -> bool {
        let may_be_absent = matches!(area, Area::Inode(_)) && self.hash == 0;
        let value = &area.bytes()[self.words_at()];
        may_be_absent || self.hash == entry_hash(self.name, value) || self.hash == entry_hash_signed(self.name, value)
    }

    /// Returns the hash that the format wants. The last word of the value counts as it lies in the
    /// area, padding included.
    pub fn right_hash(&self, area: Area<'_>) -> u32 {
        entry_hash(self.name, &area.bytes()[self.words_at()])
    }

    /// Returns the place of the value, filled up to whole words.
    fn words_at(&self) -> Range<usize> {
        whole_words(&self.value_at)
    }

    /// Returns a copy of the attribute that owns its memory.
    pub fn to_attribute(&self) -> Attribute {
        Attribute { index: self.index, name: self.name.into(), value: self.value.to_vec() }
    }
}

/// Decodes an area's entries. An inode area without the magic has none.
///
/// # Errors
/// If the header is wrong, entries or values leave the area or overlap, or a value lies in an inode of its own.
pub fn entries(area: Area<'_>, place: Place) -> Result<Vec<XattrEntry<'_>>, Damage> {
    let found = entries_with_inodes(area, place)?;
    for entry in &found {
        if let Some((inode, _)) = entry.value_inode {
            let at = entry.offset;
            return Err(
                place.damage(format!("the entry at byte {at} has its value in inode {inode}, which is not supported"))
            );
        }
    }
    Ok(found)
}

/// Decodes an area's entries on a volume where values may lie in inodes of their own (ea_inode).
///
/// # Errors
/// If the header is wrong, or entries or values leave the area or overlap.
pub fn entries_with_inodes(area: Area<'_>, place: Place) -> Result<Vec<XattrEntry<'_>>, Damage> {
    let bytes = area.bytes();
    if bytes.len() < area.header() {
        return Ok(Vec::new());
    }
    let magic = u32_at(bytes, 0);
    match area {
        Area::Inode(_) if magic != MAGIC => return Ok(Vec::new()),
        Area::Block(_) if magic != MAGIC => {
            return Err(place.damage(format!("its magic is {magic:#x}, not {MAGIC:#x}")));
        }
        Area::Block(_) if u32_at(bytes, 8) != 1 => {
            return Err(place.damage(format!("it claims to have {} blocks", u32_at(bytes, 8))));
        }
        _ => {}
    }
    let mut found = Vec::new();
    let mut at = area.header();
    while bytes.len() - at >= TERMINATOR && u32_at(bytes, at) != 0 {
        let entry = entry_at(area, at, place)?;
        at += (ENTRY_BYTES + entry.name.len()).next_multiple_of(4);
        found.push(entry);
        if at > bytes.len() {
            return Err(place.damage("the last entry leaves the area"));
        }
    }
    check_overlap(&found, at, place)?;
    Ok(found)
}

fn entry_at(area: Area<'_>, at: usize, place: Place) -> Result<XattrEntry<'_>, Damage> {
    let bytes = area.bytes();
    let left = &bytes[at..];
    let outside = || place.damage(format!("the entry at byte {at} leaves the area"));
    if left.len() < ENTRY_BYTES {
        return Err(outside());
    }
    let name_end = ENTRY_BYTES + usize::from(left[0]);
    let name = left.get(ENTRY_BYTES..name_end).ok_or_else(outside)?;
    let size = u32_at(left, 8) as usize;
    let value_inode = Some((InodeNo(u32_at(left, 4)), u32_at(left, 8))).filter(|(inode, _)| inode.0 != 0);
    let value_at = if size == 0 || value_inode.is_some() {
        0..0
    } else {
        let start = area.value_base() + usize::from(u16_at(left, 2));
        start..start.saturating_add(size)
    };
    let value = bytes
        .get(value_at.clone())
        .filter(|_| whole_words(&value_at).end <= bytes.len())
        .ok_or_else(|| place.damage(format!("the value of the entry at byte {at} leaves the area")))?;
    Ok(XattrEntry { offset: at, index: left[1], name, value, hash: u32_at(left, 12), value_inode, value_at })
}

/// Returns a value's place with the bytes that fill it up to whole words, which belong to it.
fn whole_words(value_at: &Range<usize>) -> Range<usize> {
    value_at.start..value_at.start + value_at.len().next_multiple_of(4)
}

fn check_overlap(entries: &[XattrEntry<'_>], entries_end: usize, place: Place) -> Result<(), Damage> {
    let mut values: Vec<Range<usize>> = entries.iter().map(XattrEntry::words_at).filter(|r| !r.is_empty()).collect();
    values.sort_by_key(|range| range.start);
    // Zeros end the entries.
    if values.first().is_some_and(|range| range.start < entries_end + TERMINATOR) {
        return Err(place.damage("a value overlaps the entries"));
    }
    if values.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(place.damage("two values overlap"));
    }
    Ok(())
}

/// Returns all attributes of an area.
///
/// # Errors
/// The same errors as [`entries`].
pub fn list(area: Area<'_>, place: Place) -> Result<Vec<Attribute>, Damage> {
    Ok(entries(area, place)?.iter().map(XattrEntry::to_attribute).collect())
}

/// Returns the value of one attribute.
///
/// # Errors
/// The same errors as [`entries`].
pub fn get<'a>(area: Area<'a>, index: u8, name: &[u8], place: Place) -> Result<Option<&'a [u8]>, Damage> {
    let found = entries(area, place)?;
    Ok(found.into_iter().find(|e| e.index == index && e.name == name).map(|e| e.value))
}

fn fold_value(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash << 16 ^ hash >> 16 ^ u32::from_le_bytes(word)
    })
}

/// Returns the hash of an entry (`e_hash`).
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| hash << 5 ^ hash >> 27 ^ u32::from(byte));
    fold_value(hash, value)
}

/// Returns `e_hash` as machines whose characters are signed once wrote it.
fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| hash << 5 ^ hash >> 27 ^ i32::from(byte as i8) as u32);
    fold_value(hash, value)
}

/// Returns `h_hash` of a block whose entries have these hashes.
fn block_hash(hashes: impl IntoIterator<Item = u32>) -> u32 {
    hashes.into_iter().try_fold(0u32, |sum, hash| (hash != 0).then_some(sum << 16 ^ sum >> 16 ^ hash)).unwrap_or(0)
}

/// Returns the number of inodes that share a block.
pub fn refcount(block: &[u8]) -> u32 {
    u32_at(block, 4)
}

/// Sets the number of inodes that share a block.
pub fn set_refcount(block: &mut [u8], count: u32) {
    put_u32(block, 4, count);
}

/// Returns the bytes that an attribute needs in any area.
fn room_for(attribute: &Attribute) -> usize {
    (ENTRY_BYTES + attribute.name.len()).next_multiple_of(4) + attribute.value.len().next_multiple_of(4)
}

/// Returns true if the attributes fit into an area with `header` bytes before the entries.
fn fit(attributes: &[&Attribute], area_bytes: usize, header: usize) -> bool {
    let needed: usize = attributes.iter().map(|a| room_for(a)).sum();
    attributes.iter().all(|a| a.name.len() <= 255) && header + needed + TERMINATOR <= area_bytes
}

/// Writes entries and values into a zeroed area. Returns the entries' hashes.
fn fill(bytes: &mut [u8], attributes: &[&Attribute], header: usize, value_base: usize, hashed: bool) -> Vec<u32> {
    let mut at = header;
    let mut values_start = bytes.len() & !3;
    let mut hashes = Vec::with_capacity(attributes.len());
    for attribute in attributes {
        let Attribute { index, name, value } = attribute;
        let hash = if hashed { entry_hash(name, value) } else { 0 };
        if !value.is_empty() {
            values_start -= value.len().next_multiple_of(4);
            bytes[values_start..values_start + value.len()].copy_from_slice(value);
            put_u16(bytes, at + 2, (values_start - value_base) as u16);
        }
        bytes[at] = name.len() as u8;
        bytes[at + 1] = *index;
        put_u32(bytes, at + 8, value.len() as u32);
        put_u32(bytes, at + 12, hash);
        bytes[at + ENTRY_BYTES..at + ENTRY_BYTES + name.len()].copy_from_slice(name);
        at += (ENTRY_BYTES + name.len()).next_multiple_of(4);
        hashes.push(hash);
    }
    hashes
}

/// Makes a new attribute block for one inode; returns `None` if the attributes do not fit.
pub fn build_block(attributes: &[&Attribute], block_bytes: usize) -> Option<Vec<u8>> {
    if !fit(attributes, block_bytes, BLOCK_HEADER) {
        return None;
    }
    let mut sorted = attributes.to_vec();
    sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    let mut block = vec![0; block_bytes];
    let hashes = fill(&mut block, &sorted, BLOCK_HEADER, 0, true);
    put_u32(&mut block, 0, MAGIC);
    set_refcount(&mut block, 1);
    put_u32(&mut block, 8, 1);
    put_u32(&mut block, 12, block_hash(hashes));
    Some(block)
}

/// Makes a new area inside an inode, all zeros without attributes; returns `None` if the attributes
/// do not fit.
pub fn build_inode_area(attributes: &[&Attribute], area_bytes: usize) -> Option<Vec<u8>> {
    let mut area = vec![0; area_bytes];
    if attributes.is_empty() {
        return Some(area);
    }
    if !fit(attributes, area_bytes, INODE_HEADER) {
        return None;
    }
    put_u32(&mut area, 0, MAGIC);
    fill(&mut area, attributes, INODE_HEADER, INODE_HEADER, false);
    Some(area)
}

/// The places of an inode's attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The new contents of the area inside the inode (as long as it was).
    pub inode_area: Vec<u8>,
    /// The attribute block, if one is needed.
    pub block: Option<Vec<u8>>,
}

/// Distributes attributes: those that fit go into the inode, in order; the rest into the block.
/// Returns `None` if they do not fit at all.
pub fn distribute(attributes: &[Attribute], area_bytes: usize, block_bytes: usize) -> Option<Layout> {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for attribute in attributes {
        inside.push(attribute);
        if !fit(&inside, area_bytes, INODE_HEADER) {
            inside.pop();
            outside.push(attribute);
        }
    }
    let block = if outside.is_empty() { None } else { Some(build_block(&outside, block_bytes)?) };
    Some(Layout { inode_area: build_inode_area(&inside, area_bytes)?, block })
}

#[cfg(test)]
mod tests {
    use super::super::Structure;
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place::of(Structure::XattrBlock(InodeNo(12)));

    #[test]
    fn entry_hashes_match_the_kernels() {
        assert_eq!(entry_hash(b"foo", b"bar"), 0x95FD_6163);
        assert_eq!(entry_hash(b"t", b"T"), 0x0074_0054);
        assert_eq!(entry_hash(b"selinux", b"ctx\0"), 0x36BC_7896);
        assert_eq!(entry_hash(b"k", b"v"), 0x006B_0076);
    }

    fn attribute(index: u8, name: &str, value: &[u8]) -> Attribute {
        Attribute { index, name: name.as_bytes().into(), value: value.to_vec() }
    }

    #[test]
    fn damaged_blocks_are_refused() {
        let a = attribute(1, "name", b"value");
        let b = attribute(1, "other", b"values");
        let good = build_block(&[&a, &b], 1024).unwrap();
        assert!(entries(Area::Block(&good), PLACE).unwrap().iter().all(|e| e.hash_is_right(Area::Block(&good))));
        let bad: [fn(&mut [u8]); 6] = [
            |b| b[0] = 1,
            |b| put_u32(b, 8, 2),
            |b| b[32] = 255,
            |b| put_u32(b, 36, 5),
            |b| put_u16(b, 34, 40),
            |b| put_u32(b, 40, 5000),
        ];
        for (i, change) in bad.into_iter().enumerate() {
            let mut block = good.clone();
            change(&mut block);
            let seen = entries(Area::Block(&block), PLACE);
            // A longer name is still inside the block, but it swallows the next entry.
            assert!(seen.is_err() || seen.unwrap().len() != 2, "case {i}");
        }
    }

    #[test]
    fn attributes_that_do_not_fit_inside_go_to_the_block() {
        let small = attribute(1, "small", b"v");
        let large = attribute(1, "large", &[7; 500]);
        let layout = distribute(&[large.clone(), small.clone()], 96, 1024).unwrap();
        assert_eq!(list(Area::Inode(&layout.inode_area), PLACE).unwrap(), [small]);
        assert_eq!(list(Area::Block(&layout.block.unwrap()), PLACE).unwrap(), [large]);
        assert_eq!(distribute(&[attribute(1, "huge", &[7; 1024])], 96, 1024), None);
    }

    fn any_attributes() -> impl Strategy<Value = Vec<Attribute>> {
        let one = (1u8..8, prop::collection::vec(1u8..255, 1..30), prop::collection::vec(any::<u8>(), 0..60));
        prop::collection::vec(one, 0..8).prop_map(|list| {
            let mut list: Vec<_> =
                list.into_iter().map(|(index, name, value)| Attribute { index, name: name.into(), value }).collect();
            list.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
            list.dedup_by(|a, b| a.sort_key() == b.sort_key());
            list
        })
    }

    proptest! {
        #[test]
        fn what_is_built_is_listed(attributes in any_attributes()) {
            let refs: Vec<_> = attributes.iter().collect();
            if let Some(block) = build_block(&refs, 1024) {
                let area = Area::Block(&block);
                prop_assert_eq!(list(area, PLACE).unwrap(), attributes.clone());
                prop_assert!(entries(area, PLACE).unwrap().iter().all(|e| e.hash_is_right(area)));
            }
            if let Some(bytes) = build_inode_area(&refs, 96) {
                prop_assert_eq!(list(Area::Inode(&bytes), PLACE).unwrap(), attributes.clone());
            }
        }

        #[test]
        fn hostile_areas_never_panic(
            mut bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
        ) {
            let _ = list(Area::Inode(&bytes), PLACE);
            if bytes.len() >= 32 {
                put_u32(&mut bytes, 0, MAGIC);
                let _ = list(Area::Inode(&bytes), PLACE);
                put_u32(&mut bytes, 8, 1);
                let _ = get(Area::Block(&bytes), 1, b"x", PLACE);
            }
        }
    }
}
