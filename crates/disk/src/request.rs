//! Disk requests, the tags they carry, and their results.

use crate::{Buf, DiskError, Epoch, Lba, Page};

/// One device command with its memory and its tag.
#[derive(Debug)]
pub struct Request {
    /// The operation, with its memory or length.
    pub op: Op,
    /// The first sector of the request.
    pub at: Lba,
    /// The owner of the request and the reason for it.
    pub tag: Tag,
}

/// The operation of a request. Memory pieces follow one another on the device without gaps.
#[derive(Debug)]
pub enum Op {
    /// Fills the buffers in order (scatter). They are returned in [`Done::result`].
    Read {
        /// The buffers to fill.
        into: Vec<Buf>,
    },
    /// Writes the pages in order (gather). Pages are frozen: they do not change while the write is
    /// under way.
    Write {
        /// The pages to write.
        data: Vec<Page>,
        /// Force unit access: durable by itself when it completes (see `Limits::fua`).
        fua: bool,
    },
    /// The contents are no longer needed; later reads may return anything.
    Discard {
        /// The request's length in sectors.
        sectors: u64,
    },
    /// The sectors read as zeros from now on.
    WriteZeroes {
        /// The request's length in sectors.
        sectors: u64,
    },
}

impl Op {
    /// Returns the operation's name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Discard { .. } => "discard",
            Op::WriteZeroes { .. } => "write of zeroes",
        }
    }
}

impl Op {
    /// Returns the buffers of a read, as [`Done::result`] holds them; an empty list for every other
    /// operation.
    pub fn into_buffers(self) -> Vec<Buf> {
        match self {
            Op::Read { into } => into,
            Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. } => Vec::new(),
        }
    }
}

impl Request {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.op {
            Op::Read { into } => into.iter().map(|b| b.len() as u64).sum(),
            Op::Write { data, .. } => data.iter().map(|p| p.len() as u64).sum(),
            Op::Discard { sectors } | Op::WriteZeroes { sectors } => sectors.saturating_mul(crate::SECTOR as u64),
        }
    }

    /// Returns true if the operation changes the device.
    pub fn is_write(&self) -> bool {
        !matches!(self.op, Op::Read { .. })
    }
}

/// Part of a read into memory that the caller keeps ([`Disk::read_into`](crate::Disk::read_into)).
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// The first sector of the request.
    pub at: Lba,
    /// The memory to fill: whole sectors.
    pub into: &'a mut [u8],
}

/// The result of one request.
#[derive(Debug)]
pub struct Done {
    /// For reads the filled buffers, for everything else an empty list.
    pub result: Result<Vec<Buf>, DiskError>,
    /// The epoch in which the request completed.
    pub epoch: Epoch,
}

/// The contents of a request's sectors. Counters, plots and tests of exact requests are keyed by
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Kind {
    /// Contents of regular files.
    Data,
    /// The superblock and its copies.
    Superblock,
    /// Group descriptors, or another format's volume tables.
    Descriptors,
    /// Block or inode bitmaps.
    Bitmap,
    /// Blocks of the inode table.
    Inodes,
    /// Blocks of directory entries.
    Directory,
    /// Indirect blocks and other maps from file to device.
    Map,
    /// Blocks of extended attributes.
    Xattr,
    /// Targets of symbolic links that do not fit the inode.
    Symlink,
    /// Blocks of a journal.
    Journal,
    /// Nodes of a log-structured format.
    Node,
    /// Segment tables and summaries of a log-structured format.
    Segments,
    /// Memory that was paged out.
    Swap,
}

impl Kind {
    /// Every kind, in order: `ALL[k as usize] == k`.
    pub const ALL: [Kind; 13] = [
        Kind::Data,
        Kind::Superblock,
        Kind::Descriptors,
        Kind::Bitmap,
        Kind::Inodes,
        Kind::Directory,
        Kind::Map,
        Kind::Xattr,
        Kind::Symlink,
        Kind::Journal,
        Kind::Node,
        Kind::Segments,
        Kind::Swap,
    ];

    /// Returns true if the sectors hold no file system metadata: an experiment's disk need not keep
    /// them.
    #[must_use]
    pub fn is_contents(self) -> bool {
        matches!(self, Kind::Data | Kind::Swap)
    }
}

/// The reason for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Cause {
    /// A caller waits for it: a read miss, sync.
    Demand,
    /// A caller waits for one file's data to be durable.
    Fsync,
    /// Reading ahead of a sequential reader.
    ReadAhead,
    /// A dirty block is written to free cache space for others.
    Evict,
    /// The syncer writes a block that has been dirty for long enough.
    Age,
    /// Metadata written because of the order that metadata updates must keep.
    Order,
    /// Data moved to improve the layout: cleaning, defragmentation.
    Move,
    /// Mount, unmount, recovery, check, mkfs.
    Volume,
}

impl Cause {
    /// Every cause, in order: `ALL[k as usize] == k`.
    pub const ALL: [Cause; 8] = [
        Cause::Demand,
        Cause::Fsync,
        Cause::ReadAhead,
        Cause::Evict,
        Cause::Age,
        Cause::Order,
        Cause::Move,
        Cause::Volume,
    ];
}

/// A request's contents, owner and reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The contents of the request's sectors.
    pub kind: Kind,
    /// The inode number the request belongs to; 0 if it belongs to no inode.
    pub owner: u64,
    /// The reason for the request.
    pub cause: Cause,
}

impl Tag {
    /// Makes a tag for a request that belongs to inode `owner`.
    pub const fn new(kind: Kind, owner: u64, cause: Cause) -> Tag {
        Tag { kind, owner, cause }
    }

    /// Makes a tag for requests of the volume as a whole.
    pub const fn volume(kind: Kind) -> Tag {
        Tag { kind, owner: 0, cause: Cause::Volume }
    }
}
