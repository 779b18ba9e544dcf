//! Mount options: those of mount(8) that FUSE mounts know, and the settings of this crate.

use bitflags::bitflags;

use crate::error::MountError;
use crate::init::{InitConfig, Transport};

bitflags! {
    /// Options every file system knows, as in `<sys/mount.h>`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u64 {
        /// `ro`
        const RDONLY = libc::MS_RDONLY;
        /// `nosuid`
        const NOSUID = libc::MS_NOSUID;
        /// `nodev`
        const NODEV = libc::MS_NODEV;
        /// `noexec`
        const NOEXEC = libc::MS_NOEXEC;
        /// `sync`
        const SYNCHRONOUS = libc::MS_SYNCHRONOUS;
        /// `dirsync`
        const DIRSYNC = libc::MS_DIRSYNC;
        /// `noatime`
        const NOATIME = libc::MS_NOATIME;
        /// `nodiratime`
        const NODIRATIME = libc::MS_NODIRATIME;
        /// `relatime`
        const RELATIME = libc::MS_RELATIME;
        /// `strictatime`
        const STRICTATIME = libc::MS_STRICTATIME;
        /// `lazytime`
        const LAZYTIME = libc::MS_LAZYTIME;
    }
}

/// The kind of mount that the kernel makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountKind {
    /// Type `fuse`: `sync` never reaches the file system, and `umount` does not wait for it.
    #[default]
    Plain,
    /// Type `fuseblk`, root only: the source is a block device, which the mount holds exclusively (open it without
    /// `O_EXCL`). `sync` arrives, and `umount` waits for [`destroy`](crate::FileSystem::destroy).
    BlockDevice {
        /// The volume's block size, bytes; the kernel is told at most 4096.
        block_size: u32,
    },
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The source shown in the mount table; for [`MountKind::BlockDevice`] the device's path.
    pub fsname: String,
    /// The type shown in the mount table behind `fuse.`.
    pub subtype: Option<String>,
    /// Plain or over a block device.
    pub kind: MountKind,
    /// Options every file system knows.
    pub flags: MountFlags,
    /// Give users other than the mounting one access.
    pub allow_other: bool,
    /// Let the kernel check permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Largest read request, bytes.
    pub max_read: Option<u32>,
    /// Unmount when this process ends, for any reason, SIGKILL included.
    pub auto_unmount: bool,
    /// Options handed through as they are: `context=` and its relatives.
    pub extra: Vec<String>,
    /// Read-ahead of the mount, KiB, set through sysfs if allowed; 0 leaves it alone.
    pub read_ahead_kb: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fsname: "fuse".to_owned(),
            subtype: None,
            kind: MountKind::Plain,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            allow_other: false,
            default_permissions: true,
            max_read: None,
            auto_unmount: false,
            extra: Vec::new(),
            read_ahead_kb: 1024,
        }
    }
}

/// Name of each option, the flags it sets, and whether it sets or clears them.
const FLAG_OPTIONS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
];

/// Options that concern mount(8) and fstab only.
const IGNORED_OPTIONS: &[&str] =
    &["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"];

impl MountOptions {
    /// Applies one option as mount(8) takes it. An unknown one is an error, so a caller tries its own options first.
    pub fn apply(&mut self, option: &str) -> Result<(), MountError> {
        let unknown = || MountError::UnknownOption(option.to_owned());
        if let Some(&(_, flag, set)) = FLAG_OPTIONS.iter().find(|(name, ..)| *name == option) {
            self.flags.set(flag, set);
            return Ok(());
        }
        if IGNORED_OPTIONS.contains(&option) || option.starts_with("x-") || option.starts_with("comment=") {
            return Ok(());
        }
        match option.split_once('=') {
            None => self.apply_switch(option).ok_or_else(unknown),
            Some((name, value)) => self.apply_value(name, value).ok_or_else(unknown),
        }
    }

    fn apply_switch(&mut self, name: &str) -> Option<()> {
        match name {
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "auto_unmount" => self.auto_unmount = true,
            _ => return None,
        }
        Some(())
    }

    fn apply_value(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "fsname" => self.fsname = value.to_owned(),
            "subtype" => self.subtype = Some(value.to_owned()),
            "max_read" => self.max_read = Some(value.parse().ok()?),
            "read_ahead_kb" => self.read_ahead_kb = value.parse().ok()?,
            "context" | "fscontext" | "defcontext" | "rootcontext" => {
                // Quotes keep a list of options from being split in the value, which does not have them.
                let plain = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
                self.extra.push(format!("{name}={plain}"));
            }
            _ => return None,
        }
        Some(())
    }
}

/// Everything that [`Session::mount`](crate::Session::mount) needs besides the file system and the mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Options of the mount.
    pub mount: MountOptions,
    /// The parameters to ask the kernel for.
    pub init: InitConfig,
    /// The transport of requests.
    pub transport: Transport,
    /// Threads reading /dev/fuse at once when it is the transport; 0 is one per CPU, at least two, at most sixteen.
    pub dev_threads: usize,
    /// Threads that are started besides while the others of /dev/fuse serve, each for as long as it is wanted.
    pub dev_spare_threads: usize,
    /// With io_uring: threads per CPU, each with one entry; so many requests of a CPU may block at once. Idle ones cost
    /// next to nothing: the kernel offers requests to the thread that was idle for the shortest time.
    pub ring_threads_per_cpu: usize,
    /// With io_uring: bound on the memory of all entries, bytes. On a host with many CPUs it lowers the threads per
    /// CPU; where not even one fits, /dev/fuse is used.
    pub ring_memory_max: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            mount: MountOptions::default(),
            init: InitConfig::default(),
            transport: Transport::Auto,
            dev_threads: 0,
            dev_spare_threads: 128,
            ring_threads_per_cpu: 32,
            ring_memory_max: 256 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(options: &str) -> MountOptions {
        let mut mount = MountOptions::default();
        for option in options.split(',') {
            mount.apply(option).unwrap_or_else(|error| panic!("{option}: {error}"));
        }
        mount
    }

    #[test]
    fn later_options_win() {
        let mount = applied("ro,suid,noatime,rw,allow_other,max_read=4096,fsname=disk=1,subtype=x");
        assert_eq!(mount.flags, MountFlags::NODEV | MountFlags::NOATIME);
        assert!(mount.allow_other);
        assert_eq!(
            (mount.max_read, mount.fsname.as_str(), mount.subtype.as_deref()),
            (Some(4096), "disk=1", Some("x"))
        );
    }

    #[test]
    fn options_of_fstab_are_ignored_and_unknown_ones_refused() {
        assert_eq!(applied("defaults,noauto,x-systemd.automount,_netdev"), MountOptions::default());
        for option in ["", "bogus", "max_read=many", "fd=3"] {
            let refused = MountOptions::default().apply(option);
            assert!(matches!(refused, Err(MountError::UnknownOption(name)) if name == option));
        }
    }
}
