//! Building a tree anew from its extents.

use super::edit::Entries;
use super::{Extent, ROOT_BYTES, ROOT_ENTRIES, block_entries};
use crate::format::BlockNo;

/// A tree in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The root.
    pub root: [u8; ROOT_BYTES],
    /// The other nodes, without their checksums.
    pub nodes: Vec<(BlockNo, Vec<u8>)>,
}

/// Returns the number of nodes beside the root that a tree of so many extents has if it is built anew.
pub fn node_count(extents: u64, block_bytes: usize) -> u64 {
    let (mut level, mut nodes) = (extents, 0);
    while level > u64::from(ROOT_ENTRIES) {
        level = level.div_ceil(block_entries(block_bytes).into());
        nodes += level;
    }
    nodes
}

/// Builds a tree of these extents, which ascend: all its nodes but the last of each level are full. `take` returns
/// blocks for the nodes.
///
/// A tree of the same or more extents never had fewer nodes.
///
/// # Errors
/// The errors of `take`.
pub fn build<E>(
    extents: &[Extent],
    block_bytes: usize,
    take: &mut dyn FnMut() -> Result<BlockNo, E>,
) -> Result<Built, E> {
    let room = block_entries(block_bytes);
    let mut nodes = Vec::new();
    let mut level = Entries::Extents(extents.to_vec());
    let mut depth = 0;
    while level.len() > usize::from(ROOT_ENTRIES) {
        let mut above = Vec::new();
        while level.len() > 0 {
            let rest = level.split_off(level.len().min(room.into()));
            let (block, mut bytes) = (take()?, vec![0; block_bytes]);
            level.encode(&mut bytes, room, depth);
            above.push((level.lbn(0).unwrap_or(0), block));
            nodes.push((block, bytes));
            level = rest;
        }
        level = Entries::Children(above);
        depth += 1;
    }
    let mut root = [0; ROOT_BYTES];
    level.encode(&mut root, ROOT_ENTRIES, depth);
    Ok(Built { root, nodes })
}
