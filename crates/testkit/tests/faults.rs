//! A device that fails: EIO in the n-th request, failing flushes, a full host, a full volume.
//!
//! Fsynced data stay, an fsync reports a failed write, a failed flush never turns into success, the volume then takes
//! no changes and gives the reason, and reads still work.
//!
//! A failure prints `MOAFS_FAULT=…`; `MOAFS_FAULT=… cargo test -p moafs-testkit --test faults replay -- --nocapture`
//! runs that case alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Live, sleep_until};
use moafs_testkit::crash::{Recording, Scene, Summary};
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::Class;
use moafs_testkit::model::{Model, NodeId};
use moafs_testkit::ops::{Generator, Limits, Op};
use moafs_testkit::simulate::device::Device;
use moafs_testkit::tests_of;
use moafs_testkit::volume::{Mounter, OnDisk, options};
use moafs_testkit::workloads;
use moafs_vfs::Credentials;
use moafs_vfs::api::{NewFile, RenameMode};
use moafs_vfs::types::{FileKind, Ino, Name};

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [
        a_failing_write_loses_nothing_that_was_fsynced,
        a_dying_device_loses_nothing_that_was_fsynced,
        a_failing_read_loses_nothing_that_was_fsynced,
        a_failing_flush_loses_nothing_that_was_fsynced,
        each_file_reports_its_failed_write_and_reads_go_on,
        a_failed_flush_never_turns_into_success,
        an_fsync_beside_a_failing_sync_loses_nothing,
        after_a_panic_nothing_is_written_and_what_was_synced_is_there,
        a_full_host_makes_writers_wait_and_loses_nothing,
        a_host_that_is_full_for_a_moment_breaks_nothing,
        a_host_that_stays_full_refuses_and_takes_everything_later,
        an_unmount_waits_once_for_a_full_host,
        no_space_at_any_step_leaves_a_sound_volume,
        replay,
    ]
);

/// Workloads in which a fault of every request is tried.
const WORKLOADS: [&str; 8] = [
    "create-fsync",
    "append-fsync",
    "overwrite",
    "rename-over",
    "directory-move",
    "unlink-reuse",
    "truncate-down",
    "fsync-mix",
];

/// Runs a workload over a device that follows `rule`, cuts the power, and checks that every promise is kept.
fn hurt<F: Family>(scene: Scene, rule: Rule) -> Result<u64, String> {
    let Some(disk) = F::make(&scene.geometry) else { return Ok(0) };
    let recorder = Arc::new(CrashRecorder::over(Arc::new(disk), Live::new()));
    // A full host refuses, and breaks nothing.
    let tolerance = Tolerance { broken: rule.harm != Harm::HostFull, full: rule.harm == Harm::HostFull };
    let fault = Arc::new(Fault::new(recorder.clone(), Live::new(), vec![rule]));
    let mounter = F::mounter(0);
    let mount = OnDisk { mounter: &mounter, disk: fault.clone() };
    let driver = match Driver::new(mount, tolerance) {
        Ok(driver) => driver,
        // The fault hit while mounting: nothing was promised.
        Err(_) => return Ok(fault.hits()),
    };
    let recording = Recording::<F>::run_hurt(driver, recorder, &scene)?;
    let mut summary = Summary::default();
    recording.judge_end(&mut summary);
    match summary.failures.into_iter().next() {
        Some((_, said)) => Err(said),
        None => Ok(fault.hits()),
    }
}

fn scene<F: Family>(workload: &str) -> Scene {
    let workload = workloads::by_name(workload).expect("a known workload");
    Scene { workload, geometry: family::geometries::<F>(F::CRASH)[0], seed: 0 }
}

/// Returns the fault of the `n`-th request, by the label that a failure prints.
fn rule(label: &str, n: u64) -> Rule {
    let (victims, when, harm) = match label {
        "write" => (Victims::Writes(EVERYWHERE), When::Nth(n), Harm::Error),
        "dying" => (Victims::Writes(EVERYWHERE), When::From(n), Harm::Short { sectors: 1 }),
        "read" => (Victims::Reads(EVERYWHERE), When::Nth(n), Harm::Error),
        "flush" => (Victims::Flushes, When::Nth(n), Harm::Error),
        "host" => (Victims::Writes(EVERYWHERE), When::Nth(n), Harm::HostFull),
        _ => panic!("no label {label}"),
    };
    Rule::new(victims, when, harm)
}

/// Fails request 1, 2, 3… until the workload ends without a fault.
fn hurt_each<F: Family>(label: &str) {
    let mut failures = 0;
    for workload in WORKLOADS {
        for n in (1..400).step_by(step()) {
            let rule = rule(label, n);
            let outcome = std::panic::catch_unwind(|| hurt::<F>(scene::<F>(workload), rule));
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(0) => break,
                Ok(_) => {}
                Err(said) => {
                    failures += 1;
                    println!("MOAFS_FAULT={}:{label}:{workload}:{n}\n  {said}", F::CHECKER);
                }
            }
        }
    }
    assert_eq!(failures, 0, "failing faults are printed above");
}

/// Returns 1 in the full run (`MOAFS_FULL`), so that every request fails once, else 7.
fn step() -> usize {
    if std::env::var_os("MOAFS_FULL").is_some() { 1 } else { 7 }
}

fn a_failing_write_loses_nothing_that_was_fsynced<F: Family>() {
    hurt_each::<F>("write");
}

fn a_dying_device_loses_nothing_that_was_fsynced<F: Family>() {
    hurt_each::<F>("dying");
}

fn a_failing_read_loses_nothing_that_was_fsynced<F: Family>() {
    hurt_each::<F>("read");
}

fn a_failing_flush_loses_nothing_that_was_fsynced<F: Family>() {
    hurt_each::<F>("flush");
}

type Hurtable<'a, F> = Driver<OnDisk<'a, <F as Family>::Mounter>>;

/// Creates a driver over a device that can be made to fail; the geometry by its number in [`Family::CRASH`].
fn hurtable<F: Family>(geometry: usize, mounter: &F::Mounter) -> (Hurtable<'_, F>, Arc<Fault>, Arc<MemDisk>) {
    let geometry = family::geometries::<F>(F::CRASH)[geometry];
    let disk = Arc::new(F::make(&geometry).expect("our own mkfs is always there"));
    let fault = Arc::new(Fault::new(disk.clone(), Live::new(), Vec::new()));
    let mount = OnDisk { mounter, disk: fault.clone() };
    let driver = Driver::new(mount, Tolerance::default()).expect("a fresh volume mounts");
    (driver, fault, disk)
}

fn made<F: Family>(driver: &mut Hurtable<'_, F>, name: &str, bytes: usize) -> (NodeId, Ino) {
    let id = NodeId(driver.model.ids().count());
    driver.step(&Op::create(NodeId::ROOT, name)).unwrap();
    driver.step(&Op::Hold { node: id }).unwrap();
    driver.step(&Op::Write { node: id, offset: 0, len: bytes, append: false }).unwrap();
    (id, driver.inos[&id])
}

fn each_file_reports_its_failed_write_and_reads_go_on<F: Family>() {
    let mounter = F::mounter(0);
    let (mut driver, fault, _disk) = hurtable::<F>(1, &mounter);
    let (safe, safe_ino) = made::<F>(&mut driver, "safe", 10_000);
    driver.step(&Op::Sync).unwrap();
    let (_, a) = made::<F>(&mut driver, "a", 9_000);
    let (_, b) = made::<F>(&mut driver, "b", 9_000);
    fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::Error)]);
    let vfs = driver.vfs();
    let errors = [vfs.fsync(a, false), vfs.fsync(b, false)].map(|result| result.map_err(|error| error.errno()));
    assert!(errors.iter().all(Result::is_err), "both files report: {errors:?}");
    let reason = vfs.failed().expect("the volume says why it takes no more changes");
    fault.set(Vec::new());
    assert!(vfs.sync().is_err(), "sync does not pretend");
    assert_eq!(vfs.failed(), Some(reason), "the first reason is kept");
    let mut back = vec![0; 10_000];
    assert_eq!(vfs.read(safe_ino, 0, &mut back).unwrap(), 10_000);
    assert_eq!(back, driver.model.node(safe).content.bytes(0, 10_000));
    assert_eq!(vfs.read(a, 0, &mut back).unwrap(), 9_000, "a page that could not be written is still readable");
}

fn a_failed_flush_never_turns_into_success<F: Family>() {
    let mounter = F::mounter(0);
    let (mut driver, fault, _disk) = hurtable::<F>(0, &mounter);
    driver.step(&Op::Sync).unwrap();
    let (_, a) = made::<F>(&mut driver, "a", 5_000);
    fault.set(vec![Rule::new(Victims::Flushes, When::Nth(1), Harm::Error)]);
    assert!(driver.vfs().fsync(a, false).is_err());
    fault.set(Vec::new());
    for _ in 0..3 {
        assert!(driver.vfs().fsync(a, true).is_err(), "a retry lies");
        assert!(driver.vfs().sync().is_err(), "a retry lies");
    }
}

/// A panic at each request of a few changes, and of their syncs.
fn after_a_panic_nothing_is_written_and_what_was_synced_is_there<F: Family>() {
    let mut panics = 0;
    for victims in [Victims::Reads(EVERYWHERE), Victims::Writes(EVERYWHERE), Victims::Flushes] {
        for nth in 1..100 {
            let at = format!("a panic in request {nth} of {victims:?}");
            let mounter = F::mounter(0);
            let (mut driver, fault, disk) = hurtable::<F>(1, &mounter);
            let (safe, _) = made::<F>(&mut driver, "safe", 10_000);
            driver.step(&Op::Sync).unwrap();
            fault.set(vec![Rule::new(victims.clone(), When::Nth(nth), Harm::Panic)]);
            let changes = || {
                let (file, _) = made::<F>(&mut driver, "file", 9_000);
                driver.step(&Op::Fsync { node: file, data_only: false }).unwrap();
                driver.step(&Op::create(NodeId::ROOT, "second")).unwrap();
                driver.step(&Op::Sync).unwrap();
            };
            if catch_unwind(AssertUnwindSafe(changes)).is_ok() {
                break;
            }
            panics += 1;
            let reason = driver.vfs().failed().unwrap_or_else(|| panic!("{at}: the volume goes on"));
            assert!(reason.contains("a panic"), "{at}: {reason}");
            fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::Error)]);
            let hits = fault.hits();
            assert!(driver.vfs().sync().is_err() && driver.vfs().clone().close().is_err(), "{at}: pretends");
            assert_eq!(fault.hits(), hits, "{at}: something is written");
            let vfs = F::mounter(0).mount(disk, false).unwrap_or_else(|error| panic!("{at}: {error}"));
            let found = vfs.lookup(&Credentials::root(), vfs.shape().root, name("safe"));
            let file = found.unwrap_or_else(|error| panic!("{at}: {error}"));
            let mut back = vec![0; 10_000];
            assert_eq!(vfs.read(file.ino, 0, &mut back).unwrap(), 10_000, "{at}");
            assert!(back == driver.model.node(safe).content.bytes(0, 10_000), "{at}");
        }
    }
    assert!(panics > 3, "{panics} panics");
}

/// An fsync that comes while another client's sync fails keeps its promise: here the new name of a file.
fn an_fsync_beside_a_failing_sync_loses_nothing<F: Family>() {
    let mut refused = 0;
    for nth in 1..12 {
        for after_us in [0, 300, 1_000, 3_000] {
            let at = format!("write {nth} fails, fsync after {after_us} us");
            let (outcome, left) = fsync_beside_sync::<F>(nth, Duration::from_micros(after_us));
            if outcome.is_err() {
                refused += 1;
                continue;
            }
            let vfs = F::mounter(0).mount(left, false).unwrap_or_else(|error| panic!("{at}: {error}"));
            let found = vfs.lookup(&Credentials::root(), vfs.shape().root, name("new"));
            let file = found.unwrap_or_else(|error| panic!("{at}: {error}"));
            let mut back = vec![0; BYTES.len() + 1];
            let n = vfs.read(file.ino, 0, &mut back).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert!(back[..n] == *BYTES, "{at}: {n} bytes");
        }
    }
    assert!(refused > 5, "{refused} were refused");
}

const BYTES: &[u8] = &[7; 9_000];

/// Returns the answer of the fsync, and the disk that a power cut then leaves.
fn fsync_beside_sync<F: Family>(nth: u64, after: Duration) -> (moafs_vfs::Result<()>, Arc<MemDisk>) {
    let runtime = Virtual::new(None);
    let rt = runtime.rt();
    let disk = F::make(&family::geometries::<F>(F::CRASH)[0]).expect("our own mkfs is always there");
    let recorder = Arc::new(CrashRecorder::over(Arc::new(disk), rt.clone()));
    let fault = Arc::new(Fault::new(recorder.clone(), rt.clone(), Vec::new()));
    let device = Arc::new(Device::new(fault.clone(), recorder.clone(), rt.clone(), nth, 1_000_000));
    let outcome = runtime.run(|| {
        let vfs = F::mounter(0).mount_on(device, rt.clone(), options(false)).unwrap();
        let (who, root) = (Credentials::root(), vfs.shape().root);
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        let file = vfs.create(&who, root, name("old"), &new).unwrap().ino;
        vfs.sync().unwrap();
        fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Nth(nth), Harm::Error)]);
        vfs.rename(&who, (root, name("old")), (root, name("new")), RenameMode::Replace).unwrap();
        let beside = vfs.clone();
        let sync = rt.spawn("sync", Box::new(move || drop(beside.sync())));
        sleep_until(&*rt, rt.now() + after);
        let outcome = vfs.write(&who, file, 0, BYTES, false).and_then(|_| vfs.fsync(file, true));
        sync.join(&*rt);
        outcome
    });
    let left = recorder.state(recorder.cut_points() - 1, 1, Mode::None);
    (outcome, Arc::new(left))
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn a_full_host_makes_writers_wait_and_loses_nothing<F: Family>() {
    let mounter = F::mounter(0);
    let (mut driver, fault, disk) = hurtable::<F>(1, &mounter);
    let (a, ino) = made::<F>(&mut driver, "a", 50_000);
    fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::HostFull)]);
    let relief = {
        let fault = fault.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            fault.set(Vec::new());
        })
    };
    let waited = driver.vfs().fsync(ino, false);
    relief.join().unwrap();
    // It may wait for room or return ENOSPC; it may not break the volume, or succeed without writing.
    if let Err(error) = &waited {
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    }
    assert_eq!(driver.vfs().failed(), None, "a full host is no broken device");
    driver.step(&Op::Fsync { node: a, data_only: false }).unwrap();
    driver.unmount().unwrap();
    let vfs = mounter.mount(disk, true).unwrap();
    let tree = moafs_testkit::tree::of_vfs(&vfs).unwrap();
    assert_eq!(moafs_testkit::tree::differences(&driver.model, &tree), Vec::<String>::new());
}

fn a_host_that_is_full_for_a_moment_breaks_nothing<F: Family>() {
    hurt_each::<F>("host");
}

/// Whatever write finds no room first: the volume refuses, keeps everything in memory, leaves what was durable alone,
/// and writes it all when there is room.
fn a_host_that_stays_full_refuses_and_takes_everything_later<F: Family>() {
    for geometry in family::geometries::<F>(F::CRASH) {
        let refused: u32 = (1..16).map(|nth| u32::from(full_from::<F>(&geometry, nth))).sum();
        assert!(refused > 5, "{}: {refused} were refused", geometry.name);
    }
}

/// The time for which the host stays full.
const FULL: Duration = Duration::from_secs(300);

/// Returns true if the host was full at the `nth` write of two syncs and an fsync.
fn full_from<F: Family>(geometry: &Geometry, nth: u64) -> bool {
    let runtime = Virtual::new(None);
    let rt = runtime.rt();
    let disk = F::make(geometry).expect("our own mkfs is always there");
    let recorder = Arc::new(CrashRecorder::over(Arc::new(disk), rt.clone()));
    let fault = Arc::new(Fault::new(recorder.clone(), rt.clone(), Vec::new()));
    let left = || {
        let cut = recorder.cut_points() - 1;
        [Mode::None, Mode::All].map(|mode| Arc::new(recorder.state(cut, 1, mode)))
    };
    let who = Credentials::root();
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    runtime.run(|| {
        let vfs = F::mounter(0).mount_on(fault.clone(), rt.clone(), options(false)).unwrap();
        let root = vfs.shape().root;
        let made = |text| vfs.create(&who, root, name(text), &new).unwrap().ino;
        let (old, grows) = (made("old"), made("grows"));
        vfs.write(&who, old, 0, BYTES, false).unwrap();
        vfs.sync().unwrap();
        fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::From(nth), Harm::HostFull)]);
        vfs.rename(&who, (root, name("old")), (root, name("new")), RenameMode::Replace).unwrap();
        let synced = vfs.sync();
        vfs.write(&who, grows, 0, BYTES, false).unwrap();
        let fsynced = vfs.fsync(grows, false);
        made("more");
        let last = vfs.sync();
        for done in [&synced, &fsynced, &last] {
            assert!(!matches!(done, Err(error) if error.errno() != libc::ENOSPC), "write {nth}: {done:?}");
        }
        sleep_until(&*rt, rt.now() + FULL);
        assert_eq!(vfs.failed(), None, "write {nth}: a full host is no broken device");
        for disk in left() {
            holds::<F>(disk, if synced.is_ok() { &["new"] } else { &["new", "old"] }, nth);
        }
        // Changes go on, and what was taken before is read back, also from nodes that the device does not have.
        made("later");
        vfs.shrink(0);
        assert_eq!(vfs.lookup(&who, root, name("new")).unwrap().ino, old, "write {nth}");
        fault.set(Vec::new());
        vfs.fsync(grows, false).unwrap_or_else(|error| panic!("write {nth}: {error}"));
        left().into_iter().for_each(|disk| holds::<F>(disk, &["grows"], nth));
        vfs.sync().unwrap_or_else(|error| panic!("write {nth}: {error}"));
        for disk in left() {
            holds::<F>(disk.clone(), &["new"], nth);
            holds::<F>(disk.clone(), &["grows"], nth);
            let vfs = F::mounter(0).mount(disk, false).unwrap();
            vfs.lookup(&who, vfs.shape().root, name("later")).unwrap_or_else(|error| panic!("write {nth}: {error}"));
        }
        vfs.close().unwrap();
        left().into_iter().for_each(|disk| spotless::<F>(&disk, nth));
        synced.is_err() || fsynced.is_err() || last.is_err()
    })
}

/// An unmount on a full host gives up after the time that any other caller waits.
fn an_unmount_waits_once_for_a_full_host<F: Family>() {
    let runtime = Virtual::new(None);
    let rt = runtime.rt();
    let disk = F::make(&family::geometries::<F>(F::CRASH)[0]).expect("our own mkfs is always there");
    let fault = Arc::new(Fault::new(Arc::new(disk), rt.clone(), Vec::new()));
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    runtime.run(|| {
        let vfs = F::mounter(0).mount_on(fault.clone(), rt.clone(), options(false)).unwrap();
        vfs.create(&Credentials::root(), vfs.shape().root, name("new"), &new).unwrap();
        fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::HostFull)]);
        let begun = rt.now();
        assert_eq!(vfs.close().map_err(|error| error.errno()), Err(libc::ENOSPC));
        let waited = rt.now() - begun;
        assert!(waited > Duration::from_secs(20) && waited < Duration::from_secs(40), "{waited:?}");
    });
}

/// Checks that one of the names leads to [`BYTES`] on a disk that a power cut has left, and that the checker finds
/// nothing but leaks where the format leaves them.
fn holds<F: Family>(disk: Arc<MemDisk>, names: &[&str], nth: u64) {
    match family::look::<F>(&disk).unwrap() {
        Some(verdict) if !F::ONE_MOMENT => assert!(verdict.class < Class::Fatal, "write {nth}: {}", verdict.text),
        _ => spotless::<F>(&disk, nth),
    }
    let vfs = F::mounter(0).mount(disk, false).unwrap_or_else(|error| panic!("write {nth}: {error}"));
    let found = |text: &&str| vfs.lookup(&Credentials::root(), vfs.shape().root, name(text)).ok();
    let file = names.iter().find_map(found).unwrap_or_else(|| panic!("write {nth}: there is none of {names:?}"));
    let mut back = vec![0; BYTES.len() + 1];
    let n = vfs.read(file.ino, 0, &mut back).unwrap();
    assert!(back[..n] == *BYTES, "write {nth}: {n} bytes of {names:?}");
}

fn spotless<F: Family>(disk: &MemDisk, nth: u64) {
    if let Some(verdict) = family::look::<F>(disk).unwrap() {
        assert!(verdict.spotless, "write {nth}: {}", verdict.text);
    }
}

fn fill<F: Family>(geometry: &Geometry, seed: u64) -> Result<u64, String> {
    let Some(disk) = F::make(geometry) else { return Ok(1) };
    let disk = Arc::new(disk);
    let mounter = F::mounter(seed);
    let tolerance = Tolerance { full: true, broken: false };
    let mut driver = Driver::new(OnDisk { mounter: &mounter, disk: disk.clone() }, tolerance)?;
    let room = F::room(geometry, driver.vfs().shape());
    let limits = Limits {
        block_size: u64::from(geometry.block_size),
        file_bytes_max: room / 2,
        total_bytes_max: room * 4,
        sparse_bytes_max: 4 << 20,
        nodes_max: 300,
        remounts: true,
        xattrs: true,
        symlink_bytes_max: 900,
        nanos: false,
    };
    let mut generator = Generator::new(seed, limits);
    for number in 0..500 {
        let op = generator.next(&driver.model);
        driver.step(&op).map_err(|said| format!("operation {number}: {said}"))?;
    }
    driver.verify()?;
    empty::<F>(&mut driver)?;
    driver.verify()?;
    driver.unmount()?;
    match family::look::<F>(&disk)? {
        Some(verdict) if !verdict.spotless => Err(format!("{}: {}", F::CHECKER, verdict.text)),
        _ => Ok(driver.refused),
    }
}

/// Checks that a full volume can be emptied: removing needs no space.
fn empty<F: Family>(driver: &mut Hurtable<'_, F>) -> Result<(), String> {
    loop {
        let next = |model: &Model| {
            model.living().filter(|(_, node)| node.is_dir()).find_map(|(dir, node)| {
                let leaf = |id: &NodeId| !model.node(*id).is_dir() || model.node(*id).entries.is_empty();
                let (name, id) = node.entries.iter().find(|(_, id)| leaf(id))?;
                let name = moafs_testkit::ops::Bytes(name.clone());
                Some(if model.node(*id).is_dir() { Op::Rmdir { dir, name } } else { Op::Unlink { dir, name } })
            })
        };
        let Some(op) = next(&driver.model) else { return Ok(()) };
        let before = driver.refused;
        driver.step(&op)?;
        if driver.refused != before {
            return Err(format!("{op:?}: a full volume cannot be emptied"));
        }
    }
}

fn no_space_at_any_step_leaves_a_sound_volume<F: Family>() {
    let mut failures = 0;
    for geometry in F::FULL {
        let mut refused = 0;
        for seed in 0..8 {
            match std::panic::catch_unwind(|| fill::<F>(geometry, seed)).unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(n) => refused += n,
                Err(said) => {
                    failures += 1;
                    println!("MOAFS_FAULT={}:full:{}:{seed}\n  {said}", F::CHECKER, geometry.name);
                }
            }
        }
        assert!(refused > 0 || failures > 0, "{} was never full", geometry.name);
    }
    assert_eq!(failures, 0, "failing seeds are printed above");
}

/// Runs the case that `MOAFS_FAULT` names: checker, label, workload (or a full volume's geometry), request (or seed).
fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_FAULT") else { return };
    let [checker, label, name, number] = text.split(':').collect::<Vec<_>>()[..] else {
        panic!("MOAFS_FAULT={text}: want CHECKER:LABEL:NAME:NUMBER")
    };
    if checker != F::CHECKER {
        return;
    }
    let number: u64 = number.parse().expect("a number");
    let outcome = if label == "full" {
        let geometry = F::FULL.iter().find(|geometry| geometry.name == name);
        fill::<F>(geometry.unwrap_or_else(|| panic!("no geometry {name} that is full")), number)
    } else {
        hurt::<F>(scene::<F>(name), rule(label, number))
    };
    outcome.unwrap_or_else(|said| panic!("{said}"));
}
