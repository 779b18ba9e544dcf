//! Waiting for an image that its holder is about to release.
//!
//! umount(8) returns when everything is on the volume. The daemon releases its lock, and the kernel detaches the loop
//! device, right afterwards: what comes in between waits, and asks again.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::mount_table::is_mounted;

/// Wait for an image that is mounted: its holder keeps it, or has just unmounted it.
const MOUNTED_GRACE: Duration = Duration::from_millis(500);
/// Wait for an image that is held but not mounted: an unmount is ending, or a command is at work on it.
pub const ENDING_GRACE: Duration = Duration::from_secs(10);
/// Interval of asking.
const POLL: Duration = Duration::from_millis(10);

/// Returns how long to wait for an image that is in use, as the mount table is now.
#[must_use]
pub fn grace(image: &Path) -> Duration {
    let is_mounted = image.canonicalize().is_ok_and(|absolute| is_mounted(&absolute));
    if is_mounted { MOUNTED_GRACE } else { ENDING_GRACE }
}

/// Asks `attempt` until it has an answer, for as long as `grace` says, which may change meanwhile. Returns none if it
/// has none in the end. Calls `tell` once when the wait gets long.
pub fn wait<T>(grace: impl Fn() -> Duration, tell: impl FnOnce(), mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut tell = Some(tell);
    loop {
        let answer = attempt();
        if answer.is_some() || begin.elapsed() >= grace() {
            return answer;
        }
        if begin.elapsed() >= MOUNTED_GRACE
            && let Some(tell) = tell.take()
        {
            tell();
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_answer_ends_the_wait_untold() {
        let asked = Cell::new(0);
        let third = || {
            asked.set(asked.get() + 1);
            (asked.get() == 3).then_some("free")
        };
        assert_eq!(wait(|| ENDING_GRACE, || panic!("it was told"), third), Some("free"));
    }

    #[test]
    fn without_grace_it_is_asked_once() {
        let asked = Cell::new(0);
        let never = || -> Option<()> {
            asked.set(asked.get() + 1);
            None
        };
        assert_eq!((wait(|| Duration::ZERO, || panic!("it was told"), never), asked.get()), (None, 1));
    }

    #[test]
    fn a_long_wait_is_told_once_and_ends_when_the_grace_changes() {
        let told = Cell::new(0);
        let grace = || if told.get() == 0 { ENDING_GRACE } else { Duration::ZERO };
        let never = || None::<()>;
        assert_eq!((wait(grace, || told.set(told.get() + 1), never), told.get()), (None, 1));
    }
}
