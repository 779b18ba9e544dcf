//! The caller of a call: user, groups, and the layer that has checked, or must check, permissions.

use smallvec::SmallVec;

use crate::format::SpaceClass;

/// The credentials of the caller.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups (needed only with [`Checks::Needed`], and for sgid clearing).
    pub groups: SmallVec<[u32; 8]>,
    /// The layer that checks permissions.
    pub checks: Checks,
}

/// The layer that checks permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// The kernel has checked them (`default_permissions`).
    Done,
    /// vfs must check them.
    Needed,
}

impl Credentials {
    /// Returns the credentials of root, unchecked: for tools and tests.
    pub fn root() -> Credentials {
        Credentials { uid: 0, gid: 0, groups: SmallVec::new(), checks: Checks::Done }
    }

    /// Returns true if `gid` is the caller's group or one of the supplementary ones.
    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn checked_here(&self) -> bool {
        self.checks == Checks::Needed
    }

    /// Returns true if a change of contents by this caller clears suid and sgid. A kernel that checks permissions
    /// decides that by the caller's capabilities, and asks for it ([`crate::calls::SetAttr::kill_suidgid`]).
    pub(crate) fn loses_set_ids(&self) -> bool {
        self.checked_here() && !self.is_root()
    }

    /// Returns the class of space that the caller may use.
    pub(crate) fn space_class(&self) -> SpaceClass {
        if self.is_root() { SpaceClass::Root } else { SpaceClass::User { uid: self.uid, gid: self.gid } }
    }
}
