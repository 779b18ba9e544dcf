//! Mounts a disk independent of its format.

use moafs_disk::SharedDisk;
use moafs_runtime::{Live, Rt};
use moafs_vfs::api::StatFs;
use moafs_vfs::{Format, Options, Result, Vfs};

use crate::drive::Mount;

/// Mounts disks of one format.
pub trait Mounter: Sync {
    /// The format.
    type Format: Format;
    /// Mounts `disk`. No background task runs: the caller calls [`Vfs::run_background_step`], so runs repeat.
    ///
    /// # Errors
    /// As the format refuses it.
    fn mount(&self, disk: SharedDisk, read_only: bool) -> Result<Vfs<Self::Format>> {
        self.mount_on(disk, Live::new(), options(read_only))
    }

    /// Mounts `disk` on a runtime.
    ///
    /// # Errors
    /// As the format refuses it.
    fn mount_on(&self, disk: SharedDisk, rt: Rt, options: Options) -> Result<Vfs<Self::Format>>;
}

/// Returns the options of tests: a cache small enough to evict, so that write-back happens during operations; no
/// background task.
pub fn options(read_only: bool) -> Options {
    Options { cache_bytes: CACHE_BYTES, syncer: false, read_only, ..Options::default() }
}

/// Returns the space of a volume as far as files can have it: without the free blocks that the format keeps.
pub fn writable<F: Format>(vfs: &Vfs<F>) -> StatFs {
    let space = vfs.stat_fs();
    StatFs { free: space.free.saturating_sub(vfs.format().space().kept_blocks), ..space }
}

/// Most bytes of cached data.
pub const CACHE_BYTES: usize = 4 << 20;

/// A disk with the mounter that fits it.
pub struct OnDisk<'a, T> {
    /// The mounter.
    pub mounter: &'a T,
    /// The disk.
    pub disk: SharedDisk,
}

impl<T: Mounter> Mount for OnDisk<'_, T> {
    type Format = T::Format;

    fn mount(&self) -> Result<Vfs<T::Format>> {
        self.mounter.mount(self.disk.clone(), false)
    }

    fn disk(&self) -> SharedDisk {
        self.disk.clone()
    }
}
