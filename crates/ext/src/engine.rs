//! The engine: a mounted ext volume, and how it implements [`Format`].
//!
//! | module | content |
//! |---|---|
//! | [`incore`] | in-core inodes and their slots |
//! | [`map`] | block maps: finding, setting, clearing pointers |
//! | [`extents`] | extent trees: finding, setting, clearing the blocks of a file |
//! | [`inside`] | contents inside an inode, and values in inodes of their own |
//! | [`claim`] | claiming the blocks that a policy has chosen |
//! | [`dir`] | directories: an index in memory over linear blocks |
//! | [`dirindex`] | directory indexes on the disk |
//! | [`neighbours`] | the small files that lie beside another |
//! | [`early`] | addresses allocated at `write()`, for `ffs-paper` |
//! | [`xattr`] | extended attributes |
//! | [`orphans`] | inodes without a name, and files being truncated, on volumes with a journal |
//! | [`op`] | ops: changes and the order in which they reach the disk |
//! | [`survey`] | reporting the layout of the whole volume |
//! | [`recover`] | after a crash of our own: returning leaked blocks and inodes |

mod claim;
mod damage_record;
mod dir;
mod dirindex;
mod early;
mod extents;
pub mod incore;
mod inside;
mod map;
mod neighbours;
mod op;
mod orphans;
mod recover;
mod survey;
mod xattr;

#[cfg(test)]
mod tests;

use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Buf, DiskExt, Epoch, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Rt, Time, lock};
use moafs_vfs::format::{
    Admission, CommitPoint, CommitReason, DirSink, Format, Idle, MapShape, Neighbour, OpKind, RoomSearch, Shape,
    SpaceClass, SpaceRequest, Survey, SyncScope, VolumeSpace,
};
use moafs_vfs::plan::{DirtyView, Plan, WritebackReason};
use moafs_vfs::swap_space::SwapSpace;
use moafs_vfs::types::{Attr, BlockRun, Cookie, Dentry, FileKind, Ino, Lbn, LbnRange, Mapping, Name, XattrKey};
use moafs_vfs::{Error, Result};

pub use incore::Incore;
use incore::{Life, Registry};
use op::ExtOp;

use crate::alloc::swaparea::SwapRoom;
use crate::alloc::{Alloc, FREEING_PAUSE, no_space};
use crate::format::superblock::{Compat, Incompat, RoCompat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State};
use crate::format::{
    BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Place, Sealed, Structure, Superblock, Support,
    dir as codec, extent, inode, map as paths,
};
use crate::health::{Health, damaged};
use crate::journal;
use crate::meta::{Block, Freed, Level, Meta};
use crate::place::windows::Windows;
use crate::place::{Files, Policy, ffs};

/// Version of the promise that a volume left by a crash of moafs has leaks at most.
const MARK_VERSION: u32 = 1;
/// Bytes that one read of the inode table brings.
const TABLE_READ_BYTES: u32 = 64 << 10;
/// Bytes that one read from a group's zone for directories and first indirect blocks brings.
const ZONE_READ_BYTES: u32 = 64 << 10;

/// Metadata blocks that adding a name may take: a directory block and three levels of its map.
const NAME_META_BLOCKS: u64 = 4;
/// The same where indexes are kept up to date: two nodes of the directory's index come with them.
const INDEXED_NAME_META_BLOCKS: u64 = 6;

/// Time without requests after which committed blocks are written home.
const IDLE_BEFORE_SETTLING: Duration = Duration::from_secs(1);

/// Options for opening a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// True if nothing at all may be written.
    pub read_only: bool,
    /// The largest data request in bytes.
    pub transfer_bytes_max: usize,
    /// The policy that decides where data go.
    pub place: Policy,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, transfer_bytes_max: 1 << 20, place: Policy::default() }
    }
}

/// A mounted volume of the ext family.
pub struct Ext {
    disk: SharedDisk,
    rt: Rt,
    health: Arc<Health>,
    geo: Geometry,
    form: codec::Form,
    shape: Shape,
    superblock: Mutex<Superblock>,
    meta: Arc<Meta>,
    alloc: Arc<Alloc>,
    registry: Arc<Registry>,
    /// In-core inodes that must not be forgotten before a level is on disk: later changes of their names wait for it.
    held: Mutex<BTreeMap<(Level, u32), Arc<Incore>>>,
    /// `i_extra_isize` of new inodes.
    extra_isize: u16,
    table_read_blocks: u64,
    transfer_blocks: u32,
    policy: Policy,
    windows: Windows,
    /// Held while a reference to a shared attribute block is given up: the last one frees the block.
    shared_xattrs: Mutex<()>,
    /// The level at which the names added so far are on disk: full fsyncs of files wait for it.
    /// `entries_level` counts removed names as well: fsyncs of directories wait for it.
    names_level: AtomicU64,
    entries_level: AtomicU64,
    /// The level at which the pointers set so far in indirect blocks are on disk.
    maps_level: AtomicU64,
    /// The newest epoch in which file data completed.
    data_epoch: AtomicU64,
    /// True if the volume is read through its journal.
    replayed: bool,
    /// The orphan list of a volume with a journal; its head on the disk is the last element.
    orphans: lock::Mutex<Vec<Arc<Incore>>>,
    /// The recovery of a volume that was left by a crash of moafs; active while leaks are not
    /// returned yet.
    recovery: recover::Recovery,
}

impl Ext {
    /// Opens a volume: reads only the superblock and the descriptors. A volume opened for writing
    /// is marked as in use.
    ///
    /// # Errors
    /// [`Error::Refused`] for features that are not supported and for volumes that another driver left
    /// uncleanly, with the command that helps; damage and device errors as they are.
    pub fn open(disk: SharedDisk, rt: Rt, options: OpenOptions) -> Result<Ext> {
        let mut superblock = read_superblock(&disk)?;
        let writable = !options.read_only && !disk.limits().read_only;
        let mut read_only = (!writable).then(|| "it was opened for reading only".to_owned());
        match superblock.support(writable) {
            Support::ReadWrite => {}
            Support::ReadOnly(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                if !reasons.is_empty() {
                    read_only = Some(reasons.join("; "));
                }
            }
            Support::Refuse(unsupported) => return Err(Error::Refused(unsupported.to_string())),
        }
        let mut geo = geometry_of(&superblock, &disk)?;
        let (mut disk, mut notes, mut log) = (disk, Vec::new(), None);
        let has_journal = superblock.compat().contains(Compat::HAS_JOURNAL);
        let needs_replay = journal::needs_replay(&superblock);
        // Before a replay: the journal may hold a superblock from before the damage was found.
        refuse_if_marked(&superblock, read_only.is_none())?;
        let replayed = needs_replay && read_only.is_some();
        if replayed {
            let (shown, replay) = journal::read_through(&disk, &superblock, &geo)?;
            notes.push(format!(
                "{} transactions are read from the journal, which has to be replayed",
                replay.transactions
            ));
            disk = shown;
        } else if read_only.is_none() && (has_journal || needs_replay) {
            let (opened, replay) = journal::recover(&disk, &superblock, &geo, needs_replay)?;
            if needs_replay {
                notes.push(format!("{} transactions of the journal were replayed", replay.transactions));
            }
            log = Some(opened);
        }
        if needs_replay {
            // The superblock itself may be in the journal.
            superblock = read_superblock(&disk)?;
            if let Support::Refuse(unsupported) = superblock.support(false) {
                return Err(Error::Refused(unsupported.to_string()));
            }
            geo = geometry_of(&superblock, &disk)?;
        }
        let clean = superblock.state().contains(State::VALID) && !superblock.state().contains(State::ERROR);
        let ours = superblock.writer_mark_matches(MARK_VERSION) && log.is_none();
        refuse_if_marked(&superblock, read_only.is_none())?;
        if !clean && !ours && read_only.is_none() {
            return Err(Error::Refused(
                "the volume was not unmounted cleanly, and the last driver to write it was not moafs: its bitmaps cannot be \
                 trusted; run `moafs fsck -p` or `e2fsck -p` on it, or mount it with `-o ro`"
                    .to_owned(),
            ));
        }
        let descriptors = read_descriptors(&disk, &geo)?;
        let mut ext = Ext::assemble(disk, rt, options, superblock, geo, descriptors, clean, read_only, log);
        (ext.replayed, ext.shape.notes) = (replayed, notes);
        ext.check_root()?;
        ext.mark_in_use()?;
        if ext.meta.has_journal() {
            ext.finish_orphans()?;
        }
        Ok(ext)
    }

    /// Refuses a volume without a root directory: nothing on it could be reached.
    fn check_root(&self) -> Result<()> {
        let refused = |problem: String| {
            Error::Refused(format!(
                "the root directory (inode 2) is damaged: {problem}; run `moafs fsck -y` or `e2fsck -fy`"
            ))
        };
        let root = match self.read_inode(InodeNo::ROOT) {
            Ok(root) => root,
            Err(error @ Error::Disk { .. }) => return Err(error),
            Err(Error::Stale(_)) => return Err(refused("the inode is not in use".to_owned())),
            Err(error) => return Err(refused(error.to_string())),
        };
        if root.kind != FileKind::Directory {
            return Err(refused(format!("the inode is a {:?}", root.kind).to_lowercase()));
        }
        let inode = root.inode();
        if inode.has_extents() {
            return match self.map_run(&root, Lbn(0), 1) {
                Ok(Mapping::Run(_)) => Ok(()),
                Ok(_) => Err(refused("it has no first block".to_owned())),
                Err(error @ Error::Disk { .. }) => Err(error),
                Err(error) => Err(refused(error.to_string())),
            };
        }
        let first = inode.block[0];
        if self.has_pointers(root.kind, &inode) && !self.geo.may_point_to(BlockNo(first.into())) {
            return Err(refused(format!("its first block is {first}")));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn assemble(
        disk: SharedDisk,
        rt: Rt,
        options: OpenOptions,
        superblock: Superblock,
        geo: Geometry,
        descriptors: Vec<Descriptor>,
        clean: bool,
        read_only: Option<String>,
        log: Option<journal::Log>,
    ) -> Ext {
        let health = Arc::new(Health::default());
        let (shared, clock, watched) = (Arc::clone(&disk), Arc::clone(&rt), Arc::clone(&health));
        let meta = Arc::new(Meta::new(shared, clock, watched, geo.block_bytes(), geo.checksums, log));
        let mut shape = shape_of(&superblock, &geo, options.place, read_only);
        if meta.has_journal() {
            shape.size_follows_map = true;
            shape.name_meta_blocks = INDEXED_NAME_META_BLOCKS;
        }
        let writable = shape.read_only.is_none();
        let wanted = superblock.want_extra_isize();
        let room = geo.inode_size.saturating_sub(inode::GOOD_OLD_BYTES as u32);
        let extra_isize = match wanted {
            _ if room < u32::from(inode::EXTRA_BYTES) => 0,
            wanted if wanted != 0 && inode::extra_isize_is_legal(wanted, geo.inode_size) => wanted,
            _ => inode::EXTRA_BYTES,
        };
        let directories = descriptors.iter().map(|descriptor| descriptor.used_dirs).collect();
        Ext {
            alloc: Arc::new(Alloc::new(geo.clone(), Arc::clone(&meta), descriptors, clean)),
            form: codec::Form { is_whole: meta.has_journal(), ..codec::Form::of(&geo) },
            meta,
            shape,
            superblock: Mutex::new(superblock),
            registry: Arc::default(),
            held: Mutex::new(BTreeMap::new()),
            extra_isize,
            table_read_blocks: u64::from((TABLE_READ_BYTES / geo.block_size).max(1)),
            transfer_blocks: (options.transfer_bytes_max as u32 / geo.block_size).max(1),
            policy: options.place,
            windows: Windows::default(),
            shared_xattrs: Mutex::new(()),
            names_level: AtomicU64::new(0),
            entries_level: AtomicU64::new(0),
            maps_level: AtomicU64::new(0),
            data_epoch: AtomicU64::new(0),
            replayed: false,
            orphans: lock::Mutex::new(Arc::clone(&rt), Vec::new()),
            recovery: recover::Recovery::new(&rt, &geo, directories, writable && !clean),
            disk,
            rt,
            health,
            geo,
        }
    }

    /// Marks the volume on the disk as in use by moafs. The writer's mark goes first: it lies in
    /// another sector than the state it vouches for, and a volume in use without it is taken for
    /// another driver's. After a crash of our own both are there already; a mark at its old place
    /// moves, with the one write of its sector.
    fn mark_in_use(&self) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        if self.meta.has_journal() {
            let now = self.now_secs();
            return self.write_superblock(|superblock| {
                superblock.set_incompat(superblock.incompat() | Incompat::NEEDS_RECOVERY);
                superblock.set_mnt_count(superblock.mnt_count().wrapping_add(1));
                superblock.set_mtime(now);
                superblock.set_wtime(now);
            });
        }
        let swept = |level| self.meta.wait_for_host(|| self.sweep(level));
        if self.recovery.is_active() {
            let moved = self.superblock.lock().has_old_writer_mark();
            let mark = |superblock: &mut Superblock| superblock.set_writer_mark(MARK_VERSION);
            return if moved { self.change_superblock(mark).and_then(swept) } else { Ok(()) };
        }
        let now = self.now_secs();
        let mounts = self.superblock.lock().mnt_count().wrapping_add(1);
        let level = self.change_superblock(|superblock| superblock.promise_writer_mark(MARK_VERSION, mounts, now))?;
        swept(level)?;
        let level = self.change_superblock(|superblock| {
            superblock.set_state(superblock.state() - State::VALID);
            superblock.set_mnt_count(mounts);
            superblock.set_mtime(now);
            superblock.set_wtime(now);
        })?;
        swept(level)
    }

    /// Returns the volume's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// Changes the superblock. Returns the level at which the change is on disk.
    fn change_superblock(&self, edit: impl FnOnce(&mut Superblock)) -> Result<Level> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        block.holds(Sealed::Superblock);
        let mut superblock = self.superblock.lock();
        edit(&mut superblock);
        let bytes = superblock.as_bytes();
        let mut level = Level::NONE;
        for at in (0..SUPERBLOCK_BYTES).step_by(SECTOR) {
            let part = &bytes[at..at + SECTOR];
            let record = offset + at..offset + at + SECTOR;
            level = level.max(self.meta.change(&block, record, Level::NONE, |bytes| bytes.copy_from_slice(part)));
        }
        Ok(level)
    }

    /// Changes the superblock and writes it, durably, beside the journal: what says whether the journal has to be
    /// replayed cannot be in it. Only while no op runs.
    fn write_superblock(&self, edit: impl FnOnce(&mut Superblock)) -> Result<()> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        block.holds(Sealed::Superblock);
        let bytes = {
            let mut superblock = self.superblock.lock();
            edit(&mut superblock);
            *superblock.as_bytes()
        };
        let edit = |block: &mut [u8]| block[offset..offset + SUPERBLOCK_BYTES].copy_from_slice(&bytes);
        let written = self.meta.wait_for_host(|| self.meta.write_through(&block, edit));
        self.health.watch(written)
    }

    /// Returns the time in seconds, as the superblock stores it.
    fn now_secs(&self) -> u32 {
        self.rt.timestamp().secs.clamp(0, u32::MAX.into()) as u32
    }

    /// Sets the feature for files of 2 GiB and more: the volume must have it before a file is that long.
    fn note_large_file(&self) -> Result<Level> {
        self.note_feature(
            |superblock| superblock.ro_compat().contains(RoCompat::LARGE_FILE),
            |superblock| superblock.set_ro_compat(superblock.ro_compat() | RoCompat::LARGE_FILE),
        )
    }

    /// Adds a feature to the superblock, which becomes revision 1 for that, unless the feature is
    /// set already. Returns the level at which it is on disk: an inode that uses the feature waits
    /// for it, also if another op added it.
    fn note_feature(&self, has: impl Fn(&Superblock) -> bool, add: impl FnOnce(&mut Superblock)) -> Result<Level> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        let has = has(&self.superblock.lock());
        if !has {
            self.change_superblock(|superblock| {
                superblock.raise_revision();
                add(superblock);
            })?;
        }
        // Revision and features lie in the first sector.
        Ok(block.pending(offset))
    }

    /// Returns the block that holds the superblock, and the superblock's first byte in it.
    fn superblock_at(&self) -> (u64, usize) {
        let size = u64::from(self.geo.block_size);
        (SUPERBLOCK_OFFSET / size, (SUPERBLOCK_OFFSET % size) as usize)
    }

    /// Allocates one block for metadata in or near a group, paid for by `admission`.
    fn meta_block(&self, group: GroupNo, admission: &mut Admission) -> Result<(u64, Level)> {
        let block = self.allocate(|draft| ffs::meta_block(draft, group))?;
        // Not before: the allocation may wait, and meanwhile the block would be promised to another caller.
        admission.spend(1);
        Ok(block)
    }

    /// Returns a block of metadata. If it lies in its group's zone, the blocks around it there are
    /// read with it.
    fn zone_block(&self, no: u64, kind: Kind) -> Result<Arc<Block>> {
        self.zone_run(no, kind, 1)
    }

    /// Returns the first of `blocks` contiguous blocks of metadata, read in the same way.
    fn zone_run(&self, no: u64, kind: Kind, blocks: u64) -> Result<Arc<Block>> {
        let group = self.geo.group_of_block(BlockNo(no)).unwrap_or_default();
        let zone = self.alloc.zone(group);
        let piece = u64::from((ZONE_READ_BYTES / self.geo.block_size).max(1));
        let near = if zone.contains(&no) { incore::window(&zone, no, piece) } else { no..no + 1 };
        self.meta.get_near(no, kind, near.start..near.end.max(no + blocks))
    }

    // -- in-core inodes

    /// Keeps an inode in memory until a level is on disk.
    fn hold(&self, node: &Arc<Incore>, until: Level) {
        if self.meta.is_pending(until) {
            self.held.lock().insert((until, node.ino.0), Arc::clone(node));
        }
    }

    /// Returns the in-core inode if it is in use.
    fn live(&self, ino: InodeNo) -> Option<Arc<Incore>> {
        self.registry.live(ino)
    }

    /// Returns the in-core inode; reads it if it is not in use.
    fn incore(&self, ino: InodeNo) -> Result<Arc<Incore>> {
        loop {
            let before = self.registry.departures();
            if let Some(node) = self.registry.live(ino) {
                return Ok(node);
            }
            let loaded = self.read_inode(ino);
            let node = Arc::new(self.health.watch(loaded)?);
            if let Some(node) = self.registry.adopt(&node, before) {
                return Ok(node);
            }
        }
    }

    fn read_inode(&self, ino: InodeNo) -> Result<Incore> {
        let stale = || Error::Stale(Ino(ino.0.into()));
        if ino != InodeNo::ROOT && ino.0 < self.geo.first_ino {
            return Err(stale());
        }
        let at = self.slot_at(ino).ok_or_else(stale)?;
        if at.index >= self.alloc.inodes_ever_used(at.group) {
            return Err(stale());
        }
        let block = self.table_block(&at)?;
        let slot = at.offset..at.offset + self.geo.inode_size as usize;
        let inode = block.view(|bytes| {
            let slot = &bytes[slot];
            if Inode::parse(slot, &self.geo).links == 0 {
                None
            } else {
                Some(Inode::decode(slot, ino, &self.geo, at.block))
            }
        });
        let inode = inode.ok_or_else(stale)?.map_err(damaged)?;
        let kind = inode.kind().ok_or_else(stale)?;
        Ok(Incore::new(self, ino, kind, at, inode, Life::Named { born: Level::NONE }))
    }

    // -- durability: one attempt each. Where a caller waits for a full host, it repeats them (`Meta::wait_for_host`).

    /// Makes everything up to `target` durable.
    fn sweep(&self, target: Level) -> Result<()> {
        if self.meta.is_pending(target) { self.sweep_and_free(target) } else { Ok(()) }
    }

    /// Does the same as [`Ext::sweep`]; on return, the blocks that waited for `target` are free,
    /// even if another task has written it.
    fn sweep_and_free(&self, target: Level) -> Result<()> {
        self.meta.sweep(target, &mut &*self.alloc)?;
        self.held.lock().retain(|(until, _), _| self.meta.is_pending(*until));
        Ok(())
    }

    /// Makes all file data that were placed durable. Metadata are durable once swept.
    fn flush(&self) -> Result<()> {
        let data = Epoch(self.data_epoch.load(Ordering::Relaxed));
        let flushed = self.disk.make_durable(data).map_err(|source| Error::disk("flushing the volume", source));
        self.health.watch(flushed)
    }

    fn store_totals(&self) -> Result<()> {
        let (blocks, inodes) = self.alloc.store_counts()?;
        let now = self.now_secs();
        self.change_superblock(|superblock| {
            if superblock.free_blocks() != blocks || superblock.free_inodes() != inodes as u32 {
                superblock.set_free_blocks(blocks);
                superblock.set_free_inodes(inodes as u32);
                superblock.set_wtime(now);
            }
        })
        .map(drop)
    }

    /// Makes every change and all file data that were placed durable.
    fn commit_all(&self) -> Result<()> {
        self.health.check()?;
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        // With a journal the totals are stored at unmount only: the groups' counts are in every transaction.
        if !self.meta.has_journal() {
            self.store_totals()?;
        }
        self.sweep_and_free(self.meta.highest())?;
        self.flush()
    }

    /// Makes the blocks and inodes that are being freed usable: the pointers to them must be gone
    /// from the disk. `before` is their number when the caller looked; if as many are left after
    /// the commit, another op is freeing them at this moment, and the call pauses before it
    /// returns.
    fn finish_freeing(&self, before: u64) -> Result<()> {
        self.commit_all()?;
        if self.alloc.freeing() >= before {
            self.meta.pause(FREEING_PAUSE);
        }
        Ok(())
    }

    /// Returns the blocks that no write is promised: nodes of extent trees may take them.
    fn kept_for_nodes(&self) -> u64 {
        let writes = self.geo.incompat.contains(Incompat::EXTENT) && self.shape.read_only.is_none();
        if writes { extents::reserve(&self.geo) } else { 0 }
    }

    /// Commits if hardly a block is left for a node and blocks are being freed: no op can wait for a commit.
    fn make_room_for_nodes(&self) -> Result<()> {
        let freeing = self.alloc.freeing();
        let is_short = freeing > 0 && self.alloc.free_blocks() < self.kept_for_nodes() / 2;
        if is_short { self.finish_freeing(freeing) } else { Ok(()) }
    }

    /// Begins an op: waits until there is room for it in the transaction, or the chain of needs is short enough.
    fn begin_op<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<ExtOp<'a>> {
        let credits = op::credits(kind);
        if self.meta.is_long(credits) {
            let sweep = || self.sweep(self.meta.highest());
            if op::waits_for_host(kind) { self.meta.wait_for_host(sweep) } else { sweep() }?;
        }
        Ok(ExtOp::new(self, kind, admission, self.meta.enter(credits)))
    }

    /// Writes committed blocks home while there are no requests. Returns when to look again.
    fn settle_in_background(&self, idle: Idle) -> Option<Time> {
        if self.health.failed().is_some() || !self.meta.is_log_in_use() {
            return None;
        }
        let is_idle = matches!(idle, Idle::For(time) if time >= IDLE_BEFORE_SETTLING);
        // An error has turned the volume read-only, and is kept there; a full host is asked again.
        let is_settled = is_idle && !self.meta.settle_log().is_err_and(|error| error.is_host_full());
        if is_settled { None } else { Some(self.rt.now() + IDLE_BEFORE_SETTLING) }
    }

    /// Commits everything, empties the journal, and marks the volume as clean.
    fn close_journal(&self) -> Result<()> {
        self.settle()?;
        self.flush()?;
        self.meta.close_log()?;
        let (blocks, inodes) = self.alloc.totals();
        let now = self.now_secs();
        self.write_superblock(|superblock| {
            superblock.set_incompat(superblock.incompat() - Incompat::NEEDS_RECOVERY);
            superblock.set_free_blocks(blocks);
            superblock.set_free_inodes(inodes as u32);
            superblock.set_wtime(now);
        })
    }

    /// Writes every change, and also those that follow when blocks become free.
    fn settle(&self) -> Result<()> {
        while !self.meta.is_clean() {
            self.sweep(self.meta.highest())?;
        }
        Ok(())
    }
}

pub(crate) fn geometry_of(superblock: &Superblock, disk: &SharedDisk) -> Result<Geometry> {
    Geometry::of(superblock, disk.limits().sectors * SECTOR as u64).map_err(damaged)
}

/// Refuses to write a volume that is marked as damaged.
fn refuse_if_marked(superblock: &Superblock, for_writing: bool) -> Result<()> {
    if !for_writing || !superblock.state().contains(State::ERROR) {
        return Ok(());
    }
    Err(Error::Refused(
        "the volume is marked as damaged: run `moafs fsck -p` or `e2fsck -p` on it, or mount it with `-o ro`"
            .to_owned(),
    ))
}

pub(crate) fn read_superblock(disk: &SharedDisk) -> Result<Superblock> {
    let at = Lba::from_byte(SUPERBLOCK_OFFSET);
    let bytes = disk.read(at, SUPERBLOCK_BYTES, Tag::volume(Kind::Superblock));
    let bytes = bytes.map_err(|source| Error::disk("reading the superblock", source))?;
    let superblock = Superblock::parse(&bytes).map_err(damaged)?;
    superblock.verify().map_err(damaged)?;
    Ok(superblock)
}

fn read_descriptors(disk: &SharedDisk, geo: &Geometry) -> Result<Vec<Descriptor>> {
    let mut descriptors = Vec::new();
    // The blocks of the table that follow one another are read together.
    let mut table: Option<(BlockNo, Buf)> = None;
    for group in geo.all_groups() {
        let (block, offset) = geo.locate_descriptor(group);
        let within = |(first, bytes): &(BlockNo, Buf)| {
            let start = block.0.checked_sub(first.0)? as usize * geo.block_bytes() + offset;
            (start + geo.desc_size as usize <= bytes.len()).then_some(start)
        };
        let start = match table.as_ref().and_then(within) {
            Some(start) => start,
            None => {
                let blocks = if group.0 == 0 { geo.descriptor_blocks.min(geo.first_meta_bg).max(1) } else { 1 };
                let at = Lba::from_byte(geo.byte_of(block));
                let bytes = disk
                    .read(at, blocks as usize * geo.block_bytes(), Tag::volume(Kind::Descriptors))
                    .map_err(|source| Error::disk("reading the group descriptors", source))?;
                table = Some((block, bytes));
                offset
            }
        };
        let Some((_, bytes)) = &table else { continue };
        let slot = &bytes[start..start + geo.desc_size as usize];
        descriptors.push(Descriptor::decode(slot, group, geo).map_err(damaged)?);
    }
    Ok(descriptors)
}

fn shape_of(superblock: &Superblock, geo: &Geometry, policy: Policy, read_only: Option<String>) -> Shape {
    let extra = geo.inode_size >= inode::GOOD_OLD_BYTES as u32 + u32::from(inode::EXTRA_BYTES);
    let overhead: u64 =
        geo.all_groups().map(|group| u64::from(geo.head_blocks(group) + 2 + geo.inode_table_blocks)).sum();
    let uuid = superblock.uuid();
    let word = |at: usize| uuid[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let keeps_unwritten = geo.incompat.contains(Incompat::EXTENT) && read_only.is_none();
    Shape {
        format: superblock.family_name(),
        block_size: geo.block_size,
        root: Ino(InodeNo::ROOT.0.into()),
        blocks: (geo.blocks - geo.first_data_block).saturating_sub(overhead),
        inodes: geo.inodes.into(),
        file_bytes_max: match geo.incompat.contains(Incompat::EXTENT) {
            true => extent::LBN_END * u64::from(geo.block_size),
            false => paths::size_max(geo),
        },
        links_max: inode::LINKS_MAX.into(),
        uncounted_subdirectories: geo.ro_compat.contains(RoCompat::DIR_NLINK) && may_index(superblock),
        inodes_take_blocks: false,
        name_meta_blocks: NAME_META_BLOCKS,
        symlink_bytes_max: geo.block_bytes() - 1,
        time_range: inode::time_range(extra),
        time_nanos: extra,
        user_flags: incore::USER_FLAGS,
        beyond_eof: keeps_unwritten,
        frees_overhang: true,
        size_follows_map: false,
        allocate_on_write: policy.allocates_on_write(),
        id: word(0) ^ word(8),
        label: String::from_utf8_lossy(superblock.label()).into_owned(),
        read_only,
        notes: Vec::new(),
    }
}

/// Returns true if directories that grow get an index, which is what makes a single link of theirs legal.
fn may_index(superblock: &Superblock) -> bool {
    superblock.compat().contains(Compat::DIR_INDEX | Compat::HAS_JOURNAL)
}

impl Files<Arc<Incore>> for Ext {
    fn group(&self, file: &Arc<Incore>) -> GroupNo {
        file.at.group
    }

    fn map(&self, file: &Arc<Incore>, at: Lbn, max: u32) -> Result<Mapping> {
        self.map_run(file, at, max)
    }
}

impl Format for Ext {
    type Node = Arc<Incore>;
    type Op<'a> = ExtOp<'a>;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn space(&self) -> VolumeSpace {
        let available = self.alloc.available_blocks().saturating_sub(self.kept_for_nodes());
        VolumeSpace {
            free_blocks: available.saturating_mul(self.geo.cluster_blocks.into()),
            root_blocks: self.superblock.lock().reserved_blocks(),
            free_inodes: self.alloc.available_inodes(),
        }
    }

    fn failed(&self) -> Option<String> {
        self.health.failed().map(str::to_owned)
    }

    fn fail(&self, reason: &str) {
        self.health.fail(reason);
    }

    fn record_damage(&self) {
        self.write_damage_record();
    }

    fn load(&self, ino: Ino) -> Result<(Attr, Self::Node)> {
        let number = u32::try_from(ino.0).map_err(|_| Error::Stale(ino))?;
        let node = self.incore(InodeNo(number))?;
        let attr = self.attr(&node);
        // Recovery has just deleted it.
        if attr.nlink == 0 { Err(Error::Stale(ino)) } else { Ok((attr, node)) }
    }

    fn lookup(&self, dir: &Self::Node, name: &Name) -> Result<Option<Dentry>> {
        let found = self.find_name(dir, name)?;
        Ok(found.map(|found| Dentry { ino: Ino(found.ino.0.into()), kind: found.kind }))
    }

    fn list(&self, dir: &Self::Node, from: Cookie, to: &mut DirSink<'_>) -> Result<()> {
        self.list_names(dir, from, to)
    }

    fn is_empty(&self, dir: &Self::Node) -> Result<bool> {
        self.has_no_names(dir)
    }

    fn readlink(&self, link: &Self::Node) -> Result<Vec<u8>> {
        self.not_encrypted(link)?;
        let inode = link.inode();
        if let Some(target) = self.inline_contents(link)? {
            return Ok(target);
        }
        if inode.is_fast_symlink(&self.geo) {
            return Ok(inode.fast_symlink());
        }
        let place = Place::new(Structure::Symlink(link.ino), link.at.block);
        let no = match inode.has_extents() {
            true => match self.map_run(link, Lbn(0), 1)? {
                Mapping::Run(run) => run.start.0,
                _ => 0,
            },
            false => u64::from(inode.block[0]),
        };
        if self.alloc.is_fixed(no, 1) || inode.size >= u64::from(self.geo.block_size) {
            let problem = format!("its target of {} bytes cannot be in block {no}", inode.size);
            return self.health.watch(Err(damaged(place.damage(problem))));
        }
        let block = self.meta.get(no, Kind::Symlink)?;
        Ok(block.view(|bytes| bytes[..inode.size as usize].to_vec()))
    }

    fn map(&self, file: &Self::Node, at: Lbn, max: u32) -> Result<Mapping> {
        self.not_encrypted(file)?;
        self.map_run(file, at, max)
    }

    fn resident(&self, file: &Self::Node, at: Lbn) -> Result<Option<Vec<u8>>> {
        // Inodes are no longer than a block.
        if at == Lbn(0) { self.inline_contents(file) } else { Ok(None) }
    }

    fn contents_disk(&self, volume: SharedDisk) -> SharedDisk {
        if self.replayed { Arc::clone(&self.disk) } else { volume }
    }

    fn neighbours(&self, file: &Self::Node, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        self.files_beside(file, around, reach)
    }

    fn map_shape(&self, file: &Self::Node) -> MapShape {
        if file.state.lock().inode.has_extents() {
            return extents::shape(&self.geo);
        }
        MapShape { direct: crate::format::map::DIRECT, fan: self.geo.apb.into(), trees: &[1, 2, 3] }
    }

    fn missing_maps(&self, file: &Self::Node, at: Lbn) -> Result<u8> {
        self.missing_levels(file, at.0)
    }

    fn generation(&self, node: &Self::Node) -> u32 {
        node.inode().generation
    }

    fn used_sectors(&self, node: &Self::Node) -> u64 {
        let inode = node.inode();
        let huge = self.geo.huge_file && inode.flags.contains(inode::InodeFlags::HUGE_FILE);
        if huge { inode.blocks.saturating_mul(self.geo.sectors_per_block().into()) } else { inode.blocks }
    }

    fn size(&self, node: &Self::Node) -> u64 {
        node.state.lock().inode.size
    }

    fn xattr(&self, node: &Self::Node, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        let value = self.attribute_value(node, key)?;
        Ok(value.and_then(|value| xattr::call_value(key, &value)))
    }

    fn xattr_list(&self, node: &Self::Node) -> Result<Vec<XattrKey>> {
        Ok(self.stored_attributes(node)?.iter().filter_map(|stored| stored.attribute.key()).collect())
    }

    fn admit(&self, need: SpaceRequest, who: SpaceClass) -> Result<Admission> {
        let blocks = need.data_blocks.saturating_add(need.map_blocks).saturating_add(need.meta_blocks);
        let keep = {
            let superblock = self.superblock.lock();
            let privileged = match who {
                SpaceClass::Root => true,
                SpaceClass::User { uid, gid } => {
                    uid == u32::from(superblock.def_resuid())
                        || (superblock.def_resgid() != 0 && gid == u32::from(superblock.def_resgid()))
                }
            };
            self.kept_for_nodes() + if privileged { 0 } else { superblock.reserved_blocks() }
        };
        loop {
            let freeing = self.alloc.freeing();
            if let Some(promised) = self.alloc.promise(blocks, need.inodes, keep) {
                return Ok(Admission::new(blocks, promised));
            }
            if freeing == 0 {
                return Err(no_space());
            }
            self.meta.wait_for_host(|| self.finish_freeing(freeing))?;
        }
    }

    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<ExtOp<'a>> {
        self.health.check()?;
        if let Some(reason) = &self.shape.read_only {
            return Err(Error::ReadOnly { reason: reason.clone() });
        }
        if matches!(kind, OpKind::Place | OpKind::Unmap) {
            self.make_room_for_nodes()?;
        }
        self.begin_op(kind, admission)
    }

    fn make_room(
        &self,
        _due: WritebackReason,
        _dirty: &dyn DirtyView<Self::Node>,
        search: &mut RoomSearch,
    ) -> Result<()> {
        if search.failed() == 0 {
            return Ok(());
        }
        let freeing = self.alloc.freeing();
        if freeing > 0 {
            self.finish_freeing(freeing)?;
        }
        // Without anything to wait for another plan may still find room: it may have become free meanwhile.
        search.attempted(freeing > 0)
    }

    fn plan(&self, reason: WritebackReason, dirty: &dyn DirtyView<Self::Node>) -> Result<Plan> {
        self.plan_writes(reason, dirty)
    }

    fn allocate_on_write(&self, file: &Self::Node, range: LbnRange) -> Result<u32> {
        self.allocate_early(file, range)
    }

    fn can_preallocate(&self, file: &Self::Node) -> bool {
        file.state.lock().inode.has_extents()
    }

    fn swap_space(&self) -> Option<Arc<dyn SwapSpace>> {
        let keep = self.superblock.lock().reserved_blocks() + self.kept_for_nodes();
        let room = || -> Arc<dyn SwapSpace> { Arc::new(SwapRoom::new(Arc::clone(&self.alloc), keep)) };
        self.shape.read_only.is_none().then(room)
    }

    fn abandon(&self, run: BlockRun) {
        self.alloc.note_arrived(run);
        let freed = Freed::Data { start: run.start.0, len: run.len };
        if let Err(error) = self.alloc.free(Level::NONE, freed) {
            self.health.fail(error.to_string());
        }
    }

    fn sync_inode(&self, node: &Self::Node, upto: CommitPoint, data: Epoch, how: SyncScope) -> Result<()> {
        self.health.check()?;
        let maps = Level(self.maps_level.load(Ordering::Relaxed));
        let mut target = Level(upto.0).max(self.slot_pending(node)?).max(maps);
        if how == SyncScope::Full {
            let names = if node.kind == FileKind::Directory { &self.entries_level } else { &self.names_level };
            target = target.max(Level(names.load(Ordering::Relaxed)));
        }
        self.meta.wait_for_host(|| self.sweep(target))?;
        let flushed = self.disk.make_durable(data).map_err(|source| Error::disk("flushing file data", source));
        self.health.watch(flushed)
    }

    fn commit(&self, _why: CommitReason) -> Result<()> {
        self.meta.wait_for_host(|| self.commit_all())
    }

    fn settle_names(&self) -> Result<()> {
        self.end_exchanges_first()
    }

    fn settle_directories(&self) -> Result<()> {
        self.finish_names()
    }

    fn is_unsettled(&self) -> bool {
        self.recovery.is_unsettled()
    }

    fn run_background_step(&self, idle: Idle) -> Option<Time> {
        if self.meta.has_journal() { self.settle_in_background(idle) } else { self.recover_step(idle) }
    }

    fn shrink(&self, bytes: usize) {
        if self.registry.index_bytes() > bytes / 2 {
            self.registry.all().iter().for_each(|node| self.drop_index(node));
        }
        let indexes = self.registry.index_bytes();
        self.meta.shrink(bytes.saturating_sub(indexes));
    }

    fn memory(&self) -> usize {
        self.meta.memory() + self.registry.index_bytes() + self.recovery.memory() + self.alloc.watch_memory()
    }

    fn survey(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_volume(to)
    }

    fn close(&self) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        self.health.check()?;
        if self.meta.has_journal() {
            return self.close_journal();
        }
        self.finish_recovery()?;
        self.settle()?;
        self.store_totals()?;
        self.settle()?;
        let level = self.change_superblock(|superblock| superblock.set_state(superblock.state() | State::VALID))?;
        self.sweep(level)?;
        self.flush()
    }
}
