//! A region releases all it takes. Alone in its process, because threads and descriptors of other tests would be
//! counted.

use std::fs;
use std::sync::Arc;

use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_runtime::Live;
use moafs_swap::{PAGE_BYTES, Region, RegionError, RegionOptions, Swap, SwapOptions};

const PAGES: u32 = 64;

/// Returns the numbers of descriptors, threads, and mappings of memory files.
fn taken() -> [usize; 3] {
    let entries = |path| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps.matches("moafs-region").count()]
}

#[test]
fn a_region_takes_nothing_along() {
    let disk: SharedDisk = Arc::new(MemDisk::new(u64::from(PAGES) * (PAGE_BYTES / SECTOR) as u64));
    let swap = Arc::new(Swap::open(None, Some(disk), PAGES, Live::new(), SwapOptions::default()).unwrap());
    let options = RegionOptions { budget_bytes: 8 * PAGE_BYTES as u64, ..RegionOptions::default() };
    let before = taken();
    for _ in 0..100 {
        match Region::new(Arc::clone(&swap), options) {
            Ok(mut region) => region.as_mut_slice().fill(1),
            Err(
                error @ (RegionError::NoUserfaultfd | RegionError::KernelTooOld { .. } | RegionError::NotPermitted),
            ) => {
                return eprintln!("SKIPPED: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(taken(), before);
    assert_eq!(Arc::strong_count(&swap), 1);
    // A region that cannot be made leaves nothing behind.
    let too_small = RegionOptions { budget_bytes: 1, ..options };
    Region::new(Arc::clone(&swap), too_small).unwrap_err();
    assert_eq!((taken(), Arc::strong_count(&swap)), (before, 1));
}
