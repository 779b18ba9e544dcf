//! Space is short: everything that can be written, reaped or committed is, before a caller is told ENOSPC.
//!
//! One caller at a time does this for all. It goes on as long as a round gave something back, to whomever, or as other calls hold
//! reservations larger than what they will use.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use moafs_runtime::leaf::atomic::{AtomicU64, AtomicUsize, Ordering};
use moafs_runtime::lock::Mutex;
use moafs_runtime::{Event, Rt};

use crate::error::Result;
use crate::format::{Admission, Format, Need, SpaceClass, Why};
use crate::inner::Inner;
use crate::plan::Due;

/// Rounds at most: clients that keep freeing and taking space must not keep another one here for ever.
const ROUNDS_MAX: u32 = 64;

/// Waits for other calls to end, or for the kernel to forget what was removed, at most.
const WAITS_MAX: u32 = 8;

/// How long each of them takes at most.
const WAIT: Duration = Duration::from_millis(20);

/// The state of [`Inner::admit`].
pub(crate) struct Pressure {
    /// Held by the caller that frees space.
    one: Mutex<()>,
    /// Calls that hold a reservation.
    calls: AtomicUsize,
    /// Callers that wait for `relief`.
    waiting: AtomicUsize,
    /// Counts what made space free, or may have.
    freed: AtomicU64,
    /// A reservation ended, or an inode can be reaped.
    relief: Event,
}

impl Pressure {
    pub(crate) fn new(rt: &Rt) -> Pressure {
        Pressure {
            one: Mutex::new(Rt::clone(rt), ()),
            calls: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            freed: AtomicU64::new(0),
            relief: Event::new(),
        }
    }
}

/// What a running call may use, as it was reserved; the rest goes back at its end.
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
        // First what is left goes back, then whoever waits looks again.
        drop(std::mem::replace(&mut self.admission, Admission::none()));
        self.inner.pressure.calls.fetch_sub(1, Ordering::SeqCst);
        self.inner.relieve();
    }
}

impl<F: Format> Inner<F> {
    /// For a call that needs no space.
    pub(crate) fn admit_nothing(&self) -> Admitted<'_, F> {
        self.admitted(Admission::none())
    }

    fn admitted(&self, admission: Admission) -> Admitted<'_, F> {
        self.pressure.calls.fetch_add(1, Ordering::SeqCst);
        Admitted { inner: self, admission }
    }

    /// Reserves space, if there is some without freeing any. Level 0 only.
    pub(crate) fn admit_at_once(&self, need: Need, class: SpaceClass) -> Result<Option<Admitted<'_, F>>> {
        match self.format.admit(need, class) {
            Err(error) if error.errno() == libc::ENOSPC => Ok(None),
            answer => answer.map(|admission| Some(self.admitted(admission))),
        }
    }

    /// Reserves space. Level 0 only, and the caller holds no other reservation.
    ///
    /// # Errors
    /// ENOSPC if there is none after everything that could be written or freed has been.
    pub(crate) fn admit(&self, need: Need, class: SpaceClass) -> Result<Admitted<'_, F>> {
        if let Some(admitted) = self.admit_at_once(need, class)? {
            return Ok(admitted);
        }
        self.tally.pressure_commits.fetch_add(1, Ordering::Relaxed);
        let _one = self.pressure.one.lock();
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            let freed = self.pressure.freed.load(Ordering::SeqCst);
            if let Some(admitted) = self.admit_at_once(need, class)? {
                return Ok(admitted);
            }
            self.reap_all();
            self.wait_for_reapers();
            self.write_back_unplaced();
            self.commit(Why::Pressure)?;
            if let Some(admitted) = self.admit_at_once(need, class)? {
                return Ok(admitted);
            }
            if self.pressure.freed.load(Ordering::SeqCst) != freed || self.has_ripe() {
                continue;
            }
            if waits == WAITS_MAX || !self.wait_for_relief() {
                break;
            }
            waits += 1;
        }
        Err(crate::error::Error::Posix(libc::ENOSPC))
    }

    /// Writes back every file that was promised more than it may need: promises become facts. Errors are latched in the inodes.
    fn write_back_unplaced(&self) {
        let mut files = self.dirty.lock().least_recent(usize::MAX);
        files.retain(|inode| inode.pages.lock().unplaced.blocks() > 0);
        self.write_back(files.iter().map(|inode| Due::Drain(inode.ino)));
        for inode in files {
            // What was in flight already, or too large for one plan.
            let _ = self.write_back_file(&inode, Due::Drain(inode.ino));
        }
    }

    /// Waits a moment for other calls to give back what they will not use, and for removed files to be forgotten; false if there is
    /// nothing to wait for.
    fn wait_for_relief(&self) -> bool {
        let ticket = self.pressure.relief.ticket();
        self.pressure.waiting.fetch_add(1, Ordering::SeqCst);
        let sensible = self.pressure.calls.load(Ordering::SeqCst) > 0 || self.has_orphans();
        if sensible {
            self.rt.wait(&self.pressure.relief, ticket, Some(self.rt.now() + WAIT));
        }
        self.pressure.waiting.fetch_sub(1, Ordering::SeqCst);
        sensible
    }

    /// Notes that space was made free.
    pub(crate) fn note_freed(&self) {
        self.pressure.freed.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes those who wait for space.
    pub(crate) fn relieve(&self) {
        if self.pressure.waiting.load(Ordering::SeqCst) > 0 {
            self.rt.signal(&self.pressure.relief);
        }
    }
}
