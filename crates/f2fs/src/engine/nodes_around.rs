//! Reading a node and those around it with one request: they lie in the order in which they were written, mostly that
//! of their files, and are often asked for together.
//!
//! A neighbour is kept only if it surely is the node that its entry names. An older image that lay in the same block
//! could pass for it until the node is written there; but until then the node is in memory, and what is in memory is
//! not replaced. So a neighbour that is not in memory lies on the device, and has since before the request, unless
//! nodes that were under way reached the device meanwhile: then nothing is kept.

use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, Tag};
use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::{Error, Result};

use super::convert::copy_of;
use super::node_cache::Node;
use super::volume::F2fs;
use crate::format::nat::NatEntry;
use crate::format::node::Footer;
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, BlkAddr, Nid};

/// Returns the blocks of the window in which a block of the main area lies.
fn window(geo: &Geometry, at: BlkAddr, blocks: usize) -> Option<Range<u32>> {
    let (segno, offset) = geo.segment_of(at)?;
    let start = geo.block_of(segno, offset / blocks * blocks).0;
    Some(start..start + blocks as u32)
}

impl F2fs {
    /// Reads the node that an entry of the main area names, and keeps those around it.
    pub(super) fn read_around(&self, nid: Nid, entry: NatEntry) -> Result<Node> {
        let landed = self.nodes.landed.load(Ordering::Acquire);
        let blocks = self.nodes.read_ahead.blocks();
        let range = window(&self.geo, entry.addr, blocks).unwrap_or(entry.addr.0..entry.addr.0 + 1);
        let tag = Tag::new(Kind::Node, entry.ino.0.into(), Cause::Demand);
        let bytes = match self.read_blocks(range.clone(), tag) {
            // Another block of the window may be the one that cannot be read.
            Err(_) if range.len() > 1 => return self.decode_node(nid, entry, self.read_block(entry.addr, tag)?),
            read => read?,
        };
        let block = |at: u32| &bytes[(at - range.start) as usize * BLOCK..][..BLOCK];
        let node = self.decode_node(nid, entry, copy_of(block(entry.addr.0)))?;
        let others = range.clone().filter(|at| *at != entry.addr.0);
        let neighbours = others.filter_map(|at| self.neighbour(BlkAddr(at), block(at))).collect();
        self.keep_neighbours(neighbours, landed);
        Ok(node)
    }

    fn read_blocks(&self, range: Range<u32>, tag: Tag) -> Result<Buf> {
        let read = self.disk.read(Lba::from_byte(u64::from(range.start) * BLOCK as u64), range.len() * BLOCK, tag);
        read.map_err(|source| Error::disk(format!("reading blocks {} to {}", range.start, range.end - 1), source))
    }

    /// Returns the node in a block, if the table is known, without a request, to name that block.
    fn neighbour(&self, at: BlkAddr, bytes: &[u8]) -> Option<(NatEntry, Node)> {
        let footer = Footer::decode(bytes);
        let entry = self.nat.known(footer.nid).filter(|entry| entry.addr == at)?;
        Some((entry, self.decode_node(footer.nid, entry, copy_of(bytes)).ok()?))
    }

    /// Keeps neighbours that were read since `landed` was counted.
    fn keep_neighbours(&self, neighbours: Vec<(NatEntry, Node)>, landed: u64) {
        let mut kept = 0;
        let mut all = self.nodes.all.lock();
        if self.nodes.landed.load(Ordering::Acquire) != landed {
            return;
        }
        for (entry, node) in neighbours {
            if !all.contains_key(&node.nid) && self.nat.known(node.nid) == Some(entry) {
                node.unused.store(true, Ordering::Relaxed);
                all.insert(node.nid, Arc::new(node));
                kept += 1;
            }
        }
        // Still under the lock: none of them is used before it counts as kept.
        self.nodes.read_ahead.note_kept(kept);
    }
}

#[cfg(test)]
mod tests {
    use moafs_disk::{MemDisk, SharedDisk};
    use moafs_runtime::{Live, Timestamp};

    use super::*;
    use crate::OpenOptions;
    use crate::mkfs::{MkfsOptions, mkfs};

    #[test]
    fn what_was_read_before_nodes_reached_the_device_is_not_kept() {
        let disk: SharedDisk = Arc::new(MemDisk::new(128 << 11));
        mkfs(&*disk, &MkfsOptions::new([1; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
        let fs = F2fs::open(disk, Live::new(), OpenOptions::default()).unwrap();
        let root = fs.nat.get(Nid::ROOT).unwrap();
        let read = || {
            let bytes = fs.read_blocks(root.addr.0..root.addr.0 + 1, Tag::new(Kind::Node, 3, Cause::Demand)).unwrap();
            vec![fs.neighbour(root.addr, &bytes).unwrap()]
        };
        let landed = || fs.nodes.landed.load(Ordering::Acquire);
        fs.nodes.all.lock().clear();
        let (before, neighbours) = (landed(), read());
        // A checkpoint, in which this node does not change: the last one says that the volume was closed.
        fs.checkpoint(false).unwrap();
        fs.keep_neighbours(neighbours, before);
        assert!(fs.nodes.all.lock().is_empty());
        fs.keep_neighbours(read(), landed());
        assert_eq!(fs.nodes.all.lock().keys().copied().collect::<Vec<_>>(), [Nid::ROOT]);
    }
}
