//! [`visit`]: a file, and everything below it.

use moafs_vfs::types::FileKind;

use super::paths::Going;
use super::tree::Tree;
use super::walk::{Step, Walk};
use crate::error::Result;

/// A moment of a visit.
pub(crate) enum Visit<'n, N> {
    /// A file is met; of a directory, before the files in it.
    Meets { node: &'n N, name: &'n [u8], kind: FileKind },
    /// A directory is left, after the files in it.
    Leaves,
}

/// Visits a file and everything below it, without following symbolic links. Failures are told and passed by. `each`
/// says of a directory that is met whether to go on below it.
pub(crate) fn visit<T: Tree>(
    tree: &T,
    top: T::Node,
    going: &mut Going,
    mut each: impl FnMut(Visit<'_, T::Node>) -> Result<bool>,
) -> Result<()> {
    let mut walk = Walk::new(tree);
    meet(tree, &mut walk, top, b"", &mut each)?;
    loop {
        let done = match walk.step()? {
            Step::Entry { name, node } => meet(tree, &mut walk, node, &name, &mut each),
            Step::Failed(error) => Err(error),
            Step::Leave { .. } => each(Visit::Leaves).map(drop),
            Step::End => return Ok(()),
        };
        going.after(done)?;
    }
}

/// Meets a file, and enters a directory whose entries can be read and that was not met before.
fn meet<T: Tree>(
    tree: &T,
    walk: &mut Walk<'_, T>,
    node: T::Node,
    name: &[u8],
    each: &mut impl FnMut(Visit<'_, T::Node>) -> Result<bool>,
) -> Result<()> {
    let meta = tree.meta(&node)?;
    let met = Visit::Meets { node: &node, name, kind: meta.kind };
    if meta.kind != FileKind::Directory {
        return each(met).map(drop);
    }
    walk.meet(&node, meta.id)?;
    let names = tree.names(&node)?;
    if each(met)? {
        walk.enter(name, node, meta.id, names);
    }
    Ok(())
}
