//! Renames of files that a crash interrupts: afterwards a caller finds the old name or the new one, never both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::Vfs;
use moafs_vfs::api::{ListEntry, RenameMode, SetAttr};
use moafs_vfs::types::Cookie;

use super::exchanges::temporary_name;
use super::recovery::{
    LINKS, ROOT, close, content, crash, file_of, make, mount, mount_read_only, new_volume, options, poke16, poke32,
    run_background_step, run_check, slot_at, who,
};
use super::*;
use crate::check;

/// A rename: from a name in one directory to a name in another.
struct Case {
    inode_size: u32,
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    replaces: bool,
}

/// The first thing done after the mount, before the names are judged.
type First = fn(&Vfs<Ext>, &Case);

/// The directory that is made right before the rename.
const FRESH: &str = "fresh";

const CASES: [Case; 6] = [
    Case { inode_size: 256, from: ("a", "file.new"), to: ("a", "file"), replaces: true },
    Case { inode_size: 256, from: ("a", "file.new"), to: ("a", "file"), replaces: false },
    Case { inode_size: 256, from: ("a", "file"), to: ("b", "file"), replaces: true },
    Case { inode_size: 256, from: ("a", "one"), to: ("b", "two"), replaces: false },
    Case { inode_size: 256, from: ("a", "one"), to: (FRESH, "two"), replaces: false },
    Case { inode_size: 128, from: ("a", "file.new"), to: ("a", "file"), replaces: true },
];

const OLD: u8 = 0xAA;
const NEW: u8 = 0xBB;
/// The mark of a file that was synced under its old name.
const SYNCED: u8 = 1;

fn ino_of(vfs: &Vfs<Ext>, dir: Ino, text: &str) -> Option<Ino> {
    let found = vfs.lookup(&who(), dir, name(text)).ok()?.ino;
    vfs.forget(found, 1);
    Some(found)
}

fn at(vfs: &Vfs<Ext>, (dir, text): (&str, &str)) -> Option<Ino> {
    ino_of(vfs, ino_of(vfs, ROOT, dir)?, text)
}

fn names_in(vfs: &Vfs<Ext>, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let mut note = |entry: ListEntry<'_>| {
        names.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
        true
    };
    vfs.list(&who(), dir, Cookie::START, &mut note).unwrap();
    names
}

fn volume(case: &Case) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(8 << 11));
    let times = Timestamp::new(1_700_000_000, 0);
    let options = MkfsOptions {
        block_size: Some(1024),
        inode_size: case.inode_size,
        ..MkfsOptions::new([1; 16], [2; 16], times)
    };
    mkfs(&*mem, &options).expect("mkfs");
    let vfs = mount(&mem);
    for dir in ["a", "b"] {
        let dir = make(&vfs, ROOT, dir, FileKind::Directory);
        // Names between those of the test, so that these lie in several sectors.
        for n in 0..40 {
            make(&vfs, dir, &format!("a-name-between-{n}"), FileKind::Regular);
        }
    }
    if case.replaces {
        let dir = ino_of(&vfs, ROOT, case.to.0).unwrap();
        file_of(&vfs, dir, case.to.1, OLD, 3000);
    }
    vfs.close().unwrap();
    mem
}

/// Makes the file, renames it, syncs, and then makes another under the old name if `again`. Returns the recorder.
fn renamed(case: &Case, again: bool) -> Arc<CrashRecorder> {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(volume(case), rt.clone()));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let from = ino_of(&vfs, ROOT, case.from.0).unwrap();
        for round in 0..1 + u8::from(again) {
            let file = file_of(&vfs, from, case.from.1, NEW + round, 5000);
            vfs.fsync(file, false).unwrap();
            recorder.mark(u64::from(SYNCED));
            let to = ino_of(&vfs, ROOT, case.to.0).unwrap_or_else(|| make(&vfs, ROOT, case.to.0, FileKind::Directory));
            vfs.rename(&who(), (from, name(case.from.1)), (to, name(case.to.1)), RenameMode::Replace).unwrap();
            vfs.fsync(to, false).unwrap();
            recorder.mark(u64::from(NEW + round));
        }
        vfs.sync().unwrap();
        drop(vfs);
    });
    recorder
}

fn mount_state(recorder: &CrashRecorder, cut: usize, seed: u64) -> (Vfs<Ext>, Arc<MemDisk>) {
    let mode = [Mode::All, Mode::None, Mode::Subset, Mode::Torn][seed as usize % 4];
    let mem = Arc::new(recorder.state(cut, seed, mode));
    (mount(&mem), mem)
}

/// Judges one crash: what the new name leads to when the old one is made anew, as programs make their temporary file.
fn judge_crash(recorder: &CrashRecorder, cut: usize, seed: u64, case: &Case, first: First) {
    let (vfs, mem) = mount_state(recorder, cut, seed);
    first(&vfs, case);
    let what = format!("cut {cut}, seed {seed}, {:?} to {:?}", case.from, case.to);
    let (old, new) = (at(&vfs, case.from), at(&vfs, case.to));
    assert!(old.is_none() || old != new, "{what}: the file has both names");
    let promised = recorder.marks_before(cut);
    assert!(promised.is_empty() || old.is_some() || new.is_some(), "{what}: the file has none of its names");
    if let Some(new) = new {
        let bytes = content(&vfs, new);
        let promised = promised.into_iter().max().unwrap_or(0);
        assert!(u64::from(bytes[0]) >= promised, "{what}: an older version came back");
        if let Some(old) = old {
            vfs.set_attr(&who(), old, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        } else {
            let dir = ino_of(&vfs, ROOT, case.from.0).unwrap();
            file_of(&vfs, dir, case.from.1, 1, 10);
        }
        vfs.sync().unwrap();
        assert!(content(&vfs, new) == bytes, "{what}: emptied by its old name");
    }
    close(vfs, &mem);
}

fn judge_all(again: bool, first: First) {
    for case in &CASES {
        let recorder = renamed(case, again);
        for cut in 0..recorder.cut_points() {
            let seeds = if recorder.uncertain(cut) > 0 { 8 } else { 1 };
            (0..seeds).for_each(|seed| judge_crash(&recorder, cut, seed, case, first));
        }
    }
}

#[test]
fn an_interrupted_rename_is_ended_when_the_old_name_is_looked_up() {
    judge_all(true, |vfs, case| {
        at(vfs, case.from);
    });
}

#[test]
fn an_interrupted_rename_is_ended_when_the_new_name_is_looked_up() {
    judge_all(false, |vfs, case| {
        at(vfs, case.to);
    });
}

#[test]
fn an_interrupted_rename_is_ended_before_its_directory_is_listed() {
    judge_all(false, |vfs, case| {
        for dir in [case.from.0, case.to.0] {
            let Some(dir) = ino_of(vfs, ROOT, dir) else { continue };
            for text in names_in(vfs, dir) {
                assert!(ino_of(vfs, dir, &text).is_some(), "{text} is listed and not there");
            }
        }
    });
}

#[test]
fn an_interrupted_rename_is_ended_though_no_caller_comes_across_the_file() {
    judge_all(false, |vfs, _| {
        run_background_step(vfs);
        let mut names = Vec::new();
        for dir in ["a", "b", FRESH] {
            let Some(dir) = ino_of(vfs, ROOT, dir) else { continue };
            names.extend(
                names_in(vfs, dir).iter().filter(|text| !text.starts_with('.')).map(|text| ino_of(vfs, dir, text)),
            );
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a file has two names");
    });
}

#[test]
fn a_second_link_that_a_user_made_survives_a_crash_after_a_rename() {
    let mem = new_volume(1024, 8);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "one", NEW, 3000);
    vfs.fsync(file, false).unwrap();
    vfs.rename(&who(), (ROOT, name("one")), (ROOT, name("two")), RenameMode::Replace).unwrap();
    vfs.link(&who(), file, ROOT, name("one")).unwrap();
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    assert_eq!((ino_of(&vfs, ROOT, "one"), ino_of(&vfs, ROOT, "two")), (Some(file), Some(file)));
    assert_eq!(vfs.stat(file).unwrap().attr.nlink, 2);
    close(vfs, &mem);
}

// -- files that leave a directory whose own name is not on the disk

/// Makes a directory with some files and directories and moves one of the files out of it at once. Returns the
/// recorder.
fn left_a_fresh_directory() -> Arc<CrashRecorder> {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(volume(&CASES[3]), rt.clone()));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let (a, b) = (ino_of(&vfs, ROOT, "a").unwrap(), ino_of(&vfs, ROOT, "b").unwrap());
        let fresh = make(&vfs, a, FRESH, FileKind::Directory);
        let below = make(&vfs, fresh, "below", FileKind::Directory);
        file_of(&vfs, below, "deep", NEW, 2000);
        file_of(&vfs, fresh, "other", NEW, 3000);
        file_of(&vfs, fresh, "one", NEW, 3000);
        vfs.rename(&who(), (fresh, name("one")), (b, name("two")), RenameMode::Replace).unwrap();
        vfs.sync().unwrap();
        drop(vfs);
    });
    recorder
}

fn judge_lost_directory(first: impl Fn(&Vfs<Ext>)) {
    let recorder = left_a_fresh_directory();
    for cut in 0..recorder.cut_points() {
        let seeds = if recorder.uncertain(cut) > 0 { 16 } else { 1 };
        for seed in 0..seeds {
            let (vfs, mem) = mount_state(&recorder, cut, seed);
            first(&vfs);
            // Now recovery may free the directory.
            vfs.sync().unwrap();
            run_background_step(&vfs);
            close(vfs, &mem);
        }
    }
}

#[test]
fn a_rename_out_of_a_directory_that_the_crash_lost_leaves_no_leaks() {
    judge_lost_directory(|vfs| {
        at(vfs, ("b", "two"));
    });
}

#[test]
fn listing_a_directory_that_the_crash_lost_by_its_number_leaves_no_leaks() {
    judge_lost_directory(|vfs| {
        for ino in 80..100 {
            // As a file handle from before the crash does.
            let Ok((_, node)) = vfs.format().load(Ino(ino)) else { continue };
            let _ = vfs.format().list(&node, Cookie::START, &mut |_, _, _| true);
        }
    });
}

// -- notes that say nothing any more, or nothing true

/// Returns what a crash left of the first case when the file had both names, and the file's number.
fn with_both_names() -> (Arc<MemDisk>, Ino) {
    let recorder = renamed(&CASES[1], false);
    for cut in 0..recorder.cut_points() {
        let mem = Arc::new(recorder.state(cut, 0, Mode::All));
        let vfs = mount_read_only(&mem);
        let (old, new) = (at(&vfs, CASES[1].from), at(&vfs, CASES[1].to));
        if let Some(file) = old.filter(|_| old == new) {
            return (mem, file);
        }
    }
    panic!("no cut leaves both names");
}

#[test]
fn both_names_are_links_once_another_checker_or_driver_has_had_the_volume() {
    let (mem, file) = with_both_names();
    let Some(mem) = repaired_by_e2fsck(&mem) else { return };
    // A crash while moafs has the volume again, without a change of the file.
    let vfs = mount(&mem);
    file_of(&vfs, ROOT, "another", 1, 100);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let vfs = mount(&mem);
    run_background_step(&vfs);
    assert_eq!((at(&vfs, CASES[1].from), at(&vfs, CASES[1].to)), (Some(file), Some(file)), "a link is gone");
    assert_eq!(vfs.stat(file).unwrap().attr.nlink, 2);
    close(vfs, &mem);
}

/// Returns the volume as `e2fsck -fy` leaves it; `None` without that program.
fn repaired_by_e2fsck(mem: &MemDisk) -> Option<Arc<MemDisk>> {
    if !judge::have("e2fsck") {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    mem.write_to(&image).unwrap();
    let said = judge::run("e2fsck", &["-fy"], &image);
    assert!(matches!(said.code, Some(0 | 1)), "{}", said.text);
    Some(Arc::new(MemDisk::read_from(&image).unwrap()))
}

fn ended_renames(outcome: &check::Outcome) -> usize {
    let is_it = |found: &&check::Finding| matches!(found.issue, check::Issue::RenameInterrupted { .. });
    outcome.findings.iter().filter(is_it).count()
}

#[test]
fn a_check_ends_an_interrupted_rename_as_a_mount_does() {
    let (mem, file) = with_both_names();
    let before = mem.to_bytes();
    let outcome = run_check(&mem, check::Mode::No);
    assert_eq!((ended_renames(&outcome), outcome.modified), (1, false));
    assert!(mem.to_bytes() == before, "a check without repairs has written");
    let outcome = run_check(&mem, check::Mode::Preen);
    assert_eq!((ended_renames(&outcome), outcome.exit_code()), (1, 1));
    judge::assert_clean(&mem, "after a check");
    let vfs = mount(&mem);
    assert_eq!((at(&vfs, CASES[1].from), at(&vfs, CASES[1].to)), (None, Some(file)));
    assert_eq!(vfs.stat(file).unwrap().attr.nlink, 1);
    close(vfs, &mem);
}

#[test]
fn a_check_after_any_crash_leaves_a_file_one_of_its_names() {
    for case in CASES.iter().filter(|case| case.inode_size > 128 || case.from.0 == case.to.0) {
        let recorder = renamed(case, true);
        for cut in 0..recorder.cut_points() {
            for seed in 0..if recorder.uncertain(cut) > 0 { 4 } else { 1 } {
                let what = format!("cut {cut}, seed {seed}, {:?} to {:?}", case.from, case.to);
                let mode = [Mode::All, Mode::None, Mode::Subset, Mode::Torn][seed as usize];
                let mem = Arc::new(recorder.state(cut, seed, mode));
                let outcome = run_check(&mem, check::Mode::Yes);
                if ended_renames(&outcome) > 0 {
                    judge::assert_clean(&mem, &what);
                }
                let vfs = mount_read_only(&mem);
                let (old, new) = (at(&vfs, case.from), at(&vfs, case.to));
                assert!(old.is_none() || old != new, "{what}: the file has both names");
                assert!(recorder.marks_before(cut).is_empty() || old.is_some() || new.is_some(), "{what}: no name");
            }
        }
    }
}

/// Returns an unmounted volume with a file of two links, `one` and `two`.
fn with_two_links() -> (Arc<MemDisk>, Ino) {
    let mem = new_volume(1024, 8);
    let vfs = mount(&mem);
    let file = file_of(&vfs, ROOT, "one", NEW, 3000);
    vfs.link(&who(), file, ROOT, name("two")).unwrap();
    close(vfs, &mem);
    (mem, file)
}

fn assert_check_keeps_both(mem: &Arc<MemDisk>, file: Ino, what: &str) {
    for mode in [check::Mode::No, check::Mode::Yes] {
        assert_eq!(ended_renames(&run_check(mem, mode)), 0, "{what}");
    }
    judge::assert_clean(mem, what);
    let vfs = mount_read_only(mem);
    assert_eq!([ino_of(&vfs, ROOT, "one"), ino_of(&vfs, ROOT, "two")], [Some(file); 2], "{what}");
}

#[test]
fn a_check_removes_no_name_by_a_note_that_no_crash_of_moafs_left() {
    /// The superblock's fields, from the volume's first byte.
    const MNT_COUNT: u64 = 1024 + 0x34;
    const STATE: u64 = 1024 + 0x3A;
    let (mem, file) = with_two_links();
    plant(&mem, file, (ROOT, "one"), (ROOT, "two"));
    assert_check_keeps_both(&mem, file, "the volume was unmounted");
    let (mem, file) = with_two_links();
    plant(&mem, file, (ROOT, "one"), (ROOT, "two"));
    // Something else is to be repaired: the sweeps after it see the mark of a repair.
    poke16(&mem, STATE, 1);
    poke16(&mem, slot_at(&mem, file) + LINKS, 3);
    assert_check_keeps_both(&mem, file, "the volume was unmounted with a wrong count");
    let (mem, file) = with_two_links();
    poke16(&mem, STATE, 0);
    poke16(&mem, MNT_COUNT, 7);
    plant(&mem, file, (ROOT, "one"), (ROOT, "two"));
    assert_check_keeps_both(&mem, file, "another driver has crashed");
    let (mem, file) = with_two_links();
    poke16(&mem, STATE, 0);
    plant(&mem, file, (ROOT, "gone"), (ROOT, "two"));
    assert_check_keeps_both(&mem, file, "the old name is not there");
    let (mem, file) = with_two_links();
    poke16(&mem, STATE, 0);
    plant(&mem, file, (ROOT, "one"), (ROOT, "other"));
    assert_check_keeps_both(&mem, file, "the new name is not there");
    let (mem, file) = with_two_links();
    poke16(&mem, STATE, 0);
    plant(&mem, file, (ROOT, "one"), (file, "two"));
    assert_check_keeps_both(&mem, file, "the directory is none");
}

#[test]
fn a_check_after_an_interrupted_exchange_keeps_a_name_of_either_file() {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(volume(&CASES[3]), rt.clone()));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let [a, b] = ["a", "b"].map(|dir| ino_of(&vfs, ROOT, dir).unwrap());
        file_of(&vfs, a, "one", OLD, 3000);
        file_of(&vfs, b, "two", NEW, 3000);
        vfs.sync().unwrap();
        recorder.mark(0);
        vfs.rename(&who(), (a, name("one")), (b, name("two")), RenameMode::Exchange).unwrap();
        vfs.sync().unwrap();
        drop(vfs);
    });
    for cut in (0..recorder.cut_points()).filter(|cut| !recorder.marks_before(*cut).is_empty()) {
        for (seed, mode) in (0..).zip([Mode::All, Mode::None, Mode::Subset, Mode::Torn]) {
            let mem = Arc::new(recorder.state(cut, seed, mode));
            assert_eq!(ended_renames(&run_check(&mem, check::Mode::Yes)), 0);
            let vfs = mount(&mem);
            let home = ino_of(&vfs, ROOT, "lost+found").unwrap();
            let mut files: Vec<Ino> = names_in(&vfs, home).iter().filter_map(|name| ino_of(&vfs, home, name)).collect();
            files.extend([at(&vfs, ("a", "one")), at(&vfs, ("b", "two"))].into_iter().flatten());
            for fill in [OLD, NEW] {
                let is_it =
                    |file: &&Ino| vfs.stat(**file).unwrap().attr.size == 3000 && content(&vfs, **file)[0] == fill;
                assert!(files.iter().any(|file| is_it(&file)), "cut {cut}, seed {seed}: {fill:#x} has no name");
            }
            close(vfs, &mem);
        }
    }
}

/// Stores a note of a rename in an inode on the disk, as the mount that crashed would have done.
fn plant(mem: &Arc<MemDisk>, ino: Ino, (from, old): (Ino, &str), (to, new): (Ino, &str)) {
    let slot = slot_at(mem, ino);
    let ext = mount_read_only(mem);
    let (old, new) = (ext.format().marks.of_old(old.as_bytes()), ext.format().marks.of_new(new.as_bytes()));
    poke32(mem, slot + 0x24, to.0 as u32);
    poke16(mem, slot + 0x7C, old.get());
    poke16(mem, slot + 0x7E, new.get());
    poke32(mem, slot + 0x98, from.0 as u32);
}

#[test]
fn a_note_in_a_directory_says_nothing() {
    let mem = new_volume(1024, 8);
    let vfs = mount(&mem);
    let dir = make(&vfs, ROOT, "dir", FileKind::Directory);
    let file = file_of(&vfs, dir, "file", NEW, 3000);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    plant(&mem, dir, (ROOT, "dir"), (dir, "."));
    let vfs = mount(&mem);
    assert_eq!(at(&vfs, ("dir", "file")), Some(file));
    run_background_step(&vfs);
    assert_eq!(at(&vfs, ("dir", "file")), Some(file));
    close(vfs, &mem);
}

#[test]
fn a_note_that_names_no_names_of_the_file_removes_nothing() {
    let mem = new_volume(1024, 8);
    let vfs = mount(&mem);
    let dir = make(&vfs, ROOT, "dir", FileKind::Directory);
    let file = file_of(&vfs, dir, "file", NEW, 3000);
    vfs.link(&who(), file, ROOT, name("link")).unwrap();
    let other = file_of(&vfs, ROOT, "other", NEW, 3000);
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let far = Ino(u32::MAX.into());
    for (from, to) in [
        ((dir, "file"), (dir, "file")),
        ((dir, "file"), (dir, "link")),
        ((ROOT, "other"), (ROOT, "link")),
        ((Ino(0), "file"), (Ino(0), "link")),
        ((Ino(1), "file"), (Ino(7), "link")),
        ((file, "file"), (other, "link")),
        ((far, "file"), (ROOT, "link")),
        ((dir, "file"), (far, "link")),
    ] {
        let mem = Arc::new(mem.snapshot());
        plant(&mem, file, from, to);
        let vfs = mount(&mem);
        assert_eq!(
            (at(&vfs, ("dir", "file")), ino_of(&vfs, ROOT, "link")),
            (Some(file), Some(file)),
            "{from:?} {to:?}"
        );
        assert_eq!(vfs.stat(file).unwrap().attr.nlink, 2);
        close(vfs, &mem);
    }
}

/// Returns two names whose rename leaves a note that one of them fits twice: as the old and as the new name.
fn names_alike(vfs: &Vfs<Ext>) -> (String, String) {
    let marks = vfs.format().marks;
    let old = "file.new".to_owned();
    let mark = marks.of_old(old.as_bytes());
    let new = (0..).map(|n| format!("file.{n}")).find(|new| marks.of_old(new.as_bytes()) == mark);
    (old, new.expect("of 65535 names one has the mark"))
}

#[test]
fn a_rename_between_names_of_the_same_mark_is_ended() {
    for turned in [false, true] {
        let mem = new_volume(1024, 8);
        let vfs = mount(&mem);
        let (old, new) = names_alike(&vfs);
        let (old, new) = if turned { (new, old) } else { (old, new) };
        let file = file_of(&vfs, ROOT, &old, NEW, 3000);
        vfs.link(&who(), file, ROOT, name(&new)).unwrap();
        vfs.sync().unwrap();
        let mem = crash(vfs, &mem);
        plant(&mem, file, (ROOT, &old), (ROOT, &new));
        let vfs = mount(&mem);
        assert_eq!((ino_of(&vfs, ROOT, &old), ino_of(&vfs, ROOT, &new)), (None, Some(file)));
        close(vfs, &mem);
    }
}

#[test]
fn a_volume_that_damage_turned_read_only_is_still_read_after_an_interrupted_exchange() {
    let mem = new_volume(1024, 8);
    let vfs = mount(&mem);
    let home = ino_of(&vfs, ROOT, "lost+found").unwrap();
    let file = file_of(&vfs, ROOT, "file", NEW, 3000);
    let temporary = temporary_name(&vfs, file, (ROOT, "gone"), file, (ROOT, "gone"));
    vfs.link(&who(), file, home, name(&temporary)).unwrap();
    let damaged = file_of(&vfs, ROOT, "damaged", OLD, 3000);
    vfs.link(&who(), damaged, ROOT, name("link")).unwrap();
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    poke16(&mem, slot_at(&mem, damaged) + LINKS, 1);
    let vfs = mount(&mem);
    // The look-up that comes across the damage may fail.
    let _ = ino_of(&vfs, ROOT, "file");
    assert!(vfs.failed().is_some_and(|reason| reason.contains("is one name more")));
    assert_eq!(ino_of(&vfs, ROOT, "file"), Some(file));
    assert!(names_in(&vfs, ROOT).contains(&"file".to_owned()));
    assert_eq!(content(&vfs, file), vec![NEW; 3000]);
}

// -- many at once

/// Moves files from one directory to another, and cuts the power when all of them have both names.
fn cut_many(count: u32) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(256 << 11));
    let options = MkfsOptions {
        block_size: Some(4096),
        inodes: Some(u64::from(count) + 100),
        ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
    };
    mkfs(&*mem, &options).expect("mkfs");
    let vfs = mount(&mem);
    let (a, b) = (make(&vfs, ROOT, "a", FileKind::Directory), make(&vfs, ROOT, "b", FileKind::Directory));
    let move_all = |from: Ino, to: Ino| {
        for n in 0..count {
            let text = format!("file-{n}");
            vfs.rename(&who(), (from, name(&text)), (to, name(&text)), RenameMode::Replace).unwrap();
        }
    };
    // There is room in both directories afterwards: the moves do not wait for each other.
    for n in 0..count {
        make(&vfs, b, &format!("file-{n}"), FileKind::Regular);
    }
    move_all(b, a);
    vfs.sync().unwrap();
    let before = vfs.format().meta.highest();
    move_all(a, b);
    // The inodes, then the new names.
    vfs.format().sweep(Level(before.0 + 2)).unwrap();
    crash(vfs, &mem)
}

#[test]
fn many_renames_that_a_crash_interrupted_are_ended_together() {
    const COUNT: u32 = 10_000;
    /// One by one they took longer, since each reads both directories; together they take a hundredth of it.
    const TIME_MAX: Duration = Duration::from_secs(5);
    let mem = cut_many(COUNT);
    let all = COUNT as usize + 2;
    let vfs = mount_read_only(&mem);
    let [a, b] = ["a", "b"].map(|dir| ino_of(&vfs, ROOT, dir).unwrap());
    assert_eq!([a, b].map(|dir| names_in(&vfs, dir).len()), [all, all], "all have both names");
    let vfs = mount(&mem);
    let began = Instant::now();
    assert_eq!((at(&vfs, ("a", "file-77")), names_in(&vfs, a).len(), names_in(&vfs, b).len()), (None, 2, all));
    assert!(began.elapsed() < TIME_MAX, "it took {:?}", began.elapsed());
    close(vfs, &mem);
}

// -- directories that grow

/// Fills a directory of many blocks to the brim, then moves files into it, for which it grows. Returns the recorder.
fn moved_into_a_growing_directory() -> Arc<CrashRecorder> {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(new_volume(1024, 8), rt.clone()));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let (a, b) = (make(&vfs, ROOT, "a", FileKind::Directory), make(&vfs, ROOT, "b", FileKind::Directory));
        // Its last block is reached by an indirect one, and then it has no room for a long name.
        for n in 0.. {
            make(&vfs, b, &format!("{n:0>200}"), FileKind::Regular);
            if vfs.stat(b).unwrap().attr.size == 14 << 10 {
                break;
            }
        }
        for n in 0..3 {
            make(&vfs, b, &format!("{n:a>200}"), FileKind::Regular);
        }
        // Each old name lies in a sector of its own.
        for n in 0..MOVED {
            file_of(&vfs, a, &format!("{n:c>250}"), NEW, 100);
        }
        vfs.sync().unwrap();
        recorder.mark(0);
        for n in 0..MOVED {
            let (old, new) = (format!("{n:c>250}"), format!("{n:b>200}"));
            vfs.rename(&who(), (a, name(&old)), (b, name(&new)), RenameMode::Replace).unwrap();
        }
        vfs.sync().unwrap();
        drop(vfs);
    });
    recorder
}

const MOVED: u32 = 6;

#[test]
fn a_file_that_moves_into_a_growing_directory_always_has_a_name() {
    let recorder = moved_into_a_growing_directory();
    for cut in 0..recorder.cut_points() {
        let seeds = if recorder.marks_before(cut).is_empty() { 0 } else { 12 };
        for seed in 0..seeds {
            let (vfs, mem) = mount_state(&recorder, cut, seed);
            for n in 0..MOVED {
                let (old, new) = (format!("{n:c>250}"), format!("{n:b>200}"));
                let found = at(&vfs, ("a", &old)).or_else(|| at(&vfs, ("b", &new)));
                assert!(found.is_some(), "cut {cut}, seed {seed}: file {n} has lost both names");
            }
            close(vfs, &mem);
        }
    }
}

// -- a name that comes back

/// Has a file replaced by a rename, removed and made anew in another sector, all before the first change is on the
/// disk. Returns the recorder.
fn made_anew_after_a_replacement() -> Arc<CrashRecorder> {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(new_volume(1024, 8), rt.clone()));
    let disk: SharedDisk = recorder.clone();
    virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let dir = make(&vfs, ROOT, "dir", FileKind::Directory);
        // The file lies in the second sector, and the first one has room.
        let long = "f".repeat(250);
        make(&vfs, dir, &long, FileKind::Regular);
        make(&vfs, dir, &"s".repeat(216), FileKind::Regular);
        make(&vfs, dir, "file", FileKind::Regular);
        vfs.unlink(&who(), dir, name(&long)).unwrap();
        make(&vfs, ROOT, "new-0", FileKind::Regular);
        vfs.sync().unwrap();
        recorder.mark(0);
        // Changes that wait for these renames are late.
        for n in 0..4 {
            let (old, new) = (format!("new-{n}"), format!("new-{}", n + 1));
            vfs.rename(&who(), (ROOT, name(&old)), (ROOT, name(&new)), RenameMode::Replace).unwrap();
        }
        vfs.rename(&who(), (ROOT, name("new-4")), (dir, name("file")), RenameMode::Replace).unwrap();
        vfs.unlink(&who(), dir, name("file")).unwrap();
        make(&vfs, dir, "file", FileKind::Regular);
        vfs.sync().unwrap();
        drop(vfs);
    });
    recorder
}

#[test]
fn a_name_that_was_replaced_and_removed_is_not_there_twice_when_it_comes_back() {
    let recorder = made_anew_after_a_replacement();
    for cut in (0..recorder.cut_points()).filter(|cut| !recorder.marks_before(*cut).is_empty()) {
        for (seed, mode) in (0..).zip([Mode::All, Mode::None, Mode::Subset, Mode::Torn]) {
            let mem = Arc::new(recorder.state(cut, seed, mode));
            let vfs = mount_read_only(&mem);
            let names = names_in(&vfs, ino_of(&vfs, ROOT, "dir").unwrap());
            assert!(names.iter().filter(|name| *name == "file").count() < 2, "cut {cut}, seed {seed}: {names:?}");
        }
    }
}
