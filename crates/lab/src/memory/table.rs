//! The table of the processes' pages: their states, and the choice of the page to leave. Second
//! chance, without time or devices.
//!
//! A page enters the queue when it comes; at the head of the queue it goes, or goes round once more
//! if it was used since it was last looked at. The queue carries the time of entering, so that the
//! file cache, which has such a queue of its own, can be merged with this one: the page that
//! entered either queue first is looked at first, as with one clock over all memory.

use std::collections::VecDeque;
use std::ops::Range;

use moafs_runtime::Time;

/// The kind of a program's access to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The program reads the page.
    Read,
    /// The program writes to the page.
    Write,
}

/// The state of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageState {
    /// It has no contents: it reads as zeros.
    #[default]
    Nowhere,
    /// On its way in, into a frame of its own.
    Coming,
    /// In memory, and usable.
    Resident,
    /// In memory, and a copy is on its way out.
    Leaving,
    /// Paged out; its contents are on the swap only.
    Out,
}

/// The result of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// The page was there.
    Hit,
    /// The page was there, and its copy outside has just become stale.
    Stale,
    /// The page is on its way in, for another task.
    Coming,
    /// It is not there: a fault. True if it was paged out, false if it has no contents yet.
    Fault(bool),
}

/// The result of a look at the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Nothing is in memory that could leave.
    None,
    /// A page was used and goes round again.
    Again,
    /// A clean page is gone.
    Dropped,
    /// This page is dirty: it has to be paged out first.
    Dirty(u32),
}

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    state: PageState,
    referenced: bool,
    dirty: bool,
    /// True if the copy on the swap equals the page in memory.
    copied: bool,
    /// Number of its entry in the queue.
    stamp: u32,
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    page: u32,
    stamp: u32,
    since: Time,
}

/// The pages of all processes.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<Page>,
    queue: VecDeque<Queued>,
    frames: u64,
    looks: u64,
}

impl PageTable {
    /// Makes a table of `pages` pages without contents.
    pub fn new(pages: u32) -> PageTable {
        PageTable { pages: vec![Page::default(); pages as usize], ..PageTable::default() }
    }

    /// Returns the number of frames in use.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns how often a page was looked at for replacement. While the number stays the same,
    /// accesses to the same pages again change nothing.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Returns the state of a page.
    pub fn state(&self, page: u32) -> PageState {
        self.pages[page as usize].state
    }

    /// Records a program's access to a page and returns the result.
    pub fn touch(&mut self, page: u32, access: Access) -> Touched {
        let page = &mut self.pages[page as usize];
        match page.state {
            PageState::Resident | PageState::Leaving => {
                page.referenced = true;
                if access == Access::Read {
                    return Touched::Hit;
                }
                page.dirty = true;
                let was_copied = std::mem::take(&mut page.copied);
                if was_copied && page.state == PageState::Resident { Touched::Stale } else { Touched::Hit }
            }
            PageState::Coming => Touched::Coming,
            PageState::Out => Touched::Fault(true),
            PageState::Nowhere => Touched::Fault(false),
        }
    }

    /// Gives a frame to a page, which is on its way in from now on.
    pub fn begin_in(&mut self, page: u32) {
        debug_assert!(matches!(self.state(page), PageState::Out | PageState::Nowhere));
        self.pages[page as usize].state = PageState::Coming;
        self.frames += 1;
    }

    /// Completes a page-in for a task that is about to use the page. `copied`: the copy on the swap
    /// stays valid.
    pub fn end_in(&mut self, page: u32, copied: bool, now: Time) {
        debug_assert_eq!(self.state(page), PageState::Coming);
        self.arrive(page, copied, now);
    }

    /// Adds a neighbour that came along unrequested. Returns false if it is in memory already, or
    /// has no contents.
    pub fn bring(&mut self, page: u32, now: Time) -> bool {
        if self.state(page) != PageState::Out {
            return false;
        }
        self.frames += 1;
        self.arrive(page, true, now);
        true
    }

    fn arrive(&mut self, page: u32, copied: bool, now: Time) {
        let stamp = self.pages[page as usize].stamp.wrapping_add(1);
        self.pages[page as usize] = Page { state: PageState::Resident, referenced: false, dirty: false, copied, stamp };
        self.queue.push_back(Queued { page, stamp, since: now });
    }

    /// Returns the time since which the page at the head of the queue has waited.
    pub fn coldest(&mut self) -> Option<Time> {
        while let Some(head) = self.queue.front() {
            if self.is_current(head) {
                return Some(head.since);
            }
            self.queue.pop_front();
        }
        None
    }

    fn is_current(&self, queued: &Queued) -> bool {
        let page = &self.pages[queued.page as usize];
        page.stamp == queued.stamp && page.state == PageState::Resident
    }

    /// Looks at the page at the head of the queue, and drops it if it is clean and unused.
    pub fn look(&mut self, now: Time) -> Victim {
        if self.coldest().is_none() {
            return Victim::None;
        }
        self.looks += 1;
        let Some(head) = self.queue.pop_front() else { return Victim::None };
        let page = &mut self.pages[head.page as usize];
        if std::mem::take(&mut page.referenced) {
            self.queue.push_back(Queued { since: now, ..head });
            return Victim::Again;
        }
        if page.dirty {
            return Victim::Dirty(head.page);
        }
        page.state = if page.copied { PageState::Out } else { PageState::Nowhere };
        self.frames -= 1;
        Victim::Dropped
    }

    /// Returns the pages that leave together with `page`: its dirty neighbours that were not used
    /// lately, within `cluster` aligned pages. They are on their way out from now on.
    pub fn begin_out(&mut self, page: u32, cluster: u32) -> Range<u32> {
        let window = page / cluster * cluster..(page / cluster + 1) * cluster;
        let fits = |at: &u32| {
            let page = self.pages.get(*at as usize);
            page.is_some_and(|page| page.state == PageState::Resident && page.dirty && !page.referenced)
        };
        let first = (window.start..page).rev().take_while(&fits).last().unwrap_or(page);
        let last = (page + 1..window.end).take_while(&fits).last().unwrap_or(page);
        for at in first..=last {
            let page = &mut self.pages[at as usize];
            page.state = PageState::Leaving;
            page.dirty = false;
            page.copied = true;
        }
        self.looks += 1;
        first..last + 1
    }

    /// Completes a page-out. Pages that were not used meanwhile leave their frames; the others
    /// stay, as if they had just come. Returns the pages whose copies are stale already: written
    /// to, or given back.
    pub fn end_out(&mut self, pages: Range<u32>, now: Time) -> Vec<u32> {
        let mut stale = Vec::new();
        for at in pages {
            let page = &mut self.pages[at as usize];
            if page.state != PageState::Leaving || !page.copied {
                stale.push(at);
            }
            if page.state != PageState::Leaving {
                continue;
            }
            if page.referenced {
                page.state = PageState::Resident;
                page.stamp = page.stamp.wrapping_add(1);
                self.queue.push_back(Queued { page: at, stamp: page.stamp, since: now });
            } else {
                page.state = PageState::Out;
                self.frames -= 1;
            }
        }
        stale
    }

    /// Takes back pages of a process: they have no contents any more. Pages on their way in stay,
    /// because a task waits for them.
    pub fn release(&mut self, pages: Range<u32>) {
        for page in &mut self.pages[pages.start as usize..pages.end as usize] {
            debug_assert_ne!(page.state, PageState::Coming);
            self.frames -= u64::from(matches!(page.state, PageState::Resident | PageState::Leaving));
            *page = Page { stamp: page.stamp.wrapping_add(1), ..Page::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    /// Second chance as the textbooks have it: a list of (page, used), of which the first leaves unless it was used.
    struct Textbook {
        frames: usize,
        queue: Vec<(u32, bool)>,
        faults: u64,
    }

    impl Textbook {
        fn touch(&mut self, page: u32) {
            if let Some(there) = self.queue.iter_mut().find(|(at, _)| *at == page) {
                there.1 = true;
                return;
            }
            self.faults += 1;
            while self.queue.len() >= self.frames {
                let (first, used) = self.queue.remove(0);
                if used {
                    self.queue.push((first, false));
                }
            }
            self.queue.push((page, true));
        }
    }

    /// Performs one fault at once: a page that leaves is out as soon as it is written.
    fn fault(table: &mut PageTable, frames: u64, page: u32, was_out: bool, cluster: u32) -> u64 {
        let mut outs = 0;
        while table.frames() >= frames {
            if let Victim::Dirty(victim) = table.look(Time(0)) {
                let leaving = table.begin_out(victim, cluster);
                outs += u64::from(leaving.end - leaving.start);
                table.end_out(leaving, Time(0));
            }
        }
        table.begin_in(page);
        table.end_in(page, was_out, Time(0));
        outs
    }

    #[test]
    fn pages_are_replaced_as_the_textbook_says() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for frames in [1, 2, 7, 20] {
            let mut table = PageTable::new(40);
            let mut textbook = Textbook { frames, queue: Vec::new(), faults: 0 };
            let mut faults = 0;
            for _ in 0..20_000 {
                let page = rng.random_range(0..40_u32).min(rng.random_range(0..40));
                let access = if rng.random_range(0..3) == 0 { Access::Write } else { Access::Read };
                if let Touched::Fault(was_out) = table.touch(page, access) {
                    fault(&mut table, frames as u64, page, was_out, 1);
                    table.touch(page, access);
                    faults += 1;
                }
                textbook.touch(page);
                let there = |page: u32| table.state(page) == PageState::Resident;
                assert!((0..40).all(|page| there(page) == textbook.queue.iter().any(|(at, _)| *at == page)));
            }
            assert_eq!(faults, textbook.faults);
        }
    }

    #[test]
    fn dirty_neighbours_leave_together_within_their_window() {
        let mut table = PageTable::new(32);
        for page in 2..14 {
            fault(&mut table, 32, page, false, 8);
            table.touch(page, if page == 5 { Access::Read } else { Access::Write });
        }
        let looked =
            std::iter::repeat_with(|| table.look(Time(1))).take_while(|victim| *victim == Victim::Again).count();
        assert_eq!(looked, 12, "all were used");
        assert_eq!(table.begin_out(3, 8), 2..5, "5 is clean");
        table.touch(9, Access::Write);
        assert_eq!(table.begin_out(10, 8), 10..14, "9 was used, 14 is not there");
    }

    #[test]
    fn a_page_used_while_it_leaves_stays() {
        let mut table = PageTable::new(4);
        fault(&mut table, 4, 0, false, 4);
        fault(&mut table, 4, 1, false, 4);
        table.touch(0, Access::Write);
        table.touch(1, Access::Write);
        table.look(Time(0));
        table.look(Time(0));
        let leaving = table.begin_out(0, 4);
        assert_eq!(table.touch(1, Access::Write), Touched::Hit);
        assert_eq!(table.end_out(leaving, Time(5)), [1]);
        assert_eq!((table.state(0), table.state(1), table.frames()), (PageState::Out, PageState::Resident, 1));
        assert_eq!(table.look(Time(6)), Victim::Again);
        assert_eq!(table.look(Time(6)), Victim::Dirty(1), "it was written to after its copy was made");
    }

    #[test]
    fn clean_pages_keep_their_copies_until_they_are_written_to() {
        let mut table = PageTable::new(4);
        fault(&mut table, 4, 0, false, 4);
        table.touch(0, Access::Write);
        table.look(Time(0));
        let leaving = table.begin_out(0, 4);
        table.end_out(leaving, Time(0));
        assert_eq!(table.touch(0, Access::Read), Touched::Fault(true));
        assert!(table.bring(0, Time(1)) && !table.bring(0, Time(1)));
        assert_eq!(table.look(Time(1)), Victim::Dropped, "nobody used it, and it is outside");
        assert!(table.bring(0, Time(2)));
        assert_eq!(table.touch(0, Access::Write), Touched::Stale);
        assert_eq!(table.touch(0, Access::Write), Touched::Hit);
        table.release(0..4);
        assert_eq!((table.state(0), table.frames(), table.coldest()), (PageState::Nowhere, 0, None));
    }
}
