//! The ways of a log-structured file system that are compared, by name.

use std::fmt;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_f2fs::clean::oracle::Foresight;
use moafs_f2fs::clean::{Cleaner, Order};
use moafs_f2fs::place::{DeviceCost, Recycling, Temperature};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::Rt;

use crate::machine::Mount;

/// The method of F2FS when clean segments run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogSystem {
    /// Cleaning, with this policy.
    Cleaning(Cleaner),
    /// Hot and cold data apart, by reference counts; cleaning: cost-benefit.
    Wolf,
    /// No cleaning: new data into holes of used segments, hot and cold apart as in [`LogSystem::Wolf`].
    Recycling,
    /// Recycling or cleaning, whichever is cheaper on the device; hot and cold apart.
    Auto,
    /// Hot and cold data apart, by the lifespans of the blocks before; cleaning: cost-benefit.
    SepBit,
    /// Cleaning with the future known: the yardstick.
    Oracle,
    /// The oracle, with the future known to placement as well: what dies together lies together.
    Foreseen,
}

impl LogSystem {
    /// Returns all systems of the comparison: every cleaner of F2FS is one.
    pub fn all() -> impl Iterator<Item = LogSystem> {
        let others = [
            LogSystem::Wolf,
            LogSystem::SepBit,
            LogSystem::Recycling,
            LogSystem::Auto,
            LogSystem::Oracle,
            LogSystem::Foreseen,
        ];
        Cleaner::ALL.into_iter().map(LogSystem::Cleaning).chain(others)
    }

    /// Returns the system's name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            LogSystem::Cleaning(cleaner) => cleaner.name(),
            LogSystem::Wolf => "wolf",
            LogSystem::Recycling => "recycling",
            LogSystem::Auto => "auto",
            LogSystem::SepBit => "sepbit",
            LogSystem::Oracle => "oracle",
            LogSystem::Foreseen => "fk",
        }
    }

    /// Returns true if the system separates hot from cold data, which takes a buffer for each.
    pub fn splits(self) -> bool {
        self.knows_the_logs() || self.temperature() != Temperature::Kind
    }

    /// Returns true if the system knows the future.
    pub fn foresees(self) -> bool {
        matches!(self, LogSystem::Oracle | LogSystem::Foreseen)
    }

    fn knows_the_logs(self) -> bool {
        self == LogSystem::Foreseen
    }

    fn temperature(self) -> Temperature {
        match self {
            LogSystem::Wolf | LogSystem::Recycling | LogSystem::Auto => Temperature::Wolf,
            LogSystem::SepBit => Temperature::SepBit,
            LogSystem::Cleaning(_) | LogSystem::Oracle | LogSystem::Foreseen => Temperature::Kind,
        }
    }

    fn cleaner(self) -> Cleaner {
        match self {
            LogSystem::Cleaning(cleaner) => cleaner,
            _ => Cleaner::CostBenefit,
        }
    }

    fn recycling(self) -> Recycling {
        match self {
            LogSystem::Recycling => Recycling::Always,
            LogSystem::Auto => Recycling::Auto,
            _ => Recycling::Never,
        }
    }

    /// Returns the mount options of the system, on a device with the costs `device`.
    pub fn mount(self, device: DeviceCost, seed: u64) -> LogMount {
        LogMount(OpenOptions {
            cleaner: self.cleaner(),
            clean_order: Order::Found,
            recycling: self.recycling(),
            temperature: self.temperature(),
            places_by_foresight: self.knows_the_logs(),
            device,
            seed,
            ..OpenOptions::default()
        })
    }
}

impl fmt::Display for LogSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An F2FS volume and the options it is opened with.
#[derive(Debug, Clone)]
pub struct LogMount(pub OpenOptions);

impl LogMount {
    /// Returns the same mount, with a cleaner that knows the future.
    pub fn foreseeing(self, foresight: Arc<dyn Foresight>) -> LogMount {
        LogMount(OpenOptions { foresight: Some(foresight), ..self.0 })
    }
}

impl Mount for LogMount {
    type Format = F2fs;

    fn open(&self, disk: SharedDisk, rt: Rt, transfer_bytes_max: usize) -> moafs_vfs::Result<F2fs> {
        F2fs::open(disk, rt, OpenOptions { transfer_bytes_max, ..self.0.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_a_name_of_its_own() {
        let mut names: Vec<&str> = LogSystem::all().map(LogSystem::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
