//! Counters of a region.

/// Counters of a region since it was made, in pages unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegionStats {
    /// Pages in memory now.
    pub resident: u64,
    /// Pages in memory now whose contents differ from the swap's.
    pub dirty: u64,
    /// Pages touched for the first time.
    pub zero_fills: u64,
    /// Faults that were answered from the swap.
    pub pages_in: u64,
    /// Pages that were read along with those.
    pub ahead: u64,
    /// Pages read along that were touched afterwards.
    pub ahead_used: u64,
    /// Faults on pages that were in memory, but unmapped to see whether they are used.
    pub idle_faults: u64,
    /// Faults that only made a clean page writable.
    pub write_faults: u64,
    /// Pages written to the swap.
    pub pages_out: u64,
    /// Pages whose memory was given back to the host.
    pub left: u64,
    /// Faults that were answered with SIGBUS.
    pub page_in_errors: u64,
    /// Requests to the swap that failed; their pages stayed in memory.
    pub page_out_errors: u64,
    /// Background steps of the swap that failed.
    pub tend_errors: u64,
    /// Failed calls that were to return memory to the host.
    pub host_errors: u64,
}
