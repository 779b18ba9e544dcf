//! Damaged images: mount, walk, read, write, check. No panic, no hang, bounded memory.
//!
//! `cargo test --release -p moafs-testkit --test mutate -- --ignored` runs 10,000 mutations; the plain
//! run a sample. A failure prints `MOAFS_MUTATE=IMAGE:SEED`, which replays it.

use std::alloc::{GlobalAlloc, Layout as MemoryLayout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use moafs_disk::mem::MemDisk;
use moafs_ext::check::{self, CheckOptions};
use moafs_runtime::Timestamp;
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::exercise::{Bounds, exercise};
use moafs_testkit::image;
use moafs_testkit::mutate::{Layout, damaged, mutations};
use moafs_testkit::ops::{Generator, Limits};
use moafs_testkit::volume::{ExtMounter, Mounter, OnDisk};

/// Counts what is allocated, and how much it was at most.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: MemoryLayout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: MemoryLayout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The cache of [`ExtMounter::default`] and what everything else may take.
const MEMORY_MAX: usize = (4 << 20) + (64 << 20);

/// No damaged image of these sizes takes longer, on the slowest machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Images with something in every kind of structure.
struct Golden {
    name: &'static str,
    disk: MemDisk,
    bytes: u64,
    layout: Layout,
}

const GEOMETRIES: [&str; 5] = ["ours-1k", "1k-128", "1k-groups", "4k", "4k-ext3"];

fn golden() -> Vec<Golden> {
    let populate = |name: &&'static str| {
        let geometry = image::by_name(name).expect("a known geometry");
        let disk = Arc::new(geometry.make()?);
        populate(&disk, u64::from(geometry.block_size));
        let bytes = geometry.kib << 10;
        let disk = disk.snapshot();
        let layout = Layout::of(&disk, bytes);
        Some(Golden { name, disk, bytes, layout })
    };
    GEOMETRIES.iter().filter_map(populate).collect()
}

fn populate(disk: &Arc<MemDisk>, block: u64) {
    let mounter = ExtMounter::default();
    let mount = OnDisk { mounter: &mounter, disk: disk.clone() };
    let mut driver = Driver::new(mount, Tolerance::default()).expect("a fresh volume mounts");
    let limits = Limits {
        block_size: block,
        file_bytes_max: 300 * block,
        total_bytes_max: 4 << 20,
        sparse_bytes_max: 80 << 20,
        nodes_max: 60,
        remounts: false,
        xattrs: true,
        symlink_bytes_max: 900,
        nanos: false,
    };
    let mut generator = Generator::new(4, limits);
    for _ in 0..400 {
        let op = generator.next(&driver.model);
        driver.step(&op).expect("the volume works while it is whole");
    }
    driver.unmount().expect("the volume unmounts");
}

fn check_only(disk: &MemDisk, mode: check::Mode) {
    let options = CheckOptions { mode, force: true, now: Timestamp { secs: 1_700_000_000, nanos: 0 } };
    // A refusal is as good as a verdict.
    let _ = check::check(disk, &options, &mut |_| {});
}

fn try_all(disk: &MemDisk) {
    check_only(&disk.snapshot(), check::Mode::No);
    check_only(&disk.snapshot(), check::Mode::Yes);
    let used: Arc<MemDisk> = Arc::new(disk.snapshot());
    if let Ok(vfs) = ExtMounter::default().mount(used.clone(), false) {
        exercise(&vfs, Bounds::default());
        let _ = vfs.close();
    }
    if let Ok(vfs) = ExtMounter::default().mount(Arc::new(disk.snapshot()), true) {
        exercise(&vfs, Bounds::default());
    }
}

/// What went wrong with one seed.
fn judge(golden: &Golden, seed: u64) -> Result<(), String> {
    let mutations = mutations(&golden.layout, &golden.disk, seed);
    let words: Vec<String> = mutations.iter().map(ToString::to_string).collect();
    let disk = damaged(&golden.disk, golden.bytes, &mutations);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (tell, told) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| try_all(&disk)));
        // The judge may have given up waiting.
        let _ = tell.send(outcome.is_ok());
    });
    let outcome = told.recv_timeout(TIME_MAX);
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    match outcome {
        Err(_) => return Err(format!("hangs: {}", words.join("; "))),
        Ok(false) => return Err(format!("panics: {}", words.join("; "))),
        Ok(true) => {}
    }
    drop(worker.join());
    if peak > MEMORY_MAX {
        return Err(format!("takes {} MiB: {}", peak >> 20, words.join("; ")));
    }
    Ok(())
}

/// One at a time: memory is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn run(mutations: u64) {
    let _alone = ALONE.lock();
    let golden = golden();
    let start = Instant::now();
    let mut failures = Vec::new();
    for seed in 0..mutations {
        let Some(image) = golden.get(seed as usize % golden.len().max(1)) else { return };
        if let Err(said) = judge(image, seed) {
            println!("MOAFS_MUTATE={}:{seed}\n  {said}", image.name);
            failures.push(seed);
        }
        if failures.len() >= 20 {
            break;
        }
    }
    println!("{mutations} mutations of {} images in {:.0} s", golden.len(), start.elapsed().as_secs_f64());
    assert!(failures.is_empty(), "{} mutations failed, printed above", failures.len());
}

#[test]
fn a_sample_of_damaged_images_does_no_harm() {
    run(500);
}

#[test]
#[ignore = "the full run: minutes"]
fn ten_thousand_damaged_images_do_no_harm() {
    run(10_000);
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MOAFS_MUTATE") else { return };
    let _alone = ALONE.lock();
    let (name, seed) = text.split_once(':').expect("IMAGE:SEED");
    let golden = golden();
    let image = golden.iter().find(|golden| golden.name == name).expect("a known image");
    let seed = seed.parse().expect("a number");
    let mutations = mutations(&image.layout, &image.disk, seed);
    if let Some(path) = std::env::var_os("MOAFS_MUTATE_IMAGE") {
        damaged(&image.disk, image.bytes, &mutations).write_to(path.as_ref()).expect("the image can be written");
    }
    judge(image, seed).unwrap_or_else(|said| panic!("{said}"));
}
