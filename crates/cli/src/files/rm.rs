//! `moafs rm`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::failure;
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::volume::{Access, Volume, with_volume};

/// The deepest tree that is removed: a damaged volume may have cycles.
const DEPTH_MAX: usize = 1000;

/// Remove files of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs rm disk.img:/core
  moafs rm -r disk.img:/tmp/build")]
pub(crate) struct RmArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Directories, with everything in them
    #[arg(short, long)]
    recursive: bool,
    /// What does not exist is no error
    #[arg(short, long)]
    force: bool,
}

impl RmArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Inside::parse(&self.image, self.path.as_ref())?;
        with_volume!(&place.image, Access::Write, |volume| self.remove(volume, &place))?;
        Ok(ExitCode::SUCCESS)
    }

    fn remove<F: Format>(&self, volume: &Volume<F>, place: &Inside) -> Result<()> {
        let tree = VolumeTree::new(&volume.vfs, place.image.display().to_string());
        let Some((dir, name)) = place.split() else {
            return Err(failure("removing", place, libc::EBUSY));
        };
        let parent = tree.walk(dir)?;
        let node = match &parent {
            Some(parent) => tree.child(parent, name)?,
            None => None,
        };
        let (Some(parent), Some(node)) = (parent, node) else {
            return if self.force { Ok(()) } else { Err(failure("removing", place, libc::ENOENT)) };
        };
        if tree.meta(&node)?.kind != FileKind::Directory {
            return tree.unlink(&parent, name);
        }
        if !self.recursive {
            return Err(failure("removing (-r removes directories)", place, libc::EISDIR));
        }
        let progress = output::spinner("removed");
        empty(&tree, &node, &progress, 0)?;
        drop(node);
        progress.finish_and_clear();
        tree.rmdir(&parent, name)
    }
}

/// Removes everything in a directory.
fn empty<'v, F: Format>(
    tree: &VolumeTree<'v, F>,
    dir: &Held<'v, F>,
    progress: &ProgressBar,
    depth: usize,
) -> Result<()> {
    if depth >= DEPTH_MAX {
        let what = tree.describe(dir);
        return Err(CliError::Usage(format!("{what} lies deeper than {DEPTH_MAX} directories: check the volume")));
    }
    for name in tree.names(dir)? {
        let Some(node) = tree.child(dir, &name)? else { continue };
        progress.inc(1);
        if tree.meta(&node)?.kind != FileKind::Directory {
            tree.unlink(dir, &name)?;
            continue;
        }
        empty(tree, &node, progress, depth + 1)?;
        drop(node);
        tree.rmdir(dir, &name)?;
    }
    Ok(())
}
