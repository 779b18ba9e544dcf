//! The engine: a mounted F2FS volume, and the implementation of [`Format`].
//!
//! Everything changes in memory and is written out of place. Data are written when vfs writes them
//! back, to the head of a log; nodes, directory blocks and tables are written together with the
//! next checkpoint. A block that the last checkpoint names is not overwritten before the next one
//! is durable, so a power cut finds a whole volume at every moment.
//!
//! Lock order: `writer` (one checkpoint or chain at a time), the op gate (ops shared, a snapshot
//! exclusive), a file's `map` lock, then leaves that never wait (space, table, caches).
//!
//! | module | what it does |
//! |---|---|
//! | [`volume`], [`options`] | the parts of a mounted volume; options for opening one |
//! | [`mount`] | opening a volume |
//! | [`space`] | valid, held and free blocks; the six logs |
//! | [`nat`] | addresses of nodes; free node ids |
//! | [`node_cache`], [`owned_cache`] | nodes, and blocks of directories, in memory |
//! | [`nodes`], [`owned`] | reading and changing them |
//! | [`neighbours`] | small files beside another, for co-reading |
//! | [`nodes_around`], [`read_ahead`] | reading nodes together; the decision about how many |
//! | [`packed`] | nodes at rest |
//! | [`evict`] | which cached blocks are given up when memory is short |
//! | [`incore`], [`inodes`] | in-core inodes; finding and changing them |
//! | [`map`] | from file blocks to blocks of the volume |
//! | [`dir`], [`xattr`] | directories, extended attributes |
//! | [`op`] | operations: changes that one checkpoint contains whole |
//! | [`checkpoint`], [`writer`] | making everything durable; what that needs between two times |
//! | [`underway`] | keeps nodes and blocks in memory while they are written |
//! | [`fsync`], [`recover`] | fsync by chains of nodes; finding them after a power cut |
//! | [`roll_forward`] | changes that such chains cannot describe |
//! | [`room`] | what happens when free segments are short |
//! | [`mover`] | moving valid blocks out of the victims of cleaning |
//! | [`survey`] | reporting the layout of the whole volume |
//! | [`report`] | telling facts about a volume and its segments |
//! | [`convert`] | copies of blocks, errors for vfs |

mod checkpoint;
mod convert;
mod dir;
mod evict;
mod fsync;
mod incore;
mod inline;
mod inodes;
mod map;
mod mount;
mod mover;
mod nat;
mod neighbours;
mod node_cache;
mod nodes;
mod nodes_around;
mod op;
mod options;
mod owned;
mod owned_cache;
mod packed;
mod read_ahead;
mod recover;
pub mod report;
mod roll_forward;
mod room;
mod space;
mod superblocks;
mod survey;
mod underway;
mod volume;
mod writer;
mod xattr;

use moafs_runtime::leaf::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Cause, Epoch, Kind, Tag};
use moafs_runtime::Time;
use moafs_vfs::format::{
    Admission, CommitPoint, CommitReason, DirSink, Format, Idle, MapShape, Neighbour, OpKind, RoomSearch, Shape,
    SpaceClass, SpaceRequest, Survey, SyncScope, VolumeSpace,
};
use moafs_vfs::full_host::{pass_over_full_host, wait_for_host};
use moafs_vfs::plan::{DirtyView, Plan, PlannedWrite, WritebackReason};
use moafs_vfs::swap_space::SwapSpace;
use moafs_vfs::types::{Attr, BlockRun, Cookie, Dentry, FileRange, Ino, Lbn, LbnRange, Mapping, Name, XattrKey};
use moafs_vfs::{Error, Result};
use smallvec::smallvec;

use crate::format::inode::{self, Advise, Inline};
use crate::format::node::lbn_limit;
use crate::format::{BLOCK, BlkAddr, Log, Nid};
use crate::place::Heat;
use crate::place::log_choice::{BlockFacts, data_log};
use crate::place::temperature::FileBlocks;

pub use incore::Incore;
pub use op::F2fsOp;
pub use options::OpenOptions;
pub use space::LogCounters;
pub(crate) use superblocks::{read_superblock, replace_copy};
pub use volume::{Counters, F2fs};

/// File blocks around the one to be evicted that may be written together with it.
const PLAN_BLOCKS_MAX: u32 = 1024;

/// Memory of dirty nodes and directory blocks at which a checkpoint is written before anything else changes, in bytes.
const DIRTY_BYTES_MAX: usize = 32 << 20;
/// Dirty nodes and directory blocks at which it is written in any case: each will need a block. With fewer, the inodes
/// of new files would be written before their data, and once more after these.
const DIRTY_BLOCKS_MAX: usize = 32 << 10;

impl Format for F2fs {
    type Node = Arc<Incore>;
    type Op<'a> = F2fsOp<'a>;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn space(&self) -> VolumeSpace {
        let usage = self.space.usage();
        let nids = u64::from(self.geo.nid_max()).saturating_sub(4);
        VolumeSpace {
            free_blocks: self.space.available(),
            free_inodes: nids.saturating_sub(usage.nodes.into()),
            ..VolumeSpace::default()
        }
    }

    fn failed(&self) -> Option<String> {
        self.health.failed().map(str::to_owned)
    }

    fn fail(&self, reason: &str) {
        self.health.fail(reason);
    }

    fn relocation_generation(&self) -> u64 {
        self.space.relocation_generation()
    }

    fn load(&self, ino: Ino) -> Result<(Attr, Self::Node)> {
        let number = u32::try_from(ino.0).map_err(|_| Error::Stale(ino))?;
        let node = self.usable(Nid(number))?;
        Ok((self.attr(&node)?, node))
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
        self.target(link)
    }

    fn map(&self, file: &Self::Node, at: Lbn, max: u32) -> Result<Mapping> {
        self.map_run(file, at, max)
    }

    fn resident(&self, file: &Self::Node, at: Lbn) -> Result<Option<Vec<u8>>> {
        let is_there = at.0 == 0 && Format::is_inline(self, file);
        Ok(is_there.then(|| self.inline_bytes(file)))
    }

    fn is_inline(&self, file: &Self::Node) -> bool {
        F2fs::is_inline(self, file, Inline::DATA)
    }

    fn neighbours(&self, file: &Self::Node, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        self.files_beside(file, around, reach)
    }

    fn file_bytes_max(&self, file: &Self::Node) -> u64 {
        let blocks = lbn_limit(self.layout(file).addresses());
        self.shape.file_bytes_max.min(blocks.saturating_mul(BLOCK as u64))
    }

    fn map_shape(&self, file: &Self::Node) -> MapShape {
        let direct = self.layout(file).addresses().into();
        MapShape { direct, fan: crate::format::node::ADDRS_PER_NODE as u64, trees: &[1, 1, 2, 2, 3] }
    }

    fn missing_maps(&self, file: &Self::Node, at: Lbn) -> Result<u8> {
        self.missing_nodes(file, at.0)
    }

    fn used_sectors(&self, node: &Self::Node) -> u64 {
        node.node.view_head(crate::format::inode::blocks).saturating_mul(8)
    }

    fn stat_sectors(&self, node: &Self::Node) -> u64 {
        node.node.view_head(crate::format::inode::stat_sectors)
    }

    fn generation(&self, node: &Self::Node) -> u32 {
        node.node.view(crate::format::inode::generation)
    }

    fn size(&self, node: &Self::Node) -> u64 {
        node.node.view_head(crate::format::inode::size)
    }

    fn xattr(&self, node: &Self::Node, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        self.attribute(node, key)
    }

    fn xattr_list(&self, node: &Self::Node) -> Result<Vec<XattrKey>> {
        self.attribute_keys(node)
    }

    fn admit(&self, need: SpaceRequest, _who: SpaceClass) -> Result<Admission> {
        let SpaceRequest { data_blocks, map_blocks, meta_blocks, inodes } = need;
        let blocks = data_blocks.saturating_add(map_blocks).saturating_add(meta_blocks).saturating_add(inodes);
        if !self.space.promise(blocks) {
            return Err(Error::Posix(libc::ENOSPC));
        }
        let admission = Admission::new(blocks, 0, space::keeper(&self.space));
        if blocks > data_blocks && !self.has_node_ids(data_blocks) {
            return Err(Error::Posix(libc::ENOSPC));
        }
        // On a full host room is made when the data leave; the volume has the space.
        pass_over_full_host(self.prepare_room(blocks))?;
        Ok(admission)
    }

    fn has_room_for_name(&self, dir: &Self::Node, name: &Name) -> Result<bool> {
        self.fits_name(dir, name)
    }

    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<F2fsOp<'a>> {
        self.health.check()?;
        if let Some(reason) = &self.shape.read_only {
            return Err(Error::ReadOnly { reason: reason.clone() });
        }
        self.shorten(kind)?;
        let ticket = self.admit_op(kind)?;
        Ok(F2fsOp::new(self, kind, admission, ticket))
    }

    fn make_room(
        &self,
        due: WritebackReason,
        dirty: &dyn DirtyView<Self::Node>,
        search: &mut RoomSearch,
    ) -> Result<()> {
        if search.failed() > 0 {
            return self.gain_room(search);
        }
        let Some(file) = dirty.file(due.ino(), around(due)) else { return Ok(()) };
        self.tick();
        self.prepare_room(file.dirty.iter().map(|range| u64::from(range.len)).sum())
    }

    fn plan(&self, due: WritebackReason, dirty: &dyn DirtyView<Self::Node>) -> Result<Plan> {
        let mut plan = Plan::default();
        let Some(file) = dirty.file(due.ino(), around(due)) else { return Ok(plan) };
        self.tick();
        plan.partial = !file.dirty.iter().all(|range| self.plan_range(&file.node, *range, due, &mut plan));
        if plan.partial && plan.writes.is_empty() {
            return Err(Error::Posix(libc::ENOSPC));
        }
        Ok(plan)
    }

    fn swap_space(&self) -> Option<Arc<dyn SwapSpace>> {
        let room = || -> Arc<dyn SwapSpace> { Arc::new(space::swaparea::SwapRoom::new(Arc::clone(&self.space))) };
        self.shape.read_only.is_none().then(|| {
            self.set_reserve();
            room()
        })
    }

    fn make_way(&self, blocks: u64) -> Result<()> {
        wait_for_host(&self.rt, || self.clear_sections(blocks))
    }

    fn abandon(&self, run: BlockRun) {
        self.space.end_flight(run);
        self.changed();
    }

    /// A sync of the data alone may write a new file's chain, which tells its name: so both kinds do the same.
    fn sync_inode(&self, node: &Self::Node, upto: CommitPoint, data: Epoch, _how: SyncScope) -> Result<()> {
        self.health.check()?;
        // The names that lead to the file must be durable as well, those of the directories above
        // included.
        if !self.reaches(CommitPoint(self.moved.load(Ordering::Acquire))) {
            return wait_for_host(&self.rt, || self.checkpoint(false));
        }
        self.sync_file(node, upto, data)
    }

    fn commit(&self, why: CommitReason) -> Result<()> {
        self.health.check()?;
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        self.checkpoint(why == CommitReason::Unmount)?;
        self.flush()
    }

    fn run_background_step(&self, idle: Idle) -> Option<Time> {
        self.checkpoint_in_background();
        self.clean_in_background(idle)
    }

    fn shrink(&self, bytes: usize) {
        self.nodes.shrink(bytes / 2);
        self.owned.shrink(bytes / 4);
        if self.nat.cached() > bytes / 4 {
            self.nat.shrink();
        }
    }

    fn memory(&self) -> usize {
        self.nodes.memory() + self.owned.memory() + self.nat.memory() + self.separator.lock().memory()
    }

    fn survey(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_volume(to)
    }

    fn survey_space(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_unowned(to);
        Ok(())
    }

    fn runs(&self, node: &Self::Node) -> Result<Vec<(Lbn, BlockRun)>> {
        self.runs_of(node)
    }

    fn close(&self) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        self.health.check()?;
        // Without another wait for a full host: the commit before has waited.
        self.checkpoint_as(&mut self.writer.lock(), true)
    }
}

impl F2fs {
    /// Returns the log that a range of a regular file joins.
    fn log_of(&self, file: &Incore, range: LbnRange) -> Log {
        let advise = file.node.view_head(inode::advise);
        let mark = if advise.contains(Advise::COLD) {
            Some(Heat::Cold)
        } else {
            advise.contains(Advise::HOT).then_some(Heat::Hot)
        };
        let blocks = FileBlocks { ino: file.ino, range, mark };
        let heat = self.separator.lock().heat(&blocks, self.clock_ns());
        data_log(BlockFacts { heat, ..BlockFacts::default() })
    }

    fn note_placed(&self, run: BlockRun, log: Log) {
        if let Some((segno, _)) = self.geo.segment_of(BlkAddr(run.start.0 as u32)) {
            self.separator.lock().placed(segno, log);
        }
    }

    /// Finds places for one dirty range: one planned write for each run of blocks. False if there
    /// was room for a part of it only, or for nothing.
    fn plan_range(&self, file: &Arc<Incore>, range: LbnRange, due: WritebackReason, plan: &mut Plan) -> bool {
        let cause = match due {
            WritebackReason::Evict(..) => Cause::Evict,
            WritebackReason::Age(_) => Cause::Age,
            WritebackReason::Move(_) => Cause::Move,
            WritebackReason::Sync(_) => Cause::Fsync,
            WritebackReason::Drain(_) => Cause::Demand,
        };
        let tag = Tag::new(Kind::Data, file.ino.0.into(), cause);
        let log = self.log_of(file, range);
        let transfer = (self.options.transfer_bytes_max / BLOCK).max(1) as u32;
        let mut at = range.start;
        while at < range.end() {
            let left = (range.end().0 - at.0) as u32;
            let Some(run) = self.space.take_data(log, left.min(transfer)) else { return false };
            self.note_placed(run, log);
            let part = LbnRange { start: at, len: run.len };
            let from = smallvec![FileRange { ino: Ino(file.ino.0.into()), range: part }];
            plan.writes.push(PlannedWrite { to: run, from, fresh: true, tag });
            at = part.end();
        }
        true
    }
}

/// Returns the part of a file that is planned with the block that is due; `None`: all of it.
fn around(due: WritebackReason) -> Option<(Lbn, u32)> {
    match due {
        WritebackReason::Evict(_, at) => Some((at, PLAN_BLOCKS_MAX)),
        _ => None,
    }
}

/// The time without requests after which background cleaning begins.
const IDLE_BEFORE_CLEANING: Duration = Duration::from_secs(1);
