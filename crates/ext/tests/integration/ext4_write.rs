//! Volumes with checksums that are written: what leaves memory and is read again is believed, and e2fsck has nothing to
//! say. Skipped without mke2fs and e2fsck.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::format::Idle;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

const ROOT: Ino = Ino(2);

fn run(tool: &str, arguments: &[&str], image: &Path) -> Option<(i32, String)> {
    let output = Command::new(tool).args(arguments).arg(image).stdin(Stdio::null()).output().ok();
    let Some(output) = output else {
        eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
        return None;
    };
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.code().unwrap_or(-1), text))
}

/// Makes files in new directories, which go to several groups, and writes everything home.
fn fill(vfs: &Vfs<Ext>, round: u32) {
    let who = Credentials::root();
    let make = |dir: Ino, name: &str, kind: FileKind| {
        let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
        vfs.create(&who, dir, Name::new(name.as_bytes()).expect("a legal name"), &new).expect("there is space").ino
    };
    for number in 0..8 {
        let dir = make(ROOT, &format!("dir-{round}-{number}"), FileKind::Directory);
        for number in 0..20 {
            let file = make(dir, &format!("file-{number}"), FileKind::Regular);
            vfs.write(&who, file, 0, &[7; 3000], false).expect("there is space");
        }
    }
    vfs.sync().expect("the disk works");
    vfs.format().run_background_step(Idle::For(Duration::from_secs(60)));
}

#[test]
fn what_was_written_is_believed_when_it_is_read_again() {
    for (features, inode_size) in [
        ("^64bit,^resize_inode", "128"),
        ("^extent,^64bit,metadata_csum_seed,orphan_file", "256"),
        ("^metadata_csum,uninit_bg", "256"),
        ("meta_bg,^resize_inode", "256"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
        let made = ["-F", "-q", "-t", "ext4", "-b", "1024", "-g", "2048", "-J", "size=1", "-E", "nodiscard", "-O"];
        let arguments = [&made[..], &[features, "-I", inode_size]].concat();
        let Some((exit, text)) = run("mke2fs", &arguments, &image) else { return };
        assert_eq!(exit, 0, "{text}");
        let mem = Arc::new(MemDisk::read_from(&image).unwrap());
        let (disk, rt): (SharedDisk, Rt) = (mem.clone(), Live::new());
        let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
        let vfs = Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() });
        assert_eq!(vfs.shape().read_only, None);
        for round in 0..3 {
            fill(&vfs, round);
            vfs.format().shrink(0);
        }
        vfs.close().expect("the volume is whole");
        mem.write_to(&image).unwrap();
        let Some((exit, text)) = run("e2fsck", &["-fn"], &image) else { return };
        assert_eq!(exit, 0, "{features}: {text}");
        assert!(!text.contains("Fix?") && !text.contains("wrong"), "{features}: {text}");
    }
}
