//! A disk in memory: sparse, so that a terabyte volume costs what is written to it, and cheap to
//! copy, so that thousands of crash states of one volume can be examined.
//!
//! Requests complete inside `submit`. A flush takes no time, but is counted like a device's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::completions::Completions;
use crate::epoch::Epochs;
use crate::{Buf, Disk, DiskError, Done, Epoch, Lba, Limits, Op, Page, Request, SECTOR, Ticket};

/// Bytes in one separately allocated and shared chunk: the bytes that the first write to it after a
/// [`MemDisk::snapshot`] copies.
const CHUNK: usize = 16 << 10;

type Chunk = [u8; CHUNK];

/// A sparse disk in memory.
pub struct MemDisk {
    limits: Limits,
    /// Chunks by number; an absent one reads as zeros. Shared with snapshots until written.
    chunks: RwLock<BTreeMap<u64, Arc<Chunk>>>,
    epochs: Epochs,
    completions: Completions,
}

impl MemDisk {
    /// Makes a disk of `sectors` sectors of zeros.
    pub fn new(sectors: u64) -> MemDisk {
        MemDisk::with_limits(Limits {
            sectors,
            io_align: SECTOR,
            transfer_bytes_max: 16 << 20,
            segments_max: 1024,
            volatile_cache: true,
            fua: true,
            discard: true,
            read_only: false,
        })
    }

    /// Makes a disk of zeros that reports `limits` as its own.
    pub fn with_limits(limits: Limits) -> MemDisk {
        MemDisk { limits, chunks: RwLock::default(), epochs: Epochs::default(), completions: Completions::default() }
    }

    /// Makes a disk that holds `bytes`, rounded up to whole sectors.
    pub fn from_bytes(bytes: &[u8]) -> MemDisk {
        let disk = MemDisk::new(bytes.len().div_ceil(SECTOR) as u64);
        disk.poke(0, bytes);
        disk
    }

    /// Returns an independent copy of the current contents. Costs one pointer per chunk.
    pub fn snapshot(&self) -> MemDisk {
        MemDisk {
            limits: self.limits.clone(),
            chunks: RwLock::new(self.chunks.read().clone()),
            epochs: Epochs::default(),
            completions: Completions::default(),
        }
    }

    /// Returns the whole contents. Meant for small disks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.bytes()).expect("the disk fits in memory")];
        self.peek(0, &mut bytes);
        bytes
    }

    /// Saves the contents as a sparse image file.
    ///
    /// # Errors
    /// As the host file system reports them.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.bytes())?;
        for (number, chunk) in self.chunks.read().iter() {
            let start = number * CHUNK as u64;
            let len = (self.bytes() - start).min(CHUNK as u64) as usize;
            file.seek(SeekFrom::Start(start))?;
            file.write_all(&chunk[..len])?;
        }
        Ok(())
    }

    /// Loads an image file; chunks of zeros stay sparse.
    ///
    /// # Errors
    /// As the host file system reports them.
    pub fn read_from(path: &Path) -> io::Result<MemDisk> {
        let mut file = File::open(path)?;
        let mut bytes_left = file.metadata()?.len();
        let disk = MemDisk::new(bytes_left.div_ceil(SECTOR as u64));
        let mut chunks = BTreeMap::new();
        for number in 0.. {
            if bytes_left == 0 {
                break;
            }
            let len = bytes_left.min(CHUNK as u64);
            let mut chunk = Arc::new([0; CHUNK]);
            file.read_exact(&mut Arc::make_mut(&mut chunk)[..len as usize])?;
            if chunk.iter().any(|&b| b != 0) {
                chunks.insert(number, chunk);
            }
            bytes_left -= len;
        }
        *disk.chunks.write() = chunks;
        Ok(disk)
    }

    /// Reads bytes at any byte offset, without a request or an epoch. Bytes beyond the end are
    /// zeros.
    pub fn peek(&self, offset: u64, into: &mut [u8]) {
        let chunks = self.chunks.read();
        for (number, within, piece) in pieces(offset, into.len()) {
            let into = &mut into[piece];
            match chunks.get(&number) {
                Some(chunk) => into.copy_from_slice(&chunk[within..within + into.len()]),
                None => into.fill(0),
            }
        }
    }

    /// Writes bytes at any byte offset, without a request or an epoch and regardless of
    /// [`Limits::read_only`].
    ///
    /// # Panics
    /// If the bytes go beyond the end.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{} bytes at byte {offset} go beyond the end of the disk",
            bytes.len()
        );
        let mut chunks = self.chunks.write();
        for (number, within, piece) in pieces(offset, bytes.len()) {
            let chunk = chunks.entry(number).or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(chunk)[within..within + piece.len()].copy_from_slice(&bytes[piece]);
        }
    }

    /// Returns the bytes of memory that hold contents (shared ones included).
    pub fn resident_bytes(&self) -> u64 {
        self.chunks.read().len() as u64 * CHUNK as u64
    }

    fn bytes(&self) -> u64 {
        self.limits.sectors * SECTOR as u64
    }

    /// Executes a request at once, without touching the epochs.
    pub(crate) fn execute(&self, request: Request) -> Result<Vec<Buf>, DiskError> {
        self.limits.check(&request)?;
        let mut offset = request.at.byte();
        match request.op {
            Op::Read { mut into } => {
                for buf in &mut into {
                    self.peek(offset, buf);
                    offset += buf.len() as u64;
                }
                return Ok(into);
            }
            Op::Write { data, .. } => self.write_pages(offset, &data),
            Op::Discard { sectors } | Op::WriteZeroes { sectors } => {
                self.clear(request.at, sectors);
            }
        }
        Ok(Vec::new())
    }

    fn write_pages(&self, mut offset: u64, data: &[Page]) {
        for page in data {
            self.poke(offset, page);
            offset += page.len() as u64;
        }
    }

    /// Makes a range read as zeros and frees its memory. Visits only chunks that exist, so that
    /// clearing a terabyte costs no more than what had been written to it.
    pub(crate) fn clear(&self, at: Lba, sectors: u64) {
        let (start, end) = (at.byte(), at.byte() + sectors * SECTOR as u64);
        if start == end {
            return;
        }
        let mut chunks = self.chunks.write();
        let (first, last) = (start / CHUNK as u64, (end - 1) / CHUNK as u64);
        let present: Vec<u64> = chunks.range(first..=last).map(|(&n, _)| n).collect();
        for number in present {
            let base = number * CHUNK as u64;
            let from = start.saturating_sub(base) as usize;
            let to = (end - base).min(CHUNK as u64) as usize;
            if to - from == CHUNK {
                chunks.remove(&number);
            } else if let Some(chunk) = chunks.get_mut(&number) {
                Arc::make_mut(chunk)[from..to].fill(0);
            }
        }
    }
}

/// Cuts a byte range at chunk borders: chunk number, offset in it, range in the caller's bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let piece = done..len.min(done + CHUNK - within);
        done = piece.end;
        Some((at / CHUNK as u64, within, piece))
    })
}

impl Disk for MemDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let finish = |request| {
            let result = self.execute(request);
            let epoch = self.epochs.current();
            Done { result, epoch }
        };
        self.completions.put(batch.into_iter().map(finish).collect())
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.completions.take(ticket)
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.epochs.flush_at_once(upto);
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.epochs.current()
    }

    fn durable(&self) -> Option<Epoch> {
        self.epochs.durable()
    }
}

impl std::fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemDisk({} sectors)", self.limits.sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskExt, Kind, Tag};

    const TAG: Tag = Tag::volume(Kind::Data);

    fn page(byte: u8, len: usize) -> Page {
        Buf::copy_of(&vec![byte; len]).freeze()
    }

    #[test]
    fn reads_back_what_was_written_across_chunks() {
        let disk = MemDisk::new(4096);
        let at = Lba::from_byte(CHUNK as u64 - SECTOR as u64);
        disk.write(at, page(7, 2 * CHUNK), TAG).unwrap();
        assert_eq!(&*disk.read(at, 2 * CHUNK, TAG).unwrap(), &[7; 2 * CHUNK]);
        assert_eq!(&*disk.read(Lba(0), 512, TAG).unwrap(), &[0; 512]);
    }

    #[test]
    fn a_terabyte_costs_what_is_written() {
        let disk = MemDisk::new(1 << 31);
        disk.write(Lba((1 << 31) - 1), page(1, 512), TAG).unwrap();
        assert_eq!(disk.resident_bytes(), CHUNK as u64);
        let all = Request { op: Op::Discard { sectors: 1 << 31 }, at: Lba(0), tag: TAG };
        assert!(disk.run(vec![all])[0].result.is_ok());
        assert_eq!(disk.resident_bytes(), 0);
    }

    #[test]
    fn clearing_part_of_a_chunk_keeps_the_rest() {
        let disk = MemDisk::new(128);
        disk.write(Lba(0), page(9, 2 * CHUNK), TAG).unwrap();
        let zeroes = Request { op: Op::WriteZeroes { sectors: 32 }, at: Lba(1), tag: TAG };
        assert!(disk.run(vec![zeroes])[0].result.is_ok());
        let bytes = disk.to_bytes();
        assert!(bytes[..512].iter().all(|&b| b == 9));
        assert!(bytes[512..33 * 512].iter().all(|&b| b == 0));
        assert!(bytes[33 * 512..64 * 512].iter().all(|&b| b == 9));
    }

    #[test]
    fn a_snapshot_does_not_see_later_writes() {
        let disk = MemDisk::new(64);
        disk.write(Lba(1), page(1, 512), TAG).unwrap();
        let before = disk.snapshot();
        disk.write(Lba(1), page(2, 512), TAG).unwrap();
        assert_eq!(before.read(Lba(1), 512, TAG).unwrap()[0], 1);
        assert_eq!(disk.read(Lba(1), 512, TAG).unwrap()[0], 2);
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let disk = MemDisk::new(8);
        for at in [Lba(8), Lba(7), Lba(u64::MAX)] {
            let error = disk.read(at, 1024, TAG).unwrap_err();
            assert!(matches!(error, DiskError::BeyondEnd { .. }), "{error}");
        }
        let endless = Request { op: Op::Discard { sectors: u64::MAX }, at: Lba(1), tag: TAG };
        assert!(disk.run(vec![endless])[0].result.is_err());
    }

    #[test]
    fn epochs_follow_flushes() {
        let disk = MemDisk::new(8);
        assert_eq!(disk.durable(), None);
        let first = disk.write(Lba(0), page(1, 512), TAG).unwrap();
        disk.make_durable(first).unwrap();
        assert!(disk.durable() >= Some(first));
        let second = disk.write(Lba(0), page(2, 512), TAG).unwrap();
        assert!(disk.durable() < Some(second));
        disk.make_durable(first).unwrap();
        assert!(disk.durable() < Some(second));
    }

    #[test]
    fn image_files_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let disk = MemDisk::new(100);
        disk.write(Lba(99), page(5, 512), TAG).unwrap();
        disk.write_to(&path).unwrap();
        let back = MemDisk::read_from(&path).unwrap();
        assert_eq!(back.to_bytes(), disk.to_bytes());
        assert_eq!(back.resident_bytes(), CHUNK as u64);
    }
}
