//! Journals that are cut or damaged anywhere: our replay leaves what e2fsck's and the kernel's leave.
//!
//! Random work runs on a recorded device, which loses power at a random request. Then the log of the image is
//! damaged, unless the power cut is enough: it ends early, a block of it is torn, a byte of it is another one, or a
//! block of it is that of another place. We replay one copy, e2fsck another, and the kernel a third where it may be
//! asked. All are equal to the byte outside of the two superblocks; if there are orphans, which the others finish
//! with the replay, the mounted trees are equal. We write nothing but the blocks that the log names. After a power
//! cut alone e2fsck then has nothing to say. What the others give up, so do we. We also give up damaged logs that
//! they replay: if a copy that is revoked later has a wrong checksum, or if a tag names a block of the journal
//! itself.
//!
//! `cargo test --release -p moafs-testkit --test journals -- --ignored --nocapture` judges 10,000 journals, the
//! plain run a sample. A failure prints `MOAFS_JOURNAL=SEED:NUMBER`, which judges that journal alone (`-- --exact
//! replay`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::Mode;
use moafs_disk::{SECTOR, SharedDisk};
use moafs_ext::format::journal::LogSums;
use moafs_ext::format::superblock::{RoCompat, SUPERBLOCK_OFFSET};
use moafs_ext::format::{BlockNo, Geometry, Superblock};
use moafs_ext::journal::{self, Journal};
use moafs_testkit::crash::{CrashCase, Recording, Scene};
use moafs_testkit::family::{self, Ext4, Family};
use moafs_testkit::judges::kernel::{self, KernelMount};
use moafs_testkit::judges::{Class, e2fsck, missing, tools};
use moafs_testkit::tree::{self, Seen, Tree};
use moafs_testkit::volume::Mounter;
use moafs_testkit::workloads;
use moafs_vfs::Error;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Journals that are made of one recording.
const NUMBERS: u64 = 25;

/// Workloads that fill a log.
const WORKLOADS: [&str; 8] =
    ["random", "churn", "fsync-mix", "big-directory", "truncate-reuse", "roll-forward-many", "unlink-reuse", "xattrs"];

/// Bytes of a superblock.
const SUPERBLOCK_BYTES: usize = 1024;

/// The damage of a log. Places are counted from its oldest block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// It is as the power cut left it.
    None,
    /// It is whole, but no file system wrote it: what it names means nothing.
    Made,
    /// Everything from this block on was not written.
    Cut { from: u32 },
    /// Only the first sectors of a block were written.
    Torn { at: u32, sectors: usize },
    /// A byte of a block is another one.
    Changed { at: u32, byte: usize, flip: u8 },
    /// A block is that of another place.
    Moved { from: u32, to: u32 },
}

impl Damage {
    /// Returns true if the log may be given up: a log that only ends early is replayed up to there.
    fn may_be_given_up(self) -> bool {
        !matches!(self, Damage::None | Damage::Made | Damage::Cut { .. })
    }
}

/// An image with a log to replay.
struct Image {
    disk: MemDisk,
    sb: Superblock,
    geo: Geometry,
    journal: Journal,
}

impl Image {
    /// Opens the journal of an image; `None` if it has nothing to replay.
    fn of(disk: MemDisk) -> Result<Option<Image>, Error> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        disk.peek(SUPERBLOCK_OFFSET, &mut bytes);
        let Ok(sb) = Superblock::parse(&bytes) else { return Ok(None) };
        if !journal::needs_replay(&sb) {
            return Ok(None);
        }
        let bytes = disk.to_bytes().len() as u64;
        let geo = Geometry::of(&sb, bytes).expect("the volume is sound");
        let shared: SharedDisk = Arc::new(disk.snapshot());
        let journal = Journal::open(&shared, &sb, &geo)?.expect("the volume has a journal");
        Ok(Some(Image { disk, sb, geo, journal }))
    }

    /// Returns the block of the volume that holds a block of the log, counted from the oldest one.
    fn block(&self, number: u32) -> BlockNo {
        let log = self.journal.superblock();
        let at = log.first + (log.start - log.first + number) % (log.end - log.first);
        let run = self.journal.runs().iter().rfind(|run| run.at <= at).expect("the journal has no hole");
        BlockNo(run.start.0 + u64::from(at - run.at))
    }

    fn read(&self, number: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.geo.block_bytes()];
        self.disk.peek(self.geo.byte_of(self.block(number)), &mut bytes);
        bytes
    }

    /// Returns the number of blocks in the log: behind them there are zeros.
    fn used(&self) -> u32 {
        let log = self.journal.superblock();
        if log.is_empty() {
            return 0;
        }
        let is_used = |number: &u32| self.read(*number).iter().any(|byte| *byte != 0);
        (0..log.end - log.first).rfind(is_used).map_or(0, |last| last + 1)
    }

    fn hurt(&self, damage: Damage, used: u32) {
        let size = self.geo.block_bytes();
        let write = |number: u32, bytes: &[u8]| self.disk.poke(self.geo.byte_of(self.block(number)), bytes);
        match damage {
            Damage::None | Damage::Made => {}
            Damage::Cut { from } => (from..used).for_each(|number| write(number, &vec![0; size])),
            Damage::Torn { at, sectors } => {
                let mut bytes = self.read(at);
                bytes[sectors * SECTOR..].fill(0);
                write(at, &bytes);
            }
            Damage::Changed { at, byte, flip } => {
                let mut bytes = self.read(at);
                bytes[byte] ^= flip;
                write(at, &bytes);
            }
            Damage::Moved { from, to } => write(to, &self.read(from)),
        }
    }

    /// Returns true if the damage is in a commit block.
    fn is_in_commit(&self, damage: Damage) -> bool {
        /// Offset of the kind in a block of the log, and that of a commit block.
        const KIND: (usize, u32) = (4, 2);
        let (Damage::Torn { at, .. } | Damage::Changed { at, .. }) = damage else { return false };
        let kind = &self.read(at)[KIND.0..KIND.0 + 4];
        u32::from_be_bytes(kind.try_into().expect("four bytes")) == KIND.1
    }

    /// Replays the log. Everything that this changes is a block that the log names, or the journal's superblock.
    fn replay(self) -> Result<Result<MemDisk, Error>, String> {
        let before = self.disk.snapshot();
        let disk: Arc<MemDisk> = Arc::new(self.disk);
        let shared: SharedDisk = disk.clone();
        let mut journal = match Journal::open(&shared, &self.sb, &self.geo) {
            Ok(journal) => journal.expect("the volume has a journal"),
            Err(error) => return Ok(Err(error)),
        };
        let replay = match journal.scan() {
            Ok(replay) => replay,
            Err(error) => return Ok(Err(error)),
        };
        journal.write_home(&replay).map_err(|error| format!("writing it home: {error}"))?;
        let mut may_change: BTreeSet<u64> = replay.blocks.keys().map(|home| home.0).collect();
        may_change.insert(journal.runs()[0].start.0);
        let changed = different_blocks(&before, &disk, self.geo.block_bytes(), &[]);
        match changed.into_iter().find(|block| !may_change.contains(block)) {
            Some(block) => Err(format!("the replay wrote to block {block}, which the log does not name")),
            None => Ok(Ok(disk.snapshot())),
        }
    }
}

/// Returns the blocks in which two images differ, but for the bytes of these superblocks.
fn different_blocks(one: &MemDisk, other: &MemDisk, block: usize, superblocks: &[u64]) -> Vec<u64> {
    let (mut one, mut other) = (one.to_bytes(), other.to_bytes());
    for at in superblocks {
        let range = *at as usize..*at as usize + SUPERBLOCK_BYTES;
        one[range.clone()].fill(0);
        other[range].fill(0);
    }
    let pairs = one.chunks(block).zip(other.chunks(block));
    (0..).zip(pairs).filter(|(_, (one, other))| one != other).map(|(number, _)| number).collect()
}

/// Returns true if files are on the orphan list or in the orphan file.
fn has_orphans(disk: &MemDisk) -> bool {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    disk.peek(SUPERBLOCK_OFFSET, &mut bytes);
    let sb = Superblock::parse(&bytes).expect("a replay leaves a superblock");
    sb.last_orphan() != 0 || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
}

fn mounted(disk: MemDisk) -> Result<(Tree, MemDisk), String> {
    let disk = Arc::new(disk);
    let vfs = Ext4::mounter(0).mount(disk.clone(), false).map_err(|error| format!("it cannot be mounted: {error}"))?;
    let tree = tree::of_vfs(&vfs)?;
    vfs.close().map_err(|error| format!("it cannot be unmounted: {error}"))?;
    Ok((tree, disk.snapshot()))
}

fn same_file(one: &Seen, other: &Seen) -> bool {
    let shape = |seen: &Seen| (seen.kind, seen.perm, seen.uid, seen.gid, seen.nlink, seen.rdev, seen.mtime);
    shape(one) == shape(other)
        && (&one.target, &one.xattrs, &one.entries) == (&other.target, &other.xattrs, &other.entries)
        && one.content.size() == other.content.size()
        && tree::first_difference(&one.content, &other.content).is_none()
}

/// Compares the trees that both images show when they are mounted.
fn same_tree(one: &Tree, other: &Tree) -> Result<Fate, String> {
    let inodes: BTreeSet<&u64> = one.nodes.keys().chain(other.nodes.keys()).collect();
    for inode in inodes {
        match (one.nodes.get(inode), other.nodes.get(inode)) {
            (Some(one), Some(other)) if same_file(one, other) => {}
            (one, other) => return Err(format!("inode {inode}: {one:?}\nafter e2fsck: {other:?}")),
        }
    }
    Ok(Fate::SameTree)
}

/// The outcome of a journal that was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Both replays leave the same bytes.
    SameBytes,
    /// Both leave the same tree.
    SameTree,
    /// Both give up.
    GivenUp,
    /// We give up the damaged log, e2fsck replays it.
    GivenUpByUs,
    /// A commit block is torn behind its first sector: we and the kernel take the transaction, and e2fsck leaves it
    /// out with a message.
    TornCommit,
    /// The log is replayed, and what it leaves cannot be read.
    Unreadable,
    /// There was nothing to replay.
    Nothing,
}

/// An image after the replay of another program, or the words with which it gave the log up.
type Replayed = Result<MemDisk, String>;

/// Words of e2fsck about a log that it does not replay, or not to its end.
const GIVEN_UP: [&str; 3] = ["ournal checksum error", "has been deleted", "replay was aborted"];

/// Words of e2fsck when what it replayed cannot be opened: it then repairs that.
const REPAIRED: &str = "Pass 1";

fn by_e2fsck(disk: &MemDisk) -> Result<Replayed, String> {
    let file = image_file(disk)?;
    let said = e2fsck::run(file.path(), e2fsck::Mode::Replay).ok_or("e2fsck is not installed")?;
    if said.exit > 1 || said.text.contains(REPAIRED) || GIVEN_UP.iter().any(|words| said.text.contains(words)) {
        return Ok(Err(said.text));
    }
    MemDisk::read_from(file.path()).map(Ok).map_err(|error| error.to_string())
}

/// Lets the kernel mount the image; `None` if it cannot be asked.
fn by_kernel(disk: &MemDisk, geo: &Geometry) -> Result<Option<Replayed>, String> {
    if geo.block_bytes() > kernel::BLOCK_BYTES_MAX as usize {
        return Ok(None);
    }
    let file = image_file(disk)?;
    // Without that option it zeroes unused inode tables, beside which it changes nothing but the superblock.
    match KernelMount::new(file.path(), "ext4", "noinit_itable") {
        Ok(None) => return Ok(None),
        Ok(Some(mount)) => mount.unmount().map_err(|error| error.to_string())?,
        Err(said) => return Ok(Some(Err(said.to_string()))),
    }
    MemDisk::read_from(file.path()).map(|disk| Some(Ok(disk))).map_err(|error| error.to_string())
}

fn image_file(disk: &MemDisk) -> Result<tempfile::NamedTempFile, String> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).map_err(|error| error.to_string())?;
    disk.write_to(file.path()).map_err(|error| error.to_string())?;
    Ok(file)
}

/// Judges an image with this damage.
fn judge(disk: &MemDisk, damage: Damage) -> Result<Fate, String> {
    let image = match Image::of(disk.snapshot()) {
        Ok(Some(image)) => image,
        Ok(None) => return Ok(Fate::Nothing),
        Err(error) => return Err(format!("the journal cannot be opened: {error}")),
    };
    let superblocks = [SUPERBLOCK_OFFSET, image.geo.byte_of(image.journal.runs()[0].start)];
    let (geo, has_sums) = (image.geo.clone(), image.journal.superblock().sums != LogSums::Absent);
    let is_in_commit = image.is_in_commit(damage);
    let ours = image.replay()?;
    let mut fate = Fate::SameBytes;
    let mut others = vec![("e2fsck", by_e2fsck(disk)?)];
    // A damaged log without checksums may leave anything, and the kernel changes what it finds damaged.
    if has_sums || !damage.may_be_given_up() {
        others.extend(by_kernel(disk, &geo)?.map(|replayed| ("the kernel", replayed)));
    }
    for (name, theirs) in others {
        let judged = match (&ours, theirs) {
            (Ok(ours), Ok(theirs)) if !has_orphans(ours) => same_bytes(ours, &theirs, &geo, &superblocks),
            (Ok(ours), Ok(theirs)) => match mounted(ours.snapshot()) {
                Err(_) if damage != Damage::None => Ok(Fate::Unreadable),
                tree => same_tree(&tree?.0, &mounted(theirs)?.0),
            },
            (Err(Error::Damaged { .. }), Err(_)) if damage.may_be_given_up() => Ok(Fate::GivenUp),
            (Err(Error::Damaged { .. }), Ok(_)) if damage.may_be_given_up() => Ok(Fate::GivenUpByUs),
            (Ok(_), Err(_)) if is_in_commit && name == "e2fsck" => Ok(Fate::TornCommit),
            (Ok(ours), Err(_)) if damage != Damage::None && mounted(ours.snapshot()).is_err() => Ok(Fate::Unreadable),
            (Ok(_), Err(said)) => Err(format!("we replay what it gives up: {said}")),
            (Err(error), theirs) => Err(format!("we give the log up: {error}; it says {:?}", theirs.err())),
        };
        fate = fate.max(judged.map_err(|said| format!("{name}: {said}"))?);
    }
    // Later transactions may have gone home: without them in the log nothing is promised about the tree.
    if let (Ok(ours), Damage::None) = (ours, damage) {
        let verdict = family::look::<Ext4>(&mounted(ours)?.1)?.ok_or("e2fsck is not installed")?;
        if verdict.class != Class::Clean {
            return Err(format!("e2fsck after our replay: {}", verdict.text));
        }
    }
    Ok(fate)
}

fn same_bytes(ours: &MemDisk, theirs: &MemDisk, geo: &Geometry, superblocks: &[u64]) -> Result<Fate, String> {
    let different = different_blocks(ours, theirs, geo.block_bytes(), superblocks);
    if different.is_empty() {
        Ok(Fate::SameBytes)
    } else {
        Err(format!("it leaves other bytes in blocks {different:?}"))
    }
}

/// A journal, by the seed of its recording and its number.
struct Case {
    disk: MemDisk,
    damage: Damage,
    words: String,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}", self.words, self.damage)
    }
}

fn record(seed: u64) -> Option<(Scene, Recording<Ext4>)> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let geometry = family::geometry::<Ext4>(Ext4::CRASH[seed as usize % Ext4::CRASH.len()]).expect("a known geometry");
    let workload = workloads::by_name(WORKLOADS[rng.random_range(0..WORKLOADS.len())]).expect("a known workload");
    let scene = Scene { workload, geometry, seed };
    let recording = Recording::new(&scene).unwrap_or_else(|said| panic!("seed {seed}: {said}"))?;
    Some((scene, recording))
}

/// Makes a journal of a recording.
fn case(scene: Scene, recording: &Recording<Ext4>, number: u64) -> Case {
    let mut rng = Pcg64Mcg::seed_from_u64(scene.seed << 16 | number);
    let cut = rng.random_range(0..recording.cuts());
    let mode = [Mode::All, Mode::None, Mode::Subset, Mode::Torn][rng.random_range(0..4)];
    let crash = CrashCase { scene, cut, mode, seed: number, again: false };
    let disk = recording.image(&crash);
    let mut case = Case { disk, damage: Damage::None, words: crash.to_string() };
    let Ok(Some(image)) = Image::of(case.disk.snapshot()) else { return case };
    let used = image.used();
    if used == 0 {
        return case;
    }
    let block = image.geo.block_bytes();
    let at = rng.random_range(0..used);
    case.damage = match rng.random_range(0..8) {
        0 => Damage::None,
        1..=3 => Damage::Cut { from: at },
        4 => Damage::Torn { at, sectors: rng.random_range(0..block / SECTOR) },
        5 => Damage::Moved { from: rng.random_range(0..used), to: at },
        // Headers and the first tags are hurt more often than anything else.
        6 => Damage::Changed { at, byte: rng.random_range(0..64), flip: rng.random_range(1..=255) },
        _ => Damage::Changed { at, byte: rng.random_range(0..block), flip: rng.random_range(1..=255) },
    };
    image.hurt(case.damage, used);
    case.disk = image.disk;
    case
}

fn judge_case(case: &Case) -> Result<Fate, String> {
    let judged = std::panic::catch_unwind(AssertUnwindSafe(|| judge(&case.disk, case.damage)));
    judged.unwrap_or_else(|_| Err("panic".to_owned()))
}

fn run(recordings: u64) {
    if tools::find("e2fsck").is_none() {
        missing("e2fsck", "no other replay to compare with");
        return;
    }
    let next = AtomicU64::new(0);
    let total = Mutex::new((BTreeMap::<Fate, u64>::new(), 0_u64));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= recordings || total.lock().expect("unpoisoned").1 >= 10 {
                return;
            }
            let Some((scene, recording)) = record(seed) else { return };
            for number in 0..NUMBERS {
                let case = case(scene, &recording, number);
                let judged = judge_case(&case);
                let mut total = total.lock().expect("unpoisoned");
                match judged {
                    Ok(fate) => *total.0.entry(fate).or_default() += 1,
                    Err(said) => {
                        println!("MOAFS_JOURNAL={seed}:{number} ({case})\n  {said}");
                        total.1 += 1;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let (fates, failures) = total.into_inner().expect("unpoisoned");
    println!("{fates:?}, {failures} failures");
    assert_eq!(failures, 0, "failures are printed above");
}

#[test]
fn a_sample_of_journals_is_replayed_as_by_others() {
    run(8);
}

#[test]
#[ignore = "the full run: minutes"]
fn ten_thousand_journals_are_replayed_as_by_others() {
    run(10_000 / NUMBERS);
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MOAFS_JOURNAL") else { return };
    let (seed, number) = text.split_once(':').expect("SEED:NUMBER");
    let (scene, recording) = record(seed.parse().expect("a number")).expect("mke2fs is installed");
    let case = case(scene, &recording, number.parse().expect("a number"));
    println!("{case}");
    println!("{:?}", judge_case(&case).unwrap_or_else(|said| panic!("{said}")));
}

/// Logs as debugfs writes them: with each kind of checksum, revoked blocks, a transaction that was not committed.
#[test]
fn logs_of_debugfs_are_replayed_as_by_others() {
    if tools::find("debugfs").is_none() || tools::find("e2fsck").is_none() {
        missing("debugfs", "no logs of odd shapes");
        return;
    }
    let volumes: [&[&str]; 4] = [
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-O", "^64bit,^metadata_csum", "-b", "1024"],
        &["-t", "ext4", "-O", "64bit,^metadata_csum", "-b", "4096"],
        &["-t", "ext4", "-O", "64bit", "-b", "1024"],
    ];
    let data = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    // The first block begins with the magic number of a log.
    let mut bytes: Vec<u8> = (0..64 * 4096_u32).map(|number| (number % 251) as u8).collect();
    bytes[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
    std::fs::write(data.path(), bytes).expect("a scratch file can be written");
    let data = data.path().to_str().expect("test paths are text");
    for options in volumes {
        for open in ["jo", "jo -c -v 2", "jo -c -v 3"] {
            let image = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
            let all = [options, &["-J", "size=4"]].concat();
            assert!(tools::mke2fs(image.path(), &all, "32M"));
            let script = format!(
                "{open}\njw -b 7001,7002,7003,7004 {data}\njw -b 7010-7060 -r 7002 {data}\njw -r 7010,7011,7001 {data}\n\
                 jw -b 7010,7003 {data}\njw -b 7004 -c {data}\njc\n"
            );
            assert!(tools::debugfs(image.path(), &script));
            let disk = MemDisk::read_from(image.path()).expect("the image can be read");
            match judge(&disk, Damage::Made) {
                Ok(Fate::SameBytes) => {}
                other => panic!("{options:?} {open}: {other:?}"),
            }
        }
    }
}
