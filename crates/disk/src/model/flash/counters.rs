//! Counters of flash operations.

/// Sums since the drive was made; preconditioning is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FlashCounters {
    /// Bytes of a page: the unit of programming.
    pub page_bytes: u64,
    /// Bytes written by the host.
    pub host_bytes: u64,
    /// Pages programmed with the host's data.
    pub host_pages: u64,
    /// Pages programmed with copies: garbage collection and merges.
    pub gc_pages: u64,
    /// Blocks erased, one per die.
    pub erases: u64,
    /// Blocks whose valid pages were copied away (page-mapped).
    pub cleaned_blocks: u64,
    /// Logs that became data blocks unchanged (log blocks).
    pub switch_merges: u64,
    /// Sequential logs that were completed with copies.
    pub partial_merges: u64,
    /// Data blocks that were assembled from pages in several places.
    pub full_merges: u64,
    /// Pages that went to another log than the page before: on a card, switches of the allocation unit.
    pub unit_switches: u64,
    /// Pages that the host discarded.
    pub trimmed_pages: u64,
}

impl FlashCounters {
    /// Returns the bytes programmed per byte that the host wrote; 1 before the first write.
    pub fn write_amplification(&self) -> f64 {
        let programmed = (self.host_pages + self.gc_pages) * self.page_bytes;
        if self.host_bytes == 0 { 1.0 } else { programmed as f64 / self.host_bytes as f64 }
    }

    /// Returns the difference to `earlier`, which was taken from the same drive.
    pub fn since(&self, earlier: &FlashCounters) -> FlashCounters {
        FlashCounters {
            page_bytes: self.page_bytes,
            host_bytes: self.host_bytes - earlier.host_bytes,
            host_pages: self.host_pages - earlier.host_pages,
            gc_pages: self.gc_pages - earlier.gc_pages,
            erases: self.erases - earlier.erases,
            cleaned_blocks: self.cleaned_blocks - earlier.cleaned_blocks,
            switch_merges: self.switch_merges - earlier.switch_merges,
            partial_merges: self.partial_merges - earlier.partial_merges,
            full_merges: self.full_merges - earlier.full_merges,
            unit_switches: self.unit_switches - earlier.unit_switches,
            trimmed_pages: self.trimmed_pages - earlier.trimmed_pages,
        }
    }
}
