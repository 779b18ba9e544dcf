//! The types that are the same in every format: numbers of inodes and blocks, attributes, names.
//!
//! Block numbers, inode numbers and byte offsets are different types on purpose: they are not the
//! same integer.

use std::ops::{Add, Range, Sub};

use moafs_runtime::Timestamp;

/// An inode number. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// A logical block number inside a file: byte offset / block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lbn(pub u64);

/// A block number on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockAddr(pub u64);

/// Steps and distances of positions. A step never leaves the range of the number.
macro_rules! position {
    ($($t:ty),*) => {$(
        impl $t {
            /// The last position of all.
            pub const MAX: $t = Self(u64::MAX);

            /// Returns the steps from `before` to here, `None` if it lies behind.
            pub fn checked_sub(self, before: $t) -> Option<u64> {
                self.0.checked_sub(before.0)
            }

            /// Returns the position `steps` further on, the last of all at most.
            pub fn saturating_add(self, steps: u64) -> $t {
                Self(self.0.saturating_add(steps))
            }

            /// Returns the position `steps` before, the first of all at least.
            pub fn saturating_sub(self, steps: u64) -> $t {
                Self(self.0.saturating_sub(steps))
            }
        }

        impl Add<u64> for $t {
            type Output = $t;
            fn add(self, steps: u64) -> $t {
                Self(self.0 + steps)
            }
        }

        impl Sub for $t {
            type Output = u64;
            fn sub(self, before: $t) -> u64 {
                self.0 - before.0
            }
        }
    )*};
}
position!(Lbn, BlockAddr);

macro_rules! shown_as_number {
    ($($t:ty),*) => {$(
        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
shown_as_number!(Ino, Lbn, BlockAddr);

/// Contiguous blocks on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRun {
    /// Address of the first block.
    pub start: BlockAddr,
    /// Length in blocks.
    pub len: u32,
}

impl BlockRun {
    /// Returns the block after the last one.
    pub fn end(self) -> BlockAddr {
        self.start + u64::from(self.len)
    }
}

/// Contiguous logical blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LbnRange {
    /// The first logical block.
    pub start: Lbn,
    /// Length in blocks.
    pub len: u32,
}

impl LbnRange {
    /// Returns the logical block after the last one.
    pub fn end(self) -> Lbn {
        self.start + u64::from(self.len)
    }

    /// Returns the range as maps and sets by block take it.
    pub fn bounds(self) -> Range<Lbn> {
        self.start..self.end()
    }

    /// Returns the blocks in order.
    pub fn lbns(self) -> impl Iterator<Item = Lbn> {
        (0..u64::from(self.len)).map(move |skipped| self.start + skipped)
    }
}

/// A range of one file, as a planned write ([`crate::plan::PlannedWrite`]) puts them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileRange {
    /// The file's inode number.
    pub ino: Ino,
    /// The logical blocks of that file.
    pub range: LbnRange,
}

/// The mapping at a place of a file: one run of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// No blocks: reads as zeros. `len` blocks of it (at least 1, at most as many as asked for).
    Hole {
        /// Length in blocks.
        len: u32,
    },
    /// Allocated but never written: reads as zeros (formats with extents only).
    Unwritten(BlockRun),
    /// Blocks that hold data.
    Run(BlockRun),
}

impl Mapping {
    /// Returns the length in blocks.
    pub fn len(&self) -> u32 {
        match self {
            Mapping::Hole { len } => *len,
            Mapping::Unwritten(run) | Mapping::Run(run) => run.len,
        }
    }

    /// Returns false: a mapping covers at least one block.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl FileKind {
    /// Returns the kind in the type bits of a mode (`S_IFMT`); `None` if they are no kind of file.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }

    /// Returns the type bits of a mode (`S_IFMT`).
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
        }
    }
}

/// The attributes that vfs keeps of an inode. The addresses of its blocks are the format's private matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The kind of the file.
    pub kind: FileKind,
    /// Permission, suid, sgid and sticky bits (12 bits).
    pub perm: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names (hard links).
    pub nlink: u32,
    /// Size in bytes. For directories and symbolic links the format's answer.
    pub size: u64,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of contents.
    pub mtime: Timestamp,
    /// Time of the last change of the inode.
    pub ctime: Timestamp,
    /// Time at which the inode was made, if the format keeps it.
    pub crtime: Option<Timestamp>,
    /// Device number of device files, as `makedev` encodes it; 0 otherwise.
    pub rdev: u64,
    /// The generation, which distinguishes reuses of one inode number.
    pub generation: u32,
    /// `FS_IOC_GETFLAGS` bits (immutable, append-only, nodump, noatime…).
    pub flags: u32,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry {
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode, if the directory records it (without reading the inode).
    pub kind: Option<FileKind>,
}

/// The position at which a directory listing goes on. Opaque; survives insertions and removals of other names.
/// `Cookie::START` is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cookie(pub u64);

impl Cookie {
    /// The position before the first entry of a directory.
    pub const START: Cookie = Cookie(0);
}

/// A file name: 1 to 255 bytes without NUL and `/`; not necessarily UTF-8.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Name([u8]);

impl Name {
    /// The longest name in bytes.
    pub const BYTES_MAX: usize = 255;

    /// Returns the bytes as a name, `None` if they are not one. `.` and `..` are names here; vfs refuses them where
    /// POSIX does.
    pub fn new(bytes: &[u8]) -> Option<&Name> {
        let legal = (1..=Self::BYTES_MAX).contains(&bytes.len()) && !bytes.iter().any(|b| *b == 0 || *b == b'/');
        // SAFETY: `Name` is a transparent wrapper of `[u8]`.
        legal.then(|| unsafe { &*(std::ptr::from_ref(bytes) as *const Name) })
    }

    /// Returns the bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// The name space of an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XattrSpace {
    /// Attributes of users: the prefix `user.`
    User,
    /// Attributes that only root may use: the prefix `trusted.`
    Trusted,
    /// Attributes of security modules: the prefix `security.`
    Security,
    /// `system.posix_acl_access` (the suffix is empty)
    AclAccess,
    /// `system.posix_acl_default` (the suffix is empty)
    AclDefault,
}

/// The key of an extended attribute. ACL values cross this seam in the system call's form
/// (version 2); a format converts to its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrKey {
    /// The name space, which the prefix of the full name tells.
    pub space: XattrSpace,
    /// The part of the name after the name space's prefix.
    pub suffix: Box<[u8]>,
}

impl XattrKey {
    /// Splits a full name such as `user.comment`; `None` for a name space that no format stores.
    pub fn parse(full: &[u8]) -> Option<XattrKey> {
        let key = |space, suffix: &[u8]| Some(XattrKey { space, suffix: suffix.into() });
        match full {
            b"system.posix_acl_access" => return key(XattrSpace::AclAccess, b""),
            b"system.posix_acl_default" => return key(XattrSpace::AclDefault, b""),
            _ => {}
        }
        for (prefix, space) in [
            (&b"user."[..], XattrSpace::User),
            (b"trusted.", XattrSpace::Trusted),
            (b"security.", XattrSpace::Security),
        ] {
            if let Some(suffix) = full.strip_prefix(prefix) {
                return if suffix.is_empty() { None } else { key(space, suffix) };
            }
        }
        None
    }

    /// Returns the full name, prefix included.
    pub fn full(&self) -> Vec<u8> {
        let prefix: &[u8] = match self.space {
            XattrSpace::User => b"user.",
            XattrSpace::Trusted => b"trusted.",
            XattrSpace::Security => b"security.",
            XattrSpace::AclAccess => b"system.posix_acl_access",
            XattrSpace::AclDefault => b"system.posix_acl_default",
        };
        [prefix, &self.suffix].concat()
    }
}

/// `XATTR_CREATE`, `XATTR_REPLACE`, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Set the attribute, whether it exists or not.
    Any,
    /// Fail if the attribute exists (`XATTR_CREATE`).
    Create,
    /// Fail if the attribute does not exist (`XATTR_REPLACE`).
    Replace,
}
