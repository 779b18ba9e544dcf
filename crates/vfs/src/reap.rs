//! Unlinked inodes that nobody uses any more: their blocks and numbers go back to the format.
//!
//! `unlink` and `forget` only enqueue; the work is done in the background (and at close, and when
//! space is short): dirty pages are dropped unwritten, blocks leave in bounded ops, then the
//! number is free. Reaping takes the inode's lock, marks it dead where holds are counted, and from
//! then on whoever still has it sees a stale handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_runtime::leaf::Mutex;

use crate::error::Result;
use crate::format::{Admission, Format, FormatOp, OpKind, Progress};
use crate::inner::{Inner, Shared};
use crate::inode::Inode;
use crate::space::{LBN_END, UNMAP_BLOCKS_MAX};
use crate::types::{Ino, Lbn};

/// Unused unlinked inodes that may wait before the syncer is woken early.
const WAITING_MAX: usize = 128;

/// Inodes without a name, by number. Those still held wait for their last `forget`.
pub(crate) struct ReapQueue<N> {
    orphans: Mutex<BTreeMap<Ino, Arc<Inode<N>>>>,
    /// Those of them that nobody held when last looked at.
    ripe: Mutex<BTreeMap<Ino, ()>>,
}

impl<N> Default for ReapQueue<N> {
    fn default() -> Self {
        ReapQueue { orphans: Mutex::new(BTreeMap::new()), ripe: Mutex::new(BTreeMap::new()) }
    }
}

impl<F: Format> Inner<F> {
    /// A name of `inode` is gone; if it was the last, the inode is to be reaped once nobody holds it.
    pub(crate) fn note_unlinked(&self, inode: &Shared<F>) {
        if inode.nlink() > 0 {
            return;
        }
        self.reap_queue.orphans.lock().insert(inode.ino, Arc::clone(inode));
        self.ripen(inode.ino);
    }

    pub(crate) fn forget(&self, ino: Ino, holds: u64) {
        if !self.table.release(ino, holds) {
            return;
        }
        if let Some(inode) = self.table.peek(ino) {
            // A file that never got a name, too.
            self.note_unlinked(&inode);
        }
    }

    fn ripen(&self, ino: Ino) {
        if self.table.is_held(ino) {
            return;
        }
        let waiting = {
            let mut ripe = self.reap_queue.ripe.lock();
            ripe.insert(ino, ());
            ripe.len()
        };
        if waiting == WAITING_MAX {
            self.rt.signal(&self.syncer_wake.event);
        }
    }

    /// Nobody holds anything any more: all orphans go.
    pub(crate) fn release_all_orphans(&self) {
        let inos: Vec<Ino> = self.reap_queue.orphans.lock().keys().copied().collect();
        for ino in inos {
            self.table.release(ino, u64::MAX);
            self.ripen(ino);
        }
        self.reap_all();
    }

    /// True if something waits to be reaped.
    pub(crate) fn has_ripe(&self) -> bool {
        !self.reap_queue.ripe.lock().is_empty()
    }

    /// Reaps everything that is unlinked and unused. Level 0 only.
    pub(crate) fn reap_all(&self) {
        while self.format.failed().is_none() {
            let Some((ino, ())) = self.reap_queue.ripe.lock().pop_first() else { return };
            let inode = self.reap_queue.orphans.lock().get(&ino).cloned();
            let Some(inode) = inode else { continue };
            // An error has turned the volume read-only, and is kept there.
            if matches!(self.reap(&inode), Ok(true)) {
                self.tally.reaped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reaps one inode; false if somebody uses it (again).
    fn reap(&self, inode: &Shared<F>) -> Result<bool> {
        let _exclusive = inode.lock.write();
        if inode.nlink() > 0 {
            self.reap_queue.orphans.lock().remove(&inode.ino);
            return Ok(false);
        }
        if !self.table.condemn(inode) {
            return Ok(false);
        }
        self.reap_queue.orphans.lock().remove(&inode.ino);
        self.discard(inode, Lbn(0), LBN_END);
        self.dirty.lock().forget_unput(inode.ino);
        // The number may be given out again from the last op on: it leaves the table before.
        self.table.remove(inode);
        let mut progress = Progress::More;
        while progress == Progress::More {
            let mut admission = Admission::none();
            let mut op = self.begin(OpKind::Unmap, &mut admission)?;
            progress = op.unmap(&inode.node, Lbn(0), None, UNMAP_BLOCKS_MAX, true)?;
            if progress == Progress::Done {
                // Whoever is just telling the format its attributes finishes first; later ones see the mark.
                let _put = inode.put.lock();
                op.inode_free(&inode.node)?;
            }
            op.end(&[inode]);
        }
        Ok(true)
    }
}
