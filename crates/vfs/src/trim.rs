//! Trimming: the device is told which blocks hold nothing.
//!
//! A free run must not be handed out while the device forgets it, or what is written there would be forgotten as well.
//! So each run is taken as swap areas take theirs ([`crate::swap_space`]), in memory only, discarded, and given back.
//! The blocks are promised meanwhile: no writer misses them.

use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Cause, DiskExt, Kind, Lba, Op, Request, SECTOR, Tag};

use crate::error::{Error, Result};
use crate::format::{CommitReason, Format};
use crate::full_host::wait_for_host;
use crate::io::Files;
use crate::swap_space::{SwapSpace, Where};
use crate::types::{BlockAddr, BlockRun};

/// The most bytes that are discarded by one request.
const RUN_BYTES_MAX: u64 = 128 << 20;

/// Capacity that is promised to a trim, given back when it ends.
struct Promise {
    space: Arc<dyn SwapSpace>,
    blocks: u32,
}

impl Promise {
    /// Promises `most` blocks, or half as many as long as there is no room for them; `None` without room for `least`,
    /// which is not 0.
    fn of(space: Arc<dyn SwapSpace>, most: u32, least: u32) -> Result<Option<Promise>> {
        let mut blocks = most.max(least);
        while blocks >= least {
            match space.reserve(blocks.into()) {
                Ok(()) => return Ok(Some(Promise { space, blocks })),
                Err(error) if error.errno() == libc::ENOSPC => blocks /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.space.release(self.blocks.into());
    }
}

impl<F: Format> Files<F> {
    /// Discards what is free within `range`, in bytes of the device, in runs of at least `min` bytes there. Returns how
    /// many bytes were discarded. Ends early if `stop` says so.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device forgets nothing; EINVAL for a range behind the end or shorter than a block, and if
    /// `min` is more than the device has.
    pub(crate) fn trim(&self, range: Range<u64>, min: u64, stop: &dyn Fn() -> bool) -> Result<u64> {
        let _gate = self.enter_changing()?;
        let limits = self.disk.limits();
        let space = self.format.swap_space().filter(|_| limits.discard).ok_or(Error::Posix(libc::EOPNOTSUPP))?;
        let block_bytes = self.block_bytes();
        let bytes = limits.sectors * SECTOR as u64;
        let range = range.start..range.end.min(bytes);
        if min > bytes || range.start >= range.end || range.end - range.start < block_bytes {
            return Err(Error::Posix(libc::EINVAL));
        }
        let least = u32::try_from(min.div_ceil(block_bytes)).unwrap_or(u32::MAX).max(1);
        let most = u32::try_from(RUN_BYTES_MAX / block_bytes).unwrap_or(u32::MAX);
        // Blocks of removed files can be taken once a commit has freed them.
        let _ = self.reap_all();
        wait_for_host(&self.rt, || self.format.commit(CommitReason::Pressure))?;
        let Some(promise) = Promise::of(space, most, least)? else { return Ok(0) };
        let (mut at, end) = (range.start.div_ceil(block_bytes), range.end / block_bytes);
        let mut discarded = 0;
        while !stop() {
            let Some(run) = promise.space.take(Where::From(BlockAddr(at)), promise.blocks, least)? else { break };
            at = run.end().0;
            // The free blocks beyond the end of the range are not asked for, and may leave too little.
            let inside = BlockRun { len: at.min(end).saturating_sub(run.start.0) as u32, ..run };
            let told = if inside.len < least { Ok(()) } else { self.discard_run(inside) };
            promise.space.give(run);
            told?;
            if inside.len >= least {
                discarded += u64::from(inside.len) * block_bytes;
            }
            if at >= end {
                break;
            }
        }
        Ok(discarded)
    }

    fn discard_run(&self, run: BlockRun) -> Result<()> {
        let sectors = self.block_bytes() / SECTOR as u64;
        let request = Request {
            op: Op::Discard { sectors: u64::from(run.len) * sectors },
            at: Lba(run.start.0 * sectors),
            tag: Tag::new(Kind::Data, 0, Cause::Volume),
        };
        let done = self.disk.run(vec![request]).remove(0);
        done.result.map(drop).map_err(|source| Error::disk("discarding free blocks", source))
    }
}
