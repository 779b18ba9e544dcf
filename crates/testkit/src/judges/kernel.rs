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
    /// # Errors
    /// The message of `mount`.
    pub fn new(image: &Path, kind: &str, options: &str) -> io::Result<Option<KernelMount>> {
        if !may_mount() {
            return Ok(None);
        }
        let dir = tempfile::Builder::new().prefix("moafs-kernel-").tempdir()?;
        let options = format!("loop,{options}");
        let point = dir.path().to_str().expect("temporary paths are text").to_owned();
        let image = image.to_str().expect("test paths are text");
        let output = tools::run("mount", &["-t", kind, "-o", &options, image, &point])
            .ok_or_else(|| io::Error::other("mount is not installed"))?;
        if !output.status.success() {
            return Err(io::Error::other(tools::text(&output)));
        }
        Ok(Some(KernelMount { dir, mounted: true }))
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
