//! The bound that keeps a roll-forward within the volume: blocks that recovery makes and no chain has.

use moafs_vfs::Vfs;

use super::*;
use crate::F2fs;

/// Returns a volume on which so many blocks are free, and that may write chains.
fn with_room(blocks: u64) -> (Arc<MemDisk>, Vfs<F2fs>) {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    vfs.create(&root(), ROOT, name(b"dir"), &new(FileKind::Directory)).unwrap();
    let fs = vfs.format();
    vfs.sync().unwrap();
    fs.writer.lock().last.user_blocks = fs.space.usage().blocks + blocks;
    vfs.close().unwrap();
    let vfs = mount(&disk);
    vfs.format().changed();
    vfs.sync().unwrap();
    (disk, vfs)
}

fn dir(vfs: &Vfs<F2fs>) -> Ino {
    vfs.lookup(&root(), ROOT, name(b"dir")).unwrap().ino
}

/// Makes a file with these blocks, and returns its number when it is durable.
fn fsynced(vfs: &Vfs<F2fs>, dir: Ino, text: &str, at: u64, blocks: usize) {
    let file = vfs.create(&root(), dir, name(text.as_bytes()), &new(FileKind::Regular)).unwrap().ino;
    vfs.write(&root(), file, at * BLOCK as u64, &vec![7; blocks * BLOCK], false).unwrap();
    vfs.fsync(file, false).unwrap();
    vfs.forget(file, 1);
}

fn unlink(vfs: &Vfs<F2fs>, dir: Ino, text: &str) {
    vfs.unlink(&root(), dir, name(text.as_bytes())).unwrap();
}

fn assert_recovers(disk: &MemDisk, dir: Ino, text: &str) {
    let cut = Arc::new(disk.snapshot());
    let vfs = mount(&cut);
    assert!(vfs.lookup(&root(), dir, name(text.as_bytes())).is_ok(), "{text} is lost");
    vfs.close().unwrap();
    assert_eq!(findings_after_recovery(&cut), [], "{text}");
}

/// Recovery gives all files of the chains their names before it learns that some have gone.
#[test]
fn directories_that_recovery_fills_again_have_room() {
    for at_once in [false, true] {
        let (disk, vfs) = with_room(1400);
        let dir = dir(&vfs);
        let names: Vec<String> = (0..1000).map(|i| format!("{i:0250}")).collect();
        for text in &names {
            fsynced(&vfs, dir, text, 0, 0);
            if at_once {
                unlink(&vfs, dir, text);
            }
        }
        names.iter().filter(|_| !at_once).for_each(|text| unlink(&vfs, dir, text));
        fsynced(&vfs, dir, "late", 0, 325);
        assert_recovers(&disk, dir, "late");
    }
}

#[test]
fn indirect_nodes_that_recovery_makes_again_have_room() {
    let (disk, vfs) = with_room(600);
    let dir = dir(&vfs);
    for i in 0..150 {
        let text = i.to_string();
        fsynced(&vfs, dir, &text, 3_000_000, 1);
        if i % 5 == 4 {
            assert_recovers(&disk, dir, &text);
        }
        unlink(&vfs, dir, &text);
        // The file is freed.
        vfs.run_background_step();
    }
}
