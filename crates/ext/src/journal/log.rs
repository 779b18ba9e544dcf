//! The log of a mounted volume: appending transactions to the ring, and giving back its space.
//!
//! A transaction is written in two steps. [`Log::append`] writes everything but the commit block; the caller flushes.
//! [`Log::commit`] writes the commit block and makes it durable: only then does the transaction count. The blocks of
//! the ring that it takes stay in use until [`Log::empty`], which the caller may call when all blocks of all
//! transactions so far are durable in their own places.
//!
//! The head moves with the commit only. A caller for whom the host has no room begins the same transaction again: it
//! is written whole, to the same blocks, and its commit block once more after all of them.
//!
//! The commit block's place holds zeros before, so a torn commit block reads as a whole one.

use std::ops::Range;

use moafs_disk::{Buf, Cause, Epoch, Kind, Op, Page, Request, Tag};
use moafs_runtime::Rt;
use moafs_vfs::{Error, Result};

use super::file::Journal;
use crate::format::BlockNo;
use crate::format::journal::{Copied, MAGIC, needs_escape};
use crate::write::write_all;

/// The log of a volume that is mounted for writing.
pub struct Log {
    journal: Journal,
    block_bytes: usize,
    /// The block of the ring behind the last transaction that was committed.
    head: u32,
    /// Blocks of the ring, from the head on, to the commit block of the transaction that was appended last.
    appended: u32,
    /// Blocks of the ring that transactions take which may be replayed.
    used: u32,
    /// The number of the next transaction.
    sequence: u32,
    /// The time of the newest commit, in seconds.
    newest: u64,
    /// True once the superblock on the disk says where the log starts.
    is_begun: bool,
}

impl Log {
    /// Begins to append to a journal whose log is empty: there is nothing to replay.
    ///
    /// `checksums`: whether the volume's metadata have checksums; `wide`: whether block numbers have 64 bits.
    pub fn begin(mut journal: Journal, checksums: bool, wide: bool) -> Log {
        debug_assert!(journal.superblock.is_empty(), "transactions that were not replayed would be lost");
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&journal.superblock_bytes[0x30..0x40]);
        journal.superblock.prepare(&uuid, checksums, wide);
        Log {
            block_bytes: journal.geo.block_bytes(),
            head: journal.superblock.first,
            appended: 0,
            used: 0,
            sequence: journal.superblock.sequence,
            newest: 0,
            is_begun: false,
            journal,
        }
    }

    /// Goes on behind the start of a log in which nothing has to be replayed, in the form that it has.
    pub(super) fn go_on(journal: Journal) -> Log {
        Log {
            block_bytes: journal.geo.block_bytes(),
            head: journal.superblock.start,
            appended: 0,
            used: 0,
            sequence: journal.superblock.sequence,
            newest: 0,
            is_begun: true,
            journal,
        }
    }

    /// Returns the journal.
    pub(super) fn into_journal(self) -> Journal {
        self.journal
    }

    /// Returns the blocks that the journal has on the volume: no other file may own one.
    pub fn blocks(&self) -> Vec<Range<u64>> {
        self.journal.blocks().to_vec()
    }

    /// Returns the number of blocks of the ring.
    pub fn capacity(&self) -> u32 {
        self.journal.superblock.end - self.journal.superblock.first
    }

    /// Returns the number of blocks that are free. One always stays free.
    pub fn room(&self) -> u32 {
        (self.capacity() - self.used).saturating_sub(1)
    }

    /// Returns how many blocks of the ring a transaction takes.
    pub fn blocks_for(&self, copies: usize, revoked: usize) -> u32 {
        let log = &self.journal.superblock;
        let descriptors = copies.div_ceil(log.tags_max(self.block_bytes));
        let revokes = revoked.div_ceil(log.revokes_max(self.block_bytes));
        u32::try_from(copies + descriptors + revokes + 1).unwrap_or(u32::MAX)
    }

    /// Writes a transaction without its commit block. Returns the epoch in which it completed: what is written counts
    /// only after that is durable, and [`Self::commit`] has returned.
    ///
    /// # Errors
    /// Device errors. The transaction then counts for nothing. After a full host the caller appends the same
    /// transaction again; after any other error the log must not be used any more.
    ///
    /// # Panics
    /// If there is no [`Self::room`], which is the caller's mistake.
    pub fn append(&mut self, revoked: &[BlockNo], copies: &[(BlockNo, Page)]) -> Result<Epoch> {
        let taken = self.blocks_for(copies.len(), revoked.len());
        assert!(taken <= self.room(), "a transaction of {taken} blocks does not fit into {} free ones", self.room());
        let mut pages = self.encode(revoked, copies);
        // The place of the commit block.
        pages.push(Buf::zeroed(self.block_bytes).freeze());
        debug_assert_eq!(pages.len() as u32, taken, "the size of a transaction was foretold wrongly");
        let mut requests = self.requests(self.head, pages)?;
        if !self.is_begun {
            self.journal.superblock.start = self.head;
            self.journal.superblock.sequence = self.sequence;
            requests.push(self.journal.superblock_write());
        }
        self.appended = taken - 1;
        write_all(&self.journal.disk, requests)
    }

    /// Writes the commit block of the transaction that was appended last. The transaction is durable on return.
    ///
    /// # Errors
    /// Device errors: whether the transaction counts is then not known. After a full host the caller appends and
    /// commits the same transaction again.
    pub fn commit(&mut self, rt: &Rt) -> Result<()> {
        let now = rt.timestamp();
        self.newest = self.newest.max(u64::try_from(now.secs).unwrap_or_default());
        self.commit_at((self.newest, now.nanos))
    }

    /// Does the same, with a time of the commit in seconds and nanoseconds that is not before the last one's.
    ///
    /// # Errors
    /// Device errors, as above.
    pub(super) fn commit_at(&mut self, time: (u64, u32)) -> Result<()> {
        let block = self.journal.superblock.encode_commit(self.sequence, time, self.block_bytes);
        let fua = self.journal.disk.limits().fua;
        let mut requests = self.requests(self.ahead(self.appended), vec![Buf::copy_of(&block).freeze()])?;
        for request in &mut requests {
            if let Op::Write { fua: forced, .. } = &mut request.op {
                *forced = fua;
            }
        }
        let written = write_all(&self.journal.disk, requests)?;
        let flushed = self.journal.disk.make_durable(written);
        flushed.map_err(|source| Error::disk("flushing the commit block", source))?;
        let taken = std::mem::take(&mut self.appended) + 1;
        self.head = self.ahead(taken);
        self.used += taken;
        self.sequence = self.sequence.wrapping_add(1);
        self.is_begun = true;
        Ok(())
    }

    /// Gives back the blocks of all transactions that were committed so far, whose blocks are durable in their own
    /// places. On return a replay finds the log behind them.
    ///
    /// # Errors
    /// Device errors. The log is then as it was, or has been emptied.
    pub fn empty(&mut self) -> Result<()> {
        if self.used == 0 {
            return Ok(());
        }
        self.journal.superblock.start = self.head;
        self.journal.superblock.sequence = self.sequence;
        self.journal.store_superblock()?;
        self.used = 0;
        Ok(())
    }

    /// Marks the log as empty, for a volume that is being unmounted and whose blocks are all in their own places.
    ///
    /// # Errors
    /// Device errors.
    pub fn close(&mut self) -> Result<()> {
        self.journal.superblock.start = 0;
        self.journal.superblock.sequence = self.sequence;
        self.used = 0;
        self.journal.store_superblock()
    }

    /// Returns the blocks of a transaction in the order of the log, without the commit block.
    fn encode(&self, revoked: &[BlockNo], copies: &[(BlockNo, Page)]) -> Vec<Page> {
        let log = &self.journal.superblock;
        let page = |bytes: Vec<u8>| Buf::copy_of(&bytes).freeze();
        let mut pages = Vec::new();
        for revoked in revoked.chunks(log.revokes_max(self.block_bytes)) {
            pages.push(page(log.encode_revoke(self.sequence, revoked, self.block_bytes)));
        }
        for copies in copies.chunks(log.tags_max(self.block_bytes)) {
            let logged: Vec<Page> = copies.iter().map(|(_, page)| escaped(page)).collect();
            let tags: Vec<Copied<'_>> = copies
                .iter()
                .zip(&logged)
                .map(|((home, page), logged)| Copied { home: *home, escaped: needs_escape(page), logged })
                .collect();
            pages.push(page(log.encode_descriptor(self.sequence, &tags, self.block_bytes)));
            pages.extend(logged);
        }
        pages
    }

    /// Returns the block of the ring that lies `blocks` behind the head.
    fn ahead(&self, blocks: u32) -> u32 {
        let first = self.journal.superblock.first;
        first + (self.head - first + blocks) % self.capacity()
    }

    /// Returns the requests that write pages to the ring from a block on: one for each run of blocks of the volume.
    fn requests(&self, from: u32, pages: Vec<Page>) -> Result<Vec<Request>> {
        let limits = self.journal.disk.limits();
        let most = (limits.transfer_bytes_max / self.block_bytes).min(limits.segments_max).max(1);
        let mut pages = pages.into_iter().peekable();
        let (mut at, mut requests) = (from, Vec::new());
        while pages.peek().is_some() {
            let (block, together) = self.journal.locate_checked(at)?;
            let together = together.min(self.journal.superblock.end - at) as usize;
            let data: Vec<Page> = pages.by_ref().take(together.min(most)).collect();
            at += data.len() as u32;
            if at >= self.journal.superblock.end {
                at = self.journal.superblock.first;
            }
            requests.push(Request {
                op: Op::Write { data, fua: false },
                at: self.journal.lba(block),
                tag: Tag::new(Kind::Journal, 0, Cause::Order),
            });
        }
        Ok(requests)
    }
}

/// Returns a block as it is logged: without the magic number at its start.
fn escaped(page: &Page) -> Page {
    if !needs_escape(page) {
        return page.clone();
    }
    let mut block = Buf::copy_of(page);
    block[..MAGIC.to_be_bytes().len()].fill(0);
    block.freeze()
}
