//! Blocks whose contents are the format's own: directories and long symbolic links.
//!
//! They change in memory and are written, each to a new block, with the next checkpoint. Until then
//! a new one is *reserved* in its file: counted, without an address.

use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::Buf;
use moafs_runtime::leaf::Mutex;

use super::convert::copy_of;
use super::evict::{CACHED_BYTES, sweep};
use crate::format::Nid;

/// A block in memory. There is one per file block; all its users share it.
pub(super) struct Owned {
    pub(super) ino: Nid,
    pub(super) lbn: u64,
    pub(super) bytes: Mutex<Buf>,
    pub(super) dirty: AtomicBool,
}

impl Owned {
    /// Shows its bytes to `look`.
    pub(super) fn view<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&self.bytes.lock())
    }

    /// Returns a copy of its bytes to be written; it is clean from now on.
    pub(super) fn leave(&self) -> Buf {
        let bytes = self.bytes.lock();
        self.dirty.store(false, Ordering::Relaxed);
        copy_of(&bytes)
    }
}

/// The blocks in memory, by file and place.
#[derive(Default)]
pub(super) struct OwnedBlocks {
    pub(super) all: Mutex<BTreeMap<(Nid, u64), Arc<Owned>>>,
    pub(super) dirty: Mutex<BTreeMap<(Nid, u64), Arc<Owned>>>,
    /// Blocks that could not be written to the addresses that their files name.
    pub(super) kept: Mutex<Vec<Arc<Owned>>>,
    /// The block at which the last search for blocks to give up ended.
    pub(super) hand: Mutex<Option<(Nid, u64)>>,
}

impl OwnedBlocks {
    pub(super) fn memory(&self) -> usize {
        self.count() * CACHED_BYTES
    }

    pub(super) fn count(&self) -> usize {
        self.all.lock().len()
    }

    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.lock().len()
    }

    /// Takes the dirty ones, by file and place.
    pub(super) fn take_dirty(&self) -> Vec<Arc<Owned>> {
        std::mem::take(&mut *self.dirty.lock()).into_values().collect()
    }

    /// Keeps blocks that could not be written in memory.
    pub(super) fn keep(&self, blocks: &mut Vec<Arc<Owned>>) {
        self.kept.lock().append(blocks);
    }

    /// Forgets blocks that no longer belong to the format. Returns how many of them were dirty.
    pub(super) fn forget(&self, ino: Nid, lbns: Range<u64>) -> usize {
        let range = (ino, lbns.start)..(ino, lbns.end);
        let gone: Vec<Arc<Owned>> = {
            let mut all = self.all.lock();
            let found: Vec<(Nid, u64)> = all.range(range).map(|(at, _)| *at).collect();
            found.iter().filter_map(|at| all.remove(at)).collect()
        };
        gone.iter().filter(|block| self.retire(block)).count()
    }

    /// Takes a block that was forgotten out of the dirty ones; another holder must not list it as dirty again. True if
    /// it was dirty.
    fn retire(&self, block: &Owned) -> bool {
        let _bytes = block.bytes.lock();
        block.dirty.store(true, Ordering::Relaxed);
        self.dirty.lock().remove(&(block.ino, block.lbn)).is_some()
    }

    /// Returns a block if it is in memory.
    pub(super) fn get(&self, ino: Nid, lbn: u64) -> Option<Arc<Owned>> {
        self.all.lock().get(&(ino, lbn)).cloned()
    }

    /// Gives up clean blocks that are not in use until at most `bytes` are used.
    pub(super) fn shrink(&self, bytes: usize) {
        let used = self.memory();
        let clean = |block: &Owned| !block.dirty.load(Ordering::Relaxed);
        drop(sweep(&mut self.all.lock(), &mut self.hand.lock(), used, bytes, clean));
    }

    pub(super) fn insert(&self, ino: Nid, lbn: u64, bytes: Buf) -> Arc<Owned> {
        let block = Owned { ino, lbn, bytes: Mutex::new(bytes), dirty: AtomicBool::new(false) };
        Arc::clone(self.all.lock().entry((ino, lbn)).or_insert_with(|| Arc::new(block)))
    }
}
