//! Requests that can be given up: a caller killed during a long operation waits for its reply, so the operation ends
//! early.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most interrupts kept for requests that have not arrived yet. Most of them concern short requests, which ignore them.
const EARLY_MAX: usize = 64;

thread_local! {
    /// The interrupt flag of the long request that this thread serves.
    static CURRENT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Returns true if the caller of the request that this thread serves has been interrupted or killed. A handler of an
/// operation that takes long (FALLOCATE, COPY_FILE_RANGE) asks between its steps, and answers `EINTR` or what it has
/// done so far.
pub fn interrupted() -> bool {
    CURRENT.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)))
}

/// The long requests that are being served. There are at most as many as threads.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: Vec<(u64, Arc<AtomicBool>)>,
    /// The latest interrupts of requests that were not running; `next_early` is overwritten next.
    early: Vec<u64>,
    next_early: usize,
}

impl Interrupts {
    /// Makes an interrupt of request `unique` visible to the calling thread, until the guard is dropped.
    pub(crate) fn watch(&self, unique: u64) -> Watched<'_> {
        let mut state = self.state();
        let flag = Arc::new(AtomicBool::new(state.early.contains(&unique)));
        CURRENT.set(Some(Arc::clone(&flag)));
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
        self.interrupts.state().running.retain(|(number, _)| *number != self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_reaches_the_thread_that_serves_the_request_until_it_is_done() {
        let interrupts = Interrupts::default();
        let watched = interrupts.watch(7);
        interrupts.interrupt(8);
        assert!(!interrupted(), "another request");
        interrupts.interrupt(7);
        assert!(interrupted());
        drop(watched);
        assert!(!interrupted());
        interrupts.interrupt(7);
        let _next = interrupts.watch(9);
        assert!(!interrupted());
    }

    #[test]
    fn an_interrupt_that_is_here_before_its_request_is_kept_until_many_others_came() {
        let interrupts = Interrupts::default();
        (1..=EARLY_MAX as u64).for_each(|unique| interrupts.interrupt(unique));
        let first = interrupts.watch(1);
        assert!(interrupted());
        drop(first);
        interrupts.interrupt(1000);
        let _overwritten = interrupts.watch(1);
        assert!(!interrupted());
    }
}
