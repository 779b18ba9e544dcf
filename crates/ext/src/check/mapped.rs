//! The blocks that a map names, as runs.

use crate::format::BlockNo;
use crate::format::extent::Extent;

/// Adjacent file blocks on adjacent blocks of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The first file block.
    pub(super) lbn: u64,
    pub(super) start: BlockNo,
    pub(super) len: u64,
    pub(super) unwritten: bool,
}

impl Run {
    pub(super) fn one(lbn: u64, start: BlockNo) -> Run {
        Run { lbn, start, len: 1, unwritten: false }
    }

    /// Returns the file block behind the last one.
    pub(super) fn end(&self) -> u64 {
        self.lbn + self.len
    }

    pub(super) fn blocks(self) -> impl Iterator<Item = (u64, BlockNo)> {
        (0..self.len).map(move |at| (self.lbn + at, BlockNo(self.start.0 + at)))
    }
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Run {
        let Extent { lbn, len, start, unwritten } = extent;
        Run { lbn: lbn.into(), start, len: len.into(), unwritten }
    }
}

/// The legal blocks of a map.
#[derive(Debug, Clone, Default)]
pub(super) struct Mapped {
    /// Ascending by file block.
    pub(super) runs: Vec<Run>,
    /// Indirect blocks, or nodes of the extent tree.
    pub(super) nodes: Vec<BlockNo>,
    /// Number of blocks in the runs.
    pub(super) count: u64,
}

impl Mapped {
    /// Takes a run behind all others.
    pub(super) fn push(&mut self, run: Run) {
        self.count += run.len;
        match self.runs.last_mut() {
            Some(last)
                if last.end() == run.lbn
                    && last.start.0 + last.len == run.start.0
                    && last.unwritten == run.unwritten =>
            {
                last.len += run.len;
            }
            _ => self.runs.push(run),
        }
    }

    /// Returns the number of blocks that count for the inode.
    pub(super) fn blocks_used(&self) -> u64 {
        self.count + self.nodes.len() as u64
    }

    /// Returns the file block behind the last one.
    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Returns the file block behind the last one that was written.
    pub(super) fn written_end(&self) -> u64 {
        self.runs.iter().rev().find(|run| !run.unwritten).map_or(0, Run::end)
    }

    /// Returns all blocks with their numbers in the file.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, BlockNo)> + '_ {
        self.runs.iter().flat_map(|run| run.blocks())
    }

    /// Returns the runs as extents of legal lengths.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.runs.iter().flat_map(|run| Extent::cover(run.lbn, run.start.0, run.len, run.unwritten)).collect()
    }
}
