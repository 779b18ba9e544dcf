//! Volumes that the tools of e2fsprogs make and change, for tests that are skipped without them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{self, CheckOptions, Mode};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{NewFile, Options, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Result, Vfs};

pub(crate) const ROOT: Ino = Ino(2);
pub(crate) const BLOCK: u64 = 1024;

/// Mounts a volume.
pub(crate) fn mount(mem: &Arc<MemDisk>) -> Vfs<Ext> {
    let (disk, rt): (SharedDisk, Rt) = (Arc::<MemDisk>::clone(mem), Live::new());
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    let vfs = Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() });
    assert_eq!(vfs.shape().read_only, None);
    vfs
}

/// A volume in an image file.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    directory: Arc<tempfile::TempDir>,
}

impl Image {
    /// Makes a volume with mke2fs; `None` without it.
    pub(crate) fn make(arguments: &[&str], bytes: u64) -> Option<Image> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        let image = Image { path, directory: Arc::new(directory) };
        image.run("mke2fs", &[&["-F", "-q", "-b", "1024"], arguments].concat(), &[0])?;
        Some(image)
    }

    /// Returns the place of another image in the same directory.
    pub(crate) fn beside(&self, name: &str) -> Image {
        Image { path: self.directory.path().join(name), directory: Arc::clone(&self.directory) }
    }

    /// Runs a tool on the image, which may exit with `allowed`; `None` if it is not installed.
    pub(crate) fn run(&self, tool: &str, arguments: &[&str], allowed: &[i32]) -> Option<String> {
        let output = Command::new(tool).args(arguments).arg(&self.path).stdin(Stdio::null()).output();
        let Ok(output) = output else {
            eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
            return None;
        };
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let exit = output.status.code().unwrap_or(-1);
        assert!(allowed.contains(&exit), "{tool} {arguments:?} exits with {exit}: {text}");
        Some(text)
    }

    /// Has debugfs run a command that writes.
    pub(crate) fn debugfs(&self, command: &str) -> String {
        self.run("debugfs", &["-w", "-R", command], &[0]).expect("it comes with mke2fs")
    }

    /// Mounts the volume, calls `act`, unmounts it, and writes it back.
    pub(crate) fn mounted<R>(&self, act: impl FnOnce(&Vfs<Ext>) -> R) -> R {
        let mem = Arc::new(MemDisk::read_from(&self.path).unwrap());
        let vfs = mount(&mem);
        let done = act(&vfs);
        assert_eq!(vfs.failed(), None);
        vfs.close().expect("the volume is whole");
        mem.write_to(&self.path).unwrap();
        done
    }

    /// Asks both checkers for their findings.
    pub(crate) fn judge(&self) {
        let disk = MemDisk::read_from(&self.path).unwrap();
        let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let options = CheckOptions { mode: Mode::No, force: true, now, superblock: None };
        let outcome = check::check(&disk, &options, &mut |_| {}).expect("it can be checked");
        let found: Vec<_> = outcome.findings.iter().map(|finding| finding.issue.to_string()).collect();
        assert_eq!(found, Vec::<String>::new());
        if let Some(text) = self.run("e2fsck", &["-fn"], &[0]) {
            assert!(!text.contains("Fix?") && !text.contains("wrong"), "{text}");
        }
    }
}

pub(crate) fn name(name: &str) -> &Name {
    Name::new(name.as_bytes()).expect("a legal name")
}

pub(crate) fn create(vfs: &Vfs<Ext>, n: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), ROOT, name(n), &new).expect("there is space").ino
}

pub(crate) fn write(vfs: &Vfs<Ext>, file: Ino, at: u64, bytes: &[u8]) -> Result<u64> {
    vfs.write(&Credentials::root(), file, at, bytes, false)
}

pub(crate) fn truncate(vfs: &Vfs<Ext>, file: Ino, size: u64) -> Result<()> {
    vfs.set_attr(&Credentials::root(), file, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

pub(crate) fn errno<T>(result: Result<T>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}
