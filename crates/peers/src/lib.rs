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
//! | `plan` | what is compared, and its conditions: [`Plan`] |
//! | `contents` | contents of files |
//! | `system`, `volume` | the file systems: [`System`]; their volumes |
//! | `memory` | a machine with less memory |
//! | `machine` | loop devices, servers, the limit of dirty memory, signals: taken and given back |

#![forbid(unsafe_code)]

mod contents;
mod error;
mod machine;
mod memory;
mod plan;
mod system;
mod volume;
mod workload;

use moafs_disk::probe::trace::Counters;
use moafs_simdisk::Stats;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

pub use error::PeersError;
pub use machine::{Interrupt, SCHEDULER};
pub use plan::Plan;
pub use system::System;
pub use workload::Workload;

use crate::contents::Contents;
use crate::error::Result;
use crate::machine::DirtyLimit;
use crate::memory::MemoryGroup;
use crate::volume::Volume;
use crate::workload::Environment;

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
        let env = Environment { root: &root, scale: self.scale, seed: self.seed, contents, interrupt };
        workload.prepare(&env)?;
        volume.unmount()?;
        // The disk's server stays outside: its bytes are not the workload's memory.
        let _inside = group.as_ref().map(MemoryGroup::enter).transpose()?;
        volume.mount()?;
        let kinds_before = volume.kinds()?;
        let before = volume.disk_stats()?;
        let bytes = workload.run(&env)?;
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
