//! The top layer: the state behind [`crate::Vfs`].

use moafs_disk::SharedDisk;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::AtomicU64;
use moafs_runtime::{Rt, Task};

use crate::counters::Counters;
use crate::format::Format;
use crate::inode_table::InodeTable;
use crate::io::Files;
use crate::layer::layer;
use crate::names::Namespace;
use crate::op::Ops;
use crate::options::Options;
use crate::page_cache::PageCache;
use crate::pressure::Pressure;
use crate::reader::Reader;
use crate::reap::Reaper;
use crate::volume::Volume;
use crate::write_back::WriteBack;

/// The in-memory state of a volume: all layers, and the syncer.
pub(crate) struct Inner<F: Format> {
    namespace: Namespace<F>,
    /// Time of the syncer's last commit, in nanoseconds of the runtime's clock.
    pub(crate) last_commit: AtomicU64,
    pub(crate) syncer_task: Mutex<Option<Task>>,
}

layer!(Inner over namespace: Namespace);

impl<F: Format> Inner<F> {
    pub(crate) fn new(format: F, disk: SharedDisk, rt: Rt, options: Options) -> Inner<F> {
        let volume = Volume::new(format, disk, rt, options);
        let page_cache = PageCache::new(Ops::new(InodeTable::new(volume)));
        let write_back = WriteBack::new(Reader::new(Reaper::new(page_cache)));
        let namespace = Namespace::new(Files::new(Pressure::new(write_back)));
        Inner { namespace, last_commit: AtomicU64::new(0), syncer_task: Mutex::new(None) }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            cached_bytes: self.cache.cached_bytes() as u64,
            dirty_bytes: self.cache.dirty_bytes() as u64,
            metadata_bytes: self.format.memory() as u64,
            inodes_now: self.table.decoded() as u64,
            ..self.tally.totals()
        }
    }
}
