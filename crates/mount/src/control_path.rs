//! [`ControlPath`]: a control file of a mount, as another process opens it.
//!
//! What lies below `.moafs` must be the daemon's, never a file of the volume: the maker of an image would choose what a
//! command of root writes to. So no link is followed, and everything opened has an inode number of the control
//! directory, on the file system of the mount.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat};

use crate::control::CONTROL_NAME;
use crate::nodes::CONTROL_FIRST;

/// Name that the file is mounted on that the kernel can swap to.
pub(crate) const SWAPFILE_NAME: &str = "swapfile";

/// The path of a control file of a mount.
#[derive(Debug, Clone)]
pub struct ControlPath {
    target: PathBuf,
    name: &'static str,
}

impl ControlPath {
    /// Returns the path of the control file `name` of the mount at `target`.
    pub fn new(target: &Path, name: &'static str) -> ControlPath {
        ControlPath { target: target.to_owned(), name }
    }

    /// Returns the mount point.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the name in the control directory.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the path itself, for messages.
    pub fn path(&self) -> PathBuf {
        in_control_directory(&self.target, self.name)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The host's, also if what is there is no control file.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.open(OFlags::RDONLY)?.read_to_end(&mut text)?;
        Ok(text)
    }

    /// Opens the file for commands.
    ///
    /// # Errors
    /// As [`ControlPath::read`].
    pub fn open_for_commands(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY)
    }

    fn open(&self, access: OFlags) -> io::Result<File> {
        let directory = Directory::open(&self.target)?;
        // A pipe would keep the caller waiting.
        let (file, stat) = directory.open_file(self.name, access | OFlags::NONBLOCK)?;
        if directory.holds(&stat) { Ok(file) } else { Err(foreign(&self.path())) }
    }
}

/// Opens the file that the kernel can swap to: what is mounted on its name in the control directory of the volume
/// mounted at `target`.
///
/// # Errors
/// The host's, also if nothing is mounted there.
pub(crate) fn open_swapfile(target: &Path) -> io::Result<File> {
    let directory = Directory::open(target)?;
    let (file, stat) = directory.open_file(SWAPFILE_NAME, OFlags::RDWR)?;
    if stat.st_dev == directory.stat.st_dev { Err(foreign(&swapfile(target))) } else { Ok(file) }
}

/// Checks that the swap's file can be mounted on its name: that is the control directory's, and nothing covers it.
///
/// # Errors
/// The host's, also if another file is there.
pub(crate) fn check_cover(target: &Path) -> io::Result<()> {
    let directory = Directory::open(target)?;
    let (_, stat) = directory.open_file(SWAPFILE_NAME, OFlags::PATH)?;
    if directory.holds(&stat) { Ok(()) } else { Err(foreign(&swapfile(target))) }
}

/// Returns the path of the file that the kernel can swap to, of the volume mounted at `target`.
pub fn swapfile(target: &Path) -> PathBuf {
    in_control_directory(target, SWAPFILE_NAME)
}

fn in_control_directory(target: &Path, name: &str) -> PathBuf {
    target.join(std::ffi::OsStr::from_bytes(CONTROL_NAME)).join(name)
}

fn foreign(path: &Path) -> io::Error {
    io::Error::other(format!("{} is not a control file of moafs", path.display()))
}

/// The control directory of a mount.
struct Directory {
    fd: OwnedFd,
    stat: Stat,
}

impl Directory {
    fn open(target: &Path) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = open(target, flags, Mode::empty())?;
        let fd = openat(&mount, CONTROL_NAME, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&fd)?;
        let is_ours = stat.st_dev == fstat(&mount)?.st_dev && stat.st_ino >= CONTROL_FIRST;
        if is_ours { Ok(Directory { fd, stat }) } else { Err(foreign(&in_control_directory(target, ""))) }
    }

    /// Opens a regular file in it.
    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<(File, Stat)> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other(format!("{name} is not a regular file")));
        }
        Ok((File::from(fd), stat))
    }

    /// Returns true for the attributes of a file of its own.
    fn holds(&self, stat: &Stat) -> bool {
        stat.st_dev == self.stat.st_dev && stat.st_ino >= CONTROL_FIRST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_daemon_s_is_neither_read_nor_written_nor_covered() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "{}").unwrap();
        let (target, control) = (dir.path().join("mount"), dir.path().join("mount/.moafs"));
        std::fs::create_dir_all(&control).unwrap();
        std::fs::write(control.join("plain"), "{}").unwrap();
        std::os::unix::fs::symlink(&outside, control.join("link")).unwrap();
        std::os::unix::fs::symlink(&outside, control.join(SWAPFILE_NAME)).unwrap();
        let refused = || {
            for name in ["plain", "link"] {
                let path = ControlPath::new(&target, name);
                assert!(path.read().is_err() && path.open_for_commands().is_err(), "{name}");
            }
            assert!(check_cover(&target).is_err() && open_swapfile(&target).is_err());
        };
        refused();
        std::fs::rename(&control, dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &control).unwrap();
        refused();
    }
}
