//! Batches between `submit` and `wait`: their results, or the state that leads to them, for disks that execute requests
//! in the caller's thread.

use std::collections::BTreeMap;

use moafs_runtime::leaf::Mutex;

use crate::{Done, Ticket};

/// Batches that were submitted and not yet waited for.
#[derive(Debug)]
pub struct Completions<T = Vec<Done>> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    next: u64,
    batches: BTreeMap<u64, T>,
}

impl<T> Default for Completions<T> {
    fn default() -> Self {
        Completions { state: Mutex::new(State { next: 0, batches: BTreeMap::new() }) }
    }
}

impl<T> Completions<T> {
    /// Keeps a batch until [`Completions::take`] and returns its ticket.
    pub fn put(&self, batch: T) -> Ticket {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.batches.insert(number, batch);
        Ticket(number)
    }

    /// Removes and returns the batch of a ticket.
    ///
    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    pub fn take(&self, ticket: Ticket) -> T {
        let batch = self.state.lock().batches.remove(&ticket.0);
        batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"))
    }
}
