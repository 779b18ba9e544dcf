//! The part of `moafs info` for ext2, ext3 and ext4 volumes.

use std::path::Path;

use moafs_disk::{DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_ext::Ext;
use moafs_ext::format::superblock::State;
use moafs_ext::format::{Descriptor, Geometry, GroupNo, Superblock};
use moafs_runtime::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::facts::{Facts, Tables};
use super::found::Found;
use crate::error::{CliError, Result};
use crate::mounted::Mounted;
use crate::output;
use crate::time::Reported;

/// Offset of the superblock in bytes, and its length.
const SUPERBLOCK_AT: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;

#[derive(Debug, Serialize)]
pub(super) struct Ext2Facts {
    superblock: Header,
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
    made: Option<Reported>,
    last_mount: Option<Reported>,
    last_write: Option<Reported>,
    last_check: Option<Reported>,
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

/// Reads the superblock and the geometry of a volume.
fn read_shape(image: &Path, disk: &SharedDisk) -> Result<(Superblock, Geometry)> {
    let damaged = |error: String| CliError::Usage(format!("{}: {error}", output::path(image)));
    let bytes = disk.read(Lba::from_byte(SUPERBLOCK_AT), SUPERBLOCK_BYTES, Tag::volume(Kind::Superblock))?;
    let superblock = Superblock::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    let geometry = Geometry::of(&superblock, disk.limits().sectors * SECTOR as u64);
    let geometry = geometry.map_err(|error| damaged(error.to_string()))?;
    Ok((superblock, geometry))
}

pub(super) fn facts(image: &Path, disk: &SharedDisk, mount: Option<&Mounted>) -> Result<Ext2Facts> {
    let (superblock, geometry) = read_shape(image, disk)?;
    let mut header = header(&superblock, &geometry);
    if let Some(mount) = mount {
        header.state = mount.state();
        header.free_blocks = mount.free("free").unwrap_or(header.free_blocks);
        let free_inodes = mount.free("free_inodes").and_then(|inodes| u32::try_from(inodes).ok());
        header.free_inodes = free_inodes.unwrap_or(header.free_inodes);
    }
    Ok(Ext2Facts { superblock: header })
}

impl Tables for Ext {
    fn tables(&self, table: bool) -> Found {
        let geometry = self.geometry();
        let row = |group| group_row(group, geometry, &self.group(group));
        let groups: Vec<Group> = geometry.all_groups().map(row).collect();
        let fields = [("groups".to_owned(), serde_json::to_value(&groups).unwrap_or_default())];
        let text = if table { groups_text(&groups) } else { String::new() };
        Found { fields: fields.into_iter().collect(), text }
    }
}

fn groups_text(groups: &[Group]) -> String {
    let mut text = "\n group  first block   blocks     free  free inodes  dirs  bitmaps and table\n".to_owned();
    for group in groups {
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
    text
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
    let time = |secs: u32| (secs != 0).then(|| Reported(Timestamp::new(secs.into(), 0)));
    let state = superblock.state();
    Header {
        format: superblock.family_name(),
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

impl Facts for Ext2Facts {
    fn text(&self, image: &Path) -> String {
        self.superblock.text(image)
    }
}

impl Header {
    fn text(&self, image: &Path) -> String {
        let bytes = |blocks: u64| output::size(blocks.saturating_mul(self.block_size.into()));
        let label = if self.label.is_empty() { "no label" } else { &self.label };
        let time = |at: Option<Reported>| at.map_or("never".to_owned(), |at| at.to_string());
        format!(
            "{}: {} volume, {}, {label}, {}, {}\n\
             features      {}\n\
             blocks        {} of {} bytes; {} free ({}, {}), {} kept for root\n\
             inodes        {} of {} bytes; {} free ({})\n\
             groups        {} of {} blocks and {} inodes\n\
             made {}, mounted {}, written {}, checked {} ({} mounts since)\n",
            output::path(image),
            self.format,
            bytes(self.blocks),
            self.uuid,
            self.state,
            if self.features.is_empty() { "none".to_owned() } else { self.features.join(" ") },
            self.blocks,
            self.block_size,
            self.free_blocks,
            bytes(self.free_blocks),
            output::percent(self.free_blocks, self.blocks),
            self.reserved_blocks,
            self.inodes,
            self.inode_size,
            self.free_inodes,
            output::percent(self.free_inodes.into(), self.inodes.into()),
            self.groups,
            self.blocks_per_group,
            self.inodes_per_group,
            time(self.made),
            time(self.last_mount),
            time(self.last_write),
            time(self.last_check),
            self.mounts_since_check,
        )
    }
}
