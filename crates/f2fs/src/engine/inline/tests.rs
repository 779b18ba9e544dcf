//! Files whose contents another driver has put into their inodes, changed in every way.

use std::sync::Arc;
use std::time::Duration;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_runtime::{Live, Rt};
use moafs_vfs::Vfs;
use moafs_vfs::api::{Allocate, Options, RenameMode, SetAttr};
use moafs_vfs::format::{Format, Progress};
use moafs_vfs::types::{FileKind, Ino};

use super::*;
use crate::OpenOptions;
use crate::format::superblock::Features;
use crate::format::{BLOCK, Nid};
use crate::judge::{assert_clean, features, loaded, mount, name, new, root, volume};

const ROOT: Ino = Ino(3);

/// Makes a volume with a file for each of these contents, which lie in the files' inodes. Returns their numbers.
fn inline_files(features: Features, contents: &[Vec<u8>]) -> (Arc<MemDisk>, Vec<Ino>) {
    let disk = volume(64, features);
    let vfs = mount(&disk);
    let make = |number: usize| {
        let ino =
            vfs.create(&root(), ROOT, name(format!("file-{number}").as_bytes()), &new(FileKind::Regular)).unwrap().ino;
        vfs.forget(ino, 1);
        ino
    };
    let inos: Vec<Ino> = (0..contents.len()).map(make).collect();
    vfs.close().unwrap();
    let (shared, rt): (SharedDisk, Rt) = (disk.clone(), Live::new());
    let fs = F2fs::open(shared, rt, OpenOptions::default()).unwrap();
    for (ino, bytes) in inos.iter().zip(contents) {
        fold(&fs, *ino, bytes);
    }
    fs.close().unwrap();
    (disk, inos)
}

/// Puts contents into a file's inode, as other drivers do.
fn fold(fs: &F2fs, ino: Ino, bytes: &[u8]) {
    let file = fs.incore(Nid(ino.0 as u32)).unwrap();
    assert_eq!(fs.unmap_range(&file, 0, None, u32::MAX).unwrap(), Progress::Done);
    let area = fs.layout(&file).inline_range();
    fs.change(&file.node, |block| block[area][..bytes.len()].copy_from_slice(bytes));
    let fold = |inode: &mut Inode| {
        inode.size = bytes.len() as u64;
        inode.inline.insert(Inline::DATA | Inline::DATA_EXIST);
    };
    fs.change_inode(&file, fold).unwrap();
    fs.changed();
}

/// A change of a file.
#[derive(Debug, Clone, Copy)]
enum Change {
    Truncate(u64),
    Write(u64, usize),
    Append(usize),
    Allocate(u64, u64, Allocate),
    Mode,
    Read,
    Copy(u64),
}

const CHANGES: [Change; 25] = [
    Change::Truncate(0),
    Change::Truncate(50),
    Change::Truncate(3480),
    Change::Truncate(5000),
    Change::Truncate(1 << 20),
    Change::Write(0, 10),
    Change::Write(60, 20),
    Change::Write(0, 4000),
    Change::Write(0, BLOCK),
    Change::Write(0, BLOCK + 100),
    Change::Write(4000, 200),
    Change::Write(4096, 100),
    Change::Write(8192, 10),
    Change::Append(10),
    Change::Append(5000),
    Change::Allocate(0, 100, Allocate::Extend),
    Change::Allocate(0, 9000, Allocate::Extend),
    Change::Allocate(0, 4096, Allocate::KeepSize),
    Change::Allocate(10, 30, Allocate::Punch),
    Change::Allocate(0, 8192, Allocate::Punch),
    Change::Allocate(20, 40, Allocate::Zero { keep_size: true }),
    Change::Allocate(20, 9000, Allocate::Zero { keep_size: false }),
    Change::Mode,
    Change::Read,
    Change::Copy(6000),
];

impl Change {
    /// Makes the change, also in `model`.
    fn make(self, vfs: &Vfs<F2fs>, ino: Ino, model: &mut Vec<u8>) {
        match self {
            Change::Truncate(size) => {
                vfs.set_attr(&root(), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                model.resize(size as usize, 0);
            }
            Change::Write(at, len) => {
                vfs.write(&root(), ino, at, &vec![0xB7; len], false).unwrap();
                overwrite(model, at as usize, &vec![0xB7; len]);
            }
            Change::Append(len) => {
                vfs.write(&root(), ino, 0, &vec![0xC8; len], true).unwrap();
                model.extend(vec![0xC8; len]);
            }
            Change::Allocate(at, len, how) => {
                // None but the blocks of a file can be allocated if its end is not to move.
                let done = vfs.allocate(&root(), ino, at, len, how);
                assert!(done.is_ok() || how == Allocate::KeepSize, "{done:?}");
                let (at, end) = (at as usize, (at + len) as usize);
                match how {
                    Allocate::Extend => model.resize(model.len().max(end), 0),
                    Allocate::Zero { keep_size: false } => overwrite(model, at, &vec![0; end - at]),
                    Allocate::Punch | Allocate::Zero { .. } => {
                        let len = model.len();
                        model[at.min(len)..end.min(len)].fill(0);
                    }
                    Allocate::KeepSize => {}
                }
            }
            Change::Mode => set_mode(vfs, ino, 0o600),
            Change::Read => {}
            Change::Copy(to) => {
                let copied = vfs.copy_range(&root(), (ino, 0), (ino, to), 10).unwrap() as usize;
                let bytes = model[..copied].to_vec();
                if copied > 0 {
                    overwrite(model, to as usize, &bytes);
                }
            }
        }
        if !matches!(self, Change::Mode) {
            assert!(contents(vfs, ino) == *model, "{self:?}: {} bytes", model.len());
        }
    }
}

fn set_mode(vfs: &Vfs<F2fs>, ino: Ino, perm: u32) {
    vfs.set_attr(&root(), ino, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

fn overwrite(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    model.resize(model.len().max(at + bytes.len()), 0);
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

fn contents(vfs: &Vfs<F2fs>, ino: Ino) -> Vec<u8> {
    let size = vfs.stat(ino).unwrap().attr.size;
    let mut bytes = vec![0; size as usize];
    assert_eq!(vfs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The way in which the changes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Sync,
    Fsync,
    FsyncEach,
    Timers,
    Close,
}

/// All pairs of changes, each of a file of its own.
fn pairs() -> Vec<(Change, Change)> {
    CHANGES.iter().flat_map(|first| CHANGES.iter().map(move |second| (*first, *second))).collect()
}

fn run(features: Features, size: usize, end: End) {
    let what = format!("{features:?}, files of {size} bytes, {end:?}");
    let old: Vec<u8> = (0..size).map(|at| (at % 251 + 1) as u8).collect();
    let pairs = pairs();
    let mut models = vec![old; pairs.len()];
    let (disk, inos) = inline_files(features, &models);
    let vfs = if end == End::Timers { mount_with_timers(&disk) } else { mount(&disk) };
    // From here on an fsync can do with a chain.
    vfs.create(&root(), ROOT, name(b"other"), &new(FileKind::Regular)).unwrap();
    vfs.sync().unwrap();
    for (number, (((first, second), ino), model)) in pairs.iter().zip(&inos).zip(&mut models).enumerate() {
        first.make(&vfs, *ino, model);
        match end {
            End::FsyncEach => vfs.fsync(*ino, false).unwrap(),
            End::Fsync => set_mode(&vfs, *ino, 0o640),
            _ => {
                let (from, to) = (format!("file-{number}"), format!("renamed-{number}"));
                let (from, to) = ((ROOT, name(from.as_bytes())), (ROOT, name(to.as_bytes())));
                vfs.rename(&root(), from, to, RenameMode::Replace).unwrap();
            }
        }
        second.make(&vfs, *ino, model);
        if matches!(end, End::Fsync | End::FsyncEach) {
            vfs.fsync(*ino, false).unwrap();
        }
    }
    if end == End::Sync {
        vfs.sync().unwrap();
    }
    let disk = match end {
        End::Timers | End::Close => {
            vfs.close().unwrap();
            disk
        }
        _ => Arc::new(disk.snapshot()),
    };
    let vfs = mount(&disk);
    for ((pair, ino), model) in pairs.iter().zip(&inos).zip(&models) {
        assert!(contents(&vfs, *ino) == *model, "{what}: {pair:?}: {} bytes", model.len());
    }
    vfs.close().unwrap();
    assert_clean(&disk, &what);
}

fn mount_with_timers(disk: &Arc<MemDisk>) -> Vfs<F2fs> {
    let (shared, rt): (SharedDisk, Rt) = (disk.clone(), Live::new());
    let format = F2fs::open(Arc::clone(&shared), Arc::clone(&rt), OpenOptions::default()).unwrap();
    let soon = Duration::from_millis(2);
    let options = Options { dirty_age: 5 * soon, commit_interval: soon, ..Options::default() };
    Vfs::new(format, shared, rt, options)
}

#[test]
fn contents_that_lie_in_the_inode_survive_every_change() {
    for features in features() {
        for size in [0, 1, 100, 3400] {
            for end in [End::Sync, End::Fsync, End::FsyncEach, End::Timers, End::Close] {
                run(features, size, end);
            }
        }
    }
}

/// The reference tool puts small files into their inodes.
#[test]
fn files_that_the_reference_tool_has_made_survive_every_change() {
    let source = tempfile::TempDir::new().unwrap();
    let text = |size: usize, number: usize| format!("{size}-{number}");
    for size in [0, 100, 3400] {
        for number in 0..CHANGES.len() {
            std::fs::write(source.path().join(text(size, number)), vec![5; size]).unwrap();
        }
    }
    for features in features() {
        let Some(disk) = loaded(64, features, source.path()) else { return };
        let vfs = mount(&disk);
        let mut inline = 0;
        for size in [0, 100, 3400] {
            for (number, change) in CHANGES.iter().enumerate() {
                let ino = vfs.lookup(&root(), ROOT, name(text(size, number).as_bytes())).unwrap().ino;
                let file = vfs.format().incore(Nid(ino.0 as u32)).unwrap();
                inline += u32::from(Format::is_inline(vfs.format(), &file));
                change.make(&vfs, ino, &mut vec![5; size]);
            }
        }
        assert!(inline > 0, "the tool has put no file into its inode");
        vfs.close().unwrap();
        assert_clean(&disk, "made by sload.f2fs");
    }
}

/// The bytes that a truncation has cut are zeros when the file grows again.
#[test]
fn what_was_cut_does_not_come_back() {
    for features in features() {
        for (cached, size) in [(false, 100), (true, 100), (true, 3400)] {
            let old: Vec<u8> = vec![9; size];
            let (disk, inos) = inline_files(features, &[old.clone(), old.clone()]);
            let vfs = mount(&disk);
            for (ino, grow) in inos.iter().zip([Change::Truncate(90), Change::Write(80, 5)]) {
                let mut model = old.clone();
                if cached {
                    assert!(contents(&vfs, *ino) == model);
                }
                Change::Truncate(50).make(&vfs, *ino, &mut model);
                grow.make(&vfs, *ino, &mut model);
            }
            vfs.close().unwrap();
            assert_clean(&disk, "cut and grown");
        }
    }
}

/// A full volume lets a file be cut whose contents lie in its inode.
#[test]
fn cutting_takes_no_block() {
    let (disk, inos) = inline_files(features()[0], &[vec![9; 3000]]);
    let vfs = mount(&disk);
    let other = vfs.create(&root(), ROOT, name(b"other"), &new(FileKind::Regular)).unwrap().ino;
    let mut at = 0;
    for len in [1 << 20, BLOCK] {
        while vfs.write(&root(), other, at, &vec![1; len], false).is_ok() {
            at += len as u64;
        }
    }
    vfs.sync().unwrap();
    assert_eq!(vfs.stat_fs().available, 0);
    let mut model = vec![9; 3000];
    Change::Truncate(100).make(&vfs, inos[0], &mut model);
    let grown = vfs.set_attr(&root(), inos[0], &SetAttr { size: Some(5000), ..SetAttr::default() });
    assert_eq!(grown.unwrap_err().errno(), libc::ENOSPC);
    assert!(contents(&vfs, inos[0]) == model);
    vfs.unlink(&root(), ROOT, name(b"other")).unwrap();
    vfs.forget(other, 1);
    vfs.sync().unwrap();
    Change::Truncate(5000).make(&vfs, inos[0], &mut model);
    vfs.close().unwrap();
    assert_clean(&disk, "full");
}
