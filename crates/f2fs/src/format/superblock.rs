//! The superblock (section 2.1): features, the areas of the volume, its name. Written by mkfs and hardly ever again.
//!
//! [`Superblock`] keeps the bytes it was read from and gives them back, changed only where its fields were changed.
//! [`Geometry`] is the checked meaning of its numbers, and everything else calculates with that.
//! [`Superblock::support`] decides what the features allow.

use std::ops::Range;

use bitflags::bitflags;

use super::crc::{MAGIC, crc32};
use super::nat::NAT_PER_BLOCK;
use super::sit::SIT_PER_BLOCK;
use super::{
    BLOCK, BlkAddr, Damage, Nid, SEGMENT_BLOCKS, Segno, Structure, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at,
};

/// The most segments a volume can have: 16 TiB.
pub const SEGMENTS_MAX: u32 = 1 << 23;
/// Segments of the checkpoint area: one for each pack.
pub const CP_SEGMENTS: u32 = 2;
/// Extensions that both lists together can hold.
pub const EXTENSIONS_MAX: usize = 64;
/// Bytes of an extension.
pub const EXTENSION_BYTES: usize = 8;
/// Offset of the superblock in its block; it starts with the magic number.
pub const SUPERBLOCK_START: usize = 1024;
/// UTF-16 units of the label.
pub const LABEL_UNITS: usize = 512;

/// Offset of the checksum from the superblock's start.
const CHECKSUM_AT: usize = 3068;
const VERSION_BYTES: usize = 256;
/// log2 of a block's bytes and of a segment's blocks: this program knows no others.
const LOG_BLOCK: u32 = BLOCK.ilog2();
const LOG_SEGMENT: u32 = SEGMENT_BLOCKS.ilog2();
/// The numbers of root, node and meta inode.
const FIXED_INOS: [u32; 3] = [3, 1, 2];
/// Blocks of a pack that are taken, payload or not: two checkpoint blocks and six summaries.
pub(crate) const PACK_BLOCKS_FIXED: u32 = 8;

/// Offsets from the superblock's start.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const MAJOR: usize = 4;
    pub(super) const MINOR: usize = 6;
    pub(super) const LOG_SECTOR: usize = 8;
    pub(super) const LOG_SECTORS_PER_BLOCK: usize = 12;
    pub(super) const LOG_BLOCK: usize = 16;
    pub(super) const LOG_SEGMENT: usize = 20;
    pub(super) const SEGS_PER_SEC: usize = 24;
    pub(super) const SECS_PER_ZONE: usize = 28;
    pub(super) const CHECKSUM_OFFSET: usize = 32;
    pub(super) const BLOCK_COUNT: usize = 36;
    pub(super) const SECTION_COUNT: usize = 44;
    pub(super) const SEGMENT_COUNT: usize = 48;
    pub(super) const CP_SEGMENTS: usize = 52;
    pub(super) const SIT_SEGMENTS: usize = 56;
    pub(super) const NAT_SEGMENTS: usize = 60;
    pub(super) const SSA_SEGMENTS: usize = 64;
    pub(super) const MAIN_SEGMENTS: usize = 68;
    pub(super) const SEGMENT0: usize = 72;
    pub(super) const CP: usize = 76;
    pub(super) const SIT: usize = 80;
    pub(super) const NAT: usize = 84;
    pub(super) const SSA: usize = 88;
    pub(super) const MAIN: usize = 92;
    pub(super) const FIXED_INOS: usize = 96;
    pub(super) const UUID: usize = 108;
    pub(super) const LABEL: usize = 124;
    pub(super) const EXTENSION_COUNT: usize = 1148;
    pub(super) const EXTENSIONS: usize = 1152;
    pub(super) const CP_PAYLOAD: usize = 1664;
    pub(super) const VERSION: usize = 1668;
    pub(super) const INIT_VERSION: usize = 1924;
    pub(super) const FEATURES: usize = 2180;
    pub(super) const DEVICES: usize = 2201;
    pub(super) const QUOTA_INOS: usize = 2745;
    pub(super) const HOT_EXTENSION_COUNT: usize = 2757;
    pub(super) const ENCODING: usize = 2758;
    pub(super) const ENCODING_FLAGS: usize = 2760;
}

bitflags! {
    /// Features of a volume (section 15). Unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Features: u32 {
        /// Files may be encrypted.
        const ENCRYPT = 0x0001;
        /// The device has zones that are written in sequence.
        const BLKZONED = 0x0002;
        /// Obsolete: volumes with atomic writes.
        const ATOMIC_WRITE = 0x0004;
        /// Inodes have an extra area.
        const EXTRA_ATTR = 0x0008;
        /// Inodes belong to projects.
        const PROJECT_QUOTA = 0x0010;
        /// Inodes may carry a checksum.
        const INODE_CHECKSUM = 0x0020;
        /// Each inode says how much room its inline attributes have.
        const FLEXIBLE_INLINE_XATTR = 0x0040;
        /// Quotas are kept in hidden inodes.
        const QUOTA_INO = 0x0080;
        /// Inodes have a time of creation.
        const INODE_CRTIME = 0x0100;
        /// There is a directory lost+found.
        const LOST_FOUND = 0x0200;
        /// Files may be protected by hash trees.
        const VERITY = 0x0400;
        /// The superblock has a checksum.
        const SB_CHECKSUM = 0x0800;
        /// Directories may ignore case.
        const CASEFOLD = 0x1000;
        /// Files may be compressed.
        const COMPRESSION = 0x2000;
        /// Made to be read only; without room for writing.
        const RO = 0x4000;
        /// Files may stand for devices.
        const DEVICE_ALIAS = 0x8000;
        /// Segment summaries are stored in packed form.
        const PACKED_SSA = 0x10000;
        const _ = !0;
    }
}

impl Features {
    /// Features that live in the inode's extra area, and so need [`Features::EXTRA_ATTR`].
    pub const IN_EXTRA_AREA: Features = Features::PROJECT_QUOTA
        .union(Features::INODE_CHECKSUM)
        .union(Features::FLEXIBLE_INLINE_XATTR)
        .union(Features::INODE_CRTIME)
        .union(Features::COMPRESSION);

    /// Returns the names of the set features as mkfs.f2fs spells them; bits without a name as hexadecimal
    /// numbers.
    pub fn names(self) -> Vec<String> {
        let unknown = |flags: Features| format!("{:#x}", flags.bits());
        let one = |flags: Features| flags.iter_names().next().map_or(unknown(flags), |(name, _)| name.to_lowercase());
        let bits = (0..u32::BITS).map(|bit| Features::from_bits_retain(1 << bit));
        bits.filter(|bit| self.contains(*bit)).map(one).collect()
    }
}

/// The use of a volume that its features allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// The volume may be read and written.
    ReadWrite,
    /// The volume may only be read. The reasons; none if the caller did not ask to write.
    ReadOnly(Vec<String>),
    /// The volume cannot be used, for these reasons.
    Refuse(Vec<String>),
}

/// The places of a volume's areas. Block numbers are absolute; a `*_segments` is a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the device.
    pub block_count: u64,
    /// Segments from [`Self::segment0`] to the volume's end.
    pub segment_count: u32,
    /// Segments in a section, the unit of cleaning.
    pub segs_per_sec: u32,
    /// Sections in a zone; logs keep to zones of their own where they can.
    pub secs_per_zone: u32,
    /// Segments of the main area.
    pub segments: u32,
    /// Sections of the main area.
    pub sections: u32,
    /// The block at which the first segment of all areas starts.
    pub segment0: u32,
    /// The checkpoint area: two packs, a segment each.
    pub cp: u32,
    /// The segment information table.
    pub sit: u32,
    /// The node address table.
    pub nat: u32,
    /// The summary area: a block for each segment of the main area.
    pub ssa: u32,
    /// The main area: all nodes and data.
    pub main: u32,
    /// Segments of the SIT, both sets.
    pub sit_segments: u32,
    /// Segments of the NAT, both sets.
    pub nat_segments: u32,
    /// Segments of the SSA; 0 on some volumes that are never written.
    pub ssa_segments: u32,
    /// Blocks that continue the checkpoint block's bitmaps.
    pub cp_payload: u32,
}

impl Geometry {
    /// Returns the segment that holds a block, and the block's offset in it; `None` outside the
    /// main area.
    pub fn segment_of(&self, addr: BlkAddr) -> Option<(Segno, usize)> {
        let from_main = addr.0.checked_sub(self.main)? as usize;
        let segno = Segno((from_main / SEGMENT_BLOCKS) as u32);
        (segno.0 < self.segments).then_some((segno, from_main % SEGMENT_BLOCKS))
    }

    /// Returns the address of block `offset` of a segment of the main area.
    pub fn block_of(&self, segno: Segno, offset: usize) -> BlkAddr {
        debug_assert!(segno.0 < self.segments && offset < SEGMENT_BLOCKS, "segment {segno} has no block {offset}");
        BlkAddr(self.main + segno.0 * SEGMENT_BLOCKS as u32 + offset as u32)
    }

    /// Returns the section that holds a segment.
    pub fn section_of(&self, segno: Segno) -> u32 {
        segno.0 / self.segs_per_sec
    }

    /// Returns the segment numbers of a section.
    pub fn section(&self, section: u32) -> Range<u32> {
        let first = section * self.segs_per_sec;
        first..first + self.segs_per_sec
    }

    /// Returns the zone that holds a segment.
    pub fn zone_of(&self, segno: Segno) -> u32 {
        self.section_of(segno) / self.secs_per_zone
    }

    /// True if the block lies in the main area.
    pub fn is_main(&self, addr: BlkAddr) -> bool {
        self.segment_of(addr).is_some()
    }

    /// Returns the number of blocks of one set of the SIT that have entries.
    pub fn sit_blocks(&self) -> u32 {
        self.segments.div_ceil(SIT_PER_BLOCK as u32)
    }

    /// Returns the address of block `index` of the SIT: in the first half of the area, or in the
    /// second.
    pub fn sit_at(&self, index: u32, second: bool) -> BlkAddr {
        debug_assert!(index < self.sit_blocks(), "the SIT has no block {index}");
        let set = if second { self.sit_set_blocks() } else { 0 };
        BlkAddr(self.sit + set + index)
    }

    /// Returns the number of blocks of one set of the NAT.
    pub fn nat_blocks(&self) -> u32 {
        self.nat_segments / 2 * SEGMENT_BLOCKS as u32
    }

    /// Returns the address of block `index` of the NAT: its segments come in pairs, one of each
    /// set.
    pub fn nat_at(&self, index: u32, second: bool) -> BlkAddr {
        debug_assert!(index < self.nat_blocks(), "the NAT has no block {index}");
        let segment = SEGMENT_BLOCKS as u32;
        let set = if second { segment } else { 0 };
        BlkAddr(self.nat + index / segment * (2 * segment) + index % segment + set)
    }

    /// Returns the address of the summary of a closed segment.
    pub fn summary_at(&self, segno: Segno) -> BlkAddr {
        debug_assert!(segno.0 < self.segments, "there is no segment {segno}");
        BlkAddr(self.ssa + segno.0)
    }

    /// Returns the limit of node ids: all are below it.
    pub fn nid_max(&self) -> u32 {
        self.nat_blocks().saturating_mul(NAT_PER_BLOCK as u32)
    }

    /// Returns the first block of a checkpoint pack (0 or 1).
    pub fn pack_at(&self, pack: u32) -> BlkAddr {
        debug_assert!(pack < CP_SEGMENTS, "there is no pack {pack}");
        BlkAddr(self.cp + pack * SEGMENT_BLOCKS as u32)
    }

    /// Returns the number of bytes of the SIT's version bitmap in the checkpoint.
    pub(crate) fn sit_bitmap_bytes(&self) -> usize {
        self.sit_set_blocks() as usize / 8
    }

    /// Returns the number of bytes of the NAT's version bitmap in the checkpoint.
    pub(crate) fn nat_bitmap_bytes(&self) -> usize {
        self.nat_blocks() as usize / 8
    }

    /// Returns the number of blocks of one half of the SIT area.
    fn sit_set_blocks(&self) -> u32 {
        self.sit_segments / 2 * SEGMENT_BLOCKS as u32
    }

    fn read(sb: &[u8]) -> Geometry {
        let field = |at: usize| u32_at(sb, at);
        Geometry {
            block_count: u64_at(sb, at::BLOCK_COUNT),
            segment_count: field(at::SEGMENT_COUNT),
            segs_per_sec: field(at::SEGS_PER_SEC),
            secs_per_zone: field(at::SECS_PER_ZONE),
            segments: field(at::MAIN_SEGMENTS),
            sections: field(at::SECTION_COUNT),
            segment0: field(at::SEGMENT0),
            cp: field(at::CP),
            sit: field(at::SIT),
            nat: field(at::NAT),
            ssa: field(at::SSA),
            main: field(at::MAIN),
            sit_segments: field(at::SIT_SEGMENTS),
            nat_segments: field(at::NAT_SEGMENTS),
            ssa_segments: field(at::SSA_SEGMENTS),
            cp_payload: field(at::CP_PAYLOAD),
        }
    }

    fn write(&self, sb: &mut [u8]) {
        put_u64(sb, at::BLOCK_COUNT, self.block_count);
        put_u32(sb, at::CP_SEGMENTS, CP_SEGMENTS);
        for (at, value) in [
            (at::SEGMENT_COUNT, self.segment_count),
            (at::SEGS_PER_SEC, self.segs_per_sec),
            (at::SECS_PER_ZONE, self.secs_per_zone),
            (at::MAIN_SEGMENTS, self.segments),
            (at::SECTION_COUNT, self.sections),
            (at::SEGMENT0, self.segment0),
            (at::CP, self.cp),
            (at::SIT, self.sit),
            (at::NAT, self.nat),
            (at::SSA, self.ssa),
            (at::MAIN, self.main),
            (at::SIT_SEGMENTS, self.sit_segments),
            (at::NAT_SEGMENTS, self.nat_segments),
            (at::SSA_SEGMENTS, self.ssa_segments),
            (at::CP_PAYLOAD, self.cp_payload),
        ] {
            put_u32(sb, at, value);
        }
    }

    /// Returns the first rule of section 2.1 that the numbers break. Every geometry that leaves
    /// this module keeps the rules, so that its methods cannot overflow.
    fn check(&self, features: Features) -> Result<(), String> {
        let rule = |holds: bool, problem: &str| if holds { Ok(()) } else { Err(problem.to_owned()) };
        let per_set = |segments: u32| u64::from(segments / 2) * SEGMENT_BLOCKS as u64;
        rule(self.segs_per_sec != 0 && self.secs_per_zone != 0, "sections or zones are empty")?;
        rule(self.segment_count <= SEGMENTS_MAX, "it has more segments than can be")?;
        let whole = self.block_count / SEGMENT_BLOCKS as u64;
        if u64::from(self.segment_count) > whole {
            return Err(format!("it has {} segments, but its blocks make up only {whole}", self.segment_count));
        }
        let segments = u64::from(self.sections) * u64::from(self.segs_per_sec);
        rule(segments == u64::from(self.segments), "its sections do not make up the main area")?;
        rule(self.segments > 0 && self.segments <= self.segment_count, "the main area has an impossible size")?;
        rule(self.secs_per_zone <= self.sections, "its zones are larger than the main area")?;
        rule(self.sit_segments.is_multiple_of(2) && self.nat_segments.is_multiple_of(2), "a table has not two sets")?;
        rule(per_set(self.sit_segments) >= self.sit_blocks().into(), "the SIT is too small for the segments")?;
        rule(self.nat_segments >= 2, "there is no NAT")?;
        let ssa_blocks = u64::from(self.ssa_segments) * SEGMENT_BLOCKS as u64;
        let needs_no_ssa = features.contains(Features::RO);
        rule(ssa_blocks >= self.segments.into() || needs_no_ssa, "the summary area is too small for the segments")?;
        rule(self.cp_payload < SEGMENT_BLOCKS as u32 - PACK_BLOCKS_FIXED, "the checkpoint does not fit its area")?;
        self.check_areas()
    }

    /// Checks that areas follow each other without gaps, within the volume and the device.
    fn check_areas(&self) -> Result<(), String> {
        let areas = [
            ("checkpoint area", self.cp, 0),
            ("SIT", self.sit, CP_SEGMENTS),
            ("NAT", self.nat, self.sit_segments),
            ("summary area", self.ssa, self.nat_segments),
            ("main area", self.main, self.ssa_segments),
        ];
        let mut expected = u64::from(self.segment0);
        for (name, found, segments_before) in areas {
            expected += u64::from(segments_before) * SEGMENT_BLOCKS as u64;
            if u64::from(found) != expected {
                return Err(format!("the {name} starts at block {found}, not {expected}"));
            }
        }
        let end = expected + u64::from(self.segments) * SEGMENT_BLOCKS as u64;
        let volume_end = u64::from(self.segment0) + u64::from(self.segment_count) * SEGMENT_BLOCKS as u64;
        // The last two numbers are marks, not addresses.
        let limit = volume_end.min(self.block_count).min(BlkAddr::COMPRESSED.0.into());
        if end > limit {
            return Err(format!("the main area ends at block {end}, beyond {limit}"));
        }
        Ok(())
    }
}

/// A superblock whose numbers were checked. Bytes that no field stands for are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    raw: Box<[u8; BLOCK]>,
    geometry: Geometry,
    /// The features that the volume may use.
    pub features: Features,
    /// The volume's identity (UUID).
    pub uuid: [u8; 16],
    /// The volume's name: at most [`LABEL_UNITS`] UTF-16 units.
    pub label: String,
    /// Files with these extensions go to the cold log.
    pub cold_extensions: Vec<String>,
    /// Files with these extensions go to the hot log.
    pub hot_extensions: Vec<String>,
    /// The inodes of user, group and project quota; 0 for none.
    pub qf_ino: [u32; 3],
    /// The program that last changed the superblock.
    pub version: String,
    /// The program that made the volume.
    pub init_version: String,
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("features", &self.features)
            .field("label", &self.label)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

impl Superblock {
    /// Returns a superblock with nothing but its geometry.
    pub(crate) fn empty(geometry: Geometry) -> Superblock {
        let mut raw = Box::new([0; BLOCK]);
        let sb = &mut raw[SUPERBLOCK_START..];
        put_u32(sb, at::MAGIC, MAGIC);
        put_u16(sb, at::MAJOR, 1);
        put_u16(sb, at::MINOR, 15);
        put_u32(sb, at::LOG_SECTOR, 9);
        put_u32(sb, at::LOG_SECTORS_PER_BLOCK, LOG_BLOCK - 9);
        put_u32(sb, at::LOG_BLOCK, LOG_BLOCK);
        put_u32(sb, at::LOG_SEGMENT, LOG_SEGMENT);
        for (index, ino) in FIXED_INOS.into_iter().enumerate() {
            put_u32(sb, at::FIXED_INOS + 4 * index, ino);
        }
        geometry.write(sb);
        Superblock {
            raw,
            geometry,
            features: Features::empty(),
            uuid: [0; 16],
            label: String::new(),
            cold_extensions: Vec::new(),
            hot_extensions: Vec::new(),
            qf_ino: [0; 3],
            version: String::new(),
            init_version: String::new(),
        }
    }

    /// Reads block 0 or 1 of a volume (4096 bytes), which is copy `copy`.
    ///
    /// # Errors
    /// If it is not a superblock, its checksum is wrong, or its numbers contradict each other or
    /// the format.
    pub fn decode(block: &[u8], copy: u8) -> Result<Superblock, Damage> {
        let damage = |problem: String| Structure::Superblock(copy).damage(Some(BlkAddr(copy.into())), problem);
        let Ok(raw) = <[u8; BLOCK]>::try_from(block) else {
            return Err(damage(format!("it was read as {} bytes", block.len())));
        };
        let sb = &raw[SUPERBLOCK_START..];
        check_constants(sb).map_err(damage)?;
        let features = Features::from_bits_retain(u32_at(sb, at::FEATURES));
        if features.contains(Features::SB_CHECKSUM) {
            check_checksum(sb).map_err(damage)?;
        }
        let geometry = Geometry::read(sb);
        geometry.check(features).map_err(damage)?;
        let (cold_extensions, hot_extensions) = read_extensions(sb).map_err(damage)?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&sb[at::UUID..at::UUID + 16]);
        Ok(Superblock {
            geometry,
            features,
            uuid,
            label: read_label(sb),
            cold_extensions,
            hot_extensions,
            qf_ino: std::array::from_fn(|index| u32_at(sb, at::QUOTA_INOS + 4 * index)),
            version: read_text(&sb[at::VERSION..at::VERSION + VERSION_BYTES]),
            init_version: read_text(&sb[at::INIT_VERSION..at::INIT_VERSION + VERSION_BYTES]),
            raw: Box::new(raw),
        })
    }

    /// Returns the block to write at blocks 0 and 1. A superblock that was not changed gives the
    /// very bytes it was read from. Text that is too long for its field is cut.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        let mut raw = self.raw.clone();
        let sb = &mut raw[SUPERBLOCK_START..];
        put_u32(sb, at::FEATURES, self.features.bits());
        sb[at::UUID..at::UUID + 16].copy_from_slice(&self.uuid);
        for (index, ino) in self.qf_ino.into_iter().enumerate() {
            put_u32(sb, at::QUOTA_INOS + 4 * index, ino);
        }
        // Text is not decoded without loss: text that was not changed stays as it was.
        if read_label(sb) != self.label {
            write_label(sb, &self.label);
        }
        write_text(&mut sb[at::VERSION..at::VERSION + VERSION_BYTES], &self.version);
        write_text(&mut sb[at::INIT_VERSION..at::INIT_VERSION + VERSION_BYTES], &self.init_version);
        let lists = (self.cold_extensions.clone(), self.hot_extensions.clone());
        if read_extensions(sb).as_ref() != Ok(&lists) {
            write_extensions(sb, &self.cold_extensions, &self.hot_extensions);
        }
        if self.features.contains(Features::SB_CHECKSUM) {
            put_u32(sb, at::CHECKSUM_OFFSET, CHECKSUM_AT as u32);
            let checksum = crc32(MAGIC, &sb[..CHECKSUM_AT]);
            put_u32(sb, CHECKSUM_AT, checksum);
        }
        raw
    }

    /// Returns the places of the volume's areas.
    pub fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    /// Returns the encoding of names and its flags, for directories that ignore case.
    pub fn encoding(&self) -> (u16, u16) {
        let sb = &self.raw[SUPERBLOCK_START..];
        (u16_at(sb, at::ENCODING), u16_at(sb, at::ENCODING_FLAGS))
    }

    /// True if the volume spans more devices than this one.
    pub fn multi_device(&self) -> bool {
        self.raw[SUPERBLOCK_START + at::DEVICES] != 0
    }

    /// True if `nid` is the node or meta inode, the root directory, or a quota file: ids that are never handed out.
    pub fn is_reserved(&self, nid: Nid) -> bool {
        nid.0 <= Nid::ROOT.0 || self.qf_ino.contains(&nid.0)
    }

    /// Returns the use of the volume that this crate supports. Says nothing about damage.
    pub fn support(&self, writable: bool) -> Support {
        let refusals = self.refusals();
        if !refusals.is_empty() {
            return Support::Refuse(refusals);
        }
        let reasons = self.read_only_reasons();
        if writable && reasons.is_empty() { Support::ReadWrite } else { Support::ReadOnly(reasons) }
    }

    fn refusals(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.multi_device() {
            reasons.push("the volume spans several devices, which is not supported: copy it to one device".to_owned());
        }
        if self.features.contains(Features::PACKED_SSA) {
            reasons.push(
                "feature packed_ssa changes the summary area and is not supported: use a Linux kernel that knows it"
                    .to_owned(),
            );
        }
        reasons
    }

    fn read_only_reasons(&self) -> Vec<String> {
        let known = [
            (Features::BLKZONED, "its zones have to be written in sequence"),
            (Features::QUOTA_INO, "its quota files would no longer be true; make the volume without quota to write it"),
            (Features::VERITY, "files protected by hash trees must not be changed"),
            (Features::CASEFOLD, "names that differ in case only cannot be told apart"),
            (Features::COMPRESSION, "compressed files cannot be read nor written; other files can be read"),
            (Features::RO, "it was made to be read only and has no room for writing"),
            (Features::DEVICE_ALIAS, "files that stand for devices are not supported"),
        ];
        let mut reasons: Vec<String> = known
            .iter()
            .filter(|(feature, _)| self.features.contains(*feature))
            .map(|(feature, why)| format!("feature {}: {why}", feature.names().concat()))
            .collect();
        let named = Features::all().iter_names().fold(Features::empty(), |all, (_, feature)| all | feature);
        let unknown = self.features.difference(named).names();
        reasons.extend(unknown.iter().map(|bit| format!("feature {bit} is unknown: a newer program may write it")));
        reasons
    }
}

/// Checks the numbers that are the same on every volume.
fn check_constants(sb: &[u8]) -> Result<(), String> {
    if u32_at(sb, at::MAGIC) != MAGIC {
        return Err(format!("the magic number is {:#010x}, not {MAGIC:#010x}", u32_at(sb, at::MAGIC)));
    }
    let expect = |what: &str, at: usize, value: u32| match u32_at(sb, at) {
        found if found == value => Ok(()),
        found => Err(format!("{what} is {found}; only {value} is known")),
    };
    expect("log2 of the block size", at::LOG_BLOCK, LOG_BLOCK)?;
    expect("log2 of blocks in a segment", at::LOG_SEGMENT, LOG_SEGMENT)?;
    let log_sector = u32_at(sb, at::LOG_SECTOR);
    if !(9..=LOG_BLOCK).contains(&log_sector) {
        return Err(format!("log2 of the sector size is {log_sector}, not 9 to {LOG_BLOCK}"));
    }
    expect("log2 of sectors in a block", at::LOG_SECTORS_PER_BLOCK, LOG_BLOCK - log_sector)?;
    expect("the number of checkpoint segments", at::CP_SEGMENTS, CP_SEGMENTS)?;
    for (index, (what, ino)) in ["root", "node", "meta"].into_iter().zip(FIXED_INOS).enumerate() {
        expect(&format!("the number of the {what} inode"), at::FIXED_INOS + 4 * index, ino)?;
    }
    Ok(())
}

fn check_checksum(sb: &[u8]) -> Result<(), String> {
    let offset = u32_at(sb, at::CHECKSUM_OFFSET);
    if offset != CHECKSUM_AT as u32 {
        return Err(format!("the checksum's offset is {offset}, not {CHECKSUM_AT}"));
    }
    let (stored, computed) = (u32_at(sb, CHECKSUM_AT), crc32(MAGIC, &sb[..CHECKSUM_AT]));
    if stored != computed {
        return Err(format!("the checksum is {stored:#010x}, but its bytes give {computed:#010x}"));
    }
    Ok(())
}

/// Returns the bytes up to the first zero as text.
fn read_text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Stores text, cut to the field, unless it already says so.
fn write_text(field: &mut [u8], text: &str) {
    if read_text(field) == text {
        return;
    }
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=text.len().min(field.len())).rev().find(fits).unwrap_or(0);
    field.fill(0);
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
}

fn read_label(sb: &[u8]) -> String {
    let units = (0..LABEL_UNITS).map(|unit| u16_at(sb, at::LABEL + 2 * unit)).take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

fn write_label(sb: &mut [u8], label: &str) {
    sb[at::LABEL..at::LABEL + 2 * LABEL_UNITS].fill(0);
    for (unit, value) in label.encode_utf16().take(LABEL_UNITS).enumerate() {
        put_u16(sb, at::LABEL + 2 * unit, value);
    }
}

/// Reads the cold list, then the hot one.
fn read_extensions(sb: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
    let cold = u32_at(sb, at::EXTENSION_COUNT);
    let hot = sb[at::HOT_EXTENSION_COUNT];
    if u64::from(cold) + u64::from(hot) > EXTENSIONS_MAX as u64 {
        return Err(format!("it lists {cold} cold and {hot} hot extensions, more than {EXTENSIONS_MAX}"));
    }
    let slots = sb[at::EXTENSIONS..].chunks_exact(EXTENSION_BYTES).map(read_text);
    let mut cold_list: Vec<String> = slots.take((cold + u32::from(hot)) as usize).collect();
    let hot_list = cold_list.split_off(cold as usize);
    Ok((cold_list, hot_list))
}

fn write_extensions(sb: &mut [u8], cold: &[String], hot: &[String]) {
    let cold = &cold[..cold.len().min(EXTENSIONS_MAX)];
    let hot = &hot[..hot.len().min(EXTENSIONS_MAX - cold.len())];
    put_u32(sb, at::EXTENSION_COUNT, cold.len() as u32);
    sb[at::HOT_EXTENSION_COUNT] = hot.len() as u8;
    let area = &mut sb[at::EXTENSIONS..at::EXTENSIONS + EXTENSIONS_MAX * EXTENSION_BYTES];
    area.fill(0);
    for (slot, extension) in area.chunks_exact_mut(EXTENSION_BYTES).zip(cold.iter().chain(hot)) {
        // The last byte stays zero, which ends the text.
        write_text(&mut slot[..EXTENSION_BYTES - 1], extension);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the geometry that mkfs.f2fs chooses for 2 GiB.
    fn geometry() -> Geometry {
        Geometry {
            block_count: 524_288,
            segment_count: 1023,
            segs_per_sec: 1,
            secs_per_zone: 1,
            segments: 1011,
            sections: 1011,
            segment0: 512,
            cp: 512,
            sit: 1536,
            nat: 2560,
            ssa: 5632,
            main: 6656,
            sit_segments: 2,
            nat_segments: 6,
            ssa_segments: 2,
            cp_payload: 0,
        }
    }

    #[test]
    fn blocks_are_where_the_format_puts_them() {
        let geo = geometry();
        assert_eq!((geo.pack_at(0), geo.pack_at(1)), (BlkAddr(512), BlkAddr(1024)));
        assert_eq!((geo.sit_blocks(), geo.sit_at(18, false), geo.sit_at(18, true)), (19, BlkAddr(1554), BlkAddr(2066)));
        assert_eq!((geo.nat_blocks(), geo.nid_max()), (1536, 1536 * 455));
        assert_eq!((geo.nat_at(511, false), geo.nat_at(511, true)), (BlkAddr(3071), BlkAddr(3583)));
        assert_eq!((geo.nat_at(512, false), geo.nat_at(1535, true)), (BlkAddr(3584), BlkAddr(5631)));
        assert_eq!(geo.summary_at(Segno(1010)), BlkAddr(6642));
        assert_eq!((geo.sit_bitmap_bytes(), geo.nat_bitmap_bytes()), (64, 192));
        assert_eq!(geo.segment_of(BlkAddr(6655)), None);
        assert_eq!(geo.segment_of(BlkAddr(6656 + 513)), Some((Segno(1), 1)));
        assert_eq!(geo.block_of(Segno(1010), 511), BlkAddr(524_287));
        assert!(geo.is_main(BlkAddr(524_287)) && !geo.is_main(BlkAddr(524_288)));
        assert!(![BlkAddr::NULL, BlkAddr::NEW, BlkAddr::COMPRESSED].into_iter().any(|mark| geo.is_main(mark)));
    }

    #[test]
    fn sections_and_zones_hold_their_segments() {
        let geo = Geometry { segs_per_sec: 3, secs_per_zone: 2, sections: 337, ..geometry() };
        assert_eq!((geo.section_of(Segno(8)), geo.zone_of(Segno(8)), geo.section(2)), (2, 1, 6..9));
    }

    #[test]
    fn too_long_texts_are_cut() {
        let mut superblock = Superblock::empty(geometry());
        superblock.label = "ü".repeat(600);
        superblock.version = "ü".repeat(200);
        superblock.cold_extensions = vec!["extension".to_owned(); 70];
        let found = Superblock::decode(&superblock.encode()[..], 0).expect("a superblock");
        assert_eq!((found.label, found.version), ("ü".repeat(512), "ü".repeat(128)));
        assert_eq!(found.cold_extensions, vec!["extensi".to_owned(); 64]);
    }

    #[test]
    fn text_that_is_none_stays_as_it_was() {
        let mut block = Superblock::empty(geometry()).encode();
        // Half a pair, bytes behind the end, bytes that are no UTF-8.
        put_u16(&mut block[SUPERBLOCK_START..], at::LABEL, 0xD800);
        block[SUPERBLOCK_START + at::LABEL + 100] = 1;
        block[SUPERBLOCK_START + at::VERSION] = 0xFF;
        block[7] = 7;
        let mut superblock = Superblock::decode(&block[..], 0).expect("a superblock");
        assert_eq!(superblock.encode(), block);
        superblock.label = "x".to_owned();
        assert_eq!(superblock.encode()[SUPERBLOCK_START + at::LABEL + 100], 0);
    }

    #[test]
    fn features_are_called_as_mkfs_f2fs_calls_them() {
        let features = Features::SB_CHECKSUM | Features::EXTRA_ATTR | Features::from_bits_retain(1 << 20);
        assert_eq!(features.names(), ["extra_attr", "sb_checksum", "0x100000"]);
    }

    /// Numbers that a field could well have, and any others.
    fn values() -> impl Strategy<Value = u32> {
        let near = (0u32..64, prop::sample::select(vec![0, 512, 1024, 5632, 6656, 524_288, u32::MAX - 63]));
        prop_oneof![near.prop_map(|(low, base)| base + low), any::<u32>(), (0u32..32).prop_map(|bit| 1 << bit)]
    }

    proptest! {
        /// Every block number that comes out of an accepted geometry lies on the device.
        #[test]
        fn damaged_numbers_are_refused_or_harmless(
            fields in prop::collection::vec((prop_oneof![24..100usize, Just(at::CP_PAYLOAD), 0..2760usize], values()), 0..6),
        ) {
            let mut block = Superblock::empty(geometry()).encode();
            for (at, value) in fields {
                put_u32(&mut block[SUPERBLOCK_START..], at & !3, value);
            }
            let Ok(superblock) = Superblock::decode(&block[..], 0) else { return Ok(()) };
            prop_assert_eq!(superblock.encode(), block);
            superblock.support(true);
            let geo = superblock.geometry();
            let last = Segno(geo.segments - 1);
            for (segno, offset) in [(Segno(0), 0), (last, SEGMENT_BLOCKS - 1)] {
                prop_assert_eq!(geo.segment_of(geo.block_of(segno, offset)), Some((segno, offset)));
                prop_assert!(geo.section(geo.section_of(segno)).contains(&segno.0));
                prop_assert!(geo.zone_of(segno) <= geo.section_of(segno));
            }
            prop_assert_eq!(geo.section(geo.sections - 1).end, geo.segments);
            let ends = [
                geo.block_of(last, SEGMENT_BLOCKS - 1),
                geo.sit_at(geo.sit_blocks() - 1, true),
                geo.nat_at(geo.nat_blocks() - 1, true),
                geo.pack_at(1),
            ];
            prop_assert!(ends.iter().all(|end| u64::from(end.0) < geo.block_count));
            prop_assert!(geo.nid_max() > 0);
        }

        #[test]
        fn any_bytes_are_no_superblock(bytes in prop::collection::vec(any::<u8>(), BLOCK), len in 0..BLOCK + 1) {
            prop_assert!(Superblock::decode(&bytes, 0).is_err());
            prop_assert!(Superblock::decode(&bytes[..len], 1).is_err());
        }
    }
}
