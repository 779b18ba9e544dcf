//! Watches the requests of the swap: how many, how long, and which are stuck.
//!
//! A page-out that hangs stops every process that needs memory, and in the end the machine. Then only this code can
//! still report it, so it allocates nothing while all is well, and takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::log::Log;
use crate::ticking::Ticking;

/// Most requests that are watched at once, at least the number of serving threads.
const SLOTS: usize = 16;
/// Time after which a request counts as slow and is logged.
const SLOW: Duration = Duration::from_secs(5);
/// Interval of the watchdog.
const LOOK: Duration = Duration::from_secs(1);
/// Number of intervals after which a request that is still stuck is logged again.
const TELL_AGAIN_LOOKS: u32 = 30;

/// Requests being served and those that ended.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    /// Start of each slot's request, in microseconds since `start`, from 1 on; 0 for a free slot.
    slots: [AtomicU64; SLOTS],
    ended: AtomicU64,
    micros: AtomicU64,
    longest_micros: AtomicU64,
    slow: AtomicU64,
}

/// The counts of the watch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Seen {
    /// Requests of the kernel that were answered.
    requests: u64,
    /// Mean time of a request, in milliseconds.
    mean_ms: f64,
    /// Longest time of a request, in milliseconds.
    longest_ms: f64,
    /// Requests that took more than five seconds.
    slow: u64,
    /// Waiting time of the oldest request being served, in seconds; 0 without one.
    waiting_s: f64,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            start: Instant::now(),
            slots: [const { AtomicU64::new(0) }; SLOTS],
            ended: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            longest_micros: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        }
    }

    /// Watches a request until the value is dropped.
    pub(crate) fn begin(&self) -> Watched<'_> {
        let began = self.now();
        let free = |slot: &&AtomicU64| slot.compare_exchange(0, began, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Watched { watch: self, began, slot: self.slots.iter().find(free) }
    }

    pub(crate) fn seen(&self) -> Seen {
        let ended = self.ended.load(Ordering::Relaxed);
        let ms = |micros: u64| micros as f64 / 1e3;
        Seen {
            requests: ended,
            mean_ms: ms(self.micros.load(Ordering::Relaxed)) / ended.max(1) as f64,
            longest_ms: ms(self.longest_micros.load(Ordering::Relaxed)),
            slow: self.slow.load(Ordering::Relaxed),
            waiting_s: self.waiting().as_secs_f64(),
        }
    }

    /// Returns the waiting time of the oldest request being served.
    fn waiting(&self) -> Duration {
        let began = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|began| *began != 0).min();
        Duration::from_micros(began.map_or(0, |began| self.now().saturating_sub(began)))
    }

    fn now(&self) -> u64 {
        (self.start.elapsed().as_micros() as u64).max(1)
    }
}

/// A request being served.
pub(crate) struct Watched<'a> {
    watch: &'a Watch,
    began: u64,
    slot: Option<&'a AtomicU64>,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let micros = self.watch.now().saturating_sub(self.began);
        if let Some(slot) = self.slot {
            slot.store(0, Ordering::Relaxed);
        }
        self.watch.ended.fetch_add(1, Ordering::Relaxed);
        self.watch.micros.fetch_add(micros, Ordering::Relaxed);
        self.watch.longest_micros.fetch_max(micros, Ordering::Relaxed);
        self.watch.slow.fetch_add(u64::from(micros > SLOW.as_micros() as u64), Ordering::Relaxed);
    }
}

/// Starts the watchdog, which logs requests that are stuck.
pub(crate) fn watchdog(watch: Arc<Watch>, log: Arc<Log>) -> std::io::Result<Ticking> {
    let mut stuck_looks = 0;
    Ticking::start("swap-watchdog", move || {
        let waiting = watch.waiting();
        if waiting <= SLOW {
            stuck_looks = 0;
            return LOOK;
        }
        if stuck_looks % TELL_AGAIN_LOOKS == 0 {
            log.say(&format!("swap: a request of the kernel has been waiting for {} s", waiting.as_secs()));
        }
        stuck_looks += 1;
        LOOK
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_and_the_oldest_one_is_known() {
        let watch = Watch::new();
        assert_eq!((watch.seen().requests, watch.waiting()), (0, Duration::ZERO));
        let first = watch.begin();
        std::thread::sleep(Duration::from_millis(20));
        let second = watch.begin();
        assert!(watch.waiting() >= Duration::from_millis(20));
        drop(first);
        assert!(watch.waiting() < Duration::from_millis(20));
        drop(second);
        let seen = watch.seen();
        assert_eq!((seen.requests, seen.slow, seen.waiting_s), (2, 0, 0.0));
        assert!(seen.longest_ms >= 20.0 && seen.mean_ms >= 10.0);
    }

    #[test]
    fn more_requests_than_slots_are_counted_all_the_same() {
        let watch = Watch::new();
        let many: Vec<_> = (0..SLOTS + 3).map(|_| watch.begin()).collect();
        drop(many);
        assert_eq!(watch.seen().requests, SLOTS as u64 + 3);
        assert!(watch.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }
}
