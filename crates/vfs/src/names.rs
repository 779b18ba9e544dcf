//! The layer of names: look-up, listing, and every change of them but rename.
//!
//! A look-up holds the directory's lock shared, a change exclusively; then the child's, if it
//! exists already. The space that the change may need is admitted before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_runtime::lock::Mutex;

use crate::acl::Acl;
use crate::admission::{Admitted, NameRoom};
use crate::calls::{ListEntry, NewFile, Stat};
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::{Admission, Format, FormatOp, OpKind, Shape, SpaceClass, SpaceRequest, Target};
use crate::inode::{Inode, Shared};
use crate::io::Files;
use crate::layer::layer;
use crate::op::Op;
use crate::perm::{APPEND_ONLY, IMMUTABLE, R, SGID, W, X, inherited_flags};
use crate::types::{Attr, Cookie, Dentry, FileKind, Ino, Name, SetMode, XattrKey, XattrSpace};

/// Metadata blocks that a new inode may take: a block for attributes, a symbolic link's or
/// directory's first block with its map.
const INODE_META_BLOCKS: u64 = 3;

/// Returns true for `.` and `..`.
pub(crate) fn is_dot(name: &Name) -> bool {
    matches!(name.as_bytes(), b"." | b"..")
}

/// Returns the name `..`.
pub(crate) fn dot_dot() -> &'static Name {
    Name::new(b"..").expect("it is a legal name")
}

/// Returns the links of a directory that gains (or loses) subdirectories. A single link says that there are too many
/// to count.
pub(crate) fn links_after(shape: &Shape, links: u32, gains: i64) -> u32 {
    match (i64::from(links) + gains).clamp(2, u32::MAX.into()) as u32 {
        _ if links == 1 => 1,
        after if shape.uncounted_subdirectories && after >= shape.links_max => 1,
        after => after,
    }
}

/// The attributes and ACLs of a new inode.
pub(crate) struct Birth {
    attr: Attr,
    access_acl: Option<Arc<Acl>>,
    default_acl: Option<Arc<Acl>>,
}

/// The names of a volume.
pub(crate) struct Namespace<F: Format> {
    files: Files<F>,
    /// The lock of level 1. Held by a call that locks more than a directory and one below it: the ancestors of a
    /// directory do not change meanwhile.
    pub(crate) rename: Mutex<()>,
}

layer!(Namespace over files: Files);

impl<F: Format> Namespace<F> {
    pub(crate) fn new(files: Files<F>) -> Namespace<F> {
        let rename = Mutex::new(Arc::clone(&files.rt), ());
        Namespace { files, rename }
    }

    pub(crate) fn lookup(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<Stat> {
        let _gate = self.enter()?;
        self.tally.lookups.fetch_add(1, Ordering::Relaxed);
        let dir = self.directory(dir)?;
        let _shared = dir.lock.read();
        dir.check_alive()?;
        self.check(who, &dir, X)?;
        let child = match name.as_bytes() {
            b"." => Arc::clone(&dir),
            _ => self.child(&dir, name)?.ok_or(Error::Posix(libc::ENOENT))?.1,
        };
        self.table.hold(child.ino);
        if !child.is_dir() {
            self.set_home(&child, dir.ino);
        }
        self.stat_of(&child)
    }

    /// Finds an inode by its number, and holds it.
    pub(crate) fn find(&self, ino: Ino) -> Result<Stat> {
        let _gate = self.enter()?;
        // The number may change hands until the hold: what is told is of the inode that has it then.
        let inode = self.hold(ino)?;
        // Only open descriptors lead to it, and the kernel knows their inodes.
        if inode.nlink() == 0 {
            self.forget(ino, 1);
            return Err(Error::Stale(ino));
        }
        self.stat_of(&inode)
    }

    /// Returns the entry and inode that a name leads to. The directory's lock is held.
    pub(crate) fn child(&self, dir: &Shared<F>, name: &Name) -> Result<Option<(Dentry, Shared<F>)>> {
        let Some(dentry) = self.format.lookup(&dir.node, name)? else { return Ok(None) };
        match self.inode(dentry.ino) {
            Ok(inode) => Ok(Some((dentry, inode))),
            // A name that leads to a free inode is damage.
            Err(Error::Stale(ino)) => Err(Error::Damaged {
                structure: format!("directory {}", dir.ino),
                block: None,
                problem: format!("\"{name}\" names inode {ino}, which is not in use"),
            }),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn list(
        &self,
        who: &Credentials,
        dir: Ino,
        from: Cookie,
        each: &mut dyn FnMut(ListEntry<'_>) -> bool,
    ) -> Result<()> {
        let _gate = self.enter()?;
        let dir = self.directory(dir)?;
        {
            let _shared = dir.lock.read();
            dir.check_alive()?;
            self.check(who, &dir, R)?;
            if dir.nlink() == 0 {
                return Ok(());
            }
            self.format.list(&dir.node, from, &mut |name, dentry, next| {
                each(ListEntry { name, ino: dentry.ino, kind: dentry.kind, next })
            })?;
        }
        self.accessed(&dir);
        Ok(())
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::Posix(libc::EINVAL));
        }
        let target = {
            let _shared = inode.lock.read();
            inode.check_alive()?;
            self.format.readlink(&inode.node)?
        };
        self.accessed(&inode);
        Ok(target)
    }

    pub(crate) fn create(&self, who: &Credentials, dir: Ino, name: &Name, new: &NewFile<'_>) -> Result<Stat> {
        let _gate = self.enter_changing()?;
        let dir = self.directory(dir)?;
        if is_dot(name) {
            return Err(Error::Posix(libc::EEXIST));
        }
        self.check_new(new)?;
        let need = inode_need(self.shape.name_meta_blocks);
        let create = |admission: &mut Admitted<'_, F>| {
            let _exclusive = dir.lock.write();
            self.check_may_add(who, &dir)?;
            if self.format.lookup(&dir.node, name)?.is_some() {
                return Err(Error::Posix(libc::EEXIST));
            }
            self.check_room(admission, &dir, name)?;
            if new.kind == FileKind::Directory && dir.nlink() >= self.shape.links_max {
                return Err(Error::Posix(libc::EMLINK));
            }
            self.create_locked(who, &dir, Some(name), new, admission)
        };
        let has_contents = new.kind == FileKind::Directory
            || new.target.is_some_and(|target| target.len() > self.shape.symlink_inode_bytes_max);
        let inode = match has_contents {
            true => create(&mut self.admit(need, who.space_class())?)?,
            false => self.change_names(who, need, create)?,
        };
        self.tally.creates.fetch_add(1, Ordering::Relaxed);
        self.reclaim_inodes();
        self.stat_of(&inode)
    }

    pub(crate) fn tmpfile(&self, who: &Credentials, dir: Ino, new: &NewFile<'_>) -> Result<Stat> {
        let _gate = self.enter_changing()?;
        let dir = self.directory(dir)?;
        if new.kind != FileKind::Regular {
            return Err(Error::Posix(libc::EINVAL));
        }
        let mut admission = self.admit_inode(who, 0)?;
        let inode = {
            let _exclusive = dir.lock.write();
            self.check_may_add(who, &dir)?;
            self.create_locked(who, &dir, None, new, &mut admission)?
        };
        self.tally.creates.fetch_add(1, Ordering::Relaxed);
        self.stat_of(&inode)
    }

    fn check_new(&self, new: &NewFile<'_>) -> Result<()> {
        let Some(target) = new.target else {
            return if new.kind == FileKind::Symlink { Err(Error::Posix(libc::EINVAL)) } else { Ok(()) };
        };
        match target.len() {
            0 => Err(Error::Posix(libc::ENOENT)),
            n if n > self.shape.symlink_bytes_max => Err(Error::Posix(libc::ENAMETOOLONG)),
            _ => Ok(()),
        }
    }

    pub(crate) fn admit_inode(&self, who: &Credentials, name_blocks: u64) -> Result<Admitted<'_, F>> {
        self.admit(inode_need(name_blocks), who.space_class())
    }

    /// Changes names with space reserved for it. If there is too little, it may go without blocks: [`Self::check_room`]
    /// then has to find room in those that the directories have. Where there is none either, space is made first.
    pub(crate) fn change_names<T>(
        &self,
        who: &Credentials,
        need: SpaceRequest,
        mut change: impl FnMut(&mut Admitted<'_, F>) -> Result<T>,
    ) -> Result<T> {
        let class = who.space_class();
        if let Some(mut admitted) = self.admit_at_once(need, class)? {
            return change(&mut admitted);
        }
        if let Some(done) = self.change_in_place(need.inodes, class, &mut change)? {
            return Ok(done);
        }
        let mut admitted = self.admit_or_in_place(need, class)?;
        match change(&mut admitted) {
            // Others may be about to give back the blocks that it takes.
            Err(_) if admitted.names == NameRoom::Missing => {
                drop(admitted);
                change(&mut self.admit(need, class)?)
            }
            done => done,
        }
    }

    /// Changes names in the blocks that the directories have; `None` if there is no room for that.
    fn change_in_place<T>(
        &self,
        inodes: u64,
        class: SpaceClass,
        change: &mut impl FnMut(&mut Admitted<'_, F>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(mut admitted) = self.admit_in_place(inodes, class)? else { return Ok(None) };
        match change(&mut admitted) {
            Err(_) if admitted.names == NameRoom::Missing => Ok(None),
            done => done.map(Some),
        }
    }

    /// Fails with ENOSPC if a name that is to be added needs a block, and none is reserved. The directory's lock is
    /// held.
    pub(crate) fn check_room(&self, admitted: &mut Admitted<'_, F>, dir: &Shared<F>, name: &Name) -> Result<()> {
        if admitted.names == NameRoom::Reserved || self.format.has_room_for_name(&dir.node, name)? {
            return Ok(());
        }
        admitted.names = NameRoom::Missing;
        Err(Error::Posix(libc::ENOSPC))
    }

    /// Makes an inode and (unless it is to have none) its name, in one op, and holds it.
    fn create_locked(
        &self,
        who: &Credentials,
        dir: &Shared<F>,
        name: Option<&Name>,
        new: &NewFile<'_>,
        admission: &mut Admitted<'_, F>,
    ) -> Result<Shared<F>> {
        let birth = self.birth(who, dir, name.is_some(), new)?;
        if admission.names != NameRoom::Reserved && birth.access_acl.is_some() {
            admission.names = NameRoom::Missing;
            return Err(Error::Posix(libc::ENOSPC));
        }
        let mut op = self.begin(OpKind::Create, admission)?;
        let inode = self.new_inode(&mut op, dir, &birth, new.target)?;
        if let Err(error) = self.complete_inode(&mut op, dir, name, &inode, &birth) {
            self.take_back(op, dir, inode);
            return Err(error);
        }
        if name.is_some() {
            let now = birth.attr.ctime;
            let told = op.put(dir, |attr| {
                if new.kind == FileKind::Directory {
                    attr.nlink = links_after(&self.shape, attr.nlink, 1);
                }
                (attr.mtime, attr.ctime) = (now, now);
            });
            self.fail_if_half_done("the creation of a file", told)?;
        } else {
            inode.state.lock().nameless = true;
        }
        op.end(&[&inode, dir]);
        self.refresh_size(dir);
        self.refresh_size(&inode);
        self.table.hold(inode.ino);
        Ok(self.table.insert(inode))
    }

    /// Gives a new inode its ACLs and its name; without a name it becomes an orphan.
    fn complete_inode(
        &self,
        op: &mut Op<'_, F>,
        dir: &Shared<F>,
        name: Option<&Name>,
        inode: &Shared<F>,
        birth: &Birth,
    ) -> Result<()> {
        self.set_acls(op, inode, birth)?;
        match name {
            Some(name) => op.name_add(&dir.node, name, Target { ino: inode.ino, kind: inode.kind, node: &*inode.node }),
            None => op.inode_orphan(&inode.node, &birth.attr),
        }
    }

    /// Makes an inode, not in the table yet, without its ACLs. If the op cannot go on, [`Self::take_back`] ends it.
    pub(crate) fn new_inode(
        &self,
        op: &mut F::Op<'_>,
        dir: &Shared<F>,
        birth: &Birth,
        target: Option<&[u8]>,
    ) -> Result<Shared<F>> {
        let (ino, node) = op.inode_new(&dir.node, &birth.attr, target)?;
        let attr = Attr { generation: self.format.generation(&node), ..birth.attr.clone() };
        Ok(Arc::new(Inode::new(&self.rt, ino, dir.ino, attr, node)))
    }

    /// Sets the ACLs of a new inode: both may be too large for one inode.
    pub(crate) fn set_acls(&self, op: &mut F::Op<'_>, inode: &Shared<F>, birth: &Birth) -> Result<()> {
        for (space, acl) in [(XattrSpace::AclAccess, &birth.access_acl), (XattrSpace::AclDefault, &birth.default_acl)] {
            if let Some(acl) = acl {
                let key = XattrKey { space, suffix: Box::default() };
                op.xattr_set(&inode.node, &key, Some(&acl.emit()), SetMode::Any)?;
            }
            self.remember_acl(inode, space, acl.clone());
        }
        Ok(())
    }

    /// Ends an op that has made an inode and cannot give it a name: the inode becomes an orphan, which the reaper
    /// frees, and `dir` gets back the link that a subdirectory took.
    pub(crate) fn take_back(&self, mut op: Op<'_, F>, dir: &Shared<F>, inode: Shared<F>) {
        let orphaned = op.put_orphan(&inode, |attr| attr.nlink = 0);
        let undone = orphaned.and_then(|()| if inode.is_dir() { op.put_known(dir) } else { Ok(()) });
        if self.fail_if_half_done("taking a new inode back", undone).is_ok() {
            op.end(&[&inode, dir]);
            let inode = self.table.insert(inode);
            self.note_unlinked(&inode);
        }
    }

    /// Returns owner, group, mode, ACLs and times of a new inode.
    pub(crate) fn birth(&self, who: &Credentials, dir: &Shared<F>, named: bool, new: &NewFile<'_>) -> Result<Birth> {
        let parent = dir.attr();
        let is_dir = new.kind == FileKind::Directory;
        let mut perm = new.perm & 0o7777;
        let mut gid = who.gid;
        if parent.perm & SGID != 0 {
            gid = parent.gid;
            if is_dir {
                perm |= SGID;
            } else if perm & (SGID | 0o010) == SGID | 0o010 && !who.is_root() && !who.is_member(gid) {
                perm &= !SGID;
            }
        }
        let inherited = if new.kind == FileKind::Symlink { None } else { self.acl(dir, XattrSpace::AclDefault)? };
        let (mut access_acl, mut default_acl) = (None, None);
        match inherited {
            None if new.kind == FileKind::Symlink => perm = 0o777,
            None => perm &= !(new.umask & 0o777),
            Some(default) => {
                let (access, bits) = default.inherit(perm);
                perm = bits;
                access_acl = (!access.is_minimal()).then(|| Arc::new(access));
                default_acl = is_dir.then_some(default);
            }
        }
        let now = self.timestamp();
        let nlink = match (named, is_dir) {
            (false, _) => 0,
            (true, true) => 2,
            (true, false) => 1,
        };
        let size = match (new.kind, new.target) {
            (FileKind::Directory, _) => self.block_bytes(),
            (FileKind::Symlink, Some(target)) => target.len() as u64,
            _ => 0,
        };
        let is_device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let attr = Attr {
            kind: new.kind,
            perm,
            uid: who.uid,
            gid,
            nlink,
            size,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: self.shape.birth_times.then_some(now),
            rdev: if is_device { new.rdev } else { 0 },
            // The format chooses it.
            generation: 0,
            flags: inherited_flags(dir.attr().flags, new.kind) & self.shape.user_flags,
        };
        Ok(Birth { attr, access_acl, default_acl })
    }

    pub(crate) fn link(&self, who: &Credentials, ino: Ino, dir: Ino, name: &Name) -> Result<Stat> {
        let _gate = self.enter_changing()?;
        let dir = self.directory(dir)?;
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Error::Posix(libc::EPERM));
        }
        if is_dot(name) {
            return Err(Error::Posix(libc::EEXIST));
        }
        let need = SpaceRequest { meta_blocks: self.shape.name_meta_blocks, ..SpaceRequest::default() };
        self.change_names(who, need, |admission| {
            let _dir = dir.lock.write();
            let _inode = inode.lock.write();
            self.check_may_add(who, &dir)?;
            inode.check_alive()?;
            if self.format.lookup(&dir.node, name)?.is_some() {
                return Err(Error::Posix(libc::EEXIST));
            }
            let attr = inode.attr();
            let nameless = inode.state.lock().nameless;
            match attr.nlink {
                0 if !nameless => return Err(Error::Posix(libc::ENOENT)),
                n if n >= self.shape.links_max => return Err(Error::Posix(libc::EMLINK)),
                _ if attr.flags & (IMMUTABLE | APPEND_ONLY) != 0 => return Err(Error::Posix(libc::EPERM)),
                _ => {}
            }
            self.check_room(admission, &dir, name)?;
            let now = self.timestamp();
            let mut op = self.begin(OpKind::Link, admission)?;
            op.put(&inode, |attr| {
                attr.nlink += 1;
                attr.ctime = now;
            })?;
            if let Err(error) = op.name_add(&dir.node, name, Target { ino, kind: inode.kind, node: &inode.node }) {
                self.take_link_back(op, &inode, &attr);
                return Err(error);
            }
            let told = op.put(&dir, |attr| (attr.mtime, attr.ctime) = (now, now));
            self.fail_if_half_done("a link", told)?;
            op.end(&[]);
            inode.state.lock().nameless = false;
            self.refresh_size(&dir);
            self.table.hold(ino);
            self.set_home(&inode, dir.ino);
            self.stat_of(&inode)
        })
    }

    /// Ends an op that has counted a link for a name that it cannot add.
    fn take_link_back(&self, mut op: Op<'_, F>, inode: &Shared<F>, before: &Attr) {
        let change = |attr: &mut Attr| (attr.nlink, attr.ctime) = (before.nlink, before.ctime);
        let undone = if before.nlink > 0 { op.put(inode, change) } else { op.put_orphan(inode, change) };
        if self.fail_if_half_done("taking a link back", undone).is_ok() {
            op.end(&[]);
        }
    }

    /// Removes the name of anything but a directory; returns the inode that had it.
    pub(crate) fn unlink(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<Ino> {
        let _gate = self.enter_changing()?;
        let dir = self.directory(dir)?;
        if is_dot(name) {
            return Err(Error::Posix(libc::EISDIR));
        }
        let mut admission = Admission::none();
        let dir_guard = dir.lock.write();
        let (_, child) = self.child(&dir, name)?.ok_or(Error::Posix(libc::ENOENT))?;
        let child_guard = child.lock.write();
        self.check_may_remove(who, &dir, &child)?;
        if child.is_dir() {
            return Err(Error::Posix(libc::EISDIR));
        }
        let now = self.timestamp();
        let mut op = self.begin(OpKind::Unlink, &mut admission)?;
        op.name_remove(&dir.node, name, &child.node)?;
        let told = self.drop_link(&mut op, &child, now);
        let told = told.and_then(|()| op.put(&dir, |attr| (attr.mtime, attr.ctime) = (now, now)));
        self.fail_if_half_done("a removal", told)?;
        op.end(&[&child, &dir]);
        drop(child_guard);
        self.refresh_size(&dir);
        self.tally.unlinks.fetch_add(1, Ordering::Relaxed);
        self.note_unlinked(&child);
        drop(dir_guard);
        self.reap_surplus();
        Ok(child.ino)
    }

    /// Takes one link from an inode that is not a directory.
    pub(crate) fn drop_link(&self, op: &mut Op<'_, F>, child: &Shared<F>, now: moafs_runtime::Timestamp) -> Result<()> {
        let change = |attr: &mut Attr| {
            attr.nlink = attr.nlink.saturating_sub(1);
            attr.ctime = now;
        };
        if child.nlink() > 1 { op.put(child, change) } else { op.put_orphan(child, change) }
    }

    /// Removes the name of an empty directory; returns the inode that had it.
    pub(crate) fn rmdir(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<Ino> {
        let _gate = self.enter_changing()?;
        let dir = self.directory(dir)?;
        match name.as_bytes() {
            b"." => return Err(Error::Posix(libc::EINVAL)),
            b".." => return Err(Error::Posix(libc::ENOTEMPTY)),
            _ => {}
        }
        self.format.settle_directories()?;
        let mut admission = Admission::none();
        let dir_guard = dir.lock.write();
        let (_, child) = self.child(&dir, name)?.ok_or(Error::Posix(libc::ENOENT))?;
        self.check_is_below(&dir, &child)?;
        let child_guard = child.lock.write();
        self.check_may_remove(who, &dir, &child)?;
        self.check_removable_dir(&child)?;
        self.check_subdirectories(&dir, -1)?;
        let now = self.timestamp();
        let mut op = self.begin(OpKind::Unlink, &mut admission)?;
        op.name_remove(&dir.node, name, &child.node)?;
        let told = op.put_orphan(&child, |attr| {
            attr.nlink = 0;
            attr.ctime = now;
        });
        let told = told.and_then(|()| {
            op.put(&dir, |attr| {
                attr.nlink = links_after(&self.shape, attr.nlink, -1);
                (attr.mtime, attr.ctime) = (now, now);
            })
        });
        self.fail_if_half_done("the removal of a directory", told)?;
        op.end(&[&child, &dir]);
        drop(child_guard);
        self.refresh_size(&dir);
        self.tally.unlinks.fetch_add(1, Ordering::Relaxed);
        self.note_unlinked(&child);
        drop(dir_guard);
        self.reap_surplus();
        Ok(child.ino)
    }

    /// Fails with ENOTDIR or ENOTEMPTY unless `child` is an empty directory, with EBUSY for the root.
    pub(crate) fn check_removable_dir(&self, child: &Shared<F>) -> Result<()> {
        if !child.is_dir() {
            return Err(Error::Posix(libc::ENOTDIR));
        }
        if child.ino == self.shape.root {
            return Err(Error::Posix(libc::EBUSY));
        }
        if self.format.is_empty(&child.node)? { Ok(()) } else { Err(Error::Posix(libc::ENOTEMPTY)) }
    }

    /// Checks that a directory that is about to lose a subdirectory has a link for it. Otherwise it is damaged, and
    /// nothing is changed on top of it.
    pub(crate) fn check_subdirectories(&self, dir: &Shared<F>, gains: i64) -> Result<()> {
        if gains >= 0 || dir.nlink() != 2 {
            return Ok(());
        }
        let error = Error::Damaged {
            structure: format!("directory {}", dir.ino),
            block: None,
            problem: "it has a subdirectory, but no link is counted for it".into(),
        };
        self.format.fail(&error.to_string());
        Err(error)
    }

    /// Checks that a name does not lead to its own directory: that can only be damage, and locking it would hang.
    pub(crate) fn check_is_below(&self, dir: &Shared<F>, child: &Shared<F>) -> Result<()> {
        if dir.ino != child.ino {
            return Ok(());
        }
        Err(Error::Damaged {
            structure: format!("directory {}", dir.ino),
            block: None,
            problem: "a name in it names the directory itself".into(),
        })
    }

    /// Asks the format for a directory's size, which a change of names may have changed.
    pub(crate) fn refresh_size(&self, inode: &Shared<F>) {
        if inode.is_dir() {
            let size = self.format.size(&inode.node);
            let mut state = inode.state.lock();
            state.attr.size = size;
            state.disk_size = size;
        }
    }

    pub(crate) fn access(&self, who: &Credentials, ino: Ino, mask: u32) -> Result<()> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        if mask & W != 0 {
            let attr = inode.attr();
            let data = matches!(attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
            if data {
                self.check_writable()?;
            }
            if attr.flags & IMMUTABLE != 0 {
                return Err(Error::Posix(libc::EPERM));
            }
        }
        self.check_always(who, &inode, mask & (R | W | X))
    }
}

/// Returns the most space that a new inode and its name take.
fn inode_need(name_blocks: u64) -> SpaceRequest {
    SpaceRequest { inodes: 1, meta_blocks: INODE_META_BLOCKS + name_blocks, ..SpaceRequest::default() }
}
