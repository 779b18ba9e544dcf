//! Reading directories, and repairing names that interrupted renames and exchanges left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::Result;
use moafs_vfs::types::{Cookie, FileKind, Name};

use super::known::Wrong;
use super::state::Pass;
use crate::engine::incore::Incore;
use crate::engine::op::{EXCHANGE_PREFIX, parse_exchange_name};
use crate::engine::volume::Ext;
use crate::format::fnv::hash_of;
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

    // -- phase Mend: interrupted exchanges

    /// Checks once, before any change, whether the crash interrupted an exchange.
    pub(super) fn look_for_exchanges(&self, pass: &mut Pass) -> Result<()> {
        if pass.exchanges || self.recovery.may_change.load(Ordering::Acquire) {
            return Ok(());
        }
        let home = self.exchange_home()?;
        pass.exchanges = !self.temporary_names(&home)?.is_empty();
        if !pass.exchanges {
            self.recovery.may_change.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn temporary_names(&self, home: &Incore) -> Result<Vec<(Vec<u8>, u32)>> {
        let mut names = Vec::new();
        self.list_names(home, Cookie::START, &mut |name, dentry, _| {
            if name.as_bytes().starts_with(EXCHANGE_PREFIX) {
                names.push((name.as_bytes().to_vec(), dentry.ino.0 as u32));
            }
            true
        })?;
        Ok(names)
    }

    /// Ends every interrupted exchange. Returns true if there was one: names have to be read again then.
    pub(super) fn end_exchanges(&self) -> Result<bool> {
        let home = self.exchange_home()?;
        let mut ended = false;
        for (name, ino) in self.temporary_names(&home)? {
            let only_name = self.names_found(InodeNo(ino))? == 1;
            if only_name && !self.put_back(InodeNo(ino), &name)? {
                continue;
            }
            if let Some(name) = Name::new(&name) {
                let needs = Level(self.names_level.load(Ordering::Relaxed));
                self.drop_name(&home, name, needs)?;
                ended = true;
            }
        }
        Ok(ended)
    }

    /// Returns the number of names that were found of an inode while no name changes: two stands
    /// for two or more.
    fn names_found(&self, ino: InodeNo) -> Result<u16> {
        let links = self.slot(ino)?.map_or(0, |inode| inode.links);
        let known = self.recovery.known.lock();
        Ok(match known.is_directory(ino.0) {
            true => u16::from(known.is_named(ino.0)) + u16::from(known.doubles.contains(&ino.0)),
            false if links > 1 => links - known.excess(ino.0).min(links),
            false => u16::from(known.is_named(ino.0)),
        })
    }

    /// Makes the name that an inode lost to an exchange lead to it again, unless it is the only one
    /// of the inode that took it: then only the temporary name was left to be removed. Returns
    /// false if the name cannot be found.
    fn put_back(&self, ino: InodeNo, temporary: &[u8]) -> Result<bool> {
        let Some((dir, hash)) = parse_exchange_name(temporary) else { return Ok(false) };
        let (Ok(dir), Ok(node)) = (self.incore(dir), self.incore(ino)) else { return Ok(false) };
        if dir.kind != FileKind::Directory {
            return Ok(false);
        }
        let mut lost: Option<(Vec<u8>, u32)> = None;
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            if hash_of(name.as_bytes()) == hash && !matches!(name.as_bytes(), b"." | b"..") {
                lost = Some((name.as_bytes().to_vec(), dentry.ino.0 as u32));
            }
            true
        })?;
        let Some((name, taker)) = lost else { return Ok(false) };
        if self.names_found(InodeNo(taker))? == 1 {
            return Ok(true);
        }
        let Some(name) = Name::new(&name) else { return Ok(false) };
        self.visit_in_turn(&dir)?;
        let Some(level) = self.point_name(&dir, name, ino, node.kind, Level::NONE)? else { return Ok(false) };
        self.names_level.fetch_max(level.0, Ordering::Relaxed);
        self.entries_level.fetch_max(level.0, Ordering::Relaxed);
        Ok(true)
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
            self.point_name(&node, dot_dot(), InodeNo(parent), FileKind::Directory, Level::NONE)?;
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
