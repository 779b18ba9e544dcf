//! What vfs counts: each decision has a counter, and `.moafs/stats` and the lab print the same struct.

use serde::Serialize;

/// Counters of one volume since it was opened. All are totals unless their name says otherwise.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Bytes that file data occupy in the cache now.
    pub cached_bytes: u64,
    /// Of those, bytes not on the volume yet.
    pub dirty_bytes: u64,
}
