//! Recovery beside clients: volumes as a crash leaves them, used at once through vfs; e2fsck judges
//! the volumes afterwards.

use std::sync::Arc;

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::{DiskError, Done, Request, Ticket};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::api::{NewFile, Options, RenameMode, SetAttr};
use moafs_vfs::{Credentials, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::check::{self, CheckOptions};
use crate::format::InodeNo;

pub(super) const ROOT: Ino = Ino(2);
/// Rounds of background work that are enough to end recovery of a small volume.
const ROUNDS: usize = 60;

pub(super) fn who() -> Credentials {
    Credentials::root()
}

pub(super) fn new_volume(block_size: u32, mebibytes: u64) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(mebibytes << 11));
    let options = MkfsOptions {
        block_size: Some(block_size),
        ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
    };
    mkfs(&*mem, &options).expect("mkfs");
    mem
}

pub(super) fn options() -> Options {
    Options { syncer: false, ..Options::default() }
}

pub(super) fn mount(mem: &Arc<MemDisk>) -> Vfs<Ext> {
    try_mount(mem).expect("the volume opens")
}

fn try_mount(mem: &Arc<MemDisk>) -> moafs_vfs::Result<Vfs<Ext>> {
    let disk: SharedDisk = Arc::<MemDisk>::clone(mem);
    let rt = Live::new();
    let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default())?;
    Ok(Vfs::new(ext, disk, rt, options()))
}

pub(super) fn mount_read_only(mem: &Arc<MemDisk>) -> Vfs<Ext> {
    let (disk, rt): (SharedDisk, Rt) = (Arc::<MemDisk>::clone(mem), Live::new());
    let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions { read_only: true, ..OpenOptions::default() });
    Vfs::new(ext.expect("it opens"), disk, rt, options())
}

/// Returns the content of the device now, as if the power went.
pub(super) fn crash(vfs: Vfs<Ext>, mem: &Arc<MemDisk>) -> Arc<MemDisk> {
    let image = Arc::new(mem.snapshot());
    drop(vfs);
    image
}

pub(super) fn make(vfs: &Vfs<Ext>, dir: Ino, text: &str, kind: FileKind) -> Ino {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&who(), dir, name(text), &new).expect("it can be made").ino;
    vfs.forget(ino, 1);
    ino
}

pub(super) fn file_of(vfs: &Vfs<Ext>, dir: Ino, text: &str, fill: u8, len: usize) -> Ino {
    let ino = make(vfs, dir, text, FileKind::Regular);
    vfs.write(&who(), ino, 0, &vec![fill; len], false).expect("it can be written");
    ino
}

pub(super) fn run_background_step(vfs: &Vfs<Ext>) {
    for _ in 0..ROUNDS {
        vfs.run_background_step();
    }
}

/// Fills the volume with files until there is no space.
fn fill_up(vfs: &Vfs<Ext>) {
    for n in 0.. {
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        let Ok(stat) = vfs.create(&who(), ROOT, name(&format!("filler{n}")), &new) else { break };
        vfs.forget(stat.ino, 1);
        let written = vfs.write(&who(), stat.ino, 0, &vec![0xEE; 256 << 10], false);
        if written.is_err() || vfs.sync().is_err() {
            break;
        }
    }
    vfs.sync().expect("a full volume can be synced");
}

pub(super) fn content(vfs: &Vfs<Ext>, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; vfs.stat(ino).expect("it is there").attr.size as usize];
    vfs.shrink(0);
    let read = vfs.read(ino, 0, &mut bytes).expect("it can be read");
    bytes.truncate(read);
    bytes
}

pub(super) fn run_check(mem: &MemDisk, mode: check::Mode) -> check::Outcome {
    let options = CheckOptions { mode, force: true, superblock: None, now: Timestamp::new(1_700_000_100, 0) };
    check::check(mem, &options, &mut |_| ()).unwrap()
}

pub(super) fn close(vfs: Vfs<Ext>, mem: &MemDisk) {
    assert_eq!(vfs.failed(), None);
    vfs.close().expect("the volume closes");
    judge::assert_clean(mem, "after recovery and a clean unmount");
}

/// Returns the byte on the device at which an inode's slot begins.
pub(super) fn slot_at(mem: &Arc<MemDisk>, ino: Ino) -> u64 {
    let disk: SharedDisk = Arc::<MemDisk>::clone(mem);
    let ext =
        Ext::open(disk, Live::new(), OpenOptions { read_only: true, ..OpenOptions::default() }).expect("it opens");
    let at = ext.slot_at(InodeNo(ino.0 as u32)).expect("a legal number");
    ext.geo.byte_of(at.block) + at.offset as u64
}

pub(super) fn poke16(mem: &MemDisk, at: u64, value: u16) {
    mem.poke(at, &value.to_le_bytes());
}

pub(super) fn poke32(mem: &MemDisk, at: u64, value: u32) {
    mem.poke(at, &value.to_le_bytes());
}

pub(super) const LINKS: u64 = 0x1A;
const SIZE: u64 = 0x04;
const BLOCKS: u64 = 0x1C;

// -- inodes in use by a descriptor only

/// A way in which a file loses its name while it is open.
type Loss = fn(&Vfs<Ext>);

#[test]
fn a_file_that_loses_its_name_while_open_right_after_a_crash_keeps_its_blocks() {
    let losses: [(&str, Loss); 2] = [
        ("unlink", |vfs| vfs.unlink(&who(), ROOT, name("file")).unwrap()),
        ("rename over it", |vfs| {
            vfs.rename(&who(), (ROOT, name("other")), (ROOT, name("file")), RenameMode::Replace).unwrap();
        }),
    ];
    for (what, lose) in losses {
        let mem = new_volume(1024, 16);
        let vfs = mount(&mem);
        file_of(&vfs, ROOT, "file", 0xAA, 100 << 10);
        file_of(&vfs, ROOT, "other", 0xBB, 3 << 10);
        vfs.sync().unwrap();
        let mem = crash(vfs, &mem);
        let vfs = mount(&mem);
        let file = vfs.lookup(&who(), ROOT, name("file")).unwrap().ino;
        lose(&vfs);
        run_background_step(&vfs);
        fill_up(&vfs);
        assert!(content(&vfs, file) == vec![0xAA; 100 << 10], "{what}: the file shows what is not its own");
        vfs.write(&who(), file, 0, &[0xAB; 4096], false).unwrap();
        vfs.fsync(file, false).unwrap();
        vfs.forget(file, 1);
        run_background_step(&vfs);
        close(vfs, &mem);
    }
}

#[test]
fn attribute_blocks_and_a_removed_directory_that_is_in_use_keep_their_blocks() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "file", 1, 1000);
    vfs.set_xattr(&who(), file, b"user.large", &[7; 700], SetMode::Any).unwrap();
    make(&vfs, ROOT, "dir", FileKind::Directory);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let vfs = mount(&mem);
    let file = vfs.lookup(&who(), ROOT, name("file")).unwrap().ino;
    let dir = vfs.lookup(&who(), ROOT, name("dir")).unwrap().ino;
    vfs.unlink(&who(), ROOT, name("file")).unwrap();
    vfs.rmdir(&who(), ROOT, name("dir")).unwrap();
    run_background_step(&vfs);
    fill_up(&vfs);
    vfs.shrink(0);
    assert_eq!(vfs.get_xattr(&who(), file, b"user.large").unwrap(), [7; 700]);
    assert!(vfs.stat(dir).is_ok());
    vfs.forget(file, 1);
    vfs.forget(dir, 1);
    run_background_step(&vfs);
    close(vfs, &mem);
}

/// A volume as a crash leaves it, with an attribute block that files share, and what is done while it recovers.
struct Shared {
    /// The number of references that the block says it has.
    stored: u32,
    users: &'static [&'static str],
    /// The users that lose their attributes before the pass.
    removed: &'static [&'static str],
    /// The users that the crash has left without a name.
    nameless: &'static [&'static str],
}

const FILE_ACL: u64 = 0x68;

/// Has files share the attribute block of the first of them, as other drivers do.
fn share(mem: &Arc<MemDisk>, inodes: &[Ino], stored: u32) {
    let mut block = [0; 4];
    mem.peek(slot_at(mem, inodes[0]) + FILE_ACL, &mut block);
    let block = u32::from_le_bytes(block);
    for ino in &inodes[1..] {
        let slot = slot_at(mem, *ino);
        poke32(mem, slot + FILE_ACL, block);
        poke32(mem, slot + BLOCKS, 2);
    }
    poke32(mem, u64::from(block) * 1024 + 4, stored);
}

/// Takes the only name of a file, of one character.
fn take_name(mem: &MemDisk, ino: Ino, text: &str) {
    let (bytes, ino) = (mem.to_bytes(), (ino.0 as u32).to_le_bytes());
    let is_entry = |entry: &&[u8]| entry[..4] == ino && entry[6..9] == [1, 1, text.as_bytes()[0]];
    let at = bytes
        .chunks_exact(4)
        .zip(0..)
        .map(|(_, word)| 4 * word)
        .find(|at| bytes.get(*at..at + 9).as_ref().is_some_and(is_entry));
    poke32(mem, at.expect("it has a name") as u64, 0);
}

#[test]
fn attribute_blocks_that_files_share_get_the_right_count() {
    let cases = [
        Shared { stored: 4, users: &["a", "b"], removed: &[], nameless: &[] },
        Shared { stored: 3, users: &["a", "b"], removed: &["a"], nameless: &[] },
        Shared { stored: 3, users: &["a"], removed: &["a"], nameless: &[] },
        Shared { stored: 2, users: &["a", "b"], removed: &["a", "b"], nameless: &[] },
        Shared { stored: 1, users: &["a", "b", "c"], removed: &["a"], nameless: &[] },
        Shared { stored: 1, users: &["a", "b"], removed: &["a", "b"], nameless: &[] },
        Shared { stored: 3, users: &["a", "b"], removed: &[], nameless: &["b"] },
        Shared { stored: 1, users: &["a", "b"], removed: &[], nameless: &["b"] },
        Shared { stored: 3, users: &["a", "b"], removed: &["a"], nameless: &["b"] },
    ];
    for Shared { stored, users, removed, nameless } in cases {
        let what = format!("{stored} for {users:?}, {removed:?} removed, {nameless:?} without names");
        let mem = new_volume(1024, 16);
        let vfs = mount(&mem);
        let inodes: Vec<Ino> = users.iter().map(|text| file_of(&vfs, ROOT, text, 1, 0)).collect();
        vfs.set_xattr(&who(), inodes[0], b"user.large", &[7; 700], SetMode::Any).unwrap();
        vfs.sync().unwrap();
        let mem = crash(vfs, &mem);
        share(&mem, &inodes, stored);
        let is_nameless = |text: &str| nameless.contains(&text);
        users
            .iter()
            .zip(&inodes)
            .filter(|(text, _)| is_nameless(text))
            .for_each(|(text, ino)| take_name(&mem, *ino, text));
        let vfs = mount(&mem);
        for text in removed {
            let ino = vfs.lookup(&who(), ROOT, name(text)).unwrap().ino;
            vfs.remove_xattr(&who(), ino, b"user.large").unwrap();
            vfs.forget(ino, 1);
        }
        run_background_step(&vfs);
        fill_up(&vfs);
        vfs.shrink(0);
        for text in users.iter().filter(|text| !removed.contains(text) && !nameless.contains(text)) {
            let ino = vfs.lookup(&who(), ROOT, name(text)).unwrap().ino;
            assert_eq!(vfs.get_xattr(&who(), ino, b"user.large").expect(&what), [7; 700], "{what}");
            vfs.forget(ino, 1);
        }
        close(vfs, &mem);
    }
}

/// The metadata have the truncation, and the device not the zeros in the last block.
#[test]
fn a_truncated_file_that_grows_after_a_crash_shows_zeros() {
    for features in [FeatureSet::EXT2, FeatureSet::EXT3, FeatureSet::EXT4] {
        let volume = Volume::with(features, 1024, 16);
        let mem = volume.close();
        let vfs = mount(&mem);
        let file = file_of(&vfs, ROOT, "file", 7, 6000);
        vfs.sync().unwrap();
        let resize = |vfs: &Vfs<Ext>, size: u64| {
            vfs.set_attr(&who(), file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        };
        resize(&vfs, 1500);
        vfs.format().commit(CommitReason::Age).unwrap();
        let mem = crash(vfs, &mem);
        let vfs = mount(&mem);
        assert_eq!(vfs.stat(file).unwrap().attr.size, 1500);
        resize(&vfs, 6000);
        vfs.sync().unwrap();
        let bytes = content(&vfs, file);
        assert_eq!((bytes.len(), &bytes[..1500]), (6000, &[7; 1500][..]));
        assert!(bytes[1500..].iter().all(|byte| *byte == 0), "old bytes came back");
        run_background_step(&vfs);
        close(vfs, &mem);
    }
}

// -- link counts

/// Returns a volume with trees, as a crash leaves it.
fn volume_with_trees() -> Arc<MemDisk> {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    for d in 0..5 {
        let dir = make(&vfs, ROOT, &format!("d{d}"), FileKind::Directory);
        for n in 0..4 {
            make(&vfs, dir, &format!("s{n}"), FileKind::Directory);
            file_of(&vfs, dir, &format!("f{n}"), d as u8, 5000);
        }
    }
    vfs.sync().unwrap();
    crash(vfs, &mem)
}

fn remove_all(vfs: &Vfs<Ext>, mut between: impl FnMut(&Vfs<Ext>)) {
    for d in 0..5 {
        let dir = vfs.lookup(&who(), ROOT, name(&format!("d{d}"))).unwrap().ino;
        for n in 0..4 {
            vfs.rmdir(&who(), dir, name(&format!("s{n}"))).unwrap();
            vfs.unlink(&who(), dir, name(&format!("f{n}"))).unwrap();
            between(vfs);
        }
        vfs.forget(dir, 1);
        vfs.rmdir(&who(), ROOT, name(&format!("d{d}"))).unwrap();
        between(vfs);
    }
}

#[test]
fn removing_everything_while_recovery_is_at_any_place_leaves_right_counts() {
    let image = volume_with_trees();
    for steps in 0..12 {
        let mem = Arc::new(image.snapshot());
        let vfs = mount(&mem);
        for _ in 0..steps {
            let _ = vfs.format().run_background_step(moafs_vfs::format::Idle::Busy);
        }
        let mut removed = 0;
        remove_all(&vfs, |vfs| {
            removed += 1;
            if removed % (steps + 1) == 0 {
                vfs.run_background_step();
            }
        });
        close(vfs, &mem);
    }
}

#[test]
fn a_root_with_links_too_many_is_not_deleted_when_everything_in_it_is() {
    let image = volume_with_trees();
    let slot = slot_at(&image, ROOT);
    poke16(&image, slot + LINKS, 40);
    let vfs = mount(&image);
    vfs.format().run_background_step(moafs_vfs::format::Idle::Busy);
    remove_all(&vfs, |_| {});
    run_background_step(&vfs);
    assert!(vfs.stat(ROOT).is_ok());
    close(vfs, &image);
}

#[test]
fn a_directory_without_a_link_for_what_it_holds_is_damage_and_not_lowered() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let dir = make(&vfs, ROOT, "dir", FileKind::Directory);
    make(&vfs, dir, "below", FileKind::Directory);
    vfs.close().unwrap();
    let slot = slot_at(&mem, dir);
    poke16(&mem, slot + LINKS, 2);
    let vfs = mount(&mem);
    let refused = vfs.rmdir(&who(), dir, name("below")).expect_err("no link is counted for it");
    assert_eq!(refused.errno(), libc::EUCLEAN, "{refused}");
    assert!(vfs.failed().is_some_and(|reason| reason.contains("no link is counted")));
}

#[test]
fn a_file_with_fewer_links_than_names_is_damage() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "file", 1, 4000);
    vfs.link(&who(), file, ROOT, name("other")).unwrap();
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    poke16(&mem, slot_at(&mem, file) + LINKS, 1);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    let reason = vfs.failed().expect("it was found");
    assert!(reason.contains("is one name more than inode"), "{reason}");
    assert_eq!(content(&vfs, file), [1; 4000], "it can still be read");
    assert!(vfs.close().is_err());
}

#[test]
fn a_root_with_links_too_few_is_neither_deleted_nor_lowered() {
    let links_of_root = |image: &Arc<MemDisk>| {
        let mut links = [0; 2];
        image.peek(slot_at(image, ROOT) + LINKS, &mut links);
        u16::from_le_bytes(links)
    };
    let image = volume_with_trees();
    poke16(&image, slot_at(&image, ROOT) + LINKS, 0);
    assert!(try_mount(&image).is_err(), "a root that is deleted is refused");

    let image = volume_with_trees();
    poke16(&image, slot_at(&image, ROOT) + LINKS, 2);
    let vfs = mount(&image);
    let dir = vfs.lookup(&who(), ROOT, name("d0")).unwrap().ino;
    for n in 0..4 {
        vfs.rmdir(&who(), dir, name(&format!("s{n}"))).unwrap();
        vfs.unlink(&who(), dir, name(&format!("f{n}"))).unwrap();
    }
    let refused = vfs.rmdir(&who(), ROOT, name("d0")).expect_err("no link is counted for it");
    assert_eq!(refused.errno(), libc::EUCLEAN, "{refused}");
    run_background_step(&vfs);
    assert!(vfs.failed().is_some_and(|reason| reason.contains("no link is counted")));
    assert!(vfs.stat(ROOT).is_ok() && vfs.close().is_err());
    assert_eq!(links_of_root(&image), 2);

    // One link stands for any number of subdirectories.
    let image = volume_with_trees();
    poke16(&image, slot_at(&image, ROOT) + LINKS, 1);
    let vfs = mount(&image);
    remove_all(&vfs, |_| {});
    run_background_step(&vfs);
    assert_eq!(vfs.failed(), None);
    assert!(vfs.stat(ROOT).is_ok());
    vfs.close().unwrap();
    assert_eq!(links_of_root(&image), 1);
}

// -- leaks that recovery returns

#[test]
fn a_file_with_a_link_too_many_that_is_removed_right_after_the_mount_goes() {
    for held in [false, true] {
        let mem = new_volume(1024, 16);
        let vfs = mount(&mem);
        let file = file_of(&vfs, ROOT, "file", 1, 5000);
        vfs.sync().unwrap();
        let mem = crash(vfs, &mem);
        let slot = slot_at(&mem, file);
        poke16(&mem, slot + LINKS, 2);
        let vfs = mount(&mem);
        if held {
            vfs.lookup(&who(), ROOT, name("file")).unwrap();
        }
        vfs.unlink(&who(), ROOT, name("file")).unwrap();
        run_background_step(&vfs);
        close(vfs, &mem);
    }
}

#[test]
fn files_that_an_append_left_too_short_are_mended_whoever_looks_first() {
    for use_at_once in [false, true] {
        let mem = new_volume(1024, 16);
        let vfs = mount(&mem);
        let file = file_of(&vfs, ROOT, "file", 0x55, 300 << 10);
        vfs.sync().unwrap();
        let mem = crash(vfs, &mem);
        // The pointers of the last blocks are on the device, the inode that counts them is not.
        let slot = slot_at(&mem, file);
        poke32(&mem, slot + SIZE, 290 << 10);
        poke32(&mem, slot + BLOCKS, 580);
        let vfs = mount(&mem);
        if use_at_once {
            let longer = SetAttr { size: Some(299 << 10), ..SetAttr::default() };
            vfs.set_attr(&who(), file, &longer).unwrap();
            let bytes = content(&vfs, file);
            assert!(
                bytes[290 << 10..].iter().all(|byte| *byte == 0),
                "what the file never had shows behind its old end"
            );
            vfs.write(&who(), file, 295 << 10, &[0x66; 3000], false).unwrap();
            vfs.fsync(file, false).unwrap();
        }
        run_background_step(&vfs);
        close(vfs, &mem);
    }
}

/// Returns a volume that a crash left, without a name in its root, as if it had never been added.
fn without_name(mem: &Arc<MemDisk>, text: &str) -> Arc<MemDisk> {
    let disk: SharedDisk = mem.clone();
    let ext = Ext::open(disk, Live::new(), OpenOptions::default()).unwrap();
    let root = ext.load(ROOT).unwrap().1;
    ext.touch(&root).unwrap();
    ext.remove_name(&root, name(text), crate::meta::Level::NONE, true).unwrap();
    ext.settle().unwrap();
    drop((root, ext));
    Arc::clone(mem)
}

#[test]
fn an_inode_without_a_name_is_kept_while_it_is_held_and_goes_at_unmount() {
    for changed in [false, true] {
        let mem = new_volume(1024, 16);
        let vfs = mount(&mem);
        let file = file_of(&vfs, ROOT, "file", 0x77, 20 << 10);
        vfs.sync().unwrap();
        let mem = without_name(&crash(vfs, &mem), "file");
        let vfs = mount(&mem);
        vfs.hold(file).expect("it can be reached by its number");
        if changed {
            vfs.write(&who(), file, 30 << 10, &[0x77; 100], false).unwrap();
            vfs.fsync(file, false).unwrap();
        }
        run_background_step(&vfs);
        fill_up(&vfs);
        assert!(content(&vfs, file)[..20 << 10] == vec![0x77; 20 << 10], "it was freed while it was held");
        vfs.forget(file, 1);
        close(vfs, &mem);
    }
}

#[test]
fn an_inode_without_a_name_that_gets_one_before_recovery_looks_stays() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "file", 0x77, 20 << 10);
    vfs.sync().unwrap();
    let mem = without_name(&crash(vfs, &mem), "file");
    let vfs = mount(&mem);
    vfs.hold(file).expect("it can be reached by its number");
    vfs.link(&who(), file, ROOT, name("again")).unwrap();
    vfs.forget(file, 2);
    vfs.sync().unwrap();
    vfs.shrink(0);
    run_background_step(&vfs);
    fill_up(&vfs);
    let file = vfs.lookup(&who(), ROOT, name("again")).expect("it has a name").ino;
    assert!(content(&vfs, file) == vec![0x77; 20 << 10], "it was freed though it has a name");
    vfs.forget(file, 1);
    close(vfs, &mem);
}

// -- directories

/// Returns a directory below `a` that was being moved below `b`: it has both names, `..` names the
/// old one.
fn volume_with_a_directory_of_two_names() -> Arc<MemDisk> {
    let volume = Volume::make(1024, 16);
    let a = volume.create(&volume.root, "a", FileKind::Directory, None);
    let b = volume.create(&volume.root, "b", FileKind::Directory, None);
    let moved = volume.create(&a, "moved", FileKind::Directory, None);
    let level = volume.ext.insert_name(
        &b,
        name("moved"),
        moved.ino,
        FileKind::Directory,
        crate::meta::Level::NONE,
        &mut || panic!("the directory has room"),
    );
    level.unwrap();
    b.state.lock().inode.links += 1;
    volume.ext.store(&b).unwrap();
    volume.ext.settle().unwrap();
    Arc::new(volume.mem.snapshot())
}

#[test]
fn a_directory_with_two_names_is_mended_before_it_is_removed_or_moved() {
    for (dir, other) in [("a", "b"), ("b", "a")] {
        for moves in [false, true] {
            let mem = volume_with_a_directory_of_two_names();
            let vfs = mount(&mem);
            let dir = vfs.lookup(&who(), ROOT, name(dir)).unwrap().ino;
            let other = vfs.lookup(&who(), ROOT, name(other)).unwrap().ino;
            let done = match moves {
                false => vfs.rmdir(&who(), dir, name("moved")),
                true => vfs.rename(&who(), (dir, name("moved")), (ROOT, name("there")), RenameMode::Replace),
            };
            let there = |dir, text| vfs.lookup(&who(), dir, name(text)).is_ok();
            match done {
                Ok(()) => assert!(!there(dir, "moved") && !there(other, "moved")),
                Err(error) => assert!(error.errno() == libc::ENOENT && there(other, "moved"), "{error}"),
            }
            done_with(&vfs, &[dir, other]);
            run_background_step(&vfs);
            close(vfs, &mem);
        }
    }
}

fn done_with(vfs: &Vfs<Ext>, inos: &[Ino]) {
    inos.iter().for_each(|ino| vfs.forget(*ino, 1));
}

#[test]
fn a_file_that_write_back_stores_while_it_is_renamed_never_has_fewer_links_than_names() {
    let volume = Volume::make(1024, 16);
    let file = volume.create(&volume.root, "old", FileKind::Regular, None);
    volume.ext.settle().unwrap();
    let at = volume.ext.geo.byte_of(file.at.block) + file.at.offset as u64 + LINKS;
    let links = || {
        let mut bytes = [0; 2];
        volume.mem.peek(at, &mut bytes);
        u16::from_le_bytes(bytes)
    };
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Rename, &mut admission).unwrap();
    let ino = Ino(file.ino.0.into());
    op.name_add(&volume.root, name("new"), Target { ino, kind: file.kind, node: &file }).unwrap();
    volume.ext.store(&file).unwrap();
    volume.ext.settle().unwrap();
    assert_eq!(links(), 2, "both names are on the device");
    op.name_remove(&volume.root, name("old"), &file).unwrap();
    op.end();
    volume.ext.settle().unwrap();
    assert_eq!(links(), 1);
    drop((file, admission));
    volume.close();
}

// -- damage

#[test]
fn recovery_that_meets_a_block_claimed_twice_turns_the_volume_read_only_and_says_why() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let first = file_of(&vfs, ROOT, "first", 1, 4000);
    let second = file_of(&vfs, ROOT, "second", 2, 4000);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let mut pointer = [0; 4];
    mem.peek(slot_at(&mem, first) + 0x28, &mut pointer);
    mem.poke(slot_at(&mem, second) + 0x28, &pointer);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    let reason = vfs.failed().expect("it was found");
    assert!(reason.contains("belongs to it and to another owner"), "{reason}");
    assert!(vfs.close().is_err());
}

#[test]
fn pointers_outside_of_the_volume_end_recovery_with_a_reason() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "file", 1, 4000);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    poke32(&mem, slot_at(&mem, file) + 0x28, 16 << 10);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    let reason = vfs.failed().expect("it was found");
    assert!(reason.contains("16384"), "{reason}");
    assert!(vfs.close().is_err());
}

#[test]
fn a_name_that_leads_to_its_own_directory_ends_recovery_with_a_reason() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let dir = make(&vfs, ROOT, "dir", FileKind::Directory);
    make(&vfs, dir, "below", FileKind::Directory);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let mut block = [0; 4];
    mem.peek(slot_at(&mem, dir) + 0x28, &mut block);
    // Behind "." and "..", which take 12 bytes each.
    poke32(&mem, u64::from(u32::from_le_bytes(block)) * 1024 + 24, dir.0 as u32);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    let reason = vfs.failed().expect("it was found");
    assert!(reason.contains("\"below\" names inode"), "{reason}");
    assert!(vfs.close().is_err());
}

#[test]
fn pointers_in_a_circle_end_recovery_with_a_reason() {
    let mem = new_volume(1024, 16);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "file", 1, 4000);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    // The first block of data is taken for a triple indirect block full of pointers to itself.
    let slot = slot_at(&mem, file);
    let mut pointer = [0; 4];
    mem.peek(slot + 0x28, &mut pointer);
    mem.poke(u64::from(u32::from_le_bytes(pointer)) * 1024, &pointer.repeat(256));
    mem.poke(slot + 0x28, &[0; 60]);
    mem.poke(slot + 0x28 + 14 * 4, &pointer);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    assert!(vfs.failed().is_some());
}

// -- memory

#[test]
fn inodes_that_nobody_uses_any_more_take_no_memory() {
    let volume = Volume::make(1024, 64);
    let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
    for n in 0..3000 {
        volume.create(&dir, &format!("file{n}"), FileKind::Regular, None);
    }
    volume.ext.settle().unwrap();
    drop(dir);
    volume.ext.sweep(volume.ext.meta.highest()).unwrap();
    for ino in 11..3000 {
        drop(volume.ext.load(Ino(ino)));
    }
    assert!(volume.ext.registry.len() < 10, "{} inodes are remembered", volume.ext.registry.len());
    let indexes = volume.ext.registry.index_bytes();
    assert!(indexes < 1000, "{indexes} bytes: the index of a directory that is not in use is gone");
    volume.close();
}

#[test]
fn recovery_takes_bits_for_inodes_not_entries() {
    let volume = Volume::make(1024, 128);
    let files = 20_000;
    for d in 0..files / 1000 {
        let dir = volume.create(&volume.root, &format!("dir{d}"), FileKind::Directory, None);
        for n in 0..1000 {
            volume.create(&dir, &format!("file{n}"), FileKind::Regular, None);
        }
    }
    volume.ext.settle().unwrap();
    let volume = Volume::open(Arc::new(volume.mem.snapshot()));
    let mut most = 0;
    while volume.ext.run_background_step(moafs_vfs::format::Idle::Busy).is_some() {
        most = most.max(volume.ext.recovery.memory());
        assert!(volume.ext.registry.len() < 50);
    }
    assert!(most < 64 << 10, "{most} bytes for {files} files");
    volume.close();
}

// -- several clients at once

/// A device that lets other tasks run before each of its requests.
struct Switching {
    below: Arc<CrashRecorder>,
    rt: Rt,
}

impl Disk for Switching {
    moafs_disk::forward_to!(below: limits, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        self.rt.compute(0);
        self.below.submit(batch)
    }
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.rt.compute(20_000);
        self.below.wait(ticket)
    }
    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.rt.compute(50_000);
        self.below.make_durable(upto)
    }
}

/// Returns the byte that every write to an inode stores.
fn byte_of(ino: Ino) -> u8 {
    (ino.0 % 251) as u8 + 1
}

/// One client: random changes in a few directories, and files that stay open without a name.
struct Client {
    vfs: Vfs<Ext>,
    rng: Pcg64Mcg,
    open: Vec<Ino>,
}

impl Client {
    fn dir(&mut self) -> Option<Ino> {
        let text = format!("d{}", self.rng.random_range(0..3));
        let found = self.vfs.lookup(&who(), ROOT, name(&text));
        let ino = found.map(|stat| stat.ino).ok()?;
        self.vfs.forget(ino, 1);
        Some(ino)
    }

    fn file_name(&mut self) -> String {
        format!("f{}", self.rng.random_range(0..8))
    }

    fn dir_name(&mut self) -> String {
        format!("s{}", self.rng.random_range(0..3))
    }

    fn find(&mut self, dir: Ino) -> moafs_vfs::Result<Ino> {
        let text = self.file_name();
        self.vfs.lookup(&who(), dir, name(&text)).map(|stat| stat.ino)
    }

    fn step(&mut self) {
        if let Err(error) = self.try_step() {
            let expected = [
                libc::ENOENT,
                libc::EEXIST,
                libc::ENOTEMPTY,
                libc::EISDIR,
                libc::ENOTDIR,
                libc::EINVAL,
                libc::ESTALE,
                libc::EPERM,
            ];
            assert!(expected.contains(&error.errno()), "{error}");
        }
    }

    fn try_step(&mut self) -> moafs_vfs::Result<()> {
        let (Some(dir), Some(to)) = (self.dir(), self.dir()) else { return Ok(()) };
        let vfs = self.vfs.clone();
        let (file, other) = (self.file_name(), self.file_name());
        let (sub, other_sub) = (self.dir_name(), self.dir_name());
        let new = |kind| NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
        match self.rng.random_range(0..14) {
            0..=2 => {
                let ino = vfs.create(&who(), dir, name(&file), &new(FileKind::Regular))?.ino;
                let len = self.rng.random_range(1..40_000);
                vfs.write(&who(), ino, 0, &vec![byte_of(ino); len], false)?;
                if self.rng.random_range(0..3) == 0 {
                    vfs.fsync(ino, false)?;
                }
                vfs.forget(ino, 1);
                Ok(())
            }
            3 => vfs.unlink(&who(), dir, name(&file)),
            4 => vfs.rename(&who(), (dir, name(&file)), (to, name(&other)), RenameMode::Replace),
            5 => vfs.rename(&who(), (dir, name(&file)), (to, name(&other)), RenameMode::Exchange),
            6 => vfs.create(&who(), dir, name(&sub), &new(FileKind::Directory)).map(|stat| vfs.forget(stat.ino, 1)),
            7 => vfs.rmdir(&who(), dir, name(&sub)),
            8 => vfs.rename(&who(), (dir, name(&sub)), (to, name(&other_sub)), RenameMode::Replace),
            9 => vfs.rename(&who(), (dir, name(&sub)), (to, name(&file)), RenameMode::Exchange),
            10 => {
                let ino = self.find(dir)?;
                let linked = vfs.link(&who(), ino, to, name(&other)).map(|_| vfs.forget(ino, 1));
                vfs.forget(ino, 1);
                linked
            }
            11 => {
                let ino = self.find(dir)?;
                let size = SetAttr { size: Some(self.rng.random_range(0..60_000)), ..SetAttr::default() };
                let set = vfs.set_attr(&who(), ino, &size).map(drop);
                vfs.forget(ino, 1);
                set
            }
            12 if self.open.len() < 4 => {
                let ino = vfs.lookup(&who(), dir, name(&file))?.ino;
                self.open.push(ino);
                vfs.unlink(&who(), dir, name(&file))
            }
            _ => self.look_at_open_files(),
        }
    }

    /// Checks that open files show no bytes of other files.
    fn look_at_open_files(&mut self) -> moafs_vfs::Result<()> {
        let Some(ino) = self.open.pop() else { return Ok(()) };
        if self.vfs.stat(ino)?.attr.kind == FileKind::Regular {
            let bytes = content(&self.vfs, ino);
            let foreign = bytes.iter().find(|byte| **byte != 0 && **byte != byte_of(ino));
            assert!(foreign.is_none(), "inode {} shows {foreign:?}", ino.0);
        }
        self.vfs.forget(ino, 1);
        Ok(())
    }
}

/// Runs three clients on a volume, with background work beside them. Returns every write that
/// reached the device.
fn work(image: MemDisk, seed: u64, steps: usize, closes: bool) -> Arc<CrashRecorder> {
    let virt = Virtual::new(Some(seed));
    let rt = virt.rt();
    let recorder = Arc::new(CrashRecorder::over(Arc::new(image), rt.clone()));
    let disk: SharedDisk = Arc::new(Switching { below: recorder.clone(), rt: rt.clone() });
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        for d in 0..3 {
            let new = NewFile { kind: FileKind::Directory, perm: 0o755, umask: 0, rdev: 0, target: None };
            let _ = vfs.create(&who(), ROOT, name(&format!("d{d}")), &new).map(|stat| vfs.forget(stat.ino, 1));
        }
        let clients = (0..3).map(|number| {
            let mut client =
                Client { vfs: vfs.clone(), rng: Pcg64Mcg::seed_from_u64(seed * 8 + number), open: Vec::new() };
            let body = move || {
                for _ in 0..steps {
                    client.step();
                }
                while !client.open.is_empty() {
                    client.look_at_open_files().expect("an open file can be read");
                }
            };
            rt.spawn("client", Box::new(body))
        });
        let background = vfs.clone();
        let background = rt.spawn(
            "background",
            Box::new(move || {
                for _ in 0..steps {
                    background.run_background_step();
                }
            }),
        );
        let tasks: Vec<_> = clients.collect();
        tasks.into_iter().chain([background]).for_each(|task| task.join(&*rt));
        assert_eq!(vfs.failed(), None, "seed {seed}");
        if closes {
            vfs.close().expect("the volume closes");
        }
    });
    recorder
}

#[test]
fn several_clients_beside_recovery_lose_nothing_and_leave_nothing() {
    let seeds = std::env::var("MOAFS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let first = std::env::var("MOAFS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let before = work((*new_volume(1024, 8)).snapshot(), seed, 60, false);
        let cut = rng.random_range(before.cut_points() / 3..before.cut_points());
        let mode = [Mode::All, Mode::None, Mode::Subset, Mode::Torn][rng.random_range(0..4)];
        // Cut again while the clients work, and once more to the end.
        let second = work(before.state(cut, seed, mode), seed + 1000, 40, false);
        let cut = rng.random_range(0..second.cut_points());
        let third = work(second.state(cut, seed, Mode::Subset), seed + 2000, 40, true);
        let end = third.state(third.cut_points() - 1, 0, Mode::All);
        judge::assert_clean(&end, &format!("seed {seed}"));
    }
}
