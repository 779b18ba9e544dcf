//! The seam between POSIX and an on-disk format. `ARCHITECTURE.md` says method by method what each engine does.
//!
//! It was settled for in-place metadata (ext2), a journal (ext3, ext4) and a log (F2FS) before any
//! of them was written: metadata changes only inside an *op* that declares its kind; all waiting for
//! space happens in [`Format::admit`], before any lock; what leaves the cache is decided in
//! [`Format::plan`]; durability is a [`Seal`] that [`Format::harden`] must reach.
//! A format stores; it does not decide who may do what, and it never calls back into POSIX rules.

use std::sync::Arc;
use std::time::Duration;

use moafs_disk::Epoch;
use moafs_runtime::Time;

use crate::error::Result;
use crate::plan::{DirtyView, Due, Plan};
use crate::types::{Attr, BlockRun, Cookie, Dentry, FileKind, Ino, Lbn, LbnRange, Mapping, Name, SetMode, XattrKey};
use crate::volatile::Volatile;

pub use crate::unplaced::MapShape;

/// What does not change while a volume is mounted.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The format's name: `ext2`.
    pub format: &'static str,
    /// Bytes in a block: a power of two.
    pub block_size: u32,
    /// The root directory.
    pub root: Ino,
    /// Total blocks, as statfs shows them (without the format's overhead).
    pub blocks: u64,
    /// Total inodes.
    pub inodes: u64,
    /// The largest file in bytes.
    pub file_bytes_max: u64,
    /// The most names an inode can have.
    pub links_max: u32,
    /// The longest target of a symbolic link in bytes.
    pub symlink_bytes_max: usize,
    /// First and last second a time stamp can hold.
    pub time_range: (i64, i64),
    /// True if time stamps keep nanoseconds. (New inodes; old ones may be smaller.)
    pub time_nanos: bool,
    /// True if blocks can be allocated without being written.
    pub unwritten: bool,
    /// True if blocks can lie beyond the end of a file.
    pub beyond_eof: bool,
    /// True if addresses are chosen at `write()` ([`Format::early`]), not when data leave the cache.
    pub early: bool,
    /// `f_fsid`.
    pub id: u64,
    /// The volume's label.
    pub label: String,
    /// `Some(reason)` if the volume cannot be changed at all.
    pub read_only: Option<String>,
    /// What whoever mounts the volume should know of its state.
    pub notes: Vec<String>,
}

/// Space, in blocks and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Not used and not promised, those for root included. Freed-not-yet-reusable ones count.
    pub free_blocks: u64,
    /// Of those, for root only.
    pub root_blocks: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// What an op, or the write-back of what was just written, will need at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// File blocks without an address yet.
    pub data_blocks: u64,
    /// Map blocks that placing them may take, by [`Format::map_shape`].
    pub map_blocks: u64,
    /// Directory blocks and other metadata blocks.
    pub meta_blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// For whom space is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceClass {
    /// An ordinary user: stops before the reserved blocks.
    User {
        /// User id: the volume may reserve blocks for one.
        uid: u32,
        /// Group id, likewise.
        gid: u32,
    },
    /// Root, and the file system itself.
    Root,
}

/// Space promised by [`Format::admit`]. What is not spent goes back when it is dropped.
pub struct Admission {
    blocks: u64,
    give_back: Option<Arc<dyn Reservations>>,
}

/// Where reservations come from and go back to: a format's counter of promised blocks.
pub trait Reservations: Send + Sync {
    /// `blocks` promised blocks are not needed any more, or have become allocated ones.
    fn release(&self, blocks: u64);
}

impl Admission {
    /// For ops that need no space.
    pub fn none() -> Admission {
        Admission { blocks: 0, give_back: None }
    }

    /// Wraps `blocks` that a format has just counted as promised.
    pub fn new(blocks: u64, give_back: Arc<dyn Reservations>) -> Admission {
        Admission { blocks, give_back: Some(give_back) }
    }

    /// Blocks still promised.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Spends up to `blocks`: they have become allocated (or are not needed).
    pub fn spend(&mut self, blocks: u64) {
        let spent = blocks.min(self.blocks);
        self.blocks -= spent;
        if let (Some(to), true) = (&self.give_back, spent > 0) {
            to.release(spent);
        }
    }

    /// Takes over another admission's promise.
    pub fn absorb(&mut self, mut other: Admission) {
        self.blocks += other.blocks;
        other.blocks = 0;
        if self.give_back.is_none() {
            self.give_back = other.give_back.take();
        }
    }

    /// Splits off up to `blocks`.
    pub fn split(&mut self, blocks: u64) -> Admission {
        let taken = blocks.min(self.blocks);
        self.blocks -= taken;
        Admission { blocks: taken, give_back: self.give_back.clone() }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.spend(self.blocks);
    }
}

/// What an op is going to do: a journal reads its credits from it, a checkpoint its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// A new inode and its name (create, mknod, mkdir, symlink), or an inode without one (tmpfile).
    Create,
    /// A new name for an existing inode.
    Link,
    /// A name goes.
    Unlink,
    /// A name moves, perhaps over another.
    Rename,
    /// Two names change places.
    Exchange,
    /// Attributes of one inode.
    Attr,
    /// Extended attributes of one inode.
    Xattr,
    /// Written blocks get their place in the file.
    Place,
    /// Blocks leave a file: truncate, punch, reap.
    Unmap,
}

/// What must be reached for something to be durable. Formats number their own progress: soft-update
/// levels, transaction ids, checkpoint versions. `Seal::NONE` is always reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seal(pub u64);

impl Seal {
    /// Nothing to wait for.
    pub const NONE: Seal = Seal(0);
}

/// How much of a file must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harden {
    /// fsync: data, attributes, and the names that lead to it.
    All,
    /// fdatasync: data and what is needed to reach it; times may be stale.
    Data,
}

/// Why everything is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// sync, syncfs.
    Sync,
    /// The syncer's interval.
    Age,
    /// Space or memory is short: freed space becomes usable.
    Pressure,
    /// The volume is about to be closed.
    Unmount,
}

/// Whether the volume is being used, for background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Requests came recently: only what cannot wait.
    Busy,
    /// Nobody has asked for anything for this long.
    For(Duration),
}

/// What a name shall point to.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a, N> {
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// The format's part of it: ordering needs to know what the name depends on.
    pub node: &'a N,
}

/// How far a bounded piece of work came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All done.
    Done,
    /// Call again in a new op.
    More,
}

/// A small file near another on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Its number.
    pub ino: Ino,
    /// All its blocks, in file order.
    pub run: BlockRun,
}

/// Takes directory entries; returns false to stop (the listing then resumes *at* this entry).
/// Arguments: name, entry, and the cookie from which the listing goes on *after* this entry.
pub type DirSink<'a> = dyn FnMut(&Name, Dentry, Cookie) -> bool + 'a;

/// Takes one file's layout during a survey.
pub trait Survey {
    /// A file (regular, directory or slow symlink) with its runs in file order: `(lbn, run)`.
    fn file(&mut self, ino: Ino, kind: FileKind, parent: Option<Ino>, runs: &[(Lbn, BlockRun)]);
    /// The free runs of the volume, ascending.
    fn free(&mut self, run: BlockRun);
    /// Metadata at a fixed place (`inode table of group 3`).
    fn metadata(&mut self, what: &'static str, group: u64, run: BlockRun);
}

/// An on-disk format with its way of placing data. See the table in ARCHITECTURE.md for what each
/// engine does in each method.
///
/// Threads call it in parallel. Except where said otherwise a caller may hold vfs inode locks.
pub trait Format: Send + Sync + 'static {
    /// The format's private part of an in-memory inode. Changes inside (interior mutability) are
    /// visible to readers at once.
    type Node: Send + Sync + 'static;
    /// A running op.
    type Op<'a>: FormatOp<Node = Self::Node>
    where
        Self: 'a;

    // -- volume

    /// What does not change.
    fn shape(&self) -> &Shape;
    /// Space as statfs shows it; reservations are subtracted.
    fn space(&self) -> Space;
    /// `Some(first reason)` once a write error or an inconsistency has turned the volume read-only.
    fn failed(&self) -> Option<String>;
    /// Tells the format that the device refused a data write. A format that cannot put the data elsewhere turns the
    /// volume read-only and keeps the first reason.
    fn fail(&self, reason: &str);

    // -- reading: parallel, no op

    /// Reads and checks an inode. `Error::Stale` if it is free.
    fn load(&self, ino: Ino) -> Result<(Attr, Self::Node)>;
    /// Looks a name up in a directory. `.` is not asked for; `..` is.
    fn lookup(&self, dir: &Self::Node, name: &Name) -> Result<Option<Dentry>>;
    /// Lists a directory from a cookie on, `.` and `..` included.
    fn list(&self, dir: &Self::Node, from: Cookie, to: &mut DirSink<'_>) -> Result<()>;
    /// True if the directory holds only `.` and `..`.
    fn is_empty(&self, dir: &Self::Node) -> Result<bool>;
    /// The target of a symbolic link.
    fn readlink(&self, link: &Self::Node) -> Result<Vec<u8>>;
    /// What lies at `at`: one run of at most `max` blocks (`max` > 0).
    fn map(&self, file: &Self::Node, at: Lbn, max: u32) -> Result<Mapping>;
    /// Contents of a block of a regular file that has no block of its own on the device: they lie in the inode, or wait in memory.
    /// Asked where the map shows a hole or an unwritten block; at most a block, and what is missing of it is zeros.
    fn resident(&self, _file: &Self::Node, _at: Lbn) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Counts how often blocks that files have moved away from became usable again. A read that sees it change may have read
    /// somebody else's bytes, and is made again. Formats that move blocks only with the inode's lock held need not count.
    fn reuses(&self) -> u64 {
        0
    }
    /// Small files that probably belong with `file`, each in one run, and all of it within `reach` blocks of `around`; ascending by
    /// address. What is known without a device request; a hint, which [`Format::load`] and [`Format::map`] confirm without one and without
    /// finding damage that nobody asked for.
    fn neighbours(&self, _file: &Self::Node, _around: BlockRun, _reach: u32) -> Vec<Neighbour> {
        Vec::new()
    }
    /// How the blocks of a regular file are mapped. It does not change while some of them are dirty.
    fn map_shape(&self, _file: &Self::Node) -> MapShape {
        MapShape::FLAT
    }
    /// How many of the map blocks that lead to `at` do not exist, counted from the lowest; `u8::MAX` if that is not known.
    fn missing_maps(&self, _file: &Self::Node, _at: Lbn) -> Result<u8> {
        Ok(u8::MAX)
    }
    /// `st_blocks`: 512-byte units the file occupies on the volume, maps included.
    fn used_sectors(&self, node: &Self::Node) -> u64;
    /// An inode's generation, which the format chose when the inode was made: with the number it tells the file from those that had
    /// the number before.
    fn generation(&self, node: &Self::Node) -> u32;
    /// The size in bytes of a directory or symbolic link now (vfs keeps that of regular files itself).
    fn size(&self, node: &Self::Node) -> u64;
    /// An extended attribute's value.
    fn xattr(&self, node: &Self::Node, key: &XattrKey) -> Result<Option<Vec<u8>>>;
    /// All extended attributes' keys.
    fn xattr_list(&self, node: &Self::Node) -> Result<Vec<XattrKey>>;

    // -- space, then changes

    /// Reserves space, or says ENOSPC: the only source of it. May wait, commit and clean, therefore
    /// it is called with NO inode lock held.
    fn admit(&self, need: Need, who: SpaceClass) -> Result<Admission>;
    /// Starts an op. Waits for the op gate only. Fails if the volume is read-only.
    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<Self::Op<'a>>;

    // -- data leaves the cache

    /// Called at `write()`, with the inode lock held, if [`Shape::early`] says so: may choose addresses for `range`
    /// (which the map then shows as unwritten), and spends what they cost.
    fn early(&self, _file: &Self::Node, _range: LbnRange, _admission: &mut Admission) -> Result<()> {
        Ok(())
    }
    /// THE decision: who travels with `due`, and where to. Runs it allocates are taken in memory only. Called
    /// with no inode lock held.
    fn plan(&self, due: Due, dirty: &dyn DirtyView<Self::Node>) -> Result<Plan>;
    /// Blocks for swap areas, taken in memory only; `None` if the format has none to give.
    fn volatile(&self) -> Option<Arc<dyn Volatile>> {
        None
    }
    /// So many blocks are about to be reserved for swap areas: commits, or cleans, if that makes them free. May wait.
    fn make_way(&self, _blocks: u64) -> Result<()> {
        Ok(())
    }
    /// Part of a fresh travel's run was not written after all: give it back.
    fn abandon(&self, run: BlockRun);

    // -- durability

    /// Makes a file's metadata durable up to `upto` (and, for [`Harden::All`], the names that lead to it). Its
    /// data have been written and placed by vfs; they completed in `data` at the latest.
    fn harden(&self, node: &Self::Node, upto: Seal, data: Epoch, how: Harden) -> Result<()>;
    /// Makes everything durable that was changed before the call.
    fn commit(&self, why: Why) -> Result<()>;
    /// Called before every call that changes something, with level 0 only, before any name is looked up: what a crash interrupted halfway
    /// is ended or undone now. Nothing but a look at a flag once that is done.
    fn settle_names(&self) -> Result<()> {
        Ok(())
    }
    /// True if directories must not be moved or removed before [`Self::settle_directories`].
    fn is_unsettled(&self) -> bool {
        false
    }
    /// Finds out which directories a crash left with two names, and mends them. Level 0 only, before the names of directories that are to
    /// be moved or removed are looked up. May take long, once after a crash.
    fn settle_directories(&self) -> Result<()> {
        Ok(())
    }
    /// One bounded background step: age-out, return leaks, clean. Returns when it wants to be called again.
    fn tend(&self, idle: Idle) -> Option<Time>;
    /// Forgets what it caches of clean metadata until at most `bytes` are held; called under memory pressure.
    fn shrink(&self, bytes: usize);
    /// Bytes of memory that metadata occupy now (blocks, indexes, bitmaps).
    fn memory(&self) -> usize;
    /// Reports the layout of the whole volume for info, map, lab and defrag.
    fn survey(&self, to: &mut dyn Survey) -> Result<()>;
    /// Writes everything, marks the volume clean. After a failure ([`Self::failed`]) it marks nothing. No call follows.
    fn close(&self) -> Result<()>;
}

/// A running op: records changes, writes nothing (though it may read). Dropping it without
/// [`FormatOp::end`] is a bug of the caller, except when a method failed: then vfs drops it, and
/// the format must have left the recorded part consistent.
pub trait FormatOp {
    /// The format's private part of an inode.
    type Node;

    /// A new inode near `parent` (directories where the policy spreads them). `attr.nlink` is the count to store. For
    /// a directory the format makes `.` and `..` (naming `parent`). `target` is a symbolic link's text.
    fn inode_new(&mut self, parent: &Self::Node, attr: &Attr, target: Option<&[u8]>) -> Result<(Ino, Self::Node)>;
    /// Stores attributes. `disk_size` is what a crash may show: never beyond the first unplaced dirty byte past the old
    /// size on disk. (`attr.size` of directories and symlinks is ignored.)
    fn inode_put(&mut self, node: &Self::Node, attr: &Attr, disk_size: u64) -> Result<()>;
    /// The last name is gone; the inode may still be in use.
    fn inode_orphan(&mut self, node: &Self::Node, attr: &Attr) -> Result<()>;
    /// Nothing is mapped any more and nobody uses it: the number may be reused (once that is safe on disk).
    fn inode_free(&mut self, node: &Self::Node) -> Result<()>;
    /// A new name. The caller has checked that it does not exist.
    fn name_add(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()>;
    /// An existing name (also `..`) points to another inode from now on.
    fn name_point(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()>;
    /// A name goes. In a rename it is called after the new name was added: the order on disk follows the order of calls.
    /// `was` is the inode it named: its link count must not fall on disk before the name is gone.
    fn name_remove(&mut self, dir: &Self::Node, name: &Name, was: &Self::Node) -> Result<()>;
    /// Sets or (with `None`) removes an extended attribute.
    fn xattr_set(&mut self, node: &Self::Node, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<()>;
    /// The data of `at` lie at `to` and completed in epoch `written`: map them. Blocks mapped there before are freed (unless they
    /// are the same).
    fn place(&mut self, file: &Self::Node, at: LbnRange, to: BlockRun, written: Epoch) -> Result<()>;
    /// Unmaps up to about `at_most` blocks of `range` (from its end towards its start) and frees them. `orphan` says that no name and no
    /// durable pointer leads to the file any more, so maps need not be rewritten.
    fn unmap(&mut self, file: &Self::Node, from: Lbn, to: Option<Lbn>, at_most: u32, orphan: bool) -> Result<Progress>;
    /// Ends the op. What `harden` must reach.
    fn end(self) -> Seal;
}
