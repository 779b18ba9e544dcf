//! Time and waiting: one code for live mounts and virtual time.
//!
//! The one idea: a file system may look at the clock, wait, and start tasks only through a
//! [`Runtime`]. On a live mount that is [`Live`] (threads and parking); in the lab and in
//! concurrency tests it is [`Virtual`]: also threads, but exactly one holds the baton, the clock
//! jumps when all tasks wait, and a seed decides among ready tasks. Everything that can be
//! held across a wait (the locks in [`lock`]) is built on [`Event`]; plain mutexes are for leaves
//! that never wait.
//!
//! A second of virtual time passes at once:
//!
//! ```
//! use moafs_runtime::{Runtime, Virtual, sleep_until};
//! use std::time::Duration;
//!
//! let clock = Virtual::new(Some(1)); // the seed decides among ready tasks
//! let rt = clock.rt();
//! clock.run(|| {
//!     let begin = rt.now();
//!     sleep_until(&*rt, begin + Duration::from_secs(1));
//!     assert_eq!(rt.now() - begin, Duration::from_secs(1));
//! });
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`mod@counters`] | counters, each declared once: [`counters!`](crate::counters!) |
//! | [`event`] | [`Event`], the only thing a task can wait for |
//! | [`live`] | threads, parking, the machine's clocks |
//! | [`virt`] | the baton, the virtual clock, seeded choice, deadlock reports |
//! | [`lock`] | mutex and reader-writer lock that may be held across a wait |
//! | [`leaf`] | mutex and atomics for what never waits: scheduling points in simulations, free of cost elsewhere |
//! | `preempt` | coroutines that may be switched at every lock and atomic, by a seed (feature `preempt`) |

pub mod counters;
pub mod event;
pub mod leaf;
pub mod live;
pub mod lock;
#[cfg(feature = "preempt")]
pub mod preempt;
mod task;
pub mod time;
pub mod virt;

use std::sync::Arc;

pub use event::{Event, Ticket};
pub use live::Live;
#[cfg(feature = "preempt")]
pub use preempt::Preemptive;
pub use task::Task;
pub use time::{Time, Timestamp};
pub use virt::Virtual;

/// A shared runtime. One per volume (or per experiment); there are no globals.
pub type Rt = Arc<dyn Runtime>;

/// The reason for which [`Runtime::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The event was signalled since the ticket was taken.
    Signalled,
    /// The deadline passed first.
    TimedOut,
}

/// Time and waiting, those of the machine or those of a simulation.
///
/// Waiting never loses a signal: take a [`Ticket`] first, look at the condition, then wait with
/// that ticket; a signal between the two makes `wait` return at once.
pub trait Runtime: Send + Sync {
    /// Returns the time in nanoseconds on a clock that never goes back: for deadlines and ages.
    fn now(&self) -> Time;

    /// Returns the time of day, for time stamps in inodes. Virtual runtimes derive it from [`Self::now`].
    fn timestamp(&self) -> Timestamp;

    /// Blocks until `event` is signalled after `ticket` was taken, or `until` has passed.
    /// The only way to block.
    fn wait(&self, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken;

    /// Wakes all tasks that wait for `event` and invalidates all tickets taken so far.
    fn signal(&self, event: &Event);

    /// Starts a task (syncer, cleaner, lab process). A panic in it is reported, not swallowed.
    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Task;

    /// Accounts `ns` nanoseconds of modelled CPU time; does nothing on a live mount. With 0 it is
    /// a point where another ready task may run. Not to be called while a plain mutex is held.
    fn compute(&self, ns: u64);

    /// Returns true if the clock is modelled: callers may then prefer determinism over parallelism.
    fn is_virtual(&self) -> bool;

    /// Returns true if this task works for a program that has been killed meanwhile: nothing waits for the answer, and
    /// work that no other program needs may stop.
    fn caller_is_gone(&self) -> bool {
        false
    }
}

/// Sleeps until `until` by waiting for an event that is never signalled.
pub fn sleep_until(rt: &dyn Runtime, until: Time) {
    let event = Event::new();
    while rt.now() < until {
        rt.wait(&event, event.ticket(), Some(until));
    }
}
