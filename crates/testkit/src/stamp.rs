//! File contents that identify themselves: every 512 bytes name their file, their sector in it, and the write that made
//! them. This is how bytes of another file are found.
//!
//! A sector holds the same 32-byte record sixteen times, so a write that starts or ends anywhere
//! still leaves whole records behind.

use std::fmt;

/// Bytes in a stamped unit: a sector, the unit of tearing.
pub const SECTOR: usize = 512;

/// Bytes in one record; sixteen fill a sector.
pub const RECORD: usize = 32;

const MAGIC: u64 = 0x6d6f_6166_735f_7374;

/// The contents of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Number of the file, never reused (not an inode number).
    pub label: u64,
    /// The sector of the file they belong to.
    pub sector: u64,
    /// Number of the write.
    pub generation: u64,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file #{} sector {} of write {}", self.label, self.sector, self.generation)
    }
}

impl Stamp {
    fn record(self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&MAGIC.to_le_bytes());
        record[8..16].copy_from_slice(&self.label.to_le_bytes());
        record[16..24].copy_from_slice(&self.sector.to_le_bytes());
        record[24..].copy_from_slice(&self.generation.to_le_bytes());
        record
    }

    fn parse(record: &[u8]) -> Option<Stamp> {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
        (word(0) == MAGIC).then(|| Stamp { label: word(8), sector: word(16), generation: word(24) })
    }
}

/// Returns the bytes that write `generation` of file `label` puts at `offset`.
pub fn bytes(label: u64, offset: u64, len: usize, generation: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + SECTOR);
    let first = offset / SECTOR as u64;
    let skip = (offset % SECTOR as u64) as usize;
    for sector in first.. {
        if out.len() >= skip + len {
            break;
        }
        let record = Stamp { label, sector, generation }.record();
        for _ in 0..SECTOR / RECORD {
            out.extend_from_slice(&record);
        }
    }
    out.drain(..skip);
    out.truncate(len);
    out
}

/// Returns the stamps found in (part of) a sector, without repetition.
pub fn stamps_in(sector: &[u8]) -> Vec<Stamp> {
    let mut found: Vec<Stamp> = sector.chunks_exact(RECORD).filter_map(Stamp::parse).collect();
    found.dedup();
    found
}

/// Describes the stamps of a sector, for a failure's report.
pub fn describe(sector: &[u8]) -> String {
    if sector.iter().all(|&b| b == 0) {
        return "zeros".to_owned();
    }
    let stamps = stamps_in(sector);
    if stamps.is_empty() {
        let head: Vec<String> = sector.iter().take(16).map(|b| format!("{b:02x}")).collect();
        return format!("bytes of no file: {}…", head.join(" "));
    }
    let words: Vec<String> = stamps.iter().map(Stamp::to_string).collect();
    words.join(" and ")
}

/// Describes in words where a sector differs from the one that is expected.
pub fn describe_difference(is: &[u8], should: &[u8]) -> String {
    let first = is.iter().zip(should).position(|(is, should)| is != should).unwrap_or(0);
    format!(
        "shows {}, should show {} (from byte {first} of the sector on: {:02x?}, should be {:02x?})",
        describe(is),
        describe(should),
        &is[first..is.len().min(first + 8)],
        &should[first..should.len().min(first + 8)]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_equals_that_piece_of_the_whole() {
        let whole = bytes(7, 0, 4 * SECTOR, 3);
        for (start, len) in [(0, 10), (5, 600), (511, 2), (512, 512), (700, 1000)] {
            assert_eq!(bytes(7, start as u64, len, 3), whole[start..start + len]);
        }
    }

    #[test]
    fn stamps_are_found_again() {
        let sector = bytes(9, 1024, SECTOR, 5);
        assert_eq!(stamps_in(&sector), [Stamp { label: 9, sector: 2, generation: 5 }]);
        assert!(describe(&sector).contains("file #9 sector 2 of write 5"));
        assert_eq!(describe(&[0; 64]), "zeros");
    }
}
