//! A walk over an extent tree that may be damaged.

use super::error::CheckError;
use super::mapped::Mapped;
use super::scan::Blocks;
use super::volume::Volume;
use crate::format::extent::{Child, Extent, ROOT_BYTES, Salvaged, salvage};
use crate::format::superblock::Incompat;
use crate::format::{BlockNo, Geometry, Inode};

/// A node in a block of its own, as a walk meets it.
pub(super) struct Visit<'a> {
    pub(super) child: Child,
    pub(super) page: &'a [u8],
    /// The node's entries and faults.
    pub(super) found: &'a Salvaged,
}

/// Judges what a walk over an extent tree meets, in file order.
pub(super) trait TreeJudge {
    /// Returns true if the walk goes on below this node.
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError>;

    /// Takes an extent.
    fn extent(&mut self, extent: Extent) -> Result<(), CheckError>;

    /// Takes a broken rule of the root, or of the node in `block`.
    fn problem(&mut self, block: Option<BlockNo>, problem: String);
}

/// Walks an extent tree from its root down.
pub(super) fn walk_tree<B, J>(
    blocks: &B,
    geo: &Geometry,
    root: &[u8; ROOT_BYTES],
    judge: &mut J,
) -> Result<(), CheckError>
where
    B: Blocks<Error = CheckError>,
    J: TreeJudge,
{
    walk_node(blocks, geo, salvage(root, None, geo), None, judge)
}

/// Every level of the tree has less depth than the one above it, so the recursion ends.
fn walk_node<B, J>(
    blocks: &B,
    geo: &Geometry,
    found: Salvaged,
    at: Option<BlockNo>,
    judge: &mut J,
) -> Result<(), CheckError>
where
    B: Blocks<Error = CheckError>,
    J: TreeJudge,
{
    found.problems.into_iter().for_each(|problem| judge.problem(at, problem));
    for extent in found.extents {
        judge.extent(extent)?;
    }
    for child in found.children {
        let page = blocks.read(child.block)?;
        let below = salvage(&page, Some(child.bounds), geo);
        if judge.node(&Visit { child, page: &page, found: &below })? {
            walk_node(blocks, geo, below, Some(child.block), judge)?;
        }
    }
    Ok(())
}

/// Returns true if an inode with a map is mapped by extents, also if the flag that says so is missing.
pub(super) fn has_tree(inode: &Inode, geo: &Geometry) -> bool {
    inode.has_extents() || (geo.incompat.contains(Incompat::EXTENT) && is_root(inode, geo))
}

/// Returns true if the pointers of an inode are the root of a sound extent tree.
pub(super) fn is_root(inode: &Inode, geo: &Geometry) -> bool {
    salvage(&inode.block_bytes(), None, geo).problems.is_empty()
}

/// Returns what a sound tree maps.
pub(super) fn mapped_by_tree(volume: &Volume<'_>, geo: &Geometry, inode: &Inode) -> Result<Mapped, CheckError> {
    let mut all = All(Mapped::default());
    walk_tree(volume, geo, &inode.block_bytes(), &mut all)?;
    Ok(all.0)
}

/// Takes everything that a tree maps.
struct All(Mapped);

impl TreeJudge for All {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
        self.0.nodes.push(visit.child.block);
        Ok(visit.found.is_node)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        self.0.push(extent.into());
        Ok(())
    }

    fn problem(&mut self, _: Option<BlockNo>, _: String) {}
}
