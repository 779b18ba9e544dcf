//! Space on an ext volume: fallocate takes all of it or nothing, and names need none where a directory has room.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::features::FeatureSet;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{Allocate, NewFile, Options, RenameMode};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

const ROOT: Ino = Ino(2);
const MIB: u64 = 1 << 20;

fn mount(mebibytes: u64, features: FeatureSet) -> Vfs<Ext> {
    let mem = Arc::new(MemDisk::new(mebibytes << 11));
    let options = MkfsOptions { features, ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0)) };
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
    let vfs = mount(64, FeatureSet::EXT2);
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

#[test]
fn names_of_a_full_volume_change_where_directories_have_room() {
    for features in [FeatureSet::EXT2, FeatureSet::EXT4] {
        let vfs = mount(16, features);
        let who = Credentials::root();
        let name = |text: &'static str| Name::new(text.as_bytes()).expect("a legal name");
        let make = |text, kind| {
            let new = NewFile { kind, perm: 0o644, umask: 0, rdev: 0, target: None };
            vfs.create(&who, ROOT, name(text), &new).map(|stat| stat.ino).map_err(|error| error.errno())
        };
        let file = create(&vfs, "file");
        let (new, _) = (make("new", FileKind::Fifo), make("old", FileKind::Fifo).expect("there is room"));
        let filled = (0..).take_while(|at| vfs.write(&who, file, at * 1024, &[1; 1024], false).is_ok()).count();
        assert!(filled > 8000, "{filled} KiB");
        vfs.rename(&who, (ROOT, name("file")), (ROOT, name("other")), RenameMode::Replace).expect("there is room");
        let fifo = make("fifo", FileKind::Fifo).expect("there is room");
        vfs.link(&who, fifo, ROOT, name("link")).expect("there is room");
        vfs.rename(&who, (ROOT, name("link")), (ROOT, name("other")), RenameMode::Exchange).expect("there is room");
        assert_eq!(make("dir", FileKind::Directory), Err(libc::ENOSPC));
        // Until the block of the directory is full.
        let mut links = 0..1000;
        let full = links.find_map(|number: u32| {
            let text = format!("{number:0>200}");
            vfs.link(&who, fifo, ROOT, Name::new(text.as_bytes()).expect("a legal name")).err()
        });
        assert_eq!(full.expect("no block is left").errno(), libc::ENOSPC);
        assert!(links.start > 3, "{} links", links.start);
        let mut short = (links.end..).map(|number| format!("{number:x}"));
        assert!(short.any(|text| vfs.link(&who, fifo, ROOT, Name::new(text.as_bytes()).expect("legal")).is_err()));
        vfs.rename(&who, (ROOT, name("new")), (ROOT, name("old")), RenameMode::Replace).expect("no name is added");
        assert_eq!(Ok(vfs.lookup(&who, ROOT, name("old")).expect("it is there").ino), new);
        vfs.rename(&who, (ROOT, name("link")), (ROOT, name("fifo")), RenameMode::Replace).expect("there is room");
        vfs.unlink(&who, ROOT, name("fifo")).expect("removing needs no space");
        let long = format!("{:0>200}", "long");
        let new = NewFile { kind: FileKind::Fifo, perm: 0o644, umask: 0, rdev: 0, target: None };
        std::thread::scope(|tasks| {
            tasks.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                vfs.forget(file, 1);
            });
            vfs.create(&who, ROOT, Name::new(long.as_bytes()).expect("a legal name"), &new)
                .expect("it waits for space");
        });
        assert!(make("dir", FileKind::Directory).is_ok(), "there is space again");
        vfs.close().expect("everything has its place");
    }
}
