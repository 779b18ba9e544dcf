//! Inode flags that programs set (chattr) on an ext volume.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{NewFile, Options, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Error, Vfs};

const ROOT: Ino = Ino(2);

fn open(disk: SharedDisk) -> Vfs<Ext> {
    let rt: Rt = Live::new();
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() })
}

#[test]
fn a_file_with_any_flag_that_programs_may_set_is_read_again() {
    let disk = Arc::new(MemDisk::new(64 << 11));
    mkfs(&*disk, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))).expect("mkfs");
    let who = Credentials::root();
    // chattr's s, u, c, S, i, a, d, A, t; D and T are for directories.
    let flags = [0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x8000];
    let (dir_sync, top_dir) = (0x1_0000, 0x2_0000);
    let vfs = open(disk.clone());
    let make = |flag: &u32| {
        let text = format!("{flag:x}");
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        let name = Name::new(text.as_bytes()).expect("a legal name");
        let ino = vfs.create(&who, ROOT, name, &new).expect("there is space").ino;
        vfs.write(&who, ino, 0, b"contents", false).expect("there is space");
        vfs.set_attr(&who, ino, &SetAttr { flags: Some(*flag), ..SetAttr::default() }).expect("root may");
        ino
    };
    let inos: Vec<Ino> = flags.iter().map(make).collect();
    let refused = vfs.set_attr(&who, inos[0], &SetAttr { flags: Some(top_dir), ..SetAttr::default() });
    assert!(matches!(refused, Err(Error::Posix(libc::EOPNOTSUPP))), "{refused:?}");
    let without_effect = SetAttr { flags: Some(flags[0] | dir_sync), ..SetAttr::default() };
    vfs.set_attr(&who, inos[0], &without_effect).expect("the kernel's drivers take it, and keep nothing");
    let new = NewFile { kind: FileKind::Directory, perm: 0o755, umask: 0, rdev: 0, target: None };
    let dir = vfs.create(&who, ROOT, Name::new(b"dir").expect("a legal name"), &new).expect("there is space").ino;
    vfs.set_attr(&who, dir, &SetAttr { flags: Some(dir_sync | top_dir), ..SetAttr::default() }).expect("root may");
    vfs.close().expect("the disk works");

    let vfs = open(disk);
    assert_eq!(vfs.stat(dir).expect("it is there").attr.flags, dir_sync | top_dir);
    for (flag, ino) in flags.iter().zip(inos) {
        let stat = vfs.stat(ino).unwrap_or_else(|error| panic!("flag {flag:#x}: {error}"));
        assert_eq!(stat.attr.flags, *flag);
        let mut bytes = [0; 8];
        assert_eq!(vfs.read(ino, 0, &mut bytes).expect("memory can be read"), 8);
        assert_eq!(&bytes, b"contents", "flag {flag:#x}");
    }
}
