//! Random operations against a plain model, one task or several, in virtual time with small caches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use moafs_disk::probe::fault::{EVERYWHERE, Harm, Rule, Victims, When};
use moafs_runtime::virt::Virtual;
use moafs_vfs::api::{Allocate, Credentials, Options, RenameMode, SetAttr};
use moafs_vfs::types::{Cookie, Ino};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const FILE_BYTES_MAX: u64 = 60_000;

/// The model: names and their bytes. Directories are flat: two of them.
#[derive(Default)]
struct Model {
    files: BTreeMap<(usize, String), Vec<u8>>,
}

struct Player<'a> {
    v: &'a Volume,
    dirs: [Ino; 2],
    rng: Pcg64Mcg,
    model: Model,
}

impl Player<'_> {
    fn place(&mut self) -> (usize, String) {
        (self.rng.random_range(0..2), format!("n{}", self.rng.random_range(0..6)))
    }

    fn find(&self, at: &(usize, String)) -> Option<Ino> {
        self.v.vfs.lookup(&Credentials::root(), self.dirs[at.0], name(&at.1)).ok().map(|stat| stat.ino)
    }

    fn step(&mut self) {
        let at = self.place();
        let dir = self.dirs[at.0];
        let Some(ino) = self.find(&at) else {
            assert!(!self.model.files.contains_key(&at));
            let ino = self.v.create(dir, &at.1);
            self.model.files.insert(at, Vec::new());
            self.v.vfs.forget(ino, 1);
            return;
        };
        let other = self.place();
        let offset = self.rng.random_range(0..FILE_BYTES_MAX / 2);
        let len = self.rng.random_range(1..FILE_BYTES_MAX / 2) as usize;
        let seed = self.rng.random_range(0..255);
        let bytes = self.model.files.get_mut(&at).expect("vfs and the model agree");
        match self.rng.random_range(0..16) {
            0..4 => {
                let data = pattern(seed, len.min(9000));
                self.v.write(ino, offset, &data);
                grow(bytes, offset as usize + data.len());
                bytes[offset as usize..][..data.len()].copy_from_slice(&data);
            }
            4 => {
                let data = pattern(seed, len % 500 + 1);
                self.v.vfs.write(&Credentials::root(), ino, 0, &data, true).unwrap();
                bytes.extend(&data);
            }
            5..7 => {
                let expect: &[u8] = bytes.get(offset as usize..).unwrap_or_default();
                assert_eq!(self.v.read(ino, offset, len), expect[..len.min(expect.len())]);
            }
            7 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                self.v.vfs.set_attr(&Credentials::root(), ino, &set).unwrap();
                bytes.resize(offset as usize, 0);
            }
            8 => {
                self.v.vfs.allocate(&Credentials::root(), ino, offset, len as u64, Allocate::Punch).unwrap();
                let end = bytes.len().min(offset as usize + len);
                if (offset as usize) < end {
                    bytes[offset as usize..end].fill(0);
                }
            }
            9 => {
                self.v.vfs.allocate(&Credentials::root(), ino, offset, len as u64, Allocate::Extend).unwrap();
                grow(bytes, offset as usize + len);
            }
            10 => self.v.vfs.fsync(ino, seed % 2 == 0).unwrap(),
            11 => self.v.vfs.sync().unwrap(),
            12 => {
                let to = (self.dirs[other.0], name(&other.1));
                self.v.vfs.rename(&Credentials::root(), (dir, name(&at.1)), to, RenameMode::Replace).unwrap();
                let bytes = self.model.files.remove(&at).unwrap();
                self.model.files.insert(other, bytes);
            }
            13 => {
                self.v.vfs.unlink(&Credentials::root(), dir, name(&at.1)).unwrap();
                self.model.files.remove(&at);
            }
            14 => self.v.vfs.shrink(0),
            _ => self.copy(ino, &at, &other, offset, len),
        }
        self.v.vfs.forget(ino, 1);
        moafs_runtime::sleep_until(&*self.v.rt, self.v.rt.now() + Duration::from_millis(50));
    }

    fn copy(&mut self, ino: Ino, at: &(usize, String), other: &(usize, String), offset: u64, len: usize) {
        if at == other {
            return;
        }
        let Some(to) = self.find(other) else { return };
        let got =
            self.v.vfs.copy_range(&Credentials::root(), (ino, offset), (to, offset / 2), len as u64).unwrap() as usize;
        let source = self.model.files[at].clone();
        assert_eq!(got, source.len().saturating_sub(offset as usize).min(len));
        let target = self.model.files.get_mut(other).unwrap();
        let start = offset as usize / 2;
        if got > 0 {
            grow(target, start + got);
            target[start..start + got].copy_from_slice(&source[offset as usize..][..got]);
        }
        self.v.vfs.forget(to, 1);
    }

    fn check(&self) {
        for dir in 0..2 {
            let mut names = Vec::new();
            self.v
                .vfs
                .list(&Credentials::root(), self.dirs[dir], Cookie::START, &mut |entry| {
                    names.push(entry.name.to_string());
                    true
                })
                .unwrap();
            names.retain(|n| n.starts_with('n'));
            names.sort();
            let expect: Vec<String> =
                self.model.files.keys().filter(|(d, _)| *d == dir).map(|(_, n)| n.clone()).collect();
            assert_eq!(names, expect);
        }
        for (at, bytes) in &self.model.files {
            let ino = self.find(at).unwrap();
            assert_eq!(self.v.vfs.stat(ino).unwrap().attr.size, bytes.len() as u64, "{at:?}");
            assert_eq!(self.v.read(ino, 0, 1 << 20), *bytes, "{at:?}");
            self.v.vfs.forget(ino, 1);
        }
    }
}

fn grow(bytes: &mut Vec<u8>, len: usize) {
    let len = bytes.len().max(len);
    bytes.resize(len, 0);
}

fn small(seed: u64) -> Options {
    let cache_bytes = [256 << 10, 600 << 10, 4 << 20][(seed % 3) as usize];
    Options { cache_bytes, syncer: true, dirty_age: Duration::from_secs(2), ..options() }
}

#[test]
fn random_operations_agree_with_a_plain_model() {
    for seed in 0..24 {
        let virt = Virtual::new(Some(seed));
        virt.run(|| {
            let v = Volume::new(4096, small(seed), virt.rt());
            v.vfs.format().co_write.store(seed % 2 == 0, std::sync::atomic::Ordering::Relaxed);
            let dirs = [v.mkdir(ROOT, "a"), v.mkdir(ROOT, "b")];
            let mut player = Player { v: &v, dirs, rng: Pcg64Mcg::seed_from_u64(seed), model: Model::default() };
            for _ in 0..400 {
                player.step();
            }
            player.check();
            v.vfs.sync().unwrap();
            v.vfs.shrink(0);
            player.check();
            v.vfs.run_background_step();
            v.vfs.shrink(0);
            assert_eq!(v.vfs.format().promised(), 0);
            v.vfs.format().used();
            assert_eq!(v.vfs.format().inodes(), 3 + player.model.files.len());
            v.vfs.close().unwrap();
        });
    }
}

#[test]
fn random_operations_survive_failing_writes() {
    for seed in 0..12 {
        let virt = Virtual::new(Some(seed));
        virt.run(|| {
            let v = Volume::new(4096, Options { cache_bytes: 4 << 20, ..small(seed) }, virt.rt());
            let files: Vec<Ino> = (0..8).map(|i| v.create(ROOT, &format!("f{i}"))).collect();
            let mut bytes = vec![Vec::new(); files.len()];
            let mut rng = Pcg64Mcg::seed_from_u64(seed);
            v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::EveryNth(seed % 5 + 1), Harm::Error)]);
            for _ in 0..200 {
                let i = rng.random_range(0..files.len());
                let data = pattern(rng.random_range(0..99), rng.random_range(1..4000));
                let offset = rng.random_range(0..20_000);
                v.write(files[i], offset as u64, &data);
                grow(&mut bytes[i], offset + data.len());
                bytes[i][offset..][..data.len()].copy_from_slice(&data);
                match rng.random_range(0..10) {
                    0 => drop(v.vfs.sync()),
                    1 => drop(v.vfs.fsync(files[i], false)),
                    _ => {}
                }
                assert_eq!(v.read(files[i], 0, 1 << 20), bytes[i]);
            }
            v.fault.set(Vec::new());
            for ino in &files {
                let _ = v.vfs.fsync(*ino, false);
                v.vfs.fsync(*ino, false).unwrap();
            }
            v.vfs.sync().unwrap();
            v.vfs.shrink(0);
            for (ino, bytes) in files.iter().zip(&bytes) {
                assert_eq!(v.read(*ino, 0, 1 << 20), *bytes);
            }
            v.vfs.format().used();
            assert_eq!(v.vfs.format().promised(), 0);
            v.vfs.close().unwrap();
        });
    }
}

/// Works on files that several tasks share: the last writer of a block is not known, but it is one of them.
fn contend(v: &Volume, dirs: [Ino; 3], shared: Ino, task: u64, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed * 31 + task);
    let who = Credentials::root();
    for _ in 0..60 {
        let dir = dirs[rng.random_range(0..3)];
        let other = dirs[rng.random_range(0..3)];
        let (a, b) = (format!("x{}", rng.random_range(0..4)), format!("x{}", rng.random_range(0..4)));
        match rng.random_range(0..14) {
            0..2 => {
                if let Ok(stat) = v.vfs.create(&who, dir, name(&a), &regular(0o644)) {
                    let _ = v.vfs.write(&who, stat.ino, 0, &[task as u8; 3000], false);
                    v.vfs.forget(stat.ino, 1);
                }
            }
            2 => {
                if let Ok(stat) = v.vfs.create(&who, dir, name(&a), &directory(0o755)) {
                    v.vfs.forget(stat.ino, 1);
                }
            }
            3 => drop(v.vfs.unlink(&who, dir, name(&a))),
            4 => drop(v.vfs.rmdir(&who, dir, name(&a))),
            5..7 => {
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][rng.random_range(0..3)];
                let _ = v.vfs.rename(&who, (dir, name(&a)), (other, name(&b)), mode);
            }
            7 => {
                // The fixed directories also move.
                let from = ["d0", "d1", "d2"][rng.random_range(0..3)];
                let _ = v.vfs.rename(&who, (ROOT, name(from)), (other, name(from)), RenameMode::Replace);
                let _ = v.vfs.rename(&who, (other, name(from)), (ROOT, name(from)), RenameMode::Replace);
            }
            8..10 => {
                // One block at a time: a read of it sees one write only.
                let at = rng.random_range(0..40) * BLOCK as u64;
                v.vfs.write(&who, shared, at, &[task as u8 + 1; BLOCK], false).unwrap();
            }
            10 => {
                let at = rng.random_range(0..40) * BLOCK as u64;
                let bytes = v.read(shared, at, BLOCK);
                assert!(bytes.iter().all(|b| *b == bytes[0]), "a torn write");
            }
            11 => {
                let size = rng.random_range(0..40) * BLOCK as u64;
                v.vfs.set_attr(&who, shared, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
            }
            12 => v.vfs.fsync(shared, false).unwrap(),
            _ => {
                let at = rng.random_range(0..40) * BLOCK as u64;
                v.vfs.allocate(&who, shared, at, 5 * BLOCK as u64, Allocate::Punch).unwrap();
                v.vfs.shrink(0);
            }
        }
    }
}

/// Checks every directory's link count and every file's against the names. Returns the number of directories and files.
fn check_tree(v: &Volume) -> usize {
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut queue = vec![ROOT];
    let mut seen = vec![ROOT];
    while let Some(dir) = queue.pop() {
        let mut subdirs = 0;
        let mut entries = Vec::new();
        v.vfs
            .list(&Credentials::root(), dir, Cookie::START, &mut |entry| {
                entries.push((entry.name.to_string(), entry.ino));
                true
            })
            .unwrap();
        for (n, ino) in entries.into_iter().filter(|(n, _)| n != "." && n != "..") {
            let stat = v.vfs.lookup(&Credentials::root(), dir, name(&n)).unwrap();
            v.vfs.forget(ino, 1);
            if stat.attr.kind == moafs_vfs::types::FileKind::Directory {
                assert_eq!(v.vfs.lookup(&Credentials::root(), ino, name("..")).unwrap().ino, dir);
                v.vfs.forget(dir, 1);
                assert!(!seen.contains(&ino), "a directory has two names");
                subdirs += 1;
                seen.push(ino);
                queue.push(ino);
            } else {
                *names.entry(ino).or_default() += 1;
            }
        }
        assert_eq!(v.vfs.stat(dir).unwrap().attr.nlink, 2 + subdirs);
    }
    for (ino, count) in &names {
        assert_eq!(v.vfs.stat(*ino).unwrap().attr.nlink, *count);
    }
    seen.len() + names.len()
}

#[test]
fn tasks_that_share_everything_leave_a_sound_tree() {
    for seed in 0..150 {
        let virt = Virtual::new(Some(seed));
        virt.run(|| {
            let opts = Options { cache_bytes: if seed % 2 == 0 { 256 << 10 } else { 4 << 20 }, ..small(seed) };
            let v = Arc::new(Volume::new(4096, opts, virt.rt()));
            let slow = Harm::Slow(Duration::from_millis(3));
            v.fault.set(vec![Rule::new(Victims::Requests(EVERYWHERE), When::EveryNth(seed % 3 + 1), slow)]);
            let dirs = [v.mkdir(ROOT, "d0"), v.mkdir(ROOT, "d1"), v.mkdir(ROOT, "d2")];
            let shared = v.create(ROOT, "shared");
            let tasks: Vec<_> = (0..seed % 3 + 2)
                .map(|task| {
                    let v = Arc::clone(&v);
                    v.rt.clone().spawn("player", Box::new(move || contend(&v, dirs, shared, task, seed)))
                })
                .collect();
            tasks.iter().for_each(|task| task.join(&*v.rt));
            let alive = check_tree(&v);
            v.vfs.run_background_step();
            assert_eq!(
                v.vfs.format().inodes(),
                alive + dirs.iter().filter(|d| is_orphan(&v, **d)).count(),
                "seed {seed}"
            );
            v.vfs.sync().unwrap();
            v.vfs.shrink(0);
            check_tree(&v);
            assert_eq!(v.vfs.format().promised(), 0);
            v.vfs.format().used();
            let v = Arc::into_inner(v).expect("the tasks have ended");
            v.vfs.close().unwrap();
        });
    }
}

/// Returns true for an inode that the test holds, but that has no name.
fn is_orphan(v: &Volume, ino: Ino) -> bool {
    v.vfs.stat(ino).unwrap().attr.nlink == 0
}
