//! Chains that recovery follows, and those that it must not.

mod bound;
mod overfull;

use moafs_disk::MemDisk;
use moafs_vfs::api::{RenameMode, SetAttr};
use moafs_vfs::format::CommitReason;
use moafs_vfs::types::Ino;
use moafs_vfs::{Format, Vfs};

use super::*;
use crate::check::{CheckOptions, Issue, check};
use crate::engine::mount::read_pack;
use crate::engine::superblocks::read_superblock;
use crate::format::{BLOCK, put_u32};
use crate::judge::{assert_clean, features, mount, name, new, root, volume};

const ROOT: Ino = Ino(3);
/// The directories `dir` and `dir/victim`, the inodes that are made first.
const DIR: Nid = Nid(4);
const VICTIM: Nid = Nid(5);

/// Returns a volume with a new file of `dir` in its fsync chain, after `change` of the file's inode there.
fn chained(change: impl FnOnce(&mut [u8])) -> Arc<MemDisk> {
    chained_on(features()[0], |block, uuid| {
        change(block);
        inode::seal_checksum(block, uuid);
    })
}

fn chained_on(features: Features, change: impl FnOnce(&mut [u8], &[u8; 16])) -> Arc<MemDisk> {
    let disk = volume(64, features);
    let vfs = mount(&disk);
    let make = |dir: Ino, text: &[u8], kind| {
        let ino = vfs.create(&root(), dir, name(text), &new(kind)).unwrap().ino;
        vfs.forget(ino, 1);
        ino
    };
    let dir = make(ROOT, b"dir", FileKind::Directory);
    let victim = make(dir, b"victim", FileKind::Directory);
    assert_eq!((dir, victim), (Ino(DIR.0.into()), Ino(VICTIM.0.into())));
    vfs.sync().unwrap();
    let file = make(dir, b"file", FileKind::Regular);
    vfs.write(&root(), file, 0, &[7; BLOCK], false).unwrap();
    vfs.fsync(file, false).unwrap();
    let cut = Arc::new(disk.snapshot());
    let shared: moafs_disk::SharedDisk = cut.clone();
    let superblock = read_superblock(&shared).unwrap();
    let geo = superblock.geometry();
    let head = read_pack(&shared, &geo).unwrap().pack.checkpoint.current[Log::WarmNode as usize];
    let at = u64::from(geo.block_of(head.segno, head.offset.into()).0) * BLOCK as u64;
    let mut block = vec![0; BLOCK];
    cut.peek(at, &mut block);
    let footer = Footer::decode(&block);
    assert!(footer.fsync && footer.dentry, "the chain is the new file's inode");
    change(&mut block, &superblock.uuid);
    cut.poke(at, &block);
    cut
}

fn set_name(block: &mut [u8], text: &[u8]) {
    put_u32(block, 88, text.len() as u32);
    block[92..92 + text.len()].copy_from_slice(text);
}

/// Mounts and unmounts a volume, and returns what is wrong with it then.
fn findings_after_recovery(disk: &Arc<MemDisk>) -> Vec<Issue> {
    mount(disk).close().unwrap();
    let outcome = check(&**disk, &CheckOptions::default(), &mut |_| ()).unwrap();
    outcome.findings.into_iter().map(|finding| finding.issue).collect()
}

/// The checkpoint has the truncation, and not the zeros in the last block.
#[test]
fn a_truncated_file_that_grows_after_a_crash_shows_zeros() {
    for by_writing in [false, true] {
        let disk = volume(64, features()[0]);
        let vfs = mount(&disk);
        let file = vfs.create(&root(), ROOT, name(b"file"), &new(FileKind::Regular)).unwrap().ino;
        vfs.write(&root(), file, 0, &[7; 4 * BLOCK], false).unwrap();
        vfs.sync().unwrap();
        let resize = |vfs: &Vfs<F2fs>, size: u64| {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            vfs.set_attr(&root(), file, &set).unwrap();
        };
        resize(&vfs, BLOCK as u64 + 100);
        vfs.format().commit(CommitReason::Age).unwrap();
        let disk = Arc::new(disk.snapshot());
        let vfs = mount(&disk);
        assert_eq!(vfs.stat(file).unwrap().attr.size, BLOCK as u64 + 100);
        if by_writing {
            vfs.write(&root(), file, 4 * BLOCK as u64 - 1, &[0], false).unwrap();
        } else {
            resize(&vfs, 4 * BLOCK as u64);
        }
        vfs.sync().unwrap();
        vfs.shrink(0);
        let mut bytes = vec![9; 4 * BLOCK];
        assert_eq!(vfs.read(file, 0, &mut bytes).unwrap(), bytes.len());
        assert!(bytes[..BLOCK + 100].iter().all(|byte| *byte == 7));
        assert!(bytes[BLOCK + 100..].iter().all(|byte| *byte == 0), "old bytes came back");
        vfs.close().unwrap();
        assert_clean(&disk, "after the file has grown");
    }
}

#[test]
fn a_new_file_gets_the_name_that_its_chain_says() {
    let disk = chained(|_| ());
    assert_eq!(findings_after_recovery(&disk), []);
    let vfs = mount(&disk);
    vfs.lookup(&root(), Ino(DIR.0.into()), name(b"file")).unwrap();
}

/// Volumes with room for a checksum in their inodes need not have the feature: then the room is empty.
#[test]
fn a_new_file_is_recovered_whatever_its_inode_has_room_for() {
    let optional = [
        Features::empty(),
        Features::EXTRA_ATTR,
        Features::EXTRA_ATTR | Features::FLEXIBLE_INLINE_XATTR,
        Features::EXTRA_ATTR | Features::INODE_CHECKSUM,
        Features::EXTRA_ATTR | Features::INODE_CRTIME,
        Features::EXTRA_ATTR | Features::INODE_CHECKSUM | Features::INODE_CRTIME,
    ];
    for features in optional {
        let disk = chained_on(features, |_, _| ());
        assert_eq!(findings_after_recovery(&disk), [], "{features:?}");
        let vfs = mount(&disk);
        let file = vfs.lookup(&root(), Ino(DIR.0.into()), name(b"file"));
        assert!(file.is_ok(), "{features:?}: an fsynced file is lost");
    }
}

#[test]
fn a_chain_with_an_impossible_name_or_parent_takes_nothing_from_others() {
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 7] = [
        (".", |block| set_name(block, b".")),
        ("..", |block| set_name(block, b"..")),
        ("a directory's name", |block| set_name(block, b"victim")),
        ("itself as parent", |block| put_u32(block, 84, 6)),
        ("no parent", |block| put_u32(block, 84, 0)),
        ("a parent that is free", |block| put_u32(block, 84, 300)),
        ("a parent beyond the table", |block| put_u32(block, 84, u32::MAX)),
    ];
    for (what, damage) in damages {
        let disk = chained(damage);
        let found = findings_after_recovery(&disk);
        assert!(matches!(found[..], [Issue::Unattached { inode: Nid(6) }]), "{what}: {found:?}");
    }
}

/// Returns the blocks of the chain behind the last checkpoint, with their byte offsets.
fn chain_of(disk: &Arc<MemDisk>) -> (Vec<(u64, Vec<u8>)>, [u8; 16]) {
    let shared: moafs_disk::SharedDisk = disk.clone();
    let superblock = read_superblock(&shared).unwrap();
    let geo = superblock.geometry();
    let checkpoint = read_pack(&shared, &geo).unwrap().pack.checkpoint;
    let head = checkpoint.current[Log::WarmNode as usize];
    let mut at = geo.block_of(head.segno, head.offset.into());
    let mut chain = Vec::new();
    loop {
        let byte = u64::from(at.0) * BLOCK as u64;
        let mut block = vec![0; BLOCK];
        disk.peek(byte, &mut block);
        let footer = Footer::decode(&block);
        if footer.cp_version != checkpoint.node_version() {
            return (chain, superblock.uuid);
        }
        at = footer.next;
        chain.push((byte, block));
    }
}

/// The number of a file may be lower than that of the file that had its name before: one that was free by then.
#[test]
fn of_two_files_that_had_a_name_the_one_of_the_later_link_has_it() {
    for swap in [false, true] {
        let disk = volume(64, features()[0]);
        let vfs = mount(&disk);
        let make = |text: &[u8], kind| vfs.create(&root(), ROOT, name(text), &new(kind)).unwrap().ino;
        make(b"other", FileKind::Regular);
        vfs.sync().unwrap();
        for contents in [7, 8] {
            let file = make(b"file", FileKind::Regular);
            vfs.write(&root(), file, 0, &[contents; BLOCK], false).unwrap();
            vfs.fsync(file, false).unwrap();
            if contents == 7 {
                vfs.unlink(&root(), ROOT, name(b"file")).unwrap();
            }
        }
        let cut = Arc::new(disk.snapshot());
        let (chain, uuid) = chain_of(&cut);
        assert_eq!(chain.len(), 2, "each file's inode");
        let nids = [0, 1].map(|at: usize| Footer::decode(&chain[at].1).nid);
        assert!(nids[0] < nids[1]);
        for ((at, mut block), nid) in chain.into_iter().zip([nids[1], nids[0]]).filter(|_| swap) {
            Footer { nid, ino: nid, ..Footer::decode(&block) }.encode_into(&mut block);
            inode::seal_checksum(&mut block, &uuid);
            cut.poke(at, &block);
        }
        assert_eq!(findings_after_recovery(&cut), []);
        let vfs = mount(&cut);
        let file = vfs.lookup(&root(), ROOT, name(b"file")).unwrap().ino;
        let mut bytes = [0; BLOCK];
        vfs.read(file, 0, &mut bytes).unwrap();
        assert!(bytes == [8; BLOCK], "swapped: {swap}, contents {}", bytes[0]);
    }
}

/// Its other nodes tell too little of it.
#[test]
fn a_file_of_which_neither_checkpoint_nor_chain_has_the_beginning_is_left_out() {
    let disk = chained(|block| Footer { dentry: false, ..Footer::decode(block) }.encode_into(block));
    assert_eq!(findings_after_recovery(&disk), []);
    let vfs = mount(&disk);
    assert!(vfs.lookup(&root(), Ino(DIR.0.into()), name(b"file")).is_err());
    vfs.lookup(&root(), Ino(DIR.0.into()), name(b"victim")).unwrap();
}

/// Drivers that write a chain's nodes once may leave any of a node's sectors as they were.
#[test]
fn a_node_of_the_chain_that_was_torn_ends_the_chain() {
    for features in features() {
        for sector in 0..BLOCK / 512 {
            for old in [0, 0xA5] {
                let mut whole = false;
                let disk = chained_on(features, |block, _| {
                    let sector = &mut block[512 * sector..][..512];
                    whole = sector.iter().all(|byte| *byte == old);
                    sector.fill(old);
                });
                let what = format!("sector {sector} of {old:#x}, {features:?}");
                assert_eq!(findings_after_recovery(&disk), [], "{what}");
                let vfs = mount(&disk);
                let is_there = vfs.lookup(&root(), Ino(DIR.0.into()), name(b"file")).is_ok();
                // Without a checksum nothing tells zeros from an inode's own.
                let unseen = whole || (old == 0 && !features.contains(Features::INODE_CHECKSUM));
                assert!(unseen || !is_there, "{what}");
                vfs.lookup(&root(), Ino(DIR.0.into()), name(b"victim")).unwrap();
            }
        }
    }
}

#[test]
fn a_file_made_below_a_moved_directory_is_found_under_its_new_path() {
    for data_only in [false, true] {
        let disk = volume(64, features()[0]);
        let vfs = mount(&disk);
        let make = |dir: Ino, text: &[u8], kind| vfs.create(&root(), dir, name(text), &new(kind)).unwrap().ino;
        let old_parent = make(ROOT, b"old", FileKind::Directory);
        let moved = make(old_parent, b"moved", FileKind::Directory);
        let below = make(moved, b"below", FileKind::Directory);
        vfs.sync().unwrap();
        let new_parent = make(ROOT, b"new", FileKind::Directory);
        let moves = ((old_parent, name(b"moved")), (new_parent, name(b"moved")));
        vfs.rename(&root(), moves.0, moves.1, RenameMode::Replace).unwrap();
        let file = make(below, b"file", FileKind::Regular);
        vfs.write(&root(), file, 0, &[7; BLOCK], false).unwrap();
        vfs.fsync(file, data_only).unwrap();
        let vfs = mount(&Arc::new(disk.snapshot()));
        let mut at = ROOT;
        for part in ["new", "moved", "below", "file"] {
            let found = vfs.lookup(&root(), at, name(part.as_bytes()));
            at = found.unwrap_or_else(|error| panic!("{part}: {error}, only data: {data_only}")).ino;
        }
    }
}

/// Returns a volume on which the inode of a file that the last checkpoint has lies in a chain, after `change`.
fn rewritten(change: impl FnOnce(&mut [u8])) -> Arc<MemDisk> {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    let file = vfs.create(&root(), ROOT, name(b"file"), &new(FileKind::Regular)).unwrap().ino;
    let contents: Vec<u8> = vec![7; 900 * BLOCK];
    vfs.write(&root(), file, 0, &contents, false).unwrap();
    vfs.sync().unwrap();
    vfs.write(&root(), file, 0, &[8; BLOCK], false).unwrap();
    vfs.fsync(file, false).unwrap();
    let cut = Arc::new(disk.snapshot());
    let (chain, uuid) = chain_of(&cut);
    let (at, mut block) = chain.into_iter().next().unwrap();
    change(&mut block);
    inode::seal_checksum(&mut block, &uuid);
    cut.poke(at, &block);
    cut
}

/// A word that is an attribute in the layout of the checkpoint's inode may be an address in another layout.
#[test]
fn a_chain_whose_inode_has_another_layout_or_kind_than_the_checkpoint_has_is_not_followed() {
    type Change = fn(&mut [u8]);
    let changes: [(&str, bool, Change); 4] = [
        ("as it was written", true, |_| ()),
        ("a smaller extra area", false, |block| crate::format::put_u16(block, 360, 24)),
        ("fewer inline attributes", false, |block| crate::format::put_u16(block, 362, 20)),
        ("a pipe", false, |block| crate::format::put_u16(block, 0, 0o010_644)),
    ];
    for (what, followed, change) in changes {
        let disk = rewritten(change);
        assert_eq!(findings_after_recovery(&disk).len(), 0, "{what}");
        let vfs = mount(&disk);
        let file = vfs.lookup(&root(), ROOT, name(b"file")).unwrap();
        assert_eq!(file.attr.kind, FileKind::Regular, "{what}");
        let mut bytes = [0; BLOCK];
        vfs.read(file.ino, 0, &mut bytes).unwrap();
        assert_eq!(bytes[0], if followed { 8 } else { 7 }, "{what}");
    }
}
