//! A modelled disk that any file system can be put on.
//!
//! The one idea: a directory with one file, `disk`, that a loop device can sit on. Bytes are stored
//! for real; every request that the kernel sends there (offset, length, flush) is timed by the
//! model of a drive and counted. So ext4, xfs, btrfs and databases meet the same disk as we do.
//! Modelled time is defined in `docs/simdisk.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `front` | the directory: FUSE requests to what is asked of the drive |
//! | `host` | requests wait, one thread serves them; unpaced and paced time |
//! | `queue` | what is served next: C-LOOK, merging, flushes |
//! | `drive` | the drive's model, and what a command took |
//! | `store` | the bytes |
//! | [`stats`], `trace` | counters, and the list of commands |
//! | [`serve`](mod@serve) | a live disk: mount, signals, end |

#![forbid(unsafe_code)]

mod drive;
mod front;
mod host;
mod queue;
pub mod serve;
pub mod stats;
mod store;
mod trace;

use serde::{Deserialize, Serialize};

pub use drive::{Model, ModelError};
pub use host::Pace;
pub use serve::{ServeError, SimDisk, serve};
pub use stats::Stats;

/// The disk's file name in its directory.
pub const DISK: &str = "disk";
/// The file name of the disk's counters, which are JSON.
pub const STATS: &str = "stats";
/// The mount's subtype: the part of its type after `fuse.`.
pub const SUBTYPE: &str = "simdisk";

/// The largest request that FUSE passes on whole, bytes: its default limit of 256 pages.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// The constant properties of a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Name or path of the drive's model.
    pub model: String,
    /// Parameters that were set, `name=value`.
    pub set: Vec<String>,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Modelled time per wall time; `None` if unpaced.
    pub pace: Option<f64>,
}

/// The contents of the file `stats`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The disk's constant properties.
    #[serde(flatten)]
    pub about: About,
    /// The disk's counters since it was made.
    #[serde(flatten)]
    pub stats: Stats,
}

impl About {
    fn with(&self, stats: Stats) -> Report {
        Report { about: self.clone(), stats }
    }
}
