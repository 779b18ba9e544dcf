//! [`Stage`]: copies that are complete, but not yet under their names.
//!
//! A new file is made under a temporary name, filled, and given its mode, owner and times. When enough have gathered
//! their contents are made durable, all at once, and only then each is renamed to its name, in place of an old file. So
//! a name means the old file or all of the new one at any moment, also after a power cut; what a crash leaves behind is
//! a file called `.moafs-cp-…`. Links to such files, and times of directories they are in, wait in the same queue.

use std::rc::Rc;

use uuid::Uuid;

use super::trail::Trail;
use super::tree::{FileId, Tree};
use crate::error::{CliError, Result};

/// Most bytes that wait for their names; one file may be larger.
const BYTES_MAX: u64 = 64 << 20;
/// Beginning of temporary names.
const TEMPORARY: &str = ".moafs-cp-";

/// Complete copies that wait for their names.
pub(crate) struct Stage<'t, D: Tree> {
    to: &'t D,
    /// Directory in which the copy began: all trails of [`Waiting::Link`] lead from it.
    top: Rc<D::Node>,
    waiting: Vec<Waiting<D::Node>>,
    bytes: u64,
}

/// A step that waits. Steps are done in the order in which they were added.
pub(crate) enum Waiting<N> {
    /// A complete file, to be renamed from `temporary` to `name`.
    File { dir: Rc<N>, temporary: Vec<u8>, name: Vec<u8>, node: N },
    /// Another name of a file that was copied before, which is found by its trail.
    Link { dir: Rc<N>, name: Vec<u8>, trail: Trail, id: FileId },
    /// A directory whose entries come before this, and its attributes.
    Directory { node: Rc<N>, attributes: Attributes },
}

impl<N> Waiting<N> {
    fn file(&self) -> Option<&N> {
        match self {
            Waiting::File { node, .. } => Some(node),
            Waiting::Link { .. } | Waiting::Directory { .. } => None,
        }
    }
}

/// The attributes that are set on a new file.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) perm: Option<u32>,
    pub(crate) xattrs: Vec<super::tree::Xattr>,
    pub(crate) times: Option<[moafs_runtime::Timestamp; 2]>,
}

impl Attributes {
    /// Sets the attributes. Owner first (it clears set-id bits), times last (everything else
    /// changes them).
    pub(crate) fn set<D: Tree>(&self, to: &D, node: &D::Node) -> Result<()> {
        let mut perm = self.perm;
        if let Some((uid, gid)) = self.owner {
            let set = to.set_owner(node, uid, gid)?;
            // A program must not run as a user it does not belong to.
            let lost = if set.uid { 0 } else { 0o4000 } | if set.gid { 0 } else { 0o2000 };
            perm = perm.map(|perm| perm & !lost);
        }
        for xattr in &self.xattrs {
            to.set_xattr(node, xattr)?;
        }
        if let Some(perm) = perm {
            to.set_perm(node, perm)?;
        }
        match self.times {
            Some([atime, mtime]) => to.set_times(node, atime, mtime),
            None => Ok(()),
        }
    }
}

/// The outcome of a step that waited.
pub(crate) struct Outcome {
    /// True if the step counts as a file.
    pub(crate) is_file: bool,
    pub(crate) result: Result<()>,
}

/// Returns a new random name, which no other file has.
pub(crate) fn temporary_name() -> Vec<u8> {
    format!("{TEMPORARY}{}", Uuid::new_v4().simple()).into_bytes()
}

/// Gives a file with a temporary name its own, in place of a file that has it.
pub(crate) fn take_name<D: Tree>(to: &D, dir: &D::Node, temporary: &[u8], name: &[u8]) -> Result<()> {
    let renamed = to.rename(dir, temporary, name);
    if renamed.is_err() {
        // The first of both errors is reported.
        let _ = to.unlink(dir, temporary);
    }
    renamed
}

impl<'t, D: Tree> Stage<'t, D> {
    pub(crate) fn new(to: &'t D, top: Rc<D::Node>) -> Self {
        Stage { to, top, waiting: Vec::new(), bytes: 0 }
    }

    /// Adds a step, with the number of its file's bytes.
    pub(crate) fn add(&mut self, waiting: Waiting<D::Node>, bytes: u64) {
        self.waiting.push(waiting);
        self.bytes += bytes;
    }

    /// Returns true if the number of steps or of bytes that wait reaches its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= D::BATCH_FILES || self.bytes >= BYTES_MAX
    }

    /// Does all steps that wait, so that files get their names.
    ///
    /// # Errors
    /// Fails if contents cannot be made durable: then all that waited is removed.
    pub(crate) fn publish(&mut self) -> Result<Vec<Outcome>> {
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        let files: Vec<&D::Node> = waiting.iter().filter_map(Waiting::file).collect();
        if let Err(error) = self.to.settle(&files) {
            waiting.iter().for_each(|waiting| self.remove(waiting));
            return Err(error);
        }
        Ok(waiting.iter().map(|waiting| self.publish_one(waiting)).collect())
    }

    fn publish_one(&self, waiting: &Waiting<D::Node>) -> Outcome {
        let is_file = !matches!(waiting, Waiting::Directory { .. });
        let result = match waiting {
            Waiting::File { dir, temporary, name, .. } => take_name(self.to, dir, temporary, name),
            Waiting::Link { dir, name, trail, id } => self.link(dir, name, trail, *id),
            Waiting::Directory { node, attributes } => attributes.set(self.to, node),
        };
        Outcome { is_file, result }
    }

    fn link(&self, dir: &D::Node, name: &[u8], trail: &Trail, id: FileId) -> Result<()> {
        let node = self.find(trail)?.filter(|node| self.to.meta(node).is_ok_and(|meta| meta.id == id));
        let Some(node) = node else {
            return Err(CliError::Usage(format!("{trail} was replaced meanwhile: no other name of it is made")));
        };
        if let Some(old) = self.to.child(dir, name)?
            && self.to.meta(&old)?.id == id
        {
            return Ok(());
        }
        let temporary = temporary_name();
        self.to.link(&node, dir, &temporary)?;
        take_name(self.to, dir, &temporary, name)
    }

    /// Returns the file that the trail leads to now.
    fn find(&self, trail: &Trail) -> Result<Option<D::Node>> {
        let mut at: Option<D::Node> = None;
        for name in trail.names_from(self.to.trail(&self.top)) {
            match self.to.child(at.as_ref().unwrap_or(&self.top), name)? {
                Some(next) => at = Some(next),
                None => return Ok(None),
            }
        }
        Ok(at)
    }

    fn remove(&self, waiting: &Waiting<D::Node>) {
        if let Waiting::File { dir, temporary, .. } = waiting {
            // This handles a failure that is already reported.
            let _ = self.to.unlink(dir, temporary);
        }
    }
}

impl<D: Tree> Drop for Stage<'_, D> {
    fn drop(&mut self) {
        self.waiting.iter().for_each(|waiting| self.remove(waiting));
    }
}
