//! A mounted volume: its parts and its state, the clock, and the counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use moafs_disk::SharedDisk;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use moafs_runtime::lock::{Mutex as WaitMutex, RwLock};
use moafs_runtime::{Rt, Time};
use moafs_vfs::format::{CommitPoint, Shape};
use moafs_vfs::health::Health;
use serde::Serialize;

use super::incore::Incore;
use super::nat::Nat;
use super::node_cache::Nodes;
use super::options::OpenOptions;
use super::owned_cache::OwnedBlocks;
use super::roll_forward::RollForwardLimits;
use super::space::{LogCounters, MainArea};
use super::writer::Writer;
use crate::format::Nid;
use crate::format::superblock::{Features, Geometry};
use crate::place::kind::Extensions;
use crate::place::log_choice::Bursts;
use crate::place::temperature::Separator;

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
    pub(super) disk: SharedDisk,
    pub(super) rt: Rt,
    pub(super) options: OpenOptions,
    pub(super) health: Health,
    pub(super) geo: Geometry,
    pub(super) uuid: [u8; 16],
    pub(super) features: Features,
    pub(super) extensions: Extensions,
    pub(super) shape: Shape,
    pub(super) reserved_segments: u32,
    pub(super) space: Arc<MainArea>,
    pub(super) nat: Nat,
    pub(super) nodes: Nodes,
    pub(super) owned: OwnedBlocks,
    pub(super) live: Mutex<BTreeMap<Nid, Weak<Incore>>>,
    /// Inodes without a name: the next checkpoint lists them.
    pub(super) orphans: Mutex<BTreeSet<Nid>>,
    /// The number of orphans that a checkpoint can list.
    pub(super) orphans_max: usize,
    /// Limits of roll-forward: changes since the last snapshot that a file's nodes alone do not
    /// describe.
    pub(super) roll_forward_limits: Mutex<RollForwardLimits>,
    /// The state of the policy that tells hot data from cold.
    pub(super) separator: Mutex<Box<dyn Separator>>,
    /// The decisions about how bursts of writes get room.
    pub(super) bursts: Mutex<Bursts>,
    pub(super) writer: WaitMutex<Writer>,
    pub(super) gate: RwLock<()>,
    /// Held while cleaning: there is one cleaning at a time.
    pub(super) cleaning: WaitMutex<()>,
    /// True if a checkpoint would help, and no task waits for it.
    pub(super) wants_checkpoint: AtomicBool,
    /// The version of the checkpoint that will contain what changes now, and of the last durable one.
    pub(super) version: AtomicU64,
    pub(super) committed: AtomicU64,
    /// The version of the checkpoint that must be durable for every directory to be where it was
    /// moved to.
    pub(super) moved: AtomicU64,
    /// True if something has changed since the last snapshot was taken.
    pub(super) unsaved: AtomicBool,
    /// The volume's clock when it was opened, in seconds, and the runtime's.
    pub(super) elapsed_before: u64,
    pub(super) opened: Time,
    pub(super) tally: Tally,
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
    pub(super) fn elapsed_secs(&self) -> u64 {
        self.elapsed_before + (self.rt.now() - self.opened).as_secs()
    }

    /// Returns the volume's clock in nanoseconds.
    pub(super) fn clock_ns(&self) -> u64 {
        let since = (self.rt.now() - self.opened).as_nanos() as u64;
        self.elapsed_before.saturating_mul(1_000_000_000).saturating_add(since)
    }

    /// Puts the segment table's clock forward.
    pub(super) fn tick(&self) {
        self.space.set_clock(self.clock_ns());
    }

    /// Notes a change. Returns the commit point at which it is durable.
    pub(super) fn changed(&self) -> CommitPoint {
        self.unsaved.store(true, Ordering::Release);
        CommitPoint(self.version.load(Ordering::Acquire))
    }

    /// Notes that an inode needs a checkpoint: its own nodes do not tell all of its changes since
    /// the last one.
    pub(super) fn require_checkpoint(&self, file: &Incore) {
        self.roll_forward_limits.lock().needs_checkpoint.insert(file.ino);
    }

    pub(super) fn reaches(&self, seal: CommitPoint) -> bool {
        self.committed.load(Ordering::Acquire) >= seal.0
    }
}
