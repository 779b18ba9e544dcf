//! Extended attributes: name spaces, permissions, and ACLs mirrored in the mode.

use std::sync::Arc;

use crate::acl::Acl;
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::{Admission, Format, FormatOp, OpKind, SpaceRequest};
use crate::inode::Shared;
use crate::io::Files;
use crate::perm::{APPEND_ONLY, IMMUTABLE, R, SGID, STICKY, W};
use crate::types::{FileKind, Ino, SetMode, XattrKey, XattrSpace};

/// Longest full name in bytes, as Linux has it.
const NAME_BYTES_MAX: usize = 255;

/// Longest value in bytes, as Linux has it.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Metadata blocks that an attribute may take beside its value: a header and a map block.
const XATTR_META_BLOCKS: u64 = 2;

impl<F: Format> Files<F> {
    fn key(&self, name: &[u8]) -> Result<XattrKey> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::Posix(libc::ERANGE));
        }
        // A name space alone is no name.
        let nameless = matches!(name, b"user." | b"trusted." | b"security.");
        XattrKey::parse(name).ok_or(Error::Posix(if nameless { libc::EINVAL } else { libc::EOPNOTSUPP }))
    }

    pub(crate) fn get_xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        let key = self.key(name)?;
        let _shared = inode.lock.read();
        inode.check_alive()?;
        match key.space {
            XattrSpace::User if !holds_user_attributes(inode.kind) => return Err(Error::Posix(libc::ENODATA)),
            XattrSpace::User => self.check(who, &inode, R)?,
            XattrSpace::Trusted if who.checked_here() && !who.is_root() => return Err(Error::Posix(libc::ENODATA)),
            _ => {}
        }
        self.format.xattr(&inode.node, &key)?.ok_or(Error::Posix(libc::ENODATA))
    }

    pub(crate) fn list_xattr(&self, who: &Credentials, ino: Ino) -> Result<Vec<XattrKey>> {
        let _gate = self.enter()?;
        let inode = self.inode(ino)?;
        let _shared = inode.lock.read();
        inode.check_alive()?;
        let mut keys = self.format.xattr_list(&inode.node)?;
        keys.retain(|key| key.space != XattrSpace::Trusted || who.is_root());
        Ok(keys)
    }

    pub(crate) fn set_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<()> {
        let _gate = self.enter_changing()?;
        let inode = self.inode(ino)?;
        let key = self.key(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Posix(libc::E2BIG));
        }
        let value_blocks = (value.len() as u64).div_ceil(self.block_bytes());
        let need = SpaceRequest { meta_blocks: XATTR_META_BLOCKS + value_blocks, ..SpaceRequest::default() };
        let mut admission = self.admit(need, who.space_class())?;
        let _exclusive = inode.lock.write();
        self.check_may_set(who, &inode, &key)?;
        if matches!(key.space, XattrSpace::AclAccess | XattrSpace::AclDefault) {
            return self.set_acl(who, &inode, &key, value, mode, &mut admission);
        }
        self.put_xattr(&inode, &key, Some(value), mode, &mut admission)
    }

    pub(crate) fn remove_xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<()> {
        let _gate = self.enter_changing()?;
        let inode = self.inode(ino)?;
        let key = self.key(name)?;
        // A block with what stays may have to be made.
        let need = SpaceRequest { meta_blocks: XATTR_META_BLOCKS, ..SpaceRequest::default() };
        let class = who.space_class();
        if let Some(mut admission) = self.admit_at_once(need, class)? {
            let _exclusive = inode.lock.write();
            return self.take_xattr(who, &inode, &key, &mut admission);
        }
        {
            let mut admission = self.admit_nothing();
            let _exclusive = inode.lock.write();
            if !self.format.takes_block_to_remove(&inode.node, &key)? {
                return self.take_xattr(who, &inode, &key, &mut admission);
            }
        }
        let mut admission = self.admit(need, class)?;
        let _exclusive = inode.lock.write();
        self.take_xattr(who, &inode, &key, &mut admission)
    }

    /// Removes an attribute. The inode's lock is held.
    fn take_xattr(
        &self,
        who: &Credentials,
        inode: &Shared<F>,
        key: &XattrKey,
        admission: &mut Admission,
    ) -> Result<()> {
        self.check_may_set(who, inode, key)?;
        let present = self.format.xattr(&inode.node, key)?.is_some();
        match key.space {
            // There is no ACL to remove, which is the state that the caller wanted.
            XattrSpace::AclAccess | XattrSpace::AclDefault if !present => return Ok(()),
            _ if !present => return Err(Error::Posix(libc::ENODATA)),
            _ => {}
        }
        self.put_xattr(inode, key, None, SetMode::Any, admission)?;
        self.remember_acl_of(inode, key, None);
        Ok(())
    }

    fn check_may_set(&self, who: &Credentials, inode: &Shared<F>, key: &XattrKey) -> Result<()> {
        inode.check_alive()?;
        let attr = inode.attr();
        let no = |errno| Err(Error::Posix(errno));
        // A kernel that checks permissions knows which other callers may act as the owner (CAP_FOWNER).
        let owner = !who.checked_here() || who.is_root() || who.uid == attr.uid;
        if attr.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
            return no(libc::EPERM);
        }
        match key.space {
            XattrSpace::User => {
                if !holds_user_attributes(inode.kind) {
                    return no(libc::EPERM);
                }
                if inode.is_dir() && attr.perm & STICKY != 0 && !owner {
                    return no(libc::EPERM);
                }
                self.check(who, inode, W)
            }
            // A kernel that checks permissions takes `security.capability` away in the name of a user who writes to
            // the file.
            XattrSpace::Trusted | XattrSpace::Security if who.checked_here() && !who.is_root() => no(libc::EPERM),
            XattrSpace::AclAccess | XattrSpace::AclDefault if inode.kind == FileKind::Symlink => no(libc::EOPNOTSUPP),
            XattrSpace::AclAccess | XattrSpace::AclDefault if !owner => no(libc::EPERM),
            XattrSpace::AclDefault if !inode.is_dir() => no(libc::EACCES),
            _ => Ok(()),
        }
    }

    /// Sets an ACL; an access ACL shows in the mode, and one that says no more than the mode is
    /// kept only there. An ACL that is there already changes nothing, not even times.
    fn set_acl(
        &self,
        who: &Credentials,
        inode: &Shared<F>,
        key: &XattrKey,
        value: &[u8],
        mode: SetMode,
        admission: &mut Admission,
    ) -> Result<()> {
        let acl = Acl::parse(value).map_err(|_| Error::Posix(libc::EINVAL))?;
        let stored = self.format.xattr(&inode.node, key)?;
        check_mode(mode, stored.is_some())?;
        let is_access = key.space == XattrSpace::AclAccess;
        let kept = (!is_access || !acl.is_minimal()).then(|| acl.clone());
        let attr = inode.attr();
        let mut perm = attr.perm;
        if is_access {
            perm = (perm & !0o777) | acl.mode_bits();
            if who.checked_here() && !who.is_root() && !who.is_member(attr.gid) {
                perm &= !SGID;
            }
        }
        let value = kept.as_ref().map(Acl::emit);
        if perm == attr.perm && value == stored {
            return Ok(());
        }
        let now = self.timestamp();
        let mut op = self.begin(OpKind::Xattr, admission)?;
        op.announce(inode);
        if value.is_some() || stored.is_some() {
            op.xattr_set(&inode.node, key, value.as_deref(), SetMode::Any)?;
        }
        op.put(inode, |attr| (attr.ctime, attr.perm) = (now, perm))?;
        op.end(&[inode]);
        self.check_sectors(inode);
        self.remember_acl_of(inode, key, kept);
        Ok(())
    }

    fn remember_acl_of(&self, inode: &Shared<F>, key: &XattrKey, acl: Option<Acl>) {
        if matches!(key.space, XattrSpace::AclAccess | XattrSpace::AclDefault) {
            self.remember_acl(inode, key.space, acl.map(Arc::new));
        }
    }

    /// Sets or (with `None`) removes an attribute. A value that it has already changes nothing, not even times.
    fn put_xattr(
        &self,
        inode: &Shared<F>,
        key: &XattrKey,
        value: Option<&[u8]>,
        mode: SetMode,
        admission: &mut Admission,
    ) -> Result<()> {
        let stored = self.format.xattr(&inode.node, key)?;
        check_mode(mode, stored.is_some())?;
        if stored.as_deref() == value {
            return Ok(());
        }
        let now = self.timestamp();
        let mut op = self.begin(OpKind::Xattr, admission)?;
        op.announce(inode);
        op.xattr_set(&inode.node, key, value, mode)?;
        op.put(inode, |attr| attr.ctime = now)?;
        op.end(&[inode]);
        // It may have taken a block, or given one back.
        self.check_sectors(inode);
        Ok(())
    }
}

/// Fails if an attribute that is or is not `present` may not be set in this mode.
fn check_mode(mode: SetMode, present: bool) -> Result<()> {
    match mode {
        SetMode::Create if present => Err(Error::Posix(libc::EEXIST)),
        SetMode::Replace if !present => Err(Error::Posix(libc::ENODATA)),
        _ => Ok(()),
    }
}

/// Returns true for kinds that may have `user.` attributes: their permission bits mean access to their contents.
fn holds_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}
