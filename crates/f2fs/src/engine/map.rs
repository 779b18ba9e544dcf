//! Maps file blocks to blocks of the volume, and changes the mapping.
//!
//! Addresses lie in the inode or in direct nodes below it. A writer that changes the way to them
//! holds the file's `map` lock; readers need not: a node's bytes are whole at every moment.

use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::format::{Admission, Progress, UnmapStep};
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Lbn, LbnRange, Mapping};
use moafs_vfs::{Error, Result};
use smallvec::SmallVec;

use super::convert::damaged;
use super::incore::Incore;
use super::node_cache::Node;
use super::space::Origin;
use super::volume::F2fs;
use crate::format::inode::{self, Inline, Layout};
use crate::format::node;
use crate::format::summary::SummaryEntry;
use crate::format::{BlkAddr, Nid, Structure, u32_at};

/// A node that holds addresses of file blocks.
pub(super) struct Leaf {
    pub(super) node: Arc<Node>,
    /// The inode's layout, if the node is the inode.
    layout: Option<Layout>,
    /// The file blocks whose addresses it holds.
    pub(super) span: Range<u64>,
    /// The nodes above, the inode first, each with the slot in which it points to the next.
    trail: SmallVec<[(Arc<Node>, usize); 3]>,
}

impl Leaf {
    pub(super) fn addr(&self, bytes: &[u8], lbn: u64) -> BlkAddr {
        let slot = (lbn - self.span.start) as usize;
        match &self.layout {
            Some(layout) => layout.addr(bytes, slot),
            None => node::addr(bytes, slot),
        }
    }

    /// Returns the words that hold the addresses of `range`, which lies in the span.
    fn words<'a>(&self, bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
        let all = self.layout.map_or(0..4 * node::ADDRS_PER_NODE, |layout| layout.addr_range());
        let byte = |lbn: u64| 4 * (lbn - self.span.start) as usize;
        &bytes[all][byte(range.start)..byte(range.end)]
    }

    pub(super) fn set(&self, bytes: &mut [u8], lbn: u64, addr: BlkAddr) {
        let slot = (lbn - self.span.start) as usize;
        match &self.layout {
            Some(layout) => layout.set_addr(bytes, slot, addr),
            None => node::set_addr(bytes, slot, addr),
        }
    }
}

/// The result of following the way to a file block.
enum Found {
    Leaf(Leaf),
    /// There is no such node: these file blocks are holes.
    Missing(Range<u64>),
}

/// However many runs there are: so many blocks have a few leaves.
pub(super) const UNMAP_STEP: UnmapStep = UnmapStep { blocks: 1024, runs: u32::MAX };

impl F2fs {
    /// Returns one run of blocks from `at` on, of at most `max` blocks.
    pub(super) fn map_run(&self, file: &Incore, at: Lbn, max: u32) -> Result<Mapping> {
        if self.is_inline(file, Inline::DATA | Inline::DENTRY) {
            return Ok(Mapping::Hole { len: max });
        }
        let leaf = match self.find(file, at.0)? {
            Found::Leaf(leaf) => leaf,
            Found::Missing(range) => return Ok(Mapping::Hole { len: (range.end - at.0).min(max.into()) as u32 }),
        };
        let end = leaf.span.end.min(at.0 + u64::from(max));
        let (first, len) = leaf.node.view(|bytes| {
            let first = leaf.addr(bytes, at.0);
            let step = u32::from(first.is_real());
            let words = leaf.words(bytes, &(at.0..end)).chunks_exact(4).map(|word| u32_at(word, 0));
            let follows = words.zip(0u32..).take_while(|(addr, i)| first.0.checked_add(i * step) == Some(*addr));
            (first, follows.count() as u32)
        });
        Ok(match first {
            BlkAddr::NULL => Mapping::Hole { len },
            BlkAddr::NEW => Mapping::Unwritten(BlockRun { start: BlockAddr(first.0.into()), len }),
            _ => {
                let last = BlkAddr(first.0.saturating_add(len - 1));
                if !self.geo.is_main(first) || !self.geo.is_main(last) {
                    let problem = format!("block {} of inode {} is said to lie at {first}", at.0, file.ino);
                    return self.health.watch(Err(damaged(self.structure_of(&leaf.node).damage(None, problem))));
                }
                Mapping::Run(BlockRun { start: BlockAddr(first.0.into()), len })
            }
        })
    }

    fn structure_of(&self, node: &Node) -> Structure {
        if node.nid == node.ino { Structure::Inode(node.ino) } else { Structure::Node(node.nid) }
    }

    fn find(&self, file: &Incore, lbn: u64) -> Result<Found> {
        self.walk(file, lbn, None)
    }

    /// Returns the leaf for a file block; missing nodes on the way to it are made.
    pub(super) fn leaf(&self, file: &Incore, lbn: u64, admission: &mut Admission) -> Result<Leaf> {
        match self.walk(file, lbn, Some(admission))? {
            Found::Leaf(leaf) => Ok(leaf),
            Found::Missing(_) => Err(Error::Posix(libc::EFBIG)),
        }
    }

    /// Returns the leaf for a file block, if there is one.
    pub(super) fn existing_leaf(&self, file: &Incore, lbn: u64) -> Result<Option<Leaf>> {
        Ok(match self.find(file, lbn)? {
            Found::Leaf(leaf) => Some(leaf),
            Found::Missing(_) => None,
        })
    }

    fn walk(&self, file: &Incore, lbn: u64, mut making: Option<&mut Admission>) -> Result<Found> {
        let layout = self.layout(file);
        let addresses = layout.addresses();
        let Some(path) = node::path(lbn, addresses) else { return Ok(Found::Missing(lbn..u64::MAX)) };
        let span = node::span(lbn, addresses);
        let mut trail = SmallVec::new();
        let mut node = Arc::clone(&file.node);
        for (depth, step) in path.steps.iter().enumerate() {
            let slot = usize::from(step.slot);
            let points = |bytes: &[u8]| if depth == 0 { inode::nid_slot(bytes, slot) } else { node::nid(bytes, slot) };
            let nid = node.view(points);
            let child = match (&mut making, nid) {
                (None, Nid::NONE) => return Ok(Found::Missing(node::covered(lbn, addresses, depth))),
                (Some(admission), Nid::NONE) => {
                    let child = self.new_node(Some(file.ino), step.offset, file.is_dir(), admission)?;
                    self.change(&node, |bytes| point(bytes, depth, slot, child.nid));
                    self.count_blocks(file, 1);
                    child
                }
                (_, nid) => self.node(nid, file.ino)?,
            };
            if child.offset != step.offset {
                let problem =
                    format!("it is node {} of its file, and found where node {} belongs", child.offset, step.offset);
                return self.health.watch(Err(damaged(Structure::Node(child.nid).damage(None, problem))));
            }
            trail.push((node, slot));
            node = child;
        }
        let layout = path.steps.is_empty().then_some(layout);
        Ok(Found::Leaf(Leaf { node, layout, span, trail }))
    }

    /// Returns the number of nodes above a file block that are missing, counted from the lowest.
    pub(super) fn missing_nodes(&self, file: &Incore, lbn: u64) -> Result<u8> {
        let path = node::path(lbn, self.layout(file).addresses()).ok_or(Error::Posix(libc::EFBIG))?;
        let mut node = Arc::clone(&file.node);
        for (depth, step) in path.steps.iter().enumerate() {
            let slot = usize::from(step.slot);
            let points = |bytes: &[u8]| if depth == 0 { inode::nid_slot(bytes, slot) } else { node::nid(bytes, slot) };
            match node.view(points) {
                Nid::NONE => return Ok((path.steps.len() - depth) as u8),
                nid => node = self.node(nid, file.ino)?,
            }
        }
        Ok(0)
    }

    // -- changing

    /// Maps the file blocks `at` to the blocks `to`.
    pub(super) fn place_run(&self, file: &Incore, at: LbnRange, to: BlockRun, admission: &mut Admission) -> Result<()> {
        let _map = file.map.lock();
        self.leave_inline(file, at)?;
        self.space.end_flight(to);
        self.forget_owned(file, at.start.0..at.end().0);
        for i in 0..u64::from(at.len) {
            let lbn = at.start.0 + i;
            let leaf = self.leaf(file, lbn, admission)?;
            self.point_at(file, &leaf, lbn, BlkAddr((to.start.0 + i) as u32), Origin::Written, admission)?;
        }
        Ok(())
    }

    /// Points a file block at a block of the volume, and frees the one it had.
    pub(super) fn point_at(
        &self,
        file: &Incore,
        leaf: &Leaf,
        lbn: u64,
        to: BlkAddr,
        origin: Origin,
        admission: &mut Admission,
    ) -> Result<()> {
        let version = self.nat.get(leaf.node.nid)?.version;
        let offset = (lbn - leaf.span.start) as u16;
        let before = self.change(&leaf.node, |bytes| {
            let before = leaf.addr(bytes, lbn);
            leaf.set(bytes, lbn, to);
            before
        });
        if to.is_real() {
            self.space.place(to, SummaryEntry { nid: leaf.node.nid, version, offset }, origin);
        }
        if before == BlkAddr::NULL {
            self.space.count_promised(|usage| usage.blocks += 1, admission);
            self.count_blocks(file, 1);
        } else if before.is_real() && before != to {
            self.space.free(before);
        }
        Ok(())
    }

    /// Unmaps and frees about `at_most` blocks of `from..to`, from the end.
    pub(super) fn unmap_range(&self, file: &Incore, from: u64, to: Option<u64>, at_most: u32) -> Result<Progress> {
        let _map = file.map.lock();
        if self.is_inline(file, Inline::DATA) {
            if from == 0 {
                self.clear_inline(file)?;
            }
            return Ok(Progress::Done);
        }
        // Devices have their numbers where other files have addresses.
        let has_blocks = matches!(file.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        if !has_blocks || self.is_inline(file, Inline::DENTRY) {
            return Ok(Progress::Done);
        }
        let limit = node::lbn_limit(self.layout(file).addresses());
        let mut at = to.unwrap_or(limit).min(limit);
        let mut freed = 0;
        while at > from {
            match self.find(file, at - 1)? {
                Found::Missing(range) => at = range.start.max(from),
                Found::Leaf(leaf) => {
                    let start = leaf.span.start.max(from);
                    freed += self.clear(file, leaf, start..at)?;
                    at = start;
                    if freed >= at_most && at > from {
                        return Ok(Progress::More);
                    }
                }
            }
        }
        Ok(Progress::Done)
    }

    /// Frees the blocks of a leaf's range, and the leaf if it is empty then. Returns the work done, in blocks.
    pub(super) fn clear(&self, file: &Incore, leaf: Leaf, range: Range<u64>) -> Result<u32> {
        self.forget_owned(file, range.clone());
        let found: Vec<(u64, BlkAddr)> = leaf.node.view(|bytes| {
            let filled = node::filled(leaf.words(bytes, &range));
            filled.map(|(at, addr)| (range.start + at as u64, addr)).collect()
        });
        if !found.is_empty() {
            self.change(&leaf.node, |bytes| found.iter().for_each(|(lbn, _)| leaf.set(bytes, *lbn, BlkAddr::NULL)));
            found.iter().filter(|(_, addr)| addr.is_real()).for_each(|(_, addr)| self.space.free(*addr));
            self.space.unmade_blocks(found.iter().filter(|(_, addr)| *addr == BlkAddr::NEW).count() as u64);
            self.space.change_usage(|usage| usage.blocks = usage.blocks.saturating_sub(found.len() as u64));
            self.count_blocks(file, -(found.len() as i64));
        }
        self.prune(file, leaf)?;
        Ok(found.len() as u32 + 1)
    }

    /// Frees a leaf that holds nothing, and the nodes above that then hold nothing.
    fn prune(&self, file: &Incore, leaf: Leaf) -> Result<()> {
        let mut node = leaf.node;
        for (depth, (parent, slot)) in leaf.trail.into_iter().enumerate().rev() {
            if !node.view(node::is_blank) {
                return Ok(());
            }
            self.free_node(&node)?;
            self.require_checkpoint(file);
            self.count_blocks(file, -1);
            self.change(&parent, |bytes| point(bytes, depth, slot, Nid::NONE));
            node = parent;
        }
        Ok(())
    }
}

/// Points a slot of an inode (at depth 0) or of an indirect node at a node.
fn point(bytes: &mut [u8], depth: usize, slot: usize, nid: Nid) {
    if depth == 0 { inode::set_nid_slot(bytes, slot, nid) } else { node::set_nid(bytes, slot, nid) }
}
