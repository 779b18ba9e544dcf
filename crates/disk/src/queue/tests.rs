//! The elevator over a memory disk that records the requests it receives.

use std::sync::Arc;
use std::time::Duration;

use moafs_runtime::{Live, Runtime, Virtual};
use proptest::prelude::*;

use super::*;
use crate::Op;
use crate::probe::crash::CrashRecorder;
use crate::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use crate::{Buf, DiskExt, Kind, Lba, MemDisk, Page, SECTOR, Tag};

const TAG: Tag = Tag::volume(Kind::Data);
const SECTORS: u64 = 512;

/// A memory disk that records address and length of every request, fails those that touch a bad
/// sector, and can be held busy: it then completes nothing until released.
struct Watched {
    disk: MemDisk,
    seen: Mutex<Vec<(u64, u64)>>,
    bad: Option<u64>,
}

impl Disk for Watched {
    crate::forward_to!(disk: limits, wait, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut seen = self.seen.lock();
        let mut hurt = |request: Request| {
            let (at, sectors) = (request.at.0, request.bytes() / SECTOR as u64);
            seen.push((at, sectors));
            let broken = self.bad.is_some_and(|bad| (at..at + sectors).contains(&bad));
            // A request beyond the end fails like one on a broken sector, and loses its buffers.
            if broken { Request { at: Lba(u64::MAX), ..request } } else { request }
        };
        self.disk.submit(batch.into_iter().map(&mut hurt).collect())
    }
}

fn watched(bad: Option<u64>, options: QueueOptions) -> (Arc<Watched>, Elevator) {
    let inner = Arc::new(Watched { disk: MemDisk::new(SECTORS), seen: Mutex::default(), bad });
    let elevator = Elevator::new(Arc::clone(&inner) as SharedDisk, Live::new(), options);
    (inner, elevator)
}

fn page(byte: u8, sectors: usize) -> Page {
    Buf::copy_of(&vec![byte; sectors * SECTOR]).freeze()
}

fn write(at: u64, byte: u8, sectors: usize) -> Request {
    Request { op: Op::Write { data: vec![page(byte, sectors)], fua: false }, at: Lba(at), tag: TAG }
}

fn read(at: u64, sectors: usize) -> Request {
    Request { op: Op::Read { into: vec![Buf::zeroed(sectors * SECTOR)] }, at: Lba(at), tag: TAG }
}

fn small_transfers(sectors: usize) -> QueueOptions {
    QueueOptions { transfer_bytes_max: sectors * SECTOR, ..QueueOptions::default() }
}

#[test]
fn neighbours_merge_up_to_the_maximum_transfer() {
    let (inner, elevator) = watched(None, small_transfers(8));
    let batch = [14, 0, 2, 4, 6, 8, 10, 30].map(|at| write(at, at as u8 + 1, 2)).into();
    assert!(elevator.run(batch).iter().all(|d| d.result.is_ok()));
    assert_eq!(*inner.seen.lock(), [(0, 8), (8, 4), (14, 2), (30, 2)]);
    let bufs = elevator.run(vec![read(2, 2), read(0, 2), read(4, 2)]);
    let firsts: Vec<u8> = bufs.iter().map(|d| d.result.as_ref().unwrap()[0][0]).collect();
    assert_eq!(firsts, [3, 1, 5]);
    assert_eq!(inner.seen.lock().last(), Some(&(0, 6)));
}

#[test]
fn reads_and_writes_do_not_merge() {
    let (inner, elevator) = watched(None, QueueOptions::default());
    elevator.run(vec![write(0, 1, 2), read(2, 2), write(4, 1, 2)]);
    assert_eq!(*inner.seen.lock(), [(0, 2), (2, 2), (4, 2)]);
}

#[test]
fn the_sweep_goes_on_from_where_it_ended() {
    let (inner, elevator) = watched(None, QueueOptions::default());
    elevator.run(vec![write(100, 1, 2)]);
    elevator.run(vec![write(50, 1, 2), write(200, 1, 2), write(102, 1, 2)]);
    assert_eq!(*inner.seen.lock(), [(100, 2), (102, 2), (200, 2), (50, 2)]);
}

#[test]
fn large_requests_are_split_and_come_back_whole() {
    let (inner, elevator) = watched(None, small_transfers(4));
    let bytes: Vec<u8> = (0..10 * SECTOR).map(|i| (i / 7) as u8).collect();
    elevator.write(Lba(5), Buf::copy_of(&bytes).freeze(), TAG).unwrap();
    assert_eq!(*inner.seen.lock(), [(5, 4), (9, 4), (13, 2)]);
    assert_eq!(&*elevator.read(Lba(5), bytes.len(), TAG).unwrap(), &*bytes);
}

#[test]
fn an_error_hits_only_the_originals_it_belongs_to() {
    let (inner, elevator) = watched(Some(3), QueueOptions::default());
    let done = elevator.run(vec![write(0, 1, 2), write(2, 2, 2), write(4, 3, 2), read(6, 1)]);
    let ok: Vec<bool> = done.iter().map(|d| d.result.is_ok()).collect();
    assert_eq!(ok, [true, false, true, true]);
    assert_eq!(*inner.seen.lock(), [(0, 6), (6, 1), (0, 2), (2, 2), (4, 2)]);
}

#[test]
fn refused_requests_do_not_reach_the_device() {
    let (inner, elevator) = watched(None, QueueOptions::default());
    let done = elevator.run(vec![write(SECTORS, 1, 1), write(0, 1, 1)]);
    assert!(done[0].result.is_err() && done[1].result.is_ok());
    assert_eq!(inner.seen.lock().len(), 1);
    assert!(elevator.run(Vec::new()).is_empty());
}

#[test]
fn a_batch_that_waits_for_room_is_finished_by_any_waiter() {
    let options = QueueOptions { depth: 1, dispatch_requests_max: 1, pending_max: 2, ..QueueOptions::default() };
    let (inner, elevator) = watched(None, options);
    let first = elevator.submit((0..8).map(|i| write(i * 4, 1, 1)).collect());
    let second = elevator.submit((0..8).map(|i| write(i * 4 + 2, 2, 1)).collect());
    assert_eq!(elevator.wait(second).len(), 8);
    assert_eq!(elevator.wait(first).len(), 8);
    assert_eq!(inner.seen.lock().len(), 16);
}

#[test]
fn threads_share_one_place_at_the_device() {
    let options = QueueOptions { depth: 1, dispatch_requests_max: 2, ..QueueOptions::default() };
    let (_, elevator) = watched(None, options);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let elevator = &elevator;
            scope.spawn(move || {
                for round in 0..200_u8 {
                    let at = |i: u64| thread * 128 + i * 3;
                    elevator.run((0..8).map(|i| write(at(i), round, 2)).collect());
                    let done = elevator.run((0..8).map(|i| read(at(i), 2)).collect());
                    assert!(done.iter().all(|d| d.result.as_ref().unwrap()[0].iter().all(|&b| b == round)));
                }
            });
        }
    });
}

/// Runs tasks that write, flush and read back through an elevator over a slow disk, in virtual
/// time; returns the time it took. The recorder below panics when writes in flight overlap.
fn slow_device(seed: u64, depth: usize) -> moafs_runtime::Time {
    let runtime = Virtual::new(Some(seed));
    let base = Arc::new(MemDisk::new(SECTORS));
    let recorder = Arc::new(CrashRecorder::over(base, runtime.rt()));
    let slow = Rule::new(Victims::Requests(EVERYWHERE), When::Always, Harm::Slow(Duration::from_millis(1)));
    let device = Arc::new(Fault::new(recorder, runtime.rt(), vec![slow]));
    let options = QueueOptions { depth, dispatch_requests_max: 3, pending_max: 6, ..QueueOptions::default() };
    let elevator = Arc::new(Elevator::new(device, runtime.rt(), options));
    runtime.run(|| {
        for task in 0..4_u64 {
            let elevator = Arc::clone(&elevator);
            let body = move || {
                for round in 1..4_u8 {
                    let at = |i: u64| task * 128 + i * 3;
                    let early = elevator.submit((0..4).map(|i| write(at(i), round, 2)).collect());
                    let late = elevator.submit((4..8).map(|i| write(at(i), round, 2)).collect());
                    let mut done = elevator.wait(late);
                    done.extend(elevator.wait(early));
                    let upto = done.iter().map(|d| d.epoch).max().unwrap();
                    elevator.make_durable(upto).unwrap();
                    assert!(elevator.durable() >= Some(upto));
                    let done = elevator.run((0..8).map(|i| read(at(i), 2)).collect());
                    assert!(done.iter().all(|d| d.result.as_ref().unwrap()[0].iter().all(|&b| b == round)));
                }
            };
            runtime.spawn("user", Box::new(body));
        }
    });
    runtime.now()
}

#[test]
fn a_slow_device_is_driven_by_whoever_waits_under_any_seed() {
    for seed in 0..60 {
        assert_eq!(slow_device(seed, 1), slow_device(seed, 1));
        slow_device(seed, 3);
    }
}

/// One random request, without regard to the others: (operation, address, lengths of the pieces).
type Shape = (u8, u64, Vec<usize>);

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let shape = (0..8_u8, 0..SECTORS, prop::collection::vec(1..6_usize, 1..5));
    prop::collection::vec(shape, 1..24)
}

/// Returns the requests that do not overlap with a write of the same batch, as the contract of
/// [`Disk`] demands.
fn disjoint(shapes: &[Shape]) -> Vec<&Shape> {
    let mut taken = vec![(false, false); SECTORS as usize];
    let fits = |(op, at, lengths): &&Shape| {
        let end = at + lengths.iter().sum::<usize>() as u64;
        if end > SECTORS {
            return true;
        }
        let range = *at as usize..end as usize;
        let is_write = *op >= 3;
        if taken[range.clone()].iter().any(|&(read, written)| written || (is_write && read)) {
            return false;
        }
        taken[range].iter_mut().for_each(|t| *t = (t.0 || !is_write, t.1 || is_write));
        true
    };
    shapes.iter().filter(fits).collect()
}

fn request((op, at, lengths): &Shape, fill: u8) -> Request {
    let sectors: usize = lengths.iter().sum();
    let op = match op {
        0..3 => Op::Read { into: lengths.iter().map(|n| Buf::zeroed(n * SECTOR)).collect() },
        7 => Op::WriteZeroes { sectors: sectors as u64 },
        _ => {
            let data = lengths.iter().enumerate().map(|(i, &n)| page(fill.wrapping_add(i as u8), n)).collect();
            Op::Write { data, fua: *op == 6 }
        }
    };
    Request { op, at: Lba(*at), tag: TAG }
}

/// Applies a request to a plain array of bytes; returns the buffers that a read must return.
fn apply(model: &mut [u8], (op, at, lengths): &Shape, fill: u8) -> Vec<Vec<u8>> {
    let mut offset = *at as usize * SECTOR;
    let mut bufs = Vec::new();
    for (i, n) in lengths.iter().enumerate() {
        let range = &mut model[offset..offset + n * SECTOR];
        match op {
            0..3 => bufs.push(range.to_vec()),
            7 => range.fill(0),
            _ => range.fill(fill.wrapping_add(i as u8)),
        }
        offset += n * SECTOR;
    }
    bufs
}

/// Returns how many requests must reach an idle device: sorted from the head on, neighbours merged.
fn merged_count(batch: &[&Shape], head: &mut u64, transfer: u64, segments: usize) -> usize {
    let mut parts: Vec<(u64, u64, usize, u8)> = Vec::new();
    for (op, at, lengths) in batch {
        let kind = match op {
            0..3 => 0,
            6 => 1,
            7 => 2,
            _ => 3,
        };
        let mut at = *at;
        if kind == 2 {
            parts.push((at, lengths.iter().sum::<usize>() as u64, 0, kind));
            continue;
        }
        let (mut len, mut count) = (0, 0);
        for &n in lengths {
            if count > 0 && (len + n as u64 > transfer || count == segments) {
                parts.push((at, len, count, kind));
                at += len;
                (len, count) = (0, 0);
            }
            len += n as u64;
            count += 1;
        }
        parts.push((at, len, count, kind));
    }
    parts.sort_by_key(|p| (p.0 < *head, p.0));
    let mut requests = 0;
    let mut last: Option<(u64, u64, usize, u8)> = None;
    for (at, len, count, kind) in parts {
        *head = at + len;
        last = match last {
            Some((a, l, c, k))
                if k == kind && k != 2 && a + l == at && l + len <= transfer && c + count <= segments =>
            {
                Some((a, l + len, c + count, k))
            }
            _ => {
                requests += 1;
                Some((at, len, count, kind))
            }
        };
    }
    requests
}

proptest! {
    #[test]
    fn random_batches_equal_a_plain_array(batches in prop::collection::vec(shapes(), 1..6), transfer in 6..20_usize) {
        let (inner, elevator) = watched(None, small_transfers(transfer));
        let mut model = vec![0; SECTORS as usize * SECTOR];
        let mut head = 0;
        for (number, shapes) in batches.iter().enumerate() {
            let fill = number as u8 * 16 + 1;
            let batch = disjoint(shapes);
            inner.seen.lock().clear();
            let done = elevator.run(batch.iter().map(|s| request(s, fill)).collect());
            for (shape, done) in batch.iter().zip(done) {
                if shape.1 + shape.2.iter().sum::<usize>() as u64 > SECTORS {
                    prop_assert!(done.result.is_err());
                    continue;
                }
                let wanted = apply(&mut model, shape, fill);
                let got: Vec<Vec<u8>> = done.result.unwrap().iter().map(|b| b.to_vec()).collect();
                prop_assert_eq!(got, wanted);
            }
            let inside: Vec<&Shape> =
                batch.into_iter().filter(|s| s.1 + s.2.iter().sum::<usize>() as u64 <= SECTORS).collect();
            // Two reads of the same address have no order that a model could predict.
            let mut starts: Vec<u64> = inside.iter().map(|s| s.1).collect();
            starts.sort_unstable();
            starts.dedup();
            let count = merged_count(&inside, &mut head, transfer as u64, 1024);
            if starts.len() == inside.len() && inner.seen.lock().len() <= 64 {
                prop_assert_eq!(inner.seen.lock().len(), count);
            }
        }
        prop_assert_eq!(inner.disk.to_bytes(), model);
    }
}
