//! Tests on real files in a temporary directory, and on loop devices where the user may make them.

use std::path::PathBuf;
use std::sync::Arc;

use moafs_runtime::Live;

use super::*;
use crate::{Buf, DiskExt, Kind, Lba, Page, Tag};

const TAG: Tag = Tag::volume(Kind::Data);
const SECTORS: u64 = 4096;

struct Scratch {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn scratch() -> Scratch {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    Scratch { _dir: dir, path }
}

fn image(scratch: &Scratch, options: FileOptions) -> FileDisk {
    FileDisk::create(&scratch.path, SECTORS * 512, Live::new(), options).unwrap()
}

fn page(byte: u8, len: usize) -> Page {
    Buf::copy_of(&vec![byte; len]).freeze()
}

fn write(at: u64, data: Vec<Page>) -> Request {
    Request { op: Op::Write { data, fua: false }, at: Lba(at), tag: TAG }
}

fn both_ways() -> [FileOptions; 2] {
    [Direct::Auto, Direct::Never].map(|direct| FileOptions { direct, ..FileOptions::default() })
}

#[test]
fn gathers_and_scatters_in_order() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        let data = vec![page(1, 4096), page(2, 1024), page(3, 512), page(4, 8192)];
        assert!(disk.run(vec![write(8, data)])[0].result.is_ok());
        let into = vec![Buf::zeroed(5120), Buf::zeroed(512), Buf::zeroed(8192)];
        let read = Request { op: Op::Read { into }, at: Lba(8), tag: TAG };
        let bufs = disk.run(vec![read]).remove(0).result.unwrap();
        assert!(bufs[0][..4096].iter().all(|&b| b == 1) && bufs[0][4096..].iter().all(|&b| b == 2));
        assert!(bufs[1].iter().all(|&b| b == 3) && bufs[2].iter().all(|&b| b == 4));
    }
}

#[test]
fn a_large_mixed_batch_ends_like_its_requests_one_by_one() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        // Aligned and not, one beyond the end, more than fit a ring.
        let spot = |i: u64| if i.is_multiple_of(5) { i * 16 + 1 } else { i * 16 };
        let mut batch: Vec<Request> = (0..200).map(|i| write(spot(i), vec![page(i as u8, 4096)])).collect();
        batch.insert(7, write(SECTORS, vec![page(1, 4096)]));
        let mut ok: Vec<bool> = disk.run(batch).iter().map(|d| d.result.is_ok()).collect();
        assert!(!ok.remove(7) && ok.iter().all(|&ok| ok));
        let read = |i| Request { op: Op::Read { into: vec![Buf::zeroed(4096)] }, at: Lba(spot(i)), tag: TAG };
        for (i, done) in disk.run((0..200).map(read).collect()).into_iter().enumerate() {
            assert!(done.result.unwrap()[0].iter().all(|&b| b == i as u8));
        }
    }
}

#[test]
fn batches_overlap_and_are_waited_for_in_any_order() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        let half = |from: u64| (from..from + 100).map(|i| write(i * 16, vec![page(i as u8, 4096)])).collect();
        let (one, two) = (disk.submit(half(0)), disk.submit(half(100)));
        for ticket in [two, one] {
            let dones = disk.wait(ticket);
            assert!(dones.len() == 100 && dones.iter().all(|done| done.result.is_ok()));
        }
        let into = |_| vec![Buf::zeroed(4096)];
        let read = |i: u64| Request { op: Op::Read { into: into(i) }, at: Lba(i * 16), tag: TAG };
        let all = disk.submit((0..200).map(read).collect());
        for (i, done) in disk.wait(all).into_iter().enumerate() {
            assert!(done.result.unwrap()[0].iter().all(|&b| b == i as u8));
        }
    }
}

#[test]
fn a_write_that_is_reaped_after_a_flush_was_issued_is_not_covered() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    let before = disk.run(vec![write(0, vec![page(1, 4096)]), write(64, vec![page(1, 4096)])]);
    let under_way = disk.submit(vec![write(8, vec![page(2, 4096)]), write(16, vec![page(2, 4096)])]);
    disk.make_durable(disk.epoch()).unwrap();
    assert!(before.iter().all(|done| disk.durable() >= Some(done.epoch)));
    let after = disk.wait(under_way);
    assert!(after.iter().all(|done| disk.durable() < Some(done.epoch)));
    disk.make_durable(after[0].epoch).unwrap();
    assert!(after.iter().all(|done| disk.durable() >= Some(done.epoch)));
}

#[test]
fn a_disk_is_not_closed_before_what_is_under_way_has_ended() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    let writes = (0..32).map(|i| write(i * 128, vec![page(i as u8 + 1, 64 << 10)])).collect();
    let reads = (0..8).map(|i| Request { op: Op::Read { into: vec![Buf::zeroed(4096)] }, at: Lba(i * 8), tag: TAG });
    let _never_waited_for = (disk.submit(writes), disk.submit(reads.collect()));
    drop(disk);
    let image = std::fs::read(&scratch.path).unwrap();
    assert!((0..32).all(|i| image[i << 16..(i + 1) << 16].iter().all(|&b| usize::from(b) == i + 1)));
    FileDisk::open(&scratch.path, Live::new(), FileOptions::default()).expect("the lock is gone");
}

#[test]
fn reads_into_foreign_memory_take_any_alignment() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        let data: Vec<u8> = (0..64 << 10).map(|i| (i / 512 + i) as u8).collect();
        disk.write(Lba(8), Buf::copy_of(&data).freeze(), TAG).unwrap();
        let mut aligned = Buf::zeroed(16 << 10);
        let mut anywhere = vec![0; 8192 + 3];
        let (one, two) = aligned.split_at_mut(4096);
        let mut parts = [
            ReadPart { at: Lba(8), into: one },
            ReadPart { at: Lba(24), into: two },
            ReadPart { at: Lba(9), into: &mut anywhere[3..] },
        ];
        disk.read_into(&mut parts, TAG).unwrap();
        assert!(aligned[..4096] == data[..4096] && aligned[4096..] == data[8192..][..12 << 10]);
        assert!(anywhere[3..] == data[512..][..8192]);
        let mut beyond = [ReadPart { at: Lba(SECTORS - 1), into: &mut anywhere[..1024] }];
        assert!(matches!(disk.read_into(&mut beyond, TAG), Err(DiskError::BeyondEnd { .. })));
    }
}

#[test]
fn more_pieces_than_one_system_call_takes() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    let data: Vec<Page> = (0..3000_u32).map(|i| page(i as u8, 512)).collect();
    assert!(disk.run(vec![write(3, data)])[0].result.is_ok());
    let back = disk.read(Lba(3), 3000 * 512, TAG).unwrap();
    assert!(back.chunks(512).enumerate().all(|(i, sector)| sector[0] == i as u8));
}

#[test]
fn parallel_writes_to_sectors_of_one_unit_keep_each_other() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = Arc::new(image(&scratch, options));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let disk = Arc::clone(&disk);
                scope.spawn(move || {
                    for i in 0..64 {
                        disk.write(Lba(i * 4 + thread), page(thread as u8 + 1, 512), TAG).unwrap();
                    }
                });
            }
        });
        let back = disk.read(Lba(0), 256 * 512, TAG).unwrap();
        assert!(back.chunks(512).enumerate().all(|(i, s)| s.iter().all(|&b| b == i as u8 % 4 + 1)));
    }
}

#[test]
fn the_last_sectors_of_an_odd_image_are_written_without_growing_it() {
    let scratch = scratch();
    let bytes = (1 << 20) + 1024;
    let disk = FileDisk::create(&scratch.path, bytes, Live::new(), FileOptions::default()).unwrap();
    let last = Lba(disk.limits().sectors - 2);
    disk.write(last, page(6, 1024), TAG).unwrap();
    assert!(disk.read(last, 1024, TAG).unwrap().iter().all(|&b| b == 6));
    assert_eq!(std::fs::metadata(&scratch.path).unwrap().len(), bytes);
    assert!(disk.write(Lba(last.0 + 1), page(6, 1024), TAG).is_err());
}

#[test]
fn a_second_user_is_refused_until_the_first_is_gone() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    let again = |options| FileDisk::open(&scratch.path, Live::new(), options);
    assert!(matches!(again(FileOptions::default()), Err(DiskError::Busy { .. })));
    assert!(matches!(again(FileOptions::reader()), Err(DiskError::Busy { .. })));
    drop(disk);
    let (one, two) = (again(FileOptions::reader()).unwrap(), again(FileOptions::reader()).unwrap());
    assert!(matches!(again(FileOptions::default()), Err(DiskError::Busy { .. })));
    assert_eq!(one.write(Lba(0), page(1, 512), TAG), Err(DiskError::ReadOnly));
    drop((one, two));
    again(FileOptions::default()).unwrap();
}

#[test]
fn opening_says_what_is_wrong() {
    let scratch = scratch();
    let open = |path: &Path| FileDisk::open(path, Live::new(), FileOptions::default()).unwrap_err();
    assert_eq!(open(&scratch.path).errno(), libc::ENOENT);
    assert_eq!(open(Path::new("/")).errno(), libc::EISDIR);
    assert_eq!(open(Path::new("/dev/null")).errno(), libc::ENOTBLK);
    image(&scratch, FileOptions::default());
    let create = FileDisk::create(&scratch.path, 512, Live::new(), FileOptions::default());
    assert_eq!(create.unwrap_err().errno(), libc::EEXIST);
}

#[test]
fn discard_and_zeroes_read_as_zeros() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        disk.write(Lba(0), page(9, 1 << 20), TAG).unwrap();
        let ops = [(Op::WriteZeroes { sectors: 3 }, 1), (Op::Discard { sectors: 8 }, 16)];
        let batch = ops.into_iter().map(|(op, at)| Request { op, at: Lba(at), tag: TAG }).collect();
        assert!(disk.run(batch).iter().all(|d| d.result.is_ok()));
        let back = disk.read(Lba(0), 32 * 512, TAG).unwrap();
        let zero = |s: usize| (1..4).contains(&s) || (16..24).contains(&s);
        assert!(back.chunks(512).enumerate().all(|(s, c)| c.iter().all(|&b| (b == 0) == zero(s))));
    }
}

#[test]
fn written_out_zeroes_cover_exactly_the_range() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    disk.write(Lba(0), page(9, 2 << 20), TAG).unwrap();
    disk.handle.write_out_zeroes(512, 700 << 10).unwrap();
    let back = disk.read(Lba(0), 2 << 20, TAG).unwrap();
    let zeros = 512..512 + (700 << 10);
    assert!(back.iter().enumerate().all(|(i, &b)| (b == 0) == zeros.contains(&i)));
}

#[test]
fn fua_and_flush_make_epochs_durable() {
    let scratch = scratch();
    let disk = image(&scratch, FileOptions::default());
    let fua = Request { op: Op::Write { data: vec![page(1, 4096)], fua: true }, at: Lba(0), tag: TAG };
    let done = disk.run(vec![fua]).remove(0);
    assert!(done.result.is_ok());
    disk.make_durable(done.epoch).unwrap();
    assert_eq!(disk.durable(), Some(done.epoch));
}

#[test]
fn a_truncated_image_is_an_error_not_zeros() {
    for options in both_ways() {
        let scratch = scratch();
        let disk = image(&scratch, options);
        std::fs::OpenOptions::new().write(true).open(&scratch.path).unwrap().set_len(8192).unwrap();
        assert_eq!(disk.read(Lba(64), 4096, TAG).unwrap_err().errno(), libc::EIO);
    }
}

/// A file system in memory of one megabyte; unmounted when dropped. `None` where the user may not
/// mount.
struct SmallHost(tempfile::TempDir);

impl SmallHost {
    fn mount() -> Option<SmallHost> {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, Some(c"size=1m")).ok()?;
        Some(SmallHost(dir))
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_host_is_told_apart_from_a_broken_disk() {
    let Some(host) = SmallHost::mount() else {
        eprintln!("skipped: mounting needs root");
        return;
    };
    let path = host.0.path().join("image");
    let disk = FileDisk::create(&path, 4 << 20, Live::new(), FileOptions::default()).unwrap();
    disk.write(Lba(0), page(1, 512 << 10), TAG).unwrap();
    let full = disk.write(Lba(2048), page(2, 1 << 20), TAG).unwrap_err();
    assert!(matches!(full, DiskError::HostFull { .. }), "{full}");
    let room = Request { op: Op::Discard { sectors: 1024 }, at: Lba(0), tag: TAG };
    assert!(disk.run(vec![room])[0].result.is_ok());
    disk.write(Lba(2048), page(2, 512 << 10), TAG).unwrap();
    disk.flush().unwrap();
}

/// A loop device over an image; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// Attaches one with these options of losetup(8); says so and returns `None` where only root may.
    fn attach(image: &Path, options: &[&str]) -> Option<Loop> {
        let attached = Loop::try_attach(image, options);
        if attached.is_none() {
            eprintln!("skipped: loop devices need root");
        }
        attached
    }

    fn try_attach(image: &Path, options: &[&str]) -> Option<Loop> {
        let losetup =
            |args: &[&str]| std::process::Command::new("losetup").args(args).args(options).arg(image).output();
        let out = losetup(&["--find", "--show"]).ok()?;
        let name = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| Loop(PathBuf::from(name.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

#[test]
fn a_block_device_with_large_sectors_takes_any_request() {
    let scratch = scratch();
    drop(image(&scratch, FileOptions::default()));
    let Some(device) = Loop::attach(&scratch.path, &["--sector-size", "4096"]) else { return };
    let open = |options| FileDisk::open(&device.0, Live::new(), options);
    let disk = open(FileOptions::default()).unwrap();
    assert_eq!((disk.limits().sectors, disk.limits().io_align), (SECTORS, 4096));
    assert!(matches!(open(FileOptions::default()), Err(DiskError::Busy { .. })));
    disk.write(Lba(0), page(5, 64 << 10), TAG).unwrap();
    disk.write(Lba(3), page(6, 1024), TAG).unwrap();
    let ops = [(Op::WriteZeroes { sectors: 3 }, 6), (Op::Discard { sectors: 8 }, 16)];
    let batch = ops.into_iter().map(|(op, at)| Request { op, at: Lba(at), tag: TAG }).collect();
    assert!(disk.run(batch).iter().all(|d| d.result.is_ok()));
    disk.flush().unwrap();
    let back = disk.read(Lba(0), 16 * 512, TAG).unwrap();
    let wanted = |s: usize| match s {
        3 | 4 => 6,
        6..=8 => 0,
        _ => 5,
    };
    assert!(back.chunks(512).enumerate().all(|(s, c)| c.iter().all(|&b| b == wanted(s))));
}

#[test]
fn a_write_protected_device_opens_for_reading_only() {
    let scratch = scratch();
    drop(image(&scratch, FileOptions::default()));
    let Some(device) = Loop::attach(&scratch.path, &["--read-only"]) else { return };
    let refused = FileDisk::open(&device.0, Live::new(), FileOptions::default()).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    FileDisk::open(&device.0, Live::new(), FileOptions::reader()).unwrap().read(Lba(0), 512, TAG).unwrap();
}
