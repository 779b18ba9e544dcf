//! One outcome from those of several seeds: means with their 95 % intervals.
//!
//! Notes and pictures of single runs (points, maps) are those of the first seed.

use std::collections::BTreeMap;

use crate::outcome::{Outcome, Row};
use crate::student::Mean;

/// The conditions and the metric of a row: what identifies it in an outcome.
pub type Key<'a> = (&'a str, &'a BTreeMap<String, String>, &'a str);

/// Returns a row's key.
pub fn key(row: &Row) -> Key<'_> {
    (&row.system, &row.dimensions, &row.metric)
}

/// Combines the outcomes of one experiment, which differ in the seed only. A row that a seed lacks (its case stopped)
/// has the mean of the others.
///
/// # Panics
/// Panics if there is no outcome.
pub fn combine(outcomes: Vec<Outcome>) -> Outcome {
    let seeds = outcomes.len() as u32;
    let mut samples: BTreeMap<Key<'_>, Vec<f64>> = BTreeMap::new();
    for row in outcomes.iter().flat_map(|outcome| &outcome.rows) {
        samples.entry(key(row)).or_default().push(row.value);
    }
    let mean = |row: &Row| match samples.get(&key(row)).and_then(|samples| Mean::of(samples)) {
        Some(mean) => Row { value: rounded(mean.value), interval: Some(rounded(mean.half)), ..row.clone() },
        None => row.clone(),
    };
    let rows = outcomes[0].rows.iter().map(mean).collect();
    let first = outcomes.into_iter().next().expect("there is one, or indexing had failed");
    Outcome { rows, seeds, ..first }
}

/// Rounds as rows are rounded.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seed: u64, values: &[(&str, f64)]) -> Outcome {
        let row = |(system, value): &(&str, f64)| Row {
            system: (*system).to_owned(),
            metric: "elapsed".to_owned(),
            value: *value,
            ..Row::default()
        };
        Outcome { seed, rows: values.iter().map(row).collect(), ..Outcome::default() }
    }

    #[test]
    fn rows_become_means_with_intervals() {
        let all = combine(vec![
            outcome(5, &[("a", 9.0), ("b", 1.0)]),
            outcome(6, &[("a", 10.0)]),
            outcome(7, &[("a", 11.0)]),
        ]);
        assert_eq!((all.seed, all.seeds), (5, 3));
        assert_eq!((all.rows[0].value, all.rows[0].interval), (10.0, Some(2.484338)));
        assert_eq!((all.rows[1].value, all.rows[1].interval), (1.0, None), "one seed has it");
    }
}
