//! `moafs lab diff`: what differs between two kept results.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use moafs_lab::Outcome;
use moafs_lab::diff::{Changed, Differences, Verdict, compare};
use moafs_lab::report::{self, ReportError};

use super::run::SHOWN;
use crate::error::Result;
use crate::output;

/// Compare two kept results
///
/// Says which settings differ, and which numbers. A difference is significant if two means of several seeds (lab run
/// --seeds) differ by more than chance would make them, at the level of 5 % (Welch's test): of 100 numbers that are
/// equal in truth, about five look so. Without --all, the headline numbers that differ are shown.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab run lfs-hotcold-ssd --scale 0.25 --seeds 3 --out old
  (another version, or other parameters)
  moafs lab run lfs-hotcold-ssd --scale 0.25 --seeds 3 --out new
  moafs lab diff old new")]
pub(crate) struct DiffArgs {
    /// Directory with kept results, or one result (also what lab run --json printed for one experiment)
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The same, to be compared with the first
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Show all numbers that differ
    #[arg(long)]
    all: bool,
    /// Print everything as JSON, equal numbers included
    #[arg(long)]
    json: bool,
}

impl DiffArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let found = compare(&read(&self.before)?, &read(&self.after)?);
        if self.json {
            output::json(&found)?;
        } else {
            output::print(text(&found, self.all).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the result in a file, or all results in a directory.
pub(super) fn read(path: &Path) -> Result<Vec<Outcome>, ReportError> {
    if path.is_dir() { report::read_dir(path) } else { Ok(vec![report::read(path)?]) }
}

fn text(found: &Differences, all: bool) -> String {
    let mut text = String::new();
    for setting in &found.settings {
        let _ = writeln!(text, "{setting}");
    }
    let is_shown =
        |row: &&Changed| row.verdict != Verdict::Equal && (all || SHOWN.contains(&row.before.metric.as_str()));
    for row in found.rows.iter().filter(is_shown) {
        let _ = writeln!(text, "{}", line(row));
    }
    let count = |verdict| found.rows.iter().filter(|row| row.verdict == verdict).count();
    let _ = writeln!(
        text,
        "{} numbers: {} equal, {} differ significantly, {} by chance, {} as far as one seed tells",
        found.rows.len(),
        count(Verdict::Equal),
        count(Verdict::Significant),
        count(Verdict::Chance),
        count(Verdict::Unknown),
    );
    if found.alone != (0, 0) {
        let _ = writeln!(text, "{} numbers are in A only, {} in B only", found.alone.0, found.alone.1);
    }
    text
}

fn line(row: &Changed) -> String {
    let before = &row.before;
    let dimensions: Vec<&str> = before.dimensions.values().map(String::as_str).collect();
    let number = |value: f64, interval: Option<f64>| match interval {
        Some(half) => format!("{value:.2} ± {half:.2}"),
        None => format!("{value:.2}"),
    };
    let verdict = match row.verdict {
        Verdict::Equal => "equal",
        Verdict::Chance => "chance",
        Verdict::Significant => "significant",
        Verdict::Unknown => "one seed",
    };
    // A share of a share would mislead.
    let change = match before.unit.as_str() {
        "%" => format!("{:+.1} points", row.value - before.value),
        _ => format!("{:+.1} %", row.percent()),
    };
    format!(
        "{} {} {} {}: {} -> {} {} ({change}, {verdict})",
        row.experiment,
        before.system,
        dimensions.join(" "),
        before.metric,
        number(before.value, before.interval),
        number(row.value, row.interval),
        before.unit,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_lab::outcome::Row;

    #[test]
    fn headlines_that_differ_are_shown_with_what_is_known_of_them() {
        let row = |metric: &str, value: f64| Row {
            system: "wolf".to_owned(),
            metric: metric.to_owned(),
            value,
            unit: "s".to_owned(),
            interval: Some(0.1),
            ..Row::default()
        };
        let outcome = |commit: &str, rows: Vec<Row>| Outcome {
            experiment: "x".to_owned(),
            commit: commit.to_owned(),
            seeds: 3,
            rows,
            ..Outcome::default()
        };
        let before = outcome("abc", vec![row("elapsed", 10.0), row("seeks", 1.0)]);
        let after = outcome("def", vec![row("elapsed", 5.0), row("seeks", 2.0)]);
        let found = compare(&[before], &[after]);
        let text = text(&found, false);
        assert!(text.contains("x: commit was abc, is def"), "{text}");
        assert!(text.contains("x wolf  elapsed: 10.00 ± 0.10 -> 5.00 ± 0.10 s (-50.0 %, significant)"), "{text}");
        assert!(!text.contains("seeks") && text.contains("2 numbers: 0 equal, 2 differ significantly"), "{text}");
        assert!(super::text(&found, true).contains("seeks"));
    }
}
