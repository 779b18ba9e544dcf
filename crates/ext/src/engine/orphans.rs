//! The orphan list of volumes with a journal: inodes that have no name any more, and files that are being truncated.
//!
//! Both need more than one transaction, or wait until a program closes the file. The list on the disk says what to
//! finish after a crash: it begins in the superblock (`s_last_orphan`), and each member's `i_dtime` names the next. A
//! member without links is deleted; one with links loses the blocks beyond its end. An inode joins the list in the
//! transaction that takes its last name, or lowers its size, and leaves it in the one that frees its last block.

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_vfs::format::{Admission, FormatOp, OpKind, Progress};
use moafs_vfs::{Error, Result};

use super::Ext;
use super::incore::{Incore, Life};
use super::op::ExtOp;
use crate::format::{Inode, InodeNo};
use crate::meta::Level;

impl Ext {
    /// Puts an inode at the head of the list, unless it is a member, and stores its slot.
    pub(super) fn add_orphan(&self, node: &Arc<Incore>) -> Result<Level> {
        let mut list = self.orphans.lock();
        {
            let mut state = node.state.lock();
            if !std::mem::replace(&mut state.is_listed, true) {
                state.inode.dtime = list.last().map_or(0, |next| next.ino.0);
                list.push(Arc::clone(node));
            }
        }
        self.store_orphan_head(&list)?;
        self.store(node)
    }

    /// Takes an inode off the list; its `i_dtime` becomes `dtime`. The caller stores its slot.
    pub(super) fn remove_orphan(&self, node: &Incore, dtime: u32) -> Result<()> {
        let mut list = self.orphans.lock();
        {
            let mut state = node.state.lock();
            if !std::mem::replace(&mut state.is_listed, false) {
                return Ok(());
            }
            state.inode.dtime = dtime;
        }
        let Some(at) = list.iter().position(|member| std::ptr::eq(&**member, node)) else {
            debug_assert!(false, "inode {} is marked as listed, and is not", node.ino.0);
            return Ok(());
        };
        list.remove(at);
        let Some(before) = list.get(at) else { return self.store_orphan_head(&list) };
        before.state.lock().inode.dtime = at.checked_sub(1).map_or(0, |next| list[next].ino.0);
        self.store(before).map(drop)
    }

    /// Stores the head of the list, which is its last element in memory.
    fn store_orphan_head(&self, list: &[Arc<Incore>]) -> Result<()> {
        let head = list.last().map_or(0, |node| node.ino.0);
        if self.superblock.lock().last_orphan() != head {
            self.change_superblock(|superblock| superblock.set_last_orphan(head))?;
        }
        Ok(())
    }

    /// Finishes what the list says that a crash has interrupted. Called before any client is served.
    ///
    /// # Errors
    /// [`Error::Refused`] if the list leads somewhere else than to inodes; damage and device errors.
    pub(super) fn finish_orphans(&self) -> Result<()> {
        let found = self.read_orphans()?;
        *self.orphans.lock() = found.iter().rev().map(Arc::clone).collect();
        found.iter().try_for_each(|node| self.finish_orphan(node))
    }

    /// Reads the list from the disk, its head first.
    fn read_orphans(&self) -> Result<Vec<Arc<Incore>>> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut next = self.superblock.lock().last_orphan();
        while next != 0 {
            let is_plausible = seen.insert(next) && seen.len() <= ORPHANS_MAX;
            let node = if is_plausible { self.read_orphan(InodeNo(next))? } else { None };
            let Some(node) = node else {
                return Err(Error::Refused(format!(
                    "the list of deleted and truncated files (s_last_orphan) leads to inode {next}, which cannot be a member: \
                     run `moafs fsck -y` or `e2fsck -fy`"
                )));
            };
            next = node.inode().dtime;
            found.push(node);
        }
        Ok(found)
    }

    /// Reads a member of the list; `None` if the inode cannot be one.
    fn read_orphan(&self, ino: InodeNo) -> Result<Option<Arc<Incore>>> {
        if ino.0 < self.geo.first_ino {
            return Ok(None);
        }
        let Some(at) = self.slot_at(ino) else { return Ok(None) };
        let slot = self.slot_bytes(&*self.table_block(&at)?, &at);
        let inode = Inode::parse(&slot, &self.geo);
        let Some(kind) = inode.kind() else { return Ok(None) };
        let life = if inode.links == 0 { Life::Orphan(Level::NONE) } else { Life::Named { born: Level::NONE } };
        let node = Arc::new(Incore::new(self, ino, kind, at, inode, life));
        node.state.lock().is_listed = true;
        self.registry.insert(&node);
        Ok(Some(node))
    }

    fn finish_orphan(&self, node: &Arc<Incore>) -> Result<()> {
        let (links, size) = {
            let state = node.state.lock();
            (state.inode.links, state.inode.size)
        };
        let from = if links == 0 { 0 } else { size.div_ceil(self.geo.block_size.into()) };
        loop {
            let mut admission = Admission::none();
            let mut op = self.begin_op(OpKind::Unmap, &mut admission)?;
            let progress = self.clear_pointers(node, from, u64::MAX, ORPHAN_BLOCKS_MAX, true)?;
            if progress == Progress::Done {
                self.finish_member(&mut op, node, links)?;
            }
            op.end();
            if progress == Progress::Done {
                return Ok(());
            }
        }
    }

    fn finish_member(&self, op: &mut ExtOp<'_>, node: &Arc<Incore>, links: u16) -> Result<()> {
        if links == 0 {
            return op.inode_free(node);
        }
        self.remove_orphan(node, 0)?;
        self.store(node).map(drop)
    }
}

/// The longest list that a mount finishes: its members are in memory together. The checker follows as many.
const ORPHANS_MAX: usize = 65_536;
/// Blocks that one op frees of an orphan at most.
const ORPHAN_BLOCKS_MAX: u32 = 4096;
