//! Shortage of space: everything that can be written, reaped or committed is, before a caller is told ENOSPC.
//!
//! One caller at a time does this for all. It goes on as long as a round gave space back, to any caller, or as other
//! calls hold reservations larger than what they will use.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use moafs_runtime::leaf::atomic::{AtomicU64, AtomicUsize, Ordering};
use moafs_runtime::lock::Mutex;
use moafs_runtime::{Event, Rt, Time};

use crate::error::{Error, Result};
use crate::format::{Admission, CommitReason, Format, SpaceClass, SpaceRequest};
use crate::inner::Inner;
use crate::plan::WritebackReason;

/// The most rounds: callers that keep freeing and taking space must not keep another one here for ever.
const ROUNDS_MAX: u32 = 64;

/// The most waits for other calls to end, or for the kernel to forget files that were removed.
const WAITS_MAX: u32 = 8;

/// The longest time of one such wait.
const WAIT: Duration = Duration::from_millis(20);

/// The state of [`Inner::admit`].
pub(crate) struct Pressure {
    /// The last round. Held by the caller that frees space.
    last: Mutex<Round>,
    /// Number of calls that hold a reservation.
    calls: AtomicUsize,
    /// Number of callers that wait for `relief`.
    waiting: AtomicUsize,
    /// Counts the events that made space free, or may have.
    freed: AtomicU64,
    /// Number of rounds begun.
    rounds: AtomicU64,
    /// Signalled when a reservation ended, or an inode can be reaped.
    relief: Event,
}

/// One turn of writing, reaping and committing everything.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// The round's number, from 1.
    number: u64,
    /// The value of [`Pressure::freed`] when it began.
    freed: u64,
}

impl Pressure {
    pub(crate) fn new(rt: &Rt) -> Pressure {
        Pressure {
            last: Mutex::new(Rt::clone(rt), Round::default()),
            calls: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            freed: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            relief: Event::new(),
        }
    }
}

/// The reservation of a running call; the unused part goes back at its end.
pub(crate) struct Admitted<'a, F: Format> {
    inner: &'a Inner<F>,
    admission: Admission,
}

impl<F: Format> Deref for Admitted<'_, F> {
    type Target = Admission;

    fn deref(&self) -> &Admission {
        &self.admission
    }
}

impl<F: Format> DerefMut for Admitted<'_, F> {
    fn deref_mut(&mut self) -> &mut Admission {
        &mut self.admission
    }
}

impl<F: Format> Drop for Admitted<'_, F> {
    fn drop(&mut self) {
        // First the unused part goes back, then the waiting callers look again.
        drop(std::mem::replace(&mut self.admission, Admission::none()));
        self.inner.pressure.calls.fetch_sub(1, Ordering::SeqCst);
        self.inner.relieve();
    }
}

impl<F: Format> Inner<F> {
    /// Returns an empty reservation, for a call that needs no space.
    pub(crate) fn admit_nothing(&self) -> Admitted<'_, F> {
        self.admitted(Admission::none())
    }

    fn admitted(&self, admission: Admission) -> Admitted<'_, F> {
        self.pressure.calls.fetch_add(1, Ordering::SeqCst);
        Admitted { inner: self, admission }
    }

    /// Reserves space, if there is some without freeing any. Level 0 only.
    pub(crate) fn admit_at_once(&self, need: SpaceRequest, class: SpaceClass) -> Result<Option<Admitted<'_, F>>> {
        match self.format.admit(need, class) {
            Err(error) if error.errno() == libc::ENOSPC => Ok(None),
            answer => answer.map(|admission| Some(self.admitted(admission))),
        }
    }

    /// Reserves space. Level 0 only, and the caller holds no other reservation.
    ///
    /// # Errors
    /// ENOSPC if there is none after everything that could be written or freed has been.
    pub(crate) fn admit(&self, need: SpaceRequest, class: SpaceClass) -> Result<Admitted<'_, F>> {
        if let Some(admitted) = self.admit_at_once(need, class)? {
            return Ok(admitted);
        }
        self.tally.pressure_commits.fetch_add(1, Ordering::Relaxed);
        let seen = self.pressure.rounds.load(Ordering::SeqCst);
        let mut last = self.pressure.last.lock();
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            if let Some(admitted) = self.admit_at_once(need, class)? {
                return Ok(admitted);
            }
            // A round that began after this call first failed serves as well as one of its own.
            let in_vain = last.number > seen && last.freed == self.pressure.freed.load(Ordering::SeqCst);
            if !in_vain || self.has_ripe() {
                *last = self.free_everything()?;
                continue;
            }
            // Other calls may give back what they will not use, and the kernel may be about to forget removed files.
            let others = || self.pressure.calls.load(Ordering::SeqCst) > 0 || self.has_held_orphans();
            if waits == WAITS_MAX || !self.wait_for_relief(self.rt.now() + WAIT, others) {
                break;
            }
            waits += 1;
        }
        Err(Error::Posix(libc::ENOSPC))
    }

    /// Reaps, writes back and commits everything that can be.
    fn free_everything(&self) -> Result<Round> {
        let number = self.pressure.rounds.fetch_add(1, Ordering::SeqCst) + 1;
        let freed = self.pressure.freed.load(Ordering::SeqCst);
        self.reap_all();
        self.wait_for_reapers();
        self.write_back_unplaced();
        self.commit(CommitReason::Pressure)?;
        Ok(Round { number, freed })
    }

    /// Writes back every file that was promised more than it may need: promises become allocated blocks. Errors are
    /// latched in the inodes.
    fn write_back_unplaced(&self) {
        let mut files = self.dirty.lock().least_recent(usize::MAX);
        files.retain(|inode| inode.pages.lock().unplaced.blocks() > 0);
        self.write_back(files.iter().map(|inode| WritebackReason::Drain(inode.ino)));
        for inode in files {
            // Its blocks were in flight already, or too many for one plan.
            let _ = self.write_back_file(&inode, WritebackReason::Drain(inode.ino));
        }
    }

    /// Waits until a reservation has ended or an inode can be reaped, but not longer than `until`; false if it is not
    /// sensible to wait.
    pub(crate) fn wait_for_relief(&self, until: Time, is_sensible: impl FnOnce() -> bool) -> bool {
        let ticket = self.pressure.relief.ticket();
        self.pressure.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = is_sensible();
        if waits {
            self.rt.wait(&self.pressure.relief, ticket, Some(until));
        }
        self.pressure.waiting.fetch_sub(1, Ordering::SeqCst);
        waits
    }

    /// Notes that space was made free.
    pub(crate) fn note_freed(&self) {
        self.pressure.freed.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes the callers that wait for space.
    pub(crate) fn relieve(&self) {
        if self.pressure.waiting.load(Ordering::SeqCst) > 0 {
            self.rt.signal(&self.pressure.relief);
        }
    }
}
