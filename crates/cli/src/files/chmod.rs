//! `moafs chmod`: changes modes of files of a volume.

use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::found;
use super::mode::ModeChange;
use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, Tree};
use super::visit::{Visit, visit};
use super::volume_tree::{Held, VolumeTree};
use crate::error::Result;
use crate::owner;
use crate::place::Inside;
use crate::volume::Access;

/// Change modes of files of a volume
///
/// MODE is that of chmod(1): octal, or clauses of classes (u, g, o, a), an operator (+, -, =) and permissions
/// (r, w, x, X, s, t, or one of u, g, o). Without a class all are meant, but for what the umask takes. A directory
/// keeps set-id bits that MODE does not name; octal modes of five digits name all. Symbolic links are followed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs chmod 600 disk.img:/etc/shadow
  moafs chmod u+x,go-w disk.img:/init disk.img:/sbin/init
  moafs chmod -R a+rX disk.img:/usr

Exit code: 0 changed, 1 something was not (and said so), 130 interrupted.")]
pub(crate) struct ChmodArgs {
    #[command(flatten)]
    chmod: Chmod,
    #[command(flatten)]
    paths: Paths,
}

#[derive(Debug, Args)]
struct Chmod {
    /// The mode, or the change
    #[arg(value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,
    /// Also change everything in directories; symbolic links in them are passed by
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl ChmodArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.chmod)
    }
}

impl Chmod {
    fn change<'v, F: Format>(&self, tree: &VolumeTree<'v, F>, node: &Held<'v, F>) -> Result<()> {
        let meta = tree.meta(node)?;
        tree.set_perm(node, self.mode.apply(meta.perm, meta.kind == FileKind::Directory, owner::umask()))
    }
}

impl Work for Chmod {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, going: &mut Going) -> Result<()> {
        let top = found(tree, place, LastLink::Followed)?;
        if !self.recursive {
            return self.change(tree, &top);
        }
        visit(tree, top, &place.path, going, |visit| match visit {
            Visit::Meets { kind: FileKind::Symlink, .. } | Visit::Leaves { .. } => Ok(true),
            Visit::Meets { node, .. } => self.change(tree, node).map(|()| true),
        })
    }
}
