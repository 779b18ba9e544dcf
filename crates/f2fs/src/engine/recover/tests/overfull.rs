//! A roll-forward that does not fit on the volume, and the ways out.

use std::sync::Arc;

use moafs_disk::{MemDisk, SharedDisk};
use moafs_runtime::Live;
use moafs_vfs::types::FileKind;
use moafs_vfs::{Format, Options, Result, Vfs};

use super::ROOT;
use crate::check::{CheckOptions, check};
use crate::format::BLOCK;
use crate::judge::{features, name, new, root, volume};
use crate::{F2fs, OpenOptions};

fn open(mem: &Arc<MemDisk>, options: OpenOptions) -> Result<Vfs<F2fs>> {
    let (disk, rt): (SharedDisk, _) = (mem.clone(), Live::new());
    let format = F2fs::open(Arc::clone(&disk), Arc::clone(&rt), options)?;
    Ok(Vfs::new(format, disk, rt, Options { syncer: false, ..Options::default() }))
}

fn fsynced(vfs: &Vfs<F2fs>, text: &str, blocks: usize) {
    let name = name(text.as_bytes());
    let ino = vfs.create(&root(), ROOT, name, &new(FileKind::Regular)).expect("there is room").ino;
    vfs.write(&root(), ino, 0, &vec![7; blocks * BLOCK], false).expect("there is room");
    vfs.fsync(ino, false).expect("it is durable");
    vfs.forget(ino, 1);
}

fn has(vfs: &Vfs<F2fs>, text: &str) -> bool {
    vfs.lookup(&root(), ROOT, name(text.as_bytes())).is_ok()
}

fn assert_sound(mem: &MemDisk) {
    let outcome = check(mem, &CheckOptions::default(), &mut |_| ()).expect("it can be checked");
    assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
}

/// Returns a volume on which "kept" is in the last checkpoint, and "late" takes more blocks than are left.
fn overfull() -> Arc<MemDisk> {
    let mem = volume(64, features()[0]);
    let vfs = open(&mem, OpenOptions::default()).expect("it opens");
    fsynced(&vfs, "kept", 3);
    let fs = vfs.format();
    fs.writer.lock().last.user_blocks = fs.space.usage().blocks + 50;
    fs.changed();
    vfs.sync().expect("a checkpoint");
    fsynced(&vfs, "late", 100);
    Arc::new(mem.snapshot())
}

#[test]
fn a_roll_forward_that_does_not_fit_is_refused_with_the_ways_out() {
    let mem = overfull();
    for _ in 0..2 {
        let refused = open(&mem, OpenOptions::default()).err().expect("it is refused").to_string();
        for words in ["fsynced after the last checkpoint", "are in use of", "-o ro", "-o disable_roll_forward"] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
    }
    let reader = open(&mem, OpenOptions { read_only: true, ..OpenOptions::default() }).expect("it can be read");
    assert_eq!((has(&reader, "kept"), has(&reader, "late")), (true, false));
    let notes = &reader.format().shape().notes;
    assert!(notes.iter().any(|note| note.contains("not shown; files concerned: 1")), "{notes:?}");
    assert_sound(&mem);
}

#[test]
fn what_came_after_the_last_checkpoint_can_be_given_up_and_does_not_come_back() {
    let mem = overfull();
    let given_up = OpenOptions { roll_forward: false, ..OpenOptions::default() };
    let vfs = open(&mem, given_up.clone()).expect("it opens");
    let notes = &vfs.format().shape().notes;
    assert!(notes.iter().any(|note| note.contains("given up; files concerned: 1")), "{notes:?}");
    assert_eq!((has(&vfs, "kept"), has(&vfs, "late")), (true, false));
    assert!(open(&Arc::new(mem.snapshot()), OpenOptions::default()).is_ok(), "nothing is left to be given up");
    fsynced(&vfs, "new", 4);
    let cut = Arc::new(mem.snapshot());
    vfs.close().expect("it closes");
    for mem in [mem, cut] {
        for options in [OpenOptions::default(), given_up.clone()] {
            let vfs = open(&mem, options).expect("it opens");
            assert_eq!((has(&vfs, "kept"), has(&vfs, "late"), has(&vfs, "new")), (true, false, true));
            assert_eq!(vfs.format().shape().notes, Vec::<String>::new());
            vfs.close().expect("it closes");
            assert_sound(&mem);
        }
    }
}
