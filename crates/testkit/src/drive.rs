//! Applies operations to a mounted volume and to the model, and compares every answer.

use std::collections::BTreeMap;

use moafs_disk::SharedDisk;
use moafs_vfs::api::{NewFile, SetAttr, SetTime};
use moafs_vfs::defrag::DefragOptions;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Error, Format, Result, Vfs};

use crate::model::{Model, NodeId, Outcome};
use crate::ops::{Bytes, Op, Paging};
use crate::paging::Pager;
use crate::tree;

/// A volume that can be unmounted and mounted again.
pub trait Mount {
    /// The format of the volume.
    type Format: Format;
    /// Mounts the volume.
    ///
    /// # Errors
    /// As the format refuses it.
    fn mount(&self) -> Result<Vfs<Self::Format>>;
    /// Returns the disk of the volume, which holds swapped pages as well.
    fn disk(&self) -> SharedDisk;
}

/// Errors that are accepted although the model has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tolerance {
    /// ENOSPC is accepted at any step.
    pub full: bool,
    /// EIO and EROFS are accepted at any step.
    pub broken: bool,
}

/// A volume and its model, side by side.
pub struct Driver<M: Mount> {
    mount: M,
    vfs: Option<Vfs<M::Format>>,
    pager: Option<Pager>,
    /// The expected tree.
    pub model: Model,
    /// Inode numbers of nodes, as given when they were made.
    pub inos: BTreeMap<NodeId, Ino>,
    tolerance: Tolerance,
    who: Credentials,
    /// Operations refused for lack of space.
    pub refused: u64,
}

type Said<T> = std::result::Result<T, String>;

impl<M: Mount> Driver<M> {
    /// Mounts a fresh volume, which holds nothing but `lost+found`.
    ///
    /// # Errors
    /// If it does not mount.
    pub fn new(mount: M, tolerance: Tolerance) -> Said<Driver<M>> {
        let vfs = mount.mount().map_err(|error| format!("mount: {error}"))?;
        let shape = vfs.shape();
        let root = shape.root;
        let root_perm = vfs.stat(root).map_err(|error| format!("stat of the root: {error}"))?.attr.perm;
        let model = Model::new(root_perm, shape.beyond_eof);
        let inos = BTreeMap::from([(NodeId::ROOT, root)]);
        Ok(Driver { mount, vfs: Some(vfs), pager: None, model, inos, tolerance, who: Credentials::root(), refused: 0 })
    }

    /// Returns the mounted volume.
    pub fn vfs(&self) -> &Vfs<M::Format> {
        self.vfs.as_ref().expect("the volume is mounted")
    }

    /// Creates a driver for a directory of a mounted volume, which holds the tree of the model.
    pub fn below(
        mount: M,
        vfs: Vfs<M::Format>,
        model: Model,
        inos: BTreeMap<NodeId, Ino>,
        tolerance: Tolerance,
    ) -> Self {
        Driver { mount, vfs: Some(vfs), pager: None, model, inos, tolerance, who: Credentials::root(), refused: 0 }
    }

    /// Applies one operation to volume and model.
    ///
    /// # Errors
    /// If the answers differ, in words.
    pub fn step(&mut self, op: &Op) -> Said<()> {
        match op {
            Op::Remount => return self.remount(),
            Op::Page(paging) => return self.page(*paging).map_err(|said| format!("{op:?}: {said}")),
            _ => {}
        }
        let before = self.model.clone();
        let should = self.model.apply(op);
        let is = self.perform(&before, op);
        match (&should, &is) {
            (Ok(Outcome::Made(id)), Ok(Got::Made(ino))) => {
                self.inos.insert(*id, *ino);
                self.settle_hold(*id, *ino);
                Ok(())
            }
            (Ok(Outcome::Bytes(should)), Ok(Got::Bytes(is))) => self.same_bytes(op, should, is),
            (Ok(Outcome::Count(should)), Ok(Got::Count(is))) if should != is => {
                Err(format!("{op:?}: answers {is}, should be {should}"))
            }
            (Ok(_), Ok(_)) => Ok(()),
            (Err(should), Err(is)) if should.0 == is.errno() => Ok(()),
            (_, Err(error)) if self.tolerated(op, &before, error) => {
                self.refused += 1;
                self.refuse(op, before)
            }
            (Ok(_), Err(error)) => Err(format!("{op:?}: fails: {error}")),
            (Err(should), Ok(_)) => Err(format!("{op:?}: succeeds, should fail: {should}")),
            (Err(should), Err(is)) => Err(format!("{op:?}: fails with: {is}; should fail with: {should}")),
        }
    }

    /// Compares the whole tree.
    ///
    /// # Errors
    /// All differences, in words.
    pub fn verify(&self) -> Said<()> {
        let tree = tree::of_vfs(self.vfs())?;
        let differences = tree::differences(&self.model, &tree);
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
    }

    /// Unmounts cleanly, which frees held orphans.
    ///
    /// # Errors
    /// If unmounting fails.
    pub fn unmount(&mut self) -> Said<()> {
        self.page(Paging::Off)?;
        self.release_all();
        match self.vfs.take() {
            Some(vfs) => vfs.close().map_err(|error| format!("unmount: {error}")),
            None => Ok(()),
        }
    }

    /// Drops the volume without unmounting it, as a killed process does, and returns the model.
    pub fn abandon(mut self) -> Model {
        self.pager.take();
        self.vfs.take();
        self.model
    }

    /// Returns the swap, if there is one.
    pub fn pager(&self) -> Option<&Pager> {
        self.pager.as_ref()
    }

    fn page(&mut self, paging: Paging) -> Said<()> {
        match (paging, &mut self.pager) {
            (Paging::On { pages, area_bytes }, None) => {
                self.pager = Pager::on(self.vfs(), self.mount.disk(), pages, area_bytes)?;
                Ok(())
            }
            (Paging::Off, _) => match self.pager.take() {
                Some(pager) => pager.off(self.vfs()),
                None => Ok(()),
            },
            (Paging::On { .. }, Some(_)) | (_, None) => Ok(()),
            (paging, Some(pager)) => pager.step(paging),
        }
    }

    fn remount(&mut self) -> Said<()> {
        self.unmount()?;
        let vfs = self.mount.mount().map_err(|error| format!("mount again: {error}"))?;
        self.vfs = Some(vfs);
        self.verify().map_err(|said| format!("after a clean unmount: {said}"))
    }

    /// Releases every handle.
    pub fn release_all(&mut self) {
        // The model alone knows a file that was not made because of a device error.
        let held = self.model.living().filter(|(id, n)| n.held && self.inos.contains_key(id));
        let held: Vec<NodeId> = held.map(|(id, _)| id).collect();
        for id in held {
            let before = self.model.clone();
            let op = Op::Release { node: id };
            if self.model.apply(&op).is_ok() {
                // Releasing a hold cannot fail.
                drop(self.perform(&before, &op));
            }
        }
    }

    /// Releases the hold of a new inode, unless the model keeps it.
    fn settle_hold(&self, id: NodeId, ino: Ino) {
        if !self.model.node(id).held {
            self.vfs().forget(ino, 1);
        }
    }

    fn same_bytes(&self, op: &Op, should: &[u8], is: &[u8]) -> Said<()> {
        if should == is {
            return Ok(());
        }
        let at = should.iter().zip(is).position(|(a, b)| a != b).unwrap_or(should.len().min(is.len()));
        let shown = is.get(at..).map_or_else(String::new, |rest| crate::stamp::describe(&rest[..rest.len().min(512)]));
        Err(format!("{op:?}: {} bytes, should be {}; first difference at {at}: {shown}", is.len(), should.len()))
    }

    fn tolerated(&self, op: &Op, before: &Model, error: &Error) -> bool {
        match error.errno() {
            libc::ENOSPC => self.tolerance.full || self.xattrs_may_be_full(op, before),
            libc::EIO | libc::EROFS => self.tolerance.broken,
            _ => false,
        }
    }

    /// Returns true if an attribute may be refused: ext keeps at most one block of attributes per inode.
    fn xattrs_may_be_full(&self, op: &Op, before: &Model) -> bool {
        let Op::SetXattr { node, name, len, .. } = op else { return false };
        let others: usize = before.node(*node).xattrs.iter().map(|(name, value)| name.len() + value.len() + 24).sum();
        others + name.len() + len + 64 > self.vfs().shape().block_size as usize / 2
    }

    /// Undoes an operation that did not happen in the model; only bytes may have changed partly.
    fn refuse(&mut self, op: &Op, before: Model) -> Said<()> {
        let changed = match op {
            Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Copy { to: node, .. }
            | Op::Truncate { node, .. } => Some(*node),
            _ => None,
        };
        let after = std::mem::replace(&mut self.model, before);
        let Some(node) = changed else { return Ok(()) };
        self.adopt_partial(node, &after, op)
    }

    /// Checks that every sector of a partly written file is the old or the new one, and takes over the file as it is.
    fn adopt_partial(&mut self, node: NodeId, after: &Model, op: &Op) -> Said<()> {
        let opened = self.open(&self.model, node).map_err(|error| format!("{op:?}: after refusal: {error}"))?;
        let size =
            self.vfs().stat(opened.ino).map_err(|error| format!("{op:?}: stat after refusal: {error}"))?.attr.size;
        let (old, new) = (&self.model.node(node).content, &after.node(node).content);
        let (low, high) = (old.size().min(new.size()), old.size().max(new.size()));
        if !(low..=high).contains(&size) {
            return Err(format!("{op:?}: refused, size is now {size}, was {}", old.size()));
        }
        let mut now = crate::content::Content::default();
        for (start, len) in old.ranges().into_iter().chain(new.ranges()) {
            let mut piece = vec![0; len.min(size.saturating_sub(start)) as usize];
            let n = self
                .vfs()
                .read(opened.ino, start, &mut piece)
                .map_err(|error| format!("{op:?}: read after refusal: {error}"))?;
            check_partial(old, new, start, &piece[..n]).map_err(|said| format!("{op:?}: refused: {said}"))?;
            now.write(start, &piece[..n]);
        }
        now.resize(size);
        self.close(opened);
        let node = self.model.node_mut(node);
        (node.content, node.mtime) = (now, None);
        Ok(())
    }

    fn open(&self, model: &Model, id: NodeId) -> Result<Opened> {
        if model.node(id).held || id == NodeId::ROOT {
            let ino = self.inos[&id];
            return Ok(Opened { ino, holds: Vec::new() });
        }
        let Some(path) = model.path_of(id) else { return Err(Error::Posix(libc::ENOENT)) };
        let mut opened = Opened { ino: self.inos[&NodeId::ROOT], holds: Vec::new() };
        for name in &path {
            match self.vfs().lookup(&self.who, opened.ino, name_of(name)) {
                Ok(stat) => {
                    opened.ino = stat.ino;
                    opened.holds.push(stat.ino);
                }
                Err(error) => {
                    self.close(opened);
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    fn close(&self, opened: Opened) {
        for ino in opened.holds {
            self.vfs().forget(ino, 1);
        }
    }

    fn perform(&self, model: &Model, op: &Op) -> Result<Got> {
        let mut opened = Vec::new();
        for id in nodes_of(op) {
            match self.open(model, id) {
                Ok(node) => opened.push(node),
                Err(error) => {
                    opened.into_iter().for_each(|node| self.close(node));
                    return Err(error);
                }
            }
        }
        let inos: Vec<Ino> = opened.iter().map(|node| node.ino).collect();
        let got = self.call(model, op, &inos);
        opened.into_iter().for_each(|node| self.close(node));
        got
    }

    fn call(&self, model: &Model, op: &Op, inos: &[Ino]) -> Result<Got> {
        let (vfs, who) = (self.vfs(), &self.who);
        match op {
            Op::Create { name, kind, perm, rdev, .. } => {
                let new = NewFile { kind: *kind, perm: *perm, umask: 0, rdev: *rdev, target: None };
                return vfs.create(who, inos[0], name_of(name), &new).map(|stat| Got::Made(stat.ino));
            }
            Op::Symlink { name, target, .. } => {
                let new = NewFile { kind: FileKind::Symlink, perm: 0o777, umask: 0, rdev: 0, target: Some(target) };
                return vfs.create(who, inos[0], name_of(name), &new).map(|stat| Got::Made(stat.ino));
            }
            Op::Tmpfile { perm, .. } => {
                let new = NewFile { kind: FileKind::Regular, perm: *perm, umask: 0, rdev: 0, target: None };
                return vfs.tmpfile(who, inos[0], &new).map(|stat| Got::Made(stat.ino));
            }
            Op::Link { name, .. } => {
                let stat = vfs.link(who, inos[0], inos[1], name_of(name))?;
                vfs.forget(stat.ino, 1);
            }
            Op::Unlink { name, .. } => vfs.unlink(who, inos[0], name_of(name))?,
            Op::Rmdir { name, .. } => vfs.rmdir(who, inos[0], name_of(name))?,
            Op::Rename { from, to, mode } => {
                vfs.rename(who, (inos[0], name_of(&from.1)), (inos[1], name_of(&to.1)), *mode)?;
            }
            Op::Write { node, offset, len, append } => {
                return self.write(model, *node, inos[0], (*offset, *len, *append));
            }
            Op::Truncate { size, .. } => self.set(inos[0], SetAttr { size: Some(*size), ..SetAttr::default() })?,
            Op::Allocate { offset, len, how, .. } => vfs.allocate(who, inos[0], *offset, *len, *how)?,
            Op::Copy { from_offset, to_offset, len, .. } => {
                let copied = self.copy((inos[0], *from_offset), (inos[1], *to_offset), *len)?;
                return Ok(Got::Count(copied));
            }
            Op::SetPerm { perm, .. } => self.set(inos[0], SetAttr { perm: Some(*perm), ..SetAttr::default() })?,
            Op::SetOwner { uid, gid, .. } => {
                self.set(inos[0], SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })?;
            }
            Op::SetMtime { mtime, .. } => {
                self.set(inos[0], SetAttr { mtime: Some(SetTime::To(*mtime)), ..SetAttr::default() })?;
            }
            Op::SetXattr { name, len, mode, .. } => {
                vfs.set_xattr(who, inos[0], name, &Model::xattr_value(name, *len), *mode)?;
            }
            Op::RemoveXattr { name, .. } => vfs.remove_xattr(who, inos[0], name)?,
            Op::Hold { .. } => vfs.hold(inos[0])?,
            Op::Release { .. } => vfs.forget(inos[0], 1),
            Op::Read { offset, len, .. } => {
                let mut into = vec![0; *len];
                let n = vfs.read(inos[0], *offset, &mut into)?;
                into.truncate(n);
                return Ok(Got::Bytes(into));
            }
            Op::Fsync { data_only, .. } => vfs.fsync(inos[0], *data_only)?,
            Op::Sync => vfs.sync()?,
            Op::BackgroundStep => vfs.run_background_step(),
            Op::Defragment => {
                vfs.defragment(vfs.shape().root, &DefragOptions::default(), &mut |_| true)?;
            }
            Op::Trim => drop(vfs.trim(0..u64::MAX, 0, &|| false)?),
            Op::Shrink => vfs.shrink(0),
            Op::Remount | Op::Page(_) => unreachable!("remounting and paging are the driver's own affair"),
        }
        Ok(Got::Done)
    }

    fn write(&self, model: &Model, node: NodeId, ino: Ino, (offset, len, append): (u64, usize, bool)) -> Result<Got> {
        let at = if append { model.node(node).content.size() } else { offset };
        let data = crate::stamp::bytes(model.label(node), at, len, model.generation());
        self.vfs().write(&self.who, ino, offset, &data, append).map(Got::Count)
    }

    /// Copies until no more is copied, as programs do.
    fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let mut copied = 0;
        while copied < len {
            let n = self.vfs().copy_range(&self.who, (from.0, from.1 + copied), (to.0, to.1 + copied), len - copied)?;
            if n == 0 {
                break;
            }
            copied += n;
        }
        Ok(copied)
    }

    fn set(&self, ino: Ino, set: SetAttr) -> Result<()> {
        self.vfs().set_attr(&self.who, ino, &set).map(drop)
    }
}

/// An inode with the holds on the path to it.
struct Opened {
    ino: Ino,
    holds: Vec<Ino>,
}

enum Got {
    Done,
    Made(Ino),
    Count(u64),
    Bytes(Vec<u8>),
}

fn name_of(bytes: &[u8]) -> &Name {
    Name::new(bytes).expect("the generator makes legal names")
}

/// Returns the nodes whose inode numbers an operation needs, in the order in which `call` wants them.
pub(crate) fn nodes_of(op: &Op) -> Vec<NodeId> {
    match op {
        Op::Create { dir, .. }
        | Op::Symlink { dir, .. }
        | Op::Tmpfile { dir, .. }
        | Op::Unlink { dir, .. }
        | Op::Rmdir { dir, .. } => vec![*dir],
        Op::Link { node, dir, .. } => vec![*node, *dir],
        Op::Rename { from, to, .. } => vec![from.0, to.0],
        Op::Copy { from, to, .. } => vec![*from, *to],
        Op::Write { node, .. }
        | Op::Truncate { node, .. }
        | Op::Allocate { node, .. }
        | Op::SetPerm { node, .. }
        | Op::SetOwner { node, .. }
        | Op::SetMtime { node, .. }
        | Op::SetXattr { node, .. }
        | Op::RemoveXattr { node, .. }
        | Op::Hold { node }
        | Op::Release { node }
        | Op::Read { node, .. }
        | Op::Fsync { node, .. } => vec![*node],
        Op::Sync | Op::BackgroundStep | Op::Defragment | Op::Trim | Op::Shrink | Op::Page(_) | Op::Remount => {
            Vec::new()
        }
    }
}

/// Checks that every byte of `piece`, which lies at `start`, is `old`'s or `new`'s.
fn check_partial(old: &crate::content::Content, new: &crate::content::Content, start: u64, piece: &[u8]) -> Said<()> {
    let (mut before, mut after) = (vec![0; piece.len()], vec![0; piece.len()]);
    old.read(start, &mut before);
    new.read(start, &mut after);
    let strange = (0..piece.len()).find(|i| piece[*i] != before[*i] && piece[*i] != after[*i]);
    match strange {
        None => Ok(()),
        Some(at) => {
            let sector = at / 512 * 512;
            let shown = crate::stamp::describe(&piece[sector..piece.len().min(sector + 512)]);
            Err(format!("byte {} shows {shown}", start + at as u64))
        }
    }
}

/// Formats a path, for reports.
pub fn path_in_words(path: &[Vec<u8>]) -> String {
    let names: Vec<String> = path.iter().map(|name| format!("{:?}", Bytes(name.clone()))).collect();
    names.join("/")
}
