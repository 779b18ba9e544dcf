//! The cost of single calls that wait for no device.

#[path = "../tests/integration/common.rs"]
mod common;

use common::*;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use moafs_vfs::Credentials;
use moafs_vfs::api::Options;

fn volume() -> Volume {
    Volume::new(1 << 18, Options { cache_bytes: 256 << 20, ..options() }, moafs_runtime::Live::new())
}

fn write_cached(c: &mut Criterion) {
    let v = volume();
    let f = v.create(ROOT, "f");
    let data = pattern(1, 1 << 20);
    let mut group = c.benchmark_group("write");
    group.throughput(Throughput::Bytes(1 << 20));
    v.write(f, 0, &data);
    group.bench_function("1 MiB over dirty pages", |b| b.iter(|| v.write(f, 0, &data)));
    group.bench_function("1 MiB of new pages", |b| {
        b.iter(|| {
            v.write(f, 0, &data);
            let set = moafs_vfs::api::SetAttr { size: Some(0), ..Default::default() };
            v.vfs.set_attr(&Credentials::root(), f, &set).unwrap();
        });
    });
    group.finish();
}

fn read_hit(c: &mut Criterion) {
    let v = volume();
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 1 << 20));
    v.vfs.sync().unwrap();
    let mut into = vec![0; 4096];
    c.bench_function("read hit 4 KiB", |b| b.iter(|| v.vfs.read(f, 65536, &mut into).unwrap()));
    let mut into = vec![0; 1 << 20];
    c.bench_function("read hit 1 MiB", |b| b.iter(|| v.vfs.read(f, 0, &mut into).unwrap()));
}

fn small_file(c: &mut Criterion) {
    let v = volume();
    let data = pattern(1, 4096);
    let mut count = 0;
    c.bench_function("create, write 4 KiB, unlink", |b| {
        b.iter(|| {
            let f = v.create(ROOT, "f");
            v.write(f, 0, &data);
            v.vfs.unlink(&Credentials::root(), ROOT, name("f")).unwrap();
            v.vfs.forget(f, 1);
            count += 1;
            if count % 64 == 0 {
                v.vfs.run_background_step();
            }
        });
    });
    c.bench_function("sync of 1000 new files of 4 KiB", |b| {
        b.iter(|| {
            for i in 0..1000 {
                let f = v.create(ROOT, &format!("s{i}"));
                v.write(f, 0, &data);
                v.vfs.forget(f, 1);
            }
            v.vfs.sync().unwrap();
            for i in 0..1000 {
                v.vfs.unlink(&Credentials::root(), ROOT, name(&format!("s{i}"))).unwrap();
            }
            v.vfs.run_background_step();
        });
    });
}

criterion_group!(benches, write_cached, read_hit, small_file);
criterion_main!(benches);
