//! Random operations against the plain model, on every geometry; then the judges: `e2fsck -fn` has
//! nothing to say, and the kernel sees the same tree.
//!
//! `MOAFS_SEEDS=N` sets how many seeds each geometry gets; `MOAFS_REPLAY=GEOMETRY:SEED` runs one and
//! prints its operations.

use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::image::{self, Geometry};
use moafs_testkit::judges::kernel::{self, KernelMount};
use moafs_testkit::judges::{e2fsck, missing, tools};
use moafs_testkit::model::Model;
use moafs_testkit::ops::{Generator, Limits};
use moafs_testkit::tree;
use moafs_testkit::volume::{ExtMounter, OnDisk};
use moafs_vfs::Format;

/// Operations per seed.
const OPERATIONS: usize = 400;

fn limits<F: Format>(vfs: &moafs_vfs::Vfs<F>, geometry: &Geometry) -> Limits {
    let block = u64::from(geometry.block_size);
    let shape = vfs.shape();
    Limits {
        block_size: block,
        file_bytes_max: (300 * block).min(2 << 20),
        total_bytes_max: (geometry.kib << 10) / 4,
        sparse_bytes_max: (80 << 20).min(shape.file_bytes_max / 2),
        nodes_max: 120,
        remounts: true,
        xattrs: geometry.keeps_xattrs(),
        symlink_bytes_max: shape.symlink_bytes_max,
        nanos: geometry.inode_size > 128,
    }
}

/// Runs one seed; the image it leaves, and the model.
fn run(geometry: &Geometry, seed: u64, loud: bool) -> Result<Option<(Arc<MemDisk>, Model)>, String> {
    let Some(disk) = geometry.make() else { return Ok(None) };
    let disk = Arc::new(disk);
    let mounter = ExtMounter::default();
    let mut driver = Driver::new(OnDisk { mounter: &mounter, disk: disk.clone() }, Tolerance::default())?;
    let mut generator = Generator::new(seed, limits(driver.vfs(), geometry));
    for number in 0..OPERATIONS {
        let op = generator.next(&driver.model);
        if loud {
            println!("{number:4} {op:?}");
        }
        driver.step(&op).map_err(|said| format!("operation {number}: {said}"))?;
    }
    driver.verify()?;
    driver.unmount()?;
    Ok(Some((disk, driver.model)))
}

fn judge(geometry: &Geometry, disk: &MemDisk, model: &Model) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).map_err(|error| error.to_string())?;
    disk.write_to(file.path()).map_err(|error| error.to_string())?;
    match e2fsck::run(file.path(), e2fsck::Mode::Look) {
        Some(verdict) if !verdict.spotless() => return Err(format!("e2fsck -fn: {}", verdict.text)),
        Some(_) => {}
        None => missing("e2fsck", "it is not installed"),
    }
    if geometry.block_size > kernel::BLOCK_BYTES_MAX {
        return Ok(());
    }
    match KernelMount::new(file.path(), "ext2", "ro,user_xattr").map_err(|error| format!("kernel: {error}"))? {
        None => missing("the kernel", "mounting needs root and loop devices"),
        Some(mount) => {
            let seen = tree::of_dir(mount.path()).map_err(|error| format!("kernel: {error}"))?;
            let differences = tree::differences(model, &seen);
            mount.unmount().map_err(|error| format!("kernel: {error}"))?;
            if !differences.is_empty() {
                return Err(format!("the kernel sees: {}", differences.join("\n")));
            }
        }
    }
    Ok(())
}

fn run_and_judge(geometry: &Geometry, seed: u64, loud: bool) -> Result<(), String> {
    match run(geometry, seed, loud)? {
        Some((disk, model)) => judge(geometry, &disk, &model),
        None => {
            missing("mke2fs", "it is not installed");
            Ok(())
        }
    }
}

fn seeds() -> u64 {
    std::env::var("MOAFS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

#[test]
fn random_operations_on_every_geometry() {
    let only = std::env::var("MOAFS_ONLY").unwrap_or_default();
    let mut failures = 0;
    for geometry in image::ALL.iter().filter(|g| g.name.contains(&only)) {
        for seed in 0..seeds() {
            let outcome = std::panic::catch_unwind(|| run_and_judge(geometry, seed, false));
            if let Err(said) = outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                failures += 1;
                println!("MOAFS_REPLAY={}:{seed}\n  {said}", geometry.name);
            }
        }
    }
    assert_eq!(failures, 0, "failing seeds are printed above");
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MOAFS_REPLAY") else { return };
    let (name, seed) = text.split_once(':').expect("GEOMETRY:SEED");
    let geometry = image::by_name(name).expect("a known geometry");
    let outcome = run_and_judge(&geometry, seed.parse().expect("a number"), true);
    outcome.unwrap_or_else(|said| panic!("{said}"));
}
