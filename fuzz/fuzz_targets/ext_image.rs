//! A small ext2 volume with a few files, damaged as the input says, through check, mount, walk, read, write, repair.
//!
//! The input is a list of damages of five bytes each: where (three bytes, little-endian) and what (two). The volume
//! has 512 blocks of 1 KiB, so that most places hold something.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, check};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_testkit::exercise::{Bounds, exercise};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name, SetMode};
use moafs_vfs::{Vfs, Credentials};

const SECTORS: u64 = 1024;
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const BOUNDS: Bounds = Bounds { inodes: 50, entries: 100, bytes: 64 << 10 };

static GOLDEN: LazyLock<MemDisk> = LazyLock::new(|| {
    let disk = Arc::new(MemDisk::new(SECTORS));
    let options = MkfsOptions { block_size: Some(1024), inodes: Some(64), ..MkfsOptions::new([1; 16], [2; 16], NOW) };
    mkfs(&*disk, &options).expect("mkfs");
    let vfs = mount(disk.clone()).expect("a fresh volume mounts");
    populate(&vfs);
    vfs.close().expect("the volume closes");
    disk.snapshot()
});

fn mount(disk: SharedDisk) -> moafs_vfs::Result<Vfs<Ext>> {
    let rt = Live::new();
    let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default())?;
    let options = Options { syncer: false, cache_bytes: 4 << 20, ..Options::default() };
    Ok(Vfs::new(ext, disk, rt, options))
}

fn populate(vfs: &Vfs<Ext>) {
    let who = Credentials::root();
    let new = |kind| NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: Some(b"somewhere/else") };
    let name = |text: &'static str| Name::new(text.as_bytes()).expect("a legal name");
    let make = |dir, text, kind| vfs.create(&who, dir, name(text), &new(kind)).expect("there is room").ino;
    let dir = make(Ino(2), "dir", FileKind::Directory);
    let file = make(dir, "file", FileKind::Regular);
    vfs.write(&who, file, 0, &[7; 40_000], false).expect("there is room");
    vfs.write(&who, file, 400_000, &[8; 3000], false).expect("there is room");
    vfs.set_xattr(&who, file, b"user.key", &[9; 600], SetMode::Any).expect("there is room");
    make(dir, "link", FileKind::Symlink);
    make(Ino(2), "pipe", FileKind::Fifo);
}

fuzz_target!(|data: &[u8]| {
    let disk = GOLDEN.snapshot();
    for damage in data.chunks_exact(5).take(40) {
        let at = u64::from(u32::from_le_bytes([damage[0], damage[1], damage[2], 0])) % (SECTORS * 512 - 1);
        disk.poke(at, &damage[3..5]);
    }
    for mode in [Mode::No, Mode::Yes] {
        let options = CheckOptions { mode, force: true, now: NOW };
        // A refusal is as good as a verdict.
        let _ = check(&disk.snapshot(), &options, &mut |_| {});
    }
    if let Ok(vfs) = mount(Arc::new(disk)) {
        exercise(&vfs, BOUNDS);
        let _ = vfs.close();
    }
});
