//! Attributes: stat, chmod, chown, utimes, flags; truncation is asked for here and done in
//! [`crate::range_ops`].

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::acl::Acl;
use crate::calls::{SetAttr, Stat, StatFs};
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::{Format, FormatOp, OpKind, SpaceRequest};
use crate::inode::{Shared, Unput};
use crate::io::Files;
use crate::perm::{APPEND_ONLY, IMMUTABLE, SGID, W, flags_fit, kept_flags, without_set_ids};
use crate::types::{Attr, FileKind, Ino, Name, SetMode, XattrKey, XattrSpace};

impl<F: Format> Files<F> {
    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        self.stat_of(&inode)
    }

    /// Returns the attributes of an inode; never waits for its lock.
    pub(crate) fn stat_of(&self, inode: &Shared<F>) -> Result<Stat> {
        let sectors = self.tell_sectors(inode);
        Ok(Stat { ino: inode.ino, attr: self.shown_attr(inode), sectors })
    }

    /// Returns the attributes with the flags that tell how the file is stored.
    fn shown_attr(&self, inode: &Shared<F>) -> Attr {
        let mut attr = inode.attr();
        attr.flags |= self.format.layout_flags(&inode.node);
        attr
    }

    /// Returns the space of the volume. Held files without a name that are `forgotten` count as free.
    pub(crate) fn stat_fs(&self, forgotten: &dyn Fn(BTreeSet<Ino>) -> BTreeSet<Ino>) -> StatFs {
        let held = self.held_orphans();
        let forgotten = if held.is_empty() { held } else { forgotten(held) };
        let (space, reapable) = self.between_steps(|| (self.format.space(), self.reapable(&forgotten)));
        let writable = space.free_blocks.saturating_add(reapable.blocks).min(self.shape.blocks);
        let free = writable.saturating_add(space.kept_blocks).min(self.shape.blocks);
        let inodes = if self.shape.inodes_take_blocks { self.shape.inodes.min(free) } else { self.shape.inodes };
        StatFs {
            block_size: self.shape.block_size,
            blocks: self.shape.blocks,
            free,
            available: writable.saturating_sub(space.root_blocks),
            inodes: self.shape.inodes,
            free_inodes: space.free_inodes.saturating_add(reapable.inodes).min(inodes),
            id: self.shape.id,
            name_max: Name::BYTES_MAX as u32,
        }
    }

    pub(crate) fn set_attr(&self, who: &Credentials, ino: Ino, set: &SetAttr) -> Result<Stat> {
        let _gate = self.enter_changing()?;
        let inode = self.inode(ino)?;
        self.check_set_attr(who, &inode, set)?;
        let done = self.change_attr(who, &inode, set);
        if set.size.is_some() {
            self.end_change(&inode, &done);
        }
        done?;
        self.stat_of(&inode)
    }

    fn change_attr(&self, who: &Credentials, inode: &Shared<F>, set: &SetAttr) -> Result<()> {
        if let Some(size) = set.size {
            self.truncate(who, inode, size, set)?;
        }
        if set.changes_inode() {
            self.set_inode(who, inode, set)?;
        } else if set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some() {
            let _exclusive = inode.lock.write();
            inode.check_alive()?;
            let now = self.timestamp();
            self.unput(inode, Unput::Times, |attr| self.set_times(attr, set, now));
        }
        Ok(())
    }

    fn check_set_attr(&self, who: &Credentials, inode: &Shared<F>, set: &SetAttr) -> Result<()> {
        let attr = self.shown_attr(inode);
        let fixed = attr.flags & IMMUTABLE != 0 || (attr.flags & APPEND_ONLY != 0 && set.changes_the_past());
        if fixed && set.flags.is_none() {
            return Err(Error::Posix(libc::EPERM));
        }
        self.check_flags(who, &attr, set)?;
        if set.size.is_some() {
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::Posix(libc::EISDIR)),
                _ => return Err(Error::Posix(libc::EINVAL)),
            }
        }
        if !who.checked_here() {
            return Ok(());
        }
        if set.size.is_some() {
            self.check(who, inode, W)?;
        }
        self.check_owner(who, inode, &attr, set)
    }

    /// Checks that only root changes the flags that forbid changes, that none is set which would describe another
    /// layout, and that the others fit the file. Programs leave out the flags of the layout, which then stay.
    fn check_flags(&self, who: &Credentials, attr: &Attr, set: &SetAttr) -> Result<()> {
        let Some(flags) = set.flags else { return Ok(()) };
        let privileged = (flags ^ attr.flags) & (IMMUTABLE | APPEND_ONLY) != 0;
        let owner = who.is_root() || who.uid == attr.uid;
        if !owner || (privileged && !who.is_root()) {
            return Err(Error::Posix(libc::EPERM));
        }
        let layout = flags & !attr.flags & !self.shape.user_flags != 0;
        if layout || !flags_fit(flags, attr.kind) { Err(Error::Posix(libc::EOPNOTSUPP)) } else { Ok(()) }
    }

    fn check_owner(&self, who: &Credentials, inode: &Shared<F>, attr: &Attr, set: &SetAttr) -> Result<()> {
        let owner = who.is_root() || who.uid == attr.uid;
        let gives_away = set.uid.is_some_and(|uid| uid != attr.uid || !owner) && !who.is_root();
        let changes_group =
            set.gid.is_some_and(|gid| !(owner && (gid == attr.gid || who.is_member(gid)))) && !who.is_root();
        if (set.perm.is_some() && !owner) || gives_away || changes_group {
            return Err(Error::Posix(libc::EPERM));
        }
        if owner || (set.atime.is_none() && set.mtime.is_none()) {
            return Ok(());
        }
        if set.size.is_some() && !set.sets_old_times() {
            return Ok(());
        }
        // Setting both times to now is allowed to every caller that may write.
        if set.sets_old_times() {
            return Err(Error::Posix(libc::EPERM));
        }
        self.check(who, inode, W)
    }

    /// Changes owner, mode and flags; the format is told at once.
    fn set_inode(&self, who: &Credentials, inode: &Shared<F>, set: &SetAttr) -> Result<()> {
        let acl = if set.perm.is_some() { self.chmod_acl(inode, set)? } else { None };
        let need = SpaceRequest { meta_blocks: u64::from(acl.is_some()), ..SpaceRequest::default() };
        let mut admission = if acl.is_some() { self.admit(need, who.space_class())? } else { self.admit_nothing() };
        let _exclusive = inode.lock.write();
        inode.check_alive()?;
        let now = self.timestamp();
        let mut op = self.begin(OpKind::Attr, &mut admission)?;
        if let Some(acl) = &acl {
            op.announce(inode);
            let key = XattrKey { space: XattrSpace::AclAccess, suffix: Box::default() };
            op.xattr_set(&inode.node, &key, Some(&acl.emit()), SetMode::Any)?;
        }
        op.put(inode, |attr| {
            self.set_owner_and_mode(who, attr, set);
            attr.ctime = now;
            self.set_times(attr, set, now);
        })?;
        op.end(&[inode]);
        if let Some(acl) = acl {
            self.remember_acl(inode, XattrSpace::AclAccess, Some(Arc::new(acl)));
        }
        Ok(())
    }

    /// Returns the access ACL as chmod changes it; `None` if there is none.
    fn chmod_acl(&self, inode: &Shared<F>, set: &SetAttr) -> Result<Option<Acl>> {
        let (Some(acl), Some(perm)) = (self.acl(inode, XattrSpace::AclAccess)?, set.perm) else { return Ok(None) };
        let mut acl = (*acl).clone();
        acl.set_mode_bits(perm);
        Ok(Some(acl))
    }

    fn set_owner_and_mode(&self, who: &Credentials, attr: &mut Attr, set: &SetAttr) {
        if (set.uid.is_some() || set.gid.is_some() || set.kill_suidgid) && attr.kind != FileKind::Directory {
            attr.perm = without_set_ids(who, attr.perm, attr.gid);
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if let Some(flags) = set.flags {
            attr.flags = attr.flags & !self.shape.user_flags | kept_flags(flags, attr.kind) & self.shape.user_flags;
        }
        if let Some(perm) = set.perm {
            attr.perm = perm & 0o7777;
            // A kernel that checks permissions has done this itself, knowing all groups.
            if who.checked_here() && !who.is_root() && !who.is_member(attr.gid) {
                attr.perm &= !SGID;
            }
        }
    }
}
