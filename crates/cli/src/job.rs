//! Jobs of a mount's daemon, as its control files start them and tell of them.

use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use moafs_mount::control_path::ControlPath;
use moafs_mount::job::{JobCommand, JobStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{CliError, Result};
use crate::{control, output};

/// Interval at which a mount is asked for the progress of a job.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Returns a number that no other command uses at the same time.
pub(crate) fn token() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (u64::from(std::process::id()) << 32) | u64::from(since.subsec_nanos())
}

/// Gives a command to a control file.
pub(crate) fn command<J: Serialize>(control: &ControlPath, command: &JobCommand<J>) -> Result<()> {
    let path = control.path();
    let file = control.open_for_commands().map_err(CliError::host("opening", &path))?;
    let text = serde_json::to_vec(command).map_err(|error| CliError::Output(error.into()))?;
    match file.write_all_at(&text, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let (mount, job) = of(control);
            Err(CliError::Usage(format!("{mount}: another {job} job is running; wait for it")))
        }
        written => written.map_err(CliError::host("writing", &path)),
    }
}

/// Reads how far a job is.
pub(crate) fn status<T: DeserializeOwned>(path: &ControlPath) -> Result<JobStatus<T>> {
    control::read(path)
}

/// Makes an error of a job in whose place there is another one.
pub(crate) fn lost(control: &ControlPath) -> CliError {
    let (mount, job) = of(control);
    CliError::Usage(format!("{mount}: another {job} job has begun since; this one's outcome is gone"))
}

/// Returns the mount of a control file, and the file's name, for messages.
fn of(control: &ControlPath) -> (String, &'static str) {
    (output::path(control.target()), control.name())
}
