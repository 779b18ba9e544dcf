//! Simulations: several clients, preempted everywhere, over cuts, errors and mounts.
//!
//! The plain run takes a sample of seeds. `MOAFS_SEEDS=N cargo test --release -p moafs-testkit --test simulate --
//! --ignored --nocapture` runs N seeds from `MOAFS_FROM` (or 0) on. A failure prints `MOAFS_SIM=…`; `MOAFS_SIM=… cargo
//! test -p moafs-testkit --test simulate replay -- --nocapture` runs it alone, with its plan, and searches for a
//! smaller one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::judges::missing;
use moafs_testkit::simulate::{self, Case, Plan, Work};
use moafs_testkit::tests_of;

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [
        a_seed_repeats,
        a_sample_of_seeds_keeps_every_promise,
        #[ignore = "the long run"] all_seeds_keep_every_promise,
        replay,
    ]
);

/// Seeds that fail for a known defect that is still open: checker and seed. Every run names them.
const OPEN: [(&str, u64); 0] = [];

/// Number of failures at which a run stops.
const FAILURES_MAX: usize = 12;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: want a number")))
}

fn attempt<F: Family>(case: &Case) -> Result<Option<Work>, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| simulate::run::<F>(case)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

fn run<F: Family>(seeds: std::ops::Range<u64>) {
    let (next, start) = (AtomicU64::new(seeds.start), Instant::now());
    let total = Mutex::new((Work::default(), 0_u64));
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failures.lock().expect("unpoisoned").len() >= FAILURES_MAX {
                return;
            }
            if OPEN.contains(&(F::CHECKER, seed)) {
                println!("OPEN, not run: MOAFS_SIM={}:{seed}", F::CHECKER);
                continue;
            }
            match attempt::<F>(&Case::of(seed)) {
                Ok(Some(work)) => {
                    let mut total = total.lock().expect("unpoisoned");
                    total.0.add(work);
                    total.1 += 1;
                }
                Ok(None) => missing("a maker of volumes", "it is not installed"),
                Err(said) => {
                    println!("MOAFS_SIM={}:{seed}\n  {said}", F::CHECKER);
                    failures.lock().expect("unpoisoned").push(seed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..number("MOAFS_THREADS").unwrap_or(2) {
            scope.spawn(work);
        }
    });
    let (work, seeds) = total.into_inner().expect("unpoisoned");
    let (failures, seconds) = (failures.into_inner().expect("unpoisoned"), start.elapsed().as_secs_f64());
    println!(
        "{seeds} seeds in {seconds:.0} s: {} operations, {} mounts, {} cuts, {} entries at the device, {} points, {} switches; failures: {failures:?}",
        work.ops, work.mounts, work.cuts, work.entries, work.scheduler.points, work.scheduler.switches
    );
    assert!(failures.is_empty(), "{} failures, printed above", failures.len());
}

fn a_sample_of_seeds_keeps_every_promise<F: Family>() {
    run::<F>(0..SAMPLE);
}

fn a_seed_repeats<F: Family>() {
    for seed in 0..4 {
        assert_eq!(attempt::<F>(&Case::of(seed)), attempt::<F>(&Case::of(seed)), "seed {seed}");
    }
}

/// Seeds of the plain run.
const SAMPLE: u64 = 300;

fn all_seeds_keep_every_promise<F: Family>() {
    let from = number("MOAFS_FROM").unwrap_or(0);
    run::<F>(from..from + number("MOAFS_SEEDS").unwrap_or(20_000));
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_SIM") else { return };
    let (family, case) = text.split_once(':').expect("CHECKER:SEED…");
    if family != F::CHECKER {
        return;
    }
    let mut case = Case::parse(case).unwrap_or_else(|said| panic!("{said}"));
    println!("{:#?}", Plan::draw::<F>(&case));
    let Err(mut said) = attempt::<F>(&case) else { return };
    while let Some((smaller, text)) = case
        .smaller(&Plan::draw::<F>(&case))
        .into_iter()
        .find_map(|smaller| attempt::<F>(&smaller).err().map(|text| (smaller, text)))
    {
        (case, said) = (smaller, text);
    }
    panic!("MOAFS_SIM={}:{case}\n  {said}", F::CHECKER);
}
