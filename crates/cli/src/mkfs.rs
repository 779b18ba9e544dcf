//! `moafs mkfs`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use moafs_disk::file::FileOptions;
use moafs_disk::{DiskExt, FileDisk, Kind, Lba, MemDisk, SECTOR, SharedDisk, Tag};
use moafs_ext::format::Superblock;
use moafs_ext::mkfs::{MkfsError, MkfsOptions, Report, mkfs};
use moafs_mount::options::parse_bytes;
use moafs_mount::source::Source;
use moafs_runtime::{Live, Rt};
use serde::Serialize;
use uuid::Uuid;

use crate::error::{CliError, Result};
use crate::{output, volume};

/// Bytes at the start of a volume that are looked at for something worth keeping.
const LOOK_BYTES: usize = 64 << 10;

/// Make a volume
///
/// In an image file, which is made (sparse) if it does not exist and SIZE is given, or on a block device. What is on
/// it is lost: if that looks like a volume, mkfs asks first, or refuses where it cannot ask, unless -F is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs mkfs disk.img 1G
  moafs mkfs -b 1024 -L mail disk.img 200M
  sudo moafs mkfs -t ext2 /dev/sdb1
  moafs mkfs -n disk.img 8T                     what would be made, changing nothing

Exit code: 0 made, 1 not made.")]
pub(crate) struct MkfsArgs {
    /// Format
    #[arg(short = 't', long, value_enum, default_value_t = FormatName::Ext2)]
    r#type: FormatName,
    /// Bytes in a block: 1024, 2048, 4096, 16384… 65536 (default: by size)
    #[arg(short, long, value_name = "SIZE", value_parser = bytes)]
    block_size: Option<u64>,
    /// Blocks in a group, a multiple of 8
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Number of inodes (default: one for each 16 KiB; 4 KiB on small volumes)
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Bytes of an inode: 128, 256…
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = bytes, default_value = "256")]
    inode_size: u64,
    /// Percentage of blocks kept for root
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5)]
    reserved: u32,
    /// The volume's name, at most 16 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// The volume's identity (default: random)
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Show what would be made, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask, even if there is a volume already
    #[arg(short = 'F', long)]
    force: bool,
    /// Tell the device first that its contents are no longer needed
    #[arg(long)]
    discard: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Show what was made as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Image file or block device
    image: PathBuf,
    /// Size of the volume, such as 512M or 20G (default: all there is)
    #[arg(value_parser = bytes)]
    size: Option<u64>,
}

/// Formats that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    Ext2,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "give a size such as 4096, 64K, 256M or 2G".to_owned())
}

/// What was made, as JSON shows it.
#[derive(Debug, Serialize)]
struct Made<'a> {
    image: &'a Path,
    format: &'static str,
    label: &'a str,
    uuid: String,
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    inode_size: u32,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    backups: Vec<u64>,
    dry_run: bool,
}

impl MkfsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let FormatName::Ext2 = self.r#type;
        let options = self.options()?;
        if self.dry_run {
            let disk = MemDisk::new(self.dry_size()? / SECTOR as u64);
            let report = mkfs(&disk, &options).map_err(|error| self.failed(&error))?;
            return self.tell(&report, &options);
        }
        let rt = Live::new();
        let created = !self.image.exists();
        let disk = if created { self.create(rt)? } else { self.open()? };
        let made = mkfs(&*disk, &options);
        if made.is_err() && created {
            // Half a volume in a file of our own making is of no use to anybody.
            let _ = std::fs::remove_file(&self.image);
        }
        self.tell(&made.map_err(|error| self.failed(&error))?, &options)
    }

    fn failed(&self, error: &MkfsError) -> CliError {
        CliError::Usage(format!("{}: {error}", self.image.display()))
    }

    fn options(&self) -> Result<MkfsOptions> {
        let narrow = |what: &str, value: u64| {
            u32::try_from(value).map_err(|_| CliError::Usage(format!("{what} {value} is not possible")))
        };
        let uuid = self.uuid.unwrap_or_else(Uuid::new_v4);
        let mut options = MkfsOptions::new(*uuid.as_bytes(), *Uuid::new_v4().as_bytes(), Live::new().timestamp());
        options.block_size = self.block_size.map(|size| narrow("block size", size)).transpose()?;
        options.blocks_per_group = self.blocks_per_group;
        options.inodes = self.inodes;
        options.inode_size = narrow("inode size", self.inode_size)?;
        options.reserved_percent = self.reserved;
        options.label = self.label.clone().into_bytes();
        options.discard = self.discard;
        if let (Some(size), true) = (self.size, self.image.exists() && !self.dry_run) {
            let block_size = u64::from(options.block_size.unwrap_or(if size < 512 << 20 { 1024 } else { 4096 }));
            options.block_size = Some(narrow("block size", block_size)?);
            options.blocks = Some(size / block_size.max(1));
        }
        Ok(options)
    }

    fn dry_size(&self) -> Result<u64> {
        match self.size {
            Some(size) => Ok(size),
            None => Ok(volume::open_disk(&self.image, FileOptions::reader())?.disk.limits().sectors * SECTOR as u64),
        }
    }

    fn create(&self, rt: Rt) -> Result<SharedDisk> {
        let size = self.size.ok_or_else(|| {
            CliError::Usage(format!(
                "{} does not exist: give a SIZE to make it (moafs mkfs {0} 1G)",
                self.image.display()
            ))
        })?;
        Ok(Arc::new(FileDisk::create(&self.image, size, rt, FileOptions::default())?))
    }

    fn open(&self) -> Result<SharedDisk> {
        let source = Source::of(&self.image)?;
        // Claimed until the disk itself, which claims devices, too, is open.
        drop(source.claim()?);
        self.grow_image(&source)?;
        let opened = volume::open_disk(source.path(), FileOptions::default())?;
        if !self.force {
            self.ask_before_overwriting(&opened.disk)?;
        }
        Ok(opened.disk)
    }

    /// An existing image that is shorter than asked for becomes longer.
    fn grow_image(&self, source: &Source) -> Result<()> {
        let (Some(size), Source::Image(path)) = (self.size, source) else { return Ok(()) };
        let fail = || CliError::host("resizing", path);
        if path.metadata().map_err(fail())?.len() < size {
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(fail())?;
            file.set_len(size).map_err(fail())?;
        }
        Ok(())
    }

    fn ask_before_overwriting(&self, disk: &SharedDisk) -> Result<()> {
        let bytes = (disk.limits().sectors * SECTOR as u64).min(LOOK_BYTES as u64) as usize;
        let head = disk.read(Lba(0), bytes, Tag::volume(Kind::Superblock))?;
        let Some(found) = contents(&head) else { return Ok(()) };
        let image = self.image.display();
        if !io::stdin().is_terminal() {
            return Err(CliError::Usage(format!("{image} holds {found}; -F overwrites it")));
        }
        eprint!("{image} holds {found}. Overwrite it? [y/N] ");
        let _ = io::stderr().flush();
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(CliError::host("reading", Path::new("the answer")))?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(CliError::Usage(format!("{image} was left as it is"))),
        }
    }

    fn tell(&self, report: &Report, options: &MkfsOptions) -> Result<ExitCode> {
        let geo = &report.geometry;
        let made = Made {
            image: &self.image,
            format: "ext2",
            label: &self.label,
            uuid: Uuid::from_bytes(options.uuid).to_string(),
            block_size: geo.block_size,
            blocks: geo.blocks,
            free_blocks: report.free_blocks,
            reserved_blocks: report.reserved_blocks,
            inodes: geo.inodes,
            inode_size: geo.inode_size,
            groups: geo.groups,
            blocks_per_group: geo.blocks_per_group,
            inodes_per_group: geo.inodes_per_group,
            backups: report.backups.iter().map(|block| block.0).collect(),
            dry_run: self.dry_run,
        };
        if self.json {
            output::json(&made)?;
        } else if !self.quiet {
            output::print(made.text().as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Made<'_> {
    fn text(&self) -> String {
        let size = output::size(self.blocks * u64::from(self.block_size));
        let verb = if self.dry_run { "would be" } else { "is" };
        let backups: Vec<String> = self.backups.iter().map(u64::to_string).collect();
        format!(
            "{} {verb} an {} volume of {size} ({})\n\
             {:>12} blocks of {} bytes, {} free, {} kept for root\n\
             {:>12} inodes of {} bytes\n\
             {:>12} groups of {} blocks and {} inodes\n\
             superblock copies at {}\n",
            self.image.display(),
            self.format,
            self.uuid,
            self.blocks,
            self.block_size,
            self.free_blocks,
            self.reserved_blocks,
            self.inodes,
            self.inode_size,
            self.groups,
            self.blocks_per_group,
            self.inodes_per_group,
            if backups.is_empty() { "no other place".to_owned() } else { backups.join(", ") },
        )
    }
}

/// What the first bytes look like; `None` if nothing is known to be lost.
fn contents(head: &[u8]) -> Option<&'static str> {
    // Offset, bytes, what they mean.
    const MAGICS: &[(usize, &[u8], &str)] = &[
        (0, b"XFSB", "an XFS volume"),
        (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
        (0, b"hsqs", "a squashfs volume"),
        (3, b"NTFS    ", "an NTFS volume"),
        (512, b"EFI PART", "a partition table (GPT)"),
        (512, b"LABELONE", "an LVM volume"),
        (1024, b"\x10\x20\xf5\xf2", "an F2FS volume"),
        (4086, b"SWAPSPACE2", "a swap area"),
        (32769, b"CD001", "an ISO 9660 volume"),
        (510, b"\x55\xaa", "a partition table or a FAT volume"),
    ];
    if head.get(1024..2048).is_some_and(|bytes| Superblock::parse(bytes).is_ok()) {
        return Some("an ext2, ext3 or ext4 volume");
    }
    let known = MAGICS.iter().find(|(at, magic, _)| head.get(*at..*at + magic.len()) == Some(*magic));
    known.map(|(.., what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worth_keeping_is_recognised() {
        let mut head = vec![0; LOOK_BYTES];
        assert_eq!(contents(&head), None);
        head[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(contents(&head), Some("a partition table or a FAT volume"));
        head[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(contents(&head), Some("a partition table (GPT)"));
        head[1024 + 0x38..1024 + 0x3a].copy_from_slice(b"\x53\xef");
        assert_eq!(contents(&head), Some("an ext2, ext3 or ext4 volume"));
        assert_eq!(contents(&[0; 100]), None);
    }
}
