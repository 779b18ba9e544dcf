//! Swap areas beside random file operations: no file gets a block of one, no two overlap, their contents stay, the
//! image records nothing of them, and their blocks are free again afterwards.
//!
//! `MOAFS_SEEDS=N` sets how many seeds each geometry gets, `MOAFS_ONLY=TEXT` which geometries; a failure names both.

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::Live;
use moafs_swap::PAGE_BYTES;
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::{Class, missing};
use moafs_testkit::model::{Node, NodeId};
use moafs_testkit::ops::{Generator, Limits, Op, Paging};
use moafs_testkit::paging::VolumeLayout;
use moafs_testkit::runs::Runs;
use moafs_testkit::tests_of;
use moafs_testkit::volume::{Mounter, OnDisk};
use moafs_vfs::types::BlockRun;
use moafs_vfs::{Format, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [
        runs_come_and_go_between_operations,
        pages_come_and_go_between_operations,
    ]
);

/// Operations per seed.
const OPERATIONS: usize = 300;
/// Size of the largest volume used, in bytes: larger ones take too long to survey and to judge repeatedly.
const BYTES_MAX: u64 = 2 << 30;
/// Crash states judged per seed.
const CUTS: usize = 4;

type Said<T> = Result<T, String>;

fn limits<F: Family>(vfs: &Vfs<impl Format>, geometry: &Geometry) -> Limits {
    let (block, shape) = (u64::from(geometry.block_size), vfs.shape());
    Limits {
        block_size: block,
        file_bytes_max: (300 * block).min(1 << 20),
        total_bytes_max: (geometry.bytes() / 4).min(shape.blocks * block / 3),
        sparse_bytes_max: (20 << 20).min(shape.file_bytes_max / 2),
        nodes_max: 80,
        remounts: false,
        xattrs: F::keeps_xattrs(geometry),
        symlink_bytes_max: shape.symlink_bytes_max,
        nanos: geometry.inode_size > 128,
    }
}

/// Runs every geometry with some seeds. `run` returns how often areas were taken; that must happen.
fn each_seed<F: Family>(run: impl Fn(&Geometry, u64) -> Said<u64> + std::panic::RefUnwindSafe) {
    let only = std::env::var("MOAFS_ONLY").unwrap_or_default();
    let seeds = std::env::var("MOAFS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut failures, mut taken) = (0, 0);
    let chosen = |geometry: &&Geometry| geometry.name.contains(&only) && geometry.bytes() <= BYTES_MAX;
    for geometry in F::GEOMETRIES.iter().chain(F::FULL).filter(chosen) {
        for seed in 0..seeds {
            let outcome = std::panic::catch_unwind(|| run(geometry, seed));
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(times) => {
                    println!("{} seed {seed}: areas were taken {times} times", geometry.name);
                    taken += times;
                }
                Err(said) => {
                    failures += 1;
                    println!("MOAFS_ONLY={} seed {seed}\n  {said}", geometry.name);
                }
            }
        }
    }
    assert_eq!(failures, 0, "printed above");
    assert!(taken > 0 || !only.is_empty(), "no area was ever taken");
}

/// Checks that no file lies in one of these runs, and that an image of the disk records them as free.
fn nobody_knows<F: Family>(vfs: &Vfs<impl Format>, disk: &MemDisk, runs: &[BlockRun]) -> Said<()> {
    let layout = VolumeLayout::of(vfs)?;
    let shown: u64 = layout.areas.iter().map(|run| u64::from(run.len)).sum();
    let taken: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
    if shown < taken {
        return Err(format!("{taken} blocks are taken, the survey shows {shown}"));
    }
    vfs.sync().map_err(|error| format!("sync: {error}"))?;
    let image = disk.snapshot();
    let verdict = family::look::<F>(&image)?;
    if let Some(verdict) = verdict.filter(|verdict| verdict.class == Class::Fatal) {
        return Err(format!("{}: {}", F::CHECKER, verdict.text));
    }
    let mounted = F::mounter(0).mount(Arc::new(image), true).map_err(|error| format!("mount of an image: {error}"))?;
    VolumeLayout::of(&mounted)?.has_free(runs).map_err(|said| format!("on the disk {said}"))
}

fn spotless<F: Family>(disk: &MemDisk) -> Said<()> {
    family::no_complaints::<F>(disk)?;
    match family::look::<F>(disk)? {
        Some(verdict) if !verdict.spotless => Err(format!("{}: {}", F::CHECKER, verdict.text)),
        _ => Ok(()),
    }
}

fn runs_come_and_go_between_operations<F: Family>() {
    each_seed::<F>(|geometry, seed| {
        let Some(disk) = F::make(geometry) else {
            missing(geometry.name, "the tool that makes it is not installed");
            return Ok(0);
        };
        let (disk, mounter) = (Arc::new(disk), F::mounter(seed));
        let mount = OnDisk { mounter: &mounter, disk: disk.clone() };
        let mut driver = Driver::new(mount, Tolerance { full: true, broken: false })?;
        let limits = limits::<F>(driver.vfs(), geometry);
        let churn = Churn::new(&mut driver, &limits)?;
        let mut generator = Generator::new(seed, limits);
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x5A_F0);
        let mut taken = 0;
        for _ in 0..3 {
            let room = driver.vfs().format().swap_space().ok_or("no room")?;
            let block_bytes = geometry.block_size as usize;
            let mut runs = Runs::new(room, disk.clone(), block_bytes);
            for number in 0..OPERATIONS / 3 {
                let op = generator.next(&driver.model);
                driver.step(&op).map_err(|said| format!("operation {number}: {said}"))?;
                churn.step(&mut driver).map_err(|said| format!("churn after {number}: {said}"))?;
                runs.step(driver.vfs(), &mut rng).map_err(|said| format!("after operation {number}: {said}"))?;
                if number % 33 == 32 {
                    let held: Vec<BlockRun> = runs.held();
                    nobody_knows::<F>(driver.vfs(), &disk, &held).map_err(|said| format!("after {number}: {said}"))?;
                }
            }
            runs.give_all()?;
            taken += runs.taken_so_far();
            drop(runs);
            driver.verify()?;
            let (given, held) = (settled_space(&driver)?, driver.model.living().any(|(_, node)| node.held));
            driver.step(&Op::Remount)?;
            let again = settled_space(&driver)?;
            // Held files without a name are freed by the unmount.
            if given > again || (given < again && !held) {
                return Err(format!("{given} blocks free when all was given back, {again} after a remount"));
            }
        }
        driver.unmount()?;
        spotless::<F>(&disk).map(|()| taken)
    });
}

/// Returns the free blocks when nothing is dirty and no background work is left.
fn settled_space<T: Mounter>(driver: &Driver<OnDisk<'_, T>>) -> Said<u64> {
    (0..10).for_each(|_| driver.vfs().run_background_step());
    driver.vfs().sync().map_err(|error| format!("sync: {error}"))?;
    Ok(driver.vfs().format().space().free_blocks)
}

/// A large file that is written again and again: the allocator keeps searching for room, a log for segments.
struct Churn {
    node: NodeId,
    bytes: usize,
}

impl Churn {
    fn new<T: Mounter>(driver: &mut Driver<OnDisk<'_, T>>, limits: &Limits) -> Said<Churn> {
        let before: BTreeSet<NodeId> = driver.model.living().map(|(id, _)| id).collect();
        driver.step(&Op::create(NodeId::ROOT, "churn"))?;
        let node = driver.model.living().map(|(id, _)| id).find(|id| !before.contains(id)).ok_or("no new file")?;
        Ok(Churn { node, bytes: (limits.total_bytes_max / 4).min(512 << 10) as usize })
    }

    fn step<T: Mounter>(&self, driver: &mut Driver<OnDisk<'_, T>>) -> Said<()> {
        let (node, len) = (self.node, self.bytes);
        // Another operation may have removed it.
        if !driver.model.get(node).is_some_and(Node::alive) {
            return Ok(());
        }
        driver.step(&Op::Truncate { node, size: 0 })?;
        driver.step(&Op::Write { node, offset: 0, len, append: false })?;
        driver.step(&Op::Fsync { node, data_only: false })
    }
}

/// Draws a step of paging.
fn paging_step(rng: &mut Pcg64Mcg, pages: u32) -> Paging {
    let (first, count) = (rng.random_range(0..pages), rng.random_range(1..40));
    match rng.random_range(0..20) {
        0 => Paging::Off,
        1..4 => Paging::On { pages, area_bytes: PAGE_BYTES as u64 * rng.random_range(2..40) },
        4..11 => Paging::Out { first, count },
        11..14 => Paging::In { first, count },
        14..17 => Paging::Free { first, count },
        _ => Paging::BackgroundStep,
    }
}

fn pages_come_and_go_between_operations<F: Family>() {
    each_seed::<F>(|geometry, seed| {
        if geometry.block_size as usize > PAGE_BYTES {
            return Ok(0);
        }
        let Some(disk) = F::make(geometry) else {
            missing(geometry.name, "the tool that makes it is not installed");
            return Ok(0);
        };
        let (disk, mounter) = (Arc::new(disk), F::mounter(seed));
        let recorder = Arc::new(CrashRecorder::over(disk.clone(), Live::new()));
        let mount = OnDisk { mounter: &mounter, disk: recorder.clone() };
        let mut driver = Driver::new(mount, Tolerance { full: true, broken: false })?;
        let limits = Limits { remounts: true, ..limits::<F>(driver.vfs(), geometry) };
        let churn = Churn::new(&mut driver, &limits)?;
        let mut generator = Generator::new(seed, limits);
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x5A_F1);
        let free_bytes = driver.vfs().format().space().free_blocks * u64::from(geometry.block_size);
        let pages = (free_bytes / PAGE_BYTES as u64 / 6).clamp(1, 256) as u32;
        let mut taken = 0;
        for number in 0..OPERATIONS {
            let op = generator.next(&driver.model);
            driver.step(&op).map_err(|said| format!("operation {number}: {said}"))?;
            churn.step(&mut driver).map_err(|said| format!("churn after {number}: {said}"))?;
            let op = Op::Page(paging_step(&mut rng, pages));
            driver.step(&op).map_err(|said| format!("after operation {number}: {said}"))?;
            taken += driver.pager().map_or(0, |pager| pager.areas().len() as u64);
            if number % 50 == 49
                && let Some(pager) = driver.pager()
            {
                pager.check().map_err(|said| format!("after operation {number}: {said}"))?;
                nobody_knows::<F>(driver.vfs(), &disk, &pager.areas())
                    .map_err(|said| format!("after operation {number}: {said}"))?;
            }
        }
        driver.verify()?;
        driver.unmount()?;
        spotless::<F>(&disk)?;
        for _ in 0..CUTS {
            let cut = rng.random_range(0..recorder.cut_points());
            let state = recorder.state(cut, seed, Mode::Torn);
            if let Some(verdict) = family::look::<F>(&state)?.filter(|verdict| verdict.class == Class::Fatal) {
                return Err(format!("cut at {cut}: {}: {}", F::CHECKER, verdict.text));
            }
        }
        Ok(taken)
    });
}
