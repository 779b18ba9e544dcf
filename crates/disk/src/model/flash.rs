//! Flash memory: the parts shared by SSDs and SD cards.
//!
//! Design: a translation layer decides where a page goes and which pages and blocks must be copied and erased for it;
//! the chips compute how long that takes. The layers keep no times, the chips no addresses.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`] | chips and preconditioning as parameters |
//! | [`chips`] | dies and channels: until when each is busy |
//! | [`page_map`] | page-mapped translation with greedy garbage collection |
//! | [`log_blocks`] | block-mapped translation with log blocks (FAST) |
//! | [`counters`] | pages programmed, copies, erases, merges |
//! | `precondition` | a used drive at time 0 |
//! | `bitmap`, `victims` | the pages that hold data; the block with the fewest valid pages |

mod bitmap;
pub(in crate::model) mod chips;
pub mod counters;
pub(in crate::model) mod log_blocks;
pub(in crate::model) mod page_map;
pub(in crate::model) mod precondition;
pub mod spec;
mod victims;

pub use counters::FlashCounters;

#[cfg(test)]
mod tests;
