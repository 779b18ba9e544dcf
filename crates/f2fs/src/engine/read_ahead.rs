//! The decision about how many nodes are read together.
//!
//! A neighbour that was kept is *waiting* until something asks for it: then it was *used*; or until memory is short:
//! then it was *wasted*. One that waits costs a little memory and says nothing yet: a program that goes through a tree
//! in another order than that of the nodes comes to most of them in the end.

use moafs_runtime::leaf::Mutex;

/// Blocks of a window: 128 KiB, which a disk transfers in a small part of the time of a seek.
const WINDOW: usize = 32;
/// Blocks of a window while most neighbours are used: 1 MiB, two windows in a segment.
const LARGE_WINDOW: usize = 256;

/// Decides how much is read: a window as long as neighbours do not turn out to be useless.
#[derive(Debug, Default)]
pub(super) struct ReadAhead(Mutex<Balance>);

#[derive(Debug, Default)]
struct Balance {
    /// True as soon as the volume is in use. What a mount reads is a chain's inodes, which lie far from each other.
    is_on: bool,
    /// Requests so far.
    requests: u32,
    /// Neighbours that nothing has asked for yet.
    waiting: u32,
    /// Neighbours that were used, and those that were given up unused.
    used: u32,
    wasted: u32,
}

impl Balance {
    /// So many neighbours have to be wasted before they are judged. When twice as many were used or wasted, older ones
    /// count half.
    const ENOUGH: u32 = 1024;
    /// One neighbour in so many has to be used.
    const USED_OF: u32 = 8;
    /// So many neighbours may wait, which takes about 16 MiB.
    const WAITING_MAX: u32 = 32 << 10;
    /// One request in so many reads a window in any case, to find out whether it pays again.
    const PROBE: u32 = 32;

    fn blocks(&mut self) -> usize {
        if !self.is_on {
            return 1;
        }
        self.requests = self.requests.wrapping_add(1);
        let pays = self.wasted < Self::ENOUGH || self.used.saturating_mul(Self::USED_OF) >= self.wasted;
        if !pays || self.waiting >= Self::WAITING_MAX {
            return if self.requests.is_multiple_of(Self::PROBE) { WINDOW } else { 1 };
        }
        if self.used > self.wasted.saturating_add(self.waiting) { LARGE_WINDOW } else { WINDOW }
    }

    fn judge(&mut self, used: u32, wasted: u32) {
        self.waiting = self.waiting.saturating_sub(used).saturating_sub(wasted);
        self.used = self.used.saturating_add(used);
        self.wasted = self.wasted.saturating_add(wasted);
        if self.used.max(self.wasted) > 2 * Self::ENOUGH {
            (self.used, self.wasted) = (self.used / 2, self.wasted / 2);
        }
    }
}

impl ReadAhead {
    /// Begins to read nodes together.
    pub(super) fn start(&self) {
        self.0.lock().is_on = true;
    }

    /// Returns how many blocks the next request reads.
    pub(super) fn blocks(&self) -> usize {
        self.0.lock().blocks()
    }

    /// Notes that so many neighbours were kept.
    pub(super) fn note_kept(&self, nodes: u32) {
        let mut balance = self.0.lock();
        balance.waiting = balance.waiting.saturating_add(nodes);
    }

    /// Notes that a neighbour that was kept is used for the first time.
    pub(super) fn note_used(&self) {
        self.0.lock().judge(1, 0);
    }

    /// Notes that so many neighbours were given up unused.
    pub(super) fn note_wasted(&self, nodes: u32) {
        self.0.lock().judge(0, nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> ReadAhead {
        let read_ahead = ReadAhead::default();
        read_ahead.start();
        read_ahead
    }

    /// Makes requests; of the neighbours of each, `used` in 32 are used and `wasted` in 32 are given up. Returns how
    /// many blocks each request read on average.
    fn blocks_read(read_ahead: &ReadAhead, requests: usize, used: usize, wasted: u32) -> usize {
        let read = (0..requests).map(|_| {
            let blocks = read_ahead.blocks();
            if blocks > 1 {
                read_ahead.note_kept(blocks as u32);
                (0..blocks * used / 32).for_each(|_| read_ahead.note_used());
                read_ahead.note_wasted(blocks as u32 * wasted / 32);
            }
            blocks
        });
        read.sum::<usize>() / requests
    }

    #[test]
    fn a_mount_reads_each_node_by_itself() {
        assert_eq!(ReadAhead::default().blocks(), 1);
        assert_eq!(started().blocks(), WINDOW);
    }

    #[test]
    fn what_is_used_to_the_last_comes_in_large_windows() {
        let read_ahead = started();
        assert!(blocks_read(&read_ahead, 100, 32, 0) > LARGE_WINDOW * 9 / 10);
    }

    #[test]
    fn what_waits_is_not_judged_but_bounded() {
        let read_ahead = started();
        let windows = Balance::WAITING_MAX as usize / WINDOW;
        assert_eq!(blocks_read(&read_ahead, windows, 0, 0), WINDOW);
        assert!(blocks_read(&read_ahead, 1000, 0, 0) <= 2);
    }

    #[test]
    fn windows_are_read_until_enough_neighbours_were_useless_and_again_when_they_are_used() {
        let read_ahead = started();
        assert_eq!(blocks_read(&read_ahead, 1000, 8, 24), WINDOW, "a quarter of them is enough");
        assert!(blocks_read(&read_ahead, 1000, 0, 32) < 8, "the used ones are forgotten, then one in 32 is a probe");
        assert!(blocks_read(&read_ahead, 1000, 32, 0) > WINDOW, "a probe found that it pays");
    }
}
