//! Counters of the disk's requests and of the time they took, in modelled time.

use moafs_disk::model::hdd::Background;
use moafs_disk::model::{FlashCounters, Totals};
use serde::{Deserialize, Serialize};

/// Counters since the disk was made; the file `stats` shows them as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Modelled time: unpaced the drive's clock, which runs only while a command is served; paced the wall's, times the
    /// factor.
    pub elapsed_ns: u64,
    /// Modelled time during which a command was being served.
    pub busy_ns: u64,
    /// Commands, bytes, and the parts of the time they took.
    pub drive: Totals,
    /// Background work of the drive: writing its buffer to the media, reading ahead.
    pub background: Background,
    /// Work of the flash; `None` for a hard disk.
    #[serde(default)]
    pub flash: Option<FlashCounters>,
    /// Requests of the kernel that were merged into another one's command.
    pub merged: u64,
    /// Largest number of requests that ever waited at once.
    pub waiting_max: u64,
}

impl Stats {
    /// Returns the difference to `earlier`, counters of the same disk. `waiting_max` stays that of
    /// the disk's whole life.
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            elapsed_ns: self.elapsed_ns - earlier.elapsed_ns,
            busy_ns: self.busy_ns - earlier.busy_ns,
            drive: self.drive.since(&earlier.drive),
            background: self.background.since(&earlier.background),
            flash: self.flash.map(|now| now.since(&earlier.flash.unwrap_or_default())),
            merged: self.merged - earlier.merged,
            waiting_max: self.waiting_max,
        }
    }

    /// Returns the moves of the arm, for commands and for the buffer's later writes.
    pub fn seeks(&self) -> u64 {
        self.drive.seeks + self.background.destage_seeks
    }
}
