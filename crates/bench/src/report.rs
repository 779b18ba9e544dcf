//! Results for people: tables in Markdown, the README of a kept run, the tables in a document.

use std::fmt::Write;
use std::path::Path;

use crate::error::{BenchError, Result};
use crate::summary::{ROWS, Row, Spread};

/// The marks around the tables of a document.
const BEGIN: &str = "<!-- moafs-bench tables: begin -->";
const END: &str = "<!-- moafs-bench tables: end -->";

/// Writes the tables of every backing.
pub(crate) fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut backings: Vec<&str> = rows.iter().map(|row| row.backing.as_str()).collect();
    backings.dedup();
    for backing in backings {
        let of_backing = || rows.iter().filter(|row| row.backing == backing);
        let limited = |row: &&Row| row.at_least.is_some() || row.at_most.is_some();
        speed_table(&mut text, backing, of_backing().filter(|row| !limited(row)));
        limit_table(&mut text, backing, of_backing().filter(limited));
    }
    text
}

fn speed_table<'a>(text: &mut String, backing: &str, rows: impl Iterator<Item = &'a Row>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    *text += &format!(
        "### Speed, images on {backing}\n\n\
         | operation | clients | moafs | of null | of ext4 | null of ext4 | of fuse2fs | target | met | rounds |\n\
         |---|--:|--:|--:|--:|--:|--:|---|---|--:|\n"
    );
    for row in rows {
        let share = |of: &str| {
            let share = row.shares.iter().find(|share| share.of == of);
            share.map_or_else(String::new, |share| spread(&share.share, "1"))
        };
        let targets = row.shares.iter().filter_map(|share| Some(format!("{} of {}", plain(share.target?), share.of)));
        let targets: Vec<String> = targets.collect();
        *text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.title,
            row.clients,
            quantity(row.value.median, &row.unit),
            share("null"),
            share("ext4"),
            row.ceiling.map_or_else(String::new, |ceiling| spread(&ceiling, "1")),
            share("fuse2fs"),
            targets.join(", "),
            met(row),
            row.rounds,
        );
    }
    *text += "\n";
}

fn limit_table<'a>(text: &mut String, backing: &str, rows: impl Iterator<Item = &'a Row>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    *text += &format!(
        "### Limits, images on {backing}\n\n\
         | what | moafs | ext4 | limit | met | rounds |\n|---|--:|--:|---|---|--:|\n"
    );
    for row in rows {
        let least = row.at_least.map(|least| format!("at least {}", quantity(least, &row.unit)));
        let most = row.at_most.map(|most| format!("at most {}", quantity(most, &row.unit)));
        *text += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            row.title,
            spread(&row.value, &row.unit),
            row.ext4_value.map_or_else(String::new, |value| spread(&value, &row.unit)),
            least.or(most).unwrap_or_default(),
            met(row),
            row.rounds,
        );
    }
    *text += "\n";
}

fn met(row: &Row) -> &'static str {
    match row.met {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    }
}

/// Formats the median, with the least and the greatest value where they differ.
fn spread(spread: &Spread, unit: &str) -> String {
    let median = quantity(spread.median, unit);
    let (min, max) = (quantity(spread.min, unit), quantity(spread.max, unit));
    if min == max { median } else { format!("{median} ({min} – {max})") }
}

/// Formats a number with its unit, in about three digits.
fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "1/s" => format!("{}/s", scaled(value, &[(1e6, "M"), (1e3, "k")])),
        "B/s" => scaled(value, &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s")]),
        "s" if value < 1.0 => format!("{} ms", plain(value * 1e3)),
        "s" => format!("{} s", plain(value)),
        "1" => plain(value),
        _ => format!("{} {unit}", plain(value)),
    }
}

fn scaled(value: f64, steps: &[(f64, &str)]) -> String {
    let step = steps.iter().find(|(size, _)| value >= *size);
    step.map_or_else(|| plain(value), |(size, name)| format!("{}{name}", plain(value / size)))
}

fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e6 {
        return format!("{value:.0}");
    }
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Lists the meaning of each row.
pub(crate) fn meanings(rows: &[Row]) -> String {
    let measured = |metric| rows.iter().any(|row| row.metric == metric);
    let mut text = String::new();
    for kind in ROWS.iter().filter(|kind| measured(kind.metric)) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "- **{}**: {}.", kind.title, kind.meaning);
    }
    text
}

/// Puts tables and meanings between the marks of a document.
pub(crate) fn fill(path: &Path, rows: &[Row], run: &str) -> Result<()> {
    let document = std::fs::read_to_string(path).map_err(BenchError::host("reading", path))?;
    let missing = || BenchError::Usage(format!("{} has no lines `{BEGIN}` and `{END}`", path.display()));
    let content =
        format!("\nMedians of the run kept in `{run}`.\n\n{}What the rows mean:\n\n{}\n", tables(rows), meanings(rows));
    let filled = replace_between(&document, &content).ok_or_else(missing)?;
    std::fs::write(path, filled).map_err(BenchError::host("writing", path))
}

fn replace_between(document: &str, content: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{content}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use crate::summary;

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        assert_eq!(quantity(25_340.0, "1/s"), "25.3k/s");
        assert_eq!(quantity(1.25e9, "B/s"), "1.25 GB/s");
        assert_eq!(quantity(0.0123, "s"), "12.3 ms");
        assert_eq!(quantity(1.0, "s"), "1 s");
        assert_eq!(quantity(4.0, "requests"), "4 requests");
        assert_eq!(quantity(0.876, "1"), "0.88");
    }

    #[test]
    fn a_row_shows_ratios_spread_and_target() {
        let records = vec![
            record(1, "create", "moafs", 90.0),
            record(1, "create", "null", 100.0),
            record(2, "create", "moafs", 70.0),
            record(2, "create", "null", 100.0),
        ];
        let text = tables(&summary::rows(&records));
        assert!(text.contains("| 0.80 (0.70 – 0.90) |"), "{text}");
        assert!(text.contains("0.80 of null"), "{text}");
    }

    #[test]
    fn only_what_lies_between_the_marks_is_replaced() {
        let document = format!("head\n{BEGIN}\nold\n{END}\ntail\n");
        let filled = replace_between(&document, "new\n").unwrap();
        assert_eq!(filled, format!("head\n{BEGIN}\nnew\n{END}\ntail\n"));
        assert_eq!(replace_between("no marks", "new"), None);
    }
}
