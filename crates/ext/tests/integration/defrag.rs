//! Defragmentation on ext volumes: the files it moves, the requests that this costs and saves, and
//! the files it leaves alone.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::trace::{Counters, Trace, TraceVerb};
use moafs_disk::{Cause, Kind, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::place::Policy;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::defrag::{DefragOptions, DefragReport, StopReason};
use moafs_vfs::types::{Attr, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const BLOCK: usize = 4096;
/// The maximum transfer of Lee, Ahn, Oh (2008): 128 KiB.
const TRANSFER_BLOCKS: u64 = 32;
const ROOT: Ino = Ino(2);

/// A mounted volume whose device is watched.
struct Mounted {
    vfs: Vfs<Ext>,
    trace: Arc<Trace>,
    mem: Arc<MemDisk>,
}

fn make(mebibytes: u64) -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::new(mebibytes << 11));
    let options = MkfsOptions {
        block_size: Some(BLOCK as u32),
        ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
    };
    mkfs(&*mem, &options).unwrap();
    mem
}

fn mount_as(mem: &Arc<MemDisk>, place: Policy, read_only: bool) -> Mounted {
    mount_with(mem, place, Options { read_only, ..Options::default() })
}

fn mount_with(mem: &Arc<MemDisk>, place: Policy, options: Options) -> Mounted {
    let read_only = options.read_only;
    let rt: Rt = Live::new();
    let disk: SharedDisk = Arc::<MemDisk>::clone(mem);
    let trace = Arc::new(Trace::new(disk, Arc::clone(&rt)));
    let disk: SharedDisk = Arc::<Trace>::clone(&trace);
    let transfer_bytes_max = TRANSFER_BLOCKS as usize * BLOCK;
    let open = OpenOptions { place, transfer_bytes_max, read_only, ..OpenOptions::default() };
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), open).unwrap();
    let options = Options { syncer: false, transfer_bytes_max, ..options };
    Mounted { vfs: Vfs::new(ext, disk, rt, options), trace, mem: Arc::clone(mem) }
}

fn mount(mem: &Arc<MemDisk>) -> Mounted {
    mount_as(mem, Policy::Cowrite, false)
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Returns contents that only the file of this seed has.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    (0..len).map(|_| rng.random()).collect()
}

impl Mounted {
    fn make(&self, dir: Ino, text: &str, kind: FileKind) -> Ino {
        let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
        self.vfs.create(&Credentials::root(), dir, name(text), &new).unwrap().ino
    }

    fn find(&self, dir: Ino, text: &str) -> Ino {
        let ino = self.vfs.lookup(&Credentials::root(), dir, name(text)).unwrap().ino;
        self.vfs.forget(ino, 1);
        ino
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        self.vfs.write(&Credentials::root(), ino, offset, data, false).unwrap();
    }

    fn contents(&self, ino: Ino) -> Vec<u8> {
        let mut data = vec![0; self.vfs.stat(ino).unwrap().attr.size as usize];
        assert_eq!(self.vfs.read(ino, 0, &mut data).unwrap(), data.len());
        data
    }

    /// Makes a directory of twice `files` files, each of `blocks` blocks, and removes every second
    /// of them. Returns the directory.
    fn age(&self, files: u64, blocks: usize) -> Ino {
        let top = self.make(ROOT, "top", FileKind::Directory);
        let dir = self.make(top, "kept", FileKind::Directory);
        let gone = |number: u64| format!("gone-{number}");
        for number in 0..files {
            for text in [number.to_string(), gone(number)] {
                let ino = self.make(dir, &text, FileKind::Regular);
                self.write(ino, 0, &bytes(number, blocks * BLOCK - 100));
                self.vfs.fsync(ino, false).unwrap();
                self.vfs.forget(ino, 1);
            }
        }
        for number in 0..files {
            self.vfs.unlink(&Credentials::root(), dir, name(&gone(number))).unwrap();
        }
        self.vfs.run_background_step();
        self.vfs.sync().unwrap();
        dir
    }

    fn check_aged(&self, dir: Ino, files: u64, blocks: usize) {
        for number in 0..files {
            let ino = self.find(dir, &number.to_string());
            assert_eq!(self.contents(ino), bytes(number, blocks * BLOCK - 100), "file {number}");
        }
    }

    fn heal(&self, ino: Ino, options: DefragOptions) -> DefragReport {
        self.vfs.defragment(ino, &options, &mut |_| true).unwrap()
    }

    /// Runs `work`; returns its result and the counters of its requests to the device.
    fn asked<T>(&self, work: impl FnOnce() -> T) -> (T, Counters) {
        let before = self.trace.counters();
        let done = work();
        (done, self.trace.counters().since(&before))
    }

    /// Unmounts; the reference checker must report nothing.
    fn close(self) {
        let Mounted { vfs, mem, .. } = self;
        vfs.close().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        mem.write_to(image.path()).unwrap();
        match Command::new("e2fsck").arg("-fn").arg(image.path()).output() {
            Ok(said) => assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout)),
            Err(_) => eprintln!("SKIPPED: e2fsck is not installed"),
        }
    }
}

fn data(asked: &Counters, verb: TraceVerb) -> (u64, u64) {
    let which = |count: &moafs_disk::probe::trace::Count| count.verb == verb && count.kind == Kind::Data;
    (asked.requests(which), asked.bytes(which) / BLOCK as u64)
}

/// Returns the data requests that reading the aged files one after another costs on a volume that
/// was just mounted.
fn cold_reads(mem: &Arc<MemDisk>, dir: Ino, files: u64, blocks: usize) -> u64 {
    let v = mount(mem);
    let ((), asked) = v.asked(|| v.check_aged(dir, files, blocks));
    v.close();
    data(&asked, TraceVerb::Read).0
}

#[test]
fn an_aged_directory_is_read_with_as_few_requests_as_a_new_one() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(64, 1);
    v.close();
    let reads_before = cold_reads(&mem, dir, 64, 1);
    let v = mount(&mem);
    let (healed, asked) = v.asked(|| v.heal(dir, DefragOptions::default()));
    println!("{healed:?}");
    assert_eq!((healed.ending, healed.directories, healed.files), (StopReason::Done, 1, 64));
    assert_eq!((healed.before.requests, healed.after.requests), (64, 2));
    assert_eq!((healed.files_moved, healed.bytes_moved), (64, 64 * BLOCK as u64));
    assert_eq!(data(&asked, TraceVerb::Read), (64, 64));
    assert_eq!(data(&asked, TraceVerb::Write), (2, 64));
    assert_eq!(asked.requests(|c| c.verb == TraceVerb::Write && c.kind == Kind::Data && c.cause == Cause::Move), 2);
    let (again, asked) = v.asked(|| v.heal(dir, DefragOptions::default()));
    assert_eq!((again.before, again.after, again.bytes_moved), (healed.after, healed.after, 0));
    assert_eq!(asked.requests(|_| true), 0, "nothing is gained, nothing is done");
    v.close();
    let reads_after = cold_reads(&mem, dir, 64, 1);
    println!("read file by file, with co-reading: {reads_before} requests before, {reads_after} after");
    assert!(2 * reads_after <= reads_before, "{reads_before} before, {reads_after} after");
}

#[test]
fn what_was_moved_is_durable_and_its_old_place_is_free() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(64, 3);
    let free = v.vfs.stat_fs().free;
    assert!(v.heal(dir, DefragOptions::default()).bytes_moved > 0);
    assert_eq!(v.vfs.stat_fs().free, free);
    // The power fails.
    let cut = Arc::new(mem.snapshot());
    drop(v);
    let v = mount(&cut);
    v.check_aged(dir, 64, 3);
    assert_eq!(v.heal(dir, DefragOptions::default()).bytes_moved, 0);
}

#[test]
fn a_dry_run_tells_what_the_real_one_does_and_asks_for_no_data() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(60, 2);
    v.close();
    let dry_run = DefragOptions { dry_run: true, ..DefragOptions::default() };
    let v = mount_as(&mem, Policy::Cowrite, true);
    let (seen, asked) = v.asked(|| v.heal(dir, dry_run));
    assert_eq!((data(&asked, TraceVerb::Read), data(&asked, TraceVerb::Write)), ((0, 0), (0, 0)));
    assert!(v.vfs.defragment(dir, &DefragOptions::default(), &mut |_| true).is_err(), "the volume is read-only");
    v.vfs.close().unwrap();
    let v = mount(&mem);
    let free = v.vfs.stat_fs().free;
    assert_eq!(v.heal(dir, dry_run), seen);
    assert_eq!(v.vfs.stat_fs().free, free);
    let done = v.heal(dir, DefragOptions::default());
    assert_eq!(done, seen);
    assert_eq!((done.before.requests, done.after.requests), (60, 4));
    v.close();
}

#[test]
fn attributes_and_times_stay() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(40, 1);
    v.close();
    let attrs = |v: &Mounted| -> Vec<Attr> {
        let of = |ino| v.vfs.stat(ino).unwrap().attr;
        (0..40).map(|number| of(v.find(dir, &number.to_string()))).chain([of(dir)]).collect()
    };
    let v = mount(&mem);
    let before = attrs(&v);
    assert!(v.heal(ROOT, DefragOptions::default()).bytes_moved > 0);
    assert_eq!(attrs(&v), before);
    v.close();
    let v = mount(&mem);
    assert_eq!(attrs(&v), before);
    v.close();
}

#[test]
fn a_small_cache_heals_part_by_part() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(200, 3);
    v.close();
    let v = mount_with(&mem, Policy::Cowrite, Options { cache_bytes: 1 << 20, ..Options::default() });
    let healed = v.heal(dir, DefragOptions::default());
    println!("{healed:?}");
    // An eighth of the cache holds eleven files of 33 blocks, which then take two requests. Two
    // files are left over: too few to gain.
    assert_eq!((healed.files_moved, healed.files_skipped, healed.after.requests), (198, 0, 18 * 2 + 2));
    v.close();
    let v = mount(&mem);
    let again = v.heal(dir, DefragOptions { dry_run: true, ..DefragOptions::default() });
    assert!(again.before.requests <= healed.after.requests, "the parts lie in order");
    v.check_aged(dir, 200, 3);
    v.close();
}

#[test]
fn large_files_move_window_by_window_and_well_placed_ones_are_not_read() {
    for place in [Policy::Ffs, Policy::Cowrite] {
        let mem = make(64);
        let v = mount_as(&mem, place, false);
        let dir = v.make(ROOT, "d", FileKind::Directory);
        let (one, two) = (v.make(dir, "one", FileKind::Regular), v.make(dir, "two", FileKind::Regular));
        let contents = bytes(1, 200 * BLOCK);
        for at in 0..200 {
            for ino in [one, two] {
                v.write(ino, (at * BLOCK) as u64, &contents[at * BLOCK..(at + 1) * BLOCK]);
                v.vfs.fsync(ino, false).unwrap();
            }
        }
        v.close();
        let v = mount_as(&mem, place, false);
        let (healed, asked) = v.asked(|| v.heal(one, DefragOptions::default()));
        println!("{place}: {healed:?}");
        assert!(healed.before.requests > 100, "{place}: {healed:?}");
        assert!(healed.after.requests <= 200u64.div_ceil(TRANSFER_BLOCKS) + 1, "{place}: {healed:?}");
        assert_eq!((healed.files, healed.files_moved), (1, 1));
        assert_eq!(data(&asked, TraceVerb::Write), (200u64.div_ceil(TRANSFER_BLOCKS), 200));
        let (again, asked) = v.asked(|| v.heal(one, DefragOptions::default()));
        assert_eq!((again.bytes_moved, data(&asked, TraceVerb::Read)), (0, (0, 0)));
        assert_eq!(v.contents(one), contents);
        v.close();
    }
}

#[test]
fn ffs_heals_file_by_file() {
    let mem = make(64);
    let v = mount_as(&mem, Policy::Ffs, false);
    let dir = v.make(ROOT, "d", FileKind::Directory);
    let files: Vec<Ino> = (0..20).map(|number| v.make(dir, &number.to_string(), FileKind::Regular)).collect();
    for at in 0..4 {
        for (seed, ino) in files.iter().enumerate() {
            v.write(*ino, (at * BLOCK) as u64, &bytes(seed as u64, 4 * BLOCK)[at * BLOCK..(at + 1) * BLOCK]);
            v.vfs.fsync(*ino, false).unwrap();
        }
    }
    let healed = v.heal(dir, DefragOptions::default());
    assert_eq!((healed.before.pieces, healed.after.pieces), (80, 20));
    assert_eq!(v.heal(dir, DefragOptions::default()).bytes_moved, 0);
    for (seed, ino) in files.iter().enumerate() {
        assert_eq!(v.contents(*ino), bytes(seed as u64, 4 * BLOCK));
    }
    v.close();
}

#[test]
fn it_stops_when_told_and_after_so_many_bytes() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(128, 1);
    let limit = |requests: u64| DefragOptions {
        max_bytes: requests * TRANSFER_BLOCKS * BLOCK as u64,
        ..DefragOptions::default()
    };
    let some = v.heal(dir, limit(2));
    assert_eq!((some.ending, some.bytes_moved), (StopReason::MaxBytes, limit(2).max_bytes));
    assert_eq!(some.after.requests, 64 + 2);
    let none = v.heal(dir, DefragOptions { max_bytes: 1, ..DefragOptions::default() });
    assert_eq!((none.ending, none.bytes_moved, none.after), (StopReason::MaxBytes, 0, none.before));
    let top = v.find(ROOT, "top");
    let stopped = v.vfs.defragment(top, &DefragOptions::default(), &mut |_| false).unwrap();
    assert_eq!((stopped.ending, stopped.directories), (StopReason::Stopped, 1));
    assert_eq!(stopped.bytes_moved, 0, "it was stopped before it came to the directory");
    v.check_aged(dir, 128, 1);
    assert_eq!(v.heal(top, DefragOptions::default()).ending, StopReason::Done);
    v.check_aged(dir, 128, 1);
    v.close();
}

#[test]
fn holes_and_files_of_several_names_are_left_in_peace() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(40, 1);
    let sparse = v.make(dir, "sparse", FileKind::Regular);
    for at in [0, 4, 9] {
        v.write(sparse, at * BLOCK as u64, &bytes(at, BLOCK));
        v.vfs.fsync(sparse, false).unwrap();
    }
    let sectors = v.vfs.stat(sparse).unwrap().sectors;
    let other = v.make(ROOT, "other", FileKind::Directory);
    let both = v.find(dir, "7");
    v.vfs.link(&Credentials::root(), both, other, name("linked")).unwrap();
    assert!(v.heal(ROOT, DefragOptions::default()).bytes_moved > 0);
    assert_eq!(v.vfs.stat(sparse).unwrap().sectors, sectors, "holes stay holes");
    assert_eq!(v.heal(ROOT, DefragOptions::default()).bytes_moved, 0, "nothing wanders to and fro");
    v.check_aged(dir, 40, 1);
    v.close();
}

/// Ages a small volume and fills it until `free_percent` of it is free, all but the floor of which
/// is promised to data that wait. Then defragments it, and writes the waiting data.
fn heal_nearly_full(free_percent: u64) -> DefragReport {
    let mem = make(16);
    let v = mount(&mem);
    let dir = v.age(200, 2);
    let chunk = bytes(9, 16 * BLOCK);
    let blocks = v.vfs.stat_fs().blocks;
    let fill = |text: &str, piece: &[u8], until: u64| {
        let ino = v.make(ROOT, text, FileKind::Regular);
        let mut at = 0;
        while v.vfs.stat_fs().free > until {
            v.write(ino, at, piece);
            at += piece.len() as u64;
        }
        (ino, at)
    };
    fill("filler", &chunk, blocks * free_percent / 100);
    v.vfs.sync().unwrap();
    let (waiting, len) = fill("waiting", &chunk[..BLOCK], blocks * free_percent / 200);
    let healed = v.heal(dir, DefragOptions::default());
    println!("{free_percent} percent free: {healed:?}");
    assert!(healed.after.requests <= healed.before.requests);
    // Promised blocks could be written.
    v.vfs.sync().unwrap();
    assert_eq!(v.contents(waiting).len() as u64, len);
    v.check_aged(dir, 200, 2);
    v.close();
    healed
}

#[test]
fn promised_space_is_not_touched_and_some_stays_free() {
    assert!(heal_nearly_full(60).bytes_moved > 0);
    heal_nearly_full(30);
    heal_nearly_full(15);
    assert_eq!(heal_nearly_full(8).bytes_moved, 0, "what is free is promised, or has to stay free");
}

#[test]
fn files_may_be_written_cut_and_removed_meanwhile() {
    let mem = make(64);
    let v = mount(&mem);
    let dir = v.age(300, 2);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let work = |seed: u64| {
            let (v, stop) = (&v, &stop);
            move || {
                let mut rng = Pcg64Mcg::seed_from_u64(seed);
                let mut mine: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Each writer has files of its own.
                    let number = rng.random_range(0..75) * 4 + seed;
                    let before = mine.get(&number).cloned().unwrap_or_else(|| Some(bytes(number, 2 * BLOCK - 100)));
                    let Some(mut data) = before else { continue };
                    let ino = v.find(dir, &number.to_string());
                    match rng.random_range(0..5) {
                        0 => {
                            data = bytes(round, rng.random_range(1..5 * BLOCK));
                            let set = moafs_vfs::api::SetAttr { size: Some(0), ..Default::default() };
                            v.vfs.set_attr(&Credentials::root(), ino, &set).unwrap();
                            v.write(ino, 0, &data);
                        }
                        1 => {
                            data.truncate(data.len() / 2);
                            let size = Some(data.len() as u64);
                            let set = moafs_vfs::api::SetAttr { size, ..Default::default() };
                            v.vfs.set_attr(&Credentials::root(), ino, &set).unwrap();
                        }
                        2 => {
                            let more = bytes(round, BLOCK);
                            v.write(ino, data.len() as u64, &more);
                            data.extend(more);
                            data.truncate(20 * BLOCK);
                            let set = moafs_vfs::api::SetAttr { size: Some(data.len() as u64), ..Default::default() };
                            v.vfs.set_attr(&Credentials::root(), ino, &set).unwrap();
                        }
                        3 => v.vfs.fsync(ino, false).unwrap(),
                        _ if rng.random_ratio(1, 8) => {
                            v.vfs.unlink(&Credentials::root(), dir, name(&number.to_string())).unwrap();
                            mine.insert(number, None);
                            continue;
                        }
                        _ => assert!(v.contents(ino) == data, "file {number} reads as written"),
                    }
                    mine.insert(number, Some(data));
                }
                mine
            }
        };
        let writers: Vec<_> = (0..4).map(|seed| scope.spawn(work(seed))).collect();
        for round in 0..60 {
            v.heal(if round % 2 == 0 { dir } else { ROOT }, DefragOptions::default());
            if round % 10 == 0 {
                v.vfs.shrink(256 << 10);
                v.vfs.run_background_step();
            }
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<BTreeMap<_, _>>()
    });
    println!("{} files were written to; {} blocks moved", written.len(), v.vfs.counters().gathered_blocks);
    assert!(v.vfs.counters().gathered_blocks > 0);
    let check = |v: &Mounted| {
        for number in 0..300 {
            match written.get(&number) {
                Some(None) => {}
                Some(Some(data)) => assert!(v.contents(v.find(dir, &number.to_string())) == *data, "file {number}"),
                None => assert!(
                    v.contents(v.find(dir, &number.to_string())) == bytes(number, 2 * BLOCK - 100),
                    "file {number}"
                ),
            }
        }
    };
    check(&v);
    v.close();
    let v = mount(&mem);
    check(&v);
    v.close();
}
