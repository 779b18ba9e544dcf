//! Inodes: the slots of the inode table.
//!
//! [`Inode`] is the meaning of a slot. [`Inode::encode_into`] changes only the fields it knows and
//! keeps the rest of the slot, with the attributes inside the inode. Slots of 128 bytes have
//! neither nanoseconds nor a birth time, and their seconds are 32 bits: times are clamped to the
//! range that the slot can hold.

use bitflags::bitflags;
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use super::extent::{Extent, edit};
use super::extra::Extra;
pub use super::extra::GOOD_OLD_BYTES;
use super::map::POINTERS;
use super::renaming::Renaming;
use super::superblock::{Incompat, RoCompat};
use super::{
    BlockNo, Damage, Geometry, InodeNo, Owner, Place, Sealed, Structure, join16, join32, put_u16, put_u32, u16_at,
    u32_at,
};

/// The extra bytes that the fixed fields up to `i_projid` need.
pub const EXTRA_BYTES: u16 = 32;
/// The most links an inode can have.
pub const LINKS_MAX: u16 = 65000;
/// The longest target that fits into the bytes of the pointers, in bytes.
pub const FAST_SYMLINK_MAX: usize = 59;

bitflags! {
    /// The inode's flags (`i_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct InodeFlags: u32 {
        /// Overwrite the blocks when the file is deleted.
        const SECRM = 0x1;
        /// Keep the deleted file for undelete.
        const UNRM = 0x2;
        /// To be compressed, by drivers that can.
        const COMPR = 0x4;
        /// Write the file synchronously.
        const SYNC = 0x8;
        /// The file may not change.
        const IMMUTABLE = 0x10;
        /// The file may only grow.
        const APPEND = 0x20;
        /// The file is not to be dumped.
        const NODUMP = 0x40;
        /// Access times are not updated.
        const NOATIME = 0x80;
        /// The file is encrypted.
        const ENCRYPT = 0x800;
        /// A directory with an index.
        const INDEX = 0x1000;
        /// Data of the file are journalled.
        const JOURNAL_DATA = 0x4000;
        /// Tails are not merged.
        const NOTAIL = 0x8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x10000;
        /// Subdirectories are unrelated: spread them.
        const TOPDIR = 0x20000;
        /// `i_blocks` counts blocks, not sectors.
        const HUGE_FILE = 0x40000;
        /// The file is mapped by extents.
        const EXTENTS = 0x80000;
        /// Protected by a hash tree.
        const VERITY = 0x100000;
        /// The inode holds an attribute value.
        const EA_INODE = 0x200000;
        /// Data lie inside the inode.
        const INLINE_DATA = 0x10000000;
        /// The project id is inherited.
        const PROJINHERIT = 0x20000000;
        /// Names in the directory ignore case.
        const CASEFOLD = 0x40000000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// Flags that change how the file's bytes are stored: such files are neither read nor written on volumes without
    /// the feature that goes with the flag ([`InodeFlags::allowed`]). `COMPR` is not one of them: `chattr +c` only asks
    /// for compression with it, and compressed contents need a feature of the volume that is refused.
    pub const FOREIGN: InodeFlags = InodeFlags::ENCRYPT
        .union(InodeFlags::EXTENTS)
        .union(InodeFlags::VERITY)
        .union(InodeFlags::EA_INODE)
        .union(InodeFlags::INLINE_DATA)
        .union(InodeFlags::CASEFOLD);

    /// Returns the flags among [`InodeFlags::FOREIGN`] that the features of a volume allow.
    pub fn allowed(geo: &Geometry) -> InodeFlags {
        let by_feature = [
            (InodeFlags::EXTENTS, geo.incompat.contains(Incompat::EXTENT)),
            (InodeFlags::INLINE_DATA, geo.incompat.contains(Incompat::INLINE_DATA)),
            (InodeFlags::ENCRYPT, geo.incompat.contains(Incompat::ENCRYPT)),
            (InodeFlags::CASEFOLD, geo.incompat.contains(Incompat::CASEFOLD)),
            (InodeFlags::VERITY, geo.ro_compat.contains(RoCompat::VERITY)),
        ];
        by_feature.into_iter().filter(|(_, has)| *has).map(|(flag, _)| flag).collect()
    }
}

/// Returns the kind that `i_mode` names; `None` for types that do not exist.
pub fn kind_of_mode(mode: u16) -> Option<FileKind> {
    FileKind::from_mode(mode.into())
}

/// All kinds and the type byte their directory entries have.
const ENTRY_TYPES: [(FileKind, u8); 7] = [
    (FileKind::Regular, 1),
    (FileKind::Directory, 2),
    (FileKind::CharDevice, 3),
    (FileKind::BlockDevice, 4),
    (FileKind::Fifo, 5),
    (FileKind::Socket, 6),
    (FileKind::Symlink, 7),
];

/// Returns the type byte of a directory entry that names a file of this kind.
pub fn entry_type(kind: FileKind) -> u8 {
    ENTRY_TYPES.iter().find(|(k, _)| *k == kind).map_or(0, |(_, byte)| *byte)
}

/// Returns the kind that a directory entry's type byte names; `None` for 0 (unknown) and illegal values.
pub fn kind_of_entry_type(byte: u8) -> Option<FileKind> {
    ENTRY_TYPES.iter().find(|(_, b)| *b == byte).map(|(kind, _)| *kind)
}

/// The decoded fields of an inode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inode {
    /// The file's type and permissions (`i_mode`).
    pub mode: u16,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// The file's length in bytes.
    pub size: u64,
    /// The link count: names that lead to the inode.
    pub links: u16,
    /// The time of the last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth; `None` where the slot has no room for it.
    pub crtime: Option<Timestamp>,
    /// The time of the deletion, in seconds; 0 while in use. On the orphan list: the next orphan's
    /// number.
    pub dtime: u32,
    /// The inode's flags (`i_flags`).
    pub flags: InodeFlags,
    /// `i_block`: pointers, a fast symbolic link's target, or a device number.
    pub block: [u32; POINTERS],
    /// `i_blocks`: allocated 512-byte units, indirect and attribute blocks included. In blocks if
    /// [`InodeFlags::HUGE_FILE`] is set.
    pub blocks: u64,
    /// The attribute block; 0 means none.
    pub file_acl: u64,
    /// The generation: changes when the number is reused (NFS).
    pub generation: u32,
    /// `i_extra_isize`: bytes in use after the first 128; 0 in slots of 128 bytes.
    pub extra_isize: u16,
    /// The rename that the file is going through. Always `None` of directories, which tell by their `..`, and on
    /// volumes with checksums of metadata, where the fields mean something else.
    pub renaming: Option<Renaming>,
}

impl Inode {
    /// Returns the kind of the file; `None` if `mode` names no type.
    pub fn kind(&self) -> Option<FileKind> {
        kind_of_mode(self.mode)
    }

    /// Returns true for directories.
    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    /// Takes a slot's bytes without judging them.
    ///
    /// # Panics
    /// If `slot` is shorter than [`Geometry::inode_size`], which is the caller's mistake.
    pub fn parse(slot: &[u8], geo: &Geometry) -> Inode {
        let slot = &slot[..geo.inode_size as usize];
        let extra = Extra::of(slot);
        let mode = u16_at(slot, 0x00);
        let size_high = if has_wide_size(kind_of_mode(mode), geo) { u32_at(slot, 0x6C) } else { 0 };
        let blocks_high = if geo.huge_file { u16_at(slot, 0x74) } else { 0 };
        let acl_high = if geo.incompat.contains(Incompat::BIT64) { u16_at(slot, 0x76) } else { 0 };
        Inode {
            mode,
            uid: join16(u16_at(slot, 0x02), u16_at(slot, 0x78)),
            gid: join16(u16_at(slot, 0x18), u16_at(slot, 0x7A)),
            size: join32(u32_at(slot, 0x04), size_high),
            links: u16_at(slot, 0x1A),
            atime: extra.time(slot, 0x08, 0x8C),
            mtime: extra.time(slot, 0x10, 0x88),
            ctime: extra.time(slot, 0x0C, 0x84),
            crtime: extra.covers(0x90).then(|| extra.time(slot, 0x90, 0x94)),
            dtime: u32_at(slot, 0x14),
            flags: InodeFlags::from_bits_retain(u32_at(slot, 0x20)),
            block: std::array::from_fn(|i| u32_at(slot, 0x28 + 4 * i)),
            blocks: join32(u32_at(slot, 0x1C), blocks_high.into()),
            file_acl: join32(u32_at(slot, 0x68), acl_high.into()),
            generation: u32_at(slot, 0x64),
            extra_isize: extra.isize,
            renaming: match kind_of_mode(mode) {
                Some(FileKind::Directory) => None,
                _ if geo.checksums.cover_all() => None,
                _ => Renaming::parse(slot),
            },
        }
    }

    /// Decodes the slot of an inode that is in use, for a file system that is about to use it.
    ///
    /// # Errors
    /// If its checksum is wrong, it has no known type, is deleted, uses features that the volume does not have, is
    /// longer than its map reaches, or if its extra part or attribute block cannot be at the place it
    /// names.
    pub fn decode(slot: &[u8], ino: InodeNo, geo: &Geometry, block: BlockNo) -> Result<Inode, Damage> {
        Self::sealed(slot, ino, geo, block)?;
        let inode = Inode::parse(slot, geo);
        inode.check(ino, geo, block).map(|()| inode)
    }

    fn sealed(slot: &[u8], ino: InodeNo, geo: &Geometry, block: BlockNo) -> Result<(), Damage> {
        let slot = &slot[..geo.inode_size as usize];
        let place = Place::new(Structure::Inode(ino), block);
        geo.checksums.verify(Sealed::Inode(ino), slot).map_err(|problem| place.damage(problem))
    }

    /// Decodes the slot of an inode that has no name any more, or is being cut. Drivers take the size from a removed
    /// directory first.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_orphan(slot: &[u8], ino: InodeNo, geo: &Geometry, block: BlockNo) -> Result<Inode, Damage> {
        Self::sealed(slot, ino, geo, block)?;
        let inode = Inode::parse(slot, geo);
        let is_emptied = inode.links == 0 && inode.size == 0 && inode.kind() == Some(FileKind::Directory);
        let size = if is_emptied { geo.block_size.into() } else { inode.size };
        Inode { size, ..inode.clone() }.check(ino, geo, block)?;
        Ok(inode)
    }

    /// Decodes the slot of an inode that holds the value of an attribute and has no name.
    ///
    /// # Errors
    /// If its checksum is wrong, it is not such an inode, or it is longer than its map reaches.
    pub fn decode_value(slot: &[u8], ino: InodeNo, geo: &Geometry, block: BlockNo) -> Result<Inode, Damage> {
        Self::sealed(slot, ino, geo, block)?;
        let inode = Inode::parse(slot, geo);
        let place = Place::new(Structure::Inode(ino), block);
        let is_value = inode.flags.contains(InodeFlags::EA_INODE) && inode.kind() == Some(FileKind::Regular);
        if !is_value || inode.links == 0 {
            return Err(place.damage("an attribute has its value here, but this is no inode of a value"));
        }
        Inode { flags: inode.flags - InodeFlags::EA_INODE, ..inode.clone() }.check(ino, geo, block)?;
        Ok(inode)
    }

    fn check(&self, ino: InodeNo, geo: &Geometry, block: BlockNo) -> Result<(), Damage> {
        let place = Place::new(Structure::Inode(ino), block);
        let Some(kind) = self.kind() else {
            return Err(place.damage(format!("its mode is {:#o}, which is no file type", self.mode)));
        };
        let foreign = self.flags.intersection(InodeFlags::FOREIGN) - InodeFlags::allowed(geo);
        if !foreign.is_empty() {
            return Err(place.damage(format!("its flags {:#x} are not supported", foreign.bits())));
        }
        if !extra_isize_is_legal(self.extra_isize, geo.inode_size) {
            return Err(place.damage(format!("i_extra_isize is {}", self.extra_isize)));
        }
        if self.file_acl != 0 && !geo.may_point_to(BlockNo(self.file_acl)) {
            return Err(place.damage(format!("its attribute block is {}", self.file_acl)));
        }
        let size_max = self.size_max(kind, geo);
        if self.size > size_max {
            return Err(place.damage(format!("its size is {}, but at most {size_max} is possible", self.size)));
        }
        let inline = self.flags.contains(InodeFlags::INLINE_DATA);
        if inline && self.flags.contains(InodeFlags::EXTENTS) {
            return Err(place.damage("it claims to have its contents inside and in extents"));
        }
        if kind == FileKind::Directory
            && !inline
            && (self.size == 0 || !self.size.is_multiple_of(u64::from(geo.block_size)))
        {
            return Err(
                place.damage(format!("the directory's size is {}, not a multiple of the block size", self.size))
            );
        }
        Ok(())
    }

    fn size_max(&self, kind: FileKind, geo: &Geometry) -> u64 {
        let by_map = match self.flags.contains(InodeFlags::EXTENTS) {
            true => super::extent::LBN_END * u64::from(geo.block_size),
            false => super::map::size_max(geo),
        };
        match kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
                if self.flags.contains(InodeFlags::INLINE_DATA) =>
            {
                geo.inode_size.into()
            }
            FileKind::Regular => by_map,
            FileKind::Directory if geo.incompat.contains(Incompat::LARGE_DIR) => by_map,
            FileKind::Directory => by_map.min(u64::from(i32::MAX as u32)),
            FileKind::Symlink if self.is_fast_symlink(geo) => FAST_SYMLINK_MAX as u64,
            FileKind::Symlink => u64::from(geo.block_size) - 1,
            _ => u64::MAX,
        }
    }

    /// Stores the inode in its slot. Bytes this type does not know are kept.
    ///
    /// # Panics
    /// If `slot` is shorter than [`Geometry::inode_size`], which is the caller's mistake.
    pub fn encode_into(&self, slot: &mut [u8], geo: &Geometry) {
        let slot = &mut slot[..geo.inode_size as usize];
        put_u16(slot, 0x00, self.mode);
        put_u16(slot, 0x02, self.uid as u16);
        put_u16(slot, 0x78, (self.uid >> 16) as u16);
        put_u16(slot, 0x18, self.gid as u16);
        put_u16(slot, 0x7A, (self.gid >> 16) as u16);
        put_u32(slot, 0x04, self.size as u32);
        if has_wide_size(self.kind(), geo) {
            put_u32(slot, 0x6C, (self.size >> 32) as u32);
        }
        put_u32(slot, 0x14, self.dtime);
        put_u16(slot, 0x1A, self.links);
        put_u32(slot, 0x1C, self.blocks as u32);
        if geo.huge_file {
            put_u16(slot, 0x74, (self.blocks >> 32) as u16);
        }
        put_u32(slot, 0x20, self.flags.bits());
        for (i, pointer) in self.block.into_iter().enumerate() {
            put_u32(slot, 0x28 + 4 * i, pointer);
        }
        put_u32(slot, 0x64, self.generation);
        put_u32(slot, 0x68, self.file_acl as u32);
        if geo.incompat.contains(Incompat::BIT64) {
            put_u16(slot, 0x76, (self.file_acl >> 32) as u16);
        }
        self.encode_extra(slot);
        match self.renaming {
            _ if geo.checksums.cover_all() => {}
            Some(renaming) => renaming.encode_into(slot),
            None => Renaming::clear(slot),
        }
    }

    fn encode_extra(&self, slot: &mut [u8]) {
        if slot.len() > GOOD_OLD_BYTES {
            put_u16(slot, 0x80, self.extra_isize);
        }
        let extra = Extra::of(slot);
        extra.put_time(slot, 0x08, 0x8C, self.atime);
        extra.put_time(slot, 0x10, 0x88, self.mtime);
        extra.put_time(slot, 0x0C, 0x84, self.ctime);
        if let Some(crtime) = self.crtime.filter(|_| extra.covers(0x90)) {
            extra.put_time(slot, 0x90, 0x94, crtime);
        }
    }

    /// Returns true if a symbolic link's target lies in the bytes of the pointers: it has no data block.
    pub fn is_fast_symlink(&self, geo: &Geometry) -> bool {
        if self.kind() != Some(FileKind::Symlink)
            || self.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
        {
            return false;
        }
        // The blocks of attribute values in inodes of their own are counted here as well: the length has to tell.
        if geo.incompat.contains(Incompat::EA_INODE) {
            return self.size <= FAST_SYMLINK_MAX as u64;
        }
        let attribute_blocks = if self.file_acl == 0 {
            0
        } else if self.flags.contains(InodeFlags::HUGE_FILE) && geo.huge_file {
            u64::from(geo.cluster_blocks)
        } else {
            u64::from(geo.cluster_blocks) * u64::from(geo.sectors_per_block())
        };
        self.blocks == attribute_blocks
    }

    /// Returns the inode as the owner of its blocks.
    pub fn owner(&self, ino: InodeNo) -> Owner {
        Owner { ino, generation: self.generation }
    }

    /// Begins the map of a new inode: with no block, or with its first one.
    pub fn begin_map(&mut self, geo: &Geometry, first: Option<BlockNo>) {
        if geo.incompat.contains(Incompat::EXTENT) {
            let extent = first.map(|start| Extent { lbn: 0, len: 1, start, unwritten: false });
            self.flags.insert(InodeFlags::EXTENTS);
            self.set_block_bytes(&edit::new_root(extent));
        } else if let Some(first) = first {
            self.block[0] = first.0 as u32;
        }
    }

    /// Returns true if the file is mapped by extents.
    pub fn has_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }

    /// Returns the bytes of `i_block`: the root of an extent tree, or the start of contents inside the inode.
    pub fn block_bytes(&self) -> [u8; 4 * POINTERS] {
        let mut bytes = [0; 4 * POINTERS];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(self.block) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Stores the bytes of `i_block`.
    pub fn set_block_bytes(&mut self, bytes: &[u8; 4 * POINTERS]) {
        self.block = std::array::from_fn(|i| u32_at(bytes, 4 * i));
    }

    /// Returns a fast symbolic link's target.
    pub fn fast_symlink(&self) -> Vec<u8> {
        let mut bytes = self.block_bytes().to_vec();
        bytes.truncate((self.size as usize).min(FAST_SYMLINK_MAX));
        bytes
    }

    /// Makes this a fast symbolic link; returns false if the target is too long.
    pub fn set_fast_symlink(&mut self, target: &[u8]) -> bool {
        if target.len() > FAST_SYMLINK_MAX {
            return false;
        }
        let mut bytes = [0; 4 * POINTERS];
        bytes[..target.len()].copy_from_slice(target);
        self.set_block_bytes(&bytes);
        self.size = target.len() as u64;
        true
    }

    /// Returns the major and minor number of a device.
    pub fn device(&self) -> (u32, u32) {
        if self.block[0] != 0 {
            return (self.block[0] >> 8 & 0xFF, self.block[0] & 0xFF);
        }
        let packed = self.block[1];
        (packed >> 8 & 0xFFF, packed & 0xFF | packed >> 12 & 0xFFF00)
    }

    /// Stores major and minor number of a device: the old way where they fit.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.block = [0; POINTERS];
        if major < 256 && minor < 256 {
            self.block[0] = major << 8 | minor;
        } else {
            self.block[1] = minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xFFF00) << 12;
        }
    }
}

/// Returns true if the size of a file of this kind has 64 bits.
fn has_wide_size(kind: Option<FileKind>, geo: &Geometry) -> bool {
    match kind {
        Some(FileKind::Regular) => true,
        Some(FileKind::Directory) => geo.incompat.contains(Incompat::LARGE_DIR),
        _ => false,
    }
}

/// Returns true if an inode of `inode_size` bytes can have `extra` bytes of extra fields.
pub fn extra_isize_is_legal(extra: u16, inode_size: u32) -> bool {
    extra == 0 || (extra >= 4 && extra.is_multiple_of(4) && u32::from(extra) <= inode_size - 128)
}

impl Extra {
    fn time(self, slot: &[u8], seconds_at: usize, extra_at: usize) -> Timestamp {
        let extra = if self.covers(extra_at) { u32_at(slot, extra_at) } else { 0 };
        decode_time(u32_at(slot, seconds_at), extra)
    }

    fn put_time(self, slot: &mut [u8], seconds_at: usize, extra_at: usize, time: Timestamp) {
        if self.covers(extra_at) {
            let (seconds, extra) = encode_time(time);
            put_u32(slot, seconds_at, seconds);
            put_u32(slot, extra_at, extra);
        } else {
            let seconds = time.secs.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            put_u32(slot, seconds_at, seconds as u32);
        }
    }
}

/// Returns the earliest and latest second a slot with (`true`) or without extra time fields can hold.
pub fn time_range(extra: bool) -> (i64, i64) {
    let low = i64::from(i32::MIN);
    let high = i64::from(i32::MAX);
    (low, if extra { high + (3 << 32) } else { high })
}

/// Decodes the seconds and nanoseconds of a 32-bit field and its extra field. Illegal nanoseconds
/// are clamped.
pub fn decode_time(seconds: u32, extra: u32) -> Timestamp {
    let epoch = i64::from(extra & 3) << 32;
    Timestamp::new(i64::from(seconds as i32) + epoch, extra >> 2)
}

/// Returns the 32-bit field and the extra field of a time, clamped to the range they can hold.
pub fn encode_time(time: Timestamp) -> (u32, u32) {
    let (low, high) = time_range(true);
    let secs = time.secs.clamp(low, high);
    let seconds = secs as u32;
    let epoch = (secs - i64::from(seconds as i32)) >> 32;
    (seconds, (epoch as u32 & 3) | time.nanos.min(999_999_999) << 2)
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::sample;
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU16;

    fn geometry(inode_size: u16) -> Geometry {
        let mut sb = sample();
        sb.set_inode_size(inode_size);
        Geometry::of(&sb, u64::MAX).unwrap()
    }

    #[test]
    fn times_match_the_kernels() {
        assert_eq!(encode_time(Timestamp::new(1_234_567_890, 123_456_789)), (1_234_567_890, 0x1D6F_3454));
        assert_eq!(encode_time(Timestamp::new(5_000_000_000, 987_654_321)), (705_032_704, 0xEB79_A2C5));
        assert_eq!(decode_time(705_032_704, 0xEB79_A2C5), Timestamp::new(5_000_000_000, 987_654_321));
        assert_eq!(decode_time(u32::MAX, 0), Timestamp::new(-1, 0));
    }

    #[test]
    fn small_slots_clamp_times() {
        let geo = geometry(128);
        let mut slot = [0; 128];
        let inode = Inode {
            mode: 0o100644,
            mtime: Timestamp::new(5_000_000_000, 5),
            atime: Timestamp::new(-3_000_000_000, 0),
            crtime: Some(Timestamp::new(1, 1)),
            ..Inode::default()
        };
        inode.encode_into(&mut slot, &geo);
        let back = Inode::parse(&slot, &geo);
        assert_eq!(back.mtime, Timestamp::new(i32::MAX.into(), 0));
        assert_eq!(back.atime, Timestamp::new(i32::MIN.into(), 0));
        assert_eq!(back.crtime, None);
    }

    #[test]
    fn device_numbers_match_the_kernels() {
        let mut inode = Inode::default();
        inode.set_device(300, 70000);
        assert_eq!((inode.block[0], inode.block[1]), (0, 0x1111_2C70));
        assert_eq!(inode.device(), (300, 70000));
        inode.set_device(8, 1);
        assert_eq!((inode.block[0], inode.block[1]), (0x801, 0));
        assert_eq!(inode.device(), (8, 1));
    }

    #[test]
    fn fast_symlinks_hold_59_bytes() {
        let geo = geometry(256);
        let mut inode = Inode { mode: 0o120777, ..Inode::default() };
        assert!(!inode.set_fast_symlink(&[b'x'; 60]));
        assert!(inode.set_fast_symlink(&[b'x'; 59]));
        assert!(inode.is_fast_symlink(&geo));
        assert_eq!(inode.fast_symlink(), [b'x'; 59]);
        inode.file_acl = 100;
        inode.blocks = 2;
        assert!(inode.is_fast_symlink(&geo));
        inode.blocks = 4;
        assert!(!inode.is_fast_symlink(&geo));
    }

    #[test]
    fn unusable_inodes_are_refused_by_name() {
        let geo = geometry(256);
        let good = Inode { mode: 0o100644, links: 1, ..Inode::default() };
        let cases = [
            (Inode { mode: 0o030000, ..good.clone() }, "file type"),
            (Inode { flags: InodeFlags::EXTENTS, ..good.clone() }, "flags"),
            (Inode { size: 1 << 60, ..good.clone() }, "size"),
            (Inode { mode: 0o040755, size: 100, ..good.clone() }, "multiple"),
            (Inode { file_acl: 1, ..good.clone() }, "attribute block"),
            (Inode { extra_isize: 200, ..good.clone() }, "i_extra_isize"),
        ];
        for (inode, word) in cases {
            let mut slot = [0; 256];
            inode.encode_into(&mut slot, &geo);
            let error = Inode::decode(&slot, InodeNo(12), &geo, BlockNo(5)).unwrap_err();
            assert!(error.problem.contains(word), "{error}");
        }
        let mut slot = [0; 256];
        good.encode_into(&mut slot, &geo);
        Inode::decode(&slot, InodeNo(12), &geo, BlockNo(5)).unwrap();
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        let (low, high) = time_range(true);
        (low..=high, 0u32..1_000_000_000).prop_map(|(s, n)| Timestamp::new(s, n))
    }

    proptest! {
        #[test]
        fn every_time_in_range_survives(time in any_time()) {
            let (seconds, extra) = encode_time(time);
            prop_assert_eq!(decode_time(seconds, extra), time);
        }

        #[test]
        fn parse_of_emitted_is_the_same(
            times in prop::array::uniform4(any_time()),
            ids in any::<(u32, u32, u32, u32)>(),
            block in prop::array::uniform15(any::<u32>()),
            size in any::<u64>(), kind in 0usize..7, links in any::<u16>(), blocks in any::<u32>(),
            is_renamed in any::<bool>(), marks in any::<(NonZeroU16, NonZeroU16)>(),
        ) {
            let geo = geometry(256);
            let kind = ENTRY_TYPES[kind].0;
            let inode = Inode {
                mode: kind.mode_bits() as u16 | 0o644,
                uid: ids.0, gid: ids.1, generation: ids.2, file_acl: ids.3.into(),
                size: if kind == FileKind::Regular { size } else { size & 0xFFFF_FFFF },
                links, atime: times[0], mtime: times[1], ctime: times[2], crtime: Some(times[3]),
                dtime: 0, flags: InodeFlags::NOATIME, block, blocks: blocks.into(), extra_isize: 32,
                renaming: (is_renamed && kind != FileKind::Directory).then_some(Renaming { from: InodeNo(ids.0), old: marks.0, to: InodeNo(ids.1), new: marks.1 }),
            };
            let mut slot = [0xA5; 256];
            inode.encode_into(&mut slot, &geo);
            prop_assert_eq!(Inode::parse(&slot, &geo), inode);
            prop_assert!(slot[0xA0..].iter().all(|&b| b == 0xA5));
        }

        #[test]
        fn any_slot_survives_a_rewrite(bytes in prop::collection::vec(any::<u8>(), 256), large in any::<bool>()) {
            let geo = geometry(if large { 256 } else { 128 });
            let _ = Inode::decode(&bytes, InodeNo(12), &geo, BlockNo(5));
            let inode = Inode::parse(&bytes, &geo);
            let mut slot = bytes.clone();
            inode.encode_into(&mut slot, &geo);
            prop_assert_eq!(Inode::parse(&slot, &geo), inode.clone());
            inode.fast_symlink();
            inode.device();
        }
    }
}
