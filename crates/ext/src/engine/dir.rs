//! Directories of a mounted volume: an index in memory over linear blocks.
//!
//! The index is built when a caller first looks up a name, and charged to the memory budget. The
//! format on the disk stays the same: changes obey the 512-byte rule ([`crate::format::dir`]), one
//! record per sector. Where another driver left an htree, an insertion goes into the leaf that its
//! hash names; when that leaf is full the index flag is cleared (durably first) and the directory
//! is linear from then on, since a cut cannot be ordered without a journal. With one the htree is kept
//! up to date: [`super::dirindex`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hashbrown::HashTable;
use moafs_disk::{Buf, Kind, SECTOR};
use moafs_runtime::lock::{ReadGuard, WriteGuard};
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Lbn, LbnRange, Mapping, Name};
use moafs_vfs::{Error, Result};

use super::incore::Incore;
use super::names::{Found, Index, Slot, spread};
use super::volume::Ext;
use crate::format::casefold::fold;
use crate::format::dir::{self as codec, Entries, Form};
use crate::format::fnv::hash_of;
use crate::format::inode::InodeFlags;
use crate::format::{BlockNo, Damage, InodeNo, Place, Sealed, Structure, htree, inline};
use crate::health::damaged;
use crate::meta::{Block, Freed, Level, Use};

/// Allocates a block for a directory or its map.
pub(super) type MetaBlock<'a> = dyn FnMut() -> Result<(u64, Level)> + 'a;

/// Takes the names in one block of a directory, and the numbers of their inodes.
pub(super) type EachBlock<'a> = dyn FnMut(&[(Vec<u8>, u32)]) -> Result<()> + 'a;

impl Ext {
    pub(super) fn dir_place(&self, dir: &Incore, lbn: usize, block: u64) -> Place {
        Place::new(Structure::Directory { inode: dir.ino, lbn: lbn as u64 }, BlockNo(block))
    }

    fn not_a_directory(&self, dir: &Incore) -> Result<()> {
        if dir.kind == FileKind::Directory { Ok(()) } else { Err(Error::Posix(libc::ENOTDIR)) }
    }

    /// Returns the directory's index for reading; builds it if needed.
    pub(super) fn index<'a>(&self, dir: &'a Incore) -> Result<ReadGuard<'a, Option<Index>>> {
        self.not_a_directory(dir)?;
        loop {
            let guard = dir.index.read();
            if guard.is_some() {
                return Ok(guard);
            }
            drop(guard);
            self.index_mut(dir)?;
        }
    }

    /// Returns the directory's index for changing; builds it if needed.
    fn index_mut<'a>(&self, dir: &'a Incore) -> Result<WriteGuard<'a, Option<Index>>> {
        self.not_a_directory(dir)?;
        let mut guard = dir.index.write();
        if guard.is_none() {
            let mut index = self.health.watch(self.build_index(dir))?;
            self.charge(&mut index);
            *guard = Some(index);
        }
        Ok(guard)
    }

    fn build_index(&self, dir: &Incore) -> Result<Index> {
        let flags = dir.inode().flags;
        let inline = self.inline_names(dir)?;
        let blocks = if inline.is_some() { Vec::new() } else { self.dir_blocks(dir)? };
        let mut index = Index {
            slots: HashTable::new(),
            room: vec![u8::MAX; blocks.len()],
            blocks: Vec::new(),
            inline: None,
            is_listed: AtomicBool::new(false),
            former: None,
            folds: flags.contains(InodeFlags::CASEFOLD),
            cursor: 0,
            names: 0,
            charged: 0,
        };
        self.each_block_of_entries(dir, &blocks, inline.as_deref(), &mut |lbn, entries| {
            entries.used().for_each(|entry| index.add(entry.name, lbn as u32, entry.offset as u32));
            Ok(())
        })?;
        (index.blocks, index.inline) = (blocks, inline);
        Ok(index)
    }

    /// Calls `each` with the number and the entries of each of a directory's blocks.
    fn each_block_of_entries(
        &self,
        dir: &Incore,
        blocks: &[u64],
        inline: Option<&[u8]>,
        each: &mut dyn FnMut(usize, &Entries<'_>) -> Result<()>,
    ) -> Result<()> {
        for lbn in 0..count_name_blocks(blocks, inline) {
            let bytes = self.names_at(dir, blocks, inline, lbn)?;
            let entries = Entries::check(&bytes, self.form, self.names_place(dir, blocks, lbn));
            each(lbn, &entries.map_err(damaged)?)?;
        }
        Ok(())
    }

    /// Returns the bytes of a directory's block, with its checksum verified, and reads what follows it on the volume
    /// with it; or those that stand for names inside the inode.
    fn names_at(&self, dir: &Incore, blocks: &[u64], inline: Option<&[u8]>, lbn: usize) -> Result<Vec<u8>> {
        if let Some(image) = inline {
            return Ok(image.to_vec());
        }
        let together = blocks[lbn..].iter().zip(blocks[lbn]..).take_while(|(at, want)| **at == *want).count() as u64;
        let block = self.zone_run(blocks[lbn], Kind::Directory, together)?;
        self.verify_names(dir, lbn, &block)?;
        Ok(block.view(<[u8]>::to_vec))
    }

    /// Returns the place of a directory's block for messages.
    pub(super) fn names_place(&self, dir: &Incore, blocks: &[u64], lbn: usize) -> Place {
        match blocks.get(lbn) {
            Some(no) => self.dir_place(dir, lbn, *no),
            None => Place::new(Structure::InlineData(dir.ino), dir.at.block),
        }
    }

    /// Compares a directory block with its checksum.
    fn verify_names(&self, dir: &Incore, lbn: usize, block: &Block) -> Result<()> {
        if !self.geo.checksums.cover_all() {
            return Ok(());
        }
        let (owner, indexed) = {
            let state = dir.state.lock();
            (state.inode.owner(dir.ino), state.inode.flags.contains(InodeFlags::INDEX))
        };
        let sums = &self.geo.checksums;
        let verified = block.verify(Use::directory(dir.ino), |bytes| {
            let what = codec::sealed(bytes, lbn as u64, indexed, owner);
            sums.verify(what, bytes).map_err(|problem| self.dir_place(dir, lbn, block.no).damage(problem))
        });
        verified.map_err(damaged)
    }

    /// Returns the names of a directory that lies inside its inode, as one block; `None` of other directories.
    fn inline_names(&self, dir: &Incore) -> Result<Option<Vec<u8>>> {
        let inode = dir.inode();
        if inode.flags.contains(InodeFlags::ENCRYPT) {
            return Err(Error::Posix(libc::ENOKEY));
        }
        if !inode.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(None);
        }
        let table = self.table_block(&dir.at)?;
        let slot = self.slot_bytes(&table, &dir.at);
        inline::directory(&inode, dir.ino, &slot, dir.at.block, &self.geo).map(Some).map_err(damaged)
    }

    /// Returns the address of each block of a directory. A directory has no holes, and no block twice.
    fn dir_blocks(&self, dir: &Incore) -> Result<Vec<u64>> {
        let count = dir.inode().size / u64::from(self.geo.block_size);
        let mut blocks = Vec::new();
        let mut seen = BTreeSet::new();
        while (blocks.len() as u64) < count {
            let lbn = blocks.len() as u64;
            let Mapping::Run(run) = self.map_run(dir, Lbn(lbn), (count - lbn).min(1 << 16) as u32)? else {
                let place = self.dir_place(dir, lbn as usize, 0);
                return Err(damaged(Place::of(place.structure).damage("it is a hole; directories have none")));
            };
            for no in run.start.0..run.end().0 {
                if !seen.insert(no) {
                    return Err(damaged(
                        self.dir_place(dir, blocks.len(), no).damage("the directory has this block twice"),
                    ));
                }
                blocks.push(no);
            }
        }
        Ok(blocks)
    }

    pub(super) fn find_slot(&self, dir: &Incore, index: &Index, name: &[u8]) -> Result<Option<Found>> {
        let folded = index.folds.then(|| fold(name));
        let hash = hash_of(folded.as_deref().unwrap_or(name));
        // Candidates are collected first: reading a block may wait, and may fail.
        let mut candidates: smallvec::SmallVec<[Slot; 2]> = smallvec::SmallVec::new();
        candidates.extend(index.slots.iter_hash(spread(hash)).filter(|slot| slot.hash == hash).copied());
        let is_it = |stored: &[u8]| match &folded {
            Some(folded) => fold(stored) == *folded,
            None => stored == name,
        };
        for slot in candidates {
            let found = match &index.inline {
                Some(image) => entry_at(image, slot.offset as usize, is_it),
                None => {
                    let block = self.meta.get(index.blocks[slot.lbn as usize], Kind::Directory)?;
                    self.verify_names(dir, slot.lbn as usize, &block)?;
                    block.view(|bytes| entry_at(bytes, slot.offset as usize, is_it))
                }
            };
            if let Some((ino, type_byte)) = found {
                let kind = if self.form.filetype { crate::format::inode::kind_of_entry_type(type_byte) } else { None };
                return Ok(Some(Found { ino, kind, lbn: slot.lbn, offset: slot.offset }));
            }
        }
        Ok(None)
    }

    /// Looks up a name.
    pub(super) fn find_name(&self, dir: &Incore, name: &Name) -> Result<Option<Found>> {
        let guard = self.index(dir)?;
        let index = guard.as_ref().expect("index() builds it");
        self.find_slot(dir, index, name.as_bytes())
    }

    /// Returns the bytes of one block of a directory, with its checksum verified.
    pub(super) fn names_block(&self, dir: &Incore, blocks: &[u64], lbn: usize) -> Result<Vec<u8>> {
        let block = self.meta.get(blocks[lbn], Kind::Directory)?;
        self.verify_names(dir, lbn, &block)?;
        Ok(block.view(<[u8]>::to_vec))
    }

    /// Calls `each` with the names in each block of a directory and the numbers of their inodes.
    /// Builds no index.
    pub(super) fn each_block_of_names(&self, dir: &Incore, each: &mut EachBlock<'_>) -> Result<()> {
        self.not_a_directory(dir)?;
        let inline = self.inline_names(dir)?;
        let blocks = if inline.is_some() { Vec::new() } else { self.dir_blocks(dir)? };
        self.each_block_of_entries(dir, &blocks, inline.as_deref(), &mut |_, entries| {
            let names: Vec<(Vec<u8>, u32)> = entries.used().map(|e| (e.name.to_vec(), e.inode.0)).collect();
            each(&names)
        })
    }

    // -- changing

    /// Charges the growth of an index to the memory budget.
    pub(super) fn charge(&self, index: &mut Index) {
        let now = index.memory() as u64;
        self.registry.charge_index(now.saturating_sub(index.charged));
        index.charged = index.charged.max(now);
    }

    /// Adds a name; it reaches the disk after `needs`, and after the removal of the same name. Returns the level at
    /// which it is there.
    pub(super) fn insert_name(
        &self,
        dir: &Incore,
        name: &Name,
        ino: InodeNo,
        kind: FileKind,
        needs: Level,
        meta_block: &mut MetaBlock<'_>,
    ) -> Result<Level> {
        debug_assert!(self.recovery.names_may_change(dir.ino), "directory {} changes unseen", dir.ino.0);
        let mut guard = self.index_mut(dir)?;
        let index = guard.as_mut().expect("index_mut() builds it");
        let bytes = name.as_bytes();
        let mut needs = needs.max(dir.state.lock().removals.level(bytes));
        if dir.state.lock().inode.flags.contains(InodeFlags::INDEX) {
            if let Some(level) = self.insert_indexed(dir, index, bytes, ino, kind, needs, meta_block)? {
                return Ok(level);
            }
            needs = needs.max(self.make_linear(dir, index)?);
        }
        let count = index.blocks.len();
        let wanted = bytes.len() as u8;
        let mut lbn = (index.cursor..count).find(|lbn| index.room[*lbn] >= wanted);
        while let Some(at) = lbn {
            if let Some(level) = self.try_insert(dir, index, at, bytes, ino, kind, needs)? {
                index.cursor = at;
                return Ok(level);
            }
            index.room[at] = wanted - 1;
            lbn = (at + 1..count).find(|lbn| index.room[*lbn] >= wanted);
        }
        if self.make_index(dir, index, meta_block)?
            && let Some(level) = self.insert_indexed(dir, index, bytes, ino, kind, needs, meta_block)?
        {
            return Ok(level);
        }
        let at = self.grow(dir, index, meta_block)?;
        index.cursor = at;
        let level = self.try_insert(dir, index, at, bytes, ino, kind, needs)?;
        Ok(level.expect("an empty block has room for any name"))
    }

    /// Returns true if a block of a directory has room for a name where [`Self::insert_name`] puts it.
    pub(super) fn fits_name(&self, dir: &Incore, name: &Name) -> Result<bool> {
        let guard = self.index(dir)?;
        let index = guard.as_ref().expect("index() builds it");
        let name = name.as_bytes();
        let fits = |lbn: usize| {
            let mut after = self.names_to_change(dir, index, lbn)?.view(<[u8]>::to_vec);
            Ok::<bool, Error>(codec::insert(&mut after, self.form, name, dir.ino, FileKind::Regular).is_some())
        };
        if dir.state.lock().inode.flags.contains(InodeFlags::INDEX) {
            return self.way_to(dir, index, name)?.map_or(Ok(false), |way| fits(way.leaf as usize));
        }
        for lbn in index.cursor..index.blocks.len() {
            if usize::from(index.room[lbn]) >= name.len() && fits(lbn)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Inserts into the leaf that the index on the disk names; `None` if it has no room, and none can be made.
    #[allow(clippy::too_many_arguments)]
    fn insert_indexed(
        &self,
        dir: &Incore,
        index: &mut Index,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        needs: Level,
        meta_block: &mut MetaBlock<'_>,
    ) -> Result<Option<Level>> {
        loop {
            let Some(way) = self.way_to(dir, index, name)? else { return Ok(None) };
            if let Some(level) = self.try_insert(dir, index, way.leaf as usize, name, ino, kind, needs)? {
                return Ok(Some(level.max(self.slot_pending(dir)?)));
            }
            // A cut cannot be ordered without a journal.
            if !self.meta.has_journal() || !self.make_room_for_name(dir, index, &way, name, meta_block)? {
                return Ok(None);
            }
        }
    }

    /// Gives up a directory's index on the disk. Its blocks become blocks with entries where those have a tail, which
    /// blocks of an index lack. All of them are read before the first is changed, so that an error leaves the directory
    /// as it is. Returns the level at which the directory is linear.
    pub(super) fn make_linear(&self, dir: &Incore, index: &mut Index) -> Result<Level> {
        let _slot = self.table_block(&dir.at)?;
        for LinearBlock { lbn, block, image } in self.linear_blocks(dir, index)? {
            self.meta.change(&block, 0..image.len(), Level::NONE, |bytes| bytes.copy_from_slice(&image));
            index.room[lbn] = u8::MAX;
        }
        index.cursor = 0;
        dir.state.lock().inode.flags.remove(InodeFlags::INDEX);
        self.store(dir)
    }

    /// Returns the blocks that change when a directory gives up its index.
    fn linear_blocks(&self, dir: &Incore, index: &Index) -> Result<Vec<LinearBlock>> {
        let mut changed = Vec::new();
        let lbns = if self.form.has_tail { 0..index.blocks.len() } else { 0..0 };
        for lbn in lbns {
            let block = self.names_to_change(dir, index, lbn)?;
            let mut image = block.view(<[u8]>::to_vec);
            match codec::sealed(&image, lbn as u64, true, dir.owner()) {
                Sealed::IndexRoot(_) => {
                    let parent = codec::records(&image, self.form).nth(1).and_then(std::result::Result::ok);
                    let parent = parent.map_or(dir.ino, |entry| entry.inode);
                    codec::format_first(&mut image, self.form, dir.ino, parent);
                }
                Sealed::IndexNode(_) => codec::format_empty(&mut image, self.form),
                _ => continue,
            }
            changed.push(LinearBlock { lbn, block, image });
        }
        Ok(changed)
    }

    /// Returns a block of a directory that is about to be changed.
    pub(super) fn names_to_change(&self, dir: &Incore, index: &Index, lbn: usize) -> Result<Arc<Block>> {
        let block = self.meta.get(index.blocks[lbn], Kind::Directory)?;
        self.verify_names(dir, lbn, &block)?;
        block.holds(Sealed::Leaf(dir.owner()));
        Ok(block)
    }

    /// Inserts into one block if it has a place.
    #[allow(clippy::too_many_arguments)]
    fn try_insert(
        &self,
        dir: &Incore,
        index: &mut Index,
        lbn: usize,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        needs: Level,
    ) -> Result<Option<Level>> {
        let block = self.names_to_change(dir, index, lbn)?;
        let mut after = block.view(<[u8]>::to_vec);
        let Some(inserted) = codec::insert(&mut after, self.form, name, ino, kind) else { return Ok(None) };
        let level = self.change_names(&block, &after, inserted.changed.start, needs);
        index.add(name, lbn as u32, inserted.offset as u32);
        self.charge(index);
        // The block may be new: the pointer to it, and the size that covers it, may come later than the name.
        Ok(Some(level.max(dir.state.lock().reached)))
    }

    /// Puts what has changed at `at` of `after` into the block as a new version; it reaches the disk after `needs`.
    /// Returns its level.
    fn change_names(&self, block: &Arc<Block>, after: &[u8], at: usize, needs: Level) -> Level {
        let record = record_of(self.form, after, at);
        let new = &after[record.clone()];
        self.meta.change(block, record, needs, |bytes| bytes.copy_from_slice(new))
    }

    /// Appends an empty block to a directory.
    pub(super) fn grow(&self, dir: &Incore, index: &mut Index, meta_block: &mut MetaBlock<'_>) -> Result<usize> {
        let lbn = index.blocks.len();
        let (no, bits) = meta_block()?;
        let mut image = Buf::zeroed(self.geo.block_bytes());
        codec::format_empty(&mut image, self.form);
        let at = LbnRange { start: Lbn(lbn as u64), len: 1 };
        let mapped = self.fresh(no, Kind::Directory, image).and_then(|(block, fresh)| {
            block.holds(Sealed::Leaf(dir.owner()));
            {
                let mut state = dir.state.lock();
                state.needs = state.needs.max(bits).max(fresh);
            }
            self.set_pointers(dir, at, BlockRun { start: BlockAddr(no), len: 1 }, None, |_| meta_block())
        });
        if let Err(error) = mapped {
            self.give_back_unmapped(dir, at.start, no)?;
            return Err(error);
        }
        dir.state.lock().inode.size += u64::from(self.geo.block_size);
        let reached = self.store(dir)?;
        dir.state.lock().reached = reached;
        index.blocks.push(no);
        index.room.push(u8::MAX);
        Ok(lbn)
    }

    /// Frees a block that a directory was to get at `at`, unless its map leads there, or may do so.
    fn give_back_unmapped(&self, dir: &Incore, at: Lbn, no: u64) -> Result<()> {
        match self.map_run(dir, at, 1) {
            Ok(Mapping::Hole { .. }) => self.alloc.free(Level::NONE, Freed::Meta { block: no }),
            _ => Ok(()),
        }
    }

    /// Returns the level at which a name is on the disk as it is now, in a directory that the root leads to.
    pub(super) fn name_level(&self, dir: &Incore, name: &Name) -> Result<Level> {
        let guard = self.index(dir)?;
        let index = guard.as_ref().expect("index() builds it");
        let found = self.find_slot(dir, index, name.as_bytes())?.ok_or(Error::Posix(libc::ENOENT))?;
        let block = self.names_to_change(dir, index, found.lbn as usize)?;
        let record = block.view(|bytes| record_of(self.form, bytes, found.offset as usize));
        let state = dir.state.lock();
        Ok(block.pending(record.start).max(state.reached).max(state.named))
    }

    /// Makes an existing name lead to another inode. Returns the level; `None` if two sectors would change, and the
    /// disk may not show the type of before with the new inode for a while (`apart`).
    #[allow(clippy::too_many_arguments)]
    pub(super) fn point_name(
        &self,
        dir: &Incore,
        name: &Name,
        ino: InodeNo,
        kind: FileKind,
        needs: Level,
        apart: bool,
    ) -> Result<Option<Level>> {
        debug_assert!(self.recovery.names_may_change(dir.ino), "directory {} changes unseen", dir.ino.0);
        let mut guard = self.index_mut(dir)?;
        let index = guard.as_mut().expect("index_mut() builds it");
        let Some(found) = self.find_slot(dir, index, name.as_bytes())? else { return Ok(None) };
        let block = self.names_to_change(dir, index, found.lbn as usize)?;
        let mut after = block.view(<[u8]>::to_vec);
        let changed = codec::point(&mut after, self.form, found.offset as usize, ino, kind).unwrap_or_default();
        if changed.is_empty() || (changed.len() > 1 && !apart) {
            return Ok(None);
        }
        let level = changed.iter().fold(needs, |needs, piece| self.change_names(&block, &after, piece.start, needs));
        Ok(Some(level))
    }

    /// Removes a name, after `needs`. If no change waits for the name to be on disk (`awaited`) and
    /// no image that the disk may show ever had it, there is nothing to wait for: [`Level::NONE`].
    pub(super) fn remove_name(&self, dir: &Arc<Incore>, name: &Name, needs: Level, awaited: bool) -> Result<Level> {
        debug_assert!(self.recovery.names_may_change(dir.ino), "directory {} changes unseen", dir.ino.0);
        let mut guard = self.index_mut(dir)?;
        let index = guard.as_mut().expect("index_mut() builds it");
        let bytes = name.as_bytes();
        let Some(found) = self.find_slot(dir, index, bytes)? else { return Err(Error::Posix(libc::ENOENT)) };
        let no = index.blocks[found.lbn as usize];
        let block = self.names_to_change(dir, index, found.lbn as usize)?;
        let offset = found.offset as usize;
        let mut after = block.view(<[u8]>::to_vec);
        let Some(changed) = take_out(&mut after, self.form, offset, bytes.len()) else {
            let place = self.dir_place(dir, found.lbn as usize, no);
            return self.health.watch(Err(damaged(place.damage(format!("there is no entry at byte {offset}")))));
        };
        let record = record_of(self.form, &after, changed.start);
        let level = if awaited {
            self.change_names(&block, &after, changed.start, needs)
        } else {
            let new = &after[record.clone()];
            let whole = record.contains(&offset) && offset + codec::HEADER_BYTES <= record.end;
            let at = offset.saturating_sub(record.start);
            let visible = |chunk: &[u8]| !whole || may_show(chunk, at, bytes);
            self.meta.remove(&block, record, needs, |bytes| bytes.copy_from_slice(new), visible)
        };
        index.drop_name(bytes, found);
        dir.state.lock().removals.note(bytes, level);
        self.hold(dir, level);
        Ok(level)
    }

    /// Returns true if a directory has only `.` and `..`.
    pub(super) fn has_no_names(&self, dir: &Incore) -> Result<bool> {
        Ok(self.index(dir)?.as_ref().expect("index() builds it").is_empty())
    }

    /// Drops a directory's index (memory pressure).
    pub(super) fn drop_index(&self, dir: &Incore) {
        if let Some(mut guard) = dir.index.try_write()
            && let Some(index) = guard.take()
        {
            self.registry.discharge_index(index.charged);
        }
    }
}

/// Returns the number of blocks that hold a directory's names: one stands for names inside the inode.
pub(super) fn count_name_blocks(blocks: &[u64], inline: Option<&[u8]>) -> usize {
    if inline.is_some() { 1 } else { blocks.len() }
}

/// Returns the inode and type byte of the entry at `offset` if its name is the right one.
fn entry_at(bytes: &[u8], offset: usize, is_it: impl Fn(&[u8]) -> bool) -> Option<(InodeNo, u8)> {
    let header = bytes.get(offset..offset + codec::HEADER_BYTES)?;
    let ino = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let start = offset + codec::HEADER_BYTES;
    let same = bytes.get(start..start + usize::from(header[6])).is_some_and(is_it);
    (ino != 0 && same).then_some((InodeNo(ino), header[7]))
}

/// Returns the bytes of a directory block that change together: the sector that holds byte `at`, or with a journal
/// all of them.
fn record_of(form: Form, block: &[u8], at: usize) -> Range<usize> {
    let start = at / SECTOR * SECTOR;
    if form.is_whole { 0..block.len() } else { start..start + SECTOR }
}

/// Removes the entry at `offset` and wipes its name, as far as it lies in the bytes that change with the entry. Returns
/// the bytes of the headers that changed; `None` if there is no used entry at `offset`.
pub(super) fn take_out(block: &mut [u8], form: Form, offset: usize, name_len: usize) -> Option<Range<usize>> {
    let changed = codec::remove(block, form, offset)?;
    let record = record_of(form, block, changed.start);
    erase(block, offset, name_len, record.end, changed.start == offset);
    Some(changed)
}

/// Wipes the bytes that a removed entry leaves inside its record, so that a block returns to the
/// bytes it had before the name was added. `kept` is true if the record stays as an unused one.
fn erase(block: &mut [u8], offset: usize, name_len: usize, record_end: usize, kept: bool) {
    let end = (offset + codec::record_bytes(name_len)).min(record_end).min(block.len());
    if kept {
        if offset + 6 < end {
            block[offset + 6..end].fill(0);
        }
    } else if offset < end {
        block[offset..end].fill(0);
    }
}

/// Returns true if a version of a sector may show this name at `at`, whichever inode it leads to there: a rename may
/// have made it lead to another one since.
fn may_show(chunk: &[u8], at: usize, name: &[u8]) -> bool {
    let is_used = chunk.get(at..at + 4).is_some_and(|number| number != [0; 4]);
    let shown = chunk.get(at + codec::HEADER_BYTES..).unwrap_or_default();
    let common = shown.len().min(name.len());
    is_used && shown[..common] == name[..common]
}

/// A block of a directory that changes when the directory gives up its index.
struct LinearBlock {
    /// Its number in the directory.
    lbn: usize,
    block: Arc<Block>,
    /// Its new contents.
    image: Vec<u8>,
}

/// Reads a directory's blocks for its htree.
pub(super) struct IndexReader<'a> {
    pub(super) ext: &'a Ext,
    pub(super) dir: &'a Incore,
    pub(super) blocks: &'a [u64],
}

/// An error while reading an htree.
pub(super) struct IndexError(Error);

impl From<IndexError> for Error {
    fn from(error: IndexError) -> Error {
        error.0
    }
}

impl From<Damage> for IndexError {
    fn from(damage: Damage) -> IndexError {
        IndexError(damaged(damage))
    }
}

impl htree::ReadBlock for IndexReader<'_> {
    type Bytes = Vec<u8>;
    type Error = IndexError;

    fn read(&mut self, lbn: u32) -> std::result::Result<(Vec<u8>, Place), IndexError> {
        let structure = Structure::Index { inode: self.dir.ino, lbn: lbn.into() };
        let Some(&no) = self.blocks.get(lbn as usize) else {
            return Err(Place::of(structure).damage("the block lies beyond the directory's end").into());
        };
        let block = self.ext.meta.get(no, Kind::Directory).map_err(IndexError)?;
        Ok((block.view(<[u8]>::to_vec), Place::new(structure, BlockNo(no))))
    }
}
