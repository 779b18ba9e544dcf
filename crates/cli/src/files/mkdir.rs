//! `moafs mkdir`: makes a directory on a volume.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::failure;
use super::tree::{New, Tree};
use super::volume_tree::VolumeTree;
use crate::error::Result;
use crate::place::Inside;
use crate::volume::{Access, Volume, with_volume};

/// Make a directory on a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs mkdir disk.img:/srv
  moafs mkdir -p disk.img:/srv/www/static")]
pub(crate) struct MkdirArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Make missing directories on the way; one that exists is no error
    #[arg(short, long)]
    parents: bool,
}

impl MkdirArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Inside::parse(&self.image, self.path.as_ref())?;
        with_volume!(&place.image, Access::Write, |volume| self.make(volume, &place))?;
        Ok(ExitCode::SUCCESS)
    }

    fn make<F: Format>(&self, volume: &Volume<F>, place: &Inside) -> Result<()> {
        let tree = VolumeTree::new(&volume.vfs, &place.image);
        let mut at = tree.root()?;
        let mut names = place.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() && !self.parents {
            return Err(failure("making", place, libc::EEXIST));
        }
        while let Some(name) = names.next() {
            let last = names.peek().is_none();
            at = match tree.child(&at, name)? {
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
