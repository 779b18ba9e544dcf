//! What is asked of a disk, and what it answers.

use crate::{Buf, DiskError, Epoch, Lba, Page};

/// One device command.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// The first sector.
    pub at: Lba,
    /// Whose request this is and why it is made.
    pub tag: Tag,
}

/// What a request does. Memory pieces follow one another on the device without gaps.
#[derive(Debug)]
pub enum Op {
    /// Fills the buffers in order (scatter). They come back in [`Done::result`].
    Read {
        /// Where the bytes go.
        into: Vec<Buf>,
    },
    /// Writes the pages in order (gather). Pages are frozen: nobody changes them meanwhile.
    Write {
        /// Where the bytes come from.
        data: Vec<Page>,
        /// Force unit access: durable by itself when it completes (see `Limits::fua`).
        fua: bool,
    },
    /// The contents are no longer needed; reading them later gives anything.
    Discard {
        /// Length in sectors.
        sectors: u64,
    },
    /// Reading gives zeros from now on.
    WriteZeroes {
        /// Length in sectors.
        sectors: u64,
    },
}

impl Op {
    /// The word for it in messages.
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
    /// The buffers of a read; nothing for everything else: what [`Done::result`] holds.
    pub fn into_buffers(self) -> Vec<Buf> {
        match self {
            Op::Read { into } => into,
            Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. } => Vec::new(),
        }
    }
}

impl Request {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.op {
            Op::Read { into } => into.iter().map(|b| b.len() as u64).sum(),
            Op::Write { data, .. } => data.iter().map(|p| p.len() as u64).sum(),
            Op::Discard { sectors } | Op::WriteZeroes { sectors } => sectors.saturating_mul(crate::SECTOR as u64),
        }
    }

    /// True for everything that changes the device.
    pub fn is_write(&self) -> bool {
        !matches!(self.op, Op::Read { .. })
    }
}

/// Part of a read into memory that the caller keeps ([`Disk::read_into`](crate::Disk::read_into)).
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// The first sector.
    pub at: Lba,
    /// Where the bytes go: whole sectors.
    pub into: &'a mut [u8],
}

/// How one request ended.
#[derive(Debug)]
pub struct Done {
    /// For reads the filled buffers, for everything else an empty list.
    pub result: Result<Vec<Buf>, DiskError>,
    /// The epoch in which the request completed.
    pub epoch: Epoch,
}

/// What a request carries: counters, plots and exact request assertions hang on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Kind {
    /// File contents.
    Data,
    /// Superblock.
    Superblock,
    /// Group descriptors, or another format's volume tables.
    Descriptors,
    /// Allocation bitmaps.
    Bitmap,
    /// Inode table.
    Inodes,
    /// Directory contents.
    Directory,
    /// Indirect blocks and other maps from file to device.
    Map,
    /// Extended attributes.
    Xattr,
    /// Slow symbolic links.
    Symlink,
    /// Journal.
    Journal,
    /// Nodes of a log-structured format.
    Node,
    /// Segment tables and summaries of a log-structured format.
    Segments,
    /// Paged-out memory.
    Swap,
}

impl Kind {
    /// All of them, in order: `ALL[k as usize] == k`.
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

    /// True if no format finds its way by what it says: a disk of an experiment may forget it.
    #[must_use]
    pub fn is_contents(self) -> bool {
        matches!(self, Kind::Data | Kind::Swap)
    }
}

/// Why a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Cause {
    /// Somebody waits for it: a read miss, fsync, sync.
    Demand,
    /// Read-ahead.
    ReadAhead,
    /// A dirty block gives way to others.
    Evict,
    /// The syncer found it old.
    Age,
    /// Ordered metadata write-out.
    Order,
    /// Moved for the layout's sake: cleaning, defragmentation.
    Move,
    /// Mount, unmount, recovery, check, mkfs.
    Volume,
}

impl Cause {
    /// All of them, in order: `ALL[k as usize] == k`.
    pub const ALL: [Cause; 7] =
        [Cause::Demand, Cause::ReadAhead, Cause::Evict, Cause::Age, Cause::Order, Cause::Move, Cause::Volume];
}

/// What a request carries, whose it is, and why it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// What the request carries.
    pub kind: Kind,
    /// The inode number it belongs to; 0 where that makes no sense.
    pub owner: u64,
    /// Why it is made.
    pub cause: Cause,
}

impl Tag {
    /// A tag for `owner`'s request.
    pub const fn new(kind: Kind, owner: u64, cause: Cause) -> Tag {
        Tag { kind, owner, cause }
    }

    /// A tag for requests of the volume as a whole.
    pub const fn volume(kind: Kind) -> Tag {
        Tag { kind, owner: 0, cause: Cause::Volume }
    }
}
