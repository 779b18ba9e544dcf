//! `moafs touch`: makes empty files, and sets times of files of a volume.

use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;

use super::make_empty;
use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, Tree};
use super::volume_tree::VolumeTree;
use crate::error::Result;
use crate::place::Inside;
use crate::volume::Access;

/// Set the times of files of a volume to now; make those that do not exist
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs touch disk.img:/etc/machine-id
  moafs touch -c disk.img:/var/log/wtmp disk.img:/var/log/btmp

Exit code: 0 done, 1 something was not (and said so).")]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    touch: Touch,
}

#[derive(Debug, Args)]
struct Touch {
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
}

impl TouchArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.touch)
    }
}

impl Work for Touch {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        match tree.resolve(&place.path, LastLink::Followed)? {
            Some(node) => tree.touch(&node),
            None if self.no_create => Ok(()),
            None => make_empty(tree, place).map(drop),
        }
    }
}
