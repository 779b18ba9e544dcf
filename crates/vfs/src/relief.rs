//! Relief of callers that are short of space: reservations that end, space that was freed, orphans that can be reaped.

use moafs_runtime::Event;
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
    /// Signalled when a reservation ended, or an inode can be reaped.
    pub(crate) event: Event,
}
