//! [`Latency`]: the times that requests to a device take, from their submission until they are done.
//!
//! It stands below everything else that commands put on a device. The clock is read twice for a batch of requests,
//! which all count with the time of the batch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use moafs_disk::{Disk, DiskError, Done, Epoch, Op, ReadPart, Request, SharedDisk, Tag, Ticket};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Rt, Time};
use serde::Serialize;

/// The operations of a device, by the names that its counters have.
const VERBS: [&str; 5] = ["read", "write", "discard", "write_zeroes", "flush"];
const READ: usize = 0;
const FLUSH: usize = 4;

/// Number of requests of each operation.
type Numbers = [u64; VERBS.len()];

/// A disk whose requests are timed.
pub(crate) struct Latency {
    inner: SharedDisk,
    rt: Rt,
    /// Requests of each operation that are done, and the nanoseconds that they took.
    cells: [(AtomicU64, AtomicU64); VERBS.len()],
    /// Batches that were submitted and not waited for yet.
    begun: Mutex<BTreeMap<u64, (Time, Numbers)>>,
}

/// The time that all requests of an operation took together.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Spent {
    verb: &'static str,
    requests: u64,
    ns: u64,
}

impl Latency {
    pub(crate) fn new(inner: SharedDisk, rt: Rt) -> Latency {
        Latency { inner, rt, cells: Default::default(), begun: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the time spent on each operation that there was.
    pub(crate) fn spent(&self) -> Vec<Spent> {
        let spent = VERBS.iter().zip(&self.cells).map(|(verb, (requests, ns))| Spent {
            verb,
            requests: requests.load(Ordering::Relaxed),
            ns: ns.load(Ordering::Relaxed),
        });
        spent.filter(|spent| spent.requests > 0).collect()
    }

    fn note(&self, verb: usize, requests: u64, since: Time) {
        let took = (self.rt.now() - since).as_nanos();
        let (count, ns) = &self.cells[verb];
        count.fetch_add(requests, Ordering::Relaxed);
        ns.fetch_add(u64::try_from(took).unwrap_or(u64::MAX).saturating_mul(requests), Ordering::Relaxed);
    }
}

fn verb_of(op: &Op) -> usize {
    match op {
        Op::Read { .. } => READ,
        Op::Write { .. } => 1,
        Op::Discard { .. } => 2,
        Op::WriteZeroes { .. } => 3,
    }
}

impl Disk for Latency {
    moafs_disk::forward_to!(inner: limits, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut numbers = Numbers::default();
        batch.iter().for_each(|request| numbers[verb_of(&request.op)] += 1);
        let since = self.rt.now();
        let ticket = self.inner.submit(batch);
        self.begun.lock().insert(ticket.0, (since, numbers));
        ticket
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let begun = self.begun.lock().remove(&ticket.0);
        let done = self.inner.wait(ticket);
        if let Some((since, numbers)) = begun {
            let present = numbers.iter().enumerate().filter(|(_, requests)| **requests > 0);
            present.for_each(|(verb, requests)| self.note(verb, *requests, since));
        }
        done
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        let (since, requests) = (self.rt.now(), parts.len() as u64);
        let result = self.inner.read_into(parts, tag);
        self.note(READ, requests, since);
        result
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        if self.inner.durable().is_some_and(|durable| durable >= upto) {
            return self.inner.make_durable(upto);
        }
        let since = self.rt.now();
        let result = self.inner.make_durable(upto);
        self.note(FLUSH, 1, since);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::{Buf, DiskExt, Kind, Lba, MemDisk, SECTOR};
    use moafs_runtime::Live;

    use super::*;

    #[test]
    fn each_request_counts_with_its_time_and_none_is_forgotten() {
        let disk = Latency::new(Arc::new(MemDisk::new(64)), Live::new());
        let tag = Tag::volume(Kind::Data);
        assert_eq!(disk.spent(), []);
        disk.write(Lba(1), Buf::zeroed(SECTOR).freeze(), tag).unwrap();
        disk.write(Lba(2), Buf::zeroed(SECTOR).freeze(), tag).unwrap();
        disk.read(Lba(1), SECTOR, tag).unwrap();
        let mut bytes = [0; SECTOR];
        disk.read_into(&mut [ReadPart { at: Lba(2), into: &mut bytes }], tag).unwrap();
        disk.flush().unwrap();
        disk.make_durable(Epoch(0)).unwrap();
        let counts: Vec<_> = disk.spent().iter().map(|spent| (spent.verb, spent.requests)).collect();
        assert_eq!(counts, [("read", 2), ("write", 2), ("flush", 1)]);
        assert!(disk.spent().iter().all(|spent| spent.ns > 0) && disk.begun.lock().is_empty());
    }
}
