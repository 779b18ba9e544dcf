//! The cached blocks of one file.
//!
//! A page is one file block. Its states, and the events that change them:
//!
//! ```text
//! absent ──read miss──▶ filling ──fill ends──▶ clean ◀──write-back ends── in flight
//!    └───────────write────────────────────────▶ dirty ──write-back freezes──┘  │
//!                                                 ▲──── written again ─────────┘ (both at once)
//! ```
//!
//! Invariants:
//! 1. A block is in `ready` exactly if its page is dirty and not in flight.
//! 2. `unsettled` counts dirty pages and pages in flight by the *generation* in which they became
//!    dirty; an fsync waits for the generations up to its own and is never held up by later writes.
//! 3. `unplaced` counts pages, dirty or in flight, whose block has no address on the volume, and the map blocks
//!    that these may take; the file's `admission` covers exactly that, less the blocks taken at `write()`. It covers a
//!    page until the file maps the block: a truncation meanwhile may free the map block above it.
//! 4. A frozen page is shared with the device and never changes: writing again makes a new one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use moafs_disk::{Buf, Page};
use smallvec::SmallVec;

use crate::fill::Fill;
use crate::format::Admission;
use crate::plan::SMALL_BLOCKS_MAX;
use crate::types::{Lbn, LbnRange};
use crate::unplaced::Unplaced;

/// The content of a page.
pub(crate) enum Content {
    /// No data yet: a read is under way.
    Filling(Arc<Fill>),
    /// The bytes of the block.
    Data(Page),
}

/// A cached block of a file, with its state.
pub(crate) struct Slot {
    pub(crate) content: Content,
    /// The generation in which it became dirty; 0 if it is not.
    dirty: u64,
    /// The generation of the copy that is on its way to the device; 0 if none is.
    flight: u64,
    /// True if the block is known to have an address on the volume.
    pub(crate) addressed: bool,
    /// True if a block of the volume was taken for it at `write()`, until it has an address.
    allocated: bool,
    /// Bytes of the block that the device has seen: a crash may show the file up to here.
    pub(crate) disk_end: u32,
    /// The stamp of its entry in the replacement queue; 0 if it has none.
    pub(crate) stamp: u64,
    /// True if it was used since the replacement queue last looked.
    pub(crate) referenced: bool,
    /// True if a co-read brought it and it has not been read yet.
    pub(crate) unasked: bool,
    /// True if its entry is at the cold end of that queue.
    cold: bool,
}

impl Slot {
    fn new(content: Content, addressed: bool, disk_end: u32) -> Slot {
        let (dirty, flight, stamp) = (0, 0, 0);
        let (allocated, referenced, unasked, cold) = (false, false, false, false);
        Slot { content, dirty, flight, addressed, allocated, disk_end, stamp, referenced, unasked, cold }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.flight != 0
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_dirty() || self.in_flight()
    }

    pub(crate) fn is_filling(&self) -> bool {
        matches!(self.content, Content::Filling(_))
    }

    fn is_filled_by(&self, fill: &Arc<Fill>) -> bool {
        matches!(&self.content, Content::Filling(there) if Arc::ptr_eq(there, fill))
    }
}

/// The result of a look at an entry of the replacement queue.
pub(crate) enum Evicted {
    /// The page was dropped; true if a co-read had brought it for nothing.
    Dropped(bool),
    /// The page was used, and gets another round under this stamp.
    Again(u64),
    /// The entry names no page.
    Stale,
}

/// The page that a read has brought for one block.
pub(crate) struct Filled {
    pub(crate) page: Page,
    /// True if the block has an address; false for a hole.
    pub(crate) addressed: bool,
    /// Bytes of the block within the file's size.
    pub(crate) disk_end: u32,
}

/// The bytes to be written to one block.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) block_bytes: usize,
    /// The offset in the block at which they go.
    pub(crate) start: usize,
    pub(crate) bytes: &'a [u8],
}

/// The change of a file's page counts, to be added to the volume's counters by the caller.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Change of the number of cached pages.
    pub(crate) cached: i64,
    /// Change of the number of pages that are dirty or in flight.
    pub(crate) dirty: i64,
}

/// The cached blocks of one file.
pub(crate) struct Pages {
    map: BTreeMap<Lbn, Slot>,
    ready: Ranges,
    unsettled: BTreeMap<u64, u64>,
    /// Number of blocks being read.
    filling: usize,
    generation: u64,
    pub(crate) unplaced: Unplaced,
    pub(crate) admission: Admission,
    /// See [`Pages::placements`].
    placements: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Pages {
            map: BTreeMap::new(),
            ready: Ranges::default(),
            unsettled: BTreeMap::new(),
            filling: 0,
            generation: 1,
            unplaced: Unplaced::default(),
            admission: Admission::none(),
            placements: 0,
        }
    }
}

impl Pages {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn get(&self, at: Lbn) -> Option<&Slot> {
        self.map.get(&at)
    }

    /// Returns true if no page is dirty or in flight.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Returns true if no page that was dirty in `generation` or before is dirty or in flight any more.
    pub(crate) fn is_settled_upto(&self, generation: u64) -> bool {
        self.unsettled.first_key_value().is_none_or(|(oldest, _)| *oldest > generation)
    }

    /// Ends a generation and returns it: pages that become dirty from now on belong to the next.
    pub(crate) fn end_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation - 1
    }

    /// Returns the dirty ranges that may be written now.
    pub(crate) fn ready(&self) -> &Ranges {
        &self.ready
    }

    /// Returns true if no block is still being read.
    pub(crate) fn are_all_data(&self) -> bool {
        self.filling == 0
    }

    /// Returns the number of cached blocks.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns the cached blocks of `range`, in order, to be changed.
    pub(crate) fn slots_mut(&mut self, range: LbnRange) -> impl Iterator<Item = (Lbn, &mut Slot)> {
        self.map.range_mut(range.bounds()).map(|(at, slot)| (*at, slot))
    }

    /// Returns the cached blocks of `range`, in order.
    pub(crate) fn slots(&self, range: LbnRange) -> impl Iterator<Item = (Lbn, &Slot)> {
        self.map.range(range.bounds()).map(|(at, slot)| (*at, slot))
    }

    /// Marks the absent blocks of `range` as being read; returns them as ranges.
    pub(crate) fn begin_fill(&mut self, range: LbnRange, fill: &Arc<Fill>) -> Vec<LbnRange> {
        let absent = self.absent(range);
        for at in absent.iter().flat_map(|part| part.lbns()) {
            let content = Content::Filling(Arc::clone(fill));
            self.map.insert(at, Slot::new(content, false, 0));
            self.filling += 1;
        }
        absent
    }

    fn absent(&self, range: LbnRange) -> Vec<LbnRange> {
        let mut absent = Vec::new();
        let mut next = range.start;
        for (at, _) in self.slots(range) {
            if at > next {
                absent.push(LbnRange { start: next, len: (at - next) as u32 });
            }
            next = at + 1;
        }
        if range.end() > next {
            absent.push(LbnRange { start: next, len: (range.end() - next) as u32 });
        }
        absent
    }

    /// Ends the read of the blocks from `start` on with their pages. The replacement queue will know them by the
    /// stamps that are returned.
    pub(crate) fn end_fill(
        &mut self,
        start: Lbn,
        fill: &Arc<Fill>,
        filled: Vec<Filled>,
        mut stamp: impl FnMut() -> u64,
    ) -> Vec<(Lbn, u64)> {
        let mut stamped = Vec::with_capacity(filled.len());
        let range = LbnRange { start, len: filled.len() as u32 };
        let mut filled = filled.into_iter().map(Some).collect::<Vec<_>>();
        for (at, slot) in self.slots_mut(range) {
            if !slot.is_filled_by(fill) {
                continue;
            }
            let Some(filled) = filled[(at - start) as usize].take() else { continue };
            slot.content = Content::Data(filled.page);
            slot.addressed = filled.addressed;
            slot.disk_end = filled.disk_end;
            slot.warm(stamp());
            stamped.push((at, slot.stamp));
        }
        self.filling -= stamped.len();
        stamped
    }

    /// Gives up reading a block.
    pub(crate) fn drop_fill(&mut self, at: Lbn, fill: &Arc<Fill>) {
        if self.map.get(&at).is_some_and(|slot| slot.is_filled_by(fill)) {
            self.map.remove(&at);
            self.filling -= 1;
        }
    }

    /// Makes the settled pages of `range` unused ones, and gives those that are to move to the cold end their stamps
    /// for it. The others are there already.
    pub(crate) fn chill(&mut self, range: LbnRange, mut stamp: impl FnMut() -> u64) -> Vec<(Lbn, u64)> {
        let mut stamped = Vec::new();
        for (at, slot) in self.slots_mut(range).filter(|(_, slot)| !slot.is_unsettled() && !slot.is_filling()) {
            slot.referenced = false;
            if !std::mem::replace(&mut slot.cold, true) {
                slot.stamp = stamp();
                stamped.push((at, slot.stamp));
            }
        }
        stamped
    }

    /// Writes `bytes` at `start` within block `at` and marks it dirty. A page that is not there is
    /// made, zero where nothing is written; `addressed` then says whether the block has an address,
    /// and `disk_end` how many of its bytes the device has.
    pub(crate) fn write(&mut self, at: Lbn, piece: Piece<'_>, addressed: bool, disk_end: u32) -> Delta {
        let Piece { block_bytes, start, bytes } = piece;
        let mut delta = Delta::default();
        let slot = match self.map.entry(at) {
            Entry::Occupied(there) => {
                let slot = there.into_mut();
                slot.overwrite(start, bytes);
                slot
            }
            Entry::Vacant(absent) => {
                delta.cached = 1;
                let content = Content::Data(new_page(block_bytes, start, bytes).freeze());
                absent.insert(Slot::new(content, addressed, disk_end))
            }
        };
        slot.referenced = true;
        if slot.is_dirty() {
            return delta;
        }
        slot.dirty = self.generation;
        *self.unsettled.entry(self.generation).or_insert(0) += 1;
        if slot.in_flight() {
            return delta;
        }
        // Pages on the replacement queue are clean; the stale entry is skipped there.
        slot.stamp = 0;
        if !slot.addressed {
            self.unplaced.add(at);
        }
        self.ready.insert(at, at + 1);
        delta.dirty = 1;
        delta
    }

    /// Freezes the pages of `range` for a write, clean ones only if they move along: their bytes, `None` for those that
    /// vanished, are on their way already, or need not be written; and how many of them were settled before.
    pub(crate) fn freeze(&mut self, range: LbnRange, clean_too: bool) -> (Vec<Option<Page>>, u64) {
        let mut frozen = vec![None; range.len as usize];
        let generation = self.generation;
        let mut settled = 0;
        for (at, slot) in self.slots_mut(range) {
            let Content::Data(page) = &slot.content else { continue };
            if slot.in_flight() {
                continue;
            }
            let frozen = &mut frozen[(at - range.start) as usize];
            if slot.is_dirty() {
                *frozen = Some(page.clone());
                slot.flight = std::mem::take(&mut slot.dirty);
                continue;
            }
            // No space was promised for a hole, so it stays one.
            if !clean_too || !slot.addressed {
                continue;
            }
            *frozen = Some(page.clone());
            slot.flight = generation;
            slot.stamp = 0;
            settled += 1;
        }
        // The pages that were ready are dirty and not in flight: all of them were frozen.
        self.ready.remove(range.start, range.end());
        if settled > 0 {
            *self.unsettled.entry(generation).or_insert(0) += settled;
        }
        (frozen, settled)
    }

    /// Returns the dirty blocks of `range` that have no address, are not in flight, and had no block taken for them.
    pub(crate) fn unallocated(&self, range: LbnRange) -> Vec<LbnRange> {
        let is_wanted = |slot: &Slot| slot.is_dirty() && !slot.in_flight() && !slot.addressed && !slot.allocated;
        let mut parts: Vec<LbnRange> = Vec::new();
        for (at, _) in self.slots(range).filter(|(_, slot)| is_wanted(slot)) {
            match parts.last_mut() {
                Some(part) if part.end() == at => part.len += 1,
                _ => parts.push(LbnRange { start: at, len: 1 }),
            }
        }
        parts
    }

    /// Notes that blocks of the volume were taken for the [`unallocated`](Self::unallocated) blocks of `range`. What
    /// was admitted for them is spent.
    pub(crate) fn note_allocated(&mut self, range: LbnRange) {
        for slot in self.map.range_mut(range.bounds()).map(|(_, slot)| slot) {
            debug_assert!(slot.is_dirty() && !slot.addressed && !slot.allocated);
            slot.allocated = true;
            self.unplaced.allocate();
        }
        self.give_back_surplus();
    }

    /// Notes that the blocks of `range` have addresses now. Those that wait for a place keep what was admitted for them
    /// until they get it.
    pub(crate) fn note_addressed(&mut self, range: LbnRange) {
        for (_, slot) in self.slots_mut(range).filter(|(_, slot)| !slot.is_unsettled() && !slot.is_filling()) {
            slot.addressed = true;
        }
    }

    /// Notes that blocks are about to be given a place: the places that they had may soon be free.
    pub(crate) fn begin_placing(&mut self) {
        self.placements += 1;
    }

    /// Notes that the file maps the blocks of `range` to what was written, up to `size` bytes of the file: a crash may
    /// show it from now on. Until then the device may have other bytes in the block that the file still maps. Returns
    /// what was admitted for the blocks and for the map blocks above them.
    pub(crate) fn mapped(&mut self, range: LbnRange, size: u64, block_bytes: u64) -> Admission {
        self.placements += 1;
        let mut taken = 0;
        for (at, slot) in self.map.range_mut(range.bounds()) {
            if !std::mem::replace(&mut slot.addressed, true) {
                taken += self.unplaced.place(*at, std::mem::take(&mut slot.allocated));
            }
            slot.disk_end = size.saturating_sub(at.0 * block_bytes).min(block_bytes) as u32;
        }
        self.admission.split(taken)
    }

    /// Returns a count that changes whenever blocks are given a place: before the place they had is free, and when they
    /// have the new one.
    pub(crate) fn placements(&self) -> u64 {
        self.placements
    }

    /// Returns how many blocks of `range`, from its start on, have no page.
    pub(crate) fn absent_from(&self, range: LbnRange) -> u32 {
        let first = self.map.range(range.bounds()).next();
        first.map_or(range.len, |(at, _)| (*at - range.start) as u32)
    }

    /// Marks the frozen pages of `range` as placed after their write: they are clean, unless written again. The clean
    /// ones are returned with the stamps by which the replacement queue will know them.
    pub(crate) fn mark_placed(&mut self, range: LbnRange, mut stamp: impl FnMut() -> u64) -> Vec<(Lbn, u64)> {
        let mut clean = Vec::with_capacity(range.len as usize);
        let mut again: SmallVec<[Lbn; 8]> = SmallVec::new();
        let mut settled: SmallVec<[(u64, u64); 2]> = SmallVec::new();
        for (at, slot) in self.slots_mut(range) {
            let generation = std::mem::take(&mut slot.flight);
            match settled.last_mut() {
                Some((last, count)) if *last == generation => *count += 1,
                _ => settled.push((generation, 1)),
            }
            if slot.is_dirty() {
                again.push(at);
                continue;
            }
            slot.warm(stamp());
            slot.referenced = false;
            clean.push((at, slot.stamp));
        }
        again.into_iter().for_each(|at| self.ready.insert(at, at + 1));
        settled.into_iter().for_each(|(generation, count)| self.settle(generation, count));
        clean
    }

    /// Requeues a frozen page that was not written: it is dirty again, as old as it was.
    pub(crate) fn requeue(&mut self, at: Lbn) {
        let Some(slot) = self.map.get_mut(&at) else { return };
        let generation = std::mem::take(&mut slot.flight);
        if slot.is_dirty() {
            let newer = std::mem::replace(&mut slot.dirty, generation);
            self.settle(newer, 1);
        } else {
            slot.dirty = generation;
        }
        self.ready.insert(at, at + 1);
    }

    fn settle(&mut self, generation: u64, pages: u64) {
        if let Some(count) = self.unsettled.get_mut(&generation) {
            *count -= pages;
            if *count == 0 {
                self.unsettled.remove(&generation);
            }
        }
    }

    /// Returns the blocks of `from..to` whose pages are dirty or in flight.
    pub(crate) fn dirty_in(&self, from: Lbn, to: Lbn) -> Vec<Lbn> {
        self.map.range(from..to).filter(|(_, slot)| slot.is_unsettled()).map(|(at, _)| *at).collect()
    }

    /// Counts the blocks of `from..to` whose pages are dirty or in flight: those with an address, at which the device
    /// may have older bytes, and the others.
    pub(crate) fn count_dirty(&self, from: Lbn, to: Lbn) -> (usize, usize) {
        let dirty = || self.map.range(from..to).filter(|(_, slot)| slot.is_unsettled());
        let older = dirty().filter(|(_, slot)| slot.addressed).count();
        (older, dirty().count() - older)
    }

    /// Drops the pages of `from..to`, also dirty ones. None of them may be in flight or filling.
    pub(crate) fn discard(&mut self, from: Lbn, to: Lbn) -> Delta {
        let mut delta = Delta::default();
        let doomed: Vec<Lbn> = self.map.range(from..to).map(|(at, _)| *at).collect();
        for at in doomed {
            let slot = self.map.remove(&at).expect("just listed");
            debug_assert!(!slot.in_flight() && !slot.is_filling());
            delta.cached -= 1;
            if slot.is_dirty() {
                delta.dirty -= 1;
                self.settle(slot.dirty, 1);
                if !slot.addressed {
                    self.unplaced.remove(at, slot.allocated);
                }
            }
        }
        self.ready.remove(from, to);
        self.give_back_surplus();
        delta
    }

    /// Gives back what was admitted for more than the pages need now.
    pub(crate) fn give_back_surplus(&mut self) {
        self.admission.spend(self.admission.blocks().saturating_sub(self.unplaced.promise()));
    }

    /// Drops one page if it is clean, still the one that `stamp` names, and was not used meanwhile. One that was
    /// used gets the stamp `next`.
    pub(crate) fn evict(&mut self, at: Lbn, stamp: u64, next: impl FnOnce() -> u64) -> Evicted {
        let Entry::Occupied(mut there) = self.map.entry(at) else { return Evicted::Stale };
        let slot = there.get_mut();
        if slot.stamp != stamp || slot.is_unsettled() || slot.is_filling() {
            return Evicted::Stale;
        }
        if std::mem::take(&mut slot.referenced) {
            slot.warm(next());
            return Evicted::Again(slot.stamp);
        }
        Evicted::Dropped(there.remove().unasked)
    }

    /// Counts the blocks of `from..to` that a co-read brought and that have not been read. (It brings small files
    /// only.)
    pub(crate) fn unasked(&self, from: Lbn, to: Lbn) -> u64 {
        let to = to.min(Lbn(SMALL_BLOCKS_MAX)).max(from);
        self.map.range(from..to).filter(|(_, slot)| slot.unasked).count() as u64
    }

    /// Returns the first block of `from..to` that is in flight or being filled.
    pub(crate) fn first_moving(&self, from: Lbn, to: Lbn) -> Option<&Slot> {
        self.map.range(from..to).map(|(_, slot)| slot).find(|slot| slot.in_flight() || slot.is_filling())
    }

    /// Returns the first fill that is to bring a block of `from..to`.
    pub(crate) fn first_filling(&self, from: Lbn, to: Lbn) -> Option<Arc<Fill>> {
        self.map.range(from..to).find_map(|(_, slot)| match &slot.content {
            Content::Filling(fill) => Some(Arc::clone(fill)),
            Content::Data(_) => None,
        })
    }

    /// Returns the size that a crash may show: up to the first byte past `old` that the device has not seen.
    pub(crate) fn disk_size(&self, size: u64, old: u64, block_bytes: u64) -> u64 {
        if size <= old {
            return size;
        }
        let unseen = |(at, slot): (&Lbn, &Slot)| {
            let start = at.0 * block_bytes;
            let seen = start + u64::from(slot.disk_end).min(block_bytes);
            (slot.is_unsettled() && seen < size.min(start + block_bytes)).then_some(seen)
        };
        let first = self.map.range(Lbn(old / block_bytes)..).find_map(unseen);
        first.map_or(size, |seen| seen.max(old))
    }

    /// Counts the blocks of `range` that have no page which is dirty, in flight, or known to have an address.
    pub(crate) fn maybe_new(&self, range: LbnRange) -> u64 {
        let known = self.map.range(range.bounds()).filter(|(_, s)| s.is_unsettled() || s.addressed);
        u64::from(range.len) - known.count() as u64
    }

    /// Notes that a truncation has cut block `at` to `end` bytes: bytes behind them on the device do not count.
    pub(crate) fn cut(&mut self, at: Lbn, end: u32) {
        if let Some(slot) = self.map.get_mut(&at) {
            slot.disk_end = slot.disk_end.min(end);
        }
    }

    /// Returns the first block at or after `at` whose page is dirty or in flight.
    pub(crate) fn next_unsettled(&self, at: Lbn) -> Option<Lbn> {
        if self.is_settled() {
            return None;
        }
        self.map.range(at..).find(|(_, slot)| slot.is_unsettled()).map(|(at, _)| *at)
    }
}

impl Slot {
    /// Notes that its entry of the replacement queue, under this stamp, is at the warm end.
    fn warm(&mut self, stamp: u64) {
        self.stamp = stamp;
        self.cold = false;
    }

    fn overwrite(&mut self, start: usize, bytes: &[u8]) {
        let Content::Data(page) = &mut self.content else {
            debug_assert!(false, "a block being filled is not written to");
            return;
        };
        if bytes.len() == page.len() && page.get_mut().is_none() {
            *page = Buf::copy_of(bytes).freeze();
            return;
        }
        page.make_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

fn new_page(block_bytes: usize, start: usize, bytes: &[u8]) -> Buf {
    if bytes.len() == block_bytes {
        return Buf::copy_of(bytes);
    }
    let mut page = Buf::zeroed(block_bytes);
    page[start..start + bytes.len()].copy_from_slice(bytes);
    page
}

/// A set of blocks, kept as ranges: maximal, disjoint, not adjacent.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// The ranges, from start to end (exclusive).
    map: BTreeMap<Lbn, Lbn>,
    /// Number of members of the set.
    len: u64,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the number of members.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the smallest member.
    pub(crate) fn first(&self) -> Option<Lbn> {
        self.map.first_key_value().map(|(start, _)| *start)
    }

    /// Adds the blocks `start..end`.
    pub(crate) fn insert(&mut self, start: Lbn, end: Lbn) {
        debug_assert!(start < end);
        // A sequential writer makes a range longer, block by block.
        let follower = self.map.range(start + 1..=end).next().is_some();
        if let Some((_, e)) = self.map.range_mut(..=start).next_back().filter(|(_, e)| **e >= start && !follower) {
            let longer = end.max(*e);
            self.len += longer - *e;
            *e = longer;
            return;
        }
        let (mut start, mut end) = (start, end);
        while let Some((&s, &e)) = self.map.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.drop_range(s, e);
            start = start.min(s);
            end = end.max(e);
        }
        self.add_range(start, end);
    }

    /// Removes the blocks `start..end`.
    pub(crate) fn remove(&mut self, start: Lbn, end: Lbn) {
        while let Some((&s, &e)) = self.map.range(..end).next_back() {
            if e <= start {
                return;
            }
            self.drop_range(s, e);
            if e > end {
                self.add_range(end, e);
            }
            if s < start {
                self.add_range(s, start);
            }
        }
    }

    fn add_range(&mut self, start: Lbn, end: Lbn) {
        self.map.insert(start, end);
        self.len += end - start;
    }

    fn drop_range(&mut self, start: Lbn, end: Lbn) {
        self.map.remove(&start);
        self.len -= end - start;
    }

    /// Returns the ranges within `from..to`, clipped, ascending.
    pub(crate) fn within(&self, from: Lbn, to: Lbn) -> impl Iterator<Item = (Lbn, Lbn)> + '_ {
        let first = self.map.range(..=from).next_back().filter(|(_, e)| **e > from).map_or(from, |(s, _)| *s);
        let clip = move |(s, e): (&Lbn, &Lbn)| ((*s).max(from), (*e).min(to));
        self.map.range(first..to.max(first)).map(clip).filter(|(s, e)| s < e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: usize, bytes: &[u8]) -> Piece<'_> {
        Piece { block_bytes: 512, start, bytes }
    }

    fn freeze(pages: &mut Pages, at: u64) -> Option<Page> {
        pages.freeze(LbnRange { start: Lbn(at), len: 1 }, true).0.remove(0)
    }

    fn place(pages: &mut Pages, at: u64, size: u64) {
        let range = LbnRange { start: Lbn(at), len: 1 };
        drop(pages.mapped(range, size, 512));
    }

    fn mark_placed(pages: &mut Pages, at: u64) -> bool {
        !pages.mark_placed(LbnRange { start: Lbn(at), len: 1 }, || 1).is_empty()
    }

    fn list(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges.within(Lbn(0), Lbn::MAX).map(|(start, end)| (start.0, end.0)).collect()
    }

    #[test]
    fn ranges_merge_and_split() {
        let mut r = Ranges::default();
        r.insert(Lbn(5), Lbn(8));
        r.insert(Lbn(10), Lbn(12));
        r.insert(Lbn(8), Lbn(10));
        assert_eq!(list(&r), [(5, 12)]);
        r.remove(Lbn(6), Lbn(7));
        assert_eq!(list(&r), [(5, 6), (7, 12)]);
        r.insert(Lbn(0), Lbn(20));
        assert_eq!(list(&r), [(0, 20)]);
        r.remove(Lbn(0), Lbn(3));
        r.remove(Lbn(18), Lbn(40));
        assert_eq!((list(&r), r.len()), (vec![(3, 18)], 15));
        assert_eq!(r.within(Lbn(5), Lbn(9)).collect::<Vec<_>>(), [(Lbn(5), Lbn(9))]);
        assert_eq!(r.within(Lbn(18), Lbn(30)).count(), 0);
    }

    #[test]
    fn ranges_hold_what_was_put_in() {
        let mut r = Ranges::default();
        let mut expect = std::collections::BTreeSet::new();
        for i in 0..2000_u64 {
            let (start, len) = (i.wrapping_mul(0x9E37_79B9) % 97, 1 + i % 5);
            if i % 3 == 0 {
                r.remove(Lbn(start), Lbn(start + len));
                expect.retain(|at| !(start..start + len).contains(at));
            } else {
                r.insert(Lbn(start), Lbn(start + len));
                expect.extend(start..start + len);
            }
            let ranges = list(&r);
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "maximal and apart: {ranges:?}");
            assert!(ranges.iter().flat_map(|(s, e)| *s..*e).eq(expect.iter().copied()));
            assert_eq!(r.len(), expect.len() as u64);
        }
    }

    #[test]
    fn a_page_written_again_in_flight_keeps_the_frozen_bytes() {
        let mut pages = Pages::default();
        pages.write(Lbn(3), piece(0, &[1; 512]), false, 0);
        let goal = pages.end_generation();
        let frozen = freeze(&mut pages, 3).unwrap();
        assert!(pages.ready().is_empty());
        pages.write(Lbn(3), piece(0, &[2; 10]), false, 0);
        assert_eq!(frozen[0], 1);
        assert!(freeze(&mut pages, 3).is_none(), "one write in flight per block");
        place(&mut pages, 3, 2048);
        assert!(!mark_placed(&mut pages, 3));
        assert!(pages.is_settled_upto(goal) && !pages.is_settled());
        assert_eq!(list(pages.ready()), [(3, 4)]);
        assert_eq!(pages.unplaced.blocks(), 0);
    }

    #[test]
    fn a_failed_write_leaves_the_page_as_old_as_it_was() {
        let mut pages = Pages::default();
        pages.write(Lbn(0), piece(0, &[1; 512]), false, 0);
        let goal = pages.end_generation();
        freeze(&mut pages, 0).unwrap();
        pages.write(Lbn(0), piece(0, &[2; 512]), false, 0);
        pages.requeue(Lbn(0));
        assert!(!pages.is_settled_upto(goal));
        assert_eq!(pages.unplaced.blocks(), 1);
        let delta = pages.discard(Lbn(0), Lbn(1));
        assert_eq!(delta, Delta { cached: -1, dirty: -1 });
        assert!(pages.is_settled() && pages.unplaced.blocks() == 0);
    }

    #[test]
    fn clean_pages_move_along_and_holes_do_not() {
        let mut pages = Pages::default();
        let range = LbnRange { start: Lbn(0), len: 2 };
        let fill = Fill::waited_for();
        pages.begin_fill(range, &fill);
        let filled = |addressed| Filled { page: Buf::zeroed(512).freeze(), addressed, disk_end: 0 };
        pages.end_fill(range.start, &fill, vec![filled(true), filled(false)], || 1);
        assert!(pages.freeze(range, false).0.iter().all(Option::is_none), "what stays and is clean is not written");
        let (frozen, settled) = pages.freeze(range, true);
        assert_eq!((frozen[0].is_some(), frozen[1].is_some(), settled), (true, false, 1));
        assert!(!pages.is_settled() && pages.unplaced.blocks() == 0);
        place(&mut pages, 0, 1024);
        assert!(mark_placed(&mut pages, 0) && pages.is_settled());
    }

    #[test]
    fn a_crash_may_show_what_the_device_has_seen() {
        let mut pages = Pages::default();
        pages.write(Lbn(0), piece(0, &[1; 512]), false, 0);
        pages.write(Lbn(1), piece(0, &[1; 100]), false, 0);
        assert_eq!(pages.disk_size(612, 0, 512), 0);
        freeze(&mut pages, 0).unwrap();
        place(&mut pages, 0, 612);
        mark_placed(&mut pages, 0);
        assert_eq!(pages.disk_size(612, 0, 512), 512);
        freeze(&mut pages, 1).unwrap();
        pages.write(Lbn(1), piece(100, &[1; 100]), false, 0);
        place(&mut pages, 1, 612);
        mark_placed(&mut pages, 1);
        assert_eq!(pages.disk_size(712, 512, 512), 612, "the second append has not been written");
        assert_eq!(pages.disk_size(600, 612, 512), 600);
    }
}
