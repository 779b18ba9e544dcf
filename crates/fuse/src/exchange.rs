//! One request and the place for its reply: what a transport hands to the dispatcher.
//!
//! Over io_uring, request and reply share one buffer. The borrow checker keeps them apart: the request's bytes are
//! borrowed from the exchange, and room for the reply is only had by borrowing it exclusively.

use crate::abi::{self, InHeader, OutHeader};
use crate::errno::Errno;

/// One request and the place for its reply.
pub(crate) trait Exchange {
    /// Returns the head of the request.
    fn header(&self) -> &InHeader;

    /// Returns the operation's fixed argument of `arg_len` bytes, and the bytes after it: names, data. An argument that
    /// is too short is returned as it is, for the dispatcher to refuse.
    fn parts(&self, arg_len: usize) -> (&[u8], &[u8]);

    /// Returns room for the reply's data: `max` bytes, or fewer if the transport has no more. Contents are unspecified.
    fn out(&mut self, max: usize) -> &mut [u8];

    /// Replies with the first `len` bytes of [`out`](Self::out), or an error.
    fn reply(self, result: Result<usize, Errno>);

    /// Replies with these bytes, one part after the other. They are copied, so they should be few.
    fn reply_parts(self, parts: &[&[u8]]);

    /// Ends a request that takes no reply.
    fn no_reply(self);
}

/// Returns the head of a reply with `len` bytes of data, or of an error.
pub(crate) fn out_header(unique: u64, result: Result<usize, Errno>) -> OutHeader {
    let (len, error) = match result {
        Ok(len) => (len, 0),
        Err(errno) => (0, -errno.raw()),
    };
    OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique }
}

/// Copies `parts` to the start of `out` and returns the bytes copied, or `EIO` if they do not fit.
pub(crate) fn concat(parts: &[&[u8]], out: &mut [u8]) -> Result<usize, Errno> {
    let mut used = 0;
    for part in parts {
        let room = out.get_mut(used..used + part.len()).ok_or(Errno::EIO)?;
        room.copy_from_slice(part);
        used += part.len();
    }
    Ok(used)
}

/// Splits a request as /dev/fuse delivers it into head and body. Returns `None` if it is too short for a head or not as
/// long as its head says.
pub(crate) fn split_request(bytes: &[u8]) -> Option<(InHeader, &[u8])> {
    let header: InHeader = abi::parse(bytes)?;
    if header.len as usize != bytes.len() {
        return None;
    }
    Some((header, &bytes[size_of::<InHeader>()..]))
}

/// Splits the body of a request into its argument of `arg_len` bytes and its payload.
pub(crate) fn split_body(body: &[u8], arg_len: usize) -> (&[u8], &[u8]) {
    body.split_at(arg_len.min(body.len()))
}

/// An exchange in memory, for tests of dispatcher and file systems without a kernel.
pub(crate) struct MemoryExchange<'a> {
    header: InHeader,
    body: &'a [u8],
    reply: &'a mut Vec<u8>,
}

impl<'a> MemoryExchange<'a> {
    /// Creates the exchange. `reply` takes the reply, head included; it may not grow beyond `capacity` bytes of data.
    /// Returns `None` if `request` is no request.
    pub(crate) fn new(request: &'a [u8], reply: &'a mut Vec<u8>, capacity: usize) -> Option<Self> {
        let (header, body) = split_request(request)?;
        reply.clear();
        reply.resize(size_of::<OutHeader>() + capacity, 0);
        Some(Self { header, body, reply })
    }

    fn finish(self, result: Result<usize, Errno>) {
        let head = out_header(self.header.unique, result);
        self.reply[..size_of::<OutHeader>()].copy_from_slice(abi::bytes_of(&head));
        self.reply.truncate(head.len as usize);
    }
}

impl Exchange for MemoryExchange<'_> {
    fn header(&self) -> &InHeader {
        &self.header
    }

    fn parts(&self, arg_len: usize) -> (&[u8], &[u8]) {
        split_body(self.body, arg_len)
    }

    fn out(&mut self, max: usize) -> &mut [u8] {
        let data = &mut self.reply[size_of::<OutHeader>()..];
        let len = max.min(data.len());
        &mut data[..len]
    }

    fn reply(self, result: Result<usize, Errno>) {
        self.finish(result);
    }

    fn reply_parts(self, parts: &[&[u8]]) {
        let result = concat(parts, &mut self.reply[size_of::<OutHeader>()..]);
        self.finish(result);
    }

    fn no_reply(self) {
        self.reply.clear();
    }
}
