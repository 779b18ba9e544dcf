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
//! | [`mount`] | opening a volume |
//! | [`space`] | valid, held and free blocks; the six logs |
//! | [`nat`] | addresses of nodes; free node ids |
//! | [`nodes`], [`owned`] | nodes, and blocks of directories, in memory |
//! | [`packed`] | nodes at rest |
//! | [`evict`] | which cached blocks are given up when memory is short |
//! | [`incore`] | in-core inodes |
//! | [`map`] | from file blocks to blocks of the volume |
//! | [`dir`], [`xattr`] | directories, extended attributes |
//! | [`op`] | operations: changes that one checkpoint contains whole |
//! | [`checkpoint`] | making everything durable |
//! | [`underway`] | keeps nodes and blocks in memory while they are written |
//! | [`fsync`], [`recover`] | fsync by chains of nodes; finding them after a power cut |
//! | [`room`] | what happens when free segments are short |
//! | [`mover`] | moving valid blocks out of the victims of cleaning |
//! | [`survey`] | reporting the layout of the whole volume |
//! | [`report`] | telling facts about a volume and its segments |

mod checkpoint;
mod dir;
mod evict;
mod fsync;
mod incore;
mod map;
mod mount;
mod mover;
mod nat;
mod nodes;
mod op;
mod owned;
mod packed;
mod recover;
pub mod report;
mod room;
mod space;
mod survey;
mod underway;
mod xattr;

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use moafs_disk::{Buf, Cause, Epoch, Kind, SharedDisk, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::lock::{Mutex as WaitMutex, RwLock};
use moafs_runtime::{Rt, Time};
use moafs_vfs::format::{
    Admission, CommitPoint, CommitReason, DirSink, Format, Idle, MapShape, OpKind, RoomSearch, Shape, SpaceClass,
    SpaceRequest, Survey, SyncScope, VolumeSpace,
};
use moafs_vfs::health::Health;
use moafs_vfs::plan::{DirtyView, Plan, PlannedWrite, WritebackReason};
use moafs_vfs::swap_space::SwapSpace;
use moafs_vfs::types::{
    Attr, BlockAddr, BlockRun, Cookie, Dentry, FileRange, Ino, Lbn, LbnRange, Mapping, Name, XattrKey,
};
use moafs_vfs::{Error, Result};
use serde::Serialize;
use smallvec::smallvec;

use crate::clean::oracle::Foresight;
use crate::clean::{Cleaner, Order};
use crate::format::inode::{self, Advise, Inline};
use crate::format::superblock::{Features, Geometry};
use crate::format::{Damage, Log, Nid};
use crate::place::kind::Extensions;
use crate::place::log_choice::{BlockFacts, Bursts, data_log};
use crate::place::temperature::{FileBlocks, Separator};
use crate::place::{DeviceCost, Heat, Recycling, Temperature};

pub use incore::Incore;
pub use op::F2fsOp;
pub use space::LogCounters;

/// File blocks around the one to be evicted that may be written together with it.
const PLAN_BLOCKS_MAX: u32 = 1024;

/// Dirty nodes and directory blocks after which a checkpoint is written before anything else changes: they
/// occupy memory, and each will need a block.
const DIRTY_BLOCKS_MAX: usize = 8192;

/// Options for opening a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// If true, nothing at all is written.
    pub read_only: bool,
    /// The largest data request in bytes.
    pub transfer_bytes_max: usize,
    /// The policy that chooses victims of cleaning.
    pub cleaner: Cleaner,
    /// The order in which the valid blocks of victims are written.
    pub clean_order: Order,
    /// Sections that are cleaned together, at least 1.
    pub clean_batch: u32,
    /// The policy that decides when logs recycle.
    pub recycling: Recycling,
    /// The policy that tells hot data from cold.
    pub temperature: Temperature,
    /// If true, cleaning goes on while there are no requests.
    pub background: bool,
    /// If true, the device is told which segments became free.
    pub discard: bool,
    /// The device's costs; decisions between cleaning and recycling rest on them.
    pub device: DeviceCost,
    /// The seed for random choices among equals.
    pub seed: u64,
    /// Knowledge of the future: in experiments, the oracle cleans by it instead of `cleaner`.
    pub foresight: Option<Arc<dyn Foresight>>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            transfer_bytes_max: 1 << 20,
            cleaner: Cleaner::default(),
            clean_order: Order::default(),
            clean_batch: 1,
            recycling: Recycling::default(),
            temperature: Temperature::default(),
            background: true,
            discard: true,
            device: DeviceCost::SSD,
            seed: 0,
            foresight: None,
        }
    }
}

moafs_runtime::counters! {
    /// Counters of a volume since it was opened.
    #[derive(Serialize)]
    pub struct Counters {
        /// The use of the logs.
        #[serde(flatten)]
        logs: LogCounters,
        /// Segments that swap areas took: each is written, and erased, once more.
        swap_segments: u64,
    } + pub(crate) struct Tally {
        /// Checkpoints that were written.
        checkpoints,
        /// Node blocks that were written.
        node_blocks,
        /// Blocks of directories and symbolic links written.
        meta_data_blocks,
        /// Sections cleaned while a writer waited.
        foreground_cleanings,
        /// Sections cleaned while no writer waited.
        background_cleanings,
        /// Blocks of data that cleaning moved.
        moved_blocks,
        /// Nodes that cleaning had written again.
        moved_nodes,
        /// Times that recycling was chosen over cleaning.
        recycle_verdicts,
        /// Times that cleaning was chosen over recycling.
        clean_verdicts,
    }
}

/// A mounted F2FS volume.
pub struct F2fs {
    disk: SharedDisk,
    rt: Rt,
    options: OpenOptions,
    health: Health,
    geo: Geometry,
    uuid: [u8; 16],
    features: Features,
    extensions: Extensions,
    shape: Shape,
    reserved_segments: u32,
    space: Arc<space::MainArea>,
    nat: nat::Nat,
    nodes: nodes::Nodes,
    owned: owned::OwnedBlocks,
    live: Mutex<BTreeMap<Nid, Weak<Incore>>>,
    /// Inodes without a name: the next checkpoint lists them.
    orphans: Mutex<BTreeSet<Nid>>,
    /// The number of orphans that a checkpoint can list.
    orphans_max: usize,
    /// Limits of roll-forward: changes since the last snapshot that a file's nodes alone do not
    /// describe.
    roll_forward_limits: Mutex<fsync::RollForwardLimits>,
    /// The state of the policy that tells hot data from cold.
    separator: Mutex<Box<dyn Separator>>,
    /// The decisions about how bursts of writes get room.
    bursts: Mutex<Bursts>,
    writer: WaitMutex<checkpoint::Writer>,
    gate: RwLock<()>,
    /// Held while cleaning: there is one cleaning at a time.
    cleaning: WaitMutex<()>,
    /// True if a checkpoint would help, and no task waits for it.
    wants_checkpoint: AtomicBool,
    /// The version of the checkpoint that will contain what changes now, and of the last durable one.
    version: AtomicU64,
    committed: AtomicU64,
    /// The version of the checkpoint that must be durable for every directory to be where it was
    /// moved to.
    moved: AtomicU64,
    /// True if something has changed since the last snapshot was taken.
    unsaved: AtomicBool,
    /// The volume's clock when it was opened, in seconds, and the runtime's.
    elapsed_before: u64,
    opened: Time,
    tally: Tally,
}

/// Copies bytes into a buffer of their own.
fn copy_of(bytes: &[u8]) -> Buf {
    let mut block = Buf::scratch(crate::format::BLOCK);
    block.copy_from_slice(bytes);
    block
}

/// Converts damage to the error that vfs reports.
fn damaged(damage: Damage) -> Error {
    Error::Damaged {
        structure: damage.structure.to_string(),
        block: damage.block.map(|block| BlockAddr(block.0.into())),
        problem: damage.problem,
    }
}

impl F2fs {
    /// Returns the places and sizes of the volume's areas.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// Returns the counters since the volume was opened.
    pub fn counters(&self) -> Counters {
        Counters { logs: self.space.counters(), swap_segments: self.space.swap_segments_taken(), ..self.tally.totals() }
    }

    /// Returns the volume's clock in seconds: the time that it was mounted in all its life.
    fn elapsed_secs(&self) -> u64 {
        self.elapsed_before + (self.rt.now() - self.opened).as_secs()
    }

    /// Returns the volume's clock in nanoseconds.
    fn clock_ns(&self) -> u64 {
        let since = (self.rt.now() - self.opened).as_nanos() as u64;
        self.elapsed_before.saturating_mul(1_000_000_000).saturating_add(since)
    }

    /// Puts the segment table's clock forward.
    fn tick(&self) {
        self.space.set_clock(self.clock_ns());
    }

    /// Notes a change. Returns the commit point at which it is durable.
    fn changed(&self) -> CommitPoint {
        self.unsaved.store(true, Ordering::Release);
        CommitPoint(self.version.load(Ordering::Acquire))
    }

    /// Notes that an inode needs a checkpoint: its own nodes do not tell all of its changes since
    /// the last one.
    fn require_checkpoint(&self, file: &Incore) {
        self.roll_forward_limits.lock().needs_checkpoint.insert(file.ino);
    }

    fn reaches(&self, seal: CommitPoint) -> bool {
        self.committed.load(Ordering::Acquire) >= seal.0
    }
}

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
            root_blocks: 0,
            free_inodes: nids.saturating_sub(usage.nodes.into()),
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
        let node = self.incore(Nid(number))?;
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
        if at.0 > 0 {
            return Ok(None);
        }
        if self.is_inline(file, Inline::DATA) {
            return Ok(Some(self.inline_bytes(file)));
        }
        Ok(self.owned.get(file.ino, at.0).map(|block| block.view(<[u8]>::to_vec)))
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
        let admission = Admission::new(blocks, space::keeper(&self.space));
        self.prepare_room(blocks)?;
        Ok(admission)
    }

    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<F2fsOp<'a>> {
        self.health.check()?;
        if let Some(reason) = &self.shape.read_only {
            return Err(Error::ReadOnly { reason: reason.clone() });
        }
        self.shorten()?;
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
        self.clear_sections(blocks)
    }

    fn abandon(&self, run: BlockRun) {
        self.space.end_flight(run);
        self.changed();
    }

    fn sync_inode(&self, node: &Self::Node, upto: CommitPoint, data: Epoch, how: SyncScope) -> Result<()> {
        self.health.check()?;
        // The names that lead to the file must be durable as well, those of the directories above
        // included.
        if how == SyncScope::Full && !self.reaches(CommitPoint(self.moved.load(Ordering::Acquire))) {
            return self.checkpoint(false);
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
        if self.nat.memory() > bytes / 4 {
            self.nat.shrink();
        }
    }

    fn memory(&self) -> usize {
        self.nodes.memory() + self.owned.memory() + self.nat.memory()
    }

    fn survey(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_volume(to)
    }

    fn close(&self) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        self.health.check()?;
        self.checkpoint(true)
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

    /// Finds places for one dirty range: one planned write for each run of blocks. False if there
    /// was room for a part of it only, or for nothing.
    fn plan_range(&self, file: &Arc<Incore>, range: LbnRange, due: WritebackReason, plan: &mut Plan) -> bool {
        let cause = match due {
            WritebackReason::Evict(..) => Cause::Evict,
            WritebackReason::Age(_) => Cause::Age,
            WritebackReason::Move(_) => Cause::Move,
            WritebackReason::Sync(_) | WritebackReason::Drain(_) => Cause::Demand,
        };
        let tag = Tag::new(Kind::Data, file.ino.0.into(), cause);
        let log = self.log_of(file, range);
        let transfer = (self.options.transfer_bytes_max / crate::format::BLOCK).max(1) as u32;
        let mut at = range.start;
        while at < range.end() {
            let left = (range.end().0 - at.0) as u32;
            let Some(run) = self.space.take_data(log, left.min(transfer)) else { return false };
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
