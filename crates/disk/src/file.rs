//! Image files and block devices.
//!
//! Requests bypass the host's page cache (`O_DIRECT`) where the host can: buffered I/O would double
//! the memory, and report write errors only at the flush, without the block. Requests whose
//! address, length or memory is not aligned to [`Limits::io_align`] go through an aligned copy.
//! Alignment within one unit needs read-modify-write; a lock keeps two of them apart.
//!
//! An open image or device is locked against a second user (`flock`; block devices also `O_EXCL`).
//! The lock is advisory: programs that do not ask are not kept out.
//!
//! Requests are executed in `submit`, by the caller's thread; those of one batch overlap at the
//! device. That measured faster than one after the other, and needs no thread.
//!
//! A full host file system below an image is [`DiskError::HostFull`], not an I/O error. A failed
//! flush is latched ([`Disk::make_durable`]).
//!
//! | module | what it holds |
//! |---|---|
//! | [`open`] | options, the lock, what the host says about alignment and size |
//! | `ring` | the transfers of one batch at the device at once |
//! | `transfer` | gather reads and writes, bouncing, discard, zeroes, flush |

pub mod open;
mod ring;
mod transfer;

use std::path::Path;

use moafs_runtime::Rt;

use crate::completions::Completions;
use crate::epoch::Flusher;
use crate::{Buf, Disk, DiskError, Done, Epoch, Limits, Op, Request, Ticket};

pub use open::{Direct, FileOptions, Sharing};
use transfer::Handle;

/// An image file or block device.
pub struct FileDisk {
    limits: Limits,
    handle: Handle,
    flusher: Flusher,
    completions: Completions,
}

impl FileDisk {
    /// Opens and locks an existing image or device.
    ///
    /// # Errors
    /// [`DiskError::Busy`] when somebody else uses it, [`DiskError::Open`] otherwise.
    pub fn open(path: impl AsRef<Path>, rt: Rt, options: FileOptions) -> Result<FileDisk, DiskError> {
        let (handle, limits) = open::open(path.as_ref(), &rt, &options)?;
        Ok(FileDisk::assemble(handle, limits, rt))
    }

    /// Creates a sparse image of `bytes` bytes and opens it. There must be no file of that name.
    ///
    /// # Errors
    /// [`DiskError::Open`] when it exists or cannot be made.
    pub fn create(path: impl AsRef<Path>, bytes: u64, rt: Rt, options: FileOptions) -> Result<FileDisk, DiskError> {
        let (handle, limits) = open::create(path.as_ref(), bytes, &rt, &options)?;
        Ok(FileDisk::assemble(handle, limits, rt))
    }

    fn assemble(handle: Handle, limits: Limits, rt: Rt) -> FileDisk {
        FileDisk { limits, handle, flusher: Flusher::new(rt), completions: Completions::default() }
    }

    /// True if requests bypass the host's page cache.
    pub fn is_direct(&self) -> bool {
        self.handle.is_direct()
    }

    fn execute(&self, request: Request) -> Result<Vec<Buf>, DiskError> {
        self.limits.check(&request)?;
        let (name, at, bytes) = (request.op.name(), request.at, request.bytes());
        let offset = at.byte();
        let fail = |errno: rustix::io::Errno| match errno {
            rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT => DiskError::HostFull { at, bytes },
            other => DiskError::io(name, at, bytes, other.raw_os_error()),
        };
        match request.op {
            Op::Read { mut into } => {
                self.handle.read(offset, &mut into).map_err(fail)?;
                return Ok(into);
            }
            Op::Write { data, fua } => self.handle.write(offset, &data, fua),
            Op::Discard { .. } => self.handle.discard(offset, bytes),
            Op::WriteZeroes { .. } => self.handle.write_zeroes(offset, bytes),
        }
        .map_err(fail)?;
        Ok(Vec::new())
    }
}

impl Disk for FileDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut batch: Vec<Request>) -> Ticket {
        let overlapped = self.handle.overlap(&mut batch, &self.limits);
        let finish = |(request, done): (Request, bool)| {
            let result = if done { Ok(request.op.into_buffers()) } else { self.execute(request) };
            let epoch = self.epoch();
            Done { result, epoch }
        };
        self.completions.put(batch.into_iter().zip(overlapped).map(finish).collect())
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.completions.take(ticket)
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.flusher.make_durable(upto, || self.handle.flush().map_err(|e| DiskError::flush(e.raw_os_error())))
    }

    fn epoch(&self) -> Epoch {
        self.flusher.epochs().current()
    }

    fn durable(&self) -> Option<Epoch> {
        self.flusher.epochs().durable()
    }
}

impl std::fmt::Debug for FileDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDisk").field("limits", &self.limits).field("direct", &self.is_direct()).finish()
    }
}

#[cfg(test)]
mod tests;
