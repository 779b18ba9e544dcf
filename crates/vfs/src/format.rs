//! The seam between POSIX and an on-disk format. `docs/architecture.md` says method by method what each engine does.
//!
//! It was settled for in-place metadata (ext2), a journal (ext3, ext4) and a log (F2FS) before any
//! of them was written: metadata changes only inside an *op* that declares its kind; all waiting for
//! space happens in [`Format::admit`] and [`Format::make_room`], before any lock; [`Format::plan`] decides what leaves
//! the cache, and decides only;
//! durability is a commit point ([`CommitPoint`]) that [`Format::sync_inode`] must reach.
//! A format stores; it does not decide who may do what, and it never calls back into POSIX rules.

use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Epoch, SharedDisk};
use moafs_runtime::Time;

use crate::error::{Error, Result};
use crate::plan::{DirtyView, Plan, WritebackReason};
use crate::swap_space::SwapSpace;
use crate::types::{Attr, BlockRun, Cookie, Dentry, FileKind, Ino, Lbn, LbnRange, Mapping, Name, SetMode, XattrKey};

pub use crate::unplaced::MapShape;

/// The properties of a mounted volume that do not change.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The format's name, such as `ext2`.
    pub format: &'static str,
    /// Bytes in a block: a power of two.
    pub block_size: u32,
    /// The inode number of the root directory.
    pub root: Ino,
    /// Total blocks, as statfs shows them (without the format's overhead).
    pub blocks: u64,
    /// Total inodes, as statfs shows them.
    pub inodes: u64,
    /// The largest file in bytes; some files may be limited to less ([`Format::file_bytes_max`]).
    pub file_bytes_max: u64,
    /// The most names an inode can have.
    pub links_max: u32,
    /// True if a directory may have more subdirectories than that: it counts one link from then on.
    pub uncounted_subdirectories: bool,
    /// True if every inode takes a block of its own of those that are free for data: there are never more free inodes
    /// than free blocks.
    pub inodes_take_blocks: bool,
    /// Metadata blocks that adding a name may take at most: a directory block and those that lead to it.
    pub name_meta_blocks: u64,
    /// The longest target of a symbolic link in bytes.
    pub symlink_bytes_max: usize,
    /// The longest target that lies in the inode, which then takes no block for it.
    pub symlink_inode_bytes_max: usize,
    /// First and last second a time stamp can hold.
    pub time_range: (i64, i64),
    /// True if time stamps keep nanoseconds. This holds for new inodes; old ones may be too small for them.
    pub time_nanos: bool,
    /// True if new inodes keep the time of their birth.
    pub birth_times: bool,
    /// Inode flags that programs may set and clear; the others describe the layout, or are not stored.
    pub user_flags: u32,
    /// True if blocks can lie beyond the end of a file.
    pub beyond_eof: bool,
    /// True if the format itself hides and frees blocks that a power cut has left beyond the end of a file. If false,
    /// vfs unmaps them before the file grows over them.
    pub frees_overhang: bool,
    /// True if the size on the volume moves behind every block that is mapped: a block may then be mapped only when the
    /// device has the file's last block before it.
    pub size_follows_map: bool,
    /// The range that one op unmaps whole.
    pub unmap_step: UnmapStep,
    /// True if addresses are chosen at `write()` ([`Format::allocate_on_write`]), not when data leave the cache.
    pub allocate_on_write: bool,
    /// The file-system id, `f_fsid` of `statfs(2)`.
    pub id: u64,
    /// The volume's label, as the format stores it.
    pub label: String,
    /// The reason for which the volume cannot be changed at all; `None` if it can.
    pub read_only: Option<String>,
    /// Notes on the volume's state, to be shown at mount.
    pub notes: Vec<String>,
}

/// A range that one op unmaps whole ([`FormatOp::unmap`]), wherever its blocks lie: one of at most so many blocks, in
/// at most so many runs. Of a larger one it may leave a part to the next op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnmapStep {
    /// The most blocks of the file, holes included; at most 1024.
    pub blocks: u32,
    /// The most runs of blocks that lie together on the volume.
    pub runs: u32,
}

/// Free space of a volume, in blocks and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Blocks neither used nor promised, those for root included. Freed blocks that cannot be reused yet count as free.
    pub free_blocks: u64,
    /// Free blocks beside those, which no request gets: kept for metadata that nothing was promised for.
    pub kept_blocks: u64,
    /// The part of `free_blocks` that only root may use.
    pub root_blocks: u64,
    /// Inodes not in use, whether or not there are blocks for them ([`Shape::inodes_take_blocks`]).
    pub free_inodes: u64,
}

/// A space request: the most that an op, or the write-back of what was just written, will take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceRequest {
    /// File blocks without an address yet.
    pub data_blocks: u64,
    /// Map blocks that placing them may take, by [`Format::map_shape`].
    pub map_blocks: u64,
    /// Directory blocks and other metadata blocks.
    pub meta_blocks: u64,
    /// Number of new inodes.
    pub inodes: u64,
}

/// The user for whom space is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceClass {
    /// An ordinary user, who stops before the reserved blocks.
    User {
        /// Effective user id; the volume may reserve blocks for one user.
        uid: u32,
        /// Effective group id; the volume may reserve blocks for one group.
        gid: u32,
    },
    /// Root, and the file system itself.
    Root,
}

/// Space promised by [`Format::admit`]. The unspent part goes back when it is dropped.
pub struct Admission {
    blocks: u64,
    inodes: u64,
    give_back: Option<Arc<dyn Reservations>>,
}

/// A format's counter of promised blocks and inodes, to which reservations return.
pub trait Reservations: Send + Sync {
    /// Takes back promised blocks and inodes that are not needed any more, or have become allocated ones.
    fn release(&self, blocks: u64, inodes: u64);
}

impl Admission {
    /// Returns an empty admission, for ops that need no space.
    pub fn none() -> Admission {
        Admission { blocks: 0, inodes: 0, give_back: None }
    }

    /// Wraps `blocks` and `inodes` that a format has just counted as promised. (A format whose inodes are blocks counts
    /// them among these.)
    pub fn new(blocks: u64, inodes: u64, give_back: Arc<dyn Reservations>) -> Admission {
        Admission { blocks, inodes, give_back: Some(give_back) }
    }

    /// Returns the number of blocks still promised.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Spends up to `blocks`: they have become allocated (or are not needed).
    pub fn spend(&mut self, blocks: u64) {
        let spent = blocks.min(self.blocks);
        self.blocks -= spent;
        self.release(spent, 0);
    }

    /// Spends up to `inodes`: they have become allocated (or are not needed).
    pub fn spend_inodes(&mut self, inodes: u64) {
        let spent = inodes.min(self.inodes);
        self.inodes -= spent;
        self.release(0, spent);
    }

    fn release(&self, blocks: u64, inodes: u64) {
        if let (Some(to), true) = (&self.give_back, blocks + inodes > 0) {
            to.release(blocks, inodes);
        }
    }

    /// Takes over another admission's promise.
    pub fn absorb(&mut self, mut other: Admission) {
        self.blocks += std::mem::take(&mut other.blocks);
        self.inodes += std::mem::take(&mut other.inodes);
        if self.give_back.is_none() {
            self.give_back = other.give_back.take();
        }
    }

    /// Splits off up to `blocks` into an admission of its own.
    pub fn split(&mut self, blocks: u64) -> Admission {
        let taken = blocks.min(self.blocks);
        self.blocks -= taken;
        Admission { blocks: taken, inodes: 0, give_back: self.give_back.clone() }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.release(self.blocks, self.inodes);
    }
}

/// One caller's search for room: how often it found none, and how often an attempt to gain some was in vain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoomSearch {
    failed: u32,
    vain: u32,
}

impl RoomSearch {
    /// Attempts in vain in a row after which there is no room to be had. With fewer, others may have taken what was
    /// gained, or are about to give room back.
    const VAIN_MAX: u32 = 4;

    /// Returns how often the caller has found no room so far.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Notes that the caller has found no room.
    pub fn found_none(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// Notes an attempt to gain room: whether it gained any.
    ///
    /// # Errors
    /// ENOSPC if this was one attempt in vain too many.
    pub fn attempted(&mut self, gained: bool) -> Result<()> {
        self.vain = if gained { 0 } else { self.vain + 1 };
        if self.vain < RoomSearch::VAIN_MAX { Ok(()) } else { Err(Error::Posix(libc::ENOSPC)) }
    }
}

/// The kind of an op: a journal reads its credits from it, a checkpoint its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// A new inode and its name (create, mknod, mkdir, symlink), or an inode without one (tmpfile).
    Create,
    /// A new name for an existing inode.
    Link,
    /// Removes a name from a directory.
    Unlink,
    /// Moves a name, perhaps over another.
    Rename,
    /// Two names change places.
    Exchange,
    /// Changes attributes of at most [`OpKind::ATTR_INODES_MAX`] inodes.
    Attr,
    /// Changes extended attributes of one inode.
    Xattr,
    /// Maps written blocks into the file.
    Place,
    /// Removes blocks from a file: truncate, punch, reap.
    Unmap,
}

impl OpKind {
    /// Returns true for the ops of clients: they wait for room on a full host before they begin. Write-back and reaping
    /// try again later.
    pub fn waits_for_host(self) -> bool {
        match self {
            OpKind::Place | OpKind::Unmap | OpKind::Attr => false,
            OpKind::Create | OpKind::Link | OpKind::Unlink | OpKind::Rename | OpKind::Exchange | OpKind::Xattr => true,
        }
    }

    /// The most inodes whose attributes one op puts: what a format admits for it stays small.
    pub const ATTR_INODES_MAX: usize = 16;
}

/// A commit point: the progress that a format must have made for a change to be durable. Formats number their own
/// progress: soft-update levels, transaction ids, checkpoint versions. `CommitPoint::NONE` is always reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitPoint(pub u64);

impl CommitPoint {
    /// The commit point before all others; there is nothing to wait for.
    pub const NONE: CommitPoint = CommitPoint(0);
}

/// The part of a file that a sync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// fsync: data, attributes, and the names that lead to it.
    Full,
    /// fdatasync: data and what is needed to reach it; times may be stale.
    DataOnly,
}

/// The reason for which all changes are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitReason {
    /// A program called sync or syncfs.
    Sync,
    /// The syncer's commit interval has passed.
    Age,
    /// Space or memory is short; a commit makes freed space usable.
    Pressure,
    /// The volume is about to be closed.
    Unmount,
}

/// The use of the volume, which limits background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Requests came recently: only what cannot wait.
    Busy,
    /// No request has come for this long.
    For(Duration),
}

/// The inode that a name shall point to.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a, N> {
    /// The inode's number.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileKind,
    /// The format's part of it: ordering needs to know what the name depends on.
    pub node: &'a N,
}

/// The state of a bounded piece of work after one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The work is finished.
    Done,
    /// Work is left: call again in a new op.
    More,
}

/// A small file near another on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The neighbour's inode number.
    pub ino: Ino,
    /// All blocks of the file, in file order.
    pub run: BlockRun,
}

/// Takes directory entries; returns false to stop (the listing then resumes *at* this entry).
/// Arguments: name, entry, and the cookie from which the listing goes on *after* this entry.
pub type DirSink<'a> = dyn FnMut(&Name, Dentry, Cookie) -> bool + 'a;

/// The receiver of a survey of the whole volume.
pub trait Survey {
    /// Takes a file (regular, directory or slow symlink) with its runs in file order: `(lbn, run)`.
    fn file(&mut self, ino: Ino, kind: FileKind, parent: Option<Ino>, runs: &[(Lbn, BlockRun)]);
    /// Takes a free run of the volume; they come in ascending order.
    fn free(&mut self, run: BlockRun);
    /// Takes a run of metadata at a fixed place (`inode table of group 3`).
    fn metadata(&mut self, what: &'static str, group: u64, run: BlockRun);
}

/// An on-disk format with its way of placing data. See the table in `docs/architecture.md` for what each
/// engine does in each method.
///
/// Threads call it in parallel. Except where said otherwise a caller may hold vfs inode locks.
pub trait Format: Send + Sync + 'static {
    /// The format's private part of an in-memory inode. Changes inside (interior mutability) are
    /// visible to readers at once.
    type Node: Send + Sync + 'static;
    /// A running op of this format.
    type Op<'a>: FormatOp<Node = Self::Node>
    where
        Self: 'a;

    // -- volume

    /// Returns the properties of the volume that do not change.
    fn shape(&self) -> &Shape;
    /// Returns the space as statfs shows it; reservations are subtracted.
    fn space(&self) -> VolumeSpace;
    /// Returns the first reason for which a write error or an inconsistency has turned the volume read-only, if any.
    fn failed(&self) -> Option<String>;
    /// Tells the format that the device refused a data write. A format that cannot put the data elsewhere turns the
    /// volume read-only and keeps the first reason.
    fn fail(&self, reason: &str);
    /// Notes on the volume that damage was found, so that the next mount and the checker hear of it. Called after the
    /// volume has failed, beside running calls; writes nothing a second time, or if no damage was found.
    fn record_damage(&self) {}

    // -- reading: parallel, no op

    /// Reads and checks an inode. `Error::Stale` if it is free.
    fn load(&self, ino: Ino) -> Result<(Attr, Self::Node)>;
    /// Looks a name up in a directory. `.` is not asked for; `..` is.
    fn lookup(&self, dir: &Self::Node, name: &Name) -> Result<Option<Dentry>>;
    /// Lists a directory from a cookie on, `.` and `..` included.
    fn list(&self, dir: &Self::Node, from: Cookie, to: &mut DirSink<'_>) -> Result<()>;
    /// Returns true if the directory holds only `.` and `..`.
    fn is_empty(&self, dir: &Self::Node) -> Result<bool>;
    /// Returns the target of a symbolic link.
    fn readlink(&self, link: &Self::Node) -> Result<Vec<u8>>;
    /// Returns the mapping at `at`: one run of at most `max` blocks (`max` > 0).
    fn map(&self, file: &Self::Node, at: Lbn, max: u32) -> Result<Mapping>;
    /// Returns the contents of a block of a regular file that lie in its inode: of the first one only. Asked where the
    /// map shows no contents; at most a block, and what is missing of it is zeros.
    fn resident(&self, _file: &Self::Node, _at: Lbn) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Returns true if the contents of a regular file lie in its inode ([`Self::resident`]). Asked before changes:
    /// until [`FormatOp::place`] has placed the first block, or all of the file was unmapped, vfs places no other one,
    /// and tells no size beyond the one that the inode has. Nothing makes it true again.
    fn is_inline(&self, _file: &Self::Node) -> bool {
        false
    }
    /// Returns true if the blocks of a file have to stay where they are: the format itself uses them by their places.
    fn is_immovable(&self, _file: &Self::Node) -> bool {
        false
    }
    /// Returns the disk that contents of files are read from and written to: the volume's, unless the format has
    /// newer contents in a journal.
    fn contents_disk(&self, volume: SharedDisk) -> SharedDisk {
        volume
    }
    /// Counts how often blocks that files have moved away from became usable again. A read that sees it change may
    /// have read the bytes of another file, and is made again. Formats that move blocks only with the inode's lock
    /// held need not count.
    fn relocation_generation(&self) -> u64 {
        0
    }
    /// Returns small files that probably belong with `file`, each in one run and all of it within `reach` blocks of
    /// `around`, ascending by address. Only what is known without a device request; a hint, which [`Format::load`] and
    /// [`Format::map`] confirm without a device request and without reporting damage in files that were not asked for.
    fn neighbours(&self, _file: &Self::Node, _around: BlockRun, _reach: u32) -> Vec<Neighbour> {
        Vec::new()
    }
    /// Returns the size in bytes up to which a regular file may grow, or may be written to.
    fn file_bytes_max(&self, _file: &Self::Node) -> u64 {
        self.shape().file_bytes_max
    }
    /// Returns the shape of a regular file's map. It does not change while some of its blocks are dirty.
    fn map_shape(&self, _file: &Self::Node) -> MapShape {
        MapShape::FLAT
    }
    /// Returns how many of the map blocks that lead to `at` do not exist, counted from the lowest; `u8::MAX` if that is
    /// not known.
    fn missing_maps(&self, _file: &Self::Node, _at: Lbn) -> Result<u8> {
        Ok(u8::MAX)
    }
    /// Returns the 512-byte units that the file occupies on the volume, maps included: what becomes free with it.
    fn used_sectors(&self, node: &Self::Node) -> u64;
    /// Returns `st_blocks`, in 512-byte units: another number where an inode takes a block of its own.
    fn stat_sectors(&self, node: &Self::Node) -> u64 {
        self.used_sectors(node)
    }
    /// Returns the flags of `FS_IOC_GETFLAGS` that tell how a file is stored, besides those in its attributes.
    fn layout_flags(&self, _node: &Self::Node) -> u32 {
        0
    }
    /// Returns an inode's generation, which the format chose when the inode was made: with the number it tells the file
    /// from those that had the number before.
    fn generation(&self, node: &Self::Node) -> u32;
    /// Returns the size in bytes of a directory or symbolic link now (vfs keeps that of regular files itself).
    fn size(&self, node: &Self::Node) -> u64;
    /// Returns an extended attribute's value.
    fn xattr(&self, node: &Self::Node, key: &XattrKey) -> Result<Option<Vec<u8>>>;
    /// Returns the keys of all extended attributes.
    fn xattr_list(&self, node: &Self::Node) -> Result<Vec<XattrKey>>;
    /// Returns true if removing an attribute takes a block, for those that stay. Called with the inode's lock held.
    fn takes_block_to_remove(&self, _node: &Self::Node, _key: &XattrKey) -> Result<bool> {
        Ok(false)
    }

    // -- space, then changes

    /// Reserves space for a space request, or fails with ENOSPC: the only source of that error. May wait, commit and
    /// clean, therefore it is called with NO inode lock held. Blocks of a plan that is not placed yet may count as
    /// taken and as promised: a refusal is not told before no such plan is under way.
    fn admit(&self, need: SpaceRequest, who: SpaceClass) -> Result<Admission>;
    /// Returns true if a name can be added to a directory without taking a block, or is in it already: on a full volume
    /// that is all that a name may do. False is always right. Called with the directory's lock held.
    fn has_room_for_name(&self, _dir: &Self::Node, _name: &Name) -> Result<bool> {
        Ok(false)
    }
    /// Starts an op. Waits for the op gate only. Fails if the volume is read-only.
    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<Self::Op<'a>>;

    // -- data leaves the cache

    /// Allocates addresses at `write()`, for `range`, none of whose blocks has one; the map then shows them as
    /// unwritten. Returns the number of blocks, from the start of `range` on, that got one: the rest get theirs from
    /// [`Self::plan`]. Their space was admitted before. Called if [`Shape::allocate_on_write`] says so, with the inode
    /// lock held.
    fn allocate_on_write(&self, _file: &Self::Node, _range: LbnRange) -> Result<u32> {
        Ok(0)
    }
    /// Returns true if blocks of the file can be allocated without being written ([`FormatOp::preallocate`]).
    fn can_preallocate(&self, _file: &Self::Node) -> bool {
        false
    }
    /// Makes room for what [`Self::plan`] will be asked next, with the same arguments: may clean, checkpoint, commit
    /// and wait. Called with no inode lock held: once before the first plan, and again after each that found no room
    /// ([`RoomSearch::failed`] tells). Fails with ENOSPC when no more room can be gained.
    fn make_room(
        &self,
        _due: WritebackReason,
        _dirty: &dyn DirtyView<Self::Node>,
        search: &mut RoomSearch,
    ) -> Result<()> {
        if search.failed() == 0 { Ok(()) } else { Err(Error::Posix(libc::ENOSPC)) }
    }
    /// Decides which dirty blocks are written together with the block of `due`, and to which addresses. Runs it
    /// allocates are taken in memory only. It waits for nothing and writes nothing; it fails with ENOSPC if no block is
    /// to be had, and returns a plan that is [`Plan::partial`] if some are. Called with no inode lock held.
    fn plan(&self, due: WritebackReason, dirty: &dyn DirtyView<Self::Node>) -> Result<Plan>;
    /// Returns the format's swap space: blocks allocated in memory only; `None` if the format has none to give.
    fn swap_space(&self) -> Option<Arc<dyn SwapSpace>> {
        None
    }
    /// Makes room before `blocks` blocks are reserved for swap areas: commits, or cleans, if that frees them. May wait.
    fn make_way(&self, _blocks: u64) -> Result<()> {
        Ok(())
    }
    /// Gives back a part of the run of a planned write that was allocated for it and not written after all.
    fn abandon(&self, run: BlockRun);

    // -- durability

    /// Syncs an inode: makes a file's metadata durable up to `upto` (and, for [`SyncScope::Full`], the names that lead
    /// to it). Its data have been written and placed by vfs; they completed in `data` at the latest.
    fn sync_inode(&self, node: &Self::Node, upto: CommitPoint, data: Epoch, how: SyncScope) -> Result<()>;
    /// Makes everything durable that was changed before the call. One attempt: a caller that waits for a full host
    /// repeats it.
    fn commit(&self, why: CommitReason) -> Result<()>;
    /// Ends or undoes the changes of names that a crash interrupted halfway. Called before every call that changes
    /// something, with level 0 only, before any name is looked up. Costs no more than a look at a flag once that is
    /// done.
    fn settle_names(&self) -> Result<()> {
        Ok(())
    }
    /// Returns true if directories must not be moved or removed before [`Self::settle_directories`].
    fn is_unsettled(&self) -> bool {
        false
    }
    /// Finds out which directories a crash left with two names, and mends them. Level 0 only, before the names of
    /// directories that are to be moved or removed are looked up. May take long, once after a crash.
    fn settle_directories(&self) -> Result<()> {
        Ok(())
    }
    /// Runs one bounded background step: age-out, return of leaked blocks, cleaning. Returns when it wants to be
    /// called again.
    fn run_background_step(&self, idle: Idle) -> Option<Time>;
    /// Forgets what it caches of clean metadata until at most `bytes` are held; called under memory pressure.
    fn shrink(&self, bytes: usize);
    /// Returns the bytes of memory that metadata occupy now (blocks, indexes, bitmaps).
    fn memory(&self) -> usize;
    /// Reports the layout of the whole volume, while nothing changes it.
    fn survey(&self, to: &mut dyn Survey) -> Result<()>;
    /// Reports what belongs to no file, beside changes: metadata at fixed places, swap areas, free runs.
    fn survey_space(&self, to: &mut dyn Survey) -> Result<()>;
    /// Returns the runs of an inode's contents, in file order. Called with its lock held.
    fn runs(&self, node: &Self::Node) -> Result<Vec<(Lbn, BlockRun)>>;
    /// Writes everything, marks the volume clean. After a failure ([`Self::failed`]) it marks nothing. The last call.
    fn close(&self) -> Result<()>;
}

/// A running op: records changes, writes nothing (though it may read). Dropping it without
/// [`FormatOp::end`] is a bug of the caller, except when a method failed: then vfs drops it, and
/// the format must have left the recorded part consistent.
pub trait FormatOp {
    /// The format's private part of an inode.
    type Node;

    /// Makes an inode near `parent` (directories where the policy spreads them). `attr.nlink` is the count to store.
    /// For a directory the format makes `.` and `..` (naming `parent`). `target` is a symbolic link's text.
    fn inode_new(&mut self, parent: &Self::Node, attr: &Attr, target: Option<&[u8]>) -> Result<(Ino, Self::Node)>;
    /// Stores attributes. `disk_size` is the size that a crash may show: never beyond the first unplaced dirty byte
    /// past the old size on disk. (`attr.size` of directories and symlinks is ignored.)
    fn inode_put(&mut self, node: &Self::Node, attr: &Attr, disk_size: u64) -> Result<()>;
    /// Records that the last name of the inode is gone; the inode may still be in use.
    fn inode_orphan(&mut self, node: &Self::Node, attr: &Attr) -> Result<()>;
    /// Frees an inode that maps nothing and has no users: the number may be reused (once that is safe on disk).
    fn inode_free(&mut self, node: &Self::Node) -> Result<()>;
    /// Announces that an inode is about to get the name `to` and then to lose the name `from`, which an exchange gives
    /// to the inode that has had `to`: a format whose crashes may leave both can note it.
    fn name_moves(&mut self, _node: &Self::Node, _from: (&Self::Node, &Name), _to: (&Self::Node, &Name)) -> Result<()> {
        Ok(())
    }
    /// Adds a name. The caller has checked that it does not exist.
    fn name_add(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()>;
    /// Points an existing name (also `..`) to another inode.
    fn name_point(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()>;
    /// Removes a name. In a rename it is called after the new name was added: the order on disk follows the order of
    /// calls. `was` is the inode it named: its link count must not fall on disk before the name is gone.
    fn name_remove(&mut self, dir: &Self::Node, name: &Name, was: &Self::Node) -> Result<()>;
    /// Sets or (with `None`) removes an extended attribute.
    fn xattr_set(&mut self, node: &Self::Node, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<()>;
    /// Maps the blocks `at` to the run `to`, whose data completed in epoch `written`. Blocks mapped there before are
    /// freed (unless they are the same). After an error the run goes back with [`Format::abandon`], before the op ends,
    /// unless the volume has failed: a format that then still needs a part of it must have turned the volume read-only.
    fn place(&mut self, file: &Self::Node, at: LbnRange, to: BlockRun, written: Epoch) -> Result<()>;
    /// Allocates blocks for holes of `range`, from its start on; the map then shows them as unwritten. Their space is
    /// the op's. Returns how many blocks of the range it has passed: less than all where the range is long or ragged,
    /// or the op has no more space. Called if [`Format::can_preallocate`] says so, with the inode lock held.
    fn preallocate(&mut self, _file: &Self::Node, _range: LbnRange) -> Result<u32> {
        Err(Error::Posix(libc::EOPNOTSUPP))
    }
    /// Unmaps up to about `at_most` blocks of `from..to` (from its end towards its start) and frees them; all of a
    /// range within [`Shape::unmap_step`]. `orphan` says
    /// that no name and no durable pointer leads to the file any more, so maps need not be rewritten.
    fn unmap(&mut self, file: &Self::Node, from: Lbn, to: Option<Lbn>, at_most: u32, orphan: bool) -> Result<Progress>;
    /// Ends the op. Returns the commit point that `sync_inode` must reach to make it durable.
    fn end(self) -> CommitPoint;
}
