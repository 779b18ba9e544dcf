//! A device that fails: EIO in the n-th request, failing flushes, a full host, a full volume.
//!
//! What was fsynced stays, an fsync reports a failed write, a flush that failed never turns into
//! success, the volume takes no changes after that and says why, and goes on reading.
//!
//! A failure prints `MOAFS_FAULT=…`, which replays it.

use std::sync::Arc;
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::CrashRecorder;
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_runtime::Live;
use moafs_testkit::crash::{Recording, Scene, Summary};
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::image::{self, Geometry, Maker};
use moafs_testkit::judges::{e2fsck, tools};
use moafs_testkit::model::{Model, NodeId};
use moafs_testkit::ops::{Generator, Limits, Op};
use moafs_testkit::volume::{ExtMounter, Mounter, OnDisk};
use moafs_testkit::workloads;
use moafs_vfs::types::Ino;

/// Workloads whose every request is worth hurting.
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

/// A workload runs over a device that follows `rules`; then power is lost, and all that was promised
/// must be there.
fn hurt(scene: Scene, rules: Vec<Rule>) -> Result<u64, String> {
    let Some(disk) = scene.geometry.make() else { return Ok(0) };
    let recorder = Arc::new(CrashRecorder::over(Arc::new(disk), Live::new()));
    let fault = Arc::new(Fault::new(recorder.clone(), Live::new(), rules));
    let mounter = ExtMounter::default();
    let mount = OnDisk { mounter: &mounter, disk: fault.clone() };
    let driver = match Driver::new(mount, Tolerance { broken: true, full: false }) {
        Ok(driver) => driver,
        // The fault hit while mounting: nothing was promised.
        Err(_) => return Ok(fault.hits()),
    };
    let recording = Recording::run_hurt(driver, recorder, &scene)?;
    let mut summary = Summary::default();
    recording.judge_end(&mounter, &mut summary);
    match summary.failures.into_iter().next() {
        Some((_, said)) => Err(said),
        None => Ok(fault.hits()),
    }
}

fn scene(workload: &str, geometry: &str) -> Scene {
    let workload = workloads::by_name(workload).expect("a known workload");
    Scene { workload, geometry: image::by_name(geometry).expect("a known geometry"), seed: 0 }
}

/// Hurts request 1, 2, 3… until the workload ends unhurt.
fn hurt_each(victims: &Victims, when: fn(u64) -> When, harm: Harm, label: &str) {
    let mut failures = 0;
    for workload in WORKLOADS {
        for n in (1..400).step_by(step()) {
            let rule = Rule::new(victims.clone(), when(n), harm);
            let outcome = std::panic::catch_unwind(|| hurt(scene(workload, "crash-1k"), vec![rule]));
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(0) => break,
                Ok(_) => {}
                Err(said) => {
                    failures += 1;
                    println!("MOAFS_FAULT={label}:{workload}:{n}\n  {said}");
                }
            }
        }
    }
    assert_eq!(failures, 0, "failing faults are printed above");
}

/// Every request in the full run (`MOAFS_FULL`), else every seventh.
fn step() -> usize {
    if std::env::var_os("MOAFS_FULL").is_some() { 1 } else { 7 }
}

#[test]
fn a_failing_write_loses_nothing_that_was_fsynced() {
    hurt_each(&Victims::Writes(EVERYWHERE), When::Nth, Harm::Error, "write");
}

#[test]
fn a_dying_device_loses_nothing_that_was_fsynced() {
    hurt_each(&Victims::Writes(EVERYWHERE), When::From, Harm::Short { sectors: 1 }, "dying");
}

#[test]
fn a_failing_read_loses_nothing_that_was_fsynced() {
    hurt_each(&Victims::Reads(EVERYWHERE), When::Nth, Harm::Error, "read");
}

#[test]
fn a_failing_flush_loses_nothing_that_was_fsynced() {
    hurt_each(&Victims::Flushes, When::Nth, Harm::Error, "flush");
}

/// A driver over a device that can be hurt at will.
fn hurtable<'a>(geometry: &str, mounter: &'a ExtMounter) -> (Driver<OnDisk<'a, ExtMounter>>, Arc<Fault>, Arc<MemDisk>) {
    let geometry = image::by_name(geometry).expect("a known geometry");
    let disk = Arc::new(geometry.make().expect("our own mkfs is always there"));
    let fault = Arc::new(Fault::new(disk.clone(), Live::new(), Vec::new()));
    let mount = OnDisk { mounter, disk: fault.clone() };
    let driver = Driver::new(mount, Tolerance::default()).expect("a fresh volume mounts");
    (driver, fault, disk)
}

fn made(driver: &mut Driver<OnDisk<'_, ExtMounter>>, name: &str, bytes: usize) -> (NodeId, Ino) {
    let id = NodeId(driver.model.ids().count());
    driver.step(&Op::create(NodeId::ROOT, name)).unwrap();
    driver.step(&Op::Hold { node: id }).unwrap();
    driver.step(&Op::Write { node: id, offset: 0, len: bytes, append: false }).unwrap();
    (id, driver.inos[&id])
}

#[test]
fn each_file_reports_its_failed_write_and_reads_go_on() {
    let mounter = ExtMounter::default();
    let (mut driver, fault, _disk) = hurtable("crash-4k", &mounter);
    let (safe, safe_ino) = made(&mut driver, "safe", 10_000);
    driver.step(&Op::Sync).unwrap();
    let (_, a) = made(&mut driver, "a", 9_000);
    let (_, b) = made(&mut driver, "b", 9_000);
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

#[test]
fn a_failed_flush_never_turns_into_success() {
    let mounter = ExtMounter::default();
    let (mut driver, fault, _disk) = hurtable("crash-1k", &mounter);
    driver.step(&Op::Sync).unwrap();
    let (_, a) = made(&mut driver, "a", 5_000);
    fault.set(vec![Rule::new(Victims::Flushes, When::Nth(1), Harm::Error)]);
    assert!(driver.vfs().fsync(a, false).is_err());
    fault.set(Vec::new());
    for _ in 0..3 {
        assert!(driver.vfs().fsync(a, true).is_err(), "a retry lies");
        assert!(driver.vfs().sync().is_err(), "a retry lies");
    }
}

#[test]
fn a_full_host_makes_writers_wait_and_loses_nothing() {
    let mounter = ExtMounter::default();
    let (mut driver, fault, disk) = hurtable("crash-4k", &mounter);
    let (a, ino) = made(&mut driver, "a", 50_000);
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
    // It may wait for room or say ENOSPC; it may not break the volume, and it may not lie.
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

/// Volumes that are full all the time.
const TINY: [Geometry; 3] = [
    Geometry { name: "tiny-1k", maker: Maker::Ours, block_size: 1024, inode_size: 128, kib: 512, options: &[] },
    Geometry {
        name: "tiny-1k-theirs",
        maker: Maker::Mke2fs,
        block_size: 1024,
        inode_size: 256,
        kib: 700,
        options: &["-t", "ext2", "-N", "64"],
    },
    Geometry { name: "tiny-4k", maker: Maker::Ours, block_size: 4096, inode_size: 256, kib: 2048, options: &[] },
];

fn fill(geometry: &Geometry, seed: u64) -> Result<u64, String> {
    let Some(disk) = geometry.make() else { return Ok(1) };
    let disk = Arc::new(disk);
    let mounter = ExtMounter::default();
    let tolerance = Tolerance { full: true, broken: false };
    let mut driver = Driver::new(OnDisk { mounter: &mounter, disk: disk.clone() }, tolerance)?;
    let limits = Limits {
        block_size: u64::from(geometry.block_size),
        file_bytes_max: geometry.kib << 9,
        total_bytes_max: geometry.kib << 12,
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
    empty(&mut driver)?;
    driver.verify()?;
    driver.unmount()?;
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).map_err(|error| error.to_string())?;
    disk.write_to(file.path()).map_err(|error| error.to_string())?;
    match e2fsck::run(file.path(), e2fsck::Mode::Look) {
        Some(verdict) if !verdict.spotless() => Err(format!("e2fsck -fn: {}", verdict.text)),
        _ => Ok(driver.refused),
    }
}

/// A full volume can be emptied: removing needs no space.
fn empty(driver: &mut Driver<OnDisk<'_, ExtMounter>>) -> Result<(), String> {
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

#[test]
fn no_space_at_any_step_leaves_a_sound_volume() {
    let mut failures = 0;
    for geometry in &TINY {
        let mut refused = 0;
        for seed in 0..8 {
            match std::panic::catch_unwind(|| fill(geometry, seed)).unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(n) => refused += n,
                Err(said) => {
                    failures += 1;
                    println!("MOAFS_FAULT=full:{}:{seed}\n  {said}", geometry.name);
                }
            }
        }
        assert!(refused > 0 || failures > 0, "{} was never full", geometry.name);
    }
    assert_eq!(failures, 0, "failing seeds are printed above");
}
