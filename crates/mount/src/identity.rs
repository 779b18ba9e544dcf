//! [`Identity`]: the credentials of a request on the volume, and the owners that the kernel is told of.
//!
//! The only place that knows of the options `uid=`, `gid=`, `umask=` and `fakeroot`. The front asks it at three
//! points: who makes a file ([`Identity::caller`]), as whom a caller changes a file that exists
//! ([`Identity::changer`]), and what attributes the kernel is told ([`Identity::shown`]). Identities of the control
//! directory are never mapped: they are those of the host.
//!
//! * *As stored* (no option): the kernel checks permissions, and everything passes as it is.
//! * *Overridden* (`uid=`, `gid=`, `umask=`): the kernel checks permissions by what it is told. A caller who owns a
//!   file as it is shown owns it on the volume as well. New files are stored with the owner that is shown. Set-user-id
//!   and set-group-id would give rights of the owner that is shown, so they are neither shown nor stored, and a change
//!   of contents takes those away that the volume has. ACLs name users that are not shown, so they are hidden.
//! * *Fake root* (`fakeroot`): the kernel checks nothing, and one user alone may use the mount. Owners are shown as
//!   they are stored, and each caller may change all files, as root may.

use moafs_fuse::{Errno, FileAttr, MountFlags, ReqCtx, SetAttr};
use moafs_vfs::Credentials;
use moafs_vfs::api::Checks;
use moafs_vfs::types::Attr;
use smallvec::SmallVec;

use crate::process;

/// Set-user-id and set-group-id.
const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;

/// Permission bits of the owner, the group and others.
const ACCESS: u32 = 0o777;

/// Flags of every mount whose identities are not those of the volume: its owners and permissions must not give power
/// on the host.
pub(crate) const IDENTITY_FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// The mapping between the identities of the host and those on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// Owners and permissions are those on the volume.
    #[default]
    Stored,
    /// Owners or permissions are overridden for all files.
    Overridden(Overrides),
    /// The user who mounted acts as root.
    FakeRoot,
}

/// The owner, group and permissions that all files are shown with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// `uid=`: the owner.
    pub uid: Option<u32>,
    /// `gid=`: the group.
    pub gid: Option<u32>,
    /// `umask=`: the permission bits that no file has; all have the others.
    pub umask: Option<u32>,
}

impl Identity {
    /// Returns the overrides, so that an option can add one; those of fake root are none.
    pub(crate) fn overrides(self) -> Overrides {
        if let Identity::Overridden(overrides) = self { overrides } else { Overrides::default() }
    }

    /// Returns true if the kernel checks permissions, ACLs included, by what is on the volume.
    pub(crate) fn is_stored(self) -> bool {
        self == Identity::Stored
    }

    /// Returns the caller's credentials for calls that make files or use space. What permissions say of the call has
    /// been checked, if it is checked at all.
    pub(crate) fn caller(self, ctx: &ReqCtx) -> Credentials {
        let Overrides { uid, gid, .. } = self.overrides();
        let (uid, gid) = (uid.unwrap_or(ctx.uid), gid.unwrap_or(ctx.gid));
        Credentials { uid, gid, groups: SmallVec::new(), checks: Checks::Done }
    }

    /// Returns the credentials for making a file with this mode. Supplementary groups decide only whether it may have
    /// set-group-id in a directory of another group.
    pub(crate) fn creator(self, ctx: &ReqCtx, mode: u32) -> Credentials {
        let matter = self.is_stored() && mode & libc::S_ISGID != 0;
        Credentials { groups: groups(ctx, matter), ..self.caller(ctx) }
    }

    /// Returns the credentials for a change of attributes of a file that has `attr` on the volume. Supplementary groups
    /// decide only whether it keeps a set-group-id that is no right to execute.
    pub(crate) fn changer(self, ctx: &ReqCtx, attr: &Attr) -> Credentials {
        let uid = match self {
            Identity::Stored => ctx.uid,
            Identity::FakeRoot => 0,
            Identity::Overridden(overrides) => match overrides.uid {
                Some(shown) if shown == ctx.uid => attr.uid,
                // Root may change what it sees, and others what is theirs on the volume.
                _ => ctx.uid,
            },
        };
        let matter = self.is_stored() && attr.perm & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
        Credentials { uid, gid: ctx.gid, groups: groups(ctx, matter), checks: Checks::Done }
    }

    /// Returns true if a change of contents takes set-ids away, whatever the kernel knows of the file and its caller.
    pub(crate) fn drops_set_ids(self) -> bool {
        matches!(self, Identity::Overridden(_))
    }

    /// Returns true if the caller may use the whole volume as root may.
    pub(crate) fn is_root(self, ctx: &ReqCtx) -> bool {
        ctx.uid == 0 || self == Identity::FakeRoot
    }

    /// Returns the mode to store for a new file.
    pub(crate) fn stored_mode(self, mode: u32) -> u32 {
        if self.drops_set_ids() { mode & !SET_IDS } else { mode }
    }

    /// Returns the change that a request asks of the volume.
    ///
    /// # Errors
    /// EPERM for another owner or group than the one that all files are shown with.
    pub(crate) fn stored_change(self, set: &SetAttr) -> Result<SetAttr, Errno> {
        let Identity::Overridden(overrides) = self else { return Ok(*set) };
        let kept = |asked: Option<u32>, shown: Option<u32>| match (asked, shown) {
            (Some(asked), Some(shown)) if asked != shown => Err(Errno::EPERM),
            (_, Some(_)) => Ok(None),
            (asked, None) => Ok(asked),
        };
        Ok(SetAttr {
            uid: kept(set.uid, overrides.uid)?,
            gid: kept(set.gid, overrides.gid)?,
            mode: set.mode.map(|mode| self.stored_mode(mode)),
            kill_suidgid: set.kill_suidgid || set.size.is_some(),
            ..*set
        })
    }

    /// Returns the attributes that the kernel is told of a file.
    pub(crate) fn shown(self, attr: FileAttr) -> FileAttr {
        let Identity::Overridden(Overrides { uid, gid, umask }) = self else { return attr };
        let is_link = attr.mode & libc::S_IFMT == libc::S_IFLNK;
        let mode = match umask {
            Some(umask) if !is_link => attr.mode & libc::S_IFMT | ACCESS & !umask,
            _ => attr.mode & !SET_IDS,
        };
        FileAttr { uid: uid.unwrap_or(attr.uid), gid: gid.unwrap_or(attr.gid), mode, ..attr }
    }

    /// Returns true for extended attributes that callers do not see: ACLs of users who are not shown, and what the
    /// kernel keeps for root.
    pub(crate) fn hides(self, name: &[u8]) -> bool {
        match self {
            Identity::Stored => false,
            Identity::Overridden(_) => name.starts_with(b"system.posix_acl_"),
            Identity::FakeRoot => name.starts_with(b"trusted."),
        }
    }
}

/// Returns the supplementary groups of a request's caller if they `matter`: requests do not carry them, so they are
/// read from /proc.
fn groups(ctx: &ReqCtx, matter: bool) -> SmallVec<[u32; 8]> {
    if matter && ctx.uid != 0 { process::groups(ctx.pid) } else { SmallVec::new() }
}

#[cfg(test)]
mod tests {
    use moafs_fuse::NodeId;
    use moafs_vfs::types::FileKind;

    use super::*;

    const ANN: u32 = 1000;
    const BOB: u32 = 2000;

    fn by(uid: u32) -> ReqCtx {
        ReqCtx { unique: 1, node: NodeId::ROOT, uid, gid: uid, pid: 1 }
    }

    fn of(uid: u32, perm: u32) -> Attr {
        let time = moafs_runtime::Timestamp::default();
        Attr {
            kind: FileKind::Regular,
            perm,
            uid,
            gid: uid,
            nlink: 1,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: None,
            rdev: 0,
            generation: 0,
            flags: 0,
        }
    }

    fn overridden(uid: u32, umask: Option<u32>) -> Identity {
        Identity::Overridden(Overrides { uid: Some(uid), gid: Some(uid), umask })
    }

    fn told(identity: Identity, mode: u32) -> (u32, u32, u32) {
        let FileAttr { uid, gid, mode, .. } = identity.shown(FileAttr { uid: 0, gid: 5, mode, ..FileAttr::default() });
        (uid, gid, mode)
    }

    #[test]
    fn files_are_shown_as_the_options_say() {
        let mode = libc::S_IFREG | 0o4640;
        assert_eq!(told(Identity::Stored, mode), (0, 5, mode));
        assert_eq!(told(Identity::FakeRoot, mode), (0, 5, mode));
        assert_eq!(
            told(overridden(ANN, None), mode),
            (ANN, ANN, libc::S_IFREG | 0o640),
            "no rights of the owner shown"
        );
        assert_eq!(told(overridden(ANN, Some(0o027)), libc::S_IFDIR | 0o1700), (ANN, ANN, libc::S_IFDIR | 0o750));
        assert_eq!(told(overridden(ANN, Some(0o077)), libc::S_IFLNK | 0o777), (ANN, ANN, libc::S_IFLNK | 0o777));
        let group = Identity::Overridden(Overrides { gid: Some(7), ..Overrides::default() });
        assert_eq!(told(group, mode), (0, 7, libc::S_IFREG | 0o640));
    }

    #[test]
    fn new_files_are_stored_with_the_owner_that_is_shown_and_those_of_a_fake_root_with_the_caller() {
        let owner = |identity: Identity| (identity.caller(&by(BOB)).uid, identity.creator(&by(BOB), 0o4755).gid);
        assert_eq!(owner(overridden(ANN, None)), (ANN, ANN));
        assert_eq!((owner(Identity::Stored), owner(Identity::FakeRoot)), ((BOB, BOB), (BOB, BOB)));
        assert_eq!(overridden(ANN, None).stored_mode(0o6755), 0o755);
        assert_eq!((Identity::Stored.stored_mode(0o6755), Identity::FakeRoot.stored_mode(0o6755)), (0o6755, 0o6755));
    }

    #[test]
    fn the_owner_that_is_shown_changes_files_as_the_owner_that_is_stored() {
        let uid = |identity: Identity, caller| identity.changer(&by(caller), &of(0, 0o644)).uid;
        assert_eq!((uid(Identity::Stored, BOB), uid(Identity::FakeRoot, BOB)), (BOB, 0));
        assert_eq!((uid(overridden(ANN, None), ANN), uid(overridden(ANN, None), BOB)), (0, BOB));
        assert!(Identity::FakeRoot.is_root(&by(BOB)) && !overridden(BOB, None).is_root(&by(BOB)));
        assert!(Identity::Stored.is_root(&by(0)));
    }

    #[test]
    fn no_other_owner_can_be_given_than_the_one_that_is_shown() {
        let identity = overridden(ANN, None);
        let change = |uid, mode| identity.stored_change(&SetAttr { uid, mode, ..SetAttr::default() });
        assert_eq!(
            change(Some(ANN), Some(0o4755)),
            change(None, Some(0o755)),
            "chown to what is shown changes nothing"
        );
        assert_eq!(change(Some(BOB), None), Err(Errno::EPERM));
        let grow = SetAttr { size: Some(3), ..SetAttr::default() };
        assert!(identity.stored_change(&grow).unwrap().kill_suidgid, "the kernel does not see the set-ids");
        let everything = SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o4755), ..grow };
        for identity in [Identity::Stored, Identity::FakeRoot] {
            assert_eq!(identity.stored_change(&everything), Ok(everything));
        }
    }

    #[test]
    fn attributes_that_name_users_who_are_not_shown_are_hidden() {
        let acl = b"system.posix_acl_access";
        assert!(overridden(ANN, None).hides(acl) && !Identity::FakeRoot.hides(acl) && !Identity::Stored.hides(acl));
        assert!(Identity::FakeRoot.hides(b"trusted.x") && !overridden(ANN, None).hides(b"user.x"));
    }
}
