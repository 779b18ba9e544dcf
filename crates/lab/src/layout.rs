//! The layout of a volume: layout score, pieces of files and directories, and pictures.

use std::collections::{BTreeMap, BTreeSet};

use moafs_vfs::format::Survey;
use moafs_vfs::layout::Score;
use moafs_vfs::plan::SMALL_BLOCKS_MAX;
use moafs_vfs::types::{BlockRun, FileKind, Ino, Lbn};
use moafs_vfs::{Format, Vfs};

use crate::error::{LabError, Result};
use crate::outcome::{Cell, LayoutMap};

/// A regular file on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// Inode number of the directory that the file is in.
    pub parent: Option<Ino>,
    /// Runs of the file's blocks, in file order.
    pub runs: Vec<(Lbn, BlockRun)>,
}

impl FileLayout {
    /// Returns the number of the file's blocks.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|(_, run)| u64::from(run.len)).sum()
    }
}

/// The layout of a volume, file by file.
#[derive(Debug, Clone, Default)]
pub struct VolumeLayout {
    /// Regular files, by inode number.
    pub files: BTreeMap<Ino, FileLayout>,
    /// Runs of the directories' blocks.
    directories: Vec<BlockRun>,
    /// Metadata at fixed places.
    metadata: Vec<BlockRun>,
}

/// Numbers about a set of files.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pieces {
    /// Layout score; `None` if no file has two blocks.
    pub score: Option<f64>,
    /// Mean number of runs of a file.
    pub runs_per_file: f64,
    /// Mean number of runs in which all files of a directory lie together.
    pub runs_per_directory: f64,
}

impl VolumeLayout {
    /// Reads the layout of a volume. The volume should have been synced: data without an address
    /// are not seen.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    pub fn of(vfs: &Vfs<impl Format>) -> Result<VolumeLayout> {
        let mut layout = VolumeLayout::default();
        vfs.format().survey(&mut layout).map_err(LabError::volume("looking at the layout"))?;
        Ok(layout)
    }

    /// Returns the score of all files.
    pub fn score(&self) -> Score {
        sum(self.files.values())
    }

    /// Returns the numbers of the files that are not in `before`.
    pub fn pieces_of_new(&self, before: &BTreeSet<Ino>) -> Pieces {
        let new: Vec<&FileLayout> =
            self.files.iter().filter(|(ino, _)| !before.contains(ino)).map(|(_, file)| file).collect();
        let mut by_dir: BTreeMap<Option<Ino>, Vec<BlockRun>> = BTreeMap::new();
        for file in &new {
            by_dir.entry(file.parent).or_default().extend(file.runs.iter().map(|(_, run)| *run));
        }
        let dir_runs: usize = by_dir.values_mut().map(|runs| joined(runs)).sum();
        let file_runs: usize = new.iter().map(|file| file.runs.len()).sum();
        let mean = |sum: usize, count: usize| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
        Pieces {
            score: sum(new.iter().copied()).value(),
            runs_per_file: mean(file_runs, new.len()),
            runs_per_directory: mean(dir_runs, by_dir.len()),
        }
    }

    /// Draws `blocks` blocks: one row per group, `columns` cells in each.
    pub fn map(&self, title: String, blocks: u64, blocks_per_group: u64, columns: usize) -> LayoutMap {
        let mut kinds = vec![Cell::Free; blocks as usize];
        let mut paint = |run: BlockRun, kind: Cell| {
            let (start, end) = (run.start.0.min(blocks) as usize, run.end().0.min(blocks) as usize);
            kinds[start..end].fill(kind);
        };
        for file in self.files.values() {
            let kind = if file.blocks() <= SMALL_BLOCKS_MAX { Cell::Small } else { Cell::Large };
            file.runs.iter().for_each(|(_, run)| paint(*run, kind));
        }
        self.directories.iter().for_each(|run| paint(*run, Cell::Directory));
        self.metadata.iter().for_each(|run| paint(*run, Cell::Metadata));
        let cells = kinds.chunks(blocks_per_group as usize).flat_map(|group| cells_of(group, columns)).collect();
        LayoutMap { title, columns, cells }
    }
}

impl Survey for VolumeLayout {
    fn file(&mut self, ino: Ino, kind: FileKind, parent: Option<Ino>, runs: &[(Lbn, BlockRun)]) {
        match kind {
            FileKind::Regular => {
                self.files.insert(ino, FileLayout { parent, runs: runs.to_vec() });
            }
            _ => self.directories.extend(runs.iter().map(|(_, run)| *run)),
        }
    }

    fn free(&mut self, _run: BlockRun) {}

    fn metadata(&mut self, _what: &'static str, _group: u64, run: BlockRun) {
        self.metadata.push(run);
    }
}

fn sum<'a>(files: impl Iterator<Item = &'a FileLayout>) -> Score {
    files.map(|file| Score::of(&file.runs)).fold(Score::default(), |all, one| Score {
        successors: all.successors + one.successors,
        adjacent: all.adjacent + one.adjacent,
    })
}

/// Counts the runs after neighbours on the disk are joined.
fn joined(runs: &mut [BlockRun]) -> usize {
    runs.sort_unstable_by_key(|run| run.start);
    let breaks = runs.windows(2).filter(|pair| pair[0].end() != pair[1].start).count();
    if runs.is_empty() { 0 } else { breaks + 1 }
}

/// Returns the kind of most blocks in each of `columns` equal parts of a group.
fn cells_of(group: &[Cell], columns: usize) -> Vec<Cell> {
    const KINDS: [Cell; 5] = [Cell::Free, Cell::Small, Cell::Large, Cell::Directory, Cell::Metadata];
    let part = |column: usize| &group[column * group.len() / columns..(column + 1) * group.len() / columns];
    let most = |blocks: &[Cell]| {
        let count = |kind: &Cell| blocks.iter().filter(|block| *block == kind).count();
        KINDS.into_iter().max_by_key(count).unwrap_or(Cell::Free)
    };
    (0..columns).map(|column| most(part(column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::types::BlockAddr;

    fn run(start: u64, len: u32) -> BlockRun {
        BlockRun { start: BlockAddr(start), len }
    }

    fn layout() -> VolumeLayout {
        let mut layout = VolumeLayout::default();
        layout.file(Ino(11), FileKind::Regular, Some(Ino(2)), &[(Lbn(0), run(10, 1))]);
        layout.file(Ino(12), FileKind::Regular, Some(Ino(2)), &[(Lbn(0), run(11, 1)), (Lbn(1), run(20, 1))]);
        layout.file(Ino(13), FileKind::Regular, Some(Ino(2)), &[(Lbn(0), run(60, 20))]);
        layout.file(Ino(2), FileKind::Directory, None, &[(Lbn(0), run(40, 3))]);
        layout.metadata("bitmap", 0, run(0, 5));
        layout
    }

    #[test]
    fn new_files_are_counted_apart() {
        let layout = layout();
        let new = layout.pieces_of_new(&BTreeSet::from([Ino(13)]));
        assert_eq!(new, Pieces { score: Some(0.0), runs_per_file: 1.5, runs_per_directory: 2.0 });
        assert_eq!(layout.score(), Score { successors: 20, adjacent: 19 });
    }

    #[test]
    fn a_map_shows_what_most_of_a_cell_is() {
        let map = layout().map("all".to_owned(), 100, 50, 10);
        assert_eq!(map.cells.len(), 20);
        assert_eq!(map.cells[0], Cell::Metadata);
        assert_eq!(map.cells[8], Cell::Directory);
        assert_eq!(map.cells[13], Cell::Large);
        assert_eq!(map.cells[19], Cell::Free);
    }
}
