//! Ages nearly full volumes with several clients, over many mounts, in virtual time.
//!
//! A seed determines everything: size and layout of the volume, how full it is, what the clients do, when
//! they are interrupted. After every mount cycle the checkers find nothing, the volume mounts, everything
//! that was fsynced is there, and it never turns read-only; at the end everything is deleted and the space
//! is back.
//!
//! `AGEING_SEED=N cargo test -p moafs-f2fs --test ageing one_seed -- --ignored --nocapture` runs a single seed.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Disk, DiskError, Done, Epoch, MemDisk, SharedDisk, Ticket};
use moafs_f2fs::check::{self, CheckOptions, Issue};
use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, Timestamp, sleep_until};
use moafs_vfs::api::{NewFile, RenameMode, SetAttr};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Error, Options, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const ROOT: Ino = Ino(3);
const DIRS: u32 = 5;
const FILES: u32 = 40;
const CLIENTS: u64 = 4;
/// Fsynced files that are kept from one round to the next.
const KEPT_MAX: usize = 60;

/// A memory disk whose requests take time, so that the clients' calls interleave.
struct SlowDisk {
    store: Arc<MemDisk>,
    rt: Rt,
    noise: AtomicU64,
}

impl SlowDisk {
    fn pass_time(&self) {
        let noise = self.noise.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        sleep_until(&*self.rt, self.rt.now() + Duration::from_micros(20 + (noise >> 57)));
    }
}

impl Disk for SlowDisk {
    moafs_disk::forward_to!(store: limits, submit, epoch, durable);

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.pass_time();
        self.store.wait(ticket)
    }
    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.pass_time();
        self.store.make_durable(upto)
    }
}

/// The parameters that a seed determines.
#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    mebibytes: u64,
    segs_per_sec: u32,
    /// Share of the users' blocks that is filled before the clients begin, in percent.
    percent: u64,
    rounds: u64,
    ops: u64,
    kill: bool,
}

impl Case {
    fn of(seed: u64) -> Case {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mebibytes = [64, 96, 96, 128, 192, 256][rng.random_range(0..6)];
        let percent = [20, 50, 80, 90, 95, 98][rng.random_range(0..6)];
        let segs_per_sec = if mebibytes >= 128 && rng.random_range(0..5) == 0 { 2 } else { 1 };
        let kill = rng.random_bool(0.5);
        Case { seed, mebibytes, segs_per_sec, percent, rounds: 5, ops: 1200, kill }
    }
}

struct Kept {
    dir: String,
    name: String,
    len: usize,
    byte: u8,
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn new(kind: FileKind) -> NewFile<'static> {
    NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None }
}

/// Calls by path, each letting go of what it held.
struct Calls<'a> {
    vfs: &'a Vfs<F2fs>,
    who: Credentials,
}

impl Calls<'_> {
    fn find(&self, dir: Ino, text: &str) -> Result<Ino, Error> {
        let ino = self.vfs.lookup(&self.who, dir, name(text))?.ino;
        self.vfs.forget(ino, 1);
        Ok(ino)
    }

    /// Returns the directory and the last name of a path.
    fn split<'p>(&self, path: &'p str) -> Result<(Ino, &'p str), Error> {
        let (dirs, last) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = ROOT;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            at = self.find(at, part)?;
        }
        Ok((at, last))
    }

    fn ino(&self, path: &str) -> Result<Ino, Error> {
        let (dir, last) = self.split(path)?;
        self.find(dir, last)
    }

    fn make(&self, path: &str, kind: FileKind) -> Result<(), Error> {
        let (dir, last) = self.split(path)?;
        let stat = self.vfs.create(&self.who, dir, name(last), &new(kind))?;
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    /// Writes a file with these bytes; it is held meanwhile, as an open file is.
    fn write_file(&self, path: &str, bytes: &[u8], sync: bool) -> Result<(), Error> {
        let (dir, last) = self.split(path)?;
        let stat = match self.vfs.create(&self.who, dir, name(last), &new(FileKind::Regular)) {
            Err(error) if error.errno() == libc::EEXIST => self.vfs.lookup(&self.who, dir, name(last))?,
            stat => stat?,
        };
        let written = (|| {
            self.vfs.set_attr(&self.who, stat.ino, &SetAttr { size: Some(0), ..SetAttr::default() })?;
            self.vfs.write(&self.who, stat.ino, 0, bytes, false)?;
            if sync { self.vfs.fsync(stat.ino, false) } else { Ok(()) }
        })();
        self.vfs.forget(stat.ino, 1);
        written
    }

    fn symlink(&self, path: &str, target: &[u8]) -> Result<(), Error> {
        let (dir, last) = self.split(path)?;
        let new = NewFile { target: Some(target), ..new(FileKind::Symlink) };
        let stat = self.vfs.create(&self.who, dir, name(last), &new)?;
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    fn unlink(&self, path: &str) -> Result<(), Error> {
        let (dir, last) = self.split(path)?;
        self.vfs.unlink(&self.who, dir, name(last))
    }

    fn rmdir(&self, path: &str) -> Result<(), Error> {
        let (dir, last) = self.split(path)?;
        self.vfs.rmdir(&self.who, dir, name(last))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let ((from, old), (to, new)) = (self.split(from)?, self.split(to)?);
        self.vfs.rename(&self.who, (from, name(old)), (to, name(new)), RenameMode::Replace)
    }

    fn link(&self, from: &str, to: &str) -> Result<(), Error> {
        let ino = self.ino(from)?;
        let (dir, last) = self.split(to)?;
        let stat = self.vfs.link(&self.who, ino, dir, name(last))?;
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    fn write_at(&self, path: &str, offset: u64, sync: bool) -> Result<(), Error> {
        let ino = self.ino(path)?;
        self.vfs.hold(ino)?;
        let written = self.vfs.write(&self.who, ino, offset, &[b'z'; 5000], false);
        let written = written.and_then(|_| if sync { self.vfs.fsync(ino, false) } else { Ok(()) });
        self.vfs.forget(ino, 1);
        written
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, Error> {
        let ino = self.ino(path)?;
        let mut bytes = vec![0; self.vfs.stat(ino)?.attr.size as usize];
        let mut at = 0;
        while at < bytes.len() {
            match self.vfs.read(ino, at as u64, &mut bytes[at..])? {
                0 => break,
                read => at += read,
            }
        }
        bytes.truncate(at);
        Ok(bytes)
    }

    /// Removes everything below a directory.
    fn clear(&self, dir: Ino) -> Result<(), Error> {
        let mut entries = Vec::new();
        self.vfs.list(&self.who, dir, Cookie::START, &mut |entry| {
            if !matches!(entry.name.as_bytes(), b"." | b"..") {
                entries.push((entry.name.as_bytes().to_vec(), entry.ino, entry.kind));
            }
            true
        })?;
        for (text, ino, kind) in entries {
            let text = Name::new(&text).expect("a listed name");
            if kind == Some(FileKind::Directory) {
                self.clear(ino)?;
                self.vfs.rmdir(&self.who, dir, text)?;
            } else {
                self.vfs.unlink(&self.who, dir, text)?;
            }
        }
        Ok(())
    }
}

/// The state that all clients of a round share.
struct Round {
    stop: AtomicBool,
    kept: Mutex<Vec<Kept>>,
    wrong: Mutex<Vec<String>>,
    ops: AtomicU64,
    full: AtomicU64,
}

/// Performs one operation of a client; the file that it needs may not exist.
fn step(calls: &Calls<'_>, rng: &mut Pcg64Mcg, me: u64, label: &str, round: &Round) -> Result<(), Error> {
    let file = |rng: &mut Pcg64Mcg| format!("D{}/f{}", rng.random_range(0..DIRS), rng.random_range(0..FILES));
    let sub = |rng: &mut Pcg64Mcg| format!("D{}/s{}", rng.random_range(0..DIRS), rng.random_range(0..6));
    match rng.random_range(0..1000) {
        0..220 => {
            let (byte, len) = (rng.random_range(0..=255u8), rng.random_range(1..40_000));
            let dir = format!("keep{me}");
            calls.write_file(&format!("{dir}/{label}"), &vec![byte; len], true)?;
            round.kept.lock().push(Kept { dir, name: label.to_owned(), len, byte });
            Ok(())
        }
        220..420 => calls.write_file(&file(rng), &vec![b'q'; rng.random_range(0..12_000)], false),
        420..520 => calls.unlink(&file(rng)),
        520..620 => calls.rename(&file(rng), &file(rng)),
        620..700 => {
            let inside = if rng.random_bool(0.7) { String::new() } else { format!("/s{}", rng.random_range(0..6)) };
            calls.make(&(sub(rng) + &inside), FileKind::Directory)
        }
        700..760 => calls.rmdir(&sub(rng)),
        760..860 => {
            let inside = if rng.random_bool(0.5) { String::new() } else { format!("/s{}", rng.random_range(0..6)) };
            calls.rename(&sub(rng), &(sub(rng) + &inside))
        }
        860..900 => calls.link(&file(rng), &file(rng)),
        900..930 => {
            let size = Some(rng.random_range(0..60_000));
            let ino = calls.ino(&file(rng))?;
            calls.vfs.set_attr(&calls.who, ino, &SetAttr { size, ..SetAttr::default() }).map(drop)
        }
        930..950 => calls.write_at(&file(rng), rng.random_range(0..4 << 20), rng.random_bool(0.5)),
        950..970 => {
            let target = vec![b't'; rng.random_range(1..4000)];
            calls.symlink(&format!("{}/l{}", sub(rng), rng.random_range(0..9)), &target)
        }
        970..985 => calls.unlink(&format!("{}/l{}", sub(rng), rng.random_range(0..9))),
        _ => {
            let ino = calls.ino(&file(rng))?;
            let value = vec![b'v'; rng.random_range(1..900)];
            calls.vfs.set_xattr(&calls.who, ino, b"user.a", &value, SetMode::Any)
        }
    }
}

fn client(vfs: &Vfs<F2fs>, rt: &Rt, case: Case, number: u64, me: u64, round: &Round) {
    let calls = Calls { vfs, who: Credentials::root() };
    let mut rng = Pcg64Mcg::seed_from_u64((case.seed * 1000 + number) * 100 + me);
    for op in 0..case.ops {
        if round.stop.load(Ordering::Relaxed) {
            return;
        }
        let result = step(&calls, &mut rng, me, &format!("r{number}_{op}"), round);
        round.ops.fetch_add(1, Ordering::Relaxed);
        match result.as_ref().err().map(Error::errno) {
            Some(libc::ENOSPC) => drop(round.full.fetch_add(1, Ordering::Relaxed)),
            Some(libc::EIO | libc::EROFS | libc::EUCLEAN) if !round.stop.load(Ordering::Relaxed) => {
                round.wrong.lock().push(format!("client {me}, op {op}: {}", result.unwrap_err()));
                return;
            }
            _ => {}
        }
        sleep_until(&**rt, rt.now() + Duration::from_micros(rng.random_range(1..300)));
    }
}

fn mount(disk: &Arc<MemDisk>, rt: &Rt, case: Case) -> Result<Vfs<F2fs>, Error> {
    let slow: SharedDisk =
        Arc::new(SlowDisk { store: disk.clone(), rt: rt.clone(), noise: AtomicU64::new(case.seed.wrapping_mul(77)) });
    let format = F2fs::open(slow.clone(), rt.clone(), OpenOptions::default())?;
    let options = Options { cache_bytes: 16 << 20, dirty_age: Duration::from_secs(3), ..Options::default() };
    Ok(Vfs::new(format, slow, rt.clone(), options))
}

/// True for issues that a kill leaves, and for temperatures out of order, which recycling leaves:
/// nothing is wrong then.
fn is_usual(issue: &Issue) -> bool {
    matches!(issue, Issue::Temperature { .. } | Issue::PackTorn { .. })
}

/// Returns the first five issues that our checker, and if asked for the reference tool, finds.
fn checked(disk: &MemDisk, reference: bool) -> Vec<String> {
    let ours = match check::check(disk, &CheckOptions::default(), &mut |_| ()) {
        Ok(report) => {
            let issues = report.findings.iter().map(|finding| &finding.issue);
            issues.filter(|issue| !is_usual(issue)).map(ToString::to_string).collect()
        }
        Err(error) => vec![format!("it cannot be checked: {error}")],
    };
    let mut found: Vec<String> = ours;
    if reference {
        found.extend(fsck_f2fs(disk));
    }
    found.truncate(5);
    found
}

/// Returns the complaint of the reference tool; `None` if it has none or is not installed.
fn fsck_f2fs(disk: &MemDisk) -> Option<String> {
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    disk.write_to(image.path()).expect("the image is saved");
    let output = Command::new("fsck.f2fs").arg("--dry-run").arg(image.path()).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_bad = |line: &&str| ["[ASSERT]", "[Fail]", "[FIX]"].iter().any(|word| line.contains(word));
    let mut bad: Vec<&str> = text.lines().filter(is_bad).take(4).collect();
    // A chain that the tool does not follow (docs/consistency.md): the next mount shows whether anything is wrong.
    let gives_up = text.contains("record_fsync_data failed");
    if bad.is_empty() && !output.status.success() && !gives_up {
        bad.extend(text.lines().rev().filter(|line| !line.is_empty()).take(4));
    }
    (!bad.is_empty()).then(|| format!("fsck.f2fs: {:?} {bad:?}", output.status.code()))
}

/// Fills a fresh volume with files of 4 blocks.
fn fill(vfs: &Vfs<F2fs>, case: Case) -> Result<(), Error> {
    let calls = Calls { vfs, who: Credentials::root() };
    calls.make("base", FileKind::Directory)?;
    let stat = vfs.stat_fs();
    let left = stat.blocks * (100 - case.percent) / 100;
    for number in 0.. {
        if vfs.stat_fs().free <= left {
            break;
        }
        match calls.write_file(&format!("base/b{number}"), &[b'b'; 16_000], false) {
            Err(error) if error.errno() == libc::ENOSPC => break,
            result => result?,
        }
    }
    vfs.sync()
}

/// Runs one round: mount, verify, work, unmount or kill. Returns the disk as it was left.
fn one_round(
    disk: Arc<MemDisk>,
    virt: &Arc<Virtual>,
    case: Case,
    number: u64,
    kept: &mut BTreeMap<(String, String), (usize, u8)>,
) -> Result<Arc<MemDisk>, String> {
    let rt = virt.rt();
    let at = |what: &str| format!("round {number}: {what}");
    let vfs = mount(&disk, &rt, case).map_err(|error| at(&format!("mount refused: {error}")))?;
    let calls = Calls { vfs: &vfs, who: Credentials::root() };
    for ((dir, file), (len, byte)) in kept.iter() {
        match calls.bytes(&format!("{dir}/{file}")) {
            Ok(bytes) if bytes.len() == *len && bytes.iter().all(|b| b == byte) => {}
            Ok(_) => return Err(at(&format!("wrong {dir}/{file}"))),
            Err(error) => return Err(at(&format!("lost {dir}/{file}: {error}"))),
        }
    }
    let dirs = (0..DIRS).map(|i| format!("D{i}")).chain((0..CLIENTS).map(|i| format!("keep{i}")));
    for dir in dirs {
        let made = if calls.ino(&dir).is_ok() { Ok(()) } else { calls.make(&dir, FileKind::Directory) };
        match made {
            Err(error) if error.errno() != libc::ENOSPC => return Err(at(&format!("mkdir {dir}: {error}"))),
            _ => {}
        }
    }
    if number == 0 && case.percent > 0 {
        fill(&vfs, case).map_err(|error| at(&format!("filling: {error}")))?;
    }
    while kept.len() > KEPT_MAX {
        let ((dir, file), _) = kept.pop_first().expect("more than a few");
        calls.unlink(&format!("{dir}/{file}")).map_err(|error| at(&format!("unlink {dir}/{file}: {error}")))?;
    }
    let round = Arc::new(Round {
        stop: AtomicBool::new(false),
        kept: Mutex::default(),
        wrong: Mutex::default(),
        ops: AtomicU64::new(0),
        full: AtomicU64::new(0),
    });
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|me| {
            let (vfs, rt, round) = (vfs.clone(), rt.clone(), Arc::clone(&round));
            let body = move || client(&vfs, &rt.clone(), case, number, me, &round);
            virt.rt().spawn(&format!("client {me}"), Box::new(body))
        })
        .collect();
    let mut left = None;
    if case.kill {
        let mut rng = Pcg64Mcg::seed_from_u64(case.seed * 31 + number);
        let target = rng.random_range(case.ops / 2..CLIENTS * case.ops);
        let is_over = || tasks.iter().all(|task| task.is_finished());
        while round.ops.load(Ordering::Relaxed) < target && !is_over() {
            sleep_until(&*rt, rt.now() + Duration::from_micros(37));
        }
        left = Some(Arc::new(disk.snapshot()));
        note_kept(&round, kept);
        round.stop.store(true, Ordering::Relaxed);
    }
    tasks.iter().for_each(|task| task.join(&*rt));
    if let Some(wrong) = round.wrong.lock().first() {
        return Err(at(wrong));
    }
    if let Some(failed) = vfs.failed() {
        return Err(at(&format!("turned read-only: {failed}")));
    }
    let closed = vfs.close();
    let Some(left) = left else {
        note_kept(&round, kept);
        closed.map_err(|error| at(&format!("unmount: {error}")))?;
        report(&disk, case, number, &round);
        return judged(disk, case, number);
    };
    report(&left, case, number, &round);
    judged(left, case, number)
}

fn note_kept(round: &Round, kept: &mut BTreeMap<(String, String), (usize, u8)>) {
    kept.extend(round.kept.lock().drain(..).map(|file| ((file.dir, file.name), (file.len, file.byte))));
}

fn report(_disk: &MemDisk, case: Case, number: u64, round: &Round) {
    if std::env::var_os("AGEING_SEED").is_some() {
        let (ops, full) = (round.ops.load(Ordering::Relaxed), round.full.load(Ordering::Relaxed));
        eprintln!("seed {} round {number}: {ops} operations, {full} of them ENOSPC", case.seed);
    }
}

fn judged(disk: Arc<MemDisk>, case: Case, number: u64) -> Result<Arc<MemDisk>, String> {
    let reference = number + 1 == case.rounds || std::env::var_os("AGEING_SEED").is_some();
    let found = checked(&disk, reference);
    if found.is_empty() { Ok(disk) } else { Err(format!("round {number}: the checkers: {found:?}")) }
}

/// Deletes everything: the space is free again, and the volume is sound.
fn empty(disk: Arc<MemDisk>, virt: &Arc<Virtual>, case: Case) -> Result<(), String> {
    let rt = virt.rt();
    let vfs = mount(&disk, &rt, case).map_err(|error| format!("last mount refused: {error}"))?;
    Calls { vfs: &vfs, who: Credentials::root() }
        .clear(ROOT)
        .map_err(|error| format!("deleting everything: {error}"))?;
    vfs.sync().map_err(|error| format!("the last sync: {error}"))?;
    sleep_until(&*rt, rt.now() + Duration::from_secs(3));
    vfs.sync().map_err(|error| format!("the last sync: {error}"))?;
    let stat = vfs.stat_fs();
    if stat.free + 16 < stat.blocks {
        return Err(format!("{} of {} blocks are free after everything was deleted", stat.free, stat.blocks));
    }
    vfs.close().map_err(|error| format!("the last unmount: {error}"))?;
    let found = checked(&disk, true);
    if found.is_empty() { Ok(()) } else { Err(format!("at the end: {found:?}")) }
}

fn age(case: Case) -> Result<(), String> {
    let disk = Arc::new(MemDisk::new(case.mebibytes << 11));
    let options =
        MkfsOptions { segs_per_sec: case.segs_per_sec, ..MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0)) };
    mkfs(&*disk, &options).map_err(|error| error.to_string())?;
    let virt = Virtual::new(Some(case.seed));
    let mut kept = BTreeMap::new();
    let mut disk = disk;
    for number in 0..case.rounds {
        disk = virt.run(|| one_round(disk, &virt, case, number, &mut kept))?;
    }
    virt.run(|| empty(disk, &virt, case))
}

fn run(seeds: impl IntoIterator<Item = u64>) {
    let mut failed = Vec::new();
    for seed in seeds {
        let case = Case::of(seed);
        let outcome = std::panic::catch_unwind(|| age(case)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(format!("panic: {}", text.unwrap_or_else(|| "without a message".to_owned())))
        });
        if let Err(problem) = outcome {
            eprintln!("{case:?}\n    {problem}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[test]
fn volumes_that_age_nearly_full_stay_whole_and_writable() {
    // Unmounts failed with ENOSPC (7, 39), or the volume turned read-only (36), before everything had its room counted.
    run([3, 4, 7, 36, 39]);
}

#[test]
#[ignore = "minutes"]
fn many_volumes_that_age_nearly_full_stay_whole_and_writable() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first = number("AGEING_FIRST", 1);
    run(first..first + number("AGEING_COUNT", 100));
}

#[test]
#[ignore = "a single seed, given in AGEING_SEED"]
fn one_seed() {
    let seed = std::env::var("AGEING_SEED").ok().and_then(|text| text.parse().ok());
    run([seed.expect("AGEING_SEED is a number")]);
}
