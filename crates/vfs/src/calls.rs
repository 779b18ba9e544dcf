//! The arguments and results of a volume's calls.

use moafs_runtime::Timestamp;

use crate::types::{Attr, Cookie, FileKind, Ino, Name};

/// An inode's attributes as fronts see them.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The inode's number.
    pub ino: Ino,
    /// The attributes; the size includes data that are not on the volume yet.
    pub attr: Attr,
    /// `st_blocks`: 512-byte units, blocks reserved for dirty data included.
    pub sectors: u64,
}

/// A new time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// The given time stamp, clamped to the format's range.
    To(Timestamp),
}

/// The attributes that setattr changes; `None` leaves a field alone.
#[derive(Debug, Clone, Default)]
pub struct SetAttr {
    /// Permission, suid, sgid and sticky bits (12 bits).
    pub perm: Option<u32>,
    /// Owner's user id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends the file.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last change of contents.
    pub mtime: Option<SetTime>,
    /// Inode change time (a front may know better; otherwise now).
    pub ctime: Option<Timestamp>,
    /// Inode flags (`FS_IOC_SETFLAGS`).
    pub flags: Option<u32>,
    /// Clear suid, and sgid where it is executable by the group, as a write does.
    pub kill_suidgid: bool,
}

impl SetAttr {
    /// Returns true if more than times and size change.
    pub(crate) fn changes_inode(&self) -> bool {
        self.perm.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.flags.is_some()
            || (self.kill_suidgid && self.size.is_none())
    }

    /// Returns true if more changes than appending may change.
    pub(crate) fn changes_the_past(&self) -> bool {
        let owner_or_mode = self.perm.is_some() || self.uid.is_some() || self.gid.is_some();
        owner_or_mode || self.size.is_some() || self.sets_old_times()
    }

    /// Returns true if a time is set to anything but now.
    pub(crate) fn sets_old_times(&self) -> bool {
        [self.atime, self.mtime].into_iter().flatten().any(|time| time != SetTime::Now)
    }
}

/// The properties of a new file.
#[derive(Debug, Clone)]
pub struct NewFile<'a> {
    /// The kind of the new file.
    pub kind: FileKind,
    /// Permission bits asked for.
    pub perm: u32,
    /// Bits the umask takes away (unless the directory has a default ACL).
    pub umask: u32,
    /// Device number of device files.
    pub rdev: u64,
    /// Text of a symbolic link.
    pub target: Option<&'a [u8]>,
}

/// The action of a rename when the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the inode that has the new name.
    Replace,
    /// Fail with EEXIST if the new name exists.
    NoReplace,
    /// The two change places.
    Exchange,
    /// Replace it, and leave a whiteout (a character device 0:0) under the old name: how overlay file systems hide a
    /// name of a layer below.
    Whiteout,
}

/// The action of fallocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Allocate (write zeros where no blocks are), extend the size.
    Extend,
    /// Allocate, keep the size (EOPNOTSUPP beyond the end where the format cannot).
    KeepSize,
    /// Punch a hole: the range reads as zeros, its whole blocks are freed.
    Punch,
    /// Zero the range, extend the size unless `keep_size`.
    Zero {
        /// Leave the size alone.
        keep_size: bool,
    },
}

/// The target of a seek: SEEK_DATA or SEEK_HOLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is (or may be) data.
    Data,
    /// The next byte of a hole; the end of the file is one.
    Hole,
}

/// An entry of a listing.
#[derive(Debug)]
pub struct ListEntry<'a> {
    /// The name of the entry.
    pub name: &'a Name,
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode, if the directory records it.
    pub kind: Option<FileKind>,
    /// The cookie from which the listing goes on after this entry.
    pub next: Cookie,
}

/// A change that the front does not learn of by the answers to its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen<'a> {
    /// The attributes of an inode.
    Attributes(Ino),
    /// A name in a directory was made, replaced or removed.
    Name(Ino, &'a Name),
}

/// The numbers that `statfs(2)` reports.
#[derive(Debug, Clone, Copy)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Total blocks, without the format's overhead.
    pub blocks: u64,
    /// Free blocks, those reserved for root included.
    pub free: u64,
    /// Free blocks for ordinary users.
    pub available: u64,
    /// Total inodes of the volume.
    pub inodes: u64,
    /// Inodes not in use.
    pub free_inodes: u64,
    /// File-system id (`f_fsid`).
    pub id: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}
