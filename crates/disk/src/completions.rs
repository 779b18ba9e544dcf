//! Results of batches between `submit` and `wait`, for disks that execute in the caller's thread.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{Done, Ticket};

/// Finished batches that nobody has asked for yet.
#[derive(Debug, Default)]
pub struct Completions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    finished: BTreeMap<u64, Vec<Done>>,
}

impl Completions {
    /// Keeps the results of a batch.
    pub fn put(&self, done: Vec<Done>) -> Ticket {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.finished.insert(number, done);
        Ticket(number)
    }

    /// Gives them out.
    ///
    /// # Panics
    /// When the ticket is another disk's, or was redeemed before.
    pub fn take(&self, ticket: Ticket) -> Vec<Done> {
        let done = self.state.lock().finished.remove(&ticket.0);
        done.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"))
    }
}
