//! The journal as a file of its volume: where its blocks lie.

use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Kind, SharedDisk};
use moafs_vfs::{Error, Result};

use crate::format::journal::{JournalSuperblock, SUPERBLOCK_BYTES};
use crate::format::superblock::Compat;
use crate::format::{BlockNo, Geometry, InodeNo, Place, Structure, Superblock};
use crate::health::damaged;
use crate::own_file::{OwnFile, OwnRun, read_block};

/// A journal inside its volume.
pub struct Journal {
    pub(super) disk: SharedDisk,
    pub(super) geo: Geometry,
    pub(super) runs: Vec<OwnRun>,
    /// The same runs, ascending by their place on the volume.
    sorted: Vec<OwnRun>,
    blocks: Vec<Range<u64>>,
    pub(super) superblock: JournalSuperblock,
    /// The bytes of the superblock as they are on the disk.
    pub(super) superblock_bytes: Vec<u8>,
}

impl Journal {
    /// Finds the journal of a volume; `None` if it has none. Reads the volume as it lies on the disk.
    ///
    /// # Errors
    /// [`Error::Refused`] for a journal on another device; damage and device errors as they are.
    pub fn open(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Option<Journal>> {
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        if sb.has_external_journal() {
            return Err(Error::Refused(
                "the journal is on another device, which is not supported: mount the volume with the kernel".to_owned(),
            ));
        }
        let ino = InodeNo(sb.journal_inum());
        if ino != InodeNo::JOURNAL && ino.0 < geo.first_ino {
            let problem = format!("s_journal_inum is {ino}, should be {}", InodeNo::JOURNAL);
            return Err(damaged(Place::of(Structure::Superblock).damage(problem)));
        }
        Journal::of(disk, geo, OwnFile::read(disk, geo, ino)?).map(Some)
    }

    /// Opens the journal in a file.
    pub(super) fn of(disk: &SharedDisk, geo: &Geometry, file: OwnFile) -> Result<Journal> {
        let mapped = file.runs.last().map_or(0, |run| u64::from(run.at) + u64::from(run.len));
        let bytes = read_block(disk, geo, file.runs[0].start, Kind::Journal)?;
        let superblock =
            JournalSuperblock::decode(&bytes[..SUPERBLOCK_BYTES], geo.block_size, mapped).map_err(damaged)?;
        let mut sorted = file.runs.clone();
        sorted.sort_by_key(|run| run.start);
        let superblock_bytes = bytes[..SUPERBLOCK_BYTES].to_vec();
        let (disk, geo, blocks) = (Arc::clone(disk), geo.clone(), file.blocks());
        Ok(Journal { disk, geo, runs: file.runs, sorted, blocks, superblock, superblock_bytes })
    }

    /// Returns the journal's superblock.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns the runs of the journal's blocks, ascending by their place in the journal.
    pub fn runs(&self) -> &[OwnRun] {
        &self.runs
    }

    /// Returns the blocks that the journal has on the volume, those of its map among them: no other file may own one.
    pub fn blocks(&self) -> &[Range<u64>] {
        &self.blocks
    }

    /// Returns the block of the volume that holds a block of the journal; `None` beyond its end.
    pub(super) fn locate(&self, at: u32) -> Option<(BlockNo, u32)> {
        let index = self.runs.partition_point(|run| run.at <= at).checked_sub(1)?;
        let run = self.runs[index];
        let skipped = at - run.at;
        (skipped < run.len).then(|| (BlockNo(run.start.0 + u64::from(skipped)), run.len - skipped))
    }

    /// Returns the same as [`Self::locate`].
    ///
    /// # Errors
    /// Damage if the journal has no such block.
    pub(super) fn locate_checked(&self, at: u32) -> Result<(BlockNo, u32)> {
        self.locate(at)
            .ok_or_else(|| damaged(Place::of(Structure::LogBlock(at)).damage("it lies beyond the end of the journal")))
    }

    /// Returns true if a block of the volume belongs to the journal itself.
    pub(super) fn owns(&self, block: BlockNo) -> bool {
        let before = self.sorted.partition_point(|run| run.start <= block);
        before > 0 && block < self.sorted[before - 1].end()
    }
}
