//! The volume's disk, block by block.

use std::sync::Arc;

use moafs_disk::{Cause, Kind, Lba, Op, Page, Request, SECTOR, SharedDisk, Tag};
use moafs_runtime::Rt;

use crate::format::Checksums;
use crate::health::Health;

/// The disk of a volume, and what the writing of blocks depends on.
pub(super) struct Device {
    pub(super) disk: SharedDisk,
    pub(super) rt: Rt,
    pub(super) health: Arc<Health>,
    pub(super) block_size: usize,
    pub(super) checksums: Checksums,
}

impl Device {
    pub(super) fn lba(&self, no: u64) -> Lba {
        Lba(no * (self.block_size / SECTOR) as u64)
    }

    /// Returns the request that writes an image of a block to its place.
    pub(super) fn write_of(&self, no: u64, kind: Kind, image: Page) -> Request {
        let op = Op::Write { data: vec![image], fua: false };
        Request { op, at: self.lba(no), tag: Tag::new(kind, 0, Cause::Order) }
    }
}
