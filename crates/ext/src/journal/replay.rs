//! The scan of a log: which transactions count, and which contents each block has after the last of them.
//!
//! A transaction counts if its commit block is there and right, and so do all before it. A log ends where the next
//! transaction is incomplete or torn: that is what a power cut leaves. It is *damaged* if a transaction that was
//! committed has a wrong checksum, its commit block included: then a mount uses nothing of the log, and fsck what
//! lies before the damage. What is left of an older lap of the ring is told from damage by its commit time, which lies
//! before that of the last transaction.

use std::collections::BTreeMap;

use moafs_disk::{Buf, DiskExt, Kind, Lba, SECTOR, Tag};
use moafs_vfs::{Error, Result};

use super::file::Journal;
use crate::format::journal::{
    CommitState, JournalFeatures, JournalSuperblock, LogBlock, TagFlags, TransactionSum, log_block,
};
use crate::format::{BlockNo, Damage, Place, Structure, fast_commit};
use crate::health::damaged;

/// Bytes that one read of the log brings at most.
const READ_BYTES: usize = 1 << 20;

/// A logged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Its place in the log, counted from the journal's superblock.
    pub at: u32,
    /// True if its first four bytes, the magic number, were replaced by zeros.
    pub escaped: bool,
    /// The transaction that logged it.
    sequence: u32,
}

/// The result of a scan: what a replay writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replay {
    /// The blocks that a replay writes, each with the newest contents that were committed.
    pub blocks: BTreeMap<BlockNo, Logged>,
    /// Number of transactions that count.
    pub transactions: u32,
    /// The sequence number that the next transaction gets after a replay.
    pub next_sequence: u32,
    /// True if fast commits go on from the transactions: they are not among the blocks.
    pub has_fast_commits: bool,
    /// The block of the ring behind the last transaction.
    pub(super) head: u32,
    /// The time of the newest commit, in seconds.
    pub(super) newest: u64,
}

impl Replay {
    /// Returns the number of the transaction that the log ends before.
    pub(super) fn end(&self) -> u32 {
        self.next_sequence.wrapping_sub(1)
    }
}

/// A transaction as the scan sees it.
#[derive(Default)]
struct Transaction {
    blocks: Vec<(BlockNo, Logged)>,
    /// The revoke blocks, by their places.
    revokes: Vec<u32>,
    sum: TransactionSum,
    /// The first wrong checksum.
    fault: Option<Damage>,
}

/// The end of a transaction.
enum End {
    /// It counts; the scan goes on at this block.
    Committed { next: u32, seconds: u64 },
    /// The log ends before it.
    Log,
}

/// The position of a scan in the ring.
struct Scan<'a> {
    log: &'a JournalSuperblock,
    reader: LogReader<'a>,
    at: u32,
    /// Blocks that are left of the lap.
    left: u32,
    /// The time of the newest commit so far.
    newest: u64,
}

impl Journal {
    /// Finds out what a replay of the log writes. Reads the log from its oldest transaction on, and writes nothing.
    ///
    /// # Errors
    /// Damage of a transaction that was committed, or a block number that no replay may write to.
    pub fn scan(&self) -> Result<Replay> {
        let (replay, damage) = self.salvage()?;
        damage.map_or(Ok(replay), Err)
    }

    /// Like [`Self::scan`], but a log that is damaged is read up to there: returns what its transactions before the
    /// damage write, and the damage.
    ///
    /// # Errors
    /// Device errors.
    pub(crate) fn salvage(&self) -> Result<(Replay, Option<Error>)> {
        let log = &self.superblock;
        if log.is_empty() {
            return Ok((Replay { next_sequence: log.sequence, ..Replay::default() }, None));
        }
        let mut scan = Scan { log, reader: LogReader::new(self), at: log.start, left: log.end - log.first, newest: 0 };
        let mut replay = Replay::default();
        let mut sequence = log.sequence;
        let mut revokes = Vec::new();
        let damage = loop {
            let transaction = match self.next_transaction(&mut scan, sequence) {
                Ok(Some(transaction)) => transaction,
                Ok(None) => break None,
                Err(damage @ Error::Damaged { .. }) => break Some(damage),
                Err(error) => return Err(error),
            };
            replay.blocks.extend(transaction.blocks);
            revokes.extend(transaction.revokes.into_iter().map(|at| (at, sequence)));
            replay.transactions += 1;
            sequence = sequence.wrapping_add(1);
        };
        // A replay leaves one number out: what is left of the transaction that was dropped must not count later.
        replay.next_sequence = sequence.wrapping_add(1);
        for (at, revoked_in) in revokes {
            for block in log.revoked(scan.reader.block(at)?) {
                // Numbers wrap: they are compared by their distance.
                let suppressed = |logged: &Logged| revoked_in.wrapping_sub(logged.sequence).cast_signed() >= 0;
                if replay.blocks.get(&block).is_some_and(suppressed) {
                    replay.blocks.remove(&block);
                }
            }
        }
        if let Some(first) = log.fast_commits().filter(|_| damage.is_none()) {
            replay.has_fast_commits = fast_commit::begins(scan.reader.block(first)?, sequence);
        }
        (replay.head, replay.newest) = (scan.at, scan.newest);
        Ok((replay, damage))
    }

    /// Reads the transaction at the scan's position and moves the scan behind it; `None` at the end of the log.
    fn next_transaction(&self, scan: &mut Scan<'_>, sequence: u32) -> Result<Option<Transaction>> {
        let mut transaction = Transaction::default();
        let End::Committed { next, seconds } = scan.transaction(sequence, &mut transaction)? else { return Ok(None) };
        for (home, logged) in &transaction.blocks {
            self.check_home(*home, *logged)?;
        }
        (scan.at, scan.newest) = (next, seconds.max(scan.newest));
        Ok(Some(transaction))
    }

    /// Refuses a block number that a replay must not write to.
    fn check_home(&self, home: BlockNo, logged: Logged) -> Result<()> {
        let inside = (self.geo.superblock_block()..self.geo.blocks).contains(&home.0);
        if inside && !self.owns(home) {
            return Ok(());
        }
        let what = if inside { "in the journal itself" } else { "outside the volume" };
        let place = Place::of(Structure::LogBlock(logged.at));
        Err(damaged(place.damage(format!("its tag names block {home}, {what}"))))
    }
}

impl Scan<'_> {
    /// Reads the transaction at the scan's position.
    fn transaction(&mut self, sequence: u32, to: &mut Transaction) -> Result<End> {
        let mut at = self.at;
        loop {
            if self.left == 0 {
                return Ok(End::Log);
            }
            self.left -= 1;
            let block = self.reader.block(at)?;
            match log_block(block, sequence) {
                None => return Ok(End::Log),
                Some(LogBlock::Descriptor) => {
                    let block = block.to_vec();
                    match self.descriptor(&block, at, sequence, to)? {
                        Some(next) => at = next,
                        None => return Ok(End::Log),
                    }
                }
                Some(LogBlock::Revoke) => {
                    if !self.log.tail_is_right(block) {
                        to.blame(at, "the checksum of this revoke block is wrong");
                    }
                    to.revokes.push(at);
                    at = self.log.next(at);
                }
                Some(LogBlock::Commit) => {
                    let commit = self.log.commit(block, to.sum);
                    return self.end(at, sequence, commit.seconds, commit.state, to);
                }
            }
        }
    }

    /// Takes a descriptor and the blocks behind it. Returns the block behind them; `None` if the lap ends before.
    fn descriptor(&mut self, block: &[u8], at: u32, sequence: u32, to: &mut Transaction) -> Result<Option<u32>> {
        if !self.log.tail_is_right(block) {
            to.blame(at, "the checksum of this descriptor block is wrong");
        }
        to.sum = to.sum.and(block);
        let mut at = self.log.next(at);
        for tag in self.log.tags(block) {
            if self.left == 0 {
                return Ok(None);
            }
            self.left -= 1;
            let logged = self.reader.block(at)?;
            to.sum = to.sum.and(logged);
            if !self.log.logged_is_right(&tag, sequence, logged) {
                to.blame(at, &format!("its checksum is wrong; it is the copy of block {}", tag.home));
            }
            to.blocks.push((tag.home, Logged { at, escaped: tag.flags.contains(TagFlags::ESCAPED), sequence }));
            at = self.log.next(at);
        }
        Ok(Some(at))
    }

    /// Judges a transaction by its commit block.
    fn end(&mut self, at: u32, sequence: u32, seconds: u64, state: CommitState, to: &mut Transaction) -> Result<End> {
        let next = self.log.next(at);
        // Without a flush before the commit block, it may be there and what it commits not.
        let asynchronous = self.log.features.contains(JournalFeatures::ASYNC_COMMIT);
        let is_sound = state == CommitState::Right || (state == CommitState::Torn && !asynchronous);
        if is_sound && to.fault.is_none() {
            return Ok(End::Committed { next, seconds });
        }
        if seconds < self.newest {
            return Ok(End::Log);
        }
        let goes_on = self.left > 0 && log_block(self.reader.block(next)?, sequence.wrapping_add(1)).is_some();
        // No power cut leaves a commit block with a wrong first sector: devices write sectors whole. Without a checksum
        // of its own the block's sum is that of the transaction, which may be torn.
        let is_damaged_commit = state == CommitState::Wrong && self.log.sums.seed().is_some();
        let cut_off = !goes_on && (asynchronous || !(is_sound || is_damaged_commit));
        match to.fault.take() {
            _ if cut_off => Ok(End::Log),
            Some(fault) => Err(damaged(fault)),
            None => {
                let place = Place::of(Structure::LogBlock(at));
                Err(damaged(
                    place.damage(format!("the checksum of this commit block of transaction {sequence} is wrong")),
                ))
            }
        }
    }
}

impl Transaction {
    /// Keeps the first wrong checksum.
    fn blame(&mut self, at: u32, problem: &str) {
        self.fault.get_or_insert_with(|| Place::of(Structure::LogBlock(at)).damage(problem));
    }
}

/// Reads blocks of the log, and those behind them with the same request.
struct LogReader<'a> {
    journal: &'a Journal,
    /// The blocks in memory, and the first of them.
    window: (u32, Buf),
}

impl<'a> LogReader<'a> {
    fn new(journal: &'a Journal) -> LogReader<'a> {
        LogReader { journal, window: (0, Buf::zeroed(0)) }
    }

    /// Returns a block of the log.
    fn block(&mut self, at: u32) -> Result<&[u8]> {
        let size = self.journal.geo.block_bytes();
        let held = |window: &(u32, Buf)| at >= window.0 && ((at - window.0) as usize) < window.1.len() / size;
        if !held(&self.window) {
            let (block, together) = self.journal.locate_checked(at)?;
            let blocks = (together as usize).min((READ_BYTES / size).max(1));
            let lba = Lba(block.0 * (size / SECTOR) as u64);
            let read = self.journal.disk.read(lba, blocks * size, Tag::volume(Kind::Journal));
            let bytes = read.map_err(|source| Error::disk(format!("reading block {at} of the journal"), source))?;
            self.window = (at, bytes);
        }
        let start = (at - self.window.0) as usize * size;
        Ok(&self.window.1[start..start + size])
    }
}
