//! Blocks whose contents are the format's own: directories, long symbolic links, contents that had to leave an inode.
//!
//! They change in memory and are written, each to a new block, with the next checkpoint. Until then
//! a new one is *reserved* in its file: counted, without an address.

use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_vfs::format::Admission;
use moafs_vfs::types::{FileKind, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::evict::{CACHED_BYTES, sweep};
use super::incore::Incore;
use super::{F2fs, copy_of};
use crate::format::{BLOCK, BlkAddr, Nid};

/// Blocks that one read brings at most.
const READ_BLOCKS: u32 = 16;

/// A block in memory. There is one per file block; all its users share it.
pub(super) struct Owned {
    pub(super) ino: Nid,
    pub(super) lbn: u64,
    bytes: Mutex<Buf>,
    dirty: AtomicBool,
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
    all: Mutex<BTreeMap<(Nid, u64), Arc<Owned>>>,
    dirty: Mutex<BTreeMap<(Nid, u64), Arc<Owned>>>,
    /// Blocks that could not be written to the addresses that their files name.
    kept: Mutex<Vec<Arc<Owned>>>,
    /// The block at which the last search for blocks to give up ended.
    hand: Mutex<Option<(Nid, u64)>>,
}

impl OwnedBlocks {
    pub(super) fn memory(&self) -> usize {
        self.all.lock().len() * CACHED_BYTES
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
    fn forget(&self, ino: Nid, lbns: Range<u64>) -> usize {
        let range = (ino, lbns.start)..(ino, lbns.end);
        let mut all = self.all.lock();
        let gone: Vec<(Nid, u64)> = all.range(range).map(|(at, _)| *at).collect();
        let mut dirty = self.dirty.lock();
        let mut settled = 0;
        for at in gone {
            all.remove(&at);
            if let Some(block) = dirty.remove(&at) {
                // Another holder of the block must not list it as dirty again.
                block.dirty.store(true, Ordering::Relaxed);
                settled += 1;
            }
        }
        settled
    }

    /// Returns a block if it is in memory.
    pub(super) fn get(&self, ino: Nid, lbn: u64) -> Option<Arc<Owned>> {
        self.all.lock().get(&(ino, lbn)).cloned()
    }

    /// Gives up clean blocks that are not in use until at most `bytes` are used.
    pub(super) fn shrink(&self, bytes: usize) {
        let used = self.memory();
        sweep(&mut self.all.lock(), &mut self.hand.lock(), used, bytes, |block| !block.dirty.load(Ordering::Relaxed));
    }

    fn insert(&self, ino: Nid, lbn: u64, bytes: Buf) -> Arc<Owned> {
        let block = Owned { ino, lbn, bytes: Mutex::new(bytes), dirty: AtomicBool::new(false) };
        Arc::clone(self.all.lock().entry((ino, lbn)).or_insert_with(|| Arc::new(block)))
    }
}

impl F2fs {
    /// Returns a block of a directory or symbolic link; reads it if it is not in memory. `None` if
    /// the file has a hole there.
    pub(super) fn owned_block(&self, file: &Incore, lbn: u64) -> Result<Option<Arc<Owned>>> {
        loop {
            if let Some(block) = self.owned.get(file.ino, lbn) {
                return Ok(Some(block));
            }
            let mapping = self.map_run(file, Lbn(lbn), READ_BLOCKS)?;
            let run = match mapping {
                Mapping::Hole { .. } => return Ok(None),
                Mapping::Unwritten(_) => return Ok(Some(self.owned.insert(file.ino, lbn, Buf::zeroed(BLOCK)))),
                Mapping::Run(run) => run,
            };
            let kind = if file.kind == FileKind::Directory { Kind::Directory } else { Kind::Symlink };
            let tag = Tag::new(kind, file.ino.0.into(), Cause::Demand);
            let at = Lba::from_byte(run.start.0 * BLOCK as u64);
            let what = || format!("reading block {lbn} of inode {}", file.ino);
            let bytes = self.disk.read(at, run.len as usize * BLOCK, tag).map_err(|error| Error::disk(what(), error));
            let bytes = self.health.watch(bytes)?;
            // The block may have been written elsewhere meanwhile; then the bytes that were read
            // may be any.
            if self.map_run(file, Lbn(lbn), READ_BLOCKS)? != mapping {
                continue;
            }
            for (lbn, chunk) in (lbn..).zip(bytes.chunks_exact(BLOCK)) {
                let block = copy_of(chunk);
                self.owned.insert(file.ino, lbn, block);
            }
        }
    }

    /// Changes a block's bytes.
    pub(super) fn change_owned<T>(&self, block: &Arc<Owned>, edit: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut bytes = block.bytes.lock();
        let result = edit(&mut bytes);
        if !block.dirty.swap(true, Ordering::Relaxed) {
            self.owned.dirty.lock().insert((block.ino, block.lbn), Arc::clone(block));
            self.space.block_dirtied();
        }
        result
    }

    /// Forgets blocks of a file that no longer belong to the format.
    pub(super) fn forget_owned(&self, file: &Incore, lbns: Range<u64>) {
        (0..self.owned.forget(file.ino, lbns)).for_each(|_| self.space.block_settled());
    }

    /// Gives a file a new block with these bytes. The caller holds the file's `map` lock or is alone with it.
    pub(super) fn adopt(&self, file: &Incore, lbn: u64, bytes: Buf, admission: &mut Admission) -> Result<Arc<Owned>> {
        let leaf = self.leaf(file, lbn, admission)?;
        self.point_at(file, &leaf, lbn, BlkAddr::NEW, admission)?;
        self.forget_owned(file, lbn..lbn + 1);
        let block = self.owned.insert(file.ino, lbn, bytes);
        self.change_owned(&block, |_| ());
        Ok(block)
    }
}
