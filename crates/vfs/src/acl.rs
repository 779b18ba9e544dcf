//! POSIX ACLs (the withdrawn POSIX 1003.1e draft 17, as Linux has them): evaluation, inheritance, and how they
//! and the mode bits mirror each other.

use crate::credentials::Credentials;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The version number in the system call's form.
const VERSION: u32 = 2;
/// Bytes of the header of the system call's form.
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries that name no user or group.
const NO_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// An access control list that is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    /// The entries in canonical order.
    entries: Vec<Entry>,
}

/// Bytes that are no valid ACL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Acl {
    /// Decodes the system call's form and checks it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Acl, Invalid> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(Invalid)?;
        let version = u32::from_le_bytes(header.try_into().map_err(|_| Invalid)?);
        if version != VERSION || rest.len() % ENTRY_BYTES != 0 {
            return Err(Invalid);
        }
        let entry = |e: &[u8]| Entry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            perm: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        };
        let acl = Acl { entries: rest.chunks_exact(ENTRY_BYTES).map(entry).collect() };
        acl.check()?;
        Ok(acl)
    }

    /// Encodes the ACL in the system call's form.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for e in &self.entries {
            bytes.extend(e.tag.to_le_bytes());
            bytes.extend(e.perm.to_le_bytes());
            let id = if matches!(e.tag, USER | GROUP) { e.id } else { NO_ID };
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn check(&self) -> Result<(), Invalid> {
        let count = |tag| self.entries.iter().filter(|e| e.tag == tag).count();
        let known = |e: &Entry| matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && e.perm <= 7;
        let ordered = self.entries.windows(2).all(|w| w[0].tag <= w[1].tag);
        let named = count(USER) + count(GROUP);
        let complete = count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1;
        let masked = count(MASK) <= 1 && (named == 0 || count(MASK) == 1);
        if self.entries.iter().all(known) && ordered && complete && masked { Ok(()) } else { Err(Invalid) }
    }

    fn perm_of(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn set(&mut self, tag: u16, perm: u32) {
        for e in self.entries.iter_mut().filter(|e| e.tag == tag) {
            e.perm = (perm & 7) as u16;
        }
    }

    /// Returns the permissions that the mode's group bits show: the mask if there is one.
    fn group_class(&self) -> u16 {
        if self.perm_of(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// Returns true if the mode bits alone say the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Returns the nine permission bits that mirror the ACL.
    pub(crate) fn mode_bits(&self) -> u32 {
        let of = |tag| u32::from(self.perm_of(tag).unwrap_or(0));
        of(USER_OBJ) << 6 | of(self.group_class()) << 3 | of(OTHER)
    }

    /// Changes owner, mask (or group) and other as chmod to `perm` does.
    pub(crate) fn set_mode_bits(&mut self, perm: u32) {
        self.set(USER_OBJ, perm >> 6);
        self.set(self.group_class(), perm >> 3);
        self.set(OTHER, perm);
    }

    /// Returns the access ACL of a file made with `perm` in a directory with this default ACL, and its mode
    /// bits: each permission is granted only if both grant it.
    pub(crate) fn inherit(&self, perm: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        let bits = self.mode_bits() & perm & 0o777;
        acl.set_mode_bits(bits);
        (acl, (perm & !0o777) | bits)
    }

    /// Returns true if a caller who is not the owner may do all of `want`. `gid` is the file's group.
    pub(crate) fn allows(&self, who: &Credentials, gid: u32, want: u32) -> bool {
        let want = want as u16;
        let mask = self.perm_of(MASK).unwrap_or(7);
        if let Some(e) = self.entries.iter().find(|e| e.tag == USER && e.id == who.uid) {
            return e.perm & mask & want == want;
        }
        let is_mine = |e: &&Entry| match e.tag {
            GROUP_OBJ => who.is_member(gid),
            GROUP => who.is_member(e.id),
            _ => false,
        };
        let mut mine = self.entries.iter().filter(is_mine).peekable();
        if mine.peek().is_some() {
            return mine.any(|e| e.perm & mask & want == want);
        }
        self.perm_of(OTHER).unwrap_or(0) & want == want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect() }
    }

    fn who(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, ..Credentials::root() }
    }

    fn example() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 10),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 7, 20),
            (MASK, 5, NO_ID),
            (OTHER, 0, NO_ID),
        ])
    }

    #[test]
    fn parse_reads_what_emit_wrote() {
        assert_eq!(Acl::parse(&example().emit()), Ok(example()));
    }

    #[test]
    fn named_entries_need_a_mask() {
        let bad = acl(&[(USER_OBJ, 7, NO_ID), (USER, 6, 10), (GROUP_OBJ, 5, NO_ID), (OTHER, 0, NO_ID)]);
        assert_eq!(Acl::parse(&bad.emit()), Err(Invalid));
        assert_eq!(Acl::parse(&[2, 0, 0]), Err(Invalid));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Err(Invalid));
    }

    #[test]
    fn the_mask_limits_named_users_and_groups() {
        let acl = example();
        assert!(acl.allows(&who(10, 1), 99, 4));
        assert!(!acl.allows(&who(10, 1), 99, 2), "rw- masked with r-x");
        assert!(acl.allows(&who(11, 20), 99, 5));
        assert!(!acl.allows(&who(11, 20), 99, 2));
        assert!(!acl.allows(&who(12, 30), 99, 4));
    }

    #[test]
    fn chmod_changes_the_mask() {
        let mut acl = example();
        acl.set_mode_bits(0o731);
        assert_eq!(acl.perm_of(MASK), Some(3));
        assert_eq!(acl.perm_of(GROUP_OBJ), Some(5));
        assert_eq!(acl.mode_bits(), 0o731);
    }

    #[test]
    fn a_new_file_inherits_the_lesser() {
        let (acl, perm) = example().inherit(0o4664);
        assert_eq!(perm, 0o4640);
        assert_eq!(acl.mode_bits(), 0o640);
    }
}
