//! Checksums of blocks of metadata (ext4), stored when a transaction takes its images.
//!
//! Only structures that fill a block are sealed here: directory blocks, nodes of extent trees, attribute blocks. What
//! shares its block with others (inodes, descriptors, the superblock) is sealed by the code that changes it, which
//! knows whose bytes it changes.

use moafs_disk::Kind;

use crate::format::{BlockNo, Checksums, Owner, Sealed, dir};

/// Stores the checksum of a block that is about to be written, if its kind has one.
///
/// # Errors
/// If the block has no place for a checksum, in words: it must not reach the disk.
pub(super) fn seal(
    checksums: &Checksums,
    no: u64,
    kind: Kind,
    owner: Option<Owner>,
    bytes: &mut [u8],
) -> Result<(), String> {
    if !checksums.cover_all() {
        return Ok(());
    }
    let what = match (kind, owner) {
        (Kind::Directory, Some(owner)) => dir::sealed_by_shape(bytes, owner),
        (Kind::Directory, None) => return Err("it belongs to no directory".to_owned()),
        (Kind::Map, Some(owner)) => Sealed::Extents(owner),
        (Kind::Xattr, _) => Sealed::Xattrs(BlockNo(no)),
        // Indirect blocks and targets of symbolic links have no checksum.
        _ => return Ok(()),
    };
    checksums.seal(what, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{InodeNo, put_u16, put_u32};

    const SUMS: Checksums = Checksums::All { seed: 7 };
    const OWNER: Owner = Owner { ino: InodeNo(12), generation: 3 };

    fn sealed(kind: Kind, owner: Option<Owner>, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut bytes = bytes.to_vec();
        seal(&SUMS, 9, kind, owner, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn structures_that_fill_a_block_get_the_checksum_of_their_kind() {
        let mut leaf = [0; 1024];
        put_u16(&mut leaf, 4, 1012);
        leaf[1012..1020].copy_from_slice(&[0, 0, 0, 0, 12, 0, 0, 0xDE]);
        let bytes = sealed(Kind::Directory, Some(OWNER), &leaf).unwrap();
        SUMS.verify(Sealed::Leaf(OWNER), &bytes).unwrap();

        let mut node = [0; 1024];
        put_u16(&mut node, 4, 1024);
        put_u32(&mut node, 8, 126 | 1 << 16);
        let bytes = sealed(Kind::Directory, Some(OWNER), &node).unwrap();
        SUMS.verify(Sealed::IndexNode(OWNER), &bytes).unwrap();

        let mut extents = [0; 1024];
        put_u16(&mut extents, 4, 84);
        let bytes = sealed(Kind::Map, Some(OWNER), &extents).unwrap();
        SUMS.verify(Sealed::Extents(OWNER), &bytes).unwrap();

        let bytes = sealed(Kind::Xattr, None, &[1; 1024]).unwrap();
        SUMS.verify(Sealed::Xattrs(BlockNo(9)), &bytes).unwrap();
    }

    #[test]
    fn other_blocks_stay_as_they_are() {
        for (kind, owner) in [(Kind::Map, None), (Kind::Symlink, None), (Kind::Bitmap, None), (Kind::Inodes, None)] {
            assert_eq!(sealed(kind, owner, &[1; 1024]).unwrap(), [1; 1024]);
        }
        let mut plain = [1; 1024];
        seal(&Checksums::Absent, 9, Kind::Xattr, None, &mut plain).unwrap();
        assert_eq!(plain, [1; 1024]);
    }

    #[test]
    fn a_block_without_a_place_for_its_checksum_is_refused() {
        assert!(sealed(Kind::Directory, Some(OWNER), &[0; 1024]).is_err());
        assert!(sealed(Kind::Directory, None, &[0; 1024]).is_err());
    }
}
