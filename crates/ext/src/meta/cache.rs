//! Metadata blocks in memory: reading them, and letting them leave.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Cause, Kind, Op, Request, Tag};
use moafs_runtime::Event;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_vfs::{Error, Result};

use super::block::Block;
use super::device::Device;

/// The most blocks read by one request when a neighbourhood is fetched.
const READ_RUN_MAX: u64 = 32;

/// The share of memory, one part in so many, by which it grows after a search in vain before the next one: blocks that
/// were read or released meanwhile may leave.
const VAIN_SHARE: usize = 16;

/// Number of maps that blocks are distributed to, by their number: threads seldom wait for one another.
const SHARDS: usize = 16;

/// The position at which the search for blocks that may leave memory goes on: a clock over the
/// shards, by block number within each.
#[derive(Default)]
pub(super) struct Hand {
    shard: usize,
    next: u64,
    /// The end of the last search that left too much in memory.
    vain: Option<VainSearch>,
}

/// The state of memory when a search had dropped all that may leave. The next one is in vain as well until blocks have
/// been written, or memory has grown.
#[derive(Clone, Copy)]
struct VainSearch {
    memory: usize,
    written: u64,
}

impl VainSearch {
    fn is_still(self, memory: usize, written: u64) -> bool {
        written == self.written && memory < self.memory + self.memory / VAIN_SHARE
    }
}

/// The blocks in memory, and the device that they are read from.
pub(super) struct Cache {
    pub(super) device: Device,
    shards: [Mutex<BTreeMap<u64, Arc<Block>>>; SHARDS],
    pub(super) hand: Mutex<Hand>,
    filled: Event,
    memory: AtomicU64,
    /// The number of times that changed blocks became clean.
    written: AtomicU64,
}

impl Cache {
    pub(super) fn new(device: Device) -> Cache {
        Cache {
            device,
            shards: std::array::from_fn(|_| Mutex::new(BTreeMap::new())),
            hand: Mutex::new(Hand::default()),
            filled: Event::new(),
            memory: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    fn shard(&self, no: u64) -> &Mutex<BTreeMap<u64, Arc<Block>>> {
        &self.shards[(no % SHARDS as u64) as usize]
    }

    // -- reading

    /// Returns a block, and reads with the same request those of its neighbours in `near` that are
    /// not in memory, up to the next one that is (a stretch of an inode table or of a directory).
    pub(super) fn get_near(&self, no: u64, kind: Kind, near: Range<u64>) -> Result<Arc<Block>> {
        loop {
            let ticket = self.filled.ticket();
            let found = self.shard(no).lock().get(&no).cloned();
            match found {
                Some(block) if block.ready.load(Ordering::Acquire) => {
                    block.touched.store(true, Ordering::Relaxed);
                    return Ok(block);
                }
                Some(_) => {
                    self.device.rt.wait(&self.filled, ticket, None);
                }
                None => self.fill(no, kind, near.clone())?,
            }
        }
    }

    /// Returns a block if it is in memory.
    pub(super) fn cached(&self, no: u64) -> Option<Arc<Block>> {
        self.shard(no).lock().get(&no).filter(|block| block.ready.load(Ordering::Acquire)).cloned()
    }

    /// Takes a block whose contents on the disk do not matter into memory, as zeros; `None` if it
    /// is there already. Unlike a fresh one it is written only when it is changed. Never waits.
    pub(super) fn unread(&self, no: u64, kind: Kind) -> Option<Arc<Block>> {
        let mut shard = self.shard(no).lock();
        let Entry::Vacant(absent) = shard.entry(no) else { return None };
        self.memory.fetch_add(self.device.block_size as u64, Ordering::Relaxed);
        Some(Arc::clone(absent.insert(Block::ready(no, kind, Buf::zeroed(self.device.block_size)))))
    }

    /// Reads `no` and the blocks around it in `near` that are not in memory.
    fn fill(&self, no: u64, kind: Kind, near: Range<u64>) -> Result<()> {
        let Some(wanted) = self.claim(no, kind) else { return Ok(()) };
        let before = (near.start.max(no.saturating_sub(READ_RUN_MAX))..no).rev();
        let mut claimed: Vec<Arc<Block>> = before.map_while(|no| self.claim(no, kind)).collect();
        claimed.reverse();
        claimed.push(wanted);
        claimed.extend((no + 1..near.end.min(no + READ_RUN_MAX)).map_while(|no| self.claim(no, kind)));
        let first = claimed[0].no;
        let into = claimed.iter().map(|_| Buf::zeroed(self.device.block_size)).collect();
        let tag = Tag::new(kind, 0, Cause::Demand);
        let ticket = self.device.disk.submit(vec![Request { op: Op::Read { into }, at: self.device.lba(first), tag }]);
        let result = self.device.disk.wait(ticket).remove(0).result;
        let outcome = match result {
            Ok(bufs) => {
                for (block, bytes) in claimed.iter().zip(bufs) {
                    block.state.lock().bytes = bytes;
                    block.ready.store(true, Ordering::Release);
                }
                Ok(())
            }
            Err(source) => {
                claimed.iter().for_each(|block| self.unclaim(block));
                Err(Error::disk(format!("reading {kind:?} block {no}"), source))
            }
        };
        self.device.rt.signal(&self.filled);
        // A neighbour's bad sector is no reason to fail.
        if outcome.is_err() && claimed.len() > 1 { self.fill(no, kind, no..no + 1) } else { outcome }
    }

    fn claim(&self, no: u64, kind: Kind) -> Option<Arc<Block>> {
        let mut shard = self.shard(no).lock();
        if shard.contains_key(&no) {
            return None;
        }
        let block = Block::unread(no, kind);
        shard.insert(no, Arc::clone(&block));
        self.memory.fetch_add(self.device.block_size as u64, Ordering::Relaxed);
        Some(block)
    }

    /// Takes back the claim of a block that could not be read, unless a fresh block has taken its place meanwhile.
    fn unclaim(&self, claimed: &Arc<Block>) {
        if let Entry::Occupied(here) = self.shard(claimed.no).lock().entry(claimed.no)
            && Arc::ptr_eq(here.get(), claimed)
        {
            here.remove();
            self.memory.fetch_sub(self.device.block_size as u64, Ordering::Relaxed);
        }
    }

    // -- coming and going

    /// Takes a new block in. Returns the one with the same number whose place it takes.
    pub(super) fn insert(&self, block: &Arc<Block>) -> Option<Arc<Block>> {
        let before = self.shard(block.no).lock().insert(block.no, Arc::clone(block));
        if before.is_none() {
            self.memory.fetch_add(self.device.block_size as u64, Ordering::Relaxed);
        }
        before
    }

    /// Takes a block out.
    pub(super) fn remove(&self, no: u64) -> Option<Arc<Block>> {
        let removed = self.shard(no).lock().remove(&no);
        if removed.is_some() {
            self.memory.fetch_sub(self.device.block_size as u64, Ordering::Relaxed);
        }
        removed
    }

    /// Returns the bytes held in memory.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed) as usize
    }

    /// Forgets clean blocks that were not used for a turn of the hand, until at most `bytes` are held, or only blocks
    /// in use are left; then it does not look again before that may have changed. While another caller is at it,
    /// returns at once: where most blocks are in use, all writers and the sweep that makes blocks clean would wait in
    /// a row.
    pub(super) fn shrink(&self, bytes: usize) {
        let Some(mut hand) = self.hand.try_lock() else { return };
        let written = self.written.load(Ordering::Relaxed);
        if hand.vain.is_some_and(|vain| vain.is_still(self.memory(), written)) {
            return;
        }
        hand.vain = None;
        // The first turn clears the marks of use, the second finds the blocks without one; the hand
        // may begin within a shard.
        for _ in 0..=2 * SHARDS {
            let mut shard = self.shards[hand.shard].lock();
            while self.memory() > bytes
                && let Some((no, block)) = shard.range(hand.next..).next()
            {
                let (no, goes) = (*no, self.may_go(block));
                hand.next = no + 1;
                if goes {
                    shard.remove(&no);
                    self.memory.fetch_sub(self.device.block_size as u64, Ordering::Relaxed);
                }
            }
            if self.memory() <= bytes {
                return;
            }
            (hand.shard, hand.next) = ((hand.shard + 1) % SHARDS, 0);
        }
        hand.vain = Some(VainSearch { memory: self.memory(), written });
    }

    /// Notes that changed blocks have become clean: they may leave memory.
    pub(super) fn note_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true for a clean block that no caller holds, and that was not used since the hand
    /// passed it last.
    fn may_go(&self, block: &Arc<Block>) -> bool {
        let used = block.touched.swap(false, Ordering::Relaxed);
        !used && Arc::strong_count(block) == 1 && block.ready.load(Ordering::Acquire) && block.is_clean()
    }
}
