//! The report: outcomes as one HTML file, CSV, JSON, and pictures as SVG and PNG.
//!
//! The one idea: [`files`] turns outcomes into the bytes of every file, from nothing but the outcomes (no clock, no
//! fonts or locale of the machine), so the same outcomes give the same report anywhere, at any time; [`write_dir`] then
//! puts the files in place, each whole. Invariants:
//! * A file is written beside its place, synced, and renamed; `report.html` last. An interruption leaves every file old
//!   or new, none half-written.
//! * Kept results (`ID.json`) are guests: [`read`] checks them, and no number or text in them can break a page, a
//!   picture, or a path.
//!
//! | module | what it holds |
//! |---|---|
//! | `html`, `compare` | the page, and its tables of ours beside the paper's |
//! | `pictures`, `chart`, `scatter`, `layout` | bars and lines, head positions, layout maps |
//! | `axis`, `number`, `style`, `font`, `svg`, `png` | what they are drawn with |
//! | `csv`, `json` | rows and outcomes as data |
//! | `write` | putting the files in place |
//!
//! Pictures are lettered in Inter (SIL Open Font License 1.1, `fonts/OFL.txt`), which is part of the program; PNGs are
//! rendered by resvg (MIT or Apache-2.0).

mod axis;
mod chart;
mod compare;
mod csv;
mod font;
mod html;
mod json;
mod layout;
mod number;
mod pictures;
mod png;
mod scatter;
mod style;
mod svg;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

pub use csv::csv;
pub use json::{Brief, json, read, read_dir};
pub use write::write_dir;

use crate::Outcome;
use pictures::Pictures;
use style::Looks;

/// Most letters of an experiment's id, which names files.
const ID_LETTERS_MAX: usize = 64;
/// Names in rows that are no dimensions.
const RESERVED: [&str; 5] = ["system", "metric", "value", "unit", "paper"];

/// An error of making or reading a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory cannot be accessed.
    #[error("{what} {}: {error}", path.display())]
    File {
        /// Operation on the file that failed.
        what: &'static str,
        /// Path that the operation was applied to.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// A kept result that is no outcome.
    #[error("{}: line {line}, column {column}: {field}: {message}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The path of the field: `rows[3].value`.
        field: String,
        /// Description of the error in the field.
        message: String,
    },
    /// A kept result that is too long to be one.
    #[error("{}: {bytes} bytes are more than a kept result has (at most {max}); is it another file?", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
        /// Length of the file in bytes.
        bytes: u64,
        /// Largest length in bytes.
        max: u64,
    },
    /// A directory without results.
    #[error("{}: there is no kept result (ID.json) here; `moafs lab run ID --out DIR` makes one", path.display())]
    NoResults {
        /// Path of the directory.
        path: PathBuf,
    },
    /// An experiment's id that cannot name a file.
    #[error(
        "experiment {id:?}: an id has 1 to 64 of the letters a-z, A-Z, 0-9, - and _, and starts with none of - and _"
    )]
    Id {
        /// Id of the experiment.
        id: String,
    },
    /// An experiment that occurs twice.
    #[error("experiment {id} is there twice: a report shows each once; leave one of the results out")]
    Twice {
        /// Id of the experiment.
        id: String,
    },
    /// A dimension whose name means something else in rows.
    #[error("experiment {id}: a dimension cannot be called {name}, rows have that already")]
    Dimension {
        /// Id of the experiment.
        id: String,
        /// Name of the dimension.
        name: String,
    },
    /// A picture that cannot be rendered.
    #[error("rendering picture {stem}.png: {message}")]
    Picture {
        /// The picture's file name, without the ending.
        stem: String,
        /// Message of the renderer.
        message: String,
    },
}

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
    files.insert(write::PAGE.into(), html::page(outcomes, &pictures, &looks).into_bytes());
    Ok(files)
}

/// Returns the line below a picture that names its source.
fn source(outcome: &Outcome) -> String {
    let Outcome { version, experiment, scale, seed, .. } = outcome;
    format!("moafs {version}, experiment {experiment}, scale {scale}, seed {seed}")
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
