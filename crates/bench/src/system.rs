//! The file systems that are compared: making, mounting, cold mounting and unmounting their
//! volumes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::fs::Advice;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;

use crate::backing::Backing;
use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::process::{self, Programs, Server};

/// The longest that a daemon may take to mount, or to write everything when it is unmounted.
const PATIENCE: Duration = Duration::from_secs(120);

/// A file system of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// moafs on a volume in an image file ([`Setup::format`]).
    Moafs,
    /// The kernel's ext4 on a loop device over an image file.
    Ext4,
    /// The null file system: in memory, behind our own transport. The ceiling of that transport.
    Null,
    /// fuse2fs of e2fsprogs, on an ext2 volume in an image file.
    Fuse2fs,
}

impl System {
    /// Returns the name used in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Moafs => "moafs",
            System::Ext4 => "ext4",
            System::Null => "null",
            System::Fuse2fs => "fuse2fs",
        }
    }
}

/// The format of the volumes on which moafs is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Blocks in groups, written in place.
    Ext2,
    /// The log-structured format F2FS.
    F2fs,
}

impl Format {
    /// Returns the arguments for `moafs mkfs`.
    fn mkfs_arguments(self) -> &'static [&'static str] {
        match self {
            Format::Ext2 => &["-t", "ext2", "-b", "4096"],
            Format::F2fs => &["-t", "f2fs"],
        }
    }

    /// Returns the command of the format's own tool.
    fn foreign_mkfs(self) -> Command {
        match self {
            Format::Ext2 => mke2fs("ext2"),
            Format::F2fs => {
                let mut command = Command::new("mkfs.f2fs");
                command.args(["-q", "-f"]);
                command
            }
        }
    }
}

/// The path from the kernel's ext4 to its image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoopMode {
    /// Through the host's page cache, as `mount -o loop` does.
    Buffered,
    /// Around the host's page cache (`losetup --direct-io=on`), where the backing can.
    Direct,
}

/// The settings that all volumes of a run share.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Programs that are measured: `moafs` and the null file system.
    pub(crate) programs: Programs,
    /// Transport of both moafs and the null file system.
    pub(crate) transport: String,
    /// The format of moafs's volumes.
    pub(crate) format: Format,
    /// Further mount options of moafs.
    pub(crate) moafs_options: String,
    /// Path from ext4 to its image.
    pub(crate) ext4_loop: LoopMode,
    /// The request to stop.
    pub(crate) interrupt: Interrupt,
    /// Transports that were negotiated, with the program's name: they show the choice that `auto`
    /// made.
    pub(crate) negotiated: RefCell<BTreeSet<String>>,
}

impl Setup {
    fn note_transport(&self, system: System, transport: &str) {
        self.negotiated.borrow_mut().insert(format!("{} {}", system.name(), transport.to_lowercase()));
    }
}

/// A mounted volume; unmounted and removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Volume {
    /// File system of the volume.
    pub(crate) system: System,
    /// Directory that the volume is mounted on.
    pub(crate) dir: PathBuf,
    setup: Rc<Setup>,
    image: PathBuf,
    /// Mount options of moafs for this volume only.
    options: String,
    mounted: bool,
    server: Option<Server>,
}

impl Volume {
    /// Makes a new, empty volume of `bytes` and mounts it.
    pub(crate) fn new(setup: &Rc<Setup>, backing: &Backing, system: System, bytes: u64) -> Result<Volume> {
        let mut volume = Volume::prepare(setup, backing, system)?;
        volume.format(bytes)?;
        volume.mount()?;
        Ok(volume)
    }

    /// Makes a mount point and chooses an image path for a volume that is yet to be formatted and
    /// mounted.
    pub(crate) fn prepare(setup: &Rc<Setup>, backing: &Backing, system: System) -> Result<Volume> {
        setup.interrupt.check()?;
        Ok(Volume {
            system,
            dir: backing.mount_point(system.name())?,
            setup: Rc::clone(setup),
            image: backing.image(system.name()),
            options: String::new(),
            mounted: false,
            server: None,
        })
    }

    /// Sets the mount options of moafs for this volume, from its next mount on.
    pub(crate) fn set_options(&mut self, options: String) {
        self.options = options;
    }

    /// Makes the volume, with its own tool.
    pub(crate) fn format(&self, bytes: u64) -> Result<()> {
        let mut command = match self.system {
            System::Null => return Ok(()),
            System::Ext4 => mke2fs("ext4"),
            System::Fuse2fs => mke2fs("ext2"),
            System::Moafs => {
                let mut command = Command::new(&self.setup.programs.moafs);
                command.args(["mkfs", "-q", "-F"]).args(self.setup.format.mkfs_arguments());
                command
            }
        };
        self.make_image(bytes)?;
        process::run(command.arg(&self.image)).map(drop)
    }

    /// Makes the volume with the format's own tool: for ext2, mke2fs leaves inode tables as holes
    /// of the image. The kernel's ext4 mounts the same ext2 volume; it cannot mount F2FS and gets a
    /// volume of its own.
    pub(crate) fn format_sparse(&self, bytes: u64) -> Result<()> {
        self.make_image(bytes)?;
        let mut command = match (self.system, self.setup.format) {
            (System::Ext4, Format::F2fs) => mke2fs("ext4"),
            (_, format) => format.foreign_mkfs(),
        };
        process::run(command.arg(&self.image)).map(drop)
    }

    fn make_image(&self, bytes: u64) -> Result<()> {
        let file = File::create(&self.image).map_err(BenchError::host("making", &self.image))?;
        file.set_len(bytes).map_err(BenchError::host("sizing", &self.image))
    }

    /// Mounts the volume and returns the time until the mount could be used.
    pub(crate) fn mount(&mut self) -> Result<Duration> {
        // From here on there may be something to unmount, even if mounting fails.
        self.mounted = true;
        let start = Instant::now();
        match self.system {
            System::Moafs => self.mount_moafs()?,
            System::Ext4 => self.mount_ext4()?,
            System::Null => self.mount_null()?,
            System::Fuse2fs => self.mount_fuse2fs()?,
        }
        let elapsed = start.elapsed();
        self.check_mounted()?;
        Ok(elapsed)
    }

    /// Checks the mount: without it the file system below the mount point would be measured.
    fn check_mounted(&self) -> Result<()> {
        if !is_mount_point(&self.dir)? {
            return Err(BenchError::program(self.system.name(), "said that it is mounted, and is not"));
        }
        if self.system == System::Moafs {
            let stats = self.stats()?;
            self.setup.note_transport(self.system, stats["transport"].as_str().unwrap_or("unknown"));
        }
        Ok(())
    }

    fn mount_moafs(&mut self) -> Result<()> {
        let mut options = format!("transport={}", self.setup.transport);
        for more in [&self.setup.moafs_options, &self.options].into_iter().filter(|more| !more.is_empty()) {
            options += ",";
            options += more;
        }
        let mut command = process::server_command(&self.setup.programs.moafs);
        process::run(command.args(["mount", "-o", &options]).arg(&self.image).arg(&self.dir)).map(drop)
    }

    fn mount_ext4(&mut self) -> Result<()> {
        let direct = if self.setup.ext4_loop == LoopMode::Direct { "on" } else { "off" };
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", &format!("--direct-io={direct}")]);
        let device = process::run(losetup.arg(&self.image))?.trim().to_owned();
        let mounted = rustix::mount::mount(device.as_str(), &self.dir, c"ext4", MountFlags::empty(), None);
        // While it is mounted, this means: detach when it is unmounted.
        let detached = process::run(Command::new("losetup").args(["--detach", &device]));
        mounted.map_err(BenchError::host("mounting ext4 on", &self.dir))?;
        detached.map(drop)
    }

    fn mount_null(&mut self) -> Result<()> {
        let mut command = process::server_command(&self.setup.programs.nullfs);
        command.arg(&self.dir).args(["--transport", &self.setup.transport]).stdout(Stdio::piped());
        let transport = self.server.insert(Server::spawn(&mut command)?).wait_for_line("ready")?;
        self.setup.note_transport(self.system, &transport);
        Ok(())
    }

    fn mount_fuse2fs(&mut self) -> Result<()> {
        let mut command = process::server_command("fuse2fs");
        command.arg(&self.image).arg(&self.dir).arg("-f").stdout(Stdio::null()).stderr(Stdio::null());
        let dir = self.dir.clone();
        let server = self.server.insert(Server::spawn(&mut command)?);
        server.wait_until(PATIENCE, move || is_mount_point(&dir))
    }

    /// Unmounts the volume and waits until everything is in the image.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        if self.system == System::Moafs {
            process::run(Command::new(&self.setup.programs.moafs).arg("umount").arg(&self.dir))?;
        } else {
            let flags = UnmountFlags::empty();
            rustix::mount::unmount(&self.dir, flags).map_err(BenchError::host("unmounting", &self.dir))?;
        }
        self.mounted = false;
        self.server.take().map_or(Ok(()), |mut server| server.wait_for_end(PATIENCE))
    }

    /// Mounts the volume anew, with nothing of it in any cache. The null file system keeps
    /// everything in memory, so it stays mounted.
    pub(crate) fn remount_cold(&mut self) -> Result<()> {
        if self.system == System::Null {
            return Ok(());
        }
        self.unmount()?;
        let image = File::open(&self.image).map_err(BenchError::host("opening", &self.image))?;
        image.sync_all().map_err(BenchError::host("syncing", &self.image))?;
        // On a tmpfs it changes nothing: there the image is the memory.
        rustix::fs::fadvise(&image, 0, None, Advice::DontNeed)
            .map_err(BenchError::host("dropping cached pages of", &self.image))?;
        self.mount().map(drop)
    }

    /// Lets the file system write the data that it put off, so that it does not do so while another
    /// one is measured.
    pub(crate) fn settle(&self) -> Result<()> {
        self.setup.interrupt.check()?;
        let dir = File::open(&self.dir).map_err(BenchError::host("opening", &self.dir))?;
        rustix::fs::syncfs(&dir).map_err(BenchError::host("syncing", &self.dir))
    }

    /// Reads the counters of moafs.
    pub(crate) fn stats(&self) -> Result<Value> {
        let path = self.dir.join(".moafs/stats");
        let text = std::fs::read(&path).map_err(BenchError::host("reading", &path))?;
        serde_json::from_slice(&text).map_err(BenchError::host("understanding", &path))
    }

    /// Returns the id of the process that serves the volume; the kernel's file systems have none.
    pub(crate) fn daemon(&self) -> Result<Option<u64>> {
        match (&self.server, self.system) {
            (Some(server), _) => Ok(Some(server.pid())),
            (None, System::Moafs) => Ok(self.stats()?["pid"].as_u64()),
            (None, _) => Ok(None),
        }
    }

    /// Returns the request to stop.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.setup.interrupt
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            // A lazy unmount takes it out of the tree at least; its server ends when the last user
            // leaves, or with `server`.
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
        // The image is missing with the null file system, and after a failure to make it.
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_dir(&self.dir);
    }
}

fn mke2fs(kind: &str) -> Command {
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", kind, "-b", "4096"]);
    command
}

/// Returns true if a file system is mounted on `dir`. Waits for a FUSE mount's daemon.
fn is_mount_point(dir: &Path) -> Result<bool> {
    let device = |path: &Path| {
        let stat = rustix::fs::stat(path).map_err(BenchError::host("looking at", path));
        stat.map(|stat| stat.st_dev)
    };
    Ok(device(dir)? != device(dir.parent().unwrap_or(dir))?)
}
