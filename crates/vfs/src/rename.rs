//! Rename, in all its cases.
//!
//! Locks, in order: the rename lock, if there are two parents or if both names lead to directories; the parents, the
//! ancestor first, unrelated ones by number; then the inodes that the names lead to, directories before others, by
//! number.
//!
//! No directories are waited for in a circle. A task without the rename lock that holds a directory waits for one in
//! it, so a chain of such tasks leads down the tree. It closes a circle only with the one task that has the rename
//! lock, if that waits for a directory above one that it holds. It does not: it locks ancestors first, and fails before
//! it locks an inode above one of the parents. Two tasks that lock unrelated directories could close one, in whatever
//! order: numbers do not follow the tree.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_runtime::Timestamp;
use moafs_runtime::lock::WriteGuard;
use smallvec::SmallVec;

use crate::admission::Admitted;
use crate::calls::{NewFile, RenameMode};
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::{Format, FormatOp, OpKind, SpaceRequest, Target};
use crate::inode::{Inode, Shared};
use crate::names::{Birth, Namespace, dot_dot, is_dot, links_after};
use crate::op::Op;
use crate::perm::W;
use crate::types::{FileKind, Ino, Name};

/// The most steps from a directory to the root; more is a cycle.
const DEPTH_MAX: usize = 1 << 16;

/// The inodes that had the names of a rename.
pub(crate) type Moved = SmallVec<[Ino; 2]>;

/// One side of a rename.
struct Side<'a, N> {
    dir: &'a Arc<Inode<N>>,
    name: &'a Name,
}

impl<N> Clone for Side<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Side<'_, N> {}

/// A rename whose locks are held and whose rules were checked.
struct Move<'a, N> {
    from: Side<'a, N>,
    to: Side<'a, N>,
    source: &'a Arc<Inode<N>>,
    victim: Option<&'a Arc<Inode<N>>>,
    now: Timestamp,
}

impl<N> Move<'_, N> {
    fn crosses(&self) -> bool {
        self.from.dir.ino != self.to.dir.ino
    }
}

impl<F: Format> Namespace<F> {
    /// Renames; returns the inodes that had the names.
    pub(crate) fn rename(
        &self,
        who: &Credentials,
        from: (Ino, &Name),
        to: (Ino, &Name),
        mode: RenameMode,
    ) -> Result<Moved> {
        let _gate = self.enter_changing()?;
        if is_dot(from.1) || is_dot(to.1) {
            return Err(Error::Posix(libc::EINVAL));
        }
        let (from_dir, to_dir) = (self.directory(from.0)?, self.directory(to.0)?);
        let from = Side { dir: &from_dir, name: from.1 };
        let to = Side { dir: &to_dir, name: to.1 };
        let moved = match mode {
            RenameMode::Whiteout => {
                let mut admission = self.admit_inode(who, 3 * self.shape.name_meta_blocks)?;
                self.rename_admitted(who, from, to, mode, &mut admission)?
            }
            _ => {
                let need = SpaceRequest { meta_blocks: 2 * self.shape.name_meta_blocks, ..SpaceRequest::default() };
                self.change_names(who, need, |admission| self.rename_admitted(who, from, to, mode, admission))?
            }
        };
        self.tally.renames.fetch_add(1, Ordering::Relaxed);
        self.reap_surplus();
        Ok(moved)
    }

    /// Renames with space reserved.
    fn rename_admitted(
        &self,
        who: &Credentials,
        from: Side<'_, F::Node>,
        to: Side<'_, F::Node>,
        mode: RenameMode,
        admission: &mut Admitted<'_, F>,
    ) -> Result<Moved> {
        let mut alone = from.dir.ino != to.dir.ino;
        loop {
            let no_other = alone.then(|| self.rename.lock());
            if let Some(moved) = self.rename_in(who, from, to, mode, alone, admission)? {
                return Ok(moved);
            }
            alone = true;
            drop(no_other);
            self.format.settle_directories()?;
        }
    }

    /// Renames, `alone` if the rename lock is held. `None` if it is missing, or if directories may not move yet.
    fn rename_in(
        &self,
        who: &Credentials,
        from: Side<'_, F::Node>,
        to: Side<'_, F::Node>,
        mode: RenameMode,
        alone: bool,
        admission: &mut Admitted<'_, F>,
    ) -> Result<Option<Moved>> {
        let crosses = from.dir.ino != to.dir.ino;
        let from_first = !crosses || self.goes_first(from.dir, to.dir)?;
        let (first, second) = if from_first { (from.dir, to.dir) } else { (to.dir, from.dir) };
        let _first = first.lock.write();
        let _second = crosses.then(|| second.lock.write());
        self.check_dir_alive(from.dir)?;
        self.check_dir_alive(to.dir)?;
        let (_, source) = self.child(from.dir, from.name)?.ok_or(Error::Posix(libc::ENOENT))?;
        let victim = self.child(to.dir, to.name)?.map(|(_, inode)| inode);
        let victim_moves = mode == RenameMode::Exchange && victim.as_ref().is_some_and(|v| v.is_dir());
        let two_dirs = source.is_dir() && victim.as_ref().is_some_and(|v| v.is_dir());
        if two_dirs && !alone {
            return Ok(None);
        }
        if (source.is_dir() || victim_moves) && self.format.is_unsettled() {
            return Ok(None);
        }
        match (&victim, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Error::Posix(libc::EEXIST)),
            (None, RenameMode::Exchange) => return Err(Error::Posix(libc::ENOENT)),
            (Some(victim), _) if victim.ino == source.ino => return Ok(Some(Moved::new())),
            _ => {}
        }
        // This also keeps the inodes that are locked next below the directories that are locked already.
        self.check_no_cycle(from.dir, to.dir, &source, victim.as_ref(), mode)?;
        let _children = lock_children(&source, victim.as_ref());
        let movement = Move { from, to, source: &source, victim: victim.as_ref(), now: self.timestamp() };
        self.check_rename(who, &movement, mode)?;
        // The name of a file that is replaced leads to another one; a directory may get a name more for a while.
        if victim.is_none() || source.is_dir() || mode == RenameMode::Exchange {
            self.check_room(admission, to.dir, to.name)?;
        }
        if mode == RenameMode::Exchange {
            self.check_room(admission, from.dir, from.name)?;
        }
        match mode {
            RenameMode::Exchange => self.exchange(&movement, admission)?,
            RenameMode::Whiteout => {
                let new = NewFile { kind: FileKind::CharDevice, perm: 0, umask: 0, rdev: 0, target: None };
                self.replace(&movement, Some(self.birth(who, from.dir, true, &new)?), admission)?;
            }
            _ => self.replace(&movement, None, admission)?,
        }
        self.refresh_size(from.dir);
        self.refresh_size(to.dir);
        Ok(Some([Some(&source), victim.as_ref()].into_iter().flatten().map(|inode| inode.ino).collect()))
    }

    /// Returns true if `a` is to be locked before `b`: it is an ancestor, or unrelated and has the smaller number.
    fn goes_first(&self, a: &Shared<F>, b: &Shared<F>) -> Result<bool> {
        if self.is_ancestor(a.ino, b)? {
            return Ok(true);
        }
        Ok(!self.is_ancestor(b.ino, a)? && a.ino < b.ino)
    }

    /// Returns true if `ancestor` is `dir` or above it. The rename lock is held.
    fn is_ancestor(&self, ancestor: Ino, dir: &Shared<F>) -> Result<bool> {
        let mut at = Arc::clone(dir);
        for _ in 0..DEPTH_MAX {
            if at.ino == ancestor {
                return Ok(true);
            }
            if at.ino == self.shape.root {
                return Ok(false);
            }
            let Some(up) = self.format.lookup(&at.node, dot_dot())? else { return Ok(false) };
            if up.ino == at.ino {
                return Ok(false);
            }
            at = match self.directory(up.ino) {
                // Only a removed directory has a parent that is gone: names neither come to it nor leave it.
                Err(Error::Stale(_)) => return Err(Error::Posix(libc::ENOENT)),
                found => found?,
            };
        }
        Err(Error::Damaged {
            structure: format!("directory {}", dir.ino),
            block: None,
            problem: "its parents lead in a circle".into(),
        })
    }

    /// Checks that no directory ends up below itself (EINVAL) or replaces one that it lies in (ENOTEMPTY).
    fn check_no_cycle(
        &self,
        from: &Shared<F>,
        to: &Shared<F>,
        source: &Shared<F>,
        victim: Option<&Shared<F>>,
        mode: RenameMode,
    ) -> Result<()> {
        if from.ino == to.ino {
            self.check_is_below(from, source)?;
            return victim.map_or(Ok(()), |victim| self.check_is_below(to, victim));
        }
        if source.is_dir() && self.is_ancestor(source.ino, to)? {
            return Err(Error::Posix(libc::EINVAL));
        }
        let Some(victim) = victim.filter(|v| v.is_dir()) else { return Ok(()) };
        if !self.is_ancestor(victim.ino, from)? {
            return Ok(());
        }
        Err(Error::Posix(if mode == RenameMode::Exchange { libc::EINVAL } else { libc::ENOTEMPTY }))
    }

    fn check_rename(&self, who: &Credentials, movement: &Move<'_, F::Node>, mode: RenameMode) -> Result<()> {
        let Move { from, to, source, victim, .. } = movement;
        self.check_may_remove(who, from.dir, source)?;
        match victim {
            Some(victim) => self.check_may_remove(who, to.dir, victim)?,
            None => self.check_may_add(who, to.dir)?,
        }
        if source.is_dir() && movement.crosses() {
            // The directory's `..` changes.
            self.check(who, source, W)?;
        }
        let exchange = mode == RenameMode::Exchange;
        if let Some(victim) = victim.filter(|v| exchange && v.is_dir() && movement.crosses()) {
            self.check(who, victim, W)?;
        }
        if let (Some(victim), false) = (victim, exchange) {
            match (source.is_dir(), victim.is_dir()) {
                (true, false) => return Err(Error::Posix(libc::ENOTDIR)),
                (false, true) => return Err(Error::Posix(libc::EISDIR)),
                (true, true) => self.check_removable_dir(victim)?,
                (false, false) => {}
            }
        }
        self.check_parent_links(movement, exchange)
    }

    /// Checks the links of both parents: a directory that moves brings its new parent a link and takes one from the
    /// old.
    fn check_parent_links(&self, movement: &Move<'_, F::Node>, exchange: bool) -> Result<()> {
        let victim_is_dir = movement.victim.is_some_and(|v| v.is_dir());
        let come = i64::from(movement.source.is_dir()) - i64::from(victim_is_dir);
        let gone = if exchange { come } else { i64::from(movement.source.is_dir()) };
        if !movement.crosses() {
            return self.check_subdirectories(movement.to.dir, come - gone);
        }
        self.check_subdirectories(movement.from.dir, -gone)?;
        self.check_subdirectories(movement.to.dir, come)?;
        let full = |dir: &Shared<F>| dir.nlink() >= self.shape.links_max;
        let to_gains = movement.source.is_dir() && !victim_is_dir;
        let from_gains = exchange && victim_is_dir && !movement.source.is_dir();
        if (to_gains && full(movement.to.dir)) || (from_gains && full(movement.from.dir)) {
            return Err(Error::Posix(libc::EMLINK));
        }
        Ok(())
    }

    /// Sets the new name first, then removes the old one: a crash never loses both. Then, if asked for, a new inode
    /// comes in the old one's place.
    fn replace(
        &self,
        movement: &Move<'_, F::Node>,
        whiteout: Option<Birth>,
        admission: &mut crate::format::Admission,
    ) -> Result<()> {
        let Move { from, to, source, victim, .. } = movement;
        let mut op = self.begin(OpKind::Rename, admission)?;
        let made = whiteout.as_ref().map(|birth| self.new_inode(&mut op, from.dir, birth, None)).transpose()?;
        let whiteout = made.zip(whiteout);
        if let Err(error) = self.set_new_name(&mut op, movement, whiteout.as_ref()) {
            if let Some((whiteout, _)) = whiteout {
                self.take_back(op, from.dir, whiteout);
            }
            return Err(error);
        }
        let whiteout = whiteout.map(|(whiteout, _)| whiteout);
        let completed = self.complete_replacement(&mut op, movement, whiteout.as_ref());
        self.fail_if_half_done("a rename", completed)?;
        op.end(&[]);
        if let Some(whiteout) = whiteout {
            self.table.insert(whiteout);
        }
        self.set_home(source, to.dir.ino);
        if let Some(victim) = victim {
            self.note_unlinked(victim);
        }
        Ok(())
    }

    /// Completes the inode of a whiteout, and gives the source its new name: up to here the op can be taken back.
    fn set_new_name(
        &self,
        op: &mut Op<'_, F>,
        movement: &Move<'_, F::Node>,
        whiteout: Option<&(Shared<F>, Birth)>,
    ) -> Result<()> {
        let Move { from, to, source, victim, .. } = movement;
        if let Some((inode, birth)) = whiteout {
            self.set_acls(op, inode, birth)?;
        }
        op.name_moves(&source.node, (&from.dir.node, from.name), (&to.dir.node, to.name))?;
        let target = Target { ino: source.ino, kind: source.kind, node: &*source.node };
        match victim {
            Some(_) => op.name_point(&to.dir.node, to.name, target),
            None => op.name_add(&to.dir.node, to.name, target),
        }
    }

    /// Makes the changes that follow the new name: `..`, the removal of the old one, the whiteout, attributes.
    fn complete_replacement(
        &self,
        op: &mut Op<'_, F>,
        movement: &Move<'_, F::Node>,
        whiteout: Option<&Shared<F>>,
    ) -> Result<()> {
        let Move { from, to, source, victim, now } = movement;
        let now = *now;
        if source.is_dir() && movement.crosses() {
            self.repoint_parent(op, source, to.dir)?;
        }
        op.name_remove(&from.dir.node, from.name, &source.node)?;
        if let Some(whiteout) = whiteout {
            let target = Target { ino: whiteout.ino, kind: whiteout.kind, node: &*whiteout.node };
            op.name_add(&from.dir.node, from.name, target)?;
            op.put_known(whiteout)?;
        }
        op.put(source, |attr| attr.ctime = now)?;
        let victim_is_dir = victim.is_some_and(|v| v.is_dir());
        if let Some(victim) = victim {
            if victim_is_dir {
                op.put_orphan(victim, |attr| {
                    attr.nlink = 0;
                    attr.ctime = now;
                })?;
            } else {
                self.drop_link(op, victim, now)?;
            }
        }
        let gone = i64::from(source.is_dir());
        let come = gone - i64::from(victim_is_dir);
        self.settle_parents(op, movement, -gone, come)
    }

    fn exchange(&self, movement: &Move<'_, F::Node>, admission: &mut crate::format::Admission) -> Result<()> {
        let Move { from, to, source, victim, .. } = movement;
        let Some(other) = victim else { return Err(Error::Posix(libc::ENOENT)) };
        let mut op = self.begin(OpKind::Exchange, admission)?;
        // A directory's `..` changes while it has two names: then it always tells of one of them.
        let mut places = [(*source, to), (*other, from)];
        // The name that changes first leaves the other inode without its own for a while: not a directory, if only one
        // is.
        if other.is_dir() && !source.is_dir() {
            places.reverse();
        }
        let [(first, at), (second, beside)] = places;
        op.name_moves(&first.node, (&beside.dir.node, beside.name), (&at.dir.node, at.name))?;
        self.point(&mut op, first, at)?;
        let completed = self.complete_exchange(&mut op, movement, (first, at), (second, beside));
        self.fail_if_half_done("an exchange", completed)?;
        op.end(&[]);
        self.set_home(source, to.dir.ino);
        self.set_home(other, from.dir.ino);
        Ok(())
    }

    /// Makes the changes that follow the change of the first name.
    fn complete_exchange(
        &self,
        op: &mut Op<'_, F>,
        movement: &Move<'_, F::Node>,
        (first, at): (&Shared<F>, &Side<'_, F::Node>),
        (second, beside): (&Shared<F>, &Side<'_, F::Node>),
    ) -> Result<()> {
        if first.is_dir() && movement.crosses() {
            self.repoint_parent(op, first, at.dir)?;
        }
        self.point(op, second, beside)?;
        if second.is_dir() && movement.crosses() {
            self.repoint_parent(op, second, beside.dir)?;
        }
        for inode in [first, second] {
            op.put(inode, |attr| attr.ctime = movement.now)?;
        }
        let moved = i64::from(movement.source.is_dir());
        let come = moved - i64::from(movement.victim.is_some_and(|other| other.is_dir()));
        self.settle_parents(op, movement, -come, come)
    }

    fn point(&self, op: &mut Op<'_, F>, inode: &Shared<F>, at: &Side<'_, F::Node>) -> Result<()> {
        let target = Target { ino: inode.ino, kind: inode.kind, node: &*inode.node };
        op.name_point(&at.dir.node, at.name, target)
    }

    fn repoint_parent(&self, op: &mut Op<'_, F>, dir: &Shared<F>, parent: &Shared<F>) -> Result<()> {
        op.name_point(&dir.node, dot_dot(), Target { ino: parent.ino, kind: parent.kind, node: &*parent.node })
    }

    /// Updates the times of both parents, and their links by the subdirectories that each gains.
    fn settle_parents(
        &self,
        op: &mut Op<'_, F>,
        movement: &Move<'_, F::Node>,
        from_gains: i64,
        to_gains: i64,
    ) -> Result<()> {
        let now = movement.now;
        let mut settle = |dir: &Shared<F>, gains: i64| {
            op.put(dir, |attr| {
                attr.nlink = links_after(&self.shape, attr.nlink, gains);
                (attr.mtime, attr.ctime) = (now, now);
            })
        };
        if !movement.crosses() {
            return settle(movement.to.dir, from_gains + to_gains);
        }
        settle(movement.from.dir, from_gains)?;
        settle(movement.to.dir, to_gains)
    }
}

/// Locks the inodes that the names lead to: directories first, then by number.
fn lock_children<'a, N>(source: &'a Arc<Inode<N>>, victim: Option<&'a Arc<Inode<N>>>) -> Vec<WriteGuard<'a, ()>> {
    let mut children = vec![source];
    children.extend(victim);
    children.sort_by_key(|inode| (!inode.is_dir(), inode.ino));
    children.into_iter().map(|inode| inode.lock.write()).collect()
}
