//! Ending renames of files that a crash interrupted between the new name and the removal of the old one.
//!
//! The inode tells of such a rename ([`Renaming`]). Before a caller gets to the file, by either name or by its number,
//! the old name is removed; the pass over the names does so for files that no caller comes across.

use std::num::NonZeroU16;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::types::{Cookie, FileKind, Name};

use crate::engine::incore::Incore;
use crate::engine::names::mark_of;
use crate::engine::volume::Ext;
use crate::format::InodeNo;
use crate::format::renaming::Renaming;
use crate::meta::Level;

/// A name, and the directory that holds it.
struct Entry {
    dir: Arc<Incore>,
    name: Vec<u8>,
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

    /// Ends the renames that the pass over the names has met.
    pub(super) fn end_renames(&self) -> Result<()> {
        let renames = std::mem::take(&mut self.recovery.known.lock().renames);
        for ino in renames {
            if let Some(node) = self.in_use(InodeNo(ino))? {
                self.end_rename(&node)?;
            }
        }
        Ok(())
    }

    /// Removes the old name if the file has both, and the note of the rename. Both names and the links are as the crash
    /// left them: ops that change them get to the file through [`Ext::end_rename_of`].
    fn end_rename(&self, node: &Arc<Incore>) -> Result<()> {
        let _one = self.recovery.renames.lock();
        let Renaming { from, old, to, new } = match node.state.lock().inode.renaming {
            Some(renaming) => renaming,
            None => return Ok(()),
        };
        let (old, new) = (self.entry_of(node, from, old)?, self.entry_of(node, to, new)?);
        self.visit_in_turn(node)?;
        let gone = match (old, new) {
            (Some(old), Some(new)) if (old.dir.ino, &old.name) != (new.dir.ino, &new.name) => {
                self.remove_old(node, &old)?
            }
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

    /// Returns the name with this mark by which a directory leads to a file.
    fn entry_of(&self, node: &Incore, dir: InodeNo, mark: NonZeroU16) -> Result<Option<Entry>> {
        let Some(dir) = self.in_use(dir)?.filter(|dir| dir.kind == FileKind::Directory) else { return Ok(None) };
        let mut found = None;
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            let is_it = dentry.ino.0 == u64::from(node.ino.0) && mark_of(name) == mark;
            found = is_it.then(|| name.as_bytes().to_vec());
            !is_it
        })?;
        Ok(found.map(|name| Entry { dir, name }))
    }
}
