//! [`Swap`]: pages out and in, by any number of threads at once.
//!
//! * The map names a page's slot only after the write has ended. A write that fails leaves the page where it was.
//! * A slot that is read or written is pinned ([`crate::map`]): no other page's bytes are written there before the
//!   request has ended. So a page-in beside a page-out of the same page gives the bytes from before or after, never
//!   another page's.
//! * Of two page-outs of one page at the same time, one of both remains; a caller that needs an order does them one
//!   after the other.
//! * A slot that could not be written is set aside until its area is given back or no other slot is free: the device
//!   may remap it, but the next page should not be the one to try. A request that fails is repeated page by page, so
//!   that one bad sector costs one page.
//! * If no slot is free at all, a page that has one is written over it; an error then leaves it undefined, as on any
//!   disk.
//!
//! Waiting: a call waits for another only where a slot is being written over, or where every slot is in use by a
//! request.
//!
//! Memory: all tables are allocated by [`Swap::open`]. A page-out allocates only the arguments of [`Disk::submit`] (per
//! disk one vector of requests, and for each request one vector of pages) and the memory that the disk itself needs.
//!
//! [`Disk::submit`]: moafs_disk::Disk::submit

use moafs_disk::{Cause, DiskError, DiskExt, Done, Kind, Op, Page, ReadPart, Request, SharedDisk, Tag, Ticket};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt, lock};
use moafs_vfs::swap_space::{Group, Where};
use moafs_vfs::types::BlockRun;

use crate::avoid::NO_ROOM;
use crate::error::SwapError;
use crate::options::{Home, SwapOptions};
use crate::page::{PAGE_BYTES, PageNo};
use crate::places::Head;
use crate::state::{Assigned, BATCH_PAGES, Batch, PageSet, Purpose, Reading, Side, SlotRun, Spare, State};
use crate::status::Status;

/// Slots by which a traditional swap space without a partition grows: a transfer of 1 MiB.
const GROWTH_SLOTS: u64 = 256;

/// Pages that are freed before the lock is released for other tasks.
const FREE_PAGES: u32 = 1024;

/// Paged-out memory on a volume, a partition, or both.
pub struct Swap {
    pub(crate) home: Option<Home>,
    partition: Option<SharedDisk>,
    pages: u32,
    options: SwapOptions,
    reserved_blocks: u64,
    pub(crate) rt: Rt,
    pub(crate) state: Mutex<State>,
    /// Held while blocks are taken from the volume.
    making: lock::Mutex<()>,
    /// Held while a background step runs.
    pub(crate) tending: lock::Mutex<()>,
    /// Signalled when a request has ended and a task is waiting.
    moved: Event,
}

/// The results of a batch's writes.
#[derive(Default)]
pub(crate) struct WriteResults {
    failed: PageSet,
    spoiled: PageSet,
    errors: u64,
    first: Option<SwapError>,
}

impl WriteResults {
    fn fail(&mut self, index: usize, page: PageNo, source: DiskError) {
        self.failed.insert(index);
        // A full host has changed nothing in the slot.
        if matches!(source, DiskError::Io { .. }) {
            self.spoiled.insert(index);
        }
        self.errors += 1;
        self.first.get_or_insert(SwapError::Device { page, source });
    }
}

impl Swap {
    /// Opens a swap of `pages` pages on at least one of `home`, a volume, and `partition`, the traditional swap space
    /// as a disk of its own.
    ///
    /// Without a partition, `pages` times 4 KiB of the volume are reserved at once, and traditional pages take the
    /// lowest of its free addresses. A partition holds all pages; then areas get as many blocks as the volume can
    /// promise, up to the same size.
    ///
    /// # Errors
    /// [`SwapError::Volume`] if the volume cannot promise that many blocks; [`SwapError::Refused`] if the partition is
    /// too small, or the volume's blocks are larger than a page.
    pub fn open(
        home: Option<Home>,
        partition: Option<SharedDisk>,
        pages: u32,
        rt: Rt,
        options: SwapOptions,
    ) -> Result<Swap, SwapError> {
        let opened = crate::open::open(home, partition, pages, &options)?;
        Ok(Swap {
            home: opened.home,
            partition: opened.partition,
            pages,
            options,
            reserved_blocks: opened.reserved_blocks,
            state: Mutex::new(opened.state),
            making: lock::Mutex::new(rt.clone(), ()),
            tending: lock::Mutex::new(rt.clone(), ()),
            rt,
            moved: Event::new(),
        })
    }

    /// Returns the number of pages the swap can hold.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Writes pages that leave together: in adjacent slots, in as few requests as possible. A page that was out moves.
    ///
    /// # Errors
    /// [`SwapError::Beyond`] before anything is written. [`SwapError::Device`] for the first page that could not be
    /// written, which keeps its former contents; the others are out. [`SwapError::NoRoom`] if the volume's free space
    /// is in too small pieces.
    ///
    /// # Panics
    /// If a page has not [`PAGE_BYTES`] bytes.
    pub fn page_out(&self, pages: &[(PageNo, Page)]) -> Result<(), SwapError> {
        for (page, bytes) in pages {
            self.check(*page)?;
            assert_eq!(bytes.len(), PAGE_BYTES, "page {}", page.0);
        }
        let mut first_error = None;
        let mut rest = pages;
        while !rest.is_empty() {
            let mut batch = Batch::new();
            let next = &rest[..rest.len().min(BATCH_PAGES)];
            self.find_slots(next, Purpose::Out, &mut batch)?;
            let (now, later) = rest.split_at(batch.pages());
            let outcome = self.write(now, &batch, Purpose::Out);
            first_error = first_error.or(outcome.first);
            rest = later;
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Reads a page; zeros if it was never out. The page stays out until [`Swap::free`].
    ///
    /// # Errors
    /// [`SwapError::Beyond`], [`SwapError::Device`].
    ///
    /// # Panics
    /// If `into` has not [`PAGE_BYTES`] bytes.
    pub fn page_in(&self, page: PageNo, into: &mut [u8]) -> Result<(), SwapError> {
        assert_eq!(into.len(), PAGE_BYTES, "page {}", page.0);
        self.check(page)?;
        let Some((run, _)) = self.begin_read(page, 0) else {
            into.fill(0);
            return Ok(());
        };
        let part = ReadPart { at: run.at, into };
        let read = self.disk(run.side).read_into(&mut [part], tag(Cause::Demand));
        self.end_read(&run, read.is_ok());
        read.map_err(|source| SwapError::Device { page, source })
    }

    /// Reads a page as [`Swap::page_in`] does, and in the same request up to `neighbours` pages (at most
    /// [`SwapOptions::neighbours`]) that lie beside it and left together with it. The page itself is passed first.
    ///
    /// A neighbour's bytes are those during the read. A caller that keeps them must ensure that the neighbour was not
    /// paged out or freed in between.
    ///
    /// # Errors
    /// As [`Swap::page_in`]; never because of a neighbour.
    pub fn page_in_with(
        &self,
        page: PageNo,
        neighbours: u32,
        each: &mut dyn FnMut(PageNo, &[u8]),
    ) -> Result<(), SwapError> {
        self.check(page)?;
        let neighbours = neighbours.min(self.options.neighbours).min(self.state.lock().request_pages - 1);
        let Some((run, index)) = self.begin_read(page, neighbours) else {
            each(page, &[0; PAGE_BYTES]);
            return Ok(());
        };
        let bytes = self.disk(run.side).read(run.at, run.pages as usize * PAGE_BYTES, tag(Cause::Demand));
        let owners = self.owners(&run);
        self.end_read(&run, bytes.is_ok());
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(source) if run.pages == 1 => return Err(SwapError::Device { page, source }),
            Err(_) => return self.page_in_with(page, 0, each),
        };
        let of = |index: usize| &bytes[index * PAGE_BYTES..(index + 1) * PAGE_BYTES];
        each(page, of(index));
        for (other, owner) in owners.iter().take(run.pages as usize).enumerate() {
            if let Some(owner) = owner.filter(|_| other != index) {
                each(owner, of(other));
            }
        }
        Ok(())
    }

    /// Forgets pages: they read as zeros, and their slots are free. Page numbers beyond the end are ignored.
    pub fn free(&self, first: PageNo, count: u32) {
        let end = first.0.saturating_add(count).min(self.pages);
        for start in (first.0..end).step_by(FREE_PAGES as usize) {
            let mut state = self.state.lock();
            let before = state.map.pages_out();
            for page in start..end.min(start.saturating_add(FREE_PAGES)) {
                state.clear(PageNo(page));
            }
            state.counters.pages_freed += u64::from(before - state.map.pages_out());
            self.unlock_and_wake(state);
        }
    }

    /// Returns true if a page is out.
    pub fn is_out(&self, page: PageNo) -> bool {
        self.state.lock().map.slot_of(page).is_some()
    }

    /// Returns counters and state of the swap.
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        Status {
            placement: self.options.placement,
            pages: self.pages,
            used: state.map.pages_out(),
            reserved_blocks: self.reserved_blocks,
            taken_blocks: self.reserved_blocks - state.promised_blocks,
            area_slots: state.areas.slots(),
            areas: state.area_statuses(),
            traditional_slots: state.traditional.held(),
            traditional_used: state.traditional.used(),
            counters: state.counters,
        }
    }

    fn check(&self, page: PageNo) -> Result<(), SwapError> {
        if page.0 < self.pages { Ok(()) } else { Err(SwapError::Beyond { page, pages: self.pages }) }
    }

    pub(crate) fn disk(&self, side: Side) -> &SharedDisk {
        let disk = match side {
            Side::Home => self.home.as_ref().map(|home| &home.disk),
            Side::Partition => self.partition.as_ref(),
        };
        disk.expect("slots lie on a disk that there is")
    }

    fn head(&self) -> Option<Head> {
        let home = self.home.as_ref()?;
        let block = home.head.get()?;
        Some(Head { block, group: home.room.group_of(block) })
    }

    /// Unlocks the state after a change, and wakes tasks that wait for one.
    fn unlock_and_wake(&self, state: moafs_runtime::leaf::MutexGuard<'_, State>) {
        let waited_for = state.waiters > 0;
        drop(state);
        if waited_for {
            self.rt.signal(&self.moved);
        }
    }

    /// Finds slots for the first of `pages`, at least one. Returns false if there are none for pages that are only
    /// being moved.
    pub(crate) fn find_slots(
        &self,
        pages: &[(PageNo, Page)],
        purpose: Purpose,
        batch: &mut Batch,
    ) -> Result<bool, SwapError> {
        let (first, count) = (pages[0].0, pages.len() as u32);
        let mut may_grow = true;
        let mut trouble = None;
        loop {
            let (head, now, ticket) = (self.head(), self.rt.now(), self.moved.ticket());
            let assigned = {
                let mut state = self.state.lock();
                let assigned = state.assign((first, count), purpose, head, now, may_grow, batch);
                let waits = u32::from(assigned == Assigned::Wait && purpose == Purpose::Out);
                state.waiters += waits;
                state.counters.waits += u64::from(waits);
                assigned
            };
            match assigned {
                Assigned::Found => return Ok(true),
                Assigned::Create(group, pages) => self.create(group, pages, head),
                Assigned::Grow => match self.grow() {
                    Ok(grown) => may_grow = grown,
                    Err(error) => (may_grow, trouble) = (false, Some(error)),
                },
                Assigned::Wait | Assigned::Nothing if purpose != Purpose::Out => return Ok(false),
                Assigned::Wait => {
                    self.rt.wait(&self.moved, ticket, None);
                    self.state.lock().waiters -= 1;
                    may_grow = true;
                }
                Assigned::Nothing => return Err(trouble.unwrap_or(SwapError::NoRoom { page: first })),
            }
        }
    }

    /// Creates an area in a group for `pages` pages together, or records that this is not possible.
    fn create(&self, group: Group, pages: u32, head: Option<Head>) {
        let Some(home) = &self.home else { return };
        let _making = self.making.lock();
        let blocks = {
            let state = self.state.lock();
            let mut there = state.areas.in_group(group);
            // Another task may have created it.
            if there.any(|area| state.areas.get(area).has_run(pages.min(state.areas.slots()))) {
                return;
            }
            state.areas.blocks()
        };
        let taken = match self.collect(u64::from(blocks)) {
            true => home.room.take(Where::EndOf(group), blocks, blocks).ok().flatten(),
            false => None,
        };
        let unused = {
            let mut state = self.state.lock();
            let near = head.and_then(|head| head.group) == Some(group);
            let area = taken.filter(|run| run.len == blocks).and_then(|run| state.areas.create(group, run));
            match area {
                Some(area) => {
                    state.promised_blocks -= u64::from(blocks);
                    state.counters.areas_made += 1;
                    state.counters.areas_made_elsewhere += u64::from(!near);
                    let State { search, areas, .. } = &mut *state;
                    search.created(areas, area, head);
                }
                None => {
                    state.counters.areas_refused += 1;
                    state.avoid.add(group, self.rt.now(), NO_ROOM);
                }
            }
            taken.filter(|_| area.is_none())
        };
        if let Some(run) = unused {
            home.room.give(run);
        }
    }

    /// Takes blocks at the volume's lowest addresses for the traditional swap space. Returns false
    /// if there are none.
    fn grow(&self) -> Result<bool, SwapError> {
        let Some(home) = &self.home else { return Ok(false) };
        let _making = self.making.lock();
        let granule = u64::from(self.state.lock().granule);
        if !self.collect(granule) {
            return Ok(false);
        }
        let want = {
            let state = self.state.lock();
            if state.traditional.free_count() > 0 {
                return Ok(true);
            }
            (state.promised_blocks / granule).min(GROWTH_SLOTS).min(u64::from(state.traditional.vacant())) * granule
        };
        let taken = home.room.take(Where::LOWEST, want as u32, granule as u32);
        let what = "finding room for pages at the volume's lowest addresses";
        let Some(run) = taken.map_err(|source| SwapError::Volume { what, source })? else { return Ok(false) };
        let mut state = self.state.lock();
        state.promised_blocks -= u64::from(run.len);
        if let Some(rest) = state.traditional.grow(run) {
            state.giving_blocks += u64::from(rest.len);
            drop(state);
            self.give(rest);
        }
        Ok(true)
    }

    /// Gives unused blocks back until `blocks` blocks are promised, and waits for blocks that other tasks are giving
    /// back. Returns false if there are too few.
    fn collect(&self, blocks: u64) -> bool {
        loop {
            let ticket = self.moved.ticket();
            let spare = {
                let mut state = self.state.lock();
                if state.promised_blocks >= blocks {
                    return true;
                }
                let spare = state.next_spare(Spare::All, self.rt.now());
                if spare.is_none() && state.giving_blocks == 0 {
                    return false;
                }
                state.waiters += u32::from(spare.is_none());
                spare
            };
            match spare {
                Some(run) => self.give(run),
                None => {
                    self.rt.wait(&self.moved, ticket, None);
                    self.state.lock().waiters -= 1;
                }
            }
        }
    }

    /// Gives blocks back to the volume's promise for this swap.
    pub(crate) fn give(&self, run: BlockRun) {
        let Some(home) = &self.home else { return };
        home.room.give(run);
        let mut state = self.state.lock();
        state.given(run);
        self.unlock_and_wake(state);
    }

    /// Writes the pages of a batch and switches those whose write succeeded.
    pub(crate) fn write(&self, pages: &[(PageNo, Page)], batch: &Batch, purpose: Purpose) -> WriteResults {
        let cause = if purpose == Purpose::Out { Cause::Evict } else { Cause::Move };
        // Submit to both disks before waiting, so that they work at the same time.
        let [home, partition] = [Side::Home, Side::Partition].map(|side| self.submit(pages, batch, side, cause));
        let mut home = self.await_side(Side::Home, home);
        let mut partition = self.await_side(Side::Partition, partition);
        let mut outcome = WriteResults::default();
        let mut index = 0;
        for run in batch.runs() {
            let done = match run.side {
                Side::Home => home.next(),
                Side::Partition => partition.next(),
            };
            let error = done.and_then(|done| done.result.err());
            if let Some(error) = error {
                self.repeat(pages, run, index, cause, error, &mut outcome);
            }
            index += run.pages as usize;
        }
        let mut state = self.state.lock();
        state.counters.write_errors += outcome.errors;
        state.complete(|index| pages[index].0, batch, purpose, &outcome.failed, &outcome.spoiled);
        self.unlock_and_wake(state);
        outcome
    }

    /// Submits one request for each run on one disk.
    fn submit(&self, pages: &[(PageNo, Page)], batch: &Batch, side: Side, cause: Cause) -> Option<Ticket> {
        let count = batch.runs().iter().filter(|run| run.side == side).count();
        if count == 0 {
            return None;
        }
        let mut requests = Vec::with_capacity(count);
        let mut rest = pages;
        for run in batch.runs() {
            let (here, after) = rest.split_at(run.pages as usize);
            rest = after;
            if run.side == side {
                requests.push(write_request(here, run, cause));
            }
        }
        Some(self.disk(side).submit(requests))
    }

    fn await_side(&self, side: Side, ticket: Option<Ticket>) -> std::vec::IntoIter<Done> {
        ticket.map_or_else(Vec::new, |ticket| self.disk(side).wait(ticket)).into_iter()
    }

    /// Repeats a failed request page by page, so that only pages on bad sectors fail.
    fn repeat(
        &self,
        pages: &[(PageNo, Page)],
        run: &SlotRun,
        first: usize,
        cause: Cause,
        error: DiskError,
        outcome: &mut WriteResults,
    ) {
        if run.pages == 1 {
            return outcome.fail(first, pages[first].0, error);
        }
        for (i, index) in (first..first + run.pages as usize).enumerate() {
            let single = SlotRun { at: page_at(run, i), pages: 1, ..*run };
            let request = write_request(&pages[index..=index], &single, cause);
            let done = self.disk(run.side).run(vec![request]);
            if let Some(source) = done.into_iter().next().and_then(|done| done.result.err()) {
                outcome.fail(index, pages[index].0, source);
            }
        }
    }

    /// Pins the slots to read and returns them with the index of the page's own; `None` if the page
    /// is not out.
    fn begin_read(&self, page: PageNo, neighbours: u32) -> Option<(SlotRun, usize)> {
        loop {
            let ticket = self.moved.ticket();
            let mut state = self.state.lock();
            match state.begin_read(page, neighbours) {
                Reading::Absent => return None,
                Reading::Here { run, index } => return Some((run, index as usize)),
                Reading::Wait => {
                    state.waiters += 1;
                    state.counters.waits += 1;
                }
            }
            drop(state);
            self.rt.wait(&self.moved, ticket, None);
            self.state.lock().waiters -= 1;
        }
    }

    fn end_read(&self, run: &SlotRun, ok: bool) {
        let mut state = self.state.lock();
        state.counters.in_requests += 1;
        if ok {
            state.counters.pages_in += 1;
            state.counters.neighbours_in += u64::from(run.pages) - 1;
        } else {
            state.counters.read_errors += u64::from(run.pages == 1);
        }
        self.unpin(state, run);
    }

    /// Removes the pins of a read and releases the lock.
    pub(crate) fn unpin(&self, mut state: moafs_runtime::leaf::MutexGuard<'_, State>, run: &SlotRun) {
        state.end_read(run);
        self.unlock_and_wake(state);
    }

    /// Returns the owners of the slots that were read.
    pub(crate) fn owners(&self, run: &SlotRun) -> [Option<PageNo>; BATCH_PAGES] {
        let state = self.state.lock();
        let mut owners = [None; BATCH_PAGES];
        owners.iter_mut().zip(run.slots()).for_each(|(owner, slot)| *owner = state.map.page_of(slot));
        owners
    }
}

impl WriteResults {
    /// Returns the first error, if any.
    pub(crate) fn into_result(self) -> Result<(), SwapError> {
        self.first.map_or(Ok(()), Err)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.free(PageNo(0), self.pages);
        let now = self.rt.now();
        while let Some(run) = { self.state.lock().next_spare(Spare::All, now) } {
            self.give(run);
        }
        if let Some(home) = &self.home {
            home.room.release(self.reserved_blocks);
        }
    }
}

impl std::fmt::Debug for Swap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Swap({} pages, {})", self.pages, self.options.placement.name())
    }
}

fn write_request(pages: &[(PageNo, Page)], run: &SlotRun, cause: Cause) -> Request {
    let mut data = Vec::with_capacity(pages.len());
    data.extend(pages.iter().map(|(_, page)| page.clone()));
    Request { op: Op::Write { data, fua: false }, at: run.at, tag: tag(cause) }
}

/// Returns the address of a page of a run.
pub(crate) fn page_at(run: &SlotRun, index: usize) -> moafs_disk::Lba {
    moafs_disk::Lba(run.at.0 + (index * PAGE_BYTES / moafs_disk::SECTOR) as u64)
}

pub(crate) fn tag(cause: Cause) -> Tag {
    Tag::new(Kind::Swap, 0, cause)
}
