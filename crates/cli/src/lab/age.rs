//! `moafs lab age`: makes an old volume.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_lab::age::Aging;
use moafs_lab::volume::VolumeShape;
use moafs_lab::{LabError, age};
use moafs_mount::size;

use crate::error::{CliError, Result};
use crate::output;

/// Make an aged volume: as full and as fragmented as wanted, the same for the same seed
///
/// Files of a file server's sizes are made and deleted in many directories until the layout score is as wanted; then
/// files are deleted until the utilization is. The image can be mounted and checked; contents of files are zeros, and
/// take no space where the host's file system keeps holes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab age --utilization 30 old.img               the paper's volume: 4 GiB, blocks of 16 KiB, layout score 0.8
  moafs lab age --utilization 70 --size 1G --block 4K old.img
  moafs info --layout old.img                          its layout")]
pub(crate) struct AgeArgs {
    /// File that the image is written to
    #[arg(value_name = "OUT.img")]
    image: PathBuf,
    /// Share of its blocks in use, in percent (0 to 90)
    #[arg(short, long, value_name = "U", default_value_t = 30)]
    utilization: u8,
    /// Layout score of its files (1: not fragmented)
    #[arg(long, value_name = "S", default_value_t = 0.8)]
    score: f64,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Size of the volume; the paper's groups if it is not given
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Size of a block
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16K")]
    block: u64,
    /// Overwrite the image if it exists
    #[arg(long)]
    force: bool,
}

impl AgeArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.image.exists() && !self.force {
            let text = format!("{} exists already: --force overwrites it", self.image.display());
            return Err(CliError::Usage(text));
        }
        let block = u32::try_from(self.block).unwrap_or(u32::MAX);
        let paper = VolumeShape::paper(1.0);
        let shape = match self.size {
            None if block == paper.block_bytes => paper,
            size => VolumeShape::of_size(size.unwrap_or(paper.bytes()), block)?,
        };
        let aging = Aging { shape, utilization: self.utilization, score: self.score, seed: self.seed };
        let aged = aging.run()?;
        self.save(&aged)?;
        let score = aged.score.map_or("none".to_owned(), |score| format!("{score:.3}"));
        let text = format!(
            "{}: {}, {} files, {:.1} % in use, layout score {score}\n",
            self.image.display(),
            output::size(shape.bytes()),
            aged.files,
            aged.utilization
        );
        output::print(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the image beside its place and renames it: an interrupt leaves no half of one.
    fn save(&self, aged: &age::Aged) -> Result<()> {
        let mut beside = self.image.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let written = aged.image.write_to(&beside).and_then(|()| std::fs::rename(&beside, &self.image));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            LabError::Host { what: "writing image", path: self.image.clone(), error: error.to_string() }.into()
        })
    }
}
