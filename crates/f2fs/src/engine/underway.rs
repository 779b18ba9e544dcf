//! Keeps what a checkpoint or a chain takes, until it is ready to be written.
//!
//! From the moment it is taken a node counts as clean, and its table entry names the block that it
//! goes to. Until that block is written, memory is the only place that has the node: it must not be given up. The
//! same holds for the blocks of directories. If an error ends the work before it can be written, the volume turns
//! read-only, so what is kept does not grow.

use std::sync::Arc;

use super::node_cache::Node;
use super::owned_cache::Owned;
use super::volume::F2fs;

/// Nodes and blocks that are about to be written. Those that are here when this is dropped stay in memory
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

    /// Hands everything over to the caller, who keeps it until it is on the device.
    pub(super) fn hand_over(mut self) -> (Vec<Arc<Node>>, Vec<Arc<Owned>>) {
        (std::mem::take(&mut self.nodes), std::mem::take(&mut self.owned))
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.fs.nodes.keep(&mut self.nodes);
        self.fs.owned.keep(&mut self.owned);
    }
}
