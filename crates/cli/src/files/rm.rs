//! `moafs rm`: removes files of a volume.

use std::process::ExitCode;
use std::rc::Rc;

use clap::Args;
use indicatif::ProgressBar;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::paths::{Going, Paths, Work};
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use super::walk::{Step, Walk};
use super::{Named, failure, named};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::stop::Stop;
use crate::volume::Access;

/// Remove files of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs rm disk.img:/core disk.img:/tmp/log
  moafs rm -r disk.img:/tmp/build

Exit code: 0 removed, 1 something was not (and said so), 130 interrupted.")]
pub(crate) struct RmArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    rm: Rm,
}

#[derive(Debug, Args)]
struct Rm {
    /// Directories, with everything in them
    #[arg(short, long)]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
}

impl RmArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.rm)
    }
}

impl Work for Rm {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, going: &mut Going) -> Result<()> {
        let Some(Named { dir, name, node: Some(node) }) = named(tree, place, "removing")? else {
            return if self.force { Ok(()) } else { Err(failure("removing", place, libc::ENOENT)) };
        };
        if tree.meta(&node)?.kind != FileKind::Directory {
            return tree.unlink(&dir, name);
        }
        if !self.recursive {
            let at = place.describe();
            return Err(CliError::Usage(format!("removing {at}: Is a directory; -r removes directories")));
        }
        let removal = Removal { tree, stop: going.stop(), progress: output::spinner("removed"), failed: 0 };
        removal.run(&dir, node, name)
    }
}

/// A removal of a directory with everything in it.
struct Removal<'t, 'v, F: Format> {
    tree: &'t VolumeTree<'v, F>,
    stop: &'t Stop,
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
