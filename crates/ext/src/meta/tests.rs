//! The order of writes under concurrent changes, sweeps, reads and frees; the disk is the judge.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_disk::{
    Buf, Cause, Disk, DiskExt, Kind, Lba, MemDisk, Op, ReadPart, Request, SECTOR, SharedDisk, Tag, Ticket,
};
use moafs_runtime::{Live, Rt};

use super::{Freed, Level, Meta, Needs, WAITING_BYTES_MAX};
use crate::format::Checksums;
use crate::head::{geometry_of, read_superblock};
use crate::health::Health;
use crate::journal::{Journal, Log};
use crate::judge;

mod logged_data;

const BLOCK: usize = 4096;

/// A disk in memory that looks at each write of a metadata block before it executes it.
struct Judged<F> {
    disk: MemDisk,
    judge: F,
}

impl<F: Fn(&MemDisk, u64, &[u8]) + Send + Sync> Disk for Judged<F> {
    moafs_disk::forward_to!(disk: limits, wait, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        for request in &batch {
            if let Op::Write { data, .. } = &request.op {
                (self.judge)(&self.disk, request.at.0 / (BLOCK / SECTOR) as u64, &data[0]);
            }
        }
        self.disk.submit(batch)
    }
}

/// A disk that holds requests back until it is told to go on.
pub(crate) struct Held {
    pub(crate) disk: MemDisk,
    state: Mutex<HeldState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct HeldState {
    pub(crate) holding: bool,
    reads_fail: bool,
    waiting: usize,
}

impl Held {
    pub(crate) fn new(blocks: u64) -> Arc<Held> {
        let disk = MemDisk::new(blocks * (BLOCK / SECTOR) as u64);
        let state = HeldState { holding: true, ..HeldState::default() };
        Arc::new(Held { disk, state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, HeldState> {
        self.state.lock().expect("no panic")
    }

    /// Waits until a request is held back.
    pub(crate) fn await_request(&self) {
        drop(self.changed.wait_while(self.state(), |state| state.waiting == 0));
    }

    pub(crate) fn go_on(&self) {
        self.state().holding = false;
        self.changed.notify_all();
    }
}

impl Disk for Held {
    moafs_disk::forward_to!(disk: limits, wait, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut state = self.state();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.holding).expect("no panic");
        state.waiting -= 1;
        let fails = state.reads_fail && matches!(batch[0].op, Op::Read { .. });
        drop(state);
        let at = if fails { Lba(u64::MAX) } else { batch[0].at };
        self.disk.submit(batch.into_iter().map(|request| Request { at: at.max(request.at), ..request }).collect())
    }
}

fn meta_over(disk: SharedDisk) -> Meta {
    Meta::new(disk, Live::new(), Arc::new(Health::default()), BLOCK, Checksums::Absent, None)
}

fn sweep(meta: &Meta) {
    meta.sweep(meta.highest(), &mut |_| Ok(())).expect("the disk works");
}

/// Runs `work` in `threads` threads while others fight for the lock that orders writes: a thread
/// that gives it up has to wait for it.
fn contended(meta: &Meta, threads: u64, work: impl Fn(u64) + Sync) {
    let (work, left) = (&work, &AtomicU64::new(threads));
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                work(thread);
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for _ in 0..3 {
            scope.spawn(move || {
                while left.load(Ordering::SeqCst) > 0 {
                    meta.is_long(1);
                }
            });
        }
    });
}

fn pointer(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes([bytes[index * 4], bytes[index * 4 + 1], bytes[index * 4 + 2], bytes[index * 4 + 3]])
}

#[test]
fn blocks_in_use_stay_in_memory_and_the_others_leave_in_turn() {
    let meta = meta_over(Arc::new(MemDisk::new((400 * BLOCK / SECTOR) as u64)));
    for other in 100..400 {
        for used in (0..8).chain([other]) {
            meta.get(used, Kind::Inodes).expect("memory can be read");
        }
        meta.shrink(32 * BLOCK);
        assert!(meta.memory() <= 32 * BLOCK);
    }
    assert!((0..8).all(|no| meta.cached(no).is_some()));
    assert!((100..300).all(|no| meta.cached(no).is_none()), "none is overlooked");
}

#[test]
fn blocks_that_may_not_leave_are_not_looked_at_again_and_again() {
    let meta = meta_over(Arc::new(MemDisk::new((400 * BLOCK / SECTOR) as u64)));
    let changed = |no| {
        let block = meta.get(no, Kind::Inodes).expect("memory can be read");
        meta.change(&block, 0..128, Level::NONE, |bytes| bytes.fill(7));
        block
    };
    let blocks: Vec<_> = (0..100).map(changed).collect();
    let were_looked_at = || blocks.iter().filter(|block| !block.touched.swap(true, Ordering::Relaxed)).count();
    meta.shrink(0);
    assert_eq!(were_looked_at(), 100);
    meta.shrink(0);
    assert_eq!(were_looked_at(), 0, "none of them has been written");
    (100..107).for_each(|no| drop(meta.get(no, Kind::Inodes).expect("memory can be read")));
    meta.shrink(0);
    assert_eq!(were_looked_at(), 100, "memory has grown by more than a sixteenth");
    assert_eq!(meta.memory(), 100 * BLOCK, "what was only read has left");
    sweep(&meta);
    drop(blocks);
    meta.shrink(0);
    assert_eq!(meta.memory(), 0, "all of them have been written");
}

#[test]
fn what_a_failed_round_was_to_write_stays_in_memory() {
    let rt: Rt = Live::new();
    let rule = Rule::new(Victims::Writes(EVERYWHERE), When::From(1), Harm::Error);
    let disk = Fault::new(Arc::new(MemDisk::new((64 * BLOCK / SECTOR) as u64)), Arc::clone(&rt), vec![rule]);
    let meta = meta_over(Arc::new(disk));
    for no in 0..8 {
        let block = meta.get(no, Kind::Inodes).expect("memory can be read");
        meta.change(&block, 0..128, Level::NONE, |bytes| bytes.fill(7));
    }
    meta.sweep(meta.highest(), &mut |_| Ok(())).expect_err("no write succeeds");
    meta.shrink(0);
    for no in 0..8 {
        let block = meta.get(no, Kind::Inodes).expect("memory can be read");
        assert_eq!(block.view(|bytes| bytes[0]), 7, "block {no} is read from the disk, which does not have it");
    }
}

#[test]
fn a_caller_does_not_wait_for_another_that_forgets_blocks() {
    let meta = Arc::new(meta_over(Arc::new(MemDisk::new((64 * BLOCK / SECTOR) as u64))));
    let hand = meta.cache.hand.lock();
    let other = {
        let meta = Arc::clone(&meta);
        thread::spawn(move || meta.shrink(0))
    };
    let begin = std::time::Instant::now();
    while !other.is_finished() && begin.elapsed() < std::time::Duration::from_secs(10) {
        thread::yield_now();
    }
    let is_finished = other.is_finished();
    drop(hand);
    other.join().unwrap();
    assert!(is_finished);
}

#[test]
fn no_pointer_reaches_the_disk_before_its_data() {
    const WRITERS: u64 = 4;
    const POINTERS: u64 = 5_000;
    // By pointer: one more than the epoch in which its data completed.
    let written: Arc<Vec<AtomicU64>> = Arc::new((0..=WRITERS * POINTERS).map(|_| AtomicU64::new(0)).collect());
    let early = Arc::new(AtomicU64::new(0));
    let judge = {
        let (written, early) = (Arc::clone(&written), Arc::clone(&early));
        move |disk: &MemDisk, _: u64, bytes: &[u8]| {
            let durable = disk.durable().map_or(0, |epoch| epoch.0 + 1);
            let pointers = (0..BLOCK / 4).map(|index| pointer(bytes, index) as usize).filter(|pointer| *pointer != 0);
            let too_early = pointers.filter(|pointer| written[*pointer].load(Ordering::SeqCst) > durable).count();
            early.fetch_add(too_early as u64, Ordering::SeqCst);
        }
    };
    let disk = Arc::new(Judged { disk: MemDisk::new((64 * BLOCK / SECTOR) as u64), judge });
    let meta = meta_over(disk.clone());
    contended(&meta, WRITERS, |writer| {
        let block = meta.get(1 + writer, Kind::Map).expect("memory can be read");
        for number in 0..POINTERS {
            let pointer = 1 + writer * POINTERS + number;
            let data = Buf::zeroed(SECTOR).freeze();
            let tag = Tag::new(Kind::Data, 12, Cause::Evict);
            let epoch = disk.disk.write(Lba((32 + writer) * 8), data, tag).expect("memory can be written");
            written[pointer as usize].store(epoch.0 + 1, Ordering::SeqCst);
            let at = (number as usize % (BLOCK / SECTOR)) * SECTOR;
            let needs = Needs::from(Level::NONE).and_data(Some(epoch));
            meta.change(&block, at..at + SECTOR, needs, |bytes| {
                bytes[..4].copy_from_slice(&(pointer as u32).to_le_bytes());
            });
            if number % WRITERS == writer {
                sweep(&meta);
            }
        }
    });
    sweep(&meta);
    assert_eq!(early.load(Ordering::SeqCst), 0, "pointers on the disk before their data");
}

#[test]
fn a_freed_block_is_not_free_while_an_image_of_it_is_in_flight() {
    const WRITERS: u64 = 3;
    const ROUNDS: u64 = 10_000;
    let free: Arc<Vec<AtomicBool>> = Arc::new((0..8).map(|_| AtomicBool::new(true)).collect());
    let overwritten = Arc::new(AtomicU64::new(0));
    let judge = {
        let (free, overwritten) = (Arc::clone(&free), Arc::clone(&overwritten));
        move |_: &MemDisk, no: u64, _: &[u8]| {
            thread::yield_now();
            overwritten.fetch_add(free[no as usize].load(Ordering::SeqCst).into(), Ordering::SeqCst);
        }
    };
    let disk = Arc::new(Judged { disk: MemDisk::new((8 * BLOCK / SECTOR) as u64), judge });
    let meta = meta_over(disk);
    let free_all = |freed: Vec<Freed>| {
        for freed in freed {
            let Freed::Meta { block } = freed else { unreachable!("only such are freed here") };
            meta.forget(block);
            free[block as usize].store(true, Ordering::SeqCst);
        }
        Ok(())
    };
    contended(&meta, WRITERS, |writer| {
        let no = 1 + writer;
        for round in 0..ROUNDS {
            free[no as usize].store(false, Ordering::SeqCst);
            meta.fresh(no, Kind::Directory, Buf::zeroed(BLOCK));
            if (round + no).is_multiple_of(3) {
                meta.sweep(meta.highest(), &mut |freed| free_all(freed)).expect("the disk works");
            }
            if !meta.free_after(Level::NONE, Freed::Meta { block: no }) {
                free_all(vec![Freed::Meta { block: no }]).expect("it cannot fail");
            }
            while !free[no as usize].load(Ordering::SeqCst) {
                meta.sweep(meta.highest(), &mut |freed| free_all(freed)).expect("the disk works");
            }
        }
    });
    assert_eq!(overwritten.load(Ordering::SeqCst), 0, "writes to blocks that may have been reused");
}

#[test]
fn a_failed_read_leaves_a_fresh_block_alone() {
    let disk = Held::new(16);
    disk.state().reads_fail = true;
    let meta = meta_over(disk.clone());
    thread::scope(|scope| {
        let reader = scope.spawn(|| meta.get(5, Kind::Map).is_err());
        disk.await_request();
        meta.fresh(5, Kind::Directory, Buf::copy_of(&[7; BLOCK]));
        disk.go_on();
        assert!(reader.join().expect("no panic"), "the read failed");
    });
    let kept = meta.cached(5).expect("the fresh block is still there");
    assert_eq!(kept.view(|bytes| bytes[0]), 7);
    assert_eq!(meta.memory(), BLOCK);
}

#[test]
fn a_version_in_flight_is_pending() {
    let disk = Held::new(16);
    let meta = meta_over(disk.clone());
    let (block, _) = meta.fresh(5, Kind::Inodes, Buf::zeroed(BLOCK));
    let level = meta.change(&block, 0..128, Level::NONE, |bytes| bytes[0] = 1);
    let in_flight = thread::scope(|scope| {
        scope.spawn(|| sweep(&meta));
        disk.await_request();
        let pending = block.pending(0);
        // The same bytes again: on disk no sooner than the version in flight.
        let again = meta.change(&block, 0..128, Level::NONE, |bytes| bytes[0] = 1);
        let in_flight = [level, pending, again].map(|level| meta.is_pending(level));
        disk.go_on();
        in_flight
    });
    assert_eq!(in_flight, [true; 3], "a power cut may still lose it");
    assert!(!meta.is_pending(block.pending(0)));
}

/// Returns a volume that has a journal; `None` without mke2fs.
fn journaled() -> Option<MemDisk> {
    let image = tempfile::NamedTempFile::new().expect("a file can be made");
    image.as_file().set_len(16 << 20).expect("a file can be sparse");
    judge::have("mke2fs").then(|| judge::run("mke2fs", &["-qF", "-t", "ext3", "-b", "4096"], image.path()))?;
    Some(MemDisk::read_from(image.path()).expect("the image was made"))
}

fn journal_of(disk: &SharedDisk) -> Journal {
    let superblock = read_superblock(disk).expect("the volume was made");
    let geo = geometry_of(&superblock, disk).expect("the volume was made");
    Journal::open(disk, &superblock, &geo).expect("the volume was made").expect("it has a journal")
}

/// Returns the metadata over a volume that has a journal.
fn meta_with_log(disk: SharedDisk) -> Meta {
    let log = Log::begin(journal_of(&disk), false, false);
    Meta::new(disk, Live::new(), Arc::new(Health::default()), BLOCK, Checksums::Absent, Some(log))
}

#[test]
fn a_transaction_that_is_being_committed_is_not_durable() {
    let Some(disk) = journaled() else { return };
    let disk = Arc::new(Held { disk, state: Mutex::default(), changed: Condvar::new() });
    let meta = meta_with_log(disk.clone());
    let block = meta.get(3000, Kind::Inodes).expect("memory can be read");
    let level = {
        let _op = meta.enter(1);
        meta.change(&block, 0..128, Level::NONE, |bytes| bytes[0] = 1)
    };
    disk.state().holding = true;
    let (is_clean, highest) = thread::scope(|scope| {
        scope.spawn(|| sweep(&meta));
        disk.await_request();
        let seen = (meta.is_clean(), meta.highest());
        disk.go_on();
        seen
    });
    assert!(!is_clean, "a power cut may still lose it");
    assert_eq!(highest, level, "a sync has to wait for it, though nothing has changed since");
    assert!(meta.is_clean() && !meta.is_pending(level));
}

#[test]
fn a_fresh_block_replaces_what_is_cached_of_its_last_use() {
    let disk = Arc::new(MemDisk::new((16 * BLOCK / SECTOR) as u64));
    let meta = meta_over(disk.clone());
    let before = meta.get(5, Kind::Map).expect("memory can be read");
    meta.change(&before, 0..SECTOR, Level(7), |bytes| bytes.fill(1));
    meta.fresh(5, Kind::Directory, Buf::copy_of(&[2; BLOCK]));
    sweep(&meta);
    let on_disk = disk.read(Lba((5 * BLOCK / SECTOR) as u64), BLOCK, Tag::volume(Kind::Directory)).expect("readable");
    assert_eq!(*on_disk, [2; BLOCK]);
}

/// Returns the first byte of a block on the disk.
fn on_disk(disk: &MemDisk, no: u64) -> u8 {
    disk.read(Lba(no * (BLOCK / SECTOR) as u64), SECTOR, Tag::volume(Kind::Inodes)).expect("memory can be read")[0]
}

/// Sweeps, and fails unless the host has no room for it. Nothing becomes free.
fn finds_no_room(meta: &Meta) {
    let swept = meta.sweep(meta.highest(), &mut |freed: Vec<Freed>| panic!("{freed:?} is free"));
    assert!(swept.expect_err("the host is full").is_host_full());
    assert_eq!(meta.cache.device.health.failed(), None);
    assert!(!meta.is_clean() && meta.is_pending(meta.highest()));
}

#[test]
fn a_round_that_found_no_room_is_written_before_the_next() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let judge = {
        let written = Arc::clone(&written);
        move |_: &MemDisk, no: u64, bytes: &[u8]| written.lock().expect("no panic").push((no, bytes[0]))
    };
    let disk = Arc::new(Judged { disk: MemDisk::new((64 * BLOCK / SECTOR) as u64), judge });
    let fault = Arc::new(Fault::new(disk.clone(), Live::new(), Vec::new()));
    let meta = meta_over(fault.clone());
    let change = |no, needs: Level, value| {
        let block = meta.get(no, Kind::Inodes).expect("memory can be read");
        meta.change(&block, 0..128, needs, |bytes| bytes.fill(value))
    };
    let first = change(3, Level::NONE, 1);
    change(5, first, 2);
    assert!(meta.free_after(first, Freed::Data { start: 40, len: 1 }));
    let at = (3 * BLOCK / SECTOR) as u64;
    fault.set(vec![Rule::new(Victims::Writes(at..at + 1), When::Always, Harm::HostFull)]);
    for value in [3, 4] {
        finds_no_room(&meta);
        meta.shrink(0);
        assert!(change(3, Level::NONE, value) > first, "the level is in flight");
    }
    assert_eq!(*written.lock().expect("no panic"), []);
    fault.set(Vec::new());
    let mut free = Vec::new();
    let mut take = |freed: Vec<Freed>| {
        free.extend(freed);
        Ok(())
    };
    meta.sweep(first, &mut take).expect("the host has room");
    assert_eq!(*written.lock().expect("no panic"), [(3, 1)], "as it was when the round began");
    meta.sweep(meta.highest(), &mut take).expect("the host has room");
    assert_eq!(*written.lock().expect("no panic"), [(3, 1), (3, 4), (5, 2)]);
    assert_eq!(free, [Freed::Data { start: 40, len: 1 }]);
    assert!(meta.is_clean());
}

#[test]
fn changes_behind_a_round_without_room_do_not_grow_without_end() {
    let rule = Rule::new(Victims::Writes(EVERYWHERE), When::Always, Harm::HostFull);
    let blocks = (2 * WAITING_BYTES_MAX / BLOCK) as u64;
    let disk = MemDisk::new(blocks * (BLOCK / SECTOR) as u64);
    let meta = meta_over(Arc::new(Fault::new(Arc::new(disk), Live::new(), vec![rule])));
    let mut changes = (0..blocks).map(|no| {
        let block = meta.unread(no, Kind::Inodes).expect("it is not in memory");
        meta.change_loose(&block, |bytes| bytes[0] = 1);
        meta.is_long(1)
    });
    assert!(!changes.next().expect("there are blocks"));
    finds_no_room(&meta);
    let taken = changes.take_while(|is_long| !is_long).count();
    assert_eq!(taken, WAITING_BYTES_MAX / BLOCK);
}

/// Changes the first bytes of a block in an op.
fn log_change(meta: &Meta, no: u64, value: u8) {
    let block = meta.get(no, Kind::Inodes).expect("memory can be read");
    let _op = meta.enter(1);
    meta.change(&block, 0..128, Level::NONE, |bytes| bytes.fill(value));
}

#[test]
fn a_transaction_that_found_no_room_is_written_again_before_the_next() {
    // The blocks of the log are refused, or the commit block alone.
    for nth in [1, 2] {
        let Some(disk) = journaled() else { return };
        let disk = Arc::new(disk);
        let fault = Arc::new(Fault::new(disk.clone(), Live::new(), Vec::new()));
        let (meta, shared): (_, SharedDisk) = (meta_with_log(fault.clone()), disk.clone());
        let logged = || {
            let replay = journal_of(&shared).scan().expect("the log is right");
            (replay.transactions, replay.blocks.keys().map(|no| no.0).collect::<Vec<_>>())
        };
        log_change(&meta, 3000, 1);
        sweep(&meta);
        log_change(&meta, 3001, 2);
        fault.set(vec![Rule::new(Victims::Writes(EVERYWHERE), When::From(nth), Harm::HostFull)]);
        finds_no_room(&meta);
        log_change(&meta, 3001, 3);
        log_change(&meta, 3002, 3);
        finds_no_room(&meta);
        assert!(meta.settle_log().expect_err("the host is full").is_host_full());
        assert_eq!(logged(), (1, vec![3000]));
        assert_eq!([3000, 3001, 3002].map(|no| on_disk(&disk, no)), [0; 3]);
        fault.set(Vec::new());
        sweep(&meta);
        assert_eq!(logged(), (3, vec![3000, 3001, 3002]));
        meta.settle_log().expect("the host has room");
        assert_eq!([3000, 3001, 3002].map(|no| on_disk(&disk, no)), [1, 3, 3]);
        assert!(meta.is_clean() && logged().0 == 0);
    }
}

#[test]
fn a_block_that_is_freed_behind_a_transaction_without_room_is_revoked() {
    let Some(disk) = journaled() else { return };
    let disk = Arc::new(disk);
    let fault = Arc::new(Fault::new(disk.clone(), Live::new(), Vec::new()));
    let (meta, shared): (_, SharedDisk) = (meta_with_log(fault.clone()), disk);
    log_change(&meta, 3000, 1);
    sweep(&meta);
    log_change(&meta, 3000, 2);
    let log = journal_of(&shared).runs()[0];
    let sectors = [log.start.0 + 1, log.start.0 + u64::from(log.len)].map(|no| no * (BLOCK / SECTOR) as u64);
    fault.set(vec![Rule::new(Victims::Writes(sectors[0]..sectors[1]), When::Always, Harm::HostFull)]);
    finds_no_room(&meta);
    meta.settle_log().expect("there is room for what was committed");
    {
        let _op = meta.enter(1);
        assert!(meta.free_after(Level::NONE, Freed::Meta { block: 3000 }));
    }
    finds_no_room(&meta);
    fault.set(Vec::new());
    sweep(&meta);
    let replay = journal_of(&shared).scan().expect("the log is right");
    assert_eq!(replay.transactions, 2);
    assert!(replay.blocks.is_empty(), "a replay would overwrite what the block holds next: {replay:?}");
}
