//! Reservations of space that a running call holds.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use moafs_runtime::Time;

use crate::error::Result;
use crate::format::{Admission, Format, SpaceClass, SpaceRequest};
use crate::op::Ops;

/// The reservation of a running call; the unused part goes back at its end.
pub(crate) struct Admitted<'a, F: Format> {
    ops: &'a Ops<F>,
    admission: Admission,
    /// True if the volume is full and no block is reserved: names have to find room in the blocks of their directories.
    pub(crate) is_bare: bool,
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
        self.ops.relief.calls.fetch_sub(1, Ordering::SeqCst);
        self.ops.relieve();
    }
}

impl<F: Format> Ops<F> {
    /// Returns an empty reservation, for a call that needs no space.
    pub(crate) fn admit_nothing(&self) -> Admitted<'_, F> {
        self.admitted(Admission::none())
    }

    fn admitted(&self, admission: Admission) -> Admitted<'_, F> {
        self.relief.calls.fetch_add(1, Ordering::SeqCst);
        Admitted { ops: self, admission, is_bare: false }
    }

    /// Reserves space, if there is some without freeing any. Level 0 only.
    pub(crate) fn admit_at_once(&self, need: SpaceRequest, class: SpaceClass) -> Result<Option<Admitted<'_, F>>> {
        match self.format.admit(need, class) {
            Err(error) if error.errno() == libc::ENOSPC => Ok(None),
            answer => answer.map(|admission| Some(self.admitted(admission))),
        }
    }

    /// Waits until a reservation has ended or an inode can be reaped, but not longer than `until`; false if it is not
    /// sensible to wait.
    pub(crate) fn wait_for_relief(&self, until: Time, is_sensible: impl FnOnce() -> bool) -> bool {
        let ticket = self.relief.event.ticket();
        self.relief.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = is_sensible();
        if waits {
            self.rt.wait(&self.relief.event, ticket, Some(until));
        }
        self.relief.waiting.fetch_sub(1, Ordering::SeqCst);
        waits
    }

    /// Wakes the callers that wait for space.
    pub(crate) fn relieve(&self) {
        if self.relief.waiting.load(Ordering::SeqCst) > 0 {
            self.rt.signal(&self.relief.event);
        }
    }
}
