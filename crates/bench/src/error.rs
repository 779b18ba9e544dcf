//! Errors that end a run.

use std::io;
use std::path::{Path, PathBuf};

/// The error that ended a run early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The host refused something.
    #[error("{what} {}: {error}", path.display())]
    Host { what: &'static str, path: PathBuf, error: io::Error },
    /// A tool or daemon failed.
    #[error("{program}: {problem}")]
    Program { program: String, problem: String },
    /// The command line cannot be followed.
    #[error("{0}")]
    Usage(String),
    /// A kept result cannot be understood.
    #[error("{} line {line}: {problem}", path.display())]
    Result { path: PathBuf, line: usize, problem: String },
    /// A signal (SIGINT, SIGTERM or SIGHUP) came.
    #[error("interrupted: what was mounted is unmounted, what was made is removed")]
    Interrupted,
}

/// The result type of the functions of this program.
pub(crate) type Result<T, E = BenchError> = std::result::Result<T, E>;

impl BenchError {
    /// Makes an error for `map_err`: the host refused `what` of `path`.
    pub(crate) fn host<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> BenchError {
        let path = path.to_owned();
        move |error| BenchError::Host { what, path, error: error.into() }
    }

    /// Makes an error that says that `program` failed.
    pub(crate) fn program(program: impl Into<String>, problem: impl Into<String>) -> BenchError {
        BenchError::Program { program: program.into(), problem: problem.into() }
    }
}
