//! A volume's health: the first reason for which it takes no more changes, kept and shown. Held by formats.
//!
//! A panic is such a reason. It unwinds through locks and leaves behind them a change that is half done in memory: the
//! volume turns read-only before the lock is released ([`PanicWatch`]), and each task that writes changes to the disk
//! looks at the health once it has the lock. vfs watches each call and each op, formats what they do beside ops.

use std::sync::OnceLock;

use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Tells whether a panic has begun since it was made.
#[derive(Debug)]
pub(crate) struct Calm {
    panicking: bool,
}

impl Calm {
    pub(crate) fn new() -> Calm {
        Calm { panicking: std::thread::panicking() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.panicking && std::thread::panicking()
    }
}

/// Returns the reason for which a volume fails that a panic found in the middle of `what`.
pub(crate) fn panicked_in(what: &str) -> String {
    format!("a panic in the middle of {what}, which is a defect of moafs")
}

/// Turns a volume read-only if a panic drops it.
#[derive(Debug)]
pub struct PanicWatch<'a> {
    health: &'a Health,
    what: &'static str,
    calm: Calm,
}

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        if self.calm.has_ended() {
            self.health.fail(panicked_in(self.what));
        }
    }
}

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

    /// Watches over a change, named by `what`, that a panic would leave half done. To be dropped before the lock that
    /// hides the change from others.
    pub fn watch_panics(&self, what: &'static str) -> PanicWatch<'_> {
        PanicWatch { health: self, what, calm: Calm::new() }
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
