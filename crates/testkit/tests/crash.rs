//! Power cuts at every place. `cargo test --release -p moafs-testkit --test crash -- --ignored
//! --nocapture` judges at least 20,000 states; the plain run judges a sample.
//!
//! A failure prints `MOAFS_CRASH=…`; `MOAFS_CRASH=… cargo test -p moafs-testkit --test crash replay`
//! runs that state alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use moafs_disk::probe::crash::Mode;
use moafs_f2fs::place::Recycling;
use moafs_testkit::crash::{self, CrashCase, Recording, Scene, Summary};
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::judges::{missing, tools};
use moafs_testkit::ops::Op;
use moafs_testkit::tests_of;
use moafs_testkit::volume::OnDisk;
use moafs_testkit::workloads;

tests_of!(
    ext: Ext,
    a_sample_of_crash_states_keeps_every_promise,
    #[ignore = "the full run: tens of minutes"]
    all_crash_states_keep_every_promise,
    the_workloads_that_defragment_move_something,
    the_workloads_that_page_make_areas,
    a_new_directory_that_moves_never_shows_its_old_parent,
    what_moves_twice_always_has_a_name,
    a_second_name_comes_before_the_first_one_goes,
    a_directory_moves_over_an_empty_one,
    a_directory_goes_after_what_moved_out_of_it_has_its_new_name,
    files_and_directories_change_places,
    replay,
);
tests_of!(
    ext4: Ext4,
    a_sample_of_crash_states_keeps_every_promise,
    #[ignore = "the full run: tens of minutes"]
    all_crash_states_keep_every_promise,
    files_and_directories_change_places,
    replay,
);
tests_of!(
    f2fs: F2fs,
    a_sample_of_crash_states_keeps_every_promise,
    #[ignore = "the full run: tens of minutes"]
    all_crash_states_keep_every_promise,
    the_workloads_that_page_make_areas,
    a_new_directory_that_moves_never_shows_its_old_parent,
    what_moves_twice_always_has_a_name,
    a_second_name_comes_before_the_first_one_goes,
    a_directory_moves_over_an_empty_one,
    a_directory_goes_after_what_moved_out_of_it_has_its_new_name,
    files_and_directories_change_places,
    replay,
);

/// Choices of the surviving writes if every cut is judged.
const FATES: [(Mode, u64); 4] = [(Mode::All, 0), (Mode::None, 0), (Mode::Subset, 0), (Mode::Subset, 1)];

/// Seeds of the random workloads, per geometry; policies change with them.
const RANDOM_SEEDS: u64 = 12;

/// Returns every workload on every geometry, with this many of the engine's policies, which rotate from workload to
/// workload.
fn scenes<F: Family>(policies: u64) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for geometry in family::geometries::<F>(F::CRASH) {
        for (number, workload) in (0..).zip(F::WORKLOADS.concat()) {
            let seeds: Vec<u64> = match workload.name {
                "random" | "churn" => (0..RANDOM_SEEDS).collect(),
                _ => (number..number + policies).map(|seed| seed % F::POLICIES).collect(),
            };
            scenes.extend(seeds.into_iter().map(|seed| Scene { workload, geometry, seed }));
        }
    }
    let only = std::env::var("MOAFS_ONLY").unwrap_or_default();
    scenes.retain(|scene| scene.workload.name.contains(&only));
    scenes
}

fn run<F: Family>(policies: u64, states_per_scene: usize) -> Summary {
    if tools::find(F::CHECKER).is_none() {
        missing(F::CHECKER, "crash states are judged by our own reader only");
    }
    let scenes = scenes::<F>(policies);
    let (next, total) = (AtomicUsize::new(0), Mutex::new(Summary::default()));
    let start = Instant::now();
    let work = || {
        while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let summary = crash::enumerate::<F>(*scene, states_per_scene);
            report(scene, &summary);
            total.lock().expect("no judge panicked").absorb(summary);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let total = total.into_inner().expect("no judge panicked");
    println!("{total} in {:.0} s", start.elapsed().as_secs_f64());
    total
}

fn report(scene: &Scene, summary: &Summary) {
    println!("{:24} {:14} {:3}: {summary}", scene.workload.name, scene.geometry.name, scene.seed);
    for (case, said) in &summary.failures {
        println!("  MOAFS_CRASH='{case}'\n  {said}");
    }
}

fn a_sample_of_crash_states_keeps_every_promise<F: Family>() {
    let total = run::<F>(1, F::CRASH_STATES[0]);
    assert!(total.failures.is_empty(), "{} failures, printed above", total.failures.len());
}

fn all_crash_states_keep_every_promise<F: Family>() {
    let total = run::<F>(F::POLICIES.min(2), F::CRASH_STATES[1]);
    assert!(total.failures.is_empty(), "{} failures, printed above", total.failures.len());
    let whole_run = std::env::var_os("MOAFS_ONLY").is_none();
    assert!(!whole_run || total.states >= 20_000, "only {} states", total.states);
}

fn the_workloads_that_defragment_move_something<F: Family>() {
    for name in ["defragment", "defragment-large"] {
        let workload = workloads::by_name(name).expect("a known workload");
        let geometry = family::geometry::<F>(F::CRASH[1]).expect("a known geometry");
        let disk = Arc::new(F::make(&geometry).expect("the volume can be made"));
        let mounter = F::mounter(0);
        let mut driver = Driver::new(OnDisk { mounter: &mounter, disk }, Tolerance::default()).expect("it mounts");
        let mut moved = Vec::new();
        for op in workload.ops(geometry.block_size, 0) {
            driver.step(&op).expect("the workload runs");
            if matches!(op, Op::Defragment) {
                moved.push(driver.vfs().counters().gathered_blocks);
            }
        }
        assert!(moved[0] > 10, "{name}: {moved:?}");
    }
}

/// The workload from which the log's crash states are taken cleans sections and recycles segments.
#[test]
fn churn_makes_the_log_clean_and_recycle() {
    let workload = workloads::by_name("churn").expect("a known workload");
    for geometry in family::geometries::<F2fs>(F2fs::CRASH) {
        let Some(disk) = F2fs::make(&geometry) else {
            missing("mkfs.f2fs", "whether churn cleans is not known");
            continue;
        };
        for seed in [1, 2] {
            let mounter = F2fs::mounter(seed);
            let disk = Arc::new(disk.snapshot());
            let mut driver = Driver::new(OnDisk { mounter: &mounter, disk }, Tolerance::default()).expect("it mounts");
            for op in workload.ops(geometry.block_size, seed) {
                driver.step(&op).expect("the workload runs");
            }
            let counters = driver.vfs().format().counters();
            match mounter.recycling {
                Recycling::Always => assert!(counters.logs.runs_recycled > 50, "{}: {counters:?}", geometry.name),
                _ => assert!(counters.foreground_cleanings > 2, "{}: {counters:?}", geometry.name),
            }
        }
    }
}

fn the_workloads_that_page_make_areas<F: Family>() {
    for workload in workloads::SWAP {
        let geometry = family::geometry::<F>(F::CRASH[0]).expect("a known geometry");
        let Some(disk) = F::make(&geometry) else { return missing(geometry.name, "it cannot be made here") };
        let mounter = F::mounter(0);
        let mount = OnDisk { mounter: &mounter, disk: Arc::new(disk) };
        let mut driver = Driver::new(mount, Tolerance::default()).expect("it mounts");
        let (mut made, mut given) = (false, false);
        for op in workload.ops(geometry.block_size, 0) {
            driver.step(&op).expect("the workload runs");
            let areas = driver.pager().map_or(0, |pager| pager.areas().len());
            given |= made && areas == 0;
            made |= areas > 0;
        }
        assert!(made && given, "{}: made {made}, given back {given}", workload.name);
    }
}

/// Judges every cut of a workload: with all, none and some subsets of the uncertain writes.
fn judge_every_cut<F: Family>(name: &str) {
    let workload = workloads::by_name(name).expect("a known workload");
    let scene = Scene { workload, geometry: family::geometry::<F>(F::CRASH[0]).expect("a known geometry"), seed: 0 };
    let recording = Recording::<F>::new(&scene).expect("the workload runs").expect("the volume can be made");
    let mut total = Summary::default();
    for cut in 0..recording.cuts() {
        for (mode, seed) in FATES {
            recording.judge(&CrashCase { scene, cut, mode, seed, again: false }, &mut total);
        }
    }
    for (case, said) in &total.failures {
        println!("MOAFS_CRASH='{case}'\n  {said}");
    }
    assert!(total.failures.is_empty(), "{total}");
}

fn a_new_directory_that_moves_never_shows_its_old_parent<F: Family>() {
    judge_every_cut::<F>("move-new");
    judge_every_cut::<F>("move-late");
}

fn what_moves_twice_always_has_a_name<F: Family>() {
    judge_every_cut::<F>("move-twice");
}

fn a_second_name_comes_before_the_first_one_goes<F: Family>() {
    judge_every_cut::<F>("link-unlink");
}

fn a_directory_moves_over_an_empty_one<F: Family>() {
    judge_every_cut::<F>("move-over");
    judge_every_cut::<F>("move-beside");
}

fn a_directory_goes_after_what_moved_out_of_it_has_its_new_name<F: Family>() {
    judge_every_cut::<F>("move-rmdir");
}

fn files_and_directories_change_places<F: Family>() {
    judge_every_cut::<F>("exchange-kinds");
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_CRASH") else { return };
    if !family::is_for::<F>(text.split(':').nth(1).expect("WORKLOAD:GEOMETRY:…")) {
        return;
    }
    let case = CrashCase::parse::<F>(&text).unwrap_or_else(|error| panic!("{error}"));
    let recording = Recording::<F>::new(&case.scene).expect("the workload runs").expect("the volume can be made");
    if let Some(path) = std::env::var_os("MOAFS_CRASH_IMAGE") {
        recording.image(&case).write_to(path.as_ref()).expect("the image can be written");
    }
    let mut summary = Summary::default();
    recording.judge(&case, &mut summary);
    for (case, said) in &summary.failures {
        println!("{case}\n  {said}");
    }
    assert!(summary.failures.is_empty(), "replayed");
}
