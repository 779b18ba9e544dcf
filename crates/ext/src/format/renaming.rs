//! The rename that a file is going through, noted in its inode.
//!
//! Without a journal a rename is several writes: the new name, then the removal of the old one. After a crash between
//! them the file has both names, and nothing would tell them from two links that a user made. A program that then makes
//! its temporary file anew, under the old name, would empty the file under the new one. So while a file may have both
//! names on the disk, its inode says what moves where.
//!
//! The fields used mean nothing on a volume without checksums of metadata: neither e2fsck nor the kernel looks at them
//! there (the low half of the inode version, two fields next to the inode's end, and the version's high half).

use std::num::NonZeroU16;

use super::extra::Extra;
use super::fnv::{hash_of, hash_on};
use super::{InodeNo, Superblock, put_u16, put_u32, u16_at, u32_at};

/// `osd1`: the directory of the new name.
const TO: usize = 0x24;
/// `i_checksum_lo`: the mark of the old name.
const OLD: usize = 0x7C;
/// The last two bytes of the first 128: the mark of the new name.
const NEW: usize = 0x7E;
/// `i_version_hi`: the directory of the old name. In slots without it both names lie in one directory.
const FROM: usize = 0x98;

/// A rename of a file that may be half done on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renaming {
    /// The directory of the old name.
    pub from: InodeNo,
    /// A mark of the old name: a hash of it.
    pub old: NonZeroU16,
    /// The directory of the new name.
    pub to: InodeNo,
    /// A mark of the new name.
    pub new: NonZeroU16,
}

impl Renaming {
    /// Returns what a slot says; `None` if the file is not being renamed.
    pub(super) fn parse(slot: &[u8]) -> Option<Renaming> {
        let (old, new) = (NonZeroU16::new(u16_at(slot, OLD))?, NonZeroU16::new(u16_at(slot, NEW))?);
        let to = u32_at(slot, TO);
        let from = if has_from(slot) { u32_at(slot, FROM) } else { to };
        Some(Renaming { from: InodeNo(from), old, to: InodeNo(to), new })
    }

    /// Stores it in a slot. One without a field for the old name's directory does not tell of a rename across
    /// directories.
    pub(super) fn encode_into(self, slot: &mut [u8]) {
        if !has_from(slot) && self.from != self.to {
            return Renaming::clear(slot);
        }
        put_u32(slot, TO, self.to.0);
        put_u16(slot, OLD, self.old.get());
        put_u16(slot, NEW, self.new.get());
        if has_from(slot) {
            put_u32(slot, FROM, self.from.0);
        }
    }

    /// Takes away what a slot says of a rename. Other drivers' inode versions stay.
    pub(super) fn clear(slot: &mut [u8]) {
        if Renaming::parse(slot).is_none() {
            return;
        }
        put_u32(slot, TO, 0);
        put_u32(slot, OLD, 0);
        if has_from(slot) {
            put_u32(slot, FROM, 0);
        }
    }
}

/// Makes the marks by which an inode tells of the name that it is about to lose and the one that it gets. They hold for
/// one mount and the recovery of its crash: what an inode still tells once a checker or another driver has had the
/// volume matches no name.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    seed: u32,
}

impl Marks {
    /// Makes the marks of the mount that the superblock tells of.
    pub fn of(superblock: &Superblock) -> Marks {
        let mount = [&superblock.mtime().to_le_bytes()[..], &superblock.mnt_count().to_le_bytes()].concat();
        Marks { seed: hash_of(&mount) }
    }

    /// Returns the mark of the mount itself.
    pub fn of_mount(self) -> u32 {
        self.seed
    }

    #[cfg(test)]
    pub(super) fn of_seed(seed: u32) -> Marks {
        Marks { seed }
    }

    /// Returns the mark of a name that goes.
    pub fn of_old(self, name: &[u8]) -> NonZeroU16 {
        mark(self.hash(name) >> 16)
    }

    /// Returns the mark of a name that comes: other bits of its hash, so that two names with the same mark in one part
    /// can be told apart.
    pub fn of_new(self, name: &[u8]) -> NonZeroU16 {
        mark(self.hash(name))
    }

    /// Returns a hash of a name, whose halves have nothing to do with each other.
    pub fn hash(self, name: &[u8]) -> u32 {
        let mut hash = hash_on(self.seed, name);
        for factor in [0x7FEB_352D, 0x846C_A68B] {
            hash = (hash ^ hash >> 16).wrapping_mul(factor);
        }
        hash ^ hash >> 15
    }
}

fn mark(hash: u32) -> NonZeroU16 {
    NonZeroU16::new(hash as u16).unwrap_or(NonZeroU16::MIN)
}

/// The names of a file that a note of a rename may speak of. One of two names may have the mark of the other as well,
/// so up to two are kept for either.
#[derive(Debug, Clone)]
pub struct Candidates {
    renaming: Renaming,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
}

impl Candidates {
    /// Starts the search for the names of a rename.
    pub fn of(renaming: Renaming) -> Candidates {
        Candidates { renaming, old: Vec::new(), new: Vec::new() }
    }

    /// Returns the rename.
    pub fn renaming(&self) -> Renaming {
        self.renaming
    }

    /// Takes a name of the file, in a directory that the root leads to.
    pub fn take(&mut self, marks: Marks, dir: InodeNo, name: &[u8]) {
        let Renaming { from, old, to, new } = self.renaming;
        let found = [
            (from == dir && marks.of_old(name) == old, &mut self.old),
            (to == dir && marks.of_new(name) == new, &mut self.new),
        ];
        for (_, names) in found.into_iter().filter(|(is_it, names)| *is_it && names.len() < 2) {
            names.push(name.to_vec());
        }
    }

    /// Returns the old name if the file has it and the new one.
    pub fn old_name(&self) -> Option<&[u8]> {
        let is_another =
            |old: &Vec<u8>| self.renaming.from != self.renaming.to || self.new.iter().any(|new| new != old);
        self.old.iter().find(|old| !self.new.is_empty() && is_another(old)).map(Vec::as_slice)
    }
}

fn has_from(slot: &[u8]) -> bool {
    Extra::of(slot).covers(FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `i_extra_isize`.
    const EXTRA_ISIZE: usize = 0x80;

    fn renaming(from: u32, to: u32) -> Renaming {
        let mark = |value| NonZeroU16::new(value).unwrap();
        Renaming { from: InodeNo(from), old: mark(7), to: InodeNo(to), new: mark(0xFFFF) }
    }

    #[test]
    fn a_slot_tells_of_the_rename_that_was_stored_in_it() {
        let mut large = [0; 256];
        put_u16(&mut large, EXTRA_ISIZE, 32);
        renaming(12, 13).encode_into(&mut large);
        assert_eq!(Renaming::parse(&large), Some(renaming(12, 13)));
        Renaming::clear(&mut large);
        assert_eq!(Renaming::parse(&large), None);
        assert_eq!(large[..EXTRA_ISIZE], [0; 128]);
        assert_eq!(u32_at(&large, FROM), 0);
    }

    #[test]
    fn a_short_slot_tells_of_renames_within_a_directory_only() {
        let mut short = [0; 128];
        renaming(12, 12).encode_into(&mut short);
        assert_eq!(Renaming::parse(&short), Some(renaming(12, 12)));
        renaming(12, 13).encode_into(&mut short);
        assert_eq!(Renaming::parse(&short), None);
    }

    #[test]
    fn inode_versions_of_the_kernel_are_no_rename_and_stay() {
        let mut slot = [0; 256];
        put_u16(&mut slot, EXTRA_ISIZE, 32);
        put_u32(&mut slot, TO, 5);
        put_u32(&mut slot, FROM, 6);
        assert_eq!(Renaming::parse(&slot), None);
        let before = slot;
        Renaming::clear(&mut slot);
        assert_eq!(slot, before);
    }
}
