//! Replay: writing what the log holds to where it belongs, and emptying the log.
//!
//! The log stays as it is until everything that was written home is durable, so a power cut during a replay is
//! harmless: the next replay writes the same.

use moafs_disk::{Cause, DiskExt, Kind, Lba, Op, Request, SECTOR, Tag};
use moafs_vfs::{Error, Result};

use super::file::Journal;
use super::replay::Replay;
use crate::format::journal::{SUPERBLOCK_BYTES, unescape};

/// Blocks that one batch of a replay reads and writes at most.
const BATCH_BLOCKS: usize = 256;

impl Journal {
    /// Writes the blocks of a scan home, then marks the log as empty; both are durable on return.
    ///
    /// # Errors
    /// Device errors. The log is then as it was, or the replay is complete.
    pub fn write_home(&mut self, replay: &Replay) -> Result<()> {
        self.write_blocks_home(replay)?;
        self.superblock.start = 0;
        self.superblock.sequence = replay.next_sequence;
        self.store_superblock()
    }

    /// Writes the blocks of a scan home, then lets the log begin behind them; both are durable on return. The log still
    /// ends there, so fast commits still go on from it.
    pub(super) fn advance(&mut self, replay: &Replay) -> Result<()> {
        self.write_blocks_home(replay)?;
        (self.superblock.start, self.superblock.sequence) = (replay.head, replay.end());
        self.store_superblock()
    }

    fn write_blocks_home(&self, replay: &Replay) -> Result<()> {
        let blocks: Vec<_> = replay.blocks.iter().collect();
        for batch in blocks.chunks(BATCH_BLOCKS) {
            let mut writes = Vec::with_capacity(batch.len());
            for (home, logged) in batch {
                let mut block = self.logged(logged.at)?;
                if logged.escaped {
                    unescape(&mut block);
                }
                writes.push(Request {
                    op: Op::Write { data: vec![block.freeze()], fua: false },
                    at: self.lba(**home),
                    tag: Tag::new(Kind::Journal, 0, Cause::Volume),
                });
            }
            for done in self.disk.run(writes) {
                done.result.map_err(|source| Error::disk("writing blocks of the journal home", source))?;
            }
        }
        self.flush()
    }

    /// Marks the log as empty without writing it home.
    pub(crate) fn drop_log(&mut self) -> Result<()> {
        self.superblock.start = 0;
        self.superblock.errno = 0;
        // The numbers of what is left in the log are far behind.
        self.superblock.sequence = self.superblock.sequence.wrapping_add(self.superblock.blocks);
        self.store_superblock()
    }

    /// Forgets the error that the last user of the journal left.
    pub(crate) fn forget_error(&mut self) -> Result<()> {
        self.superblock.errno = 0;
        self.store_superblock()
    }

    /// Reads a copy in the log.
    fn logged(&self, at: u32) -> Result<moafs_disk::Buf> {
        let (block, _) = self.locate_checked(at)?;
        let read = self.disk.read(self.lba(block), self.geo.block_bytes(), Tag::volume(Kind::Journal));
        read.map_err(|source| Error::disk(format!("reading block {at} of the journal"), source))
    }

    /// Writes the journal's superblock, and waits until it is durable.
    pub(super) fn store_superblock(&mut self) -> Result<()> {
        let request = self.superblock_write();
        let done = self.disk.run(vec![request]).remove(0);
        done.result.map_err(|source| Error::disk("writing the journal's superblock", source))?;
        self.flush()
    }

    /// Returns the request that writes the journal's superblock as it is now: one sector, which no power cut tears.
    pub(super) fn superblock_write(&mut self) -> Request {
        let bytes = &mut self.superblock_bytes[..SUPERBLOCK_BYTES];
        self.superblock.encode_into(bytes);
        let page = moafs_disk::Buf::copy_of(&bytes[..SECTOR]).freeze();
        let at = self.lba(self.runs[0].start);
        Request { op: Op::Write { data: vec![page], fua: false }, at, tag: Tag::new(Kind::Journal, 0, Cause::Volume) }
    }

    fn flush(&self) -> Result<()> {
        let flushed = self.disk.make_durable(self.disk.epoch());
        flushed.map_err(|source| Error::disk("flushing the journal", source))
    }

    pub(super) fn lba(&self, block: crate::format::BlockNo) -> Lba {
        Lba(block.0 * (self.geo.block_bytes() / SECTOR) as u64)
    }
}
