//! Writing a new volume as its layout says.

use std::ops::Range;

use moafs_disk::{Buf, Disk, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, Tag};
use moafs_vfs::types::FileKind;

use super::error::MkfsError;
use super::layout::{Contents, MapContents, PlannedFile, VolumeLayout};
use super::options::MkfsOptions;
use super::shape::FIRST_INO;
use crate::format::checksum::{ORPHAN_MAGIC, ORPHAN_TAIL_BYTES};
use crate::format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, InodeNo, Sealed, bitmap, dir, journal, put_u32};

/// Requests collected before they are submitted.
const BATCH: usize = 256;

/// Writes the volume; the primary superblock comes last of all.
pub(super) fn write(disk: &dyn Disk, layout: &VolumeLayout, options: &MkfsOptions) -> Result<(), MkfsError> {
    let mut writer = Writer { disk, geo: &layout.geometry, batch: Vec::new() };
    writer.erase_old(options.discard)?;
    writer.zero_tables(layout, options.lazy_tables)?;
    let descriptors = writer.write_bitmaps(layout)?;
    for file in &layout.files {
        writer.write_file(file, layout.has_journal(), &options.uuid)?;
    }
    writer.write_inodes(layout)?;
    writer.write_heads(layout, &descriptors)
}

/// Writes the journal of a layout, with an empty log, and its map. The caller writes what the volume's other
/// structures say of it.
pub(crate) fn write_journal(disk: &dyn Disk, layout: &VolumeLayout, uuid: &[u8; 16]) -> Result<(), MkfsError> {
    let doing = "write the journal";
    let mut writer = Writer { disk, geo: &layout.geometry, batch: Vec::new() };
    writer.zero_journal(layout)?;
    layout.files.iter().try_for_each(|file| writer.write_file(file, true, uuid))?;
    writer.submit(doing)?;
    writer.flush(doing)
}

struct Writer<'a> {
    disk: &'a dyn Disk,
    geo: &'a Geometry,
    batch: Vec<Request>,
}

impl Writer<'_> {
    fn submit(&mut self, doing: &'static str) -> Result<(), MkfsError> {
        let done = self.disk.run(std::mem::take(&mut self.batch));
        for one in done {
            one.result.map_err(|source| MkfsError::Disk { doing, source })?;
        }
        Ok(())
    }

    fn flush(&self, doing: &'static str) -> Result<(), MkfsError> {
        self.disk.flush().map_err(|source| MkfsError::Disk { doing, source })
    }

    fn queue(&mut self, op: Op, block: BlockNo, kind: Kind, doing: &'static str) -> Result<(), MkfsError> {
        let at = Lba::from_byte(self.geo.byte_of(block));
        self.batch.push(Request { op, at, tag: Tag::volume(kind) });
        if self.batch.len() >= BATCH {
            return self.submit(doing);
        }
        Ok(())
    }

    fn write(&mut self, data: Vec<Page>, block: BlockNo, kind: Kind) -> Result<(), MkfsError> {
        self.queue(Op::Write { data, fua: false }, block, kind, "write the new volume's metadata")
    }

    fn write_zeros(&mut self, blocks: Range<u64>, kind: Kind, doing: &'static str) -> Result<(), MkfsError> {
        let sectors = (blocks.end - blocks.start) * u64::from(self.geo.sectors_per_block());
        self.queue(Op::WriteZeroes { sectors }, BlockNo(blocks.start), kind, doing)
    }

    /// Makes sure that no reader finds the old volume, nor a half-made new one.
    fn erase_old(&mut self, discard: bool) -> Result<(), MkfsError> {
        let doing = "erase the old volume";
        if discard && self.disk.limits().discard {
            let sectors = self.disk.limits().sectors;
            self.batch.push(Request { op: Op::Discard { sectors }, at: Lba(0), tag: Tag::volume(Kind::Superblock) });
            self.submit(doing)?;
        }
        let sectors = 2 * SUPERBLOCK_OFFSET / SECTOR as u64;
        self.queue(Op::WriteZeroes { sectors }, BlockNo(0), Kind::Superblock, doing)?;
        self.submit(doing)?;
        self.flush(doing)
    }

    /// Zeroes the inode tables, those that lie together with one request, and the journal: a log of an older volume
    /// must not be taken for its own.
    fn zero_tables(&mut self, layout: &VolumeLayout, lazy_tables: bool) -> Result<(), MkfsError> {
        let doing = "zero the inode tables";
        let is_lazy = lazy_tables && self.geo.checksums.allow_lazy_groups();
        let blocks = u64::from(self.geo.inode_table_blocks);
        let mut together: Option<Range<u64>> = None;
        for descriptor in layout.descriptors.iter().filter(|_| !is_lazy) {
            let start = descriptor.inode_table.0;
            match &mut together {
                Some(run) if run.end == start => run.end += blocks,
                run => {
                    if let Some(run) = run.replace(start..start + blocks) {
                        self.write_zeros(run, Kind::Inodes, doing)?;
                    }
                }
            }
        }
        if let Some(run) = together {
            self.write_zeros(run, Kind::Inodes, doing)?;
        }
        self.zero_journal(layout)
    }

    fn zero_journal(&mut self, layout: &VolumeLayout) -> Result<(), MkfsError> {
        let doing = "zero the journal";
        for run in layout.files.iter().filter(|file| file.contents == Contents::Journal).flat_map(|file| &file.data) {
            self.write_zeros(run.clone(), Kind::Journal, doing)?;
        }
        // All of it is zero before the first of its blocks is written.
        self.submit(doing)
    }

    /// Writes the bitmaps of all groups but those that are not initialised. Returns the descriptors with the checksums
    /// of the bitmaps.
    fn write_bitmaps(&mut self, layout: &VolumeLayout) -> Result<Vec<Descriptor>, MkfsError> {
        let geo = self.geo;
        let mut descriptors = layout.descriptors.clone();
        for (group, descriptor) in geo.all_groups().zip(&mut descriptors) {
            let (block_bytes, inode_bytes) = geo.bitmap_bytes();
            if !descriptor.lacks_block_bitmap(geo) {
                let range = geo.group_range(group);
                let used = layout.used.within(range.clone());
                let bits = used.map(|run| (run.start - range.start) as u32..(run.end - range.start) as u32);
                let map = bitmap_page(geo.block_bytes(), bits, geo.group_blocks(group));
                descriptor.block_bitmap_csum = Descriptor::sum_of_bitmap(&map[..block_bytes], geo).unwrap_or(0);
                self.write(vec![map], descriptor.block_bitmap, Kind::Bitmap)?;
            }
            if !descriptor.lacks_inode_bitmap(geo) {
                let used = geo.inodes_per_group - descriptor.free_inodes;
                let map = bitmap_page(geo.block_bytes(), std::iter::once(0..used), geo.inodes_per_group);
                descriptor.inode_bitmap_csum = Descriptor::sum_of_bitmap(&map[..inode_bytes], geo).unwrap_or(0);
                self.write(vec![map], descriptor.inode_bitmap, Kind::Bitmap)?;
            }
        }
        Ok(descriptors)
    }

    /// Writes the contents of a file and its map. `has_journal`: directories are those of a volume with a journal.
    fn write_file(&mut self, file: &PlannedFile, has_journal: bool, uuid: &[u8; 16]) -> Result<(), MkfsError> {
        self.write_map(file)?;
        let geo = self.geo;
        let owner = file.inode.owner(file.ino);
        let form = dir::Form { is_whole: has_journal, ..dir::Form::of(geo) };
        let mut blocks = file.data.iter().flat_map(Range::clone).map(BlockNo).enumerate();
        match file.contents {
            Contents::Reserve => Ok(()),
            Contents::Journal => {
                let head = journal::new_superblock(geo.block_size, file.data_blocks() as u32, uuid);
                let block = page_with(geo, &head);
                self.write(vec![block.freeze()], BlockNo(file.data[0].start), Kind::Journal)
            }
            Contents::Orphans => blocks.try_for_each(|(_, at)| {
                let mut block = Buf::zeroed(geo.block_bytes());
                put_u32(&mut block, geo.block_bytes() - ORPHAN_TAIL_BYTES, ORPHAN_MAGIC);
                self.write_sealed(block, Sealed::OrphanFile(owner, at), at, Kind::Inodes)
            }),
            Contents::Root | Contents::LostFound => blocks.try_for_each(|(lbn, at)| {
                let mut block = Buf::zeroed(geo.block_bytes());
                match lbn {
                    0 => dir::format_first(&mut block, form, file.ino, InodeNo::ROOT),
                    _ => dir::format_empty(&mut block, form),
                }
                if file.contents == Contents::Root {
                    dir::insert(&mut block, form, b"lost+found", InodeNo(FIRST_INO), FileKind::Directory)
                        .expect("an empty directory block has room for a short name");
                }
                self.write_sealed(block, Sealed::Leaf(owner), at, Kind::Directory)
            }),
        }
    }

    fn write_sealed(&mut self, mut block: Buf, what: Sealed, at: BlockNo, kind: Kind) -> Result<(), MkfsError> {
        let sealed = self.geo.checksums.seal(what, &mut block);
        debug_assert!(sealed.is_ok(), "{what:?} has a place for its checksum");
        self.write(vec![block.freeze()], at, kind)
    }

    fn write_map(&mut self, file: &PlannedFile) -> Result<(), MkfsError> {
        let owner = file.inode.owner(file.ino);
        for node in &file.nodes {
            match &node.contents {
                MapContents::Pointers(entries) => {
                    let mut block = Buf::zeroed(self.geo.block_bytes());
                    entries.iter().for_each(|(index, pointer)| put_u32(&mut block, 4 * *index as usize, *pointer));
                    self.write(vec![block.freeze()], node.block, Kind::Map)?;
                }
                MapContents::Extents(bytes) => {
                    self.write_sealed(Buf::copy_of(bytes), Sealed::Extents(owner), node.block, Kind::Map)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the inodes, all of which lie in group 0. What else their blocks hold is zero.
    fn write_inodes(&mut self, layout: &VolumeLayout) -> Result<(), MkfsError> {
        let geo = self.geo;
        let locate = |file: &PlannedFile| geo.locate_inode(file.ino).expect("an inode of group 0");
        let mut files: Vec<_> = layout.files.iter().map(|file| (locate(file), file)).collect();
        files.sort_by_key(|(at, _)| (at.table_block, at.offset));
        let last_block = files.last().map_or(0, |(at, _)| at.table_block);
        for table_block in 0..=last_block {
            let mut block = Buf::zeroed(geo.block_bytes());
            for (at, file) in files.iter().filter(|(at, _)| at.table_block == table_block) {
                let slot = &mut block[at.offset..at.offset + geo.inode_size as usize];
                file.inode.encode_into(slot, geo);
                let sealed = geo.checksums.seal(Sealed::Inode(file.ino), slot);
                debug_assert!(sealed.is_ok(), "an inode has a place for its checksum");
            }
            let at = BlockNo(layout.descriptors[0].inode_table.0 + u64::from(table_block));
            self.write(vec![block.freeze()], at, Kind::Inodes)?;
        }
        Ok(())
    }

    /// Writes superblock copies and descriptors; the primary superblock last of all.
    fn write_heads(&mut self, layout: &VolumeLayout, descriptors: &[Descriptor]) -> Result<(), MkfsError> {
        let geo = self.geo;
        let table = descriptor_pages(geo, descriptors);
        let classic = &table[..table.len().min(geo.first_meta_bg as usize)];
        for group in geo.all_groups() {
            let start = if group.0 == 0 { geo.superblock_block() } else { geo.group_start(group).0 };
            let has_superblock = geo.has_superblock(group);
            if has_superblock && group.0 != 0 {
                let copy = superblock_page(layout, group, 0);
                self.write(vec![copy], BlockNo(start), Kind::Superblock)?;
            }
            if has_superblock && !classic.is_empty() {
                self.write(classic.to_vec(), BlockNo(start + 1), Kind::Descriptors)?;
            }
            if geo.has_meta_descriptors(group) {
                let page = table[(group.0 / geo.descriptors_per_block()) as usize].clone();
                self.write(vec![page], BlockNo(start + u64::from(has_superblock)), Kind::Descriptors)?;
            }
        }
        self.submit("write the group descriptors")?;
        self.flush("make the new volume's metadata durable")?;
        let offset = (SUPERBLOCK_OFFSET - geo.byte_of(BlockNo(geo.superblock_block()))) as usize;
        let primary = superblock_page(layout, GroupNo(0), offset);
        self.write(vec![primary], BlockNo(geo.superblock_block()), Kind::Superblock)?;
        self.submit("write the superblock")?;
        self.flush("make the superblock durable")
    }
}

/// Returns a block that begins with these bytes.
fn page_with(geo: &Geometry, bytes: &[u8]) -> Buf {
    let mut block = Buf::zeroed(geo.block_bytes());
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

/// Returns the block that holds the superblock of a group, `offset` bytes from its start.
fn superblock_page(layout: &VolumeLayout, group: GroupNo, offset: usize) -> Page {
    let copy = layout.superblock.copy_of_group(group);
    let mut block = Buf::zeroed(layout.geometry.block_bytes());
    block[offset..offset + SUPERBLOCK_BYTES].copy_from_slice(copy.as_bytes());
    block.freeze()
}

/// Returns a bitmap of `bits` bits with those of `used` set; the padding behind them is also set.
fn bitmap_page(block_bytes: usize, used: impl Iterator<Item = Range<u32>>, bits: u32) -> Page {
    let mut map = Buf::zeroed(block_bytes);
    used.for_each(|range| bitmap::set_range(&mut map, range));
    bitmap::pad(&mut map, bits);
    map.freeze()
}

fn descriptor_pages(geo: &Geometry, descriptors: &[Descriptor]) -> Vec<Page> {
    let per_block = geo.descriptors_per_block() as usize;
    let mut groups = geo.all_groups();
    let mut page = |part: &[Descriptor]| {
        let mut block = Buf::zeroed(geo.block_bytes());
        for ((slot, descriptor), group) in block.chunks_exact_mut(geo.desc_size as usize).zip(part).zip(&mut groups) {
            descriptor.encode_into(slot, geo);
            let sealed = geo.checksums.seal(Sealed::Descriptor(group), slot);
            debug_assert!(sealed.is_ok(), "a descriptor has a place for its checksum");
        }
        block.freeze()
    };
    descriptors.chunks(per_block).map(&mut page).collect()
}
