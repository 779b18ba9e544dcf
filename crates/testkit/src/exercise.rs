//! Uses a volume that may be damaged in any way: walk, read, write, remove, check. Errors are allowed; panics, hangs
//! and unbounded memory are not.

use moafs_vfs::api::{NewFile, RenameMode, SetAttr};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Format, Vfs};

/// Limits of the walk: a damaged volume may claim to hold any amount.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most inodes visited.
    pub inodes: usize,
    /// Most entries listed per directory.
    pub entries: usize,
    /// Most bytes read per file, from its start and from its end.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { inodes: 300, entries: 300, bytes: 128 << 10 }
    }
}

/// Reads every readable file, then changes every one that can be changed. Returns the number of calls that failed.
pub fn exercise<F: Format>(vfs: &Vfs<F>, bounds: Bounds) -> u64 {
    let mut exercise = Exercise { vfs, who: Credentials::root(), bounds, errors: 0 };
    let found = exercise.walk();
    exercise.change(&found);
    exercise.errors
}

struct Exercise<'a, F: Format> {
    vfs: &'a Vfs<F>,
    who: Credentials,
    bounds: Bounds,
    errors: u64,
}

struct Found {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
    kind: FileKind,
}

impl<F: Format> Exercise<'_, F> {
    fn note<T>(&mut self, result: moafs_vfs::Result<T>) -> Option<T> {
        self.errors += u64::from(result.is_err());
        result.ok()
    }

    fn walk(&mut self) -> Vec<Found> {
        let root = self.vfs.shape().root;
        let mut found: Vec<Found> = Vec::new();
        let mut todo = vec![root];
        while let Some(dir) = todo.pop() {
            for name in self.names(dir) {
                if found.len() >= self.bounds.inodes {
                    return found;
                }
                let Some(legal) = Name::new(&name) else { continue };
                let looked_up = self.vfs.lookup(&self.who, dir, legal);
                let Some(stat) = self.note(looked_up) else { continue };
                self.look(stat.ino, stat.attr.kind, stat.attr.size);
                if stat.attr.kind == FileKind::Directory && !matches!(&name[..], b"." | b"..") {
                    todo.push(stat.ino);
                }
                found.push(Found { dir, name, ino: stat.ino, kind: stat.attr.kind });
            }
        }
        found
    }

    fn names(&mut self, dir: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let most = self.bounds.entries;
        let listed = self.vfs.list(&self.who, dir, Cookie::START, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            names.len() < most
        });
        self.note(listed);
        names
    }

    fn look(&mut self, ino: Ino, kind: FileKind, size: u64) {
        let keys = self.vfs.list_xattr(&self.who, ino);
        for key in self.note(keys).unwrap_or_default() {
            let value = self.vfs.get_xattr(&self.who, ino, &key.full());
            self.note(value);
        }
        match kind {
            FileKind::Symlink => {
                let target = self.vfs.readlink(ino);
                self.note(target);
            }
            FileKind::Regular => {
                self.read(ino, 0, size);
                self.read(ino, size.saturating_sub(self.bounds.bytes), size);
                let data = self.vfs.seek(ino, 0, moafs_vfs::api::Seek::Hole);
                self.note(data);
            }
            _ => {}
        }
    }

    fn read(&mut self, ino: Ino, from: u64, size: u64) {
        let mut buf = vec![0; 32 << 10];
        let end = size.min(from.saturating_add(self.bounds.bytes));
        let mut at = from;
        while at < end {
            let read = self.vfs.read(ino, at, &mut buf);
            let Some(n) = self.note(read) else { return };
            if n == 0 {
                return;
            }
            at += n as u64;
        }
    }

    fn change(&mut self, found: &[Found]) {
        let root = self.vfs.shape().root;
        self.make(root);
        for (number, it) in found.iter().enumerate().filter(|(_, it)| !matches!(&it.name[..], b"." | b"..")) {
            self.touch(it, number);
        }
        for it in found {
            self.vfs.forget(it.ino, 1);
        }
        for _ in 0..6 {
            self.vfs.run_background_step();
        }
        let synced = self.vfs.sync();
        self.note(synced);
    }

    fn make(&mut self, root: Ino) {
        for (name, kind) in
            [("made", FileKind::Regular), ("made.dir", FileKind::Directory), ("made.fifo", FileKind::Fifo)]
        {
            let new = NewFile { kind, perm: 0o600, umask: 0, rdev: 0, target: None };
            let name = Name::new(name.as_bytes()).expect("a legal name");
            let made = self.vfs.create(&self.who, root, name, &new);
            let Some(stat) = self.note(made) else { continue };
            if kind == FileKind::Regular {
                let written = self.vfs.write(&self.who, stat.ino, 0, &[7; 40 << 10], false);
                self.note(written);
                let synced = self.vfs.fsync(stat.ino, false);
                self.note(synced);
            }
            self.vfs.forget(stat.ino, 1);
        }
    }

    /// Makes a different change to each file, by its number.
    fn touch(&mut self, it: &Found, number: usize) {
        let name = Name::new(&it.name).expect("looked up with it before");
        match (number % 5, it.kind) {
            (0, FileKind::Regular) => {
                let written = self.vfs.write(&self.who, it.ino, 0, &[1; 5000], true);
                self.note(written);
            }
            (1, FileKind::Regular) => {
                let set = SetAttr { size: Some(700), ..SetAttr::default() };
                let cut = self.vfs.set_attr(&self.who, it.ino, &set);
                self.note(cut);
            }
            (2, _) => {
                let set = self.vfs.set_xattr(&self.who, it.ino, b"user.made", &[b'v'; 50], SetMode::Any);
                self.note(set);
                let moved = Name::new(b"made.moved").expect("a legal name");
                let root = self.vfs.shape().root;
                let renamed = self.vfs.rename(&self.who, (it.dir, name), (root, moved), RenameMode::Exchange);
                self.note(renamed);
            }
            (_, FileKind::Directory) => {
                let removed = self.vfs.rmdir(&self.who, it.dir, name);
                self.note(removed);
            }
            _ => {
                let removed = self.vfs.unlink(&self.who, it.dir, name);
                self.note(removed);
            }
        }
    }
}
