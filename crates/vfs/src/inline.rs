//! Files whose contents lie in their inodes: moving the contents out before the file changes.
//!
//! The map of such a file shows holes, so what is done with holes would be done with its contents: zeros would be
//! written over them, or nothing would. And the inode has no room for a larger size. A write within the first block
//! needs no care: the page that it makes dirty holds all of the file, and [`FormatOp::place`] ends the state. Cutting
//! the file needs none either: the format cuts what the inode holds. Before any other change the contents get a block
//! of their own, as a write would give it to them: a power cut at any point shows them in one of the two places.

use crate::error::{Error, Result};
use crate::format::{Admission, Format, FormatOp, OpKind, SpaceClass};
use crate::inode::Shared;
use crate::io::{Files, need_of};
use crate::pages::Piece;
use crate::plan::WritebackReason;
use crate::types::{Lbn, LbnRange};
use crate::unmap::UNMAP_BLOCKS_MAX;

/// The first block: inodes hold no more than that.
const FIRST: LbnRange = LbnRange { start: Lbn(0), len: 1 };

/// Attempts to move the contents out, beside other callers that cut the file to nothing.
const ATTEMPTS: u32 = 8;

impl<F: Format> Files<F> {
    /// Moves the contents of a file out of its inode, if they lie there, and waits until the file maps their block.
    /// Level 0 only.
    pub(crate) fn leave_inode(&self, inode: &Shared<F>) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if !self.format.is_inline(&inode.node) {
                return Ok(());
            }
            self.copy_from_inode(inode)?;
            self.write_back_file(inode, WritebackReason::Sync(inode.ino))?;
        }
        Err(Error::Posix(libc::EIO))
    }

    /// Makes a dirty page of the contents that lie in an inode.
    fn copy_from_inode(&self, inode: &Shared<F>) -> Result<()> {
        self.make_room(self.shape.block_size as usize)?;
        self.note_shape(inode);
        let need = need_of(&inode.pages.lock().unplaced, FIRST, 1);
        let mut admission = self.admit(need, SpaceClass::Root)?;
        let _exclusive = inode.lock.write();
        inode.check_alive()?;
        if !self.format.is_inline(&inode.node) {
            return Ok(());
        }
        let size = inode.size();
        if size == 0 {
            return self.empty_inode(inode);
        }
        self.finish_fills_of(inode, FIRST);
        let base = self.pages(inode, FIRST, None)?.remove(0);
        let mut pages = inode.pages.lock();
        if pages.get(FIRST.start).is_some_and(|slot| slot.is_unsettled()) {
            return Ok(());
        }
        let promised = pages.unplaced.promise();
        let whole = Piece { block_bytes: self.shape.block_size as usize, start: 0, bytes: &base };
        // A power cut shows the bytes in the inode until the file maps these.
        let delta = pages.write(FIRST.start, whole, false, size.min(self.block_bytes()) as u32);
        let more = pages.unplaced.promise().saturating_sub(promised);
        debug_assert!(more <= admission.blocks(), "{more} blocks were not admitted");
        pages.admission.absorb(admission.split(more));
        self.list_dirty(inode, &pages);
        drop(pages);
        self.cache.account(delta);
        Ok(())
    }

    /// Tells the format that a file without contents has none in its inode.
    fn empty_inode(&self, inode: &Shared<F>) -> Result<()> {
        let mut none = Admission::none();
        let mut op = self.begin(OpKind::Unmap, &mut none)?;
        op.put_known(inode)?;
        op.unmap(&inode.node, FIRST.start, None, UNMAP_BLOCKS_MAX, false)?;
        op.end(&[inode]);
        Ok(())
    }
}
