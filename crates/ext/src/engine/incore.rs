//! In-core inodes: the format's part of what vfs calls an inode.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use moafs_disk::Epoch;
use moafs_runtime::Rt;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_runtime::lock::RwLock;
use moafs_vfs::types::{Attr, FileKind};
use smallvec::SmallVec;

use super::names::{Index, Removals};
use crate::format::{BlockNo, GroupNo, Inode, InodeNo, Owner};
use crate::meta::{Freed, Level};

/// The place of an inode's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotAt {
    pub(super) group: GroupNo,
    /// The inode's index in the group.
    pub(super) index: u32,
    /// The block of the inode table that holds the slot.
    pub(super) block: BlockNo,
    /// The slot's first byte in that block.
    pub(super) offset: usize,
}

/// An inode in memory. There is one per inode number, shared by all that hold it.
pub struct Incore {
    /// The inode's number, counted from 1.
    pub ino: InodeNo,
    /// The file's kind; never changes.
    pub kind: FileKind,
    pub(super) at: SlotAt,
    pub(super) state: Mutex<InodeState>,
    /// Held while pointers are looked up (shared) or changed. Write-back places data without the
    /// inode's lock in vfs, so several ops may map blocks of one file at a time, and others look
    /// them up. May be held across reads of metadata; taken after `index`, before all leaves.
    pub(super) map: RwLock<()>,
    /// Names of a directory, once a caller has looked one up.
    pub(super) index: RwLock<Option<Index>>,
    registry: Arc<Registry>,
}

/// The in-core inodes in use, by number, and the memory that their indexes take. An entry goes with
/// the last reference to its inode, so the registry never holds more than is in use.
pub(super) struct Registry {
    rt: Rt,
    block_size: u32,
    nodes: Mutex<Nodes>,
    index_bytes: AtomicU64,
}

#[derive(Default)]
struct Nodes {
    by_ino: BTreeMap<u32, Weak<Incore>>,
    /// Number of entries that were removed: the bytes that were read from an inode's slot before
    /// may be stale after.
    departures: u64,
}

/// The count of removed entries, taken before an inode's slot is read, so that a stale read can be
/// recognised.
#[derive(Clone, Copy)]
pub(super) struct Departures(u64);

impl Registry {
    /// Makes an empty registry for a volume with blocks of this size.
    pub(super) fn new(rt: Rt, block_size: u32) -> Arc<Registry> {
        Arc::new(Registry { rt, block_size, nodes: Mutex::default(), index_bytes: AtomicU64::new(0) })
    }

    /// Returns the in-core inode if it is in use.
    pub(super) fn live(&self, ino: InodeNo) -> Option<Arc<Incore>> {
        self.nodes.lock().by_ino.get(&ino.0).and_then(Weak::upgrade)
    }

    /// Returns all in-core inodes in use.
    pub(super) fn all(&self) -> Vec<Arc<Incore>> {
        self.nodes.lock().by_ino.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.lock().by_ino.len()
    }

    pub(super) fn departures(&self) -> Departures {
        Departures(self.nodes.lock().departures)
    }

    /// Registers a new inode, in place of the last owner of its number.
    pub(super) fn insert(&self, node: &Arc<Incore>) {
        self.nodes.lock().by_ino.insert(node.ino.0, Arc::downgrade(node));
    }

    /// Registers an inode that was read after `before`, unless another reader was faster. Returns
    /// the registered one; `None` if the inode must be read again, because an in-core inode that
    /// was in use meanwhile may have changed it.
    pub(super) fn adopt(&self, node: &Arc<Incore>, before: Departures) -> Option<Arc<Incore>> {
        let mut nodes = self.nodes.lock();
        if let Some(other) = nodes.by_ino.get(&node.ino.0) {
            // An in-core inode that is being dropped at this moment is still registered.
            return other.upgrade();
        }
        if nodes.departures != before.0 {
            return None;
        }
        nodes.by_ino.insert(node.ino.0, Arc::downgrade(node));
        Some(Arc::clone(node))
    }

    /// Removes an inode: its number may be given to another.
    pub(super) fn remove(&self, node: &Incore) {
        self.nodes.lock().remove(node);
    }

    /// Marks an inode as deleted if the caller has the only reference to it: from then on it cannot be loaded.
    pub(super) fn condemn(&self, node: &Arc<Incore>) -> bool {
        let _nodes = self.nodes.lock();
        if Arc::strong_count(node) > 1 {
            return false;
        }
        node.state.lock().inode.links = 0;
        true
    }

    pub(super) fn charge_index(&self, bytes: u64) {
        self.index_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn discharge_index(&self, bytes: u64) {
        self.index_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that indexes of directories take.
    pub(super) fn index_bytes(&self) -> usize {
        self.index_bytes.load(Ordering::Relaxed) as usize
    }
}

impl Nodes {
    fn remove(&mut self, node: &Incore) {
        if self.by_ino.get(&node.ino.0).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), node)) {
            self.by_ino.remove(&node.ino.0);
            self.departures += 1;
        }
    }
}

impl Drop for Incore {
    fn drop(&mut self) {
        if let Some(index) = self.index.get_mut() {
            self.registry.discharge_index(index.charged());
        }
        self.registry.remove(self);
    }
}

/// The state of an inode between making and freeing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// On disk, or on its way there; the first version of its slot since it was made has this level.
    Named { born: Level },
    /// Marked as deleted on disk at this level.
    Orphan(Level),
    /// None of its versions has reached the disk, and none may.
    Unborn,
}

pub(super) struct InodeState {
    /// The current state of the inode, which ops see.
    pub(super) inode: Inode,
    pub(super) life: Life,
    /// Number of running ops that give the inode a second name for a while: every store of its slot
    /// meanwhile counts as many links more.
    pub(super) names_coming: u16,
    /// The level that must be on disk before the slot's next version; only grows.
    pub(super) needs: Level,
    /// The level at which its newest name is on disk, and leads to it from the root. For files it
    /// is set only once they were linked or renamed.
    pub(super) named: Level,
    /// The level at which the name it lost last is gone from disk. Until then other changes rely on
    /// the newer ones.
    pub(super) unlinked: Level,
    /// For a directory: the level at which every inode that has moved out of it has a name
    /// elsewhere on disk.
    pub(super) left: Level,
    /// For a directory: the level at which the disk leads to its newest block.
    pub(super) reached: Level,
    /// For a directory: when the names that were removed from it are gone from disk.
    pub(super) removals: Removals,
    /// The newest epoch of the data that direct pointers lead to; only grows.
    pub(super) data: Option<Epoch>,
    /// Blocks that become free with the slot's next version.
    pub(super) freed: SmallVec<[Freed; 4]>,
    /// The attributes inside the inode, while they are not in its slot: orphans' slots are not written.
    pub(super) attributes: Option<Vec<u8>>,
    /// For orphans: everything from this logical block on has been freed.
    pub(super) reaped_from: u64,
    /// Addresses allocated at `write()`, by logical block: handed out, no pointer yet.
    pub(super) early: BTreeMap<u64, u64>,
    /// True if the inode is a member of the orphan list: its deletion time is a link of it.
    pub(super) is_listed: bool,
    /// True if the file has become shorter since it was read.
    pub(super) was_cut: bool,
    /// No block is mapped from this one on.
    pub(super) mapped_end: u64,
}

impl Incore {
    /// Makes an in-core inode, which `registry` does not have yet.
    pub(super) fn new(
        registry: &Arc<Registry>,
        ino: InodeNo,
        kind: FileKind,
        at: SlotAt,
        inode: Inode,
        life: Life,
    ) -> Incore {
        let mapped_end = inode.size.div_ceil(registry.block_size.into());
        let state = InodeState {
            is_listed: false,
            was_cut: false,
            mapped_end,
            inode,
            life,
            names_coming: 0,
            needs: Level::NONE,
            named: Level::NONE,
            unlinked: Level::NONE,
            left: Level::NONE,
            reached: Level::NONE,
            removals: Removals::default(),
            data: None,
            freed: SmallVec::new(),
            attributes: None,
            reaped_from: u64::MAX,
            early: BTreeMap::new(),
        };
        let index = RwLock::new(Arc::clone(&registry.rt), None);
        let map = RwLock::new(Arc::clone(&registry.rt), ());
        Incore { ino, kind, at, state: Mutex::new(state), map, index, registry: Arc::clone(registry) }
    }

    /// Returns the inode as the owner of its blocks.
    pub(super) fn owner(&self) -> Owner {
        self.state.lock().inode.owner(self.ino)
    }

    /// Returns a copy of the inode as ops see it.
    pub(super) fn inode(&self) -> Inode {
        self.state.lock().inode.clone()
    }
}

/// Returns the piece of `area` around `block` that one read brings: pieces of `len` blocks, counted
/// from its start.
pub(super) fn window(area: &Range<u64>, block: u64, len: u64) -> Range<u64> {
    let start = block - (block - area.start) % len;
    start..area.end.min(start + len)
}

/// Returns the attributes that vfs keeps of an inode.
pub(super) fn attr_of(inode: &Inode, kind: FileKind) -> Attr {
    let (major, minor) = inode.device();
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    Attr {
        kind,
        perm: u32::from(inode.mode) & 0o7777,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.links.into(),
        size: inode.size,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        crtime: inode.crtime,
        rdev: if is_device { libc::makedev(major, minor) } else { 0 },
        generation: inode.generation,
        flags: inode.flags.bits() & USER_FLAGS,
    }
}

/// Flags that programs may set and clear; the others describe the layout.
pub(super) const USER_FLAGS: u32 = 0x0000_00FF | 0x0001_0000 | 0x0002_0000 | 0x0000_8000;

/// Stores the attributes that vfs keeps into an inode; sizes only of regular files.
pub(super) fn put_attr(inode: &mut Inode, attr: &Attr, disk_size: u64) {
    inode.mode = (attr.kind.mode_bits() | attr.perm & 0o7777) as u16;
    inode.uid = attr.uid;
    inode.gid = attr.gid;
    inode.links = attr.nlink.min(u32::from(u16::MAX)) as u16;
    inode.atime = attr.atime;
    inode.mtime = attr.mtime;
    inode.ctime = attr.ctime;
    let flags = inode.flags.bits() & !USER_FLAGS | attr.flags & USER_FLAGS;
    inode.flags = crate::format::inode::InodeFlags::from_bits_retain(flags);
    if attr.kind == FileKind::Regular {
        inode.size = disk_size;
    }
}
