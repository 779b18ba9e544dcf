//! After a crash of our own: returning what leaked.

use std::sync::atomic::{AtomicBool, Ordering};

use moafs_runtime::Time;
use moafs_vfs::format::Idle;

use super::Ext;

/// Whether leaks are still to be returned.
pub(super) struct Recovery {
    done: AtomicBool,
}

impl Recovery {
    pub(super) fn new(needed: bool) -> Recovery {
        Recovery { done: AtomicBool::new(!needed) }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

impl Ext {
    pub(super) fn recover_step(&self, _idle: Idle) -> Option<Time> {
        None
    }
}
