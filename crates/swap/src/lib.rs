//! Paged-out memory in a volume's own free space, next to the disk head (`swap.md` of the design notes; the paper's SAF).
//!
//! The one idea: a page that leaves memory goes to where the head is, into a *swap area* in the group of the most recently accessed
//! file block; a map in memory remembers where. Areas are volatile ([`moafs_vfs::volatile`]): the disk never tells of them.

pub mod device;
pub mod error;
pub mod options;
pub mod page;
pub mod region;
pub mod status;

pub use device::Swap;
pub use error::SwapError;
pub use options::{Home, Placement, SwapOptions};
pub use page::{PAGE_BYTES, PageNo};
pub use region::{Region, RegionError, RegionOptions, RegionStats};
pub use status::{AreaStatus, Counters, Status};
