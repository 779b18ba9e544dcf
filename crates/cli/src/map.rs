//! `moafs map`: a picture of a volume's layout. The drawing differs between formats and stands in a
//! module for each.

mod ext;
mod f2fs;
mod frame;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_disk::file::FileOptions;

use crate::error::{CliError, Result};
use crate::files::host;
use crate::format_name::FormatName;
use crate::volume::{self, Access, open_disk, with_volume};
use crate::{info, output};

/// Draw a picture of a volume's layout
///
/// An SVG file. Of an ext volume each row is a block group (or several, on large volumes), its
/// colours show the kinds of blocks. Of an F2FS volume each tile is a segment (or several), filled
/// by the share of its valid blocks, in the colour of the log that wrote it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs map disk.img -o layout.svg
  moafs map disk.img -o - | display")]
pub(crate) struct MapArgs {
    /// Image file or block device
    image: PathBuf,
    /// Output file: a name ending in .svg, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl MapArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let extension = self.output.extension().and_then(|extension| extension.to_str());
        let to_stdout = self.output.as_os_str() == "-";
        if !to_stdout && extension != Some("svg") {
            let shown = output::path(&self.output);
            return Err(CliError::Usage(format!("{shown}: the picture is an SVG; give a name ending in .svg, or -")));
        }
        if host::id_of_path(&self.output).is_some_and(|output| host::id_of_path(&self.image) == Some(output)) {
            let (from, to) = (output::path(&self.image), output::path(&self.output));
            return Err(CliError::SameFile { from, to, done: "copied" });
        }
        let picture = self.draw()?;
        if to_stdout {
            output::print(picture.as_bytes())?;
        } else {
            std::fs::write(&self.output, picture).map_err(CliError::host("writing", &self.output))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn draw(&self) -> Result<String> {
        let title = output::path(&self.image);
        let disk = open_disk(&self.image, FileOptions::reader())?.disk;
        match FormatName::on_disk(&self.image, &disk)? {
            FormatName::Ext => {
                let (_, geometry) = info::read_ext(&self.image, &disk)?;
                let mut grid = ext::Grid::new(&geometry);
                with_volume!(&self.image, Access::Read, |volume| volume.survey(&mut grid))?;
                Ok(grid.svg(&title))
            }
            FormatName::F2fs => Ok(f2fs::svg(&title, &volume::f2fs_segments(&self.image)?)),
        }
    }
}
