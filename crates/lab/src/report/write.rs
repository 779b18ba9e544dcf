//! Putting a report's files in place.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::error::ReportError;
use super::files::{PAGE, files};
use crate::outcome::Outcome;

const PICTURES: &str = "pictures";

/// Writes the report on `outcomes` into `dir`, which is made if it is not there. Files of other experiments in `dir`
/// stay; older pictures of these experiments go.
pub fn write_dir(outcomes: &[Outcome], dir: &Path) -> Result<(), ReportError> {
    // All is drawn before anything is written: an error in an outcome leaves `dir` as it was.
    let files = files(outcomes)?;
    make_dir(&dir.join(PICTURES))?;
    let beside = tempfile::Builder::new().prefix(".report-").tempdir_in(dir);
    let beside = beside.map_err(failed("making a directory in", dir))?;
    make_dir(&beside.path().join(PICTURES))?;
    for (name, bytes) in &files {
        let path = beside.path().join(name);
        write_synced(&path, bytes).map_err(failed("writing", &path))?;
    }
    // The page, which shows the others, comes last.
    let (page, others): (Vec<&PathBuf>, Vec<&PathBuf>) = files.keys().partition(|name| *name == Path::new(PAGE));
    for name in others.into_iter().chain(page) {
        let path = dir.join(name);
        fs::rename(beside.path().join(name), &path).map_err(failed("replacing", &path))?;
    }
    for stale in stale_pictures(outcomes, &dir.join(PICTURES))? {
        let is_new = stale.file_name().is_some_and(|name| files.contains_key(&Path::new(PICTURES).join(name)));
        if !is_new {
            fs::remove_file(&stale).map_err(failed("removing", &stale))?;
        }
    }
    Ok(())
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReportError {
    move |error| ReportError::File { what, path: path.to_owned(), error }
}

fn make_dir(dir: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(dir).map_err(failed("making directory", dir))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Lists all pictures of these experiments. An id has no dot, so `ID.` begins the names of its
/// pictures and of no others.
fn stale_pictures(outcomes: &[Outcome], dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let mut pictures = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("reading directory", dir))? {
        let path = entry.map_err(failed("reading directory", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_picture = name.ends_with(".svg") || name.ends_with(".png");
        let id = name.split('.').next().unwrap_or_default();
        if is_picture && outcomes.iter().any(|outcome| outcome.experiment == id) {
            pictures.push(path);
        }
    }
    pictures.sort();
    Ok(pictures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn outcome(id: &str) -> Outcome {
        Outcome { experiment: id.to_owned(), ..Outcome::default() }
    }

    #[test]
    fn nothing_but_the_report_is_left_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new/report");
        write_dir(&[outcome("a"), outcome("b")], &dir).unwrap();
        assert_eq!(names(&dir), ["a.csv", "a.json", "b.csv", "b.json", "pictures", "report.html"]);
    }

    #[test]
    fn other_experiments_stay_and_older_pictures_go() {
        let dir = tempfile::tempdir().unwrap();
        write_dir(&[outcome("a"), outcome("ab")], dir.path()).unwrap();
        for name in ["a.chart-9.svg", "a.chart-9.png", "a.notes.txt", "ab.chart-1.svg"] {
            fs::write(dir.path().join(PICTURES).join(name), "old").unwrap();
        }
        write_dir(&[outcome("a")], dir.path()).unwrap();
        assert_eq!(names(&dir.path().join(PICTURES)), ["a.notes.txt", "ab.chart-1.svg"]);
        assert!(dir.path().join("ab.json").exists());
    }

    #[test]
    fn a_failure_leaves_the_old_report() {
        let dir = tempfile::tempdir().unwrap();
        write_dir(&[outcome("a")], dir.path()).unwrap();
        let before = (names(dir.path()), fs::read(dir.path().join(PAGE)).unwrap());
        for bad in ["", "../a", ".a", "a/b", "a.b", &"a".repeat(65)] {
            assert!(matches!(write_dir(&[outcome(bad)], dir.path()), Err(ReportError::Id { .. })), "{bad}");
        }
        assert!(matches!(write_dir(&[outcome("a"), outcome("a")], dir.path()), Err(ReportError::Twice { .. })));
        assert_eq!((names(dir.path()), fs::read(dir.path().join(PAGE)).unwrap()), before);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = write_dir(&[outcome("a")], file.path()).unwrap_err().to_string();
        assert!(error.starts_with("making directory ") && error.contains("pictures"), "{error}");
    }
}
