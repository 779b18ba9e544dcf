//! Large reads of blocks that are not cached, straight into the reader's memory.
//!
//! Behind a cache that keeps what it reads ([`CacheRole::Behind`]) a page of ours would be served once and go: it costs
//! its memory, a copy, and its way through map and queue. So a large read of blocks that have no page asks the device
//! for them where they are wanted.
//!
//! Coherence: the inode lock is held, shared at least, so no other task writes to the file, cuts or frees it; no block
//! of the range has a page, so the device has the newest bytes. Still, another reader may fetch pages and a policy may
//! move them along: their old place may then be given to another file while we read from it. Every such move is counted
//! ([`Pages::placements`]) before the old place is free; a read that sees the count change does not trust its bytes and
//! goes through the cache.
//!
//! [`Pages::placements`]: crate::pages::Pages::placements

use std::sync::atomic::Ordering;

use moafs_disk::{Cause, Kind, ReadPart, Tag};

use crate::error::{Error, Result};
use crate::format::Format;
use crate::inode::Shared;
use crate::options::CacheRole;
use crate::types::{Lbn, LbnRange, Mapping};
use crate::volume::Volume;

/// The smallest read that bypasses the cache, in bytes: kernels ask for less where the reader is not sequential.
const BYPASS_BYTES_MIN: u64 = 64 << 10;

/// The largest read at once, in bytes.
const BYPASS_BYTES_MAX: u64 = 1 << 20;

impl<F: Format> Volume<F> {
    /// Reads the bytes from `offset` to `end`, which is not behind the end of the file, as far as they qualify for
    /// this; returns how many. `into` may be longer: whole blocks are read where it has room for them.
    pub(crate) fn read_past_cache(&self, inode: &Shared<F>, offset: u64, end: u64, into: &mut [u8]) -> Result<usize> {
        let block_bytes = self.block_bytes();
        let wanted = (end - offset).next_multiple_of(block_bytes).min(into.len() as u64).min(BYPASS_BYTES_MAX);
        let aligned = offset.is_multiple_of(block_bytes);
        if self.options.role != CacheRole::Behind || !aligned || wanted < BYPASS_BYTES_MIN {
            return Ok(0);
        }
        let range = LbnRange { start: Lbn(offset / block_bytes), len: (wanted / block_bytes) as u32 };
        let (absent, placements) = {
            let pages = inode.pages.lock();
            (pages.absent_from(range), pages.placements())
        };
        let bytes = u64::from(absent) * block_bytes;
        if bytes < BYPASS_BYTES_MIN {
            return Ok(0);
        }
        let range = LbnRange { len: absent, ..range };
        let relocation_generation = self.format.relocation_generation();
        let read = self.read_blocks_into(inode, range, &mut into[..bytes as usize]);
        if inode.pages.lock().placements() != placements || self.format.relocation_generation() != relocation_generation
        {
            return Ok(0);
        }
        let requests = read?;
        self.tally.read_misses.fetch_add(u64::from(absent), Ordering::Relaxed);
        self.tally.bypass_blocks.fetch_add(u64::from(absent), Ordering::Relaxed);
        self.tally.fill_requests.fetch_add(requests as u64, Ordering::Relaxed);
        Ok(bytes.min(end - offset) as usize)
    }

    /// Reads blocks from the device; returns the number of requests.
    fn read_blocks_into(&self, inode: &Shared<F>, range: LbnRange, into: &mut [u8]) -> Result<usize> {
        let mut parts = Vec::new();
        let (mut at, mut rest) = (range.start, into);
        while at < range.end() {
            let left = (range.end() - at) as u32;
            let mapping = self.format.map(&inode.node, at, left)?;
            let len = mapping.len().clamp(1, left).min(self.transfer_blocks());
            let (here, after) = rest.split_at_mut(len as usize * self.shape.block_size as usize);
            match mapping {
                Mapping::Run(run) => parts.push(ReadPart { at: self.lba(run), into: here }),
                _ => {
                    let resident = self.format.resident(&inode.node, at)?.unwrap_or_default();
                    let len = resident.len().min(here.len());
                    here[..len].copy_from_slice(&resident[..len]);
                    here[len..].fill(0);
                }
            }
            (at, rest) = (at + u64::from(len), after);
        }
        let tag = Tag::new(Kind::Data, inode.ino.0, Cause::Demand);
        self.disk.read_into(&mut parts, tag).map_err(|error| {
            let what = format!("reading block {} of inode {} and those behind it", range.start, inode.ino);
            Error::disk(what, error)
        })?;
        Ok(parts.len())
    }
}
