//! Mounting a disk without naming the format; and the format there is.

use moafs_disk::SharedDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt};
use moafs_vfs::{Format, Options, Result, Vfs};

use crate::drive::Mount;

/// Mounts disks of one format.
pub trait Mounter: Sync {
    /// The format.
    type Format: Format;
    /// Mounts `disk`. No background task runs: the caller calls [`Vfs::tend`], so runs repeat.
    ///
    /// # Errors
    /// As the format refuses it.
    fn mount(&self, disk: SharedDisk, read_only: bool) -> Result<Vfs<Self::Format>>;
}

/// The ext family.
#[derive(Debug, Clone)]
pub struct ExtMounter {
    /// How the volume is used; `syncer` and `read_only` are set by the mounter.
    pub options: Options,
}

impl Default for ExtMounter {
    /// A cache small enough to evict, so that write-back happens in the middle of things.
    fn default() -> ExtMounter {
        ExtMounter { options: Options { cache_bytes: 4 << 20, ..Options::default() } }
    }
}

impl Mounter for ExtMounter {
    type Format = Ext;

    fn mount(&self, disk: SharedDisk, read_only: bool) -> Result<Vfs<Ext>> {
        let rt: Rt = Live::new();
        let open = OpenOptions { read_only, ..OpenOptions::default() };
        let format = Ext::open(disk.clone(), rt.clone(), open)?;
        let options = Options { syncer: false, read_only, ..self.options.clone() };
        Ok(Vfs::new(format, disk, rt, options))
    }
}

/// A disk with the mounter that fits it.
pub struct OnDisk<'a, T> {
    /// How.
    pub mounter: &'a T,
    /// What.
    pub disk: SharedDisk,
}

impl<T: Mounter> Mount for OnDisk<'_, T> {
    type Format = T::Format;

    fn mount(&self) -> Result<Vfs<T::Format>> {
        self.mounter.mount(self.disk.clone(), false)
    }
}
