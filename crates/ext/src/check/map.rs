//! Pass 1: the blocks that an inode's map uses, by pointers here, by extents in `extents`.

use std::collections::BTreeSet;
use std::ops::Range;

use moafs_disk::Buf;

use super::scan::{Blocks, Judge, Pointer, Step, walk_map};
use super::shared::{Sharing, is_indirect_block};
use super::volume::Volume;
use super::{CheckError, Checker, Issue, Log, extents};
use crate::format::extent::Extent;
use crate::format::{BlockNo, Geometry, Inode, InodeNo, bitmap, map, put_u32};

/// Adjacent file blocks on adjacent blocks of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The first file block.
    pub(super) lbn: u64,
    pub(super) start: BlockNo,
    pub(super) len: u64,
    pub(super) unwritten: bool,
}

impl Run {
    pub(super) fn one(lbn: u64, start: BlockNo) -> Run {
        Run { lbn, start, len: 1, unwritten: false }
    }

    /// Returns the file block behind the last one.
    fn end(&self) -> u64 {
        self.lbn + self.len
    }

    fn blocks(self) -> impl Iterator<Item = (u64, BlockNo)> {
        (0..self.len).map(move |at| (self.lbn + at, BlockNo(self.start.0 + at)))
    }
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Run {
        let Extent { lbn, len, start, unwritten } = extent;
        Run { lbn: lbn.into(), start, len: len.into(), unwritten }
    }
}

/// The legal blocks of a map.
#[derive(Debug, Clone, Default)]
pub(super) struct Mapped {
    /// Ascending by file block.
    pub(super) runs: Vec<Run>,
    /// Indirect blocks, or nodes of the extent tree.
    pub(super) nodes: Vec<BlockNo>,
    /// Number of blocks in the runs.
    pub(super) count: u64,
}

impl Mapped {
    /// Takes a run behind all others.
    pub(super) fn push(&mut self, run: Run) {
        self.count += run.len;
        match self.runs.last_mut() {
            Some(last)
                if last.end() == run.lbn
                    && last.start.0 + last.len == run.start.0
                    && last.unwritten == run.unwritten =>
            {
                last.len += run.len;
            }
            _ => self.runs.push(run),
        }
    }

    /// Returns the number of blocks that count for the inode.
    pub(super) fn blocks_used(&self) -> u64 {
        self.count + self.nodes.len() as u64
    }

    /// Returns the file block behind the last one.
    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Returns the file block behind the last one that was written.
    pub(super) fn written_end(&self) -> u64 {
        self.runs.iter().rev().find(|run| !run.unwritten).map_or(0, Run::end)
    }

    /// Returns all blocks with their numbers in the file.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, BlockNo)> + '_ {
        self.runs.iter().flat_map(|run| run.blocks())
    }

    /// Returns the runs as extents of legal lengths.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.runs.iter().flat_map(|run| Extent::cover(run.lbn, run.start.0, run.len, run.unwritten)).collect()
    }
}

impl Checker<'_> {
    /// Walks an inode's map, and claims its blocks. Blocks from file block `cut` on are given up.
    pub(super) fn check_map(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        cut: Option<u64>,
    ) -> Result<Mapped, CheckError> {
        self.state_mut(ino).has_map = true;
        if extents::has_tree(inode, &self.geo) {
            return self.check_extents(ino, inode, cut);
        }
        let mut judge = MapJudge {
            ino,
            geo: &self.geo,
            volume: &self.volume,
            fixed: &self.fixed,
            log: &mut self.log,
            used: &mut self.used,
            sharing: &mut self.sharing,
            cut,
            own: BTreeSet::new(),
            failed: None,
            mapped: Mapped::default(),
        };
        walk_map(&self.volume, &self.geo, &mut inode.block, &mut judge)?;
        judge.failed.map_or(Ok(judge.mapped), Err)
    }

    /// Moves a directory's blocks together. Indirect blocks that are no longer needed stay in `mapped`, so this sweep
    /// counts them still; the next one corrects the count.
    pub(super) fn squeeze(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &mut Mapped) -> Result<(), CheckError> {
        let mut dense = Mapped { nodes: std::mem::take(&mut mapped.nodes), ..Mapped::default() };
        for (lbn, (_, block)) in (0..).zip(mapped.blocks()) {
            dense.push(Run::one(lbn, block));
        }
        *mapped = dense;
        if extents::has_tree(inode, &self.geo) {
            return self.rebuild_tree(ino, inode, mapped).map(drop);
        }
        let mut builder = Builder {
            volume: &self.volume,
            geo: &self.geo,
            data: mapped.blocks().map(|(_, block)| block.0 as u32).collect::<Vec<_>>().into_iter(),
            pool: mapped.nodes.clone(),
        };
        inode.block = std::array::from_fn(|slot| builder.build(map::level_of_slot(slot)));
        let unused = builder.pool;
        unused.into_iter().for_each(|block| self.release(block));
        Ok(())
    }

    /// Returns the blocks of a file of the volume's own, in their order; `None` if there is a hole, a block that no map
    /// may lead to, or one that was never written.
    pub(super) fn dense_blocks(&self, inode: &Inode) -> Result<Option<Vec<BlockNo>>, CheckError> {
        let mut dense = DenseJudge { geo: &self.geo, fixed: &self.fixed, blocks: Vec::new(), is_dense: true };
        if extents::has_tree(inode, &self.geo) {
            extents::walk_tree(&self.volume, &self.geo, &inode.block_bytes(), &mut dense)?;
        } else {
            walk_map(&self.volume, &self.geo, &mut inode.block.clone(), &mut dense)?;
        }
        Ok(dense.is_dense.then_some(dense.blocks))
    }
}

/// Checks whether a map has no holes and points only to blocks that it may point to.
struct DenseJudge<'a> {
    geo: &'a Geometry,
    fixed: &'a [Range<u64>],
    blocks: Vec<BlockNo>,
    is_dense: bool,
}

impl DenseJudge<'_> {
    fn is_legal(&self, block: BlockNo) -> bool {
        // More blocks than the volume has are a loop.
        self.geo.may_point_to(block) && !is_in(self.fixed, block) && (self.blocks.len() as u64) < self.geo.blocks
    }
}

impl Judge for DenseJudge<'_> {
    fn pointer(&mut self, Pointer { block, level, lbn }: Pointer) -> Step {
        self.is_dense &= self.is_legal(block) && lbn == self.blocks.len() as u64;
        if !self.is_dense {
            return Step::Skip;
        }
        if level == 0 {
            self.blocks.push(block);
        }
        Step::Keep
    }

    fn rewritten(&mut self, block: BlockNo, _: Buf) {
        unreachable!("no pointer of block {block} was cleared");
    }
}

impl extents::TreeJudge for DenseJudge<'_> {
    fn node(&mut self, visit: &extents::Visit<'_>) -> Result<bool, CheckError> {
        self.is_dense &= visit.found.problems.is_empty() && self.is_legal(visit.child.block);
        Ok(self.is_dense)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        for (lbn, block) in Run::from(extent).blocks() {
            self.is_dense &= !extent.unwritten && self.is_legal(block) && lbn == self.blocks.len() as u64;
            if !self.is_dense {
                break;
            }
            self.blocks.push(block);
        }
        Ok(())
    }

    fn problem(&mut self, _: Option<BlockNo>, _: String) {
        self.is_dense = false;
    }
}

/// Judges pointers against the claims of other inodes.
struct MapJudge<'a, 'v> {
    ino: InodeNo,
    geo: &'a Geometry,
    volume: &'a Volume<'v>,
    fixed: &'a [Range<u64>],
    log: &'a mut Log,
    used: &'a mut [u8],
    sharing: &'a mut Sharing,
    /// The file block from which on pointers are given up.
    cut: Option<u64>,
    /// Indirect blocks of this map.
    own: BTreeSet<u64>,
    failed: Option<CheckError>,
    mapped: Mapped,
}

impl MapJudge<'_, '_> {
    /// Returns true if a block that has an owner already is no indirect block at all.
    fn is_stray(&mut self, block: BlockNo) -> bool {
        match self.volume.read(block) {
            Ok(page) => !is_indirect_block(&page, self.geo),
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    /// Judges a pointer to a block that has an owner. File data stay: the repair copies them.
    fn judge_shared(&mut self, pointer: Pointer) -> Step {
        let Pointer { block, level, .. } = pointer;
        self.sharing.note(block, self.geo);
        if level == 0 {
            return Step::Keep;
        }
        if self.sharing.visits_left == 0 {
            return Step::Skip;
        }
        self.sharing.visits_left -= 1;
        Step::Keep
    }
}

impl Judge for MapJudge<'_, '_> {
    fn pointer(&mut self, pointer: Pointer) -> Step {
        let Pointer { block, level, lbn } = pointer;
        if self.cut.is_some_and(|cut| lbn >= cut) {
            return Step::Clear;
        }
        let inode = self.ino;
        let in_use = self.geo.may_point_to(block) && bitmap::test(self.used, block.0 as u32);
        let issue = if !self.geo.may_point_to(block) {
            Issue::IllegalBlock { inode, lbn, level, block }
        } else if level > 0 && !self.own.insert(block.0) {
            Issue::MapLoop { inode, lbn, level, block }
        } else if level > 0 && in_use && self.is_stray(block) {
            if !is_in(self.fixed, block) {
                self.sharing.note(block, self.geo);
                return Step::Skip;
            }
            Issue::IllegalBlock { inode, lbn, level, block }
        } else {
            match level {
                0 => self.mapped.push(Run::one(lbn, block)),
                _ => self.mapped.nodes.push(block),
            }
            let first = bitmap::set(self.used, block.0 as u32);
            return if first { Step::Keep } else { self.judge_shared(pointer) };
        };
        if self.log.found(issue) { Step::Clear } else { Step::Skip }
    }

    fn rewritten(&mut self, block: BlockNo, contents: Buf) {
        self.volume.write(block, contents);
    }
}

/// Builds a dense map from data blocks and a pool of blocks for pointers.
struct Builder<'a, 'v> {
    volume: &'a Volume<'v>,
    geo: &'a Geometry,
    data: std::vec::IntoIter<u32>,
    pool: Vec<BlockNo>,
}

impl Builder<'_, '_> {
    /// Returns the pointer to a subtree of `level` over the next data blocks; 0 if none are left. A
    /// dense map never needs more indirect blocks than the sparse one that gave the pool.
    fn build(&mut self, level: u8) -> u32 {
        if self.data.as_slice().is_empty() {
            return 0;
        }
        if level == 0 {
            return self.data.next().unwrap_or(0);
        }
        let Some(block) = self.pool.pop() else { return 0 };
        let mut contents = Buf::zeroed(self.geo.block_bytes());
        for index in 0..self.geo.apb as usize {
            let child = self.build(level - 1);
            put_u32(&mut contents, 4 * index, child);
        }
        self.volume.write(block, contents);
        block.0 as u32
    }
}

/// Returns true if one of these ranges, which are sorted, has the block. Damaged descriptors make
/// them overlap.
pub(super) fn is_in(ranges: &[Range<u64>], block: BlockNo) -> bool {
    let behind = ranges.partition_point(|range| range.start <= block.0);
    ranges[..behind].iter().rev().any(|range| range.contains(&block.0))
}
