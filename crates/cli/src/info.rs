//! `moafs info`: superblock, groups, free space, layout.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use moafs_disk::file::FileOptions;
use moafs_disk::{DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_ext::format::superblock::State;
use moafs_ext::format::{Descriptor, Geometry, GroupNo, Superblock};
use moafs_runtime::Timestamp;
use moafs_vfs::layout::{Collector, KindLayout, Layout};
use serde::Serialize;
use uuid::Uuid;

use crate::error::{CliError, Result};
use crate::output;
use crate::volume::{Access, open_disk, with_volume};

/// Where the superblock lies, in bytes, and how long it is.
const SUPERBLOCK_AT: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;

/// Show a volume: superblock, groups, free space, layout score, most scattered files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs info disk.img
  moafs info --groups disk.img
  moafs info --json disk.img | jq .layout.layout_score

The layout score is the share of the files' blocks, from the second of each file on, that lie right behind their
predecessor: 1 is a volume without fragmentation.")]
pub(crate) struct InfoArgs {
    /// Image file or block device
    image: PathBuf,
    /// The table of groups, too
    #[arg(short, long)]
    groups: bool,
    /// The superblock only: does not read the rest of the volume
    #[arg(short = 'H', long, conflicts_with = "groups")]
    header: bool,
    /// How many of the most scattered files to show
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    scattered: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Everything, as JSON shows it.
#[derive(Debug, Serialize)]
struct Info {
    image: PathBuf,
    superblock: Header,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<Layout>,
}

#[derive(Debug, Serialize)]
struct Header {
    format: &'static str,
    label: String,
    uuid: String,
    state: String,
    features: Vec<String>,
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: u32,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    made: String,
    last_mount: String,
    last_write: String,
    last_check: String,
    mounts_since_check: u16,
}

#[derive(Debug, Serialize)]
struct Group {
    group: u32,
    first_block: u64,
    blocks: u32,
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// Superblock and geometry of a volume.
pub(crate) fn read_shape(image: &Path) -> Result<(SharedDisk, Superblock, Geometry)> {
    let disk = open_disk(image, FileOptions::reader())?.disk;
    let damaged = |error: String| CliError::Usage(format!("{}: {error}", image.display()));
    let bytes = disk.read(Lba::from_byte(SUPERBLOCK_AT), SUPERBLOCK_BYTES, Tag::volume(Kind::Superblock))?;
    let superblock = Superblock::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    let geometry = Geometry::of(&superblock, disk.limits().sectors * SECTOR as u64);
    let geometry = geometry.map_err(|error| damaged(error.to_string()))?;
    Ok((disk, superblock, geometry))
}

impl InfoArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (disk, superblock, geometry) = read_shape(&self.image)?;
        let groups = if self.groups || self.json && !self.header { groups(&disk, &geometry)? } else { Vec::new() };
        drop(disk);
        let layout = if self.header { None } else { Some(survey(&self.image, self.scattered)?) };
        let info = Info { image: self.image, superblock: header(&superblock, &geometry), groups, layout };
        if self.json {
            output::json(&info)?
        } else {
            output::print(info.text().as_bytes())?
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn survey(image: &Path, scattered: usize) -> Result<Layout> {
    let mut collector = Collector::new(scattered);
    with_volume!(image, Access::Read, |volume| volume.survey(&mut collector))?;
    Ok(collector.finish())
}

fn groups(disk: &SharedDisk, geometry: &Geometry) -> Result<Vec<Group>> {
    let block_bytes = geometry.block_size as usize;
    let mut groups = Vec::new();
    let mut table = None;
    for group in geometry.all_groups() {
        let (block, offset) = geometry.locate_descriptor(group);
        if table.as_ref().is_none_or(|(at, _)| *at != block) {
            let at = Lba::from_byte(geometry.byte_of(block));
            table = Some((block, disk.read(at, block_bytes, Tag::volume(Kind::Descriptors))?));
        }
        let Some((_, bytes)) = &table else { break };
        let slot = &bytes[offset..offset + geometry.desc_size as usize];
        groups.push(group_row(group, geometry, &Descriptor::parse(slot, geometry)));
    }
    Ok(groups)
}

fn group_row(group: GroupNo, geometry: &Geometry, descriptor: &Descriptor) -> Group {
    Group {
        group: group.0,
        first_block: geometry.group_start(group).0,
        blocks: geometry.group_blocks(group),
        free_blocks: descriptor.free_blocks,
        free_inodes: descriptor.free_inodes,
        directories: descriptor.used_dirs,
        block_bitmap: descriptor.block_bitmap.0,
        inode_bitmap: descriptor.inode_bitmap.0,
        inode_table: descriptor.inode_table.0,
    }
}

fn header(superblock: &Superblock, geometry: &Geometry) -> Header {
    let time = |secs: u32| match secs {
        0 => "never".to_owned(),
        secs => output::time(Timestamp::new(secs.into(), 0)),
    };
    let state = superblock.state();
    Header {
        format: "ext2",
        label: output::name(superblock.label()),
        uuid: Uuid::from_bytes(superblock.uuid()).to_string(),
        state: match (state.contains(State::VALID), state.contains(State::ERROR)) {
            (_, true) => "with errors".to_owned(),
            (true, false) => "clean".to_owned(),
            (false, false) => "in use, or not unmounted cleanly".to_owned(),
        },
        features: superblock.feature_names(),
        block_size: geometry.block_size,
        blocks: geometry.blocks,
        free_blocks: superblock.free_blocks(),
        reserved_blocks: superblock.reserved_blocks(),
        inodes: geometry.inodes,
        free_inodes: superblock.free_inodes(),
        inode_size: geometry.inode_size,
        groups: geometry.groups,
        blocks_per_group: geometry.blocks_per_group,
        inodes_per_group: geometry.inodes_per_group,
        made: time(superblock.mkfs_time()),
        last_mount: time(superblock.mtime()),
        last_write: time(superblock.wtime()),
        last_check: time(superblock.lastcheck()),
        mounts_since_check: superblock.mnt_count(),
    }
}

impl Info {
    fn text(&self) -> String {
        let mut text = self.header_text();
        if !self.groups.is_empty() {
            text += "\n group  first block   blocks     free  free inodes  dirs  bitmaps and table\n";
        }
        for group in &self.groups {
            text += &format!(
                "{:>6} {:>12} {:>8} {:>8} {:>12} {:>5}  {} {} {}\n",
                group.group,
                group.first_block,
                group.blocks,
                group.free_blocks,
                group.free_inodes,
                group.directories,
                group.block_bitmap,
                group.inode_bitmap,
                group.inode_table,
            );
        }
        if let Some(layout) = &self.layout {
            text += &layout_text(layout);
        }
        text
    }

    fn header_text(&self) -> String {
        let sb = &self.superblock;
        let bytes = |blocks: u64| output::size(blocks.saturating_mul(sb.block_size.into()));
        let label = if sb.label.is_empty() { "no label" } else { &sb.label };
        format!(
            "{}: {} volume, {}, {label}, {}, {}\n\
             features      {}\n\
             blocks        {} of {} bytes; {} free ({}, {}), {} kept for root\n\
             inodes        {} of {} bytes; {} free ({})\n\
             groups        {} of {} blocks and {} inodes\n\
             made {}, mounted {}, written {}, checked {} ({} mounts since)\n",
            self.image.display(),
            sb.format,
            bytes(sb.blocks),
            sb.uuid,
            sb.state,
            if sb.features.is_empty() { "none".to_owned() } else { sb.features.join(" ") },
            sb.blocks,
            sb.block_size,
            sb.free_blocks,
            bytes(sb.free_blocks),
            output::percent(sb.free_blocks, sb.blocks),
            sb.reserved_blocks,
            sb.inodes,
            sb.inode_size,
            sb.free_inodes,
            output::percent(sb.free_inodes.into(), sb.inodes.into()),
            sb.groups,
            sb.blocks_per_group,
            sb.inodes_per_group,
            sb.made,
            sb.last_mount,
            sb.last_write,
            sb.last_check,
            sb.mounts_since_check,
        )
    }
}

fn layout_text(layout: &Layout) -> String {
    let score = layout.layout_score.map_or("-".to_owned(), |score| format!("{score:.4}"));
    let mut text = format!("\nlayout score  {score}\n");
    for (what, kind) in [("files", &layout.files), ("directories", &layout.directories), ("others", &layout.others)] {
        let KindLayout { files, blocks, pieces, .. } = kind;
        text += &format!("{what:<13} {files} with {blocks} blocks in {pieces} pieces\n");
    }
    for (what, blocks) in &layout.metadata {
        text += &format!("{what}: {blocks} blocks\n");
    }
    let free = &layout.free;
    text += &format!("\nfree runs     {} with {} blocks, the longest of {}\n", free.runs, free.blocks, free.longest);
    let most = free.classes.iter().map(|class| class.blocks).max().unwrap_or(1).max(1);
    for class in &free.classes {
        let bar = "#".repeat((class.blocks * 40 / most) as usize);
        let range = format!("{}..{}", class.from, class.from * 2 - 1);
        text += &format!("{range:>23} {:>9} runs {:>11} blocks {bar}\n", class.runs, class.blocks);
    }
    if !layout.scattered.is_empty() {
        text += "\nmost scattered files\n       inode  directory     blocks   pieces   score\n";
    }
    for file in &layout.scattered {
        let parent = file.parent.map_or("-".to_owned(), |dir| dir.to_string());
        let score = file.score.value().unwrap_or(1.0);
        text += &format!("{:>12} {parent:>10} {:>10} {:>8}  {score:.4}\n", file.ino, file.blocks, file.pieces);
    }
    text
}
