//! Many transfers of one batch at the device at once, through io_uring, while the caller goes on.
//!
//! A shortcut, nothing more: a transfer that does not complete whole (an error, a short count, a
//! host without io_uring) is reported as not done, and the ordinary path does it again and says
//! what is wrong. So there is one place that knows about errors.
//!
//! Every batch has a ring of its own as long as it is under way: nobody else's completions come out of it, and whoever
//! waits for the batch waits in the kernel, without a lock. Rings are used again.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::open::SEGMENTS_MAX;
use crate::{Op, ReadPart, Request};

/// Transfers of a batch at the device at once.
const DEPTH: usize = 64;

/// Rings that nobody uses at the moment: as many as batches were under way together.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The host has no io_uring, or forbids it.
    unavailable: AtomicBool,
}

/// One transfer.
pub(super) struct Transfer {
    /// Index in the batch.
    index: usize,
    offset: u64,
    bytes: u64,
    /// Flags of pwritev2 for a write; `None` for a read.
    write_flags: Option<i32>,
    pieces: SmallVec<[libc::iovec; 4]>,
}

// SAFETY: the pieces are addresses for the kernel; nobody follows them here.
unsafe impl Send for Transfer {}

impl Transfer {
    /// `None` for what is no transfer, or too large for one.
    pub(super) fn of_request(index: usize, request: &mut Request) -> Option<Transfer> {
        let offset = request.at.byte();
        match &mut request.op {
            Op::Read { into } => Transfer::new(index, offset, None, into.iter_mut().map(|b| (b.as_mut_ptr(), b.len()))),
            Op::Write { data, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                // The kernel only reads from there.
                let pieces = data.iter().map(|p| (p.as_ptr().cast_mut(), p.len()));
                Transfer::new(index, offset, Some(flags), pieces)
            }
            Op::Discard { .. } | Op::WriteZeroes { .. } => None,
        }
    }

    /// As [`Transfer::of_request`], of a read into somebody's memory.
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
                // Blocks that lie side by side, as those of a large file do, are one piece to the host.
                Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
                _ => pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len }),
            }
        }
        // The result of a transfer is an i32.
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

/// Transfers under way. Dropping it waits until the kernel is done with them.
pub(super) struct Flight {
    rings: Arc<Rings>,
    /// There until the flight is dropped.
    ring: Option<IoUring>,
    fd: RawFd,
    transfers: Vec<Transfer>,
    /// The next transfer to be handed to the kernel.
    next: usize,
    /// Transfers that the kernel has.
    open: usize,
    /// By index in the batch.
    done: Vec<bool>,
}

impl Flight {
    /// Hands the transfers of a batch of `len` requests to the kernel, as many as it takes, and returns. `None`: they
    /// are too few for it to be worth while, or the host cannot.
    ///
    /// # Safety
    /// The memory of the transfers lives, and is not touched, until the flight has landed or was dropped; so does `fd`.
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
        // What the kernel does not take now it takes when somebody waits.
        let _ = flight.ring().submit();
        Some(flight)
    }

    /// Waits until all transfers have ended; says for each request of the batch whether it is done.
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
        // All that are left need one wait only.
        let wanted = if self.next < self.transfers.len() { 1 } else { self.open };
        if let Err(error) = self.ring().submit_and_wait(wanted) {
            let passing = [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)];
            if !passing.contains(&error.raw_os_error()) {
                // The kernel may still use the memory: there is no way back.
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
        // A host that gave one before is only short of something.
        self.unavailable.store(ring.is_none(), Ordering::Relaxed);
        ring
    }
}
