//! Tests only: volumes in memory, mounted, and the reference tool as the judge of the result.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::Vfs;
use moafs_vfs::api::{Credentials, NewFile, Options};
use moafs_vfs::types::{FileKind, Name};

use crate::check::{CheckOptions, Issue, check};
use crate::format::superblock::Features;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::{F2fs, OpenOptions};

/// Returns a new file of this kind.
pub(crate) const fn new(kind: FileKind) -> NewFile<'static> {
    NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None }
}

pub(crate) fn name(bytes: &[u8]) -> &Name {
    Name::new(bytes).expect("a legal name")
}

/// Returns the features of volumes that tools make today, and those of the first version of the format.
pub(crate) fn features() -> [Features; 2] {
    let today = Features::EXTRA_ATTR | Features::INODE_CHECKSUM | Features::INODE_CRTIME;
    [today | Features::FLEXIBLE_INLINE_XATTR, Features::empty()]
}

/// Makes an empty volume in memory.
pub(crate) fn volume(mebibytes: u64, features: Features) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(mebibytes << 11));
    let options = MkfsOptions { features, ..MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0)) };
    mkfs(&*mem, &options).expect("mkfs");
    mem
}

/// Mounts a volume; nothing happens by itself.
pub(crate) fn mount(mem: &Arc<MemDisk>) -> Vfs<F2fs> {
    let (disk, rt): (SharedDisk, Rt) = (mem.clone(), Live::new());
    let format = F2fs::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    Vfs::new(format, disk, rt, Options { syncer: false, ..Options::default() })
}

/// Returns the credentials of root.
pub(crate) fn root() -> Credentials {
    Credentials::root()
}

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed (package f2fs-tools)");
    }
    found
}

/// Makes a volume and fills it with a host's directory by the reference tool; `None` without the
/// tool.
pub(crate) fn loaded(mebibytes: u64, features: Features, source: &Path) -> Option<Arc<MemDisk>> {
    let tool = "sload.f2fs";
    if !have(tool) {
        return None;
    }
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    volume(mebibytes, features).write_to(image.path()).expect("the image is saved");
    let output = Command::new(tool).arg("-f").arg(source).arg(image.path()).stdin(Stdio::null()).output();
    let output = output.expect("the tool starts");
    // Exit code 1: `sload.f2fs` corrected checksums that it had left behind.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{tool}: {}: {text}", output.status);
    Some(Arc::new(MemDisk::read_from(image.path()).expect("the image is read")))
}

/// Fails unless our own checker has nothing to say, and `fsck.f2fs` neither, not even a repair that it makes without a
/// word.
pub(crate) fn assert_clean(mem: &MemDisk, what: &str) {
    let ours = check(mem, &CheckOptions::default(), &mut |_| ()).expect("the volume can be checked");
    // Findings that the reference tool causes when it fills a volume.
    let known = |issue: &Issue| matches!(issue, Issue::Temperature { .. } | Issue::XattrMagic { .. });
    let wrong: Vec<&Issue> = ours.findings.iter().map(|found| &found.issue).filter(|issue| !known(issue)).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
    assert_fsck_is_silent(mem, what);
}

/// Fails if `fsck.f2fs` has something to say, a repair that it makes without a word included.
pub(crate) fn assert_fsck_is_silent(mem: &MemDisk, what: &str) {
    let tool = "fsck.f2fs";
    if !have(tool) {
        return;
    }
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    mem.write_to(image.path()).expect("the image is saved");
    let output = Command::new(tool).arg("--dry-run").arg(image.path()).stdin(Stdio::null()).output();
    let output = output.expect("the tool starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let complains = ["[FIX]", "[ASSERT]", "[Fail]"].iter().any(|word| text.contains(word));
    assert!(output.status.success() && !complains, "{what}: {:?}\n{text}", output.status);
}
