//! Nodes in memory: inodes, direct, indirect and attribute nodes.
//!
//! A node is changed in place in memory and is written whole, to a new block, at the next
//! checkpoint (or in a file's chain): only then it gets its footer, its checksum and its address.
//! Nodes that were not changed for a while are packed ([`packed`](super::packed)), and clean ones
//! without a user are given up when memory is short.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_vfs::format::Admission;
use moafs_vfs::{Error, Result};

use super::evict::{OVERHEAD_BYTES, sweep};
use super::packed::Contents;
use super::{F2fs, damaged};
use crate::format::nat::NatEntry;
use crate::format::node::{self, Footer};
use crate::format::superblock::Features;
use crate::format::{BLOCK, BlkAddr, Log, Nid, Structure, inode};

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
    contents: Mutex<Contents>,
    dirty: AtomicBool,
    /// Memory that nodes take, this one included.
    memory: Arc<AtomicUsize>,
}

impl Node {
    fn new(footer: &Footer, log: Log, contents: Contents, memory: &Arc<AtomicUsize>) -> Node {
        memory.fetch_add(contents.memory() + OVERHEAD_BYTES, Ordering::Relaxed);
        Node {
            nid: footer.nid,
            ino: footer.ino,
            offset: footer.offset,
            log,
            contents: Mutex::new(contents),
            dirty: AtomicBool::new(false),
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
    fn edit<T>(&self, contents: &mut Contents, edit: impl FnOnce(&mut Contents) -> T) -> T {
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
    fn rest(&self) {
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
    all: Mutex<BTreeMap<Nid, Arc<Node>>>,
    dirty: Mutex<BTreeMap<Nid, Arc<Node>>>,
    /// Nodes that could not be written to the addresses that their entries name.
    kept: Mutex<Vec<Arc<Node>>>,
    /// The id at which the last search for nodes to give up ended.
    hand: Mutex<Option<Nid>>,
    /// Nodes that became whole, in that order; some of them are packed by now, or gone.
    whole: Mutex<VecDeque<Weak<Node>>>,
    /// Memory that nodes take.
    memory: Arc<AtomicUsize>,
}

impl Nodes {
    /// Notes that a node has become whole; another one is packed for it. The caller holds no lock
    /// on a node's bytes.
    fn became_whole(&self, node: &Arc<Node>) {
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
        sweep(&mut self.all.lock(), &mut self.hand.lock(), self.memory(), bytes, |node| !node.is_dirty());
    }

    /// Adds a node whose contents are not on the device.
    pub(super) fn insert(&self, footer: &Footer, log: Log, image: Buf) -> Arc<Node> {
        let node = Arc::new(Node::new(footer, log, Contents::Whole(image), &self.memory));
        self.all.lock().insert(footer.nid, Arc::clone(&node));
        node
    }

    fn get(&self, nid: Nid) -> Option<Arc<Node>> {
        self.all.lock().get(&nid).cloned()
    }
}

impl F2fs {
    /// Returns a node; reads it if it is not in memory. `ino` is the inode it must belong to.
    ///
    /// # Errors
    /// Damage if it is not the node that was asked for, and device errors.
    pub(super) fn node(&self, nid: Nid, ino: Nid) -> Result<Arc<Node>> {
        match self.find_node(nid)? {
            Some(node) if node.ino == ino => Ok(node),
            found => {
                let problem = match found {
                    Some(node) => format!("it belongs to inode {}, and inode {ino} points to it", node.ino),
                    None => format!("it is free, and inode {ino} points to it"),
                };
                self.health.watch(Err(damaged(Structure::Node(nid).damage(None, problem))))
            }
        }
    }

    /// Returns a node of any inode; `None` if the id is free.
    pub(super) fn find_node(&self, nid: Nid) -> Result<Option<Arc<Node>>> {
        if let Some(node) = self.nodes.get(nid) {
            return Ok(Some(node));
        }
        let entry = self.nat.get(nid)?;
        if entry.addr == BlkAddr::NULL {
            return Ok(None);
        }
        let read = self.read_node(nid, entry);
        let node = Arc::new(self.health.watch(read)?);
        // A change of the entry means that the node was written, or freed, while it was read.
        if self.nat.get(nid)? != entry {
            return self.find_node(nid);
        }
        Ok(Some(Arc::clone(self.nodes.all.lock().entry(nid).or_insert(node))))
    }

    fn read_node(&self, nid: Nid, entry: NatEntry) -> Result<Node> {
        let structure = if entry.ino == nid { Structure::Inode(nid) } else { Structure::Node(nid) };
        if !self.geo.is_main(entry.addr) {
            return Err(damaged(structure.damage(None, format!("its address is {}", entry.addr))));
        }
        let bytes = self.read_block(entry.addr, Tag::new(Kind::Node, entry.ino.0.into(), Cause::Demand))?;
        let footer = Footer::decode(&bytes);
        if footer.nid != nid || footer.ino != entry.ino {
            let problem = format!(
                "the block says it is node {} of inode {}, the table says node {nid} of inode {}",
                footer.nid, footer.ino, entry.ino
            );
            return Err(damaged(structure.damage(Some(entry.addr), problem)));
        }
        // Only a node on the device has a checksum that fits: in memory it is not kept up.
        if footer.is_inode() && self.features.contains(Features::INODE_CHECKSUM) {
            let checked = inode::verify_checksum(&bytes, &self.uuid);
            checked.map_err(|problem| damaged(structure.damage(Some(entry.addr), problem)))?;
        }
        let log = node::log_of(footer.offset, !footer.cold);
        Ok(Node::new(&footer, log, Contents::at_rest(bytes), &self.nodes.memory))
    }

    /// Reads one block of the volume; `tag` names the purpose.
    pub(super) fn read_block(&self, at: BlkAddr, tag: Tag) -> Result<Buf> {
        let read = self.disk.read(Lba::from_byte(u64::from(at.0) * BLOCK as u64), BLOCK, tag);
        read.map_err(|source| Error::disk(format!("reading block {at}"), source))
    }

    /// Changes a node's bytes.
    pub(super) fn change<T>(&self, node: &Arc<Node>, edit: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut contents = node.contents.lock();
        let rested = contents.is_packed();
        let result = node.edit(&mut contents, |contents| edit(contents.whole()));
        let was_clean = !node.dirty.swap(true, Ordering::Relaxed);
        if was_clean {
            self.nodes.dirty.lock().insert(node.nid, Arc::clone(node));
            self.space.node_dirtied();
        }
        drop(contents);
        if rested || was_clean {
            self.nodes.became_whole(node);
        }
        result
    }

    /// Marks a node to be written again though nothing in it changes: its block is wanted.
    pub(super) fn touch_node(&self, node: &Arc<Node>) {
        self.change(node, |_| ());
    }

    /// Makes a node of an inode, filled with zeros. With `None` as inode, it is an inode itself.
    pub(super) fn new_node(
        &self,
        ino: Option<Nid>,
        offset: u32,
        directory: bool,
        admission: &mut Admission,
    ) -> Result<Arc<Node>> {
        let Some(nid) = self.nat.take(ino)? else { return Err(Error::Posix(libc::ENOSPC)) };
        let ino = ino.unwrap_or(nid);
        admission.spend(1);
        self.space.change_usage(|usage| usage.add_node(ino == nid));
        let log = node::log_of(offset, directory);
        let footer = Footer {
            nid,
            ino,
            cold: !directory,
            fsync: false,
            dentry: false,
            offset,
            cp_version: 0,
            next: BlkAddr::NULL,
        };
        let mut image = Buf::zeroed(BLOCK);
        footer.encode_into(&mut image);
        let node = self.nodes.insert(&footer, log, image);
        self.touch_node(&node);
        Ok(node)
    }

    /// Frees a node's block and id.
    pub(super) fn free_node(&self, node: &Arc<Node>) -> Result<()> {
        let entry = self.nat.get(node.nid)?;
        self.nat.free(node.nid)?;
        self.nodes.all.lock().remove(&node.nid);
        if self.nodes.dirty.lock().remove(&node.nid).is_some() {
            self.space.node_settled();
        }
        // Another holder of the node must not list it as dirty again.
        node.dirty.store(true, Ordering::Relaxed);
        self.space.free(entry.addr);
        self.space.change_usage(|usage| usage.remove_node(node.nid == node.ino));
        Ok(())
    }
}
