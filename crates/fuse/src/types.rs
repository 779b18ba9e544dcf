//! The types of requests and replies, in the terms of a file system, not of the wire.

use std::time::Duration;

use bitflags::bitflags;

/// The kernel's name for an inode: chosen by the file system in a lookup reply, valid until the kernel has forgotten
/// every lookup of it. Zero is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount. It is never looked up and never forgotten.
    pub const ROOT: Self = Self(1);
    /// No node, in negative entries.
    pub const NONE: Self = Self(0);
}

/// The handle that `open`, `opendir` or `create` returned; zero when they are not implemented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileHandle(pub u64);

/// The caller of a request, and the node it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqCtx {
    /// Number of the request, unique among those in flight.
    pub unique: u64,
    /// The node the request is about; the parent directory where a name is given.
    pub node: NodeId,
    /// File system user id of the caller.
    pub uid: u32,
    /// File system group id of the caller.
    pub gid: u32,
    /// Process id of the caller; 0 when unknown, as in write-back.
    pub pid: u32,
}

/// A point in time: seconds since 1970, may be negative, and nanoseconds below one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds since the epoch, rounded down.
    pub secs: i64,
    /// Nanoseconds, 0..1_000_000_000.
    pub nanos: u32,
}

/// A device number as the kernel packs it into 32 bits: 12 bits of major, 20 bits of minor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber(pub u32);

impl DeviceNumber {
    /// Packs `major` (12 bits) and `minor` (20 bits); higher bits are cut off.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self((minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xfff00) << 12)
    }

    /// Returns the major number.
    pub const fn major(self) -> u32 {
        self.0 >> 8 & 0xfff
    }

    /// Returns the minor number.
    pub const fn minor(self) -> u32 {
        self.0 & 0xff | self.0 >> 12 & 0xfff00
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAttr {
    /// Inode number shown to users.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space allocated, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// File type (`S_IFMT`) and permission bits.
    pub mode: u32,
    /// Names bound to the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number of a character or block special file.
    pub rdev: DeviceNumber,
    /// Preferred size of an I/O request, bytes.
    pub blksize: u32,
}

/// Attributes and for how long the kernel may use them without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: FileAttr,
    /// Validity; [`FOREVER`] when only the kernel changes them.
    pub attr_ttl: Duration,
}

/// A validity that does not end: for a file system all of whose changes come through the kernel.
pub const FOREVER: Duration = Duration::from_secs(1 << 30);

/// Answer to [`statx`](crate::FileSystem::statx): attributes and what only statx shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes.
    pub attr: FileAttr,
    /// Birth time, if the file system keeps one.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits the file system knows.
    pub attributes_mask: u64,
    /// Validity of the attributes.
    pub attr_ttl: Duration,
}

/// Result of a lookup: the node that the name is bound to, or none.
///
/// A positive entry raises the kernel's lookup count of its node by one; [`forget`](crate::FileSystem::forget) lowers
/// it. Count before replying: the forget comes by another path and may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node, or [`NodeId::NONE`] for a cacheable "does not exist".
    pub node: NodeId,
    /// Tells apart two files that had the same node number at different times.
    pub generation: u64,
    /// Attributes of the node.
    pub attr: FileAttr,
    /// Validity of the name.
    pub entry_ttl: Duration,
    /// Validity of the attributes.
    pub attr_ttl: Duration,
}

impl Entry {
    /// Returns the entry of a name that does not exist, and that the kernel may remember as such for `ttl`. (The error
    /// `ENOENT` says the same and is not remembered.)
    pub fn negative(ttl: Duration) -> Self {
        Self { node: NodeId::NONE, generation: 0, attr: FileAttr::default(), entry_ttl: ttl, attr_ttl: Duration::ZERO }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// The given time.
    At(Timestamp),
}

/// The changes that [`setattr`](crate::FileSystem::setattr) makes. All `None` is legal and does arrive: where the file
/// system clears set-user-id ([`crate::InitFlags::HANDLE_KILLPRIV_V2`]), it is the kernel's order to do so before a
/// write, and the kernel uses the mode in the reply from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (and the unchanged file type).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: a truncation or an extension by a hole. At most `i64::MAX`.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time; only sent with the write-back cache.
    pub ctime: Option<Timestamp>,
    /// The file was open; this is its handle.
    pub fh: Option<FileHandle>,
    /// Clear set-user-id, and set-group-id if group-executable: the caller may not keep them.
    pub kill_suidgid: bool,
}

/// Arguments of opening a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenArgs {
    /// `O_*` flags without `O_CREAT`, `O_EXCL`, `O_NOCTTY`; `O_TRUNC` comes as a setattr of its own.
    pub flags: i32,
    /// Clear set-user-id and set-group-id (only with `O_TRUNC`).
    pub kill_suidgid: bool,
}

/// Arguments of creating a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateArgs {
    /// File type and permission bits, not yet masked when POSIX ACLs are on.
    pub mode: u32,
    /// The caller's umask: to be applied unless a default ACL takes its place.
    pub umask: u32,
    /// `O_*` flags of the open that creates.
    pub flags: i32,
    /// Clear set-user-id and set-group-id of an existing file.
    pub kill_suidgid: bool,
}

bitflags! {
    /// Flags of the kernel's handling of an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenReplyFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep what the page cache already holds.
        const KEEP_CACHE = 1 << 1;
        /// No seeking.
        const NONSEEKABLE = 1 << 2;
        /// Cache the directory's entries.
        const CACHE_DIR = 1 << 3;
        /// A stream: no file position.
        const STREAM = 1 << 4;
        /// No flush at close.
        const NOFLUSH = 1 << 5;
        /// With `DIRECT_IO`: allow several writers at once.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// Answer to an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReply {
    /// Handle that comes back with every request on the open file.
    pub fh: FileHandle,
    /// Flags for the kernel.
    pub flags: OpenReplyFlags,
}

bitflags! {
    /// Flags of a write.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// Write-back from the page cache: the caller is not the writer, and times are set by the kernel.
        const CACHE = 1 << 0;
        /// The lock owner field is valid.
        const LOCKOWNER = 1 << 1;
        /// Clear set-user-id, and set-group-id if group-executable.
        const KILL_SUIDGID = 1 << 2;
    }

    /// `renameat2` flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists.
        const NOREPLACE = 1 << 0;
        /// Swap the two names.
        const EXCHANGE = 1 << 1;
        /// Leave a whiteout at the old name.
        const WHITEOUT = 1 << 2;
    }

    /// `setxattr` flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail if the attribute exists.
        const CREATE = 1 << 0;
        /// Fail if the attribute does not exist.
        const REPLACE = 1 << 1;
        /// An ACL is set by a caller who is not in the file's group, so set-group-id is cleared. Set by the kernel, not
        /// by the caller.
        const ACL_KILL_SGID = 1 << 16;
    }

    /// `fallocate` mode bits; none is a plain preallocation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FallocateMode: u32 {
        /// The size stays as it is.
        const KEEP_SIZE = 0x01;
        /// Make a hole; comes with `KEEP_SIZE`.
        const PUNCH_HOLE = 0x02;
        /// Remove the range and close the gap.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeros.
        const ZERO_RANGE = 0x10;
        /// Insert a hole and shift what follows.
        const INSERT_RANGE = 0x20;
        /// Make shared extents private.
        const UNSHARE_RANGE = 0x40;
    }
}

/// The target that `lseek` looks for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// `SEEK_DATA`: the next byte that is not in a hole.
    Data,
    /// `SEEK_HOLE`: the next hole, or the end of the file.
    Hole,
}

/// Arguments of [`copy_file_range`](crate::FileSystem::copy_file_range); the source node is the request's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Handle of the source.
    pub fh_in: FileHandle,
    /// First byte to copy.
    pub offset_in: u64,
    /// The destination.
    pub node_out: NodeId,
    /// Handle of the destination.
    pub fh_out: FileHandle,
    /// Offset of the first byte in the destination.
    pub offset_out: u64,
    /// Bytes to copy; fewer may be copied. Neither range reaches beyond `i64::MAX`.
    pub len: u64,
    /// Flags of the call. No flag is defined today.
    pub flags: u64,
}

/// Arguments of [`ioctl`](crate::FileSystem::ioctl).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoctlArgs<'a> {
    /// Handle of the open file.
    pub fh: FileHandle,
    /// The command number.
    pub cmd: u32,
    /// The caller's argument: a pointer for most commands, of no use here.
    pub arg: u64,
    /// The node is a directory.
    pub directory: bool,
    /// The bytes that the caller passed in.
    pub input: &'a [u8],
}

/// Answer to an ioctl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// Result of the system call.
    pub result: i32,
    /// Bytes of the output buffer that go to the caller.
    pub len: usize,
}

/// Answer to [`statfs`](crate::FileSystem::statfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the file system, in units of `frsize`.
    pub blocks: u64,
    /// Free space, in units of `frsize`.
    pub bfree: u64,
    /// Free space for ordinary users, in units of `frsize`.
    pub bavail: u64,
    /// Number of inodes.
    pub files: u64,
    /// Number of free inodes.
    pub ffree: u64,
    /// Preferred size of an I/O request, bytes.
    pub bsize: u32,
    /// Longest name, bytes.
    pub namelen: u32,
    /// Unit of the block counts, bytes.
    pub frsize: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_keep_large_majors_and_minors() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xf_ffff)] {
            let rdev = DeviceNumber::new(major, minor);
            assert_eq!((rdev.major(), rdev.minor()), (major, minor));
        }
        assert_eq!(DeviceNumber::new(1, 3).0, 0x103);
    }
}
