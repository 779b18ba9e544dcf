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
mod paths;
pub(crate) mod rm;
mod stage;
mod trail;
pub(crate) mod tree;
pub(crate) mod volume_tree;
mod walk;

use moafs_vfs::{Error, Format};

use crate::error::{CliError, Result};
use crate::place::Inside;
use tree::{LastLink, Tree};
use volume_tree::{Held, VolumeTree};

/// Returns the file at a place, or an error if there is none.
fn existing<'v, F: Format>(tree: &VolumeTree<'v, F>, place: &Inside) -> Result<Held<'v, F>> {
    let missing = || failure("looking up", place, libc::ENOENT);
    tree.walk(&place.path)?.ok_or_else(missing)
}

/// A name in a directory, and the file that has it.
struct Named<'v, 'p, F: Format> {
    dir: Held<'v, F>,
    name: &'p [u8],
    node: Option<Held<'v, F>>,
}

/// Returns the name at a place; `None` if its directory does not exist. `what` is going to be done with it.
fn named<'v, 'p, F: Format>(
    tree: &VolumeTree<'v, F>,
    place: &'p Inside,
    what: &'static str,
) -> Result<Option<Named<'v, 'p, F>>> {
    let (dir, name) = place.split().ok_or_else(|| failure(what, place, libc::EBUSY))?;
    if matches!(name, b"." | b"..") {
        return Err(failure(what, place, libc::EINVAL));
    }
    let Some(dir) = tree.resolve(dir, LastLink::Followed)? else { return Ok(None) };
    let node = tree.child(&dir, name)?;
    Ok(Some(Named { dir, name, node }))
}

/// Makes an error from a POSIX error number at a place on a volume.
fn failure(what: &'static str, place: &Inside, errno: i32) -> CliError {
    CliError::Volume { what, at: place.describe(), error: Error::Posix(errno) }
}
