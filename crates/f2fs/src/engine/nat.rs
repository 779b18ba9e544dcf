//! The node address table in memory: the addresses of nodes.
//!
//! An entry is searched in this order: changes since the last snapshot, the checkpoint being
//! written, the journal, the table's blocks. Blocks are read when one of their entries is asked
//! for, and are given up when memory is short. A node id that was freed is not given out before the
//! checkpoint that frees it is durable: recovery would take a new file's nodes for the old one's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_vfs::{Error, Result};

use super::convert::copy_of;
use crate::format::checkpoint::{NAT_JOURNAL_MAX, VersionBitmap};
use crate::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, BlkAddr, Nid};

/// Blocks of the table that one read brings.
const READ_BLOCKS: u32 = 16;

struct State {
    /// For each block, the copy (first or second) that is the current one.
    versions: VersionBitmap,
    /// Blocks of the table as the last snapshot left them.
    blocks: BTreeMap<u32, Buf>,
    /// Those of them that the checkpoint being written brings to the disk: they cannot be read there yet.
    unwritten: BTreeSet<u32>,
    /// Entries that are newer than the table's blocks, as the last snapshot left them.
    journal: BTreeMap<Nid, NatEntry>,
    /// Entries changed since the last snapshot.
    changed: BTreeMap<Nid, NatEntry>,
    /// Ids known to be free, and not given out.
    free: BTreeSet<Nid>,
    /// The block of the table at which the search for more free ids goes on.
    cursor: u32,
    /// Blocks of the table that were searched since the last id was found there.
    fruitless: u32,
    /// Counts snapshots that changed blocks: what was being read meanwhile may be older than what such a
    /// block says now.
    rewrites: u64,
    /// Ids freed since the last snapshot, and those of the checkpoint being written.
    freed: Vec<Nid>,
    leaving: Vec<Nid>,
}

/// The node address table.
pub(super) struct Nat {
    disk: SharedDisk,
    geo: Geometry,
    /// All ids are below it.
    pub(super) end: Nid,
    reserved: BTreeSet<Nid>,
    state: Mutex<State>,
}

/// The parts of the table that a checkpoint writes.
pub(super) struct Leaving {
    /// Entries that stay in the checkpoint's journal.
    pub(super) journal: Vec<(Nid, NatEntry)>,
    /// Whole new blocks, with the address of their other copy.
    pub(super) blocks: Vec<(BlkAddr, Buf)>,
    pub(super) versions: VersionBitmap,
    pub(super) next_free: Nid,
}

impl Nat {
    pub(super) fn new(
        disk: SharedDisk,
        geo: &Geometry,
        versions: VersionBitmap,
        journal: Vec<(Nid, NatEntry)>,
        next_free: Nid,
        reserved: impl IntoIterator<Item = Nid>,
    ) -> Nat {
        let state = State {
            versions,
            blocks: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            journal: journal.into_iter().collect(),
            changed: BTreeMap::new(),
            free: BTreeSet::new(),
            cursor: block_of(next_free).min(geo.nat_blocks().saturating_sub(1)),
            fruitless: 0,
            rewrites: 0,
            freed: Vec::new(),
            leaving: Vec::new(),
        };
        let reserved = reserved.into_iter().chain((0..=3).map(Nid)).collect();
        Nat { disk, geo: geo.clone(), end: Nid(geo.nid_max()), reserved, state: Mutex::new(state) }
    }

    /// Returns an id's entry. An id beyond the table is free.
    pub(super) fn get(&self, nid: Nid) -> Result<NatEntry> {
        if nid >= self.end {
            return Ok(NatEntry::default());
        }
        loop {
            if let Some(entry) = self.state.lock().newest(nid) {
                return Ok(entry);
            }
            // The block may be given up, or be outdated, before it is looked at.
            self.read(self.blocks_around(block_of(nid)))?;
        }
    }

    /// Returns an id's entry if that takes no request.
    pub(super) fn known(&self, nid: Nid) -> Option<NatEntry> {
        self.state.lock().newest(nid).filter(|_| nid < self.end)
    }

    /// Returns the number of snapshots so far that changed blocks of the table.
    pub(super) fn rewrites(&self) -> u64 {
        self.state.lock().rewrites
    }

    /// Returns true if an id has had this entry all the time since there were so many [`rewrites`](Self::rewrites). Its
    /// block may have been given up meanwhile: what changes until the next of them stays in memory.
    pub(super) fn is_still(&self, nid: Nid, entry: NatEntry, rewrites: u64) -> bool {
        let state = self.state.lock();
        state.newest(nid).map_or(state.rewrites == rewrites, |now| now == entry)
    }

    /// Changes an id's entry in memory; the next checkpoint writes it.
    pub(super) fn set(&self, nid: Nid, entry: NatEntry) {
        self.state.lock().changed.insert(nid, entry);
    }

    /// Takes an id that is not in use, for a node of `ino`, or for an inode of its own. Its entry
    /// says so from now on: another search for free ids must not find it again.
    pub(super) fn take(&self, ino: Option<Nid>) -> Result<Option<Nid>> {
        loop {
            let wanted = {
                let mut state = self.state.lock();
                let first = state.free.first().copied();
                if let Some((nid, entry)) = first.and_then(|nid| Some((nid, state.newest(nid)?))) {
                    debug_assert!(entry.addr == BlkAddr::NULL, "node id {nid} is in use and was handed out");
                    state.free.remove(&nid);
                    state.changed.insert(nid, NatEntry { ino: ino.unwrap_or(nid), addr: BlkAddr::NEW, ..entry });
                    return Ok(Some(nid));
                }
                match first {
                    Some(nid) => block_of(nid)..block_of(nid) + 1,
                    None => match state.next_to_search(self.geo.nat_blocks()) {
                        Some(blocks) => blocks,
                        None => return Ok(None),
                    },
                }
            };
            self.read(wanted.clone())?;
            self.collect_free(wanted);
        }
    }

    /// Returns how many ids there are, used ones included, and those left out that wait for a checkpoint.
    pub(super) fn usable(&self) -> u64 {
        let state = self.state.lock();
        let waiting = state.freed.len() + state.leaving.len();
        u64::from(self.end.0.saturating_sub(Nid::ROOT.0)).saturating_sub(waiting as u64)
    }

    /// Marks an id as used by an inode or node that recovery found.
    pub(super) fn claim(&self, nid: Nid) {
        let mut state = self.state.lock();
        state.free.remove(&nid);
        state.freed.retain(|freed| *freed != nid);
    }

    /// Frees an id: its entry says so from now on; it is given out again after the next checkpoint.
    pub(super) fn free(&self, nid: Nid) -> Result<()> {
        let version = self.get(nid)?.version.wrapping_add(1);
        let mut state = self.state.lock();
        state.changed.insert(nid, NatEntry { version, ino: Nid::NONE, addr: BlkAddr::NULL });
        state.freed.push(nid);
        Ok(())
    }

    fn collect_free(&self, blocks: Range<u32>) {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        for block in blocks {
            let first = block * NAT_PER_BLOCK as u32;
            for nid in (first..first + NAT_PER_BLOCK as u32).map(Nid) {
                let used = self.reserved.contains(&nid) || nid >= self.end;
                if !used && state.newest(nid).is_some_and(|entry| entry.addr == BlkAddr::NULL) {
                    found.push(nid);
                }
            }
        }
        let quarantined: BTreeSet<Nid> = state.freed.iter().chain(&state.leaving).copied().collect();
        found.retain(|nid| !quarantined.contains(nid));
        if !found.is_empty() {
            state.fruitless = 0;
        }
        state.free.extend(found);
    }

    /// Returns the inodes that have their entries in a block of the table.
    pub(super) fn inodes_of_block(&self, block: u32) -> Result<Vec<Nid>> {
        let end = (block.saturating_add(READ_BLOCKS) / READ_BLOCKS * READ_BLOCKS).min(self.geo.nat_blocks());
        self.read(block..end)?;
        let first = block * NAT_PER_BLOCK as u32;
        let mut inodes = Vec::new();
        for nid in (first..first + NAT_PER_BLOCK as u32).map(Nid).filter(|nid| *nid >= Nid::ROOT) {
            let entry = self.get(nid)?;
            if entry.ino == nid && entry.addr != BlkAddr::NULL {
                inodes.push(nid);
            }
        }
        Ok(inodes)
    }

    /// Returns the blocks of the table that one request can bring with this one.
    fn blocks_around(&self, block: u32) -> Range<u32> {
        let state = self.state.lock();
        let place = |block: u32| self.geo.nat_at(block, state.versions.get(block as usize)).0;
        let first = block / READ_BLOCKS * READ_BLOCKS;
        let end = (first + READ_BLOCKS).min(self.geo.nat_blocks());
        let start = (first..block).rev().take_while(|before| place(*before) + 1 == place(*before + 1)).last();
        let follows = (block + 1..end).take_while(|next| place(*next - 1) + 1 == place(*next)).last();
        start.unwrap_or(block)..follows.unwrap_or(block) + 1
    }

    /// Reads the blocks that are not in memory, contiguous ones in one request.
    fn read(&self, blocks: Range<u32>) -> Result<()> {
        let (missing, rewrites): (Vec<(u32, BlkAddr)>, u64) = {
            let state = self.state.lock();
            let absent = blocks.filter(|block| !state.blocks.contains_key(block));
            let places = absent.map(|block| (block, self.geo.nat_at(block, state.versions.get(block as usize))));
            (places.collect(), state.rewrites)
        };
        let contiguous = |a: &(u32, BlkAddr), b: &(u32, BlkAddr)| a.0 + 1 == b.0 && a.1.0 + 1 == b.1.0;
        for run in missing.chunk_by(contiguous) {
            let (first, at) = run[0];
            let tag = Tag::new(Kind::Segments, 0, Cause::Demand);
            let read = self.disk.read(Lba::from_byte(u64::from(at.0) * BLOCK as u64), run.len() * BLOCK, tag);
            let what = || format!("reading block {first} of the node address table (block {at})");
            let bytes = read.map_err(|source| Error::disk(what(), source))?;
            let mut state = self.state.lock();
            // A checkpoint may have changed it meanwhile; two of them have it at the same place again.
            if state.rewrites != rewrites {
                continue;
            }
            for (no, chunk) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                state.blocks.entry(no).or_insert_with(|| copy_of(chunk));
            }
        }
        Ok(())
    }

    /// Reads the blocks that [`Nat::snapshot`] will need, so that it need not.
    pub(super) fn prepare(&self) -> Result<()> {
        let blocks = self.state.lock().blocks_to_change();
        blocks.into_iter().flatten().try_for_each(|block| self.read(block..block + 1))
    }

    /// Takes the changes for the next checkpoint: few stay in its journal, many go to the blocks'
    /// other copies.
    pub(super) fn snapshot(&self) -> Result<Leaving> {
        loop {
            self.prepare()?;
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let mut blocks = Vec::new();
            if let Some(touched) = state.blocks_to_change() {
                if !touched.iter().all(|block| state.blocks.contains_key(block)) {
                    continue;
                }
                for (nid, entry) in state.journal.iter().chain(&state.changed) {
                    let block = state.blocks.get_mut(&block_of(*nid)).expect("all are there");
                    nat::set_entry(block, index_of(*nid), *entry);
                }
                for block in &touched {
                    state.versions.flip(*block as usize);
                    let at = self.geo.nat_at(*block, state.versions.get(*block as usize));
                    blocks.push((at, copy_of(&state.blocks[block])));
                }
                state.rewrites += 1;
                state.unwritten = touched.into_iter().collect();
                state.journal.clear();
                state.changed.clear();
            } else {
                state.journal.append(&mut state.changed);
            }
            state.leaving = std::mem::take(&mut state.freed);
            let journal = state.journal.iter().map(|(nid, entry)| (*nid, *entry)).collect();
            let next_free = state.free.first().copied().unwrap_or(Nid(state.cursor * NAT_PER_BLOCK as u32));
            return Ok(Leaving { journal, blocks, versions: state.versions.clone(), next_free });
        }
    }

    /// Makes ids that the checkpoint freed available: it is durable now.
    pub(super) fn committed(&self) {
        let mut state = self.state.lock();
        let freed = std::mem::take(&mut state.leaving);
        state.free.extend(freed);
        state.unwritten.clear();
    }

    pub(super) fn memory(&self) -> usize {
        let state = self.state.lock();
        state.blocks.len() * BLOCK + (state.changed.len() + state.journal.len() + state.free.len()) * 32
    }

    /// Returns the bytes of the table's blocks in memory.
    pub(super) fn cached(&self) -> usize {
        self.state.lock().blocks.len() * BLOCK
    }

    /// Gives up all cached blocks, except those that are not on the disk yet.
    pub(super) fn shrink(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.blocks.retain(|block, _| state.unwritten.contains(block));
    }
}

impl State {
    /// Returns the blocks of the table, of `blocks` in all, in which free ids are looked for next.
    /// `None` if there is none in the whole table.
    fn next_to_search(&mut self, blocks: u32) -> Option<Range<u32>> {
        if self.fruitless >= blocks {
            self.fruitless = 0;
            return None;
        }
        let start = self.cursor;
        let end = blocks.min((start - start % READ_BLOCKS) + READ_BLOCKS);
        self.cursor = if end == blocks { 0 } else { end };
        self.fruitless += end - start;
        Some(start..end)
    }

    /// Returns the blocks that all changes go to, ascending; none if the journal holds them.
    fn blocks_to_change(&self) -> Option<Vec<u32>> {
        let older = self.journal.keys().filter(|nid| !self.changed.contains_key(nid)).count();
        if older + self.changed.len() <= NAT_JOURNAL_MAX {
            return None;
        }
        let mut blocks: Vec<u32> = self.journal.keys().chain(self.changed.keys()).copied().map(block_of).collect();
        blocks.sort_unstable();
        blocks.dedup();
        Some(blocks)
    }

    /// Returns the newest entry, if it is in memory.
    fn newest(&self, nid: Nid) -> Option<NatEntry> {
        let recent = self.changed.get(&nid).or_else(|| self.journal.get(&nid));
        recent.copied().or_else(|| self.blocks.get(&block_of(nid)).map(|block| nat::entry(block, index_of(nid))))
    }
}

fn block_of(nid: Nid) -> u32 {
    nid.0 / NAT_PER_BLOCK as u32
}

fn index_of(nid: Nid) -> usize {
    nid.0 as usize % NAT_PER_BLOCK
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::MemDisk;
    use moafs_runtime::Timestamp;

    use super::*;
    use crate::engine::mount::read_pack;
    use crate::engine::superblocks::read_superblock;
    use crate::mkfs::{MkfsOptions, mkfs};

    fn table() -> Nat {
        let disk: SharedDisk = Arc::new(MemDisk::new(128 << 11));
        mkfs(&*disk, &MkfsOptions::new([1; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
        let geo = read_superblock(&disk).unwrap().geometry();
        let pack = read_pack(&disk, &geo).unwrap().pack;
        let next_free = Nid(pack.checkpoint.next_free_nid);
        Nat::new(disk, &geo, pack.checkpoint.nat_bitmap, pack.nat_journal, next_free, [])
    }

    #[test]
    fn an_id_that_was_handed_out_is_not_found_again_by_a_search() {
        let nat = table();
        let first = nat.take(None).unwrap().unwrap();
        let entry = nat.get(first).unwrap();
        assert_eq!((entry.ino, entry.addr), (first, BlkAddr::NEW));
        nat.collect_free(0..nat.geo.nat_blocks());
        let second = nat.take(Some(first)).unwrap().unwrap();
        assert_ne!(second, first);
        assert_eq!(nat.get(second).unwrap().ino, first);
    }

    #[test]
    fn an_id_that_recovery_claims_is_not_handed_out_when_its_removal_is_durable() {
        let nat = table();
        let nid = nat.take(None).unwrap().unwrap();
        nat.free(nid).unwrap();
        nat.claim(nid);
        nat.set(nid, NatEntry { ino: nid, addr: BlkAddr::NEW, ..nat.get(nid).unwrap() });
        nat.snapshot().unwrap();
        nat.committed();
        for _ in 0..1000 {
            assert_ne!(nat.take(None).unwrap().unwrap(), nid);
        }
    }

    #[test]
    fn an_entry_is_known_to_be_unchanged_though_its_block_was_given_up() {
        let nat = table();
        let (nid, other) = (nat.take(None).unwrap().unwrap(), Nid::ROOT);
        let (rewrites, entry, root) = (nat.rewrites(), nat.get(nid).unwrap(), nat.get(other).unwrap());
        nat.shrink();
        assert!(nat.is_still(nid, entry, rewrites) && nat.is_still(other, root, rewrites));
        nat.set(nid, NatEntry { addr: BlkAddr(9), ..entry });
        assert!(!nat.is_still(nid, entry, rewrites));
        // More entries than a checkpoint's journal has room for: they go to the table.
        for _ in 0..100 {
            assert!(nat.take(None).unwrap().is_some());
        }
        nat.snapshot().unwrap();
        nat.committed();
        nat.shrink();
        assert!(
            !nat.is_still(nid, entry, rewrites) && !nat.is_still(other, root, rewrites),
            "there may be a newer one"
        );
    }
}
