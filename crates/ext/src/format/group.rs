//! Group descriptors: the places of a group's bitmaps and inode table, and its free counts.

use std::ops::Deref;

use super::{BlockNo, Damage, Geometry, GroupNo, Place, Sealed, Structure, join16, join32, put_u16, u16_at, u32_at};

/// `bg_flags`: the inode bitmap and table were never written.
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written.
pub const BLOCK_UNINIT: u16 = 2;

/// `bg_flags`: the inode table was written with zeros.
pub const INODE_ZEROED: u16 = 4;

/// A group descriptor: its decoded fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The block of the block bitmap.
    pub block_bitmap: BlockNo,
    /// The block of the inode bitmap.
    pub inode_bitmap: BlockNo,
    /// The first block of the inode table.
    pub inode_table: BlockNo,
    /// Number of free blocks (clusters with bigalloc).
    pub free_blocks: u32,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// Inodes that are directories.
    pub used_dirs: u32,
    /// `bg_flags`; 0 on ext2 and ext3.
    pub flags: u16,
    /// Inodes at the end of the table that were never used; 0 on ext2 and ext3.
    pub itable_unused: u32,
    /// The checksum of the block bitmap; descriptors of 32 bytes have its low 16 bits. Meaningless on volumes without
    /// checksums of bitmaps.
    pub block_bitmap_csum: u32,
    /// The checksum of the inode bitmap, likewise.
    pub inode_bitmap_csum: u32,
}

impl Descriptor {
    /// Takes a descriptor's bytes as they are; [`Descriptor::check`] judges them.
    ///
    /// # Panics
    /// If `slot` is shorter than [`Geometry::desc_size`], which is the caller's mistake.
    pub fn parse(slot: &[u8], geo: &Geometry) -> Descriptor {
        let wide = geo.desc_size >= 64;
        let high32 = |at| if wide { u32_at(slot, at) } else { 0 };
        let high16 = |at| if wide { u16_at(slot, at) } else { 0 };
        Descriptor {
            block_bitmap: BlockNo(join32(u32_at(slot, 0x00), high32(0x20))),
            inode_bitmap: BlockNo(join32(u32_at(slot, 0x04), high32(0x24))),
            inode_table: BlockNo(join32(u32_at(slot, 0x08), high32(0x28))),
            free_blocks: join16(u16_at(slot, 0x0C), high16(0x2C)),
            free_inodes: join16(u16_at(slot, 0x0E), high16(0x2E)),
            used_dirs: join16(u16_at(slot, 0x10), high16(0x30)),
            flags: u16_at(slot, 0x12),
            itable_unused: join16(u16_at(slot, 0x1C), high16(0x32)),
            block_bitmap_csum: join16(u16_at(slot, 0x18), high16(0x38)),
            inode_bitmap_csum: join16(u16_at(slot, 0x1A), high16(0x3A)),
        }
    }

    /// Stores the descriptor; bytes it does not know (its own checksum, reserved ones) are kept.
    ///
    /// # Panics
    /// If `slot` is shorter than [`Geometry::desc_size`], which is the caller's mistake.
    pub fn encode_into(&self, slot: &mut [u8], geo: &Geometry) {
        let wide = geo.desc_size >= 64;
        let positions = [self.block_bitmap, self.inode_bitmap, self.inode_table];
        for (i, position) in positions.into_iter().enumerate() {
            slot[4 * i..4 * i + 4].copy_from_slice(&(position.0 as u32).to_le_bytes());
            if wide {
                let at = 0x20 + 4 * i;
                slot[at..at + 4].copy_from_slice(&((position.0 >> 32) as u32).to_le_bytes());
            }
        }
        let counts = [self.free_blocks, self.free_inodes, self.used_dirs];
        for (i, count) in counts.into_iter().enumerate() {
            put_u16(slot, 0x0C + 2 * i, count as u16);
            if wide {
                put_u16(slot, 0x2C + 2 * i, (count >> 16) as u16);
            }
        }
        put_u16(slot, 0x12, self.flags);
        for (low, high, value) in [
            (0x18, 0x38, self.block_bitmap_csum),
            (0x1A, 0x3A, self.inode_bitmap_csum),
            (0x1C, 0x32, self.itable_unused),
        ] {
            put_u16(slot, low, value as u16);
            if wide {
                put_u16(slot, high, (value >> 16) as u16);
            }
        }
    }

    /// Decodes and judges the descriptor in `slot`: its checksum first, then its fields ([`Descriptor::check`]).
    ///
    /// # Errors
    /// The first rule that is broken.
    ///
    /// # Panics
    /// If `slot` is not [`Geometry::desc_size`] bytes long, which is the caller's mistake.
    pub fn decode(slot: &[u8], group: GroupNo, geo: &Geometry) -> Result<Descriptor, Damage> {
        let place = Place::new(Structure::Descriptor(group), geo.locate_descriptor(group).0);
        geo.checksums.verify(Sealed::Descriptor(group), slot).map_err(|problem| place.damage(problem))?;
        let descriptor = Descriptor::parse(slot, geo);
        descriptor.check(group, geo).map(|()| descriptor)
    }

    /// Reads the copy of a group's descriptor. Returns it with its block; `None` if there is no copy that can be used.
    ///
    /// # Errors
    /// Those of `read`, which returns a block of the volume.
    pub fn of_copy<B, E>(
        group: GroupNo,
        geo: &Geometry,
        read: impl FnOnce(BlockNo) -> Result<B, E>,
    ) -> Result<Option<(BlockNo, Descriptor)>, E>
    where
        B: Deref<Target = [u8]>,
    {
        let Some((block, offset)) = geo.locate_descriptor_copy(group) else { return Ok(None) };
        let slot = &read(block)?[offset..offset + geo.desc_size as usize];
        Ok(Descriptor::decode(slot, group, geo).ok().map(|copy| (block, copy)))
    }

    /// Returns true if a flag of uninitialised parts is set, on a volume that may have them.
    fn is_lazy(&self, flag: u16, geo: &Geometry) -> bool {
        geo.checksums.allow_lazy_groups() && self.flags & flag != 0
    }

    /// Returns true if the block bitmap was never written: only the group's own metadata are in use.
    pub fn lacks_block_bitmap(&self, geo: &Geometry) -> bool {
        self.is_lazy(BLOCK_UNINIT, geo)
    }

    /// Returns true if the inode bitmap was never written: no inode of the group is in use.
    pub fn lacks_inode_bitmap(&self, geo: &Geometry) -> bool {
        self.is_lazy(INODE_UNINIT, geo)
    }

    /// Returns the number of inodes at the start of the table that may have been used; what lies behind them was
    /// possibly never written.
    pub fn inodes_ever_used(&self, geo: &Geometry) -> u32 {
        match geo.checksums.allow_lazy_groups() {
            true if self.lacks_inode_bitmap(geo) => 0,
            true => geo.inodes_per_group.saturating_sub(self.itable_unused),
            false => geo.inodes_per_group,
        }
    }

    /// Checks that the positions lie on the volume (without flex_bg: in the group itself), apart
    /// from one another and from the group's superblock and descriptor copies.
    ///
    /// # Errors
    /// The first rule that is broken. Counts are not judged: they may be stale.
    pub fn check(&self, group: GroupNo, geo: &Geometry) -> Result<(), Damage> {
        let place = Place::new(Structure::Descriptor(group), geo.locate_descriptor(group).0);
        let own = geo.group_range(group);
        let head_end = own.start + u64::from(geo.head_blocks(group));
        let range = if geo.flex_bg { geo.first_data_block + 1..geo.blocks } else { own };
        let table_blocks = u64::from(geo.inode_table_blocks);
        let parts = [
            ("block bitmap", self.block_bitmap.0, 1),
            ("inode bitmap", self.inode_bitmap.0, 1),
            ("inode table", self.inode_table.0, table_blocks),
        ];
        for (name, start, len) in parts {
            let inside = start >= range.start && start.checked_add(len).is_some_and(|end| end <= range.end);
            let on_head = start < head_end && start + len > geo.group_start(group).0;
            if !inside || on_head {
                return Err(place.damage(format!(
                    "the {name} is at block {start}, outside blocks {} to {} that may hold it",
                    range.start.max(head_end.min(range.end)),
                    range.end - 1
                )));
            }
        }
        let overlap = |a: (u64, u64), b: (u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        for (i, j) in [(0, 1), (0, 2), (1, 2)] {
            let (a, b) = (parts[i], parts[j]);
            if overlap((a.1, a.2), (b.1, b.2)) {
                return Err(place.damage(format!("{} and {} overlap", a.0, b.0)));
            }
        }
        Ok(())
    }

    /// Returns the checksum of the bytes of a bitmap that it covers, as a descriptor holds it: one of 32 bytes has the
    /// low half only. `None` on volumes without.
    pub fn sum_of_bitmap(covered: &[u8], geo: &Geometry) -> Option<u32> {
        let sum = geo.checksums.of_bitmap(covered)?;
        Some(if geo.desc_size >= 64 { sum } else { sum & 0xFFFF })
    }

    /// Compares the checksum of a bitmap as its descriptor has it with the bytes that it covers.
    ///
    /// # Errors
    /// Damage at `place` if they differ.
    pub fn check_bitmap(covered: &[u8], stored: u32, geo: &Geometry, place: Place) -> Result<(), Damage> {
        match Self::sum_of_bitmap(covered, geo) {
            Some(sum) if sum != stored => {
                Err(place.damage(format!("its checksum is {sum:#010x}, but the group's descriptor has {stored:#010x}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if `block` belongs to this group's bitmaps or inode table.
    pub fn owns(&self, block: BlockNo, geo: &Geometry) -> bool {
        block == self.block_bitmap
            || block == self.inode_bitmap
            || (self.inode_table.0..self.inode_table.0 + u64::from(geo.inode_table_blocks)).contains(&block.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::sample;
    use super::*;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        Geometry::of(&sample(), u64::MAX).unwrap()
    }

    fn good() -> Descriptor {
        Descriptor {
            block_bitmap: BlockNo(3),
            inode_bitmap: BlockNo(4),
            inode_table: BlockNo(5),
            ..Descriptor::default()
        }
    }

    #[test]
    fn positions_must_lie_apart_inside_the_group() {
        let geo = geometry();
        good().check(GroupNo(0), &geo).unwrap();
        let bad = [
            Descriptor { block_bitmap: BlockNo(2), ..good() },
            Descriptor { block_bitmap: BlockNo(0), ..good() },
            Descriptor { inode_bitmap: BlockNo(3), ..good() },
            Descriptor { inode_bitmap: BlockNo(50), ..good() },
            Descriptor { inode_table: BlockNo(8100), ..good() },
            Descriptor { inode_table: BlockNo(u64::MAX), ..good() },
        ];
        for descriptor in bad {
            assert!(descriptor.check(GroupNo(0), &geo).is_err(), "{descriptor:?}");
        }
        assert!(good().check(GroupNo(1), &geo).is_err());
    }

    proptest! {
        #[test]
        fn parse_of_emitted_is_the_same(raw in prop::array::uniform32(any::<u8>()), wide in any::<bool>()) {
            let mut geo = geometry();
            geo.desc_size = if wide { 64 } else { 32 };
            let mut slot = [raw, raw].concat();
            let meaning = Descriptor::parse(&slot, &geo);
            let before = slot.clone();
            meaning.encode_into(&mut slot, &geo);
            prop_assert_eq!(&slot, &before);
            prop_assert_eq!(Descriptor::parse(&slot, &geo), meaning);
            let _ = meaning.check(GroupNo(1), &geo);
        }
    }
}
