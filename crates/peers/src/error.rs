//! Errors that end a comparison.

use std::io;
use std::path::{Path, PathBuf};

/// The result type of the comparison's functions.
pub(crate) type Result<T, E = PeersError> = std::result::Result<T, E>;

/// An error that ends a comparison.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// This machine lacks something, or the user lacks the right to do it.
    #[error("lab peers needs {0}")]
    Needs(String),
    /// A tool or a daemon of ours failed.
    #[error("{program}: {problem}")]
    Program {
        /// Name of the program.
        program: String,
        /// Description of the failure, for the user.
        problem: String,
    },
    /// An operation on this machine failed.
    #[error("{what} {}: {error}", path.display())]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// Path that the operation was applied to.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The workload does not fit on the disk.
    #[error(
        "the disk of {disk_bytes} bytes is full under {system} in the workload {workload}; give a larger --size or a smaller --scale"
    )]
    Full {
        /// Name of the file system.
        system: &'static str,
        /// Name of the workload.
        workload: &'static str,
        /// Capacity of the disk in bytes.
        disk_bytes: u64,
    },
    /// A signal asked the run to stop.
    #[error("interrupted; everything is unmounted and detached")]
    Interrupted,
}

impl PeersError {
    /// Makes an error of this machine from the operation that failed and its path.
    pub(crate) fn host<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> PeersError {
        let path = path.to_owned();
        move |error| PeersError::Host { what, path, error: error.into() }
    }

    /// Makes an error from a program's name and its message.
    pub(crate) fn program(program: &str, problem: impl Into<String>) -> PeersError {
        PeersError::Program { program: program.to_owned(), problem: problem.into() }
    }

    /// Returns true if the error says that there is no space left.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, PeersError::Host { error, .. } if error.raw_os_error() == Some(libc::ENOSPC))
    }
}
