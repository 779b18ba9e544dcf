//! Defragmentation: the blocks of scattered files are moved together again.
//!
//! A move is a write-back of clean files. The policy that places dirty files is shown whole, clean ones as if they were
//! dirty ([`WritebackReason::Move`]) and plans for those that gain by moving; only these are read, and the ordinary
//! write-back carries the plan out: data first, then pointers, and the old blocks are free once that is durable.
//!
//! Directories are walked one by one, a part of bounded size at a time: its small files are planned for together; large
//! files by themselves, part by part. A plan that would not save a request is given back, so a second walk right after
//! the first finds nothing to do. Directories' own blocks, maps and extended attributes stay where they are.
//!
//! # Invariants
//!
//! 1. Nothing but places changes: no byte, no size, no time.
//! 2. Files that are dirty, in flight, locked by a writer, or have holes are left alone, or to the ordinary write-back
//!    that comes first. Changes to a file between plan and write are handled by write-back: pages that vanished are
//!    not written, and those written to meanwhile are written as they are then.
//! 3. No admission is needed: only blocks that have a place get another, and policies take it from space that is not
//!    promised to any caller ([`WritebackReason::Move`]).
//! 4. No gate is held while `progress` is asked, so the volume can be closed between two parts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::Cause;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::{CommitReason, Format};
use crate::full_host::wait_for_host;
use crate::inode::{INODE_BYTES, Inode, Shared};
use crate::layout::Score;
use crate::plan::{DirtyFile, DirtyView, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use crate::survey::Listed;
use crate::types::{BlockAddr, BlockRun, Cookie, FileKind, Ino, Lbn, LbnRange, Mapping};
use crate::write_back::WriteBack;

/// The most bytes of files that one plan covers.
const PART_BYTES_MAX: u64 = 16 << 20;
/// The most files that one plan covers.
const PART_FILES_MAX: usize = 4096;
/// One plan covers at most this share (one in so many) of the cache, and of the free space.
const PART_SHARE: u64 = 8;
/// Moved bytes after which a commit lets the old places be used again.
const COMMIT_BYTES: u64 = 64 << 20;

/// The limits of a defragmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefragOptions {
    /// Move at most this many bytes. A write request is not split: a limit below its size moves nothing.
    pub max_bytes: u64,
    /// Move nothing; report what would be moved, each part of the volume by itself.
    pub dry_run: bool,
}

impl Default for DefragOptions {
    fn default() -> Self {
        DefragOptions { max_bytes: u64::MAX, dry_run: false }
    }
}

/// The cost of reading files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCost {
    /// Contiguous pieces that the files lie in, file by file.
    pub pieces: u64,
    /// Layout score of the files.
    pub score: Score,
    /// Requests of at most the maximum transfer that bring all of them, when the small files of a directory that lie
    /// side by side are read together.
    pub requests: u64,
}

impl ReadCost {
    fn add(&mut self, other: ReadCost) {
        self.pieces += other.pieces;
        self.score.add(other.score);
        self.requests += other.requests;
    }
}

/// The reason for which a defragmentation ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It has not ended.
    #[default]
    Running,
    /// All files have been looked at.
    Done,
    /// The caller's `progress` asked to stop.
    Stopped,
    /// The limit [`DefragOptions::max_bytes`] was reached.
    MaxBytes,
}

/// The result of a defragmentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragReport {
    /// Number of directories looked at.
    pub directories: u64,
    /// Number of files with blocks looked at.
    pub files: u64,
    /// Number of files in use that were left alone.
    pub files_skipped: u64,
    /// Number of entries that led to a directory met before: the volume is damaged.
    pub directories_met_before: u64,
    /// Number of files that were moved, wholly or in part.
    pub files_moved: u64,
    /// Bytes that were moved, or would be in a dry run.
    pub bytes_moved: u64,
    /// The read cost of the files before the moves.
    pub before: ReadCost,
    /// The read cost of the files after the moves.
    pub after: ReadCost,
    /// The reason for which it ended.
    pub ending: StopReason,
}

/// Runs in file order.
type Runs = Vec<(Lbn, BlockRun)>;

/// A file, or a part of one, that may move.
struct Candidate<F: Format> {
    inode: Shared<F>,
    range: LbnRange,
    runs: Runs,
}

impl<F: Format> Candidate<F> {
    /// Returns true if it has no hole.
    fn is_full(&self) -> bool {
        self.runs.iter().map(|(_, run)| u64::from(run.len)).sum::<u64>() == u64::from(self.range.len)
    }
}

/// The view for a policy: candidates as dirty files.
struct View<N> {
    files: BTreeMap<Ino, DirtyFile<N>>,
    /// Files the policy has decided on.
    asked: RefCell<BTreeSet<Ino>>,
}

impl<N> DirtyView<N> for View<N> {
    fn file(&self, ino: Ino, _around: Option<(Lbn, u32)>) -> Option<DirtyFile<N>> {
        self.asked.borrow_mut().insert(ino);
        self.files.get(&ino).map(|file| DirtyFile { node: Arc::clone(&file.node), dirty: file.dirty.clone(), ..*file })
    }

    fn small_files(&self, _home: Ino, blocks: u32) -> Vec<Ino> {
        let files = self.files.values().filter(|file| file.blocks == u64::from(blocks));
        files.map(|file| file.ino).collect()
    }

    fn small_counts(&self, _home: Ino) -> Vec<u32> {
        let counts = self.files.values().map(|file| file.blocks).filter(|blocks| *blocks <= SMALL_BLOCKS_MAX);
        counts.map(|blocks| blocks as u32).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Counts pieces and requests of runs that are read one after another.
#[derive(Default)]
struct Meter {
    transfer_blocks: u64,
    /// The address at which the last run ended.
    end: Option<BlockAddr>,
    /// Blocks of the piece that the last run belongs to.
    piece: u64,
    blocks: u64,
    pieces: u64,
    requests: u64,
}

impl Meter {
    fn new(transfer_blocks: u32) -> Meter {
        Meter { transfer_blocks: transfer_blocks.into(), ..Meter::default() }
    }

    fn add(&mut self, run: BlockRun) {
        if self.end != Some(run.start) {
            self.close();
        }
        self.piece += u64::from(run.len);
        self.blocks += u64::from(run.len);
        self.end = Some(run.end());
    }

    fn close(&mut self) {
        self.pieces += u64::from(self.piece > 0);
        self.requests += self.piece.div_ceil(self.transfer_blocks);
        self.piece = 0;
    }

    fn reading(mut self) -> ReadCost {
        self.close();
        let successors = self.blocks.saturating_sub(1);
        let adjacent = successors - self.pieces.saturating_sub(1);
        ReadCost { pieces: self.pieces, score: Score { successors, adjacent }, requests: self.requests }
    }
}

/// Returns the cost of reading small files of one directory.
fn reading<'a>(files: impl Iterator<Item = &'a Runs>, transfer_blocks: u32) -> ReadCost {
    let mut total = ReadCost::default();
    let mut all = Vec::new();
    for runs in files {
        let mut alone = Meter::new(transfer_blocks);
        runs.iter().for_each(|(_, run)| alone.add(*run));
        total.add(alone.reading());
        all.extend(runs.iter().map(|(_, run)| *run));
    }
    all.sort_unstable_by_key(|run| run.start);
    let mut together = Meter::new(transfer_blocks);
    all.into_iter().for_each(|run| together.add(run));
    ReadCost { requests: together.reading().requests, ..total }
}

/// The destinations of the ranges of planned writes, by file.
type Moves = BTreeMap<Ino, Vec<(LbnRange, BlockAddr)>>;

/// Ranges of files that were read for a move.
type Brought<F> = Vec<(Shared<F>, LbnRange)>;

fn moves(writes: &[PlannedWrite]) -> Moves {
    let mut moves = Moves::new();
    for travel in writes {
        let mut at = travel.to.start;
        for from in &travel.from {
            moves.entry(from.ino).or_default().push((from.range, at));
            at = at + u64::from(from.range.len);
        }
    }
    moves
}

/// Returns the runs of a file after `moves`.
fn relocated(runs: &Runs, moves: &[(LbnRange, BlockAddr)]) -> Runs {
    let blocks = |start: Lbn, to: BlockAddr, len: u32| (0..u64::from(len)).map(move |i| (start.0 + i, to.0 + i));
    let mut places: BTreeMap<u64, u64> = runs.iter().flat_map(|(at, run)| blocks(*at, run.start, run.len)).collect();
    places.extend(moves.iter().flat_map(|(range, to)| blocks(range.start, *to, range.len)));
    let places: Vec<(u64, u64)> = places.into_iter().collect();
    let joined = |one: &(u64, u64), next: &(u64, u64)| (one.0 + 1, one.1 + 1) == *next;
    let run = |run: &[(u64, u64)]| (Lbn(run[0].0), BlockRun { start: BlockAddr(run[0].1), len: run.len() as u32 });
    places.chunk_by(joined).map(run).collect()
}

/// True if the walk is to go on.
type Onward = bool;

/// A walk that defragments a directory tree.
struct Walk<'a, F: Format> {
    volume: &'a WriteBack<F>,
    options: DefragOptions,
    progress: &'a mut dyn FnMut(&DefragReport) -> Onward,
    healed: DefragReport,
    /// Bytes moved since the last commit.
    uncommitted: u64,
    /// Files of several names, which belong to the first directory in which the walk finds them.
    linked: BTreeSet<Ino>,
    /// Directories that were found. On a damaged volume one may have several names, or contain itself: it is looked at
    /// once.
    found: BTreeSet<Ino>,
}

impl<F: Format> WriteBack<F> {
    /// Defragments a file, or a directory and all below it.
    pub(crate) fn defragment(
        &self,
        ino: Ino,
        options: &DefragOptions,
        progress: &mut dyn FnMut(&DefragReport) -> bool,
    ) -> Result<DefragReport> {
        let healed = DefragReport::default();
        let (linked, found) = (BTreeSet::new(), BTreeSet::from([ino]));
        let mut walk = Walk { volume: self, options: *options, progress, healed, uncommitted: 0, linked, found };
        let walked = walk.run(ino);
        let committed = self.enter().and_then(|_gate| walk.commit());
        walked.and(committed)?;
        if walk.healed.ending == StopReason::Running {
            walk.healed.ending = StopReason::Done;
        }
        Ok(walk.healed)
    }
}

impl<F: Format> Walk<'_, F> {
    fn run(&mut self, ino: Ino) -> Result<()> {
        let kind = {
            let _gate = self.volume.enter()?;
            if !self.options.dry_run {
                self.volume.check_writable()?;
            }
            self.volume.inode(ino)?.kind
        };
        match kind {
            FileKind::Regular => self.one_file(ino),
            FileKind::Directory => self.tree(ino),
            _ => Err(Error::Posix(libc::EINVAL)),
        }
    }

    fn one_file(&mut self, ino: Ino) -> Result<()> {
        let file = {
            let _gate = self.volume.enter()?;
            self.settled(ino)?
        };
        let Some(inode) = file else { return Ok(()) };
        if self.is_small(&inode) {
            let home = inode.state.lock().home;
            self.small_files(home, &[inode])
        } else {
            self.large_file(&inode)
        }
    }

    fn tree(&mut self, top: Ino) -> Result<()> {
        let mut pending = vec![top];
        while let Some(dir) = pending.pop() {
            self.directory(dir, &mut pending)?;
            self.healed.directories += 1;
            if !self.goes_on() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Defragments the files of one directory; its subdirectories become pending.
    fn directory(&mut self, dir: Ino, pending: &mut Vec<Ino>) -> Result<()> {
        let mut from = Cookie(0);
        let (mut part, mut bytes) = (Vec::new(), 0);
        loop {
            let (files, next, (bytes_max, files_max)) = {
                let _gate = self.volume.enter()?;
                let batch = self.volume.list_from(dir, from)?;
                let Some((_, _, next)) = batch.last() else { break };
                (self.files_of(&batch, pending)?, *next, self.part_max())
            };
            from = next;
            for inode in files {
                if !self.is_small(&inode) {
                    self.large_file(&inode)?;
                } else {
                    bytes += inode.size();
                    part.push(inode);
                    if bytes < bytes_max && part.len() < files_max {
                        continue;
                    }
                    bytes = 0;
                    self.small_files(dir, &std::mem::take(&mut part))?;
                }
                if !self.goes_on() {
                    return Ok(());
                }
            }
        }
        self.small_files(dir, &part)
    }

    /// Returns the files among some entries that may be moved now; directories become pending.
    fn files_of(&mut self, batch: &[Listed], pending: &mut Vec<Ino>) -> Result<Vec<Shared<F>>> {
        let mut files = Vec::with_capacity(batch.len());
        for (ino, kind, _) in batch {
            match kind {
                Some(FileKind::Directory) => self.make_pending(*ino, pending),
                Some(FileKind::Regular) => files.extend(self.settled(*ino)?),
                // The directory does not record the kind.
                None => match self.volume.inode(*ino) {
                    Ok(inode) if inode.is_dir() => self.make_pending(*ino, pending),
                    Ok(_) => files.extend(self.settled(*ino)?),
                    Err(error) => error.unless_gone()?,
                },
                Some(_) => {}
            }
        }
        Ok(files)
    }

    /// Makes a directory pending, unless it was found before, which is counted.
    fn make_pending(&mut self, dir: Ino, pending: &mut Vec<Ino>) {
        if self.found.insert(dir) {
            pending.push(dir);
        } else {
            self.healed.directories_met_before += 1;
        }
    }

    /// Asks `progress` whether to go on.
    fn goes_on(&mut self) -> Onward {
        if self.healed.ending == StopReason::Running && !(self.progress)(&self.healed) {
            self.healed.ending = StopReason::Stopped;
        }
        self.healed.ending == StopReason::Running
    }

    /// Returns the most bytes and files that one plan covers.
    fn part_max(&self) -> (u64, usize) {
        let volume = self.volume;
        let cache = volume.cache.budget_bytes() as u64 / PART_SHARE;
        let free = volume.format.space().free_blocks * volume.block_bytes() / PART_SHARE;
        (PART_BYTES_MAX.min(cache).min(free), PART_FILES_MAX.min((cache / INODE_BYTES as u64) as usize))
    }

    fn is_small(&self, inode: &Shared<F>) -> bool {
        inode.size() <= SMALL_BLOCKS_MAX * self.volume.block_bytes()
    }

    /// Returns a regular file without dirty blocks: if it has some, they are written first. `None` if it is no such
    /// file, empty, in use, immovable, or belongs to a directory that was found before.
    fn settled(&mut self, ino: Ino) -> Result<Option<Shared<F>>> {
        let inode = match self.volume.inode(ino) {
            Ok(inode) => inode,
            Err(error) => return error.unless_gone().map(|()| None),
        };
        let is_candidate = inode.kind == FileKind::Regular && inode.size() > 0 && inode.nlink() > 0;
        if !is_candidate || self.volume.format.is_immovable(&inode.node) {
            return Ok(None);
        }
        if inode.nlink() > 1 && !self.linked.insert(ino) {
            return Ok(None);
        }
        self.healed.files += 1;
        if !self.options.dry_run && !inode.pages.lock().is_settled() {
            self.volume.write_back([WritebackReason::Drain(ino)]);
        }
        let settled = inode.pages.lock().is_settled();
        self.healed.files_skipped += u64::from(!settled);
        Ok(settled.then_some(inode))
    }

    /// Returns a range of a file with its runs, unless a caller is changing it.
    fn candidate(&self, inode: &Shared<F>, range: LbnRange) -> Result<Option<Candidate<F>>> {
        let Some(_shared) = inode.lock.try_read() else { return Ok(None) };
        if inode.check_alive().is_err() || !inode.pages.lock().is_settled() {
            return Ok(None);
        }
        let range = self.within(inode, range);
        let runs = self.runs(inode, range)?;
        Ok((range.len > 0).then(|| Candidate { inode: Arc::clone(inode), range, runs }))
    }

    /// Returns the part of a range before the end of the file.
    fn within(&self, inode: &Shared<F>, range: LbnRange) -> LbnRange {
        let end = inode.size().div_ceil(self.volume.block_bytes()).min(range.end().0);
        LbnRange { start: range.start, len: end.saturating_sub(range.start.0) as u32 }
    }

    fn runs(&self, inode: &Shared<F>, range: LbnRange) -> Result<Runs> {
        let mut runs = Vec::new();
        let mut at = range.start;
        while at < range.end() {
            let left = (range.end() - at) as u32;
            let mapping = self.volume.format.map(&inode.node, at, left)?;
            let len = mapping.len().clamp(1, left);
            if let Mapping::Run(run) = mapping {
                runs.push((at, BlockRun { start: run.start, len }));
            }
            at = at + u64::from(len);
        }
        Ok(runs)
    }

    /// Defragments small files of one directory together.
    fn small_files(&mut self, dir: Ino, files: &[Shared<F>]) -> Result<()> {
        let _gate = self.volume.enter()?;
        let whole = LbnRange { start: Lbn(0), len: SMALL_BLOCKS_MAX as u32 };
        let mut candidates = Vec::with_capacity(files.len());
        for inode in files {
            match self.candidate(inode, whole)? {
                Some(candidate) => candidates.push(candidate),
                None => self.healed.files_skipped += 1,
            }
        }
        let transfer = self.volume.transfer_blocks();
        let _flight = self.volume.begin_flight();
        let writes = self.plan(dir, &candidates)?;
        self.healed.before.add(reading(candidates.iter().map(|candidate| &candidate.runs), transfer));
        let after = self.carry_out(&candidates, writes)?;
        self.healed.after.add(reading(after.iter(), transfer));
        Ok(())
    }

    /// Defragments a large file, part by part.
    fn large_file(&mut self, inode: &Shared<F>) -> Result<()> {
        let transfer = self.volume.transfer_blocks();
        let (mut before, mut after) = (Meter::new(transfer), Meter::new(transfer));
        let moved = self.healed.files_moved;
        let mut at = Lbn(0);
        loop {
            let gate = self.volume.enter()?;
            let part_blocks = (self.part_max().0 / self.volume.block_bytes()) as u32;
            // A part has whole windows of one transfer, so that parts end where windows do.
            let range = LbnRange { start: at, len: (part_blocks - part_blocks % transfer).max(transfer) };
            if self.within(inode, range).len == 0 {
                break;
            }
            at = range.end();
            let Some(candidate) = self.candidate(inode, range)? else {
                self.healed.files_skipped += 1;
                break;
            };
            let candidates = [candidate];
            let home = inode.state.lock().home;
            let flight = self.volume.begin_flight();
            let writes = self.plan(home, &candidates)?;
            candidates[0].runs.iter().for_each(|(_, run)| before.add(*run));
            let runs = self.carry_out(&candidates, writes)?;
            runs.iter().flatten().for_each(|(_, run)| after.add(*run));
            drop(flight);
            drop(gate);
            if !self.goes_on() {
                break;
            }
        }
        self.healed.files_moved = self.healed.files_moved.min(moved + 1);
        self.healed.before.add(before.reading());
        self.healed.after.add(after.reading());
        Ok(())
    }

    /// Returns the writes that the format plans for these files, as far as they save requests.
    fn plan(&mut self, home: Ino, candidates: &[Candidate<F>]) -> Result<Vec<PlannedWrite>> {
        let shown = candidates.iter().filter(|candidate| candidate.is_full());
        let file = |candidate: &Candidate<F>| DirtyFile {
            ino: candidate.inode.ino,
            home,
            node: Arc::clone(&candidate.inode.node),
            blocks: candidate.inode.size().div_ceil(self.volume.block_bytes()),
            whole: true,
            dirty: vec![candidate.range],
        };
        let files = shown.map(|candidate| (candidate.inode.ino, file(candidate))).collect();
        let view = View { files, asked: RefCell::default() };
        let by_ino: BTreeMap<Ino, &Candidate<F>> =
            candidates.iter().map(|candidate| (candidate.inode.ino, candidate)).collect();
        let mut decided = BTreeSet::new();
        let mut planned = Vec::new();
        for ino in view.files.keys() {
            if decided.contains(ino) {
                continue;
            }
            let plan = match self.volume.plan_with_room(WritebackReason::Move(*ino), &view, true, || ()) {
                Ok(((), plan)) => plan,
                Err(Error::Stale(_)) => continue,
                Err(error) => {
                    self.abandon(&planned);
                    return Err(error);
                }
            };
            let mut asked = view.asked.take();
            let writes = self.affordable(plan.writes);
            if self.saves(asked.iter().filter_map(|ino| by_ino.get(ino).copied()), &writes) {
                planned.extend(writes);
            } else {
                self.abandon(&writes);
            }
            decided.append(&mut asked);
            if self.healed.ending != StopReason::Running {
                break;
            }
        }
        Ok(planned)
    }

    fn abandon(&self, writes: &[PlannedWrite]) {
        writes.iter().filter(|travel| travel.fresh).for_each(|travel| self.volume.format.abandon(travel.to));
    }

    /// Returns the planned writes that [`DefragOptions::max_bytes`] allows; the others are given back, and the walk
    /// ends.
    fn affordable(&mut self, mut writes: Vec<PlannedWrite>) -> Vec<PlannedWrite> {
        let mut left = (self.options.max_bytes - self.healed.bytes_moved) / self.volume.block_bytes();
        let mut count = 0;
        for travel in &writes {
            let Some(rest) = left.checked_sub(travel.to.len.into()) else { break };
            left = rest;
            count += 1;
        }
        let rest = writes.split_off(count);
        if !rest.is_empty() {
            self.healed.ending = StopReason::MaxBytes;
            self.abandon(&rest);
        }
        writes
    }

    /// Returns true if reading these files takes fewer requests after the planned writes.
    fn saves<'c>(&self, files: impl Iterator<Item = &'c Candidate<F>>, writes: &[PlannedWrite]) -> bool
    where
        F: 'c,
    {
        if writes.is_empty() {
            return false;
        }
        let moves = moves(writes);
        let files: Vec<&Candidate<F>> = files.collect();
        let after: Vec<Runs> = files.iter().map(|file| relocated_if(file, &moves)).collect();
        let transfer = self.volume.transfer_blocks();
        let before = reading(files.iter().map(|file| &file.runs), transfer);
        reading(after.iter(), transfer).requests < before.requests
    }

    /// Carries the plan out, or gives it back in a dry run; returns the runs of the files afterwards.
    fn carry_out(&mut self, candidates: &[Candidate<F>], writes: Vec<PlannedWrite>) -> Result<Vec<Runs>> {
        if writes.is_empty() {
            return Ok(candidates.iter().map(|candidate| candidate.runs.clone()).collect());
        }
        let moves = moves(&writes);
        let block_bytes = self.volume.block_bytes();
        if self.options.dry_run {
            self.abandon(&writes);
            self.healed.files_moved += moves.len() as u64;
            let blocks: u64 = writes.iter().map(|travel| u64::from(travel.to.len)).sum();
            self.healed.bytes_moved += blocks * block_bytes;
            return Ok(candidates.iter().map(|candidate| relocated_if(candidate, &moves)).collect());
        }
        let (writes, brought) = self.bring(candidates, writes, &moves);
        self.healed.files_moved += self::moves(&writes).len() as u64;
        let outcome = self.volume.carry_out(writes);
        // Blocks that were not in the cache before are the first to leave it.
        brought.iter().for_each(|(inode, range)| self.volume.chill(inode, *range));
        let bytes = outcome.blocks * block_bytes;
        self.volume.tally.gathered_blocks.fetch_add(outcome.blocks, Ordering::Relaxed);
        self.healed.bytes_moved += bytes;
        self.uncommitted += bytes;
        if let Some(error) = outcome.error {
            return Err(error);
        }
        let free = self.volume.format.space().free_blocks * block_bytes;
        if self.uncommitted >= COMMIT_BYTES.min(free / PART_SHARE) {
            self.commit()?;
        }
        candidates.iter().map(|candidate| self.runs(&candidate.inode, candidate.range)).collect()
    }

    /// Reads the blocks that are to be written. Returns the planned writes without the files that cannot move
    /// (unreadable ones, and those that are in use by now), and the ranges that were not in the cache before.
    fn bring(
        &mut self,
        candidates: &[Candidate<F>],
        writes: Vec<PlannedWrite>,
        moves: &Moves,
    ) -> (Vec<PlannedWrite>, Brought<F>) {
        let volume = self.volume;
        let mut staying = BTreeSet::new();
        // All reads are under way before the first is waited for.
        let mut fills = Vec::new();
        let travelling = || candidates.iter().filter_map(|c| Some((&c.inode, moves.get(&c.inode.ino)?)));
        for (inode, ranges) in travelling() {
            let shared = inode.lock.try_read().filter(|_| inode.check_alive().is_ok());
            for (range, _) in ranges {
                match shared.as_ref().map(|_| volume.start_fill(inode, *range, Cause::Move)) {
                    Some(Ok(Some(fill))) => fills.push((inode, *range, fill)),
                    Some(Ok(None)) => {}
                    Some(Err(_)) | None => drop(staying.insert(inode.ino)),
                }
            }
        }
        let mut brought = Vec::with_capacity(fills.len());
        for (inode, range, fill) in fills {
            // An error shows in the blocks that are absent afterwards.
            let _ = volume.finish_fill(inode, &fill);
            brought.push((Arc::clone(inode), range));
        }
        for (inode, ranges) in travelling() {
            if !ranges.iter().all(|(range, _)| keep_in_cache(inode, *range)) {
                staying.insert(inode.ino);
            }
        }
        self.healed.files_skipped += staying.len() as u64;
        (writes.into_iter().flat_map(|travel| self.without(travel, &staying)).collect(), brought)
    }

    /// Returns a planned write without some files, whose part of the run goes back.
    fn without(&self, travel: PlannedWrite, staying: &BTreeSet<Ino>) -> Vec<PlannedWrite> {
        if travel.from.iter().all(|from| !staying.contains(&from.ino)) {
            return vec![travel];
        }
        let mut kept: Vec<PlannedWrite> = Vec::new();
        let mut at = travel.to.start;
        for from in &travel.from {
            let run = BlockRun { start: at, len: from.range.len };
            at = run.end();
            if staying.contains(&from.ino) {
                self.volume.format.abandon(run);
                continue;
            }
            match kept.last_mut() {
                Some(open) if open.to.end() == run.start => {
                    open.to.len += run.len;
                    open.from.push(*from);
                }
                _ => kept.push(PlannedWrite { to: run, from: [*from].into_iter().collect(), ..travel.clone() }),
            }
        }
        kept
    }

    /// Commits, so that the old places can be used again. The gate is held.
    fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.uncommitted) == 0 {
            return Ok(());
        }
        wait_for_host(&self.volume.rt, || self.volume.commit(CommitReason::Pressure))
    }
}

fn relocated_if<F: Format>(file: &Candidate<F>, moves: &Moves) -> Runs {
    moves.get(&file.inode.ino).map_or_else(|| file.runs.clone(), |moves| relocated(&file.runs, moves))
}

/// Returns true if all of a range is in the cache, and the file settled. The range is to stay there until it is
/// written: replacement passes it by once.
fn keep_in_cache<N>(inode: &Inode<N>, range: LbnRange) -> bool {
    let mut pages = inode.pages.lock();
    if !pages.is_settled() {
        return false;
    }
    let mut there = 0;
    for (_, slot) in pages.slots_mut(range) {
        slot.referenced = true;
        there += u32::from(!slot.is_filling());
    }
    there == range.len
}
