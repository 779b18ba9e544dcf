//! The parameters of a new volume that all formats share.

use std::path::Path;

use moafs_runtime::Timestamp;
use uuid::Uuid;

use crate::error::{CliError, Result};
use crate::output;

/// The parameters of a new volume that all formats share.
pub(super) struct New<'a> {
    pub(super) image: &'a Path,
    pub(super) label: &'a str,
    pub(super) uuid: Uuid,
    /// The words after `-O`.
    pub(super) features: &'a [String],
    pub(super) now: Timestamp,
    /// True if the volume is made on a block device, not in an image.
    pub(super) is_device: bool,
    pub(super) discard: bool,
    /// Owner and group of the root directory.
    pub(super) root_owner: (u32, u32),
    /// Bytes of the volume, if given for a disk that may be longer.
    pub(super) bytes: Option<u64>,
}

impl New<'_> {
    pub(super) fn failed(&self, error: &dyn std::error::Error) -> CliError {
        CliError::Usage(format!("{}: {error}", output::path(self.image)))
    }
}

/// Converts a number that has to fit into 32 bits.
pub(super) fn narrow(what: &str, value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| CliError::Usage(format!("{what} {value} is not possible")))
}
