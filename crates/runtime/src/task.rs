//! [`Task`]: a handle on something started with [`Runtime::spawn`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Event, Runtime};

/// A handle on a spawned task; dropping it lets the task run on by itself.
pub struct Task {
    progress: Arc<Progress>,
}

/// The state that a task and its handle share.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ended: Event,
    finished: AtomicBool,
    panicked: AtomicBool,
}

impl Progress {
    /// Notes that the task is over. The caller signals [`Self::ended`] afterwards.
    pub(crate) fn finish(&self, panicked: bool) {
        self.panicked.store(panicked, Ordering::Release);
        self.finished.store(true, Ordering::Release);
    }

    pub(crate) fn ended(&self) -> &Event {
        &self.ended
    }
}

impl Task {
    pub(crate) fn new(progress: Arc<Progress>) -> Task {
        Task { progress }
    }

    /// Waits until the task has returned (or panicked).
    pub fn join(&self, rt: &dyn Runtime) {
        loop {
            let ticket = self.progress.ended.ticket();
            if self.is_finished() {
                return;
            }
            rt.wait(&self.progress.ended, ticket, None);
        }
    }

    /// Returns true once the task has returned or panicked.
    pub fn is_finished(&self) -> bool {
        self.progress.finished.load(Ordering::Acquire)
    }

    /// Returns true once the task has panicked.
    pub fn has_panicked(&self) -> bool {
        self.progress.panicked.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).field("panicked", &self.has_panicked()).finish()
    }
}
