//! Files of the volume's own, the journal and the orphan file: where their blocks lie, as the volume on the disk tells.

use std::collections::BTreeSet;
use std::ops::Range;

use moafs_disk::{Buf, DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_vfs::types::FileKind;
use moafs_vfs::{Error, Result};

use crate::format::extent::Tree;
use crate::format::map::POINTERS;
use crate::format::{
    BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Owner, Place, Sealed, Structure, map, u32_at,
};
use crate::health::damaged;

/// A run of the blocks of such a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRun {
    /// The first of them in the file.
    pub at: u32,
    /// The same block on the volume.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

impl OwnRun {
    /// Returns the block of the volume behind the run.
    pub(crate) fn end(&self) -> BlockNo {
        BlockNo(self.start.0 + u64::from(self.len))
    }
}

/// The blocks of such a file.
pub(crate) struct OwnFile {
    /// The runs of its contents, ascending: without holes, and no block twice.
    pub(crate) runs: Vec<OwnRun>,
    /// The blocks of its map.
    maps: Vec<BlockNo>,
}

impl OwnFile {
    /// Finds the blocks of a file.
    ///
    /// # Errors
    /// Damage if the inode is not that of a regular file in use, or its map is damaged or has holes; device errors.
    pub(crate) fn read(disk: &SharedDisk, geo: &Geometry, ino: InodeNo) -> Result<OwnFile> {
        let (inode, table) = Volume { disk, geo }.inode(ino)?;
        OwnFile::of(disk, geo, ino, &inode, table)
    }

    /// Finds the blocks of a file with this inode, which lies in a block of the inode table.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn of(
        disk: &SharedDisk,
        geo: &Geometry,
        ino: InodeNo,
        inode: &Inode,
        table: BlockNo,
    ) -> Result<OwnFile> {
        let place = Place::new(Structure::Inode(ino), table);
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            return Err(damaged(place.damage("this is not the inode of a regular file in use")));
        }
        let blocks = inode.size / u64::from(geo.block_size);
        let blocks = u32::try_from(blocks.min(geo.blocks)).unwrap_or(u32::MAX);
        let (runs, maps) = Volume { disk, geo }.runs(inode, inode.owner(ino), table, blocks)?;
        if runs.is_empty() {
            return Err(damaged(place.damage("the file has no blocks")));
        }
        let mut sorted = runs.clone();
        sorted.sort_by_key(|run| run.start);
        if sorted.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(damaged(place.damage("the file has a block twice")));
        }
        Ok(OwnFile { runs, maps })
    }

    /// Returns its blocks, those of its map among them: no other file may own one.
    pub(crate) fn blocks(&self) -> Vec<Range<u64>> {
        let maps = self.maps.iter().map(|block| block.0..block.0 + 1);
        self.runs.iter().map(|run| run.start.0..run.end().0).chain(maps).collect()
    }
}

/// Returns a block as it lies on the disk.
pub(crate) fn read_block(disk: &SharedDisk, geo: &Geometry, block: BlockNo, kind: Kind) -> Result<Buf> {
    let read = disk.read(Lba::from_byte(geo.byte_of(block)), geo.block_bytes(), Tag::volume(kind));
    read.map_err(|source| Error::disk(format!("reading block {block}"), source))
}

/// Returns the block that holds an inode, and the byte of that where its slot begins.
///
/// # Errors
/// Damage if the volume has no such inode, or its descriptor and the copy of that are damaged; device errors.
pub(crate) fn raw_inode(disk: &SharedDisk, geo: &Geometry, ino: InodeNo) -> Result<(BlockNo, usize)> {
    let Some(at) = geo.locate_inode(ino) else {
        let problem = format!("it names inode {ino} for a file of its own, but there are only {}", geo.inodes);
        return Err(damaged(Place::of(Structure::Superblock).damage(problem)));
    };
    let table = descriptor(disk, geo, at.group)?.inode_table;
    Ok((BlockNo(table.0 + u64::from(at.table_block)), at.offset))
}

/// Returns a group's descriptor, or the copy of a damaged one: the log may be all that repairs it.
fn descriptor(disk: &SharedDisk, geo: &Geometry, group: GroupNo) -> Result<Descriptor> {
    let read = |block| read_block(disk, geo, block, Kind::Descriptors);
    let (block, offset) = geo.locate_descriptor(group);
    let slot = &read(block)?[offset..offset + geo.desc_size as usize];
    match Descriptor::decode(slot, group, geo) {
        Ok(descriptor) => Ok(descriptor),
        Err(damage) => Descriptor::of_copy(group, geo, read)?.map(|(_, copy)| copy).ok_or_else(|| damaged(damage)),
    }
}

/// A volume that is read as it lies on the disk, block by block.
struct Volume<'a> {
    disk: &'a SharedDisk,
    geo: &'a Geometry,
}

impl Volume<'_> {
    fn block(&self, block: BlockNo, kind: Kind) -> Result<Buf> {
        read_block(self.disk, self.geo, block, kind)
    }

    /// Reads an inode, and returns it with the block that holds it.
    fn inode(&self, ino: InodeNo) -> Result<(Inode, BlockNo)> {
        let (table, offset) = raw_inode(self.disk, self.geo, ino)?;
        let bytes = self.block(table, Kind::Inodes)?;
        let slot = &bytes[offset..offset + self.geo.inode_size as usize];
        let place = Place::new(Structure::Inode(ino), table);
        self.geo.checksums.verify(Sealed::Inode(ino), slot).map_err(|problem| damaged(place.damage(problem)))?;
        Ok((Inode::parse(slot, self.geo), table))
    }

    /// Returns the runs of an inode's first `blocks` blocks, which must have no hole, and the blocks of its map.
    fn runs(&self, inode: &Inode, owner: Owner, table: BlockNo, blocks: u32) -> Result<(Vec<OwnRun>, Vec<BlockNo>)> {
        let place = Place::new(Structure::Inode(owner.ino), table);
        let mut maps = Vec::new();
        let mut runs = Runs { runs: Vec::new(), next: 0, end: blocks, place };
        if inode.has_extents() {
            let root = inode.block_bytes();
            let tree = Tree { owner, root: &root, block: table };
            let mut read = |block| {
                maps.push(block);
                self.block(block, Kind::Map)
            };
            tree.walk(self.geo, &mut read, &mut |extent| {
                if extent.unwritten {
                    return Err(damaged(place.damage("the file has blocks that were never written")));
                }
                runs.add(extent.lbn.into(), extent.start, extent.len.into())
            })?;
        } else {
            let mut seen = BTreeSet::new();
            for (slot, pointer) in inode.block.into_iter().enumerate().take(POINTERS) {
                self.pointers(map::level_of_slot(slot), pointer, &mut runs, &mut seen)?;
            }
            maps.extend(seen.into_iter().map(|block| BlockNo(block.into())));
        }
        Ok((runs.runs, maps))
    }

    /// Takes what a pointer leads to. `seen` holds the indirect blocks so far: a loop ends there.
    fn pointers(&self, level: u8, pointer: u32, runs: &mut Runs, seen: &mut BTreeSet<u32>) -> Result<()> {
        if runs.is_full() {
            return Ok(());
        }
        let block = BlockNo(pointer.into());
        if !self.geo.may_point_to(block) {
            return Err(damaged(runs.place.damage(format!("a pointer leads to block {block}, outside the volume"))));
        }
        if level == 0 {
            return runs.add(runs.next.into(), block, 1);
        }
        if !seen.insert(pointer) {
            return Err(damaged(runs.place.damage(format!("indirect block {block} is used twice"))));
        }
        let bytes = self.block(block, Kind::Map)?;
        (0..self.geo.apb as usize).try_for_each(|index| self.pointers(level - 1, u32_at(&bytes, 4 * index), runs, seen))
    }
}

/// Runs that are being collected.
struct Runs {
    runs: Vec<OwnRun>,
    next: u32,
    end: u32,
    place: Place,
}

impl Runs {
    fn is_full(&self) -> bool {
        self.next >= self.end
    }

    fn add(&mut self, lbn: u64, start: BlockNo, len: u64) -> Result<()> {
        if self.is_full() {
            return Ok(());
        }
        if lbn != u64::from(self.next) {
            let problem = format!("the file has a hole at its block {}", self.next);
            return Err(damaged(self.place.damage(problem)));
        }
        let len = len.min(u64::from(self.end - self.next)) as u32;
        match self.runs.last_mut() {
            Some(last) if last.end() == start => last.len += len,
            _ => self.runs.push(OwnRun { at: self.next, start, len }),
        }
        self.next += len;
        Ok(())
    }
}
