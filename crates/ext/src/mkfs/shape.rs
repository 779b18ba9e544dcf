//! The shape of a new volume: everything in its superblock but what depends on the places of things.

use super::error::{MkfsError, impossible};
use super::features::FeatureSet;
use super::options::MkfsOptions;
use super::usage::Usage;
use crate::format::superblock::{BLOCKS_PER_GROUP_MAX, Compat, Incompat, RoCompat, State};
use crate::format::{Checksums, Geometry, GroupNo, Superblock};

/// The last group is dropped if it would have fewer usable blocks than this.
const LAST_GROUP_MIN: u64 = 50;
/// The smallest group that `mke2fs -g` accepts.
const BLOCKS_PER_GROUP_MIN: u32 = 256;
/// lost+found has at least this many bytes, so that a repair can use it without allocating.
const LOST_FOUND_BYTES: u32 = 16 << 10;
/// The first ordinary inode, which is lost+found.
pub(super) const FIRST_INO: u32 = 11;
/// The orphan file's inode.
pub(super) const ORPHAN_FILE_INO: u32 = 12;
/// The volume can grow to this many times its size before the reserve of the descriptor table is used up.
const GROWTH: u64 = 1024;
/// The fewest and the most blocks of a journal (mke2fs(8), `-J size`).
const JOURNAL_BLOCKS_MIN: u64 = 1024;
const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;
/// `s_checksum_type`: CRC-32C.
const CRC32C: u8 = 1;

/// The shape of a new volume.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// The superblock without free counts, places and checksum.
    pub(super) superblock: Superblock,
    /// Its meaning.
    pub(super) geometry: Geometry,
    /// Blocks of the journal; 0 without one.
    pub(super) journal_blocks: u32,
}

/// Returns the blocks of a volume without 64-bit block numbers: the size that is one block beyond them loses it.
fn narrow_blocks(asked: u64, block_size: u32) -> Result<u64, MkfsError> {
    const MOST: u64 = u32::MAX as u64;
    if asked <= MOST + 1 { Ok(asked.min(MOST)) } else { Err(MkfsError::TooLarge { blocks: asked, block_size }) }
}

/// Decides the shape of a volume on a device of `device_bytes`.
pub(super) fn decide(device_bytes: u64, options: &MkfsOptions) -> Result<Shape, MkfsError> {
    options.features.check()?;
    let usage = options.usage.unwrap_or_else(|| Usage::of_size(bytes_asked(device_bytes, options)));
    let block_size = block_size(&usage, options)?;
    let device_blocks = device_bytes / u64::from(block_size);
    let asked = options.blocks.unwrap_or(device_blocks);
    if asked > device_blocks {
        return impossible("size in blocks", asked, format!("the device has {device_blocks}"));
    }
    let mut sb = Superblock::empty();
    describe(&mut sb, block_size, options)?;
    let wide = options.features.incompat.contains(Incompat::BIT64);
    let blocks = if wide { asked } else { narrow_blocks(asked, block_size)? };
    if blocks > u64::from(u32::MAX) {
        // Its map has block numbers of 32 bits.
        sb.set_compat(sb.compat() - Compat::RESIZE_INODE);
    }
    let ratio = options.bytes_per_inode.unwrap_or(usage.bytes_per_inode).max(block_size);
    let inodes = match options.inodes {
        Some(count) => Inodes::AtLeast(count),
        None => Inodes::About(blocks * u64::from(block_size) / u64::from(ratio)),
    };
    let fit = |sb: &mut Superblock, blocks: u64| {
        set_blocks(sb, blocks, options);
        geometry(sb, device_bytes, inodes)
    };
    let mut geo = fit(&mut sb, blocks)?;
    if usable_blocks(&geo, GroupNo(geo.groups - 1)) < LAST_GROUP_MIN && geo.groups > 1 {
        let blocks = geo.group_start(GroupNo(geo.groups - 1)).0;
        geo = fit(&mut sb, blocks)?;
    }
    let last = GroupNo(geo.groups - 1);
    let needed = if geo.groups == 1 { 1 + u64::from(lost_found_blocks(block_size)) } else { LAST_GROUP_MIN };
    if usable_blocks(&geo, last) < needed || usable_blocks(&geo, GroupNo(0)) < needed {
        let why = "no room is left beside the metadata".to_owned();
        return Err(MkfsError::TooSmall { blocks: asked, block_size, why });
    }
    let journal_blocks = journal_blocks(&mut sb, &geo, options)?;
    Ok(Shape { superblock: sb, geometry: geo, journal_blocks })
}

fn bytes_asked(device_bytes: u64, options: &MkfsOptions) -> u64 {
    match (options.blocks, options.block_size) {
        (Some(blocks), Some(size)) => blocks.saturating_mul(size.into()),
        _ => device_bytes,
    }
}

fn block_size(usage: &Usage, options: &MkfsOptions) -> Result<u32, MkfsError> {
    let size = options.block_size.unwrap_or(usage.block_size);
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
    if !(0.0..=50.0).contains(&options.reserved_percent) {
        return impossible("reserved percentage", options.reserved_percent.abs() as u64, "0 to 50");
    }
    if options.label.len() > 16 {
        return impossible("label length", options.label.len() as u64, "at most 16 bytes");
    }
    let log = block_size.trailing_zeros() - 10;
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
    sb.set_state(State::VALID);
    sb.set_errors(1);
    sb.set_max_mnt_count(u16::MAX);
    sb.set_default_mount_opts(0xC);
    sb.set_def_hash_version(1);
    sb.set_flags(1);
    sb.set_uuid(options.uuid);
    sb.set_hash_seed(options.hash_seed);
    sb.set_label(&options.label);
    sb.set_raid_stride(options.stride);
    sb.set_raid_stripe_width(options.stripe_width);
    let now = options.now.secs.clamp(0, u32::MAX.into()) as u32;
    sb.set_mkfs_time(now);
    sb.set_lastcheck(now);
    sb.set_wtime(now);
    describe_features(sb, &options.features, options.groups_per_flex)
}

/// Sets the features, and the fields that only some of them have.
fn describe_features(sb: &mut Superblock, features: &FeatureSet, groups_per_flex: u32) -> Result<(), MkfsError> {
    sb.set_compat(features.compat);
    sb.set_incompat(features.incompat);
    sb.set_ro_compat(features.ro_compat);
    if features.incompat.contains(Incompat::BIT64) {
        sb.set_desc_size(64);
    }
    if features.incompat.contains(Incompat::FLEX_BG) {
        if !groups_per_flex.is_power_of_two() {
            return impossible("number of groups in a flex group", groups_per_flex, "a power of two");
        }
        sb.set_log_groups_per_flex(groups_per_flex.trailing_zeros() as u8);
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        sb.set_checksum_type(CRC32C);
    }
    if features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
        // The sum of the UUID, as without the feature; only from now on it stays when the UUID changes.
        let of_uuid = FeatureSet { incompat: features.incompat - Incompat::METADATA_CSUM_SEED, ..*features };
        sb.set_incompat(of_uuid.incompat);
        let Checksums::All { seed } = sb.checksums() else { unreachable!("the set was checked") };
        sb.set_incompat(features.incompat);
        sb.set_checksum_seed(seed);
    }
    Ok(())
}

/// Sets the number of blocks, and what follows from it: root's share, the reserve of the descriptor table, the groups
/// with copies.
fn set_blocks(sb: &mut Superblock, blocks: u64, options: &MkfsOptions) {
    sb.set_blocks_count(blocks);
    sb.set_reserved_blocks((blocks as f64 * options.reserved_percent / 100.0) as u64);
    let first = u64::from(sb.first_data_block());
    let groups = blocks.saturating_sub(first).div_ceil(sb.blocks_per_group().into());
    if sb.compat().contains(Compat::SPARSE_SUPER2) {
        let last = groups.saturating_sub(1) as u32;
        let copies = match options.copies {
            0 => [0, 0],
            1 => [last.min(1), 0],
            _ => [last.min(1), if last > 1 { last } else { 0 }],
        };
        sb.set_backup_groups(copies);
    }
    if sb.compat().contains(Compat::RESIZE_INODE) {
        let wide = sb.incompat().contains(Incompat::BIT64);
        let most = if wide { blocks * GROWTH } else { (blocks * GROWTH).min(u64::from(u32::MAX)) };
        let block_size = 1024u64 << sb.log_block_size();
        let desc_size = if wide { 64 } else { 32 };
        let blocks_of = |groups: u64| (groups * desc_size).div_ceil(block_size);
        let grown = blocks_of(most.saturating_sub(first).div_ceil(sb.blocks_per_group().into()));
        // One block lists them all.
        sb.set_reserved_gdt_blocks(grown.saturating_sub(blocks_of(groups)).min(block_size / 4) as u16);
    }
}

/// The number of inodes that is wanted.
#[derive(Debug, Clone, Copy)]
enum Inodes {
    /// The user's number: never fewer.
    AtLeast(u64),
    /// The number that the size suggests.
    About(u64),
}

/// Chooses the number of inodes, and checks the result by the format's own rules.
fn geometry(sb: &mut Superblock, device_bytes: u64, inodes: Inodes) -> Result<Geometry, MkfsError> {
    let block_size = 1024u32 << sb.log_block_size();
    let blocks = sb.blocks_count();
    let too_small = |why: String| MkfsError::TooSmall { blocks, block_size, why };
    let data_blocks = blocks.saturating_sub(sb.first_data_block().into());
    let groups = data_blocks.div_ceil(sb.blocks_per_group().into());
    if groups == 0 {
        return Err(too_small("there is not even a group".to_owned()));
    }
    let per_group = inodes_per_group(sb, groups, block_size, inodes)?;
    sb.set_inodes_per_group(per_group);
    let Ok(inodes) = u32::try_from(u64::from(per_group) * groups) else {
        return impossible("number of inodes", u64::from(per_group) * groups, "at most 2^32 - 1");
    };
    sb.set_inodes_count(inodes);
    Geometry::of(sb, device_bytes).map_err(|damage| too_small(damage.problem))
}

/// Returns the number of inodes of a group: whole blocks of its table, and whole bytes of its bitmap.
fn inodes_per_group(sb: &Superblock, groups: u64, block_size: u32, inodes: Inodes) -> Result<u32, MkfsError> {
    let per_block = block_size / u32::from(sb.inode_size());
    // Both are powers of two: a multiple of the larger is one of the other.
    let unit = u64::from(per_block.max(8));
    let wanted = match inodes {
        Inodes::AtLeast(total) => total.div_ceil(groups),
        Inodes::About(total) => total.div_ceil(groups).next_multiple_of(per_block.into()) / 8 * 8,
    };
    // Group 0 holds all reserved inodes and lost+found, and the orphan file.
    let first = if sb.compat().contains(Compat::ORPHAN_FILE) { ORPHAN_FILE_INO } else { FIRST_INO };
    let per_group = wanted.max(first.into()).next_multiple_of(unit);
    let most = u64::from((8 * block_size).min(65536 - per_block)) / unit * unit;
    match inodes {
        Inodes::AtLeast(total) if per_group > most => {
            impossible("number of inodes", total, format!("{groups} groups hold at most {}", most * groups))
        }
        _ => Ok(per_group.min(most) as u32),
    }
}

/// Returns the blocks of a group that are not metadata, if each group has its own.
fn usable_blocks(geo: &Geometry, group: GroupNo) -> u64 {
    let overhead = geo.head_blocks(group) + 2 + geo.inode_table_blocks;
    u64::from(geo.group_blocks(group)).saturating_sub(overhead.into())
}

/// Returns the number of blocks of lost+found.
pub(super) fn lost_found_blocks(block_size: u32) -> u32 {
    (LOST_FOUND_BYTES / block_size).clamp(2, 12)
}

/// Returns the number of blocks of the journal; on a volume that is too small for one the feature is taken away.
fn journal_blocks(sb: &mut Superblock, geo: &Geometry, options: &MkfsOptions) -> Result<u32, MkfsError> {
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return Ok(0);
    }
    let blocks = sized_journal(geo, options.journal_bytes)?;
    if blocks == 0 {
        sb.set_compat(sb.compat() - Compat::HAS_JOURNAL - Compat::ORPHAN_FILE);
    }
    Ok(blocks)
}

/// Returns the number of blocks of a journal of so many bytes, or of the size that fits the volume: 0 if the volume is
/// too small for one.
pub(crate) fn sized_journal(geo: &Geometry, bytes: Option<u64>) -> Result<u32, MkfsError> {
    let block_size = u64::from(geo.block_size);
    let blocks = bytes.map_or_else(|| default_journal_blocks(geo.blocks), |bytes| bytes / block_size);
    if bytes.is_none() && blocks == 0 {
        return Ok(0);
    }
    if !(JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&blocks) {
        let rule = format!("{JOURNAL_BLOCKS_MIN} to {JOURNAL_BLOCKS_MAX} blocks of {block_size} bytes");
        return impossible("journal size in blocks", blocks, rule);
    }
    if blocks > geo.blocks / 2 {
        return impossible("journal size in blocks", blocks, format!("at most half of the {} blocks", geo.blocks));
    }
    Ok(blocks as u32)
}

fn default_journal_blocks(volume_blocks: u64) -> u64 {
    // Volumes below so many blocks, and the blocks of their journal.
    const SIZES: [(u64, u64); 8] = [
        (2048, 0),
        (32_768, 1024),
        (262_144, 4096),
        (524_288, 8192),
        (4_194_304, 16_384),
        (8_388_608, 32_768),
        (16_777_216, 65_536),
        (33_554_432, 131_072),
    ];
    SIZES.iter().find(|(below, _)| volume_blocks < *below).map_or(262_144, |(_, journal)| *journal)
}

/// Returns the number of blocks of the orphan file.
pub(super) fn orphan_file_blocks(volume_blocks: u64) -> u32 {
    (volume_blocks / 4096).clamp(32, 512) as u32
}
