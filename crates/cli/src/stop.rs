//! [`Stop`]: Ctrl-C and SIGTERM, for commands that have work to complete before they end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{CliError, INTERRUPTED, Result};

/// Set once SIGINT or SIGTERM has come. A second one ends the command at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches signals from now on.
    pub(crate) fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop.0))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop.0)))
                .map_err(CliError::host("waiting for signals in", Path::new("moafs")))?;
        }
        Ok(stop)
    }

    /// Returns true once a signal has come.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns [`CliError::Interrupted`] once a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(CliError::Interrupted) } else { Ok(()) }
    }
}
