//! The volume under check: blocks read from the device in requests as large as possible, some of them kept.

use std::collections::BTreeMap;

use moafs_disk::{Buf, Disk, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, Tag};

use super::CheckError;
use crate::format::{BLOCK, BlkAddr};

/// Blocks that are kept: 16 MiB.
const KEPT_MAX: usize = 4096;
/// Blocks that one request brings.
pub(super) const REQUEST_BLOCKS: usize = 256;

/// Blocks of a volume on a disk.
pub(super) struct Volume<'a> {
    disk: &'a dyn Disk,
    kept: BTreeMap<BlkAddr, Page>,
}

fn lba(block: BlkAddr) -> Lba {
    Lba::from_byte(u64::from(block.0) * BLOCK as u64)
}

impl<'a> Volume<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Volume<'a> {
        Volume { disk, kept: BTreeMap::new() }
    }

    /// Returns the number of whole blocks that the device has.
    pub(super) fn blocks(&self) -> u64 {
        self.disk.limits().sectors / (BLOCK / SECTOR) as u64
    }

    /// Reads blocks one behind the other; they are not kept.
    pub(super) fn read_run(&self, first: BlkAddr, blocks: usize, doing: &'static str) -> Result<Buf, CheckError> {
        let read = self.disk.read(lba(first), blocks * BLOCK, Tag::volume(Kind::Segments));
        read.map_err(|source| CheckError::Disk { doing, source })
    }

    /// Reads a block, or returns it from memory if it was kept.
    pub(super) fn read(&mut self, block: BlkAddr) -> Result<Page, CheckError> {
        if let Some(page) = self.kept.get(&block) {
            return Ok(page.clone());
        }
        let page = self.read_run(block, 1, "read a block")?.freeze();
        self.make_room(1);
        self.kept.insert(block, page.clone());
        Ok(page)
    }

    /// Brings blocks that will be read soon, neighbours in one request. The rest of too many is left for
    /// [`Self::read`].
    pub(super) fn prefetch(&mut self, wanted: impl IntoIterator<Item = BlkAddr>) -> Result<(), CheckError> {
        let beyond = self.blocks();
        let fits = |block: &BlkAddr| u64::from(block.0) < beyond && !self.kept.contains_key(block);
        let mut wanted: Vec<BlkAddr> = wanted.into_iter().filter(fits).take(KEPT_MAX / 2).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.make_room(wanted.len());
        let runs = wanted.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(REQUEST_BLOCKS));
        let request = |run: &[BlkAddr]| Request {
            op: Op::Read { into: run.iter().map(|_| Buf::scratch(BLOCK)).collect() },
            at: lba(run[0]),
            tag: Tag::volume(Kind::Node),
        };
        let done = self.disk.run(runs.clone().map(request).collect());
        for (run, done) in runs.zip(done) {
            let bufs = done.result.map_err(|source| CheckError::Disk { doing: "read blocks", source })?;
            self.kept.extend(run.iter().copied().zip(bufs.into_iter().map(Buf::freeze)));
        }
        Ok(())
    }

    fn make_room(&mut self, blocks: usize) {
        if self.kept.len() + blocks > KEPT_MAX {
            self.kept.clear();
        }
    }
}
