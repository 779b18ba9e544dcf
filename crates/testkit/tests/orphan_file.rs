//! Files that were deleted while they were open, on a volume that the kernel left with its orphan file: a mount of ours
//! deletes them, and the file is empty afterwards.

use std::io::Write;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Live;
use moafs_testkit::judges::kernel::KernelMount;
use moafs_testkit::judges::{e2fsck, missing, tools};
use moafs_vfs::{Options, Vfs};

/// Returns an image as a power cut leaves it while the kernel has `count` deleted files open.
fn cut(options: &[&str], count: usize) -> Option<tempfile::NamedTempFile> {
    let file = || tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    let (image, copy) = (file(), file());
    if !tools::mke2fs(image.path(), options, "32M") {
        missing("mke2fs", "it is not installed");
        return None;
    }
    let Some(mount) = KernelMount::new(image.path(), "ext4", "rw").expect("the kernel mounts it") else {
        missing("the kernel", "mounting needs root and loop devices");
        return None;
    };
    let mut open = Vec::new();
    for number in 0..count {
        let path = mount.join(&format!("file-{number}"));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![number as u8; 5000]).unwrap();
        std::fs::remove_file(&path).unwrap();
        open.push(file);
    }
    let last = open.last().expect("there are some");
    last.sync_all().unwrap();
    std::fs::copy(image.path(), copy.path()).unwrap();
    drop(open);
    mount.unmount().unwrap();
    Some(copy)
}

#[test]
fn a_mount_deletes_what_the_orphan_file_names() {
    for block in ["1024", "4096"] {
        let options = ["-t", "ext4", "-O", "orphan_file", "-b", block, "-J", "size=4", "-N", "2048"];
        let Some(copy) = cut(&options, 300) else { return };
        let disk = Arc::new(MemDisk::read_from(copy.path()).expect("the image can be read"));
        let rt = Live::new();
        let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).expect("it can be mounted");
        let vfs = Vfs::new(format, disk.clone(), rt, Options::default());
        let space = vfs.stat_fs();
        assert!(space.free_inodes >= 2048 - 13, "{} inodes are free", space.free_inodes);
        vfs.close().expect("it can be unmounted");
        disk.write_to(copy.path()).unwrap();
        let Some(verdict) = e2fsck::run(copy.path(), e2fsck::Mode::Look) else { return };
        assert!(verdict.exit == 0 && verdict.findings.is_empty(), "{block}: {}", verdict.text);
    }
}
