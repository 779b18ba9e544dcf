//! Operations on ranges of a file: truncate, allocate, punch, zero, seek, copy, map.
//!
//! Blocks leave a file in bounded ops; the size is put first, so a crash in between leaves a file
//! that is short already and has blocks too many.

use moafs_runtime::lock::WriteGuard;

use crate::calls::{Allocate, Seek, SetAttr};
use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::format::{Admission, Format, FormatOp, OpKind, Progress, SpaceClass, SpaceRequest};
use crate::inode::{Inode, Shared, Unput};
use crate::io::{Files, Source, Write};
use crate::perm::{APPEND_ONLY, IMMUTABLE, without_set_ids};
use crate::plan::WritebackReason;
use crate::types::{Attr, Ino, Lbn, LbnRange, Mapping};
use crate::unmap::{LBN_END, UNMAP_BLOCKS_MAX};

/// Bytes that copy_range moves at a time.
const COPY_BYTES: u64 = 1 << 20;

/// Blocks that one op allocates at most without writing them.
const PREALLOCATE_BLOCKS_MAX: u64 = 1 << 15;

/// Attempts to reserve map blocks at the ends of a range that is to be unmapped.
const EDGE_ATTEMPTS: u32 = 8;

/// The sizes that a file may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resize {
    Any,
    /// Larger ones only: it stays as it is if another call has made it as large already.
    Lengthen,
}

impl<F: Format> Files<F> {
    /// Sets a file's size, and with it the other attributes of a truncation in `set` (times, suid).
    pub(crate) fn truncate(&self, who: &Credentials, inode: &Shared<F>, size: u64, set: &SetAttr) -> Result<()> {
        self.resize(who, inode, size, set, Resize::Any)
    }

    fn resize(&self, who: &Credentials, inode: &Shared<F>, size: u64, set: &SetAttr, how: Resize) -> Result<()> {
        self.make_room(self.shape.block_size as usize)?;
        let from = Lbn(size.div_ceil(self.block_bytes()));
        let (_exclusive, mut edges) = loop {
            let locked = self.lock_to_unmap(inode, from, LBN_END)?;
            if how == Resize::Lengthen && size <= inode.size() {
                return Ok(());
            }
            let grows = size > inode.size();
            if grows && size > self.format.file_bytes_max(&inode.node) {
                return Err(Error::Posix(libc::EFBIG));
            }
            if !grows || !self.format.is_inline(&inode.node) {
                break locked;
            }
            drop(locked);
            self.leave_inode(inode)?;
        };
        inode.check_alive()?;
        let old = inode.size();
        if size > old {
            self.unmap_overhang(inode)?;
            self.zero_tail(inode, old, u64::MAX)?;
        }
        let now = self.timestamp();
        let kill = set.kill_suidgid || who.loses_set_ids();
        let change = |attr: &mut Attr| {
            attr.size = size;
            if size != old || set.mtime.is_none() {
                attr.mtime = now;
            }
            attr.ctime = now;
            if kill {
                attr.perm = without_set_ids(who, attr.perm, attr.gid);
            }
            self.set_times(attr, set, now);
        };
        if size > old || (size == old && !self.has_blocks_behind(inode, from)?) {
            self.unput(inode, Unput::Attributes, change);
            return Ok(());
        }
        let mut is_cut = false;
        let shortened = match self.shorten(inode, size, &mut edges, &change, &mut is_cut) {
            // The file ends there in any case; its blocks go later.
            Err(error) if is_cut || error.errno() == libc::ENOSPC => {
                self.shorten_in_memory(inode, size, &mut edges, &change);
                if error.errno() == libc::ENOSPC { Ok(()) } else { Err(error) }
            }
            done => done,
        };
        if inode.size() < old {
            self.clean_tail(inode);
        }
        shortened
    }

    /// Returns true if the format has preallocated blocks of the file from `from` on.
    fn has_blocks_behind(&self, inode: &Shared<F>, from: Lbn) -> Result<bool> {
        if !self.format.can_preallocate(&inode.node) {
            return Ok(false);
        }
        Ok(self.format.map(&inode.node, from, u32::MAX)? != Mapping::Hole { len: u32::MAX })
    }

    /// Makes `change`, which shortens a file to `size`, and drops its pages and blocks behind that. After an error
    /// `is_cut` says whether pages were dropped.
    fn shorten(
        &self,
        inode: &Shared<F>,
        size: u64,
        edges: &mut Admission,
        change: &impl Fn(&mut Attr),
        is_cut: &mut bool,
    ) -> Result<()> {
        let from = Lbn(size.div_ceil(self.block_bytes()));
        self.note_overhang(inode, true);
        let progress = loop {
            self.wait_for_cut(inode, size);
            let drop_pages = || {
                *is_cut = self.try_cut(inode, size, edges);
                *is_cut
            };
            if let Some(progress) = self.begin_to_unmap(inode, (from, None), drop_pages, change)? {
                break progress;
            }
        };
        self.unmap_rest(inode, from, None, false, progress)?;
        self.note_overhang(inode, false);
        Ok(())
    }

    /// Makes `change` after `drop_pages`, and unmaps blocks of `from..to`, all in one op. Returns `None`, without a
    /// change, if `drop_pages` returns false.
    fn begin_to_unmap(
        &self,
        inode: &Shared<F>,
        (from, to): (Lbn, Option<Lbn>),
        drop_pages: impl FnOnce() -> bool,
        change: impl Fn(&mut Attr),
    ) -> Result<Option<Progress>> {
        let mut admission = Admission::none();
        let mut op = self.begin(OpKind::Unmap, &mut admission)?;
        let one: &[&Inode<F::Node>] = &[inode];
        let progress = op.put_between(inode, drop_pages, change, |op| match to.is_none_or(|to| from < to) {
            true => op.unmap(&inode.node, from, to, UNMAP_BLOCKS_MAX, false),
            false => Ok(Progress::Done),
        })?;
        op.end(if progress.is_some() { one } else { &[] });
        Ok(progress)
    }

    /// Makes `change`, which shortens a file to `size`, and drops its pages behind that. The format learns of it later.
    fn shorten_in_memory(&self, inode: &Shared<F>, size: u64, edges: &mut Admission, change: &impl Fn(&mut Attr)) {
        if inode.size() == size {
            // The first op has made it.
            return self.unput(inode, Unput::Attributes, change);
        }
        loop {
            self.wait_for_cut(inode, size);
            let _put = inode.put.lock();
            // A sync that does not find the pages any more waits for the new size.
            self.unput(inode, Unput::Attributes, |_| ());
            if self.try_cut(inode, size, edges) {
                self.unput(inode, Unput::Attributes, change);
                return;
            }
        }
    }

    /// Waits until no page of the last block of a file of `size` bytes, or behind it, is in flight.
    fn wait_for_cut(&self, inode: &Shared<F>, size: u64) {
        self.wait_settled(inode, Lbn(size / self.block_bytes()), LBN_END);
    }

    /// Drops the pages behind `size`, of which none may have to be written any more, unless one of them or of the last
    /// block is moving; false then. Never waits.
    fn try_cut(&self, inode: &Shared<F>, size: u64, edges: &mut Admission) -> bool {
        let (tail, within) = self.tail_at(size);
        let from = Lbn(size.div_ceil(self.block_bytes()));
        if inode.pages.lock().first_moving(tail, from).is_some() || !self.try_discard(inode, from, LBN_END) {
            return false;
        }
        inode.pages.lock().cut(tail, within);
        self.forget_edges(inode, from, LBN_END, edges);
        true
    }

    /// Zeroes the rest of the last block of a file that was shortened.
    fn clean_tail(&self, inode: &Shared<F>) {
        let (tail, within) = self.tail_at(inode.size());
        if within == 0 {
            return;
        }
        // Only a block that is not in memory can fail to be zeroed; it is when the file grows.
        let _ = self.zero_part(inode, tail, within as usize, self.shape.block_size as usize);
        // Before the zeros the device may have got the bytes that were cut, and taken them for the file's.
        self.wait_settled(inode, tail, tail + 1);
        inode.pages.lock().cut(tail, within);
        self.drop_inline_page(inode, tail);
    }

    /// Returns the block in which a file of `size` bytes ends, and how many of its bytes the file has there.
    fn tail_at(&self, size: u64) -> (Lbn, u32) {
        (Lbn(size / self.block_bytes()), (size % self.block_bytes()) as u32)
    }

    /// Locks a file to unmap `from..to`, with room for the map blocks that this may free though dirty pages on the
    /// other side of the range's ends still need them. If there is no room the pages get their places first.
    fn lock_to_unmap<'a>(&self, inode: &'a Shared<F>, from: Lbn, to: Lbn) -> Result<(WriteGuard<'a, ()>, Admission)> {
        let edges = || inode.pages.lock().unplaced.edges(from, to);
        for _ in 0..EDGE_ATTEMPTS {
            let map_blocks = edges();
            let admission = match map_blocks {
                0 => Admission::none(),
                _ => {
                    match self.format.admit(SpaceRequest { map_blocks, ..SpaceRequest::default() }, SpaceClass::Root) {
                        Err(error) if error.errno() == libc::ENOSPC => {
                            // An error belongs to the file, and is reported by an fsync.
                            let _ = self.write_back_file(inode, WritebackReason::Sync(inode.ino));
                            continue;
                        }
                        admission => admission?,
                    }
                }
            };
            let exclusive = inode.lock.write();
            if edges() <= map_blocks {
                return Ok((exclusive, admission));
            }
        }
        // Other callers write there all the time. Freeing blocks is more likely to help than to refuse it.
        Ok((inode.lock.write(), Admission::none()))
    }

    /// Gives the file's dirty pages the space that they may need again, before `from..to` is unmapped.
    fn forget_edges(&self, inode: &Shared<F>, from: Lbn, to: Lbn, edges: &mut Admission) {
        let mut pages = inode.pages.lock();
        let more = pages.unplaced.forget_edges(from, to);
        pages.admission.absorb(edges.split(more));
    }

    /// Drops the page of contents that lie in the inode, where the format cuts them: the page still has what is cut.
    fn drop_inline_page(&self, inode: &Shared<F>, at: Lbn) {
        let is_unsettled = inode.pages.lock().get(at).is_some_and(|slot| slot.is_unsettled());
        if !is_unsettled && self.format.is_inline(&inode.node) {
            self.discard(inode, at, at + 1);
        }
    }

    pub(crate) fn allocate(&self, who: &Credentials, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let _gate = self.enter_changing()?;
        let inode = self.file_inode(ino)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Error::Posix(libc::EINVAL))?;
        let flags = inode.attr().flags;
        if flags & IMMUTABLE != 0 || (flags & APPEND_ONLY != 0 && !matches!(how, Allocate::Extend | Allocate::KeepSize))
        {
            return Err(Error::Posix(libc::EPERM));
        }
        if end > self.format.file_bytes_max(&inode.node) {
            return Err(Error::Posix(libc::EFBIG));
        }
        let done = self.allocate_range(who, &inode, offset, end, how);
        self.end_change(&inode, &done);
        done
    }

    fn allocate_range(&self, who: &Credentials, inode: &Shared<F>, offset: u64, end: u64, how: Allocate) -> Result<()> {
        let can_preallocate = self.format.can_preallocate(&inode.node);
        match how {
            Allocate::Extend | Allocate::KeepSize if can_preallocate => {
                self.preallocate(who, inode, offset, end, how == Allocate::KeepSize)
            }
            Allocate::Extend => self.write_zeros(who, inode, offset, end, Source::Holes, false),
            Allocate::KeepSize => {
                self.check_within(inode, end)?;
                self.write_zeros(who, inode, offset, end, Source::Holes, true)
            }
            Allocate::Zero { keep_size: false } => self.write_zeros(who, inode, offset, end, Source::Zeros, false),
            Allocate::Zero { keep_size: true } => {
                // Beyond the end there is nothing to zero.
                let size = inode.size();
                if offset < size {
                    self.write_zeros(who, inode, offset, end.min(size), Source::Zeros, true)?;
                }
                if can_preallocate && size < end {
                    self.preallocate(who, inode, offset.max(size), end, true)?;
                }
                Ok(())
            }
            Allocate::Punch => {
                self.make_room(2 * self.shape.block_size as usize)?;
                self.punch(who, inode, offset, end)
            }
        }
    }

    /// Fails with EOPNOTSUPP if the format cannot keep blocks beyond the end of a file.
    fn check_within(&self, inode: &Shared<F>, end: u64) -> Result<()> {
        let last = inode.size().next_multiple_of(self.block_bytes());
        if end > last { Err(Error::Posix(libc::EOPNOTSUPP)) } else { Ok(()) }
    }

    /// Allocates blocks for the holes of `offset..end`, which read as zeros until they are written.
    fn preallocate(&self, who: &Credentials, inode: &Shared<F>, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let block_bytes = self.block_bytes();
        let (mut at, last) = (offset / block_bytes, end.div_ceil(block_bytes));
        let len = u32::try_from(last - at).unwrap_or(u32::MAX);
        self.leave_inode(inode)?;
        // Blocks that wait to be written get their places first: until then they would count beside those for them.
        if !inode.pages.lock().unallocated(LbnRange { start: Lbn(at), len }).is_empty() {
            self.write_back_file(inode, WritebackReason::Sync(inode.ino))?;
        }
        self.check_room(who, inode, offset, end)?;
        while at < last {
            let len = (last - at).min(PREALLOCATE_BLOCKS_MAX);
            let need = self.need_of_holes(inode, at * block_bytes, (at + len) * block_bytes)?;
            let mut admission = self.admit(need, who.space_class())?;
            let _exclusive = inode.lock.write();
            inode.check_alive()?;
            let size = inode.size();
            if end > size && !keep_size {
                self.unmap_overhang(inode)?;
                self.zero_tail(inode, size, u64::MAX)?;
            }
            let mut op = self.begin(OpKind::Place, &mut admission)?;
            let passed = op.preallocate(&inode.node, LbnRange { start: Lbn(at), len: len as u32 })?;
            op.end(&[inode]);
            inode.pages.lock().note_addressed(LbnRange { start: Lbn(at), len: passed });
            at += u64::from(passed);
            let reached = (at * block_bytes).min(end);
            self.unput(inode, Unput::Attributes, |attr| {
                let now = self.timestamp();
                (attr.mtime, attr.ctime) = (now, now);
                if !keep_size {
                    attr.size = attr.size.max(reached);
                }
                if who.loses_set_ids() {
                    attr.perm = without_set_ids(who, attr.perm, attr.gid);
                }
            });
        }
        Ok(())
    }

    fn write_zeros(
        &self,
        who: &Credentials,
        inode: &Shared<F>,
        offset: u64,
        end: u64,
        source: fn(u64) -> Source<'static>,
        keep_size: bool,
    ) -> Result<()> {
        let chunk = self.chunk_bytes() as u64;
        // All of it or nothing: after a failure in the middle, blocks would lie behind the end that the kernel knows
        // of.
        self.check_room(who, inode, offset, end)?;
        let mut at = offset;
        while at < end {
            // Chunks end on block boundaries.
            let stop = end.min((at + chunk) / chunk * chunk);
            let write = Write { who, offset: at, source: source(stop - at), append: false, keep_size };
            self.write_chunk(inode, &write)?;
            at = stop;
        }
        Ok(())
    }

    /// Fails with ENOSPC unless there is space for all blocks of `offset..end` that have no address. Nothing stays
    /// reserved: each chunk is admitted by itself.
    fn check_room(&self, who: &Credentials, inode: &Shared<F>, offset: u64, end: u64) -> Result<()> {
        let class = who.space_class();
        if self.admit_at_once(self.need_of_holes(inode, offset, end)?, class)?.is_some() {
            return Ok(());
        }
        // Blocks that wait to be written have no address yet, but their space is reserved: count them exactly.
        self.write_back_file(inode, WritebackReason::Sync(inode.ino))?;
        self.admit(self.need_of_holes(inode, offset, end)?, class).map(drop)
    }

    /// Returns the most space that the blocks of `offset..end` without an address need.
    fn need_of_holes(&self, inode: &Shared<F>, offset: u64, end: u64) -> Result<SpaceRequest> {
        let data_blocks = self.count_holes(inode, offset, end)?;
        let shape = self.format.map_shape(&inode.node);
        let is_mapped = data_blocks > 0 && end.div_ceil(self.block_bytes()) > shape.direct;
        let map_blocks = match is_mapped {
            true => data_blocks.div_ceil(shape.fan) + data_blocks.div_ceil(shape.fan.saturating_mul(shape.fan)) + 2,
            false => 0,
        };
        Ok(SpaceRequest { data_blocks, map_blocks, ..SpaceRequest::default() })
    }

    /// Counts the blocks of `offset..end` without an address.
    fn count_holes(&self, inode: &Shared<F>, offset: u64, end: u64) -> Result<u64> {
        let _shared = inode.lock.read();
        let block_bytes = self.block_bytes();
        let (mut at, end) = (offset / block_bytes, end.div_ceil(block_bytes));
        let known = end.min(self.mapped_end(inode, inode.size()));
        let mut holes = end - known.clamp(at, end);
        while at < known {
            let max = u32::try_from(known - at).unwrap_or(u32::MAX);
            let mapping = self.format.map(&inode.node, Lbn(at), max)?;
            let len = u64::from(mapping.len().clamp(1, max));
            holes += if matches!(mapping, Mapping::Hole { .. }) { len } else { 0 };
            at += len;
        }
        Ok(holes)
    }

    /// Makes a hole of `offset..end`.
    fn punch(&self, who: &Credentials, inode: &Shared<F>, offset: u64, end: u64) -> Result<()> {
        self.leave_inode(inode)?;
        let block_bytes = self.block_bytes();
        let first = offset.div_ceil(block_bytes);
        // Behind the end of the file there is nothing to unmap, wherever that is.
        let (_exclusive, mut edges) = self.lock_to_unmap(inode, Lbn(first), Lbn(end / block_bytes))?;
        inode.check_alive()?;
        let size = inode.size();
        let end = if end >= size { size.next_multiple_of(block_bytes) } else { end };
        if offset >= end {
            return Ok(());
        }
        let last = end / block_bytes;
        let hole = (Lbn(first), Lbn(last.max(first)));
        // First, since it may fail.
        self.write_before_large_hole(inode, hole)?;
        if first > last {
            let (from, to) = (offset % block_bytes, end % block_bytes);
            self.zero_part(inode, Lbn(last), from as usize, to as usize)?;
        } else {
            if !offset.is_multiple_of(block_bytes) {
                self.zero_part(inode, Lbn(first - 1), (offset % block_bytes) as usize, block_bytes as usize)?;
            }
            if !end.is_multiple_of(block_bytes) {
                self.zero_part(inode, Lbn(last), 0, (end % block_bytes) as usize)?;
            }
        }
        let mut newer = Vec::new();
        let punched = self.unmap_hole(who, inode, hole, &mut edges, &mut newer);
        if punched.is_err() {
            // Blocks that are still mapped must not show what lay in them before the bytes that have left memory.
            for at in newer {
                self.zero_part(inode, at, 0, block_bytes as usize)?;
            }
        }
        punched
    }

    /// Writes the dirty blocks of a hole that may take more than one op to make: after a power cut between two ops the
    /// blocks that it still lacks must not show older bytes.
    fn write_before_large_hole(&self, inode: &Shared<F>, (first, last): (Lbn, Lbn)) -> Result<()> {
        let (older, new) = inode.pages.lock().count_dirty(first, last);
        // Each new block may get a place of its own before the op begins.
        if older == 0 || self.count_runs(inode, first, last)?.saturating_add(new) <= self.shape.unmap_step.runs as usize
        {
            return Ok(());
        }
        self.write_back_file(inode, WritebackReason::Drain(inode.ino))
    }

    /// Counts the runs in which the blocks of `first..last` lie; `usize::MAX` if no op unmaps so many blocks.
    fn count_runs(&self, inode: &Shared<F>, first: Lbn, last: Lbn) -> Result<usize> {
        if last - first > u64::from(self.shape.unmap_step.blocks) {
            return Ok(usize::MAX);
        }
        let (mut at, mut runs) = (first, 0);
        while at < last {
            let mapping = self.format.map(&inode.node, at, (last - at) as u32)?;
            runs += usize::from(!matches!(mapping, Mapping::Hole { .. }));
            at = at + u64::from(mapping.len().max(1));
        }
        Ok(runs)
    }

    /// Drops the pages of a hole, unmaps its blocks and renews the times. `newer` gets the blocks whose pages were
    /// dropped though the device has older bytes.
    fn unmap_hole(
        &self,
        who: &Credentials,
        inode: &Shared<F>,
        (first, last): (Lbn, Lbn),
        edges: &mut Admission,
        newer: &mut Vec<Lbn>,
    ) -> Result<()> {
        let now = self.timestamp();
        let change = |attr: &mut Attr| {
            (attr.mtime, attr.ctime) = (now, now);
            if who.loses_set_ids() {
                attr.perm = without_set_ids(who, attr.perm, attr.gid);
            }
        };
        let progress = loop {
            self.wait_settled(inode, first, last);
            let drop_pages = || self.try_discard_for_hole(inode, (first, last), edges, newer);
            if let Some(progress) = self.begin_to_unmap(inode, (first, Some(last)), drop_pages, change)? {
                break progress;
            }
        };
        self.unmap_rest(inode, first, Some(last), false, progress)
    }

    /// Drops the pages of a hole unless one is moving; false then. Never waits.
    fn try_discard_for_hole(
        &self,
        inode: &Shared<F>,
        (first, last): (Lbn, Lbn),
        edges: &mut Admission,
        newer: &mut Vec<Lbn>,
    ) -> bool {
        if first < last {
            let dirty = inode.pages.lock().dirty_in(first, last);
            if !self.try_discard(inode, first, last) {
                return false;
            }
            *newer = dirty;
        }
        self.forget_edges(inode, first, last, edges);
        true
    }

    pub(crate) fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let _gate = self.enter()?;
        let inode = self.file_inode(ino)?;
        let _shared = inode.lock.read();
        self.seek_locked(&inode, offset, what)
    }

    /// Returns the offset of the next data or hole; ENXIO beyond the end, or if no data follow.
    fn seek_locked(&self, inode: &Shared<F>, offset: u64, what: Seek) -> Result<u64> {
        let size = inode.size();
        if offset >= size {
            return Err(Error::Posix(libc::ENXIO));
        }
        let mut at = Lbn(offset / self.block_bytes());
        let end = Lbn(size.div_ceil(self.block_bytes()));
        while at < end {
            let (is_data, next) = self.stretch(inode, at, end)?;
            if is_data == (what == Seek::Data) {
                return Ok(offset.max(at.0 * self.block_bytes()));
            }
            at = next;
        }
        match what {
            Seek::Data => Err(Error::Posix(libc::ENXIO)),
            Seek::Hole => Ok(size),
        }
    }

    /// Returns whether there are data at block `at`, and a block up to which that holds at least. Dirty blocks are
    /// data.
    fn stretch(&self, inode: &Shared<F>, at: Lbn, end: Lbn) -> Result<(bool, Lbn)> {
        let unsettled = inode.pages.lock().next_unsettled(at).unwrap_or(end);
        if unsettled == at {
            return Ok((true, at + 1));
        }
        let max = u32::try_from(end - at).unwrap_or(u32::MAX);
        let mapping = self.format.map(&inode.node, at, max)?;
        let next = at + u64::from(mapping.len().clamp(1, max));
        match mapping {
            Mapping::Run(_) => Ok((true, next)),
            Mapping::Hole { .. } if self.format.resident(&inode.node, at)?.is_some() => Ok((true, at + 1)),
            Mapping::Hole { .. } | Mapping::Unwritten(_) => Ok((false, next.min(unsettled))),
        }
    }

    pub(crate) fn copy_range(&self, who: &Credentials, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let _gate = self.enter_changing()?;
        let (source, target) = (self.file_inode(from.0)?, self.file_inode(to.0)?);
        let len = len.min(source.size().saturating_sub(from.1));
        if len == 0 {
            return Ok(0);
        }
        let end = to.1.checked_add(len).ok_or(Error::Posix(libc::EFBIG))?;
        if end > self.format.file_bytes_max(&target.node) {
            return Err(Error::Posix(libc::EFBIG));
        }
        if from.0 == to.0 && from.1 < end && to.1 < from.1 + len {
            return Err(Error::Posix(libc::EINVAL));
        }
        let copied = self.copy_steps(who, (&source, from.1), (&target, to.1), len);
        self.end_change(&target, &copied);
        copied
    }

    fn copy_steps(&self, who: &Credentials, from: (&Shared<F>, u64), to: (&Shared<F>, u64), len: u64) -> Result<u64> {
        let mut buffer = vec![0; COPY_BYTES.min(len) as usize];
        let mut done = 0;
        while done < len && (done == 0 || self.check_caller().is_ok()) {
            let step = self.copy_step(who, (from.0, from.1 + done), (to.0, to.1 + done), len - done, &mut buffer);
            match step {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Copies one stretch of data, or skips one hole.
    fn copy_step(
        &self,
        who: &Credentials,
        from: (&Shared<F>, u64),
        to: (&Shared<F>, u64),
        len: u64,
        buffer: &mut [u8],
    ) -> Result<u64> {
        let (hole, got) = {
            let _shared = from.0.lock.read();
            let size = from.0.size();
            if from.1 >= size {
                return Ok(0);
            }
            let data = match self.seek_locked(from.0, from.1, Seek::Data) {
                Err(error) if error.errno() == libc::ENXIO => size,
                found => found?,
            };
            let hole = (data - from.1).min(len);
            let want = match hole {
                0 => (self.seek_locked(from.0, from.1, Seek::Hole)? - from.1).min(len).min(buffer.len() as u64),
                _ => 0,
            };
            (hole, self.read_locked(from.0, from.1, &mut buffer[..want as usize])?)
        };
        if hole > 0 {
            self.copy_hole(who, to.0, to.1, to.1 + hole)?;
            return Ok(hole);
        }
        let chunk = self.chunk_bytes();
        let mut done = 0;
        for bytes in buffer[..got].chunks(chunk) {
            let write =
                Write { who, offset: to.1 + done, source: Source::Bytes(bytes), append: false, keep_size: false };
            match self.write_chunk(to.0, &write) {
                Ok(_) => done += bytes.len() as u64,
                // The next attempt tells the error, or the caller learns how far it got.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Makes a hole in the target of a copy, which grows if need be.
    fn copy_hole(&self, who: &Credentials, to: &Shared<F>, offset: u64, end: u64) -> Result<()> {
        self.check_may_write(&to.attr(), offset, false)?;
        self.make_room(2 * self.shape.block_size as usize)?;
        self.resize(who, to, end, &SetAttr::default(), Resize::Lengthen)?;
        self.punch(who, to, offset, end)
    }

    pub(crate) fn file_bytes_max(&self, ino: Ino) -> Result<u64> {
        let _gate = self.enter()?;
        Ok(self.format.file_bytes_max(&self.file_inode(ino)?.node))
    }

    pub(crate) fn map(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<(u64, Mapping)>> {
        let _gate = self.enter()?;
        let inode = self.file_inode(ino)?;
        if self.check_writable().is_ok() {
            self.write_back_file(&inode, WritebackReason::Sync(ino))?;
        }
        let _shared = inode.lock.read();
        let size = inode.size();
        let end = Lbn(size.min(offset.saturating_add(len)).div_ceil(self.block_bytes()));
        let mut at = Lbn(offset / self.block_bytes());
        let mut mappings = Vec::new();
        while at < end {
            let max = u32::try_from(end - at).unwrap_or(u32::MAX);
            let mapping = self.format.map(&inode.node, at, max)?;
            mappings.push((at.0 * self.block_bytes(), mapping));
            at = at + u64::from(mapping.len().max(1));
        }
        Ok(mappings)
    }
}
