//! Keeps what a checkpoint or a chain has taken, while it is written.
//!
//! From the moment it is taken a node counts as clean, and its table entry names the block that it
//! goes to. If that block is not written, because the device fails or the host is full, memory is
//! the only place that has the node: it must not be given up. The same holds for the blocks of
//! directories. The volume is read-only then, so what is kept does not grow.

use std::sync::Arc;

use super::node_cache::Node;
use super::owned_cache::Owned;
use super::volume::F2fs;

/// Nodes and blocks that are being written. Those that were not written when this is dropped stay in memory
/// until the volume is closed.
pub(super) struct Underway<'a> {
    fs: &'a F2fs,
    nodes: Vec<Arc<Node>>,
    owned: Vec<Arc<Owned>>,
}

impl<'a> Underway<'a> {
    /// Takes the dirty blocks of directories and symbolic links.
    pub(super) fn owned_blocks(fs: &'a F2fs) -> Underway<'a> {
        Underway { fs, nodes: Vec::new(), owned: fs.owned.take_dirty() }
    }

    /// Takes the dirty nodes; giving blocks their places has made some dirty.
    pub(super) fn take_nodes(&mut self) {
        self.nodes = self.fs.nodes.take_dirty();
    }

    /// Takes these nodes out of the dirty ones.
    pub(super) fn of(fs: &'a F2fs, nodes: Vec<Arc<Node>>) -> Underway<'a> {
        fs.nodes.take(&nodes);
        Underway { fs, nodes, owned: Vec::new() }
    }

    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(super) fn owned(&self) -> &[Arc<Owned>] {
        &self.owned
    }

    /// Drops everything: it is on the device, and can be read from there again.
    pub(super) fn written(mut self) {
        self.nodes.clear();
        self.owned.clear();
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.fs.nodes.keep(&mut self.nodes);
        self.fs.owned.keep(&mut self.owned);
    }
}
