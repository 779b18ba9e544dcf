//! Inodes and their slots: reading them, and storing what has changed.

use std::sync::Arc;

use moafs_disk::Kind;
use moafs_vfs::types::Ino;
use moafs_vfs::{Error, Result};

use super::incore::{Incore, InodeState, Life, SlotAt, window};
use super::volume::Ext;
use crate::format::{BlockNo, Inode, InodeNo, Sealed, xattr as codec};
use crate::health::damaged;
use crate::meta::{Block, Level, Needs};

/// Bytes of an inode's slot that are written as one record: never more than a sector.
const RECORD_MAX: usize = 512;

impl Ext {
    /// Keeps an inode in memory until a level is on disk.
    pub(super) fn hold(&self, node: &Arc<Incore>, until: Level) {
        if self.meta.is_pending(until) {
            self.held.lock().insert((until, node.ino.0), Arc::clone(node));
        }
    }

    /// Returns the in-core inode if it is in use.
    pub(super) fn live(&self, ino: InodeNo) -> Option<Arc<Incore>> {
        self.registry.live(ino)
    }

    /// Returns the in-core inode; reads it if it is not in use.
    pub(super) fn incore(&self, ino: InodeNo) -> Result<Arc<Incore>> {
        loop {
            let before = self.registry.departures();
            if let Some(node) = self.registry.live(ino) {
                return Ok(node);
            }
            let loaded = self.read_inode(ino);
            let node = Arc::new(self.health.watch(loaded)?);
            if let Some(node) = self.registry.adopt(&node, before) {
                return Ok(node);
            }
        }
    }

    pub(super) fn read_inode(&self, ino: InodeNo) -> Result<Incore> {
        let stale = || Error::Stale(Ino(ino.0.into()));
        if ino != InodeNo::ROOT && ino.0 < self.geo.first_ino {
            return Err(stale());
        }
        let at = self.slot_at(ino).ok_or_else(stale)?;
        if at.index >= self.alloc.inodes_ever_used(at.group) {
            return Err(stale());
        }
        let block = self.table_block(&at)?;
        let slot = at.offset..at.offset + self.geo.inode_size as usize;
        let inode = block.view(|bytes| {
            let slot = &bytes[slot];
            if Inode::parse(slot, &self.geo).links == 0 {
                None
            } else {
                Some(Inode::decode(slot, ino, &self.geo, at.block))
            }
        });
        let mut inode = inode.ok_or_else(stale)?.map_err(damaged)?;
        if !self.recovery.is_active() {
            // Another driver or a checker may have made two links of both names.
            inode.renaming = None;
        }
        let kind = inode.kind().ok_or_else(stale)?;
        Ok(Incore::new(&self.registry, ino, kind, at, inode, Life::Named { born: Level::NONE }))
    }

    /// Returns the block of the inode table that holds an inode; its neighbours are read with the
    /// same request.
    pub(super) fn table_block(&self, at: &SlotAt) -> Result<Arc<Block>> {
        let table = self.alloc.descriptor(at.group).inode_table.0;
        let table = table..table + u64::from(self.geo.inode_table_blocks);
        self.meta.get_near(at.block.0, Kind::Inodes, window(&table, at.block.0, self.table_read_blocks))
    }

    /// Returns the place of an inode's slot; `None` if the volume has no such inode.
    pub(super) fn slot_at(&self, ino: InodeNo) -> Option<SlotAt> {
        let at = self.geo.locate_inode(ino)?;
        let block = BlockNo(self.alloc.descriptor(at.group).inode_table.0 + u64::from(at.table_block));
        Some(SlotAt { group: at.group, index: at.index, block, offset: at.offset })
    }

    /// Returns the bytes of a slot that make up its record.
    pub(super) fn record(&self, at: &SlotAt) -> std::ops::Range<usize> {
        at.offset..at.offset + (self.geo.inode_size as usize).min(RECORD_MAX)
    }

    /// Returns the level at which the slot's newest version is on disk.
    pub(super) fn slot_pending(&self, node: &Incore) -> Result<Level> {
        Ok(self.table_block(&node.at)?.pending(node.at.offset))
    }

    /// Returns the bytes of an inode's slot as they are now.
    pub(super) fn slot_bytes(&self, block: &Block, at: &SlotAt) -> Vec<u8> {
        block.view(|bytes| bytes[at.offset..at.offset + self.geo.inode_size as usize].to_vec())
    }

    /// Makes a new version of the slot from the in-core inode, and frees the blocks that were
    /// waiting for it.
    pub(super) fn store(&self, node: &Incore) -> Result<Level> {
        self.store_with(node, Level::NONE, |_, _| {})
    }

    /// Does the same as [`Ext::store`], after `needs`, with a last change to the slot's bytes.
    pub(super) fn store_with(
        &self,
        node: &Incore,
        needs: Level,
        edit: impl FnOnce(&mut Inode, &mut [u8]),
    ) -> Result<Level> {
        let block = self.table_block(&node.at)?;
        let mut state = node.state.lock();
        let level = match state.life {
            Life::Named { .. } => self.write_slot(&block, node, &mut state, needs, edit),
            // Its blocks are freed in more than one transaction.
            Life::Orphan(_) if self.meta.has_journal() => self.write_slot(&block, node, &mut state, needs, edit),
            // The slot says "deleted" already, or was never written: it is not written again.
            Life::Orphan(level) => level,
            Life::Unborn => Level::NONE,
        };
        let freed = std::mem::take(&mut state.freed);
        drop(state);
        for freed in freed {
            self.alloc.free(level, freed)?;
        }
        Ok(level)
    }

    pub(super) fn write_slot(
        &self,
        block: &Arc<Block>,
        node: &Incore,
        state: &mut InodeState,
        needs: Level,
        edit: impl FnOnce(&mut Inode, &mut [u8]),
    ) -> Level {
        debug_assert!(self.recovery.may_change(node.ino), "inode {} changes unseen", node.ino.0);
        let mut inode = state.inode.clone();
        if inode.links > 0 {
            inode.links = inode.links.saturating_add(state.names_coming);
        }
        // Both stay: a version that equals the slot on the disk is dropped, and the next one has the same needs.
        let needs = Needs::from(needs.max(state.needs)).and_data(state.data);
        let start = node.at.offset;
        let mut slot = self.slot_bytes(block, &node.at);
        edit(&mut inode, &mut slot);
        inode.encode_into(&mut slot, &self.geo);
        if let Some(attributes) = state.attributes.take() {
            let area = codec::inode_area_mut(&mut slot, inode.extra_isize);
            area[..attributes.len()].copy_from_slice(&attributes);
        }
        let sealed = self.geo.checksums.seal(Sealed::Inode(node.ino), &mut slot);
        debug_assert!(sealed.is_ok(), "every slot has a place for its checksum");
        // The fixed fields all lie in the slot's first sector. Slots larger than a sector have attributes beyond
        // it, which a power cut may tear; mke2fs makes such slots only when asked to.
        let mut level = Level::NONE;
        for (at, part) in (start..).step_by(RECORD_MAX).zip(slot.chunks(RECORD_MAX)) {
            let changed = at == start || block.view(|bytes| bytes[at..at + part.len()] != *part);
            if changed {
                level =
                    level.max(self.meta.change(block, at..at + part.len(), needs, |bytes| bytes.copy_from_slice(part)));
            }
        }
        level
    }
}
