//! Volumes that the kernel left with fast commits in their journals: our replay leaves what the kernel's leaves.
//!
//! The kernel mounts a volume with the feature fast_commit, random work with many fsyncs runs on it, and it is shut
//! down without a word (`EXT4_IOC_SHUTDOWN`). The area of the fast commits is then damaged, unless the shutdown is
//! enough: it ends early, or a byte of it is another one. We replay one copy, the kernel another; the mounted trees are
//! equal, and e2fsck has nothing to say of ours. Our replay loses power as well: what a second one leaves is the same
//! to the byte.
//!
//! The kernel's replay does not count the links of directories that fast commits make, loses those whose inodes were
//! other directories', and may refuse to mount what it has replayed; it is not a judge of these. Skipped where the
//! kernel may not be asked to mount.
//!
//! `cargo test --release -p moafs-testkit --test fast_commits -- --ignored --nocapture` judges 400 volumes. A failure
//! prints `MOAFS_FAST_COMMIT=SEED`, which judges that volume alone (`-- --exact replay`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_ext::format::superblock::SUPERBLOCK_OFFSET;
use moafs_ext::format::{Geometry, Superblock};
use moafs_ext::journal::{self, Journal};
use moafs_runtime::Live;
use moafs_testkit::family::{self, Ext4, Family};
use moafs_testkit::judges::kernel::{KernelMount, may_mount};
use moafs_testkit::judges::{Class, missing, tools};
use moafs_testkit::tree::{self, Seen, Tree};
use moafs_testkit::volume::Mounter;
use moafs_vfs::types::FileKind;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// `EXT4_IOC_SHUTDOWN`, and its flag to leave the log as it is.
const SHUTDOWN: libc::c_ulong = 0x8004_587D;
const NO_LOG_FLUSH: u32 = 2;

/// Features and inode sizes of the volumes.
const KINDS: [&[&str]; 6] = [
    &["-O", "fast_commit", "-b", "4096"],
    &["-O", "fast_commit", "-b", "1024"],
    &["-O", "fast_commit,^metadata_csum", "-b", "1024", "-I", "128"],
    &["-O", "fast_commit,^metadata_csum,uninit_bg,^64bit", "-b", "2048"],
    &["-O", "fast_commit,orphan_file,metadata_csum_seed", "-b", "1024"],
    &["-O", "fast_commit,^dir_index,^flex_bg", "-b", "4096"],
];

/// Random work on a mounted volume.
struct Work {
    rng: Pcg64Mcg,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    named: u32,
    /// A directory was removed: its inode must not become that of another one, which the kernel's replay loses.
    has_removed: bool,
}

impl Work {
    fn pick(&mut self, of: usize) -> usize {
        self.rng.random_range(0..of)
    }

    fn new_name(&mut self) -> PathBuf {
        self.named += 1;
        let (dir, long) = (self.pick(self.dirs.len()), self.pick(4) == 0);
        let rest = if long { "x".repeat(self.pick(200)) } else { String::new() };
        self.dirs[dir].join(format!("f{}{rest}", self.named))
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.pick(most + 1);
        (0..len).map(|_| self.rng.random()).collect()
    }

    fn file(&mut self) -> PathBuf {
        let at = self.pick(self.files.len());
        self.files[at].clone()
    }

    /// Does one op. What the volume refuses, such as the removal of a directory with files, is left out.
    fn step(&mut self) -> io::Result<()> {
        let kind = if self.files.is_empty() { 0 } else { self.pick(24) };
        match kind {
            0..=6 => {
                let (path, bytes) = (self.new_name(), self.bytes(20_000));
                fs::write(&path, bytes)?;
                self.files.push(path);
            }
            7 if !self.has_removed => {
                let path = self.new_name();
                fs::create_dir(&path)?;
                self.dirs.push(path);
            }
            8..=9 => {
                let (from, to) = (self.file(), self.new_name());
                fs::hard_link(from, &to)?;
                self.files.push(to);
            }
            10..=12 => {
                let path = self.file();
                fs::remove_file(&path)?;
                self.files.retain(|file| *file != path);
            }
            13..=14 => {
                let (from, over) = (self.file(), self.pick(3) == 0);
                let to = if over { self.file() } else { self.new_name() };
                fs::rename(&from, &to)?;
                self.files.retain(|file| *file != from && *file != to);
                self.files.extend([from, to].into_iter().filter(|path| path.exists()));
            }
            15 => {
                let (path, len) = (self.new_name(), [5, 60][self.pick(2)]);
                std::os::unix::fs::symlink("t".repeat(len), path)?;
            }
            16 if self.dirs.len() > 1 => {
                let at = 1 + self.pick(self.dirs.len() - 1);
                fs::remove_dir(&self.dirs[at])?;
                self.has_removed = true;
                self.dirs.remove(at);
            }
            _ => self.change()?,
        }
        Ok(())
    }

    /// Changes the contents of a file.
    fn change(&mut self) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(self.file())?;
        let size = file.metadata()?.len();
        let at = self.rng.random_range(0..size + 50_000);
        let allocate = |mode: i32, len: i64| {
            // SAFETY: the descriptor is that of an open file.
            match unsafe { libc::fallocate(file.as_raw_fd(), mode, at.cast_signed(), len) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        match self.rng.random_range(0..6) {
            0 => file.set_len(at),
            1 => allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 9000),
            2 => allocate(0, 100_000),
            3 => allocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 30_000),
            4 => file.write_all_at(&self.bytes(30_000), size),
            _ => file.write_all_at(&self.bytes(6000), at),
        }
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a volume with fast commits; `None` if the kernel may not be asked.
fn make(seed: u64) -> Option<MemDisk> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let image = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    let kind = KINDS[rng.random_range(0..KINDS.len())];
    let options = [&["-t", "ext4", "-E", "lazy_itable_init=0"], kind].concat();
    if !may_mount() || !tools::mke2fs(image.path(), &options, "48M") {
        return None;
    }
    let mount = KernelMount::new(image.path(), "ext4", "commit=300").ok()??;
    let root = mount.path().to_owned();
    let mut work = Work { rng, files: Vec::new(), dirs: vec![root.clone()], named: 0, has_removed: false };
    if work.pick(3) == 0 {
        for _ in 0..[50, 1500][work.pick(2)] {
            let path = work.new_name();
            fs::write(&path, b"").ok()?;
            work.files.push(path);
        }
    }
    (0..work.pick(40)).for_each(|_| drop(work.step()));
    // SAFETY: it touches no memory.
    unsafe { libc::sync() };
    for _ in 0..=work.pick(10) {
        (0..=work.pick(7)).for_each(|_| drop(work.step()));
        if let Some(last) = work.files.last() {
            drop(sync(last));
        }
    }
    let directory = File::open(&root).expect("the mount has a root");
    // SAFETY: the ioctl reads one word, which is there.
    let status = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &NO_LOG_FLUSH) };
    assert_eq!(status, 0, "the volume is shut down: {}", io::Error::last_os_error());
    drop(directory);
    mount.unmount().expect("a volume that is shut down can be unmounted");
    MemDisk::read_from(image.path()).ok()
}

/// An image with its journal.
struct Image {
    sb: Superblock,
    geo: Geometry,
    journal: Journal,
}

fn open(disk: &Arc<MemDisk>) -> Image {
    let mut bytes = [0; 1024];
    disk.peek(SUPERBLOCK_OFFSET, &mut bytes);
    let sb = Superblock::parse(&bytes).expect("the volume is sound");
    let geo = Geometry::of(&sb, u64::MAX).expect("the volume is sound");
    let shared: SharedDisk = disk.clone();
    let journal = Journal::open(&shared, &sb, &geo).expect("the journal is sound").expect("it has a journal");
    Image { sb, geo, journal }
}

/// Damages the area of the fast commits.
fn hurt(disk: &Arc<MemDisk>, seed: u64) -> String {
    let mut rng = Pcg64Mcg::seed_from_u64(!seed);
    let Image { geo, journal, .. } = open(disk);
    let Some(first) = journal.superblock().fast_commits() else { return "no area".to_owned() };
    let at = first + rng.random_range(0..10.min(journal.superblock().blocks - first));
    let run = journal.runs().iter().rfind(|run| run.at <= at).expect("the journal has no hole");
    let byte = geo.byte_of(run.start) + u64::from(at - run.at) * u64::from(geo.block_size);
    let offset = rng.random_range(0..u64::from(geo.block_size.min(1500)));
    match seed % 3 {
        0 => "whole".to_owned(),
        1 => {
            disk.poke(byte + offset, &vec![0; (u64::from(geo.block_size) - offset) as usize]);
            format!("block {at} ends at byte {offset}")
        }
        _ => {
            let mut old = [0];
            disk.peek(byte + offset, &mut old);
            disk.poke(byte + offset, &[old[0] ^ rng.random_range(1..=255)]);
            format!("byte {offset} of block {at} is another one")
        }
    }
}

fn mounted(disk: MemDisk) -> Result<(Tree, MemDisk), String> {
    let disk = Arc::new(disk);
    let vfs = Ext4::mounter(0).mount(disk.clone(), false).map_err(|error| format!("it cannot be mounted: {error}"))?;
    let tree = tree::of_vfs(&vfs)?;
    vfs.close().map_err(|error| format!("it cannot be unmounted: {error}"))?;
    Ok((tree, disk.snapshot()))
}

/// Returns the tree after the kernel's replay; `None` if it does not mount the volume.
fn by_kernel(disk: &MemDisk) -> Option<Tree> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    disk.write_to(file.path()).expect("there is room for an image");
    let mount = KernelMount::new(file.path(), "ext4", "noinit_itable").ok()??;
    let tree = tree::of_dir(mount.path()).ok();
    mount.unmount().expect("nothing uses the mount");
    tree
}

fn same_file(one: &Seen, other: &Seen) -> bool {
    let is_dir = one.kind == FileKind::Directory;
    let shape = |seen: &Seen| (seen.kind, seen.perm, seen.uid, seen.gid, seen.rdev);
    shape(one) == shape(other)
        && (is_dir || (one.nlink, one.mtime) == (other.nlink, other.mtime))
        && (&one.target, &one.xattrs, &one.entries) == (&other.target, &other.xattrs, &other.entries)
        && one.content.size() == other.content.size()
        && tree::first_difference(&one.content, &other.content).is_none()
}

fn same_tree(ours: &Tree, theirs: &Tree) -> Result<(), String> {
    for ino in ours.nodes.keys().chain(theirs.nodes.keys()) {
        match (ours.nodes.get(ino), theirs.nodes.get(ino)) {
            (Some(ours), Some(theirs)) if same_file(ours, theirs) => {}
            (ours, theirs) => return Err(format!("inode {ino}: {ours:?}\nafter the kernel: {theirs:?}")),
        }
    }
    Ok(())
}

/// Replays an image, then again after a power cut at several points of the replay.
fn replay_with_cuts(disk: &MemDisk, seed: u64) -> Result<(), String> {
    let under = Arc::new(disk.snapshot());
    let Image { sb, geo, .. } = open(&under);
    let recorder = Arc::new(CrashRecorder::over(under.clone(), Live::new()));
    let shared: SharedDisk = recorder.clone();
    journal::recover(&shared, &sb, &geo, true).map_err(|error| error.to_string())?;
    let should = contents(&under);
    let cuts = recorder.cut_points();
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for _ in 0..8 {
        let (cut, mode) = (rng.random_range(0..cuts), [Mode::All, Mode::Subset, Mode::Torn][rng.random_range(0..3)]);
        let again = Arc::new(recorder.state(cut, seed, mode));
        let shared: SharedDisk = again.clone();
        let Image { sb, geo, .. } = open(&again);
        journal::recover(&shared, &sb, &geo, true).map_err(|error| format!("after a cut at {cut}: {error}"))?;
        if contents(&again) != should {
            return Err(format!("a cut at {cut} of {cuts} ({mode:?}) leaves something else"));
        }
    }
    Ok(())
}

/// Returns the bytes of an image outside of its journal.
fn contents(disk: &Arc<MemDisk>) -> Vec<u8> {
    let Image { geo, journal, .. } = open(disk);
    let mut bytes = disk.to_bytes();
    for run in journal.runs() {
        let start = geo.byte_of(run.start) as usize;
        bytes[start..start + run.len as usize * geo.block_bytes()].fill(0);
    }
    bytes
}

/// The outcome of a volume that was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// No fast commits are left to replay.
    Nothing,
    /// The trees are equal.
    SameTree,
    /// The kernel does not mount it; e2fsck finds ours sound.
    RefusedByKernel,
}

fn judge(disk: MemDisk, seed: u64) -> Result<Fate, String> {
    let disk = Arc::new(disk);
    let damage = hurt(&disk, seed);
    let has_commits = open(&disk).journal.scan().is_ok_and(|replay| replay.has_fast_commits);
    let judged = || {
        let (before, after) = mounted(disk.snapshot())?;
        let verdict = family::look::<Ext4>(&after)?.ok_or("e2fsck is not installed")?;
        if verdict.class != Class::Clean {
            return Err(format!("e2fsck after our replay: {}", verdict.text));
        }
        replay_with_cuts(&disk, seed)?;
        let Some(theirs) = by_kernel(&disk) else { return Ok(Fate::RefusedByKernel) };
        same_tree(&before, &theirs)?;
        Ok(if has_commits { Fate::SameTree } else { Fate::Nothing })
    };
    judged().map_err(|said| format!("{damage}: {said}"))
}

fn run(seeds: std::ops::Range<u64>) {
    let (mut fates, mut failures) = (BTreeMap::<Fate, u64>::new(), 0);
    for seed in seeds {
        let Some(disk) = make(seed) else {
            return missing("mount", "the kernel makes no volumes with fast commits");
        };
        match judge(disk, seed) {
            Ok(fate) => *fates.entry(fate).or_default() += 1,
            Err(said) => {
                println!("MOAFS_FAST_COMMIT={seed}\n  {said}");
                failures += 1;
            }
        }
    }
    println!("{fates:?}, {failures} failures");
    assert_eq!(failures, 0, "failures are printed above");
}

#[test]
fn a_sample_of_fast_commits_is_replayed_as_by_the_kernel() {
    run(0..6);
}

#[test]
#[ignore = "the full run: minutes"]
fn fast_commits_are_replayed_as_by_the_kernel() {
    run(0..400);
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MOAFS_FAST_COMMIT") else { return };
    let seed = text.parse().expect("a number");
    let disk = make(seed).expect("the kernel may be asked");
    println!("{:?}", judge(disk, seed).unwrap_or_else(|said| panic!("{said}")));
}
