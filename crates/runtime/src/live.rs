//! [`Live`]: threads, parking, and the machine's clocks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::task::Progress;
use crate::{Event, Rt, Runtime, Task, Ticket, Time, Timestamp, Woken};

/// The runtime of a live mount.
#[derive(Debug)]
pub struct Live {
    start: Instant,
    caller_is_gone: fn() -> bool,
}

impl Live {
    /// Returns a runtime whose monotonic clock starts now.
    #[expect(clippy::new_ret_no_self, reason = "runtimes are used shared and type-erased")]
    pub fn new() -> Rt {
        Live::serving(|| false)
    }

    /// Returns one that serves other programs. `caller_is_gone` tells whether the one that the calling thread works for
    /// has been killed.
    pub fn serving(caller_is_gone: fn() -> bool) -> Rt {
        Arc::new(Live { start: Instant::now(), caller_is_gone })
    }
}

impl Runtime for Live {
    fn now(&self) -> Time {
        let elapsed = self.start.elapsed().as_nanos();
        Time(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn timestamp(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            Err(before) => before_1970(before.duration()),
        }
    }

    fn wait(&self, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken {
        // A deadline beyond what the machine's clock can express never comes.
        let deadline = until.and_then(|t| self.start.checked_add(Duration::from_nanos(t.0)));
        event.park(ticket, deadline)
    }

    fn signal(&self, event: &Event) {
        event.unpark();
    }

    /// # Panics
    /// If the machine cannot start another thread.
    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Task {
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let body = move || {
            // The panic hook has already told the user, with the thread's name.
            let outcome = catch_unwind(AssertUnwindSafe(task));
            shared.finish(outcome.is_err());
            shared.ended().unpark();
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .unwrap_or_else(|e| panic!("cannot start thread {name}: {e}"));
        Task::new(progress)
    }

    fn compute(&self, _ns: u64) {}

    fn is_virtual(&self) -> bool {
        false
    }

    fn caller_is_gone(&self) -> bool {
        (self.caller_is_gone)()
    }
}

/// Returns the time of day `ago` before 1970, with the seconds rounded down.
fn before_1970(ago: Duration) -> Timestamp {
    let secs = -i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
    match ago.subsec_nanos() {
        0 => Timestamp::new(secs, 0),
        nanos => Timestamp::new(secs.saturating_sub(1), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn signal_between_ticket_and_wait_is_not_lost() {
        let rt = Live::new();
        let event = Event::new();
        let ticket = event.ticket();
        rt.signal(&event);
        assert_eq!(rt.wait(&event, ticket, None), Woken::Signalled);
    }

    #[test]
    fn wait_times_out_without_a_signal() {
        let rt = Live::new();
        let event = Event::new();
        let until = rt.now() + Duration::from_millis(5);
        assert_eq!(rt.wait(&event, event.ticket(), Some(until)), Woken::TimedOut);
        assert!(rt.now() >= until);
    }

    #[test]
    fn no_wakeup_is_lost_between_two_threads() {
        const ROUNDS: u64 = 20_000;
        let rt = Live::new();
        let shared = Arc::new((Event::new(), AtomicU64::new(0)));
        let (peer, peer_rt) = (Arc::clone(&shared), Arc::clone(&rt));
        let turn = |rt: &Rt, shared: &(Event, AtomicU64), parity: u64| {
            for _ in 0..ROUNDS {
                loop {
                    let ticket = shared.0.ticket();
                    if shared.1.load(Ordering::SeqCst) % 2 == parity {
                        break;
                    }
                    rt.wait(&shared.0, ticket, None);
                }
                shared.1.fetch_add(1, Ordering::SeqCst);
                rt.signal(&shared.0);
            }
        };
        let task = rt.spawn("odd", Box::new(move || turn(&peer_rt, &peer, 1)));
        turn(&rt, &shared, 0);
        task.join(&*rt);
        assert_eq!(shared.1.load(Ordering::SeqCst), 2 * ROUNDS);
    }

    #[test]
    fn join_returns_after_a_panic() {
        let rt = Live::new();
        let task = rt.spawn("doomed", Box::new(|| panic!("expected by this test")));
        task.join(&*rt);
        assert!(task.has_panicked());
    }

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(before_1970(Duration::from_millis(1500)), Timestamp::new(-2, 500_000_000));
        assert_eq!(before_1970(Duration::from_secs(3)), Timestamp::new(-3, 0));
    }
}
