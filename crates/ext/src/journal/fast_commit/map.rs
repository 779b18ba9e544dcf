//! The extent trees of files in a [`Scratch`] volume.

use moafs_disk::Kind;
use moafs_vfs::{Error, Result};

use super::scratch::Scratch;
use crate::format::extent::edit::{self, Edit};
use crate::format::extent::{self, Child, Extent, Node, Tree};
use crate::format::{BlockNo, Inode, InodeNo, Owner, Place, Sealed, Structure};
use crate::health::damaged;

/// The blocks of a file.
pub(super) struct Mapped {
    pub(super) extents: Vec<Extent>,
    pub(super) nodes: Vec<BlockNo>,
}

impl Mapped {
    /// Returns the number of blocks, nodes included.
    pub(super) fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.len)).sum::<u64>() + self.nodes.len() as u64
    }

    /// Returns the runs of blocks on the volume, nodes included.
    pub(super) fn runs(&self) -> impl Iterator<Item = (BlockNo, u64)> + '_ {
        let data = self.extents.iter().map(|extent| (extent.start, extent.len.into()));
        data.chain(self.nodes.iter().map(|node| (*node, 1)))
    }
}

/// Returns what the tree of an inode maps.
///
/// # Errors
/// Broken rules of the tree; blocks that no file may own.
pub(super) fn read(scratch: &Scratch<'_>, ino: InodeNo, inode: &Inode) -> Result<Mapped> {
    let place = Place::of(Structure::Inode(ino));
    let mut mapped = Mapped { extents: Vec::new(), nodes: Vec::new() };
    if !inode.has_extents() {
        return Ok(mapped);
    }
    let root = inode.block_bytes();
    let tree = Tree { owner: inode.owner(ino), root: &root, block: BlockNo(0) };
    let mut nodes = Vec::new();
    let mut read = |block: BlockNo| {
        nodes.push(block);
        node(scratch, place, block)
    };
    tree.walk(scratch.geo, &mut read, &mut |extent| {
        if !scratch.may_own(extent.start, extent.len.into()) {
            let problem = format!("an extent leads to block {}, which no file may own", extent.start);
            return Err(damaged(place.damage(problem)));
        }
        mapped.extents.push(extent);
        Ok(())
    })?;
    mapped.nodes = nodes;
    Ok(mapped)
}

/// Reads the block of a node.
fn node(scratch: &Scratch<'_>, place: Place, block: BlockNo) -> Result<Vec<u8>> {
    if !scratch.may_own(block, 1) {
        let problem = format!("its extent tree leads to block {block}, which no file may own");
        return Err(damaged(place.damage(problem)));
    }
    scratch.read(block, Kind::Map)
}

/// Carries an edit out on the tree of an inode, and marks blocks as used and free. The caller stores the inode.
///
/// # Errors
/// Broken rules of the tree; no space for a node.
pub(super) fn change(scratch: &mut Scratch<'_>, ino: InodeNo, inode: &mut Inode, edit: Edit) -> Result<()> {
    let (root, owner, put) = (inode.block_bytes(), inode.owner(ino), edit.put);
    let tree = Tree { owner, root: &root, block: BlockNo(0) };
    let geo = scratch.geo;
    let plan = edit::plan(&tree, geo, geo.block_bytes(), edit, &mut Nodes { scratch, owner })?;
    for (block, bytes) in plan.rewritten.into_iter().chain(plan.added) {
        scratch.write_sealed(block, Sealed::Extents(owner), bytes)?;
    }
    let gone = plan.unmapped.iter().map(|extent| (extent.start, u64::from(extent.len)));
    for (start, len) in gone.chain(plan.removed.iter().map(|block| (*block, 1))) {
        if !scratch.may_own(start, len) {
            let problem = format!("it has block {start}, which no file may own");
            return Err(damaged(Place::of(Structure::Inode(ino)).damage(problem)));
        }
        scratch.mark(start, len, false)?;
    }
    if let Some(put) = put {
        scratch.mark(put.start, put.len.into(), true)?;
    }
    inode.set_block_bytes(&plan.root);
    Ok(())
}

struct Nodes<'a, 'b> {
    scratch: &'a mut Scratch<'b>,
    owner: Owner,
}

impl edit::Nodes for Nodes<'_, '_> {
    type Error = Error;

    fn read(&mut self, child: Child) -> Result<Vec<u8>> {
        let place = extent::place(self.owner.ino, child);
        let bytes = node(self.scratch, place, child.block)?;
        Node::decode(&bytes, child.bounds, self.owner, self.scratch.geo, place).map_err(damaged)?;
        Ok(bytes)
    }

    fn allocate(&mut self) -> Result<BlockNo> {
        self.scratch.allocate(self.owner.ino)
    }
}
