//! Requests that can be given up: a caller killed during a long operation waits for its reply, so the operation ends
//! early.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most interrupts kept for requests that have not arrived yet. Most of them concern requests that ignore them.
const EARLY_MAX: usize = 64;

/// Flags that are there from the start: more than most mounts have threads.
const SPARE_FLAGS: usize = 16;

thread_local! {
    /// The caller of the request that this thread serves, and its interrupt flag, if the request may wait.
    static CURRENT: RefCell<Option<(u32, Arc<AtomicBool>)>> = const { RefCell::new(None) };
}

/// Returns the thread that made the request which this thread serves, if it has been interrupted or killed. A handler
/// of a request that changes something asks between its steps and waits, and answers `EINTR` or what it has done so
/// far.
pub fn interrupted_caller() -> Option<u32> {
    let is_interrupted = |(_, flag): &&(u32, Arc<AtomicBool>)| flag.load(Ordering::Relaxed);
    CURRENT.with_borrow(|current| current.as_ref().filter(is_interrupted).map(|(caller, _)| *caller))
}

/// The requests that are being served and may wait. There are at most as many as threads.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<State>);

#[derive(Debug)]
struct State {
    running: Vec<(u64, Arc<AtomicBool>)>,
    /// Flags for the next requests: serving one allocates nothing.
    spare: Vec<Arc<AtomicBool>>,
    /// The latest interrupts of requests that were not running; `next_early` is overwritten next.
    early: Vec<u64>,
    next_early: usize,
}

impl Default for State {
    fn default() -> Self {
        let spare: Vec<_> = (0..SPARE_FLAGS).map(|_| Arc::default()).collect();
        State { running: Vec::with_capacity(SPARE_FLAGS), spare, early: Vec::new(), next_early: 0 }
    }
}

impl Interrupts {
    /// Makes an interrupt of request `unique` visible to the calling thread, until the guard is dropped.
    pub(crate) fn watch(&self, unique: u64, caller: u32) -> Watched<'_> {
        let mut state = self.state();
        let flag = state.spare.pop().unwrap_or_default();
        flag.store(state.early.contains(&unique), Ordering::Relaxed);
        CURRENT.set(Some((caller, Arc::clone(&flag))));
        state.running.push((unique, flag));
        Watched { interrupts: self, unique }
    }

    /// Marks request `unique` as interrupted. Requests that are short or done ignore it.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        match state.running.iter().find(|(number, _)| *number == unique) {
            Some((_, flag)) => flag.store(true, Ordering::Relaxed),
            None => state.keep(unique),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Keeps an interrupt for a request that may still come: over io_uring the two travel different ways.
    fn keep(&mut self, unique: u64) {
        let at = self.next_early;
        match self.early.get_mut(at) {
            Some(oldest) => *oldest = unique,
            None => self.early.push(unique),
        }
        self.next_early = (at + 1) % EARLY_MAX;
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
        if let Some(at) = state.running.iter().position(|(number, _)| *number == self.unique) {
            let (_, flag) = state.running.swap_remove(at);
            state.spare.push(flag);
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
        interrupts.interrupt(7);
        let _next = interrupts.watch(9, CALLER);
        assert!(interrupted_caller().is_none());
    }

    #[test]
    fn an_interrupt_that_is_here_before_its_request_is_kept_until_many_others_came() {
        let interrupts = Interrupts::default();
        (1..=EARLY_MAX as u64).for_each(|unique| interrupts.interrupt(unique));
        let first = interrupts.watch(1, CALLER);
        assert_eq!(interrupted_caller(), Some(CALLER));
        drop(first);
        interrupts.interrupt(1000);
        let _overwritten = interrupts.watch(1, CALLER);
        assert!(interrupted_caller().is_none());
    }
}
