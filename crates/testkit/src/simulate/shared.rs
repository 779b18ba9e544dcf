//! Operations of several clients on the same names and the same files.
//!
//! No model knows each answer. Instead each file carries a label of its own as its owner, and its sectors are stamped
//! with it: bytes of another file are seen at once, by every read and after every power cut.

use std::sync::Arc;

use moafs_vfs::api::{Allocate, NewFile, RenameMode, SetAttr};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Error, Format, Vfs};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::content::Content;
use crate::stamp::{self, Stamp};
use crate::tree::{Seen, Tree};

/// First label: those of models are larger or smaller.
const LABELS_FROM: u32 = 1 << 30;
/// Most handles that a client keeps.
const HANDLES: usize = 6;
/// Bytes of a read, enough for all of a shared file.
const READ_BYTES: u64 = 64 << 10;
const FILE_NAMES: u32 = 10;
const DIR_NAMES: u32 = 5;

type Said<T> = Result<T, String>;

/// The shared part of a client: its handles.
pub struct Shared {
    dirs: Vec<Ino>,
    handles: Vec<Handle>,
    next_label: u32,
    write: u64,
    rng: Pcg64Mcg,
    who: Credentials,
    sectors_max: u64,
    xattrs: bool,
}

#[derive(Clone, Copy)]
struct Handle {
    ino: Ino,
    kind: FileKind,
    label: u32,
}

/// Causes of errors other than names.
#[derive(Debug, Clone, Copy)]
pub struct Excuses {
    /// The volume may be full.
    pub full: bool,
    /// The device may have failed.
    pub broken: bool,
}

impl Shared {
    /// Creates a client without handles. `first` makes its labels unique.
    pub fn new(dirs: Vec<Ino>, first: u32, rng: Pcg64Mcg, sectors_max: u64, xattrs: bool) -> Shared {
        let next_label = LABELS_FROM + first;
        Shared { dirs, handles: Vec::new(), next_label, write: 0, rng, who: Credentials::root(), sectors_max, xattrs }
    }

    /// Does one random operation.
    ///
    /// # Errors
    /// An answer that no order of the clients' operations explains.
    pub fn step<F: Format>(&mut self, vfs: &Vfs<F>, excuses: Excuses) -> Said<()> {
        let what = self.rng.random_range(0..100);
        let outcome = match what {
            0..14 => self.create(vfs, FileKind::Regular).map(|()| "create"),
            14..20 => self.create(vfs, FileKind::Directory).map(|()| "mkdir"),
            20..23 => self.symlink(vfs).map(|()| "symlink"),
            23..33 => self.open(vfs).map(|()| "open"),
            33..40 => self.name(vfs, |vfs, who, dir, name| vfs.unlink(who, dir, name)).map(|()| "unlink"),
            40..45 => self.name(vfs, |vfs, who, dir, name| vfs.rmdir(who, dir, name)).map(|()| "rmdir"),
            45..57 => self.rename(vfs).map(|()| "rename"),
            57..61 => self.link(vfs).map(|()| "link"),
            61..73 => self.write(vfs).map(|()| "write"),
            73..81 => return self.read(vfs, excuses),
            81..85 => self.reshape(vfs).map(|()| "truncate or allocate"),
            85..89 => self.sync_one(vfs).map(|()| "fsync"),
            89..92 => self.xattr(vfs).map(|()| "setxattr"),
            92..94 => self.list(vfs).map(|()| "list"),
            _ => {
                self.release(vfs);
                return Ok(());
            }
        };
        match outcome {
            Ok(_) => Ok(()),
            Err(error) => excuse(what, &error, excuses),
        }
    }

    /// Opens files that exist already, and removes most of their names.
    ///
    /// # Errors
    /// As [`Shared::step`].
    pub fn open_and_unlink<F: Format>(&mut self, vfs: &Vfs<F>, excuses: Excuses) -> Said<()> {
        for _ in 0..HANDLES {
            let (dir, name) = (self.dirs[self.rng.random_range(0..self.dirs.len())], self.any_name());
            let Ok(stat) = vfs.lookup(&self.who, dir, name_of(&name)) else { continue };
            self.keep(vfs, Handle { ino: stat.ino, kind: stat.attr.kind, label: stat.attr.uid });
            if stat.attr.kind != FileKind::Directory && self.rng.random_bool(0.7) {
                match vfs.unlink(&self.who, dir, name_of(&name)) {
                    Ok(()) => {}
                    Err(error) => excuse(33, &error, excuses)?,
                }
            }
        }
        Ok(())
    }

    /// Reads every open file.
    ///
    /// # Errors
    /// As [`Shared::step`].
    pub fn read_all<F: Format>(&mut self, vfs: &Vfs<F>, excuses: Excuses) -> Said<()> {
        for handle in self.handles.clone() {
            if handle.kind == FileKind::Regular {
                self.read_of(vfs, handle, (0, READ_BYTES), excuses)?;
            }
        }
        Ok(())
    }

    /// Releases every handle.
    pub fn release_all<F: Format>(&mut self, vfs: &Vfs<F>) {
        self.handles.drain(..).for_each(|handle| vfs.forget(handle.ino, 1));
    }

    fn release<F: Format>(&mut self, vfs: &Vfs<F>) {
        if !self.handles.is_empty() {
            let handle = self.handles.swap_remove(self.rng.random_range(0..self.handles.len()));
            vfs.forget(handle.ino, 1);
        }
    }

    /// Draws one of the shared directories, or one that a handle leads to.
    fn dir(&mut self) -> Ino {
        let open: Vec<Ino> =
            self.handles.iter().filter(|handle| handle.kind == FileKind::Directory).map(|handle| handle.ino).collect();
        if !open.is_empty() && self.rng.random_bool(0.4) {
            return open[self.rng.random_range(0..open.len())];
        }
        self.dirs[self.rng.random_range(0..self.dirs.len())]
    }

    fn any_name(&mut self) -> String {
        if self.rng.random_bool(0.65) {
            format!("f{}", self.rng.random_range(0..FILE_NAMES))
        } else {
            format!("s{}", self.rng.random_range(0..DIR_NAMES))
        }
    }

    fn file(&mut self) -> Option<Handle> {
        let files: Vec<Handle> =
            self.handles.iter().filter(|handle| handle.kind == FileKind::Regular).copied().collect();
        (!files.is_empty()).then(|| files[self.rng.random_range(0..files.len())])
    }

    fn keep<F: Format>(&mut self, vfs: &Vfs<F>, handle: Handle) {
        if self.handles.len() == HANDLES {
            self.release(vfs);
        }
        self.handles.push(handle);
    }

    fn create<F: Format>(&mut self, vfs: &Vfs<F>, kind: FileKind) -> Result<(), Error> {
        let label = self.next_label;
        self.next_label += 1;
        let names = if kind == FileKind::Directory { ('s', DIR_NAMES) } else { ('f', FILE_NAMES) };
        let (dir, name) = (self.dir(), format!("{}{}", names.0, self.rng.random_range(0..names.1)));
        let new = NewFile { kind, perm: 0o777, umask: 0, rdev: 0, target: None };
        let who = Credentials { uid: label, ..Credentials::root() };
        let stat = if kind == FileKind::Regular && self.rng.random_ratio(1, 12) {
            vfs.tmpfile(&who, dir, &new)?
        } else {
            vfs.create(&who, dir, name_of(&name), &new)?
        };
        self.keep(vfs, Handle { ino: stat.ino, kind, label });
        Ok(())
    }

    fn symlink<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let (dir, name) = (self.dir(), self.any_name());
        let target = vec![b't'; self.rng.random_range(1..200)];
        let new = NewFile { kind: FileKind::Symlink, perm: 0o777, umask: 0, rdev: 0, target: Some(&target) };
        let stat = vfs.create(&self.who, dir, name_of(&name), &new)?;
        vfs.forget(stat.ino, 1);
        Ok(())
    }

    fn open<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let (dir, name) = (self.dir(), self.any_name());
        let stat = vfs.lookup(&self.who, dir, name_of(&name))?;
        self.keep(vfs, Handle { ino: stat.ino, kind: stat.attr.kind, label: stat.attr.uid });
        Ok(())
    }

    fn name<F: Format>(
        &mut self,
        vfs: &Vfs<F>,
        remove: impl Fn(&Vfs<F>, &Credentials, Ino, &Name) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (dir, name) = (self.dir(), self.any_name());
        remove(vfs, &self.who, dir, name_of(&name))
    }

    fn rename<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let (from, to) = ((self.dir(), self.any_name()), (self.dir(), self.any_name()));
        let mode = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
            [self.rng.random_range(0..4)];
        vfs.rename(&self.who, (from.0, name_of(&from.1)), (to.0, name_of(&to.1)), mode)
    }

    fn link<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let Some(file) = self.file() else { return Ok(()) };
        let (dir, name) = (self.dir(), self.any_name());
        let stat = vfs.link(&self.who, file.ino, dir, name_of(&name))?;
        vfs.forget(stat.ino, 1);
        Ok(())
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.rng.random_range(0..self.sectors_max);
        (start * stamp::SECTOR as u64, self.rng.random_range(1..=24) * stamp::SECTOR as u64)
    }

    fn write<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let Some(file) = self.file() else { return Ok(()) };
        let (offset, len) = self.range();
        self.write += 1;
        let data = stamp::bytes(u64::from(file.label), offset, len as usize, self.write);
        vfs.write(&self.who, file.ino, offset, &data, false)?;
        Ok(())
    }

    fn reshape<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let Some(file) = self.file() else { return Ok(()) };
        let (offset, len) = self.range();
        match self.rng.random_range(0..4) {
            0 => vfs.allocate(&self.who, file.ino, offset, len, Allocate::Extend),
            1 => vfs.allocate(&self.who, file.ino, offset, len, Allocate::Punch),
            _ => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                vfs.set_attr(&self.who, file.ino, &set).map(drop)
            }
        }
    }

    fn sync_one<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        match self.handles.len() {
            0 => Ok(()),
            len => vfs.fsync(self.handles[self.rng.random_range(0..len)].ino, self.rng.random_bool(0.3)),
        }
    }

    fn xattr<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let Some(file) = self.file().filter(|_| self.xattrs) else { return Ok(()) };
        let value = vec![b'v'; self.rng.random_range(1..300)];
        vfs.set_xattr(&self.who, file.ino, b"user.shared", &value, SetMode::Any)
    }

    fn list<F: Format>(&mut self, vfs: &Vfs<F>) -> Result<(), Error> {
        let dir = self.dir();
        vfs.list(&self.who, dir, Cookie::START, &mut |_| true)
    }

    fn read<F: Format>(&mut self, vfs: &Vfs<F>, excuses: Excuses) -> Said<()> {
        let Some(file) = self.file() else { return Ok(()) };
        let range = self.range();
        self.read_of(vfs, file, range, excuses)
    }

    fn read_of<F: Format>(&self, vfs: &Vfs<F>, file: Handle, (offset, len): (u64, u64), excuses: Excuses) -> Said<()> {
        let mut into = vec![0; len as usize];
        let n = match vfs.read(file.ino, offset, &mut into) {
            Ok(n) => n,
            Err(error) => return excuse(75, &error, excuses),
        };
        match foreign(u64::from(file.label), offset, &into[..n]) {
            None => Ok(()),
            Some(said) => Err(format!("a read of shared file #{} (inode {}): {said}", file.label, file.ino.0)),
        }
    }
}

/// Describes the first sector that is neither zeros nor stamped with this label and place.
fn foreign(label: u64, offset: u64, bytes: &[u8]) -> Option<String> {
    for (sector, bytes) in (offset / stamp::SECTOR as u64..).zip(bytes.chunks(stamp::SECTOR)) {
        let own = |stamp: &Stamp| stamp.label == label && stamp.sector == sector;
        let zeros = bytes.iter().all(|byte| *byte == 0);
        if !zeros && !matches!(&stamp::stamps_in(bytes)[..], [only] if own(only)) {
            return Some(format!("sector {sector} shows {}", stamp::describe(bytes)));
        }
    }
    None
}

fn excuse(what: u32, error: &Error, excuses: Excuses) -> Said<()> {
    match error.errno() {
        libc::ENOENT | libc::EEXIST | libc::ENOTEMPTY | libc::EINVAL | libc::EISDIR | libc::ENOTDIR | libc::EPERM => {
            Ok(())
        }
        // ext keeps at most one block of attributes.
        libc::ENOSPC if excuses.full || (89..92).contains(&what) => Ok(()),
        libc::EIO | libc::EROFS if excuses.broken => Ok(()),
        _ => Err(format!("shared operation {what}: {error}")),
    }
}

fn name_of(name: &str) -> &Name {
    Name::new(name.as_bytes()).expect("a legal name")
}

/// Checks the tree below the shared directory. Link counts are compared if `exact`.
///
/// # Errors
/// Bytes of other files, or counts that differ from the numbers of names.
pub fn judge(tree: &Tree, root: Ino, exact: bool) -> Said<()> {
    let mut names = std::collections::BTreeMap::<u64, u32>::new();
    let mut todo = vec![root.0];
    while let Some(ino) = todo.pop() {
        let Some(seen) = tree.nodes.get(&ino) else { continue };
        for child in seen.entries.values() {
            let count = names.entry(*child).or_default();
            *count += 1;
            if *count == 1 {
                todo.push(*child);
            }
        }
    }
    for (ino, count) in names {
        let Some(seen) = tree.nodes.get(&ino) else { return Err(format!("inode {ino} has names and is not there")) };
        if let Some(said) = strange_content(seen) {
            return Err(format!("shared file #{} (inode {ino}): {said}", seen.uid));
        }
        let subdirectories = seen.entries.values().filter(|child| is_dir(tree, **child)).count() as u32;
        let links = if seen.kind == FileKind::Directory { 2 + subdirectories } else { count };
        if seen.kind == FileKind::Directory && count != 1 && exact {
            return Err(format!("directory {ino} has {count} names"));
        }
        if exact && seen.nlink != links {
            return Err(format!("inode {ino} counts {} links and has {links}", seen.nlink));
        }
        if seen.nlink == 0 {
            return Err(format!("inode {ino} has {links} names and counts no links"));
        }
    }
    Ok(())
}

fn is_dir(tree: &Tree, ino: u64) -> bool {
    tree.nodes.get(&ino).is_some_and(|seen| seen.kind == FileKind::Directory)
}

fn strange_content(seen: &Seen) -> Option<String> {
    if seen.kind != FileKind::Regular {
        return None;
    }
    let piece = |content: &Content, (start, len): (u64, u64)| {
        let mut bytes = vec![0; len as usize];
        content.read(start, &mut bytes);
        bytes
    };
    seen.content
        .ranges()
        .into_iter()
        .find_map(|range| foreign(u64::from(seen.uid), range.0, &piece(&seen.content, range)))
}

/// Removes everything below a directory, while other clients do the same.
///
/// # Errors
/// Any error but that another client was first.
pub fn remove_all<F: Format>(vfs: &Arc<Vfs<F>>, dir: Ino, keep: &[&[u8]]) -> Said<()> {
    let who = Credentials::root();
    let raced = |error: &Error| matches!(error.errno(), libc::ENOENT | libc::ENOTEMPTY | libc::ENOTDIR | libc::EISDIR);
    loop {
        let mut names = Vec::new();
        let listed = vfs.list(&who, dir, Cookie::START, &mut |entry| {
            if !matches!(entry.name.as_bytes(), b"." | b"..") && !keep.contains(&entry.name.as_bytes()) {
                names.push(entry.name.as_bytes().to_vec());
            }
            true
        });
        listed.or_else(|error| if raced(&error) { Ok(()) } else { Err(format!("list while removing: {error}")) })?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            let name = Name::new(&name).expect("listed names are names");
            let stat = match vfs.lookup(&who, dir, name) {
                Ok(stat) => stat,
                Err(error) if raced(&error) => continue,
                Err(error) => return Err(format!("lookup while removing: {error}")),
            };
            let removed = if stat.attr.kind == FileKind::Directory {
                remove_all(vfs, stat.ino, &[])?;
                vfs.rmdir(&who, dir, name)
            } else {
                vfs.unlink(&who, dir, name)
            };
            vfs.forget(stat.ino, 1);
            match removed {
                Err(error) if !raced(&error) => {
                    return Err(format!("removal of {}: {error}", name.as_bytes().escape_ascii()));
                }
                _ => {}
            }
        }
    }
}
