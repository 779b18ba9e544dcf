//! Numbering flushes: the part of [`Disk`](crate::Disk) shared by every device and every wrapper
//! that observes flushes.
//!
//! Invariants:
//! 1. A flush ends the epoch that was current when it was *issued*; completions from then on carry
//!    the next one. So a flush covers exactly the completions of the epochs up to the one it ended.
//! 2. At most one flush is in flight. A caller that needs another one waits for it; then one of the
//!    waiting callers issues the next flush on behalf of all of them.
//! 3. After a failed flush nothing becomes durable any more.

use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt};

use crate::{DiskError, Epoch};

/// The two counters behind [`Disk::epoch`](crate::Disk::epoch) and
/// [`Disk::durable`](crate::Disk::durable).
#[derive(Debug, Default)]
pub struct Epochs {
    current: AtomicU64,
    /// The number of durable epochs: the newest durable one plus one, 0 before the first flush.
    durable_count: AtomicU64,
}

impl Epochs {
    /// Returns the epoch of a request that completes now. Call it *after* the completion.
    pub fn current(&self) -> Epoch {
        Epoch(self.current.load(Ordering::SeqCst))
    }

    /// Returns the newest durable epoch.
    pub fn durable(&self) -> Option<Epoch> {
        self.durable_count.load(Ordering::SeqCst).checked_sub(1).map(Epoch)
    }

    /// Returns true if nothing that completed in `epoch` needs a flush.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.durable() >= Some(epoch)
    }

    /// Ends the current epoch because a flush is issued, and returns it.
    pub fn begin_flush(&self) -> Epoch {
        Epoch(self.current.fetch_add(1, Ordering::SeqCst))
    }

    /// Counts a flush that takes no time, if `upto` needs one: for disks whose writes are durable on completion.
    pub fn flush_at_once(&self, upto: Epoch) {
        if !self.covers(upto.min(self.current())) {
            let epoch = self.begin_flush();
            self.end_flush(epoch);
        }
    }

    /// Records that the flush that ended `epoch` has completed.
    pub fn end_flush(&self, epoch: Epoch) {
        self.durable_count.fetch_max(epoch.0 + 1, Ordering::SeqCst);
    }
}

/// [`Epochs`] with flushes shared between callers, and the first flush error, which is kept for
/// good.
pub struct Flusher {
    rt: Rt,
    epochs: Epochs,
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    in_flight: bool,
    failed: Option<DiskError>,
}

impl Flusher {
    /// Makes a flusher whose callers wait in `rt`.
    pub fn new(rt: Rt) -> Flusher {
        Flusher { rt, epochs: Epochs::default(), state: Mutex::default(), ended: Event::new() }
    }

    /// Returns the epoch counters.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Implements [`Disk::make_durable`](crate::Disk::make_durable); `flush` is the device command.
    ///
    /// # Errors
    /// The first error that any `flush` returned.
    pub fn make_durable(&self, upto: Epoch, flush: impl Fn() -> Result<(), DiskError>) -> Result<(), DiskError> {
        // Nothing has completed in a later epoch than the current one.
        let upto = upto.min(self.epochs.current());
        loop {
            let ticket = self.ended.ticket();
            let mut state = self.state.lock();
            if let Some(reason) = &state.failed {
                return Err(reason.clone());
            }
            if self.epochs.covers(upto) {
                return Ok(());
            }
            if !state.in_flight {
                state.in_flight = true;
                drop(state);
                return self.lead(flush);
            }
            drop(state);
            self.rt.wait(&self.ended, ticket, None);
        }
    }

    /// Issues one flush on behalf of every waiting caller.
    fn lead(&self, flush: impl Fn() -> Result<(), DiskError>) -> Result<(), DiskError> {
        let unended = DiskError::FlushFailed { errno: libc::EIO, reason: "a panic has ended the flush".into() };
        let mut leading = Leading { flusher: self, epoch: self.epochs.begin_flush(), result: Err(unended) };
        leading.result = flush();
        leading.result.clone()
    }
}

/// A flush in flight. It has failed if a panic ends it.
struct Leading<'a> {
    flusher: &'a Flusher,
    epoch: Epoch,
    result: Result<(), DiskError>,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let Flusher { rt, epochs, state, ended } = self.flusher;
        {
            let mut state = state.lock();
            state.in_flight = false;
            match &self.result {
                Ok(()) => epochs.end_flush(self.epoch),
                Err(reason) => state.failed = Some(reason.clone()),
            }
        }
        rt.signal(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_runtime::Live;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    #[test]
    fn a_flush_covers_what_completed_before_it_was_issued() {
        let flusher = Flusher::new(Live::new());
        let before = flusher.epochs().current();
        flusher
            .make_durable(before, || {
                let during = flusher.epochs().current();
                assert!(during > before);
                assert!(!flusher.epochs().covers(before));
                Ok(())
            })
            .unwrap();
        assert!(flusher.epochs().covers(before));
        assert!(!flusher.epochs().covers(flusher.epochs().current()));
    }

    #[test]
    fn a_durable_epoch_costs_no_flush() {
        let flusher = Flusher::new(Live::new());
        let epoch = flusher.epochs().current();
        flusher.make_durable(epoch, || Ok(())).unwrap();
        flusher.make_durable(epoch, || panic!("flushed twice")).unwrap();
    }

    #[test]
    fn the_first_failure_is_latched() {
        let flusher = Flusher::new(Live::new());
        let failure = DiskError::FlushFailed { errno: libc::EIO, reason: "gone".into() };
        let epoch = flusher.epochs().current();
        let first = flusher.make_durable(epoch, || Err(failure.clone()));
        assert_eq!(first, Err(failure.clone()));
        let later = flusher.make_durable(flusher.epochs().current(), || Ok(()));
        assert_eq!(later, Err(failure));
        assert_eq!(flusher.epochs().durable(), None);
    }

    #[test]
    fn a_flush_that_panics_has_failed() {
        let flusher = Flusher::new(Live::new());
        let epoch = flusher.epochs().current();
        let panicking = || flusher.make_durable(epoch, || panic!("a defect"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).unwrap_err();
        flusher.make_durable(epoch, || Ok(())).unwrap_err();
        assert_eq!(flusher.epochs().durable(), None);
    }

    #[test]
    fn concurrent_callers_share_one_flight_and_one_queued() {
        const CALLERS: usize = 8;
        let rt = Live::new();
        let flusher = Arc::new(Flusher::new(Arc::clone(&rt)));
        let flushes = Arc::new(AtomicUsize::new(0));
        let barrier = Arc::new(std::sync::Barrier::new(CALLERS));
        let tasks: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (flusher, flushes, barrier) = (Arc::clone(&flusher), Arc::clone(&flushes), Arc::clone(&barrier));
                let body = move || {
                    let epoch = flusher.epochs().current();
                    barrier.wait();
                    let slow_flush = || {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(30));
                        Ok(())
                    };
                    flusher.make_durable(epoch, slow_flush).unwrap();
                    assert!(flusher.epochs().covers(epoch));
                    // A second round: every task's new epoch needs at most one more flush after it.
                    let epoch = flusher.epochs().current();
                    flusher.make_durable(epoch, slow_flush).unwrap();
                    assert!(flusher.epochs().covers(epoch));
                };
                rt.spawn("caller", Box::new(body))
            })
            .collect();
        tasks.iter().for_each(|t| t.join(&*rt));
        assert!(tasks.iter().all(|t| !t.has_panicked()));
        let flushes = flushes.load(Ordering::SeqCst);
        assert!((2..=4).contains(&flushes), "{flushes} flushes");
    }
}
