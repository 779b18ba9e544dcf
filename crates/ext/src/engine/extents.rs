//! Extent trees of a mounted volume: finding, setting and clearing the blocks of a file.
//!
//! A search goes from the root in the inode down to a leaf, at most [`DEPTH_MAX`](crate::format::extent::DEPTH_MAX)
//! blocks, which are cached with the other metadata. A node is checked whole when it was read, and held against its
//! parent's entry each time.
//!
//! Trees change on volumes with a journal only: an edit changes several nodes, and one transaction contains them all.
//! It is planned first ([`edit`]), so an edit that finds no block for a node has changed nothing. New nodes lie beside
//! the directories of the file's group, not between its data: there a node would end the extent that it describes.
//!
//! *Space.* A new block of a file may split each node on the way to it, so a write is promised more than the block
//! ([`shape`]): for each part of the file that waits to be written one node, for each part of parts another, and so on.
//! A part has half as many blocks as a leaf has entries. A split leaves both halves room for one new extent less than
//! that. So the first new block may split a full leaf, and each later split of what it has become takes as many new
//! blocks as a part has: the parts that they lie in are no fewer than the splits. What is not covered is the first
//! split of a leaf that is full: two such leaves may meet within a part; the promise for a part ends when its first
//! block is placed; and data that move, holes that are punched into an extent, and blocks that are allocated without
//! being written have none. A leaf is full with as many blocks as it has entries, so a volume has no more full leaves
//! than blocks divided by that number. As many, and as many again for the nodes above them, are kept out of all
//! promises ([`reserve`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Buf, Epoch, Kind};
use moafs_vfs::Result;
use moafs_vfs::format::{MapShape, Progress};
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Lbn, LbnRange, Mapping};

use super::incore::Incore;
use super::map::MapPlace;
use super::volume::Ext;
use crate::format::extent::edit::{self, Edit, Plan};
use crate::format::extent::{self, Child, Extent, Node, ROOT_ENTRIES, Search, Tree};
use crate::format::{BlockNo, Geometry, Owner, Place, Structure, map};
use crate::health::damaged;
use crate::meta::{Block, Freed, Level, Needs, Use};
use crate::place::ffs;

/// The most blocks that are kept for nodes without a promise.
const RESERVE_MAX: u64 = 4096;

/// Returns half the number of a leaf's entries: so many new extents go into a leaf between two splits.
fn half_of_leaf(geo: &Geometry) -> u64 {
    u64::from(extent::block_entries(geo.block_bytes())) / 2
}

/// Returns the shape of the map of files with extents, for the promises of their nodes.
pub(super) fn shape(geo: &Geometry) -> MapShape {
    MapShape { direct: ROOT_ENTRIES.into(), fan: half_of_leaf(geo), trees: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }
}

/// Returns the blocks of a volume that no write is promised: nodes may take them that nothing was promised for.
pub(super) fn reserve(geo: &Geometry) -> u64 {
    (geo.blocks / half_of_leaf(geo)).min(RESERVE_MAX)
}

/// Returns the size in bytes up to which files with extents are written: `i_blocks` has room for as many blocks, their
/// nodes in trees of half-full ones, and an attribute block.
pub(super) fn written_bytes_max(geo: &Geometry) -> u64 {
    let (countable, half) = (map::count_max(geo) / u64::from(geo.sectors_per_block()), half_of_leaf(geo));
    let blocks = (countable - 1) / half * (half - 1);
    extent::LBN_END.min(blocks).saturating_mul(geo.block_size.into())
}

/// Takes a block for a new node, and returns it with the level of its bit.
pub(super) type TakeBlock<'a> = &'a mut dyn FnMut(MapPlace) -> Result<(u64, Level)>;

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
        if self.cannot_own(owner.ino, child.block.0, 1) {
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
        self.check_run(node, start, len.into())?;
        let run = BlockRun { start: BlockAddr(start), len };
        Ok(if extent.unwritten { Mapping::Unwritten(run) } else { Mapping::Run(run) })
    }

    /// Returns damage if blocks that a tree names can be no file's.
    fn check_run(&self, node: &Incore, start: u64, len: u64) -> Result<()> {
        if !self.cannot_own(node.ino, start, len) {
            return Ok(());
        }
        let place = Place::new(Structure::Inode(node.ino), node.at.block);
        Err(damaged(place.damage(format!("an extent leads to block {start}, which is the volume's own"))))
    }
}

impl Ext {
    // -- changing

    /// Maps `at` to `to`, whose data completed in `written`. The caller holds the map.
    pub(super) fn set_extents(
        &self,
        node: &Incore,
        at: LbnRange,
        to: BlockRun,
        written: Option<Epoch>,
        take: TakeBlock<'_>,
    ) -> Result<Level> {
        let mut highest = Level::NONE;
        let mut done = 0;
        let len = to.len.min(at.len);
        if at.start.0 + u64::from(len) > extent::LBN_END {
            return Err(Self::too_big());
        }
        while done < len {
            let (lbn, start) = (at.start.0 + u64::from(done), to.start.0 + u64::from(done));
            let left = len - done;
            let found = self.find_extent(node, lbn).map_err(|error| self.half_mapped(node, done > 0, error))?;
            let same = match found {
                Found::Extent(extent)
                    if !extent.unwritten && extent.start.0 + (lbn - u64::from(extent.lbn)) == start =>
                {
                    (extent.end() - lbn).min(left.into()) as u32
                }
                _ => 0,
            };
            if same > 0 {
                done += same;
                continue;
            }
            let extent = Extent::first_of(lbn, start, left.into(), false);
            let edited = self.edit_extents(node, Edit::put(extent), written, take);
            let (_, level) = edited.map_err(|error| self.half_mapped(node, done > 0, error))?;
            highest = highest.max(level);
            done += u32::from(extent.len);
        }
        Ok(highest)
    }

    /// Maps the file blocks from `at` on that are still holes to blocks that stay unwritten: write-back may have mapped
    /// some since the caller looked. Blocks that are not mapped, also after an error, are given back.
    pub(super) fn set_unwritten(&self, node: &Incore, at: Lbn, to: BlockRun) -> Result<()> {
        let _changing = node.map.write();
        let mut done = 0;
        while done < to.len {
            let (lbn, start, left) = (at.0 + u64::from(done), to.start.0 + u64::from(done), to.len - done);
            match self.map_hole(node, lbn, start, left) {
                Ok((len, true)) => done += len,
                Ok((len, false)) => {
                    self.alloc.free(Level::NONE, Freed::Data { start, len })?;
                    done += len;
                }
                Err(error) => {
                    self.alloc.free(Level::NONE, Freed::Data { start, len: left })?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Maps the blocks at the start of a range if they are a hole. Returns how many are one or are mapped, and whether
    /// they were a hole.
    fn map_hole(&self, node: &Incore, lbn: u64, start: u64, most: u32) -> Result<(u32, bool)> {
        let hole = match self.find_extent(node, lbn)? {
            Found::Extent(extent) => return Ok(((extent.end() - lbn).min(most.into()) as u32, false)),
            Found::Hole(end) => end - lbn,
        };
        let extent = Extent::first_of(lbn, start, hole.min(most.into()), true);
        let take = &mut |_| self.allocate(|draft| ffs::meta_block(draft, node.at.group));
        self.edit_extents(node, Edit::put(extent), None, take)?;
        Ok((extent.len.into(), true))
    }

    /// Unmaps up to `budget` blocks of `from..to`, the last ones first. The caller holds the map, and stores the inode.
    pub(super) fn clear_extents(&self, node: &Incore, from: u64, to: u64, budget: u32) -> Result<Progress> {
        let edit = Edit::cut(from..to.min(extent::LBN_END), budget.into(), self.cut_groups_max());
        let take = &mut |_| self.allocate(|draft| ffs::meta_block(draft, node.at.group));
        let (plan, _) = self.edit_extents(node, edit, None, take)?;
        Ok(if plan.is_spent { Progress::More } else { Progress::Done })
    }

    fn edit_extents(
        &self,
        node: &Incore,
        edit: Edit,
        written: Option<Epoch>,
        take: TakeBlock<'_>,
    ) -> Result<(Plan, Level)> {
        let (root, owner) = {
            let state = node.state.lock();
            (state.inode.block_bytes(), state.inode.owner(node.ino))
        };
        let tree = Tree { owner, root: &root, block: node.at.block };
        let put = edit.put;
        let mut nodes = MountedNodes { ext: self, owner, take, read: BTreeMap::new(), taken: Vec::new() };
        let planned = edit::plan(&tree, &self.geo, self.geo.block_bytes(), edit, &mut nodes);
        let MountedNodes { read, taken, .. } = nodes;
        let planned = planned.and_then(|plan| {
            self.check_unmapped(node, &plan)?;
            self.check_count(node, plan.blocks_more(put))?;
            put.map_or(Ok(()), |put| self.alloc.record_use(put.start.0, put.len.into()))?;
            Ok(plan)
        });
        match planned {
            Ok(plan) => {
                let level = self.carry_out(node, owner, &plan, put, written, &read);
                let level = level.map_err(|error| self.half_mapped(node, true, error))?;
                Ok((plan, level))
            }
            Err(error) => {
                let give_back = |block: &u64| self.alloc.free(Level::NONE, Freed::Data { start: *block, len: 1 });
                taken.iter().try_for_each(give_back)?;
                self.health.watch(Err(error))
            }
        }
    }

    /// Returns damage if an edit takes blocks from the file that it cannot have: they would be freed.
    fn check_unmapped(&self, node: &Incore, plan: &Plan) -> Result<()> {
        plan.unmapped.iter().try_for_each(|gone| self.check_run(node, gone.start.0, gone.len.into()))?;
        plan.removed.iter().try_for_each(|gone| self.check_run(node, gone.0, 1))
    }

    /// Returns an error if the inode cannot count so many blocks more.
    fn check_count(&self, node: &Incore, more: i64) -> Result<()> {
        let counted = self.counted(&node.state.lock().inode, more);
        if more > 0 && counted > map::count_max(&self.geo) { Err(Self::too_big()) } else { Ok(()) }
    }

    /// Carries a planned edit out: all of it joins the transaction of the running op. `read` has the nodes that change;
    /// the blocks that are mapped are shown as used already.
    fn carry_out(
        &self,
        node: &Incore,
        owner: Owner,
        plan: &Plan,
        put: Option<Extent>,
        written: Option<Epoch>,
        read: &BTreeMap<u64, Arc<Block>>,
    ) -> Result<Level> {
        debug_assert!(self.meta.has_journal(), "an edit of several blocks needs a transaction");
        let mut level = Level::NONE;
        for (no, bytes) in &plan.added {
            let mut image = Buf::zeroed(self.geo.block_bytes());
            image.copy_from_slice(bytes);
            let (block, fresh) = self.fresh(no.0, Kind::Map, image)?;
            block.belongs_to(owner);
            level = level.max(fresh);
        }
        for (no, bytes) in &plan.rewritten {
            let block = read.get(&no.0).expect("an edit reads what it rewrites");
            block.belongs_to(owner);
            let needs = Needs::from(Level::NONE).and_data(written);
            level = level.max(self.meta.change(block, 0..bytes.len(), needs, |old| old.copy_from_slice(bytes)));
        }
        {
            let mut state = node.state.lock();
            state.inode.set_block_bytes(&plan.root);
            state.needs = state.needs.max(level);
            state.data = state.data.max(written);
            self.count_blocks(&mut state, plan.blocks_more(put));
        }
        for block in &plan.removed {
            self.alloc.free(level, Freed::Meta { block: block.0 })?;
        }
        plan.unmapped.iter().try_for_each(|extent| self.free_extent(node, extent, put, level))?;
        Ok(level)
    }

    /// Frees the blocks of a part of an extent that is gone, unless `put` maps them again.
    fn free_extent(&self, node: &Incore, gone: &Extent, put: Option<Extent>, level: Level) -> Result<()> {
        let is_kept = put.is_some_and(|put| put.start.0 + u64::from(gone.lbn - put.lbn) == gone.start.0);
        if is_kept {
            return Ok(());
        }
        if node.kind == FileKind::Regular {
            return self.alloc.free(level, Freed::Data { start: gone.start.0, len: gone.len.into() });
        }
        let blocks = gone.start.0..gone.start.0 + u64::from(gone.len);
        blocks.into_iter().try_for_each(|block| self.alloc.free(level, Freed::Meta { block }))
    }
}

/// The nodes of a mounted file's tree.
struct MountedNodes<'a> {
    ext: &'a Ext,
    owner: Owner,
    take: TakeBlock<'a>,
    /// The nodes that were read: they stay in memory until they are changed.
    read: BTreeMap<u64, Arc<Block>>,
    /// The blocks that were taken for new nodes.
    taken: Vec<u64>,
}

impl edit::Nodes for MountedNodes<'_> {
    type Error = moafs_vfs::Error;

    fn read(&mut self, child: Child) -> Result<Vec<u8>> {
        let block = self.ext.extent_node(self.owner, child)?;
        let bytes = block.view(<[u8]>::to_vec);
        self.read.insert(child.block.0, block);
        Ok(bytes)
    }

    fn allocate(&mut self) -> Result<BlockNo> {
        let (block, _) = (self.take)(MapPlace::Zone)?;
        self.taken.push(block);
        Ok(BlockNo(block))
    }
}

/// The result of a search for a file block.
enum Found {
    Extent(Extent),
    /// A hole up to this file block.
    Hole(u64),
}
