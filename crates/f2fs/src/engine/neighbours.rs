//! The small files that lie beside another, found among the inodes in memory.
//!
//! Reading an inode has brought those around it ([`nodes_around`](super::nodes_around)). Files that were written
//! together have numbers that are near each other, so looking at these costs no request.
//!
//! An inode that would not load is left out, so that the search finds no damage.

use std::sync::Arc;

use moafs_vfs::format::Neighbour;
use moafs_vfs::plan::SMALL_BLOCKS_MAX;
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Ino};

use super::incore::{Incore, unusable};
use super::node_cache::Node;
use super::volume::F2fs;
use crate::format::inode::{self, Inline, Inode, Layout};
use crate::format::superblock::Features;
use crate::format::{BLOCK, BlkAddr, Nid};

/// Numbers on either side of a file's own that are looked at.
const NIDS_AROUND: u32 = 512;

impl F2fs {
    /// Returns the small files within `reach` blocks of `around`, ascending by address, as far as their inodes are in
    /// memory.
    pub(super) fn files_beside(&self, file: &Incore, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        let reach = u64::from(reach);
        let within = around.start.0.saturating_sub(reach)..around.end().0.saturating_add(reach);
        let near = |node: &Arc<Node>| {
            let run = node.view(|bytes| self.small_run(node.nid, bytes))?;
            let is_near = within.contains(&run.start.0) && run.end().0 <= within.end;
            is_near.then_some(Neighbour { ino: Ino(node.nid.0.into()), run })
        };
        let mut found: Vec<Neighbour> = self.inodes_around(file.ino).iter().filter_map(near).collect();
        found.sort_unstable_by_key(|near| (near.run.start, near.ino));
        found
    }

    /// Returns the inodes in memory with numbers near this one.
    fn inodes_around(&self, ino: Nid) -> Vec<Arc<Node>> {
        let numbers = Nid(ino.0.saturating_sub(NIDS_AROUND))..=Nid(ino.0.saturating_add(NIDS_AROUND));
        let all = self.nodes.all.lock();
        let nodes = all.range(numbers).map(|(_, node)| node);
        nodes.filter(|node| node.nid == node.ino && node.nid != ino).cloned().collect()
    }

    /// Returns the blocks of a small file that has a name, if they are contiguous.
    fn small_run(&self, ino: Nid, bytes: &[u8]) -> Option<BlockRun> {
        let blocks = inode::size(bytes).div_ceil(BLOCK as u64);
        if blocks == 0 || blocks > SMALL_BLOCKS_MAX {
            return None;
        }
        let layout = Layout::of(bytes, self.features.contains(Features::FLEXIBLE_INLINE_XATTR));
        let start = layout.addr(bytes, 0);
        let expected = |at: u32| start.0.checked_add(at).map(BlkAddr).filter(|addr| self.geo.is_main(*addr));
        let in_one_piece = (0..blocks as u32).all(|at| expected(at) == Some(layout.addr(bytes, at as usize)));
        if !in_one_piece {
            return None;
        }
        // This inode was not asked for: it is judged before it is loaded.
        let inode = Inode::decode(bytes, ino, self.features).ok()?;
        let is_file = inode.kind == FileKind::Regular && inode.links > 0 && !inode.inline.contains(Inline::DATA);
        let is_sound = is_file && unusable(&inode).is_none();
        is_sound.then_some(BlockRun { start: BlockAddr(start.0.into()), len: blocks as u32 })
    }
}
