//! The choice of the pages that leave: the clock with two hands of 4.3BSD, with the mapping as
//! reference bit.
//!
//! Pages in memory sit on the rim, one to a frame. The *front hand* passes first and has its page unmapped; the *back
//! hand* follows some frames behind and takes the page if it is still unmapped, that is if it was not touched in
//! between. A userfaultfd shows no reference bits, and with write protection alone a page that is only read would look
//! unused however often it is read: unmapping costs a fault per use and round, but detects reads.
//!
//! This module only decides: the pager carries out unmapping and eviction.

use crate::page::PageNo;

/// A frame number: a place on the rim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame(u32);

impl Frame {
    /// Returns the number as an index.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The rim and the positions of its hands.
#[derive(Debug)]
pub(super) struct Clock {
    rim: Vec<Option<PageNo>>,
    /// Frames without a page; the last is used first, so that a page that comes in follows the back hand, and has a
    /// full round.
    empty: Vec<Frame>,
    budget: usize,
    back: usize,
    /// The number of frames that the front hand is ahead of the back hand.
    lead: usize,
    spread: usize,
}

impl Clock {
    /// Makes a clock for `budget` pages, with the front hand at least `spread` frames ahead.
    pub(super) fn new(budget: u32, spread: u32) -> Clock {
        debug_assert!(spread <= budget, "a spread of {spread} on a rim of {budget}");
        Clock {
            rim: vec![None; budget as usize],
            empty: (0..budget).rev().map(Frame).collect(),
            budget: budget as usize,
            back: 0,
            lead: 0,
            spread: spread as usize,
        }
    }

    /// Returns the number of pages in memory.
    pub(super) fn len(&self) -> usize {
        self.rim.len() - self.empty.len()
    }

    /// Returns the number of pages that may still come in within the budget.
    pub(super) fn room(&self) -> usize {
        self.budget.saturating_sub(self.len())
    }

    /// Returns the number of steps of the back hand after which every page has been under both
    /// hands.
    pub(super) fn two_rounds(&self) -> usize {
        self.rim.len() * 2
    }

    /// Places a page that comes in; without a free frame it goes beyond the budget.
    pub(super) fn place(&mut self, page: PageNo) -> Frame {
        let frame = self.empty.pop().unwrap_or_else(|| {
            self.rim.push(None);
            Frame(self.rim.len() as u32 - 1)
        });
        self.rim[frame.index()] = Some(page);
        frame
    }

    /// Empties the frame of a page that is gone.
    pub(super) fn remove(&mut self, frame: Frame) {
        debug_assert!(self.rim[frame.index()].is_some(), "{frame:?} is empty");
        self.rim[frame.index()] = None;
        self.empty.push(frame);
    }

    /// Moves the front hand if it is not more than its distance ahead, to `batch` frames beyond the distance. Returns
    /// the pages it passes.
    pub(super) fn move_front(&mut self, batch: usize) -> Vec<PageNo> {
        if self.lead > self.spread {
            return Vec::new();
        }
        let steps = (self.spread + batch).min(self.rim.len()) - self.lead;
        let from = self.back + self.lead;
        self.lead += steps;
        (from..from + steps).filter_map(|at| self.rim[at % self.rim.len()]).collect()
    }

    /// Returns the page under the back hand, which moves on; `None` for an empty frame.
    pub(super) fn move_back(&mut self) -> Option<PageNo> {
        let page = self.rim[self.back];
        self.back = (self.back + 1) % self.rim.len();
        self.lead = self.lead.saturating_sub(1);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(budget: u32, spread: u32) -> (Clock, Vec<Frame>) {
        let mut clock = Clock::new(budget, spread);
        let frames = (0..budget).map(|page| clock.place(PageNo(page))).collect();
        (clock, frames)
    }

    #[test]
    fn the_front_hand_keeps_its_distance() {
        let (mut clock, _) = full(8, 3);
        assert_eq!(clock.move_front(1), [0, 1, 2, 3].map(PageNo));
        assert_eq!(clock.move_front(1), []);
        assert_eq!(clock.move_back(), Some(PageNo(0)));
        assert_eq!(clock.move_front(2), [4, 5].map(PageNo));
        assert_eq!(clock.move_front(2), []);
    }

    #[test]
    fn pages_pass_in_the_order_of_arrival_and_a_newcomer_has_a_full_round() {
        let (mut clock, frames) = full(4, 2);
        assert_eq!(clock.move_back(), Some(PageNo(0)));
        clock.remove(frames[0]);
        assert_eq!(clock.room(), 1);
        clock.place(PageNo(9));
        let round: Vec<_> = (0..4).map(|_| clock.move_back()).collect();
        assert_eq!(round, [1, 2, 3, 9].map(|page| Some(PageNo(page))));
    }

    #[test]
    fn a_page_beyond_the_budget_gets_a_frame_and_leaves_no_room() {
        let (mut clock, frames) = full(2, 1);
        let third = clock.place(PageNo(2));
        assert_eq!((clock.len(), clock.room()), (3, 0));
        clock.remove(frames[0]);
        assert_eq!(clock.room(), 0);
        clock.remove(third);
        assert_eq!(clock.room(), 1);
    }

    #[test]
    fn both_hands_pass_every_page_in_two_rounds() {
        for spread in 0..=5 {
            let (mut clock, _) = full(5, spread);
            let (mut front, mut taken) = (Vec::new(), Vec::new());
            for _ in 0..clock.two_rounds() {
                front.extend(clock.move_front(2));
                taken.extend(clock.move_back().filter(|page| front.contains(page)));
            }
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken, (0..5).map(PageNo).collect::<Vec<_>>(), "spread {spread}");
        }
    }
}
