//! Calls by path, each releasing the inodes that it held, and the test of "no space left".

use std::sync::atomic::{AtomicU64, Ordering};

use moafs_vfs::api::{NewFile, RenameMode, SetAttr};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Error, Format, Result, Vfs};

use crate::volume::writable;

/// Calls by path on one volume.
pub struct Calls<'a, F: Format> {
    /// The volume.
    pub vfs: &'a Vfs<F>,
    who: Credentials,
    /// Calls that ended with ENOSPC on a full volume.
    pub refused: AtomicU64,
    /// True if calls are printed.
    loud: bool,
}

/// Converts a text to a name.
fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn new(kind: FileKind) -> NewFile<'static> {
    NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None }
}

/// Blocks that a call may take beside the data and two names: an inode, maps, attributes.
const NEED_BLOCKS: u64 = 2;

/// Least number of data blocks that one written block of map describes: 256 pointers.
const MAP_FAN: u64 = 256;

impl<'a, F: Format> Calls<'a, F> {
    /// Creates calls on a volume.
    pub fn new(vfs: &'a Vfs<F>) -> Calls<'a, F> {
        let loud = std::env::var_os("MOAFS_LOUD").is_some();
        Calls { vfs, who: Credentials::root(), refused: AtomicU64::new(0), loud }
    }

    /// Prints a line if calls are to be printed.
    pub fn say(&self, call: std::fmt::Arguments<'_>) {
        if self.loud {
            println!("{call}");
        }
    }

    /// Repeats a call that may need space for `bytes` of data; `None` if the volume has too little. Another client may
    /// free space between the refusal and the look at the free space, so only a refusal that comes twice is wrong.
    ///
    /// # Errors
    /// Any error but ENOSPC, and ENOSPC on a volume that has the space.
    pub fn with_space<T>(&self, bytes: u64, call: impl Fn() -> Result<T>) -> std::result::Result<Option<T>, String> {
        let shape = self.vfs.shape();
        let blocks = bytes.div_ceil(shape.block_size.into());
        let need = blocks + blocks / MAP_FAN + 2 * shape.name_meta_blocks + NEED_BLOCKS;
        let mut free = 0;
        for _ in 0..3 {
            match call() {
                Ok(done) => return Ok(Some(done)),
                Err(error) if error.errno() != libc::ENOSPC => return Err(error.to_string()),
                Err(_) => {}
            }
            let space = writable(self.vfs);
            free = space.free;
            if space.free < need || space.free_inodes == 0 {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
        }
        Err(format!("ENOSPC, though {free} blocks are free and at most {need} are needed"))
    }

    fn find(&self, dir: Ino, text: &str) -> Result<Ino> {
        let ino = self.vfs.lookup(&self.who, dir, name(text))?.ino;
        self.vfs.forget(ino, 1);
        Ok(ino)
    }

    /// Returns the directory and the last name of a path.
    fn split<'p>(&self, path: &'p str) -> Result<(Ino, &'p str)> {
        let (dirs, last) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = self.vfs.shape().root;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            at = self.find(at, part)?;
        }
        Ok((at, last))
    }

    /// Calls `f` with the inode of a file, held as an open file is.
    ///
    /// # Errors
    /// As the calls fail.
    pub fn with<T>(&self, path: &str, f: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let (dir, last) = self.split(path)?;
        let ino = self.vfs.lookup(&self.who, dir, name(last))?.ino;
        let done = f(ino);
        self.vfs.forget(ino, 1);
        done
    }

    /// Returns true if a file of that name exists.
    pub fn exists(&self, path: &str) -> bool {
        self.with(path, |_| Ok(())).is_ok()
    }

    /// Makes a file or a directory.
    ///
    /// # Errors
    /// As the call fails.
    pub fn make(&self, path: &str, kind: FileKind) -> Result<()> {
        self.say(format_args!("make {path} {kind:?}"));
        let (dir, last) = self.split(path)?;
        let stat = self.vfs.create(&self.who, dir, name(last), &new(kind))?;
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As the call fails.
    pub fn symlink(&self, path: &str, target: &[u8]) -> Result<()> {
        self.say(format_args!("symlink {path} of {} bytes", target.len()));
        let (dir, last) = self.split(path)?;
        let new = NewFile { target: Some(target), ..new(FileKind::Symlink) };
        let stat = self.vfs.create(&self.who, dir, name(last), &new)?;
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// As the call fails.
    pub fn write(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.say(format_args!("write {path}: {} bytes at {offset}", bytes.len()));
        self.with(path, |ino| self.vfs.write(&self.who, ino, offset, bytes, false).map(drop))
    }

    /// Sets the size.
    ///
    /// # Errors
    /// As the call fails.
    pub fn truncate(&self, path: &str, size: u64) -> Result<()> {
        self.say(format_args!("truncate {path} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.with(path, |ino| self.vfs.set_attr(&self.who, ino, &set).map(drop))
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// As the call fails.
    pub fn fsync(&self, path: &str) -> Result<()> {
        self.say(format_args!("fsync {path}"));
        self.with(path, |ino| self.vfs.fsync(ino, false))
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// As the call fails.
    pub fn set_xattr(&self, path: &str, key: &[u8], value: &[u8]) -> Result<()> {
        self.say(format_args!("set_xattr {path}: {} bytes", value.len()));
        self.with(path, |ino| self.vfs.set_xattr(&self.who, ino, key, value, SetMode::Any))
    }

    /// Removes the name of a file.
    ///
    /// # Errors
    /// As the call fails.
    pub fn unlink(&self, path: &str) -> Result<()> {
        self.say(format_args!("unlink {path}"));
        let (dir, last) = self.split(path)?;
        self.vfs.unlink(&self.who, dir, name(last))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As the call fails.
    pub fn rmdir(&self, path: &str) -> Result<()> {
        self.say(format_args!("rmdir {path}"));
        let (dir, last) = self.split(path)?;
        self.vfs.rmdir(&self.who, dir, name(last))
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As the call fails.
    pub fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        self.say(format_args!("rename {from} to {to}, {mode:?}"));
        let ((from, old), (to, new)) = (self.split(from)?, self.split(to)?);
        self.vfs.rename(&self.who, (from, name(old)), (to, name(new)), mode)
    }

    /// Gives a file a second name.
    ///
    /// # Errors
    /// As the call fails.
    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        self.say(format_args!("link {from} as {to}"));
        self.with(from, |ino| {
            let (dir, last) = self.split(to)?;
            let stat = self.vfs.link(&self.who, ino, dir, name(last))?;
            self.vfs.forget(stat.ino, 1);
            Ok(())
        })
    }

    /// Returns the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// As the call fails.
    pub fn list(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut entries = Vec::new();
        self.vfs.list(&self.who, dir, Cookie::START, &mut |entry| {
            if !matches!(entry.name.as_bytes(), b"." | b"..") {
                entries.push((entry.name.as_bytes().to_vec(), entry.ino));
            }
            true
        })?;
        Ok(entries)
    }

    /// Removes everything below a directory, but for the names in `keep`.
    ///
    /// # Errors
    /// As the calls fail.
    pub fn clear(&self, dir: Ino, keep: &[&[u8]]) -> std::result::Result<(), Error> {
        for (text, ino) in self.list(dir)? {
            let is_dir = self.vfs.stat(ino)?.attr.kind == FileKind::Directory;
            if is_dir {
                self.clear(ino, &[])?;
            }
            if keep.contains(&text.as_slice()) {
                continue;
            }
            let text = Name::new(&text).expect("a listed name");
            if is_dir {
                self.vfs.rmdir(&self.who, dir, text)?;
            } else {
                self.vfs.unlink(&self.who, dir, text)?;
            }
        }
        Ok(())
    }
}
