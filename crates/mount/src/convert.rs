//! Conversions between the types of FUSE and of vfs.

use moafs_fuse::{DeviceNumber, Errno, FallocateMode, FileAttr, RenameFlags, StatFs, Timestamp};
use moafs_vfs::api::{self, Allocate, RenameMode, Stat};
use moafs_vfs::types::{Attr, FileKind};

/// `FS_*_FL` flags that [`moafs_vfs::types::Attr::flags`] carries, as chattr(1) sets them.
pub(crate) const FS_COMPR_FL: u32 = 0x04;
pub(crate) const FS_SYNC_FL: u32 = 0x08;
pub(crate) const FS_IMMUTABLE_FL: u32 = 0x10;
pub(crate) const FS_APPEND_FL: u32 = 0x20;
pub(crate) const FS_NODUMP_FL: u32 = 0x40;
pub(crate) const FS_NOATIME_FL: u32 = 0x80;

/// The same flags as `FS_XFLAG_*` bits of `struct fsxattr`.
const XFLAGS: [(u32, u32); 5] =
    [(FS_IMMUTABLE_FL, 0x08), (FS_APPEND_FL, 0x10), (FS_SYNC_FL, 0x20), (FS_NOATIME_FL, 0x40), (FS_NODUMP_FL, 0x80)];

/// `FS_*_FL` bits that can be expressed as `FS_XFLAG_*`.
pub(crate) const FLAGS_OF_XFLAGS: u32 = FS_IMMUTABLE_FL | FS_APPEND_FL | FS_SYNC_FL | FS_NOATIME_FL | FS_NODUMP_FL;

/// The same flags as `STATX_ATTR_*` bits.
const STATX_ATTRIBUTES: [(u32, u64); 4] =
    [(FS_COMPR_FL, 0x04), (FS_IMMUTABLE_FL, 0x10), (FS_APPEND_FL, 0x20), (FS_NODUMP_FL, 0x40)];

/// All `STATX_ATTR_*` bits that vfs can report.
pub(crate) const STATX_ATTRIBUTES_MASK: u64 = 0x04 | 0x10 | 0x20 | 0x40;

/// Returns the `STATX_ATTR_*` bits of inode flags.
pub(crate) fn statx_attributes(flags: u32) -> u64 {
    STATX_ATTRIBUTES.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum()
}

/// Returns the `FS_XFLAG_*` bits of inode flags.
pub(crate) fn xflags(flags: u32) -> u32 {
    XFLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum()
}

/// Returns the inode flags of `FS_XFLAG_*` bits, or `None` if one of the bits cannot be stored.
pub(crate) fn flags_of_xflags(xflags: u32) -> Option<u32> {
    let known: u32 = XFLAGS.iter().map(|(_, bit)| bit).sum();
    let flags = XFLAGS.iter().filter(|(_, bit)| xflags & bit != 0).map(|(flag, _)| flag).sum();
    (xflags & !known == 0).then_some(flags)
}

pub(crate) fn timestamp(time: moafs_runtime::Timestamp) -> Timestamp {
    Timestamp { secs: time.secs, nanos: time.nanos }
}

pub(crate) fn from_timestamp(time: Timestamp) -> moafs_runtime::Timestamp {
    moafs_runtime::Timestamp::new(time.secs, time.nanos)
}

pub(crate) fn set_time(time: moafs_fuse::SetTime) -> api::SetTime {
    match time {
        moafs_fuse::SetTime::Now => api::SetTime::Now,
        moafs_fuse::SetTime::At(at) => api::SetTime::To(from_timestamp(at)),
    }
}

/// Converts `makedev` of the C library to the kernel's 32 bits.
pub(crate) fn device(rdev: u64) -> DeviceNumber {
    DeviceNumber::new(libc::major(rdev), libc::minor(rdev))
}

/// Converts the kernel's 32 bits to `makedev` of the C library.
pub(crate) fn rdev(device: DeviceNumber) -> u64 {
    libc::makedev(device.major(), device.minor())
}

pub(crate) fn mode(attr: &Attr) -> u32 {
    attr.kind.mode_bits() | attr.perm & 0o7777
}

/// Returns the type bits of an entry; none, "unknown" to readers, if the directory does not record its kind.
pub(crate) fn kind_mode(kind: Option<FileKind>) -> u32 {
    kind.map_or(0, FileKind::mode_bits)
}

pub(crate) fn file_attr(stat: &Stat, block_size: u32) -> FileAttr {
    let attr = &stat.attr;
    FileAttr {
        ino: stat.ino.0,
        size: attr.size,
        blocks: stat.sectors,
        atime: timestamp(attr.atime),
        mtime: timestamp(attr.mtime),
        ctime: timestamp(attr.ctime),
        mode: mode(attr),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        blksize: block_size,
    }
}

pub(crate) fn stat_fs(space: &api::StatFs) -> StatFs {
    StatFs {
        blocks: space.blocks,
        bfree: space.free,
        bavail: space.available,
        files: space.inodes,
        ffree: space.free_inodes,
        bsize: space.block_size,
        namelen: space.name_max,
        frsize: space.block_size,
    }
}

pub(crate) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, Errno> {
    match flags {
        f if f.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::NOREPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::EXCHANGE => Ok(RenameMode::Exchange),
        RenameFlags::WHITEOUT => Ok(RenameMode::Whiteout),
        // The kernel has found that nothing has the new name.
        f if f == RenameFlags::NOREPLACE | RenameFlags::WHITEOUT => Ok(RenameMode::Whiteout),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) fn allocate(mode: FallocateMode) -> Result<Allocate, Errno> {
    let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
    match mode - FallocateMode::KEEP_SIZE {
        FallocateMode::PUNCH_HOLE if keep_size => Ok(Allocate::Punch),
        FallocateMode::ZERO_RANGE => Ok(Allocate::Zero { keep_size }),
        m if m.is_empty() && keep_size => Ok(Allocate::KeepSize),
        m if m.is_empty() => Ok(Allocate::Extend),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_the_way_through_xflags() {
        for flags in [0, FS_IMMUTABLE_FL, FS_APPEND_FL | FS_NODUMP_FL, FLAGS_OF_XFLAGS] {
            assert_eq!(flags_of_xflags(xflags(flags)), Some(flags));
        }
        assert_eq!(flags_of_xflags(0x1000_0000), None);
        assert_eq!(statx_attributes(FS_IMMUTABLE_FL | FS_NODUMP_FL), 0x50);
    }

    #[test]
    fn fallocate_modes_map_or_are_refused() {
        type M = FallocateMode;
        assert_eq!(allocate(M::empty()), Ok(Allocate::Extend));
        assert_eq!(allocate(M::KEEP_SIZE), Ok(Allocate::KeepSize));
        assert_eq!(allocate(M::KEEP_SIZE | M::PUNCH_HOLE), Ok(Allocate::Punch));
        assert_eq!(allocate(M::ZERO_RANGE), Ok(Allocate::Zero { keep_size: false }));
        for refused in [M::PUNCH_HOLE, M::COLLAPSE_RANGE, M::INSERT_RANGE, M::ZERO_RANGE | M::PUNCH_HOLE] {
            assert_eq!(allocate(refused), Err(Errno::EOPNOTSUPP));
        }
    }

    #[test]
    fn only_whiteouts_combine_with_other_rename_flags() {
        assert_eq!(rename_mode(RenameFlags::EXCHANGE), Ok(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::WHITEOUT), Ok(RenameMode::Whiteout));
        assert_eq!(rename_mode(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT), Ok(RenameMode::Whiteout));
        assert_eq!(rename_mode(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE), Err(Errno::EINVAL));
    }

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(8, 1), (259, 70_000)] {
            let number = libc::makedev(major, minor);
            assert_eq!(rdev(device(number)), number);
        }
    }
}
