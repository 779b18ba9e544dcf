//! `moafs rm`: removes files of a volume.

use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;

use clap::Args;
use indicatif::ProgressBar;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::failure;
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use super::walk::{Step, Walk};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::stop::Stop;
use crate::volume::{Access, Volume, with_volume};

/// Remove files of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs rm disk.img:/core
  moafs rm -r disk.img:/tmp/build

Exit code: 0 removed, 1 something was not (and said so), 130 interrupted.")]
pub(crate) struct RmArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Directories, with everything in them
    #[arg(short, long)]
    recursive: bool,
    /// Ignore files that do not exist
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
        let tree = VolumeTree::new(&volume.vfs, &place.image);
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
        let removal =
            Removal { tree: &tree, stop: Stop::on_signals()?, progress: output::spinner("removed"), failed: 0 };
        removal.run(&parent, node, name)
    }
}

/// A removal of a directory with everything in it.
struct Removal<'t, 'v, F: Format> {
    tree: &'t VolumeTree<'v, F>,
    stop: Stop,
    progress: ProgressBar,
    /// Number of files that could not be removed, which was reported.
    failed: u64,
}

impl<'v, F: Format> Removal<'_, 'v, F> {
    fn run(mut self, parent: &Held<'v, F>, top: Held<'v, F>, name: &[u8]) -> Result<()> {
        let mut walk = Walk::new(self.tree);
        self.enter(&mut walk, parent, top, name)?;
        loop {
            self.stop.check()?;
            let done = match walk.step()? {
                Step::Entry { name, node } => self.entry(&mut walk, node, &name),
                Step::Failed(error) => Err(error),
                Step::Leave { name, dir } => {
                    drop(dir);
                    self.tree.rmdir(walk.here().map_or(parent, |here| here), &name)
                }
                Step::End => break,
            };
            if let Err(error) = done {
                self.failed += 1;
                self.progress.suspend(|| output::complain(&error));
            }
        }
        self.progress.finish_and_clear();
        match self.failed {
            0 => Ok(()),
            failed => Err(CliError::Partial { failed, done: "removed" }),
        }
    }

    fn entry<'t>(&self, walk: &mut Walk<'t, VolumeTree<'v, F>>, node: Held<'v, F>, name: &[u8]) -> Result<()> {
        self.progress.inc(1);
        let Some(dir) = walk.here().map(Rc::clone) else { return Ok(()) };
        if self.tree.meta(&node)?.kind == FileKind::Directory {
            self.enter(walk, &dir, node, name)
        } else {
            self.tree.unlink(&dir, name)
        }
    }

    /// Enters a directory to empty it. The directory must name the one it was found in as its
    /// parent: a damaged entry may name one that belongs elsewhere, even the root.
    fn enter<'t>(
        &self,
        walk: &mut Walk<'t, VolumeTree<'v, F>>,
        parent: &Held<'v, F>,
        dir: Held<'v, F>,
        name: &[u8],
    ) -> Result<()> {
        let id = self.tree.meta(&dir)?.id;
        let above = self.tree.above(&dir)?;
        if above.ino != parent.ino || above.ino == dir.ino {
            return Err(CliError::OtherParent { at: self.tree.describe(&dir) });
        }
        walk.meet(&dir, id)?;
        let names = self.tree.names(&dir)?;
        walk.enter(name, dir, id, names);
        Ok(())
    }
}
