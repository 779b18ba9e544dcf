//! Jobs of a mount's daemon, as its control files start them and tell of them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use moafs_mount::job::{JobCommand, JobStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{CliError, Result};
use crate::output;

/// Interval at which a mount is asked for the progress of a job.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Returns a number that no other command uses at the same time.
pub(crate) fn token() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (u64::from(std::process::id()) << 32) | u64::from(since.subsec_nanos())
}

/// Gives a command to a control file.
pub(crate) fn command<J: Serialize>(control: &Path, command: &JobCommand<J>) -> Result<()> {
    let file = File::options().write(true).open(control).map_err(CliError::host("opening", control))?;
    let text = serde_json::to_vec(command).map_err(|error| CliError::Output(error.into()))?;
    match file.write_all_at(&text, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let (mount, job) = of(control);
            Err(CliError::Usage(format!("{mount}: another {job} job is running; wait for it")))
        }
        written => written.map_err(CliError::host("writing", control)),
    }
}

/// Reads how far a job is.
pub(crate) fn status<T: DeserializeOwned>(control: &Path) -> Result<JobStatus<T>> {
    let text = std::fs::read(control).map_err(CliError::host("reading", control))?;
    serde_json::from_slice(&text).map_err(|error| CliError::host("understanding", control)(error.into()))
}

/// Makes an error of a job in whose place there is another one.
pub(crate) fn lost(control: &Path) -> CliError {
    let (mount, job) = of(control);
    CliError::Usage(format!("{mount}: another {job} job has begun since; this one's outcome is gone"))
}

/// Returns the mount of a control file, and the file's name, for messages.
fn of(control: &Path) -> (String, String) {
    let mount = control.parent().and_then(Path::parent).unwrap_or(control);
    (output::path(mount), output::path(Path::new(control.file_name().unwrap_or_default())))
}
