//! Relief of callers that are short of space: reservations and writes that end, space that was freed, orphans that can
//! be reaped.

use std::collections::BTreeSet;

use moafs_runtime::Event;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicU64, AtomicUsize};

/// The events that may give space back.
#[derive(Default)]
pub(crate) struct Relief {
    /// Number of calls that hold a reservation.
    pub(crate) calls: AtomicUsize,
    /// Number of callers that wait for `event`.
    pub(crate) waiting: AtomicUsize,
    /// Counts the events that made space free, or may have.
    pub(crate) freed: AtomicU64,
    /// The writes that have taken space which their files do not have yet. A leaf.
    pub(crate) flights: Mutex<Flights>,
    /// Signalled when a reservation or a flight ended, or an inode can be reaped.
    pub(crate) event: Event,
}

/// The flights of a volume: writes that have taken space, or are about to, and that no file has yet.
#[derive(Default)]
pub(crate) struct Flights {
    /// Number of flights begun.
    begun: u64,
    /// The numbers of those that have not ended.
    under_way: BTreeSet<u64>,
}

impl Flights {
    /// Begins a flight and returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.under_way.insert(self.begun);
        self.begun
    }

    pub(crate) fn end(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Returns the number of flights begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the same if none is under way.
    pub(crate) fn calm(&self) -> Option<u64> {
        self.under_way.is_empty().then_some(self.begun)
    }

    /// Returns true if one of the first `upto` flights is under way.
    pub(crate) fn has_one_upto(&self, upto: u64) -> bool {
        self.under_way.first().is_some_and(|first| *first <= upto)
    }
}
