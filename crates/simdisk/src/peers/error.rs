//! What can end a comparison.

use std::io;
use std::path::{Path, PathBuf};

/// Result of everything here.
pub(crate) type Result<T, E = PeersError> = std::result::Result<T, E>;

/// What can end a comparison.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// This machine or user cannot do it.
    #[error("lab peers needs {0}")]
    Needs(String),
    /// A tool, or a daemon of ours.
    #[error("{program}: {problem}")]
    Program {
        /// Its name.
        program: String,
        /// What it said.
        problem: String,
    },
    /// Something on this machine.
    #[error("{what} {}: {error}", path.display())]
    Host {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// The workload does not fit.
    #[error(
        "the disk of {disk_bytes} bytes is full under {system} in the workload {workload}; give a larger --size or a smaller --scale"
    )]
    Full {
        /// Whose volume.
        system: &'static str,
        /// What was running.
        workload: &'static str,
        /// The disk.
        disk_bytes: u64,
    },
    /// A signal came.
    #[error("interrupted; everything is unmounted and detached")]
    Interrupted,
}

impl PeersError {
    /// An error of this machine, with what was being done to what.
    pub(crate) fn host<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> PeersError {
        let path = path.to_owned();
        move |error| PeersError::Host { what, path, error: error.into() }
    }

    /// What a program said.
    pub(crate) fn program(program: &str, problem: impl Into<String>) -> PeersError {
        PeersError::Program { program: program.to_owned(), problem: problem.into() }
    }

    /// True if there is no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, PeersError::Host { error, .. } if error.raw_os_error() == Some(libc::ENOSPC))
    }
}
