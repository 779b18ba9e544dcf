//! Extent trees as the engine writes them: as ragged as they can be, on full volumes and beside small journals. e2fsck
//! judges what is left. Skipped without mke2fs and e2fsck.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Live;
use moafs_vfs::api::{Allocate, NewFile, Options, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

const ROOT: Ino = Ino(2);
const BLOCK: u64 = 1024;

fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output().expect("the tool starts");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{tool} {arguments:?}: {text}");
    text
}

/// Makes a volume with extents and the smallest journal; `None` without the tools.
fn make(size: &str) -> Option<Arc<MemDisk>> {
    for tool in ["mke2fs", "e2fsck", "debugfs"] {
        if Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
            return None;
        }
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path().to_str().unwrap();
    let options = ["-F", "-q", "-t", "ext3", "-O", "extent", "-b", "1024", "-J", "size=1", "-m", "0", path, size];
    run("mke2fs", &options);
    Some(Arc::new(MemDisk::read_from(image.path()).unwrap()))
}

fn mount(disk: &Arc<MemDisk>) -> Vfs<Ext> {
    let (disk, rt): (SharedDisk, _) = (Arc::<MemDisk>::clone(disk), Live::new());
    let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("the volume opens");
    Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() })
}

/// Has e2fsck find nothing wrong with a volume, though it may say that a tree could be narrower. Returns what debugfs
/// says of a file's extents.
fn judge(disk: &MemDisk, file: Option<&str>) -> String {
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path();
    disk.write_to(path).unwrap();
    run("e2fsck", &["-fn", path.to_str().unwrap()]);
    file.map_or_else(String::new, |file| dump(path, file))
}

fn dump(image: &Path, file: &str) -> String {
    run("debugfs", &["-R", &format!("dump_extents {file}"), image.to_str().unwrap()])
}

fn create(vfs: &Vfs<Ext>, text: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), ROOT, Name::new(text.as_bytes()).unwrap(), &new).expect("there is space").ino
}

/// Returns the bytes of a file's block.
fn block(file: Ino, at: u64) -> Vec<u8> {
    vec![1 + ((at * 7 + file.0) % 251) as u8; BLOCK as usize]
}

fn write(vfs: &Vfs<Ext>, file: Ino, at: u64) -> bool {
    match vfs.write(&Credentials::root(), file, at * BLOCK, &block(file, at), false) {
        Ok(_) => true,
        Err(error) if error.errno() == libc::ENOSPC => false,
        Err(error) => panic!("block {at}: {error}"),
    }
}

/// Compares blocks `0..end` of a file with those that were written; the others are holes.
fn compare(vfs: &Vfs<Ext>, file: Ino, end: u64, written: &BTreeSet<u64>) {
    let mut found = vec![0; BLOCK as usize];
    for at in 0..end {
        let len = vfs.read(file, at * BLOCK, &mut found).expect("it can be read");
        match written.contains(&at) {
            true => assert!(len == BLOCK as usize && found == block(file, at), "block {at} of inode {}", file.0),
            false => assert!(found[..len].iter().all(|byte| *byte == 0), "block {at} of inode {} is a hole", file.0),
        }
    }
}

/// Returns the numbers from 0 up to `count`, each once, far from their neighbours.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    // A large prime that does not divide the count reaches all of them.
    let step = 1_000_003;
    assert!(!count.is_multiple_of(step));
    (0..count).map(move |at| at * step % count)
}

#[test]
fn the_most_ragged_file_fills_a_volume_and_loses_nothing() {
    for fsync_every in [0, 97] {
        let Some(disk) = make("12M") else { return };
        let vfs = mount(&disk);
        let (ragged, whole) = (create(&vfs, "ragged"), create(&vfs, "whole"));
        let before = vfs.stat_fs();
        let (mut odd, mut all) = (BTreeSet::new(), BTreeSet::new());
        // Half of the volume: every second block, in no order.
        for at in scattered(before.free / 2) {
            assert!(write(&vfs, ragged, 2 * at), "half of the volume is free");
            odd.insert(2 * at);
            if fsync_every > 0 && odd.len() % fsync_every == 0 {
                vfs.fsync(ragged, false).expect("what was accepted finds its place");
            }
        }
        // The other half in order, until it is full; then the rest of the first file's blocks until it is fuller.
        while write(&vfs, whole, all.len() as u64) {
            all.insert(all.len() as u64);
        }
        for at in (1..before.free).step_by(8) {
            if write(&vfs, ragged, at) {
                odd.insert(at);
            }
        }
        vfs.sync().expect("what was accepted finds its place");
        // Each hole splits an extent of a full volume.
        for at in (5..all.len() as u64).step_by(6) {
            vfs.allocate(&Credentials::root(), whole, at * BLOCK, BLOCK, Allocate::Punch)
                .expect("holes need no promise");
            all.remove(&at);
            if at % 5 == 0 {
                vfs.fsync(whole, false).expect("the disk works");
            }
        }
        vfs.close().expect("everything has its place");
        judge(&disk, None);
        let vfs = mount(&disk);
        compare(&vfs, ragged, before.free, &odd);
        compare(&vfs, whole, all.iter().max().map_or(0, |last| last + 1), &all);
        for name in ["ragged", "whole"] {
            vfs.unlink(&Credentials::root(), ROOT, Name::new(name.as_bytes()).unwrap()).expect("it can be removed");
        }
        vfs.sync().expect("the disk works");
        assert_eq!(vfs.stat_fs().free, before.free, "every block and node came back");
        vfs.close().expect("the disk works");
        judge(&disk, None);
    }
}

/// Writes as many blocks in order at the end of a file as there is space for, up to `most`. Returns the end.
fn append(vfs: &Vfs<Ext>, file: Ino, all: &mut BTreeSet<u64>, most: u64) -> u64 {
    let end = all.last().map_or(0, |last| last + 1);
    let added = (end..end + most).take_while(|at| write(vfs, file, *at));
    all.extend(added.collect::<Vec<_>>());
    all.last().map_or(0, |last| last + 1)
}

#[test]
fn a_large_write_that_hardly_fits_is_accepted() {
    let Some(disk) = make("12M") else { return };
    let vfs = mount(&disk);
    let (filler, file) = (create(&vfs, "filler"), create(&vfs, "file"));
    let mut filled = BTreeSet::new();
    let free = vfs.format().space().free_blocks;
    append(&vfs, filler, &mut filled, free - 430);
    vfs.sync().expect("the disk works");
    let free = vfs.format().space().free_blocks;
    assert!((415..=430).contains(&free), "{free} blocks are free");
    // Its nodes are ten at most, if each extent has one block.
    let data: Vec<u8> = (0..400).flat_map(|at| block(file, at)).collect();
    vfs.write(&Credentials::root(), file, 0, &data, false).expect("there is space");
    vfs.close().expect("everything has its place");
    judge(&disk, None);
    let vfs = mount(&disk);
    compare(&vfs, file, 400, &(0..400).collect());
    vfs.close().expect("the disk works");
}

#[test]
fn accepted_data_find_their_place_between_single_free_blocks() {
    type Order = fn(u64) -> u64;
    // Parts of the file: in order, in the other order, and in no order.
    let orders: [Order; 3] = [|at| at, |at| 99 - at, |at| at * 37 % 100];
    for order in orders {
        let Some(disk) = make("12M") else { return };
        let vfs = mount(&disk);
        let (sieve, first, second) = (create(&vfs, "sieve"), create(&vfs, "first"), create(&vfs, "second"));
        let mut kept = BTreeSet::new();
        let end = append(&vfs, sieve, &mut kept, u64::MAX / 2);
        vfs.sync().expect("the disk works");
        for at in (1..end).step_by(2) {
            vfs.allocate(&Credentials::root(), sieve, at * BLOCK, BLOCK, Allocate::Punch).expect("a hole");
            kept.remove(&at);
        }
        vfs.sync().expect("the disk works");
        // Two files take turns, so that one is promised what the other gives back; each block becomes an extent.
        let mut written = [BTreeSet::new(), BTreeSet::new()];
        for part in 0..100 {
            for (file, written) in [first, second].into_iter().zip(&mut written) {
                let from = order(part) * 50;
                written.extend((from..from + 50).filter(|at| write(&vfs, file, *at)));
            }
            if part % 7 == 0 {
                vfs.fsync(first, false).expect("what was accepted finds its place");
            }
        }
        let count = written.iter().map(BTreeSet::len).sum::<usize>();
        assert!(count as u64 > end / 3 && count < 10_000, "{count} blocks were written, until the volume was full");
        vfs.close().expect("what was accepted finds its place");
        judge(&disk, None);
        let vfs = mount(&disk);
        compare(&vfs, sieve, end, &kept);
        for (file, written) in [first, second].into_iter().zip(&written) {
            compare(&vfs, file, 5000, written);
        }
        vfs.close().expect("the disk works");
    }
}

#[test]
fn a_deep_tree_is_cut_in_steps_that_fit_a_small_journal() {
    let Some(disk) = make("64M") else { return };
    let vfs = mount(&disk);
    let file = create(&vfs, "deep");
    let mut written = BTreeSet::new();
    for at in scattered(25_000) {
        assert!(write(&vfs, file, 2 * at), "there is space");
        written.insert(2 * at);
    }
    vfs.close().expect("the disk works");
    let text = judge(&disk, Some("deep"));
    let is_deep = text.contains(" 2/ 2 ") || text.contains(" 3/ 3 ");
    assert!(is_deep, "there are nodes below nodes: {}", &text[..text.len().min(2000)]);
    let vfs = mount(&disk);
    compare(&vfs, file, 50_000, &written);
    for size in [40_001, 39_000, 7, 0] {
        let cut = SetAttr { size: Some(size * BLOCK), ..SetAttr::default() };
        vfs.set_attr(&Credentials::root(), file, &cut).expect("the disk works");
        vfs.fsync(file, false).expect("the disk works");
        written.retain(|at| *at < size);
        compare(&vfs, file, size, &written);
    }
    vfs.close().expect("the disk works");
    judge(&disk, Some("deep"));
}

#[test]
fn allocated_blocks_are_counted_once_and_can_be_written_on_a_full_volume() {
    let Some(disk) = make("12M") else { return };
    let vfs = mount(&disk);
    let files = ["within", "read", "holes", "behind"].map(|name| create(&vfs, name));
    let [within, read, holes, behind] = files;
    let all = 64 * BLOCK;
    let cut = SetAttr { size: Some(all), ..SetAttr::default() };
    let holes_are = vfs.set_attr(&Credentials::root(), holes, &cut).and_then(|_| vfs.read(holes, 0, &mut [0; 4096]));
    assert_eq!(holes_are.expect("the disk works"), 4096);
    for (file, how) in [(within, Allocate::Extend), (read, Allocate::Extend), (holes, Allocate::KeepSize)] {
        vfs.allocate(&Credentials::root(), file, 0, all, how).expect("there is space");
    }
    for _ in 0..2 {
        vfs.allocate(&Credentials::root(), behind, 0, all, Allocate::KeepSize).expect("there is space");
    }
    assert_eq!(vfs.read(read, 0, &mut [0; 4096]).expect("the disk works"), 4096);
    let sectors = files.map(|file| vfs.stat(file).expect("it is there").sectors);
    assert_eq!(sectors, [all / 512; 4]);
    let filler = create(&vfs, "filler");
    let filled = (0..).take_while(|at| write(&vfs, filler, *at)).count();
    assert!(filled > 4000, "{filled} blocks");
    for file in files {
        for at in 0..64 {
            assert!(write(&vfs, file, at), "block {at} of inode {} has its space already", file.0);
        }
    }
    assert_eq!(files.map(|file| vfs.stat(file).expect("it is there").sectors), sectors);
    vfs.close().expect("everything has its place");
    judge(&disk, None);
    let vfs = mount(&disk);
    files.iter().for_each(|file| compare(&vfs, *file, 64, &(0..64).collect()));
}

#[test]
fn blocks_behind_the_end_come_with_zeroing_and_go_with_truncation() {
    let Some(disk) = make("12M") else { return };
    let vfs = mount(&disk);
    let file = create(&vfs, "file");
    assert!(write(&vfs, file, 0), "there is space");
    let blocks = || vfs.stat(file).expect("it is there").sectors * 512 / BLOCK;
    for how in [Allocate::KeepSize, Allocate::Zero { keep_size: true }] {
        vfs.allocate(&Credentials::root(), file, 0, 65 * BLOCK, how).expect("there is space");
        assert_eq!((vfs.stat(file).expect("it is there").attr.size, blocks()), (BLOCK, 65), "{how:?}");
        let same = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
        vfs.set_attr(&Credentials::root(), file, &same).expect("the disk works");
        assert_eq!(blocks(), 1, "{how:?}");
    }
    vfs.close().expect("everything has its place");
    judge(&disk, None);
}

#[test]
fn allocated_blocks_are_unwritten_until_they_are_written() {
    let Some(disk) = make("64M") else { return };
    let vfs = mount(&disk);
    let (file, short) = (create(&vfs, "file"), create(&vfs, "short"));
    let before = vfs.stat_fs().free;
    assert!(write(&vfs, short, 0), "there is space");
    let allocate = |file, blocks: u64, how| vfs.allocate(&Credentials::root(), file, 100, blocks * BLOCK - 100, how);
    allocate(file, 20_000, Allocate::Extend).expect("there is space");
    allocate(short, 5000, Allocate::KeepSize).expect("there is space");
    assert_eq!(allocate(file, 60_000, Allocate::Extend).expect_err("it cannot fit").errno(), libc::ENOSPC);
    let size = |file| vfs.stat(file).expect("it is there").attr.size;
    assert_eq!((size(file), size(short)), (20_000 * BLOCK, BLOCK));
    assert!(before - vfs.stat_fs().free < 25_000 + 300, "hardly more than the blocks themselves are taken");
    let written: BTreeSet<u64> = (0..20_000).step_by(7).collect();
    assert!(written.iter().all(|at| write(&vfs, file, *at)), "the space is there already");
    vfs.close().expect("the disk works");
    let text = judge(&disk, Some("file"));
    let unwritten = text.lines().filter(|line| line.contains("Uninit")).count();
    assert!(unwritten >= written.len() - 1, "{unwritten} unwritten extents");
    assert!(judge(&disk, Some("short")).lines().filter(|line| line.contains("Uninit")).count() < 20);
    let vfs = mount(&disk);
    compare(&vfs, file, 20_000, &written);
    // The file grows into what was allocated behind its end.
    let grown: BTreeSet<u64> = [0, 4000].into();
    assert!(write(&vfs, short, 4000), "the space is there already");
    vfs.fsync(short, false).expect("the disk works");
    compare(&vfs, short, 4001, &grown);
    for name in ["file", "short"] {
        vfs.unlink(&Credentials::root(), ROOT, Name::new(name.as_bytes()).unwrap()).expect("it can be removed");
    }
    vfs.sync().expect("the disk works");
    assert_eq!(vfs.stat_fs().free, before, "every block and node came back");
    vfs.close().expect("the disk works");
    judge(&disk, None);
}
