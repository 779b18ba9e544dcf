//! The options and the report of `moafs mkfs -t ext2`, and making the volume.

use clap::Args;
use moafs_disk::Disk;
use moafs_ext::mkfs::{MkfsOptions, MkfsReport, mkfs};
use serde::Serialize;
use uuid::Uuid;

use super::new::{New, bytes, narrow};
use crate::error::{CliError, Result};

/// Bytes of an inode.
const INODE_BYTES: u64 = 256;
/// Percentage of blocks kept for root.
const RESERVED_PERCENT: u32 = 5;

/// Options of ext2 volumes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of ext2 volumes")]
pub(super) struct Ext2Args {
    /// Bytes in a block: 1024, 2048, 4096, 16384… 65536 (default: by size)
    #[arg(short, long, value_name = "SIZE", value_parser = bytes)]
    block_size: Option<u64>,
    /// Blocks in a group, a multiple of 8
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Number of inodes (default: one for each 16 KiB; 4 KiB on small volumes)
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Bytes of an inode: 128, 256… (default: 256)
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = bytes)]
    inode_size: Option<u64>,
    /// Percentage of blocks kept for root (default: 5)
    #[arg(short = 'm', long, value_name = "PERCENT")]
    reserved: Option<u32>,
}

/// The facts of a new volume, as JSON shows them.
#[derive(Debug, Serialize)]
pub(super) struct Made {
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
}

impl Ext2Args {
    /// Returns the options that were given: none makes sense for another format.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("-b", self.block_size.is_some()),
            ("-g", self.blocks_per_group.is_some()),
            ("-N", self.inodes.is_some()),
            ("-I", self.inode_size.is_some()),
            ("-m", self.reserved.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect()
    }

    pub(super) fn make(&self, disk: &dyn Disk, new: &New<'_>) -> Result<Made> {
        let report = mkfs(disk, &self.options(new)?).map_err(|error| new.failed(&error))?;
        Ok(Made::from(report))
    }

    fn options(&self, new: &New<'_>) -> Result<MkfsOptions, CliError> {
        let mut options = MkfsOptions::new(*new.uuid.as_bytes(), *Uuid::new_v4().as_bytes(), new.now);
        options.block_size = self.block_size.map(|size| narrow("block size", size)).transpose()?;
        options.blocks_per_group = self.blocks_per_group;
        options.inodes = self.inodes;
        options.inode_size = narrow("inode size", self.inode_size.unwrap_or(INODE_BYTES))?;
        options.reserved_percent = self.reserved.unwrap_or(RESERVED_PERCENT);
        options.label = new.label.as_bytes().to_vec();
        options.discard = new.discard;
        if let Some(size) = new.bytes {
            let block_size = options.block_size.unwrap_or(if size < 512 << 20 { 1024 } else { 4096 });
            options.block_size = Some(block_size);
            options.blocks = Some(size / u64::from(block_size.max(1)));
        }
        Ok(options)
    }
}

impl From<MkfsReport> for Made {
    fn from(report: MkfsReport) -> Made {
        let geo = &report.geometry;
        Made {
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
        }
    }
}

impl Made {
    /// Returns the size of the volume in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    pub(super) fn text(&self) -> String {
        let backups: Vec<String> = self.backups.iter().map(u64::to_string).collect();
        format!(
            "{:>12} blocks of {} bytes, {} free, {} kept for root\n\
             {:>12} inodes of {} bytes\n\
             {:>12} groups of {} blocks and {} inodes\n\
             superblock copies at {}\n",
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
