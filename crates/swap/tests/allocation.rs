//! Memory on the page-out path: code that frees memory must not need any.
//!
//! The swap itself allocates nothing for a page-out into areas that exist. The allocations of [`Disk::submit`] are
//! counted exactly: a vector of requests, and for each request a vector of pages.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use moafs_disk::{Buf, Disk, DiskError, Done, Epoch, Limits, MemDisk, Page, Request, Ticket};
use moafs_runtime::Live;
use moafs_swap::{Home, PAGE_BYTES, PageNo, Swap, SwapOptions};
use moafs_vfs::swap_space::{Group, LastAccess, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, with a counter of this thread beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// A disk that does nothing: it allocates only the list of results.
struct Nowhere {
    limits: Limits,
}

impl Disk for Nowhere {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        Ticket(batch.len() as u64)
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        (0..ticket.0).map(|_| Done { result: Ok(Vec::new()), epoch: Epoch(0) }).collect()
    }

    fn make_durable(&self, _upto: Epoch) -> Result<(), DiskError> {
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    fn durable(&self) -> Option<Epoch> {
        None
    }
}

/// A volume of empty groups that hold one area each.
struct Empty;

const GROUP_BLOCKS: u32 = 1024;

impl SwapSpace for Empty {
    fn groups(&self) -> u32 {
        64
    }

    fn group_of(&self, block: BlockAddr) -> Option<Group> {
        Some(Group((block.0 / u64::from(GROUP_BLOCKS)) as u32))
    }

    fn group_blocks(&self, _group: Group) -> u32 {
        GROUP_BLOCKS
    }

    fn reserve(&self, _blocks: u64) -> moafs_vfs::Result<()> {
        Ok(())
    }

    fn release(&self, _blocks: u64) {}

    fn take(&self, at: Where, len: u32, _granule: u32) -> moafs_vfs::Result<Option<BlockRun>> {
        let Where::EndOf(group) = at else { return Ok(None) };
        let end = u64::from(group.0 + 1) * u64::from(GROUP_BLOCKS);
        Ok(Some(BlockRun { start: BlockAddr(end - u64::from(len)), len }))
    }

    fn give(&self, _run: BlockRun) {}

    fn next_contended_group(&self) -> Option<Group> {
        None
    }
}

fn pages(count: u32) -> Vec<(PageNo, Page)> {
    (0..count).map(|page| (PageNo(page), Buf::zeroed(PAGE_BYTES).freeze())).collect()
}

#[test]
fn a_page_out_allocates_what_its_requests_consist_of_and_nothing_else() {
    let limits = MemDisk::new(64 * u64::from(GROUP_BLOCKS) * 8).limits().clone();
    let head = Arc::new(LastAccess::default());
    let home =
        Home { disk: Arc::new(Nowhere { limits }), block_bytes: 4096, room: Arc::new(Empty), head: head.clone() };
    let swap = Swap::open(Some(home), None, 8192, Live::new(), SwapOptions::default()).unwrap();
    let pages = pages(600);
    let access = |group: u64| head.note(BlockAddr(group * u64::from(GROUP_BLOCKS) + 1));
    // The areas take a quarter of a group each.
    for group in 0..4 {
        access(group);
        swap.page_out(&pages[..1]).unwrap();
    }

    // The allocations are the requests, one request's pages, and the disk's results.
    let one_request = 3;
    for round in 0..100 {
        access(round % 4);
        let count = 1 + round as usize % 16;
        let made = allocations(|| swap.page_out(&pages[..count]).unwrap());
        assert_eq!(made, one_request, "{count} pages");
    }
    assert_eq!(allocations(|| swap.free(PageNo(0), 8192)), 0);
    assert_eq!(allocations(|| assert!(!swap.is_out(PageNo(0)))), 0);

    // A page-out of more than a batch, over several areas.
    let before = swap.status().counters;
    let made = allocations(|| swap.page_out(&pages).unwrap());
    let after = swap.status().counters;
    let requests = after.out_requests - before.out_requests;
    assert!((3..=6).contains(&requests), "{requests} requests");
    assert!(made <= 3 * requests, "{made} allocations for {requests} requests");
}

#[test]
fn giving_up_a_slot_and_creating_an_area_allocate_nothing_either() {
    let limits = MemDisk::new(64 * u64::from(GROUP_BLOCKS) * 8).limits().clone();
    let head = Arc::new(LastAccess::default());
    let home =
        Home { disk: Arc::new(Nowhere { limits }), block_bytes: 4096, room: Arc::new(Empty), head: head.clone() };
    let swap = Swap::open(Some(home), None, 8192, Live::new(), SwapOptions::default()).unwrap();
    let pages = pages(1);
    for group in 0..8 {
        head.note(BlockAddr(group * u64::from(GROUP_BLOCKS) + 1));
        assert_eq!(
            allocations(|| swap.page_out(&pages).unwrap()),
            3,
            "the area of group {group} was made before it was needed"
        );
    }
    assert_eq!(swap.status().counters.areas_made, 8);
    assert_eq!(allocations(|| assert!(!swap.run_background_step().unwrap())), 0);
}
