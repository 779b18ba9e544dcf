//! `moafs mkdir`: makes directories on a volume.

use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::failure;
use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, New, Tree};
use super::volume_tree::VolumeTree;
use crate::error::Result;
use crate::place::Inside;
use crate::volume::Access;

/// Make directories on a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs mkdir disk.img:/srv
  moafs mkdir -p disk.img:/srv/www/static

Exit code: 0 made, 1 something was not (and said so).")]
pub(crate) struct MkdirArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    mkdir: Mkdir,
}

#[derive(Debug, Args)]
struct Mkdir {
    /// Make missing directories on the way; one that exists is no error
    #[arg(short, long)]
    parents: bool,
}

impl MkdirArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.mkdir)
    }
}

impl Work for Mkdir {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        let mut at = tree.root()?;
        let mut names = place.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() && !self.parents {
            return Err(failure("making", place, libc::EEXIST));
        }
        let mut path = Vec::new();
        while let Some(name) = names.next() {
            path.extend([b"/", name].concat());
            let last = names.peek().is_none();
            at = match tree.resolve(&path, LastLink::Followed)? {
                Some(_) if last && !self.parents => return Err(failure("making", place, libc::EEXIST)),
                Some(next) if tree.meta(&next)?.kind == FileKind::Directory => next,
                Some(_) => return Err(failure("making", place, libc::ENOTDIR)),
                None if last || self.parents => tree.make(&at, name, New::directory(0o755))?,
                None => return Err(failure("making (-p makes what is missing on the way)", place, libc::ENOENT)),
            };
        }
        Ok(())
    }
}
