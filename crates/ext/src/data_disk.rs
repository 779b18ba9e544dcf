//! The disk through which the contents of files are read and written on a volume that logs some of them.
//!
//! A small write that an fsync waits for joins the running transaction instead of going to its place: its epoch is one
//! that is durable already, and the commit of that transaction is what makes it durable. Writes to blocks that are in
//! the log already join as well; everything else passes. Reads show the logged contents over what lies in the blocks'
//! places.

use std::sync::Arc;

use moafs_disk::completions::Completions;
use moafs_disk::{
    Buf, Cause, Disk, DiskError, Done, Kind, Lba, Op, Page, ReadPart, Request, SECTOR, SharedDisk, Tag, Ticket,
};

use crate::journal::put_over;
use crate::meta::Meta;

/// The most bytes of a write that joins a transaction: a longer one costs more to write twice than a seek.
const LOGGED_WRITE_BYTES_MAX: u64 = 64 << 10;

/// The volume's disk, with the log in front of it.
pub(crate) struct DataDisk {
    below: SharedDisk,
    meta: Arc<Meta>,
    block_bytes: usize,
    batches: Completions<Batch>,
}

/// A batch under way: the ticket below, and its requests.
struct Batch {
    below: Ticket,
    requests: Vec<Pending>,
}

/// The parts of a request, and how its result is made of theirs.
struct Pending {
    /// The requests below that it has become.
    parts: usize,
    /// The byte at which it begins.
    from: u64,
    /// The contents to show over what was read, by block.
    shown: Vec<(u64, Page)>,
}

impl DataDisk {
    /// Puts the log of `meta` in front of the disk `below`, with blocks of `block_bytes`.
    pub(crate) fn new(below: SharedDisk, meta: Arc<Meta>, block_bytes: usize) -> DataDisk {
        DataDisk { below, meta, block_bytes, batches: Completions::default() }
    }

    /// Returns the logged blocks that a read touches.
    fn shown(&self, at: Lba, bytes: u64) -> Vec<(u64, Page)> {
        let size = self.block_bytes as u64;
        self.meta.logged_data(at.byte() / size..(at.byte() + bytes).div_ceil(size))
    }

    /// Gives a write to the running transaction, as far as that takes it. Returns what has to go to the blocks' places.
    fn log(&self, at: Lba, data: Vec<Page>, fua: bool, tag: Tag) -> Vec<Request> {
        let bytes: u64 = data.iter().map(|page| page.len() as u64).sum();
        let wanted = tag.cause == Cause::Fsync && bytes <= LOGGED_WRITE_BYTES_MAX;
        let first = at.byte() / self.block_bytes as u64;
        let whole =
            at.byte().is_multiple_of(self.block_bytes as u64) && data.iter().all(|page| page.len() == self.block_bytes);
        debug_assert!(whole, "a write of file data at sector {} is not one of whole blocks", at.0);
        let Some(taken) = self.meta.log_data(first, &data, wanted && whole) else {
            return vec![Request { op: Op::Write { data, fua }, at, tag }];
        };
        let mut rest: Vec<Request> = Vec::new();
        let mut follows = false;
        for ((no, page), taken) in (first..).zip(data).zip(taken) {
            if let (false, true, Some(Request { op: Op::Write { data, .. }, .. })) = (taken, follows, rest.last_mut()) {
                data.push(page);
            } else if !taken {
                let at = Lba(no * (self.block_bytes / SECTOR) as u64);
                rest.push(Request { op: Op::Write { data: vec![page], fua }, at, tag });
            }
            follows = !taken;
        }
        rest
    }

    fn finish(&self, pending: &Pending, mut parts: Vec<Done>) -> Done {
        if parts.len() != 1 {
            // A write, and what of it was not logged.
            let epoch = parts.iter().map(|done| done.epoch).max().unwrap_or_default();
            let failed = parts.into_iter().find_map(|done| done.result.err());
            return Done { result: failed.map_or(Ok(Vec::new()), Err), epoch };
        }
        let Done { result, epoch } = parts.remove(0);
        let result = result.map(|mut bufs: Vec<Buf>| {
            let mut at = pending.from;
            for buf in &mut bufs {
                self.show(&pending.shown, at, buf);
                at += buf.len() as u64;
            }
            bufs
        });
        Done { result, epoch }
    }

    /// Puts logged contents over what was read at byte `at`.
    fn show(&self, shown: &[(u64, Page)], at: u64, into: &mut [u8]) {
        for (no, contents) in shown {
            put_over(into, at, contents, no * self.block_bytes as u64);
        }
    }
}

impl Disk for DataDisk {
    moafs_disk::forward_to!(below: limits, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut requests = Vec::with_capacity(batch.len());
        let mut below = Vec::with_capacity(batch.len());
        for request in batch {
            let (from, bytes) = (request.at.byte(), request.bytes());
            let before = below.len();
            let mut shown = Vec::new();
            match request {
                Request { op: Op::Write { data, fua }, at, tag } if tag.kind == Kind::Data => {
                    below.extend(self.log(at, data, fua, tag));
                }
                request => {
                    if matches!(request.op, Op::Read { .. }) {
                        shown = self.shown(request.at, bytes);
                    }
                    below.push(request);
                }
            }
            requests.push(Pending { parts: below.len() - before, from, shown });
        }
        self.batches.put(Batch { below: self.below.submit(below), requests })
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let Batch { below, requests } = self.batches.take(ticket);
        let mut dones = self.below.wait(below).into_iter();
        let finish = |pending: &Pending| self.finish(pending, dones.by_ref().take(pending.parts).collect());
        requests.iter().map(finish).collect()
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        let shown: Vec<_> = parts.iter().map(|part| self.shown(part.at, part.into.len() as u64)).collect();
        self.below.read_into(parts, tag)?;
        for (part, shown) in parts.iter_mut().zip(shown) {
            self.show(&shown, part.at.byte(), part.into);
        }
        Ok(())
    }
}
