//! Durability: committing changes, freeing what waits for that, and closing the volume.

use std::time::Duration;

use moafs_disk::Epoch;
use moafs_runtime::Time;
use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::format::{Admission, Idle, OpKind};
use moafs_vfs::{Error, Result};

use super::extents;
use super::op::{self, ExtOp};
use super::volume::Ext;
use crate::alloc::FREEING_PAUSE;
use crate::format::superblock::Incompat;
use crate::meta::Level;

/// Time without requests after which committed blocks are written home.
const IDLE_BEFORE_SETTLING: Duration = Duration::from_secs(1);

// One attempt each. Where a caller waits for a full host, it repeats them (`Meta::wait_for_host`).
impl Ext {
    /// Makes everything up to `target` durable.
    pub(super) fn sweep(&self, target: Level) -> Result<()> {
        if self.meta.is_pending(target) { self.sweep_and_free(target) } else { Ok(()) }
    }

    /// Does the same as [`Ext::sweep`]; on return, the blocks that waited for `target` are free,
    /// even if another task has written it.
    pub(super) fn sweep_and_free(&self, target: Level) -> Result<()> {
        self.meta.sweep(target, &mut &*self.alloc)?;
        self.held.lock().retain(|(until, _), _| self.meta.is_pending(*until));
        Ok(())
    }

    /// Makes all file data that were placed durable. Metadata are durable once swept.
    pub(super) fn flush(&self) -> Result<()> {
        let data = Epoch(self.data_epoch.load(Ordering::Relaxed));
        let flushed = self.disk.make_durable(data).map_err(|source| Error::disk("flushing the volume", source));
        self.health.watch(flushed)
    }

    /// Makes every change and all file data that were placed durable.
    pub(super) fn commit_all(&self) -> Result<()> {
        self.health.check()?;
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        // With a journal the totals are stored at unmount only: the groups' counts are in every transaction.
        if !self.meta.has_journal() {
            self.store_totals()?;
        }
        self.sweep_and_free(self.meta.highest())?;
        self.flush()
    }

    /// Makes the blocks and inodes that are being freed usable: the pointers to them must be gone
    /// from the disk. `before` is their number when the caller looked; if as many are left after
    /// the commit, another op is freeing them at this moment, and the call pauses before it
    /// returns.
    pub(super) fn finish_freeing(&self, before: u64) -> Result<()> {
        self.commit_all()?;
        if self.alloc.freeing() >= before {
            self.meta.pause(FREEING_PAUSE);
        }
        Ok(())
    }

    /// Returns the blocks that no write is promised: nodes of extent trees may take them.
    pub(super) fn kept_for_nodes(&self) -> u64 {
        let writes = self.geo.incompat.contains(Incompat::EXTENT) && self.shape.read_only.is_none();
        if writes { extents::reserve(&self.geo) } else { 0 }
    }

    /// Commits if hardly a block is left for a node and blocks are being freed: no op can wait for a commit.
    pub(super) fn make_room_for_nodes(&self) -> Result<()> {
        let freeing = self.alloc.freeing();
        let is_short = freeing > 0 && self.alloc.free_blocks() < self.kept_for_nodes() / 2;
        if is_short { self.finish_freeing(freeing) } else { Ok(()) }
    }

    /// Begins an op: waits until there is room for it in the transaction, or the chain of needs is short enough.
    pub(super) fn begin_op<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<ExtOp<'a>> {
        let credits = op::credits(kind);
        if self.meta.is_long(credits) {
            let sweep = || self.sweep(self.meta.highest());
            if kind.waits_for_host() { self.meta.wait_for_host(sweep) } else { sweep() }?;
        }
        Ok(ExtOp::new(self, kind, admission, self.meta.enter(credits)))
    }

    /// Writes committed blocks home while there are no requests. Returns when to look again.
    pub(super) fn settle_in_background(&self, idle: Idle) -> Option<Time> {
        if self.health.failed().is_some() || !self.meta.is_log_in_use() {
            return None;
        }
        let is_idle = matches!(idle, Idle::For(time) if time >= IDLE_BEFORE_SETTLING);
        // An error has turned the volume read-only, and is kept there; a full host is asked again.
        let is_settled = is_idle && !self.meta.settle_log().is_err_and(|error| error.is_host_full());
        if is_settled { None } else { Some(self.rt.now() + IDLE_BEFORE_SETTLING) }
    }

    /// Commits everything, empties the journal, and marks the volume as clean.
    pub(super) fn close_journal(&self) -> Result<()> {
        self.settle()?;
        self.flush()?;
        self.meta.close_log()?;
        let (blocks, inodes) = self.alloc.totals();
        let now = self.now_secs();
        self.write_superblock(|superblock| {
            superblock.set_incompat(superblock.incompat() - Incompat::NEEDS_RECOVERY);
            superblock.set_free_blocks(blocks);
            superblock.set_free_inodes(inodes as u32);
            superblock.set_wtime(now);
        })
    }

    /// Writes every change, and also those that follow when blocks become free.
    pub(super) fn settle(&self) -> Result<()> {
        while !self.meta.is_clean() {
            self.sweep(self.meta.highest())?;
        }
        Ok(())
    }
}
