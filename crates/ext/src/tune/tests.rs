//! Tests of changes of volumes that are not in use, judged by e2fsck.

use std::collections::HashSet;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::{DiskExt, Lba, SharedDisk};
use moafs_runtime::{Live, Rt, Timestamp, Virtual};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Options, Vfs};

use super::*;
use crate::check::{self, CheckOptions};
use crate::format::superblock::Compat;
use crate::judge;
use crate::mkfs::features::FeatureSet;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::{Ext, OpenOptions};

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const UUID: [u8; 16] = [7; 16];
const OTHER: [u8; 16] = [9; 16];

/// Returns an empty volume of 64 MiB with these features, as `mkfs -O` reads them.
fn volume(block_size: u32, wish: &[&str]) -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new(64 << 11));
    let mut features = FeatureSet::EXT4;
    wish.iter().for_each(|name| features.apply(name).expect("a feature"));
    let options = MkfsOptions { block_size: Some(block_size), features, ..MkfsOptions::new(UUID, UUID, NOW) };
    mkfs(&*disk, &options).expect("a volume");
    disk
}

fn open(disk: &Arc<MemDisk>) -> Vfs<Ext> {
    let (rt, disk): (Rt, SharedDisk) = (Live::new(), disk.clone());
    let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).expect("the volume opens for writing");
    Vfs::new(format, disk, rt, Options::default())
}

fn write_file(vfs: &Vfs<Ext>, name: &str, blocks: usize) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let who = Credentials::root();
    let file = vfs.create(&who, Ino(2), Name::new(name.as_bytes()).unwrap(), &new).expect("room for a file").ino;
    vfs.write(&who, file, 0, &vec![0xA5; blocks * 1024], false).expect("room for its data");
    vfs.fsync(file, false).expect("it is written");
    file
}

fn shared(disk: &Arc<MemDisk>) -> SharedDisk {
    disk.clone()
}

const WITHOUT_JOURNAL: [&[&str]; 6] = [
    &["^has_journal"],
    &["^has_journal", "^metadata_csum", "uninit_bg"],
    &["^has_journal", "^metadata_csum", "^64bit", "^extent"],
    &["^has_journal", "^flex_bg", "^resize_inode", "meta_bg"],
    &["^has_journal", "^sparse_super", "^resize_inode"],
    &["^has_journal", "^metadata_csum", "^64bit", "^extent", "^flex_bg", "^huge_file", "^dir_nlink", "^extra_isize"],
];

#[test]
fn a_volume_gets_a_journal_and_is_written_through_it() {
    for block_size in [1024, 4096] {
        for features in WITHOUT_JOURNAL {
            let what = format!("{block_size} {features:?}");
            let disk = volume(block_size, features);
            tune(&shared(&disk), &[Change::AddJournal(None)], NOW).unwrap_or_else(|e| panic!("{what}: {e}"));
            judge::assert_clean(&disk, &what);
            let vfs = open(&disk);
            write_file(&vfs, "after", 300);
            vfs.close().unwrap();
            judge::assert_clean(&disk, &what);
            let sb = read_superblock(&shared(&disk)).unwrap();
            assert!(sb.compat().contains(Compat::HAS_JOURNAL), "{what}");
        }
    }
}

#[test]
fn a_journal_may_reach_behind_triple_indirect_blocks() {
    let disk = Arc::new(MemDisk::new(200 << 11));
    let options = MkfsOptions { block_size: Some(1024), ..MkfsOptions::new(UUID, UUID, NOW) };
    mkfs(&*disk, &options).expect("a volume");
    tune(&shared(&disk), &[Change::AddJournal(Some(80 << 20))], NOW).unwrap();
    judge::assert_clean(&disk, "a long journal");
    let vfs = open(&disk);
    write_file(&vfs, "after", 300);
    vfs.close().unwrap();
    judge::assert_clean(&disk, "the volume after it was used");
}

#[test]
fn a_journal_fits_into_the_holes_of_a_full_volume() {
    let disk = volume(1024, WITHOUT_JOURNAL[5]);
    let vfs = open(&disk);
    let name = |i: u32| format!("file-{i}");
    let files = 1400;
    for i in 0..files {
        write_file(&vfs, &name(i), 40);
    }
    let who = Credentials::root();
    for i in (0..files).step_by(2) {
        vfs.unlink(&who, Ino(2), Name::new(name(i).as_bytes()).unwrap()).unwrap();
    }
    vfs.close().unwrap();
    judge::assert_clean(&disk, "the fragmented volume");
    tune(&shared(&disk), &[Change::AddJournal(Some(8 << 20))], NOW).unwrap();
    judge::assert_clean(&disk, "the journal in holes");
    let vfs = open(&disk);
    let file = vfs.lookup(&who, Ino(2), Name::new(b"file-1").unwrap()).unwrap().ino;
    let mut bytes = vec![0; 40 << 10];
    vfs.read(file, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xA5));
    vfs.close().unwrap();
    judge::assert_clean(&disk, "the volume after it was used");
}

#[test]
fn label_uuid_reserve_and_behaviour_are_in_all_copies_and_checksums_stay_right() {
    for features in [&["^uninit_bg"][..], &["^metadata_csum_seed"], &["^metadata_csum"], WITHOUT_JOURNAL[5]] {
        let what = format!("{features:?}");
        let disk = volume(1024, features);
        let changes = [
            Change::Label(b"sixteen bytes ok".to_vec()),
            Change::Uuid(OTHER),
            Change::Reserve(Reserve::Percent(1.0)),
            Change::OnErrors(OnErrors::RemountReadOnly),
        ];
        tune(&shared(&disk), &changes, NOW).unwrap_or_else(|e| panic!("{what}: {e}"));
        judge::assert_clean(&disk, &what);
        let sb = read_superblock(&shared(&disk)).unwrap();
        let geo = geometry_of(&sb, &shared(&disk)).unwrap();
        let copies = geo.groups_with_copies().map(|group| geo.byte_of(geo.group_start(group)));
        for at in copies.chain([1024]) {
            let bytes = disk.read(Lba::from_byte(at), 1024, Tag::volume(Kind::Superblock)).unwrap();
            let copy = Superblock::parse(&bytes).unwrap();
            copy.verify().unwrap();
            assert_eq!((copy.label(), copy.uuid()), (&b"sixteen bytes ok"[..], OTHER), "{what}, byte {at}");
            assert_eq!((copy.reserved_blocks(), copy.errors()), (655, 2), "{what}, byte {at}");
        }
        let vfs = open(&disk);
        write_file(&vfs, "after", 10);
        vfs.close().unwrap();
        judge::assert_clean(&disk, &what);
    }
}

#[test]
fn impossible_changes_are_named_and_change_nothing() {
    let refused = |features: &[&str], change: Change| {
        let disk = volume(1024, features);
        let before = read_superblock(&shared(&disk)).unwrap();
        let problem = tune(&shared(&disk), &[Change::Label(b"x".to_vec()), change], NOW).unwrap_err().to_string();
        assert!(read_superblock(&shared(&disk)).unwrap() == before, "{problem}: the superblock changed");
        problem
    };
    assert_eq!(refused(&[], Change::AddJournal(None)), "the volume has a journal");
    let tiny = refused(&["^has_journal"], Change::AddJournal(Some(1 << 10)));
    assert!(tiny.starts_with("cannot add a journal: journal size in blocks 1 is not possible"), "{tiny}");
    let large = refused(&[], Change::Reserve(Reserve::Percent(51.0)));
    assert_eq!(large, "at most 50 % of the volume can be kept for root: 32768 blocks");
    let label = refused(&[], Change::Label(vec![b'x'; 17]));
    assert_eq!(label, "a label has at most 16 bytes, this one has 17");
    let uuid = refused(&["^metadata_csum", "uninit_bg"], Change::Uuid(OTHER));
    assert!(uuid.contains("tune2fs -U"), "{uuid}");
}

#[test]
fn a_volume_that_was_not_unmounted_is_checked_first() {
    let disk = volume(1024, WITHOUT_JOURNAL[5]);
    let vfs = open(&disk);
    write_file(&vfs, "before", 10);
    // A copy of the disk as it is while the volume is mounted.
    let bytes = disk.read(Lba(0), 64 << 20, Tag::volume(Kind::Data)).unwrap();
    let copy = Arc::new(MemDisk::new(64 << 11));
    copy.write(Lba(0), bytes.freeze(), Tag::volume(Kind::Data)).unwrap();
    vfs.close().unwrap();
    let problem = tune(&shared(&copy), &[Change::AddJournal(None)], NOW).unwrap_err().to_string();
    assert_eq!(problem, "the volume was not unmounted in order: run `moafs fsck` on it first");
}

/// Returns a small volume of two groups.
fn small_volume(wish: &[&str]) -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new(16 << 11));
    let mut features = FeatureSet::EXT4;
    wish.iter().for_each(|name| features.apply(name).expect("a feature"));
    let options = MkfsOptions { block_size: Some(1024), features, ..MkfsOptions::new(UUID, UUID, NOW) };
    mkfs(&*disk, &options).expect("a volume");
    disk
}

/// Returns a copy of the disk that `e2fsck -fp` has repaired without a question.
fn repaired_by_e2fsck(disk: &MemDisk, what: &str) -> Arc<MemDisk> {
    let image = tempfile::NamedTempFile::new().unwrap();
    disk.write_to(image.path()).unwrap();
    let verdict = judge::run("e2fsck", &["-fp"], image.path());
    assert!(matches!(verdict.code, Some(0 | 1)), "{what}: {}", verdict.text);
    let repaired = MemDisk::read_from(image.path()).unwrap();
    judge::assert_clean(&repaired, what);
    Arc::new(repaired)
}

fn repair(disk: &Arc<MemDisk>, what: &str) {
    let options = CheckOptions { mode: check::Mode::Preen, force: true, superblock: None, now: NOW };
    let outcome = check::check_volume(&shared(disk), &options, &mut |_| ()).unwrap();
    assert!(!outcome.errors_left, "{what}: {:?}", outcome.findings);
    judge::assert_clean(disk, what);
}

/// Returns what changes of the superblock change.
fn settings(disk: &Arc<MemDisk>) -> (Vec<u8>, [u8; 16], u64) {
    let sb = read_superblock(&shared(disk)).expect("the superblock is right");
    (sb.label().to_vec(), sb.uuid(), sb.reserved_blocks())
}

/// Mounts a volume and uses it. One that cannot be written without a journal is read, checked, and gets its journal.
fn use_volume(disk: &Arc<MemDisk>, what: &str) {
    let format = Ext::open(shared(disk), Live::new(), OpenOptions::default());
    let format = format.unwrap_or_else(|refused| panic!("{what}: {refused}"));
    let needs_journal = format.shape().read_only.is_some();
    drop(format);
    if needs_journal {
        repair(disk, what);
        tune(&shared(disk), &[Change::AddJournal(Some(1 << 20))], NOW).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    let vfs = open(disk);
    write_file(&vfs, "after", 1500);
    vfs.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    judge::assert_clean(disk, what);
}

/// Makes changes, cuts the power at every point of them, and judges each state: it has all changes of the superblock or
/// none, it can be mounted and used as it is, and the checkers repair it without a question.
fn judge_cuts(features: &[&str], changes: &[Change]) {
    if !judge::have("e2fsck") {
        return;
    }
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let volume = small_volume(features);
    let before = settings(&volume);
    let recorder = Arc::new(CrashRecorder::over(volume, rt));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| tune(&disk, changes, NOW).expect("the changes can be made"));
    let after = settings(&Arc::new(recorder.state(recorder.cut_points() - 1, 0, Mode::All)));
    let mut judged = HashSet::new();
    for cut in 0..recorder.cut_points() {
        let modes = [Mode::All, Mode::None, Mode::Subset, Mode::Torn, Mode::Subset, Mode::Torn, Mode::Torn];
        for (seed, mode) in (0..).zip(modes).take(if recorder.uncertain(cut) > 0 { modes.len() } else { 1 }) {
            let what = format!("{features:?} {changes:?}, cut {cut}, seed {seed}");
            let state = Arc::new(recorder.state(cut, seed, mode));
            if !judged.insert(crc32c::crc32c(&state.to_bytes())) {
                continue;
            }
            let found = settings(&state);
            assert!(found == before || found == after, "{what}: {found:?}");
            let repaired = repaired_by_e2fsck(&state, &what);
            if seed == 0 {
                use_volume(&repaired, &format!("{what}, after e2fsck"));
                repair(&Arc::new(state.snapshot()), &format!("{what}, checked"));
            }
            use_volume(&state, &what);
        }
    }
}

#[test]
fn a_power_cut_while_a_journal_is_added_leaves_a_volume_that_can_be_used() {
    for features in [WITHOUT_JOURNAL[0], WITHOUT_JOURNAL[1], WITHOUT_JOURNAL[5]] {
        judge_cuts(features, &[Change::AddJournal(Some(1 << 20))]);
    }
}

#[test]
fn a_power_cut_while_the_superblock_changes_leaves_the_old_or_the_new_one() {
    let changes = [Change::Label(b"label".to_vec()), Change::Uuid(OTHER), Change::Reserve(Reserve::Percent(1.0))];
    for features in [&["^uninit_bg"][..], &["^metadata_csum_seed"], &["^metadata_csum"], WITHOUT_JOURNAL[5]] {
        judge_cuts(features, &changes);
    }
}

#[test]
fn a_power_cut_while_a_journal_is_added_and_the_superblock_changes_loses_neither() {
    let changes = [Change::Uuid(OTHER), Change::Label(b"label".to_vec()), Change::AddJournal(Some(1 << 20))];
    judge_cuts(WITHOUT_JOURNAL[0], &changes);
}
