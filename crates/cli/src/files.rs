//! Files of a volume without mounting it, and without root: `ls`, `cat`, `cp`, `mkdir`, `rm`.
//!
//! They go through the same [`moafs_vfs::Vfs`] as a mount. Permissions are not checked: a user who
//! can write the image can write every file in it.

pub(crate) mod cat;
pub(crate) mod copy;
pub(crate) mod cp;
pub(crate) mod host;
pub(crate) mod ls;
pub(crate) mod mkdir;
pub(crate) mod rm;
mod stage;
mod trail;
pub(crate) mod tree;
pub(crate) mod volume_tree;
mod walk;

use moafs_vfs::{Error, Format};

use crate::error::{CliError, Result};
use crate::place::Inside;
use volume_tree::{Held, VolumeTree};

/// Returns the file at a place, or an error if there is none.
fn existing<'v, F: Format>(tree: &VolumeTree<'v, F>, place: &Inside) -> Result<Held<'v, F>> {
    let missing = || failure("looking up", place, libc::ENOENT);
    tree.walk(&place.path)?.ok_or_else(missing)
}

/// Makes an error from a POSIX error number at a place on a volume.
fn failure(what: &'static str, place: &Inside, errno: i32) -> CliError {
    CliError::Volume { what, at: place.describe(), error: Error::Posix(errno) }
}
