//! Space: what is promised to dirty pages and their maps, and when a writer is told that there is none.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, sleep_until};
use moafs_vfs::Who;
use moafs_vfs::api::{Allocate, SetAttr};
use moafs_vfs::types::Ino;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Blocks of the largest file that these tests write.
const FILE_BLOCKS: u64 = 4096;

fn mapped(blocks: u64, rt: Rt) -> Volume {
    let v = Volume::new(blocks, options(), rt);
    v.vfs.format().mapped.store(true, Ordering::Relaxed);
    v
}

fn write_block(v: &Volume, ino: Ino, at: u64) -> Result<u64, i32> {
    v.vfs.write(&Who::root(), ino, at * BLOCK as u64, &[7; BLOCK], false).map_err(|error| error.errno())
}

fn truncate(v: &Volume, ino: Ino, size: u64) {
    v.vfs.set_attr(&Who::root(), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

#[test]
fn random_writes_into_a_sparse_file_fill_the_volume() {
    for (seed, fsync_every) in [(1, 0), (2, 0), (3, 17), (4, 1)] {
        let v = mapped(1500, moafs_runtime::Live::new());
        let f = v.create(ROOT, "image");
        truncate(&v, f, FILE_BLOCKS * BLOCK as u64);
        let mut order: Vec<u64> = (0..FILE_BLOCKS).step_by(2).collect();
        order.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
        let mut written = 0;
        for at in order {
            match write_block(&v, f, at) {
                Ok(_) => written += 1,
                Err(errno) => {
                    assert_eq!(errno, libc::ENOSPC);
                    break;
                }
            }
            if fsync_every > 0 && written % fsync_every == 0 {
                v.vfs.fsync(f, false).unwrap();
            }
        }
        let space = v.vfs.stat_fs();
        // A block in an unmapped part takes its map blocks, too.
        assert!(space.free <= 5, "{written} blocks were written, {} are free", space.free);
        v.vfs.sync().unwrap();
        assert_eq!((v.vfs.stat_fs().free, v.vfs.format().promised()), (space.free, 0));
        v.vfs.unlink(&Who::root(), ROOT, name("image")).unwrap();
        v.vfs.forget(f, 1);
        v.vfs.tend();
        assert_eq!(v.vfs.stat_fs().free, 1499);
        v.vfs.close().unwrap();
    }
}

#[test]
fn blocks_of_one_part_of_a_file_share_the_promise_for_its_map() {
    let v = mapped(4000, moafs_runtime::Live::new());
    let f = v.create(ROOT, "f");
    truncate(&v, f, FILE_BLOCKS * BLOCK as u64);
    for at in (1024..2048).step_by(4) {
        write_block(&v, f, at).unwrap();
    }
    let promised = v.vfs.format().promised();
    assert!(promised <= 256 + 256 + 64 + 16 + 4 + 5, "{promised} blocks are promised for 256 of data");
    v.vfs.sync().unwrap();
    assert_eq!(v.vfs.format().promised(), 0);
    v.vfs.close().unwrap();
}

struct Client {
    v: Arc<Volume>,
    rt: Rt,
    files: [Ino; 2],
    rng: Pcg64Mcg,
}

impl Client {
    fn step(&mut self) {
        let f = self.files[self.rng.random_range(0..2)];
        let at = self.rng.random_range(0..600);
        let bytes = BLOCK as u64;
        let full = |result: Result<(), i32>| assert!(matches!(result, Ok(()) | Err(libc::ENOSPC)), "{result:?}");
        match self.rng.random_range(0..20) {
            0..12 => full(write_block(&self.v, f, at).map(drop)),
            12..14 => {
                let len = self.rng.random_range(1..40) * bytes;
                let done = self.v.vfs.write(&Who::root(), f, at * bytes, &vec![3; len as usize], false);
                full(done.map(drop).map_err(|error| error.errno()));
            }
            14..16 => {
                let len = self.rng.random_range(1..60) * bytes;
                self.v.vfs.allocate(&Who::root(), f, at * bytes, len, Allocate::Punch).unwrap();
            }
            16 => truncate(&self.v, f, self.rng.random_range(0..600) * bytes),
            17 => self.v.vfs.fsync(f, false).unwrap(),
            18 => self.v.vfs.tend(),
            _ => {
                let pause = Duration::from_micros(self.rng.random_range(0..3000));
                sleep_until(&*self.rt, self.rt.now() + pause);
            }
        }
    }
}

#[test]
fn what_was_accepted_finds_its_place_whatever_else_is_written_and_punched() {
    for seed in 0..60 {
        let virt = Virtual::new(Some(seed));
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(mapped(150 + seed * 10, Arc::clone(&rt)));
            let files = [v.create(ROOT, "a"), v.create(ROOT, "b")];
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            let tasks: Vec<_> = (0..3)
                .map(|who| {
                    let rng = Pcg64Mcg::seed_from_u64(seed * 10 + who);
                    let mut client = Client { v: Arc::clone(&v), rt: Arc::clone(&rt), files, rng };
                    rt.spawn("client", Box::new(move || (0..150).for_each(|_| client.step())))
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join(&*rt));
            v.vfs.sync().unwrap();
            files.iter().for_each(|f| v.vfs.fsync(*f, false).unwrap());
            assert_eq!(v.vfs.format().promised(), 0, "seed {seed}");
            for (n, f) in ["a", "b"].into_iter().zip(files) {
                v.vfs.unlink(&Who::root(), ROOT, name(n)).unwrap();
                v.vfs.forget(f, 1);
            }
            v.vfs.tend();
            assert_eq!(v.vfs.stat_fs().free, 149 + seed * 10, "seed {seed}");
            v.vfs.clone().close().unwrap();
        });
    }
}
