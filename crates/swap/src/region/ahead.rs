//! The number of pages that are read along with a wanted one: it follows how many of them were
//! used.

/// The read-ahead window. It doubles when a page that was read along is touched, and halves when one leaves untouched.
#[derive(Debug)]
pub(super) struct ReadAhead {
    window: u32,
    most: u32,
}

impl ReadAhead {
    /// Starts with a window of `most`: pages that left together were used together.
    pub(super) fn new(most: u32) -> ReadAhead {
        ReadAhead { window: most, most }
    }

    /// Returns the number of neighbours to read along. At least one if any are allowed, because a window of zero could
    /// never grow again.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    pub(super) fn was_used(&mut self) {
        self.window = (self.window * 2).min(self.most);
    }

    pub(super) fn was_useless(&mut self) {
        self.window = (self.window / 2).max(1).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_what_is_used_and_never_closes() {
        let mut ahead = ReadAhead::new(15);
        for expected in [7, 3, 1, 1] {
            ahead.was_useless();
            assert_eq!(ahead.window(), expected);
        }
        for expected in [2, 4, 8, 15, 15] {
            ahead.was_used();
            assert_eq!(ahead.window(), expected);
        }
    }

    #[test]
    fn without_neighbours_there_are_none() {
        let mut ahead = ReadAhead::new(0);
        ahead.was_useless();
        ahead.was_used();
        assert_eq!(ahead.window(), 0);
    }
}
