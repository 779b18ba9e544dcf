//! Between passes 3 and 4: renames of files that a crash of moafs interrupted between the new name and the removal of
//! the old one.
//!
//! The inode tells of such a rename ([`crate::format::renaming`]), and the rules of a mount apply: the old name goes if
//! the file has both, in directories that the root leads to, and only what the mount that crashed has noted counts. A
//! check of a volume that was unmounted, or that another driver wrote last, removes no name.

use std::collections::{BTreeMap, BTreeSet};

use super::checker::Checker;
use super::dirs::text;
use super::error::CheckError;
use super::issue::Issue;
use super::scan::Blocks;
use crate::format::dir::{self, Form};
use crate::format::renaming::{Candidates, Renaming};
use crate::format::{BlockNo, InodeNo, put_u32};

impl Checker<'_> {
    /// Notes what an inode in use with this number of links tells of a rename.
    pub(super) fn note_rename(&mut self, ino: InodeNo, renaming: Option<Renaming>, links: u16) {
        if let Some(renaming) = renaming.filter(|_| self.marks.is_some() && links > 1) {
            self.renames.insert(ino.0, Candidates::of(renaming));
        }
    }

    pub(super) fn end_renames(&mut self) -> Result<(), CheckError> {
        let Some(marks) = self.marks else { return Ok(()) };
        let mut renames = std::mem::take(&mut self.renames);
        let told = renames.values().map(Candidates::renaming).flat_map(|told| [told.from, told.to]);
        let reached: BTreeSet<InodeNo> = told.filter(|directory| self.is_reached(*directory)).collect();
        for directory in &reached {
            self.each_name(*directory, |_, entry| {
                if let Some(file) = renames.get_mut(&entry.inode.0) {
                    file.take(marks, *directory, entry.name);
                }
            })?;
        }
        let mut gone: BTreeMap<InodeNo, BTreeSet<(InodeNo, Vec<u8>)>> = BTreeMap::new();
        for (ino, file) in renames {
            let (ino, Renaming { from, to, .. }) = (InodeNo(ino), file.renaming());
            if let Some(name) = file.old_name() {
                if self.log.found(Issue::RenameInterrupted { inode: ino, directory: from, name: text(name) }) {
                    gone.entry(from).or_default().insert((ino, name.to_vec()));
                }
            } else if self.was_reconnected(from) || self.was_reconnected(to) {
                // The next sweep would find the directory in lost+found.
                self.change_inode(ino, |inode| inode.renaming = None)?;
            }
        }
        gone.iter().try_for_each(|(directory, names)| self.remove_old_names(*directory, names))
    }

    /// Returns true if the root led to a directory before this sweep.
    fn is_reached(&self, directory: InodeNo) -> bool {
        self.way_up(directory).any(|at| at == InodeNo::ROOT) && !self.was_reconnected(directory)
    }

    /// Returns true if a directory, or one above it, got a name in lost+found in this sweep.
    fn was_reconnected(&self, directory: InodeNo) -> bool {
        self.way_up(directory).any(|at| self.reconnected.contains(&at))
    }

    /// Returns a directory and those above it. A circle ends somewhere.
    fn way_up(&self, directory: InodeNo) -> impl Iterator<Item = InodeNo> + '_ {
        let above = |at: &InodeNo| self.dirs.get(&at.0)?.parent.filter(|_| *at != InodeNo::ROOT);
        std::iter::successors(Some(directory), above).take(self.dirs.len() + 1)
    }

    /// Calls `each` with every entry of a directory but `.` and `..`, and the block that it is in.
    pub(super) fn each_name(
        &self,
        directory: InodeNo,
        mut each: impl FnMut((u64, BlockNo), dir::DirEntry<'_>),
    ) -> Result<(), CheckError> {
        for block in self.dirs.get(&directory.0).map(|info| info.blocks.clone()).unwrap_or_default() {
            let page = self.volume.read(block.1)?;
            let used = dir::records(&page, Form::of(&self.geo)).map_while(Result::ok).filter(dir::DirEntry::is_used);
            used.filter(|entry| !matches!(entry.name, b"." | b"..")).for_each(|entry| each(block, entry));
        }
        Ok(())
    }

    /// Removes old names from a directory, and a link and the note of each file.
    fn remove_old_names(&mut self, directory: InodeNo, names: &BTreeSet<(InodeNo, Vec<u8>)>) -> Result<(), CheckError> {
        let mut places = Vec::new();
        self.each_name(directory, |block, entry| {
            if names.contains(&(entry.inode, entry.name.to_vec())) {
                places.push((block, entry.offset));
            }
        })?;
        for (block, offset) in places {
            self.change_dir_block(directory, block, |bytes| put_u32(bytes, offset, 0))?;
        }
        for (ino, _) in names {
            self.change_inode(*ino, |inode| {
                inode.renaming = None;
                inode.links -= 1;
            })?;
            let state = self.state_mut(*ino);
            (state.links, state.found) = (state.links - 1, state.found - 1);
        }
        Ok(())
    }
}
