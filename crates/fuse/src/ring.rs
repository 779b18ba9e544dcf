//! FUSE over io_uring: requests and replies travel through shared memory, one system call per round trip.
//!
//! The kernel has a queue per possible CPU. Each queue is served by a few threads pinned to its CPU, and each thread
//! has a ring of its own with exactly one entry: an entry is on offer only while its thread is idle, so a handler that
//! blocks never holds up a request that another thread could take.
//!
//! An entry goes around: REGISTER hands it to the kernel; a completion brings it back with a request;
//! COMMIT_AND_FETCH hands it over with the reply and waits for the next. Between completion and commit the entry's
//! memory is ours alone. Every queue must have an entry before the kernel lets any request through: all memory and
//! rings are made before the handshake, so that after it only REGISTER can fail; the kernel then falls back to
//! /dev/fuse by itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::Sender;

use io_uring::{IoUring, cqueue, opcode, squeue::Entry128, types::Fd};

use crate::abi::{
    self, InHeader, OutHeader, RING_CMD_COMMIT_AND_FETCH, RING_CMD_REGISTER, RING_ENT_OFFSET, RING_HEADER_LEN,
    RING_OP_OFFSET, RingCmdReq, RingEntInOut,
};
use crate::buffer::PageBuffer;
use crate::dev::DEVICE;
use crate::dispatch::Dispatcher;
use crate::errno::Errno;
use crate::exchange::{Exchange, concat, out_header};
use crate::fs::FileSystem;
use crate::scheduling::{Pace, ServedQueue};

/// The module parameter that lets mounts use io_uring; off by default. The kernel reads it when it prepares the
/// handshake, which is at the mount.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Offset of the length field in a submission entry, bytes, as io_uring's ABI fixes it.
const SQE_LEN_OFFSET: usize = 24;

/// Makes the kernel offer io_uring to new mounts, if it can and this process may. Returns false if it will not be
/// offered.
pub(crate) fn enable() -> bool {
    // Opening the device loads the module, without which there is no parameter.
    let _module = std::fs::File::open(DEVICE);
    let enabled = || std::fs::read_to_string(ENABLE_URING).is_ok_and(|value| value.trim() == "Y");
    enabled() || (std::fs::write(ENABLE_URING, "Y").is_ok() && enabled())
}

/// Returns the number of CPUs that the kernel makes queues for.
pub(crate) fn possible_cpus() -> io::Result<u16> {
    let list = std::fs::read_to_string(Path::new(POSSIBLE_CPUS))?;
    count_cpus(list.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "cannot read the list of CPUs"))
}

/// Counts the CPUs of a list like `0-3,8`.
fn count_cpus(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// One ring with its one entry, and the queue it serves.
pub(crate) struct RingSlot {
    ring: IoUring<Entry128, cqueue::Entry>,
    entry: RingEntry,
    queue: u16,
}

/// Memory of an entry.
struct RingEntry {
    /// Head of the request or reply, argument, state.
    head: PageBuffer,
    payload: PageBuffer,
}

impl RingSlot {
    /// Prepares a slot for `queue` with `payload_len` bytes of data. Does not involve a mount yet.
    pub(crate) fn new(queue: u16, payload_len: usize) -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        builder.setup_submit_all();
        let ring = builder.build(1)?;
        let entry = RingEntry { head: PageBuffer::new(RING_HEADER_LEN)?, payload: PageBuffer::new(payload_len)? };
        Ok(Self { ring, entry, queue })
    }

    /// Returns the queue that the slot serves.
    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the bytes of memory of a slot, near enough to stay within a bound.
    pub(crate) fn memory_len(payload_len: usize) -> usize {
        payload_len + 16 * 1024
    }

    /// Registers with the mount behind `dev`, tells `registered` how that went, and serves until the mount is gone.
    ///
    /// The device is named by its descriptor and not registered with the ring: the ring of a killed process lives on
    /// for a moment, and would keep the mount from failing at once.
    pub(crate) fn serve<F: FileSystem>(
        self,
        dispatcher: &Dispatcher<F>,
        dev: BorrowedFd<'_>,
        queue: ServedQueue,
        registered: Sender<io::Result<()>>,
    ) -> io::Result<()> {
        pin_to_cpu(self.queue);
        let mut server = RingServer { slot: self, dev, pace: queue.begin() };
        let (result, mut first) = match server.register() {
            Ok(first) => (Ok(()), first),
            Err(error) => (Err(error), Some(Arrived::Unmounted)),
        };
        // The receiver is gone if the session is being given up; the mount goes with it.
        let _ = registered.send(result);
        drop(registered);
        let served = server.serve(dispatcher, &mut first);
        if served.is_err() {
            // The entry may still be the kernel's to write to.
            std::mem::forget(server.slot);
        }
        served
    }
}

/// A slot that serves a mount.
struct RingServer<'a> {
    slot: RingSlot,
    dev: BorrowedFd<'a>,
    pace: Pace,
}

impl RingServer<'_> {
    fn serve<F: FileSystem>(&mut self, dispatcher: &Dispatcher<F>, first: &mut Option<Arrived>) -> io::Result<()> {
        loop {
            match first.take().map_or_else(|| self.wait(), Ok)? {
                Arrived::Request => self.answer(dispatcher)?,
                Arrived::Again(command) => self.push(command)?,
                Arrived::Unmounted => return Ok(()),
            }
        }
    }

    /// Hands the entry to the kernel. It may come back with a request at once: clients wait only until each queue has
    /// one entry.
    fn register(&mut self) -> io::Result<Option<Arrived>> {
        let iovecs = [
            libc::iovec { iov_base: self.slot.entry.head.as_ptr().cast(), iov_len: RING_HEADER_LEN },
            libc::iovec { iov_base: self.slot.entry.payload.as_ptr().cast(), iov_len: self.slot.entry.payload.len() },
        ];
        let request = RingCmdReq { qid: self.slot.queue, ..RingCmdReq::default() };
        let command = register_command(self.dev, &request, &iovecs);
        self.push(command)?;
        // The kernel reads the vectors during this call. It answers at once if it refuses, else with a request.
        self.slot.ring.submit()?;
        match self.slot.ring.completion().next().map(|completion| completion.result()) {
            Some(code) if code < 0 => Err(io::Error::from_raw_os_error(-code)),
            first => Ok(first.map(|_| Arrived::Request)),
        }
    }

    fn push(&mut self, command: Entry128) -> io::Result<()> {
        // SAFETY: the command refers to memory of `self.slot.entry` only, which lives as long as the ring; the vectors
        // of REGISTER live until it was submitted.
        let pushed = unsafe { self.slot.ring.submission().push(&command) };
        pushed.map_err(|_| io::Error::other("the submission queue is full"))
    }

    fn wait(&mut self) -> io::Result<Arrived> {
        loop {
            match self.slot.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let Some(completion) = self.slot.ring.completion().next() else { continue };
            return match -completion.result() {
                libc::ENOTCONN | libc::ECONNABORTED => Ok(Arrived::Unmounted),
                libc::EAGAIN | libc::EINTR => Ok(Arrived::Again(self.commit_command())),
                errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
                _ => Ok(Arrived::Request),
            };
        }
    }

    fn answer<F: FileSystem>(&mut self, dispatcher: &Dispatcher<F>) -> io::Result<()> {
        dispatcher.dispatch(RingExchange::new(&mut self.slot.entry));
        self.pace.count();
        let command = self.commit_command();
        self.push(command)
    }

    fn commit_command(&self) -> Entry128 {
        let state = self.slot.entry.state();
        command(
            self.dev,
            RING_CMD_COMMIT_AND_FETCH,
            &RingCmdReq { commit_id: state.commit_id, qid: self.slot.queue, ..RingCmdReq::default() },
            0,
        )
    }
}

/// The meaning of a completion.
enum Arrived {
    Request,
    /// The kernel wants the command once more.
    Again(Entry128),
    Unmounted,
}

fn command(dev: BorrowedFd<'_>, number: u32, request: &RingCmdReq, addr: u64) -> Entry128 {
    let mut area = [0; 80];
    area[..size_of::<RingCmdReq>()].copy_from_slice(abi::bytes_of(request));
    opcode::UringCmd80::new(Fd(dev.as_raw_fd()), number).cmd(area).addr(Some(addr)).build()
}

/// Builds the command REGISTER. The builder cannot set the number of vectors, so that is written into the finished
/// entry.
fn register_command(dev: BorrowedFd<'_>, request: &RingCmdReq, iovecs: &[libc::iovec; 2]) -> Entry128 {
    const _: () = assert!(size_of::<Entry128>() == 128);
    let mut entry = command(dev, RING_CMD_REGISTER, request, iovecs.as_ptr() as u64);
    let start = std::ptr::from_mut(&mut entry).cast::<u8>();
    // SAFETY: an `Entry128` is the kernel's 128-byte submission entry, `repr(C)`; the field lies inside it.
    unsafe { start.add(SQE_LEN_OFFSET).cast::<u32>().write_unaligned(iovecs.len() as u32) };
    entry
}

/// Pins the thread to its queue's CPU. It stays unpinned if the CPU is offline.
fn pin_to_cpu(cpu: u16) {
    if usize::from(cpu) >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: the set is plain data, the CPU is within it, and 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::from(cpu), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

impl RingEntry {
    fn state(&self) -> RingEntInOut {
        abi::parse(&self.head[RING_ENT_OFFSET..]).unwrap_or_default()
    }

    fn set_state(&mut self, state: &RingEntInOut) {
        self.head[RING_ENT_OFFSET..RING_HEADER_LEN].copy_from_slice(abi::bytes_of(state));
    }
}

/// The request in an entry. The reply takes the place of its payload.
struct RingExchange<'a> {
    header: InHeader,
    entry: &'a mut RingEntry,
    payload_len: usize,
}

impl<'a> RingExchange<'a> {
    fn new(entry: &'a mut RingEntry) -> Self {
        let header: InHeader = abi::parse(&entry.head).unwrap_or_default();
        let payload_len = (entry.state().payload_sz as usize).min(entry.payload.len());
        Self { header, entry, payload_len }
    }

    fn finish(self, result: Result<usize, Errno>) {
        let head = out_header(self.header.unique, result);
        self.entry.head[..size_of::<OutHeader>()].copy_from_slice(abi::bytes_of(&head));
        let state = RingEntInOut { payload_sz: head.len - size_of::<OutHeader>() as u32, ..self.entry.state() };
        self.entry.set_state(&state);
    }
}

impl Exchange for RingExchange<'_> {
    fn header(&self) -> &InHeader {
        &self.header
    }

    fn parts(&self, arg_len: usize) -> (&[u8], &[u8]) {
        let op_area = &self.entry.head[RING_OP_OFFSET..RING_ENT_OFFSET];
        (&op_area[..arg_len.min(op_area.len())], &self.entry.payload[..self.payload_len])
    }

    fn out(&mut self, max: usize) -> &mut [u8] {
        let len = max.min(self.entry.payload.len());
        &mut self.entry.payload[..len]
    }

    fn reply(self, result: Result<usize, Errno>) {
        self.finish(result);
    }

    fn reply_parts(mut self, parts: &[&[u8]]) {
        let len = concat(parts, self.out(usize::MAX));
        self.finish(len);
    }

    /// Commits an empty reply. Requests without reply do not come through a ring, but the entry must return to the
    /// kernel.
    fn no_reply(self) {
        self.finish(Ok(0));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::init::InitFlags;
    use crate::scheduling::Guard;

    struct Nothing;

    impl FileSystem for Nothing {}

    /// Returns true if all pages of a range are mapped.
    fn is_mapped((start, len): (*mut u8, usize)) -> bool {
        let mut resident = vec![0; len.div_ceil(4096)];
        // SAFETY: the call only asks about the pages, and writes a byte for each into the vector.
        unsafe { libc::mincore(start.cast(), len, resident.as_mut_ptr()) == 0 }
    }

    /// The device is a socket: it answers REGISTER, whose number it takes for a question about its queue, and refuses
    /// COMMIT_AND_FETCH, as a device that fails between two requests.
    #[test]
    fn the_memory_of_a_slot_whose_service_fails_stays_mapped() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let Ok(slot) = RingSlot::new(0, 4096) else { return eprintln!("SKIPPED: no io_uring") };
        let memory = [&slot.entry.head, &slot.entry.payload].map(|buffer| (buffer.as_ptr(), buffer.len()));
        let guard = Guard::start(1).expect("a thread");
        let dispatcher = Dispatcher::new(Arc::new(Nothing), InitFlags::empty());
        let (registered, answer) = mpsc::channel();
        let served = slot.serve(&dispatcher, socket.as_fd(), guard.queue(0), registered);
        if let Err(error) = answer.recv().expect("an answer to REGISTER") {
            return eprintln!("SKIPPED: sockets take no commands: {error}");
        }
        assert_eq!(served.expect_err("COMMIT_AND_FETCH fails").raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(memory.into_iter().all(is_mapped), "the kernel may still write there");
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for bad in ["", "3-1", "a", "0-65535,1", "0-"] {
            assert_eq!(count_cpus(bad), None, "{bad}");
        }
    }
}
