//! The Linux kernel as a judge: it mounts the same image through a loop device.
//!
//! A mount is removed when its guard is dropped, also if a test fails.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::tools;

/// The largest block the kernel's drivers mount everywhere: a page.
pub const BLOCK_BYTES_MAX: u32 = 4096;

/// Longest time that a mount may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most loop devices in a row that may have been left read-only.
const READ_ONLY_DEVICES_MAX: usize = 8;

/// A mounted image.
#[derive(Debug)]
pub struct KernelMount {
    dir: tempfile::TempDir,
    mounted: bool,
}

impl KernelMount {
    /// Mounts `image` as `kind` (`ext2`) with `options` (`ro,loop` and more). `Ok(None)` if this process may not mount
    /// at all.
    ///
    /// mount(8) makes a read-only mount, with an exit code of 0, of a loop device that a killed run has left read-only.
    /// Such a device is made writable again.
    ///
    /// # Errors
    /// The message of `mount`, or that the mount is read-only without `ro`.
    pub fn new(image: &Path, kind: &str, options: &str) -> io::Result<Option<KernelMount>> {
        if !may_mount() {
            return Ok(None);
        }
        let changes = !options.split(',').any(|option| option == "ro");
        for _ in 0..READ_ONLY_DEVICES_MAX {
            let mounted = KernelMount::mount(image, kind, options)?;
            let Some(device) = mounted.read_only_device().filter(|_| changes) else { return Ok(Some(mounted)) };
            mounted.unmount()?;
            drop(tools::run("blockdev", &["--setrw", &device]));
        }
        Err(io::Error::other(format!("{} is mounted read-only, though `ro` was not asked for", image.display())))
    }

    fn mount(image: &Path, kind: &str, options: &str) -> io::Result<KernelMount> {
        let dir = tempfile::Builder::new().prefix("moafs-kernel-").tempdir()?;
        let options = format!("loop,{options}");
        let point = dir.path().to_str().expect("temporary paths are text").to_owned();
        let image = image.to_str().expect("test paths are text");
        let output = tools::run("mount", &["-t", kind, "-o", &options, image, &point])
            .ok_or_else(|| io::Error::other("mount is not installed"))?;
        if !output.status.success() {
            return Err(io::Error::other(tools::text(&output)));
        }
        Ok(KernelMount { dir, mounted: true })
    }

    /// Returns the device of a mount that is read-only.
    fn read_only_device(&self) -> Option<String> {
        let table = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mut mounts = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let here = mounts.find(|fields| fields.get(1).is_some_and(|point| Path::new(point) == self.path()))?;
        let is_read_only = here.get(3)?.split(',').any(|option| option == "ro");
        is_read_only.then(|| here[0].to_owned())
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a path below the root.
    pub fn join(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Unmounts. A process that another test is just starting holds copies of this one's open files for a moment, so a
    /// busy mount is tried again.
    ///
    /// # Errors
    /// The last message of `umount`.
    pub fn unmount(mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = tools::run("umount", &[self.dir.path().to_str().expect("temporary paths are text")])
                .ok_or_else(|| io::Error::other("umount is not installed"))?;
            if output.status.success() {
                self.mounted = false;
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(tools::text(&output)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.mounted {
            // A failure cannot be handled here; the lazy way works while files are open as well.
            drop(tools::run("umount", &["-l", self.dir.path().to_str().expect("temporary paths are text")]));
        }
    }
}

/// Returns true if this process may mount: root, and a kernel with loop devices.
pub fn may_mount() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    let root = unsafe { libc::geteuid() } == 0;
    root && Path::new("/dev/loop-control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_device_that_was_left_read_only_is_made_writable() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8 << 20).unwrap();
        let path = image.path().to_str().unwrap();
        let said = |name, arguments: &[&str]| tools::run(name, arguments).map(|output| tools::text(&output));
        let (Some(_), Some(device)) = (said("mke2fs", &["-q", path]), said("losetup", &["-f"])) else {
            return eprintln!("SKIPPED: mke2fs or losetup is not installed");
        };
        if !may_mount() {
            return eprintln!("SKIPPED: this process may not mount");
        }
        // Most likely the device that the mount takes: others may be quicker.
        said("blockdev", &["--setro", device.trim()]);
        let mounted = KernelMount::new(image.path(), "ext2", "rw");
        said("blockdev", &["--setrw", device.trim()]);
        let mounted = mounted.unwrap().expect("it may be mounted");
        std::fs::write(mounted.join("file"), b"contents").unwrap();
        mounted.unmount().unwrap();
    }
}
