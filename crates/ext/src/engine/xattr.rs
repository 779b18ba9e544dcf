//! Extended attributes of a mounted volume: inside the inode where they fit, else in a block of
//! their own.
//!
//! Attribute blocks are never changed in place: a new block is written, the inode's pointer changes
//! to it, the old one becomes free (or, where inodes share it, loses a reference) after that.

use std::sync::Arc;

use moafs_disk::{Buf, Kind, SECTOR};
use moafs_vfs::format::Admission;
use moafs_vfs::types::{SetMode, XattrKey, XattrSpace};
use moafs_vfs::{Error, Result, stored};

use super::incore::Incore;
use super::volume::Ext;
use crate::format::superblock::{Compat, Incompat};
use crate::format::xattr::{self as codec, Area, Attribute};
use crate::format::{BlockNo, Damage, InodeNo, Place, Sealed, Structure};
use crate::health::damaged;
use crate::meta::{Block, Freed, Level, Use};

/// An attribute as it is stored: its value is here, or in an inode of its own, with this many bytes.
pub(super) struct StoredAttribute {
    pub(super) attribute: Attribute,
    value_inode: Option<(InodeNo, u32)>,
}

impl Ext {
    /// Returns every attribute of an inode with its value: those inside it first.
    fn attributes(&self, node: &Incore) -> Result<Vec<Attribute>> {
        self.stored_attributes(node)?.into_iter().map(|stored| self.with_value(stored)).collect()
    }

    /// Returns the value of one attribute, in the disk's form.
    pub(super) fn attribute_value(&self, node: &Incore, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        let mut all = self.stored_attributes(node)?.into_iter();
        let found = all.find(|stored| stored.attribute.key().as_ref() == Some(key));
        found.map(|stored| self.with_value(stored).map(|attribute| attribute.value)).transpose()
    }

    /// Returns an attribute with its value, which may lie in an inode of its own.
    fn with_value(&self, stored: StoredAttribute) -> Result<Attribute> {
        let StoredAttribute { mut attribute, value_inode } = stored;
        if let Some((ino, bytes)) = value_inode {
            attribute.value = self.health.watch(self.value_of_inode(ino, bytes))?;
        }
        Ok(attribute)
    }

    /// Returns every attribute of an inode, those inside it first. Values in inodes of their own are not read.
    pub(super) fn stored_attributes(&self, node: &Incore) -> Result<Vec<StoredAttribute>> {
        let found = self.read_attributes(node);
        self.health.watch(found)
    }

    /// Decodes the attributes of an area.
    fn list(&self, area: Area<'_>, place: Place) -> std::result::Result<Vec<StoredAttribute>, Damage> {
        let entries = match self.geo.incompat.contains(Incompat::EA_INODE) {
            true => codec::entries_with_inodes(area, place)?,
            false => codec::entries(area, place)?,
        };
        // The rest of contents inside the inode is no attribute.
        let entries = entries.iter().filter(|entry| (entry.index, entry.name) != codec::INLINE_DATA);
        let stored = |entry: &codec::XattrEntry<'_>| StoredAttribute {
            attribute: entry.to_attribute(),
            value_inode: entry.value_inode,
        };
        Ok(entries.map(stored).collect())
    }

    fn read_attributes(&self, node: &Incore) -> Result<Vec<StoredAttribute>> {
        let table = self.table_block(&node.at)?;
        let slot = self.slot_bytes(&table, &node.at);
        let (inode, outside_slot) = {
            let state = node.state.lock();
            (state.inode.clone(), state.attributes.clone())
        };
        let place = Place::new(Structure::InodeXattrs(node.ino), node.at.block);
        let area = outside_slot.as_deref().unwrap_or_else(|| codec::inode_area(&slot, inode.extra_isize));
        let mut all = self.list(Area::Inode(area), place).map_err(damaged)?;
        if inode.file_acl != 0 {
            all.extend(
                self.with_xattr_block(node.ino, inode.file_acl, |bytes, place| self.list(Area::Block(bytes), place))?,
            );
        }
        Ok(all)
    }

    fn with_xattr_block<R>(
        &self,
        ino: InodeNo,
        no: u64,
        look: impl FnOnce(&[u8], Place) -> std::result::Result<R, Damage>,
    ) -> Result<R> {
        let place = Place::new(Structure::XattrBlock(ino), BlockNo(no));
        if self.alloc.is_fixed(no, 1) {
            return Err(damaged(place.damage("it lies outside the volume or in the volume's own metadata")));
        }
        let block = self.meta.get(no, Kind::Xattr)?;
        let sums = &self.geo.checksums;
        let verified = block.verify(Use::xattrs(), |bytes| {
            sums.verify(Sealed::Xattrs(BlockNo(no)), bytes).map_err(|problem| place.damage(problem))
        });
        verified.map_err(damaged)?;
        block.view(|bytes| look(bytes, place)).map_err(damaged)
    }

    /// Sets or removes one attribute.
    pub(super) fn change_attribute(
        &self,
        node: &Incore,
        key: &XattrKey,
        value: Option<&[u8]>,
        mode: SetMode,
        admission: &mut Admission,
    ) -> Result<Level> {
        let mut all = self.attributes(node)?;
        let (index, name) = codec::index_of(key);
        let at = all.iter().position(|a| a.index == index && *a.name == *name);
        match (at, value, mode) {
            (Some(_), Some(_), SetMode::Create) => return Err(Error::Posix(libc::EEXIST)),
            (None, Some(_), SetMode::Replace) | (None, None, _) => return Err(Error::Posix(libc::ENODATA)),
            (Some(at), None, _) => drop(all.remove(at)),
            (Some(at), Some(value), _) => all[at].value = disk_value(key, value)?,
            (None, Some(value), _) => all.push(Attribute { index, name: name.into(), value: disk_value(key, value)? }),
        }
        self.store_attributes(node, &all, admission)
    }

    /// Returns true if removing an attribute takes a block: those that stay need one, and cannot have the old one.
    pub(super) fn removal_takes_block(&self, node: &Incore, key: &XattrKey) -> Result<bool> {
        let mut all = self.attributes(node)?;
        all.retain(|attribute| attribute.key().as_ref() != Some(key));
        let Some(image) = self.distribute(node, &all)?.block else { return Ok(false) };
        let old = node.state.lock().inode.file_acl;
        Ok(old == 0 || !self.same_attributes(node, old, &image)?)
    }

    /// Distributes attributes over the inode and a block.
    fn distribute(&self, node: &Incore, all: &[Attribute]) -> Result<codec::Layout> {
        let extra_isize = node.state.lock().inode.extra_isize;
        let area_bytes = codec::inode_area(&vec![0; self.geo.inode_size as usize], extra_isize).len();
        codec::distribute(all, area_bytes, self.geo.block_bytes()).ok_or(Error::Posix(libc::ENOSPC))
    }

    fn store_attributes(&self, node: &Incore, all: &[Attribute], admission: &mut Admission) -> Result<Level> {
        let old_block = node.state.lock().inode.file_acl;
        let layout = self.distribute(node, all)?;
        let noted = self.note_xattrs()?;
        let unchanged = match &layout.block {
            Some(new) if old_block != 0 => self.same_attributes(node, old_block, new)?,
            _ => false,
        };
        let keep = unchanged || (layout.block.is_none() && old_block == 0);
        let new_block = match &layout.block {
            Some(image) if !keep => Some(self.fresh_xattr_block(node, image, admission)?),
            _ => None,
        };
        {
            // In one step: with a count that does not match its blocks a short symbolic link would be taken for one
            // that has its target in a block.
            let mut state = node.state.lock();
            if !keep {
                state.inode.file_acl = new_block.map_or(0, |(no, _)| no);
                self.count_blocks(&mut state, i64::from(new_block.is_some()) - i64::from(old_block != 0));
            }
            let fresh = new_block.map_or(Level::NONE, |(_, level)| level.max(noted));
            state.needs = state.needs.max(fresh);
            state.attributes = Some(layout.inode_area);
        }
        let level = self.store(node)?;
        if !keep && old_block != 0 {
            self.release_xattr_block(node, old_block, level)?;
        }
        Ok(level)
    }

    /// Writes attributes to a new block; returns its number, and the level at which it is on disk and shown as used.
    fn fresh_xattr_block(&self, node: &Incore, image: &[u8], admission: &mut Admission) -> Result<(u64, Level)> {
        let (no, bits) = self.meta_block(node.at.group, admission)?;
        let (block, fresh) = self.fresh(no, Kind::Xattr, Buf::copy_of(image))?;
        block.holds(Sealed::Xattrs(BlockNo(no)));
        Ok((no, bits.max(fresh)))
    }

    fn same_attributes(&self, node: &Incore, old: u64, new: &[u8]) -> Result<bool> {
        let place = Place::of(Structure::XattrBlock(node.ino));
        let new = codec::list(Area::Block(new), place).map_err(damaged)?;
        let old = self.with_xattr_block(node.ino, old, |bytes, place| codec::list(Area::Block(bytes), place))?;
        Ok(old == new)
    }

    /// Takes an attribute block from an inode, once `needs` is on disk.
    pub(super) fn release_xattr_block(&self, node: &Incore, no: u64, needs: Level) -> Result<()> {
        self.with_xattr_block(node.ino, no, |_, _| Ok(()))?;
        let block = self.meta.get(no, Kind::Xattr)?;
        let is_last = {
            let _one_at_a_time = self.shared_xattrs.lock();
            if self.recovery.defers_release(no, needs) {
                return Ok(());
            }
            let shares = block.view(codec::refcount);
            if shares > 1 {
                self.set_xattr_references(&block, shares - 1, needs);
            }
            shares <= 1
        };
        // Inodes that gave up their reference before may still point to it on the disk.
        let needs = needs.max(block.pending(0));
        if is_last { self.alloc.free(needs, Freed::Meta { block: no }) } else { Ok(()) }
    }

    /// Corrects the number of references to an attribute block as recovery found it. A block without any becomes free.
    pub(super) fn correct_xattr_references(&self, no: u64) -> Result<()> {
        let block = self.meta.get(no, Kind::Xattr)?;
        let needs = {
            let _one_at_a_time = self.shared_xattrs.lock();
            let Some(wrong) = self.recovery.take_wrong_references(no) else { return Ok(()) };
            let left = i64::from(block.view(codec::refcount)) - wrong.excess;
            if let Ok(left @ 1..) = u32::try_from(left) {
                self.set_xattr_references(&block, left, wrong.needs);
                return Ok(());
            }
            wrong.needs.max(block.pending(0))
        };
        self.alloc.free(needs, Freed::Meta { block: no })
    }

    fn set_xattr_references(&self, block: &Arc<Block>, references: u32, needs: Level) {
        block.holds(Sealed::Xattrs(BlockNo(block.no)));
        self.meta.change(block, 0..SECTOR, needs, |bytes| codec::set_refcount(bytes, references));
    }

    /// Returns the number of references to an attribute block of an inode, as the block says.
    pub(super) fn xattr_references(&self, ino: InodeNo, no: u64) -> Result<u32> {
        self.with_xattr_block(ino, no, |bytes, _| Ok(codec::refcount(bytes)))
    }

    /// Sets the feature of volumes with attributes.
    fn note_xattrs(&self) -> Result<Level> {
        self.note_feature(
            |superblock| superblock.compat().contains(Compat::EXT_ATTR),
            |superblock| superblock.set_compat(superblock.compat() | Compat::EXT_ATTR),
        )
    }
}

/// Returns a value in its form on the disk: access control lists have one of their own.
fn disk_value(key: &XattrKey, value: &[u8]) -> Result<Vec<u8>> {
    match key.space {
        XattrSpace::AclAccess | XattrSpace::AclDefault => stored::acl_to_disk(value).ok_or(Error::Posix(libc::EINVAL)),
        _ => Ok(value.to_vec()),
    }
}

/// Returns a value in the form of the system call.
pub(super) fn call_value(key: &XattrKey, value: &[u8]) -> Option<Vec<u8>> {
    match key.space {
        XattrSpace::AclAccess | XattrSpace::AclDefault => stored::acl_from_disk(value),
        _ => Some(value.to_vec()),
    }
}
