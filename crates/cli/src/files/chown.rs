//! `moafs chown`: gives files of a volume to others.

use std::process::ExitCode;

use clap::{ArgAction, Args};
use moafs_vfs::Format;

use super::found;
use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, Tree};
use super::visit::{Visit, visit};
use super::volume_tree::{Held, VolumeTree};
use crate::error::Result;
use crate::owner::NewOwner;
use crate::place::Inside;
use crate::volume::Access;

/// Change owner and group of files of a volume
///
/// USER and GROUP are numbers, or names of the host (/etc/passwd, /etc/group): names that the volume has of its own
/// are not looked at. Set-id bits of files go with the owner they were meant for.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  moafs chown 1000:1000 disk.img:/home/ann
  moafs chown -R www-data disk.img:/var/www disk.img:/srv
  moafs chown :users disk.img:/shared

Exit code: 0 changed, 1 something was not (and said so), 130 interrupted."
)]
pub(crate) struct ChownArgs {
    #[command(flatten)]
    chown: Chown,
    #[command(flatten)]
    paths: Paths,
}

#[derive(Debug, Args)]
struct Chown {
    /// USER, USER:GROUP, :GROUP, or USER: for the user's group
    #[arg(value_name = "USER[:GROUP]", value_parser = NewOwner::parse)]
    owner: NewOwner,
    /// Also change everything in directories; no symbolic link is followed then
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links, not the files that they lead to
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl ChownArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.chown)
    }
}

impl Chown {
    fn change<'v, F: Format>(&self, tree: &VolumeTree<'v, F>, node: &Held<'v, F>) -> Result<()> {
        let meta = tree.meta(node)?;
        let (uid, gid) = (self.owner.uid.unwrap_or(meta.uid), self.owner.gid.unwrap_or(meta.gid));
        tree.set_owner(node, uid, gid).map(drop)
    }
}

impl Work for Chown {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, going: &mut Going) -> Result<()> {
        let last = if self.recursive || self.no_dereference { LastLink::Kept } else { LastLink::Followed };
        let top = found(tree, place, last)?;
        if !self.recursive {
            return self.change(tree, &top);
        }
        visit(tree, top, &place.path, going, |visit| match visit {
            Visit::Meets { node, .. } => self.change(tree, node).map(|()| true),
            Visit::Leaves { .. } => Ok(true),
        })
    }
}
