//! Opening a volume: the one place that knows which formats there are, and how a disk is put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moafs_disk::file::{Direct, FileOptions};
use moafs_disk::probe::trace::Trace;
use moafs_disk::queue::{Elevator, QueueOptions};
use moafs_disk::{DiskError, FileDisk, SharedDisk};
use moafs_ext::Ext;
use moafs_ext::place::Policy;
use moafs_mount::options::HostCache;
use moafs_runtime::{Live, Rt};
use moafs_vfs::{Options, Vfs};

use crate::error::{CliError, Result};

/// How long, and how often, a lock is tried that somebody may be about to release.
const LOCK_GRACE: Duration = Duration::from_millis(500);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// An open volume.
pub(crate) struct Volume {
    pub(crate) vfs: Vfs<Ext>,
    /// What its device was asked.
    pub(crate) trace: Arc<Trace>,
    pub(crate) image: PathBuf,
}

/// What a command wants to do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Look only; others may look, too.
    Read,
    /// Change it.
    Write,
}

/// A disk with its counters.
pub(crate) struct Opened {
    pub(crate) disk: SharedDisk,
    pub(crate) trace: Arc<Trace>,
    pub(crate) rt: Rt,
}

/// Opens an image or device: file, counters, elevator.
pub(crate) fn open_disk(image: &Path, options: FileOptions) -> Result<Opened> {
    let rt = Live::new();
    let transfer_bytes_max = options.transfer_bytes_max;
    let file = open_file(image, &rt, &options)?;
    let trace = Arc::new(Trace::new(Arc::new(file), rt.clone()));
    let queue = QueueOptions { transfer_bytes_max, ..QueueOptions::default() };
    let disk = Arc::new(Elevator::new(trace.clone(), rt.clone(), queue));
    Ok(Opened { disk, trace, rt })
}

/// Opens and locks. umount(8) returns when everything is on the volume, and the daemon lets go of the lock when it
/// ends, right afterwards: who comes in between waits a moment.
fn open_file(image: &Path, rt: &Rt, options: &FileOptions) -> Result<FileDisk> {
    let until = Instant::now() + LOCK_GRACE;
    loop {
        match FileDisk::open(image, rt.clone(), options.clone()) {
            Err(DiskError::Busy { .. }) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
            Err(DiskError::Busy { .. }) => return Err(CliError::Busy { image: image.to_owned() }),
            opened => return Ok(opened?),
        }
    }
}

/// How to open an image or device with these volume options.
pub(crate) fn file_options(options: &Options, host_cache: HostCache) -> FileOptions {
    let base = if options.read_only { FileOptions::reader() } else { FileOptions::default() };
    let direct = match host_cache {
        HostCache::Auto => Direct::Auto,
        HostCache::Bypass => Direct::Always,
        HostCache::Use => Direct::Never,
    };
    FileOptions { direct, transfer_bytes_max: options.transfer_bytes_max, ..base }
}

/// Opens a volume on an open disk. `place` decides where data go.
pub(crate) fn open_volume(image: &Path, opened: Opened, options: Options, place: Policy) -> Result<Volume> {
    let Opened { disk, trace, rt } = opened;
    let Options { read_only, transfer_bytes_max, .. } = options;
    let ext = moafs_ext::OpenOptions { read_only, transfer_bytes_max, place };
    let fail = |error| CliError::Open { image: image.to_owned(), error };
    let format = Ext::open(disk.clone(), rt.clone(), ext).map_err(fail)?;
    Ok(Volume { vfs: Vfs::new(format, disk, rt, options), trace, image: image.to_owned() })
}

impl Volume {
    /// Opens a volume for a command.
    pub(crate) fn open(image: &Path, access: Access) -> Result<Volume> {
        let options = Options { read_only: access == Access::Read, ..Options::default() };
        open_volume(image, open_disk(image, file_options(&options, HostCache::Auto))?, options, Policy::default())
    }

    /// Writes everything and closes. To be called on every way out of a command that changes something.
    pub(crate) fn close(self) -> Result<()> {
        let Volume { vfs, image, .. } = self;
        let at = image.display().to_string();
        vfs.close().map_err(|error| CliError::Volume { what: "closing", at, error })
    }

    /// Runs `work` and closes, whatever came of it.
    pub(crate) fn with<T>(image: &Path, access: Access, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
        let volume = Volume::open(image, access)?;
        let worked = work(&volume);
        let closed = volume.close();
        let result = worked?;
        closed.map(|()| result)
    }
}
