//! `moafs ln`: gives files of a volume more names, or makes symbolic links.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::destination::Destination;
use super::paths::{Going, Work, on_each};
use super::stage::{take_name, temporary_name};
use super::tree::{FileId, New, Tree};
use super::volume_tree::{Held, VolumeTree};
use super::{existing, failure};
use crate::error::{CliError, Result};
use crate::place::{Inside, Place};
use crate::volume::Access;

/// Make hard and symbolic links on a volume
///
/// As with ln(1), links go *into* a destination that is a directory. The text of a symbolic link is written as it is
/// given, and need not lead anywhere; a TARGET that names a file of the volume (IMAGE:PATH) becomes its PATH.
#[derive(Debug, Args)]
#[command(
    override_usage = "moafs ln [OPTIONS] TARGET... LINK",
    after_help = "\
Examples:
  moafs ln disk.img:/bin/gzip disk.img:/bin/gunzip
  moafs ln -s ../run disk.img:/var/run
  moafs ln -sfn releases/7 disk.img:/srv/current

Exit code: 0 made, 1 something was not (and said so)."
)]
pub(crate) struct LnArgs {
    /// Targets, and last the link or a directory for links: IMAGE:PATH; with -s, targets are texts
    #[arg(required = true, num_args = 2.., value_name = "TARGET... LINK")]
    places: Vec<OsString>,
    /// Symbolic links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace a file that has the name of the link
    #[arg(short, long)]
    force: bool,
    /// Take a LINK that is a symbolic link to a directory for a name, not for the directory
    #[arg(short, long)]
    no_dereference: bool,
}

impl LnArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut places = if self.symbolic { self.texts()? } else { Inside::parse_on_one(&self.places, "ln")? };
        let (Some(to), false) = (places.pop(), places.is_empty()) else { return Err(CliError::few_places()) };
        let mut destination = Destination::new(&to.path, places.len(), "linked");
        if self.no_dereference {
            destination.keep_link();
        }
        let mut work = Ln { destination, symbolic: self.symbolic, force: self.force };
        on_each(places.into_iter().map(Ok).collect(), &mut work)
    }

    /// Returns the texts of symbolic links, as if they were paths on the volume of the link, which comes last.
    fn texts(&self) -> Result<Vec<Inside>> {
        let places = Inside::parse_all(&self.places);
        if places.len() < self.places.len() {
            // The first word is the image of all.
            return places.into_iter().collect();
        }
        let Some((link, texts)) = self.places.split_last() else { return Err(CliError::few_places()) };
        let link = Inside::parse(link, None)?;
        let as_path = |text: &OsString| match Place::parse(text) {
            Place::Volume(target) => target.on_volume_of(&link, "ln"),
            Place::Host(_) => Ok(Inside { path: text.as_bytes().to_vec(), ..link.clone() }),
        };
        texts.iter().map(as_path).chain([Ok(link.clone())]).collect()
    }
}

struct Ln<'a> {
    destination: Destination<'a>,
    symbolic: bool,
    force: bool,
}

impl Work for Ln<'_> {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        if self.symbolic {
            return self.symbolic_link(tree, place);
        }
        let node = existing(tree, place)?;
        let meta = tree.meta(&node)?;
        if meta.kind == FileKind::Directory {
            return Err(failure("linking (directories get symbolic links only: -s)", place, libc::EPERM));
        }
        let (dir, name) = self.link_name(tree, place)?;
        self.put(tree, &dir, &name, Some((meta.id, &node)), |name| tree.link(&node, &dir, name))
    }
}

impl Ln<'_> {
    fn symbolic_link<F: Format>(&mut self, tree: &VolumeTree<'_, F>, text: &Inside) -> Result<()> {
        let (dir, name) = self.link_name(tree, text)?;
        self.put(tree, &dir, &name, None, |given| {
            let target = Some(text.path.as_slice());
            let link = New { kind: FileKind::Symlink, target, shown_as: Some(&name), ..New::file(0o777) };
            tree.make(&dir, given, link).map(drop)
        })
    }

    /// Returns the directory and the name that a link gets.
    fn link_name<'v, F: Format>(
        &mut self,
        tree: &VolumeTree<'v, F>,
        target: &Inside,
    ) -> Result<(Held<'v, F>, Vec<u8>)> {
        let (dir, name) = self.destination.of(tree, &target.path)?;
        Ok((dir, name.ok_or_else(|| failure("making a link of the name of", target, libc::EEXIST))?))
    }

    /// Makes a link under a name, with `-f` in place of a file that has it but is not the one to be linked.
    fn put<F: Format>(
        &self,
        tree: &VolumeTree<'_, F>,
        dir: &Held<'_, F>,
        name: &[u8],
        linked: Option<(FileId, &Held<'_, F>)>,
        make: impl Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(old) = tree.child(dir, name)?.filter(|_| self.force) else { return make(name) };
        if let Some((id, node)) = linked
            && tree.meta(&old)?.id == id
        {
            return Err(CliError::SameFile { from: tree.describe(node), to: tree.describe(&old), done: "linked" });
        }
        let temporary = temporary_name();
        make(&temporary)?;
        take_name(tree, dir, &temporary, name)
    }
}
