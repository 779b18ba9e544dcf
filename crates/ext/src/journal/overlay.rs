//! A disk that shows a volume as a replay of its journal would leave it. Nothing is written: logged blocks are read
//! from the log whenever their places are read, and what fast commits change is in memory.

use std::collections::BTreeMap;

use moafs_disk::completions::Completions;
use moafs_disk::{
    Buf, Disk, DiskError, DiskExt, Done, Kind, Lba, Limits, Op, Page, Request, SECTOR, SharedDisk, Tag, Ticket,
};

use super::fast_commit::Changed;
use super::file::Journal;
use super::replay::Replay;
use crate::format::journal::unescape;
use crate::format::{BlockNo, Geometry};

/// The disk below, with the contents of logged blocks in their places. It refuses every write.
pub struct Replayed {
    inner: SharedDisk,
    limits: Limits,
    block_bytes: usize,
    copies: BTreeMap<u64, Contents>,
    batches: Completions<Batch>,
}

/// The contents of a block that a replay writes.
enum Contents {
    /// A block of the volume has them, but for the magic number if that is `escaped`.
    Logged { copy: BlockNo, escaped: bool },
    /// They are in memory.
    Held(Page),
}

/// A batch under way: the ticket below, and for each request the byte at which it reads, or `None` if it was refused.
struct Batch {
    below: Ticket,
    reads: Vec<Option<u64>>,
}

impl Replayed {
    /// Makes a disk that shows what `replay` would write.
    pub(super) fn new(inner: SharedDisk, geo: &Geometry, journal: &Journal, replay: &Replay) -> Replayed {
        let copy = |(home, logged): (&BlockNo, &super::Logged)| {
            let (copy, _) = journal.locate(logged.at)?;
            Some((home.0, Contents::Logged { copy, escaped: logged.escaped }))
        };
        let copies = replay.blocks.iter().filter_map(copy).collect();
        Replayed { copies, ..Replayed::changed(inner, geo, Changed::new()) }
    }

    /// Makes a disk that shows changed blocks.
    pub(super) fn changed(inner: SharedDisk, geo: &Geometry, changed: Changed) -> Replayed {
        let limits = Limits { read_only: true, ..inner.limits().clone() };
        let (block_bytes, batches) = (geo.block_bytes(), Completions::default());
        Replayed { copies: BTreeMap::new(), limits, block_bytes, batches, inner }.with(changed)
    }

    /// Shows what fast commits change as well.
    pub(super) fn with(mut self, changed: Changed) -> Replayed {
        self.copies.extend(changed.into_iter().map(|(block, page)| (block.0, Contents::Held(page))));
        self
    }

    /// Returns the contents of a block that a replay writes.
    fn contents(&self, contents: &Contents) -> Result<Page, DiskError> {
        let (copy, escaped) = match contents {
            Contents::Held(page) => return Ok(page.clone()),
            Contents::Logged { copy, escaped } => (copy, *escaped),
        };
        let at = Lba(copy.0 * (self.block_bytes / SECTOR) as u64);
        let mut block = self.inner.read(at, self.block_bytes, Tag::volume(Kind::Journal))?;
        if escaped {
            unescape(&mut block);
        }
        Ok(block.freeze())
    }

    /// Puts the contents of logged blocks over what was read at byte `from`.
    fn show(&self, from: u64, bufs: &mut [Buf]) -> Result<(), DiskError> {
        let size = self.block_bytes as u64;
        let end = from + bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        for (home, contents) in self.copies.range(from / size..end.div_ceil(size)) {
            let block = self.contents(contents)?;
            let mut start = from;
            for buf in &mut *bufs {
                put_over(buf, start, &block, home * size);
                start += buf.len() as u64;
            }
        }
        Ok(())
    }
}

/// Copies the part of `block`, which begins at byte `block_at`, that lies within `buf`, which begins at byte `buf_at`.
pub(crate) fn put_over(buf: &mut [u8], buf_at: u64, block: &[u8], block_at: u64) {
    let start = buf_at.max(block_at);
    let end = (buf_at + buf.len() as u64).min(block_at + block.len() as u64);
    if start < end {
        let len = (end - start) as usize;
        let (into, from) = ((start - buf_at) as usize, (start - block_at) as usize);
        buf[into..into + len].copy_from_slice(&block[from..from + len]);
    }
}

impl Disk for Replayed {
    moafs_disk::forward_to!(inner: make_durable, epoch, durable);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut reads = Vec::with_capacity(batch.len());
        let mut below = Vec::with_capacity(batch.len());
        for request in batch {
            let is_read = matches!(request.op, Op::Read { .. });
            reads.push(is_read.then(|| request.at.byte()));
            below.extend(is_read.then_some(request));
        }
        self.batches.put(Batch { below: self.inner.submit(below), reads })
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let batch = self.batches.take(ticket);
        let mut below = self.inner.wait(batch.below).into_iter();
        let epoch = self.inner.epoch();
        let finish = |read: Option<u64>| match read.and_then(|from| below.next().map(|done| (from, done))) {
            Some((from, done)) => {
                let result = done.result.and_then(|mut bufs| self.show(from, &mut bufs).map(|()| bufs));
                Done { result, ..done }
            }
            None => Done { result: Err(DiskError::ReadOnly), epoch },
        };
        batch.reads.into_iter().map(finish).collect()
    }
}
