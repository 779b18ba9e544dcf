//! Reading and changing the blocks whose contents are the format's own.

use moafs_runtime::leaf::atomic::Ordering;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, Tag};
use moafs_vfs::format::Admission;
use moafs_vfs::types::{FileKind, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::convert::copy_of;
use super::incore::Incore;
use super::owned_cache::Owned;
use super::space::Origin;
use super::volume::F2fs;
use crate::format::{BLOCK, BlkAddr};

/// Blocks that one read brings at most.
const READ_BLOCKS: u32 = 16;

impl F2fs {
    /// Returns a block of a directory or symbolic link; reads it if it is not in memory. `None` if
    /// the file has a hole there, or a block that was reserved and never written: this mount keeps those that it
    /// reserves in memory.
    pub(super) fn owned_block(&self, file: &Incore, lbn: u64) -> Result<Option<Arc<Owned>>> {
        loop {
            if let Some(block) = self.owned.get(file.ino, lbn) {
                return Ok(Some(block));
            }
            let mapping = self.map_run(file, Lbn(lbn), READ_BLOCKS)?;
            let run = match mapping {
                Mapping::Hole { .. } | Mapping::Unwritten(_) => return Ok(None),
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
        self.point_at(file, &leaf, lbn, BlkAddr::NEW, Origin::Written, admission)?;
        self.forget_owned(file, lbn..lbn + 1);
        let block = self.owned.insert(file.ino, lbn, bytes);
        self.change_owned(&block, |_| ());
        Ok(block)
    }
}
