//! A volume in memory: blocks are read from a disk, and what changes is kept.

use std::collections::BTreeMap;
use std::ops::Range;

use moafs_disk::{DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use crate::format::fixed::{fixed_ranges, joined, make_block_bitmap};
use crate::format::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::format::inode::Inode;
use crate::format::superblock::InodeLocation;
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, InodeNo, Place, Sealed, Structure, bitmap};
use crate::head::read_descriptors;
use crate::health::damaged;

/// The most bytes of changed blocks.
const CHANGED_BYTES_MAX: usize = 256 << 20;

/// Ranges of blocks, ascending and apart from one another.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub(super) fn new(ranges: Vec<Range<u64>>) -> Ranges {
        Ranges(joined(ranges))
    }

    /// Returns true if one of the blocks from `start` on is in a range.
    pub(super) fn meets(&self, start: u64, len: u64) -> bool {
        let first = self.0.partition_point(|range| range.end <= start);
        self.0.get(first).is_some_and(|range| range.start < start + len)
    }
}

/// The volume.
pub(super) struct Scratch<'a> {
    disk: &'a SharedDisk,
    pub(super) geo: &'a Geometry,
    descriptors: Vec<Descriptor>,
    fixed: Vec<Range<u64>>,
    /// Blocks that no file may own: the volume's own metadata, and the journal.
    forbidden: Ranges,
    /// Blocks that fast commits give to files.
    promised: Ranges,
    changed: BTreeMap<u64, Vec<u8>>,
    block_maps: BTreeMap<GroupNo, Vec<u8>>,
    inode_maps: BTreeMap<GroupNo, Vec<u8>>,
}

impl<'a> Scratch<'a> {
    /// Begins without a change. `journal` has the blocks of the journal, `promised` those that fast commits give to
    /// files: nothing else gets them.
    pub(super) fn new(
        disk: &'a SharedDisk,
        geo: &'a Geometry,
        journal: Vec<Range<u64>>,
        promised: Vec<Range<u64>>,
    ) -> Result<Scratch<'a>> {
        let descriptors = read_descriptors(disk, geo)?;
        let fixed = fixed_ranges(geo, &descriptors);
        let forbidden = Ranges::new(fixed.iter().cloned().chain(journal).collect());
        Ok(Scratch {
            disk,
            geo,
            descriptors,
            fixed,
            forbidden,
            promised: Ranges::new(promised),
            changed: BTreeMap::new(),
            block_maps: BTreeMap::new(),
            inode_maps: BTreeMap::new(),
        })
    }

    // -- blocks

    /// Returns the bytes of a block as they are now.
    pub(super) fn read(&self, block: BlockNo, kind: Kind) -> Result<Vec<u8>> {
        if let Some(bytes) = self.changed.get(&block.0) {
            return Ok(bytes.clone());
        }
        let at = Lba::from_byte(self.geo.byte_of(block));
        let read = self.disk.read(at, self.geo.block_bytes(), Tag::volume(kind));
        let read = read.map_err(|source| Error::disk(format!("reading block {block}"), source))?;
        Ok(read.to_vec())
    }

    /// Replaces the bytes of a block.
    pub(super) fn write(&mut self, block: BlockNo, bytes: Vec<u8>) -> Result<()> {
        self.changed.insert(block.0, bytes);
        if self.changed.len() * self.geo.block_bytes() > CHANGED_BYTES_MAX {
            return Err(Error::Refused(format!("the fast commits change more than {CHANGED_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    /// Replaces the bytes of a block, and makes its checksum.
    pub(super) fn write_sealed(&mut self, block: BlockNo, what: Sealed, mut bytes: Vec<u8>) -> Result<()> {
        let place = Place::new(Structure::LogBlock(0), block);
        self.geo.checksums.seal(what, &mut bytes).map_err(|problem| damaged(place.damage(problem)))?;
        self.write(block, bytes)
    }

    /// Returns true if a file may own these blocks.
    pub(super) fn may_own(&self, start: BlockNo, len: u64) -> bool {
        let last = start.0.saturating_add(len - 1);
        self.geo.may_point_to(start) && self.geo.may_point_to(BlockNo(last)) && !self.forbidden.meets(start.0, len)
    }

    // -- inodes

    fn locate(&self, ino: InodeNo) -> Result<(InodeLocation, BlockNo)> {
        let place = Place::of(Structure::Inode(ino));
        let at = self.geo.locate_inode(ino).ok_or_else(|| damaged(place.damage("there is no such inode")))?;
        let table = self.descriptors[at.group.0 as usize].inode_table;
        let block = BlockNo(table.0 + u64::from(at.table_block));
        Ok((at, block))
    }

    /// Returns an inode's slot.
    pub(super) fn slot(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let (at, block) = self.locate(ino)?;
        let bytes = self.read(block, Kind::Inodes)?;
        Ok(bytes[at.offset..at.offset + self.geo.inode_size as usize].to_vec())
    }

    /// Replaces an inode's slot, and makes its checksum.
    pub(super) fn set_slot(&mut self, ino: InodeNo, slot: &[u8]) -> Result<()> {
        let (at, block) = self.locate(ino)?;
        let mut bytes = self.read(block, Kind::Inodes)?;
        let stored = &mut bytes[at.offset..at.offset + slot.len()];
        stored.copy_from_slice(slot);
        let sealed = self.geo.checksums.seal(Sealed::Inode(ino), stored);
        debug_assert!(sealed.is_ok(), "every inode has a place for its checksum");
        self.write(block, bytes)
    }

    /// Returns an inode that is in use, checked; `None` if it is free.
    pub(super) fn inode(&mut self, ino: InodeNo) -> Result<Option<Inode>> {
        if !self.is_inode_used(ino)? {
            return Ok(None);
        }
        let (_, block) = self.locate(ino)?;
        Inode::decode(&self.slot(ino)?, ino, self.geo, block).map(Some).map_err(damaged)
    }

    /// Stores an inode that is in use.
    pub(super) fn store(&mut self, ino: InodeNo, inode: &Inode) -> Result<()> {
        let mut slot = self.slot(ino)?;
        inode.encode_into(&mut slot, self.geo);
        self.set_slot(ino, &slot)
    }

    fn is_inode_used(&mut self, ino: InodeNo) -> Result<bool> {
        let (at, _) = self.locate(ino)?;
        if self.descriptors[at.group.0 as usize].lacks_inode_bitmap(self.geo) {
            return Ok(false);
        }
        Ok(bitmap::test(self.inode_map(at.group)?, at.index))
    }

    /// Takes an inode that is free.
    pub(super) fn claim_inode(&mut self, ino: InodeNo) -> Result<()> {
        let (at, block) = self.locate(ino)?;
        let descriptor = self.descriptors[at.group.0 as usize];
        bitmap::set(self.inode_map(at.group)?, at.index);
        let ever_used = descriptor.inodes_ever_used(self.geo);
        if at.index < ever_used || !self.geo.checksums.allow_lazy_groups() {
            return Ok(());
        }
        // The blocks of the table that were never in use may hold anything.
        let first = descriptor.inode_table.0 + u64::from(ever_used.div_ceil(self.geo.inodes_per_block()));
        if descriptor.flags & INODE_ZEROED == 0 {
            for block in first..=block.0 {
                self.write(BlockNo(block), vec![0; self.geo.block_bytes()])?;
            }
        }
        let changed = &mut self.descriptors[at.group.0 as usize];
        changed.itable_unused = self.geo.inodes_per_group - (at.index + 1);
        changed.flags &= !INODE_UNINIT;
        Ok(())
    }

    /// Notes that an inode has become a directory, or is none any more.
    pub(super) fn count_directory(&mut self, ino: InodeNo, by: i32) -> Result<()> {
        let (at, _) = self.locate(ino)?;
        let descriptor = &mut self.descriptors[at.group.0 as usize];
        descriptor.used_dirs = descriptor.used_dirs.saturating_add_signed(by);
        Ok(())
    }

    fn inode_map(&mut self, group: GroupNo) -> Result<&mut Vec<u8>> {
        if !self.inode_maps.contains_key(&group) {
            let map = self.load_inode_map(group)?;
            self.inode_maps.insert(group, map);
        }
        Ok(self.inode_maps.get_mut(&group).expect("it was read above"))
    }

    fn load_inode_map(&self, group: GroupNo) -> Result<Vec<u8>> {
        let descriptor = &self.descriptors[group.0 as usize];
        if descriptor.lacks_inode_bitmap(self.geo) {
            let mut map = vec![0; self.geo.block_bytes()];
            bitmap::pad(&mut map, self.geo.inodes_per_group);
            return Ok(map);
        }
        let map = self.read(descriptor.inode_bitmap, Kind::Bitmap)?;
        let place = Place::new(Structure::InodeBitmap(group), descriptor.inode_bitmap);
        let covered = &map[..self.geo.bitmap_bytes().1];
        Descriptor::check_bitmap(covered, descriptor.inode_bitmap_csum, self.geo, place).map_err(damaged)?;
        Ok(map)
    }

    // -- space

    fn block_map(&mut self, group: GroupNo) -> Result<&mut Vec<u8>> {
        if !self.block_maps.contains_key(&group) {
            let map = self.load_block_map(group)?;
            self.block_maps.insert(group, map);
        }
        Ok(self.block_maps.get_mut(&group).expect("it was read above"))
    }

    fn load_block_map(&self, group: GroupNo) -> Result<Vec<u8>> {
        let descriptor = &self.descriptors[group.0 as usize];
        if descriptor.lacks_block_bitmap(self.geo) {
            let mut map = vec![0; self.geo.block_bytes()];
            make_block_bitmap(self.geo, &self.fixed, group, &mut map);
            return Ok(map);
        }
        let map = self.read(descriptor.block_bitmap, Kind::Bitmap)?;
        let place = Place::new(Structure::BlockBitmap(group), descriptor.block_bitmap);
        let covered = &map[..self.geo.bitmap_bytes().0];
        Descriptor::check_bitmap(covered, descriptor.block_bitmap_csum, self.geo, place).map_err(damaged)?;
        Ok(map)
    }

    /// Marks blocks, which a file may own, as used or as free.
    pub(super) fn mark(&mut self, start: BlockNo, len: u64, used: bool) -> Result<()> {
        debug_assert!(self.may_own(start, len), "blocks {start} to {} belong to no file", start.0 + len - 1);
        let mut next = start.0;
        while next < start.0 + len {
            let (group, bit) = self.geo.bit_of_block(BlockNo(next)).expect("a file may own the block");
            let end = (start.0 + len).min(self.geo.group_range(group).end);
            let bits = bit..bit + (end - next) as u32;
            let map = self.block_map(group)?;
            if used {
                bitmap::set_range(map, bits)
            } else {
                bitmap::clear_range(map, bits)
            }
            next = end;
        }
        Ok(())
    }

    /// Takes a free block that no fast commit names, in the group of an inode or behind it.
    pub(super) fn allocate(&mut self, near: InodeNo) -> Result<BlockNo> {
        let (at, _) = self.locate(near)?;
        for step in 0..self.geo.groups {
            let group = GroupNo((at.group.0 + step) % self.geo.groups);
            if self.descriptors[group.0 as usize].free_blocks == 0 && !self.block_maps.contains_key(&group) {
                continue;
            }
            let (start, bits) = (self.geo.group_start(group).0, self.geo.group_clusters(group));
            let map = self.block_map(group)?.clone();
            let mut free = bitmap::zero_runs(&map, 0, bits).flatten().map(|bit| BlockNo(start + u64::from(bit)));
            let found = free.find(|block| self.may_own(*block, 1) && !self.promised.meets(block.0, 1));
            if let Some(block) = found {
                self.mark(block, 1, true)?;
                return Ok(block);
            }
        }
        Err(Error::Refused("the volume has no free block for what its fast commits need".to_owned()))
    }

    // -- the end

    /// Returns the blocks that have changed, with bitmaps and descriptors.
    pub(super) fn finish(mut self) -> Result<BTreeMap<BlockNo, Vec<u8>>> {
        let (block_bytes, inode_bytes) = self.geo.bitmap_bytes();
        for (group, map) in std::mem::take(&mut self.block_maps) {
            let descriptor = &mut self.descriptors[group.0 as usize];
            descriptor.free_blocks = bitmap::count_zeros(&map, self.geo.group_clusters(group));
            descriptor.flags &= !BLOCK_UNINIT;
            descriptor.block_bitmap_csum = Descriptor::sum_of_bitmap(&map[..block_bytes], self.geo).unwrap_or(0);
            let block = descriptor.block_bitmap;
            self.write(block, map)?;
            self.store_descriptor(group)?;
        }
        for (group, map) in std::mem::take(&mut self.inode_maps) {
            let descriptor = &mut self.descriptors[group.0 as usize];
            descriptor.free_inodes = bitmap::count_zeros(&map, self.geo.inodes_per_group);
            descriptor.inode_bitmap_csum = Descriptor::sum_of_bitmap(&map[..inode_bytes], self.geo).unwrap_or(0);
            let block = descriptor.inode_bitmap;
            self.write(block, map)?;
            self.store_descriptor(group)?;
        }
        Ok(self.changed.into_iter().map(|(block, bytes)| (BlockNo(block), bytes)).collect())
    }

    fn store_descriptor(&mut self, group: GroupNo) -> Result<()> {
        let (block, offset) = self.geo.locate_descriptor(group);
        let mut bytes = self.read(block, Kind::Descriptors)?;
        let slot = &mut bytes[offset..offset + self.geo.desc_size as usize];
        self.descriptors[group.0 as usize].encode_into(slot, self.geo);
        let sealed = self.geo.checksums.seal(Sealed::Descriptor(group), slot);
        debug_assert!(sealed.is_ok(), "every descriptor has a place for its checksum");
        self.write(block, bytes)
    }
}
