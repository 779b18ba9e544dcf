//! The superblock: features, geometry, state, and the mark of the last writer.
//!
//! [`Superblock`] keeps all 1024 bytes and changes only the fields it is asked to; [`Geometry`] is
//! the checked meaning that all other code calculates with. [`Superblock::support`] decides what
//! the features allow.

use std::ops::Range;

use bitflags::bitflags;

use super::checksum::Crc32c;
use super::error::Reason;
use super::features::{self, FeatureSet};
pub use super::features::{Compat, Incompat, RoCompat};
use super::{
    BlockNo, Checksums, Damage, GroupNo, InodeNo, Place, Sealed, Structure, Unsupported, join32, put_u16, put_u32,
    u16_at, u32_at,
};

/// Bytes in a superblock.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// Bytes of the longest label.
pub const LABEL_BYTES: usize = 16;
/// The byte at which the primary superblock starts, for every block size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// The value of `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// The most blocks a group can have: its 16-bit free count must hold them, and bitmaps are bytes.
pub const BLOCKS_PER_GROUP_MAX: u32 = 65528;
/// The largest `s_log_cluster_size`: clusters of 512 MiB.
const LOG_CLUSTER_SIZE_MAX: u32 = 19;
/// The smallest and the largest legal block size.
pub const BLOCK_SIZES: Range<u32> = 1024..65537;

/// `s_checksum_type` of CRC-32C, the only one that exists.
const CHECKSUM_TYPE_CRC32C: u8 = 1;

const PLACE: Place = Place { structure: Structure::Superblock, block: None };

bitflags! {
    /// The state of the volume (`s_state`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct State: u16 {
        /// Unmounted in good order.
        const VALID = 1;
        /// A driver or a checker saw an inconsistency.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHANS = 4;
        const _ = !0;
    }
}

/// The use of a volume that its features allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Reading and writing are allowed.
    ReadWrite,
    /// Reading only, with the reasons; no reason if the caller does not want to write.
    ReadOnly(Vec<Reason>),
    /// Neither reading nor writing.
    Refuse(Unsupported),
}

/// Features that no driver for ext2 or ext3 knows; they make the volume ext4.
const INCOMPAT_OF_EXT4: Incompat = Incompat::EXTENT
    .union(Incompat::BIT64)
    .union(Incompat::EA_INODE)
    .union(Incompat::METADATA_CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const RO_COMPAT_OF_EXT4: RoCompat = RoCompat::UNINIT_BG
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// The mark of the last writer, in bytes that other drivers keep but never change.
///
/// Every driver that mounts the volume for writing raises `s_mnt_count` and sets `s_mtime`. So if
/// the mark still agrees with them, the last writer was this crate, and an unclean volume has no
/// worse errors than this crate's write order can leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterMark {
    /// Version of the promise (the write order), not of the program.
    pub version: u32,
    /// The value of `s_mnt_count` when the mark was written.
    pub mnt_count: u16,
    /// The value of `s_mtime` when the mark was written.
    pub mtime: u32,
}

/// Version of the promise that a volume left by a crash of moafs has leaks at most.
pub const MARK_VERSION: u32 = 1;

/// The offset of the mark: in the last of the reserved bytes, the sector of which has no field that
/// changes while a volume is in use.
const MARK_OFFSET: usize = 0x3EC;
/// The old offset of the mark, until Linux 6.18 gave these bytes a meaning: the high halves of the
/// user and group that may use reserved blocks.
const OLD_MARK_OFFSET: usize = 0x284;
const MARK_BYTES: usize = 16;
const MARK_MAGIC: u32 = 0x6D6F_6131;

/// The 1024 bytes of a superblock with a valid magic. Fields without an accessor are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    raw: Box<[u8; SUPERBLOCK_BYTES]>,
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("blocks", &self.blocks_count())
            .field("inodes", &self.inodes_count())
            .field("log_block_size", &self.log_block_size())
            .field("compat", &self.compat())
            .field("incompat", &self.incompat())
            .field("ro_compat", &self.ro_compat())
            .finish_non_exhaustive()
    }
}

macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $get:ident, $set:ident: $t:ty = $at:literal;)*) => {
        impl Superblock {$(
            $(#[doc = $doc])+
            pub fn $get(&self) -> $t {
                let mut bytes = [0; size_of::<$t>()];
                bytes.copy_from_slice(&self.raw[$at..$at + size_of::<$t>()]);
                <$t>::from_le_bytes(bytes)
            }

            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, value: $t) {
                self.raw[$at..$at + size_of::<$t>()].copy_from_slice(&value.to_le_bytes());
            }
        )*}
    };
}

fields! {
    /// Number of inodes (`s_inodes_count`).
    inodes_count, set_inodes_count: u32 = 0x00;
    /// Low half of `s_blocks_count`.
    blocks_count_lo, set_blocks_count_lo: u32 = 0x04;
    /// Low half of `s_r_blocks_count`: blocks reserved for root.
    reserved_blocks_lo, set_reserved_blocks_lo: u32 = 0x08;
    /// Low half of `s_free_blocks_count`.
    free_blocks_lo, set_free_blocks_lo: u32 = 0x0C;
    /// Number of free inodes (`s_free_inodes_count`).
    free_inodes, set_free_inodes: u32 = 0x10;
    /// `s_first_data_block`: 1 for blocks of 1 KiB, else 0.
    first_data_block, set_first_data_block: u32 = 0x14;
    /// `s_log_block_size`: the block size is 1024 << this.
    log_block_size, set_log_block_size: u32 = 0x18;
    /// `s_log_cluster_size`: equal to `s_log_block_size` without bigalloc.
    log_cluster_size, set_log_cluster_size: u32 = 0x1C;
    /// Number of blocks in a group (`s_blocks_per_group`).
    blocks_per_group, set_blocks_per_group: u32 = 0x20;
    /// Number of clusters in a group (`s_clusters_per_group`).
    clusters_per_group, set_clusters_per_group: u32 = 0x24;
    /// Number of inodes in a group (`s_inodes_per_group`).
    inodes_per_group, set_inodes_per_group: u32 = 0x28;
    /// `s_mtime`: last mount, in seconds.
    mtime, set_mtime: u32 = 0x2C;
    /// `s_wtime`: last write of the superblock, in seconds.
    wtime, set_wtime: u32 = 0x30;
    /// `s_mnt_count`: mounts since the last check.
    mnt_count, set_mnt_count: u16 = 0x34;
    /// `s_max_mnt_count`: mounts after which a check is due; 0 and 65535 mean never.
    max_mnt_count, set_max_mnt_count: u16 = 0x36;
    /// `s_state` as a number; see [`Superblock::state`].
    state_bits, set_state_bits: u16 = 0x3A;
    /// `s_errors`: 1 continue, 2 go read-only, 3 panic.
    errors, set_errors: u16 = 0x3C;
    /// `s_lastcheck`: the time of the last check, in seconds.
    lastcheck, set_lastcheck: u32 = 0x40;
    /// `s_checkinterval`: the longest time between checks, in seconds; 0 means never.
    checkinterval, set_checkinterval: u32 = 0x44;
    /// `s_creator_os`: the operating system that made the volume.
    creator_os, set_creator_os: u32 = 0x48;
    /// `s_rev_level`: 0 original, 1 dynamic.
    rev_level, set_rev_level: u32 = 0x4C;
    /// `s_def_resuid`: the user who may use reserved blocks.
    def_resuid, set_def_resuid: u16 = 0x50;
    /// `s_def_resgid`: the group that may use reserved blocks.
    def_resgid, set_def_resgid: u16 = 0x52;
    /// `s_first_ino` as stored; see [`Superblock::first_ino`].
    first_ino_raw, set_first_ino: u32 = 0x54;
    /// `s_inode_size` as stored; see [`Superblock::inode_size`].
    inode_size_raw, set_inode_size: u16 = 0x58;
    /// `s_block_group_nr`: the group this copy lies in.
    block_group_nr, set_block_group_nr: u16 = 0x5A;
    /// The compatible features as stored (`s_feature_compat`).
    compat_raw, set_compat_raw: u32 = 0x5C;
    /// The incompatible features as stored (`s_feature_incompat`).
    incompat_raw, set_incompat_raw: u32 = 0x60;
    /// The read-only compatible features as stored (`s_feature_ro_compat`).
    ro_compat_raw, set_ro_compat_raw: u32 = 0x64;
    /// `s_reserved_gdt_blocks`: blocks after the descriptor table kept for its growth.
    reserved_gdt_blocks_raw, set_reserved_gdt_blocks: u16 = 0xCE;
    /// The journal's inode number (`s_journal_inum`).
    journal_inum, set_journal_inum: u32 = 0xE0;
    /// `s_usr_quota_inum`: the inode of the users' quota; 0 without the feature quota.
    usr_quota_inum, set_usr_quota_inum: u32 = 0x240;
    /// `s_grp_quota_inum`: the inode of the groups' quota.
    grp_quota_inum, set_grp_quota_inum: u32 = 0x244;
    /// `s_prj_quota_inum`: the inode of the projects' quota.
    prj_quota_inum, set_prj_quota_inum: u32 = 0x26C;
    /// `s_last_orphan`: head of the orphan list.
    last_orphan, set_last_orphan: u32 = 0xE8;
    /// `s_def_hash_version`: 0 legacy, 1 half_md4, 2 tea.
    def_hash_version, set_def_hash_version: u8 = 0xFC;
    /// `s_jnl_backup_type`: 1 if the superblock holds a copy of the journal's inode.
    jnl_backup_type, set_jnl_backup_type: u8 = 0xFD;
    /// Bytes of a descriptor as stored (`s_desc_size`).
    desc_size_raw, set_desc_size: u16 = 0xFE;
    /// The default mount options (`s_default_mount_opts`).
    default_mount_opts, set_default_mount_opts: u32 = 0x100;
    /// `s_mkfs_time`: the time at which the volume was made, in seconds.
    mkfs_time, set_mkfs_time: u32 = 0x108;
    /// High half of `s_blocks_count` (64bit only).
    blocks_count_hi, set_blocks_count_hi: u32 = 0x150;
    /// High half of `s_r_blocks_count` (64bit only).
    reserved_blocks_hi, set_reserved_blocks_hi: u32 = 0x154;
    /// High half of `s_free_blocks_count` (64bit only).
    free_blocks_hi, set_free_blocks_hi: u32 = 0x158;
    /// `s_min_extra_isize`: the extra part that all inodes have, in bytes.
    min_extra_isize, set_min_extra_isize: u16 = 0x15C;
    /// `s_want_extra_isize`: the extra part new inodes get, in bytes.
    want_extra_isize, set_want_extra_isize: u16 = 0x15E;
    /// `s_flags`: 1 signed directory hash, 2 unsigned, 4 test file system.
    flags, set_flags: u32 = 0x160;
    /// `s_raid_stride`: blocks that lie on one disk of an array before the next disk begins.
    raid_stride, set_raid_stride: u16 = 0x164;
    /// `s_raid_stripe_width`: data blocks of a stripe over all disks of an array.
    raid_stripe_width, set_raid_stripe_width: u32 = 0x170;
    /// `s_kbytes_written`: KiB ever written.
    kbytes_written, set_kbytes_written: u64 = 0x178;
    /// `s_error_count`: errors since the last check.
    error_count, set_error_count: u32 = 0x194;
    /// `s_first_error_time`: the time of the first of these errors, in seconds.
    first_error_time, set_first_error_time: u32 = 0x198;
    /// `s_last_error_time`: the time of the last of them.
    last_error_time, set_last_error_time: u32 = 0x1CC;
    /// `s_first_error_errcode`: the kind of the first.
    first_error_code, set_first_error_code: u8 = 0x27A;
    /// `s_last_error_errcode`: the kind of the last.
    last_error_code, set_last_error_code: u8 = 0x27B;
    /// `s_overhead_clusters`: 0 means "compute it".
    overhead_clusters, set_overhead_clusters: u32 = 0x248;
    /// `s_log_groups_per_flex`: a flex group has 1 << this groups.
    log_groups_per_flex, set_log_groups_per_flex: u8 = 0x174;
    /// `s_checksum_type`: 1 is CRC-32C (metadata_csum).
    checksum_type, set_checksum_type: u8 = 0x175;
    /// `s_checksum_seed`: the start of checksums (metadata_csum_seed).
    checksum_seed, set_checksum_seed: u32 = 0x270;
    /// `s_first_meta_bg`: the first block of descriptors that lies in its own meta group (meta_bg).
    first_meta_bg, set_first_meta_bg: u32 = 0x104;
    /// `s_encoding`: the rules by which names are folded (casefold); 1 is Unicode 12.1.
    encoding, set_encoding: u16 = 0x27C;
    /// `s_encoding_flags`: 1 refuses names that are not UTF-8 (casefold).
    encoding_flags, set_encoding_flags: u16 = 0x27E;
    /// `s_orphan_file_inum`: the inode of the orphan file (orphan_file).
    orphan_file_inum, set_orphan_file_inum: u32 = 0x280;
}

impl Superblock {
    /// Returns a superblock of zeros with the magic, which mkfs fills in.
    pub fn empty() -> Superblock {
        let mut raw = Box::new([0; SUPERBLOCK_BYTES]);
        put_u16(&mut raw[..], 0x38, MAGIC);
        Superblock { raw }
    }

    /// Takes the 1024 bytes of a superblock.
    ///
    /// # Errors
    /// If they are fewer, or without the magic.
    pub fn parse(bytes: &[u8]) -> Result<Superblock, Damage> {
        let Some(bytes) = bytes.first_chunk::<SUPERBLOCK_BYTES>() else {
            return Err(PLACE.damage("the device ends before it"));
        };
        let magic = u16_at(bytes, 0x38);
        if magic != MAGIC {
            return Err(PLACE.damage(format!(
                "the magic is {magic:#06x}, should be {MAGIC:#06x}: this is no volume of the ext family, \
                 or its first blocks were overwritten"
            )));
        }
        Ok(Superblock { raw: Box::new(*bytes) })
    }

    /// Returns the copy that a group carries, with its checksum.
    pub fn copy_of_group(&self, group: GroupNo) -> Superblock {
        let mut copy = self.clone();
        // The format has 16 bits: numbers of later groups wrap, as mke2fs's do.
        copy.set_block_group_nr(group.0 as u16);
        copy.seal();
        copy
    }

    /// Returns the bytes as they go to the disk.
    pub fn as_bytes(&self) -> &[u8; SUPERBLOCK_BYTES] {
        &self.raw
    }

    /// Returns true for revision 0, which has fixed inodes and no features.
    fn is_revision_0(&self) -> bool {
        self.rev_level() == 0
    }

    /// Returns the compatible features.
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(if self.is_revision_0() { 0 } else { self.compat_raw() })
    }

    /// Returns the incompatible features.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(if self.is_revision_0() { 0 } else { self.incompat_raw() })
    }

    /// Returns the read-only compatible features.
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(if self.is_revision_0() { 0 } else { self.ro_compat_raw() })
    }

    /// Sets compatible features; does nothing on revision 0, which has none.
    pub fn set_compat(&mut self, features: Compat) {
        if !self.is_revision_0() {
            self.set_compat_raw(features.bits());
        }
    }

    /// Sets incompatible features; does nothing on revision 0.
    pub fn set_incompat(&mut self, features: Incompat) {
        if !self.is_revision_0() {
            self.set_incompat_raw(features.bits());
        }
    }

    /// Sets read-only compatible features; does nothing on revision 0.
    pub fn set_ro_compat(&mut self, features: RoCompat) {
        if !self.is_revision_0() {
            self.set_ro_compat_raw(features.bits());
        }
    }

    /// Makes revision 0 revision 1, without any feature yet; values that revision 0 fixes stay as
    /// they are.
    pub fn raise_revision(&mut self) {
        if !self.is_revision_0() {
            return;
        }
        self.set_first_ino(self.first_ino());
        self.set_inode_size(self.inode_size());
        self.set_rev_level(1);
        self.set_compat_raw(0);
        self.set_incompat_raw(0);
        self.set_ro_compat_raw(0);
    }

    /// Returns the features; revision 0 has none.
    pub fn features(&self) -> FeatureSet {
        FeatureSet { compat: self.compat(), incompat: self.incompat(), ro_compat: self.ro_compat() }
    }

    /// Returns the names of all features, as `dumpe2fs` prints them.
    pub fn feature_names(&self) -> Vec<String> {
        features::present(self.features()).into_iter().map(|feature| feature.name).collect()
    }

    /// Returns the volume's state (`s_state`).
    pub fn state(&self) -> State {
        State::from_bits_retain(self.state_bits())
    }

    /// Sets the volume's state (`s_state`).
    pub fn set_state(&mut self, state: State) {
        self.set_state_bits(state.bits());
    }

    /// Returns the number of the first inode that is not reserved.
    pub fn first_ino(&self) -> u32 {
        if self.is_revision_0() { 11 } else { self.first_ino_raw() }
    }

    /// Returns the bytes of an inode.
    pub fn inode_size(&self) -> u16 {
        if self.is_revision_0() { 128 } else { self.inode_size_raw() }
    }

    /// Returns true with 64-bit block numbers: the high halves of counts are then valid.
    fn is_64bit(&self) -> bool {
        self.incompat().contains(Incompat::BIT64)
    }

    /// Returns the kind of checksums of the volume.
    pub fn checksums(&self) -> Checksums {
        if self.ro_compat().contains(RoCompat::METADATA_CSUM) {
            let is_stored = self.incompat().contains(Incompat::METADATA_CSUM_SEED);
            let seed = if is_stored { self.checksum_seed() } else { Crc32c::START.bytes(&self.uuid()).0 };
            Checksums::All { seed }
        } else if self.ro_compat().contains(RoCompat::UNINIT_BG) {
            Checksums::Descriptors { uuid: self.uuid() }
        } else {
            Checksums::Absent
        }
    }

    /// Compares the stored checksum with the bytes, on volumes that have one.
    ///
    /// # Errors
    /// If they differ, or the kind of checksum is not known: no field can be believed.
    pub fn verify(&self) -> Result<(), Damage> {
        let checksums = self.checksums();
        if checksums.cover_all() && self.checksum_type() != CHECKSUM_TYPE_CRC32C {
            let rule = format!("must be {CHECKSUM_TYPE_CRC32C}");
            return Err(illegal("s_checksum_type", self.checksum_type().into(), &rule));
        }
        checksums
            .verify(Sealed::Superblock, &self.raw[..])
            .map_err(|problem| PLACE.damage(format!("{problem}; repair it from a copy with e2fsck -fy")))
    }

    fn wide(&self, low: u32, high: u32) -> u64 {
        join32(low, if self.is_64bit() { high } else { 0 })
    }

    /// Returns the number of blocks of the volume, counted from its first byte.
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo(), self.blocks_count_hi())
    }

    /// Returns the number of blocks reserved for root.
    pub fn reserved_blocks(&self) -> u64 {
        self.wide(self.reserved_blocks_lo(), self.reserved_blocks_hi())
    }

    /// Returns the number of free blocks, as last recorded.
    pub fn free_blocks(&self) -> u64 {
        self.wide(self.free_blocks_lo(), self.free_blocks_hi())
    }

    /// Sets the number of free blocks.
    pub fn set_free_blocks(&mut self, blocks: u64) {
        self.set_free_blocks_lo(blocks as u32);
        if self.is_64bit() {
            self.set_free_blocks_hi((blocks >> 32) as u32);
        }
    }

    /// Sets the number of blocks of the volume; its high half is stored on volumes with 64-bit block numbers only.
    pub fn set_blocks_count(&mut self, blocks: u64) {
        self.set_blocks_count_lo(blocks as u32);
        if self.is_64bit() {
            self.set_blocks_count_hi((blocks >> 32) as u32);
        }
    }

    /// Sets the number of blocks reserved for root.
    pub fn set_reserved_blocks(&mut self, blocks: u64) {
        self.set_reserved_blocks_lo(blocks as u32);
        if self.is_64bit() {
            self.set_reserved_blocks_hi((blocks >> 32) as u32);
        }
    }

    /// Stores the checksum of the superblock, on volumes that have one.
    pub fn seal(&mut self) {
        let sealed = self.checksums().seal(Sealed::Superblock, &mut self.raw[..]);
        debug_assert!(sealed.is_ok(), "a superblock has a place for its checksum");
    }

    /// Returns the volume's UUID (`s_uuid`).
    pub fn uuid(&self) -> [u8; 16] {
        self.array_at(0x68)
    }

    /// Sets the volume's UUID (`s_uuid`).
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        self.raw[0x68..0x78].copy_from_slice(&uuid);
    }

    /// Returns `s_volume_name` up to the first NUL.
    pub fn label(&self) -> &[u8] {
        until_nul(&self.raw[0x78..0x78 + LABEL_BYTES])
    }

    /// Sets `s_volume_name`; bytes beyond the first 16 are cut off.
    pub fn set_label(&mut self, label: &[u8]) {
        store_padded(&mut self.raw[0x78..0x78 + LABEL_BYTES], label);
    }

    /// Returns `s_last_mounted` up to the first NUL.
    pub fn last_mounted(&self) -> &[u8] {
        until_nul(&self.raw[0x88..0xC8])
    }

    /// Sets `s_last_mounted`; bytes beyond the first 63 are cut off.
    pub fn set_last_mounted(&mut self, directory: &[u8]) {
        let end = directory.len().min(63);
        store_padded(&mut self.raw[0x88..0xC8], &directory[..end]);
    }

    /// Returns the seed of the directory hash (`s_hash_seed`).
    pub fn hash_seed(&self) -> [u32; 4] {
        std::array::from_fn(|i| u32_at(&self.raw[..], 0xEC + 4 * i))
    }

    /// Sets `s_hash_seed` from 16 bytes as a UUID stores them.
    pub fn set_hash_seed(&mut self, seed: [u8; 16]) {
        self.raw[0xEC..0xFC].copy_from_slice(&seed);
    }

    /// Returns true if names are hashed as unsigned characters (`s_flags` bit 1).
    pub fn unsigned_hash(&self) -> bool {
        self.flags() & 2 != 0
    }

    /// Returns `s_journal_uuid`: that of the device that holds the journal; zeros if there is none.
    pub fn journal_uuid(&self) -> [u8; 16] {
        self.array_at(0xD0)
    }

    /// Returns true if the volume has a journal that is on another device.
    pub fn has_external_journal(&self) -> bool {
        self.compat().contains(Compat::HAS_JOURNAL) && self.journal_inum() == 0 && self.journal_uuid() != [0; 16]
    }

    /// Sets the fields of a journal on another device to zero.
    pub fn clear_external_journal(&mut self) {
        self.raw[0xD0..0xE0].fill(0);
        self.raw[0xE4..0xE8].fill(0);
    }

    /// Returns the two groups with copies (sparse_super2); 0 means none.
    pub fn backup_groups(&self) -> [u32; 2] {
        std::array::from_fn(|i| u32_at(&self.raw[..], 0x24C + 4 * i))
    }

    /// Sets the two groups with copies (sparse_super2).
    pub fn set_backup_groups(&mut self, groups: [u32; 2]) {
        for (i, group) in groups.into_iter().enumerate() {
            put_u32(&mut self.raw[..], 0x24C + 4 * i, group);
        }
    }

    /// Keeps a copy of the journal's inode: its `i_block` and its size (`s_jnl_blocks`).
    pub fn set_journal_backup(&mut self, block: &[u32; 15], size: u64) {
        self.set_jnl_backup_type(1);
        let words = block.iter().copied().chain([(size >> 32) as u32, size as u32]);
        for (i, word) in words.enumerate() {
            put_u32(&mut self.raw[..], 0x10C + 4 * i, word);
        }
    }

    /// Returns the copy of the journal's inode: its `i_block` and its size; `None` if there is none.
    pub fn journal_backup(&self) -> Option<([u32; 15], u64)> {
        let word = |i: usize| u32_at(&self.raw[..], 0x10C + 4 * i);
        let size = join32(word(16), word(15));
        (self.jnl_backup_type() == 1).then(|| (std::array::from_fn(word), size))
    }

    fn array_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.raw[at..at + N]);
        bytes
    }

    /// Returns the mark of the last writer, if this crate left one.
    pub fn writer_mark(&self) -> Option<WriterMark> {
        self.mark_at(MARK_OFFSET).or_else(|| self.mark_at(OLD_MARK_OFFSET))
    }

    fn mark_at(&self, at: usize) -> Option<WriterMark> {
        let raw = &self.raw[at..at + MARK_BYTES];
        let is_mark = u32_at(raw, 0) == MARK_MAGIC && u16_at(raw, 10) == 0;
        is_mark.then(|| WriterMark { version: u32_at(raw, 4), mnt_count: u16_at(raw, 8), mtime: u32_at(raw, 12) })
    }

    /// Returns the inodes of the journal and of the orphan file: no op of a client may change them.
    pub fn own_files(&self) -> Vec<InodeNo> {
        let journal = self.compat().contains(Compat::HAS_JOURNAL).then_some(self.journal_inum());
        let orphan_file = self.compat().contains(Compat::ORPHAN_FILE).then_some(self.orphan_file_inum());
        journal.into_iter().chain(orphan_file).map(InodeNo).collect()
    }

    /// Returns true if a mark lies in the bytes where newer drivers read the owner of the reserved
    /// blocks.
    pub fn has_old_writer_mark(&self) -> bool {
        self.mark_at(OLD_MARK_OFFSET).is_some()
    }

    /// Writes the mark: the mount that `s_mnt_count` and `s_mtime` now record is ours.
    pub fn set_writer_mark(&mut self, version: u32) {
        self.promise_writer_mark(version, self.mnt_count(), self.mtime());
    }

    /// Writes the mark of a mount that is not recorded yet: the mark lies in another sector than
    /// the count and the time, and must be on the disk before them.
    pub fn promise_writer_mark(&mut self, version: u32, mnt_count: u16, mtime: u32) {
        self.clear_writer_mark();
        let raw = &mut self.raw[..];
        put_u32(raw, MARK_OFFSET, MARK_MAGIC);
        put_u32(raw, MARK_OFFSET + 4, version);
        put_u16(raw, MARK_OFFSET + 8, mnt_count);
        put_u16(raw, MARK_OFFSET + 10, 0);
        put_u32(raw, MARK_OFFSET + 12, mtime);
    }

    /// Removes the mark of the last writer.
    pub fn clear_writer_mark(&mut self) {
        for at in [MARK_OFFSET, OLD_MARK_OFFSET] {
            if self.mark_at(at).is_some() {
                self.raw[at..at + MARK_BYTES].fill(0);
            }
        }
    }

    /// Returns true if the last mount for writing was by this crate, under promise `version`.
    pub fn writer_mark_matches(&self, version: u32) -> bool {
        self.writer_mark() == Some(WriterMark { version, mnt_count: self.mnt_count(), mtime: self.mtime() })
    }

    /// Returns the member of the family that the features make the volume, as mount(8) names it.
    pub fn family_name(&self) -> &'static str {
        if self.incompat().intersects(INCOMPAT_OF_EXT4) || self.ro_compat().intersects(RO_COMPAT_OF_EXT4) {
            "ext4"
        } else if self.compat().contains(Compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// Returns the use that the features allow to this crate. Does not judge damage or a missed check.
    pub fn support(&self, want_write: bool) -> Support {
        let (mut refused, reasons) = features::reasons(self.features());
        if self.rev_level() > 1 {
            refused.reasons.insert(
                0,
                Reason {
                    feature: format!("revision {}", self.rev_level()),
                    advice: "only revisions 0 and 1 are known".to_owned(),
                },
            );
        }
        if !refused.reasons.is_empty() {
            return Support::Refuse(refused);
        }
        if want_write && reasons.is_empty() { Support::ReadWrite } else { Support::ReadOnly(reasons) }
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

fn store_padded(field: &mut [u8], value: &[u8]) {
    let len = value.len().min(field.len());
    field[..len].copy_from_slice(&value[..len]);
    field[len..].fill(0);
}

/// The groups that carry a copy of superblock and descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backups {
    /// Every group carries one.
    All,
    /// Groups 0, 1 and powers of 3, 5 and 7 (sparse_super).
    Sparse,
    /// Group 0 and at most two others (sparse_super2); 0 means none.
    Two([u32; 2]),
}

/// The place of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeLocation {
    /// The group whose inode table holds the inode.
    pub group: GroupNo,
    /// The inode's index in the group, from 0: also its bit in the inode bitmap.
    pub index: u32,
    /// The block of the group's inode table that holds the inode, from 0.
    pub table_block: u32,
    /// The inode's first byte in that block.
    pub offset: usize,
}

/// The geometry of a volume: checked, so that calculating with it cannot overflow or leave the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block.
    pub block_size: u32,
    /// All blocks, from the volume's first byte on.
    pub blocks: u64,
    /// The block in which group 0 starts: 1 for blocks of 1 KiB, else 0.
    pub first_data_block: u64,
    /// Blocks in every group but the last.
    pub blocks_per_group: u32,
    /// Inodes in every group.
    pub inodes_per_group: u32,
    /// Number of inodes of the volume.
    pub inodes: u32,
    /// Bytes of an inode.
    pub inode_size: u32,
    /// Number of groups on the volume.
    pub groups: u32,
    /// Bytes of a group descriptor.
    pub desc_size: u32,
    /// Blocks of the descriptor table.
    pub descriptor_blocks: u32,
    /// Blocks after the descriptor table reserved for its growth, in each copy.
    pub reserved_gdt_blocks: u32,
    /// Blocks of each group's inode table.
    pub inode_table_blocks: u32,
    /// The first inode that is not reserved.
    pub first_ino: u32,
    /// Pointers in an indirect block.
    pub apb: u32,
    /// The groups that have copies of superblock and descriptors.
    pub backups: Backups,
    /// True if directory entries carry the file's type.
    pub filetype: bool,
    /// True if descriptors may place a group's metadata outside the group.
    pub flex_bg: bool,
    /// True if inodes may count blocks with 48 bits.
    pub huge_file: bool,
    /// Blocks in a cluster, which a bit of the block bitmap stands for: 1 without bigalloc.
    pub cluster_blocks: u32,
    /// The first block of the descriptor table that lies in its own meta group; all do that from here on (meta_bg).
    pub first_meta_bg: u32,
    /// The features that a driver must know to use the volume.
    pub incompat: Incompat,
    /// The features that a driver must know to write the volume.
    pub ro_compat: RoCompat,
    /// The kind of checksums that metadata have.
    pub checksums: Checksums,
}

/// Returns the damage for an illegal value in the superblock.
fn illegal(what: &str, value: u64, rule: &str) -> Damage {
    PLACE.damage(format!("{what} is {value}, but {rule}"))
}

impl Geometry {
    /// Checks a superblock against the rules of the format, and against the device's length.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn of(sb: &Superblock, device_bytes: u64) -> Result<Geometry, Damage> {
        let geo = Self::unchecked(sb)?;
        geo.check_groups()?;
        geo.check_device(device_bytes)?;
        Ok(geo)
    }

    /// Takes the fields; checks the rules that the arithmetic on them needs.
    fn unchecked(sb: &Superblock) -> Result<Geometry, Damage> {
        if sb.rev_level() > 1 {
            return Err(illegal("s_rev_level", sb.rev_level().into(), "only 0 and 1 exist"));
        }
        let log = sb.log_block_size();
        if log > 6 {
            return Err(illegal("s_log_block_size", log.into(), "blocks have 1 to 64 KiB"));
        }
        let block_size = 1024u32 << log;
        let (blocks_per_group, inodes_per_group) = (sb.blocks_per_group(), sb.inodes_per_group());
        let bits = 8 * block_size;
        let cluster_blocks = Self::cluster_blocks(sb)?;
        let blocks_max = u64::from(bits) * u64::from(cluster_blocks);
        if blocks_per_group == 0 || blocks_per_group % 8 != 0 || u64::from(blocks_per_group) > blocks_max {
            return Err(illegal(
                "s_blocks_per_group",
                blocks_per_group.into(),
                &format!("must be a multiple of 8 from 8 to {blocks_max}"),
            ));
        }
        if cluster_blocks > 1 && blocks_per_group % (8 * cluster_blocks) != 0 {
            let rule = format!("must be a multiple of 8 clusters of {cluster_blocks} blocks");
            return Err(illegal("s_blocks_per_group", blocks_per_group.into(), &rule));
        }
        if inodes_per_group == 0 || inodes_per_group > bits {
            return Err(illegal("s_inodes_per_group", inodes_per_group.into(), &format!("must be from 1 to {bits}")));
        }
        let inode_size = u32::from(sb.inode_size());
        if !inode_size.is_power_of_two() || !(128..=block_size).contains(&inode_size) {
            return Err(illegal(
                "s_inode_size",
                inode_size.into(),
                &format!("must be a power of two from 128 to {block_size}"),
            ));
        }
        let first_data_block = u64::from(sb.first_data_block());
        let groups = sb.blocks_count().saturating_sub(first_data_block).div_ceil(u64::from(blocks_per_group));
        let desc_size = Self::desc_size(sb)?;
        // A group has at least one bitmap block of eight blocks: 2^32 groups do not exist.
        let groups = u32::try_from(groups)
            .map_err(|_| illegal("s_blocks_count", sb.blocks_count(), "that makes 2^32 groups or more"))?;
        let descriptor_bytes = u64::from(groups) * u64::from(desc_size);
        Ok(Geometry {
            block_size,
            blocks: sb.blocks_count(),
            first_data_block,
            blocks_per_group,
            inodes_per_group,
            inodes: sb.inodes_count(),
            inode_size,
            groups,
            desc_size,
            descriptor_blocks: descriptor_bytes.div_ceil(block_size.into()) as u32,
            reserved_gdt_blocks: reserved_gdt_blocks(sb),
            inode_table_blocks: (u64::from(inodes_per_group) * u64::from(inode_size)).div_ceil(block_size.into())
                as u32,
            first_ino: sb.first_ino(),
            apb: block_size / 4,
            backups: backups(sb),
            filetype: sb.incompat().contains(Incompat::FILETYPE),
            flex_bg: sb.incompat().contains(Incompat::FLEX_BG),
            huge_file: sb.ro_compat().contains(RoCompat::HUGE_FILE),
            cluster_blocks,
            first_meta_bg: if sb.incompat().contains(Incompat::META_BG) { sb.first_meta_bg() } else { u32::MAX },
            incompat: sb.incompat(),
            ro_compat: sb.ro_compat(),
            checksums: sb.checksums(),
        })
    }

    /// Returns the blocks in a cluster.
    fn cluster_blocks(sb: &Superblock) -> Result<u32, Damage> {
        let (cluster, block) = (sb.log_cluster_size(), sb.log_block_size());
        if !sb.ro_compat().contains(RoCompat::BIGALLOC) {
            return if cluster == block {
                Ok(1)
            } else {
                Err(illegal("s_log_cluster_size", cluster.into(), "must equal s_log_block_size"))
            };
        }
        if cluster < block || cluster > LOG_CLUSTER_SIZE_MAX {
            let rule = format!("must be from {block} to {LOG_CLUSTER_SIZE_MAX}");
            return Err(illegal("s_log_cluster_size", cluster.into(), &rule));
        }
        Ok(1 << (cluster - block))
    }

    fn desc_size(sb: &Superblock) -> Result<u32, Damage> {
        if !sb.is_64bit() {
            return Ok(32);
        }
        let size = u32::from(sb.desc_size_raw());
        if !size.is_power_of_two() || !(64..=1024).contains(&size) {
            return Err(illegal("s_desc_size", size.into(), "must be 64 to 1024"));
        }
        Ok(size)
    }

    fn check_groups(&self) -> Result<(), Damage> {
        // With bigalloc group 0 begins at byte 0 for every block size.
        let bigalloc = self.ro_compat.contains(RoCompat::BIGALLOC);
        let first_rule = u64::from(self.block_size == 1024 && !bigalloc);
        if self.first_data_block != first_rule {
            return Err(illegal(
                "s_first_data_block",
                self.first_data_block,
                &format!("must be {first_rule} with blocks of {} bytes", self.block_size),
            ));
        }
        if self.groups == 0 {
            return Err(illegal("s_blocks_count", self.blocks, "a volume has at least a group"));
        }
        let inodes = u64::from(self.groups) * u64::from(self.inodes_per_group);
        if u64::from(self.inodes) != inodes {
            return Err(illegal(
                "s_inodes_count",
                self.inodes.into(),
                &format!("{} groups have {inodes}", self.groups),
            ));
        }
        if self.first_ino < 11 || self.first_ino > self.inodes {
            return Err(illegal("s_first_ino", self.first_ino.into(), "must be an inode from 11"));
        }
        self.check_overhead()
    }

    /// Checks that every group, also the short last one, can hold its own metadata.
    fn check_overhead(&self) -> Result<(), Damage> {
        let head = u64::from(self.head_blocks(GroupNo(0)));
        let room = u64::from(self.blocks_per_group).min(self.blocks - self.first_data_block);
        if head >= room {
            return Err(illegal(
                "the descriptor table",
                head,
                &format!("blocks with its superblock and reserve do not fit into a group of {room}"),
            ));
        }
        let table = u64::from(self.inode_table_blocks);
        if !self.flex_bg && table + 2 >= u64::from(self.blocks_per_group) {
            return Err(illegal(
                "s_inodes_per_group",
                self.inodes_per_group.into(),
                "the inode table does not fit into a group",
            ));
        }
        Ok(())
    }

    fn check_device(&self, device_bytes: u64) -> Result<(), Damage> {
        let bytes = self.blocks.checked_mul(u64::from(self.block_size));
        match bytes {
            Some(bytes) if bytes <= device_bytes => Ok(()),
            _ => Err(PLACE.damage(format!(
                "the volume has {} blocks of {} bytes, but the device only {device_bytes} bytes: \
                 the image is truncated or the partition too small",
                self.blocks, self.block_size
            ))),
        }
    }

    /// Returns the block size in bytes, as a length in memory.
    pub fn block_bytes(&self) -> usize {
        self.block_size as usize
    }

    /// Returns the number of 512-byte units in a block, as `i_blocks` counts them.
    pub fn sectors_per_block(&self) -> u32 {
        self.block_size / 512
    }

    /// Returns all groups in order.
    pub fn all_groups(&self) -> impl DoubleEndedIterator<Item = GroupNo> + ExactSizeIterator + use<> {
        (0..self.groups).map(GroupNo)
    }

    /// Returns the first block of a group.
    pub fn group_start(&self, group: GroupNo) -> BlockNo {
        BlockNo(self.first_data_block + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Returns the number of blocks of a group; the last one may be short.
    pub fn group_blocks(&self, group: GroupNo) -> u32 {
        let left = self.blocks.saturating_sub(self.group_start(group).0);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Returns the blocks of a group.
    pub fn group_range(&self, group: GroupNo) -> Range<u64> {
        let start = self.group_start(group).0;
        start..start + u64::from(self.group_blocks(group))
    }

    /// Returns the group of a block; `None` outside of all groups.
    pub fn group_of_block(&self, block: BlockNo) -> Option<GroupNo> {
        let from_first = block.0.checked_sub(self.first_data_block)?;
        (block.0 < self.blocks).then(|| GroupNo((from_first / u64::from(self.blocks_per_group)) as u32))
    }

    /// Returns the group of a block and the block's bit in the group's bitmap.
    pub fn bit_of_block(&self, block: BlockNo) -> Option<(GroupNo, u32)> {
        let group = self.group_of_block(block)?;
        Some((group, (block.0 - self.group_start(group).0) as u32))
    }

    /// Returns true if a pointer may lead to this block (metadata is not excluded).
    pub fn may_point_to(&self, block: BlockNo) -> bool {
        block.0 > self.first_data_block && block.0 < self.blocks
    }

    /// Returns the place of an inode; `None` if there is no such inode.
    pub fn locate_inode(&self, ino: InodeNo) -> Option<InodeLocation> {
        if ino.0 == 0 || ino.0 > self.inodes {
            return None;
        }
        let index = (ino.0 - 1) % self.inodes_per_group;
        let byte = u64::from(index) * u64::from(self.inode_size);
        Some(InodeLocation {
            group: GroupNo((ino.0 - 1) / self.inodes_per_group),
            index,
            table_block: (byte / u64::from(self.block_size)) as u32,
            offset: (byte % u64::from(self.block_size)) as usize,
        })
    }

    /// Returns the number of the inode at `index` of a group.
    pub fn inode_at(&self, group: GroupNo, index: u32) -> InodeNo {
        InodeNo(group.0 * self.inodes_per_group + index + 1)
    }

    /// Returns the number of inodes in a block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size
    }

    /// Returns true if the group starts with a copy of superblock and descriptors (group 0: the
    /// originals).
    pub fn has_superblock(&self, group: GroupNo) -> bool {
        match (group.0, self.backups) {
            (0, _) | (_, Backups::All) => true,
            (g, Backups::Two(groups)) => groups.contains(&g),
            (1, Backups::Sparse) => true,
            (g, Backups::Sparse) => [3, 5, 7].into_iter().any(|base| is_power_of(g, base)),
        }
    }

    /// Returns the number of blocks at the start of a group taken by superblock, descriptors and
    /// their reserve. Groups whose descriptors lie in meta groups have no copies of those that do not.
    pub fn head_blocks(&self, group: GroupNo) -> u32 {
        // The boot area of group 0 is a block of its own where group 0 begins with it.
        let boot = if group.0 == 0 { (self.superblock_block() - self.first_data_block) as u32 } else { 0 };
        let table = match group.0 / self.descriptors_per_block() >= self.first_meta_bg {
            true => 0,
            false => self.descriptor_blocks.min(self.first_meta_bg) + self.reserved_gdt_blocks,
        };
        let copy = if self.has_superblock(group) { 1 + table } else { 0 };
        boot + copy + u32::from(self.has_meta_descriptors(group))
    }

    /// Returns the block that holds the primary superblock.
    pub fn superblock_block(&self) -> u64 {
        SUPERBLOCK_OFFSET / u64::from(self.block_size)
    }

    /// Returns the number of descriptors in a block: the groups of a meta group.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size / self.desc_size
    }

    /// Returns true if the group holds a block of descriptors of its meta group: the first, the second and the last
    /// group of each do (meta_bg).
    pub fn has_meta_descriptors(&self, group: GroupNo) -> bool {
        let per_block = self.descriptors_per_block();
        let (meta, index) = (group.0 / per_block, group.0 % per_block);
        meta >= self.first_meta_bg && (index < 2 || index == per_block - 1)
    }

    /// Returns the block of the descriptor table that holds a group's descriptor, and the byte in it.
    pub fn locate_descriptor(&self, group: GroupNo) -> (BlockNo, usize) {
        let meta = group.0 / self.descriptors_per_block();
        let offset = (group.0 % self.descriptors_per_block()) as usize * self.desc_size as usize;
        if meta < self.first_meta_bg {
            return (BlockNo(self.superblock_block() + 1 + u64::from(meta)), offset);
        }
        let first = GroupNo(meta * self.descriptors_per_block());
        let block = match first.0 {
            0 => self.superblock_block() + 1,
            _ => self.group_start(first).0 + u64::from(self.has_superblock(first)),
        };
        (BlockNo(block), offset)
    }

    /// Returns the groups that have copies of the superblock.
    pub fn groups_with_copies(&self) -> impl Iterator<Item = GroupNo> + '_ {
        self.all_groups().skip(1).filter(|group| self.has_superblock(*group))
    }

    /// Returns the same of a copy of the descriptor; `None` if there is none.
    pub fn locate_descriptor_copy(&self, group: GroupNo) -> Option<(BlockNo, usize)> {
        let meta = group.0 / self.descriptors_per_block();
        let offset = self.locate_descriptor(group).1;
        if meta < self.first_meta_bg {
            let holder = self.groups_with_copies().next()?;
            return Some((BlockNo(self.group_start(holder).0 + 1 + u64::from(meta)), offset));
        }
        let second = GroupNo(meta * self.descriptors_per_block() + 1);
        let block = self.group_start(second).0 + u64::from(self.has_superblock(second));
        (second.0 < self.groups).then_some((BlockNo(block), offset))
    }

    /// Returns the number of reserved inodes at the start of a group's table.
    pub fn reserved_inodes(&self, group: GroupNo) -> u32 {
        let before = u64::from(group.0) * u64::from(self.inodes_per_group);
        u64::from(self.first_ino - 1).saturating_sub(before).min(self.inodes_per_group.into()) as u32
    }

    /// Returns the number of clusters of a group: the bits of its block bitmap.
    pub fn group_clusters(&self, group: GroupNo) -> u32 {
        self.group_blocks(group).div_ceil(self.cluster_blocks)
    }

    /// Returns the bytes of a block bitmap and of an inode bitmap that checksums cover: those of a whole group.
    pub fn bitmap_bytes(&self) -> (usize, usize) {
        (self.blocks_per_group as usize / self.cluster_blocks as usize / 8, self.inodes_per_group as usize / 8)
    }

    /// Returns the byte of the volume at which a block starts.
    pub fn byte_of(&self, block: BlockNo) -> u64 {
        block.0 * u64::from(self.block_size)
    }
}

fn reserved_gdt_blocks(sb: &Superblock) -> u32 {
    if sb.compat().contains(Compat::RESIZE_INODE) { sb.reserved_gdt_blocks_raw().into() } else { 0 }
}

fn backups(sb: &Superblock) -> Backups {
    if sb.compat().contains(Compat::SPARSE_SUPER2) {
        Backups::Two(sb.backup_groups())
    } else if sb.ro_compat().contains(RoCompat::SPARSE_SUPER) {
        Backups::Sparse
    } else {
        Backups::All
    }
}

fn is_power_of(mut n: u32, base: u32) -> bool {
    while n > 1 && n.is_multiple_of(base) {
        n /= base;
    }
    n == 1
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a small legal superblock: 1 KiB blocks, two groups.
    pub(crate) fn sample() -> Superblock {
        let mut sb = Superblock::empty();
        sb.set_rev_level(1);
        sb.set_blocks_count_lo(10_000);
        sb.set_first_data_block(1);
        sb.set_blocks_per_group(8192);
        sb.set_clusters_per_group(8192);
        sb.set_inodes_per_group(512);
        sb.set_inodes_count(1024);
        sb.set_first_ino(11);
        sb.set_inode_size(256);
        sb.set_incompat(Incompat::FILETYPE);
        sb.set_ro_compat(RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE);
        sb
    }

    const DEVICE: u64 = 10_000 * 1024;

    #[test]
    fn parse_of_emitted_bytes_is_the_same() {
        let sb = sample();
        assert_eq!(Superblock::parse(sb.as_bytes()).unwrap(), sb);
    }

    #[test]
    fn geometry_of_two_groups() {
        let geo = Geometry::of(&sample(), DEVICE).unwrap();
        assert_eq!((geo.groups, geo.inode_table_blocks, geo.apb), (2, 128, 256));
        assert_eq!(geo.group_range(GroupNo(1)), 8193..10_000);
        assert_eq!(geo.bit_of_block(BlockNo(8193)), Some((GroupNo(1), 0)));
        assert_eq!(geo.group_of_block(BlockNo(0)), None);
        assert_eq!(geo.group_of_block(BlockNo(10_000)), None);
        let at = geo.locate_inode(InodeNo(518)).unwrap();
        assert_eq!((at.group.0, at.index, at.table_block, at.offset), (1, 5, 1, 256));
        assert_eq!(geo.inode_at(GroupNo(1), 5), InodeNo(518));
        assert_eq!(geo.locate_inode(InodeNo(0)), None);
        assert_eq!(geo.locate_inode(InodeNo(1025)), None);
    }

    #[test]
    fn sparse_copies_lie_in_powers_of_3_5_7() {
        let geo = Geometry::of(&sample(), DEVICE).unwrap();
        let with: Vec<u32> = (0..100).filter(|&g| geo.has_superblock(GroupNo(g))).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
    }

    /// The heads are those that dumpe2fs shows of such a volume.
    #[test]
    fn groups_behind_the_first_meta_group_have_no_copy_of_the_table() {
        let mut sb = sample();
        sb.set_blocks_count_lo(614_400);
        sb.set_inodes_count(75 * 512);
        sb.set_incompat(Incompat::FILETYPE | Incompat::META_BG | Incompat::BIT64);
        sb.set_desc_size(64);
        sb.set_first_meta_bg(1);
        let geo = Geometry::of(&sb, 614_400 * 1024).unwrap();
        assert_eq!((geo.groups, geo.descriptor_blocks, geo.descriptors_per_block()), (75, 5, 16));
        let heads = [(0, 2), (1, 2), (2, 0), (3, 2), (9, 2), (15, 0), (16, 1), (17, 1), (18, 0), (25, 1), (27, 1)];
        for (group, head) in heads.into_iter().chain([(31, 1), (48, 1), (49, 2), (63, 1), (64, 1), (74, 0)]) {
            assert_eq!(geo.head_blocks(GroupNo(group)), head, "group {group}");
        }
    }

    #[test]
    fn broken_rules_are_named() {
        type Break = fn(&mut Superblock);
        let cases: [(Break, &str); 9] = [
            (|sb| sb.set_log_block_size(7), "s_log_block_size"),
            (|sb| sb.set_blocks_per_group(0), "s_blocks_per_group"),
            (|sb| sb.set_blocks_per_group(8196), "s_blocks_per_group"),
            (|sb| sb.set_inodes_per_group(0), "s_inodes_per_group"),
            (|sb| sb.set_inode_size(200), "s_inode_size"),
            (|sb| sb.set_first_data_block(0), "s_first_data_block"),
            (|sb| sb.set_inodes_count(7), "s_inodes_count"),
            (|sb| sb.set_log_cluster_size(3), "s_log_cluster_size"),
            (|sb| sb.set_blocks_count_lo(9_000_000), "s_inodes_count"),
        ];
        for (damage, field) in cases {
            let mut sb = sample();
            damage(&mut sb);
            let error = Geometry::of(&sb, DEVICE).unwrap_err();
            assert!(error.problem.contains(field), "{error}");
        }
        let error = Geometry::of(&sample(), DEVICE - 1).unwrap_err();
        assert!(error.problem.contains("truncated"), "{error}");
    }

    #[test]
    fn features_decide_what_is_allowed() {
        let mut sb = sample();
        assert_eq!(sb.support(true), Support::ReadWrite);
        assert_eq!(sb.support(false), Support::ReadOnly(vec![]));
        sb.set_ro_compat(sb.ro_compat() | RoCompat::METADATA_CSUM | RoCompat::from_bits_retain(1 << 30));
        let Support::ReadOnly(reasons) = sb.support(true) else { panic!() };
        assert_eq!(reasons[0].feature, "metadata_csum");
        assert_eq!(reasons[1].feature, "0x40000000");
        sb.set_incompat(sb.incompat() | Incompat::EXTENT);
        let Support::ReadOnly(reasons) = sb.support(true) else { panic!() };
        assert_eq!(reasons[0].feature, "extent");
        assert!(reasons[0].advice.contains("only be read"), "{}", reasons[0]);
        sb.set_incompat(sb.incompat() | Incompat::DIRDATA | Incompat::from_bits_retain(1 << 30));
        let Support::Refuse(refused) = sb.support(false) else { panic!() };
        let text = refused.to_string();
        assert!(text.contains("dirdata") && text.contains("0x40000000"), "{text}");
    }

    #[test]
    fn revision_0_has_no_features() {
        let mut sb = sample();
        sb.set_rev_level(0);
        assert_eq!((sb.inode_size(), sb.first_ino()), (128, 11));
        assert!(sb.incompat().is_empty());
        assert_eq!(sb.support(true), Support::ReadWrite);
        assert_eq!(Geometry::of(&sb, DEVICE).unwrap().backups, Backups::All);
    }

    #[test]
    fn the_writer_mark_is_void_after_another_mount() {
        let mut sb = sample();
        assert!(!sb.writer_mark_matches(1));
        sb.set_mnt_count(7);
        sb.set_mtime(1_700_000_000);
        sb.set_writer_mark(1);
        assert!(sb.writer_mark_matches(1));
        assert!(!sb.writer_mark_matches(2));
        sb.set_mnt_count(8);
        assert!(!sb.writer_mark_matches(1));
        sb.clear_writer_mark();
        assert_eq!(sb.writer_mark(), None);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 1024), rev in 0u32..3, log in 0u32..8) {
            let mut raw = bytes;
            put_u16(&mut raw, 0x38, MAGIC);
            put_u32(&mut raw, 0x4C, rev);
            put_u32(&mut raw, 0x18, log);
            let sb = Superblock::parse(&raw).unwrap();
            prop_assert_eq!(&sb.as_bytes()[..], &raw[..]);
            sb.support(true);
            sb.feature_names();
            let _ = Geometry::of(&sb, u64::MAX);
        }

        #[test]
        fn mutated_superblocks_never_panic(at in 0usize..1024, value in any::<u32>()) {
            let mut raw = sample().as_bytes().to_vec();
            put_u32(&mut raw, at.min(1020), value);
            if let Ok(sb) = Superblock::parse(&raw)
                && let Ok(geo) = Geometry::of(&sb, u64::MAX) {
                    let last = GroupNo(geo.groups - 1);
                    prop_assert!(geo.group_range(last).end == geo.blocks);
                    geo.locate_inode(InodeNo(geo.inodes)).unwrap();
                }
        }
    }
}
