//! Charts of rows: grouped bars, and lines with points. The paper's numbers are hollow markers on dashed strokes.
//!
//! A series is a system, or a system with the dimensions that vary besides the horizontal one. Series keep the order of
//! the rows. Values that have no place (NaN, infinite) are gaps.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::{Axis, is_drawn, range};
use super::font;
use super::number::{self, Decimals};
use super::style::Looks;
use super::svg::{Anchor, LABEL, Marker, Path, Picture};
use crate::outcome::{Chart, ChartForm, Row};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 300.0;
/// Space at the left for labels of the vertical axis.
const LEFT: f64 = 52.0;
/// Most series that can be told apart, and most values that can be seen.
const SERIES_MAX: usize = 16;
const BARS_MAX: usize = 240;
const PLACES_MAX: usize = 2000;
/// Slanted labels: the longest, its height as a share of its length, and its length as a multiple of its width.
const SLANTED_MAX: f64 = 130.0;
const SLANT_RISE: f64 = 0.53;
const SLANT_REACH: f64 = 1.0 / 0.85;
/// Distance at which slanted labels do not touch.
const SLANT_PITCH: f64 = 26.0;
/// Height of one line of the legend.
const LEGEND_LINE: f64 = 20.0;
/// Radius of points, and of the paper's around them: where they coincide both are seen.
const POINT: f64 = 4.2;
const RING: f64 = 6.0;
/// Half of the stroke across the end of an interval.
const ERROR_HALF: f64 = 3.5;
/// Distance of labels beside the ends of lines.
const LABEL_LINE: f64 = 15.0;

/// The reason why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undrawn {
    /// The chart has no rows.
    #[error("no row has the metric {metric} and these dimensions")]
    Empty { metric: String },
    /// The chart has too many series or values.
    #[error("{count} {what} are more than a picture can show (at most {max})")]
    TooMany { what: &'static str, count: usize, max: usize },
}

/// Returns the title of a dimension on an axis or in a table.
pub(super) fn dimension_title(dimension: &str) -> String {
    let unit = if dimension == "utilization" { ", %" } else { "" };
    format!("{dimension}{unit}")
}

/// Returns the values of a dimension in their order: by number if all are numbers, else as they
/// come.
pub(super) fn places<'a>(values: impl Iterator<Item = &'a str>) -> (Vec<&'a str>, Option<Vec<f64>>) {
    let mut seen = BTreeSet::new();
    let mut places: Vec<&str> = values.filter(|value| seen.insert(*value)).collect();
    let numbers = |places: &[&str]| -> Option<Vec<f64>> {
        places.iter().map(|place| place.parse().ok().filter(|&number| is_drawn(number))).collect()
    };
    let Some(_) = numbers(&places) else { return (places, None) };
    let key = |place: &&str| place.parse().unwrap_or(0.0);
    places.sort_by(|a, b| f64::total_cmp(&key(a), &key(b)));
    let numbers = numbers(&places);
    (places, numbers)
}

/// The rows of a chart, as a table.
struct Table<'a> {
    places: Vec<&'a str>,
    numbers: Option<Vec<f64>>,
    series: Vec<Series<'a>>,
    unit: &'a str,
}

struct Series<'a> {
    name: String,
    look: usize,
    /// Number of the series among those of its system.
    variant: usize,
    /// Row at each place; `None` where there is none.
    rows: Vec<Option<&'a Row>>,
}

impl<'a> Table<'a> {
    fn new(chart: &Chart, rows: &'a [Row], looks: &Looks) -> Result<Table<'a>, Undrawn> {
        let shown = |row: &&Row| {
            row.metric == chart.metric
                && chart.only.iter().all(|(name, value)| row.dimensions.get(name) == Some(value))
                && row.dimensions.contains_key(&chart.along)
        };
        let rows: Vec<&Row> = rows.iter().filter(shown).collect();
        let Some(unit) = rows.first().map(|row| row.unit.as_str()) else {
            return Err(Undrawn::Empty { metric: chart.metric.clone() });
        };
        let (places, numbers) = places(rows.iter().map(|row| row.dimensions[&chart.along].as_str()));
        at_most("places", places.len(), PLACES_MAX)?;
        let index: BTreeMap<&str, usize> = places.iter().enumerate().map(|(index, place)| (*place, index)).collect();
        let mut of_key: BTreeMap<(&str, Vec<&str>), usize> = BTreeMap::new();
        let mut of_system: BTreeMap<&str, usize> = BTreeMap::new();
        let mut series: Vec<Series<'a>> = Vec::new();
        let further = varying(&rows, &chart.along);
        for row in rows {
            let further: Vec<&str> =
                further.iter().map(|name| row.dimensions.get(*name).map_or(number::NONE, String::as_str)).collect();
            let name = [&[row.system.as_str()], further.as_slice()].concat().join(" · ");
            let at = *of_key.entry((&row.system, further)).or_insert_with(|| {
                let variant = of_system.entry(&row.system).or_insert(0);
                let look = looks.of_system(&row.system);
                series.push(Series { name, look, variant: *variant, rows: vec![None; places.len()] });
                *variant += 1;
                series.len() - 1
            });
            at_most("series", series.len(), SERIES_MAX)?;
            series[at].rows[index[row.dimensions[&chart.along].as_str()]].get_or_insert(row);
        }
        Ok(Table { places, numbers, series, unit })
    }

    fn rows(&self) -> impl Iterator<Item = &'a Row> {
        self.series.iter().flat_map(|series| series.rows.iter().copied().flatten())
    }

    /// Returns our numbers, the ends of their intervals, and the paper's.
    fn values(&self) -> impl Iterator<Item = f64> {
        self.rows()
            .flat_map(|row| {
                let (low, high) = ends(row).unzip();
                [Some(row.value), low, high, row.paper]
            })
            .flatten()
    }

    fn has_paper(&self) -> bool {
        self.rows().any(|row| row.paper.is_some_and(is_drawn))
    }

    /// Returns the text that shows when a pointer rests on a value.
    fn told(&self, series: &Series<'_>, place: usize, row: &Row) -> String {
        let paper = row.paper.map_or_else(String::new, |paper| format!(" (paper {})", number::show(paper)));
        let interval = row.interval.map_or_else(String::new, |half| format!(" ± {}", number::show(half)));
        format!("{}, {}: {}{interval} {}{paper}", series.name, self.places[place], number::show(row.value), row.unit)
    }
}

/// Returns the ends of a row's interval.
fn ends(row: &Row) -> Option<(f64, f64)> {
    let half = row.interval.filter(|half| is_drawn(*half) && is_drawn(row.value))?;
    Some((row.value - half, row.value + half))
}

/// Draws the interval of a number at `x`: a stroke with a short one across each end.
fn error_bar(plot: &mut Plot, x: f64, row: &Row) {
    let Some((low, high)) = ends(row) else { return };
    let (low, high) = (plot.y.at(low), plot.y.at(high));
    plot.picture.line((x, low), (x, high), "error");
    for y in [low, high] {
        plot.picture.line((x - ERROR_HALF, y), (x + ERROR_HALF, y), "error");
    }
}

fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), Undrawn> {
    if count > max { Err(Undrawn::TooMany { what, count, max }) } else { Ok(()) }
}

/// Returns the dimensions besides `along` in which rows differ.
pub(super) fn varying<'a>(rows: &[&'a Row], along: &str) -> Vec<&'a str> {
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| row.dimensions.keys().map(String::as_str)).collect();
    let differs = |name: &&str| {
        let mut values = rows.iter().map(|row| row.dimensions.get(*name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    names.into_iter().filter(|name| *name != along).filter(differs).collect()
}

/// Draws a chart, or returns the reason why it cannot be drawn.
pub(super) fn draw(chart: &Chart, rows: &[Row], looks: &Looks) -> Result<Picture, Undrawn> {
    let table = Table::new(chart, rows, looks)?;
    let is_empty = !table.values().any(is_drawn);
    if is_empty {
        return Err(Undrawn::Empty { metric: chart.metric.clone() });
    }
    match chart.form {
        ChartForm::Bars => bars(chart, &table),
        ChartForm::Lines => Ok(lines(chart, &table)),
    }
}

/// The frame of a chart under construction: the place of the plot, and the vertical axis.
struct Plot {
    picture: Picture,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    y: Axis,
}

impl Plot {
    /// Makes a frame with legend, vertical axis and grid. `below` is the height for labels below
    /// the plot.
    fn new(chart: &Chart, table: &Table<'_>, legend: Legend, y_range: (f64, f64), right: f64, below: f64) -> Plot {
        let mut picture = Picture::new(&chart.title, WIDTH, 0.0);
        let legend_height = legend.draw(&mut picture, table);
        let (top, bottom) = (legend_height + 26.0, legend_height + HEIGHT - 34.0);
        picture.height = bottom + below;
        let y = Axis::round(y_range, 5.0, (bottom, top));
        picture.text((0.0, legend_height + 11.0), Anchor::Start, "soft", LABEL, &y.title(&chart.metric, table.unit));
        for tick in y.ticks() {
            let at = y.at(tick);
            picture.line((LEFT, at), (right, at), "grid");
            picture.text((LEFT - 8.0, at + 4.0), Anchor::End, "soft", LABEL, &y.label(tick));
        }
        picture.described = described(chart, table);
        Plot { picture, left: LEFT, right, top, bottom, y }
    }

    fn baseline(&mut self) {
        let zero = self.y.at(0.0);
        let at = if (self.top..=self.bottom).contains(&zero) { zero } else { self.bottom };
        self.picture.line((self.left, at), (self.right, at), "axis");
    }

    fn along_title(&mut self, chart: &Chart, y: f64) {
        let middle = (self.left + self.right) / 2.0;
        self.picture.text((middle, y), Anchor::Middle, "soft", LABEL, &dimension_title(&chart.along));
    }
}

/// Describes the chart in words, for screen readers.
fn described(chart: &Chart, table: &Table<'_>) -> String {
    let mut text = format!("{}: {}", chart.title, chart.metric);
    for series in &table.series {
        let drawn = series.rows.iter().flatten().map(|row| row.value);
        if let Some((min, max)) = range(drawn) {
            let (min, max) = (number::show(min), number::show(max));
            text.push_str(&format!("; {} from {min} to {max} {}", series.name, table.unit));
        }
    }
    text
}

/// The entries of the legend.
#[derive(Debug, Clone, Copy)]
struct Legend {
    series: bool,
    as_markers: bool,
}

impl Legend {
    /// Draws the legend at the top and returns its height.
    fn draw(self, picture: &mut Picture, table: &Table<'_>) -> f64 {
        let mut at = (0.0, 0.0);
        let shown: &[Series<'_>] = if self.series { &table.series } else { &[] };
        let paper = table.has_paper().then_some("paper");
        let names = shown.iter().map(|series| series.name.as_str()).chain(paper);
        let mut is_empty = true;
        for (index, name) in names.enumerate() {
            is_empty = false;
            let name = font::cut(name, LABEL, WIDTH - 30.0);
            let width = 24.0 + font::width(&name, LABEL) + 20.0;
            if at.0 + width > WIDTH + 22.0 && at.0 > 0.0 {
                at = (0.0, at.1 + LEGEND_LINE);
            }
            let middle = (at.0 + 6.0, at.1 + 8.0);
            let text = if index < shown.len() { 18.0 } else { 24.0 };
            match shown.get(index) {
                Some(series) if self.as_markers => {
                    picture.marker(
                        middle,
                        POINT,
                        Marker(series.look + series.variant),
                        &format!("f{}", series.look),
                        "",
                    );
                }
                Some(series) => {
                    picture.rect((at.0, at.1 + 2.0), (12.0, 12.0), &bar_class(series), "");
                    stripe(picture, (at.0, at.1 + 2.0), (12.0, 12.0), series.variant);
                }
                None => paper_mark(picture, (at.0 + 9.0, middle.1), 9.0, ""),
            }
            picture.text((at.0 + text, at.1 + 12.5), Anchor::Start, "ink", LABEL, &name);
            at.0 += width;
        }
        if is_empty { 0.0 } else { at.1 + LEGEND_LINE + 6.0 }
    }
}

fn bar_class(series: &Series<'_>) -> String {
    format!("f{}", series.look)
}

/// Draws light strokes across a bar, closer with each variant: they tell the second and further
/// series of a system apart.
fn stripe(picture: &mut Picture, (x, y): (f64, f64), (width, height): (f64, f64), variant: usize) {
    if variant == 0 || width < 3.0 {
        return;
    }
    let mut path = Path::default();
    let distance = (10.0 / variant as f64).max(2.5);
    let mut at = y + distance / 2.0;
    while at < y + height - 0.5 {
        path.move_to((x, at));
        path.right(width);
        at += distance;
    }
    picture.path(&path, "stripe", r##"stroke="#ffffff" stroke-opacity="0.7" stroke-width="1""##);
}

/// Draws the paper's number at a bar: a dashed stroke across it with a hollow point.
fn paper_mark(picture: &mut Picture, (x, y): (f64, f64), half: f64, told: &str) {
    picture.line((x - half, y), (x + half, y), "mark");
    picture.marker((x, y), POINT, Marker(0), "hollow", told);
}

fn bars(chart: &Chart, table: &Table<'_>) -> Result<Picture, Undrawn> {
    let count = table.series.len();
    at_most("bars", count * table.places.len(), BARS_MAX)?;
    let (min, max) = range(table.values()).unwrap_or((0.0, 1.0));
    let right = WIDTH - 4.0;
    let group_width = (right - LEFT) / table.places.len() as f64;
    let widest = table.places.iter().map(|place| font::width(place, LABEL)).fold(0.0, f64::max);
    // Names that are too long are slanted; numbers, and names that are too many, leave some of them out.
    let is_slanted = widest > group_width - 6.0 && table.numbers.is_none();
    let label_room = if is_slanted { SLANT_PITCH } else { widest + 6.0 };
    let every = (label_room / group_width).ceil().max(1.0) as usize;
    let below = if is_slanted { 38.0 + widest.min(SLANTED_MAX) * SLANT_RISE } else { 42.0 };
    let legend = Legend { series: count > 1, as_markers: false };
    // Room above the highest bar for its number.
    let mut plot = Plot::new(chart, table, legend, (min.min(0.0), (max * 1.06).max(0.0)), right, below);
    let pitch = (group_width * 0.86 / count as f64).min(56.0);
    let width = pitch * if count > 1 { 0.9 } else { 1.0 };
    let values: Vec<f64> = table.rows().map(|row| row.value).collect();
    let decimals = Decimals::of(values.iter().copied()).or_whole(values.iter().copied());
    let is_signed = min < 0.0 || chart.metric == "gain";
    let number = |value| if is_signed { decimals.show_signed(value) } else { decimals.show(value) };
    let numbers_size = 10.5;
    let widest_number = values.iter().map(|&value| font::width(&number(value), numbers_size)).fold(0.0, f64::max);
    // A wider typeface than ours has to fit as well.
    let has_numbers = widest_number * 1.1 <= pitch;
    for (place, name) in table.places.iter().enumerate() {
        let middle = plot.left + (place as f64 + 0.5) * group_width;
        for (index, series) in table.series.iter().enumerate() {
            let Some(row) = series.rows[place] else { continue };
            let x = middle + (index as f64 - count as f64 / 2.0) * pitch + (pitch - width) / 2.0;
            let zero = plot.y.at(0.0);
            let told = table.told(series, place, row);
            let mut end = zero;
            if is_drawn(row.value) {
                end = plot.y.at(row.value);
                let (corner, size) = ((x, end.min(zero)), (width, (end - zero).abs().max(0.6)));
                plot.picture.rect(corner, size, &bar_class(series), &told);
                stripe(&mut plot.picture, corner, size, series.variant);
                error_bar(&mut plot, x + width / 2.0, row);
                // The number stands beyond the interval.
                end = ends(row).map_or(end, |(low, high)| plot.y.at(if row.value < 0.0 { low } else { high }));
            }
            let is_down = row.value < 0.0;
            let mut number_at = if is_down { end + 13.0 } else { end - 5.0 };
            if let Some(paper) = row.paper.filter(|&paper| is_drawn(paper)) {
                let at = plot.y.at(paper);
                paper_mark(&mut plot.picture, (x + width / 2.0, at), width / 2.0 + 2.0, &told);
                // The number keeps clear of the mark.
                if !is_down && (end - 20.0..end + 5.0).contains(&at) {
                    number_at = at - 8.0;
                } else if is_down && (end - 5.0..end + 20.0).contains(&at) {
                    number_at = at + 16.0;
                }
            }
            if has_numbers && is_drawn(row.value) {
                let at = (x + width / 2.0, number_at);
                plot.picture.text(at, Anchor::Middle, "ink", numbers_size, &number(row.value));
            }
        }
        if place % every != 0 {
            continue;
        }
        if is_slanted {
            // The first labels have no more room than there is to the picture's left end.
            let end = middle + 4.0;
            let name = font::cut(name, LABEL, SLANTED_MAX.min(end * SLANT_REACH));
            plot.picture.slanted((end, plot.bottom + 16.0), "ink", LABEL, &name);
        } else {
            plot.picture.text((middle, plot.bottom + 17.0), Anchor::Middle, "ink", LABEL, name);
        }
    }
    plot.baseline();
    let title_at = plot.bottom + below - 5.0;
    plot.along_title(chart, title_at);
    Ok(plot.picture)
}

fn lines(chart: &Chart, table: &Table<'_>) -> Picture {
    let (min, max) = range(table.values()).unwrap_or((0.0, 1.0));
    // Zero belongs to the picture unless all values are far from it.
    let room = (max - min) * 0.05;
    let y_range = if min >= 0.0 && min < 0.7 * max { (0.0, max + room) } else { (min - room, max + room) };
    // Labels at the lines' ends say which is which, as long as there are few.
    let has_labels = table.series.len() <= 8;
    let widest = table.series.iter().map(|series| font::width(&series.name, LABEL)).fold(0.0, f64::max);
    let label_width = if has_labels { widest.min(WIDTH * 0.3) } else { 0.0 };
    let right = WIDTH - if has_labels { label_width + 14.0 } else { 12.0 };
    let legend = Legend { series: !has_labels, as_markers: true };
    let mut plot = Plot::new(chart, table, legend, y_range, right, 42.0);
    plot.baseline();
    let xs = horizontal(&mut plot, table);
    for series in &table.series {
        paper(&mut plot, table, series, &xs);
    }
    let mut ends: Vec<(f64, &Series<'_>)> = Vec::new();
    for series in &table.series {
        let mut path = Path::default();
        let mut is_down = false;
        let mut points = Vec::new();
        for (place, row) in series.rows.iter().enumerate() {
            match row.filter(|row| is_drawn(row.value)) {
                Some(row) => {
                    let at = (xs[place], plot.y.at(row.value));
                    if is_down {
                        path.line_to(at)
                    } else {
                        path.move_to(at)
                    }
                    error_bar(&mut plot, at.0, row);
                    points.push((at, table.told(series, place, row)));
                    is_down = true;
                }
                None => is_down = false,
            }
        }
        let attributes = r#"fill="none" stroke-width="2" stroke-linejoin="round" stroke-linecap="round""#;
        plot.picture.path(&path, &format!("k{}", series.look), attributes);
        for (at, told) in &points {
            plot.picture.marker(*at, POINT, Marker(series.look + series.variant), &format!("f{}", series.look), told);
        }
        if let Some(((_, y), _)) = points.last() {
            ends.push((*y, series));
        }
    }
    if has_labels {
        for (y, series) in spread(ends, plot.top, plot.bottom) {
            let name = font::cut(&series.name, LABEL, label_width);
            plot.picture.text((right + 12.0, y + 4.0), Anchor::Start, "ink", LABEL, &name);
        }
    }
    let title_at = plot.bottom + 37.0;
    plot.along_title(chart, title_at);
    plot.picture
}

/// Draws the horizontal axis and returns each place's position.
fn horizontal(plot: &mut Plot, table: &Table<'_>) -> Vec<f64> {
    let inner = (plot.left + 10.0, plot.right - 10.0);
    let label_y = plot.bottom + 17.0;
    let Some(numbers) = &table.numbers else {
        let pitch = (inner.1 - inner.0) / table.places.len() as f64;
        let xs: Vec<f64> = (0..table.places.len()).map(|place| inner.0 + (place as f64 + 0.5) * pitch).collect();
        let widest = table.places.iter().map(|place| font::width(place, LABEL)).fold(0.0, f64::max);
        // Only every second, third… place has a label if they would touch otherwise.
        let every = (widest.min(100.0) / pitch + 0.15).ceil().max(1.0) as usize;
        for (x, place) in xs.iter().zip(&table.places).step_by(every) {
            let name = font::cut(place, LABEL, pitch * every as f64 - 6.0);
            plot.picture.text((*x, label_y), Anchor::Middle, "ink", LABEL, &name);
        }
        return xs;
    };
    let axis = Axis::exact(range(numbers.iter().copied()).unwrap_or((0.0, 1.0)), 6.0, inner);
    let xs: Vec<f64> = numbers.iter().map(|&number| axis.at(number)).collect();
    let label_width = |place: &str| font::width(place, LABEL);
    let fits = xs
        .windows(2)
        .zip(table.places.windows(2))
        .all(|(x, place)| x[1] - x[0] > (label_width(place[0]) + label_width(place[1])) / 2.0 + 6.0);
    // The measured values are the marks, as long as their labels have room.
    let marks: Vec<(f64, String)> = if fits {
        xs.iter().copied().zip(table.places.iter().map(|place| (*place).to_owned())).collect()
    } else {
        axis.ticks().into_iter().map(|tick| (axis.at(tick), number::show(tick))).collect()
    };
    for (x, label) in marks {
        plot.picture.line((x, plot.bottom), (x, plot.bottom + 4.0), "axis");
        plot.picture.text((x, label_y), Anchor::Middle, "ink", LABEL, &label);
    }
    xs
}

/// Draws the paper's numbers of a series: rings joined by a dashed stroke.
fn paper(plot: &mut Plot, table: &Table<'_>, series: &Series<'_>, xs: &[f64]) {
    let rows = series.rows.iter().zip(xs).enumerate();
    let points: Vec<(usize, &Row, (f64, f64))> = rows
        .filter_map(|(place, (row, &x))| {
            let row = (*row)?;
            let paper = row.paper.filter(|&paper| is_drawn(paper))?;
            Some((place, row, (x, plot.y.at(paper))))
        })
        .collect();
    let mut path = Path::default();
    for (index, (_, _, at)) in points.iter().enumerate() {
        if index == 0 { path.move_to(*at) } else { path.line_to(*at) }
    }
    let attributes = r#"fill="none" stroke-width="1.4" stroke-dasharray="5 4""#;
    plot.picture.path(&path, &format!("k{}", series.look), attributes);
    for (place, row, at) in points {
        let (class, told) = (format!("hollow k{}", series.look), table.told(series, place, row));
        plot.picture.marker(at, RING, Marker(series.look + series.variant), &class, &told);
    }
}

/// Moves labels apart that would cover each other, as little as it takes.
fn spread<T>(mut labels: Vec<(f64, T)>, top: f64, bottom: f64) -> Vec<(f64, T)> {
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    for _ in 0..100 {
        for index in 1..labels.len() {
            let overlap = LABEL_LINE - (labels[index].0 - labels[index - 1].0);
            if overlap > 0.0 {
                labels[index - 1].0 -= overlap / 2.0;
                labels[index].0 += overlap / 2.0;
            }
        }
        let low = labels.last().map_or(0.0, |label| label.0 - bottom).max(0.0);
        let high = labels.first().map_or(0.0, |label| top - label.0).max(0.0);
        labels.iter_mut().for_each(|label| label.0 += high - low);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, dimensions: &[(&str, &str)], value: f64) -> Row {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Row {
            system: system.to_owned(),
            dimensions: dimensions.iter().map(owned).collect(),
            metric: "bandwidth".to_owned(),
            value,
            unit: "MB/s".to_owned(),
            paper: Some(value * 0.9),
            interval: None,
        }
    }

    fn chart(form: ChartForm) -> Chart {
        let (title, metric, along) = ("A chart".to_owned(), "bandwidth".to_owned(), "utilization".to_owned());
        Chart { title, form, metric, only: BTreeMap::new(), along }
    }

    fn parsed(picture: &Picture) -> String {
        let text = picture.file("");
        roxmltree::Document::parse(&text).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
        text
    }

    #[test]
    fn a_bar_for_every_row_and_a_mark_for_every_number_of_the_paper() {
        let rows = [row("ffs", &[("utilization", "30")], 10.0), row("cowrite", &[("utilization", "30")], 12.0)];
        let picture = draw(&chart(ChartForm::Bars), &rows, &Looks::default()).unwrap();
        let text = parsed(&picture);
        assert!(text.contains("<title>cowrite, 30: 12 MB/s (paper 10.8)</title>"), "{text}");
        // The legend has one more mark.
        assert_eq!(text.matches("class=\"mark\"").count(), 3);
    }

    #[test]
    fn intervals_are_drawn_as_error_bars() {
        for form in [ChartForm::Bars, ChartForm::Lines] {
            let drawn = |interval| {
                let rows = [Row { interval, ..row("ffs", &[("utilization", "30")], 10.0) }];
                parsed(&draw(&chart(form), &rows, &Looks::default()).unwrap())
            };
            let strokes = |text: &str| text.matches("class=\"error\"").count();
            let (without, with) = (drawn(None), drawn(Some(2.0)));
            assert_eq!((strokes(&with), strokes(&without)), (3, 0));
            assert!(with.contains("10 ± 2 MB/s"), "{with}");
        }
    }

    #[test]
    fn places_are_in_the_order_of_numbers() {
        assert_eq!(places(["100", "9", "20", "9"].into_iter()).0, ["9", "20", "100"]);
        assert_eq!(places(["write", "read", "9"].into_iter()).0, ["write", "read", "9"]);
    }

    #[test]
    fn dimensions_that_are_not_fixed_make_series_of_their_own() {
        let rows = [
            row("ffs", &[("utilization", "30"), ("drive", "a")], 10.0),
            row("ffs", &[("utilization", "30"), ("drive", "b")], 11.0),
        ];
        let text = parsed(&draw(&chart(ChartForm::Lines), &rows, &Looks::default()).unwrap());
        assert!(text.contains("ffs · a") && text.contains("ffs · b"));
    }

    #[test]
    fn values_without_a_place_are_gaps() {
        for form in [ChartForm::Bars, ChartForm::Lines] {
            let values = [f64::NAN, 5.0, f64::INFINITY, f64::MAX, f64::NEG_INFINITY, 0.0, -3.0, 5e-324];
            let rows: Vec<Row> = values
                .iter()
                .enumerate()
                .map(|(index, value)| row("ffs", &[("utilization", &index.to_string())], *value))
                .collect();
            parsed(&draw(&chart(form), &rows, &Looks::default()).unwrap());
            let nothing = draw(&chart(form), &rows[..1], &Looks::default());
            assert!(matches!(nothing, Err(Undrawn::Empty { .. })));
        }
    }

    #[test]
    fn a_chart_without_rows_says_so() {
        let error = draw(&chart(ChartForm::Bars), &[], &Looks::default()).unwrap_err();
        assert!(error.to_string().contains("bandwidth"));
    }

    #[test]
    fn too_much_to_see_is_refused() {
        let many = |places: usize, systems: usize| -> Vec<Row> {
            let all = (0..places).flat_map(|place| (0..systems).map(move |system| (place, system)));
            all.map(|(place, system)| row(&format!("s{system}"), &[("utilization", &place.to_string())], 1.0)).collect()
        };
        let refused =
            |form, rows: &[Row]| matches!(draw(&chart(form), rows, &Looks::default()), Err(Undrawn::TooMany { .. }));
        assert!(refused(ChartForm::Bars, &many(100, 3)));
        assert!(refused(ChartForm::Lines, &many(2001, 1)));
        assert!(refused(ChartForm::Lines, &many(1, 17)));
        assert!(!refused(ChartForm::Lines, &many(2000, 2)));
    }

    #[test]
    fn labels_at_ends_of_lines_keep_their_distance() {
        let labels = spread(vec![(100.0, 'a'), (101.0, 'b'), (99.0, 'c'), (298.0, 'd'), (299.0, 'e')], 20.0, 300.0);
        assert!(labels.windows(2).all(|two| two[1].0 - two[0].0 > LABEL_LINE - 1.0), "{labels:?}");
        assert!(labels.iter().all(|label| (19.0..=301.0).contains(&label.0)), "{labels:?}");
    }
}
