//! One process's large memory, kept in a volume's swap areas, without root.
//!
//! A [`Region`] is plain memory to the program. At most a budget of it is in the host's memory; the rest is in a
//! [`Swap`]. The kernel hands every touch of an absent page to a thread of the region (`userfaultfd(2)`), which brings
//! the page in and lets the program continue.
//!
//! | module | contents |
//! |---|---|
//! | `uffd` | the kernel's interface: faults in, answers out |
//! | `memory` | a memory file, mapped once for the program; the pager reads the file |
//! | `clock` | the choice of the pages that leave |
//! | `ahead` | the number of pages to read ahead |
//! | `pager` | the states of a page, and the handling of faults |
//! | `handler` | the thread that answers faults |
//!
//! Rules for the program:
//! * **Errors.** A page that cannot be read back gives SIGBUS to a thread that touches it, as the kernel's own swap
//!   does, and stays lost until [`Region::discard`]. A page that cannot be written stays in memory, beyond the budget,
//!   and is tried again; see [`Region::stats`] and [`Region::flush`].
//! * **System calls** that are given absent memory fail with EFAULT where the process may watch its own faults only
//!   ([`Region::serves_system_calls`]). Memory that the kernel keeps hold of (direct I/O, registered buffers) must not
//!   be in a region.
//! * **fork.** A child does not have the region. **mlockall** while there is one locks it as well: its pages no longer
//!   leave (an earlier one with MCL_FUTURE does no harm).
//! * The memory of a region must not be the program's heap: the pager allocates.
//! * All faults are answered by one thread, one after the other.

mod ahead;
mod clock;
mod error;
mod handler;
mod memory;
mod pager;
mod stats;
mod uffd;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, Pod};
use parking_lot::Mutex;

pub use self::error::RegionError;
use self::handler::Handler;
use self::memory::{Memory, PageRun};
use self::pager::{Pager, Sizes};
pub use self::stats::RegionStats;
use self::uffd::Scope;
use crate::device::Swap;
use crate::page::{PAGE_BYTES, PageNo};

/// The smallest budget in pages: enough for two threads. One instruction may touch four pages (two operands, each
/// across a boundary), and two threads must not take theirs from each other for ever.
const BUDGET_PAGES_MIN: u32 = 8;
/// The inverse of a cluster's largest share of the budget: making space must not evict all recently used pages.
const CLUSTER_SHARE: u32 = 8;
/// The inverse of the part of the budget that is unmapped to see whether it is used. Measured
/// (`what_the_front_hand_is_worth`, 80 % of the touches in a tenth of the pages): a third fewer page-ins than in the
/// order of arrival, nearly what the whole budget would give.
const SPREAD_SHARE: u32 = 2;

/// Settings of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionOptions {
    /// The most memory the region takes, in bytes. The pager needs more on top: 8 bytes for each page of the region,
    /// and 12 for each of the budget.
    pub budget_bytes: u64,
    /// The most pages that leave, or come in, with one request. At most an eighth of the budget is used.
    pub cluster_pages: u32,
}

impl Default for RegionOptions {
    fn default() -> Self {
        RegionOptions { budget_bytes: 64 << 20, cluster_pages: 16 }
    }
}

impl RegionOptions {
    /// Returns the sizes for a region of `pages`.
    fn sizes(&self, pages: u32) -> Result<Sizes, RegionError> {
        let budget = self.budget_bytes / PAGE_BYTES as u64;
        if budget < u64::from(BUDGET_PAGES_MIN) {
            let least = u64::from(BUDGET_PAGES_MIN) * PAGE_BYTES as u64;
            return Err(RegionError::Budget { bytes: self.budget_bytes, least });
        }
        let budget = budget.min(pages.max(BUDGET_PAGES_MIN).into()) as u32;
        let cluster = self.cluster_pages.clamp(1, budget / CLUSTER_SHARE);
        Ok(Sizes { budget, spread: budget / SPREAD_SHARE, cluster })
    }
}

/// Memory of which only a part is resident. The module's text says in which ways it differs from
/// ordinary memory.
pub struct Region {
    /// Dropped before the memory: the thread must end first.
    handler: Option<Handler>,
    pager: Arc<Mutex<Pager>>,
    memory: Arc<Memory>,
    swap: Arc<Swap>,
}

impl Region {
    /// Makes a region of all pages of `swap`, which must have no other user. They are zeros.
    ///
    /// # Errors
    /// [`RegionError`] says which requirement is missing.
    pub fn new(swap: Arc<Swap>, options: RegionOptions) -> Result<Region, RegionError> {
        let sizes = options.sizes(swap.pages())?;
        Region::with(swap, sizes, Scope::All)
    }

    fn with(swap: Arc<Swap>, sizes: Sizes, scope: Scope) -> Result<Region, RegionError> {
        let bytes = rustix::param::page_size();
        if bytes != PAGE_BYTES {
            return Err(RegionError::PageSize { bytes });
        }
        if swap.pages() == 0 {
            return Err(RegionError::Empty);
        }
        let memory = Arc::new(Memory::new(swap.pages(), scope)?);
        let pager = Arc::new(Mutex::new(Pager::new(Arc::clone(&swap), Arc::clone(&memory), sizes)));
        let handler = Handler::start(Arc::clone(&swap), Arc::clone(&memory), Arc::clone(&pager))?;
        Ok(Region { handler: Some(handler), pager, memory, swap })
    }

    /// Returns the length in bytes: all pages of the swap.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns false: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the start of the region, page-aligned; valid until the region is dropped. For callers that share parts
    /// of it among threads by rules of their own.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Returns the whole memory as bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and readable for as long as `self` is; the pager's work below does not change the contents
        // that a reader sees, and only `&mut self` gives write access.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) }
    }

    /// Returns the whole memory as mutable bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// Returns the memory as values of `T`, as many as fit.
    pub fn as_slice_of<T: AnyBitPattern>(&self) -> &[T] {
        bytemuck::cast_slice(&self.as_slice()[..whole::<T>(self.len())])
    }

    /// Returns the memory as mutable values of `T`, as many as fit.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> &mut [T] {
        let bytes = whole::<T>(self.len());
        bytemuck::cast_slice_mut(&mut self.as_mut_slice()[..bytes])
    }

    /// Returns the counters since the region was made.
    pub fn stats(&self) -> RegionStats {
        self.pager.lock().stats()
    }

    /// Returns true if system calls may be given any memory of the region; otherwise they fail with EFAULT where it is
    /// not mapped.
    pub fn serves_system_calls(&self) -> bool {
        self.memory.uffd.scope == Scope::All
    }

    /// Writes every page whose contents differ from the swap's; the pages stay in memory. Writes by other threads
    /// meanwhile may be left out.
    ///
    /// # Errors
    /// The first error; every page that could be written has been.
    pub fn flush(&self) -> Result<(), RegionError> {
        let mut first_error = Ok(());
        let mut from = PageNo(0);
        loop {
            // The lock is released between clusters, so that faults are answered.
            let Some((next, written)) = self.pager.lock().flush_from(from) else { return first_error };
            first_error = first_error.and(written);
            from = next;
        }
    }

    /// Forgets the pages that lie within `bytes` as a whole: they are zeros and take no memory, here or in the swap.
    /// Pages that could not be read are usable again.
    pub fn discard(&mut self, bytes: Range<usize>) {
        let first = bytes.start.min(self.len()).div_ceil(PAGE_BYTES);
        let end = bytes.end.min(self.len()) / PAGE_BYTES;
        if first < end {
            let run = PageRun { first: PageNo(first as u32), count: (end - first) as u32 };
            self.pager.lock().discard(run);
        }
    }
}

/// Returns the largest length up to `bytes` that is whole `T`s.
fn whole<T>(bytes: usize) -> usize {
    const {
        assert!(size_of::<T>() > 0, "values without a size have no place in memory");
        assert!(align_of::<T>() <= PAGE_BYTES, "a region is aligned to a page only");
    }
    bytes - bytes % size_of::<T>()
}

impl Drop for Region {
    fn drop(&mut self) {
        // All borrows are over, so no thread touches the memory any more.
        self.handler = None;
        self.swap.free(PageNo(0), self.swap.pages());
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.len()).field("stats", &self.stats()).finish_non_exhaustive()
    }
}
