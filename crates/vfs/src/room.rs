//! Room for dirty data: a writer is slowed down, and above the limit writes back itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::inode::Shared;
use crate::plan::WritebackReason;
use crate::types::Lbn;
use crate::write_back::{Outcome, WriteBack};

/// Bytes of one write that are admitted, locked and copied in one go. Larger writes are cut.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// The longest time after which a writer that waits for room looks again.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Attempts to write back for room before a writer is told that nothing leaves.
const ROOM_ATTEMPTS: u32 = 30;

/// Attempts if the device refused one of them: a full host may have room later, a failed device hardly.
const ROOM_ATTEMPTS_AFTER_FAILURE: u32 = 2;

/// Files whose dirty blocks are considered in one round.
const EVICT_FILES: usize = 256;

/// Dirty ranges of one file that are considered in one round.
const EVICT_RANGES: usize = 64;

impl<F: Format> WriteBack<F> {
    /// Returns the bytes that one step of a write may make dirty.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let quarter = self.cache.dirty_bytes_max() / 4;
        let block = self.shape.block_size as usize;
        quarter.clamp(block, WRITE_BYTES_MAX.max(block)) / block * block
    }

    /// Waits until `bytes` more may be dirty: the writer itself writes back the blocks that were not used for
    /// the longest time. Level 0 only.
    pub(crate) fn make_room(&self, bytes: usize) -> Result<()> {
        let max = self.cache.dirty_bytes_max();
        let background = self.cache.dirty_bytes_background();
        if self.cache.dirty_bytes() + bytes > background {
            self.rt.signal(&self.syncer_wake.event);
            if self.options.paced {
                self.pause(self.pace.pause(bytes, self.cache.dirty_bytes(), background, max));
            }
        }
        let (mut fruitless, mut failure, mut reaps) = (0, None, true);
        while self.cache.dirty_bytes() > 0 && self.cache.dirty_bytes() + bytes > max {
            self.check_caller()?;
            let ticket = self.cache.room.ticket();
            self.tally.writer_waits.fetch_add(1, Ordering::Relaxed);
            if reaps && self.has_ripe() {
                // Data of unlinked files are dropped, not written. Where that finds no room it takes long: not again.
                reaps = self.reap_all().is_ok();
                continue;
            }
            let over = (self.cache.dirty_bytes() + bytes).saturating_sub(max);
            let until = self.rt.now() + ROOM_WAIT;
            if self.cache.underway_bytes() >= over {
                // Enough bytes are being written already; further requests would only delay them.
                self.rt.wait(&self.cache.room, ticket, Some(until));
                continue;
            }
            // Some room for the next writes as well: blocks that leave together are written together. Paced writers
            // are few here, and should go on soon.
            let spare = if self.options.paced { max / 32 } else { max / 8 };
            let outcome = self.evict_dirty(over + spare);
            if outcome.blocks > 0 {
                (fruitless, failure) = (0, None);
                continue;
            }
            fruitless += 1;
            // An attempt that finds each block in another one's hands has no error of its own.
            failure = outcome.error.or(failure);
            let has_failed = failure.as_ref().is_some_and(|error| !error.is_host_full());
            if fruitless > if has_failed { ROOM_ATTEMPTS_AFTER_FAILURE } else { ROOM_ATTEMPTS } {
                return Err(failure.unwrap_or(Error::Posix(libc::EIO)));
            }
            self.rt.wait(&self.cache.room, ticket, Some(until));
        }
        Ok(())
    }

    /// Pauses a writer, until write-back has nothing left to do at the latest.
    fn pause(&self, pause: Duration) {
        let until = self.rt.now() + pause;
        while self.rt.now() < until {
            let ticket = self.cache.room.ticket();
            if self.cache.dirty_bytes() <= self.cache.dirty_bytes_background() {
                return;
            }
            self.rt.wait(&self.cache.room, ticket, Some(until));
        }
    }

    /// Writes back the first dirty blocks of the least recently written files (and the blocks that the policy
    /// adds), until about `bytes` have left.
    pub(crate) fn evict_dirty(&self, bytes: usize) -> Outcome {
        let files = self.dirty.lock().least_recent(EVICT_FILES);
        let mut left = (bytes as u64).div_ceil(self.block_bytes());
        let mut dues = Vec::new();
        for inode in files {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(self.dues_of(&inode, left, &mut dues));
        }
        self.write_back_upto(bytes as u64, dues)
    }

    /// Adds write-back reasons for about `blocks` dirty blocks of a file, the first ones first, in windows of one
    /// transfer. Returns how many dirty blocks it has, as far as they were looked at.
    pub(crate) fn dues_of(&self, inode: &Shared<F>, blocks: u64, dues: &mut Vec<WritebackReason>) -> u64 {
        let window = u64::from(self.transfer_blocks());
        let pages = inode.pages.lock();
        let mut next = pages.ready().first().unwrap_or_default();
        dues.push(WritebackReason::Evict(inode.ino, next));
        let mut seen = 0;
        for (start, end) in pages.ready().within(Lbn(0), Lbn::MAX).take(EVICT_RANGES) {
            // The part that the previous reason covers does not need another.
            let far = start.max(next + window);
            let wanted = blocks.saturating_sub(seen).div_ceil(window);
            for skipped in (0..wanted).map(|windows| windows * window).take_while(|skipped| far + *skipped < end) {
                next = far + skipped;
                dues.push(WritebackReason::Evict(inode.ino, next));
            }
            seen += end - start;
        }
        seen
    }
}
