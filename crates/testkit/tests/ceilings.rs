//! Ceilings: the memory of looking at a volume of many files, and of recovering it after a crash, and what both read,
//! however many files there are.
//!
//! The measured part runs in a process of its own, so that its largest resident set is that of one mount. The plain
//! run takes 60,000 files; a million are taken by
//! `cargo test --release -p moafs-testkit --test ceilings -- --ignored --nocapture`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::file::{Direct, FileDisk, FileOptions};
use moafs_disk::probe::trace::{Counters, Trace, TraceVerb};
use moafs_runtime::{Live, Timestamp};
use moafs_testkit::family::{Ext, F2fs, Family};
use moafs_testkit::judges::tools;
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

tests_of!(
    ext: Ext,
    many_files_are_looked_at_and_recovered_within_the_budget,
    #[ignore = "the full run: minutes, and gigabytes of scratch space"]
    a_million_files_are_looked_at_and_recovered_within_the_budget,
    child,
);
tests_of!(
    f2fs: F2fs,
    many_files_are_looked_at_and_recovered_within_the_budget,
    #[ignore = "the full run: minutes, and gigabytes of scratch space"]
    a_million_files_are_looked_at_and_recovered_within_the_budget,
    child,
);

/// Names in a directory. One directory has a tenth of all files.
const NAMES: usize = 1000;
/// Files that are changed before the crash: one of so many.
const CHANGED: usize = 20;
/// Most memory beyond the cache that does not depend on the number of files, in bytes: requests in flight, bitmaps and
/// segment tables.
const FIXED_BYTES: usize = 32 << 20;
/// Most memory for a file whose number the kernel holds, in bytes: an entry of a hash table that may have doubled
/// lately, and the number in the test's own list.
const HELD_BYTES: usize = 50;
/// Most bytes read for each file while it is recovered: its inode, its name, and its share of what leads to them.
const READ_BYTES_PER_FILE: u64 = 12 << 10;
/// Most bytes read by a mount before the volume can be used, beside 4 KiB for each file in a chain.
const MOUNT_READ_BYTES: u64 = 24 << 20;

/// A format with volumes for many files.
trait Many: Family {
    fn bytes(files: usize) -> u64;
    fn mkfs(disk: &FileDisk, files: usize);
}

impl Many for Ext {
    fn bytes(files: usize) -> u64 {
        files as u64 * 8192
    }

    fn mkfs(disk: &FileDisk, files: usize) {
        use moafs_ext::mkfs::{MkfsOptions, mkfs};
        let options = MkfsOptions::new([7; 16], [9; 16], Timestamp::new(1_700_000_000, 0));
        let inodes = Some(files as u64 * 11 / 10);
        mkfs(disk, &MkfsOptions { block_size: Some(4096), inodes, inode_size: 128, ..options }).expect("mkfs");
    }
}

impl Many for F2fs {
    fn bytes(files: usize) -> u64 {
        files as u64 * 6144 + (128 << 20)
    }

    fn mkfs(disk: &FileDisk, _: usize) {
        use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
        mkfs(disk, &MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0))).expect("mkfs");
    }
}

fn many_files_are_looked_at_and_recovered_within_the_budget<F: Many>() {
    run::<F>(60_000, 2 << 20);
}

fn a_million_files_are_looked_at_and_recovered_within_the_budget<F: Many>() {
    run::<F>(1_000_000, 16 << 20);
}

fn run<F: Many>(files: usize, cache: usize) {
    let dir = tempfile::tempdir_in(tools::scratch()).expect("a scratch directory");
    let image = dir.path().join("volume");
    F::mkfs(&FileDisk::create(&image, F::bytes(files), Live::new(), file_options()).expect("a scratch file"), files);
    let vfs = mount::<F>(open(&image), 256 << 20);
    fill(&vfs, files);
    vfs.close().expect("it unmounts");
    in_child::<F>("look", &image, files, cache);
    let vfs = mount::<F>(open(&image), 256 << 20);
    change(&vfs, files);
    drop(vfs);
    in_child::<F>("recover", &image, files, cache);
    if let Some(verdict) = F::look(&image) {
        assert!(verdict.spotless, "{}", verdict.text);
    }
}

fn file_options() -> FileOptions {
    FileOptions { direct: Direct::Never, ..FileOptions::default() }
}

fn open(image: &Path) -> SharedDisk {
    Arc::new(FileDisk::open(image, Live::new(), file_options()).expect("the image opens"))
}

fn mount<F: Family>(disk: SharedDisk, cache_bytes: usize) -> Vfs<<F::Mounter as Mounter>::Format> {
    let options = Options { cache_bytes, syncer: false, ..Options::default() };
    F::mounter(0).mount_on(disk, Live::new(), options).expect("it mounts")
}

// -- the volume

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// Returns the number of the directory that has a file.
fn dir_of(file: usize, files: usize) -> usize {
    file.saturating_sub(files / 10).div_ceil(NAMES)
}

fn make<F: Format>(vfs: &Vfs<F>, dir: Ino, text: &str, kind: FileKind) -> Ino {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), dir, name(text), &new).expect("it can be made").ino;
    vfs.forget(ino, 1);
    ino
}

fn find<F: Format>(vfs: &Vfs<F>, dir: Ino, text: &str) -> Ino {
    vfs.lookup(&Credentials::root(), dir, name(text)).expect("it is there").ino
}

fn fill<F: Format>(vfs: &Vfs<F>, files: usize) {
    let root = vfs.shape().root;
    let dirs: Vec<Ino> =
        (0..=dir_of(files, files)).map(|d| make(vfs, root, &format!("d{d}"), FileKind::Directory)).collect();
    for file in 0..files {
        make(vfs, dirs[dir_of(file, files)], &format!("file{file}"), FileKind::Regular);
        if file % 4096 == 0 {
            vfs.run_background_step();
        }
    }
}

/// Changes what recovery has to look at: new contents that are fsynced, files that go, links.
fn change<F: Format>(vfs: &Vfs<F>, files: usize) {
    let (root, user) = (vfs.shape().root, Credentials::root());
    for file in (0..files).step_by(CHANGED) {
        let dir = find(vfs, root, &format!("d{}", dir_of(file, files)));
        let ino = find(vfs, dir, &format!("file{file}"));
        match file / CHANGED % 16 {
            0 => vfs.unlink(&user, dir, name(&format!("file{file}"))).expect("it can be removed"),
            1 => drop(vfs.link(&user, ino, dir, name(&format!("link{file}"))).expect("it can be linked")),
            _ => {
                vfs.write(&user, ino, 0, &[7; 5000], false).expect("it can be written");
                if file / CHANGED % 4 == 3 {
                    vfs.fsync(ino, false).expect("an fsync");
                }
            }
        }
    }
}

// -- what is measured, in a process of its own

/// Says to the child what to do: family, part, image, files, bytes of the cache.
const TASK: &str = "MOAFS_CEILING";

fn in_child<F: Family>(part: &str, image: &Path, files: usize, cache: usize) {
    let module = if F::CHECKER == Ext::CHECKER { "ext" } else { "f2fs" };
    let task = format!("{}:{part}:{files}:{cache}:{}", F::CHECKER, image.display());
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let status = child.args(["--exact", &format!("{module}::child"), "--nocapture"]).env(TASK, task).status();
    assert!(status.expect("it can be started").success(), "{} {part}: see above", F::CHECKER);
}

fn child<F: Many>() {
    let Ok(task) = std::env::var(TASK) else { return };
    let words: Vec<&str> = task.splitn(5, ':').collect();
    let [checker, part, files, cache, image] = words[..] else { panic!("{TASK}={task}") };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (files, cache) = (number(files), number(cache));
    assert_eq!(checker, F::CHECKER);
    let trace = Arc::new(Trace::new(open(Path::new(image)), Live::new()));
    let before = resident("VmRSS:");
    let vfs = mount::<F>(trace.clone(), cache);
    let mounted = trace.counters();
    let held = match part {
        "look" => look(&vfs, files, |_| ()),
        "recover" => {
            look(&vfs, files, |held| {
                held.drain(..).for_each(|ino| vfs.forget(ino, 1));
                vfs.run_background_step();
            });
            0
        }
        other => panic!("no part {other}"),
    };
    vfs.close().expect("it unmounts");
    let (grown, read) = (resident("VmHWM:") - before, read_bytes(&trace.counters()));
    let read_by_mount = read_bytes(&mounted);
    println!(
        "{checker} {part}: {files} files, {grown} bytes of memory, {read} bytes read, {read_by_mount} by the mount"
    );
    assert!(grown < cache + FIXED_BYTES + held * HELD_BYTES, "{grown} bytes, {held} files were held");
    let in_chain = (files / CHANGED) as u64 * 4096;
    assert!(read_by_mount < MOUNT_READ_BYTES + in_chain, "{read_by_mount} bytes were read by the mount");
    assert!(read < files as u64 * READ_BYTES_PER_FILE + MOUNT_READ_BYTES, "{read} bytes were read");
}

fn read_bytes(counters: &Counters) -> u64 {
    counters.bytes(|count| count.verb == TraceVerb::Read)
}

/// Looks at every file as a kernel does that keeps what it has found; then it forgets all that `after_each_directory`
/// has left. Returns how many files that were.
fn look<F: Format>(vfs: &Vfs<F>, files: usize, mut after_each_directory: impl FnMut(&mut Vec<Ino>)) -> usize {
    let (root, user) = (vfs.shape().root, Credentials::root());
    let (mut held, mut found) = (Vec::new(), 0);
    for d in 0..=dir_of(files, files) {
        let dir = find(vfs, root, &format!("d{d}"));
        held.push(dir);
        let mut at = Cookie::START;
        loop {
            let mut names = Vec::new();
            vfs.list(&user, dir, at, &mut |entry| {
                if names.len() == NAMES {
                    return false;
                }
                names.push(entry.name.as_bytes().to_vec());
                at = entry.next;
                true
            })
            .expect("it can be listed");
            if names.is_empty() {
                break;
            }
            for text in names.iter().filter(|text| !text.starts_with(b".")) {
                held.push(vfs.lookup(&user, dir, Name::new(text).expect("a name")).expect("it is there").ino);
                found += 1;
            }
        }
        after_each_directory(&mut held);
    }
    assert!(found >= files - files / CHANGED / 16 - 1, "{found} files were found");
    let left = held.len();
    held.into_iter().for_each(|ino| vfs.forget(ino, 1));
    left
}

/// Returns a line of this process's status, in bytes.
fn resident(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let kib = status.lines().find_map(|text| text.strip_prefix(line)).expect("the line is there");
    kib.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}
