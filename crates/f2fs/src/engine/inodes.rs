//! Inodes: those in use, and reading and changing their fields.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use moafs_vfs::types::{Attr, FileKind, Ino};
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::incore::Incore;
use super::volume::F2fs;
use crate::format::inode::{Inline, Inode, Layout};
use crate::format::superblock::Features;
use crate::format::{Nid, inode};

impl F2fs {
    /// Returns the in-core inode for a caller that shows or changes its contents.
    ///
    /// # Errors
    /// [`Error::Refused`] if only features that are not supported can tell them.
    pub(super) fn usable(&self, ino: Nid) -> Result<Arc<Incore>> {
        let file = self.incore(ino)?;
        match file.unusable {
            Some(what) => Err(Error::Refused(format!("inode {ino} is {what}, which moafs does not support"))),
            None => Ok(file),
        }
    }

    /// Returns the in-core inode; reads it if it is not in use. Of files that are not usable, blocks can be moved and
    /// freed, and names be told.
    pub(super) fn incore(&self, ino: Nid) -> Result<Arc<Incore>> {
        if let Some(node) = self.live(ino) {
            return Ok(node);
        }
        let stale = || Error::Stale(Ino(ino.0.into()));
        // The first ids are the node and the meta inode, which have no node.
        if ino.0 < Nid::ROOT.0 {
            return Err(stale());
        }
        let node = self.find_node(ino)?.filter(|node| node.ino == ino).ok_or_else(stale)?;
        let decoded = node.view(|bytes| Inode::decode(bytes, ino, self.features)).map_err(damaged);
        let inode = self.health.watch(decoded)?;
        let incore = Arc::new(Incore::new(&self.rt, ino, &inode, node));
        let mut live = self.live.lock();
        prune(&mut live);
        match live.get(&ino).and_then(Weak::upgrade) {
            Some(other) => Ok(other),
            None => {
                live.insert(ino, Arc::downgrade(&incore));
                Ok(incore)
            }
        }
    }

    pub(super) fn live(&self, ino: Nid) -> Option<Arc<Incore>> {
        self.live.lock().get(&ino).and_then(Weak::upgrade)
    }

    pub(super) fn remember(&self, node: &Arc<Incore>) {
        let mut live = self.live.lock();
        prune(&mut live);
        live.insert(node.ino, Arc::downgrade(node));
    }

    /// Decodes the inode. It was checked when it was read, and is changed through the same codec.
    pub(super) fn inode(&self, file: &Incore) -> Result<Inode> {
        file.node.view(|bytes| Inode::decode(bytes, file.ino, self.features)).map_err(damaged)
    }

    /// Returns the places of addresses, inline contents and attributes inside the inode.
    pub(super) fn layout(&self, file: &Incore) -> Layout {
        file.node.view(|bytes| Layout::of(bytes, self.features.contains(Features::FLEXIBLE_INLINE_XATTR)))
    }

    /// Changes an inode's fields.
    pub(super) fn change_inode(&self, file: &Incore, edit: impl FnOnce(&mut Inode)) -> Result<()> {
        self.change(&file.node, |bytes| {
            let mut inode = Inode::decode(bytes, file.ino, self.features)?;
            edit(&mut inode);
            inode.encode_into(bytes);
            Ok(())
        })
        .map_err(damaged)
    }

    /// Adds `change` to the blocks that an inode counts.
    pub(super) fn count_blocks(&self, file: &Incore, change: i64) {
        if change != 0 {
            self.change(&file.node, |bytes| {
                inode::set_blocks(bytes, inode::blocks(bytes).saturating_add_signed(change));
            });
        }
    }

    /// Returns the attributes that vfs keeps of an inode.
    pub(super) fn attr(&self, file: &Incore) -> Result<Attr> {
        let inode = self.inode(file)?;
        let is_device = matches!(file.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if is_device {
            let layout = self.layout(file);
            let (major, minor) = file.node.view(|bytes| layout.device(bytes));
            libc::makedev(major, minor)
        } else {
            0
        };
        Ok(Attr {
            kind: file.kind,
            perm: u32::from(inode.mode) & 0o7777,
            uid: inode.uid,
            gid: inode.gid,
            nlink: inode.links,
            size: inode.size,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            crtime: inode.extra.as_ref().and_then(|extra| extra.crtime),
            rdev,
            generation: inode.generation,
            flags: inode.flags.bits(),
        })
    }

    pub(super) fn is_inline(&self, file: &Incore, what: Inline) -> bool {
        file.node.view_head(inline_flags).intersects(what)
    }
}

/// Drops entries of inodes that are no longer in use, now and then.
fn prune(live: &mut BTreeMap<Nid, Weak<Incore>>) {
    if live.len() > 64 && live.len().is_power_of_two() {
        live.retain(|_, node| node.strong_count() > 0);
    }
}

/// Returns the inline flags of an inode, from its first bytes.
fn inline_flags(bytes: &[u8]) -> Inline {
    Inline::from_bits_retain(bytes[3])
}

#[cfg(test)]
mod tests;
