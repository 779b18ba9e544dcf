//! Mounting and unmounting: by system calls as root, by `fusermount3` for other users.
//!
//! A mount is prepared first and attached to the tree when it is served ([`tree`] says why); `fusermount3` does both
//! at once. Once the mount exists, nothing here accesses it by its own path: the request would have to be answered by
//! this process.

mod common;
mod helper;
mod table;
mod tree;
mod watcher;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::mount::UnmountFlags;

use self::common::is_root;
use self::table::{DeviceId, device_mounted_at};
use self::watcher::Watcher;
use crate::error::MountError;
use crate::options::{MountFlags, MountKind, MountOptions};

/// A mount to be served through `dev`.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) dev: OwnedFd,
    /// The mount while it is not attached: it goes with this descriptor.
    pub(crate) tree: Option<OwnedFd>,
    pub(crate) mount: Mount,
}

/// A place in the tree for a mount.
#[derive(Debug)]
pub(crate) struct Mount {
    target: PathBuf,
    options: MountOptions,
    attached: OnceLock<Attached>,
}

/// A mount in the tree.
#[derive(Debug)]
struct Attached {
    /// Device number in the mount table, which identifies the mount.
    device: Option<DeviceId>,
    /// Takes the mount away if this process is killed.
    _watcher: Option<Watcher>,
}

/// Prepares a mount for `target`.
pub(crate) fn prepare(target: &Path, options: &MountOptions) -> Result<Prepared, MountError> {
    let at_target = |source| MountError::Target { target: target.to_owned(), source };
    let target = target.canonicalize().map_err(at_target)?;
    let root_mode = target.metadata().map_err(at_target)?.mode() & libc::S_IFMT;
    let mount = Mount { target, options: options.clone(), attached: OnceLock::new() };
    if is_root() {
        let dev = tree::open_device().map_err(MountError::OpenDevice)?;
        let tree = tree::make(dev.as_fd(), &mount.target, root_mode, options)?;
        return Ok(Prepared { dev, tree: Some(tree), mount });
    }
    if matches!(options.kind, MountKind::BlockDevice { .. }) {
        return Err(MountError::BlockDeviceNeedsRoot);
    }
    let dev = helper::mount(&mount.target, options)?;
    mount.note_attached()?;
    Ok(Prepared { dev, tree: None, mount })
}

impl Mount {
    /// Makes the mount visible. The mount of `fusermount3`, which has no tree, is so already.
    pub(crate) fn attach(&self, tree: Option<OwnedFd>) -> Result<(), MountError> {
        let Some(tree) = tree else { return Ok(()) };
        tree::attach(tree.as_fd(), &self.target)
            .map_err(|source| tree::refused(&self.target, &self.options, source))?;
        self.note_attached()
    }

    fn note_attached(&self) -> Result<(), MountError> {
        let device = device_mounted_at(&self.target).ok().flatten();
        let watcher = self.options.auto_unmount.then(|| self.watch(device)).transpose();
        let (watcher, watched) = match watcher {
            Ok(watcher) => (watcher, Ok(())),
            Err(error) => (None, Err(MountError::AutoUnmount(error))),
        };
        let newly = self.attached.set(Attached { device, _watcher: watcher });
        debug_assert!(newly.is_ok(), "a mount is attached once");
        watched.inspect_err(|_| {
            let _ = self.unmount(true);
        })
    }

    fn watch(&self, device: Option<DeviceId>) -> io::Result<Watcher> {
        let device = device.ok_or(io::ErrorKind::NotFound)?;
        let fields = table::fields_of(&self.target, device)?.ok_or(io::ErrorKind::NotFound)?;
        Watcher::start(&self.target, &fields)
    }

    /// Returns true if the topmost mount at the target is this mount.
    fn is_there(&self) -> bool {
        let Some(attached) = self.attached.get() else { return false };
        match (attached.device, device_mounted_at(&self.target)) {
            (Some(ours), Ok(there)) => there == Some(ours),
            _ => true,
        }
    }

    /// Unmounts; `lazily` takes it out of the tree even while it is in use.
    pub(crate) fn unmount(&self, lazily: bool) -> io::Result<Unmounted> {
        if self.is_there() { unmount(&self.target, lazily).map(|()| Unmounted::Now) } else { Ok(Unmounted::NotThere) }
    }

    /// Makes the mount read-only. Does nothing if it is not there.
    pub(crate) fn show_read_only(&self) -> io::Result<()> {
        if self.is_there() { tree::make_read_only(&self.target) } else { Ok(()) }
    }

    /// Returns the options of the mount that every file system knows, as they are now; `None` if it is not there.
    pub(crate) fn flags(&self) -> io::Result<Option<MountFlags>> {
        let device = self.attached.get().and_then(|attached| attached.device);
        device.map_or(Ok(None), |device| table::flags_of(&self.target, device))
    }

    /// Raises the read-ahead of the mount and, with the write-back cache, lifts the tight limit on dirty pages that
    /// FUSE mounts have by default. Without the permission everything works, only slower.
    pub(crate) fn tune(&self, writeback: bool) {
        let Some((major, minor)) = self.attached.get().and_then(|attached| attached.device) else { return };
        for suffix in ["", "-fuseblk"] {
            let bdi = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}{suffix}"));
            let set = |name: &str, value: &str| {
                let _ = std::fs::write(bdi.join(name), value);
            };
            if self.options.read_ahead_kb > 0 {
                set("read_ahead_kb", &self.options.read_ahead_kb.to_string());
            }
            if writeback {
                set("max_ratio", "100");
                set("strict_limit", "0");
            }
        }
    }
}

/// The outcome of an unmount that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount was on top at its mount point, and was taken away from there.
    Now,
    /// The mount was not on top there, and nothing was done. It is gone, or lives on elsewhere: below another mount, as
    /// a copy (`mount --bind`), or out of the tree with its open files.
    NotThere,
}

/// Changes the options that every file system knows of the mount at `target` (root only). Of options of access times,
/// the old ones stay if `flags` has none.
///
/// # Errors
/// `EBUSY` for a mount that is to be read-only while files are open for writing; `EINVAL` if `target` is no mount
/// point.
pub fn remount(target: &Path, flags: MountFlags) -> io::Result<()> {
    let bits = u32::try_from(flags.bits()).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(rustix::mount::mount_remount(target, rustix::mount::MountFlags::from_bits_retain(bits), "")?)
}

/// Returns the options of the topmost mount at `target` that every file system knows; `None` if nothing is mounted
/// there. `target` is an absolute path without symbolic links.
///
/// # Errors
/// The mount table cannot be read.
pub fn mount_flags(target: &Path) -> io::Result<Option<MountFlags>> {
    device_mounted_at(target)?.map_or(Ok(None), |device| table::flags_of(target, device))
}

/// Unmounts the topmost mount at `target`, even if its daemon is dead. With `lazily` it is taken out of the tree at
/// once and released by its last user; without, the call fails with `EBUSY` while it is used.
pub fn unmount(target: &Path, lazily: bool) -> io::Result<()> {
    if !is_root() {
        return helper::unmount(target, lazily);
    }
    let how = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(rustix::mount::unmount(target, UnmountFlags::NOFOLLOW | how)?)
}
