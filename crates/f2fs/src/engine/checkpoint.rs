//! Checkpoints: make everything that was changed durable at once (`docs/formats/f2fs.md`, section
//! 12).
//!
//! Blocks that are needed for it are read first. With the op gate closed a snapshot of the volume
//! is taken in memory: dirty blocks of directories and dirty nodes get their new places, the tables
//! their next versions. All ops wait meanwhile, so work that can be done before or after is: nodes
//! are packed before, and become blocks when they are written. Then the gate opens, and the snapshot is written:
//! first all of it but the pack's last block, a flush, and that last block, which makes the pack
//! whole. Ops that run meanwhile change what the checkpoint after this one will say. A power cut at
//! any point leaves the old pack or the new one. If the host has no room, the caller waits for some, and gets `ENOSPC`
//! in the end; the snapshot stays, and the next caller that needs a checkpoint or a chain goes on with it
//! ([`writer`](super::writer)).

use moafs_runtime::leaf::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_disk::{Buf, Cause, DiskExt, Epoch, Kind, Lba, Op, Page, Request, SECTOR, Tag};
use moafs_vfs::format::Admission;
use moafs_vfs::{Error, Result};

use super::convert::copy_of;
use super::node_cache::Node;
use super::owned_cache::Owned;
use super::space::{Origin, Picture, Recorded};
use super::underway::Underway;
use super::volume::F2fs;
use super::writer::{Bytes, Leaving, NewPack, Placed, Unfinished, Writer};
use crate::format::checkpoint::{Checkpoint, CpFlags, Pack, SIT_JOURNAL_MAX, VersionBitmap};
use crate::format::node::Footer;
use crate::format::sit::{self, SIT_PER_BLOCK, SitEntry};
use crate::format::summary::Summary;
use crate::format::superblock::Features;
use crate::format::{BLOCK, BlkAddr, Log, Nid, SEGMENT_BLOCKS, Segno, inode};
use crate::place::log_choice::{BlockFacts, data_log};

/// Blocks in one request at most.
const REQUEST_BLOCKS_MAX: usize = 256;

/// Requests submitted together, and blocks in them: a writer that needs the device meanwhile waits
/// for one batch.
const BATCH_REQUESTS_MAX: usize = 32;
const BATCH_BLOCKS_MAX: usize = 256;

/// The blocks and tables that a checkpoint writes.
struct Snapshot<'a> {
    blocks: Vec<Leaving>,
    nodes: Vec<Placed>,
    pack: Pack,
    sit_journal: BTreeMap<Segno, SitEntry>,
    sit_versions: VersionBitmap,
    underway: Underway<'a>,
}

impl F2fs {
    /// Makes everything durable that was changed before the call. Does nothing if nothing was
    /// changed, unless `umount` says that the volume is about to be closed. One attempt: a caller that
    /// waits for a full host repeats all that it does, so that no lock is held meanwhile.
    pub(super) fn checkpoint(&self, umount: bool) -> Result<()> {
        self.checkpoint_as(&mut self.writer.lock(), umount)
    }

    pub(super) fn checkpoint_as(&self, writer: &mut Writer, umount: bool) -> Result<()> {
        let _watch = self.health.watch_panics("a checkpoint");
        self.finish(writer)?;
        let clean = writer.last.flags.contains(CpFlags::UMOUNT) == umount;
        if clean && !self.unsaved.load(Ordering::Acquire) {
            return Ok(());
        }
        let begun = self.begin_checkpoint(writer, umount);
        if let Err(error) = &begun {
            self.health.fail(format!("a checkpoint could not be written: {error}"));
        }
        writer.unfinished = Some(begun?);
        self.finish(writer)
    }

    /// Writes what was begun and is not on the device yet. If the host has no room for it, all of it stays to be
    /// written again.
    pub(super) fn finish(&self, writer: &mut Writer) -> Result<()> {
        self.health.check()?;
        let Some(mut work) = writer.unfinished.take() else { return Ok(()) };
        if let Err(error) = self.write_unfinished(&mut work) {
            if !error.is_host_full() {
                let what = if work.pack.is_some() { "a checkpoint" } else { "a file's nodes" };
                self.health.fail(format!("{what} could not be written: {error}"));
            }
            writer.unfinished = Some(work);
            return Err(error);
        }
        if let Some(pack) = work.pack {
            self.note_durable(writer, pack);
        }
        // Before `work` ends, and with it what keeps its nodes in memory.
        self.nodes.landed.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn write_unfinished(&self, work: &mut Unfinished) -> Result<()> {
        if !work.first.is_empty() {
            self.write_blocks(&work.first)?;
            self.flush()?;
            work.first.clear();
        }
        match &work.last[..] {
            [block] if work.pack.is_some() => self.write_last(block),
            nodes => {
                self.write_blocks(nodes)?;
                self.flush()
            }
        }
    }

    /// Notes that a checkpoint is durable, and releases what only the one before it held.
    fn note_durable(&self, writer: &mut Writer, pack: NewPack) {
        writer.own = true;
        writer.last = pack.checkpoint;
        writer.pack = 1 - writer.pack;
        writer.sit_journal = pack.sit_journal;
        writer.sit_versions = pack.sit_versions;
        self.committed.store(writer.last.version, Ordering::Release);
        self.nat.committed();
        let freed = self.space.committed();
        self.separator.lock().freed(&freed);
        self.tally.checkpoints.fetch_add(1, Ordering::Relaxed);
        // A discard that came late would erase what a log has written there by then.
        self.discard(&freed);
        self.space.open_to_logs(&freed);
    }

    /// Takes a snapshot, and makes of it the blocks that are to be written.
    fn begin_checkpoint(&self, writer: &Writer, umount: bool) -> Result<Unfinished> {
        // Most of the blocks that the snapshot needs are read while ops may go on.
        self.complete_summaries()?;
        self.nodes.rest();
        let snapshot = {
            let _gate = self.gate.write();
            // An op may have failed while this waited for it.
            self.health.check()?;
            let snapshot = self.snapshot(writer, umount)?;
            self.unsaved.store(false, Ordering::Release);
            *self.roll_forward_limits.lock() = Default::default();
            self.version.fetch_add(1, Ordering::AcqRel);
            snapshot
        };
        let Snapshot { mut blocks, nodes, mut pack, sit_journal, sit_versions, underway } = snapshot;
        // As they are written they belong to no chain (`page_of`). They lie where the last chain goes on, and behind
        // them may lie what an earlier mount wrote there: a power cut before this checkpoint is finished must not make
        // them a bridge to that.
        blocks.extend(nodes.into_iter().map(|node| Leaving {
            at: node.at,
            tag: tag_of(&node),
            bytes: Bytes::Node(node),
        }));
        let to = 1 - writer.pack;
        let image = pack.encode(&self.geo);
        // A pack that no mount would accept must not replace one that mounts accept.
        let read = Pack::decode(&image, &self.geo, to as u8);
        read.map_err(|damage| {
            Error::Refused(format!("{} would not be read again: {}", damage.structure, damage.problem))
        })?;
        let first = self.geo.pack_at(to).0;
        let tag = Tag::new(Kind::Segments, 0, Cause::Order);
        blocks.extend(image.chunks_exact(BLOCK).zip(first..).map(|(bytes, at)| leaving(BlkAddr(at), bytes, tag)));
        let last = blocks.pop().expect("a pack has blocks");
        blocks.sort_by_key(|block| block.at);
        Ok(Unfinished {
            first: blocks,
            last: vec![last],
            pack: Some(NewPack { checkpoint: pack.checkpoint, sit_journal, sit_versions }),
            _held: underway.hand_over(),
        })
    }

    /// Writes the block that makes a pack whole, so that it is durable when this returns.
    fn write_last(&self, block: &Leaving) -> Result<()> {
        let fua = self.disk.limits().fua;
        let at = Lba(u64::from(block.at.0) * (BLOCK / SECTOR) as u64);
        let request = Request { op: Op::Write { data: vec![self.page_of(block)], fua }, at, tag: block.tag };
        let done = self.disk.run(vec![request]).remove(0);
        done.result.map_err(|source| Error::disk(format!("writing block {} (checkpoint)", block.at), source))?;
        if fua { Ok(()) } else { self.flush() }
    }

    /// Makes everything that has completed durable.
    pub(super) fn flush(&self) -> Result<()> {
        self.make_durable(self.disk.epoch())
    }

    pub(super) fn make_durable(&self, upto: Epoch) -> Result<()> {
        let flushed = self.disk.make_durable(upto).map_err(|source| Error::disk("flushing the volume", source));
        self.health.watch(flushed)
    }

    /// Tells the device that segments hold nothing.
    fn discard(&self, segments: &[Segno]) {
        if !self.disk.limits().discard || !self.options.discard || segments.is_empty() {
            return;
        }
        let sectors = (SEGMENT_BLOCKS * BLOCK / SECTOR) as u64;
        let request = |run: &[Segno]| Request {
            op: Op::Discard { sectors: sectors * run.len() as u64 },
            at: Lba(u64::from(self.geo.block_of(run[0], 0).0) * (BLOCK / SECTOR) as u64),
            tag: Tag::new(Kind::Segments, 0, Cause::Order),
        };
        let runs = segments.chunk_by(|a, b| a.0 + 1 == b.0);
        // A hint: a device that refuses it loses nothing.
        drop(self.disk.run(runs.map(request).collect()));
    }

    // -- the snapshot

    fn snapshot(&self, writer: &Writer, umount: bool) -> Result<Snapshot<'_>> {
        self.tick();
        let mut blocks = Vec::new();
        let mut underway = Underway::owned_blocks(self);
        for block in underway.owned() {
            blocks.push(self.house(block)?);
        }
        // Among them are those that point to the blocks of directories.
        underway.take_nodes();
        let mut nodes: Vec<&Arc<Node>> = underway.nodes().iter().collect();
        nodes.sort_by_key(|node| (node.log, node.ino, node.offset));
        let place = |node: &&Arc<Node>| {
            let place = self.space.take_node(node.log, node.nid).ok_or_else(no_block)?;
            self.place_node(node, place)
        };
        let placed = nodes.iter().map(place).collect::<Result<Vec<_>>>()?;
        let nat = self.nat.snapshot()?;
        let picture = loop {
            self.complete_summaries()?;
            if let Some(picture) = self.space.snapshot() {
                break picture;
            }
        };
        let tag = Tag::new(Kind::Segments, 0, Cause::Order);
        blocks.extend(nat.blocks.into_iter().map(|(at, block)| Leaving {
            at,
            bytes: Bytes::Block(block.freeze()),
            tag,
        }));
        for (segno, log, recorded) in &picture.summaries {
            let bytes = recorded.summary.encode(log.is_node());
            blocks.push(leaving(self.geo.summary_at(*segno), &bytes, tag));
        }
        let (sit_journal, sit_versions) = self.table(writer, &picture, &mut blocks);
        let orphans: Vec<Nid> = self.orphans.lock().iter().copied().collect();
        if orphans.len() > self.orphans_max {
            return Err(Error::Refused(format!(
                "{} unlinked files are in use; a checkpoint cannot name them",
                orphans.len()
            )));
        }
        let last = &writer.last;
        let checkpoint = Checkpoint {
            version: last.version + 1,
            valid_blocks: picture.usage.blocks,
            free_segments: picture.free_segments,
            current: picture.current,
            flags: flags_after(last.flags, umount),
            valid_nodes: picture.usage.nodes,
            valid_inodes: picture.usage.inodes,
            next_free_nid: nat.next_free.0,
            elapsed: self.elapsed_secs(),
            sit_bitmap: sit_versions.clone(),
            nat_bitmap: nat.versions,
            ..last.clone()
        };
        let pack = Pack {
            checkpoint,
            orphans,
            nat_journal: nat.journal,
            sit_journal: sit_journal.iter().map(|(segno, entry)| (*segno, *entry)).collect(),
            summaries: pack_summaries(picture.current_summaries, umount),
            kib_written: writer.kib_written,
        };
        Ok(Snapshot { blocks, nodes: placed, pack, sit_journal, sit_versions, underway })
    }

    /// Gives a dirty block of a directory or symbolic link a place.
    fn house(&self, block: &Owned) -> Result<Leaving> {
        let file = self.incore(block.ino)?;
        let leaf = self.existing_leaf(&file, block.lbn)?;
        let leaf =
            leaf.ok_or_else(|| Error::Refused(format!("block {} of inode {} has no place", block.lbn, block.ino)))?;
        let log = data_log(BlockFacts { directory: file.is_dir(), ..BlockFacts::default() });
        let kind = if file.is_dir() { Kind::Directory } else { Kind::Symlink };
        let at = self.space.take_block(log).ok_or_else(no_block)?;
        self.point_at(&file, &leaf, block.lbn, at, Origin::Written, &mut Admission::none())?;
        self.space.block_settled();
        self.tally.meta_data_blocks.fetch_add(1, Ordering::Relaxed);
        let tag = Tag::new(kind, block.ino.0.into(), Cause::Order);
        Ok(Leaving { at, bytes: Bytes::Block(block.leave().freeze()), tag })
    }

    /// Places a dirty node at `at`; its log continues with `next`.
    pub(super) fn place_node(&self, node: &Node, (at, next): (BlkAddr, BlkAddr)) -> Result<Placed> {
        let before = self.nat.get(node.nid)?;
        self.space.node_settled();
        self.space.free(before.addr);
        self.nat.set(node.nid, crate::format::nat::NatEntry { addr: at, ..before });
        self.tally.node_blocks.fetch_add(1, Ordering::Relaxed);
        Ok(Placed { nid: node.nid, ino: node.ino, contents: node.leave(), at, next })
    }

    /// Makes a node's block, with the footer fields and the checksum that depend on its place.
    pub(super) fn image_of(&self, node: &Placed, version: u64, fsync: bool, dentry: bool) -> Page {
        let mut image = node.contents.to_block();
        let footer = Footer { fsync, dentry, cp_version: version, next: node.next, ..Footer::decode(&image) };
        footer.encode_into(&mut image);
        if node.nid == node.ino {
            inode::drop_extent(&mut image);
            if self.features.contains(Features::INODE_CHECKSUM) {
                inode::seal_checksum(&mut image, &self.uuid);
            }
        }
        image.freeze()
    }

    /// Returns a block as it is written; a node belongs to no chain.
    pub(super) fn page_of(&self, block: &Leaving) -> Page {
        match &block.bytes {
            Bytes::Block(page) => page.clone(),
            Bytes::Node(node) => self.image_of(node, Footer::NO_CHAIN, false, false),
        }
    }

    /// Returns the changed entries of the segment information table: few entries stay in the
    /// journal, many go to the blocks' other copies.
    fn table(
        &self,
        writer: &Writer,
        picture: &Picture,
        blocks: &mut Vec<Leaving>,
    ) -> (BTreeMap<Segno, SitEntry>, VersionBitmap) {
        let mut all = writer.sit_journal.clone();
        all.extend(picture.sit.iter().map(|(segno, entry)| (*segno, *entry)));
        let mut versions = writer.sit_versions.clone();
        if all.len() <= SIT_JOURNAL_MAX {
            return (all, versions);
        }
        let touched: BTreeSet<u32> = all.keys().map(|segno| segno.0 / SIT_PER_BLOCK as u32).collect();
        for block in touched {
            versions.flip(block as usize);
            let mut bytes = Buf::zeroed(BLOCK);
            let first = block * SIT_PER_BLOCK as u32;
            let end = self.geo.segments.min(first + SIT_PER_BLOCK as u32);
            for (index, segno) in (first..end).enumerate() {
                sit::set_entry(&mut bytes, index, &self.space.sit_entry(Segno(segno)));
            }
            let at = self.geo.sit_at(block, versions.get(block as usize));
            let tag = Tag::new(Kind::Segments, 0, Cause::Order);
            blocks.push(Leaving { at, bytes: Bytes::Block(bytes.freeze()), tag });
        }
        (BTreeMap::new(), versions)
    }

    /// Reads the entries of recycled segments' summaries that only the disk has. The caller is the
    /// only writer of summaries.
    fn complete_summaries(&self) -> Result<()> {
        let tag = Tag::new(Kind::Segments, 0, Cause::Order);
        let read = |segno: &Segno| Request {
            op: Op::Read { into: vec![Buf::scratch(BLOCK)] },
            at: Lba(u64::from(self.geo.summary_at(*segno).0) * (BLOCK / SECTOR) as u64),
            tag,
        };
        for batch in self.space.incomplete().chunks(BATCH_REQUESTS_MAX) {
            let dones = self.disk.run(batch.iter().map(read).collect());
            for (segno, done) in batch.iter().zip(dones) {
                let what = || format!("reading the summary of segment {segno}");
                let bufs = done.result.map_err(|source| Error::disk(what(), source))?;
                self.space.complete(*segno, &Summary::decode(&bufs[0]).0);
            }
        }
        Ok(())
    }

    /// Reads a segment's summary from the summary area.
    pub(super) fn read_summary(&self, segno: Segno) -> Result<Box<Summary>> {
        let tag = Tag::new(Kind::Segments, 0, Cause::Order);
        let bytes = self.read_block(self.geo.summary_at(segno), tag)?;
        Ok(Box::new(Summary::decode(&bytes).0))
    }

    /// Writes blocks, ascending, neighbours in one request, and waits for them to complete.
    pub(super) fn write_blocks(&self, blocks: &[Leaving]) -> Result<()> {
        debug_assert!(blocks.is_sorted_by_key(|block| block.at));
        let together = |a: &Leaving, b: &Leaving| a.at.0 + 1 == b.at.0;
        let mut batch = Vec::new();
        let mut batch_blocks = 0;
        for part in blocks.chunk_by(together).flat_map(|run| run.chunks(REQUEST_BLOCKS_MAX)) {
            if batch.len() == BATCH_REQUESTS_MAX || batch_blocks + part.len() > BATCH_BLOCKS_MAX {
                self.write_batch(std::mem::take(&mut batch))?;
                batch_blocks = 0;
            }
            let data = part.iter().map(|block| self.page_of(block)).collect();
            let at = Lba(u64::from(part[0].at.0) * (BLOCK / SECTOR) as u64);
            batch.push(Request { op: Op::Write { data, fua: false }, at, tag: part[0].tag });
            batch_blocks += part.len();
        }
        self.write_batch(batch)
    }

    fn write_batch(&self, batch: Vec<Request>) -> Result<()> {
        let tags: Vec<(Lba, Tag)> = batch.iter().map(|request| (request.at, request.tag)).collect();
        for (done, (at, tag)) in self.disk.run(batch).into_iter().zip(tags) {
            let what = || format!("writing {:?} at block {}", tag.kind, at.0 / (BLOCK / SECTOR) as u64);
            done.result.map_err(|source| Error::disk(what(), source))?;
        }
        Ok(())
    }
}

/// Copies bytes that will be written to a block.
fn leaving(at: BlkAddr, bytes: &[u8], tag: Tag) -> Leaving {
    Leaving { at, bytes: Bytes::Block(copy_of(bytes).freeze()), tag }
}

/// Returns the tag of a request that writes a node.
pub(super) fn tag_of(node: &Placed) -> Tag {
    Tag::new(Kind::Node, node.ino.0.into(), Cause::Order)
}

/// Returns the error for metadata without a block: the reserve for cleaning was not enough.
pub(super) fn no_block() -> Error {
    Error::Refused("no block is left for metadata: the volume's reserve is used up".to_owned())
}

/// Returns the flags of a checkpoint that follows one with flags `last`.
fn flags_after(last: CpFlags, umount: bool) -> CpFlags {
    let mut flags = last
        - (CpFlags::UMOUNT | CpFlags::FASTBOOT | CpFlags::ORPHAN_PRESENT | CpFlags::COMPACT_SUM)
        - (CpFlags::NAT_BITS | CpFlags::NOCRC_RECOVERY | CpFlags::TRIMMED);
    flags |= CpFlags::CRC_RECOVERY;
    flags.set(CpFlags::UMOUNT, umount);
    flags
}

/// Returns the current segments' summaries; those of nodes only in the last checkpoint before an
/// unmount.
fn pack_summaries(current: Vec<Recorded>, umount: bool) -> [Option<Box<Summary>>; 6] {
    let mut current = current.into_iter();
    Log::ALL.map(|log| current.next().filter(|_| umount || !log.is_node()).map(|recorded| recorded.summary))
}
