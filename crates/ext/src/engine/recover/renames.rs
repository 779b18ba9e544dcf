//! Ending renames of files that a crash interrupted between the new name and the removal of the old one.
//!
//! The inode tells of such a rename ([`crate::format::renaming`]). Before a caller gets to the file, by either name or
//! by its number, or lists a directory that names it, the old name is removed; the pass over the names does so for
//! files that no caller comes across.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::types::{Cookie, FileKind, Name};

use super::names::dot_dot;
use crate::engine::incore::Incore;
use crate::engine::names::is_dot;
use crate::engine::volume::Ext;
use crate::format::InodeNo;
use crate::format::renaming::Candidates;
use crate::meta::Level;

/// Renames that are ended together: their directories are read once for all of them.
const TOGETHER_MAX: usize = 4096;

/// A file that is being renamed, with the names that its note may speak of.
struct Moving {
    node: Arc<Incore>,
    names: Candidates,
}

impl Ext {
    /// Ends the interrupted rename of the file with this number. Returns true if there was one: names have to be looked
    /// up again then.
    pub(in crate::engine) fn end_rename_of(&self, ino: InodeNo) -> Result<bool> {
        if !self.may_end_renames() || self.slot(ino)?.is_none_or(|inode| inode.renaming.is_none()) {
            return Ok(false);
        }
        let Some(node) = self.in_use(ino)? else { return Ok(false) };
        self.end_rename_first(&node)
    }

    /// Does the same before a caller gets hold of an inode.
    pub(in crate::engine) fn end_rename_first(&self, node: &Arc<Incore>) -> Result<bool> {
        if !self.may_end_renames() || node.state.lock().inode.renaming.is_none() {
            return Ok(false);
        }
        self.end_exchanges_first()?;
        let ended = self.end_renames_of(&[node.ino.0]);
        self.health.watch(ended)?;
        Ok(true)
    }

    /// Ends the interrupted renames of the files that a directory names, before a caller sees these. A directory that
    /// the root does not lead to is left alone: the names in it do not count, and it goes.
    pub(in crate::engine) fn end_renames_in(&self, dir: &Arc<Incore>) -> Result<()> {
        if !self.may_end_renames() {
            return Ok(());
        }
        self.end_exchanges_first()?;
        let ended = self.note_names_first(dir).and_then(|()| self.end_renames());
        self.health.watch(ended)
    }

    /// A volume that has turned read-only shows both names.
    fn may_end_renames(&self) -> bool {
        self.recovery.is_active() && self.health.failed().is_none()
    }

    fn note_names_first(&self, dir: &Arc<Incore>) -> Result<()> {
        let is_read = self.recovery.known.lock().is_read(dir.ino.0);
        let counts = !is_read && !self.reached_from_root(BTreeSet::from([dir.ino.0]))?.is_empty();
        if counts { self.visit_in_turn(dir) } else { Ok(()) }
    }

    /// Ends the renames that were met while facts were noted. Another task may be about the same ones: each stays noted
    /// until it has ended.
    pub(super) fn end_renames(&self) -> Result<()> {
        loop {
            let some = self.recovery.known.lock().renames(TOGETHER_MAX);
            if some.is_empty() {
                return Ok(());
            }
            self.end_renames_of(&some)?;
            let mut known = self.recovery.known.lock();
            some.into_iter().for_each(|ino| known.note_renamed(ino));
        }
    }

    /// Ends the renames of some files. Their names and links are as the crash left them: ops that change them get to
    /// the file through [`Ext::end_rename_of`].
    fn end_renames_of(&self, files: &[u32]) -> Result<()> {
        let _one = self.recovery.renames.lock();
        let mut moving = BTreeMap::new();
        for ino in files {
            let Some(node) = self.in_use(InodeNo(*ino))? else { continue };
            let Some(renaming) = node.state.lock().inode.renaming else { continue };
            moving.insert(*ino, Moving { node, names: Candidates::of(renaming) });
        }
        let renames = moving.values().map(|file| file.names.renaming());
        let dirs = renames.flat_map(|renaming| [renaming.from.0, renaming.to.0]).collect();
        let mut reached = BTreeMap::new();
        // A name may be on the disk in a directory whose own name is not: it does not count.
        for ino in self.reached_from_root(dirs)? {
            let Some(dir) = self.directory_in_use(InodeNo(ino))? else { continue };
            self.find_names(&dir, &mut moving)?;
            reached.insert(ino, dir);
        }
        moving.into_values().try_for_each(|file| self.end_rename(&file, &reached))
    }

    /// Removes the old name of a file if the new one leads to it as well, and the note of the rename.
    fn end_rename(&self, file: &Moving, dirs: &BTreeMap<u32, Arc<Incore>>) -> Result<()> {
        let node = &file.node;
        self.visit_in_turn(node)?;
        let gone = match (file.names.old_name(), dirs.get(&file.names.renaming().from.0)) {
            (Some(old), Some(dir)) => self.remove_old(node, dir, old)?,
            _ => Level::NONE,
        };
        node.state.lock().inode.renaming = None;
        self.store_with(node, gone, |_, _| {}).map(drop)
    }

    /// Removes one name of several. Returns the level at which it is gone.
    fn remove_old(&self, node: &Incore, dir: &Arc<Incore>, old: &[u8]) -> Result<Level> {
        let (Some(name), true) = (Name::new(old), node.state.lock().inode.links > 1) else {
            return Ok(Level::NONE);
        };
        let gone = self.drop_name(dir, name, Level::NONE)?;
        node.state.lock().inode.links -= 1;
        Ok(gone)
    }

    /// Returns those of some directories that the root leads to by names. Each directory above them is read once.
    fn reached_from_root(&self, mut dirs: BTreeSet<u32>) -> Result<BTreeSet<u32>> {
        // The directory above by which each is named.
        let mut above: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut seen, mut level) = (BTreeSet::from([InodeNo::ROOT.0]), dirs.clone());
        while !level.is_empty() {
            let mut below: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            for ino in level.into_iter().filter(|ino| seen.insert(*ino)) {
                let Some(dir) = self.directory_in_use(InodeNo(ino))? else { continue };
                let Some(parent) = self.find_name(&dir, dot_dot())? else { continue };
                below.entry(parent.ino.0).or_default().insert(ino);
            }
            for (parent, children) in &below {
                let Some(dir) = self.directory_in_use(InodeNo(*parent))? else { continue };
                let named = self.named_in(&dir, children)?;
                above.extend(named.into_iter().map(|child| (child, *parent)));
            }
            level = below.into_keys().collect();
        }
        let reached = |ino: &u32| {
            let ways =
                std::iter::successors(Some(*ino), |at| above.get(at).copied().filter(|_| *at != InodeNo::ROOT.0));
            // A circle never ends at the root.
            ways.take(above.len() + 1).any(|at| at == InodeNo::ROOT.0)
        };
        dirs.retain(reached);
        Ok(dirs)
    }

    /// Returns those of some inodes that a directory names.
    fn named_in(&self, dir: &Incore, wanted: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
        let mut named = BTreeSet::new();
        self.list_names(dir, Cookie::START, &mut |name, dentry, _| {
            let found = u32::try_from(dentry.ino.0).ok().filter(|ino| wanted.contains(ino) && !is_dot(name.as_bytes()));
            named.extend(found);
            named.len() < wanted.len()
        })?;
        Ok(named)
    }

    fn directory_in_use(&self, ino: InodeNo) -> Result<Option<Arc<Incore>>> {
        Ok(self.in_use(ino)?.filter(|node| node.kind == FileKind::Directory))
    }

    /// Finds the names in a directory that notes of renames speak of.
    fn find_names(&self, dir: &Incore, moving: &mut BTreeMap<u32, Moving>) -> Result<()> {
        self.list_names(dir, Cookie::START, &mut |name, dentry, _| {
            if let Some(file) = u32::try_from(dentry.ino.0).ok().and_then(|ino| moving.get_mut(&ino)) {
                file.names.take(self.marks, dir.ino, name.as_bytes());
            }
            true
        })
    }
}
