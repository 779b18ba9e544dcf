//! Splits requests that exceed the device's limits, and assembles their results.

use crate::{Buf, DiskError, Done, Epoch, Lba, Limits, Op, Page, Request, SECTOR};

/// The results of one original request while its parts come back.
pub(super) struct Assembly {
    parts: Vec<Option<Done>>,
    /// Lengths of the original buffers, where a buffer itself had to be cut.
    cut_buffers: Option<Vec<usize>>,
}

impl Assembly {
    /// Makes the result of a request that does not reach the device.
    pub(super) fn refused(error: DiskError, epoch: Epoch) -> Assembly {
        Assembly { parts: vec![Some(Done { result: Err(error), epoch })], cut_buffers: None }
    }

    pub(super) fn finish(&mut self, part: usize, done: Done) {
        debug_assert!(self.parts[part].is_none());
        self.parts[part] = Some(done);
    }

    /// Returns the first error, or all buffers, and the epoch in which the last part completed.
    pub(super) fn into_done(self) -> Done {
        let mut parts = self.parts.into_iter().flatten();
        let mut whole = parts.next().expect("a request has at least one part");
        for part in parts {
            whole.epoch = whole.epoch.max(part.epoch);
            match (&mut whole.result, part.result) {
                (Ok(bufs), Ok(more)) => bufs.extend(more),
                (Ok(_), Err(error)) => whole.result = Err(error),
                (Err(_), _) => {}
            }
        }
        if let (Ok(bufs), Some(lengths)) = (&mut whole.result, self.cut_buffers) {
            *bufs = joined(bufs, &lengths);
        }
        whole
    }
}

/// Makes buffers of the given lengths with the bytes of `pieces`.
fn joined(pieces: &[Buf], lengths: &[usize]) -> Vec<Buf> {
    let mut from = pieces.iter();
    let fill = |&length: &usize| {
        let mut buf = Buf::scratch(length);
        let mut filled = 0;
        while filled < length {
            let piece = from.next().expect("the pieces have the bytes of the buffers");
            buf[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        buf
    };
    lengths.iter().map(fill).collect()
}

/// Splits a request into parts within the device's limits, in ascending order. The list is never
/// empty.
pub(super) fn split(request: Request, limits: &Limits) -> (Vec<Request>, Assembly) {
    let Request { op, at, tag } = request;
    let mut cut_buffers = None;
    let ops: Vec<Op> = match op {
        Op::Read { into } => {
            let lengths: Vec<usize> = into.iter().map(|b| b.len()).collect();
            let pieces = cut(into, limits.transfer_bytes_max, |_, range| Buf::scratch(range.len()));
            if pieces.len() != lengths.len() {
                cut_buffers = Some(lengths);
            }
            packed(pieces, limits).into_iter().map(|into| Op::Read { into }).collect()
        }
        Op::Write { data, fua } => {
            let copy = |page: &Page, range: std::ops::Range<usize>| Buf::copy_of(&page[range]).freeze();
            let pieces = cut(data, limits.transfer_bytes_max, copy);
            packed(pieces, limits).into_iter().map(|data| Op::Write { data, fua }).collect()
        }
        other => vec![other],
    };
    let mut next = at;
    let place = |op: Op| {
        let part = Request { op, at: next, tag };
        next = Lba(next.0 + part.bytes() / SECTOR as u64);
        part
    };
    let parts: Vec<Request> = ops.into_iter().map(place).collect();
    let assembly = Assembly { parts: parts.iter().map(|_| None).collect(), cut_buffers };
    (parts, assembly)
}

/// A piece of memory: a buffer to read into or a page to write.
trait MemoryPart {
    fn bytes(&self) -> usize;
}

impl MemoryPart for Buf {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl MemoryPart for Page {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Cuts the pieces that are larger than one maximum transfer.
fn cut<P: MemoryPart>(pieces: Vec<P>, bytes_max: usize, part: impl Fn(&P, std::ops::Range<usize>) -> P) -> Vec<P> {
    if pieces.iter().all(|p| p.bytes() <= bytes_max) {
        return pieces;
    }
    let mut small = Vec::new();
    for piece in pieces {
        if piece.bytes() <= bytes_max {
            small.push(piece);
            continue;
        }
        let starts = (0..piece.bytes()).step_by(bytes_max);
        small.extend(starts.map(|start| part(&piece, start..piece.bytes().min(start + bytes_max))));
    }
    small
}

/// Packs pieces into as few requests as the limits allow, in order.
fn packed<P: MemoryPart>(pieces: Vec<P>, limits: &Limits) -> Vec<Vec<P>> {
    let mut requests = vec![Vec::new()];
    let mut bytes = 0;
    for piece in pieces {
        let last = requests.last_mut().expect("never empty");
        let fits = bytes + piece.bytes() <= limits.transfer_bytes_max && last.len() < limits.segments_max;
        if fits || last.is_empty() {
            bytes += piece.bytes();
            last.push(piece);
        } else {
            bytes = piece.bytes();
            requests.push(vec![piece]);
        }
    }
    requests
}
