//! Conversions to what the layers around have: buffers of the disk, errors of vfs.

use moafs_disk::Buf;
use moafs_vfs::Error;
use moafs_vfs::types::BlockAddr;

use crate::format::{BLOCK, Damage};

/// Copies bytes into a buffer of their own.
pub(super) fn copy_of(bytes: &[u8]) -> Buf {
    let mut block = Buf::scratch(BLOCK);
    block.copy_from_slice(bytes);
    block
}

/// Converts damage to the error that vfs reports.
pub(super) fn damaged(damage: Damage) -> Error {
    Error::Damaged {
        structure: damage.structure.to_string(),
        block: damage.block.map(|block| BlockAddr(block.0.into())),
        problem: damage.problem,
    }
}
