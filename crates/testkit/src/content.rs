//! The bytes of one model file: sparse, and cheap to keep many versions of.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one shared piece.
const CHUNK: u64 = 4096;

/// A sparse byte string. Absent pieces are zeros; clones share pieces.
#[derive(Debug, Clone, Default)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl Content {
    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `into` with the bytes at `offset`; beyond the end there are zeros.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (number, within, len) = piece(offset + done as u64, into.len() - done);
            let target = &mut into[done..done + len];
            match self.chunks.get(&number) {
                Some(chunk) => target.copy_from_slice(&chunk[within..within + len]),
                None => target.fill(0),
            }
            done += len;
        }
    }

    /// Returns the bytes at `offset`, at most to the end.
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = self.size.saturating_sub(offset).min(len as u64) as usize;
        let mut out = vec![0; len];
        self.read(offset, &mut out);
        out
    }

    /// Writes, and extends the file if needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.store(offset, data);
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Cuts or extends with zeros.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Zeros a range, up to the end of the file.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return;
        }
        let touched: Vec<u64> =
            self.chunks.range(offset / CHUNK..=(end - 1) / CHUNK).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number * CHUNK;
            let (from, to) = (offset.saturating_sub(start) as usize, (end - start).min(CHUNK) as usize);
            if to - from == CHUNK as usize {
                self.chunks.remove(&number);
            } else if let Some(chunk) = self.chunks.get_mut(&number) {
                Arc::make_mut(chunk)[from..to].fill(0);
            }
        }
    }

    /// Returns the ranges that may hold bytes other than zero, ascending, `(offset, len)`; they do not reach beyond the
    /// end.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let clip = |number: &u64| {
            let start = number * CHUNK;
            (start < self.size).then(|| (start, (self.size - start).min(CHUNK)))
        };
        self.chunks.keys().filter_map(clip).collect()
    }

    fn store(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (number, within, len) = piece(offset + done as u64, data.len() - done);
            let chunk = self.chunks.entry(number).or_insert_with(|| Arc::from(vec![0; CHUNK as usize]));
            Arc::make_mut(chunk)[within..within + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Content) -> bool {
        let zeros: Arc<[u8]> = Arc::from(vec![0; CHUNK as usize]);
        let same = |number: &u64| {
            let mine = self.chunks.get(number).unwrap_or(&zeros);
            let theirs = other.chunks.get(number).unwrap_or(&zeros);
            Arc::ptr_eq(mine, theirs) || mine == theirs
        };
        self.size == other.size && self.chunks.keys().chain(other.chunks.keys()).all(same)
    }
}

/// Returns the chunk that holds `offset`, the offset in it, and the bytes of `len` in it.
fn piece(offset: u64, len: usize) -> (u64, usize, usize) {
    let within = (offset % CHUNK) as usize;
    (offset / CHUNK, within, len.min(CHUNK as usize - within))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_vector() {
        let mut content = Content::default();
        content.write(5000, b"hello");
        assert_eq!(content.size(), 5005);
        assert_eq!(content.bytes(4998, 100), b"\0\0hello");
        content.resize(5002);
        content.resize(5004);
        assert_eq!(content.bytes(5000, 10), b"he\0\0");
        content.zero(0, 5001);
        assert_eq!(content.bytes(5000, 10), b"\0e\0\0");
    }

    #[test]
    fn a_hole_equals_written_zeros() {
        let mut written = Content::default();
        written.write(0, &[0; 9000]);
        let mut hole = Content::default();
        hole.resize(9000);
        assert_eq!(written, hole);
        written.write(8999, b"x");
        assert_ne!(written, hole);
    }
}
