//! The allocator: which blocks and inodes are free, and handing them out.
//!
//! The bitmap in memory shows what may be handed out, and is also what the disk may show: a bit is
//! set when a block or an inode is handed out, and cleared only once no pointer on the disk leads
//! to it any more ([`Meta::free_after`]). So nothing is reused too early, and a bit that is set on
//! the disk without need is a leak at worst.
//!
//! Bitmaps are read when a group is first used, never all at mount. After an unclean shutdown the
//! counts in the descriptors are not believed until the group's bitmap was counted.
//!
//! The policies ([`crate::place`]) choose blocks in copies of the bitmaps ([`free_map`]); this module hands out
//! what was chosen, if it is still free. The blocks of swap areas are marked in a second bitmap over the first, in
//! memory only ([`swaparea`]).

pub mod free_map;
pub mod swaparea;
mod taken;

use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::{Buf, Kind};
use moafs_runtime::leaf::Mutex;
use moafs_vfs::format::Reservations;
use moafs_vfs::types::{BlockAddr, BlockRun};
use moafs_vfs::{Error, Result};

use crate::block_set::BlockSet;
use crate::format::fixed::joined;
pub(crate) use crate::format::fixed::{fixed_ranges, make_block_bitmap};
use crate::format::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, InodeNo, Place, Sealed, Structure, bitmap};
use crate::health::damaged;
use crate::meta::{Block, Freed, Level, Meta, Sweeper, Use};
pub use free_map::{Fit, FreeMap};
use taken::{Contended, Taken};

/// Pause before looking again at the blocks that other ops are freeing.
pub const FREEING_PAUSE: Duration = Duration::from_millis(1);

/// The share of a group (one part in so many), right behind its inode table, that is left to
/// directories and first indirect blocks while files find room elsewhere: these are written and
/// read together.
const ZONE_SHARE: u32 = 32;

/// The free blocks and inodes of a group, and its directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Free blocks that may be handed out.
    pub free_blocks: u32,
    /// Free inodes that may be handed out.
    pub free_inodes: u32,
    /// Directories. May wrap below zero while wrong counts that a crash left are corrected.
    pub directories: u32,
    /// Empty new directories: those made here since the volume was mounted, less one for each file
    /// made in the group.
    pub empty_new_directories: u32,
}

/// An inode number that was handed out.
pub struct NewInode {
    /// The number of the inode, counted from 1.
    pub ino: InodeNo,
    /// The level at which its bit in the bitmap is on disk.
    pub level: Level,
    /// The table block, if all other inodes of it were free and it was not in memory: its old
    /// contents do not matter. As long as this is held the block stays in memory, so what other
    /// inodes of the block store meanwhile is stored in it.
    pub table: Option<Arc<Block>>,
}

struct Group {
    /// The descriptor as it was read; positions never change.
    descriptor: Descriptor,
    /// Bits of the blocks for metadata without a fixed place.
    zone: Range<u32>,
    state: Mutex<GroupState>,
}

struct GroupState {
    counts: Counts,
    /// True once the bitmap was counted (or if the volume was cleanly unmounted).
    blocks_counted: bool,
    inodes_counted: bool,
    /// The descriptor as the disk has it, or will have it with the transaction that is being closed.
    stored: Descriptor,
    /// The parts of the group that the stored descriptor does not agree with.
    stale: Stale,
    /// The bit at which the search for new files' blocks goes on: neighbours in time become
    /// neighbours on the disk.
    rotor: u32,
    /// Blocks of swap areas: free on the disk, but not handed out.
    taken: Taken,
    /// With a journal: blocks that the bitmap shows as free and that may not be handed out. They were handed out to
    /// data that are not placed yet, or freed by a transaction that is not durable yet.
    reserved: Taken,
}

/// The parts of a group that have changed since its descriptor was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stale {
    counts: bool,
    /// The block bitmap, with the counts.
    blocks: bool,
    /// The inode bitmap, with the counts.
    inodes: bool,
}

impl Stale {
    const NONE: Stale = Stale { counts: false, blocks: false, inodes: false };
    const COUNTS: Stale = Stale { counts: true, ..Stale::NONE };
    const BLOCKS: Stale = Stale { counts: true, blocks: true, inodes: false };
    const INODES: Stale = Stale { counts: true, blocks: false, inodes: true };
}

impl GroupState {
    /// Calls `look` with the group's bitmap in which the blocks that may not be handed out are set.
    fn over<R>(&self, block: &Block, look: impl FnOnce(&[u8]) -> R) -> R {
        if self.reserved.count() == 0 {
            return self.taken.over(block, look);
        }
        let map = self.reserved.over(block, <[u8]>::to_vec);
        self.taken.over_map(map, look)
    }
}

/// Blocks and inodes promised by admissions.
#[derive(Debug, Default)]
struct Promises {
    blocks: u64,
    inodes: u64,
}

/// The promises of a volume, to which admissions return.
#[derive(Debug, Default)]
pub struct Promised(Mutex<Promises>);

impl Promised {
    fn blocks(&self) -> u64 {
        self.0.lock().blocks
    }
}

impl Reservations for Promised {
    fn release(&self, blocks: u64, inodes: u64) {
        let mut promised = self.0.lock();
        debug_assert!(blocks <= promised.blocks && inodes <= promised.inodes, "more comes back than was promised");
        promised.blocks = promised.blocks.saturating_sub(blocks);
        promised.inodes = promised.inodes.saturating_sub(inodes);
    }
}

/// Blocks and inodes that were handed out or freed: a bitmap of each per group.
#[derive(Debug, Default)]
struct Changed {
    blocks: BTreeMap<GroupNo, Vec<u8>>,
    inodes: BTreeMap<GroupNo, Vec<u8>>,
}

/// The blocks of all groups that no file has. Under one lock, so that none is missing from both numbers while it goes
/// from one to the other.
#[derive(Debug, Clone, Copy, Default)]
struct BlockTotals {
    /// Blocks that may be handed out.
    free: u64,
    /// Blocks that were freed, but may not be reused yet.
    freeing: u64,
}

/// The allocator of one volume.
pub struct Alloc {
    geo: Geometry,
    meta: Arc<Meta>,
    groups: Vec<Group>,
    /// Fixed metadata (copies of the superblock, bitmaps, inode tables), ascending, merged.
    fixed: Vec<Range<u64>>,
    /// The blocks of the journal and of the orphan file, in the same way.
    own_files: Vec<Range<u64>>,
    /// Number of blocks outside of `fixed`.
    data_blocks: u64,
    blocks: Mutex<BlockTotals>,
    free_inodes: AtomicU64,
    directories: AtomicU64,
    empty_new_directories: AtomicU64,
    freeing_inodes: AtomicU64,
    promised: Arc<Promised>,
    /// Blocks that were handed out to data on their way to the device, and that no file maps yet. They are not free
    /// any more, and what a program was promised when it wrote the data is not spent before a file maps them: without
    /// this set `statfs(2)` would show them as used twice.
    in_flight: Mutex<BlockSet>,
    contended: Contended,
    /// The blocks and inodes that were handed out or freed since the mount; kept only while
    /// recovery looks for leaks.
    changed: Mutex<Option<Changed>>,
    /// The groups whose stored descriptors are stale.
    stale_groups: Mutex<BTreeSet<GroupNo>>,
}

impl Alloc {
    /// Makes an allocator over checked descriptors. `trusted`: the counts in them were written by a
    /// clean unmount. `own_files`: the blocks of the journal and of the orphan file.
    pub fn new(
        geo: Geometry,
        meta: Arc<Meta>,
        descriptors: Vec<Descriptor>,
        own_files: Vec<Range<u64>>,
        trusted: bool,
    ) -> Alloc {
        let fixed = fixed_ranges(&geo, &descriptors);
        let groups: Vec<Group> = descriptors
            .into_iter()
            .zip(geo.all_groups())
            .map(|(descriptor, group)| {
                let counts = Counts {
                    free_blocks: descriptor.free_blocks,
                    free_inodes: descriptor.free_inodes,
                    directories: descriptor.used_dirs,
                    empty_new_directories: 0,
                };
                let zone = zone_of(&geo, group, &descriptor);
                let state = GroupState {
                    counts,
                    blocks_counted: trusted,
                    inodes_counted: trusted,
                    stored: descriptor,
                    stale: Stale::NONE,
                    rotor: zone.end,
                    taken: Taken::default(),
                    reserved: Taken::default(),
                };
                Group { descriptor, zone, state: Mutex::new(state) }
            })
            .collect();
        let sum = |of: fn(&Counts) -> u32| groups.iter().map(|g| u64::from(of(&g.state.lock().counts))).sum();
        let fixed_blocks: u64 = fixed.iter().map(|range| range.end - range.start).sum();
        Alloc {
            data_blocks: (geo.blocks - geo.first_data_block).saturating_sub(fixed_blocks),
            blocks: Mutex::new(BlockTotals { free: sum(|c| c.free_blocks), freeing: 0 }),
            free_inodes: AtomicU64::new(sum(|c| c.free_inodes)),
            directories: AtomicU64::new(sum(|c| c.directories)),
            empty_new_directories: AtomicU64::new(0),
            geo,
            meta,
            groups,
            fixed,
            own_files: joined(own_files),
            freeing_inodes: AtomicU64::new(0),
            promised: Arc::default(),
            in_flight: Mutex::default(),
            contended: Contended::default(),
            changed: Mutex::new((!trusted).then(Changed::default)),
            stale_groups: Mutex::default(),
        }
    }

    /// Notes that parts of a group differ from its stored descriptor.
    fn note_stale(&self, group: GroupNo, state: &mut GroupState, what: Stale) {
        if state.stale == Stale::NONE {
            self.stale_groups.lock().insert(group);
        }
        let Stale { counts, blocks, inodes } = state.stale;
        state.stale =
            Stale { counts: counts | what.counts, blocks: blocks | what.blocks, inodes: inodes | what.inodes };
    }

    /// Notes that blocks of a group were handed out or freed, while recovery looks for leaks.
    fn note_change(&self, group: GroupNo, bits: Range<u32>) {
        if let Some(changed) = &mut *self.changed.lock() {
            let map = changed.blocks.entry(group).or_insert_with(|| vec![0; self.geo.block_bytes()]);
            bitmap::set_range(map, bits);
        }
    }

    /// Notes that an inode of a group was handed out or freed, while recovery looks for leaks.
    fn note_inode_change(&self, group: GroupNo, index: u32) {
        if let Some(changed) = &mut *self.changed.lock() {
            let map = changed.inodes.entry(group).or_insert_with(|| vec![0; self.geo.block_bytes()]);
            bitmap::set(map, index);
        }
    }

    /// Returns a bitmap of the blocks of a group that are in use and were when the volume was mounted.
    pub fn unchanged_in_use(&self, group: GroupNo) -> Result<Vec<u8>> {
        // The bitmap first: each block is noted before its bit is set.
        let map = self.block_bitmap(group)?.view(<[u8]>::to_vec);
        let changed = self.changed.lock();
        Ok(without(map, changed.as_ref().and_then(|changed| changed.blocks.get(&group))))
    }

    /// Returns a bitmap of the inodes of a group that are in use, were when the volume was mounted,
    /// and are not being freed.
    pub fn unchanged_inodes(&self, group: GroupNo) -> Result<Vec<u8>> {
        let map = self.inode_bitmap(group)?.view(<[u8]>::to_vec);
        let changed = self.changed.lock();
        Ok(without(map, changed.as_ref().and_then(|changed| changed.inodes.get(&group))))
    }

    /// Starts anew with noting blocks and inodes that are handed out or freed. None may be waiting
    /// to be freed.
    pub fn watch_again(&self) {
        debug_assert!(!self.is_freeing(), "what is being freed would be taken for a leak");
        *self.changed.lock() = Some(Changed::default());
    }

    /// Ends noting: all leaks have been found.
    pub fn stop_watching(&self) {
        *self.changed.lock() = None;
    }

    /// Corrects a group's number of directories, which was not `stored` but `counted` when the volume was mounted.
    pub fn correct_directories(&self, group: GroupNo, stored: u32, counted: u32) {
        if stored != counted {
            let mut state = self.groups[group.0 as usize].state.lock();
            state.counts.directories = state.counts.directories.wrapping_add(counted).wrapping_sub(stored);
            self.note_stale(group, &mut state, Stale::COUNTS);
        }
    }

    /// Returns a group's counts; the blocks of swap areas do not count as free.
    pub fn counts(&self, group: GroupNo) -> Counts {
        let state = self.groups[group.0 as usize].state.lock();
        let free_blocks = state.counts.free_blocks.saturating_sub(state.taken.count());
        Counts { free_blocks, ..state.counts }
    }

    /// Returns how many blocks a directory takes with all its files, on average; `None` while no
    /// directory has files.
    pub fn blocks_per_directory(&self) -> Option<u64> {
        let used = self.data_blocks.saturating_sub(self.free_blocks());
        let directories = self.directories.load(Ordering::Relaxed);
        used.checked_div(directories.saturating_sub(self.empty_new_directories.load(Ordering::Relaxed)))
    }

    /// Counts one empty new directory more, or one fewer, in the group.
    fn note_expectant(&self, counts: &mut Counts, more: bool) {
        if more {
            counts.empty_new_directories += 1;
            self.empty_new_directories.fetch_add(1, Ordering::Relaxed);
        } else if counts.empty_new_directories > 0 {
            counts.empty_new_directories -= 1;
            self.empty_new_directories.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns a group's descriptor as it was read.
    pub fn descriptor(&self, group: GroupNo) -> &Descriptor {
        &self.groups[group.0 as usize].descriptor
    }

    /// Returns true if any of the blocks is metadata at a fixed place, the journal's, the orphan file's, or outside
    /// the volume: no file may own them.
    pub fn is_fixed(&self, start: u64, len: u64) -> bool {
        self.is_fixed_metadata(start, len) || meets(&self.own_files, start, start.saturating_add(len))
    }

    /// Returns true if any of the blocks is metadata at a fixed place, or outside the volume: not even the journal and
    /// the orphan file may own them.
    pub fn is_fixed_metadata(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        start <= self.geo.first_data_block || end > self.geo.blocks || meets(&self.fixed, start, end)
    }

    // -- space

    /// Returns the number of free blocks, with those that are being freed and without those that
    /// are promised.
    pub fn available_blocks(&self) -> u64 {
        // Data on their way are promised as well, or leave as many blocks elsewhere.
        let in_flight = self.in_flight.lock().len();
        let BlockTotals { free, freeing } = *self.blocks.lock();
        (free + freeing + in_flight).saturating_sub(self.promised.blocks())
    }

    /// Notes that a run that was handed out is for data on their way to the device.
    pub fn note_in_flight(&self, run: BlockRun) {
        self.in_flight.lock().add(run.start.0..run.end().0);
    }

    /// Notes that a file maps the blocks of a run, or that no data will be written to them.
    pub fn note_arrived(&self, run: BlockRun) {
        self.in_flight.lock().remove(run.start.0..run.end().0);
    }

    /// Returns the number of free inodes, with those that are being freed.
    pub fn available_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed) + self.freeing_inodes.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that may be handed out now, promised ones among them.
    pub fn free_blocks(&self) -> u64 {
        self.blocks.lock().free
    }

    /// Returns the number of blocks that are free and not promised.
    pub fn spare_blocks(&self) -> u64 {
        self.free_blocks().saturating_sub(self.promised.blocks())
    }

    /// Returns the number of blocks and inodes that a commit would make reusable. They are counted
    /// as free before they are taken off here: a caller that sees none here and is refused
    /// afterwards has seen all there are.
    pub fn freeing(&self) -> u64 {
        self.blocks.lock().freeing + self.freeing_inodes.load(Ordering::SeqCst)
    }

    /// Returns true if a commit would make blocks or inodes reusable.
    pub fn is_freeing(&self) -> bool {
        self.freeing() > 0
    }

    /// Promises `blocks` and `inodes` if this many can be handed out now and `keep` blocks stay free. Data on their way
    /// count twice here: their blocks are not free any more, and what was promised for them is given back when a file
    /// maps them.
    pub fn promise(&self, blocks: u64, inodes: u64, keep: u64) -> Option<Arc<Promised>> {
        // Blocks and inodes are taken before their promise ends: under the lock that ends it, no caller counts fewer
        // promises than there are, beside what is free.
        let mut promised = self.promised.0.lock();
        let (all_blocks, all_inodes) = (promised.blocks.saturating_add(blocks), promised.inodes.saturating_add(inodes));
        let fits_blocks = blocks == 0 || all_blocks.saturating_add(keep) <= self.free_blocks();
        let fits_inodes = inodes == 0 || all_inodes <= self.free_inodes.load(Ordering::SeqCst);
        if !(fits_blocks && fits_inodes) {
            return None;
        }
        (promised.blocks, promised.inodes) = (all_blocks, all_inodes);
        drop(promised);
        Some(Arc::clone(&self.promised))
    }

    // -- blocks

    fn block_bitmap(&self, group: GroupNo) -> Result<Arc<Block>> {
        let here = &self.groups[group.0 as usize];
        let no = here.descriptor.block_bitmap.0;
        // A caller that allocates blocks in a group mostly makes inodes there: the inode bitmap is
        // read with the block bitmap if it is the next block.
        let end = if here.descriptor.inode_bitmap.0 == no + 1 { no + 2 } else { no + 1 };
        let block = self.bitmap_at(here, no..end, |stored| stored.lacks_block_bitmap(&self.geo))?;
        let used = Use::block_bitmap(group);
        let mut state = here.state.lock();
        if state.stored.lacks_block_bitmap(&self.geo) {
            block.supply(used, |map| make_block_bitmap(&self.geo, &self.fixed, group, map));
        } else {
            let covered = self.geo.bitmap_bytes().0;
            let place = Place::new(Structure::BlockBitmap(group), BlockNo(no));
            let sum = state.stored.block_bitmap_csum;
            block.verify(used, |map| check_bitmap(&self.geo, &map[..covered], sum, place))?;
        }
        if !state.blocks_counted {
            let bits = self.geo.group_clusters(group);
            let counted = block.view(|map| bitmap::count_zeros(map, bits));
            let mut totals = self.blocks.lock();
            totals.free = (totals.free + u64::from(counted)).saturating_sub(state.counts.free_blocks.into());
            drop(totals);
            state.counts.free_blocks = counted;
            state.blocks_counted = true;
            self.note_stale(group, &mut state, Stale::COUNTS);
        }
        drop(state);
        Ok(block)
    }

    /// Returns the block of a bitmap. If the group `lacks` it the block is not read, and its bytes are still to be
    /// made.
    fn bitmap_at(&self, here: &Group, near: Range<u64>, lacks: impl Fn(&Descriptor) -> bool) -> Result<Arc<Block>> {
        // Under the group's lock: as soon as a bitmap was made and changed, the disk has it.
        let state = here.state.lock();
        let unread = if lacks(&state.stored) { self.meta.unread(near.start, Kind::Bitmap) } else { None };
        drop(state);
        unread.map_or_else(|| self.meta.get_near(near.start, Kind::Bitmap, near), Ok)
    }

    /// Returns the free blocks of a group as they are now, or `None` if it has none.
    pub fn free_map(&self, group: GroupNo) -> Result<Option<FreeMap>> {
        let here = &self.groups[group.0 as usize];
        {
            let state = here.state.lock();
            if state.counts.free_blocks == 0 && state.blocks_counted {
                return Ok(None);
            }
        }
        let block = self.block_bitmap(group)?;
        let state = here.state.lock();
        let used = state.reserved.over(&block, <[u8]>::to_vec);
        let (range, taken) = (self.geo.group_range(group), &state.taken);
        let free_blocks = state.counts.free_blocks.saturating_sub(taken.count());
        let map = FreeMap::new(range, used, free_blocks, here.zone.end, state.rotor);
        Ok(Some(if taken.count() == 0 { map } else { map.with_swap_areas(taken.map()) }))
    }

    /// Hands out a run of blocks of a group that a plan has chosen, if all of them are still free. Returns the level at
    /// which their bits are on disk: a pointer to them must not reach the disk before.
    pub fn claim(&self, group: GroupNo, run: BlockRun) -> Result<Option<Level>> {
        let first = (run.start.0 - self.geo.group_start(group).0) as u32;
        let bits = first..first + run.len;
        let block = self.block_bitmap(group)?;
        let mut state = self.groups[group.0 as usize].state.lock();
        if !state.over(&block, |map| bitmap::is_clear(map, bits.clone())) {
            return Ok(None);
        }
        self.check_free(group, &block, run)?;
        self.note_change(group, bits.clone());
        let level = if self.meta.has_journal() {
            // The disk shows them as free until there is a pointer to them.
            state.reserved.take(bits, self.geo.block_bytes());
            Level::NONE
        } else {
            self.note_stale(group, &mut state, Stale::BLOCKS);
            self.meta.change_loose(&block, |map| bitmap::set_range(map, bits.clone()))
        };
        state.counts.free_blocks = state.counts.free_blocks.saturating_sub(run.len);
        let mut totals = self.blocks.lock();
        // A damaged descriptor may have counted fewer than its bitmap shows.
        totals.free = totals.free.saturating_sub(run.len.into());
        drop(totals);
        Ok(Some(level))
    }

    /// Goes on with the search for new files' blocks of a group at a block.
    pub fn set_rotor(&self, group: GroupNo, block: u64) {
        self.groups[group.0 as usize].state.lock().rotor = (block - self.geo.group_start(group).0) as u32;
    }

    /// Returns damage if a run that a group's bitmap shows as free is the volume's own metadata.
    fn check_free(&self, group: GroupNo, bitmap: &Block, run: BlockRun) -> Result<()> {
        if !self.is_fixed(run.start.0, run.len.into()) {
            return Ok(());
        }
        let place = Place::new(Structure::BlockBitmap(group), BlockNo(bitmap.no));
        let problem = format!("it shows block {} of the volume's own metadata as free", run.start.0);
        Err(damaged(place.damage(problem)))
    }

    /// Shows blocks that were handed out as used, in the transaction of the op that makes a pointer to them. Does
    /// nothing without a journal: there they are shown from the moment on that they are handed out.
    pub fn record_use(&self, start: u64, len: u32) -> Result<()> {
        if !self.meta.has_journal() {
            return Ok(());
        }
        self.in_groups(start, len, |group, bits| {
            let block = self.block_bitmap(group)?;
            let mut state = self.groups[group.0 as usize].state.lock();
            // Blocks that are overwritten in place are shown as used already.
            if state.reserved.give(bits.clone()) > 0 {
                self.meta.change_loose(&block, |map| bitmap::set_range(map, bits.clone()));
                self.note_stale(group, &mut state, Stale::BLOCKS);
            }
            Ok(())
        })
    }

    /// Calls `each` with the bits of every group that a run of blocks touches.
    fn in_groups(&self, start: u64, len: u32, mut each: impl FnMut(GroupNo, Range<u32>) -> Result<()>) -> Result<()> {
        let end = start + u64::from(len);
        let mut at = start;
        while at < end {
            let Some((group, bit)) = self.geo.bit_of_block(BlockNo(at)) else {
                return Err(damaged(
                    Place::of(Structure::Superblock).damage(format!("block {at} lies outside the volume")),
                ));
            };
            let here = (self.geo.group_range(group).end.min(end) - at) as u32;
            each(group, bit..bit + here)?;
            at += u64::from(here);
        }
        Ok(())
    }

    /// Returns true if blocks, all of one group, may be handed out now.
    pub fn is_free(&self, run: BlockRun) -> Result<bool> {
        let Some((group, bit)) = self.geo.bit_of_block(BlockNo(run.start.0)) else { return Ok(false) };
        if bit.saturating_add(run.len) > self.geo.group_blocks(group) {
            return Ok(false);
        }
        let block = self.block_bitmap(group)?;
        let state = self.groups[group.0 as usize].state.lock();
        Ok(state.over(&block, |map| bitmap::is_clear(map, bit..bit + run.len)))
    }

    /// Returns the block at which the search for new files' blocks of a group goes on.
    pub fn rotor(&self, group: GroupNo) -> u64 {
        let rotor = self.groups[group.0 as usize].state.lock().rotor;
        self.geo.group_start(group).0 + u64::from(rotor)
    }

    /// Returns the blocks in which a group's directories and first indirect blocks are looked for first.
    pub fn zone(&self, group: GroupNo) -> Range<u64> {
        let start = self.geo.group_start(group).0;
        let zone = &self.groups[group.0 as usize].zone;
        start + u64::from(zone.start)..start + u64::from(zone.end)
    }

    /// Returns the free runs of a group, for surveys.
    pub fn free_runs(&self, group: GroupNo) -> Result<Vec<BlockRun>> {
        let block = self.block_bitmap(group)?;
        let start = self.geo.group_start(group).0;
        let (bits, blocks) = (self.geo.group_clusters(group), self.geo.group_blocks(group));
        let run = |r: Range<u32>| {
            let block_of = |bit: u32| (u64::from(bit) * u64::from(self.geo.cluster_blocks)).min(blocks.into());
            let (first, end) = (block_of(r.start), block_of(r.end));
            BlockRun { start: BlockAddr(start + first), len: (end - first) as u32 }
        };
        let state = self.groups[group.0 as usize].state.lock();
        Ok(state.over(&block, |map| bitmap::zero_runs(map, 0, bits).map(run).collect()))
    }

    // -- inodes

    fn inode_bitmap(&self, group: GroupNo) -> Result<Arc<Block>> {
        let here = &self.groups[group.0 as usize];
        // The block bitmap lies right before it, mostly, and will be wanted: both come with one request.
        if here.descriptor.inode_bitmap.0 == here.descriptor.block_bitmap.0 + 1 {
            self.block_bitmap(group)?;
        }
        let no = here.descriptor.inode_bitmap.0;
        let block = self.bitmap_at(here, no..no + 1, |stored| stored.lacks_inode_bitmap(&self.geo))?;
        let used = Use::inode_bitmap(group);
        let mut state = here.state.lock();
        if state.stored.lacks_inode_bitmap(&self.geo) {
            block.supply(used, |map| {
                map.fill(0);
                bitmap::pad(map, self.geo.inodes_per_group);
            });
        } else {
            let covered = self.geo.bitmap_bytes().1;
            let place = Place::new(Structure::InodeBitmap(group), BlockNo(no));
            let sum = state.stored.inode_bitmap_csum;
            block.verify(used, |map| check_bitmap(&self.geo, &map[..covered], sum, place))?;
        }
        if !state.inodes_counted {
            let counted = block.view(|map| bitmap::count_zeros(map, self.geo.inodes_per_group));
            adjust(&self.free_inodes, state.counts.free_inodes, counted);
            state.counts.free_inodes = counted;
            state.inodes_counted = true;
            self.note_stale(group, &mut state, Stale::COUNTS);
        }
        drop(state);
        Ok(block)
    }

    /// Hands out the first free inode of a group, if it has one.
    pub fn inode(&self, group: GroupNo, directory: bool) -> Result<Option<NewInode>> {
        let block = self.inode_bitmap(group)?;
        let mut state = self.groups[group.0 as usize].state.lock();
        let reserved = if group.0 == 0 { self.geo.first_ino - 1 } else { 0 };
        let Some(index) = block.view(|map| bitmap::first_zero(map, reserved, self.geo.inodes_per_group)) else {
            return Ok(None);
        };
        let per_block = self.geo.inodes_per_block();
        let mates = index / per_block * per_block..((index / per_block + 1) * per_block).min(self.geo.inodes_per_group);
        // Under the group's lock: once it is released others may take inodes of the same block,
        // and then the block's contents matter.
        let alone = block.view(|map| bitmap::is_clear(map, mates));
        let hidden = state.stored.inodes_ever_used(&self.geo)..self.geo.inodes_per_group;
        if index >= hidden.start && !block.view(|map| bitmap::is_clear(map, hidden.clone())) {
            let place = Place::new(Structure::Descriptor(group), self.geo.locate_descriptor(group).0);
            let problem = format!("inodes from index {} on are in use, but it says that none ever was", hidden.start);
            return Err(damaged(place.damage(problem)));
        }
        let table = self.table_of_new(&mut state, index, alone);
        self.note_inode_change(group, index);
        let level = self.meta.change_loose(&block, |map| {
            bitmap::set(map, index);
        });
        state.counts.free_inodes = state.counts.free_inodes.saturating_sub(1);
        state.counts.directories = state.counts.directories.wrapping_add(directory.into());
        self.note_expectant(&mut state.counts, directory);
        self.note_stale(group, &mut state, Stale::INODES);
        self.directories.fetch_add(directory.into(), Ordering::Relaxed);
        self.free_inodes.fetch_sub(1, Ordering::SeqCst);
        Ok(Some(NewInode { ino: self.geo.inode_at(group, index), level, table }))
    }

    /// Returns the block of the inode table for a new inode if its old contents do not matter, and has the descriptor
    /// say that the slot is in use. `alone`: no other inode of the block is in use. Never waits.
    fn table_of_new(&self, state: &mut GroupState, index: u32, alone: bool) -> Option<Arc<Block>> {
        let per_block = self.geo.inodes_per_block();
        let no = state.stored.inode_table.0 + u64::from(index / per_block);
        let ever_used = state.stored.inodes_ever_used(&self.geo);
        if index >= ever_used {
            state.stored.itable_unused = self.geo.inodes_per_group - (index + 1);
            state.stored.flags &= !INODE_UNINIT;
            let was_zeroed = state.stored.flags & INODE_ZEROED != 0;
            // The rest of the last block that was in use is zeros: blocks are written whole. One that was never in use
            // may hold anything.
            if alone && index / per_block >= ever_used.div_ceil(per_block) && !was_zeroed {
                return Some(self.meta.fresh(no, Kind::Inodes, Buf::zeroed(self.geo.block_bytes())).0);
            }
        }
        if alone { self.meta.unread(no, Kind::Inodes) } else { None }
    }

    /// Returns the number of inodes at the start of a group's table that may have been used.
    pub fn inodes_ever_used(&self, group: GroupNo) -> u32 {
        self.groups[group.0 as usize].state.lock().stored.inodes_ever_used(&self.geo)
    }

    /// Returns the bytes of memory that the watch for leaks takes.
    pub fn watch_memory(&self) -> usize {
        let changed = self.changed.lock();
        let maps = changed.as_ref().map_or(0, |changed| changed.blocks.len() + changed.inodes.len());
        maps * self.geo.block_bytes()
    }

    /// Returns a copy of a group's inode bitmap as it is now.
    pub fn inodes_in_use(&self, group: GroupNo) -> Result<Vec<u8>> {
        Ok(self.inode_bitmap(group)?.view(<[u8]>::to_vec))
    }

    // -- freeing

    /// Frees blocks or an inode once `needs` is on disk (at once, if it is).
    ///
    /// # Errors
    /// Damage if they are blocks that no file may own: then nothing is freed.
    pub fn free(&self, needs: Level, freed: Freed) -> Result<()> {
        match freed {
            Freed::Data { start, len } => {
                self.check_freed(start, len)?;
                self.note_freeing(start, len);
                self.blocks.lock().freeing += u64::from(len);
            }
            Freed::Meta { block } => {
                self.check_freed(block, 1)?;
                self.note_freeing(block, 1);
                self.blocks.lock().freeing += 1;
            }
            Freed::Inode { ino, .. } => {
                if let Some(at) = self.geo.locate_inode(InodeNo(ino)) {
                    self.note_inode_change(at.group, at.index);
                }
                self.freeing_inodes.fetch_add(1, Ordering::SeqCst);
            }
        }
        if self.meta.has_journal() {
            return self.free_in_transaction(freed);
        }
        if self.meta.free_after(needs, freed) { Ok(()) } else { self.freed(freed) }
    }

    /// Returns damage if blocks that a file gives back can be no file's.
    fn check_freed(&self, start: u64, len: u32) -> Result<()> {
        if !self.is_fixed(start, len.into()) {
            return Ok(());
        }
        let group = self.geo.group_of_block(BlockNo(start)).unwrap_or_default();
        let place = Place::new(Structure::BlockBitmap(group), self.descriptor(group).block_bitmap);
        Err(damaged(
            place.damage(format!("a file is said to have {len} blocks from {start} on, which are the volume's own")),
        ))
    }

    fn free_in_transaction(&self, freed: Freed) -> Result<()> {
        let waits = match freed {
            Freed::Data { start, len } => {
                // A replay would write contents that are in the log over the block's next ones.
                let is_logged = self.meta.forget_data(start..start + u64::from(len));
                self.show_as_free(start, len)? || is_logged
            }
            Freed::Meta { block } => self.show_as_free(block, 1)?,
            // The slot's contents are in the same transaction: the number may be given out again at once.
            Freed::Inode { .. } => false,
        };
        if waits && self.meta.free_after(Level::NONE, freed) { Ok(()) } else { self.freed(freed) }
    }

    fn note_freeing(&self, start: u64, len: u32) {
        for block in start..start + u64::from(len) {
            if let Some((group, bit)) = self.geo.bit_of_block(BlockNo(block)) {
                self.note_change(group, bit..bit + 1);
            }
        }
    }

    /// Makes freed blocks or a freed inode reusable; the caller knows that no pointer on the disk
    /// leads to them.
    pub fn freed(&self, freed: Freed) -> Result<()> {
        match freed {
            Freed::Data { start, len } => self.clear_blocks(start, len),
            Freed::Meta { block } => {
                self.meta.forget(block);
                self.clear_blocks(block, 1)
            }
            Freed::Inode { ino, directory } => self.clear_inode(InodeNo(ino), directory),
        }
    }

    fn clear_blocks(&self, start: u64, len: u32) -> Result<()> {
        let mut left = u64::from(len);
        let cleared = self.in_groups(start, len, |group, bits| {
            let cleared = u64::from(bits.end - bits.start);
            self.clear_in_group(group, bits)?;
            left -= cleared;
            Ok(())
        });
        // After damage the rest never becomes free.
        self.blocks.lock().freeing -= left;
        cleared
    }

    fn clear_in_group(&self, group: GroupNo, bits: Range<u32>) -> Result<()> {
        let block = self.block_bitmap(group)?;
        let mut state = self.groups[group.0 as usize].state.lock();
        let len = bits.end - bits.start;
        if self.meta.has_journal() {
            // The bitmap has shown them as free since the transaction that freed them.
            let released = state.reserved.give(bits.clone());
            if released != len {
                return Err(self.freed_twice(group, &block, bits));
            }
        } else {
            if !block.view(|map| bitmap::is_set(map, bits.clone())) {
                return Err(self.freed_twice(group, &block, bits));
            }
            self.note_change(group, bits.clone());
            self.note_stale(group, &mut state, Stale::BLOCKS);
            self.meta.change_loose(&block, |map| bitmap::clear_range(map, bits.clone()));
        }
        state.counts.free_blocks += len;
        let mut totals = self.blocks.lock();
        totals.free += u64::from(len);
        totals.freeing -= u64::from(len);
        Ok(())
    }

    fn freed_twice(&self, group: GroupNo, block: &Block, bits: Range<u32>) -> Error {
        let place = Place::new(Structure::BlockBitmap(group), BlockNo(block.no));
        let start = self.geo.group_start(group).0;
        let (first, end) = (start + u64::from(bits.start), start + u64::from(bits.end));
        damaged(place.damage(format!("a block in {first}..{end} was freed twice")))
    }

    /// With a journal: shows blocks as free in the transaction of the op that takes the pointers to them away; they may
    /// not be handed out before it is durable. Returns false if none of them was shown as used: they were handed out to
    /// data that were never placed.
    fn show_as_free(&self, start: u64, len: u32) -> Result<bool> {
        let mut shown = 0;
        self.in_groups(start, len, |group, bits| {
            let block = self.block_bitmap(group)?;
            let mut state = self.groups[group.0 as usize].state.lock();
            let used = block.view(|map| bits.clone().filter(|bit| bitmap::test(map, *bit)).count() as u32);
            shown += used;
            match used {
                0 => Ok(()),
                used if used < bits.end - bits.start => Err(self.freed_twice(group, &block, bits)),
                _ => {
                    self.meta.change_loose(&block, |map| bitmap::clear_range(map, bits.clone()));
                    state.reserved.take(bits, self.geo.block_bytes());
                    self.note_stale(group, &mut state, Stale::BLOCKS);
                    Ok(())
                }
            }
        })?;
        Ok(shown > 0)
    }

    fn clear_inode(&self, ino: InodeNo, directory: bool) -> Result<()> {
        let cleared = self.clear_inode_bit(ino, directory);
        self.freeing_inodes.fetch_sub(1, Ordering::SeqCst);
        cleared
    }

    fn clear_inode_bit(&self, ino: InodeNo, directory: bool) -> Result<()> {
        let Some(at) = self.geo.locate_inode(ino) else { return Ok(()) };
        let block = self.inode_bitmap(at.group)?;
        let mut state = self.groups[at.group.0 as usize].state.lock();
        let was_set = Cell::new(false);
        self.meta.change_loose(&block, |map| {
            was_set.set(was_set.get() || bitmap::test(map, at.index));
            bitmap::clear(map, at.index);
        });
        if !was_set.get() {
            let place = Place::new(Structure::InodeBitmap(at.group), BlockNo(block.no));
            return Err(damaged(place.damage(format!("inode {} was freed twice", ino.0))));
        }
        state.counts.free_inodes += 1;
        if directory {
            state.counts.directories = state.counts.directories.wrapping_sub(1);
            self.note_expectant(&mut state.counts, false);
        }
        let fewer = |count: u64| Some(count.saturating_sub(directory.into()));
        let _ = self.directories.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        self.note_stale(at.group, &mut state, Stale::INODES);
        self.free_inodes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    // -- counts

    /// Stores the descriptors of groups that have changed into their blocks (they leave with the next sweep) and
    /// returns the totals `(blocks, inodes)` for the superblock.
    pub fn store_counts(&self) -> Result<(u64, u64)> {
        let mut stale = std::mem::take(&mut *self.stale_groups.lock());
        while let Some(group) = stale.first() {
            if let Err(error) = self.store_descriptor(*group) {
                self.stale_groups.lock().append(&mut stale);
                return Err(error);
            }
            stale.pop_first();
        }
        Ok(self.totals())
    }

    /// Returns the numbers of free blocks and inodes that may be handed out.
    pub fn totals(&self) -> (u64, u64) {
        (self.free_blocks(), self.free_inodes.load(Ordering::Relaxed))
    }

    fn store_descriptor(&self, no: GroupNo) -> Result<()> {
        let (table, offset) = self.geo.locate_descriptor(no);
        let table = self.meta.get(table.0, Kind::Descriptors)?;
        // One step: another task that stores newer counts must not come in between.
        let mut state = self.groups[no.0 as usize].state.lock();
        let stale = std::mem::take(&mut state.stale);
        let mut stored = state.stored;
        stored.free_blocks = state.counts.free_blocks + state.reserved.count();
        stored.free_inodes = state.counts.free_inodes;
        // Below zero only until a crash's wrong number has been corrected.
        stored.used_dirs = (state.counts.directories as i32).max(0) as u32;
        if stale.blocks && self.geo.checksums.allow_lazy_groups() {
            stored.flags &= !BLOCK_UNINIT;
        }
        let (of_blocks, of_inodes) = self.geo.bitmap_bytes();
        if stale.blocks && self.geo.checksums.cover_all() {
            stored.block_bitmap_csum = self.sum_of_changed(stored.block_bitmap, of_blocks);
        }
        if stale.inodes && self.geo.checksums.cover_all() {
            stored.inode_bitmap_csum = self.sum_of_changed(stored.inode_bitmap, of_inodes);
        }
        state.stored = stored;
        let at = offset..offset + self.geo.desc_size as usize;
        let before = table.view(|bytes| bytes[at.clone()].to_vec());
        let mut slot = before.clone();
        stored.encode_into(&mut slot, &self.geo);
        let place = Place::new(Structure::Descriptor(no), BlockNo(table.no));
        let sealed = self.geo.checksums.seal(Sealed::Descriptor(no), &mut slot);
        sealed.map_err(|problem| damaged(place.damage(problem)))?;
        if slot != before {
            self.meta.change_loose(&table, |bytes| bytes[at.clone()].copy_from_slice(&slot));
        }
        Ok(())
    }

    /// Returns the checksum of a bitmap that was changed, and is therefore in memory.
    fn sum_of_changed(&self, no: BlockNo, covered: usize) -> u32 {
        let sum = |map: &[u8]| Descriptor::sum_of_bitmap(&map[..covered], &self.geo);
        let block = self.meta.cached(no.0);
        debug_assert!(block.is_some(), "the bitmap in block {no} was changed and forgotten");
        block.and_then(|block| block.view(sum)).unwrap_or(0)
    }
}

/// Returns true if one of the blocks `start..end` lies in a range. The ranges ascend and lie apart from one another.
fn meets(ranges: &[Range<u64>], start: u64, end: u64) -> bool {
    let after = ranges.partition_point(|range| range.end <= start);
    ranges.get(after).is_some_and(|range| range.start < end)
}

/// Returns a bitmap without the bits of another.
fn without(mut map: Vec<u8>, other: Option<&Vec<u8>>) -> Vec<u8> {
    if let Some(other) = other {
        map.iter_mut().zip(other).for_each(|(map, other)| *map &= !other);
    }
    map
}

fn adjust(total: &AtomicU64, was: u32, is: u32) {
    if is >= was {
        total.fetch_add((is - was).into(), Ordering::Relaxed);
    } else {
        let lower = |total: u64| Some(total.saturating_sub((was - is).into()));
        let _ = total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }
}

/// Returns the bits of the blocks behind a group's inode table (behind its head, if the table is
/// elsewhere) that metadata goes to.
fn zone_of(geo: &Geometry, group: GroupNo, descriptor: &Descriptor) -> Range<u32> {
    let range = geo.group_range(group);
    let table_end = descriptor.inode_table.0 + u64::from(geo.inode_table_blocks);
    let start = if range.contains(&table_end) { table_end } else { range.start + u64::from(geo.head_blocks(group)) };
    let bits = geo.group_blocks(group);
    let start = ((start - range.start) as u32).min(bits);
    start..(start + bits / ZONE_SHARE).min(bits)
}

/// Compares the checksum of a bitmap, which its descriptor holds, with the bytes that it covers.
pub(crate) fn check_bitmap(geo: &Geometry, covered: &[u8], stored: u32, place: Place) -> Result<()> {
    Descriptor::check_bitmap(covered, stored, geo, place).map_err(damaged)
}

/// Returns the error for a volume without enough space (ENOSPC).
pub fn no_space() -> Error {
    Error::Posix(libc::ENOSPC)
}

/// Commits store the counts that changed, and what is freed goes back to the allocator.
impl Sweeper for &Alloc {
    fn before_commit(&mut self) -> Result<()> {
        self.store_counts().map(drop)
    }

    fn freed(&mut self, freed: Vec<Freed>) -> Result<()> {
        freed.into_iter().try_for_each(|freed| Alloc::freed(self, freed))
    }
}
