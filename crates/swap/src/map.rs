//! The swap map: the slot of each page, the page of each slot, and the pins on slots. In memory
//! only.
//!
//! A slot is in use as long as it has an *owner* (a page) or a *pin* (a request under way). So a slot that is read
//! keeps its bytes when its page leaves it meanwhile, and a slot that is written has no owner until the write has
//! ended. The caller that removes the last owner or pin frees the slot in its area.
//!
//! Invariants:
//! 1. `slot_of(page) == slot` if and only if `page_of(slot) == page`: no two pages share a slot.
//! 2. A page that had a pinned slot, and still has it when the pin is taken away, did not change meanwhile: slots are
//!    written only before they have an owner, or under [`SwapMap::is_being_overwritten`].
//!
//! All memory is allocated with the map: 4 bytes a page, 6 bytes a slot.

use crate::page::PageNo;

/// A slot number in the whole swap: traditional ones first, then area after area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotNo(pub u32);

impl SlotNo {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The value for no page, or no slot.
const NONE: u32 = u32::MAX;

/// The largest number of slots: one number is reserved for "none".
pub const SLOTS_MAX: u32 = NONE;

/// Bits of a slot's marks: the number of pins.
const PINS: u16 = (1 << 12) - 1;
/// Mark: the slot was written in one request with the slot before it.
const JOINED: u16 = 1 << 12;
/// Mark: the owner is being written anew, in place.
const OVERWRITTEN: u16 = 1 << 13;
/// Mark: a write to the slot failed.
const SPOILED: u16 = 1 << 14;

/// The mapping between pages and slots.
#[derive(Debug)]
pub struct SwapMap {
    slot_of: Vec<u32>,
    page_of: Vec<u32>,
    marks: Vec<u16>,
    pages_out: u32,
    /// The number of slots with pins and no owner: they become free or owned when their requests
    /// end.
    passing: u32,
}

impl SwapMap {
    /// Makes a map of `pages` pages, none of them out.
    pub fn new(pages: u32, slots: u32) -> SwapMap {
        SwapMap {
            slot_of: vec![NONE; pages as usize],
            page_of: vec![NONE; slots as usize],
            marks: vec![0; slots as usize],
            pages_out: 0,
            passing: 0,
        }
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.page_of.len() as u32
    }

    /// Returns the slot of a page; `None` if the page is not out.
    pub fn slot_of(&self, page: PageNo) -> Option<SlotNo> {
        let slot = *self.slot_of.get(page.index())?;
        (slot != NONE).then_some(SlotNo(slot))
    }

    /// Returns the page that a slot holds.
    pub fn page_of(&self, slot: SlotNo) -> Option<PageNo> {
        let page = *self.page_of.get(slot.index())?;
        (page != NONE).then_some(PageNo(page))
    }

    /// Returns the number of pages that are out.
    pub fn pages_out(&self) -> u32 {
        self.pages_out
    }

    /// Returns the number of slots that are on their way from free to owned or back.
    pub fn passing(&self) -> u32 {
        self.passing
    }

    /// Adds a pin to a slot.
    ///
    /// # Panics
    /// Beyond 4095 of one slot: more than there are threads.
    pub fn pin(&mut self, slot: SlotNo) {
        let marks = &mut self.marks[slot.index()];
        assert!(*marks & PINS < PINS, "slot {} has {PINS} pins", slot.0);
        *marks += 1;
        let first = *marks & PINS == 1;
        self.passing += u32::from(first && self.page_of[slot.index()] == NONE);
    }

    /// Removes a pin. Returns true if the slot is free now.
    #[must_use]
    pub fn unpin(&mut self, slot: SlotNo) -> bool {
        let marks = &mut self.marks[slot.index()];
        debug_assert!(*marks & PINS > 0, "slot {} has no pin", slot.0);
        *marks -= 1;
        let free = *marks & PINS == 0 && self.page_of[slot.index()] == NONE;
        self.passing -= u32::from(free);
        free
    }

    /// Returns true if a request for the slot is under way.
    pub fn is_pinned(&self, slot: SlotNo) -> bool {
        self.marks[slot.index()] & PINS != 0
    }

    /// Makes a page the owner of a pinned slot without one. Returns the slot that the page had, if it is free now.
    #[must_use]
    pub fn put(&mut self, page: PageNo, slot: SlotNo) -> Option<SlotNo> {
        debug_assert!(self.is_pinned(slot) && self.page_of(slot).is_none(), "slot {} is not there to be given", slot.0);
        let left = self.clear(page);
        self.slot_of[page.index()] = slot.0;
        self.page_of[slot.index()] = page.0;
        self.pages_out += 1;
        self.passing -= 1;
        left
    }

    /// Removes a page from its slot. Returns the slot if it is free now.
    #[must_use]
    pub fn clear(&mut self, page: PageNo) -> Option<SlotNo> {
        let slot = self.slot_of(page)?;
        self.slot_of[page.index()] = NONE;
        self.page_of[slot.index()] = NONE;
        self.pages_out -= 1;
        self.part(slot);
        if self.is_pinned(slot) {
            self.passing += 1;
            return None;
        }
        Some(slot)
    }

    /// Removes the join marks of a slot and of the next one: its contents are replaced, and the new
    /// page left memory with neither.
    pub fn part(&mut self, slot: SlotNo) {
        self.marks[slot.index()] &= !JOINED;
        if let Some(next) = self.marks.get_mut(slot.index() + 1) {
            *next &= !JOINED;
        }
    }

    /// Records that a slot was written in one request with the one before it.
    pub fn join(&mut self, slot: SlotNo) {
        self.marks[slot.index()] |= JOINED;
    }

    /// Returns true if a slot and the one before it hold pages that left together.
    pub fn is_joined(&self, slot: SlotNo) -> bool {
        self.marks.get(slot.index()).is_some_and(|marks| marks & JOINED != 0)
    }

    /// Sets or clears the mark that the owner's bytes change in place: until that has ended the
    /// slot is not read.
    pub fn set_overwritten(&mut self, slot: SlotNo, on: bool) {
        set(&mut self.marks[slot.index()], OVERWRITTEN, on);
    }

    /// Returns true if the owner's bytes are changing now.
    pub fn is_being_overwritten(&self, slot: SlotNo) -> bool {
        self.marks[slot.index()] & OVERWRITTEN != 0
    }

    /// Sets or clears the mark that a write to a slot without an owner failed.
    pub fn set_spoiled(&mut self, slot: SlotNo, on: bool) {
        set(&mut self.marks[slot.index()], SPOILED, on);
    }

    /// Returns true if a write to the slot failed and it has no owner.
    pub fn is_spoiled(&self, slot: SlotNo) -> bool {
        self.marks[slot.index()] & SPOILED != 0
    }
}

fn set(marks: &mut u16, mark: u16, on: bool) {
    if on { *marks |= mark } else { *marks &= !mark }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_with(page: PageNo, slot: SlotNo) -> SwapMap {
        let mut map = SwapMap::new(8, 8);
        map.pin(slot);
        assert_eq!(map.put(page, slot), None);
        assert!(!map.unpin(slot));
        map
    }

    #[test]
    fn a_page_that_moves_leaves_its_slot_free() {
        let mut map = map_with(PageNo(3), SlotNo(5));
        map.pin(SlotNo(6));
        assert_eq!(map.put(PageNo(3), SlotNo(6)), Some(SlotNo(5)));
        assert!(!map.unpin(SlotNo(6)));
        assert_eq!((map.slot_of(PageNo(3)), map.page_of(SlotNo(5))), (Some(SlotNo(6)), None));
        assert_eq!((map.pages_out(), map.passing()), (1, 0));
    }

    #[test]
    fn a_slot_that_is_read_is_free_only_after_the_reader() {
        let mut map = map_with(PageNo(3), SlotNo(5));
        map.pin(SlotNo(5));
        map.pin(SlotNo(5));
        assert_eq!(map.clear(PageNo(3)), None);
        assert_eq!(map.passing(), 1);
        assert!(!map.unpin(SlotNo(5)));
        assert!(map.unpin(SlotNo(5)));
        assert_eq!(map.passing(), 0);
    }

    #[test]
    fn what_leaves_parts_from_both_neighbours() {
        let mut map = map_with(PageNo(3), SlotNo(5));
        [4, 5, 6, 7].into_iter().for_each(|slot| map.join(SlotNo(slot)));
        assert_eq!(map.clear(PageNo(3)), Some(SlotNo(5)));
        assert_eq!([4, 5, 6, 7].map(|slot| map.is_joined(SlotNo(slot))), [true, false, false, true]);
    }
}
