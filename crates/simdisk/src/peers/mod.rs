//! The same workloads on several file systems, each on a modelled disk of its own: what `moafs lab peers` runs.
//!
//! The one idea: every file system gets the same disk, the same queue in front of it and the same
//! limit of dirty memory, and is used as it comes: the tool's defaults, the kernel's mount options.
//! A workload is prepared, the volume is mounted anew (its caches go with the mount), and the
//! disk's counters are taken before and after: up to the end of one sync, and up to the end of
//! unmounting, which shows the work that a file system has put off.
//!
//! | module | what it holds |
//! |---|---|
//! | `workload` | what is done: [`Workload`] |
//! | `sizes` | sizes and contents of files |
//! | `system` | the file systems and their volumes: [`System`] |
//! | `memory` | a machine with less memory |
//! | `machine` | loop devices, servers, the limit of dirty memory, signals: taken and given back |

mod error;
mod machine;
mod memory;
mod sizes;
mod system;
mod workload;

use std::path::{Path, PathBuf};
use std::process::Command;

use moafs_disk::probe::trace::Counters;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

pub use error::PeersError;
pub use machine::{Interrupt, SCHEDULER};
pub use system::System;
pub use workload::Workload;

use crate::drive::Model;
use crate::peers::error::Result;
use crate::peers::machine::DirtyLimit;
use crate::peers::memory::MemoryGroup;
use crate::peers::sizes::Contents;
use crate::peers::system::Volume;
use crate::peers::workload::Place;
use crate::stats::Stats;

/// Cache of our daemon in bytes while memory is not limited.
const CACHE_BYTES: u64 = 256 << 20;
/// Share of limited memory that our daemon's cache gets, in percent: the rest is for the kernel's
/// own cache, and the daemon's buffers.
const CACHE_PERCENT: u64 = 60;
/// Largest share of its cache that our daemon lets be dirty, in percent.
const DIRTY_PERCENT_MAX: u64 = 90;

/// The file systems and workloads to compare, and their conditions.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `moafs` program, which serves disks and mounts.
    pub program: PathBuf,
    /// The drive under each of them.
    pub model: Model,
    /// Bytes of the drive that are used.
    pub bytes: u64,
    /// File systems to compare.
    pub systems: Vec<System>,
    /// Workloads to run on each of them.
    pub workloads: Vec<Workload>,
    /// Scale of the workloads; 1 is full size.
    pub scale: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Modelled time per wall time; unpaced if `None`.
    pub pace: Option<f64>,
    /// Limit of dirty memory in bytes, the same for all file systems.
    pub dirty_bytes: u64,
    /// Memory in bytes for everything that a workload and its file system keep, caches included;
    /// `None`: unlimited.
    pub memory_bytes: Option<u64>,
}

/// One workload on one file system.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The file system under test.
    pub system: System,
    /// The workload that ran on it.
    pub workload: Workload,
    /// The disk's counters from the first call to the end of the sync.
    pub synced: Stats,
    /// The disk's counters from the first call to the end of unmounting.
    pub unmounted: Stats,
    /// Bytes of file data that the disk had to move.
    pub bytes: u64,
    /// Requests of our daemon until the sync, by kind of data; `None` for other file systems.
    pub kinds: Option<Counters>,
}

impl Plan {
    /// Returns the mount options that give our daemon as much dirty memory as the kernel has. Its
    /// cache is its share of limited memory, or as large as the dirty memory needs.
    pub fn moafs_options(&self) -> String {
        let share = self.memory_bytes.map_or(CACHE_BYTES, |bytes| bytes / 100 * CACHE_PERCENT);
        let cache = share.max(self.dirty_bytes * 100 / DIRTY_PERCENT_MAX + 1);
        let percent = (self.dirty_bytes * 100 / cache).clamp(1, DIRTY_PERCENT_MAX);
        format!("cache={cache},dirty={percent}")
    }

    fn disk_command(&self, dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["simdisk", "--daemon", "--model", self.model.name(), "--size", &self.bytes.to_string()]);
        for assignment in self.model.set_parameters() {
            command.args(["--set", assignment]);
        }
        if let Some(factor) = self.pace {
            command.args(["--paced", &factor.to_string()]);
        }
        command.arg("--").arg(dir);
        command
    }

    /// Runs every workload on every file system. `progress` is told what begins.
    ///
    /// # Errors
    /// Fails if something is missing here, a tool fails, the disk is full, or a signal came. In these
    /// cases everything is also unmounted, detached and restored.
    pub fn run(
        &self,
        interrupt: &Interrupt,
        mut progress: impl FnMut(Workload, System),
    ) -> Result<Vec<Measured>, PeersError> {
        let makers = self.systems.iter().filter_map(|system| system.maker());
        machine::check_needs(&makers.chain(["losetup"]).collect::<Vec<_>>())?;
        let contents = Contents::new(&mut Pcg64Mcg::seed_from_u64(self.seed));
        let _limit = DirtyLimit::set(self.dirty_bytes)?;
        let mut measured = Vec::new();
        for &workload in &self.workloads {
            for &system in &self.systems {
                progress(workload, system);
                let one = self.measure(workload, system, &contents, interrupt);
                measured.push(one.map_err(|error| self.explain(error, workload, system))?);
            }
        }
        Ok(measured)
    }

    fn measure(
        &self,
        workload: Workload,
        system: System,
        contents: &Contents,
        interrupt: &Interrupt,
    ) -> Result<Measured> {
        interrupt.check()?;
        // Made before the volume, so that it is dropped after every process of the volume has left
        // it.
        let group = self.memory_bytes.map(MemoryGroup::new).transpose()?;
        let mut volume = Volume::new(self, system)?;
        let root = volume.dir.clone();
        let place = Place { root: &root, scale: self.scale, seed: self.seed, contents, interrupt };
        workload.prepare(&place)?;
        volume.unmount()?;
        // The disk's server stays outside: its bytes are not the workload's memory.
        let _inside = group.as_ref().map(MemoryGroup::enter).transpose()?;
        volume.mount()?;
        let kinds_before = volume.kinds()?;
        let before = volume.disk_stats()?;
        let bytes = workload.run(&place)?;
        volume.sync()?;
        let synced = volume.disk_stats()?.since(&before);
        let kinds = kinds_before.zip(volume.kinds()?).map(|(before, after)| after.since(&before));
        volume.unmount()?;
        let unmounted = volume.disk_stats()?.since(&before);
        Ok(Measured { system, workload, synced, unmounted, bytes, kinds })
    }

    fn explain(&self, error: PeersError, workload: Workload, system: System) -> PeersError {
        if !error.is_full() {
            return error;
        }
        PeersError::Full { system: system.name(), workload: workload.name(), disk_bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_daemon_gets_the_same_dirty_memory() {
        let model = Model::load("st3160812as", &[]).unwrap();
        let plan = |dirty_bytes, memory_bytes| Plan {
            program: "moafs".into(),
            model: model.clone(),
            bytes: 1 << 30,
            systems: Vec::new(),
            workloads: Vec::new(),
            scale: 1.0,
            seed: 1,
            pace: None,
            dirty_bytes,
            memory_bytes,
        };
        assert_eq!(plan(64 << 20, None).moafs_options(), "cache=268435456,dirty=25");
        assert_eq!(plan(900 << 20, None).moafs_options(), "cache=1048576001,dirty=89");
        assert_eq!(plan(48 << 20, Some(256 << 20)).moafs_options(), "cache=161061240,dirty=31");
    }
}
