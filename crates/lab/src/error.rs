//! Errors of a run. Each names the values that exist, or the way out.

use std::path::PathBuf;

use moafs_ext::mkfs::MkfsError;

/// Result of the lab's calls.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// An error of a run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LabError {
    /// A name that does not exist.
    #[error("there is no {what} `{name}`; there are: {}", known.join(", "))]
    Unknown {
        /// Kind of the name: `experiment`, `drive`, `parameter`…
        what: &'static str,
        /// Name that was given and is unknown.
        name: String,
        /// All names that exist.
        known: Vec<String>,
    },
    /// A value that makes no sense.
    #[error("`{value}` is no value of {name}: {rule}")]
    Value {
        /// Name of the parameter.
        name: String,
        /// Value that was given.
        value: String,
        /// Values that can be given.
        rule: String,
    },
    /// The modelled disk is full: the workload stops there, as Postmark does.
    #[error("{workload} stops: the volume is full after {files} files ({free_blocks} blocks are free)")]
    Full {
        /// Name of the workload.
        workload: &'static str,
        /// Files that the workload had made by then.
        files: u64,
        /// Blocks that are free, not enough for the next.
        free_blocks: u64,
    },
    /// Aging cannot reach the wanted utilization or score.
    #[error("aging: {0}")]
    Aging(String),
    /// The volume under test failed: a bug, or a shape that cannot be.
    #[error("{doing}: {error}")]
    Volume {
        /// Operation during which the volume failed.
        doing: &'static str,
        /// Error of the volume.
        error: moafs_vfs::Error,
    },
    /// A volume of this shape cannot be made.
    #[error("making the volume: {0}")]
    Mkfs(#[from] MkfsError),
    /// An F2FS volume of this shape cannot be made.
    #[error("making the volume: {0}")]
    LogMkfs(#[from] moafs_f2fs::mkfs::MkfsError),
    /// A modelled drive cannot be had.
    #[error("{0}")]
    Drive(String),
    /// Paging failed: a bug, or a swap that is too small.
    #[error("paging: {0}")]
    Swap(String),
    /// An operation on the host failed.
    #[error("{what} {}: {error}", path.display())]
    Host {
        /// Operation that the host refused.
        what: &'static str,
        /// Path that the operation was applied to.
        path: PathBuf,
        /// Text of the operating system's error.
        error: String,
    },
}

impl LabError {
    /// Makes an error of the volume that names the failed operation.
    pub fn volume(doing: &'static str) -> impl FnOnce(moafs_vfs::Error) -> LabError {
        move |error| LabError::Volume { doing, error }
    }

    /// Makes an error that says that no such thing exists, and lists those that do.
    pub fn unknown<S: AsRef<str>>(what: &'static str, name: &str, known: impl IntoIterator<Item = S>) -> LabError {
        let known = known.into_iter().map(|name| name.as_ref().to_owned()).collect();
        LabError::Unknown { what, name: name.to_owned(), known }
    }

    /// Returns true if the volume is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, LabError::Volume { error, .. } if error.errno() == libc::ENOSPC)
    }
}
