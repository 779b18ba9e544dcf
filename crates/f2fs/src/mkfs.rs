//! Making an empty F2FS volume.
//!
//! The areas and the reserves are those that mkfs.f2fs chooses (`docs/formats/f2fs.md`, section 2.2), but
//! for volumes that are not a whole number of zones, which it miscounts (section 2.3). The old superblock
//! goes first and the new one comes last, so that a power cut leaves either no volume or a whole one, even
//! if it tears the superblock.

use moafs_disk::{Buf, Disk, DiskError, DiskExt, Kind, Lba, Op, Request, SECTOR, Tag};
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use crate::format::checkpoint::{Checkpoint, CpFlags, CurrentSegment, Pack, VersionBitmap};
use crate::format::crc::{MAGIC, crc32};
use crate::format::dentry::{self, Region};
use crate::format::inode::{self, Advise, EXTRA_ISIZE_MAX, Extra, Inline, Inode, InodeFlags};
use crate::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use crate::format::node::Footer;
use crate::format::sit::{SIT_PER_BLOCK, SitEntry};
use crate::format::summary::{Summary, SummaryEntry};
use crate::format::superblock::{
    CP_SEGMENTS, EXTENSION_BYTES, EXTENSIONS_MAX, Features, Geometry, LABEL_UNITS, SEGMENTS_MAX, SUPERBLOCK_START,
    Superblock,
};
use crate::format::{BLOCK, BlkAddr, Log, Nid, SEGMENT_BLOCKS, Segno};

/// Features that this crate can give to a new volume.
pub const FEATURES: Features = Features::EXTRA_ATTR
    .union(Features::INODE_CHECKSUM)
    .union(Features::SB_CHECKSUM)
    .union(Features::FLEXIBLE_INLINE_XATTR)
    .union(Features::INODE_CRTIME)
    .union(Features::LOST_FOUND);

/// Files that rarely change once they are written: media, archives, programs.
const COLD_EXTENSIONS: &str = "mp wm og jp avi m4v m4p mkv mov webm wav m4a 3gp opus flac gif png svg webp jar deb iso \
                               gz xz zst pdf pyc ttc ttf exe apk cnt exo odex vdex so";
/// Files that change often: databases, disk images.
const HOT_EXTENSIONS: &str = "db vmdk vdi qcow2";

const SEGMENT_BYTES: u64 = (SEGMENT_BLOCKS * BLOCK) as u64;
/// Both superblocks come before the first segment.
const SUPERBLOCKS_BYTES: u64 = 2 * BLOCK as u64;
/// The blocks that hold a superblock.
const COPIES: std::ops::Range<u32> = 0..2;
/// Bytes that the checkpoint block has for both version bitmaps, as mkfs.f2fs counts them.
const BITMAP_BYTES: u64 = 3900;
/// With a larger SIT bitmap than this, the whole checkpoint block goes to the NAT's, and the SIT's to the payload.
const SIT_BITMAP_BYTES: u64 = BITMAP_BYTES - 64;
/// Of the usual number of node ids, this share with [`MkfsOptions::large_nat_bitmap`].
const LARGE_NAT_PERCENT: u64 = 20;
/// Each log starts in a zone of its own, and one has to be left.
const MAIN_ZONES_MIN: u32 = 7;
/// Volumes with fewer segments than this need a large share of them in reserve.
const SMALL_SEGMENTS: u32 = 256;

const ROOT: Nid = Nid::ROOT;
const LOST_FOUND: Nid = Nid(4);

/// The shape and contents of the new volume.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The volume's name: at most 512 UTF-16 units.
    pub label: String,
    /// The volume's identity (UUID) in its superblock.
    pub uuid: [u8; 16],
    /// The volume's features: any of [`FEATURES`].
    pub features: Features,
    /// Segments in a section.
    pub segs_per_sec: u32,
    /// Sections in a zone.
    pub secs_per_zone: u32,
    /// The share of the main area that users do not see, in percent; chosen from the size if not given.
    pub overprovision_percent: Option<f64>,
    /// The time of day that the first inodes carry.
    pub now: Timestamp,
    /// Fewer nodes, but bitmaps that can grow with the largest volumes (`mkfs.f2fs -i`).
    pub large_nat_bitmap: bool,
    /// Files with these extensions go to the cold log.
    pub cold_extensions: Vec<String>,
    /// Files with these extensions go to the hot log.
    pub hot_extensions: Vec<String>,
    /// Tell the device first that its contents are no longer needed.
    pub discard: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl MkfsOptions {
    /// Returns the defaults of mkfs.f2fs: no features, sections and zones of one segment.
    pub fn new(uuid: [u8; 16], now: Timestamp) -> MkfsOptions {
        let list = |extensions: &str| extensions.split_ascii_whitespace().map(str::to_owned).collect();
        MkfsOptions {
            label: String::new(),
            uuid,
            features: Features::empty(),
            segs_per_sec: 1,
            secs_per_zone: 1,
            overprovision_percent: None,
            now,
            large_nat_bitmap: false,
            cold_extensions: list(COLD_EXTENSIONS),
            hot_extensions: list(HOT_EXTENSIONS),
            discard: false,
            root_owner: (0, 0),
        }
    }
}

/// Reasons why no volume was made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MkfsError {
    /// An option has a value that no volume can have.
    #[error("{what} {value} is not possible: {rule}")]
    Option {
        /// The name of the option, for the message.
        what: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are possible.
        rule: String,
    },
    /// The device cannot hold a volume of this shape.
    #[error("a volume of this shape does not fit {bytes} bytes: {why}")]
    Size {
        /// Bytes of the device.
        bytes: u64,
        /// The part that does not fit.
        why: String,
    },
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The action that failed, as a verb phrase.
        doing: &'static str,
        /// The error that the device returned.
        source: DiskError,
    },
}

/// Returns the error for an option's illegal value.
fn impossible<T>(what: &'static str, value: impl ToString, rule: impl Into<String>) -> Result<T, MkfsError> {
    Err(MkfsError::Option { what, value: value.to_string(), rule: rule.into() })
}

/// The shape of the volume that was made, and the space in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// The areas of the volume.
    pub geometry: Geometry,
    /// Blocks that files may use.
    pub user_blocks: u64,
    /// Segments kept free so that cleaning can always go on.
    pub reserved_segments: u32,
    /// Segments that users do not see, with the reserved ones.
    pub overprovision_segments: u32,
}

/// Decides what would be made on a device of `bytes`.
///
/// # Errors
/// If the options do not fit together or with the device.
pub fn plan(bytes: u64, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let (geometry, reserve) = shape(bytes, options)?;
    Ok(report(geometry, reserve))
}

/// Makes an empty volume on `disk`. Everything on it is lost.
///
/// # Errors
/// If the options do not fit together or with the device: then nothing was written. If a request fails: then the old
/// volume is gone, and of the new one there is nothing, or all of it with one copy of the superblock.
pub fn mkfs(disk: &dyn Disk, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let (geometry, reserve) = shape(disk.limits().sectors * SECTOR as u64, options)?;
    let maker = Maker { disk, options, logs: first_segments(&geometry), geometry, reserve };
    maker.erase_old()?;
    maker.write_areas()?;
    maker.write_superblocks()?;
    Ok(report(maker.geometry, reserve))
}

/// Returns the areas of a volume on a device of `bytes`, and what is kept back from users.
fn shape(bytes: u64, options: &MkfsOptions) -> Result<(Geometry, Reserve), MkfsError> {
    check_options(options)?;
    let geometry = areas(bytes, options)?;
    let reserve = reserve(bytes, &geometry, options.overprovision_percent)?;
    Ok((geometry, reserve))
}

fn report(geometry: Geometry, reserve: Reserve) -> MkfsReport {
    MkfsReport {
        user_blocks: user_blocks(&geometry, reserve),
        reserved_segments: reserve.reserved,
        overprovision_segments: reserve.overprovision,
        geometry,
    }
}

fn user_blocks(geometry: &Geometry, reserve: Reserve) -> u64 {
    u64::from(geometry.segments - reserve.overprovision) * SEGMENT_BLOCKS as u64
}

fn check_options(options: &MkfsOptions) -> Result<(), MkfsError> {
    let unknown = options.features.difference(FEATURES);
    if !unknown.is_empty() {
        return impossible("feature", unknown.names().join(","), format!("any of {}", FEATURES.names().join(",")));
    }
    let in_extra_area = options.features & Features::IN_EXTRA_AREA;
    if !in_extra_area.is_empty() && !options.features.contains(Features::EXTRA_ATTR) {
        return impossible("feature", in_extra_area.names().join(","), "only together with extra_attr");
    }
    if options.segs_per_sec == 0 {
        return impossible("number of segments in a section", 0, "at least 1");
    }
    if options.secs_per_zone == 0 {
        return impossible("number of sections in a zone", 0, "at least 1");
    }
    if let Some(percent) = options.overprovision_percent
        && !(percent > 0.0 && percent < 100.0)
    {
        return impossible("overprovision percentage", percent, "more than 0, less than 100");
    }
    if options.label.encode_utf16().count() > LABEL_UNITS || options.label.contains('\0') {
        return impossible("label", &options.label, format!("at most {LABEL_UNITS} UTF-16 units, none of them 0"));
    }
    check_extensions(options)
}

fn check_extensions(options: &MkfsOptions) -> Result<(), MkfsError> {
    let count = options.cold_extensions.len() + options.hot_extensions.len();
    if count > EXTENSIONS_MAX {
        return impossible("number of extensions", count, format!("at most {EXTENSIONS_MAX}"));
    }
    let fits = |extension: &str| (1..EXTENSION_BYTES).contains(&extension.len()) && !extension.contains('\0');
    match options.cold_extensions.iter().chain(&options.hot_extensions).find(|extension| !fits(extension)) {
        Some(extension) => impossible("extension", extension, format!("1 to {} bytes", EXTENSION_BYTES - 1)),
        None => Ok(()),
    }
}

/// Returns the places of all areas on a device of `bytes` (section 2.2).
fn areas(bytes: u64, options: &MkfsOptions) -> Result<Geometry, MkfsError> {
    let error = |why: &str| MkfsError::Size { bytes, why: why.to_owned() };
    let zone = u64::from(options.segs_per_sec) * u64::from(options.secs_per_zone);
    let start = zone.checked_mul(SEGMENT_BYTES).map(|zone_bytes| SUPERBLOCKS_BYTES.next_multiple_of(zone_bytes));
    let start = start.filter(|start| *start < bytes).ok_or_else(|| error("not even a zone does"))?;
    let segment_count = (bytes - start) / SEGMENT_BYTES / zone * zone;
    if start / BLOCK as u64 + segment_count * SEGMENT_BLOCKS as u64 > BlkAddr::COMPRESSED.0.into() {
        return Err(error(&format!("it would have more than {SEGMENTS_MAX} segments")));
    }
    let tables = Tables::of(segment_count, options.large_nat_bitmap).ok_or_else(|| error("no room for tables"))?;
    let meta_segments = tables.meta_segments().next_multiple_of(zone);
    let main_zones = (segment_count.saturating_sub(meta_segments) / zone) as u32;
    if main_zones < MAIN_ZONES_MIN {
        let zone_mib = (zone * SEGMENT_BYTES) >> 20;
        return Err(error(&format!(
            "it needs {MAIN_ZONES_MIN} zones of {zone_mib} MiB for data and nodes, and beside its tables there is room \
             for {main_zones}"
        )));
    }
    // Everything below is a number of segments or blocks of this volume, which have 32 bits.
    let sections = main_zones * options.secs_per_zone;
    let after = |area: u32, segments: u64| area + (segments * SEGMENT_BLOCKS as u64) as u32;
    let cp = (start / BLOCK as u64) as u32;
    let sit = after(cp, CP_SEGMENTS.into());
    let nat = after(sit, tables.sit_segments);
    let ssa = after(nat, tables.nat_segments);
    Ok(Geometry {
        block_count: bytes / BLOCK as u64,
        segment_count: segment_count as u32,
        segs_per_sec: options.segs_per_sec,
        secs_per_zone: options.secs_per_zone,
        segments: sections * options.segs_per_sec,
        sections,
        segment0: cp,
        cp,
        sit,
        nat,
        ssa,
        main: after(cp, meta_segments),
        sit_segments: tables.sit_segments as u32,
        nat_segments: tables.nat_segments as u32,
        ssa_segments: (meta_segments - u64::from(CP_SEGMENTS) - tables.sit_segments - tables.nat_segments) as u32,
        cp_payload: tables.cp_payload as u32,
    })
}

/// The sizes of the tables.
struct Tables {
    sit_segments: u64,
    nat_segments: u64,
    ssa_segments: u64,
    cp_payload: u64,
}

impl Tables {
    /// Returns the tables for so many segments; `None` if they are too few for tables at all.
    fn of(segment_count: u64, large_nat_bitmap: bool) -> Option<Tables> {
        let in_segments = |blocks: u64| blocks.div_ceil(SEGMENT_BLOCKS as u64);
        let bitmap_bytes = |set_segments: u64| set_segments * SEGMENT_BLOCKS as u64 / 8;
        let payload = |bytes: u64| bytes.div_ceil(BLOCK as u64);
        let sit_set = in_segments(segment_count.div_ceil(SIT_PER_BLOCK as u64));
        let sit_bitmap = bitmap_bytes(sit_set);
        // A node id for each block that is left.
        let rest = segment_count.checked_sub(u64::from(CP_SEGMENTS) + 2 * sit_set)?;
        let nat_wanted = in_segments((rest * SEGMENT_BLOCKS as u64).div_ceil(NAT_PER_BLOCK as u64));
        let (nat_set, cp_payload) = if large_nat_bitmap {
            let nat_set = (nat_wanted * LARGE_NAT_PERCENT / 100).max(1);
            (nat_set, payload((sit_bitmap + bitmap_bytes(nat_set)).saturating_sub(BITMAP_BYTES)))
        } else if sit_bitmap > SIT_BITMAP_BYTES {
            (nat_wanted.min(BITMAP_BYTES / bitmap_bytes(1)), payload(sit_bitmap))
        } else {
            (nat_wanted.min((BITMAP_BYTES - sit_bitmap) / bitmap_bytes(1)), 0)
        };
        let rest = rest.checked_sub(2 * nat_set)?;
        let ssa_segments = in_segments(rest + 1);
        Some(Tables { sit_segments: 2 * sit_set, nat_segments: 2 * nat_set, ssa_segments, cp_payload })
    }

    fn meta_segments(&self) -> u64 {
        u64::from(CP_SEGMENTS) + self.sit_segments + self.nat_segments + self.ssa_segments
    }
}

/// Segments that are kept back from users.
#[derive(Debug, Clone, Copy)]
struct Reserve {
    /// So that cleaning can always go on.
    reserved: u32,
    /// So that cleaning finds segments with few valid blocks; with the reserved ones.
    overprovision: u32,
}

/// Keeps back the given share, or else the one that leaves most to users (section 2.2).
fn reserve(bytes: u64, geo: &Geometry, percent: Option<f64>) -> Result<Reserve, MkfsError> {
    let error = |why: &str| MkfsError::Size { bytes, why: why.to_owned() };
    let usable = f64::from(geo.segments);
    // Cleaning a segment of which c percent are free frees it after 100/c moves: the smaller the share, the more
    // sections it needs meanwhile. Twice that, and one for each log.
    let reserved = |c: f64| (2.0 * (100.0 / c + 1.0) + 6.0) * f64::from(geo.segs_per_sec);
    let left = |c: f64| {
        let rest = usable - reserved(c);
        rest - rest * c / 100.0
    };
    let chosen = match percent {
        Some(percent) => Some(percent),
        None => most_left(geo.segments, left),
    };
    let percent = chosen.ok_or_else(|| error("cleaning would need all of it"))?;
    let segments = reserved(percent) as u32;
    if geo.segments - (Log::ALL.len() as u32) < segments {
        return Err(error("cleaning would need all of it"));
    }
    let overprovision = (f64::from(geo.segments - segments) * percent / 100.0) as u32 + segments;
    Ok(Reserve { reserved: segments, overprovision })
}

/// Returns the first percentage that leaves most.
fn most_left(segments: u32, left: impl Fn(f64) -> f64) -> Option<f64> {
    let (first, step, last) = if segments < SMALL_SEGMENTS { (10.0, 5.0, 95.0) } else { (0.01, 0.01, 10.0) };
    let candidates = std::iter::successors(Some(first), |c| Some(c + step)).take_while(|c| *c <= last);
    let mut best = (0.0, None);
    for candidate in candidates {
        let left = left(candidate);
        if left > best.0 {
            best = (left, Some(candidate));
        }
    }
    best.1
}

/// Returns the segments in which the logs start: each in a zone of its own, data that live longer
/// further inside.
fn first_segments(geo: &Geometry) -> [Segno; 6] {
    let zone = geo.segs_per_sec * geo.secs_per_zone;
    let zones = geo.segments / zone;
    let [hot_node, warm_node, cold_node, hot_data] = [0, 1, 2, 3];
    let cold_data = (zones / 4 - 1).max(hot_data + 1);
    let warm_data = (zones / 2 - 1).max(cold_data + 1);
    [hot_data, warm_data, cold_data, hot_node, warm_node, cold_node].map(|in_zone| Segno(in_zone * zone))
}

/// Carries the plan out.
struct Maker<'a> {
    disk: &'a dyn Disk,
    options: &'a MkfsOptions,
    geometry: Geometry,
    reserve: Reserve,
    logs: [Segno; 6],
}

impl Maker<'_> {
    fn submit(&self, doing: &'static str, batch: Vec<Request>) -> Result<(), MkfsError> {
        for done in self.disk.run(batch) {
            done.result.map_err(|source| MkfsError::Disk { doing, source })?;
        }
        Ok(())
    }

    fn flush(&self, doing: &'static str) -> Result<(), MkfsError> {
        self.disk.flush().map_err(|source| MkfsError::Disk { doing, source })
    }

    /// Overwrites the magic numbers of both superblocks, so that no mount finds the old volume, nor
    /// a half-made new one.
    fn erase_old(&self) -> Result<(), MkfsError> {
        let doing = "erase the old volume";
        if self.options.discard && self.disk.limits().discard {
            let op = Op::Discard { sectors: self.disk.limits().sectors };
            self.submit(doing, vec![Request { op, at: Lba(0), tag: Tag::volume(Kind::Superblock) }])?;
        }
        // The sector with the magic number is written whole or not at all, unlike the superblock.
        let magic = |copy: u32| {
            let at = Lba::from_byte(u64::from(copy) * BLOCK as u64 + SUPERBLOCK_START as u64);
            Request { op: Op::WriteZeroes { sectors: 1 }, at, tag: Tag::volume(Kind::Superblock) }
        };
        self.submit(doing, COPIES.map(magic).collect())?;
        self.flush(doing)
    }

    /// Writes everything but the superblocks.
    fn write_areas(&self) -> Result<(), MkfsError> {
        let geo = &self.geometry;
        let mut empty = vec![zeroes(geo.sit_at(0, false), geo.sit_blocks(), Kind::Segments)];
        let set_starts = (0..geo.nat_blocks()).step_by(SEGMENT_BLOCKS);
        empty
            .extend(set_starts.map(|index| zeroes(geo.nat_at(index, false), SEGMENT_BLOCKS as u32, Kind::Descriptors)));
        // An old node here would be taken for one written since the checkpoint.
        empty.push(zeroes(geo.block_of(self.logs[Log::WarmNode as usize], 0), 1, Kind::Node));
        self.submit("empty the tables", empty)?;
        let directories = self.directories();
        let mut blocks = Vec::new();
        for directory in &directories {
            blocks.push(write(directory.node, &self.inode_block(directory), Kind::Node));
            blocks.push(write(directory.data, &self.first_block(directory), Kind::Directory));
        }
        blocks.push(write(geo.nat_at(0, false), &nat_block(&directories), Kind::Descriptors));
        let mut pack = self.pack(&directories);
        blocks.push(write(geo.pack_at(0), &pack.encode(geo), Kind::Segments));
        // The other pack must be valid as well, but must not count.
        pack.checkpoint.version = 0;
        blocks.push(write(geo.pack_at(1), &pack.encode(geo), Kind::Segments));
        self.submit("write the new volume's metadata", blocks)?;
        self.flush("make the new volume's metadata durable")
    }

    fn write_superblocks(&self) -> Result<(), MkfsError> {
        let options = self.options;
        let mut superblock = Superblock::empty(self.geometry.clone());
        let version = concat!("moafs ", env!("CARGO_PKG_VERSION"));
        superblock.features = options.features;
        superblock.uuid = options.uuid;
        superblock.label = options.label.clone();
        superblock.cold_extensions = options.cold_extensions.clone();
        superblock.hot_extensions = options.hot_extensions.clone();
        superblock.version = version.to_owned();
        superblock.init_version = version.to_owned();
        let whole = superblock.encode();
        // A superblock of which some sectors are missing must not look like one: the magic number comes last.
        let mut nameless = whole.clone();
        nameless[SUPERBLOCK_START..SUPERBLOCK_START + 4].fill(0);
        for block in [nameless, whole] {
            let copies = COPIES.map(|copy| write(BlkAddr(copy), &block[..], Kind::Superblock)).collect();
            self.submit("write the superblocks", copies)?;
            self.flush("make the superblocks durable")?;
        }
        Ok(())
    }

    /// Returns the directories of the new volume, in order of their blocks in the logs.
    fn directories(&self) -> Vec<Directory> {
        let block = |log: Log, offset: usize| self.geometry.block_of(self.logs[log as usize], offset);
        let directory = |(index, (nid, name, mode, links)): (usize, (Nid, &'static str, u16, u32))| {
            let (node, data) = (block(Log::HotNode, index), block(Log::HotData, index));
            Directory { nid, name, mode, links, node, data }
        };
        let has_lost_found = self.options.features.contains(Features::LOST_FOUND);
        let mut all = vec![(ROOT, "", 0o755, if has_lost_found { 3 } else { 2 })];
        all.extend(has_lost_found.then_some((LOST_FOUND, "lost+found", 0o700, 2)));
        all.into_iter().enumerate().map(directory).collect()
    }

    fn inode_block(&self, directory: &Directory) -> Vec<u8> {
        let features = self.options.features;
        let now = self.options.now;
        let has_extra = features.contains(Features::EXTRA_ATTR);
        let (uid, gid) = if directory.nid == ROOT { self.options.root_owner } else { (0, 0) };
        let inode = Inode {
            mode: 0o040_000 | directory.mode,
            kind: FileKind::Directory,
            advise: Advise::empty(),
            inline: if has_extra { Inline::EXTRA_ATTR } else { Inline::empty() },
            uid,
            gid,
            links: directory.links,
            size: BLOCK as u64,
            blocks: 2,
            atime: now,
            ctime: now,
            mtime: now,
            generation: 0,
            current_depth: 1,
            xattr_nid: Nid::NONE,
            flags: InodeFlags::empty(),
            pino: if directory.nid == ROOT { Nid::NONE } else { ROOT },
            name: directory.name.as_bytes().into(),
            dir_level: 0,
            extra: has_extra.then(|| Extra {
                isize: EXTRA_ISIZE_MAX,
                inline_xattr_words: 0,
                projid: 0,
                crtime: features.contains(Features::INODE_CRTIME).then_some(now),
            }),
        };
        let mut block = vec![0; BLOCK];
        inode.encode_into(&mut block);
        let flexible = features.contains(Features::FLEXIBLE_INLINE_XATTR);
        inode.layout(flexible).set_addr(&mut block, 0, directory.data);
        Footer {
            nid: directory.nid,
            ino: directory.nid,
            cold: false,
            fsync: false,
            dentry: false,
            offset: 0,
            cp_version: 1,
            next: BlkAddr(directory.node.0 + 1),
        }
        .encode_into(&mut block);
        if features.contains(Features::INODE_CHECKSUM) {
            inode::seal_checksum(&mut block, &self.options.uuid);
        }
        block
    }

    fn first_block(&self, directory: &Directory) -> Vec<u8> {
        let mut block = dentry::first_block(directory.nid, ROOT);
        if directory.nid == ROOT && self.options.features.contains(Features::LOST_FOUND) {
            let name = b"lost+found";
            let slot = dentry::DOT_SLOTS.len();
            dentry::insert(&mut block, &Region::BLOCK, slot, dentry::hash(name), LOST_FOUND, FileKind::Directory, name);
        }
        block
    }

    fn pack(&self, directories: &[Directory]) -> Pack {
        let used = |log: Log| if matches!(log, Log::HotNode | Log::HotData) { directories.len() } else { 0 };
        let entry = |log: Log| {
            let map = (0..used(log)).collect();
            (self.logs[log as usize], SitEntry { log, map, mtime: 0 })
        };
        let summary = |log: Log| {
            let mut summary = Box::<Summary>::default();
            for (entry, directory) in summary.entries[..used(log)].iter_mut().zip(directories) {
                *entry = SummaryEntry { nid: directory.nid, version: 0, offset: 0 };
            }
            Some(summary)
        };
        Pack {
            checkpoint: self.checkpoint(directories.len() as u32, used),
            orphans: Vec::new(),
            nat_journal: Vec::new(),
            sit_journal: Log::ALL.map(entry).to_vec(),
            summaries: Log::ALL.map(summary),
            kib_written: 0,
        }
    }

    fn checkpoint(&self, inodes: u32, used: impl Fn(Log) -> usize) -> Checkpoint {
        let geo = &self.geometry;
        // Different on each volume, so that nodes of an older volume never continue this one's logs.
        let seed = crc32(MAGIC, &self.options.uuid);
        let version = crc32(seed, &self.options.now.secs.to_le_bytes()) | 1;
        let open =
            |log: Log| CurrentSegment { segno: self.logs[log as usize], offset: used(log) as u16, recycling: false };
        let large = if self.options.large_nat_bitmap { CpFlags::LARGE_NAT_BITMAP } else { CpFlags::empty() };
        Checkpoint {
            version: version.into(),
            user_blocks: user_blocks(geo, self.reserve),
            valid_blocks: 2 * u64::from(inodes),
            reserved_segments: self.reserve.reserved,
            overprovision_segments: self.reserve.overprovision,
            free_segments: geo.segments - Log::ALL.len() as u32,
            current: Log::ALL.map(open),
            flags: CpFlags::UMOUNT | large,
            valid_nodes: inodes,
            valid_inodes: inodes,
            next_free_nid: ROOT.0 + inodes,
            elapsed: 0,
            sit_bitmap: VersionBitmap::new(geo.sit_bitmap_bytes()),
            nat_bitmap: VersionBitmap::new(geo.nat_bitmap_bytes()),
            crc: 0,
            pack_blocks: 0,
            start_sum: 0,
        }
    }
}

/// A directory of the new volume.
struct Directory {
    nid: Nid,
    name: &'static str,
    mode: u16,
    links: u32,
    node: BlkAddr,
    data: BlkAddr,
}

/// Makes the first block of the NAT: two ids without a node, and the directories.
fn nat_block(directories: &[Directory]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for reserved in [Nid(1), Nid(2)] {
        nat::set_entry(&mut block, reserved.0 as usize, NatEntry { version: 0, ino: reserved, addr: BlkAddr(1) });
    }
    for Directory { nid, node, .. } in directories {
        nat::set_entry(&mut block, nid.0 as usize, NatEntry { version: 0, ino: *nid, addr: *node });
    }
    block
}

fn zeroes(from: BlkAddr, blocks: u32, kind: Kind) -> Request {
    let sectors = u64::from(blocks) * (BLOCK / SECTOR) as u64;
    Request { op: Op::WriteZeroes { sectors }, at: lba(from), tag: Tag::volume(kind) }
}

fn write(at: BlkAddr, bytes: &[u8], kind: Kind) -> Request {
    let data = vec![Buf::copy_of(bytes).freeze()];
    Request { op: Op::Write { data, fua: false }, at: lba(at), tag: Tag::volume(kind) }
}

fn lba(block: BlkAddr) -> Lba {
    Lba::from_byte(u64::from(block.0) * BLOCK as u64)
}
