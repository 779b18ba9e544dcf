//! The file systems and workloads that are compared, and their conditions.

use std::path::{Path, PathBuf};
use std::process::Command;

use moafs_simdisk::Model;

use crate::system::System;
use crate::workload::Workload;

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

impl Plan {
    /// Returns the mount options that give our daemon as much dirty memory as the kernel has. Its
    /// cache is its share of limited memory, or as large as the dirty memory needs.
    pub fn moafs_options(&self) -> String {
        let share = self.memory_bytes.map_or(CACHE_BYTES, |bytes| bytes / 100 * CACHE_PERCENT);
        let cache = share.max(self.dirty_bytes * 100 / DIRTY_PERCENT_MAX + 1);
        let percent = (self.dirty_bytes * 100 / cache).clamp(1, DIRTY_PERCENT_MAX);
        format!("cache={cache},dirty={percent}")
    }

    /// Returns the command that serves a disk in `dir`.
    pub(crate) fn disk_command(&self, dir: &Path) -> Command {
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
