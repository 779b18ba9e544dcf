//! `moafs cat`: prints a file of a volume.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::tree::Tree;
use super::volume_tree::VolumeTree;
use super::{existing, failure};
use crate::error::Result;
use crate::output;
use crate::place::Inside;
use crate::volume::{Access, Volume, with_volume};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Print a file of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs cat disk.img:/etc/fstab
  moafs cat disk.img /boot/vmlinuz > vmlinuz")]
pub(crate) struct CatArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
}

impl CatArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Inside::parse(&self.image, self.path.as_ref())?;
        with_volume!(&place.image, Access::Read, |volume| print(volume, &place))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn print<F: Format>(volume: &Volume<F>, place: &Inside) -> Result<()> {
    let tree = VolumeTree::new(&volume.vfs, &place.image);
    let file = existing(&tree, place)?;
    match tree.meta(&file)?.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(failure("printing", place, libc::EISDIR)),
        _ => return Err(failure("printing", place, libc::EINVAL)),
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let len = tree.read(&file, at, &mut chunk)?;
        if len == 0 {
            return Ok(());
        }
        output::print(&chunk[..len])?;
        at += len as u64;
    }
}
