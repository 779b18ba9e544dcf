//! The layer of ops: a running op of the format, with the inodes whose attributes it has told the format.
//!
//! Attributes count as told only when the op has ended and its commit point is noted in the inode; both happen in one
//! step here. Until then [`crate::inode::State::unput`] stays set, so an fsync that comes in between tells the format
//! once more instead of returning early. An attribute that a call sets directly becomes visible only after the format
//! has recorded it, so a commit that begins after a client has seen it includes it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;

use crate::error::Result;
use crate::format::{Admission, CommitReason, Format, FormatOp, OpKind};
use crate::health::{Calm, panicked_in};
use crate::inode::{Inode, Shared, Unput};
use crate::inode_table::InodeTable;
use crate::layer::layer;
use crate::relief::Relief;
use crate::types::{Attr, FileKind, Ino};

/// The ops of a volume, and what the next commit has to do.
pub(crate) struct Ops<F: Format> {
    inodes: InodeTable<F>,
    /// True if metadata changed since the last commit.
    pub(crate) uncommitted: AtomicBool,
    pub(crate) relief: Relief,
    /// Files that a truncation has cut without unmapping all that lay behind their new ends: they stay in memory, and
    /// the syncer goes on with them.
    pub(crate) overhanging: Mutex<BTreeMap<Ino, Shared<F>>>,
}

layer!(Ops over inodes: InodeTable);

/// A running op. Dropping it without [`Op::end`] means that a method of the format failed, or panicked: the volume then
/// turns read-only before the format's op is dropped, which holds back the commit that would have it.
pub(crate) struct Op<'a, F: Format> {
    calm: Calm,
    ops: &'a Ops<F>,
    op: Option<F::Op<'a>>,
    kind: OpKind,
    told: SmallVec<[Told<F>; 4]>,
}

/// An inode whose attributes an op has told the format.
struct Told<F: Format> {
    inode: Shared<F>,
    /// The value of [`crate::inode::State::changes`] when they were told; `None` if the format was not told everything.
    changes: Option<u64>,
}

impl<'a, F: Format> Deref for Op<'a, F> {
    type Target = F::Op<'a>;

    fn deref(&self) -> &F::Op<'a> {
        self.op.as_ref().expect("the op has not ended")
    }
}

impl<'a, F: Format> DerefMut for Op<'a, F> {
    fn deref_mut(&mut self) -> &mut F::Op<'a> {
        self.op.as_mut().expect("the op has not ended")
    }
}

impl<F: Format> Ops<F> {
    pub(crate) fn new(inodes: InodeTable<F>) -> Ops<F> {
        Ops { inodes, uncommitted: AtomicBool::new(false), relief: Relief::default(), overhanging: Mutex::default() }
    }

    /// Begins an op of the format; waits for its op gate.
    pub(crate) fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<Op<'a, F>> {
        let op = self.format.begin(kind, admission)?;
        Ok(Op { calm: Calm::new(), ops: self, op: Some(op), kind, told: SmallVec::new() })
    }

    /// Tells the format the attributes of these inodes. The first error is returned, but all are tried.
    pub(crate) fn put_inodes(&self, inodes: &[Shared<F>]) -> Result<()> {
        let mut outcome = Ok(());
        for chunk in inodes.chunks(OpKind::ATTR_INODES_MAX) {
            if self.put_together(chunk).is_err() {
                // One of them cannot be told (its block cannot be read): the others can.
                let each = chunk.iter().map(std::slice::from_ref);
                outcome = each.fold(outcome, |outcome, inode| outcome.and(self.put_together(inode)));
            }
        }
        outcome
    }

    /// Tells the format the attributes of these inodes in one op.
    fn put_together(&self, inodes: &[Shared<F>]) -> Result<()> {
        let mut admission = Admission::none();
        let mut op = self.begin(OpKind::Attr, &mut admission)?;
        for inode in inodes {
            let wanted = {
                let state = inode.state.lock();
                !state.freed && state.unput > Unput::Nothing
            };
            if wanted {
                op.put_known(inode)?;
            }
        }
        op.end(&[]);
        Ok(())
    }

    /// Tells the format all attributes that it does not know yet.
    pub(crate) fn put_all(&self) -> Result<()> {
        let inodes = self.dirty.lock().unput_inodes();
        self.put_inodes(&inodes)
    }

    /// Commits, and forgets what evicted inodes were waiting for.
    pub(crate) fn commit(&self, why: CommitReason) -> Result<()> {
        let remembered = self.table.remembered();
        self.uncommitted.store(false, Ordering::Relaxed);
        let done = self.format.commit(why);
        match &done {
            Ok(()) => self.table.committed(&remembered),
            Err(_) => self.uncommitted.store(true, Ordering::Relaxed),
        }
        done
    }

    /// Turns the volume read-only if an op failed (a read that the device refused) after its first change: what it has
    /// changed in memory must not reach the disk without the rest.
    pub(crate) fn fail_if_half_done(&self, what: &str, completed: Result<()>) -> Result<()> {
        if let Err(error) = &completed {
            self.format.fail(&format!("{what} could not be completed: {error}"));
        }
        completed
    }

    /// Notes that space was made free.
    pub(crate) fn note_freed(&self) {
        self.relief.freed.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Format> Op<'_, F> {
    /// Announces a change that others see before [`Self::put`] tells of it, such as that of an extended attribute: an
    /// fsync of the inode from now on tells the format again, and reaches a commit point after the change.
    pub(crate) fn announce(&self, inode: &Shared<F>) {
        self.ops.unput(inode, Unput::Attributes, |_| ());
    }

    /// Tells the format the attributes of an inode as they are.
    pub(crate) fn put_known(&mut self, inode: &Shared<F>) -> Result<()> {
        self.tell(inode, None::<fn(&mut Attr)>, |op, attr, disk_size| op.inode_put(&inode.node, attr, disk_size))
    }

    /// Changes attributes and tells the format. Nothing changes if the format cannot take it. `change` runs twice, and
    /// the inode's lock is held exclusively.
    pub(crate) fn put(&mut self, inode: &Shared<F>, change: impl Fn(&mut Attr)) -> Result<()> {
        self.tell(inode, Some(change), |op, attr, disk_size| op.inode_put(&inode.node, attr, disk_size))
    }

    /// Puts attributes as [`Self::put`] does, after `first`, which drops pages that the change makes needless, and
    /// before `last`, which changes the map. Meanwhile no other op tells of the inode, and a sync waits: it no longer
    /// finds the pages, and has to make the change durable instead. Returns `None`, without a change, if `first`
    /// returns false.
    pub(crate) fn put_between<R>(
        &mut self,
        inode: &Shared<F>,
        first: impl FnOnce() -> bool,
        change: impl Fn(&mut Attr),
        last: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<Option<R>> {
        self.announce(inode);
        let _put = inode.put.lock();
        if !first() {
            return Ok(None);
        }
        self.tell_locked(inode, Some(change), |op, attr, disk_size| op.inode_put(&inode.node, attr, disk_size))?;
        last(self).map(Some)
    }

    /// Puts attributes as [`Self::put`] does, for an inode whose last name has just gone.
    pub(crate) fn put_orphan(&mut self, inode: &Shared<F>, change: impl Fn(&mut Attr)) -> Result<()> {
        self.tell(inode, Some(change), |op, attr, _| op.inode_orphan(&inode.node, attr))
    }

    fn tell<C: Fn(&mut Attr)>(
        &mut self,
        inode: &Shared<F>,
        change: Option<C>,
        tell: impl FnOnce(&mut F::Op<'_>, &Attr, u64) -> Result<()>,
    ) -> Result<()> {
        let _put = inode.put.lock();
        self.tell_locked(inode, change, tell)
    }

    /// Tells the format an inode's attributes. `put` of the inode is locked.
    fn tell_locked<C: Fn(&mut Attr)>(
        &mut self,
        inode: &Shared<F>,
        change: Option<C>,
        tell: impl FnOnce(&mut F::Op<'_>, &Attr, u64) -> Result<()>,
    ) -> Result<()> {
        let (attr, disk_size, changes) = {
            let pages = inode.pages.lock();
            let state = inode.state.lock();
            if state.freed {
                // Reaped since the caller looked: its number may belong to another file soon.
                return Ok(());
            }
            let mut attr = state.attr.clone();
            if let Some(change) = &change {
                change(&mut attr);
            }
            let disk_size = pages.disk_size(attr.size, state.disk_size, self.ops.block_bytes());
            (attr, disk_size, state.changes)
        };
        tell(&mut **self, &attr, disk_size)?;
        // The rest of the size follows when its data have been written.
        let whole = disk_size >= attr.size || inode.kind != FileKind::Regular;
        let mut state = inode.state.lock();
        let unchanged = state.changes == changes;
        state.disk_size = disk_size;
        if let Some(change) = change {
            change(&mut state.attr);
            // Visible, but not durable before this op's commit point: an fsync of the inode now must tell the format
            // again.
            state.note_change(Unput::Attributes);
        }
        if !whole {
            state.unput = Unput::Attributes;
            self.ops.list_unput(&mut state, inode);
        }
        let changes = (whole && unchanged).then_some(state.changes);
        drop(state);
        self.told.push(Told { inode: Arc::clone(inode), changes });
        Ok(())
    }

    /// Ends the op and notes its commit point in every inode it concerned: those whose attributes it told, and
    /// `others`.
    pub(crate) fn end(mut self, others: &[&Inode<F::Node>]) {
        let op = self.op.take().expect("an op ends once");
        let seal = op.end();
        self.ops.uncommitted.store(true, Ordering::Relaxed);
        if self.kind == OpKind::Unmap {
            self.ops.note_freed();
        }
        for inode in others {
            inode.will_be_durable_at(seal);
        }
        for told in std::mem::take(&mut self.told) {
            let mut state = told.inode.state.lock();
            state.seal = state.seal.max(seal);
            if told.changes == Some(state.changes) {
                state.unput = Unput::Nothing;
                if std::mem::take(&mut state.unput_listed) && !state.freed {
                    self.ops.dirty.lock().forget_unput(told.inode.ino);
                }
            }
        }
    }
}

impl<F: Format> Drop for Op<'_, F> {
    /// Marks the attributes that a failed op has told as not told: they have no commit point.
    fn drop(&mut self) {
        if self.calm.has_ended() {
            self.ops.format.fail(&panicked_in(&format!("an op ({:?})", self.kind)));
            return;
        }
        for told in std::mem::take(&mut self.told) {
            let mut state = told.inode.state.lock();
            state.note_change(Unput::Attributes);
            self.ops.list_unput(&mut state, &told.inode);
        }
    }
}
