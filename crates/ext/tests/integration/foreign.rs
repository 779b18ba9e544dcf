//! Volumes that other tools have changed since they were made: files from before a feature came, and a table of
//! descriptors that went on in meta groups. Skipped without the tools of e2fsprogs.

use std::path::Path;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Live;
use moafs_vfs::Credentials;
use moafs_vfs::api::Allocate;

use crate::image::{BLOCK, Image, ROOT, create, errno, name, truncate, write};

/// Files with pointers to their blocks end where these reach, also on a volume whose new files have extents and may be
/// longer.
#[test]
fn a_file_from_before_extents_ends_where_its_pointers_end() {
    let Some(image) = Image::make(&["-t", "ext3", "-J", "size=1"], 24 << 20) else { return };
    let old = image.mounted(|vfs| {
        let old = create(vfs, "old");
        write(vfs, old, 0, &[1; 5000]).expect("there is space");
        old
    });
    image.run("tune2fs", &["-O", "extent"], &[0]).expect("it comes with mke2fs");
    let (far, most) = (17 << 30, 16_843_020 * BLOCK);
    image.mounted(|vfs| {
        assert_eq!(vfs.file_bytes_max(old).expect("it is there"), most);
        assert!(vfs.shape().file_bytes_max > far);
        let root = Credentials::root();
        for at in [most, far, vfs.shape().file_bytes_max - 1] {
            assert_eq!(errno(write(vfs, old, at, b"x")), libc::EFBIG);
            assert_eq!(errno(truncate(vfs, old, at + 1)), libc::EFBIG);
            assert_eq!(errno(vfs.allocate(&root, old, at, 1, Allocate::Extend)), libc::EFBIG);
            assert_eq!(errno(vfs.copy_range(&root, (old, 0), (old, at), 1)), libc::EFBIG);
        }
        write(vfs, old, most - 1, b"x").expect("the last byte");
        let new = create(vfs, "new");
        write(vfs, new, far, b"x").expect("it has extents");
        vfs.sync().expect("all of it finds its place");
    });
    image.mounted(|vfs| {
        assert_eq!(vfs.stat(old).expect("it is there").attr.size, most);
        let mut last = [0];
        vfs.read(old, most - 1, &mut last).expect("it can be read");
        assert_eq!(last, *b"x");
        truncate(vfs, old, 100).expect("it becomes shorter");
    });
    image.judge();
}

/// A table of descriptors that goes on in meta groups, as online growth makes it: from there on groups have no copies
/// of the blocks before.
#[test]
fn a_volume_whose_later_groups_are_meta_groups_is_whole_and_can_be_filled() {
    let features = "meta_bg,^resize_inode,64bit";
    let arguments = ["-t", "ext4", "-g", "2048", "-N", "2000", "-J", "size=1", "-O", features];
    let Some(image) = Image::make(&arguments, 66 << 20) else { return };
    // The first block of descriptors lies where both kinds have it. The checker mends what differs between them: the
    // copies in the first sixteen groups.
    image.run("debugfs", &["-w", "-R", "set_super_value first_meta_bg 1"], &[0]).expect("it comes with mke2fs");
    image.run("e2fsck", &["-fy"], &[1]).expect("it comes with mke2fs");
    image.judge();
    let before = image.mounted(|vfs| {
        let (before, file) = (vfs.stat_fs().free, create(vfs, "file"));
        let piece: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        let full = (0..66).find(|mib| errno(write(vfs, file, mib << 20, &piece)) == libc::ENOSPC);
        assert!(full.is_some_and(|mib| mib > 60), "{full:?} MiB");
        before
    });
    image.judge();
    fill_with_debugfs(&image);
    image.mounted(|vfs| {
        vfs.unlink(&Credentials::root(), ROOT, name("file")).expect("it is there");
        let big = vfs.lookup(&Credentials::root(), ROOT, name("big")).expect("debugfs wrote it");
        let mut bytes = vec![0; big.attr.size as usize];
        vfs.read(big.ino, 0, &mut bytes).expect("each of its blocks may be a file's");
        // It ends with a hole.
        assert!(bytes.iter().all(|byte| matches!(byte, 0 | 7)));
        assert!(bytes.iter().filter(|byte| **byte == 7).count() > 60 << 20);
        vfs.unlink(&Credentials::root(), ROOT, name("big")).expect("it is there");
        vfs.forget(big.ino, 1);
        vfs.sync().expect("a sync");
        vfs.run_background_step();
        assert_eq!(vfs.stat_fs().free, before);
    });
    image.judge();
}

/// A member of the list of deleted and truncated files whose checksum is wrong may be anything: nothing of it is freed.
#[test]
fn a_damaged_member_of_the_orphan_list_is_not_finished() {
    let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1"], 24 << 20) else { return };
    let file = image.mounted(|vfs| {
        let file = create(vfs, "file");
        write(vfs, file, 0, &[1; 9000]).expect("there is space");
        file.0
    });
    image.run("debugfs", &["-w", "-R", &format!("set_super_value last_orphan {file}")], &[0]);
    let place = image.run("debugfs", &["-R", &format!("imap <{file}>")], &[0]).expect("it comes with mke2fs");
    // "located at block 37, offset 0x0a00"
    let (_, place) = place.split_once("located at block ").expect("a place");
    let (block, offset) = place.split_once(", offset 0x").expect("two numbers");
    let offset = offset.split_whitespace().next().expect("a number");
    let (block, offset): (u64, _) = (block.parse().expect("a number"), u64::from_str_radix(offset, 16));
    let offset = offset.expect("a number");
    let mut bytes = std::fs::read(&image.path).unwrap();
    let size = (block * BLOCK + offset) as usize + 4;
    assert_eq!(bytes[size..size + 4], 9000u32.to_le_bytes());
    bytes[size..size + 4].fill(0);
    let open = |bytes: &[u8]| {
        let path = image.path.with_file_name("copy");
        std::fs::write(&path, bytes).unwrap();
        let disk: SharedDisk = Arc::new(MemDisk::read_from(&path).unwrap());
        Ext::open(disk, Live::new(), OpenOptions::default()).map(drop)
    };
    let refused = open(&bytes).expect_err("the checksum is wrong");
    assert!(refused.to_string().contains("s_last_orphan"), "{refused}");
    bytes[size..size + 4].copy_from_slice(&9000u32.to_le_bytes());
    open(&bytes).expect("it is a file that was being cut");
}

/// Has debugfs take every block that is left.
fn fill_with_debugfs(image: &Image) {
    image.mounted(|vfs| {
        let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there");
        truncate(vfs, file.ino, 0).expect("it becomes shorter");
        vfs.forget(file.ino, 1);
    });
    let contents: &Path = &image.path.with_file_name("contents");
    std::fs::write(contents, vec![7; 66 << 20]).unwrap();
    let write = format!("write {} big", contents.display());
    // It ends when no block is free.
    image.run("debugfs", &["-w", "-R", &write], &[0, 1]);
}
