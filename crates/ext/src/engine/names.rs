//! The names of a directory in memory: where each lies in the directory's blocks.

use std::sync::atomic::AtomicBool;

use hashbrown::HashTable;
use moafs_vfs::types::{Cookie, FileKind};

use crate::format::InodeNo;
use crate::format::casefold::fold;
use crate::format::fnv::hash_of;
use crate::meta::Level;

/// Names in the order of the places that they had before they moved into an index.
pub(super) type FormerPlaces = Box<[(Cookie, Box<[u8]>)]>;

/// The names of one directory, by hash.
pub(super) struct Index {
    pub(super) slots: HashTable<Slot>,
    /// The address of each of the directory's blocks.
    pub(super) blocks: Vec<u64>,
    /// The names of a directory that lies inside its inode, as one block: it has none on the volume.
    pub(super) inline: Option<Vec<u8>>,
    /// True once a list by place has begun.
    pub(super) is_listed: AtomicBool,
    /// The names that the directory had when it got an index, and where, if they were being listed then.
    pub(super) former: Option<FormerPlaces>,
    /// True if names are found without regard to case.
    pub(super) folds: bool,
    /// For each block an upper bound of the longest name that fits into it.
    pub(super) room: Vec<u8>,
    /// The number of the block where insertions look first.
    pub(super) cursor: usize,
    /// Number of names without `.` and `..`.
    pub(super) names: usize,
    /// Bytes charged to the memory budget.
    pub(super) charged: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) hash: u32,
    pub(super) lbn: u32,
    pub(super) offset: u32,
}

/// The entry that a look-up has found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) ino: InodeNo,
    pub(super) kind: Option<FileKind>,
    pub(super) lbn: u32,
    pub(super) offset: u32,
}

impl Found {
    /// Returns what a look-up finds of an entry.
    pub(super) fn at(ino: InodeNo, lbn: usize, offset: usize) -> Found {
        Found { ino, kind: None, lbn: lbn as u32, offset: offset as u32 }
    }
}

/// The levels at which names that were removed from a directory are gone from the disk, by the hash of the name. A
/// name that is added again waits for that: it may lie in another sector, and the disk must not show it twice.
/// Several names share a level, which bounds the memory; to wait for another name's removal does no harm.
#[derive(Default)]
pub(super) struct Removals(Option<Box<[Level; Removals::SHARES]>>);

impl Removals {
    const SHARES: usize = 64;

    /// Returns the level at which the last removal of a name is on disk.
    pub(super) fn level(&self, name: &[u8]) -> Level {
        self.0.as_ref().map_or(Level::NONE, |levels| levels[Removals::share(name)])
    }

    pub(super) fn note(&mut self, name: &[u8], level: Level) {
        if level != Level::NONE {
            let levels = self.0.get_or_insert_with(|| Box::new([Level::NONE; Removals::SHARES]));
            let shared = &mut levels[Removals::share(name)];
            *shared = level.max(*shared);
        }
    }

    fn share(name: &[u8]) -> usize {
        hash_of(name) as usize % Removals::SHARES
    }
}

pub(super) fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Index {
    /// Returns about how many bytes the index takes.
    pub(super) fn memory(&self) -> usize {
        let inline = self.inline.as_ref().map_or(0, Vec::len);
        let former = self.former.iter().flatten().map(|(_, name)| name.len() + size_of::<(Cookie, Box<[u8]>)>());
        self.slots.capacity() * (size_of::<Slot>() + 1) + self.blocks.len() * 9 + inline + former.sum::<usize>()
    }

    /// Returns the bytes charged to the memory budget.
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    /// Returns the hash under which a name is kept.
    pub(super) fn hash(&self, name: &[u8]) -> u32 {
        if self.folds { hash_of(&fold(name)) } else { hash_of(name) }
    }

    /// Returns the address of each of the directory's blocks.
    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Returns true if names are found without regard to case.
    pub(super) fn folds(&self) -> bool {
        self.folds
    }

    pub(super) fn add(&mut self, name: &[u8], lbn: u32, offset: u32) {
        let slot = Slot { hash: self.hash(name), lbn, offset };
        self.slots.insert_unique(spread(slot.hash), slot, |slot| spread(slot.hash));
        self.names += usize::from(!is_dot(name));
    }

    pub(super) fn drop_name(&mut self, name: &[u8], found: Found) {
        let here = |slot: &Slot| slot.lbn == found.lbn && slot.offset == found.offset;
        if let Ok(slot) = self.slots.find_entry(spread(self.hash(name)), here) {
            slot.remove();
            self.names -= usize::from(!is_dot(name));
        }
        self.room[found.lbn as usize] = u8::MAX;
        self.cursor = self.cursor.min(found.lbn as usize);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names == 0
    }
}

/// Spreads a hash over 64 bits: hash tables want the high bits to differ as well.
pub(super) fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
