//! Pass 1: the blocks that an inode's map uses, by pointers here, by extents in `extents`.

use std::collections::BTreeSet;
use std::ops::Range;

use moafs_disk::Buf;

use super::checker::{Checker, is_in};
use super::claims::Sharing;
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::{Mapped, Run};
use super::report::Log;
use super::scan::{Blocks, Judge, Pointer, Step, is_indirect_block, walk_map};
use super::tree::{TreeJudge, Visit, has_tree, walk_tree};
use super::volume::Volume;
use crate::format::extent::Extent;
use crate::format::{BlockNo, Geometry, Inode, InodeNo, bitmap, map, put_u32};

impl Checker<'_> {
    /// Walks an inode's map, and claims its blocks. Blocks from file block `cut` on are given up.
    pub(super) fn check_map(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        cut: Option<u64>,
    ) -> Result<Mapped, CheckError> {
        self.state_mut(ino).has_map = true;
        if has_tree(inode, &self.geo) {
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
        if has_tree(inode, &self.geo) {
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
        if has_tree(inode, &self.geo) {
            walk_tree(&self.volume, &self.geo, &inode.block_bytes(), &mut dense)?;
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

impl TreeJudge for DenseJudge<'_> {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
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
