//! Pass 5: bitmaps, group counts and totals against the results of the passes before.

use moafs_disk::Buf;

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::issue::{Bitmap, Count, Span};
use super::scan::Blocks;
use crate::format::group::BLOCK_UNINIT;
use crate::format::inode::entry_type;
use crate::format::{BlockNo, Descriptor, GroupNo, Structure, bitmap};

/// Groups between two reports of progress.
const TELL_EVERY: u32 = 64;

impl Checker<'_> {
    pub(super) fn pass5(&mut self, tell: &mut dyn FnMut(u8, u64, u64)) -> Result<(), CheckError> {
        let total = u64::from(self.geo.groups);
        let (mut free_blocks, mut free_inodes) = (0u64, 0u64);
        for group in self.geo.all_groups() {
            if group.0 % TELL_EVERY == 0 {
                tell(5, group.0.into(), total);
            }
            let (blocks, inodes) = self.check_group_counts(group)?;
            free_blocks += u64::from(blocks);
            free_inodes += u64::from(inodes);
        }
        tell(5, total, total);
        let stored = self.superblock.free_blocks();
        if self.total_is_wrong(Count::FreeBlocks, stored, free_blocks) {
            self.superblock.set_free_blocks(free_blocks);
        }
        let stored = u64::from(self.superblock.free_inodes());
        if self.total_is_wrong(Count::FreeInodes, stored, free_inodes) {
            self.superblock.set_free_inodes(free_inodes as u32);
        }
        Ok(())
    }

    fn total_is_wrong(&mut self, count: Count, stored: u64, counted: u64) -> bool {
        stored != counted && self.log.found(Issue::TotalCount { count, stored, counted })
    }

    /// Returns the numbers of free blocks and free inodes of the group.
    fn check_group_counts(&mut self, group: GroupNo) -> Result<(u32, u32), CheckError> {
        let descriptor = self.descriptors[group.0 as usize];
        let mut right = descriptor;
        let blocks = self.geo.group_blocks(group);
        let block_map = self.block_map(group);
        if !descriptor.lacks_block_bitmap(&self.geo) {
            self.check_block_bitmap(group, &mut right, &block_map)?;
        } else if block_map != self.lazy_block_map(group) && self.log.found(Issue::BlockBitmapUninit { group }) {
            right.flags &= !BLOCK_UNINIT;
            self.volume.write(right.block_bitmap, Buf::copy_of(&block_map));
            self.set_block_sum(&mut right, &block_map);
        }
        let inodes = self.geo.inodes_per_group;
        let inode_map = self.inode_map(group);
        if !descriptor.lacks_inode_bitmap(&self.geo) {
            self.check_inode_bitmap(group, &mut right, &inode_map)?;
        }
        let directories = self.directories(group);
        let free_blocks = bitmap::count_zeros(&block_map, blocks);
        let free_inodes = bitmap::count_zeros(&inode_map, inodes);
        for (count, stored, counted) in [
            (Count::FreeBlocks, &mut right.free_blocks, free_blocks),
            (Count::FreeInodes, &mut right.free_inodes, free_inodes),
            (Count::Directories, &mut right.used_dirs, directories),
        ] {
            let issue = Issue::GroupCount { group, count, stored: *stored, counted };
            if *stored != counted && self.log.found(issue) {
                *stored = counted;
            }
        }
        if right != descriptor {
            self.set_descriptor(group, right)?;
        }
        Ok((free_blocks, free_inodes))
    }

    fn check_block_bitmap(&mut self, group: GroupNo, right: &mut Descriptor, map: &[u8]) -> Result<(), CheckError> {
        let (bits, first) = (self.geo.group_blocks(group), self.geo.group_start(group).0);
        let repaired = self.check_bitmap(Bitmap::Block, group, right.block_bitmap, map, bits, first)?;
        let sum = self.sum_of(right.block_bitmap, self.geo.bitmap_bytes().0)?;
        let stored = right.block_bitmap_csum;
        if self.sum_is_wrong(Structure::BlockBitmap(group), stored, sum, repaired) {
            self.set_block_sum(right, map);
        }
        Ok(())
    }

    fn check_inode_bitmap(&mut self, group: GroupNo, right: &mut Descriptor, map: &[u8]) -> Result<(), CheckError> {
        let (bits, first) = (self.geo.inodes_per_group, u64::from(self.geo.inode_at(group, 0).0));
        let repaired = self.check_bitmap(Bitmap::Inode, group, right.inode_bitmap, map, bits, first)?;
        let bytes = self.geo.bitmap_bytes().1;
        let sum = self.sum_of(right.inode_bitmap, bytes)?;
        if self.sum_is_wrong(Structure::InodeBitmap(group), right.inode_bitmap_csum, sum, repaired)
            && let Some(sum) = Descriptor::sum_of_bitmap(&map[..bytes], &self.geo)
        {
            right.inode_bitmap_csum = sum;
        }
        Ok(())
    }

    /// Returns the checksum of the first bytes of a bitmap as it lies on the disk; `None` on volumes without.
    fn sum_of(&self, bitmap: BlockNo, bytes: usize) -> Result<Option<u32>, CheckError> {
        let page = self.volume.read(bitmap)?;
        Ok(Descriptor::sum_of_bitmap(&page[..bytes], &self.geo))
    }

    /// Returns true if a repair is to store the checksum of a bitmap, which follows the bitmap's own repair.
    fn sum_is_wrong(&mut self, structure: Structure, stored: u32, sum: Option<u32>, repaired: bool) -> bool {
        let Some(sum) = sum.filter(|sum| *sum != stored) else { return false };
        let problem = format!("its checksum is {stored:#x}, should be {sum:#x}");
        repaired || self.log.found(Issue::Checksum { structure, problem })
    }

    fn set_block_sum(&self, descriptor: &mut Descriptor, map: &[u8]) {
        if let Some(sum) = Descriptor::sum_of_bitmap(&map[..self.geo.bitmap_bytes().0], &self.geo) {
            descriptor.block_bitmap_csum = sum;
        }
    }

    /// Returns the block bitmap that a group without one stands for: only its own metadata are in use.
    fn lazy_block_map(&self, group: GroupNo) -> Vec<u8> {
        let mut map = vec![0; self.geo.block_bytes()];
        let (range, descriptor) = (self.geo.group_range(group), self.descriptors[group.0 as usize]);
        let head = self.geo.head_blocks(group).min(self.geo.group_blocks(group));
        bitmap::set_range(&mut map, 0..head);
        for block in range.clone().filter(|block| descriptor.owns(BlockNo(*block), &self.geo)) {
            bitmap::set(&mut map, (block - range.start) as u32);
        }
        bitmap::pad(&mut map, self.geo.group_blocks(group));
        map
    }

    /// Returns the block bitmap as it should be.
    fn block_map(&self, group: GroupNo) -> Vec<u8> {
        let mut map = vec![0; self.geo.block_bytes()];
        let range = self.geo.group_range(group);
        for block in range.clone().filter(|block| self.is_used(BlockNo(*block))) {
            bitmap::set(&mut map, (block - range.start) as u32);
        }
        bitmap::pad(&mut map, self.geo.group_blocks(group));
        map
    }

    /// Returns the inode bitmap as it should be.
    fn inode_map(&self, group: GroupNo) -> Vec<u8> {
        let mut map = vec![0; self.geo.block_bytes()];
        if let Some(states) = &self.inodes[group.0 as usize] {
            for (index, _) in states.iter().enumerate().filter(|(_, state)| state.type_byte != 0) {
                bitmap::set(&mut map, index as u32);
            }
        }
        bitmap::set_range(&mut map, 0..self.geo.reserved_inodes(group));
        bitmap::pad(&mut map, self.geo.inodes_per_group);
        map
    }

    fn directories(&self, group: GroupNo) -> u32 {
        let directory = entry_type(moafs_vfs::types::FileKind::Directory);
        let states = self.inodes[group.0 as usize].iter().flat_map(|states| states.iter());
        states.filter(|state| state.type_byte == directory).count() as u32
    }

    /// Compares a bitmap with what it should be. Returns true if it was repaired.
    fn check_bitmap(
        &mut self,
        which: Bitmap,
        group: GroupNo,
        at: BlockNo,
        should: &[u8],
        bits: u32,
        first: u64,
    ) -> Result<bool, CheckError> {
        let page = self.volume.read(at)?;
        let mut repair = false;
        let leaked = difference(&page, should, bits, first);
        let missing = difference(should, &page, bits, first);
        if let Some((count, first)) = leaked {
            repair |= self.log.found(Issue::Leaked { bitmap: which, group, count, first });
        }
        if let Some((count, first)) = missing {
            repair |= self.log.found(Issue::UsedButFree { bitmap: which, group, count, first });
        }
        if !bitmap::is_padded(&page, bits) {
            repair |= self.log.found(Issue::Padding { bitmap: which, group });
        }
        if repair {
            self.volume.write(at, Buf::copy_of(should));
        }
        Ok(repair)
    }
}

/// Returns the number of bits that are set in `a` but not in `b`, and the first run of them,
/// counted from `first`.
fn difference(a: &[u8], b: &[u8], bits: u32, first: u64) -> Option<(u32, Span)> {
    let only_a: Vec<u8> = a.iter().zip(b).map(|(a, b)| a & !b).collect();
    let start = bitmap::first_set(&only_a, 0, bits)?;
    let end = bitmap::first_zero(&only_a, start, bits).unwrap_or(bits);
    let count = bits - bitmap::count_zeros(&only_a, bits);
    Some((count, Span { start: first + u64::from(start), end: first + u64::from(end) - 1 }))
}
