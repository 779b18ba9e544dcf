//! Paged-out memory in a volume's own free space, next to the disk head: SAF. *The paper* is Ahn, Kim, Kim, Oh (2011),
//! whose title `README.md` has; `docs/swap.md` says what was settled where it leaves something open.
//!
//! The one idea: a page that leaves memory goes to where the head is, into a *swap area* in the group of the most recently accessed
//! file block; a map in memory remembers where. Areas are volatile ([`moafs_vfs::volatile`]): the disk never tells of them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`device`] | [`Swap`]: pages out and in, freeing; what may happen beside what |
//! | [`places`] | the paper's search order: where the next page goes |
//! | [`areas`] | swap areas: where they lie, in which order they were created |
//! | [`slots`] | the free slots of an area: a radix tree of bitmaps |
//! | [`traditional`] | the traditional swap space: a partition, or blocks at the lowest addresses |
//! | [`map`] | which slot holds which page; pins |
//! | `state` | all of these under one lock |
//! | `tend` | giving way to the volume's writers, giving back |
//! | [`avoid`] | groups where no area is to be created for a while |
//! | [`options`], `open` | what a swap is made of |
//! | [`status`] | what it tells about itself |
//! | [`region`] | without root: a region of one process in such a swap |
//!
//! Lock order, downwards: `Swap::tending`, `Swap::making` (both may be held across a wait), then the volume's allocator
//! ([`Volatile`](moafs_vfs::volatile::Volatile)) or the state, one at a time; both are leaves.
//!
//! After a crash or a restart there are no pages and no areas: the map is in memory, and so are the areas.

pub mod areas;
pub mod avoid;
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
mod tend;
#[cfg(test)]
mod tests;
pub mod traditional;

pub use device::Swap;
pub use error::SwapError;
pub use options::{Home, Placement, SwapOptions};
pub use page::{PAGE_BYTES, PageNo};
pub use region::{Region, RegionError, RegionOptions, RegionStats};
pub use status::{AreaStatus, Counters, Status};
