//! Read-ahead for a sequential reader of one file: when to read, and how much.

use crate::types::{Lbn, LbnRange};

/// The first read-ahead window, in blocks.
const WINDOW_BLOCKS_MIN: u64 = 4;

/// The state of read-ahead for one file.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadAhead {
    /// The block a sequential reader would ask for next.
    next: u64,
    /// Blocks to read ahead next time; 0 while the reader is not sequential.
    window: u64,
    /// The block behind the last one that was read ahead.
    end: u64,
}

impl ReadAhead {
    /// Notes that `first..=last` is being read from a file of `blocks` blocks; returns the range to read
    /// ahead. The window doubles up to `max` blocks, and the next one is asked for when half of
    /// the last is used up, so the device works while the reader does.
    pub(crate) fn advise(&mut self, first: u64, last: u64, blocks: u64, max: u64) -> Option<LbnRange> {
        let sequential = first <= self.next && last + 1 >= self.next;
        self.next = last + 1;
        if !sequential || max == 0 {
            self.window = 0;
            self.end = self.next;
            return None;
        }
        self.end = self.end.max(self.next);
        if self.window > 0 && self.end - self.next > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).max(2 * (last + 1 - first)).max(WINDOW_BLOCKS_MIN).min(max);
        let start = self.end;
        let end = (start + self.window).min(blocks);
        if start >= end {
            return None;
        }
        self.end = end;
        Some(LbnRange { start: Lbn(start), len: (end - start) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_gets_a_growing_window() {
        let mut ra = ReadAhead::default();
        assert_eq!(ra.advise(0, 0, 1000, 64), Some(LbnRange { start: Lbn(1), len: 4 }));
        assert_eq!(ra.advise(1, 1, 1000, 64), None, "half of the window is still ahead");
        assert_eq!(ra.advise(2, 2, 1000, 64), Some(LbnRange { start: Lbn(5), len: 8 }));
        let mut asked = 0;
        for at in 3..600 {
            if let Some(range) = ra.advise(at, at, 1000, 64) {
                asked += 1;
                assert!(range.len <= 64);
            }
        }
        assert!(asked < 40, "{asked} small read-aheads");
    }

    #[test]
    fn a_random_reader_gets_none() {
        let mut ra = ReadAhead::default();
        for at in [500, 3, 77, 900, 12] {
            assert_eq!(ra.advise(at, at, 1000, 64), None);
        }
    }

    #[test]
    fn read_ahead_stops_at_the_end() {
        let mut ra = ReadAhead::default();
        assert_eq!(ra.advise(0, 0, 3, 64), Some(LbnRange { start: Lbn(1), len: 2 }));
        assert_eq!(ra.advise(1, 2, 3, 64), None);
    }
}
