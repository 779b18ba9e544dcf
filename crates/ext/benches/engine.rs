//! Measures the engine's own cost on ext2 and ext4, on a disk in memory that answers without delay.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use moafs_disk::{MemDisk, SharedDisk};
use moafs_ext::mkfs::features::FeatureSet;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Options, Vfs};

const ROOT: Ino = Ino(2);
const SECTORS: u64 = 1 << 21;
/// Small files that leave together.
const FILES: usize = 1000;

fn volumes() -> [(&'static str, Vfs<Ext>); 2] {
    [("ext2", volume(FeatureSet::EXT2)), ("ext4", volume(FeatureSet::EXT4))]
}

fn volume(features: FeatureSet) -> Vfs<Ext> {
    let disk: SharedDisk = Arc::new(MemDisk::new(SECTORS));
    let time = Timestamp::new(1_700_000_000, 0);
    let options = MkfsOptions { features, ..MkfsOptions::new([1; 16], [2; 16], time) };
    mkfs(&*disk, &options).expect("the disk is large enough");
    let rt = Live::new();
    let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).expect("a new volume");
    Vfs::new(format, disk, rt, Options { syncer: false, ..Options::default() })
}

fn create(vfs: &Vfs<Ext>, text: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), ROOT, name(text), &new).expect("there is space").ino;
    vfs.forget(ino, 1);
    ino
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn number(i: usize) -> String {
    format!("file-{i:06}")
}

/// Measures a small file that never leaves the cache: an inode, a name, and a page.
fn small_file(c: &mut Criterion) {
    let data = [7; 4096];
    for (kind, vfs) in volumes() {
        let mut count = 0;
        c.bench_function(&format!("{kind}: create, write 4 KiB, unlink"), |b| {
            b.iter(|| {
                let ino = create(&vfs, "f");
                vfs.write(&Credentials::root(), ino, 0, &data, false).expect("there is space");
                vfs.unlink(&Credentials::root(), ROOT, name("f")).expect("it is there");
                count += 1;
                if count % 64 == 0 {
                    vfs.run_background_step();
                }
            });
        });
    }
}

/// Measures the way of dirty small files of one directory to the disk: the plan of co-writing, claims, maps, and the
/// order or the journal of the metadata.
fn sync(c: &mut Criterion) {
    let data = [7; 4096];
    for (kind, vfs) in volumes() {
        let files: Vec<Ino> = (0..FILES).map(|i| create(&vfs, &number(i))).collect();
        let touch = || {
            for ino in &files {
                vfs.write(&Credentials::root(), *ino, 0, &data, false).expect("there is space");
            }
        };
        let mut group = c.benchmark_group("sync");
        group.throughput(Throughput::Elements(FILES as u64));
        group.bench_function(format!("{kind}: 1000 files of 4 KiB"), |b| {
            b.iter_batched(touch, |()| vfs.sync().expect("memory can be written"), BatchSize::PerIteration)
        });
        group.finish();
    }
}

/// Measures the lookup of a missing name in a directory whose names are indexed in memory.
fn missing_name(c: &mut Criterion) {
    for (kind, vfs) in volumes() {
        for i in 0..20 * FILES {
            create(&vfs, &number(i));
        }
        let mut i = 0;
        c.bench_function(&format!("{kind}: a missing name among 20,000"), |b| {
            b.iter(|| {
                i += 1;
                vfs.lookup(&Credentials::root(), ROOT, name(&format!("none-{i:06}"))).unwrap_err()
            });
        });
    }
}

criterion_group!(benches, small_file, sync, missing_name);
criterion_main!(benches);
