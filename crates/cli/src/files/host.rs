//! The host's files as a [`Tree`].

use std::cell::OnceCell;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::tree::{Extent, Meta, New, Tree, Xattr};
use crate::error::{CliError, Result};

/// The longest value of an extended attribute, and the longest list of names (`XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The host's files.
#[derive(Debug)]
pub(crate) struct Host;

/// A file of the host, opened when its contents are needed.
#[derive(Debug)]
pub(crate) struct HostNode {
    path: PathBuf,
    reading: OnceCell<File>,
    writing: OnceCell<File>,
}

impl HostNode {
    fn new(path: PathBuf) -> HostNode {
        HostNode { path, reading: OnceCell::new(), writing: OnceCell::new() }
    }

    fn join(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    fn for_reading(&self) -> Result<&File> {
        opened(&self.reading, || {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&self.path)
        })
        .map_err(CliError::host("reading", &self.path))
    }

    fn for_writing(&self) -> Result<&File> {
        opened(&self.writing, || {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&self.path)
        })
        .map_err(CliError::host("writing", &self.path))
    }
}

/// The file in `cell`, opened at first use.
fn opened(cell: &OnceCell<File>, open: impl FnOnce() -> io::Result<File>) -> io::Result<&File> {
    if cell.get().is_none() {
        let file = open()?;
        // Single-threaded: nobody has filled it meanwhile.
        let _ = cell.set(file);
    }
    cell.get().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn failed<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(Errno) -> CliError + 'p {
    move |errno| CliError::host(what, path)(errno.into())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
}

fn found(path: PathBuf) -> Result<Option<HostNode>> {
    match fs::symlink_metadata(&path) {
        Ok(_) => Ok(Some(HostNode::new(path))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::host("looking up", &path)(error)),
    }
}

impl Tree for Host {
    type Node = HostNode;

    fn resolve(&self, path: &[u8]) -> Result<Option<HostNode>> {
        found(PathBuf::from(OsStr::from_bytes(path)))
    }

    fn child(&self, dir: &HostNode, name: &[u8]) -> Result<Option<HostNode>> {
        found(dir.join(name))
    }

    fn meta(&self, node: &HostNode) -> Result<Meta> {
        let meta = fs::symlink_metadata(&node.path).map_err(CliError::host("looking at", &node.path))?;
        let kind = FileKind::from_mode(meta.mode());
        let unknown = || CliError::Usage(format!("{} is no kind of file that can be copied", node.path.display()));
        let time = |secs, nanos: i64| Timestamp::new(secs, u32::try_from(nanos).unwrap_or(0));
        Ok(Meta {
            kind: kind.ok_or_else(unknown)?,
            perm: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.size(),
            rdev: meta.rdev(),
            nlink: meta.nlink(),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            id: (meta.dev(), meta.ino()),
        })
    }

    fn names(&self, dir: &HostNode) -> Result<Vec<Vec<u8>>> {
        let fail = || CliError::host("listing", &dir.path);
        let entries = fs::read_dir(&dir.path).map_err(fail())?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().as_bytes().to_vec()));
        let mut names = names.collect::<io::Result<Vec<_>>>().map_err(fail())?;
        names.sort_unstable();
        Ok(names)
    }

    fn target(&self, link: &HostNode) -> Result<Vec<u8>> {
        let target = fs::read_link(&link.path).map_err(CliError::host("reading the link", &link.path))?;
        Ok(target.into_os_string().as_bytes().to_vec())
    }

    fn xattrs(&self, node: &HostNode) -> Result<Vec<Xattr>> {
        let mut list = vec![0; XATTR_BYTES_MAX];
        let len = match rustix::fs::llistxattr(&node.path, &mut list[..]) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other.map_err(failed("listing attributes of", &node.path))?,
        };
        let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names.map(|name| xattr(&node.path, name)).collect()
    }

    fn data(&self, file: &HostNode, offset: u64) -> Result<Option<Extent>> {
        let open = file.for_reading()?;
        let size = open.metadata().map_err(CliError::host("looking at", &file.path))?.len();
        let from = match rustix::fs::seek(open, SeekFrom::Data(offset)) {
            Ok(from) => from,
            Err(Errno::NXIO) => return Ok(None),
            // File systems without holes: everything is data.
            Err(_) if offset < size => return Ok(Some(Extent { from: offset, to: size })),
            Err(_) => return Ok(None),
        };
        let to = rustix::fs::seek(open, SeekFrom::Hole(from)).map_err(failed("seeking in", &file.path))?;
        Ok(Some(Extent { from, to }))
    }

    fn read(&self, file: &HostNode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let open = file.for_reading()?;
        let mut done = 0;
        while done < into.len() {
            match open.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CliError::host("reading", &file.path)(error)),
            }
        }
        Ok(done)
    }

    fn make(&self, dir: &HostNode, name: &[u8], new: New<'_>) -> Result<HostNode> {
        let path = dir.join(name);
        let mode = Mode::from_raw_mode(new.perm);
        match (new.kind, new.target) {
            (FileKind::Directory, _) => rustix::fs::mkdir(&path, mode).map_err(io::Error::from),
            (FileKind::Symlink, target) => symlink(OsStr::from_bytes(target.unwrap_or_default()), &path),
            (kind, _) => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                rustix::fs::mknodat(CWD, &path, kind, mode, new.rdev).map_err(io::Error::from)
            }
        }
        .map_err(CliError::host("making", &path))?;
        Ok(HostNode::new(path))
    }

    fn link(&self, node: &HostNode, dir: &HostNode, name: &[u8]) -> Result<()> {
        let path = dir.join(name);
        fs::hard_link(&node.path, &path).map_err(CliError::host("linking", &path))
    }

    fn unlink(&self, dir: &HostNode, name: &[u8]) -> Result<()> {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(CliError::host("removing", &path))
    }

    fn rmdir(&self, dir: &HostNode, name: &[u8]) -> Result<()> {
        let path = dir.join(name);
        fs::remove_dir(&path).map_err(CliError::host("removing", &path))
    }

    fn write(&self, file: &HostNode, offset: u64, data: &[u8]) -> Result<()> {
        file.for_writing()?.write_all_at(data, offset).map_err(CliError::host("writing", &file.path))
    }

    fn resize(&self, file: &HostNode, size: u64) -> Result<()> {
        file.for_writing()?.set_len(size).map_err(CliError::host("resizing", &file.path))
    }

    fn set_perm(&self, node: &HostNode, perm: u32) -> Result<()> {
        let permissions = fs::Permissions::from_mode(perm);
        fs::set_permissions(&node.path, permissions).map_err(CliError::host("setting the mode of", &node.path))
    }

    fn set_owner(&self, node: &HostNode, uid: u32, gid: u32) -> Result<()> {
        std::os::unix::fs::lchown(&node.path, Some(uid), Some(gid))
            .map_err(CliError::host("setting the owner of", &node.path))
    }

    fn set_times(&self, node: &HostNode, atime: Timestamp, mtime: Timestamp) -> Result<()> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        rustix::fs::utimensat(CWD, &node.path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("setting the times of", &node.path))
    }

    fn set_xattr(&self, node: &HostNode, (name, value): &Xattr) -> Result<()> {
        let name =
            CString::new(name.as_slice()).map_err(|_| CliError::Usage("an attribute's name has a NUL".into()))?;
        rustix::fs::lsetxattr(&node.path, name.as_c_str(), value, XattrFlags::empty())
            .map_err(failed("setting an attribute of", &node.path))
    }

    fn describe(&self, node: &HostNode) -> String {
        node.path.display().to_string()
    }
}

fn xattr(path: &Path, name: &[u8]) -> Result<Xattr> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).map_err(failed("reading an attribute of", path))?;
    value.truncate(len);
    Ok((name.to_vec(), value))
}
