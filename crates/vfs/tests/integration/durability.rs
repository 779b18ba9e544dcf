//! The durability that fsync and sync promise, while another task is in the middle of telling the format.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use moafs_disk::probe::fault::{EVERYWHERE, Harm, Rule, Victims, When};
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, sleep_until};
use moafs_vfs::api::{Allocate, Options, RenameMode, SetAttr, Synchronous, Unseen};
use moafs_vfs::types::{Ino, SetMode};
use moafs_vfs::{Credentials, Process, Result};
use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_millis(10);
const MOMENT: Duration = Duration::from_millis(1);

/// Runs `first`, which gets stuck at `point` inside the format; then, beside it, `second`.
fn beside(
    seed: Option<u64>,
    prepare: impl Fn(&Volume) -> Ino + Send + Sync + 'static,
    point: Point,
    first: impl Fn(&Volume, Ino) + Send + Sync + 'static,
    second: impl Fn(&Volume, Ino) + Send + Sync + 'static,
) {
    let virt = Virtual::new(seed);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Arc::new(Volume::new(4096, options(), Arc::clone(&rt)));
        let f = prepare(&v);
        v.vfs.sync().unwrap();
        *v.vfs.format().history.lock() = Some(Vec::new());
        *v.vfs.format().stall.lock() = Some(Stall { rt: Arc::clone(&rt), point, pause: PAUSE });
        let here = Arc::clone(&v);
        let task = rt.spawn("first", Box::new(move || first(&here, f)));
        sleep_until(&*rt, rt.now() + MOMENT);
        assert!(v.vfs.format().stall.lock().is_none(), "the first task is inside the format");
        second(&v, f);
        task.join(&*rt);
        v.vfs.clone().close().unwrap();
    });
}

fn set(v: &Volume, ino: Ino, set: SetAttr) {
    v.vfs.set_attr(&Credentials::root(), ino, &set).unwrap();
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn durable_size(v: &Volume, ino: Ino) -> u64 {
    v.vfs.format().after_power_cut().disk_size(ino)
}

fn durable_perm(v: &Volume, ino: Ino) -> u32 {
    v.vfs.format().after_power_cut().put_attr(ino).perm
}

fn file(v: &Volume) -> Ino {
    v.create(ROOT, "f")
}

fn fsync(v: &Volume, ino: Ino) {
    v.vfs.fsync(ino, false).unwrap();
}

#[test]
fn fsync_waits_for_a_size_that_another_fsync_is_telling_the_format() {
    for point in [Point::Put, Point::End] {
        for seed in [None, Some(1), Some(2), Some(3)] {
            let grow = |v: &Volume| {
                let f = file(v);
                v.vfs.sync().unwrap();
                f
            };
            beside(
                seed,
                grow,
                point,
                |v, f| {
                    set(v, f, size(5000));
                    fsync(v, f);
                },
                |v, f| {
                    fsync(v, f);
                    assert_eq!(durable_size(v, f), 5000, "{:?}", v.vfs.stat(f).unwrap().attr.size);
                },
            );
        }
    }
}

/// Writes `written` of a file of six blocks, which are on the device, has `drop_it` drop that, and syncs beside it. The
/// device must have what was written, unless it is gone there as well.
fn sync_beside(written: &std::ops::Range<u64>, drop_it: fn(&Volume, Ino)) {
    let points = [Point::Unmap, Point::Unmapping, Point::Put].into_iter();
    for (point, seed) in points.flat_map(|point| [(point, None), (point, Some(1))]) {
        let (range, judged) = (written.clone(), written.clone());
        let whole = |v: &Volume| {
            let f = file(v);
            v.write(f, 0, &[1; 6 * BLOCK]);
            f
        };
        beside(
            seed,
            whole,
            point,
            move |v, f| {
                v.write(f, range.start * BLOCK as u64, &vec![2; (range.end - range.start) as usize * BLOCK]);
                drop_it(v, f);
            },
            move |v, f| {
                v.vfs.sync().unwrap();
                let after = v.after_power_cut();
                let shown = read(&after, f, 0, after.stat(f).unwrap().attr.size as usize);
                let of = |block: u64| shown.get(block as usize * BLOCK).copied();
                let all_are = |is: &dyn Fn(Option<u8>) -> bool| judged.clone().all(|block| is(of(block)));
                let dropped = |byte: Option<u8>| matches!(byte, None | Some(0)) && shown.len() <= 6 * BLOCK;
                assert!(
                    all_are(&|byte| byte == Some(2)) || all_are(&dropped),
                    "{point:?}: {:?}",
                    (0..8).map(of).collect::<Vec<_>>()
                );
            },
        );
    }
}

#[test]
fn a_sync_beside_a_truncation_leaves_no_older_bytes_and_no_holes() {
    let cut = |v: &Volume, f: Ino| set(v, f, size(3 * BLOCK as u64));
    sync_beside(&(4..6), cut);
    sync_beside(&(6..8), cut);
}

#[test]
fn a_sync_beside_the_making_of_a_hole_leaves_no_older_bytes() {
    sync_beside(&(2..5), |v, f| {
        let (from, len) = (BLOCK as u64, 4 * BLOCK as u64);
        v.vfs.allocate(&Credentials::root(), f, from, len, Allocate::Punch).unwrap();
    });
}

#[test]
fn a_sync_between_the_ops_of_a_large_hole_leaves_no_older_bytes() {
    const BLOCKS: usize = 24;
    for seed in [None, Some(1)] {
        let whole = |v: &Volume| {
            let f = file(v);
            v.write(f, 0, &[1; BLOCKS * BLOCK]);
            f
        };
        beside(
            seed,
            whole,
            Point::End,
            |v, f| {
                v.write(f, 0, &[2; BLOCKS * BLOCK]);
                v.vfs.allocate(&Credentials::root(), f, 0, (BLOCKS * BLOCK) as u64, Allocate::Punch).unwrap();
            },
            |v, f| {
                v.vfs.sync().unwrap();
                let shown = read(&v.after_power_cut(), f, 0, BLOCKS * BLOCK);
                assert!(!shown.contains(&1), "{:?}", shown.iter().step_by(BLOCK).collect::<Vec<_>>());
            },
        );
    }
}

#[test]
fn a_size_is_not_told_before_the_blocks_that_it_covers_are_mapped() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let short = |v: &Volume| {
            let f = file(v);
            v.write(f, 0, &[1; 100]);
            f
        };
        beside(
            seed,
            short,
            Point::Place,
            |v, f| {
                v.write(f, 100, &[2; 900]);
                fsync(v, f);
            },
            |v, f| {
                set(v, f, SetAttr { perm: Some(0o600), ..SetAttr::default() });
                assert_eq!(v.vfs.format().disk_size(f), 100);
            },
        );
    }
}

#[test]
fn sync_waits_for_a_size_that_background_work_is_telling_the_format() {
    for point in [Point::Put, Point::End] {
        for seed in [None, Some(1), Some(2), Some(3)] {
            beside(
                seed,
                file,
                point,
                |v, f| {
                    set(v, f, size(5000));
                    fsync(v, f);
                },
                |v, f| {
                    v.vfs.sync().unwrap();
                    assert_eq!(durable_size(v, f), 5000);
                },
            );
        }
    }
}

#[test]
fn a_mode_that_was_seen_before_an_fsync_or_a_sync_is_durable_after_it() {
    for point in [Point::Put, Point::End] {
        for whole in [false, true] {
            beside(
                None,
                file,
                point,
                |v, f| set(v, f, SetAttr { perm: Some(0o600), ..SetAttr::default() }),
                move |v, f| {
                    let seen = v.vfs.stat(f).unwrap().attr.perm;
                    if whole {
                        v.vfs.sync().unwrap()
                    } else {
                        fsync(v, f)
                    };
                    if seen == 0o600 {
                        assert_eq!(durable_perm(v, f), 0o600, "{point:?}, sync: {whole}");
                    }
                },
            );
        }
    }
}

#[test]
fn a_time_that_changes_while_the_format_is_told_is_told_again() {
    for point in [Point::Put, Point::End] {
        beside(
            None,
            file,
            point,
            |v, f| {
                set(v, f, size(5000));
                fsync(v, f);
            },
            |v, f| {
                v.write(f, 0, &[1; 100]);
                v.write(f, 6000, &[1; 100]);
                fsync(v, f);
                assert_eq!(durable_size(v, f), 6100);
            },
        );
    }
}

#[test]
fn a_file_appended_to_by_another_task_is_as_long_as_it_was_at_the_fsync() {
    for seed in 0..20 {
        let virt = Virtual::new(Some(seed));
        let rt: Rt = Arc::clone(&virt) as Rt;
        virt.run(move || {
            let v = Arc::new(Volume::new(4096, options(), Arc::clone(&rt)));
            let f = file(&v);
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            *v.vfs.format().history.lock() = Some(Vec::new());
            let tasks: Vec<_> = (0..3)
                .map(|who| {
                    let (v, at) = (Arc::clone(&v), Arc::clone(&rt));
                    let body = move || {
                        for i in 0..12 {
                            v.vfs.write(&Credentials::root(), f, 0, &pattern(who, 300 + 97 * i), true).unwrap();
                            sleep_until(&*at, at.now() + Duration::from_micros(100 * (who + 1)));
                            let size = v.vfs.stat(f).unwrap().attr.size;
                            v.vfs.fsync(f, i % 2 == 0).unwrap();
                            let durable = durable_size(&v, f);
                            assert!(durable >= size, "seed {seed}: {durable} of {size} bytes are durable");
                        }
                    };
                    rt.spawn("writer", Box::new(body))
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join(&*rt));
            v.vfs.clone().close().unwrap();
        });
    }
}

#[test]
fn a_failed_write_is_reported_to_each_process_that_was_there() {
    let v = Volume::live(4096);
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(9, 3000));
    v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::Error)]);
    assert_eq!(errno(v.vfs.sync()), libc::EIO);
    v.fault.set(Vec::new());
    v.vfs.sync().unwrap();
    let fsync = |id, secs: Option<u64>| {
        let age = secs.map(Duration::from_secs);
        errno(v.vfs.fsync_for(f, false, &|| Process { id, age }))
    };
    assert_eq!(fsync(1, Some(100)), libc::EIO);
    assert_eq!(fsync(1, Some(100)), 0, "once");
    assert_eq!(fsync(2, Some(100)), libc::EIO, "what another process was told is no answer to this one");
    assert_eq!(fsync(3, None), libc::EIO, "its age is not known");
    v.vfs.close().unwrap();
}

#[test]
fn an_extended_attribute_that_was_seen_before_an_fsync_is_durable_after_it() {
    for point in [Point::Put, Point::End] {
        beside(
            None,
            file,
            point,
            |v, f| v.vfs.set_xattr(&Credentials::root(), f, b"user.a", b"value", SetMode::Any).unwrap(),
            move |v, f| {
                let seen = v.vfs.get_xattr(&Credentials::root(), f, b"user.a").is_ok();
                fsync(v, f);
                if seen {
                    let after = v.after_power_cut();
                    assert_eq!(after.get_xattr(&Credentials::root(), f, b"user.a").unwrap(), b"value", "{point:?}");
                }
            },
        );
    }
}

const SYNC_FLAG: u32 = 0x08;
const DIR_SYNC_FLAG: u32 = 0x1_0000;

/// Returns true if a name is there after a power cut now.
fn is_durable(v: &Volume, dir: Ino, n: &str) -> bool {
    v.after_power_cut().lookup(&Credentials::root(), dir, name(n)).is_ok()
}

/// Marks an inode with a flag, and makes that durable.
fn marked(v: &Volume, ino: Ino, flags: u32) -> Ino {
    set(v, ino, SetAttr { flags: Some(flags), ..SetAttr::default() });
    v.vfs.sync().unwrap();
    ino
}

/// Changes names in `dir` in each way; returns which changes a power cut right after each would leave.
fn durable_changes(v: &Volume, dir: Ino) -> Vec<bool> {
    let (root, file) = (Credentials::root(), v.create(ROOT, "elsewhere"));
    v.vfs.sync().unwrap();
    v.create(dir, "file");
    let mut seen = vec![is_durable(v, dir, "file")];
    v.mkdir(dir, "directory");
    seen.push(is_durable(v, dir, "directory"));
    v.vfs.link(&root, file, dir, name("link")).unwrap();
    seen.push(is_durable(v, dir, "link"));
    v.vfs.rename(&root, (dir, name("file")), (dir, name("renamed")), RenameMode::Replace).unwrap();
    seen.push(is_durable(v, dir, "renamed") && !is_durable(v, dir, "file"));
    v.vfs.unlink(&root, dir, name("link")).unwrap();
    seen.push(!is_durable(v, dir, "link") && is_durable(v, dir, "renamed"));
    v.vfs.rmdir(&root, dir, name("directory")).unwrap();
    seen.push(!is_durable(v, dir, "directory") && is_durable(v, dir, "renamed"));
    v.vfs.rename(&root, (dir, name("renamed")), (ROOT, name("moved")), RenameMode::Replace).unwrap();
    seen.push(!is_durable(v, dir, "renamed") && is_durable(v, ROOT, "moved"));
    seen
}

#[test]
fn changes_of_names_are_durable_at_once_where_a_directory_or_the_mount_asks_for_it() {
    let on = |synchronous, flags| {
        let v = Volume::new(4096, Options { synchronous, ..options() }, moafs_runtime::Live::new());
        let dir = v.mkdir(ROOT, "dir");
        let dir = marked(&v, dir, flags);
        durable_changes(&v, dir)
    };
    for flags in [SYNC_FLAG, DIR_SYNC_FLAG] {
        assert_eq!(on(Synchronous::Marked, flags), [true; 7], "flags {flags:#x}");
    }
    assert_eq!(on(Synchronous::Names, 0), [true; 7]);
    assert_eq!(on(Synchronous::All, 0), [true; 7]);
    assert!(on(Synchronous::Marked, 0).contains(&false), "the changes are not durable by themselves");
}

#[test]
fn a_panic_in_an_op_or_beside_ops_turns_the_volume_read_only() {
    for what in ["an op (Create)", "a call"] {
        let v = Volume::live(64);
        v.create(ROOT, "old");
        v.vfs.format().panics.store(true, Ordering::Relaxed);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match what {
            "a call" => v.vfs.sync().unwrap(),
            _ => _ = v.create(ROOT, "new"),
        }))
        .unwrap_err();
        let blamed = v.vfs.format().blamed.lock().clone().expect("the format is told");
        assert!(blamed.contains(&format!("a panic in the middle of {what}")), "{blamed}");
    }
}

/// A name, or the attributes of an inode (without a name), of which the front was given notice.
type Heard = Vec<(Ino, Option<String>)>;

#[test]
fn the_front_hears_of_names_that_changed_though_they_could_not_be_made_durable() {
    let v = Volume::new(4096, Options { synchronous: Synchronous::Names, ..options() }, moafs_runtime::Live::new());
    let (root, dir, beside) = (Credentials::root(), v.mkdir(ROOT, "dir"), v.mkdir(ROOT, "beside"));
    let [a, b, c] = ["a", "b", "c"].map(|name| v.create(dir, name));
    let empty = v.mkdir(dir, "empty");
    let heard = Arc::new(Mutex::new(Heard::new()));
    let hearing = Arc::clone(&heard);
    v.vfs.watch_unseen(move |unseen| match unseen {
        Unseen::Attributes(ino) => hearing.lock().push((ino, None)),
        Unseen::Name(dir, name) => {
            hearing.lock().push((dir, Some(String::from_utf8_lossy(name.as_bytes()).into_owned())));
        }
    });
    let after = |failed: Result<()>| {
        assert_eq!(failed.unwrap_err().errno(), libc::EIO);
        std::mem::take(&mut *heard.lock())
    };
    let named = |dir: Ino, name: &str| (dir, Some(name.to_owned()));
    v.vfs.unlink(&root, dir, name("c")).unwrap();
    assert!(heard.lock().is_empty(), "{:?} has changed as the answer tells", c);
    v.vfs.format().unsyncable.store(true, Ordering::Relaxed);
    v.vfs.unlink(&root, dir, name("missing")).unwrap_err();
    assert!(heard.lock().is_empty(), "nothing has changed");
    assert_eq!(after(v.vfs.unlink(&root, dir, name("a"))), [named(dir, "a"), (a, None)]);
    assert_eq!(after(v.vfs.rmdir(&root, dir, name("empty"))), [named(dir, "empty"), (empty, None)]);
    assert_eq!(after(v.vfs.link(&root, b, dir, name("d")).map(drop)), [named(dir, "d"), (b, None)]);
    let (from, to) = ((dir, name("d")), (beside, name("e")));
    let moved = after(v.vfs.rename(&root, from, to, RenameMode::Replace));
    assert_eq!(moved, [named(beside, "e"), named(dir, "d"), (b, None)]);
    let made = after(v.vfs.create(&root, dir, name("f"), &regular(0o644)).map(drop));
    assert_eq!(made[0], named(dir, "f"));
    let f = v.vfs.lookup(&root, dir, name("f")).expect("it was made").ino;
    let over = after(v.vfs.rename(&root, (dir, name("f")), (dir, name("b")), RenameMode::Replace));
    assert_eq!(over, [named(dir, "b"), named(dir, "f"), (f, None), (b, None)]);
}

#[test]
fn changes_of_a_file_are_durable_at_once_where_it_or_the_mount_asks_for_it() {
    let root = Credentials::root();
    let on = |synchronous, flags| {
        let v = Volume::new(4096, Options { synchronous, ..options() }, moafs_runtime::Live::new());
        let file = marked(&v, v.create(ROOT, "file"), flags);
        let from = v.create(ROOT, "from");
        v.write(from, 0, &[7; 5000]);
        v.vfs.sync().unwrap();
        let mut seen = Vec::new();
        v.write(file, 0, &[5; 10_000]);
        seen.push(durable_size(&v, file) == 10_000);
        v.vfs.write_what_fits(&root, file, 10_000, &[5; 1000]).unwrap();
        seen.push(durable_size(&v, file) == 11_000);
        set(&v, file, size(3000));
        seen.push(durable_size(&v, file) == 3000);
        v.vfs.allocate(&root, file, 0, 20_000, Allocate::Extend).unwrap();
        seen.push(durable_size(&v, file) == 20_000);
        v.vfs.copy_range(&root, (from, 0), (file, 20_000), 5000).unwrap();
        seen.push(durable_size(&v, file) == 25_000);
        set(&v, file, SetAttr { perm: Some(0o600), ..SetAttr::default() });
        seen.push(durable_perm(&v, file) == 0o600);
        seen
    };
    assert_eq!(on(Synchronous::Marked, SYNC_FLAG), [true; 6]);
    assert_eq!(on(Synchronous::All, 0), [true; 6]);
    assert!(!on(Synchronous::Names, 0).contains(&true) && !on(Synchronous::Marked, DIR_SYNC_FLAG).contains(&true));
}

#[test]
fn a_removal_that_cannot_be_told_turns_the_volume_read_only() {
    for is_dir in [false, true] {
        let v = Volume::live(64);
        let child = if is_dir { v.mkdir(ROOT, "child") } else { v.create(ROOT, "child") };
        v.vfs.sync().unwrap();
        *v.vfs.format().unreadable.lock() = Some(child);
        let root = Credentials::root();
        let removed =
            if is_dir { v.vfs.rmdir(&root, ROOT, name("child")) } else { v.vfs.unlink(&root, ROOT, name("child")) };
        assert_eq!(removed.unwrap_err().errno(), libc::EIO);
        assert!(v.vfs.format().blamed.lock().is_some(), "the name is gone in memory, and the inode is not");
    }
}

#[test]
fn an_inode_that_cannot_be_told_keeps_no_other_from_being_durable() {
    let v = Volume::live(64);
    let files = ["a", "b", "c"].map(|name| v.create(ROOT, name));
    v.vfs.sync().unwrap();
    *v.vfs.format().unreadable.lock() = Some(files[1]);
    files.iter().for_each(|file| v.write(*file, 0, &[1; 10]));
    assert_eq!(v.vfs.sync().unwrap_err().errno(), libc::EIO);
    assert_eq!(files.map(|file| durable_size(&v, file)), [10, 0, 10]);
    *v.vfs.format().unreadable.lock() = None;
    v.vfs.sync().unwrap();
    assert_eq!(durable_size(&v, files[1]), 10);
    v.vfs.close().unwrap();
}

#[test]
fn a_file_that_is_written_without_end_keeps_no_name_from_being_durable() {
    let virt = Virtual::new(None);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Arc::new(Volume::new(64 << 10, Options { cache_bytes: 64 << 20, ..options() }, Arc::clone(&rt)));
        let f = v.create(ROOT, "f");
        v.fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::Slow(Duration::from_secs(1)))]);
        let over = Arc::new(AtomicBool::new(false));
        let (writing, is_over, clock) = (Arc::clone(&v), Arc::clone(&over), Arc::clone(&rt));
        let bytes = vec![1; 9 << 20];
        let writer = move || {
            while !is_over.load(Ordering::SeqCst) {
                writing.write(f, 0, &bytes);
                sleep_until(&*clock, clock.now() + 10 * PAUSE);
            }
        };
        let (cleaning, is_over) = (Arc::clone(&v), Arc::clone(&over));
        let syncer = move || {
            while !is_over.load(Ordering::SeqCst) {
                cleaning.vfs.run_background_step();
            }
        };
        let tasks = [rt.spawn("writer", Box::new(writer)), rt.spawn("syncer", Box::new(syncer))];
        sleep_until(&*rt, rt.now() + MOMENT);
        v.create(ROOT, "g");
        sleep_until(&*rt, rt.now() + 3 * Options::default().commit_interval);
        let after = v.after_power_cut();
        over.store(true, Ordering::SeqCst);
        after.lookup(&Credentials::root(), ROOT, name("g")).expect("the commit interval has passed");
        tasks.iter().for_each(|task| task.join(&*rt));
        v.fault.set(Vec::new());
        v.vfs.clone().close().unwrap();
    });
}
