//! The work of programs on a file system, drawn from a seed.
//!
//! Nothing is done here: a workload says which file comes next, how large it is, and whether it is made, read, appended
//! to or removed. The lab carries that out on a volume in virtual time, `moafs lab peers` by system calls on mounted
//! volumes, so both mean the same by a name.
//!
//! | module | what it holds |
//! |---|---|
//! | `sizes` | distributions of file sizes: [`Sizes`] |
//! | `pool` | files that come and go: [`Pool`], [`Step`] |
//! | `postmark` | transactions on such files: [`Postmark`] |
//! | `aging` | a volume's use over months: [`Aging`] |
//! | `pattern` | which of many is written next: [`Pattern`] |
//!
//! ```
//! use moafs_workload::{Append, Postmark, Sizes, Step};
//!
//! let postmark = Postmark {
//!     files: 100, directories: 4, sizes: Sizes::FSL, transactions: 10, bias_read: 5, bias_create: 5,
//!     append: Append::Block(4096), seed: 1,
//! };
//! let mut run = postmark.start();
//! assert_eq!(run.fill().count(), 100);
//! let steps: Vec<Step> = run.transactions().flatten().collect();
//! assert_eq!(steps.len(), 20);
//! ```

#![forbid(unsafe_code)]

mod aging;
mod pattern;
mod pool;
mod postmark;
mod sizes;

pub use aging::{Aging, AgingStep};
pub use pattern::{Drawing, Pattern};
pub use pool::{File, Pool, Step};
pub use postmark::{Append, Postmark, Run};
pub use sizes::Sizes;
