//! The checkpoint (section 3): the state that the volume returns to.
//!
//! A checkpoint is a *pack* of blocks: the checkpoint block, more of its bitmaps if they do not fit
//! there (the payload), orphans, the summaries of the six open segments with the NAT and SIT
//! journals in them, and the checkpoint block again. The two packs are written in turn. A pack
//! whose first and last block do not carry the same version was cut off while it was written, and
//! the other one counts.

use bitflags::bitflags;

use super::crc::{MAGIC, crc32};
use super::nat::NatEntry;
use super::sit::SitEntry;
use super::summary::{self, ENTRY_BYTES, FOOTER_AT, JOURNAL_AT, JOURNAL_BYTES, Summary, SummaryEntry};
use super::superblock::{Geometry, PACK_BLOCKS_FIXED};
use super::{BLOCK, Damage, Log, Nid, SEGMENT_BLOCKS, Segno, Structure};
use super::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

pub use super::summary::{NAT_JOURNAL_MAX, SIT_JOURNAL_MAX};

/// Orphans that a block holds.
pub const ORPHANS_PER_BLOCK: usize = 1020;
/// Offset of the fields that tell which of how many blocks of orphans this is, and how many orphans
/// it has (section 3.7).
const ORPHAN_INDEX_AT: usize = 4 * ORPHANS_PER_BLOCK + 4;
const ORPHAN_COUNT_AT: usize = ORPHAN_INDEX_AT + 4;

/// Offset of the bitmaps in the checkpoint block; with large bitmaps the checksum is there.
const BITMAPS_AT: usize = 192;
/// Offset of the checksum otherwise.
const CHECKSUM_AT: usize = BLOCK - 4;
/// The fewest blocks of a pack without payload: the checkpoint block twice and compact summaries of data logs.
const PACK_BLOCKS_MIN: u32 = 3;
/// Summaries start at this block of the pack at the latest.
const START_SUM_MAX: u32 = SEGMENT_BLOCKS as u32 - 7;

const DATA_LOGS: [Log; 3] = [Log::HotData, Log::WarmData, Log::ColdData];
const NODE_LOGS: [Log; 3] = [Log::HotNode, Log::WarmNode, Log::ColdNode];
/// Entries that the first block of compact summaries holds behind the journals, and the next one.
const COMPACT_IN_FIRST: usize = (FOOTER_AT - 2 * JOURNAL_BYTES) / ENTRY_BYTES;
const COMPACT_IN_NEXT: usize = FOOTER_AT / ENTRY_BYTES;
const _: () = assert!(COMPACT_IN_FIRST == 439 && COMPACT_IN_NEXT == 584);

/// Offsets in the checkpoint block (section 3.1).
mod at {
    pub(super) const VERSION: usize = 0;
    pub(super) const USER_BLOCKS: usize = 8;
    pub(super) const VALID_BLOCKS: usize = 16;
    pub(super) const RESERVED_SEGMENTS: usize = 24;
    pub(super) const OVERPROVISION_SEGMENTS: usize = 28;
    pub(super) const FREE_SEGMENTS: usize = 32;
    pub(super) const NODE_SEGNOS: usize = 36;
    pub(super) const NODE_OFFSETS: usize = 68;
    pub(super) const DATA_SEGNOS: usize = 84;
    pub(super) const DATA_OFFSETS: usize = 116;
    pub(super) const FLAGS: usize = 132;
    pub(super) const PACK_BLOCKS: usize = 136;
    pub(super) const START_SUM: usize = 140;
    pub(super) const VALID_NODES: usize = 144;
    pub(super) const VALID_INODES: usize = 148;
    pub(super) const NEXT_FREE_NID: usize = 152;
    pub(super) const SIT_BITMAP_BYTES: usize = 156;
    pub(super) const NAT_BITMAP_BYTES: usize = 160;
    pub(super) const CHECKSUM_OFFSET: usize = 164;
    pub(super) const ELAPSED: usize = 168;
    pub(super) const ALLOCATION: usize = 176;
}

bitflags! {
    /// The state of a checkpoint (section 3.2). Unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct CpFlags: u32 {
        /// Written by an orderly unmount; summaries of the node logs are in the pack.
        const UMOUNT = 0x1;
        /// There are orphans in the pack.
        const ORPHAN_PRESENT = 0x2;
        /// Summaries of the data logs are in the compact form.
        const COMPACT_SUM = 0x4;
        /// An error was found on the volume.
        const ERROR = 0x8;
        /// The volume has to be checked.
        const FSCK = 0x10;
        /// Summaries of the node logs are in the pack, though this was no unmount.
        const FASTBOOT = 0x20;
        /// Nodes written after it carry its checksum beside its version.
        const CRC_RECOVERY = 0x40;
        /// Hints about full and empty NAT blocks lie at the end of the pack's segment.
        const NAT_BITS = 0x80;
        /// All free space was discarded.
        const TRIMMED = 0x100;
        /// Nodes written after it carry only its version.
        const NOCRC_RECOVERY = 0x200;
        /// The bitmaps are one stream that starts behind the checksum.
        const LARGE_NAT_BITMAP = 0x400;
        /// Quota files have to be checked.
        const QUOTA_NEED_FSCK = 0x800;
        /// Checkpoints were switched off.
        const DISABLED = 0x1000;
        /// Checkpoints were switched off without making room first.
        const DISABLED_QUICK = 0x2000;
        /// The volume was being resized.
        const RESIZEFS = 0x4000;
        const _ = !0;
    }
}

impl CpFlags {
    /// Either says that the summaries of the node logs are in the pack.
    pub const NODE_SUMMARIES: CpFlags = CpFlags::UMOUNT.union(CpFlags::FASTBOOT);
}

/// The place that a log writes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentSegment {
    /// The log's open segment.
    pub segno: Segno,
    /// The offset in it of the next block that the log writes.
    pub offset: u16,
    /// True if it fills the holes of a used segment (SSR), false if it appends to a free one (LFS).
    pub recycling: bool,
}

/// One bit for each block of a table: set if its second place is the current one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct VersionBitmap(pub Vec<u8>);

impl std::fmt::Debug for VersionBitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = self.0.iter().map(|byte| byte.count_ones()).sum::<u32>();
        write!(f, "VersionBitmap({set} of {} set)", self.len())
    }
}

impl VersionBitmap {
    /// Returns a bitmap in which all first places are current.
    pub fn new(bytes: usize) -> VersionBitmap {
        VersionBitmap(vec![0; bytes])
    }

    /// True if the second place of block `index` is current; false beyond the bitmap.
    pub fn get(&self, index: usize) -> bool {
        self.0.get(index / 8).is_some_and(|byte| byte & mask(index) != 0)
    }

    /// Makes the other place of block `index` (below [`Self::len`]) the current one.
    pub fn flip(&mut self, index: usize) {
        self.0[index / 8] ^= mask(index);
    }

    /// Returns the number of bits.
    pub fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// True if there are no bits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn mask(index: usize) -> u8 {
    0x80 >> (index % 8)
}

/// The checkpoint block, and the bitmaps that may run on into the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of the checkpoint, counted up with each one.
    pub version: u64,
    /// Blocks that files may use.
    pub user_blocks: u64,
    /// Blocks of the main area in use, with those that are only promised.
    pub valid_blocks: u64,
    /// Segments kept free so that cleaning can always go on.
    pub reserved_segments: u32,
    /// Segments that users do not see, with the reserved ones.
    pub overprovision_segments: u32,
    /// Segments without a valid block that are not open.
    pub free_segments: u32,
    /// The open segments: `current[log as usize]`.
    pub current: [CurrentSegment; 6],
    /// The state in which the volume was left.
    pub flags: CpFlags,
    /// Nodes in use, inodes included.
    pub valid_nodes: u32,
    /// Inodes in use, the root included.
    pub valid_inodes: u32,
    /// The id at which to begin the search for a free node id. A hint only, often stale.
    pub next_free_nid: u32,
    /// Seconds that the volume was mounted, in all its life.
    pub elapsed: u64,
    /// The place of each SIT block that is current.
    pub sit_bitmap: VersionBitmap,
    /// The place of each NAT block that is current.
    pub nat_bitmap: VersionBitmap,
    /// The checksum of the checkpoint block. Set when it is read or written.
    pub crc: u32,
    /// Blocks of the pack. Set when it is read or written.
    pub pack_blocks: u32,
    /// The block of the pack with which the summaries begin. Set when it is read or written.
    pub start_sum: u32,
}

impl Checkpoint {
    /// Returns the version in a block of a checkpoint that was written as a whole: its checksum, at either of the two
    /// places, is right. Its other fields may be damaged.
    pub fn written_version(block: &[u8]) -> Option<u64> {
        let block = block.get(..BLOCK)?;
        let at = u32_at(block, at::CHECKSUM_OFFSET) as usize;
        let is_whole = [BITMAPS_AT, CHECKSUM_AT].contains(&at) && u32_at(block, at) == checksum(block, at);
        is_whole.then(|| u64_at(block, at::VERSION))
    }

    /// Returns the number of blocks that a first block says its pack has.
    ///
    /// # Panics
    /// If `first_block` is shorter than a block.
    pub fn claimed_blocks(first_block: &[u8]) -> u32 {
        u32_at(&first_block[..BLOCK], at::PACK_BLOCKS)
    }

    /// Returns the version that the footer of a node written after this checkpoint has to carry.
    pub fn node_version(&self) -> u64 {
        match self.flags.contains(CpFlags::CRC_RECOVERY) {
            true => self.version | u64::from(self.crc) << 32,
            false => self.version,
        }
    }

    /// Reads the checkpoint block and its payload.
    fn decode(stream: &[u8], geo: &Geometry) -> Result<Checkpoint, String> {
        let flags = CpFlags::from_bits_retain(u32_at(stream, at::FLAGS));
        let places = Places::of(geo, flags)?;
        let bitmap = |size_at: usize, start: usize, bytes: usize, what: &str| match u32_at(stream, size_at) {
            found if found as usize == bytes => Ok(VersionBitmap(stream[start..start + bytes].to_vec())),
            found => Err(format!("the {what} bitmap has {found} bytes, not {bytes}")),
        };
        let checkpoint = Checkpoint {
            version: u64_at(stream, at::VERSION),
            user_blocks: u64_at(stream, at::USER_BLOCKS),
            valid_blocks: u64_at(stream, at::VALID_BLOCKS),
            reserved_segments: u32_at(stream, at::RESERVED_SEGMENTS),
            overprovision_segments: u32_at(stream, at::OVERPROVISION_SEGMENTS),
            free_segments: u32_at(stream, at::FREE_SEGMENTS),
            current: read_current(stream)?,
            flags,
            valid_nodes: u32_at(stream, at::VALID_NODES),
            valid_inodes: u32_at(stream, at::VALID_INODES),
            next_free_nid: u32_at(stream, at::NEXT_FREE_NID),
            elapsed: u64_at(stream, at::ELAPSED),
            sit_bitmap: bitmap(at::SIT_BITMAP_BYTES, places.sit, geo.sit_bitmap_bytes(), "SIT")?,
            nat_bitmap: bitmap(at::NAT_BITMAP_BYTES, places.nat, geo.nat_bitmap_bytes(), "NAT")?,
            crc: u32_at(stream, places.checksum),
            pack_blocks: u32_at(stream, at::PACK_BLOCKS),
            start_sum: u32_at(stream, at::START_SUM),
        };
        checkpoint.check(geo)?;
        Ok(checkpoint)
    }

    /// Checks the rules of section 3.1.
    fn check(&self, geo: &Geometry) -> Result<(), String> {
        // Volumes that are never written reserve nothing, and have two logs instead of six.
        let is_writable = geo.ssa_segments != 0;
        let main_blocks = u64::from(geo.segments) * SEGMENT_BLOCKS as u64;
        if self.user_blocks > main_blocks || (is_writable && self.user_blocks == main_blocks) {
            return Err(format!("users get {} of {main_blocks} blocks", self.user_blocks));
        }
        if self.valid_blocks > self.user_blocks {
            return Err(format!("{} blocks are in use of {}", self.valid_blocks, self.user_blocks));
        }
        let start_sum = 1 + geo.cp_payload..=START_SUM_MAX;
        if !start_sum.contains(&self.start_sum) {
            return Err(format!("the summaries start at block {} of the pack", self.start_sum));
        }
        if is_writable && (self.reserved_segments == 0 || self.overprovision_segments == 0) {
            return Err("no segments are reserved for cleaning".to_owned());
        }
        for log in Log::ALL {
            self.check_log(log, is_writable, geo)?;
        }
        Ok(())
    }

    fn check_log(&self, log: Log, is_writable: bool, geo: &Geometry) -> Result<(), String> {
        let CurrentSegment { segno, offset, .. } = self.current[log as usize];
        if segno.0 >= geo.segments || usize::from(offset) >= SEGMENT_BLOCKS {
            return Err(format!("the {log} log is at block {offset} of segment {segno}, which does not exist"));
        }
        let mut others = Log::ALL.into_iter().filter(|other| *other != log);
        match others.find(|other| self.current[*other as usize].segno == segno) {
            Some(other) if is_writable => Err(format!("the {log} log and the {other} log share segment {segno}")),
            _ => Ok(()),
        }
    }

    /// Encodes the checkpoint block and its payload, all but the checksum.
    fn encode(&self, geo: &Geometry, places: &Places) -> Vec<u8> {
        let mut stream = vec![0; (1 + geo.cp_payload as usize) * BLOCK];
        put_u64(&mut stream, at::VERSION, self.version);
        put_u64(&mut stream, at::USER_BLOCKS, self.user_blocks);
        put_u64(&mut stream, at::VALID_BLOCKS, self.valid_blocks);
        put_u32(&mut stream, at::RESERVED_SEGMENTS, self.reserved_segments);
        put_u32(&mut stream, at::OVERPROVISION_SEGMENTS, self.overprovision_segments);
        put_u32(&mut stream, at::FREE_SEGMENTS, self.free_segments);
        write_current(&mut stream, &self.current);
        put_u32(&mut stream, at::FLAGS, self.flags.bits());
        put_u32(&mut stream, at::PACK_BLOCKS, self.pack_blocks);
        put_u32(&mut stream, at::START_SUM, self.start_sum);
        put_u32(&mut stream, at::VALID_NODES, self.valid_nodes);
        put_u32(&mut stream, at::VALID_INODES, self.valid_inodes);
        put_u32(&mut stream, at::NEXT_FREE_NID, self.next_free_nid);
        put_u32(&mut stream, at::SIT_BITMAP_BYTES, self.sit_bitmap.0.len() as u32);
        put_u32(&mut stream, at::NAT_BITMAP_BYTES, self.nat_bitmap.0.len() as u32);
        put_u32(&mut stream, at::CHECKSUM_OFFSET, places.checksum as u32);
        put_u64(&mut stream, at::ELAPSED, self.elapsed);
        assert_eq!(self.sit_bitmap.0.len(), geo.sit_bitmap_bytes(), "the SIT bitmap is of another volume");
        assert_eq!(self.nat_bitmap.0.len(), geo.nat_bitmap_bytes(), "the NAT bitmap is of another volume");
        stream[places.sit..places.sit + self.sit_bitmap.0.len()].copy_from_slice(&self.sit_bitmap.0);
        stream[places.nat..places.nat + self.nat_bitmap.0.len()].copy_from_slice(&self.nat_bitmap.0);
        stream
    }
}

/// True if checkpoint `version` was written after checkpoint `than`.
pub fn is_newer(version: u64, than: u64) -> bool {
    version.wrapping_sub(than) as i64 > 0
}

/// Returns the damage `problem` in pack 0 or 1, which are called 1 and 2.
fn damage(geo: &Geometry, pack: u8, problem: String) -> Damage {
    Structure::Checkpoint(pack + 1).damage(Some(geo.pack_at(pack.into())), problem)
}

/// The offsets of the checksum and the bitmaps in the checkpoint block and its payload (section
/// 3.1).
struct Places {
    checksum: usize,
    sit: usize,
    nat: usize,
}

impl Places {
    fn of(geo: &Geometry, flags: CpFlags) -> Result<Places, String> {
        let (sit_bytes, nat_bytes) = (geo.sit_bitmap_bytes(), geo.nat_bitmap_bytes());
        let payload_end = (1 + geo.cp_payload as usize) * BLOCK;
        let fits = |end: usize, limit: usize| match end <= limit {
            true => Ok(()),
            false => Err(format!("the version bitmaps end at byte {end}, beyond {limit}")),
        };
        if flags.contains(CpFlags::LARGE_NAT_BITMAP) {
            let nat = BITMAPS_AT + 4;
            fits(nat + nat_bytes + sit_bytes, payload_end)?;
            return Ok(Places { checksum: BITMAPS_AT, sit: nat + nat_bytes, nat });
        }
        if geo.cp_payload > 0 {
            fits(BITMAPS_AT + nat_bytes, CHECKSUM_AT)?;
            fits(BLOCK + sit_bytes, payload_end)?;
            return Ok(Places { checksum: CHECKSUM_AT, sit: BLOCK, nat: BITMAPS_AT });
        }
        fits(BITMAPS_AT + sit_bytes + nat_bytes, CHECKSUM_AT)?;
        Ok(Places { checksum: CHECKSUM_AT, sit: BITMAPS_AT, nat: BITMAPS_AT + sit_bytes })
    }
}

/// Checks the fields that the first and the last block of a pack must have; returns version and
/// number of blocks.
fn check_block(block: &[u8], geo: &Geometry) -> Result<(u64, u32), String> {
    let Some(block) = block.get(..BLOCK) else {
        return Err(format!("its block was read as {} bytes", block.len()));
    };
    let large = CpFlags::from_bits_retain(u32_at(block, at::FLAGS)).contains(CpFlags::LARGE_NAT_BITMAP);
    let expected = if large { BITMAPS_AT } else { CHECKSUM_AT };
    let offset = u32_at(block, at::CHECKSUM_OFFSET);
    if offset as usize != expected {
        return Err(format!("its checksum is at byte {offset}, not {expected}"));
    }
    let (stored, computed) = (u32_at(block, expected), checksum(block, expected));
    if stored != computed {
        return Err(format!("its checksum is {stored:#010x}, but its bytes give {computed:#010x}"));
    }
    let total = u32_at(block, at::PACK_BLOCKS);
    if !(geo.cp_payload + PACK_BLOCKS_MIN..=SEGMENT_BLOCKS as u32).contains(&total) {
        return Err(format!("it counts {total} blocks"));
    }
    Ok((u64_at(block, at::VERSION), total))
}

/// Returns the checksum of a checkpoint block: of everything but itself.
fn checksum(block: &[u8], at: usize) -> u32 {
    let before = crc32(MAGIC, &block[..at]);
    if at == CHECKSUM_AT { before } else { crc32(before, &block[at + 4..BLOCK]) }
}

/// Returns the offsets of a log's fields: segment number, offset, kind of allocation.
fn log_fields(log: Log) -> (usize, usize, usize) {
    let number = log as usize;
    match log.is_node() {
        true => (at::NODE_SEGNOS + 4 * (number - 3), at::NODE_OFFSETS + 2 * (number - 3), at::ALLOCATION + number),
        false => (at::DATA_SEGNOS + 4 * number, at::DATA_OFFSETS + 2 * number, at::ALLOCATION + number),
    }
}

fn read_current(stream: &[u8]) -> Result<[CurrentSegment; 6], String> {
    let mut current = [CurrentSegment::default(); 6];
    for log in Log::ALL {
        let (segno, offset, allocation) = log_fields(log);
        if stream[allocation] > 1 {
            return Err(format!("the {log} log allocates in unknown way {}", stream[allocation]));
        }
        current[log as usize] = CurrentSegment {
            segno: Segno(u32_at(stream, segno)),
            offset: u16_at(stream, offset),
            recycling: stream[allocation] == 1,
        };
    }
    Ok(current)
}

fn write_current(stream: &mut [u8], current: &[CurrentSegment; 6]) {
    // There is room for eight logs of each kind; those that do not exist have no segment.
    stream[at::NODE_SEGNOS..at::NODE_OFFSETS].fill(0xFF);
    stream[at::DATA_SEGNOS..at::DATA_OFFSETS].fill(0xFF);
    for (log, at) in Log::ALL.into_iter().zip(current) {
        let (segno, offset, allocation) = log_fields(log);
        put_u32(stream, segno, at.segno.0);
        put_u16(stream, offset, at.offset);
        stream[allocation] = u8::from(at.recycling);
    }
}

/// A whole checkpoint pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// The checkpoint block, with its bitmaps.
    pub checkpoint: Checkpoint,
    /// Inodes without a name that were still open: to be deleted at the next mount.
    pub orphans: Vec<Nid>,
    /// NAT entries newer than the table, at most [`NAT_JOURNAL_MAX`].
    pub nat_journal: Vec<(Nid, NatEntry)>,
    /// SIT entries newer than the table, at most [`SIT_JOURNAL_MAX`].
    pub sit_journal: Vec<(Segno, SitEntry)>,
    /// Summaries of the open segments: `summaries[log as usize]`. Those of node logs only after an unmount.
    pub summaries: [Option<Box<Summary>>; 6],
    /// KiB written to the volume in all its life, if the pack says so.
    pub kib_written: u64,
}

impl Pack {
    /// Reads pack 0 or 1 from all its blocks, or from its whole segment.
    ///
    /// # Errors
    /// If it was never finished, or its numbers contradict each other, the superblock or the format.
    pub fn decode(blocks: &[u8], geo: &Geometry, pack: u8) -> Result<Pack, Damage> {
        let (checkpoint, total) = read_ends(blocks, geo).map_err(|problem| damage(geo, pack, problem))?;
        let blocks = &blocks[..total * BLOCK];
        let summaries = Summaries::read(blocks, &checkpoint).map_err(|problem| damage(geo, pack, problem))?;
        let orphans = read_orphans(blocks, &checkpoint, geo).map_err(|problem| damage(geo, pack, problem))?;
        let structure = Structure::Checkpoint(pack + 1);
        Ok(Pack {
            orphans,
            nat_journal: summary::decode_nat_journal(summaries.nat_journal, geo.nid_max(), structure)?,
            sit_journal: summary::decode_sit_journal(summaries.sit_journal, geo.segments, structure)?,
            summaries: summaries.of_logs,
            kib_written: summaries.kib_written,
            checkpoint,
        })
    }

    /// Returns the version of a pack that was finished, whatever [`Self::decode`] says of its contents; `None` if a
    /// power cut, or damage, hit one of its ends.
    ///
    /// A first block that was written as a whole but counts an impossible number of blocks is no power cut's: no driver
    /// writes one, so its pack is also taken for a finished one.
    pub fn finished_version(blocks: &[u8]) -> Option<u64> {
        let version = Checkpoint::written_version(blocks)?;
        let total = Checkpoint::claimed_blocks(blocks) as usize;
        let Some(last) = (2..=SEGMENT_BLOCKS).contains(&total).then(|| blocks.get((total - 1) * BLOCK..)) else {
            return Some(version);
        };
        (Checkpoint::written_version(last?) == Some(version)).then_some(version)
    }

    /// Returns all blocks of the pack; the last of them makes it valid, so it has to be written
    /// after all others are durable.
    ///
    /// Sets `pack_blocks`, `start_sum`, `crc` and the flags `COMPACT_SUM` and `ORPHAN_PRESENT` of the checkpoint to
    /// what was written, and clears `NAT_BITS`. Orphans beyond [`Self::orphans_max`] are left out: they stay allocated
    /// without a name until a check finds them.
    ///
    /// # Panics
    /// If a journal has too many entries, a summary is missing, or the bitmaps are those of another volume.
    pub fn encode(&mut self, geo: &Geometry) -> Vec<u8> {
        let places = Places::of(geo, self.checkpoint.flags).expect("the bitmaps were placed before");
        let orphans = orphan_blocks(&self.orphans[..self.orphans.len().min(Self::orphans_max(geo))]);
        let compact = compact_blocks(&self.checkpoint.current);
        let has_node_summaries = self.checkpoint.flags.intersects(CpFlags::NODE_SUMMARIES);
        let mut summaries = match compact {
            Some(count) => self.compact_summaries(count),
            None => self.data_summaries(),
        };
        if has_node_summaries {
            summaries.extend(self.node_summaries());
        }
        let checkpoint = &mut self.checkpoint;
        checkpoint.flags.remove(CpFlags::NAT_BITS);
        checkpoint.flags.set(CpFlags::COMPACT_SUM, compact.is_some());
        checkpoint.flags.set(CpFlags::ORPHAN_PRESENT, !orphans.is_empty());
        checkpoint.start_sum = 1 + geo.cp_payload + (orphans.len() / BLOCK) as u32;
        checkpoint.pack_blocks = checkpoint.start_sum + (summaries.len() / BLOCK) as u32 + 1;
        let mut blocks = checkpoint.encode(geo, &places);
        checkpoint.crc = checksum(&blocks, places.checksum);
        put_u32(&mut blocks, places.checksum, checkpoint.crc);
        blocks.extend(orphans);
        blocks.extend(summaries);
        blocks.extend_from_within(..BLOCK);
        blocks
    }

    /// Returns the number of orphans that a pack can hold.
    pub fn orphans_max(geo: &Geometry) -> usize {
        (SEGMENT_BLOCKS - PACK_BLOCKS_FIXED as usize - geo.cp_payload as usize) * ORPHANS_PER_BLOCK
    }

    fn summary_of(&self, log: Log) -> &Summary {
        self.summaries[log as usize].as_deref().unwrap_or_else(|| panic!("the summary of the {log} log is missing"))
    }

    /// Encodes journals and entries of the data logs, in as few blocks as they need.
    fn compact_summaries(&self, count: usize) -> Vec<u8> {
        let mut blocks = vec![0; count * BLOCK];
        summary::encode_nat_journal(&self.nat_journal, &mut blocks[..JOURNAL_BYTES]);
        summary::encode_sit_journal(&self.sit_journal, &mut blocks[JOURNAL_BYTES..2 * JOURNAL_BYTES]);
        let entries = DATA_LOGS.iter().flat_map(|log| {
            let used = used_entries(&self.checkpoint.current[*log as usize]);
            &self.summary_of(*log).entries[..used]
        });
        for (index, entry) in entries.enumerate() {
            entry.encode(&mut blocks[compact_entry_at(index)..]);
        }
        blocks
    }

    /// Encodes a whole block for each data log.
    fn data_summaries(&self) -> Vec<u8> {
        let mut blocks = DATA_LOGS.map(|log| self.summary_of(log).encode(false)).concat();
        let journal = |log: Log| log as usize * BLOCK + JOURNAL_AT;
        summary::encode_nat_journal(&self.nat_journal, &mut blocks[journal(Log::HotData)..][..JOURNAL_BYTES]);
        summary::encode_sit_journal(&self.sit_journal, &mut blocks[journal(Log::ColdData)..][..JOURNAL_BYTES]);
        blocks
    }

    fn node_summaries(&self) -> Vec<u8> {
        let mut blocks = NODE_LOGS.map(|log| self.summary_of(log).encode(true)).concat();
        put_u64(&mut blocks, JOURNAL_AT, self.kib_written);
        blocks
    }
}

/// Checks that a pack was finished (section 3.3), and reads its checkpoint block; returns also how many blocks it has.
fn read_ends(blocks: &[u8], geo: &Geometry) -> Result<(Checkpoint, usize), String> {
    let (_, total) = check_ends(blocks, geo)?;
    let checkpoint = Checkpoint::decode(&blocks[..(1 + geo.cp_payload as usize) * BLOCK], geo)?;
    Ok((checkpoint, total))
}

/// Checks that a pack was finished: its first and its last block are whole and of one version. Returns the version, and
/// the number of blocks.
fn check_ends(blocks: &[u8], geo: &Geometry) -> Result<(u64, usize), String> {
    let (version, total) = check_block(blocks, geo)?;
    let total = total as usize;
    let last = blocks.get((total - 1) * BLOCK..total * BLOCK);
    let last = last.ok_or_else(|| format!("it has {total} blocks, but {} were read", blocks.len() / BLOCK))?;
    let (last_version, _) = check_block(last, geo).map_err(|problem| format!("of its last block: {problem}"))?;
    if version != last_version {
        return Err(format!("its first block has version {version:#x}, its last one {last_version:#x}"));
    }
    Ok((version, total))
}

/// The summaries of a pack and what lies in their journal areas.
struct Summaries<'a> {
    of_logs: [Option<Box<Summary>>; 6],
    nat_journal: &'a [u8],
    sit_journal: &'a [u8],
    kib_written: u64,
}

impl<'a> Summaries<'a> {
    fn read(blocks: &'a [u8], checkpoint: &Checkpoint) -> Result<Summaries<'a>, String> {
        let has_node_summaries = checkpoint.flags.intersects(CpFlags::NODE_SUMMARIES);
        let behind = if has_node_summaries { 1 + NODE_LOGS.len() } else { 1 };
        let nodes_from = (blocks.len() / BLOCK).checked_sub(behind).ok_or("it has too few blocks for its summaries")?;
        let start = checkpoint.start_sum as usize;
        let mut found = match checkpoint.flags.contains(CpFlags::COMPACT_SUM) {
            true => Summaries::read_compact(blocks, start, nodes_from, checkpoint)?,
            false => Summaries::read_normal(blocks, start, nodes_from)?,
        };
        if has_node_summaries {
            for (index, log) in NODE_LOGS.into_iter().enumerate() {
                found.of_logs[log as usize] =
                    Some(Box::new(Summary::decode(&blocks[(nodes_from + index) * BLOCK..]).0));
            }
            found.kib_written = u64_at(blocks, nodes_from * BLOCK + JOURNAL_AT);
        }
        Ok(found)
    }

    fn read_compact(
        blocks: &'a [u8],
        start: usize,
        end: usize,
        checkpoint: &Checkpoint,
    ) -> Result<Summaries<'a>, String> {
        let count = compact_blocks(&checkpoint.current).ok_or("its summaries are too long for the compact form")?;
        if start + count > end {
            return Err(format!("its {count} blocks of summaries do not fit between block {start} and {end}"));
        }
        let bytes = &blocks[start * BLOCK..end * BLOCK];
        let mut of_logs = [const { None }; 6];
        let mut index = 0;
        for log in DATA_LOGS {
            let mut summary = Box::<Summary>::default();
            for entry in &mut summary.entries[..used_entries(&checkpoint.current[log as usize])] {
                *entry = SummaryEntry::decode(&bytes[compact_entry_at(index)..]);
                index += 1;
            }
            of_logs[log as usize] = Some(summary);
        }
        let (nat_journal, sit_journal) = (&bytes[..JOURNAL_BYTES], &bytes[JOURNAL_BYTES..2 * JOURNAL_BYTES]);
        Ok(Summaries { of_logs, nat_journal, sit_journal, kib_written: 0 })
    }

    fn read_normal(blocks: &'a [u8], start: usize, end: usize) -> Result<Summaries<'a>, String> {
        // Readers of this form count the blocks from the end of the pack.
        let first = end.checked_sub(DATA_LOGS.len()).filter(|first| *first >= start);
        let first = first.ok_or_else(|| format!("its summaries do not fit between block {start} and {end}"))?;
        let block = |log: Log| &blocks[(first + log as usize) * BLOCK..][..BLOCK];
        let mut of_logs = [const { None }; 6];
        for log in DATA_LOGS {
            of_logs[log as usize] = Some(Box::new(Summary::decode(block(log)).0));
        }
        let journal = |log: Log| &block(log)[JOURNAL_AT..][..JOURNAL_BYTES];
        let (nat_journal, sit_journal) = (journal(Log::HotData), journal(Log::ColdData));
        Ok(Summaries { of_logs, nat_journal, sit_journal, kib_written: 0 })
    }
}

/// Returns the number of entries of a log's summary that the compact form has.
fn used_entries(current: &CurrentSegment) -> usize {
    if current.recycling { SEGMENT_BLOCKS } else { current.offset.into() }
}

/// Returns the number of blocks of the compact form, or `None` if it cannot be used (section 3.4).
fn compact_blocks(current: &[CurrentSegment; 6]) -> Option<usize> {
    match DATA_LOGS.iter().map(|log| used_entries(&current[*log as usize])).sum::<usize>() {
        0..=COMPACT_IN_FIRST => Some(1),
        entries if entries <= COMPACT_IN_FIRST + COMPACT_IN_NEXT => Some(2),
        _ => None,
    }
}

/// Returns the offset of entry `index` of the compact form: entries do not cross blocks.
fn compact_entry_at(index: usize) -> usize {
    match index.checked_sub(COMPACT_IN_FIRST) {
        None => 2 * JOURNAL_BYTES + index * ENTRY_BYTES,
        Some(rest) => (1 + rest / COMPACT_IN_NEXT) * BLOCK + rest % COMPACT_IN_NEXT * ENTRY_BYTES,
    }
}

fn read_orphans(blocks: &[u8], checkpoint: &Checkpoint, geo: &Geometry) -> Result<Vec<Nid>, String> {
    if !checkpoint.flags.contains(CpFlags::ORPHAN_PRESENT) {
        return Ok(Vec::new());
    }
    let area = (1 + geo.cp_payload as usize) * BLOCK..checkpoint.start_sum as usize * BLOCK;
    let area = blocks.get(area).ok_or("its orphans do not fit into it")?;
    let mut orphans = Vec::new();
    for block in area.chunks_exact(BLOCK) {
        let count = u32_at(block, ORPHAN_COUNT_AT) as usize;
        if count > ORPHANS_PER_BLOCK {
            return Err(format!("a block of orphans counts {count}, but holds at most {ORPHANS_PER_BLOCK}"));
        }
        orphans.extend((0..count).map(|slot| Nid(u32_at(block, 4 * slot))));
    }
    match orphans.iter().find(|ino| **ino <= Nid::ROOT || ino.0 >= geo.nid_max()) {
        Some(ino) => Err(format!("{ino} is an orphan, but no inode can have that number")),
        None => Ok(orphans),
    }
}

fn orphan_blocks(orphans: &[Nid]) -> Vec<u8> {
    let count = orphans.len().div_ceil(ORPHANS_PER_BLOCK);
    let mut blocks = vec![0; count * BLOCK];
    let chunks = orphans.chunks(ORPHANS_PER_BLOCK);
    for (index, (block, inos)) in blocks.chunks_exact_mut(BLOCK).zip(chunks).enumerate() {
        for (slot, ino) in inos.iter().enumerate() {
            put_u32(block, 4 * slot, ino.0);
        }
        put_u16(block, ORPHAN_INDEX_AT, index as u16 + 1);
        put_u16(block, ORPHAN_INDEX_AT + 2, count as u16);
        put_u32(block, ORPHAN_COUNT_AT, inos.len() as u32);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::BlkAddr;
    use crate::format::sit::ValidMap;
    use crate::format::superblock::SEGMENTS_MAX;

    /// Returns a geometry with the numbers that checkpoints use.
    fn geometry(segments: u32, sit_segments: u32, nat_segments: u32, cp_payload: u32) -> Geometry {
        let at = |segments: u32| SEGMENT_BLOCKS as u32 * segments;
        let ssa_segments = segments / SEGMENT_BLOCKS as u32 + 1;
        let meta = 2 + sit_segments + nat_segments + ssa_segments;
        Geometry {
            block_count: u64::from(at(1)) * u64::from(meta + segments + 1),
            segment_count: meta + segments,
            segs_per_sec: 1,
            secs_per_zone: 1,
            segments,
            sections: segments,
            segment0: at(1),
            cp: at(1),
            sit: at(3),
            nat: at(3 + sit_segments),
            ssa: at(3 + sit_segments + nat_segments),
            main: at(1 + meta),
            sit_segments,
            nat_segments,
            ssa_segments,
            cp_payload,
        }
    }

    /// Volumes whose bitmaps lie in each of the three ways, with and without payload.
    fn volumes() -> impl Strategy<Value = (Geometry, CpFlags)> {
        let large = CpFlags::LARGE_NAT_BITMAP;
        prop_oneof![
            Just((geometry(24, 2, 2, 0), CpFlags::empty())),
            Just((geometry(28_000, 2, 118, 0), CpFlags::empty())),
            Just((geometry(1_750_000, 126, 120, 1), CpFlags::empty())),
            Just((geometry(100, 2, 2, 0), large)),
            Just((geometry(150_000, 12, 140, 2), large)),
            Just((geometry(SEGMENTS_MAX - 20_000, 600, 200, 9), large)),
        ]
    }

    fn entries() -> impl Strategy<Value = Box<Summary>> {
        (any::<u32>(), any::<u8>()).prop_map(|(nid, version)| {
            let entry = |at: usize| SummaryEntry { nid: Nid(nid ^ at as u32), version, offset: at as u16 };
            Box::new(Summary { entries: std::array::from_fn(entry) })
        })
    }

    fn nat_entry() -> impl Strategy<Value = NatEntry> {
        (any::<u8>(), any::<u32>(), any::<u32>()).prop_map(|(version, ino, addr)| NatEntry {
            version,
            ino: Nid(ino),
            addr: BlkAddr(addr),
        })
    }

    fn sit_entry() -> impl Strategy<Value = SitEntry> {
        (0u16..6, prop::collection::vec(0..SEGMENT_BLOCKS, 0..40), any::<u64>()).prop_map(|(log, blocks, mtime)| {
            let log = Log::from_type(log).expect("one of six");
            SitEntry { log, map: blocks.into_iter().collect::<ValidMap>(), mtime }
        })
    }

    /// The logs in different segments; short offsets as often as long ones, so that some summaries
    /// are compact.
    fn logs(segments: u32) -> impl Strategy<Value = [CurrentSegment; 6]> {
        let offset = || prop_oneof![0u16..150, 0u16..512];
        let places = prop::array::uniform6((offset(), prop::bool::weighted(0.2)));
        (0..segments - 6, places).prop_map(|(first, places)| {
            std::array::from_fn(|log| {
                let (offset, recycling) = places[log];
                CurrentSegment { segno: Segno(first + log as u32), offset, recycling }
            })
        })
    }

    fn checkpoints(geo: &Geometry, flags: CpFlags) -> impl Strategy<Value = Checkpoint> + use<> {
        let free_bits = CpFlags::UMOUNT.bits() | CpFlags::FASTBOOT.bits() | CpFlags::CRC_RECOVERY.bits();
        let main_blocks = u64::from(geo.segments) * SEGMENT_BLOCKS as u64;
        let bytes = |len: usize| prop::collection::vec(any::<u8>(), len).prop_map(VersionBitmap);
        let counts = (any::<u64>(), 0..main_blocks, any::<u64>(), prop::array::uniform6(1..u32::MAX), any::<u64>());
        let bitmaps = (bytes(geo.sit_bitmap_bytes()), bytes(geo.nat_bitmap_bytes()));
        (counts, any::<u32>(), logs(geo.segments), bitmaps).prop_map(move |(counts, bits, current, bitmaps)| {
            let (version, user_blocks, valid_blocks, numbers, elapsed) = counts;
            let [reserved, overprovision, free, nodes, inodes, next_nid] = numbers;
            Checkpoint {
                version,
                user_blocks,
                valid_blocks: valid_blocks % (user_blocks + 1),
                reserved_segments: reserved,
                overprovision_segments: overprovision,
                free_segments: free,
                current,
                flags: flags | CpFlags::from_bits_retain(bits & free_bits),
                valid_nodes: nodes,
                valid_inodes: inodes,
                next_free_nid: next_nid,
                elapsed,
                sit_bitmap: bitmaps.0,
                nat_bitmap: bitmaps.1,
                crc: 0,
                pack_blocks: 0,
                start_sum: 0,
            }
        })
    }

    fn packs() -> impl Strategy<Value = (Geometry, Pack)> {
        volumes().prop_flat_map(|(geo, flags)| {
            let (nids, segments) = (geo.nid_max(), geo.segments);
            let parts = (
                checkpoints(&geo, flags),
                prop_oneof![Just(0usize), 1usize..1100, 1020usize..1021, 0usize..5000],
                prop::collection::vec((4..nids, nat_entry()), 0..=NAT_JOURNAL_MAX),
                prop::collection::vec((0..segments, sit_entry()), 0..=SIT_JOURNAL_MAX),
                prop::array::uniform6(entries()),
                any::<u64>(),
            );
            parts.prop_map(move |(checkpoint, orphans, nat_journal, sit_journal, summaries, kib_written)| {
                let has_node_summaries = checkpoint.flags.intersects(CpFlags::NODE_SUMMARIES);
                let mut logs = Log::ALL.into_iter().zip(summaries);
                let pack = Pack {
                    orphans: (4..).take(orphans).map(|ino| Nid(ino % nids.min(1 << 20) + 4)).collect(),
                    nat_journal: nat_journal.into_iter().map(|(nid, entry)| (Nid(nid), entry)).collect(),
                    sit_journal: sit_journal.into_iter().map(|(segno, entry)| (Segno(segno), entry)).collect(),
                    summaries: std::array::from_fn(|_| {
                        let (log, summary) = logs.next().expect("six");
                        (!log.is_node() || has_node_summaries).then_some(summary)
                    }),
                    kib_written: if has_node_summaries { kib_written } else { 0 },
                    checkpoint,
                };
                (geo.clone(), pack)
            })
        })
    }

    /// Clears the entries beyond an appending log, which the compact form leaves out.
    fn forget_unused(pack: &mut Pack) {
        for log in DATA_LOGS {
            let used = used_entries(&pack.checkpoint.current[log as usize]);
            let summary = pack.summaries[log as usize].as_mut().expect("a data log's");
            summary.entries[used..].fill(SummaryEntry::default());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn a_pack_comes_back((geo, mut pack) in packs()) {
            let blocks = pack.encode(&geo);
            prop_assert_eq!(blocks.len(), pack.checkpoint.pack_blocks as usize * BLOCK);
            prop_assert_eq!(Checkpoint::written_version(&blocks), Some(pack.checkpoint.version));
            prop_assert_eq!(Checkpoint::claimed_blocks(&blocks), pack.checkpoint.pack_blocks);
            prop_assert_eq!(Pack::finished_version(&blocks), Some(pack.checkpoint.version));
            if pack.checkpoint.flags.contains(CpFlags::COMPACT_SUM) {
                forget_unused(&mut pack);
            }
            let mut segment = blocks.clone();
            segment.resize(SEGMENT_BLOCKS * BLOCK, 0xA5);
            for bytes in [&blocks, &segment] {
                let found = Pack::decode(bytes, &geo, 1);
                prop_assert!(found.as_ref() == Ok(&pack), "{:?}", found.err());
            }
            prop_assert!(Pack::decode(&blocks[..blocks.len() - BLOCK], &geo, 1).is_err());
        }

        #[test]
        fn a_torn_pack_does_not_count((geo, mut pack) in packs(), last: bool) {
            let old = pack.encode(&geo);
            pack.checkpoint.version = pack.checkpoint.version.wrapping_add(1);
            let mut torn = pack.encode(&geo);
            let at = if last { torn.len() - BLOCK } else { 0 };
            torn[at..at + BLOCK].copy_from_slice(&old[at..at + BLOCK]);
            let damage = Pack::decode(&torn, &geo, 0).unwrap_err();
            prop_assert_eq!(damage.structure, Structure::Checkpoint(1));
            prop_assert!(damage.problem.contains("version"));
        }

        /// A pack is damaged and its checksums are made right again; any other byte may have any
        /// value.
        #[test]
        fn a_damaged_pack_is_decoded_or_named(
            (geo, mut pack) in packs(),
            hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            in_header: bool,
        ) {
            let mut blocks = pack.encode(&geo);
            let range = if in_header { 192 } else { blocks.len() };
            for (at, value) in hits {
                blocks[at.index(range)] = value;
            }
            let ends = [0, blocks.len() - BLOCK];
            for at in ends {
                let large = blocks[at + 133] & 4 != 0;
                let place = if large { BITMAPS_AT } else { CHECKSUM_AT };
                put_u32(&mut blocks[at..], self::at::CHECKSUM_OFFSET, place as u32);
                let crc = checksum(&blocks[at..at + BLOCK], place);
                put_u32(&mut blocks[at..], place, crc);
            }
            if let Ok(mut pack) = Pack::decode(&blocks, &geo, 0) {
                let again = pack.encode(&geo);
                prop_assert_eq!(Pack::decode(&again, &geo, 0), Ok(pack));
            }
        }

        #[test]
        fn any_bytes_are_no_pack((geo, _) in volumes(), bytes in prop::collection::vec(any::<u8>(), 0..3 * BLOCK)) {
            prop_assert!(Pack::decode(&bytes, &geo, 0).is_err());
        }
    }

    /// Returns a pack without anything special.
    fn plain() -> (Geometry, Pack) {
        let geo = geometry(24, 2, 2, 0);
        let current = std::array::from_fn(|log| CurrentSegment { segno: Segno(log as u32), ..Default::default() });
        let checkpoint = Checkpoint {
            version: 7,
            user_blocks: 1000,
            valid_blocks: 10,
            reserved_segments: 3,
            overprovision_segments: 4,
            free_segments: 18,
            current,
            flags: CpFlags::empty(),
            valid_nodes: 1,
            valid_inodes: 1,
            next_free_nid: 4,
            elapsed: 0,
            sit_bitmap: VersionBitmap::new(geo.sit_bitmap_bytes()),
            nat_bitmap: VersionBitmap::new(geo.nat_bitmap_bytes()),
            crc: 0,
            pack_blocks: 0,
            start_sum: 0,
        };
        let summaries = std::array::from_fn(|_| Some(Box::default()));
        let pack = Pack {
            checkpoint,
            orphans: Vec::new(),
            nat_journal: Vec::new(),
            sit_journal: Vec::new(),
            summaries,
            kib_written: 0,
        };
        (geo, pack)
    }

    #[test]
    fn summaries_are_as_short_as_they_can_be() {
        let (geo, mut pack) = plain();
        for (offset, recycling, blocks, compact) in
            [(439, false, 1, true), (440, false, 2, true), (511, false, 2, true), (0, true, 2, true)]
        {
            pack.checkpoint.current[1].offset = offset;
            pack.checkpoint.current[1].recycling = recycling;
            pack.encode(&geo);
            assert_eq!(pack.checkpoint.pack_blocks, 2 + blocks);
            assert_eq!(pack.checkpoint.flags.contains(CpFlags::COMPACT_SUM), compact);
        }
        pack.checkpoint.current[0].offset = 511;
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.pack_blocks, 4, "1023 entries fill two blocks");
        pack.checkpoint.current[2].offset = 1;
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.pack_blocks, 5);
        assert!(!pack.checkpoint.flags.contains(CpFlags::COMPACT_SUM));
        pack.checkpoint.flags |= CpFlags::UMOUNT;
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.pack_blocks, 8);
    }

    #[test]
    fn a_pack_full_of_orphans_fills_its_segment() {
        let (geo, mut pack) = plain();
        let geo = Geometry { nat_segments: 6, ..geo };
        pack.checkpoint.nat_bitmap = VersionBitmap::new(geo.nat_bitmap_bytes());
        pack.checkpoint.flags |= CpFlags::UMOUNT;
        pack.checkpoint.current[0].recycling = true;
        pack.checkpoint.current[1].recycling = true;
        let max = Pack::orphans_max(&geo);
        pack.orphans = (0..max + 5).map(|index| Nid(4 + index as u32)).collect();
        let blocks = pack.encode(&geo);
        assert_eq!(blocks.len(), SEGMENT_BLOCKS * BLOCK);
        assert_eq!(Pack::decode(&blocks, &geo, 0).expect("a pack").orphans, pack.orphans[..max]);
    }

    #[test]
    fn the_hint_about_nat_blocks_is_dropped() {
        let (geo, mut pack) = plain();
        pack.checkpoint.flags = CpFlags::NAT_BITS | CpFlags::ORPHAN_PRESENT | CpFlags::TRIMMED;
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.flags, CpFlags::TRIMMED | CpFlags::COMPACT_SUM);
    }

    #[test]
    fn rules_that_are_broken_are_named() {
        let complaint = |breaking: fn(&mut Checkpoint)| {
            let (geo, mut pack) = plain();
            breaking(&mut pack.checkpoint);
            Pack::decode(&pack.encode(&geo), &geo, 0).expect_err("a broken rule").problem
        };
        let assert_named = |word: &str, problem: String| assert!(problem.contains(word), "{word}: {problem}");
        assert_named("users get", complaint(|checkpoint| checkpoint.user_blocks = 24 * 512));
        assert_named("in use", complaint(|checkpoint| checkpoint.valid_blocks = 1001));
        assert_named("reserved for cleaning", complaint(|checkpoint| checkpoint.reserved_segments = 0));
        assert_named("reserved for cleaning", complaint(|checkpoint| checkpoint.overprovision_segments = 0));
        assert_named("share segment 4", complaint(|checkpoint| checkpoint.current[2].segno = Segno(4)));
        assert_named("segment 24", complaint(|checkpoint| checkpoint.current[5].segno = Segno(24)));
        assert_named("block 512", complaint(|checkpoint| checkpoint.current[5].offset = 512));
        assert_named("block 65535", complaint(|checkpoint| checkpoint.current[3].offset = 65535));
    }

    #[test]
    fn newer_versions_wrap() {
        assert!(is_newer(5, 4) && !is_newer(4, 5) && !is_newer(4, 4));
        assert!(is_newer(0, u64::MAX) && !is_newer(u64::MAX, 0));
        assert!(is_newer(0x6b8b_4567, 0));
    }

    #[test]
    fn version_bitmaps_start_with_the_highest_bit() {
        let mut bitmap = VersionBitmap::new(2);
        bitmap.flip(0);
        bitmap.flip(9);
        assert_eq!((bitmap.0.as_slice(), bitmap.len(), bitmap.is_empty()), (&[0x80, 0x40][..], 16, false));
        assert!(bitmap.get(9) && !bitmap.get(1) && !bitmap.get(16));
        bitmap.flip(9);
        assert!(!bitmap.get(9));
    }

    #[test]
    fn nodes_carry_the_checksum_if_the_checkpoint_says_so() {
        let (geo, mut pack) = plain();
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.node_version(), 7);
        pack.checkpoint.flags |= CpFlags::CRC_RECOVERY;
        pack.encode(&geo);
        assert_eq!(pack.checkpoint.node_version(), 7 | u64::from(pack.checkpoint.crc) << 32);
    }
}
