//! Waiting for an image that its holder is about to release.
//!
//! umount(8) returns when everything is on the volume. The daemon releases its lock, and the kernel detaches the loop
//! device, right afterwards: what comes in between waits, and asks again.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::mount_table::is_mounted;

/// Wait for an image that is mounted: its holder keeps it, or has just unmounted it.
pub const MOUNTED_GRACE: Duration = Duration::from_millis(500);
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

/// Makes an attempt until it succeeds, for as long as `grace` says of the holder that it fails with. Calls `tell` once
/// when the wait gets long.
///
/// # Errors
/// The holder at the end of that time.
pub fn wait<T, H>(
    grace: impl Fn(&H) -> Duration,
    tell: impl FnOnce(),
    mut attempt: impl FnMut() -> Result<T, H>,
) -> Result<T, H> {
    let begin = Instant::now();
    let mut tell = Some(tell);
    loop {
        match attempt() {
            Err(holder) if begin.elapsed() < grace(&holder) => {}
            answer => return answer,
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
            if asked.get() == 3 { Ok("free") } else { Err(()) }
        };
        assert_eq!(wait(|_: &()| ENDING_GRACE, || panic!("it was told"), third), Ok("free"));
    }

    #[test]
    fn without_grace_it_is_asked_once() {
        let asked = Cell::new(0);
        let never = || -> Result<(), &str> {
            asked.set(asked.get() + 1);
            Err("its holder")
        };
        assert_eq!((wait(|_| Duration::ZERO, || panic!("it was told"), never), asked.get()), (Err("its holder"), 1));
    }

    #[test]
    fn a_long_wait_is_told_once_and_ends_when_the_grace_changes() {
        let told = Cell::new(0);
        let grace = |_: &()| if told.get() == 0 { ENDING_GRACE } else { Duration::ZERO };
        let never = || Err::<(), ()>(());
        assert_eq!((wait(grace, || told.set(told.get() + 1), never), told.get()), (Err(()), 1));
    }
}
