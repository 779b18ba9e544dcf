//! [`Swap`]: pages out and in.

use std::collections::BTreeMap;

use moafs_disk::{Cause, DiskError, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, SharedDisk, Tag};
use moafs_runtime::Rt;
use moafs_vfs::types::BlockRun;
use moafs_vfs::volatile::Where;
use parking_lot::Mutex;

use crate::error::SwapError;
use crate::options::{Home, SwapOptions};
use crate::page::{PAGE_BYTES, PageNo};
use crate::status::{Counters, Status};

/// Paged-out memory.
pub struct Swap {
    home: Option<Home>,
    partition: Option<SharedDisk>,
    pages: u32,
    options: SwapOptions,
    reserved_blocks: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: BTreeMap<u32, Slot>,
    counters: Counters,
}

#[derive(Clone, Copy)]
enum Slot {
    Partition,
    Home(BlockRun),
}

impl Swap {
    /// A swap of `pages` pages. `home`: a volume. `partition`: the traditional swap space as a disk of its own. At least one of them.
    /// With a home and no partition, traditional pages take reserved blocks at the volume's lowest addresses. `pages` times 4 KiB are
    /// reserved at once.
    ///
    /// # Errors
    /// [`SwapError::Volume`] if the volume cannot promise as much.
    pub fn open(
        home: Option<Home>,
        partition: Option<SharedDisk>,
        pages: u32,
        rt: Rt,
        options: SwapOptions,
    ) -> Result<Swap, SwapError> {
        let _ = rt;
        let mut reserved_blocks = 0;
        if let Some(home) = &home {
            reserved_blocks = u64::from(pages) * u64::from(granule(home));
            let what = "reserving room for the swap";
            home.room.reserve(reserved_blocks).map_err(|source| SwapError::Volume { what, source })?;
        }
        Ok(Swap { home, partition, pages, options, reserved_blocks, state: Mutex::default() })
    }

    /// Pages it can hold.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Writes pages that leave together.
    ///
    /// # Errors
    /// [`SwapError::Beyond`] before anything is written; [`SwapError::Device`] for the first page that could not be written.
    pub fn page_out(&self, pages: &[(PageNo, Page)]) -> Result<(), SwapError> {
        for (page, _) in pages {
            self.check(*page)?;
        }
        for (page, data) in pages {
            let known = self.state.lock().slots.get(&page.0).copied();
            let slot = match known {
                Some(slot) => slot,
                None => self.find()?,
            };
            let (disk, at) = self.place(*page, slot);
            let request =
                Request { op: Op::Write { data: vec![data.clone()], fua: false }, at, tag: tag(Cause::Evict) };
            let done = disk.run(vec![request]).remove(0);
            done.result.map_err(|source| SwapError::Device { page: *page, source })?;
            let mut state = self.state.lock();
            state.slots.insert(page.0, slot);
            state.counters.pages_out += 1;
            state.counters.out_requests += 1;
        }
        Ok(())
    }

    /// Reads a page; zeros if it was never out. It stays out until [`Swap::free`].
    ///
    /// # Errors
    /// [`SwapError::Beyond`], [`SwapError::Device`].
    pub fn page_in(&self, page: PageNo, into: &mut [u8]) -> Result<(), SwapError> {
        self.check(page)?;
        let known = self.state.lock().slots.get(&page.0).copied();
        let Some(slot) = known else {
            into.fill(0);
            return Ok(());
        };
        let (disk, at) = self.place(page, slot);
        let device = |source: DiskError| SwapError::Device { page, source };
        let bytes = disk.read(at, PAGE_BYTES, tag(Cause::Demand)).map_err(device)?;
        into.copy_from_slice(&bytes);
        self.state.lock().counters.pages_in += 1;
        Ok(())
    }

    /// As [`Swap::page_in`], and in the same request up to `neighbours` pages that lie beside it and left together with it.
    ///
    /// # Errors
    /// As [`Swap::page_in`].
    pub fn page_in_with(
        &self,
        page: PageNo,
        _neighbours: u32,
        each: &mut dyn FnMut(PageNo, &[u8]),
    ) -> Result<(), SwapError> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.page_in(page, &mut bytes)?;
        each(page, &bytes);
        Ok(())
    }

    /// Forgets pages: they read as zeros, and their slots are free.
    pub fn free(&self, first: PageNo, count: u32) {
        let end = first.0.saturating_add(count);
        let freed: Vec<Slot> = {
            let mut state = self.state.lock();
            let pages: Vec<u32> = state.slots.range(first.0..end).map(|(page, _)| *page).collect();
            pages.iter().filter_map(|page| state.slots.remove(page)).collect()
        };
        freed.into_iter().for_each(|slot| self.give(slot));
    }

    /// True if a page is out.
    pub fn is_out(&self, page: PageNo) -> bool {
        self.state.lock().slots.contains_key(&page.0)
    }

    /// A step of background work. True: call again.
    ///
    /// # Errors
    /// [`SwapError::Device`].
    pub fn tend(&self) -> Result<bool, SwapError> {
        Ok(false)
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        let used = u32::try_from(state.slots.len()).unwrap_or(u32::MAX);
        Status {
            placement: self.options.placement,
            pages: self.pages,
            used,
            reserved_blocks: self.reserved_blocks,
            taken_blocks: 0,
            area_slots: 0,
            areas: Vec::new(),
            traditional_slots: self.pages,
            traditional_used: used,
            counters: state.counters,
        }
    }

    fn check(&self, page: PageNo) -> Result<(), SwapError> {
        if page.0 < self.pages { Ok(()) } else { Err(SwapError::Beyond { page, pages: self.pages }) }
    }

    fn find(&self) -> Result<Slot, SwapError> {
        let (None, Some(home)) = (&self.partition, &self.home) else { return Ok(Slot::Partition) };
        let granule = granule(home);
        let what = "finding room for a page";
        let full = || SwapError::Volume { what, source: moafs_vfs::Error::Posix(28) };
        let run =
            home.room.take(Where::Lowest, granule, granule).map_err(|source| SwapError::Volume { what, source })?;
        run.map(Slot::Home).ok_or_else(full)
    }

    fn place(&self, page: PageNo, slot: Slot) -> (&SharedDisk, Lba) {
        match (slot, &self.partition, &self.home) {
            (Slot::Partition, Some(disk), _) => (disk, Lba(u64::from(page.0) * (PAGE_BYTES / SECTOR) as u64)),
            (Slot::Home(run), _, Some(home)) => (&home.disk, Lba::from_byte(run.start.0 * u64::from(home.block_bytes))),
            _ => unreachable!("slots are where there is a place for them"),
        }
    }

    fn give(&self, slot: Slot) {
        if let (Slot::Home(run), Some(home)) = (slot, &self.home) {
            home.room.give(run);
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.free(PageNo(0), u32::MAX);
        if let Some(home) = &self.home {
            home.room.release(self.reserved_blocks);
        }
    }
}

fn granule(home: &Home) -> u32 {
    PAGE_BYTES as u32 / home.block_bytes
}

fn tag(cause: Cause) -> Tag {
    Tag::new(Kind::Swap, 0, cause)
}
