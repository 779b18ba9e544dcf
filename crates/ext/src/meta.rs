//! Metadata blocks in memory, and the order in which their changes reach the disk (soft updates).
//!
//! Every change is a new *version* of one *record*: bytes that never cross a 512-byte sector, so a
//! torn write cannot split it (an inode, a sector of a directory or of an indirect block). A
//! version carries a [`Level`]: one more than the highest level that must be on disk before it, and
//! no less than that of the record's version before it. A *sweep* writes level after level, in
//! ascending order, with one flush between them; independent ops share levels, so a sweep has as
//! many rounds as the longest chain of needs, whatever the number of ops.
//!
//! A block's image for the disk is the image last written plus the versions that are due. A change
//! that is never visible on the disk costs nothing: a record that returns to its bytes on disk
//! drops its versions.
//!
//! Three kinds of change need no version: a *fresh* block that no pointer leads to yet; bits *set*
//! in a bitmap (too many is a leak at most); counts that are recomputed. Bits are *cleared* only
//! once the pointers to their blocks and the names of their inodes are gone from the disk
//! ([`Meta::free_after`]); so the bitmap in memory says both which blocks may be handed out and
//! what the disk may show.
//!
//! A round of a sweep takes the changes of one level out of memory's lists and composes their images. It stays with the
//! sweeper ([`Round`]) until everything in it is durable, and to all others it is in flight: no change joins its level,
//! what waits for that level is not freed, its blocks do not leave memory. If the host has no room for an image, the
//! sweep fails, the round stays, and the next sweep writes all of it again before it begins another. So a level never
//! reaches the disk before all of the one below it, however long the host stays full.
//!
//! All that is for volumes without a journal. On those with one, changes join transactions instead: [`transaction`].
//! The calls are the same; a level is a transaction's number, and what a change needs is in the same transaction or an
//! earlier one anyway.
//!
//! After a power cut the disk shows, per record, one of its versions, and every change that this
//! version needs. Reference: McKusick, Ganger: Soft Updates (1999); `docs/consistency.md`.
//!
//! | module | content |
//! |---|---|
//! | `level` | levels, and what waits for them |
//! | `block` | a block: bytes, image, versions |
//! | `device` | the volume's disk, block by block |
//! | `cache` | the blocks in memory |
//! | `seal` | checksums of whole blocks |
//! | `rounds` | the order without a journal |
//! | `transaction` | the order with a journal |
//! | `group_commit` | one commit for callers that come at about the same time |
//! | `logged_data` | contents of files in transactions |

mod block;
mod cache;
mod device;
mod group_commit;
mod level;
mod logged_data;
mod rounds;
mod seal;
mod transaction;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Buf, Kind, Page, SECTOR, SharedDisk};
use moafs_runtime::Rt;
use moafs_runtime::leaf::Mutex;
use moafs_vfs::{Error, Result, full_host};
use smallvec::SmallVec;

use crate::format::Checksums;
use crate::health::Health;
use crate::journal::Log;
use crate::write::write_all;
use block::Record;
pub use block::{Block, Use};
use cache::Cache;
use device::Device;
pub use level::{Freed, Level, Needs, Sweeper};
use rounds::{Order, Round};
pub use transaction::Handle;
use transaction::Transactions;

/// The longest chain of needs; longer ones are written before the next op starts. This bounds the
/// versions of a record and the rounds of a sweep. A create, rename and remove of one name makes a
/// chain of about six.
const CHAIN_MAX: u64 = 48;

/// The most bytes of changed blocks that wait behind a round that is being written: a host that stays full must not
/// make them grow without end.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The metadata blocks of one volume and their order.
pub struct Meta {
    cache: Cache,
    order: Mutex<Order>,
    /// Held by the task that sweeps: the round that is being written, or that could not be written.
    sweeping: moafs_runtime::lock::Mutex<Option<Round>>,
    /// The transactions of a volume with a journal.
    transactions: Option<Transactions>,
}

impl Meta {
    /// Makes an empty cache over `disk`, whose changes go through `log` if the volume has a journal. The blocks that
    /// are written get `checksums`, which only volumes with a journal may have.
    pub fn new(
        disk: SharedDisk,
        rt: Rt,
        health: Arc<Health>,
        block_size: usize,
        checksums: Checksums,
        log: Option<Log>,
    ) -> Meta {
        Meta {
            transactions: log.map(|log| Transactions::new(&rt, log, block_size)),
            sweeping: moafs_runtime::lock::Mutex::new(Arc::clone(&rt), None),
            cache: Cache::new(Device { disk, rt, health, block_size, checksums }),
            order: Mutex::new(Order::new()),
        }
    }

    // -- reading

    /// Returns a block; reads it if it is not in memory, and waits for the device.
    pub fn get(&self, no: u64, kind: Kind) -> Result<Arc<Block>> {
        self.get_near(no, kind, no..no + 1)
    }

    /// Returns a block, and reads with the same request those of its neighbours in `near` that are
    /// not in memory, up to the next one that is (a stretch of an inode table or of a directory).
    pub fn get_near(&self, no: u64, kind: Kind, near: Range<u64>) -> Result<Arc<Block>> {
        self.cache.get_near(no, kind, near)
    }

    /// Returns a block if it is in memory.
    pub fn cached(&self, no: u64) -> Option<Arc<Block>> {
        self.cache.cached(no)
    }

    /// Takes a block whose contents on the disk do not matter into memory, as zeros; `None` if it
    /// is there already. Unlike a fresh one it is written only when it is changed. Never waits.
    pub fn unread(&self, no: u64, kind: Kind) -> Option<Arc<Block>> {
        self.cache.unread(no, kind)
    }

    // -- changing

    /// Returns true if changes go through a journal.
    pub fn has_journal(&self) -> bool {
        self.transactions.is_some()
    }

    /// Waits until an op that changes at most `credits` blocks may begin. With a journal the op must hold the handle
    /// while it changes anything, and no sweep may be waited for meanwhile.
    pub fn enter(&self, credits: u64) -> Option<Handle<'_>> {
        self.transactions.as_ref().map(|transactions| transactions.enter(credits))
    }

    /// Takes the new contents of a file's blocks from `start` on into the running transaction: all if they are `wanted`
    /// and there is room, otherwise those of which older ones are in the log. Says which; `None` if none is.
    pub fn log_data(&self, start: u64, pages: &[Page], wanted: bool) -> Option<Vec<bool>> {
        self.transactions.as_ref()?.log_data(start, pages, wanted)
    }

    /// Returns the contents of files in the log for a range of blocks.
    pub fn logged_data(&self, range: Range<u64>) -> Vec<(u64, Page)> {
        self.transactions.as_ref().map_or_else(Vec::new, |transactions| transactions.logged_data(range))
    }

    /// Returns the level at which all contents of files that were given to the log are durable.
    pub fn data_level(&self) -> Level {
        self.transactions.as_ref().map_or(Level::NONE, Transactions::data_level)
    }

    /// Forgets contents in the log of a file's blocks that are being freed. Returns true if the log has a copy of one:
    /// the blocks must then wait as [`Self::free_after`] lets them.
    pub fn forget_data(&self, freed: Range<u64>) -> bool {
        self.transactions.as_ref().is_some_and(|transactions| transactions.forget_data(freed))
    }

    /// Makes a new version of a record. It reaches the disk only after `needs`: the level and the
    /// data that it waits for are recorded in one step, so no sweep comes in between. Returns the
    /// level at which it will be on disk; [`Level::NONE`] if the record has returned to its bytes
    /// on disk.
    pub fn change(
        &self,
        block: &Arc<Block>,
        record: Range<usize>,
        needs: impl Into<Needs>,
        edit: impl FnOnce(&mut [u8]),
    ) -> Level {
        self.version(block, record, needs.into(), edit, None)
    }

    /// Makes a new version as [`Meta::change`] does, for a removal that no other change waits for:
    /// returns [`Level::NONE`] if no image that the disk may show (`visible` looks at the record's
    /// bytes) ever contained the removed bytes. If the one pending version only added these bytes,
    /// that version is dropped.
    pub fn remove(
        &self,
        block: &Arc<Block>,
        record: Range<usize>,
        needs: Level,
        edit: impl FnOnce(&mut [u8]),
        visible: impl Fn(&[u8]) -> bool,
    ) -> Level {
        self.version(block, record, needs.into(), edit, Some(&visible))
    }

    fn version(
        &self,
        block: &Arc<Block>,
        record: Range<usize>,
        Needs { level: needs, data }: Needs,
        edit: impl FnOnce(&mut [u8]),
        visible: Option<Visible<'_>>,
    ) -> Level {
        let key = record.start as u32;
        let mut guard = block.state.lock();
        let state = &mut *guard;
        debug_assert!(!state.dead, "block {} is changed after it was freed", block.no);
        if let Some(transactions) = &self.transactions {
            // The log protects whole blocks: here a record may be longer than a sector.
            edit(&mut state.bytes[record]);
            state.sent = transactions.join(block, data);
            return state.sent;
        }
        debug_assert!(record.start / SECTOR == (record.end - 1) / SECTOR, "record {record:?} crosses a sector");
        if state.base.is_none() {
            state.base = Some(state.bytes.clone());
        }
        edit(&mut state.bytes[record.clone()]);
        let base = state.base.as_ref().expect("made above");
        // A version that other changes wait for must reach the disk even if a later one returns to
        // the bytes before it.
        let pending = state.records.get(&key).map_or(0, |record| record.versions.len());
        let droppable = pending == 0 || (pending == 1 && visible.is_some());
        if droppable && base[record.clone()] == state.bytes[record.clone()] {
            state.records.remove(&key);
            if state.records.is_empty() {
                state.base = None;
            }
            return if visible.is_some() { Level::NONE } else { self.unless_durable(needs.max(state.sent)) };
        }
        let visible = |bytes: &[u8]| visible.is_none_or(|visible| visible(bytes));
        let bytes: Box<[u8]> = state.bytes[record.clone()].into();
        let mut was_visible = visible(&base[record.clone()]);
        let entry = state.records.entry(key).or_insert_with(|| Record { versions: SmallVec::new() });
        debug_assert!(entry.versions.last().is_none_or(|v| v.1.len() == bytes.len()), "records of one block overlap");
        let level = {
            let mut order = self.order.lock();
            let last = entry.versions.last().map_or(Level::NONE, |v| v.0);
            let after = if needs > order.durable { Level(needs.0 + 1) } else { Level::NONE };
            let level = order.open.max(last).max(after);
            order.due(level, block);
            if let Some(written) = data {
                let needed = order.data.entry(level).or_insert(written);
                *needed = (*needed).max(written);
            }
            level
        };
        match entry.versions.last_mut() {
            Some(newest) if newest.0 == level => newest.1 = bytes,
            _ => entry.versions.push((level, bytes)),
        }
        let older = entry.versions.len() - 1;
        was_visible |= entry.versions[..older].iter().any(|v| visible(&v.1));
        if was_visible { level } else { Level::NONE }
    }

    /// Returns a level as a need: [`Level::NONE`] if it is on disk already.
    fn unless_durable(&self, level: Level) -> Level {
        if self.is_pending(level) { level } else { Level::NONE }
    }

    /// Returns true if changes of this level are not on disk yet.
    pub fn is_pending(&self, level: Level) -> bool {
        if let Some(transactions) = &self.transactions {
            return transactions.is_pending(level);
        }
        level > self.order.lock().durable
    }

    /// Has every later change reach the disk after those made so far.
    pub fn order_after_all(&self) {
        if self.transactions.is_none() {
            let mut order = self.order.lock();
            order.open = order.open.max(Level(order.highest.0 + 1));
        }
    }

    /// Takes back a record whose first version got level `born`, if no version of it has left for
    /// the disk: the inode or entry that it described never existed. Returns true if it was taken
    /// back.
    pub fn cancel(&self, block: &Arc<Block>, record: Range<usize>, born: Level) -> bool {
        let mut guard = block.state.lock();
        let state = &mut *guard;
        // With a journal there is no base: a transaction that makes an inode and deletes it contains neither.
        let Some(base) = &state.base else { return false };
        if born < self.order.lock().open {
            return false;
        }
        state.bytes[record.clone()].copy_from_slice(&base[record.clone()]);
        state.records.remove(&(record.start as u32));
        if state.records.is_empty() {
            state.base = None;
        }
        true
    }

    /// Returns the level at which the changes without versions made to a block so far are on disk.
    pub fn loose_level(&self, block: &Block) -> Level {
        if self.transactions.is_some() {
            return Level::NONE;
        }
        let state = block.state.lock();
        let order = self.order.lock();
        // Not waiting any more: on disk, or on its way with the round that was closed last.
        let level = state.loose.unwrap_or(Level(order.open.0 - 1));
        if level > order.durable { level } else { Level::NONE }
    }

    /// Changes bytes that need no order (bits set, counts). Returns the level at which they will be on disk.
    pub fn change_loose(&self, block: &Arc<Block>, edit: impl Fn(&mut [u8])) -> Level {
        let mut guard = block.state.lock();
        let state = &mut *guard;
        debug_assert!(!state.dead, "block {} is changed after it was freed", block.no);
        edit(&mut state.bytes);
        if let Some(transactions) = &self.transactions {
            state.sent = transactions.join(block, None);
            return state.sent;
        }
        if let Some(base) = &mut state.base {
            edit(base);
        }
        let mut order = self.order.lock();
        let level = order.open;
        // An earlier loose level is kept: it has not been written yet, so this change is written
        // with it.
        let level = *state.loose.get_or_insert(level);
        order.due(level, block);
        level
    }

    /// Adds a new block that no pointer on disk leads to: `image` is written whole, before any
    /// pointer to it.
    pub fn fresh(&self, no: u64, kind: Kind, image: Buf) -> (Arc<Block>, Level) {
        let block = Block::ready(no, kind, image);
        // No cached image of the block's last use reaches the disk after this.
        self.cache.insert(&block).iter().for_each(|before| self.kill(before));
        let level = self.change_loose(&block, |_| {});
        (block, level)
    }

    /// Drops a block: no further image of it is handed to the disk; one may be in flight. Only for
    /// blocks that no pointer on disk leads to.
    pub fn forget(&self, no: u64) {
        self.cache.remove(no).iter().for_each(|block| self.kill(block));
    }

    fn kill(&self, block: &Arc<Block>) {
        let mut state = block.state.lock();
        state.dead = true;
        state.records.clear();
        state.base = None;
        state.loose = None;
        match &self.transactions {
            Some(transactions) => transactions.leave(block),
            None => self.order.lock().not_due(block),
        }
    }

    /// Registers blocks or an inode that become free once `needs` is on disk. Returns `false` if it
    /// is already: the caller frees them now.
    ///
    /// The image of a block of metadata may be in flight though no pointer on the disk leads to it
    /// (any more): such a block is dropped from the cache here, and freed after the round in
    /// flight.
    #[must_use]
    pub fn free_after(&self, needs: Level, freed: Freed) -> bool {
        if let Some(transactions) = &self.transactions {
            if let Freed::Meta { block } = freed {
                self.forget(block);
            }
            transactions.free(freed);
            return true;
        }
        if self.order.lock().free_if_pending(needs, freed) {
            return true;
        }
        let Freed::Meta { block } = freed else { return false };
        // First no later round can take it; then the round in flight is checked for it.
        self.forget(block);
        let mut order = self.order.lock();
        let closed = Level(order.open.0 - 1);
        order.free_if_pending(closed, freed)
    }

    // -- writing

    /// Returns the highest level handed out so far: sweeping to it makes every change so far durable.
    pub fn highest(&self) -> Level {
        if let Some(transactions) = &self.transactions {
            return transactions.highest();
        }
        self.order.lock().highest
    }

    /// Returns true if so many changes wait that they should be written before an op that changes `credits` blocks: the
    /// chain of needs has grown long, or the transaction large, or the blocks behind a round many.
    pub fn is_long(&self, credits: u64) -> bool {
        if let Some(transactions) = &self.transactions {
            return transactions.is_full(credits);
        }
        let order = self.order.lock();
        let waiting = || order.waiting_blocks() * self.cache.device.block_size;
        order.highest.0.saturating_sub(order.durable.0) > CHAIN_MAX
            || (order.is_round_open() && waiting() > WAITING_BYTES_MAX)
    }

    /// Returns true if no change waits to be written and no block waits to be freed.
    pub fn is_clean(&self) -> bool {
        if let Some(transactions) = &self.transactions {
            return transactions.is_clean();
        }
        let order = self.order.lock();
        order.due.is_empty() && order.frees.is_empty() && !order.is_round_open()
    }

    /// Writes level after level until `target` is on disk. `sweeper` receives the blocks and inodes
    /// that became free after each level. Concurrent callers share the work: one sweeps, the others
    /// find it done. On return, everything that waited for `target` has also been freed.
    ///
    /// # Errors
    /// Device errors, which turn the volume read-only. Not so a full host: the caller may wait
    /// ([`Meta::wait_for_host`]) and sweep again.
    pub fn sweep(&self, target: Level, sweeper: &mut dyn Sweeper) -> Result<()> {
        if let Some(transactions) = &self.transactions {
            return transactions.commit(&self.cache, target, sweeper);
        }
        let mut sweeping = self.sweeping.lock();
        let _watch = self.cache.device.health.watch_panics("a sweep");
        loop {
            self.cache.device.health.check()?;
            if sweeping.is_none() {
                *sweeping = self.begin_round(target);
            }
            let Some(round) = &*sweeping else { return Ok(()) };
            let (level, written) = (round.level, self.write_round(round));
            self.cache.device.health.watch(written)?;
            *sweeping = None;
            self.cache.note_written();
            let freed = self.order.lock().round_is_durable(level);
            self.cache.device.health.watch(sweeper.freed(freed))?;
        }
    }

    /// Closes the lowest level that has work, if there is one up to `target`, and composes its images.
    fn begin_round(&self, target: Level) -> Option<Round> {
        let mut round = self.order.lock().next_round(target)?;
        let image = |block: &Arc<Block>| Some((block.no, block.kind, block.compose(round.level)?.freeze()));
        round.images = round.blocks.values().filter_map(image).collect();
        Some(round)
    }

    /// Makes a round durable: writes all of it.
    fn write_round(&self, round: &Round) -> Result<()> {
        if round.images.is_empty() && round.data.is_none() {
            return Ok(());
        }
        if let (Some(epoch), false) = (round.data, round.images.is_empty()) {
            let failed = |source| Error::disk("flushing file data before the pointers to it", source);
            self.cache.device.disk.make_durable(epoch).map_err(failed)?;
        }
        let writes = round
            .images
            .iter()
            .map(|(no, kind, image)| self.cache.device.write_of(*no, *kind, image.clone()))
            .collect();
        let epoch = write_all(&self.cache.device.disk, writes)?.max(round.data.unwrap_or_default());
        self.cache.device.disk.make_durable(epoch).map_err(|source| Error::disk("flushing metadata", source))
    }

    /// Repeats an attempt for which the host has no room, for a while.
    pub fn wait_for_host<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        full_host::wait_for_host(&self.cache.device.rt, attempt)
    }

    /// Writes committed blocks home, so that the log is empty. Does nothing without a journal.
    pub fn settle_log(&self) -> Result<()> {
        self.transactions.as_ref().map_or(Ok(()), |transactions| transactions.settle(&self.cache))
    }

    /// Returns true if committed blocks wait to be written home.
    pub fn is_log_in_use(&self) -> bool {
        self.transactions.as_ref().is_some_and(Transactions::is_homeless)
    }

    /// Writes everything home and marks the log as empty; the last use of it.
    pub fn close_log(&self) -> Result<()> {
        self.transactions.as_ref().map_or(Ok(()), |transactions| transactions.finish(&self.cache))
    }

    /// Writes a block in its place, durably, beside all order. Only while no op runs, and for what no transaction
    /// contains.
    pub fn write_through(&self, block: &Arc<Block>, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        edit(&mut block.state.lock().bytes);
        let (_, image) = seal::image_of(&self.cache.device.checksums, block)?;
        let written =
            write_all(&self.cache.device.disk, vec![self.cache.device.write_of(block.no, block.kind, image)])?;
        self.cache.device.disk.make_durable(written).map_err(|source| Error::disk("flushing metadata", source))
    }

    /// Waits, for a caller that found another task in the middle of its work.
    pub fn pause(&self, time: Duration) {
        moafs_runtime::sleep_until(&*self.cache.device.rt, self.cache.device.rt.now() + time);
    }

    // -- memory

    /// Returns the bytes held in memory.
    pub fn memory(&self) -> usize {
        self.cache.memory() + self.homeless_bytes()
    }

    /// Returns the bytes of images that wait to be written home.
    fn homeless_bytes(&self) -> usize {
        self.transactions.as_ref().map_or(0, |transactions| transactions.memory() as usize)
    }

    /// Forgets clean blocks that were not used for a while, until at most `bytes` are held in memory, or only blocks in
    /// use are left.
    pub fn shrink(&self, bytes: usize) {
        self.cache.shrink(bytes.saturating_sub(self.homeless_bytes()));
    }
}

/// Predicate over a record's bytes: true if they contain the bytes that are being removed.
type Visible<'a> = &'a dyn Fn(&[u8]) -> bool;

#[cfg(test)]
pub(crate) mod tests;
