//! [`Event`]: the only thing one can wait for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that happens, again and again. Costs nothing while nobody waits.
///
/// The sequence number counts the signals; a [`Ticket`] remembers one, so that a signal between
/// looking at a condition and waiting is never lost.
#[derive(Debug, Default)]
pub struct Event {
    pub(crate) sequence: AtomicU64,
    /// Tasks that wait, or are about to: lets `signal` skip its slow path.
    pub(crate) waiters: AtomicU64,
}

/// The state of an [`Event`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub(crate) u64);

impl Event {
    /// An event that has not happened yet.
    pub const fn new() -> Self {
        Event {
            sequence: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
        }
    }

    /// Remembers how often the event has happened so far. Take it before looking at the condition.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.sequence.load(Ordering::SeqCst))
    }
}
