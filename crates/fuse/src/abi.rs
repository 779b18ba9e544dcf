//! The wire: structures, opcodes and flags of FUSE 7.45, and reading and writing them as bytes.
//!
//! Field names follow the protocol's own header. Everything is in the machine's byte order, since both ends are one
//! machine. A structure is only ever copied out of, or viewed as, bytes; none is referenced inside a buffer, so
//! alignment and lifetime of buffers do not matter here.

use std::mem::size_of;

use bitflags::bitflags;

/// Plain old data: `repr(C)`, integers only, no padding.
///
/// # Safety
/// Every bit pattern must be a value of the type, and every byte of it must be initialised. [`wire_structs`] checks
/// both, by only accepting integers and comparing the sum of the field sizes with the size of the structure.
pub(crate) unsafe trait Wire: Copy {}

/// Copies a structure out of the start of `bytes`; `None` if they are too few.
pub(crate) fn parse<T: Wire>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, the read is unaligned, and `Wire` allows every bit pattern.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Returns the bytes of a structure.
pub(crate) fn bytes_of<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: `Wire` types have no padding, so all `size_of::<T>()` bytes are initialised; the borrow keeps them alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// An integer as it may stand in a wire structure.
trait WireInt {}
impl WireInt for u8 {}
impl WireInt for u16 {}
impl WireInt for u32 {}
impl WireInt for i32 {}
impl WireInt for u64 {}
impl WireInt for i64 {}
impl<T: WireInt, const N: usize> WireInt for [T; N] {}

const fn assert_wire_int<T: WireInt>() {}

macro_rules! wire_structs {
    ($($(#[$doc:meta])* $name:ident [$size:literal] { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(0 $(+ size_of::<$ty>())* == $size);
            $(assert_wire_int::<$ty>();)*
        };
        // SAFETY: integers only and no padding, as asserted above.
        unsafe impl Wire for $name {}
    )*};
}

wire_structs! {
    /// Head of every request.
    InHeader[40] { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// Head of every reply and notification; `error` is 0, a negative error number, or a notification code.
    OutHeader[16] { len: u32, error: i32, unique: u64 }

    Attr[88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut[128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut[104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    ForgetIn[8] { nlookup: u64 }
    ForgetOne[16] { nodeid: u64, nlookup: u64 }
    BatchForgetIn[8] { count: u32, dummy: u32 }
    GetattrIn[16] { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn[88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn[8] { mode: u32, umask: u32 }
    RenameIn[8] { newdir: u64 }
    Rename2In[16] { newdir: u64, flags: u32, padding: u32 }
    LinkIn[8] { oldnodeid: u64 }
    OpenIn[8] { flags: u32, open_flags: u32 }
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut[16] { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn[24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn[24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn[40] { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn[40] { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut[8] { size: u32, padding: u32 }
    Kstatfs[80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    InterruptIn[8] { unique: u64 }
    FsyncIn[16] { fh: u64, fsync_flags: u32, padding: u32 }
    /// Without [`SETXATTR_EXT`](crate::InitFlags::SETXATTR_EXT), only the first 8 bytes.
    SetxattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// GETXATTR and LISTXATTR.
    GetxattrIn[8] { size: u32, padding: u32 }
    GetxattrOut[8] { size: u32, padding: u32 }
    AccessIn[8] { mask: u32, padding: u32 }
    /// From minor version 36 on; older kernels send only the first 16 bytes.
    InitIn[64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    IoctlIn[32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut[16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    FallocateIn[32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// Head of a directory entry; the name follows, padded to 8 bytes.
    Dirent[24] { ino: u64, off: u64, namelen: u32, kind: u32 }
    LseekIn[24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut[8] { offset: u64 }
    CopyFileRangeIn[56] {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut[8] { bytes_copied: u64 }
    SyncfsIn[8] { padding: u64 }
    StatxIn[24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime[16] { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx[256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut[288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }

    NotifyInvalInodeOut[24] { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut[16] { parent: u64, namelen: u32, flags: u32 }
    NotifyRetrieveOut[32] { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }

    /// State of a ring entry, at [`RING_ENT_OFFSET`] of its header area.
    RingEntInOut[32] { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// Command area of a ring submission.
    RingCmdReq[24] { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

impl WireInt for Attr {}
impl WireInt for SxTime {}
impl WireInt for Statx {}

/// Major version of the protocol.
pub(crate) const VERSION_MAJOR: u32 = 7;
/// Minor version these structures describe.
pub(crate) const VERSION_MINOR: u32 = 45;

/// Size of the op area of a ring header, bytes; a request's first argument is at most this.
pub(crate) const RING_OP_OFFSET: usize = 128;
/// Offset at which the op area ends and the entry's state begins, bytes.
pub(crate) const RING_ENT_OFFSET: usize = 256;
/// Size of a ring entry's header area: request or reply head, op area, state.
pub(crate) const RING_HEADER_LEN: usize = RING_ENT_OFFSET + size_of::<RingEntInOut>();
/// Hands a ring entry to the kernel for the first time.
pub(crate) const RING_CMD_REGISTER: u32 = 1;
/// Hands over a reply and takes the next request.
pub(crate) const RING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// Codes of notifications, in the place of the error.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_RETRIEVE: i32 = 5;

/// `getattr_flags`: the handle is valid.
pub(crate) const GETATTR_FH: u32 = 1 << 0;
/// Bytes of SETXATTR's argument without `SETXATTR_EXT`.
pub(crate) const SETXATTR_IN_LEN_SHORT: usize = 8;
/// `setxattr_flags`: clear set-group-id, an ACL is set by a caller who is not in the file's group.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fsync_flags`: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `open_flags` of OPEN and CREATE: clear set-user-id and set-group-id.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `flags` of IOCTL: sizes are not encoded in the command (CUSE only).
pub(crate) const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// `flags` of IOCTL: on a directory.
pub(crate) const IOCTL_DIR: u32 = 1 << 4;

bitflags! {
    /// `valid` of SETATTR.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }
}

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arg:ty;)*) => {
        /// The operations this crate knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode { $($name),* }

        impl Opcode {
            /// Every operation, for tests that must not miss one.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),*];

            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            #[cfg(test)]
            pub(crate) fn number(self) -> u32 {
                match self { $(Self::$name => $number),* }
            }

            /// Returns the bytes of the operation's fixed argument: /dev/fuse's buffer splits into argument and payload
            /// there, and so much of a ring entry's op area counts.
            pub(crate) fn arg_len(self) -> usize {
                match self { $(Self::$name => size_of::<$arg>()),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, ();
    Forget = 2, ForgetIn;
    Getattr = 3, GetattrIn;
    Setattr = 4, SetattrIn;
    Readlink = 5, ();
    Symlink = 6, ();
    Mknod = 8, MknodIn;
    Mkdir = 9, MkdirIn;
    Unlink = 10, ();
    Rmdir = 11, ();
    Rename = 12, RenameIn;
    Link = 13, LinkIn;
    Open = 14, OpenIn;
    Read = 15, ReadIn;
    Write = 16, WriteIn;
    Statfs = 17, ();
    Release = 18, ReleaseIn;
    Fsync = 20, FsyncIn;
    Setxattr = 21, SetxattrIn;
    Getxattr = 22, GetxattrIn;
    Listxattr = 23, GetxattrIn;
    Removexattr = 24, ();
    Flush = 25, FlushIn;
    Init = 26, InitIn;
    Opendir = 27, OpenIn;
    Readdir = 28, ReadIn;
    Releasedir = 29, ReleaseIn;
    Fsyncdir = 30, FsyncIn;
    Access = 34, AccessIn;
    Create = 35, CreateIn;
    Interrupt = 36, InterruptIn;
    Destroy = 38, ();
    Ioctl = 39, IoctlIn;
    BatchForget = 42, BatchForgetIn;
    Fallocate = 43, FallocateIn;
    Readdirplus = 44, ReadIn;
    Rename2 = 45, Rename2In;
    Lseek = 46, LseekIn;
    CopyFileRange = 47, CopyFileRangeIn;
    Syncfs = 50, SyncfsIn;
    Tmpfile = 51, CreateIn;
    Statx = 52, StatxIn;
    CopyFileRange64 = 53, CopyFileRangeIn;
}

const _: () = assert!(size_of::<SetattrIn>() <= RING_ENT_OFFSET - RING_OP_OFFSET);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_refuses_a_short_buffer_and_reads_unaligned() {
        let header = InHeader { len: 40, opcode: 3, unique: 7, ..InHeader::default() };
        let mut bytes = vec![0xff];
        bytes.extend_from_slice(bytes_of(&header));
        let read: InHeader = parse(&bytes[1..]).expect("enough bytes");
        assert_eq!((read.len, read.opcode, read.unique), (40, 3, 7));
        assert!(parse::<InHeader>(&bytes[2..]).is_none());
    }

    #[test]
    fn opcode_numbers_round_trip() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode.number()), Some(opcode));
        }
        assert_eq!(Opcode::from_number(0), None);
        assert_eq!(Opcode::from_number(4096), None);
    }
}
