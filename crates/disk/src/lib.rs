//! The block layer: a [`Disk`] is an array of 512-byte sectors with reads, writes, flushes and
//! discards.
//!
//! Requests in flight have **no order** among themselves. A caller that needs an order waits for
//! completions, calls [`Disk::make_durable`], and then submits the requests that depend on them.
//! The disk numbers its flushes ([`Epoch`]), so one comparison tells whether a dependent write may
//! be submitted. A [`Request`] is one device command, however many pieces of memory it gathers; it
//! is split only at [`Limits`].
//!
//! Layers, from the file system down: file system → [`queue`] (elevator: sort, merge) →
//! [`probe`] (trace, faults, crash recorder) → device ([`mod@file`], [`mem`], [`model`]).
//!
//! A sector is written to a disk in memory, made durable and read back:
//!
//! ```
//! use moafs_disk::{Buf, DiskExt, Kind, Lba, MemDisk, SECTOR, Tag};
//!
//! let disk = MemDisk::new(2048); // sectors: 1 MiB
//! let tag = Tag::volume(Kind::Data);
//! disk.write(Lba(8), Buf::copy_of(&[7; SECTOR]).freeze(), tag)?;
//! disk.flush()?;
//! assert_eq!(disk.read(Lba(8), SECTOR, tag)?[..4], [7; 4]);
//! # Ok::<(), moafs_disk::DiskError>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`buf`] | aligned memory: [`Buf`] (owned), [`Page`] (frozen, shared) |
//! | [`request`] | [`Request`], [`Op`], [`Tag`], completions |
//! | [`error`] | [`DiskError`] |
//! | [`epoch`], [`completions`] | shared by devices and wrappers: numbering flushes, keeping results until `wait` |
//! | [`mod@file`] | image files and block devices, locked against a second user |
//! | [`mem`] | a disk in memory |
//! | [`forward_to!`] | for wrappers: calls that go to the disk below as they are |
//! | [`model`] | modelled drives in virtual time: hard disks, SSDs, SD cards |
//! | [`partition`] | partition tables, and the disk of one partition |
//! | [`queue`] | the elevator: C-LOOK, merging to the maximum transfer |
//! | [`probe`] | wrappers that observe or inject failures: trace, fault injection, crash recorder |

pub mod buf;
pub mod completions;
pub mod epoch;
pub mod error;
pub mod file;
mod forward;
pub mod mem;
pub mod model;
pub mod partition;
pub mod probe;
pub mod queue;
pub mod request;

use std::sync::Arc;

pub use buf::{Buf, Page};
pub use error::DiskError;
pub use file::{FileDisk, FileOptions};
pub use mem::MemDisk;
pub use queue::{Elevator, QueueOptions};
pub use request::{Cause, Done, Kind, Op, ReadPart, Request, Tag};

/// Bytes in a sector: the unit of addresses, of tearing at a power cut, and of device models.
pub const SECTOR: usize = 512;

/// A disk shared between layers and threads.
pub type SharedDisk = Arc<dyn Disk>;

/// A sector address on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

impl Lba {
    /// Returns the sector that holds byte `offset`, which must be a multiple of [`SECTOR`].
    pub fn from_byte(offset: u64) -> Lba {
        debug_assert!(offset.is_multiple_of(SECTOR as u64), "byte {offset} is not on a sector");
        Lba(offset / SECTOR as u64)
    }

    /// Returns the byte this sector starts at.
    pub fn byte(self) -> u64 {
        self.0 * SECTOR as u64
    }
}

/// A flush number. Epoch `e` is durable once a flush that was *issued after* `e` ended has
/// completed; see [`Disk::make_durable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// The number of a batch handed to [`Disk::submit`]; redeemed once with [`Disk::wait`].
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// The capabilities and size limits of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Capacity of the disk in sectors of 512 bytes.
    pub sectors: u64,
    /// The smallest unit of direct I/O in bytes: a power of two, at least [`SECTOR`]. Addresses,
    /// lengths and memory of requests should be multiples of it; requests that are not are still
    /// accepted, but go through an aligned copy, which is slower.
    pub io_align: usize,
    /// The largest request in bytes; larger ones are split.
    pub transfer_bytes_max: usize,
    /// The largest number of memory pieces in one request.
    pub segments_max: usize,
    /// True if a completed write can be lost in a power cut until it was flushed.
    pub volatile_cache: bool,
    /// True if a single write can be made durable without a flush (force unit access).
    pub fua: bool,
    /// True if [`Op::Discard`] has an effect.
    pub discard: bool,
    /// True if writes are refused.
    pub read_only: bool,
}

impl Limits {
    /// Refuses requests that no disk of this shape can execute.
    ///
    /// # Errors
    /// [`DiskError::ReadOnly`] for writes to a read-only disk, [`DiskError::BeyondEnd`], and
    /// `EINVAL` for lengths that are not whole sectors.
    pub fn check(&self, request: &Request) -> Result<(), DiskError> {
        if self.read_only && request.is_write() {
            return Err(DiskError::ReadOnly);
        }
        self.check_range(request.op.name(), request.at, request.bytes())
    }

    /// Refuses a range that is not whole sectors or lies beyond the end; `what` names the request
    /// in errors.
    ///
    /// # Errors
    /// [`DiskError::BeyondEnd`], and `EINVAL` for lengths that are not whole sectors.
    pub fn check_range(&self, what: &'static str, at: Lba, bytes: u64) -> Result<(), DiskError> {
        if !bytes.is_multiple_of(SECTOR as u64) {
            return Err(DiskError::io(what, at, bytes, libc::EINVAL));
        }
        let end = at.0.checked_add(bytes / SECTOR as u64);
        if end.is_none_or(|end| end > self.sectors) {
            return Err(DiskError::BeyondEnd { at, bytes, sectors: self.sectors });
        }
        Ok(())
    }
}

/// An array of sectors. Requests in flight may complete in any order; a completed request is durable after
/// [`Disk::make_durable`].
pub trait Disk: Send + Sync {
    /// Returns the capabilities and limits of this disk. They are constant while it is open.
    fn limits(&self) -> &Limits;

    /// Hands requests to the device and returns at once (it waits only for room in the queue). The
    /// requests may complete in any order; overlapping writes in flight are a bug in the caller.
    fn submit(&self, batch: Vec<Request>) -> Ticket;

    /// Waits for every request of a batch. Returns one [`Done`] per request, in the batch's order.
    fn wait(&self, ticket: Ticket) -> Vec<Done>;

    /// Reads into memory that stays the caller's: each part is one request, of at most one maximum transfer. Returns
    /// when all have ended. Meant for large reads that no cache keeps: a device that can read straight into the
    /// caller's memory saves a copy; this default submits ordinary reads ([`Self::submit`]) and copies.
    ///
    /// # Errors
    /// The first error; the contents of the memory are then undefined.
    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        read_by_copy(self, parts, tag)
    }

    /// Makes everything that completed in epoch `upto` or before durable. Returns at once if
    /// it already is. Concurrent callers share a flush: one in flight, one queued.
    ///
    /// # Errors
    /// Once a flush has failed, every later call fails with the first error: it is unknown which
    /// writes since the last successful flush the device holds, and a retry that succeeds would
    /// report them as durable.
    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError>;

    /// Returns the epoch that a write completing now would carry.
    fn epoch(&self) -> Epoch;

    /// Returns the newest epoch known to be durable; `None` before the first flush.
    fn durable(&self) -> Option<Epoch>;
}

/// Implements [`Disk::read_into`] with [`Disk::submit`] and a copy.
pub(crate) fn read_by_copy<D: Disk + ?Sized>(disk: &D, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
    let request = |part: &ReadPart<'_>| {
        let into = vec![Buf::scratch(part.into.len())];
        Request { op: Op::Read { into }, at: part.at, tag }
    };
    let ticket = disk.submit(parts.iter().map(request).collect());
    for (part, done) in parts.iter_mut().zip(disk.wait(ticket)) {
        let mut rest = &mut *part.into;
        for buf in done.result? {
            let (here, after) = rest.split_at_mut(buf.len());
            here.copy_from_slice(&buf);
            rest = after;
        }
    }
    Ok(())
}

/// Convenience methods for any [`Disk`].
pub trait DiskExt: Disk {
    /// Submits one batch and waits for it.
    fn run(&self, batch: Vec<Request>) -> Vec<Done> {
        let ticket = self.submit(batch);
        self.wait(ticket)
    }

    /// Reads `bytes` (a multiple of [`SECTOR`]) from `at`.
    ///
    /// # Errors
    /// As the device reports them; reading beyond the end is [`DiskError::BeyondEnd`].
    fn read(&self, at: Lba, bytes: usize, tag: Tag) -> Result<Buf, DiskError> {
        let request = Request { op: Op::Read { into: vec![Buf::scratch(bytes)] }, at, tag };
        let mut done = self.run(vec![request]);
        let mut bufs = done.remove(0).result?;
        Ok(bufs.remove(0))
    }

    /// Writes one page at `at` and returns the epoch the write completed in.
    ///
    /// # Errors
    /// As the device reports them.
    fn write(&self, at: Lba, data: Page, tag: Tag) -> Result<Epoch, DiskError> {
        let request = Request { op: Op::Write { data: vec![data], fua: false }, at, tag };
        let done = self.run(vec![request]).remove(0);
        done.result.map(|_| done.epoch)
    }

    /// Makes everything completed so far durable.
    ///
    /// # Errors
    /// See [`Disk::make_durable`].
    fn flush(&self) -> Result<(), DiskError> {
        self.make_durable(self.epoch())
    }
}

impl<D: Disk + ?Sized> DiskExt for D {}
