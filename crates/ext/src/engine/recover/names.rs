//! Reading directories, and repairing names of directories that interrupted renames left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::Result;
use moafs_vfs::types::{FileKind, Name};

use super::known::Wrong;
use crate::engine::incore::Incore;
use crate::engine::volume::Ext;
use crate::format::{InodeNo, Place, Structure};
use crate::health::damaged;
use crate::meta::Level;

/// The names of an inode, by the directory that holds them.
type NamesOf = BTreeMap<u32, Vec<(u32, Vec<u8>)>>;

pub(super) fn dot_dot() -> &'static Name {
    Name::new(b"..").expect("a legal name")
}

impl Ext {
    // -- phase Names

    /// Reads one directory. Returns false if there is none left.
    pub(super) fn read_next_directory(&self) -> Result<bool> {
        let Some((directory, parent)) = self.recovery.known.lock().pending.pop() else { return Ok(false) };
        let ino = InodeNo(directory);
        let _turn = self.recovery.turn(ino);
        let before = {
            let mut known = self.recovery.known.lock();
            if known.is_read(directory) { known.dot_dots.remove(&directory) } else { None }
        };
        let dot_dot = match before {
            Some(dot_dot) => dot_dot,
            None => self.note_names(ino)?,
        };
        if dot_dot != parent {
            self.recovery.known.lock().misplaced.insert(directory, parent);
        }
        Ok(true)
    }

    /// Notes all names in a directory, whose turn the caller has taken. Returns the directory that
    /// `..` names.
    pub(super) fn note_names(&self, ino: InodeNo) -> Result<u32> {
        self.note_facts(ino)?;
        let node = self.incore(ino)?;
        let (mut subdirectories, mut dot_dot) = (0, 0);
        self.each_block_of_names(&node, &mut |names| {
            for (name, child) in names {
                match name.as_slice() {
                    b"." => {}
                    b".." => dot_dot = *child,
                    name => subdirectories += u32::from(self.note_name(&node, name, InodeNo(*child))?),
                }
            }
            Ok(())
        })?;
        let links = node.inode().links;
        self.recovery.known.lock().note_read(ino.0, links, subdirectories);
        Ok(dot_dot)
    }

    /// Notes one name. Returns true if it leads to a directory.
    fn note_name(&self, directory: &Incore, name: &[u8], child: InodeNo) -> Result<bool> {
        if self.geo.locate_inode(child).is_some() {
            self.note_facts(child)?;
        }
        let noted = self.recovery.known.lock().note_name(directory.ino.0, child.0);
        let name = String::from_utf8_lossy(name);
        let problem = match noted {
            Ok(is_directory) => return Ok(is_directory),
            Err(Wrong::Target) => format!("\"{name}\" names inode {}, which cannot be named there", child.0),
            Err(Wrong::Links) => format!("\"{name}\" is one name more than inode {} has links", child.0),
        };
        Err(damaged(Place::of(Structure::Inode(directory.ino)).damage(problem)))
    }

    pub(super) fn visit_in_turn(&self, node: &Incore) -> Result<()> {
        let _turn = self.recovery.turn(node.ino);
        self.visit(node.ino, true)
    }

    /// Removes a name. Returns the level at which it is gone.
    pub(super) fn drop_name(&self, dir: &Arc<Incore>, name: &Name, needs: Level) -> Result<Level> {
        self.visit_in_turn(dir)?;
        let level = self.remove_name(dir, name, needs, true)?;
        self.entries_level.fetch_max(level.0, Ordering::Relaxed);
        Ok(level)
    }

    // -- phase Mend: directories

    /// Leaves directories with several names the one in the directory that `..` names, or the
    /// first; then makes `..` name the directory that names them. Directories do not move
    /// meanwhile.
    pub(super) fn mend_directories(&self) -> Result<()> {
        let (doubles, mut misplaced) = {
            let mut known = self.recovery.known.lock();
            known.dot_dots.clear();
            (std::mem::take(&mut known.doubles), std::mem::take(&mut known.misplaced))
        };
        if !doubles.is_empty() {
            for (ino, names) in self.names_of(&doubles)? {
                let parent = self.keep_one_name(ino, names)?;
                misplaced.remove(&ino);
                misplaced.extend(parent.map(|parent| (ino, parent)));
            }
        }
        for (ino, parent) in misplaced {
            let node = self.incore(InodeNo(ino))?;
            self.visit_in_turn(&node)?;
            self.point_name(&node, dot_dot(), InodeNo(parent), FileKind::Directory, Level::NONE, true)?;
        }
        Ok(())
    }

    /// Returns all names of some directories, in the directories that the root leads to.
    fn names_of(&self, wanted: &BTreeSet<u32>) -> Result<NamesOf> {
        let mut found = NamesOf::new();
        let mut seen = BTreeSet::from([InodeNo::ROOT.0]);
        let mut pending = vec![InodeNo::ROOT.0];
        while let Some(directory) = pending.pop() {
            let node = self.incore(InodeNo(directory))?;
            self.each_block_of_names(&node, &mut |names| {
                let known = self.recovery.known.lock();
                for (name, child) in names.iter().filter(|(name, _)| !matches!(name.as_slice(), b"." | b"..")) {
                    if wanted.contains(child) {
                        found.entry(*child).or_default().push((directory, name.clone()));
                    }
                    if self.geo.locate_inode(InodeNo(*child)).is_some()
                        && known.is_directory(*child)
                        && seen.insert(*child)
                    {
                        pending.push(*child);
                    }
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Removes all names of a directory but one. Returns the directory that holds it, or `None` if
    /// `..` names it already.
    fn keep_one_name(&self, ino: u32, names: Vec<(u32, Vec<u8>)>) -> Result<Option<u32>> {
        let node = self.incore(InodeNo(ino))?;
        let told = self.find_name(&node, dot_dot())?.map_or(0, |found| found.ino.0);
        let keep = names.iter().position(|(parent, _)| *parent == told).unwrap_or(0);
        for (_, (parent, name)) in names.iter().enumerate().filter(|(index, _)| *index != keep) {
            let dir = self.incore(InodeNo(*parent))?;
            let Some(name) = Name::new(name) else { continue };
            self.drop_name(&dir, name, Level::NONE)?;
            *self.recovery.known.lock().excess_of(*parent) += 1;
        }
        Ok(names.get(keep).map(|(parent, _)| *parent).filter(|parent| *parent != told))
    }
}
