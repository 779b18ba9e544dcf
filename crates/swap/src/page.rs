//! The unit of paging: pages and their numbers.

/// Bytes in a page: the unit of paging and of slots.
pub const PAGE_BYTES: usize = 4096;

/// A page of paged-out memory: its index in its container (a swap device, a region, an address space of the lab).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl PageNo {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
