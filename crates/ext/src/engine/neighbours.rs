//! The small files that lie beside another, found in the inode-table blocks in memory.
//!
//! Loading an inode has read its block of the table and those behind it. Inodes of one directory
//! lie in one group, those made together side by side, so the slots around a file's own are those
//! of its co-written neighbours, and looking at them costs no request.
//!
//! A slot may be older than the in-core inode; the caller looks again. Slots that would not load
//! are left out, so that the search finds no damage. While leaks of a crash are returned no file is
//! a neighbour: an inode may have no name.

use std::ops::Range;

use moafs_vfs::format::Neighbour;
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Ino};

use super::incore::{Incore, SlotAt};
use super::volume::Ext;
use crate::format::extent::{Node, Search};
use crate::format::inode::InodeFlags;
use crate::format::map::DIRECT;
use crate::format::{BlockNo, Inode, InodeNo, Place, Structure};

impl Ext {
    /// Returns the small files within `reach` blocks of `around`, ascending by address, as far as
    /// the table around the file's inode is in memory.
    pub(super) fn files_beside(&self, file: &Incore, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        if self.recovery.is_active() {
            return Vec::new();
        }
        let reach = u64::from(reach);
        let within = around.start.0.saturating_sub(reach)..around.end().0.saturating_add(reach);
        let mut found = Vec::new();
        let table = self.alloc.descriptor(file.at.group).inode_table.0;
        let own = file.at.block.0 - table;
        let first = own.saturating_sub(self.table_read_blocks);
        let end = (own + self.table_read_blocks).min(self.geo.inode_table_blocks.into());
        for index in first..end {
            let Some(block) = self.meta.cached(table + index) else { continue };
            let first = index as u32 * self.geo.inodes_per_block();
            let at = SlotAt { group: file.at.group, index: first, block: BlockNo(block.no), offset: 0 };
            block.view(|bytes| self.files_in(bytes, at, &within, &mut found));
        }
        found.retain(|near| near.ino != Ino(file.ino.0.into()));
        found.sort_unstable_by_key(|near| (near.run.start, near.ino));
        found
    }

    /// Adds the small files within `within` whose inodes are in a block of the table, the first of them at `at`.
    fn files_in(&self, bytes: &[u8], at: SlotAt, within: &Range<u64>, found: &mut Vec<Neighbour>) {
        let slots = bytes.chunks_exact(self.geo.inode_size as usize);
        for (index, slot) in (at.index..self.geo.inodes_per_group).zip(slots) {
            let ino = self.geo.inode_at(at.group, index);
            let near = |run: &BlockRun| within.contains(&run.start.0) && run.end().0 <= within.end;
            // This inode was not asked for: it is judged before it is loaded.
            let is_sound = || Inode::decode(slot, ino, &self.geo, at.block).is_ok();
            let run = self.small_run(&Inode::parse(slot, &self.geo)).filter(near);
            if let Some(run) = run.filter(|_| ino.0 >= self.geo.first_ino && is_sound()) {
                found.push(Neighbour { ino: Ino(ino.0.into()), run });
            }
        }
    }

    /// Returns the blocks of a small file that has a name, if they are contiguous.
    fn small_run(&self, inode: &Inode) -> Option<BlockRun> {
        let blocks = inode.size.div_ceil(self.geo.block_size.into());
        if inode.links == 0 || inode.kind() != Some(FileKind::Regular) || blocks == 0 || blocks > DIRECT {
            return None;
        }
        if inode.flags.intersects(InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT) {
            return None;
        }
        if inode.has_extents() {
            return self.small_extent(inode, blocks);
        }
        let start = u64::from(inode.block[0]);
        let in_one_piece = (start..).zip(&inode.block[..blocks as usize]).all(|(at, to)| at == u64::from(*to));
        let is_run = in_one_piece && !self.alloc.is_fixed(start, blocks);
        is_run.then_some(BlockRun { start: BlockAddr(start), len: blocks as u32 })
    }

    /// Returns the blocks of a small file with extents, if one extent maps them all.
    fn small_extent(&self, inode: &Inode, blocks: u64) -> Option<BlockRun> {
        let bytes = inode.block_bytes();
        let root = Node::decode_root(&bytes, &self.geo, Place::of(Structure::Inode(InodeNo(0)))).ok()?;
        let Search::Mapped(extent) = root.find(0) else { return None };
        let whole = !extent.unwritten && u64::from(extent.len) >= blocks;
        let start = extent.start.0;
        let is_run = whole && !self.alloc.is_fixed(start, blocks);
        is_run.then_some(BlockRun { start: BlockAddr(start), len: blocks as u32 })
    }
}
