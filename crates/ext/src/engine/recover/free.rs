//! Returning leaks: inodes without names, links too many, blocks that no inode owns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::format::Progress;
use moafs_vfs::types::{FileKind, Name};
use moafs_vfs::{Error, Result};

use super::state::Pass;
use crate::engine::incore::Incore;
use crate::engine::incore::Life;
use crate::engine::volume::Ext;
use crate::format::{GroupNo, InodeNo, Place, Structure, bitmap};
use crate::health::damaged;
use crate::meta::{Freed, Level};

impl Ext {
    // -- inodes without names

    /// Returns the inodes of a group that no name led to at mount: directories, or all others.
    fn nameless(&self, group: GroupNo, directories: bool) -> Result<Vec<u32>> {
        let in_use = self.alloc.unchanged_inodes(group)?;
        let known = self.recovery.known.lock();
        let nameless = |ino: &InodeNo| {
            let here = *ino != InodeNo::ROOT && !self.is_reserved(*ino);
            here && known.has_facts(ino.0) && !known.is_named(ino.0) && known.is_directory(ino.0) == directories
        };
        let indices = (0..self.geo.inodes_per_group).filter(|index| bitmap::test(&in_use, *index));
        Ok(indices.map(|index| self.geo.inode_at(group, index)).filter(nameless).map(|ino| ino.0).collect())
    }

    /// Frees directories without a name, parents before children: a name never leads to an inode
    /// that is gone.
    pub(super) fn free_nameless_directories(&self, pass: &mut Pass) -> Result<()> {
        let mut left: BTreeSet<u32> = BTreeSet::new();
        for group in self.geo.all_groups() {
            left.extend(self.nameless(group, true)?);
        }
        let dot_dot = Name::new(b"..").expect("a legal name");
        let mut gone: BTreeMap<u32, Level> = BTreeMap::new();
        let mut kept: BTreeSet<u32> = BTreeSet::new();
        while let Some(&start) = left.first() {
            // Climb to the topmost of them; each is looked at once, so circles end.
            let mut way = Vec::new();
            let mut at = start;
            while left.remove(&at) {
                let Some(node) = self.in_use(InodeNo(at))? else { break };
                let parent = self.find_name(&node, dot_dot)?;
                way.push(at);
                at = parent.map_or(0, |found| found.ino.0);
            }
            let mut above = (!kept.contains(&at)).then(|| gone.get(&at).copied().unwrap_or_default());
            for ino in way.into_iter().rev() {
                above = match above {
                    Some(needs) => self.free_nameless(InodeNo(ino), needs)?,
                    None => None,
                };
                match above {
                    Some(level) => drop(gone.insert(ino, level)),
                    None => drop(kept.insert(ino)),
                }
            }
        }
        pass.kept = !kept.is_empty();
        self.recovery.known.lock().incomplete |= pass.kept;
        pass.unnamed = gone.into_values().max().unwrap_or_default();
        Ok(())
    }

    /// Frees a group's other inodes without a name.
    pub(super) fn free_nameless_files(&self, group: GroupNo, pass: &mut Pass) -> Result<()> {
        for ino in self.nameless(group, false)? {
            // A directory that had to stay may name it.
            if pass.kept || self.free_nameless(InodeNo(ino), pass.unnamed)?.is_none() {
                self.recovery.known.lock().incomplete = true;
            }
        }
        Ok(())
    }

    pub(super) fn in_use(&self, ino: InodeNo) -> Result<Option<Arc<Incore>>> {
        match self.incore(ino) {
            Ok(node) => Ok(Some(node)),
            Err(Error::Stale(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees an inode that is sound but has no name: made, but not named before the power went.
    /// Returns the level of the deletion; `None` if it must stay, because a caller reached it by
    /// its number and holds it or has changed it.
    fn free_nameless(&self, ino: InodeNo, needs: Level) -> Result<Option<Level>> {
        let _turn = self.recovery.turn(ino);
        let Some(node) = self.in_use(ino)? else { return Ok(Some(needs)) };
        if self.recovery.known.lock().is_touched(ino.0) {
            return Ok(None);
        }
        if !self.registry.condemn(&node) && !self.recovery.closing.load(Ordering::Acquire) {
            return Ok(None);
        }
        let file_acl = node.state.lock().inode.file_acl;
        if file_acl != 0 && !self.recovery.known.lock().is_mapped(ino.0) {
            self.note_attribute_block(ino, file_acl)?;
        }
        self.recovery.note_new(ino);
        self.delete(&node, needs).map(Some)
    }

    /// Marks an inode as deleted, after `needs`, and frees its blocks. Returns the level of the
    /// deletion.
    fn delete(&self, node: &Arc<Incore>, needs: Level) -> Result<Level> {
        self.check_deletable(node)?;
        let table = self.table_block(&node.at)?;
        let level = {
            let mut state = node.state.lock();
            state.inode.links = 0;
            state.inode.dtime = self.rt.timestamp().secs.clamp(1, u32::MAX.into()) as u32;
            let level = self.write_slot(&table, node, &mut state, needs, |_, _| {});
            state.life = Life::Orphan(level);
            level
        };
        while self.clear_pointers_of(node)? == Progress::More {}
        let file_acl = node.state.lock().inode.file_acl;
        if file_acl != 0 {
            self.release_xattr_block(node, file_acl, level)?;
        }
        self.drop_index(node);
        self.registry.remove(node);
        self.alloc.free(level, Freed::Inode { ino: node.ino.0, directory: node.kind == FileKind::Directory })?;
        Ok(level)
    }

    /// Returns damage if an inode must not be deleted, whatever its link count is: every deletion
    /// calls this.
    pub(in crate::engine) fn check_deletable(&self, node: &Incore) -> Result<()> {
        if node.ino != InodeNo::ROOT && !self.is_reserved(node.ino) {
            return Ok(());
        }
        let place = Place::new(Structure::Inode(node.ino), node.at.block);
        self.health.watch(Err(damaged(place.damage("its link count has come to nothing, but it cannot be deleted"))))
    }

    // -- links too many

    /// Subtracts the links that an inode had too many when it was mounted. The volume is not in use any more.
    pub(super) fn lower_links(&self, ino: InodeNo, excess: u16) -> Result<()> {
        let Some(node) = self.in_use(ino)? else { return Ok(()) };
        let least = if node.kind == FileKind::Directory { 2 } else { 0 };
        let left = {
            let mut state = node.state.lock();
            let left = state.inode.links.checked_sub(excess).filter(|left| *left >= least);
            state.inode.links = left.unwrap_or(state.inode.links);
            left
        };
        match left {
            Some(0) => self.delete(&node, Level::NONE).map(drop),
            Some(_) => self.store(&node).map(drop),
            None => {
                let what = format!("{excess} of its links are too many, but it has not as many");
                let place = Place::new(Structure::Inode(ino), node.at.block);
                self.health.watch(Err(damaged(place.damage(what))))
            }
        }
    }

    // -- references to attribute blocks

    /// Corrects some of the wrong numbers of references, after all inodes were looked at. False if there were none.
    pub(super) fn correct_some_references(&self) -> Result<bool> {
        let blocks = self.recovery.known.lock().references.end_counting();
        blocks.iter().try_for_each(|block| self.correct_xattr_references(*block))?;
        Ok(!blocks.is_empty())
    }

    // -- blocks without an owner

    /// Frees the blocks of a group that were in use at mount, that no inode owned then, and that
    /// were neither handed out nor freed since.
    pub(super) fn free_unowned(&self, group: GroupNo) -> Result<()> {
        let owned = self.recovery.known.lock().take_owned(group);
        let start = self.geo.group_start(group).0;
        let mut leaked = self.alloc.unchanged_in_use(group)?;
        leaked.iter_mut().zip(&owned).for_each(|(leaked, owned)| *leaked &= !owned);
        let bits = self.geo.group_blocks(group);
        for bit in (0..bits).filter(|bit| bitmap::test(&leaked, *bit)) {
            let block = start + u64::from(bit);
            if !self.alloc.is_fixed(block, 1) {
                self.alloc.free(Level::NONE, Freed::Data { start: block, len: 1 })?;
            }
        }
        Ok(())
    }
}
