//! Directory indexes on the disk (htrees) of volumes with a journal: kept up to date as names are added.
//!
//! The index says in which block a name lies; look-ups go by the index in memory, as they do in directories without
//! one. Removals leave the index alone. A leaf without room for a new name is cut in two, a node without room for a new
//! entry likewise, and a full root gets a level below it. All of that is in the transaction of the op that adds the
//! name. A directory that outgrows its first block gets an index.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_vfs::types::Cookie;
use moafs_vfs::{Error, Result};

use super::dir::{IndexReader, MetaBlock, take_out};
use super::incore::Incore;
use super::names::{FormerPlaces, Found, Index};
use super::volume::Ext;
use crate::format::dir::{self as codec, Entries};
use crate::format::htree::edit::{self, Named, Way, WayNode};
use crate::format::htree::{self, Hasher, IndexEntry};
use crate::format::inode::InodeFlags;
use crate::format::superblock::Compat;
use crate::health::damaged;
use crate::meta::{Block, Level};

impl Ext {
    /// Returns the way to the leaf for a name; `None` if the index is damaged: the names themselves are the truth.
    ///
    /// # Errors
    /// If a node of the index cannot be read: it may be whole, so the directory keeps its index.
    pub(super) fn way_to(&self, dir: &Incore, index: &Index, name: &[u8]) -> Result<Option<Way>> {
        let superblock = self.superblock.lock().clone();
        let mut reader = IndexReader { ext: self, dir, blocks: index.blocks() };
        let way = match edit::way(&mut reader, name, &superblock).map_err(Error::from) {
            Ok(way) => way,
            Err(Error::Damaged { .. }) => return Ok(None),
            Err(error) => return self.health.watch(Err(error)),
        };
        let is_leaf = way.steps.iter().all(|step| step.lbn != way.leaf);
        Ok((is_leaf && (way.leaf as usize) < index.blocks().len()).then_some(way))
    }

    /// Makes room for a name in the leaf that a way leads to, or for an index entry in a node of the way: one of the
    /// steps that a name may take. Returns false if that cannot be done.
    pub(super) fn make_room_for_name(
        &self,
        dir: &Incore,
        index: &mut Index,
        way: &Way,
        name: &[u8],
        meta_block: &mut MetaBlock<'_>,
    ) -> Result<bool> {
        let is_full = |at: usize| way.steps[at].entries.len() >= self.index_limit(at == 0);
        let lowest = way.steps.len() - 1;
        let leaf = way.leaf as usize;
        let names = self.leaf_names(dir, index, leaf, &way.hasher)?;
        if self.fits_packed(&names, name) {
            // There is room, but not in one piece.
            self.pack_leaf(dir, index, leaf, &names, leaf)?;
            return Ok(true);
        }
        if !is_full(lowest) {
            return self.cut_leaf(dir, index, way, &names, meta_block);
        }
        // The lowest full node whose parent has room is cut.
        match (1..=lowest).rev().find(|at| !is_full(at - 1)) {
            Some(at) => self.cut_node(dir, index, way, at, meta_block),
            None => self.deepen(dir, index, way, meta_block),
        }
    }

    fn index_limit(&self, is_root: bool) -> usize {
        htree::limit(self.geo.block_bytes(), self.form, is_root)
    }

    fn leaf_names(&self, dir: &Incore, index: &Index, lbn: usize, hasher: &Hasher) -> Result<Vec<Named>> {
        let block = self.names_to_change(dir, index, lbn)?;
        let place = self.dir_place(dir, lbn, block.no);
        let names = |bytes: &[u8]| Entries::check(bytes, self.form, place).map(|all| edit::names_by_hash(all, hasher));
        block.view(names).map_err(damaged)
    }

    /// Returns true if a leaf with these names has room for one more, in one piece or in several.
    fn fits_packed(&self, names: &[Named], name: &[u8]) -> bool {
        let used: usize = names.iter().map(Named::bytes).sum();
        used + codec::record_bytes(name.len()) <= self.form.room(self.geo.block_bytes())
    }

    /// Moves the upper half of a leaf's names to a new leaf.
    fn cut_leaf(
        &self,
        dir: &Incore,
        index: &mut Index,
        way: &Way,
        names: &[Named],
        meta_block: &mut MetaBlock<'_>,
    ) -> Result<bool> {
        let leaf = way.leaf as usize;
        if names.len() < 2 {
            return Ok(false);
        }
        let lowest = &way.steps[way.steps.len() - 1];
        let lower = self.node_to_change(dir, index, lowest)?;
        let old = self.names_to_change(dir, index, leaf)?;
        let new = self.grow(dir, index, meta_block)?;
        let middle = edit::middle(names);
        self.pack_leaf(dir, index, leaf, &names[middle..], new)?;
        // The others keep their places: a program may be listing the directory.
        self.meta.change(&old, 0..self.geo.block_bytes(), Level::NONE, |bytes| {
            for moved in &names[middle..] {
                take_out(bytes, self.form, moved.offset, moved.name.len());
            }
        });
        let entries = with_entry(lowest, edit::entry_at(names, middle, new as u32));
        self.put_node(&lower, lowest.lbn, way, &entries);
        Ok(true)
    }

    /// Puts names of the block `from` alone into the block `to`, and has the index in memory find them there.
    fn pack_leaf(&self, dir: &Incore, index: &mut Index, from: usize, names: &[Named], to: usize) -> Result<()> {
        let block = self.names_to_change(dir, index, to)?;
        self.meta.change(&block, 0..self.geo.block_bytes(), Level::NONE, |bytes| {
            codec::pack(bytes, self.form, names.iter().map(|named| (named.inode, named.type_byte, &*named.name)));
        });
        for named in names {
            index.drop_name(&named.name, Found::at(named.inode, from, named.offset));
        }
        let mut offset = 0;
        for named in names {
            index.add(&named.name, to as u32, offset);
            offset += named.bytes() as u32;
        }
        self.charge(index);
        Ok(())
    }

    /// Moves the upper half of a node's entries to a new node beside it.
    fn cut_node(
        &self,
        dir: &Incore,
        index: &mut Index,
        way: &Way,
        at: usize,
        meta_block: &mut MetaBlock<'_>,
    ) -> Result<bool> {
        let (parent, full) = (&way.steps[at - 1], &way.steps[at]);
        let (above, old) = (self.node_to_change(dir, index, parent)?, self.node_to_change(dir, index, full)?);
        let new = self.grow(dir, index, meta_block)?;
        let beside = self.names_to_change(dir, index, new)?;
        let (lower, upper) = full.entries.split_at(full.entries.len() / 2);
        self.put_node(&beside, new as u32, way, upper);
        self.put_node(&old, full.lbn, way, lower);
        let entries = with_entry(parent, IndexEntry { hash: upper[0].hash, block: new as u32 });
        self.put_node(&above, parent.lbn, way, &entries);
        Ok(true)
    }

    /// Moves the root's entries to a new node below it.
    fn deepen(&self, dir: &Incore, index: &mut Index, way: &Way, meta_block: &mut MetaBlock<'_>) -> Result<bool> {
        if way.steps.len() > usize::from(edit::levels_max(&self.superblock.lock())) {
            return Ok(false);
        }
        let root = self.node_to_change(dir, index, &way.steps[0])?;
        let new = self.grow(dir, index, meta_block)?;
        let below = self.names_to_change(dir, index, new)?;
        self.put_node(&below, new as u32, way, &way.steps[0].entries);
        let only = [IndexEntry { hash: 0, block: new as u32 }];
        self.meta.change(&root, 0..self.geo.block_bytes(), Level::NONE, |bytes| {
            edit::put_root(bytes, self.form, way.hash_version, way.steps.len() as u8, &only);
        });
        Ok(true)
    }

    fn node_to_change(&self, dir: &Incore, index: &Index, step: &WayNode) -> Result<Arc<Block>> {
        self.names_to_change(dir, index, step.lbn as usize)
    }

    fn put_node(&self, block: &Arc<Block>, lbn: u32, way: &Way, entries: &[IndexEntry]) {
        let levels = (way.steps.len() - 1) as u8;
        self.meta.change(block, 0..self.geo.block_bytes(), Level::NONE, |bytes| match lbn {
            0 => edit::put_root(bytes, self.form, way.hash_version, levels, entries),
            _ => edit::put_node(bytes, self.form, entries),
        });
    }

    /// Gives a directory that has one block, which is full, an index. Returns false if it is to have none.
    pub(super) fn make_index(&self, dir: &Incore, index: &mut Index, meta_block: &mut MetaBlock<'_>) -> Result<bool> {
        let (version, hasher) = {
            let superblock = self.superblock.lock();
            // Until a driver has decided whether characters are signed there are no hashes.
            let decided = superblock.flags() & 3 != 0 && superblock.compat().contains(Compat::DIR_INDEX);
            let hasher = Hasher::of(superblock.def_hash_version(), &superblock);
            let Some(hasher) = hasher.filter(|_| decided && superblock.def_hash_version() <= 2) else {
                return Ok(false);
            };
            (superblock.def_hash_version(), hasher)
        };
        let is_candidate = self.meta.has_journal() && index.blocks().len() == 1 && !index.folds();
        if !is_candidate || !self.begins_with_dots(dir, index)? {
            return Ok(false);
        }
        let names = self.leaf_names(dir, index, 0, &hasher)?;
        let root = self.names_to_change(dir, index, 0)?;
        let leaf = self.grow(dir, index, meta_block)?;
        index.former = index.is_listed.load(Ordering::Relaxed).then(|| former_places(&names));
        self.pack_leaf(dir, index, 0, &names, leaf)?;
        let only = [IndexEntry { hash: 0, block: leaf as u32 }];
        self.meta.change(&root, 0..self.geo.block_bytes(), Level::NONE, |bytes| {
            edit::put_root(bytes, self.form, version, 0, &only);
        });
        dir.state.lock().inode.flags.insert(InodeFlags::INDEX);
        self.store(dir)?;
        Ok(true)
    }

    /// Returns true if `.` and `..` are where the root of an index has them.
    fn begins_with_dots(&self, dir: &Incore, index: &Index) -> Result<bool> {
        let block = self.names_to_change(dir, index, 0)?;
        let is_it = |entry: Option<codec::DirEntry<'_>>, offset: usize, name: &[u8]| {
            entry.is_some_and(|entry| entry.is_used() && entry.offset == offset && entry.name == name)
        };
        Ok(block.view(|bytes| {
            let mut entries = codec::records(bytes, self.form).map_while(std::result::Result::ok);
            is_it(entries.next(), 0, b".") && is_it(entries.next(), 12, b"..")
        }))
    }
}

/// Returns the names of a directory's first block, `.` and `..` among them, in the order of their places.
fn former_places(names: &[Named]) -> FormerPlaces {
    let dots = [(0, &b"."[..]), (12, b"..")];
    let mut places: Vec<(usize, &[u8])> = dots.into_iter().chain(names.iter().map(|n| (n.offset, &*n.name))).collect();
    places.sort_unstable();
    places.into_iter().map(|(at, name)| (Cookie(at as u64), name.into())).collect()
}

/// Returns a node's entries with one more, behind the one that the way goes through.
fn with_entry(step: &WayNode, entry: IndexEntry) -> Vec<IndexEntry> {
    let mut entries = step.entries.clone();
    entries.insert(step.at + 1, entry);
    entries
}
