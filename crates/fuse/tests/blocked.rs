//! Requests that block in the file system, on real mounts over both transports. Client and daemon are processes of
//! their own: a process that waits for itself could not be killed. Needs root and /dev/fuse; without them every test
//! says so and passes.

#[path = "end_to_end/mounted.rs"]
#[allow(dead_code, reason = "shared with the end-to-end suite")]
mod mounted;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moafs_fuse::{
    AttrReply, CreateArgs, Entry, Errno, FOREVER, FallocateMode, FileAttr, FileHandle, FileSystem, NodeId, OpenReply,
    ReqCtx, Session, SessionOptions, StatFs, Transport,
};
use mounted::{ChildServer, over_both_transports, wait_until};
use rustix::fs::{FallocateFlags, Mode, OFlags};

/// Calls at once: more than all queues together may have threads.
const MANY: u64 = 200;

/// Calls that block: fewer than a queue may have threads. Clients may all be on one CPU.
const BLOCKED: u64 = 30;

/// Calls of each thread of a burst, one right after the other.
const BURST: u32 = 100;

/// Environment variables that tell a client its mount point, its operation, and how many threads call it.
const CLIENT_MOUNT: &str = "MOAFS_FUSE_TEST_CLIENT_MOUNT";
const CLIENT_OPERATION: &str = "MOAFS_FUSE_TEST_CLIENT_OPERATION";
const CLIENT_THREADS: &str = "MOAFS_FUSE_TEST_CLIENT_THREADS";
/// Tells the daemon the directory through which a test watches and steers it.
const SIGNS: &str = "MOAFS_FUSE_TEST_SIGNS";

over_both_transports! {
    clients_of_a_killed_daemon_end,
    others_are_answered_beside_many_blocked_requests,
    a_killed_client_ends_while_its_operation_blocks,
    a_killed_client_ends_while_a_file_without_a_name_waits_for_space,
    every_request_of_a_burst_is_answered,
}

/// Files whose fsync, fallocate and creation without a name take until a file `open` appears among the signs, or until
/// the caller is interrupted.
struct Gated {
    signs: PathBuf,
    blocked: AtomicU64,
}

impl Gated {
    fn pass(&self) -> moafs_fuse::Result<()> {
        if self.signs.join("open").exists() {
            return Ok(());
        }
        let number = self.blocked.fetch_add(1, Ordering::Relaxed);
        File::create(self.signs.join(format!("blocked-{number}"))).expect("a sign");
        while !self.signs.join("open").exists() {
            if moafs_fuse::interrupted_caller().is_some() {
                File::create(self.signs.join(format!("interrupted-{number}"))).expect("a sign");
                return Err(Errno::EINTR);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn attr(node: u64) -> FileAttr {
    let mode = if node == NodeId::ROOT.0 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    FileAttr { ino: node, mode, nlink: 1, blksize: 4096, ..FileAttr::default() }
}

impl FileSystem for Gated {
    fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        Ok(AttrReply { attr: attr(ctx.node.0), attr_ttl: FOREVER })
    }

    fn lookup(&self, _: &ReqCtx, name: &[u8]) -> moafs_fuse::Result<Entry> {
        let number: u64 = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Errno::ENOENT)?;
        let node = 2 + number;
        Ok(Entry { node: NodeId(node), generation: 0, attr: attr(node), entry_ttl: FOREVER, attr_ttl: FOREVER })
    }

    fn statfs(&self, _: &ReqCtx) -> moafs_fuse::Result<StatFs> {
        Ok(StatFs { blocks: 77, ..StatFs::default() })
    }

    fn fsync(&self, _: &ReqCtx, _: FileHandle, _: bool) -> moafs_fuse::Result<()> {
        self.pass()
    }

    fn fallocate(&self, _: &ReqCtx, _: FileHandle, _: u64, _: u64, _: FallocateMode) -> moafs_fuse::Result<()> {
        self.pass()
    }

    fn tmpfile(&self, _: &ReqCtx, _: &CreateArgs) -> moafs_fuse::Result<(Entry, OpenReply)> {
        self.pass()?;
        Err(Errno::ENOSPC)
    }
}

/// Ends a mount whose daemon may be dead or may never answer: the kernel fails every request that waits.
fn abort(target: &Path) {
    let _ = rustix::mount::unmount(target, rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH);
}

/// A mount of [`Gated`] whose daemon and clients end with it.
struct Blocked {
    signs: tempfile::TempDir,
    dir: tempfile::TempDir,
    daemon: ChildServer,
    clients: Vec<Child>,
}

impl Blocked {
    fn new(transport: Transport) -> Option<Self> {
        let (dir, signs) = (mounted::scratch()?, mounted::scratch()?);
        let daemon = ChildServer::with(dir.path(), transport, "daemon_serves_when_told_to", &[(SIGNS, signs.path())])?;
        Some(Self { signs, dir, daemon, clients: Vec::new() })
    }

    /// Starts a client whose threads all call `operation`, and waits until `count` calls of it block.
    fn client(&mut self, operation: &str, threads: u64) {
        let client = Command::new(std::env::current_exe().expect("this test's program"))
            .args(["--exact", "client_calls_when_told_to"])
            .env(CLIENT_MOUNT, self.dir.path())
            .env(CLIENT_OPERATION, operation)
            .env(CLIENT_THREADS, threads.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        self.clients.push(client);
    }

    fn signs(&self, of: &str) -> u64 {
        let names = std::fs::read_dir(self.signs.path()).expect("the signs");
        let names = names.map(|entry| entry.expect("a sign").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(of)).count() as u64
    }

    fn wait_for_clients(&mut self) {
        for client in &mut self.clients {
            wait_until("the client has ended", || client.try_wait().expect("wait").is_some());
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Whatever still waits is ended by force: it would outlive the test.
        let _ = File::create(self.signs.path().join("open"));
        abort(self.dir.path());
        self.daemon.kill();
        for client in &mut self.clients {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

fn clients_of_a_killed_daemon_end(transport: Transport) {
    let Some(mut blocked) = Blocked::new(transport) else { return };
    blocked.client("fsync", MANY);
    // Some block in the daemon, the others wait for a thread of it.
    wait_until("some block", || blocked.signs("blocked") >= 2);
    std::thread::sleep(Duration::from_millis(500));
    blocked.daemon.kill();
    blocked.wait_for_clients();
}

fn others_are_answered_beside_many_blocked_requests(transport: Transport) {
    let Some(mut blocked) = Blocked::new(transport) else { return };
    blocked.client("fsync", BLOCKED);
    wait_until("all block", || blocked.signs("blocked") == BLOCKED);
    for _ in 0..10 {
        blocked.client("statfs", 4);
    }
    for client in &mut blocked.clients[1..] {
        wait_until("statfs is answered", || client.try_wait().expect("wait").is_some());
    }
    assert_eq!(blocked.signs("interrupted"), 0);
    File::create(blocked.signs.path().join("open")).expect("a sign");
    blocked.wait_for_clients();
}

fn a_killed_client_ends_while_its_operation_blocks(transport: Transport) {
    a_killed_client_ends(transport, "fallocate");
}

fn a_killed_client_ends_while_a_file_without_a_name_waits_for_space(transport: Transport) {
    a_killed_client_ends(transport, "tmpfile");
}

fn a_killed_client_ends(transport: Transport, operation: &str) {
    let Some(mut blocked) = Blocked::new(transport) else { return };
    blocked.client(operation, 1);
    wait_until("it blocks", || blocked.signs("blocked") == 1);
    blocked.clients[0].kill().expect("kill");
    blocked.wait_for_clients();
    assert_eq!(blocked.signs("interrupted"), 1);
}

fn every_request_of_a_burst_is_answered(transport: Transport) {
    let Some(mut blocked) = Blocked::new(transport) else { return };
    File::create(blocked.signs.path().join("open")).expect("a sign");
    blocked.client("burst", MANY);
    blocked.wait_for_clients();
}

/// Serves as the daemon of the tests above; not a test by itself.
#[test]
fn daemon_serves_when_told_to() {
    let (Some(path), Some(signs)) = (std::env::var_os(mounted::CHILD_MOUNT), std::env::var_os(SIGNS)) else { return };
    let mut options = SessionOptions { transport: mounted::child_transport(), ..SessionOptions::default() };
    options.mount.fsname = "moafs-fuse-test".to_owned();
    let fs = Gated { signs: signs.into(), blocked: AtomicU64::new(0) };
    Session::mount(fs, Path::new(&path), &options).expect("mount").serve().expect("serve");
}

/// Is the client of the tests above; not a test by itself.
#[test]
fn client_calls_when_told_to() {
    let Some(mount) = std::env::var_os(CLIENT_MOUNT) else { return };
    let told = |name| std::env::var(name).expect("told together with the place");
    let (operation, threads): (_, u64) = (told(CLIENT_OPERATION), told(CLIENT_THREADS).parse().expect("a number"));
    let mount = Path::new(&mount);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let operation = &operation;
            scope.spawn(move || call(operation, mount, number));
        }
    });
}

/// Errors are none of a test's concern: a daemon that was killed causes them.
fn call(operation: &str, mount: &Path, number: u64) {
    if operation == "statfs" {
        let _ = rustix::fs::statfs(mount);
        return;
    }
    if operation == "tmpfile" {
        let _ = rustix::fs::open(mount, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR);
        return;
    }
    let Ok(file) = OpenOptions::new().write(true).open(mount.join(number.to_string())) else { return };
    match operation {
        "fsync" => drop(file.sync_all()),
        "burst" => (0..BURST).for_each(|_| drop(file.sync_all())),
        _ => drop(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096)),
    }
}
