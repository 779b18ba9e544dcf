//! Many transfers of one batch at the device at once, through io_uring, while the caller continues.
//!
//! A fast path only: a transfer that does not complete whole (an error, a short count, a host
//! without io_uring) is reported as not done; the ordinary path then repeats it and reports the
//! error. So errors are handled in one place.
//!
//! Every batch has a ring of its own while it is under way: no other batch's completions come out of it, and the task
//! that waits for the batch waits in the kernel, without a lock. Rings are reused.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{Op, ReadPart, Request};

/// Pieces of memory in one system call (`IOV_MAX`).
pub(super) const SEGMENTS_MAX: usize = 1024;

/// Transfers of a batch at the device at once.
const DEPTH: usize = 64;

/// Rings not in use: at most as many as batches were under way together.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The host has no io_uring, or forbids it.
    unavailable: AtomicBool,
    /// The host has given one.
    was_made: AtomicBool,
}

/// One read or write to be submitted to the kernel.
pub(super) struct Transfer {
    /// Index in the batch.
    index: usize,
    offset: u64,
    bytes: u64,
    /// Flags of pwritev2 for a write; `None` for a read.
    write_flags: Option<i32>,
    pieces: SmallVec<[libc::iovec; 4]>,
}

// SAFETY: the pieces are addresses for the kernel; this process does not dereference them here.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Makes the transfer of a request; `None` for a request that is no transfer, or too large for
    /// one.
    pub(super) fn of_request(index: usize, request: &mut Request) -> Option<Transfer> {
        let offset = request.at.byte();
        match &mut request.op {
            Op::Read { into } => Transfer::new(index, offset, None, into.iter_mut().map(|b| (b.as_mut_ptr(), b.len()))),
            Op::Write { data, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                // The kernel only reads from these addresses.
                let pieces = data.iter().map(|p| (p.as_ptr().cast_mut(), p.len()));
                Transfer::new(index, offset, Some(flags), pieces)
            }
            Op::Discard { .. } | Op::WriteZeroes { .. } => None,
        }
    }

    /// Makes the transfer of a read into the caller's memory, as [`Transfer::of_request`] does.
    pub(super) fn of_part(index: usize, part: &mut ReadPart<'_>) -> Option<Transfer> {
        let piece = (part.into.as_mut_ptr(), part.into.len());
        Transfer::new(index, part.at.byte(), None, std::iter::once(piece))
    }

    fn new(
        index: usize,
        offset: u64,
        write_flags: Option<i32>,
        memory: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Option<Transfer> {
        let mut pieces: SmallVec<[libc::iovec; 4]> = SmallVec::new();
        let mut bytes = 0;
        for (start, len) in memory {
            bytes += len as u64;
            match pieces.last_mut() {
                // Adjacent blocks, as those of a large file usually are, become one piece.
                Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
                _ => pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len }),
            }
        }
        // The result of a transfer is an i32, so its length must fit one.
        let whole = !pieces.is_empty() && pieces.len() <= SEGMENTS_MAX && bytes < 1 << 30;
        whole.then_some(Transfer { index, offset, bytes, write_flags, pieces })
    }

    fn entry(&self, fd: RawFd, number: usize) -> io_uring::squeue::Entry {
        let (fd, start, len) = (types::Fd(fd), self.pieces.as_ptr(), self.pieces.len() as u32);
        let entry = match self.write_flags {
            Some(flags) => opcode::Writev::new(fd, start, len).offset(self.offset).rw_flags(flags).build(),
            None => opcode::Readv::new(fd, start, len).offset(self.offset).build(),
        };
        entry.user_data(number as u64)
    }
}

/// Transfers of one batch under way. Dropping it waits until the kernel has ended them all.
pub(super) struct Flight {
    rings: Arc<Rings>,
    /// `Some` until the flight is dropped.
    ring: Option<IoUring>,
    fd: RawFd,
    transfers: Vec<Transfer>,
    /// The index of the next transfer to submit to the kernel.
    next: usize,
    /// The number of transfers submitted and not completed.
    open: usize,
    /// True for completed requests, by index in the batch.
    done: Vec<bool>,
}

impl Flight {
    /// Submits the transfers of a batch of `len` requests to the kernel, as many as it takes, and returns. `None`:
    /// there are too few of them for a ring to pay, or the host cannot.
    ///
    /// # Safety
    /// The memory of the transfers lives, and is not touched, until [`Flight::land`] has returned or the
    /// flight was dropped; so does `fd`.
    pub(super) unsafe fn start(
        rings: &Arc<Rings>,
        fd: BorrowedFd<'_>,
        transfers: Vec<Transfer>,
        len: usize,
    ) -> Option<Flight> {
        if transfers.len() < 2 {
            return None;
        }
        let (ring, rings) = (Some(rings.take()?), Arc::clone(rings));
        let fd = fd.as_raw_fd();
        let mut flight = Flight { rings, ring, fd, transfers, next: 0, open: 0, done: vec![false; len] };
        flight.fill();
        // Transfers that the kernel does not take now are submitted when the batch is waited for.
        let _ = flight.ring().submit();
        Some(flight)
    }

    /// Waits until all transfers have ended; returns for each request of the batch whether it is
    /// done.
    pub(super) fn land(mut self) -> Vec<bool> {
        while self.open > 0 {
            self.reap();
            self.fill();
        }
        std::mem::take(&mut self.done)
    }

    fn ring(&mut self) -> &mut IoUring {
        self.ring.as_mut().expect("a flight has its ring until it is dropped")
    }

    fn fill(&mut self) {
        while self.open < DEPTH && self.next < self.transfers.len() {
            let entry = self.transfers[self.next].entry(self.fd, self.next);
            // SAFETY: descriptor and memory outlive the flight, as `start` demands; the iovecs are our own. All of them
            // stay where they are until every completion was seen.
            let pushed = unsafe { self.ring().submission().push(&entry) };
            pushed.expect("the ring has room for as many as are open");
            self.next += 1;
            self.open += 1;
        }
    }

    /// Waits for completions, at least for one.
    fn reap(&mut self) {
        // If all that are left are submitted, one wait is enough.
        let wanted = if self.next < self.transfers.len() { 1 } else { self.open };
        if let Err(error) = self.ring().submit_and_wait(wanted) {
            let passing = [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)];
            if !passing.contains(&error.raw_os_error()) {
                // The kernel may still use the memory, so the error cannot be returned.
                eprintln!("waiting for io_uring failed: {error}");
                std::process::abort();
            }
        }
        let ended: SmallVec<[(u64, i32); DEPTH]> =
            self.ring().completion().map(|completion| (completion.user_data(), completion.result())).collect();
        for (number, result) in ended {
            let transfer = &self.transfers[number as usize];
            self.done[transfer.index] = u64::try_from(result) == Ok(transfer.bytes);
            self.open -= 1;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        while self.open > 0 {
            self.reap();
        }
        self.rings.idle.lock().extend(self.ring.take());
    }
}

impl Rings {
    fn take(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        let ring = IoUring::new(DEPTH as u32).ok();
        // A host that gave a ring before is only short of a resource now.
        match ring {
            Some(_) => self.was_made.store(true, Ordering::Relaxed),
            None => self.unavailable.store(!self.was_made.load(Ordering::Relaxed), Ordering::Relaxed),
        }
        ring
    }
}
