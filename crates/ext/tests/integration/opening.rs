//! Volumes that must not be mounted, and the messages about them.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, check, check_volume};
use moafs_ext::mkfs::features::FeatureSet;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Error, Vfs};

const NOW: Timestamp = Timestamp { secs: 1_750_000_000, nanos: 0 };
/// The byte of the volume at which `s_state` lies.
const STATE_AT: u64 = 1024 + 0x3A;
/// The bytes of the volume at which `s_error_count` and `s_last_error_errcode` lie.
const ERROR_COUNT_AT: u64 = 1024 + 0x194;
const LAST_ERROR_CODE_AT: u64 = 1024 + 0x27B;
const ROOT: Ino = Ino(2);

fn volume() -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new((8 << 20) / 512));
    mkfs(&*disk, &MkfsOptions { block_size: Some(1024), ..MkfsOptions::new([7; 16], [9; 16], NOW) }).unwrap();
    disk
}

/// Makes a volume with these features, large enough for a journal.
fn volume_with(features: FeatureSet) -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new((32 << 20) / 512));
    let options = MkfsOptions { features, block_size: Some(1024), ..MkfsOptions::new([7; 16], [9; 16], NOW) };
    mkfs(&*disk, &options).unwrap();
    disk
}

fn open(disk: &Arc<MemDisk>, read_only: bool) -> Result<Ext, Error> {
    let shared: SharedDisk = disk.clone();
    Ext::open(shared, Live::new(), OpenOptions { read_only, ..OpenOptions::default() })
}

fn root_at(disk: &MemDisk) -> u64 {
    let mut table = [0; 4];
    disk.peek(2 * 1024 + 8, &mut table);
    u64::from(u32::from_le_bytes(table)) * 1024 + 256
}

#[test]
fn a_volume_marked_with_errors_is_not_mounted_for_writing() {
    let disk = volume();
    disk.poke(STATE_AT, &[3, 0]);
    let Err(Error::Refused(text)) = open(&disk, false) else { panic!("it was mounted") };
    assert!(text.contains("moafs fsck -p"), "{text}");
    open(&disk, true).expect("it can be read");
    let options = CheckOptions { mode: Mode::Preen, force: false, superblock: None, now: NOW };
    assert_eq!(check(&*disk, &options, &mut |_| ()).unwrap().exit_code(), 1);
    open(&disk, false).expect("the check took the mark away");
}

#[test]
fn a_volume_without_a_root_directory_is_refused() {
    // Not in use; no file type; a regular file; without a block; with a block beyond the end.
    let damages: [(u64, &[u8]); 5] =
        [(26, &[0, 0]), (0, &[0xFF, 0x1F]), (0, &[0xA4, 0x81]), (40, &[0; 4]), (40, &[0xFF; 4])];
    for (at, bytes) in damages {
        for read_only in [false, true] {
            let disk = volume();
            disk.poke(root_at(&disk) + at, bytes);
            let before = disk.to_bytes();
            let Err(Error::Refused(text)) = open(&disk, read_only) else { panic!("{at}: it was mounted") };
            assert!(text.contains("root directory") && text.contains("fsck -y"), "{text}");
            assert!(disk.to_bytes() == before, "nothing was written");
        }
    }
}

fn bytes_at<const N: usize>(disk: &MemDisk, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    disk.peek(at, &mut bytes);
    bytes
}

/// Opens a volume with a file whose inode is damaged, and finds that.
fn find_damage(disk: &Arc<MemDisk>) -> Vfs<Ext> {
    let mount = || {
        let shared: SharedDisk = disk.clone();
        let vfs = Options { syncer: false, ..Options::default() };
        Vfs::new(open(disk, false).expect("a sound volume"), shared, Live::new(), vfs)
    };
    let root = Credentials::root();
    let (name, new) = (
        Name::new(b"file").unwrap(),
        NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None },
    );
    let vfs = mount();
    let file = vfs.create(&root, ROOT, name, &new).unwrap().ino;
    vfs.close().unwrap();
    disk.poke(inode_at(disk, file), &[0xFF, 0xFF]);
    let vfs = mount();
    // The next superblock that is written is in the journal, if there is one.
    vfs.create(&root, ROOT, Name::new(b"other").unwrap(), &new).unwrap();
    vfs.sync().unwrap();
    let found = vfs.lookup(&root, ROOT, name).expect_err("the inode is damaged");
    assert!(matches!(found, Error::Damaged { .. }), "{found}");
    assert!(vfs.failed().is_some());
    vfs
}

/// Returns the place of an inode of the first group.
fn inode_at(disk: &MemDisk, ino: Ino) -> u64 {
    let table = u32::from_le_bytes(bytes_at(disk, 2 * 1024 + 8));
    u64::from(table) * 1024 + (ino.0 - 1) * u64::from(u16::from_le_bytes(bytes_at(disk, 1024 + 0x58)))
}

#[test]
fn damage_that_is_found_is_recorded_for_the_next_mount_and_the_checker() {
    for features in [FeatureSet::EXT2, FeatureSet::EXT4] {
        let disk = volume_with(features);
        let vfs = find_damage(&disk);
        let before = disk.snapshot();
        vfs.close().expect_err("the volume has failed");
        assert_eq!(bytes_at::<2>(&disk, STATE_AT)[0] & 2, 2, "the state is \"errors\"");
        assert_eq!((bytes_at(&disk, ERROR_COUNT_AT), bytes_at(&disk, LAST_ERROR_CODE_AT)), ([1_u8, 0, 0, 0], [5_u8]));
        let changed = disk.to_bytes().iter().zip(before.to_bytes()).filter(|(now, before)| **now != *before).count();
        assert!(changed <= 40, "{changed} bytes were written beside the record");
        let Err(Error::Refused(text)) = open(&disk, false) else { panic!("it was mounted") };
        assert!(text.contains("fsck"), "{text}");
        let options = CheckOptions { mode: Mode::Yes, force: false, superblock: None, now: NOW };
        let shared: SharedDisk = disk.clone();
        assert_eq!(check_volume(&shared, &options, &mut |_| ()).unwrap().exit_code(), 1);
        open(&disk, false).expect("the damage is repaired");
        assert_eq!(bytes_at(&disk, ERROR_COUNT_AT), [0_u8; 4]);
    }
}

#[test]
fn damage_is_recorded_without_an_unmount() {
    let disk = volume_with(FeatureSet::EXT4);
    let vfs = find_damage(&disk);
    vfs.record_damage();
    vfs.record_damage();
    let crashed = Arc::new(disk.snapshot());
    assert_eq!(bytes_at(&crashed, ERROR_COUNT_AT), [1_u8, 0, 0, 0]);
    assert!(matches!(open(&crashed, false), Err(Error::Refused(_))));
}
