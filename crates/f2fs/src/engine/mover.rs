//! Carries out cleaning: valid blocks of victims move, and the victims are free after the next
//! checkpoint.
//!
//! Nodes are only marked to be written again. Data are read (neighbours in one request), queued,
//! ordered by the file and offset they belong to or as they were found (`clean-order`), and written
//! in large requests to the logs that the policy of `-o temperature=` names. Each gets its new
//! address in an op, if its file still has the block that was read: contents written meanwhile are
//! newer.

use moafs_runtime::leaf::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Cause, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, Tag};
use moafs_vfs::format::Admission;
use moafs_vfs::types::{BlockRun, FileKind};
use moafs_vfs::{Error, Result};

use super::convert::copy_of;
use super::incore::Incore;
use super::map::Leaf;
use super::space::{Origin, Recorded, Ticket};
use super::volume::F2fs;
use crate::clean::oracle::{self, Deaths, Foresight};
use crate::clean::order::Owner;
use crate::clean::table::{Class, Table};
use crate::clean::{Destination, Secno, Want};
use crate::format::summary::SummaryEntry;
use crate::format::{BLOCK, BlkAddr, Log, Nid, SEGMENT_BLOCKS, Segno, inode, node};
use crate::place::budget::Blocks;
use crate::place::log_choice::{BlockFacts, LogMode, data_log};

/// A valid block of a victim.
struct Valid {
    at: BlkAddr,
    owner: Owner,
    origin: Origin,
    page: Page,
}

impl F2fs {
    /// Cleans once as the policy decides, even if room is not short, and makes the freed sections
    /// usable. Returns the number of sections cleaned: 0 if there is nothing to clean, or no room
    /// to move it to.
    ///
    /// # Errors
    /// Device errors and damage.
    pub fn clean(&self) -> Result<u32> {
        let _one = self.cleaning.lock();
        self.tick();
        let cleaned = self.clean_once()?;
        self.checkpoint(false)?;
        Ok(cleaned)
    }

    /// Returns the number of sections that hold valid and invalid blocks of data, and no log.
    pub fn dirty_sections(&self) -> u64 {
        let table = self.space.table();
        table.sections().filter(|view| view.is_candidate() && view.class == Class::Data).count() as u64
    }

    /// Cleans as the policy decides. Returns the number of sections cleaned. The caller holds the cleaning
    /// lock, and writes a checkpoint afterwards: that frees them.
    pub(super) fn clean_once(&self) -> Result<u32> {
        let files = |section: Secno| self.files_in(section);
        let free = self.space.free_segments();
        let want = Want {
            batch: self.options.clean_batch.max(1),
            room_blocks: u64::from(free.saturating_sub(1 + self.needed_segments())) * SEGMENT_BLOCKS as u64,
            hole_run_blocks: self.hole_run_blocks(),
            device: self.options.device,
            files: (self.options.clean_batch > 1).then_some(&files as _),
        };
        let table = self.table_copy();
        let decision = match &self.options.foresight {
            Some(foresight) => oracle::choose(&table, &Future { fs: self, foresight: &**foresight }, &want),
            None => self.options.cleaner.choose(&table, &want),
        };
        let Some(decision) = decision else { return Ok(0) };
        let victims: Vec<Segno> =
            decision.victims.iter().flat_map(|section| self.geo.section(section.0)).map(Segno).collect();
        let Some(emptying) = self.space.emptying(&victims) else { return Ok(0) };
        self.clean_segments(emptying.segments(), decision.to)?;
        Ok(decision.victims.len() as u32)
    }

    /// Moves everything valid out of these segments, up to the room for it and for the nodes that
    /// it changes. No block of them is handed out meanwhile ([`super::space::MainArea::emptying`]).
    pub(super) fn clean_segments(&self, victims: &[Segno], to: Destination) -> Result<()> {
        let mut queue = Vec::new();
        for segno in victims {
            let (log, blocks) = self.space.valid_blocks(*segno);
            if blocks.is_empty() {
                continue;
            }
            let summary = self.summary(*segno)?;
            match log.is_node() {
                true => self.renew_nodes(*segno, &blocks, &summary)?,
                false => queue.extend(self.read_valid(*segno, &blocks, &summary)?),
            }
        }
        let mode = if to == Destination::Holes { LogMode::Recycle } else { LogMode::AppendReserved };
        for (log, blocks) in self.logs_of(self.set_aside(queue)?) {
            self.space.set_mode([log], mode);
            let moved = self.move_queue(log, blocks);
            self.space.set_mode([log], LogMode::Append);
            moved?;
        }
        Ok(())
    }

    /// Divides blocks that are moved by the logs that they join.
    fn logs_of(&self, queue: Vec<Valid>) -> BTreeMap<Log, Vec<Valid>> {
        let mut separator = self.separator.lock();
        let mut logs: BTreeMap<Log, Vec<Valid>> = BTreeMap::new();
        for valid in queue {
            let facts = BlockFacts { heat: separator.moved(valid.owner), ..BlockFacts::default() };
            logs.entry(data_log(facts)).or_default().push(valid);
        }
        logs
    }

    /// Returns a segment's summary: the copy on disk, with the newer entries that are in memory.
    fn summary(&self, segno: Segno) -> Result<Recorded> {
        match self.space.recorded(segno) {
            Some(recorded) if recorded.complete => Ok(recorded),
            recorded => {
                let disk = self.read_summary(segno)?;
                let mut all = recorded.unwrap_or_else(Recorded::partial);
                all.complete_from(&disk);
                Ok(all)
            }
        }
    }

    /// Looks up the owner of every block in use, for the oracle.
    pub(super) fn learn_owners(&self) -> Result<()> {
        for segno in (0..self.geo.segments).map(Segno) {
            if !self.space.valid_blocks(segno).1.is_empty() {
                self.space.keep_owners(segno, &self.summary(segno)?.summary);
            }
        }
        Ok(())
    }

    fn renew_nodes(&self, segno: Segno, blocks: &[usize], summary: &Recorded) -> Result<()> {
        let _gate = self.gate.read();
        let _watch = self.health.watch_panics("moving blocks");
        for offset in blocks {
            let nid = summary.summary.entries[*offset].nid;
            let at = self.geo.block_of(segno, *offset);
            if self.nat.get(nid)?.addr != at {
                continue;
            }
            if let Some(node) = self.find_node(nid)? {
                let Some(_room) = self.space.ticket(Blocks::new(1, 0), Blocks::default()) else { break };
                self.touch_node(&node);
                self.tally.moved_nodes.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.changed();
        Ok(())
    }

    /// Reads the valid data blocks of a segment of which the owner is known.
    fn read_valid(&self, segno: Segno, blocks: &[usize], summary: &Recorded) -> Result<Vec<Valid>> {
        let mut found = Vec::new();
        let origin = self.space.origin_of_moved(segno);
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let at = self.geo.block_of(segno, run[0]);
            let tag = Tag::new(Kind::Data, 0, Cause::Move);
            let read = self.disk.read(Lba(u64::from(at.0) * (BLOCK / SECTOR) as u64), run.len() * BLOCK, tag);
            let what = || format!("reading block {at} of segment {segno} to clean it");
            let bytes = self.health.watch(read.map_err(|source| Error::disk(what(), source)))?;
            for (offset, chunk) in run.iter().zip(bytes.chunks_exact(BLOCK)) {
                let at = self.geo.block_of(segno, *offset);
                let Some(owner) = self.owner_of(at, summary.summary.entries[*offset])? else { continue };
                let page = copy_of(chunk);
                found.push(Valid { at, owner, origin, page: page.freeze() });
            }
        }
        Ok(found)
    }

    /// Returns the owner of a block, as the summaries say, if a file's node points to it.
    pub(super) fn owner_at(&self, at: BlkAddr) -> Result<Option<Owner>> {
        let Some((segno, offset)) = self.geo.segment_of(at) else { return Ok(None) };
        let entry = self.summary(segno)?.summary.entries[offset];
        self.owner_of(at, entry)
    }

    /// Returns the owner of a block, if a file's node still points to it.
    fn owner_of(&self, at: BlkAddr, entry: SummaryEntry) -> Result<Option<Owner>> {
        if self.nat.get(entry.nid)?.version != entry.version {
            return Ok(None);
        }
        let Some(node) = self.find_node(entry.nid)? else { return Ok(None) };
        let file = match self.incore(node.ino) {
            Err(Error::Stale(_)) => return Ok(None),
            file => file?,
        };
        let layout = self.layout(&file);
        let slot = usize::from(entry.offset);
        let (first, found) = if node.nid == node.ino {
            let inside = entry.offset < layout.addresses() as u16;
            (Some(0), if inside { node.view(|bytes| layout.addr(bytes, slot)) } else { BlkAddr::NULL })
        } else {
            let inside = slot < node::ADDRS_PER_NODE;
            let first = node::first_lbn(node.offset, layout.addresses());
            (first, if inside { node.view(|bytes| node::addr(bytes, slot)) } else { BlkAddr::NULL })
        };
        Ok(first.filter(|_| found == at).map(|first| Owner { ino: node.ino, lbn: first + u64::from(entry.offset) }))
    }

    /// Writes the queue to a log, in the order of the policy.
    fn move_queue(&self, log: Log, mut queue: Vec<Valid>) -> Result<()> {
        let owners: Vec<Owner> = queue.iter().map(|valid| valid.owner).collect();
        let order = self.options.clean_order.of(&owners);
        let mut slots: Vec<Option<Valid>> = queue.drain(..).map(Some).collect();
        let mut ordered: Vec<Valid> = order.iter().filter_map(|at| slots[*at as usize].take()).collect();
        while !ordered.is_empty() {
            let transfer = (self.options.transfer_bytes_max / BLOCK).max(1);
            // Each block may have a node of its own, which changes.
            let Some(room) = self.ticket_for_nodes(ordered.len().min(transfer) as u64) else { break };
            // There is never a checkpoint here: the caller writes one, and blocks that find no room
            // stay where they are.
            let Some(run) = self.space.take_data(log, room.nodes() as u32) else { break };
            let rest = ordered.split_off(run.len as usize);
            self.move_run(&ordered, run)?;
            ordered = rest;
        }
        Ok(())
    }

    /// Reserves room for so many nodes, or for as many as there is room for.
    fn ticket_for_nodes(&self, wanted: u64) -> Option<Ticket> {
        let nodes = wanted.min(self.space.budget().spare(Class::Node));
        [nodes, nodes / 2, 1]
            .into_iter()
            .filter(|nodes| *nodes > 0)
            .find_map(|nodes| self.space.ticket(Blocks::new(nodes, 0), Blocks::default()))
    }

    /// Marks blocks of directories and symbolic links dirty, so that the checkpoint writes them;
    /// returns the other blocks.
    fn set_aside(&self, queue: Vec<Valid>) -> Result<Vec<Valid>> {
        let mut left = Vec::with_capacity(queue.len());
        for valid in queue {
            let file = match self.incore(valid.owner.ino) {
                Err(Error::Stale(_)) => continue,
                file => file?,
            };
            if file.kind == FileKind::Regular {
                left.push(valid);
                continue;
            }
            let _gate = self.gate.read();
            let _watch = self.health.watch_panics("moving blocks");
            self.renew_owned(&file, &valid)?;
        }
        Ok(left)
    }

    /// Marks a block of a directory or symbolic link dirty, if the file still has it. The map is locked: cleaning holds
    /// no lock of vfs, so the block could be unmapped while it is read, and be dirty without a place.
    fn renew_owned(&self, file: &Incore, valid: &Valid) -> Result<()> {
        let _map = file.map.lock();
        if self.leaf_of(file, valid)?.is_none() {
            return Ok(());
        }
        let Some(block) = self.owned_block(file, valid.owner.lbn)? else { return Ok(()) };
        let Some(_room) = self.space.ticket(Blocks::new(1, 1), Blocks::default()) else { return Ok(()) };
        self.change_owned(&block, |_| ());
        self.changed();
        Ok(())
    }

    fn move_run(&self, blocks: &[Valid], run: BlockRun) -> Result<()> {
        let data = blocks.iter().map(|valid| valid.page.clone()).collect();
        let at = Lba(run.start.0 * (BLOCK / SECTOR) as u64);
        let request = Request { op: Op::Write { data, fua: false }, at, tag: Tag::new(Kind::Data, 0, Cause::Move) };
        let done = self.disk.run(vec![request]).remove(0);
        if let Err(source) = done.result {
            self.space.end_flight(run);
            let error = Error::disk(format!("writing moved blocks to block {}", run.start.0), source);
            // Without room on the host the blocks stay where they are.
            return self.health.watch(Err(error));
        }
        let _gate = self.gate.read();
        let _watch = self.health.watch_panics("moving blocks");
        self.space.end_flight(run);
        let mut files: BTreeMap<Nid, Arc<Incore>> = BTreeMap::new();
        for (valid, to) in blocks.iter().zip(run.start.0 as u32..) {
            let file = match files.get(&valid.owner.ino) {
                Some(file) => Arc::clone(file),
                None => match self.incore(valid.owner.ino) {
                    Err(Error::Stale(_)) => continue,
                    file => {
                        let file = file?;
                        files.insert(valid.owner.ino, Arc::clone(&file));
                        file
                    }
                },
            };
            self.repoint(&file, valid, BlkAddr(to))?;
        }
        self.changed();
        Ok(())
    }

    /// Points a file at a moved block, if it still has the block that was read.
    fn repoint(&self, file: &Incore, valid: &Valid, to: BlkAddr) -> Result<()> {
        let _map = file.map.lock();
        if let Some(leaf) = self.leaf_of(file, valid)? {
            self.point_at(file, &leaf, valid.owner.lbn, to, valid.origin, &mut Admission::none())?;
            self.tally.moved_blocks.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the leaf that points to a block, if the file still has the block that was read. The caller holds the
    /// file's `map` lock.
    fn leaf_of(&self, file: &Incore, valid: &Valid) -> Result<Option<Leaf>> {
        if self.is_inline(file, inode::Inline::DATA | inode::Inline::DENTRY) {
            return Ok(None);
        }
        let leaf = self.existing_leaf(file, valid.owner.lbn)?;
        Ok(leaf.filter(|leaf| leaf.node.view(|bytes| leaf.addr(bytes, valid.owner.lbn)) == valid.at))
    }

    /// Returns the files with valid blocks in a section, ascending.
    fn files_in(&self, section: Secno) -> Vec<Nid> {
        let mut files = Vec::new();
        for segno in self.geo.section(section.0).map(Segno) {
            let (log, blocks) = self.space.valid_blocks(segno);
            let Some(summary) = (!log.is_node()).then(|| self.summary(segno).ok()).flatten() else { continue };
            let nids = blocks.iter().map(|offset| summary.summary.entries[*offset].nid);
            files.extend(nids.filter_map(|nid| Some(self.nat.get(nid).ok()?.ino)));
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns a copy of the segment table: policies ask back while they decide.
    fn table_copy(&self) -> TableCopy {
        let table = self.space.table();
        TableCopy {
            now_ns: table.now_ns(),
            sections: table.sections().collect(),
            segments: [Class::Data, Class::Node].map(|class| table.segments(class).collect()),
        }
    }
}

/// Deaths as foreseen, counted in blocks written from now on.
struct Future<'a> {
    fs: &'a F2fs,
    foresight: &'a dyn Foresight,
}

impl Deaths for Future<'_> {
    fn deaths(&self, section: Secno) -> impl Iterator<Item = u64> {
        self.fs.space.owners_in(section).into_iter().map(|owner| self.foresight.blocks_before_death(owner))
    }

    fn horizon(&self) -> u64 {
        let blocks = u64::from(self.fs.geo.segments) * SEGMENT_BLOCKS as u64;
        blocks.saturating_sub(self.fs.space.usage().blocks)
    }
}

struct TableCopy {
    now_ns: u64,
    sections: Vec<crate::clean::SectionView>,
    segments: [Vec<crate::clean::SegmentView>; 2],
}

impl Table for TableCopy {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn sections(&self) -> impl Iterator<Item = crate::clean::SectionView> {
        self.sections.iter().copied()
    }

    fn segments(&self, class: Class) -> impl Iterator<Item = crate::clean::SegmentView> {
        self.segments[class as usize].iter().copied()
    }
}
