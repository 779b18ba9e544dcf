//! The place of image files: in memory, or on the disk below a directory.
//!
//! All systems of a comparison have sparse image files on the same backing. The cost of the backing
//! is then the same for all; the comparison shows how a system uses it (how many requests, how
//! large, how often it waits).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::error::{BenchError, Result};

/// The kind of storage under image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackingKind {
    /// Files of a tmpfs: no device, so that the file systems' own costs show.
    Tmpfs,
    /// Files of the file system that the scratch directory lies on.
    Disk,
}

impl BackingKind {
    /// Returns the name used in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BackingKind::Tmpfs => "tmpfs",
            BackingKind::Disk => "disk",
        }
    }
}

/// A place for image files and mount points, removed with everything in it.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Kind of storage that the place is made of.
    pub(crate) kind: BackingKind,
    tmpfs: Option<PathBuf>,
    scratch: TempDir,
}

impl Backing {
    /// Makes a new place below `dir`.
    pub(crate) fn new(kind: BackingKind, dir: &Path) -> Result<Backing> {
        let scratch = tempfile::Builder::new().prefix("moafs-bench-").tempdir_in(dir);
        let scratch = scratch.map_err(BenchError::host("making a scratch directory in", dir))?;
        let mut backing = Backing { kind, tmpfs: None, scratch };
        let images = backing.images();
        std::fs::create_dir(&images).map_err(BenchError::host("making", &images))?;
        if kind == BackingKind::Tmpfs {
            mount_tmpfs(&images)?;
            backing.tmpfs = Some(images);
        }
        Ok(backing)
    }

    fn images(&self) -> PathBuf {
        self.scratch.path().join("images")
    }

    /// Returns the path of an image file.
    pub(crate) fn image(&self, name: &str) -> PathBuf {
        self.images().join(name)
    }

    /// Makes a new, empty mount point.
    pub(crate) fn mount_point(&self, name: &str) -> Result<PathBuf> {
        let dir = self.scratch.path().join(name);
        std::fs::create_dir(&dir).map_err(BenchError::host("making", &dir))?;
        Ok(dir)
    }

    /// Returns the type of the file system that image files lie on, as /proc/self/mountinfo names
    /// it.
    pub(crate) fn file_system(&self) -> String {
        let images = self.images();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(mount_of_line);
        // Of two mounts at the same place the later one covers the earlier.
        let holds = mounts.filter(|(target, _)| images.starts_with(target));
        holds.max_by_key(|(target, _)| target.len()).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
    }
}

/// Returns the mount point and the type in a line of mountinfo.
fn mount_of_line(line: &str) -> Option<(&str, &str)> {
    let (mount, source) = line.split_once(" - ")?;
    Some((mount.split(' ').nth(4)?, source.split(' ').next()?))
}

fn mount_tmpfs(dir: &Path) -> Result<()> {
    let size = c"size=60%";
    let target = CString::new(dir.as_os_str().as_bytes()).map_err(BenchError::host("naming", dir))?;
    rustix::mount::mount(c"tmpfs", &target, c"tmpfs", MountFlags::empty(), size)
        .map_err(BenchError::host("mounting a tmpfs on", dir))
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(tmpfs) = &self.tmpfs {
            // Something may still be writing to a file there: it goes when that ends.
            let _ = rustix::mount::unmount(tmpfs, UnmountFlags::DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backing_leaves_nothing_behind() {
        let outer = tempfile::tempdir().unwrap();
        let backing = Backing::new(BackingKind::Disk, outer.path()).unwrap();
        std::fs::write(backing.image("a"), "x").unwrap();
        assert_ne!(backing.file_system(), "unknown");
        drop(backing);
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext4 /dev/root rw,errors=continue";
        assert_eq!(mount_of_line(line), Some(("/mnt2", "ext4")));
        assert_eq!(mount_of_line("nothing"), None);
    }
}
