//! Requests that wait in front of the drive: the host's elevator, for the part that the kernel has
//! not sorted and merged already.
//!
//! A pure data structure. Invariants:
//! - nothing passes a flush: what arrived before it is served before it, what arrived later is served later;
//! - between flushes the order is C-LOOK: ascending from where the last request ended, then again from the lowest;
//! - requests of one operation that continue each other become one command of at most `transfer_bytes_max`. So are
//!   those that FUSE had to split put together again.

use std::ops::Range;

use moafs_disk::SECTOR;

/// The operation of a device command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Bytes come from the drive.
    Read,
    /// Bytes go to the drive.
    Write,
    /// Everything written so far becomes durable.
    Flush,
}

impl Verb {
    /// Returns the name that the trace uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::Flush => "flush",
        }
    }
}

/// A command to the drive: its operation and its sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Operation of the command.
    pub(crate) verb: Verb,
    /// Sectors of the command; empty for a flush.
    pub(crate) sectors: Range<u64>,
}

impl Ask {
    /// Makes a command of all sectors that the `len` bytes from byte `offset` on touch.
    pub(crate) fn bytes(verb: Verb, offset: u64, len: u64) -> Ask {
        let sector = SECTOR as u64;
        Ask { verb, sectors: offset / sector..(offset + len).div_ceil(sector) }
    }

    /// Makes a flush command.
    pub(crate) fn flush() -> Ask {
        Ask { verb: Verb::Flush, sectors: 0..0 }
    }

    /// Splits the command into commands of at most `transfer_bytes_max` bytes each.
    pub(crate) fn pieces(&self, transfer_bytes_max: u64) -> impl Iterator<Item = Ask> + use<> {
        let sectors_max = (transfer_bytes_max / SECTOR as u64).max(1);
        let (verb, Range { start, end }) = (self.verb, self.sectors.clone());
        // A flush has no sectors, and is one command all the same.
        let pieces = (end - start).div_ceil(sectors_max).max(1);
        (0..pieces).map(move |piece| {
            let start = start + piece * sectors_max;
            Ask { verb, sectors: start..end.min(start + sectors_max) }
        })
    }

    /// Returns the command's length in bytes.
    pub(crate) fn bytes_len(&self) -> u64 {
        (self.sectors.end - self.sectors.start) * SECTOR as u64
    }
}

/// Identifier of a waiting request.
pub(crate) type RequestId = u64;

#[derive(Debug)]
struct Waiting {
    id: RequestId,
    ask: Ask,
    /// Modelled time of the request's arrival.
    arrived_ns: u64,
}

/// The batch to serve next: one command for one or several requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The command for the drive.
    pub(crate) ask: Ask,
    /// Requests that the command answers.
    pub(crate) ids: Vec<RequestId>,
    /// Modelled time at which the last of these requests arrived.
    pub(crate) arrived_ns: u64,
}

/// Requests that wait, in the order they came.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Vec<Waiting>,
    next_id: RequestId,
    /// Sector at which the last command ended.
    position: u64,
    transfer_bytes_max: u64,
}

impl Queue {
    /// Makes an empty queue that merges requests into commands of up to `transfer_bytes_max` bytes.
    pub(crate) fn new(transfer_bytes_max: u64) -> Queue {
        Queue { waiting: Vec::new(), next_id: 0, position: 0, transfer_bytes_max }
    }

    /// Adds a request that arrives at modelled time `arrived_ns`.
    pub(crate) fn push(&mut self, ask: Ask, arrived_ns: u64) -> RequestId {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.push(Waiting { id, ask, arrived_ns });
        id
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of requests that were ever added.
    pub(crate) fn arrivals(&self) -> u64 {
        self.next_id
    }

    /// Takes the batch to serve next.
    pub(crate) fn pick(&mut self) -> Option<Batch> {
        let free = self.waiting.iter().position(|waiting| waiting.ask.verb == Verb::Flush);
        let candidates = &self.waiting[..free.unwrap_or(self.waiting.len())];
        let at = |waiting: &Waiting| waiting.ask.sectors.start;
        let ahead = (0..candidates.len()).filter(|&i| at(&candidates[i]) >= self.position);
        let next =
            ahead.min_by_key(|&i| at(&candidates[i])).or((0..candidates.len()).min_by_key(|&i| at(&candidates[i])));
        // Only a flush is left in front.
        let next = next.or(free)?;
        let first = self.waiting.remove(next);
        let mut batch = Batch { ask: first.ask, ids: vec![first.id], arrived_ns: first.arrived_ns };
        if batch.ask.verb != Verb::Flush {
            self.merge_into(&mut batch, free.map(|flush| flush - 1));
            self.position = batch.ask.sectors.end;
        }
        Some(batch)
    }

    /// Adds requests that continue the batch, among the first `free` that wait (all, if there is no
    /// flush among them).
    fn merge_into(&mut self, batch: &mut Batch, free: Option<usize>) {
        let mut free = free.unwrap_or(self.waiting.len());
        loop {
            let ask = &batch.ask;
            let fits = |next: &Ask| {
                next.verb == ask.verb
                    && next.sectors.start == ask.sectors.end
                    && ask.bytes_len() + next.bytes_len() <= self.transfer_bytes_max
            };
            let Some(next) = self.waiting[..free].iter().position(|waiting| fits(&waiting.ask)) else { return };
            let next = self.waiting.remove(next);
            free -= 1;
            batch.ask.sectors.end = next.ask.sectors.end;
            batch.ids.push(next.id);
            batch.arrived_ns = batch.arrived_ns.max(next.arrived_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(asks: &[(Verb, Range<u64>)]) -> Queue {
        let mut queue = Queue::new(16 << 10);
        for (verb, sectors) in asks {
            queue.push(Ask { verb: *verb, sectors: sectors.clone() }, 0);
        }
        queue
    }

    fn order(queue: &mut Queue) -> Vec<Vec<RequestId>> {
        std::iter::from_fn(|| queue.pick().map(|batch| batch.ids)).collect()
    }

    #[test]
    fn requests_are_swept_upwards_and_then_from_the_lowest() {
        use Verb::{Read, Write};
        let mut queue = queue(&[(Read, 100..101)]);
        assert_eq!(queue.pick().unwrap().ids, [0]);
        for start in [50, 300, 10, 200] {
            queue.push(Ask { verb: Write, sectors: start..start + 1 }, 0);
        }
        assert_eq!(order(&mut queue), [[4], [2], [3], [1]]);
    }

    #[test]
    fn nothing_passes_a_flush() {
        use Verb::{Flush, Write};
        let mut queue = queue(&[(Write, 9..10), (Flush, 0..0), (Write, 10..11), (Write, 5..6)]);
        assert_eq!(order(&mut queue), [[0], [1], [2], [3]]);
    }

    #[test]
    fn what_continues_is_one_command_up_to_the_largest_transfer() {
        use Verb::{Flush, Read, Write};
        let mut parts =
            queue(&[(Write, 8..16), (Write, 0..8), (Read, 16..24), (Write, 16..40), (Flush, 0..0), (Write, 40..48)]);
        let first = parts.pick().unwrap();
        assert_eq!((first.ask.sectors, first.ids), (0..16, vec![1, 0]));
        assert_eq!(order(&mut parts), [[2], [3], [4], [5]], "40 sectors exceed the largest transfer");
    }

    #[test]
    fn what_is_larger_than_the_largest_transfer_takes_several_commands() {
        let ask = |sectors| Ask { verb: Verb::Read, sectors };
        let pieces: Vec<Ask> = ask(8..73).pieces(16 << 10).collect();
        assert_eq!(pieces, [ask(8..40), ask(40..72), ask(72..73)]);
        assert_eq!(Ask::flush().pieces(16 << 10).collect::<Vec<_>>(), [Ask::flush()]);
    }

    #[test]
    fn a_command_covers_every_sector_it_touches() {
        assert_eq!(Ask::bytes(Verb::Write, 511, 2).sectors, 0..2);
        assert_eq!(Ask::bytes(Verb::Read, 1024, 512).sectors, 2..3);
    }
}
