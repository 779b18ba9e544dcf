//! Durability: fsync, sync, close.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::format::{CommitReason, Format, SyncScope};
use crate::full_host::wait_for_host;
use crate::inner::Inner;
use crate::inode::Unput;
use crate::plan::WritebackReason;
use crate::types::{FileKind, Ino};
use crate::write_error::Process;

impl<F: Format> Inner<F> {
    pub(crate) fn fsync(&self, ino: Ino, data_only: bool, caller: &dyn Fn() -> Process) -> Result<()> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        self.tally.fsyncs.fetch_add(1, Ordering::Relaxed);
        let written = if inode.kind == FileKind::Regular {
            self.write_back_file(&inode, WritebackReason::Sync(ino))
        } else {
            Ok(())
        };
        let failed = inode.state.lock().error.is_some();
        if failed {
            let process = caller();
            let error = inode.state.lock().error.as_mut().and_then(|error| error.tell(process, self.rt.now()));
            error.map_or(Ok(()), Err)?;
        }
        written?;
        let threshold = if data_only { Unput::Attributes } else { Unput::Times };
        if inode.state.lock().unput >= threshold {
            self.put_inodes(std::slice::from_ref(&inode))?;
        }
        let (seal, epoch) = {
            let state = inode.state.lock();
            (state.seal, state.epoch)
        };
        let how = if data_only { SyncScope::DataOnly } else { SyncScope::Full };
        self.format.sync_inode(&inode.node, seal, epoch, how)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        let _gate = self.enter()?;
        self.tally.syncs.fetch_add(1, Ordering::Relaxed);
        if self.options.read_only || self.shape.read_only.is_some() {
            return Ok(());
        }
        self.check_writable()?;
        self.flush(CommitReason::Sync)
    }

    /// Makes everything durable that was changed before the call; waits for room on a full host. The first error is
    /// returned, but everything is tried.
    pub(crate) fn flush(&self, why: CommitReason) -> Result<()> {
        wait_for_host(&self.rt, || self.flush_once(why))
    }

    fn flush_once(&self, why: CommitReason) -> Result<()> {
        let files = self.dirty.lock().least_recent(usize::MAX);
        let mut outcome =
            self.write_back(files.iter().map(|inode| WritebackReason::Drain(inode.ino))).error.map_or(Ok(()), Err);
        for inode in &files {
            // A file without room keeps no other from being written; the device, or a full host, would again.
            if outcome.as_ref().is_err_and(|error| error.errno() != libc::ENOSPC || error.is_host_full()) {
                break;
            }
            // Its dirty blocks were in flight, or too many for one plan.
            outcome = outcome.and(self.write_back_file(inode, WritebackReason::Drain(inode.ino)));
        }
        outcome = outcome.and(self.put_all());
        let committed = self.commit(why);
        outcome.and(committed)
    }

    /// Closes the volume: no call runs any more, everything is written, orphans are reaped, the format closes.
    /// A volume that failed is only released; so is one that a full host left data, orphans or cut files of, which must
    /// not be marked as clean: the next mount finds it as after a crash.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.stop_syncer();
        let mut open = self.gate.write();
        if !*open {
            return Ok(());
        }
        *open = false;
        self.finish_loose_fills();
        if self.options.read_only || self.shape.read_only.is_some() {
            return self.format.close();
        }
        if let Some(reason) = self.format.failed() {
            self.format.record_damage();
            let _ = self.format.close();
            return Err(Error::ReadOnly { reason });
        }
        self.release_all_orphans();
        self.flush(CommitReason::Unmount)?;
        // The commit may have made the room that was missing before.
        let truncated = self.finish_truncations();
        self.retry_unreadable();
        self.reap_all()?;
        if !truncated {
            self.check_writable()?;
            return Err(Error::Posix(libc::ENOSPC));
        }
        self.format.close()
    }
}
