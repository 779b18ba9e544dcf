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

mod seal;
mod transaction;

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Buf, Cause, Epoch, Kind, Lba, Op, Page, Request, SECTOR, SharedDisk, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt};
use moafs_vfs::{Error, Result, full_host};
use smallvec::SmallVec;

use crate::format::{Checksums, GroupNo, InodeNo, Owner, Sealed};
use crate::health::Health;
use crate::journal::Log;
pub use transaction::Handle;
use transaction::Transactions;

/// A place in the order of writes. Level 0 is always on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Level(pub u64);

impl Level {
    /// The level of changes that are on disk: there is nothing to wait for.
    pub const NONE: Level = Level(0);
}

/// The changes and file data that must be on disk before a change: the level of the earlier
/// changes, and the data that the change makes reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    level: Level,
    data: Option<Epoch>,
}

impl Needs {
    /// Adds file data that completed in `written`.
    #[must_use]
    pub fn and_data(self, written: Option<Epoch>) -> Needs {
        Needs { data: self.data.max(written), ..self }
    }
}

impl From<Level> for Needs {
    fn from(level: Level) -> Needs {
        Needs { level, data: None }
    }
}

/// The longest chain of needs; longer ones are written before the next op starts. This bounds the
/// versions of a record and the rounds of a sweep. A create, rename and remove of one name makes a
/// chain of about six.
const CHAIN_MAX: u64 = 48;

/// The most bytes of changed blocks that wait behind a round that is being written: a host that stays full must not
/// make them grow without end.
const WAITING_BYTES_MAX: usize = 64 << 20;

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
struct Hand {
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

/// A metadata block in memory.
pub struct Block {
    /// The block's number on the volume.
    pub no: u64,
    kind: Kind,
    ready: AtomicBool,
    touched: AtomicBool,
    /// The use for which the bytes were verified; 0 for none.
    verified: AtomicU64,
    state: Mutex<State>,
}

/// The use of a block, for which its bytes were verified: the structure that it holds, and the inode or group that it
/// belongs to. A block that a damaged volume gives to two owners is verified for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use(u64);

impl Use {
    const fn of(structure: u8, owner: u32) -> Use {
        Use((structure as u64) << 32 | owner as u64)
    }

    /// Returns the use as a group's block bitmap.
    pub fn block_bitmap(group: GroupNo) -> Use {
        Use::of(1, group.0)
    }

    /// Returns the use as a group's inode bitmap.
    pub fn inode_bitmap(group: GroupNo) -> Use {
        Use::of(2, group.0)
    }

    /// Returns the use as a node of an inode's extent tree.
    pub fn extents(ino: InodeNo) -> Use {
        Use::of(3, ino.0)
    }

    /// Returns the use as a block of a directory.
    pub fn directory(ino: InodeNo) -> Use {
        Use::of(4, ino.0)
    }

    /// Returns the use as an attribute block, which inodes may share.
    pub fn xattrs() -> Use {
        Use::of(5, 0)
    }
}

struct State {
    /// The current bytes, which ops see.
    bytes: Buf,
    /// The image last written, kept while versions are pending.
    base: Option<Buf>,
    records: BTreeMap<u32, Record>,
    /// The level at which changes without versions are to be written.
    loose: Option<Level>,
    /// The level of the round in which an image was last handed to the disk: it is on disk, or in
    /// flight.
    sent: Level,
    /// True once the block was freed: no image of it may reach the disk any more.
    dead: bool,
    /// The structure whose checksum the block gets when it is written.
    sealed: Option<Sealed>,
}

/// The versions of a record that are not on disk yet, oldest first, levels ascending.
struct Record {
    versions: SmallVec<[(Level, Box<[u8]>); 2]>,
}

/// Blocks or an inode that become free once a level is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Blocks of file data.
    Data {
        /// The first of the blocks.
        start: u64,
        /// Number of contiguous blocks.
        len: u32,
    },
    /// A block of metadata (directory, map, xattr, symlink): its cached copy dies with it.
    Meta {
        /// The number of the block.
        block: u64,
    },
    /// An inode that was deleted.
    Inode {
        /// The number of the inode.
        ino: u32,
        /// True if it was a directory (counted per group).
        directory: bool,
    },
}

struct Order {
    /// New changes get at least this level; those below are being written or on disk.
    open: Level,
    /// Every change up to this level is on disk.
    durable: Level,
    /// The highest level handed out.
    highest: Level,
    /// Blocks with changes due at a level.
    due: BTreeMap<Level, BTreeMap<u64, Arc<Block>>>,
    /// The epoch of the data that must be on disk before the pointers of a level.
    data: BTreeMap<Level, Epoch>,
    frees: BTreeMap<Level, Vec<Freed>>,
}

/// The owner of what a sweep frees.
pub trait Sweeper {
    /// Makes the changes that a transaction must contain before it is closed, such as counts. No op is running.
    fn before_commit(&mut self) -> Result<()>;
    /// Takes the blocks and inodes that have become free.
    fn freed(&mut self, freed: Vec<Freed>) -> Result<()>;
}

impl<F: FnMut(Vec<Freed>) -> Result<()>> Sweeper for F {
    fn before_commit(&mut self) -> Result<()> {
        Ok(())
    }

    fn freed(&mut self, freed: Vec<Freed>) -> Result<()> {
        self(freed)
    }
}

/// The metadata blocks of one volume and their order.
pub struct Meta {
    disk: SharedDisk,
    rt: Rt,
    health: Arc<Health>,
    block_size: usize,
    checksums: Checksums,
    shards: [Mutex<BTreeMap<u64, Arc<Block>>>; SHARDS],
    hand: Mutex<Hand>,
    filled: Event,
    order: Mutex<Order>,
    /// Held by the task that sweeps: the round that is being written, or that could not be written.
    sweeping: moafs_runtime::lock::Mutex<Option<Round>>,
    memory: AtomicU64,
    /// The number of times that changed blocks became clean.
    written: AtomicU64,
    /// The transactions of a volume with a journal.
    transactions: Option<Transactions>,
}

impl Block {
    fn ready(no: u64, kind: Kind, bytes: Buf) -> Arc<Block> {
        Arc::new(Block {
            no,
            kind,
            ready: AtomicBool::new(true),
            touched: AtomicBool::new(true),
            verified: AtomicU64::new(0),
            state: Mutex::new(State { bytes, ..State::empty() }),
        })
    }

    /// Calls `look` with the block's current bytes, which ops see.
    pub fn view<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        self.touched.store(true, Ordering::Relaxed);
        look(&self.state.lock().bytes)
    }

    /// Has `verify` judge the bytes, unless they were found right for the same use before. What changes them keeps
    /// them right, so they are judged once for each time that they are read.
    ///
    /// # Errors
    /// The error of `verify`.
    pub fn verify<E>(
        &self,
        used: Use,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.verified.load(Ordering::Relaxed) == used.0 {
            return Ok(());
        }
        // One step: once the bytes were found right another task may change them.
        let state = self.state.lock();
        if self.verified.load(Ordering::Relaxed) != used.0 {
            verify(&state.bytes)?;
            self.verified.store(used.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has `image` make the bytes of a block whose contents on the disk mean nothing: once for as long as the block
    /// stays in memory.
    pub fn supply(&self, used: Use, image: impl FnOnce(&mut [u8])) {
        let mut state = self.state.lock();
        if self.verified.load(Ordering::Relaxed) != used.0 {
            image(&mut state.bytes);
            self.verified.store(used.0, Ordering::Relaxed);
        }
    }

    /// Notes the structure that the block holds: it gets the checksum of this structure when it is written, by a volume
    /// with a journal. The op that changes a structure with a checksum that has a block for itself says this, of a new
    /// block or of one that was verified; its bytes are right from then on, though their checksum is made later. A
    /// directory block is a [`Sealed::Leaf`] here, whatever its shape will be.
    pub fn holds(&self, what: Sealed) {
        let used = match what {
            Sealed::Leaf(owner) => Use::directory(owner.ino),
            Sealed::Extents(owner) => Use::extents(owner.ino),
            Sealed::Xattrs(_) => Use::xattrs(),
            _ => Use(0),
        };
        let mut state = self.state.lock();
        state.sealed = Some(what);
        self.verified.store(used.0, Ordering::Relaxed);
    }

    /// Notes that the block holds a node of an extent tree, as [`Block::holds`] does.
    pub fn belongs_to(&self, owner: Owner) {
        self.holds(Sealed::Extents(owner));
    }

    /// Returns a level at which the newest version of a record is on disk. A version that left with
    /// the round in flight counts: it may still be lost.
    pub fn pending(&self, record: usize) -> Level {
        let state = self.state.lock();
        let newest = |r: &Record| r.versions.last().map_or(Level::NONE, |v| v.0);
        state.records.get(&(record as u32)).map_or(Level::NONE, newest).max(state.sent)
    }

    fn is_clean(&self) -> bool {
        let state = self.state.lock();
        state.dead || (state.records.is_empty() && state.loose.is_none())
    }

    /// Returns the image that may go to the disk at `level`; `None` if no change is due.
    fn compose(&self, level: Level) -> Option<Buf> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.dead {
            return None;
        }
        let mut due = state.loose.is_some_and(|at| at <= level);
        if due {
            state.loose = None;
        }
        if let Some(base) = &mut state.base {
            for (at, record) in &mut state.records {
                let ready = record.versions.iter().take_while(|v| v.0 <= level).count();
                if let Some((_, bytes)) = record.versions.drain(..ready).next_back() {
                    base[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    due = true;
                }
            }
            state.records.retain(|_, record| !record.versions.is_empty());
        }
        if state.records.is_empty() {
            debug_assert!(
                state.base.as_ref().is_none_or(|base| **base == *state.bytes),
                "block {} lost a change",
                self.no
            );
            state.base = None;
        }
        if due {
            state.sent = level;
        }
        due.then(|| state.base.as_ref().unwrap_or(&state.bytes).clone())
    }
}

impl State {
    fn empty() -> State {
        State {
            bytes: Buf::zeroed(0),
            base: None,
            records: BTreeMap::new(),
            loose: None,
            sent: Level::NONE,
            dead: false,
            sealed: None,
        }
    }
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
        let order = Order {
            open: Level(1),
            durable: Level::NONE,
            highest: Level::NONE,
            due: BTreeMap::new(),
            data: BTreeMap::new(),
            frees: BTreeMap::new(),
        };
        Meta {
            transactions: log.map(|log| Transactions::new(&rt, log)),
            disk,
            sweeping: moafs_runtime::lock::Mutex::new(Arc::clone(&rt), None),
            rt,
            health,
            block_size,
            checksums,
            shards: std::array::from_fn(|_| Mutex::new(BTreeMap::new())),
            hand: Mutex::new(Hand::default()),
            filled: Event::new(),
            order: Mutex::new(order),
            memory: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    fn shard(&self, no: u64) -> &Mutex<BTreeMap<u64, Arc<Block>>> {
        &self.shards[(no % SHARDS as u64) as usize]
    }

    fn lba(&self, no: u64) -> Lba {
        Lba(no * (self.block_size / SECTOR) as u64)
    }

    // -- reading

    /// Returns a block; reads it if it is not in memory, and waits for the device.
    pub fn get(&self, no: u64, kind: Kind) -> Result<Arc<Block>> {
        self.get_near(no, kind, no..no + 1)
    }

    /// Returns a block, and reads with the same request those of its neighbours in `near` that are
    /// not in memory, up to the next one that is (a stretch of an inode table or of a directory).
    pub fn get_near(&self, no: u64, kind: Kind, near: Range<u64>) -> Result<Arc<Block>> {
        loop {
            let ticket = self.filled.ticket();
            let found = self.shard(no).lock().get(&no).cloned();
            match found {
                Some(block) if block.ready.load(Ordering::Acquire) => {
                    block.touched.store(true, Ordering::Relaxed);
                    return Ok(block);
                }
                Some(_) => {
                    self.rt.wait(&self.filled, ticket, None);
                }
                None => self.fill(no, kind, near.clone())?,
            }
        }
    }

    /// Returns a block if it is in memory.
    pub fn cached(&self, no: u64) -> Option<Arc<Block>> {
        self.shard(no).lock().get(&no).filter(|block| block.ready.load(Ordering::Acquire)).cloned()
    }

    /// Takes a block whose contents on the disk do not matter into memory, as zeros; `None` if it
    /// is there already. Unlike a fresh one it is written only when it is changed. Never waits.
    pub fn unread(&self, no: u64, kind: Kind) -> Option<Arc<Block>> {
        let mut shard = self.shard(no).lock();
        let Entry::Vacant(absent) = shard.entry(no) else { return None };
        self.memory.fetch_add(self.block_size as u64, Ordering::Relaxed);
        Some(Arc::clone(absent.insert(Block::ready(no, kind, Buf::zeroed(self.block_size)))))
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
        let into = claimed.iter().map(|_| Buf::zeroed(self.block_size)).collect();
        let tag = Tag::new(kind, 0, Cause::Demand);
        let ticket = self.disk.submit(vec![Request { op: Op::Read { into }, at: self.lba(first), tag }]);
        let result = self.disk.wait(ticket).remove(0).result;
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
        self.rt.signal(&self.filled);
        // A neighbour's bad sector is no reason to fail.
        if outcome.is_err() && claimed.len() > 1 { self.fill(no, kind, no..no + 1) } else { outcome }
    }

    fn claim(&self, no: u64, kind: Kind) -> Option<Arc<Block>> {
        let mut shard = self.shard(no).lock();
        if shard.contains_key(&no) {
            return None;
        }
        let block = Arc::new(Block {
            no,
            kind,
            ready: AtomicBool::new(false),
            touched: AtomicBool::new(true),
            verified: AtomicU64::new(0),
            state: Mutex::new(State::empty()),
        });
        shard.insert(no, Arc::clone(&block));
        self.memory.fetch_add(self.block_size as u64, Ordering::Relaxed);
        Some(block)
    }

    /// Takes back the claim of a block that could not be read, unless a fresh block has taken its place meanwhile.
    fn unclaim(&self, claimed: &Arc<Block>) {
        if let Entry::Occupied(here) = self.shard(claimed.no).lock().entry(claimed.no)
            && Arc::ptr_eq(here.get(), claimed)
        {
            here.remove();
            self.memory.fetch_sub(self.block_size as u64, Ordering::Relaxed);
        }
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
        let before = self.shard(no).lock().insert(no, Arc::clone(&block));
        match before {
            // No cached image of the block's last use reaches the disk after this.
            Some(before) => self.kill(&before),
            None => drop(self.memory.fetch_add(self.block_size as u64, Ordering::Relaxed)),
        }
        let level = self.change_loose(&block, |_| {});
        (block, level)
    }

    /// Drops a block: no further image of it is handed to the disk; one may be in flight. Only for
    /// blocks that no pointer on disk leads to.
    pub fn forget(&self, no: u64) {
        let forgotten = self.shard(no).lock().remove(&no);
        if let Some(block) = forgotten {
            self.memory.fetch_sub(self.block_size as u64, Ordering::Relaxed);
            self.kill(&block);
        }
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
        let waiting = || order.due.values().map(BTreeMap::len).sum::<usize>() * self.block_size;
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
            return transactions.commit(self, target, sweeper);
        }
        let mut sweeping = self.sweeping.lock();
        loop {
            self.health.check()?;
            if sweeping.is_none() {
                *sweeping = self.begin_round(target);
            }
            let Some(round) = &*sweeping else { return Ok(()) };
            let (level, written) = (round.level, self.write_round(round));
            self.health.watch(written)?;
            *sweeping = None;
            self.note_written();
            let freed = self.order.lock().round_is_durable(level);
            self.health.watch(sweeper.freed(freed))?;
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
            self.disk.make_durable(epoch).map_err(failed)?;
        }
        let writes = round.images.iter().map(|(no, kind, image)| self.write_of(*no, *kind, image.clone())).collect();
        let epoch = write_all(&self.disk, writes)?.max(round.data.unwrap_or_default());
        self.disk.make_durable(epoch).map_err(|source| Error::disk("flushing metadata", source))
    }

    /// Repeats an attempt for which the host has no room, for a while.
    pub fn wait_for_host<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        full_host::wait_for_host(&self.rt, attempt)
    }

    /// Writes committed blocks home, so that the log is empty. Does nothing without a journal.
    pub fn settle_log(&self) -> Result<()> {
        self.transactions.as_ref().map_or(Ok(()), |transactions| transactions.settle(self))
    }

    /// Returns true if committed blocks wait to be written home.
    pub fn is_log_in_use(&self) -> bool {
        self.transactions.as_ref().is_some_and(Transactions::is_homeless)
    }

    /// Writes everything home and marks the log as empty; the last use of it.
    pub fn close_log(&self) -> Result<()> {
        self.transactions.as_ref().map_or(Ok(()), |transactions| transactions.finish(self))
    }

    /// Writes a block in its place, durably, beside all order. Only while no op runs, and for what no transaction
    /// contains.
    pub fn write_through(&self, block: &Arc<Block>, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        edit(&mut block.state.lock().bytes);
        let (_, image) = seal::image_of(&self.checksums, block)?;
        let written = write_all(&self.disk, vec![self.write_of(block.no, block.kind, image)])?;
        self.disk.make_durable(written).map_err(|source| Error::disk("flushing metadata", source))
    }

    fn write_of(&self, no: u64, kind: Kind, image: Page) -> Request {
        let op = Op::Write { data: vec![image], fua: false };
        Request { op, at: self.lba(no), tag: Tag::new(kind, 0, Cause::Order) }
    }

    /// Waits, for a caller that found another task in the middle of its work.
    pub fn pause(&self, time: Duration) {
        moafs_runtime::sleep_until(&*self.rt, self.rt.now() + time);
    }

    // -- memory

    /// Returns the bytes held in memory.
    pub fn memory(&self) -> usize {
        let homeless = self.transactions.as_ref().map_or(0, Transactions::memory);
        (self.memory.load(Ordering::Relaxed) + homeless) as usize
    }

    /// Forgets clean blocks that were not used for a turn of the hand, until at most `bytes` are held, or only blocks
    /// in use are left; then it does not look again before that may have changed. While another caller is at it,
    /// returns at once: where most blocks are in use, all writers and the sweep that makes blocks clean would wait in
    /// a row.
    pub fn shrink(&self, bytes: usize) {
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
                    self.memory.fetch_sub(self.block_size as u64, Ordering::Relaxed);
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
    fn note_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true for a clean block that no caller holds, and that was not used since the hand
    /// passed it last.
    fn may_go(&self, block: &Arc<Block>) -> bool {
        let used = block.touched.swap(false, Ordering::Relaxed);
        !used && Arc::strong_count(block) == 1 && block.ready.load(Ordering::Acquire) && block.is_clean()
    }
}

/// Writes metadata. Returns the epoch in which the last of it completed.
///
/// # Errors
/// The first device error; that the host is full only if there is no other. Any of the writes may have been carried
/// out.
pub(crate) fn write_all(disk: &SharedDisk, writes: Vec<Request>) -> Result<Epoch> {
    let whats: Vec<(Lba, Kind)> = writes.iter().map(|write| (write.at, write.tag.kind)).collect();
    let ticket = disk.submit(writes);
    let (mut newest, mut full) = (Epoch::default(), None);
    for (done, (at, kind)) in disk.wait(ticket).into_iter().zip(whats) {
        let failed = |source| Error::disk(format!("writing {kind:?} at sector {}", at.0), source);
        match done.result.map_err(failed) {
            Ok(_) => newest = newest.max(done.epoch),
            Err(error) if error.is_host_full() => full = full.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    full.map_or(Ok(newest), Err)
}

/// Predicate over a record's bytes: true if they contain the bytes that are being removed.
type Visible<'a> = &'a dyn Fn(&[u8]) -> bool;

/// One round of a sweep: every change due up to a level.
struct Round {
    level: Level,
    /// The blocks that change. Until they are durable only memory has their contents: they stay there.
    blocks: BTreeMap<u64, Arc<Block>>,
    /// The writes: each block's number, kind and image.
    images: Vec<(u64, Kind, Page)>,
    /// The epoch of the file data that must be durable before.
    data: Option<Epoch>,
}

impl Order {
    fn due(&mut self, level: Level, block: &Arc<Block>) {
        self.highest = self.highest.max(level);
        let before = self.due.entry(level).or_default().insert(block.no, Arc::clone(block));
        debug_assert!(before.is_none_or(|before| Arc::ptr_eq(&before, block)), "two blocks {} are due", block.no);
    }

    /// Takes a block out: none of its changes is to be written any more.
    fn not_due(&mut self, block: &Arc<Block>) {
        self.due.retain(|_, blocks| {
            if blocks.get(&block.no).is_some_and(|here| Arc::ptr_eq(here, block)) {
                blocks.remove(&block.no);
            }
            !blocks.is_empty()
        });
    }

    /// Registers blocks or an inode to be freed after a level that is not on disk yet; returns
    /// `false` if it is.
    fn free_if_pending(&mut self, needs: Level, freed: Freed) -> bool {
        if needs <= self.durable {
            return false;
        }
        self.highest = self.highest.max(needs);
        self.frees.entry(needs).or_default().push(freed);
        true
    }

    /// Closes the lowest level that has work, if there is one up to `target`.
    fn next_round(&mut self, target: Level) -> Option<Round> {
        let lowest = [self.due.keys().next(), self.frees.keys().next(), self.data.keys().next()];
        let level = lowest.into_iter().flatten().min().copied().unwrap_or(Level(u64::MAX));
        if level > target {
            // No change is pending up to `target`: it is on disk, and no new change may join it.
            self.open = self.open.max(Level(target.0 + 1));
            self.durable = self.durable.max(target);
            return None;
        }
        let level = level.max(Level(self.durable.0 + 1));
        self.open = self.open.max(Level(level.0 + 1));
        let later = self.due.split_off(&Level(level.0 + 1));
        let mut blocks = BTreeMap::new();
        for (_, due) in std::mem::replace(&mut self.due, later) {
            blocks.extend(due);
        }
        let later = self.data.split_off(&Level(level.0 + 1));
        let data = std::mem::replace(&mut self.data, later).into_values().max();
        Some(Round { level, blocks, images: Vec::new(), data })
    }

    /// Returns true from the moment at which a round is closed until it is durable.
    fn is_round_open(&self) -> bool {
        self.open.0 > self.durable.0 + 1
    }

    /// Notes that a round is on disk; returns the blocks and inodes that waited for it and are now free.
    fn round_is_durable(&mut self, level: Level) -> Vec<Freed> {
        self.durable = self.durable.max(level);
        let later = self.frees.split_off(&Level(level.0 + 1));
        std::mem::replace(&mut self.frees, later).into_values().flatten().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
