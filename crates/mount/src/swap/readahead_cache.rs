//! Pages that were read beside the one that was asked for, until they are asked for themselves.
//!
//! A small cache, each page with one possible place in it. A page that is written or freed meanwhile must not be found
//! here with its old bytes, even if they were on their way from the device at that moment: every place counts such
//! changes, and a page read before a change is not put in after it.
//!
//! The [`Window`] gives the number of pages to read beside the next one: more while they are asked for, fewer when they
//! are not.

use moafs_swap::{PAGE_BYTES, PageNo};
use parking_lot::Mutex;

/// Pages kept: 1 MiB, a few dozen requests.
const PAGES: usize = 256;

/// The cache of pages read ahead.
pub(crate) struct Beside(Mutex<Cache>);

struct Cache {
    places: Box<[CacheLine; PAGES]>,
    window: Window,
}

/// The number of pages to read beside one that is asked for: doubled while most of them are asked for, halved when few
/// are.
struct Window {
    pages: u32,
    /// Pages that were asked for since the last change, and pages that were dropped unused.
    used: u32,
    wasted: u32,
}

/// Largest window, in pages: with the page itself 128 KiB, which a hard disk reads in a fraction of a seek, and with
/// which eight readers have room here.
pub(crate) const WINDOW_MAX: u32 = 31;
/// Window at first, in pages: as many as the kernel reads around a page.
const WINDOW_START: u32 = 7;
/// Pages, used or wasted, after which the window is adjusted.
const OUTCOMES: u32 = 32;

impl Window {
    fn note(&mut self, used: u32, wasted: u32) {
        self.used += used;
        self.wasted += wasted;
        if self.used + self.wasted < OUTCOMES {
            return;
        }
        let all = self.used + self.wasted;
        if self.used >= all / 4 * 3 {
            self.pages = (self.pages * 2 + 1).min(WINDOW_MAX);
        } else if self.used < all / 4 {
            self.pages = (self.pages / 2).max(1);
        }
        (self.used, self.wasted) = (0, 0);
    }
}

/// The one place for all pages whose numbers are equal modulo [`PAGES`].
struct CacheLine {
    page: Option<PageNo>,
    bytes: [u8; PAGE_BYTES],
    changes: u32,
}

/// The change counts of all places at some moment, and the number of pages to read ahead.
pub(crate) struct Moment {
    changes: [u32; PAGES],
    pub(crate) window: u32,
}

impl Beside {
    pub(crate) fn new() -> Beside {
        let places: Vec<CacheLine> =
            (0..PAGES).map(|_| CacheLine { page: None, bytes: [0; PAGE_BYTES], changes: 0 }).collect();
        let Ok(places) = places.into_boxed_slice().try_into() else { unreachable!("so many were made") };
        Beside(Mutex::new(Cache { places, window: Window { pages: WINDOW_START, used: 0, wasted: 0 } }))
    }

    /// Returns the current counts. Call it before a read whose pages may be put in.
    pub(crate) fn now(&self) -> Moment {
        let cache = self.0.lock();
        Moment { changes: std::array::from_fn(|place| cache.places[place].changes), window: cache.window.pages }
    }

    /// Keeps a page that was read after `since`, if it has not changed since then.
    pub(crate) fn put(&self, page: PageNo, bytes: &[u8], since: &Moment) {
        let at = place_of(page);
        let Cache { places, window } = &mut *self.0.lock();
        let place = &mut places[at];
        if place.changes == since.changes[at] && bytes.len() == PAGE_BYTES {
            window.note(0, u32::from(place.page.is_some_and(|before| before != page)));
            place.page = Some(page);
            place.bytes.copy_from_slice(bytes);
        }
    }

    /// Copies a page and drops it, as the kernel keeps what it has read. Returns false if it is not here.
    pub(crate) fn take(&self, page: PageNo, into: &mut [u8]) -> bool {
        let Cache { places, window } = &mut *self.0.lock();
        let place = &mut places[place_of(page)];
        if place.page != Some(page) {
            return false;
        }
        place.page = None;
        window.note(1, 0);
        into.copy_from_slice(&place.bytes);
        true
    }

    /// Drops pages that have changed. Call it when a read already finds the new bytes, or none.
    pub(crate) fn changed(&self, first: PageNo, count: u32) {
        let Cache { places, window } = &mut *self.0.lock();
        let end = first.0.saturating_add(count);
        let gone: u32 = if count as usize >= PAGES {
            places.iter_mut().map(|place| place.change(|page| (first.0..end).contains(&page.0))).sum()
        } else {
            (first.0..end).map(|page| places[place_of(PageNo(page))].change(|here| here.0 == page)).sum()
        };
        window.note(0, gone);
    }
}

impl CacheLine {
    /// Counts a change. Returns 1 if it dropped the page that was here, else 0.
    fn change(&mut self, which: impl Fn(PageNo) -> bool) -> u32 {
        self.changes = self.changes.wrapping_add(1);
        let gone = self.page.is_some_and(which);
        if gone {
            self.page = None;
        }
        u32::from(gone)
    }
}

fn place_of(page: PageNo) -> usize {
    page.0 as usize % PAGES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_once_and_not_after_it_changed() {
        let beside = Beside::new();
        let mut into = [0; PAGE_BYTES];
        beside.put(PageNo(7), &[7; PAGE_BYTES], &beside.now());
        assert!(!beside.take(PageNo(7 + PAGES as u32), &mut into));
        assert!(beside.take(PageNo(7), &mut into) && into == [7; PAGE_BYTES]);
        assert!(!beside.take(PageNo(7), &mut into));
        for (first, count) in [(7, 1), (0, 8), (0, u32::MAX)] {
            beside.put(PageNo(7), &[8; PAGE_BYTES], &beside.now());
            beside.changed(PageNo(first), count);
            assert!(!beside.take(PageNo(7), &mut into), "{first} {count}");
        }
        beside.put(PageNo(7), &[8; PAGE_BYTES], &beside.now());
        beside.changed(PageNo(8), 200);
        assert!(beside.take(PageNo(7), &mut into));
    }

    #[test]
    fn the_window_grows_while_pages_are_asked_for_and_shrinks_when_they_are_not() {
        let beside = Beside::new();
        for page in (0..200).map(PageNo) {
            beside.put(page, &[1; PAGE_BYTES], &beside.now());
            assert!(beside.take(page, &mut [0; PAGE_BYTES]));
        }
        assert_eq!(beside.now().window, WINDOW_MAX);
        for page in (0..PAGES as u32 * 4).map(PageNo) {
            beside.put(page, &[1; PAGE_BYTES], &beside.now());
        }
        assert_eq!(beside.now().window, 1);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_put_in_after_it() {
        let beside = Beside::new();
        let before = beside.now();
        beside.changed(PageNo(3), 1);
        beside.put(PageNo(3), &[1; PAGE_BYTES], &before);
        assert!(!beside.take(PageNo(3), &mut [0; PAGE_BYTES]));
        beside.put(PageNo(4), &[4; PAGE_BYTES], &before);
        assert!(beside.take(PageNo(4), &mut [0; PAGE_BYTES]));
    }
}
