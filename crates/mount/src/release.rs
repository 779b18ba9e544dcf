//! Waiting until the daemon of a mount has released its image.
//!
//! The lock on the image tells. The mount table may have another name for the image (`fsname=`), so the daemon is
//! asked for it while the mount is there. An image that cannot be opened, as it was renamed since, has no lock to look
//! at: then the end of the daemon counts.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moafs_disk::{DiskError, FileDisk, FileOptions};
use moafs_runtime::Rt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::busy;
use crate::control::STATS_NAME;
use crate::control_path::ControlPath;
use crate::mount_table::{MountEntry, image_of};

/// The image of a mount, and the daemon that serves it.
#[derive(Debug)]
pub(crate) struct Served {
    image: PathBuf,
    /// The daemon's process, if it has told it and has a number here.
    daemon: Option<OwnedFd>,
}

/// The reason for which an image does not count as released.
#[derive(Debug)]
pub(crate) enum Unreleased {
    /// The daemon still works on it.
    Writing,
    /// That cannot be seen: the error of opening the image.
    Unseen(DiskError),
}

impl Served {
    /// Asks the daemon. One that does not answer the caller leaves what the mount table says.
    pub(crate) fn of(entry: &MountEntry) -> Served {
        let text = ControlPath::new(&entry.target, STATS_NAME).read().unwrap_or_default();
        let stats: Value = serde_json::from_slice(&text).unwrap_or_default();
        let image = stats["source"].as_str().map_or_else(|| image_of(entry), PathBuf::from);
        Served { image, daemon: stats["pid"].as_i64().and_then(process) }
    }

    /// Returns the image or device.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Waits at most `timeout` until the image is released.
    pub(crate) fn wait(&self, timeout: Duration, rt: &Rt) -> Result<(), Unreleased> {
        // A user who may only read the image can still ask for the lock.
        let options = FileOptions { read_only: true, claim_device: false, ..FileOptions::default() };
        let attempt = || match FileDisk::open(&self.image, rt.clone(), options.clone()) {
            Err(error @ DiskError::Busy { .. }) => Err(error),
            opened => Ok(opened),
        };
        match (busy::wait(|_| timeout, || (), attempt), &self.daemon) {
            (Ok(Ok(_)), _) => Ok(()),
            (Err(_), _) => Err(Unreleased::Writing),
            (Ok(Err(_)), Some(daemon)) => wait_for_end(daemon, timeout),
            (Ok(Err(error)), None) => Err(Unreleased::Unseen(error)),
        }
    }
}

/// Returns a process by its number, if it has that number here.
fn process(pid: i64) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

fn wait_for_end(daemon: &OwnedFd, timeout: Duration) -> Result<(), Unreleased> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let end = || match poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&now)) {
        Ok(1) => Ok(()),
        _ => Err(Unreleased::Writing),
    };
    busy::wait(|_| timeout, || (), end)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn released(served: &Served, timeout: Duration) -> Result<(), Unreleased> {
        served.wait(timeout, &moafs_runtime::Live::new())
    }

    #[test]
    fn an_image_is_released_when_its_lock_is_free() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let served = Served { image: image.path().to_owned(), daemon: None };
        flock(image.as_file(), FlockOperation::LockExclusive).unwrap();
        assert!(matches!(released(&served, Duration::ZERO), Err(Unreleased::Writing)));
        flock(image.as_file(), FlockOperation::Unlock).unwrap();
        assert!(released(&served, Duration::ZERO).is_ok());
    }

    #[test]
    fn an_image_that_cannot_be_opened_is_released_when_its_daemon_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let served = Served { image: "renamed".into(), daemon: process(i64::from(child.id())) };
        assert!(matches!(released(&served, Duration::ZERO), Err(Unreleased::Writing)));
        drop(child.stdin.take());
        assert!(released(&served, Duration::from_secs(60)).is_ok());
        child.wait().unwrap();
    }

    #[test]
    fn without_image_and_daemon_it_is_not_known() {
        let served = Served { image: "renamed".into(), daemon: None };
        assert!(matches!(released(&served, Duration::from_secs(60)), Err(Unreleased::Unseen(_))));
    }
}
