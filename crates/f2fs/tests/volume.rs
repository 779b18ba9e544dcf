//! A volume used through vfs, and the findings of `fsck.f2fs` afterwards.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_disk::probe::trace::Trace;
use moafs_disk::{Buf, DiskExt, Kind, Lba, MemDisk, SharedDisk, Tag};
use moafs_f2fs::check::{self, CheckOptions, Issue};
use moafs_f2fs::clean::{Cleaner, Order};
use moafs_f2fs::engine::report::Head;
use moafs_f2fs::format::Log;
use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
use moafs_f2fs::place::{Recycling, Temperature};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::{Allocate, NewFile, RenameMode, SetAttr};
use moafs_vfs::format::CommitReason;
use moafs_vfs::types::{FileKind, Ino, Lbn, Name};

use moafs_vfs::{Credentials, Format, Options, Vfs};

const ROOT: Ino = Ino(3);

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// Makes a volume with the reference tool; `None` without it.
fn volume(mebibytes: u64, options: &[&str]) -> Option<Arc<MemDisk>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(mebibytes << 20).unwrap();
    let made =
        Command::new("mkfs.f2fs").args(["-q", "-f"]).args(options).arg(file.path()).stdout(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Some(Arc::new(MemDisk::read_from(file.path()).unwrap())),
        Ok(status) => panic!("mkfs.f2fs: {status}"),
        Err(error) => {
            eprintln!("SKIPPED: mkfs.f2fs: {error}");
            None
        }
    }
}

fn open(disk: &Arc<MemDisk>, options: OpenOptions, vfs: Options) -> Vfs<F2fs> {
    let rt = Live::new();
    let disk: SharedDisk = disk.clone();
    let format = F2fs::open(disk.clone(), rt.clone(), options).unwrap();
    Vfs::new(format, disk, rt, Options { syncer: false, ..vfs })
}

fn small() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

/// Fails if our own checker or the reference one finds anything wrong.
fn fsck(disk: &MemDisk) {
    let ours = check::check(disk, &CheckOptions::default(), &mut |_| ()).unwrap();
    // A log that recycles a segment makes it one of its temperature, whatever else is in it.
    let issues =
        ours.findings.iter().map(|finding| &finding.issue).filter(|issue| !matches!(issue, Issue::Temperature { .. }));
    let found: Vec<String> = issues.map(Issue::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let file = tempfile::NamedTempFile::new().unwrap();
    disk.write_to(file.path()).unwrap();
    let said = fsck_f2fs(file.path());
    let bad = |line: &&str| line.contains("[Fail]") || line.contains("[ASSERT]") || line.contains("[FIX]");
    let wrong: Vec<&str> = said.1.lines().filter(bad).collect();
    assert!(said.0 == Some(0) && wrong.is_empty(), "{:?}: {}", said.0, said.1);
}

fn fsck_f2fs(image: &Path) -> (Option<i32>, String) {
    let mut command = Command::new("fsck.f2fs");
    command.arg("--dry-run").arg(image).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(b"n\nn\nn\nn\n");
    let out = child.wait_with_output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

fn create(vfs: &Vfs<F2fs>, dir: Ino, text: &str, kind: FileKind) -> Ino {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    let stat = vfs.create(&Credentials::root(), dir, name(text), &new).unwrap();
    vfs.forget(stat.ino, 1);
    stat.ino
}

fn contents(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31).wrapping_add(at / 7) ^ at) as u8).collect()
}

fn read(vfs: &Vfs<F2fs>, ino: Ino, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        match vfs.read(ino, at as u64, &mut bytes[at..]).unwrap() {
            0 => break,
            n => at += n,
        }
    }
    bytes.truncate(at);
    bytes
}

#[test]
fn an_empty_volume_is_opened_and_closed_and_stays_sound() {
    let Some(disk) = volume(64, &[]) else { return };
    open(&disk, OpenOptions::default(), small()).close().unwrap();
    fsck(&disk);
}

#[test]
fn a_removed_file_gives_its_inodes_back_at_once() {
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), Options::default());
    let before = vfs.stat_fs();
    assert_eq!(before.free_inodes, before.free, "there are more node numbers than blocks");
    let file = create(&vfs, ROOT, "file", FileKind::Regular);
    vfs.write(&Credentials::root(), file, 0, &contents(1, 4 << 20), false).unwrap();
    vfs.fsync(file, false).unwrap();
    assert!(vfs.stat_fs().free_inodes + 1024 < before.free_inodes, "its blocks are not free for inodes");
    vfs.unlink(&Credentials::root(), ROOT, name("file")).unwrap();
    vfs.forget(file, 1);
    let after = vfs.stat_fs();
    assert_eq!((after.free, after.free_inodes), (before.free, before.free_inodes), "though it was not reaped yet");
    vfs.close().unwrap();
    fsck(&disk);
}

/// A pack that was read and is not whole was torn; a pack that the device cannot read may be the
/// newer one.
#[test]
fn a_checkpoint_that_cannot_be_read_is_not_taken_for_a_torn_one() {
    let Some(disk) = volume(64, &[]) else { return };
    let geo = Head::read(&(disk.clone() as SharedDisk)).unwrap().superblock.geometry();
    let lba = |pack| u64::from(geo.pack_at(pack).0) * 8;
    let opened = |victims, read_only| {
        let rules = vec![Rule::new(victims, When::Always, Harm::Error)];
        let fault = Arc::new(Fault::new(disk.clone(), Live::new(), rules));
        F2fs::open(fault, Live::new(), OpenOptions { read_only, ..OpenOptions::default() })
    };
    let reads = |pack| Victims::Reads(lba(pack)..lba(pack) + 8);
    // The second pack of a new volume cannot replace the first.
    assert!(opened(reads(0), true).is_err());
    let vfs = open(&disk, OpenOptions::default(), small());
    for text in ["one", "two"] {
        create(&vfs, ROOT, text, FileKind::Regular);
        vfs.sync().unwrap();
    }
    vfs.close().unwrap();
    for pack in 0..2 {
        let Err(error) = opened(reads(pack), false) else { panic!("pack {pack} may be the newer one") };
        assert!(error.to_string().contains("-o ro"), "{error}");
        assert!(opened(reads(pack), true).is_ok());
        let torn = Arc::new(disk.snapshot());
        let zeroes = Buf::zeroed(512).freeze();
        torn.write(Lba(lba(pack)), zeroes, Tag::volume(Kind::Segments)).unwrap();
        let opened = F2fs::open(torn, Live::new(), OpenOptions::default()).unwrap();
        let told = format!("it goes on from checkpoint {}, because checkpoint pack {}", 2 - pack, pack + 1);
        assert!(opened.shape().notes[0].starts_with(&told), "{:?}", opened.shape().notes);
    }
    fsck(&disk);
}

#[test]
fn files_and_directories_come_back_after_a_remount() {
    for options in
        [&[][..], &["-O", "extra_attr,inode_checksum,sb_checksum,flexible_inline_xattr,inode_crtime,lost_found"]]
    {
        let Some(disk) = volume(128, options) else { return };
        let vfs = open(&disk, OpenOptions::default(), small());
        let mut files = Vec::new();
        for d in 0..5 {
            let dir = create(&vfs, ROOT, &format!("dir{d}"), FileKind::Directory);
            for f in 0..60 {
                let len = [0, 100, 4096, 10_000, 300_000][(d + f) % 5];
                let ino = create(&vfs, dir, &format!("file-{f}"), FileKind::Regular);
                let data = contents((d * 100 + f) as u64, len);
                assert_eq!(vfs.write(&Credentials::root(), ino, 0, &data, false).unwrap(), 0);
                files.push((dir, f, data));
            }
        }
        let big = create(&vfs, ROOT, "big", FileKind::Regular);
        let data = contents(7, 9_000_000);
        vfs.write(&Credentials::root(), big, 0, &data, false).unwrap();
        vfs.sync().unwrap();
        fsck(&disk);
        vfs.close().unwrap();
        fsck(&disk);
        let vfs = open(&disk, OpenOptions::default(), small());
        for (dir, f, data) in &files {
            let stat = vfs.lookup(&Credentials::root(), *dir, name(&format!("file-{f}"))).unwrap();
            assert!(read(&vfs, stat.ino, data.len() + 1) == *data, "file {f}");
        }
        assert!(read(&vfs, big, data.len()) == data);
        for (dir, f, _) in files.iter().filter(|(_, f, _)| f % 3 == 0) {
            vfs.unlink(&Credentials::root(), *dir, name(&format!("file-{f}"))).unwrap();
        }
        vfs.unlink(&Credentials::root(), ROOT, name("big")).unwrap();
        vfs.forget(big, u64::MAX);
        vfs.close().unwrap();
        fsck(&disk);
    }
}

#[test]
fn a_nearly_full_volume_is_overwritten_again_and_again_with_every_policy() {
    let mut policies = vec![];
    for cleaner in Cleaner::ALL {
        policies.push(OpenOptions { cleaner, recycling: Recycling::Never, ..OpenOptions::default() });
    }
    policies.push(OpenOptions { recycling: Recycling::Always, ..OpenOptions::default() });
    policies.push(OpenOptions { recycling: Recycling::Auto, ..OpenOptions::default() });
    policies.push(OpenOptions {
        recycling: Recycling::Always,
        temperature: Temperature::Wolf,
        ..OpenOptions::default()
    });
    for temperature in [Temperature::Wolf, Temperature::SepBit] {
        policies.push(OpenOptions { recycling: Recycling::Never, temperature, ..OpenOptions::default() });
    }
    policies.push(OpenOptions {
        recycling: Recycling::Never,
        clean_order: Order::File,
        clean_batch: 3,
        ..OpenOptions::default()
    });
    for options in policies {
        let Some(disk) = volume(64, &[]) else { return };
        let vfs = open(&disk, options.clone(), small());
        let blocks = vfs.stat_fs().free * 85 / 100;
        let files: Vec<Ino> =
            (0..blocks / 10).map(|f| create(&vfs, ROOT, &format!("f{f}"), FileKind::Regular)).collect();
        let mut newest = vec![0; files.len()];
        let mut state = 1u64;
        for round in 0..files.len() * 8 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = if round < files.len() { round } else { (state >> 33) as usize % files.len() };
            newest[at] = round as u64;
            let data = contents(round as u64, 32768);
            vfs.write(&Credentials::root(), files[at], 0, &data, false)
                .unwrap_or_else(|e| panic!("{options:?} {round}: {e}"));
        }
        vfs.sync().unwrap();
        println!("{options:?}\n{:?}", vfs.format().counters());
        fsck(&disk);
        for (file, round) in files.iter().zip(&newest) {
            assert!(read(&vfs, *file, 32768) == contents(*round, 32768), "{options:?}");
        }
        vfs.close().unwrap();
        fsck(&disk);
        let vfs = open(&disk, options.clone(), small());
        for (file, round) in files.iter().zip(&newest) {
            assert!(read(&vfs, *file, 32768) == contents(*round, 32768), "{options:?}");
        }
    }
}

#[test]
fn what_was_fsynced_is_found_again_without_a_checkpoint() {
    for recycling in Recycling::ALL {
        let Some(disk) = volume(256, &[]) else { return };
        let options = OpenOptions { recycling, ..OpenOptions::default() };
        let vfs = open(&disk, options.clone(), small());
        let dir = create(&vfs, ROOT, "dir", FileKind::Directory);
        let old = create(&vfs, dir, "old", FileKind::Regular);
        vfs.write(&Credentials::root(), old, 0, &contents(1, 5_000_000), false).unwrap();
        vfs.sync().unwrap();
        let before = vfs.format().counters().checkpoints;
        let mut files = Vec::new();
        for round in 0..40 {
            let len = [10, 5_000, 70_000, 4_200_000][round % 4];
            let ino = create(&vfs, dir, &format!("new{round}"), FileKind::Regular);
            vfs.write(&Credentials::root(), ino, 0, &contents(round as u64, len), false).unwrap();
            vfs.write(&Credentials::root(), old, round as u64 * 100_000, &contents(round as u64, 3000), false).unwrap();
            if round % 3 == 0 {
                vfs.fsync(ino, false).unwrap();
                files.push((round, len));
            }
            if round % 7 == 0 {
                vfs.fsync(old, true).unwrap();
            }
            if round % 13 == 12 {
                // A power cut: only the bytes that the device has now are left.
                let cut = Arc::new(disk.snapshot());
                fsck(&cut);
                let after = open(&cut, options.clone(), small());
                let at = after.lookup(&Credentials::root(), ROOT, name("dir")).unwrap().ino;
                for (round, len) in &files {
                    let found = after.lookup(&Credentials::root(), at, name(&format!("new{round}"))).unwrap();
                    assert_eq!(found.attr.size, *len as u64);
                    assert!(read(&after, found.ino, *len) == contents(*round as u64, *len), "new{round}");
                }
                let fsynced = round / 7 * 7;
                let whole = read(&after, old, 5_000_000);
                assert!(whole[fsynced * 100_000..][..3000] == contents(fsynced as u64, 3000));
                after.close().unwrap();
                fsck(&cut);
            }
        }
        let checkpoints = vfs.format().counters().checkpoints - before;
        assert!(checkpoints < 10, "{checkpoints} checkpoints for {} fsyncs", files.len());
        vfs.close().unwrap();
        fsck(&disk);
    }
}

/// Removing a file gives its blocks back at once, but the last checkpoint has them still: with the chain of a new file
/// that takes their place, more blocks would be in use than the volume has.
#[test]
fn a_full_volume_on_which_a_file_takes_the_place_of_another_is_mounted_after_a_crash() {
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    let who = Credentials::root();
    let last = create(&vfs, ROOT, "last", FileKind::Regular);
    let append = |ino: Ino, len: usize| {
        let size = vfs.stat(ino).unwrap().attr.size;
        vfs.write(&who, ino, size, &contents(1, len), false).is_ok() && vfs.sync().is_ok()
    };
    let filler = |text: &String| append(create(&vfs, ROOT, text, FileKind::Regular), 1 << 20);
    let files: Vec<String> = (0..).map(|n| format!("filler{n}")).take_while(filler).collect();
    // To the last block.
    while append(last, 4096) {}
    vfs.sync().unwrap();
    for (round, text) in files.iter().take(4).enumerate() {
        vfs.unlink(&who, ROOT, name(text)).unwrap();
        vfs.run_background_step();
        let new = create(&vfs, ROOT, &format!("new{round}"), FileKind::Regular);
        vfs.write(&who, new, 0, &contents(round as u64, 900_000), false).unwrap();
        vfs.fsync(new, false).unwrap();
        let cut = Arc::new(disk.snapshot());
        let after = open(&cut, OpenOptions::default(), small());
        for old in 0..=round {
            let found = after.lookup(&who, ROOT, name(&format!("new{old}"))).unwrap().ino;
            assert!(read(&after, found, 900_000) == contents(old as u64, 900_000), "round {round}: new{old}");
        }
        after.close().unwrap();
        fsck(&cut);
    }
    vfs.close().unwrap();
    fsck(&disk);
}

/// A power cut may leave the new size and, behind it in the last block, the old bytes.
#[test]
fn space_allocated_behind_the_end_of_a_file_that_was_cut_reads_as_zeros() {
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    let file = create(&vfs, ROOT, "file", FileKind::Regular);
    vfs.write(&Credentials::root(), file, 0, &[7; 4096], false).unwrap();
    vfs.sync().unwrap();
    let cut = SetAttr { size: Some(1921), ..SetAttr::default() };
    vfs.set_attr(&Credentials::root(), file, &cut).unwrap();
    vfs.format().commit(CommitReason::Age).unwrap();
    for (offset, end) in [(0, 3000), (1000, 9000), (2500, 3000), (1921, 4096)] {
        let vfs = open(&Arc::new(disk.snapshot()), OpenOptions::default(), small());
        let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).unwrap().ino;
        vfs.allocate(&Credentials::root(), file, offset, end - offset, Allocate::Extend).unwrap();
        let bytes = read(&vfs, file, 10_000);
        let ends = (bytes.len() as u64, bytes.iter().rposition(|byte| *byte != 0));
        assert_eq!(ends, (end, Some(1920)), "allocated {offset}..{end}");
    }
}

fn create_and_fsync(vfs: &Vfs<F2fs>, text: &str) {
    let file = create(vfs, ROOT, text, FileKind::Regular);
    vfs.write(&Credentials::root(), file, 0, &contents(1, 5000), false).unwrap();
    vfs.fsync(file, false).unwrap();
}

/// Returns a volume with two files in chains behind its checkpoint, after a power cut that lost the first block of
/// these: a mount finds no chain, for its first block is not there. The block behind that one is.
fn volume_with_a_chain_that_lost_its_first_block() -> Option<Arc<MemDisk>> {
    let disk = volume(64, &[])?;
    let vfs = open(&disk, OpenOptions::default(), small());
    create(&vfs, ROOT, "old", FileKind::Regular);
    vfs.sync().unwrap();
    let head = Head::read(&(disk.clone() as SharedDisk)).unwrap();
    let log = head.checkpoint.current[Log::WarmNode as usize];
    let first = head.superblock.geometry().block_of(log.segno, log.offset.into());
    ["lost", "not reached"].iter().for_each(|text| create_and_fsync(&vfs, text));
    assert_eq!(vfs.format().counters().checkpoints, 1, "both are in chains");
    let cut = disk.snapshot();
    cut.write(Lba(u64::from(first.0) * 8), Buf::zeroed(4096).freeze(), Tag::volume(Kind::Node)).unwrap();
    Some(Arc::new(cut))
}

/// Tells which of the names there are: "old", "lost", "not reached", "new".
fn names_there(vfs: &Vfs<F2fs>) -> [bool; 4] {
    ["old", "lost", "not reached", "new"].map(|text| vfs.lookup(&Credentials::root(), ROOT, name(text)).is_ok())
}

#[test]
fn a_chain_is_not_continued_by_what_an_earlier_mount_left_behind_the_same_checkpoint() {
    let Some(disk) = volume_with_a_chain_that_lost_its_first_block() else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    assert_eq!(names_there(&vfs), [true, false, false, false]);
    create_and_fsync(&vfs, "new");
    let cut = Arc::new(disk.snapshot());
    fsck(&cut);
    let vfs = open(&cut, OpenOptions::default(), small());
    assert_eq!(names_there(&vfs), [true, false, false, true]);
    vfs.close().unwrap();
    fsck(&cut);
}

/// The nodes of a checkpoint take the place of those that were lost; those behind them are still there.
#[test]
fn an_interrupted_checkpoint_does_not_lead_to_what_an_earlier_mount_left() {
    let Some(disk) = volume_with_a_chain_that_lost_its_first_block() else { return };
    let recorder = Arc::new(CrashRecorder::over(disk, Live::new()));
    let format = F2fs::open(recorder.clone(), Live::new(), OpenOptions::default()).unwrap();
    let vfs = Vfs::new(format, recorder.clone(), Live::new(), Options { syncer: false, ..small() });
    assert_eq!(names_there(&vfs), [true, false, false, false]);
    create_and_fsync(&vfs, "new");
    for cut in 0..recorder.cut_points() {
        let state = Arc::new(recorder.state(cut, 0, Mode::All));
        let vfs = open(&state, OpenOptions::default(), small());
        assert_eq!(names_there(&vfs)[..3], [true, false, false], "cut {cut}");
    }
}

/// Recovery gives a name to the new file that was fsynced under it. The file that had the name has another one, which
/// no checkpoint knows.
#[test]
fn a_new_file_under_a_removed_name_does_not_take_the_last_name_of_a_linked_file() {
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    let old = create(&vfs, ROOT, "old name", FileKind::Regular);
    vfs.write(&Credentials::root(), old, 0, &contents(1, 5000), false).unwrap();
    vfs.sync().unwrap();
    let linked = vfs.link(&Credentials::root(), old, ROOT, name("other name")).unwrap();
    vfs.forget(linked.ino, 1);
    vfs.unlink(&Credentials::root(), ROOT, name("old name")).unwrap();
    let new = create(&vfs, ROOT, "old name", FileKind::Regular);
    vfs.write(&Credentials::root(), new, 0, &contents(2, 5000), false).unwrap();
    vfs.fsync(new, false).unwrap();
    let cut = Arc::new(disk.snapshot());
    fsck(&cut);
    let vfs = open(&cut, OpenOptions::default(), small());
    for (text, seed) in [("old name", 2), ("other name", 1)] {
        let found =
            vfs.lookup(&Credentials::root(), ROOT, name(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read(&vfs, found.ino, 5000), contents(seed, 5000), "{text}");
        vfs.forget(found.ino, 1);
    }
    vfs.close().unwrap();
    fsck(&cut);
}

/// Metadata that a checkpoint could not write are in memory only, however little memory there is.
#[test]
fn a_volume_that_turned_read_only_shows_what_it_could_not_write() {
    const FILES: usize = 400;
    const BLOCKS: u64 = 2500;
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    let dir = create(&vfs, ROOT, "dir", FileKind::Directory);
    let files: Vec<Ino> = (0..FILES).map(|n| create(&vfs, dir, &format!("old{n}"), FileKind::Regular)).collect();
    let big = create(&vfs, dir, "big", FileKind::Regular);
    vfs.write(&Credentials::root(), big, 0, &contents(1, BLOCKS as usize * 4096), false).unwrap();
    vfs.close().unwrap();
    let mut failed = 0;
    for nth in 1.. {
        let rules = vec![Rule::new(Victims::Writes(EVERYWHERE), When::From(nth), Harm::Error)];
        let fault = Arc::new(Fault::new(Arc::new(disk.snapshot()), Live::new(), rules));
        let format = F2fs::open(fault.clone(), Live::new(), OpenOptions::default()).unwrap();
        let vfs = Vfs::new(format, fault, Live::new(), Options { syncer: false, ..small() });
        for n in 0..FILES {
            vfs.rename(
                &Credentials::root(),
                (dir, name(&format!("old{n}"))),
                (dir, name(&format!("new{n}"))),
                RenameMode::Replace,
            )
            .unwrap();
        }
        for at in [0, 1000, 2000] {
            vfs.write(&Credentials::root(), big, at * 4096, &contents(2, 4096), false).unwrap();
        }
        if vfs.sync().is_ok() {
            break;
        }
        failed += 1;
        let format = vfs.format();
        (0..20).for_each(|_| format.shrink(0));
        let (_, dir) = format.load(dir).unwrap();
        for (n, file) in files.iter().enumerate() {
            let found = format.lookup(&dir, name(&format!("new{n}"))).unwrap_or_else(|e| panic!("write {nth}: {e}"));
            assert_eq!(found.map(|dentry| dentry.ino), Some(*file), "write {nth}: new{n}");
            format.load(*file).unwrap_or_else(|e| panic!("write {nth}: {e}"));
        }
        let (_, big) = format.load(big).unwrap();
        for lbn in [0, 1000, 2000] {
            format.map(&big, Lbn(lbn), 1).unwrap_or_else(|e| panic!("write {nth}: {e}"));
        }
    }
    assert!(failed > 5, "{failed} writes");
}

#[test]
fn a_volume_whose_root_cannot_be_read_is_refused_with_what_to_do() {
    let Some(disk) = volume(64, &[]) else { return };
    // Node and inode number in the footers of all blocks of the root's inode.
    let footer = [3u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    let mut wiped = 0;
    for block in 0..(64 << 20) / 4096 {
        let at = Lba(block * 8);
        if disk.read(at, 4096, Tag::volume(Kind::Node)).unwrap()[4072..4080] == footer[..] {
            disk.write(at, Buf::zeroed(4096).freeze(), Tag::volume(Kind::Node)).unwrap();
            wiped += 1;
        }
    }
    assert_eq!(wiped, 1);
    for read_only in [false, true] {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let Err(error) = F2fs::open(disk.clone(), Live::new(), options) else { panic!("it has no root") };
        let told = error.to_string();
        assert!(told.contains("the root directory (inode 3)") && told.contains("fsck.f2fs"), "{told}");
    }
}

/// Returns the places of the blocks that an inode has been written to, by the numbers in their footers.
fn places_of(disk: &MemDisk, ino: Ino) -> Vec<u64> {
    let number = (ino.0 as u32).to_le_bytes();
    let footer = [number, number].concat();
    let mut bytes = [0; 8];
    let blocks = (0..disk.to_bytes().len() as u64).step_by(4096);
    blocks
        .filter(|at| {
            disk.peek(at + 4072, &mut bytes);
            bytes[..] == footer[..]
        })
        .collect()
}

#[test]
fn files_of_features_that_are_not_there_are_refused_one_by_one() {
    /// The bytes of an inode at which its hints (`i_advise`) and its flags lie.
    const ADVISE: u64 = 2;
    const FLAGS: u64 = 80;
    let cases: [(&str, FileKind, u64, [u8; 4], &str); 3] = [
        ("secret", FileKind::Regular, ADVISE, [0x04, 0, 0, 0], "encrypted"),
        ("small", FileKind::Regular, FLAGS, [0x04, 0, 0, 0], "compressed"),
        ("Names", FileKind::Directory, FLAGS, [0, 0, 0, 0x40], "ignores case"),
    ];
    let Some(disk) = volume(64, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), small());
    let inos = cases.map(|(text, kind, ..)| create(&vfs, ROOT, text, kind));
    create(&vfs, ROOT, "plain", FileKind::Regular);
    vfs.close().unwrap();
    for (ino, (text, _, at, bits, _)) in inos.into_iter().zip(cases) {
        let places = places_of(&disk, ino);
        assert!(!places.is_empty(), "{text} is nowhere");
        for place in places {
            let len = if at == ADVISE { 1 } else { 4 };
            let mut now = [0; 4];
            disk.peek(place + at, &mut now[..len]);
            now.iter_mut().zip(bits).for_each(|(byte, bit)| *byte |= bit);
            disk.poke(place + at, &now[..len]);
        }
    }
    let vfs = open(&disk, OpenOptions::default(), small());
    for (text, .., reason) in cases {
        let refused = vfs.lookup(&Credentials::root(), ROOT, name(text)).expect_err("it cannot be used").to_string();
        assert!(refused.contains(reason), "{text}: {refused}");
    }
    assert_eq!(vfs.failed(), None, "the volume goes on");
    vfs.lookup(&Credentials::root(), ROOT, name("plain")).unwrap();
    create(&vfs, ROOT, "new", FileKind::Regular);
    vfs.close().unwrap();
}

#[test]
fn a_volume_of_a_terabyte_is_opened_by_reading_its_tables_only() {
    let disk = Arc::new(MemDisk::new(1 << 31));
    mkfs(&*disk, &MkfsOptions::new([1; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
    let rt = Live::new();
    let trace = Arc::new(Trace::new(disk.clone(), rt.clone()));
    let format = F2fs::open(trace.clone(), rt.clone(), OpenOptions::default()).unwrap();
    let seen = trace.counters();
    let (requests, bytes) = (seen.requests(|_| true), seen.bytes(|_| true));
    println!("{requests} requests for {bytes} bytes");
    assert!(bytes < 64 << 20 && requests < 400, "{requests} requests for {bytes} bytes");
    assert!(format.memory() < 1 << 20, "{} bytes of cached metadata", format.memory());
    let vfs = Vfs::new(format, trace, rt, Options { syncer: false, ..small() });
    create(&vfs, ROOT, "file", FileKind::Regular);
    vfs.close().unwrap();
}

/// Makes `files` small files in the root; returns their numbers.
fn make_files(vfs: &Vfs<F2fs>, files: usize) -> Vec<Ino> {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let make = |number: usize| {
        let made = vfs.create(&Credentials::root(), ROOT, name(&format!("file{number}")), &new).expect("there is room");
        vfs.write(&Credentials::root(), made.ino, 0, format!("contents of {number}").as_bytes(), false).expect("room");
        vfs.forget(made.ino, 1);
        made.ino
    };
    (0..files).map(make).collect()
}

/// Opens a volume with nothing cached, and what tells its requests.
fn open_traced(disk: &Arc<MemDisk>) -> (Vfs<F2fs>, Arc<Trace>) {
    let rt = Live::new();
    let trace = Arc::new(Trace::new(disk.clone(), rt.clone()));
    let shared: SharedDisk = trace.clone();
    let format = F2fs::open(shared.clone(), rt.clone(), OpenOptions::default()).expect("a sound volume");
    (Vfs::new(format, shared, rt, Options { syncer: false, ..Options::default() }), trace)
}

#[test]
fn nodes_that_lie_together_are_read_together() {
    const FILES: usize = 4000;
    let Some(disk) = volume(128, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), Options::default());
    let files = make_files(&vfs, FILES);
    vfs.close().expect("the disk works");
    let (vfs, trace) = open_traced(&disk);
    let before = trace.counters();
    // In an order that is not theirs on the disk: most neighbours are used long after they were read.
    for number in (0..FILES).map(|at| at * 379 % FILES) {
        vfs.lookup(&Credentials::root(), ROOT, name(&format!("file{number}"))).expect("it is there");
        vfs.forget(files[number], 1);
    }
    let seen = trace.counters().since(&before);
    let reads = seen.reads_of(Kind::Node);
    assert!(reads <= FILES as u64 / 32 + 10, "{reads} requests for {FILES} inodes");
    let reads = seen.reads_of(Kind::Segments);
    assert!(reads <= 2, "{reads} requests for the table with their addresses");
}

#[test]
fn files_that_lie_side_by_side_are_read_together() {
    const FILES: usize = 1000;
    let Some(disk) = volume(128, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), Options::default());
    let files = make_files(&vfs, FILES);
    vfs.close().expect("the disk works");
    let (vfs, trace) = open_traced(&disk);
    let before = trace.counters();
    for (number, ino) in files.into_iter().enumerate() {
        assert_eq!(read(&vfs, ino, 100), format!("contents of {number}").as_bytes());
    }
    // Some are read alone, to find out which is faster on this device.
    let reads = trace.counters().since(&before).reads_of(Kind::Data);
    assert!(reads <= FILES as u64 / 4, "{reads} requests for {FILES} files");
}

#[test]
fn inodes_of_new_files_are_written_once_with_their_data() {
    const FILES: usize = 9000;
    let Some(disk) = volume(256, &[]) else { return };
    let vfs = open(&disk, OpenOptions::default(), Options::default());
    make_files(&vfs, FILES);
    vfs.sync().expect("the disk works");
    let written = vfs.format().counters().node_blocks;
    assert!(written < FILES as u64 + 100, "{written} nodes for {FILES} files");
    vfs.close().expect("the disk works");
    fsck(&disk);
}
