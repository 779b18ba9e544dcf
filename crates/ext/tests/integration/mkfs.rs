//! New volumes of all features, block sizes and inode sizes: e2fsck has nothing to say about them, neither fresh nor
//! after they were written. They are made on disks full of garbage. Skipped without e2fsck.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::{Buf, DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_ext::mkfs::features::{FeatureSet, SYSTEMS};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::format::Idle;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

/// Changes of ext4's features.
const FEATURES: [&str; 12] = [
    "",
    "^resize_inode",
    "^resize_inode,meta_bg",
    "^flex_bg",
    "^64bit",
    "^64bit,^extent",
    "^metadata_csum,uninit_bg",
    "^metadata_csum",
    "^resize_inode,^sparse_super,^dir_index",
    "sparse_super2,^extra_isize,^huge_file",
    "orphan_file,metadata_csum_seed",
    "none,has_journal",
];

fn options(features: FeatureSet) -> MkfsOptions {
    MkfsOptions { features, ..MkfsOptions::new([7; 16], [9; 16], Timestamp::new(1_700_000_000, 0)) }
}

fn ext4_with(changes: &str) -> FeatureSet {
    let mut set = FeatureSet::EXT4;
    set.apply(changes).unwrap();
    set
}

/// Returns a disk that holds no zeros.
fn garbage(bytes: u64) -> MemDisk {
    const PIECE: usize = 1 << 20;
    let disk = MemDisk::new(bytes / SECTOR as u64);
    let mut piece = Buf::zeroed(PIECE);
    piece.fill(0xA5);
    let page = piece.freeze();
    for at in (0..bytes).step_by(PIECE) {
        disk.write(Lba::from_byte(at), page.clone(), Tag::volume(Kind::Data)).unwrap();
    }
    disk
}

/// Fails unless `e2fsck -fn` reports nothing. Returns false if it is not installed.
fn assert_clean(disk: &MemDisk, what: &str) -> bool {
    let image = tempfile::NamedTempFile::new().unwrap();
    disk.write_to(image.path()).unwrap();
    let output = Command::new("e2fsck").arg("-fn").arg(image.path()).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: e2fsck is not installed (package e2fsprogs)");
        return false;
    };
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && !text.contains("Fix?") && !text.contains("wrong"), "{what}: {text}");
    true
}

/// Makes directories, which go to several groups, and files in them, and removes some of them.
fn work(disk: &Arc<MemDisk>) -> Option<String> {
    let (disk, rt): (SharedDisk, Rt) = (disk.clone(), Live::new());
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    let vfs = Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() });
    if vfs.shape().read_only.is_some() {
        return vfs.shape().read_only.clone();
    }
    let who = Credentials::root();
    let make = |dir: Ino, text: &str, kind: FileKind| {
        let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
        vfs.create(&who, dir, Name::new(text.as_bytes()).expect("a legal name"), &new).expect("there is space").ino
    };
    for number in 0..8 {
        let dir = make(Ino(2), &format!("dir-{number}"), FileKind::Directory);
        for number in 0..30 {
            let file = make(dir, &format!("file-{number}"), FileKind::Regular);
            vfs.write(&who, file, 0, &[7; 3000], false).expect("there is space");
        }
        vfs.unlink(&who, dir, Name::new(b"file-3").expect("a legal name")).expect("it is there");
    }
    vfs.sync().expect("the disk works");
    vfs.format().run_background_step(Idle::For(Duration::from_secs(60)));
    vfs.close().expect("the volume is whole");
    None
}

#[test]
fn volumes_of_every_shape_are_sound_and_can_be_written() {
    let shapes = [(1024, 16 << 20), (2048, 24 << 20), (4096, 40 << 20), (65_536, 160 << 20)];
    for (row, changes) in FEATURES.into_iter().enumerate() {
        for (column, (block_size, bytes)) in shapes.into_iter().enumerate() {
            let inode_size = [256, 128, 512, 1024][(row + column) % 4];
            let lazy_tables = (row + column) % 2 == 0;
            let what = format!("{changes:?} {block_size} {inode_size} {lazy_tables}");
            let disk = if block_size > 4096 { MemDisk::new(bytes / SECTOR as u64) } else { garbage(bytes) };
            let disk = Arc::new(disk);
            let wish =
                MkfsOptions { block_size: Some(block_size), inode_size, lazy_tables, ..options(ext4_with(changes)) };
            let wish = MkfsOptions { blocks_per_group: Some((2 * block_size).min(8192)), ..wish };
            mkfs(&*disk, &wish).unwrap_or_else(|error| panic!("{what}: {error}"));
            if !assert_clean(&disk, &what) {
                return;
            }
            assert_eq!(work(&disk), None, "{what}");
            assert_clean(&disk, &format!("{what}, written"));
        }
    }
}

#[test]
fn volumes_for_every_system_can_be_written() {
    let sets = [FeatureSet::EXT2, FeatureSet::EXT3].into_iter().chain(SYSTEMS.iter().map(|system| system.features));
    for features in sets {
        let disk = Arc::new(garbage(64 << 20));
        mkfs(&*disk, &options(features)).unwrap();
        if !assert_clean(&disk, &format!("{features:?}")) {
            return;
        }
        assert_eq!(work(&disk), None, "{features:?}");
        assert_clean(&disk, &format!("{features:?}, written"));
    }
}
