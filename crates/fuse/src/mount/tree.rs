//! A mount that no path leads to yet: the kernel sends only the handshake.
//!
//! Over io_uring that matters. The kernel lets requests through as soon as every queue has one entry, and a request
//! that finds no free entry waits for the next *answer* on its queue, not for the next entry: with a tree that
//! others can see, two early requests that block would hold up a third until some other request is answered.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};

use super::common;
use crate::dev::DEVICE;
use crate::error::MountError;
use crate::options::{MountFlags, MountKind, MountOptions};

/// The kernel takes no larger block size for a block-device mount than a page of 4 KiB.
const BLKSIZE_MAX: u32 = 4096;

/// Flags that belong to the file system, with their names.
const FS_FLAGS: [(MountFlags, &str); 4] = [
    (MountFlags::RDONLY, "ro"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
    (MountFlags::LAZYTIME, "lazytime"),
];

/// Flags that belong to the place in the tree.
const TREE_FLAGS: [(MountFlags, MountAttrFlags); 7] = [
    (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
    (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
    (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
    (MountFlags::STRICTATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
];

/// Opens the device through which a new mount is served.
pub(super) fn open_device() -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    Ok(File::into(file))
}

/// Makes a mount that is served through `dev` and gone when the returned descriptor is closed, unless it was attached.
pub(super) fn make(
    dev: BorrowedFd<'_>,
    target: &Path,
    root_mode: u32,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let words = words(dev.as_raw_fd(), root_mode, options)?;
    let made = || -> io::Result<OwnedFd> {
        let context = fsopen(base_type(options.kind), FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in &words {
            match value {
                Some(value) => fsconfig_set_string(context.as_fd(), key, value)?,
                None => fsconfig_set_flag(context.as_fd(), key)?,
            }
        }
        fsconfig_create(context.as_fd())?;
        Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, tree_flags(options.flags))?)
    };
    made().map_err(|source| refused(target, options, source))
}

/// Makes the mount visible at `target`.
pub(super) fn attach(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Makes the mount at `target` read-only; its file system stays as it is, and is not asked.
pub(super) fn make_read_only(target: &Path) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_bytes())?;
    let set = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: path and attributes outlive the call, and the size is that of the attributes.
    let code = unsafe {
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, &raw const set, size_of_val(&set))
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn refused(target: &Path, options: &MountOptions, source: io::Error) -> MountError {
    let base = base_type(options.kind);
    let fstype = options.subtype.as_ref().map_or_else(|| base.to_owned(), |subtype| format!("{base}.{subtype}"));
    MountError::Mount { target: target.to_owned(), source_name: options.fsname.clone(), fstype, source }
}

fn base_type(kind: MountKind) -> &'static str {
    match kind {
        MountKind::Plain => "fuse",
        MountKind::BlockDevice { .. } => "fuseblk",
    }
}

fn tree_flags(flags: MountFlags) -> MountAttrFlags {
    let set = TREE_FLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(MountAttrFlags::empty(), |all, (_, attr)| all | *attr)
}

/// Returns the words of the new file system: a name, and a value for those that take one.
fn words(dev: i32, root_mode: u32, options: &MountOptions) -> Result<Vec<(String, Option<String>)>, MountError> {
    // SAFETY: getuid and getgid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut list = vec![("source".to_owned(), Some(options.fsname.clone()))];
    list.extend(options.subtype.iter().map(|subtype| ("subtype".to_owned(), Some(subtype.clone()))));
    let numbers = [("fd", dev.to_string()), ("rootmode", format!("{root_mode:o}"))];
    let users = [("user_id", uid.to_string()), ("group_id", gid.to_string())];
    list.extend(numbers.into_iter().chain(users).map(|(name, value)| (name.to_owned(), Some(value))));
    if let MountKind::BlockDevice { block_size } = options.kind {
        list.push(("blksize".to_owned(), Some(block_size.min(BLKSIZE_MAX).to_string())));
    }
    let set = FS_FLAGS.iter().filter(|(flag, _)| options.flags.contains(*flag));
    list.extend(set.map(|(_, name)| ((*name).to_owned(), None)));
    for option in common::options(options) {
        match option.split_once('=') {
            Some((name, value)) => list.push((name.to_owned(), Some(value.to_owned()))),
            None => list.push((option, None)),
        }
    }
    match list.iter().find(|(_, value)| value.as_ref().is_some_and(|value| value.contains('\0'))) {
        Some((name, _)) => Err(MountError::BadCharacter(name.clone())),
        None => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(words: &[(String, Option<String>)], name: &str, value: Option<&str>) -> bool {
        words.iter().any(|(key, given)| key == name && given.as_deref() == value)
    }

    #[test]
    fn the_kernel_is_told_at_most_4096_as_block_size() {
        let options = MountOptions { kind: MountKind::BlockDevice { block_size: 65536 }, ..MountOptions::default() };
        let words = words(5, libc::S_IFDIR, &options).expect("good options");
        assert!(has(&words, "fd", Some("5")) && has(&words, "rootmode", Some("40000")), "{words:?}");
        assert!(has(&words, "blksize", Some("4096")) && has(&words, "default_permissions", None), "{words:?}");
    }

    #[test]
    fn no_option_can_smuggle_in_another() {
        let mut options = MountOptions::default();
        options.apply("context=\"a:b:c1,suid\"").expect("a value in quotes");
        let words_of_it = words(5, 0, &options).expect("a comma is part of the value");
        assert!(has(&words_of_it, "context", Some("a:b:c1,suid")) && !has(&words_of_it, "suid", None));
        let options = MountOptions { fsname: "a\0b".to_owned(), ..MountOptions::default() };
        assert!(matches!(words(5, 0, &options), Err(MountError::BadCharacter(_))));
    }
}
