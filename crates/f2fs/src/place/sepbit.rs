//! SepBIT: the lifespan of a block is inferred from that of the block that it replaces.
//!
//! 1. Time counts blocks that users write. The lifespan of a block is the time from its write to the write that
//!    replaces it.
//! 2. A block that replaces one of a lifespan below `l` is short-lived; one that replaces a longer-lived block, or
//!    none, is long-lived.
//! 3. `l` is the mean lifespan, from the first write to when nothing is left in them, of the last
//!    [`SEGMENTS_AVERAGED`] segments of short-lived blocks that became free; before so many, every replaced block
//!    counts as short-lived.
//! 4. The blocks written last, as many as `l`, are remembered in the order of their writes.
//!
//! Short-lived blocks join the hot log, long-lived ones the warm one, and what cleaning moves the cold one. *Not as
//! published*: the paper has six classes of segments, and divides what cleaning moves into four of them; F2FS has three
//! logs of data. The paper's victims are those of greedy or cost-benefit cleaning, a policy of their own here.
//!
//! Memory is bounded (ours): if `l` is more than the bounds allow, the oldest blocks are forgotten and count as
//! long-lived.
//!
//! Reference: Wang, Li, Li, Lee, Zhou, Xu: Separating Data via Block Invalidation Time Inference for Write
//! Amplification Reduction in Log-Structured Storage (FAST 2022), section 3.

use std::collections::{BTreeMap, VecDeque};

use crate::format::{Log, Segno};
use crate::place::heat::{Bounds, FileBlocks, Heat, Separator};

/// Segments of short-lived blocks over whose lifespans the mean is taken.
const SEGMENTS_AVERAGED: u64 = 16;
/// Memory that a remembered block takes, in bytes: an entry of the queue, and one of the index.
const BLOCK_BYTES: usize = 64;
/// Blocks that are remembered however little memory there is.
const BLOCKS_MIN: usize = 1024;

/// The policy: by the lifespan of the block before.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByLifespan;

impl ByLifespan {
    pub(super) fn separator(self, _seed: u64, bounds: Bounds) -> Box<dyn Separator> {
        let blocks = usize::try_from(bounds.blocks).unwrap_or(usize::MAX);
        Box::new(SepBit::new((bounds.bytes_max / BLOCK_BYTES).min(blocks)))
    }
}

/// A block of a file, by inode and number within the file.
type Block = (u32, u64);

/// The blocks that were written last, and the mean lifespan of segments.
struct SepBit {
    blocks_max: usize,
    /// Blocks that users have written so far.
    written: u64,
    /// Blocks in the order of their writes; newer writes of a block make its older entries stale.
    queue: VecDeque<(Block, u64)>,
    last: BTreeMap<Block, u64>,
    /// The lifespan below which blocks are short-lived.
    short: u64,
    /// Times of the first writes to segments of short-lived blocks.
    opened: BTreeMap<Segno, u64>,
    /// Sum of the lifespans since the last mean, and how many they are.
    sum: u64,
    count: u64,
}

impl SepBit {
    fn new(blocks_max: usize) -> SepBit {
        SepBit {
            blocks_max: blocks_max.max(BLOCKS_MIN),
            written: 0,
            queue: VecDeque::new(),
            last: BTreeMap::new(),
            short: u64::MAX,
            opened: BTreeMap::new(),
            sum: 0,
            count: 0,
        }
    }

    /// Counts a write of a block; true if the block is short-lived.
    fn write(&mut self, block: Block) -> bool {
        self.written += 1;
        self.queue.push_back((block, self.written));
        let before = self.last.insert(block, self.written);
        let is_short = before.is_some_and(|before| self.written - before < self.short);
        self.forget();
        is_short
    }

    /// Forgets blocks that were written longer ago than matters, and more than memory holds.
    fn forget(&mut self) {
        while let Some((block, written)) = self.queue.front().copied() {
            if self.queue.len() <= self.blocks_max && self.written - written < self.short {
                break;
            }
            self.queue.pop_front();
            if self.last.get(&block) == Some(&written) {
                self.last.remove(&block);
            }
        }
    }
}

impl Separator for SepBit {
    /// Returns the heat of most of the blocks.
    fn heat(&mut self, blocks: &FileBlocks, _now_ns: u64) -> Option<Heat> {
        let FileBlocks { ino, range, .. } = *blocks;
        let short = (range.start.0..range.end().0).filter(|lbn| self.write((ino.0, *lbn))).count();
        (2 * short > range.len as usize).then_some(Heat::Hot)
    }

    fn placed(&mut self, segno: Segno, log: Log) {
        if log == Log::HotData {
            self.opened.entry(segno).or_insert(self.written);
        } else {
            self.opened.remove(&segno);
        }
    }

    fn freed(&mut self, segments: &[Segno]) {
        for opened in segments.iter().filter_map(|segno| self.opened.remove(segno)) {
            self.sum += self.written - opened;
            self.count += 1;
            if self.count == SEGMENTS_AVERAGED {
                self.short = (self.sum / self.count).max(1);
                (self.sum, self.count) = (0, 0);
            }
        }
    }

    fn memory(&self) -> usize {
        self.queue.len() * BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use moafs_vfs::types::{Lbn, LbnRange};

    use super::*;
    use crate::clean::order::Owner;
    use crate::format::Nid;

    fn write(sepbit: &mut SepBit, ino: u32, blocks: u32) -> Option<Heat> {
        let range = LbnRange { start: Lbn(0), len: blocks };
        sepbit.heat(&FileBlocks { ino: Nid(ino), range, mark: None }, 0)
    }

    #[test]
    fn new_blocks_live_long_and_replaced_ones_as_long_as_those_before() {
        let mut sepbit = SepBit::new(1 << 16);
        assert_eq!((write(&mut sepbit, 4, 8), write(&mut sepbit, 4, 8)), (None, Some(Heat::Hot)));
        sepbit.short = 100;
        write(&mut sepbit, 5, 100);
        assert_eq!((write(&mut sepbit, 4, 8), write(&mut sepbit, 4, 8)), (None, Some(Heat::Hot)));
        assert_eq!(sepbit.moved(Owner { ino: Nid(4), lbn: 0 }), Some(Heat::Cold));
    }

    #[test]
    fn the_bar_is_the_mean_lifespan_of_sixteen_hot_segments() {
        let mut sepbit = SepBit::new(1 << 16);
        for segno in 0..16 {
            sepbit.placed(Segno(segno), Log::HotData);
            sepbit.placed(Segno(100 + segno), Log::WarmData);
        }
        write(&mut sepbit, 4, 1000);
        let all: Vec<Segno> = (0..200).map(Segno).collect();
        sepbit.freed(&all[..15]);
        assert_eq!(sepbit.short, u64::MAX);
        write(&mut sepbit, 4, 1600);
        sepbit.freed(&all[15..]);
        assert_eq!(sepbit.short, 1000 + 1600 / 16);
    }

    #[test]
    fn memory_is_bounded() {
        let mut sepbit = SepBit::new(0);
        for ino in 0..100 {
            write(&mut sepbit, ino, 100);
        }
        assert_eq!((sepbit.queue.len(), sepbit.last.len()), (BLOCKS_MIN, BLOCKS_MIN));
        sepbit.short = 64;
        write(&mut sepbit, 4, 1);
        assert_eq!((sepbit.queue.len(), sepbit.last.len()), (64, 64));
    }
}
