//! A client that ages its own part of a volume: it knows exactly the files it made, and which of them are durable.

use std::collections::{BTreeMap, BTreeSet};

use moafs_vfs::api::RenameMode;
use moafs_vfs::types::{FileKind, Ino};
use moafs_vfs::{Format, Result};
use parking_lot::Mutex;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use super::calls::Calls;
use crate::content::Content;
use crate::stamp;
use crate::tree::{self, Tree};

type Said<T> = std::result::Result<T, String>;

/// The contents and attributes of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// The bytes of a regular file.
    Bytes(Content),
    /// The text of a symbolic link.
    Target(Vec<u8>),
}

/// A file under all of its names.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    data: Data,
    xattr: Option<Vec<u8>>,
}

impl File {
    fn of(data: Data) -> File {
        File { data, xattr: None }
    }

    fn size(&self) -> u64 {
        match &self.data {
            Data::Bytes(content) => content.size(),
            Data::Target(_) => 0,
        }
    }
}

/// A file as fsync made it durable, and every path at which it may be since.
#[derive(Debug, Clone)]
struct Promise {
    paths: Vec<String>,
    file: File,
}

/// The tree that a client made: files by number, so that all names of a file lead to the same one.
#[derive(Debug, Clone, Default)]
pub struct Own {
    dirs: BTreeSet<String>,
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, File>,
    promises: BTreeMap<u64, Promise>,
    next: u64,
}

/// Name of the attribute that clients set.
const KEY: &[u8] = b"user.a";

/// Weights and limits that a client draws its steps from.
#[derive(Debug, Clone, Default)]
pub struct Habits {
    /// Weights of the kinds of steps, in the order of [`Step`]; 0 switches one off.
    pub weights: [u32; STEPS],
    /// Largest write, bytes.
    pub write_bytes_max: u64,
    /// Largest sum of all files of the client, bytes.
    pub bytes_max: u64,
    /// Most names that the client may have.
    pub names_max: usize,
    /// Largest offset of sparse writes, bytes.
    pub sparse_bytes_max: u64,
    /// Largest value of an attribute, bytes; 0 for no attributes.
    pub xattr_bytes_max: usize,
    /// Longest target of a symbolic link, bytes.
    pub target_bytes_max: usize,
}

/// Kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Append,
    Overwrite,
    Sparse,
    Truncate,
    Unlink,
    Link,
    Symlink,
    Mkdir,
    RemoveTree,
    RenameFile,
    RenameTree,
    Exchange,
    Fsync,
    SetXattr,
    Save,
    Sync,
}

/// Number of kinds of steps.
pub const STEPS: usize = KINDS.len();

const KINDS: [Step; 17] = [
    Step::Create,
    Step::Append,
    Step::Overwrite,
    Step::Sparse,
    Step::Truncate,
    Step::Unlink,
    Step::Link,
    Step::Symlink,
    Step::Mkdir,
    Step::RemoveTree,
    Step::RenameFile,
    Step::RenameTree,
    Step::Exchange,
    Step::Fsync,
    Step::SetXattr,
    Step::Save,
    Step::Sync,
];

/// A client at work.
pub struct Client<'a, F: Format> {
    /// The volume.
    pub calls: Calls<'a, F>,
    /// Name of its directory.
    pub home: &'a str,
    /// The client's tree; other tasks read it while the client waits.
    pub own: &'a Mutex<Own>,
    /// The weights of the kinds of steps, and their limits.
    pub habits: &'a Habits,
    /// The random numbers that the steps are drawn from.
    pub rng: Pcg64Mcg,
    /// Inodes that it holds and that have no name any more.
    pub orphans: Vec<Ino>,
}

/// Returns true if a path lies below this directory, or is it.
fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a path after its directory `from` has become `to`.
fn moved(path: &str, from: &str, to: &str) -> String {
    format!("{to}{}", &path[from.len()..])
}

impl Own {
    /// Creates a tree of the home directory alone.
    pub fn new(home: &str) -> Own {
        Own { dirs: BTreeSet::from([home.to_owned()]), ..Own::default() }
    }

    fn bytes(&self) -> u64 {
        self.files.values().map(File::size).sum()
    }

    /// Allows every promise to a file below `from` to be kept below `to` as well.
    fn may_move(&mut self, from: &str, to: &str) {
        for promise in self.promises.values_mut() {
            let more: Vec<String> =
                promise.paths.iter().filter(|path| is_below(path, from)).map(|path| moved(path, from, to)).collect();
            promise.paths.extend(more);
        }
        self.promises.retain(|_, promise| promise.paths.len() < PATHS_MAX);
    }

    /// Removes a name and, if it was the last one, its file.
    fn forget_name(&mut self, path: &str) {
        if let Some(id) = self.names.remove(path)
            && !self.names.values().any(|other| *other == id)
        {
            self.files.remove(&id);
            self.promises.remove(&id);
        }
    }

    fn rename_tree(&mut self, from: &str, to: &str) {
        let dirs = std::mem::take(&mut self.dirs);
        let rename = |path: String| if is_below(&path, from) { moved(&path, from, to) } else { path };
        self.dirs = dirs.into_iter().map(rename).collect();
        let names = std::mem::take(&mut self.names);
        self.names = names.into_iter().map(|(path, id)| (rename(path), id)).collect();
    }

    /// Records a file's present state as promised.
    fn promise(&mut self, id: u64) {
        let Some(file) = self.files.get(&id).cloned() else { return };
        let paths = self.names.iter().filter(|(_, other)| **other == id).map(|(path, _)| path.clone()).collect();
        self.promises.insert(id, Promise { paths, file });
    }

    /// Compares the tree with the volume after a clean unmount.
    ///
    /// # Errors
    /// The first difference.
    pub fn same(&self, tree: &Tree, home: &str) -> Said<()> {
        let seen = Own::seen(tree, home, 0)?;
        if let Some(dir) = self.dirs.symmetric_difference(&seen.dirs).next() {
            return Err(format!("directory {dir} is {}", if seen.dirs.contains(dir) { "not ours" } else { "missing" }));
        }
        for path in self.names.keys().chain(seen.names.keys()) {
            let (Some(id), Some(ino)) = (self.names.get(path), seen.names.get(path)) else {
                let what = if seen.names.contains_key(path) { "not ours" } else { "missing" };
                return Err(format!("{path} is {what}"));
            };
            differs(path, &self.files[id], &seen.files[ino])?;
        }
        for id in self.files.keys() {
            let inos: BTreeSet<u64> =
                self.names.iter().filter(|(_, other)| *other == id).map(|(path, _)| seen.names[path]).collect();
            if inos.len() > 1 {
                return Err(format!("the names of file {id} lead to inodes {inos:?}"));
            }
        }
        Ok(())
    }

    /// Takes over the tree found after a kill; every promise must be kept, and stays. Before recovery has ended only
    /// promises to files that have not moved since are checked.
    ///
    /// # Errors
    /// The first promise that is not kept.
    pub fn after_kill(&self, tree: &Tree, home: &str, recovered: bool) -> Said<Own> {
        let mut seen = Own::seen(tree, home, self.next)?;
        for (id, promise) in self.promises.iter().filter(|(_, promise)| recovered || promise.paths.len() == 1) {
            let here: Vec<(&String, &u64)> =
                promise.paths.iter().filter_map(|path| seen.names.get_key_value(path)).collect();
            let kept = here.iter().find(|(_, ino)| seen.files[*ino] == promise.file);
            let Some((path, ino)) = kept.or(here.first()).copied() else {
                return Err(format!("file {id} is at none of {:?}", promise.paths));
            };
            differs(path, &promise.file, &seen.files[ino])?;
            let (paths, ino) = (vec![path.clone()], *ino);
            seen.promises.insert(ino, Promise { paths, file: promise.file.clone() });
        }
        Ok(seen)
    }

    /// Reads the tree that a volume shows, with inode numbers as numbers of files. Numbers that the client gives later
    /// start above `next`.
    fn seen(tree: &Tree, home: &str, next: u64) -> Said<Own> {
        let root = tree.nodes[&tree.root].entries.get(home.as_bytes());
        let root = *root.ok_or_else(|| format!("directory {home} is missing"))?;
        let mut own = Own { next: next.max(FIRST_LABEL), ..Own::default() };
        let mut todo = vec![(home.to_owned(), root)];
        while let Some((path, ino)) = todo.pop() {
            let seen = &tree.nodes[&ino];
            let data = match seen.kind {
                FileKind::Directory => {
                    let below = |(name, ino): (&Vec<u8>, &u64)| (format!("{path}/{}", name.escape_ascii()), *ino);
                    todo.extend(seen.entries.iter().map(below));
                    own.dirs.insert(path);
                    continue;
                }
                FileKind::Symlink => Data::Target(seen.target.clone()),
                _ => Data::Bytes(seen.content.clone()),
            };
            own.names.insert(path, ino);
            own.files.insert(ino, File { data, xattr: seen.xattrs.get(KEY).cloned() });
        }
        Ok(own)
    }
}

/// First number of files that a client makes, above all inode numbers.
const FIRST_LABEL: u64 = 1 << 40;

/// A promise that could be kept at more paths than this is dropped.
const PATHS_MAX: usize = 40;

/// Fails if two files differ.
fn differs(path: &str, should: &File, is: &File) -> Said<()> {
    if should == is {
        return Ok(());
    }
    match (&should.data, &is.data) {
        (Data::Bytes(should), Data::Bytes(is)) if should != is => {
            let first = tree::first_difference(should, is);
            let first = first.unwrap_or_else(|| format!("{} bytes, should be {}", is.size(), should.size()));
            Err(format!("{path}: {first}"))
        }
        (Data::Target(should), Data::Target(is)) if should != is => Err(format!("{path}: another target")),
        (Data::Bytes(_), Data::Target(_)) | (Data::Target(_), Data::Bytes(_)) => Err(format!("{path}: another kind")),
        _ => Err(format!("{path}: another attribute")),
    }
}

impl<F: Format> Client<'_, F> {
    /// Does one step, or nothing if the file it needs does not exist.
    ///
    /// # Errors
    /// A call that failed, or that was refused on a volume with room.
    pub fn step(&mut self) -> Said<()> {
        let (bytes, names) = {
            let own = self.own.lock();
            (own.bytes(), own.names.len() + own.dirs.len())
        };
        let kind = if bytes > self.habits.bytes_max || names > self.habits.names_max {
            [Step::Unlink, Step::RemoveTree][self.rng.random_range(0..2)]
        } else {
            self.draw()
        };
        self.take(kind).map_err(|said| format!("{kind:?}: {said}"))
    }

    fn draw(&mut self) -> Step {
        let total: u32 = self.habits.weights.iter().sum();
        let mut at = self.rng.random_range(0..total.max(1));
        for (kind, weight) in KINDS.iter().zip(self.habits.weights) {
            if at < weight {
                return *kind;
            }
            at -= weight;
        }
        Step::Create
    }

    fn take(&mut self, kind: Step) -> Said<()> {
        match kind {
            Step::Create => self.create(false),
            Step::Save => self.create(true),
            Step::Append | Step::Overwrite | Step::Sparse => self.write(kind),
            Step::Truncate => self.truncate(),
            Step::Unlink => self.unlink(),
            Step::Link => self.link(),
            Step::Symlink => self.symlink(),
            Step::Mkdir => self.mkdir(),
            Step::RemoveTree => self.remove_tree(),
            Step::RenameFile => self.rename_file(),
            Step::RenameTree => self.rename_tree(),
            Step::Exchange => self.exchange(),
            Step::Fsync => self.fsync(),
            Step::SetXattr => self.set_xattr(),
            Step::Sync => self.sync(),
        }
    }

    fn a_dir(&mut self) -> String {
        let own = self.own.lock();
        own.dirs.iter().nth(self.rng.random_range(0..own.dirs.len())).expect("a directory").clone()
    }

    fn a_name(&mut self) -> Option<(String, u64)> {
        let own = self.own.lock();
        let count = own.names.len();
        (count > 0)
            .then(|| own.names.iter().nth(self.rng.random_range(0..count)).map(|(path, id)| (path.clone(), *id)))?
    }

    /// Draws a name with a regular file, and returns its size as well.
    fn a_file(&mut self) -> Option<(String, u64, u64)> {
        let (path, id) = self.a_name()?;
        let own = self.own.lock();
        let file = &own.files[&id];
        matches!(file.data, Data::Bytes(_)).then(|| (path, id, file.size()))
    }

    /// Draws a path that is not taken. Its extension tells the volume that the file will often, or rarely, change.
    fn a_new_path(&mut self, letter: char) -> (String, u64) {
        let dir = self.a_dir();
        let mut own = self.own.lock();
        own.next = own.next.max(FIRST_LABEL) + 1;
        let extension = ["", "", "", ".mp3", ".db"][self.rng.random_range(0..5)];
        (format!("{dir}/{letter}{}{extension}", own.next - FIRST_LABEL), own.next)
    }

    /// Draws a length from 0 on, short ones more often.
    fn a_len(&mut self) -> u64 {
        let bits = self.rng.random_range(0..=self.habits.write_bytes_max.ilog2());
        self.rng.random_range(0..=(2_u64 << bits).min(self.habits.write_bytes_max))
    }

    fn create(&mut self, durable: bool) -> Said<()> {
        let (path, id) = self.a_new_path('f');
        if self.calls.with_space(0, || self.calls.make(&path, FileKind::Regular))?.is_none() {
            return Ok(());
        }
        {
            let mut own = self.own.lock();
            own.names.insert(path.clone(), id);
            own.files.insert(id, File::of(Data::Bytes(Content::default())));
        }
        let len = self.a_len();
        self.put(&path, id, 0, len)?;
        if durable { self.make_durable(&path, id) } else { Ok(()) }
    }

    /// Writes stamped bytes, and records the file's bytes, even if only a part fitted.
    fn put(&mut self, path: &str, id: u64, offset: u64, len: u64) -> Said<()> {
        if len == 0 {
            return Ok(());
        }
        self.own.lock().promises.remove(&id);
        let bytes = stamp::bytes(id, offset, len as usize, self.rng.random());
        let done = self.calls.with_space(len, || self.calls.write(path, offset, &bytes))?;
        if done.is_none() {
            return self.adopt(path, id);
        }
        if let Some(File { data: Data::Bytes(content), .. }) = self.own.lock().files.get_mut(&id) {
            content.write(offset, &bytes);
        }
        Ok(())
    }

    /// Takes over the bytes of a file after a write to it was refused.
    fn adopt(&mut self, path: &str, id: u64) -> Said<()> {
        let content = self.calls.with(path, |ino| self.read(ino)).map_err(|error| error.to_string())?;
        if let Some(file) = self.own.lock().files.get_mut(&id) {
            file.data = Data::Bytes(content);
        }
        Ok(())
    }

    fn read(&self, ino: Ino) -> Result<Content> {
        let size = self.calls.vfs.stat(ino)?.attr.size;
        tree::content_vfs(self.calls.vfs, ino, size).map_err(|(_, error)| error)
    }

    fn write(&mut self, kind: Step) -> Said<()> {
        let Some((path, id, size)) = self.a_file() else { return Ok(()) };
        let len = self.a_len();
        let offset = match kind {
            Step::Append => size,
            Step::Sparse => self.rng.random_range(0..self.habits.sparse_bytes_max),
            _ => self.rng.random_range(0..=size),
        };
        let len = if kind == Step::Sparse { len.min(SPARSE_BYTES) } else { len };
        self.put(&path, id, offset, len)
    }

    fn truncate(&mut self) -> Said<()> {
        let Some((path, id, size)) = self.a_file() else { return Ok(()) };
        let longer = self.rng.random_bool(0.2);
        let to = if longer { size + self.a_len() } else { self.rng.random_range(0..=size) };
        self.own.lock().promises.remove(&id);
        let call = || self.calls.truncate(&path, to);
        if longer {
            if self.calls.with_space(0, call)?.is_none() {
                return self.adopt(&path, id);
            }
        } else {
            call().map_err(|error| error.to_string())?;
        }
        if let Some(File { data: Data::Bytes(content), .. }) = self.own.lock().files.get_mut(&id) {
            content.resize(to);
        }
        Ok(())
    }

    fn unlink(&mut self) -> Said<()> {
        let Some((path, id)) = self.a_name() else { return Ok(()) };
        self.own.lock().promises.remove(&id);
        if self.rng.random_ratio(1, 8) && self.orphans.len() < ORPHANS_MAX {
            let hold = |ino| self.calls.vfs.hold(ino).map(|()| ino);
            self.orphans.push(self.calls.with(&path, hold).map_err(|error| error.to_string())?);
        }
        self.calls.unlink(&path).map_err(|error| error.to_string())?;
        self.own.lock().forget_name(&path);
        Ok(())
    }

    fn link(&mut self) -> Said<()> {
        let Some((path, id, _)) = self.a_file() else { return Ok(()) };
        let (to, _) = self.a_new_path('h');
        if self.calls.with_space(0, || self.calls.link(&path, &to))?.is_some() {
            self.own.lock().names.insert(to, id);
        }
        Ok(())
    }

    fn symlink(&mut self) -> Said<()> {
        let (path, id) = self.a_new_path('l');
        let target = vec![b't'; self.rng.random_range(1..=self.habits.target_bytes_max)];
        if self.calls.with_space(target.len() as u64, || self.calls.symlink(&path, &target))?.is_some() {
            let mut own = self.own.lock();
            own.names.insert(path, id);
            own.files.insert(id, File::of(Data::Target(target)));
        }
        Ok(())
    }

    fn mkdir(&mut self) -> Said<()> {
        let (path, _) = self.a_new_path('d');
        if path.matches('/').count() > DEPTH_MAX {
            return Ok(());
        }
        if self.calls.with_space(0, || self.calls.make(&path, FileKind::Directory))?.is_some() {
            self.own.lock().dirs.insert(path);
        }
        Ok(())
    }

    /// Removes a directory with all files below it.
    fn remove_tree(&mut self) -> Said<()> {
        let dir = self.a_dir();
        let (files, mut dirs) = {
            let mut own = self.own.lock();
            let below = |path: &&String| is_below(path, &dir);
            let files: Vec<String> = own.names.keys().filter(below).cloned().collect();
            let dirs: Vec<String> = own.dirs.iter().filter(below).cloned().collect();
            own.promises.retain(|_, promise| !promise.paths.iter().any(|path| is_below(path, &dir)));
            let ids: Vec<u64> = files.iter().map(|path| own.names[path]).collect();
            ids.iter().for_each(|id| drop(own.promises.remove(id)));
            (files, dirs)
        };
        for path in files {
            self.calls.unlink(&path).map_err(|error| format!("{path}: {error}"))?;
            self.own.lock().forget_name(&path);
        }
        dirs.retain(|dir| dir != self.home);
        for path in dirs.iter().rev() {
            self.calls.rmdir(path).map_err(|error| format!("{path}: {error}"))?;
            self.own.lock().dirs.remove(path);
        }
        Ok(())
    }

    fn rename_file(&mut self) -> Said<()> {
        let Some((from, id)) = self.a_name() else { return Ok(()) };
        let replaced = if self.rng.random_bool(0.5) { self.a_name() } else { None };
        let to = replaced.as_ref().map_or_else(|| self.a_new_path('r').0, |(path, _)| path.clone());
        // Both are names of one file: POSIX demands that rename does nothing.
        if to == from || replaced.as_ref().is_some_and(|(_, other)| *other == id) {
            return Ok(());
        }
        {
            let mut own = self.own.lock();
            if let Some((_, other)) = replaced {
                own.promises.remove(&other);
            }
            own.may_move(&from, &to);
        }
        if self.calls.with_space(0, || self.calls.rename(&from, &to, RenameMode::Replace))?.is_some() {
            let mut own = self.own.lock();
            own.forget_name(&to);
            own.names.remove(&from);
            own.names.insert(to, id);
        }
        Ok(())
    }

    fn rename_tree(&mut self) -> Said<()> {
        let (from, to) = (self.a_dir(), self.a_new_path('t').0);
        if from == self.home || is_below(&to, &from) {
            return Ok(());
        }
        self.own.lock().may_move(&from, &to);
        if self.calls.with_space(0, || self.calls.rename(&from, &to, RenameMode::Replace))?.is_some() {
            self.own.lock().rename_tree(&from, &to);
        }
        Ok(())
    }

    fn exchange(&mut self) -> Said<()> {
        let (Some((a, first)), Some((b, second))) = (self.a_name(), self.a_name()) else { return Ok(()) };
        if first == second {
            return Ok(());
        }
        {
            let mut own = self.own.lock();
            let of_b = own.promises.remove(&second);
            own.may_move(&a, &b);
            own.promises.extend(of_b.map(|promise| (second, promise)));
            let of_a = own.promises.remove(&first);
            own.may_move(&b, &a);
            own.promises.extend(of_a.map(|promise| (first, promise)));
        }
        if self.calls.with_space(0, || self.calls.rename(&a, &b, RenameMode::Exchange))?.is_some() {
            let mut own = self.own.lock();
            own.names.insert(a, second);
            own.names.insert(b, first);
        }
        Ok(())
    }

    fn fsync(&mut self) -> Said<()> {
        let Some((path, id, _)) = self.a_file() else { return Ok(()) };
        self.make_durable(&path, id)
    }

    fn make_durable(&mut self, path: &str, id: u64) -> Said<()> {
        self.calls.fsync(path).map_err(|error| format!("fsync: {error}"))?;
        self.calls.say(format_args!("durable {path}"));
        self.own.lock().promise(id);
        Ok(())
    }

    fn set_xattr(&mut self) -> Said<()> {
        if self.habits.xattr_bytes_max == 0 {
            return Ok(());
        }
        let Some((path, id, _)) = self.a_file() else { return Ok(()) };
        // Inodes with equal attributes may share a block, so each gets a value of its own.
        let value = stamp::bytes(id, 0, self.rng.random_range(40..=self.habits.xattr_bytes_max), self.rng.random());
        self.own.lock().promises.remove(&id);
        if self.calls.with_space(0, || self.calls.set_xattr(&path, KEY, &value))?.is_some()
            && let Some(file) = self.own.lock().files.get_mut(&id)
        {
            file.xattr = Some(value);
        }
        Ok(())
    }

    fn sync(&mut self) -> Said<()> {
        self.calls.vfs.sync().map_err(|error| error.to_string())?;
        let mut own = self.own.lock();
        let ids: Vec<u64> = own.files.keys().copied().collect();
        ids.into_iter().for_each(|id| own.promise(id));
        Ok(())
    }
}

/// Largest write far from all others, bytes.
const SPARSE_BYTES: u64 = 20_000;
/// Most inodes without a name that a client holds.
const ORPHANS_MAX: usize = 6;
/// Deepest nesting of directories.
const DEPTH_MAX: usize = 12;
