//! Gives up cached blocks when memory is short, in turns: none goes twice before the others have
//! gone once.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::format::BLOCK;

/// Bytes that a cached block takes beyond its contents.
pub(super) const OVERHEAD_BYTES: usize = 128;
/// Bytes that a whole cached block is counted with.
pub(super) const CACHED_BYTES: usize = BLOCK + OVERHEAD_BYTES;
/// A call that gives up something gives up this share of the cache more, so that calls are rare.
const MORE: usize = 16;
/// Blocks that are examined for each one wanted: most may be dirty or in use.
const LOOKS: usize = 4;

/// Gives up blocks that have no other reference and that `clean` lets go, until about `bytes` of
/// the `used` ones are left, and returns them. `hand` is the place where the last call ended.
pub(super) fn sweep<K: Ord + Copy, V>(
    all: &mut BTreeMap<K, Arc<V>>,
    hand: &mut Option<K>,
    used: usize,
    bytes: usize,
    clean: impl Fn(&V) -> bool,
) -> Vec<Arc<V>> {
    if used <= bytes || all.is_empty() {
        return Vec::new();
    }
    let mean = used.div_ceil(all.len());
    let over = (used - bytes).div_ceil(mean);
    let wanted = over + all.len() / MORE;
    let behind = hand.map_or(Bound::Unbounded, Bound::Excluded);
    let last = *hand;
    let before = all.iter().take_while(|(key, _)| last.is_some_and(|last| **key <= last));
    let looked: Vec<(K, bool)> = all
        .range((behind, Bound::Unbounded))
        .chain(before)
        .take(wanted * LOOKS)
        .map(|(key, block)| (*key, Arc::strong_count(block) == 1 && clean(block)))
        .collect();
    // Counts are read without order: what others did before they let a block go has happened when it is given up.
    fence(Ordering::Acquire);
    *hand = looked.last().map(|(key, _)| *key);
    looked.iter().filter(|(_, goes)| *goes).take(wanted).filter_map(|(key, _)| all.remove(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_or_dirty_stays_and_the_others_take_turns() {
        let mut all: BTreeMap<u32, Arc<u32>> = (0..100).map(|key| (key, Arc::new(key))).collect();
        let held = Arc::clone(&all[&3]);
        let mut hand = None;
        let used = all.len() * CACHED_BYTES;
        drop(sweep(&mut all, &mut hand, used, 90 * CACHED_BYTES, |key| *key != 5));
        assert!(all.contains_key(&3) && all.contains_key(&5) && all.len() <= 90 && all.len() >= 80, "{}", all.len());
        assert!(!all.contains_key(&0));
        (0..3).for_each(|key| drop(all.insert(key, Arc::new(key))));
        let before = all.len();
        let gone = sweep(&mut all, &mut hand, before * CACHED_BYTES, (before - 1) * CACHED_BYTES, |_| true);
        assert_eq!(gone.len(), before - all.len());
        assert!(all.contains_key(&0), "those behind the hand go first");
        drop(held);
        for _ in 0..200 {
            let used = all.len() * CACHED_BYTES;
            drop(sweep(&mut all, &mut hand, used, 0, |_| true));
        }
        assert!(all.is_empty());
    }
}
