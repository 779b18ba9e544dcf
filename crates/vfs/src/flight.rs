//! Writes under way, as a caller that is short of space sees them.
//!
//! From the plan of a write until the files have their blocks, a format may count these twice: they are taken, and what
//! was promised for them is not given back. So a refusal during a flight says nothing: there may be room when it ends.

use std::sync::atomic::Ordering;

use crate::format::Format;
use crate::op::Ops;

/// One or more writes that have taken space, or are about to. Callers that are short of space are woken when it is
/// dropped.
pub(crate) struct Flight<'a, F: Format> {
    ops: &'a Ops<F>,
    number: u64,
}

impl<F: Format> Drop for Flight<'_, F> {
    fn drop(&mut self) {
        self.ops.relief.flights.lock().end(self.number);
        self.ops.relieve();
    }
}

impl<F: Format> Ops<F> {
    /// Begins a flight.
    pub(crate) fn begin_flight(&self) -> Flight<'_, F> {
        let number = self.relief.flights.lock().begin();
        Flight { ops: self, number }
    }

    /// Returns the number of flights begun, if none is under way: while it stays the same no flight has begun.
    pub(crate) fn calm(&self) -> Option<u64> {
        self.relief.flights.lock().calm()
    }

    /// Waits until the flights that are under way now have ended. Level 0 only, and the caller has none itself.
    ///
    /// They end as their device does: one that refuses a write ends its flight, and one that never answers holds back
    /// the round of freeing that comes before, as it does every commit. Flights that begin later are not waited for.
    pub(crate) fn wait_for_flights(&self) {
        let upto = self.relief.flights.lock().begun();
        loop {
            let ticket = self.relief.event.ticket();
            self.relief.waiting.fetch_add(1, Ordering::SeqCst);
            let waits = self.relief.flights.lock().has_one_upto(upto);
            if waits {
                self.rt.wait(&self.relief.event, ticket, None);
            }
            self.relief.waiting.fetch_sub(1, Ordering::SeqCst);
            if !waits {
                return;
            }
        }
    }
}
