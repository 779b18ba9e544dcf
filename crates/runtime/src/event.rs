//! [`Event`]: the only thing a task can wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::Woken;

/// Something that happens, again and again. A signal costs one atomic addition and one load while no task waits.
///
/// The sequence number counts the signals; a [`Ticket`] remembers one, so that a signal between
/// looking at a condition and waiting is never lost.
#[derive(Debug, Default)]
pub struct Event {
    sequence: AtomicU64,
    /// Threads of a live runtime that park here, or are about to: lets `signal` skip its slow path.
    parked: AtomicU64,
    /// Held between a last look at `sequence` and parking, so that a wake-up cannot fall between.
    gate: Mutex<()>,
    moved: Condvar,
}

/// The state of an [`Event`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

impl Event {
    /// Returns an event that has not happened yet.
    pub const fn new() -> Self {
        Event { sequence: AtomicU64::new(0), parked: AtomicU64::new(0), gate: Mutex::new(()), moved: Condvar::new() }
    }

    /// Remembers how often the event has happened so far. Take it before looking at the condition.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.sequence.load(Ordering::SeqCst))
    }

    /// Counts one signal: every ticket taken so far is now out of date.
    pub(crate) fn advance(&self) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns true if the event was signalled since `ticket` was taken.
    pub(crate) fn is_past(&self, ticket: Ticket) -> bool {
        self.sequence.load(Ordering::SeqCst) != ticket.0
    }

    /// Signals threads of a live runtime.
    pub(crate) fn unpark(&self) {
        self.advance();
        // SeqCst: either this load sees the waiter, or the waiter's look at `sequence` sees the
        // advance.
        if self.parked.load(Ordering::SeqCst) != 0 {
            drop(self.gate.lock());
            self.moved.notify_all();
        }
    }

    /// Parks a thread of a live runtime until a signal after `ticket`, or until `deadline`.
    pub(crate) fn park(&self, ticket: Ticket, deadline: Option<Instant>) -> Woken {
        if self.is_past(ticket) {
            return Woken::Signalled;
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        let woken = self.park_registered(ticket, deadline);
        self.parked.fetch_sub(1, Ordering::SeqCst);
        woken
    }

    fn park_registered(&self, ticket: Ticket, deadline: Option<Instant>) -> Woken {
        let mut gate = self.gate.lock();
        while !self.is_past(ticket) {
            let Some(deadline) = deadline else {
                self.moved.wait(&mut gate);
                continue;
            };
            let timed_out = self.moved.wait_until(&mut gate, deadline).timed_out();
            if timed_out && !self.is_past(ticket) {
                return Woken::TimedOut;
            }
        }
        Woken::Signalled
    }
}
