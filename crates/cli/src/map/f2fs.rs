//! The picture of an F2FS volume: its main area, segment by segment.
//!
//! A tile is a segment (or several neighbours, on large volumes). It is filled from below with the
//! share of its valid blocks, in the colour of the log that wrote it; the grey part above is
//! invalid, the pale part is free.

use std::fmt::Write as _;

use moafs_f2fs::engine::report::{SegmentFacts, SegmentState};
use moafs_f2fs::format::{Log, SEGMENT_BLOCKS};

use super::frame::{LEFT, TOP, header};

/// Most tiles in a row, and most rows.
const COLUMNS: usize = 64;
const ROWS_MAX: usize = 256;
/// Size of a tile in the picture's units, with the gap to the next one.
const WIDTH: u64 = 14;
const HEIGHT: u64 = 18;
const GAP: u64 = 2;
/// Top of the tiles: the legend takes two lines.
const TILES_TOP: u64 = TOP + 18;

const INVALID: &str = "#a8a8a8";
const FREE: &str = "#ececec";
/// Logs with their colours: warm colours for data, cool ones for nodes.
const LOGS: [(Log, &str); 6] = [
    (Log::HotData, "#d55e00"),
    (Log::WarmData, "#e69f00"),
    (Log::ColdData, "#f0e442"),
    (Log::HotNode, "#cc79a7"),
    (Log::WarmNode, "#009e73"),
    (Log::ColdNode, "#0072b2"),
];

/// One tile: some neighbouring segments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tile {
    /// Number of valid blocks, by log.
    valid: [u32; LOGS.len()],
    /// Number of blocks that have been written, valid or not.
    written: u32,
    blocks: u32,
    open: bool,
}

impl Tile {
    fn of(segments: &[SegmentFacts]) -> Tile {
        let mut tile = Tile::default();
        for segment in segments {
            tile.blocks += SEGMENT_BLOCKS as u32;
            tile.open |= segment.state == SegmentState::Open;
            tile.written += u32::from(segment.written);
            tile.valid[segment.log as usize] += u32::from(segment.valid);
        }
        tile
    }

    /// Returns heights and colours from below; the rest of the tile is free.
    fn bars(&self) -> Vec<(f64, &'static str)> {
        let height = |blocks: u32| f64::from(blocks) * (HEIGHT - GAP) as f64 / f64::from(self.blocks.max(1));
        let invalid = self.written.saturating_sub(self.valid.iter().sum());
        let valid = LOGS.iter().map(|(log, colour)| (self.valid[*log as usize], *colour));
        let bars = valid.chain([(invalid, INVALID)]);
        bars.filter(|(blocks, _)| *blocks > 0).map(|(blocks, colour)| (height(blocks), colour)).collect()
    }
}

/// Draws these segments as an SVG picture.
pub(super) fn svg(title: &str, segments: &[SegmentFacts]) -> String {
    let per_tile = segments.len().div_ceil(COLUMNS * ROWS_MAX).max(1);
    let tiles: Vec<Tile> = segments.chunks(per_tile).map(Tile::of).collect();
    let rows = tiles.chunks(COLUMNS);
    let (width, height) = (LEFT + COLUMNS as u64 * WIDTH + 20, TILES_TOP + rows.len() as u64 * HEIGHT + 20);
    let plural = if per_tile == 1 { "a segment".to_owned() } else { format!("{per_tile} segments") };
    let text = format!(
        "{} segments of {SEGMENT_BLOCKS} blocks; a tile is {plural}, filled as far as its blocks are valid",
        segments.len()
    );
    let mut svg = header(width, height, title, &text);
    legend(&mut svg);
    for (row, tiles) in rows.enumerate() {
        let y = TILES_TOP + row as u64 * HEIGHT;
        if row % 4 == 0 {
            let first = row * COLUMNS * per_tile;
            // Writing to a String cannot fail.
            let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">segment {first}</text>", y + HEIGHT - 2 * GAP);
        }
        for (column, tile) in tiles.iter().enumerate() {
            draw(tile, LEFT + column as u64 * WIDTH, y, &mut svg);
        }
    }
    svg + "</svg>\n"
}

fn draw(tile: &Tile, x: u64, y: u64, svg: &mut String) {
    let (width, height) = (WIDTH - GAP, HEIGHT - GAP);
    let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{FREE}\"/>");
    let mut bottom = (y + height) as f64;
    for (height, colour) in tile.bars() {
        bottom -= height;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{bottom:.2}\" width=\"{width}\" height=\"{height:.2}\" fill=\"{colour}\"/>"
        );
    }
    if tile.open {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"black\" \
             stroke-width=\"1.5\"/>"
        );
    }
}

fn legend(svg: &mut String) {
    let logs = LOGS.map(|(log, colour)| (log.to_string(), colour, "#999"));
    let others = [("invalid", INVALID, "#999"), ("free", FREE, "#999"), ("open: a log writes here", "white", "black")];
    let others = others.map(|(what, fill, stroke)| (what.to_owned(), fill, stroke));
    for (line, entries) in [&logs[..], &others[..]].into_iter().enumerate() {
        for (index, (what, fill, stroke)) in entries.iter().enumerate() {
            let (x, y) = (LEFT + index as u64 * 110, TOP - 17 + line as u64 * 16);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{fill}\" stroke=\"{stroke}\"/>\
                 <text x=\"{}\" y=\"{}\">{what}</text>",
                x + 14,
                y + 9
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_f2fs::format::Segno;

    fn segment(segno: u32, log: Log, state: SegmentState, valid: u16) -> SegmentFacts {
        let written = if state == SegmentState::Free { 0 } else { 512 };
        SegmentFacts { segno: Segno(segno), log, state, valid, written }
    }

    #[test]
    fn a_tile_is_filled_as_far_as_its_blocks_are_valid() {
        let half = [segment(0, Log::WarmData, SegmentState::Partial, 256)];
        let inner = (HEIGHT - GAP) as f64;
        assert_eq!(Tile::of(&half).bars(), [(inner / 2.0, "#e69f00"), (inner / 2.0, INVALID)]);
        let free = [segment(0, Log::WarmData, SegmentState::Free, 0)];
        assert_eq!(Tile::of(&free).bars(), []);
        let both = Tile::of(&[half[0], free[0]]);
        assert_eq!(both.bars(), [(inner / 4.0, "#e69f00"), (inner / 4.0, INVALID)]);
    }

    #[test]
    fn many_segments_share_tiles() {
        let segments: Vec<_> = (0..40_000).map(|at| segment(at, Log::ColdData, SegmentState::Full, 512)).collect();
        let svg = svg("a<b", &segments);
        assert!(svg.contains("a&lt;b") && svg.contains("a tile is 3 segments"));
        assert_eq!(svg.matches("fill=\"#f0e442\"").count(), 40_000_usize.div_ceil(3) + 1);
    }
}
