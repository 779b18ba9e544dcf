//! Opening a volume: the one place that knows all engines, and the layers of a disk.
//!
//! The one idea: the format of a volume is determined once, from its first bytes. From then on a
//! command is written for any [`Format`], and [`with_volume!`] has it compiled for each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moafs_disk::file::{Direct, FileOptions};
use moafs_disk::probe::trace::Trace;
use moafs_disk::queue::{Elevator, QueueOptions};
use moafs_disk::{DiskError, FileDisk, SharedDisk};
use moafs_ext::Ext;
use moafs_f2fs::F2fs;
use moafs_mount::MoreCounters;
use moafs_mount::busy;
use moafs_mount::options::{FormatOption, HostCache, OptionError};
use moafs_mount::source::{Source, SourceError};
use moafs_runtime::{Live, Rt};
use moafs_vfs::{Format, Options, Vfs};

use crate::error::{CliError, Result};
use crate::format_name::FormatName;
use crate::holder;
use crate::latency::Latency;
use crate::output;
use crate::partition::{self, Chosen, Part};

/// Most sections that `clean_batch=` takes.
const CLEAN_BATCH_MAX: u64 = 64;

/// An open volume, its disk and the trace of its device.
pub(crate) struct Volume<F: Format> {
    pub(crate) vfs: Vfs<F>,
    /// Disk that the volume lies on.
    pub(crate) disk: SharedDisk,
    /// Requests to the device.
    pub(crate) trace: Arc<Trace>,
    /// Their times; `None` if the device is that of another volume.
    pub(crate) latency: Option<Arc<Latency>>,
    pub(crate) image: PathBuf,
}

/// An open volume of any format.
pub(crate) enum AnyVolume {
    Ext(Volume<Ext>),
    F2fs(Volume<F2fs>),
}

/// Runs work on an [`AnyVolume`] of any format: `on_volume!(any, |volume| work(volume))`.
macro_rules! on_volume {
    ($any:expr, |$volume:ident| $work:expr) => {
        match $any {
            $crate::volume::AnyVolume::Ext($volume) => $work,
            $crate::volume::AnyVolume::F2fs($volume) => $work,
        }
    };
}

/// Opens an image's volume, runs work on it, and closes it even if the work failed:
/// `with_volume!(image, access, |volume| work(volume))`.
macro_rules! with_volume {
    ($image:expr, $access:expr, |$volume:ident| $work:expr) => {
        $crate::volume::on_volume!($crate::volume::open_for($image, $access)?, |open| open.with(|$volume| $work))
    };
}

pub(crate) use {on_volume, with_volume};

/// The access that a command needs to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only; other processes may read at the same time.
    Read,
    /// The command reads and changes the volume.
    Write,
}

/// A disk with its counters.
pub(crate) struct Opened {
    pub(crate) disk: SharedDisk,
    /// First byte of the volume on the image or device.
    pub(crate) first_byte: u64,
    pub(crate) trace: Arc<Trace>,
    pub(crate) latency: Option<Arc<Latency>>,
    pub(crate) rt: Rt,
}

/// Opens the volume of an image or device, or of a partition (`IMAGE@CHOICE`): file, counters, partition, elevator.
pub(crate) fn open_disk(image: &Path, options: FileOptions) -> Result<Opened> {
    open_part(image, options, &Part::OnlyVolume)
}

/// Opens a part of an image or device: file, counters, partition, elevator.
pub(crate) fn open_part(image: &Path, options: FileOptions, part: &Part) -> Result<Opened> {
    let rt = Live::serving(moafs_mount::caller_is_gone);
    let transfer_bytes_max = options.transfer_bytes_max;
    let (file_name, _) = partition::split(image);
    let file = open_file(&file_name, &rt, &options)?;
    let latency = Arc::new(Latency::new(Arc::new(file), rt.clone()));
    let trace = Arc::new(Trace::new(Arc::clone(&latency) as SharedDisk, rt.clone()));
    Ok(Opened { latency: Some(latency), ..on_device(trace, rt, image, transfer_bytes_max, part)? })
}

/// Opens a part of a device that is open already. `image` is its name, which may choose a partition.
fn on_device(trace: Arc<Trace>, rt: Rt, image: &Path, transfer_bytes_max: usize, part: &Part) -> Result<Opened> {
    let (file_name, choice) = partition::split(image);
    let Chosen { disk: part, first } = partition::choose(&file_name, trace.clone(), choice.as_deref(), part)?;
    let queue = QueueOptions { transfer_bytes_max, ..QueueOptions::default() };
    let disk = Arc::new(Elevator::new(part, rt.clone(), queue));
    Ok(Opened { disk, first_byte: first.byte(), trace, latency: None, rt })
}

/// Opens and locks, and waits if another process is about to release it.
fn open_file(image: &Path, rt: &Rt, options: &FileOptions) -> Result<FileDisk> {
    let tell = || output::complain(&format!("{} is still in use; waiting up to 10 s", output::path(image)));
    let attempt = || match FileDisk::open(image, rt.clone(), options.clone()) {
        Err(error @ DiskError::Busy { .. }) => Err(error),
        opened => Ok(opened),
    };
    let opened = busy::wait(|_| busy::grace(image), tell, attempt);
    let opened = opened.map_err(|_| CliError::Busy { image: image.to_owned(), holder: holder::words(image) })??;
    if !options.read_only {
        Source::of(image)?.check_unshared().map_err(|error| match error {
            SourceError::Busy { by, .. } => CliError::Busy { image: image.to_owned(), holder: by },
            other => other.into(),
        })?;
    }
    Ok(opened)
}

/// Returns the options to open an image or device with, from these volume options.
pub(crate) fn file_options(options: &Options, host_cache: HostCache) -> FileOptions {
    let base = if options.read_only { FileOptions::reader() } else { FileOptions::default() };
    let direct = match host_cache {
        HostCache::Auto => Direct::Auto,
        HostCache::Bypass => Direct::Always,
        HostCache::Use => Direct::Never,
    };
    FileOptions { direct, transfer_bytes_max: options.transfer_bytes_max, ..base }
}

/// Opens the volume on an open disk. `of_format` are options that only its format knows.
pub(crate) fn open_volume(
    image: &Path,
    opened: Opened,
    options: Options,
    of_format: &[FormatOption],
) -> Result<AnyVolume> {
    let Opened { disk, trace, latency, rt, .. } = opened;
    let name = FormatName::on_disk(image, &disk)?;
    let mut given = Vec::new();
    for option in of_format {
        if option.is_for(name.name())? {
            given.push(option);
        }
    }
    let fail = |error| CliError::Open { image: image.to_owned(), error };
    let image = image.to_owned();
    Ok(match name {
        FormatName::Ext => {
            let format = Ext::open(disk.clone(), rt.clone(), ext_options(&options, &given)?).map_err(fail)?;
            AnyVolume::Ext(Volume { vfs: Vfs::new(format, disk.clone(), rt, options), disk, trace, latency, image })
        }
        FormatName::F2fs => {
            let format = F2fs::open(disk.clone(), rt.clone(), f2fs_options(&options, &given)?).map_err(fail)?;
            AnyVolume::F2fs(Volume { vfs: Vfs::new(format, disk.clone(), rt, options), disk, trace, latency, image })
        }
    })
}

fn ext_options(options: &Options, given: &[&FormatOption]) -> Result<moafs_ext::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, .. } = *options;
    let mut ext = moafs_ext::OpenOptions { read_only, transfer_bytes_max, ..Default::default() };
    for option in given {
        match option.name {
            "place" => ext.place = option.parse()?,
            "dirs" => ext.directories = Some(option.parse()?),
            "log_small_writes" => ext.log_small_writes = option.on_or_off()?,
            other => unreachable!("{other} is no option of ext volumes"),
        }
    }
    Ok(ext)
}

fn f2fs_options(options: &Options, given: &[&FormatOption]) -> Result<moafs_f2fs::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, cache_bytes, .. } = *options;
    let mut f2fs = moafs_f2fs::OpenOptions { read_only, transfer_bytes_max, cache_bytes, ..Default::default() };
    for option in given {
        match option.name {
            "cleaner" => f2fs.cleaner = option.parse()?,
            "recycle" => f2fs.recycling = option.parse()?,
            "temperature" => f2fs.temperature = option.parse()?,
            "clean-order" => f2fs.clean_order = option.parse()?,
            "clean_batch" => f2fs.clean_batch = option.number(1..=CLEAN_BATCH_MAX)? as u32,
            "background_gc" => f2fs.background = option.on_or_off()?,
            "discard" => f2fs.discard = true,
            "nodiscard" => f2fs.discard = false,
            "disable_roll_forward" => f2fs.roll_forward = false,
            other => unreachable!("{other} is no option of F2FS"),
        }
    }
    Ok(f2fs)
}

/// Opens an image's volume for a command.
pub(crate) fn open_for(image: &Path, access: Access) -> Result<AnyVolume> {
    let options = Options { read_only: access == Access::Read, ..Options::default() };
    open_volume(image, open_disk(image, file_options(&options, HostCache::Auto))?, options, &[])
}

/// Opens another volume of a device that is open already, such as that of another partition, to read it.
pub(crate) fn open_beside(device: &Arc<Trace>, image: &Path) -> Result<AnyVolume> {
    let options = Options { read_only: true, ..Options::default() };
    let opened = on_device(Arc::clone(device), Live::new(), image, options.transfer_bytes_max, &Part::OnlyVolume)?;
    open_volume(image, opened, options, &[])
}

impl AnyVolume {
    /// Returns the counters of the format's engine, if it has some.
    pub(crate) fn engine_counters(&self) -> Option<MoreCounters> {
        match self {
            AnyVolume::Ext(_) => None,
            AnyVolume::F2fs(volume) => {
                let vfs = volume.vfs.clone();
                Some(Box::new(move || serde_json::to_value(vfs.format().report()).unwrap_or_default()))
            }
        }
    }
}

impl<F: Format> Volume<F> {
    /// Returns the result of looking at all of it.
    pub(crate) fn looking<T>(&self, looked: moafs_vfs::Result<T>) -> Result<T> {
        let at = crate::output::path(&self.image);
        looked.map_err(|error| CliError::Volume { what: "looking at the layout of", at, error })
    }

    /// Writes everything and closes. To be called on every way out of a command that changes
    /// something.
    fn close(self) -> Result<()> {
        let Volume { vfs, image, .. } = self;
        let at = crate::output::path(&image);
        vfs.close().map_err(|error| CliError::Volume { what: "closing", at, error })
    }

    /// Runs `work` and closes, even if the work failed.
    pub(crate) fn with<T>(self, work: impl FnOnce(&Volume<F>) -> Result<T>) -> Result<T> {
        let worked = work(&self);
        let closed = self.close();
        let result = worked?;
        closed.map(|()| result)
    }
}
