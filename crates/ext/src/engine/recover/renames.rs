//! Ending renames of files that a crash interrupted between the new name and the removal of the old one.
//!
//! The inode tells of such a rename ([`Renaming`]). Before a caller gets to the file, by either name or by its number,
//! or lists a directory that names it, the old name is removed; the pass over the names does so for files that no
//! caller comes across.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::types::{Cookie, FileKind, Name};

use super::names::dot_dot;
use crate::engine::incore::Incore;
use crate::engine::names::{is_dot, mark_of};
use crate::engine::volume::Ext;
use crate::format::InodeNo;
use crate::format::renaming::Renaming;
use crate::meta::Level;

/// A name, and the directory that holds it.
struct Entry {
    dir: Arc<Incore>,
    name: Vec<u8>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.dir.ino, &self.name) == (other.dir.ino, &other.name)
    }
}

impl Ext {
    /// Ends the interrupted rename of the file with this number. Returns true if there was one: names have to be looked
    /// up again then.
    pub(in crate::engine) fn end_rename_of(&self, ino: InodeNo) -> Result<bool> {
        if !self.recovery.is_active() || self.slot(ino)?.is_none_or(|inode| inode.renaming.is_none()) {
            return Ok(false);
        }
        let Some(node) = self.in_use(ino)? else { return Ok(false) };
        self.end_rename_first(&node)
    }

    /// Does the same before a caller gets hold of an inode.
    pub(in crate::engine) fn end_rename_first(&self, node: &Arc<Incore>) -> Result<bool> {
        if !self.recovery.is_active() || node.state.lock().inode.renaming.is_none() {
            return Ok(false);
        }
        self.end_exchanges_first()?;
        let ended = self.end_rename(node);
        self.health.watch(ended)?;
        Ok(true)
    }

    /// Ends the interrupted renames of the files that a directory names, before a caller sees these.
    pub(in crate::engine) fn end_renames_in(&self, dir: &Incore) -> Result<()> {
        if !self.recovery.is_active() {
            return Ok(());
        }
        self.end_exchanges_first()?;
        let ended = self.visit_in_turn(dir).and_then(|()| self.end_renames());
        self.health.watch(ended)
    }

    /// Ends the renames that were met while names were noted. Another task may be about the same ones: each stays noted
    /// until it has ended.
    pub(super) fn end_renames(&self) -> Result<()> {
        loop {
            let Some(ino) = self.recovery.known.lock().renames.first().copied() else { return Ok(()) };
            if let Some(node) = self.in_use(InodeNo(ino))? {
                self.end_rename(&node)?;
            }
            self.recovery.known.lock().renames.remove(&ino);
        }
    }

    /// Removes the old name if the new one leads to the file as well, and the note of the rename. Both names and the
    /// links are as the crash left them: ops that change them get to the file through [`Ext::end_rename_of`].
    fn end_rename(&self, node: &Arc<Incore>) -> Result<()> {
        let _one = self.recovery.renames.lock();
        let Renaming { from, old, to, new } = match node.state.lock().inode.renaming {
            Some(renaming) => renaming,
            None => return Ok(()),
        };
        let (old, new) = (self.entry_of(node, from, old)?, self.entry_of(node, to, new)?);
        self.visit_in_turn(node)?;
        let gone = match (old, new) {
            (Some(old), Some(new)) if old != new && self.leads_from_root(&new.dir)? => self.remove_old(node, &old)?,
            _ => Level::NONE,
        };
        node.state.lock().inode.renaming = None;
        self.store_with(node, gone, |_, _| {}).map(drop)
    }

    /// Removes one name of several. Returns the level at which it is gone.
    fn remove_old(&self, node: &Incore, old: &Entry) -> Result<Level> {
        let (Some(name), true) = (Name::new(&old.name), node.state.lock().inode.links > 1) else {
            return Ok(Level::NONE);
        };
        let gone = self.drop_name(&old.dir, name, Level::NONE)?;
        node.state.lock().inode.links -= 1;
        Ok(gone)
    }

    /// Returns true if the root leads to a directory by its names. The new name may be on the disk in a directory whose
    /// own name is not.
    fn leads_from_root(&self, dir: &Arc<Incore>) -> Result<bool> {
        let (mut at, mut seen) = (Arc::clone(dir), BTreeSet::new());
        while at.ino != InodeNo::ROOT && seen.insert(at.ino.0) {
            let Some(above) = self.find_name(&at, dot_dot())? else { return Ok(false) };
            let Some(above) = self.directory_in_use(above.ino)? else { return Ok(false) };
            if !self.names(&above, at.ino)? {
                return Ok(false);
            }
            at = above;
        }
        Ok(at.ino == InodeNo::ROOT)
    }

    /// Returns true if a directory has a name for an inode.
    fn names(&self, dir: &Incore, ino: InodeNo) -> Result<bool> {
        let mut found = false;
        self.list_names(dir, Cookie::START, &mut |name, dentry, _| {
            found = dentry.ino.0 == u64::from(ino.0) && !is_dot(name.as_bytes());
            !found
        })?;
        Ok(found)
    }

    fn directory_in_use(&self, ino: InodeNo) -> Result<Option<Arc<Incore>>> {
        Ok(self.in_use(ino)?.filter(|node| node.kind == FileKind::Directory))
    }

    /// Returns the name with this mark by which a directory leads to a file.
    fn entry_of(&self, node: &Incore, dir: InodeNo, mark: NonZeroU16) -> Result<Option<Entry>> {
        let Some(dir) = self.directory_in_use(dir)? else { return Ok(None) };
        let mut found = None;
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            let is_it = dentry.ino.0 == u64::from(node.ino.0) && mark_of(name) == mark;
            found = is_it.then(|| name.as_bytes().to_vec());
            !is_it
        })?;
        Ok(found.map(|name| Entry { dir, name }))
    }
}
