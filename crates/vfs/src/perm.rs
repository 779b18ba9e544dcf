//! Permission checks: mode bits, ACLs, sticky directories, inode flags.
//!
//! Behind a kernel that checks permissions ([`crate::credentials::Checks::Done`]) only what it does not know is
//! checked here: the immutable and append-only flags.

use std::sync::Arc;

use crate::acl::Acl;
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::inode::{AclCache, Shared};
use crate::types::{Attr, FileKind, XattrKey, XattrSpace};
use crate::volume::Volume;

/// The permission bit for reading.
pub(crate) const R: u32 = 4;
/// The permission bit for writing.
pub(crate) const W: u32 = 2;
/// The permission bit for executing a file or searching a directory.
pub(crate) const X: u32 = 1;

/// The inode flags `FS_SECRM_FL`, `FS_UNRM_FL`, `FS_COMPR_FL` and `FS_NOTAIL_FL`: kept, without an effect.
const WISHES: u32 = 0x01 | 0x02 | 0x04 | 0x8000;
/// The inode flag `FS_SYNC_FL`: writes are synchronous.
pub(crate) const SYNC: u32 = 0x08;
/// The inode flag `FS_NODUMP_FL`: backups leave the file out.
const NO_DUMP: u32 = 0x40;
/// The inode flag `FS_DIRSYNC_FL`: changes of the directory are synchronous.
pub(crate) const DIR_SYNC: u32 = 0x1_0000;
/// The inode flag `FS_TOPDIR_FL`: directories in this one are unrelated.
const TOP_DIR: u32 = 0x2_0000;
/// The inode flag `FS_IMMUTABLE_FL`: no change at all.
pub(crate) const IMMUTABLE: u32 = 0x10;
/// The inode flag `FS_APPEND_FL`: no change but appending.
pub(crate) const APPEND_ONLY: u32 = 0x20;
/// The inode flag `FS_NOATIME_FL`: reading does not update the access time.
pub(crate) const NO_ATIME: u32 = 0x80;

pub(crate) const SUID: u32 = 0o4000;
pub(crate) const SGID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;

/// Returns the permission bits of a file of group `gid` after a caller who may not keep suid and sgid has changed its
/// contents or owner. Sgid without group execution means mandatory locking, and only members of the group keep it.
pub(crate) fn without_set_ids(who: &Credentials, perm: u32, gid: u32) -> u32 {
    let keeps_sgid = perm & 0o010 == 0 && (who.is_root() || who.is_member(gid));
    if keeps_sgid { perm & !SUID } else { perm & !(SUID | SGID) }
}

/// Returns the inode flags that a new file takes over from its directory with the flags `dir`.
pub(crate) fn inherited_flags(dir: u32, kind: FileKind) -> u32 {
    let inherited = match kind {
        FileKind::Directory => WISHES | SYNC | NO_DUMP | NO_ATIME | DIR_SYNC,
        FileKind::Regular => WISHES | SYNC | NO_DUMP | NO_ATIME,
        _ => NO_DUMP | NO_ATIME,
    };
    dir & inherited
}

/// Returns what is kept of `flags` that are set for a file of this kind: those of directories are not, of other files.
pub(crate) fn kept_flags(flags: u32, kind: FileKind) -> u32 {
    if kind == FileKind::Directory { flags } else { flags & !DIR_SYNC }
}

/// Returns true if `flags` can be set for a file of this kind.
pub(crate) fn flags_fit(flags: u32, kind: FileKind) -> bool {
    flags & TOP_DIR == 0 || kind == FileKind::Directory
}

/// Returns true if mode and ACL let the caller do all of `want`.
fn allows(who: &Credentials, attr: &Attr, acl: Option<&Acl>, want: u32) -> bool {
    if who.is_root() {
        let runs = attr.kind == FileKind::Directory || attr.perm & 0o111 != 0;
        return want & X == 0 || runs;
    }
    if let (Some(acl), true) = (acl, who.uid != attr.uid) {
        return acl.allows(who, attr.gid, want);
    }
    let shift = if who.uid == attr.uid {
        6
    } else if who.is_member(attr.gid) {
        3
    } else {
        0
    };
    (attr.perm >> shift) & want == want
}

impl<F: Format> Volume<F> {
    /// Fails with EACCES if permission is missing, unless the kernel has checked it.
    pub(crate) fn check(&self, who: &Credentials, inode: &Shared<F>, want: u32) -> Result<()> {
        if who.checked_here() { self.check_always(who, inode, want) } else { Ok(()) }
    }

    /// Fails with EACCES if permission is missing, also if the kernel has checked it.
    pub(crate) fn check_always(&self, who: &Credentials, inode: &Shared<F>, want: u32) -> Result<()> {
        let attr = inode.attr();
        let acl = if who.is_root() { None } else { self.acl(inode, XattrSpace::AclAccess)? };
        if allows(who, &attr, acl.as_deref(), want) { Ok(()) } else { Err(Error::Posix(libc::EACCES)) }
    }

    /// Returns an inode's ACL, and remembers it for the next call.
    pub(crate) fn acl(&self, inode: &Shared<F>, space: XattrSpace) -> Result<Option<Arc<Acl>>> {
        let known = {
            let state = inode.state.lock();
            if space == XattrSpace::AclDefault { state.default_acl.clone() } else { state.access_acl.clone() }
        };
        if let AclCache::Known(acl) = known {
            return Ok(acl);
        }
        let value = self.format.xattr(&inode.node, &XattrKey { space, suffix: Box::default() })?;
        let acl = match value {
            None => None,
            Some(bytes) => Some(Arc::new(Acl::parse(&bytes).map_err(|_| Error::Damaged {
                structure: format!("ACL of inode {}", inode.ino),
                block: None,
                problem: "it cannot be decoded".into(),
            })?)),
        };
        self.remember_acl(inode, space, acl.clone());
        Ok(acl)
    }

    pub(crate) fn remember_acl(&self, inode: &Shared<F>, space: XattrSpace, acl: Option<Arc<Acl>>) {
        let mut state = inode.state.lock();
        match space {
            XattrSpace::AclDefault => state.default_acl = AclCache::Known(acl),
            _ => state.access_acl = AclCache::Known(acl),
        }
    }

    /// Checks that names may be added to a directory: it is writable, alive, not immutable.
    pub(crate) fn check_may_add(&self, who: &Credentials, dir: &Shared<F>) -> Result<()> {
        self.check_dir_alive(dir)?;
        self.check(who, dir, W | X)?;
        if dir.attr().flags & IMMUTABLE != 0 {
            return Err(Error::Posix(libc::EPERM));
        }
        Ok(())
    }

    /// Fails with ENOENT in a directory that was removed.
    pub(crate) fn check_dir_alive(&self, dir: &Shared<F>) -> Result<()> {
        dir.check_alive()?;
        if dir.nlink() == 0 { Err(Error::Posix(libc::ENOENT)) } else { Ok(()) }
    }

    /// Checks that a name may be removed: sticky directories let only owners do it; flags forbid it.
    pub(crate) fn check_may_remove(&self, who: &Credentials, dir: &Shared<F>, child: &Shared<F>) -> Result<()> {
        self.check_dir_alive(dir)?;
        self.check(who, dir, W | X)?;
        let (d, c) = (dir.attr(), child.attr());
        let stuck = d.perm & STICKY != 0 && !who.is_root() && who.uid != d.uid && who.uid != c.uid;
        let fixed = d.flags & (IMMUTABLE | APPEND_ONLY) != 0 || c.flags & (IMMUTABLE | APPEND_ONLY) != 0;
        if fixed || (stuck && who.checked_here()) {
            return Err(Error::Posix(libc::EPERM));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_inherit_wishes_but_neither_prohibitions_nor_a_top_directory() {
        let dir = WISHES | NO_DUMP | DIR_SYNC | IMMUTABLE | APPEND_ONLY | TOP_DIR;
        assert_eq!(inherited_flags(dir, FileKind::Directory), WISHES | NO_DUMP | DIR_SYNC);
        assert_eq!(inherited_flags(dir, FileKind::Regular), WISHES | NO_DUMP);
        assert_eq!(inherited_flags(dir, FileKind::Symlink), NO_DUMP);
        assert!(flags_fit(TOP_DIR, FileKind::Directory) && !flags_fit(TOP_DIR, FileKind::Regular));
    }

    #[test]
    fn sgid_stays_only_for_members_of_a_group_that_may_not_execute() {
        let caller = |uid, groups: &[u32]| Credentials { uid, groups: groups.into(), ..Credentials::root() };
        for (who, keeps) in [(caller(0, &[]), true), (caller(5, &[300]), true), (caller(5, &[100]), false)] {
            assert_eq!(without_set_ids(&who, 0o6755, 300), 0o755);
            assert_eq!(without_set_ids(&who, 0o6745, 300), if keeps { 0o2745 } else { 0o745 });
        }
    }
}
