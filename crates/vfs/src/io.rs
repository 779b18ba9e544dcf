//! The layer of files: reading and writing their contents.

use std::sync::atomic::Ordering;

use moafs_disk::Page;
use smallvec::SmallVec;

use crate::admission::Admitted;
use crate::credentials::Credentials;
use crate::dirty::STREAM_BYTES;
use crate::error::{Error, Result};
use crate::format::{Format, SpaceClass, SpaceRequest};
use crate::inode::{KnownSectors, Shared, Unput};
use crate::layer::layer;
use crate::options::AtimePolicy;
use crate::pages::{Delta, Pages, Piece, Slot};
use crate::perm::{APPEND_ONLY, IMMUTABLE, NO_ATIME, without_set_ids};
use crate::pressure::Pressure;
use crate::types::{Attr, Ino, Lbn, LbnRange, Mapping};
use crate::unplaced::{Missing, Unplaced};

/// A relatime access time older than this is renewed.
const ATIME_SECS_MAX: i64 = 24 * 60 * 60;

/// The contents and attributes of files.
pub(crate) struct Files<F: Format> {
    pressure: Pressure<F>,
}

layer!(Files over pressure: Pressure);

/// The bytes to be written.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    /// Zeros, this many bytes.
    Zeros(u64),
    /// Zeros, but only into blocks that have no address: the others keep their contents.
    Holes(u64),
}

impl Source<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Zeros(len) | Source::Holes(len) => *len,
        }
    }

    /// Returns the first bytes, at most `most`.
    fn first(self, most: u64) -> Self {
        match self {
            Source::Bytes(bytes) => Source::Bytes(&bytes[..bytes.len().min(most as usize)]),
            Source::Zeros(len) => Source::Zeros(len.min(most)),
            Source::Holes(len) => Source::Holes(len.min(most)),
        }
    }
}

/// One write: its bytes, its offset, and its options.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) who: &'a Credentials,
    pub(crate) offset: u64,
    pub(crate) source: Source<'a>,
    /// True if the write goes to the end of the file, wherever that is.
    pub(crate) append: bool,
    /// True if the size does not grow, nor the file get blocks behind its end.
    pub(crate) keep_size: bool,
}

impl<F: Format> Files<F> {
    pub(crate) fn new(pressure: Pressure<F>) -> Files<F> {
        Files { pressure }
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize> {
        let _gate = self.enter()?;
        let inode = self.file_inode(ino)?;
        let done = {
            let _shared = inode.lock.read();
            self.read_locked(&inode, offset, into)?
        };
        self.accessed(&inode);
        self.tally.reads.fetch_add(1, Ordering::Relaxed);
        self.tally.read_bytes.fetch_add(done as u64, Ordering::Relaxed);
        self.reclaim();
        Ok(done)
    }

    /// Renews the access time as the policy says. Lazy: the format is told with the next write-back.
    pub(crate) fn accessed(&self, inode: &Shared<F>) {
        let policy = self.atime.get();
        if policy == AtimePolicy::Never || self.check_writable().is_err() {
            return;
        }
        let now = self.timestamp();
        let due = {
            let state = inode.state.lock();
            let attr = &state.attr;
            let stale = attr.atime <= attr.mtime
                || attr.atime <= attr.ctime
                || now.secs.saturating_sub(attr.atime.secs) >= ATIME_SECS_MAX;
            let wanted = policy == AtimePolicy::Strict || stale;
            wanted && attr.flags & NO_ATIME == 0 && !state.freed && attr.atime != now
        };
        if due {
            self.unput(inode, Unput::Times, |attr| attr.atime = now);
        }
    }

    pub(crate) fn write(&self, who: &Credentials, ino: Ino, offset: u64, data: &[u8], append: bool) -> Result<u64> {
        let _gate = self.enter_changing()?;
        let inode = self.file_inode(ino)?;
        self.tally.writes.fetch_add(1, Ordering::Relaxed);
        let chunk = self.chunk_bytes();
        let mut first = None;
        let mut done = 0;
        while done < data.len() || first.is_none() {
            let bytes = &data[done..data.len().min(done + chunk)];
            let offset = first
                .map_or(Ok(offset), |start: u64| start.checked_add(done as u64).ok_or(Error::Posix(libc::EFBIG)))?;
            let write = Write {
                who,
                offset,
                source: Source::Bytes(bytes),
                append: append && first.is_none(),
                keep_size: false,
            };
            let at = self.write_chunk(&inode, &write)?;
            first.get_or_insert(at);
            done += bytes.len();
        }
        self.tally.write_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(first.unwrap_or(offset))
    }

    /// Writes `data`, or the largest part of it for which there is space, and which a file can have.
    pub(crate) fn write_what_fits(&self, who: &Credentials, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let largest = self.format.file_bytes_max(&self.file_inode(ino)?.node);
        let below_largest = usize::try_from(largest.saturating_sub(offset)).unwrap_or(usize::MAX);
        // Of a write that begins there nothing fits: it fails.
        let end = if below_largest == 0 { data.len() } else { data.len().min(below_largest) };
        let mut done = 0;
        loop {
            // One chunk at a time: if a later chunk failed, the caller would not be told of those before it.
            let part = &data[done..end.min(done + self.chunk_bytes())];
            match self.write_part(who, ino, offset + done as u64, part) {
                Ok(len) if len == part.len() && done + len < end => done += len,
                Ok(len) => return Ok(done + len),
                // The next call meets the error.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes one chunk, or the largest part of it for which there is space.
    fn write_part(&self, who: &Credentials, ino: Ino, offset: u64, part: &[u8]) -> Result<usize> {
        let mut len = part.len();
        loop {
            match self.write(who, ino, offset, &part[..len], false) {
                Ok(_) => return Ok(len),
                Err(error) if error.errno() == libc::ENOSPC && !error.is_host_full() => {
                    len = self.fitting(who, offset, len).ok_or(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a length below `len` to which a write at `offset` may fit: up to the end of a block; `None` if there is
    /// none.
    fn fitting(&self, who: &Credentials, offset: u64, len: usize) -> Option<usize> {
        let space = self.format.space();
        let kept = if who.space_class() == SpaceClass::Root { 0 } else { space.root_blocks };
        let free = space.free_blocks.saturating_sub(kept).saturating_mul(self.block_bytes());
        let end = offset.saturating_add(free.min(len as u64 / 2));
        let end = (end - end % self.block_bytes()).max(offset.next_multiple_of(self.block_bytes()));
        let fitting = end.checked_sub(offset).filter(|fitting| (1..len as u64).contains(fitting))?;
        Some(fitting as usize)
    }

    /// Writes one chunk: room and space first, with level 0 only; then the lock; again if more
    /// blocks turn out to be new than were admitted.
    pub(crate) fn write_chunk(&self, inode: &Shared<F>, write: &Write<'_>) -> Result<u64> {
        let len = write.source.len();
        let end = if write.append { Some(len) } else { write.offset.checked_add(len) };
        if end.is_none_or(|end| end > self.format.file_bytes_max(&inode.node)) {
            return Err(Error::Posix(libc::EFBIG));
        }
        let mut more = SpaceRequest::default();
        loop {
            self.make_room(len as usize)?;
            let admission = if len == 0 { self.admit_nothing() } else { self.admit_write(inode, write, more)? };
            let locked = inode.lock.write();
            match self.write_locked(inode, write, admission)? {
                Written::At(offset) => {
                    drop(locked);
                    self.reclaim();
                    return Ok(offset);
                }
                Written::Needs(need) => more = need,
                Written::Inline => {
                    drop(locked);
                    self.leave_inode(inode)?;
                }
            }
        }
    }

    /// Reserves the space that a write may need, as far as the cache knows: an upper bound, unless other callers change
    /// the file meanwhile. Close to full it is counted exactly.
    fn admit_write(&self, inode: &Shared<F>, write: &Write<'_>, least: SpaceRequest) -> Result<Admitted<'_, F>> {
        let class = write.who.space_class();
        let offset = if write.append { inode.size() } else { write.offset };
        let range = self.blocks_of(offset, write.source.len());
        self.note_shape(inode);
        let mut need = {
            let pages = inode.pages.lock();
            need_of(&pages.unplaced, range, pages.maybe_new(range))
        };
        if blocks_in(need) < blocks_in(least) {
            need = least;
        }
        if blocks_in(need) == 0 {
            return Ok(self.admit_nothing());
        }
        if let Some(admitted) = self.admit_at_once(need, class)? {
            return Ok(admitted);
        }
        let addressed = self.addressed(inode, range, inode.size())?;
        let missing = self.missing_maps(inode, range, &addressed)?;
        let exact = self.exact_need(&inode.pages.lock(), range, &addressed, &missing);
        if blocks_in(exact) == 0 { Ok(self.admit_nothing()) } else { self.admit(exact, class) }
    }

    /// Asks the format for the shape of the file's map, before the first of its blocks waits for a place.
    pub(crate) fn note_shape(&self, inode: &Shared<F>) {
        if inode.pages.lock().unplaced.blocks() == 0 {
            let shape = self.format.map_shape(&inode.node);
            inode.pages.lock().unplaced.set_shape(shape);
        }
    }

    /// Returns which map blocks above the blocks of `range` that have no address are missing. Those that lead to dirty
    /// blocks are left out: they are promised.
    fn missing_maps(&self, inode: &Shared<F>, range: LbnRange, addressed: &[bool]) -> Result<SmallVec<[Missing; 4]>> {
        if !addressed.contains(&false) {
            return Ok(SmallVec::new());
        }
        let parts = {
            let pages = inode.pages.lock();
            let mut parts = pages.unplaced.parts(range);
            parts.retain(|part| !pages.unplaced.has_map(part.start));
            parts
        };
        let mut missing = SmallVec::new();
        for part in parts {
            let first = (part.start - range.start) as usize;
            if addressed[first..first + part.len as usize].contains(&false) {
                let levels = self.format.missing_maps(&inode.node, part.start)?;
                missing.push(Missing { at: part.start, levels });
            }
        }
        Ok(missing)
    }

    /// Returns the space that the blocks of `range` without an address need beyond what was admitted for the file's
    /// dirty pages.
    fn exact_need(&self, pages: &Pages, range: LbnRange, addressed: &[bool], missing: &[Missing]) -> SpaceRequest {
        let data_blocks = self.count_fresh(pages, range, addressed);
        let map_blocks = pages.unplaced.more_maps(missing.iter().map(|known| known.at), missing);
        SpaceRequest {
            data_blocks,
            map_blocks: if data_blocks == 0 { 0 } else { map_blocks },
            ..SpaceRequest::default()
        }
    }

    /// Returns for each block of `range`, in a file of `size` bytes, whether it has an address. Write-back may give it
    /// one at any time; [`Pages::placements`] changes then.
    pub(crate) fn addressed(&self, inode: &Shared<F>, range: LbnRange, size: u64) -> Result<SmallVec<[bool; 16]>> {
        let mut addressed: SmallVec<[bool; 16]> = SmallVec::from_elem(false, range.len as usize);
        let mut unknown: SmallVec<[LbnRange; 4]> = SmallVec::new();
        let blocks = self.mapped_end(inode, size);
        {
            let pages = inode.pages.lock();
            let mut next = range.start.0;
            let mut note_unknown = |from: u64, to: u64| {
                let to = to.min(blocks);
                if from < to {
                    unknown.push(LbnRange { start: Lbn(from), len: (to - from) as u32 });
                }
            };
            for (at, slot) in pages.slots(range).filter(|(_, slot)| !slot.is_filling()) {
                addressed[(at - range.start) as usize] = slot.addressed;
                note_unknown(next, at.0);
                next = at.0 + 1;
            }
            note_unknown(next, range.end().0);
        }
        for part in unknown {
            let mut at = part.start;
            while at < part.end() {
                let left = (part.end() - at) as u32;
                let mapping = self.format.map(&inode.node, at, left)?;
                let len = mapping.len().clamp(1, left);
                let from = (at - range.start) as usize;
                addressed[from..from + len as usize].fill(!matches!(mapping, Mapping::Hole { .. }));
                at = at + u64::from(len);
            }
        }
        Ok(addressed)
    }

    /// Returns the first block of a file of `size` bytes behind which none has an address.
    pub(crate) fn mapped_end(&self, inode: &Shared<F>, size: u64) -> u64 {
        if self.format.can_preallocate(&inode.node) { u64::MAX } else { size.div_ceil(self.block_bytes()) }
    }

    /// Fails with EPERM if the file's flags forbid to change it at `offset`.
    pub(crate) fn check_may_write(&self, attr: &Attr, offset: u64, append: bool) -> Result<()> {
        let rewrites = attr.flags & APPEND_ONLY != 0 && !append && offset != attr.size;
        if attr.flags & IMMUTABLE != 0 || rewrites {
            return Err(Error::Posix(libc::EPERM));
        }
        Ok(())
    }

    /// Writes to a file whose inode lock is held exclusively, as far as `admission` suffices.
    fn write_locked(&self, inode: &Shared<F>, write: &Write<'_>, mut admission: Admitted<'_, F>) -> Result<Written> {
        let mut write = *write;
        inode.check_alive()?;
        let attr = inode.attr();
        let offset = if write.append { attr.size } else { write.offset };
        if write.keep_size {
            // The file may have been cut since the caller looked.
            let most = attr.size.next_multiple_of(self.block_bytes()).saturating_sub(offset);
            write.source = write.source.first(most);
        }
        let len = write.source.len();
        // Filling holes leaves what an append-only file reads as.
        self.check_may_write(&attr, offset, write.append || matches!(write.source, Source::Holes(_)))?;
        let end = offset.checked_add(len).filter(|end| *end <= self.format.file_bytes_max(&inode.node));
        let end = end.ok_or(Error::Posix(libc::EFBIG))?;
        if len == 0 {
            return Ok(Written::At(offset));
        }
        let range = self.blocks_of(offset, len);
        let is_within_first = range.end() == Lbn(1) && !matches!(write.source, Source::Holes(_));
        if !is_within_first && self.format.is_inline(&inode.node) {
            return Ok(Written::Inline);
        }
        if end > attr.size && !write.keep_size {
            self.unmap_overhang(inode)?;
            match write.source {
                // A block with an address is not written to: after a power cut the device may have old bytes in
                // the last one.
                Source::Holes(_) => self.zero_tail(inode, attr.size, u64::MAX)?,
                _ if offset > attr.size => self.zero_tail(inode, attr.size, offset)?,
                _ => {}
            }
        }
        self.finish_fills_of(inode, range);
        let (mut pages, addressed, missing, bases, fresh) = loop {
            let placements = inode.pages.lock().placements();
            let addressed = self.addressed(inode, range, attr.size)?;
            let missing = self.missing_maps(inode, range, &addressed)?;
            let bases = self.read_edges(inode, &write, offset, attr.size, range)?;
            let pages = inode.pages.lock();
            if pages.placements() != placements {
                continue;
            }
            let fresh = self.count_fresh(&pages, range, &addressed);
            let need = self.exact_need(&pages, range, &addressed, &missing);
            if blocks_in(need) > admission.blocks() {
                return Ok(Written::Needs(need));
            }
            break (pages, addressed, missing, bases, fresh);
        };
        let promised = pages.unplaced.promise();
        let mut delta = Delta::default();
        for (i, &is_addressed) in addressed.iter().enumerate() {
            let at = range.start + i as u64;
            if matches!(write.source, Source::Holes(_))
                && (is_addressed || pages.get(at).is_some_and(|s| s.is_unsettled()))
            {
                continue;
            }
            let d = self.write_block(&mut pages, at, offset, end, write.source, is_addressed, attr.size, &bases);
            delta.cached += d.cached;
            delta.dirty += d.dirty;
        }
        pages.unplaced.note_missing(&missing);
        // The additional promise of this file stays with it, and the rest goes back.
        let more = pages.unplaced.promise().saturating_sub(promised);
        debug_assert!(more <= admission.blocks(), "{more} blocks were not admitted");
        pages.admission.absorb(admission.split(more));
        pages.give_back_surplus();
        self.note_written(inode, &pages, &write, end);
        drop(pages);
        self.cache.account(delta);
        if self.shape.allocate_on_write && fresh > 0 {
            self.allocate_on_write(inode, range)?;
        }
        Ok(Written::At(offset))
    }

    /// Lets the format allocate addresses at `write()` for the dirty blocks of `range` that have none. Meanwhile no
    /// write-back is planned, so none of them gets another.
    fn allocate_on_write(&self, inode: &Shared<F>, range: LbnRange) -> Result<()> {
        let _planning = self.planning.lock();
        let parts = inode.pages.lock().unallocated(range);
        for part in parts {
            let mut at = part.start;
            while at < part.end() {
                let rest = LbnRange { start: at, len: (part.end() - at) as u32 };
                let len = self.format.allocate_on_write(&inode.node, rest)?;
                if len == 0 {
                    return Ok(());
                }
                inode.pages.lock().note_allocated(LbnRange { len, ..rest });
                at = at + u64::from(len);
            }
        }
        Ok(())
    }

    fn count_fresh(&self, pages: &Pages, range: LbnRange, addressed: &[bool]) -> u64 {
        let without = addressed.iter().filter(|addressed| !**addressed).count();
        let admitted_before =
            |(at, slot): &(Lbn, &Slot)| slot.is_unsettled() && !addressed[(*at - range.start) as usize];
        (without - pages.slots(range).filter(admitted_before).count()) as u64
    }

    /// Returns the pages of the first and last block of a write, if they keep bytes that are not written over.
    fn read_edges(
        &self,
        inode: &Shared<F>,
        write: &Write<'_>,
        offset: u64,
        size: u64,
        range: LbnRange,
    ) -> Result<SmallVec<[(Lbn, Page); 2]>> {
        let mut bases = SmallVec::new();
        if matches!(write.source, Source::Holes(_)) {
            return Ok(bases);
        }
        let end = offset + write.source.len();
        let block_bytes = self.block_bytes();
        let last = Lbn(range.end().0 - 1);
        for at in [range.start, last] {
            let start = at.0 * block_bytes;
            let kept_end = size.min(start + block_bytes);
            let keeps = start < kept_end && (offset > start || end < kept_end);
            if !keeps || bases.iter().any(|(there, _)| *there == at) {
                continue;
            }
            let page = self.pages(inode, LbnRange { start: at, len: 1 }, None)?.remove(0);
            bases.push((at, page));
        }
        Ok(bases)
    }

    #[expect(clippy::too_many_arguments, reason = "one step of write_locked, named for reading")]
    fn write_block(
        &self,
        pages: &mut Pages,
        at: Lbn,
        offset: u64,
        end: u64,
        source: Source<'_>,
        addressed: bool,
        size: u64,
        bases: &[(Lbn, Page)],
    ) -> Delta {
        let block_bytes = self.block_bytes();
        let block_start = at.0 * block_bytes;
        let from = offset.max(block_start);
        let to = end.min(block_start + block_bytes);
        let start = (from - block_start) as usize;
        let zeros = &self.zero_page[..(to - from) as usize];
        let (start, bytes) = match source {
            Source::Bytes(bytes) => (start, &bytes[(from - offset) as usize..(to - offset) as usize]),
            Source::Zeros(_) => (start, zeros),
            Source::Holes(_) => (0, &self.zero_page[..]),
        };
        let seen = if addressed { size.saturating_sub(block_start).min(block_bytes) as u32 } else { 0 };
        let mut delta = Delta::default();
        // The page that was read for this may have been evicted again: put it back first.
        let base = bases.iter().find(|(there, _)| *there == at);
        if let Some((_, base)) = base.filter(|_| pages.get(at).is_none()) {
            let whole = Piece { block_bytes: block_bytes as usize, start: 0, bytes: base };
            delta = pages.write(at, whole, addressed, seen);
        }
        let d = pages.write(at, Piece { block_bytes: block_bytes as usize, start, bytes }, addressed, seen);
        Delta { cached: delta.cached + d.cached, dirty: delta.dirty + d.dirty }
    }

    /// Updates size, times, mode and lists after bytes were written. Called with the pages still locked, so
    /// a write-back that freezes them sees the new size.
    fn note_written(&self, inode: &Shared<F>, pages: &Pages, write: &Write<'_>, end: u64) {
        let now = self.timestamp();
        let mut state = inode.state.lock();
        let attr = &mut state.attr;
        if !write.keep_size {
            attr.size = attr.size.max(end);
        }
        (attr.mtime, attr.ctime) = (now, now);
        if write.who.loses_set_ids() {
            attr.perm = without_set_ids(write.who, attr.perm, attr.gid);
        }
        state.note_change(Unput::Attributes);
        state.known_sectors = KnownSectors::None;
        self.list_unput(&mut state, inode);
        let blocks = state.attr.size.div_ceil(self.block_bytes());
        let mut lists = self.dirty.lock();
        if pages.is_settled() {
            return;
        }
        lists.note_dirty(inode, state.home, blocks, self.rt.now());
        let ready_bytes = pages.ready().len() * self.block_bytes();
        if ready_bytes >= STREAM_BYTES as u64 && lists.note_stream(inode.ino) {
            self.rt.signal(&self.syncer_wake.event);
        }
    }

    /// Writes zeros behind the end of a file of `size` bytes, before it grows beyond its last block; also on the
    /// volume (another driver may have left anything there).
    pub(crate) fn zero_tail(&self, inode: &Shared<F>, size: u64, new_end: u64) -> Result<()> {
        let block_bytes = self.block_bytes();
        let at = Lbn(size / block_bytes);
        if size.is_multiple_of(block_bytes) || new_end / block_bytes == at.0 {
            return Ok(());
        }
        self.zero_part(inode, at, (size % block_bytes) as usize, block_bytes as usize)
    }

    /// Zeroes `from..to` of a block that has contents; a hole stays one.
    pub(crate) fn zero_part(&self, inode: &Shared<F>, at: Lbn, from: usize, to: usize) -> Result<()> {
        let range = LbnRange { start: at, len: 1 };
        self.finish_fills_of(inode, range);
        let size = inode.size();
        let block_bytes = self.shape.block_size as usize;
        let seen = size.saturating_sub(at.0 * self.block_bytes()).min(self.block_bytes()) as u32;
        let (mut pages, addressed, base) = loop {
            let placements = inode.pages.lock().placements();
            let addressed = self.addressed(inode, range, size)?[0];
            let base = self.pages(inode, range, None)?.remove(0);
            let pages = inode.pages.lock();
            if pages.placements() == placements {
                break (pages, addressed, base);
            }
        };
        if !addressed && !pages.get(at).is_some_and(|slot| slot.is_unsettled()) {
            return Ok(());
        }
        let mut delta = Delta::default();
        if pages.get(at).is_none() {
            delta = pages.write(at, Piece { block_bytes, start: 0, bytes: &base }, addressed, seen);
        }
        let zeros = Piece { block_bytes, start: from, bytes: &self.zero_page[from..to] };
        let d = pages.write(at, zeros, addressed, seen);
        self.list_dirty(inode, &pages);
        drop(pages);
        self.cache.account(Delta { cached: delta.cached + d.cached, dirty: delta.dirty + d.dirty });
        Ok(())
    }
}

/// The result of an attempt to write.
enum Written {
    At(u64),
    /// More blocks are new than were admitted: the space request to try again with.
    Needs(SpaceRequest),
    /// The contents of the file have to leave its inode first.
    Inline,
}

fn blocks_in(need: SpaceRequest) -> u64 {
    need.data_blocks + need.map_blocks
}

/// Returns the most space that `fresh` blocks of `range` need.
pub(crate) fn need_of(unplaced: &Unplaced, range: LbnRange, fresh: u64) -> SpaceRequest {
    if fresh == 0 {
        return SpaceRequest::default();
    }
    let map_blocks = unplaced.more_maps(unplaced.parts(range).iter().map(|part| part.start), &[]);
    SpaceRequest { data_blocks: fresh, map_blocks, ..SpaceRequest::default() }
}
