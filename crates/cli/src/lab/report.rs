//! `moafs lab report`: a report on kept results, rendered again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_lab::report;

use super::diff::read;
use crate::error::{CliError, Result};
use crate::output;

/// Render kept results again
///
/// Reads results that `moafs lab run --out` kept (ID.json) and writes report.html, and beside it
/// the CSV, the JSON and the pictures of each. Measures nothing: the numbers are those that were
/// kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab report results                      render all results of a directory again, in place
  moafs lab report --out both old new           one report on the results of two directories
  moafs lab report --out one results/cw-postmark.json")]
pub(crate) struct ReportArgs {
    /// Directories with kept results, or single results
    #[arg(required = true, value_name = "DIR|FILE.json")]
    results: Vec<PathBuf>,
    /// Directory to write to; a single directory of results is the default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ReportArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let out = match (&self.out, self.results.as_slice()) {
            (Some(out), _) => out,
            (None, [dir]) if dir.is_dir() => dir,
            (None, _) => return Err(CliError::Usage("give the directory of the report: --out DIR".to_owned())),
        };
        let mut outcomes = Vec::new();
        for path in &self.results {
            outcomes.extend(read(path)?);
        }
        report::write_dir(&outcomes, out)?;
        output::print(format!("{}\n", out.join("report.html").display()).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use moafs_lab::Outcome;

    use super::*;

    fn run(out: Option<&Path>, results: &[&Path]) -> Result<ExitCode> {
        let results = results.iter().map(|path| path.to_path_buf()).collect();
        ReportArgs { results, out: out.map(Path::to_path_buf) }.run()
    }

    #[test]
    fn results_of_several_places_become_one_report() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["a", "b"].map(|id| (id, dir.path().join(id)));
        for (id, place) in &places {
            report::write_dir(&[Outcome { experiment: (*id).to_owned(), ..Outcome::default() }], place).unwrap();
        }
        let out = dir.path().join("both");
        run(Some(&out), &[&places[0].1, &places[1].1.join("b.json")]).unwrap();
        let page = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("id=\"a\"") && page.contains("id=\"b\""));
        assert!(out.join("a.json").exists() && out.join("b.csv").exists());
        // Renders in the directory of the results.
        std::fs::remove_file(out.join("report.html")).unwrap();
        run(None, &[&out]).unwrap();
        assert_eq!(std::fs::read_to_string(out.join("report.html")).unwrap(), page);
        let twice = run(Some(&out), &[&out, &places[0].1]).unwrap_err().to_string();
        assert!(twice.contains("a is there twice"), "{twice}");
    }

    #[test]
    fn several_places_need_a_destination() {
        let error = run(None, &[Path::new("x.json"), Path::new("y.json")]).unwrap_err().to_string();
        assert!(error.contains("--out DIR"), "{error}");
    }

    #[test]
    fn a_malformed_result_is_told_by_file_line_and_field() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, "{\n\"experiment\": \"a\",\n\"seed\": \"one\"\n}\n").unwrap();
        let error = run(None, &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("a.json: line 3, column ") && error.contains("seed: invalid type"), "{error}");
    }
}
