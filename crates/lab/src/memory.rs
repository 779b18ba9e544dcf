//! One memory for processes and the file cache, with the paging of a machine that runs out of it.
//!
//! The one idea: programs tell which pages they touch, page by page in the order of their real
//! loops, and everything else follows from a clock over all memory: faults, page-outs, page-ins,
//! and how much the file cache may hold. Contents are not kept.
//!
//! * Frames are shared by the pages of processes and the file cache (FreeBSD's unified memory). The
//!   *page daemon* wakes when few are free and frees up to a target: the page that entered either
//!   queue first is looked at first, with a second chance for pages that were used ([`table`],
//!   `moafs_vfs`'s replacement queue).
//! * A dirty page leaves with its dirty, unused neighbours (page clustering), through [`Swap`]. The
//!   write is awaited by the daemon; a program that needs a frame waits for the daemon only when
//!   none is free.
//! * A page-in also brings the pages beside it in the same slots (bounded), as long as frames are free.
//! * A page's slot is free again as soon as the page is written to.
//!
//! Programs that use files also get the memory for them here: [`Memory::admit`] after each call.

pub mod table;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moafs_disk::{Buf, Page};
use moafs_runtime::{Event, Rt, Task, Time};
use moafs_swap::{PAGE_BYTES, PageNo, Swap, SwapError};
use moafs_vfs::{Format, Vfs};
use parking_lot::Mutex;

pub use table::Access;
use table::{PageState, PageTable, Touched, Victim};

/// Pause of the daemon when everything in memory is being written or is dirty in the file cache.
const NOTHING_TO_FREE: Duration = Duration::from_millis(5);
/// Bytes that the file cache gives back at a time: the pages of one look at its queue.
const FILES_STEP_BYTES: usize = 64 << 10;
/// Interval of the swap's background steps.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// Processor time that a program may owe before it takes the processor.
const OWED_NS_MAX: u64 = 1_000_000;

/// The file cache, as memory management sees it.
pub trait FileCache: Send + Sync {
    /// Returns the memory it occupies, in bytes.
    fn bytes(&self) -> usize;
    /// Returns the time since which its next page has waited to leave; `None` without such a page.
    fn coldest(&self) -> Option<Time>;
    /// Gives `bytes` bytes back, the coldest pages first.
    fn evict(&self, bytes: usize);
}

impl<F: Format> FileCache for Vfs<F> {
    fn bytes(&self) -> usize {
        self.memory_bytes()
    }

    fn coldest(&self) -> Option<Time> {
        Vfs::coldest(self)
    }

    fn evict(&self, bytes: usize) {
        Vfs::evict(self, bytes);
    }
}

/// The size of memory, and the parameters of paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Frames for processes and files.
    pub frames: u64,
    /// Number of free frames below which the daemon wakes.
    pub free_low: u64,
    /// Number of free frames that the daemon restores.
    pub free_target: u64,
    /// Most pages that leave together.
    pub cluster: u32,
    /// Most pages that a page-in also brings.
    pub neighbours: u32,
    /// Processor time of a fault, in nanoseconds.
    pub fault_ns: u64,
}

impl Limits {
    /// Returns FreeBSD 6's choices for `frames` frames: the daemon wakes when half a percent is
    /// free and frees up to two; 16 pages leave together (`VM_PAGEOUT_PAGE_COUNT`), 7 come along
    /// (`VM_FAULT_READ_AHEAD`).
    pub fn freebsd(frames: u64) -> Limits {
        let share = |permille: u64, min: u64| (frames * permille / 1000).max(min);
        let (free_low, free_target) = (share(5, 32), share(20, 128));
        Limits { frames, free_low, free_target, cluster: 16, neighbours: 7, fault_ns: 5_000 }
    }
}

/// Counters of page-ins, page-outs and waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paging {
    /// Accesses that had to wait for a page that was not in memory.
    pub faults: u64,
    /// Pages that came along and were not in memory.
    pub brought: u64,
    /// Pages without contents that got a frame.
    pub zero_fills: u64,
    /// Number of pages paged out.
    pub outs: u64,
    /// Calls that paged out: clusters.
    pub out_calls: u64,
    /// Number of clean pages dropped.
    pub drops: u64,
    /// Times that a program waited for a frame.
    pub frame_waits: u64,
    /// Nanoseconds of these waits.
    pub frame_wait_ns: u64,
    /// Nanoseconds that programs waited for page-ins.
    pub in_wait_ns: u64,
    /// Sum of the file cache's bytes over all looks of the daemon; divide by `files_looks`.
    pub files_bytes_sum: u64,
    /// Looks in that sum.
    pub files_looks: u64,
}

struct State {
    table: PageTable,
    /// First page of the next process.
    next_page: u32,
    paging: Paging,
}

/// Tasks of a memory: the page daemon, and the task that runs the swap's background steps.
pub struct Background([Task; 2]);

/// The memory of a machine.
pub struct Memory {
    rt: Rt,
    limits: Limits,
    swap: Swap,
    files: Arc<dyn FileCache>,
    state: Mutex<State>,
    /// Signals that a program needs frames.
    pressure: Event,
    /// Signals that frames became free, or that pages arrived.
    moved: Event,
    stop: AtomicBool,
    stopped: Event,
    /// The first failure of a page-out.
    failed: Mutex<Option<SwapError>>,
    looks: AtomicU64,
    zero: Page,
}

impl Memory {
    /// Makes a memory that `files` shares, with its page daemon and the task of the swap's
    /// background steps. Its `pages` pages of processes can all be paged out to `swap`.
    pub fn new(rt: Rt, limits: Limits, pages: u32, swap: Swap, files: Arc<dyn FileCache>) -> (Arc<Memory>, Background) {
        let state = State { table: PageTable::new(pages), next_page: 0, paging: Paging::default() };
        let memory = Arc::new(Memory {
            rt: Rt::clone(&rt),
            limits,
            swap,
            files,
            state: Mutex::new(state),
            pressure: Event::new(),
            moved: Event::new(),
            stop: AtomicBool::new(false),
            stopped: Event::new(),
            failed: Mutex::new(None),
            looks: AtomicU64::new(0),
            zero: Buf::zeroed(PAGE_BYTES).freeze(),
        });
        let (daemon, background) = (Arc::clone(&memory), Arc::clone(&memory));
        let daemon = rt.spawn("page daemon", Box::new(move || daemon.run_daemon()));
        let background = rt.spawn("swap background", Box::new(move || background.run_tender()));
        (memory, Background([daemon, background]))
    }

    /// Returns the swap that pages go to.
    pub fn swap(&self) -> &Swap {
        &self.swap
    }

    /// Returns the counters of paging.
    pub fn paging(&self) -> Paging {
        self.state.lock().paging
    }

    /// Ends the page daemon and the task of the swap's background steps.
    ///
    /// # Errors
    /// Fails if a page could not be paged out at any time.
    pub fn stop(&self, background: &Background) -> Result<(), SwapError> {
        self.stop.store(true, Ordering::SeqCst);
        self.rt.signal(&self.pressure);
        self.rt.signal(&self.stopped);
        background.0.iter().for_each(|task| task.join(&*self.rt));
        self.failed.lock().take().map_or(Ok(()), Err)
    }

    /// Returns the number of free frames; negative while the file cache has taken more than there
    /// is.
    fn free(&self, table: &PageTable) -> i64 {
        let files = self.files.bytes().div_ceil(PAGE_BYTES) as u64;
        self.limits.frames as i64 - (table.frames() + files) as i64
    }

    /// Wakes the daemon after a call that may have made the file cache grow, and waits while memory
    /// is overdrawn.
    pub fn admit(&self) {
        let began = self.rt.now();
        let mut waited = false;
        loop {
            let ticket = self.moved.ticket();
            let free = self.free(&self.state.lock().table);
            if free < self.limits.free_low as i64 {
                self.rt.signal(&self.pressure);
            }
            if free >= 0 || self.stop.load(Ordering::SeqCst) {
                break;
            }
            waited = true;
            self.rt.wait(&self.moved, ticket, None);
        }
        if waited {
            self.count_frame_wait(began);
        }
    }

    fn count_frame_wait(&self, began: Time) {
        let waited_ns = (self.rt.now() - began).as_nanos() as u64;
        let paging = &mut self.state.lock().paging;
        paging.frame_waits += 1;
        paging.frame_wait_ns += waited_ns;
    }

    // -- the page daemon

    fn run_daemon(&self) {
        loop {
            let ticket = self.pressure.ticket();
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.note_files();
            while self.free(&self.state.lock().table) < self.limits.free_target as i64 {
                if !self.free_some() {
                    self.rt.wait(&self.pressure, self.pressure.ticket(), Some(self.rt.now() + NOTHING_TO_FREE));
                }
                self.rt.signal(&self.moved);
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
            }
            self.rt.wait(&self.pressure, ticket, None);
        }
    }

    /// Runs the swap's background steps: areas give way to files that need the space, and are given
    /// back when they are empty. A task of its own, because the page daemon must not wait.
    fn run_tender(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            match self.swap.run_background_step() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.failed.lock().get_or_insert(error);
                }
            }
            let ticket = self.stopped.ticket();
            if !self.stop.load(Ordering::SeqCst) {
                self.rt.wait(&self.stopped, ticket, Some(self.rt.now() + TEND_EVERY));
            }
        }
    }

    fn note_files(&self) {
        let bytes = self.files.bytes() as u64;
        let paging = &mut self.state.lock().paging;
        paging.files_bytes_sum += bytes;
        paging.files_looks += 1;
    }

    /// Looks at the page that has waited longest, of a process or of a file: it is dropped, paged
    /// out, or put back if it was used. Returns false if nothing can leave.
    fn free_some(&self) -> bool {
        let files = self.files.coldest();
        let mut state = self.state.lock();
        match (state.table.coldest(), files) {
            (None, None) => return false,
            (Some(page), Some(file)) if page <= file => {}
            (Some(_), None) => {}
            (_, Some(_)) => {
                drop(state);
                self.files.evict(FILES_STEP_BYTES);
                return true;
            }
        }
        let victim = state.table.look(self.rt.now());
        self.looks.store(state.table.looks(), Ordering::Relaxed);
        match victim {
            Victim::Dirty(page) => {
                let leaving = state.table.begin_out(page, self.limits.cluster);
                drop(state);
                self.page_out(leaving);
            }
            Victim::Dropped => state.paging.drops += 1,
            Victim::Again | Victim::None => {}
        }
        true
    }

    fn page_out(&self, leaving: Range<u32>) {
        let pages: Vec<(PageNo, Page)> = leaving.clone().map(|page| (PageNo(page), self.zero.clone())).collect();
        if let Err(error) = self.swap.page_out(&pages) {
            self.failed.lock().get_or_insert(error);
        }
        let mut state = self.state.lock();
        state.paging.outs += pages.len() as u64;
        state.paging.out_calls += 1;
        let stale = state.table.end_out(leaving, self.rt.now());
        drop(state);
        stale.into_iter().for_each(|page| self.swap.free(PageNo(page), 1));
    }

    // -- faults

    fn touch(&self, page: u32, access: Access) -> Touched {
        let found = self.state.lock().table.touch(page, access);
        if found == Touched::Stale {
            self.swap.free(PageNo(page), 1);
        }
        found
    }

    /// Brings a page in, or waits for another task that is bringing it in.
    fn fault(&self, page: u32) -> Result<(), SwapError> {
        let began = self.rt.now();
        let mut waited = false;
        loop {
            let ticket = self.moved.ticket();
            let mut state = self.state.lock();
            match state.table.state(page) {
                PageState::Resident | PageState::Leaving => return Ok(()),
                PageState::Coming => {
                    drop(state);
                    self.rt.wait(&self.moved, ticket, None);
                    continue;
                }
                PageState::Nowhere | PageState::Out => {}
            }
            let free = self.free(&state.table);
            if free > 0 {
                let is_out = state.table.state(page) == PageState::Out;
                state.table.begin_in(page);
                drop(state);
                if free <= self.limits.free_low as i64 {
                    self.rt.signal(&self.pressure);
                }
                if waited {
                    self.count_frame_wait(began);
                }
                return self.bring_in(page, is_out);
            }
            waited = true;
            drop(state);
            self.rt.signal(&self.pressure);
            self.rt.wait(&self.moved, ticket, None);
        }
    }

    fn bring_in(&self, page: u32, is_out: bool) -> Result<(), SwapError> {
        let began = self.rt.now();
        let mut came = Vec::new();
        if is_out {
            let mut note = |page: PageNo, _: &[u8]| came.push(page.0);
            self.swap.page_in_with(PageNo(page), self.limits.neighbours, &mut note)?;
        }
        let now = self.rt.now();
        let mut state = self.state.lock();
        state.table.end_in(page, is_out, now);
        if is_out {
            let mut room = self.free(&state.table);
            for neighbour in came {
                if room > 0 && state.table.bring(neighbour, now) {
                    room -= 1;
                    state.paging.brought += 1;
                }
            }
            state.paging.faults += 1;
            state.paging.in_wait_ns += (now - began).as_nanos() as u64;
        } else {
            state.paging.zero_fills += 1;
        }
        drop(state);
        self.rt.signal(&self.moved);
        Ok(())
    }

    fn release(&self, pages: Range<u32>) {
        self.state.lock().table.release(pages.clone());
        self.swap.free(PageNo(pages.start), pages.end - pages.start);
        self.rt.signal(&self.moved);
    }
}

/// A process: its pages, and the processor time it owes.
pub struct Process {
    memory: Arc<Memory>,
    first: u32,
    pages: u32,
    owed_ns: Cell<u64>,
    cpu_ns: Cell<u64>,
}

impl Process {
    /// Makes a process of `pages` pages without contents.
    ///
    /// # Panics
    /// Panics if memory was made for fewer pages.
    pub fn new(memory: &Arc<Memory>, pages: u32) -> Process {
        let mut state = memory.state.lock();
        // Processes do not share clusters.
        let first = state.next_page.next_multiple_of(memory.limits.cluster);
        assert!(first + pages <= memory.swap.pages(), "{pages} pages at {first} of {}", memory.swap.pages());
        state.next_page = first + pages;
        drop(state);
        Process { memory: Arc::clone(memory), first, pages, owed_ns: Cell::new(0), cpu_ns: Cell::new(0) }
    }

    /// Returns the number of pages it was made with.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the processor time used so far, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.get()
    }

    /// Accesses a page, after bringing it in if needed.
    ///
    /// # Errors
    /// Fails if the page cannot be brought in.
    pub fn touch(&self, page: u32, access: Access) -> Result<(), SwapError> {
        debug_assert!(page < self.pages);
        let page = self.first + page;
        while !matches!(self.memory.touch(page, access), Touched::Hit | Touched::Stale) {
            self.compute(self.memory.limits.fault_ns);
            self.settle();
            self.memory.fault(page)?;
        }
        Ok(())
    }

    /// Uses the processor for `ns` nanoseconds. Small amounts are collected until the next fault.
    pub fn compute(&self, ns: u64) {
        self.owed_ns.set(self.owed_ns.get() + ns);
        if self.owed_ns.get() >= OWED_NS_MAX {
            self.settle();
        }
    }

    /// Takes the processor for the time that is owed.
    pub fn settle(&self) {
        let ns = self.owed_ns.take();
        self.cpu_ns.set(self.cpu_ns.get() + ns);
        if ns > 0 {
            self.memory.rt.compute(ns);
        }
    }

    /// Returns a counter of looks at pages. While it stays the same, no page was looked at for
    /// replacement.
    pub fn looks(&self) -> u64 {
        self.memory.looks.load(Ordering::Relaxed)
    }

    /// Gives all pages back.
    pub fn release(&self) {
        self.memory.release(self.first..self.first + self.pages);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use moafs_disk::{MemDisk, SharedDisk};
    use moafs_runtime::Virtual;
    use moafs_swap::{Placement, SwapOptions};

    use super::*;

    /// A file cache of this many pages, the first of which came at time 0.
    #[derive(Default)]
    struct Files(AtomicU64);

    impl FileCache for Files {
        fn bytes(&self) -> usize {
            self.0.load(Ordering::Relaxed) as usize * PAGE_BYTES
        }
        fn coldest(&self) -> Option<Time> {
            (self.0.load(Ordering::Relaxed) > 0).then_some(Time(0))
        }
        fn evict(&self, bytes: usize) {
            let pages = (bytes / PAGE_BYTES) as u64;
            self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(pages), Ordering::Relaxed);
        }
    }

    const LIMITS: Limits =
        Limits { frames: 256, free_low: 8, free_target: 16, cluster: 16, neighbours: 7, fault_ns: 1000 };

    fn swap(rt: Rt, pages: u32) -> Swap {
        let disk: SharedDisk = Arc::new(MemDisk::new(u64::from(pages) * 8));
        let options = SwapOptions { placement: Placement::Traditional, ..SwapOptions::default() };
        Swap::open(None, Some(disk), pages, rt, options).unwrap()
    }

    fn with_memory<T>(files: &Arc<Files>, work: impl FnOnce(&Arc<Memory>) -> T) -> T {
        let runtime = Virtual::new(None);
        runtime.run(|| {
            let files = Arc::clone(files) as Arc<dyn FileCache>;
            let (memory, background) = Memory::new(runtime.rt(), LIMITS, 1024, swap(runtime.rt(), 1024), files);
            let outcome = work(&memory);
            memory.stop(&background).unwrap();
            outcome
        })
    }

    #[test]
    fn what_fits_never_leaves() {
        let paging = with_memory(&Arc::default(), |memory| {
            let process = Process::new(memory, 200);
            for page in (0..5).flat_map(|_| 0..200) {
                process.touch(page, Access::Write).unwrap();
            }
            memory.paging()
        });
        assert_eq!((paging.zero_fills, paging.faults, paging.outs), (200, 0, 0));
    }

    #[test]
    fn sweeps_over_more_than_memory_page_in_clusters() {
        let (paging, swapped) = with_memory(&Arc::default(), |memory| {
            let process = Process::new(memory, 400);
            for page in (0..4).flat_map(|_| 0..400) {
                process.touch(page, Access::Write).unwrap();
                process.compute(10_000);
            }
            process.settle();
            (memory.paging(), memory.swap().status().counters)
        });
        assert_eq!(paging.zero_fills, 400);
        assert!(paging.faults + paging.brought >= 3 * 300, "{paging:?}");
        assert!(paging.outs >= 3 * 300 && swapped.out_requests * 12 < swapped.pages_out, "{paging:?}");
        assert!(swapped.in_requests * 4 < swapped.pages_in + swapped.neighbours_in, "{swapped:?}");
    }

    #[test]
    fn the_file_cache_gives_way_where_its_pages_are_older() {
        let files = Arc::new(Files(AtomicU64::new(200)));
        let paging = with_memory(&files, |memory| {
            let process = Process::new(memory, 220);
            for page in 0..220 {
                process.touch(page, Access::Write).unwrap();
                process.compute(1_000_000);
            }
            memory.paging()
        });
        assert_eq!(paging.outs, 0);
        assert!(files.0.load(Ordering::Relaxed) < 36);
    }

    #[test]
    fn who_takes_too_much_for_files_waits_for_the_daemon() {
        let files = Arc::new(Files::default());
        with_memory(&files, |memory| {
            files.0.store(300, Ordering::Relaxed);
            memory.admit();
            assert!(files.0.load(Ordering::Relaxed) <= 256);
            assert_eq!(memory.paging().frame_waits, 1);
        });
    }

    #[test]
    fn pages_that_are_given_back_read_as_nothing() {
        with_memory(&Arc::default(), |memory| {
            let process = Process::new(memory, 400);
            (0..400).for_each(|page| process.touch(page, Access::Write).unwrap());
            process.settle();
            process.release();
            assert_eq!(memory.swap().status().used, 0);
            let before = memory.paging().faults;
            process.touch(0, Access::Read).unwrap();
            assert_eq!((memory.paging().faults, memory.paging().zero_fills), (before, 401));
        });
    }
}
