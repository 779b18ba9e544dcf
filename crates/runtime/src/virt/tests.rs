//! The baton, the clock, the seed; and the locks under many interleavings.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::lock;
use crate::sleep_until;

type Log = Arc<Mutex<Vec<(u64, &'static str)>>>;

/// Runs three tasks that sleep and compute; returns their steps with the times.
fn timeline(seed: Option<u64>) -> Vec<(u64, &'static str)> {
    let runtime = Virtual::new(seed);
    let log: Log = Arc::default();
    runtime.run(|| {
        for (name, step) in [("a", 30), ("b", 20), ("c", 30)] {
            let (rt, log) = (runtime.rt(), Arc::clone(&log));
            let body = move || {
                for _ in 0..3 {
                    sleep_until(&*rt, rt.now() + Duration::from_nanos(step));
                    log.lock().push((rt.now().0, name));
                    rt.compute(5);
                }
            };
            runtime.spawn(name, Box::new(body));
        }
    });
    let log = log.lock();
    log.clone()
}

fn panic_text(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    message(&*panic).to_owned()
}

#[test]
fn time_passes_by_deadlines_and_order_is_by_arrival() {
    let wanted = [(20, "b"), (30, "a"), (30, "c"), (45, "b"), (65, "a"), (65, "c"), (70, "b"), (100, "a"), (100, "c")];
    assert_eq!(timeline(None), wanted);
}

#[test]
fn a_seed_repeats_and_seeds_differ() {
    let all: BTreeSet<_> = (0..20).map(|seed| timeline(Some(seed))).collect();
    assert!(all.len() > 1);
    assert_eq!(timeline(Some(3)), timeline(Some(3)));
}

#[test]
fn one_task_alone_jumps_the_clock_without_waiting() {
    let runtime = Virtual::new(None);
    runtime.run(|| {
        for second in 1..=100_000 {
            sleep_until(&*runtime, Time(second * 1_000_000_000));
            runtime.compute(10);
        }
    });
    assert_eq!(runtime.now(), Time(100_000 * 1_000_000_000 + 10));
    assert_eq!(runtime.timestamp(), Timestamp::new(EPOCH_SECS + 100_000, 10));
}

#[test]
fn no_wakeup_is_lost_under_any_seed() {
    for seed in 0..200 {
        let runtime = Virtual::new(Some(seed));
        runtime.run(|| {
            let shared = Arc::new((Event::new(), AtomicU64::new(0)));
            let turns = |rt: Rt, shared: Arc<(Event, AtomicU64)>, mine: u64| {
                move || {
                    for _ in 0..20 {
                        loop {
                            let ticket = shared.0.ticket();
                            if shared.1.load(Ordering::SeqCst) % 3 == mine {
                                break;
                            }
                            rt.wait(&shared.0, ticket, None);
                        }
                        shared.1.fetch_add(1, Ordering::SeqCst);
                        rt.signal(&shared.0);
                    }
                }
            };
            for mine in 0..3 {
                runtime.spawn("player", Box::new(turns(runtime.rt(), Arc::clone(&shared), mine)));
            }
        });
    }
}

#[test]
fn a_deadlock_names_who_waits() {
    let runtime = Virtual::new(None);
    let text = panic_text(|| {
        runtime.run(|| {
            let one = Arc::new(lock::Mutex::new(runtime.rt(), ()));
            let two = Arc::new(lock::Mutex::new(runtime.rt(), ()));
            let (a, b, rt) = (Arc::clone(&one), Arc::clone(&two), runtime.rt());
            let backwards = move || {
                let _two = b.lock();
                rt.compute(10);
                let _one = a.lock();
            };
            runtime.spawn("backwards", Box::new(backwards));
            let _one = one.lock();
            runtime.compute(10);
            let _two = two.lock();
        });
    });
    assert!(text.starts_with("deadlock at 10 ns"), "{text}");
    assert!(text.contains("main waits") && text.contains("backwards waits"), "{text}");
}

#[test]
fn a_task_left_waiting_is_a_deadlock_too() {
    let runtime = Virtual::new(None);
    let rt = runtime.rt();
    let forlorn = move || {
        let event = Event::new();
        rt.wait(&event, event.ticket(), None);
    };
    let text = panic_text(|| runtime.run(|| drop(runtime.spawn("forlorn", Box::new(forlorn)))));
    assert!(text.contains("forlorn waits for event 0"), "{text}");
}

#[test]
fn a_panic_in_a_task_ends_the_run_and_unwinds_the_others() {
    struct Witness(Arc<AtomicU64>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = Virtual::new(None);
    let dropped = Arc::new(AtomicU64::new(0));
    let text = panic_text(|| {
        runtime.run(|| {
            let (witness, rt) = (Witness(Arc::clone(&dropped)), runtime.rt());
            let patient = move || {
                let _witness = witness;
                sleep_until(&*rt, Time(1_000));
            };
            runtime.spawn("patient", Box::new(patient));
            runtime.spawn("doomed", Box::new(|| panic!("expected by this test")));
            sleep_until(&*runtime, Time(2_000));
        });
    });
    assert_eq!(text, "task doomed panicked: expected by this test");
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn join_waits_in_virtual_time_and_run_can_be_repeated() {
    let runtime = Virtual::new(None);
    for round in 1..=2 {
        let rt = runtime.rt();
        let end = runtime.run(|| {
            let task = runtime.spawn("worker", Box::new(move || rt.compute(500)));
            task.join(&*runtime);
            assert!(task.is_finished() && !task.has_panicked());
            runtime.now()
        });
        assert_eq!(end, Time(round * 500));
    }
}

#[test]
fn setting_up_outside_of_run_needs_no_task() {
    let runtime = Virtual::new(Some(1));
    let lock = lock::Mutex::new(runtime.rt(), 1);
    *lock.lock() += 1;
    sleep_until(&*runtime, Time(70));
    assert_eq!((runtime.now(), lock.into_inner()), (Time(70), 2));
}

/// Runs readers and writers that hold a lock across waits; returns the order in which they entered.
fn readers_and_writers(seed: Option<u64>) -> Vec<(u64, &'static str)> {
    let runtime = Virtual::new(seed);
    let log: Log = Arc::default();
    runtime.run(|| {
        let shared = Arc::new(lock::RwLock::new(runtime.rt(), (0_u64, 0_u64)));
        for name in ["reader 1", "reader 2", "reader 3", "writer 1", "writer 2"] {
            let (rt, log, shared) = (runtime.rt(), Arc::clone(&log), Arc::clone(&shared));
            let body = move || {
                for _ in 0..5 {
                    if name.starts_with("reader") {
                        let pair = shared.read();
                        let before = pair.0;
                        rt.compute(7);
                        assert_eq!((before, before), *pair);
                    } else {
                        let mut pair = shared.write();
                        pair.0 += 1;
                        rt.compute(3);
                        pair.1 += 1;
                    }
                    log.lock().push((rt.now().0, name));
                }
            };
            runtime.spawn(name, Box::new(body));
        }
    });
    let log = log.lock();
    log.clone()
}

#[test]
fn the_locks_exclude_and_do_not_starve_under_any_seed() {
    let mut all = BTreeSet::new();
    for seed in 0..300 {
        let log = readers_and_writers(Some(seed));
        assert_eq!(log.len(), 25);
        all.insert(log);
    }
    assert!(all.len() > 100, "{} different interleavings", all.len());
    assert_eq!(readers_and_writers(None), readers_and_writers(None));
}

#[test]
fn a_task_that_retakes_its_lock_at_once_lets_others_in() {
    let runtime = Virtual::new(None);
    runtime.run(|| {
        let shared = Arc::new(lock::Mutex::new(runtime.rt(), 0_u64));
        let (rt, other) = (runtime.rt(), Arc::clone(&shared));
        let modest = move || {
            let mut turns = other.lock();
            *turns += 1;
            assert!(rt.now() < Time(100), "starved until {:?}", rt.now());
        };
        runtime.spawn("modest", Box::new(modest));
        for _ in 0..1_000 {
            let _turns = shared.lock();
            runtime.compute(10);
        }
    });
}
