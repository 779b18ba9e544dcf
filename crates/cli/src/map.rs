//! `moafs map`: a picture of a volume's layout. The drawing differs between formats and stands in a
//! module for each.

mod ext;
mod f2fs;
mod frame;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_ext::Ext;
use moafs_f2fs::F2fs;
use moafs_vfs::Format;
use moafs_vfs::format::Survey;

use crate::error::{CliError, Result};
use crate::files::host;
use crate::question::{MapQuestion, Question};
use crate::volume::{Access, with_volume};
use crate::{mounted, output};

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

    /// Draws the volume: of one that is mounted, its daemon does.
    fn draw(&self) -> Result<String> {
        let question = MapQuestion { title: output::path(&self.image) };
        match mounted::find(&self.image) {
            Some(mount) => mount.ask(&Question::Map(question)),
            None => with_volume!(&self.image, Access::Read, |volume| volume.looking(drawn(
                volume.vfs.format(),
                &question,
                |to| volume.vfs.format().survey(to)
            ))),
        }
    }
}

/// A function that tells the layout of a volume.
pub(crate) type Surveying<'a> = dyn FnOnce(&mut dyn Survey) -> moafs_vfs::Result<()> + 'a;

/// An open volume that can be drawn.
pub(crate) trait Picture: Format {
    /// Draws the volume, whose files `survey` tells if they are needed.
    fn picture(&self, title: &str, survey: Box<Surveying<'_>>) -> moafs_vfs::Result<String>;
}

/// Draws a volume.
pub(crate) fn drawn<F: Picture>(
    format: &F,
    question: &MapQuestion,
    survey: impl FnOnce(&mut dyn Survey) -> moafs_vfs::Result<()>,
) -> moafs_vfs::Result<String> {
    format.picture(&question.title, Box::new(survey))
}

impl Picture for Ext {
    fn picture(&self, title: &str, survey: Box<Surveying<'_>>) -> moafs_vfs::Result<String> {
        let mut grid = ext::Grid::new(self.geometry());
        survey(&mut grid)?;
        Ok(grid.svg(title))
    }
}

impl Picture for F2fs {
    fn picture(&self, title: &str, _survey: Box<Surveying<'_>>) -> moafs_vfs::Result<String> {
        Ok(f2fs::svg(title, &self.segments()))
    }
}
