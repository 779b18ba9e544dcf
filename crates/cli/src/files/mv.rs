//! `moafs mv`: moves and renames files of a volume.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::destination::Destination;
use super::paths::{Going, Work, on_each};
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use super::walk::is_within;
use super::{Named, failure, named};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::volume::Access;

/// Move or rename files of a volume
///
/// As with mv(1), a source goes *into* a destination that is a directory, and replaces a file that has its new name.
/// Each move is one step: after a power cut a file has its old name or its new one. Nothing is copied, so source and
/// destination are on one volume.
#[derive(Debug, Args)]
#[command(
    override_usage = "moafs mv [OPTIONS] SOURCE... DESTINATION",
    after_help = "\
Examples:
  moafs mv disk.img:/etc/hosts disk.img:/etc/hosts.old
  moafs mv disk.img:/a disk.img:/b disk.img:/dir/
  moafs mv disk.img /a /b /dir                  the same
  moafs mv -i disk.img:/new disk.img:/kept      ask if /kept exists

Exit code: 0 moved, 1 something was not (and said so)."
)]
pub(crate) struct MvArgs {
    /// Sources, and last the destination: IMAGE:PATH each, or IMAGE, then paths on it
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    places: Vec<OsString>,
    #[command(flatten)]
    replacing: Replacing,
}

/// The treatment of files that have a source's new name; the last of these options holds.
#[derive(Debug, Clone, Copy, Args)]
struct Replacing {
    /// Replace without asking (the default)
    #[arg(short, long, overrides_with_all = ["interactive", "no_clobber"])]
    force: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with_all = ["force", "no_clobber"])]
    interactive: bool,
    /// Replace nothing: leave a source alone whose new name exists
    #[arg(short, long, overrides_with_all = ["force", "interactive"])]
    no_clobber: bool,
}

impl Replacing {
    /// Decides if a file is replaced, and asks if that was asked for.
    fn allows(self, shown: &str) -> Result<bool> {
        match (self.no_clobber, self.interactive) {
            (true, _) => Ok(false),
            (_, true) => output::confirm(&format!("moafs: replace {shown}?")),
            _ => Ok(true),
        }
    }
}

impl MvArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut sources = Inside::parse_on_one(&self.places, "mv")?;
        let (Some(to), false) = (sources.pop(), sources.is_empty()) else { return Err(CliError::few_places()) };
        let destination = Destination::new(&to.path, sources.len(), "moved");
        on_each(sources.into_iter().map(Ok).collect(), &mut Mv { destination, replacing: self.replacing })
    }
}

struct Mv<'a> {
    destination: Destination<'a>,
    replacing: Replacing,
}

impl Work for Mv<'_> {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        let Some(Named { dir, name, node: Some(node) }) = named(tree, place, "moving")? else {
            return Err(failure("moving", place, libc::ENOENT));
        };
        let (to, new_name) = self.destination.of(tree, &place.path)?;
        let new_name = new_name.ok_or_else(|| failure("moving", place, libc::EINVAL))?;
        let old = tree.child(&to, &new_name)?;
        match &old {
            Some(old) if !self.replacing.allows(&tree.describe(old))? => Ok(()),
            Some(old) if old.ino == node.ino => unite(tree, (&dir, name), (&to, &new_name), [&node, old]),
            _ => {
                self.check(tree, place, &node, &to, old.is_some())?;
                tree.relocate((&dir, name), (&to, &new_name))
            }
        }
    }
}

impl Mv<'_> {
    /// Checks that a directory does not go into itself, and that nothing else gets a name that ends in a slash.
    fn check<F: Format>(
        &self,
        tree: &VolumeTree<'_, F>,
        place: &Inside,
        node: &Held<'_, F>,
        to: &Held<'_, F>,
        replaces: bool,
    ) -> Result<()> {
        let meta = tree.meta(node)?;
        if meta.kind != FileKind::Directory {
            let names_directory = !replaces && self.destination.is_new_directory(tree)?;
            return if names_directory { Err(failure("moving", place, libc::ENOTDIR)) } else { Ok(()) };
        }
        if is_within(tree, to, meta.id)? {
            let (what, into) = (tree.describe(node), tree.describe(to));
            return Err(CliError::Usage(format!("{what} cannot be moved into itself, to {into}")));
        }
        Ok(())
    }
}

/// Moves a file to another of its own names: the old one goes.
fn unite<'v, F: Format>(
    tree: &VolumeTree<'v, F>,
    from: (&Held<'v, F>, &[u8]),
    to: (&Held<'v, F>, &[u8]),
    nodes: [&Held<'v, F>; 2],
) -> Result<()> {
    if (from.0.ino, from.1) == (to.0.ino, to.1) {
        let [from, to] = nodes.map(|node| tree.describe(node));
        return Err(CliError::SameFile { from, to, done: "moved" });
    }
    tree.unlink(from.0, from.1)
}
