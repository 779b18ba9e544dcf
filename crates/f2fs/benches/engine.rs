//! Measures the engine's own cost, on a disk in memory that answers without delay.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use moafs_disk::{MemDisk, SharedDisk};
use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::{NewFile, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Options, Vfs};

const ROOT: Ino = Ino(3);
const FILES: usize = 4000;

fn volume() -> Vfs<F2fs> {
    let disk: SharedDisk = std::sync::Arc::new(MemDisk::new(1 << 21));
    mkfs(&*disk, &MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
    let rt = Live::new();
    let format = F2fs::open(disk.clone(), rt.clone(), OpenOptions::default()).unwrap();
    Vfs::new(format, disk, rt, Options { syncer: false, ..Options::default() })
}

fn create(vfs: &Vfs<F2fs>, text: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), ROOT, name(text), &new).unwrap().ino;
    vfs.forget(ino, 1);
    ino
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn number(i: usize) -> String {
    format!("file-{i:06}")
}

/// Measures a checkpoint: nodes are packed and get places while the op gate is closed, and are then
/// written.
fn checkpoint(c: &mut Criterion) {
    let vfs = volume();
    let files: Vec<Ino> = (0..FILES).map(|i| create(&vfs, &number(i))).collect();
    let mut perm = 0o600;
    let mut touch = || {
        perm ^= 0o11;
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        for ino in &files {
            vfs.set_attr(&Credentials::root(), *ino, &set).unwrap();
        }
    };
    let mut group = c.benchmark_group("checkpoint");
    group.throughput(Throughput::Elements(FILES as u64));
    group.bench_function("4000 inodes", |b| {
        b.iter_batched(&mut touch, |()| vfs.sync().unwrap(), BatchSize::PerIteration)
    });
    group.finish();
}

/// Measures a small file: an inode whose addresses are looked through, and a name in the inode of
/// its directory.
fn small_file(c: &mut Criterion) {
    let vfs = volume();
    let data = [7; 4096];
    let mut count = 0;
    c.bench_function("create, write 4 KiB, unlink", |b| {
        b.iter(|| {
            let ino = create(&vfs, "f");
            vfs.write(&Credentials::root(), ino, 0, &data, false).unwrap();
            vfs.unlink(&Credentials::root(), ROOT, name("f")).unwrap();
            count += 1;
            if count % 64 == 0 {
                vfs.run_background_step();
            }
        });
    });
}

/// Measures the lookup of a missing name: one bucket of each level, whose blocks do not have the
/// name.
fn missing_name(c: &mut Criterion) {
    let vfs = volume();
    for i in 0..5 * FILES {
        create(&vfs, &number(i));
    }
    let mut i = 0;
    c.bench_function("a missing name among 20,000", |b| {
        b.iter(|| {
            i += 1;
            vfs.lookup(&Credentials::root(), ROOT, name(&format!("none-{i:06}"))).unwrap_err()
        });
    });
}

criterion_group!(benches, checkpoint, small_file, missing_name);
criterion_main!(benches);
