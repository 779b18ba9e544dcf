//! Counts the requests to a device, and lists them on demand.
//!
//! The counters are always on: one atomic addition each. The list is off until [`Trace::record`].
//! Flushes are counted by the device's own numbering ([`Disk::epoch`]), so a flush shared by
//! several callers counts once, and tracing changes nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Rt, Time};

use crate::{Cause, Disk, DiskError, Epoch, Kind, Lba, Op, ReadPart, Request, SECTOR, SharedDisk, Tag, Ticket};

/// The operation of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum TraceVerb {
    /// A request that reads ([`Op::Read`]).
    Read,
    /// A request that writes ([`Op::Write`]).
    Write,
    /// A request that discards ([`Op::Discard`]).
    Discard,
    /// A write of zeroes ([`Op::WriteZeroes`]).
    WriteZeroes,
    /// A flush of the device.
    Flush,
}

impl TraceVerb {
    /// Every operation that carries a tag.
    const REQUESTS: [TraceVerb; 4] = [TraceVerb::Read, TraceVerb::Write, TraceVerb::Discard, TraceVerb::WriteZeroes];

    fn of(op: &Op) -> TraceVerb {
        match op {
            Op::Read { .. } => TraceVerb::Read,
            Op::Write { .. } => TraceVerb::Write,
            Op::Discard { .. } => TraceVerb::Discard,
            Op::WriteZeroes { .. } => TraceVerb::WriteZeroes,
        }
    }
}

/// One command to the device, as listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The command's position among all commands since the trace was made, from 0.
    pub sequence: u64,
    /// The time of its submission.
    pub time: Time,
    /// The operation of the command.
    pub verb: TraceVerb,
    /// The first sector; 0 for flushes.
    pub at: Lba,
    /// The length in sectors; 0 for flushes.
    pub sectors: u64,
    /// The number of memory pieces.
    pub segments: usize,
    /// True for a write with force unit access.
    pub fua: bool,
    /// The owner and reason; `None` for flushes.
    pub tag: Option<Tag>,
    /// The epoch it was submitted in; for a flush the epoch it ended.
    pub epoch: Epoch,
}

/// The number and bytes of the requests of one operation, kind and cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Count {
    /// The operation of the command.
    pub verb: TraceVerb,
    /// The contents of the requests' sectors.
    pub kind: Kind,
    /// The reason for the requests.
    pub cause: Cause,
    /// The number of requests.
    pub requests: u64,
    /// The total length of the requests in bytes.
    pub bytes: u64,
}

/// Counts of the requests to a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Nonzero rows, ordered by operation, kind and cause.
    pub counts: Vec<Count>,
    /// The number of flushes.
    pub flushes: u64,
}

impl Counters {
    /// Returns the number of requests for which `which` holds.
    pub fn requests(&self, which: impl Fn(&Count) -> bool) -> u64 {
        self.counts.iter().filter(|c| which(c)).map(|c| c.requests).sum()
    }

    /// Returns the bytes of the requests for which `which` holds.
    pub fn bytes(&self, which: impl Fn(&Count) -> bool) -> u64 {
        self.counts.iter().filter(|c| which(c)).map(|c| c.bytes).sum()
    }

    /// Returns the number of write requests of one kind.
    pub fn writes_of(&self, kind: Kind) -> u64 {
        self.requests(|c| c.verb == TraceVerb::Write && c.kind == kind)
    }

    /// Returns the number of read requests of one kind.
    pub fn reads_of(&self, kind: Kind) -> u64 {
        self.requests(|c| c.verb == TraceVerb::Read && c.kind == kind)
    }

    /// Returns the difference to `earlier`, which was taken from the same trace.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let before = |c: &Count| {
            let same = |e: &&Count| (e.verb, e.kind, e.cause) == (c.verb, c.kind, c.cause);
            earlier.counts.iter().find(same).map_or((0, 0), |e| (e.requests, e.bytes))
        };
        let grown = |c: &Count| {
            let (requests, bytes) = before(c);
            Count { requests: c.requests - requests, bytes: c.bytes - bytes, ..*c }
        };
        let counts = self.counts.iter().map(grown).filter(|c| c.requests != 0).collect();
        Counters { counts, flushes: self.flushes - earlier.flushes }
    }
}

/// The number of requests, and their bytes.
type Cell = (AtomicU64, AtomicU64);

/// A disk whose requests are traced.
pub struct Trace {
    inner: SharedDisk,
    rt: Rt,
    cells: Vec<Cell>,
    /// The epoch in which the trace was made: earlier flushes are not counted.
    epoch_start: Epoch,
    log: Mutex<Log>,
}

struct Log {
    records: VecDeque<Record>,
    /// The largest number of listed commands; 0 while listing is off.
    records_max: usize,
    sequence: u64,
    /// Flushes that ended an epoch before this one are in the list.
    epoch_seen: Epoch,
}

impl Trace {
    /// Makes a trace over `inner`; times are those of `rt`.
    pub fn new(inner: SharedDisk, rt: Rt) -> Trace {
        let cells = TraceVerb::REQUESTS.len() * Kind::ALL.len() * Cause::ALL.len();
        let epoch = inner.epoch();
        Trace {
            inner,
            rt,
            cells: (0..cells).map(|_| Cell::default()).collect(),
            epoch_start: epoch,
            log: Mutex::new(Log { records: VecDeque::new(), records_max: 0, sequence: 0, epoch_seen: epoch }),
        }
    }

    /// Starts listing commands; when there are more than `records_max`, the oldest are dropped.
    pub fn record(&self, records_max: usize) {
        let mut log = self.log.lock();
        log.records_max = records_max;
        log.epoch_seen = self.inner.epoch();
    }

    /// Removes and returns the commands listed so far, oldest first; listing continues.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.log.lock().records).into()
    }

    /// Returns the current counters.
    pub fn counters(&self) -> Counters {
        let mut counts = Vec::new();
        for verb in TraceVerb::REQUESTS {
            for kind in Kind::ALL {
                for cause in Cause::ALL {
                    let cell = self.cell(verb, kind, cause);
                    let requests = cell.0.load(Ordering::Relaxed);
                    let bytes = cell.1.load(Ordering::Relaxed);
                    if requests != 0 {
                        counts.push(Count { verb, kind, cause, requests, bytes });
                    }
                }
            }
        }
        Counters { counts, flushes: self.inner.epoch().0 - self.epoch_start.0 }
    }

    fn cell(&self, verb: TraceVerb, kind: Kind, cause: Cause) -> &Cell {
        let row = verb as usize * Kind::ALL.len() + kind as usize;
        &self.cells[row * Cause::ALL.len() + cause as usize]
    }

    fn note(&self, verb: TraceVerb, bytes: u64, tag: Tag) {
        let cell = self.cell(verb, tag.kind, tag.cause);
        cell.0.fetch_add(1, Ordering::Relaxed);
        cell.1.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Lists commands that are about to be submitted together.
    fn list(&self, commands: impl Iterator<Item = Command>) {
        let mut log = self.log.lock();
        if log.records_max == 0 {
            return;
        }
        let (time, epoch) = (self.rt.now(), self.inner.epoch());
        for Command { verb, at, bytes, segments, fua, tag } in commands {
            let sectors = bytes / SECTOR as u64;
            log.push(Record { sequence: 0, time, verb, at, sectors, segments, fua, tag: Some(tag), epoch });
        }
    }

    /// Lists the flushes that the device issued since the last call.
    fn list_flushes(&self, time: Time) {
        let mut log = self.log.lock();
        if log.records_max == 0 {
            return;
        }
        let epoch = self.inner.epoch();
        for ended in log.epoch_seen.0..epoch.0 {
            log.push(Record {
                sequence: 0,
                time,
                verb: TraceVerb::Flush,
                at: Lba(0),
                sectors: 0,
                segments: 0,
                fua: false,
                tag: None,
                epoch: Epoch(ended),
            });
        }
        log.epoch_seen = epoch;
    }
}

/// The traced properties of a request.
struct Command {
    verb: TraceVerb,
    at: Lba,
    bytes: u64,
    segments: usize,
    fua: bool,
    tag: Tag,
}

impl Command {
    fn of(request: &Request) -> Command {
        let (segments, fua) = match &request.op {
            Op::Read { into } => (into.len(), false),
            Op::Write { data, fua } => (data.len(), *fua),
            Op::Discard { .. } | Op::WriteZeroes { .. } => (0, false),
        };
        let (verb, at, bytes, tag) = (TraceVerb::of(&request.op), request.at, request.bytes(), request.tag);
        Command { verb, at, bytes, segments, fua, tag }
    }

    fn of_part(part: &ReadPart<'_>, tag: Tag) -> Command {
        Command { verb: TraceVerb::Read, at: part.at, bytes: part.into.len() as u64, segments: 1, fua: false, tag }
    }
}

impl Log {
    fn push(&mut self, record: Record) {
        if self.records.len() == self.records_max {
            self.records.pop_front();
        }
        self.records.push_back(Record { sequence: self.sequence, ..record });
        self.sequence += 1;
    }
}

impl Disk for Trace {
    crate::forward_to!(inner: limits, wait, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        batch.iter().for_each(|request| self.note(TraceVerb::of(&request.op), request.bytes(), request.tag));
        self.list(batch.iter().map(Command::of));
        self.inner.submit(batch)
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        parts.iter().for_each(|part| self.note(TraceVerb::Read, part.into.len() as u64, tag));
        self.list(parts.iter().map(|part| Command::of_part(part, tag)));
        self.inner.read_into(parts, tag)
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        let time = self.rt.now();
        let result = self.inner.make_durable(upto);
        self.list_flushes(time);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_runtime::Live;

    use super::*;
    use crate::{Buf, DiskExt, MemDisk};

    fn traced() -> Trace {
        Trace::new(Arc::new(MemDisk::new(64)), Live::new())
    }

    fn demand(kind: Kind) -> Tag {
        Tag::new(kind, 7, Cause::Demand)
    }

    #[test]
    fn counts_by_operation_kind_and_cause() {
        let disk = traced();
        disk.write(Lba(0), Buf::zeroed(1024).freeze(), demand(Kind::Data)).unwrap();
        let before = disk.counters();
        disk.write(Lba(4), Buf::zeroed(512).freeze(), demand(Kind::Bitmap)).unwrap();
        disk.read(Lba(0), 2048, Tag::volume(Kind::Data)).unwrap();
        disk.flush().unwrap();
        disk.make_durable(Epoch(0)).unwrap();
        let all = disk.counters();
        assert_eq!((all.writes_of(Kind::Data), all.reads_of(Kind::Data), all.flushes), (1, 1, 1));
        assert_eq!(all.bytes(|c| c.cause == Cause::Volume), 2048);
        let added = all.since(&before);
        assert_eq!(added.writes_of(Kind::Data), 0);
        assert_eq!(added.bytes(|c| c.verb == TraceVerb::Write), 512);
    }

    #[test]
    fn lists_the_newest_commands_with_their_epochs() {
        let disk = traced();
        disk.write(Lba(0), Buf::zeroed(512).freeze(), demand(Kind::Data)).unwrap();
        disk.record(3);
        for at in [8, 16, 24] {
            disk.write(Lba(at), Buf::zeroed(512).freeze(), demand(Kind::Data)).unwrap();
        }
        disk.flush().unwrap();
        let list: Vec<_> = disk.take().iter().map(|r| (r.sequence, r.verb, r.at.0, r.epoch.0)).collect();
        assert_eq!(list, [(1, TraceVerb::Write, 16, 0), (2, TraceVerb::Write, 24, 0), (3, TraceVerb::Flush, 0, 0)]);
        disk.read(Lba(0), 512, demand(Kind::Map)).unwrap();
        let list = disk.take();
        assert_eq!((list[0].verb, list[0].epoch, list[0].tag.unwrap().kind), (TraceVerb::Read, Epoch(1), Kind::Map));
    }
}
