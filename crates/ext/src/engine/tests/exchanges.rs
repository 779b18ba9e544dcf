//! Exchanges of names, and directories moved over directories, that a crash interrupts, also with further links and
//! further changes of the same names: afterwards the names are those of a moment between two calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::Vfs;
use moafs_vfs::api::RenameMode;
use moafs_vfs::types::Cookie;

use super::recovery::{
    ROOT, close, crash, file_of, make, mount, mount_read_only, new_volume, options, run_background_step, run_check,
    slot_at, who,
};
use super::*;
use crate::check;
use crate::format::dir as codec;
use crate::format::exchange::NameAt;
use crate::format::{self, InodeNo};

/// A call. A name is a directory in the root and a name in it, or a name in the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Dir(&'static str),
    File(&'static str),
    Link(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
}

use Call::{Dir, Exchange, File, Link, Rename, Rmdir, Unlink};

/// The names of a volume, and the inode that each leads to.
type Names = BTreeMap<String, Ino>;

fn split(path: &str) -> (Option<&str>, &str) {
    path.split_once('/').map_or((None, path), |(dir, text)| (Some(dir), text))
}

fn find(vfs: &Vfs<Ext>, path: &str) -> Ino {
    let (dir, text) = split(path);
    let dir = dir.map_or(ROOT, |dir| look_up(vfs, ROOT, dir));
    look_up(vfs, dir, text)
}

fn look_up(vfs: &Vfs<Ext>, dir: Ino, text: &str) -> Ino {
    let ino = vfs.lookup(&who(), dir, name(text)).expect("it is there").ino;
    vfs.forget(ino, 1);
    ino
}

fn call(vfs: &Vfs<Ext>, call: Call) {
    let at = |path: &'static str| {
        let (dir, text) = split(path);
        (dir.map_or(ROOT, |dir| look_up(vfs, ROOT, dir)), name(text))
    };
    let rename = |from, to, mode| vfs.rename(&who(), at(from), at(to), mode).unwrap();
    match call {
        Dir(path) => drop(make(vfs, at(path).0, split(path).1, FileKind::Directory)),
        File(path) => drop(file_of(vfs, at(path).0, split(path).1, 7, 100)),
        Link(old, new) => drop(vfs.link(&who(), find(vfs, old), at(new).0, at(new).1).unwrap()),
        Exchange(from, to) => rename(from, to, RenameMode::Exchange),
        Rename(from, to) => rename(from, to, RenameMode::Replace),
        Unlink(path) => vfs.unlink(&who(), at(path).0, at(path).1).unwrap(),
        Rmdir(path) => vfs.rmdir(&who(), at(path).0, at(path).1).unwrap(),
    }
}

/// Returns the name that an inode gets in lost+found while its own is being taken.
pub(super) fn temporary_name(
    vfs: &Vfs<Ext>,
    waiting: Ino,
    taken: (Ino, &str),
    taker: Ino,
    left: (Ino, &str),
) -> String {
    let (marks, inode) = (vfs.format().marks, |ino: Ino| InodeNo(ino.0 as u32));
    let at = |(dir, text): (Ino, &str)| NameAt { dir: inode(dir), hash: marks.hash(text.as_bytes()) };
    let told =
        format::exchange::Exchange { waiting: inode(waiting), taken: at(taken), taker: inode(taker), left: at(left) };
    String::from_utf8(told.temporary_name(marks)).unwrap()
}

/// Returns all names below the root, but lost+found itself.
fn names_of(vfs: &Vfs<Ext>) -> Names {
    let mut found = Names::new();
    let mut todo = vec![(ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut note = |entry: moafs_vfs::api::ListEntry<'_>| {
            let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            if text != "." && text != ".." {
                let below = format!("{path}{text}");
                if entry.kind == Some(FileKind::Directory) {
                    todo.push((entry.ino, format!("{below}/")));
                }
                if below != "lost+found" {
                    found.insert(below, entry.ino);
                }
            }
            true
        };
        vfs.list(&who(), dir, Cookie::START, &mut note).unwrap();
    }
    found
}

/// Makes the volume that a case begins with: names between those of the case, so that these lie in several sectors.
fn volume(before: &[Call]) -> Arc<MemDisk> {
    let mem = new_volume(1024, 1);
    let vfs = mount(&mem);
    for made in before {
        call(&vfs, *made);
        if let Dir(dir) = made {
            let dir = find(&vfs, dir);
            for n in 0..3 {
                let between = format!("{n:-<220}");
                make(&vfs, dir, &between, FileKind::Regular);
                vfs.unlink(&who(), dir, name(&between)).unwrap();
            }
        }
    }
    vfs.close().unwrap();
    mem
}

/// The states of the names between the calls, and every write that reached the device.
fn run(mem: Arc<MemDisk>, calls: &[Call]) -> (Vec<Names>, Arc<CrashRecorder>) {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(mem, rt.clone()));
    let disk: SharedDisk = recorder.clone();
    let states = virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let mut states = vec![names_of(&vfs)];
        for one in calls {
            call(&vfs, *one);
            states.push(names_of(&vfs));
        }
        vfs.sync().unwrap();
        drop(vfs);
        states
    });
    (states, recorder)
}

/// Mounts a state that a cut left, with a recorder below, looks at its names, and lets recovery end. Returns the names
/// before and after that, and every write of recovery.
fn recovered(state: Arc<MemDisk>) -> ([Names; 2], Arc<CrashRecorder>) {
    let virt = Virtual::new(None);
    let rt: Rt = virt.clone();
    let recorder = Arc::new(CrashRecorder::over(state, rt.clone()));
    let disk: SharedDisk = recorder.clone();
    let names = virt.run(|| {
        let ext = Ext::open(Arc::clone(&disk), rt.clone(), OpenOptions::default()).expect("it opens");
        let vfs = Vfs::new(ext, disk, rt.clone(), options());
        let told = names_of(&vfs);
        run_background_step(&vfs);
        let names = names_of(&vfs);
        vfs.sync().unwrap();
        assert_eq!(vfs.failed(), None);
        drop(vfs);
        [told, names]
    });
    (names, recorder)
}

const MODES: [Mode; 4] = [Mode::All, Mode::None, Mode::Subset, Mode::Torn];

/// Cuts the power at every write of some calls, and again at every write of recovery.
fn judge_cuts(before: &[Call], calls: &[Call]) {
    judge_cuts_on(volume(before), before, calls);
}

fn judge_cuts_on(mem: Arc<MemDisk>, before: &[Call], calls: &[Call]) {
    let (states, recorder) = run(mem, calls);
    // A directory that moves has both names until all names were read.
    let moves = calls.iter().any(|call| matches!(call, Rename(from, _) if before.contains(&Dir(from))));
    let mut seen = BTreeSet::new();
    for cut in 0..recorder.cut_points() {
        for seed in 0..if recorder.uncertain(cut) > 0 { 8 } else { 1 } {
            let what = format!("cut {cut}, seed {seed}");
            let state = Arc::new(recorder.state(cut, seed, MODES[seed as usize % 4]));
            if !seen.insert(hash(&state)) {
                continue;
            }
            let ([told, names], recovery) = recovered(Arc::new(state.snapshot()));
            assert!(states.contains(&names), "{before:?}, {calls:?}, {what}: {names:#?}\n{states:#?}");
            assert!(moves || told == names, "{before:?}, {calls:?}, {what}: names change after they were told");
            for again in 0..recovery.cut_points() {
                let seed = seed + again as u64;
                let state = recovery.state(again, seed, MODES[seed as usize % 4]);
                let ([_, after], _) = recovered(Arc::new(state));
                assert_eq!(after, names, "{before:?}, {calls:?}, {what}, cut again at {again}");
            }
            close(mount(&state), &state);
        }
    }
}

fn hash(state: &MemDisk) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    state.to_bytes().hash(&mut hasher);
    hasher.finish()
}

/// Cuts the power at every write of some calls: a check then ends what was interrupted as a mount would. In lost+found
/// it may leave what a mount frees.
fn judge_checks(before: &[Call], calls: &[Call]) {
    let (states, recorder) = run(volume(before), calls);
    let outside = |names: &Names| -> Names {
        names
            .iter()
            .filter(|(name, _)| !name.starts_with("lost+found/"))
            .map(|(name, ino)| (name.clone(), *ino))
            .collect()
    };
    let states: Vec<Names> = states.iter().map(outside).collect();
    let mut seen = BTreeSet::new();
    for cut in 0..recorder.cut_points() {
        for seed in 0..if recorder.uncertain(cut) > 0 { 8 } else { 1 } {
            let what = format!("{before:?}, {calls:?}, cut {cut}, seed {seed}");
            let state = Arc::new(recorder.state(cut, seed, MODES[seed as usize % 4]));
            if !seen.insert(hash(&state)) {
                continue;
            }
            let wanted = outside(&recovered(Arc::new(state.snapshot())).0[1]);
            for mode in [check::Mode::Preen, check::Mode::Yes] {
                let state = Arc::new(state.snapshot());
                let unchanged = state.to_bytes();
                run_check(&state, check::Mode::No);
                assert!(state.to_bytes() == unchanged, "{what}: a check without repairs has written");
                let outcome = run_check(&state, mode);
                assert!(!outcome.errors_left, "{what}, {mode:?}: {outcome:#?}");
                judge::assert_clean(&state, &what);
                let vfs = mount(&state);
                let names = outside(&names_of(&vfs));
                assert_eq!(names, wanted, "{what}, {mode:?}: {outcome:#?}");
                assert!(states.contains(&names), "{what}");
                close(vfs, &state);
            }
        }
    }
}

#[test]
fn a_check_ends_an_interrupted_exchange_as_a_mount_does() {
    for exchange in [Exchange("a/w", "b/t"), Exchange("b/t", "a/w")] {
        judge_checks(&FILES, &[exchange]);
        judge_checks(&with(&[Link("a/w", "b/w2"), Link("b/t", "a/t2")]), &[exchange]);
    }
    let directories = with(&[Dir("a/d"), Dir("b/e"), File("a/x")]);
    judge_checks(&directories, &[Exchange("a/d", "b/e")]);
    judge_checks(&directories, &[Exchange("a/d", "b/t")]);
    judge_checks(&directories, &[Exchange("b/t", "a/d")]);
    judge_checks(&directories, &[Exchange("a/w", "a/x")]);
    judge_checks(&directories, &[Exchange("a/w", "b/t"), Exchange("a/x", "a/w")]);
}

/// Two files with one name each, in two directories.
const FILES: [Call; 4] = [Dir("a"), Dir("b"), File("a/w"), File("b/t")];

fn with(more: &[Call]) -> Vec<Call> {
    [&FILES, more].concat()
}

#[test]
fn an_exchange_of_files_with_further_links_is_done_or_not() {
    let links: [&[Call]; 6] = [
        &[],
        &[Link("a/w", "a/w2")],
        &[Link("b/t", "b/t2")],
        &[Link("a/w", "b/w2")],
        &[Link("a/w", "w2"), Link("b/t", "t2")],
        &[Link("a/w", "b/w2"), Link("b/t", "a/t2"), Link("b/t", "b/t3")],
    ];
    for links in links {
        for exchange in [Exchange("a/w", "b/t"), Exchange("b/t", "a/w")] {
            judge_cuts(&with(links), &[exchange]);
        }
    }
}

#[test]
fn an_exchange_of_a_directory_with_a_file_that_has_further_links_is_done_or_not() {
    for more in [&[Dir("a/d")] as &[Call], &[Dir("a/d"), Link("b/t", "b/t2")], &[Dir("a/d"), Link("b/t", "a/t2")]] {
        for exchange in [Exchange("a/d", "b/t"), Exchange("b/t", "a/d")] {
            judge_cuts(&with(more), &[exchange]);
        }
    }
}

#[test]
fn an_exchange_within_a_directory_is_done_or_not() {
    let before = with(&[File("a/t"), Link("a/w", "a/w2"), Link("a/t", "a/t2"), Dir("a/d"), Dir("a/e")]);
    let pairs = [("a/w", "a/t"), ("a/t", "a/w"), ("a/d", "a/e"), ("a/d", "a/w"), ("a/w", "a/d"), ("a/w", "a/t2")];
    for (from, to) in pairs {
        judge_cuts(&before, &[Exchange(from, to)]);
    }
}

/// Has the header of the last name in directory `a` lie in two sectors, as other drivers write it.
fn split_the_last_header(mem: &Arc<MemDisk>) {
    /// The first pointer of an inode, from the start of its slot.
    const FIRST_POINTER: u64 = 0x28;
    let (vfs, mut pointer, mut block) = (mount_read_only(mem), [0; 4], [0; 1024]);
    mem.peek(slot_at(mem, find(&vfs, "a")) + FIRST_POINTER, &mut pointer);
    let at = u64::from(u32::from_le_bytes(pointer)) * 1024;
    mem.peek(at, &mut block);
    let form = vfs.format().form;
    let entries: Vec<_> =
        codec::records(&block, form).map(|entry| entry.unwrap()).filter(|entry| entry.is_used()).collect();
    let mut made = Vec::new();
    for entry in &entries {
        codec::append(&mut made, entry.inode, entry.type_byte, entry.name);
    }
    let last = made.len() - codec::record_bytes(entries[entries.len() - 1].name.len());
    let before = last - codec::record_bytes(entries[entries.len() - 2].name.len());
    // The entry before reaches up to the header, four bytes before the sector's end, and the last one to the block's.
    let header = made.split_off(last);
    made.resize(1024, 0);
    made[508..508 + header.len()].copy_from_slice(&header);
    made[508 + 4..508 + 6].copy_from_slice(&516_u16.to_le_bytes());
    made[before + 4..before + 6].copy_from_slice(&((508 - before) as u16).to_le_bytes());
    mem.poke(at, &made);
}

#[test]
fn an_exchange_of_a_name_whose_header_lies_in_two_sectors_is_done_or_not() {
    let before = [Dir("a"), Dir("b"), Dir("b/t"), File("a/x"), File("a/w"), Link("a/w", "b/w2")];
    for exchange in [Exchange("a/w", "b/t"), Exchange("b/t", "a/w")] {
        let mem = volume(&before);
        split_the_last_header(&mem);
        judge::assert_clean(&mem, "as another driver writes it");
        judge_cuts_on(mem, &before, &[exchange]);
    }
}

#[test]
fn directories_change_places_or_not() {
    let before = with(&[Dir("a/d"), Dir("b/e")]);
    judge_cuts(&before, &[Exchange("a/d", "b/e")]);
    judge_cuts(&before, &[Rename("a/d", "b/e")]);
    judge_cuts(&with(&[Dir("a/d"), Dir("a/e")]), &[Rename("a/d", "a/e")]);
}

#[test]
fn names_that_are_new_are_exchanged_or_not() {
    for (from, to) in [("a/n", "b/t"), ("b/t", "a/n")] {
        judge_cuts(&FILES, &[File("a/n"), Exchange(from, to)]);
        judge_cuts(&FILES, &[Rename("a/w", "a/n"), Exchange(from, to)]);
        judge_cuts(&FILES, &[Link("a/w", "a/n"), Exchange(from, to)]);
    }
    for (from, to) in [("c/n", "b/t"), ("b/t", "c/n")] {
        judge_cuts(&FILES, &[Dir("c"), File("c/n"), Exchange(from, to)]);
        judge_cuts(&FILES, &[Dir("c"), Rename("a/w", "c/n"), Exchange(from, to)]);
    }
}

#[test]
fn a_name_that_is_removed_after_an_exchange_takes_no_other_with_it() {
    for (from, to) in [("a/w", "b/t"), ("b/t", "a/w")] {
        for gone in [from, to] {
            let dir = split(gone).0.unwrap();
            judge_cuts(&FILES, &[Exchange(from, to), Unlink(gone)]);
            judge_cuts(&FILES, &[Exchange(from, to), Unlink(gone), Rmdir(dir)]);
            judge_cuts(&with(&[Link(gone, "link")]), &[Exchange(from, to), Unlink(gone), Rmdir(dir)]);
        }
    }
}

#[test]
fn a_name_that_is_replaced_or_made_anew_after_an_exchange_takes_no_other_with_it() {
    let before = with(&[File("a/x"), Link("a/w", "b/w2")]);
    for (from, to) in [("a/w", "b/t"), ("b/t", "a/w")] {
        for gone in [from, to] {
            judge_cuts(&before, &[Exchange(from, to), Rename("a/x", gone)]);
            judge_cuts(&before, &[Exchange(from, to), Rename(gone, "a/x")]);
            judge_cuts(&before, &[Exchange(from, to), Rename(gone, "y")]);
            judge_cuts(&before, &[Exchange(from, to), Unlink(gone), File(gone)]);
            judge_cuts(&before, &[Exchange(from, to), Unlink(gone), Link("a/x", gone)]);
        }
    }
}

#[test]
fn several_exchanges_at_once_are_done_one_after_the_other() {
    let before = with(&[File("a/x"), File("b/y"), Link("a/w", "b/w2"), Dir("a/d")]);
    judge_cuts(&before, &[Exchange("a/w", "b/t"), Exchange("a/w", "b/t")]);
    judge_cuts(&before, &[Exchange("a/w", "b/t"), Exchange("b/t", "a/w")]);
    judge_cuts(&before, &[Exchange("a/w", "b/t"), Exchange("b/t", "a/x")]);
    judge_cuts(&before, &[Exchange("a/w", "b/t"), Exchange("a/x", "a/w")]);
    judge_cuts(&before, &[Exchange("a/w", "b/w2"), Exchange("b/w2", "b/t")]);
    judge_cuts(&before, &[Exchange("a/d", "b/t"), Exchange("b/t", "a/w")]);
    judge_cuts(&before, &[Exchange("a/d", "b/w2"), Exchange("a/w", "b/w2"), Exchange("a/d", "a/w")]);
}

#[test]
fn what_callers_change_after_a_crash_is_not_taken_for_a_part_of_the_exchange() {
    let (_, recorder) = run(volume(&FILES), &[Exchange("a/w", "b/t")]);
    for cut in 0..recorder.cut_points() {
        let state = recorder.state(cut, 0, Mode::All);
        for gone in ["a/w", "b/t"] {
            let (states, recorder) = run(Arc::new(state.snapshot()), &[Unlink(gone)]);
            for again in 0..recorder.cut_points() {
                for (seed, mode) in (0..).zip(MODES) {
                    let state = Arc::new(recorder.state(again, seed, mode));
                    let ([_, names], _) = recovered(Arc::clone(&state));
                    assert!(states.contains(&names), "{gone}, cuts {cut}, {again}, seed {seed}: {names:#?}");
                }
            }
        }
    }
}

#[test]
fn a_temporary_name_of_another_mount_stays() {
    let mem = volume(&FILES);
    let vfs = mount(&mem);
    let home = look_up(&vfs, ROOT, "lost+found");
    let temporary = temporary_name(&vfs, find(&vfs, "a/w"), (ROOT, "w"), find(&vfs, "b/t"), (ROOT, "t"));
    vfs.rename(&who(), (find(&vfs, "a"), name("w")), (home, name(&temporary)), RenameMode::Replace).unwrap();
    vfs.close().unwrap();
    let vfs = mount(&mem);
    call(&vfs, File("another"));
    vfs.sync().unwrap();
    let mem = crash(vfs, &mem);
    let ([_, names], _) = recovered(mem);
    assert!(names.contains_key(&format!("lost+found/{temporary}")), "the only name of a file is gone: {names:?}");
}
