//! Damaged images: mount, walk, read, write, check. No panic, no hang, bounded memory.
//!
//! `cargo test --release -p moafs-testkit --test mutate -- --ignored` runs 10,000 mutations; the plain run a sample. A
//! failure prints `MOAFS_MUTATE=IMAGE:SEED`, which replays it.

use std::alloc::{GlobalAlloc, Layout as MemoryLayout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use moafs_disk::mem::MemDisk;
use moafs_testkit::exercise::{Bounds, exercise};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::mutate::golden::{self, Golden};
use moafs_testkit::mutate::{damaged, mutations};
use moafs_testkit::tests_of;
use moafs_testkit::volume::{CACHE_BYTES, Mounter};

tests_of!(
    ext: Ext,
    a_sample_of_damaged_images_does_no_harm,
    #[ignore = "the full run: minutes"]
    ten_thousand_damaged_images_do_no_harm,
    replay,
);
tests_of!(
    ext4: Ext4,
    a_sample_of_damaged_images_does_no_harm,
    #[ignore = "the full run: minutes"]
    ten_thousand_damaged_images_do_no_harm,
    replay,
);
tests_of!(
    f2fs: F2fs,
    a_sample_of_damaged_images_does_no_harm,
    #[ignore = "the full run: minutes"]
    ten_thousand_damaged_images_do_no_harm,
    replay,
);

/// Counts allocated bytes, and their maximum.
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

/// Most memory of a run, in bytes: the cache and all other allocations.
const MEMORY_MAX: usize = CACHE_BYTES + (64 << 20);

/// Longest time for a damaged image of these sizes, on the slowest machine.
const TIME_MAX: Duration = Duration::from_secs(60);

fn try_all<F: Family>(disk: &MemDisk) {
    F::check(&disk.snapshot(), false);
    F::check(&disk.snapshot(), true);
    let used: Arc<MemDisk> = Arc::new(disk.snapshot());
    if let Ok(vfs) = F::mounter(0).mount(used.clone(), false) {
        exercise(&vfs, Bounds::default());
        let _ = vfs.close();
    }
    if let Ok(vfs) = F::mounter(0).mount(Arc::new(disk.snapshot()), true) {
        exercise(&vfs, Bounds::default());
    }
}

/// Runs one seed and returns the fault.
fn judge<F: Family>(golden: &Golden, seed: u64) -> Result<(), String> {
    let mutations = mutations(&golden.layout, &golden.disk, seed);
    let words: Vec<String> = mutations.iter().map(ToString::to_string).collect();
    let disk = damaged(&golden.disk, golden.bytes, &mutations);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (tell, told) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| try_all::<F>(&disk)));
        // The test may have stopped waiting.
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

/// Held by the running test: memory is counted for the whole process, so tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn run<F: Family>(mutations: u64) {
    let _alone = ALONE.lock();
    let golden = golden::all::<F>();
    let start = Instant::now();
    let mut failures = Vec::new();
    for seed in 0..mutations {
        let Some(image) = golden.get(seed as usize % golden.len().max(1)) else { return };
        if let Err(said) = judge::<F>(image, seed) {
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

fn a_sample_of_damaged_images_does_no_harm<F: Family>() {
    run::<F>(500);
}

fn ten_thousand_damaged_images_do_no_harm<F: Family>() {
    run::<F>(10_000);
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_MUTATE") else { return };
    let _alone = ALONE.lock();
    let (name, seed) = text.split_once(':').expect("IMAGE:SEED");
    if !family::is_for::<F>(name) {
        return;
    }
    let golden = golden::all::<F>();
    let image = golden.iter().find(|golden| golden.name == name).expect("a known image");
    let seed = seed.parse().expect("a number");
    let mutations = mutations(&image.layout, &image.disk, seed);
    if let Some(path) = std::env::var_os("MOAFS_MUTATE_IMAGE") {
        damaged(&image.disk, image.bytes, &mutations).write_to(path.as_ref()).expect("the image can be written");
    }
    judge::<F>(image, seed).unwrap_or_else(|said| panic!("{said}"));
}
