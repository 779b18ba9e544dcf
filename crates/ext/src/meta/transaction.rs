//! The order of metadata on volumes with a journal: transactions.
//!
//! Every change joins the *running* transaction, whole blocks at a time. An op holds a [`Handle`] while it changes
//! anything, so a transaction contains ops whole. A commit closes the gate to ops, takes the images of all changed
//! blocks in memory (with their checksums: [`seal`]), opens the gate for the next transaction, and then writes: file
//! data that the transaction makes reachable are made durable together with the images in the log, then the commit
//! block.
//!
//! A transaction whose images were taken is *unfinished* until its commit block is durable. If the host has no room for
//! one of its blocks, the commit fails and the transaction stays; the next commit writes it again before it closes
//! another, wholly and to the same blocks of the log, and its commit block after a flush of all that ([`Log`]). Until
//! then nothing of it is written home, and nothing that it frees is handed out. Changes go on meanwhile: they join the
//! running transaction until that is full.
//!
//! A committed block is *homeless* until its image is written to its own place as well. It stays in memory, and its
//! copy in the log counts until then. [`Transactions::settle`] writes such blocks home, all at once and in ascending
//! order, and gives back the log's space; without room on the host they stay homeless, and commits go on while the log
//! has room. A block that was freed gets no image any more; where a copy of it is in the
//! log, the transaction that frees it revokes it, since a replay would otherwise write the copy over the block's next
//! contents. Nothing that a transaction frees is handed out before the transaction is durable.
//!
//! Contents of files may be in a transaction as well, block by block ([`super::logged_data`]): they are logged, written
//! home and revoked as metadata are.
//!
//! A level ([`super::Level`]) is a transaction's number here: the running one has the next number after the last
//! committed one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Cause, Epoch, Kind, Op, Page, Request, Tag};
use moafs_runtime::Rt;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_runtime::lock::{self, ReadGuard, RwLock};
use moafs_vfs::full_host::pass_over_full_host;
use moafs_vfs::{Error, Result};

use super::block::Block;
use super::cache::Cache;
use super::group_commit::GroupCommit;
use super::level::{Freed, Level, Sweeper};
use super::logged_data::LoggedData;
use super::seal;
use crate::format::BlockNo;
use crate::journal::Log;
use crate::write::write_all;

/// The share of the log, one part in so many, that a transaction takes at most, unless one op needs more.
const TRANSACTION_SHARE: u64 = 2;
/// The share of the log, one part in so many, that may be in use before blocks are written home.
const LOG_SHARE: u32 = 2;
/// The most bytes of blocks in memory that were committed and not written home.
const HOMELESS_BYTES_MAX: usize = 16 << 20;
/// The share of the log, one part in so many, that contents of files may take: it comes on top of a transaction's.
const DATA_SHARE: u32 = 8;
/// The most bytes of contents of files in the log.
const DATA_BYTES_MAX: usize = 8 << 20;

/// The transactions of one volume.
pub(super) struct Transactions {
    /// Shared by ops, closed while a commit takes images.
    gate: RwLock<()>,
    running: Mutex<Running>,
    /// The blocks that running ops may change, at most.
    credits: AtomicU64,
    /// Ops that are running, and commits that are taking images: only they may change blocks.
    changers: AtomicU64,
    /// Blocks that one transaction may change before it is committed.
    blocks_max: u64,
    image_bytes: AtomicU64,
    group: GroupCommit,
    /// Held by the task that commits, or writes blocks home.
    log: lock::Mutex<Committed>,
}

/// The transaction that changes join.
struct Running {
    number: Level,
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Freed blocks of which a copy is in the log.
    revoked: BTreeSet<u64>,
    freed: Vec<Freed>,
    /// The epoch of the data that it makes reachable.
    data: Option<Epoch>,
    /// The last committed transaction.
    durable: Level,
    /// Blocks with a copy that a replay may write: it is in the log, and no transaction that was closed revokes it.
    logged: BTreeSet<u64>,
    /// Contents of files that are in this transaction, or in one before, and not in their own places.
    contents: LoggedData,
}

/// The log, the transaction that it is to take next, and the blocks of those before that are not in their own places.
struct Committed {
    log: Log,
    /// The transaction that is being committed, or that could not be written.
    unfinished: Option<Closed>,
    homeless: BTreeMap<u64, Homeless>,
}

/// A committed block that is not in its own place yet. The reference keeps a block of metadata in memory.
struct Homeless {
    kind: Kind,
    image: Page,
    _block: Option<Arc<Block>>,
}

/// A transaction whose images were taken.
struct Closed {
    number: Level,
    /// The blocks of metadata among the images. The disk has older contents: they stay in memory.
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Images of these blocks, in their order, and behind them contents of files.
    images: Vec<(BlockNo, Page)>,
    revoked: Vec<BlockNo>,
    freed: Vec<Freed>,
    data: Option<Epoch>,
}

/// The permission to change metadata: all changes made while it is held belong to one transaction.
pub struct Handle<'a> {
    transactions: &'a Transactions,
    credits: u64,
    _open: ReadGuard<'a, ()>,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.transactions.credits.fetch_sub(self.credits, Ordering::Relaxed);
        self.transactions.changers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transactions {
    pub(super) fn new(rt: &Rt, log: Log, block_size: usize) -> Transactions {
        let contents_max = data_blocks_max(log.capacity(), block_size);
        Transactions {
            gate: RwLock::new(Arc::clone(rt), ()),
            running: Mutex::new(Running {
                number: Level(1),
                blocks: BTreeMap::new(),
                revoked: BTreeSet::new(),
                freed: Vec::new(),
                data: None,
                durable: Level::NONE,
                logged: BTreeSet::new(),
                contents: LoggedData::new(contents_max),
            }),
            credits: AtomicU64::new(0),
            changers: AtomicU64::new(0),
            image_bytes: AtomicU64::new(0),
            group: GroupCommit::default(),
            blocks_max: u64::from(log.capacity()) / TRANSACTION_SHARE,
            log: lock::Mutex::new(Arc::clone(rt), Committed { log, unfinished: None, homeless: BTreeMap::new() }),
        }
    }

    /// Waits for the gate. `credits`: the blocks that the op changes at most.
    pub(super) fn enter(&self, credits: u64) -> Handle<'_> {
        let open = self.gate.read();
        self.credits.fetch_add(credits, Ordering::Relaxed);
        self.changers.fetch_add(1, Ordering::Relaxed);
        Handle { transactions: self, credits, _open: open }
    }

    /// Returns true if the running transaction has no room for an op of this size.
    pub(super) fn is_full(&self, credits: u64) -> bool {
        let changed = self.running.lock().blocks.len() as u64;
        changed > 0 && changed + self.credits.load(Ordering::Relaxed) + credits > self.blocks_max
    }

    /// Adds a changed block to the running transaction, whose state the caller has locked; `data` is what the change
    /// makes reachable. Returns the transaction's number.
    pub(super) fn join(&self, block: &Arc<Block>, data: Option<Epoch>) -> Level {
        debug_assert!(self.changers.load(Ordering::Relaxed) > 0, "block {} is changed outside of an op", block.no);
        let mut running = self.running.lock();
        let before = running.blocks.insert(block.no, Arc::clone(block));
        debug_assert!(before.is_none_or(|before| Arc::ptr_eq(&before, block)), "two blocks {} change", block.no);
        debug_assert!(!running.contents.has(block.no), "block {} has contents of a file in the log", block.no);
        running.revoked.remove(&block.no);
        running.data = running.data.max(data);
        running.number
    }

    /// Takes a freed block out of the running transaction.
    pub(super) fn leave(&self, block: &Arc<Block>) {
        let mut running = self.running.lock();
        if running.blocks.get(&block.no).is_some_and(|here| Arc::ptr_eq(here, block)) {
            running.blocks.remove(&block.no);
        }
        if running.logged.contains(&block.no) {
            running.revoked.insert(block.no);
        }
    }

    /// Takes the new contents of a file's blocks from `start` on into the running transaction: all if they are `wanted`
    /// and there is room, otherwise those of which older ones are in the log. Says which; `None` if none is.
    pub(super) fn log_data(&self, start: u64, pages: &[Page], wanted: bool) -> Option<Vec<bool>> {
        let mut running = self.running.lock();
        let level = running.number;
        let taken = running.contents.take(start, pages, wanted, level);
        for (at, no) in (start..start + pages.len() as u64).enumerate() {
            if taken.as_ref().is_some_and(|taken| taken[at]) {
                // A block of metadata that the transaction made and freed may have been revoked, and handed out again.
                running.revoked.remove(&no);
            } else {
                debug_assert!(running.may_be_overwritten(no), "a replay would write over the contents of block {no}");
            }
        }
        taken
    }

    /// Returns the contents of files in the log for a range of blocks.
    pub(super) fn logged_data(&self, range: Range<u64>) -> Vec<(u64, Page)> {
        self.running.lock().contents.contents(range)
    }

    /// Returns the number of the newest transaction with contents of files.
    pub(super) fn data_level(&self) -> Level {
        self.running.lock().contents.newest()
    }

    /// Forgets the contents of blocks that are being freed, and revokes their copies in the log. Returns true if there
    /// are copies: the blocks must then not be handed out before the running transaction is durable.
    pub(super) fn forget_data(&self, freed: Range<u64>) -> bool {
        let mut running = self.running.lock();
        running.contents.forget(freed.clone());
        let copies: Vec<u64> = running.logged.range(freed).copied().collect();
        running.revoked.extend(&copies);
        !copies.is_empty()
    }

    /// Registers what the running transaction frees. Returns its number.
    pub(super) fn free(&self, freed: Freed) -> Level {
        let mut running = self.running.lock();
        running.freed.push(freed);
        running.number
    }

    pub(super) fn is_pending(&self, level: Level) -> bool {
        level > self.running.lock().durable
    }

    /// Returns the number of the newest transaction with changes: the one that is being committed if nothing has
    /// changed since.
    pub(super) fn highest(&self) -> Level {
        let running = self.running.lock();
        if running.is_empty() { Level(running.number.0 - 1) } else { running.number }
    }

    /// Returns true if nothing has changed since the last transaction that is durable.
    pub(super) fn is_clean(&self) -> bool {
        let running = self.running.lock();
        running.is_empty() && running.durable.0 + 1 == running.number.0
    }

    /// Commits until `target` is durable. Concurrent callers share the work.
    pub(super) fn commit(&self, cache: &Cache, target: Level, sweeper: &mut dyn Sweeper) -> Result<()> {
        let _caller = self.is_pending(target).then(|| self.group.enter(&cache.device.rt));
        let mut committed = self.log.lock();
        let _watch = cache.device.health.watch_panics("a commit");
        if self.is_pending(target) {
            self.group.wait_for_others(&cache.device.rt);
        }
        while self.is_pending(target) {
            cache.device.health.check()?;
            let done = self.commit_next(cache, &mut committed, sweeper);
            cache.device.health.watch(done)?;
        }
        Ok(())
    }

    /// Commits the unfinished transaction; without one, closes the running transaction and commits that.
    fn commit_next(&self, cache: &Cache, committed: &mut Committed, sweeper: &mut dyn Sweeper) -> Result<()> {
        let begun = self.group.begin(&cache.device.rt);
        if committed.unfinished.is_none() {
            committed.unfinished = Some(self.close(cache, sweeper)?);
            self.count_images(cache, committed);
        }
        self.write(cache, committed)?;
        self.group.end(&begun, &cache.device.rt);
        let Some(closed) = committed.unfinished.take() else { return Ok(()) };
        for block in &closed.revoked {
            committed.homeless.remove(&block.0);
        }
        let mut blocks = closed.blocks.into_values();
        for (no, image) in closed.images {
            let block = blocks.next();
            let kind = block.as_ref().map_or(Kind::Data, |block| block.kind);
            committed.homeless.insert(no.0, Homeless { kind, image, _block: block });
        }
        self.count_images(cache, committed);
        let is_crowded = {
            let mut running = self.running.lock();
            running.durable = closed.number;
            running.contents.is_crowded()
        };
        sweeper.freed(closed.freed)?;
        let is_crowded = is_crowded || committed.log.room() < committed.log.capacity() / LOG_SHARE;
        if is_crowded || committed.homeless.len() * cache.device.block_size > HOMELESS_BYTES_MAX {
            // The transaction is durable all the same. A later one that finds no room in the log tries again.
            return pass_over_full_host(self.settle_all(cache, committed));
        }
        Ok(())
    }

    /// Closes the running transaction, takes its images, and opens the next one.
    fn close(&self, cache: &Cache, sweeper: &mut dyn Sweeper) -> Result<Closed> {
        let _closed = self.gate.write();
        // An op may have failed while this waited for it.
        cache.device.health.check()?;
        self.changers.fetch_add(1, Ordering::Relaxed);
        let prepared = sweeper.before_commit();
        self.changers.fetch_sub(1, Ordering::Relaxed);
        prepared?;
        let blocks = std::mem::take(&mut self.running.lock().blocks);
        let images =
            blocks.values().map(|block| seal::image_of(&cache.device.checksums, block)).collect::<Result<Vec<_>>>();
        let mut running = self.running.lock();
        let mut images = match images {
            Ok(images) => images,
            Err(error) => {
                // The disk has older contents: they stay in memory.
                running.blocks = blocks;
                return Err(error);
            }
        };
        let number = running.number;
        running.number = Level(number.0 + 1);
        images.extend(running.contents.images_of(number));
        debug_assert!(are_distinct(&images), "a block is in transaction {} twice", number.0);
        let revoked = std::mem::take(&mut running.revoked);
        debug_assert!(
            images.iter().all(|(no, _)| !revoked.contains(&no.0)),
            "transaction {} revokes a block that it contains: no replay would write it",
            number.0
        );
        for no in &revoked {
            running.logged.remove(no);
        }
        running.logged.extend(images.iter().map(|(no, _)| no.0));
        Ok(Closed {
            number,
            blocks,
            images,
            revoked: revoked.into_iter().map(BlockNo).collect(),
            freed: std::mem::take(&mut running.freed),
            data: running.data.take(),
        })
    }

    /// Makes the unfinished transaction durable: writes all of it.
    fn write(&self, cache: &Cache, committed: &mut Committed) -> Result<()> {
        let Some(needed) = committed.blocks_needed() else { return Ok(()) };
        if needed > committed.log.room() {
            self.settle_all(cache, committed)?;
        }
        let Committed { log, unfinished: Some(closed), .. } = committed else { return Ok(()) };
        if needed > log.room() {
            let capacity = log.capacity();
            let problem =
                format!("a transaction of {needed} blocks does not fit into the journal, which has {capacity}");
            cache.device.health.fail(&*problem);
            return Err(Error::Refused(problem));
        }
        let logged = log.append(&closed.revoked, &closed.images)?;
        let flushed = cache.device.disk.make_durable(logged.max(closed.data.unwrap_or_default()));
        flushed.map_err(|source| Error::disk("flushing a transaction and the file data it leads to", source))?;
        log.commit(&cache.device.rt)
    }

    /// Writes all committed blocks home, and gives back the log's space.
    pub(super) fn settle(&self, cache: &Cache) -> Result<()> {
        let mut committed = self.log.lock();
        let _watch = cache.device.health.watch_panics("a commit");
        cache.device.health.check()?;
        cache.device.health.watch(self.settle_all(cache, &mut committed))
    }

    /// Writes all committed blocks home. The unfinished transaction has no part in it, and is still to be logged.
    fn settle_all(&self, cache: &Cache, committed: &mut Committed) -> Result<()> {
        if !committed.homeless.is_empty() {
            debug_assert!(self.running.lock().owns(committed), "a block is written home that may be another file's");
            let written = write_all(&cache.device.disk, home_writes(cache, &committed.homeless))?;
            let flushed = cache.device.disk.make_durable(written);
            flushed.map_err(|source| Error::disk("flushing blocks that were written home", source))?;
        }
        committed.log.empty()?;
        {
            let coming = committed.unfinished.iter().flat_map(|closed| &closed.images);
            let mut running = self.running.lock();
            running.logged = coming.map(|(no, _)| no.0).collect();
            let durable = running.durable;
            debug_assert!(
                running.contents.upto(durable).all(|(no, page)| committed.has_written(no, page)),
                "contents leave the log that were not written home"
            );
            running.contents.written_home(durable);
        }
        committed.homeless.clear();
        self.count_images(cache, committed);
        cache.note_written();
        Ok(())
    }

    fn count_images(&self, cache: &Cache, committed: &Committed) {
        let unfinished = committed.unfinished.as_ref().map_or(0, |closed| closed.images.len());
        let bytes = (unfinished + committed.homeless.len()) * cache.device.block_size;
        self.image_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the bytes of images in memory that were taken and not written home.
    pub(super) fn memory(&self) -> u64 {
        self.image_bytes.load(Ordering::Relaxed)
    }

    /// Returns true if committed blocks wait to be written home.
    pub(super) fn is_homeless(&self) -> bool {
        self.log.try_lock().is_some_and(|committed| !committed.homeless.is_empty())
    }

    /// Writes everything home and marks the log as empty. Nothing may change any more.
    pub(super) fn finish(&self, cache: &Cache) -> Result<()> {
        debug_assert!(self.is_clean(), "the volume is closed with changes that were not committed");
        let mut committed = self.log.lock();
        let _watch = cache.device.health.watch_panics("a commit");
        cache.device.health.check()?;
        let done = self.settle_all(cache, &mut committed).and_then(|()| committed.log.close());
        cache.device.health.watch(done)
    }
}

impl Committed {
    /// Returns true if these contents of a file's block are among the images that are written home.
    fn has_written(&self, no: u64, contents: &Page) -> bool {
        self.homeless.get(&no).is_some_and(|here| here.kind == Kind::Data && here.image[..] == contents[..])
    }

    /// Returns the blocks of the log that the unfinished transaction takes; `None` if there is nothing to write.
    fn blocks_needed(&self) -> Option<u32> {
        let closed = self.unfinished.as_ref()?;
        let is_empty = closed.images.is_empty() && closed.revoked.is_empty();
        (!is_empty).then(|| self.log.blocks_for(closed.images.len(), closed.revoked.len()))
    }
}

impl Running {
    /// Returns true if the contents of a file may be written to a block in place: no replay writes it.
    fn may_be_overwritten(&self, no: u64) -> bool {
        !self.logged.contains(&no) || self.revoked.contains(&no)
    }

    /// Returns true if no block of a file that is to be written home may have been handed out again: each has contents
    /// in the log, or is being freed by a transaction that is not durable.
    fn owns(&self, committed: &Committed) -> bool {
        let unfinished = committed.unfinished.as_ref();
        let is_being_freed = |no: u64| {
            self.revoked.contains(&no) || unfinished.is_some_and(|closed| closed.revoked.contains(&BlockNo(no)))
        };
        let of_files = committed.homeless.iter().filter(|(_, homeless)| homeless.kind == Kind::Data);
        of_files.into_iter().all(|(no, _)| self.contents.has(*no) || is_being_freed(*no))
    }

    fn is_empty(&self) -> bool {
        let has_data = self.contents.newest() == self.number;
        self.blocks.is_empty() && self.freed.is_empty() && self.revoked.is_empty() && !has_data
    }
}

/// Returns the most blocks of contents of files that a log of `capacity` blocks has at a time.
pub(super) fn data_blocks_max(capacity: u32, block_size: usize) -> usize {
    ((capacity / DATA_SHARE) as usize).min(DATA_BYTES_MAX / block_size)
}

fn are_distinct(images: &[(BlockNo, Page)]) -> bool {
    images.iter().map(|(no, _)| no.0).collect::<BTreeSet<_>>().len() == images.len()
}

/// Returns the requests that write blocks home: neighbours in one.
fn home_writes(cache: &Cache, homeless: &BTreeMap<u64, Homeless>) -> Vec<Request> {
    let limits = cache.device.disk.limits();
    let most = (limits.transfer_bytes_max / cache.device.block_size).min(limits.segments_max).max(1);
    let mut requests: Vec<Request> = Vec::new();
    let mut last = None;
    for (no, Homeless { kind, image, .. }) in homeless {
        let follows = last == no.checked_sub(1) && last.is_some();
        last = Some(*no);
        if let Some(Request { op: Op::Write { data, .. }, tag, .. }) = requests.last_mut()
            && follows
            && tag.kind == *kind
            && data.len() < most
        {
            data.push(image.clone());
            continue;
        }
        requests.push(Request {
            op: Op::Write { data: vec![image.clone()], fua: false },
            at: cache.device.lba(*no),
            tag: Tag::new(*kind, 0, Cause::Order),
        });
    }
    requests
}
