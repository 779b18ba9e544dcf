//! Records of measurements: one record per measurement, kept as CSV.

use std::io::{self, Write};
use std::path::Path;

use crate::error::{BenchError, Result};

/// The columns of `raw.csv`.
const HEADER: &str = "round,backing,suite,metric,clients,system,value,unit,count,elapsed_s";

/// One measurement of one system.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    /// Round, from 1. Ratios are taken within a round only.
    pub(crate) round: u32,
    /// Kind of storage under the image files.
    pub(crate) backing: String,
    /// Suite that made the measurement.
    pub(crate) suite: String,
    /// Name of the metric.
    pub(crate) metric: String,
    /// Number of client threads.
    pub(crate) clients: u32,
    /// Name of the system that was measured.
    pub(crate) system: String,
    /// The measured value, in `unit`.
    pub(crate) value: f64,
    /// Unit of the value: `1/s`, `B/s`, `s`, `B`, `1`.
    pub(crate) unit: String,
    /// Number of operations or bytes that the value is about.
    pub(crate) count: u64,
    /// Time in seconds that these took; 0 where nothing was timed.
    pub(crate) elapsed_s: f64,
}

impl Record {
    fn line(&self) -> String {
        let Record { round, backing, suite, metric, clients, system, value, unit, count, elapsed_s } = self;
        format!("{round},{backing},{suite},{metric},{clients},{system},{value},{unit},{count},{elapsed_s:.6}")
    }

    fn parse(line: &str) -> Option<Record> {
        let fields: Vec<&str> = line.split(',').collect();
        let [round, backing, suite, metric, clients, system, value, unit, count, elapsed_s] = fields[..] else {
            return None;
        };
        Some(Record {
            round: round.parse().ok()?,
            backing: backing.to_owned(),
            suite: suite.to_owned(),
            metric: metric.to_owned(),
            clients: clients.parse().ok()?,
            system: system.to_owned(),
            value: value.parse().ok().filter(|value: &f64| value.is_finite())?,
            unit: unit.to_owned(),
            count: count.parse().ok()?,
            elapsed_s: elapsed_s.parse().ok()?,
        })
    }
}

/// Writes records as CSV.
pub(crate) fn write_csv(mut out: impl Write, records: &[Record]) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    records.iter().try_for_each(|record| writeln!(out, "{}", record.line()))
}

/// Reads records that [`write_csv`] wrote.
pub(crate) fn read_csv(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(BenchError::host("reading", path))?;
    let wrong = |line, problem: &str| BenchError::Result { path: path.to_owned(), line, problem: problem.to_owned() };
    let mut lines = text.lines().zip(1..);
    if lines.next().is_none_or(|(header, _)| header != HEADER) {
        return Err(wrong(1, "the header is another one"));
    }
    lines.map(|(line, number)| Record::parse(line).ok_or_else(|| wrong(number, "is no record"))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(round: u32, metric: &str, system: &str, value: f64) -> Record {
        Record {
            round,
            backing: "tmpfs".to_owned(),
            suite: "operations".to_owned(),
            metric: metric.to_owned(),
            clients: 1,
            system: system.to_owned(),
            value,
            unit: "1/s".to_owned(),
            count: 10,
            elapsed_s: 0.5,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let records = vec![record(1, "create", "moafs", 20.25), record(2, "create", "null", 1e6)];
        let file = tempfile::NamedTempFile::new().unwrap();
        write_csv(file.as_file(), &records).unwrap();
        assert_eq!(read_csv(file.path()).unwrap(), records);
    }

    #[test]
    fn damaged_results_are_told_with_their_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{HEADER}\n1,tmpfs,operations,create,1,moafs,NaN,1/s,1,1\n")).unwrap();
        assert!(read_csv(file.path()).unwrap_err().to_string().contains("line 2"));
        std::fs::write(file.path(), "").unwrap();
        assert!(read_csv(file.path()).is_err());
    }
}
