//! Attribute blocks that inodes share: the number of references that each says it has, against the inodes that refer to
//! it.
//!
//! An inode gives its reference up before the block's number changes, so a crash leaves numbers that are too high. (One
//! that is too low, which no crash of moafs leaves, would make the block free while an inode uses it.) So ops change no
//! number until recovery has seen all inodes: references that they give up are noted, and each wrong number is
//! corrected then.

use std::collections::BTreeMap;

use crate::meta::Level;

/// Blocks that one step of the pass corrects at most.
const CORRECTED_AT_ONCE: usize = 64;

/// The correction of an attribute block's number of references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct WrongReferences {
    /// References that the block counts beyond those of inodes; negative if it counts too few.
    pub(in crate::engine) excess: i64,
    /// The level at which the inodes that gave up a reference since the mount are on disk.
    pub(in crate::engine) needs: Level,
}

/// The attribute blocks whose numbers of references are wrong.
pub(super) struct References {
    wrong: BTreeMap<u64, WrongReferences>,
    /// True until all inodes were looked at.
    is_counting: bool,
}

impl References {
    pub(super) fn new() -> References {
        References { wrong: BTreeMap::new(), is_counting: true }
    }

    /// Notes that a block counts `excess` more references than inodes were found, those noted before included.
    pub(super) fn note(&mut self, block: u64, excess: i64) {
        let wrong = self.wrong.entry(block).or_default();
        wrong.excess += excess;
        if *wrong == WrongReferences::default() {
            self.wrong.remove(&block);
        }
    }

    /// Notes that an inode gives up its reference to a block, at the level `needs`. False if the block's number is to
    /// be changed at once.
    pub(super) fn defer(&mut self, block: u64, needs: Level) -> bool {
        if !self.is_counting && !self.wrong.contains_key(&block) {
            return false;
        }
        let wrong = self.wrong.entry(block).or_default();
        wrong.excess += 1;
        wrong.needs = wrong.needs.max(needs);
        true
    }

    pub(super) fn take(&mut self, block: u64) -> Option<WrongReferences> {
        self.wrong.remove(&block)
    }

    pub(super) fn memory(&self) -> usize {
        self.wrong.len() * size_of::<(u64, WrongReferences)>()
    }

    /// Ends the counting. Returns some of the blocks that are to be corrected.
    pub(super) fn end_counting(&mut self) -> Vec<u64> {
        self.is_counting = false;
        self.wrong.keys().take(CORRECTED_AT_ONCE).copied().collect()
    }
}
