//! Reading the control files of a mount.

use moafs_mount::control_path::ControlPath;
use serde::de::DeserializeOwned;

use crate::error::{CliError, Result};

/// Reads a control file, which holds one JSON value.
pub(crate) fn read<T: DeserializeOwned>(control: &ControlPath) -> Result<T> {
    let path = control.path();
    let text = control.read().map_err(CliError::host("reading", &path))?;
    serde_json::from_slice(&text).map_err(|error| CliError::host("understanding", &path)(error.into()))
}
