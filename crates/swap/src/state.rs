//! The state of a swap, under one lock that is never held across a request: the owner of each slot, and the place of
//! the next pages.
//!
//! A page-out has three steps: [`State::assign`] pins free slots, the requests are made without the lock,
//! [`State::complete`] gives the slots to their pages. A page-in pins slots ([`State::begin_read`]), reads, and takes
//! the pins away ([`State::end_read`]). The rules for pins in [`SwapMap`] make these steps safe when they run
//! concurrently.
//!
//! Nothing here allocates memory.

use std::time::Duration;

use moafs_disk::{Lba, SECTOR};
use moafs_runtime::Time;
use moafs_vfs::swap_space::Group;
use moafs_vfs::types::{BlockAddr, BlockRun};

use crate::areas::{AreaNo, Areas};
use crate::avoid::{Avoid, PRESSED};
pub(crate) use crate::map::SlotNo;
use crate::map::SwapMap;
use crate::options::Placement;
use crate::page::PageNo;
use crate::places::{Choice, Head, Search};
use crate::status::{AreaStatus, Counters};
use crate::traditional::Traditional;

/// The most pages whose slots are found, written and switched together: a transfer of 1 MiB.
pub(crate) const BATCH_PAGES: usize = 256;

/// The time after which an area without pages is given back. Giving it back at once would make the next page look for
/// an area again.
const IDLE: Duration = Duration::from_secs(30);

/// The disk that holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Home,
    Partition,
}

/// Slots that lie together and are transferred in one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotRun {
    pub(crate) first: SlotNo,
    pub(crate) pages: u32,
    pub(crate) side: Side,
    pub(crate) at: Lba,
    /// True if the run is the slot that its page already has, to be written over.
    pub(crate) in_place: bool,
}

impl SlotRun {
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotNo> + use<> {
        (self.first.0..self.first.0 + self.pages).map(SlotNo)
    }
}

/// Runs for the first of the pages that leave.
pub(crate) struct Batch {
    runs: [SlotRun; BATCH_PAGES],
    count: usize,
    pages: u32,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        let nowhere = SlotRun { first: SlotNo(0), pages: 0, side: Side::Home, at: Lba(0), in_place: false };
        Batch { runs: [nowhere; BATCH_PAGES], count: 0, pages: 0 }
    }

    pub(crate) fn runs(&self) -> &[SlotRun] {
        &self.runs[..self.count]
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages as usize
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, run: SlotRun) {
        self.runs[self.count] = run;
        self.count += 1;
        self.pages += run.pages;
    }
}

/// A set of pages of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PageSet([u64; BATCH_PAGES / 64]);

impl PageSet {
    pub(crate) fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    pub(crate) fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }
}

/// The purpose of writing pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The pages leave memory. There must be a slot for them.
    Out,
    /// The pages leave their slots, from this one on, if there are better ones.
    Move { from: SlotNo },
}

/// The result of [`State::assign`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assigned {
    /// Slots were found for at least one page.
    Found,
    /// No slot, until the caller has tried to create an area in this group for so many pages
    /// together.
    Create(Group, u32),
    /// No slot, until the caller has tried to enlarge the traditional swap space.
    Grow,
    /// No slot, until another request has ended.
    Wait,
    /// No slot at all.
    Nothing,
}

/// The result of [`State::begin_read`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// The page is not in the swap.
    Absent,
    /// The page is being written over in its slot.
    Wait,
    /// Slots to read; the page is the one with this index.
    Here { run: SlotRun, index: u32 },
}

/// The free blocks that are to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spare {
    /// Blocks of areas that are being vacated.
    Leaving,
    /// The same, and blocks of areas without pages that were not used for [`IDLE`].
    Idle,
    /// Blocks of all areas without pages, and of the traditional swap space: they are needed now.
    All,
}

/// The state of a swap.
pub(crate) struct State {
    pub(crate) map: SwapMap,
    pub(crate) areas: Areas,
    pub(crate) traditional: Traditional,
    pub(crate) search: Search,
    pub(crate) avoid: Avoid,
    /// Reserved blocks that are not in use by an area or the traditional swap space.
    pub(crate) promised_blocks: u64,
    /// Blocks being given back to the volume: no part of the swap has them any more, and they do
    /// not count as promised yet.
    pub(crate) giving_blocks: u64,
    pub(crate) counters: Counters,
    /// The number of tasks that wait for a slot.
    pub(crate) waiters: u32,
    pub(crate) placement: Placement,
    pub(crate) block_sectors: u64,
    pub(crate) granule: u32,
    /// The most pages in one request.
    pub(crate) request_pages: u32,
    /// The time since which the traditional swap space is known to have no pages; `None` while it
    /// has some.
    pub(crate) traditional_idle_since: Option<Time>,
    /// The position in a vacated area at which the next search for pages begins.
    pub(crate) migration_next: u32,
}

impl State {
    fn slot_in(&self, area: AreaNo, slot: u32) -> SlotNo {
        SlotNo(self.traditional.numbers() + area.0 * self.areas.slots() + slot)
    }

    /// Returns the area a slot lies in and its index there; `None` for the traditional swap space.
    fn area_of(&self, slot: SlotNo) -> Option<(AreaNo, u32)> {
        let number = slot.0.checked_sub(self.traditional.numbers())?;
        Some((AreaNo(number / self.areas.slots()), number % self.areas.slots()))
    }

    fn sector(&self, block: BlockAddr) -> Lba {
        Lba(block.0 * self.block_sectors)
    }

    fn run(&self, first: SlotNo, pages: u32) -> SlotRun {
        let block = match self.area_of(first) {
            Some((area, slot)) => Some(self.areas.block_of(area, slot)),
            None => self.traditional.block_of(first.0),
        };
        let (side, at) = match block {
            Some(block) => (Side::Home, self.sector(block)),
            None => (Side::Partition, Lba(Traditional::sector_of(first.0))),
        };
        SlotRun { first, pages, side, at, in_place: false }
    }

    /// Frees a slot that has neither owner nor pin.
    fn release(&mut self, slot: SlotNo) {
        match self.area_of(slot) {
            Some((area, index)) => self.areas.give(area, index),
            None => self.traditional.give(slot.0),
        }
    }

    fn unpin(&mut self, slot: SlotNo) {
        if self.map.unpin(slot) {
            self.release(slot);
        }
    }

    /// Removes a page from its slot.
    pub(crate) fn clear(&mut self, page: PageNo) {
        if let Some(slot) = self.map.clear(page) {
            self.release(slot);
        }
    }

    /// Finds slots for pages that leave together, of which `first` is the first one: for all of them, or for as many as
    /// possible without first creating an area, growing or waiting.
    pub(crate) fn assign(
        &mut self,
        (first, count): (PageNo, u32),
        purpose: Purpose,
        head: Option<Head>,
        now: Time,
        may_grow: bool,
        batch: &mut Batch,
    ) -> Assigned {
        while batch.pages < count {
            let want = (count - batch.pages).min(self.request_pages);
            match self.step(want, head, now, may_grow) {
                Ok(run) => {
                    run.slots().for_each(|slot| self.map.pin(slot));
                    batch.push(run);
                }
                Err(_) if !batch.is_empty() => return Assigned::Found,
                Err(Assigned::Nothing) if purpose == Purpose::Out => {
                    if !self.restore_spoiled() {
                        return self.overwrite(first, batch);
                    }
                }
                Err(what) => return what,
            }
        }
        Assigned::Found
    }

    /// Takes one run of free slots, or returns the step that must come first.
    fn step(&mut self, want: u32, head: Option<Head>, now: Time, may_grow: bool) -> Result<SlotRun, Assigned> {
        match self.choose(want, head, now) {
            Choice::Area(area) => self.take_in(area, want).ok_or(Assigned::Nothing),
            Choice::Create(group) => Err(Assigned::Create(group, want)),
            Choice::Traditional => self.fall_back(want, may_grow),
        }
    }

    fn choose(&mut self, want: u32, head: Option<Head>, now: Time) -> Choice {
        if self.placement == Placement::Traditional {
            return Choice::Traditional;
        }
        let possible = self.areas.has_vacancy() && self.can_have(self.areas.blocks());
        let State { search, areas, avoid, .. } = self;
        search.next(want, head, areas, |group| possible && !avoid.contains(group, now))
    }

    fn take_in(&mut self, area: AreaNo, want: u32) -> Option<SlotRun> {
        let (slot, pages) = self.areas.take(area, want)?;
        Some(self.run(self.slot_in(area, slot), pages))
    }

    /// Takes slots in the traditional swap space or, if it has none, in any area.
    fn fall_back(&mut self, want: u32, may_grow: bool) -> Result<SlotRun, Assigned> {
        if let Some((slot, pages)) = self.traditional.take(want) {
            self.traditional_idle_since = None;
            return Ok(self.run(SlotNo(slot), pages));
        }
        if may_grow && self.traditional.vacant() > 0 && self.can_have(self.granule) {
            return Err(Assigned::Grow);
        }
        let any = self.areas.newest_first().find(|area| self.areas.get(*area).has_room());
        any.and_then(|area| self.take_in(area, want)).ok_or(Assigned::Nothing)
    }

    /// Returns true if this many blocks are promised and not taken, or will be after giving others
    /// back.
    fn can_have(&self, blocks: u32) -> bool {
        let coming = self.promised_blocks + self.giving_blocks;
        if coming >= u64::from(blocks) {
            return true;
        }
        let spare_in = |area: AreaNo| {
            let area = self.areas.get(area);
            if area.leaving || area.used() == 0 { area.held - area.used() } else { 0 }
        };
        let in_areas: u64 = self.areas.newest_first().map(|area| u64::from(spare_in(area))).sum();
        let traditional = if self.traditional.is_partition() { 0 } else { self.traditional.free_count() };
        let slots = in_areas + u64::from(traditional);
        coming + slots * u64::from(self.granule) >= u64::from(blocks)
    }

    /// Frees the slots that could not be written, to be tried again because no other slot is free.
    /// Returns false if there are none.
    fn restore_spoiled(&mut self) -> bool {
        let in_areas: u32 = self.areas.newest_first().map(|area| self.areas.get(area).spoiled).sum();
        if in_areas + self.traditional.spoiled == 0 {
            return false;
        }
        for slot in (0..self.map.slots()).map(SlotNo) {
            if !self.map.is_spoiled(slot) {
                continue;
            }
            self.map.set_spoiled(slot, false);
            *self.spoiled_count(slot) -= 1;
            self.release(slot);
        }
        true
    }

    fn spoiled_count(&mut self, slot: SlotNo) -> &mut u32 {
        match self.area_of(slot) {
            Some((area, _)) => &mut self.areas.get_mut(area).spoiled,
            None => &mut self.traditional.spoiled,
        }
    }

    /// Assigns a page's own slot to be written over, because no slot is free at all. For a page without one: waits if
    /// the end of another request will free a slot.
    fn overwrite(&mut self, page: PageNo, batch: &mut Batch) -> Assigned {
        let Some(slot) = self.map.slot_of(page) else {
            return if self.map.passing() > 0 { Assigned::Wait } else { Assigned::Nothing };
        };
        if self.map.is_pinned(slot) {
            return Assigned::Wait;
        }
        self.map.pin(slot);
        self.map.part(slot);
        self.map.set_overwritten(slot, true);
        batch.push(SlotRun { in_place: true, ..self.run(slot, 1) });
        Assigned::Found
    }

    /// Completes a batch whose requests have ended: pages whose write succeeded move to their new slots, the others
    /// stay where they were. A slot that could not be written is `spoiled`: set aside until no other slot is free.
    pub(crate) fn complete(
        &mut self,
        pages: impl Fn(usize) -> PageNo,
        batch: &Batch,
        purpose: Purpose,
        failed: &PageSet,
        spoiled: &PageSet,
    ) {
        let mut index = 0;
        for run in batch.runs() {
            // True if the slot before was switched and its page left memory together with this one.
            let mut together = false;
            for slot in run.slots() {
                let mut joins_next = false;
                if failed.contains(index) {
                    self.withdraw(slot, run.in_place, spoiled.contains(index));
                } else if run.in_place {
                    self.end_overwrite(slot);
                } else if self.is_expected(pages(index), purpose, index) {
                    // Asked before the page leaves its old slot.
                    joins_next = self.leaves_with_next(purpose, index);
                    self.switch(pages(index), slot, purpose, together);
                } else {
                    self.counters.migrations_lost += 1;
                    self.unpin(slot);
                }
                together = joins_next;
                index += 1;
            }
            self.counters.out_requests += u64::from(purpose == Purpose::Out);
        }
    }

    /// Returns true unless the page changed, left or came in while it was being moved: then the written copy is stale.
    fn is_expected(&self, page: PageNo, purpose: Purpose, index: usize) -> bool {
        match purpose {
            Purpose::Out => true,
            Purpose::Move { from } => self.map.slot_of(page) == Some(SlotNo(from.0 + index as u32)),
        }
    }

    /// Returns true if a page left memory together with the next one: pages that are moved together
    /// need not have.
    fn leaves_with_next(&self, purpose: Purpose, index: usize) -> bool {
        match purpose {
            Purpose::Out => true,
            Purpose::Move { from } => self.map.is_joined(SlotNo(from.0 + index as u32 + 1)),
        }
    }

    fn switch(&mut self, page: PageNo, slot: SlotNo, purpose: Purpose, together: bool) {
        if purpose == Purpose::Out {
            self.counters.pages_out += 1;
            self.counters.pages_out_traditional += u64::from(self.area_of(slot).is_none());
        } else {
            self.counters.pages_migrated += 1;
        }
        // Before the page leaves its old slot, because that may be the slot before this one.
        if together {
            self.map.join(slot);
        }
        if let Some(left) = self.map.put(page, slot) {
            self.release(left);
        }
        self.unpin(slot);
    }

    fn end_overwrite(&mut self, slot: SlotNo) {
        self.counters.pages_out += 1;
        self.counters.pages_out_traditional += u64::from(self.area_of(slot).is_none());
        self.counters.pages_out_in_place += 1;
        self.map.set_overwritten(slot, false);
        self.unpin(slot);
    }

    /// Unpins a slot whose write failed.
    fn withdraw(&mut self, slot: SlotNo, in_place: bool, spoiled: bool) {
        if in_place {
            self.map.set_overwritten(slot, false);
            return self.unpin(slot);
        }
        if !self.map.unpin(slot) {
            return;
        }
        if spoiled {
            self.map.set_spoiled(slot, true);
            *self.spoiled_count(slot) += 1;
        } else {
            self.release(slot);
        }
    }

    /// Pins a page's slot, and up to `neighbours` beside it whose pages left together with it.
    pub(crate) fn begin_read(&mut self, page: PageNo, neighbours: u32) -> Reading {
        let Some(slot) = self.map.slot_of(page) else { return Reading::Absent };
        if self.map.is_being_overwritten(slot) {
            return Reading::Wait;
        }
        let (mut first, mut end) = (slot.0, slot.0 + 1);
        let is_wanted =
            |slot: u32| self.map.page_of(SlotNo(slot)).is_some() && !self.map.is_being_overwritten(SlotNo(slot));
        // The pages behind this one are likelier to be wanted next.
        while end - first <= neighbours && self.map.is_joined(SlotNo(end)) && is_wanted(end) {
            end += 1;
        }
        while end - first <= neighbours && self.map.is_joined(SlotNo(first)) && is_wanted(first - 1) {
            first -= 1;
        }
        let run = self.run(SlotNo(first), end - first);
        run.slots().for_each(|slot| self.map.pin(slot));
        Reading::Here { run, index: slot.0 - first }
    }

    /// Removes the pins of a read that has ended.
    pub(crate) fn end_read(&mut self, run: &SlotRun) {
        run.slots().for_each(|slot| self.unpin(slot));
    }

    /// Marks a group's areas as to be vacated, because a writer found no space there.
    pub(crate) fn leave(&mut self, group: Group, now: Time) {
        self.avoid.add(group, now, PRESSED);
        self.counters.groups_left += 1;
        let mut next = self.areas.in_group(group).next();
        while let Some(area) = next {
            self.areas.get_mut(area).leaving = true;
            next = self.areas.next_in_group(area);
        }
    }

    /// Returns true if an area is being vacated.
    pub(crate) fn is_leaving(&self) -> bool {
        self.areas.oldest_first().any(|area| self.areas.get(area).leaving)
    }

    /// Returns up to `max` pages of an area that is being vacated, in slots that lie together, and pins the slots.
    pub(crate) fn next_migration(&mut self, max: u32) -> Option<SlotRun> {
        let leaving = |area: &AreaNo| self.areas.get(*area).leaving && self.areas.get(*area).used() > 0;
        let area = self.areas.oldest_first().find(leaving)?;
        let slots = self.areas.slots();
        let is_wanted = |slot: &u32| {
            let slot = self.slot_in(area, *slot);
            self.map.page_of(slot).is_some() && !self.map.is_being_overwritten(slot)
        };
        let next = self.migration_next % slots;
        let first = (next..slots).chain(0..next).find(is_wanted)?;
        let end = (first..slots.min(first + max)).find(|slot| !is_wanted(slot)).unwrap_or(slots.min(first + max));
        self.migration_next = end;
        let run = self.run(self.slot_in(area, first), end - first);
        run.slots().for_each(|slot| self.map.pin(slot));
        Some(run)
    }

    /// Removes free blocks from their area, one run at a time: the caller gives them back to the volume and reports it
    /// with [`State::given`].
    pub(crate) fn next_spare(&mut self, spare: Spare, now: Time) -> Option<BlockRun> {
        let run = self.find_spare(spare, now)?;
        self.giving_blocks += u64::from(run.len);
        Some(run)
    }

    fn find_spare(&mut self, spare: Spare, now: Time) -> Option<BlockRun> {
        let is_long = |since: Option<Time>| since.is_some_and(|since| now >= since + IDLE);
        let found = self.areas.oldest_first().find(|area| {
            let area = self.areas.get(*area);
            let empty = area.used() == 0 && (spare == Spare::All || spare == Spare::Idle && is_long(area.idle_since));
            empty || area.leaving && area.held > area.used()
        });
        if let Some(area) = found {
            return self.detach_from(area);
        }
        let idle = spare == Spare::Idle && self.traditional.used() == 0 && is_long(self.traditional_idle_since);
        if spare == Spare::All || idle { self.detach_traditional() } else { None }
    }

    fn detach_from(&mut self, area: AreaNo) -> Option<BlockRun> {
        if self.areas.get(area).used() == 0 {
            self.areas.get_mut(area).leaving = true;
        }
        let run = match self.areas.detach_free(area) {
            Some(run) => Some(run),
            None => self.detach_spoiled(area),
        };
        if self.areas.get(area).held == 0 {
            self.areas.remove(area);
            self.counters.areas_given_back += 1;
        }
        run
    }

    fn detach_spoiled(&mut self, area: AreaNo) -> Option<BlockRun> {
        let index = (0..self.areas.slots()).find(|slot| self.map.is_spoiled(self.slot_in(area, *slot)))?;
        self.map.set_spoiled(self.slot_in(area, index), false);
        self.areas.get_mut(area).spoiled -= 1;
        Some(self.areas.detach(area, index, 1))
    }

    fn detach_traditional(&mut self) -> Option<BlockRun> {
        if let Some(run) = self.traditional.detach_free() {
            return Some(run);
        }
        if self.traditional.spoiled == 0 || self.traditional.is_partition() || self.traditional.used() > 0 {
            return None;
        }
        let slot = (0..self.traditional.numbers()).find(|slot| self.map.is_spoiled(SlotNo(*slot)))?;
        self.map.set_spoiled(SlotNo(slot), false);
        self.traditional.spoiled -= 1;
        self.traditional.detach(slot, 1)
    }

    /// Records that blocks were given back and are promised again.
    pub(crate) fn given(&mut self, run: BlockRun) {
        self.giving_blocks -= u64::from(run.len);
        self.promised_blocks += u64::from(run.len);
    }

    /// Records the time since which areas and the traditional swap space have no pages.
    pub(crate) fn mark_idle(&mut self, now: Time) {
        let since = |used: u32, before: Option<Time>| if used == 0 { before.or(Some(now)) } else { None };
        let mut next = self.areas.oldest_first().next();
        while let Some(no) = next {
            let area = self.areas.get_mut(no);
            area.idle_since = since(area.used(), area.idle_since);
            next = self.areas.newer_than(no);
        }
        self.traditional_idle_since = since(self.traditional.used(), self.traditional_idle_since);
    }

    /// Returns the status of each area in the order of creation.
    pub(crate) fn area_statuses(&self) -> Vec<AreaStatus> {
        let status = |area: AreaNo| {
            let area = self.areas.get(area);
            AreaStatus { group: area.group, run: area.run, slots: area.held, used: area.used(), leaving: area.leaving }
        };
        self.areas.oldest_first().map(status).collect()
    }

    /// Returns the number of sectors in a block of the volume.
    pub(crate) fn block_sectors(block_bytes: u32) -> u64 {
        u64::from(block_bytes) / SECTOR as u64
    }
}
