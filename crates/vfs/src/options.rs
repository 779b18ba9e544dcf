//! The options of a mounted volume.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The options of a mounted volume. Each has a default.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for cached blocks, metadata and indexes, in bytes.
    pub cache_bytes: usize,
    /// Dirty file data may take up this share of the cache (percent); writers wait above it.
    pub dirty_percent: u8,
    /// The most bytes of dirty file data, if given: a buffer of a fixed size. The smaller of both limits holds.
    pub dirty_bytes_max: Option<usize>,
    /// Writers are slowed down to the pace of write-back long before that limit, so that none waits long at it;
    /// write-back begins at an eighth of the limit instead of three quarters.
    pub paced: bool,
    /// A dirty block older than this is written back.
    pub dirty_age: Duration,
    /// The syncer commits metadata this often.
    pub commit_interval: Duration,
    /// The rule by which reading updates the access time, until [`crate::Vfs::set_atime`].
    pub atime: AtimePolicy,
    /// The changes that are durable before their call returns, until [`crate::Vfs::set_synchronous`].
    pub synchronous: Synchronous,
    /// Refuse every change with EROFS.
    pub read_only: bool,
    /// Read-ahead of a sequential reader at most, in bytes.
    pub read_ahead_bytes: usize,
    /// The most bytes that a miss of a small file reads with one request, its neighbours included, for a caller that
    /// reads file after file. 0: a miss reads the file alone.
    pub co_read_bytes: usize,
    /// The largest data request in bytes; the policies' maximum transfer.
    pub transfer_bytes_max: usize,
    /// The cache above this one, if any.
    pub role: CacheRole,
    /// Run the syncer as a task of the runtime. Off: the caller calls
    /// [`crate::Vfs::run_background_step`] (tests, lab).
    pub syncer: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache_bytes: 256 << 20,
            dirty_percent: 40,
            dirty_bytes_max: None,
            paced: false,
            // As kernels do: most short-lived files die before.
            dirty_age: Duration::from_secs(30),
            commit_interval: Duration::from_secs(5),
            atime: AtimePolicy::Relative,
            synchronous: Synchronous::Marked,
            read_only: false,
            read_ahead_bytes: 1 << 20,
            // As much as a co-write puts side by side in Lee, Ahn, Oh (2008).
            co_read_bytes: 128 << 10,
            transfer_bytes_max: 1 << 20,
            role: CacheRole::Only,
            syncer: true,
        }
    }
}

/// The rule by which reading updates the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtimePolicy {
    /// Every read updates it.
    Strict,
    /// A read updates it if it is older than the last change or than a day (relatime).
    Relative,
    /// Reads never update it.
    Never,
}

/// The rule that is in force, which may change while the volume is mounted.
#[derive(Debug)]
pub(crate) struct AtimeRule(AtomicU8);

impl AtimeRule {
    const ALL: [AtimePolicy; 3] = [AtimePolicy::Strict, AtimePolicy::Relative, AtimePolicy::Never];

    pub(crate) fn new(policy: AtimePolicy) -> AtimeRule {
        AtimeRule(AtomicU8::new(policy as u8))
    }

    pub(crate) fn get(&self) -> AtimePolicy {
        AtimeRule::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }

    pub(crate) fn set(&self, policy: AtimePolicy) {
        self.0.store(policy as u8, Ordering::Relaxed);
    }
}

/// The changes that are durable before their call returns, besides those of files and directories with the flags
/// `FS_SYNC_FL` and `FS_DIRSYNC_FL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Synchronous {
    /// No others.
    Marked,
    /// All changes of names.
    Names,
    /// All changes.
    All,
}

/// The changes that are durable at once, which may become others while the volume is mounted.
#[derive(Debug)]
pub(crate) struct SynchronousRule(AtomicU8);

impl SynchronousRule {
    const ALL: [Synchronous; 3] = [Synchronous::Marked, Synchronous::Names, Synchronous::All];

    pub(crate) fn new(changes: Synchronous) -> SynchronousRule {
        SynchronousRule(AtomicU8::new(changes as u8))
    }

    pub(crate) fn get(&self) -> Synchronous {
        SynchronousRule::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }

    pub(crate) fn set(&self, changes: Synchronous) {
        self.0.store(changes as u8, Ordering::Relaxed);
    }
}

/// The cache above this one, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRole {
    /// There is none: this is the only cache (library, lab).
    Only,
    /// The kernel caches what it read: clean data go to the cold end once served.
    Behind,
}
