//! Trimming: the device is told of free blocks within the range asked for, and of no others.

use std::ops::Range;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_disk::probe::trace::{Trace, TraceVerb};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::Vfs;
use moafs_vfs::api::Options;

const MIB: u64 = 1 << 20;

struct Volume {
    vfs: Vfs<Ext>,
    trace: Arc<Trace>,
}

impl Volume {
    /// An empty ext2 volume of 64 MiB with blocks of 1 KiB, in groups of 8 MiB.
    fn new() -> Volume {
        let disk = MemDisk::new(64 << 11);
        let options = MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0));
        mkfs(&disk, &MkfsOptions { block_size: Some(1024), ..options }).expect("mkfs");
        let trace = Arc::new(Trace::new(Arc::new(disk), Live::new()));
        let (shared, rt): (SharedDisk, _) = (Arc::<Trace>::clone(&trace), Live::new());
        let ext = Ext::open(Arc::clone(&shared), rt.clone(), OpenOptions::default()).expect("the volume opens");
        let vfs = Vfs::new(ext, shared, rt, Options { syncer: false, ..Options::default() });
        Volume { vfs, trace }
    }

    /// Trims, and returns the number of bytes that it tells and the ranges that were discarded.
    fn trim(&self, range: Range<u64>, min: u64) -> (u64, Vec<Range<u64>>) {
        self.trace.record(1 << 16);
        let told = self.vfs.trim(range, min, &|| false).expect("the disk forgets");
        let discards = self.trace.take().into_iter().filter(|record| record.verb == TraceVerb::Discard);
        (told, discards.map(|record| record.at.0 << 9..(record.at.0 + record.sectors) << 9).collect())
    }
}

#[test]
fn a_trim_of_a_part_discards_and_counts_nothing_beyond_it() {
    let volume = Volume::new();
    for start in [0, 5000, 3 * MIB, 8 * MIB - 700, 20 * MIB + 512, 63 * MIB] {
        for len in [1024, 3 * MIB + 100, 10 * MIB] {
            let range = start..start + len;
            let (told, discards) = volume.trim(range.clone(), 0);
            let is_inside = |run: &Range<u64>| range.start <= run.start && run.end <= range.end;
            assert!(discards.iter().all(is_inside), "{range:?}: {discards:?}");
            assert_eq!(discards.iter().map(|run| run.end - run.start).sum::<u64>(), told, "{range:?}");
        }
    }
    volume.vfs.close().expect("the disk works");
}

#[test]
fn trims_of_all_parts_discard_what_a_trim_of_all_does() {
    let volume = Volume::new();
    let (all, _) = volume.trim(0..u64::MAX, 0);
    assert!(all > 50 * MIB && all < 64 * MIB, "{all} bytes");
    let parts = (0..64).map(|at| volume.trim(at * MIB..(at + 1) * MIB, 0).0);
    assert_eq!(parts.sum::<u64>(), all);
    volume.vfs.close().expect("the disk works");
}

#[test]
fn the_part_of_a_free_run_within_the_range_counts_for_the_shortest_run() {
    let volume = Volume::new();
    let inside = 20 * MIB..21 * MIB;
    assert_eq!(volume.trim(inside.clone(), MIB), (MIB, vec![inside.clone()]));
    assert_eq!(volume.trim(inside, 2 * MIB), (0, vec![]));
    volume.vfs.close().expect("the disk works");
}
