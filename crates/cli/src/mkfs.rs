//! `moafs mkfs`: the part that all formats share. The differences stand in a module for each.

mod ext;
mod f2fs;
mod new;
mod old;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use moafs_disk::file::FileOptions;
use moafs_disk::{Disk, FileDisk, SECTOR, SharedDisk};
use moafs_mount::size;
use moafs_mount::source::Source;
use moafs_runtime::{Live, Rt};
use serde::Serialize;
use uuid::Uuid;

pub(crate) use ext::journal_bytes;
use new::New;

use crate::error::{CliError, Result};
use crate::partition::{self, Part};
use crate::{identity, output, owner, volume};

/// Make a volume
///
/// In an image file, which is made (sparse) if it does not exist and SIZE is given, or on a block device. What is on
/// it is lost: if that is a volume or a partition table, mkfs asks first, or refuses where it cannot ask, unless -F is
/// given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs mkfs disk.img 1G                        ext4
  moafs mkfs -t ext2 -b 1024 -L mail disk.img 200M
  moafs mkfs -m 1 -T largefile -O ^resize_inode,orphan_file disk.img 100G
  moafs mkfs --compat linux-3.10 -J size=64 disk.img 8G
  moafs mkfs -t f2fs -L photos disk.img 4G
  moafs mkfs -t f2fs -O extra_attr,inode_checksum,lost_found -s 4 disk.img 64G
  sudo moafs mkfs -E stride=16,stripe_width=64 /dev/sdb1
  moafs mkfs -n disk.img 8T                     what would be made, changing nothing

Exit code: 0 made, 1 not made.")]
pub(crate) struct MkfsArgs {
    /// Image file or block device
    image: PathBuf,
    /// Size of the volume, such as 512M, 1.5G or 100MB (default: all there is)
    #[arg(value_parser = size::parse)]
    size: Option<u64>,
    /// Format of the volume
    #[arg(short = 't', long, value_enum, default_value_t = Type::Ext4)]
    r#type: Type,
    /// The volume's name: at most 16 bytes; of F2FS, 512 characters
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// The volume's identity: a UUID, random, time (of the time and a random node), or clear for none (default: random)
    #[arg(short = 'U', long, value_name = "UUID", value_parser = identity::parse)]
    uuid: Option<Uuid>,
    /// Owner of the root directory (default: the caller)
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    root_owner: Option<(u32, u32)>,
    /// Features, separated by commas; ^FEATURE leaves one of the format's own out, none all of them. F2FS: extra_attr,
    /// inode_checksum, flexible_inline_xattr, inode_crtime, lost_found, sb_checksum (default: none)
    #[arg(short = 'O', long, value_name = "FEATURE,…", value_delimiter = ',')]
    features: Vec<String>,
    /// Show what would be made, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask, even if there is a volume or a partition table: say what is overwritten
    #[arg(short = 'F', long)]
    force: bool,
    /// Tell the device first that its contents are no longer needed
    #[arg(long)]
    discard: bool,
    /// Print nothing on success
    #[arg(short, long)]
    quiet: bool,
    /// Show what was made as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    #[command(flatten)]
    ext: ext::ExtArgs,
    #[command(flatten)]
    f2fs: f2fs::F2fsArgs,
}

/// The formats that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    /// Block groups, without a journal
    Ext2,
    /// ext2 with a journal
    Ext3,
    /// ext3 with extents, checksums and large volumes
    Ext4,
    /// Log-structured, for flash
    F2fs,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Ext2 => "ext2",
            Type::Ext3 => "ext3",
            Type::Ext4 => "ext4",
            Type::F2fs => "f2fs",
        }
    }

    /// Returns the member of the ext family; `None` for F2FS.
    fn family(self) -> Option<ext::Family> {
        match self {
            Type::Ext2 => Some(ext::Family::Ext2),
            Type::Ext3 => Some(ext::Family::Ext3),
            Type::Ext4 => Some(ext::Family::Ext4),
            Type::F2fs => None,
        }
    }
}

/// The report on a new volume, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    image: &'a Path,
    format: Type,
    label: &'a str,
    uuid: String,
    dry_run: bool,
    #[serde(flatten)]
    made: Made,
}

/// The part of the report that only one format has.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Made {
    Ext(ext::Made),
    F2fs(f2fs::Made),
}

impl MkfsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.check_options()?;
        let (file, choice) = partition::split(&self.image);
        let new = New {
            image: &self.image,
            label: &self.label,
            uuid: self.uuid.unwrap_or_else(Uuid::new_v4),
            now: Live::new().timestamp(),
            features: &self.features,
            is_device: matches!(Source::of(&file), Ok(Source::Device(_))),
            discard: self.discard,
            root_owner: self.root_owner.unwrap_or_else(owner::of_caller),
            bytes: self.size.filter(|_| file.exists() && !self.dry_run),
        };
        if self.dry_run {
            return self.tell(self.plan(self.dry_size()?, &new)?, &new);
        }
        let created = !file.exists();
        let disk = if created { self.create(Live::new())? } else { self.open(&new)? };
        let made = self.make(&*disk, &new);
        if made.is_err() && created {
            // Half a volume in a file of our own making is of no use.
            let _ = std::fs::remove_file(&self.image);
        }
        let made = made?;
        if !created && choice.is_none() {
            old::erase_table_copy(&*disk)?;
        }
        self.tell(made, &new)
    }

    /// Refuses options of formats other than the one that is made.
    fn check_options(&self) -> Result<()> {
        let (others, foreign) = match self.r#type {
            Type::F2fs => ("ext2, ext3 and ext4", self.ext.given()),
            _ => ("f2fs", self.f2fs.given()),
        };
        let Some(option) = foreign.first() else { return Ok(()) };
        let made = self.r#type.name();
        Err(CliError::Usage(format!("{option} is an option of {others} volumes, and an {made} volume is to be made")))
    }

    fn make(&self, disk: &dyn Disk, new: &New<'_>) -> Result<Made> {
        match self.r#type.family() {
            Some(family) => self.ext.make(family, disk, new).map(Made::Ext),
            None => self.f2fs.make(disk, new).map(Made::F2fs),
        }
    }

    /// Decides what would be made on a disk of `bytes`, and writes nothing.
    fn plan(&self, bytes: u64, new: &New<'_>) -> Result<Made> {
        match self.r#type.family() {
            Some(family) => self.ext.plan(family, bytes, new).map(Made::Ext),
            None => self.f2fs.plan(bytes, new).map(Made::F2fs),
        }
    }

    fn dry_size(&self) -> Result<u64> {
        match self.size {
            Some(size) => Ok(size),
            None => {
                let opened = volume::open_part(&self.image, FileOptions::reader(), &Part::Whole)?;
                Ok(opened.disk.limits().sectors * SECTOR as u64)
            }
        }
    }

    fn create(&self, rt: Rt) -> Result<SharedDisk> {
        let size = self.size.ok_or_else(|| {
            CliError::Usage(format!(
                "{} does not exist: give a SIZE to make it (moafs mkfs {0} 1G)",
                output::path(&self.image)
            ))
        })?;
        Ok(Arc::new(FileDisk::create(&self.image, size, rt, FileOptions::default())?))
    }

    /// Opens an existing image or device, which grows to the size that is asked for. All that can be refused is, before
    /// anything changes or is asked.
    fn open(&self, new: &New<'_>) -> Result<SharedDisk> {
        let (file, choice) = partition::split(&self.image);
        let source = Source::of(&file)?;
        // Claimed until the disk itself is open, which claims devices as well.
        drop(source.claim()?);
        let open = || volume::open_part(&self.image, FileOptions::default(), &Part::Whole).map(|opened| opened.disk);
        let mut disk = open()?;
        let grows = choice.is_none() && self.grows(&source)?;
        let bytes = disk.limits().sectors * SECTOR as u64;
        self.plan(self.size.filter(|_| grows).unwrap_or(bytes), new)?;
        self.allow_overwriting(&disk)?;
        if grows {
            drop(disk);
            self.grow(&source)?;
            disk = open()?;
        }
        Ok(disk)
    }

    /// Returns true if an existing image is shorter than asked for.
    fn grows(&self, source: &Source) -> Result<bool> {
        let (Some(size), Source::Image(path)) = (self.size, source) else { return Ok(false) };
        Ok(path.metadata().map_err(CliError::host("looking at", path))?.len() < size)
    }

    fn grow(&self, source: &Source) -> Result<()> {
        let fail = || CliError::host("resizing", source.path());
        let file = std::fs::OpenOptions::new().write(true).open(source.path()).map_err(fail())?;
        file.set_len(self.size.unwrap_or(0)).map_err(fail())
    }

    /// Asks before something is overwritten, and says what it is.
    fn allow_overwriting(&self, disk: &SharedDisk) -> Result<()> {
        let Some(found) = old::contents(disk)? else { return Ok(()) };
        let image = output::path(&self.image);
        if self.force {
            if !self.quiet {
                output::complain(&format!("{image} holds {found}, which is overwritten"));
            }
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(CliError::Usage(format!("{image} holds {found}; -F overwrites it")));
        }
        if output::confirm(&format!("{image} holds {found}. Overwrite it? [y/N]"))? {
            return Ok(());
        }
        Err(CliError::Usage(format!("{image} was left as it is")))
    }

    fn tell(&self, made: Made, new: &New<'_>) -> Result<ExitCode> {
        let uuid = new.uuid.to_string();
        let (format, dry_run) = (self.r#type, self.dry_run);
        let report = Report { image: &self.image, format, label: &self.label, uuid, dry_run, made };
        if self.json {
            output::json(&report)?;
        } else if !self.quiet {
            output::print(report.text().as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Report<'_> {
    fn text(&self) -> String {
        let verb = if self.dry_run { "would be" } else { "is" };
        let (bytes, text) = match &self.made {
            Made::Ext(made) => (made.bytes(), made.text()),
            Made::F2fs(made) => (made.bytes(), made.text()),
        };
        let (image, size) = (output::path(self.image), output::size(bytes));
        format!("{image} {verb} an {} volume of {size} ({})\n{text}", self.format.name(), self.uuid)
    }
}
