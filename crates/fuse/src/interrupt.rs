//! Requests that can be given up: a caller that is killed during a long operation waits for its reply, so the operation ends early.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Of the long request that this thread serves.
    static CURRENT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Returns true if the caller of the request that this thread serves has been interrupted or killed. A handler of an operation that takes
/// long (FALLOCATE, COPY_FILE_RANGE) asks between its steps, and answers `EINTR` or what it has done so far.
pub fn interrupted() -> bool {
    CURRENT.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)))
}

/// The long requests that are being served. There are at most as many as threads.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    running: Mutex<Vec<(u64, Arc<AtomicBool>)>>,
}

impl Interrupts {
    /// Has the calling thread hear of an interrupt of request `unique`, until the guard is dropped.
    pub(crate) fn watch(&self, unique: u64) -> Watched<'_> {
        let flag = Arc::new(AtomicBool::new(false));
        CURRENT.set(Some(Arc::clone(&flag)));
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push((unique, flag));
        Watched { interrupts: self, unique }
    }

    /// Request `unique` was interrupted. Requests that are short, done, or not begun yet take no notice.
    pub(crate) fn interrupt(&self, unique: u64) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, flag) in running.iter().filter(|(number, _)| *number == unique) {
            flag.store(true, Ordering::Relaxed);
        }
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
        let mut running = self.interrupts.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(number, _)| *number != self.unique);
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
}
