//! The cost of the elevator and the trace over a disk that takes no time.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use moafs_disk::probe::trace::Trace;
use moafs_disk::{Buf, DiskExt, Elevator, Kind, Lba, MemDisk, Op, Page, QueueOptions, Request, SharedDisk, Tag};
use moafs_runtime::Live;

const TAG: Tag = Tag::volume(Kind::Data);

/// Makes 64 requests of 4 KiB in shuffled order, neighbours that become two requests of 128 KiB.
fn batch(page: &Page) -> Vec<Request> {
    let write = |i: u64| {
        let op = Op::Write { data: vec![Page::clone(page)], fua: false };
        Request { op, at: Lba(i * 37 % 64 * 8), tag: TAG }
    };
    (0..64).map(write).collect()
}

fn benches(c: &mut Criterion) {
    let mem: SharedDisk = Arc::new(MemDisk::new(1 << 16));
    let trace: SharedDisk = Arc::new(Trace::new(Arc::clone(&mem), Live::new()));
    let options = QueueOptions { transfer_bytes_max: 128 << 10, ..QueueOptions::default() };
    let elevator: SharedDisk = Arc::new(Elevator::new(Arc::clone(&mem), Live::new(), options));
    let page = Buf::copy_of(&[1; 4096]).freeze();
    for (name, disk) in [("plain", mem), ("trace", trace), ("elevator", elevator)] {
        let mut group = c.benchmark_group(name);
        group.bench_function("write 4 KiB", |b| b.iter(|| disk.write(Lba(64), Page::clone(&page), TAG)));
        group.bench_function("write 64 neighbours", |b| b.iter(|| black_box(disk.run(batch(&page)))));
        group.finish();
    }
}

criterion_group!(queue, benches);
criterion_main!(queue);
