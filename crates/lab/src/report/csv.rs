//! Rows as CSV: `system`, every dimension that any row has (in alphabetical order), `metric`, `value`, `unit`, `paper`,
//! and `interval` if the values are means over several seeds.
//! The names are those of the JSON; numbers read back exactly; what a row lacks is empty.

use std::collections::BTreeSet;

use super::number;
use crate::outcome::Outcome;

/// Returns the rows of an outcome as CSV text.
pub fn csv(outcome: &Outcome) -> String {
    let dimensions: BTreeSet<&String> = outcome.rows.iter().flat_map(|row| row.dimensions.keys()).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = dimensions.iter().map(|name| name.as_str());
    let has_intervals = outcome.rows.iter().any(|row| row.interval.is_some());
    let last = has_intervals.then_some("interval");
    let head = ["system"].into_iter().chain(names).chain(["metric", "value", "unit", "paper"]).chain(last);
    // Writing to a Vec cannot fail, and all records have the same length.
    let _ = writer.write_record(head);
    for row in &outcome.rows {
        let value = |name: &&String| row.dimensions.get(*name).map_or("", String::as_str);
        let (number, paper) = (number::exact(row.value), row.paper.map(number::exact).unwrap_or_default());
        let interval = row.interval.map(number::exact).unwrap_or_default();
        let rest = [row.metric.as_str(), &number, &row.unit, &paper];
        let rest = rest.into_iter().chain(has_intervals.then_some(interval.as_str()));
        let _ = writer.write_record([row.system.as_str()].into_iter().chain(dimensions.iter().map(value)).chain(rest));
    }
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Row;
    use std::collections::BTreeMap;

    #[test]
    fn rows_read_back_as_they_were() {
        let row = |system: &str, name: &str, value: f64, paper| Row {
            system: system.to_owned(),
            dimensions: BTreeMap::from([(name.to_owned(), "a \"quoted\", two-line\nvalue".to_owned())]),
            metric: "rate".to_owned(),
            value,
            unit: "ops/s".to_owned(),
            paper,
            interval: None,
        };
        let rows = vec![
            row("ffs", "zone", 0.1 + 0.2, Some(1.0 / 3.0)),
            row("co,write", "drive", -5e-324, None),
            row("", "drive", f64::MAX, Some(f64::INFINITY)),
        ];
        let outcome = Outcome { rows, ..Outcome::default() };
        let text = csv(&outcome);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(
            reader.headers().unwrap(),
            ["system", "drive", "zone", "metric", "value", "unit", "paper"].as_slice()
        );
        for (record, row) in reader.records().map(Result::unwrap).zip(&outcome.rows) {
            assert_eq!(&record[0], row.system);
            assert_eq!(&record[1], row.dimensions.get("drive").map_or("", String::as_str));
            assert_eq!(&record[2], row.dimensions.get("zone").map_or("", String::as_str));
            assert_eq!(record[4].parse(), Ok(row.value));
            assert_eq!(record[6].parse().ok(), row.paper);
        }
        assert_eq!(csv::Reader::from_reader(text.as_bytes()).records().count(), 3);
    }

    #[test]
    fn an_empty_outcome_has_a_head_only() {
        assert_eq!(csv(&Outcome::default()), "system,metric,value,unit,paper\n");
    }
}
