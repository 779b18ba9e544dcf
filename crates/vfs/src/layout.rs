//! The quality of a volume's layout: one measure for tools, lab and tests.
//!
//! *Layout score* (Smith, Seltzer: "File System Aging", 1997): the share of a file's blocks, from the second on, that
//! lie right behind their predecessor. 1 is a file in one piece; files of one block have no score. The score of many
//! files is that of all their blocks together, so that large files weigh what they are.
//! A hole has no blocks: the block that follows it has the block before it as predecessor.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::{Deserialize, Serialize};

use crate::format::Survey;
use crate::types::{BlockRun, FileKind, Ino, Lbn};

/// Classes of free runs: lengths 1, 2..4, 4..8, … blocks.
const CLASSES: usize = 33;

/// Blocks that could follow their predecessor, and those that do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Blocks that have a predecessor in their file.
    pub successors: u64,
    /// Of those, the blocks that lie right behind it.
    pub adjacent: u64,
}

impl Score {
    /// Returns the score of a file with these runs, in file order.
    pub fn of(runs: &[(Lbn, BlockRun)]) -> Score {
        let blocks: u64 = runs.iter().map(|(_, run)| u64::from(run.len)).sum();
        let successors = blocks.saturating_sub(1);
        Score { successors, adjacent: successors - breaks(runs) }
    }

    /// Returns the layout score, 0..=1; `None` if no block has a predecessor.
    pub fn value(self) -> Option<f64> {
        (self.successors > 0).then(|| self.adjacent as f64 / self.successors as f64)
    }

    pub(crate) fn add(&mut self, other: Score) {
        self.successors += other.successors;
        self.adjacent += other.adjacent;
    }
}

/// Counts the blocks of a file that do not lie right behind their predecessor.
fn breaks(runs: &[(Lbn, BlockRun)]) -> u64 {
    runs.windows(2).filter(|pair| pair[0].1.end() != pair[1].1.start).count() as u64
}

/// Totals of one kind of file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KindLayout {
    /// Files with at least one block.
    pub files: u64,
    /// Blocks of these files.
    pub blocks: u64,
    /// Contiguous pieces that the files lie in.
    pub pieces: u64,
    /// Score of all blocks of these files.
    pub score: Score,
}

/// A file that lies in several pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Scattered {
    /// The file's inode number.
    pub ino: u64,
    /// The directory it was found in, if the format knows it.
    pub parent: Option<u64>,
    /// Number of the file's blocks.
    pub blocks: u64,
    /// Contiguous pieces that the file lies in.
    pub pieces: u64,
    /// Score of the file.
    pub score: Score,
}

/// Free runs of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FreeClass {
    /// Shortest run of the class, in blocks: a power of two. The longest is one less than its double.
    pub from: u64,
    /// Number of runs of this class.
    pub runs: u64,
    /// Blocks in these runs.
    pub blocks: u64,
}

/// Free space by the length of its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FreeRuns {
    /// Number of free runs.
    pub runs: u64,
    /// Number of free blocks.
    pub blocks: u64,
    /// Blocks in the longest run.
    pub longest: u64,
    /// The runs by class, ascending by length; classes without runs are left out.
    pub classes: Vec<FreeClass>,
}

/// The layout of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Layout {
    /// Layout score of all regular files; `None` if none has two blocks.
    pub layout_score: Option<f64>,
    /// Totals of the regular files.
    pub files: KindLayout,
    /// Totals of the directories.
    pub directories: KindLayout,
    /// Totals of all other inodes with blocks (slow symbolic links).
    pub others: KindLayout,
    /// Blocks of metadata at fixed places, by the name of their structure.
    pub metadata: BTreeMap<&'static str, u64>,
    /// Free space by the length of its runs.
    pub free: FreeRuns,
    /// The regular files in the most pieces, worst first.
    pub scattered: Vec<Scattered>,
}

/// Collects a [`Layout`] from a survey, in memory that does not grow with the volume.
#[derive(Debug)]
pub struct Collector {
    layout: Layout,
    free: [FreeClass; CLASSES],
    /// Worst files by (pieces, inode number), the least bad on top.
    worst: BinaryHeap<Reverse<(u64, Reverse<u64>)>>,
    details: BTreeMap<u64, Scattered>,
    worst_max: usize,
}

impl Collector {
    /// Returns a collector that remembers the `worst_max` most scattered files.
    pub fn new(worst_max: usize) -> Collector {
        Collector {
            layout: Layout::default(),
            free: std::array::from_fn(|class| FreeClass { from: 1 << class, ..FreeClass::default() }),
            worst: BinaryHeap::new(),
            details: BTreeMap::new(),
            worst_max,
        }
    }

    /// Returns the layout of the surveyed volume.
    pub fn finish(self) -> Layout {
        let mut layout = self.layout;
        layout.layout_score = layout.files.score.value();
        layout.free.classes = self.free.into_iter().filter(|class| class.runs > 0).collect();
        layout.scattered = self.details.into_values().collect();
        layout.scattered.sort_by_key(|file| (Reverse(file.pieces), file.ino));
        layout
    }

    fn remember(&mut self, file: Scattered) {
        if file.pieces < 2 || self.worst_max == 0 {
            return;
        }
        self.worst.push(Reverse((file.pieces, Reverse(file.ino))));
        self.details.insert(file.ino, file);
        if self.worst.len() > self.worst_max
            && let Some(Reverse((_, Reverse(ino)))) = self.worst.pop()
        {
            self.details.remove(&ino);
        }
    }
}

impl Survey for Collector {
    fn file(&mut self, ino: Ino, kind: FileKind, parent: Option<Ino>, runs: &[(Lbn, BlockRun)]) {
        if runs.is_empty() {
            return;
        }
        let blocks = runs.iter().map(|(_, run)| u64::from(run.len)).sum();
        let (pieces, score) = (breaks(runs) + 1, Score::of(runs));
        let totals = match kind {
            FileKind::Regular => &mut self.layout.files,
            FileKind::Directory => &mut self.layout.directories,
            _ => &mut self.layout.others,
        };
        totals.files += 1;
        totals.blocks += blocks;
        totals.pieces += pieces;
        totals.score.add(score);
        if kind == FileKind::Regular {
            self.remember(Scattered { ino: ino.0, parent: parent.map(|dir| dir.0), blocks, pieces, score });
        }
    }

    fn free(&mut self, run: BlockRun) {
        let blocks = u64::from(run.len);
        let Some(class) = blocks.checked_ilog2() else { return };
        let class = &mut self.free[class as usize];
        class.runs += 1;
        class.blocks += blocks;
        self.layout.free.runs += 1;
        self.layout.free.blocks += blocks;
        self.layout.free.longest = self.layout.free.longest.max(blocks);
    }

    fn metadata(&mut self, what: &'static str, _group: u64, run: BlockRun) {
        *self.layout.metadata.entry(what).or_default() += u64::from(run.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BlockAddr;

    fn run(lbn: u64, start: u64, len: u32) -> (Lbn, BlockRun) {
        (Lbn(lbn), BlockRun { start: BlockAddr(start), len })
    }

    #[test]
    fn a_file_in_one_piece_scores_one_and_a_scattered_one_zero() {
        assert_eq!(Score::of(&[run(0, 10, 8)]).value(), Some(1.0));
        assert_eq!(Score::of(&[run(0, 10, 1), run(1, 20, 1), run(2, 15, 1)]).value(), Some(0.0));
        assert_eq!(Score::of(&[run(0, 10, 1)]).value(), None);
        assert_eq!(Score::of(&[]).value(), None);
    }

    #[test]
    fn the_score_counts_blocks_not_pieces() {
        assert_eq!(Score::of(&[run(0, 10, 6), run(6, 100, 5)]).value(), Some(0.9));
    }

    #[test]
    fn adjacent_runs_and_holes_are_no_breaks() {
        assert_eq!(Score::of(&[run(0, 10, 4), run(4, 14, 4)]).value(), Some(1.0));
        assert_eq!(Score::of(&[run(0, 10, 4), run(90, 14, 4)]).value(), Some(1.0));
    }

    #[test]
    fn the_worst_files_are_remembered_and_no_more() {
        let mut collector = Collector::new(2);
        for (ino, pieces) in [(11, 2), (12, 5), (13, 1), (14, 3), (15, 3)] {
            let runs: Vec<_> = (0..pieces).map(|i| run(i, 1000 - 10 * i, 1)).collect();
            collector.file(Ino(ino), FileKind::Regular, Some(Ino(2)), &runs);
        }
        let layout = collector.finish();
        let worst: Vec<_> = layout.scattered.iter().map(|file| (file.ino, file.pieces)).collect();
        assert_eq!(worst, [(12, 5), (14, 3)]);
        assert_eq!((layout.files.files, layout.files.pieces), (5, 14));
        assert_eq!(layout.layout_score, Some(0.0));
    }

    #[test]
    fn free_runs_are_sorted_into_classes() {
        let mut collector = Collector::new(0);
        for len in [1, 3, 4, 7, 0, u32::MAX] {
            collector.free(BlockRun { start: BlockAddr(0), len });
        }
        let free = collector.finish().free;
        let classes: Vec<_> = free.classes.iter().map(|class| (class.from, class.runs)).collect();
        assert_eq!(classes, [(1, 1), (2, 1), (4, 2), (1 << 31, 1)]);
        assert_eq!((free.runs, free.longest), (5, u64::from(u32::MAX)));
    }
}
