//! Ours beside the paper's: the numbers that a paper gives, and gains, turned so that one dimension
//! runs along the columns.

use std::collections::BTreeMap;

use super::chart::{places, varying};
use super::number;
use crate::outcome::{Outcome, Row};

/// Most columns or lines of a comparison: larger ones belong into the table of all numbers.
const COLUMNS_MAX: usize = 12;
const LINES_MAX: usize = 48;

/// A table of one metric.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pub(super) metric: &'a str,
    pub(super) unit: &'a str,
    /// Dimension along the columns; `None`: there is one column.
    pub(super) along: Option<&'a str>,
    pub(super) columns: Vec<&'a str>,
    pub(super) lines: Vec<Line<'a>>,
    /// Number of lines left out.
    pub(super) left_out: usize,
}

/// One system under one choice of the other dimensions.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) system: &'a str,
    pub(super) further: Vec<&'a str>,
    pub(super) rows: Vec<Option<&'a Row>>,
}

impl Line<'_> {
    pub(super) fn has_paper(&self) -> bool {
        self.rows.iter().flatten().any(|row| row.paper.is_some())
    }
}

impl Comparison<'_> {
    pub(super) fn is_gain(&self) -> bool {
        self.metric.starts_with("gain")
    }

    /// Returns our numbers and the paper's.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.lines
            .iter()
            .flat_map(|line| line.rows.iter().flatten().flat_map(|row| [Some(row.value), row.paper]))
            .flatten()
    }
}

/// Makes the comparisons of an outcome: gains first, then the steps of an ablation and each metric that the paper gives
/// numbers for.
pub(super) fn comparisons(outcome: &Outcome) -> Vec<Comparison<'_>> {
    let mut of_metric: BTreeMap<(bool, &str, &str), Vec<&Row>> = BTreeMap::new();
    let is_compared = |row: &&Row| row.metric == "gain" || row.paper.is_some() || row.dimensions.contains_key("step");
    for row in outcome.rows.iter().filter(is_compared) {
        of_metric.entry((row.metric != "gain", &row.metric, &row.unit)).or_default().push(row);
    }
    of_metric.into_iter().map(|((_, metric, unit), rows)| compare(outcome, metric, unit, &rows)).collect()
}

fn compare<'a>(outcome: &'a Outcome, metric: &'a str, unit: &'a str, rows: &[&'a Row]) -> Comparison<'a> {
    let along = columns_dimension(outcome, rows);
    let value = |row: &'a Row| along.and_then(|along| row.dimensions.get(along)).map_or(number::NONE, String::as_str);
    let columns = match along {
        Some(_) => places(rows.iter().map(|row| value(row))).0,
        None => vec![number::NONE],
    };
    let further = varying(rows, along.unwrap_or(""));
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut index: BTreeMap<(&str, Vec<&str>), usize> = BTreeMap::new();
    for row in rows {
        let further: Vec<&str> =
            further.iter().map(|name| row.dimensions.get(*name).map_or(number::NONE, String::as_str)).collect();
        let line = *index.entry((&row.system, further.clone())).or_insert_with(|| {
            lines.push(Line { system: &row.system, further, rows: vec![None; columns.len()] });
            lines.len() - 1
        });
        let column = columns.iter().position(|column| *column == value(row)).unwrap_or(0);
        lines[line].rows[column].get_or_insert(row);
    }
    let left_out = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    Comparison { metric, unit, along, columns, lines, left_out }
}

/// Returns the dimension that runs along the columns: that of the first chart that has one, else
/// the one with the most values.
fn columns_dimension<'a>(outcome: &'a Outcome, rows: &[&'a Row]) -> Option<&'a str> {
    let varying = varying(rows, "");
    let count = |name: &str| places(rows.iter().filter_map(|row| row.dimensions.get(name)).map(String::as_str)).0.len();
    let fitting: Vec<(&str, usize)> =
        varying.into_iter().map(|name| (name, count(name))).filter(|(_, count)| *count <= COLUMNS_MAX).collect();
    let of_chart = outcome.charts.iter().find_map(|chart| fitting.iter().find(|(name, _)| *name == chart.along));
    of_chart.or_else(|| fitting.iter().max_by_key(|(_, count)| *count)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, metric: &str, dimensions: &[(&str, &str)], paper: Option<f64>) -> Row {
        let dimensions = dimensions.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (system, metric, unit) = (system.to_owned(), metric.to_owned(), "%".to_owned());
        Row { system, dimensions, metric, value: 1.0, unit, paper, interval: None }
    }

    #[test]
    fn gains_come_first_with_utilizations_along_the_columns() {
        let rows = vec![
            row("ffs", "bandwidth", &[("utilization", "30"), ("drive", "a")], Some(2.0)),
            row("cowrite", "gain", &[("utilization", "100"), ("drive", "a")], None),
            row("cowrite", "gain", &[("utilization", "30"), ("drive", "a")], Some(13.0)),
            row("cowrite", "gain", &[("utilization", "90"), ("drive", "b")], None),
            row("cowrite", "elapsed", &[("utilization", "90"), ("drive", "b")], None),
        ];
        let outcome = Outcome { rows, ..Outcome::default() };
        let tables = comparisons(&outcome);
        assert_eq!(tables.iter().map(|table| table.metric).collect::<Vec<_>>(), ["gain", "bandwidth"]);
        assert_eq!(tables[0].columns, ["30", "90", "100"]);
        assert_eq!(tables[0].lines.len(), 2);
        assert_eq!(tables[0].lines[0].further, ["a"]);
        assert!(tables[0].lines[0].has_paper() && !tables[0].lines[1].has_paper());
    }

    #[test]
    fn one_number_is_a_table_of_one_column() {
        let outcome = Outcome { rows: vec![row("saf", "elapsed", &[], Some(3.0))], ..Outcome::default() };
        let tables = comparisons(&outcome);
        assert_eq!((tables[0].along, tables[0].columns.len(), tables[0].lines.len()), (None, 1, 1));
    }

    #[test]
    fn long_comparisons_are_cut_and_say_so() {
        let rows = (0..100).map(|at| row(&format!("s{at}"), "rate", &[], Some(1.0))).collect();
        let outcome = Outcome { rows, ..Outcome::default() };
        let tables = comparisons(&outcome);
        assert_eq!((tables[0].lines.len(), tables[0].left_out), (48, 52));
    }
}
