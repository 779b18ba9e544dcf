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
//! The aligned transfers of a batch go to the device together in `submit`, which returns at once; `wait` reaps them. A
//! single request, an unaligned one, or one that is no transfer is executed by the caller's thread: one system call is
//! cheaper than two. A request completes when `wait` has seen it, and only then reads its epoch: a flush that was
//! issued before cannot be taken to cover it. Dropping the disk waits for requests under way.
//!
//! A full host file system below an image is [`DiskError::HostFull`], not an I/O error. A failed
//! flush is latched ([`Disk::make_durable`]).
//!
//! | module | contents |
//! |---|---|
//! | [`open`] | options, the lock, the host's alignment and size |
//! | `ring` | the transfers of one batch at the device at once, while the caller continues |
//! | `transfer` | gather reads and writes, copies for alignment, discard, zeroes, flush |

pub mod open;
mod ring;
mod transfer;

use std::path::Path;

use moafs_runtime::Rt;

use crate::completions::Completions;
use crate::epoch::Flusher;
use crate::{Buf, Disk, DiskError, Done, Epoch, Limits, Op, ReadPart, Request, Tag, Ticket};

pub use open::{Direct, FileOptions, Sharing};
use transfer::{Handle, Started};

/// An image file or block device.
pub struct FileDisk {
    /// Dropped before the handle: batches under way use its descriptor.
    batches: Completions<Batch>,
    limits: Limits,
    handle: Handle,
    flusher: Flusher,
}

/// A batch that was submitted and not yet waited for.
enum Batch {
    Started(Box<Started>),
    Ended(Vec<Done>),
}

impl FileDisk {
    /// Opens and locks an existing image or device.
    ///
    /// # Errors
    /// [`DiskError::Busy`] when another program has it open, [`DiskError::Open`]
    /// otherwise.
    pub fn open(path: impl AsRef<Path>, rt: Rt, options: FileOptions) -> Result<FileDisk, DiskError> {
        let (handle, limits) = open::open(path.as_ref(), &rt, &options)?;
        Ok(FileDisk::assemble(handle, limits, rt))
    }

    /// Creates a sparse image of `bytes` bytes and opens it. No file of that name may exist.
    ///
    /// # Errors
    /// [`DiskError::Open`] when it exists or cannot be made.
    pub fn create(path: impl AsRef<Path>, bytes: u64, rt: Rt, options: FileOptions) -> Result<FileDisk, DiskError> {
        let (handle, limits) = open::create(path.as_ref(), bytes, &rt, &options)?;
        Ok(FileDisk::assemble(handle, limits, rt))
    }

    fn assemble(handle: Handle, limits: Limits, rt: Rt) -> FileDisk {
        FileDisk { batches: Completions::default(), limits, handle, flusher: Flusher::new(rt) }
    }

    /// Returns true if requests bypass the host's page cache.
    pub fn is_direct(&self) -> bool {
        self.handle.is_direct()
    }

    /// Completes a request: executes it unless it is `done`.
    fn end(&self, request: Request, done: bool) -> Done {
        let result = if done { Ok(request.op.into_buffers()) } else { self.execute(request) };
        Done { result, epoch: self.epoch() }
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

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        self.batches.put(match self.handle.start(batch, &self.limits) {
            Ok(started) => Batch::Started(Box::new(started)),
            Err(batch) => Batch::Ended(batch.into_iter().map(|request| self.end(request, false)).collect()),
        })
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        match self.batches.take(ticket) {
            Batch::Started(started) => started.finish().map(|(request, done)| self.end(request, done)).collect(),
            Batch::Ended(done) => done,
        }
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], _tag: Tag) -> Result<(), DiskError> {
        for part in &*parts {
            self.limits.check_range("read", part.at, part.into.len() as u64)?;
        }
        let done = self.handle.overlap_parts(parts);
        for (part, _) in parts.iter_mut().zip(done).filter(|(_, done)| !done) {
            let read = self.handle.read_slice(part.at.byte(), part.into);
            read.map_err(|e| DiskError::io("read", part.at, part.into.len() as u64, e.raw_os_error()))?;
        }
        Ok(())
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
