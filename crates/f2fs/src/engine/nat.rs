//! Where nodes lie: the node address table in memory.
//!
//! An entry is looked for where it changed last: since the last snapshot, in the checkpoint being written, in the journal,
//! in the table's blocks. Blocks are read when somebody asks for one of their entries, and are given up under pressure.
//! A node id that was freed is not given out before the checkpoint that frees it is durable: recovery would take a new
//! file's nodes for the old one's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_runtime::leaf::Mutex;
use moafs_vfs::{Error, Result};

use super::copy_of;
use crate::format::checkpoint::{NAT_JOURNAL_MAX, VersionBitmap};
use crate::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, BlkAddr, Nid};

/// Blocks of the table that one read brings when free ids are looked for.
const SCAN_BLOCKS: u32 = 16;

struct State {
    /// Which copy of each block is the current one.
    versions: VersionBitmap,
    /// Blocks of the table as the last snapshot left them.
    blocks: BTreeMap<u32, Buf>,
    /// Those of them that the checkpoint being written brings to the disk: they cannot be read there yet.
    unwritten: BTreeSet<u32>,
    /// Entries that are newer than the table's blocks, as the last snapshot left them.
    journal: BTreeMap<Nid, NatEntry>,
    /// Entries changed since.
    changed: BTreeMap<Nid, NatEntry>,
    /// Ids known to be free.
    free: BTreeSet<Nid>,
    /// Where the search for more goes on: a block of the table.
    cursor: u32,
    /// Blocks of the table that were searched since the last id was found there.
    fruitless: u32,
    /// Ids freed since the last snapshot, and those of the checkpoint being written.
    freed: Vec<Nid>,
    leaving: Vec<Nid>,
}

/// The node address table.
pub(super) struct Nat {
    disk: SharedDisk,
    geo: Geometry,
    reserved: BTreeSet<Nid>,
    state: Mutex<State>,
}

/// What a checkpoint writes of the table.
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
            freed: Vec::new(),
            leaving: Vec::new(),
        };
        let reserved = reserved.into_iter().chain((0..=3).map(Nid)).collect();
        Nat { disk, geo: geo.clone(), reserved, state: Mutex::new(state) }
    }

    /// An id's entry. One beyond the table is free.
    pub(super) fn get(&self, nid: Nid) -> Result<NatEntry> {
        if nid.0 >= self.geo.nid_max() {
            return Ok(NatEntry::default());
        }
        if let Some(entry) = self.state.lock().newest(nid) {
            return Ok(entry);
        }
        self.read(block_of(nid)..block_of(nid) + 1)?;
        let mut state = self.state.lock();
        if let Some(entry) = state.newest(nid) {
            return Ok(entry);
        }
        drop(state);
        // Given up between the two: rare, so once more is enough to hold it.
        self.read(block_of(nid)..block_of(nid) + 1)?;
        state = self.state.lock();
        Ok(state.newest(nid).unwrap_or_default())
    }

    /// Changes an entry.
    pub(super) fn set(&self, nid: Nid, entry: NatEntry) {
        self.state.lock().changed.insert(nid, entry);
    }

    /// An id nobody uses. Its entry must be set before the next snapshot.
    pub(super) fn take(&self) -> Result<Option<Nid>> {
        loop {
            let wanted = {
                let mut state = self.state.lock();
                if let Some(nid) = state.free.pop_first() {
                    return Ok(Some(nid));
                }
                let blocks = self.geo.nat_blocks();
                if state.fruitless >= blocks {
                    state.fruitless = 0;
                    return Ok(None);
                }
                let start = state.cursor;
                let end = blocks.min((start - start % SCAN_BLOCKS) + SCAN_BLOCKS);
                state.cursor = if end == blocks { 0 } else { end };
                state.fruitless += end - start;
                start..end
            };
            self.read(wanted.clone())?;
            self.collect_free(wanted);
        }
    }

    /// An id is used by what recovery found.
    pub(super) fn claim(&self, nid: Nid) {
        self.state.lock().free.remove(&nid);
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
                let used = self.reserved.contains(&nid) || nid.0 >= self.geo.nid_max();
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

    /// The inodes that have their entries in a block of the table.
    pub(super) fn inodes_of_block(&self, block: u32) -> Result<Vec<Nid>> {
        let end = (block.saturating_add(SCAN_BLOCKS) / SCAN_BLOCKS * SCAN_BLOCKS).min(self.geo.nat_blocks());
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

    /// Brings the blocks that are not there, contiguous ones in one request.
    fn read(&self, blocks: Range<u32>) -> Result<()> {
        let missing: Vec<(u32, BlkAddr)> = {
            let state = self.state.lock();
            let absent = blocks.filter(|block| !state.blocks.contains_key(block));
            absent.map(|block| (block, self.geo.nat_at(block, state.versions.get(block as usize)))).collect()
        };
        let contiguous = |a: &(u32, BlkAddr), b: &(u32, BlkAddr)| a.0 + 1 == b.0 && a.1.0 + 1 == b.1.0;
        for run in missing.chunk_by(contiguous) {
            let (first, at) = run[0];
            let tag = Tag::new(Kind::Segments, 0, Cause::Demand);
            let read = self.disk.read(Lba::from_byte(u64::from(at.0) * BLOCK as u64), run.len() * BLOCK, tag);
            let what = || format!("reading block {first} of the node address table (block {at})");
            let bytes = read.map_err(|source| Error::disk(what(), source))?;
            let mut state = self.state.lock();
            for (no, chunk) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                let block = copy_of(chunk);
                // A checkpoint may have changed it meanwhile.
                if self.geo.nat_at(no, state.versions.get(no as usize)).0 == at.0 + (no - first) {
                    state.blocks.entry(no).or_insert(block);
                }
            }
        }
        Ok(())
    }

    /// Reads what [`Nat::snapshot`] will need, so that it need not.
    pub(super) fn prepare(&self) -> Result<()> {
        let blocks = self.state.lock().blocks_to_change();
        blocks.into_iter().flatten().try_for_each(|block| self.read(block..block + 1))
    }

    /// What the next checkpoint writes: few changes stay in its journal, many go to the blocks' other copies.
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

    /// The checkpoint is durable: what it freed may be given out.
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

    /// Gives up cached blocks.
    pub(super) fn shrink(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.blocks.retain(|block, _| state.unwritten.contains(block));
    }
}

impl State {
    /// The blocks that all changes go to, ascending; none if the journal holds them.
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

    /// The newest entry, if it is in memory.
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
