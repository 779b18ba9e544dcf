//! Unmapping blocks in bounded ops.

use std::sync::Arc;

use crate::error::Result;
use crate::format::{Admission, Format, FormatOp, OpKind, Progress};
use crate::inode::Shared;
use crate::op::Ops;
use crate::types::Lbn;

/// The most blocks that one op unmaps, approximately.
pub(crate) const UNMAP_BLOCKS_MAX: u32 = 2048;

/// The block number behind every file.
pub(crate) const LBN_END: Lbn = Lbn(u64::MAX);

impl<F: Format> Ops<F> {
    /// Unmaps what may lie beyond the end of a file, before it grows: the new part reads as zeros. The inode lock is
    /// held exclusively.
    pub(crate) fn unmap_overhang(&self, inode: &Shared<F>) -> Result<()> {
        if !inode.state.lock().may_overhang {
            return Ok(());
        }
        let from = Lbn(inode.size().div_ceil(self.block_bytes()));
        self.unmap_rest(inode, from, None, false, Progress::More)?;
        self.note_overhang(inode, false);
        Ok(())
    }

    /// Notes whether blocks may lie beyond the end of a file that has been cut. While they do it stays in memory.
    pub(crate) fn note_overhang(&self, inode: &Shared<F>, may_overhang: bool) {
        inode.state.lock().may_overhang = may_overhang;
        let mut overhanging = self.overhanging.lock();
        if may_overhang {
            overhanging.insert(inode.ino, Arc::clone(inode));
        } else {
            overhanging.remove(&inode.ino);
        }
    }

    /// Goes on with truncations that could not unmap everything; false if one has to be tried again later, as one that
    /// is still in work. Level 0 only.
    pub(crate) fn finish_truncations(&self) -> bool {
        let files: Vec<Shared<F>> = self.overhanging.lock().values().cloned().collect();
        let mut all = true;
        for inode in &files {
            // The caller that holds the lock may wait for the syncer.
            let Some(_exclusive) = inode.lock.try_write() else {
                all = false;
                continue;
            };
            if inode.check_alive().is_err() {
                // Its blocks went with it.
                self.note_overhang(inode, false);
            }
            all &= self.unmap_overhang(inode).is_ok();
        }
        all
    }

    /// Goes on unmapping in bounded ops until all blocks are unmapped.
    pub(crate) fn unmap_rest(
        &self,
        inode: &Shared<F>,
        from: Lbn,
        to: Option<Lbn>,
        orphan: bool,
        first: Progress,
    ) -> Result<()> {
        let mut progress = first;
        while progress == Progress::More {
            let mut admission = Admission::none();
            let mut op = self.begin(OpKind::Unmap, &mut admission)?;
            progress = op.unmap(&inode.node, from, to, UNMAP_BLOCKS_MAX, orphan)?;
            op.end(&[inode]);
        }
        Ok(())
    }
}
