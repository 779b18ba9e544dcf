//! Pass 1: extent trees. What makes sense of a tree is kept; where a rule is broken the tree is built anew from that.

use std::collections::BTreeSet;

use moafs_disk::Buf;

use super::checker::Checker;
use super::claims::Sharing;
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::{Mapped, Run};
use super::report::Log;
use super::tree::{TreeJudge, Visit, mapped_by_tree, walk_tree};
use crate::format::extent::{Extent, build};
use crate::format::{BlockNo, Geometry, Inode, InodeNo, Owner, Sealed, Structure, bitmap};

impl Checker<'_> {
    /// Walks an inode's extent tree and claims its blocks; builds it anew if a rule is broken. Blocks from file block
    /// `cut` on are given up.
    pub(super) fn check_extents(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        cut: Option<u64>,
    ) -> Result<Mapped, CheckError> {
        let mut judge = ClaimJudge {
            owner: inode.owner(ino),
            geo: &self.geo,
            log: &mut self.log,
            used: &mut self.used,
            sharing: &mut self.sharing,
            cut: cut.unwrap_or(u64::MAX),
            own: BTreeSet::new(),
            mapped: Mapped::default(),
            next: 0,
            is_broken: false,
        };
        walk_tree(&self.volume, &self.geo, &inode.block_bytes(), &mut judge)?;
        let ClaimJudge { mut mapped, is_broken, .. } = judge;
        if is_broken {
            self.rebuild_tree(ino, inode, &mut mapped)?;
        }
        Ok(mapped)
    }

    /// Writes a tree of what is mapped into the inode and the blocks of the old tree, and gives up those that are left
    /// over. The new tree never needs more blocks than the old one had. Returns false, and does nothing, while another
    /// inode claims a node.
    pub(super) fn rebuild_tree(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        mapped: &mut Mapped,
    ) -> Result<bool, CheckError> {
        // Another inode's node in the same block must stay: first the claims are resolved.
        if mapped.nodes.iter().any(|block| self.sharing.has(*block)) {
            return Ok(false);
        }
        let (owner, extents) = (inode.owner(ino), mapped.extents());
        let mut pool = std::mem::take(&mut mapped.nodes);
        let mut taken = Vec::new();
        let mut take = || {
            let block = pool.pop().ok_or(CheckError::Full)?;
            taken.push(block);
            Ok::<_, CheckError>(block)
        };
        let built = build(&extents, self.geo.block_bytes(), &mut take)?;
        for (block, bytes) in built.nodes {
            self.volume.write_sealed(block, Sealed::Extents(owner), Buf::copy_of(&bytes));
        }
        inode.set_block_bytes(&built.root);
        mapped.nodes = taken;
        pool.into_iter().for_each(|block| self.release(block));
        Ok(true)
    }

    /// Returns what a tree maps that pass 1 has looked at.
    pub(super) fn mapped_of(&self, inode: &Inode) -> Result<Mapped, CheckError> {
        mapped_by_tree(&self.volume, &self.geo, inode)
    }
}

/// Claims the blocks of a tree.
struct ClaimJudge<'a> {
    owner: Owner,
    geo: &'a Geometry,
    log: &'a mut Log,
    used: &'a mut [u8],
    sharing: &'a mut Sharing,
    cut: u64,
    /// Nodes of this tree.
    own: BTreeSet<u64>,
    mapped: Mapped,
    /// The file block behind the last extent.
    next: u64,
    /// True if the tree is to be built anew.
    is_broken: bool,
}

impl ClaimJudge<'_> {
    fn broken(&mut self, issue: Issue) {
        self.is_broken |= self.log.found(issue);
    }

    /// Claims the blocks of a run. Those that have an owner stay in the map: the repair copies them.
    fn claim(&mut self, run: Run) {
        let (first, last) = (run.start.0 as u32, (run.start.0 + run.len) as u32);
        if bitmap::is_clear(self.used, first..last) {
            return bitmap::set_range(self.used, first..last);
        }
        for block in first..last {
            if !bitmap::set(self.used, block) {
                self.sharing.note(BlockNo(block.into()), self.geo);
            }
        }
    }
}

impl TreeJudge for ClaimJudge<'_> {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
        let Visit { child, page, found } = visit;
        let (inode, block, level) = (self.owner.ino, child.block, child.bounds.depth as u8 + 1);
        let lbn = child.bounds.first.into();
        if u64::from(child.bounds.first) >= self.cut {
            self.is_broken = true;
            return Ok(false);
        }
        if !self.own.insert(block.0) {
            self.broken(Issue::MapLoop { inode, lbn, level, block });
            return Ok(false);
        }
        if !found.is_node {
            found.problems.iter().for_each(|problem| self.problem(Some(block), problem.clone()));
            return Ok(false);
        }
        let sum = self.geo.checksums.verify(Sealed::Extents(self.owner), page);
        if let (Err(problem), true) = (sum, found.problems.is_empty()) {
            let structure = Structure::ExtentNode { inode, depth: child.bounds.depth };
            self.broken(Issue::Checksum { structure, problem });
        }
        if !bitmap::set(self.used, block.0 as u32) {
            self.sharing.note(block, self.geo);
            if self.sharing.visits_left == 0 {
                return Ok(false);
            }
            self.sharing.visits_left -= 1;
        }
        self.mapped.nodes.push(block);
        Ok(true)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        let mut run = Run::from(extent);
        if run.lbn < self.next {
            self.problem(None, format!("the extent at file block {} overlaps the one before it", run.lbn));
            return Ok(());
        }
        if self.mapped.count + run.len > self.geo.blocks {
            self.problem(None, format!("at file block {} it maps more blocks than the volume has", run.lbn));
            return Ok(());
        }
        self.next = extent.end();
        if extent.end() > self.cut {
            self.is_broken = true;
            run.len = self.cut.saturating_sub(run.lbn);
        }
        if run.len > 0 {
            self.claim(run);
            self.mapped.push(run);
        }
        Ok(())
    }

    fn problem(&mut self, block: Option<BlockNo>, problem: String) {
        self.broken(Issue::ExtentTree { inode: self.owner.ino, block, problem });
    }
}
