//! Errors of making or reading a report.

use std::io;
use std::path::PathBuf;

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
