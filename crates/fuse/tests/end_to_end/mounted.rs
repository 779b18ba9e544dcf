//! A mount for a test: served by a thread, and unmounted even after a failure.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use moafs_fuse::{FileSystem, MountError, MountHandle, Negotiated, Notifier, Session, SessionOptions, Transport};
use tempfile::TempDir;

/// Runs each test over each transport.
macro_rules! over_both_transports {
    ($($test:ident),* $(,)?) => {
        mod dev {
            $(#[test] fn $test() { super::$test(moafs_fuse::Transport::Dev); })*
        }
        mod uring {
            $(#[test] fn $test() { super::$test(moafs_fuse::Transport::Uring); })*
        }
    };
}

pub(crate) use over_both_transports;

/// Environment variables that tell the child its mount point and its transport.
pub(crate) const CHILD_MOUNT: &str = "MOAFS_FUSE_TEST_CHILD_MOUNT";
const CHILD_TRANSPORT: &str = "MOAFS_FUSE_TEST_CHILD_TRANSPORT";

const PATIENCE: Duration = Duration::from_secs(20);

/// Prints the reason for which a test is skipped.
pub(crate) fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// Creates a directory to mount on; returns `None` if mounting is impossible.
pub(crate) fn scratch() -> Option<TempDir> {
    if !rustix::process::geteuid().is_root() {
        skip("needs root");
        return None;
    }
    if let Err(error) = File::open("/dev/fuse") {
        skip(&format!("/dev/fuse: {error}"));
        return None;
    }
    Some(tempfile::Builder::new().prefix("moafs-fuse-").tempdir().expect("a directory"))
}

/// Mounts; returns `None` if the kernel does not offer the transport.
pub(crate) fn mount<F: FileSystem>(fs: F, target: &Path, options: &SessionOptions) -> Option<Session<F>> {
    match Session::mount(fs, target, options) {
        Ok(session) => Some(session),
        Err(MountError::Uring(why)) => {
            skip(&format!("no FUSE over io_uring: {why}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let path = path.to_str().expect("a plain path");
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// Polls until `reached` holds; panics when the time is over.
pub(crate) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mount that is being served.
pub(crate) struct Mounted<F: FileSystem> {
    dir: TempDir,
    fs: Arc<F>,
    negotiated: Negotiated,
    notifier: Notifier,
    mount_handle: MountHandle,
    server: Option<JoinHandle<io::Result<()>>>,
}

impl<F: FileSystem> Mounted<F> {
    pub(crate) fn new(fs: F, options: &SessionOptions) -> Option<Self> {
        let dir = scratch()?;
        let session = mount(fs, dir.path(), options)?;
        Some(Self {
            dir,
            fs: Arc::clone(session.fs()),
            negotiated: session.negotiated().clone(),
            notifier: session.notifier(),
            mount_handle: session.mount_handle(),
            server: Some(std::thread::spawn(move || session.serve())),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    pub(crate) fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    pub(crate) fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    pub(crate) fn mount_handle(&self) -> MountHandle {
        self.mount_handle.clone()
    }

    /// Unmounts as a signal handler's thread would, while the server goes on; it must then return by itself.
    pub(crate) fn unmount(mut self) {
        // A child that another test is just starting may still hold a file of this process.
        wait_until("unmounted", || match self.mount_handle.unmount() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => false,
            result => {
                result.expect("unmount");
                true
            }
        });
        assert!(!is_mounted(self.path()));
        let server = self.server.take().expect("served until now");
        wait_until("the server sees that the mount is gone", || server.is_finished());
        server.join().expect("no panic").expect("serve");
    }
}

impl<F: FileSystem> Drop for Mounted<F> {
    fn drop(&mut self) {
        let _ = self.mount_handle.detach();
    }
}

/// Returns the transport that the child was told.
pub(crate) fn child_transport() -> Transport {
    let told = std::env::var(CHILD_TRANSPORT).expect("told together with the place");
    let all = [Transport::Auto, Transport::Uring, Transport::Dev];
    all.into_iter().find(|transport| format!("{transport:?}") == told).expect("one of the three")
}

/// A daemon in a process of its own, to be killed. Dropping it ends the process and removes the mount.
pub(crate) struct ChildServer {
    process: Child,
    target: PathBuf,
}

impl ChildServer {
    /// Starts the child and waits for its mount; returns `None` if the kernel does not offer the transport.
    pub(crate) fn new(target: &Path, transport: Transport) -> Option<Self> {
        Self::with(target, transport, "child_serves_when_told_to", &[])
    }

    /// Does the same for a child that runs the test `serves`, and is told more.
    pub(crate) fn with(target: &Path, transport: Transport, serves: &str, told: &[(&str, &Path)]) -> Option<Self> {
        let process = Command::new(std::env::current_exe().expect("this test's program"))
            .args(["--exact", serves])
            .envs(told.iter().copied())
            .env(CHILD_MOUNT, target)
            .env(CHILD_TRANSPORT, format!("{transport:?}"))
            .stdout(Stdio::null())
            .spawn()
            .expect("spawn");
        let mut child = Self { process, target: target.to_owned() };
        let begin = Instant::now();
        while !is_mounted(target) {
            if child.process.try_wait().expect("wait").is_some() {
                skip("the child could not mount");
                return None;
            }
            assert!(begin.elapsed() < PATIENCE, "the child does not mount");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(child)
    }

    /// Kills the process with a signal that it cannot catch.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if is_mounted(&self.target) {
            let _ = moafs_fuse::unmount(&self.target, true);
        }
    }
}

/// A loop device over a scratch file.
pub(crate) struct LoopDevice {
    path: String,
    _image: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub(crate) fn new() -> Option<Self> {
        scratch()?;
        let image = tempfile::NamedTempFile::new().expect("an image");
        image.as_file().set_len(1 << 20).expect("its size");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).expect("a path").trim().to_owned();
                assert_ne!(std::fs::metadata(&path).expect("the device").rdev(), 0);
                Some(Self { path, _image: image })
            }
            _ => {
                skip("no loop device can be had");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}
