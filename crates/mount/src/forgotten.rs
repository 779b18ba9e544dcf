//! Finds out which removed files the kernel no longer has, though their forgets are still to come.
//!
//! A forget comes by another path than requests do, and late on a busy machine. To drop the attributes of a node tells
//! whether the kernel has it. A thread that answers requests must not ask that itself (`attributes`): a thread for the
//! question does, and is not waited for longer than a while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use moafs_fuse::Notifier;
use moafs_vfs::types::Ino;

use crate::nodes::Nodes;

/// The longest wait for the kernel's answers.
const WITHIN: Duration = Duration::from_secs(1);

/// The most threads that ask at once.
const THREADS_MAX: usize = 16;

/// Asks the kernel.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    threads: Arc<AtomicUsize>,
}

impl Forgotten {
    /// Returns those of the `held` files that the kernel no longer has; none if it does not answer in time.
    pub(crate) fn among(&self, held: BTreeSet<Ino>, notifier: &Notifier, nodes: Nodes) -> BTreeSet<Ino> {
        let notifier = notifier.clone();
        self.ask(held, move |ino| matches!(notifier.inval_attr(nodes.node(ino)), Ok(false)))
    }

    fn ask(&self, mut held: BTreeSet<Ino>, is_gone: impl Fn(Ino) -> bool + Send + 'static) -> BTreeSet<Ino> {
        let asking = Asking(Arc::clone(&self.threads));
        if asking.0.fetch_add(1, Ordering::SeqCst) >= THREADS_MAX {
            return BTreeSet::new();
        }
        let (answer, answers) = channel();
        let body = move || {
            held.retain(|ino| is_gone(*ino));
            drop(asking);
            // The caller may have given up.
            let _ = answer.send(held);
        };
        // Without a thread the files count as used until they are forgotten.
        match Builder::new().name("forgotten".to_owned()).spawn(body) {
            Ok(_) => answers.recv_timeout(WITHIN).unwrap_or_default(),
            Err(_) => BTreeSet::new(),
        }
    }
}

/// Counts a thread as long as it asks.
struct Asking(Arc<AtomicUsize>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_answer_is_not_waited_for_by_more_and_more_threads() {
        let forgotten = Forgotten::default();
        assert_eq!(forgotten.ask([5, 6].map(Ino).into(), |ino| ino == Ino(6)), BTreeSet::from([Ino(6)]));
        let busy: Vec<_> = (0..THREADS_MAX).map(|_| Asking(Arc::clone(&forgotten.threads))).collect();
        forgotten.threads.fetch_add(THREADS_MAX, Ordering::SeqCst);
        assert_eq!(forgotten.ask([5, 6].map(Ino).into(), |_| true), BTreeSet::new());
        drop(busy);
        assert_eq!(forgotten.ask([5].map(Ino).into(), |_| true), BTreeSet::from([Ino(5)]));
    }
}
