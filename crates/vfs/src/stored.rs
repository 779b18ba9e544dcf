//! Forms in which several formats store the same thing. vfs itself uses none of them.
//!
//! ext and F2FS number the name spaces of extended attributes alike, and keep access control lists in the same short
//! form: version 1, and no id behind entries that name no user or group (`docs/formats/ext2.md`, section 10;
//! `docs/formats/f2fs.md`, section 8).

use crate::types::XattrSpace;

/// Each name space and its number.
const SPACES: [(XattrSpace, u8); 5] = [
    (XattrSpace::User, 1),
    (XattrSpace::AclAccess, 2),
    (XattrSpace::AclDefault, 3),
    (XattrSpace::Trusted, 4),
    (XattrSpace::Security, 6),
];

/// Returns the number of a name space.
pub fn index_of_space(space: XattrSpace) -> u8 {
    SPACES.iter().find(|(known, _)| *known == space).map_or(0, |(_, index)| *index)
}

/// Returns the name space with this number; `None` for numbers that vfs does not use.
pub fn space_of_index(index: u8) -> Option<XattrSpace> {
    SPACES.iter().find(|(_, known)| *known == index).map(|(space, _)| *space)
}

/// Version of access control lists on the disk.
const ACL_DISK: u32 = 1;
/// Version of access control lists in system calls.
const ACL_SYSCALL: u32 = 2;
/// The id that system calls have in an entry that names no user or group.
const ACL_NOBODY: u32 = u32::MAX;
/// Bytes of an entry's tag and permissions, and of its id.
const ACL_PART: usize = 4;

/// Returns true if this entry, which begins with its tag, names a user or a group.
fn acl_names_somebody(entry: &[u8]) -> bool {
    matches!(entry, [0x02 | 0x08, 0, ..])
}

/// Converts an access control list from the disk to the system call's form; `None` if it is none.
pub fn acl_from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    let mut rest = disk.strip_prefix(&ACL_DISK.to_le_bytes())?;
    let mut out = ACL_SYSCALL.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (entry, behind) = rest.split_at_checked(ACL_PART)?;
        out.extend_from_slice(entry);
        rest = behind;
        if acl_names_somebody(entry) {
            let (id, behind) = rest.split_at_checked(ACL_PART)?;
            out.extend_from_slice(id);
            rest = behind;
        } else {
            out.extend_from_slice(&ACL_NOBODY.to_le_bytes());
        }
    }
    Some(out)
}

/// Converts an access control list from a system call to the disk's form; `None` if it is none.
pub fn acl_to_disk(syscall: &[u8]) -> Option<Vec<u8>> {
    let entries = syscall.strip_prefix(&ACL_SYSCALL.to_le_bytes())?;
    if !entries.len().is_multiple_of(2 * ACL_PART) {
        return None;
    }
    let mut out = ACL_DISK.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(2 * ACL_PART) {
        let stored = if acl_names_somebody(entry) { entry } else { &entry[..ACL_PART] };
        out.extend_from_slice(stored);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn name_spaces_keep_their_numbers() {
        for (space, index) in SPACES {
            assert_eq!((index_of_space(space), space_of_index(index)), (index, Some(space)));
        }
        assert_eq!(space_of_index(5), None);
    }

    #[test]
    fn access_control_lists_convert_both_ways() {
        let disk = [
            0x01, 0, 0, 0, 0x01, 0, 6, 0, 0x02, 0, 4, 0, 0xe8, 3, 0, 0, 0x04, 0, 4, 0, 0x08, 0, 5, 0, 0x4d, 0, 0, 0,
            0x10, 0, 6, 0, 0x20, 0, 4, 0,
        ];
        let syscall = acl_from_disk(&disk).unwrap();
        assert_eq!(syscall.len(), 4 + 6 * 8);
        assert_eq!(syscall[8..12], ACL_NOBODY.to_le_bytes());
        assert_eq!(syscall[16..20], 1000u32.to_le_bytes());
        assert_eq!(acl_to_disk(&syscall).unwrap(), disk);
        assert_eq!(acl_from_disk(&disk[..10]), None);
        assert_eq!(acl_to_disk(&syscall[..10]), None);
    }

    proptest! {
        #[test]
        fn hostile_lists_never_panic(version in 0u32..3, mut bytes in prop::collection::vec(0u8..40, 0..100)) {
            bytes.splice(0..0, version.to_le_bytes());
            let _ = (acl_from_disk(&bytes), acl_to_disk(&bytes));
        }
    }
}
