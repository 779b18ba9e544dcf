//! The scheduler: runs repeat, races are found, deadlocks and panics are reported.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::leaf::atomic::{AtomicU64, Ordering};
use crate::{leaf, lock, sleep_until};

const STRATEGIES: [Strategy; 3] =
    [Strategy::RandomWalk { one_in: 1 }, Strategy::RandomWalk { one_in: 8 }, Strategy::Priorities { one_in: 20 }];

fn runtime(seed: u64, strategy: Strategy) -> Arc<Preemptive> {
    Preemptive::new(Config { seed, strategy, point_ns: 10, points_max: 1_000_000 })
}

fn panic_text(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    message(&*panic).to_owned()
}

/// Runs three tasks that note their names under a leaf mutex; returns the names in that order.
fn order_of(seed: u64, strategy: Strategy) -> (Vec<&'static str>, Counts, Time) {
    let runtime = runtime(seed, strategy);
    let log = Arc::new(leaf::Mutex::new(Vec::new()));
    let (rt, shared) = (runtime.rt(), Arc::clone(&log));
    runtime.run(move || {
        for name in ["a", "b", "c"] {
            let log = Arc::clone(&shared);
            drop(rt.spawn(name, Box::new(move || (0..5).for_each(|_| log.lock().push(name)))));
        }
    });
    let order = log.lock().clone();
    (order, runtime.counts(), runtime.now())
}

#[test]
fn a_seed_repeats_and_seeds_differ() {
    for strategy in STRATEGIES {
        let all: BTreeSet<_> = (0..50).map(|seed| order_of(seed, strategy).0).collect();
        assert!(all.len() > 5, "{strategy:?}: {} different orders", all.len());
        assert_eq!(order_of(3, strategy), order_of(3, strategy));
    }
}

/// Runs two tasks that add to a number, which they read and write under two acquisitions of its lock. Returns the sum.
fn two_steps(seed: u64, strategy: Strategy) -> u64 {
    let runtime = runtime(seed, strategy);
    let number = Arc::new(leaf::Mutex::new(0_u64));
    let (rt, shared) = (runtime.rt(), Arc::clone(&number));
    runtime.run(move || {
        for name in ["one", "two"] {
            let number = Arc::clone(&shared);
            let add = move || {
                let was = *number.lock();
                *number.lock() = was + 1;
            };
            drop(rt.spawn(name, Box::new(add)));
        }
    });
    *number.lock()
}

#[test]
fn a_lost_update_between_two_acquisitions_is_found() {
    for strategy in [Strategy::RandomWalk { one_in: 3 }, Strategy::Priorities { one_in: 4 }] {
        let sums: BTreeSet<u64> = (0..200).map(|seed| two_steps(seed, strategy)).collect();
        assert_eq!(sums, BTreeSet::from([1, 2]), "{strategy:?}");
    }
}

#[test]
fn locks_exclude_while_their_holder_is_switched_out() {
    for (seed, strategy) in (0..60).zip(STRATEGIES.into_iter().cycle()) {
        let runtime = runtime(seed, strategy);
        let rt = runtime.rt();
        runtime.run(move || {
            let inside = Arc::new(AtomicU64::new(0));
            let mutex = Arc::new(leaf::Mutex::new(()));
            let waiting = Arc::new(lock::Mutex::new(Arc::clone(&rt), ()));
            for name in ["a", "b", "c", "d"] {
                let (inside, mutex, waiting) = (Arc::clone(&inside), Arc::clone(&mutex), Arc::clone(&waiting));
                let body = move || {
                    for _ in 0..10 {
                        let _waiting = waiting.lock();
                        let _mutex = mutex.lock();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        leaf::point();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    }
                };
                drop(rt.spawn(name, Box::new(body)));
            }
        });
    }
}

#[test]
fn time_passes_at_points_and_jumps_when_every_task_sleeps() {
    let runtime = runtime(1, STRATEGIES[1]);
    let rt = runtime.rt();
    runtime.run(move || {
        let task_rt = Arc::clone(&rt);
        let task = rt.spawn("sleeper", Box::new(move || sleep_until(&*task_rt, Time(1_000))));
        // This loop does not wait, and yet the sleeper wakes: points take time.
        while !task.is_finished() {
            leaf::point();
        }
        assert!(rt.now() < Time(2_000), "{:?}", rt.now());
        sleep_until(&*rt, Time(1_000_000_000));
    });
    assert!(runtime.now() >= Time(1_000_000_000));
}

#[test]
fn leaf_mutexes_taken_in_opposite_orders_are_a_deadlock() {
    let attempt = |seed| {
        let runtime = runtime(seed, STRATEGIES[0]);
        let rt = runtime.rt();
        runtime.run(move || {
            let (one, two) = (Arc::new(leaf::Mutex::new(())), Arc::new(leaf::Mutex::new(())));
            let (a, b) = (Arc::clone(&one), Arc::clone(&two));
            let backwards = move || {
                let _b = b.lock();
                let _a = a.lock();
            };
            drop(rt.spawn("backwards", Box::new(backwards)));
            let _one = one.lock();
            let _two = two.lock();
        });
    };
    let found = (0..100).find_map(|seed| catch_unwind(AssertUnwindSafe(|| attempt(seed))).err());
    let text = message(&*found.expect("some seed runs into it")).to_owned();
    assert!(text.starts_with("deadlock") && text.contains("backwards waits for a leaf mutex"), "{text}");
}

#[test]
fn a_deadlock_beside_a_task_that_wakes_again_and_again_is_told() {
    let text = panic_text(|| {
        let runtime = runtime(1, STRATEGIES[0]);
        let rt = runtime.rt();
        runtime.run(move || {
            let ticking = Arc::clone(&rt);
            let tick = move || loop {
                sleep_until(&*ticking, ticking.now() + Duration::from_micros(1));
            };
            drop(rt.spawn("ticker", Box::new(tick)));
            let lock = lock::Mutex::new(rt, ());
            let _first = lock.lock();
            drop(lock.lock());
        });
    });
    assert_eq!(text, "no end after 1000000 scheduling points; main waits for an event");
}

#[test]
fn a_panic_in_a_task_is_reported_and_the_thread_can_run_again() {
    let text = panic_text(|| {
        let runtime = runtime(1, STRATEGIES[0]);
        let rt = runtime.rt();
        runtime.run(move || {
            drop(rt.spawn("doomed", Box::new(|| panic!("expected by this test"))));
            sleep_until(&*rt, Time(5_000));
        });
    });
    assert_eq!(text, "task doomed panicked: expected by this test");
    assert_eq!(runtime(1, STRATEGIES[0]).run(|| 7), 7);
}

#[test]
fn on_other_threads_the_types_behave_as_usual() {
    let number = leaf::Mutex::new(1);
    assert!(number.try_lock().is_some());
    *number.lock() += 1;
    assert_eq!(number.into_inner(), 2);
    assert_eq!(AtomicU64::new(3).fetch_max(5, Ordering::SeqCst), 3);
}
