//! Makes the checksums of an ext4 image right again, so that the damage itself is judged.
//!
//! Only what can still be found is sealed: where the superblock or a position makes no sense, nothing is. The checksums
//! are those of `moafs_ext`; the reference checker judges them with every image that it calls clean.

use std::collections::BTreeSet;

use moafs_disk::mem::MemDisk;
use moafs_ext::format::group::{BLOCK_UNINIT, INODE_UNINIT};
use moafs_ext::format::{BlockNo, Descriptor, Geometry, GroupNo, Inode, Owner, Sealed, Superblock, dir};

/// Nodes of extent trees, and blocks of directories, that are sealed at most.
const VISITS_MAX: usize = 20_000;

/// An image, and the blocks that were sealed.
struct Sealer<'a> {
    image: &'a MemDisk,
    geo: Geometry,
    sealed: BTreeSet<u64>,
}

/// Seals the superblock, descriptors, bitmaps, inodes, and the blocks of trees, directories and attributes.
pub(super) fn seal(image: &MemDisk) {
    let mut raw = [0; 1024];
    image.peek(1024, &mut raw);
    let Ok(sb) = Superblock::parse(&raw) else { return };
    let Ok(geo) = Geometry::of(&sb, moafs_disk::Disk::limits(image).sectors * 512) else { return };
    if geo.checksums.seal(Sealed::Superblock, &mut raw).is_ok() {
        image.poke(1024, &raw);
    }
    let mut sealer = Sealer { image, geo, sealed: BTreeSet::new() };
    for group in sealer.geo.all_groups() {
        sealer.group(group);
    }
}

impl Sealer<'_> {
    fn change(&self, at: u64, bytes: usize, change: impl FnOnce(&mut [u8])) {
        let mut contents = vec![0; bytes];
        self.image.peek(at, &mut contents);
        change(&mut contents);
        self.image.poke(at, &contents);
    }

    fn has(&self, block: BlockNo) -> bool {
        block.0 > 0 && block.0 < self.geo.blocks
    }

    fn group(&mut self, group: GroupNo) {
        let geo = self.geo.clone();
        let (block, offset) = geo.locate_descriptor(group);
        let (at, bytes) = (geo.byte_of(block) + offset as u64, geo.desc_size as usize);
        let mut slot = vec![0; bytes];
        self.image.peek(at, &mut slot);
        let mut descriptor = Descriptor::parse(&slot, &geo);
        let table_ends = descriptor.inode_table.0.saturating_add(geo.inode_table_blocks.into()) <= geo.blocks;
        if self.has(descriptor.inode_table) && table_ends {
            self.inodes(group, &descriptor);
        }
        let (of_blocks, of_inodes) = geo.bitmap_bytes();
        let sum = |block: BlockNo, bytes: usize| {
            if !self.has(block) {
                return None;
            }
            let mut map = vec![0; bytes];
            self.image.peek(geo.byte_of(block), &mut map);
            Descriptor::sum_of_bitmap(&map, &geo)
        };
        let is_written = |flag: u16| descriptor.flags & flag == 0;
        if let Some(sum) = sum(descriptor.block_bitmap, of_blocks).filter(|_| is_written(BLOCK_UNINIT)) {
            descriptor.block_bitmap_csum = sum;
        }
        if let Some(sum) = sum(descriptor.inode_bitmap, of_inodes).filter(|_| is_written(INODE_UNINIT)) {
            descriptor.inode_bitmap_csum = sum;
        }
        descriptor.encode_into(&mut slot, &geo);
        if geo.checksums.seal(Sealed::Descriptor(group), &mut slot).is_ok() {
            self.image.poke(at, &slot);
        }
    }

    fn inodes(&mut self, group: GroupNo, descriptor: &Descriptor) {
        let geo = self.geo.clone();
        for index in 0..geo.inodes_per_group {
            let ino = geo.inode_at(group, index);
            let at = geo.byte_of(descriptor.inode_table) + u64::from(index) * u64::from(geo.inode_size);
            let mut inode = Inode::default();
            self.change(at, geo.inode_size as usize, |slot| {
                if slot.iter().any(|&byte| byte != 0) && geo.checksums.seal(Sealed::Inode(ino), slot).is_ok() {
                    inode = Inode::parse(slot, &geo);
                }
            });
            if inode.links > 0 {
                self.blocks_of(&inode, inode.owner(ino));
            }
        }
    }

    fn blocks_of(&mut self, inode: &Inode, owner: Owner) {
        self.block(BlockNo(inode.file_acl), |block, _| Some(Sealed::Xattrs(block)));
        let is_dir = inode.is_dir();
        if inode.has_extents() {
            self.node(&inode.block_bytes(), is_dir, owner, 0);
        } else if is_dir {
            inode.block[..12].iter().for_each(|block| self.dir_block(BlockNo((*block).into()), owner));
        }
    }

    /// Seals what a node of an extent tree leads to.
    fn node(&mut self, node: &[u8], is_dir: bool, owner: Owner, level: u32) {
        let word = |at: usize| u64::from(u16::from_le_bytes([node[at], node[at + 1]]));
        let long = |at: usize| word(at) | word(at + 2) << 16;
        let (entries, depth) = (word(2) as usize, word(6));
        for at in (0..entries).map(|entry| 12 + 12 * entry).take_while(|at| at + 12 <= node.len()) {
            if depth == 0 && is_dir {
                let start = long(at + 8) | word(at + 6) << 32;
                (0..word(at + 4).min(64)).for_each(|n| self.dir_block(BlockNo(start.saturating_add(n)), owner));
            } else if depth > 0 && level < 5 {
                let block = BlockNo(long(at + 4) | word(at + 8) << 32);
                let child = self.block(block, |_, _| Some(Sealed::Extents(owner)));
                child.into_iter().for_each(|child| self.node(&child, is_dir, owner, level + 1));
            }
        }
    }

    fn dir_block(&mut self, block: BlockNo, owner: Owner) {
        self.block(block, |_, bytes| Some(dir::sealed_by_shape(bytes, owner)));
    }

    /// Seals a block, and returns its bytes; nothing if it is not on the volume, or was sealed before.
    fn block(&mut self, block: BlockNo, what: impl FnOnce(BlockNo, &[u8]) -> Option<Sealed>) -> Option<Vec<u8>> {
        let is_new = self.has(block) && self.sealed.len() < VISITS_MAX && self.sealed.insert(block.0);
        if !is_new {
            return None;
        }
        let mut bytes = vec![0; self.geo.block_bytes()];
        self.image.peek(self.geo.byte_of(block), &mut bytes);
        if let Some(what) = what(block, &bytes)
            && self.geo.checksums.seal(what, &mut bytes).is_ok()
        {
            self.image.poke(self.geo.byte_of(block), &bytes);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::family::Ext4;
    use crate::mutate::golden;

    #[test]
    fn sealing_a_sound_image_changes_nothing() {
        for image in golden::all::<Ext4>() {
            let sealed = image.disk.snapshot();
            super::seal(&sealed);
            assert!(sealed.to_bytes() == image.disk.to_bytes(), "{}", image.name);
        }
    }
}
