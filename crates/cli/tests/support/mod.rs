//! Support shared by the command's tests: scratch directories, running the command, mounts that
//! never stay behind.

#![allow(dead_code, unused_macros, unused_imports, reason = "every test file uses its own part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit that is longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Number of a user without any rights.
pub(crate) const ORDINARY_USER: u32 = 65534;

/// The formats that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Ext2,
    Ext4,
    F2fs,
}

impl Format {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Ext2 => "ext2",
            Format::Ext4 => "ext4",
            Format::F2fs => "f2fs",
        }
    }

    /// Returns the options of mkfs for a volume with lost+found and times of birth, and its size.
    fn mkfs(self) -> &'static [&'static str] {
        match self {
            Format::Ext2 => &["-t", "ext2", "-b", "1024", "64M"],
            Format::Ext4 => &["-t", "ext4", "64M"],
            Format::F2fs => &["-t", "f2fs", "-O", "extra_attr,inode_checksum,inode_crtime,lost_found", "128M"],
        }
    }
}

/// Makes a module of tests of one format, of functions that take a format.
macro_rules! tests_of {
    ($module:ident, $format:ident, $($test:ident,)+) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test(super::support::Format::$format);
            })+
        }
    };
}

/// Makes a test of ext2 and one of F2FS of functions that take a format.
macro_rules! tests_of_both {
    ($($test:ident,)+) => {
        support::tests_of! { ext2, Ext2, $($test,)+ }
        support::tests_of! { f2fs, F2fs, $($test,)+ }
    };
}

/// Makes a test of ext4 and one of F2FS of functions that take a format.
macro_rules! tests_of_ext4_and_f2fs {
    ($($test:ident,)+) => {
        support::tests_of! { ext4, Ext4, $($test,)+ }
        support::tests_of! { f2fs, F2fs, $($test,)+ }
    };
}

pub(crate) use {tests_of, tests_of_both, tests_of_ext4_and_f2fs};

/// A scratch directory with an image and a mount point.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
    format: Format,
}

impl Scratch {
    pub(crate) fn new(format: Format) -> Scratch {
        Scratch { dir: tempfile::tempdir().unwrap(), format }
    }

    /// Makes a scratch directory with a volume in the image.
    pub(crate) fn with_volume(format: Format) -> Scratch {
        let scratch = Scratch::new(format);
        let (size, options) = format.mkfs().split_last().unwrap();
        let image = scratch.image().display().to_string();
        ok(&[&["mkfs", "-q"], options, &[&image, size]].concat());
        scratch
    }

    /// Makes a scratch directory with a volume whose metadata have no checksums, so that tests can
    /// damage it.
    pub(crate) fn with_plain_volume(format: Format) -> Scratch {
        let scratch = Scratch::new(format);
        let size = if format == Format::Ext2 { "16M" } else { "96M" };
        ok(&["mkfs", "-q", "-t", format.name(), &scratch.image().display().to_string(), size]);
        scratch
    }

    /// Makes a scratch directory with an ext2 volume of `size`.
    pub(crate) fn with_ext2(size: &str) -> Scratch {
        let scratch = Scratch::new(Format::Ext2);
        ok(&["mkfs", "-q", "-t", "ext2", &scratch.image().display().to_string(), size]);
        scratch
    }

    /// Checks that the reference checker finds no error.
    pub(crate) fn judge(&self) {
        match self.format {
            Format::Ext2 | Format::Ext4 => e2fsck(&self.image()),
            Format::F2fs => fsck_f2fs(&self.image()),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.path("disk.img")
    }

    /// Returns `IMAGE:path` for a path on the volume.
    pub(crate) fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.image().display())
    }
}

/// Runs the command with these arguments.
pub(crate) fn moafs<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moafs")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command as an ordinary user.
pub(crate) fn moafs_as_user<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    command.args(arguments).stdin(Stdio::null()).uid(ORDINARY_USER).gid(ORDINARY_USER).output().unwrap()
}

/// Returns true if the command can be run as an ordinary user; prints a message if not.
pub(crate) fn can_be_user() -> bool {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    let can = is_root() && command.arg("--version").stdout(Stdio::null()).uid(ORDINARY_USER).status().is_ok();
    if !can {
        eprintln!("SKIPPED: an ordinary user cannot run {}", env!("CARGO_BIN_EXE_moafs"));
    }
    can
}

/// Runs the command, which must end within [`PATIENCE`].
pub(crate) fn moafs_in_time<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(env!("CARGO_BIN_EXE_moafs"));
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{} does not end", shown(arguments));
    output
}

/// Returns true if the tests run as root.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this needs root");
    }
    root
}

/// Runs the command, which must succeed, and returns its output.
pub(crate) fn ok<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = moafs(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", shown(arguments));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the command, which must fail, and returns its exit code and message.
pub(crate) fn fails<S: AsRef<OsStr>>(arguments: &[S]) -> (i32, String) {
    let output = moafs(arguments);
    assert!(!output.status.success(), "{} succeeded", shown(arguments));
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn shown<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    format!("moafs {}", words.join(" "))
}

/// Runs the reference checker, where it is installed, and checks its verdict.
pub(crate) fn e2fsck(image: &Path) {
    match Command::new("e2fsck").arg("-fn").arg(image).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "e2fsck -fn: {said}");
        }
        Err(_) => eprintln!("SKIPPED: e2fsck is not installed"),
    }
}

/// Does the same for F2FS, whose checker "fixes" some defects in its memory without a word in the
/// exit code.
pub(crate) fn fsck_f2fs(image: &Path) {
    match Command::new("fsck.f2fs").arg("--dry-run").arg(image).stdin(Stdio::null()).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let faults = ["[Fail]", "[ASSERT]", "[FIX]"];
            let sound = output.status.success() && !faults.iter().any(|fault| said.contains(fault));
            assert!(sound, "fsck.f2fs --dry-run: {said}");
        }
        Err(_) => eprintln!("SKIPPED: fsck.f2fs is not installed"),
    }
}

/// Returns true if real mounts can be made here; prints a message if not.
pub(crate) fn can_mount() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let can = root && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("SKIPPED: real mounts need root and /dev/fuse");
    }
    can
}

/// A mount that is unmounted when the value is dropped, also when a test fails.
pub(crate) struct Mounted {
    pub(crate) target: PathBuf,
}

impl Mounted {
    /// Mounts the scratch's image, in the background.
    pub(crate) fn new(scratch: &Scratch, options: &str) -> Mounted {
        let target = scratch.path("mnt");
        std::fs::create_dir_all(&target).unwrap();
        let mut words = vec!["mount".to_owned()];
        if !options.is_empty() {
            words.extend(["-o".to_owned(), options.to_owned()]);
        }
        words.extend([scratch.image().display().to_string(), target.display().to_string()]);
        ok(&words);
        Mounted { target }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.target.join(name)
    }

    /// Unmounts as a user does. Tests run beside one another: between fork and exec their children have our files open.
    pub(crate) fn unmount(self) {
        let mut outcome = moafs(&["umount".as_ref(), self.target.as_os_str()]);
        for _ in 0..50 {
            if !String::from_utf8_lossy(&outcome.stderr).contains("is busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            outcome = moafs(&["umount".as_ref(), self.target.as_os_str()]);
        }
        assert!(outcome.status.success(), "umount: {}", String::from_utf8_lossy(&outcome.stderr));
    }

    /// Reads `.moafs/stats` of the mount.
    pub(crate) fn stats(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.path(".moafs/stats")).unwrap()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.target) {
            moafs(&["umount".as_ref(), "--lazy".as_ref(), self.target.as_os_str()]);
        }
    }
}

/// A child that does not outlive its test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: a plain system call about a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Returns its exit code, within [`PATIENCE`].
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn is_mounted(target: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let target = target.display().to_string();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&target))
}

/// Waits until `holds` returns true.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A loop device on a file; detached when the value is dropped.
pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    pub(crate) fn attach(file: &Path, options: &[&str]) -> LoopDevice {
        let output = Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        LoopDevice(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Returns true if loop devices can be had here; prints a message if not.
pub(crate) fn can_loop() -> bool {
    let can = Path::new("/dev/loop-control").exists();
    if !can {
        eprintln!("SKIPPED: there are no loop devices");
    }
    can
}

/// Returns true if no loop device has the image.
pub(crate) fn is_detached(image: &Path) -> bool {
    let image = image.canonicalize().unwrap();
    let loops = std::fs::read_dir("/sys/block").unwrap().flatten();
    !loops
        .map(|entry| entry.path().join("loop/backing_file"))
        .any(|path| std::fs::read_to_string(path).is_ok_and(|backing| Path::new(backing.trim_end()) == image))
}
