//! The checkpoint (section 3): the state that the volume returns to.
//!
//! A checkpoint is a *pack* of blocks: the checkpoint block, more of its bitmaps where they need it (the payload),
//! orphans, the summaries of the six open segments with the NAT and SIT journals in them, and the checkpoint block
//! again. The two packs are written in turn. A pack whose first and last block do not carry the same version was cut
//! off while it was written, and the other one counts.

use bitflags::bitflags;

use super::crc::{MAGIC, crc32};
use super::nat::NatEntry;
use super::sit::SitEntry;
use super::summary::{self, Summary};
use super::superblock::{Geometry, PACK_BLOCKS_FIXED};
use super::{BLOCK, BlkAddr, Damage, Log, Nid, SEGMENT_BLOCKS, Segno, Structure};
use super::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

pub use super::summary::{NAT_JOURNAL_MAX, SIT_JOURNAL_MAX};

/// Orphans in a block.
pub const ORPHANS_PER_BLOCK: usize = 1020;

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
        /// Somebody saw an error.
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

/// Where a log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentSegment {
    /// Its open segment.
    pub segno: Segno,
    /// The next block it writes there.
    pub offset: u16,
    /// True if it fills the holes of a used segment (SSR), false if it appends to a free one (LFS).
    pub recycling: bool,
}

/// One bit for each block of a table: set if its second place is the current one.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VersionBitmap(pub Vec<u8>);

impl VersionBitmap {
    /// True if the second place of block `index` is current; false beyond the bitmap.
    pub fn get(&self, index: usize) -> bool {
        self.0.get(index / 8).is_some_and(|byte| byte & mask(index) != 0)
    }

    /// Makes the other place of block `index` (below [`Self::len`]) the current one.
    pub fn flip(&mut self, index: usize) {
        self.0[index / 8] ^= mask(index);
    }

    /// How many bits there are.
    pub fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// True if there are none.
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
    /// Counts checkpoints.
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
    /// The state.
    pub flags: CpFlags,
    /// Nodes in use.
    pub valid_nodes: u32,
    /// Inodes in use.
    pub valid_inodes: u32,
    /// Where to look for a free node id first. A hint only, often stale.
    pub next_free_nid: u32,
    /// Seconds that the volume was mounted, in all its life.
    pub elapsed: u64,
    /// Which place of each SIT block is current.
    pub sit_bitmap: VersionBitmap,
    /// Which place of each NAT block is current.
    pub nat_bitmap: VersionBitmap,
    /// The checksum of the checkpoint block. Set when it is read or written.
    pub crc: u32,
    /// Blocks of the pack. Set when it is read or written.
    pub pack_blocks: u32,
    /// Where the summaries start in the pack. Set when it is read or written.
    pub start_sum: u32,
}

impl Checkpoint {
    /// Checks the first block of a pack, and returns its version and how many blocks the pack has.
    ///
    /// # Errors
    /// If its checksum is wrong or the number of blocks cannot be.
    pub fn peek(first_block: &[u8], geo: &Geometry) -> Result<(u64, u32), Damage> {
        let _ = (
            first_block,
            geo,
            crc32(MAGIC, &[]),
            u16_at,
            u32_at,
            u64_at,
            put_u16,
            put_u32,
            put_u64,
            PACK_BLOCKS_FIXED,
            BLOCK,
        );
        todo!()
    }

    /// What the footer of a node written after this checkpoint has to carry.
    pub fn node_version(&self) -> u64 {
        match self.flags.contains(CpFlags::CRC_RECOVERY) {
            true => self.version | u64::from(self.crc) << 32,
            false => self.version,
        }
    }
}

/// A whole checkpoint pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// Its checkpoint block.
    pub checkpoint: Checkpoint,
    /// Inodes without a name that were still open: to be deleted at the next mount.
    pub orphans: Vec<Nid>,
    /// NAT entries newer than the table, at most [`NAT_JOURNAL_MAX`].
    pub nat_journal: Vec<(Nid, NatEntry)>,
    /// SIT entries newer than the table, at most [`SIT_JOURNAL_MAX`].
    pub sit_journal: Vec<(Segno, SitEntry)>,
    /// Summaries of the open segments: `summaries[log as usize]`. Those of node logs only after an unmount.
    pub summaries: [Option<Box<Summary>>; 6],
    /// KiB written to the volume in all its life, where the pack says so.
    pub kib_written: u64,
}

impl Pack {
    /// Reads a pack (0 or 1) from all its blocks, or from its whole segment.
    ///
    /// # Errors
    /// If it was never finished, or its numbers contradict each other, the superblock or the format.
    pub fn decode(blocks: &[u8], geo: &Geometry, pack: u8) -> Result<Pack, Damage> {
        let _ = (
            blocks,
            geo,
            Structure::Checkpoint(pack + 1),
            BlkAddr::NULL,
            Log::HotData,
            SEGMENT_BLOCKS,
            summary::FOOTER_AT,
        );
        todo!()
    }

    /// All blocks of the pack; the last of them makes it valid, so it has to be written after all others are durable.
    ///
    /// Sets `pack_blocks`, `start_sum`, `crc` and the flags `COMPACT_SUM` and `ORPHAN_PRESENT` of the checkpoint to
    /// what was written. Orphans beyond [`Self::orphans_max`] are left out: their blocks stay taken until a check.
    pub fn encode(&mut self, geo: &Geometry) -> Vec<u8> {
        let _ = geo;
        todo!()
    }

    /// How many orphans a pack can hold.
    pub fn orphans_max(geo: &Geometry) -> usize {
        (SEGMENT_BLOCKS - PACK_BLOCKS_FIXED as usize - geo.cp_payload as usize) * ORPHANS_PER_BLOCK
    }
}
