//! Facts about a volume: its superblock and checkpoint without opening it, and the segments of an
//! open one.

use moafs_disk::SharedDisk;
use moafs_vfs::Result;
use serde::Serialize;

use super::mount::{Found, read_pack};
use super::superblocks::read_superblock;
use super::volume::{Counters, F2fs};
use crate::clean::SegmentView;
use crate::format::checkpoint::Checkpoint;
use crate::format::superblock::Superblock;
use crate::format::{Log, SEGMENT_BLOCKS, Segno};

/// The contents of a volume's first blocks.
#[derive(Debug)]
pub struct Head {
    /// The first sound superblock.
    pub superblock: Superblock,
    /// The newer checkpoint of the two packs.
    pub checkpoint: Checkpoint,
    /// The number (0 or 1) of its pack.
    pub pack: u32,
    /// Inodes without a name that the next writing mount frees.
    pub orphans: usize,
}

impl Head {
    /// Reads superblock and checkpoint, also of volumes that cannot be opened because of their features.
    ///
    /// # Errors
    /// If none of the copies is sound, or the device fails.
    pub fn read(disk: &SharedDisk) -> Result<Head> {
        let superblock = read_superblock(disk)?;
        let Found { pack, which, .. } = read_pack(disk, &superblock.geometry())?;
        Ok(Head { superblock, orphans: pack.orphans.len(), checkpoint: pack.checkpoint, pack: which })
    }
}

/// The state of a segment, which decides what can be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentState {
    /// A log may take it: no block of it is in use.
    Free,
    /// Free once the next checkpoint is durable: the last one still has blocks of it in use.
    Prefree,
    /// A log writes into it.
    Open,
    /// Some of its blocks are valid: cleaning or recycling can gain from it.
    Partial,
    /// All of its blocks are valid.
    Full,
}

/// Facts about one segment of the main area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SegmentFacts {
    /// The number of the segment in the main area.
    #[serde(skip)]
    pub segno: Segno,
    /// The log that wrote it last; without meaning for a free segment.
    #[serde(skip)]
    pub log: Log,
    /// The state that decides what can be done with it.
    pub state: SegmentState,
    /// Valid blocks, 0 to 512.
    pub valid: u16,
    /// Blocks that have been written since it was last free, valid or not: all of them, except
    /// those ahead of a log that appends.
    pub written: u16,
}

/// The number of segments in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SegmentCounts {
    /// Segments in state [`SegmentState::Free`].
    pub free: u32,
    /// Segments in state [`SegmentState::Prefree`].
    pub prefree: u32,
    /// Segments in state [`SegmentState::Open`].
    pub open: u32,
    /// Segments in state [`SegmentState::Partial`].
    pub partial: u32,
    /// Segments in state [`SegmentState::Full`].
    pub full: u32,
}

impl SegmentCounts {
    /// Counts one more segment in `state`.
    pub fn add(&mut self, state: SegmentState) {
        let count = match state {
            SegmentState::Free => &mut self.free,
            SegmentState::Prefree => &mut self.prefree,
            SegmentState::Open => &mut self.open,
            SegmentState::Partial => &mut self.partial,
            SegmentState::Full => &mut self.full,
        };
        *count += 1;
    }
}

/// The facts that a mounted volume reports.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SpaceReport {
    /// The counters since it was opened.
    #[serde(flatten)]
    pub counters: Counters,
    /// The present number of segments by state.
    pub segments: SegmentCounts,
}

impl F2fs {
    /// Returns the counters since the volume was opened, and the present number of segments by
    /// state.
    pub fn report(&self) -> SpaceReport {
        let mut segments = SegmentCounts::default();
        self.segments().into_iter().for_each(|segment| segments.add(segment.state));
        SpaceReport { counters: self.counters(), segments }
    }

    /// Returns all segments of the main area, as they are now.
    pub fn segments(&self) -> Vec<SegmentFacts> {
        let facts = |view: SegmentView, is_held: bool, append_at: Option<u16>| {
            let state = match usize::from(view.valid) {
                _ if view.current => SegmentState::Open,
                0 if is_held => SegmentState::Prefree,
                0 => SegmentState::Free,
                SEGMENT_BLOCKS => SegmentState::Full,
                _ => SegmentState::Partial,
            };
            let written = match state {
                SegmentState::Free => 0,
                _ => append_at.unwrap_or(SEGMENT_BLOCKS as u16),
            };
            SegmentFacts { segno: view.segno, log: view.log, state, valid: view.valid, written }
        };
        self.space.map_segments(facts)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::mem::MemDisk;
    use moafs_runtime::{Live, Timestamp};

    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{F2fs, OpenOptions};

    #[test]
    fn a_fresh_volume_has_six_open_segments_and_free_ones() {
        let disk: SharedDisk = Arc::new(MemDisk::new(128 << 11));
        let made = mkfs(&*disk, &MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
        let head = Head::read(&disk).unwrap();
        assert_eq!((head.superblock.uuid, head.pack, head.orphans), ([7; 16], 0, 0));
        let volume = F2fs::open(disk, Live::new(), OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let counts = volume.report().segments;
        assert_eq!(counts, SegmentCounts { free: made.geometry.segments - 6, open: 6, ..SegmentCounts::default() });
        for segment in volume.segments() {
            let used = head.checkpoint.current.iter().find(|at| at.segno == segment.segno).map_or(0, |at| at.offset);
            assert_eq!((segment.valid, segment.written), (used, used), "segment {}", segment.segno);
        }
    }
}
