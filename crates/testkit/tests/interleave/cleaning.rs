//! Cleaning beside removals.

use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_runtime::Rt;
use moafs_testkit::family::F2fs;
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

use super::{FormatOf, check, each_seed, make_file, name_of, play, scheduler, volume};

/// Directories, and the names that each gets: about six to a block. One to a block is left.
const DIRS: usize = 6;
const NAMES: usize = 80;
const SLOTS_PER_BLOCK: u64 = 214;
/// Blocks that lie behind the directories' in their section, and go.
const FILLER_BLOCKS: usize = 1100;

type Volume = Vfs<FormatOf<F2fs>>;

fn make<F: Format>(vfs: &Vfs<F>, dir: Ino, name: &str, kind: FileKind) -> Ino {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), dir, name_of(name), &new).expect("create").ino;
    vfs.forget(ino, 1);
    ino
}

fn dir_name(number: usize) -> String {
    format!("dir-{number}")
}

/// Leaves directories in a section that is worth to be cleaned.
fn prepare(vfs: &Volume) {
    let (root, user) = (vfs.shape().root, Credentials::root());
    for dir in 0..DIRS {
        let ino = make(vfs, root, &dir_name(dir), FileKind::Directory);
        for number in 0..NAMES {
            make(vfs, ino, &format!("{number:0240}"), FileKind::Fifo);
        }
        let mut last = None;
        for (name, cookie) in names(vfs, &dir_name(dir)).expect("they are listed") {
            let block = cookie / SLOTS_PER_BLOCK;
            if last.replace(block) == Some(block) {
                vfs.unlink(&user, ino, name_of(&name)).expect("unlink");
            }
        }
    }
    vfs.sync().expect("sync");
    // Of a kind that shares the log of directories.
    let filler = make_file(vfs, "filler.db");
    vfs.write(&user, filler, 0, &vec![7; FILLER_BLOCKS * vfs.shape().block_size as usize], false).expect("write");
    vfs.sync().expect("sync");
    vfs.forget(filler, 1);
    vfs.unlink(&user, root, name_of("filler.db")).expect("unlink");
    (0..10).for_each(|_| vfs.run_background_step());
}

fn prepared() -> Option<Arc<MemDisk>> {
    let (runtime, disk) = (scheduler::<F2fs>(0), Arc::new(volume::<F2fs>()?));
    play::<F2fs, _>(0, &runtime, disk.clone(), |_, vfs| {
        prepare(&vfs);
        vfs.close().expect("unmount");
    });
    Some(disk)
}

/// Returns the names in a directory with their cookies.
fn names(vfs: &Volume, dir: &str) -> moafs_vfs::Result<Vec<(String, u64)>> {
    let ino = vfs.lookup(&Credentials::root(), vfs.shape().root, name_of(dir))?.ino;
    vfs.forget(ino, 1);
    let (_, node) = vfs.format().load(ino)?;
    let mut found = Vec::new();
    let mut note = |name: &Name, _, cookie: Cookie| {
        found.push((String::from_utf8_lossy(name.as_bytes()).into_owned(), cookie.0));
        true
    };
    vfs.format().list(&node, Cookie::START, &mut note)?;
    found.retain(|(name, _)| !name.starts_with('.'));
    Ok(found)
}

/// Plays of each seed: few come to the steps between which a switch does harm.
const PLAYS: u64 = 6;

/// Cleans while another task does `work`, then compares the names that are left.
fn beside_cleaning(work: fn(&Volume), left: fn(&Volume) -> Result<(), String>) {
    let Some(prepared) = prepared() else { return };
    each_seed(|seed| (seed * PLAYS..(seed + 1) * PLAYS).try_for_each(|seed| play_once(&prepared, seed, work, left)));
}

fn play_once(
    prepared: &MemDisk,
    seed: u64,
    work: fn(&Volume),
    left: fn(&Volume) -> Result<(), String>,
) -> Result<(), String> {
    let (runtime, disk) = (scheduler::<F2fs>(seed), Arc::new(prepared.snapshot()));
    let ended = play::<F2fs, _>(seed, &runtime, disk.clone(), move |rt: &Rt, vfs| {
        let worker = vfs.clone();
        let task = rt.spawn("work", Box::new(move || work(&worker)));
        let clean = |_| {
            vfs.format().shrink(0);
            vfs.format().clean()
        };
        let cleaned: moafs_vfs::Result<Vec<u32>> = (0..3).map(clean).collect();
        task.join(&**rt);
        let cleaned = cleaned.map_err(|error| error.to_string())?;
        if seed == 0 && cleaned == [0; 3] {
            return Err("nothing was cleaned".to_owned());
        }
        left(&vfs)?;
        vfs.close().map_err(|error| error.to_string())
    });
    ended.and_then(|()| check::<F2fs>(&disk))
}

fn unlink_all(vfs: &Volume, dir: &str) {
    let user = Credentials::root();
    let ino = vfs.lookup(&user, vfs.shape().root, name_of(dir)).expect("lookup").ino;
    for (name, _) in names(vfs, dir).expect("they are listed") {
        vfs.unlink(&user, ino, name_of(&name)).expect("unlink");
    }
    vfs.forget(ino, 1);
}

#[test]
fn blocks_of_f2fs_directories_that_lose_their_names() {
    let work = |vfs: &Volume| (0..DIRS).for_each(|dir| unlink_all(vfs, &dir_name(dir)));
    beside_cleaning(work, |vfs| {
        for dir in 0..DIRS {
            let found = names(vfs, &dir_name(dir)).map_err(|error| error.to_string())?;
            if !found.is_empty() {
                return Err(format!("{} removed names are found in directory {dir}", found.len()));
            }
        }
        Ok(())
    });
}

#[test]
fn f2fs_directories_that_are_removed() {
    let work = |vfs: &Volume| {
        for dir in 0..DIRS {
            unlink_all(vfs, &dir_name(dir));
            let dir = dir_name(dir);
            vfs.rmdir(&Credentials::root(), vfs.shape().root, name_of(&dir)).expect("rmdir");
        }
    };
    beside_cleaning(work, |_| Ok(()));
}
