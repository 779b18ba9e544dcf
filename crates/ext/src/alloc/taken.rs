//! Blocks that are taken in memory only: a second bitmap of a group, over the one that the disk shows. Searches see
//! both, counts for policies leave the taken blocks out; the disk's bitmap, descriptors and superblock do not show
//! them.

use std::collections::VecDeque;
use std::ops::Range;

use moafs_runtime::leaf::Mutex;

use crate::format::{GroupNo, bitmap};
use crate::meta::Block;

/// The bits of a group that are taken.
#[derive(Default)]
pub(super) struct Taken {
    /// Has no bytes before the first block is taken.
    map: Vec<u8>,
    count: u32,
    /// True if the group waits in [`Contended`].
    is_contended: bool,
}

impl Taken {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the bitmap of the taken blocks.
    pub(super) fn map(&self) -> &[u8] {
        &self.map
    }

    /// Calls `look` with the group's bitmap in which the taken bits are set.
    pub(super) fn over<R>(&self, block: &Block, look: impl FnOnce(&[u8]) -> R) -> R {
        if self.count == 0 {
            return block.view(look);
        }
        self.over_map(block.view(<[u8]>::to_vec), look)
    }

    /// Calls `look` with a map in which the taken bits are set.
    pub(super) fn over_map<R>(&self, mut map: Vec<u8>, look: impl FnOnce(&[u8]) -> R) -> R {
        map.iter_mut().zip(&self.map).for_each(|(used, taken)| *used |= taken);
        look(&map)
    }

    /// Returns the taken runs, ascending.
    pub(super) fn runs(&self) -> Vec<Range<u32>> {
        let bits = self.map.len() as u32 * 8;
        let mut runs = Vec::new();
        let mut from = 0;
        while let Some(start) = bitmap::first_set(&self.map, from, bits) {
            let end = bitmap::first_zero(&self.map, start, bits).unwrap_or(bits);
            runs.push(start..end);
            from = end;
        }
        runs
    }

    pub(super) fn take(&mut self, bits: Range<u32>, block_bytes: usize) {
        if self.map.is_empty() {
            self.map = vec![0; block_bytes];
        }
        self.count += bits.end - bits.start;
        bitmap::set_range(&mut self.map, bits);
    }

    /// Clears the taken ones among `bits`; returns how many were taken.
    pub(super) fn give(&mut self, bits: Range<u32>) -> u32 {
        if self.map.is_empty() {
            return 0;
        }
        let given = bits.filter(|bit| bitmap::clear(&mut self.map, *bit)).count() as u32;
        self.count -= given;
        given
    }

    /// Notes that taken blocks were in a writer's way. Returns true for the first time since [`Self::settle`].
    pub(super) fn contend(&mut self) -> bool {
        self.count > 0 && !std::mem::replace(&mut self.is_contended, true)
    }

    /// Ends the contention. Returns true if blocks are still taken.
    pub(super) fn settle(&mut self) -> bool {
        self.is_contended = false;
        self.count > 0
    }
}

/// Groups in which taken blocks were in a writer's way, each once.
#[derive(Default)]
pub(super) struct Contended(Mutex<VecDeque<GroupNo>>);

impl Contended {
    pub(super) fn note(&self, group: GroupNo) {
        self.0.lock().push_back(group);
    }

    pub(super) fn next(&self) -> Option<GroupNo> {
        self.0.lock().pop_front()
    }
}
