//! The promises of fsync and fdatasync on an ext volume, whatever is on the disk when they return.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

const ROOT: Ino = Ino(2);

fn open(disk: SharedDisk) -> Vfs<Ext> {
    let rt: Rt = Live::new();
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() })
}

fn create(vfs: &Vfs<Ext>, dir: Ino, text: &str, kind: FileKind) -> Ino {
    let name = Name::new(text.as_bytes()).expect("a legal name");
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), dir, name, &new).expect("there is space").ino
}

#[test]
fn fdatasync_of_a_file_keeps_the_new_directories_that_lead_to_it() {
    let disk = Arc::new(MemDisk::new(64 << 11));
    mkfs(&*disk, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))).expect("mkfs");
    let vfs = open(disk.clone());
    let outer = create(&vfs, ROOT, "outer", FileKind::Directory);
    let inner = create(&vfs, outer, "inner", FileKind::Directory);
    let file = create(&vfs, inner, "file", FileKind::Regular);
    vfs.write(&Credentials::root(), file, 0, b"contents", false).expect("there is space");
    vfs.fsync(file, true).expect("the disk works");

    let after = open(Arc::new(disk.snapshot()));
    let mut at = ROOT;
    for name in ["outer", "inner", "file"] {
        let name = Name::new(name.as_bytes()).expect("a legal name");
        at = after.lookup(&Credentials::root(), at, name).unwrap_or_else(|error| panic!("{name}: {error}")).ino;
    }
    let mut bytes = [0; 8];
    assert_eq!(after.read(at, 0, &mut bytes).expect("memory can be read"), 8);
    assert_eq!(&bytes, b"contents");
}
