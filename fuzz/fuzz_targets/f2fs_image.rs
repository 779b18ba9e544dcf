//! A small F2FS volume with a few files, damaged as the input says, through mount, recovery, walk, read, write,
//! cleaning.
//!
//! The input is a list of damages of six bytes each: which block in use (two bytes, little-endian), where in it (two),
//! and what (two). Checkpoints get their checksums back, so that what they say is looked at.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_f2fs::format::BLOCK;
use moafs_f2fs::format::crc::{MAGIC, crc32};
use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_testkit::exercise::{Bounds, exercise};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name, SetMode};
use moafs_vfs::{Vfs, Credentials};

const SECTORS: u64 = 56 << 11;
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const BOUNDS: Bounds = Bounds { inodes: 50, entries: 100, bytes: 64 << 10 };
/// The first blocks of the two checkpoint packs, and where a checkpoint has its checksum.
const PACKS: [u64; 2] = [512, 1024];
const CHECKSUM: usize = 4092;

struct Golden {
    disk: MemDisk,
    /// Blocks that hold something.
    used: Vec<u64>,
}

static GOLDEN: LazyLock<Golden> = LazyLock::new(|| {
    let disk = Arc::new(MemDisk::new(SECTORS));
    mkfs(&*disk, &MkfsOptions::new([1; 16], NOW)).expect("mkfs");
    let vfs = mount(disk.clone()).expect("a fresh volume mounts");
    populate(&vfs);
    vfs.close().expect("the volume closes");
    // A chain for recovery, behind a checkpoint that is not the last before an unmount.
    let vfs = mount(disk.clone()).expect("the volume mounts again");
    write(&vfs, "late", 3_000);
    vfs.sync().expect("sync");
    let late = write(&vfs, "later", 9_000);
    vfs.fsync(late, false).expect("fsync");
    let disk = disk.snapshot();
    let blocks = SECTORS * 512 / BLOCK as u64;
    let mut bytes = vec![0; BLOCK];
    let holds = |block: &u64| {
        disk.peek(block * BLOCK as u64, &mut bytes);
        bytes.iter().any(|byte| *byte != 0)
    };
    let used = (0..blocks).filter(holds).collect();
    Golden { disk, used }
});

fn mount(disk: SharedDisk) -> moafs_vfs::Result<Vfs<F2fs>> {
    let rt = Live::new();
    let f2fs = F2fs::open(Arc::clone(&disk), rt.clone(), OpenOptions::default())?;
    let options = Options { syncer: false, cache_bytes: 4 << 20, ..Options::default() };
    Ok(Vfs::new(f2fs, disk, rt, options))
}

fn write(vfs: &Vfs<F2fs>, name: &str, bytes: usize) -> Ino {
    let who = Credentials::root();
    let name = Name::new(name.as_bytes()).expect("a legal name");
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let file = vfs.create(&who, Ino(3), name, &new).expect("create").ino;
    vfs.write(&who, file, 0, &vec![7; bytes], false).expect("write");
    file
}

fn populate(vfs: &Vfs<F2fs>) {
    let who = Credentials::root();
    for (number, bytes) in [0, 100, 5_000, 4_000_000].into_iter().enumerate() {
        let file = write(vfs, &format!("file{number}"), bytes);
        vfs.set_xattr(&who, file, b"user.comment", &[5; 300], SetMode::Any).expect("an attribute");
    }
    let make = |dir: Ino, name: &str, kind, target: Option<&[u8]>| {
        let name = Name::new(name.as_bytes()).expect("a legal name");
        vfs.create(&who, dir, name, &NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target }).expect("create").ino
    };
    let dir = make(Ino(3), "dir", FileKind::Directory, None);
    (0..250).for_each(|number| drop(make(dir, &format!("a name of some length {number}"), FileKind::Fifo, None)));
    make(dir, "short", FileKind::Symlink, Some(b"target"));
    make(dir, "long", FileKind::Symlink, Some(&[b'x'; 3_900]));
}

/// Gives a checkpoint the checksum that fits it.
fn seal(disk: &MemDisk, block: u64) {
    let mut bytes = vec![0; BLOCK];
    disk.peek(block * BLOCK as u64, &mut bytes);
    disk.poke(block * BLOCK as u64 + CHECKSUM as u64, &crc32(MAGIC, &bytes[..CHECKSUM]).to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    let disk = GOLDEN.disk.snapshot();
    for damage in data.chunks_exact(6).take(40) {
        let number = |at: usize| usize::from(u16::from_le_bytes([damage[at], damage[at + 1]]));
        let block = GOLDEN.used[number(0) % GOLDEN.used.len()];
        disk.poke(block * BLOCK as u64 + (number(2) % (BLOCK - 1)) as u64, &damage[4..6]);
    }
    for pack in PACKS {
        seal(&disk, pack);
    }
    if let Ok(vfs) = mount(Arc::new(disk)) {
        exercise(&vfs, BOUNDS);
        let _ = vfs.close();
    }
});
