//! Waiting for room on a full host: the file system that holds the image has none for a write.
//!
//! That is not a failure: the format keeps what it could not write, and an attempt that comes later goes on with it.

use std::time::Duration;

use moafs_runtime::Rt;

use crate::error::{Error, Result};

/// The time for which a caller waits for room.
const WAIT: Duration = Duration::from_secs(25);

/// The pause before the second attempt; each further pause is twice as long, up to the longest: a caller goes on
/// soon after there is room, and is gone soon after it was killed.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Passes over a full host, for an attempt that only makes what follows easier; other errors are returned.
pub fn pass_over_full_host(done: Result<()>) -> Result<()> {
    if done.as_ref().is_err_and(Error::is_host_full) { Ok(()) } else { done }
}

/// Repeats an attempt for which the host has no room, for a while, unless the program that waits for it was killed.
/// The caller holds no lock that another attempt needs: each caller waits for its own time, whatever the number of
/// callers.
///
/// # Errors
/// Those of the last attempt.
pub fn wait_for_host<T>(rt: &Rt, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let until = rt.now() + WAIT;
    let mut pause = PAUSE;
    loop {
        let done = attempt();
        if !done.as_ref().is_err_and(Error::is_host_full) || rt.now() >= until || rt.caller_is_gone() {
            return done;
        }
        moafs_runtime::sleep_until(&**rt, rt.now() + pause);
        pause = (2 * pause).min(PAUSE_MAX);
    }
}
