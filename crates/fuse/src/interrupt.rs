//! Requests that can be given up: a caller killed during a long operation waits for its reply, so the operation ends
//! early.
//!
//! The kernel interrupts the request that a killed caller waits for. Calls of many requests go on with the next one
//! (the fsync of a synchronous write follows its last write), and over io_uring none of those is interrupted, since the
//! signal came before it was sent. So callers that were interrupted lately count as interrupted in their next requests.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most interrupts kept for requests that have not arrived yet, and for the next requests of their callers. Most of
/// them concern requests that ignore them.
const KEPT_MAX: usize = 64;

/// Flags that are there from the start: more than most mounts have threads.
const SPARE_FLAGS: usize = 16;

thread_local! {
    /// The caller of the request that this thread serves, and its interrupt flag, if the request may wait.
    static CURRENT: RefCell<Option<(u32, Arc<AtomicBool>)>> = const { RefCell::new(None) };
}

/// Returns the thread that made the request which this thread serves, if it may have been killed: it has been
/// interrupted, in this request or in one before. A handler of a request that changes something asks between its steps
/// and waits, finds out whether the thread lives, and if not answers `EINTR` or what it has done so far.
pub fn interrupted_caller() -> Option<u32> {
    let is_interrupted = |(_, flag): &&(u32, Arc<AtomicBool>)| flag.load(Ordering::Relaxed);
    CURRENT.with_borrow(|current| current.as_ref().filter(is_interrupted).map(|(caller, _)| *caller))
}

/// The requests that are being served and may wait. There are at most as many as threads.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<State>);

#[derive(Debug)]
struct State {
    running: Vec<Running>,
    /// Flags for the next requests: serving one allocates nothing.
    spare: Vec<Arc<AtomicBool>>,
    /// The requests that were interrupted before they arrived.
    early: Latest<u64>,
    /// The callers of requests that were interrupted.
    callers: Latest<u32>,
}

#[derive(Debug)]
struct Running {
    unique: u64,
    caller: u32,
    flag: Arc<AtomicBool>,
}

/// The latest few of many.
#[derive(Debug, Default)]
struct Latest<T> {
    kept: Vec<T>,
    /// The place that is overwritten next.
    next: usize,
}

impl<T: PartialEq> Latest<T> {
    /// Keeps an item, unless it is kept already.
    fn keep(&mut self, item: T) {
        if self.contains(&item) {
            return;
        }
        match self.kept.get_mut(self.next) {
            Some(oldest) => *oldest = item,
            None => self.kept.push(item),
        }
        self.next = (self.next + 1) % KEPT_MAX;
    }

    fn contains(&self, item: &T) -> bool {
        self.kept.contains(item)
    }
}

impl Default for State {
    fn default() -> Self {
        let spare: Vec<_> = (0..SPARE_FLAGS).map(|_| Arc::default()).collect();
        let running = Vec::with_capacity(SPARE_FLAGS);
        State { running, spare, early: Latest::default(), callers: Latest::default() }
    }
}

impl Interrupts {
    /// Makes an interrupt of request `unique` visible to the calling thread, until the guard is dropped.
    pub(crate) fn watch(&self, unique: u64, caller: u32) -> Watched<'_> {
        let mut state = self.state();
        let flag = state.spare.pop().unwrap_or_default();
        if state.early.contains(&unique) {
            state.callers.keep(caller);
        }
        flag.store(state.callers.contains(&caller), Ordering::Relaxed);
        CURRENT.set(Some((caller, Arc::clone(&flag))));
        state.running.push(Running { unique, caller, flag });
        Watched { interrupts: self, unique }
    }

    /// Marks request `unique` as interrupted. Requests that are short or done ignore it.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        let Some(running) = state.running.iter().find(|running| running.unique == unique) else {
            // The request may still come: over io_uring the two travel different ways.
            return state.early.keep(unique);
        };
        running.flag.store(true, Ordering::Relaxed);
        let caller = running.caller;
        state.callers.keep(caller);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that can be interrupted, while its handler runs.
pub(crate) struct Watched<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        CURRENT.set(None);
        let mut state = self.interrupts.state();
        if let Some(at) = state.running.iter().position(|running| running.unique == self.unique) {
            let running = state.running.swap_remove(at);
            state.spare.push(running.flag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: u32 = 4711;

    #[test]
    fn an_interrupt_reaches_the_thread_that_serves_the_request_until_it_is_done() {
        let interrupts = Interrupts::default();
        let watched = interrupts.watch(7, CALLER);
        interrupts.interrupt(8);
        assert!(interrupted_caller().is_none(), "another request");
        interrupts.interrupt(7);
        assert_eq!(interrupted_caller(), Some(CALLER));
        drop(watched);
        assert!(interrupted_caller().is_none());
        let _of_another = interrupts.watch(9, CALLER + 1);
        assert!(interrupted_caller().is_none());
    }

    #[test]
    fn the_next_requests_of_an_interrupted_caller_count_as_interrupted() {
        let interrupts = Interrupts::default();
        let write = interrupts.watch(7, CALLER);
        interrupts.interrupt(7);
        drop(write);
        let fsync = interrupts.watch(9, CALLER);
        assert_eq!(interrupted_caller(), Some(CALLER));
        drop(fsync);
        // Those of others do not, and callers are forgotten after many.
        for number in 1..=KEPT_MAX as u32 {
            let of_another = interrupts.watch(number.into(), CALLER + number);
            assert!(interrupted_caller().is_none());
            interrupts.interrupt(number.into());
            drop(of_another);
        }
        let _much_later = interrupts.watch(1000, CALLER);
        assert!(interrupted_caller().is_none());
    }

    #[test]
    fn an_interrupt_that_is_here_before_its_request_is_kept_until_many_others_came() {
        let interrupts = Interrupts::default();
        (1..=KEPT_MAX as u64).for_each(|unique| interrupts.interrupt(unique));
        let first = interrupts.watch(1, CALLER);
        assert_eq!(interrupted_caller(), Some(CALLER));
        drop(first);
        interrupts.interrupt(1000);
        let _overwritten = interrupts.watch(1, CALLER + 1);
        assert!(interrupted_caller().is_none());
    }
}
