//! Opening a swap: checks its disks, reserves its blocks, chooses the size of its areas, and
//! allocates all of its memory.

use moafs_disk::SharedDisk;
use moafs_vfs::swap_space::Group;

use crate::areas::{Areas, area_slots};
use crate::avoid::Avoid;
use crate::error::SwapError;
use crate::map::{SLOTS_MAX, SwapMap};
use crate::options::{Home, Placement, SwapOptions};
use crate::page::PAGE_BYTES;
use crate::places::Search;
use crate::state::{BATCH_PAGES, State};
use crate::status::Counters;
use crate::traditional::Traditional;

/// The smallest block size of a volume, in bytes.
const BLOCK_BYTES_MIN: u32 = 512;

/// A newly opened swap: no page is out.
pub(crate) struct Opened {
    pub(crate) home: Option<Home>,
    pub(crate) partition: Option<SharedDisk>,
    pub(crate) reserved_blocks: u64,
    pub(crate) state: State,
}

pub(crate) fn open(
    home: Option<Home>,
    partition: Option<SharedDisk>,
    pages: u32,
    options: &SwapOptions,
) -> Result<Opened, SwapError> {
    check_partition(partition.as_ref(), pages)?;
    // With a partition that takes all pages, no blocks of the volume are needed.
    let home = home.filter(|_| options.placement == Placement::Areas || partition.is_none());
    let granule = home.as_ref().map_or(Ok(1), granule)?;
    if home.is_none() && partition.is_none() {
        return Err(SwapError::Refused("a swap needs a volume or a partition".into()));
    }
    let slots = reserve(home.as_ref(), partition.is_some(), pages, granule)?;
    let reserved_blocks = u64::from(slots) * u64::from(granule);
    let opened = match state(home.as_ref(), partition.as_ref(), (pages, slots), granule, options) {
        Some(state) => return Ok(Opened { home, partition, reserved_blocks, state }),
        None => SwapError::Refused(format!("a swap of {pages} pages is too large for the numbers of its slots")),
    };
    if let Some(home) = &home {
        home.room.release(reserved_blocks);
    }
    Err(opened)
}

fn check_partition(partition: Option<&SharedDisk>, pages: u32) -> Result<(), SwapError> {
    let Some(partition) = partition else { return Ok(()) };
    let slots = Traditional::slots_in(partition.limits().sectors);
    if slots >= pages {
        return Ok(());
    }
    Err(SwapError::Refused(format!("the swap partition holds {slots} pages, not {pages}")))
}

fn granule(home: &Home) -> Result<u32, SwapError> {
    let bytes = home.block_bytes;
    if bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=PAGE_BYTES as u32).contains(&bytes) {
        return Ok(PAGE_BYTES as u32 / bytes);
    }
    Err(SwapError::Refused(format!("blocks of {bytes} bytes cannot hold pages of {PAGE_BYTES}")))
}

/// Reserves slots for all pages. If the blocks are optional and the volume has too few, reserves for half of the pages,
/// a quarter, and so on.
fn reserve(home: Option<&Home>, optional: bool, pages: u32, granule: u32) -> Result<u32, SwapError> {
    let Some(home) = home else { return Ok(0) };
    let mut slots = pages;
    loop {
        let what = "reserving room for the swap";
        match home.room.reserve(u64::from(slots) * u64::from(granule)) {
            Ok(()) => return Ok(slots),
            Err(_) if optional && slots > 0 => slots /= 2,
            Err(source) => return Err(SwapError::Volume { what, source }),
        }
    }
}

/// Makes the state; `None` if there are more slots than slot numbers.
fn state(
    home: Option<&Home>,
    partition: Option<&SharedDisk>,
    (pages, reserved): (u32, u32),
    granule: u32,
    options: &SwapOptions,
) -> Option<State> {
    let groups = home.map_or(0, |home| home.room.groups());
    let slots = match (home, options.placement) {
        (Some(home), Placement::Areas) => {
            let largest = (0..groups).map(|group| home.room.group_blocks(Group(group))).max().unwrap_or(0);
            area_slots(options.area_bytes / PAGE_BYTES as u64, largest / granule, reserved)
        }
        _ => 0,
    };
    let areas = Areas::new(slots, granule, reserved, groups);
    let traditional = match partition {
        Some(disk) => Traditional::partition(Traditional::slots_in(disk.limits().sectors)),
        None => Traditional::blocks(pages, granule),
    };
    let numbers = u64::from(traditional.numbers()) + areas.numbers();
    let numbers = u32::try_from(numbers).ok().filter(|numbers| *numbers < SLOTS_MAX)?;
    Some(State {
        map: SwapMap::new(pages, numbers),
        areas,
        traditional,
        search: Search::default(),
        avoid: Avoid::new(groups),
        promised_blocks: u64::from(reserved) * u64::from(granule),
        giving_blocks: 0,
        counters: Counters::default(),
        waiters: 0,
        placement: options.placement,
        block_sectors: State::block_sectors(home.map_or(PAGE_BYTES as u32, |home| home.block_bytes)),
        granule,
        request_pages: request_pages(home.map(|home| &home.disk), partition),
        traditional_idle_since: None,
        migration_next: 0,
    })
}

/// Returns the largest number of pages that one request may carry on every disk of the swap.
fn request_pages(home: Option<&SharedDisk>, partition: Option<&SharedDisk>) -> u32 {
    let limits = |disk: &SharedDisk| (disk.limits().transfer_bytes_max / PAGE_BYTES).min(disk.limits().segments_max);
    let most = home.into_iter().chain(partition).map(limits).min().unwrap_or(1);
    most.clamp(1, BATCH_PAGES) as u32
}
