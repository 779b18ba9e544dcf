//! Write-back: carrying out the plans by which dirty pages leave the cache.
//!
//! The same for every format and every policy: the format plans; the pages named are marked and frozen (one that
//! vanished shortens the planned write, the rest of a run allocated for it goes back); requests of many plans are
//! gathered into one batch, submitted, and waited for; then few, bounded ops place what was written; the pages are
//! marked clean. No inode lock is taken: a page in flight is never dropped, and truncation waits for it.
//!
//! A failed write leaves its pages dirty and readable; the error is latched in the inode, and fsync
//! reports it (`write_error`). A full host file system is no such error: the pages stay dirty, and a later
//! try succeeds when there is room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Cause, DiskError, Epoch, Kind, Op, Page, Request, Tag, Ticket};
use moafs_runtime::Rt;
use moafs_runtime::lock::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::cache::End;
use crate::error::{Error, Result};
use crate::flight::Flight;
use crate::format::{Admission, Format, FormatOp, OpKind, RoomSearch};
use crate::inode::Shared;
use crate::layer::layer;
use crate::op;
use crate::pace::Pace;
use crate::pages::Delta;
use crate::plan::{DirtyView, Plan, PlannedWrite, WritebackReason};
use crate::reader::Reader;
use crate::types::{BlockAddr, BlockRun, FileRange, Lbn, LbnRange, Mapping};
use crate::write_error::WriteError;

/// The most bytes that one batch carries (one plan may exceed it).
const BATCH_BYTES_MAX: u64 = 4 << 20;

/// The most requests in one batch (one plan may exceed it).
const BATCH_REQUESTS_MAX: usize = 256;

/// A batch is waited for and placed in parts of so many bytes: a writer that waits for room goes on after the first.
const PART_BYTES: u64 = 256 << 10;

/// The most file ranges that one op places: keeps a journal's credits and a checkpoint's wait bounded.
const OP_PIECES_MAX: usize = 64;

/// Attempts to write a file back that write nothing before it is called an error: a policy that
/// plans nothing for a dirty file would hang an fsync.
const FRUITLESS_MAX: u32 = 8;

/// The most waits of one plan for the writes of other tasks.
const FLIGHT_WAITS_MAX: u32 = 8;

/// The write-back of a volume.
pub(crate) struct WriteBack<F: Format> {
    reader: Reader<F>,
    pub(crate) pace: Pace,
    /// Held while a plan is made and its pages are frozen, or addresses are allocated at `write()`.
    pub(crate) planning: Mutex<()>,
}

layer!(WriteBack over reader: Reader);

/// The result of a write-back.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Blocks written and placed.
    pub(crate) blocks: u64,
    /// Blocks that could not be written.
    pub(crate) failed_blocks: u64,
    /// The first error, if any request or op failed.
    pub(crate) error: Option<Error>,
}

impl Outcome {
    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn join(&mut self, other: Outcome) {
        self.blocks += other.blocks;
        self.failed_blocks += other.failed_blocks;
        if let Some(error) = other.error {
            self.fail(error);
        }
    }
}

/// Part of a write request: one file's range and its address.
struct FilePart<F: Format> {
    inode: Shared<F>,
    range: LbnRange,
    to: BlockRun,
    /// True if the format has allocated `to` for this write.
    fresh: bool,
    /// The file's size in bytes when the pages were frozen: the device gets the bytes up to it.
    size: u64,
}

/// One write request with its pages frozen.
struct WriteRequest<F: Format> {
    to: BlockRun,
    file_parts: SmallVec<[FilePart<F>; 2]>,
    data: Vec<Page>,
    fresh: bool,
    tag: Tag,
}

/// A range that the device has written.
struct Written<F: Format> {
    part: FilePart<F>,
    /// The epoch in which it completed.
    epoch: Epoch,
}

/// The result of an op that places written ranges.
struct Placement<F: Format> {
    placed: Vec<Written<F>>,
    /// The ranges that the file does not map: their pages are dirty again.
    refused: Vec<FilePart<F>>,
    /// The first error, if there are any refused ranges.
    error: Option<Error>,
}

impl<F: Format> WriteRequest<F> {
    fn into_written(self, epoch: Epoch) -> impl Iterator<Item = Written<F>> {
        self.file_parts.into_iter().map(move |part| Written { part, epoch })
    }
}

/// A batch: the write requests of plans that are submitted together.
struct WriteBatch<'a, F: Format> {
    writes: Vec<WriteRequest<F>>,
    bytes: u64,
    /// Begun before the first plan, if any of the writes has blocks that were allocated for it.
    flight: Option<Flight<'a, F>>,
}

/// The extent of a plan: all that is due, or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planned {
    All,
    /// The format has no room for the rest.
    Part,
}

impl<F: Format> Default for WriteBatch<'_, F> {
    fn default() -> Self {
        WriteBatch { writes: Vec::new(), bytes: 0, flight: None }
    }
}

impl<F: Format> WriteBatch<'_, F> {
    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES_MAX || self.writes.len() >= BATCH_REQUESTS_MAX
    }
}

impl<F: Format> WriteBack<F> {
    pub(crate) fn new(reader: Reader<F>) -> WriteBack<F> {
        let planning = Mutex::new(Rt::clone(&reader.rt), ());
        WriteBack { reader, pace: Pace::default(), planning }
    }

    /// Writes back what the format plans for each write-back reason, batch by batch.
    pub(crate) fn write_back(&self, dues: impl IntoIterator<Item = WritebackReason>) -> Outcome {
        self.write_back_upto(u64::MAX, dues)
    }

    /// Writes back as [`Self::write_back`] does, until `bytes` bytes have left: a plan may contain much more than was
    /// asked for, and then the remaining files may collect more dirty blocks before they are written.
    pub(crate) fn write_back_upto(&self, bytes: u64, dues: impl IntoIterator<Item = WritebackReason>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut batch = WriteBatch::default();
        let mut left = bytes;
        for due in dues {
            let before = batch.bytes;
            let planned = self.plan_beside_others(due, &mut batch).unwrap_or_else(|error| {
                self.latch(due.ino(), &error);
                outcome.fail(error);
                Planned::All
            });
            if !batch.writes.iter().any(|write| write.fresh) {
                batch.flight = None;
            }
            left = left.saturating_sub(batch.bytes - before);
            if batch.is_full() || planned == Planned::Part {
                outcome.join(self.run(std::mem::take(&mut batch)));
            }
            if left == 0 {
                break;
            }
        }
        outcome.join(self.run(batch));
        outcome
    }

    /// Writes back the blocks of a file that are dirty now, and waits for those in flight. Later writes do
    /// not hold it up.
    pub(crate) fn write_back_file(&self, inode: &Shared<F>, due: WritebackReason) -> Result<()> {
        let goal = {
            let mut pages = inode.pages.lock();
            if pages.is_settled() {
                return Ok(());
            }
            pages.end_generation()
        };
        let mut fruitless = 0;
        loop {
            let ticket = inode.moved.ticket();
            if inode.pages.lock().is_settled_upto(goal) {
                return Ok(());
            }
            self.check_caller()?;
            if self.is_abandoned(inode) {
                return Ok(());
            }
            let outcome = self.write_back([due]);
            if outcome.blocks > 0 {
                fruitless = 0;
                continue;
            }
            if let Some(error) = outcome.error {
                return Err(error);
            }
            let (done, all_moving) = {
                let pages = inode.pages.lock();
                (pages.is_settled_upto(goal), pages.ready().is_empty())
            };
            if done {
                return Ok(());
            }
            if all_moving {
                self.rt.wait(&inode.moved, ticket, None);
                continue;
            }
            fruitless += 1;
            if fruitless > FRUITLESS_MAX {
                return Err(Error::Posix(libc::EIO));
            }
        }
    }

    /// Carries out writes that were planned already.
    pub(crate) fn carry_out(&self, writes: impl IntoIterator<Item = PlannedWrite>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut batch = WriteBatch::default();
        for travel in writes {
            {
                // The pages that `allocate_on_write` looks at stay as they are.
                let _planning = self.planning.lock();
                self.pack(&travel, &mut batch);
            }
            if batch.is_full() {
                outcome.join(self.run(std::mem::take(&mut batch)));
            }
        }
        outcome.join(self.run(batch));
        outcome
    }

    /// Adds what the format plans to a batch, as [`Self::plan_into`] does. If there is no room, what the writes of
    /// other tasks have taken may make way: those under way are waited for, a few times.
    fn plan_beside_others<'a>(&'a self, due: WritebackReason, batch: &mut WriteBatch<'a, F>) -> Result<Planned> {
        for _ in 0..FLIGHT_WAITS_MAX {
            batch.flight.get_or_insert_with(|| self.begin_flight());
            match self.plan_into(due, batch) {
                Err(Error::Posix(libc::ENOSPC)) if batch.writes.is_empty() => batch.flight = None,
                planned => return planned,
            }
            if self.calm().is_some() {
                break;
            }
            self.wait_for_flights();
        }
        batch.flight.get_or_insert_with(|| self.begin_flight());
        self.plan_into(due, batch)
    }

    /// Adds what the format plans to a batch. If that is a part, or nothing, the batch is to be written before the rest
    /// is planned: what it has taken comes back only then, so no room is gained for the rest before.
    fn plan_into(&self, due: WritebackReason, batch: &mut WriteBatch<'_, F>) -> Result<Planned> {
        if self.format.failed().is_some() {
            return self.check_writable().map(|()| Planned::All);
        }
        let gains = batch.writes.is_empty();
        // Two plans at a time would give the same pages two places, one of which is promised to other pages.
        let (_planning, plan) = match self.plan_with_room(due, self.dirty_view(), gains, || self.planning.lock()) {
            // The file was reaped while the format was looking.
            Err(Error::Stale(_)) if self.table.peek(due.ino()).is_none_or(|inode| self.is_abandoned(&inode)) => {
                return Ok(Planned::All);
            }
            Err(Error::Posix(libc::ENOSPC)) if !gains => return Ok(Planned::Part),
            planned => planned?,
        };
        plan.writes.iter().for_each(|travel| self.pack(travel, batch));
        Ok(if plan.partial { Planned::Part } else { Planned::All })
    }

    /// Makes room, and returns the format's plan: the first one that found any, if it `gains` room where there is none.
    /// Plans are made under the guard that `lock` takes, but no room is: that may wait for the device.
    pub(crate) fn plan_with_room<G>(
        &self,
        due: WritebackReason,
        dirty: &dyn DirtyView<F::Node>,
        gains: bool,
        lock: impl Fn() -> G,
    ) -> Result<(G, Plan)> {
        let mut search = RoomSearch::default();
        loop {
            self.format.make_room(due, dirty, &mut search)?;
            let guard = lock();
            match self.format.plan(due, dirty) {
                Err(Error::Posix(libc::ENOSPC)) if gains => search.found_none(),
                planned => return planned.map(|plan| (guard, plan)),
            }
        }
    }

    /// Freezes the pages that a planned write names and adds the requests that result: one, unless something in
    /// the middle has vanished.
    fn pack(&self, travel: &PlannedWrite, batch: &mut WriteBatch<'_, F>) {
        let mut packing = Packing { travel, next: travel.to.start, open: None, done: Vec::new(), lost: Vec::new() };
        for from in &travel.from {
            let inode = self.table.peek(from.ino);
            let frozen = match &inode {
                Some(inode) => self.freeze(inode, from.range, (!travel.fresh).then_some(packing.next)),
                None => Frozen { size: 0, pages: vec![None; from.range.len as usize] },
            };
            for (i, page) in frozen.pages.into_iter().enumerate() {
                let at = from.range.start + i as u64;
                packing.add(inode.as_ref(), at, frozen.size, page);
            }
        }
        packing.close();
        let Packing { done, lost, .. } = packing;
        if travel.fresh {
            lost.into_iter().for_each(|run| self.format.abandon(run));
        }
        batch.bytes += done.iter().map(|s| u64::from(s.to.len) * self.block_bytes()).sum::<u64>();
        batch.writes.extend(done);
    }

    /// Freezes the pages of one range. If the plan writes them where they lie, clean pages need no write, and the
    /// place is looked up again now that the pages can no longer move: a truncation or a move may have come between.
    fn freeze(&self, inode: &Shared<F>, range: LbnRange, in_place: Option<BlockAddr>) -> Frozen {
        let (mut pages, size, fresh_dirty) = {
            let mut cached = inode.pages.lock();
            let (pages, settled) = cached.freeze(range, in_place.is_none());
            let size = inode.state.lock().attr.size;
            (pages, size, settled as i64)
        };
        self.cache.account(Delta { cached: 0, dirty: fresh_dirty });
        let Some(start) = in_place else { return Frozen { size, pages } };
        let mut at = 0;
        while at < range.len {
            let lbn = range.start + u64::from(at);
            let expected = start + u64::from(at);
            let (len, same) = match self.format.map(&inode.node, lbn, range.len - at) {
                Ok(Mapping::Run(run) | Mapping::Unwritten(run)) => (run.len, run.start == expected),
                Ok(hole) => (hole.len(), false),
                Err(_) => (range.len - at, false),
            };
            let len = len.clamp(1, range.len - at);
            if !same {
                self.unfreeze(inode, lbn, &mut pages[at as usize..(at + len) as usize]);
            }
            at += len;
        }
        Frozen { size, pages }
    }

    fn unfreeze(&self, inode: &Shared<F>, start: Lbn, frozen: &mut [Option<Page>]) {
        let mut cached = inode.pages.lock();
        for (i, page) in frozen.iter_mut().enumerate() {
            if page.take().is_some() {
                cached.requeue(start + i as u64);
            }
        }
        drop(cached);
        self.rt.signal(&inode.moved);
    }

    /// Submits one batch, waits for its parts, lowest address first, and places each as soon as it is written.
    fn run(&self, batch: WriteBatch<'_, F>) -> Outcome {
        let WriteBatch { mut writes, flight: _flight, .. } = batch;
        let mut outcome = Outcome::default();
        if writes.is_empty() {
            return outcome;
        }
        self.count_batch(&writes);
        // Sorted as the device's queue sorts them: otherwise a part would complete as late as the whole.
        writes.sort_by_key(|write| write.to.start);
        let bytes = self.bytes_of(&writes);
        self.cache.submitted(bytes);
        let mut held = Vec::new();
        for (part, ticket) in self.submit_parts(writes) {
            outcome.join(self.complete(part, ticket, &mut held));
        }
        // One by one in the order of files and blocks: the last block of a file that a range waits for, since the end
        // has moved, may itself have waited here. All tasks keep that order, so each waits for one that is further
        // ahead.
        held.sort_by_key(|written: &Written<F>| (written.part.inode.ino, written.part.range.start));
        for written in held {
            match self.finish_tail(&written.part) {
                Ok(()) => outcome.join(self.place_all(vec![written])),
                Err(error) => {
                    let part = written.part;
                    self.give_run_back(&part);
                    outcome.failed_blocks += u64::from(part.range.len);
                    self.requeue(&[part], &error);
                    outcome.fail(error);
                }
            }
        }
        self.reclaim();
        outcome
    }

    fn bytes_of(&self, writes: &[WriteRequest<F>]) -> usize {
        writes.iter().map(|write| (u64::from(write.to.len) * self.block_bytes()) as usize).sum()
    }

    /// Submits all parts of the batch before any of them is waited for.
    fn submit_parts(&self, writes: Vec<WriteRequest<F>>) -> Vec<(Vec<WriteRequest<F>>, Ticket)> {
        let mut parts: Vec<Vec<WriteRequest<F>>> = Vec::new();
        let mut bytes = PART_BYTES;
        for write in writes {
            if bytes >= PART_BYTES {
                parts.push(Vec::new());
                bytes = 0;
            }
            bytes += u64::from(write.to.len) * self.block_bytes();
            parts.last_mut().expect("pushed just now").push(write);
        }
        parts.into_iter().map(|part| self.submit_part(part)).collect()
    }

    fn submit_part(&self, mut part: Vec<WriteRequest<F>>) -> (Vec<WriteRequest<F>>, Ticket) {
        let request = |write: &mut WriteRequest<F>| Request {
            op: Op::Write { data: std::mem::take(&mut write.data), fua: false },
            at: self.lba(write.to),
            tag: write.tag,
        };
        let batch = part.iter_mut().map(request).collect();
        self.pace.submitted(self.rt.now());
        (part, self.disk.submit(batch))
    }

    /// Waits until one part is complete, and places what was written.
    /// Waits for a part and places what it has written. Ranges that wait for the last block of their file go to `held`.
    fn complete(&self, part: Vec<WriteRequest<F>>, ticket: Ticket, held: &mut Vec<Written<F>>) -> Outcome {
        let mut outcome = Outcome::default();
        let bytes = self.bytes_of(&part);
        let dones = self.disk.wait(ticket);
        let mut written = Vec::with_capacity(part.len());
        for (write, done) in part.into_iter().zip(dones) {
            match done.result {
                Ok(_) => written.extend(write.into_written(done.epoch)),
                Err(error) => {
                    outcome.failed_blocks += u64::from(write.to.len);
                    outcome.fail(self.write_failed(write, error));
                }
            }
        }
        let (waiting, ready) = written.into_iter().partition(|written| self.unseen_tail(&written.part).is_some());
        held.extend::<Vec<_>>(waiting);
        outcome.join(self.place_all(ready));
        self.pace.completed(outcome.blocks * self.block_bytes(), self.rt.now());
        self.cache.completed(bytes);
        self.rt.signal(&self.cache.room);
        outcome
    }

    fn count_batch(&self, writes: &[WriteRequest<F>]) {
        let blocks: u64 = writes.iter().map(|s| u64::from(s.to.len)).sum();
        // The parts of one file follow one another.
        let files =
            |s: &WriteRequest<F>| 1 + s.file_parts.windows(2).filter(|p| p[0].inode.ino != p[1].inode.ino).count();
        let together: Vec<usize> = writes.iter().map(files).filter(|files| *files > 1).collect();
        self.tally.write_back_rounds.fetch_add(1, Ordering::Relaxed);
        self.tally.write_back_requests.fetch_add(writes.len() as u64, Ordering::Relaxed);
        self.tally.write_back_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.tally.co_writes.fetch_add(together.len() as u64, Ordering::Relaxed);
        self.tally.co_written_files.fetch_add(together.iter().sum::<usize>() as u64, Ordering::Relaxed);
    }

    /// Handles a write request that the device refused: its pages stay dirty.
    fn write_failed(&self, write: WriteRequest<F>, error: DiskError) -> Error {
        self.tally.write_back_errors.fetch_add(1, Ordering::Relaxed);
        let owner = write.file_parts[0].inode.ino;
        // A full host file system does not mean that the device failed: there may be room later.
        let broken = !matches!(error, DiskError::HostFull { .. });
        let error = Error::disk(format!("writing data of inode {owner} to block {}", write.to.start), error);
        self.requeue(&write.file_parts, &error);
        if broken {
            self.format.fail(&error.to_string());
        }
        if write.fresh {
            self.format.abandon(write.to);
        }
        error
    }

    /// Requeues pages that were not written, or not placed: they are dirty again, and the error is latched.
    fn requeue(&self, file_parts: &[FilePart<F>], error: &Error) {
        let again = self.rt.now() + self.options.dirty_age;
        for file_part in file_parts {
            {
                let mut pages = file_part.inode.pages.lock();
                file_part.range.lbns().for_each(|at| pages.requeue(at));
                // The page may have been clean before, and only moved.
                self.list_dirty(&file_part.inode, &pages);
            }
            self.latch_in(&file_part.inode, error);
            self.dirty.lock().postpone(file_part.inode.ino, again);
            self.rt.signal(&file_part.inode.moved);
        }
    }

    fn latch(&self, ino: crate::types::Ino, error: &Error) {
        if let Some(inode) = self.table.peek(ino) {
            self.latch_in(&inode, error);
            self.dirty.lock().postpone(ino, self.rt.now() + self.options.dirty_age);
        }
    }

    fn latch_in(&self, inode: &Shared<F>, error: &Error) {
        // A full host is not a failed device: no data are lost, and the next try may succeed.
        if !error.is_host_full() {
            WriteError::latch(&mut inode.state.lock().error, error, self.rt.now());
        }
    }

    /// Returns the last block of a file as the device knows it, and whether it is in flight: if the format moves the
    /// end of a file behind every block that it maps, `part` lies behind that block, and the device has not seen all of
    /// it.
    ///
    /// Behind the end it may hold bytes from before a truncation or of an append that a crash interrupted, which must
    /// not become part of the file.
    fn unseen_tail(&self, part: &FilePart<F>) -> Option<(Lbn, bool)> {
        if !self.shape.size_follows_map {
            return None;
        }
        let pages = part.inode.pages.lock();
        let (size, on_disk) = {
            let state = part.inode.state.lock();
            (state.attr.size, state.disk_size)
        };
        let seen = pages.disk_size(size, on_disk, self.block_bytes());
        let tail = Lbn(seen / self.block_bytes());
        if seen.is_multiple_of(self.block_bytes()) || tail >= part.range.start {
            return None;
        }
        pages.get(tail).filter(|slot| slot.is_unsettled()).map(|slot| (tail, slot.in_flight()))
    }

    /// Waits until the device has the last block of a file, and writes it where it lies if no other task does.
    fn finish_tail(&self, part: &FilePart<F>) -> Result<()> {
        let mut written = false;
        loop {
            let ticket = part.inode.moved.ticket();
            match self.unseen_tail(part) {
                Some((_, true)) => drop(self.rt.wait(&part.inode.moved, ticket, None)),
                Some((tail, false)) if !written => {
                    written = true;
                    self.write_in_place(&part.inode, tail)?;
                }
                // Clients change it all the time: what was behind the end is gone.
                _ => return Ok(()),
            }
        }
    }

    /// Writes a dirty block where it lies. A hole has nothing behind the file's end.
    fn write_in_place(&self, inode: &Shared<F>, at: Lbn) -> Result<()> {
        let mut batch = WriteBatch::default();
        {
            let _planning = self.planning.lock();
            let Ok(Mapping::Run(to)) = self.format.map(&inode.node, at, 1) else { return Ok(()) };
            let from = FileRange { ino: inode.ino, range: LbnRange { start: at, len: 1 } };
            let tag = Tag::new(Kind::Data, inode.ino.0, Cause::Order);
            self.pack(&PlannedWrite { to, from: smallvec![from], fresh: false, tag }, &mut batch);
        }
        self.run(batch).error.map_or(Ok(()), Err)
    }

    /// Places what was written, in few ops of bounded size.
    fn place_all(&self, written: Vec<Written<F>>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut batch: Vec<Written<F>> = Vec::new();
        for next in written {
            let crowded = batch.len() >= OP_PIECES_MAX
                && batch.last().is_some_and(|last| last.part.inode.ino != next.part.inode.ino);
            if crowded || batch.len() >= 2 * OP_PIECES_MAX {
                outcome.join(self.place(std::mem::take(&mut batch)));
            }
            batch.push(next);
        }
        if !batch.is_empty() {
            outcome.join(self.place(batch));
        }
        outcome
    }

    /// Places a batch in one op: the ranges get their addresses, the inodes their sizes. The op may not begin, since
    /// the next commit has no room for its changes, or the format may be unable to map some of the ranges: then the
    /// runs that were allocated for these go back to the format.
    fn place(&self, batch: Vec<Written<F>>) -> Outcome {
        let mut outcome = Outcome::default();
        let files = self.files_of(&batch);
        files.iter().for_each(|inode| inode.pages.lock().begin_placing());
        let mut none = Admission::none();
        // Before the step, since it may wait for a commit.
        let op = self.begin(OpKind::Place, &mut none);
        let step = self.step();
        // Callers that are short of space know of it, and wait for what it gives back.
        let mut admission = self.admit_nothing();
        let Placement { placed, refused, error } = match op {
            Ok(op) => self.place_in(op, batch, &mut admission),
            Err(error) => {
                let refused: Vec<_> = batch.into_iter().map(|written| written.part).collect();
                refused.iter().for_each(|part| self.give_run_back(part));
                Placement { placed: Vec::new(), refused, error: Some(error) }
            }
        };
        let unused = admission.blocks() > 0;
        drop(admission);
        if unused {
            self.note_freed();
        }
        drop(step);
        for written in &placed {
            outcome.blocks += u64::from(written.part.range.len);
            self.mark_placed(&written.part, written.epoch);
        }
        if let Some(error) = error {
            outcome.failed_blocks += refused.iter().map(|part| u64::from(part.range.len)).sum::<u64>();
            self.requeue(&refused, &error);
            outcome.fail(error);
        }
        files.iter().for_each(|inode| self.check_sectors(inode));
        outcome
    }

    fn files_of(&self, batch: &[Written<F>]) -> Vec<Shared<F>> {
        let mut files: Vec<Shared<F>> = Vec::new();
        for Written { part, .. } in batch {
            if !files.iter().rev().any(|there| Arc::ptr_eq(there, &part.inode)) {
                files.push(Arc::clone(&part.inode));
            }
        }
        files
    }

    /// Carries out [`Self::place`]'s op. `admission` receives what was admitted for the ranges that were mapped: what
    /// they take stays promised until they have it.
    fn place_in(&self, mut op: op::Op<'_, F>, batch: Vec<Written<F>>, admission: &mut Admission) -> Placement<F> {
        let mut placement = Placement { placed: Vec::new(), refused: Vec::new(), error: None };
        for written in batch {
            let Written { part, epoch } = &written;
            match op.place(&part.inode.node, part.range, part.to, *epoch) {
                Ok(()) => {
                    let mut pages = part.inode.pages.lock();
                    admission.absorb(pages.mapped(part.range, part.size, self.block_bytes()));
                    drop(pages);
                    placement.placed.push(written);
                }
                Err(error) => {
                    // Within the op, which may have shown it as used already.
                    self.give_run_back(part);
                    placement.error.get_or_insert(error);
                    placement.refused.push(written.part);
                }
            }
        }
        let told = self.files_of(&placement.placed).iter().try_for_each(|inode| op.put_known(inode));
        match self.fail_if_half_done("the placement of written data", told) {
            Ok(()) => op.end(&[]),
            Err(error) => {
                placement.error = Some(error);
                placement.refused.extend(placement.placed.drain(..).map(|written| written.part));
            }
        }
        placement
    }

    /// Gives the run back that was allocated for a write which found no place. On a volume that has failed the file may
    /// have some of it.
    fn give_run_back(&self, part: &FilePart<F>) {
        if part.fresh && self.format.failed().is_none() {
            self.format.abandon(part.to);
        }
    }

    /// Marks the pages of a completed write as placed: clean, unless they were written to again.
    fn mark_placed(&self, file_part: &FilePart<F>, epoch: Epoch) {
        let inode = &file_part.inode;
        let clean = {
            let mut pages = inode.pages.lock();
            let clean = pages.mark_placed(file_part.range, || self.cache.next_stamp());
            let mut state = inode.state.lock();
            state.epoch = state.epoch.max(epoch);
            if pages.is_settled() {
                self.dirty.lock().note_clean(inode.ino);
            }
            clean
        };
        self.cache.account(Delta { cached: 0, dirty: -(clean.len() as i64) });
        self.enqueue(inode.ino, &clean, End::Warm);
        self.rt.signal(&inode.moved);
    }
}

/// The frozen pages of one range; `None` for a page that vanished.
struct Frozen {
    size: u64,
    pages: Vec<Option<Page>>,
}

/// A planned write while it is turned into write requests.
struct Packing<'a, F: Format> {
    travel: &'a PlannedWrite,
    /// The address of the next block of the planned write.
    next: BlockAddr,
    open: Option<WriteRequest<F>>,
    done: Vec<WriteRequest<F>>,
    /// Parts of the run that no block is written to.
    lost: Vec<BlockRun>,
}

impl<F: Format> Packing<'_, F> {
    fn add(&mut self, inode: Option<&Shared<F>>, at: Lbn, size: u64, page: Option<Page>) {
        let here = self.next;
        self.next = here + 1;
        let (Some(inode), Some(page)) = (inode, page) else {
            self.close();
            match self.lost.last_mut() {
                Some(run) if run.end() == here => run.len += 1,
                _ => self.lost.push(BlockRun { start: here, len: 1 }),
            }
            return;
        };
        let write = self.open.get_or_insert_with(|| WriteRequest {
            to: BlockRun { start: here, len: 0 },
            file_parts: SmallVec::new(),
            data: Vec::new(),
            fresh: self.travel.fresh,
            tag: self.travel.tag,
        });
        write.to.len += 1;
        write.data.push(page);
        match write.file_parts.last_mut() {
            Some(file_part) if Arc::ptr_eq(&file_part.inode, inode) && file_part.range.end() == at => {
                file_part.range.len += 1;
                file_part.to.len += 1;
            }
            _ => write.file_parts.push(FilePart {
                inode: Arc::clone(inode),
                range: LbnRange { start: at, len: 1 },
                to: BlockRun { start: here, len: 1 },
                fresh: self.travel.fresh,
                size,
            }),
        }
    }

    fn close(&mut self) {
        self.done.extend(self.open.take());
    }
}
