//! Outcomes as JSON: in short for programs, whole for keeping, and back.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::error::ReportError;
use crate::outcome::{Outcome, Row, Scatter};

/// A kept result has at most this many bytes: room for the rows and pictures of any experiment.
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// The fields of an outcome that `moafs lab run --json` prints: the numbers, and everything that a
/// second run needs to measure them again.
#[derive(Debug, Serialize)]
pub struct Brief<'a> {
    experiment: &'a str,
    scale: f64,
    seed: u64,
    seeds: u32,
    version: &'a str,
    commit: &'a str,
    command: &'a str,
    parameters: &'a std::collections::BTreeMap<String, String>,
    rows: &'a [Row],
}

/// Returns the JSON of an outcome, with the names of the CSV in its rows. Numbers that JSON cannot
/// hold are `null`.
pub fn json(outcome: &Outcome) -> Brief<'_> {
    let Outcome { experiment, scale, seed, seeds, version, commit, command, parameters, rows, .. } = outcome;
    Brief { experiment, scale: *scale, seed: *seed, seeds: *seeds, version, commit, command, parameters, rows }
}

/// Returns the whole outcome as JSON, one row a line. [`read`] reads it. Points without a place
/// (NaN, infinite), which no picture shows, are left out.
pub(super) fn whole(outcome: &Outcome) -> String {
    let mut outcome = outcome.clone();
    for Scatter { points, .. } in &mut outcome.scatters {
        points.values_mut().for_each(|points| points.retain(|(x, y)| x.is_finite() && y.is_finite()));
    }
    let fields = match serde_json::to_value(&outcome) {
        Ok(Value::Object(fields)) => fields,
        // An outcome has string keys and plain values only: there is nothing that JSON could refuse.
        _ => serde_json::Map::new(),
    };
    let line = |(name, value): (&String, &Value)| {
        let name = Value::from(name.as_str());
        match value {
            Value::Array(items) if !items.is_empty() => {
                let items: Vec<String> = items.iter().map(Value::to_string).collect();
                format!("{name}: [\n  {}\n]", items.join(",\n  "))
            }
            value => format!("{name}: {value}"),
        }
    };
    format!("{{\n{}\n}}\n", fields.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

/// Reads a kept result.
pub fn read(path: &Path) -> Result<Outcome, ReportError> {
    let failed = |error| ReportError::File { what: "reading", path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    file.take(KEPT_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > KEPT_BYTES_MAX {
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        return Err(ReportError::TooLong { path: path.to_owned(), bytes, max: KEPT_BYTES_MAX });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(&text);
    let parsed = serde_path_to_error::deserialize(&mut deserializer);
    let outcome = parsed.map_err(|error| malformed(path, error.path().to_string(), error.inner()))?;
    deserializer.end().map_err(|error| malformed(path, ".".to_owned(), &error))?;
    Ok(outcome)
}

fn malformed(path: &Path, field: String, error: &serde_json::Error) -> ReportError {
    let field = if field == "." { "outcome".to_owned() } else { field };
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    // The line and column have their own place in our message.
    let message = text.split(" at line ").next().unwrap_or_default().to_owned();
    ReportError::Malformed { path: path.to_owned(), line, column, field, message }
}

/// Reads all kept results (`*.json`) of a directory, in the order of their names.
pub fn read_dir(dir: &Path) -> Result<Vec<Outcome>, ReportError> {
    let failed = |error| ReportError::File { what: "reading directory", path: dir.to_owned(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(ReportError::NoResults { path: dir.to_owned() });
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path()).unwrap_err().to_string()
    }

    #[test]
    fn malformed_results_are_told_by_line_and_field() {
        let kept = whole(&Outcome { experiment: "x".to_owned(), ..Outcome::default() });
        let with = |rows: &str| error_of(&kept.replace("\"rows\": []", &format!("\"rows\": [\n{rows}\n]")));
        assert!(
            with("{\"system\":\"a\"}").contains("rows[0]: missing field `metric`"),
            "{}",
            with("{\"system\":\"a\"}")
        );
        let error = with("{\"system\":\"a\",\"metric\":\"m\",\"unit\":\"s\",\"value\":\"fast\"}");
        assert!(error.contains("rows[0]") && error.contains("line "), "{error}");
        let error = error_of(&kept.replace("\"seed\": 0", "\"seed\": -1"));
        assert!(error.contains("seed: invalid value: integer `-1`"), "{error}");
        for text in ["", "{", "[]", "null", "{}", &"[".repeat(100_000), &format!("{kept}x")] {
            assert!(error_of(text).contains("line "), "{text:.20}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("/nowhere/x.json")).unwrap_err().to_string();
        assert!(error.starts_with("reading /nowhere/x.json: "), "{error}");
    }

    #[test]
    fn a_directory_without_results_tells_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("moafs lab run"));
    }
}
