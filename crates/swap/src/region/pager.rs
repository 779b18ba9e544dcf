//! The handling of page faults.
//!
//! A page is *out* (absent; its contents, if it has any, are in the swap), *idle* (present but unmapped: the program's
//! next touch faults) or *mapped*; in memory it is *clean* (the swap has the same contents, or the page is zeros and
//! was never out) or *dirty*. Invariants:
//! 1. A clean page is mapped against writing, so the first write faults and makes it dirty.
//! 2. Only idle pages leave, so no thread writes to a page between its being read for the swap and its becoming absent.
//!    A thread that touches one meanwhile waits, and its fault is answered from the page's state at that time, not from
//!    the fault's flags.
//! 3. A dirty page leaves only after it was written to the swap. If the write fails, it stays, beyond the budget if
//!    need be.
//! 4. The swap holds no copy of a dirty page.
//! 5. This module does not touch the mapping: the pager would wait for itself.

use std::sync::Arc;

use rustix::io::Errno;

use super::ahead::ReadAhead;
use super::clock::{Clock, Frame};
use super::error::RegionError;
use super::error::host;
use super::memory::{Memory, PageRun};
use super::stats::RegionStats;
use super::uffd::Fault;
use crate::device::Swap;
use crate::page::{PAGE_BYTES, PageNo};

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The state of a page in memory.
#[derive(Debug, Clone, Copy)]
struct Resident {
    frame: Frame,
    mapped: bool,
    dirty: bool,
    /// True if the page was read along with another and has not been touched since.
    ahead: bool,
}

/// The sizes of a region, in pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// The most pages in memory.
    pub(super) budget: u32,
    /// Pages that are unmapped to see whether they are used.
    pub(super) spread: u32,
    /// The most pages that leave, or come in, with one request.
    pub(super) cluster: u32,
}

/// The state of a region. It is used by one thread at a time.
pub(super) struct Pager {
    swap: Arc<Swap>,
    memory: Arc<Memory>,
    /// The state of each page in memory; `None` if it is out.
    pages: Vec<Option<Resident>>,
    clock: Clock,
    ahead: ReadAhead,
    sizes: Sizes,
    stats: RegionStats,
}

impl Pager {
    pub(super) fn new(swap: Arc<Swap>, memory: Arc<Memory>, sizes: Sizes) -> Pager {
        Pager {
            pages: vec![None; swap.pages() as usize],
            clock: Clock::new(sizes.budget, sizes.spread),
            ahead: ReadAhead::new(sizes.cluster - 1),
            sizes,
            stats: RegionStats::default(),
            swap,
            memory,
        }
    }

    pub(super) fn stats(&self) -> RegionStats {
        let dirty = self.pages.iter().flatten().filter(|page| page.dirty).count();
        RegionStats { resident: self.clock.len() as u64, dirty: dirty as u64, ..self.stats }
    }

    /// Answers a fault: lets the waiting thread continue with its page, or with SIGBUS if the page cannot be provided.
    pub(super) fn answer(&mut self, fault: Fault) {
        let page = self.memory.page_of(fault);
        if self.serve(page, fault.write).is_err() {
            self.stats.page_in_errors += 1;
            // A thread that waits for ever is worse than one that gets an error.
            self.memory.poison(page).expect("an absent page can be poisoned");
        }
    }

    fn serve(&mut self, page: PageNo, write: bool) -> Result<(), RegionError> {
        match self.pages[page.index()] {
            Some(Resident { mapped: true, .. }) => {
                return self.serve_mapped(page, write).map_err(host("answering a fault"));
            }
            Some(Resident { ahead, .. }) => self.note_touch(ahead),
            None => self.bring(page)?,
        }
        self.map(page, write).map_err(host("mapping a page"))
    }

    /// Serves a fault on a page in memory: the page is mapped against writing, or came in while the
    /// fault was waiting.
    fn serve_mapped(&mut self, page: PageNo, write: bool) -> Result<(), Errno> {
        if !write {
            return self.memory.wake(page);
        }
        self.stats.write_faults += 1;
        self.make_dirty(page);
        self.memory.allow_writes(page)
    }

    fn note_touch(&mut self, ahead: bool) {
        self.stats.idle_faults += 1;
        if ahead {
            self.stats.ahead_used += 1;
            self.ahead.was_used();
        }
    }

    fn map(&mut self, page: PageNo, write: bool) -> Result<(), Errno> {
        if write {
            self.make_dirty(page);
        }
        let resident = *self.resident(page);
        self.memory.map(page, resident.dirty)?;
        *self.resident(page) = Resident { mapped: true, ahead: false, ..resident };
        Ok(())
    }

    /// Makes a page dirty. The swap's copy is stale, and its slot is freed for clusters that need adjacent slots.
    fn make_dirty(&mut self, page: PageNo) {
        let resident = self.resident(page);
        if !resident.dirty {
            resident.dirty = true;
            self.swap.free(page, 1);
        }
    }

    /// Returns the state of a page that is known to be in memory.
    fn resident(&mut self, page: PageNo) -> &mut Resident {
        self.pages[page.index()].as_mut().expect("a page in memory")
    }

    /// Brings in an absent page.
    fn bring(&mut self, page: PageNo) -> Result<(), RegionError> {
        self.make_room();
        if !self.swap.is_out(page) {
            self.stats.zero_fills += 1;
            return self.arrive(page, &ZEROS, false);
        }
        // Read-ahead uses free frames only; it evicts no page.
        let free = self.clock.room().saturating_sub(1) as u32;
        let neighbours = self.ahead.window().min(free);
        self.page_in(page, neighbours)
    }

    /// Reads a page and up to `neighbours` more from the swap. They are current: only this pager pages out or frees
    /// pages, and it does neither meanwhile.
    fn page_in(&mut self, page: PageNo, neighbours: u32) -> Result<(), RegionError> {
        let swap = Arc::clone(&self.swap);
        let mut arrived = Ok(());
        swap.page_in_with(page, neighbours, &mut |came, contents| {
            let wanted = came == page;
            let absent = matches!(self.pages.get(came.index()), Some(None));
            if arrived.is_ok() && absent && (wanted || self.clock.room() > 0) {
                arrived = self.arrive(came, contents, !wanted);
            }
        })?;
        arrived?;
        self.stats.pages_in += 1;
        Ok(())
    }

    /// Stores the contents of an absent page that has come in. The page is idle until a thread
    /// touches it.
    fn arrive(&mut self, page: PageNo, contents: &[u8], ahead: bool) -> Result<(), RegionError> {
        self.memory.write(page, contents).map_err(host("filling a page"))?;
        self.stats.ahead += u64::from(ahead);
        let frame = self.clock.place(page);
        self.pages[page.index()] = Some(Resident { frame, mapped: false, dirty: false, ahead });
        Ok(())
    }

    /// If no frame is free, evicts a cluster, so that page-outs are few and read-ahead has free frames.
    fn make_room(&mut self) {
        if self.clock.room() > 0 {
            return;
        }
        let mut leaving = Vec::new();
        while self.clock.room() < self.sizes.cluster as usize {
            let Some(victim) = self.next_victim() else { break };
            let run = self.cluster_of(victim);
            if self.clean(run).is_err() {
                break;
            }
            leaving.extend(run.pages());
            run.pages().for_each(|page| self.leave(page));
        }
        for run in PageRun::of(leaving) {
            self.count_host_error(self.memory.drop_contents(run));
        }
    }

    /// Returns the next page that was not touched since the front hand passed it.
    fn next_victim(&mut self) -> Option<PageNo> {
        for _ in 0..self.clock.two_rounds() {
            let passed = self.clock.move_front(self.sizes.cluster as usize);
            self.make_idle(passed);
            if let Some(page) = self.clock.move_back().filter(|page| !self.resident(*page).mapped) {
                return Some(page);
            }
        }
        None
    }

    fn make_idle(&mut self, mut pages: Vec<PageNo>) {
        pages.retain(|page| self.resident(*page).mapped);
        for run in PageRun::of(pages) {
            let unmapped = self.unmap(run);
            self.count_host_error(unmapped);
        }
    }

    fn unmap(&mut self, run: PageRun) -> Result<(), Errno> {
        self.memory.unmap(run)?;
        run.pages().for_each(|page| self.resident(page).mapped = false);
        Ok(())
    }

    /// Returns the pages that leave together with `victim`: if it must be written, the idle dirty pages beside it as
    /// well, up to a cluster.
    fn cluster_of(&self, victim: PageNo) -> PageRun {
        let goes_along = |at: &u32| {
            let beside = self.pages.get(*at as usize).copied().flatten();
            beside.is_some_and(|page| page.dirty && !page.mapped)
        };
        if !goes_along(&victim.0) {
            return PageRun::one(victim);
        }
        let others = self.sizes.cluster - 1;
        let after = (victim.0 + 1..).take_while(goes_along).take(others as usize).count() as u32;
        let before = (0..victim.0).rev().take_while(goes_along).take((others - after) as usize).count() as u32;
        PageRun { first: PageNo(victim.0 - before), count: before + 1 + after }
    }

    /// Writes the contents of pages to the swap. The pages are idle and either all clean or all
    /// dirty.
    fn clean(&mut self, run: PageRun) -> Result<(), RegionError> {
        if !self.resident(run.first).dirty {
            return Ok(());
        }
        let written = self.page_out(run);
        match &written {
            Ok(()) => {
                self.stats.pages_out += u64::from(run.count);
                run.pages().for_each(|page| self.resident(page).dirty = false);
            }
            Err(_) => self.stats.page_out_errors += 1,
        }
        written
    }

    fn page_out(&self, run: PageRun) -> Result<(), RegionError> {
        let pages = self.memory.read(run).map_err(host("reading pages on their way out"))?;
        Ok(self.swap.page_out(&pages)?)
    }

    /// Marks a page as out. The caller drops its contents.
    fn leave(&mut self, page: PageNo) {
        let Some(resident) = self.pages[page.index()].take() else { return };
        self.clock.remove(resident.frame);
        self.stats.left += 1;
        if resident.ahead {
            self.ahead.was_useless();
        }
    }

    pub(super) fn note_tend_error(&mut self) {
        self.stats.tend_errors += 1;
    }

    fn count_host_error(&mut self, result: Result<(), Errno>) {
        self.stats.host_errors += u64::from(result.is_err());
    }

    /// Writes the next dirty pages at or after `from` to the swap, at most a cluster; they stay in memory. Returns the
    /// page to continue at.
    pub(super) fn flush_from(&mut self, from: PageNo) -> Option<(PageNo, Result<(), RegionError>)> {
        let dirty = |at: &u32| self.pages[*at as usize].is_some_and(|page| page.dirty);
        let end = self.pages.len() as u32;
        let first = (from.0..end).find(dirty)?;
        let count = (first..end).take_while(dirty).take(self.sizes.cluster as usize).count() as u32;
        let run = PageRun { first: PageNo(first), count };
        let written = self.unmap(run).map_err(host("unmapping pages")).and_then(|()| self.clean(run));
        Some((PageNo(first + count), written))
    }

    /// Forgets the contents of pages: they are zeros.
    pub(super) fn discard(&mut self, run: PageRun) {
        self.count_host_error(self.memory.unmap(run));
        for page in run.pages() {
            if let Some(resident) = self.pages[page.index()].take() {
                self.clock.remove(resident.frame);
            }
        }
        self.count_host_error(self.memory.drop_contents(run));
        self.swap.free(run.first, run.count);
    }
}
