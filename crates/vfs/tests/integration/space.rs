//! Space: the promise to dirty pages and their maps, and the time at which a writer is told that there is none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, sleep_until};
use moafs_vfs::Credentials;
use moafs_vfs::api::{Allocate, Options, SetAttr};
use moafs_vfs::format::OpKind;
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
    v.vfs.write(&Credentials::root(), ino, at * BLOCK as u64, &[7; BLOCK], false).map_err(|error| error.errno())
}

fn truncate(v: &Volume, ino: Ino, size: u64) {
    v.vfs.set_attr(&Credentials::root(), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
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
        // A block in an unmapped part also takes its map blocks.
        assert!(space.free <= 5, "{written} blocks were written, {} are free", space.free);
        v.vfs.sync().unwrap();
        assert_eq!((v.vfs.stat_fs().free, v.vfs.format().promised()), (space.free, 0));
        v.vfs.unlink(&Credentials::root(), ROOT, name("image")).unwrap();
        v.vfs.forget(f, 1);
        v.vfs.run_background_step();
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
                let done = self.v.vfs.write(&Credentials::root(), f, at * bytes, &vec![3; len as usize], false);
                full(done.map(drop).map_err(|error| error.errno()));
            }
            14..16 => {
                let len = self.rng.random_range(1..60) * bytes;
                self.v.vfs.allocate(&Credentials::root(), f, at * bytes, len, Allocate::Punch).unwrap();
            }
            16 => truncate(&self.v, f, self.rng.random_range(0..600) * bytes),
            17 => self.v.vfs.fsync(f, false).unwrap(),
            18 => self.v.vfs.run_background_step(),
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
                v.vfs.unlink(&Credentials::root(), ROOT, name(n)).unwrap();
                v.vfs.forget(f, 1);
            }
            v.vfs.run_background_step();
            assert_eq!(v.vfs.stat_fs().free, 149 + seed * 10, "seed {seed}");
            v.vfs.clone().close().unwrap();
        });
    }
}

fn write_all(v: &Volume, ino: Ino, blocks: u64) -> Result<u64, i32> {
    v.vfs.write(&Credentials::root(), ino, 0, &vec![5; blocks as usize * BLOCK], false).map_err(|error| error.errno())
}

fn remove(v: &Volume, n: &str, ino: Ino) {
    v.vfs.unlink(&Credentials::root(), ROOT, name(n)).unwrap();
    v.vfs.forget(ino, 1);
}

#[test]
fn a_writer_waits_for_what_another_task_is_reaping() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let virt = Virtual::new(seed);
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(Volume::new(600, options(), Arc::clone(&rt)));
            let (a, b) = (v.create(ROOT, "a"), v.create(ROOT, "b"));
            write_all(&v, a, 500).unwrap();
            v.vfs.sync().unwrap();
            remove(&v, "a", a);
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            let here = Arc::clone(&v);
            let reaper = rt.spawn("syncer", Box::new(move || here.vfs.run_background_step()));
            sleep_until(&*rt, rt.now() + Duration::from_millis(5));
            assert!(v.vfs.format().used() > 0, "it is not done yet");
            write_all(&v, b, 550).unwrap();
            reaper.join(&*rt);
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn a_writer_waits_for_reservations_that_other_calls_will_not_use() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let virt = Virtual::new(seed);
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(Volume::new(600, options(), Arc::clone(&rt)));
            let (a, b) = (v.create(ROOT, "a"), v.create(ROOT, "b"));
            write_all(&v, a, 300).unwrap();
            v.vfs.sync().unwrap();
            v.vfs.shrink(0);
            // The task overwrites blocks that it does not know to have addresses, and is held up before it finds out.
            *v.vfs.format().stall.lock() =
                Some(Stall { rt: Arc::clone(&rt), point: Point::Map, pause: Duration::from_millis(15) });
            let here = Arc::clone(&v);
            let other = rt.spawn("other", Box::new(move || assert!(write_all(&here, a, 290).is_ok())));
            sleep_until(&*rt, rt.now() + Duration::from_millis(1));
            assert!(v.vfs.format().promised() >= 290, "the other holds its reservation");
            write_all(&v, b, 200).unwrap();
            other.join(&*rt);
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn a_writer_waits_for_flights_that_give_promises_back() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let virt = Virtual::new(seed);
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(Volume::new(600, options(), Arc::clone(&rt)));
            let [a, b, c] = ["a", "b", "c"].map(|n| v.create(ROOT, n));
            write_all(&v, a, 300).unwrap();
            // The last block: a write that moves the end of a file would count as one that frees space.
            write_block(&v, c, 40).unwrap();
            v.vfs.sync().unwrap();
            v.vfs.shrink(0);
            // The first task holds a reservation that it will not use, so that the second finds no room and waits.
            let stall_at = |point, millis| {
                let pause = Duration::from_millis(millis);
                *v.vfs.format().stall.lock() = Some(Stall { rt: Arc::clone(&rt), point, pause });
            };
            let spawn = |name: &str, ino: Ino, blocks: u64| {
                let here = Arc::clone(&v);
                let task = rt.spawn(name, Box::new(move || assert_eq!(write_all(&here, ino, blocks), Ok(0))));
                sleep_until(&*rt, rt.now() + Duration::from_millis(1));
                task
            };
            stall_at(Point::Map, 15);
            let mut tasks = vec![spawn("first", a, 200), spawn("second", b, 250)];
            // The third's data are in flight when the first has ended: taken, and promised as well.
            write_all(&v, c, 40).unwrap();
            stall_at(Point::Flight, 100);
            let here = Arc::clone(&v);
            tasks.push(rt.spawn("third", Box::new(move || here.vfs.fsync(c, false).unwrap())));
            tasks.into_iter().for_each(|task| task.join(&*rt));
            assert_eq!(v.vfs.stat_fs().free, 599 - 300 - 250 - 41);
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn files_that_are_removed_make_room_for_the_next_ones_at_once() {
    for seed in 0..100 {
        let virt = Virtual::new(Some(seed));
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            // Room for three files of four, while each of three clients has at most one.
            let v = Arc::new(Volume::new(400, options(), Arc::clone(&rt)));
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            let clients = (0..3).map(|who| {
                let v = Arc::clone(&v);
                let body = move || {
                    for i in 0..12 {
                        let n = format!("f{who}");
                        let f = v.create(ROOT, &n);
                        let done = write_all(&v, f, 120);
                        assert!(done.is_ok(), "seed {seed}, client {who}, file {i}: {done:?}");
                        if i % 3 == 0 {
                            v.vfs.fsync(f, false).unwrap();
                        }
                        remove(&v, &n, f);
                    }
                };
                rt.spawn("client", Box::new(body))
            });
            let clients: Vec<_> = clients.collect();
            let (here, at) = (Arc::clone(&v), Arc::clone(&rt));
            let syncer = rt.spawn(
                "syncer",
                Box::new(move || {
                    for _ in 0..20 {
                        here.vfs.run_background_step();
                        sleep_until(&*at, at.now() + Duration::from_millis(3));
                    }
                }),
            );
            clients.into_iter().for_each(|task| task.join(&*rt));
            syncer.join(&*rt);
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn removed_files_are_free_space_at_once_and_never_more_than_there_is() {
    for seed in [None, Some(1), Some(2)] {
        let virt = Virtual::new(seed);
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(Volume::new(600, options(), Arc::clone(&rt)));
            let before = v.vfs.stat_fs();
            let files: [Ino; 5] = std::array::from_fn(|n| v.create(ROOT, &format!("{n}")));
            files.iter().for_each(|f| assert!(write_all(&v, *f, 60).is_ok()));
            v.vfs.fsync(files[0], false).unwrap();
            v.vfs.fsync(files[1], false).unwrap();
            v.vfs.unlink(&Credentials::root(), ROOT, name("0")).unwrap();
            assert_eq!(v.vfs.stat_fs().free, before.free - 300, "a file that is in use keeps its blocks");
            v.vfs.forget(files[0], 1);
            assert_eq!(v.vfs.stat_fs().free, before.free - 240);
            v.vfs.unlink(&Credentials::root(), ROOT, name("1")).unwrap();
            assert_eq!(v.vfs.stat_fs().free, before.free - 240);
            let unused = v.vfs.stat_fs_with(&|held| held.into_iter().filter(|ino| *ino == files[1]).collect());
            assert_eq!(unused.free, before.free - 180, "its forget may come late");
            assert_eq!(unused.free_inodes, before.free_inodes - 3);
            v.vfs.forget(files[1], 1);
            assert_eq!(
                v.vfs.stat_fs_with(&|held| held.into_iter().filter(|ino| *ino == files[1]).collect()).free,
                before.free - 180
            );
            (2..5).for_each(|n| remove(&v, &format!("{n}"), files[n]));
            assert_eq!(v.vfs.stat_fs().free, before.free);
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            let here = Arc::clone(&v);
            let reaper = rt.spawn("syncer", Box::new(move || here.vfs.run_background_step()));
            for _ in 0..50 {
                let now = v.vfs.stat_fs();
                assert_eq!((now.free, now.free_inodes), (before.free, before.free_inodes));
                sleep_until(&*rt, rt.now() + Duration::from_micros(300));
            }
            reaper.join(&*rt);
            assert_eq!(v.vfs.stat_fs().free, before.free);
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn a_removed_file_counts_once_while_its_blocks_are_being_placed() {
    for point in [Point::Place, Point::Placed, Point::Put, Point::End] {
        for removed_before in [true, false] {
            let virt = Virtual::new(None);
            let rt: Rt = Arc::clone(&virt) as Rt;
            virt.run(move || {
                let v = Arc::new(Volume::new(600, options(), Arc::clone(&rt)));
                let before = v.vfs.stat_fs().free;
                let f = v.create(ROOT, "f");
                write_all(&v, f, 60).unwrap();
                *v.vfs.format().stall.lock() =
                    Some(Stall { rt: Arc::clone(&rt), point, pause: Duration::from_secs(1) });
                let here = Arc::clone(&v);
                let sync = rt.spawn("sync", Box::new(move || here.vfs.sync().unwrap()));
                sleep_until(&*rt, rt.now() + Duration::from_millis(1));
                assert!(v.vfs.format().stall.lock().is_none(), "the op has begun");
                if removed_before {
                    remove(&v, "f", f);
                    assert_eq!(v.vfs.stat_fs().free, before, "{point:?}");
                } else {
                    assert_eq!(v.vfs.stat_fs().free, before - 60, "{point:?}");
                    remove(&v, "f", f);
                }
                sync.join(&*rt);
                assert_eq!(v.vfs.stat_fs().free, before, "{point:?}, while it waits to be reaped");
                v.vfs.run_background_step();
                assert_eq!(v.vfs.stat_fs().free, before);
                v.vfs.clone().close().unwrap();
            });
        }
    }
}

/// Makes files of one block, with the next names of `names`, until no more than `until` blocks are free.
fn fill_with_small_files(v: &Volume, names: &mut std::ops::RangeFrom<u32>, until: u64) {
    while v.vfs.stat_fs().free > until {
        let ino = v.create(ROOT, &format!("{}", names.next().unwrap()));
        write_block(v, ino, 0).unwrap();
        v.vfs.fsync(ino, false).unwrap();
        v.vfs.forget(ino, 1);
    }
}

#[test]
fn a_map_block_that_punching_frees_is_kept_for_the_dirty_block_beside_the_hole() {
    let v = mapped(64, moafs_runtime::Live::new());
    let f = v.create(ROOT, "f");
    write_block(&v, f, 6).unwrap();
    v.vfs.fsync(f, false).unwrap();
    // Files of one block have no maps.
    let mut small = 0..;
    let mut fill = |until| fill_with_small_files(&v, &mut small, until);
    fill(1);
    write_block(&v, f, 7).unwrap();
    assert_eq!(v.vfs.format().promised(), 1, "close to full it is known that the maps exist");
    for n in ["0", "1", "2"] {
        v.vfs.unlink(&Credentials::root(), ROOT, name(n)).unwrap();
    }
    v.vfs.run_background_step();
    v.vfs.allocate(&Credentials::root(), f, 6 * BLOCK as u64, BLOCK as u64, Allocate::Punch).unwrap();
    assert_eq!(v.vfs.format().promised(), 3, "the block and both of its maps");
    fill(0);
    v.vfs.fsync(f, false).unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.read(f, 7 * BLOCK as u64, BLOCK), vec![7; BLOCK]);
    v.vfs.close().unwrap();
}

/// The maps are freed between the write of a block below them and the op that maps it.
#[test]
fn a_map_block_that_punching_frees_is_kept_for_a_block_that_is_about_to_be_mapped() {
    let virt = Virtual::new(None);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Arc::new(mapped(64, Arc::clone(&rt)));
        let f = v.create(ROOT, "f");
        write_block(&v, f, 6).unwrap();
        v.vfs.fsync(f, false).unwrap();
        let mut small = 0..;
        let mut fill = |until| fill_with_small_files(&v, &mut small, until);
        fill(1);
        write_block(&v, f, 7).unwrap();
        for n in ["0", "1", "2"] {
            v.vfs.unlink(&Credentials::root(), ROOT, name(n)).unwrap();
        }
        v.vfs.run_background_step();
        let stall = Stall { rt: Arc::clone(&rt), point: Point::Place, pause: Duration::from_secs(1) };
        *v.vfs.format().stall.lock() = Some(stall);
        let here = Arc::clone(&v);
        let fsync = rt.spawn("fsync", Box::new(move || here.vfs.fsync(f, false).unwrap()));
        sleep_until(&*rt, rt.now() + Duration::from_millis(1));
        assert!(v.vfs.format().stall.lock().is_none(), "the op has begun");
        v.vfs.allocate(&Credentials::root(), f, 6 * BLOCK as u64, BLOCK as u64, Allocate::Punch).unwrap();
        assert_eq!(v.vfs.format().promised(), 3, "the block and both of its maps");
        fill(0);
        fsync.join(&*rt);
        assert_eq!(v.vfs.format().promised(), 0);
        v.vfs.clone().close().unwrap();
    });
}

#[test]
fn written_blocks_that_no_op_may_map_are_given_back_and_written_again() {
    let v = Volume::live(400);
    let f = v.create(ROOT, "f");
    let format = v.vfs.format();
    for bytes in [3 * BLOCK, 5 * BLOCK] {
        let used = format.used();
        v.write(f, 0, &pattern(bytes as u64, bytes));
        *format.refuses.lock() = Some(OpKind::Place);
        assert_eq!(v.vfs.sync().unwrap_err().errno(), libc::ENOSPC);
        assert_eq!(format.used(), used, "the runs were given back");
        assert_eq!(v.read(f, 0, bytes), pattern(bytes as u64, bytes));
        *format.refuses.lock() = None;
        assert_eq!(v.vfs.fsync(f, false).unwrap_err().errno(), libc::ENOSPC, "the error of the past is told");
        v.vfs.fsync(f, false).unwrap();
        assert_eq!(format.used(), bytes as u64 / BLOCK as u64);
    }
    let after = v.after_power_cut();
    assert_eq!(read(&after, f, 0, 5 * BLOCK), pattern(5 * BLOCK as u64, 5 * BLOCK));
    v.vfs.close().unwrap();
}

#[test]
fn a_range_that_cannot_be_mapped_keeps_no_other_from_its_place() {
    for unmappable in 0..3 {
        let v = Volume::live(400);
        let format = v.vfs.format();
        format.co_write.store(true, Ordering::SeqCst);
        let files: Vec<Ino> = (0..3).map(|n| v.create(ROOT, &format!("f{n}"))).collect();
        for (n, f) in files.iter().enumerate() {
            v.write(*f, 0, &pattern(n as u64, BLOCK));
        }
        *format.unmappable.lock() = Some(files[unmappable]);
        assert_eq!(v.vfs.sync().unwrap_err().errno(), libc::EIO);
        assert_eq!(format.used(), 2, "the block of the third was given back");
        for (n, f) in files.iter().enumerate().filter(|(n, _)| *n != unmappable) {
            v.vfs.fsync(*f, false).unwrap();
            assert_eq!(read(&v.after_power_cut(), *f, 0, BLOCK), pattern(n as u64, BLOCK));
        }
        *format.unmappable.lock() = None;
        assert_eq!(v.vfs.fsync(files[unmappable], false).unwrap_err().errno(), libc::EIO, "the error is told");
        v.vfs.fsync(files[unmappable], false).unwrap();
        assert_eq!(format.used(), 3);
        assert_eq!(read(&v.after_power_cut(), files[unmappable], 0, BLOCK), pattern(unmappable as u64, BLOCK));
        v.vfs.close().unwrap();
    }
}

#[test]
fn a_removed_file_that_no_op_may_unmap_is_reaped_later() {
    let v = Volume::live(400);
    let free = v.vfs.stat_fs().free;
    let f = v.create(ROOT, "f");
    write_all(&v, f, 40).unwrap();
    v.vfs.sync().unwrap();
    let format = v.vfs.format();
    *format.refuses.lock() = Some(OpKind::Unmap);
    remove(&v, "f", f);
    for _ in 0..3 {
        v.vfs.run_background_step();
        assert_eq!(format.used(), 40);
        assert_eq!(v.vfs.stat_fs().free, free, "the space that will be free counts");
    }
    *format.refuses.lock() = None;
    v.vfs.run_background_step();
    assert_eq!(format.used(), 0);
    v.vfs.close().unwrap();
}

#[test]
fn a_volume_with_a_removed_file_that_cannot_be_read_is_not_closed_as_clean() {
    let v = tidy_volume();
    let f = v.create(ROOT, "f");
    write_all(&v, f, 20).unwrap();
    v.vfs.sync().unwrap();
    let format = v.vfs.format();
    remove(&v, "f", f);
    *format.unreadable.lock() = Some(f);
    assert_eq!(v.vfs.clone().close().unwrap_err().errno(), libc::EIO);
}

#[test]
fn callers_short_of_space_wait_for_an_unreadable_removed_file_once() {
    let v = Volume::live(100);
    let (lost, f) = (v.create(ROOT, "lost"), v.create(ROOT, "f"));
    write_all(&v, lost, 20).unwrap();
    v.vfs.sync().unwrap();
    let format = v.vfs.format();
    remove(&v, "lost", lost);
    *format.unreadable.lock() = Some(lost);
    assert_eq!(write_all(&v, f, 100), Err(libc::ENOSPC));
    assert_eq!(write_all(&v, f, 100), Err(libc::ENOSPC));
    assert_eq!(format.unread.load(Ordering::Relaxed), 1, "a bad sector takes long");
    *format.unreadable.lock() = None;
    v.vfs.close().unwrap();
}

#[test]
fn a_file_that_no_op_may_unmap_gets_its_new_end_and_loses_its_blocks_later() {
    let v = Volume::live(400);
    let f = v.create(ROOT, "f");
    write_all(&v, f, 40).unwrap();
    v.vfs.sync().unwrap();
    v.write(f, 20 * BLOCK as u64, &pattern(7, 20 * BLOCK));
    let (kept, format) = (v.read(f, 0, 10 * BLOCK), v.vfs.format());
    *format.refuses.lock() = Some(OpKind::Unmap);
    truncate(&v, f, 10 * BLOCK as u64);
    assert_eq!(v.read(f, 0, 40 * BLOCK), kept);
    let longer = SetAttr { size: Some(12 * BLOCK as u64), ..SetAttr::default() };
    let grown = v.vfs.set_attr(&Credentials::root(), f, &longer);
    assert_eq!(grown.unwrap_err().errno(), libc::ENOSPC, "old bytes must not come back");
    *format.refuses.lock() = None;
    truncate(&v, f, 12 * BLOCK as u64);
    assert_eq!(v.read(f, 10 * BLOCK as u64, 2 * BLOCK), [0; 2 * BLOCK]);
    v.vfs.fsync(f, false).unwrap();
    assert_eq!(format.used(), 10);
    v.vfs.close().unwrap();
}

/// A volume whose format says nothing of blocks beyond the end when it loads a file.
fn tidy_volume() -> Volume {
    Volume::shaped(400, options(), moafs_runtime::Live::new(), |shape| shape.frees_overhang = true)
}

#[test]
fn a_cut_file_whose_blocks_are_left_stays_in_memory() {
    let v = tidy_volume();
    let f = v.create(ROOT, "f");
    v.vfs.forget(f, 1);
    write_all(&v, f, 40).unwrap();
    v.vfs.sync().unwrap();
    let kept = v.read(f, 0, 10 * BLOCK);
    *v.vfs.format().refuses.lock() = Some(OpKind::Unmap);
    truncate(&v, f, 10 * BLOCK as u64);
    v.vfs.sync().unwrap();
    (0..3).for_each(|_| v.vfs.shrink(0));
    *v.vfs.format().refuses.lock() = None;
    truncate(&v, f, 12 * BLOCK as u64);
    assert_eq!(v.read(f, 0, 12 * BLOCK), [kept, vec![0; 2 * BLOCK]].concat());
    (0..3).for_each(|_| v.vfs.shrink(0));
    v.vfs.sync().unwrap();
    (0..3).for_each(|_| v.vfs.shrink(0));
    assert_eq!(v.vfs.counters().inodes_now, 0, "then it may leave");
    v.vfs.close().unwrap();
}

#[test]
fn a_cut_file_loses_the_blocks_that_are_left_in_the_background() {
    let v = tidy_volume();
    let (f, g) = (v.create(ROOT, "f"), v.create(ROOT, "g"));
    for file in [f, g] {
        write_all(&v, file, 40).unwrap();
    }
    v.vfs.sync().unwrap();
    let format = v.vfs.format();
    *format.refuses.lock() = Some(OpKind::Unmap);
    truncate(&v, f, 10 * BLOCK as u64);
    truncate(&v, g, 0);
    remove(&v, "g", g);
    v.vfs.run_background_step();
    assert_eq!(format.used(), 80);
    *format.refuses.lock() = None;
    (0..2).for_each(|_| v.vfs.run_background_step());
    assert_eq!(format.used(), 10);
    *format.refuses.lock() = Some(OpKind::Unmap);
    truncate(&v, f, 0);
    let after = v.vfs.clone();
    assert_eq!(v.vfs.close().unwrap_err().errno(), libc::ENOSPC, "the volume is not marked as clean");
    drop(after);
}

#[test]
fn a_hole_that_cannot_be_made_changes_nothing() {
    let v = Volume::live(400);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 40 * BLOCK));
    v.vfs.sync().unwrap();
    let format = v.vfs.format();
    v.write(f, 10 * BLOCK as u64, &pattern(2, 4 * BLOCK));
    *format.refuses.lock() = Some(OpKind::Unmap);
    let punched = v.vfs.allocate(&Credentials::root(), f, 8 * BLOCK as u64, 20 * BLOCK as u64, Allocate::Punch);
    assert_eq!(punched.unwrap_err().errno(), libc::ENOSPC);
    let expected = |bytes: &[u8]| {
        assert_eq!(bytes[..10 * BLOCK], pattern(1, 40 * BLOCK)[..10 * BLOCK]);
        assert_eq!(bytes[10 * BLOCK..14 * BLOCK], pattern(2, 4 * BLOCK), "bytes that were overwritten are back");
        assert_eq!(bytes[14 * BLOCK..], pattern(1, 40 * BLOCK)[14 * BLOCK..]);
    };
    expected(&v.read(f, 0, 40 * BLOCK));
    v.vfs.fsync(f, false).unwrap();
    expected(&read(&v.after_power_cut(), f, 0, 40 * BLOCK));
    *format.refuses.lock() = None;
    v.vfs.close().unwrap();
}

#[test]
fn a_write_that_does_not_fit_fills_the_volume_and_tells_how_much_it_wrote() {
    let v = Volume::live(100);
    let (f, root) = (v.create(ROOT, "f"), Credentials::root());
    let data = pattern(3, 200 * BLOCK);
    let offset = BLOCK as u64 / 2;
    let written = v.vfs.write_what_fits(&root, f, offset, &data).unwrap();
    assert!((BLOCK..data.len()).contains(&written), "{written} bytes");
    assert!((offset as usize + written).is_multiple_of(BLOCK), "{written} bytes end within a block");
    assert_eq!(v.vfs.stat(f).unwrap().attr.size, offset + written as u64);
    // The rest fits in halves, until nothing does.
    let mut end = offset + written as u64;
    let refused = loop {
        match v.vfs.write_what_fits(&root, f, end, &data[(end - offset) as usize..]) {
            Ok(more) => end += more as u64,
            Err(error) => break error,
        }
    };
    assert_eq!((refused.errno(), v.vfs.stat_fs().free), (libc::ENOSPC, 0));
    v.vfs.fsync(f, false).unwrap();
    assert_eq!(v.read(f, offset, (end - offset) as usize), data[..(end - offset) as usize]);
    // Bytes go into a block that the file already has, even on a full volume.
    truncate(&v, f, end - 100);
    v.vfs.fsync(f, false).unwrap();
    assert_eq!(v.vfs.write_what_fits(&root, f, end - 100, &data).unwrap(), 100);
    v.vfs.close().unwrap();
}

#[test]
fn a_write_in_many_steps_tells_how_much_it_wrote_where_a_later_step_does_not_fit() {
    for blocks in 60..100 {
        let small = Options { dirty_bytes_max: Some(16 * BLOCK), ..options() };
        let v = Volume::new(blocks, small, moafs_runtime::Live::new());
        let (f, root) = (v.create(ROOT, "f"), Credentials::root());
        let data = pattern(3, 30 * BLOCK);
        let mut end = 0;
        while let Ok(written) = v.vfs.write_what_fits(&root, f, end, &data) {
            end += written as u64;
            assert_eq!(v.vfs.stat(f).unwrap().attr.size, end, "{written} bytes are told, of {blocks} blocks");
        }
        assert_eq!(v.vfs.stat(f).unwrap().attr.size, end, "nothing is told, of {blocks} blocks");
        v.vfs.close().unwrap();
    }
}

#[test]
fn a_removed_file_whose_map_cannot_be_read_is_tried_again_and_holds_no_other_up() {
    let virt = Virtual::new(None);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Volume::shaped(400, options(), Arc::clone(&rt), |shape| shape.frees_overhang = true);
        let (f, g) = (v.create(ROOT, "f"), v.create(ROOT, "g"));
        for file in [f, g] {
            write_all(&v, file, 20).unwrap();
        }
        v.vfs.sync().unwrap();
        let format = v.vfs.format();
        remove(&v, "f", f);
        remove(&v, "g", g);
        *format.unreadable.lock() = Some(f);
        v.vfs.run_background_step();
        assert_eq!(format.used(), 20);
        *format.unreadable.lock() = None;
        sleep_until(&*rt, rt.now() + Duration::from_secs(5));
        v.vfs.run_background_step();
        assert_eq!(format.used(), 0);
        v.vfs.close().unwrap();
    });
}

#[test]
fn a_write_across_the_largest_size_of_a_file_writes_what_fits_below_it() {
    let v = Volume::shaped(64, options(), moafs_runtime::Live::new(), |shape| shape.file_bytes_max = 10_000);
    let (root, f) = (Credentials::root(), v.create(ROOT, "f"));
    assert_eq!(v.vfs.write_what_fits(&root, f, 9_000, &[5; 4096]).unwrap(), 1000);
    assert_eq!(v.vfs.stat(f).unwrap().attr.size, 10_000);
    assert_eq!(errno(v.vfs.write_what_fits(&root, f, 10_000, &[5; 1])), libc::EFBIG);
    assert_eq!(errno(v.vfs.write_what_fits(&root, f, u64::MAX, &[5; 1])), libc::EFBIG);
    assert_eq!(v.vfs.write_what_fits(&root, f, 10_000, &[]).unwrap(), 0);
}
