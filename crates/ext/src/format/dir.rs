//! Directory blocks: entries that tile each block exactly.
//!
//! **The 512-byte rule.** A power cut may tear a write at any sector, so a change of a directory
//! that the disk already shows must lie in one 512-byte sector. New blocks are therefore made of one unused entry per
//! sector ([`format_empty`]), as FFS does, and entries never grow across them. In blocks made by other drivers entries
//! may span sectors: [`insert`] takes only places where all changed bytes share a sector, and [`remove`] merges an
//! entry into its predecessor only if their headers do. Each change returns the range of bytes it touched. On volumes
//! with a journal blocks change whole, and the rule does not hold ([`Form::is_whole`]).
//!
//! On volumes with checksums of all metadata the last bytes of a block are a *tail* with the block's checksum. It looks
//! like an unused entry; no entry is made of it or reaches into it.

use std::ops::Range;

use moafs_vfs::types::FileKind;
use smallvec::{SmallVec, smallvec};

use super::checksum::{LEAF_TAIL_BYTES, LEAF_TAIL_TYPE, is_leaf_tail};
use super::inode::{entry_type, kind_of_entry_type};
use super::{Damage, Geometry, InodeNo, Owner, Place, Sealed, put_u16, put_u32, u16_at, u32_at};

/// Bytes before an entry's name.
pub const HEADER_BYTES: usize = 8;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// The bytes that a power cut never tears: see the module's head.
pub const SECTOR_BYTES: usize = 512;
/// The longest record of an entry with a name of [`NAME_MAX`] bytes: it fits into a sector.
const _: () = assert!(record_bytes(NAME_MAX) + 24 <= SECTOR_BYTES);

/// Returns the bytes that an entry with a name of `name_len` bytes needs.
pub const fn record_bytes(name_len: usize) -> usize {
    (HEADER_BYTES + name_len).next_multiple_of(4)
}

/// The form of the entries on this volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Byte 7 of an entry is the file's type; otherwise it is the high byte of the name's length.
    pub filetype: bool,
    /// Number of inodes on the volume: entries cannot name others.
    pub inodes: u32,
    /// Blocks with entries end with a tail that holds their checksum.
    pub has_tail: bool,
    /// Changes of a block reach the disk whole, through a journal: the 512-byte rule does not hold.
    pub is_whole: bool,
}

impl Form {
    /// Returns the form of a volume's directories.
    pub fn of(geo: &Geometry) -> Form {
        Form { filetype: geo.filetype, inodes: geo.inodes, has_tail: geo.checksums.cover_all(), is_whole: false }
    }

    /// Returns true if a change of these bytes cannot be torn by a power cut.
    fn is_untorn(self, changed: &Range<usize>) -> bool {
        self.is_whole || in_one_sector(changed)
    }

    /// Returns the number of bytes that entries have of a block of `bytes`.
    pub fn room(self, bytes: usize) -> usize {
        if self.has_tail { bytes.saturating_sub(LEAF_TAIL_BYTES) } else { bytes }
    }

    fn type_byte(self, kind: FileKind) -> u8 {
        if self.filetype { entry_type(kind) } else { 0 }
    }
}

/// Returns `rec_len` as stored: 65536 does not fit and is written as 65535.
pub(crate) fn encode_rec_len(bytes: usize) -> u16 {
    if bytes >= 65536 { 65535 } else { bytes as u16 }
}

/// Returns the length that a stored `rec_len` means in a block of `block_bytes`.
fn decode_rec_len(stored: u16, block_bytes: usize) -> usize {
    let stored = usize::from(stored);
    if block_bytes < 65536 {
        return stored;
    }
    if stored == 65535 || stored == 0 {
        return 65536;
    }
    stored & 65532 | (stored & 3) << 16
}

/// A directory entry, which may be unused ([`DirEntry::is_used`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its first byte in the block.
    pub offset: usize,
    /// Bytes up to the next entry.
    pub rec_len: usize,
    /// The inode it names; 0 if unused.
    pub inode: InodeNo,
    /// The name. Of an unused entry: the bytes that are there.
    pub name: &'a [u8],
    /// The type byte; 0 on volumes without types.
    pub type_byte: u8,
}

impl DirEntry<'_> {
    /// Returns true if the entry names an inode.
    pub fn is_used(&self) -> bool {
        self.inode.0 != 0
    }

    /// Returns the kind that the entry claims, if it claims one.
    pub fn kind(&self) -> Option<FileKind> {
        kind_of_entry_type(self.type_byte)
    }

    /// Returns the bytes that the entry itself needs of its record: 0 if it is unused.
    fn own_bytes(&self) -> usize {
        if self.is_used() { record_bytes(self.name.len()) } else { 0 }
    }
}

/// A record that cannot be an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadEntry {
    /// Its first byte in the block.
    pub offset: usize,
    /// The rule that the record breaks.
    pub problem: EntryProblem,
}

/// The rule that a record breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryProblem {
    /// Its length is no multiple of 4, is too small for an entry, or leads beyond the block.
    RecLen(usize),
    /// Its name does not fit into it.
    NameLen(usize),
}

impl std::fmt::Display for BadEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.offset;
        match self.problem {
            EntryProblem::RecLen(len) => write!(f, "the entry at byte {at} has the impossible length {len}"),
            EntryProblem::NameLen(len) => {
                write!(f, "the entry at byte {at} has a name of {len} bytes, longer than itself")
            }
        }
    }
}

/// All records of a block in order; ends after the first that is none.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    block: &'a [u8],
    filetype: bool,
    next: usize,
}

/// Returns the records of a block. Only their structure is checked: see [`Entries`] for their contents.
pub fn records(block: &[u8], form: Form) -> Records<'_> {
    Records { block, filetype: form.filetype, next: 0 }
}

impl<'a> Records<'a> {
    fn record_at(&self, offset: usize) -> Result<DirEntry<'a>, EntryProblem> {
        let left = self.block.len() - offset;
        if left < HEADER_BYTES {
            return Err(EntryProblem::RecLen(left));
        }
        let header = &self.block[offset..];
        let inode = InodeNo(u32_at(header, 0));
        let rec_len = decode_rec_len(u16_at(header, 4), self.block.len());
        if rec_len < HEADER_BYTES || !rec_len.is_multiple_of(4) || rec_len > left {
            return Err(EntryProblem::RecLen(rec_len));
        }
        let (name_len, type_byte) =
            if self.filetype { (usize::from(header[6]), header[7]) } else { (usize::from(u16_at(header, 6)), 0) };
        let fits = name_len <= NAME_MAX && HEADER_BYTES + name_len <= rec_len;
        if inode.0 != 0 && !fits {
            return Err(EntryProblem::NameLen(name_len));
        }
        let name_len = if fits { name_len } else { 0 };
        Ok(DirEntry { offset, rec_len, inode, name: &header[HEADER_BYTES..HEADER_BYTES + name_len], type_byte })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<DirEntry<'a>, BadEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.next;
        if offset >= self.block.len() {
            return None;
        }
        match self.record_at(offset) {
            Ok(entry) => {
                self.next += entry.rec_len;
                Some(Ok(entry))
            }
            Err(problem) => {
                self.next = self.block.len();
                Some(Err(BadEntry { offset, problem }))
            }
        }
    }
}

/// Returns the record that starts at `offset`, or the reason why it is none; `None` beyond the
/// block's end.
pub fn record_at(block: &[u8], form: Form, offset: usize) -> Option<Result<DirEntry<'_>, BadEntry>> {
    Records { block, filetype: form.filetype, next: offset }.next()
}

/// Checks the contents of a used entry: the name is legal, and the inode exists.
///
/// # Errors
/// The rule that is broken, as a clause.
pub fn check_contents(entry: &DirEntry<'_>, form: Form) -> Result<(), String> {
    if entry.name.is_empty() {
        return Err(format!("the entry at byte {} has no name", entry.offset));
    }
    if entry.name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(format!("the name at byte {} has an illegal character", entry.offset));
    }
    if entry.inode.0 > form.inodes {
        return Err(format!(
            "the entry at byte {} names inode {}, but there are only {}",
            entry.offset, entry.inode, form.inodes
        ));
    }
    Ok(())
}

/// A directory block all of whose records have been checked, and also their contents.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    block: &'a [u8],
    form: Form,
}

impl<'a> Entries<'a> {
    /// Checks a block.
    ///
    /// # Errors
    /// The first record or name that is wrong.
    pub fn check(block: &'a [u8], form: Form, place: Place) -> Result<Entries<'a>, Damage> {
        let mut last = 0;
        for record in records(block, form) {
            let entry = record.map_err(|bad| place.damage(bad.to_string()))?;
            last = entry.offset;
            if entry.is_used() {
                check_contents(&entry, form).map_err(|problem| place.damage(problem))?;
            }
        }
        let room = form.room(block.len());
        let has_tail = form.has_tail && last == room && is_leaf_tail(&block[room..]);
        Ok(Entries { block: if has_tail { &block[..room] } else { block }, form })
    }

    /// Returns all entries in order, also unused ones.
    pub fn all(self) -> impl Iterator<Item = DirEntry<'a>> {
        records(self.block, self.form).map_while(Result::ok)
    }

    /// Returns the used entries in order.
    pub fn used(self) -> impl Iterator<Item = DirEntry<'a>> {
        self.all().filter(DirEntry::is_used)
    }

    /// Returns the entry with this name.
    pub fn find(self, name: &[u8]) -> Option<DirEntry<'a>> {
        self.used().find(|entry| entry.name == name)
    }

    /// Returns true if the block has no names but `.` and `..`.
    pub fn is_empty(self) -> bool {
        self.used().all(|entry| matches!(entry.name, b"." | b".."))
    }

    /// Returns the longest name that [`insert`] would find a place for; `None` if there is no place
    /// at all.
    pub fn name_room(self) -> Option<usize> {
        self.all().filter_map(|entry| longest_name(&entry)).max()
    }
}

/// Returns the entry with this name, in a block that may be damaged before or after it.
pub fn find<'a>(block: &'a [u8], form: Form, name: &[u8]) -> Option<DirEntry<'a>> {
    records(block, form).map_while(Result::ok).find(|entry| entry.is_used() && entry.name == name)
}

/// Returns true if a change of these bytes cannot be torn by a power cut.
pub fn in_one_sector(range: &Range<usize>) -> bool {
    range.is_empty() || range.start / SECTOR_BYTES == (range.end - 1) / SECTOR_BYTES
}

/// The place of a new entry in the record of an existing one, and the bytes that would change.
struct Spot {
    offset: usize,
    rec_len: usize,
    changed: Range<usize>,
}

/// Splits `entry`'s record for a name of `name_len` bytes; returns `None` if it does not fit.
fn spot(entry: &DirEntry<'_>, name_len: usize) -> Option<Spot> {
    let own = entry.own_bytes();
    if entry.rec_len < own + record_bytes(name_len) {
        return None;
    }
    let offset = entry.offset + own;
    let end = offset + HEADER_BYTES + name_len;
    // A split also changes the predecessor's length, which starts at its byte 4.
    let start = if entry.is_used() { entry.offset + 4 } else { offset };
    Some(Spot { offset, rec_len: entry.rec_len - own, changed: start..end })
}

/// Returns the longest name that a split of `entry` has room for under the 512-byte rule.
fn longest_name(entry: &DirEntry<'_>) -> Option<usize> {
    let least = spot(entry, 1).filter(|spot| in_one_sector(&spot.changed))?;
    let sector_end = (least.offset / SECTOR_BYTES + 1) * SECTOR_BYTES;
    let record_end = entry.offset + entry.rec_len;
    Some((sector_end.min(record_end) - least.offset - HEADER_BYTES).min(NAME_MAX))
}

/// An entry that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// Its first byte in the block.
    pub offset: usize,
    /// The bytes that changed: all in one sector.
    pub changed: Range<usize>,
}

/// Adds an entry where the 512-byte rule allows it. Does not check whether the name exists.
///
/// Returns `None` if the block has no such place (or is damaged before the first one).
pub fn insert(block: &mut [u8], form: Form, name: &[u8], inode: InodeNo, kind: FileKind) -> Option<Inserted> {
    debug_assert!((1..=NAME_MAX).contains(&name.len()));
    let room = form.room(block.len());
    let (split, spot) = records(&block[..room], form).map_while(Result::ok).find_map(|entry| {
        let spot = spot(&entry, name.len()).filter(|spot| form.is_untorn(&spot.changed))?;
        Some((entry.is_used().then_some(entry.offset), spot))
    })?;
    write_entry(block, spot.offset, spot.rec_len, inode, name, form.type_byte(kind));
    if let Some(before) = split {
        put_u16(block, before + 4, encode_rec_len(spot.offset - before));
    }
    Some(Inserted { offset: spot.offset, changed: spot.changed })
}

/// Removes the entry at `offset` and returns the bytes that changed.
///
/// The record is merged into its predecessor if their headers share a sector; otherwise it stays
/// as an unused entry. Returns `None` if there is no used entry at `offset`.
pub fn remove(block: &mut [u8], form: Form, offset: usize) -> Option<Range<usize>> {
    let mut before: Option<DirEntry<'_>> = None;
    for entry in records(block, form).map_while(Result::ok) {
        if entry.offset < offset {
            before = Some(entry);
            continue;
        }
        if entry.offset > offset || !entry.is_used() {
            return None;
        }
        let merged = before
            .filter(|b| form.is_untorn(&(b.offset..offset + HEADER_BYTES)))
            .map(|b| (b.offset, b.rec_len + entry.rec_len));
        return Some(match merged {
            Some((at, rec_len)) => {
                put_u16(block, at + 4, encode_rec_len(rec_len));
                at + 4..at + 6
            }
            None => {
                put_u32(block, offset, 0);
                offset..offset + 4
            }
        });
    }
    None
}

/// Makes the entry at `offset` name another inode, in place, and returns the bytes that changed. If inode and type lie
/// in different sectors and both change, these are two pieces: the first may reach the disk without the second.
///
/// Returns `None`, and changes nothing, if there is no used entry at `offset`.
pub fn point(
    block: &mut [u8],
    form: Form,
    offset: usize,
    inode: InodeNo,
    kind: FileKind,
) -> Option<SmallVec<[Range<usize>; 2]>> {
    let entry = records(block, form).map_while(Result::ok).find(|entry| entry.offset == offset && entry.is_used())?;
    let type_byte = form.type_byte(kind);
    let same_type = !form.filetype || entry.type_byte == type_byte;
    let changed = offset..offset + if same_type { 4 } else { HEADER_BYTES };
    put_u32(block, offset, inode.0);
    if !same_type {
        block[offset + 7] = type_byte;
    }
    let is_torn = !form.is_untorn(&changed);
    Some(if is_torn { smallvec![offset..offset + 4, offset + 7..offset + 8] } else { smallvec![changed] })
}

/// Appends an entry as short as its name allows.
pub fn append(block: &mut Vec<u8>, inode: InodeNo, type_byte: u8, name: &[u8]) {
    let offset = block.len();
    let rec_len = record_bytes(name.len());
    block.resize(offset + rec_len, 0);
    write_entry(block, offset, rec_len, inode, name, type_byte);
}

/// Returns the structure that a directory's block `lbn` holds, as its checksum sees it. Blocks of an index are told
/// apart by their shape.
pub fn sealed(block: &[u8], lbn: u64, indexed: bool, owner: Owner) -> Sealed {
    match sealed_by_shape(block, owner) {
        Sealed::IndexRoot(_) if !indexed || lbn != 0 => Sealed::Leaf(owner),
        Sealed::IndexNode(_) if !indexed || lbn == 0 => Sealed::Leaf(owner),
        what => what,
    }
}

/// Returns the structure that a sound block of a directory with checksums holds: entries of blocks of an index reach to
/// the block's end, where leaves have their tail.
pub fn sealed_by_shape(block: &[u8], owner: Owner) -> Sealed {
    let rec_len = |at: usize| decode_rec_len(u16_at(block, at), block.len());
    let is_root = rec_len(4) == 12 && rec_len(16) == block.len() - 12 && block[29] == 8;
    let is_node = u32_at(block, 0) == 0 && rec_len(4) == block.len();
    match (is_root, is_node) {
        (true, _) => Sealed::IndexRoot(owner),
        (_, true) => Sealed::IndexNode(owner),
        _ => Sealed::Leaf(owner),
    }
}

fn write_entry(block: &mut [u8], offset: usize, rec_len: usize, inode: InodeNo, name: &[u8], type_byte: u8) {
    put_u32(block, offset, inode.0);
    put_u16(block, offset + 4, encode_rec_len(rec_len));
    // Without types byte 7 is the high byte of the length: 0, as names have at most 255 bytes.
    block[offset + 6] = name.len() as u8;
    block[offset + 7] = type_byte;
    let name_at = offset + HEADER_BYTES;
    block[name_at..name_at + name.len()].copy_from_slice(name);
}

/// Makes `block` an empty directory block: one unused entry per sector, and the tail, whose checksum is made later.
pub fn format_empty(block: &mut [u8], form: Form) {
    block.fill(0);
    let room = form.room(block.len());
    let stride = if form.is_whole { room } else { SECTOR_BYTES };
    for offset in (0..room).step_by(stride) {
        write_entry(block, offset, stride.min(room - offset), InodeNo(0), b"", 0);
    }
    put_tail(block, form);
}

/// Returns true if the last record of a directory block is the tail that holds its checksum.
pub fn has_tail(block: &[u8], form: Form) -> bool {
    let room = form.room(block.len());
    let last = records(block, form).map_while(Result::ok).last();
    last.is_some_and(|entry| entry.offset == room) && is_leaf_tail(&block[room..])
}

/// Gives up what follows the last sound record of a block; that record takes its place.
pub fn cut_records(block: &mut [u8], form: Form) {
    let room = form.room(block.len());
    let sound = records(block, form).map_while(Result::ok).filter(|entry| entry.offset < room);
    let Some((offset, name_len)) = sound.last().map(|entry| (entry.offset, entry.name.len())) else {
        return format_empty(block, form);
    };
    if offset + HEADER_BYTES + name_len > room {
        put_u32(block, offset, 0);
    }
    put_u16(block, offset + 4, encode_rec_len(room - offset));
    put_tail(block, form);
}

/// Packs the entries of a block so that its tail has room. Entries at the end that find none are left out.
pub fn make_tail(block: &mut [u8], form: Form) {
    let before = block.to_vec();
    let mut left = form.room(block.len());
    let entries = records(&before, form).map_while(Result::ok).filter(DirEntry::is_used).map_while(|entry| {
        left = left.checked_sub(record_bytes(entry.name.len()))?;
        Some((entry.inode, entry.type_byte, entry.name))
    });
    pack(block, form, entries);
}

/// Makes a block of an index an ordinary one: block 0 keeps `.` and `..`, others have no name.
pub fn make_linear(block: &mut [u8], form: Form, is_first: bool) {
    if !is_first {
        return format_empty(block, form);
    }
    put_u16(block, 16, encode_rec_len(form.room(block.len()) - 12));
    put_tail(block, form);
}

fn put_tail(block: &mut [u8], form: Form) {
    if form.has_tail {
        let room = form.room(block.len());
        write_entry(block, room, LEAF_TAIL_BYTES, InodeNo(0), b"", LEAF_TAIL_TYPE);
    }
}

/// Makes `block` the first block of a directory: `.` and `..`, then unused entries.
pub fn format_first(block: &mut [u8], form: Form, own: InodeNo, parent: InodeNo) {
    format_empty(block, form);
    let type_byte = form.type_byte(FileKind::Directory);
    write_entry(block, 0, 12, own, b".", type_byte);
    let end = if form.is_whole { form.room(block.len()) } else { SECTOR_BYTES };
    write_entry(block, 12, end - 12, parent, b"..", type_byte);
}

/// Makes `block` a directory block with these entries (inode, type byte, name), as short as their names allow, on a
/// volume with a journal. The last one takes the rest.
pub fn pack<'a>(block: &mut [u8], form: Form, entries: impl Iterator<Item = (InodeNo, u8, &'a [u8])>) {
    format_empty(block, form);
    let (mut at, mut last) = (0, 0);
    for (inode, type_byte, name) in entries {
        last = at;
        write_entry(block, at, record_bytes(name.len()), inode, name, type_byte);
        at += record_bytes(name.len());
    }
    if at > 0 {
        put_u16(block, last + 4, encode_rec_len(form.room(block.len()) - last));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Structure;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const FORM: Form = Form { filetype: true, inodes: 1 << 20, has_tail: false, is_whole: false };
    const PLACE: Place = Place::of(Structure::Directory { inode: InodeNo(2), lbn: 0 });

    fn names(block: &[u8]) -> Vec<Vec<u8>> {
        let entries = Entries::check(block, FORM, PLACE).unwrap();
        entries.used().map(|e| e.name.to_vec()).collect()
    }

    /// Returns a block as other drivers make it: one record to the block's end.
    fn foreign_block(bytes: usize) -> Vec<u8> {
        let mut block = vec![0; bytes];
        write_entry(&mut block, 0, bytes, InodeNo(0), b"", 0);
        block
    }

    #[test]
    fn an_empty_block_has_one_record_per_sector() {
        let mut block = vec![0xFF; 4096];
        format_empty(&mut block, FORM);
        let offsets: Vec<_> = records(&block, FORM).map(|r| r.unwrap().offset).collect();
        assert_eq!(offsets, (0..8).map(|i| i * 512).collect::<Vec<_>>());
        format_first(&mut block, FORM, InodeNo(12), InodeNo(2));
        assert_eq!(names(&block), [b".".to_vec(), b"..".to_vec()]);
        assert!(Entries::check(&block, FORM, PLACE).unwrap().is_empty());
    }

    #[test]
    fn records_of_64k_are_written_as_65535() {
        let block = foreign_block(65536);
        assert_eq!(u16_at(&block, 4), 65535);
        assert_eq!(records(&block, FORM).next().unwrap().unwrap().rec_len, 65536);
        assert_eq!(decode_rec_len(0, 65536), 65536);
        assert_eq!(decode_rec_len(4093, 65536), 65536 + 4092);
        assert_eq!(decode_rec_len(65532, 65536), 65532);
    }

    #[test]
    fn without_types_byte_7_stays_zero() {
        let form = Form { filetype: false, ..FORM };
        let mut block = vec![0; 1024];
        format_first(&mut block, form, InodeNo(12), InodeNo(2));
        insert(&mut block, form, b"name", InodeNo(13), FileKind::Fifo).unwrap();
        let entry = find(&block, form, b"name").unwrap();
        let type_at = entry.offset + 7;
        assert_eq!((entry.type_byte, block[type_at]), (0, 0));
        block[type_at] = 1;
        assert!(Entries::check(&block, form, PLACE).is_err());
    }

    #[test]
    fn foreign_blocks_are_filled_in_the_predecessors_sector_only() {
        let mut block = foreign_block(4096);
        let mut count = 0u32;
        while let Some(inserted) =
            insert(&mut block, FORM, format!("n{count:03}").as_bytes(), InodeNo(20 + count), FileKind::Regular)
        {
            assert!(in_one_sector(&inserted.changed));
            count += 1;
        }
        // Records of 12 bytes.
        assert_eq!(count, 42);
        assert_eq!(Entries::check(&block, FORM, PLACE).unwrap().name_room(), None);
    }

    #[test]
    fn removing_the_first_entry_of_a_sector_leaves_an_unused_one() {
        let mut block = vec![0; 1024];
        format_empty(&mut block, FORM);
        insert(&mut block, FORM, b"a", InodeNo(20), FileKind::Regular).unwrap();
        let b = insert(&mut block, FORM, b"b", InodeNo(21), FileKind::Regular).unwrap();
        let long = [b'x'; 255];
        insert(&mut block, FORM, &long, InodeNo(22), FileKind::Regular).unwrap();
        let second = insert(&mut block, FORM, &long, InodeNo(23), FileKind::Regular).unwrap();
        assert_eq!(second.offset, 512);
        assert_eq!(remove(&mut block, FORM, 512), Some(512..516));
        assert_eq!(remove(&mut block, FORM, 512), None);
        assert_eq!(remove(&mut block, FORM, b.offset), Some(4..6));
        assert_eq!(remove(&mut block, FORM, 0), Some(0..4));
        assert_eq!(names(&block), [long.to_vec()]);
    }

    #[test]
    fn pointing_elsewhere_changes_inode_and_type_only() {
        let mut block = vec![0; 1024];
        format_first(&mut block, FORM, InodeNo(12), InodeNo(2));
        assert_eq!(point(&mut block, FORM, 12, InodeNo(30), FileKind::Directory), Some(smallvec![12..16]));
        assert_eq!(point(&mut block, FORM, 12, InodeNo(31), FileKind::Regular), Some(smallvec![12..20]));
        assert_eq!(find(&block, FORM, b"..").unwrap().inode, InodeNo(31));
        assert_eq!(point(&mut block, FORM, 24, InodeNo(31), FileKind::Regular), None);
    }

    #[test]
    fn an_entry_whose_header_spans_sectors_changes_inode_and_type_apart() {
        let mut block = foreign_block(1024);
        let pad = [b'p'; 248];
        write_entry(&mut block, 0, 256, InodeNo(20), &pad, 1);
        write_entry(&mut block, 256, 252, InodeNo(21), &pad[..240], 1);
        write_entry(&mut block, 508, 516, InodeNo(22), b"edge", 1);
        assert_eq!(point(&mut block, FORM, 508, InodeNo(23), FileKind::Regular), Some(smallvec![508..512]));
        assert_eq!(point(&mut block, FORM, 508, InodeNo(24), FileKind::Directory), Some(smallvec![508..512, 515..516]));
        let entry = find(&block, FORM, b"edge").unwrap();
        assert_eq!((entry.inode, entry.kind()), (InodeNo(24), Some(FileKind::Directory)));
        assert_eq!(remove(&mut block, FORM, 508), Some(508..512));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, usize),
        Remove(u8),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (any::<u8>(), 1usize..256).prop_map(|(n, len)| Step::Insert(n, len)),
            2 => any::<u8>().prop_map(Step::Remove),
        ]
    }

    fn name_of(n: u8, len: usize) -> Vec<u8> {
        let mut name = format!("{n:03}").into_bytes();
        name.resize(len.max(3), b'.');
        name
    }

    /// Runs steps against a map, and checks after each that only the returned bytes changed.
    fn run(mut block: Vec<u8>, steps: &[Step]) {
        let mut model: BTreeMap<u8, (Vec<u8>, InodeNo)> = BTreeMap::new();
        for (i, step) in steps.iter().enumerate() {
            let before = block.clone();
            let changed = match *step {
                Step::Insert(n, _) if model.contains_key(&n) => continue,
                Step::Insert(n, len) => {
                    let (name, inode) = (name_of(n, len), InodeNo(100 + i as u32));
                    let room = Entries::check(&block, FORM, PLACE).unwrap().name_room();
                    let inserted = insert(&mut block, FORM, &name, inode, FileKind::Regular);
                    assert_eq!(inserted.is_some(), room.is_some_and(|room| room >= name.len()));
                    let Some(inserted) = inserted else { continue };
                    model.insert(n, (name, inode));
                    inserted.changed
                }
                Step::Remove(n) => {
                    let Some((name, _)) = model.remove(&n) else { continue };
                    let offset = find(&block, FORM, &name).unwrap().offset;
                    remove(&mut block, FORM, offset).unwrap()
                }
            };
            assert!(in_one_sector(&changed));
            let mut expected = before;
            expected[changed.clone()].copy_from_slice(&block[changed]);
            assert_eq!(expected, block);
            let entries = Entries::check(&block, FORM, PLACE).unwrap();
            let mut on_disk: Vec<_> = entries.used().map(|e| (e.name.to_vec(), e.inode)).collect();
            on_disk.sort();
            assert_eq!(on_disk, model.values().cloned().collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn changes_lie_in_one_sector_and_entries_agree_with_a_map(
            steps in prop::collection::vec(any_step(), 0..80),
            size in prop::sample::select(vec![1024usize, 4096, 65536]), foreign in any::<bool>(),
        ) {
            let mut block = foreign_block(size);
            if !foreign {
                format_empty(&mut block, FORM);
            }
            run(block, &steps);
        }

        #[test]
        fn hostile_blocks_never_panic(
            bytes in prop::collection::vec(prop_oneof![2 => Just(0u8), 1 => 1u8..16, 1 => any::<u8>()], 1024),
            offset in 0usize..1024, filetype in any::<bool>(),
        ) {
            let form = Form { filetype, ..FORM };
            let _ = Entries::check(&bytes, form, PLACE).map(|e| (e.is_empty(), e.name_room()));
            let mut block = bytes;
            find(&block, form, b"x");
            point(&mut block, form, offset, InodeNo(5), FileKind::Fifo);
            remove(&mut block, form, offset);
            insert(&mut block, form, b"some name", InodeNo(7), FileKind::Regular);
        }
    }
}
