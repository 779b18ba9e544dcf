//! The same suite over both transports, against a file system in memory, on real mounts. Needs root and /dev/fuse;
//! without them every test says so and passes.

#[path = "../examples/nullfs/memfs.rs"]
mod memfs;
#[path = "end_to_end/mounted.rs"]
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memfs::MemFs;
use moafs_fuse::{
    AttrReply, Entry, Errno, FOREVER, FileAttr, FileHandle, FileSystem, MountKind, NodeId, ReqCtx, SessionOptions,
    Transport, Unmounted, WriteFlags,
};
use mounted::{CHILD_MOUNT, ChildServer, LoopDevice, Mounted, over_both_transports, skip};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};

over_both_transports! {
    files_are_created_written_read_and_renamed,
    an_unlinked_open_file_lives_on,
    a_directory_of_5000_entries_is_listed_whole,
    removed_files_are_forgotten,
    links_and_special_files_are_made,
    rename_flags_arrive,
    attributes_are_set,
    writing_by_others_clears_set_user_id,
    birth_time_is_shown,
    xattrs_are_kept,
    inode_flags_are_kept,
    holes_are_found_and_punched,
    ranges_are_copied,
    truncating_opens_truncate,
    nameless_files_get_a_name,
    large_transfers_arrive_whole,
    requests_are_as_large_as_agreed,
    direct_io_reads_and_writes,
    shared_mappings_are_written_back,
    writeback_cache_keeps_what_was_written,
    a_slow_request_does_not_hold_up_others,
    many_threads_work_at_once,
    a_panicking_handler_fails_one_request,
    notifications_drop_what_is_cached,
    a_busy_mount_stays_and_an_idle_one_goes,
    clients_may_be_there_before_the_mount_is_ready,
    destroy_is_called_once_at_the_end,
    dropping_a_session_detaches_its_mount,
    a_killed_daemon_leaves_a_mount_that_can_be_unmounted,
    a_block_device_mount_syncs_and_waits_for_destroy,
}

fn options(transport: Transport) -> SessionOptions {
    let mut options = SessionOptions { transport, ..SessionOptions::default() };
    options.mount.fsname = "moafs-fuse-test".to_owned();
    options.mount.allow_other = true;
    options
}

/// Mounts a fresh file system in memory; returns `None` if that is impossible.
fn mounted(transport: Transport) -> Option<Mounted<MemFs>> {
    Mounted::new(MemFs::default(), &options(transport))
}

/// Returns bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn raw_os_error<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn files_are_created_written_read_and_renamed(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let root = mount.path();
    assert_eq!(mount.negotiated().transport, transport);
    fs::create_dir(root.join("dir")).expect("mkdir");
    let data = pattern(100_000);
    fs::write(root.join("dir/file"), &data).expect("write");
    assert_eq!(fs::read(root.join("dir/file")).expect("read"), data);
    assert_eq!(raw_os_error(fs::remove_dir(root.join("dir"))), Some(libc::ENOTEMPTY));
    fs::rename(root.join("dir/file"), root.join("other")).expect("rename");
    assert_eq!(fs::read(root.join("other")).expect("read after rename"), data);
    assert_eq!(raw_os_error(fs::metadata(root.join("dir/file"))), Some(libc::ENOENT));
    fs::write(root.join("third"), b"short").expect("write");
    fs::rename(root.join("third"), root.join("other")).expect("rename over");
    assert_eq!(fs::read(root.join("other")).expect("read"), b"short");
    fs::remove_dir(root.join("dir")).expect("rmdir");
    let mut file = OpenOptions::new().append(true).open(root.join("other")).expect("open");
    file.write_all(b" and long").expect("append");
    file.sync_all().expect("fsync");
    File::open(root).and_then(|dir| dir.sync_all()).expect("fsync of a directory");
    assert_eq!(fs::read(root.join("other")).expect("read"), b"short and long");
    drop(file);
    mount.unmount();
}

fn an_unlinked_open_file_lives_on(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("create");
    file.write_all(b"before").expect("write");
    fs::remove_file(&path).expect("unlink");
    assert_eq!(file.metadata().expect("fstat").nlink(), 0);
    file.write_all(b" and after").expect("write after unlink");
    file.rewind().expect("seek");
    let mut data = String::new();
    file.read_to_string(&mut data).expect("read after unlink");
    assert_eq!(data, "before and after");
    assert!(!path.exists());
    drop(file);
    mount.unmount();
}

fn a_directory_of_5000_entries_is_listed_whole(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let name = |number: usize| format!("entry-{number}-{}", "x".repeat(number % 100));
    for number in 0..5000 {
        File::create(mount.path().join(name(number))).expect("create");
    }
    let mut listed: Vec<String> = fs::read_dir(mount.path())
        .expect("opendir")
        .map(|entry| entry.expect("readdir"))
        .inspect(|entry| assert!(entry.file_type().expect("a type").is_file()))
        .map(|entry| entry.file_name().into_string().expect("plain names"))
        .collect();
    let mut expected: Vec<_> = (0..5000).map(name).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for name in expected.iter().step_by(2) {
        fs::remove_file(mount.path().join(name)).expect("unlink");
    }
    assert_eq!(fs::read_dir(mount.path()).expect("opendir").count(), 2500);
    mount.unmount();
}

fn removed_files_are_forgotten(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = |number: usize| mount.path().join(format!("file-{number}"));
    for number in 0..1000 {
        File::create(path(number)).expect("create");
    }
    assert_eq!(mount.fs().nodes(), 1001);
    for number in 0..1000 {
        fs::remove_file(path(number)).expect("unlink");
    }
    mounted::wait_until("only the root is known", || mount.fs().nodes() == 1);
    mount.unmount();
}

fn links_and_special_files_are_made(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let root = mount.path();
    let target = "t/".repeat(2000);
    symlink(&target, root.join("symlink")).expect("symlink");
    assert_eq!(fs::read_link(root.join("symlink")).expect("readlink"), Path::new(&target));
    fs::write(root.join("file"), b"linked").expect("write");
    fs::hard_link(root.join("file"), root.join("hard")).expect("link");
    assert_eq!(fs::metadata(root.join("file")).expect("stat").nlink(), 2);
    fs::remove_file(root.join("file")).expect("unlink");
    assert_eq!(fs::read(root.join("hard")).expect("read"), b"linked");
    let fifo = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, root.join("fifo"), rustix::fs::FileType::Fifo, fifo, 0).expect("mkfifo");
    let null = rustix::fs::makedev(1, 300);
    rustix::fs::mknodat(CWD, root.join("dev"), rustix::fs::FileType::CharacterDevice, fifo, null).expect("mknod");
    assert!(fs::metadata(root.join("fifo")).expect("stat").file_type().is_fifo());
    let device = fs::metadata(root.join("dev")).expect("stat");
    assert!(device.file_type().is_char_device());
    assert_eq!(device.rdev(), null);
    let long = root.join("n".repeat(255));
    fs::write(&long, b"").expect("the longest name");
    assert_eq!(raw_os_error(fs::write(root.join("n".repeat(256)), b"")), Some(libc::ENAMETOOLONG));
    mount.unmount();
}

fn rename_flags_arrive(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let (a, b) = (mount.path().join("a"), mount.path().join("b"));
    fs::write(&a, b"a").expect("write");
    fs::write(&b, b"b").expect("write");
    let refused = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!((fs::read(&a).expect("read"), fs::read(&b).expect("read")), (b"b".to_vec(), b"a".to_vec()));
    mount.unmount();
}

fn attributes_are_set(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    fs::write(&path, pattern(10_000)).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
    let file = OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(5_000).expect("ftruncate");
    let long_ago = std::time::UNIX_EPOCH - Duration::new(1_000, 5);
    file.set_modified(long_ago).expect("utimensat");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.uid(), stat.gid(), stat.len()), (12, 34, 5_000));
    assert_eq!(stat.modified().expect("mtime"), long_ago);
    file.set_len(1 << 40).expect("extending");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 1 << 40);
    drop(file);
    let umask_applies =
        Command::new("sh").args(["-c", "umask 077; : > \"$0\""]).arg(mount.path().join("private")).status();
    assert!(umask_applies.expect("sh").success());
    assert_eq!(fs::metadata(mount.path().join("private")).expect("stat").mode() & 0o777, 0o600);
    mount.unmount();
}

fn writing_by_others_clears_set_user_id(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    fs::write(&path, b"x").expect("write");
    let write_as_nobody =
        || Command::new("sh").args(["-c", "echo y >> \"$0\""]).arg(&path).uid(65534).gid(65534).status().expect("sh");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(mount.path().parent().expect("a parent"), fs::Permissions::from_mode(0o755)).expect("chmod");
    assert!(write_as_nobody().success());
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
    mount.unmount();
}

fn birth_time_is_shown(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    fs::write(&path, b"x").expect("write");
    let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).expect("statx");
    assert!(StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME));
    assert!(stat.stx_btime.tv_sec > 0);
    mount.unmount();
}

fn xattrs_are_kept(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    fs::write(&path, b"x").expect("write");
    let value = pattern(60_000);
    rustix::fs::setxattr(&path, "user.large", &value, XattrFlags::empty()).expect("setxattr");
    rustix::fs::setxattr(&path, "user.small", b"v", XattrFlags::CREATE).expect("setxattr");
    let refused = rustix::fs::setxattr(&path, "user.small", b"w", XattrFlags::CREATE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    let mut out = vec![0; 65_536];
    let len = rustix::fs::getxattr(&path, "user.large", &mut out[..]).expect("getxattr");
    assert_eq!(out[..len], value);
    assert_eq!(rustix::fs::getxattr_query(&path, "user.large").expect("size"), 60_000);
    assert_eq!(rustix::fs::getxattr(&path, "user.large", &mut out[..10]), Err(rustix::io::Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut out[..]).expect("listxattr");
    assert_eq!(&out[..len], b"user.large\0user.small\0");
    rustix::fs::removexattr(&path, "user.large").expect("removexattr");
    assert_eq!(rustix::fs::getxattr(&path, "user.large", &mut out[..]), Err(rustix::io::Errno::NODATA));
    mount.unmount();
}

fn inode_flags_are_kept(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    for name in ["file", "dir"] {
        let path = mount.path().join(name);
        if name == "dir" { fs::create_dir(&path) } else { fs::write(&path, b"x") }.expect("create");
        let file = File::open(&path).expect("open");
        rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NODUMP).expect("set flags");
        assert_eq!(rustix::fs::ioctl_getflags(&file).expect("get flags"), rustix::fs::IFlags::NODUMP);
    }
    mount.unmount();
}

fn holes_are_found_and_punched(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    const MIB: u64 = 1 << 20;
    let path = mount.path().join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
    file.write_all_at(b"data", 4 * MIB).expect("write");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(4 * MIB));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(4 * MIB)), Ok(4 * MIB + 4));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(5 * MIB)), Err(rustix::io::Errno::NXIO));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 6 * MIB).expect("allocate");
    assert_eq!(file.metadata().expect("stat").len(), 6 * MIB);
    file.write_all_at(&pattern(8192), 0).expect("write");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 4096).expect("punch");
    let mut data = vec![1; 8192];
    file.read_exact_at(&mut data, 0).expect("read");
    assert!(data[..4096].iter().all(|&byte| byte == 0));
    assert_eq!(data[4096..], pattern(8192)[4096..]);
    let refused = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    mount.unmount();
}

fn ranges_are_copied(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let data = pattern(3 << 20);
    fs::write(mount.path().join("from"), &data).expect("write");
    let from = File::open(mount.path().join("from")).expect("open");
    let to = File::create(mount.path().join("to")).expect("create");
    let (mut off_in, mut off_out) = (1000, 0);
    while off_in < data.len() as u64 {
        let left = data.len() - off_in as usize;
        let copied = rustix::fs::copy_file_range(&from, Some(&mut off_in), &to, Some(&mut off_out), left);
        assert_ne!(copied.expect("copy_file_range"), 0);
    }
    assert_eq!(fs::read(mount.path().join("to")).expect("read"), data[1000..]);
    drop((from, to));
    mount.unmount();
}

fn truncating_opens_truncate(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    for round in 0..20 {
        fs::write(&path, pattern(5000)).expect("write");
        drop(OpenOptions::new().write(true).truncate(true).open(&path).expect("open"));
        assert_eq!(fs::metadata(&path).expect("stat").len(), 0, "round {round}");
        fs::write(&path, b"short").expect("write");
        assert_eq!(fs::read(&path).expect("read"), b"short", "round {round}");
    }
    mount.unmount();
}

fn nameless_files_get_a_name(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let nameless = rustix::fs::open(mount.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    let mut file = File::from(nameless.expect("O_TMPFILE"));
    file.write_all(b"appeared").expect("write");
    assert_eq!(fs::read_dir(mount.path()).expect("opendir").count(), 0);
    let path = mount.path().join("named");
    rustix::fs::linkat(&file, "", CWD, &path, AtFlags::EMPTY_PATH).expect("linkat");
    assert_eq!(fs::read(&path).expect("read"), b"appeared");
    drop(file);
    mount.unmount();
}

fn large_transfers_arrive_whole(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let data = pattern(5 << 20);
    let path = mount.path().join("file");
    let mut file = File::create(&path).expect("create");
    for chunk in data.chunks(1 << 20) {
        file.write_all(chunk).expect("write");
    }
    file.sync_data().expect("fdatasync");
    drop(file);
    drop_caches(&path);
    let mut file = File::open(&path).expect("open");
    let mut read = vec![0; 1 << 20];
    for chunk in data.chunks(1 << 20) {
        file.read_exact(&mut read).expect("read");
        assert!(read == chunk);
    }
    drop(file);
    mount.unmount();
}

fn drop_caches(path: &Path) {
    let file = File::open(path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

/// A file system of one endless file, which records the largest request.
#[derive(Default)]
struct Sizes {
    read: AtomicU64,
    write: AtomicU64,
}

const ENDLESS_LEN: u64 = 1 << 30;

fn attr_of(ino: u64, mode: u32, size: u64) -> AttrReply {
    let attr = FileAttr { ino, mode, size, nlink: 1, blksize: 4096, ..FileAttr::default() };
    AttrReply { attr, attr_ttl: FOREVER }
}

fn entry_of(reply: AttrReply) -> Entry {
    let node = NodeId(reply.attr.ino);
    Entry { node, generation: 0, attr: reply.attr, entry_ttl: FOREVER, attr_ttl: FOREVER }
}

impl FileSystem for Sizes {
    fn lookup(&self, _: &ReqCtx, _: &[u8]) -> moafs_fuse::Result<Entry> {
        Ok(entry_of(attr_of(2, libc::S_IFREG | 0o666, ENDLESS_LEN)))
    }
    fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        match ctx.node {
            NodeId::ROOT => Ok(attr_of(1, libc::S_IFDIR | 0o755, 0)),
            _ => Ok(attr_of(2, libc::S_IFREG | 0o666, ENDLESS_LEN)),
        }
    }
    fn read(&self, _: &ReqCtx, _: FileHandle, _: u64, out: &mut [u8]) -> moafs_fuse::Result<usize> {
        self.read.fetch_max(out.len() as u64, Ordering::Relaxed);
        Ok(out.len())
    }
    fn write(&self, _: &ReqCtx, _: FileHandle, _: u64, data: &[u8], _: WriteFlags) -> moafs_fuse::Result<usize> {
        self.write.fetch_max(data.len() as u64, Ordering::Relaxed);
        Ok(data.len())
    }
}

fn requests_are_as_large_as_agreed(transport: Transport) {
    let Some(mount) = Mounted::new(Sizes::default(), &options(transport)) else { return };
    let mut file = OpenOptions::new().read(true).write(true).open(mount.path().join("endless")).expect("open");
    // Memory that was written to: the kernel may fetch, and send, untouched memory page by page.
    file.write_all(&pattern(1 << 20)).expect("write");
    file.seek(SeekFrom::Start(16 << 20)).expect("seek");
    file.read_exact(&mut vec![0; 16 << 20]).expect("read");
    drop(file);
    assert_eq!(mount.negotiated().max_write, 1 << 20);
    assert_eq!(mount.fs().write.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(mount.fs().read.load(Ordering::Relaxed), 1 << 20);
    mount.unmount();
}

fn direct_io_reads_and_writes(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    let data = pattern(1 << 20);
    let open = |write: bool| {
        let mut options = OpenOptions::new();
        options.read(!write).write(write).create(write).custom_flags(libc::O_DIRECT).open(&path).expect("open")
    };
    open(true).write_all(&data).expect("direct write");
    let mut read = vec![0; data.len()];
    open(false).read_exact(&mut read).expect("direct read");
    assert!(read == data);
    mount.unmount();
}

fn shared_mappings_are_written_back(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let path = mount.path().join("file");
    fs::write(&path, pattern(8192)).expect("write");
    // In a process of its own: a page fault that is served by the faulting process itself can deadlock.
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[0:6]=b'mapped'\nm.flush()";
    let Ok(status) = Command::new("python3").args(["-c", script]).arg(&path).status() else {
        return skip("python3 is not installed");
    };
    assert!(status.success());
    let data = fs::read(&path).expect("read");
    assert_eq!((&data[..6], &data[6..]), (&b"mapped"[..], &pattern(8192)[6..]));
    mount.unmount();
}

fn writeback_cache_keeps_what_was_written(transport: Transport) {
    let mut options = options(transport);
    options.init.writeback_cache = true;
    let Some(mount) = Mounted::new(MemFs::default(), &options) else { return };
    let path = mount.path().join("file");
    let data = pattern(1_234_567);
    let mut file = File::create(&path).expect("create");
    for piece in data.chunks(777) {
        file.write_all(piece).expect("write");
    }
    drop(file);
    drop_caches(&path);
    assert!(fs::read(&path).expect("read") == data);
    mount.unmount();
}

fn a_slow_request_does_not_hold_up_others(transport: Transport) {
    const DELAY: Duration = Duration::from_millis(1200);
    let fs = MemFs::with_slow_lookup(b"slow", DELAY);
    let Some(mount) = Mounted::new(fs, &options(transport)) else { return };
    fs::write(mount.path().join("quick"), b"x").expect("write");
    let slow = mount.path().join("slow");
    let sleeper = std::thread::spawn(move || {
        pin_to_first_cpu();
        fs::metadata(slow).is_err()
    });
    std::thread::sleep(DELAY / 6);
    pin_to_first_cpu();
    let begin = Instant::now();
    for number in 0..20 {
        assert!(fs::metadata(mount.path().join(format!("none-{number}"))).is_err());
    }
    let took = begin.elapsed();
    assert!(sleeper.join().expect("no panic"));
    assert!(took < DELAY / 2, "20 lookups took {took:?} beside a slow one");
    mount.unmount();
}

/// Pins the calling thread to one CPU, because requests of one CPU share a queue.
fn pin_to_first_cpu() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).expect("the first CPU");
}

fn many_threads_work_at_once(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let dir = mount.path().join(format!("dir-{thread}"));
            scope.spawn(move || {
                fs::create_dir(&dir).expect("mkdir");
                for round in 0..200 {
                    let path = dir.join(format!("file-{round}"));
                    let data = format!("{thread} {round}").repeat(500);
                    fs::write(&path, &data).expect("write");
                    assert_eq!(fs::read_to_string(&path).expect("read"), data);
                    if round % 2 == 0 {
                        fs::remove_file(&path).expect("unlink");
                    }
                }
                assert_eq!(fs::read_dir(&dir).expect("opendir").count(), 100);
            });
        }
    });
    mount.unmount();
}

/// A file system whose lookup panics for the name `panic` and finds no other name.
struct Panics;

impl FileSystem for Panics {
    fn getattr(&self, _: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        Ok(attr_of(1, libc::S_IFDIR | 0o755, 0))
    }
    fn lookup(&self, _: &ReqCtx, name: &[u8]) -> moafs_fuse::Result<Entry> {
        match name {
            b"panic" => panic!("as the test wants"),
            _ => Err(Errno::ENOENT),
        }
    }
}

fn a_panicking_handler_fails_one_request(transport: Transport) {
    let Some(mount) = Mounted::new(Panics, &options(transport)) else { return };
    for _ in 0..20 {
        assert_eq!(raw_os_error(fs::metadata(mount.path().join("panic"))), Some(libc::EIO));
        assert_eq!(raw_os_error(fs::metadata(mount.path().join("other"))), Some(libc::ENOENT));
    }
    mount.unmount();
}

/// A file whose size changes without the kernel's knowledge, and a name that comes and goes.
#[derive(Default)]
struct Changing {
    size: AtomicU64,
    hidden: AtomicBool,
}

impl FileSystem for Changing {
    fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        match ctx.node {
            NodeId::ROOT => Ok(attr_of(1, libc::S_IFDIR | 0o755, 0)),
            _ => Ok(attr_of(2, libc::S_IFREG | 0o644, self.size.load(Ordering::SeqCst))),
        }
    }
    fn lookup(&self, _: &ReqCtx, _: &[u8]) -> moafs_fuse::Result<Entry> {
        if self.hidden.load(Ordering::SeqCst) {
            return Ok(Entry::negative(FOREVER));
        }
        Ok(entry_of(attr_of(2, libc::S_IFREG | 0o644, self.size.load(Ordering::SeqCst))))
    }
}

fn notifications_drop_what_is_cached(transport: Transport) {
    let Some(mount) = Mounted::new(Changing::default(), &options(transport)) else { return };
    let shared = Arc::clone(mount.fs());
    let path = mount.path().join("name");
    let size = || fs::metadata(&path).map(|stat| stat.len()).ok();
    assert_eq!(size(), Some(0));
    shared.size.store(77, Ordering::SeqCst);
    assert_eq!(size(), Some(0), "the kernel has it cached");
    assert!(mount.notifier().inval_inode(NodeId(2), 0, 0).expect("notify"), "the kernel knows the node");
    assert_eq!(size(), Some(77));
    shared.hidden.store(true, Ordering::SeqCst);
    assert_eq!(size(), Some(77), "the kernel has it cached");
    mount.notifier().inval_entry(NodeId::ROOT, b"name").expect("notify");
    assert_eq!(size(), None);
    mount.notifier().inval_entry(NodeId::ROOT, b"never seen").expect("no error if it is not cached");
    let is_known = mount.notifier().inval_inode(NodeId(99), 0, 0).expect("no error if it is not cached");
    assert!(!is_known);
    let notifier = mount.notifier();
    mount.unmount();
    assert!(notifier.inval_inode(NodeId(2), 0, 0).is_err(), "nobody is left to tell");
}

fn a_busy_mount_stays_and_an_idle_one_goes(transport: Transport) {
    let Some(mount) = mounted(transport) else { return };
    let file = File::create(mount.path().join("file")).expect("create");
    let mount_handle = mount.mount_handle();
    assert_eq!(raw_os_error(mount_handle.unmount()), Some(libc::EBUSY));
    assert!(mount.path().join("file").exists());
    drop(file);
    mount.unmount();
    assert_eq!(mount_handle.unmount().expect("a mount that is gone already"), Unmounted::NotThere);
    assert_eq!(mount_handle.detach().expect("a mount that is gone already"), Unmounted::NotThere);
}

#[derive(Default)]
struct Ending {
    syncs: AtomicU64,
    destroys: AtomicU64,
    slow_destroy: bool,
}

impl FileSystem for Ending {
    fn getattr(&self, _: &ReqCtx, _: Option<FileHandle>) -> moafs_fuse::Result<AttrReply> {
        Ok(attr_of(1, libc::S_IFDIR | 0o755, 0))
    }
    fn syncfs(&self, _: &ReqCtx) -> moafs_fuse::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn destroy(&self) {
        if self.slow_destroy {
            std::thread::sleep(Duration::from_millis(300));
        }
        self.destroys.fetch_add(1, Ordering::SeqCst);
    }
}

fn clients_may_be_there_before_the_mount_is_ready(transport: Transport) {
    for _ in 0..20 {
        let Some(dir) = mounted::scratch() else { return };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(raw_os_error(fs::metadata(dir.path().join("missing"))), Some(libc::ENOENT));
                }
            };
            let clients = [scope.spawn(client), scope.spawn(client)];
            let session = mounted::mount(MemFs::default(), dir.path(), &options(transport));
            std::thread::sleep(Duration::from_millis(2));
            stop.store(true, Ordering::Relaxed);
            clients.into_iter().for_each(|client| client.join().expect("every request is answered"));
            drop(session);
        });
    }
}

fn destroy_is_called_once_at_the_end(transport: Transport) {
    let Some(mount) = Mounted::new(Ending::default(), &options(transport)) else { return };
    let shared = Arc::clone(mount.fs());
    assert_eq!(shared.destroys.load(Ordering::SeqCst), 0);
    mount.unmount();
    assert_eq!(shared.destroys.load(Ordering::SeqCst), 1);
}

fn dropping_a_session_detaches_its_mount(transport: Transport) {
    let Some(dir) = mounted::scratch() else { return };
    let Some(session) = mounted::mount(MemFs::default(), dir.path(), &options(transport)) else { return };
    fs::write(dir.path().join("file"), b"x").expect("write");
    assert!(mounted::is_mounted(dir.path()));
    drop(session);
    assert!(!mounted::is_mounted(dir.path()));
    assert_eq!(fs::read_dir(dir.path()).expect("the directory below").count(), 0);
}

fn a_killed_daemon_leaves_a_mount_that_can_be_unmounted(transport: Transport) {
    let Some(dir) = mounted::scratch() else { return };
    let Some(mut child) = ChildServer::new(dir.path(), transport) else { return };
    fs::write(dir.path().join("file"), b"x").expect("write");
    child.kill();
    // With io_uring the kernel ends the connection in the background, and says ECANCELED until it has.
    let dead = || raw_os_error(fs::metadata(dir.path().join("other"))) == Some(libc::ENOTCONN);
    mounted::wait_until("the mount is dead", dead);
    moafs_fuse::unmount(dir.path(), false).expect("unmount");
    assert!(!mounted::is_mounted(dir.path()));
}

#[test]
fn auto_unmount_takes_the_mount_of_a_killed_daemon_away() {
    if Command::new("fusermount3").arg("-V").output().is_err() {
        return skip("fusermount3 is not installed");
    }
    let Some(dir) = mounted::scratch() else { return };
    let Some(mut child) = ChildServer::new(dir.path(), Transport::Auto) else { return };
    fs::write(dir.path().join("file"), b"x").expect("write");
    child.kill();
    mounted::wait_until("unmounted", || !mounted::is_mounted(dir.path()));
}

#[test]
fn auto_unmount_leaves_alone_what_is_mounted_over_the_mount_of_a_killed_daemon() {
    let Some(dir) = mounted::scratch() else { return };
    let Some(mut child) = ChildServer::new(dir.path(), Transport::Auto) else { return };
    let Some(_cover) = Cover::new(dir.path()) else { return };
    fs::write(dir.path().join("over"), b"x").expect("write");
    mounted::wait_until("watched", || is_named_by_a_process(dir.path()));
    child.kill();
    mounted::wait_until("the watcher has ended", || !is_named_by_a_process(dir.path()));
    assert_eq!(fs::read(dir.path().join("over")).expect("the other file system"), b"x");
}

/// A file system in memory that covers what is mounted on a directory.
struct Cover<'a>(&'a Path);

impl<'a> Cover<'a> {
    /// Returns `None` if there is no tmpfs.
    fn new(at: &'a Path) -> Option<Cover<'a>> {
        let mounted = rustix::mount::mount("cover", at, "tmpfs", rustix::mount::MountFlags::empty(), None);
        mounted.map_err(|error| skip(&format!("no tmpfs: {error}"))).ok().map(|()| Cover(at))
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        let _ = moafs_fuse::unmount(self.0, true);
    }
}

/// Returns true if a process has the path among its arguments.
fn is_named_by_a_process(path: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("the processes").flatten();
    let mut arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    arguments.any(|arguments| arguments.split(|&byte| byte == 0).any(|word| word == path.as_os_str().as_bytes()))
}

/// Serves as the daemon that the tests above kill; not a test by itself.
#[test]
fn child_serves_when_told_to() {
    let Some(path) = std::env::var_os(CHILD_MOUNT) else { return };
    let transport = mounted::child_transport();
    let mut options = options(transport);
    options.mount.auto_unmount = transport == Transport::Auto;
    let session = moafs_fuse::Session::mount(MemFs::default(), Path::new(&path), &options).expect("mount");
    session.serve().expect("serve");
}

fn a_block_device_mount_syncs_and_waits_for_destroy(transport: Transport) {
    let Some(device) = LoopDevice::new() else { return };
    let mut options = options(transport);
    options.mount.fsname = device.path().to_owned();
    options.mount.kind = MountKind::BlockDevice { block_size: 65536 };
    let fs = Ending { slow_destroy: true, ..Ending::default() };
    let Some(mount) = Mounted::new(fs, &options) else { return };
    let shared = Arc::clone(mount.fs());
    let root = File::open(mount.path()).expect("open");
    rustix::fs::syncfs(&root).expect("syncfs");
    drop(root);
    assert!(shared.syncs.load(Ordering::SeqCst) >= 1);
    // A child that another test is just starting may still hold a file of this process.
    mounted::wait_until("unmounted", || mount.mount_handle().unmount().is_ok_and(|done| done == Unmounted::Now));
    assert_eq!(shared.destroys.load(Ordering::SeqCst), 1, "umount waits for destroy");
    mount.unmount();
    assert_eq!(shared.destroys.load(Ordering::SeqCst), 1);
}
