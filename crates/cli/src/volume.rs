//! Opening a volume: the one place that knows all formats, and the layers of a disk.
//!
//! The one idea: the format of a volume is determined once, from its first bytes. From then on a
//! command is written for any [`Format`], and [`with_volume!`] has it compiled for each.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use moafs_disk::file::{Direct, FileOptions};
use moafs_disk::probe::trace::Trace;
use moafs_disk::queue::{Elevator, QueueOptions};
use moafs_disk::{DiskError, DiskExt, FileDisk, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_ext::Ext;
use moafs_f2fs::F2fs;
use moafs_f2fs::engine::report::SegmentFacts;
use moafs_mount::MoreCounters;
use moafs_mount::busy;
use moafs_mount::options::{FormatOption, HostCache, OptionError};
use moafs_runtime::{Live, Rt};
use moafs_vfs::format::Survey;
use moafs_vfs::{Format, Options, Vfs};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output;

/// Bytes at the start of a volume that tell its format: the superblock of ext2, and both of F2FS.
const HEAD_BYTES: usize = 8192;
/// Offset of the magic number of ext2: at 56 in the superblock, which is at 1024.
const EXT_MAGIC_AT: usize = 1024 + 56;
const EXT_MAGIC: [u8; 2] = 0xEF53_u16.to_le_bytes();
/// Offsets of the magic number of F2FS: at 1024 in block 0, and in its copy, block 1.
const F2FS_MAGIC_AT: [usize; 2] = [1024, 4096 + 1024];
const F2FS_MAGIC: [u8; 4] = 0xF2F5_2010_u32.to_le_bytes();
/// Most sections that `clean_batch=` takes.
const CLEAN_BATCH_MAX: u64 = 64;

/// The formats of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FormatName {
    /// Block groups, inodes near their data: ext2, ext3, ext4
    Ext,
    /// Log-structured, for flash
    F2fs,
}

impl FormatName {
    /// Returns the name that options and JSON have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FormatName::Ext => "ext",
            FormatName::F2fs => "f2fs",
        }
    }

    /// Returns the format of a volume that begins with these bytes; `None` if they hold no magic
    /// number.
    pub(crate) fn of_head(head: &[u8]) -> Option<FormatName> {
        let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
        let [first, copy] = F2FS_MAGIC_AT;
        if has(first, &F2FS_MAGIC) {
            Some(FormatName::F2fs)
        } else if has(EXT_MAGIC_AT, &EXT_MAGIC) {
            // A superblock's copy may be left over from a volume that was here before.
            Some(FormatName::Ext)
        } else if has(copy, &F2FS_MAGIC) {
            Some(FormatName::F2fs)
        } else {
            None
        }
    }

    /// Returns the format of the volume on a disk.
    pub(crate) fn on_disk(image: &Path, disk: &SharedDisk) -> Result<FormatName> {
        let bytes = (disk.limits().sectors * SECTOR as u64).min(HEAD_BYTES as u64) as usize;
        let head = disk.read(Lba(0), bytes, Tag::volume(Kind::Superblock))?;
        FormatName::of_head(&head).ok_or_else(|| match moafs_ext::check::find_copy(&**disk) {
            Some(copy) => CliError::SuperblockLost { image: image.to_owned(), copy: copy.0 },
            None => CliError::NoVolume { image: image.to_owned() },
        })
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An open volume, its disk and the trace of its device.
pub(crate) struct Volume<F: Format> {
    pub(crate) vfs: Vfs<F>,
    /// Disk that the volume lies on.
    pub(crate) disk: SharedDisk,
    /// Requests to the device.
    pub(crate) trace: Arc<Trace>,
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

/// Opens and locks, and waits if another process is about to release it.
fn open_file(image: &Path, rt: &Rt, options: &FileOptions) -> Result<FileDisk> {
    let tell = || output::complain(&format!("{} is still in use; waiting up to 10 s", output::path(image)));
    let attempt = || match FileDisk::open(image, rt.clone(), options.clone()) {
        Err(error @ DiskError::Busy { .. }) => Err(error),
        opened => Ok(opened),
    };
    let opened = busy::wait(|_| busy::grace(image), tell, attempt);
    Ok(opened.map_err(|_| CliError::Busy { image: image.to_owned() })??)
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
    let Opened { disk, trace, rt } = opened;
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
            AnyVolume::Ext(Volume { vfs: Vfs::new(format, disk.clone(), rt, options), disk, trace, image })
        }
        FormatName::F2fs => {
            let format = F2fs::open(disk.clone(), rt.clone(), f2fs_options(&options, &given)?).map_err(fail)?;
            AnyVolume::F2fs(Volume { vfs: Vfs::new(format, disk.clone(), rt, options), disk, trace, image })
        }
    })
}

fn ext_options(options: &Options, given: &[&FormatOption]) -> Result<moafs_ext::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, .. } = *options;
    let mut ext = moafs_ext::OpenOptions { read_only, transfer_bytes_max, place: Default::default() };
    for option in given {
        match option.name {
            "place" => ext.place = option.parse()?,
            other => unreachable!("{other} is no option of ext volumes"),
        }
    }
    Ok(ext)
}

fn f2fs_options(options: &Options, given: &[&FormatOption]) -> Result<moafs_f2fs::OpenOptions, OptionError> {
    let Options { read_only, transfer_bytes_max, .. } = *options;
    let mut f2fs = moafs_f2fs::OpenOptions { read_only, transfer_bytes_max, ..Default::default() };
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

/// Returns all segments of an F2FS volume.
pub(crate) fn f2fs_segments(image: &Path) -> Result<Vec<SegmentFacts>> {
    let options = moafs_f2fs::OpenOptions { read_only: true, ..Default::default() };
    let Opened { disk, rt, .. } = open_disk(image, FileOptions::reader())?;
    let f2fs = F2fs::open(disk, rt, options).map_err(|error| CliError::Open { image: image.to_owned(), error })?;
    Ok(f2fs.segments())
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
    /// Reports the layout of everything on it.
    pub(crate) fn survey(&self, to: &mut dyn Survey) -> Result<()> {
        let fail = |error| CliError::Volume { what: "surveying", at: crate::output::path(&self.image), error };
        self.vfs.format().survey(to).map_err(fail)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn head(magics: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        for (at, magic) in magics {
            head[*at..*at + magic.len()].copy_from_slice(magic);
        }
        head
    }

    #[test]
    fn volumes_are_told_apart_by_their_magic_numbers() {
        let [first, copy] = F2FS_MAGIC_AT.map(|at| (at, &F2FS_MAGIC[..]));
        let ext = (EXT_MAGIC_AT, &EXT_MAGIC[..]);
        for (magics, format) in [
            (&[][..], None),
            (&[ext], Some(FormatName::Ext)),
            (&[first, copy], Some(FormatName::F2fs)),
            (&[copy], Some(FormatName::F2fs)),
            (&[ext, copy], Some(FormatName::Ext)),
            (&[first, ext], Some(FormatName::F2fs)),
        ] {
            assert_eq!(FormatName::of_head(&head(magics)), format);
        }
        assert_eq!(FormatName::of_head(&[]), None);
    }
}
