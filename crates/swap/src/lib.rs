//! Paged-out memory in a volume's own free space, next to the disk head: SAF. *The paper* is Ahn, Kim, Kim, Oh (2011),
//! cited in `README.md`; `docs/swap.md` describes the decisions on points that the paper leaves open.
//!
//! Design: a page that leaves memory goes to where the head is, into a *swap area* in the group of the most recently
//! accessed file block; a map in memory records where. Areas are swap space ([`moafs_vfs::swap_space`]): no structure
//! on the disk refers to them.
//!
//! Pages leave memory for a partition (here a disk in memory) and come back:
//!
//! ```
//! use moafs_disk::{Buf, MemDisk};
//! use moafs_runtime::Live;
//! use moafs_swap::{PAGE_BYTES, PageNo, Swap, SwapOptions};
//! use std::sync::Arc;
//!
//! let partition = Arc::new(MemDisk::new(8192)); // sectors: 4 MiB
//! let swap = Swap::open(None, Some(partition), 256, Live::new(), SwapOptions::default())?;
//! swap.page_out(&[(PageNo(3), Buf::copy_of(&[9; PAGE_BYTES]).freeze())])?;
//! let mut page = [0; PAGE_BYTES];
//! swap.page_in(PageNo(3), &mut page)?;
//! assert_eq!(page[..], [9; PAGE_BYTES]);
//! # Ok::<(), moafs_swap::SwapError>(())
//! ```
//!
//! With a [`Home`], a mounted volume's free space takes the pages; [`Region`] is memory of one process that leaves this
//! way.
//!
//! | module | contents |
//! |---|---|
//! | [`device`] | [`Swap`]: pages out and in, freeing; the guarantees for concurrent calls |
//! | [`places`] | the paper's search order for the next page's place |
//! | [`areas`] | swap areas: their positions and the order of their creation |
//! | [`slots`] | the free slots of an area: a radix tree of bitmaps |
//! | [`traditional`] | the traditional swap space: a partition, or blocks at the lowest addresses |
//! | [`map`] | the mapping of pages to slots; pins |
//! | `state` | all of these under one lock |
//! | `background` | background work: vacating areas for the volume's writers, giving blocks back |
//! | [`avoid`] | groups where no area is to be created for a while |
//! | [`options`], `open` | the disks and settings of a swap |
//! | [`status`] | counters and state of a swap, for users |
//! | [`region`] | a memory region of one process, kept in such a swap; works without root |
//!
//! Lock order, downwards: `Swap::tending`, `Swap::making` (both may be held across a wait), then the volume's allocator
//! ([`SwapSpace`](moafs_vfs::swap_space::SwapSpace)) or the state, one at a time; both are leaves.
//!
//! After a crash or a restart there are no pages and no areas: the map is in memory, and so are the areas.

pub mod areas;
pub mod avoid;
mod background;
pub mod device;
pub mod error;
pub mod map;
mod open;
pub mod options;
pub mod page;
pub mod places;
pub mod region;
pub mod slots;
mod state;
pub mod status;
#[cfg(test)]
mod tests;
pub mod traditional;

pub use device::Swap;
pub use error::SwapError;
pub use options::{Home, Placement, SwapOptions};
pub use page::{PAGE_BYTES, PageNo};
pub use region::{Region, RegionError, RegionOptions, RegionStats};
pub use status::{AreaStatus, Counters, Status};
