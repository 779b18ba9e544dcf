//! Bounded-exhaustive crash tests. The plain run judges all sequences of one operation and a sample of those of two;
//! `cargo test --release -p moafs-testkit --test ace -- --ignored --nocapture` all of two, and a sample of three.
//!
//! A failure prints `MOAFS_ACE=GEOMETRY:LENGTH:NUMBER`, which runs that sequence alone (`-- replay`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use moafs_testkit::ace::{self, Sequence};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [
        sequences_of_one_and_a_sample_of_two,
        #[ignore = "the long run"] all_sequences_of_two_and_a_sample_of_three,
        replay,
    ]
);

/// Judges every `step`-th sequence of a length.
fn run<F: Family>(length: usize, step: usize) {
    let geometry = family::geometry::<F>(F::CRASH[0]).expect("a known geometry");
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let total = Mutex::new((0_u64, 0_u64, 0_u64));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed) * step;
            if number >= Sequence::count(length) || total.lock().expect("unpoisoned").2 >= 10 {
                return;
            }
            let sequence = Sequence::number(length, number);
            let outcome = std::panic::catch_unwind(|| ace::run::<F>(&geometry, &sequence));
            let mut total = total.lock().expect("unpoisoned");
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Ok(0) => {}
                Ok(states) => {
                    total.0 += 1;
                    total.1 += states;
                }
                Err(said) => {
                    println!("MOAFS_ACE={}:{length}:{number} ({})\n  {said}", geometry.name, sequence.words());
                    total.2 += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let (sequences, states, failures) = total.into_inner().expect("unpoisoned");
    let seconds = start.elapsed().as_secs_f64();
    println!("{sequences} sequences of length {length}: {states} states, {failures} failures, in {seconds:.0} s");
    assert_eq!(failures, 0, "failures are printed above");
}

fn sequences_of_one_and_a_sample_of_two<F: Family>() {
    run::<F>(1, 1);
    run::<F>(2, 211);
}

fn all_sequences_of_two_and_a_sample_of_three<F: Family>() {
    run::<F>(2, 1);
    run::<F>(3, 2_503);
}

fn replay<F: Family>() {
    let Ok(text) = std::env::var("MOAFS_ACE") else { return };
    let [name, length, number] = text.split(':').collect::<Vec<_>>()[..] else { panic!("GEOMETRY:LENGTH:NUMBER") };
    if !family::is_for::<F>(name) {
        return;
    }
    let geometry = family::geometry::<F>(name).expect("a known geometry");
    let sequence = Sequence::number(length.parse().expect("a number"), number.parse().expect("a number"));
    println!("{}", sequence.words());
    ace::run::<F>(&geometry, &sequence).unwrap_or_else(|said| panic!("{said}"));
}
