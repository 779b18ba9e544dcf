//! Damage that could make an op free, lose or overwrite what belongs to others. Skipped without the tools of e2fsprogs.

use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_vfs::Credentials;

use crate::image::{Image, ROOT, create, errno, mount, name, truncate, write};

/// Returns the first number behind `label` in the output of a tool.
fn number(text: &str, label: &str) -> u64 {
    let (_, number) = text.split_once(label).expect("the label");
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().expect("a number")
}

/// Returns the place of a block of a file.
fn block_of(image: &Image, file: &str, lbn: u32) -> u64 {
    number(&image.debugfs(&format!("bmap {file} {lbn}")), "")
}

/// Blocks of the volume's own that a file is said to have: neither its end nor a truncation frees them.
#[test]
fn the_volume_own_blocks_are_never_freed() {
    // The place of the file's first block in its inode.
    for (features, field) in [("extent", "block[5]"), ("^extent,^64bit", "block[0]")] {
        for is_journal in [false, true] {
            let made = ["-t", "ext4", "-J", "size=1", "-O", features];
            let Some(image) = Image::make(&made, 24 << 20) else { return };
            image.mounted(|vfs| {
                let file = create(vfs, "file");
                write(vfs, file, 0, &[1; 1000]).expect("there is space");
            });
            let block = match is_journal {
                false => number(&image.debugfs("imap <2>"), "located at block "),
                true => block_of(&image, "<8>", 700),
            };
            image.debugfs(&format!("set_inode_field file {field} {block}"));
            for is_unlink in [false, true] {
                let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
                let vfs = mount(&mem);
                let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there").ino;
                if is_unlink {
                    vfs.unlink(&Credentials::root(), ROOT, name("file")).expect("a name is removed");
                    vfs.forget(file, 1);
                    vfs.run_background_step();
                } else {
                    assert_eq!(errno(truncate(&vfs, file, 0)), libc::EUCLEAN);
                }
                let failed = vfs.failed().expect("damage was found");
                assert!(failed.contains("the volume's own"), "{failed}");
                drop(vfs.close());
                let copy = image.beside("copy");
                mem.write_to(&copy.path).unwrap();
                let text = copy.debugfs(&format!("testb {block}"));
                assert!(text.contains("marked in use"), "{text}");
            }
        }
    }
}
