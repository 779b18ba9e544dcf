//! The options and the report of `moafs mkfs -t ext2`, `ext3` and `ext4`, with the names that mke2fs(8) has for them,
//! and making the volume.

use clap::Args;
use moafs_disk::Disk;
use moafs_ext::mkfs::features::{self, FeatureSet, SYSTEMS, System};
use moafs_ext::mkfs::usage::{USAGES, Usage};
use moafs_ext::mkfs::{MkfsOptions, MkfsReport, mkfs, plan};
use moafs_mount::size;
use serde::Serialize;
use uuid::Uuid;

use super::new::{New, narrow};
use crate::error::{CliError, Result};
use crate::{output, owner};

/// The member of the family that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Ext2,
    Ext3,
    Ext4,
}

/// Options of ext2, ext3 and ext4 volumes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of ext2, ext3 and ext4 volumes")]
pub(super) struct ExtArgs {
    /// Bytes in a block: 1024, 2048, 4096, 16384… 65536 (default: by size)
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    block_size: Option<u64>,
    /// Blocks in a group, a multiple of 8
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Groups in a flex group, a power of two: their bitmaps and inode tables lie together (default: 16)
    #[arg(short = 'G', long, value_name = "COUNT")]
    groups_per_flex: Option<u32>,
    /// Bytes of the volume for each inode (default: 16384; 4096 on small volumes)
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size::parse)]
    bytes_per_inode: Option<u64>,
    /// Number of inodes (default: by the size of the volume)
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Bytes of an inode: 128, 256… (default: 256)
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = size::parse)]
    inode_size: Option<u64>,
    /// Percentage of blocks kept for root (default: 5)
    #[arg(short = 'm', long, value_name = "PERCENT")]
    reserved: Option<f64>,
    /// Journal: size=MEBIBYTES (default: by the size of the volume)
    #[arg(short = 'J', long, value_name = "OPTION", value_parser = journal_bytes)]
    journal: Option<u64>,
    /// Kind of use, which gives block size and number of inodes: default, floppy, small, big, huge, news, largefile,
    /// largefile4 (default: by size)
    #[arg(short = 'T', long, value_name = "USAGE", value_parser = usage)]
    usage: Option<Usage>,
    /// Further options, separated by commas: stride=BLOCKS, stripe_width=BLOCKS, lazy_itable_init=0|1,
    /// root_owner=UID:GID, hash_seed=UUID, num_backup_sb=0|1|2, discard, nodiscard
    #[arg(short = 'E', long, value_name = "OPTION,…", value_delimiter = ',', value_parser = extended)]
    extended: Vec<Extended>,
    /// Only features that an older system knows: linux-3.10, debian-8, linux-4.9, debian-12, linux-5.15
    #[arg(long, value_name = "SYSTEM", value_parser = system)]
    compat: Option<&'static System>,
}

/// One of the further options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extended {
    Stride(u16),
    StripeWidth(u32),
    LazyTables(bool),
    RootOwner(u32, u32),
    HashSeed(Uuid),
    Copies(u32),
    Discard(bool),
}

fn usage(name: &str) -> Result<Usage, String> {
    let known = || USAGES.iter().map(|usage| usage.name).collect::<Vec<_>>().join(", ");
    Usage::named(name).ok_or_else(|| format!("known kinds of use are {}", known()))
}

fn system(name: &str) -> Result<&'static System, String> {
    let known = || SYSTEMS.iter().map(|system| system.name).collect::<Vec<_>>().join(", ");
    features::system(name).ok_or_else(|| format!("known systems are {}", known()))
}

/// Reads the size of a journal, in bytes.
pub(crate) fn journal_bytes(text: &str) -> Result<u64, String> {
    let size =
        text.strip_prefix("size=").and_then(|size| size.parse::<u64>().ok()).and_then(|mib| mib.checked_mul(1 << 20));
    size.ok_or_else(|| "give size=N, in MiB; a journal has no other options".to_owned())
}

fn extended(text: &str) -> Result<Extended, String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let option = match name {
        "stride" => value.parse().ok().map(Extended::Stride),
        "stripe_width" | "stripe-width" => value.parse().ok().map(Extended::StripeWidth),
        "lazy_itable_init" => match value {
            "0" => Some(Extended::LazyTables(false)),
            "1" | "" => Some(Extended::LazyTables(true)),
            _ => None,
        },
        "root_owner" => owner::parse(value).ok().map(|(uid, gid)| Extended::RootOwner(uid, gid)),
        "hash_seed" => value.parse().ok().map(Extended::HashSeed),
        "num_backup_sb" => value.parse().ok().filter(|copies| *copies <= 2).map(Extended::Copies),
        "discard" => Some(Extended::Discard(true)),
        "nodiscard" => Some(Extended::Discard(false)),
        _ => return Err(format!("{name} is not known")),
    };
    option.ok_or_else(|| format!("{value} is no value of {name}"))
}

/// The facts of a new volume, as JSON shows them.
#[derive(Debug, Serialize)]
pub(super) struct Made {
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    journal_blocks: u64,
    inodes: u32,
    inode_size: u32,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    features: Vec<String>,
    backups: Vec<u64>,
}

impl ExtArgs {
    /// Returns the options that were given: none makes sense for another format.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("-b", self.block_size.is_some()),
            ("-g", self.blocks_per_group.is_some()),
            ("-G", self.groups_per_flex.is_some()),
            ("-i", self.bytes_per_inode.is_some()),
            ("-N", self.inodes.is_some()),
            ("-I", self.inode_size.is_some()),
            ("-m", self.reserved.is_some()),
            ("-J", self.journal.is_some()),
            ("-T", self.usage.is_some()),
            ("-E", !self.extended.is_empty()),
            ("--compat", self.compat.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect()
    }

    pub(super) fn make(&self, family: Family, disk: &dyn Disk, new: &New<'_>) -> Result<Made> {
        let report = mkfs(disk, &self.options(family, new)?).map_err(|error| new.failed(&error))?;
        Ok(Made::from(report))
    }

    /// Decides what would be made on a device of `bytes`.
    pub(super) fn plan(&self, family: Family, bytes: u64, new: &New<'_>) -> Result<Made> {
        let layout = plan(bytes, &self.options(family, new)?).map_err(|error| new.failed(&error))?;
        Ok(Made::from(layout.report()))
    }

    fn features(&self, family: Family, new: &New<'_>) -> Result<FeatureSet, CliError> {
        let mut set = match (family, self.compat) {
            (Family::Ext4, Some(system)) => system.features,
            (Family::Ext4, None) => FeatureSet::EXT4,
            // All of the systems know these features.
            (Family::Ext3, _) => FeatureSet::EXT3,
            (Family::Ext2, _) => FeatureSet::EXT2,
        };
        set.apply(&new.features.join(",")).map_err(|error| new.failed(&error))?;
        Ok(set)
    }

    fn options(&self, family: Family, new: &New<'_>) -> Result<MkfsOptions, CliError> {
        let mut options = MkfsOptions::new(*new.uuid.as_bytes(), *Uuid::new_v4().as_bytes(), new.now);
        options.features = self.features(family, new)?;
        options.usage = self.usage;
        options.block_size = self.block_size.map(|size| narrow("block size", size)).transpose()?;
        options.blocks_per_group = self.blocks_per_group;
        options.groups_per_flex = self.groups_per_flex.unwrap_or(options.groups_per_flex);
        options.bytes_per_inode = self.bytes_per_inode.map(|size| narrow("bytes per inode", size)).transpose()?;
        options.inodes = self.inodes;
        if let Some(size) = self.inode_size {
            options.inode_size = narrow("inode size", size)?;
        }
        options.reserved_percent = self.reserved.unwrap_or(options.reserved_percent);
        options.journal_bytes = self.journal;
        options.label = new.label.as_bytes().to_vec();
        options.discard = new.discard;
        options.root_owner = new.root_owner;
        options.lazy_tables = new.is_device;
        for option in &self.extended {
            match *option {
                Extended::Stride(blocks) => options.stride = blocks,
                Extended::StripeWidth(blocks) => options.stripe_width = blocks,
                Extended::LazyTables(lazy) => options.lazy_tables = lazy,
                Extended::RootOwner(uid, gid) => options.root_owner = (uid, gid),
                Extended::HashSeed(seed) => options.hash_seed = *seed.as_bytes(),
                Extended::Copies(copies) => options.copies = copies,
                Extended::Discard(discard) => options.discard = discard,
            }
        }
        if let Some(size) = new.bytes {
            let usage = options.usage.unwrap_or_else(|| Usage::of_size(size));
            let block_size = options.block_size.unwrap_or(usage.block_size);
            options.usage = Some(usage);
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
            journal_blocks: report.journal_blocks,
            inodes: geo.inodes,
            inode_size: geo.inode_size,
            groups: geo.groups,
            blocks_per_group: geo.blocks_per_group,
            inodes_per_group: geo.inodes_per_group,
            features: report.features,
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
        let journal = match self.journal_blocks {
            0 => "no journal".to_owned(),
            blocks => format!("a journal of {}", output::size(blocks * u64::from(self.block_size))),
        };
        format!(
            "{:>12} blocks of {} bytes, {} free, {} kept for root\n\
             {:>12} inodes of {} bytes\n\
             {:>12} groups of {} blocks and {} inodes\n\
             {journal}\n\
             features: {}\n\
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
            self.features.join(" "),
            if backups.is_empty() { "no other place".to_owned() } else { backups.join(", ") },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_options_are_those_of_mke2fs() {
        assert_eq!(extended("stride=16"), Ok(Extended::Stride(16)));
        assert_eq!(extended("stripe-width=64"), Ok(Extended::StripeWidth(64)));
        assert_eq!(extended("lazy_itable_init=0"), Ok(Extended::LazyTables(false)));
        assert_eq!(extended("root_owner=1000:100"), Ok(Extended::RootOwner(1000, 100)));
        assert_eq!(extended("nodiscard"), Ok(Extended::Discard(false)));
        for text in ["stride=x", "lazy_itable_init=2", "root_owner=1", "num_backup_sb=3", "quotatype=usrquota"] {
            extended(text).unwrap_err();
        }
    }

    #[test]
    fn the_journal_takes_a_size() {
        assert_eq!(journal_bytes("size=4"), Ok(4 << 20));
        for text in ["4", "size=", "size=99999999999999999", "device=/dev/sdb"] {
            journal_bytes(text).unwrap_err();
        }
    }

    #[test]
    fn the_help_names_all_kinds_of_use_and_systems() {
        let mut command = <ExtArgs as Args>::augment_args(clap::Command::new("mkfs"));
        let help = command.render_long_help().to_string();
        let names = USAGES.iter().map(|usage| usage.name).chain(SYSTEMS.iter().map(|system| system.name));
        names.for_each(|name| assert!(help.contains(name), "{name}"));
    }
}
