//! Making the bytes of a report's files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::csv::csv;
use super::error::ReportError;
use super::pictures::Pictures;
use super::style::Looks;
use super::{html, json, png};
use crate::outcome::Outcome;

/// The name of the page in a report's directory.
pub(crate) const PAGE: &str = "report.html";
/// Most letters of an experiment's id, which names files.
const ID_LETTERS_MAX: usize = 64;
/// Names in rows that are no dimensions.
const RESERVED: [&str; 6] = ["system", "metric", "value", "unit", "paper", "interval"];

/// Makes every file of the report on `outcomes`, by its path inside the report's directory:
/// `report.html`, and for each experiment `ID.csv`, `ID.json` (the whole outcome) and its pictures
/// `pictures/ID.*.svg` and `.png`.
pub fn files(outcomes: &[Outcome]) -> Result<BTreeMap<PathBuf, Vec<u8>>, ReportError> {
    check(outcomes)?;
    let looks = Looks::of(outcomes);
    let pictures: Vec<Pictures<'_>> = outcomes.iter().map(|outcome| Pictures::of(outcome, &looks)).collect();
    let mut files = BTreeMap::new();
    for (outcome, pictures) in outcomes.iter().zip(&pictures) {
        let id = &outcome.experiment;
        files.insert(format!("{id}.csv").into(), csv(outcome).into_bytes());
        files.insert(format!("{id}.json").into(), json::whole(outcome).into_bytes());
        let source = source(outcome);
        for drawn in pictures.drawn() {
            let svg = drawn.picture.file(&source);
            let rendered = png::render(&svg);
            let png = rendered.map_err(|message| ReportError::Picture { stem: drawn.stem.clone(), message })?;
            files.insert(Path::new("pictures").join(format!("{}.png", drawn.stem)), png);
            files.insert(Path::new("pictures").join(format!("{}.svg", drawn.stem)), svg.into_bytes());
        }
    }
    files.insert(PAGE.into(), html::page(outcomes, &pictures, &looks).into_bytes());
    Ok(files)
}

/// Returns the line below a picture that names its source.
fn source(outcome: &Outcome) -> String {
    let Outcome { version, commit, experiment, scale, .. } = outcome;
    let commit = if commit.is_empty() { String::new() } else { format!(" ({commit})") };
    format!("moafs {version}{commit}, experiment {experiment}, scale {scale}, {}", html::seeds(outcome))
}

/// Checks names: those of files, and those of columns.
fn check(outcomes: &[Outcome]) -> Result<(), ReportError> {
    let mut seen = BTreeSet::new();
    for outcome in outcomes {
        let id = &outcome.experiment;
        let letters = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
        let starts_well = id.bytes().next().is_some_and(|letter| letter.is_ascii_alphanumeric());
        if !starts_well || id.len() > ID_LETTERS_MAX || !id.bytes().all(letters) {
            return Err(ReportError::Id { id: id.clone() });
        }
        if !seen.insert(id) {
            return Err(ReportError::Twice { id: id.clone() });
        }
        let mut names = outcome.rows.iter().flat_map(|row| row.dimensions.keys());
        if let Some(name) = names.find(|name| RESERVED.contains(&name.as_str())) {
            return Err(ReportError::Dimension { id: id.clone(), name: name.clone() });
        }
    }
    Ok(())
}
