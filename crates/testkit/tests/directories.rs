//! Directories with an index on the disk: we and the kernel add names to the same ones, and each finds the other's. The
//! kernel looks names up through the index.
//!
//! Skipped without mke2fs, and partly without the right to mount.

use std::path::Path;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Live;
use moafs_testkit::judges::kernel::KernelMount;
use moafs_testkit::judges::{e2fsck, missing, tools};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Options, Vfs};

const DIR: &str = "names";

/// Returns a long name: few of them fit into a block, so that the index grows deep.
fn long(number: u32) -> String {
    format!("{number:06}-{}", "n".repeat(200 - number as usize % 40))
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

struct Mounted {
    vfs: Vfs<Ext>,
    disk: Arc<MemDisk>,
    dir: Ino,
}

impl Mounted {
    fn new(image: &Path) -> Mounted {
        let disk = Arc::new(MemDisk::read_from(image).expect("the image can be read"));
        let rt = Live::new();
        let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).expect("it can be mounted");
        let vfs = Vfs::new(format, disk.clone(), rt, Options::default());
        let root = vfs.shape().root;
        let new = NewFile { kind: FileKind::Directory, perm: 0o755, umask: 0, rdev: 0, target: None };
        let found = vfs.lookup(&Credentials::root(), root, name(DIR));
        let dir = found.or_else(|_| vfs.create(&Credentials::root(), root, name(DIR), &new)).expect("a directory").ino;
        Mounted { vfs, disk, dir }
    }

    /// Adds names that lead to one file, some of which go again.
    fn add(&self, numbers: std::ops::Range<u32>) {
        let who = Credentials::root();
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        let file = self.vfs.create(&who, self.dir, name(&format!("file-{}", numbers.start)), &new).unwrap().ino;
        for number in numbers {
            self.vfs.link(&who, file, self.dir, name(&long(number))).unwrap();
            if number % 7 == 3 {
                self.vfs.unlink(&who, self.dir, name(&long(number))).unwrap();
            }
        }
    }

    fn has(&self, text: &str) -> bool {
        self.vfs.lookup(&Credentials::root(), self.dir, name(text)).is_ok()
    }

    fn unmount(self, image: &Path) {
        self.vfs.close().expect("it can be unmounted");
        self.disk.write_to(image).expect("the image can be written");
        let Some(verdict) = e2fsck::run(image, e2fsck::Mode::Look) else {
            return missing("e2fsck", "it is not installed");
        };
        assert!(verdict.exit == 0 && verdict.findings.is_empty(), "{}", verdict.text);
    }
}

/// Grows a directory to `count` names, half of them by the kernel if it can mount.
fn grow(options: &[&str], mib: u32, count: u32) {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    let image = file.path();
    if !tools::mke2fs(image, options, &format!("{mib}M")) {
        return missing("mke2fs", "it is not installed");
    }
    let ours = Mounted::new(image);
    ours.add(0..count / 2);
    ours.unmount(image);
    let kernel = |image: &Path| KernelMount::new(image, "ext4", "rw").expect("the kernel mounts it");
    if let Some(mount) = kernel(image) {
        let path = |number: u32| mount.join(DIR).join(long(number));
        for number in 0..count / 2 {
            assert_eq!(path(number).exists(), number % 7 != 3, "name {number}");
        }
        let target = mount.join(DIR).join("theirs");
        std::fs::write(&target, "theirs").unwrap();
        (0..1000).for_each(|number| std::fs::hard_link(&target, path(count + number)).unwrap());
        mount.unmount().unwrap();
    } else {
        missing("the kernel", "mounting needs root and loop devices");
    }
    let ours = Mounted::new(image);
    if ours.has("theirs") {
        (0..1000).for_each(|number| assert!(ours.has(&long(count + number)), "name {number} of the kernel"));
    }
    ours.add(count / 2..count);
    ours.unmount(image);
    if let Some(mount) = kernel(image) {
        for number in 0..count {
            assert_eq!(mount.join(DIR).join(long(number)).exists(), number % 7 != 3, "name {number}");
        }
        mount.unmount().unwrap();
    }
}

#[test]
fn an_index_of_ext3_grows() {
    grow(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 48, 6000);
}

#[test]
fn an_index_with_checksums_grows() {
    grow(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 48, 6000);
}

#[test]
fn an_index_of_large_dir_grows_three_levels() {
    grow(&["-t", "ext4", "-O", "large_dir", "-b", "1024", "-J", "size=4"], 96, 40_000);
}
