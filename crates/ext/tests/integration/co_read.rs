//! Co-reading on an ext volume: the requests to the device, and volumes with wrong metadata.

use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::trace::{Trace, TraceVerb};
use moafs_disk::{Kind, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::place::Policy;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp, Virtual};
use moafs_vfs::api::{AtimePolicy, CacheRole, NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const BLOCK: usize = 4096;
/// The bytes that a co-write puts side by side.
const TRANSFER: usize = 128 << 10;
const ROOT: Ino = Ino(2);

/// A file by directory and number, and its length in bytes.
#[derive(Clone, Copy)]
struct File {
    dir: usize,
    number: usize,
    len: usize,
}

impl File {
    fn bytes(self) -> Vec<u8> {
        let word = (self.dir * 1000 + self.number) as u32;
        word.to_le_bytes().into_iter().cycle().take(self.len).collect()
    }
}

/// A mounted volume whose device is watched.
struct Mounted {
    vfs: Vfs<Ext>,
    trace: Arc<Trace>,
}

fn mount(mem: &Arc<MemDisk>, options: Options, rt: Rt) -> Mounted {
    mount_with(mem, options, Policy::default(), rt)
}

fn mount_with(mem: &Arc<MemDisk>, options: Options, place: Policy, rt: Rt) -> Mounted {
    let disk: SharedDisk = Arc::<MemDisk>::clone(mem);
    let trace = Arc::new(Trace::new(disk, Arc::clone(&rt)));
    let disk: SharedDisk = Arc::<Trace>::clone(&trace);
    let ext = Ext::open(
        Arc::clone(&disk),
        Arc::clone(&rt),
        OpenOptions { place, transfer_bytes_max: TRANSFER, ..OpenOptions::default() },
    )
    .unwrap();
    let options = Options { syncer: false, atime: AtimePolicy::Never, ..options };
    Mounted { vfs: Vfs::new(ext, disk, rt, options), trace }
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).unwrap()
}

fn new_file(kind: FileKind) -> NewFile<'static> {
    NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None }
}

/// Returns a closed volume with these files, all written before any of them leaves the cache.
fn written(files: &[File], volume_bytes: u64, place: Policy) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(volume_bytes / 512));
    let options = MkfsOptions {
        block_size: Some(BLOCK as u32),
        ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
    };
    mkfs(&*mem, &options).unwrap();
    let v = mount_with(&mem, Options::default(), place, Live::new());
    let who = Credentials::root();
    for file in files {
        let dir = format!("d{}", file.dir);
        let dir = match v.vfs.lookup(&who, ROOT, name(&dir)) {
            Ok(stat) => stat.ino,
            Err(_) => v.vfs.create(&who, ROOT, name(&dir), &new_file(FileKind::Directory)).unwrap().ino,
        };
        let ino =
            v.vfs.create(&who, dir, name(&format!("f{}", file.number)), &new_file(FileKind::Regular)).unwrap().ino;
        v.vfs.write(&who, ino, 0, &file.bytes(), false).unwrap();
        v.vfs.forget(ino, 1);
        v.vfs.forget(dir, 1);
    }
    v.vfs.close().unwrap();
    mem
}

fn tree(dirs: usize, numbers: usize, mut len: impl FnMut() -> usize) -> Vec<File> {
    let of_dir = |dir| (0..numbers).map(move |number| (dir, number));
    (0..dirs).flat_map(of_dir).map(|(dir, number)| File { dir, number, len: len() }).collect()
}

/// Returns the requests and bytes of file data that reading these files from a cold volume costs, on a device that
/// takes no time.
fn cost(mem: &Arc<MemDisk>, files: &[File], options: Options) -> (u64, u64) {
    let virt = Virtual::new(None);
    virt.run(|| cost_on(mem, files, options.clone(), virt.rt()))
}

fn cost_on(mem: &Arc<MemDisk>, files: &[File], options: Options, rt: Rt) -> (u64, u64) {
    let v = mount(mem, options, rt);
    for file in files {
        let ino = find(&v, *file);
        let mut bytes = vec![0; file.len + 1];
        assert_eq!(v.vfs.read(ino, 0, &mut bytes).unwrap(), file.len);
        assert_eq!(bytes[..file.len], file.bytes(), "d{}/f{}", file.dir, file.number);
        v.vfs.forget(ino, 1);
    }
    let c = v.trace.counters();
    v.vfs.close().unwrap();
    (c.reads_of(Kind::Data), c.bytes(|c| c.verb == TraceVerb::Read && c.kind == Kind::Data))
}

fn find(v: &Mounted, file: File) -> Ino {
    let dir = v.vfs.lookup(&Credentials::root(), ROOT, name(&format!("d{}", file.dir))).unwrap().ino;
    let ino = v.vfs.lookup(&Credentials::root(), dir, name(&format!("f{}", file.number))).unwrap().ino;
    v.vfs.forget(dir, 1);
    ino
}

fn with(co_read_bytes: usize) -> Options {
    Options { co_read_bytes, ..Options::default() }
}

#[test]
fn reading_directories_in_order_costs_a_twentieth_of_the_requests() {
    let files = tree(20, 100, || 3000);
    for place in [Policy::Ffs, Policy::Cowrite] {
        let mem = written(&files, 256 << 20, place);
        let alone = cost(&mem, &files, with(0));
        assert_eq!(alone, (2000, 2000 * BLOCK as u64));
        let together = cost(&mem, &files, with(TRANSFER));
        println!("20 directories of 100 files of one block, {place}: {alone:?} alone, {together:?} together");
        assert!(together.0 <= 100, "{place}: {together:?}");
        assert!(together.1 <= alone.1 * 11 / 10, "{place}: {together:?}");
        let behind = cost(&mem, &files, Options { role: CacheRole::Behind, ..with(TRANSFER) });
        assert_eq!(behind, together);
    }
}

#[test]
fn files_of_mixed_sizes_come_together_too() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let files = tree(10, 100, || rng.random_range(1..=10 * BLOCK));
    for place in [Policy::Ffs, Policy::Cowrite] {
        let mem = written(&files, 256 << 20, place);
        let alone = cost(&mem, &files, with(0));
        let together = cost(&mem, &files, with(TRANSFER));
        println!("10 directories of 100 files of up to 10 blocks, {place}: {alone:?} alone, {together:?} together");
        assert_eq!(alone.0, 1000);
        assert!(together.0 <= 350, "{place}: {together:?}");
        assert!(together.1 <= alone.1 * 11 / 10, "{place}: {together:?}");
    }
}

#[test]
fn reading_files_at_random_costs_what_it_did() {
    let files = tree(20, 100, || 3000);
    for place in [Policy::Ffs, Policy::Cowrite] {
        let mem = written(&files, 256 << 20, place);
        for seed in 0..8 {
            let mut files = files.clone();
            files.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
            let cost = cost(&mem, &files[..1000], with(TRANSFER));
            assert_eq!(cost, (1000, 1000 * BLOCK as u64), "{place}, seed {seed}");
        }
    }
}

#[test]
fn a_small_set_read_at_random_through_a_small_cache_costs_no_more() {
    let files = tree(5, 100, || 3000);
    let mem = written(&files, 256 << 20, Policy::Cowrite);
    for seed in 0..8 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let reads: Vec<File> = (0..4000).map(|_| files[rng.random_range(0..files.len())]).collect();
        let small = |co_read_bytes| Options { cache_bytes: 1 << 20, ..with(co_read_bytes) };
        let (alone, together) = (cost(&mem, &reads, small(0)), cost(&mem, &reads, small(TRANSFER)));
        println!("4000 random reads of 500 files, seed {seed}: {alone:?} alone, {together:?} together");
        assert!(together.0 <= alone.0 * 101 / 100, "seed {seed}: {alone:?}, {together:?}");
        assert!(together.1 <= alone.1 * 105 / 100, "seed {seed}: {alone:?}, {together:?}");
    }
}

/// Returns the byte on a volume of one group at which the slot of an inode begins.
fn slot(mem: &MemDisk, ino: Ino) -> u64 {
    let mut table = [0; 4];
    // bg_inode_table of the first descriptor, in the block behind the superblock's.
    mem.peek(BLOCK as u64 + 8, &mut table);
    u64::from(u32::from_le_bytes(table)) * BLOCK as u64 + (ino.0 - 1) * 256
}

#[test]
fn damage_beside_a_file_is_found_by_who_asks_for_it() {
    let files = tree(1, 40, || 3000);
    let mem = written(&files, 64 << 20, Policy::Ffs);
    let v = mount(&mem, with(0), Live::new());
    let inos: Vec<Ino> = files.iter().map(|file| find(&v, *file)).collect();
    v.vfs.close().unwrap();
    // A size beyond every file, a pointer to the inode table, the next file's block, an unknown type, no name.
    let damages: [(usize, u64, &[u8]); 5] = [
        (10, 0x6C, &[0xFF; 4]),
        (12, 0x28, &3u32.to_le_bytes()),
        (14, 0x28, &{
            let mut next = [0; 4];
            mem.peek(slot(&mem, inos[15]) + 0x28, &mut next);
            next
        }),
        (16, 0x00, &[0xFF, 0xFF]),
        (18, 0x1A, &[0, 0]),
    ];
    for (file, at, bytes) in damages {
        mem.poke(slot(&mem, inos[file]) + at, bytes);
    }
    let v = mount(&mem, with(TRANSFER), Live::new());
    for (i, file) in files.iter().enumerate().filter(|(i, _)| !damages.iter().any(|(damaged, ..)| damaged == i)) {
        let mut bytes = vec![0; BLOCK];
        assert_eq!(v.vfs.read(inos[i], 0, &mut bytes).unwrap(), file.len);
        assert_eq!(bytes[..file.len], file.bytes(), "file {i}");
    }
    assert!(v.vfs.counters().co_read_blocks > 15, "{:?}", v.vfs.counters());
    assert_eq!(v.vfs.failed(), None);
    assert!(v.vfs.stat(inos[10]).is_err());
    assert!(v.vfs.failed().is_some());
}
