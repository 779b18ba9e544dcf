//! The journal as a file of its volume: where its blocks lie.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_vfs::types::FileKind;
use moafs_vfs::{Error, Result};

use crate::format::extent::Tree;
use crate::format::journal::{JournalSuperblock, SUPERBLOCK_BYTES};
use crate::format::map::POINTERS;
use crate::format::superblock::Compat;
use crate::format::{
    BlockNo, Descriptor, Geometry, Inode, InodeNo, Owner, Place, Sealed, Structure, Superblock, map, u32_at,
};
use crate::health::damaged;

/// A run of the journal's blocks on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRun {
    /// The first of them in the journal, counted from its superblock.
    pub at: u32,
    /// The same block on the volume.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

impl LogRun {
    /// Returns the block of the volume behind the run.
    pub(super) fn end(&self) -> BlockNo {
        BlockNo(self.start.0 + u64::from(self.len))
    }
}

/// A journal inside its volume.
pub struct Journal {
    pub(super) disk: SharedDisk,
    pub(super) geo: Geometry,
    pub(super) runs: Vec<LogRun>,
    /// The same runs, ascending by their place on the volume.
    sorted: Vec<LogRun>,
    /// The blocks of its map.
    maps: Vec<BlockNo>,
    pub(super) superblock: JournalSuperblock,
    /// The bytes of the superblock as they are on the disk.
    pub(super) superblock_bytes: Vec<u8>,
}

impl Journal {
    /// Finds the journal of a volume; `None` if it has none. Reads the volume as it lies on the disk.
    ///
    /// # Errors
    /// [`Error::Refused`] for a journal on another device; damage and device errors as they are.
    pub fn open(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Option<Journal>> {
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        if sb.journal_inum() == 0 {
            return Err(Error::Refused(
                "the journal is on another device, which is not supported: mount the volume with the kernel".to_owned(),
            ));
        }
        let ino = InodeNo(sb.journal_inum());
        let volume = Volume { disk, geo };
        let (inode, table) = volume.inode(ino)?;
        let place = Place::new(Structure::Inode(ino), table);
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            return Err(damaged(place.damage("this is not the inode of a journal")));
        }
        let blocks = inode.size / u64::from(geo.block_size);
        let blocks = u32::try_from(blocks.min(geo.blocks)).unwrap_or(u32::MAX);
        let (runs, maps) = volume.runs(&inode, inode.owner(ino), table, blocks)?;
        let mapped = runs.last().map_or(0, |run| u64::from(run.at) + u64::from(run.len));
        let Some(first) = runs.first() else {
            return Err(damaged(place.damage("the journal has no blocks")));
        };
        let bytes = volume.block(first.start, Kind::Journal)?;
        let superblock =
            JournalSuperblock::decode(&bytes[..SUPERBLOCK_BYTES], geo.block_size, mapped).map_err(damaged)?;
        let mut sorted = runs.clone();
        sorted.sort_by_key(|run| run.start);
        if sorted.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(damaged(place.damage("the journal has a block twice")));
        }
        let superblock_bytes = bytes[..SUPERBLOCK_BYTES].to_vec();
        Ok(Some(Journal { disk: Arc::clone(disk), geo: geo.clone(), runs, sorted, maps, superblock, superblock_bytes }))
    }

    /// Returns the journal's superblock.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns the runs of the journal's blocks, ascending by their place in the journal.
    pub fn runs(&self) -> &[LogRun] {
        &self.runs
    }

    /// Returns the blocks that the journal has on the volume, those of its map among them: no other file may own one.
    pub fn blocks(&self) -> Vec<Range<u64>> {
        let maps = self.maps.iter().map(|block| block.0..block.0 + 1);
        self.runs.iter().map(|run| run.start.0..run.end().0).chain(maps).collect()
    }

    /// Returns the block of the volume that holds a block of the journal; `None` beyond its end.
    pub(super) fn locate(&self, at: u32) -> Option<(BlockNo, u32)> {
        let index = self.runs.partition_point(|run| run.at <= at).checked_sub(1)?;
        let run = self.runs[index];
        let skipped = at - run.at;
        (skipped < run.len).then(|| (BlockNo(run.start.0 + u64::from(skipped)), run.len - skipped))
    }

    /// Returns the same as [`Self::locate`].
    ///
    /// # Errors
    /// Damage if the journal has no such block.
    pub(super) fn locate_checked(&self, at: u32) -> Result<(BlockNo, u32)> {
        self.locate(at)
            .ok_or_else(|| damaged(Place::of(Structure::LogBlock(at)).damage("it lies beyond the end of the journal")))
    }

    /// Returns true if a block of the volume belongs to the journal itself.
    pub(super) fn owns(&self, block: BlockNo) -> bool {
        let before = self.sorted.partition_point(|run| run.start <= block);
        before > 0 && block < self.sorted[before - 1].end()
    }
}

/// A volume that is read as it lies on the disk, block by block.
struct Volume<'a> {
    disk: &'a SharedDisk,
    geo: &'a Geometry,
}

impl Volume<'_> {
    fn block(&self, block: BlockNo, kind: Kind) -> Result<Buf> {
        let at = Lba::from_byte(self.geo.byte_of(block));
        let read = self.disk.read(at, self.geo.block_bytes(), Tag::volume(kind));
        read.map_err(|source| Error::disk(format!("reading block {block}"), source))
    }

    /// Reads an inode, and returns it with the block that holds it.
    fn inode(&self, ino: InodeNo) -> Result<(Inode, BlockNo)> {
        let Some(at) = self.geo.locate_inode(ino) else {
            let problem = format!("the journal is inode {ino}, but there are only {}", self.geo.inodes);
            return Err(damaged(Place::of(Structure::Superblock).damage(problem)));
        };
        let (block, offset) = self.geo.locate_descriptor(at.group);
        let bytes = self.block(block, Kind::Descriptors)?;
        let slot = &bytes[offset..offset + self.geo.desc_size as usize];
        let descriptor = Descriptor::decode(slot, at.group, self.geo).map_err(damaged)?;
        let table = BlockNo(descriptor.inode_table.0 + u64::from(at.table_block));
        let bytes = self.block(table, Kind::Inodes)?;
        let slot = &bytes[at.offset..at.offset + self.geo.inode_size as usize];
        let place = Place::new(Structure::Inode(ino), table);
        self.geo.checksums.verify(Sealed::Inode(ino), slot).map_err(|problem| damaged(place.damage(problem)))?;
        Ok((Inode::parse(slot, self.geo), table))
    }

    /// Returns the runs of an inode's first `blocks` blocks, which must have no hole, and the blocks of its map.
    fn runs(&self, inode: &Inode, owner: Owner, table: BlockNo, blocks: u32) -> Result<(Vec<LogRun>, Vec<BlockNo>)> {
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
                    return Err(damaged(place.damage("the journal has blocks that were never written")));
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
    runs: Vec<LogRun>,
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
            let problem = format!("the journal has a hole at its block {}", self.next);
            return Err(damaged(self.place.damage(problem)));
        }
        let len = len.min(u64::from(self.end - self.next)) as u32;
        match self.runs.last_mut() {
            Some(last) if last.end() == start => last.len += len,
            _ => self.runs.push(LogRun { at: self.next, start, len }),
        }
        self.next += len;
        Ok(())
    }
}
