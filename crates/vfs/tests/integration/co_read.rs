//! Co-reading: the number of requests, the bytes, and changes to a neighbour while it is read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use moafs_disk::probe::fault::{EVERYWHERE, Harm, Rule, Victims, When};
use moafs_runtime::sleep_until;
use moafs_runtime::virt::Virtual;
use moafs_vfs::Credentials;
use moafs_vfs::api::{Allocate, CacheRole, Options, SetAttr};
use moafs_vfs::types::Ino;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Writes a directory of files of these lengths in blocks, placed side by side.
fn written(v: &Volume, dir: &str, blocks: &[usize]) -> Vec<Ino> {
    v.vfs.format().co_write.store(true, Ordering::Relaxed);
    let d = v.mkdir(ROOT, dir);
    let files: Vec<Ino> = (0..blocks.len()).map(|i| v.create(d, &format!("f{i}"))).collect();
    for (ino, blocks) in files.iter().zip(blocks) {
        v.write(*ino, 0, &bytes_of(*ino, *blocks));
        v.vfs.forget(*ino, 1);
    }
    v.vfs.sync().unwrap();
    files
}

/// Returns contents that name their file. The last block is not full.
fn bytes_of(ino: Ino, blocks: usize) -> Vec<u8> {
    pattern(ino.0, blocks * BLOCK - 24)
}

/// Writes everything and empties the cache of pages and inodes. (Inodes that were used get a second chance.)
fn cold(v: &Volume) {
    v.vfs.sync().unwrap();
    (0..3).for_each(|_| v.vfs.shrink(0));
    assert_eq!((v.vfs.counters().cached_bytes, v.vfs.counters().inodes_now), (0, 0));
}

/// Counts the requests for reading these files in this order, whole; each has this many blocks.
fn requests(v: &Volume, files: &[Ino], blocks: usize) -> u64 {
    let before = v.vfs.counters().fill_requests;
    for ino in files {
        assert_eq!(v.read(*ino, 0, 1 << 20), bytes_of(*ino, blocks), "inode {}", ino.0);
    }
    v.vfs.counters().fill_requests - before
}

fn volume(co_read_bytes: usize) -> Volume {
    Volume::new(16384, Options { co_read_bytes, ..options() }, moafs_runtime::Live::new())
}

/// Runs a test that reads enough to learn from the device's times: each request takes `ms` milliseconds.
fn on_slow_device(ms: u64, test: impl FnOnce(&Volume)) {
    let virt = Virtual::new(None);
    virt.run(|| {
        let v = Volume::new(16384, Options { co_read_bytes: 32 * BLOCK, ..options() }, virt.rt());
        let slow = Harm::Slow(Duration::from_millis(ms));
        v.fault.set(vec![Rule::new(Victims::Requests(EVERYWHERE), When::Always, slow)]);
        test(&v);
        v.vfs.close().unwrap();
    });
}

#[test]
fn a_walk_through_a_directory_costs_few_requests() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[1; 64]);
    cold(&v);
    // Three requests for one file each, the third brings 4 neighbours; then 8, 16, 31, and the rest.
    assert_eq!(requests(&v, &files, 1), 6);
    let c = v.vfs.counters();
    assert_eq!((c.co_reads, c.co_read_blocks, c.co_read_blocks_used, c.co_read_blocks_wasted), (4, 58, 58, 0));
    v.vfs.close().unwrap();

    let v = volume(0);
    let files = written(&v, "d", &[1; 64]);
    cold(&v);
    assert_eq!(requests(&v, &files, 1), 64);
    assert_eq!(v.vfs.counters().co_reads, 0);
    v.vfs.close().unwrap();
}

#[test]
fn files_of_several_blocks_come_whole() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[3; 40]);
    cold(&v);
    assert_eq!(requests(&v, &files, 3), 8);
    assert_eq!(v.vfs.counters().co_read_blocks % 3, 0, "a file is brought whole or not at all");
    v.vfs.close().unwrap();
}

#[test]
fn files_made_in_order_and_placed_by_size_are_walked_by_number() {
    let v = volume(32 * BLOCK);
    let blocks: Vec<usize> = (0..60).map(|i| [3, 1, 2, 1, 4][i % 5]).collect();
    let files = written(&v, "d", &blocks);
    cold(&v);
    let before = v.vfs.counters().fill_requests;
    for (ino, blocks) in files.iter().zip(&blocks) {
        assert_eq!(v.read(*ino, 0, 1 << 20), bytes_of(*ino, *blocks));
    }
    let requests = v.vfs.counters().fill_requests - before;
    assert!(requests <= 20, "{requests} requests for 60 files");
    v.vfs.close().unwrap();
}

#[test]
fn a_random_reader_causes_the_same_requests() {
    for seed in 0..8 {
        let counts: Vec<_> = [0, 128 * BLOCK]
            .iter()
            .map(|co_read_bytes| {
                let v = volume(*co_read_bytes);
                let mut files: Vec<Ino> = (0..20).flat_map(|d| written(&v, &format!("d{d}"), &[1; 50])).collect();
                files.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
                cold(&v);
                let requests = requests(&v, &files, 1);
                let c = v.vfs.counters();
                v.vfs.close().unwrap();
                (requests, c.co_read_blocks)
            })
            .collect();
        assert_eq!(counts, [(1000, 0), (1000, 0)], "seed {seed}");
    }
}

#[test]
fn several_walks_at_once_are_told_apart() {
    on_slow_device(2, |v| {
        let dirs: Vec<Vec<Ino>> = (0..6).map(|d| written(v, &format!("d{d}"), &[1; 40])).collect();
        cold(v);
        let interleaved: Vec<Ino> = (0..40).flat_map(|i| dirs.iter().map(move |files| files[i])).collect();
        let requests = requests(v, &interleaved, 1);
        // Six for each walk, and eight that find out what a file costs alone.
        assert!(requests <= 6 * 6 + 8, "{requests} requests");
    });
}

#[test]
fn what_is_dirty_or_cached_is_not_read_again() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[2; 24]);
    cold(&v);
    let newer = vec![0xAB; BLOCK];
    v.write(files[5], 0, &newer);
    v.vfs.set_attr(&Credentials::root(), files[6], &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
    for (i, ino) in files.iter().enumerate() {
        let mut expect = bytes_of(*ino, 2);
        match i {
            5 => expect[..BLOCK].copy_from_slice(&newer),
            6 => expect.truncate(100),
            _ => {}
        }
        assert_eq!(v.read(*ino, 0, 1 << 20), expect, "file {i}");
    }
    assert!(v.vfs.counters().co_reads > 0);
    v.vfs.close().unwrap();
}

#[test]
fn a_wrong_hint_changes_no_bytes() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[1; 40]);
    v.vfs.format().lies.store(true, Ordering::Relaxed);
    cold(&v);
    assert_eq!(requests(&v, &files, 1), 40);
    assert_eq!(v.vfs.counters().co_read_blocks, 0);
    v.vfs.close().unwrap();
}

#[test]
fn a_block_that_moves_between_the_map_and_the_marks_is_read_where_it_is_then() {
    let virt = Virtual::new(None);
    virt.run(|| {
        let rt = virt.rt();
        let v = Arc::new(Volume::new(16384, Options { co_read_bytes: 32 * BLOCK, ..options() }, Arc::clone(&rt)));
        let files = written(&v, "d", &[2; 8]);
        cold(&v);
        let format = v.vfs.format();
        format.reallocates.store(true, Ordering::Relaxed);
        // The third file of a walk is the first that is co-read.
        requests(&v, &files[..2], 2);
        let (f, newer) = (files[2], vec![7; BLOCK - 24]);
        v.write(f, BLOCK as u64, &newer);
        *format.stall.lock() = Some(Stall { rt: Arc::clone(&rt), point: Point::Mapped, pause: Duration::from_secs(1) });
        let there = Arc::clone(&v);
        let reader = rt.spawn("reader", Box::new(move || drop(there.read(f, 0, 2 * BLOCK))));
        sleep_until(&*rt, rt.now() + Duration::from_millis(500));
        // The second block moves, another file gets its place, and its page leaves the cache.
        v.vfs.sync().unwrap();
        let other = v.create(ROOT, "other");
        v.write(other, 0, &[9; BLOCK]);
        v.vfs.sync().unwrap();
        (0..3).for_each(|_| v.vfs.shrink(0));
        reader.join(&*rt);
        let expected = [&bytes_of(f, 2)[..BLOCK], &newer].concat();
        assert!(v.read(f, 0, 2 * BLOCK) == expected, "bytes of another file");
        Arc::into_inner(v).expect("the reader has ended").vfs.close().unwrap();
    });
}

#[test]
fn a_file_that_moves_while_it_is_brought_is_read_where_it_is_then() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[1; 20]);
    cold(&v);
    requests(&v, &files[..2], 1);
    *v.vfs.format().moves.lock() = Some(files[2]);
    requests(&v, &files[2..], 1);
    assert!(v.vfs.counters().co_reads > 0 && v.vfs.format().moves.lock().is_none());
    v.vfs.close().unwrap();
}

#[test]
fn an_error_beside_a_file_is_not_the_files() {
    let v = volume(32 * BLOCK);
    let files = written(&v, "d", &[1; 20]);
    cold(&v);
    // The toy's first block is block 1; that of file 6 lies beside what the walk through 0, 1, 2 brings with 2.
    let sectors = BLOCK as u64 / 512;
    let bad = 7 * sectors..8 * sectors;
    v.fault.set(vec![Rule::new(Victims::Reads(bad), When::Always, Harm::Error)]);
    for ino in &files[..6] {
        assert_eq!(v.read(*ino, 0, BLOCK), bytes_of(*ino, 1));
    }
    assert_eq!(errno(v.vfs.read(files[6], 0, &mut [0; 10])), libc::EIO);
    assert_eq!(v.read(files[7], 0, BLOCK), bytes_of(files[7], 1));
    v.fault.set(Vec::new());
    assert_eq!(v.read(files[6], 0, BLOCK), bytes_of(files[6], 1));
    cold(&v);
    v.vfs.close().unwrap();
}

#[test]
fn behind_a_kernels_cache_neighbours_wait_to_be_asked_for_and_leave_then() {
    let opts = Options { role: CacheRole::Behind, co_read_bytes: 32 * BLOCK, ..options() };
    let v = Volume::new(16384, opts, moafs_runtime::Live::new());
    let files = written(&v, "d", &[1; 40]);
    cold(&v);
    assert_eq!(requests(&v, &files[..3], 1), 3);
    // The three that were served go first, the four that were not stay.
    let charged = v.vfs.counters().cached_bytes as usize / BLOCK * (BLOCK + 192);
    v.vfs.shrink(charged / 7 * 4 + v.vfs.counters().inodes_now as usize * 2560);
    assert_eq!(v.vfs.counters().cached_bytes as usize, 4 * BLOCK);
    assert_eq!(requests(&v, &files[3..7], 1), 0);
    assert_eq!(v.vfs.counters().co_read_blocks_wasted, 0);
    v.vfs.close().unwrap();
}

#[test]
fn what_does_not_pay_is_asked_for_less() {
    on_slow_device(2, |v| {
        let dirs: Vec<Vec<Ino>> = (0..8).map(|d| written(v, &format!("d{d}"), &[1; 110])).collect();
        // A reader that jumps over all that a walker would want.
        let mut brought = Vec::new();
        for files in &dirs {
            cold(v);
            let before = v.vfs.counters().co_read_blocks;
            assert_eq!(requests(v, &[0, 1, 2, 7, 16, 33].map(|i| files[i]), 1), 6);
            brought.push(v.vfs.counters().co_read_blocks - before);
        }
        cold(v);
        let c = v.vfs.counters();
        assert_eq!((c.co_read_blocks_used, c.co_read_blocks_wasted), (0, c.co_read_blocks));
        assert_eq!((brought[0], brought[7]), (4 + 8 + 16 + 31, 4 + 4 + 4), "{brought:?}");
        // From here on co-reading pays again.
        let requests = requests(v, &dirs.concat(), 1);
        assert!(requests < 100, "{requests} requests for 880 files");
    });
}

#[test]
fn a_neighbour_that_is_being_written_is_left_out() {
    let virt = Virtual::new(None);
    virt.run(|| {
        let v = Arc::new(Volume::new(4096, Options { co_read_bytes: 32 * BLOCK, ..options() }, virt.rt()));
        let files = written(&v, "d", &[2; 8]);
        cold(&v);
        let slow = Harm::Slow(Duration::from_millis(2));
        v.fault.set(vec![Rule::new(Victims::Requests(EVERYWHERE), When::Always, slow)]);
        requests(&v, &files[..2], 2);
        // It keeps the start of its first block, and reads that with its lock held; it does not need the second.
        let (writer, busy) = (Arc::clone(&v), files[3]);
        let write = move || writer.write(busy, 100, &[7; 2 * BLOCK - 100]);
        let task = v.rt.clone().spawn("writer", Box::new(write));
        moafs_runtime::sleep_until(&*v.rt, v.rt.now() + Duration::from_millis(1));
        assert_eq!(requests(&v, &files[2..3], 2), 1);
        assert_eq!(v.vfs.counters().co_read_blocks, 2, "the file behind the busy one");
        task.join(&*v.rt);
        let mut expect = bytes_of(busy, 2);
        expect.resize(2 * BLOCK, 0);
        expect[100..].fill(7);
        assert_eq!(v.read(busy, 0, 1 << 20), expect);
        assert_eq!(requests(&v, &files[4..5], 2), 0);
        Arc::into_inner(v).expect("the writer has ended").vfs.close().unwrap();
    });
}

/// A task that changes and checks the files of one directory; each file belongs to one player, the others only read it.
struct Player {
    v: Arc<Volume>,
    dir: Ino,
    rng: Pcg64Mcg,
    /// Name and contents; `None` while it does not exist.
    own: Vec<(usize, Option<Vec<u8>>)>,
    files: usize,
}

impl Player {
    fn find(&self, file: usize) -> Option<Ino> {
        self.v.vfs.lookup(&Credentials::root(), self.dir, name(&format!("f{file}"))).ok().map(|stat| stat.ino)
    }

    /// Reads everything in order. A file's bytes bear its number or are zeros, whichever file had its blocks and its
    /// inode number before.
    fn walk(&mut self) {
        for file in 0..self.files {
            let Some(ino) = self.find(file) else { continue };
            let mut bytes = vec![0; 20 * BLOCK];
            if let Ok(len) = self.v.vfs.read(ino, 0, &mut bytes) {
                assert!(bytes[..len].iter().all(|b| *b == 0 || *b % 32 == file as u8), "file {file}");
            }
            self.v.vfs.forget(ino, 1);
        }
        for (file, bytes) in &self.own {
            let Some(bytes) = bytes else { continue };
            let ino = self.find(*file).expect("nobody else removes it");
            assert_eq!(self.v.read(ino, 0, 20 * BLOCK), *bytes, "file {file}");
            self.v.vfs.forget(ino, 1);
        }
    }

    fn change(&mut self) {
        let which = self.rng.random_range(0..self.own.len());
        let (file, there) = self.own[which].clone();
        let what = self.rng.random_range(0..8);
        let Some(mut bytes) = there else {
            let ino = self.v.create(self.dir, &format!("f{file}"));
            let fill = self.fill(file);
            let bytes = vec![fill; self.rng.random_range(1..3 * BLOCK)];
            self.v.write(ino, 0, &bytes);
            self.v.vfs.forget(ino, 1);
            self.own[which].1 = Some(bytes);
            return;
        };
        let ino = self.find(file).expect("nobody else removes it");
        match what {
            0..2 => {
                self.v.vfs.unlink(&Credentials::root(), self.dir, name(&format!("f{file}"))).unwrap();
                self.own[which].1 = None;
            }
            2 => {
                let block = self.rng.random_range(0..3);
                let offset = (block * BLOCK) as u64;
                self.v.vfs.allocate(&Credentials::root(), ino, offset, BLOCK as u64, Allocate::Punch).unwrap();
                bytes.iter_mut().skip(block * BLOCK).take(BLOCK).for_each(|byte| *byte = 0);
                self.own[which].1 = Some(bytes);
            }
            3 => {
                let size = self.rng.random_range(0..3 * BLOCK);
                self.v
                    .vfs
                    .set_attr(&Credentials::root(), ino, &SetAttr { size: Some(size as u64), ..Default::default() })
                    .unwrap();
                bytes.resize(size, 0);
                self.own[which].1 = Some(bytes);
            }
            _ => {
                let offset = self.rng.random_range(0..2 * BLOCK);
                let data = vec![self.fill(file); self.rng.random_range(1..2 * BLOCK)];
                self.v.write(ino, offset as u64, &data);
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[offset..][..data.len()].copy_from_slice(&data);
                self.own[which].1 = Some(bytes);
            }
        }
        self.v.vfs.forget(ino, 1);
    }

    fn fill(&mut self, file: usize) -> u8 {
        file as u8 + 32 * self.rng.random_range(0..8)
    }

    fn play(&mut self) {
        for round in 0..12 {
            (0..6).for_each(|_| self.change());
            if self.rng.random_range(0..2) == 0 {
                self.v.vfs.sync().unwrap();
            }
            self.v.vfs.run_background_step();
            if round % 2 == 0 {
                (0..3).for_each(|_| self.v.vfs.shrink(0));
            }
            self.walk();
        }
    }
}

#[test]
fn others_may_write_cut_and_remove_a_neighbour_while_it_is_brought() {
    let (mut co_reads, mut used) = (0, 0);
    for seed in 0..200 {
        let virt = Virtual::new(Some(seed));
        virt.run(|| {
            let opts = Options {
                co_read_bytes: 32 * BLOCK,
                role: if seed % 4 == 0 { CacheRole::Behind } else { CacheRole::Only },
                syncer: seed % 3 == 0,
                dirty_age: Duration::from_millis(200),
                ..options()
            };
            let v = Arc::new(Volume::new(4096, opts, virt.rt()));
            v.vfs.format().co_write.store(true, Ordering::Relaxed);
            v.vfs.format().lies.store(seed % 5 == 4, Ordering::Relaxed);
            *v.vfs.format().dawdles.lock() = (seed % 2 == 0).then(|| Arc::clone(&v.rt));
            let slow = Harm::Slow(Duration::from_millis(2));
            v.fault.set(vec![Rule::new(Victims::Requests(EVERYWHERE), When::EveryNth(seed % 3 + 1), slow)]);
            let dir = v.mkdir(ROOT, "d");
            // Numbers from 1 on: zeros belong to no file.
            let (tasks, files) = (3, 30);
            let players: Vec<_> = (0..tasks)
                .map(|task| {
                    let own = (1..files).filter(|file| file % tasks == task).map(|file| (file, None)).collect();
                    let rng = Pcg64Mcg::seed_from_u64(seed * 7 + task as u64);
                    let mut player = Player { v: Arc::clone(&v), dir, rng, own, files };
                    v.rt.clone().spawn("player", Box::new(move || player.play()))
                })
                .collect();
            players.iter().for_each(|player| player.join(&*v.rt));
            v.vfs.sync().unwrap();
            v.vfs.run_background_step();
            cold(&v);
            let c = v.vfs.counters();
            assert_eq!(c.co_read_blocks, c.co_read_blocks_used + c.co_read_blocks_wasted, "seed {seed}");
            v.vfs.format().used();
            assert_eq!(v.vfs.format().promised(), 0);
            co_reads += c.co_reads;
            used += c.co_read_blocks_used;
            let v = Arc::into_inner(v).expect("the players have ended");
            v.vfs.close().unwrap();
        });
    }
    assert!(co_reads > 1000 && used > 3000, "{co_reads} co-reads of {used} blocks: the test tests nothing");
}
