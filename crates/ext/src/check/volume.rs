//! The volume under check: blocks read from the device, and changed blocks kept until they are written.

use std::collections::BTreeMap;

use moafs_disk::{Buf, Disk, DiskError, DiskExt, Kind, Lba, Op, Page, Request, SECTOR, Tag};
use moafs_runtime::leaf::Mutex;

use super::error::CheckError;
use super::scan::Blocks;
use crate::format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State};
use crate::format::{BlockNo, Geometry, InodeNo, Sealed, Superblock, checksum};

/// Memory for clean blocks, in bytes.
const CLEAN_BYTES_MAX: usize = 16 << 20;
/// Changed blocks are written when they take this much memory, in bytes.
const DIRTY_BYTES_MAX: usize = 32 << 20;

/// Blocks of a volume on a disk. Changes become visible to reads at once.
pub(super) struct Volume<'a> {
    disk: &'a dyn Disk,
    geo: Geometry,
    blocks: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    clean: BTreeMap<u64, Page>,
    dirty: BTreeMap<u64, Page>,
    failed: Option<DiskError>,
}

fn request(op: Op, byte: u64) -> Request {
    // The content of a checked block is not known where it is read: all count as volume work.
    Request { op, at: Lba::from_byte(byte), tag: Tag::volume(Kind::Inodes) }
}

/// Reads a superblock's bytes at `byte`, which need not be aligned to blocks.
pub(super) fn read_superblock(disk: &dyn Disk, byte: u64) -> Result<Buf, DiskError> {
    disk.read(Lba::from_byte(byte), SUPERBLOCK_BYTES, Tag::volume(Kind::Superblock))
}

/// Takes the mark of a clean volume away before the first repair: a power cut in between leaves a
/// volume that is checked again.
pub(super) fn mark_in_repair(disk: &dyn Disk) -> Result<(), CheckError> {
    let doing = "mark the volume as in repair";
    let failed = |source| CheckError::Disk { doing, source };
    let raw = read_superblock(disk, SUPERBLOCK_OFFSET).map_err(failed)?;
    // A damaged superblock has no mark to take away.
    let Ok(mut superblock) = Superblock::parse(&raw) else { return Ok(()) };
    if !superblock.state().contains(State::VALID) {
        return Ok(());
    }
    let was_right = superblock.verify().is_ok();
    superblock.set_state(superblock.state() - State::VALID);
    let mut page = Buf::copy_of(superblock.as_bytes());
    if was_right && superblock.checksums().cover_all() {
        checksum::keep_superblock_sum(&mut page);
    }
    let done = disk.write(Lba::from_byte(SUPERBLOCK_OFFSET), page.freeze(), Tag::volume(Kind::Superblock));
    done.and_then(|_| disk.flush()).map_err(failed)
}

impl<'a> Volume<'a> {
    pub(super) fn new(disk: &'a dyn Disk, geo: Geometry) -> Volume<'a> {
        Volume { disk, geo, blocks: Mutex::default() }
    }

    /// Replaces a block's contents.
    pub(super) fn write(&self, block: BlockNo, contents: Buf) {
        let mut held = self.blocks.lock();
        held.clean.remove(&block.0);
        held.dirty.insert(block.0, contents.freeze());
        if held.dirty.len() * self.geo.block_bytes() > DIRTY_BYTES_MAX {
            self.write_out(&mut held);
        }
    }

    /// Replaces a block's contents, and makes its checksum.
    pub(super) fn write_sealed(&self, block: BlockNo, what: Sealed, mut contents: Buf) {
        // The pass that checks a structure reports that it has no place for a checksum.
        let _ = self.geo.checksums.seal(what, &mut contents);
        self.write(block, contents);
    }

    /// Changes a block in place.
    pub(super) fn change(&self, block: BlockNo, change: impl FnOnce(&mut [u8])) -> Result<(), CheckError> {
        let mut contents = Buf::copy_of(&self.read(block)?);
        change(&mut contents);
        self.write(block, contents);
        Ok(())
    }

    /// Returns the bytes of an inode's slot.
    pub(super) fn slot(&self, table: BlockNo, ino: InodeNo) -> Result<Vec<u8>, CheckError> {
        let at = self.geo.locate_inode(ino).expect("the caller has an inode of the volume");
        let page = self.read(BlockNo(table.0 + u64::from(at.table_block)))?;
        Ok(page[at.offset..at.offset + self.geo.inode_size as usize].to_vec())
    }

    /// Replaces an inode's slot, and makes its checksum. A slot of zeros has none.
    pub(super) fn set_slot(&self, table: BlockNo, ino: InodeNo, slot: &[u8]) -> Result<(), CheckError> {
        let at = self.geo.locate_inode(ino).expect("the caller has an inode of the volume");
        let is_blank = slot.iter().all(|&byte| byte == 0);
        self.change(BlockNo(table.0 + u64::from(at.table_block)), |block| {
            let stored = &mut block[at.offset..at.offset + slot.len()];
            stored.copy_from_slice(slot);
            if !is_blank {
                let sealed = self.geo.checksums.seal(Sealed::Inode(ino), stored);
                debug_assert!(sealed.is_ok(), "every inode has a place for its checksum");
            }
        })
    }

    /// Writes all changed blocks. The first failure is kept for [`Volume::finish`].
    fn write_out(&self, held: &mut Held) {
        let dirty = std::mem::take(&mut held.dirty);
        let batch = dirty
            .into_iter()
            .map(|(block, page)| request(Op::Write { data: vec![page], fua: false }, self.geo.byte_of(BlockNo(block))));
        for done in self.disk.run(batch.collect()) {
            if let Err(error) = done.result {
                held.failed.get_or_insert(error);
            }
        }
    }

    /// Writes everything that changed, then the superblock, and makes each durable.
    pub(super) fn finish(&self, superblock: Option<&Superblock>) -> Result<(), CheckError> {
        let doing = "write the repairs";
        let mut held = self.blocks.lock();
        self.write_out(&mut held);
        if let Some(error) = held.failed.take() {
            return Err(CheckError::Disk { doing, source: error });
        }
        self.disk.flush().map_err(|source| CheckError::Disk { doing, source })?;
        let Some(superblock) = superblock else { return Ok(()) };
        let mut page = Buf::copy_of(superblock.as_bytes());
        let sealed = superblock.checksums().seal(Sealed::Superblock, &mut page);
        debug_assert!(sealed.is_ok(), "every superblock has a place for its checksum");
        let done = self.disk.write(Lba::from_byte(SUPERBLOCK_OFFSET), page.freeze(), Tag::volume(Kind::Superblock));
        held.clean.clear();
        done.and_then(|_| self.disk.flush())
            .map_err(|source| CheckError::Disk { doing: "write the superblock", source })
    }
}

impl Blocks for Volume<'_> {
    type Error = CheckError;

    fn read(&self, block: BlockNo) -> Result<Page, CheckError> {
        let mut held = self.blocks.lock();
        if let Some(page) = held.dirty.get(&block.0).or_else(|| held.clean.get(&block.0)) {
            return Ok(page.clone());
        }
        let lba = Lba::from_byte(self.geo.byte_of(block));
        let read = self.disk.read(lba, self.geo.block_bytes(), Tag::volume(Kind::Inodes));
        let page = read.map_err(|source| CheckError::Disk { doing: "read a block", source })?.freeze();
        if held.clean.len() * self.geo.block_bytes() >= CLEAN_BYTES_MAX {
            held.clean.clear();
        }
        held.clean.insert(block.0, page.clone());
        Ok(page)
    }

    fn prefetch(&self, start: BlockNo, count: u32) -> Result<(), CheckError> {
        let mut held = self.blocks.lock();
        let into = (0..count).map(|_| Buf::zeroed(self.geo.block_bytes())).collect();
        let done = self.disk.run(vec![request(Op::Read { into }, self.geo.byte_of(start))]).remove(0);
        let bufs = done.result.map_err(|source| CheckError::Disk { doing: "read an inode table", source })?;
        held.clean.clear();
        held.clean.extend((start.0..).zip(bufs.into_iter().map(Buf::freeze)));
        Ok(())
    }
}

/// Returns the size of the device in bytes.
pub(super) fn device_bytes(disk: &dyn Disk) -> u64 {
    disk.limits().sectors.saturating_mul(SECTOR as u64)
}
