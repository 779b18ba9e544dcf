//! Scatters: the position of the head at each access. One panel per system, all with the same axes,
//! so that they compare side by side.
//!
//! Points that come in the order of the horizontal axis are joined by thin strokes: the paths of the head. However many
//! points there are, a panel holds no more than its area can show: points of one spot are one, and of each column the
//! strokes keep the first, lowest, highest and last.

use std::collections::BTreeSet;

use super::axis::{Axis, is_drawn, range};
use super::chart::Undrawn;
use super::number;
use super::style::Looks;
use super::svg::{Anchor, LABEL, Path, Picture};
use crate::outcome::Scatter;

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 42.0;
/// Most systems that have a panel.
const PANELS_MAX: usize = 16;

/// Draws the panels of a scatter, by system.
pub(super) fn draw<'a>(scatter: &'a Scatter, looks: &Looks) -> Result<Vec<(&'a str, Picture)>, Undrawn> {
    let count = scatter.points.len();
    if count > PANELS_MAX {
        return Err(Undrawn::TooMany { what: "systems", count, max: PANELS_MAX });
    }
    let all = || scatter.points.values().flatten().filter(|(x, y)| is_drawn(*x) && is_drawn(*y));
    let (Some(xs), Some(ys)) = (range(all().map(|point| point.0)), range(all().map(|point| point.1))) else {
        return Err(Undrawn::Empty { metric: scatter.axes.1.clone() });
    };
    let x = Axis::exact(xs, 5.0, (LEFT + 6.0, WIDTH - 8.0));
    let y = Axis::round(ys, 5.0, (BOTTOM, TOP));
    let panel = |(system, points): (&'a String, &'a Vec<(f64, f64)>)| {
        (system.as_str(), panel(scatter, system, points, (x, y), looks.of_system(system)))
    };
    Ok(scatter.points.iter().map(panel).collect())
}

fn panel(scatter: &Scatter, system: &str, points: &[(f64, f64)], (x, y): (Axis, Axis), look: usize) -> Picture {
    let mut picture = Picture::new(&format!("{}: {system}", scatter.title), WIDTH, HEIGHT);
    let (along, up) = &scatter.axes;
    for tick in y.ticks() {
        let at = y.at(tick);
        picture.line((LEFT, at), (WIDTH, at), "grid");
        picture.text((LEFT - 8.0, at + 4.0), Anchor::End, "soft", LABEL, &y.label(tick));
    }
    picture.line((LEFT, BOTTOM), (WIDTH, BOTTOM), "axis");
    for tick in x.ticks() {
        let at = x.at(tick);
        picture.line((at, BOTTOM), (at, BOTTOM + 4.0), "axis");
        // A label at the very end would be cut.
        let anchor = if at > WIDTH - 22.0 { Anchor::End } else { Anchor::Middle };
        let at = if at > WIDTH - 22.0 { WIDTH } else { at };
        picture.text((at, BOTTOM + 17.0), anchor, "soft", LABEL, &x.label(tick));
    }
    picture.text((0.0, 11.5), Anchor::Start, "soft", LABEL, &y.title(up, ""));
    picture.text(((LEFT + WIDTH) / 2.0, HEIGHT - 5.0), Anchor::Middle, "soft", LABEL, &x.title(along, ""));
    let drawn = points.iter().filter(|(x, y)| is_drawn(*x) && is_drawn(*y));
    let places: Vec<(f64, f64)> = drawn.map(|point| (x.at(point.0), y.at(point.1))).collect();
    let is_path = places.windows(2).all(|two| two[0].0 <= two[1].0);
    if is_path {
        let attributes = r#"fill="none" stroke-width="0.6" stroke-opacity="0.45" stroke-linejoin="round""#;
        picture.path(&strokes(&places), &format!("k{look}"), attributes);
    }
    let attributes = r#"fill="none" stroke-width="2.2" stroke-linecap="round""#;
    picture.path(&spots(&places), &format!("k{look}"), attributes);
    picture.described =
        format!("{}: {} by {} of {} points, {system}", scatter.title, up, along, number::show(points.len() as f64));
    picture
}

/// Returns the strokes between neighbours: per column of a unit's width at most four points.
fn strokes(places: &[(f64, f64)]) -> Path {
    let mut path = Path::default();
    let mut is_down = false;
    for column in places.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let by_height = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
        let lowest = (0..column.len()).min_by(by_height).unwrap_or(0);
        let highest = (0..column.len()).max_by(by_height).unwrap_or(0);
        let kept: BTreeSet<usize> = [0, lowest, highest, column.len() - 1].into();
        for index in kept {
            if is_down {
                path.line_to(column[index])
            } else {
                path.move_to(column[index])
            }
            is_down = true;
        }
    }
    path
}

/// Returns the points: strokes of almost no length with round ends; one per spot of a unit.
fn spots(places: &[(f64, f64)]) -> Path {
    let spots: BTreeSet<(i64, i64)> = places.iter().map(|(x, y)| (x.round() as i64, y.round() as i64)).collect();
    let mut path = Path::default();
    for (x, y) in spots {
        path.move_to((x as f64 - 0.1, y as f64));
        path.right(0.2);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn scatter(points: Vec<(f64, f64)>) -> Scatter {
        let axes = ("access".to_owned(), "sector".to_owned());
        Scatter { title: "Head".to_owned(), axes, points: BTreeMap::from([("ffs".to_owned(), points)]) }
    }

    fn text(points: Vec<(f64, f64)>) -> String {
        let scatter = scatter(points);
        let text = draw(&scatter, &Looks::default()).unwrap()[0].1.file("");
        roxmltree::Document::parse(&text).unwrap();
        assert!(!text.contains("NaN"));
        text
    }

    #[test]
    fn points_in_order_are_joined() {
        let joined = "stroke-opacity=\"0.45\"";
        assert!(text(vec![(1.0, 5.0), (2.0, 1.0), (3.0, 9.0)]).contains(joined));
        assert!(!text(vec![(2.0, 5.0), (1.0, 1.0), (3.0, 9.0)]).contains(joined));
    }

    #[test]
    fn a_million_points_fit_in_a_small_file() {
        let points = (0..1_000_000_u32).map(|at| (f64::from(at), f64::from(at.wrapping_mul(2_654_435_761) >> 8)));
        let text = text(points.collect());
        assert!(text.len() < 1_700_000, "{} bytes", text.len());
    }

    #[test]
    fn few_points_are_all_there() {
        let points: Vec<(f64, f64)> = (0..100_u32).map(|at| (f64::from(at), f64::from(at * at))).collect();
        assert_eq!(text(points).matches("h0.2").count(), 100);
    }

    #[test]
    fn points_without_a_place_are_left_out() {
        text(vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 2.0), (f64::MAX, f64::MIN)]);
        assert!(matches!(draw(&scatter(vec![(f64::NAN, 1.0)]), &Looks::default()), Err(Undrawn::Empty { .. })));
        assert!(matches!(draw(&scatter(Vec::new()), &Looks::default()), Err(Undrawn::Empty { .. })));
    }
}
