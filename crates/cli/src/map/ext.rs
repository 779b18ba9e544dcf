//! The picture of an ext2, ext3 or ext4 volume: its blocks, group by group.
//!
//! Groups are rows, read like a page. A cell stands for some blocks of a group and has the colour of the kind that
//! most of them are. Large volumes are drawn with several groups in a row and several blocks in a cell.

use std::fmt::Write as _;

use moafs_ext::format::Geometry;
use moafs_vfs::format::Survey;
use moafs_vfs::plan::SMALL_BLOCKS_MAX;
use moafs_vfs::types::{BlockRun, FileKind, Ino, Lbn};

use super::frame::{LEFT, TOP, header};

/// Most cells in a row, and most rows.
const COLUMNS: u64 = 1024;
const ROWS_MAX: u64 = 1024;
/// Size of a cell in the picture's units.
const CELL_HEIGHT: u64 = 6;

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Metadata,
    Directory,
    Small,
    Large,
    Other,
    Free,
    Unknown,
}

/// All classes with colour and legend, by their number.
const CLASSES: [(Class, &str, &str); 7] = [
    (Class::Metadata, "#4d4d4d", "metadata"),
    (Class::Directory, "#e69f00", "directories"),
    (Class::Small, "#009e73", "small files"),
    (Class::Large, "#0072b2", "large files"),
    (Class::Other, "#cc79a7", "links"),
    (Class::Free, "#f0f0f0", "free"),
    (Class::Unknown, "#d55e00", "maps, journal, other"),
];

/// The picture, as counts of blocks by class.
#[derive(Debug)]
pub(super) struct Grid {
    first_block: u64,
    blocks: u64,
    groups: u32,
    row_blocks: u64,
    cell_blocks: u64,
    columns: u64,
    /// Number of blocks of each class, per cell.
    cells: Vec<[u32; CLASSES.len()]>,
}

impl Grid {
    pub(super) fn new(geometry: &Geometry) -> Grid {
        let groups_per_row = u64::from(geometry.groups).div_ceil(ROWS_MAX);
        let row_blocks = groups_per_row * u64::from(geometry.blocks_per_group);
        let cell_blocks = row_blocks.div_ceil(COLUMNS);
        let columns = row_blocks.div_ceil(cell_blocks);
        let blocks = geometry.blocks - geometry.first_data_block;
        let rows = blocks.div_ceil(row_blocks);
        let cells = vec![[0; CLASSES.len()]; usize::try_from(rows * columns).unwrap_or(0)];
        let first_block = geometry.first_data_block;
        Grid { first_block, blocks, groups: geometry.groups, row_blocks, cell_blocks, columns, cells }
    }

    /// Counts a run; blocks outside the volume are left out.
    fn paint(&mut self, run: BlockRun, class: Class) {
        let mut at = run.start.0.saturating_sub(self.first_block);
        let end = run.end().0.saturating_sub(self.first_block).min(self.blocks);
        while at < end {
            let (row, in_row) = (at / self.row_blocks, at % self.row_blocks);
            let column = in_row / self.cell_blocks;
            let cell_end = row * self.row_blocks + ((column + 1) * self.cell_blocks).min(self.row_blocks);
            let upto = cell_end.min(end);
            if let Some(cell) = self.cells.get_mut((row * self.columns + column) as usize) {
                cell[class as usize] += (upto - at) as u32;
            }
            at = upto;
        }
    }

    /// Returns the class of most blocks in a cell; blocks that no survey reported are unknown.
    fn class(&self, cell: usize) -> Option<usize> {
        let counts = &self.cells[cell];
        let (row, column) = (cell as u64 / self.columns, cell as u64 % self.columns);
        let from = row * self.row_blocks + column * self.cell_blocks;
        let upto = (from + self.cell_blocks).min((row + 1) * self.row_blocks).min(self.blocks);
        let here = upto.checked_sub(from).filter(|&blocks| blocks > 0)?;
        let told: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let unknown = here.saturating_sub(told);
        let best = (0..CLASSES.len()).max_by_key(|&class| (counts[class], std::cmp::Reverse(class)))?;
        let is_unknown = unknown > u64::from(counts[best]);
        Some(if is_unknown { Class::Unknown as usize } else { best })
    }

    pub(super) fn svg(&self, title: &str) -> String {
        let rows = self.cells.len() as u64 / self.columns.max(1);
        let (width, height) = (LEFT + self.columns + 20, TOP + rows * CELL_HEIGHT + 20);
        let text = format!(
            "{} blocks in {} groups; a row is {} blocks, a cell {}",
            self.blocks, self.groups, self.row_blocks, self.cell_blocks
        );
        let mut svg = header(width, height, title, &text);
        self.legend(&mut svg);
        for row in 0..rows {
            self.row(row, &mut svg);
        }
        svg + "</svg>\n"
    }

    fn legend(&self, svg: &mut String) {
        for (index, (_, colour, what)) in CLASSES.iter().enumerate() {
            let x = LEFT + index as u64 * 135;
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"39\" width=\"10\" height=\"10\" fill=\"{colour}\" stroke=\"#999\" \
                 stroke-width=\"0.5\"/><text x=\"{}\" y=\"48\">{what}</text>",
                x + 14
            );
        }
    }

    /// Draws one row: neighbouring cells of one class are one rectangle.
    fn row(&self, row: u64, svg: &mut String) {
        let y = TOP + row * CELL_HEIGHT;
        if row.is_multiple_of(8) {
            let group = row * self.row_blocks * u64::from(self.groups) / self.blocks.max(1);
            let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">group {group}</text>", y + CELL_HEIGHT);
        }
        let mut column = 0;
        while column < self.columns {
            let class = self.class((row * self.columns + column) as usize);
            let same = (column..self.columns)
                .take_while(|&next| self.class((row * self.columns + next) as usize) == class)
                .count() as u64;
            if let Some(class) = class {
                let (x, height, colour) = (LEFT + column, CELL_HEIGHT - 1, CLASSES[class].1);
                let _ =
                    writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{same}\" height=\"{height}\" fill=\"{colour}\"/>");
            }
            column += same;
        }
    }
}

impl Survey for Grid {
    fn file(&mut self, _ino: Ino, kind: FileKind, _parent: Option<Ino>, runs: &[(Lbn, BlockRun)]) {
        let blocks: u64 = runs.iter().map(|(_, run)| u64::from(run.len)).sum();
        let class = match kind {
            FileKind::Directory => Class::Directory,
            FileKind::Regular if blocks <= SMALL_BLOCKS_MAX => Class::Small,
            FileKind::Regular => Class::Large,
            _ => Class::Other,
        };
        runs.iter().for_each(|(_, run)| self.paint(*run, class));
    }

    fn free(&mut self, run: BlockRun) {
        self.paint(run, Class::Free);
    }

    fn metadata(&mut self, _what: &'static str, _group: u64, run: BlockRun) {
        self.paint(run, Class::Metadata);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::types::BlockAddr;

    fn grid() -> Grid {
        // Two rows of 2500 blocks in 834 cells of 3 blocks, the second one short.
        let cells = vec![[0; CLASSES.len()]; 2 * 834];
        Grid { first_block: 1, blocks: 3000, groups: 2, row_blocks: 2500, cell_blocks: 3, columns: 834, cells }
    }

    fn run(start: u64, len: u32) -> BlockRun {
        BlockRun { start: BlockAddr(start), len }
    }

    #[test]
    fn every_block_of_a_run_is_counted_once_also_across_rows() {
        let mut grid = grid();
        grid.paint(run(1, 3000), Class::Free);
        let counted: u32 = grid.cells.iter().map(|cell| cell[Class::Free as usize]).sum();
        assert_eq!(counted, 3000);
        assert!(grid.cells.iter().all(|cell| cell[Class::Free as usize] <= 3));
    }

    #[test]
    fn runs_beyond_the_volume_are_cut() {
        let mut grid = grid();
        grid.paint(run(2999, u32::MAX), Class::Large);
        grid.paint(run(u64::MAX - 5, 5), Class::Large);
        let counted: u32 = grid.cells.iter().map(|cell| cell[Class::Large as usize]).sum();
        assert_eq!(counted, 2);
    }

    #[test]
    fn cells_have_the_colour_of_the_most() {
        let mut grid = grid();
        grid.paint(run(1, 2), Class::Small);
        grid.paint(run(3, 1), Class::Free);
        assert_eq!(grid.class(0), Some(Class::Small as usize));
        assert_eq!(grid.class(1), Some(Class::Unknown as usize));
        // Behind the volume's end there is nothing to draw.
        assert_eq!(grid.class(2 * 834 - 1), None);
        let svg = grid.svg("a<b");
        assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"));
    }
}
