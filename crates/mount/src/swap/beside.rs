//! Pages that came in beside the one that was asked for, until they are asked for themselves.
//!
//! A small cache, each page with one possible place in it. A page that is written or freed meanwhile must not be found here with its
//! old bytes, also if they were on their way from the device at that moment: every place counts such changes, and what was read
//! before one is not put in after it.

use moafs_swap::{PAGE_BYTES, PageNo};
use parking_lot::Mutex;

/// Pages kept: 1 MiB, some dozens of requests' worth.
const PAGES: usize = 256;

/// The cache.
pub(crate) struct Beside(Mutex<Box<[Place; PAGES]>>);

/// Where pages of one residue go.
struct Place {
    page: Option<PageNo>,
    bytes: [u8; PAGE_BYTES],
    changes: u32,
}

/// The changes of all places at some moment.
pub(crate) struct Moment([u32; PAGES]);

impl Beside {
    pub(crate) fn new() -> Beside {
        let places: Vec<Place> = (0..PAGES).map(|_| Place { page: None, bytes: [0; PAGE_BYTES], changes: 0 }).collect();
        let Ok(places) = places.into_boxed_slice().try_into() else { unreachable!("so many were made") };
        Beside(Mutex::new(places))
    }

    /// Before a read whose pages may be put in.
    pub(crate) fn now(&self) -> Moment {
        let places = self.0.lock();
        Moment(std::array::from_fn(|place| places[place].changes))
    }

    /// Keeps a page that came in since then, if it has not changed since then.
    pub(crate) fn put(&self, page: PageNo, bytes: &[u8], since: &Moment) {
        let at = place_of(page);
        let place = &mut self.0.lock()[at];
        if place.changes == since.0[at] && bytes.len() == PAGE_BYTES {
            place.page = Some(page);
            place.bytes.copy_from_slice(bytes);
        }
    }

    /// Copies a page if it is here, and lets go of it: the kernel keeps what it has read. False: it is not.
    pub(crate) fn take(&self, page: PageNo, into: &mut [u8]) -> bool {
        let place = &mut self.0.lock()[place_of(page)];
        if place.page != Some(page) {
            return false;
        }
        place.page = None;
        into.copy_from_slice(&place.bytes);
        true
    }

    /// Pages have changed: to be called when their new bytes, or none, are what a read finds.
    pub(crate) fn changed(&self, first: PageNo, count: u32) {
        let mut places = self.0.lock();
        let end = first.0.saturating_add(count);
        if count as usize >= PAGES {
            places.iter_mut().for_each(|place| place.change(|page| (first.0..end).contains(&page.0)));
        } else {
            (first.0..end).for_each(|page| places[place_of(PageNo(page))].change(|here| here.0 == page));
        }
    }
}

impl Place {
    fn change(&mut self, which: impl Fn(PageNo) -> bool) {
        self.changes = self.changes.wrapping_add(1);
        self.page = self.page.filter(|page| !which(*page));
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
