//! Requests that block in the file system, on real mounts over both transports. Client and daemon are processes of
//! their own: a process that waits for itself could not be killed. Needs root and /dev/fuse; without them every test
//! says so and passes.

#[path = "end_to_end/mounted.rs"]
#[allow(dead_code, reason = "shared with the end-to-end suite")]
mod mounted;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moafs_fuse::{AttrReply, Entry, Errno, FOREVER, FileAttr, FileHandle, FileSystem, NodeId, ReqCtx, Session};
use moafs_fuse::{SessionOptions, Transport};
use mounted::{ChildServer, wait_until};

/// Calls at once: more than all queues together have threads.
const MANY: u64 = 60;

/// Tells a client its mount point.
const CLIENT_MOUNT: &str = "MOAFS_FUSE_TEST_CLIENT_MOUNT";
/// Tells the daemon the directory in which it marks each call that blocks.
const MARKS: &str = "MOAFS_FUSE_TEST_MARKS";

/// Files whose fsync never returns.
struct Blocks {
    marks: PathBuf,
    blocked: AtomicU64,
}

fn attr(node: u64) -> FileAttr {
    let mode = if node == NodeId::ROOT.0 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    FileAttr { ino: node, mode, nlink: 1, blksize: 4096, ..FileAttr::default() }
}

impl FileSystem for Blocks {
    fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        Ok(AttrReply { attr: attr(ctx.node.0), attr_ttl: FOREVER })
    }

    fn lookup(&self, _: &ReqCtx, name: &[u8]) -> moafs_fuse::Result<Entry> {
        let number: u64 = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Errno::ENOENT)?;
        let node = 2 + number;
        Ok(Entry { node: NodeId(node), generation: 0, attr: attr(node), entry_ttl: FOREVER, attr_ttl: FOREVER })
    }

    fn fsync(&self, _: &ReqCtx, _: FileHandle, _: bool) -> moafs_fuse::Result<()> {
        let number = self.blocked.fetch_add(1, Ordering::Relaxed);
        File::create(self.marks.join(number.to_string())).expect("a mark");
        loop {
            std::thread::park();
        }
    }
}

/// Ends a mount whose daemon may be dead or may never answer: the kernel fails every request that waits.
fn abort(target: &Path) {
    let _ = rustix::mount::unmount(target, rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH);
}

fn clients_of_a_killed_daemon_end(transport: Transport) {
    let (Some(dir), Some(marks)) = (mounted::scratch(), mounted::scratch()) else { return };
    let told = [(MARKS, marks.path())];
    let Some(mut daemon) = ChildServer::with(dir.path(), transport, "daemon_serves_when_told_to", &told) else {
        return;
    };
    let mut client = Command::new(std::env::current_exe().expect("this test's program"))
        .args(["--exact", "client_calls_when_told_to"])
        .env(CLIENT_MOUNT, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("spawn");
    // Some calls block in the daemon, the others wait for a thread of it.
    wait_until("some block", || std::fs::read_dir(marks.path()).expect("the marks").count() >= 2);
    std::thread::sleep(Duration::from_millis(500));
    daemon.kill();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("the client has ended", || client.try_wait().expect("wait").is_some());
    }));
    // A client that still waits would outlive the test.
    abort(dir.path());
    client.wait().expect("wait");
    ended.expect("clients of a killed daemon end");
}

mod dev {
    #[test]
    fn clients_of_a_killed_daemon_end() {
        super::clients_of_a_killed_daemon_end(moafs_fuse::Transport::Dev);
    }
}

mod uring {
    #[test]
    fn clients_of_a_killed_daemon_end() {
        super::clients_of_a_killed_daemon_end(moafs_fuse::Transport::Uring);
    }
}

/// Serves as the daemon of the tests above; not a test by itself.
#[test]
fn daemon_serves_when_told_to() {
    let (Some(path), Some(marks)) = (std::env::var_os(mounted::CHILD_MOUNT), std::env::var_os(MARKS)) else { return };
    let mut options = SessionOptions { transport: mounted::child_transport(), ..SessionOptions::default() };
    options.mount.fsname = "moafs-fuse-test".to_owned();
    let fs = Blocks { marks: marks.into(), blocked: AtomicU64::new(0) };
    Session::mount(fs, Path::new(&path), &options).expect("mount").serve().expect("serve");
}

/// Is the client of the tests above; not a test by itself.
#[test]
fn client_calls_when_told_to() {
    let Some(mount) = std::env::var_os(CLIENT_MOUNT) else { return };
    let mount = Path::new(&mount);
    std::thread::scope(|scope| {
        for number in 0..MANY {
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(mount.join(number.to_string()));
                // The daemon is killed, so every call fails.
                let _ = file.and_then(|file| file.sync_all());
            });
        }
    });
}
