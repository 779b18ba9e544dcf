//! [`Ext`] as vfs uses it: [`Format`].

use std::sync::Arc;

use moafs_disk::{Epoch, Kind, SharedDisk};
use moafs_runtime::Time;
use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::format::{
    Admission, CommitPoint, CommitReason, DirSink, Format, Idle, MapShape, Neighbour, OpKind, RoomSearch, Shape,
    SpaceClass, SpaceRequest, Survey, SyncScope, VolumeSpace,
};
use moafs_vfs::plan::{DirtyView, Plan, WritebackReason};
use moafs_vfs::swap_space::SwapSpace;
use moafs_vfs::types::{Attr, BlockRun, Cookie, Dentry, FileKind, Ino, Lbn, LbnRange, Mapping, Name, XattrKey};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, USER_FLAGS};
use super::op::ExtOp;
use super::volume::Ext;
use super::{extents, xattr};
use crate::alloc::no_space;
use crate::alloc::swaparea::SwapRoom;
use crate::data_disk::DataDisk;
use crate::format::superblock::State;
use crate::format::{GroupNo, InodeNo, Place, Structure, inode};
use crate::health::damaged;
use crate::meta::{Freed, Level};
use crate::place::Files;

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
        let available = self.alloc.available_blocks();
        let kept = self.kept_for_nodes().min(available);
        let blocks = |clusters: u64| clusters.saturating_mul(self.geo.cluster_blocks.into());
        VolumeSpace {
            free_blocks: blocks(available - kept),
            kept_blocks: blocks(kept),
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
        self.end_rename_first(&node)?;
        let attr = self.attr(&node);
        // Recovery has just deleted it.
        if attr.nlink == 0 { Err(Error::Stale(ino)) } else { Ok((attr, node)) }
    }

    fn lookup(&self, dir: &Self::Node, name: &Name) -> Result<Option<Dentry>> {
        // The kernel keeps what it is told: names that recovery is going to change are not told.
        self.end_exchanges_first()?;
        let mut found = self.find_name(dir, name)?;
        if let Some(leads_to) = &found
            && self.end_rename_of(leads_to.ino)?
        {
            found = self.find_name(dir, name)?;
        }
        Ok(found.map(|found| Dentry { ino: Ino(found.ino.0.into()), kind: found.kind }))
    }

    fn list(&self, dir: &Self::Node, from: Cookie, to: &mut DirSink<'_>) -> Result<()> {
        self.end_renames_in(dir)?;
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

    fn is_immovable(&self, file: &Self::Node) -> bool {
        self.own_files.contains(&file.ino)
    }

    fn resident(&self, file: &Self::Node, at: Lbn) -> Result<Option<Vec<u8>>> {
        // Inodes are no longer than a block.
        if at == Lbn(0) { self.inline_contents(file) } else { Ok(None) }
    }

    fn contents_disk(&self, volume: SharedDisk) -> SharedDisk {
        if self.replayed {
            Arc::clone(&self.disk)
        } else if self.logs_small_writes {
            Arc::new(DataDisk::new(volume, Arc::clone(&self.meta), self.geo.block_bytes()))
        } else {
            volume
        }
    }

    fn neighbours(&self, file: &Self::Node, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        self.files_beside(file, around, reach)
    }

    fn file_bytes_max(&self, file: &Self::Node) -> u64 {
        self.writable_bytes_max(file)
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

    fn layout_flags(&self, node: &Self::Node) -> u32 {
        node.state.lock().inode.flags.bits() & !USER_FLAGS
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

    fn takes_block_to_remove(&self, node: &Self::Node, key: &XattrKey) -> Result<bool> {
        self.removal_takes_block(node, key)
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
                return Ok(Admission::new(blocks, need.inodes, promised));
            }
            if freeing == 0 {
                return Err(no_space());
            }
            self.finish_freeing(freeing)?;
        }
    }

    fn has_room_for_name(&self, dir: &Self::Node, name: &Name) -> Result<bool> {
        self.fits_name(dir, name)
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
        let mut target = Level(upto.0).max(self.slot_pending(node)?).max(maps).max(self.meta.data_level());
        if how == SyncScope::Full {
            let names = if node.kind == FileKind::Directory { &self.entries_level } else { &self.names_level };
            target = target.max(Level(names.load(Ordering::Relaxed)));
        }
        self.meta.wait_for_host(|| self.sweep(target))?;
        let flushed = self.disk.make_durable(data).map_err(|source| Error::disk("flushing file data", source));
        self.health.watch(flushed)
    }

    fn commit(&self, _why: CommitReason) -> Result<()> {
        self.commit_all()
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

    fn survey_space(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_unowned(to)
    }

    fn runs(&self, node: &Self::Node) -> Result<Vec<(Lbn, BlockRun)>> {
        self.runs_of(node)
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
