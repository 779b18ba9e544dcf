//! A volume's health: the first reason for which it takes no more changes, kept and shown. Held by formats.

use std::sync::OnceLock;

use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// The first failure of a volume. Set once, by a write error or inconsistency; never cleared while the volume is open.
#[derive(Debug, Default)]
pub struct Health {
    failed: OnceLock<String>,
    /// True once damage was found, whether or not it is the first reason.
    is_damaged: AtomicBool,
}

impl Health {
    /// Returns the first reason; `None` while the volume has not failed.
    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Returns true once damage was found on the volume.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Acquire)
    }

    /// Returns an error once the volume has failed.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the first reason.
    pub fn check(&self) -> Result<()> {
        match self.failed() {
            Some(reason) => Err(Error::ReadOnly { reason: reason.to_owned() }),
            None => Ok(()),
        }
    }

    /// Keeps `reason` if it is the first.
    pub fn fail(&self, reason: impl Into<String>) {
        let _already_failed = self.failed.set(reason.into());
    }

    /// Passes a result on; damage and device errors in it turn the volume read-only first. A full host is no failure:
    /// the caller keeps what found no room.
    ///
    /// # Errors
    /// Those of the result.
    pub fn watch<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error @ (Error::Damaged { .. } | Error::Disk { .. })) = &result
            && !error.is_host_full()
        {
            self.is_damaged.fetch_or(matches!(error, Error::Damaged { .. }), Ordering::Release);
            self.fail(error.to_string());
        }
        result
    }
}
