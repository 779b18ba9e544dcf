//! Node ids: the kernel's names of inodes.
//!
//! FUSE fixes the root at node 1, formats have their own root (ext2: 2) and may use inode 1 for another purpose. So the
//! two numbers change places and every other number stays as it is: one bijection, its own inverse. The control
//! directory's nodes lie above all inode numbers.

use moafs_fuse::NodeId;
use moafs_vfs::types::Ino;

/// First node id of the control directory. Formats number their inodes with far fewer bits.
pub(crate) const CONTROL_FIRST: u64 = 1 << 62;

/// The bijection between a volume's inode numbers and the kernel's node ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nodes {
    root: Ino,
}

impl Nodes {
    /// Creates the mapping of a volume whose root directory is `root`.
    pub(crate) fn new(root: Ino) -> Nodes {
        Nodes { root }
    }

    /// Returns the kernel's node id of `ino`.
    pub(crate) fn node(self, ino: Ino) -> NodeId {
        debug_assert!(ino.0 < CONTROL_FIRST, "inode number {} collides with the control directory", ino.0);
        NodeId(self.swap(ino.0))
    }

    /// Returns the inode of `node`; `None` for nodes of the control directory and for node 0.
    pub(crate) fn ino(self, node: NodeId) -> Option<Ino> {
        (node != NodeId::NONE && node.0 < CONTROL_FIRST).then(|| Ino(self.swap(node.0)))
    }

    /// Exchanges the root's inode number and FUSE's root node.
    fn swap(self, number: u64) -> u64 {
        match number {
            n if n == self.root.0 => NodeId::ROOT.0,
            n if n == NodeId::ROOT.0 => self.root.0,
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_fuse_root_and_every_number_comes_back() {
        for root in [1, 2, 3, 77] {
            let nodes = Nodes::new(Ino(root));
            assert_eq!(nodes.node(Ino(root)), NodeId::ROOT);
            for ino in [1, 2, 3, 11, 77, u64::from(u32::MAX)] {
                assert_eq!(nodes.ino(nodes.node(Ino(ino))), Some(Ino(ino)));
            }
        }
    }

    #[test]
    fn control_nodes_are_no_inodes() {
        let nodes = Nodes::new(Ino(2));
        assert_eq!(nodes.ino(NodeId(CONTROL_FIRST)), None);
        assert_eq!(nodes.ino(NodeId(u64::MAX)), None);
        assert_eq!(nodes.ino(NodeId::NONE), None);
    }
}
