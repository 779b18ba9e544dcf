//! Many transfers of one batch at the device at once, through io_uring.
//!
//! A shortcut, nothing more: a transfer that does not complete whole (an error, a short count, a
//! host without io_uring) is reported as not done, and the ordinary path does it again and says
//! what is wrong. So there is one place that knows about errors.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::open::SEGMENTS_MAX;
use crate::{Op, Request};

/// Transfers at the device at once.
const DEPTH: usize = 64;

/// Rings that nobody uses at the moment: as many as threads were here together.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The host has no io_uring, or forbids it.
    unavailable: AtomicBool,
}

/// One transfer: pieces of memory that stay where they are until [`Rings::run`] has returned.
struct Transfer<'a> {
    /// Index in the batch.
    index: usize,
    offset: u64,
    bytes: u64,
    /// Flags of pwritev2 for a write; `None` for a read.
    write_flags: Option<i32>,
    pieces: SmallVec<[libc::iovec; 32]>,
    _memory: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Transfer<'a> {
    fn new(index: usize, request: &'a mut Request) -> Option<Transfer<'a>> {
        let (offset, bytes) = (request.at.byte(), request.bytes());
        let piece = |start: *mut u8, len| libc::iovec { iov_base: start.cast(), iov_len: len };
        let (pieces, write_flags): (SmallVec<[libc::iovec; 32]>, _) = match &mut request.op {
            Op::Read { into } => (into.iter_mut().map(|b| piece(b.as_mut_ptr(), b.len())).collect(), None),
            Op::Write { data, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                // The kernel only reads from there.
                (data.iter().map(|p| piece(p.as_ptr().cast_mut(), p.len())).collect(), Some(flags))
            }
            Op::Discard { .. } | Op::WriteZeroes { .. } => return None,
        };
        // The result of a transfer is an i32.
        let whole = !pieces.is_empty() && pieces.len() <= SEGMENTS_MAX && bytes < 1 << 30;
        whole.then_some(Transfer { index, offset, bytes, write_flags, pieces, _memory: std::marker::PhantomData })
    }

    fn entry(&self, fd: BorrowedFd<'_>, number: usize) -> io_uring::squeue::Entry {
        let (fd, start, len) = (types::Fd(fd.as_raw_fd()), self.pieces.as_ptr(), self.pieces.len() as u32);
        let entry = match self.write_flags {
            Some(flags) => opcode::Writev::new(fd, start, len).offset(self.offset).rw_flags(flags).build(),
            None => opcode::Readv::new(fd, start, len).offset(self.offset).build(),
        };
        entry.user_data(number as u64)
    }
}

impl Rings {
    /// Tries the chosen requests of a batch together; says for each of the batch whether it is done.
    pub(super) fn run(
        &self,
        fd: BorrowedFd<'_>,
        batch: &mut [Request],
        chosen: impl Fn(&Request) -> bool,
    ) -> Vec<bool> {
        let mut done = vec![false; batch.len()];
        let eligible = batch.iter_mut().enumerate().filter(|(_, request)| chosen(request));
        let transfers: Vec<Transfer<'_>> = eligible.filter_map(|(i, request)| Transfer::new(i, request)).collect();
        if transfers.len() < 2 {
            return done;
        }
        let Some(mut ring) = self.take() else { return done };
        for group in transfers.chunks(DEPTH) {
            run_group(&mut ring, fd, group, &mut done);
        }
        self.idle.lock().push(ring);
        done
    }

    fn take(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        let ring = IoUring::new(DEPTH as u32).ok();
        self.unavailable.store(ring.is_none(), Ordering::Relaxed);
        ring
    }
}

/// Runs at most [`DEPTH`] transfers; does not return before the kernel is done with all of them.
fn run_group(ring: &mut IoUring, fd: BorrowedFd<'_>, group: &[Transfer<'_>], done: &mut [bool]) {
    for (number, transfer) in group.iter().enumerate() {
        // SAFETY: descriptor, iovecs and memory outlive the call: `group` borrows them, and below
        // we wait for every completion.
        let pushed = unsafe { ring.submission().push(&transfer.entry(fd, number)) };
        pushed.expect("the ring is empty and has room for a group");
    }
    let mut open = group.len();
    while open > 0 {
        if let Err(error) = ring.submit_and_wait(open) {
            let passing = [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)];
            if !passing.contains(&error.raw_os_error()) {
                // The kernel may still use the memory: there is no way back.
                eprintln!("waiting for io_uring failed: {error}");
                std::process::abort();
            }
        }
        for completion in ring.completion() {
            let transfer = &group[completion.user_data() as usize];
            done[transfer.index] = u64::try_from(completion.result()) == Ok(transfer.bytes);
            open -= 1;
        }
    }
}
