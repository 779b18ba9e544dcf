//! Reading a node and those around it with one request: they lie in the order in which they were written, mostly that
//! of their files, and are often asked for together.
//!
//! A neighbour is kept only if it surely is the node that its entry names. A block that was written while it was read,
//! or before at the same place, could pass for it: so nothing is kept if nodes were being written at any time from
//! before the request to its end.

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
        let quiet = self.writes_of_nodes();
        let blocks = if quiet.is_some() { self.nodes.read_ahead.blocks() } else { 1 };
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
        self.keep_neighbours(neighbours, quiet);
        Ok(node)
    }

    fn read_blocks(&self, range: Range<u32>, tag: Tag) -> Result<Buf> {
        let read = self.disk.read(Lba::from_byte(u64::from(range.start) * BLOCK as u64), range.len() * BLOCK, tag);
        read.map_err(|source| Error::disk(format!("reading blocks {} to {}", range.start, range.end - 1), source))
    }

    /// Returns how often nodes have been placed on the device; `None` while some may be on their way.
    fn writes_of_nodes(&self) -> Option<u64> {
        let writer = self.writer.try_lock()?;
        writer.unfinished.is_none().then(|| self.nodes.placed.load(Ordering::Acquire))
    }

    /// Returns the node in a block, if the table is known, without a request, to name that block.
    fn neighbour(&self, at: BlkAddr, bytes: &[u8]) -> Option<(NatEntry, Node)> {
        let footer = Footer::decode(bytes);
        let entry = self.nat.known(footer.nid).filter(|entry| entry.addr == at)?;
        Some((entry, self.decode_node(footer.nid, entry, copy_of(bytes)).ok()?))
    }

    fn keep_neighbours(&self, neighbours: Vec<(NatEntry, Node)>, quiet: Option<u64>) {
        let mut kept = 0;
        let mut all = self.nodes.all.lock();
        // A node that is placed from now on is in memory already: its neighbour's image is not taken for it.
        if quiet != Some(self.nodes.placed.load(Ordering::Acquire)) {
            return;
        }
        for (entry, node) in neighbours {
            if !all.contains_key(&node.nid) && self.nat.known(node.nid) == Some(entry) {
                node.unused.store(true, Ordering::Relaxed);
                all.insert(node.nid, Arc::new(node));
                kept += 1;
            }
        }
        drop(all);
        self.nodes.read_ahead.note_kept(kept);
    }
}
