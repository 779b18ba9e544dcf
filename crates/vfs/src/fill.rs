//! A fill: one batch of requests that brings file blocks into the cache, one request per mapping run.
//!
//! The blocks it will bring are marked first, so no block is read twice; the first task that needs one of them waits
//! for the device, the others wait for the blocks to move. A read-ahead is a fill that no task waits for yet.

use std::sync::Arc;

use moafs_disk::Ticket;
use moafs_runtime::leaf::Mutex;

use crate::types::LbnRange;

/// A batch of reads under way.
pub(crate) struct Fill {
    progress: Mutex<Progress>,
}

enum Progress {
    /// The requests are being put together.
    Starting,
    /// The requests are under way; the task that takes the batch waits for the device.
    Submitted(Submitted),
    /// A task waits for the device.
    Taken,
    /// The blocks are in the cache, or absent again.
    Over,
}

/// A submitted batch of reads.
pub(crate) struct Submitted {
    pub(crate) ticket: Ticket,
    /// The blocks that each request brings.
    pub(crate) parts: Vec<LbnRange>,
    /// The value of [`crate::Format::relocation_generation`] before the blocks were looked up.
    pub(crate) relocation_generation: u64,
}

impl Fill {
    /// Returns a fill whose requests are being put together.
    pub(crate) fn starting() -> Arc<Fill> {
        Arc::new(Fill { progress: Mutex::new(Progress::Starting) })
    }

    /// Notes the requests of a fill; `None` if it needs none.
    pub(crate) fn submitted(&self, batch: Option<Submitted>) {
        *self.progress.lock() = batch.map_or(Progress::Over, Progress::Submitted);
    }

    /// Returns a fill that the task that starts it will wait for.
    pub(crate) fn waited_for() -> Arc<Fill> {
        Arc::new(Fill { progress: Mutex::new(Progress::Taken) })
    }

    /// Ends the fill: its blocks are in the cache, or absent again.
    pub(crate) fn end(&self) {
        *self.progress.lock() = Progress::Over;
    }

    /// Takes the batch to wait for, unless another task has taken it or it has not been submitted yet.
    pub(crate) fn take(&self) -> Option<Submitted> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::Taken) {
            Progress::Submitted(batch) => Some(batch),
            other => {
                *progress = other;
                None
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.progress.lock(), Progress::Over)
    }
}

/// The place that the bytes of a block come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The block has an address on the device.
    Device,
    /// The format keeps the bytes, but not in a block of their own: a write needs one.
    Elsewhere,
    /// The block has an address, and is zeros until it is written.
    Unwritten,
    /// The block is a hole.
    Nowhere,
}
