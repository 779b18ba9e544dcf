//! Batches between `submit` and `wait`: their results, for disks that execute in the caller's thread, or whatever
//! leads to them.

use std::collections::BTreeMap;

use moafs_runtime::leaf::Mutex;

use crate::{Done, Ticket};

/// Batches that nobody has asked for yet.
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
    /// Keeps a batch.
    pub fn put(&self, batch: T) -> Ticket {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.batches.insert(number, batch);
        Ticket(number)
    }

    /// Gives it out.
    ///
    /// # Panics
    /// When the ticket is another disk's, or was redeemed before.
    pub fn take(&self, ticket: Ticket) -> T {
        let batch = self.state.lock().batches.remove(&ticket.0);
        batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"))
    }
}
