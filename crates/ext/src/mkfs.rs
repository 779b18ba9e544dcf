//! Making an empty ext2 volume.
//!
//! Every group starts with the copies it carries, then its two bitmaps and its inode table, as
//! `mke2fs` places them without flex_bg. Inode tables are not written, but zeroed by the device's
//! own command. The old superblock goes first and the new one comes last, so that a power cut
//! leaves either no volume or a whole one.

use moafs_disk::{Buf, Disk, DiskError, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, Tag};
use moafs_runtime::Timestamp;

use crate::format::superblock::{BLOCKS_PER_GROUP_MAX, Compat, Incompat, RoCompat, SUPERBLOCK_OFFSET, State};
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Superblock, bitmap, dir};

/// Volumes below this size are made for small files: smaller blocks, more inodes.
const SMALL_BYTES: u64 = 512 << 20;
/// The last group is dropped if it would have fewer usable blocks than this.
const LAST_GROUP_MIN: u64 = 50;
/// The smallest group that `mke2fs -g` accepts.
const BLOCKS_PER_GROUP_MIN: u32 = 256;
/// lost+found has at least this many bytes, so that a repair can use it without allocating.
const LOST_FOUND_BYTES: u32 = 16 << 10;
/// The first ordinary inode, which is lost+found.
const FIRST_INO: u32 = 11;
/// Requests collected before they are submitted.
const BATCH: usize = 256;

/// The shape of the new volume. `None`: chosen from the size.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_size: Option<u32>,
    /// Blocks of the volume; `None`: the whole device.
    pub blocks: Option<u64>,
    /// Blocks in a group: a multiple of 8 from 256 to 8 times the block size, at most 65528.
    pub blocks_per_group: Option<u32>,
    /// Inodes on the volume; rounded up so that all groups have the same number.
    pub inodes: Option<u64>,
    /// Bytes of an inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// The share of blocks kept for root, in percent (0 to 50).
    pub reserved_percent: u32,
    /// The volume's name: at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// The seed of the directory hash.
    pub hash_seed: [u8; 16],
    /// The current time, which goes into the superblock and the first inodes.
    pub now: Timestamp,
    /// True if the device is told first that its contents are no longer needed.
    pub discard: bool,
}

impl MkfsOptions {
    /// Returns the default options, with the values that have no default.
    pub fn new(uuid: [u8; 16], hash_seed: [u8; 16], now: Timestamp) -> MkfsOptions {
        MkfsOptions {
            block_size: None,
            blocks: None,
            blocks_per_group: None,
            inodes: None,
            inode_size: 256,
            reserved_percent: 5,
            label: Vec::new(),
            uuid,
            hash_seed,
            now,
            discard: false,
        }
    }
}

/// The reason for which no volume was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MkfsError {
    /// An option has a value that no volume can have.
    #[error("{what} {value} is not possible: {rule}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value of the option.
        value: u64,
        /// The values that are possible.
        rule: String,
    },
    /// The device, or the size asked for, is too small for a volume of this shape.
    #[error("{blocks} blocks of {block_size} bytes are too few for a volume: {why}")]
    TooSmall {
        /// Number of blocks that there are.
        blocks: u64,
        /// The size of a block in bytes.
        block_size: u32,
        /// The part that does not fit.
        why: String,
    },
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The work that the request was part of.
        doing: &'static str,
        /// The error that the device reported.
        source: DiskError,
    },
}

/// Returns the error for an option's illegal value.
fn impossible<T>(what: &'static str, value: impl Into<u64>, rule: impl Into<String>) -> Result<T, MkfsError> {
    Err(MkfsError::Option { what, value: value.into(), rule: rule.into() })
}

/// The shape and the free space of the new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// The geometry of the volume.
    pub geometry: Geometry,
    /// Blocks kept for root.
    pub reserved_blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// The blocks that hold copies of the superblock.
    pub backups: Vec<BlockNo>,
}

/// Makes an empty volume on `disk`. All data on it are lost.
///
/// # Errors
/// If the options do not fit together or with the device, or if a request fails: then there is no
/// volume, neither the old nor the new one.
pub fn mkfs(disk: &dyn Disk, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let (superblock, geometry) = plan(disk.limits().sectors * SECTOR as u64, options)?;
    let mut maker = Maker { disk, superblock, geometry, batch: Vec::new() };
    maker.erase_old(options.discard)?;
    let descriptors = maker.write_groups()?;
    maker.write_first_directories(&descriptors[0], options.now)?;
    maker.write_heads(&descriptors)?;
    Ok(maker.report(&descriptors))
}

/// Decides the shape: everything in the superblock but the free counts.
fn plan(device_bytes: u64, options: &MkfsOptions) -> Result<(Superblock, Geometry), MkfsError> {
    let block_size = block_size(device_bytes, options)?;
    let device_blocks = device_bytes / u64::from(block_size);
    let asked = options.blocks.unwrap_or(device_blocks);
    if asked > device_blocks {
        return impossible("size in blocks", asked, format!("the device has {device_blocks}"));
    }
    let mut sb = Superblock::empty();
    describe(&mut sb, block_size, options)?;
    // Block numbers have 32 bits; a larger device is used up to there.
    set_blocks(&mut sb, asked.min(u64::from(u32::MAX)), options);
    let mut geometry = shape(&mut sb, device_bytes, options)?;
    if !last_group_is_useful(&geometry) && geometry.groups > 1 {
        let blocks = geometry.group_start(GroupNo(geometry.groups - 1)).0;
        set_blocks(&mut sb, blocks, options);
        geometry = shape(&mut sb, device_bytes, options)?;
    }
    let last = GroupNo(geometry.groups - 1);
    let needed = if geometry.groups == 1 { 1 + u64::from(lost_found_blocks(block_size)) } else { LAST_GROUP_MIN };
    if usable_blocks(&geometry, last) < needed || usable_blocks(&geometry, GroupNo(0)) < needed {
        let why = "no room is left beside the metadata".to_owned();
        return Err(MkfsError::TooSmall { blocks: asked, block_size, why });
    }
    Ok((sb, geometry))
}

fn block_size(device_bytes: u64, options: &MkfsOptions) -> Result<u32, MkfsError> {
    let by_size = if device_bytes < SMALL_BYTES { 1024 } else { 4096 };
    let size = options.block_size.unwrap_or(by_size);
    if !size.is_power_of_two() || !(1024..=65536).contains(&size) {
        return impossible("block size", size, "blocks have 1024 to 65536 bytes, a power of two");
    }
    Ok(size)
}

/// Fills in the fields that do not depend on the number of groups.
fn describe(sb: &mut Superblock, block_size: u32, options: &MkfsOptions) -> Result<(), MkfsError> {
    let inode_size = options.inode_size;
    if !inode_size.is_power_of_two() || !(128..=block_size).contains(&inode_size) {
        return impossible("inode size", inode_size, format!("a power of two from 128 to {block_size}"));
    }
    let per_group_max = (8 * block_size).min(BLOCKS_PER_GROUP_MAX);
    let blocks_per_group = options.blocks_per_group.unwrap_or(per_group_max);
    if !blocks_per_group.is_multiple_of(8) || !(BLOCKS_PER_GROUP_MIN..=per_group_max).contains(&blocks_per_group) {
        let rule = format!("a multiple of 8 from {BLOCKS_PER_GROUP_MIN} to {per_group_max}");
        return impossible("blocks per group", blocks_per_group, rule);
    }
    if options.reserved_percent > 50 {
        return impossible("reserved percentage", options.reserved_percent, "at most 50");
    }
    if options.label.len() > 16 {
        return impossible("label length", options.label.len() as u64, "at most 16 bytes");
    }
    let log = block_size.trailing_zeros() - 10;
    let now = options.now.secs.clamp(0, u32::MAX.into()) as u32;
    sb.set_rev_level(1);
    sb.set_log_block_size(log);
    sb.set_log_cluster_size(log);
    sb.set_first_data_block(u32::from(block_size == 1024));
    sb.set_blocks_per_group(blocks_per_group);
    sb.set_clusters_per_group(blocks_per_group);
    sb.set_first_ino(FIRST_INO);
    // At most 65536; block sizes of 64 KiB cannot have inodes as large.
    let Ok(stored_inode_size) = u16::try_from(inode_size) else {
        return impossible("inode size", inode_size, "at most 32768");
    };
    sb.set_inode_size(stored_inode_size);
    let extra = if inode_size > 128 { crate::format::inode::EXTRA_BYTES } else { 0 };
    sb.set_min_extra_isize(extra);
    sb.set_want_extra_isize(extra);
    sb.set_compat(Compat::EXT_ATTR);
    sb.set_incompat(Incompat::FILETYPE);
    sb.set_ro_compat(RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE);
    sb.set_state(State::VALID);
    sb.set_errors(1);
    sb.set_max_mnt_count(u16::MAX);
    sb.set_default_mount_opts(0xC);
    sb.set_def_hash_version(1);
    sb.set_flags(1);
    sb.set_uuid(options.uuid);
    sb.set_hash_seed(options.hash_seed);
    sb.set_label(&options.label);
    sb.set_mkfs_time(now);
    sb.set_lastcheck(now);
    sb.set_wtime(now);
    Ok(())
}

fn set_blocks(sb: &mut Superblock, blocks: u64, options: &MkfsOptions) {
    sb.set_blocks_count_lo(blocks as u32);
    sb.set_reserved_blocks_lo((blocks * u64::from(options.reserved_percent) / 100) as u32);
}

/// Chooses the number of inodes, and checks the result by the format's own rules.
fn shape(sb: &mut Superblock, device_bytes: u64, options: &MkfsOptions) -> Result<Geometry, MkfsError> {
    let block_size = 1024u32 << sb.log_block_size();
    let blocks = sb.blocks_count();
    let too_small = |why: String| MkfsError::TooSmall { blocks, block_size, why };
    let data_blocks = blocks.saturating_sub(sb.first_data_block().into());
    let groups = data_blocks.div_ceil(sb.blocks_per_group().into());
    if groups == 0 {
        return Err(too_small("there is not even a group".to_owned()));
    }
    let per_group = inodes_per_group(sb, groups, block_size, options)?;
    sb.set_inodes_per_group(per_group);
    let Ok(inodes) = u32::try_from(u64::from(per_group) * groups) else {
        return impossible("number of inodes", u64::from(per_group) * groups, "at most 2^32 - 1");
    };
    sb.set_inodes_count(inodes);
    Geometry::of(sb, device_bytes).map_err(|damage| too_small(damage.problem))
}

fn inodes_per_group(sb: &Superblock, groups: u64, block_size: u32, options: &MkfsOptions) -> Result<u32, MkfsError> {
    let bytes = sb.blocks_count() * u64::from(block_size);
    let ratio = if bytes < SMALL_BYTES { 4096 } else { 16384 }.max(u64::from(block_size));
    let total = options.inodes.unwrap_or(bytes / ratio);
    let per_block = block_size / u32::from(sb.inode_size());
    // Both are powers of two: a multiple of the larger is one of the other.
    let unit = u64::from(per_block.max(8));
    // Group 0 holds all reserved inodes and lost+found.
    let per_group = total.div_ceil(groups).max(u64::from(FIRST_INO)).next_multiple_of(unit);
    let most = u64::from((8 * block_size).min(65536 - per_block)) / unit * unit;
    if per_group > most && options.inodes.is_some() {
        return impossible("number of inodes", total, format!("{groups} groups hold at most {}", most * groups));
    }
    Ok(per_group.min(most) as u32)
}

fn usable_blocks(geo: &Geometry, group: GroupNo) -> u64 {
    let overhead = geo.head_blocks(group) + 2 + geo.inode_table_blocks;
    u64::from(geo.group_blocks(group)).saturating_sub(overhead.into())
}

fn last_group_is_useful(geo: &Geometry) -> bool {
    usable_blocks(geo, GroupNo(geo.groups - 1)) >= LAST_GROUP_MIN
}

fn lost_found_blocks(block_size: u32) -> u32 {
    (LOST_FOUND_BYTES / block_size).clamp(2, 12)
}

/// Carries the plan out.
struct Maker<'a> {
    disk: &'a dyn Disk,
    superblock: Superblock,
    geometry: Geometry,
    batch: Vec<Request>,
}

impl Maker<'_> {
    fn submit(&mut self, doing: &'static str) -> Result<(), MkfsError> {
        let done = self.disk.run(std::mem::take(&mut self.batch));
        for one in done {
            one.result.map_err(|source| MkfsError::Disk { doing, source })?;
        }
        Ok(())
    }

    fn flush(&self, doing: &'static str) -> Result<(), MkfsError> {
        self.disk.flush().map_err(|source| MkfsError::Disk { doing, source })
    }

    fn queue(&mut self, op: Op, block: BlockNo, kind: Kind, doing: &'static str) -> Result<(), MkfsError> {
        let at = Lba::from_byte(self.geometry.byte_of(block));
        self.batch.push(Request { op, at, tag: Tag::volume(kind) });
        if self.batch.len() >= BATCH {
            return self.submit(doing);
        }
        Ok(())
    }

    fn write(&mut self, data: Vec<Page>, block: BlockNo, kind: Kind) -> Result<(), MkfsError> {
        self.queue(Op::Write { data, fua: false }, block, kind, "write the new volume's metadata")
    }

    /// Makes sure that no reader finds the old volume, nor a half-made new one.
    fn erase_old(&mut self, discard: bool) -> Result<(), MkfsError> {
        let doing = "erase the old volume";
        if discard && self.disk.limits().discard {
            let sectors = self.disk.limits().sectors;
            self.batch.push(Request { op: Op::Discard { sectors }, at: Lba(0), tag: Tag::volume(Kind::Superblock) });
            self.submit(doing)?;
        }
        let sectors = 2 * SUPERBLOCK_OFFSET / SECTOR as u64;
        self.queue(Op::WriteZeroes { sectors }, BlockNo(0), Kind::Superblock, doing)?;
        self.submit(doing)?;
        self.flush(doing)
    }

    /// Writes the bitmaps and inode tables of all groups.
    fn write_groups(&mut self) -> Result<Vec<Descriptor>, MkfsError> {
        let mut descriptors = Vec::new();
        for group in self.geometry.all_groups() {
            let descriptor = self.write_group(group)?;
            descriptors.push(descriptor);
        }
        Ok(descriptors)
    }

    fn write_group(&mut self, group: GroupNo) -> Result<Descriptor, MkfsError> {
        let geo = &self.geometry;
        let first = BlockNo(geo.group_start(group).0 + u64::from(geo.head_blocks(group)));
        let (table, blocks) = (geo.inode_table_blocks, geo.group_blocks(group));
        let mut used_blocks = geo.head_blocks(group) + 2 + table;
        let mut used_inodes = 0;
        let mut used_dirs = 0;
        if group.0 == 0 {
            used_blocks += 1 + lost_found_blocks(geo.block_size);
            used_inodes = FIRST_INO;
            used_dirs = 2;
        }
        let block_bitmap = bitmap_page(geo.block_bytes(), used_blocks, blocks);
        let inode_bitmap = bitmap_page(geo.block_bytes(), used_inodes, geo.inodes_per_group);
        let descriptor = Descriptor {
            block_bitmap: first,
            inode_bitmap: BlockNo(first.0 + 1),
            inode_table: BlockNo(first.0 + 2),
            free_blocks: blocks - used_blocks,
            free_inodes: geo.inodes_per_group - used_inodes,
            used_dirs,
            ..Descriptor::default()
        };
        let sectors = u64::from(table) * u64::from(geo.sectors_per_block());
        self.write(vec![block_bitmap, inode_bitmap], first, Kind::Bitmap)?;
        self.queue(Op::WriteZeroes { sectors }, descriptor.inode_table, Kind::Inodes, "zero the inode tables")?;
        Ok(descriptor)
    }

    /// Writes the root directory and lost+found, right behind the inode table of group 0.
    fn write_first_directories(&mut self, group0: &Descriptor, now: Timestamp) -> Result<(), MkfsError> {
        // The inode tables have been zeroed before their first block is written.
        self.submit("zero the inode tables")?;
        let geo = self.geometry.clone();
        let form = dir::Form::of(&geo);
        let lost_found = InodeNo(FIRST_INO);
        let root_block = group0.inode_table.0 + u64::from(geo.inode_table_blocks);
        let mut first = Buf::zeroed(geo.block_bytes());
        dir::format_first(&mut first, form, InodeNo::ROOT, InodeNo::ROOT);
        dir::insert(&mut first, form, b"lost+found", lost_found, moafs_vfs::types::FileKind::Directory)
            .expect("an empty directory block has room for a short name");
        let mut pages = vec![first.freeze()];
        for lbn in 0..lost_found_blocks(geo.block_size) {
            let mut block = Buf::zeroed(geo.block_bytes());
            match lbn {
                0 => dir::format_first(&mut block, form, lost_found, InodeNo::ROOT),
                _ => dir::format_empty(&mut block, form),
            }
            pages.push(block.freeze());
        }
        self.write(pages, BlockNo(root_block), Kind::Directory)?;
        let root = first_directory(&geo, 0o755, 3, root_block, 1, now);
        let lost = first_directory(&geo, 0o700, 2, root_block + 1, lost_found_blocks(geo.block_size), now);
        self.write_inodes(group0, &[(InodeNo::ROOT, root), (lost_found, lost)])
    }

    /// Writes inodes of group 0 into its zeroed inode table.
    fn write_inodes(&mut self, group0: &Descriptor, inodes: &[(InodeNo, Inode)]) -> Result<(), MkfsError> {
        let geo = self.geometry.clone();
        let located = inodes.iter().map(|(ino, inode)| (geo.locate_inode(*ino).expect("an inode of group 0"), inode));
        let mut located: Vec<_> = located.collect();
        located.sort_by_key(|(at, _)| at.table_block);
        for same_block in located.chunk_by(|a, b| a.0.table_block == b.0.table_block) {
            let mut block = Buf::zeroed(geo.block_bytes());
            for (at, inode) in same_block {
                inode.encode_into(&mut block[at.offset..], &geo);
            }
            let at = BlockNo(group0.inode_table.0 + u64::from(same_block[0].0.table_block));
            self.write(vec![block.freeze()], at, Kind::Inodes)?;
        }
        Ok(())
    }

    /// Writes superblock copies and descriptor tables; the primary superblock last of all.
    fn write_heads(&mut self, descriptors: &[Descriptor]) -> Result<(), MkfsError> {
        let geo = self.geometry.clone();
        self.superblock.set_free_blocks(descriptors.iter().map(|d| u64::from(d.free_blocks)).sum());
        self.superblock.set_free_inodes(descriptors.iter().map(|d| d.free_inodes).sum());
        let table = descriptor_pages(&geo, descriptors);
        for group in geo.all_groups().filter(|group| geo.has_superblock(*group)) {
            let start = geo.group_start(group);
            if group.0 != 0 {
                let copy = self.superblock_page(group, 0);
                self.write(vec![copy], start, Kind::Superblock)?;
            }
            self.write(table.clone(), BlockNo(start.0 + 1), Kind::Descriptors)?;
        }
        self.submit("write the group descriptors")?;
        self.flush("make the new volume's metadata durable")?;
        let offset = if geo.block_size == 1024 { 0 } else { SUPERBLOCK_OFFSET as usize };
        let primary = self.superblock_page(GroupNo(0), offset);
        self.write(vec![primary], geo.group_start(GroupNo(0)), Kind::Superblock)?;
        self.submit("write the superblock")?;
        self.flush("make the superblock durable")
    }

    /// Returns the block that holds the superblock of a group, `offset` bytes from its start.
    fn superblock_page(&self, group: GroupNo, offset: usize) -> Page {
        let mut copy = self.superblock.clone();
        // The format has 16 bits: numbers of later groups wrap, as mke2fs's do.
        copy.set_block_group_nr(group.0 as u16);
        let mut block = Buf::zeroed(self.geometry.block_bytes());
        block[offset..offset + copy.as_bytes().len()].copy_from_slice(copy.as_bytes());
        block.freeze()
    }

    fn report(self, descriptors: &[Descriptor]) -> MkfsReport {
        let geo = self.geometry;
        let copies = geo.all_groups().skip(1).filter(|group| geo.has_superblock(*group));
        MkfsReport {
            backups: copies.map(|group| geo.group_start(group)).collect(),
            reserved_blocks: self.superblock.reserved_blocks(),
            free_blocks: self.superblock.free_blocks(),
            free_inodes: descriptors.iter().map(|d| d.free_inodes).sum(),
            geometry: geo,
        }
    }
}

/// Returns a bitmap of `bits` bits, the first `used` of which are set; the padding behind them is
/// also set.
fn bitmap_page(block_bytes: usize, used: u32, bits: u32) -> Page {
    let mut map = Buf::zeroed(block_bytes);
    bitmap::set_range(&mut map, 0..used);
    bitmap::pad(&mut map, bits);
    map.freeze()
}

fn descriptor_pages(geo: &Geometry, descriptors: &[Descriptor]) -> Vec<Page> {
    let per_block = (geo.block_size / geo.desc_size) as usize;
    let page = |part: &[Descriptor]| {
        let mut block = Buf::zeroed(geo.block_bytes());
        for (slot, descriptor) in block.chunks_exact_mut(geo.desc_size as usize).zip(part) {
            descriptor.encode_into(slot, geo);
        }
        block.freeze()
    };
    descriptors.chunks(per_block).map(page).collect()
}

fn first_directory(geo: &Geometry, mode: u16, links: u16, block: u64, blocks: u32, now: Timestamp) -> Inode {
    let mut pointers = [0; crate::format::inode::POINTERS];
    for (pointer, block) in pointers.iter_mut().zip(block..block + u64::from(blocks)) {
        *pointer = block as u32;
    }
    Inode {
        mode: 0o040_000 | mode,
        links,
        size: u64::from(blocks) * u64::from(geo.block_size),
        blocks: u64::from(blocks) * u64::from(geo.sectors_per_block()),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: Some(now),
        block: pointers,
        extra_isize: if geo.inode_size > 128 { crate::format::inode::EXTRA_BYTES } else { 0 },
        ..Inode::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge;
    use moafs_disk::mem::MemDisk;

    const UUID: [u8; 16] =
        [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

    fn options() -> MkfsOptions {
        MkfsOptions::new(UUID, UUID, Timestamp::new(1_700_000_000, 0))
    }

    fn disk_of(bytes: u64) -> MemDisk {
        MemDisk::new(bytes / SECTOR as u64)
    }

    #[test]
    fn every_block_size_and_group_size_satisfies_e2fsck() {
        for log in 0..7 {
            let block_size = 1024u32 << log;
            let most = (8 * block_size).min(BLOCKS_PER_GROUP_MAX);
            for blocks_per_group in [most, (most / 3) & !7, 512] {
                let bytes = (2 * u64::from(blocks_per_group) + 300) * u64::from(block_size) + 512;
                if bytes > 2 << 30 {
                    continue;
                }
                let disk = disk_of(bytes);
                let wish =
                    MkfsOptions { block_size: Some(block_size), blocks_per_group: Some(blocks_per_group), ..options() };
                let report = mkfs(&disk, &wish).unwrap_or_else(|e| panic!("{block_size}/{blocks_per_group}: {e}"));
                assert!(report.free_blocks > 0);
                judge::assert_clean(&disk, &format!("{block_size} {blocks_per_group}"));
            }
        }
    }

    #[test]
    fn inode_sizes_and_counts_satisfy_e2fsck() {
        for inode_size in [128, 256, 512, 1024] {
            for inodes in [12, 1000, 20_000] {
                let disk = disk_of(40 << 20);
                let wish =
                    MkfsOptions { inode_size, inodes: Some(inodes), label: b"sixteen bytes ok".to_vec(), ..options() };
                let report = mkfs(&disk, &wish).unwrap();
                assert!(u64::from(report.geometry.inodes) >= inodes);
                judge::assert_clean(&disk, &format!("{inode_size} {inodes}"));
            }
        }
    }

    #[test]
    fn a_useless_last_group_is_dropped() {
        let disk = disk_of((1 + 8192 + 100) << 10);
        let report = mkfs(&disk, &MkfsOptions { block_size: Some(1024), ..options() }).unwrap();
        assert_eq!((report.geometry.groups, report.geometry.blocks), (1, 8193));
        judge::assert_clean(&disk, "short last group");
    }

    #[test]
    fn a_terabyte_costs_little_memory() {
        let disk = disk_of(1 << 40);
        let report = mkfs(&disk, &options()).unwrap();
        assert_eq!(report.geometry.groups, 8192);
        assert_eq!(report.geometry.block_size, 4096);
    }

    #[test]
    fn impossible_wishes_are_named() {
        let disk = disk_of(8 << 20);
        let cases = [
            (MkfsOptions { block_size: Some(3000), ..options() }, "block size"),
            (MkfsOptions { inode_size: 100, ..options() }, "inode size"),
            (MkfsOptions { blocks_per_group: Some(100), ..options() }, "blocks per group"),
            (MkfsOptions { inodes: Some(1 << 30), ..options() }, "number of inodes"),
            (MkfsOptions { blocks: Some(1 << 30), ..options() }, "size in blocks"),
            (MkfsOptions { reserved_percent: 51, ..options() }, "reserved percentage"),
            (MkfsOptions { blocks: Some(20), ..options() }, "too few"),
            (MkfsOptions { blocks: Some(0), ..options() }, "too few"),
            (MkfsOptions { label: vec![b'x'; 17], ..options() }, "label"),
        ];
        for (wish, word) in cases {
            let error = mkfs(&disk, &wish).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        for bytes in [0, 512, 1024, 4096, 16_384] {
            mkfs(&disk_of(bytes), &options()).unwrap_err();
        }
    }

    /// The result of `mke2fs` with the same options: superblock fields and groups.
    #[test]
    fn values_agree_with_mke2fs() {
        let cases = [
            (64u64 << 20, MkfsOptions { block_size: Some(1024), inode_size: 128, inodes: Some(4096), ..options() }),
            (300 << 20, MkfsOptions { block_size: Some(4096), blocks_per_group: Some(8192), ..options() }),
            (1 << 30, MkfsOptions { block_size: Some(16384), blocks_per_group: Some(4096), ..options() }),
        ];
        // Blocks, reserved, free blocks, free inodes, inodes per group; then some groups' first
        // bitmap, free blocks and inodes.
        let golden = [
            ((65536, 3276, 64984, 4085, 512), vec![(0, 3, 8111, 501), (2, 16385, 8126, 512), (7, 57347, 8123, 512)]),
            ((76800, 3840, 71963, 76789, 7680), vec![(0, 2, 7703, 7669), (9, 73730, 2588, 7680)]),
            ((65536, 3276, 64465, 65525, 4096), vec![(0, 2, 4025, 4085), (1, 4098, 4028, 4096)]),
        ];
        for ((bytes, wish), (totals, groups)) in cases.into_iter().zip(golden) {
            let disk = disk_of(bytes);
            let report = mkfs(&disk, &wish).unwrap();
            let geo = &report.geometry;
            let found =
                (geo.blocks, report.reserved_blocks, report.free_blocks, report.free_inodes, geo.inodes_per_group);
            assert_eq!(found, totals);
            for (group, block_bitmap, free_blocks, free_inodes) in groups {
                let (block, offset) = geo.locate_descriptor(GroupNo(group));
                let bytes =
                    disk.read(Lba::from_byte(geo.byte_of(block)), geo.block_bytes(), Tag::volume(Kind::Descriptors));
                let descriptor = Descriptor::parse(&bytes.unwrap()[offset..], geo);
                let found = (descriptor.block_bitmap.0, descriptor.free_blocks, descriptor.free_inodes);
                assert_eq!(found, (block_bitmap, free_blocks, free_inodes), "group {group}");
            }
        }
    }
}
