//! Files of a volume without mounting it, and without root: `ls`, `find`, `cat`, `cp`, `mv`, `rm` and their like.
//!
//! They go through the same [`moafs_vfs::Vfs`] as a mount. Permissions are not checked: a user who
//! can write the image can write every file in it.

pub(crate) mod cat;
pub(crate) mod chmod;
pub(crate) mod chown;
mod color;
pub(crate) mod copy;
pub(crate) mod cp;
mod destination;
pub(crate) mod df;
pub(crate) mod du;
pub(crate) mod file_facts;
pub(crate) mod find;
mod glob;
pub(crate) mod host;
pub(crate) mod ln;
pub(crate) mod ls;
pub(crate) mod mkdir;
mod mode;
pub(crate) mod mv;
mod order;
pub(crate) mod paths;
mod reference;
pub(crate) mod rm;
mod sizes;
mod stage;
mod stream;
pub(crate) mod touch;
mod trail;
pub(crate) mod tree;
pub(crate) mod truncate;
mod visit;
pub(crate) mod volume_tree;
mod walk;

use moafs_vfs::{Error, Format};

use crate::error::{CliError, Result};
use crate::owner;
use crate::place::Inside;
use tree::{LastLink, New, Tree};
use volume_tree::{Held, VolumeTree};

/// Returns the file at a place, or an error if there is none. A symbolic link there is kept, unless a slash follows it.
pub(crate) fn existing<T: Tree>(tree: &T, place: &Inside) -> Result<T::Node> {
    found(tree, place, if place.path.ends_with(b"/") { LastLink::Followed } else { LastLink::Kept })
}

/// Returns the file at a place, or the one that a symbolic link there leads to.
pub(crate) fn found<T: Tree>(tree: &T, place: &Inside, last: LastLink) -> Result<T::Node> {
    let missing = || failure("looking up", place, libc::ENOENT);
    tree.resolve(&place.path, last)?.ok_or_else(missing)
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

/// Makes an empty regular file at a place where there is none, as the umask lets it.
fn make_empty<'v, F: Format>(tree: &VolumeTree<'v, F>, place: &Inside) -> Result<Held<'v, F>> {
    let missing = || failure("making", place, libc::ENOENT);
    let Named { dir, name, node } = named(tree, place, "making")?.ok_or_else(missing)?;
    if node.is_some() {
        return Err(failure("making the file of a symbolic link that leads nowhere,", place, libc::ENOENT));
    }
    tree.make(&dir, name, New::file(0o666 & !owner::umask()))
}

/// Makes an error from a POSIX error number at a place on a volume.
fn failure(what: &'static str, place: &Inside, errno: i32) -> CliError {
    CliError::Volume { what, at: place.describe(), error: Error::Posix(errno) }
}
