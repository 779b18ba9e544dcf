//! Contents of regular files that lie in their inodes. Other drivers put them there; this one never does.
//!
//! They are read from there, cut with the file, and leave with the first block that the file places, in one change: it
//! holds them, as they are or written over. vfs sees to it that nothing else is placed before
//! ([`Format::is_inline`](moafs_vfs::Format::is_inline)).

use moafs_vfs::types::LbnRange;
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::incore::Incore;
use super::volume::F2fs;
use crate::format::inode::{self, Inline, Inode};

impl F2fs {
    /// Returns the contents of a file that lie in its inode.
    pub(super) fn inline_bytes(&self, file: &Incore) -> Vec<u8> {
        let area = self.layout(file).inline_range();
        file.node.view(|bytes| {
            let area = &bytes[area];
            let size = usize::try_from(inode::size(bytes)).unwrap_or(usize::MAX);
            area[..area.len().min(size)].to_vec()
        })
    }

    /// Drops the contents that lie in a file's inode, before `placed` is mapped: the first block holds them.
    pub(super) fn leave_inline(&self, file: &Incore, placed: LbnRange) -> Result<()> {
        if !self.is_inline(file, Inline::DATA) {
            return Ok(());
        }
        if placed.start.0 > 0 {
            debug_assert!(false, "inode {} would lose the contents that lie in it", file.ino);
            let what = format!("block {} of inode {}, whose contents lie in it, got a place", placed.start, file.ino);
            return Err(Error::Refused(what));
        }
        self.clear_inline(file)
    }

    /// Makes an inode one whose contents lie elsewhere, without any so far.
    pub(super) fn clear_inline(&self, file: &Incore) -> Result<()> {
        let area = self.layout(file).inline_range();
        let clear = |bytes: &mut [u8]| {
            let mut inode = Inode::decode(bytes, file.ino, self.features)?;
            inode.inline.remove(Inline::DATA | Inline::DATA_EXIST);
            inode.encode_into(bytes);
            bytes[area].fill(0);
            Ok(())
        };
        self.change(&file.node, clear).map_err(damaged)
    }

    /// Fails if contents of `size` bytes have no room in their inode: with that size no mount would read it again.
    pub(super) fn check_fits_inline(&self, file: &Incore, size: u64) -> Result<()> {
        let room = self.layout(file).inline_range().len() as u64;
        if size <= room {
            return Ok(());
        }
        debug_assert!(false, "inode {} is told {size} bytes of contents, and has room for {room}", file.ino);
        let what = format!("inode {} has {size} bytes of contents, which do not fit into it", file.ino);
        Err(Error::Refused(what))
    }

    /// Clears the contents in an inode that lie beyond the new end of the file.
    pub(super) fn cut_inline(&self, file: &Incore, size: u64) {
        let area = self.layout(file).inline_range();
        self.change(&file.node, |bytes| {
            let area = &mut bytes[area];
            let keep = usize::try_from(size).unwrap_or(usize::MAX).min(area.len());
            area[keep..].fill(0);
        });
    }
}

#[cfg(test)]
mod tests;
