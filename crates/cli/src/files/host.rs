//! The host's files as a [`Tree`].
//!
//! Other processes may change the host's directories while they are copied, and a copy by root must
//! not become their tool. So a path is resolved once, where the caller gave it. From then on every
//! file is held by a descriptor and every name is looked up in a directory that is held, symbolic
//! links never followed (`O_NOFOLLOW`); new files are made with `O_EXCL`, and mode, owner, times
//! and attributes are set through the descriptor. A later change of the name has no effect on the
//! file that is held.

use std::cell::OnceCell;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::trail::Trail;
use super::tree::{Details, Extent, FileId, LastLink, Meta, New, OwnerSet, Tree, Xattr};
use crate::error::{CliError, Result};

/// The longest value of an extended attribute, and the longest list of names (`XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The host's files, or those of a mount.
#[derive(Debug)]
pub(crate) struct Host {
    mount: Option<Mount>,
}

/// A mounted volume, whose files are found without leaving it.
#[derive(Debug)]
struct Mount {
    top: OwnedFd,
    /// Beginning of every trail: `IMAGE:/`.
    trail: Trail,
}

impl Host {
    /// Returns all files of the host.
    pub(crate) fn whole() -> Host {
        Host { mount: None }
    }

    /// Returns the files of the volume on `image`, which is mounted on `dir`. Absolute paths and links begin at `dir`.
    pub(crate) fn mounted(image: &Path, dir: &Path) -> Result<Host> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(dir, flags, Mode::empty())
            .map_err(|errno| CliError::host("opening", dir)(errno.into()))?;
        let trail = Trail::new(&[image.as_os_str().as_bytes(), b":/"].concat());
        Ok(Host { mount: Some(Mount { top, trail }) })
    }

    /// Opens the place of a path.
    fn open_path(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let Some(Mount { top, .. }) = &self.mount else { return rustix::fs::open(path, flags, Mode::empty()) };
        // The mount's root is the root of all paths, `..` and links do not lead out of it.
        let path = [b"./", path].concat();
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)
    }

    /// Begins the trail of a path.
    fn trail_of(&self, path: &[u8]) -> Trail {
        match &self.mount {
            None => Trail::new(path),
            Some(Mount { trail, .. }) => match path.iter().position(|byte| *byte != b'/') {
                Some(first) => trail.join(&path[first..]),
                None => trail.clone(),
            },
        }
    }
}

/// A file of the host, held by a descriptor.
#[derive(Debug)]
pub(crate) struct HostNode {
    fd: OwnedFd,
    /// True if the descriptor is open for more than its place in the tree (`O_PATH`).
    is_open: bool,
    /// The contents, opened when they are needed.
    contents: OnceCell<OwnedFd>,
    /// Identity and kind of the file that a symbolic link led to when it was found; `None` for
    /// other files.
    leads_to: Option<(FileId, FileKind)>,
    trail: Trail,
}

impl HostNode {
    fn new(fd: OwnedFd, is_open: bool, trail: Trail) -> HostNode {
        HostNode { fd, is_open, contents: OnceCell::new(), leads_to: None, trail }
    }

    /// Returns a descriptor through which contents can be read (of new files: written).
    fn contents(&self, what: &'static str) -> Result<BorrowedFd<'_>> {
        if self.is_open {
            return Ok(self.fd.as_fd());
        }
        if self.contents.get().is_none() {
            // Opens the file that is held, not one that has its name by now. If opening would
            // block, it is no regular file.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let fd = rustix::fs::open(self.by_descriptor(), flags, Mode::empty()).map_err(self.failed(what))?;
            // The command is single-threaded, so the cell is still empty.
            let _ = self.contents.set(fd);
        }
        self.contents.get().map(AsFd::as_fd).ok_or_else(|| self.failed(what)(Errno::BADF))
    }

    /// Returns a path that leads to the file that is held, and is not followed any further.
    fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.fd).map_err(self.failed("looking at"))
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(Errno) -> CliError + use<> {
        failed(what, &self.trail)
    }

    /// Makes an error as [`HostNode::failed`] does, about a name in this directory.
    fn failed_at(&self, what: &'static str, name: &[u8]) -> impl FnOnce(Errno) -> CliError + use<> {
        failed(what, &self.trail.join(name))
    }
}

fn failed(what: &'static str, trail: &Trail) -> impl FnOnce(Errno) -> CliError + use<> {
    let at = trail.clone();
    move |errno| CliError::HostFile { what, at: at.to_string(), error: errno.into() }
}

fn id_of(stat: &Stat) -> FileId {
    FileId::Host { dev: stat.st_dev, ino: stat.st_ino }
}

fn identity_and_kind(stat: &Stat) -> Option<(FileId, FileKind)> {
    Some((id_of(stat), FileKind::from_mode(stat.st_mode)?))
}

/// Returns the identity of the file that a path leads to; `None` if there is none.
pub(crate) fn id_of_path(path: &Path) -> Option<FileId> {
    rustix::fs::stat(path).ok().map(|stat| id_of(&stat))
}

/// Checks a name of a file in a directory.
///
/// # Errors
/// Fails for a name that would lead elsewhere: an image may hold any bytes.
fn component<'n>(dir: &HostNode, name: &'n [u8]) -> Result<&'n OsStr> {
    let leads_elsewhere = matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if leads_elsewhere { Err(dir.failed_at("using the name", name)(Errno::INVAL)) } else { Ok(OsStr::from_bytes(name)) }
}

/// Holds the file called `name` in `dir`, without following a symbolic link; `None` if there is
/// none.
fn hold(dir: BorrowedFd<'_>, name: &OsStr, trail: Trail) -> Result<Option<HostNode>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("looking up", &trail)(errno)),
    };
    let mut node = HostNode::new(fd, false, trail);
    if FileType::from_raw_mode(node.stat()?.st_mode) == FileType::Symlink {
        let target = rustix::fs::statat(dir, name, AtFlags::empty()).ok();
        node.leads_to = target.as_ref().and_then(identity_and_kind);
    }
    Ok(Some(node))
}

/// Holds a file that was just made under a name. It must be that file: other processes may have
/// changed the name meanwhile.
fn hold_new(dir: &HostNode, name: &OsStr, new: &New<'_>, trail: Trail) -> Result<HostNode> {
    let replaced = failed("making (it was replaced meanwhile)", &trail);
    let Some(node) = hold(dir.fd.as_fd(), name, trail)? else { return Err(replaced(Errno::NOENT)) };
    let stat = node.stat()?;
    let is_it = FileKind::from_mode(stat.st_mode) == Some(new.kind) && stat.st_nlink == 1;
    if is_it { Ok(node) } else { Err(replaced(Errno::STALE)) }
}

impl Tree for Host {
    type Node = HostNode;
    /// Each file of a batch is an open descriptor.
    const BATCH_FILES: usize = 128;

    fn resolve(&self, path: &[u8], last: LastLink) -> Result<Option<HostNode>> {
        let trail = self.trail_of(path);
        let keeps = if last == LastLink::Kept { OFlags::NOFOLLOW } else { OFlags::empty() };
        let fd = match self.open_path(path, OFlags::PATH | OFlags::CLOEXEC | keeps) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("looking up", &trail)(errno)),
        };
        let mut node = HostNode::new(fd, false, trail);
        if FileType::from_raw_mode(node.stat()?.st_mode) == FileType::Symlink {
            let target = self.open_path(path, OFlags::PATH | OFlags::CLOEXEC).and_then(rustix::fs::fstat).ok();
            node.leads_to = target.as_ref().and_then(identity_and_kind);
        }
        Ok(Some(node))
    }

    fn child(&self, dir: &HostNode, name: &[u8]) -> Result<Option<HostNode>> {
        hold(dir.fd.as_fd(), component(dir, name)?, dir.trail.join(name))
    }

    fn child_followed(&self, dir: &HostNode, name: &[u8]) -> Result<Option<HostNode>> {
        let trail = dir.trail.join(name);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::openat(&dir.fd, component(dir, name)?, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(HostNode::new(fd, false, trail))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("following", &trail)(errno)),
        }
    }

    fn entered_from(&self, dir: &HostNode, id: FileId) -> Result<HostNode> {
        let node = self.above(dir)?;
        let moved = dir.failed("going back from (it was moved meanwhile)");
        if id_of(&node.stat()?) == id { Ok(node) } else { Err(moved(Errno::STALE)) }
    }

    fn above(&self, dir: &HostNode) -> Result<HostNode> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir.fd, c"..", flags, Mode::empty()).map_err(dir.failed("going back from"))?;
        Ok(HostNode::new(fd, false, dir.trail.before().unwrap_or_else(|| dir.trail.join(b".."))))
    }

    fn meta(&self, node: &HostNode) -> Result<Meta> {
        let stat = node.stat()?;
        let unknown = || CliError::Usage(format!("{} is no kind of file that can be copied", node.trail));
        let time = |secs: i64, nanos| Timestamp::new(secs, u32::try_from(nanos).unwrap_or(0));
        Ok(Meta {
            kind: FileKind::from_mode(stat.st_mode).ok_or_else(unknown)?,
            perm: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            rdev: stat.st_rdev,
            nlink: stat.st_nlink,
            sectors: u64::try_from(stat.st_blocks).unwrap_or(0),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            id: id_of(&stat),
        })
    }

    fn details(&self, node: &HostNode) -> Result<Details> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let wanted = StatxFlags::CTIME | StatxFlags::BTIME;
        let stat = rustix::fs::statx(&node.fd, c"", flags, wanted).map_err(node.failed("looking at"))?;
        let time = |time: StatxTimestamp| Timestamp::new(time.tv_sec, time.tv_nsec);
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let birth = has_birth.then(|| time(stat.stx_btime));
        Ok(Details { ctime: time(stat.stx_ctime), birth, generation: None, flags: None, runs: None })
    }

    fn leads_to(&self, node: &HostNode) -> Result<Option<(FileId, FileKind)>> {
        let meta = self.meta(node)?;
        Ok(if meta.kind == FileKind::Symlink { node.leads_to } else { Some((meta.id, meta.kind)) })
    }

    fn names(&self, dir: &HostNode) -> Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(&dir.fd, c".", flags, Mode::empty()).map_err(dir.failed("listing"))?;
        let mut names = Vec::new();
        for entry in Dir::new(open).map_err(dir.failed("listing"))? {
            let entry = entry.map_err(dir.failed("listing"))?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(name.to_vec()),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn target(&self, link: &HostNode) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&link.fd, c"", Vec::new()).map_err(link.failed("reading the link"))?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, node: &HostNode) -> Result<Vec<Xattr>> {
        let mut list = vec![0; XATTR_BYTES_MAX];
        let len = match rustix::fs::listxattr(node.by_descriptor(), &mut list[..]) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other.map_err(node.failed("listing attributes of"))?,
        };
        let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names.map(|name| xattr(node, name)).collect()
    }

    fn data(&self, file: &HostNode, offset: u64) -> Result<Option<Extent>> {
        let open = file.contents("reading")?;
        let size = u64::try_from(file.stat()?.st_size).unwrap_or(0);
        let from = match rustix::fs::seek(open, SeekFrom::Data(offset)) {
            Ok(from) => from,
            Err(Errno::NXIO) => return Ok(None),
            // File systems without holes: everything is data.
            Err(_) if offset < size => return Ok(Some(Extent { from: offset, to: size })),
            Err(_) => return Ok(None),
        };
        match rustix::fs::seek(open, SeekFrom::Hole(from)) {
            Ok(to) => Ok(Some(Extent { from, to })),
            // The file was cut between the two calls.
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(file.failed("seeking in")(errno)),
        }
    }

    fn read(&self, file: &HostNode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let open = file.contents("reading")?;
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(open, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(file.failed("reading")(errno)),
            }
        }
        Ok(done)
    }

    fn capacity(&self) -> Option<u64> {
        None
    }

    fn make(&self, dir: &HostNode, name: &[u8], new: New<'_>) -> Result<HostNode> {
        let name = component(dir, name)?;
        let trail = dir.trail.join(new.shown_as.unwrap_or(name.as_bytes()));
        let fail = || failed("making", &trail);
        let mode = Mode::from_raw_mode(new.perm);
        let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match new.kind {
            FileKind::Regular => {
                let fd = rustix::fs::openat(&dir.fd, name, OFlags::WRONLY | exclusive, mode).map_err(fail())?;
                Ok(HostNode::new(fd, true, trail))
            }
            FileKind::Directory => {
                rustix::fs::mkdirat(&dir.fd, name, mode).map_err(fail())?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty()).map_err(fail())?;
                Ok(HostNode::new(fd, true, trail))
            }
            FileKind::Symlink => {
                let target = OsStr::from_bytes(new.target.unwrap_or_default());
                rustix::fs::symlinkat(target, &dir.fd, name).map_err(fail())?;
                hold_new(dir, name, &new, trail)
            }
            kind => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                rustix::fs::mknodat(&dir.fd, name, kind, mode, new.rdev).map_err(fail())?;
                hold_new(dir, name, &new, trail)
            }
        }
    }

    fn link(&self, node: &HostNode, dir: &HostNode, name: &[u8]) -> Result<()> {
        let linked =
            rustix::fs::linkat(CWD, node.by_descriptor(), &dir.fd, component(dir, name)?, AtFlags::SYMLINK_FOLLOW);
        linked.map_err(dir.failed_at("linking", name))
    }

    fn rename(&self, dir: &HostNode, from: &[u8], to: &[u8]) -> Result<()> {
        let renamed = rustix::fs::renameat(&dir.fd, component(dir, from)?, &dir.fd, component(dir, to)?);
        renamed.map_err(dir.failed_at("making", to))
    }

    fn unlink(&self, dir: &HostNode, name: &[u8]) -> Result<()> {
        let removed = rustix::fs::unlinkat(&dir.fd, component(dir, name)?, AtFlags::empty());
        removed.map_err(dir.failed_at("removing", name))
    }

    fn rmdir(&self, dir: &HostNode, name: &[u8]) -> Result<()> {
        let removed = rustix::fs::unlinkat(&dir.fd, component(dir, name)?, AtFlags::REMOVEDIR);
        removed.map_err(dir.failed_at("removing", name))
    }

    fn write(&self, file: &HostNode, offset: u64, mut data: &[u8]) -> Result<()> {
        let mut at = offset;
        while !data.is_empty() {
            match rustix::io::pwrite(&file.fd, data, at) {
                Ok(0) => return Err(file.failed("writing")(Errno::IO)),
                Ok(len) => {
                    at += len as u64;
                    data = &data[len..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(file.failed("writing")(errno)),
            }
        }
        Ok(())
    }

    fn resize(&self, file: &HostNode, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&file.fd, size).map_err(file.failed("resizing"))
    }

    fn set_perm(&self, node: &HostNode, perm: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(perm);
        let set = if node.is_open {
            rustix::fs::fchmod(&node.fd, mode)
        } else {
            rustix::fs::chmod(node.by_descriptor(), mode)
        };
        set.map_err(node.failed("setting the mode of"))
    }

    fn set_owner(&self, node: &HostNode, uid: u32, gid: u32) -> Result<OwnerSet> {
        let chown = |uid: Option<Uid>, gid| rustix::fs::chownat(&node.fd, c"", uid, gid, AtFlags::EMPTY_PATH);
        let gid = Gid::from_raw(gid);
        match chown(Some(Uid::from_raw(uid)), Some(gid)) {
            Ok(()) => Ok(OwnerSet { uid: true, gid: true }),
            // Only root gives files away; other users may choose among their groups.
            Err(Errno::PERM | Errno::INVAL) if !rustix::process::geteuid().is_root() => {
                let is_ours = node.stat()?.st_uid == uid;
                Ok(OwnerSet { uid: is_ours, gid: chown(None, Some(gid)).is_ok() })
            }
            Err(errno) => Err(node.failed("setting the owner of")(errno)),
        }
    }

    fn set_times(&self, node: &HostNode, atime: Timestamp, mtime: Timestamp) -> Result<()> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        let set = if node.is_open {
            rustix::fs::futimens(&node.fd, &times)
        } else {
            rustix::fs::utimensat(CWD, node.by_descriptor(), &times, AtFlags::empty())
        };
        set.map_err(node.failed("setting the times of"))
    }

    fn set_xattr(&self, node: &HostNode, (name, value): &Xattr) -> Result<()> {
        let name =
            CString::new(name.as_slice()).map_err(|_| CliError::Usage("an attribute's name has a NUL".into()))?;
        match rustix::fs::setxattr(node.by_descriptor(), name.as_c_str(), value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(()),
            Err(errno) => Err(node.failed("setting an attribute of")(errno)),
        }
    }

    fn settle(&self, files: &[&HostNode]) -> Result<()> {
        // All are under way before the first is waited for, so that one commit of the host's file system serves most.
        let open = || files.iter().filter(|file| file.is_open);
        for file in open() {
            start_writing(file.fd.as_fd());
        }
        for file in open() {
            match rustix::fs::fsync(&file.fd) {
                Ok(()) | Err(Errno::INVAL | Errno::ROFS) => {}
                Err(errno) => return Err(file.failed("writing")(errno)),
            }
        }
        Ok(())
    }

    fn trail<'n>(&self, node: &'n HostNode) -> &'n Trail {
        &node.trail
    }

    fn shown(&self, path: &[u8]) -> String {
        self.trail_of(path).to_string()
    }

    fn describe(&self, node: &HostNode) -> String {
        node.trail.to_string()
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
}

/// Makes the host begin to write a file, without waiting for it.
fn start_writing(file: BorrowedFd<'_>) {
    // SAFETY: a system call about an open descriptor, without memory of ours. If it is not possible, fsync does it all.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

fn xattr(node: &HostNode, name: &[u8]) -> Result<Xattr> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    let read = rustix::fs::getxattr(node.by_descriptor(), OsStr::from_bytes(name), &mut value[..]);
    value.truncate(read.map_err(node.failed("reading an attribute of"))?);
    Ok((name.to_vec(), value))
}
