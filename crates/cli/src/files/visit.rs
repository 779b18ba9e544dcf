//! [`visit`]: a file, and everything below it.

use moafs_vfs::types::FileKind;

use super::paths::Going;
use super::tree::Tree;
use super::walk::{Step, Walk};
use crate::error::Result;

/// A moment of a visit.
pub(crate) enum Visit<'n, N> {
    /// A file is met; of a directory, before the files in it.
    Meets { node: &'n N, kind: FileKind, path: &'n [u8], depth: usize },
    /// A directory is left, after the files in it.
    Leaves { path: &'n [u8], depth: usize },
}

/// The path of the innermost directory that was entered.
struct Way {
    bytes: Vec<u8>,
    /// Length of the path above each directory that was entered.
    above: Vec<usize>,
}

impl Way {
    /// Appends a name, and returns the length before it.
    fn push(&mut self, name: &[u8]) -> usize {
        let len = self.bytes.len();
        if !self.above.is_empty() && !self.bytes.ends_with(b"/") {
            self.bytes.push(b'/');
        }
        self.bytes.extend_from_slice(name);
        len
    }
}

/// Visits a file, which messages and `each` call `path`, and everything below it, without following symbolic links.
/// Failures are told and passed by. `each` says of a directory that is met whether to go on below it.
pub(crate) fn visit<T: Tree>(
    tree: &T,
    top: T::Node,
    path: &[u8],
    going: &mut Going,
    mut each: impl FnMut(Visit<'_, T::Node>) -> Result<bool>,
) -> Result<()> {
    let mut walk = Walk::new(tree);
    let mut way = Way { bytes: path.to_vec(), above: Vec::new() };
    meet(tree, &mut walk, &mut way, top, b"", &mut each)?;
    loop {
        let done = match walk.step()? {
            Step::Entry { name, node } => meet(tree, &mut walk, &mut way, node, &name, &mut each),
            Step::Failed(error) => Err(error),
            Step::Leave { .. } => {
                let depth = way.above.len() - 1;
                let left = each(Visit::Leaves { path: &way.bytes, depth });
                way.bytes.truncate(way.above.pop().unwrap_or(0));
                left.map(drop)
            }
            Step::End => return Ok(()),
        };
        going.after(done)?;
    }
}

/// Meets a file, and enters a directory whose entries can be read and that was not met before.
fn meet<T: Tree>(
    tree: &T,
    walk: &mut Walk<'_, T>,
    way: &mut Way,
    node: T::Node,
    name: &[u8],
    each: &mut impl FnMut(Visit<'_, T::Node>) -> Result<bool>,
) -> Result<()> {
    let meta = tree.meta(&node)?;
    if meta.kind != FileKind::Directory {
        return met(way, &node, name, meta.kind, each).map(|(_, above)| way.bytes.truncate(above));
    }
    walk.meet(&node, meta.id)?;
    let names = tree.names(&node)?;
    let (goes_on, above) = met(way, &node, name, meta.kind, each)?;
    if goes_on {
        way.above.push(above);
        walk.enter(name, node, meta.id, names);
    } else {
        way.bytes.truncate(above);
    }
    Ok(())
}

/// Tells `each` of a file. Returns its answer, and the length of the path before the file's name.
fn met<N>(
    way: &mut Way,
    node: &N,
    name: &[u8],
    kind: FileKind,
    each: &mut impl FnMut(Visit<'_, N>) -> Result<bool>,
) -> Result<(bool, usize)> {
    let above = way.push(name);
    let goes_on = each(Visit::Meets { node, kind, path: &way.bytes, depth: way.above.len() });
    if goes_on.is_err() {
        way.bytes.truncate(above);
    }
    Ok((goes_on?, above))
}
