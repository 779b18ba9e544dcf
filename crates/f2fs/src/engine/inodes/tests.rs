//! Files that are not usable, on volumes that are.

use crate::format::inode::Advise;
use moafs_disk::mem::MemDisk;
use moafs_vfs::types::Ino;
use moafs_vfs::{Format, Vfs};

use super::*;
use crate::format::BLOCK;
use crate::judge::{assert_clean, features, mount, name, new, root, volume};

const ROOT: Ino = Ino(3);

fn write(vfs: &Vfs<F2fs>, text: &str, blocks: usize) -> Ino {
    let ino = vfs.create(&root(), ROOT, name(text.as_bytes()), &new(FileKind::Regular)).unwrap().ino;
    vfs.write(&root(), ino, 0, &vec![7; blocks * BLOCK], false).unwrap();
    ino
}

/// Marks a file as an encrypted one, or as one that is not.
fn mark(vfs: &Vfs<F2fs>, ino: Ino, encrypted: bool) {
    let fs = vfs.format();
    let file = fs.incore(Nid(ino.0 as u32)).unwrap();
    fs.change_inode(&file, |inode| inode.advise.set(Advise::ENCRYPT, encrypted)).unwrap();
    // It is judged when it is loaded.
    fs.live.lock().remove(&file.ino);
    fs.changed();
}

fn assert_refused(vfs: &Vfs<F2fs>, ino: Ino) {
    let said = vfs.format().load(ino).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said.contains("is encrypted"), "{said}");
}

fn assert_contents(vfs: &Vfs<F2fs>, ino: Ino, blocks: usize) {
    mark(vfs, ino, false);
    let mut bytes = vec![0; blocks * BLOCK];
    assert_eq!(vfs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn blocks_of_encrypted_files_are_moved_out_of_the_way() {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    let inos: Vec<Ino> = (0..300).map(|i| write(&vfs, &format!("{i}"), 8)).collect();
    vfs.sync().unwrap();
    inos.iter().skip(1).step_by(4).for_each(|ino| mark(&vfs, *ino, true));
    (0..300).step_by(2).for_each(|i| vfs.unlink(&root(), ROOT, name(format!("{i}").as_bytes())).unwrap());
    inos.iter().for_each(|ino| vfs.forget(*ino, 1));
    vfs.close().unwrap();
    let vfs = mount(&disk);
    assert!(vfs.format().clean().unwrap() > 0);
    assert!(vfs.format().counters().moved_blocks > 0);
    assert_refused(&vfs, inos[1]);
    inos.iter().skip(1).step_by(4).for_each(|ino| assert_contents(&vfs, *ino, 8));
    vfs.close().unwrap();
    assert_clean(&disk, "cleaned");
}

#[test]
fn an_encrypted_file_without_a_name_is_freed_by_the_mount() {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    let ino = write(&vfs, "file", 3);
    mark(&vfs, ino, true);
    vfs.unlink(&root(), ROOT, name(b"file")).unwrap();
    vfs.sync().unwrap();
    let cut: Arc<MemDisk> = Arc::new(disk.snapshot());
    let vfs = mount(&cut);
    assert!(matches!(vfs.format().load(ino), Err(Error::Stale(_))));
    vfs.close().unwrap();
    assert_clean(&cut, "freed");
}

#[test]
fn what_was_fsynced_of_an_encrypted_file_is_brought_back() {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    let ino = write(&vfs, "file", 1);
    mark(&vfs, ino, true);
    vfs.sync().unwrap();
    vfs.write(&root(), ino, 0, &[7; 5 * BLOCK], false).unwrap();
    vfs.fsync(ino, false).unwrap();
    let cut: Arc<MemDisk> = Arc::new(disk.snapshot());
    let vfs = mount(&cut);
    assert_refused(&vfs, ino);
    assert_contents(&vfs, ino, 5);
    vfs.close().unwrap();
    assert_clean(&cut, "brought back");
}

/// Attributes inside of an inode take the room of addresses.
#[test]
fn a_file_with_few_addresses_in_its_inode_may_not_grow_beyond_its_last_node() {
    let disk = volume(64, features()[0]);
    let vfs = mount(&disk);
    let ino = write(&vfs, "file", 0);
    let fs = vfs.format();
    let file = fs.incore(Nid(ino.0 as u32)).unwrap();
    let words = |inode: &mut Inode| inode.extra.as_mut().expect("it has the area").inline_xattr_words = 200;
    fs.change_inode(&file, words).unwrap();
    let end = crate::format::node::lbn_limit(fs.layout(&file).addresses()) * BLOCK as u64;
    vfs.write(&root(), ino, end - 1, &[7], false).unwrap();
    assert_eq!(vfs.write(&root(), ino, end, &[7], false).unwrap_err().errno(), libc::EFBIG);
    vfs.close().unwrap();
    assert_clean(&disk, "a large file");
}
