//! Checksums of blocks of metadata (ext4), stored when a transaction takes its images.
//!
//! Sealed here are the structures that have a block for themselves: directory blocks, nodes of extent trees, attribute
//! blocks, the superblock. Inodes and descriptors share their blocks with others: they are sealed by the code that
//! changes them, which knows whose bytes it changes.

use moafs_disk::Page;
use moafs_vfs::{Error, Result};

use super::block::Block;
use crate::format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::format::{BlockNo, Checksums, Sealed, checksum, dir};

/// Stores a block's checksum, and returns its image for the disk.
///
/// # Errors
/// [`Error::Refused`] if the block has no place for its checksum: such a block must not reach the disk.
pub(super) fn image_of(checksums: &Checksums, block: &Block) -> Result<(BlockNo, Page)> {
    let mut guard = block.state.lock();
    let state = &mut *guard;
    if let Some(what) = state.sealed.filter(|_| checksums.cover_all()) {
        let sealed = seal(checksums, what, &mut state.bytes);
        let refused =
            |problem| Error::Refused(format!("{:?} block {} is not written: {problem}", block.kind, block.no));
        sealed.map_err(refused)?;
    }
    Ok((BlockNo(block.no), state.bytes.clone().freeze()))
}

/// Stores the checksum of what a block holds.
fn seal(checksums: &Checksums, what: Sealed, bytes: &mut [u8]) -> std::result::Result<(), String> {
    match what {
        Sealed::Leaf(owner) => checksums.seal(dir::sealed_by_shape(bytes, owner), bytes),
        Sealed::Superblock => {
            let at = SUPERBLOCK_OFFSET as usize % bytes.len();
            checksum::keep_superblock_sum(&mut bytes[at..at + SUPERBLOCK_BYTES]);
            Ok(())
        }
        what => checksums.seal(what, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{InodeNo, Owner, put_u16, put_u32};

    const SUMS: Checksums = Checksums::All { seed: 7 };
    const OWNER: Owner = Owner { ino: InodeNo(12), generation: 3 };

    fn sealed(what: Sealed, bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let mut bytes = bytes.to_vec();
        seal(&SUMS, what, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn a_directory_block_is_sealed_by_its_shape() {
        let mut leaf = [0; 1024];
        put_u16(&mut leaf, 4, 1012);
        leaf[1012..1020].copy_from_slice(&[0, 0, 0, 0, 12, 0, 0, 0xDE]);
        let bytes = sealed(Sealed::Leaf(OWNER), &leaf).unwrap();
        SUMS.verify(Sealed::Leaf(OWNER), &bytes).unwrap();

        let mut node = [0; 1024];
        put_u16(&mut node, 4, 1024);
        put_u32(&mut node, 8, 126 | 1 << 16);
        let bytes = sealed(Sealed::Leaf(OWNER), &node).unwrap();
        SUMS.verify(Sealed::IndexNode(OWNER), &bytes).unwrap();
        assert!(sealed(Sealed::Leaf(OWNER), &[0; 1024]).is_err(), "there is no place for the checksum");
    }

    #[test]
    fn the_superblock_keeps_its_second_sector() {
        for (size, at) in [(1024, 0), (4096, 1024)] {
            let mut bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
            SUMS.seal(Sealed::Superblock, &mut bytes[at..at + 1024]).unwrap();
            let before = bytes.clone();
            put_u32(&mut bytes, at + 0xE8, 4711);
            let after = sealed(Sealed::Superblock, &bytes).unwrap();
            SUMS.verify(Sealed::Superblock, &after[at..at + 1024]).unwrap();
            assert_eq!(after[at + 512..], before[at + 512..]);
            assert_eq!(after[at..at + 0x188], bytes[at..at + 0x188]);
            assert_eq!(after[..at], before[..at]);
        }
    }
}
