//! fallocate on an ext volume: all of it or nothing.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{Allocate, NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

const ROOT: Ino = Ino(2);
const MIB: u64 = 1 << 20;

fn mount(mebibytes: u64) -> Vfs<Ext> {
    let mem = Arc::new(MemDisk::new(mebibytes << 11));
    let options = MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0));
    mkfs(&*mem, &options).expect("mkfs");
    let rt: Rt = Live::new();
    let disk: SharedDisk = mem;
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() })
}

fn create(vfs: &Vfs<Ext>, text: &str) -> Ino {
    let name = Name::new(text.as_bytes()).expect("a legal name");
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), ROOT, name, &new).expect("there is space").ino
}

#[test]
fn an_allocation_that_does_not_fit_takes_nothing() {
    let vfs = mount(64);
    let file = create(&vfs, "file");
    vfs.write(&Credentials::root(), file, 0, &[1; 5000], false).expect("there is space");
    vfs.sync().expect("the disk works");
    let free = vfs.stat_fs().free;
    let refused = vfs.allocate(&Credentials::root(), file, 0, 100 * MIB, Allocate::Extend).expect_err("it cannot fit");
    assert_eq!(refused.errno(), libc::ENOSPC);
    assert_eq!(vfs.stat(file).expect("it is there").attr.size, 5000);
    assert_eq!(vfs.stat_fs().free, free);
    vfs.allocate(&Credentials::root(), file, 0, 40 * MIB, Allocate::Extend).expect("this fits");
    // Most of it is there: only the rest has to fit.
    vfs.allocate(&Credentials::root(), file, 0, 50 * MIB, Allocate::Extend).expect("this fits, too");
    assert_eq!(vfs.stat(file).expect("it is there").attr.size, 50 * MIB);
}
