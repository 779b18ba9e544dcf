//! The decision about how many nodes are read together.

use moafs_runtime::leaf::Mutex;

/// Blocks of a window: 128 KiB, which a disk transfers in a small part of the time of a seek.
const WINDOW: usize = 32;

/// Decides how much is read: a whole window as long as enough of the neighbours are used later on.
#[derive(Debug, Default)]
pub(super) struct ReadAhead(Mutex<Balance>);

#[derive(Debug, Default)]
struct Balance {
    /// Requests so far.
    requests: u32,
    /// Neighbours that were kept, and those of them that were used.
    kept: u32,
    used: u32,
}

impl Balance {
    /// So many neighbours are kept before their use is judged. When there are twice as many, older ones count half.
    const ENOUGH: u32 = 1024;
    /// One neighbour in so many has to be used.
    const USED_OF: u32 = 8;
    /// One request in so many reads a window in any case, to find out whether it pays again.
    const PROBE: u32 = 32;

    fn blocks(&mut self) -> usize {
        self.requests = self.requests.wrapping_add(1);
        let pays = self.kept < Self::ENOUGH || self.used.saturating_mul(Self::USED_OF) >= self.kept;
        if pays || self.requests.is_multiple_of(Self::PROBE) { WINDOW } else { 1 }
    }

    fn kept(&mut self, nodes: u32) {
        self.kept += nodes;
        if self.kept > 2 * Self::ENOUGH {
            (self.kept, self.used) = (self.kept / 2, self.used / 2);
        }
    }
}

impl ReadAhead {
    /// Returns how many blocks the next request reads.
    pub(super) fn blocks(&self) -> usize {
        self.0.lock().blocks()
    }

    /// Notes that so many neighbours were kept.
    pub(super) fn note_kept(&self, nodes: u32) {
        self.0.lock().kept(nodes);
    }

    /// Notes that a neighbour that was kept is used for the first time.
    pub(super) fn note_used(&self) {
        self.0.lock().used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_until_enough_neighbours_were_useless_and_again_when_they_are_used() {
        let read_ahead = ReadAhead::default();
        let windows = |requests: u32, used: bool| {
            let read = (0..requests).filter(|_| {
                let is_window = read_ahead.blocks() == WINDOW;
                if is_window {
                    read_ahead.note_kept(31);
                    (0..if used { 16 } else { 0 }).for_each(|_| read_ahead.note_used());
                }
                is_window
            });
            read.count()
        };
        assert_eq!(windows(1000, true), 1000);
        let useless = windows(1000, false);
        assert!((70..=300).contains(&useless), "{useless}: the used ones are forgotten, then one in 32 is a probe");
        assert!(windows(1000, true) > 700, "a probe found that it pays");
    }
}
