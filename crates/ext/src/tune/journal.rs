//! A journal for a volume without one: as that of a new volume, in blocks that are free.
//!
//! A power cut leaves blocks that are marked as used for nothing, or the inode of a journal that the superblock does
//! not name, or a checksum of a bitmap that is wrong. A repair that asks nothing mends all of these. So the volume is
//! marked as in use meanwhile, by the writer's mark, too: programs that mount it at boot check it first, and moafs
//! returns what has leaked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use moafs_disk::{Buf, DiskExt, Kind, Lba, Op, Request, SharedDisk, Tag};
use moafs_runtime::Timestamp;
use moafs_vfs::Error;

use super::error::TuneError;
use crate::alloc::{check_bitmap, fixed_ranges, make_block_bitmap};
use crate::block_set::BlockSet;
use crate::format::group::BLOCK_UNINIT;
use crate::format::superblock::{Compat, MARK_VERSION, State, Support};
use crate::format::{
    BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Place, Sealed, Structure, Superblock, bitmap, u16_at,
};
use crate::head::{read_descriptors, read_superblock, write_superblock};
use crate::health::damaged;
use crate::mkfs::layout::{PlannedFile, VolumeLayout, place_journal};
use crate::mkfs::shape::sized_journal;
use crate::mkfs::write::write_journal;
use crate::write::write_durably;

/// Adds a journal of so many bytes, or as many as a new volume of this size would get. Returns the superblock that
/// names it, which is not written yet, and the one on the disk, which was `before`; everything else is durable.
pub(super) fn add(
    disk: &SharedDisk,
    mut sb: Superblock,
    before: &Superblock,
    geo: &Geometry,
    bytes: Option<u64>,
    now: Timestamp,
) -> Result<(Superblock, Superblock), TuneError> {
    if sb.compat().contains(Compat::HAS_JOURNAL) {
        return Err(TuneError::Impossible("the volume has a journal".to_owned()));
    }
    sb.raise_revision();
    sb.set_compat(sb.compat() | Compat::HAS_JOURNAL);
    if let Support::ReadOnly(reasons) = sb.support(true) {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        return Err(TuneError::Impossible(reasons.join("; ")));
    }
    let blocks = sized_journal(geo, bytes)?;
    if blocks == 0 {
        return Err(TuneError::Impossible(format!("the volume has {} blocks, too few for a journal", geo.blocks)));
    }
    let mut groups = Groups { disk, geo, descriptors: read_descriptors(disk, geo)?, fixed: Vec::new() };
    groups.fixed = fixed_ranges(geo, &groups.descriptors);
    groups.check_inode_is_unused()?;
    let layout = groups.place(sb, blocks, now)?;
    let [journal] = &layout.files[..] else { unreachable!("the journal is the one file") };
    let in_change = mark_in_change(disk, before, geo)?;
    write_journal(&**disk, &layout, &layout.superblock.uuid())?;
    groups.record(journal)?;
    let mut sb = layout.superblock.clone();
    sb.set_writer_mark(MARK_VERSION);
    sb.set_free_blocks(sb.free_blocks().saturating_sub(blocks_of(journal).map(|run| run.end - run.start).sum()));
    if sb.overhead_clusters() > 0 {
        sb.set_overhead_clusters(sb.overhead_clusters() + blocks);
    }
    Ok((sb, in_change))
}

/// Marks the volume as in use by moafs. Returns the superblock that is on the disk then.
fn mark_in_change(disk: &SharedDisk, before: &Superblock, geo: &Geometry) -> Result<Superblock, Error> {
    let mut marked = before.clone();
    marked.set_writer_mark(MARK_VERSION);
    marked.set_state(marked.state() - State::VALID);
    write_superblock(disk, before, &marked, geo)?;
    read_superblock(disk)
}

/// Returns the blocks of a file and of its map.
fn blocks_of(file: &PlannedFile) -> impl Iterator<Item = Range<u64>> + '_ {
    file.data.iter().cloned().chain(file.nodes.iter().map(|node| node.block.0..node.block.0 + 1))
}

/// The groups of a volume, as the disk has them.
struct Groups<'a> {
    disk: &'a SharedDisk,
    geo: &'a Geometry,
    descriptors: Vec<Descriptor>,
    /// The blocks of the volume's own metadata.
    fixed: Vec<Range<u64>>,
}

impl Groups<'_> {
    fn read(&self, block: BlockNo, kind: Kind, doing: &'static str) -> Result<Buf, Error> {
        let at = Lba::from_byte(self.geo.byte_of(block));
        let read = self.disk.read(at, self.geo.block_bytes(), Tag::volume(kind));
        read.map_err(|source| Error::disk(doing, source))
    }

    fn write(&self, block: BlockNo, bytes: Buf, kind: Kind) -> Request {
        Request {
            op: Op::Write { data: vec![bytes.freeze()], fua: false },
            at: Lba::from_byte(self.geo.byte_of(block)),
            tag: Tag::volume(kind),
        }
    }

    /// Returns the block bitmap of a group.
    fn block_map(&self, group: GroupNo) -> Result<Buf, Error> {
        let descriptor = &self.descriptors[group.0 as usize];
        if descriptor.lacks_block_bitmap(self.geo) {
            let mut map = Buf::zeroed(self.geo.block_bytes());
            make_block_bitmap(self.geo, &self.fixed, group, &mut map);
            return Ok(map);
        }
        let map = self.read(descriptor.block_bitmap, Kind::Bitmap, "reading a block bitmap")?;
        let place = Place::new(Structure::BlockBitmap(group), descriptor.block_bitmap);
        check_bitmap(self.geo, &map[..self.geo.bitmap_bytes().0], descriptor.block_bitmap_csum, place)?;
        Ok(map)
    }

    /// Places the journal from the middle of the volume on; from its start if there is no room.
    fn place(&self, sb: Superblock, blocks: u32, now: Timestamp) -> Result<VolumeLayout, TuneError> {
        let middle = GroupNo(self.geo.groups / 2);
        match self.place_from(middle, sb.clone(), blocks, now) {
            Err(TuneError::Journal(_)) if middle.0 > 0 => self.place_from(GroupNo(0), sb, blocks, now),
            placed => placed,
        }
    }

    fn place_from(
        &self,
        first: GroupNo,
        sb: Superblock,
        blocks: u32,
        now: Timestamp,
    ) -> Result<VolumeLayout, TuneError> {
        let volume = VolumeLayout {
            superblock: sb,
            geometry: self.geo.clone(),
            descriptors: self.descriptors.clone(),
            used: self.used_from(first, blocks)?,
            files: Vec::new(),
        };
        Ok(place_journal(volume, blocks, self.geo.group_start(first).0, now)?)
    }

    /// Returns the used blocks of the first groups from `first` on that have room for a journal of `blocks` blocks and
    /// its map. All other groups are shown as full: the journal bounds what is kept in memory, not the volume.
    fn used_from(&self, first: GroupNo, blocks: u32) -> Result<BlockSet, Error> {
        let mut used = BlockSet::default();
        used.add(0..self.geo.group_start(first).0);
        // A node for each 64 blocks is more than any map of a file has.
        let mut missing = u64::from(blocks) + u64::from(blocks) / 64 + 8;
        for group in self.geo.all_groups().skip(first.0 as usize) {
            let range = self.geo.group_range(group);
            if missing == 0 {
                used.add(range.start..self.geo.blocks);
                break;
            }
            let map = self.block_map(group)?;
            let bits = self.geo.group_blocks(group);
            let mut at = 0;
            for free in bitmap::zero_runs(&map, 0, bits) {
                if at < free.start {
                    used.add(range.start + u64::from(at)..range.start + u64::from(free.start));
                }
                missing = missing.saturating_sub(u64::from(free.end - free.start));
                at = free.end;
            }
            if at < bits {
                used.add(range.start + u64::from(at)..range.end);
            }
        }
        Ok(used)
    }

    fn journal_slot(&self) -> Result<(BlockNo, Range<usize>, Buf), Error> {
        let at = self.geo.locate_inode(InodeNo::JOURNAL).expect("every volume has the reserved inodes");
        let table = self.descriptors[at.group.0 as usize].inode_table;
        let block = BlockNo(table.0 + u64::from(at.table_block));
        let bytes = self.read(block, Kind::Inodes, "reading the journal's inode")?;
        Ok((block, at.offset..at.offset + self.geo.inode_size as usize, bytes))
    }

    /// Returns an error if the inode of the journal holds something.
    fn check_inode_is_unused(&self) -> Result<(), Error> {
        let (block, slot, bytes) = self.journal_slot()?;
        // A slot without a mode holds no inode: a checker that cleared it may have left a checksum.
        let is_unused = u16_at(&bytes[slot.clone()], 0) == 0 || {
            let inode = Inode::decode(&bytes[slot], InodeNo::JOURNAL, self.geo, block).map_err(damaged)?;
            inode.links == 0 && inode.blocks == 0 && inode.size == 0
        };
        if is_unused {
            return Ok(());
        }
        let place = Place::new(Structure::Inode(InodeNo::JOURNAL), block);
        Err(damaged(place.damage("the inode of the journal is in use, but the volume has no journal")))
    }

    /// Writes what bitmaps and descriptors say of the journal, durably, and then its inode.
    fn record(&mut self, journal: &PlannedFile) -> Result<(), Error> {
        let mut writes = Vec::new();
        let runs: Vec<Range<u64>> = blocks_of(journal).collect();
        let mut changed = Vec::new();
        for group in self.geo.all_groups() {
            let own = self.geo.group_range(group);
            let here = runs.iter().map(|run| run.start.max(own.start)..run.end.min(own.end));
            let here: Vec<Range<u64>> = here.filter(|run| !run.is_empty()).collect();
            if !here.is_empty() {
                writes.push(self.take(group, &here)?);
                changed.push(group);
            }
        }
        writes.extend(self.descriptor_writes(&changed)?);
        write_durably(self.disk, writes, "flushing the bitmaps of the journal's groups")?;
        let (block, slot, mut table) = self.journal_slot()?;
        journal.inode.encode_into(&mut table[slot.clone()], self.geo);
        let sealed = self.geo.checksums.seal(Sealed::Inode(InodeNo::JOURNAL), &mut table[slot]);
        debug_assert!(sealed.is_ok(), "an inode has a place for its checksum");
        write_durably(self.disk, vec![self.write(block, table, Kind::Inodes)], "flushing the journal's inode")
    }

    /// Takes free blocks of a group. Returns the write of its bitmap.
    fn take(&mut self, group: GroupNo, runs: &[Range<u64>]) -> Result<Request, Error> {
        let (mut map, start) = (self.block_map(group)?, self.geo.group_start(group).0);
        for run in runs {
            let bits = (run.start - start) as u32..(run.end - start) as u32;
            assert!(bitmap::is_clear(&map, bits.clone()), "the journal got blocks that are in use: {run:?}");
            bitmap::set_range(&mut map, bits);
        }
        let descriptor = &mut self.descriptors[group.0 as usize];
        let taken: u64 = runs.iter().map(|run| run.end - run.start).sum();
        descriptor.free_blocks = descriptor.free_blocks.saturating_sub(taken as u32);
        descriptor.flags &= !BLOCK_UNINIT;
        if let Some(sum) = Descriptor::sum_of_bitmap(&map[..self.geo.bitmap_bytes().0], self.geo) {
            descriptor.block_bitmap_csum = sum;
        }
        let at = descriptor.block_bitmap;
        Ok(self.write(at, map, Kind::Bitmap))
    }

    /// Returns the writes of the blocks that hold the descriptors of these groups.
    fn descriptor_writes(&self, groups: &[GroupNo]) -> Result<Vec<Request>, Error> {
        let mut blocks = BTreeMap::new();
        for group in groups {
            let (block, offset) = self.geo.locate_descriptor(*group);
            let bytes = match blocks.entry(block) {
                Entry::Occupied(read) => read.into_mut(),
                Entry::Vacant(unread) => {
                    unread.insert(self.read(block, Kind::Descriptors, "reading the group descriptors")?)
                }
            };
            let slot = &mut bytes[offset..offset + self.geo.desc_size as usize];
            self.descriptors[group.0 as usize].encode_into(slot, self.geo);
            let sealed = self.geo.checksums.seal(Sealed::Descriptor(*group), slot);
            debug_assert!(sealed.is_ok(), "a descriptor has a place for its checksum");
        }
        Ok(blocks.into_iter().map(|(block, bytes)| self.write(block, bytes, Kind::Descriptors)).collect())
    }
}
