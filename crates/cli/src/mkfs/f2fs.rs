//! The options and the report of `moafs mkfs -t f2fs`, and making the volume.

use clap::Args;
use moafs_disk::{Disk, SECTOR};
use moafs_f2fs::format::superblock::Features;
use moafs_f2fs::format::{BLOCK, SEGMENT_BLOCKS};
use moafs_f2fs::mkfs::{FEATURES, MkfsOptions, MkfsReport, mkfs, plan};
use serde::Serialize;

use super::new::New;
use crate::error::{CliError, Result};
use crate::output;

/// Options of F2FS volumes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of F2FS volumes")]
pub(super) struct F2fsArgs {
    /// Segments (of 2 MiB) in a section, the unit of cleaning (default: 1)
    #[arg(short = 's', long, value_name = "COUNT")]
    segs_per_sec: Option<u32>,
    /// Sections in a zone; each log keeps to a zone of its own where it can (default: 1)
    #[arg(short = 'z', long, value_name = "COUNT")]
    secs_per_zone: Option<u32>,
    /// Percentage of the volume that users do not see, so that cleaning is cheap (default: by size)
    #[arg(short = 'o', long, value_name = "PERCENT")]
    overprovision: Option<f64>,
    /// Fewer nodes, but bitmaps that suffice for the largest volumes
    #[arg(long)]
    large_nat_bitmap: bool,
}

/// Returns one feature by its name.
fn feature(name: &str) -> Result<Features, String> {
    let found = Features::from_name(&name.to_uppercase()).filter(|feature| FEATURES.contains(*feature));
    found.ok_or_else(|| {
        format!("{name} is not a feature that a new volume can have; known are {}", FEATURES.names().join(", "))
    })
}

/// The facts of a new volume, as JSON shows them.
#[derive(Debug, Serialize)]
pub(super) struct Made {
    block_size: u32,
    blocks: u64,
    user_blocks: u64,
    features: Vec<String>,
    segments: u32,
    main_segments: u32,
    segs_per_sec: u32,
    secs_per_zone: u32,
    reserved_segments: u32,
    overprovision_segments: u32,
}

impl F2fsArgs {
    /// Returns the options that were given: none makes sense for another format.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("-s", self.segs_per_sec.is_some()),
            ("-z", self.secs_per_zone.is_some()),
            ("-o", self.overprovision.is_some()),
            ("--large-nat-bitmap", self.large_nat_bitmap),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect()
    }

    pub(super) fn make(&self, disk: &dyn Disk, new: &New<'_>) -> Result<Made> {
        let options = self.options(disk.limits().sectors * SECTOR as u64, new)?;
        let report = mkfs(disk, &options).map_err(|error| new.failed(&error))?;
        Ok(made(&report, options.features))
    }

    /// Decides what would be made on a device of `bytes`.
    pub(super) fn plan(&self, bytes: u64, new: &New<'_>) -> Result<Made> {
        let options = self.options(bytes, new)?;
        let report = plan(bytes, &options).map_err(|error| new.failed(&error))?;
        Ok(made(&report, options.features))
    }

    fn options(&self, there: u64, new: &New<'_>) -> Result<MkfsOptions> {
        if let Some(wanted) = new.bytes.filter(|wanted| wanted / SECTOR as u64 != there / SECTOR as u64) {
            let (wanted, there) = (output::size(wanted), output::size(there));
            return Err(CliError::Usage(format!(
                "{}: an F2FS volume takes the whole image or device, which has {there}, not {wanted}: leave out SIZE, or truncate first",
                crate::output::path(new.image)
            )));
        }
        let features = new.features.iter().map(|name| feature(name)).collect::<Result<Vec<_>, _>>();
        let features = features.map_err(CliError::Usage)?.into_iter().collect();
        let mut options = MkfsOptions::new(*new.uuid.as_bytes(), new.now);
        options.label = new.label.to_owned();
        options.features = features;
        options.segs_per_sec = self.segs_per_sec.unwrap_or(options.segs_per_sec);
        options.secs_per_zone = self.secs_per_zone.unwrap_or(options.secs_per_zone);
        options.overprovision_percent = self.overprovision;
        options.large_nat_bitmap = self.large_nat_bitmap;
        options.discard = new.discard;
        options.root_owner = new.root_owner;
        Ok(options)
    }
}

fn made(report: &MkfsReport, features: Features) -> Made {
    let geo = &report.geometry;
    Made {
        block_size: BLOCK as u32,
        blocks: geo.block_count,
        user_blocks: report.user_blocks,
        features: features.names(),
        segments: geo.segment_count,
        main_segments: geo.segments,
        segs_per_sec: geo.segs_per_sec,
        secs_per_zone: geo.secs_per_zone,
        reserved_segments: report.reserved_segments,
        overprovision_segments: report.overprovision_segments,
    }
}

impl Made {
    /// Returns the size of the volume in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    pub(super) fn text(&self) -> String {
        let features = if self.features.is_empty() { "none".to_owned() } else { self.features.join(" ") };
        format!(
            "{:>12} blocks of {} bytes, {} for files\n\
             {:>12} segments of {SEGMENT_BLOCKS} blocks, {} of them for nodes and data; {} in a section, {} sections in a zone\n\
             {:>12} segments kept back, {} of them so that cleaning can always go on\n\
             features: {features}\n",
            self.blocks,
            self.block_size,
            self.user_blocks,
            self.segments,
            self.main_segments,
            self.segs_per_sec,
            self.secs_per_zone,
            self.overprovision_segments,
            self.reserved_segments,
        )
    }
}
