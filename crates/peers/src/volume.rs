//! A volume on a modelled disk of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use moafs_disk::probe::trace::Counters;
use moafs_simdisk::{DISK, Report, STATS, Stats};
use rustix::mount::{MountFlags, UnmountFlags};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::error::{PeersError, Result};
use crate::machine::{self, Loop, Server};
use crate::plan::Plan;
use crate::system::System;

/// A volume on a modelled disk of its own. Dropping it takes everything down, the inner things
/// first.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The file system of the volume.
    pub(crate) system: System,
    /// Directory that the volume is mounted on.
    pub(crate) dir: PathBuf,
    /// Directory in which the disk is served.
    disk_dir: PathBuf,
    program: PathBuf,
    moafs_options: String,
    mounted: bool,
    device: Loop,
    _server: Server,
    _scratch: TempDir,
}

impl Volume {
    /// Serves a new disk, makes an empty volume on it, and mounts it.
    pub(crate) fn new(plan: &Plan, system: System) -> Result<Volume> {
        let scratch = tempfile::Builder::new().prefix("moafs-peers-").tempdir();
        let scratch = scratch.map_err(PeersError::host("making a directory in", &std::env::temp_dir()))?;
        let [disk_dir, dir] = ["disk", "mnt"].map(|name| scratch.path().join(name));
        for dir in [&disk_dir, &dir] {
            fs::create_dir(dir).map_err(PeersError::host("making", dir))?;
        }
        let server = Server::start(&mut plan.disk_command(&disk_dir), &disk_dir)?;
        let device = Loop::attach(&disk_dir.join(DISK), plan.model.transfer_bytes_max())?;
        system.make(&plan.program, &device.device)?;
        let mut volume = Volume {
            system,
            dir,
            disk_dir,
            program: plan.program.clone(),
            moafs_options: plan.moafs_options(),
            mounted: false,
            device,
            _server: server,
            _scratch: scratch,
        };
        volume.mount()?;
        Ok(volume)
    }

    /// Mounts the volume, with nothing of it in any cache: those of file systems, of the device and
    /// of our daemon went with the mount before.
    pub(crate) fn mount(&mut self) -> Result<()> {
        let device = &self.device.device;
        if self.system.is_ours() {
            let mut command = Command::new(&self.program);
            machine::run(command.args(["mount", "-o", &self.moafs_options]).arg(device).arg(&self.dir))?;
        } else {
            let mounted = rustix::mount::mount(device, &self.dir, self.system.name(), MountFlags::empty(), None);
            mounted.map_err(PeersError::host("mounting", device))?;
        }
        self.mounted = true;
        Ok(())
    }

    /// Unmounts the volume and waits until everything is on the disk.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if self.system.is_ours() {
            machine::run(Command::new(&self.program).arg("umount").arg(&self.dir))?;
        } else {
            rustix::mount::unmount(&self.dir, UnmountFlags::empty())
                .map_err(PeersError::host("unmounting", &self.dir))?;
        }
        self.mounted = false;
        Ok(())
    }

    /// Makes everything durable, as sync(1) would for this volume.
    pub(crate) fn sync(&self) -> Result<()> {
        let dir = File::open(&self.dir).map_err(PeersError::host("opening", &self.dir))?;
        rustix::fs::syncfs(&dir).map_err(PeersError::host("syncing", &self.dir))
    }

    /// Reads the disk's counters.
    pub(crate) fn disk_stats(&self) -> Result<Stats> {
        let report: Report = read_json(&self.disk_dir.join(STATS))?;
        Ok(report.stats)
    }

    /// Returns the counters of requests that our daemon sent to the device, by kind of data; `None`
    /// for other file systems.
    pub(crate) fn kinds(&self) -> Result<Option<Counters>> {
        if !self.system.is_ours() {
            return Ok(None);
        }
        let path = self.dir.join(".moafs/stats");
        let stats: Value = read_json(&path)?;
        let counters = Counters::deserialize(&stats["disk"]);
        counters.map(Some).map_err(PeersError::host("understanding", &path))
    }
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(PeersError::host("reading", path))?;
    serde_json::from_slice(&text).map_err(PeersError::host("understanding", path))
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            // A lazy unmount takes it out of the tree at least; the mount ends when its last user
            // leaves.
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}
