//! `moafs cat`: prints files of a volume.

use std::process::ExitCode;

use clap::Args;

use super::paths::{Going, Look, Paths, look_at_each};
use super::tree::{LastLink, Tree};
use super::{found, stream};
use crate::error::Result;
use crate::place::Inside;

/// Print files of a volume, one after the other
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs cat disk.img:/etc/fstab
  moafs cat disk.img:/etc/passwd disk.img:/etc/group
  moafs cat disk.img /boot/vmlinuz > vmlinuz

Exit code: 0 printed, 1 something was not (and said so), 130 interrupted.")]
pub(crate) struct CatArgs {
    #[command(flatten)]
    paths: Paths,
}

impl CatArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        look_at_each(self.paths.places(), &mut Cat)
    }
}

struct Cat;

impl Look for Cat {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, going: &mut Going) -> Result<()> {
        let file = found(tree, place, LastLink::Followed)?;
        stream::send(tree, &file, &mut stream::Output::Standard, going.stop()).map(drop)
    }
}
