//! What a run can fail with: always with what exists, or the way out.

use std::path::PathBuf;

use moafs_ext::mkfs::MkfsError;

/// Result of the lab's calls.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// What a run can fail with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LabError {
    /// A name that nobody bears.
    #[error("there is no {what} `{name}`; there are: {}", known.join(", "))]
    Unknown {
        /// What was named: `experiment`, `drive`, `parameter`…
        what: &'static str,
        /// The name.
        name: String,
        /// All that exist.
        known: Vec<String>,
    },
    /// A value that makes no sense.
    #[error("`{value}` is no value of {name}: {rule}")]
    Value {
        /// The parameter.
        name: String,
        /// What was given.
        value: String,
        /// What can be given.
        rule: String,
    },
    /// The modelled disk is full: the workload stops there, as Postmark does.
    #[error("{workload} stops: the volume is full after {files} files ({free_blocks} blocks are free)")]
    Full {
        /// Which one.
        workload: &'static str,
        /// Files it had made so far.
        files: u64,
        /// Blocks that are free, not enough for the next.
        free_blocks: u64,
    },
    /// Aging cannot give what was asked for.
    #[error("aging: {0}")]
    Aging(String),
    /// The volume under test failed: a bug, or a shape that cannot be.
    #[error("{doing}: {error}")]
    Volume {
        /// What was being done.
        doing: &'static str,
        /// How it failed.
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
    /// Something on the host.
    #[error("{what} {}: {error}", path.display())]
    Host {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// How it failed.
        error: String,
    },
}

impl LabError {
    /// Names what was being done when a call of the volume failed.
    pub fn volume(doing: &'static str) -> impl FnOnce(moafs_vfs::Error) -> LabError {
        move |error| LabError::Volume { doing, error }
    }

    /// Says that no such thing exists, and what does.
    pub fn unknown<S: AsRef<str>>(what: &'static str, name: &str, known: impl IntoIterator<Item = S>) -> LabError {
        let known = known.into_iter().map(|name| name.as_ref().to_owned()).collect();
        LabError::Unknown { what, name: name.to_owned(), known }
    }

    /// True if the volume is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, LabError::Volume { error, .. } if error.errno() == libc::ENOSPC)
    }
}
