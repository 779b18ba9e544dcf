//! Unmapping blocks in bounded ops.

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
        inode.state.lock().may_overhang = false;
        Ok(())
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
