//! The transport that every kernel has: read a request from /dev/fuse, write its reply.
//!
//! Beside io_uring one such reader remains: forgets and interrupts never travel through a ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use crate::abi::{self, InHeader, Opcode, OutHeader, WriteIn};
use crate::buffer::{PageBuffer, page_size};
use crate::dispatch::Dispatcher;
use crate::errno::Errno;
use crate::exchange::{Exchange, concat, out_header, split_body, split_request};
use crate::fs::FileSystem;

/// The device through which the kernel offers FUSE.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// Head of a WRITE request.
const WRITE_HEAD_LEN: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// Pause of the reader beside rings after a forget. The kernel gathers the forgets of this time into one request and
/// need not wake the reader for each: removing a file is a third quicker. An inode and its blocks are free that much
/// later, an interrupt comes that much later.
const FORGETS_GATHER: Duration = Duration::from_millis(1);

/// The two buffers of a reading thread.
pub(crate) struct DevBuffers {
    request: PageBuffer,
    reply: PageBuffer,
}

impl DevBuffers {
    /// Allocates buffers for requests and replies of at most `payload_len` bytes of data.
    pub(crate) fn new(payload_len: usize) -> io::Result<Self> {
        let len = page_size() + payload_len;
        Ok(Self { request: PageBuffer::new(len)?, reply: PageBuffer::new(len)? })
    }

    /// Waits for a request.
    pub(crate) fn receive(&mut self, dev: BorrowedFd<'_>) -> io::Result<Received> {
        receive(dev, &mut self.request[request_start()..])
    }

    /// Answers the request of `len` bytes that was received. Returns its operation, if it is known.
    pub(crate) fn answer<F: FileSystem>(
        &mut self,
        len: usize,
        dispatcher: &Dispatcher<F>,
        dev: BorrowedFd<'_>,
    ) -> Option<Opcode> {
        let start = request_start();
        // The kernel sends no malformed request; one whose head cannot be trusted cannot be answered either.
        let (header, body) = split_request(&self.request[start..start + len])?;
        dispatcher.dispatch(DevExchange { dev, header, body, reply: &mut self.reply });
        Opcode::from_number(header.opcode)
    }
}

/// Returns the offset at which requests are read, so that the data of a WRITE start on a page.
fn request_start() -> usize {
    page_size() - WRITE_HEAD_LEN
}

/// The result of reading the device.
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// The request was withdrawn, or a signal came.
    Nothing,
    /// The mount is gone.
    Unmounted,
}

/// Serves requests that never travel through a ring (forgets and interrupts), until the mount is gone. They take no
/// reply.
pub(crate) fn serve_beside_rings<F: FileSystem>(
    dispatcher: &Dispatcher<F>,
    dev: BorrowedFd<'_>,
    mut buffers: DevBuffers,
) -> io::Result<()> {
    loop {
        match buffers.receive(dev)? {
            Received::Request(len) => {
                let opcode = buffers.answer(len, dispatcher, dev);
                if matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget)) {
                    thread::sleep(FORGETS_GATHER);
                }
            }
            Received::Nothing => {}
            Received::Unmounted => return Ok(()),
        }
    }
}

fn receive(dev: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Received> {
    // SAFETY: the buffer is valid for writes of its length.
    let len = unsafe { libc::read(dev.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
    if let Ok(len) = usize::try_from(len) {
        return Ok(Received::Request(len));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(Received::Nothing),
        Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Received::Unmounted),
        _ => Err(error),
    }
}

/// Writes one message, head included. Errors are ignored: if the mount is gone or the request was withdrawn, the
/// message is not needed, and there is no way to report any other failure.
fn send(dev: BorrowedFd<'_>, message: &[u8]) {
    // SAFETY: the message is valid for reads of its length.
    unsafe { libc::write(dev.as_raw_fd(), message.as_ptr().cast(), message.len()) };
}

/// A request read from the device. The reply's data start on the second page of `reply`, its head right before.
struct DevExchange<'a> {
    dev: BorrowedFd<'a>,
    header: InHeader,
    body: &'a [u8],
    reply: &'a mut [u8],
}

impl Exchange for DevExchange<'_> {
    fn header(&self) -> &InHeader {
        &self.header
    }

    fn parts(&self, arg_len: usize) -> (&[u8], &[u8]) {
        split_body(self.body, arg_len)
    }

    fn out(&mut self, max: usize) -> &mut [u8] {
        let data = &mut self.reply[page_size()..];
        let len = max.min(data.len());
        &mut data[..len]
    }

    fn reply(self, result: Result<usize, Errno>) {
        let head = out_header(self.header.unique, result);
        let start = page_size() - size_of::<OutHeader>();
        let message = &mut self.reply[start..start + head.len as usize];
        message[..size_of::<OutHeader>()].copy_from_slice(abi::bytes_of(&head));
        send(self.dev, message);
    }

    fn reply_parts(mut self, parts: &[&[u8]]) {
        let len = concat(parts, self.out(usize::MAX));
        self.reply(len);
    }

    fn no_reply(self) {}
}

/// Reads the first requests of a mount and answers each as `answer` says, until it returns `Some`.
pub(crate) fn handshake<T, E: From<io::Error>>(
    dev: BorrowedFd<'_>,
    mut answer: impl FnMut(&[u8], &mut Vec<u8>) -> Result<Option<T>, E>,
) -> Result<T, E> {
    let mut request = vec![0; HANDSHAKE_LEN_MAX];
    let mut reply = Vec::new();
    loop {
        match receive(dev, &mut request)? {
            Received::Request(len) => {
                reply.clear();
                let done = answer(&request[..len], &mut reply)?;
                send(dev, &reply);
                if let Some(done) = done {
                    return Ok(done);
                }
            }
            Received::Nothing => {}
            Received::Unmounted => return Err(io::Error::from_raw_os_error(libc::ENODEV).into()),
        }
    }
}

/// Length of the buffer of the handshake, bytes. The kernel refuses to read into less than 8 KiB.
const HANDSHAKE_LEN_MAX: usize = 64 << 10;
