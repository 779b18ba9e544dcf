//! Layout maps: rows of cells with the colours of `moafs map`. A run of equal cells is one stroke.

use super::chart::Undrawn;
use super::style;
use super::svg::{Anchor, LABEL, Path, Picture};
use crate::outcome::{Cell, LayoutMap};

const WIDTH: f64 = 520.0;
/// Space at the left for numbers of rows.
const LEFT: f64 = 34.0;
const TOP: f64 = 28.0;
/// A row's height lies between these: many rows are thin.
const ROW_HEIGHT_MIN: f64 = 2.0;
const ROW_HEIGHT_MAX: f64 = 14.0;
/// Height that rows share as long as the limits allow.
const ROWS_HEIGHT: f64 = 360.0;
const CELLS_MAX: usize = 1 << 18;
const ROWS_MAX: usize = 1024;

/// Draws a layout map.
pub(super) fn draw(map: &LayoutMap) -> Result<Picture, Undrawn> {
    if map.columns == 0 || map.cells.is_empty() {
        return Err(Undrawn::Empty { metric: map.title.clone() });
    }
    let rows = map.cells.len().div_ceil(map.columns);
    for (what, count, max) in [("cells", map.cells.len(), CELLS_MAX), ("rows of cells", rows, ROWS_MAX)] {
        if count > max {
            return Err(Undrawn::TooMany { what, count, max });
        }
    }
    let pitch = (ROWS_HEIGHT / rows as f64).clamp(ROW_HEIGHT_MIN, ROW_HEIGHT_MAX);
    let mut picture = Picture::new(&map.title, WIDTH, TOP + pitch * rows as f64 + 2.0);
    legend(&mut picture);
    // A gap between rows, where there is room for one.
    let height = if pitch >= 4.0 { pitch - 1.5 } else { pitch };
    let unit = (WIDTH - LEFT) / map.columns.min(map.cells.len()) as f64;
    for kind in style::cells() {
        let mut path = Path::default();
        for (row, cells) in map.cells.chunks(map.columns).enumerate() {
            let y = TOP + (row as f64 + 0.5) * pitch;
            let mut column = 0;
            for run in cells.chunk_by(|a, b| a == b) {
                if run[0] == kind {
                    path.move_to((LEFT + column as f64 * unit, y));
                    path.right(run.len() as f64 * unit);
                }
                column += run.len();
            }
        }
        let attributes = format!(r#"fill="none" stroke-width="{height:.1}" shape-rendering="crispEdges""#);
        picture.path(&path, &style::cell(kind).0, &attributes);
    }
    let every = if pitch >= 12.0 { 4 } else { (48.0 / pitch).ceil() as usize };
    for row in (0..rows).step_by(every) {
        let y = TOP + (row as f64 + 0.5) * pitch + 4.0;
        picture.text((LEFT - 7.0, y), Anchor::End, "soft", 11.0, &row.to_string());
    }
    picture.described = described(map);
    Ok(picture)
}

fn legend(picture: &mut Picture) {
    let mut x = LEFT;
    for kind in style::cells() {
        let (class, name) = style::cell(kind);
        picture.rect((x, 3.0), (11.0, 11.0), &class, "");
        picture.text((x + 16.0, 12.5), Anchor::Start, "ink", LABEL, name);
        x += 16.0 + super::font::width(name, LABEL) + 14.0;
    }
}

/// Describes the map in words, for screen readers.
fn described(map: &LayoutMap) -> String {
    let share = |kind: Cell| {
        let count = map.cells.iter().filter(|&&cell| cell == kind).count();
        format!("{} {:.0} %", style::cell(kind).1, count as f64 * 100.0 / map.cells.len() as f64)
    };
    format!("{}: {}", map.title, style::cells().map(share).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(columns: usize, cells: Vec<Cell>) -> LayoutMap {
        LayoutMap { title: "before".to_owned(), columns, cells }
    }

    #[test]
    fn equal_neighbours_are_one_stroke_within_their_row() {
        let mut cells = vec![Cell::Small; 6];
        cells[0] = Cell::Metadata;
        let text = draw(&map(3, cells)).unwrap().file("");
        roxmltree::Document::parse(&text).unwrap();
        let path = |class: &str| {
            let from = text.find(&format!("class=\"{class}\" fill=\"none\"")).unwrap();
            text[..from].rsplit('"').nth(1).unwrap().to_owned()
        };
        assert_eq!(path("m0").matches('h').count(), 1);
        assert_eq!(path("m2").matches('h').count(), 2);
    }

    #[test]
    fn maps_that_cannot_be_drawn_say_why() {
        for (columns, cells) in [(0, 5), (5, 0), (1, 5000), (usize::MAX, 1 << 20)] {
            let refused = draw(&map(columns, vec![Cell::Free; cells])).unwrap_err();
            assert!(!refused.to_string().is_empty());
        }
        assert!(draw(&map(usize::MAX, vec![Cell::Free; 7])).is_ok());
    }

    #[test]
    fn the_description_tells_the_shares() {
        let picture = draw(&map(4, vec![Cell::Free, Cell::Free, Cell::Large, Cell::Free])).unwrap();
        assert!(picture.described.contains("large files 25 %, free 75 %"), "{}", picture.described);
    }
}
