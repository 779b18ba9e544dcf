//! The list of inodes to finish after a crash: long ones, and ones that lead astray. e2fsck judges the volumes.

use std::collections::BTreeSet;

use super::*;
use crate::check::{CheckOptions, Issue, Mode, Outcome, check_volume};
use crate::format::InodeNo;

/// Makes a volume whose list has so many members, and returns it as a power cut leaves it.
fn left(features: FeatureSet, members: u64) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(96 << 11));
    let options = MkfsOptions {
        features,
        block_size: Some(1024),
        inodes: Some(members + 100),
        ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
    };
    mkfs(&*mem, &options).expect("mkfs");
    let volume = Volume::open(mem);
    let nameless = Attr { nlink: 0, ..attr(FileKind::Regular) };
    for _ in 0..members {
        let mut admission = volume.admit(0);
        let mut op = volume.ext.begin(OpKind::Create, &mut admission).unwrap();
        op.inode_new(&volume.root, &nameless, None).unwrap();
        op.end();
    }
    volume.ext.commit(CommitReason::Sync).unwrap();
    volume.ext.meta.settle_log().unwrap();
    Arc::new(volume.mem.snapshot())
}

fn repair(mem: &Arc<MemDisk>) -> Outcome {
    let options =
        CheckOptions { mode: Mode::Yes, force: true, superblock: None, now: Timestamp::new(1_700_000_000, 0) };
    let disk: SharedDisk = mem.clone();
    check_volume(&disk, &options, &mut |_| ()).unwrap()
}

/// Returns the first byte of an inode's slot.
fn slot_byte(volume: &Volume, ino: u32) -> u64 {
    let at = volume.ext.slot_at(InodeNo(ino)).expect("an inode of the volume");
    at.block.0 * volume.ext.geo.block_bytes() as u64 + at.offset as u64
}

fn refused(mem: &Arc<MemDisk>) -> String {
    let opened = Ext::open(mem.clone(), Live::new(), OpenOptions::default()).map(drop);
    opened.expect_err("the list is damaged").to_string()
}

/// The place of `i_dtime` in a slot.
const DTIME: u64 = 20;
/// The place of `s_last_orphan` on a volume.
const LAST_ORPHAN: u64 = 1024 + 0xE8;

/// Some portions, and more members than fit into 16 bits.
const MEMBERS: [u64; 2] = [3000, 66_000];

#[test]
fn a_mount_finishes_a_list_of_any_length() {
    for members in MEMBERS {
        let volume = Volume::open(left(FeatureSet::EXT4, members));
        assert_eq!(volume.ext.superblock.lock().last_orphan(), 0);
        assert!(volume.ext.space().free_inodes >= members);
        volume.close();
    }
}

#[test]
fn a_check_finishes_a_list_of_any_length() {
    let kinds = MEMBERS.map(|members| {
        let mem = left(FeatureSet::EXT4, members);
        let outcome = repair(&mem);
        assert!(!outcome.errors_left && outcome.modified);
        judge::assert_clean(&mem, "after a check");
        let kind = |issue: &Issue| format!("{issue:?}").split([' ', '{', '(']).next().map(str::to_owned);
        outcome.findings.iter().map(|found| kind(&found.issue)).collect::<BTreeSet<_>>()
    });
    assert_eq!(kinds[0], kinds[1]);
}

#[test]
fn a_circle_is_refused_and_nothing_of_it_freed() {
    let crashed = left(FeatureSet::EXT3, 1500);
    let volume = Volume::open(Arc::new(crashed.snapshot()));
    // The first that was made is the last of the list.
    let (last, head) = (volume.ext.geo.first_ino + 1, volume.ext.geo.first_ino + 1500);
    let mut end = [1; 4];
    crashed.peek(slot_byte(&volume, last) + DTIME, &mut end);
    assert_eq!(end, [0; 4], "the list ends at inode {last}");
    for back in [head, last + 1, last] {
        crashed.poke(slot_byte(&volume, last) + DTIME, &back.to_le_bytes());
        let damaged = Arc::new(crashed.snapshot());
        let said = refused(&damaged);
        assert!(said.contains("s_last_orphan"), "{said}");
        let mut stored = [0; 4];
        damaged.peek(LAST_ORPHAN, &mut stored);
        assert_eq!(u32::from_le_bytes(stored), head);
    }
    volume.close();
}

#[test]
fn an_inode_that_is_free_already_is_no_member() {
    let volume = Volume::with(FeatureSet::EXT3, 1024, 16);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 3, 1);
    volume.unlink(&volume.root, "file", &file);
    let ino = file.ino.0;
    let slot = slot_byte(&volume, ino);
    drop(file);
    let mem = volume.close();
    mem.poke(slot + DTIME, &[0; 4]);
    mem.poke(LAST_ORPHAN, &ino.to_le_bytes());
    let said = refused(&mem);
    assert!(said.contains(&format!("leads to inode {ino}")), "{said}");
}
