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
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, cqueue, opcode, squeue::Entry128, types::Fd};

use crate::abi::{
    self, InHeader, Opcode, OutHeader, RING_CMD_COMMIT_AND_FETCH, RING_CMD_REGISTER, RING_ENT_OFFSET, RING_HEADER_LEN,
    RING_OP_OFFSET, RingCmdReq, RingEntInOut,
};
use crate::buffer::PageBuffer;
use crate::crew::Sitting;
use crate::dev::DEVICE;
use crate::dispatch::{Dispatcher, takes_long};
use crate::errno::Errno;
use crate::exchange::{Exchange, concat, out_header};
use crate::fs::FileSystem;
use crate::interrupt::Held;

/// The module parameter that lets mounts use io_uring; off by default. Read when the kernel prepares the handshake,
/// which is at the mount.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Where the length field lies in a submission entry, as io_uring's ABI fixes it.
const SQE_LEN_OFFSET: usize = 24;

/// Makes the kernel offer io_uring to new mounts, if it can and we may. `false`: it will not be offered.
pub(crate) fn enable() -> bool {
    // Opening the device loads the module, without which there is no parameter.
    let _module = std::fs::File::open(DEVICE);
    let enabled = || std::fs::read_to_string(ENABLE_URING).is_ok_and(|value| value.trim() == "Y");
    enabled() || (std::fs::write(ENABLE_URING, "Y").is_ok() && enabled())
}

/// CPUs the kernel makes queues for.
pub(crate) fn possible_cpus() -> io::Result<u16> {
    let list = std::fs::read_to_string(Path::new(POSSIBLE_CPUS))?;
    count_cpus(list.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "cannot read the list of CPUs"))
}

/// Counts a list like `0-3,8`.
fn count_cpus(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// One ring with its one entry, and the queue it serves.
#[derive(Debug)]
pub(crate) struct RingSlot {
    ring: Ring,
    entry: RingEntry,
    queue: u16,
}

/// An io_uring, for `Debug`.
struct Ring(IoUring<Entry128, cqueue::Entry>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ring").field(&self.0.as_raw_fd()).finish()
    }
}

/// Memory of an entry.
#[derive(Debug)]
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
        let ring = Ring(builder.build(1)?);
        let entry = RingEntry { head: PageBuffer::new(RING_HEADER_LEN)?, payload: PageBuffer::new(payload_len)? };
        Ok(Self { ring, entry, queue })
    }

    /// Bytes of memory of a slot, near enough to stay within a bound.
    pub(crate) fn memory_len(payload_len: usize) -> usize {
        payload_len + 16 * 1024
    }

    /// The queue it serves.
    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }
}

/// Where a slot lies while its request takes long: its thread comes back for it, unless another has answered in its place.
#[derive(Debug, Default)]
pub(crate) struct Berth(Mutex<Option<Box<RingSlot>>>);

impl Berth {
    /// The slot, if it is still there.
    pub(crate) fn take(&self) -> Option<Box<RingSlot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Leaves the slot.
    pub(crate) fn put(&self, slot: Box<RingSlot>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(slot);
    }
}

/// A slot at work for a mount.
pub(crate) struct RingServer<'a> {
    slot: Option<Box<RingSlot>>,
    dev: BorrowedFd<'a>,
    sitting: Sitting,
    berth: Arc<Berth>,
}

impl<'a> RingServer<'a> {
    /// Takes the calling thread to the slot's CPU.
    ///
    /// The device is named by its descriptor and not registered with the ring: the ring of a killed process lives on
    /// for a moment, and would keep the mount from failing at once.
    pub(crate) fn new(slot: Box<RingSlot>, dev: BorrowedFd<'a>, sitting: Sitting) -> Self {
        pin_to_cpu(slot.queue);
        Self { slot: Some(slot), dev, sitting, berth: Arc::default() }
    }

    /// Goes on with a slot whose thread is still at its request, `unique`: that is answered with `EINTR`.
    pub(crate) fn adopting(
        slot: Box<RingSlot>,
        dev: BorrowedFd<'a>,
        sitting: Sitting,
        unique: u64,
    ) -> io::Result<Self> {
        let mut server = Self::new(slot, dev, sitting);
        server.slot().entry.finish(unique, Err(Errno::EINTR));
        let command = server.commit_command();
        server.push(command)?;
        Ok(server)
    }

    /// The slot: it is away only while its request takes long.
    fn slot(&mut self) -> &mut RingSlot {
        self.slot.as_mut().expect("the slot is here but while a long request is served")
    }

    /// Registers with the mount, and tells `registered` how that went.
    pub(crate) fn register(&mut self, registered: Sender<io::Result<()>>) -> io::Result<Option<Arrived>> {
        // Without a listener the session is being given up; the mount goes with it.
        match self.hand_over() {
            Ok(first) => {
                let _ = registered.send(Ok(()));
                Ok(first)
            }
            Err(error) => {
                let _ = registered.send(Err(error));
                Ok(Some(Arrived::Unmounted))
            }
        }
    }

    /// Serves until the mount is gone, or another thread has taken the slot.
    pub(crate) fn serve<F: FileSystem>(
        &mut self,
        dispatcher: &Dispatcher<F>,
        mut first: Option<Arrived>,
    ) -> io::Result<()> {
        let served = self.serve_on(dispatcher, &mut first);
        if served.is_err() {
            // The entry may still be the kernel's to write to.
            std::mem::forget(self.slot.take());
        }
        served
    }

    fn serve_on<F: FileSystem>(&mut self, dispatcher: &Dispatcher<F>, first: &mut Option<Arrived>) -> io::Result<()> {
        loop {
            match first.take().map_or_else(|| self.wait(), Ok)? {
                Arrived::Request => {
                    self.sitting.begin();
                    self.answer(dispatcher);
                    self.sitting.end();
                    if self.slot.is_none() {
                        return Ok(());
                    }
                    let command = self.commit_command();
                    self.push(command)?;
                }
                Arrived::Again(command) => self.push(*command)?,
                Arrived::Unmounted => return Ok(()),
            }
        }
    }

    /// Hands the entry to the kernel. It may come back with a request at once: clients wait for no more than one entry
    /// for each queue.
    fn hand_over(&mut self) -> io::Result<Option<Arrived>> {
        let slot = self.slot();
        let iovecs = [
            libc::iovec { iov_base: slot.entry.head.as_ptr().cast(), iov_len: RING_HEADER_LEN },
            libc::iovec { iov_base: slot.entry.payload.as_ptr().cast(), iov_len: slot.entry.payload.len() },
        ];
        let request = RingCmdReq { qid: slot.queue, ..RingCmdReq::default() };
        let command = register_command(self.dev, &request, &iovecs);
        self.push(command)?;
        // The kernel reads the vectors during this call. It answers at once if it refuses, else with a request.
        let ring = &mut self.slot().ring.0;
        ring.submit()?;
        match ring.completion().next().map(|completion| completion.result()) {
            Some(code) if code < 0 => Err(io::Error::from_raw_os_error(-code)),
            first => Ok(first.map(|_| Arrived::Request)),
        }
    }

    fn push(&mut self, command: Entry128) -> io::Result<()> {
        // SAFETY: the command refers to memory of the slot's entry only, which lives as long as the ring; the vectors of
        // REGISTER live until it was submitted.
        let pushed = unsafe { self.slot().ring.0.submission().push(&command) };
        pushed.map_err(|_| io::Error::other("the submission queue is full"))
    }

    fn wait(&mut self) -> io::Result<Arrived> {
        loop {
            let ring = &mut self.slot().ring.0;
            match ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let Some(completion) = ring.completion().next() else { continue };
            return match -completion.result() {
                libc::ENOTCONN | libc::ECONNABORTED => Ok(Arrived::Unmounted),
                libc::EAGAIN | libc::EINTR => Ok(Arrived::Again(Box::new(self.commit_command()))),
                errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
                _ => Ok(Arrived::Request),
            };
        }
    }

    /// Puts the answer to the request into the entry. The slot is away afterwards if it was answered by another thread.
    fn answer<F: FileSystem>(&mut self, dispatcher: &Dispatcher<F>) {
        let entry = &mut self.slot().entry;
        let header: InHeader = abi::parse(&entry.head).unwrap_or_default();
        if !Opcode::from_number(header.opcode).is_some_and(takes_long) {
            return dispatcher.dispatch(RingExchange::new(header, entry));
        }
        let mut args = [0; RING_ENT_OFFSET - RING_OP_OFFSET];
        args.copy_from_slice(&entry.head[RING_OP_OFFSET..RING_ENT_OFFSET]);
        let mut answer = LongAnswer { result: Err(Errno::EIO), data: [0; LONG_DATA_MAX] };
        if let Some(slot) = self.slot.take() {
            self.berth.put(slot);
        }
        dispatcher.dispatch(LongExchange { header, args: &args, answer: &mut answer, berth: &self.berth });
        self.slot = self.berth.take();
        if let Some(slot) = &mut self.slot {
            if let Ok(len) = answer.result {
                slot.entry.payload[..len].copy_from_slice(&answer.data[..len]);
            }
            slot.entry.finish(header.unique, answer.result);
        }
    }

    fn commit_command(&mut self) -> Entry128 {
        let dev = self.dev;
        let slot = self.slot();
        let commit_id = slot.entry.state().commit_id;
        let request = RingCmdReq { commit_id, qid: slot.queue, ..RingCmdReq::default() };
        command(dev, RING_CMD_COMMIT_AND_FETCH, &request, 0)
    }
}

/// What a completion meant.
pub(crate) enum Arrived {
    Request,
    /// The kernel wants the command once more.
    Again(Box<Entry128>),
    Unmounted,
}

fn command(dev: BorrowedFd<'_>, number: u32, request: &RingCmdReq, addr: u64) -> Entry128 {
    let mut area = [0; 80];
    area[..size_of::<RingCmdReq>()].copy_from_slice(abi::bytes_of(request));
    opcode::UringCmd80::new(Fd(dev.as_raw_fd()), number).cmd(area).addr(Some(addr)).build()
}

/// The builder has no way to set the number of vectors, so that is written into the finished entry.
fn register_command(dev: BorrowedFd<'_>, request: &RingCmdReq, iovecs: &[libc::iovec; 2]) -> Entry128 {
    const _: () = assert!(size_of::<Entry128>() == 128);
    let mut entry = command(dev, RING_CMD_REGISTER, request, iovecs.as_ptr() as u64);
    let start = std::ptr::from_mut(&mut entry).cast::<u8>();
    // SAFETY: an `Entry128` is the kernel's 128-byte submission entry, `repr(C)`; the field lies inside it.
    unsafe { start.add(SQE_LEN_OFFSET).cast::<u32>().write_unaligned(iovecs.len() as u32) };
    entry
}

/// A CPU that is offline cannot be pinned to; its queue is then served from anywhere.
pub(crate) fn pin_to_cpu(cpu: u16) {
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

    /// Puts the head of a reply into place.
    fn finish(&mut self, unique: u64, result: Result<usize, Errno>) {
        let head = out_header(unique, result);
        self.head[..size_of::<OutHeader>()].copy_from_slice(abi::bytes_of(&head));
        let state = RingEntInOut { payload_sz: head.len - size_of::<OutHeader>() as u32, ..self.state() };
        self.set_state(&state);
    }
}

/// The request in an entry. The reply takes the place of its payload.
struct RingExchange<'a> {
    header: InHeader,
    entry: &'a mut RingEntry,
    payload_len: usize,
}

impl<'a> RingExchange<'a> {
    fn new(header: InHeader, entry: &'a mut RingEntry) -> Self {
        let payload_len = (entry.state().payload_sz as usize).min(entry.payload.len());
        Self { header, entry, payload_len }
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
        self.entry.finish(self.header.unique, result);
    }

    fn reply_parts(mut self, parts: &[&[u8]]) {
        let len = concat(parts, self.out(usize::MAX));
        self.reply(len);
    }

    /// Such requests do not come through a ring; the entry must go on in any case.
    fn no_reply(self) {
        self.reply(Ok(0));
    }
}

/// Most that the answer to a long request carries, bytes: how much was copied.
const LONG_DATA_MAX: usize = 16;

/// The answer to a long request, until the slot is back.
struct LongAnswer {
    result: Result<usize, Errno>,
    data: [u8; LONG_DATA_MAX],
}

/// A request that may be answered by another thread: nothing of the entry is borrowed.
struct LongExchange<'a> {
    header: InHeader,
    args: &'a [u8],
    answer: &'a mut LongAnswer,
    berth: &'a Arc<Berth>,
}

impl Exchange for LongExchange<'_> {
    fn header(&self) -> &InHeader {
        &self.header
    }

    fn parts(&self, arg_len: usize) -> (&[u8], &[u8]) {
        (&self.args[..arg_len.min(self.args.len())], &[])
    }

    fn out(&mut self, max: usize) -> &mut [u8] {
        &mut self.answer.data[..max.min(LONG_DATA_MAX)]
    }

    fn reply(self, result: Result<usize, Errno>) {
        self.answer.result = result;
    }

    fn reply_parts(mut self, parts: &[&[u8]]) {
        let len = concat(parts, self.out(usize::MAX));
        self.reply(len);
    }

    fn no_reply(self) {
        self.reply(Ok(0));
    }

    fn held(&self) -> Held {
        Held::Entry(Arc::clone(self.berth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
