//! The decision about the class of a queue's threads.

use std::time::{Duration, Instant};

/// Time between two looks at a queue with SCHED_IDLE threads.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// A queue that serves fewer requests in a tick returns to the threads' own class: it is quiet, or starves.
const SERVED_MIN: u64 = 16;
/// So long a request may wait for its thread's turn on the CPU, on average over a tick. It is 2 µs with the CPU to
/// themselves, and more than this where another program wants it.
const WAIT_MAX: Duration = Duration::from_micros(20);
/// If more than one in so many requests of a queue is served by others than its busiest thread, requests do not come
/// one after another: the clients wait for each other's threads, and nothing is gained.
const OTHERS_ONE_IN: u64 = 8;
/// Threads that waited so long for their CPU before they returned to their own class starved.
const STARVED: Duration = Duration::from_millis(2);
/// Looks in a row that must find requests one after another before the class changes. Several clients beside hogs take
/// turns that are as long as a few ticks.
const TRIAL_TICKS: u32 = 4;
/// Time until a queue that was not worth it is looked at again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time until a queue whose threads had to wait may become SCHED_IDLE again; it doubles each time.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(64);

/// A scheduling class of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// SCHED_OTHER, the class of ordinary threads.
    Own,
    Idle,
}

/// The requests that a queue served in a tick, and the time that its threads waited for the CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) served: u64,
    /// Of these, the requests that the busiest thread served.
    pub(super) by_busiest: u64,
    pub(super) waited: Duration,
    /// A thread has served nothing and wants the CPU.
    pub(super) starves: bool,
}

impl Seen {
    pub(super) fn and(self, other: Seen) -> Seen {
        Seen {
            served: self.served + other.served,
            by_busiest: self.by_busiest.max(other.by_busiest),
            waited: self.waited + other.waited,
            starves: self.starves || other.starves,
        }
    }

    /// Tells whether the requests come one after another, and are served at once.
    fn flows(&self) -> bool {
        let by_others = self.served - self.by_busiest;
        !self.starves && by_others * OTHERS_ONE_IN <= self.served && self.waited <= WAIT_MAX * self.served as u32
    }
}

/// Decides about the class of a queue's threads, and changes nothing.
#[derive(Debug)]
pub(super) struct Policy {
    state: State,
    backoff: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Own {
        until: Instant,
    },
    /// Still in its own class. The next ticks tell whether it is worthwhile to leave it.
    Trying {
        ticks_left: u32,
    },
    Idle {
        since: Instant,
    },
    /// Back in its own class. The next tick tells whether its threads had starved, for waiting counts when it is over.
    Leaving,
}

impl Policy {
    pub(super) fn new(now: Instant) -> Policy {
        Policy { state: State::Own { until: now }, backoff: BACKOFF_MIN }
    }

    /// Tells whether the queue needs to be looked at.
    pub(super) fn is_watching(&self) -> bool {
        !matches!(self.state, State::Own { .. })
    }

    /// Tells the class to change to, if any. `busy`: a thread has served a streak of requests.
    pub(super) fn step(&mut self, now: Instant, busy: bool, seen: Seen) -> Option<Class> {
        match self.state {
            State::Own { until } if busy && now >= until => {
                self.state = State::Trying { ticks_left: TRIAL_TICKS };
                None
            }
            State::Own { .. } => None,
            State::Trying { .. } if seen.served < SERVED_MIN || !seen.flows() => {
                self.state = State::Own { until: now + PAUSE };
                None
            }
            State::Trying { ticks_left: 1 } => {
                self.state = State::Idle { since: now };
                Some(Class::Idle)
            }
            State::Trying { ticks_left } => {
                self.state = State::Trying { ticks_left: ticks_left - 1 };
                None
            }
            State::Idle { .. } if seen.served < SERVED_MIN => {
                self.state = State::Leaving;
                Some(Class::Own)
            }
            State::Idle { .. } if !seen.flows() => {
                self.stay_out(now);
                Some(Class::Own)
            }
            State::Idle { since } => {
                if now >= since + BACKOFF_MIN {
                    self.backoff = BACKOFF_MIN;
                }
                None
            }
            State::Leaving if seen.waited >= STARVED => {
                self.stay_out(now);
                None
            }
            State::Leaving => {
                self.state = State::Own { until: now };
                None
            }
        }
    }

    fn stay_out(&mut self, now: Instant) {
        self.state = State::Own { until: now + self.backoff };
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Seen = Seen { served: 500, by_busiest: 480, waited: Duration::from_millis(1), starves: false };

    fn idle(now: Instant) -> Policy {
        let mut policy = Policy::new(now);
        become_idle(&mut policy, now);
        policy
    }

    fn become_idle(policy: &mut Policy, now: Instant) {
        assert_eq!(policy.step(now, true, Seen::default()), None);
        (1..TRIAL_TICKS).for_each(|_| assert_eq!(policy.step(now, true, PLENTY), None));
        assert_eq!(policy.step(now, true, PLENTY), Some(Class::Idle));
    }

    #[test]
    fn a_busy_queue_is_idle_class_while_it_serves_without_waiting() {
        let now = Instant::now();
        let mut policy = idle(now);
        for tick in 1..50 {
            assert_eq!(policy.step(now + TICK * tick, true, PLENTY), None);
        }
        assert!(policy.is_watching());
    }

    #[test]
    fn a_quiet_queue_returns_to_its_class_and_may_leave_it_again_at_once() {
        let now = Instant::now();
        let mut policy = idle(now);
        assert_eq!(policy.step(now + TICK, false, Seen { served: 3, ..Seen::default() }), Some(Class::Own));
        assert_eq!(policy.step(now + TICK * 2, false, Seen::default()), None);
        assert!(!policy.is_watching());
        become_idle(&mut policy, now + TICK * 3);
    }

    #[test]
    fn a_starved_queue_stays_out_longer_each_time() {
        let mut now = Instant::now();
        let mut policy = Policy::new(now);
        for backoff in [1, 2, 4, 8, 16, 32, 64, 64] {
            become_idle(&mut policy, now);
            assert_eq!(policy.step(now + TICK, false, Seen::default()), Some(Class::Own));
            assert_eq!(
                policy.step(now + TICK * 2, true, Seen { served: 1, by_busiest: 1, waited: TICK, ..Seen::default() }),
                None
            );
            now += TICK * 2 + Duration::from_secs(backoff);
            assert_eq!(policy.step(now - TICK, true, PLENTY), None);
        }
    }

    #[test]
    fn a_queue_of_several_clients_keeps_its_class_and_is_looked_at_again_later() {
        let now = Instant::now();
        let mut policy = Policy::new(now);
        policy.step(now, true, Seen::default());
        assert_eq!(policy.step(now + TICK, true, Seen { by_busiest: 300, ..PLENTY }), None);
        assert!(!policy.is_watching());
        assert_eq!(policy.step(now + TICK * 2, true, PLENTY), None);
        assert!(!policy.is_watching());
        become_idle(&mut policy, now + TICK + PAUSE);
    }

    #[test]
    fn a_queue_whose_requests_wait_returns_to_its_class() {
        let now = Instant::now();
        let mut policy = idle(now);
        let waiting = Seen { waited: Duration::from_millis(30), ..PLENTY };
        assert_eq!(policy.step(now + TICK, true, waiting), Some(Class::Own));
        assert_eq!(policy.step(now + TICK * 2, true, PLENTY), None);
        let starving = Seen { starves: true, ..PLENTY };
        assert_eq!(idle(now).step(now + TICK, true, starving), Some(Class::Own));
    }

    #[test]
    fn a_queue_of_several_clients_returns_to_its_class() {
        let now = Instant::now();
        let mut policy = idle(now);
        assert_eq!(policy.step(now + TICK, true, Seen { by_busiest: 300, ..PLENTY }), Some(Class::Own));
        assert_eq!(policy.step(now + TICK * 2, true, PLENTY), None);
    }

    #[test]
    fn a_second_of_good_service_forgets_the_backoff() {
        let now = Instant::now();
        let mut policy = Policy { backoff: BACKOFF_MAX, ..idle(now) };
        policy.step(now + BACKOFF_MIN, true, PLENTY);
        assert_eq!(policy.backoff, BACKOFF_MIN);
    }
}
