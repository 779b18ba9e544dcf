//! Image files: batches of 64 writes of 128 KiB and of 4 KiB, single writes and reads of 4 KiB, past the page
//! cache and through it. The images lie in the temporary directory
//! (`TMPDIR`); compare results of one machine and one run only.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use moafs_disk::{Buf, Disk, DiskExt, FileDisk, FileOptions, Kind, Lba, Op, Page, Request, SECTOR, Tag, file::Direct};
use moafs_runtime::Live;

const TAG: Tag = Tag::volume(Kind::Data);
const IMAGE_BYTES: u64 = 256 << 20;
const BATCH: u64 = 64;
const LARGE: usize = 128 << 10;
const SMALL: usize = 4 << 10;

fn pages(bytes: usize) -> Vec<Page> {
    (0..bytes / SMALL).map(|i| Buf::copy_of(&[i as u8; SMALL]).freeze()).collect()
}

/// Makes writes at every other 128 KiB.
fn batch(data: &[Page], round: u64) -> Vec<Request> {
    let stride = 2 * (LARGE / SECTOR) as u64;
    let at = |i: u64| Lba((round % 8) * BATCH * stride + i * stride);
    let write = |i| Request { op: Op::Write { data: data.to_vec(), fua: false }, at: at(i), tag: TAG };
    (0..BATCH).map(write).collect()
}

fn bench_disk(c: &mut Criterion, name: &str, disk: &FileDisk) {
    let mut group = c.benchmark_group(name);
    group.sample_size(20);
    // Allocate the whole image first: host allocation is not measured.
    for mib in 0..IMAGE_BYTES >> 20 {
        disk.write(Lba(mib << 11), Buf::copy_of(&[1; 1 << 20]).freeze(), TAG).expect("the image is writable");
    }
    let data = pages(LARGE);
    let mut round = 0;
    group.throughput(Throughput::Bytes(BATCH * LARGE as u64));
    group.bench_function("write 64 x 128 KiB", |b| {
        b.iter(|| {
            round += 1;
            black_box(disk.run(batch(&data, round)))
        });
    });
    group.bench_function("write 128 KiB, 64 times", |b| {
        b.iter(|| {
            round += 1;
            batch(&data, round).into_iter().for_each(|request| drop(disk.run(vec![request])));
        });
    });
    group.throughput(Throughput::Bytes(BATCH * SMALL as u64));
    group.bench_function("write 64 x 4 KiB", |b| {
        b.iter(|| {
            round += 1;
            black_box(disk.run(batch(&data[..1], round)))
        });
    });
    group.throughput(Throughput::Bytes(SMALL as u64));
    let page = pages(SMALL).remove(0);
    let sectors = IMAGE_BYTES / SECTOR as u64;
    let mut at = 0;
    let mut next = move || {
        at = (at + 7919 * 8) % sectors;
        Lba(at)
    };
    group.bench_function("write 4 KiB", |b| b.iter(|| disk.write(next(), Page::clone(&page), TAG)));
    group.bench_function("read 4 KiB", |b| b.iter(|| disk.read(next(), SMALL, TAG)));
    group.finish();
}

fn benches(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, direct) in [("direct", Direct::Auto), ("buffered", Direct::Never)] {
        let options = FileOptions { direct, ..FileOptions::default() };
        let disk = FileDisk::create(dir.path().join(name), IMAGE_BYTES, Live::new(), options).expect("an image");
        assert!(disk.limits().io_align >= SECTOR);
        bench_disk(c, name, &disk);
    }
}

criterion_group!(file, benches);
criterion_main!(file);
