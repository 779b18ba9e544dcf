//! Extent trees of a mounted volume: finding the blocks of a file.
//!
//! A search goes from the root in the inode down to a leaf, at most [`DEPTH_MAX`](crate::format::extent::DEPTH_MAX)
//! blocks, which are cached with the other metadata. A node is checked whole when it was read, and held against its
//! parent's entry each time.

use std::sync::Arc;

use moafs_disk::Kind;
use moafs_vfs::Result;
use moafs_vfs::types::{BlockAddr, BlockRun, Lbn, Mapping};

use super::Ext;
use super::incore::Incore;
use crate::format::extent::{self, Child, Extent, Node, Search, Tree};
use crate::format::{Owner, Place, Structure};
use crate::health::damaged;
use crate::meta::{Block, Use};

impl Ext {
    /// Returns the mapping of `at`: one run of at most `max` blocks. The caller holds the map.
    pub(super) fn map_extents(&self, node: &Incore, at: Lbn, max: u32) -> Result<Mapping> {
        let found = self.find_extent(node, at.0);
        let mapping = found.and_then(|found| match found {
            Found::Extent(extent) => self.run_of(node, extent, at.0, max),
            Found::Hole(end) => {
                let len = end.saturating_sub(at.0).min(max.into()).max(1) as u32;
                Ok(Mapping::Hole { len })
            }
        });
        self.health.watch(mapping)
    }

    fn find_extent(&self, node: &Incore, lbn: u64) -> Result<Found> {
        if lbn >= extent::LBN_END {
            return Ok(Found::Hole(u64::MAX));
        }
        let (root, owner) = {
            let state = node.state.lock();
            (state.inode.block_bytes(), state.inode.owner(node.ino))
        };
        let tree = Tree { owner, root: &root, block: node.at.block };
        let top = Node::decode_root(&root, &self.geo, tree.root_place()).map_err(damaged)?;
        let mut step = top.find(lbn);
        loop {
            match step {
                Search::Mapped(extent) => return Ok(Found::Extent(extent)),
                Search::Hole(extent::LBN_END) => return Ok(Found::Hole(u64::MAX)),
                Search::Hole(end) => return Ok(Found::Hole(end)),
                // The depth falls with each step: `Node::view` compares it with the parent's.
                Search::Down(child) => {
                    let block = self.extent_node(owner, child)?;
                    let place = extent::place(owner.ino, child);
                    step = block
                        .view(|bytes| Node::view(bytes, child.bounds, place).map(|node| node.find(lbn)))
                        .map_err(damaged)?;
                }
            }
        }
    }

    /// Returns the block of a node, which was checked.
    fn extent_node(&self, owner: Owner, child: Child) -> Result<Arc<Block>> {
        let place = extent::place(owner.ino, child);
        if self.alloc.is_fixed(child.block.0, 1) {
            return Err(damaged(place.damage("it lies in the volume's own metadata")));
        }
        let block = self.zone_block(child.block.0, Kind::Map)?;
        let verified = block.verify(Use::extents(owner.ino), |bytes| {
            Node::decode(bytes, child.bounds, owner, &self.geo, place).map(drop)
        });
        verified.map_err(damaged)?;
        Ok(block)
    }

    /// Returns the part of an extent from file block `at` on.
    fn run_of(&self, node: &Incore, extent: Extent, at: u64, max: u32) -> Result<Mapping> {
        let skipped = at - u64::from(extent.lbn);
        let start = extent.start.0 + skipped;
        let len = (extent.end() - at).min(max.into()) as u32;
        if self.alloc.is_fixed(start, len.into()) {
            let place = Place::new(Structure::Inode(node.ino), node.at.block);
            let problem = format!("an extent leads to block {start}, which is the volume's own metadata");
            return Err(damaged(place.damage(problem)));
        }
        let run = BlockRun { start: BlockAddr(start), len };
        Ok(if extent.unwritten { Mapping::Unwritten(run) } else { Mapping::Run(run) })
    }
}

/// The result of a search for a file block.
enum Found {
    Extent(Extent),
    /// A hole up to this file block.
    Hole(u64),
}
