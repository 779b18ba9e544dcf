//! Nodes in memory: inodes, direct, indirect and attribute nodes.
//!
//! A node is changed in place in memory and is written whole, to a new block, at the next
//! checkpoint (or in a file's chain): only then it gets its footer, its checksum and its address.
//! Nodes that were not changed for a while are packed ([`packed`](super::packed)), and clean ones
//! without a user are given up when memory is short.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use moafs_disk::Buf;
use moafs_runtime::leaf::Mutex;

use super::evict::{OVERHEAD_BYTES, sweep};
use super::packed::Contents;
use super::read_ahead::ReadAhead;
use crate::format::node::Footer;
use crate::format::{Log, Nid};

/// Nodes that are whole because they were changed: 4 MiB of them. An op changes a node several times.
const WHOLE_MAX: usize = 1024;

/// A node in memory. There is one per id; all its users share it.
pub(super) struct Node {
    pub(super) nid: Nid,
    /// The inode it belongs to.
    pub(super) ino: Nid,
    /// Its place among the file's nodes; 0 for the inode.
    pub(super) offset: u32,
    /// The log it is written to.
    pub(super) log: Log,
    pub(super) contents: Mutex<Contents>,
    pub(super) dirty: AtomicBool,
    /// True while it was read with another node and nothing has asked for it.
    pub(super) unused: AtomicBool,
    /// Memory that nodes take, this one included.
    pub(super) memory: Arc<AtomicUsize>,
}

impl Node {
    pub(super) fn new(footer: &Footer, log: Log, contents: Contents, memory: &Arc<AtomicUsize>) -> Node {
        memory.fetch_add(contents.memory() + OVERHEAD_BYTES, Ordering::Relaxed);
        Node {
            nid: footer.nid,
            ino: footer.ino,
            offset: footer.offset,
            log,
            contents: Mutex::new(contents),
            dirty: AtomicBool::new(false),
            unused: AtomicBool::new(false),
            memory: Arc::clone(memory),
        }
    }

    /// Shows its bytes to `look`, which must not look at the same node again.
    pub(super) fn view<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        self.contents.lock().view(look)
    }

    /// Shows its first 64 bytes, under the same rule as [`Node::view`].
    pub(super) fn view_head<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.contents.lock().head())
    }

    /// Lets `edit` change its contents, and counts the memory that they take then.
    pub(super) fn edit<T>(&self, contents: &mut Contents, edit: impl FnOnce(&mut Contents) -> T) -> T {
        let before = contents.memory();
        let result = edit(contents);
        let after = contents.memory();
        if after > before {
            self.memory.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.memory.fetch_sub(before - after, Ordering::Relaxed);
        }
        result
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Packs its contents: it will not change soon.
    pub(super) fn rest(&self) {
        self.edit(&mut self.contents.lock(), Contents::rest);
    }

    /// Returns its contents, to be written; it is clean from now on.
    pub(super) fn leave(&self) -> Contents {
        let mut contents = self.contents.lock();
        self.dirty.store(false, Ordering::Relaxed);
        self.edit(&mut contents, Contents::leave)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.contents.get_mut().memory() + OVERHEAD_BYTES, Ordering::Relaxed);
    }
}

/// The nodes in memory, by id.
#[derive(Default)]
pub(super) struct Nodes {
    pub(super) all: Mutex<BTreeMap<Nid, Arc<Node>>>,
    pub(super) dirty: Mutex<BTreeMap<Nid, Arc<Node>>>,
    /// Nodes that could not be written to the addresses that their entries name.
    pub(super) kept: Mutex<Vec<Arc<Node>>>,
    /// The id at which the last search for nodes to give up ended.
    pub(super) hand: Mutex<Option<Nid>>,
    /// Nodes that became whole, in that order; some of them are packed by now, or gone.
    pub(super) whole: Mutex<VecDeque<Weak<Node>>>,
    /// Memory that nodes take.
    pub(super) memory: Arc<AtomicUsize>,
    /// Counts the times that nodes which were under way have reached the device, each before they may be given up.
    pub(super) landed: AtomicU64,
    /// The decision about how many nodes are read together.
    pub(super) read_ahead: ReadAhead,
}

impl Nodes {
    /// Notes that a node has become whole; another one is packed for it. The caller holds no lock
    /// on a node's bytes.
    pub(super) fn became_whole(&self, node: &Arc<Node>) {
        let rests = {
            let mut whole = self.whole.lock();
            whole.push_back(Arc::downgrade(node));
            if whole.len() > WHOLE_MAX { whole.pop_front() } else { None }
        };
        if let Some(node) = rests.and_then(|node| node.upgrade()) {
            node.rest();
        }
    }

    /// Packs all nodes that are whole.
    pub(super) fn rest(&self) {
        let whole = std::mem::take(&mut *self.whole.lock());
        whole.iter().filter_map(Weak::upgrade).for_each(|node| node.rest());
    }

    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.all.lock().len()
    }

    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.lock().len()
    }

    /// Takes the dirty nodes, ascending.
    pub(super) fn take_dirty(&self) -> Vec<Arc<Node>> {
        std::mem::take(&mut *self.dirty.lock()).into_values().collect()
    }

    /// Returns the dirty nodes of one inode that belong to a log, the inode last.
    pub(super) fn dirty_of(&self, ino: Nid, log: Log) -> Vec<Arc<Node>> {
        let dirty = self.dirty.lock();
        let all = dirty.values().filter(|node| node.ino == ino && node.log == log);
        let mut found: Vec<Arc<Node>> = all.cloned().collect();
        drop(dirty);
        found.sort_by_key(|node| (node.nid == ino, node.offset));
        found
    }

    /// Removes nodes that are about to be written from the dirty ones.
    pub(super) fn take(&self, nodes: &[Arc<Node>]) {
        let mut dirty = self.dirty.lock();
        nodes.iter().for_each(|node| drop(dirty.remove(&node.nid)));
    }

    /// Keeps nodes that could not be written in memory.
    pub(super) fn keep(&self, nodes: &mut Vec<Arc<Node>>) {
        self.kept.lock().append(nodes);
    }

    /// Gives up clean nodes that are not in use until at most `bytes` are used.
    pub(super) fn shrink(&self, bytes: usize) {
        let gone = sweep(&mut self.all.lock(), &mut self.hand.lock(), self.memory(), bytes, |node| !node.is_dirty());
        let unused = gone.iter().filter(|node| node.unused.load(Ordering::Relaxed)).count();
        self.read_ahead.note_wasted(unused as u32);
    }

    /// Adds a node whose contents are not on the device.
    pub(super) fn insert(&self, footer: &Footer, log: Log, image: Buf) -> Arc<Node> {
        let node = Arc::new(Node::new(footer, log, Contents::Whole(image), &self.memory));
        self.all.lock().insert(footer.nid, Arc::clone(&node));
        node
    }

    /// Returns a node if it is in memory.
    pub(super) fn get(&self, nid: Nid) -> Option<Arc<Node>> {
        let node = self.all.lock().get(&nid).cloned()?;
        if node.unused.load(Ordering::Relaxed) && node.unused.swap(false, Ordering::Relaxed) {
            self.read_ahead.note_used();
        }
        Some(node)
    }
}
