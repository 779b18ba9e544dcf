//! Renames of files that a crash interrupts: afterwards a caller finds the old name or the new one, never both.

use std::sync::Arc;

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::Vfs;
use moafs_vfs::api::{ListEntry, RenameMode, SetAttr};
use moafs_vfs::types::Cookie;

use super::recovery::{
    ROOT, close, content, crash, file_of, make, mount, new_volume, options, run_background_step, who,
};
use super::*;

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
