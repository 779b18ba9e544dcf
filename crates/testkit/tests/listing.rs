//! Lists of directories that change meanwhile: a name that is there all the time is listed exactly once, and no other
//! name twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::judges::missing;
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::api::{NewFile, RenameMode};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [each_name_of_a_directory_that_changes_is_listed_once]
);

/// Runs on each geometry. Directories have up to this many names when the list begins.
const SEEDS: u64 = 12;
const NAMES_MAX: u64 = 600;

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// A directory, of which the test knows all names.
struct Watched<F: Format> {
    vfs: Vfs<F>,
    dir: Ino,
    file: Ino,
    rng: Pcg64Mcg,
    /// Names that come and go.
    passing: Vec<String>,
    made: u64,
}

impl<F: Format> Watched<F> {
    fn new(vfs: Vfs<F>, seed: u64) -> Watched<F> {
        let who = Credentials::root();
        let root = vfs.shape().root;
        let new = |kind| NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
        let file = vfs.create(&who, root, name("file"), &new(FileKind::Regular)).expect("a file").ino;
        let dir = vfs.create(&who, root, name(&format!("dir{seed}")), &new(FileKind::Directory)).expect("a directory");
        Watched { vfs, dir: dir.ino, file, rng: Pcg64Mcg::seed_from_u64(seed), passing: Vec::new(), made: 0 }
    }

    fn link(&mut self, kind: &str) -> String {
        self.made += 1;
        let text = format!("{kind}{}-{}", self.made, "n".repeat(self.rng.random_range(0..80)));
        self.vfs.link(&Credentials::root(), self.file, self.dir, name(&text)).expect("a link");
        text
    }

    /// Adds, removes or renames a passing name.
    fn change(&mut self) {
        let who = Credentials::root();
        let way = self.rng.random_range(0..4);
        if way < 2 || self.passing.is_empty() {
            let text = self.link("passing");
            self.passing.push(text);
            return;
        }
        let at = self.rng.random_range(0..self.passing.len());
        let text = self.passing.swap_remove(at);
        if way == 2 {
            return self.vfs.unlink(&who, self.dir, name(&text)).expect("a name goes");
        }
        self.made += 1;
        let longer = format!("{text}.{}", self.made);
        let (from, to) = ((self.dir, name(&text)), (self.dir, name(&longer)));
        self.vfs.rename(&who, from, to, RenameMode::Replace).expect("a rename");
        self.passing.push(longer);
    }

    /// Lists the directory by a few names at a time, with `changes` between.
    fn list(&mut self, changes: u64) -> BTreeMap<String, u32> {
        let (mut seen, mut from) = (BTreeMap::new(), Cookie::START);
        loop {
            let mut left = self.rng.random_range(1..40);
            let mut last = None;
            let taken = self.vfs.list(&Credentials::root(), self.dir, from, &mut |entry| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                *seen.entry(String::from_utf8_lossy(entry.name.as_bytes()).into_owned()).or_insert(0) += 1;
                last = Some(entry.next);
                true
            });
            taken.expect("the directory can be listed");
            let Some(behind) = last else { return seen };
            assert!(behind.0 < 1 << 63, "a position that a file offset cannot hold: {}", behind.0);
            from = behind;
            for _ in 0..self.rng.random_range(0..=changes) {
                self.change();
            }
        }
    }
}

fn each_name_of_a_directory_that_changes_is_listed_once<F: Family>() {
    for geometry in family::geometries::<F>(F::CRASH) {
        for seed in 0..SEEDS {
            let Some(disk) = F::make(&geometry) else {
                missing(geometry.name, "the tool that makes it is not installed");
                break;
            };
            let disk = Arc::new(disk);
            let vfs = F::mounter(seed).mount(disk, false).expect("it can be mounted");
            let mut watched = Watched::new(vfs, seed);
            let count = watched.rng.random_range(1..NAMES_MAX);
            let mut staying = Vec::new();
            for _ in 0..count {
                staying.push(watched.link("staying"));
                watched.change();
            }
            let changes = watched.rng.random_range(0..30);
            let seen = watched.list(changes);
            for text in &staying {
                assert_eq!(seen.get(text), Some(&1), "{}, seed {seed}: {text}", geometry.name);
            }
            let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
            assert!(twice.is_empty(), "{}, seed {seed}: {twice:?}", geometry.name);
            assert!(seen.contains_key(".") && seen.contains_key(".."), "{}, seed {seed}", geometry.name);
            watched.vfs.close().expect("it can be unmounted");
        }
    }
}
