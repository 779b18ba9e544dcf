//! The tree of a volume as plain data: read through vfs, or from a directory that the kernel has mounted. Compared with
//! the model, or with each other.

mod compare;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use moafs_runtime::Timestamp;
use moafs_vfs::api::Seek;
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Error, Format, Vfs};

pub use self::compare::differences;
use crate::content::Content;
use crate::stamp;

/// The directory that belongs to the checker. Whether it exists, and its contents, are not promised.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A file as it is seen.
#[derive(Debug, Clone)]
pub struct Seen {
    /// File type.
    pub kind: FileKind,
    /// Permission bits (12).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub nlink: u32,
    /// Bytes of a regular file.
    pub content: Content,
    /// Text of a symbolic link.
    pub target: Vec<u8>,
    /// Device number.
    pub rdev: u64,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names in a directory, without `.` and `..`.
    pub entries: BTreeMap<Vec<u8>, u64>,
}

/// A whole volume as it is seen, by inode number.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The root's inode number.
    pub root: u64,
    /// All inodes that names lead to.
    pub nodes: BTreeMap<u64, Seen>,
}

/// Reads a volume through vfs.
///
/// # Errors
/// The inode that could not be read.
pub fn of_vfs<F: Format>(vfs: &Vfs<F>) -> Result<Tree, String> {
    of_parts(vfs, |_| true)
}

/// Reads a volume through vfs, without the names in the root that `wanted` refuses.
///
/// # Errors
/// The inode that could not be read.
pub fn of_parts<F: Format>(vfs: &Vfs<F>, wanted: impl Fn(&[u8]) -> bool) -> Result<Tree, String> {
    let root = vfs.shape().root;
    let mut tree = Tree { root: root.0, nodes: BTreeMap::new() };
    let mut todo = vec![root];
    while let Some(ino) = todo.pop() {
        if tree.nodes.contains_key(&ino.0) {
            continue;
        }
        let mut seen = see_vfs(vfs, ino).map_err(|(what, error)| format!("inode {}: {what}: {error}", ino.0))?;
        if ino == root {
            seen.entries.retain(|name, _| wanted(name));
        }
        todo.extend(seen.entries.values().map(|ino| Ino(*ino)));
        tree.nodes.insert(ino.0, seen);
    }
    Ok(tree)
}

pub(crate) type Said<T> = Result<T, (&'static str, Error)>;

fn see_vfs<F: Format>(vfs: &Vfs<F>, ino: Ino) -> Said<Seen> {
    let attr = vfs.stat(ino).map_err(|e| ("stat", e))?.attr;
    let mut seen = Seen {
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        content: Content::default(),
        target: Vec::new(),
        rdev: attr.rdev,
        mtime: attr.mtime,
        xattrs: xattrs_vfs(vfs, ino)?,
        entries: BTreeMap::new(),
    };
    match attr.kind {
        FileKind::Regular => seen.content = content_vfs(vfs, ino, attr.size)?,
        FileKind::Directory => seen.entries = entries_vfs(vfs, ino)?,
        FileKind::Symlink => seen.target = vfs.readlink(ino).map_err(|e| ("readlink", e))?,
        _ => {}
    }
    Ok(seen)
}

fn xattrs_vfs<F: Format>(vfs: &Vfs<F>, ino: Ino) -> Said<BTreeMap<Vec<u8>, Vec<u8>>> {
    let who = Credentials::root();
    let keys = match vfs.list_xattr(&who, ino) {
        Ok(keys) => keys,
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(BTreeMap::new()),
        Err(error) => return Err(("listxattr", error)),
    };
    let value = |full: Vec<u8>| match vfs.get_xattr(&who, ino, &full) {
        Ok(value) => Ok((full, value)),
        Err(error) => Err(("getxattr", error)),
    };
    keys.iter().map(|key| value(key.full())).collect()
}

/// Most entries of a listing: a loop in the cookies exceeds it.
const ENTRIES_MAX: usize = 10_000_000;

fn entries_vfs<F: Format>(vfs: &Vfs<F>, dir: Ino) -> Said<BTreeMap<Vec<u8>, u64>> {
    let who = Credentials::root();
    let mut names = Vec::new();
    let mut listed = 0;
    vfs.list(&who, dir, Cookie::START, &mut |entry| {
        listed += 1;
        if !matches!(entry.name.as_bytes(), b"." | b"..") {
            names.push((entry.name.as_bytes().to_vec(), entry.ino));
        }
        listed < ENTRIES_MAX
    })
    .map_err(|e| ("list", e))?;
    let mut entries = BTreeMap::new();
    for (name, ino) in names {
        let found =
            vfs.lookup(&who, dir, Name::new(&name).expect("listed names are names")).map_err(|e| ("lookup", e))?;
        vfs.forget(found.ino, 1);
        let twice = entries.insert(name, ino.0).is_some();
        if twice || found.ino != ino {
            let problem = if twice { "a name is listed twice" } else { "look-up and listing disagree" };
            let structure = format!("directory {}", dir.0);
            return Err(("list", Error::Damaged { structure, block: None, problem: problem.to_owned() }));
        }
    }
    Ok(entries)
}

/// Bytes read at once.
const PIECE: u64 = 256 << 10;

pub(crate) fn content_vfs<F: Format>(vfs: &Vfs<F>, ino: Ino, size: u64) -> Said<Content> {
    let mut content = Content::default();
    let mut at = 0;
    let mut buf = vec![0; PIECE as usize];
    while at < size {
        let data = match vfs.seek(ino, at, Seek::Data) {
            Ok(data) => data,
            Err(error) if error.errno() == libc::ENXIO => break,
            Err(error) => return Err(("seek", error)),
        };
        let hole = vfs.seek(ino, data, Seek::Hole).map_err(|e| ("seek", e))?.min(data + PIECE);
        let piece = &mut buf[..(hole - data) as usize];
        let n = vfs.read(ino, data, piece).map_err(|e| ("read", e))?;
        content.write(data, &piece[..n]);
        if n == 0 {
            break;
        }
        at = data + n as u64;
    }
    content.resize(size);
    Ok(content)
}

/// Reads a mounted directory.
///
/// # Errors
/// As the kernel reports them.
pub fn of_dir(path: &Path) -> io::Result<Tree> {
    let mut tree = Tree { root: fs::symlink_metadata(path)?.ino(), nodes: BTreeMap::new() };
    let mut todo = vec![path.to_owned()];
    while let Some(path) = todo.pop() {
        let ino = fs::symlink_metadata(&path)?.ino();
        if tree.nodes.contains_key(&ino) {
            continue;
        }
        let seen = see_dir(&path)?;
        todo.extend(seen.entries.keys().map(|name| path.join(OsStr::from_bytes(name))));
        tree.nodes.insert(ino, seen);
    }
    Ok(tree)
}

fn see_dir(path: &Path) -> io::Result<Seen> {
    let meta = fs::symlink_metadata(path)?;
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_file() => FileKind::Regular,
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () if kind.is_char_device() => FileKind::CharDevice,
        () if kind.is_block_device() => FileKind::BlockDevice,
        () if kind.is_fifo() => FileKind::Fifo,
        () => FileKind::Socket,
    };
    let mut seen = Seen {
        kind,
        perm: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink() as u32,
        content: Content::default(),
        target: Vec::new(),
        rdev: meta.rdev(),
        mtime: Timestamp { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 },
        xattrs: xattrs_dir(path)?,
        entries: BTreeMap::new(),
    };
    match kind {
        FileKind::Regular => seen.content = content_of(path, meta.len())?,
        FileKind::Symlink => seen.target = fs::read_link(path)?.into_os_string().into_vec(),
        FileKind::Directory => {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let ino = fs::symlink_metadata(entry.path())?.ino();
                seen.entries.insert(entry.file_name().into_vec(), ino);
            }
        }
        _ => {}
    }
    Ok(seen)
}

/// Reads the bytes of a file of the host.
pub(crate) fn content_of(path: &Path, size: u64) -> io::Result<Content> {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path)?;
    let mut content = Content::default();
    let mut at = 0;
    let mut buf = vec![0; PIECE as usize];
    while at < size {
        // SAFETY: an open descriptor and plain numbers.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
        let Ok(data) = u64::try_from(data) else { break };
        let n = file.read_at(&mut buf, data)?;
        content.write(data, &buf[..n]);
        if n == 0 {
            break;
        }
        at = data + n as u64;
    }
    content.resize(size);
    Ok(content)
}

fn xattrs_dir(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("paths hold no NUL");
    let mut buf = vec![0u8; 64 << 10];
    // SAFETY: a NUL-terminated path, and a buffer with its length.
    let len = unsafe { libc::llistxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    let mut xattrs = BTreeMap::new();
    for name in buf[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let full = CString::new(name).expect("split at NUL");
        let mut value = vec![0u8; 64 << 10];
        // SAFETY: NUL-terminated strings, and a buffer with its length.
        let len = unsafe { libc::lgetxattr(path.as_ptr(), full.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        value.truncate(len);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}

/// Describes the first sector in which two files differ.
pub fn first_difference(should: &Content, is: &Content) -> Option<String> {
    let mut ranges = should.ranges();
    ranges.extend(is.ranges());
    ranges.sort_unstable();
    ranges.dedup();
    for (start, len) in ranges {
        for at in (start..start + len).step_by(stamp::SECTOR) {
            let (mut want, mut have) = ([0; stamp::SECTOR], [0; stamp::SECTOR]);
            should.read(at, &mut want);
            is.read(at, &mut have);
            if want != have {
                return Some(format!("byte {at}: {}", stamp::describe_difference(&have, &want)));
            }
        }
    }
    None
}
