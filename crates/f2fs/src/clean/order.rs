//! File-aware cleaning: the order in which the valid blocks of the victims leave.
//!
//! Writers that sync by turns, and partial overwrites, scatter a file's blocks over the log. Copied as found, they stay
//! so. Copied in order of file and offset, they meet: the cleaner defragments without one more write. Indices are
//! sorted, not the data; the sort is stable, so blocks that compare equal keep the victims' order. Blocks of nodes
//! leave as found.
//!
//! Reference: Park, Kang, Seo, Eom: An Efficient Cleaning Scheme for File Defragmentation on Log-Structured
//! File System (2016). It sorts by inode number only; offsets are ours.

use serde::Serialize;

use crate::format::Nid;

moafs_vfs::named_enum! {
    /// The values of `-o clean-order=`.
    #[derive(Hash, Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Order ("clean order") {
        Found = "found", "As they lie in the victims";
        #[default]
        File = "file", "By file, then by offset";
    }
}

/// The file block in a block of the volume: the key by which the queue of valid blocks is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The inode of the file.
    pub ino: Nid,
    /// The block's number within the file.
    pub lbn: u64,
}

impl Order {
    /// Returns the order in which a queue of valid data blocks is written, as indices into it.
    pub fn of(self, queue: &[Owner]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..queue.len() as u32).collect();
        if self == Order::File {
            order.sort_by_key(|&at| queue[at as usize]);
        }
        order
    }
}

/// Returns the number of data block groups: maximal runs that are adjacent in a file and in the order given.
pub fn groups(queue: &[Owner], order: &[u32]) -> usize {
    let owners: Vec<Owner> = order.iter().filter_map(|&at| queue.get(at as usize).copied()).collect();
    let breaks =
        owners.windows(2).filter(|w| w[0].ino != w[1].ino || w[0].lbn.checked_add(1) != Some(w[1].lbn)).count();
    breaks + usize::from(!owners.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns fig. 2 of Park et al. (2016): four writers, blocks by turns.
    fn by_turns(files: u32, blocks: u64) -> Vec<Owner> {
        (0..blocks).flat_map(|lbn| (0..files).map(move |file| Owner { ino: Nid(10 + file), lbn })).collect()
    }

    #[test]
    fn interleaved_files_come_apart() {
        let queue = by_turns(4, 16);
        assert_eq!(groups(&queue, &Order::Found.of(&queue)), 64);
        assert_eq!(groups(&queue, &Order::File.of(&queue)), 4);
    }

    proptest! {
        #[test]
        fn every_block_leaves_once_and_equal_ones_as_found(
            owners in prop::collection::vec((0u32..5, 0u64..30), 0..200),
        ) {
            let queue: Vec<Owner> = owners.into_iter().map(|(ino, lbn)| Owner { ino: Nid(ino), lbn }).collect();
            let found = Order::Found.of(&queue);
            let mut sorted = Order::File.of(&queue);
            prop_assert!(sorted.is_sorted_by_key(|&at| (queue[at as usize], at)));
            sorted.sort_unstable();
            prop_assert_eq!(sorted, found);
        }
    }
}
