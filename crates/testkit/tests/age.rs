//! Ageing: simulated weeks on volumes of 20 MiB to 4 GiB, at every fill level, over many mounts.
//!
//! The plain run takes a sample of seeds. `MOAFS_SEEDS=N cargo test --release -p moafs-testkit --test age -- --ignored
//! --nocapture` runs N seeds from `MOAFS_FROM` (or 0) on. A failure prints `MOAFS_AGE=…`; `MOAFS_AGE=… cargo test -p
//! moafs-testkit --test age replay -- --nocapture` runs it alone, with its plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use moafs_testkit::age::{self, Plan, Work};
use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::judges::missing;
use moafs_testkit::tests_of;

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [
        a_seed_repeats,
        a_sample_of_volumes_ages_well,
        #[ignore = "the long run"] all_volumes_age_well,
        replay,
    ]
);

/// Seeds that fail for a known defect that is still open: checker and seed. Every run names them.
const OPEN: [(&str, u64); 0] = [];

/// Number of failures at which a run stops.
const FAILURES_MAX: usize = 12;

/// Seeds of the plain run.
const SAMPLE: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: want a number")))
}

fn attempt<F: Family>(seed: u64) -> Result<Option<Work>, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| age::run::<F>(seed)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

/// Runs one seed; returns false if it fails.
fn one<F: Family>(seed: u64, total: &Mutex<(Work, u64)>) -> bool {
    if OPEN.contains(&(F::CHECKER, seed)) {
        println!("OPEN, not run: MOAFS_AGE={}:{seed}", F::CHECKER);
        return true;
    }
    match attempt::<F>(seed) {
        Ok(Some(work)) => {
            let mut total = total.lock().expect("unpoisoned");
            total.0.add(work);
            total.1 += 1;
        }
        Ok(None) => missing("a maker of volumes", "it is not installed"),
        Err(said) => {
            println!("MOAFS_AGE={}:{seed}\n  {said}", F::CHECKER);
            return false;
        }
    }
    true
}

fn run<F: Family>(seeds: std::ops::Range<u64>) {
    let (next, start) = (AtomicU64::new(seeds.start), Instant::now());
    let (total, failures) = (Mutex::new((Work::default(), 0)), Mutex::new(Vec::new()));
    let work = || {
        while failures.lock().expect("unpoisoned").len() < FAILURES_MAX {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let begun = Instant::now();
            if !one::<F>(seed, &total) {
                failures.lock().expect("unpoisoned").push(seed);
            }
            if std::env::var_os("MOAFS_LOUD").is_some() {
                println!("seed {seed}: {:.1} s", begun.elapsed().as_secs_f64());
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
        "{seeds} seeds in {seconds:.0} s: {} days, {} kills, {} mounts, {} steps, {} refused; failures: {failures:?}",
        work.days, work.kills, work.mounts, work.steps, work.refused
    );
    assert!(failures.is_empty(), "{} failures, printed above", failures.len());
}

fn a_sample_of_volumes_ages_well<F: Family>() {
    run::<F>(0..SAMPLE);
}

fn a_seed_repeats<F: Family>() {
    assert_eq!(attempt::<F>(0), attempt::<F>(0));
}

fn all_volumes_age_well<F: Family>() {
    let from = number("MOAFS_FROM").unwrap_or(0);
    run::<F>(from..from + number("MOAFS_SEEDS").unwrap_or(300));
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_AGE") else { return };
    let (family, seed) = text.split_once(':').expect("CHECKER:SEED");
    if family != F::CHECKER {
        return;
    }
    let seed = seed.parse().expect("a number");
    println!("{:#?}", Plan::draw::<F>(seed));
    println!("{:?}", attempt::<F>(seed).unwrap_or_else(|said| panic!("MOAFS_AGE={text}\n  {said}")));
}
