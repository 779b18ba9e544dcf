//! The journal's format (JBD2): its superblock, the blocks of its log, and their checksums.
//!
//! The log is a ring of blocks. A transaction is one or more descriptor blocks, each followed by the blocks that its
//! tags name, perhaps revoke blocks, and a commit block, all with one sequence number. A tag says where a logged block
//! belongs ("home"). A revoke says that older copies of a block must not be written home.
//!
//! All integers are big-endian, unlike those of the volume. Everything here is pure: `crate::journal` reads the log.
//! `docs/formats/ext4.md`, section 8.

use bitflags::bitflags;

use super::checksum::Crc32c;
use super::{BlockNo, Damage, Place, Structure};

/// The magic number that begins every block of the log that is no logged block.
pub const MAGIC: u32 = 0xC03B_3998;
/// Bytes of the journal's superblock.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// Bytes of the header of a block of the log.
const HEADER_BYTES: usize = 12;
/// Bytes of a revoke block's header: the common one, and the number of bytes in use.
const REVOKE_HEADER_BYTES: usize = 16;
/// Bytes of the UUID that follows a tag without [`TagFlags::SAME_UUID`].
const UUID_BYTES: usize = 16;
/// Bytes of the checksum that ends descriptor and revoke blocks.
const TAIL_BYTES: usize = 4;
/// Byte of a commit block at which its checksum lies.
const COMMIT_SUM_AT: usize = 16;
/// The bytes of a commit block that are not zeros: its fields, and the four that pad them.
const COMMIT_BYTES: usize = 64;
/// Byte of the superblock at which its checksum lies.
const SUPERBLOCK_SUM_AT: usize = 0xFC;
/// `s_checksum_type` of CRC-32C, and the type of the checksum in commit blocks of version 1 (CRC-32).
const TYPE_CRC32C: u8 = 4;
const TYPE_CRC32: u8 = 1;
/// Blocks of the area for fast commits if the superblock does not say.
const FAST_COMMIT_BLOCKS: u32 = 256;

bitflags! {
    /// Features of the journal that a driver must know.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct JournalFeatures: u32 {
        /// Blocks are revoked. Revoke blocks may stand in the log before this bit is set.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// No flush lies between a transaction's blocks and its commit block.
        const ASYNC_COMMIT = 0x4;
        /// Checksums of version 2.
        const CSUM_V2 = 0x8;
        /// Checksums of version 3.
        const CSUM_V3 = 0x10;
        /// The end of the journal is an area for fast commits.
        const FAST_COMMIT = 0x20;
    }
}

bitflags! {
    /// The flags of a tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TagFlags: u32 {
        /// The logged block began with the magic number, which was replaced by zeros.
        const ESCAPED = 0x1;
        /// No UUID follows.
        const SAME_UUID = 0x2;
        /// Not used by any driver.
        const DELETED = 0x4;
        /// The last tag of the descriptor.
        const LAST = 0x8;
        const _ = !0;
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// The kind of checksums in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSums {
    /// None.
    Absent,
    /// CRC-32 over all blocks of a transaction, in its commit block (version 1).
    Commit,
    /// CRC-32C in every block, 16 bits in tags (version 2).
    V2(u32),
    /// CRC-32C in every block and tag (version 3).
    V3(u32),
}

impl LogSums {
    /// Returns the start of the checksums of blocks, of versions that have them.
    pub(crate) fn seed(self) -> Option<Crc32c> {
        match self {
            LogSums::V2(seed) | LogSums::V3(seed) => Some(Crc32c(seed)),
            _ => None,
        }
    }
}

/// The journal's superblock: the fields that replay needs, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// Number of blocks of the journal.
    pub blocks: u32,
    /// The first block of the ring.
    pub first: u32,
    /// Behind the last block of the ring.
    pub end: u32,
    /// The sequence number of the transaction at `start`; of the next one if the log is empty.
    pub sequence: u32,
    /// The first block of the oldest transaction that is needed; 0 if the log is empty.
    pub start: u32,
    /// The error that an abort left, as a negative number; 0 for none.
    pub errno: i32,
    /// The features.
    pub features: JournalFeatures,
    /// The kind of checksums.
    pub sums: LogSums,
}

impl JournalSuperblock {
    /// Decodes the superblock of a journal whose blocks have `block_size` bytes and that is mapped for `mapped` blocks.
    ///
    /// # Errors
    /// The first rule that is broken.
    ///
    /// # Panics
    /// If there are fewer than [`SUPERBLOCK_BYTES`] bytes, which is the caller's mistake.
    pub fn decode(bytes: &[u8], block_size: u32, mapped: u64) -> Result<JournalSuperblock, Damage> {
        let bytes = &bytes[..SUPERBLOCK_BYTES];
        let illegal = |field: &str, value: u32, rule: String| {
            Place::of(Structure::JournalSuperblock).damage(format!("{field} is {value:#x}, but {rule}"))
        };
        let kind = be32(bytes, 4);
        if be32(bytes, 0) != MAGIC {
            return Err(illegal("h_magic", be32(bytes, 0), format!("must be {MAGIC:#x}")));
        }
        if kind != 3 && kind != 4 {
            return Err(illegal("h_blocktype", kind, "a superblock has 3 or 4".to_owned()));
        }
        // Version 1 has no features: what lies behind its fields means nothing.
        let [compat, incompat, ro_compat] =
            if kind == 4 { [0x24, 0x28, 0x2C].map(|at| be32(bytes, at)) } else { [0; 3] };
        let features = JournalFeatures::from_bits_retain(incompat);
        let sums = Self::sums(bytes, compat, features)?;
        let unknown = (features.difference(JournalFeatures::all()).bits(), ro_compat);
        if unknown != (0, 0) {
            let rule = format!("only {:#x} are known", JournalFeatures::all().bits());
            return Err(illegal("s_feature_incompat", unknown.0 | unknown.1, rule));
        }
        let journal_block = be32(bytes, 0x0C);
        if journal_block != block_size {
            return Err(illegal("s_blocksize", journal_block, format!("the volume has blocks of {block_size} bytes")));
        }
        let (blocks, first, start) = (be32(bytes, 0x10), be32(bytes, 0x14), be32(bytes, 0x1C));
        if u64::from(blocks) > mapped || blocks < 2 {
            return Err(illegal("s_maxlen", blocks, format!("its inode maps {mapped} blocks")));
        }
        let area = match (features.contains(JournalFeatures::FAST_COMMIT), be32(bytes, 0x54)) {
            (false, _) => 0,
            (true, 0) => FAST_COMMIT_BLOCKS,
            (true, area) => area,
        };
        let Some(end) = blocks.checked_sub(area).filter(|end| *end > first && first > 0) else {
            return Err(illegal("s_first", first, format!("the journal has {blocks} blocks, {area} for fast commits")));
        };
        if start != 0 && !(first..end).contains(&start) {
            return Err(illegal("s_start", start, format!("the log has blocks {first} to {}", end - 1)));
        }
        Ok(JournalSuperblock {
            blocks,
            first,
            end,
            sequence: be32(bytes, 0x18),
            start,
            errno: be32(bytes, 0x20).cast_signed(),
            features,
            sums,
        })
    }

    /// Returns the kind of checksums, and verifies the superblock's own.
    fn sums(bytes: &[u8], compat: u32, features: JournalFeatures) -> Result<LogSums, Damage> {
        let place = Place::of(Structure::JournalSuperblock);
        let (v2, v3) = (features.contains(JournalFeatures::CSUM_V2), features.contains(JournalFeatures::CSUM_V3));
        let v1 = compat & 1 != 0;
        if u8::from(v1) + u8::from(v2) + u8::from(v3) > 1 {
            return Err(place.damage("it claims checksums of several versions"));
        }
        if !v2 && !v3 {
            return Ok(if v1 { LogSums::Commit } else { LogSums::Absent });
        }
        if bytes[0x50] != TYPE_CRC32C {
            return Err(place.damage(format!("s_checksum_type is {}, should be {TYPE_CRC32C}", bytes[0x50])));
        }
        let expected = Crc32c::START.without(bytes, SUPERBLOCK_SUM_AT..SUPERBLOCK_SUM_AT + 4).0;
        let found = be32(bytes, SUPERBLOCK_SUM_AT);
        if found != expected {
            return Err(place.damage(format!("its checksum is {found:#010x}, should be {expected:#010x}")));
        }
        let seed = Crc32c::START.bytes(&bytes[0x30..0x40]).0;
        Ok(if v2 { LogSums::V2(seed) } else { LogSums::V3(seed) })
    }

    /// Returns true if no transaction is needed any more.
    pub fn is_empty(&self) -> bool {
        self.start == 0
    }

    /// Returns the block of the ring behind `at`.
    pub fn next(&self, at: u32) -> u32 {
        if at + 1 >= self.end { self.first } else { at + 1 }
    }

    /// Returns the first block of the area for fast commits, if there is one. The block at the ring's end is not used.
    pub fn fast_commits(&self) -> Option<u32> {
        let has = self.features.contains(JournalFeatures::FAST_COMMIT);
        Some(self.end + 1).filter(|first| has && *first < self.blocks)
    }

    /// Returns the form of the tags.
    fn tag_form(&self) -> TagForm {
        let wide = self.features.contains(JournalFeatures::BIT64);
        match self.sums {
            LogSums::V3(_) => TagForm { stride: 16, wide, v3: true },
            LogSums::V2(_) => TagForm { stride: if wide { 14 } else { 10 }, wide, v3: false },
            _ => TagForm { stride: if wide { 12 } else { 8 }, wide, v3: false },
        }
    }

    /// Returns the tags of a descriptor block, in the order of the blocks that follow it.
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let form = self.tag_form();
        let end = block.len() - if self.sums.seed().is_some() { TAIL_BYTES } else { 0 };
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + form.stride <= end {
            let tag = form.tag(&block[at..at + form.stride]);
            tags.push(tag);
            at += form.stride;
            if !tag.flags.contains(TagFlags::SAME_UUID) {
                at += UUID_BYTES;
            }
            if tag.flags.contains(TagFlags::LAST) {
                break;
            }
        }
        tags
    }

    /// Returns the blocks that a revoke block names.
    pub fn revoked<'a>(&self, block: &'a [u8]) -> impl Iterator<Item = BlockNo> + 'a {
        let wide = self.features.contains(JournalFeatures::BIT64);
        let width = if wide { 8 } else { 4 };
        let room = block.len() - if self.sums.seed().is_some() { TAIL_BYTES } else { 0 };
        let end = (be32(block, HEADER_BYTES) as usize).clamp(REVOKE_HEADER_BYTES, room);
        let entries = block[REVOKE_HEADER_BYTES..end].chunks_exact(width);
        entries.map(move |entry| BlockNo(if wide { be64(entry, 0) } else { be32(entry, 0).into() }))
    }

    /// Returns true if the checksum that ends a descriptor or revoke block is right, or if there is none.
    pub fn tail_is_right(&self, block: &[u8]) -> bool {
        let at = block.len() - TAIL_BYTES;
        self.sums.seed().is_none_or(|seed| seed.without(block, at..block.len()).0 == be32(block, at))
    }

    /// Returns true if a logged block has the checksum that its tag says, or if tags have none.
    pub fn logged_is_right(&self, tag: &Tag, sequence: u32, logged: &[u8]) -> bool {
        let sum = |seed: u32| Crc32c(seed).bytes(&sequence.to_be_bytes()).bytes(logged).0;
        match self.sums {
            LogSums::V3(seed) => sum(seed) == tag.checksum,
            LogSums::V2(seed) => sum(seed) & 0xFFFF == tag.checksum,
            _ => true,
        }
    }

    /// Judges a commit block. `blocks` is the running sum of the transaction's blocks (version 1).
    pub fn commit(&self, block: &[u8], blocks: TransactionSum) -> Commit {
        let seconds = be64(block, 48);
        let is_right = |bytes: &[u8], seed: Crc32c| {
            seed.without(bytes, COMMIT_SUM_AT..COMMIT_SUM_AT + 4).0 == be32(bytes, COMMIT_SUM_AT)
        };
        let state = match (self.sums, self.sums.seed()) {
            (_, Some(seed)) if is_right(block, seed) => CommitState::Right,
            (_, Some(seed)) => {
                let mut first_sector = vec![0; block.len()];
                first_sector[..COMMIT_BYTES].copy_from_slice(&block[..COMMIT_BYTES]);
                if is_right(&first_sector, seed) { CommitState::Torn } else { CommitState::Wrong }
            }
            (LogSums::Commit, None) => {
                let (kind, bytes, stored) = (block[12], block[13], be32(block, COMMIT_SUM_AT));
                let absent = (kind, bytes, stored) == (0, 0, 0);
                let matches = kind == TYPE_CRC32 && bytes == 4 && stored == blocks.0;
                if absent || matches { CommitState::Right } else { CommitState::Wrong }
            }
            _ => CommitState::Right,
        };
        Commit { seconds, state }
    }
}

// -- writing

/// Returns the superblock of a new journal of `blocks` blocks, with an empty log and without features: the first driver
/// that writes it chooses them.
pub fn new_superblock(block_size: u32, blocks: u32, uuid: &[u8; 16]) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    // Magic and kind; block size, length, first block of the ring, first sequence number; UUID, number of users.
    let words = [(0x00, MAGIC), (0x04, 4), (0x0C, block_size), (0x10, blocks), (0x14, 1), (0x18, 1), (0x40, 1)];
    for (at, word) in words {
        put_be32(&mut bytes, at, word);
    }
    bytes[0x30..0x40].copy_from_slice(uuid);
    bytes
}

fn put_be32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Returns a block of the log with its header and nothing else.
fn block_with_header(kind: u32, sequence: u32, block_bytes: usize) -> Vec<u8> {
    let mut block = vec![0; block_bytes];
    put_be32(&mut block, 0, MAGIC);
    put_be32(&mut block, 4, kind);
    put_be32(&mut block, 8, sequence);
    block
}

/// A copy of a block as a descriptor names it.
#[derive(Debug, Clone, Copy)]
pub struct Copied<'a> {
    /// The block of the volume.
    pub home: BlockNo,
    /// True if the magic number at its start was replaced by zeros.
    pub escaped: bool,
    /// The bytes in the log.
    pub logged: &'a [u8],
}

/// Returns true if a block has to be logged without its first four bytes: they are the magic number.
pub fn needs_escape(block: &[u8]) -> bool {
    be32(block, 0) == MAGIC
}

impl JournalSuperblock {
    /// Turns the superblock into that of a journal which this crate writes: with checksums of version 3 if `checksums`,
    /// else with none, and with wide block numbers if `wide`. The area for fast commits joins the ring.
    pub fn prepare(&mut self, uuid: &[u8; 16], checksums: bool, wide: bool) {
        self.features = JournalFeatures::REVOKE;
        self.features.set(JournalFeatures::BIT64, wide);
        self.features.set(JournalFeatures::CSUM_V3, checksums);
        self.sums = if checksums { LogSums::V3(Crc32c::START.bytes(uuid).0) } else { LogSums::Absent };
        self.end = self.blocks;
    }

    /// Stores the fields that change into the bytes of the superblock, and its checksum. All of them lie in the first
    /// sector. The size of the area for fast commits stays, also while there is none: without it the kernel takes 256
    /// blocks, and refuses a volume whose ring is too short then.
    pub fn encode_into(&self, bytes: &mut [u8]) {
        put_be32(bytes, 4, 4);
        put_be32(bytes, 0x18, self.sequence);
        put_be32(bytes, 0x1C, self.start);
        put_be32(bytes, 0x20, self.errno.cast_unsigned());
        put_be32(bytes, 0x24, 0);
        put_be32(bytes, 0x28, self.features.bits());
        put_be32(bytes, 0x2C, 0);
        // The next mount begins at the start of the ring.
        put_be32(bytes, 0x58, 0);
        bytes[0x50] = if self.sums.seed().is_some() { TYPE_CRC32C } else { 0 };
        put_be32(bytes, SUPERBLOCK_SUM_AT, 0);
        if self.sums.seed().is_some() {
            let sum = Crc32c::START.bytes(&bytes[..SUPERBLOCK_BYTES]).0;
            put_be32(bytes, SUPERBLOCK_SUM_AT, sum);
        }
    }

    /// Returns the most blocks that one descriptor names.
    pub fn tags_max(&self, block_bytes: usize) -> usize {
        (block_bytes - HEADER_BYTES - UUID_BYTES - TAIL_BYTES) / self.tag_form().stride
    }

    /// Returns the most blocks that one revoke block names.
    pub fn revokes_max(&self, block_bytes: usize) -> usize {
        (block_bytes - REVOKE_HEADER_BYTES - TAIL_BYTES) / self.revoke_width()
    }

    fn revoke_width(&self) -> usize {
        if self.features.contains(JournalFeatures::BIT64) { 8 } else { 4 }
    }

    /// Makes the descriptor of at most [`Self::tags_max`] blocks.
    pub fn encode_descriptor(&self, sequence: u32, copies: &[Copied<'_>], block_bytes: usize) -> Vec<u8> {
        debug_assert!(copies.len() <= self.tags_max(block_bytes), "{} tags in a descriptor", copies.len());
        let form = self.tag_form();
        let mut block = block_with_header(1, sequence, block_bytes);
        let mut at = HEADER_BYTES;
        for (number, copy) in copies.iter().enumerate() {
            let mut flags = TagFlags::empty();
            flags.set(TagFlags::ESCAPED, copy.escaped);
            flags.set(TagFlags::SAME_UUID, number > 0);
            flags.set(TagFlags::LAST, number + 1 == copies.len());
            let checksum = match self.sums {
                LogSums::V2(seed) | LogSums::V3(seed) => {
                    Crc32c(seed).bytes(&sequence.to_be_bytes()).bytes(copy.logged).0
                }
                _ => 0,
            };
            form.encode(&mut block[at..at + form.stride], &Tag { home: copy.home, flags, checksum });
            // Behind the first tag lies a UUID, whose contents mean nothing.
            at += form.stride + if number == 0 { UUID_BYTES } else { 0 };
        }
        self.seal_tail(&mut block);
        block
    }

    /// Makes a revoke block of at most [`Self::revokes_max`] blocks.
    pub fn encode_revoke(&self, sequence: u32, blocks: &[BlockNo], block_bytes: usize) -> Vec<u8> {
        debug_assert!(blocks.len() <= self.revokes_max(block_bytes), "{} revokes in a block", blocks.len());
        let width = self.revoke_width();
        let mut block = block_with_header(5, sequence, block_bytes);
        put_be32(&mut block, HEADER_BYTES, (REVOKE_HEADER_BYTES + blocks.len() * width) as u32);
        for (entry, no) in block[REVOKE_HEADER_BYTES..].chunks_exact_mut(width).zip(blocks) {
            entry.copy_from_slice(&no.0.to_be_bytes()[8 - width..]);
        }
        self.seal_tail(&mut block);
        block
    }

    /// Makes the commit block of a transaction. `time`: seconds and nanoseconds; never less than that of the
    /// transaction before.
    pub fn encode_commit(&self, sequence: u32, time: (u64, u32), block_bytes: usize) -> Vec<u8> {
        let mut block = block_with_header(2, sequence, block_bytes);
        block[48..56].copy_from_slice(&time.0.to_be_bytes());
        put_be32(&mut block, 56, time.1);
        if let Some(seed) = self.sums.seed() {
            let sum = seed.bytes(&block).0;
            put_be32(&mut block, COMMIT_SUM_AT, sum);
        }
        block
    }

    fn seal_tail(&self, block: &mut [u8]) {
        if let Some(seed) = self.sums.seed() {
            let at = block.len() - TAIL_BYTES;
            let sum = seed.bytes(block).0;
            put_be32(block, at, sum);
        }
    }
}

/// The running CRC-32 of a transaction's descriptors and logged blocks, in the order of the log (version 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionSum(u32);

impl Default for TransactionSum {
    fn default() -> TransactionSum {
        TransactionSum(!0)
    }
}

impl TransactionSum {
    /// Takes one block more.
    #[must_use]
    pub fn and(self, block: &[u8]) -> TransactionSum {
        // The polynomial 0x04C11DB7, not reflected, from ones, without a final inversion.
        const CRC: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_MPEG_2);
        let mut digest = CRC.digest_with_initial(self.0);
        digest.update(block);
        TransactionSum(digest.finalize())
    }
}

/// The layout of a tag.
struct TagForm {
    stride: usize,
    wide: bool,
    v3: bool,
}

impl TagForm {
    fn tag(&self, bytes: &[u8]) -> Tag {
        let low = u64::from(be32(bytes, 0));
        let high = |at: usize| if self.wide { u64::from(be32(bytes, at)) << 32 } else { 0 };
        if self.v3 {
            let flags = TagFlags::from_bits_retain(be32(bytes, 4));
            return Tag { home: BlockNo(low | high(8)), flags, checksum: be32(bytes, 12) };
        }
        let flags = TagFlags::from_bits_retain(be16(bytes, 6).into());
        Tag { home: BlockNo(low | high(8)), flags, checksum: be16(bytes, 4).into() }
    }

    fn encode(&self, bytes: &mut [u8], tag: &Tag) {
        put_be32(bytes, 0, tag.home.0 as u32);
        if self.wide {
            put_be32(bytes, 8, (tag.home.0 >> 32) as u32);
        }
        if self.v3 {
            put_be32(bytes, 4, tag.flags.bits());
            put_be32(bytes, 12, tag.checksum);
        } else {
            bytes[4..6].copy_from_slice(&(tag.checksum as u16).to_be_bytes());
            bytes[6..8].copy_from_slice(&(tag.flags.bits() as u16).to_be_bytes());
        }
    }
}

/// A tag of a descriptor: what one of the blocks behind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The block of the volume whose contents were logged.
    pub home: BlockNo,
    /// The flags.
    pub flags: TagFlags,
    /// The checksum of the logged block; 16 bits in version 2, 0 without checksums.
    pub checksum: u32,
}

/// A block of the log that has a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogBlock {
    /// Names the blocks behind it.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// Names blocks whose older copies must not be written home.
    Revoke,
}

/// Returns the kind of a block of transaction `sequence`; `None` of other blocks.
pub fn log_block(block: &[u8], sequence: u32) -> Option<LogBlock> {
    if be32(block, 0) != MAGIC || be32(block, 8) != sequence {
        return None;
    }
    match be32(block, 4) {
        1 => Some(LogBlock::Descriptor),
        2 => Some(LogBlock::Commit),
        5 => Some(LogBlock::Revoke),
        _ => None,
    }
}

/// Puts the magic number back at the start of a block that was logged without it.
pub fn unescape(block: &mut [u8]) {
    block[..4].copy_from_slice(&MAGIC.to_be_bytes());
}

/// A commit block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The time of the commit.
    pub seconds: u64,
    /// The state of its checksum.
    pub state: CommitState,
}

/// The state of a commit block's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitState {
    /// Right, or there is none.
    Right,
    /// Right if only the first sector is taken: a power cut tore the write.
    Torn,
    /// Wrong.
    Wrong,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn superblock(features: JournalFeatures, sums: LogSums) -> JournalSuperblock {
        JournalSuperblock { blocks: 1024, first: 1, end: 1024, sequence: 1, start: 1, errno: 0, features, sums }
    }

    /// Returns the bytes of a superblock with these features, sealed.
    fn bytes(incompat: u32) -> Vec<u8> {
        let mut raw = vec![0; 1024];
        for (at, value) in
            [(0, MAGIC), (4, 4), (0xC, 1024), (0x10, 1024), (0x14, 1), (0x18, 7), (0x1C, 5), (0x28, incompat)]
        {
            raw[at..at + 4].copy_from_slice(&u32::to_be_bytes(value));
        }
        raw[0x50] = TYPE_CRC32C;
        let sum = Crc32c::START.bytes(&raw).0;
        raw[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
        raw
    }

    #[test]
    fn golden_blocks_of_every_form_are_decoded() {
        let all: Value = serde_json::from_str(include_str!("../../golden/ext4/checksums.json")).unwrap();
        let mut seen = 0;
        for form in all["journal_tags"].as_array().unwrap() {
            let text = |key: &str| hex(form[key].as_str().unwrap());
            let features = JournalFeatures::from_bits_retain(form["incompat"].as_u64().unwrap() as u32);
            let seed = Crc32c::START.bytes(&text("journal_uuid")).0;
            let sums = match form["csum"].as_str().unwrap() {
                "v2" => LogSums::V2(seed),
                "v3" => LogSums::V3(seed),
                _ => LogSums::Absent,
            };
            let journal = superblock(features, sums);
            let block = |start: Vec<u8>, tail: &str| {
                let mut block = start;
                block.resize(4092, 0);
                block.extend_from_slice(&text(tail));
                block
            };
            // The bytes behind the tags of these descriptors were not kept: their checksum cannot be compared.
            let descriptor = block(text("descriptor_first_68"), "descriptor_tail_4");
            assert_eq!(log_block(&descriptor, be32(&descriptor, 8)), Some(LogBlock::Descriptor));
            let homes: Vec<(u64, bool)> = journal
                .tags(&descriptor)
                .iter()
                .map(|tag| (tag.home.0, tag.flags.contains(TagFlags::ESCAPED)))
                .collect();
            assert_eq!(homes, [(5000, false), (5001, true)], "{form}");
            let revoke = block(text("revoke_first_32"), "revoke_tail_4");
            assert_eq!(journal.revoked(&revoke).next(), Some(BlockNo(5000)), "{form}");
            assert!(journal.tail_is_right(&revoke), "{form}");
            let mut commit = text("commit_first_60");
            commit.resize(4096, 0);
            assert_eq!(journal.commit(&commit, TransactionSum::default()).state, CommitState::Right, "{form}");
            if sums.seed().is_some() {
                commit[700] = 1;
                assert_eq!(journal.commit(&commit, TransactionSum::default()).state, CommitState::Torn);
                commit[20] = 1;
                assert_eq!(journal.commit(&commit, TransactionSum::default()).state, CommitState::Wrong);
            }
            seen += 1;
        }
        assert_eq!(seen, 6);
    }

    #[test]
    fn the_sum_of_a_transaction_is_crc32_from_ones() {
        assert_eq!(TransactionSum::default().and(b"12345").and(b"6789"), TransactionSum(0x0376_E6E7));
        let journal = superblock(JournalFeatures::empty(), LogSums::Commit);
        let mut commit = vec![0; 1024];
        (commit[12], commit[13]) = (1, 4);
        commit[16..20].copy_from_slice(&0x0376_E6E7u32.to_be_bytes());
        assert_eq!(journal.commit(&commit, TransactionSum(0x0376_E6E7)).state, CommitState::Right);
        assert_eq!(journal.commit(&commit, TransactionSum(1)).state, CommitState::Wrong);
    }

    #[test]
    fn broken_rules_of_the_superblock_are_named() {
        let good = JournalSuperblock::decode(&bytes(0x12), 1024, 1024).unwrap();
        assert_eq!((good.sequence, good.start, good.end), (7, 5, 1024));
        assert!(matches!(good.sums, LogSums::V3(_)));
        let fast = JournalSuperblock::decode(&bytes(0x20), 1024, 1024).unwrap();
        assert_eq!((fast.end, fast.fast_commits()), (768, Some(769)));
        type Break = fn(&mut [u8]);
        let cases: [(Break, &str); 8] = [
            (|b| b[0] = 0, "h_magic"),
            (|b| b[7] = 1, "h_blocktype"),
            (|b| b[0xE] = 8, "s_blocksize"),
            (|b| b[0x12] = 8, "s_maxlen"),
            (|b| b[0x17] = 0, "s_first"),
            (|b| b[0x1E] = 4, "s_start"),
            (|b| b[0x28] = 1, "s_feature_incompat"),
            (|b| b[0x2B] = 0x18, "several versions"),
        ];
        for (damage, word) in cases {
            let mut raw = bytes(0);
            damage(&mut raw);
            let error = JournalSuperblock::decode(&raw, 1024, 1024).unwrap_err();
            assert!(error.problem.contains(word), "{word}: {error}");
        }
        let mut raw = bytes(0x10);
        raw[0x40] = 1;
        assert!(JournalSuperblock::decode(&raw, 1024, 1024).unwrap_err().problem.contains("checksum"));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_the_same(
            homes in prop::collection::vec(any::<u32>(), 1..60),
            escaped in any::<u64>(),
            sequence in any::<u32>(),
            form in 0usize..4,
        ) {
            let mut journal = superblock(JournalFeatures::empty(), LogSums::Absent);
            journal.prepare(&[0; 16], form & 1 != 0, form & 2 != 0);
            let mut raw = bytes(0);
            journal.encode_into(&mut raw);
            prop_assert_eq!(&JournalSuperblock::decode(&raw, 1024, 1024).unwrap(), &journal);

            let logged: Vec<Vec<u8>> = homes.iter().map(|home| vec![*home as u8; 1024]).collect();
            let copies: Vec<Copied<'_>> = (0..)
                .zip(&homes)
                .zip(&logged)
                .map(|((bit, home), logged)| {
                    Copied { home: BlockNo(u64::from(*home)), escaped: escaped >> bit & 1 != 0, logged }
                })
                .take(journal.tags_max(1024))
                .collect();
            let block = journal.encode_descriptor(sequence, &copies, 1024);
            prop_assert_eq!(log_block(&block, sequence), Some(LogBlock::Descriptor));
            prop_assert!(journal.tail_is_right(&block));
            let tags = journal.tags(&block);
            prop_assert_eq!(tags.len(), copies.len());
            for (tag, copy) in tags.iter().zip(&copies) {
                prop_assert_eq!((tag.home, tag.flags.contains(TagFlags::ESCAPED)), (copy.home, copy.escaped));
                prop_assert!(journal.logged_is_right(tag, sequence, copy.logged));
            }

            let revoked: Vec<BlockNo> = copies.iter().map(|copy| copy.home).collect();
            let block = journal.encode_revoke(sequence, &revoked, 1024);
            prop_assert_eq!(log_block(&block, sequence), Some(LogBlock::Revoke));
            prop_assert!(journal.tail_is_right(&block));
            prop_assert_eq!(journal.revoked(&block).collect::<Vec<_>>(), revoked);

            let block = journal.encode_commit(sequence, (7, 9), 1024);
            prop_assert_eq!(log_block(&block, sequence), Some(LogBlock::Commit));
            let commit = journal.commit(&block, TransactionSum::default());
            prop_assert_eq!(commit, Commit { seconds: 7, state: CommitState::Right });
        }

        #[test]
        fn hostile_blocks_never_panic(block in prop::collection::vec(any::<u8>(), 1024), features in 0u32..64) {
            let features = JournalFeatures::from_bits_retain(features);
            for sums in [LogSums::Absent, LogSums::Commit, LogSums::V2(1), LogSums::V3(1)] {
                let journal = superblock(features, sums);
                for tag in journal.tags(&block) {
                    journal.logged_is_right(&tag, 1, &block);
                }
                journal.revoked(&block).count();
                journal.tail_is_right(&block);
                journal.commit(&block, TransactionSum::default());
            }
            let _ = JournalSuperblock::decode(&block, 1024, 1024);
        }
    }
}
