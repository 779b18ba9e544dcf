//! Random operations against the plain model, on every geometry; then the judges: the reference checker reports
//! nothing, and another implementation (the kernel, if it can) sees the same tree.
//!
//! `MOAFS_SEEDS=N` sets how many seeds each geometry gets; `MOAFS_REPLAY=GEOMETRY:SEED` runs one and
//! prints its operations; with `MOAFS_EACH` the volume is synced and judged after each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family, scratch_image};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::{Class, missing};
use moafs_testkit::model::{Model, NodeId};
use moafs_testkit::ops::{Generator, Limits};
use moafs_testkit::tests_of;
use moafs_testkit::volume::OnDisk;
use moafs_vfs::types::Ino;
use moafs_vfs::{Format, Vfs};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [random_operations_on_every_geometry, replay]);

/// Operations per seed.
const OPERATIONS: usize = 400;

fn limits<F: Family>(vfs: &Vfs<impl Format>, geometry: &Geometry) -> Limits {
    let block = u64::from(geometry.block_size);
    let shape = vfs.shape();
    Limits {
        block_size: block,
        file_bytes_max: (300 * block).min(2 << 20),
        total_bytes_max: (geometry.bytes() / 4).min(shape.blocks * block / 2),
        sparse_bytes_max: (80 << 20).min(shape.file_bytes_max / 2),
        nodes_max: 120,
        remounts: true,
        xattrs: F::keeps_xattrs(geometry),
        symlink_bytes_max: shape.symlink_bytes_max,
        nanos: geometry.inode_size > 128,
    }
}

/// The state after a seed.
struct Left {
    disk: Arc<MemDisk>,
    model: Model,
    inos: BTreeMap<NodeId, Ino>,
}

/// Runs one seed; `None` if the volume cannot be made here.
fn run<F: Family>(geometry: &Geometry, seed: u64, loud: bool) -> Result<Option<Left>, String> {
    let Some(disk) = F::make(geometry) else { return Ok(None) };
    let disk = Arc::new(disk);
    let mounter = F::mounter(seed);
    let mut driver = Driver::new(OnDisk { mounter: &mounter, disk: disk.clone() }, Tolerance::default())?;
    let mut generator = Generator::new(seed, limits::<F>(driver.vfs(), geometry));
    for number in 0..OPERATIONS {
        let op = generator.next(&driver.model);
        if loud {
            println!("{number:4} {op:?}");
        }
        driver.step(&op).map_err(|said| format!("operation {number}: {said}"))?;
        if loud && std::env::var_os("MOAFS_EACH").is_some() {
            sound_after_sync::<F>(&driver, &disk).map_err(|said| format!("after operation {number}: {said}"))?;
        }
    }
    driver.verify()?;
    driver.unmount()?;
    Ok(Some(Left { disk, model: driver.model, inos: driver.inos }))
}

/// Checks that the checker reports nothing fatal on the volume while it is mounted.
fn sound_after_sync<F: Family>(driver: &Driver<OnDisk<'_, F::Mounter>>, disk: &MemDisk) -> Result<(), String> {
    driver.vfs().sync().map_err(|error| format!("sync: {error}"))?;
    match family::look::<F>(disk)? {
        Some(verdict) if verdict.class == Class::Fatal => Err(format!("{}: {}", F::CHECKER, verdict.text)),
        _ => Ok(()),
    }
}

fn judge<F: Family>(geometry: &Geometry, left: &Left) -> Result<(), String> {
    let file = scratch_image(&left.disk)?;
    match F::look(file.path()) {
        Some(verdict) if !verdict.spotless => return Err(format!("{}: {}", F::CHECKER, verdict.text)),
        Some(_) => {}
        None => missing(F::CHECKER, "it is not installed"),
    }
    family::no_complaints::<F>(&left.disk)?;
    F::witness(geometry, file.path(), &left.model, &left.inos)
}

fn run_and_judge<F: Family>(geometry: &Geometry, seed: u64, loud: bool) -> Result<(), String> {
    match run::<F>(geometry, seed, loud)? {
        Some(left) => judge::<F>(geometry, &left),
        None => {
            missing(geometry.name, "the tool that makes it is not installed");
            Ok(())
        }
    }
}

fn seeds() -> u64 {
    std::env::var("MOAFS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

fn random_operations_on_every_geometry<F: Family>() {
    let only = std::env::var("MOAFS_ONLY").unwrap_or_default();
    let mut failures = 0;
    for geometry in F::GEOMETRIES.iter().filter(|g| g.name.contains(&only)) {
        for seed in 0..seeds() {
            let outcome = std::panic::catch_unwind(|| run_and_judge::<F>(geometry, seed, false));
            if let Err(said) = outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                failures += 1;
                println!("MOAFS_REPLAY={}:{seed}\n  {said}", geometry.name);
            }
        }
    }
    assert_eq!(failures, 0, "failing seeds are printed above");
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_REPLAY") else { return };
    let (name, seed) = text.split_once(':').expect("GEOMETRY:SEED");
    if !family::is_for::<F>(name) {
        return;
    }
    let geometry = family::geometry::<F>(name).expect("a known geometry");
    let outcome = run_and_judge::<F>(&geometry, seed.parse().expect("a number"), true);
    outcome.unwrap_or_else(|said| panic!("{said}"));
}
