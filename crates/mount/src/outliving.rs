//! Syncs that outlive their caller: one that has much to write runs in a thread of its own, and a program that is
//! killed meanwhile does not wait for its end.
//!
//! Write requests that are at the device cannot be taken back, and what they have written has to be recorded: the sync
//! goes on to its end. It counts as a call of the volume, so an unmount waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use moafs_vfs::{Error, Result};

use crate::process::{caller_is_gone, is_being_killed};

/// Bytes to write from which on a sync may take long: devices slower than 20 MB/s are rare.
const LONG_BYTES: usize = 4 << 20;

/// The most threads. Callers beyond them wait for the end of their sync, whatever happens to them.
const THREADS_MAX: usize = 32;

/// The time after which a waiting call looks whether its caller was killed.
const LOOK: Duration = Duration::from_millis(50);

/// The syncs that run in threads of their own.
#[derive(Debug, Default)]
pub(crate) struct Outliving {
    threads: Arc<AtomicUsize>,
}

/// A thread that counts until it ends.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Outliving {
    /// Runs a sync for a thread that has to write `bytes` bytes, or many more of other files that it has to wait for.
    ///
    /// # Errors
    /// Those of the sync; EINTR if the caller was killed before its end.
    pub(crate) fn run(
        &self,
        thread: u32,
        bytes: usize,
        sync: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        if bytes < LONG_BYTES {
            return sync();
        }
        let counted = Counted(Arc::clone(&self.threads));
        if self.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            return sync();
        }
        let sync = Arc::new(sync);
        let (end, ended) = sync_channel(1);
        let work = {
            let sync = Arc::clone(&sync);
            move || {
                let _counted = counted;
                moafs_fuse::leave_idle_class();
                // The caller may not wait any more.
                let _ = end.send(sync());
            }
        };
        if std::thread::Builder::new().name("sync".to_owned()).spawn(work).is_err() {
            return sync();
        }
        loop {
            match ended.recv_timeout(LOOK) {
                Ok(result) => return result,
                // A request that was sent after the signal is not interrupted.
                Err(RecvTimeoutError::Timeout) if caller_is_gone() || is_being_killed(thread) => {
                    return Err(Error::Posix(libc::EINTR));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // It panicked, and the panic hook has told so.
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Posix(libc::EIO)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sync_runs_in_a_thread_of_its_own_and_a_short_one_does_not() {
        let (outliving, here) = (Outliving::default(), std::thread::current().id());
        let elsewhere = move || if std::thread::current().id() == here { Err(Error::Posix(libc::EIO)) } else { Ok(()) };
        outliving.run(0, LONG_BYTES, elsewhere).unwrap();
        assert_eq!(outliving.run(0, LONG_BYTES - 1, elsewhere).unwrap_err().errno(), libc::EIO);
        outliving.threads.store(THREADS_MAX, Ordering::Relaxed);
        assert_eq!(outliving.run(0, LONG_BYTES, elsewhere).unwrap_err().errno(), libc::EIO);
        assert_eq!(outliving.threads.load(Ordering::Relaxed), THREADS_MAX);
    }

    #[test]
    fn errors_of_a_long_sync_are_told() {
        let failed = Outliving::default().run(0, LONG_BYTES, || Err(Error::Posix(libc::ENOSPC)));
        assert_eq!(failed.unwrap_err().errno(), libc::ENOSPC);
    }
}
