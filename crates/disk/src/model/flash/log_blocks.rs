//! Block-mapped translation with log blocks: FAST (Lee, Park, Chung, Lee, Park and Song, "A log buffer-based flash
//! translation layer using fully-associative sector translation", 2007).
//!
//! A *unit* is one block from every die, its pages striped over them: a superblock, or a card's allocation unit. Data
//! units hold their pages in order. New versions of pages go to logs:
//!
//! * A *sequential log* is opened by a write of the first page of a data unit and extended in order. Full, it becomes
//!   the data unit (switch merge). To make way for another, the one extended longest ago is completed with copies
//!   (partial merge).
//! * Everything else, also parts of pages, goes to the *random logs*, in order of time. When they are full, the oldest
//!   is emptied at the pace at which one more fills: when a page is written to a place there, the page that has this
//!   place in the oldest log must go. If it is live, its data unit is assembled from the places of its pages (full
//!   merge), whereupon all log pages of that unit are dead. (The paper empties the log in one go, before the next
//!   write: as much work, but a single write would wait for hundreds of merges, which no drive was seen to do.)
//!
//! Copies stay on their die, since a page has the same place in every data unit. Pages that hold nothing (never
//! written, or trimmed) are not copied.
//!
//! Invariants: `live` has the newest version of each page whose newest version is in a random log; a sequential log
//! holds the newest version of the pages before `next` that are not in `live`; everything else that `held` names is in
//! its data unit.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::bitmap::Bitmap;
use super::chips::{Chips, Op};
use super::spec::FlashSpec;

/// The logs, and the place of each page's newest version.
#[derive(Debug, Clone)]
pub(in crate::model) struct LogBlocks {
    dies: usize,
    unit_pages: u32,
    /// Blocks that a merge erases on each die.
    merge_erases: u32,
    sequential_max: usize,
    random_max: usize,
    held: Bitmap,
    /// Sequential logs; the one extended longest ago is first.
    sequential: VecDeque<Sequential>,
    /// Random logs, oldest first: the host's pages by place.
    random: VecDeque<Vec<u32>>,
    /// Number of the oldest random log, counted from the first that existed.
    first_random: u64,
    /// Place of the newest version: number of the log times pages of a unit, plus place in the log.
    live: BTreeMap<u32, u64>,
    /// The log that the last page went to.
    last_log: Option<LogName>,
}

/// An open sequential log.
#[derive(Debug, Clone, Copy)]
struct Sequential {
    unit: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogName {
    Sequential(u32),
    Random(u64),
}

impl LogBlocks {
    /// Makes an empty layer; `random_max` logs are filled before the oldest is emptied.
    pub(in crate::model) fn new(
        spec: &FlashSpec,
        pages: u32,
        sequential_max: u32,
        random_max: u32,
        merge_erases: u32,
    ) -> LogBlocks {
        let unit_pages = spec.superblock_pages() as u32;
        LogBlocks {
            dies: spec.dies(),
            unit_pages,
            merge_erases,
            sequential_max: sequential_max as usize,
            random_max: random_max as usize,
            // Whole units, so that merges need not look for the end.
            held: Bitmap::new(pages.div_ceil(unit_pages) as usize * unit_pages as usize),
            sequential: VecDeque::new(),
            random: VecDeque::new(),
            first_random: 0,
            live: BTreeMap::new(),
            last_log: None,
        }
    }

    /// Returns the die that holds a page; `None` if there is nothing to read.
    pub(in crate::model) fn die_of(&self, page: u32) -> Option<usize> {
        if !self.held.contains(page) {
            return None;
        }
        // A unit has a multiple of `dies` pages, so numbers of pages and of places tell the die alike.
        let place = self.live.get(&page).copied().unwrap_or(u64::from(page));
        Some((place % self.dies as u64) as usize)
    }

    /// Writes a page; only part of it unless `whole`.
    pub(in crate::model) fn write(&mut self, page: u32, whole: bool, ready_ns: u64, chips: &mut Chips) -> Op {
        self.held.insert(page);
        let (unit, place) = (page / self.unit_pages, page % self.unit_pages);
        let extends = |log: &Sequential| log.unit == unit && log.next == place;
        if whole && place == 0 {
            self.open_sequential(unit, ready_ns, chips);
        }
        match self.sequential.iter().position(extends).filter(|_| whole) {
            Some(index) => self.extend(index, page, ready_ns, chips),
            None => self.append(page, ready_ns, chips),
        }
    }

    /// Drops the contents of a page that the host no longer needs.
    pub(in crate::model) fn trim(&mut self, page: u32, chips: &mut Chips) {
        self.live.remove(&page);
        chips.counters.trimmed_pages += u64::from(self.held.remove(page));
    }

    /// Marks all pages below `end` as held, as after writing them in order.
    pub(in crate::model) fn fill(&mut self, end: u32) {
        for page in 0..end {
            self.held.insert(page);
        }
    }

    /// Writes the page that is next in a sequential log.
    fn extend(&mut self, index: usize, page: u32, ready_ns: u64, chips: &mut Chips) -> Op {
        let mut log = self.sequential.remove(index).expect("found by its place");
        self.goes_to(LogName::Sequential(log.unit), chips);
        self.live.remove(&page);
        let op = chips.program(page as usize % self.dies, ready_ns);
        log.next += 1;
        if log.next < self.unit_pages {
            self.sequential.push_back(log);
        } else {
            chips.counters.switch_merges += 1;
            self.erase(self.merge_erases, op.ends_ns, chips);
        }
        op
    }

    /// Appends a page to the random logs.
    fn append(&mut self, page: u32, ready_ns: u64, chips: &mut Chips) -> Op {
        if self.random.back().is_none_or(|log| log.len() == self.unit_pages as usize) {
            self.open_random(ready_ns, chips);
        }
        if self.random.len() > self.random_max {
            self.empty_one(ready_ns, chips);
        }
        let number = self.first_random + self.random.len() as u64 - 1;
        self.goes_to(LogName::Random(number), chips);
        let log = self.random.back_mut().expect("there is one now");
        let place = number * u64::from(self.unit_pages) + log.len() as u64;
        log.push(page);
        self.live.insert(page, place);
        chips.program((place % self.dies as u64) as usize, ready_ns)
    }

    fn goes_to(&mut self, log: LogName, chips: &mut Chips) {
        chips.counters.unit_switches += u64::from(self.last_log.is_some_and(|last| last != log));
        self.last_log = Some(log);
    }

    /// Opens a sequential log for a data unit. One that is already open for it is completed: its contents may be
    /// needed.
    fn open_sequential(&mut self, unit: u32, ready_ns: u64, chips: &mut Chips) {
        if let Some(index) = self.sequential.iter().position(|log| log.unit == unit) {
            self.complete(index, ready_ns, chips);
        } else if self.sequential.len() == self.sequential_max {
            self.complete(0, ready_ns, chips);
        }
        self.sequential.push_back(Sequential { unit, next: 0 });
    }

    /// Copies the rest of the data unit behind what the log has: a partial merge.
    fn complete(&mut self, index: usize, ready_ns: u64, chips: &mut Chips) {
        let Some(log) = self.sequential.remove(index) else { return };
        let first = log.unit * self.unit_pages;
        self.collect(first + log.next..first + self.unit_pages, ready_ns, chips);
        chips.counters.partial_merges += 1;
    }

    /// Opens a new random log. If there are enough, the oldest is empty by then.
    fn open_random(&mut self, ready_ns: u64, chips: &mut Chips) {
        if self.random.len() > self.random_max {
            self.random.pop_front();
            self.first_random += 1;
            self.erase(1, ready_ns, chips);
        }
        self.random.push_back(Vec::with_capacity(self.unit_pages as usize));
    }

    /// Makes the page of the oldest random log dead whose place is filled next in the newest.
    fn empty_one(&mut self, ready_ns: u64, chips: &mut Chips) {
        let index = self.random.back().map_or(0, Vec::len);
        let place = self.first_random * u64::from(self.unit_pages) + index as u64;
        let page = self.random.front().and_then(|oldest| oldest.get(index)).copied();
        if let Some(page) = page.filter(|page| self.live.get(page) == Some(&place)) {
            self.merge(page / self.unit_pages, ready_ns, chips);
        }
    }

    /// Assembles a data unit from the places of its pages: a full merge.
    fn merge(&mut self, unit: u32, ready_ns: u64, chips: &mut Chips) {
        if let Some(index) = self.sequential.iter().position(|log| log.unit == unit) {
            self.sequential.remove(index);
            self.erase(1, ready_ns, chips);
        }
        self.collect(unit * self.unit_pages..(unit + 1) * self.unit_pages, ready_ns, chips);
        chips.counters.full_merges += 1;
    }

    /// Copies the newest versions of these pages to a data unit and erases the blocks it replaces.
    fn collect(&mut self, pages: Range<u32>, ready_ns: u64, chips: &mut Chips) {
        while let Some((&page, _)) = self.live.range(pages.clone()).next() {
            self.live.remove(&page);
        }
        let held = self.held.count(pages.clone());
        let is_even = pages.len().is_multiple_of(self.dies) && held as usize == pages.len();
        for die in 0..self.dies {
            let copies = match is_even {
                true => (pages.len() / self.dies) as u64,
                false => self.held_on(die, &pages),
            };
            chips.copy(die, ready_ns, copies);
        }
        self.erase(self.merge_erases, ready_ns, chips);
    }

    fn held_on(&self, die: usize, pages: &Range<u32>) -> u64 {
        let here = |page: &u32| *page as usize % self.dies == die && self.held.contains(*page);
        pages.clone().filter(here).count() as u64
    }

    fn erase(&self, blocks: u32, ready_ns: u64, chips: &mut Chips) {
        for die in (0..self.dies).flat_map(|die| std::iter::repeat_n(die, blocks as usize)) {
            chips.erase(die, ready_ns);
        }
    }
}
