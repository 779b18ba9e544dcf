//! Reading, changing and making nodes.

use moafs_runtime::leaf::atomic::Ordering;
use std::sync::Arc;

use moafs_disk::{Buf, DiskExt, Lba, Tag};
use moafs_vfs::format::Admission;
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::node_cache::Node;
use super::packed::Contents;
use super::volume::F2fs;
use crate::format::nat::NatEntry;
use crate::format::node::{self, Footer};
use crate::format::{BLOCK, BlkAddr, Log, Nid, Structure, inode};

fn structure_of(nid: Nid, entry: NatEntry) -> Structure {
    if entry.ino == nid { Structure::Inode(nid) } else { Structure::Node(nid) }
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
        loop {
            if let Some(node) = self.nodes.get(nid) {
                return Ok(Some(node));
            }
            let rewrites = self.nat.rewrites();
            let entry = self.nat.get(nid)?;
            if entry.addr == BlkAddr::NULL {
                return Ok(None);
            }
            let read = self.read_node(nid, entry);
            let node = Arc::new(self.health.watch(read)?);
            let mut all = self.nodes.all.lock();
            // A change of the entry means that the node was written, or freed, while it was read. Still under the lock:
            // one that is freed afterwards is taken out again.
            if self.nat.is_still(nid, entry, rewrites) {
                return Ok(Some(Arc::clone(all.entry(nid).or_insert(node))));
            }
        }
    }

    fn read_node(&self, nid: Nid, entry: NatEntry) -> Result<Node> {
        if !self.geo.is_main(entry.addr) {
            let problem = format!("its address is {}", entry.addr);
            return Err(damaged(structure_of(nid, entry).damage(None, problem)));
        }
        self.read_around(nid, entry)
    }

    /// Makes the node that an entry names of the block that was read there.
    pub(super) fn decode_node(&self, nid: Nid, entry: NatEntry, bytes: Buf) -> Result<Node> {
        let structure = structure_of(nid, entry);
        let footer = Footer::decode(&bytes);
        if footer.nid != nid || footer.ino != entry.ino {
            let problem = format!(
                "the block says it is node {} of inode {}, the table says node {nid} of inode {}",
                footer.nid, footer.ino, entry.ino
            );
            return Err(damaged(structure.damage(Some(entry.addr), problem)));
        }
        // Only a node on the device has a checksum that fits: in memory it is not kept up.
        if footer.is_inode() {
            let checked = inode::verify_checksum(&bytes, &self.uuid, self.features);
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
        self.space.count_promised(|usage| usage.add_node(ino == nid), admission);
        let log = node::log_of(offset, directory);
        let footer = Footer {
            nid,
            ino,
            cold: !directory,
            fsync: false,
            dentry: false,
            offset,
            cp_version: Footer::NO_CHAIN,
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
        {
            // Another holder of the node must not list it as dirty again.
            let _contents = node.contents.lock();
            node.dirty.store(true, Ordering::Relaxed);
            if self.nodes.dirty.lock().remove(&node.nid).is_some() {
                self.space.node_settled();
            }
        }
        self.space.free(entry.addr);
        if entry.addr == BlkAddr::NEW && node.log != Log::WarmNode {
            self.space.unmade_node();
        }
        self.space.change_usage(|usage| usage.remove_node(node.nid == node.ino));
        Ok(())
    }
}
