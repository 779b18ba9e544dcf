//! [`Walk`]: the one way in which commands walk through trees.
//!
//! # Invariants
//!
//! 1. A directory is entered once. In a damaged volume a directory may have several names, or contain itself: each
//!    further meeting is an error that the caller tells and passes by, so every walk ends.
//!    Where symbolic links are followed a directory may be entered again, but not below itself.
//! 2. Nothing is recursive, and only the innermost directories are held open: a tree may be of any depth. Where
//!    symbolic links are followed all directories above are held, since `..` may lead elsewhere.
//! 3. A directory's parent is the one it was entered from. If it was moved meanwhile, the walk ends
//!    with an error rather than go on elsewhere.

use std::collections::HashSet;
use std::rc::Rc;

use super::tree::{FileId, Tree};
use crate::error::{CliError, Result};

/// Directories held open above the innermost one at most. Others are found again when the walk comes back to them.
const HELD_MAX: usize = 32;

/// A directory, and the directories it was entered through.
pub(crate) struct Descent<'t, T: Tree> {
    tree: &'t T,
    here: Rc<T::Node>,
    here_id: FileId,
    above: Vec<Above<T::Node>>,
}

struct Above<N> {
    id: FileId,
    held: Option<Rc<N>>,
    /// True if the directory below may have been entered through a link: then its `..` does not lead back here.
    stays: bool,
}

impl<'t, T: Tree> Descent<'t, T> {
    pub(crate) fn new(tree: &'t T, top: Rc<T::Node>, id: FileId) -> Self {
        Descent { tree, here: top, here_id: id, above: Vec::new() }
    }

    /// Returns the innermost directory.
    pub(crate) fn here(&self) -> &Rc<T::Node> {
        &self.here
    }

    /// Enters a directory in it.
    pub(crate) fn down(&mut self, dir: Rc<T::Node>, id: FileId) {
        self.enter(dir, id, false);
    }

    fn enter(&mut self, dir: Rc<T::Node>, id: FileId, stays: bool) {
        let held = Some(std::mem::replace(&mut self.here, dir));
        self.above.push(Above { id: std::mem::replace(&mut self.here_id, id), held, stays });
        let far = self.above.len().checked_sub(HELD_MAX + 1).map(|far| &mut self.above[far]);
        if let Some(far) = far.filter(|far| !far.stays) {
            far.held = None;
        }
    }

    /// Goes back, and returns the directory that was left; `None` at the top, which stays.
    pub(crate) fn up(&mut self) -> Result<Option<Rc<T::Node>>> {
        let Some(Above { id, held, .. }) = self.above.pop() else { return Ok(None) };
        let dir = match held {
            Some(dir) => dir,
            None => Rc::new(self.tree.entered_from(&self.here, id)?),
        };
        self.here_id = id;
        Ok(Some(std::mem::replace(&mut self.here, dir)))
    }
}

/// A walk through a tree, depth first.
pub(crate) struct Walk<'t, T: Tree> {
    tree: &'t T,
    /// `None` before the first directory is entered, and after it was left.
    descent: Option<Descent<'t, T>>,
    levels: Vec<Level>,
    /// Directories that are not entered again: all that were, or in a walk through links those that are not left yet.
    met: HashSet<FileId>,
    through_links: bool,
}

/// A directory that was entered.
struct Level {
    name: Vec<u8>,
    id: FileId,
    /// Names that were not visited yet.
    names: std::vec::IntoIter<Vec<u8>>,
}

/// The result of a step of a walk.
pub(crate) enum Step<N> {
    /// An entry of [`Walk::here`], to be entered if it is a directory and the caller wants it.
    Entry { name: Vec<u8>, node: N },
    /// An entry that could not be looked up.
    Failed(CliError),
    /// Everything in this directory was visited; [`Walk::here`] is the one it was entered from.
    Leave { name: Vec<u8>, dir: Rc<N> },
    /// The first directory was left.
    End,
}

impl<'t, T: Tree> Walk<'t, T> {
    pub(crate) fn new(tree: &'t T) -> Self {
        Walk { tree, descent: None, levels: Vec::new(), met: HashSet::new(), through_links: false }
    }

    /// Prepares a walk whose caller enters directories that symbolic links lead to.
    pub(crate) fn through_links(tree: &'t T) -> Self {
        Walk { through_links: true, ..Walk::new(tree) }
    }

    /// Returns the directory whose entries are being visited.
    pub(crate) fn here(&self) -> Option<&Rc<T::Node>> {
        self.descent.as_ref().map(Descent::here)
    }

    /// Returns the number of directories entered and not left.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Records that a directory is going to be entered.
    ///
    /// # Errors
    /// [`CliError::MetBefore`] if it was met before, and [`CliError::LinkCycle`] in a walk through links.
    pub(crate) fn meet(&mut self, dir: &T::Node, id: FileId) -> Result<()> {
        let at = || self.tree.describe(dir);
        match (self.met.insert(id), self.through_links) {
            (true, _) => Ok(()),
            (false, false) => Err(CliError::MetBefore { at: at() }),
            (false, true) => Err(CliError::LinkCycle { at: at() }),
        }
    }

    /// Enters a directory that [`Walk::meet`] let pass; of its entries `names` will be visited.
    pub(crate) fn enter(&mut self, name: &[u8], dir: T::Node, id: FileId, names: Vec<Vec<u8>>) {
        let dir = Rc::new(dir);
        match &mut self.descent {
            Some(descent) => descent.enter(dir, id, self.through_links),
            None => self.descent = Some(Descent::new(self.tree, dir, id)),
        }
        self.levels.push(Level { name: name.to_vec(), id, names: names.into_iter() });
    }

    /// Goes on to the next entry, or back to the directory above.
    ///
    /// # Errors
    /// Fails only if the walk ends: there is no way back to the directory above.
    pub(crate) fn step(&mut self) -> Result<Step<T::Node>> {
        while let (Some(level), Some(descent)) = (self.levels.last_mut(), &self.descent) {
            let Some(name) = level.names.next() else { return self.leave() };
            match self.tree.child(descent.here(), &name) {
                Ok(Some(node)) => return Ok(Step::Entry { name, node }),
                // The file was removed meanwhile.
                Ok(None) => {}
                Err(error) => return Ok(Step::Failed(error)),
            }
        }
        Ok(Step::End)
    }

    fn leave(&mut self) -> Result<Step<T::Node>> {
        let (Some(level), Some(descent)) = (self.levels.pop(), &mut self.descent) else { return Ok(Step::End) };
        if self.through_links {
            self.met.remove(&level.id);
        }
        let dir = match descent.up()? {
            Some(dir) => dir,
            None => {
                let top = Rc::clone(descent.here());
                self.descent = None;
                top
            }
        };
        Ok(Step::Leave { name: level.name, dir })
    }
}

/// Returns true if the directory `dir` is the one called `id`, or lies below it.
pub(crate) fn is_within<T: Tree>(tree: &T, dir: &T::Node, id: FileId) -> Result<bool> {
    let mut met = HashSet::new();
    let mut at = tree.meta(dir)?.id;
    let mut node = None;
    while at != id {
        // Back at a directory that was passed: the root, or a cycle in a damaged volume.
        if !met.insert(at) {
            return Ok(false);
        }
        let next = tree.above(node.as_ref().unwrap_or(dir))?;
        at = tree.meta(&next)?.id;
        node = Some(next);
    }
    Ok(true)
}
