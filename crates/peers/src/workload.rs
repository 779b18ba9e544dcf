//! The workloads that the file systems run. Each workload prepares a volume, and is measured from a
//! cold cache to the end of its sync.
//!
//! All of them are one thread of plain system calls, drawn from a seed: the same for every file
//! system. Names are visited in the order the workload made them, or in the order the directory
//! lists them where the tool it stands for does so.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::{PeersError, Result};
use crate::machine::Interrupt;
use crate::sizes::{self, BYTES_MAX, Contents, SMALL_BYTES_MAX};

/// A workload of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Small files created directory by directory, then one sync.
    Create,
    /// Postmark with R-FSL's sizes, then a sync.
    Postmark,
    /// A tree unpacked as tar does it, then a sync.
    Untar,
    /// A tree copied to another place of the same volume, then a sync.
    Copy,
    /// Small files written anew in place, in random order, then a sync.
    Overwrite,
    /// The same, but truncated first, as editors and shells do it.
    Replace,
    /// A tree removed, then a sync.
    Delete,
    /// Small files removed by name, then a sync.
    Remove,
    /// Small files looked at without being read.
    Stat,
    /// A tree read.
    ReadTree,
    /// All files of every directory read, after aging.
    AgedRead,
    /// Small files created one by one, each with an fsync.
    Fsync,
}

impl Workload {
    /// All workloads of the comparison.
    pub const ALL: [Workload; 12] = [
        Workload::Create,
        Workload::Postmark,
        Workload::Untar,
        Workload::Copy,
        Workload::Overwrite,
        Workload::Replace,
        Workload::Delete,
        Workload::Remove,
        Workload::Stat,
        Workload::ReadTree,
        Workload::AgedRead,
        Workload::Fsync,
    ];

    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Create => "create",
            Workload::Postmark => "postmark",
            Workload::Untar => "untar",
            Workload::Copy => "copy",
            Workload::Overwrite => "overwrite",
            Workload::Replace => "replace",
            Workload::Delete => "delete",
            Workload::Remove => "remove",
            Workload::Stat => "stat",
            Workload::ReadTree => "read-tree",
            Workload::AgedRead => "aged-read",
            Workload::Fsync => "fsync",
        }
    }

    /// Describes in one line the work at full scale.
    pub fn describe(self) -> &'static str {
        match self {
            Workload::Create => "20 directories x 500 files of R-FSL's sizes up to 16 KiB, created in order; one sync",
            Workload::Postmark => {
                "25,000 files (R-FSL) in 200 directories, created directory by directory, then 50,000 transactions (read or \
                 append 4 KiB, and create or delete); one sync"
            }
            Workload::Untar => {
                "60 directories, 3,000 files (R-FSL), each written, chmod, utimes, as tar -x does; one sync"
            }
            Workload::Copy => {
                "that tree copied on the same volume, read and written in the order directories list; one sync"
            }
            Workload::Overwrite => "the files of create written anew in place, same size, in random order; one sync",
            Workload::Replace => "the same with O_TRUNC at each open; one sync",
            Workload::Delete => "the tree of untar removed in the order directories list (rm -r); one sync",
            Workload::Remove => "the files of create removed in the order of their names; one sync",
            Workload::Stat => "the attributes of the files of create, in the order directories list them (ls -l)",
            Workload::ReadTree => "the tree of untar read in the order directories list it (tar -c)",
            Workload::AgedRead => {
                "50 directories x 60 files (R-FSL up to 256 KiB), aged by deleting, creating and appending 4 x their bytes \
                 with 100 syncs on the way; then every file read, directory by directory, in the order of names"
            }
            Workload::Fsync => {
                "500 files of R-FSL's sizes up to 16 KiB in one directory, each created, written, fsynced"
            }
        }
    }

    /// Makes the files that the volume holds before the measurement begins.
    pub(crate) fn prepare(self, place: &Place<'_>) -> Result<()> {
        match self {
            Workload::Create | Workload::Postmark | Workload::Untar | Workload::Fsync => Ok(()),
            Workload::Overwrite | Workload::Replace | Workload::Remove | Workload::Stat => create(place).map(drop),
            Workload::Copy | Workload::Delete | Workload::ReadTree => untar(place).map(drop),
            Workload::AgedRead => age(place),
        }
    }

    /// Runs the measured part but for the last sync. Returns the bytes of file data that the disk
    /// must move for it.
    pub(crate) fn run(self, place: &Place<'_>) -> Result<u64> {
        match self {
            Workload::Create => create(place),
            Workload::Postmark => postmark(place),
            Workload::Untar => untar(place),
            Workload::Copy => copy(place, &place.path("tree"), &place.path("copy")),
            Workload::Overwrite => overwrite(place, false),
            Workload::Replace => overwrite(place, true),
            Workload::Delete => delete(place, &place.path("tree")).map(|()| 0),
            Workload::Remove => remove(place).map(|()| 0),
            Workload::Stat => look_at_all(place, place.root).map(|()| 0),
            Workload::ReadTree => read_tree(place, &place.path("tree"), &mut vec![0; COPY_BYTES]),
            Workload::AgedRead => read_all(place),
            Workload::Fsync => fsync_each(place),
        }
    }
}

/// The environment of a workload: its volume, its scale, its seed and its data.
pub(crate) struct Place<'a> {
    /// The root of the volume.
    pub(crate) root: &'a Path,
    /// Scale of the workload; 1 is full size.
    pub(crate) scale: f64,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// Bytes that files are filled with.
    pub(crate) contents: &'a Contents,
    /// The request to stop.
    pub(crate) interrupt: &'a Interrupt,
}

/// The block of mke2fs, mkfs.xfs and mkfs.btrfs (its sector), and ours, by default.
const BLOCK_BYTES: u64 = 4096;
/// Directories and files of create.
const DIRECTORIES: u64 = 20;
const DIRECTORY_FILES: u64 = 500;
/// Directories and files of the tree.
const TREE_DIRECTORIES: u64 = 60;
const TREE_FILES: u64 = 3_000;
/// Directories, files and transactions of Postmark (`spec`: the paper's configuration).
const POSTMARK_DIRECTORIES: u64 = 200;
const POSTMARK_FILES: u64 = 25_000;
const POSTMARK_TRANSACTIONS: u64 = 50_000;
const APPEND_BYTES: u64 = 4096;
/// Directories and files of aging.
const AGED_DIRECTORIES: u64 = 50;
const AGED_FILES: u64 = 3_000;
const AGED_BYTES_MAX: u64 = 256 << 10;
const AGED_TURNOVER: u64 = 4;
const AGED_SYNCS: u64 = 100;
/// Files of the workload that syncs each of them.
const FSYNC_FILES: u64 = 500;
/// Bytes that copying programs read at once.
const COPY_BYTES: usize = 128 << 10;
/// The modification time of the files that tar unpacks.
const TAR_TIME: Duration = Duration::from_secs(1_500_000_000);

impl Place<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns a count at this scale, at least 1.
    fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(1)
    }

    /// Returns a count of directories, at least 1. It goes with the square root of the scale, and
    /// so do the files in each.
    fn directories(&self, full: u64) -> u64 {
        ((full as f64 * self.scale.sqrt()).round() as u64).max(1)
    }

    fn rng(&self, stream: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn make_dir(&self, path: &Path) -> Result<()> {
        self.interrupt.check()?;
        fs::create_dir(path).map_err(PeersError::host("making", path))
    }

    /// Creates a file of `len` bytes.
    fn write_new(&self, path: &Path, number: u64, len: u64) -> Result<File> {
        self.interrupt.check()?;
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let mut file = file.map_err(PeersError::host("creating", path))?;
        file.write_all(self.contents.of(number, len)).map_err(PeersError::host("writing", path))?;
        Ok(file)
    }

    /// Reads a file to its end and returns its length.
    fn read(&self, path: &Path, buffer: &mut [u8]) -> Result<u64> {
        self.interrupt.check()?;
        let mut file = File::open(path).map_err(PeersError::host("opening", path))?;
        let mut total = 0;
        loop {
            match file.read(buffer).map_err(PeersError::host("reading", path))? {
                0 => return Ok(total),
                len => total += len as u64,
            }
        }
    }
}

/// Draws the files of `create`. Their numbers, directories and sizes are the same at each call.
fn small_files(place: &Place<'_>) -> Vec<(PathBuf, u64)> {
    let mut rng = place.rng(1);
    let directories = place.directories(DIRECTORIES);
    let each = (place.count(DIRECTORIES * DIRECTORY_FILES) / directories).max(1);
    let of_directory = |directory| (0..each).map(move |number| format!("create-{directory:02}/file-{number:04}"));
    let names = (0..directories).flat_map(of_directory);
    names.map(|name| (place.path(&name), sizes::size(&mut rng, SMALL_BYTES_MAX))).collect()
}

/// Returns the bytes that a file of `len` bytes makes the disk move: all these file systems store
/// whole blocks by default.
fn whole_blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK_BYTES)
}

fn create(place: &Place<'_>) -> Result<u64> {
    let mut bytes = 0;
    let mut last = None;
    for (number, (path, len)) in small_files(place).into_iter().enumerate() {
        let directory = path.parent().map(Path::to_owned);
        if directory != last {
            directory.iter().try_for_each(|path| place.make_dir(path))?;
            last = directory;
        }
        place.write_new(&path, number as u64, len)?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

fn overwrite(place: &Place<'_>, truncate: bool) -> Result<u64> {
    let mut files: Vec<_> = small_files(place).into_iter().enumerate().collect();
    files.shuffle(&mut place.rng(2));
    let mut bytes = 0;
    for (number, (path, len)) in files {
        place.interrupt.check()?;
        let file = OpenOptions::new().write(true).truncate(truncate).open(&path);
        let mut file = file.map_err(PeersError::host("opening", &path))?;
        file.write_all(place.contents.of(number as u64 + 1, len)).map_err(PeersError::host("writing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

fn fsync_each(place: &Place<'_>) -> Result<u64> {
    let mut rng = place.rng(3);
    let directory = place.path("fsync");
    place.make_dir(&directory)?;
    let mut bytes = 0;
    for number in 0..place.count(FSYNC_FILES) {
        let (path, len) = (directory.join(format!("message-{number:05}")), sizes::size(&mut rng, SMALL_BYTES_MAX));
        let file = place.write_new(&path, number, len)?;
        file.sync_all().map_err(PeersError::host("syncing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Unpacks a tree as sources have it: directories below directories, files in all of them, in the
/// order an archive lists them.
fn untar(place: &Place<'_>) -> Result<u64> {
    let mut rng = place.rng(4);
    let directories = place.directories(TREE_DIRECTORIES);
    let files = place.count(TREE_FILES);
    let mut paths: Vec<PathBuf> = vec![place.path("tree")];
    for number in 1..directories {
        let parent = rng.random_range(0..paths.len());
        let path = paths[parent].join(format!("dir-{number:03}"));
        paths.push(path);
    }
    paths.sort();
    let (mut bytes, mut number) = (0, 0);
    for (at, directory) in (1..).zip(&paths) {
        place.make_dir(directory)?;
        while number < files * at / directories {
            let (path, len) = (directory.join(format!("file-{number:05}.c")), sizes::size(&mut rng, BYTES_MAX));
            let file = place.write_new(&path, number, len)?;
            let tell = PeersError::host("setting mode and time of", &path);
            let time = SystemTime::UNIX_EPOCH + TAR_TIME;
            let set = file.set_permissions(Permissions::from_mode(0o644)).and_then(|()| file.set_modified(time));
            set.map_err(tell)?;
            (bytes, number) = (bytes + whole_blocks(len), number + 1);
        }
    }
    Ok(bytes)
}

/// Lists a directory in its own order: paths, and true for each that is a directory.
fn list(directory: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?.is_dir()))
    };
    let listed = fs::read_dir(directory).and_then(|entries| entries.map(entry).collect::<std::io::Result<Vec<_>>>());
    listed.map_err(PeersError::host("listing", directory))
}

fn copy(place: &Place<'_>, from: &Path, to: &Path) -> Result<u64> {
    place.make_dir(to)?;
    let mut bytes = 0;
    for (path, is_dir) in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        bytes += if is_dir { copy(place, &path, &target)? } else { copy_file(place, &path, &target)? };
    }
    Ok(bytes)
}

/// Copies a file with read and write: a clone would move no data.
fn copy_file(place: &Place<'_>, from: &Path, to: &Path) -> Result<u64> {
    place.interrupt.check()?;
    let mut source = File::open(from).map_err(PeersError::host("opening", from))?;
    let target = OpenOptions::new().write(true).create_new(true).open(to);
    let mut target = target.map_err(PeersError::host("creating", to))?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut bytes = 0;
    loop {
        let len = source.read(&mut buffer).map_err(PeersError::host("reading", from))?;
        if len == 0 {
            // Each block is read once and written once.
            return Ok(2 * whole_blocks(bytes));
        }
        target.write_all(&buffer[..len]).map_err(PeersError::host("writing", to))?;
        bytes += len as u64;
    }
}

fn delete(place: &Place<'_>, directory: &Path) -> Result<()> {
    for (path, is_dir) in list(directory)? {
        place.interrupt.check()?;
        if is_dir {
            delete(place, &path)?;
        } else {
            fs::remove_file(&path).map_err(PeersError::host("removing", &path))?;
        }
    }
    fs::remove_dir(directory).map_err(PeersError::host("removing", directory))
}

fn remove(place: &Place<'_>) -> Result<()> {
    small_files(place).into_iter().try_for_each(|(path, _)| {
        place.interrupt.check()?;
        fs::remove_file(&path).map_err(PeersError::host("removing", &path))
    })
}

/// Asks for the attributes of everything below a directory.
fn look_at_all(place: &Place<'_>, directory: &Path) -> Result<()> {
    for (path, is_dir) in list(directory)? {
        place.interrupt.check()?;
        fs::symlink_metadata(&path).map_err(PeersError::host("looking at", &path))?;
        if is_dir {
            look_at_all(place, &path)?;
        }
    }
    Ok(())
}

fn read_tree(place: &Place<'_>, directory: &Path, buffer: &mut [u8]) -> Result<u64> {
    let mut bytes = 0;
    for (path, is_dir) in list(directory)? {
        let read = if is_dir { read_tree(place, &path, buffer) } else { place.read(&path, buffer).map(whole_blocks) };
        bytes += read?;
    }
    Ok(bytes)
}

/// Files that come and go: what Postmark and aging have in common.
struct Pool<'a> {
    place: &'a Place<'a>,
    rng: Pcg64Mcg,
    prefix: &'static str,
    directories: u64,
    bytes_max: u64,
    files: Vec<PathBuf>,
    made: u64,
    written: u64,
}

impl<'a> Pool<'a> {
    fn new(
        place: &'a Place<'a>,
        stream: u64,
        prefix: &'static str,
        directories: u64,
        bytes_max: u64,
    ) -> Result<Pool<'a>> {
        for directory in 0..directories {
            place.make_dir(&place.path(&format!("{prefix}-{directory:03}")))?;
        }
        let rng = place.rng(stream);
        Ok(Pool { place, rng, prefix, directories, bytes_max, files: Vec::new(), made: 0, written: 0 })
    }

    fn create_in(&mut self, directory: u64) -> Result<()> {
        let (number, prefix) = (self.made, self.prefix);
        let path = self.place.path(&format!("{prefix}-{directory:03}/{number:06}"));
        let len = sizes::size(&mut self.rng, self.bytes_max);
        self.place.write_new(&path, number, len)?;
        self.files.push(path);
        self.made += 1;
        self.written += len;
        Ok(())
    }

    /// Fills the directories one after another.
    fn fill(&mut self, files: u64) -> Result<()> {
        (0..files).try_for_each(|number| self.create_in(number * self.directories / files))
    }

    fn create(&mut self) -> Result<()> {
        let directory = self.rng.random_range(0..self.directories);
        self.create_in(directory)
    }

    fn any(&mut self) -> usize {
        self.rng.random_range(0..self.files.len())
    }

    fn delete(&mut self) -> Result<()> {
        self.place.interrupt.check()?;
        let at = self.any();
        let path = self.files.swap_remove(at);
        fs::remove_file(&path).map_err(PeersError::host("removing", &path))?;
        // The pool always keeps a file to choose.
        if self.files.is_empty() { self.create() } else { Ok(()) }
    }

    fn append(&mut self) -> Result<()> {
        self.place.interrupt.check()?;
        let at = self.any();
        let path = &self.files[at];
        let file = OpenOptions::new().append(true).open(path);
        let mut file = file.map_err(PeersError::host("opening", path))?;
        let data = self.place.contents.of(at as u64, APPEND_BYTES);
        file.write_all(data).map_err(PeersError::host("appending to", path))?;
        self.written += APPEND_BYTES;
        Ok(())
    }
}

fn postmark(place: &Place<'_>) -> Result<u64> {
    let mut pool = Pool::new(place, 5, "postmark", place.directories(POSTMARK_DIRECTORIES), BYTES_MAX)?;
    pool.fill(place.count(POSTMARK_FILES))?;
    let mut buffer = vec![0; COPY_BYTES];
    for _ in 0..place.count(POSTMARK_TRANSACTIONS) {
        if pool.rng.random_bool(0.5) {
            let at = pool.any();
            place.read(&pool.files[at], &mut buffer)?;
        } else {
            pool.append()?;
        }
        if pool.rng.random_bool(0.5) { pool.create() } else { pool.delete() }?;
    }
    // The bytes read may have been cached, and the files deleted may never have been written: only
    // the files that are left must move.
    let size = |path: &PathBuf| {
        fs::metadata(path).map(|meta| whole_blocks(meta.len())).map_err(PeersError::host("looking at", path))
    };
    pool.files.iter().map(size).sum()
}

/// Deletes, creates and appends until the volume's bytes were turned over, with syncs on the way,
/// as months of use would do.
fn age(place: &Place<'_>) -> Result<()> {
    let files = place.count(AGED_FILES);
    let mut pool = Pool::new(place, 6, "aged", place.directories(AGED_DIRECTORIES), AGED_BYTES_MAX)?;
    pool.fill(files)?;
    let fresh = pool.written;
    let turnover = fresh * AGED_TURNOVER;
    let mut next_sync = fresh;
    while pool.written < fresh + turnover {
        if pool.written >= next_sync {
            next_sync += (turnover / AGED_SYNCS).max(1);
            sync(place.root)?;
        }
        match pool.rng.random_range(0..4) {
            0 => pool.append()?,
            // As many files are deleted as are created, so that the volume stays as full.
            _ if pool.files.len() as u64 > files => pool.delete()?,
            _ => pool.create()?,
        }
    }
    Ok(())
}

fn sync(root: &Path) -> Result<()> {
    let dir = File::open(root).map_err(PeersError::host("opening", root))?;
    rustix::fs::syncfs(&dir).map_err(PeersError::host("syncing", root))
}

fn read_all(place: &Place<'_>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut bytes = 0;
    let mut directories = list(place.root)?;
    directories.retain(|(path, _)| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("aged-")));
    directories.sort();
    for (directory, _) in directories {
        let mut files = list(&directory)?;
        files.sort();
        for (path, _) in files {
            bytes += whole_blocks(place.read(&path, &mut buffer)?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `what` on a small scale in a directory of the host.
    fn on_the_host(what: impl FnOnce(&Place<'_>)) {
        let dir = tempfile::tempdir().unwrap();
        let contents = Contents::new(&mut Pcg64Mcg::seed_from_u64(7));
        let interrupt = Interrupt::default();
        what(&Place { root: dir.path(), scale: 0.01, seed: 7, contents: &contents, interrupt: &interrupt });
    }

    fn files_below(path: &Path) -> u64 {
        let below = |(path, is_dir): (PathBuf, bool)| if is_dir { files_below(&path) } else { 1 };
        list(path).unwrap().into_iter().map(below).sum()
    }

    #[test]
    fn every_workload_runs_on_what_it_prepares() {
        for workload in Workload::ALL {
            on_the_host(|place| {
                workload.prepare(place).unwrap();
                let bytes = workload.run(place).unwrap();
                let moves_data = !matches!(workload, Workload::Delete | Workload::Remove | Workload::Stat);
                assert_eq!(bytes > 0, moves_data, "{}", workload.name());
            });
        }
    }

    #[test]
    fn a_copy_is_the_tree_and_a_deletion_leaves_nothing() {
        on_the_host(|place| {
            let written = Workload::Untar.run(place).unwrap();
            assert_eq!(Workload::Copy.run(place).unwrap(), 2 * written);
            assert_eq!(files_below(&place.path("copy")), 30);
            Workload::Delete.run(place).unwrap();
            assert_eq!((files_below(place.root), place.path("tree").exists()), (30, false));
        });
    }

    #[test]
    fn what_is_read_is_the_tree_and_what_is_removed_are_all_small_files() {
        on_the_host(|place| {
            let written = Workload::Untar.run(place).unwrap();
            assert_eq!(Workload::ReadTree.run(place).unwrap(), written);
            Workload::Create.run(place).unwrap();
            let files = files_below(place.root);
            Workload::Remove.run(place).unwrap();
            assert_eq!(files_below(place.root), files - small_files(place).len() as u64);
        });
    }

    #[test]
    fn the_same_seed_makes_the_same_files() {
        let mut sizes = Vec::new();
        for _ in 0..2 {
            on_the_host(|place| {
                age(place).unwrap();
                sizes.push(read_all(place).unwrap());
            });
        }
        assert_eq!(sizes[0], sizes[1]);
    }

    #[test]
    fn overwriting_in_place_keeps_sizes() {
        on_the_host(|place| {
            create(place).unwrap();
            overwrite(place, false).unwrap();
            for (path, len) in small_files(place) {
                assert_eq!(fs::metadata(path).unwrap().len(), len);
            }
        });
    }

    #[test]
    fn an_interrupt_ends_a_workload() {
        on_the_host(|place| {
            let interrupt = Interrupt::raised();
            let place = Place { interrupt: &interrupt, ..*place };
            assert!(matches!(Workload::Create.run(&place), Err(PeersError::Interrupted)));
        });
    }
}
