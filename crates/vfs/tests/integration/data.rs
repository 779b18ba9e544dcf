//! File contents: reads return what was written, through evictions, write-back, errors and power cuts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use moafs_disk::probe::fault::{EVERYWHERE, Harm, Rule, Victims, When};
use moafs_runtime::Rt;
use moafs_runtime::virt::Virtual;
use moafs_vfs::api::{Allocate, CacheRole, Options, RenameMode, Seek, SetAttr};
use moafs_vfs::types::Ino;
use moafs_vfs::{Credentials, Vfs};

fn truncate(v: &Volume, ino: moafs_vfs::types::Ino, size: u64) {
    v.vfs.set_attr(&Credentials::root(), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

#[test]
fn what_was_written_is_read_before_and_after_write_back() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    let data = pattern(1, 300_000);
    v.write(f, 777, &data);
    assert_eq!(v.read(f, 777, 300_000), data);
    assert_eq!(v.vfs.counters().write_back_requests, 0, "nothing leaves before it must");
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.vfs.counters().cached_bytes, 0);
    assert_eq!(v.read(f, 777, 400_000), data);
    assert_eq!(v.read(f, 0, 777), vec![0; 777]);
    assert_eq!(v.vfs.counters().dirty_bytes, 0);
    assert_eq!(v.vfs.format().promised(), 0, "all admissions were spent or returned");
    assert_eq!(v.vfs.format().used(), 294);
    v.vfs.close().unwrap();
}

#[test]
fn blocks_count_the_same_before_and_after_an_fsync() {
    let v = Volume::live(4096);
    v.vfs.format().mapped.store(true, Ordering::Relaxed);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(5, 40 * BLOCK));
    let before = v.vfs.stat(f).unwrap().sectors;
    v.vfs.fsync(f, false).unwrap();
    let after = v.vfs.stat(f).unwrap().sectors;
    assert!(after > 40 * BLOCK as u64 / 512, "the file has map blocks: {after} sectors");
    assert_eq!(before, after, "a kernel may ask only once");
    v.vfs.close().unwrap();
}

#[test]
fn blocks_of_a_file_that_has_map_blocks_count_the_same_before_and_after_an_fsync() {
    let v = Volume::live(4096);
    v.vfs.format().mapped.store(true, Ordering::Relaxed);
    let f = v.create(ROOT, "f");
    // One block more each time: most have the map blocks that they need, some need one to three more.
    for at in (0..60).chain([200, 100, 201, 99]) {
        v.write(f, at * BLOCK as u64, &pattern(at, BLOCK));
        let before = v.vfs.stat(f).unwrap().sectors;
        v.vfs.fsync(f, false).unwrap();
        assert_eq!(before, v.vfs.stat(f).unwrap().sectors, "block {at}");
    }
    v.vfs.close().unwrap();
}

#[test]
fn partial_overwrites_keep_what_they_do_not_touch() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    let mut data = pattern(2, 10_000);
    v.write(f, 0, &data);
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    v.write(f, 1500, &[7; 3000]);
    data[1500..4500].fill(7);
    assert_eq!(v.read(f, 0, 10_000), data);
    v.vfs.fsync(f, false).unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.read(f, 0, 10_000), data);
    v.vfs.close().unwrap();
}

#[test]
fn whole_block_overwrites_read_nothing() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[1; 64 * BLOCK]);
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    let before = v.vfs.counters().fill_requests;
    v.write(f, 0, &[2; 64 * BLOCK]);
    assert_eq!(v.vfs.counters().fill_requests, before);
    v.vfs.close().unwrap();
}

#[test]
fn a_megabyte_is_read_with_one_request_per_run() {
    let v = Volume::live(8192);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(3, 64 * BLOCK));
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    let before = v.vfs.counters().fill_requests;
    assert_eq!(v.read(f, 0, 64 * BLOCK), pattern(3, 64 * BLOCK));
    assert_eq!(v.vfs.counters().fill_requests - before, 1);
    v.vfs.close().unwrap();
}

#[test]
fn a_small_cache_is_enough_for_a_large_file() {
    let opts = Options { cache_bytes: 256 << 10, ..options() };
    let v = Volume::new(16384, opts, moafs_runtime::Live::new());
    let f = v.create(ROOT, "f");
    let data = pattern(4, 8 << 20);
    for (i, chunk) in data.chunks(100_000).enumerate() {
        v.write(f, i as u64 * 100_000, chunk);
        let now = v.vfs.counters();
        assert!(now.dirty_bytes <= 110 << 10, "{} dirty", now.dirty_bytes);
        assert!(now.cached_bytes <= 300 << 10, "{} cached", now.cached_bytes);
    }
    for i in 0..80 {
        assert_eq!(v.read(f, i * 100_000, 100_000), data[i as usize * 100_000..][..100_000]);
        assert!(v.vfs.counters().cached_bytes <= 300 << 10);
    }
    v.vfs.close().unwrap();
}

#[test]
fn what_a_kernel_caches_above_us_goes_first() {
    let opts = Options { role: CacheRole::Behind, cache_bytes: 256 << 10, ..options() };
    let v = Volume::new(4096, opts, moafs_runtime::Live::new());
    let (a, b) = (v.create(ROOT, "a"), v.create(ROOT, "b"));
    v.write(a, 0, &[1; 50 * BLOCK]);
    v.write(b, 0, &[2; 50 * BLOCK]);
    v.vfs.sync().unwrap();
    v.read(b, 0, 50 * BLOCK);
    v.vfs.shrink(100 * 1024);
    let before = v.vfs.counters().read_misses;
    v.read(a, 0, 20 * BLOCK);
    assert!(v.vfs.counters().read_misses - before < 20, "what nobody was served yet stays longer");
    v.vfs.close().unwrap();
}

#[test]
fn truncation_zeroes_what_comes_back() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[9; 5000]);
    v.vfs.fsync(f, false).unwrap();
    truncate(&v, f, 1500);
    truncate(&v, f, 5000);
    let mut expect = vec![9; 1500];
    expect.resize(5000, 0);
    assert_eq!(v.read(f, 0, 6000), expect);
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.read(f, 0, 6000), expect);
    assert_eq!(v.vfs.format().used(), 2);
    v.vfs.close().unwrap();
}

#[test]
fn dirty_data_cut_off_is_never_written() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[9; 100 * BLOCK]);
    truncate(&v, f, 0);
    assert_eq!(v.vfs.format().promised(), 0);
    v.vfs.sync().unwrap();
    assert_eq!(v.vfs.counters().write_back_blocks, 0);
    v.vfs.close().unwrap();
}

#[test]
fn create_write_unlink_costs_no_data_request() {
    let v = Volume::live(4096);
    for i in 0..50 {
        let f = v.create(ROOT, "f");
        v.write(f, 0, &[i; 3000]);
        v.vfs.unlink(&Credentials::root(), ROOT, name("f")).unwrap();
        v.vfs.forget(f, 1);
    }
    v.vfs.sync().unwrap();
    v.vfs.run_background_step();
    assert_eq!(v.vfs.counters().write_back_requests, 0);
    assert_eq!(v.vfs.counters().reaped, 50);
    assert_eq!((v.vfs.format().inodes(), v.vfs.format().promised()), (1, 0));
    v.vfs.close().unwrap();
}

/// No background work runs: callers that remove names keep the number of those that wait within a bound.
#[test]
fn callers_that_remove_names_reap_what_background_work_leaves() {
    let v = Volume::live(16_384);
    let root = &Credentials::root();
    let dirs: Vec<Ino> = (0..2).map(|number| v.mkdir(ROOT, &format!("dir{number}"))).collect();
    let removed = |number: u64| {
        let file = v.create(dirs[0], "f");
        match number % 3 {
            0 => v.vfs.unlink(root, dirs[0], name("f")).unwrap(),
            1 => {
                let victim = v.mkdir(dirs[1], "d");
                v.vfs.rmdir(root, dirs[1], name("d")).unwrap();
                v.vfs.forget(victim, 1);
                v.vfs.unlink(root, dirs[0], name("f")).unwrap();
            }
            _ => {
                let other = v.create(dirs[1], "f");
                v.vfs.rename(root, (dirs[0], name("f")), (dirs[1], name("f")), RenameMode::Replace).unwrap();
                v.vfs.forget(other, 1);
                v.vfs.unlink(root, dirs[1], name("f")).unwrap();
            }
        }
        v.vfs.forget(file, 1);
    };
    let before = v.vfs.format().inodes();
    (0..6000).for_each(removed);
    assert!(v.vfs.counters().reaped > 3000, "{} reaped", v.vfs.counters().reaped);
    let waiting = v.vfs.format().inodes() - before;
    assert!((1000..4200).contains(&waiting), "{waiting} wait");
    v.vfs.close().unwrap();
}

#[test]
fn unlinked_dirty_files_do_not_stop_writers() {
    let v = Volume::new(4096, Options { cache_bytes: 256 << 10, ..options() }, moafs_runtime::Live::new());
    for _ in 0..20 {
        let f = v.create(ROOT, "f");
        v.write(f, 0, &[1; 60 * BLOCK]);
        v.vfs.unlink(&Credentials::root(), ROOT, name("f")).unwrap();
        v.vfs.forget(f, 1);
    }
    assert_eq!(v.vfs.counters().write_back_requests, 0);
    v.vfs.close().unwrap();
}

#[test]
fn an_unlinked_file_lives_while_it_is_held() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[3; 3000]);
    v.vfs.unlink(&Credentials::root(), ROOT, name("f")).unwrap();
    v.vfs.run_background_step();
    v.write(f, 3000, &[4; 3000]);
    v.vfs.sync().unwrap();
    assert_eq!(v.read(f, 2999, 2), [3, 4]);
    v.vfs.forget(f, 1);
    v.vfs.run_background_step();
    assert_eq!(errno(v.vfs.stat(f)), libc::ESTALE);
    assert_eq!(v.vfs.format().used(), 0);
    v.vfs.close().unwrap();
}

#[test]
fn holes_are_found_and_dirty_data_are_data() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 10 * BLOCK as u64, &[1; BLOCK]);
    let at = |offset, what| v.vfs.seek(f, offset, what);
    assert_eq!(at(0, Seek::Data).unwrap(), 10 * BLOCK as u64);
    assert_eq!(at(0, Seek::Hole).unwrap(), 0);
    assert_eq!(at(10 * BLOCK as u64, Seek::Hole).unwrap(), 11 * BLOCK as u64);
    v.vfs.sync().unwrap();
    assert_eq!(at(5, Seek::Data).unwrap(), 10 * BLOCK as u64);
    assert_eq!(errno(at(11 * BLOCK as u64, Seek::Data)), libc::ENXIO);
    truncate(&v, f, 20 * BLOCK as u64);
    assert_eq!(errno(at(11 * BLOCK as u64, Seek::Data)), libc::ENXIO);
    assert_eq!(at(11 * BLOCK as u64 + 5, Seek::Hole).unwrap(), 11 * BLOCK as u64 + 5);
    v.vfs.close().unwrap();
}

#[test]
fn punched_holes_read_as_zeros_and_give_blocks_back() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    let mut data = pattern(5, 30 * BLOCK);
    v.write(f, 0, &data);
    v.vfs.sync().unwrap();
    v.write(f, 12 * BLOCK as u64, &[5; BLOCK]);
    v.vfs.allocate(&Credentials::root(), f, 2500, 20_000, Allocate::Punch).unwrap();
    data[2500..22_500].fill(0);
    assert_eq!(v.read(f, 0, 30 * BLOCK), data);
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.read(f, 0, 30 * BLOCK), data);
    assert_eq!(v.vfs.format().used(), 30 - 18);
    v.vfs.allocate(&Credentials::root(), f, 100, 50, Allocate::Punch).unwrap();
    data[100..150].fill(0);
    assert_eq!(v.read(f, 0, 1000), data[..1000]);
    v.vfs.close().unwrap();
}

#[test]
fn allocated_blocks_are_there_when_the_volume_is_full() {
    let v = Volume::live(300);
    let f = v.create(ROOT, "f");
    v.vfs.allocate(&Credentials::root(), f, 0, 100 * BLOCK as u64, Allocate::Extend).unwrap();
    v.vfs.sync().unwrap();
    assert_eq!((v.vfs.stat(f).unwrap().attr.size, v.vfs.format().used()), (100 * BLOCK as u64, 100));
    assert_eq!(
        errno(v.vfs.allocate(&Credentials::root(), f, 0, 200 * BLOCK as u64, Allocate::KeepSize)),
        libc::EOPNOTSUPP
    );
    let g = v.create(ROOT, "g");
    let mut offset = 0;
    while v.vfs.write(&Credentials::root(), g, offset, &[1; BLOCK], false).is_ok() {
        offset += BLOCK as u64;
    }
    assert_eq!(offset, 199 * BLOCK as u64);
    v.write(f, 0, &[8; 100 * BLOCK]);
    v.vfs.sync().unwrap();
    assert_eq!(v.read(f, 99 * BLOCK as u64, BLOCK), [8; BLOCK]);
    v.vfs.unlink(&Credentials::root(), ROOT, name("g")).unwrap();
    v.vfs.forget(g, 1);
    // Space that waits for reaping counts as free.
    let h = v.create(ROOT, "h");
    v.write(h, 0, &[1; 150 * BLOCK]);
    v.vfs.close().unwrap();
}

#[test]
fn zeroing_a_range_keeps_the_rest() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    let mut data = pattern(6, 8000);
    v.write(f, 0, &data);
    v.vfs.allocate(&Credentials::root(), f, 700, 5000, Allocate::Zero { keep_size: false }).unwrap();
    data[700..5700].fill(0);
    assert_eq!(v.read(f, 0, 9000), data);
    v.vfs.allocate(&Credentials::root(), f, 7900, 5000, Allocate::Zero { keep_size: true }).unwrap();
    data[7900..].fill(0);
    assert_eq!(v.read(f, 0, 9000), data);
    v.vfs.close().unwrap();
}

#[test]
fn copies_keep_holes() {
    let v = Volume::live(8192);
    let (a, b) = (v.create(ROOT, "a"), v.create(ROOT, "b"));
    v.write(a, 0, &[1; 2000]);
    v.write(a, 500 * BLOCK as u64, &[2; 2000]);
    v.write(b, 0, &[9; 5000]);
    let size = 500 * BLOCK as u64 + 2000;
    assert_eq!(v.vfs.copy_range(&Credentials::root(), (a, 0), (b, 0), size + 100).unwrap(), size);
    assert_eq!(v.read(b, 0, size as usize + 10), v.read(a, 0, size as usize + 10));
    v.vfs.sync().unwrap();
    assert!(v.vfs.format().used() <= 10);
    assert_eq!(errno(v.vfs.copy_range(&Credentials::root(), (a, 0), (a, 100), 500)), libc::EINVAL);
    v.vfs.close().unwrap();
}

#[test]
fn an_fsynced_file_survives_a_power_cut() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(7, 5000));
    v.vfs.fsync(f, false).unwrap();
    v.write(f, 5000, &pattern(8, 5000));
    let after = v.after_power_cut();
    let f = after.lookup(&Credentials::root(), ROOT, name("f")).unwrap();
    assert_eq!(f.attr.size, 5000);
    assert_eq!(read(&after, f.ino, 0, 9000), pattern(7, 5000));
}

#[test]
fn the_size_on_disk_never_passes_data_that_are_not_there() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[1; 2000]);
    v.vfs.fsync(f, false).unwrap();
    v.write(f, 2000, &[2; 10_000]);
    v.vfs.set_attr(&Credentials::root(), f, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(v.vfs.format().disk_size(f), 2000);
    v.vfs.fsync(f, true).unwrap();
    assert_eq!(v.vfs.format().disk_size(f), 12_000);
    v.vfs.close().unwrap();
}

#[test]
fn a_file_that_grows_shows_zeros_and_not_blocks_left_beyond_its_end() {
    let grow: [fn(&Vfs<Toy>, moafs_vfs::types::Ino); 3] = [
        |vfs, f| {
            let size = SetAttr { size: Some(9 * BLOCK as u64), ..SetAttr::default() };
            vfs.set_attr(&Credentials::root(), f, &size).unwrap();
        },
        |vfs, f| {
            assert_eq!(
                vfs.write(&Credentials::root(), f, 9 * BLOCK as u64 - 1, &[0], false).unwrap(),
                9 * BLOCK as u64 - 1
            )
        },
        |vfs, f| vfs.allocate(&Credentials::root(), f, 0, 9 * BLOCK as u64, Allocate::Extend).unwrap(),
    ];
    for grow in grow {
        let v = Volume::live(4096);
        let f = v.create(ROOT, "f");
        v.write(f, 0, &pattern(7, 10 * BLOCK));
        v.vfs.fsync(f, false).unwrap();
        v.vfs.format().cut_size(f, 100);
        let after = v.after_power_cut();
        grow(&after, f);
        let expected = [&pattern(7, 100)[..], &[0; 9 * BLOCK - 100]].concat();
        assert_eq!(read(&after, f, 0, 9 * BLOCK), expected);
        after.clone().close().unwrap();
        assert!(after.format().used() <= 9, "what lay beyond the end was freed");
    }
}

#[test]
fn a_failed_write_is_reported_by_one_fsync_and_stays_readable() {
    let v = Volume::live(4096);
    let (f, g) = (v.create(ROOT, "f"), v.create(ROOT, "g"));
    v.write(f, 0, &pattern(9, 3000));
    v.write(g, 0, &pattern(10, 3000));
    v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::Error)]);
    assert_eq!(errno(v.vfs.sync()), libc::EIO);
    assert_eq!(v.read(f, 0, 3000), pattern(9, 3000));
    assert_eq!(v.vfs.format().abandoned.load(Ordering::Relaxed), 6);
    v.fault.set(Vec::new());
    for ino in [f, g] {
        assert_eq!(errno(v.vfs.fsync(ino, false)), libc::EIO, "the error of the past is told");
        assert_eq!(errno(v.vfs.fsync(ino, false)), 0, "once");
    }
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.read(g, 0, 3000), pattern(10, 3000));
    assert_eq!(v.vfs.format().used(), 6);
    v.vfs.close().unwrap();
}

#[test]
fn every_nth_write_may_fail_and_nothing_is_lost() {
    for n in 1..12 {
        let v = Volume::live(4096);
        let files: Vec<_> = (0..10).map(|i| v.create(ROOT, &format!("f{i}"))).collect();
        v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Nth(n), Harm::Error)]);
        for (i, f) in files.iter().enumerate() {
            v.write(*f, 0, &pattern(i as u64, 2500));
        }
        let first = v.vfs.sync();
        let reports = files.iter().filter(|f| v.vfs.fsync(**f, false).is_err()).count();
        assert_eq!((first.is_err(), reports), (n <= 10, usize::from(n <= 10)), "n = {n}");
        v.vfs.sync().unwrap();
        v.vfs.shrink(0);
        for (i, f) in files.iter().enumerate() {
            assert_eq!(v.read(*f, 0, 2500), pattern(i as u64, 2500));
        }
        v.vfs.format().used();
        v.vfs.close().unwrap();
    }
}

#[test]
fn a_full_host_is_no_lost_write() {
    let virt = Virtual::new(None);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Volume::new(4096, options(), Arc::clone(&rt));
        let f = v.create(ROOT, "f");
        v.write(f, 0, &[1; 3000]);
        let full = |when| v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), when, Harm::HostFull)]);
        full(When::Nth(1));
        assert_eq!(errno(v.vfs.fsync(f, false)), libc::ENOSPC);
        v.vfs.fsync(f, false).unwrap();
        v.write(f, 0, &[2; 3000]);
        full(When::Nth(1));
        v.vfs.clone().close().expect("it waits for room, and writes what had none");
        assert_eq!(v.vfs.format().used(), 3);
        assert_eq!(read(&v.after_power_cut(), f, 0, 3000), [2; 3000]);
    });
}

#[test]
fn read_errors_are_reported_and_pass() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 100 * BLOCK));
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    v.fault.set(vec![Rule::new(Victims::Reads(EVERYWHERE), When::Nth(1), Harm::Error)]);
    assert_eq!(errno(v.vfs.read(f, 0, &mut [0; 100])), libc::EIO);
    assert_eq!(v.read(f, 0, 100 * BLOCK), pattern(1, 100 * BLOCK));
    v.vfs.close().unwrap();
}

#[test]
fn a_failed_volume_serves_reads_and_closes() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &[1; 3000]);
    *v.vfs.format().fails.lock() = Some("told so".into());
    assert_eq!(v.read(f, 0, 3000), [1; 3000]);
    assert_eq!(errno(v.vfs.write(&Credentials::root(), f, 0, &[1], false)), libc::EROFS);
    assert_eq!(errno(v.vfs.fsync(f, false)), libc::EROFS);
    assert_eq!(errno(v.vfs.sync()), libc::EROFS);
    v.vfs.run_background_step();
    assert_eq!(errno(v.vfs.close()), libc::EROFS);
}

#[test]
fn a_sync_of_many_small_files_is_few_batches() {
    let v = Volume::new(65536, Options { cache_bytes: 32 << 20, ..options() }, moafs_runtime::Live::new());
    for i in 0..2000 {
        let f = v.create(ROOT, &format!("f{i}"));
        v.write(f, 0, &pattern(i, 1500));
        v.vfs.forget(f, 1);
    }
    let ops = v.vfs.format().ops.load(Ordering::Relaxed);
    v.vfs.sync().unwrap();
    let c = v.vfs.counters();
    assert_eq!((c.write_back_requests, c.write_back_blocks), (2000, 4000));
    assert!(c.write_back_rounds <= 9, "{} rounds", c.write_back_rounds);
    let ops = v.vfs.format().ops.load(Ordering::Relaxed) - ops;
    assert!(ops <= 50, "{ops} ops");
    assert_eq!(v.vfs.format().committed.load(Ordering::Relaxed), 1);
    v.vfs.close().unwrap();
}

#[test]
fn a_co_writing_policy_sees_small_neighbours() {
    let v = Volume::live(65536);
    v.vfs.format().co_write.store(true, Ordering::Relaxed);
    let d = v.mkdir(ROOT, "d");
    let files: Vec<_> = (0..10).map(|i| v.create(d, &format!("f{i}"))).collect();
    for (i, f) in files.iter().enumerate() {
        v.write(*f, 0, &pattern(i as u64, 1500));
    }
    v.vfs.fsync(files[0], false).unwrap();
    let c = v.vfs.counters();
    assert_eq!((c.write_back_requests, c.co_writes, c.write_back_blocks), (1, 1, 20));
    assert_eq!(c.co_written_files, 10);
    for (i, f) in files.iter().enumerate() {
        assert_eq!(v.read(*f, 0, 1500), pattern(i as u64, 1500));
    }
    v.vfs.format().used();
    v.vfs.close().unwrap();
}

#[test]
fn old_data_leave_by_themselves() {
    let virt = moafs_runtime::virt::Virtual::new(None);
    virt.run(|| {
        let v = Volume::new(4096, Options { syncer: true, ..options() }, virt.rt());
        let f = v.create(ROOT, "f");
        v.write(f, 0, &[1; 3000]);
        moafs_runtime::sleep_until(&*v.rt, v.rt.now() + std::time::Duration::from_secs(40));
        assert_eq!(v.vfs.counters().dirty_bytes, 0);
        assert!(v.vfs.format().committed.load(Ordering::Relaxed) >= 1);
        v.vfs.close().unwrap();
    });
}

#[test]
fn writers_that_keep_write_back_busy_leave_the_format_its_turns() {
    let virt = moafs_runtime::virt::Virtual::new(None);
    virt.run(|| {
        let options = Options { syncer: true, cache_bytes: 1 << 20, ..options() };
        let v = Arc::new(Volume::new(4096, options, virt.rt()));
        let slow = Harm::Slow(Duration::from_millis(5));
        v.fault.set(vec![Rule::new(Victims::Requests(EVERYWHERE), When::Always, slow)]);
        let end = v.rt.now() + Duration::from_secs(4);
        let writer = |number: usize| {
            let v = Arc::clone(&v);
            let f = v.create(ROOT, &format!("f{number}"));
            let body = move || {
                let blocks = (0..256u64).cycle().take_while(|_| v.rt.now() < end);
                blocks.for_each(|at| v.write(f, at * BLOCK as u64, &[1; BLOCK]));
            };
            virt.rt().spawn("writer", Box::new(body))
        };
        let writers: Vec<_> = (0..2).map(writer).collect();
        writers.into_iter().for_each(|writer| writer.join(&*v.rt));
        assert!(v.vfs.counters().writer_waits > 10, "they are kept waiting: {:?}", v.vfs.counters());
        let tended = v.vfs.format().tended.load(Ordering::Relaxed);
        assert!(tended > 10, "{tended} turns in 4 s");
        v.vfs.clone().close().unwrap();
    });
}

#[test]
fn appends_of_many_threads_do_not_overlap() {
    let v = Volume::live(16384);
    let f = v.create(ROOT, "f");
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            let vfs: Vfs<Toy> = v.vfs.clone();
            scope.spawn(move || {
                for _ in 0..200 {
                    vfs.write(&Credentials::root(), f, 0, &[t; 100], true).unwrap();
                    if t == 0 {
                        vfs.fsync(f, false).unwrap();
                    }
                }
            });
        }
    });
    let all = v.read(f, 0, 100_000);
    assert_eq!(all.len(), 80_000);
    assert!(all.chunks(100).all(|c| c.iter().all(|b| *b == c[0])));
    v.vfs.close().unwrap();
}
