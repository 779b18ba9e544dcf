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
    pub(crate) names: NameRoom,
}

/// The room for the names that a call adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRoom {
    /// Blocks are reserved for them.
    Reserved,
    /// No block is: they have to find room in the blocks of their directories.
    InPlace,
    /// They have found none there. The call has changed nothing, and goes on if it gets blocks.
    Missing,
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
        Admitted { ops: self, admission, names: NameRoom::Reserved }
    }

    /// Reserves space, if there is some without freeing any. Level 0 only.
    pub(crate) fn admit_at_once(&self, need: SpaceRequest, class: SpaceClass) -> Result<Option<Admitted<'_, F>>> {
        match self.format.admit(need, class) {
            Err(error) if error.errno() == libc::ENOSPC => Ok(None),
            answer => answer.map(|admission| Some(self.admitted(admission))),
        }
    }

    /// Reserves inodes without blocks for their names, if there are so many. Level 0 only.
    pub(crate) fn admit_in_place(&self, inodes: u64, class: SpaceClass) -> Result<Option<Admitted<'_, F>>> {
        let mut admitted = match inodes {
            0 => Some(self.admit_nothing()),
            _ => self.admit_at_once(SpaceRequest { inodes, ..SpaceRequest::default() }, class)?,
        };
        admitted.iter_mut().for_each(|admitted| admitted.names = NameRoom::InPlace);
        Ok(admitted)
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
